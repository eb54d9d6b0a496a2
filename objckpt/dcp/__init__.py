"""The plugin for torch.distributed.checkpoint: a storage writer, a storage reader, a load planner."""

from objckpt.dcp.causes import cause
from objckpt.dcp.planner import LoadPlanner
from objckpt.dcp.reader import ObjckptReader
from objckpt.dcp.writer import ObjckptWriter

__all__ = ["LoadPlanner", "ObjckptReader", "ObjckptWriter", "cause"]
