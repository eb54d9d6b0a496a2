"""How bytes are cut: shard into stripes, stripe into fragments, fragment into blocks.

Pure integers: no buffers, no I/O, no kernels. It says where a byte is, never what it is. Kept here:

- data fragment ``i`` of a stripe holds bytes ``[i * F, (i + 1) * F)`` of it, ``F = ceil(length / k)``,
  zero-padded behind the stripe's end, so data fragments are plain slices of the shard;
- every range is half-open;
- a ``Code`` that exists is one that any ``m`` losses cannot hurt: only Cauchy Reed-Solomon is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from objckpt.errors import InvalidInputError, UnsupportedVersionError
from objckpt.units import GiB, KiB, ceil_div

BLOCK_SIZE = 64 * KiB
"""The unit of checksum inside a fragment."""

MAX_STRIPE_SIZE: int = 1 * GiB
"""Far below 2**31, from where the library under PyECLib crashes or silently encodes too little."""

MAX_FRAGMENTS = 32
"""GF(2**8) would allow 256; liberasurecode refuses more than 32, and stock PyECLib must decode what is stored."""

CAUCHY = "isa_l_rs_cauchy"
"""Reed-Solomon with a Cauchy matrix: every square submatrix is invertible, so any k of n fragments decode."""

NO_CODING = "none"
"""The algorithm's name where there is no parity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What a stripe is coded with; written in every manifest and read back from it, never assumed.

    Attributes:
        data: k, the number of data fragments.
        parity: m, the number of parity fragments, which is the number of losses survived.
        algorithm: ``CAUCHY``, or ``NO_CODING`` when there is no parity.

    Raises:
        InvalidInputError: Counts out of bounds, or an algorithm that does not go with them.
        UnsupportedVersionError: An algorithm of another name; Vandermonde and XOR codes are among
            them, because they do not survive every pattern of m losses.
    """

    data: int
    parity: int
    algorithm: str

    def __post_init__(self) -> None:
        for name, count, least in (("data", self.data, 1), ("parity", self.parity, 0)):
            if isinstance(count, bool) or not isinstance(count, int) or count < least:
                raise InvalidInputError(f"{name} is {count!r}", hint=f"{name} is a whole number from {least} on")
        if self.fragments > MAX_FRAGMENTS:
            raise InvalidInputError(
                f"a code of {self.data}+{self.parity} has {self.fragments} fragments",
                hint=f"data + parity may be {MAX_FRAGMENTS} at most",
            )
        if self.algorithm not in (CAUCHY, NO_CODING):
            raise UnsupportedVersionError(
                f"{self.algorithm!r} is not an algorithm of this release",
                hint=f"{CAUCHY!r} is the one for new checkpoints; upgrade objckpt to read newer ones",
            )
        if (self.algorithm == NO_CODING) != (self.parity == 0):
            raise InvalidInputError(
                f"{self.parity} parity fragments do not go with the algorithm {self.algorithm!r}",
                hint=f"use {NO_CODING!r} without parity and {CAUCHY!r} with it",
            )

    @classmethod
    def of(cls, data: int, parity: int) -> Code:
        """The code of these counts, with the algorithm that new checkpoints use."""
        return cls(data=data, parity=parity, algorithm=NO_CODING if parity == 0 else CAUCHY)

    @property
    def fragments(self) -> int:
        """n = k + m."""
        return self.data + self.parity


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRange:
    """Bytes ``[start, stop)`` of data fragment ``index``."""

    index: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def stripe_lengths(length: int, stripe_size: int) -> Sequence[int]:
    """The lengths of the stripes of a shard: all ``stripe_size`` but the last; none for an empty shard."""
    if length < 0:
        raise InvalidInputError(f"a shard of {length} bytes")
    if not 0 < stripe_size <= MAX_STRIPE_SIZE:
        raise InvalidInputError(f"stripe_size is {stripe_size}", hint=f"choose from 1 to {MAX_STRIPE_SIZE} bytes")
    whole, rest = divmod(length, stripe_size)
    return [stripe_size] * whole + ([rest] if rest else [])


def stripe_code(code: Code, stripe_length: int) -> Code:
    """The code of one stripe: a stripe too small to fill k blocks is kept whole, with the same tolerance."""
    if stripe_length < code.data * BLOCK_SIZE:
        return Code.of(1, code.parity)
    return code


def fragment_size(code: Code, stripe_length: int) -> int:
    """F, the size that all fragments of a stripe have."""
    return ceil_div(_checked_length(stripe_length), code.data)


def block_count(size: int) -> int:
    """The number of blocks of ``size`` bytes; the last may be shorter."""
    return ceil_div(size, BLOCK_SIZE)


def fragment_ranges(code: Code, stripe_length: int, start: int, stop: int) -> list[FragmentRange]:
    """Where bytes ``[start, stop)`` of a stripe lie: pieces of its data fragments, in the order of the bytes."""
    size = fragment_size(code, stripe_length)
    _check_range(start, stop, stripe_length)
    if start == stop:
        return []
    return [
        FragmentRange(
            index=index,
            start=max(start - index * size, 0),
            stop=min(stop - index * size, size),
        )
        for index in range(start // size, (stop - 1) // size + 1)
    ]


def widen_to_blocks(start: int, stop: int, size: int) -> tuple[int, int]:
    """The smallest range of whole blocks of a fragment of ``size`` bytes that covers ``[start, stop)``.

    An empty range stays empty.
    """
    _check_range(start, stop, size)
    if start == stop:
        return start, stop
    return start // BLOCK_SIZE * BLOCK_SIZE, min(block_count(stop) * BLOCK_SIZE, size)


def _checked_length(stripe_length: int) -> int:
    if not 0 <= stripe_length <= MAX_STRIPE_SIZE:
        raise InvalidInputError(f"a stripe of {stripe_length} bytes", hint=f"at most {MAX_STRIPE_SIZE} bytes")
    return stripe_length


def _check_range(start: int, stop: int, size: int) -> None:
    if not 0 <= start <= stop <= size:
        raise InvalidInputError(f"[{start}, {stop}) is not a range of {size} bytes")
