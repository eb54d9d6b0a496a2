"""CRC-32C (Castagnoli, RFC 3720): of bytes, of the blocks of a fragment, and of joined pieces.

A checksum finds accidents, not forgers. The numbers are the standard ones that S3 and GCS verify too
(``"123456789"`` gives ``0xE3069283``). Each byte is summed once: a fragment's checksum is worked out from
those of its blocks. The kernel is ISA-L's, else google-crc32c's; it answers a known question before its
first use.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

from objckpt.coding.buffers import pinned
from objckpt.coding.geometry import BLOCK_SIZE, block_count
from objckpt.coding.isal import Isal, isal
from objckpt.errors import InternalError, InvalidInputError
from objckpt.seams import Clock, SystemClock
from objckpt.units import GiB, MiB

if TYPE_CHECKING:
    from typing_extensions import Buffer

_POLYNOMIAL = 0x82F63B78  # reflected: bit 31 is x**0
_ONES = 0xFFFFFFFF
_MAX_CALL = 1 * GiB  # ISA-L takes the length as a C int
_BATCH_BLOCKS = 64
_HELD_BLOCKS = 1024  # 64 MiB: milliseconds
_SLOW_BLOCK_S = 100e-6


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of ``data``; ``value`` is that of what goes before, as with ``zlib.crc32``."""
    return _kernel().extend(value, data)


def crc32c_combine(first: int, second: int, second_length: int) -> int:
    """CRC-32C of two joined pieces from their own and the second one's length."""
    if second_length < 0:
        raise InvalidInputError(f"a piece of {second_length} bytes")
    return _product(_power(8 * second_length), first) ^ second


def block_checksums(data: Buffer) -> bytes:
    """CRC-32C of every 64 KiB block, packed as little-endian uint32; the last block may be shorter."""
    return _kernel().blocks(data)


def combine_blocks(packed: bytes, size: int) -> int:
    """CRC-32C of ``size`` bytes from ``block_checksums`` of them.

    Raises:
        InvalidInputError: ``packed`` does not hold one checksum for each block of ``size`` bytes.
    """
    count = block_count(size)
    if len(packed) != 4 * count:
        raise InvalidInputError(f"{len(packed)} bytes of checksums for {size} bytes", hint=f"expected {4 * count}")
    if count == 0:
        return 0
    if count == 1:
        return int.from_bytes(packed, "little")
    low, middle, high = _block_shift()
    total, *between, last = struct.unpack(f"<{count}I", packed)
    for checksum in between:
        total = low[total & 0x7FF] ^ middle[total >> 11 & 0x7FF] ^ high[total >> 22] ^ checksum
    return crc32c_combine(total, last, size - (count - 1) * BLOCK_SIZE)


class _Kernel(Protocol):
    def extend(self, value: int, data: Buffer) -> int: ...

    def blocks(self, data: Buffer) -> bytes: ...


class IsalKernel:
    """ISA-L's ``crc32_iscsi``, on the caller's memory."""

    def __init__(self, library: Isal, clock: Clock) -> None:
        self._sum = library.crc32_iscsi
        self._sum_holding = library.crc32_iscsi_holding
        self._clock = clock

    def extend(self, value: int, data: Buffer) -> int:
        with pinned((data,)) as ((address, size),):
            if size <= BLOCK_SIZE:
                return int(self._sum_holding(address, size, value ^ _ONES)) ^ _ONES
            state = value ^ _ONES
            for start in range(0, size, _MAX_CALL):
                state = self._sum(address + start, min(_MAX_CALL, size - start), state)
            return state ^ _ONES

    def blocks(self, data: Buffer) -> bytes:
        with pinned((data,)) as ((address, size),):
            whole = size // BLOCK_SIZE
            states = self._whole_blocks(address, address + whole * BLOCK_SIZE)
            if size % BLOCK_SIZE:
                states.append(self._sum_holding(address + whole * BLOCK_SIZE, size % BLOCK_SIZE, _ONES))
        return _inverted(struct.pack(f"<{len(states)}I", *states))

    def _whole_blocks(self, at: int, end: int) -> list[int]:
        """The kernel's states for blocks in memory ``[at, end)``.

        A block takes microseconds. Threads that code at once go fastest when each call gives the GIL up;
        but a thread busy with Python gives it back only after a switch interval, a thousand times as
        long as the block took. So it is given up in batches that grow, and a batch that took too long is
        followed by blocks that are summed with the GIL held.
        """
        states: list[int] = []
        trial = 1
        while at < end:
            stop = min(at + trial * BLOCK_SIZE, end)
            began_s = self._clock.monotonic_s()
            states += _over_blocks(self._sum, at, stop)
            waited = self._clock.monotonic_s() - began_s > trial * _SLOW_BLOCK_S
            at = stop
            trial = 1 if waited else min(2 * trial, _BATCH_BLOCKS)
            if waited:
                held = min(at + _HELD_BLOCKS * BLOCK_SIZE, end)
                while at < held:
                    # Between two batches the interpreter grants the requests of other threads.
                    stop = min(at + _BATCH_BLOCKS * BLOCK_SIZE, held)
                    states += _over_blocks(self._sum_holding, at, stop)
                    at = stop
        return states


