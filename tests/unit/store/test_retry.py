"""Which failures are tried again, how long, and what a lost answer means; on the memory store with faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from objckpt.errors import (
    BucketNotFoundError,
    CapabilityError,
    CorruptUploadError,
    DeadlineError,
    FormatError,
    ObjckptError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreFullError,
    ThrottledError,
    UnavailableError,
)
from objckpt.store.memory import FaultPoint, MemorySpace, MemoryStore
from objckpt.store.port import PutMode
from objckpt.store.retry import RetryingStore, RetryPolicy
from objckpt.telemetry import RetryPlanned
from tests.places import Middle, Remembering, StillClock


class Bench:
    """A retrying store on a memory space, with a fault for the first requests of an operation."""

    def __init__(self, **policy: float) -> None:
        self.clock = StillClock()
        self.seen = Remembering()
        self.space = MemorySpace(faults=self._on_point)
        self.asked: list[tuple[str, float]] = []
        self._plans: list[tuple[str, str, Iterator[Exception | None]]] = []
        self.store = RetryingStore(
            MemoryStore("t", space=self.space),
            policy=RetryPolicy(**policy),
            clock=self.clock,
            random=Middle(),
            observer=self.seen,
        )

    def fail(self, operation: str, *errors: Exception | None, moment: str = "before") -> None:
        """The next requests of an operation fail like this, one after the other; None lets one through."""
        self._plans.append((operation, moment, iter(errors)))

    def fail_always(self, operation: str, make: Callable[[], Exception]) -> None:
        self._plans.append((operation, "before", iter(make, None)))

    def _on_point(self, point: FaultPoint) -> None:
        if point.moment == "before":
            self.asked.append((point.operation, self.clock.monotonic_s()))
        for operation, moment, errors in self._plans:
            if (operation, moment) == (point.operation, point.moment):
                error = next(errors, None)
                if error is not None:
                    raise error

    def count(self, operation: str) -> int:
        return sum(name == operation for name, _ in self.asked)


def gone() -> UnavailableError:
    return UnavailableError("gone")


@pytest.mark.parametrize(
    "error",
    [
        PermissionDeniedError("no"),
        BucketNotFoundError("no"),
        StoreFullError("no"),
        CapabilityError("no"),
        StoreError("no"),
        FormatError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_will_not_change_is_not_tried_again(error: ObjckptError) -> None:
    bench = Bench()
    bench.fail("put", error)
    with pytest.raises(type(error)) as caught:
        bench.store.put("a", b"1")
    assert caught.value is error
    assert bench.count("put") == 1
    assert bench.seen.events == []


@pytest.mark.parametrize(
    "error",
    [UnavailableError("no"), ThrottledError("no"), CorruptUploadError("no")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("put", lambda store: store.put("a", b"1")),
        ("get", lambda store: store.get("a")),
        ("get", lambda store: store.get_into("a", 0, [memoryview(bytearray(1))])),
        ("head", lambda store: store.head("a")),
        ("delete", lambda store: store.delete("a")),
        ("list", lambda store: list(store.list(""))),
    ],
)
def test_what_may_change_is_tried_again_in_every_operation(
    error: UnavailableError, operation: str, call: Callable[[RetryingStore], object]
) -> None:
    bench = Bench()
    bench.store.put("a", b"1")
    bench.asked.clear()
    bench.fail(operation, error, error)
    call(bench.store)
    assert bench.count(operation) == 3
    planned = bench.seen.of(RetryPlanned)
    assert [(event.attempt, event.error, event.target) for event in planned] == [
        (1, type(error).__name__, "t"),
        (2, type(error).__name__, "t"),
    ]


def test_absence_is_an_answer_and_not_a_failure() -> None:
    bench = Bench()
    with pytest.raises(ObjectNotFoundError):
        bench.store.get("a")
    assert bench.count("get") == 1


def test_pauses_double_up_to_their_bound() -> None:
    bench = Bench(first_pause_s=1.0, longest_pause_s=5.0)
    bench.fail("put", *(gone() for _ in range(6)))
    bench.store.put("a", b"1")
    assert [event.pause_s for event in bench.seen.of(RetryPlanned)] == [0.5, 1.0, 2.0, 2.5, 2.5, 2.5]


def test_pauses_are_drawn_from_zero_on() -> None:
    """Full jitter: ranks that failed together do not come back together."""
    drawn: list[tuple[float, float]] = []

    class Recording:
        def uniform(self, low: float, high: float) -> float:
            drawn.append((low, high))
            return low

    space = MemorySpace()
    errors = [gone(), gone()]

    def fail(point: FaultPoint) -> None:
        if errors:
            raise errors.pop()

    space.faults = fail
    store = RetryingStore(
        MemoryStore("t", space=space),
        policy=RetryPolicy(first_pause_s=1.0),
        clock=StillClock(),
        random=Recording(),
        observer=Remembering(),
    )
    store.put("a", b"1")
    assert drawn == [(0.0, 1.0), (0.0, 2.0)]


def test_no_attempt_begins_after_the_operations_deadline() -> None:
    bench = Bench(operation_deadline_s=30.0)
    bench.fail_always("put", gone)
    began_s = bench.clock.monotonic_s()
    with pytest.raises(DeadlineError) as caught:
        bench.store.put("a", b"1")
    assert max(moment for _, moment in bench.asked) < began_s + 30.0
    assert isinstance(caught.value.__cause__, UnavailableError)
    assert caught.value.facts["attempts"] == bench.count("put")
    assert caught.value.facts["key"] == "a"


def test_an_outer_deadline_ends_operations_earlier_and_shares_the_pace() -> None:
    bench = Bench(operation_deadline_s=1000.0)
    bench.fail_always("get", gone)
    end_s = bench.clock.monotonic_s() + 5.0
    view = bench.store.before(end_s)
    assert view.pacer is bench.store.pacer
    with pytest.raises(DeadlineError):
        view.get("a")
    assert bench.clock.monotonic_s() < end_s
    assert all(moment < end_s for _, moment in bench.asked)


def test_the_earlier_of_two_outer_deadlines_stays_in_force() -> None:
    bench = Bench(operation_deadline_s=1000.0)
    bench.fail_always("get", gone)
    early_s = bench.clock.monotonic_s() + 5.0
    with pytest.raises(DeadlineError):
        bench.store.before(early_s).before(early_s + 100.0).before(None).get("a")
    assert bench.clock.monotonic_s() < early_s


def test_a_deadline_that_has_passed_asks_nothing() -> None:
    bench = Bench()
    with pytest.raises(DeadlineError):
        bench.store.before(bench.clock.monotonic_s() - 1.0).get("a")
    assert bench.asked == []


def test_the_stores_wish_to_wait_is_obeyed() -> None:
    """S01."""
    bench = Bench()
    bench.fail("put", ThrottledError("slow down", retry_after_s=17.0))
    began_s = bench.clock.monotonic_s()
    bench.store.put("a", b"1")
    assert bench.clock.monotonic_s() - began_s >= 17.0


def test_a_wish_to_wait_beyond_the_deadline_ends_at_once() -> None:
    bench = Bench(operation_deadline_s=10.0)
    bench.fail("put", ThrottledError("slow down", retry_after_s=3600.0))
    began_s = bench.clock.monotonic_s()
    with pytest.raises(DeadlineError) as caught:
        bench.store.put("a", b"1")
    assert isinstance(caught.value.__cause__, ThrottledError)
    assert bench.clock.monotonic_s() - began_s < 10.0


def test_throttling_of_one_operation_slows_the_others_too() -> None:
    """S01."""
    bench = Bench()
    for number in range(100):
        bench.store.put(f"a/{number}", b"1")
    bench.fail("put", ThrottledError("slow down"))
    bench.store.put("b", b"1")
    began_s = bench.clock.monotonic_s()
    for number in range(50):
        bench.store.get(f"a/{number}")
    assert bench.clock.monotonic_s() - began_s > 0.5


def test_bytes_that_always_arrive_damaged_are_sent_a_few_times_only() -> None:
    bench = Bench(corrupt_attempts=3)
    bench.fail_always("put", lambda: CorruptUploadError("damaged"))
    with pytest.raises(CorruptUploadError):
        bench.store.put("a", b"1")
    assert bench.count("put") == 3


# Create-if-absent and lost answers (S03)


def test_a_create_whose_answer_was_lost_is_our_own() -> None:
    """S03."""
    bench = Bench()
    bench.fail("put", gone(), gone(), moment="after")
    bench.store.put("a", b"mine", mode=PutMode.CREATE)
    assert bench.space.objects() == {"a": b"mine"}


def test_a_create_that_was_overtaken_while_it_failed_is_a_conflict() -> None:
    """S03: same size, other bytes."""
    bench = Bench()
    failed = []

    def overtake(point: FaultPoint) -> None:
        if point.operation == "put" and not failed:
            failed.append(point)
            bench.space.set_unchecked("a", b"them")
            raise gone()

    bench.space.faults = overtake
    with pytest.raises(ObjectExistsError):
        bench.store.put("a", b"mine", mode=PutMode.CREATE)
    assert bench.space.objects() == {"a": b"them"}


def test_a_create_refused_at_the_first_attempt_is_a_conflict_even_with_the_same_bytes() -> None:
    bench = Bench()
    bench.store.put("a", b"same")
    with pytest.raises(ObjectExistsError):
        bench.store.put("a", b"same", mode=PutMode.CREATE)
    assert bench.count("get") == 0


def test_reading_back_is_tried_again_like_everything_else() -> None:
    """S03."""
    bench = Bench()
    bench.fail("put", gone(), moment="after")
    bench.fail("head", gone(), gone())
    bench.fail("get", gone())
    bench.store.put("a", b"mine", mode=PutMode.CREATE)
    assert bench.count("get") == 2


def test_an_outcome_that_cannot_be_read_back_is_neither_success_nor_conflict() -> None:
    """S03."""
    bench = Bench()
    bench.fail("put", gone(), moment="after")
    bench.fail("head", PermissionDeniedError("write only"))
    with pytest.raises(StoreError, match="cannot be read") as caught:
        bench.store.put("a", b"mine", mode=PutMode.CREATE)
    assert type(caught.value) is StoreError


def test_reading_back_until_the_deadline_leaves_the_outcome_open() -> None:
    """S03."""
    bench = Bench(operation_deadline_s=20.0)
    bench.fail("put", gone(), moment="after")
    bench.fail_always("head", gone)
    with pytest.raises(DeadlineError):
        bench.store.put("a", b"mine", mode=PutMode.CREATE)


def test_a_refusal_after_a_lost_answer_says_that_the_object_may_be_there() -> None:
    bench = Bench()
    bench.fail("put", gone(), moment="after")
    bench.fail("put", None, PermissionDeniedError("rotated away"))
    with pytest.raises(PermissionDeniedError) as caught:
        bench.store.put("a", b"mine")
    assert "may have stored" in caught.value.facts["earlier_attempt"]


# Listings


def test_a_listing_that_breaks_off_goes_on_without_losing_or_repeating_anything() -> None:
    class Breaking(MemoryStore):
        """Gives a few objects of a listing and breaks off, three times."""

        breaks = 3

        def list(self, prefix: str, *, after: str | None = None):
            for number, info in enumerate(super().list(prefix, after=after)):
                if self.breaks and number == 4 - self.breaks:
                    self.breaks -= 1
                    raise UnavailableError("gone")
                yield info

    space = MemorySpace()
    keys = [f"k/{number}" for number in range(9)]
    for key in keys:
        space.set_unchecked(key, b"")
    store = RetryingStore(
        Breaking("t", space=space),
        policy=RetryPolicy(),
        clock=StillClock(),
        random=Middle(),
        observer=Remembering(),
    )
    assert [info.key for info in store.list("k/", after="k/0")] == keys[1:]


def test_a_listing_in_the_order_of_directories_survives_a_break() -> None:
    """SeaweedFS lists ``a/x`` before ``a-b/x``: resuming by comparing keys would lose objects."""

    class Tree(MemoryStore):
        breaks = 1

        def list(self, prefix: str, *, after: str | None = None):
            found = sorted(super().list(prefix, after=after), key=lambda info: info.key.split("/"))
            for number, info in enumerate(found):
                if self.breaks and number == 1:
                    self.breaks -= 1
                    raise UnavailableError("gone")
                yield info

    space = MemorySpace()
    for key in ("a/x", "a-b/x"):
        space.set_unchecked(key, b"")
    store = RetryingStore(
        Tree("t", space=space), policy=RetryPolicy(), clock=StillClock(), random=Middle(), observer=Remembering()
    )
    assert [info.key for info in store.list("")] == ["a/x", "a-b/x"]


def test_a_listing_that_stays_broken_ends_at_the_deadline() -> None:
    bench = Bench(operation_deadline_s=10.0)
    bench.fail_always("list", gone)
    with pytest.raises(DeadlineError):
        list(bench.store.list(""))
