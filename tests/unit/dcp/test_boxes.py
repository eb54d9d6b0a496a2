"""Boxes of stored tensors into tensors: the right elements, and not many more bytes than they have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import objckpt
from objckpt.checkpoint.reading import Checkpoint
from objckpt.coding.geometry import BLOCK_SIZE
from objckpt.dcp import boxes
from objckpt.dcp.boxes import Box, BoxReader
from objckpt.telemetry import RequestDone
from tests.places import Remembering

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

SHARD = "rank-00000.safetensors"

SHAPES = [
    (),
    (5,),
    (7, 11),
    (3, 4, 5, 2),
    (4, 30_000),  # rows of more than a block
    (2, 3, 20_000),  # rows of rows
    (300_000,),
    (200, 1, 300),
]


@dataclass(repr=False)
class Stored:
    checkpoint: Checkpoint
    seen: Remembering
    tensors: list[torch.Tensor]
    starts: list[int]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    folder: Path = tmp_path_factory.mktemp("boxes")
    seen = Remembering()
    tensors = [torch.randn(shape) for shape in SHAPES]
    with objckpt.open([f"{folder}/{name}/run" for name in "abc"], observer=seen) as store:
        state: dict[str, Any] = {str(i): tensor for i, tensor in enumerate(tensors)}
        dcp.save(state, storage_writer=store.begin(create=True).writer(step=1), no_dist=True)
        checkpoint = store.checkpoint()
        starts = {chunk.fqn: chunk.start for chunk in checkpoint.shard(SHARD).index}
        yield Stored(checkpoint, seen, tensors, [starts[str(i)] for i in range(len(tensors))])


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], str]:
    number = draw(st.integers(0, len(SHAPES) - 1))
    cut = []
    for size in SHAPES[number]:
        offset = draw(st.integers(0, size))
        cut.append((offset, draw(st.sampled_from(sorted({0, 1, size - offset, (size - offset) // 2})))))
    return (
        number,
        [(o, min(n, SHAPES[number][i] - o)) for i, (o, n) in enumerate(cut)],
        draw(st.sampled_from(["plain", "transposed", "stepped"])),
    )


def destination(lengths: tuple[int, ...], kind: str) -> torch.Tensor:
    if kind == "transposed":
        return torch.zeros(lengths[::-1]).permute(tuple(reversed(range(len(lengths)))))
    if kind == "stepped" and lengths:
        return torch.zeros(*lengths[:-1], 2 * lengths[-1])[..., ::2]
    return torch.zeros(lengths)


def box_of(stored: Stored, number: int, cut: list[tuple[int, int]], target: torch.Tensor) -> Box:
    return Box(
        start=stored.starts[number],
        sizes=SHAPES[number],
        offsets=tuple(offset for offset, _ in cut),
        lengths=tuple(length for _, length in cut),
        target=target,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(cuts(), min_size=1, max_size=4))
def test_any_boxes_of_any_tensors_arrive_in_destinations_of_any_strides(
    stored: Stored, wanted: list[tuple[int, list[tuple[int, int]], str]]
) -> None:
    targets = [destination(tuple(length for _, length in cut), kind) for _, cut, kind in wanted]
    reader = BoxReader(stored.checkpoint, SHARD)
    reader.read([box_of(stored, n, cut, t) for (n, cut, _), t in zip(wanted, targets, strict=True)])
    for (number, cut, _), target in zip(wanted, targets, strict=True):
        part = stored.tensors[number][tuple(slice(offset, offset + length) for offset, length in cut)]
        assert torch.equal(target, part)


def test_small_scratch_memory_gives_the_same(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever does not fit at once is read in turns."""
    monkeypatch.setattr(boxes, "SCRATCH_SIZE", 4096)
    for number, shape in enumerate(SHAPES):
        target = destination(shape, "stepped")
        BoxReader(stored.checkpoint, SHARD).read([box_of(stored, number, [(0, n) for n in shape], target)])
        assert torch.equal(target, stored.tensors[number])


@pytest.mark.parametrize(
    ("number", "cut"),
    [(4, [(1, 2), (5000, 10_000)]), (5, [(0, 2), (1, 1), (0, 20_000)]), (6, [(100_000, 50_000)]), (7, [(3, 90)])],
)
def test_a_box_costs_its_bytes_and_two_blocks_a_range(stored: Stored, number: int, cut: list[tuple[int, int]]) -> None:
    """D27, trap 14: columns of wide rows are read without what lies between them."""
    cut = [*cut, *[(0, n) for n in SHAPES[number][len(cut) :]]]
    target = torch.zeros([length for _, length in cut])
    ranges = math.prod(length for _, length in cut[:-1])
    stored.seen.events.clear()
    BoxReader(stored.checkpoint, SHARD).read([box_of(stored, number, cut, target)])
    gets = [event for event in stored.seen.of(RequestDone) if event.operation == "get" and "data/" in event.key]
    assert sum(event.size for event in gets) <= 4 * target.numel() + 2 * BLOCK_SIZE * max(ranges, len(gets))
