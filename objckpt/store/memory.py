"""The executable meaning of the port: objects in a dictionary, with a seam for faults.

It is the reference that every other adapter is compared with, and the store of tests and
simulations; it is no cache and survives nothing. A ``MemorySpace`` plays the part of the bucket: stores
that are given the same space see the same objects. A space lives in one process: it refuses to be
pickled, and after a fork parent and child each go on with their own copy.

Faults: a hook is called with a ``FaultPoint`` before and after the effect of every operation. What it
raises is what the caller sees: raised before, nothing happened; raised after, the effect took place
and the answer was lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import google_crc32c

from objckpt.errors import (
    BucketNotFoundError,
    CorruptUploadError,
    InvalidInputError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from objckpt.store.port import Body, ByteRange, Capabilities, ObjectInfo, PutMode, check_inside, check_key


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPoint:
    """Where a hook is called.

    Attributes:
        store: Name of the store that is being used.
        operation: put, get, head, list (once, as the first object is asked for) or delete.
        key: Relative key, or the prefix of a listing.
        moment: Before or after the effect.
    """

    store: str
    operation: str
    key: str
    moment: Literal["before", "after"]


Faults: TypeAlias = Callable[[FaultPoint], None]


class MemorySpace:
    """What a bucket is to the other adapters: objects by full key.

    Attributes:
        faults: Hook for every store on this space; may be set and cleared at any time.
    """

    def __init__(self, name: str = "memory", *, exists: bool = True, faults: Faults | None = None) -> None:
        self.name = name
        self.faults = faults
        self._objects: dict[str, bytes] | None = {} if exists else None
        self._lock = threading.Lock()

    def create(self) -> None:
        """Makes the bucket; one that exists keeps its objects."""
        with self._lock:
            if self._objects is None:
                self._objects = {}

    def destroy(self) -> None:
        """Deletes the bucket with all that is in it."""
        with self._lock:
            self._objects = None

    def objects(self) -> dict[str, bytes]:
        """A copy of what is stored, by full key."""
        with self._lock:
            return dict(self._existing())

    def set_unchecked(self, key: str, body: bytes | None) -> None:
        """Damages the space behind the stores' back: replaces an object, or removes it."""
        with self._lock:
            if body is None:
                self._existing().pop(key, None)
            else:
                self._existing()[key] = body

    def store(self, key: str, body: bytes, *, replace: bool) -> bool:
        """Stores an object; without ``replace`` only where there is none, and says whether it did."""
        with self._lock:
            objects = self._existing()
            if not replace and key in objects:
                return False
            objects[key] = body
            return True

    def load(self, key: str) -> bytes | None:
        with self._lock:
            return self._existing().get(key)

    def sizes(self, prefix: str) -> list[tuple[str, int]]:
        with self._lock:
            return sorted((key, len(body)) for key, body in self._existing().items() if key.startswith(prefix))

    def remove(self, key: str) -> None:
        with self._lock:
            self._existing().pop(key, None)

    def _existing(self) -> dict[str, bytes]:
        if self._objects is None:
            raise BucketNotFoundError(
                "the memory space does not exist", bucket=self.name, hint="create it, or replace the target"
            )
        return self._objects

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidInputError(
            f"memory://{self.name} lives in one process and cannot be sent to another",
            hint="use a directory (file:///...) as the target",
        )


class MemoryStore:
    """An ``ObjectStore`` on a ``MemorySpace``.

    Args:
        name: The target's name.
        space: Where the objects are.
        prefix: Put before every key; ends with ``/`` unless it is empty.
        faults: Hook for this store alone; the space's own is called first.
    """

    def __init__(self, name: str, *, space: MemorySpace, prefix: str = "", faults: Faults | None = None) -> None:
        self._name = name
        self._space = space
        self._prefix = prefix
        self._faults = faults

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(create_if_absent=True, verifies_crc32c=True)

    def put(self, key: str, body: Body, *, mode: PutMode = PutMode.WRITE, crc32c: int | None = None) -> None:
        check_key(key)
        self._fault("put", key, "before")
        content = bytes(body)
        if crc32c is not None and google_crc32c.value(content) != crc32c:
            raise CorruptUploadError("the bytes do not match the CRC32C sent with them", key=key, target=self._name)
        if not self._space.store(self._prefix + key, content, replace=mode is PutMode.WRITE):
            raise ObjectExistsError("create-if-absent found an object", key=key, target=self._name)
        self._fault("put", key, "after")

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        check_key(key)
        self._fault("get", key, "before")
        content = self._load(key)
        part = content if byte_range is None else self._part(key, content, byte_range)
        self._fault("get", key, "after")
        return part

    def get_into(self, key: str, start: int, views: Sequence[memoryview]) -> None:
        check_key(key)
        wanted = ByteRange(start, start + sum(len(view) for view in views))
        self._fault("get", key, "before")
        part = memoryview(self._part(key, self._load(key), wanted))
        for view in views:
            view[:] = part[: len(view)]
            part = part[len(view) :]
        self._fault("get", key, "after")

    def head(self, key: str) -> ObjectInfo:
        check_key(key)
        self._fault("head", key, "before")
        size = len(self._load(key))
        self._fault("head", key, "after")
        return ObjectInfo(key=key, size=size)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        self._fault("list", prefix, "before")
        found = self._space.sizes(self._prefix + prefix)
        self._fault("list", prefix, "after")
        for full_key, size in found:
            key = full_key[len(self._prefix) :]
            if after is None or key > after:
                yield ObjectInfo(key=key, size=size)

    def delete(self, key: str) -> None:
        check_key(key)
        self._fault("delete", key, "before")
        self._space.remove(self._prefix + key)
        self._fault("delete", key, "after")

    def server_time_s(self) -> float | None:
        return None

    def close(self) -> None:
        return None

    def _load(self, key: str) -> bytes:
        content = self._space.load(self._prefix + key)
        if content is None:
            raise ObjectNotFoundError("no such object", key=key, target=self._name)
        return content

    def _part(self, key: str, content: bytes, wanted: ByteRange) -> bytes:
        check_inside(wanted, len(content), key=key, target=self._name)
        return content[wanted.start : wanted.stop]

    def _fault(self, operation: str, key: str, moment: Literal["before", "after"]) -> None:
        for hook in (self._space.faults, self._faults):
            if hook is not None:
                hook(FaultPoint(store=self._name, operation=operation, key=key, moment=moment))
