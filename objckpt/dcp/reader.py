"""The storage reader: any state, any number of ranks, from the ranges that each rank needs.

The checkpoint is resolved once and carried along; all ranks must have resolved the same one. Types and
sizes are compared for all items before the first byte is written to the caller's tensors.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from objckpt.checkpoint.reading import Checkpoint
from objckpt.dcp.boxes import Box, BoxReader
from objckpt.dcp.metadata import Location, decode_metadata
from objckpt.dcp.tensors import dtype_name
from objckpt.dcp.writer import FRONT
from objckpt.errors import FormatError, InvalidInputError, MismatchError, ObjckptError, UnsafeObjectError

# What torch's restricted unpickler raises for a forbidden object, and for bytes that are none.
_REFUSALS = (
    pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, ImportError, LookupError, RuntimeError,
    TypeError, ValueError, struct.error,
)  # fmt: skip


class ObjckptReader(StorageReader):
    """Reads one checkpoint; made by ``Run.reader`` or ``CheckpointStore.reader``.

    Args:
        resolve: Finds the checkpoint, when DCP first asks.
        allow_pickles: Load stored Python objects without checking that they cannot run code.

    Attributes:
        error: What went wrong on this rank, as it was raised; DCP's own report may not say.
    """

    def __init__(self, resolve: Callable[[], Checkpoint], *, allow_pickles: bool = False) -> None:
        super().__init__()
        self.error: ObjckptError | None = None
        self._resolve = resolve
        self._allow_pickles = allow_pickles
        self._checkpoint: Checkpoint | None = None
        self._metadata: Metadata | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that is read; resolved when it is first asked for."""
        if self._checkpoint is None:
            self._checkpoint = self._resolve()
        return self._checkpoint

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """DCP's hook; which checkpoint is read was settled when the reader was made."""
        if checkpoint_id is not None:
            raise InvalidInputError(
                f"checkpoint_id={os.fspath(checkpoint_id)!r} has no meaning here",
                hint="leave it out: store.reader(step=...) names the checkpoint",
            )

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if "rank" in kwargs:
            # DCP tries this after a failure. If it worked on one rank alone, the job would hang.
            raise InvalidInputError(
                "objckpt has no metadata of single ranks",
                hint="the original error is in `reader.error`" if self.error is None else str(self.error),
            )
        try:
            checkpoint = self.checkpoint
            if checkpoint.manifest.front != FRONT:
                raise FormatError(
                    f"the checkpoint was written by {checkpoint.manifest.front!r}, not through DCP",
                    step=checkpoint.step,
                )
            lengths = {shard.name: shard.length for shard in checkpoint.shards}
            return decode_metadata(checkpoint.metadata(), lengths)
        except ObjckptError as error:
            self.error = error
            raise

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return replace(plan, storage_data=self.checkpoint.id)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        found = {str(plan.storage_data): rank for rank, plan in reversed(list(enumerate(plans)))}
        if len(found) > 1:
            named = ", ".join(f"{checkpoint} (rank {rank})" for checkpoint, rank in sorted(found.items()))
            raise InvalidInputError(
                f"ranks have found different checkpoints: {named}",
                hint="a save was committed between them: load again, name the step, or use run.reader()",
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        try:
            # Objects first: an unsafe one is found before the caller's tensors are touched.
            objects = [(item, self._object(item)) for item in plan.items if item.type is LoadItemType.BYTE_IO]
            self._read_tensors([item for item in plan.items if item.type is not LoadItemType.BYTE_IO], planner)
            for item, body in objects:
                planner.load_bytes(item, body)
        except ObjckptError as error:
            self.error = error
            raise
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """False: readers are made by a store, never found by a path."""
        return False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_resolve": None, "_checkpoint": self.checkpoint}

    def _read_tensors(self, items: list[ReadItem], planner: LoadPlanner) -> None:
        targets = [planner.resolve_tensor(item) for item in items]
        boxes: dict[tuple[int, str], list[Box]] = {}
        seen: Counter[int] = Counter()
        problems: list[str] = []
        for item, target in zip(items, targets, strict=True):
            location = self._location(item.storage_index)
            dtype, sizes = self._stored(item.storage_index)
            fqn = item.storage_index.fqn
            if tuple(target.shape) != tuple(item.lengths):
                problems.append(f"{fqn!r} wants {list(item.lengths)} of a tensor of {list(target.shape)}")
            elif target.is_meta:
                problems.append(f"{fqn!r} is on the meta device, which holds no values")
            elif target.dtype != dtype:
                problems.append(f"{fqn!r} is {dtype_name(target.dtype)}, the checkpoint {dtype_name(dtype)}")
            else:
                box = Box(
                    start=location.start,
                    sizes=sizes,
                    offsets=tuple(item.storage_offsets),
                    lengths=tuple(item.lengths),
                    target=target.detach(),
                )
                # Two keys may load into one tensor: one after the other, or they would verify each other's bytes.
                turn = seen[target.data_ptr()] if target.numel() else 0
                seen[target.data_ptr()] += 1
                boxes.setdefault((turn, location.shard), []).append(box)
        if problems:
            raise MismatchError(
                f"the state does not fit the checkpoint in {len(problems)} places: " + "; ".join(problems),
                hint="nothing was loaded; make the state like the one that was saved",
                step=self.checkpoint.step,
            )
        for (_, shard), of_shard in sorted(boxes.items()):
            BoxReader(self.checkpoint, shard).read(of_shard)
        for item, target in zip(items, targets, strict=True):
            planner.commit_tensor(item, target)

    def _object(self, item: ReadItem) -> io.BytesIO:
        location = self._location(item.storage_index)
        body = self.checkpoint.read_bytes(location.shard, location.start, location.stop)
        if not self._allow_pickles:
            try:
                torch.load(io.BytesIO(body), weights_only=True)
            except _REFUSALS as error:
                raise UnsafeObjectError(
                    f"{item.storage_index.fqn!r} cannot be loaded without running code that is stored with it",
                    hint="store plain values; or, if all who can write to the store are trusted, set"
                    " read.allow_pickles = true",
                    step=self.checkpoint.step,
                ) from error
        return io.BytesIO(body)

    def _location(self, index: MetadataIndex) -> Location:
        assert self._metadata is not None
        found = self._metadata.storage_data.get(index)
        if not isinstance(found, Location):
            raise FormatError(f"the checkpoint does not say where {index.fqn!r} at {index.offset} is")
        return found

    def _stored(self, index: MetadataIndex) -> tuple[torch.dtype, tuple[int, ...]]:
        """Type and shape of a stored chunk."""
        assert self._metadata is not None
        entry = self._metadata.state_dict_metadata[index.fqn]
        if not isinstance(entry, TensorStorageMetadata):
            raise FormatError(f"{index.fqn!r} is not a tensor in the checkpoint")
        hint = index.index
        if hint is not None and hint < len(entry.chunks) and entry.chunks[hint].offsets == index.offset:
            return entry.properties.dtype, tuple(entry.chunks[hint].sizes)
        for chunk in entry.chunks:
            if chunk.offsets == index.offset:
                return entry.properties.dtype, tuple(chunk.sizes)
        raise FormatError(f"{index.fqn!r} has no chunk at {index.offset}")
