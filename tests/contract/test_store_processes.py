"""Stores that are sent to other processes, survive a fork, and are opened by many threads at once."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from objckpt.config import TargetConfig, TransferConfig
from objckpt.errors import InvalidInputError
from objckpt.seams import Seams
from objckpt.store.limit import BandwidthLimit
from objckpt.store.memory import MemorySpace, MemoryStore
from objckpt.store.open import open_target, prepare_root
from objckpt.store.retry import RetryingStore
from objckpt.telemetry import NullObserver

MiB = 1024 * 1024


def opened(target: TargetConfig, run: str) -> RetryingStore:
    return open_target(
        target,
        run=run,
        transfer=TransferConfig(threads=8, operation_deadline_s=20.0),
        seams=Seams(),
        observer=NullObserver(),
        bandwidth=BandwidthLimit(10**12, Seams().clock),
    )


@pytest.fixture(params=["local", "localstack", "seaweedfs", "fake_gcs"])
def stack(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    bucket_of: Callable[[str], tuple[Any, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[RetryingStore]:
    """The whole stack of decorators as ``open_target`` builds it."""
    if request.param == "local":
        target = TargetConfig(name="target", url=str(tmp_path))
    else:
        server, bucket = bucket_of(request.param)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        scheme = "gs" if request.param == "fake_gcs" else "s3"
        target = TargetConfig(name="target", url=f"{scheme}://{bucket}/processes", endpoint_url=server.url)
    run = f"run-{os.urandom(4).hex()}"
    prepare_root(target, run)
    store = opened(target, run)
    yield store
    store.close()


def read_all(store: RetryingStore, names: list[str], rounds: int) -> bool:
    with ThreadPoolExecutor(4) as pool:
        return all(
            content == body_of(name)
            for _ in range(rounds)
            for name, content in zip(names, pool.map(store.get, names), strict=True)
        )


def body_of(name: str) -> bytes:
    return random.Random(name).randbytes(200_000)


def in_child(work: Callable[[], bool]) -> int:
    """Forks, does the work there, and returns the child's id; its exit status says how it went."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = 0 if work() else 2
    except BaseException:  # noqa: BLE001 - the edge of the child: nothing may escape into pytest's copy
        traceback.print_exc()
    finally:
        os._exit(code)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_both_sides_of_a_fork_read_their_own_bytes(stack: RetryingStore) -> None:
    """S16: sockets shared with a child mix responses."""
    ours, theirs = [f"ours/{i}" for i in range(4)], [f"theirs/{i}" for i in range(4)]
    for name in ours + theirs:
        stack.put(name, body_of(name))
    assert read_all(stack, ours, 1)  # the pool has warm connections now
    pid = in_child(lambda: read_all(stack, theirs, 8))
    assert read_all(stack, ours, 8)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_uploads_leaves_no_held_lock_behind(stack: RetryingStore) -> None:
    """S16: some thread may hold any lock at the moment of the fork."""
    stop = threading.Event()

    def upload(number: int) -> None:
        while not stop.is_set():
            stack.put(f"busy/{number}", b"x" * 50_000)

    with ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(upload, number) for number in range(4)]
        try:
            for round_ in range(5):
                name = f"child/{round_}"

                def work(name: str = name) -> bool:
                    stack.put(name, body_of(name))
                    return stack.get(name) == body_of(name)

                assert os.waitpid(in_child(work), 0)[1] == 0
        finally:
            stop.set()
        for each in busy:
            each.result()


def _spawned(pickled: bytes, name: str) -> None:
    store = pickle.loads(pickled)
    assert store.get(name) == body_of(name)
    store.put("from-child", b"hello")
    store.close()


def test_a_pickled_store_opens_anew_in_another_process(stack: RetryingStore) -> None:
    """S14, S16: what travels is the configuration, no client, no socket, no frozen key."""
    stack.put("data/1", body_of("data/1"))
    pickled = pickle.dumps(stack)
    child = multiprocessing.get_context("spawn").Process(target=_spawned, args=(pickled, "data/1"))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert stack.get("from-child") == b"hello"
    for secret in (b"testsecret0123456789", b"testkey"):
        assert secret not in pickled


def test_a_memory_store_refuses_to_be_sent_away() -> None:
    with pytest.raises(InvalidInputError, match="one process"):
        pickle.dumps(MemoryStore("target", space=MemorySpace("here")))


def test_many_threads_may_create_clients_at_once(
    bucket_of: Callable[[str], tuple[Any, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S16: creating SDK sessions concurrently used to fail with KeyError."""
    server, bucket = bucket_of("localstack")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    target = TargetConfig(name="target", url=f"s3://{bucket}/threads", endpoint_url=server.url)
    stores = [opened(target, "run") for _ in range(16)]
    stores[0].put("a", b"body")
    stores[0].close()
    start = threading.Barrier(32)

    def open_and_read(number: int) -> bool:
        store = stores[number % len(stores)]
        start.wait()
        return store.get("a") == b"body"

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(open_and_read, range(32)))
    for store in stores:
        store.close()
