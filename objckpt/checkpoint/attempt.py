"""One try to write one checkpoint: C1 to C5.

Every rank writes its shards; the coordinator commits what all of them report. Until the commit is
acknowledged nothing is visible (I1), and a failure anywhere deletes nothing.
"""

from __future__ import annotations

import platform
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from objckpt.coding.geometry import Code, stripe_code
from objckpt.commit.catalog import commit_version
from objckpt.commit.counting import Reading
from objckpt.commit.ownership import Ownership
from objckpt.commit.quorum import ControlPlane
from objckpt.commit.versions import at_step, step_exists, with_commit
from objckpt.errors import InvalidInputError, QuorumError
from objckpt.format import keys
from objckpt.format.keys import ShardId
from objckpt.format.manifest import (
    CatalogVersion,
    CheckpointManifest,
    Chunk,
    CodeRecord,
    Entry,
    ManifestTarget,
    PartRef,
    ShardManifest,
    ShardRef,
    TargetSet,
    check_size,
    encode,
    sha256,
)
from objckpt.telemetry import Committed
from objckpt.transfer.placement import tolerance
from objckpt.transfer.upload import Source, Uploader
from objckpt.units import KiB
from objckpt.version import __version__

INLINE_METADATA = 512 * KiB
"""Metadata up to this size travels in the manifest itself; more of it becomes objects of its own."""

