"""One attempt: what counts, what is committed, what a reader then gets."""

from __future__ import annotations

import pickle

import pytest

from objckpt.checkpoint.attempt import SaveAttempt, Written
from objckpt.checkpoint.reading import Checkpoint
from objckpt.commit.catalog import read_version
from objckpt.commit.ownership import Ownership, begin
from objckpt.commit.quorum import ControlPlane
from objckpt.commit.versions import newest
from objckpt.errors import DataError, InvalidInputError, NotFoundError, QuorumError
from objckpt.telemetry import Committed
from objckpt.transfer.download import Piece
from objckpt.transfer.upload import BytesSource
from tests.places import Place

BODY = bytes(range(256)) * 2000


def owner(place: Place) -> tuple[ControlPlane, Ownership]:
    plane = ControlPlane(place.targets)
    return plane, begin(plane, create=True)


def written(attempt: SaveAttempt, name: str = "s", counter: int = 0) -> Written:
    return attempt.write(name, kind="opaque", sources=[BytesSource(BODY)], index=(), rank=0, counter=counter)


def opened(place: Place) -> Checkpoint:
    plane = ControlPlane(place.another())
    version, found = read_version(plane)
    entry = newest(version)
    assert entry is not None
    return Checkpoint.open(plane, entry, lost=frozenset(found.lost))


def test_what_is_committed_is_what_is_read() -> None:
    place = Place("abc", data=2, parity=1)
    plane, owned = owner(place)
    attempt = SaveAttempt(plane, owned, seq=1, step=10)
    result = attempt.commit(
        [written(attempt, "b", 0), written(attempt, "a", 1)], front="test", metadata=[b'{"k":[1]}'], user={"loss": 1}
    )
    assert (result.step, result.tolerance, result.degraded, result.size) == (10, 1, False, 2 * len(BODY))
    checkpoint = opened(place)
    assert [shard.name for shard in checkpoint.shards] == ["a", "b"]
    assert checkpoint.metadata() == [b'{"k":[1]}']
    assert checkpoint.manifest.user == {"loss": 1}
    assert checkpoint.read_bytes("a", 100, 70_000) == BODY[100:70_000]
    (committed,) = place.seen.of(Committed)
    assert committed.step == 10
    with pytest.raises(NotFoundError, match="no shard 'c'"):
        checkpoint.read("c", [])


def test_nothing_is_visible_before_the_commit() -> None:
    """I1, P04."""
    place = Place("abc", data=2, parity=1)
    plane, owned = owner(place)
    written(SaveAttempt(plane, owned, seq=1, step=10))
    assert read_version(ControlPlane(place.another()))[0].entries == ()


def test_a_checkpoint_survives_being_sent_to_another_process() -> None:
    place = Place("abc", data=2, parity=1)
    plane, owned = owner(place)
    attempt = SaveAttempt(plane, owned, seq=1, step=10)
    attempt.commit([written(attempt)], front="test", metadata=[])
    checkpoint = pickle.loads(pickle.dumps(opened(place)))
    into = bytearray(len(BODY))
    checkpoint.read("s", [Piece(start=0, stop=len(BODY), into=memoryview(into))])
    assert into == BODY


def test_a_domain_lost_between_writing_and_committing_does_not_count() -> None:
    """I1, I2: the result says what is left, not what was sent."""
    place = Place("abc", data=2, parity=1)
    plane, owned = owner(place)
    attempt = SaveAttempt(plane, owned, seq=1, step=10)
    report = written(attempt)
    place.spaces["t1"].destroy()
    result = attempt.commit([report], front="test", metadata=[])
    assert (result.tolerance, result.degraded) == (0, True)
    checkpoint = opened(place)
    assert checkpoint.read_bytes("s", 0, len(BODY)) == BODY
    assert checkpoint.entry.degraded


def test_what_only_lost_domains_hold_is_not_committed() -> None:
    place = Place("abc", data=1, parity=2)
    plane, owned = owner(place)
    place.down("t2")
    attempt = SaveAttempt(plane, owned, seq=1, step=10)
    report = written(attempt)
    assert set(report.holders) == {"t0", "t1"}
    place.up("t2")
    place.spaces["t1"].destroy()
    with pytest.raises(QuorumError, match="left on"):
        attempt.commit([report], front="test", metadata=[])
    assert read_version(ControlPlane(place.another()))[0].entries == ()


def test_a_shard_of_another_attempt_is_refused() -> None:
    """P11: what an earlier attempt reports does not finish this one."""
    place = Place("abc", data=2, parity=1)
    plane, owned = owner(place)
    early = written(SaveAttempt(plane, owned, seq=1, step=10))
    with pytest.raises(InvalidInputError, match="same number of times"):
        SaveAttempt(plane, owned, seq=2, step=10).commit([early], front="test", metadata=[])


def test_large_metadata_lies_beside_the_manifest_and_is_checked() -> None:
    place = Place("abc", data=2, parity=1)
    plane, owned = owner(place)
    attempt = SaveAttempt(plane, owned, seq=1, step=10)
    parts = [b'"' + b"x" * 400_000 + b'"', b'"' + b"y" * 400_000 + b'"']
    attempt.commit([written(attempt)], front="test", metadata=parts)
    assert opened(place).metadata() == parts
    for name in place.spaces:
        place.spaces[name].set_unchecked(place.key(name, ".0001"), b"other")
    with pytest.raises(DataError, match="no good copy"):
        opened(place).metadata()


def test_one_good_copy_of_a_manifest_is_enough() -> None:
    place = Place("abc", data=2, parity=1)
    plane, owned = owner(place)
    attempt = SaveAttempt(plane, owned, seq=1, step=10)
    result = attempt.commit([written(attempt)], front="test", metadata=[])
    place.spaces["t0"].set_unchecked(place.key("t0", f"checkpoints/{result.checkpoint}"), b"{}")
    place.spaces["t1"].set_unchecked(place.key("t1", f"checkpoints/{result.checkpoint}"), None)
    assert opened(place).read_bytes("s", 0, 10) == BODY[:10]


def test_a_checkpoint_without_any_shard_can_be_committed() -> None:
    place = Place("abc", data=2, parity=1)
    plane, owned = owner(place)
    SaveAttempt(plane, owned, seq=1, step=0).commit([], front="test", metadata=[])
    assert opened(place).shards == ()
