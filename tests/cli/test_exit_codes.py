"""What a failure looks like from outside: its exit code, a hint, and nothing secret."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import objckpt
from objckpt import errors
from objckpt.checkpoint.attempt import SaveAttempt
from objckpt.cli.main import exit_code, main
from objckpt.commit.ownership import begin
from objckpt.commit.quorum import ControlPlane
from objckpt.config import template
from objckpt.store.memory import FaultPoint, MemorySpace
from objckpt.store.open import memory_space
from objckpt.transfer.targets import Targets
from objckpt.transfer.upload import BytesSource

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    """``--debug`` sets the logger's level for the process."""
    yield
    logging.getLogger("objckpt").setLevel(logging.NOTSET)


class Memory:
    """A configuration file on three memory spaces of this process."""

    def __init__(self, folder: Path) -> None:
        names = [f"cli-{next(_numbers)}-{letter}" for letter in "abc"]
        self.spaces: list[MemorySpace] = [memory_space(name) for name in names]
        self.config = objckpt.StoreConfig(
            run="r",
            targets=tuple(objckpt.TargetConfig(name=name[-1], url=f"memory://{name}") for name in names),
            code=objckpt.CodeConfig(data=2, parity=1),
        )
        self.file = folder / "objckpt.toml"
        self.file.write_text(template(self.config))
        self.output = folder / "fragment"

    def save(self) -> str:
        """Commits one shard of one stripe; returns the checkpoint's id."""
        plane = ControlPlane(Targets(self.config))
        attempt = SaveAttempt(plane, begin(plane, create=True), seq=1, step=1)
        sources = [BytesSource(bytes(range(256)) * 2000)]
        shard = attempt.write("s", kind="opaque", sources=sources, index=(), rank=0, counter=0)
        return attempt.commit([shard], front="test", metadata=[b"{}"]).checkpoint

    def fragment(self, target: str) -> list[str]:
        """The command that fetches what lies on a target."""
        with objckpt.open(str(self.file)) as store:
            (stripe,) = store.checkpoint(1).shard("s").stripes
        index = [fragment.target for fragment in stripe.fragments].index(target)
        return ["fragment", "1", "s", "0", str(index), "-o", str(self.output), "-c", str(self.file)]


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path)


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(list(arguments))
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err


def kinds() -> list[type[errors.ObjckptError]]:
    found = [errors.ObjckptError]
    for kind in found:
        found += [sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__]
    return found


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_error_has_the_code_of_its_group(kind: type[errors.ObjckptError]) -> None:
    groups = {
        errors.InvalidInputError: 2,
        errors.NotFoundError: 3,
        errors.QuorumError: 4,
        errors.StoreError: 5,
        errors.DataError: 6,
        errors.FencedError: 7,
        errors.IndeterminateError: 8,
        errors.ConflictError: 9,
    }
    expected = [code for group, code in groups.items() if issubclass(kind, group)]
    assert [exit_code(kind("text"))] == (expected or [1])


