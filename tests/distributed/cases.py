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
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import BroadcastingTorchSaveReader, DynamicMetaLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import objckpt
from objckpt.dcp.collective import on_coordinator
from objckpt.errors import (
    FencedError,
    InvalidInputError,
    MismatchError,
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


def fsdp_on_other_ranks(rank: int, folder: str) -> None:
    """A trained FSDP2 model with AdamW's state, saved by N ranks, goes on with M; also in two dimensions."""
    sizes = (1, 2, 3, 4)
    groups = {n: dist.new_group(list(range(n))) for n in sizes}
    meshes = {n: DeviceMesh("cpu", list(range(n))) for n in sizes}
    expected: dict[int, list[torch.Tensor]] = {}
    for n in sizes:
        found: list[Any] = [None]
        if rank < n:
            model, optimizer = model_and_optimizer(meshes[n])
            step(model, optimizer, n)
            model_state, optimizer_state = get_state_dict(model, optimizer)
            state = {"model": model_state, "optimizer": optimizer_state}
            run = opened(folder).begin(create=True, process_group=groups[n])
            dcp.save(state, storage_writer=run.writer(step=n), process_group=groups[n])
            found = [everything(model, optimizer)]
        dist.broadcast_object_list(found, src=0)
        expected[n] = found[0]
    for m in sizes:
        if rank < m:
            for n in sizes:
                model, optimizer = model_and_optimizer(meshes[m])
                model_state, optimizer_state = get_state_dict(model, optimizer)
                state = {"model": model_state, "optimizer": optimizer_state}
                reader = opened(folder).reader(step=n)
                dcp.load(state, storage_reader=reader, process_group=groups[m], planner=objckpt.LoadPlanner())
                set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
                for got, wanted in zip(everything(model, optimizer), expected[n], strict=True):
                    assert torch.equal(got, wanted), (n, m)
        dist.barrier()
    in_two_dimensions(f"{folder}/two")


def in_two_dimensions(folder: str) -> None:
    """Uneven blocks of a 2 x 2 mesh, replicas along one dimension, and back in other ways."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    line = init_device_mesh("cpu", (4,))
    full = torch.arange(7 * 11, dtype=torch.float32).reshape(7, 11)
    ways = [(Shard(0), Shard(1)), (Shard(1), Shard(0)), (Replicate(), Shard(0)), (Shard(0), Shard(0))]
    run = opened(folder).begin(create=True)
    state = {str(i): distribute_tensor(full + i, mesh, list(way)) for i, way in enumerate(ways)}
    writer = run.writer(step=1)
    dcp.save(state, storage_writer=writer)
    if writer.result is not None:
        # Replicas are stored once.
        assert writer.result.size < len(ways) * full.numel() * 4 + 4 * 2048
    for placements, onto in [*((list(reversed(way)), mesh) for way in ways), ([Shard(1)], line), ([Replicate()], line)]:
        found = {str(i): distribute_tensor(torch.zeros_like(full), onto, placements) for i in range(len(ways))}
        dcp.load(found, storage_reader=opened(folder).reader())
        for i in range(len(ways)):
            assert torch.equal(found[str(i)].full_tensor(), full + i)


def what_one_rank_does(rank: int, folder: str) -> None:
    """Results and errors of the coordinator reach every rank as they were."""
    assert on_coordinator(lambda: ("from", rank)) == ("from", 0)
    assert on_coordinator(lambda: rank, no_dist=True) == rank
    others = dist.new_group([1, 2])
    if rank in (1, 2):
        assert on_coordinator(lambda: rank, process_group=others) == 1

    def refuse() -> None:
        raise UnavailableError("gone", target="b", hint="wait") from OSError(5, "wire")

    with pytest.raises(UnavailableError, match=r"gone \[target=b\] \(wait\)") as caught:
        on_coordinator(refuse)
    assert "wire" in str(caught.value.__cause__)

    def refuse_oddly() -> None:
        class Local(Exception):
            """Of a class that no other process knows."""

        raise Local("odd")

    with pytest.raises(Exception, match="odd"):
        on_coordinator(refuse_oddly)

    # D16: an error of the coordinator alone, in planning and in the commit, with all data written.
    run = opened(folder).begin(create=True)
    state = {"w": torch.ones(10), f"own-{rank}": torch.ones(2)}
    for hook in ("prepare_global_plan", "finish"):
        writer = run.writer(step=1)

        def fail(*_: Any, **__: Any) -> None:
            raise UnavailableError("the network is gone", target="a")

        setattr(writer, hook, fail)
        with pytest.raises(CheckpointException) as failed:
            dcp.save(state, storage_writer=writer)
        assert isinstance(objckpt.cause(failed.value), UnavailableError)
        assert list(failed.value.failures) == [0]
        assert writer.result is None
    assert opened(folder).checkpoints() == []

    # D04: equal keys are copies of one value to DCP; a key of its own per rank keeps a rank's own state.
    state = {f"rng-{rank}": torch.full((3,), rank), "seen": {f"rank-{rank}": {"r": rank}}}
    dcp.save(state, storage_writer=run.writer(step=1))
    found = {f"rng-{rank}": torch.full((3,), -1), "seen": {f"rank-{rank}": {"r": -1}}}
    dcp.load(found, storage_reader=opened(folder).reader(), planner=objckpt.LoadPlanner())
    assert found[f"rng-{rank}"].eq(rank).all()
    assert found["seen"][f"rank-{rank}"]["r"] == rank

    # D11: what does not fit on one rank alone is told on all.
    wrong = {f"rng-{rank}": torch.zeros(3 if rank else 4, dtype=torch.int64)}
    with pytest.raises(CheckpointException) as failed:
        dcp.load(wrong, storage_reader=opened(folder).reader(), planner=objckpt.LoadPlanner())
    assert isinstance(objckpt.cause(failed.value), MismatchError)
    assert list(failed.value.failures) == [0]
    assert "'rng-0' has shape [4], the checkpoint [3]" in str(objckpt.cause(failed.value))
    from_a_torch_file(rank, folder)


def from_a_torch_file(rank: int, folder: str) -> None:
    """What torch's ``torch_save_to_dcp_dist`` does with paths, done with our writer; and back to a torch file."""
    run = opened(f"{folder}/file").begin(create=True)
    path = Path(folder, "file.pt")
    if rank == 0:
        torch.save({"model": {"w": torch.arange(10.0), "b": torch.ones(3)}}, path)
    dist.barrier()
    state: dict[str, Any] = {"model": {"w": torch.zeros(10), "b": torch.zeros(3)}}
    reader = BroadcastingTorchSaveReader(path)
    _load_state_dict(state, storage_reader=reader, planner=DynamicMetaLoadPlanner())
    dcp.save(state, storage_writer=run.writer(step=1))
    back: dict[str, Any] = {}
    _load_state_dict(
        back, storage_reader=opened(f"{folder}/file").reader(), planner=_EmptyStateDictLoadPlanner(), no_dist=True
    )
    assert torch.equal(back["model"]["w"], torch.arange(10.0))
    assert torch.equal(back["model"]["b"], torch.ones(3))


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
