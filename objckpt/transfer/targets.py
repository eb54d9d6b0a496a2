"""The targets of a run as one process uses them: stores, threads and the byte budget, opened lazily.

Pickling and forking keep the settings and drop everything that is open.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from objckpt.config import StoreConfig
from objckpt.seams import Seams
from objckpt.store.open import BandwidthLimit, open_target
from objckpt.store.retry import RetryingStore
from objckpt.telemetry import LogObserver, Observer
from objckpt.transfer.budget import ByteBudget
from objckpt.transfer.placement import Site


class Targets:
    """All targets of a configuration.

    Args:
        config: What to open.
        seams: Clock, randomness and identities.
        observer: Takes the events of all that happens on the targets.
    """

    def __init__(self, config: StoreConfig, *, seams: Seams | None = None, observer: Observer | None = None) -> None:
        self.config = config
        self.seams = seams or Seams()
        self.observer = observer or LogObserver()
        self._lock = threading.Lock()
        self._open: _Opened | None = None

    @property
    def stores(self) -> Mapping[str, RetryingStore]:
        """Every target's store, by the target's name, in the configuration's order."""
        return self._opened().stores

    @property
    def executor(self) -> ThreadPoolExecutor:
        """``transfer.threads`` threads for fragments. Tasks on it never wait for other tasks on it."""
        return self._opened().executor

    @property
    def control_executor(self) -> ThreadPoolExecutor:
        """Threads for control objects, one and more per target, so that they never queue behind fragments."""
        return self._opened().control_executor

    @property
    def budget(self) -> ByteBudget:
        return self._opened().budget

    @property
    def sites(self) -> tuple[Site, ...]:
        """The targets that take fragments, as placement sees them."""
        return tuple(
            Site(name=target.name, domain=target.domain, read_cost=target.read_cost)
            for target in self.config.fragment_targets
        )

    def close(self) -> None:
        """Ends threads and connections; using the targets again reopens them."""
        with self._lock:
            opened, self._open = self._open, None
        if opened is not None and opened.pid == os.getpid():
            opened.executor.shutdown(wait=True)
            opened.control_executor.shutdown(wait=True)
            for store in opened.stores.values():
                store.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "seams": self.seams, "observer": self.observer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Targets.__init__(self, state["config"], seams=state["seams"], observer=state["observer"])

    def _opened(self) -> _Opened:
        found = self._open
        if found is not None and found.pid == os.getpid():
            return found
        if found is not None:
            # A fork copied the parent's lock and threads; neither may be touched here.
            self._lock, self._open = threading.Lock(), None
        with self._lock:
            opened = self._open or _Opened(self.config, self.seams, self.observer)
            self._open = opened
            return opened


class _Opened:
    def __init__(self, config: StoreConfig, seams: Seams, observer: Observer) -> None:
        transfer = config.transfer
        limit = BandwidthLimit(transfer.bandwidth, clock=seams.clock) if transfer.bandwidth else None
        self.pid = os.getpid()
        self.stores = {
            target.name: open_target(
                target, run=config.run, transfer=transfer, seams=seams, observer=observer, bandwidth=limit
            )
            for target in config.targets
        }
        self.executor = ThreadPoolExecutor(transfer.threads, thread_name_prefix="objckpt-transfer")
        self.control_executor = ThreadPoolExecutor(8 * len(config.targets), thread_name_prefix="objckpt-control")
        self.budget = ByteBudget(transfer.memory_budget)
