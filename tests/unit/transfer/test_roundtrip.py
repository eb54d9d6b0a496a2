"""Shards to fragments and back, whole and damaged."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import msgspec
import pytest

from objckpt.coding.codec import codec
from objckpt.coding.geometry import BLOCK_SIZE, Code
from objckpt.errors import InvalidInputError, NotEnoughFragmentsError, StoreFullError
from objckpt.format.keys import Epoch, ShardId
from objckpt.format.manifest import ShardManifest, decode, encode
from objckpt.store.memory import FaultPoint
from objckpt.telemetry import FragmentLost, RequestDone, TargetGivenUp
from objckpt.transfer import upload as uploading
from objckpt.transfer.download import Downloader, Piece
from objckpt.transfer.upload import BytesSource, Uploader
from tests.places import Place

EPOCH = Epoch(1, "a" * 32)


def put(
    place: Place, body: bytes, *, counter: int = 0, sources: list | None = None, **settings: object
) -> ShardManifest:
    place.make_spaces()
    code = place.config.code
    uploader = Uploader(
        place.targets,
        run="run",
        code=Code.of(code.data, code.parity),
        stripe_size=place.config.stripe_size,
        min_tolerance=place.config.write.min_tolerance,
        **settings,  # type: ignore[arg-type]
    )
    shard = uploader.upload(
        ShardId(EPOCH, 1, 0, counter), name="s", kind="opaque", sources=sources or [BytesSource(body)], index=()
    )
    return decode(encode(shard), ShardManifest, key="k")


def get(place: Place, shard: ShardManifest, start: int, stop: int, **settings: object) -> bytes:
    into = bytearray(stop - start)
    Downloader(place.targets, **settings).read(shard, [Piece(start=start, stop=stop, into=memoryview(into))])  # type: ignore[arg-type]
    return bytes(into)


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


K = 3
STRIPE = 3 * 2 * BLOCK_SIZE


@pytest.mark.parametrize(
    "size",
    sorted(
        {
            base + change
            for base in (0, 2, K, BLOCK_SIZE, K * BLOCK_SIZE, STRIPE, 2 * STRIPE, 3 * STRIPE + BLOCK_SIZE)
            for change in (-1, 0, 1)
            if base + change >= 0
        }
    ),
)
def test_every_size_comes_back_whole_and_with_a_domain_lost(size: int) -> None:
    """E10: sizes around blocks, fragments and stripes."""
    place = Place("abcd", data=K, parity=1, stripe_size=STRIPE)
    body = content(size)
    shard = put(place, body)
    assert get(place, shard, 0, size) == body
    for name in place.spaces:
        place.down(name)
        assert get(place, shard, 0, size) == body
        place.up(name)


def test_data_fragments_are_plain_slices_of_the_shard() -> None:
    place = Place("abcd", data=3, parity=1, stripe_size=STRIPE)
    body = content(STRIPE)
    shard = put(place, body)
    stored = b""
    for index in range(3):
        name = shard.stripes[0].fragments[index].target
        stored += place.spaces[name].objects()[place.key(name, f"/000000.{index:03d}")]
    assert stored == body


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "deleted": lambda body: None,
    "truncated": lambda body: body[:-1],
    "emptied": lambda body: b"",
    "flipped at the start": lambda body: bytes([body[0] ^ 1]) + body[1:],
    "flipped at the end": lambda body: body[:-1] + bytes([body[-1] ^ 0x80]),
    "zeroed": lambda body: bytes(len(body)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_any_two_damaged_fragments_cost_a_warning_and_three_are_an_error(damage: str) -> None:
    """E03, E06: damage is found before decoding, whichever fragments it hits."""
    place = Place("abcdef", data=4, parity=2, stripe_size=4 * 2 * BLOCK_SIZE)
    body = content(4 * 2 * BLOCK_SIZE)
    shard = put(place, body)
    targets = [fragment.target for fragment in shard.stripes[0].fragments]
    whole = {name: place.spaces[name].objects() for name in place.spaces}
    for lost in itertools.combinations(range(6), 2):
        for index in lost:
            key = place.key(targets[index], f".{index:03d}")
            place.spaces[targets[index]].set_unchecked(key, DAMAGES[damage](whole[targets[index]][key]))
        place.seen.events.clear()
        assert get(place, shard, 0, len(body)) == body
        warned = {event.index for event in place.seen.of(FragmentLost)}
        assert warned <= set(lost)
        assert {index for index in lost if index < 4} <= warned
        third = next(index for index in range(6) if index not in lost)
        key = place.key(targets[third], f".{third:03d}")
        place.spaces[targets[third]].set_unchecked(key, DAMAGES[damage](whole[targets[third]][key]))
        with pytest.raises(NotEnoughFragmentsError, match=r"stripe 0 of shard .*need 4 of 6: ok=3"):
            get(place, shard, 0, len(body))
        for index in (*lost, third):
            key = next(key for key in whole[targets[index]] if key.endswith(f".{index:03d}"))
            place.spaces[targets[index]].set_unchecked(key, whole[targets[index]][key])


def test_fragments_of_another_stripe_or_shard_are_lost_fragments_never_data() -> None:
    """E04: what is stored is bound to shard, stripe and index by its checksums."""
    place = Place("abc", data=2, parity=1, stripe_size=4 * BLOCK_SIZE)
    body = content(8 * BLOCK_SIZE)
    shard = put(place, body)
    put(place, content(8 * BLOCK_SIZE + 1)[1:], counter=1)
    for name, space in place.spaces.items():
        mine = [key for key in space.objects() if shard.id in key]
        foreign = [key for key in space.objects() if shard.id not in key]
        saved = space.objects()
        for swapped in (dict(zip(mine, reversed(mine), strict=True)), dict(zip(mine, foreign, strict=True))):
            for key, other in swapped.items():
                space.set_unchecked(key, saved[other])
            assert get(place, shard, 0, len(body)) == body, name
        for key in mine:
            space.set_unchecked(key, saved[key])


def test_states_are_counted_when_a_stripe_cannot_be_read() -> None:
    place = Place("abcdef", data=4, parity=2, stripe_size=4 * 2 * BLOCK_SIZE)
    body = content(4 * 2 * BLOCK_SIZE)
    shard = put(place, body)
    targets = [fragment.target for fragment in shard.stripes[0].fragments]
    place.spaces[targets[0]].set_unchecked(place.key(targets[0], ".000"), b"x" * 2 * BLOCK_SIZE)
    place.spaces[targets[1]].set_unchecked(place.key(targets[1], ".001"), None)
    place.down(targets[2])
    with pytest.raises(NotEnoughFragmentsError) as caught:
        get(place, shard, 0, len(body))
    text = str(caught.value)
    assert f"corrupt=1 ({targets[0]})" in text
    assert f"missing=1 ({targets[1]})" in text
    assert f"unreachable=1 ({targets[2]})" in text
    assert caught.value.hint


def test_a_small_read_fetches_its_bytes_and_at_most_two_blocks_more() -> None:
    """D27: bytes fetched over bytes needed stays near one."""
    place = Place("abc", data=2, parity=1, stripe_size=64 * BLOCK_SIZE)
    body = content(256 * BLOCK_SIZE)
    shard = put(place, body)
    start, size = 40 * BLOCK_SIZE + 17, 20 * BLOCK_SIZE
    place.seen.events.clear()
    assert get(place, shard, start, start + size) == body[start : start + size]
    requests = [event for event in place.seen.of(RequestDone) if event.operation == "get"]
    assert sum(event.size for event in requests) <= size + 2 * BLOCK_SIZE * len(requests)
    assert len(requests) <= 3


def test_a_degraded_small_read_never_fetches_whole_fragments() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=64 * BLOCK_SIZE)
    body = content(64 * BLOCK_SIZE)
    shard = put(place, body)
    first = shard.stripes[0].fragments[0].target
    place.spaces[first].set_unchecked(place.key(first, ".000"), None)
    place.seen.events.clear()
    assert get(place, shard, 100, 200) == body[100:200]
    good = [event for event in place.seen.of(RequestDone) if event.operation == "get" and event.error is None]
    assert sum(event.size for event in good) == 2 * BLOCK_SIZE


def test_overlapping_and_many_small_pieces_are_all_filled() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=8 * BLOCK_SIZE)
    body = content(20 * BLOCK_SIZE + 5)
    shard = put(place, body)
    numbers = random.Random(7)
    for damaged in (False, True):
        if damaged:
            place.down("t1")
        bounds = [sorted(numbers.sample(range(len(body) + 1), 2)) for _ in range(40)]
        bounds += [[at, at + 10] for at in range(0, 20000, 50)]
        memory = [bytearray(stop - start) for start, stop in bounds]
        Downloader(place.targets).read(
            shard,
            [Piece(start=a, stop=b, into=memoryview(m)) for (a, b), m in zip(bounds, memory, strict=True)],
        )
        for (start, stop), found in zip(bounds, memory, strict=True):
            assert found == body[start:stop]


def test_a_piece_outside_of_the_shard_is_refused() -> None:
    place = Place("abc", data=2, parity=1)
    shard = put(place, b"abc")
    with pytest.raises(InvalidInputError):
        get(place, shard, 0, 4)


def test_a_target_that_fails_during_the_load_is_survived() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=8 * BLOCK_SIZE)
    body = content(40 * BLOCK_SIZE)
    shard = put(place, body)
    seen = 0

    def dies(point: FaultPoint) -> None:
        nonlocal seen
        if point.operation == "get" and point.moment == "before":
            seen += 1
            if seen == 2:
                place.down("t1")

    place.spaces["t1"].faults = dies
    assert get(place, shard, 0, len(body)) == body
    assert [event.target for event in place.seen.of(TargetGivenUp)] == ["t1"]


def test_a_dead_target_costs_one_deadline_not_one_per_stripe() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=2 * BLOCK_SIZE, threads=1)
    place.make_spaces()
    place.down("t1")
    body = content(40 * BLOCK_SIZE)
    shard = put(place, body)
    failed = [event for event in place.seen.of(RequestDone) if event.target == "t1"]
    assert failed
    assert len({event.key for event in failed}) == 1
    assert [event.target for event in place.seen.of(TargetGivenUp)] == ["t1"]
    assert all(f.stored == (f.target != "t1") for stripe in shard.stripes for f in stripe.fragments)
    assert get(place, shard, 0, len(body)) == body


def test_a_stripe_with_fewer_than_k_stored_fragments_fails_the_save_with_the_numbers() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=2 * BLOCK_SIZE)
    place.make_spaces()
    place.down("t1", "t2")
    with pytest.raises(NotEnoughFragmentsError, match=r"need 2 of 3 .*stored=1 failed=2 \(t1: .*t2: ") as caught:
        put(place, content(10 * BLOCK_SIZE))
    assert caught.value.__cause__ is not None
    assert place.targets.budget.in_flight == 0


def test_the_policy_can_demand_more_than_k_fragments() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=2 * BLOCK_SIZE, min_tolerance=1)
    place.make_spaces()
    place.down("t1")
    with pytest.raises(NotEnoughFragmentsError, match="survive 1 lost domains"):
        put(place, content(BLOCK_SIZE))


def test_a_full_disk_is_a_lost_target_and_says_so() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=2 * BLOCK_SIZE)
    place.make_spaces()

    def full(point: FaultPoint) -> None:
        if point.operation == "put":
            raise StoreFullError("no space left", target=point.store)

    place.spaces["t2"].faults = full
    shard = put(place, content(2 * BLOCK_SIZE))
    assert [f.target for f in shard.stripes[0].fragments if not f.stored] == ["t2"]
    assert "StoreFullError" in place.seen.of(TargetGivenUp)[0].reason


class Watched:
    """A source that counts how it is read."""

    def __init__(self, body: bytes, *, contiguous: bool) -> None:
        self.body = memoryview(body)
        self.contiguous = contiguous
        self.length = len(body)
        self.viewed = 0
        self.copied = 0
        self.open = True

    def view(self, start: int, stop: int) -> memoryview | None:
        assert self.open
        if not self.contiguous:
            return None
        self.viewed += stop - start
        return self.body[start:stop]

    def read_into(self, start: int, into: memoryview) -> None:
        assert self.open
        self.copied += len(into)
        into[:] = self.body[start : start + len(into)]


def test_a_contiguous_source_is_coded_from_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """D01: and nothing of it is read once the upload has returned."""
    place = Place("abc", data=2, parity=1, stripe_size=4 * BLOCK_SIZE)
    body = bytearray(content(8 * BLOCK_SIZE))
    coded: list[memoryview] = []
    real = codec()

    class Watching:
        def encode(self, code: Code, data: list[memoryview], parity: list[memoryview]) -> None:
            coded.extend(data)
            real.encode(code, data, parity)

    monkeypatch.setattr(uploading, "codec", Watching)
    source = Watched(body, contiguous=True)
    before = bytes(body)
    shard = put(place, b"", sources=[source])
    source.open = False
    assert source.copied == 0
    assert source.viewed == len(body)
    assert all(view.obj is body for view in coded)
    body[:] = bytes(len(body))
    assert get(place, shard, 0, len(before)) == before


def test_scattered_sources_make_one_stream() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=4 * BLOCK_SIZE)
    parts = [content(size) for size in (0, 1, 3 * BLOCK_SIZE + 7, 0, 0, 5 * BLOCK_SIZE, 12)]
    sources = [Watched(part, contiguous=number % 2 == 0) for number, part in enumerate(parts)]
    shard = put(place, b"", sources=sources)
    body = b"".join(parts)
    assert get(place, shard, 0, len(body)) == body


def test_a_source_that_fails_ends_the_upload_and_returns_the_budget() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=2 * BLOCK_SIZE)

    class Breaks(Watched):
        def read_into(self, start: int, into: memoryview) -> None:
            if start >= 4 * BLOCK_SIZE:
                raise OSError("gone")
            super().read_into(start, into)

    with pytest.raises(OSError, match="gone"):
        put(place, b"", sources=[Breaks(content(10 * BLOCK_SIZE), contiguous=False)])
    assert place.targets.budget.in_flight == 0


def test_never_more_than_the_budget_is_in_flight() -> None:
    """D25: whatever the size of the shard."""
    budget = 12 * BLOCK_SIZE
    place = Place("abc", data=2, parity=1, stripe_size=4 * BLOCK_SIZE, budget=budget, threads=8)
    place.make_spaces()
    most = 0

    def watch(point: FaultPoint) -> None:
        nonlocal most
        most = max(most, place.targets.budget.in_flight)

    for space in place.spaces.values():
        space.faults = watch
    body = content(64 * BLOCK_SIZE)
    shard = put(place, body)
    assert 0 < most <= budget
    most = 0
    place.spaces["t0"].set_unchecked(next(iter(place.spaces["t0"].objects())), None)
    assert get(place, shard, 3, len(body) - 3) == body[3:-3]
    assert most <= budget
    assert place.targets.budget.in_flight == 0


def test_lost_targets_are_neither_written_nor_asked() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=4 * BLOCK_SIZE)
    body = content(4 * BLOCK_SIZE)
    shard = put(place, body, unavailable=frozenset({"t2"}))
    assert place.spaces["t2"].objects() == {}
    place.seen.events.clear()
    assert get(place, shard, 0, len(body), unavailable=frozenset({"t2"})) == body
    assert not [event for event in place.seen.of(RequestDone) if event.target == "t2"]


def test_a_stripe_may_name_data_under_another_shards_id() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=4 * BLOCK_SIZE)
    body = content(8 * BLOCK_SIZE)
    shard = put(place, body)
    moved = msgspec.structs.replace(
        shard,
        id=str(ShardId(EPOCH, 2, 0, 0)),
        stripes=tuple(msgspec.structs.replace(s, shard=shard.id, number=n) for n, s in enumerate(shard.stripes)),
    )
    assert get(place, moved, 0, len(body)) == body


def test_a_check_names_every_fragment_that_is_not_right() -> None:
    place = Place("abc", data=2, parity=1, stripe_size=4 * BLOCK_SIZE)
    body = content(12 * BLOCK_SIZE)
    shard = put(place, body)
    downloader = Downloader(place.targets)
    assert {state.state for state in downloader.check(shard, deep=True)} == {"ok"}
    victims = [(s, shard.stripes[s].fragments[i].target, i) for s, i in ((0, 0), (1, 1), (2, 2))]
    (_, flipped, i0), (_, gone, i1), (_, short, i2) = victims
    key = place.key(flipped, f"000000.{i0:03d}")
    whole = place.spaces[flipped].objects()[key]
    place.spaces[flipped].set_unchecked(key, whole[:-1] + bytes([whole[-1] ^ 1]))
    place.spaces[gone].set_unchecked(place.key(gone, f"000001.{i1:03d}"), None)
    place.spaces[short].set_unchecked(place.key(short, f"000002.{i2:03d}"), b"short")
    found = {(s.stripe, s.index): s.state for s in downloader.check(shard, deep=True) if s.state != "ok"}
    assert found == {(0, 0): "corrupt", (1, 1): "missing", (2, 2): "corrupt"}
    shallow = {(s.stripe, s.index): s.state for s in downloader.check(shard, deep=False) if s.state != "ok"}
    assert shallow == {(1, 1): "missing", (2, 2): "corrupt"}
