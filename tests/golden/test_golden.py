"""What every released format stored is read, to the byte (D26)."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

import objckpt
from objckpt.format.manifest import (
    CatalogVersion,
    CheckpointManifest,
    Claim,
    Document,
    Marker,
    ShardManifest,
    decode,
    encode,
)
from tests.golden.make import BODY, config

V1 = Path(__file__).resolve().parent / "v1"
KINDS: dict[str, type[Document]] = {
    "markers": Marker,
    "claims": Claim,
    "catalog": CatalogVersion,
    "checkpoints": CheckpointManifest,
    "shards": ShardManifest,
}


def opened(folder: Path) -> objckpt.CheckpointStore:
    """The golden run, read from copies in directories: where it lies is not what it is."""
    shutil.copytree(V1, folder, dirs_exist_ok=True)
    targets = tuple(dataclasses.replace(t, url=str(folder / t.name)) for t in config().targets)
    return objckpt.open(dataclasses.replace(config(), targets=targets))


@pytest.mark.parametrize("kind", KINDS)
def test_control_objects_of_version_1_are_read_and_written_the_same(kind: str) -> None:
    paths = [path for path in sorted((V1 / "t0" / "golden" / kind).rglob("*")) if path.is_file()]
    assert paths
    for path in paths:
        key = str(path.relative_to(V1 / "t0" / "golden"))
        assert encode(decode(path.read_bytes(), KINDS[kind], key=key)) == path.read_bytes()


def test_checkpoints_of_version_1_are_read_to_the_byte(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert [entry.step for entry in store.checkpoints()] == [200, 100]
    for step in (100, 200):
        checkpoint = store.checkpoint(step)
        assert checkpoint.read_bytes("rank-00000.objects", 0, len(BODY)) == BODY
        assert checkpoint.manifest.user == {"loss": 0.5}
        assert store.verify(step, deep=True).whole


@pytest.mark.parametrize("lost", ["t0", "t1", "t2"])
def test_checkpoints_of_version_1_are_decoded_with_a_domain_lost(lost: str, tmp_path: Path) -> None:
    store = opened(tmp_path)
    shutil.rmtree(tmp_path / lost)
    assert store.checkpoint(100).read_bytes("rank-00000.objects", 0, len(BODY)) == BODY
    assert store.checkpoint(100).read_bytes("rank-00000.objects", 140_000, 140_010) == BODY[140_000:140_010]


def test_a_run_of_version_1_is_taken_over_and_goes_on(tmp_path: Path) -> None:
    store = opened(tmp_path)
    owned = store.create()
    assert owned.epoch.number == 2
    assert [entry.step for entry in store.checkpoints()] == [200, 100]
