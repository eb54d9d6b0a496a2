from __future__ import annotations

import logging
import mmap
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import pyeclib.ec_iface
import pytest

import objckpt
from objckpt.coding import codec as codec_module
from objckpt.coding.codec import Codec, codec
from objckpt.coding.geometry import BLOCK_SIZE, CAUCHY, MAX_STRIPE_SIZE, Code, fragment_ranges, fragment_size
from objckpt.coding.isal import IsalCodec, isal
from objckpt.coding.pyeclib_codec import PyeclibCodec
from objckpt.errors import CapabilityError, InternalError, InvalidInputError

CODES = [(1, 1), (1, 2), (2, 1), (4, 2), (8, 3), (10, 4), (12, 4)]
HEADER = 80


def stripe_of(length: int, salt: int = 0) -> bytes:
    return bytes((position * position + 31 * position + salt) % 253 for position in range(length))


def data_of(code: Code, stripe: bytes) -> list[bytes]:
    size = fragment_size(code, len(stripe))
    padded = stripe.ljust(size * code.data, b"\0")
    return [padded[index * size : (index + 1) * size] for index in range(code.data)]


def encoded(coder: Codec, code: Code, stripe: bytes) -> list[bytes]:
    data = data_of(code, stripe)
    parity = [bytearray(len(data[0])) for _ in range(code.parity)]
    coder.encode(code, [memoryview(body) for body in data], [memoryview(body) for body in parity])
    return [*data, *(bytes(body) for body in parity)]


def rebuilt(
    coder: Codec, code: Code, fragments: list[bytes], lost: tuple[int, ...], start: int = 0, stop: int | None = None
) -> dict[int, bytes]:
    stop = len(fragments[0]) if stop is None else stop
    missing = {index: bytearray(stop - start) for index in lost}
    present = {index: memoryview(body)[start:stop] for index, body in enumerate(fragments) if index not in lost}
    coder.reconstruct(code, present, {index: memoryview(body) for index, body in missing.items()})
    return {index: bytes(body) for index, body in missing.items()}


@pytest.fixture
def unchosen() -> Iterator[None]:
    """As in a process that has not used a codec yet."""
    before = dict(codec_module._process)
    codec_module._process.clear()
    yield
    codec_module._process.clear()
    codec_module._process.update(before)


@pytest.mark.parametrize(("k", "m"), CODES)
@pytest.mark.parametrize("length", [0, 1, 2, 11, 12, 13, 1000, 4 * BLOCK_SIZE - 1, 4 * BLOCK_SIZE + 1])
def test_parity_is_what_pyeclib_computes(either: Codec, k: int, m: int, length: int) -> None:
    """E08, E10."""
    stripe = stripe_of(length)
    oracle = pyeclib.ec_iface.ECDriver(k=k, m=m, ec_type=CAUCHY).encode(stripe)
    assert encoded(either, Code.of(k, m), stripe) == [fragment[HEADER:] for fragment in oracle]


@pytest.mark.parametrize(("k", "m"), CODES)
def test_every_loss_of_up_to_m_fragments_is_made_good(either: Codec, k: int, m: int) -> None:
    """E01, E02: all patterns, not a sample."""
    code = Code.of(k, m)
    fragments = encoded(either, code, stripe_of(37 * k - 1))
    for losses in range(1, m + 1):
        for lost in combinations(range(code.fragments), losses):
            assert rebuilt(either, code, fragments, lost) == {index: fragments[index] for index in lost}


@pytest.mark.parametrize(("k", "m"), CODES)
def test_sizes_around_every_border_come_back(either: Codec, k: int, m: int) -> None:
    """E10: 0, 1, k-1, k, k+1, 4k+1, and around a block in every fragment."""
    code = Code.of(k, m)
    for length in {0, 1, k - 1, k, k + 1, 4 * k + 1, *(k * BLOCK_SIZE + extra for extra in (-1, 0, 1))}:
        stripe = stripe_of(length)
        fragments = encoded(either, code, stripe)
        lost = tuple(range(min(k, m)))
        data = {**dict(enumerate(fragments[:k])), **rebuilt(either, code, fragments, lost)}
        assert b"".join(data[index] for index in range(k))[:length] == stripe


