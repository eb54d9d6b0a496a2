"""Shard files: what the safetensors library reads is what was planned."""

from __future__ import annotations

import json
import tempfile
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from objckpt.errors import InvalidInputError
from objckpt.format.shardfile import CODES, FilePlan, TensorSlot, plan_files


def slot(fqn: str, *sizes: int, dtype: str = "float32", offsets: tuple[int, ...] = (), number: int = 0) -> TensorSlot:
    itemsize = getattr(torch, dtype).itemsize
    return TensorSlot(
        fqn=fqn, dtype=dtype, itemsize=itemsize, sizes=sizes, offsets=offsets or (0,) * len(sizes), number=number
    )


def header(file: FilePlan) -> dict[str, Any]:
    length = int.from_bytes(file.header[:8], "little")
    assert len(file.header) == 8 + length
    found: dict[str, Any] = json.loads(file.header[8:])
    return found


def whole(file: FilePlan, bodies: dict[str, bytes]) -> bytes:
    return file.header + b"".join(bodies[found.fqn] for found in file.slots)


def loaded(body: bytes) -> dict[str, torch.Tensor]:
    """By the library's reader of files; its reader of bytes knows fewer types."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(body)
        file.flush()
        return {name: tensor.clone() for name, tensor in load_file(file.name).items()}


def test_the_safetensors_library_reads_every_type_that_it_has_a_code_for() -> None:
    """H05: by the codes that the library itself knows."""
    slots = [slot(name, 3, 2, dtype=name) for name in sorted(CODES)]
    (file,) = plan_files(slots, extra={"format": "pt"})
    bodies = {s.fqn: bytes((i * 7 + len(s.fqn)) % 2 for i in range(s.size)) for s in slots}
    found = loaded(whole(file, bodies))
    assert set(found) == set(CODES)
    for name, tensor in found.items():
        assert tensor.dtype == getattr(torch, name)
        assert tensor.shape == (3, 2)
        assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == bodies[name]


@pytest.mark.parametrize("dtype", ["complex128", "complex32", "float4_e2m1fn_x2", "float8_e4m3fnuz"])
def test_types_that_it_has_no_code_for_are_bytes(dtype: str) -> None:
    """H05: the library reads the file; the true type is the shard manifest's to say."""
    one = slot("w", 3, 4, dtype=dtype)
    (file,) = plan_files([one], extra={})
    body = bytes(range(one.size))
    found = loaded(whole(file, {"w": body}))["w"]
    assert found.dtype == torch.uint8
    assert found.numpy().tobytes() == body


def test_every_tensor_is_aligned_and_nothing_lies_between() -> None:
    """H03: widest first, so that each begins at a multiple of its item's size."""
    slots = [
        slot("odd", 3, dtype="uint8"),
        slot("wide", 5, dtype="float64"),
        slot("half", 7, dtype="bfloat16"),
        slot("widest", 1, dtype="complex128"),
        slot("single", 9),
        slot("empty", 0, 4),
        slot("scalar", dtype="int64"),
    ]
    (file,) = plan_files(slots, extra={})
    assert len(file.header) % 8 == 0
    at = len(file.header)
    for placed, start in zip(file.slots, file.starts, strict=True):
        assert start == at
        # The header's length is a multiple of 8: a wider item is aligned within the tensors' part.
        assert (start - len(file.header)) % placed.itemsize == 0
        assert start % min(placed.itemsize, 8) == 0
        at += placed.size
    assert header(file)["scalar"]["shape"] == []


def test_several_parts_of_one_tensor_go_into_several_files() -> None:
    slots = [slot("w", 2, 3, offsets=(row, 0), number=row) for row in (0, 2, 4)] + [slot("b", 3, number=3)]
    files = plan_files(slots, extra={})
    assert [[found.number for found in file.slots] for file in files] == [[0, 3], [2], [4]]
    for file, row in zip(files, (0, 2, 4), strict=True):
        sharding = json.loads(header(file)["__metadata__"]["DCP_SHARDING_INFO"])
        assert sharding["w"] == {"saved_offsets": [row, 0]}


def test_files_are_split_before_a_header_is_too_long_to_be_read() -> None:
    """H03: with the limit turned down; no tensor is lost or doubled."""
    slots = [slot("layer." + "x" * 200 + str(i), 1, number=i) for i in range(300)]
    files = plan_files(slots, extra={"format": "pt"}, header_limit=20_000)
    assert len(files) > 5
    assert all(len(file.header) <= 20_000 for file in files)
    assert sorted(found.number for file in files for found in file.slots) == list(range(300))


def test_the_reserved_name_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="__metadata__"):
        plan_files([slot("__metadata__", 1)], extra={})


def test_no_tensors_need_no_file() -> None:
    assert plan_files([], extra={}) == []


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")
sizes = st.lists(st.integers(0, 4), max_size=3)


@given(st.dictionaries(names, st.tuples(sizes, st.sampled_from(sorted(CODES))), min_size=1, max_size=8))
def test_any_names_and_shapes_make_a_file_that_the_library_reads(tensors: dict[str, tuple[list[int], str]]) -> None:
    slots = [slot(name, *shape, dtype=dtype) for name, (shape, dtype) in tensors.items()]
    (file,) = plan_files(slots, extra={"format": "pt"})
    bodies = {s.fqn: bytes(s.size) for s in slots}
    found = loaded(whole(file, bodies))
    assert {name: (list(t.shape), t.dtype) for name, t in found.items()} == {
        name: (shape, getattr(torch, dtype)) for name, (shape, dtype) in tensors.items()
    }
