"""The documents' examples, run as written."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import objckpt
from objckpt.cli import main as command_line
from objckpt.config import load_config, promise
from objckpt.format import keys

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_quick_start_runs_as_written_and_again(tmp_path: Path) -> None:
    (script,) = blocks(README, "python")
    place = "/tmp/objckpt-quickstart"
    assert place in script
    shutil.rmtree(place, ignore_errors=True)
    try:
        for steps in ([100], [200, 100]):
            subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, capture_output=True)
            store = objckpt.open([f"{place}/disk-{letter}/run-1" for letter in "abc"])
            assert [entry.step for entry in store.checkpoints()] == steps
    finally:
        shutil.rmtree(place)


def test_the_configurations_can_be_read(tmp_path: Path) -> None:
    whole, part = blocks(README, "toml")
    (tmp_path / "objckpt.toml").write_text(whole)
    assert promise(load_config(tmp_path / "objckpt.toml")).promised == 1
    (target,) = tomllib.loads(part)["targets"]
    assert objckpt.TargetConfig(**target).addressing_style == "path"


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    table = {int(code) for code in re.findall(r"^\| (\d) \|", README.split("## Exit codes")[1], flags=re.MULTILINE)}
    assert table == {0, 1, *(code for _, code in command_line.CODES)}


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_the_recovery_script_makes_the_safetensors_file(tmp_path: Path) -> None:
    store = objckpt.open([str(tmp_path / name / "run") for name in "abc"])
    state = {"w": torch.arange(900_000.0), "b": torch.ones(3)}
    dcp.save(dict(state), storage_writer=store.begin(create=True).writer(step=1), no_dist=True)
    (ref,) = store.checkpoint().shards
    script = blocks((ROOT / "docs" / "recovery.md").read_text(), "python")[0]
    places = [f"{target.name}={target.url}/run" for target in store.config.targets]
    manifest = tmp_path / "a" / "run" / keys.shard_key(ref.id)
    subprocess.run(
        [sys.executable, "-c", script, str(manifest), str(tmp_path / "out.safetensors"), *places], check=True
    )
    found = load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(found[name], value) for name, value in state.items())
