"""Runs a function on several gloo ranks, each a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def launch(ranks: int, case: Callable[..., None], *arguments: Any) -> None:
    """Calls ``case(rank, *arguments)`` on every rank; what one raises is raised here.

    ``case`` is a module's own function, so that the processes find it.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, args=(ranks, str(Path(folder) / "rendezvous"), case, arguments), nprocs=ranks)


def _rank(rank: int, ranks: int, rendezvous: str, case: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    try:
        case(rank, *arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()
