"""What every object store owes, on every one there is; checked by oracles that bypass the adapters."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import pytest

from objckpt.errors import (
    BucketNotFoundError,
    CorruptUploadError,
    FormatError,
    InvalidInputError,
    ObjectExistsError,
    ObjectNotFoundError,
    UnavailableError,
)
from objckpt.seams import SystemClock, SystemRandom
from objckpt.store.port import ByteRange, ObjectInfo, ObjectStore, PutMode
from objckpt.store.retry import RetryingStore, RetryPolicy
from objckpt.telemetry import NullObserver
from tests.contract.sites import Site

MiB = 1024 * 1024
SIZES = [0, 1, 65_537, 17 * MiB]


@pytest.fixture
def store(site: Site):
    store = site.store()
    yield store
    store.close()


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def crc32c(body: bytes) -> int:
    return google_crc32c.value(body)


def retrying(store: ObjectStore) -> RetryingStore:
    """Some servers answer 409 or 500 to some who come at the same moment, which asking again settles."""
    return RetryingStore(
        store, policy=RetryPolicy(), clock=SystemClock(), random=SystemRandom(), observer=NullObserver()
    )


def keys_of(store: ObjectStore, prefix: str, after: str | None = None) -> list[str]:
    return [info.key for info in store.list(prefix, after=after)]


@pytest.mark.parametrize("size", SIZES)
def test_what_is_put_is_stored_byte_for_byte(site: Site, store: ObjectStore, size: int) -> None:
    body = content(size)
    store.put("data/ab/one", body, crc32c=crc32c(body))
    assert site.raw_get("data/ab/one") == body


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bodies_are_taken_from_any_buffer(site: Site, store: ObjectStore, kind: type) -> None:
    body = content(300_000)
    store.put("buffer", kind(body))
    assert site.raw_get("buffer") == body


def test_a_slice_of_a_larger_buffer_is_put_as_it_is(site: Site, store: ObjectStore) -> None:
    whole = bytearray(content(2 * MiB))
    store.put("slice", memoryview(whole)[12_345:1_234_567])
    assert site.raw_get("slice") == bytes(whole[12_345:1_234_567])


@pytest.mark.parametrize("size", SIZES)
def test_what_is_stored_is_got_byte_for_byte(site: Site, store: ObjectStore, size: int) -> None:
    body = content(size)
    site.raw_put("data/ab/one", body)
    assert store.get("data/ab/one") == body
    assert store.head("data/ab/one") == ObjectInfo(key="data/ab/one", size=size)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 100_000), (1, 99_999), (65_536, 65_537), (99_999, 100_000)])
def test_a_range_is_exactly_its_bytes(site: Site, store: ObjectStore, start: int, stop: int) -> None:
    body = content(100_000)
    site.raw_put("ranged", body)
    assert store.get("ranged", ByteRange(start, stop)) == body[start:stop]


@pytest.mark.parametrize("at", [0, 5, 10])
def test_an_empty_range_is_no_bytes(site: Site, store: ObjectStore, at: int) -> None:
    site.raw_put("ranged", b"0123456789")
    assert store.get("ranged", ByteRange(at, at)) == b""
    store.get_into("ranged", at, [memoryview(bytearray())])


def answered(ask: Callable[[], object]) -> None:
    """Asks again when a connection that was kept open is found closed: servers close some after a refusal."""
    for _ in range(5):
        try:
            ask()
        except UnavailableError:
            continue
        return
    pytest.fail("no answer to any of five requests")


@pytest.mark.parametrize(("start", "stop"), [(0, 11), (9, 11), (10, 11), (11, 11), (500, 600)])
def test_a_range_past_the_end_is_an_error_and_never_short_bytes(
    site: Site, store: ObjectStore, start: int, stop: int
) -> None:
    site.raw_put("ranged", b"0123456789")
    with pytest.raises(FormatError):
        answered(lambda: store.get("ranged", ByteRange(start, stop)))
    with pytest.raises(FormatError):
        answered(lambda: store.get_into("ranged", start, [memoryview(bytearray(stop - start))]))


def test_a_range_of_an_empty_object_is_an_error(site: Site, store: ObjectStore) -> None:
    site.raw_put("empty", b"")
    with pytest.raises(FormatError):
        store.get("empty", ByteRange(0, 1))


@pytest.mark.parametrize("sizes", [(10,), (0, 7, 0, 3), (1, 70_000, 2), (3 * MiB, 1, MiB), (8,) * 2_000])
def test_get_into_fills_views_one_after_the_other(site: Site, store: ObjectStore, sizes: tuple[int, ...]) -> None:
    body = content(5 * MiB)
    site.raw_put("scattered", body)
    memory = bytearray(b"\xee" * (sum(sizes) + 8))
    views, at = [], 4
    for size in sizes:
        views.append(memoryview(memory)[at : at + size])
        at += size
    store.get_into("scattered", 17, views)
    assert memory[4:-4] == body[17 : 17 + sum(sizes)]
    assert memory[:4] == memory[-4:] == b"\xee" * 4


def test_a_missing_key_is_not_found(store: ObjectStore) -> None:
    for ask in (
        lambda: store.get("no/such/key"),
        lambda: store.get("no/such/key", ByteRange(0, 1)),
        lambda: store.get_into("no/such/key", 0, [memoryview(bytearray(1))]),
        lambda: store.head("no/such/key"),
    ):
        with pytest.raises(ObjectNotFoundError) as caught:
            ask()
        assert caught.value.facts["key"] == "no/such/key"
        assert caught.value.facts["target"] == "target"


def test_a_missing_bucket_is_told_from_a_missing_key(site: Site) -> None:
    gone = site.store(bucket="objckpt-bucket-that-nobody-made")
    asks = [
        lambda: gone.get("key"),
        lambda: gone.head("key"),
        lambda: list(gone.list("")),
        lambda: gone.delete("key"),
    ]
    if not site.makes_buckets:
        asks.insert(0, lambda: gone.put("key", b"body"))
    for ask in asks:
        with pytest.raises(BucketNotFoundError):
            ask()
    gone.close()


def test_delete_removes_and_repeats_without_error(site: Site, store: ObjectStore) -> None:
    site.raw_put("shards/00/old", b"old")
    site.raw_put("shards/00/other", b"other")
    store.delete("shards/00/old")
    assert site.raw_get("shards/00/old") is None
    store.delete("shards/00/old")
    store.delete("never/was/there")
    assert site.raw_get("shards/00/other") == b"other"


def test_put_may_be_repeated_with_the_same_bytes(site: Site, store: ObjectStore) -> None:
    for _ in range(2):
        store.put("catalog/1", b"version")
    assert site.raw_get("catalog/1") == b"version"


def test_create_refuses_an_existing_key(site: Site, store: ObjectStore) -> None:
    store.put("claims/1", b"first", mode=PutMode.CREATE)
    if site.keeps_create:
        with pytest.raises(ObjectExistsError):
            store.put("claims/1", b"second", mode=PutMode.CREATE)
        assert site.raw_get("claims/1") == b"first"
    else:  # S05: the store accepts the condition and ignores it; nothing above may rely on it
        store.put("claims/1", b"second", mode=PutMode.CREATE)
        assert site.raw_get("claims/1") == b"second"


def test_of_racing_creators_one_wins_where_the_store_decides(site: Site, store: ObjectStore) -> None:
    """S04, S05."""
    creators, start = 20, threading.Barrier(20)
    patient = retrying(store)

    def create(number: int) -> bool:
        start.wait()
        try:
            patient.put("claims/raced", b"creator %d" % number, mode=PutMode.CREATE)
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(creators) as pool:
        won = [number for number, success in enumerate(pool.map(create, range(creators))) if success]
    stored = site.raw_get("claims/raced")
    if site.keeps_create:
        assert len(won) == 1
    else:
        assert len(won) == creators
    assert stored in {b"creator %d" % number for number in won}


def test_bytes_that_do_not_match_their_checksum_are_refused_where_the_store_checks(
    site: Site, store: ObjectStore
) -> None:
    body = content(70_000)
    if site.checks_crc32c:
        with pytest.raises(CorruptUploadError):
            store.put("data/damaged", body, crc32c=crc32c(body) ^ 1)
        assert site.raw_get("data/damaged") is None
    else:  # which is why every read is checked above the stores
        store.put("data/damaged", body, crc32c=crc32c(body) ^ 1)
        assert site.raw_get("data/damaged") == body


def test_a_listing_goes_through_all_pages(site: Site) -> None:
    """S24."""
    store = site.store(page_size=4)
    expected = sorted(f"checkpoints/{number:03d}" for number in range(11))
    for key in expected:
        site.raw_put(key, key.encode())
    found = list(store.list("checkpoints/"))
    assert sorted(info.key for info in found) == expected
    assert {info.size for info in found} == {len("checkpoints/000")}
    assert sorted(keys_of(store, "checkpoints/", after="checkpoints/004")) == expected[5:]
    assert keys_of(store, "checkpoints/", after="checkpoints/010") == []
    store.close()


def test_more_keys_than_a_page_of_a_thousand_are_listed(site: Site, store: ObjectStore) -> None:
    """S24. The servers, where making objects takes time, get just over one page."""
    count = 2_345 if site.pages_cheaply else 1_001
    expected = {f"data/{number % 7:02x}/{number:06d}" for number in range(count)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: site.raw_put(key, b""), expected))
    assert set(keys_of(store, "data/")) == expected
    assert keys_of(store, "data/", after="data/03/~") == sorted(key for key in expected if key > "data/03/~")


def test_a_listing_after_a_key_that_is_not_there_begins_at_the_next(site: Site, store: ObjectStore) -> None:
    for key in ("run-a/markers/1", "run-a/markers/2", "run-b/claims/1", "run-c/claims/1", "top"):
        site.raw_put(key, b"x")
    assert sorted(keys_of(store, "", after="run-a/~")) == ["run-b/claims/1", "run-c/claims/1", "top"]
    assert sorted(keys_of(store, "", after="run-b/claims/0")) == ["run-b/claims/1", "run-c/claims/1", "top"]
    assert sorted(keys_of(store, "", after="run-b/claims/1")) == ["run-c/claims/1", "top"]
    assert keys_of(store, "", after="top/~") == []


def test_a_prefix_does_not_match_its_siblings(site: Site, store: ObjectStore) -> None:
    for key in ("a/1", "a/b/2", "ab/3", "a-b/4", "a.b/5", "b/a/6"):
        site.raw_put(key, b"x")
    assert sorted(keys_of(store, "a/")) == ["a/1", "a/b/2"]
    assert sorted(keys_of(store, "a/b")) == ["a/b/2"]
    assert sorted(keys_of(store, "ab/")) == ["ab/3"]
    assert keys_of(store, "nothing/here/") == []
    assert sorted(keys_of(store, "")) == ["a-b/4", "a.b/5", "a/1", "a/b/2", "ab/3", "b/a/6"]


@pytest.mark.parametrize(
    "key",
    [
        "plain",
        "a.b/c_d/e-f/0123456789.000",
        "-leading/.hidden/_under/..double/trailing.",
        "UPPER/lower/MiXeD",
        "a" * 200,
        "/".join(["long" * 24] * 9)[:900],
    ],
)
def test_every_allowed_key_round_trips(site: Site, store: ObjectStore, key: str) -> None:
    """S24."""
    store.put(key, key.encode())
    assert site.raw_get(key) == key.encode()
    assert store.get(key) == key.encode()
    assert store.head(key).size == len(key)
    assert key in keys_of(store, "")
    store.delete(key)
    assert site.raw_get(key) is None


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/../b", ".", "a b", "ä", "a%2Fb", "a\nb", "x" * 1025, "~a"])
def test_keys_that_some_store_would_mangle_are_refused_by_all(store: ObjectStore, key: str) -> None:
    """S24."""
    for use in (
        lambda: store.put(key, b""),
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.delete(key),
    ):
        with pytest.raises(InvalidInputError):
            use()


def test_a_closed_store_opens_again_when_it_is_used(site: Site, store: ObjectStore) -> None:
    store.put("again", b"1")
    store.close()
    assert store.get("again") == b"1"


def test_many_threads_share_one_store(site: Site, store: ObjectStore) -> None:
    """S16."""

    patient = retrying(store)

    def round_trip(number: int) -> bool:
        body = content(40_000, seed=number)
        patient.put(f"threads/{number}", body, crc32c=crc32c(body))
        return patient.get(f"threads/{number}") == body

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(round_trip, range(48)))
