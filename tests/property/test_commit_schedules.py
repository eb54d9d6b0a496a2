"""Owners that interleave at every store call, with domains that fail: nothing acknowledged is lost (I3, I5, I6).

Every call of one owner may be the moment at which another owner acts as a whole, at which a domain goes
down or comes back, or at which an answer is lost. One seed is one schedule; calls run one after the other,
so a seed replays. The mutants at the end are protocols with one rule left out: each must be caught.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from objckpt.checkpoint.attempt import SaveAttempt
from objckpt.commit import versions
from objckpt.commit.counting import Reading
from objckpt.commit.ownership import Ownership, begin
from objckpt.commit.quorum import ControlPlane, Holders
from objckpt.errors import (
    ConflictError,
    FencedError,
    IndeterminateError,
    NotEnoughFragmentsError,
    NotFoundError,
    QuorumError,
    UnavailableError,
)
from objckpt.seams import Seams
from objckpt.store.memory import FaultPoint
from objckpt.transfer.targets import Targets
from objckpt.transfer.upload import BytesSource
from tests.places import Middle, Place

SEEDS = range(150)
EXPECTED = (ConflictError, FencedError, IndeterminateError, NotEnoughFragmentsError, QuorumError)


class OneAfterTheOther(Executor):
    """Runs a task where it is submitted, so that a schedule is the seed's and not the machine's."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(task(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - as executors do
            future.set_exception(error)
        return future


class SerialTargets(Targets):
    @property
    def executor(self) -> Any:
        return OneAfterTheOther()

    @property
    def control_executor(self) -> Any:
        return OneAfterTheOther()


class Violation(AssertionError):
    """An invariant does not hold."""


class World:
    """Three domains, some owners, and what was acknowledged to whom."""

    def __init__(self, seed: int, plane: type[ControlPlane]) -> None:
        self.random = random.Random(seed)
        self.plane_kind = plane
        self.place = Place("abc", data=1, parity=2, operation_deadline_s=0.5)
        self.acknowledged: list[str] = []
        self.owners: list[tuple[ControlPlane, Ownership, list[int]]] = []
        self.down: str | None = None
        self.depth = 0
        self.budget = 12
        self.begin(create=True)
        for space in self.place.spaces.values():
            space.faults = self.call

    def plane(self) -> ControlPlane:
        seams = Seams(clock=self.place.clock, random=Middle(), ids=self.place.ids)
        return self.plane_kind(SerialTargets(self.place.config, seams=seams, observer=self.place.seen))

    def call(self, point: FaultPoint) -> None:
        """What may happen at a store call."""
        if point.store == self.down:
            raise UnavailableError("down", target=point.store)
        chance = self.random.random()
        if chance < 0.01 and self.depth < 2 and self.budget > 0:
            self.act()
        elif chance < 0.015:
            self.down = self.random.choice([None, "t0", "t1", "t2"])
        elif chance < 0.02:
            raise UnavailableError("the answer was lost", target=point.store)

    def act(self) -> None:
        self.budget -= 1
        self.depth += 1
        try:
            if not self.owners or self.random.random() < 0.4:
                self.begin()
            else:
                self.save(self.random.choice(self.owners))
        except EXPECTED:
            pass
        finally:
            self.depth -= 1

    def begin(self, *, create: bool = False) -> None:
        plane = self.plane()
        owned = begin(plane, create=create)
        self.all_there(owned.first, "a new owner did not inherit")
        self.owners.append((plane, owned, [0]))

    def save(self, owner: tuple[ControlPlane, Ownership, list[int]]) -> None:
        plane, owned, seq = owner
        seq[0] += 1
        attempt = SaveAttempt(plane, owned, seq=seq[0], step=self.random.randrange(10**6), exists="replace")
        body = f"{owned.epoch}{seq[0]}".encode()
        written = attempt.write("s", kind="opaque", sources=[BytesSource(body)], index=(), rank=0, counter=0)
        result = attempt.commit([written], front="test", metadata=[b"{}"])
        self.acknowledged.append(result.checkpoint)

    def all_there(self, version: Any, complaint: str) -> None:
        known = {entry.checkpoint for entry in version.entries}
        lost = [checkpoint for checkpoint in self.acknowledged if checkpoint not in known]
        if lost:
            raise Violation(f"{complaint}: {lost}")
        line = [entry.checkpoint for entry in versions.line(version)]
        if self.acknowledged and set(self.acknowledged) - set(line):
            raise Violation(f"{complaint}: off the line: {set(self.acknowledged) - set(line)}")

    def run(self) -> None:
        while self.budget > 0:
            self.act()
        for space in self.place.spaces.values():
            space.faults = None
        for missing in (None, "t0", "t1", "t2"):
            if missing is not None:
                self.place.down(missing)
            found = ControlPlane(self.plane().targets).read().version
            self.all_there(found, f"a reader without {missing} does not see")
            if missing is not None:
                self.place.up(missing)
        self.begin()


def test_nothing_acknowledged_is_lost_whatever_the_schedule() -> None:
    acknowledged = rivals = 0
    for seed in SEEDS:
        world = World(seed, ControlPlane)
        world.run()
        acknowledged += len(world.acknowledged)
        rivals += len({checkpoint[:43] for checkpoint in world.acknowledged}) > 1
    # Schedules in which nothing happens would prove nothing.
    assert acknowledged > 2 * len(SEEDS)
    assert rivals > len(SEEDS) // 3


class SkipsC5(ControlPlane):
    """After a version is written, it takes for granted that nobody came in between."""

    _just_written: Any = None

    def write(self, key: str, body: bytes, *arguments: Any, **named: Any) -> Holders:
        holders = super().write(key, body, *arguments, **named)
        if key.startswith("catalog/") and "/00000000-" not in key:
            self._just_written = body
        return holders

    def read(self, *, creating: bool = False) -> Reading:
        written, self._just_written = self._just_written, None
        if written is None:
            self._last = super().read(creating=creating)
            return self._last
        from objckpt.format.manifest import CatalogVersion

        version = msgspec.json.decode(written, type=CatalogVersion)
        return Reading(version=version, claims=frozenset(), answered=self._last.answered, lost={}, silent={})


class ReadsBeforeItClaims(ControlPlane):
    """What it inherits was read before its claim was written."""

    _before: Reading | None = None
    _claimed = False

    def write(self, key: str, *arguments: Any, **named: Any) -> Holders:
        self._claimed = key.startswith("claims/")
        return super().write(key, *arguments, **named)

    def read(self, *, creating: bool = False) -> Reading:
        claimed, self._claimed = self._claimed, False
        if claimed and self._before is not None:
            return self._before
        self._before = super().read(creating=creating)
        return self._before


class QuorumOfOne(ControlPlane):
    """One domain is enough, for everything."""

    def _read_quorum(self, members: Any) -> int:
        return 1

    def _write_quorum(self, members: Any, everywhere: bool) -> int:
        return 1


class WritesToOne(ControlPlane):
    """A write counts when one domain has it; reads are as they should be."""

    def _write_quorum(self, members: Any, everywhere: bool) -> int:
        return 1


@contextmanager
def caught() -> Iterator[None]:
    with pytest.raises((Violation, NotFoundError)):
        yield


@pytest.mark.parametrize("mutant", [SkipsC5, ReadsBeforeItClaims, QuorumOfOne, WritesToOne])
def test_a_protocol_with_one_rule_left_out_is_caught(mutant: type[ControlPlane]) -> None:
    with caught():
        for seed in range(3000):
            World(seed, mutant).run()
