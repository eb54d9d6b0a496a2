"""Tells an observer about every attempt of every operation; changes nothing.

It sits below the retries, so that each attempt is seen, and above the bandwidth limit, so that
``seconds`` is what the caller waited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from objckpt.errors import ObjckptError
from objckpt.seams import Clock
from objckpt.store.port import Body, ByteRange, Capabilities, ObjectInfo, ObjectStore, PutMode
from objckpt.telemetry import Observer, RequestDone


class ObservingStore:
    """An ``ObjectStore`` that emits one ``RequestDone`` per attempt; a listing is one, however many pages it took."""

    def __init__(self, inner: ObjectStore, *, clock: Clock, observer: Observer) -> None:
        self._inner = inner
        self._clock = clock
        self._observer = observer

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def put(self, key: str, body: Body, *, mode: PutMode = PutMode.WRITE, crc32c: int | None = None) -> None:
        with self._observed("put", key) as seen:
            self._inner.put(key, body, mode=mode, crc32c=crc32c)
            seen.size = len(body)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        with self._observed("get", key) as seen:
            content = self._inner.get(key, byte_range)
            seen.size = len(content)
            return content

    def get_into(self, key: str, start: int, views: Sequence[memoryview]) -> None:
        with self._observed("get", key) as seen:
            self._inner.get_into(key, start, views)
            seen.size = sum(len(view) for view in views)

    def head(self, key: str) -> ObjectInfo:
        with self._observed("head", key):
            return self._inner.head(key)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        found = self._inner.list(prefix, after=after)
        seen = _Seen()
        error: str | None = None
        try:
            while True:
                began_s = self._clock.monotonic_s()
                try:
                    info = next(found, None)
                finally:
                    seen.seconds += self._clock.monotonic_s() - began_s
                if info is None:
                    return
                yield info
        except ObjckptError as failure:
            error = type(failure).__name__
            raise
        finally:
            self._emit("list", prefix, seen, error)

    def delete(self, key: str) -> None:
        with self._observed("delete", key):
            self._inner.delete(key)

    def server_time_s(self) -> float | None:
        return self._inner.server_time_s()

    def close(self) -> None:
        self._inner.close()

    @contextmanager
    def _observed(self, operation: str, key: str) -> Iterator[_Seen]:
        seen = _Seen()
        error: str | None = None
        began_s = self._clock.monotonic_s()
        try:
            yield seen
        except ObjckptError as failure:
            error = type(failure).__name__
            raise
        finally:
            seen.seconds = self._clock.monotonic_s() - began_s
            self._emit(operation, key, seen, error)

    def _emit(self, operation: str, key: str, seen: _Seen, error: str | None) -> None:
        self._observer.on_event(
            RequestDone(
                target=self.name, operation=operation, key=key, size=seen.size, seconds=seen.seconds, error=error
            )
        )


class _Seen:
    __slots__ = ("seconds", "size")

    def __init__(self) -> None:
        self.size = 0
        self.seconds = 0.0
