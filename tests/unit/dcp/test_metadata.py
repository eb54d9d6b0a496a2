"""DCP's Metadata as plain documents: exactly back, and nothing believed that the shards do not bear out."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from objckpt.dcp.metadata import PART_SIZE, Location, decode_metadata, encode_metadata
from objckpt.errors import FormatError, InvalidInputError


def tensor(
    *size: int, chunks: list[tuple[list[int], list[int]]], dtype: torch.dtype = torch.float32
) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=dtype, requires_grad=True),
        size=torch.Size(size),
        chunks=[ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in chunks],
    )


def example() -> tuple[Metadata, dict[MetadataIndex, Location]]:
    metadata = Metadata(
        state_dict_metadata={
            "w": tensor(4, 3, chunks=[([0, 0], [2, 3]), ([2, 0], [2, 3])]),
            "scalar": tensor(chunks=[([], [])], dtype=torch.bfloat16),
            "none": tensor(0, 3, chunks=[([0, 0], [0, 3])]),
            "o": BytesStorageMetadata(),
        },
        planner_data={"w": ("model", 0, "w"), "o": ("o", "1", 1, -5), "scalar": ("a.b",), "none": ()},
    )
    locations = {
        MetadataIndex("w", torch.Size([0, 0])): Location("r0", 100, 124),
        MetadataIndex("w", torch.Size([2, 0])): Location("r1", 100, 124),
        MetadataIndex("scalar", torch.Size([])): Location("r0", 124, 126),
        MetadataIndex("none", torch.Size([0, 0])): Location("r0", 126, 126),
        MetadataIndex("o"): Location("objects", 0, 10),
    }
    return metadata, locations


LENGTHS = {"r0": 126, "r1": 124, "objects": 10}


def test_what_is_decoded_is_what_was_encoded() -> None:
    """Trap 19: paths of text and numbers, tuples."""
    metadata, locations = example()
    found = decode_metadata(encode_metadata(metadata, locations), LENGTHS)
    assert found.state_dict_metadata == metadata.state_dict_metadata
    assert found.planner_data == metadata.planner_data
    assert all(isinstance(path, tuple) for path in found.planner_data.values())
    assert [type(part) for part in found.planner_data["o"]] == [str, str, int, int]
    assert dict(found.storage_data) == locations


def test_encoding_leaves_the_metadata_as_they_were() -> None:
    """Trap 1: DCP keeps the object for the next save."""
    metadata, locations = example()
    before = copy.deepcopy(metadata)
    encode_metadata(metadata, locations)
    assert metadata == before


def test_many_keys_become_parts_of_bounded_size_that_nothing_is_lost_from() -> None:
    count = 12_000
    metadata = Metadata(
        state_dict_metadata={f"layer.{i:06d}.weight": tensor(1, chunks=[([0], [1])]) for i in range(count)},
        planner_data=None,
    )
    locations = {
        MetadataIndex(name, torch.Size([0])): Location("r0", 4 * i, 4 * i + 4)
        for i, name in enumerate(metadata.state_dict_metadata)
    }
    parts = encode_metadata(metadata, locations)
    assert len(parts) > 2
    assert all(len(part) < 1.1 * PART_SIZE for part in parts)
    found = decode_metadata(parts, {"r0": 4 * count})
    assert list(found.state_dict_metadata) == list(metadata.state_dict_metadata)
    assert dict(found.storage_data) == locations


def test_what_no_rank_wrote_is_named() -> None:
    metadata, locations = example()
    del locations[MetadataIndex("w", torch.Size([2, 0]))]
    del locations[MetadataIndex("o")]
    with pytest.raises(InvalidInputError, match=r"2 planned items .*'w' at \[2, 0\], 'o'"):
        encode_metadata(metadata, locations)


def test_a_plan_that_leaves_part_of_a_tensor_out_is_refused_before_it_is_committed() -> None:
    """With one rank torch does not look; the checkpoint could never be loaded."""
    metadata, locations = example()
    metadata.state_dict_metadata["w"].chunks.pop()
    with pytest.raises(InvalidInputError, match="leaves out 6 elements of 'w'"):
        encode_metadata(metadata, locations)


def test_planner_data_that_are_not_plain_are_refused() -> None:
    metadata, locations = example()
    metadata.planner_data = {"w": {1, 2}}
    with pytest.raises(InvalidInputError, match="a set"):
        encode_metadata(metadata, locations)


def documents() -> list[Any]:
    metadata, locations = example()
    return [json.loads(part) for part in encode_metadata(metadata, locations)]


def damage(change: str) -> list[bytes]:
    """The example's documents after one statement on ``whole`` (the first) and ``parts`` (the entries by key)."""
    whole, entries = documents()
    exec(change, {"whole": whole, "entries": entries})  # noqa: S102 - the parameters below
    return [json.dumps(whole).encode(), json.dumps(entries).encode()]


