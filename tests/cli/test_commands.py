"""The command line as a person uses it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import objckpt
from objckpt.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on three directories with two checkpoints; its file is in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OBJCKPT_CONFIG", raising=False)
    urls = [str(tmp_path / name) for name in "abc"]
    assert main(["init", *urls, "--run", "r", "--markers"]) == 0
    with objckpt.open("objckpt.toml") as store:
        run = store.begin()
        for step in (10, 20):
            state = {"w": torch.arange(100_000.0) + step, "o": "text"}
            dcp.save(state, storage_writer=run.writer(step=step, user={"loss": 0.5}), no_dist=True)
    return tmp_path / "objckpt.toml"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    return json.loads(out)


def test_ls_shows_the_line_newest_first(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [entry["step"] for entry in as_json(capsys, "ls")] == [20, 10]
    code, out, _ = run(capsys, "ls")
    assert code == 0
    assert "20" in out


def test_ls_shows_other_lines_when_asked(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objckpt.open(str(config)).begin(rewind_to=10)
    assert [entry["step"] for entry in as_json(capsys, "ls")] == [10]
    assert [entry["step"] for entry in as_json(capsys, "ls", "--all")] == [10, 20]


def test_show_tells_what_a_checkpoint_consists_of(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "show", "10")
    assert found["entries"]["w"] == {"dtype": "float32", "parts": 1, "bytes": 400_000}
    assert found["entries"]["o"]["dtype"] is None
    assert found["user"] == {"loss": 0.5}
    assert set(found["placement"]) == {"file-a", "file-b", "file-c"}
    assert 1.4 < found["overhead"] < 1.7
    code, out, _ = run(capsys, "show")
    assert code == 0
    assert "step 20" in out


def test_runs_are_found_below_the_targets(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    urls = [str(config.parent / name / "other") for name in "abc"]
    objckpt.open(urls).create()
    assert [run["run"] for run in as_json(capsys, "runs")] == ["other", "r"]


def test_verify_finds_what_is_missing_and_what_is_damaged(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "verify", "20")[0] == 0
    assert run(capsys, "verify", "--deep")[0] == 0
    victim = next(path for path in sorted((config.parent / "b" / "r" / "data").rglob("*.0*")) if path.is_file())
    body = victim.read_bytes()
    victim.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    assert run(capsys, "verify", "10")[0] == 0
    steps = [step for step in ("10", "20") if run(capsys, "verify", step, "--deep")[0] == 6]
    assert len(steps) == 1
    code, out, _ = run(capsys, "verify", steps[0], "--deep", "--json")
    assert code == 6
    (problem,) = [p for shard in json.loads(out)["shards"] for p in shard["problems"]]
    assert problem["state"] == "corrupt"
    victim.unlink()
    code, out, _ = run(capsys, "verify", steps[0])
    assert code == 6
    assert "missing" in out
    assert "can be read" in out


def test_doctor_probes_every_target_and_says_what_is_promised(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "doctor")
    assert found["run"] == "exists"
    assert found["promised"]["promised"] == 1
    assert found["left"] == 1
    assert {probe["outcome"] for target in found["targets"] for probe in target["probes"]} <= {"ok", "weak"}
    assert not list(config.parent.rglob("probes/*"))
    shutil.rmtree(config.parent / "c")
    code, out, _ = run(capsys, "doctor", "--json")
    assert code == 5
    broken = json.loads(out)
    assert set(broken["lost"]) == {"file-c"}
    assert broken["left"] == 0


def test_a_fragment_is_written_to_a_file(config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "f"
    assert run(capsys, "fragment", "10", "rank-00000.safetensors", "0", "0", "-o", str(out))[0] == 0
    bare = out.read_bytes()
    assert run(capsys, "fragment", "10", "rank-00000.safetensors", "0", "0", "-o", str(out), "--pyeclib")[0] == 0
    assert out.read_bytes()[80:] == bare
    assert run(capsys, "fragment", "10", "rank-00000.safetensors", "0", "9", "-o", str(out))[0] == 3


def test_init_writes_a_file_that_can_be_read_and_never_overwrites_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "init", str(tmp_path / "one"), "--run", "r")
    assert code == 0
    assert "0 failure domains may be lost" in out
    assert objckpt.open("objckpt.toml").config.run == "r"
    code, _, err = run(capsys, "init", str(tmp_path / "two"))
    assert code == 2
    assert "exists" in err
    assert run(capsys, "init", "--markers")[0] == 0
    assert run(capsys, "ls")[0] == 0


MISTAKES: dict[str, tuple[list[str], int, str]] = {
    "no file": (["ls", "-c", "nowhere.toml"], 2, "nowhere.toml"),
    "no step": (["show", "11"], 3, "steps of the line, newest first: 20, 10"),
    "no run": (["ls", "--run", "another"], 3, "does not exist"),
    "no domain": (["ls", "--without", "mars"], 2, "file-a, file-b, file-c"),
    "no verb": (["lss"], 2, ""),
    "no number": (["show", "ten"], 2, ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_a_hint_and_a_code(
    mistake: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected, part = MISTAKES[mistake]
    code, _, err = run(capsys, *arguments)
    assert code == expected
    assert part in err
    assert "Traceback" not in err


def test_too_few_domains_is_exit_code_4_and_giving_one_up_by_name_helps(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "bc":
        shutil.rmtree(config.parent / name)
    code, _, err = run(capsys, "ls")
    assert code == 4
    assert "file-b" in err
    assert [e["step"] for e in as_json(capsys, "ls", "--without", "file-b", "--without", "file-c")] == [20, 10]


def test_a_lost_domain_costs_a_warning_and_not_the_list(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(config.parent / "a")
    assert [entry["step"] for entry in as_json(capsys, "ls")] == [20, 10]
    code, out, _ = run(capsys, "verify", "--json")
    assert code == 6
    assert json.loads(out)["tolerance"] == 0


def test_the_help_of_every_verb_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("init", "doctor", "runs", "ls", "show", "verify", "fragment", "demo"):
        code, out, _ = run(capsys, verb, "--help")
        assert code == 0
        assert "do not restart" in " ".join(out.split())
