"""What the GCS adapter sends, and what it makes of answers that the emulator does not give."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest

from objckpt.config import TargetConfig
from objckpt.errors import (
    BucketNotFoundError,
    CapabilityError,
    CorruptUploadError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreFullError,
    ThrottledError,
    UnavailableError,
)
from objckpt.seams import Seams
from objckpt.store.gcs import GcsStore
from objckpt.store.port import ByteRange, PutMode
from objckpt.store.retry import RetryingStore, RetryPolicy
from tests.contract.stub_server import Answer, Request, StubServer
from tests.places import Middle, Remembering, StillClock


def gcs_store(url: str, *, read_timeout_s: float = 20.0, **target: Any) -> GcsStore:
    return GcsStore(
        TargetConfig(name="t1", url="gs://bucket/prefix", endpoint_url=url, **target),
        bucket="bucket",
        prefix="prefix/run/",
        threads=4,
        seams=Seams(),
        connect_timeout_s=5.0,
        read_timeout_s=read_timeout_s,
    )


def retrying(store: GcsStore) -> RetryingStore:
    return RetryingStore(store, policy=RetryPolicy(), clock=StillClock(), random=Middle(), observer=Remembering())


def refusal(status: int, reason: str, headers: dict[str, str] | None = None) -> Answer:
    error = {"code": status, "message": "as the test wants", "errors": [{"reason": reason, "domain": "global"}]}
    return Answer(status, json.dumps({"error": error}).encode(), {"Content-Type": "application/json"} | (headers or {}))


def parts(request: Request) -> tuple[dict[str, Any], bytes]:
    """Takes a multipart upload apart: metadata and bytes."""
    boundary = request.headers["Content-Type"].partition("boundary=")[2].encode()
    before, metadata, media, after = request.body.split(b"--" + boundary)
    assert (before, after) == (b"", b"--\r\n")
    return json.loads(metadata.partition(b"\r\n\r\n")[2]), media.partition(b"\r\n\r\n")[2][:-2]


def accepts(request: Request) -> Answer:
    """Plays a bucket that holds one object of ten bytes."""
    if request.method == "POST":
        return Answer(body=json.dumps({"size": str(len(parts(request)[1]))}).encode())
    if request.method == "DELETE":
        return Answer(204)
    if request.query.get("alt") == "media":
        return Answer(body=b"0123456789")
    if request.path.endswith("/o"):
        return Answer(body=b'{"kind": "storage#objects", "items": [{"name": "prefix/run/a", "size": "10"}]}')
    return Answer(body=b'{"size": "10"}')


def first(count: int, answer: Answer) -> Callable[[Request], Answer]:
    left = [count]

    def respond(request: Request) -> Answer:
        if left[0] > 0:
            left[0] -= 1
            return answer
        return accepts(request)

    return respond


def test_an_object_of_any_size_is_one_request_that_the_store_can_check() -> None:
    """G02: no resumable session, which could be lost between its two round trips."""
    body = bytes(range(256)) * 4096 * 17
    with StubServer(accepts) as server:
        store = gcs_store(server.url, storage_class="NEARLINE", kms_key="projects/p/key")
        store.put("data/1", memoryview(body), mode=PutMode.CREATE, crc32c=google_crc32c.value(body))
        store.close()
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/upload/storage/v1/b/bucket/o")
    assert request.query["uploadType"] == "multipart"
    assert request.query["ifGenerationMatch"] == "0"
    assert request.query["kmsKeyName"] == "projects/p/key"
    assert "Transfer-Encoding" not in request.headers
    metadata, media = parts(request)
    assert media == body
    assert metadata["name"] == "prefix/run/data/1"
    assert metadata["storageClass"] == "NEARLINE"
    assert metadata["crc32c"] == base64.b64encode(google_crc32c.Checksum(body).digest()).decode()


def test_a_plain_put_carries_no_condition_and_no_checksum() -> None:
    with StubServer(accepts) as server:
        store = gcs_store(server.url)
        store.put("data/1", b"")
        store.close()
    assert "ifGenerationMatch" not in server.requests[0].query
    assert set(parts(server.requests[0])[0]) == {"name", "contentType"}


def test_bytes_that_look_like_the_framing_are_stored_as_they_are() -> None:
    with StubServer(accepts) as server:
        store = gcs_store(server.url)
        store.put("first", b"x")
        boundary = server.requests[0].headers["Content-Type"].partition("boundary=")[2]
        hostile = f"\r\n--{boundary}--\r\n".encode()
        store.put("second", hostile)
        store.close()
    assert parts(server.requests[1])[1] == hostile


def test_the_project_to_bill_goes_with_every_call() -> None:
    """G05."""

    def billed(request: Request) -> Answer:
        return accepts(request) if request.query.get("userProject") == "payer" else refusal(400, "required")

    with StubServer(billed) as server:
        store = gcs_store(server.url, user_project="payer")
        store.put("a", b"1", mode=PutMode.CREATE)
        assert store.get("a") == b"0123456789"
        assert store.head("a").size == 10
        assert [info.key for info in store.list("")] == ["a"]
        store.delete("a")
        store.close()
        forgetful = gcs_store(server.url)
        with pytest.raises(PermissionDeniedError, match="user_project"):
            forgetful.get("a")
        forgetful.close()


def test_an_emulator_needs_no_credentials_and_is_sent_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """G05."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    with StubServer(accepts) as server:
        store = gcs_store(server.url)
        store.put("a", b"1")
        store.get("a")
        store.close()
    assert not any("Authorization" in request.headers for request in server.requests)


