"""Control reads and writes over failure domains: what counts, and what a domain has to show to count.

T domains, each with one control target; c = floor((T-1)/2). A write counts when c+1 domains have it, a
read when T-c domains have answered, so the two always meet. A domain answers only with the marker that
the newest version lists for it; with none, or a foreign one, it is lost: neither read nor written.

I5: fewer answers are a ``QuorumError``, never "nothing there" and never an older checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from objckpt.commit.control import ControlAnswer, ask
from objckpt.commit.counting import Reading, counted, half_created, newest, proven_empty, why_not
from objckpt.errors import (
    BucketNotFoundError,
    ChecksumError,
    DataError,
    InvalidInputError,
    NotFoundError,
    ObjckptError,
    ObjectNotFoundError,
    QuorumError,
    StoreError,
)
from objckpt.format import keys
from objckpt.format.manifest import CatalogVersion, Marker, TargetInForce, TargetSet, sha256
from objckpt.store.port import ByteRange
from objckpt.store.retry import RetryingStore
from objckpt.telemetry import DomainLost
from objckpt.transfer.targets import Targets

_log = logging.getLogger(__name__)
T = TypeVar("T")

STRAGGLER_S = 5.0
"""Once a quorum is there, domains that are late get this long before the others go on without them."""

SUSPECT_DEADLINE_S = 10.0
"""A domain that was late or unreachable before is retried for this long only, until it answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Which control targets have an object, after a write."""

    targets: frozenset[str]
    failures: Mapping[str, str] = field(default_factory=dict)


class ControlPlane:
    """The control targets of a run, asked and written together. Picklable.

    Args:
        targets: The run's targets.
        without: Domains that a person gives up by name: they are not asked, and all others must answer
            and have every write.
    """

    def __init__(self, targets: Targets, *, without: frozenset[str] = frozenset()) -> None:
        unknown = without - set(targets.config.domains)
        if unknown:
            raise InvalidInputError(
                f"{', '.join(sorted(unknown))} cannot be given up: there is no such domain",
                hint=f"domains are {', '.join(targets.config.domains)}",
            )
        self.targets = targets
        self.run = targets.config.run
        self.without = without
        self._markers: dict[tuple[str, str], Marker] = {}
        self._suspects: set[str] = set()
        self._late: dict[str, Future[Any]] = {}
        self._reported: set[str] = set()

    def read(self, *, creating: bool = False) -> Reading:
        """Reads claims and the newest version by a quorum.

        Args:
            creating: An earlier creation may have died before its first version was everywhere: while that is
                all there is and every domain is marked and answers, a domain without it is not lost.

        Raises:
            QuorumError: Too few domains answered.
            InvalidInputError: The configuration names other targets than the newest version.
        """
        wanted = {target.name for target in self.targets.config.control_targets}
        answers: dict[str, ControlAnswer] = {}
        version: CatalogVersion | None = None
        while missing := wanted - set(answers):
            answers = answers | self._ask_all(missing, answers)
            version = newest(answers.values(), self.run)
            if version is None:
                break
            self._compare(version)
            wanted |= {target.name for members in version.sets for target in members.control if not target.lost}
        return self._count(version, answers, creating)

    def write(
        self,
        key: str,
        body: bytes,
        sets: Iterable[TargetSet],
        *,
        avoid: frozenset[str] = frozenset(),
        everywhere: bool = False,
    ) -> Holders:
        """Writes one control object to every control target of the sets that is not lost.

        Args:
            avoid: Domains that were found lost.
            everywhere: All of them must have it, not just a quorum.

        Raises:
            QuorumError: Too few have it; those that have keep it, which does no harm.
        """
        sets = tuple(sets)
        names = {
            target.name
            for members in sets
            for target in members.control
            if not target.lost and target.domain not in avoid and target.domain not in self.without
        }
        self._known(names)

        def put(store: RetryingStore) -> None:
            store.put(key, body)

        def enough(done: Mapping[str, None]) -> bool:
            return all(len(self._in_set(members, done)) >= self._write_quorum(members, everywhere) for members in sets)

        done, failures = self._everywhere(names, put, enough)
        for members in sets:
            need, have = self._write_quorum(members, everywhere), self._in_set(members, done)
            if len(have) < need:
                raise self._too_few(
                    f"{key} was written to", members, have, need, {**failures, **dict.fromkeys(avoid, "lost")}
                )
        return Holders(targets=frozenset(done), failures=failures)

    def suffices(self, sets: Iterable[TargetSet], holders: Iterable[str]) -> bool:
        """Whether an object that these targets hold counts as written in every set."""
        names = frozenset(holders)
        return all(len(self._in_set(members, names)) >= self._write_quorum(members, False) for members in sets)

    def read_object(self, key: str, *, size: int, digest: str, avoid: frozenset[str] = frozenset()) -> bytes:
        """Reads an object that is named with its SHA-256: any one good copy will do.

        Raises:
            ObjckptError: No good copy; the text names what each target said.
        """
        tried: dict[str, str] = {}
        last: ObjckptError | None = None
        candidates = [t for t in self.targets.config.control_targets if t.domain not in avoid | self.without]
        for target in sorted(candidates, key=lambda t: t.name in self._suspects):
            try:
                # No more than what is wanted, whatever lies there.
                body = self._store(target.name).get(key, ByteRange(0, size))
                if sha256(body) != digest:
                    raise ChecksumError("the copy does not match its digest", key=key, target=target.name)
                return body
            except (StoreError, DataError) as error:
                _log.warning("a control object has no good copy on %s: %s", target.name, error)
                tried[target.name] = f"{type(error).__name__}: {error.message}"
                last = error
        missing = all(reason.startswith(ObjectNotFoundError.__name__) for reason in tried.values())
        kind = NotFoundError if missing else QuorumError if isinstance(last, StoreError) else ChecksumError
        raise kind(
            f"no good copy of {key}: " + "; ".join(f"{name}: {reason}" for name, reason in tried.items()),
            hint="bring the failed targets back; if the checkpoint was just deleted, ask for the newest again",
        ) from last

    def find_lost(self, sets: Iterable[TargetSet]) -> dict[str, str]:
        """Looks at the markers alone: reason by domain, for domains that are lost.

        A domain that cannot be reached is not in the answer: its targets may come back any moment.
        """
        members = {target.name: target for one in sets for target in one.control}
        lost = {
            target.domain: "given up or lost before"
            for target in members.values()
            if target.lost or target.domain in self.without
        }
        names = {name for name, target in members.items() if target.domain not in lost}
        self._known(names)

        def look(store: RetryingStore) -> str | None:
            try:
                store.head(keys.marker_key(members[store.name].instance))
            except ObjectNotFoundError:
                return "its marker is missing"
            except BucketNotFoundError as error:
                return error.message
            return None

        done, _ = self._everywhere(names, look, lambda found: 2 * len(found) > len(names))
        for name, reason in done.items():
            if reason is not None:
                lost[members[name].domain] = reason
                self._report_lost(members[name], reason)
        return lost

    def tolerance(self, members: TargetSet) -> int:
        """c of a set."""
        return (len(members.control) - 1) // 2

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_suspects": set(self._suspects), "_late": {}}

    def _enough(self, answers: Mapping[str, ControlAnswer]) -> bool:
        version = newest(answers.values(), self.run)
        if version is None:
            return False
        return all(len(counted(members, answers, self.run)) >= self._read_quorum(members) for members in version.sets)

    def _ask_all(self, names: set[str], before: Mapping[str, ControlAnswer]) -> dict[str, ControlAnswer]:
        domains = {target.name: target.domain for target in self.targets.config.targets}
        self._known(names)
        asked = {name for name in names if domains[name] not in self.without}
        done, failures = self._everywhere(
            asked, lambda store: ask(store, self.run, self._markers), lambda found: self._enough({**before, **found})
        )
        given_up = dict.fromkeys(names - asked, "given up by name")
        problems = {**failures, **given_up}
        return done | {name: ControlAnswer(target=name, problem=reason) for name, reason in problems.items()}

    def _count(self, version: CatalogVersion | None, answers: Mapping[str, ControlAnswer], creating: bool) -> Reading:
        if version is None:
            return proven_empty(answers, self.run)
        lost: dict[str, str] = {}
        silent: dict[str, str] = {}
        answered: set[str] = set()
        unfinished = False
        for members in version.sets:
            counting = counted(members, answers, self.run)
            if creating and half_created(version, members, answers, self.run):
                everywhere = frozenset(target.name for target in members.control)
                unfinished = counting != everywhere
                counting = everywhere
            answered |= counting
            for target in members.control:
                if target.name not in counting:
                    reason, is_lost = why_not(target, answers.get(target.name), run=self.run, without=self.without)
                    (lost if is_lost else silent)[target.domain] = reason
                    if is_lost:
                        self._report_lost(target, reason)
            need = self._read_quorum(members)
            if len(counting) < need:
                raise self._too_few("the catalog was read from", members, counting, need, {**lost, **silent})
        claims = frozenset(claim for name in answered for claim in answers[name].claims)
        return Reading(
            version=version,
            claims=claims,
            answered=frozenset(answered),
            lost=lost,
            silent=silent,
            unfinished=unfinished,
        )

    def _report_lost(self, target: TargetInForce, reason: str) -> None:
        if target.domain not in self._reported:
            self._reported.add(target.domain)
            self.targets.observer.on_event(DomainLost(domain=target.domain, target=target.name, reason=reason))

    def _compare(self, version: CatalogVersion) -> None:
        """The configuration must name what is in force; either set while targets change."""
        mine = {target.name: (target.domain, not target.fragments) for target in self.targets.config.targets}
        differences: list[str] = []
        for members in version.sets:
            theirs = {target.name: (target.domain, target.witness) for target in members.targets}
            if mine == theirs:
                return
            differences.extend(f"{name} is only in the configuration" for name in sorted(set(mine) - set(theirs)))
            differences.extend(f"{name} is missing in the configuration" for name in sorted(set(theirs) - set(mine)))
            differences.extend(
                f"{name} is domain {theirs[name][0]!r}{' (witness)' if theirs[name][1] else ''} in the run"
                f" and {mine[name][0]!r}{' (witness)' if mine[name][1] else ''} in the configuration"
                for name in sorted(set(mine) & set(theirs))
                if mine[name] != theirs[name]
            )
        raise InvalidInputError(
            f"run {self.run} has other targets than the configuration: {'; '.join(differences)}",
            hint="open it with the targets it was created with",
        )

    def _read_quorum(self, members: TargetSet) -> int:
        need = len(members.control) - self.tolerance(members)
        if self.without:
            need = min(need, sum(target.domain not in self.without for target in members.control))
        return need

    def _write_quorum(self, members: TargetSet, everywhere: bool) -> int:
        if everywhere or self.without:
            return sum(target.domain not in self.without for target in members.control)
        return self.tolerance(members) + 1

    def _in_set(self, members: TargetSet, names: Iterable[str]) -> frozenset[str]:
        return frozenset(names) & {target.name for target in members.control}

    def _too_few(
        self, what: str, members: TargetSet, have: Iterable[str], need: int, reasons: Mapping[str, str]
    ) -> QuorumError:
        states = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        have = sorted(have)
        return QuorumError(
            f"run {self.run}: {what} {len(have)} of {len(members.control)} domains"
            f" ({', '.join(have) or 'none'}), {need} are needed: {states}",
            hint="bring the named targets back, or give a domain up by name (without=...)",
        )

    def _known(self, names: Iterable[str]) -> None:
        missing = sorted(set(names) - set(self.targets.stores))
        if missing:
            raise InvalidInputError(f"targets {', '.join(missing)} of run {self.run} are not in the configuration")

    def _store(self, name: str) -> RetryingStore:
        store = self.targets.stores[name]
        if name in self._suspects:
            return store.before(self.targets.seams.clock.monotonic_s() + SUSPECT_DEADLINE_S)
        return store

    def _everywhere(
        self, names: Iterable[str], act: Callable[[RetryingStore], T], enough: Callable[[Mapping[str, T]], bool]
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Acts on all targets at once; late ones are left behind a while after the others are enough."""
        done: dict[str, T] = {}
        # A target that still owes an answer is not asked again: hung ones would use up the threads of all.
        hung = {name for name in names if name in self._late and not self._late[name].done()}
        failures = dict.fromkeys(sorted(hung), "it has not answered an earlier request yet")
        tasks: dict[Future[T], str] = {
            self.targets.control_executor.submit(act, self._store(name)): name for name in sorted(set(names) - hung)
        }
        waiting = set(tasks)
        while waiting:
            patience = STRAGGLER_S if enough(done) else None
            ended, waiting = wait(waiting, timeout=patience, return_when=FIRST_COMPLETED)
            for task in ended:
                name = tasks[task]
                try:
                    done[name] = task.result()
                    self._suspects.discard(name)
                except StoreError as error:
                    failures[name] = f"{type(error).__name__}: {error.message}"
                    self._suspects.add(name)
            if not ended:
                for task in waiting:
                    failures[tasks[task]] = "it has not answered yet"
                    self._late[tasks[task]] = task
                    self._suspects.add(tasks[task])
                break
        return done, failures
