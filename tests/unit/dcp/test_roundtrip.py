"""State dictionaries through DCP and back in one process, bit for bit."""

from __future__ import annotations

import dataclasses
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict, _load_state_dict_from_keys

import objckpt
from objckpt.dcp.tensors import TensorSource, memory_of
from objckpt.errors import InvalidInputError, MismatchError, UnsafeObjectError
from objckpt.telemetry import RequestDone
from tests.places import Remembering

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is",
    "ignore:ComplexHalf support",
    "ignore:TypedStorage is deprecated",
    "ignore:.*_load_state_dict",
)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with objckpt.open([f"{tmp_path}/{name}/run" for name in "abc"]) as opened:
        yield opened


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def save(store: objckpt.CheckpointStore, state: dict[str, Any], step: int = 1) -> Any:
    run = store.begin(create=True)
    writer = run.writer(step=step)
    dcp.save(state, storage_writer=writer, no_dist=True)
    return writer.result


def load(store: objckpt.CheckpointStore, state: dict[str, Any], **options: Any) -> dict[str, Any]:
    dcp.load(state, storage_reader=store.reader(), no_dist=True, **options)
    return state


DTYPES = sorted(
    {
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype)
        and not value.is_complex
        and not str(value).startswith(("torch.q", "torch.bits", "torch.int1", "torch.int2", "torch.int3", "torch.int4"))
        and not str(value).startswith(("torch.int5", "torch.int6", "torch.int7", "torch.uint1", "torch.uint2"))
        and not str(value).startswith(("torch.uint3", "torch.uint4", "torch.uint5", "torch.uint6", "torch.uint7"))
    }
    | {torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64}
    | {torch.complex32, torch.complex64, torch.complex128},
    key=str,
)


