"""DCP on several ranks; each test is one start of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import cases
from tests.distributed.launch import launch


def test_any_number_of_ranks_loads_what_any_number_saved(tmp_path: Path) -> None:
    """D06: uneven shards, ranks with nothing, columns; 1 to 4 ranks each way."""
    launch(4, cases.reshard, str(tmp_path))


def test_an_fsdp_model_and_its_optimizer_come_back_bit_for_bit(tmp_path: Path) -> None:
    """D01 and trap 1: plain, with cached plans, and asynchronously while training goes on."""
    launch(2, cases.fsdp, str(tmp_path))


def test_an_fsdp_model_goes_on_with_any_other_number_of_ranks(tmp_path: Path) -> None:
    """D06: the optimizer's state too; 1 to 4 ranks each way, and meshes of two dimensions."""
    launch(4, cases.fsdp_on_other_ranks, str(tmp_path))


def test_what_one_rank_finds_or_fails_at_reaches_all(tmp_path: Path) -> None:
    """D04, D11, D16: with three ranks, of which one fails in planning, in the commit, in a template."""
    launch(3, cases.what_one_rank_does, str(tmp_path))


def test_a_save_in_another_process_keeps_the_values_of_the_call(tmp_path: Path) -> None:
    """D20 and trap 7: the writer is handed over, once."""
    launch(2, cases.in_a_process, str(tmp_path))


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_error_on_one_rank_reaches_all_by_name(ranks: int, tmp_path: Path) -> None:
    """D05, D15, D16 and traps 4, 5, 6."""
    launch(ranks, cases.failures, str(tmp_path))


def test_ranks_never_load_different_checkpoints(tmp_path: Path) -> None:
    """Trap 3, and P10: the job that lost the run is told."""
    launch(2, cases.between_two_ranks, str(tmp_path))


def test_a_load_that_cannot_be_served_counts_the_fragments_on_all_ranks(tmp_path: Path) -> None:
    launch(2, cases.without_enough, str(tmp_path))
