"""A value that every process makes for itself: clients, sockets, locks and counters.

Forked children must not share sockets with their parent, nor inherit a lock that some other thread
held at the moment of the fork; pickled stores must arrive without either. A value is therefore kept
under the id of the process that made it. The parent's value stays referenced in the child, untouched:
closing it there would talk on the parent's connections.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Holds at most one value per process; thread-safe, and empty again after pickling."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot[T]] = {}

    def get(self, make: Callable[[], T]) -> T:
        """Returns this process's value, made by ``make`` under a lock if there is none."""
        slot = self._slot()
        holder = slot.holder
        if holder is None:
            with slot.lock:
                holder = slot.holder
                if holder is None:
                    holder = slot.holder = _Holder(make())
        return holder.value

    def take(self, value: T | None = None) -> T | None:
        """Empties this process's slot and returns what was in it.

        Args:
            value: Empty the slot only if it still holds this very value, so that of many threads
                that saw one client fail only the first replaces it.
        """
        slot = self._slot()
        with slot.lock:
            holder = slot.holder
            if holder is None or (value is not None and holder.value is not value):
                return None
            slot.holder = None
            return holder.value

    def _slot(self) -> _Slot[T]:
        pid = os.getpid()
        slot = self._slots.get(pid)
        # setdefault is atomic, so that this needs no lock that a fork could leave held.
        return slot if slot is not None else self._slots.setdefault(pid, _Slot())

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, ()


class _Holder(Generic[T]):
    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class _Slot(Generic[T]):
    __slots__ = ("holder", "lock")

    def __init__(self) -> None:
        self.holder: _Holder[T] | None = None
        self.lock = threading.Lock()
