"""A load planner that tells all differences at once, before anything is written."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.tensor import DTensor

from objckpt.dcp.tensors import dtype_name
from objckpt.errors import MismatchError


class LoadPlanner(DefaultLoadPlanner):
    """``DefaultLoadPlanner`` with one report of every missing key and every wrong shape, type or kind.

    Attributes:
        unexpected: Keys of the checkpoint that the state does not ask for; no error.
    """

    unexpected: tuple[str, ...] = ()

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        stored = self.metadata.state_dict_metadata
        wanted: dict[str, Any] = self.state_dict
        problems: list[str] = []
        for fqn, value in wanted.items():
            entry = stored.get(fqn)
            if entry is None:
                if not self.allow_partial_load:
                    problems.append(f"{fqn!r} is not in the checkpoint")
            else:
                problem = _difference(fqn, value, entry)
                if problem is not None:
                    problems.append(problem)
        self.unexpected = tuple(sorted(set(stored) - set(wanted)))
        if problems:
            extra = f"; not asked for: {', '.join(map(repr, self.unexpected[:20]))}" if self.unexpected else ""
            raise MismatchError(
                f"the state does not fit the checkpoint in {len(problems)} places: " + "; ".join(problems) + extra,
                hint="nothing was loaded; make the state like the one that was saved",
            )
        return super().create_local_plan()


def _difference(fqn: str, value: Any, entry: Any) -> str | None:
    is_tensor = isinstance(value, torch.Tensor)
    if isinstance(entry, TensorStorageMetadata) != is_tensor:
        return f"{fqn!r} is {'a tensor' if is_tensor else 'an object'} here and not in the checkpoint"
    if not is_tensor or not isinstance(entry, TensorStorageMetadata):
        return None
    shape = tuple(value.shape if not isinstance(value, DTensor) else value.size())
    if shape != tuple(entry.size):
        return f"{fqn!r} has shape {list(shape)}, the checkpoint {list(entry.size)}"
    if value.dtype != entry.properties.dtype:
        return f"{fqn!r} is {dtype_name(value.dtype)}, the checkpoint {dtype_name(entry.properties.dtype)}"
    return None
