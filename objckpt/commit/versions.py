"""Catalog versions as values: what a line is, what comes next. Pure functions, no I/O.

I6: the head decides what is newest; step numbers and clocks never do.
"""

from __future__ import annotations

import msgspec

from objckpt.errors import InvalidInputError, NotFoundError
from objckpt.format.keys import Epoch
from objckpt.format.manifest import CatalogVersion, Entry, TargetSet


def line(version: CatalogVersion) -> list[Entry]:
    """The head's chain of parents, newest first, without retired and purging entries."""
    return [entry for entry in _chain(version) if entry.state == "live"]


def newest(version: CatalogVersion) -> Entry | None:
    """The newest live checkpoint of the head's line."""
    return next(iter(line(version)), None)


def at_step(version: CatalogVersion, step: int) -> Entry | None:
    """The checkpoint of a step on the head's line; of two, the one committed later."""
    return next((entry for entry in line(version) if entry.step == step), None)


def find(version: CatalogVersion, checkpoint: str) -> Entry | None:
    """A checkpoint of any line and state by its id."""
    return next((entry for entry in version.entries if entry.checkpoint == checkpoint), None)


def first_version(
    base: CatalogVersion,
    *,
    epoch: Epoch,
    rewind_to: int | str | None = None,
    fresh: bool = False,
    lost: frozenset[str] = frozenset(),
) -> CatalogVersion:
    """A new owner's version 0: everything inherited, and the head that this owner builds on (B4).

    Args:
        base: The newest version found after the claim was written.
        rewind_to: A step of the line, or a checkpoint's id; it becomes the head.
        fresh: No head: a new line.
        lost: Domains that a person gave up by name; they never answer again unreplaced.
    """
    entries, head = base.entries, None if fresh else base.head
    if rewind_to is not None:
        chosen = _rewind_entry(base, rewind_to)
        head = chosen.checkpoint
        live = msgspec.structs.replace(chosen, state="live", retired_at=None)
        entries = tuple(live if entry is chosen else entry for entry in entries)
    return msgspec.structs.replace(
        base,
        number=epoch.number,
        uuid=epoch.uuid,
        seq=0,
        head=head,
        entries=entries,
        outcomes=(),
        sets=tuple(_with_lost(members, lost) for members in base.sets),
    )


def empty_version(*, run: str, epoch: Epoch, targets: TargetSet) -> CatalogVersion:
    """The first version of a run that does not exist yet."""
    return CatalogVersion(run=run, number=epoch.number, uuid=epoch.uuid, seq=0, sets=(targets,), head=None, entries=())


def with_commit(base: CatalogVersion, entry: Entry) -> CatalogVersion:
    """The next version: ``entry``, whose parent is the base's head, added as the new head."""
    return msgspec.structs.replace(base, head=entry.checkpoint, entries=(*base.entries, entry))


def step_exists(run: str, step: int, there: Entry) -> InvalidInputError:
    """The error for a step that this line of the run already has."""
    return InvalidInputError(
        f"run {run} already has a checkpoint of step {step} on this line",
        hint='pass exists="replace" to commit another one, or rewind to an earlier step',
        step=step,
        checkpoint=there.checkpoint,
    )


def _chain(version: CatalogVersion) -> list[Entry]:
    by_id = {entry.checkpoint: entry for entry in version.entries}
    chain: list[Entry] = []
    at = version.head
    # An entry leaves the dictionary as it is met, so that a damaged chain cannot run in a circle.
    while at is not None and (entry := by_id.pop(at, None)) is not None:
        chain.append(entry)
        at = entry.parent
    return chain


def _rewind_entry(base: CatalogVersion, to: int | str) -> Entry:
    if isinstance(to, str):
        chosen = find(base, to)
    else:
        chosen = next((entry for entry in _chain(base) if entry.step == to), None)
    if chosen is None:
        steps = ", ".join(str(entry.step) for entry in line(base)[:10]) or "none"
        raise NotFoundError(
            f"run {base.run} has no checkpoint {to!r} on its line to rewind to",
            hint=f"steps of the line, newest first: {steps}; other lines go by checkpoint id",
        )
    if chosen.state == "purging":
        raise InvalidInputError(
            f"checkpoint {chosen.checkpoint} is being deleted and cannot be rewound to", step=chosen.step
        )
    return chosen


def _with_lost(members: TargetSet, lost: frozenset[str]) -> TargetSet:
    if not lost:
        return members
    targets = tuple(
        msgspec.structs.replace(target, lost=True) if target.domain in lost else target for target in members.targets
    )
    return msgspec.structs.replace(members, targets=targets)
