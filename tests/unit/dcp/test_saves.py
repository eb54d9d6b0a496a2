"""What DCP does to a writer: plans used again, states that change, stagers, other processes, other jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner

import objckpt
from objckpt.errors import ConflictError, FencedError, InvalidInputError
from tests.unit.dcp.test_tensors import Wrapper

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:TypedStorage is deprecated")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[objckpt.CheckpointStore]:
    with objckpt.open([f"{tmp_path}/{name}/run" for name in "abc"]) as opened:
        yield opened


@pytest.fixture
def forgotten_plans() -> Iterator[None]:
    """DCP keeps plans in the planner's class."""
    kept = [value for name, value in vars(SavePlanner).items() if name.startswith("_cached")]
    for cache in kept:
        cache.clear()
    yield
    for cache in kept:
        cache.clear()


def save(run: objckpt.Run, step: int, state: dict[str, Any], **options: Any) -> Any:
    writer = run.writer(step=step)
    dcp.save(state, storage_writer=writer, no_dist=True, **options)
    return writer.result


def load(store: objckpt.CheckpointStore, state: dict[str, Any], step: int | None = None) -> dict[str, Any]:
    dcp.load(state, storage_reader=store.reader(step), no_dist=True, planner=objckpt.LoadPlanner())
    return state


def refused(run: objckpt.Run, state: dict[str, Any], **options: Any) -> BaseException:
    with pytest.raises(CheckpointException) as caught:
        save(run, 1000, state, **options)
    return objckpt.cause(caught.value)


@pytest.mark.usefixtures("forgotten_plans")
def test_a_plan_that_is_used_again_saves_the_values_of_its_own_save(store: objckpt.CheckpointStore) -> None:
    """Trap 1: three saves with one plan, then one whose state has another form, then the first form again."""
    run = store.begin(create=True)
    planner = DefaultSavePlanner(enable_plan_caching=True)
    states: dict[int, dict[str, Any]] = {
        step: {"w": torch.full((100,), float(step)), "step": step, "list": [torch.tensor(step)]} for step in (1, 2, 3)
    }
    states[4] = {"w": torch.full((50, 2), 4.0), "step": 4, "more": torch.ones(3)}
    states[5] = {"w": torch.full((100,), 5.0), "step": 5, "list": [torch.tensor(5)]}
    for step, state in states.items():
        save(run, step, state, planner=planner)
    for step, state in states.items():
        template = {name: torch.zeros_like(v) if isinstance(v, torch.Tensor) else v for name, v in state.items()}
        template["step"] = -1
        if "list" in template:
            template["list"] = [torch.tensor(-1)]
        found = load(store, template, step)
        assert found["step"] == step
        assert torch.equal(found["w"], state["w"])
        assert found.get("list") == state.get("list")


@pytest.mark.usefixtures("forgotten_plans")
def test_two_planners_of_one_class_do_not_mix_their_states(store: objckpt.CheckpointStore) -> None:
    """Trap 17: they share DCP's cache."""
    run = store.begin(create=True)
    planners = [DefaultSavePlanner(enable_plan_caching=True) for _ in range(2)]
    for step in range(4):
        save(run, step, {f"w{step % 2}": torch.full((10,), float(step))}, planner=planners[step % 2])
    for step in range(4):
        assert load(store, {f"w{step % 2}": torch.zeros(10)}, step)[f"w{step % 2}"].eq(step).all()


def test_a_state_with_nothing_in_it_is_a_checkpoint(store: objckpt.CheckpointStore) -> None:
    """Trap 12: an empty plan."""
    result = save(store.begin(create=True), 1, {})
    assert result.size == 0
    assert load(store, {}) == {}
    assert load(store, {}, 1) == {}


def test_dcp_does_not_take_a_writer_for_something_else(store: objckpt.CheckpointStore) -> None:
    """Trap 9: what has a length of 0 is replaced, what has ``stage`` is taken for a stager; trap 2: no rank yet."""
    writer = store.begin(create=True).writer(step=1)
    assert bool(writer)
    assert not hasattr(writer, "stage")
    assert writer.storage_meta() is None
    assert not writer.validate_checkpoint_id("s3://bucket/run")


def test_an_asynchronous_save_keeps_the_values_of_the_call(store: objckpt.CheckpointStore) -> None:
    """D01: the optimizer changes the tensors in place meanwhile."""
    run = store.begin(create=True)
    weights = torch.zeros(500_000)
    for step in (1, 2, 3):
        weights.fill_(step)
        writer = run.writer(step=step)
        future = dcp.async_save({"w": weights, "v": weights[::2]}, storage_writer=writer, no_dist=True)
        weights.fill_(-1)
        future.result()
        assert writer.result is not None
    for step in (1, 2, 3):
        found = load(store, {"w": torch.zeros(500_000), "v": torch.zeros(250_000)}, step)
        assert found["w"].eq(step).all()
        assert found["v"].eq(step).all()


