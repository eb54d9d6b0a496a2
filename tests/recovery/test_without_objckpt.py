"""The format outlives the tool: what is stored can be read with cat, safetensors, PyECLib and torch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyeclib.ec_iface
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

import objckpt
from objckpt.cli.main import main
from objckpt.format import keys
from tests.distributed import cases
from tests.distributed.launch import launch

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

STATE = {
    "w": torch.arange(300_000.0),
    "b": torch.arange(7, dtype=torch.int64),
    "h": torch.arange(9).to(torch.bfloat16),
    "f": torch.tensor([True, False]),
}


def saved(tmp_path: Path, *, data: int, parity: int) -> objckpt.CheckpointStore:
    config = objckpt.StoreConfig(
        run="run",
        targets=tuple(objckpt.TargetConfig(name=n, url=str(tmp_path / n)) for n in "abc"),
        code=objckpt.CodeConfig(data=data, parity=parity, stripe_size=data * 128 * 1024),
    )
    store = objckpt.open(config)
    dcp.save(dict(STATE), storage_writer=store.begin(create=True).writer(step=1), no_dist=True)
    return store


def by_cat(store: objckpt.CheckpointStore, name: str) -> bytes:
    """The data fragments of every stripe one after the other, cut to the recorded lengths."""
    shard = store.checkpoint().shard(name)
    whole = b""
    for number, stripe in enumerate(shard.stripes):
        code = 1 if stripe.length < shard.code.data * 65536 else shard.code.data
        body = b""
        for index in range(code):
            target = next(t for t in store.config.targets if t.name == stripe.fragments[index].target)
            body += (Path(target.url) / "run" / keys.fragment_key(shard.id, number, index)).read_bytes()
        whole += body[: stripe.length]
    return whole


def the_same(found: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(STATE)
    for name, value in STATE.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


def test_cat_of_the_data_fragments_is_the_safetensors_file(tmp_path: Path) -> None:
    store = saved(tmp_path, data=2, parity=1)
    (tmp_path / "file.safetensors").write_bytes(by_cat(store, "rank-00000.safetensors"))
    the_same(load_file(tmp_path / "file.safetensors"))


@pytest.mark.parametrize(("data", "parity"), [(2, 1), (4, 2)])
def test_stock_pyeclib_decodes_with_fragments_lost(data: int, parity: int, tmp_path: Path) -> None:
    """Through the command that docs/recovery.md names."""
    store = saved(tmp_path, data=data, parity=parity)
    (tmp_path / "objckpt.toml").write_text(_toml(store))
    shard = store.checkpoint().shard("rank-00000.safetensors")
    whole = b""
    for number, stripe in enumerate(shard.stripes):
        count = len(stripe.fragments)
        used = count - parity
        kept = []
        for index in range(parity, count):
            output = tmp_path / f"fragment-{index}"
            arguments = ["fragment", "1", "rank-00000.safetensors", str(number), str(index), "-o", str(output)]
            assert main([*arguments, "--pyeclib", "-c", str(tmp_path / "objckpt.toml")]) == 0
            kept.append(output.read_bytes())
        driver = pyeclib.ec_iface.ECDriver(k=used, m=parity, ec_type="isa_l_rs_cauchy")
        whole += driver.decode(kept)
    assert len(whole) == shard.length
    (tmp_path / "file.safetensors").write_bytes(whole)
    the_same(load_file(tmp_path / "file.safetensors"))


def test_torchs_own_consolidation_reads_the_shards_of_a_sharded_model(tmp_path: Path) -> None:
    """H01: with several ranks, rows and columns; the result has the right tensors."""
    launch(2, save_sharded, str(tmp_path))
    store = cases.opened(str(tmp_path))
    shards = tmp_path / "shards"
    shards.mkdir()
    for ref in store.checkpoint().shards:
        if ref.name.endswith(".safetensors"):
            (shards / ref.name).write_bytes(store.checkpoint().read_bytes(ref.name, 0, ref.length))
    out = tmp_path / "consolidated"
    out.mkdir()
    consolidate_safetensors_files(
        str(shards), str(out), fqn_to_index_mapping=dict.fromkeys(("rows", "columns", "vector", "wide rows"), 1)
    )
    found: dict[str, torch.Tensor] = {}
    for path in out.glob("*.safetensors"):
        found |= load_file(path)
    for name in ("rows", "columns", "vector", "wide rows"):
        assert torch.equal(found[name], cases.whole(name)), name


def save_sharded(rank: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    state: dict[str, Any] = cases.state_on(mesh, empty=False)
    state = {name: state[name] for name in ("rows", "columns", "vector", "wide rows")}
    run = cases.opened(folder).begin(create=True)
    dcp.save(state, storage_writer=run.writer(step=1))


def _toml(store: objckpt.CheckpointStore) -> str:
    from objckpt.config import template

    return template(store.config)
