"""Clock, randomness and identities as collaborators, so that tests and simulations can own them.

This is the only module that uses ``time``, ``random`` or ``uuid``; a lint keeps it so. Clocks are
politeness (retries, grace, what people read) and never carry safety (I8).
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """Time as the rest of the package sees it."""

    def now_s(self) -> float:
        """Seconds since the Unix epoch, for people to read."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never run backwards, for measuring and for deadlines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Blocks the calling thread."""
        ...


class Random(Protocol):
    """Randomness for jitter."""

    def uniform(self, low: float, high: float) -> float:
        """A number in ``[low, high]``."""
        ...


class IdSource(Protocol):
    """Identities that no other process will draw."""

    def new_id(self) -> str:
        """32 lower-case hexadecimal digits."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SystemRandom:
    """Non-deterministic jitter; it neither reads nor disturbs the global ``random`` state."""

    def uniform(self, low: float, high: float) -> float:
        return random.SystemRandom().uniform(low, high)


class SystemIds:
    """Random UUIDs."""

    def new_id(self) -> str:
        return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """The three together, as they are handed down."""

    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=SystemRandom)
    ids: IdSource = field(default_factory=SystemIds)
