"""The public face: a checkpoint store, and a run that a training job owns.

torch is imported only where a reader, a writer or a process group is asked for.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from objckpt.checkpoint.attempt import Exists, SaveAttempt
from objckpt.checkpoint.reading import Checkpoint
from objckpt.commit import ownership as owning
from objckpt.commit import versions
from objckpt.commit.catalog import read_version
from objckpt.commit.ownership import Ownership
from objckpt.commit.quorum import ControlPlane
from objckpt.config import Promise, StoreConfig, load_config, promise
from objckpt.errors import InvalidInputError, NotFoundError
from objckpt.format.manifest import CatalogVersion, CheckpointManifest, Entry
from objckpt.maintain.verify import VerifyReport, verify
from objckpt.seams import Seams
from objckpt.telemetry import Observer
from objckpt.transfer.targets import Targets

if TYPE_CHECKING:
    from objckpt.dcp.reader import ObjckptReader
    from objckpt.dcp.writer import ObjckptWriter

_log = logging.getLogger(__name__)


def open(
    source: str | Path | Sequence[str] | StoreConfig,
    *,
    run: str | None = None,
    without: Sequence[str] = (),
    observer: Observer | None = None,
    seams: Seams | None = None,
) -> CheckpointStore:
    """Opens a run's checkpoints. Nothing is contacted yet.

    Args:
        source: A TOML file, one URL, a list of URLs (one per target), or a ``StoreConfig``.
        run: The run's name, where the source does not say it.
        without: Failure domains that are given up by name; see docs/protocol.md.
        observer: Takes events; by default they are logged.

    Raises:
        InvalidInputError: The configuration is wrong; the text names key, value and what is allowed.
    """
    return CheckpointStore(load_config(source, run=run), without=without, observer=observer, seams=seams)


class CheckpointStore:
    """A run's checkpoints, as anyone may read them."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        without: Sequence[str] = (),
        observer: Observer | None = None,
        seams: Seams | None = None,
    ) -> None:
        self.config = config
        self.targets = Targets(config, seams=seams, observer=observer)
        self.plane = ControlPlane(self.targets, without=frozenset(without))
        promised = self.promise()
        if promised.advice:
            _log.warning("run %s: %s", config.run, promised.advice)

    def promise(self) -> Promise:
        """What this configuration survives: f, c and g = min(f, c)."""
        return promise(self.config)

    def catalog(self) -> CatalogVersion:
        """The newest catalog version, by a quorum (I5)."""
        return read_version(self.plane)[0]

    def checkpoints(self) -> list[Entry]:
        """The checkpoints of the head's line, newest first."""
        return versions.line(self.catalog())

    def latest(self) -> Entry | None:
        """The newest checkpoint; None if the run exists and has none."""
        return versions.newest(self.catalog())

    def checkpoint(self, step: int | None = None, *, checkpoint: str | None = None) -> Checkpoint:
        """Opens a committed checkpoint: the newest, a step of the line, or any by its id.

        Raises:
            NotFoundError: There is none, as a quorum says.
        """
        version, found = read_version(self.plane)
        if checkpoint is not None:
            entry = versions.find(version, checkpoint)
        elif step is not None:
            entry = versions.at_step(version, step)
        else:
            entry = versions.newest(version)
        if entry is None:
            steps = ", ".join(str(known.step) for known in versions.line(version)[:10]) or "none"
            wanted = checkpoint or (f"of step {step}" if step is not None else "yet")
            raise NotFoundError(
                f"run {self.config.run} has no checkpoint {wanted}",
                hint=f"steps of the line, newest first: {steps}",
            )
        return Checkpoint.open(self.plane, entry, lost=frozenset(found.lost))

    def reader(self, step: int | None = None) -> ObjckptReader:
        """A storage reader for ``dcp.load``; it resolves the newest checkpoint, or a step, when it is used."""
        from objckpt.dcp.reader import ObjckptReader

        return ObjckptReader(lambda: self.checkpoint(step), allow_pickles=self.config.read.allow_pickles)

    def verify(self, step: int | None = None, *, deep: bool = False) -> VerifyReport:
        """Checks that every fragment and control copy of a checkpoint is there; ``deep``: every byte."""
        return verify(self.checkpoint(step), deep=deep)

    def create(self) -> Ownership:
        """Makes the run on all of its targets, or takes it over as it is."""
        return owning.create_run(self.plane)

    def begin(
        self,
        *,
        create: bool = False,
        rewind_to: int | str | None = None,
        fresh: bool = False,
        process_group: Any = None,
        no_dist: bool = False,
    ) -> Run:
        """Takes the run over for a training job; fences older jobs. Called once, on all ranks together.

        Args:
            create: Make the run if it does not exist.
            rewind_to: A step or a checkpoint id to go on from; later ones stay on their own line.
            fresh: Go on from nothing.
            process_group: Where the result is shared; the default group if there is one.
            no_dist: Every process is on its own, even where torch.distributed is up.

        Raises:
            NotFoundError: The run does not exist.
            FencedError: Another job began at the same time, and later.
            QuorumError: Too few domains answered.
        """

        def act() -> tuple[Ownership, Entry | None, CheckpointManifest | None]:
            owned = owning.begin(self.plane, create=create, rewind_to=rewind_to, fresh=fresh)
            entry = versions.newest(owned.first)
            if entry is None:
                return owned, None, None
            return owned, entry, Checkpoint.open(self.plane, entry, lost=frozenset(owned.lost)).manifest

        from objckpt.dcp.collective import on_coordinator

        owned, entry, manifest = on_coordinator(act, process_group=process_group, no_dist=no_dist)
        checkpoint = None
        if entry is not None and manifest is not None:
            checkpoint = Checkpoint(self.plane, entry, manifest, lost=frozenset(owned.lost))
        return Run(self, owned, checkpoint)

    def close(self) -> None:
        """Ends threads and connections."""
        self.targets.close()

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Run:
    """A run as its owner holds it: one per process, made by ``CheckpointStore.begin``.

    Attributes:
        checkpoint: What ``begin`` found as the newest, the same on every rank; None on a run without any.
    """

    def __init__(self, store: CheckpointStore, ownership: Ownership, checkpoint: Checkpoint | None) -> None:
        self.store = store
        self.ownership = ownership
        self.checkpoint = checkpoint
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._seq = 0

    @property
    def epoch(self) -> str:
        return str(self.ownership.epoch)

    def writer(self, step: int, *, exists: Exists = "error", user: dict[str, Any] | None = None) -> ObjckptWriter:
        """A storage writer for one ``dcp.save`` or ``dcp.async_save``. Called on all ranks for every save.

        Args:
            step: The training step.
            exists: "error" refuses a step that this line has already; "replace" commits another one.
            user: Plain data to keep with the checkpoint (JSON).

        Raises:
            InvalidInputError: The step exists; or this is not the process that began the run.
        """
        from objckpt.dcp.writer import ObjckptWriter

        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise InvalidInputError(f"step is {step!r}", hint="a step is an integer, 0 or more")
        if exists not in ("error", "replace"):
            raise InvalidInputError(f"exists is {exists!r}", hint='it is "error" or "replace"')
        _check_user(user)
        there = versions.at_step(self.ownership.first, step)
        if there is not None and exists == "error":
            raise versions.step_exists(self.store.config.run, step, there)
        attempt = SaveAttempt(
            self.store.plane, self.ownership, seq=self._next_seq(), step=step, exists=exists, turn=self._turn
        )
        return ObjckptWriter(attempt, user=user)

    def reader(self) -> ObjckptReader:
        """A storage reader for what ``begin`` found.

        Raises:
            NotFoundError: The run has no checkpoint yet.
        """
        from objckpt.dcp.reader import ObjckptReader

        found = self.checkpoint
        if found is None:
            raise NotFoundError(
                f"run {self.store.config.run} has no checkpoint yet", hint="look at run.checkpoint before loading"
            )
        return ObjckptReader(lambda: found, allow_pickles=self.store.config.read.allow_pickles)

    def __getstate__(self) -> dict[str, Any]:
        raise InvalidInputError(
            "a Run stays in the process that began it", hint="pass a writer or a reader to other processes"
        )

    def _next_seq(self) -> int:
        """Numbers attempts and versions; never twice, and only where the run began."""
        if os.getpid() != self._pid:
            raise InvalidInputError(
                "this process did not begin the run", hint="make writers in the process that called begin()"
            )
        with self._turn:
            self._seq += 1
            return self._seq


def _check_user(user: dict[str, Any] | None) -> None:
    """What the caller keeps with a checkpoint has to come back as it was."""
    try:
        kept = msgspec.json.decode(msgspec.json.encode(user))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"user cannot be kept as JSON: {error}", hint="use plain values, and text as keys"
        ) from error
    if kept != user:
        raise InvalidInputError("user would come back changed", hint="JSON has no NaN, no infinity, no tuples")
