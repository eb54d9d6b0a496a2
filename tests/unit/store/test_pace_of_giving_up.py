"""The pace under operations that give up, and under wishes that no store can mean."""

from __future__ import annotations

import pytest

from objckpt.errors import DeadlineError, ThrottledError
from objckpt.store.memory import FaultPoint, MemorySpace, MemoryStore
from objckpt.store.pace import Pacer
from objckpt.store.retry import RetryingStore, RetryPolicy
from tests.places import Middle, Remembering, StillClock


def throttled_store(clock: StillClock) -> RetryingStore:
    """A store that was throttled for a while, and is healthy again."""
    throttled = [False]

    def refuse(point: FaultPoint) -> None:
        if throttled[0] and point.moment == "before":
            raise ThrottledError("slow down")

    store = RetryingStore(
        MemoryStore("t", space=MemorySpace(faults=refuse)),
        policy=RetryPolicy(operation_deadline_s=120.0),
        clock=clock,
        random=Middle(),
        observer=Remembering(),
    )
    for number in range(100):
        store.put(f"warm/{number}", b"1")
    throttled[0] = True
    with pytest.raises(DeadlineError):
        store.before(clock.monotonic_s() + 20.0).put("storm", b"1")
    throttled[0] = False
    return store


def test_operations_that_give_up_at_once_do_not_hold_back_later_ones() -> None:
    """S01: a save that ends at its deadline must not make the next one fail on a healthy store."""
    clock = StillClock()
    store = throttled_store(clock)
    expired = store.before(clock.monotonic_s() - 1.0)
    for number in range(3_000):
        with pytest.raises(DeadlineError):
            expired.put(f"late/{number}", b"1")
    for number in range(50):
        store.put(f"next/{number}", b"1")


def test_a_place_after_the_deadline_is_not_taken() -> None:
    clock = StillClock()
    pacer = Pacer(clock)
    pacer.reserve()
    pacer.throttled(10.0)
    waits = [pacer.reserve(by_s=clock.monotonic_s() + 5.0) for _ in range(100)]
    assert waits == [10.0] * 100


def test_a_wish_to_wait_for_days_is_cut_to_minutes() -> None:
    clock = StillClock()
    pacer = Pacer(clock)
    pacer.throttled(7 * 86_400.0)
    assert 60.0 <= pacer.reserve() <= 600.0
