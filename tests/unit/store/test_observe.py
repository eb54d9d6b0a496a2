"""One event per attempt, with what moved and how it ended."""

from __future__ import annotations

import pytest

from objckpt.errors import ObjectNotFoundError, UnavailableError
from objckpt.store.memory import FaultPoint, MemorySpace, MemoryStore
from objckpt.store.observe import ObservingStore
from objckpt.store.port import ByteRange
from objckpt.store.retry import RetryingStore, RetryPolicy
from objckpt.telemetry import RequestDone
from tests.places import Middle, Remembering, StillClock


def test_every_operation_is_one_event_with_its_bytes_and_its_time() -> None:
    clock, seen = StillClock(), Remembering()

    def take_time(point: FaultPoint) -> None:
        if point.moment == "before":
            clock.sleep(2.0)

    store = ObservingStore(MemoryStore("t", space=MemorySpace(faults=take_time)), clock=clock, observer=seen)
    store.put("a", b"12345")
    store.get("a")
    store.get("a", ByteRange(1, 3))
    store.get_into("a", 0, [memoryview(bytearray(1)), memoryview(bytearray(3))])
    store.head("a")
    assert [info.key for info in store.list("")] == ["a"]
    store.delete("a")
    store.close()
    assert [(event.operation, event.key, event.size) for event in seen.events] == [
        ("put", "a", 5),
        ("get", "a", 5),
        ("get", "a", 2),
        ("get", "a", 4),
        ("head", "a", 0),
        ("list", "", 0),
        ("delete", "a", 0),
    ]
    assert {(event.target, event.seconds, event.error) for event in seen.events} == {("t", 2.0, None)}


def test_the_time_of_a_listing_is_not_that_of_whoever_draws_it() -> None:
    clock, seen = StillClock(), Remembering()
    space = MemorySpace()
    space.set_unchecked("a", b"")
    for _ in ObservingStore(MemoryStore("t", space=space), clock=clock, observer=seen).list(""):
        clock.sleep(100.0)
    assert [event.seconds for event in seen.events] == [0.0]


def test_a_listing_that_is_left_early_is_an_event_without_an_error() -> None:
    seen = Remembering()
    space = MemorySpace()
    for key in "abc":
        space.set_unchecked(key, b"")
    listing = ObservingStore(MemoryStore("t", space=space), clock=StillClock(), observer=seen).list("")
    next(listing)
    listing.close()
    assert [(event.operation, event.error) for event in seen.events] == [("list", None)]


@pytest.mark.parametrize("operation", ["put", "get", "head", "list", "delete"])
def test_a_failure_is_an_event_that_names_it(operation: str) -> None:
    seen = Remembering()

    def fail(_: FaultPoint) -> None:
        raise UnavailableError("no")

    store = ObservingStore(MemoryStore("t", space=MemorySpace(), faults=fail), clock=StillClock(), observer=seen)
    calls = {
        "put": lambda: store.put("a", b"123"),
        "get": lambda: store.get("a"),
        "head": lambda: store.head("a"),
        "list": lambda: list(store.list("")),
        "delete": lambda: store.delete("a"),
    }
    with pytest.raises(UnavailableError):
        calls[operation]()
    assert [(event.operation, event.size, event.error) for event in seen.events] == [(operation, 0, "UnavailableError")]


def test_each_attempt_below_the_retries_is_seen() -> None:
    seen = Remembering()
    errors = [UnavailableError("no"), UnavailableError("no")]

    def fail(_: FaultPoint) -> None:
        if errors:
            raise errors.pop()

    clock = StillClock()
    store = RetryingStore(
        ObservingStore(MemoryStore("t", space=MemorySpace(), faults=fail), clock=clock, observer=seen),
        policy=RetryPolicy(),
        clock=clock,
        random=Middle(),
        observer=seen,
    )
    with pytest.raises(ObjectNotFoundError):
        store.get("a")
    assert [event.error for event in seen.of(RequestDone)] == [
        "UnavailableError",
        "UnavailableError",
        "ObjectNotFoundError",
    ]
