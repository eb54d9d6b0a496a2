"""The storage writer: one rank's part of one ``dcp.save`` becomes shards; the coordinator commits them.

Nothing of one attempt travels in plans, since DCP may use a plan again for the next save. The cached
``Metadata`` is never changed. What the ranks report in their ``WriteResult`` is what ``finish`` ties together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from objckpt.checkpoint.attempt import SaveAttempt, SaveResult, Written
from objckpt.dcp.metadata import Location, encode_metadata
from objckpt.dcp.tensors import TensorSource, check_storable, dtype_name
from objckpt.errors import InternalError, InvalidInputError
from objckpt.format.manifest import Chunk
from objckpt.format.shardfile import FilePlan, TensorSlot, plan_files
from objckpt.transfer.upload import BytesSource, Source

FRONT = "dcp"

# What torch's own safetensors writer says of itself, so that its tools take the files for what they are.
_FILE_METADATA = {"DCP_VERSION": "1.0", "format": "pt"}


class _Structure(msgspec.Struct, frozen=True):
    """What a rank wants to save, for comparison with the others: key -> kind, type, global shape."""

    entries: dict[str, tuple[str, str, tuple[int, ...]]]


class _Report(msgspec.Struct, frozen=True):
    """What one rank wrote. ``places``: key, offsets (None for an object), shard's name, start, stop."""

    written: list[Written]
    places: list[tuple[str, list[int] | None, str, int, int]]


