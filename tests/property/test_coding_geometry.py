from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from objckpt.coding.geometry import (
    BLOCK_SIZE,
    Code,
    block_count,
    fragment_ranges,
    fragment_size,
    stripe_lengths,
    widen_to_blocks,
)

codes = st.builds(Code.of, st.integers(1, 20), st.integers(0, 12))


@st.composite
def ranges(draw: st.DrawFn, largest: int) -> tuple[int, int, int]:
    length = draw(st.integers(0, largest))
    start, stop = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
    return length, start, stop


@given(codes, ranges(largest=500))
def test_the_pieces_of_a_range_are_exactly_its_bytes(code: Code, wanted: tuple[int, int, int]) -> None:
    length, start, stop = wanted
    stripe = bytes(position % 251 for position in range(length))
    size = fragment_size(code, length)
    padded = stripe.ljust(size * code.data, b"\xff")
    fragments = [padded[index * size : (index + 1) * size] for index in range(code.data)]
    pieces = fragment_ranges(code, length, start, stop)
    assert b"".join(fragments[piece.index][piece.start : piece.stop] for piece in pieces) == stripe[start:stop]
    assert all(0 <= piece.start < piece.stop <= size for piece in pieces)
    assert sum(len(piece) for piece in pieces) == stop - start


@given(ranges(largest=10 * BLOCK_SIZE))
def test_widening_adds_less_than_a_block_on_either_side(wanted: tuple[int, int, int]) -> None:
    size, start, stop = wanted
    first, last = widen_to_blocks(start, stop, size)
    assert 0 <= first <= start <= stop <= last <= size
    assert start - first < BLOCK_SIZE
    assert last - stop < BLOCK_SIZE
    if start < stop:
        assert first % BLOCK_SIZE == 0
        assert last == size or last % BLOCK_SIZE == 0
        assert widen_to_blocks(first, last, size) == (first, last)


@given(st.integers(0, 10**7), st.integers(1000, 10**6))
def test_stripes_are_full_but_for_the_last(length: int, stripe_size: int) -> None:
    lengths = stripe_lengths(length, stripe_size)
    assert sum(lengths) == length
    assert all(size == stripe_size for size in lengths[:-1])
    assert all(0 < size <= stripe_size for size in lengths)


@given(st.integers(0, 10**9))
def test_blocks_cover_and_do_not_exceed(size: int) -> None:
    count = block_count(size)
    assert (count - 1) * BLOCK_SIZE < size <= count * BLOCK_SIZE or size == count == 0
