from __future__ import annotations

import pytest

from objckpt.coding.geometry import (
    BLOCK_SIZE,
    MAX_FRAGMENTS,
    MAX_STRIPE_SIZE,
    Code,
    FragmentRange,
    block_count,
    fragment_ranges,
    fragment_size,
    stripe_code,
    stripe_lengths,
    widen_to_blocks,
)
from objckpt.errors import InvalidInputError, UnsupportedVersionError


@pytest.mark.parametrize(
    "algorithm",
    [
        "isa_l_rs_vand",
        "liberasurecode_rs_vand",
        "flat_xor_hd_3",
        "flat_xor_hd_4",
        "isa_l_rs_lrc",
        "",
        "ISA_L_RS_CAUCHY",
    ],
)
def test_codes_that_do_not_survive_every_loss_are_refused_by_name(algorithm: str) -> None:
    """E01, E02, E08."""
    with pytest.raises(UnsupportedVersionError, match=repr(algorithm)):
        Code(data=10, parity=5, algorithm=algorithm)


@pytest.mark.parametrize(("data", "parity"), [(0, 2), (-1, 2), (4, -1), (2.0, 1), ("4", 2), (True, 1), (None, 1)])
def test_counts_that_are_no_counts_are_refused(data: object, parity: object) -> None:
    with pytest.raises(InvalidInputError):
        Code(data=data, parity=parity, algorithm="isa_l_rs_cauchy")  # type: ignore[arg-type]


def test_more_fragments_than_stock_pyeclib_decodes_are_refused() -> None:
    assert Code.of(MAX_FRAGMENTS - 4, 4).fragments == MAX_FRAGMENTS
    with pytest.raises(InvalidInputError, match="32 at most"):
        Code.of(MAX_FRAGMENTS - 3, 4)


def test_the_algorithm_tells_whether_there_is_parity() -> None:
    assert Code.of(4, 0).algorithm == "none"
    assert Code.of(4, 2).algorithm == "isa_l_rs_cauchy"
    with pytest.raises(InvalidInputError):
        Code(data=4, parity=2, algorithm="none")
    with pytest.raises(InvalidInputError):
        Code(data=4, parity=0, algorithm="isa_l_rs_cauchy")


def test_stripes_add_up_to_the_shard() -> None:
    """E10: sizes around a stripe."""
    assert list(stripe_lengths(0, 100)) == []
    assert list(stripe_lengths(1, 100)) == [1]
    assert list(stripe_lengths(99, 100)) == [99]
    assert list(stripe_lengths(100, 100)) == [100]
    assert list(stripe_lengths(201, 100)) == [100, 100, 1]


@pytest.mark.parametrize("stripe_size", [0, -1, MAX_STRIPE_SIZE + 1, 2**31, 2**32 + 4096])
def test_stripes_near_the_sizes_that_crash_the_library_are_refused(stripe_size: int) -> None:
    with pytest.raises(InvalidInputError):
        stripe_lengths(1000, stripe_size)
    with pytest.raises(InvalidInputError):
        stripe_lengths(-1, 1000)
    if stripe_size > 0:
        with pytest.raises(InvalidInputError):
            fragment_size(Code.of(4, 2), stripe_size)


def test_a_stripe_too_small_for_k_blocks_keeps_its_tolerance_with_one_data_fragment() -> None:
    code = Code.of(4, 2)
    assert stripe_code(code, 4 * BLOCK_SIZE) == code
    assert stripe_code(code, 4 * BLOCK_SIZE - 1) == Code.of(1, 2)
    assert stripe_code(code, 0) == Code.of(1, 2)
    assert stripe_code(Code.of(4, 0), 5) == Code.of(1, 0)
    assert stripe_code(Code.of(1, 1), 5) == Code.of(1, 1)


@pytest.mark.parametrize(("length", "size"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_fragment_is_a_kth_of_its_stripe_rounded_up(length: int, size: int) -> None:
    assert fragment_size(Code.of(4, 2), length) == size


def test_blocks_cover_a_fragment() -> None:
    sizes = (0, 1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 5 * BLOCK_SIZE)
    assert [block_count(size) for size in sizes] == [0, 1, 1, 1, 2, 5]


def test_a_range_that_crosses_fragments_is_cut_at_their_borders() -> None:
    code = Code.of(4, 2)
    assert fragment_ranges(code, 38, 7, 31) == [  # F = 10
        FragmentRange(index=0, start=7, stop=10),
        FragmentRange(index=1, start=0, stop=10),
        FragmentRange(index=2, start=0, stop=10),
        FragmentRange(index=3, start=0, stop=1),
    ]
    assert fragment_ranges(code, 38, 10, 20) == [FragmentRange(index=1, start=0, stop=10)]
    assert fragment_ranges(code, 38, 37, 38) == [FragmentRange(index=3, start=7, stop=8)]
    assert fragment_ranges(code, 38, 10, 10) == []
    assert fragment_ranges(code, 0, 0, 0) == []


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 39), (39, 39)])
def test_a_range_outside_its_stripe_is_refused(start: int, stop: int) -> None:
    with pytest.raises(InvalidInputError):
        fragment_ranges(Code.of(4, 2), 38, start, stop)
    with pytest.raises(InvalidInputError):
        widen_to_blocks(start, stop, 38)


def test_a_range_is_widened_to_the_blocks_that_verify_it_and_no_further() -> None:
    size = 3 * BLOCK_SIZE + 100
    assert widen_to_blocks(0, 1, size) == (0, BLOCK_SIZE)
    assert widen_to_blocks(BLOCK_SIZE, 2 * BLOCK_SIZE, size) == (BLOCK_SIZE, 2 * BLOCK_SIZE)
    assert widen_to_blocks(BLOCK_SIZE - 1, BLOCK_SIZE + 1, size) == (0, 2 * BLOCK_SIZE)
    assert widen_to_blocks(size - 1, size, size) == (3 * BLOCK_SIZE, size)
    assert widen_to_blocks(5, 5, size) == (5, 5)
