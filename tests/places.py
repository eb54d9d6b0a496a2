"""Targets for tests: memory spaces that can be damaged, and an observer that remembers."""

from __future__ import annotations

import itertools

from objckpt.config import CodeConfig, StoreConfig, TargetConfig, TransferConfig, WritePolicy
from objckpt.errors import UnavailableError
from objckpt.seams import Seams
from objckpt.store.memory import FaultPoint, MemorySpace
from objckpt.store.open import memory_space
from objckpt.telemetry import Event
from objckpt.transfer.targets import Targets

_numbers = itertools.count()


class Remembering:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


class StillClock:
    """A clock whose sleeps take no time: retries and deadlines run through at once."""

    def __init__(self) -> None:
        self._now_s = 1000.0

    def now_s(self) -> float:
        return self._now_s

    def monotonic_s(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


class Counting:
    """Identities in order, so that a run of a test can be repeated."""

    def __init__(self, first: int = 1) -> None:
        self._next = itertools.count(first)

    def new_id(self) -> str:
        return f"{next(self._next):032x}"


class Middle:
    """No jitter: always the middle."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


class Place:
    """A configuration of memory targets, one space each, and what happens on them."""

    def __init__(
        self,
        domains: str,
        *,
        data: int,
        parity: int,
        stripe_size: int | None = None,
        budget: int = 64 * 1024 * 1024,
        threads: int = 4,
        min_tolerance: int = 0,
        witnesses: str = "",
        operation_deadline_s: float = 30.0,
    ) -> None:
        """``domains``: a letter per target, such as ``abc`` or ``aabb``; ``witnesses``: letters of witness domains."""
        number = next(_numbers)
        names = [f"t{i}" for i in range(len(domains) + len(witnesses))]
        self.spaces: dict[str, MemorySpace] = {}
        targets = []
        for i, (name, domain) in enumerate(zip(names, domains + witnesses, strict=True)):
            self.spaces[name] = memory_space(f"{number}-{name}")
            targets.append(
                TargetConfig(
                    name=name, url=f"memory://{number}-{name}", domain=f"domain-{domain}", fragments=i < len(domains)
                )
            )
        self.config = StoreConfig(
            run="run",
            targets=tuple(targets),
            code=CodeConfig(data=data, parity=parity, stripe_size=stripe_size),
            transfer=TransferConfig(memory_budget=budget, threads=threads, operation_deadline_s=operation_deadline_s),
            write=WritePolicy(min_tolerance=min_tolerance),
        )
        self.seen = Remembering()
        self.ids = Counting(1 + number * 2**64)
        self.clock = StillClock()
        self.targets = self.another()

    def another(self) -> Targets:
        """The same targets as another process would open them."""
        return Targets(self.config, seams=Seams(clock=self.clock, random=Middle(), ids=self.ids), observer=self.seen)

    def make_spaces(self) -> None:
        for space in self.spaces.values():
            space.create()

    def down(self, *names: str) -> None:
        """These targets answer nothing any more."""

        def refuse(point: FaultPoint) -> None:
            raise UnavailableError("down", target=point.store, key=point.key)

        for name in names:
            self.spaces[name].faults = refuse

    def up(self, *names: str) -> None:
        for name in names:
            self.spaces[name].faults = None

    def key(self, name: str, ending: str) -> str:
        """The full key of the one object of a target whose key ends so."""
        (found,) = [key for key in self.spaces[name].objects() if key.endswith(ending)]
        return found
