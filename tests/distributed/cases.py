"""What the ranks do in the distributed tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import objckpt
from objckpt.errors import (
    FencedError,
    InvalidInputError,
    NotEnoughFragmentsError,
    NotFoundError,
    UnavailableError,
)

SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "rows": ((13, 5), Shard(0)),
    "columns": ((6, 17), Shard(1)),
    "few rows": ((2, 3), Shard(0)),
    "no rows": ((0, 3), Shard(0)),
    "wide rows": ((3, 40_000), Shard(1)),
    "whole": ((7,), Replicate()),
    "vector": ((1009,), Shard(0)),
}


def opened(folder: str) -> objckpt.CheckpointStore:
    return objckpt.open([f"{folder}/{name}/run" for name in "abc"])


def whole(name: str) -> torch.Tensor:
    shape, _ = SHAPES[name]
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + len(name)


def state_on(mesh: DeviceMesh, *, empty: bool) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, (_, placement) in SHAPES.items():
        full = whole(name)
        state[name] = distribute_tensor(torch.full_like(full, -1) if empty else full, mesh, [placement])
    return state


def reshard(rank: int, folder: str) -> None:
    """N ranks to M ranks for N and M of 1 to 4."""
    groups = {n: dist.new_group(list(range(n))) for n in (1, 2, 3, 4)}
    meshes = {n: DeviceMesh("cpu", list(range(n))) for n in (1, 2, 3, 4)}
    for n in (1, 2, 3, 4):
        if rank < n:
            run = opened(folder).begin(create=True, process_group=groups[n])
            state = {**state_on(meshes[n], empty=False), "plain": {"n": n, "list": [n, "x"]}}
            dcp.save(state, storage_writer=run.writer(step=n), process_group=groups[n])
        dist.barrier()
    for m in (1, 2, 3, 4):
        if rank < m:
            for n in (1, 2, 3, 4):
                state = {**state_on(meshes[m], empty=True), "plain": {"n": 0, "list": [0, ""]}}
                dcp.load(state, storage_reader=opened(folder).reader(step=n), process_group=groups[m])
                assert state["plain"] == {"n": n, "list": [n, "x"]}
                for name in SHAPES:
                    assert torch.equal(state[name].full_tensor(), whole(name)), (name, n, m)
        dist.barrier()


def model_and_optimizer(mesh: DeviceMesh) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(17, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    model(torch.randn(4, 17)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def everything(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    found = []
    for parameter in model.parameters():
        for value in (parameter, *optimizer.state[parameter].values()):
            found.append((value.full_tensor() if isinstance(value, DTensor) else value).detach().clone())
    return found


def fsdp(rank: int, folder: str) -> None:
    """FSDP2 with AdamW: saved in every way, changed meanwhile, resumed bit for bit."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, optimizer = model_and_optimizer(mesh)
    group = dist.new_group(backend="gloo")
    run = opened(folder).begin(create=True)
    planner = DefaultSavePlanner(enable_plan_caching=True)
    expected: dict[int, list[torch.Tensor]] = {}
    for number in (1, 2, 3):
        step(model, optimizer, number)
        expected[number] = everything(model, optimizer)
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        writer = run.writer(step=number)
        if number < 3:
            # Traps 1 and 17: the plan, and what hangs on it, is the first save's at the second.
            dcp.save(state, storage_writer=writer, planner=planner)
        else:
            # D01: the values are those of the call.
            future = dcp.async_save(state, storage_writer=writer, process_group=group)
            step(model, optimizer, 99)
            future.result()
        if rank == 0:
            assert writer.result is not None
            assert writer.result.step == number
    for number in (1, 2, 3):
        model, optimizer = model_and_optimizer(mesh)
        step(model, optimizer, 5)
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, storage_reader=opened(folder).reader(step=number), planner=objckpt.LoadPlanner())
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        for found, wanted in zip(everything(model, optimizer), expected[number], strict=True):
            assert torch.equal(found, wanted)


