"""Becoming the owner of a run: B0 to B5, and the creation of a run that does not exist yet.

An owner writes a claim and only then looks for the newest version; a writer writes a version and only
then looks for a later claim. One of the two must see the other (I3). A claim is never made inside a save.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import msgspec

from objckpt.commit.control import read_markers
from objckpt.commit.counting import Reading
from objckpt.commit.quorum import ControlPlane
from objckpt.commit.versions import empty_version, first_version
from objckpt.errors import FencedError, InvalidInputError, NotFoundError, ObjckptError, QuorumError
from objckpt.format import keys
from objckpt.format.keys import ClaimName, Epoch, VersionName, digest16
from objckpt.format.manifest import CatalogVersion, Claim, Marker, TargetInForce, TargetSet, decode, encode
from objckpt.store.open import prepare_root
from objckpt.telemetry import Began

ROUNDS = 5
"""How often B3 is repeated because the sets in force changed meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """One epoch of a run: who owns it, and what was inherited.

    Attributes:
        first: The version that this owner began with.
        lost: Reason by domain, for the domains that were lost then.
    """

    run: str
    epoch: Epoch
    first: CatalogVersion
    lost: dict[str, str]


def begin(
    plane: ControlPlane, *, create: bool = False, rewind_to: int | str | None = None, fresh: bool = False
) -> Ownership:
    """Takes a run over. Called once per job start, by the coordinator, before anything is loaded.

    Args:
        create: Make the run if it does not exist.
        rewind_to: A step of the line or a checkpoint's id: the new line goes on from there.
        fresh: Begin a new line from nothing; the old checkpoints stay, by name.

    Raises:
        NotFoundError: The run does not exist, as every domain says.
        FencedError: Another job began at the same time, and later.
        QuorumError: Too few domains answered or took the claim.
    """
    if fresh and rewind_to is not None:
        raise InvalidInputError("fresh and rewind_to exclude each other", hint="pass one of them")
    found = plane.read(creating=create)  # B0
    if found.version is None:
        if not create:
            raise run_not_found(plane)
        return _create(plane, rewind_to, fresh)
    return _take_over(plane, found, found.version, rewind_to, fresh, create)


def create_run(plane: ControlPlane) -> Ownership:
    """Makes a run, on all of its targets; a run that exists already is taken over as it is.

    Raises:
        QuorumError: Not every domain could be reached.
        InvalidInputError: A target's place belongs to another run, target or domain.
    """
    return begin(plane, create=True)


def run_not_found(plane: ControlPlane) -> NotFoundError:
    """The error for a run of which no domain knows anything."""
    return NotFoundError(
        f"run {plane.run} does not exist on {', '.join(plane.targets.config.domains)}",
        hint="create it with `objckpt init --markers` or begin(create=True); if it should exist, check names and mounts",
    )


def check_claims(plane: ControlPlane, found: Reading, mine: Epoch) -> None:
    """Raises FencedError if a later claim than mine, or a version of a later epoch, was seen."""
    newest = found.newest_claim
    if newest is not None and newest.epoch > mine:
        raise fenced(plane, newest, mine, found)
    if found.version is not None and found.version.epoch > mine:
        raise FencedError(
            f"run {plane.run} is owned by epoch {found.version.epoch}, begun on {found.version.host}; this is {mine}",
            hint="a newer job owns the run: stop, and do not restart this one",
        )


def fenced(plane: ControlPlane, newer: ClaimName, mine: Epoch, found: Reading) -> FencedError:
    """Names the newer owner, as far as its claim can be read."""
    who = ""
    for name in sorted(found.answered):
        try:
            claim = decode(plane.targets.stores[name].get(newer.key), Claim, key=newer.key)
        except ObjckptError:
            continue
        who = f", begun on {claim.host} (pid {claim.pid}) at {claim.created_at:.0f} s after 1970"
        break
    return FencedError(
        f"run {plane.run} is owned by epoch {newer.epoch}{who}; this is {mine}",
        hint="a newer job owns the run: stop, and do not restart this one",
    )


