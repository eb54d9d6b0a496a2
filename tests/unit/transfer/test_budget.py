"""The byte budget."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from objckpt.transfer.budget import ByteBudget


def test_never_more_than_the_limit_is_in_flight() -> None:
    budget = ByteBudget(100)
    lock = threading.Lock()
    held, most = 0, 0

    def work(size: int) -> None:
        nonlocal held, most
        for _ in range(50):
            budget.acquire(size)
            with lock:
                held += size
                most = max(most, held)
            with lock:
                held -= size
            budget.release(size)

    with ThreadPoolExecutor(8) as pool:
        for task in [pool.submit(work, size) for size in (10, 20, 30, 40, 50, 60, 70, 100)]:
            task.result()
    assert most <= 100
    assert budget.in_flight == 0


def test_a_request_over_the_limit_is_admitted_alone() -> None:
    budget = ByteBudget(100)
    budget.acquire(500)
    assert budget.in_flight == 500
    assert not budget.try_acquire(1)
    budget.release(500)
    assert budget.try_acquire(1)
    assert not budget.try_acquire(500)


def test_a_large_request_is_not_starved_by_small_ones_that_come_later() -> None:
    budget = ByteBudget(100)
    budget.acquire(60)
    entered = threading.Event()

    def large() -> None:
        budget.acquire(100)
        entered.set()
        budget.release(100)

    thread = threading.Thread(target=large)
    thread.start()
    while not budget._queue:
        pass
    assert not budget.try_acquire(10)
    budget.release(60)
    thread.join(10)
    assert entered.is_set()
