from __future__ import annotations

import mmap
import struct

import pytest

from objckpt.coding import checksum
from objckpt.coding.checksum import GoogleKernel, IsalKernel, block_checksums, combine_blocks, crc32c, crc32c_combine
from objckpt.coding.geometry import BLOCK_SIZE
from objckpt.coding.isal import isal
from objckpt.errors import InternalError, InvalidInputError


class Ticking:
    """A clock that advances by ``step_s`` whenever it is read."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._now_s = 0.0

    def now_s(self) -> float:
        raise AssertionError("wall clocks have no part in this")

    def monotonic_s(self) -> float:
        self._now_s += self._step_s
        return self._now_s

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps")


def make_isal_kernel(step_s: float) -> IsalKernel:
    library = isal()
    assert library is not None
    return IsalKernel(library, Ticking(step_s))


@pytest.fixture(
    params=[lambda: make_isal_kernel(0.0), lambda: make_isal_kernel(1.0), GoogleKernel],
    ids=["isal", "isal-contended", "google"],
)
def kernel(request: pytest.FixtureRequest) -> IsalKernel | GoogleKernel:
    return request.param()


VECTORS = [  # RFC 3720, B.4, and the check value of the catalogue of CRCs
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_checksums_are_the_standard_ones(kernel: IsalKernel, data: bytes, expected: int) -> None:
    """E07: the numbers that stores verify."""
    assert kernel.extend(0, data) == expected
    assert crc32c(data) == expected


def test_a_checksum_is_chained_over_pieces(kernel: IsalKernel) -> None:
    data = bytes(range(256)) * 1000
    for cut in (0, 1, 77, BLOCK_SIZE, BLOCK_SIZE + 1, len(data)):
        assert kernel.extend(kernel.extend(0, data[:cut]), data[cut:]) == crc32c(data)


@pytest.mark.parametrize(
    "size", [0, 1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 64 * BLOCK_SIZE, 65 * BLOCK_SIZE, 1200 * BLOCK_SIZE + 7]
)
def test_every_block_has_its_checksum(kernel: IsalKernel, size: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    packed = kernel.blocks(data)
    expected = [crc32c(data[start : start + BLOCK_SIZE]) for start in range(0, size, BLOCK_SIZE)]
    assert list(struct.unpack(f"<{len(packed) // 4}I", packed)) == expected
    assert packed == block_checksums(data)
    assert combine_blocks(packed, size) == crc32c(data)


def test_any_contiguous_buffer_is_summed_where_it_lies(kernel: IsalKernel) -> None:
    """E10."""
    data = bytes(range(200)) * 400
    with mmap.mmap(-1, len(data)) as mapped:
        mapped[:] = data
        for buffer in (data, bytearray(data), memoryview(data), memoryview(bytearray(data)).cast("I"), mapped):
            assert kernel.extend(0, buffer) == crc32c(data)
            assert kernel.blocks(buffer) == block_checksums(data)
    assert kernel.extend(0, memoryview(data)[3:1003]) == crc32c(data[3:1003])
    with pytest.raises(InvalidInputError):
        kernel.extend(0, memoryview(data)[::2])
    with pytest.raises(InvalidInputError):
        kernel.blocks(memoryview(data)[::2])


def test_a_buffer_is_free_again_after_it_was_summed() -> None:
    data = bytearray(100)
    crc32c(data)
    data.extend(b"resizing would raise BufferError while the buffer is exported")


def test_checksums_that_do_not_belong_to_the_size_are_refused() -> None:
    packed = block_checksums(bytes(3 * BLOCK_SIZE))
    assert combine_blocks(b"", 0) == 0
    for size in (0, 2 * BLOCK_SIZE, 3 * BLOCK_SIZE + 1):
        with pytest.raises(InvalidInputError):
            combine_blocks(packed, size)
    with pytest.raises(InvalidInputError):
        combine_blocks(packed[:-1], 3 * BLOCK_SIZE)
    with pytest.raises(InvalidInputError):
        crc32c_combine(1, 2, -1)


def test_a_kernel_with_other_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """E07: a CRC of another flavour is found before its first use."""
    monkeypatch.setattr(IsalKernel, "extend", lambda self, value, data: (value + sum(bytes(data))) & 0xFFFFFFFF)
    checksum._kernel.cache_clear()
    try:
        with pytest.raises(InternalError, match="wrong checksums"):
            crc32c(b"anything")
    finally:
        checksum._kernel.cache_clear()


def test_without_isal_the_checksums_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 600
    expected = (crc32c(data), block_checksums(data))
    monkeypatch.setattr(checksum, "isal", lambda: None)
    checksum._kernel.cache_clear()
    try:
        assert (crc32c(data), block_checksums(data)) == expected
        assert isinstance(checksum._kernel(), GoogleKernel)
    finally:
        checksum._kernel.cache_clear()