def _take_over(
    plane: ControlPlane, found: Reading, version: CatalogVersion, rewind_to: int | str | None, fresh: bool, create: bool
) -> Ownership:
    epoch, claim = _claim(plane, found)  # B1
    claimed: tuple[TargetSet, ...] = ()
    for _ in range(ROUNDS):
        new = tuple(members for members in version.sets if members not in claimed)
        plane.write(claim.key, claim.body, new, avoid=frozenset(found.lost))  # B2
        claimed += new
        found = plane.read(creating=create)  # B3: only now, after the claim is written (I3)
        check_claims(plane, found, epoch)
        if found.version is None:
            raise QuorumError(
                f"run {plane.run}: the catalog went away while the run was taken over", hint="run `objckpt doctor`"
            )
        version = found.version
        if all(members in claimed for members in version.sets):
            break
    else:
        raise QuorumError(f"run {plane.run}: its targets change faster than it can be claimed", hint="try again")
    first = first_version(version, epoch=epoch, rewind_to=rewind_to, fresh=fresh, lost=plane.without)
    # A creation that died is finished: its first version has to be everywhere.
    return _start(plane, first, found, everywhere=found.unfinished)


def _create(plane: ControlPlane, rewind_to: int | str | None, fresh: bool) -> Ownership:
    if rewind_to is not None:
        raise run_not_found(plane)
    members = _mark(plane)
    found = plane.read(creating=True)
    if found.version is not None:
        return _take_over(plane, found, found.version, None, fresh=fresh, create=True)
    epoch, claim = _claim(plane, found)
    plane.write(claim.key, claim.body, (members,), everywhere=True)
    found = plane.read(creating=True)  # every domain has answered where no version was found: nothing is there
    check_claims(plane, found, epoch)
    if found.version is not None:
        # Someone else was quicker, or an earlier creation died late: inherit it, claiming in its sets too.
        return _take_over(plane, found, found.version, None, fresh=fresh, create=True)
    first = empty_version(run=plane.run, epoch=epoch, targets=members)
    return _start(plane, first, found, everywhere=True)


def _start(plane: ControlPlane, first: CatalogVersion, found: Reading, *, everywhere: bool) -> Ownership:
    seams = plane.targets.seams
    first = msgspec.structs.replace(first, written_at=seams.clock.now_s(), host=socket.gethostname())
    body = encode(first)
    key = VersionName(first.epoch, 0, digest16(body)).key
    plane.write(key, body, first.sets, avoid=frozenset(found.lost), everywhere=everywhere)  # B4
    after = plane.read()  # B5
    check_claims(plane, after, first.epoch)
    head = next((entry.step for entry in first.entries if entry.checkpoint == first.head), None)
    plane.targets.observer.on_event(Began(run=plane.run, epoch=str(first.epoch), head_step=head))
    return Ownership(run=plane.run, epoch=first.epoch, first=first, lost=dict(after.lost))


@dataclass(frozen=True, slots=True)
class _EncodedClaim:
    key: str
    body: bytes


def _claim(plane: ControlPlane, found: Reading) -> tuple[Epoch, _EncodedClaim]:
    seen = [claim.epoch.number for claim in found.claims]
    if found.version is not None:
        seen.append(found.version.number)
    seams = plane.targets.seams
    epoch = Epoch(max(seen, default=0) + 1, seams.ids.new_id())
    body = encode(
        Claim(
            run=plane.run,
            number=epoch.number,
            uuid=epoch.uuid,
            host=socket.gethostname(),
            pid=os.getpid(),
            created_at=seams.clock.now_s(),
        )
    )
    return epoch, _EncodedClaim(ClaimName(epoch, digest16(body)).key, body)


def _mark(plane: ControlPlane) -> TargetSet:
    """Writes a marker on every target that has none of this run's yet."""
    config = plane.targets.config
    control = {target.name for target in config.control_targets}
    members: list[TargetInForce] = []
    for target in config.targets:
        prepare_root(target, config.run)
        store = plane.targets.stores[target.name]
        mine: list[str] = []
        for marker in read_markers(store, {}).values():
            if (marker.run, marker.target, marker.domain) != (config.run, target.name, target.domain):
                raise InvalidInputError(
                    f"the place of target {target.name} belongs to run {marker.run!r}, target {marker.target!r},"
                    f" domain {marker.domain!r}",
                    hint="give the target another url, or the run another name",
                )
            mine.append(marker.instance)
        if not mine:
            marker = Marker(
                run=config.run,
                target=target.name,
                domain=target.domain,
                instance=plane.targets.seams.ids.new_id(),
                created_at=plane.targets.seams.clock.now_s(),
                host=socket.gethostname(),
            )
            store.put(keys.marker_key(marker.instance), encode(marker))
            mine.append(marker.instance)
        members.append(
            TargetInForce(
                name=target.name,
                url=target.url,
                domain=target.domain,
                instance=min(mine),
                control=target.name in control,
                witness=not target.fragments,
            )
        )
    return TargetSet(targets=tuple(members))