def test_a_save_that_was_overtaken_by_a_later_one_is_refused(store: objckpt.CheckpointStore) -> None:
    """Trap 8: one save at a time; the later one's checkpoint is whole."""
    run = store.begin(create=True)
    slow, fast = run.writer(step=1), run.writer(step=2)
    dcp.save({"w": torch.full((1000,), 2.0)}, storage_writer=fast, no_dist=True)
    with pytest.raises(CheckpointException) as caught:
        dcp.save({"w": torch.ones(1000)}, storage_writer=slow, no_dist=True)
    assert isinstance(objckpt.cause(caught.value), ConflictError)
    assert "one save at a time" in str(objckpt.cause(caught.value))
    assert [entry.step for entry in store.checkpoints()] == [2]
    assert load(store, {"w": torch.zeros(1000)})["w"].eq(2).all()


def test_of_two_jobs_that_are_each_alone_the_earlier_is_told(store: objckpt.CheckpointStore) -> None:
    """Trap 16: with ``no_dist`` every process is its own coordinator."""
    earlier = store.begin(create=True, no_dist=True)
    save(earlier, 1, {"w": torch.ones(3)})
    later = objckpt.open(store.config).begin(no_dist=True)
    assert isinstance(refused(earlier, {"w": torch.ones(3)}), FencedError)
    save(later, 2, {"w": torch.ones(3)})
    assert [entry.step for entry in store.checkpoints()] == [2, 1]


def test_tied_tensors_come_back_under_both_names(store: objckpt.CheckpointStore) -> None:
    """D08: stored twice, so that either name can be read alone."""
    tied = torch.randn(1000)
    save(store.begin(create=True), 1, {"a": tied, "b": tied, "part": tied[:10]})
    found = load(store, {"a": torch.zeros(1000), "b": torch.zeros(1000), "part": torch.zeros(10)})
    assert torch.equal(found["a"], tied)
    assert torch.equal(found["b"], tied)
    shared = torch.zeros(1000)
    load(store, {"a": shared, "b": shared, "part": shared[:10]})
    assert torch.equal(shared, tied)


def test_keys_that_become_the_same_are_refused_by_name(store: objckpt.CheckpointStore) -> None:
    """D12: 'a.b' and a -> b; 1 and '1'."""
    run = store.begin(create=True)
    one = torch.ones(1)
    assert "a.b" in str(refused(run, {"a.b": one, "a": {"b": one}}))
    assert "a.1" in str(refused(run, {"a": {1: one, "1": one}}))
    assert store.checkpoints() == []


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (torch.ones(3).to_sparse(), "sparse_coo"),
        (Wrapper(torch.ones(3)), "Wrapper"),
        (torch.ones(3, device="meta"), "meta device"),
    ],
    ids=["sparse", "wrapper", "meta"],
)
def test_tensors_that_have_no_bytes_are_refused_by_name(
    store: objckpt.CheckpointStore, value: torch.Tensor, named: str
) -> None:
    """D10: and nothing becomes visible."""
    found = refused(store.begin(create=True), {"fine": torch.ones(3), "odd": value})
    assert isinstance(found, InvalidInputError)
    assert "'odd'" in str(found)
    assert named in str(found)
    assert store.checkpoints() == []


def test_a_quantized_tensor_is_refused_before_anything_is_sent(store: objckpt.CheckpointStore, tmp_path: Path) -> None:
    run = store.begin(create=True)
    with pytest.warns(UserWarning, match="quantize"):
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    found = refused(run, {"fine": torch.ones(3), "odd": quantized})
    assert "'odd' is a quantized tensor" in str(found)
    assert not [path for path in tmp_path.rglob("data/*/*/*") if path.is_file()]


def test_a_tensor_that_changes_its_shape_after_planning_is_refused(store: objckpt.CheckpointStore) -> None:
    class Changing(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return torch.cat([super().resolve_data(write_item), torch.ones(1)])

    found = refused(store.begin(create=True), {"w": torch.ones(3)}, planner=Changing())
    assert "'w' is float32[4], the plan says float32[3]" in str(found)
    assert store.checkpoints() == []


def test_a_part_of_a_tensor_alone_is_not_committed(store: objckpt.CheckpointStore) -> None:
    """One process of several that saves without the others: it would look complete and never load."""

    class Half(DefaultSavePlanner):
        def create_local_plan(self) -> Any:
            plan = super().create_local_plan()
            items = [
                dataclasses.replace(item, tensor_data=dataclasses.replace(item.tensor_data, size=torch.Size([20])))
                for item in plan.items
            ]
            return dataclasses.replace(plan, items=items)

    found = refused(store.begin(create=True), {"w": torch.ones(10)}, planner=Half())
    assert isinstance(found, InvalidInputError)
    assert "leaves out 10 elements of 'w'" in str(found)
    assert store.checkpoints() == []


def test_a_missing_key_and_the_one_that_took_its_place_are_both_told(store: objckpt.CheckpointStore) -> None:
    """D12: a list that was empty on one side."""
    run = store.begin(create=True)
    save(run, 1, {"k": [{"a": 1}]})
    with pytest.raises(CheckpointException) as caught:
        load(store, {"k": []})
    assert "'k' is not in the checkpoint; not asked for: 'k.0.a'" in str(objckpt.cause(caught.value))