def in_a_process(rank: int, folder: str) -> None:
    """async_save in process mode: the writer travels, the parent goes on."""
    run = opened(folder).begin(create=True)
    for number in (1, 2):
        state = {"w": torch.full((1000,), float(number)), "rank": {f"rank-{rank}": torch.tensor(rank)}}
        writer = run.writer(step=number)
        future = dcp.async_save(state, storage_writer=writer, async_checkpointer_type=AsyncCheckpointerType.PROCESS)
        state["w"].zero_()
        future.result()
        with pytest.raises(CheckpointException) as caught:
            dcp.save(state, storage_writer=writer)
        assert "another process" in str(objckpt.cause(caught.value))
    found = {"w": torch.zeros(1000), "rank": {"rank-1": torch.tensor(-1)}}
    dcp.load(found, storage_reader=opened(folder).reader(step=1))
    assert found["w"].eq(1).all()
    assert found["rank"]["rank-1"] == 1
    assert [entry.step for entry in opened(folder).checkpoints()] == [2, 1]


def failures(rank: int, folder: str) -> None:
    """What fails on one rank is raised on all, named, and nothing is committed (D05, D15, D16)."""
    store = opened(folder)
    with pytest.raises(NotFoundError):
        store.begin()
    run = store.begin(create=True)
    state = {"w": torch.ones(10), f"own-{rank}": torch.ones(4)}
    dcp.save(state, storage_writer=run.writer(step=1))
    for victim in range(dist.get_world_size()):
        writer = run.writer(step=2)
        if rank == victim:

            def fail(*_: Any, **__: Any) -> None:
                raise UnavailableError("the network is gone", target="a")

            writer._attempt.write = fail
        with pytest.raises(CheckpointException) as caught:
            dcp.save(state, storage_writer=writer)
        assert isinstance(objckpt.cause(caught.value), UnavailableError)
        assert list(caught.value.failures) == [victim]
    with pytest.raises(CheckpointException) as caught:
        dcp.save({"w": torch.ones(4 if rank == 0 else 8)}, storage_writer=run.writer(step=2))
    assert "rank 0" in str(objckpt.cause(caught.value))
    assert "float32[8] on rank 1" in str(objckpt.cause(caught.value))
    if rank == 1:
        run.writer(step=2)
    with pytest.raises(CheckpointException) as caught:
        dcp.save(state, storage_writer=run.writer(step=2))
    assert "same number of times" in str(objckpt.cause(caught.value))
    assert [entry.step for entry in store.checkpoints()] == [1]
    dist.barrier()

    reader = opened(folder).reader(step=1)
    if rank == 1:
        reader = opened(folder).reader(step=7)
    with pytest.raises(CheckpointException) as caught:
        dcp.load(state, storage_reader=reader)
    if rank == 1:
        assert isinstance(reader.error, NotFoundError)
    with pytest.raises(InvalidInputError, match="use_collectives=False"):
        dcp.save(state, storage_writer=run.writer(step=3), use_collectives=False)


def between_two_ranks(rank: int, folder: str) -> None:
    """A checkpoint that is committed between two ranks' look at "latest" is no mixture (trap 3)."""
    store = opened(folder)
    run = store.begin(create=True)
    state = {"w": torch.zeros(100)}
    dcp.save({"w": torch.ones(100)}, storage_writer=run.writer(step=1))
    early = store.reader()
    if rank == 0:
        assert early.checkpoint.step == 1
    dcp.save({"w": torch.full((100,), 2.0)}, storage_writer=run.writer(step=2))
    with pytest.raises(CheckpointException) as caught:
        dcp.load(state, storage_reader=early)
    assert "different checkpoints" in str(objckpt.cause(caught.value))
    assert state["w"].eq(0).all()
    again = opened(folder).begin()
    dcp.load(state, storage_reader=again.reader())
    assert state["w"].eq(2).all()
    with pytest.raises(CheckpointException) as caught:
        dcp.save(state, storage_writer=run.writer(step=3))
    assert isinstance(objckpt.cause(caught.value), FencedError)


def without_enough(rank: int, folder: str) -> None:
    """A load that cannot be served fails on all ranks with the counts."""
    run = opened(folder).begin(create=True)
    dcp.save({"w": torch.ones(1000)}, storage_writer=run.writer(step=1))
    dist.barrier()
    if rank == 0:
        for name in "ab":
            for path in Path(folder, name, "run", "data").rglob("*.0*"):
                if path.is_file():
                    os.unlink(path)
    dist.barrier()
    with pytest.raises(CheckpointException) as caught:
        dcp.load({"w": torch.zeros(1000)}, storage_reader=opened(folder).reader())
    assert isinstance(objckpt.cause(caught.value), NotEnoughFragmentsError)
    assert "missing=2 (file-a, file-b)" in str(objckpt.cause(caught.value))