Exists = Literal["error", "replace"]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank reports of one shard.

    Attributes:
        holders: Control targets that have the shard's manifest.
        patterns: (k, domains of the stored fragments) as they occur among the stripes.
        degraded: Some fragment is missing.
    """

    ref: ShardRef
    holders: tuple[str, ...]
    patterns: tuple[tuple[int, tuple[str, ...]], ...]
    degraded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveResult:
    """A committed checkpoint. ``tolerance``: how many further domains it survives as it is stored."""

    checkpoint: str
    step: int
    epoch: str
    seq: int
    tolerance: int
    degraded: bool
    size: int
    seconds: float


class SaveAttempt:
    """Writes one checkpoint. Picklable; a copy in another process goes on with the same epoch and seq.

    Args:
        plane: The run's control plane.
        ownership: Whose epoch it is.
        seq: The number that this attempt and its catalog version carry; handed out once.
        step: The training step.
        exists: What to do if the line has the step already.
        turn: Held from reading the base to the end of C5: one version is in the making per epoch.
    """

    def __init__(
        self,
        plane: ControlPlane,
        ownership: Ownership,
        *,
        seq: int,
        step: int,
        exists: Exists = "error",
        turn: threading.Lock | None = None,
    ) -> None:
        self.plane = plane
        self.ownership = ownership
        self.seq = seq
        self.step = step
        self.exists = exists
        self._started_s: float | None = None
        self._turn = turn or threading.Lock()
        self._writing = threading.Lock()
        self._uploader: Uploader | None = None
        self._lost: dict[str, str] = {}

    @property
    def sets(self) -> tuple[TargetSet, ...]:
        return self.ownership.first.sets

    def write(
        self,
        name: str,
        *,
        kind: Literal["safetensors", "opaque"],
        sources: Sequence[Source],
        index: tuple[Chunk, ...],
        rank: int,
        counter: int,
    ) -> Written:
        """Stores one shard and its manifest (C1, C2).

        Args:
            name: Unique within the checkpoint.
            index: What lies where in the shard.
            rank: Who writes it; with ``counter`` it makes the shard's id unique in this attempt.

        Raises:
            NotEnoughFragmentsError: A stripe could not be stored as the policy demands.
            QuorumError: Too few domains have the shard's manifest.
        """
        uploader = self._prepared()
        shard_id = ShardId(self.ownership.epoch, self.seq, rank, counter)
        shard = uploader.upload(shard_id, name=name, kind=kind, sources=sources, index=index)
        body = check_size(encode(shard), f"the manifest of shard {name}")
        holders = self.plane.write(keys.shard_key(shard.id), body, self.sets, avoid=frozenset(self._lost))
        ref = ShardRef(
            id=shard.id, name=name, rank=rank, length=shard.length, size=len(body), sha256=sha256(body)
        )  # fmt: skip
        return Written(
            ref=ref,
            holders=tuple(sorted(holders.targets)),
            patterns=tuple(sorted(self._patterns(shard))),
            degraded=any(not f.stored for stripe in shard.stripes for f in stripe.fragments),
        )

    def commit(
        self,
        written: Sequence[Written],
        *,
        front: str,
        metadata: Sequence[bytes],
        user: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> SaveResult:
        """Makes the checkpoint visible (C3 to C5); the coordinator calls it once.

        Args:
            written: What all ranks reported.
            front: Whose metadata it is (``dcp``).
            metadata: JSON documents.
            user: Plain data of the caller's own.
            versions: Versions of what wrote it.

        Raises:
            InvalidInputError: The line has the step already; or ranks do not write the same attempt.
            FencedError: A newer job owns the run.
            IndeterminateError: It may or may not be visible.
        """
        self._check(written)
        start_s = self._start()
        with self._turn:
            committed: list[Entry] = []

            def change(base: CatalogVersion, found: Reading) -> CatalogVersion:
                there = at_step(base, self.step)
                if there is not None and self.exists != "replace":
                    raise step_exists(self.plane.run, self.step, there)
                self._count_again(written, base, found)
                entry = self._write_manifest(base, found, written, front, metadata, user or {}, versions or {})
                committed.append(entry)
                return with_commit(base, entry)

            commit_version(self.plane, self.ownership.epoch, self.seq, change)
        entry = committed[-1]
        seconds = self.plane.targets.seams.clock.monotonic_s() - start_s
        self.plane.targets.observer.on_event(
            Committed(
                run=self.plane.run, step=self.step, checkpoint=entry.checkpoint, size=entry.size,
                tolerance=entry.tolerance, degraded=entry.degraded, seconds=seconds,
            )
        )  # fmt: skip
        return SaveResult(
            checkpoint=entry.checkpoint, step=self.step, epoch=str(self.ownership.epoch), seq=self.seq,
            tolerance=entry.tolerance, degraded=entry.degraded, size=entry.size, seconds=seconds,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {
            "plane": self.plane,
            "ownership": self.ownership,
            "seq": self.seq,
            "step": self.step,
            "exists": self.exists,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(  # type: ignore[misc]
            state["plane"], state["ownership"], seq=state["seq"], step=state["step"], exists=state["exists"]
        )

    def _prepared(self) -> Uploader:
        with self._writing:
            if self._uploader is None:
                config = self.plane.targets.config
                start_s = self._start()
                deadline_s = config.transfer.save_deadline_s
                self._lost = self.plane.find_lost(self.sets)
                self._uploader = Uploader(
                    self.plane.targets,
                    run=self.plane.run,
                    code=Code.of(config.code.data, config.code.parity),
                    stripe_size=config.stripe_size,
                    min_tolerance=config.write.min_tolerance,
                    unavailable=frozenset(t.name for t in config.targets if t.domain in self._lost),
                    deadline_s=None if deadline_s is None else start_s + deadline_s,
                )
            return self._uploader

    def _start(self) -> float:
        if self._started_s is None:
            self._started_s = self.plane.targets.seams.clock.monotonic_s()
        return self._started_s

    def _patterns(self, shard: ShardManifest) -> set[tuple[int, tuple[str, ...]]]:
        domain = {target.name: target.domain for target in self.plane.targets.config.targets}
        code = shard.code.code()
        return {
            (
                stripe_code(code, stripe.length).data,
                tuple(sorted(domain[f.target] for f in stripe.fragments if f.stored)),
            )
            for stripe in shard.stripes
        }

    def _check(self, written: Sequence[Written]) -> None:
        mine = (self.ownership.epoch, self.seq)
        for item in written:
            shard = keys.parse_shard_id(item.ref.id)
            if (shard.epoch, shard.seq) != mine:
                raise InvalidInputError(
                    f"rank {shard.rank} wrote for attempt {shard.epoch}-{shard.seq}, this is {mine[0]}-{mine[1]}",
                    hint="every rank has to call run.writer(step=...) the same number of times, once for each save",
                    step=self.step,
                )

    def _count_again(self, written: Sequence[Written], base: CatalogVersion, found: Reading) -> None:
        """I1: what was written to a domain that has been lost since does not count."""
        lost_targets = {t.name for t in self.plane.targets.config.targets if t.domain in found.lost}
        for item in written:
            if not self.plane.suffices(base.sets, set(item.holders) - lost_targets):
                raise QuorumError(
                    f"the manifest of shard {item.ref.name} is left on {sorted(set(item.holders) - lost_targets)} only",
                    hint="a domain was lost during the save; nothing was committed, save again",
                    step=self.step,
                )
        left = self._survives(written, frozenset(found.lost))
        if left < self.plane.targets.config.write.min_tolerance:
            raise QuorumError(
                f"the checkpoint of step {self.step} would survive {left} lost domains,"
                f" write.min_tolerance demands {self.plane.targets.config.write.min_tolerance}",
                hint="a domain was lost during the save; nothing was committed, save again",
            )

    def _survives(self, written: Sequence[Written], lost: frozenset[str]) -> int:
        """f as stored: -1 if a stripe cannot be read."""
        patterns = {pattern for item in written for pattern in item.patterns}
        config = self.plane.targets.config
        highest = len({target.domain for target in config.fragment_targets})
        return min(
            (tolerance([d for d in domains if d not in lost], data=data) for data, domains in patterns),
            default=highest,
        )

    def _write_manifest(
        self,
        base: CatalogVersion,
        found: Reading,
        written: Sequence[Written],
        front: str,
        metadata: Sequence[bytes],
        user: Mapping[str, Any],
        versions: Mapping[str, str],
    ) -> Entry:
        config = self.plane.targets.config
        code = Code.of(config.code.data, config.code.parity)
        lost = frozenset(found.lost)
        identity = keys.checkpoint_id(self.ownership.epoch, self.seq)
        quorum_left = [
            sum(t.domain not in lost and t.domain not in found.silent for t in members.control)
            - (len(members.control) - self.plane.tolerance(members))
            for members in base.sets
        ]
        survives = max(0, min(self._survives(written, lost), *quorum_left))
        degraded = bool(lost) or any(item.degraded for item in written)
        size = sum(item.ref.length for item in written)
        now_s = self.plane.targets.seams.clock.now_s()
        manifest = CheckpointManifest(
            run=self.plane.run,
            number=self.ownership.epoch.number,
            uuid=self.ownership.epoch.uuid,
            seq=self.seq,
            step=self.step,
            parent=base.head,
            code=CodeRecord(data=code.data, parity=code.parity, algorithm=code.algorithm),
            stripe_size=config.stripe_size,
            targets=tuple(
                ManifestTarget(name=t.name, domain=t.domain, instance=t.instance) for t in base.sets[-1].targets
            ),
            length=size,
            tolerance=survives,
            degraded=degraded,
            shards=tuple(sorted((item.ref for item in written), key=lambda ref: ref.name)),
            front=front,
            metadata=self._write_parts(identity, metadata, base.sets, lost),
            user=dict(user),
            versions={"objckpt": __version__, "python": platform.python_version(), **versions},
            host=socket.gethostname(),
            created_at=now_s,
        )
        body = check_size(encode(manifest), "the checkpoint's manifest")
        self.plane.write(keys.checkpoint_key(identity), body, base.sets, avoid=lost)
        return Entry(
            checkpoint=identity,
            parent=base.head,
            step=self.step,
            manifest_size=len(body),
            manifest_sha256=sha256(body),
            proven=False,
            tolerance=survives,
            degraded=degraded,
            size=size,
            created_at=now_s,
        )

    def _write_parts(
        self, identity: str, metadata: Sequence[bytes], sets: tuple[TargetSet, ...], lost: frozenset[str]
    ) -> tuple[PartRef, ...]:
        if sum(map(len, metadata)) <= INLINE_METADATA:
            return tuple(PartRef(inline=msgspec.json.decode(part)) for part in metadata)
        for number, part in enumerate(metadata):
            check_size(part, "a part of the metadata")
            self.plane.write(keys.part_key(identity, number), part, sets, avoid=lost)
        return tuple(PartRef(size=len(part), sha256=sha256(part)) for part in metadata)
