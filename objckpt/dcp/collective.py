"""Acting on one rank for all: the result, or the error, reaches every rank as the same typed value."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def on_coordinator(act: Callable[[], T], *, process_group: Any = None, no_dist: bool = False) -> T:
    """Calls ``act`` on the group's first rank and gives every rank what it returned or raised.

    Without a process group, or with ``no_dist``, every process acts for itself.
    """
    if no_dist or not dist.is_available() or not dist.is_initialized():
        return act()
    first = dist.get_global_rank(process_group, 0) if process_group is not None else 0
    outcome: list[Any] = [None]
    if dist.get_rank() == first:
        try:
            outcome[0] = (True, act())
        except BaseException as error:
            # Whatever happened here, the others must not wait for it.
            dist.broadcast_object_list([(False, _portable(error))], src=first, group=process_group)
            raise
    dist.broadcast_object_list(outcome, src=first, group=process_group)
    succeeded, value = outcome[0]
    if not succeeded:
        raise value
    result: T = value
    return result


def _portable(error: BaseException) -> BaseException:
    """The error itself if it can travel, else one that says what it said."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes, to see whether they can be read
    except Exception:  # noqa: BLE001 - whatever keeps it from travelling, the other ranks must hear of it
        return RuntimeError(f"on the coordinator: {type(error).__name__}: {error}")
    return error