def patterns(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Random bits, NaN payloads included."""
    count = torch.Size(shape).numel()
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (count * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def test_every_type_comes_back_bit_for_bit(store: objckpt.CheckpointStore) -> None:
    """D10: bf16, fp8 kinds, complex, bool, unsigned; 0-d and empty ones."""
    assert {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2} <= set(DTYPES)
    state = {
        f"{dtype}-{shape}": patterns(dtype, shape)
        for dtype in DTYPES
        for shape in ((), (0, 5), (3,), (7, 11), (5, 1, 3))
    }
    save(store, state)
    found = load(store, {name: torch.zeros_like(value.view(torch.uint8) if value.dim() and value.numel() else value)
                         .view(value.dtype) if value.dim() and value.numel() else torch.empty_like(value)
                         for name, value in state.items()})  # fmt: skip
    for name, value in state.items():
        assert found[name].dtype == value.dtype, name
        assert bits(found[name]) == bits(value), name


def test_views_and_strange_strides_are_stored_as_what_they_show(store: objckpt.CheckpointStore) -> None:
    """D07: stored bytes are logical bytes, and the neighbourhood of a view stays private."""
    base = torch.full((1_000_000,), 12345.678)
    base[:10] = torch.arange(10.0)
    state = {
        "head": base[:10],
        "transposed": torch.arange(6000.0).reshape(60, 100).t(),
        "strided": torch.arange(100_000.0)[::7],
        "expanded": torch.tensor([1.5]).expand(1000, 3),
        "conjugate": torch.randn(300, dtype=torch.complex64).conj(),
        "negative": torch.randn(40, dtype=torch.complex64).conj().imag,
        "permuted": torch.randn(3, 5, 7, 2).permute(2, 0, 3, 1),
        "flipped": torch.randn(2000, 1500)[:, 3:1400],
    }
    result = save(store, state)
    logical = sum(value.numel() * value.element_size() for value in state.values())
    assert result.size < logical + 10_000
    found = load(store, {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in state.items()})
    for name, value in state.items():
        assert torch.equal(found[name], value.resolve_conj().resolve_neg()), name


def test_destinations_of_any_stride_are_filled(store: objckpt.CheckpointStore) -> None:
    value = torch.arange(3_000_000.0).reshape(1000, 3000)
    save(store, {"w": value})
    wide = torch.zeros(3000, 1000).t()
    assert torch.equal(load(store, {"w": wide})["w"], value)
    inside = torch.zeros(1200, 3500)
    load(store, {"w": inside[100:1100, 200:3200]})
    assert torch.equal(inside[100:1100, 200:3200], value)
    assert inside[:100].eq(0).all()


def test_containers_come_back_as_they_were(store: objckpt.CheckpointStore) -> None:
    """Trap 19, D12: paths of text and numbers, objects, tuples."""
    state = {"a": {"b": [torch.ones(2), {"c": 3}], "1": torch.zeros(1)}, "s": "text", "n": None, "t": (1, 2)}
    save(store, state)
    empty: dict[str, Any] = {}
    _load_state_dict(empty, store.reader(), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert torch.equal(empty["a"]["b"][0], torch.ones(2))
    assert empty["a"]["b"][1]["c"] == 3
    assert empty["s"] == "text"
    assert empty["t"] == (1, 2)


def test_single_keys_can_be_loaded(store: objckpt.CheckpointStore) -> None:
    save(store, {"model": {"w": torch.arange(5.0), "b": torch.ones(3)}, "step": 7})
    assert torch.equal(
        _load_state_dict_from_keys({"model.w"}, storage_reader=store.reader())["model"]["w"], torch.arange(5.0)
    )


def test_a_torch_save_file_and_back(store: objckpt.CheckpointStore, tmp_path: Path) -> None:
    """What torch's format_utils do with paths, done with our reader and writer."""
    state = {"model": {"w": torch.randn(100, 3)}, "step": 5}
    torch.save(state, tmp_path / "file.pt")
    save(store, torch.load(tmp_path / "file.pt", weights_only=True))
    back: dict[str, Any] = {}
    _load_state_dict(back, store.reader(), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert torch.equal(back["model"]["w"], state["model"]["w"])
    torch.save(back, tmp_path / "back.pt")
    assert torch.load(tmp_path / "back.pt", weights_only=True)["step"] == 5


def test_all_differences_are_told_at_once_and_nothing_is_touched(store: objckpt.CheckpointStore) -> None:
    """D09, D11: before the first byte is written."""
    save(store, {"a": torch.ones(4), "b": torch.ones(4), "c": torch.ones(4), "o": 5})
    state = {"a": torch.zeros(5), "b": torch.zeros(4, dtype=torch.bfloat16), "c": torch.zeros(4), "d": torch.zeros(1)}
    with pytest.raises(CheckpointException) as caught:
        load(store, state, planner=objckpt.LoadPlanner())
    found = objckpt.cause(caught.value)
    assert isinstance(found, MismatchError)
    for part in ("'a' has shape [5], the checkpoint [4]", "'b' is bfloat16, the checkpoint float32", "'d' is not in"):
        assert part in str(found)
    assert state["c"].eq(0).all()
    wrong = {"b": torch.zeros(4, dtype=torch.int64), "c": torch.zeros(4)}
    with pytest.raises(CheckpointException) as caught:
        load(store, wrong)
    assert isinstance(objckpt.cause(caught.value), MismatchError)
    assert wrong["c"].eq(0).all()


def test_unexpected_keys_are_no_error_and_are_known(store: objckpt.CheckpointStore) -> None:
    save(store, {"a": torch.ones(4), "b": torch.ones(4)})
    planner = objckpt.LoadPlanner()
    load(store, {"a": torch.zeros(4)}, planner=planner)
    assert planner.unexpected == ("b",)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_objects_that_run_code_are_refused_by_name(store: objckpt.CheckpointStore, tmp_path: Path) -> None:
    """D23, trap 13: unless whoever reads allows it."""
    fired = tmp_path / "fired"
    save(store, {"o": Bomb(fired), "w": torch.ones(1)})
    with pytest.raises(CheckpointException) as caught:
        load(store, {"o": None, "w": torch.zeros(1)})
    found = objckpt.cause(caught.value)
    assert isinstance(found, UnsafeObjectError)
    assert "'o'" in str(found)
    assert "allow_pickles" in str(found)
    assert not fired.exists()
    trusting = dataclasses.replace(store.config, read=objckpt.ReadPolicy(allow_pickles=True))
    load(objckpt.open(trusting), {"o": None, "w": torch.zeros(1)})
    assert fired.exists()


def test_no_stored_object_replaced_by_a_pickle_runs_anything(store: objckpt.CheckpointStore, tmp_path: Path) -> None:
    """D23: each object in turn, on all targets at once."""
    save(store, {"o": [1, 2], "w": torch.ones(100)})
    fired = tmp_path / "fired"
    bomb = pickle.dumps(Bomb(fired))
    names = sorted({p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file()})
    assert len(names) >= 5
    for name in names:
        kept = {}
        for target in "abc":
            path = tmp_path / target / name
            if path.exists():
                kept[path] = path.read_bytes()
                path.write_bytes(bomb)
        with suppress(CheckpointException, objckpt.ObjckptError):
            load(objckpt.open(store.config), {"o": [0, 0], "w": torch.zeros(100)})
        assert not fired.exists(), name
        for path, body in kept.items():
            path.write_bytes(body)


def test_a_tensor_of_a_large_shard_costs_its_bytes_and_two_blocks_a_range(tmp_path: Path) -> None:
    """D27: no matter what lies around it."""
    seen = Remembering()
    store = objckpt.open([f"{tmp_path}/{name}/run" for name in "abc"], observer=seen)
    save(store, {f"w{i}": torch.randn(500_000) for i in range(16)})
    seen.events.clear()
    load(store, {"w7": torch.zeros(500_000)})
    gets = [event for event in seen.of(RequestDone) if event.operation == "get" and event.key.startswith("data/")]
    assert sum(event.size for event in gets) <= 2_000_000 + 2 * 65536 * len(gets)


def test_tensors_that_are_no_arrays_are_refused_by_name(store: objckpt.CheckpointStore) -> None:
    """D10: before anything is uploaded."""
    with pytest.raises(CheckpointException) as caught:
        save(store, {"odd": torch.ones(3).to_sparse()})
    assert "odd" in str(caught.value)
    assert store.checkpoints() == []


def test_a_writer_is_for_one_save_and_a_path_means_nothing(store: objckpt.CheckpointStore, tmp_path: Path) -> None:
    run = store.begin(create=True)
    writer = run.writer(step=1)
    dcp.save({"w": torch.ones(1)}, storage_writer=writer, no_dist=True)
    with pytest.raises(CheckpointException, match="one save"):
        dcp.save({"w": torch.ones(1)}, storage_writer=writer, no_dist=True)
    with pytest.raises(InvalidInputError, match="checkpoint_id"):
        dcp.save({"w": torch.ones(1)}, storage_writer=run.writer(step=2), checkpoint_id=str(tmp_path), no_dist=True)
    with pytest.raises(InvalidInputError, match="step"):
        run.writer(step=-1)
    with pytest.raises(InvalidInputError, match="process"):
        pickle.dumps(run)


def test_a_pickled_writer_is_refused_where_it_came_from(store: objckpt.CheckpointStore) -> None:
    run = store.begin(create=True)
    writer = run.writer(step=1)
    copy = pickle.loads(pickle.dumps(writer))
    with pytest.raises(CheckpointException, match="another process"):
        dcp.save({"w": torch.ones(1)}, storage_writer=writer, no_dist=True)
    dcp.save({"w": torch.ones(1)}, storage_writer=copy, no_dist=True)
    assert [entry.step for entry in store.checkpoints()] == [1]


def test_a_checkpoint_of_many_ranks_worth_of_keys_keeps_its_metadata_beside_it(store: objckpt.CheckpointStore) -> None:
    state = {f"layer.{i:05d}.weight": torch.tensor([float(i)]) for i in range(6000)}
    save(store, state)
    assert any(part.inline is None for part in store.checkpoint().manifest.metadata)
    assert load(store, {"layer.05999.weight": torch.zeros(1)})["layer.05999.weight"].item() == 5999.0


def test_a_read_only_view_is_what_an_upload_gets() -> None:
    tensor = torch.arange(10.0)
    source = TensorSource("w", sizes=(10,), dtype=torch.float32, resolve=lambda: tensor)
    view = source.view(4, 12)
    assert view is not None
    assert view.readonly
    memory = memory_of(tensor)
    assert memory is not None
    assert bytes(view) == bytes(memory[4:12])


def test_a_tensor_that_is_not_as_planned_is_refused() -> None:
    source = TensorSource("w", sizes=(10,), dtype=torch.float32, resolve=lambda: torch.zeros(11))
    with pytest.raises(InvalidInputError, match=r"'w' is float32\[11\]"):
        source.view(0, 40)
