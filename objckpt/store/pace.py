"""How fast one process sends requests to one target: slower when told so, and slowly faster again.

Additive increase, multiplicative decrease on the rate of requests, for all threads together. Unthrottled,
there is no limit and no cost. The arithmetic is here, on the clock it is given; sleeping is the caller's.
"""

from __future__ import annotations

import threading
from collections import deque

from objckpt.seams import Clock
from objckpt.store.perprocess import PerProcess

_SLOWEST_PER_S = 1.0
_RECOVERY_S = 60.0  # from nothing back to the rate at which throttling began
_ONE_SIGNAL_S = 1.0  # refusals this close together are one burst, not many
_WINDOW_S = 1.0
_LONGEST_HOLD_S = 300.0  # however long a store asks: a wrong header must not stop a process for days


class Pacer:
    """Shared by everything in this process that sends to one target. Thread-safe; survives fork and pickle."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: PerProcess[_State] = PerProcess()

    def reserve(self, *, by_s: float = float("inf")) -> float:
        """Takes the next place in the queue and returns the seconds to wait for it.

        Args:
            by_s: On the clock's monotonic scale. A place that comes later is not taken: whoever gives up must
                not hold back those who come after.
        """
        state = self._states.get(_State)
        with state.lock:
            return state.reserve(self._clock.monotonic_s(), by_s)

    def throttled(self, retry_after_s: float | None) -> None:
        """The target asked for a slower sender."""
        state = self._states.get(_State)
        with state.lock:
            state.throttled(self._clock.monotonic_s(), retry_after_s or 0.0)

    def succeeded(self) -> None:
        """The target served a request."""
        state = self._states.get(_State)
        if state.rate_per_s is not None:
            with state.lock:
                state.succeeded(self._clock.monotonic_s())

    @property
    def rate_per_s(self) -> float | None:
        """Requests per second that are let through now; None for any number."""
        return self._states.get(_State).rate_per_s


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rate_per_s: float | None = None
        self._goal_per_s = 0.0
        self._next_s = float("-inf")
        self._lowered_s = float("-inf")
        self._raised_s = float("-inf")
        self._recent: deque[float] = deque()

    def reserve(self, now_s: float, by_s: float) -> float:
        begin_s = max(now_s, self._next_s)
        if begin_s > by_s:
            return begin_s - now_s
        if self.rate_per_s is not None:
            self._next_s = begin_s + 1.0 / self.rate_per_s
        self._recent.append(now_s)
        self._forget(now_s)
        return begin_s - now_s

    def throttled(self, now_s: float, retry_after_s: float) -> None:
        self._next_s = max(self._next_s, now_s + min(retry_after_s, _LONGEST_HOLD_S))
        if now_s - self._lowered_s < _ONE_SIGNAL_S:
            return
        self._forget(now_s)
        current = self.rate_per_s if self.rate_per_s is not None else len(self._recent) / _WINDOW_S
        self._goal_per_s = max(self._goal_per_s if self.rate_per_s is not None else current, _SLOWEST_PER_S)
        self.rate_per_s = max(current / 2, _SLOWEST_PER_S)
        self._lowered_s = self._raised_s = now_s

    def succeeded(self, now_s: float) -> None:
        if self.rate_per_s is None:
            return
        self.rate_per_s += (now_s - self._raised_s) * self._goal_per_s / _RECOVERY_S
        self._raised_s = now_s
        if self.rate_per_s > self._goal_per_s:
            self.rate_per_s = None

    def _forget(self, now_s: float) -> None:
        while self._recent and self._recent[0] <= now_s - _WINDOW_S:
            self._recent.popleft()