class ObjckptWriter(StorageWriter):
    """Writes one checkpoint; made by ``Run.writer`` for each save anew.

    Attributes:
        result: What was committed; on the coordinator, after the save.
    """

    def __init__(self, attempt: SaveAttempt, *, user: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.result: SaveResult | None = None
        self._attempt = attempt
        self._user = user or {}
        self._rank = 0
        self._used = False
        self._handed_over = False
        self._pid = os.getpid()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """DCP's hook; where a checkpoint goes was settled by ``run.writer(step=...)``."""
        if checkpoint_id is not None:
            raise InvalidInputError(
                f"checkpoint_id={os.fspath(checkpoint_id)!r} has no meaning here",
                hint="leave it out: run.writer(step=...) names the checkpoint",
            )

    def storage_meta(self) -> StorageMeta | None:
        return None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_collectives", True) is False:
            raise InvalidInputError(
                "use_collectives=False is not supported: its parts cannot be committed together",
                hint="save with use_collectives=True",
                step=self._attempt.step,
            )
        if self._handed_over or self._pid != os.getpid():
            raise InvalidInputError(
                "this writer belongs to another process, which may use it",
                hint="call run.writer(step=...) for each save",
                step=self._attempt.step,
            )
        if self._used:
            raise InvalidInputError(
                "a writer is for one save", hint="call run.writer(step=...) for each save", step=self._attempt.step
            )
        self._used = True
        self._rank = int(kwargs.get("rank") or 0)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        structure: dict[str, tuple[str, str, tuple[int, ...]]] = {}
        for item in plan.items:
            if item.tensor_data is None:
                structure[item.index.fqn] = ("object", "", ())
            else:
                data = item.tensor_data
                check_storable(item.index.fqn, data.properties.dtype, data.properties.layout)
                structure[item.index.fqn] = ("tensor", dtype_name(data.properties.dtype), tuple(data.size))
        return replace(plan, storage_data=_Structure(structure))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Refuses a key that means different things on different ranks (D05)."""
        seen: dict[str, tuple[int, tuple[str, str, tuple[int, ...]]]] = {}
        differences: list[str] = []
        for rank, plan in enumerate(plans):
            if not isinstance(plan.storage_data, _Structure):
                continue
            for fqn, entry in plan.storage_data.entries.items():
                first, other = seen.setdefault(fqn, (rank, entry))
                if other != entry:
                    differences.append(f"{fqn!r} is {_shown(other)} on rank {first} and {_shown(entry)} on rank {rank}")
        if differences:
            raise InvalidInputError(
                "ranks disagree about what they save: " + "; ".join(differences[:20]),
                hint="one key has to mean one tensor on all ranks; put a rank's own state under keys of its own",
                step=self._attempt.step,
            )
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors = [item for item in plan.items if item.type is not WriteItemType.BYTE_IO]
        objects = [item for item in plan.items if item.type is WriteItemType.BYTE_IO]
        report = _Report([], [])
        for number, file in enumerate(plan_files(_slots(tensors), extra=_FILE_METADATA)):
            suffix = f".{number}" if number else ""
            self._write_tensors(f"rank-{self._rank:05d}{suffix}.safetensors", file, tensors, planner, report)
        if objects:
            self._write_objects(f"rank-{self._rank:05d}.objects", objects, planner, report)
        size = sum(written.ref.length for written in report.written)
        future: Future[list[WriteResult]] = Future()
        future.set_result([WriteResult(MetadataIndex(f"rank-{self._rank:05d}"), size, msgspec.json.encode(report))])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written: list[Written] = []
        places: dict[MetadataIndex, Location] = {}
        for result in (result for of_rank in results for result in of_rank):
            report = msgspec.json.decode(result.storage_data, type=_Report)
            written.extend(report.written)
            for fqn, offsets, shard, start, stop in report.places:
                index = MetadataIndex(fqn, None if offsets is None else torch.Size(offsets))
                places[index] = Location(shard, start, stop)
        self.result = self._attempt.commit(
            written,
            front=FRONT,
            metadata=encode_metadata(metadata, places),
            user=self._user,
            versions={"torch": str(torch.__version__)},
        )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """False: writers are made by a run, never found by a path."""
        return False

    def __getstate__(self) -> dict[str, Any]:
        # Whoever unpickles the copy uses it; two users of one seq would be one too many.
        state = dict(self.__dict__)
        self._handed_over = True
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pid=os.getpid())

    def _write_tensors(
        self, name: str, file: FilePlan, items: Sequence[WriteItem], planner: SavePlanner, report: _Report
    ) -> None:
        sources: list[Source] = [BytesSource(file.header)]
        index: list[Chunk] = []
        for slot, start in zip(file.slots, file.starts, strict=True):
            item = items[slot.number]
            assert item.tensor_data is not None
            resolve = partial(_tensor_of, planner, item)
            sources.append(
                TensorSource(slot.fqn, sizes=slot.sizes, dtype=item.tensor_data.properties.dtype, resolve=resolve)
            )
            index.append(
                Chunk(
                    fqn=slot.fqn, start=start, stop=start + slot.size, dtype=slot.dtype, offsets=slot.offsets,
                    sizes=slot.sizes,
                )
            )  # fmt: skip
            report.places.append((slot.fqn, list(slot.offsets), name, start, start + slot.size))
        self._write(name, "safetensors", sources, index, report)

    def _write_objects(self, name: str, items: Sequence[WriteItem], planner: SavePlanner, report: _Report) -> None:
        sources: list[Source] = []
        index: list[Chunk] = []
        at = 0
        for item in items:
            # Serialised once: a second time need not give the same bytes.
            body = planner.resolve_data(item).getvalue()  # type: ignore[union-attr]
            sources.append(BytesSource(body))
            index.append(Chunk(fqn=item.index.fqn, start=at, stop=at + len(body)))
            report.places.append((item.index.fqn, None, name, at, at + len(body)))
            at += len(body)
        self._write(name, "opaque", sources, index, report)

    def _write(self, name: str, kind: Any, sources: Sequence[Source], index: Sequence[Chunk], report: _Report) -> None:
        report.written.append(
            self._attempt.write(
                name, kind=kind, sources=sources, index=tuple(index), rank=self._rank, counter=len(report.written)
            )
        )


def _slots(items: Sequence[WriteItem]) -> list[TensorSlot]:
    slots: list[TensorSlot] = []
    for number, item in enumerate(items):
        data = item.tensor_data
        if data is None:
            raise InternalError(f"the plan has a tensor {item.index.fqn!r} without its description")
        dtype = data.properties.dtype
        slots.append(
            TensorSlot(
                fqn=item.index.fqn,
                dtype=dtype_name(dtype),
                itemsize=dtype.itemsize,
                sizes=tuple(data.chunk.sizes),
                offsets=tuple(data.chunk.offsets),
                number=number,
            )
        )
    return slots


def _tensor_of(planner: SavePlanner, item: WriteItem) -> torch.Tensor:
    found = planner.resolve_data(item)
    if not isinstance(found, torch.Tensor):
        raise InvalidInputError(f"the planner gives {type(found).__name__} for the tensor {item.index.fqn!r}")
    return found


def _shown(entry: tuple[str, str, tuple[int, ...]]) -> str:
    kind, dtype, size = entry
    return kind if kind == "object" else f"{dtype}{list(size)}"
