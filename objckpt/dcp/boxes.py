"""Boxes of stored tensors into tensors: as few bytes as blocks allow, straight into memory where it is plain.

A box is contiguous in the stored chunk when only its outermost dimension is cut. Otherwise its rows are
read one by one, or, where rows are shorter than a block of checksums anyway, together with what lies between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from objckpt.checkpoint.reading import Checkpoint
from objckpt.coding.geometry import BLOCK_SIZE
from objckpt.dcp.tensors import copy_bits, memory_of
from objckpt.transfer.download import Piece
from objckpt.units import MiB

SCRATCH_SIZE = 32 * MiB
"""Bytes of tensors that cannot be read into directly are copied by way of so much scratch memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Part of a stored chunk and the tensor that receives it.

    Attributes:
        start: First byte of the chunk in its shard.
        sizes: Shape of the chunk.
        offsets: Where the box begins in the chunk.
        lengths: Shape of the box, which is the target's.
    """

    start: int
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    target: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Contiguous bytes that hold a box's rows, and the part of them that the target wants.

    ``shape`` is the shape of the bytes as elements; ``part`` cuts the target's elements out of it.
    """

    start: int
    shape: tuple[int, ...]
    part: tuple[slice, ...]
    target: torch.Tensor

    @property
    def size(self) -> int:
        return torch.Size(self.shape).numel() * self.target.element_size()


class BoxReader:
    """Reads boxes of one shard."""

    def __init__(self, checkpoint: Checkpoint, shard: str) -> None:
        self._checkpoint = checkpoint
        self._shard = shard

    def read(self, boxes: Sequence[Box]) -> None:
        """Fills the targets of all boxes."""
        direct: list[Piece] = []
        batch: list[tuple[_Run, torch.Tensor, Piece]] = []
        held = 0
        for box in boxes:
            for run in _runs(box):
                memory = memory_of(run.target) if not run.part else None
                if memory is not None:
                    direct.append(Piece(start=run.start, stop=run.start + run.size, into=memory))
                    continue
                if held + run.size > SCRATCH_SIZE:
                    self._copy(batch)
                    batch, held = [], 0
                scratch = torch.empty(run.shape, dtype=run.target.dtype)
                into = memory_of(scratch)
                assert into is not None
                batch.append((run, scratch, Piece(start=run.start, stop=run.start + run.size, into=into)))
                held += run.size
        self._copy(batch)
        self._checkpoint.read(self._shard, direct)

    def _copy(self, batch: list[tuple[_Run, torch.Tensor, Piece]]) -> None:
        self._checkpoint.read(self._shard, [piece for _, _, piece in batch])
        for run, scratch, _ in batch:
            copy_bits(run.target, scratch[run.part] if run.part else scratch)


def _runs(box: Box) -> Iterator[_Run]:
    item = box.target.element_size()
    if 0 in box.lengths:
        return
    if not box.lengths:
        yield _Run(start=box.start, shape=(), part=(), target=box.target)
        return
    row = torch.Size(box.sizes[1:]).numel() * item
    whole_rows = box.lengths[1:] == box.sizes[1:]
    if whole_rows or row <= BLOCK_SIZE:
        direct = whole_rows and memory_of(box.target) is not None
        step = box.lengths[0] if direct else max(1, SCRATCH_SIZE // 4 // row)
        if direct or row <= SCRATCH_SIZE // 4:
            for first in range(0, box.lengths[0], step):
                count = min(step, box.lengths[0] - first)
                inner = tuple(slice(o, o + n) for o, n in zip(box.offsets[1:], box.lengths[1:], strict=True))
                yield _Run(
                    start=box.start + (box.offsets[0] + first) * row,
                    shape=(count, *box.sizes[1:]),
                    part=() if whole_rows else (slice(None), *inner),
                    target=box.target if count == box.lengths[0] else box.target[first : first + count],
                )
            return
    for index in range(box.lengths[0]):
        yield from _runs(
            Box(
                start=box.start + (box.offsets[0] + index) * row,
                sizes=box.sizes[1:],
                offsets=box.offsets[1:],
                lengths=box.lengths[1:],
                target=box.target[index],
            )
        )
