"""A cap on bytes per second, shared by all targets of one process.

It shapes what objckpt itself sends and asks for; other traffic of the machine is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from objckpt.errors import InvalidInputError
from objckpt.seams import Clock
from objckpt.store.perprocess import PerProcess
from objckpt.store.port import Body, ByteRange, Capabilities, ObjectInfo, ObjectStore, PutMode

_BURST_S = 0.25


class BandwidthLimit:
    """A token bucket that may be overdrawn: a request larger than the bucket waits for its debt, and is never stuck.

    Thread-safe; every process has a bucket of its own, also after fork and pickle.

    Args:
        bytes_per_s: The cap, for both directions together.
        clock: For measuring and waiting.
    """

    def __init__(self, bytes_per_s: int, clock: Clock) -> None:
        if bytes_per_s <= 0:
            raise InvalidInputError(f"a bandwidth of {bytes_per_s} bytes per second lets nothing through")
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._buckets: PerProcess[_Bucket] = PerProcess()

    def take(self, size: int) -> None:
        """Waits until ``size`` bytes may move."""
        bucket = self._buckets.get(lambda: _Bucket(self._clock.monotonic_s()))
        with bucket.lock:
            now_s = self._clock.monotonic_s()
            # The bucket as the moment at which all that was taken so far is paid for.
            bucket.paid_s = max(bucket.paid_s, now_s - _BURST_S) + size / self._bytes_per_s
            wait_s = bucket.paid_s - now_s
        if wait_s > 0:
            self._clock.sleep(wait_s)


class _Bucket:
    def __init__(self, now_s: float) -> None:
        self.lock = threading.Lock()
        self.paid_s = now_s - _BURST_S


class LimitingStore:
    """An ``ObjectStore`` whose bodies move within a ``BandwidthLimit``; requests without a body pass at once."""

    def __init__(self, inner: ObjectStore, *, limit: BandwidthLimit) -> None:
        self._inner = inner
        self._limit = limit

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def put(self, key: str, body: Body, *, mode: PutMode = PutMode.WRITE, crc32c: int | None = None) -> None:
        self._limit.take(len(body))
        self._inner.put(key, body, mode=mode, crc32c=crc32c)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        if byte_range is not None:
            self._limit.take(len(byte_range))
            return self._inner.get(key, byte_range)
        content = self._inner.get(key)
        self._limit.take(len(content))  # its size is known only now; whoever comes next pays
        return content

    def get_into(self, key: str, start: int, views: Sequence[memoryview]) -> None:
        self._limit.take(sum(len(view) for view in views))
        self._inner.get_into(key, start, views)

    def head(self, key: str) -> ObjectInfo:
        return self._inner.head(key)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, after=after)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def server_time_s(self) -> float | None:
        return self._inner.server_time_s()

    def close(self) -> None:
        self._inner.close()