# A chunk is [offsets, sizes, shard, start, stop]; shards are in order of their names: objects, r0, r1.
@pytest.mark.parametrize(
    "change",
    [
        "whole['version'] = 2",
        "whole['shards'] = []",
        "del whole['shards']",
        "whole['planner'] = {'x': 1}",
        "whole['planner'] = {'d': [[1]]}",
        "whole['planner'] = {'d': [[[1], 2]]}",
        "entries['w']['size'] = [-4, 3]",
        "entries['w']['size'] = [4, 4]",
        "entries['w']['size'] = [4]",
        "entries['w']['size'] = [2**32, 2**32]",
        "entries['w']['size'] = [2**62, 4]",
        "entries['w']['size'] = [2**80, 0]",
        "entries['w']['size'] = [True, 3]",
        "entries['w']['dtype'] = 'nn'",
        "entries['w']['dtype'] = 'strided'",
        "entries['w']['dtype'] = '__name__'",
        "entries['w']['dtype'] = 'float64'",
        "entries['w']['layout'] = 'sparse_coo'",
        "entries['w']['memory_format'] = 'x'",
        "entries['w']['kind'] = 'thing'",
        "entries['w']['chunks'] = []",
        "entries['w']['chunks'][0][0] = [-1, 0]",
        "entries['w']['chunks'][0][0] = [3, 0]",
        "entries['w']['chunks'][0][1] = [2**32, 2**32]",
        "entries['w']['chunks'][0][2] = 3",
        "entries['w']['chunks'][0][2] = -1",
        "entries['w']['chunks'][0][3] = 99",
        "entries['w']['chunks'][0][3:] = [-24, 0]",
        "entries['w']['chunks'][0][3:] = [110, 134]",
        "entries['w']['chunks'][0][3:] = [124, 100]",
        "entries['o']['stop'] = 11",
        "entries['o']['start'] = -1",
        "entries['o']['shard'] = 9",
        "entries['none']['size'] = [2**40, 3]",
    ],
)
def test_what_contradicts_itself_or_the_shards_is_refused(change: str) -> None:
    with pytest.raises(FormatError):
        decode_metadata(damage(change), LENGTHS)


def test_the_same_bytes_cannot_be_named_until_memory_is_exhausted() -> None:
    """Every range exists; a loader that allocates what the sizes say would still need far more than is stored."""
    whole, entries = documents()
    chunk = entries["w"]["chunks"][0]
    entries["w"]["size"] = [2000, 3]
    entries["w"]["chunks"] = [[[2 * i, 0], *chunk[1:]] for i in range(1000)]
    with pytest.raises(FormatError, match="the shards have"):
        decode_metadata([json.dumps(whole).encode(), json.dumps(entries).encode()], LENGTHS)


@pytest.mark.parametrize("parts", [[], [b""], [b"{}"], [b"[" * 100_000], [b"\x80\x04\x95."], [b'"\xff"']])
def test_bytes_that_are_no_documents_are_refused(parts: list[bytes]) -> None:
    with pytest.raises(FormatError):
        decode_metadata(parts, LENGTHS)
