"""objckpt: erasure-coded checkpoint storage for PyTorch Distributed Checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from objckpt.api import CheckpointStore, Run, open
from objckpt.config import CodeConfig, ReadPolicy, StoreConfig, TargetConfig, TransferConfig, WritePolicy
from objckpt.errors import FencedError, NotFoundError, ObjckptError, QuorumError
from objckpt.version import __version__

if TYPE_CHECKING:
    from objckpt.dcp import LoadPlanner, cause

__all__ = [
    "CheckpointStore",
    "CodeConfig",
    "FencedError",
    "LoadPlanner",
    "NotFoundError",
    "ObjckptError",
    "QuorumError",
    "ReadPolicy",
    "Run",
    "StoreConfig",
    "TargetConfig",
    "TransferConfig",
    "WritePolicy",
    "__version__",
    "cause",
    "open",
]


def __getattr__(name: str) -> Any:
    # torch is imported only by those who need it: the command line starts without.
    if name in ("LoadPlanner", "cause"):
        from objckpt import dcp

        return getattr(dcp, name)
    raise AttributeError(name)
