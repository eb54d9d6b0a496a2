"""What the S3 adapter makes of answers that real stores give rarely, and what it sends."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from objckpt.config import TargetConfig
from objckpt.errors import (
    BucketNotFoundError,
    CapabilityError,
    CorruptUploadError,
    DeadlineError,
    FormatError,
    InvalidInputError,
    ObjckptError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreFullError,
    ThrottledError,
    UnavailableError,
)
from objckpt.seams import Seams
from objckpt.store.port import ByteRange, PutMode
from objckpt.store.retry import RetryingStore, RetryPolicy
from objckpt.store.s3 import S3Store
from objckpt.telemetry import RetryPlanned
from tests.contract.small_s3 import SmallS3, error
from tests.contract.stub_server import Answer, Request, StubServer
from tests.places import Middle, Remembering, StillClock


@pytest.fixture(autouse=True)
def _some_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def s3_store(url: str, *, clock: Any = None, read_timeout_s: float = 20.0, **target: Any) -> S3Store:
    config = TargetConfig(name="t1", url="s3://bucket/prefix", endpoint_url=url, region="us-east-1", **target)
    return S3Store(
        config,
        bucket="bucket",
        prefix="prefix/run/",
        threads=4,
        seams=Seams() if clock is None else Seams(clock=clock),
        connect_timeout_s=5.0,
        read_timeout_s=read_timeout_s,
    )


def retrying(store: S3Store, *, clock: Any, observer: Remembering | None = None, deadline_s: float = 120.0):
    return RetryingStore(
        store,
        policy=RetryPolicy(operation_deadline_s=deadline_s),
        clock=clock,
        random=Middle(),
        observer=observer or Remembering(),
    )


def first(count: int, answer: Answer, *, method: str = "PUT") -> Callable[[Request], Answer | None]:
    """Gives ``answer`` to the first ``count`` requests of a kind."""
    left = [count]
    lock = threading.Lock()

    def before(request: Request) -> Answer | None:
        with lock:
            if request.method == method and left[0] > 0:
                left[0] -= 1
                return answer
        return None

    return before


# What is sent


def test_a_put_is_one_plain_request_that_the_store_can_check() -> None:
    """S06, S23: no trailer, no chunks, no Expect; the checksum in a header; the body not hashed again."""
    body = bytes(range(256)) * 4096
    with StubServer(SmallS3()) as server:
        store = s3_store(server.url)
        store.put("data/1", body, mode=PutMode.CREATE, crc32c=google_crc32c.value(body))
        store.close()
    (request,) = server.requests
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert (request.method, request.path) == ("PUT", "/bucket/prefix/run/data/1")
    assert request.body == body
    assert headers["content-length"] == str(len(body))
    assert headers["x-amz-checksum-crc32c"] == base64.b64encode(google_crc32c.Checksum(body).digest()).decode()
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert headers["if-none-match"] == "*"
    for absent in ("expect", "transfer-encoding", "content-encoding", "x-amz-trailer", "content-md5"):
        assert absent not in headers
    assert not [name for name in headers if name.startswith("x-amz-checksum") and not name.endswith("crc32c")]


def test_a_plain_put_carries_no_condition_and_no_checksum() -> None:
    with StubServer(SmallS3()) as server:
        store = s3_store(server.url)
        store.put("data/1", b"")
        store.close()
    names = {name.lower() for name in server.requests[0].headers}
    assert "if-none-match" not in names
    assert not [name for name in names if name.startswith("x-amz-checksum")]
    assert server.requests[0].body == b""


def test_settings_of_the_target_are_sent_with_every_request() -> None:
    with StubServer(SmallS3()) as server:
        store = s3_store(
            server.url,
            storage_class="STANDARD_IA",
            sse="aws:kms",
            kms_key="key-1",
            expected_bucket_owner="123456789012",
        )
        store.put("a", b"1")
        store.get("a")
        store.head("a")
        list(store.list(""))
        store.delete("a")
        store.close()
    put, *others = ({name.lower(): value for name, value in each.headers.items()} for each in server.requests)
    assert put["x-amz-storage-class"] == "STANDARD_IA"
    assert put["x-amz-server-side-encryption"] == "aws:kms"
    assert put["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
    assert {each["x-amz-expected-bucket-owner"] for each in (put, *others)} == {"123456789012"}


def test_deleting_is_one_plain_delete_per_key() -> None:
    """S08."""
    with StubServer(SmallS3()) as server:
        store = s3_store(server.url)
        store.delete("a/1")
        store.delete("a/2")
        store.close()
    assert [(each.method, each.target.partition("?")[0]) for each in server.requests] == [
        ("DELETE", "/bucket/prefix/run/a/1"),
        ("DELETE", "/bucket/prefix/run/a/2"),
    ]


def test_no_more_rights_are_needed_than_objects_and_listing_under_the_prefix() -> None:
    """S21: no CreateBucket, no HeadBucket, no listing of the root, no multipart upload."""

    def only_the_prefix(request: Request) -> Answer | None:
        allowed = request.path.startswith("/bucket/prefix/run/") or request.query.get("prefix", "").startswith(
            "prefix/run/"
        )
        return None if allowed and "uploads" not in request.target else error(403, "AccessDenied")

    with StubServer(SmallS3(before=only_the_prefix)) as server:
        store = s3_store(server.url)
        store.put("a/1", b"body", mode=PutMode.CREATE)
        assert store.get("a/1") == b"body"
        assert store.head("a/1").size == 4
        assert [info.key for info in store.list("")] == ["a/1"]
        store.delete("a/1")
        store.close()


# What answers mean


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", ThrottledError),
        (503, "SlowDownWrite", ThrottledError),
        (503, "SlowDownRead", ThrottledError),
        (429, "TooManyRequests", ThrottledError),
        (400, "RequestLimitExceeded", ThrottledError),
        (503, "ServiceUnavailable", UnavailableError),
        (500, "InternalError", UnavailableError),
        (502, "", UnavailableError),
        (400, "RequestTimeout", UnavailableError),
        (409, "ConditionalRequestConflict", UnavailableError),
        (409, "OperationAborted", UnavailableError),
        (409, "BucketAlreadyOwnedByYou", StoreError),
        (409, "InvalidBucketState", StoreError),
        (412, "PreconditionFailed", ObjectExistsError),
        (404, "NoSuchBucket", BucketNotFoundError),
        (403, "AccessDenied", PermissionDeniedError),
        (403, "SignatureDoesNotMatch", PermissionDeniedError),
        (401, "Unauthorized", PermissionDeniedError),
        (507, "XMinioStorageFull", StoreFullError),
        (507, "", StoreFullError),
        (403, "QuotaExceeded", StoreFullError),
        (400, "BadDigest", CorruptUploadError),
        (400, "XAmzContentChecksumMismatch", CorruptUploadError),
        (501, "NotImplemented", CapabilityError),
        (411, "MissingContentLength", CapabilityError),
        (400, "InvalidArgument", CapabilityError),
        (400, "ExpiredToken", UnavailableError),
    ],
)
def test_a_refused_put_is_named_by_status_and_code(status: int, code: str, kind: type[StoreError]) -> None:
    """S04, S21 and others: what the caller does next depends on it."""
    with StubServer(lambda _: error(status, code)) as server:
        store = s3_store(server.url)
        with pytest.raises(StoreError) as caught:
            store.put("claims/1", b"x", mode=PutMode.CREATE)
        store.close()
    assert type(caught.value) is kind
    assert caught.value.facts["target"] == "t1"
    assert caught.value.facts["key"] == "claims/1"
    assert caught.value.__cause__ is not None
    assert len(server.requests) == 1  # the SDK does not retry behind our back


def test_forbidden_never_means_absent() -> None:
    """S21: without the right to list, a store answers 403 to a HEAD of a key that is missing."""
    with StubServer(SmallS3(before=lambda request: error(403, "AccessDenied"))) as server:
        store = s3_store(server.url)
        for ask in (lambda: store.head("a"), lambda: store.get("a"), lambda: store.delete("a")):
            with pytest.raises(PermissionDeniedError) as caught:
                ask()
            assert not isinstance(caught.value, ObjectNotFoundError)
        store.close()


def test_a_head_without_a_code_is_asked_again_with_a_get() -> None:
    """S14, S21: answers to HEAD have no body, so expired credentials look like a bad request."""
    for answer, kind in (
        (error(400, "ExpiredToken"), UnavailableError),
        (error(404, "NoSuchBucket"), BucketNotFoundError),
        (error(404, "NoSuchKey"), ObjectNotFoundError),
    ):
        with StubServer(lambda _, answer=answer: answer) as server:
            store = s3_store(server.url)
            with pytest.raises(kind):
                store.head("a")
            store.close()


def test_the_hint_for_a_wrong_clock_names_the_offset() -> None:
    """S19."""

    def skewed(_: Request) -> Answer:
        return error(403, "RequestTimeTooSkewed", {"Date": "Thu, 01 Jan 1970 00:05:00 GMT"})

    clock = StillClock()  # its wall time is 1000 s after the epoch
    with StubServer(skewed) as server:
        store = s3_store(server.url, clock=clock)
        with pytest.raises(PermissionDeniedError, match="clock") as caught:
            store.put("a", b"1")
        store.close()
    assert caught.value.hint is not None
    assert " s off the store's" in caught.value.hint


def test_an_archived_object_is_not_retried_and_named_for_restoring() -> None:
    """S22."""
    with StubServer(lambda _: error(403, "InvalidObjectState")) as server:
        store = s3_store(server.url)
        with pytest.raises(StoreError, match="restore it") as caught:
            retrying(store, clock=StillClock()).get("data/1", ByteRange(0, 10))
        store.close()
    assert caught.value.facts["key"] == "data/1"
    assert not isinstance(caught.value, (UnavailableError, PermissionDeniedError))
    assert len(server.requests) == 1


def test_a_full_store_is_not_retried() -> None:
    with StubServer(lambda _: error(507, "XMinioStorageFull")) as server:
        store = s3_store(server.url)
        with pytest.raises(StoreFullError):
            retrying(store, clock=StillClock()).put("a", b"1")
        store.close()
    assert len(server.requests) == 1


def test_a_store_that_rejects_checksum_headers_gets_one_clear_hint() -> None:
    """S06."""

    def refuses(request: Request) -> Answer | None:
        return error(501, "NotImplemented") if "x-amz-checksum-crc32c" in request.headers else None

    with StubServer(SmallS3(before=refuses)) as server:
        store = s3_store(server.url)
        with pytest.raises(CapabilityError, match="x-amz-checksum-crc32c"):
            store.put("a", b"1", crc32c=google_crc32c.value(b"1"))
        store.close()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b"<html>please log in to the hotel network</html>", headers={"Content-Type": "text/html"}),
        Answer(body=b"<ListBucketResult><IsTruncated>true</IsTruncated>"),
        Answer(body=b"\x00\xff garbage"),
        Answer(body=b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"),
        Answer(body=b"<Error><Code>InternalError</Code><Message>late</Message></Error>"),
        *(
            Answer(
                body=b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents>%b</Contents></ListBucketResult>"
                % entry
            )
            for entry in (
                b"",
                b"<Size>1</Size>",
                b"<Key>prefix/run/a</Key>",
                b"<Key>prefix/run/a</Key><Size>many</Size>",
            )
        ),
    ],
    ids=["portal", "cut", "garbage", "no-token", "late-error", "empty-entry", "no-key", "no-size", "no-number"],
)
def test_a_listing_that_makes_no_sense_is_an_error_and_never_an_empty_listing(answer: Answer) -> None:
    with StubServer(lambda _: answer) as server:
        store = s3_store(server.url)
        with pytest.raises(UnavailableError):
            list(store.list("catalog/"))
        store.close()


def test_a_put_that_nobody_confirms_is_not_a_success() -> None:
    with StubServer(lambda _: Answer(body=b"<html>welcome</html>", headers={"Content-Type": "text/html"})) as server:
        store = s3_store(server.url)
        with pytest.raises(UnavailableError):
            store.put("claims/1", b"x")
        store.close()


def test_a_store_that_ignores_ranges_is_refused() -> None:
    def whole(request: Request, answer: Answer) -> Answer | None:
        return Answer(body=b"x" * 100) if "Range" in request.headers else None

    stub = SmallS3(rule=whole)
    stub.objects["/bucket/prefix/run/a"] = b"x" * 100
    with StubServer(stub) as server:
        store = s3_store(server.url)
        with pytest.raises(CapabilityError, match="byte ranges"):
            store.get("a", ByteRange(10, 20))
        assert store.get("a", ByteRange(0, 100)) == b"x" * 100
        store.close()


def test_an_object_shorter_than_the_range_is_a_format_error() -> None:
    stub = SmallS3()
    stub.objects["/bucket/prefix/run/a"] = b"x" * 100
    with StubServer(stub) as server:
        store = s3_store(server.url)
        for start, stop in ((0, 101), (50, 200), (100, 101), (300, 400)):
            with pytest.raises(FormatError):
                store.get_into("a", start, [memoryview(bytearray(stop - start))])
        store.close()


# What happens on the wire


@pytest.mark.parametrize("sent", [0, 1, 65_536, 99_999])
def test_a_body_that_ends_early_is_never_short_bytes(sent: int) -> None:
    """S17."""
    body = b"y" * 100_000

    def cut(request: Request, answer: Answer) -> Answer | None:
        if request.method == "GET":
            return Answer(answer.status, answer.body[:sent], answer.headers, announced=len(answer.body))
        return None

    stub = SmallS3(rule=cut)
    stub.objects["/bucket/prefix/run/a"] = body
    with StubServer(stub) as server:
        store = s3_store(server.url)
        with pytest.raises(UnavailableError):
            store.get("a")
        with pytest.raises(UnavailableError):
            store.get("a", ByteRange(0, 100_000))
        with pytest.raises(UnavailableError):
            store.get_into("a", 0, [memoryview(bytearray(100_000))])
        store.close()


def test_a_body_that_ends_early_is_fetched_again_as_a_whole() -> None:
    """S17."""
    body = bytes(range(250)) * 400
    cuts = [3]

    def cut(request: Request, answer: Answer) -> Answer | None:
        if request.method != "GET" or cuts[0] == 0:
            return None
        cuts[0] -= 1
        return Answer(answer.status, answer.body[: 30_000 * cuts[0]], answer.headers, announced=len(answer.body))

    stub = SmallS3(rule=cut)
    stub.objects["/bucket/prefix/run/a"] = body
    views = [memoryview(bytearray(size)) for size in (99_000, 1_000)]
    with StubServer(stub) as server:
        store = s3_store(server.url)
        retrying(store, clock=StillClock()).get_into("a", 0, views)
        store.close()
    assert b"".join(views) == body
    assert [each.headers["Range"] for each in server.requests] == ["bytes=0-99999"] * 4


def test_a_server_that_never_answers_is_unavailable_after_the_timeout() -> None:
    release = threading.Event()
    with StubServer(lambda _: Answer(until=release, reset=True)) as server:
        store = s3_store(server.url, read_timeout_s=0.2)
        with pytest.raises(UnavailableError):
            store.put("a", b"1")
        with pytest.raises(UnavailableError):
            store.get("a")
        release.set()
        store.close()


def test_a_reset_connection_is_unavailable() -> None:
    with StubServer(lambda _: Answer(reset=True)) as server:
        store = s3_store(server.url)
        for ask in (lambda: store.put("a", b"1" * 100_000), lambda: store.get("a"), lambda: store.head("a")):
            with pytest.raises(UnavailableError):
                ask()
        store.close()


def test_a_closed_port_is_unavailable() -> None:
    with StubServer(SmallS3()) as server:
        url = server.url
    store = s3_store(url)
    with pytest.raises(UnavailableError):
        store.put("a", b"1")
    store.close()


def test_settings_that_no_sdk_takes_are_the_callers_to_fix() -> None:
    with StubServer(SmallS3()) as server:
        store = s3_store(server.url, profile="no-such-profile")
        with pytest.raises(InvalidInputError, match="settings"):
            store.put("a", b"1")


# Throttling, conflicts, lost answers


def test_a_storm_of_slow_downs_is_outlasted_by_asking_more_slowly() -> None:
    """S01."""
    clock, observer = StillClock(), Remembering()
    began_s = clock.monotonic_s()
    with StubServer(SmallS3(before=first(20, error(503, "SlowDown", {"Retry-After": "3"})))) as server:
        store = s3_store(server.url, clock=clock)
        retrying(store, clock=clock, observer=observer).put("data/1", b"fragment")
        store.close()
    assert len(server.requests) == 21
    assert clock.monotonic_s() - began_s >= 20 * 3
    assert len(observer.of(RetryPlanned)) == 20


def test_a_store_that_stays_down_is_given_up_at_the_deadline_with_its_last_failure() -> None:
    """S01."""
    clock = StillClock()
    with StubServer(lambda _: error(500, "InternalError")) as server:
        store = s3_store(server.url, clock=clock)
        with pytest.raises(DeadlineError) as caught:
            retrying(store, clock=clock, deadline_s=30.0).put("data/1", b"fragment")
        store.close()
    assert isinstance(caught.value.__cause__, UnavailableError)
    assert caught.value.facts["attempts"] == len(server.requests) > 3


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted"])
def test_a_conditional_conflict_is_asked_again(code: str) -> None:
    """S04: 409 is not "already exists"."""
    with StubServer(SmallS3(before=first(2, error(409, code)))) as server:
        store = s3_store(server.url)
        retrying(store, clock=StillClock()).put("claims/1", b"mine", mode=PutMode.CREATE)
        assert store.get("claims/1") == b"mine"
        store.close()


def test_other_conflicts_are_surfaced_at_once() -> None:
    """S04."""
    with StubServer(lambda _: error(409, "BucketAlreadyOwnedByYou")) as server:
        store = s3_store(server.url)
        with pytest.raises(StoreError, match="BucketAlreadyOwnedByYou"):
            retrying(store, clock=StillClock()).put("claims/1", b"mine", mode=PutMode.CREATE)
        store.close()
    assert len(server.requests) == 1


def test_bytes_that_always_arrive_damaged_are_not_sent_forever() -> None:
    with StubServer(lambda _: error(400, "BadDigest")) as server:
        store = s3_store(server.url)
        with pytest.raises(CorruptUploadError):
            retrying(store, clock=StillClock()).put("a", b"1", crc32c=7)
        store.close()
    assert len(server.requests) == RetryPolicy().corrupt_attempts


# Credentials


def credentials_file(path: Path, key: str) -> None:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")


def only_key(key: str, refusal: Answer) -> Callable[[Request], Answer | None]:
    def before(request: Request) -> Answer | None:
        return None if f"Credential={key}/" in request.headers.get("Authorization", "") else refusal

    return before


class ClockThatActs(StillClock):
    """Does something as soon as somebody has waited for a while."""

    def __init__(self, act: Callable[[], None], *, after_s: float) -> None:
        super().__init__()
        self._act = act
        self._at_s = self.monotonic_s() + after_s

    def sleep(self, seconds: float) -> None:
        before_s = self.monotonic_s()
        super().sleep(seconds)
        if before_s < self._at_s <= self.monotonic_s():
            self._act()


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "ExpiredToken"), (403, "InvalidAccessKeyId"), (400, "InvalidToken"), (400, "TokenRefreshRequired")],
)
def test_rotated_credentials_are_picked_up_in_the_middle_of_a_save(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, code: str
) -> None:
    """S14."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    shared = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    credentials_file(shared, "first")
    expired = threading.Event()

    def before(request: Request) -> Answer | None:
        return only_key("second", error(status, code))(request) if expired.is_set() else None

    with StubServer(SmallS3(before=before)) as server:
        store = s3_store(server.url)
        store.put("data/0", b"before")
        expired.set()
        credentials_file(shared, "second")
        retrying(store, clock=StillClock()).put("data/1", b"after")
        assert store.get("data/1") == b"after"
        store.close()


