"""DCP's Metadata as plain JSON documents, and back. What is read is checked before anything is allocated.

The first document holds what belongs to the whole: the names of the shards and the planner's data. The
others hold entries by key, a part of the keys each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from objckpt.dcp.tensors import dtype_name, dtype_of
from objckpt.errors import FormatError, InvalidInputError
from objckpt.units import MiB

VERSION = 1
PART_SIZE = 1 * MiB

_LAYOUTS = {"strided": torch.strided}
_MEMORY_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
    "preserve_format": torch.preserve_format,
}


# Within what torch counts with: its own products wrap around beyond that.
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True, slots=True)
class Location:
    """Where the bytes of a chunk or an object are: ``[start, stop)`` of a shard."""

    shard: str
    start: int
    stop: int


class _Whole(msgspec.Struct, kw_only=True):
    version: int
    shards: list[str]
    planner: Any


class _Chunk(msgspec.Struct, kw_only=True, array_like=True):
    offsets: list[_Size]
    sizes: list[_Size]
    shard: _Size
    start: _Size
    stop: _Size


class _Tensor(msgspec.Struct, kw_only=True, tag="tensor", tag_field="kind"):
    dtype: str
    size: list[_Size]
    chunks: list[_Chunk]
    layout: str = "strided"
    memory_format: str = "contiguous_format"
    requires_grad: bool = False
    pin_memory: bool = False


class _Object(msgspec.Struct, kw_only=True, tag="object", tag_field="kind"):
    shard: _Size
    start: _Size
    stop: _Size


def encode_metadata(metadata: Metadata, locations: Mapping[MetadataIndex, Location]) -> list[bytes]:
    """Documents of about ``PART_SIZE`` each; ``metadata`` is left as it is.

    Args:
        locations: Where each chunk (by key and offset) and each object (by key) is.

    Raises:
        InvalidInputError: Something that was planned was not written, the plan leaves parts of a tensor out, or
            the planner's data are not plain.
    """
    shards = sorted({location.shard for location in locations.values()})
    numbers = {name: number for number, name in enumerate(shards)}
    whole = _Whole(version=VERSION, shards=shards, planner=_plain(metadata.planner_data))
    parts: list[bytes] = [msgspec.json.encode(whole)]
    held: list[bytes] = []
    size = 0
    missing: list[str] = []
    for fqn, entry in metadata.state_dict_metadata.items():
        encoded = _entry(fqn, entry, locations, numbers, missing)
        if encoded is None:
            continue
        held.append(msgspec.json.encode(fqn) + b":" + msgspec.json.encode(encoded))
        size += len(held[-1])
        if size >= PART_SIZE:
            parts.append(b"{" + b",".join(held) + b"}")
            held, size = [], 0
    if missing:
        shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise InvalidInputError(
            f"{len(missing)} planned items were not written by any rank: {shown}",
            hint="all ranks have to write through the same kind of writer and planner",
        )
    if held:
        parts.append(b"{" + b",".join(held) + b"}")
    return parts


def decode_metadata(parts: Sequence[bytes], lengths: Mapping[str, int]) -> Metadata:
    """Reads what ``encode_metadata`` wrote.

    Args:
        lengths: Bytes of each shard by its name; nothing may point beyond them.

    Raises:
        FormatError: Malformed, or it promises more than the shards hold.
    """
    try:
        whole = msgspec.json.decode(parts[0], type=_Whole)
        entries: dict[str, _Tensor | _Object] = {}
        for part in parts[1:]:
            entries |= msgspec.json.decode(part, type=dict[str, _Tensor | _Object])
        planner = _unplain(whole.planner)
    except (msgspec.DecodeError, IndexError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"the checkpoint's DCP metadata cannot be read: {error}") from error
    if whole.version != VERSION:
        raise FormatError(f"DCP metadata of version {whole.version}", hint="use a newer release of objckpt")
    state: dict[str, Any] = {}
    storage: dict[MetadataIndex, Location] = {}
    promised = 0
    for fqn, entry in entries.items():
        if isinstance(entry, _Object):
            location = storage[MetadataIndex(fqn)] = _location(fqn, entry, whole.shards, lengths)
            state[fqn] = BytesStorageMetadata()
            promised += location.stop - location.start
            continue
        state[fqn] = _tensor(fqn, entry)
        for number, chunk in enumerate(entry.chunks):
            location = _location(fqn, chunk, whole.shards, lengths)
            planned = math.prod(chunk.sizes) * state[fqn].properties.dtype.itemsize
            if location.stop - location.start != planned:
                raise FormatError(f"{fqn!r} has {location.stop - location.start} bytes where {planned} belong")
            storage[MetadataIndex(fqn, torch.Size(chunk.offsets), number)] = location
            promised += planned
    if promised > sum(lengths.values()):
        # The same bytes named many times: each range exists, the memory that a loader would allocate does not.
        raise FormatError(f"the entries say {promised} bytes, the shards have {sum(lengths.values())}")
    return Metadata(state_dict_metadata=state, planner_data=planner, storage_data=storage)


def _entry(
    fqn: str,
    entry: Any,
    locations: Mapping[MetadataIndex, Location],
    numbers: Mapping[str, int],
    missing: list[str],
) -> _Tensor | _Object | None:
    if isinstance(entry, BytesStorageMetadata):
        found = locations.get(MetadataIndex(fqn))
        if found is None:
            missing.append(repr(fqn))
            return None
        return _Object(shard=numbers[found.shard], start=found.start, stop=found.stop)
    chunks: list[_Chunk] = []
    for chunk in entry.chunks:
        found = locations.get(MetadataIndex(fqn, chunk.offsets))
        if found is None:
            missing.append(f"{fqn!r} at {list(chunk.offsets)}")
            continue
        chunks.append(
            _Chunk(
                offsets=list(chunk.offsets), sizes=list(chunk.sizes), shard=numbers[found.shard],
                start=found.start, stop=found.stop,
            )
        )  # fmt: skip
    left_out = math.prod(entry.size) - sum(math.prod(chunk.sizes) for chunk in entry.chunks)
    if left_out > 0:
        # With one rank, torch does not compare; what is committed has to be loadable.
        raise InvalidInputError(
            f"the plan leaves out {left_out} elements of {fqn!r}, which is {list(entry.size)}",
            hint="save on all ranks that hold a part of it, in one process group",
        )
    properties = entry.properties
    return _Tensor(
        dtype=dtype_name(properties.dtype),
        size=list(entry.size),
        chunks=chunks,
        layout=str(properties.layout).removeprefix("torch."),
        memory_format=str(properties.memory_format).removeprefix("torch."),
        requires_grad=properties.requires_grad,
        pin_memory=properties.pin_memory,
    )


def _tensor(fqn: str, entry: _Tensor) -> TensorStorageMetadata:
    dtype = dtype_of(entry.dtype)
    layout = _LAYOUTS.get(entry.layout)
    memory_format = _MEMORY_FORMATS.get(entry.memory_format)
    if layout is None or memory_format is None:
        raise FormatError(f"{fqn!r} has layout {entry.layout!r}, {entry.memory_format!r}, which are not known")
    dimensions = len(entry.size)
    for chunk in entry.chunks:
        inside = len(chunk.offsets) == len(chunk.sizes) == dimensions and all(
            offset + size <= whole for offset, size, whole in zip(chunk.offsets, chunk.sizes, entry.size, strict=True)
        )
        if not inside:
            raise FormatError(f"{fqn!r} has a chunk {chunk.offsets}+{chunk.sizes} outside of {entry.size}")
    covered = sum(math.prod(chunk.sizes) for chunk in entry.chunks)
    if math.prod(entry.size) > covered:
        # A loader allocates what the size says: it may not say more than is stored.
        raise FormatError(f"{fqn!r} says that it is {entry.size}, but {covered} elements are stored")
    properties = TensorProperties(
        dtype=dtype,
        layout=layout,
        requires_grad=entry.requires_grad,
        memory_format=memory_format,
        pin_memory=entry.pin_memory,
    )
    return TensorStorageMetadata(
        properties=properties,
        size=torch.Size(entry.size),
        chunks=[
            ChunkStorageMetadata(offsets=torch.Size(chunk.offsets), sizes=torch.Size(chunk.sizes))
            for chunk in entry.chunks
        ],
    )


def _location(fqn: str, entry: _Chunk | _Object, shards: list[str], lengths: Mapping[str, int]) -> Location:
    name = shards[entry.shard] if entry.shard < len(shards) else ""
    if not entry.start <= entry.stop <= lengths.get(name, -1):
        raise FormatError(f"{fqn!r} lies at [{entry.start}, {entry.stop}) of shard {name!r}, which is not there")
    return Location(name, entry.start, entry.stop)


def _plain(value: Any) -> Any:
    """Python values as JSON that keeps tuples, lists and keys of any plain kind apart."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return {"t": [_plain(item) for item in value]}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {"d": [[_plain(key), _plain(item)] for key, item in value.items()]}
    raise InvalidInputError(
        f"the planner's data hold a {type(value).__name__}, which is not plain data",
        hint="planner_data may hold None, bool, int, float, str, tuple, list and dict",
    )


def _unplain(value: Any) -> Any:
    if isinstance(value, list):
        return [_unplain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("t"), list):
        return tuple(_unplain(item) for item in value["t"])
    pairs = value.get("d")
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise FormatError("the planner's data are not of a known form")
    try:
        return {_unplain(key): _unplain(item) for key, item in pairs}
    except TypeError as error:
        raise FormatError("the planner's data have a key of an impossible kind") from error
