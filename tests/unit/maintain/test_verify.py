"""What a verification counts, and what it says is left: never more than there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from objckpt.checkpoint.attempt import SaveAttempt
from objckpt.checkpoint.reading import Checkpoint
from objckpt.commit.catalog import read_version
from objckpt.commit.ownership import begin
from objckpt.commit.quorum import ControlPlane
from objckpt.commit.versions import newest
from objckpt.maintain.verify import VerifyReport, verify
from objckpt.store.memory import MemorySpace
from objckpt.transfer.upload import BytesSource
from tests.places import Place

BODY = bytes(range(256)) * 2000


def saved(domains: str = "abc", *, data: int = 2, parity: int = 1, witnesses: str = "") -> Place:
    """A run with one checkpoint of one shard of one stripe."""
    place = Place(domains, data=data, parity=parity, witnesses=witnesses)
    plane = ControlPlane(place.targets)
    attempt = SaveAttempt(plane, begin(plane, create=True), seq=1, step=10)
    shard = attempt.write("s", kind="opaque", sources=[BytesSource(BODY)], index=(), rank=0, counter=0)
    attempt.commit([shard], front="test", metadata=[b"{}"])
    return place


def opened(place: Place) -> Checkpoint:
    plane = ControlPlane(place.another())
    version, found = read_version(plane)
    entry = newest(version)
    assert entry is not None
    return Checkpoint.open(plane, entry, lost=frozenset(found.lost))


def verified(place: Place, *, deep: bool = False) -> VerifyReport:
    return verify(opened(place), deep=deep)


def key_of(space: MemorySpace, part: str) -> str:
    (found,) = [key for key in space.objects() if f"/{part}/" in f"/{key}"]
    return found


def damage(space: MemorySpace, part: str) -> None:
    key = key_of(space, part)
    body = bytearray(space.objects()[key])
    body[len(body) // 2] ^= 1
    space.set_unchecked(key, bytes(body))


def remove(space: MemorySpace, part: str) -> None:
    space.set_unchecked(key_of(space, part), None)


def test_an_untouched_checkpoint_is_whole() -> None:
    place = saved()
    for deep in (False, True):
        report = verified(place, deep=deep)
        assert (report.whole, report.readable, report.tolerance) == (True, True, 1)
        assert [(shard.name, shard.counts) for shard in report.shards] == [("s", {"ok": 3})]


def test_a_missing_fragment_is_found_without_reading_and_costs_a_domain() -> None:
    place = saved()
    remove(place.spaces["t1"], "data")
    report = verified(place)
    assert (report.whole, report.tolerance) == (False, 0)
    assert [(problem.target, problem.state) for problem in report.shards[0].problems] == [("t1", "missing")]


def test_a_flipped_bit_is_found_by_reading_every_byte() -> None:
    place = saved()
    damage(place.spaces["t1"], "data")
    assert verified(place).whole
    report = verified(place, deep=True)
    assert [(problem.target, problem.state) for problem in report.shards[0].problems] == [("t1", "corrupt")]
    assert report.tolerance == 0


def test_a_stripe_with_too_few_fragments_is_called_unreadable() -> None:
    place = saved()
    for name in ("t0", "t1"):
        remove(place.spaces[name], "data")
    report = verified(place)
    assert (report.readable, report.tolerance) == (False, -1)


@pytest.mark.parametrize("part", ["shards", "checkpoints"])
@pytest.mark.parametrize("how", [damage, remove], ids=["damaged", "removed"])
def test_control_copies_count_as_much_as_fragments(part: str, how: Callable[[MemorySpace, str], None]) -> None:
    """All fragments are there, but the last manifest's domain must not be lost."""
    place = saved()
    how(place.spaces["t0"], part)
    assert verified(place).tolerance == 1
    how(place.spaces["t1"], part)
    report = verified(place)
    assert report.shards[0].counts == {"ok": 3}
    assert (report.whole, report.readable, report.tolerance) == (False, True, 0)
    assert {(copy.target, copy.state) for copy in report.control} == {
        (name, "corrupt" if how is damage else "missing") for name in ("t0", "t1")
    }


def test_a_domain_out_of_reach_is_not_called_missing() -> None:
    place = saved()
    place.down("t2")
    report = verified(place)
    assert report.shards[0].counts == {"ok": 2, "unreachable": 1}
    assert {copy.state for copy in report.control} == {"unreachable"}


def test_a_witness_keeps_copies_and_no_fragments() -> None:
    place = saved("ab", data=1, parity=1, witnesses="w")
    report = verified(place)
    assert (report.whole, report.shards[0].counts) == (True, {"ok": 2})
    remove(place.spaces["t2"], "shards")
    assert [(copy.target, copy.state) for copy in verified(place).control] == [("t2", "missing")]


def test_progress_adds_up_to_all_that_is_stored() -> None:
    place = saved()
    seen: list[int] = []
    verify(opened(place), deep=True, progress=seen.append)
    stored = [len(body) for space in place.spaces.values() for key, body in space.objects().items() if "/data/" in key]
    assert sorted(seen) == sorted(stored)
