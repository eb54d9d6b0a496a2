"""What a reader and a planner refuse, and that a refusal comes before anything of the caller's is touched."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

import objckpt
from objckpt.dcp.collective import on_coordinator
from objckpt.errors import InvalidInputError, MismatchError, NotFoundError, UnavailableError, UnsafeObjectError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:Detected pickle protocol")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[objckpt.CheckpointStore]:
    with objckpt.open([f"{tmp_path}/{name}/run" for name in "abc"]) as opened:
        yield opened


def saved(store: objckpt.CheckpointStore, state: dict[str, Any], step: int = 1) -> objckpt.Run:
    run = store.begin(create=True)
    dcp.save(state, storage_writer=run.writer(step=step), no_dist=True)
    return run


def refused(reader: Any, state: dict[str, Any], **options: Any) -> BaseException:
    with pytest.raises(CheckpointException) as caught:
        dcp.load(state, storage_reader=reader, no_dist=True, **options)
    return objckpt.cause(caught.value)


class Unsafe:
    """An object of a class that a reader does not know."""


def test_an_unsafe_object_is_found_before_any_tensor_is_touched(store: objckpt.CheckpointStore) -> None:
    """D22, D23: the state is as it was."""
    saved(store, {"a": torch.ones(10), "o": Unsafe(), "z": torch.ones(10), "fine": {"x": (1, "two", [None, 3.5])}})
    state = {"a": torch.zeros(10), "o": None, "z": torch.zeros(10), "fine": {"x": None}}
    assert isinstance(refused(store.reader(), state), UnsafeObjectError)
    assert state["a"].eq(0).all()
    assert state["z"].eq(0).all()
    assert state["fine"] == {"x": None}


@pytest.mark.parametrize(
    "body",
    [b"", b".", b"\x80\x02(.", b"\x80\x02e.", b"\x80\x02h\x05.", b"\x80\x02}q\x00Rq.", b"PK\x03\x04" + b"x" * 40,
     b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00idq\x00R.", b"not a pickle", b"\x80\x05\x95\xff\xff\xff\xff\xff\xff\xff\x7f."],
)  # fmt: skip
def test_bytes_that_are_no_object_are_refused_by_name(store: objckpt.CheckpointStore, body: bytes) -> None:
    """D23: whatever the restricted unpickler makes of them, the caller gets one kind of error."""

    class Raw(dcp.DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return io.BytesIO(body)

    run = store.begin(create=True)
    dcp.save({"o": 1}, storage_writer=run.writer(step=1), no_dist=True, planner=Raw())
    found = refused(store.reader(), {"o": 0})
    assert isinstance(found, UnsafeObjectError)
    assert "'o'" in str(found)


def test_a_meta_tensor_is_no_place_to_load_into(store: objckpt.CheckpointStore) -> None:
    """D14: torch itself copies into it without a word."""

    class Unmaterialised(DefaultLoadPlanner):
        def resolve_tensor(self, read_item: Any) -> torch.Tensor:
            found = super().resolve_tensor(read_item)
            return found.to("meta") if read_item.dest_index.fqn == "b" else found

    saved(store, {"a": torch.ones(10), "b": torch.ones(3)})
    state = {"a": torch.zeros(10), "b": torch.zeros(3)}
    found = refused(store.reader(), state, planner=Unmaterialised())
    assert isinstance(found, MismatchError)
    assert "'b' is on the meta device" in str(found)
    assert state["a"].eq(0).all()


def test_a_partial_load_fills_what_is_there_and_tells_the_rest(store: objckpt.CheckpointStore) -> None:
    """D11: only where the caller asked for it."""
    saved(store, {"w": torch.ones(4), "v": torch.ones(2)})
    state = {"w": torch.zeros(4), "new": torch.full((3,), 7.0)}
    found = refused(store.reader(), state, planner=objckpt.LoadPlanner())
    assert isinstance(found, MismatchError)
    assert "'new' is not in the checkpoint" in str(found)
    assert "not asked for: 'v'" in str(found)
    assert state["w"].eq(0).all()
    planner = objckpt.LoadPlanner(allow_partial_load=True)
    dcp.load(state, storage_reader=store.reader(), no_dist=True, planner=planner)
    assert state["w"].eq(1).all()
    assert state["new"].eq(7).all()
    assert planner.unexpected == ("v",)


def test_a_tensor_and_an_object_under_one_key_are_told_apart(store: objckpt.CheckpointStore) -> None:
    saved(store, {"x": 5, "y": torch.ones(2)})
    found = refused(store.reader(), {"x": torch.zeros(1), "y": 5}, planner=objckpt.LoadPlanner())
    assert isinstance(found, MismatchError)
    assert "'x' is a tensor here" in str(found)
    assert "'y' is an object here" in str(found)


def test_metadata_of_single_ranks_are_refused_and_the_first_error_is_kept(store: objckpt.CheckpointStore) -> None:
    """Traps 4 and 5: after a failure DCP asks for rank-local metadata, and reports an assertion."""
    saved(store, {"w": torch.ones(1)})
    reader = store.reader(step=9)
    found = refused(reader, {"w": torch.zeros(1)})
    assert isinstance(reader.error, NotFoundError)
    assert "step 9" in str(reader.error)
    assert not isinstance(found, CheckpointException)
    with pytest.raises(InvalidInputError, match="single ranks"):
        store.reader().read_metadata(rank=0)


def test_a_pickled_reader_reads_the_checkpoint_that_the_first_had_found(store: objckpt.CheckpointStore) -> None:
    """D20: whatever has been committed since."""
    run = saved(store, {"w": torch.ones(4)})
    reader = store.reader()
    copy = pickle.loads(pickle.dumps(reader))
    dcp.save({"w": torch.full((4,), 2.0)}, storage_writer=run.writer(step=2), no_dist=True)
    for again in (copy, reader, copy):
        state = {"w": torch.zeros(4)}
        dcp.load(state, storage_reader=again, no_dist=True)
        assert state["w"].eq(1).all()


def test_a_reader_takes_no_path(store: objckpt.CheckpointStore) -> None:
    """Traps 10 and 15."""
    saved(store, {"w": torch.ones(1)})
    with pytest.raises(InvalidInputError, match=r"store\.reader"):
        dcp.load({"w": torch.zeros(1)}, storage_reader=store.reader(), checkpoint_id="s3://b/k", no_dist=True)
    with pytest.raises(InvalidInputError, match="write 's3://b/k' as text"):
        objckpt.open(Path("s3://b/k"))


def wrapped(*failures: tuple[int, BaseException]) -> CheckpointException:
    return CheckpointException("step", {rank: (error, None) for rank, error in failures})  # type: ignore[misc]


def test_the_cause_is_found_through_everything_that_dcp_puts_around_it() -> None:
    """Trap 5: objckpt's own errors first, of the lowest rank; else the first failure."""
    low, high = UnavailableError("low"), UnavailableError("high")
    assert objckpt.cause(wrapped((3, high), (1, low))) is low
    assert objckpt.cause(wrapped((0, RuntimeError("other")), (2, high))) is high
    other = RuntimeError("other")
    assert objckpt.cause(wrapped((0, other), (1, ValueError()))) is other
    assert objckpt.cause(wrapped((0, wrapped((0, low))))) is low
    assert objckpt.cause(other) is other
    chained = RuntimeError("outside")
    chained.__cause__ = wrapped((0, low))
    assert objckpt.cause(chained) is low
    chained.__cause__, low.__context__ = low, chained
    assert objckpt.cause(chained) is low


def test_without_a_process_group_every_process_acts_for_itself() -> None:
    assert on_coordinator(lambda: 5) == 5
    assert on_coordinator(lambda: 6, no_dist=True) == 6
    with pytest.raises(UnavailableError):
        on_coordinator(lambda: (_ for _ in ()).throw(UnavailableError("gone")))
