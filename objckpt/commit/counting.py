"""Counting what control targets answered: who counts, what is newest, what is proven. Pure functions, no I/O.

I5: only a domain that shows the marker which the newest version lists for it counts; that nothing is there is
proven only when every domain has answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from objckpt.commit.control import ControlAnswer
from objckpt.errors import QuorumError
from objckpt.format.keys import ClaimName, VersionName
from objckpt.format.manifest import CatalogVersion, TargetInForce, TargetSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a quorum of domains says.

    Attributes:
        version: The newest version; None only where every domain has answered and has none.
        claims: All claims seen, by their names.
        answered: Control targets that count.
        lost: Reason by domain, for domains that are lost.
        silent: Reason by domain, for domains that could not be asked.
        unfinished: A creation died before its first version was everywhere.
    """

    version: CatalogVersion | None
    claims: frozenset[ClaimName]
    answered: frozenset[str]
    lost: Mapping[str, str]
    silent: Mapping[str, str]
    unfinished: bool = False

    @property
    def newest_claim(self) -> ClaimName | None:
        return max(self.claims, default=None)


def newest(answers: Iterable[ControlAnswer], run: str) -> CatalogVersion | None:
    """The newest version that comes from a domain which that very version lists."""
    found = [answer for answer in answers if answer.version is not None and answer.name is not None]
    found.sort(key=lambda answer: _name(answer), reverse=True)
    for answer in found:
        version = answer.version
        assert version is not None
        for members in version.sets:
            for target in members.control:
                if target.name == answer.target and not target.lost and _marked(target, answer, run):
                    return version
    return None


def counted(members: TargetSet, answers: Mapping[str, ControlAnswer], run: str) -> frozenset[str]:
    """Control targets of a set that count: undamaged, with the listed marker and a catalog."""
    return frozenset(
        target.name
        for target in members.control
        if not target.lost
        and (answer := answers.get(target.name)) is not None
        and answer.problem is None
        and answer.version is not None
        and _marked(target, answer, run)
    )


def half_created(version: CatalogVersion, members: TargetSet, answers: Mapping[str, ControlAnswer], run: str) -> bool:
    """All there is is a first version, and every domain is marked and answers: a creation may have died on its way."""
    return (version.seq, version.entries) == (0, ()) and all(
        (answer := answers.get(target.name)) is not None and answer.problem is None and _marked(target, answer, run)
        for target in members.control
    )


def proven_empty(answers: Mapping[str, ControlAnswer], run: str) -> Reading:
    """No valid version anywhere: proven only if every domain has answered."""
    problems = {name: answer.problem for name, answer in answers.items() if answer.problem is not None}
    absent = {name for name, answer in answers.items() if answer.place_is_missing}
    silent = {name: reason for name, reason in problems.items() if name not in absent}
    strange = [answer.target for answer in answers.values() if answer.version is not None]
    if silent or strange:
        reasons = dict(silent) | dict.fromkeys(strange, "has versions, but not the marker they list")
        raise QuorumError(
            f"run {run}: no domain shows a valid catalog, and not all have answered: "
            + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()),
            hint="bring the named targets back; nothing can be said about the run without them",
        )
    claims = frozenset(claim for answer in answers.values() for claim in answer.claims)
    return Reading(version=None, claims=claims, answered=frozenset(set(answers) - absent), lost={}, silent={})


def why_not(
    target: TargetInForce, answer: ControlAnswer | None, *, run: str, without: frozenset[str]
) -> tuple[str, bool]:
    """Why a target does not count, and whether that means that its domain is lost."""
    if target.domain in without:
        return "given up by name", True
    if target.lost:
        return "listed as lost; it has to be replaced", True
    if answer is None:
        return "was not asked", False
    if answer.place_is_missing:
        return answer.problem or "the place does not exist", True
    if answer.problem is not None:
        return answer.problem, False
    if not _marked(target, answer, run):
        return "its marker is missing or foreign", True
    return "it has its marker but no catalog", True


def _marked(target: TargetInForce, answer: ControlAnswer, run: str) -> bool:
    marker = answer.markers.get(target.instance)
    return marker is not None and (marker.run, marker.target, marker.domain) == (run, target.name, target.domain)


def _name(answer: ControlAnswer) -> VersionName:
    assert answer.name is not None
    return answer.name