class GoogleKernel:
    """google-crc32c's, which takes ``bytes`` only: data is copied to it by the block or the MiB."""

    def __init__(self) -> None:
        import google_crc32c

        self._extend = google_crc32c.extend

    def extend(self, value: int, data: Buffer) -> int:
        view = _flat(data)
        for start in range(0, view.nbytes, MiB):
            value = self._extend(value, bytes(view[start : start + MiB]))
        return value

    def blocks(self, data: Buffer) -> bytes:
        view = _flat(data)
        starts = range(0, view.nbytes, BLOCK_SIZE)
        sums = [self._extend(0, bytes(view[start : start + BLOCK_SIZE])) for start in starts]
        return struct.pack(f"<{len(sums)}I", *sums)


@functools.cache
def _kernel() -> _Kernel:
    library = isal()
    kernel: _Kernel = GoogleKernel() if library is None else IsalKernel(library, SystemClock())
    # RFC 3720 B.4, and the check value that the catalogues of CRCs list.
    if kernel.extend(0, bytes(32)) != 0x8A9136AA or kernel.extend(0, b"123456789") != 0xE3069283:
        raise InternalError(
            "the CRC-32C kernel gives wrong checksums",
            hint="reinstall pyeclib and google-crc32c from wheels",
        )
    return kernel


def _over_blocks(kernel: Callable[[int, int, int], int], at: int, stop: int) -> Iterable[int]:
    return map(kernel, range(at, stop, BLOCK_SIZE), repeat(BLOCK_SIZE), repeat(_ONES))


def _flat(data: Buffer) -> memoryview:
    view = memoryview(data)
    if not view.c_contiguous:
        raise InvalidInputError(f"a {type(data).__name__} is not a contiguous buffer")
    return view.cast("B")


def _inverted(packed: bytes) -> bytes:
    bits = int.from_bytes(packed, "little") ^ ((1 << 8 * len(packed)) - 1)
    return bits.to_bytes(len(packed), "little")


@functools.cache
def _block_shift() -> tuple[list[int], list[int], list[int]]:
    """For the low 11, middle 11 and high 10 bits of a checksum: what they become with a block behind it."""
    factor = _power(8 * BLOCK_SIZE)
    tables = []
    for first, bits in ((0, 11), (11, 11), (22, 10)):
        table = [0]
        for bit in range(first, first + bits):
            shifted = _product(factor, 1 << bit)
            table += [entry ^ shifted for entry in table]
        tables.append(table)
    low, middle, high = tables
    return low, middle, high


@functools.lru_cache(maxsize=64)
def _power(exponent: int) -> int:
    """x ** exponent modulo the polynomial."""
    result, square = 1 << 31, 1 << 30
    while exponent:
        if exponent & 1:
            result = _product(result, square)
        square = _product(square, square)
        exponent >>= 1
    return result


def _product(left: int, right: int) -> int:
    """The product of two polynomials over GF(2) modulo the polynomial, all of them reflected."""
    total = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            total ^= right
        right = (right >> 1) ^ (_POLYNOMIAL if right & 1 else 0)
    return total