def test_expired_credentials_are_waited_for_until_somebody_refreshes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S14."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    shared = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    credentials_file(shared, "first")
    clock = ClockThatActs(lambda: credentials_file(shared, "second"), after_s=5.0)
    with StubServer(SmallS3(before=only_key("second", error(400, "ExpiredToken")))) as server:
        store = s3_store(server.url)
        retrying(store, clock=clock).put("data/1", b"body")
        store.close()
    assert len(server.requests) > 2


def test_missing_credentials_are_looked_for_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """S15: a metadata service that is overloaded while all ranks start looks like "no credentials"."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    shared = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    clock = ClockThatActs(lambda: credentials_file(shared, "late"), after_s=1.0)
    with StubServer(SmallS3()) as server:
        store = s3_store(server.url)
        retrying(store, clock=clock).put("data/1", b"body")
        store.close()
    assert len(server.requests) == 1


def test_wrong_credentials_are_reported_at_once() -> None:
    with StubServer(lambda _: error(403, "InvalidAccessKeyId")) as server:
        store = s3_store(server.url)
        with pytest.raises(PermissionDeniedError):
            retrying(store, clock=StillClock()).put("a", b"1")
        store.close()
    assert len(server.requests) == 1


# Other hosts, TLS


def test_a_custom_endpoint_is_never_left() -> None:
    """S20."""
    answer = error(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-3", "Location": "http://127.0.0.1:1/x"})
    with StubServer(lambda _: answer) as server:
        store = s3_store(server.url)
        with pytest.raises(CapabilityError, match="eu-west-3"):
            store.put("a", b"1")
        with pytest.raises(CapabilityError, match="eu-west-3"):
            store.get("a")
        store.close()
    port = server.url.rpartition(":")[2]
    assert {each.headers["Host"] for each in server.requests} == {f"127.0.0.1:{port}"}


def test_a_request_that_the_sdk_points_elsewhere_is_not_sent() -> None:
    """S20."""
    with StubServer(SmallS3()) as configured, StubServer(SmallS3()) as elsewhere:
        store = s3_store(configured.url)

        def redirect(*, request: Any, **_: Any) -> None:
            request.url = request.url.replace(configured.url, elsewhere.url.replace("127.0.0.1", "localhost"))

        with store._client("a") as client:
            client.meta.events.register_first("before-send.s3", redirect)
        with pytest.raises(CapabilityError, match="localhost"):
            store.put("a", b"1")
        store.close()
    assert elsewhere.requests == []


def test_over_tls_too_no_put_is_chunked_or_trailed(certificate: tuple[str, str]) -> None:
    """S06: this is where boto3's own checksums become aws-chunked trailers."""

    def refuses(request: Request) -> Answer | None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        chunked = "aws-chunked" in headers.get("content-encoding", "") or "x-amz-trailer" in headers
        return error(501, "NotImplemented") if chunked or "transfer-encoding" in headers else None

    body = b"z" * 3_000_000
    with StubServer(SmallS3(before=refuses), certificate=certificate) as server:
        store = s3_store(server.url, ca_bundle=certificate[0])
        store.put("a", body, crc32c=google_crc32c.value(body))
        store.put("b", body)
        assert store.get("a") == body
        store.close()
    assert {each.headers["X-Amz-Content-SHA256"] for each in server.requests} == {"UNSIGNED-PAYLOAD"}


def test_an_untrusted_certificate_is_named_and_not_retried(certificate: tuple[str, str]) -> None:
    with StubServer(SmallS3(), certificate=certificate) as server:
        store = s3_store(server.url)
        with pytest.raises(CapabilityError, match="ca_bundle"):
            retrying(store, clock=StillClock()).put("a", b"1")
        store.close()


def test_no_secret_is_in_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-indeed")
    with StubServer(lambda _: error(403, "SignatureDoesNotMatch")) as server:
        store = s3_store(server.url)
        with pytest.raises(ObjckptError) as caught:
            store.put("a", b"1")
        store.close()
    assert "very-secret-indeed" not in str(caught.value) + repr(caught.value.__cause__)
