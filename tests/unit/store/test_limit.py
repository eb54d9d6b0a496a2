"""A cap on bytes per second for all targets of a process together."""

from __future__ import annotations

import pytest

from objckpt.errors import InvalidInputError
from objckpt.store.limit import BandwidthLimit, LimitingStore
from objckpt.store.memory import MemorySpace, MemoryStore
from objckpt.store.port import ByteRange, PutMode
from tests.places import StillClock

BURST_S = 0.25


@pytest.mark.parametrize("rate", [0, -1])
def test_a_limit_that_lets_nothing_through_is_refused(rate: int) -> None:
    with pytest.raises(InvalidInputError):
        BandwidthLimit(rate, StillClock())


def test_bytes_move_at_the_rate_after_a_short_burst() -> None:
    clock = StillClock()
    limit = BandwidthLimit(1000, clock)
    began_s = clock.monotonic_s()
    for _ in range(100):
        limit.take(100)
    assert clock.monotonic_s() - began_s == pytest.approx(10.0 - BURST_S)


def test_a_request_larger_than_the_burst_is_not_stuck() -> None:
    clock = StillClock()
    limit = BandwidthLimit(1000, clock)
    began_s = clock.monotonic_s()
    limit.take(50_000)
    assert clock.monotonic_s() - began_s == pytest.approx(50.0 - BURST_S)


def test_time_without_traffic_is_not_saved_up() -> None:
    clock = StillClock()
    limit = BandwidthLimit(1000, clock)
    clock.sleep(3600.0)
    began_s = clock.monotonic_s()
    limit.take(10_000)
    assert clock.monotonic_s() - began_s == pytest.approx(10.0 - BURST_S)


def test_targets_share_one_cap_in_both_directions() -> None:
    clock = StillClock()
    limit = BandwidthLimit(1000, clock)
    stores = [LimitingStore(MemoryStore(name, space=MemorySpace()), limit=limit) for name in ("a", "b")]
    began_s = clock.monotonic_s()
    for store in stores:
        store.put("key", bytes(1000), mode=PutMode.CREATE)
        assert store.get("key") == bytes(1000)
        assert store.get("key", ByteRange(0, 500)) == bytes(500)
        store.get_into("key", 0, [memoryview(bytearray(250)), memoryview(bytearray(250))])
    assert clock.monotonic_s() - began_s == pytest.approx(2 * 3.0 - BURST_S)


def test_requests_without_a_body_are_not_held_back() -> None:
    clock = StillClock()
    store = LimitingStore(MemoryStore("a", space=MemorySpace()), limit=BandwidthLimit(1, clock))
    store.put("key", b"")
    began_s = clock.monotonic_s()
    store.head("key")
    assert [info.key for info in store.list("")] == ["key"]
    store.delete("key")
    store.close()
    assert clock.monotonic_s() == began_s
    assert store.name == "a"
    assert store.capabilities.create_if_absent
