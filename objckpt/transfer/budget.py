"""The byte budget: how much memory transfers may hold at once. First come, first served."""

from __future__ import annotations

import threading
from collections import deque


class ByteBudget:
    """Bytes in flight, bounded.

    A request larger than the whole budget is admitted alone. Whoever holds bytes must not wait for
    more of the same budget.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._in_flight = 0
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def acquire(self, size: int) -> None:
        """Waits until ``size`` bytes fit and every earlier request was admitted."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                self._changed.wait_for(lambda: self._queue[0] is ticket and self._fits(size))
                self._in_flight += size
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def try_acquire(self, size: int) -> bool:
        """Takes ``size`` bytes if that needs no waiting."""
        with self._changed:
            if self._queue or not self._fits(size):
                return False
            self._in_flight += size
            return True

    def release(self, size: int) -> None:
        with self._changed:
            self._in_flight -= size
            self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return self._in_flight == 0 or self._in_flight + size <= self.limit
