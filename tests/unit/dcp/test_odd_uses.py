"""What people do that nobody planned: odd names, forks, an end in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import objckpt
from objckpt.errors import InvalidInputError
from objckpt.format import manifest

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:This process .* is multi-threaded")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with objckpt.open([f"{tmp_path}/{name}/run" for name in "abc"]) as opened:
        yield opened


def test_no_name_of_the_users_means_anything_to_the_format(store: objckpt.CheckpointStore) -> None:
    user = {"unknown": {"x": 1}, "k": {"unknown": 3}}
    state = {"unknown": torch.ones(4), "inline": {"unknown": 5}, "b": torch.zeros(2)}
    dcp.save(state, storage_writer=store.begin(create=True).writer(step=1, user=user), no_dist=True)
    found = {"unknown": torch.zeros(4), "inline": {"unknown": 0}, "b": torch.ones(2)}
    dcp.load(found, storage_reader=store.reader(), no_dist=True)
    assert found["unknown"].eq(1).all()
    assert found["inline"] == {"unknown": 5}
    assert store.checkpoint().manifest.user == user


@pytest.mark.parametrize("user", [{"loss": float("nan")}, {1: 2}, {"t": (1, 2)}, {"o": object()}])
def test_user_data_that_would_come_back_changed_are_refused_at_once(store: objckpt.CheckpointStore, user: Any) -> None:
    with pytest.raises(InvalidInputError, match="user"):
        store.begin(create=True).writer(step=1, user=user)


def test_what_no_reader_would_take_is_not_written(
    store: objckpt.CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.begin(create=True)
    dcp.save({"w": torch.ones(1)}, storage_writer=run.writer(step=1), no_dist=True)
    monkeypatch.setattr(manifest, "MAX_CONTROL_BYTES", 1024 * 1024)
    with pytest.raises(BaseException) as caught:
        dcp.save({"w": torch.ones(1)}, storage_writer=run.writer(step=2, user={"a": "x" * 2**21}), no_dist=True)
    assert isinstance(objckpt.cause(caught.value), InvalidInputError)
    assert [entry.step for entry in store.checkpoints()] == [1]


def test_a_writer_does_not_survive_a_fork(store: objckpt.CheckpointStore) -> None:
    """S16: parent and child would write under the same names."""
    writer = store.begin(create=True).writer(step=1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            writer.set_up_storage_writer(True)
        except InvalidInputError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_two_keys_may_load_into_one_tensor(store: objckpt.CheckpointStore) -> None:
    state = {"a": torch.full((500_000,), 1.0), "b": torch.full((500_000,), 2.0)}
    dcp.save(state, storage_writer=store.begin(create=True).writer(step=1), no_dist=True)
    for _ in range(5):
        one = torch.zeros(500_000)
        dcp.load({"a": one, "b": one}, storage_reader=store.reader(), no_dist=True)
        assert one.eq(one[0]).all()


@pytest.mark.parametrize("wait_s", [0.0, 0.02, 0.1])
def test_a_script_that_ends_during_a_save_ends(tmp_path: Path, wait_s: float) -> None:
    script = f"""
import threading, warnings, torch, objckpt
import torch.distributed.checkpoint as dcp
warnings.simplefilter("ignore")
torch.distributed.init_process_group("gloo", init_method="file://{tmp_path}/meet", rank=0, world_size=1)
run = objckpt.open(["{tmp_path}/" + name + "/run" for name in "abc"]).begin(create=True)
dcp.async_save({{"w": torch.ones(16_000_000)}}, storage_writer=run.writer(step=1))
print("saving", flush=True)
threading.Event().wait({wait_s})
"""
    # Whether the save was quick enough is the machine's affair; that the process ends is ours.
    done = subprocess.run([sys.executable, "-c", script], timeout=120, check=False, capture_output=True, text=True)
    assert "saving" in done.stdout, done.stderr
    store = objckpt.open([f"{tmp_path}/{name}/run" for name in "abc"])
    for entry in store.checkpoints():
        assert store.verify(entry.step, deep=True).whole