def test_columns_longer_than_the_library_is_given_at_once_come_back(either: Codec) -> None:
    code = Code.of(2, 2)
    stripe = stripe_of(2 * (4 * BLOCK_SIZE + 12345))
    fragments = encoded(either, code, stripe)
    oracle = pyeclib.ec_iface.ECDriver(k=2, m=2, ec_type=CAUCHY).encode(stripe)
    assert fragments == [fragment[HEADER:] for fragment in oracle]
    assert rebuilt(either, code, fragments, (0, 3)) == {0: fragments[0], 3: fragments[3]}


def test_a_range_of_a_lost_fragment_comes_from_the_same_range_of_others(either: Codec) -> None:
    code = Code.of(4, 2)
    fragments = encoded(either, code, stripe_of(4 * 1000 - 3))
    for start, stop in [(0, 0), (0, 1), (1, 2), (63, 65), (500, 1000), (999, 1000), (0, 1000)]:
        for lost in [(0,), (1, 3), (2, 5), (4, 5)]:
            parts = rebuilt(either, code, fragments, lost, start, stop)
            assert parts == {index: fragments[index][start:stop] for index in lost}


def test_a_range_of_a_stripe_is_read_from_the_ranges_of_its_fragments(either: Codec) -> None:
    code = Code.of(4, 2)
    stripe = stripe_of(4 * 777 - 2)
    fragments = encoded(either, code, stripe)
    for start, stop in [(0, len(stripe)), (700, 1600), (776, 778), (3000, len(stripe))]:
        pieces = fragment_ranges(code, len(stripe), start, stop)
        parts = [rebuilt(either, code, fragments, (p.index, 5), p.start, p.stop)[p.index] for p in pieces]
        assert b"".join(parts) == stripe[start:stop]


def test_what_one_codec_encodes_the_other_rebuilds(either: Codec) -> None:
    """E08."""
    library = isal()
    assert library is not None
    for other in (IsalCodec(library), PyeclibCodec()):
        for k, m in CODES:
            code = Code.of(k, m)
            fragments = encoded(either, code, stripe_of(50 * k + 1))
            lost = tuple(range(k - 1, k - 1 + m))
            assert rebuilt(other, code, fragments, lost) == {index: fragments[index] for index in lost}


def test_what_pyeclib_encodes_is_rebuilt_from_its_payloads(either: Codec) -> None:
    for k, m in CODES:
        payloads = [f[HEADER:] for f in pyeclib.ec_iface.ECDriver(k=k, m=m, ec_type=CAUCHY).encode(stripe_of(99 * k))]
        lost = tuple(range(min(k, m)))
        assert rebuilt(either, Code.of(k, m), payloads, lost) == {index: payloads[index] for index in lost}


def test_any_memory_is_coded_where_it_lies(either: Codec, tmp_path: Path) -> None:
    """E10: read-only, sliced, mapped, of other item types, misaligned."""
    code = Code.of(4, 2)
    stripe = stripe_of(4 * 4096)
    expected = encoded(either, code, stripe)
    (tmp_path / "stripe").write_bytes(stripe)
    with (
        (tmp_path / "stripe").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as read_only,
        memoryview(bytearray(b"?" + stripe)) as misaligned,
    ):
        parts = [read_only[:4096], misaligned[4097:8193], memoryview(expected[2]).cast("I"), memoryview(expected[3])]
        arena = bytearray(3 * 4096)
        either.encode(code, parts, [memoryview(arena)[1:4097], memoryview(arena)[4097:8193]])
        for part in parts:
            part.release()
    assert arena[1:8193] == expected[4] + expected[5]
    assert arena[:1] + arena[8193:] == bytes(4096), "bytes beside the parity are left alone"


