"""Does each target do what objckpt needs of it? Probes with small objects that are deleted again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from objckpt.coding.checksum import crc32c
from objckpt.commit.counting import Reading
from objckpt.commit.quorum import ControlPlane
from objckpt.config import Promise, promise
from objckpt.errors import CorruptUploadError, ObjckptError, ObjectExistsError, ObjectNotFoundError
from objckpt.format import keys
from objckpt.seams import Clock
from objckpt.store.port import ByteRange, ObjectStore, PutMode

BODY = bytes(range(256)) * 16
CLOCK_TOLERANCE_S = 60.0
"""Clouds refuse requests that were signed some five to fifteen minutes off; this is the time to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question to one target. ``outcome``: ok, failed, or weak (works without, with less protection)."""

    name: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """The answers of one target."""

    target: str
    domain: str
    url: str
    witness: bool
    probes: tuple[Probe, ...]

    @property
    def works(self) -> bool:
        return all(probe.outcome != "failed" for probe in self.probes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All targets, what the configuration promises, and what is left of it today.

    Attributes:
        run: "exists", "does not exist", or why nobody can say.
        lost: Reason by domain, for lost domains.
        silent: Reason by domain, for domains that did not answer.
        left: Domains that may still be lost before control reads stop; None if the run cannot be read.
    """

    promised: Promise
    targets: tuple[TargetReport, ...]
    run: str
    lost: dict[str, str]
    silent: dict[str, str]
    left: int | None

    @property
    def healthy(self) -> bool:
        return all(target.works for target in self.targets) and not self.lost and not self.silent


def examine(plane: ControlPlane) -> DoctorReport:
    """Probes every target and reads the run. Raises nothing that a target causes: it is in the report."""
    config = plane.targets.config
    targets = []
    for target in config.targets:
        # A sick target must not hold the examination up for as long as a save would wait for it.
        deadline_s = plane.targets.seams.clock.monotonic_s() + 20.0
        store = plane.targets.stores[target.name].before(deadline_s)
        key = keys.probe_key(plane.targets.seams.ids.new_id())
        targets.append(
            TargetReport(
                target=target.name,
                domain=target.domain,
                url=target.url,
                witness=not target.fragments,
                probes=_probe(store, key, plane.targets.seams.clock),
            )
        )
    promised = promise(config)
    try:
        found = plane.read()
    except ObjckptError as error:
        return DoctorReport(promised=promised, targets=tuple(targets), run=str(error), lost={}, silent={}, left=None)
    return DoctorReport(
        promised=promised,
        targets=tuple(targets),
        run="exists" if found.version is not None else "does not exist",
        lost=dict(found.lost),
        silent=dict(found.silent),
        left=_left(plane, found),
    )


def _left(plane: ControlPlane, found: Reading) -> int | None:
    if found.version is None:
        return None
    return min(
        len(found.answered & {target.name for target in members.control})
        - (len(members.control) - plane.tolerance(members))
        for members in found.version.sets
    )


def _probe(store: ObjectStore, key: str, clock: Clock) -> tuple[Probe, ...]:
    probes: list[Probe] = []

    def ask(name: str, question: Callable[[], str | None]) -> bool:
        try:
            weakness = question()
        except ObjckptError as error:
            probes.append(Probe(name=name, outcome="failed", detail=str(error)))
            return False
        probes.append(Probe(name=name, outcome="ok" if weakness is None else "weak", detail=weakness or ""))
        return True

    if ask("put", lambda: store.put(key, BODY, crc32c=crc32c(BODY))):
        ask("get", lambda: _same(store.get(key), BODY))
        ask("range", lambda: _same(store.get(key, ByteRange(100, 200)), BODY[100:200]))
        ask("head", lambda: _same(store.head(key).size, len(BODY)))
        ask("list", lambda: _same([info.key for info in store.list(key)], [key]))
        ask("create-if-absent", lambda: _refuses_second_create(store, key))
        ask("checksum", lambda: _refuses_wrong_checksum(store, key + "-damaged"))
        ask("clock", lambda: _tells_the_time(store, clock))
        ask("delete", lambda: _deletes(store, key))
    return tuple(probes)


def _same(found: object, wanted: object) -> str | None:
    if found != wanted:
        raise ObjckptError("the store gives back something else than was stored")
    return None


def _refuses_second_create(store: ObjectStore, key: str) -> str | None:
    try:
        store.put(key, b"second", mode=PutMode.CREATE)
    except ObjectExistsError:
        return None
    return "not enforced; objckpt does not depend on it"


def _refuses_wrong_checksum(store: ObjectStore, key: str) -> str | None:
    try:
        store.put(key, BODY, crc32c=crc32c(BODY) ^ 1)
    except ObjckptError as error:
        cause = error if isinstance(error, CorruptUploadError) else error.__cause__
        if isinstance(cause, CorruptUploadError):
            return None
        raise
    store.delete(key)
    return "the store takes damaged bytes; they are found when they are read"


def _tells_the_time(store: ObjectStore, clock: Clock) -> str | None:
    server_s = store.server_time_s()
    if server_s is None or abs(clock.now_s() - server_s) <= CLOCK_TOLERANCE_S:
        return None
    ahead_s = clock.now_s() - server_s
    return f"this machine's clock is {abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}: set it"


def _deletes(store: ObjectStore, key: str) -> str | None:
    store.delete(key)
    try:
        store.head(key)
    except ObjectNotFoundError:
        return None
    return "a deleted object still shows"
