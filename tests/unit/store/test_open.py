"""From settings to a store: where keys lie, what is made, which runs there are."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from objckpt.config import TargetConfig, TransferConfig
from objckpt.errors import BucketNotFoundError, CapabilityError
from objckpt.seams import Seams
from objckpt.store.limit import BandwidthLimit
from objckpt.store.memory import MemorySpace
from objckpt.store.open import list_runs, memory_space, open_target, prepare_root
from objckpt.store.retry import RetryingStore
from objckpt.telemetry import RequestDone
from tests.places import Remembering, StillClock


def opened(target: TargetConfig, run: str = "run-1", **more: object) -> RetryingStore:
    settings = {"transfer": TransferConfig(), "seams": Seams(), "observer": Remembering()} | more
    return open_target(target, run=run, **settings)


@pytest.fixture
def space() -> MemorySpace:
    space = memory_space(f"space-{uuid.uuid4().hex}")
    space.create()
    return space


def runs_of(target: TargetConfig) -> list[str]:
    return list(list_runs(target, transfer=TransferConfig(), seams=Seams()))


def test_the_keys_of_a_run_lie_below_the_url_and_the_runs_name(space: MemorySpace) -> None:
    opened(TargetConfig(name="t", url=f"memory://{space.name}/some/prefix/")).put("data/1", b"x")
    opened(TargetConfig(name="t", url=f"memory://{space.name}")).put("data/1", b"y")
    assert space.objects() == {"some/prefix/run-1/data/1": b"x", "run-1/data/1": b"y"}


def test_a_directory_is_a_target_by_path_and_by_url(tmp_path: Path) -> None:
    by_path = TargetConfig(name="t", url=str(tmp_path / "d"))
    by_url = TargetConfig(name="t", url=(tmp_path / "d").as_uri())
    prepare_root(by_path, "run-1")
    opened(by_path).put("a/b", b"1")
    assert opened(by_url).get("a/b") == b"1"
    assert (tmp_path / "d" / "run-1" / "a" / "b").read_bytes() == b"1"


def test_a_place_that_was_not_prepared_is_lost_and_not_empty(tmp_path: Path) -> None:
    for url in (str(tmp_path / "never"), f"memory://never-{uuid.uuid4().hex}"):
        target = TargetConfig(name="t", url=url)
        with pytest.raises(BucketNotFoundError):
            opened(target).put("a", b"1")
        with pytest.raises(BucketNotFoundError):
            list(opened(target).list(""))
        prepare_root(target, "run-1")
        prepare_root(target, "run-1")
        opened(target).put("a", b"1")


def test_buckets_are_never_made() -> None:
    """S21: preparing a bucket contacts nobody; there is nothing at this address."""
    prepare_root(TargetConfig(name="t", url="s3://bucket/p", endpoint_url="http://127.0.0.1:9"), "run-1")


def test_requests_are_observed_below_the_retries_and_limited(space: MemorySpace) -> None:
    seen, clock = Remembering(), StillClock()
    store = opened(
        TargetConfig(name="t", url=f"memory://{space.name}"),
        observer=seen,
        seams=Seams(clock=clock),
        bandwidth=BandwidthLimit(1000, clock),
    )
    store.put("a", bytes(5000))
    (event,) = seen.of(RequestDone)
    assert (event.target, event.operation, event.size) == ("t", "put", 5000)
    assert event.seconds == pytest.approx(4.75)


def test_runs_are_found_whatever_else_lies_there(space: MemorySpace) -> None:
    for key in (
        "p/run-1/markers/1",
        "p/run-1/data/00/1",
        "p/run-1-b/markers/1",
        "p/run.2/claims/1",
        "p/readme.txt",
        "p/with space/x",
        "q/other/markers/1",
    ):
        space.set_unchecked(key, b"")
    assert runs_of(TargetConfig(name="t", url=f"memory://{space.name}/p")) == ["run-1-b", "run-1", "run.2"]
    assert runs_of(TargetConfig(name="t", url=f"memory://{space.name}/empty")) == []


def test_finding_a_run_costs_one_listing_however_much_it_holds(space: MemorySpace) -> None:
    for run in ("a", "b"):
        for number in range(3000):
            space.set_unchecked(f"{run}/data/{number:06d}", b"")
    listings = []
    space.faults = lambda point: listings.append(point) if point.moment == "before" else None
    assert runs_of(TargetConfig(name="t", url=f"memory://{space.name}")) == ["a", "b"]
    assert len(listings) == 3


def test_runs_in_directories_are_found(tmp_path: Path) -> None:
    target = TargetConfig(name="t", url=str(tmp_path))
    for run in ("run-b", "run", "run-a"):
        prepare_root(target, run)
        opened(target, run).put("markers/1", b"")
    (tmp_path / "notes").mkdir()
    assert sorted(runs_of(target)) == ["run", "run-a", "run-b"]


def test_a_store_that_ignores_where_a_listing_begins_is_refused_and_not_asked_forever(
    space: MemorySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from objckpt.store.memory import MemoryStore

    real_list = MemoryStore.list
    monkeypatch.setattr(MemoryStore, "list", lambda self, prefix, *, after=None: real_list(self, prefix))
    space.set_unchecked("run-1/markers/1", b"")
    with pytest.raises(CapabilityError):
        runs_of(TargetConfig(name="t", url=f"memory://{space.name}"))


def test_opening_a_directory_imports_no_cloud_sdk(tmp_path: Path) -> None:
    code = """
import sys
from objckpt.config import TargetConfig, TransferConfig
from objckpt.seams import Seams
from objckpt.store.open import open_target
from objckpt.telemetry import NullObserver
open_target(TargetConfig(name="t", url=sys.argv[1]), run="r", transfer=TransferConfig(), seams=Seams(),
            observer=NullObserver()).name
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"boto3", "botocore"}, loaded
assert "google.auth" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=dict(os.environ), timeout=120)