def test_fragments_that_are_present_are_never_written(either: Codec) -> None:
    code = Code.of(3, 2)
    fragments = encoded(either, code, stripe_of(3 * 100))
    present = {index: bytearray(fragments[index]) for index in (0, 2, 3, 4)}
    into = bytearray(100)
    either.reconstruct(code, {index: memoryview(body) for index, body in present.items()}, {1: memoryview(into)})
    assert into == fragments[1]
    assert all(body == fragments[index] for index, body in present.items())


def test_nothing_missing_is_nothing_to_do(either: Codec) -> None:
    code = Code.of(2, 1)
    either.reconstruct(code, {index: memoryview(b"abc") for index in range(2)}, {})


def test_without_parity_there_is_nothing_to_encode_and_nothing_comes_back(either: Codec) -> None:
    code = Code.of(3, 0)
    data = [memoryview(bytes(10)) for _ in range(3)]
    either.encode(code, data, [])
    with pytest.raises(InvalidInputError, match="2 fragments cannot rebuild"):
        either.reconstruct(code, {0: data[0], 1: data[1]}, {2: memoryview(bytearray(10))})


def test_buffers_that_do_not_fit_are_refused_before_anything_is_written(either: Codec) -> None:
    """E04, E10: unequal sizes, wrong counts, unknown indices."""
    code = Code.of(2, 2)
    good = memoryview(bytes(8))

    def into() -> memoryview:
        return memoryview(bytearray(8))

    calls = [
        ([good], [into(), into()]),
        ([good, good, good], [into(), into()]),
        ([good, good], [into()]),
        ([good, good[:7]], [into(), into()]),
        ([good, good], [into(), memoryview(bytearray(9))]),
        ([good, good], [into(), good]),
        ([good, memoryview(bytes(16))[::2]], [into(), into()]),
    ]
    for data, parity in calls:
        with pytest.raises(InvalidInputError):
            either.encode(code, data, parity)
    losses = [
        ({0: good}, {1: into()}),
        ({0: good, 4: good}, {1: into()}),
        ({0: good, -1: good}, {1: into()}),
        ({0: good, 1: good}, {1: into()}),
        ({0: good, 2: good}, {1: good}),
        ({0: good, 2: good}, {7: into()}),
        ({0: good, 2: good[:3]}, {1: into()}),
        ({0: good, 2: good}, {1: memoryview(bytearray(9))}),
    ]
    for present, missing in losses:
        with pytest.raises(InvalidInputError):
            either.reconstruct(code, present, missing)


def test_fragments_beyond_the_cap_are_refused(either: Codec, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("w+b") as file:
        file.truncate(MAX_STRIPE_SIZE + 1)
        with (
            mmap.mmap(file.fileno(), 0) as huge,
            memoryview(huge) as view,
            pytest.raises(InvalidInputError, match="at most"),
        ):
            either.encode(Code.of(1, 1), [view], [view])


def test_a_damaged_fragment_decodes_to_other_bytes_so_callers_must_verify(either: Codec) -> None:
    """E03, E06: the codec cannot tell; this is why every fragment is verified before it gets here."""
    code = Code.of(4, 2)
    fragments = encoded(either, code, stripe_of(400))
    damaged = list(fragments)
    damaged[2] = bytes([fragments[2][0] ^ 1]) + fragments[2][1:]
    assert rebuilt(either, code, damaged, (0,))[0] != fragments[0]


def test_threads_share_a_codec(either: Codec) -> None:
    def work(number: int) -> bool:
        k, m = CODES[number % len(CODES)]
        code = Code.of(k, m)
        fragments = encoded(either, code, stripe_of(k * 3000, salt=number))
        oracle = pyeclib.ec_iface.ECDriver(k=k, m=m, ec_type=CAUCHY).encode(stripe_of(k * 3000, salt=number))
        lost = tuple((number + step) % code.fragments for step in range(m))
        same = rebuilt(either, code, fragments, lost) == {index: fragments[index] for index in lost}
        return same and fragments == [fragment[HEADER:] for fragment in oracle]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(60)))


