"""The pace of requests: none at first, slower when told so, and slowly faster again."""

from __future__ import annotations

import os
import pickle
import threading

import pytest

from objckpt.store.pace import Pacer
from tests.places import StillClock


class FrozenClock:
    """A clock that can be pickled."""

    def now_s(self) -> float:
        return 0.0

    def monotonic_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Takes no time."""


def sent(pacer: Pacer, clock: StillClock, count: int) -> float:
    """Sends requests as fast as the pace allows and returns how long that took."""
    began_s = clock.monotonic_s()
    for _ in range(count):
        clock.sleep(pacer.reserve())
        pacer.succeeded()
    return clock.monotonic_s() - began_s


def busy_pacer(clock: StillClock, rate_per_s: int) -> Pacer:
    pacer = Pacer(clock)
    for _ in range(rate_per_s):
        pacer.reserve()
    return pacer


def test_nothing_waits_as_long_as_nobody_complains() -> None:
    clock = StillClock()
    pacer = Pacer(clock)
    assert [pacer.reserve() for _ in range(1000)] == [0.0] * 1000
    pacer.succeeded()
    assert pacer.rate_per_s is None


def test_a_complaint_halves_the_rate() -> None:
    clock = StillClock()
    pacer = busy_pacer(clock, 100)
    pacer.throttled(None)
    assert pacer.rate_per_s == 50.0
    waits = [pacer.reserve() for _ in range(51)]
    assert abs(waits[-1] - 1.0) < 1e-9


def test_complaints_of_one_burst_count_once_and_later_ones_again() -> None:
    clock = StillClock()
    pacer = busy_pacer(clock, 100)
    for _ in range(20):
        pacer.throttled(None)
    assert pacer.rate_per_s == 50.0
    clock.sleep(2.0)
    pacer.throttled(None)
    assert pacer.rate_per_s == 25.0


def test_the_rate_never_falls_to_nothing() -> None:
    clock = StillClock()
    pacer = busy_pacer(clock, 4)
    for _ in range(50):
        pacer.throttled(None)
        clock.sleep(2.0)
    assert pacer.rate_per_s == 1.0


def test_a_retry_after_holds_everybody_back() -> None:
    clock = StillClock()
    pacer = busy_pacer(clock, 10)
    pacer.throttled(30.0)
    assert pacer.reserve() >= 30.0
    assert pacer.reserve() > 30.0


def test_the_rate_recovers_within_a_minute_of_success_and_then_is_free_again() -> None:
    clock = StillClock()
    pacer = busy_pacer(clock, 100)
    pacer.throttled(None)
    took_s = sent(pacer, clock, 2_600)
    assert pacer.rate_per_s is None
    assert 25.0 < took_s < 61.0
    assert pacer.reserve() == 0.0


def test_a_pickled_pacer_starts_afresh() -> None:
    pacer = Pacer(FrozenClock())
    pacer.throttled(None)
    copy = pickle.loads(pickle.dumps(pacer))
    assert copy.rate_per_s is None


def test_many_threads_reserve_different_moments() -> None:
    clock = StillClock()
    pacer = busy_pacer(clock, 100)
    pacer.throttled(None)
    waits: list[float] = []
    lock = threading.Lock()

    def reserve() -> None:
        for _ in range(50):
            wait_s = pacer.reserve()
            with lock:
                waits.append(wait_s)

    threads = [threading.Thread(target=reserve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({round(wait_s, 6) for wait_s in waits}) == 400


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_has_a_pace_of_its_own() -> None:
    clock = StillClock()
    pacer = busy_pacer(clock, 100)
    pacer.throttled(None)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if pacer.rate_per_s is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert pacer.rate_per_s == 50.0
