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