def test_a_refusal_of_nobody_is_a_refusal_and_not_a_failed_refresh() -> None:
    """G05: anonymous credentials cannot be refreshed."""
    with StubServer(lambda _: refusal(401, "required")) as server:
        store = gcs_store(server.url)
        with pytest.raises(PermissionDeniedError):
            store.get("a")
        store.close()


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (429, "rateLimitExceeded", ThrottledError),
        (403, "userRateLimitExceeded", ThrottledError),
        (503, "backendError", UnavailableError),
        (500, "internalError", UnavailableError),
        (408, "", UnavailableError),
        (410, "gone", UnavailableError),
        (412, "conditionNotMet", ObjectExistsError),
        (403, "forbidden", PermissionDeniedError),
        (403, "insufficientPermissions", PermissionDeniedError),
        (403, "quotaExceeded", StoreFullError),
        (409, "conflict", StoreError),
        (400, "invalid", CorruptUploadError),
        (400, "parseError", CapabilityError),
        (501, "", CapabilityError),
    ],
)
def test_a_refused_put_is_named_by_status_and_reason(status: int, reason: str, kind: type[StoreError]) -> None:
    with StubServer(lambda _: refusal(status, reason)) as server:
        store = gcs_store(server.url)
        with pytest.raises(StoreError) as caught:
            store.put("claims/1", b"x", mode=PutMode.CREATE, crc32c=1)
        store.close()
    assert type(caught.value) is kind
    assert caught.value.facts["target"] == "t1"
    assert len(server.requests) == 1


def test_a_missing_object_is_told_from_a_missing_bucket_by_listing() -> None:
    def no_object(request: Request) -> Answer:
        return accepts(request) if request.path.endswith("/o") else refusal(404, "notFound")

    with StubServer(no_object) as server:
        store = gcs_store(server.url)
        with pytest.raises(ObjectNotFoundError):
            store.get("a")
        store.delete("a")
        store.close()
    with StubServer(lambda _: refusal(404, "notFound")) as server:
        store = gcs_store(server.url)
        for ask in (lambda: store.get("a"), lambda: store.delete("a"), lambda: store.put("a", b"")):
            with pytest.raises(BucketNotFoundError):
                ask()
        store.close()


def test_forbidden_never_means_absent() -> None:
    """S21: without the right to list, Google answers 403 for a key that is missing."""
    with StubServer(lambda _: refusal(403, "forbidden")) as server:
        store = gcs_store(server.url)
        for ask in (lambda: store.head("a"), lambda: store.get("a"), lambda: store.delete("a")):
            with pytest.raises(PermissionDeniedError):
                ask()
        store.close()


@pytest.mark.parametrize(
    "answer",
    [refusal(429, "rateLimitExceeded", {"Retry-After": "1"}), refusal(410, "gone"), Answer(reset=True)],
    ids=["G01", "G02", "reset"],
)
def test_a_put_is_sent_again_from_its_first_byte(answer: Answer) -> None:
    """G01, G02."""
    body = bytes(100_000)
    with StubServer(first(3, answer)) as server:
        store = gcs_store(server.url)
        retrying(store).put("data/1", body)
        store.close()
    assert [parts(request)[1] == body for request in server.requests] == [True] * 4


def test_a_store_that_kept_another_number_of_bytes_is_not_believed() -> None:
    with StubServer(lambda _: Answer(body=b'{"size": "3"}')) as server:
        store = gcs_store(server.url)
        with pytest.raises(UnavailableError):
            store.put("a", b"four")
        store.close()


@pytest.mark.parametrize("body", [b"<html></html>", b"[]", b'{"items": []}', b"{", b"\xff"])
def test_a_listing_that_makes_no_sense_is_an_error_and_never_an_empty_listing(body: bytes) -> None:
    with StubServer(lambda _: Answer(body=body)) as server:
        store = gcs_store(server.url)
        with pytest.raises(UnavailableError):
            list(store.list("catalog/"))
        store.close()


@pytest.mark.parametrize("sent", [0, 1, 9])
def test_a_body_that_ends_early_is_never_short_bytes(sent: int) -> None:
    """S17."""

    def cut(_: Request) -> Answer:
        headers = {"Content-Range": "bytes 0-9/10"}
        return Answer(206, b"0123456789"[:sent], headers, announced=10)

    with StubServer(cut) as server:
        store = gcs_store(server.url)
        with pytest.raises(UnavailableError):
            store.get("a")
        with pytest.raises(UnavailableError):
            store.get_into("a", 0, [memoryview(bytearray(10))])
        store.close()


def test_a_store_that_serves_other_bytes_than_asked_is_refused() -> None:
    with StubServer(lambda _: Answer(206, b"0123456789", {"Content-Range": "bytes 5-14/100"})) as server:
        store = gcs_store(server.url)
        with pytest.raises(CapabilityError):
            store.get("a", ByteRange(0, 10))
        store.close()


def test_a_server_that_never_answers_is_unavailable_after_the_timeout() -> None:
    release = threading.Event()
    with StubServer(lambda _: Answer(until=release, reset=True)) as server:
        store = gcs_store(server.url, read_timeout_s=0.2)
        with pytest.raises(UnavailableError):
            store.get("a")
        release.set()
        store.close()


def test_a_closed_port_is_unavailable() -> None:
    with StubServer(accepts) as server:
        url = server.url
    store = gcs_store(url)
    with pytest.raises(UnavailableError):
        store.put("a", b"1")
    store.close()