def test_a_forked_child_codes_on(either: Codec) -> None:
    code = Code.of(4, 2)
    stripe = stripe_of(40_000)
    expected = encoded(either, code, stripe)
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        fragments = encoded(either, code, stripe)
        sender.send((fragments == expected, rebuilt(either, code, fragments, (1, 4)), encoded(codec(), code, stripe)))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    sender.close()
    same, parts, through_the_process_codec = receiver.recv()
    process.join()
    assert process.exitcode == 0
    assert same
    assert parts == {1: expected[1], 4: expected[4]}
    assert through_the_process_codec == expected


def test_other_threads_run_while_isal_encodes() -> None:
    """No thread can take the GIL by force here, so the other one advances only if encoding gives it up."""
    code = Code.of(4, 2)
    library = isal()
    assert library is not None
    coder = IsalCodec(library)
    data = [memoryview(bytes(BLOCK_SIZE)) for _ in range(4)]
    parity = [memoryview(bytearray(BLOCK_SIZE)) for _ in range(2)]

    def encode() -> None:
        coder.encode(code, data, parity)

    def hold() -> None:
        bytes(BLOCK_SIZE).translate(bytes(range(256)))

    assert _advances_during(encode)
    assert not _advances_during(hold), "the method itself: work that holds the GIL lets nobody in"


def _advances_during(work: Callable[[], None]) -> bool:
    go = threading.Event()
    steps: list[int] = []

    def watch() -> None:
        go.wait()
        steps.append(1)

    watcher = threading.Thread(target=watch)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        watcher.start()
        go.set()
        for _ in range(20_000):
            if steps:
                return True
            work()
        return False
    finally:
        sys.setswitchinterval(interval)
        go.set()
        watcher.join()


@pytest.mark.usefixtures("unchosen")
def test_the_process_codec_is_isal_and_one_for_all_threads(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), ThreadPoolExecutor(4) as threads:
        chosen = set(threads.map(lambda _: codec(), range(16)))
    assert len(chosen) == 1
    assert isinstance(chosen.pop(), IsalCodec)
    assert not caplog.records


@pytest.mark.usefixtures("unchosen")
def test_without_isal_pyeclib_is_used_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(codec_module, "isal", lambda: None)
    with caplog.at_level(logging.INFO):
        chosen = codec()
        assert codec() is chosen
    assert isinstance(chosen, PyeclibCodec)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "PyECLib" in caplog.text


@pytest.mark.usefixtures("unchosen")
def test_without_any_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_module, "isal", lambda: None)
    monkeypatch.setitem(sys.modules, "objckpt.coding.pyeclib_codec", None)
    with pytest.raises(CapabilityError, match="install pyeclib"):
        codec()


@pytest.mark.usefixtures("unchosen")
def test_a_library_that_computes_something_else_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """E02: parity that is a copy of the data."""

    def copies(self: object, code: Code, data: list[memoryview], parity: list[memoryview]) -> None:
        for body in parity:
            body[:] = data[0]

    monkeypatch.setattr(IsalCodec, "encode", copies)
    for _ in range(2):
        with pytest.raises(InternalError, match="encodes wrong bytes"):
            codec()


def test_pyeclib_is_not_loaded_where_isal_is_found() -> None:
    """Importing it costs time and brings a library that crashes on large inputs."""
    script = (
        "import sys; from objckpt.coding.codec import codec; codec(); "
        "sys.exit(any(name.startswith('pyeclib') for name in sys.modules))"
    )
    root = Path(objckpt.__file__).parent.parent
    done = subprocess.run([sys.executable, "-P", "-c", script], env={"PYTHONPATH": str(root)}, check=False)
    assert done.returncode == 0
