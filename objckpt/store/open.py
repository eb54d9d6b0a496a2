"""From a target's settings to its store: the one place where adapters and decorators are put together.

Keys of a run live under ``<target's url>/<run>/``. The spaces behind ``memory://`` URLs are the only state
of this module: they stand for buckets, which outlive whoever opens them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from objckpt.config import TargetConfig, TransferConfig
from objckpt.errors import CapabilityError, InvalidInputError
from objckpt.seams import Seams
from objckpt.store.limit import BandwidthLimit, LimitingStore
from objckpt.store.local import LocalStore
from objckpt.store.memory import MemorySpace, MemoryStore
from objckpt.store.observe import ObservingStore
from objckpt.store.port import ObjectStore, check_key
from objckpt.store.retry import RetryingStore, RetryPolicy
from objckpt.telemetry import NullObserver, Observer

__all__ = ["BandwidthLimit", "list_runs", "memory_space", "open_target", "prepare_root"]

# Control requests have threads of their own, beside those of the transfers.
_CONTROL_THREADS = 16

_spaces: dict[str, MemorySpace] = {}


def open_target(
    target: TargetConfig,
    *,
    run: str,
    transfer: TransferConfig,
    seams: Seams,
    observer: Observer,
    bandwidth: BandwidthLimit | None = None,
) -> RetryingStore:
    """Opens one target for one run. Nothing is contacted yet."""
    inner = _adapter(target, run=run, threads=transfer.threads + _CONTROL_THREADS, seams=seams)
    return _decorated(inner, transfer=transfer, seams=seams, observer=observer, bandwidth=bandwidth)


def prepare_root(target: TargetConfig, run: str) -> None:
    """Makes the place of a run where that is ours to do: directories and memory spaces, never buckets."""
    scheme, root, path = _place(target)
    if scheme == "file":
        LocalStore.prepare(os.path.join(root, path, run))
    elif scheme == "memory":
        memory_space(root).create()


def memory_space(name: str) -> MemorySpace:
    """The space behind ``memory://name`` in this process; made on first use, without existing yet."""
    return _spaces.setdefault(name, MemorySpace(name, exists=False))


def list_runs(target: TargetConfig, *, transfer: TransferConfig, seams: Seams) -> Iterator[str]:
    """Names below a target's URL that hold objects, found by jumping from one's first key to the next one's.

    Usually they are runs; only its markers say that one is.
    """
    store = _decorated(
        _adapter(target, run=None, threads=transfer.threads, seams=seams),
        transfer=transfer,
        seams=seams,
        observer=NullObserver(),
        bandwidth=None,
    )
    after: str | None = None
    seen: set[str] = set()
    while True:
        first = next(store.list("", after=after), None)
        if first is None:
            return
        run, _, rest = first.key.partition("/")
        if run in seen:
            raise CapabilityError(
                "the store ignores where a listing is to begin", target=target.name, hint="name the run in the url"
            )
        seen.add(run)
        # "~" sorts after everything that a key can contain.
        after = f"{run}/~" if rest else run
        if rest and _is_segment(run):
            yield run


def _adapter(target: TargetConfig, *, run: str | None, threads: int, seams: Seams) -> ObjectStore:
    scheme, root, path = _place(target)
    below = "/".join(part for part in (path, run) if part)
    prefix = f"{below}/" if below else ""
    if scheme == "file":
        return LocalStore(target.name, root=os.path.join(root, below), seams=seams)
    # An SDK is imported by those who use it: each takes a good part of a second.
    if scheme == "s3":
        from objckpt.store.s3 import S3Store

        return S3Store(target, bucket=root, prefix=prefix, threads=threads, seams=seams)
    if scheme == "gs":
        from objckpt.store.gcs import GcsStore

        return GcsStore(target, bucket=root, prefix=prefix, threads=threads, seams=seams)
    return MemoryStore(target.name, space=memory_space(root), prefix=prefix)


def _decorated(
    store: ObjectStore,
    *,
    transfer: TransferConfig,
    seams: Seams,
    observer: Observer,
    bandwidth: BandwidthLimit | None,
) -> RetryingStore:
    if bandwidth is not None:
        store = LimitingStore(store, limit=bandwidth)
    return RetryingStore(
        ObservingStore(store, clock=seams.clock, observer=observer),
        policy=RetryPolicy(operation_deadline_s=transfer.operation_deadline_s),
        clock=seams.clock,
        random=seams.random,
        observer=observer,
    )


def _place(target: TargetConfig) -> tuple[str, str, str]:
    """Scheme, bucket (or directory, or space) and the path below it."""
    place = target.place
    return place.scheme, place.root or "/", "/".join(place.path)


def _is_segment(name: str) -> bool:
    try:
        return "/" not in check_key(name)
    except InvalidInputError:
        return False
