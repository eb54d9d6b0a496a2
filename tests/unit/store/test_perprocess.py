"""A value that every process makes for itself."""

from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from objckpt.store.perprocess import PerProcess


def test_threads_that_come_together_get_one_value() -> None:
    made: list[object] = []
    start = threading.Barrier(16)
    values: PerProcess[object] = PerProcess()

    def make() -> object:
        made.append(object())
        return made[-1]

    def get(_: int) -> object:
        start.wait()
        return values.get(make)

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(get, range(16))) == set(made)
    assert len(made) == 1


def test_none_is_a_value_like_others() -> None:
    values: PerProcess[None] = PerProcess()
    values.get(lambda: None)
    values.get(lambda: pytest.fail("made twice"))


def test_a_failure_to_make_leaves_room_for_another_try() -> None:
    values: PerProcess[int] = PerProcess()
    with pytest.raises(ZeroDivisionError):
        values.get(lambda: 1 // 0)
    assert values.get(lambda: 7) == 7


def test_only_the_value_that_was_seen_to_fail_is_taken_out() -> None:
    values: PerProcess[list[int]] = PerProcess()
    old = values.get(lambda: [1])
    assert values.take(old) is old
    new = values.get(lambda: [2])
    assert values.take(old) is None
    assert values.get(lambda: [3]) is new
    assert values.take() is new
    assert values.take() is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_makes_its_own_even_if_a_thread_held_the_lock_at_the_fork() -> None:
    values: PerProcess[int] = PerProcess()
    inside, leave = threading.Event(), threading.Event()

    def slow() -> int:
        inside.set()
        leave.wait(30)
        return os.getpid()

    thread = threading.Thread(target=lambda: values.get(slow))
    thread.start()
    inside.wait(30)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if values.get(os.getpid) == os.getpid() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    leave.set()
    thread.join()
    assert values.get(lambda: 0) == os.getpid()


def test_a_pickled_one_is_empty() -> None:
    values: PerProcess[int] = PerProcess()
    values.get(lambda: 1)
    assert pickle.loads(pickle.dumps(values)).get(lambda: 2) == 2
