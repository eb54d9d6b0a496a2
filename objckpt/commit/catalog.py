"""Writing the next version of the catalog: C4 and C5. Nothing else changes what exists."""

from __future__ import annotations

import socket
from collections.abc import Callable

import msgspec

from objckpt.commit.counting import Reading
from objckpt.commit.ownership import check_claims, run_not_found
from objckpt.commit.quorum import ControlPlane
from objckpt.errors import ConflictError, FencedError, IndeterminateError, QuorumError
from objckpt.format.keys import Epoch, VersionName, digest16
from objckpt.format.manifest import CatalogVersion, check_size, encode


def read_version(plane: ControlPlane) -> tuple[CatalogVersion, Reading]:
    """The newest version, by a quorum.

    Raises:
        NotFoundError: The run does not exist, as every domain says.
        QuorumError: Too few domains answered.
    """
    found = plane.read()
    if found.version is None:
        raise run_not_found(plane)
    return found.version, found


def commit_version(
    plane: ControlPlane,
    epoch: Epoch,
    seq: int,
    change: Callable[[CatalogVersion, Reading], CatalogVersion],
) -> CatalogVersion:
    """Writes version ``seq`` of this epoch and returns it once it is acknowledged.

    The caller sees to it that one version is in the making per epoch, from the call to the return.

    Args:
        change: Makes the new content from the base (the newest version of this epoch, by a quorum read:
            a child process may have committed meanwhile). Runs before anything is written; its errors
            leave the catalog as it was.

    Raises:
        FencedError: A newer job owns the run.
        ConflictError: This epoch has a version as late as ``seq`` already.
        QuorumError: Too few domains answered before anything was written.
        IndeterminateError: It may or may not have taken effect.
    """
    base, found = read_version(plane)
    check_claims(plane, found, epoch)
    if base.epoch < epoch:
        raise QuorumError(
            f"run {plane.run}: no domain that answered has a version of epoch {epoch}, which began the run",
            hint="more domains are lost than the run survives; see `objckpt doctor`",
        )
    if base.seq >= seq:
        raise _conflict(plane, base, seq)
    version = msgspec.structs.replace(
        change(base, found),
        number=epoch.number,
        uuid=epoch.uuid,
        seq=seq,
        written_at=plane.targets.seams.clock.now_s(),
        host=socket.gethostname(),
    )
    body = check_size(encode(version), "the catalog")
    name = VersionName(epoch, seq, digest16(body))
    try:
        plane.write(name.key, body, version.sets, avoid=frozenset(found.lost))  # C4
        after = plane.read()  # C5
    except QuorumError as error:
        raise IndeterminateError(
            f"run {plane.run}: version {seq} may or may not have been committed: {error.message}",
            hint="if it was, its checkpoint is complete and valid: begin again and look at what is newest",
        ) from error
    check_claims(plane, after, epoch)
    seen = after.version
    if seen is None or seen.epoch != epoch:
        raise FencedError(
            f"run {plane.run}: the catalog no longer shows epoch {epoch}",
            hint="a newer job owns the run: stop, and do not restart this one",
        )
    if seen.seq < seq:
        raise IndeterminateError(
            f"run {plane.run}: version {seq} was written, but the domains that answered do not show it",
            hint="begin again and look at what is newest; see `objckpt doctor`",
        )
    if seen.seq > seq or (seen.seq == seq and encode(seen) != body):
        raise _conflict(plane, seen, seq)
    return version


def _conflict(plane: ControlPlane, seen: CatalogVersion, seq: int) -> ConflictError:
    return ConflictError(
        f"run {plane.run}: epoch {seen.epoch} has version {seen.seq} already, this one is {seq}",
        hint="one save at a time, and one writer for each: wait for a save to end before the next one begins",
    )