def test_a_bug_is_exit_code_1_and_debug_shows_its_traceback(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    def break_down(point: FaultPoint) -> None:
        raise RuntimeError("a bug")

    memory.save()
    for space in memory.spaces:
        space.faults = break_down
    code, err = failed(capsys, "ls", "-c", str(memory.file))
    assert code == 1
    assert "a bug" in err
    assert "Traceback" not in err
    code, err = failed(capsys, "--debug", "ls", "-c", str(memory.file))
    assert code == 1
    assert "Traceback" in err


def test_a_store_that_refuses_is_exit_code_5(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse_data(point: FaultPoint) -> None:
        if point.key.startswith("data/"):
            raise errors.PermissionDeniedError("not allowed", target=point.store, key=point.key)

    memory.save()
    memory.spaces[0].faults = refuse_data
    code, err = failed(capsys, *memory.fragment("a"))
    assert code == 5
    assert "not allowed" in err
    assert not memory.output.exists()


def test_a_damaged_fragment_is_exit_code_6_and_never_written_to_a_file(
    memory: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyECLib, which the file is for, would decode it without a word."""
    memory.save()
    (key,) = [key for key in memory.spaces[1].objects() if "/data/" in key]
    body = memory.spaces[1].objects()[key]
    for damaged in (bytes([body[0] ^ 1]) + body[1:], body[:-1], body + b"x"):
        memory.spaces[1].set_unchecked(key, damaged)
        code, err = failed(capsys, *memory.fragment("b"))
        assert code == 6
        assert "take another index" in err
        assert not memory.output.exists()
    memory.spaces[1].set_unchecked(key, body)
    assert main(memory.fragment("b")) == 0
    assert memory.output.read_bytes() == body


def test_a_fragment_that_was_never_stored_is_exit_code_3(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    with objckpt.open(str(memory.file)) as store:
        store.create()
    memory.spaces[2].destroy()
    memory.save()
    code, err = failed(capsys, *memory.fragment("c"))
    assert code == 3
    assert "never stored" in err


def test_a_job_that_began_at_the_same_time_and_later_is_exit_code_7(
    memory: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--markers", "--file", str(memory.file)]) == 0
    rivals = [ControlPlane(Targets(memory.config))]

    def be_overtaken(point: FaultPoint) -> None:
        if point.operation == "put" and point.key.startswith("claims/") and point.moment == "after" and rivals:
            begin(rivals.pop())

    memory.spaces[0].faults = be_overtaken
    code, err = failed(capsys, "init", "--markers", "--file", str(memory.file))
    assert code == 7
    assert "do not restart" in err
    assert not rivals


def test_a_file_that_cannot_be_written_is_wrong_input(
    memory: Memory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory.save()
    memory.output = tmp_path / "nowhere" / "fragment"
    for arguments in (["init", "one", "--file", str(tmp_path / "nowhere" / "x.toml")], memory.fragment("a")):
        code, err = failed(capsys, *arguments)
        assert code == 2
        assert "cannot be written" in err


def test_a_run_of_another_name_is_made_with_the_same_file(memory: Memory) -> None:
    assert main(["init", "--markers", "--run", "another", "--file", str(memory.file)]) == 0
    assert main(["ls", "-c", str(memory.file), "--run", "another"]) == 0
    assert main(["ls", "-c", str(memory.file)]) == 3


def test_ls_never_cuts_an_id_that_other_commands_take(
    memory: Memory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    identity = memory.save()
    capsys.readouterr()
    assert main(["ls", "-c", str(memory.file)]) == 0
    told = capsys.readouterr().out
    column = "".join(line.split("│")[-2].strip() for line in told.splitlines() if line.startswith("│"))
    assert identity in column
    assert main(["show", "--id", identity, "-c", str(memory.file)]) == 0


def test_the_version_is_told_without_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == objckpt.__version__


def test_debug_shows_our_log_lines_and_nothing_that_a_signature_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The cloud SDKs write session tokens and signatures into their own debug lines."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret-key")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the-session-token")
    config = objckpt.StoreConfig(
        run="r",
        targets=(objckpt.TargetConfig(name="x", url="s3://bucket/p", endpoint_url="http://127.0.0.1:9"),),
        code=objckpt.CodeConfig(data=1, parity=0),
        transfer=objckpt.TransferConfig(operation_deadline_s=1.0),
    )
    (tmp_path / "objckpt.toml").write_text(template(config))
    root = logging.getLogger()
    before, root.handlers[:] = root.handlers[:], []
    try:
        assert main(["--debug", "ls", "-c", str(tmp_path / "objckpt.toml")]) == 4
    finally:
        root.handlers[:] = before
    err = capfd.readouterr().err
    assert "DEBUG RequestDone" in err
    for secret in ("the-session-token", "the-secret-key", "Signature"):
        assert secret not in err
