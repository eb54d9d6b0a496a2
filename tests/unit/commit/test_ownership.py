"""Begin, create, fence, rewind: who owns a run."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from objckpt.checkpoint.attempt import SaveAttempt, SaveResult
from objckpt.checkpoint.reading import Checkpoint
from objckpt.commit import control, quorum, versions
from objckpt.commit.catalog import commit_version, read_version
from objckpt.commit.ownership import Ownership, begin
from objckpt.commit.quorum import ControlPlane
from objckpt.errors import (
    ConflictError,
    FencedError,
    IndeterminateError,
    InvalidInputError,
    NotFoundError,
    ObjckptError,
    QuorumError,
    UnavailableError,
)
from objckpt.format import keys
from objckpt.store.memory import FaultPoint
from objckpt.telemetry import DomainLost
from objckpt.transfer.upload import BytesSource
from tests.places import Place


def plane(place: Place, without: str = "") -> ControlPlane:
    return ControlPlane(place.another(), without=frozenset({f"domain-{without}"} if without else ()))


def save(owner: ControlPlane, owned: Ownership, *, seq: int, step: int, exists: str = "error") -> SaveResult:
    attempt = SaveAttempt(owner, owned, seq=seq, step=step, exists=exists)  # type: ignore[arg-type]
    body = f"step {step} seq {seq}".encode() * 100
    written = attempt.write("s", kind="opaque", sources=[BytesSource(body)], index=(), rank=0, counter=0)
    return attempt.commit([written], front="test", metadata=[b"{}"])


def steps(place: Place) -> list[int]:
    return [entry.step for entry in versions.line(read_version(plane(place))[0])]


def three(witnesses: str = "") -> Place:
    return Place("abc", data=2, parity=1, witnesses=witnesses)


def test_a_run_that_nobody_made_does_not_exist() -> None:
    place = three()
    place.make_spaces()
    with pytest.raises(NotFoundError, match="does not exist") as caught:
        begin(plane(place))
    assert "init" in (caught.value.hint or "")


@pytest.mark.parametrize("down", ["t0", "t1", "t2"])
def test_a_domain_that_does_not_answer_is_never_taken_for_an_empty_one(down: str) -> None:
    """I5: no proof, no answer."""
    place = three()
    place.make_spaces()
    place.down(down)
    with pytest.raises(QuorumError, match=down):
        begin(plane(place))
    with pytest.raises(QuorumError):
        begin(plane(place), create=True)
    place.up(down)
    assert begin(plane(place), create=True).epoch.number >= 1


def test_creating_needs_every_domain_and_makes_the_first_version_everywhere() -> None:
    place = three()
    begin(plane(place), create=True)
    for space in place.spaces.values():
        assert sum(key.startswith("run/catalog/") for key in space.objects()) == 1
        assert sum(key.startswith("run/markers/") for key in space.objects()) == 1


def test_creating_twice_takes_over_what_is_there() -> None:
    place = three()
    first = plane(place)
    owned = begin(first, create=True)
    save(first, owned, seq=1, step=10)
    again = begin(plane(place), create=True)
    assert again.epoch > owned.epoch
    assert steps(place) == [10]


def test_a_run_without_checkpoints_is_taken_over_with_a_domain_down() -> None:
    place = three()
    begin(plane(place), create=True)
    place.down("t2")
    assert begin(plane(place), create=True).epoch.number == 2
    place.up("t2")
    place.spaces["t1"].destroy()
    assert set(begin(plane(place), create=True).lost) == {"domain-b"}


@pytest.mark.parametrize("domains", ["a", "ab", "abc", "abcd", "abcde", "aabbc"])
def test_a_control_read_survives_as_many_lost_domains_as_promised(domains: str) -> None:
    place = Place(domains, data=1, parity=0)
    owner = plane(place)
    owned = begin(owner, create=True)
    save(owner, owned, seq=1, step=5)
    survives = (len(set(domains)) - 1) // 2
    control = [target.name for target in place.config.control_targets]
    place.down(*control[:survives])
    assert steps(place) == [5]
    place.down(*control[: survives + 1])
    with pytest.raises(QuorumError, match="down"):
        steps(place)


def test_a_witness_counts_for_control_and_holds_no_fragments() -> None:
    place = Place("ab", data=1, parity=1, witnesses="w")
    owner = plane(place)
    owned = begin(owner, create=True)
    assert save(owner, owned, seq=1, step=5).tolerance == 1
    assert not [key for key in place.spaces["t2"].objects() if key.startswith("run/data/")]
    place.down("t0")
    assert steps(place) == [5]


def test_a_wiped_domain_is_lost_and_not_empty() -> None:
    place = three()
    owner = plane(place)
    owned = begin(owner, create=True)
    save(owner, owned, seq=1, step=5)
    place.spaces["t1"].destroy()
    place.spaces["t1"].create()
    again = plane(place)
    taken = begin(again)
    assert set(taken.lost) == {"domain-b"}
    assert {event.domain for event in place.seen.of(DomainLost)} == {"domain-b"}
    result = save(again, taken, seq=1, step=6)
    assert result.degraded
    assert place.spaces["t1"].objects() == {}
    place.spaces["t2"].destroy()
    with pytest.raises(QuorumError, match="marker"):
        steps(place)


def test_a_domain_with_a_foreign_marker_is_lost() -> None:
    place, other = three(), three()
    owner = plane(place)
    save(owner, begin(owner, create=True), seq=1, step=5)
    begin(plane(other), create=True)
    space = place.spaces["t2"]
    for key in space.objects():
        if "/markers/" in key or "/catalog/" in key:
            space.set_unchecked(key, None)
    for key, body in other.spaces["t2"].objects().items():
        if "/markers/" in key:
            space.set_unchecked(key, body)
    reading = read_version(plane(place))[1]
    assert set(reading.lost) == {"domain-c"}
    assert steps(place) == [5]


def test_a_domain_put_back_without_its_catalog_does_not_answer() -> None:
    place = three()
    owner = plane(place)
    save(owner, begin(owner, create=True), seq=1, step=5)
    for key in place.spaces["t0"].objects():
        if "/catalog/" in key:
            place.spaces["t0"].set_unchecked(key, None)
    assert set(read_version(plane(place))[1].lost) == {"domain-a"}


def test_a_damaged_newest_version_is_not_an_answer() -> None:
    place = three()
    owner = plane(place)
    save(owner, begin(owner, create=True), seq=1, step=5)
    for name in ("t0", "t1"):
        key = max(key for key in place.spaces[name].objects() if "/catalog/" in key)
        place.spaces[name].set_unchecked(key, b"{}")
        if name == "t0":
            assert steps(place) == [5]
    with pytest.raises(QuorumError, match="does not match its name"):
        steps(place)


def test_foreign_objects_beside_claims_and_versions_change_nothing() -> None:
    """S24: whoever may write into a bucket may leave anything there."""
    place = three()
    owner = plane(place)
    owned = begin(owner, create=True)
    for space in place.spaces.values():
        for key in ("run/catalog/zzz", "run/claims/9", "run/markers/x", "run/catalog/9999999999-x/00000000-0"):
            space.set_unchecked(key, b"junk")
    save(owner, owned, seq=1, step=5)
    assert steps(place) == [5]


def test_an_older_owner_learns_at_its_next_commit_that_it_is_fenced() -> None:
    """P10: and its hint says not to restart."""
    place = three()
    old = plane(place)
    owned = begin(old, create=True)
    save(old, owned, seq=1, step=5)
    new = plane(place)
    taken = begin(new)
    with pytest.raises(FencedError, match=r"pid \d+") as caught:
        save(old, owned, seq=2, step=6)
    assert "do not restart" in str(caught.value)
    save(new, taken, seq=1, step=6)
    assert steps(place) == [6, 5]


def test_a_stale_version_that_lands_after_a_take_over_is_refused_and_does_not_win() -> None:
    """I3: the version is written, then claims are read: one of the two sees the other."""
    place = three()
    old = plane(place)
    owned = begin(old, create=True)
    taken: list[Ownership] = []
    new = plane(place)

    def take_over_before_c4(point: FaultPoint) -> None:
        if point.operation == "put" and "catalog/" in point.key and not taken:
            for space in place.spaces.values():
                space.faults = None
            taken.append(begin(new))

    for space in place.spaces.values():
        space.faults = take_over_before_c4
    with pytest.raises(FencedError):
        save(old, owned, seq=1, step=5)
    save(new, taken[0], seq=1, step=7)
    # Whether the new owner found the version in time to adopt it depends on which target had it first.
    assert steps(place) in ([7], [7, 5])


def test_a_version_on_a_minority_is_adopted_or_dropped_for_good() -> None:
    place = three()
    old = plane(place)
    owned = begin(old, create=True)
    save(old, owned, seq=1, step=5)

    def only_t0(point: FaultPoint) -> None:
        if point.operation == "put" and "catalog/" in point.key and point.moment == "before":
            raise UnavailableError("cut off", target=point.store)

    for name in ("t1", "t2"):
        place.spaces[name].faults = only_t0
    with pytest.raises(IndeterminateError) as caught:
        save(old, owned, seq=2, step=6)
    assert isinstance(caught.value.__cause__, QuorumError)
    for name in ("t1", "t2"):
        place.spaces[name].faults = None
    place.down("t0")
    dropped = plane(place)
    begin(dropped)
    place.up("t0")
    assert steps(place) == [5]


def test_rewinding_starts_a_new_line_and_the_old_ones_higher_steps_do_not_win() -> None:
    """I6, P07: the head decides, not step numbers."""
    place = three()
    owner = plane(place)
    owned = begin(owner, create=True)
    for seq, step in enumerate((500, 800, 1100), start=1):
        save(owner, owned, seq=seq, step=step)
    back = plane(place)
    taken = begin(back, rewind_to=500)
    assert steps(place) == [500]
    save(back, taken, seq=1, step=600)
    assert steps(place) == [600, 500]
    version, _ = read_version(plane(place))
    assert sorted(entry.step for entry in version.entries) == [500, 600, 800, 1100]
    abandoned = next(entry.checkpoint for entry in version.entries if entry.step == 1100)
    begin(plane(place), rewind_to=abandoned)
    assert steps(place) == [1100, 800, 500]


def test_a_rewind_to_what_is_not_there_names_what_is() -> None:
    place = three()
    owner = plane(place)
    save(owner, begin(owner, create=True), seq=1, step=500)
    with pytest.raises(NotFoundError) as caught:
        begin(plane(place), rewind_to=400)
    assert "500" in (caught.value.hint or "")
    with pytest.raises(InvalidInputError):
        begin(plane(place), rewind_to=500, fresh=True)


def test_a_fresh_start_keeps_the_old_checkpoints_by_name() -> None:
    place = three()
    owner = plane(place)
    save(owner, begin(owner, create=True), seq=1, step=500)
    anew = plane(place)
    taken = begin(anew, fresh=True)
    assert steps(place) == []
    save(anew, taken, seq=1, step=1)
    assert steps(place) == [1]
    assert len(read_version(plane(place))[0].entries) == 2


def test_a_step_of_the_line_is_refused_unless_it_is_to_be_replaced() -> None:
    place = three()
    owner = plane(place)
    owned = begin(owner, create=True)
    first = save(owner, owned, seq=1, step=5)
    with pytest.raises(InvalidInputError, match="already has a checkpoint of step 5"):
        save(owner, owned, seq=2, step=5)
    second = save(owner, owned, seq=3, step=5, exists="replace")
    found = versions.at_step(read_version(plane(place))[0], 5)
    assert found is not None
    assert found.checkpoint == second.checkpoint != first.checkpoint


def test_a_seq_is_never_used_twice() -> None:
    """A pickled writer that is used twice commits once."""
    place = three()
    owner = plane(place)
    owned = begin(owner, create=True)
    save(owner, owned, seq=2, step=5)
    for seq in (1, 2):
        with pytest.raises(ConflictError):
            save(owner, owned, seq=seq, step=6)
    assert steps(place) == [5]


def test_of_two_racing_begins_the_later_claim_wins() -> None:
    place = three()
    begin(plane(place), create=True)
    second: list[Ownership] = []

    def another_begins(point: FaultPoint) -> None:
        if point.operation == "put" and "claims/" in point.key and point.moment == "after" and not second:
            for space in place.spaces.values():
                space.faults = None
            second.append(begin(plane(place)))

    for space in place.spaces.values():
        space.faults = another_begins
    try:
        first = begin(plane(place))
    except FencedError:
        assert second
    else:
        assert first.epoch > second[0].epoch


def test_a_domain_given_up_by_name_never_answers_again_unreplaced() -> None:
    place = Place("ab", data=1, parity=1)
    owner = plane(place)
    save(owner, begin(owner, create=True), seq=1, step=5)
    place.down("t1")
    with pytest.raises(QuorumError, match="are needed"):
        begin(plane(place))
    alone = plane(place, without="b")
    taken = begin(alone)
    assert save(alone, taken, seq=1, step=6).degraded
    place.up("t1")
    assert {target.name for target in read_version(plane(place, without="b"))[0].sets[0].targets if target.lost} == {
        "t1"
    }
    with pytest.raises(QuorumError, match="lost"):
        read_version(plane(place))
    with pytest.raises(InvalidInputError, match="no such domain"):
        plane(place, without="z")


def test_a_configuration_with_other_targets_than_the_run_is_told_the_difference() -> None:
    place = three()
    begin(plane(place), create=True)
    config = place.config
    import dataclasses

    fewer = dataclasses.replace(
        config, targets=config.targets[:2], code=dataclasses.replace(config.code, data=1, parity=1)
    )
    place.config = fewer
    with pytest.raises(InvalidInputError, match="t2 is missing in the configuration"):
        begin(plane(place))


def test_a_place_that_belongs_to_another_run_is_refused_at_creation() -> None:
    place = three()
    begin(plane(place), create=True)
    for key in place.spaces["t0"].objects():
        if "/catalog/" in key or "/claims/" in key:
            for space in place.spaces.values():
                space.set_unchecked(key, None)
    for key, body in place.spaces["t1"].objects().items():
        if "/markers/" in key:
            place.spaces["t0"].set_unchecked(key, body)
    with pytest.raises(InvalidInputError, match="belongs to"):
        begin(plane(place), create=True)


def calls(place: Place, act: Callable[[], object]) -> int:
    """How many store calls ``act`` makes."""
    seen = 0

    def count(point: FaultPoint) -> None:
        nonlocal seen
        seen += point.moment == "before"

    for space in place.spaces.values():
        space.faults = count
    act()
    for space in place.spaces.values():
        space.faults = None
    return seen


class Crash(BaseException):
    """The process is gone: nothing after this call happens."""


def crash_at(place: Place, number: int, moment: str) -> None:
    seen = 0
    dead = False

    def fail(point: FaultPoint) -> None:
        nonlocal seen, dead
        if dead:
            raise Crash
        if point.moment == "before":
            seen += 1
        if seen == number and point.moment == moment:
            dead = True
            raise Crash

    for space in place.spaces.values():
        space.faults = fail


def recovered(place: Place) -> None:
    for space in place.spaces.values():
        space.faults = None


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_creation_that_dies_anywhere_is_finished_by_the_next(moment: str) -> None:
    total = calls(place := three(), lambda: begin(plane(place), create=True))
    for number in range(1, total + 1):
        place = three()
        place.make_spaces()
        crash_at(place, number, moment)
        with pytest.raises(Crash):
            begin(plane(place), create=True)
        recovered(place)
        owner = plane(place)
        save(owner, begin(owner, create=True), seq=1, step=1)
        assert steps(place) == [1]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_take_over_that_dies_anywhere_loses_nothing(moment: str) -> None:
    place = three()
    owner = plane(place)
    save(owner, begin(owner, create=True), seq=1, step=1)
    total = calls(place, lambda: begin(plane(place)))
    for number in range(1, total + 1):
        crash_at(place, number, moment)
        with pytest.raises(Crash):
            begin(plane(place))
        recovered(place)
        assert steps(place) == [1]
    begin(plane(place))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_save_that_dies_anywhere_is_visible_whole_or_not_at_all(moment: str) -> None:
    """I1, P04, D28: enumerated over every store call."""
    place = three()
    owner = plane(place)
    owned = begin(owner, create=True)
    save(owner, owned, seq=1, step=1)
    total = calls(place, lambda: save(owner, owned, seq=2, step=2))
    outcomes = set()
    step = 2
    for number in range(1, total + 1):
        owner = plane(place)
        owned = begin(owner)
        before = steps(place)
        step += 1
        crash_at(place, number, moment)
        with pytest.raises((Crash, ObjckptError)):
            save(owner, owned, seq=1, step=step)
        recovered(place)
        begin(plane(place))
        after = steps(place)
        assert after in (before, [step, *before])
        outcomes.add(after == before)
        for entry in versions.line(read_version(plane(place))[0])[:2]:
            checkpoint = Checkpoint.open(plane(place), entry)
            assert checkpoint.read_bytes("s", 0, 4) == b"step"
    assert outcomes == {True, False}


def test_late_and_repeated_puts_of_versions_and_claims_do_no_harm() -> None:
    place = three()
    old = plane(place)
    owned = begin(old, create=True)
    save(old, owned, seq=1, step=1)
    early = {name: space.objects() for name, space in place.spaces.items()}
    new = plane(place)
    taken = begin(new)
    save(new, taken, seq=1, step=2)
    for name, space in place.spaces.items():
        for key, body in early[name].items():
            space.set_unchecked(key, body)
    assert steps(place) == [2, 1]


def test_an_interloper_of_the_same_epoch_is_a_conflict() -> None:
    place = three()
    owner = plane(place)
    owned = begin(owner, create=True)
    done = False

    def another_commits(point: FaultPoint) -> None:
        nonlocal done
        if point.operation == "put" and "catalog/" in point.key and point.moment == "after" and not done:
            done = True
            for space in place.spaces.values():
                space.faults = None
            commit_version(plane(place), owned.epoch, 9, lambda base, found: base)

    for space in place.spaces.values():
        space.faults = another_commits
    with pytest.raises(ConflictError):
        save(owner, owned, seq=1, step=1)


def test_versions_are_named_with_their_digest() -> None:
    place = three()
    begin(plane(place), create=True)
    for key, body in place.spaces["t0"].objects().items():
        if "/catalog/" in key:
            assert keys.parse_version_key(key.removeprefix("run/")).digest == keys.digest16(body)


def test_a_target_that_hangs_takes_no_more_than_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    place = three()
    begin(plane(place), create=True)
    monkeypatch.setattr(quorum, "STRAGGLER_S", 0.01)
    release = threading.Event()

    def hang(point: FaultPoint) -> None:
        release.wait()

    place.spaces["t2"].faults = hang
    asking = plane(place)
    try:
        for _ in range(100):
            assert asking.read().version is not None
        assert "earlier request" in asking.read().silent["domain-c"]
    finally:
        release.set()


def test_an_object_too_large_to_be_a_catalog_is_not_even_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    place = three()
    owner = plane(place)
    save(owner, begin(owner, create=True), seq=1, step=5)
    monkeypatch.setattr(control, "MAX_CONTROL_BYTES", 10_000)
    place.spaces["t0"].set_unchecked("run/catalog/0000000009-" + "f" * 32 + "/00000000-" + "0" * 16, bytes(20_000))
    assert steps(place) == [5]
    assert "too large" in read_version(plane(place))[1].silent["domain-a"]
