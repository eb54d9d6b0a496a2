"""The safetensors file as a plan: which tensor lies where, and the header that says so. Knows no torch.

A file is an 8-byte little-endian length, a JSON header padded with spaces, and the tensors without gaps,
widest items first, so that each is aligned. Source: the safetensors format,
https://github.com/huggingface/safetensors. Names of types are torch's (``bfloat16``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from objckpt.errors import InvalidInputError
from objckpt.units import MiB

HEADER_LIMIT = 64 * MiB
"""Files are split before their header passes this; readers of safetensors refuse 100 MB (H03)."""

RESERVED = "__metadata__"

CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
"""Types that safetensors has a code for; the others are stored as bytes, their true type in the shard's index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlot:
    """A tensor, or a box of one, that goes into a file.

    Attributes:
        fqn: Its name, also in the file.
        dtype: torch's name of its type.
        itemsize: Bytes per element.
        sizes: Shape of the box.
        offsets: Where the box lies in the whole tensor.
        number: The caller's own number for it.
    """

    fqn: str
    dtype: str
    itemsize: int
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    number: int

    @property
    def size(self) -> int:
        """Bytes."""
        count = self.itemsize
        for size in self.sizes:
            count *= size
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """One file: its first bytes, and the slots in order with their first byte in the file."""

    header: bytes
    slots: tuple[TensorSlot, ...]
    starts: tuple[int, ...]


def plan_files(
    slots: Sequence[TensorSlot], *, extra: dict[str, str], header_limit: int = HEADER_LIMIT
) -> list[FilePlan]:
    """Distributes slots over as few files as names and header sizes allow.

    Args:
        slots: Several boxes of one tensor go into several files, since a name stands once in a file.
        extra: Further ``__metadata__`` of every file.

    Raises:
        InvalidInputError: A tensor has the one name that safetensors keeps for itself.
    """
    files: list[list[TensorSlot]] = []
    weights: list[int] = []
    times: dict[str, int] = {}
    for slot in slots:
        if slot.fqn == RESERVED:
            raise InvalidInputError(
                f"{RESERVED!r} cannot name a tensor", hint="safetensors keeps it for itself: rename it"
            )
        weight = len(_entry(slot, 0)) + len(_sharding({slot.fqn: slot})) + 64
        at = times.get(slot.fqn, 0)
        while at < len(files) and weights[at] + weight > header_limit:
            at += 1
        if at == len(files):
            files.append([])
            weights.append(0)
        files[at].append(slot)
        weights[at] += weight
        times[slot.fqn] = at + 1
    return [_plan(file, extra) for file in files]


def _plan(slots: list[TensorSlot], extra: dict[str, str]) -> FilePlan:
    ordered = sorted(slots, key=lambda slot: -slot.itemsize)
    starts: list[int] = []
    parts = [f'"{RESERVED}":' + json.dumps({"DCP_SHARDING_INFO": _sharding({s.fqn: s for s in ordered}), **extra})]
    at = 0
    for slot in ordered:
        starts.append(at)
        parts.append(_entry(slot, at))
        at += slot.size
    body = ("{" + ",".join(parts) + "}").encode()
    body += b" " * (-len(body) % 8)
    header = len(body).to_bytes(8, "little") + body
    return FilePlan(header=header, slots=tuple(ordered), starts=tuple(len(header) + start for start in starts))


def _entry(slot: TensorSlot, start: int) -> str:
    code = CODES.get(slot.dtype)
    shape = list(slot.sizes) if code is not None else [slot.size]
    entry = {"dtype": code or "U8", "shape": shape, "data_offsets": [start, start + slot.size]}
    return f"{json.dumps(slot.fqn)}:{json.dumps(entry)}"


def _sharding(slots: dict[str, TensorSlot]) -> str:
    """The sharding information in the form that torch's own safetensors writer gives it."""
    return json.dumps({fqn: {"saved_offsets": list(slot.offsets)} for fqn, slot in slots.items()})
