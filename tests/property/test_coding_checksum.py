from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from objckpt.coding.checksum import block_checksums, combine_blocks, crc32c, crc32c_combine
from objckpt.coding.geometry import BLOCK_SIZE


@given(st.binary(max_size=2000), st.binary(max_size=2000))
def test_joined_pieces_have_the_combined_checksum(first: bytes, second: bytes) -> None:
    joined = crc32c(first + second)
    assert crc32c_combine(crc32c(first), crc32c(second), len(second)) == joined
    assert crc32c(second, crc32c(first)) == joined


@given(st.binary(min_size=1, max_size=50), st.integers(0, 5 * BLOCK_SIZE))
def test_a_fragments_checksum_follows_from_those_of_its_blocks(seed: bytes, size: int) -> None:
    data = (seed * (size // len(seed) + 1))[:size]
    assert combine_blocks(block_checksums(data), size) == crc32c(data)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**40), st.integers(0, 2**40))
def test_it_does_not_matter_in_which_order_pieces_are_combined(
    first: int, second: int, length: int, after: int
) -> None:
    left = crc32c_combine(crc32c_combine(0, first, length), second, after)
    right = crc32c_combine(0, crc32c_combine(first, second, after), length + after)
    assert left == right
