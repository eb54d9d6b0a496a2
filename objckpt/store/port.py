"""The port to object stores: what objckpt asks of one, and nothing else.

Required: a ``put`` is atomic, ``get`` sees every completed ``put``, ``list`` returns every object
that existed throughout the listing. Not required: conditional writes, rename, append, clocks.
Keys are relative to the target's prefix, made of ``[A-Za-z0-9._/-]``, and written once: ``put`` may be
repeated with the same bytes, never with others.

Adapters (``memory``, ``local``, ``s3``, ``gcs``) raise the errors of ``objckpt.errors`` and never retry;
``retry``, ``limit`` and ``observe`` wrap them and are ``ObjectStore`` themselves. All methods are
thread-safe. An ``ObjectStore`` can be pickled and survives a fork: clients, locks and sockets are
rebuilt in the new process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

from objckpt.errors import FormatError, InvalidInputError

Body: TypeAlias = bytes | bytearray | memoryview
"""What is sent. A memoryview is one-dimensional, contiguous bytes. The store never keeps a reference."""

MAX_KEY_BYTES = 1024
_KEY = re.compile(r"[A-Za-z0-9._/-]+")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``[start, stop)`` of an object."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise InvalidInputError(f"[{self.start}, {self.stop}) is not a byte range")

    def __len__(self) -> int:
        return self.stop - self.start


class PutMode(Enum):
    """``WRITE`` stores in any case; ``CREATE`` asks the store to refuse an existing key."""

    WRITE = "write"
    CREATE = "create"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object as a listing or a HEAD shows it."""

    key: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an adapter's protocol offers; ``doctor`` finds out whether the server behind it keeps it.

    Attributes:
        create_if_absent: ``PutMode.CREATE`` is enforced by the store.
        verifies_crc32c: A ``put`` with a wrong ``crc32c`` is refused by the store.
    """

    create_if_absent: bool
    verifies_crc32c: bool


class ObjectStore(Protocol):
    """One place for objects: a bucket and prefix, a directory, or a decorated one."""

    @property
    def name(self) -> str:
        """The target's name, for errors and events."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    def put(self, key: str, body: Body, *, mode: PutMode = PutMode.WRITE, crc32c: int | None = None) -> None:
        """Stores an object, durably and atomically, before it returns.

        Args:
            key: Relative key.
            body: The whole object; may be empty.
            mode: ``CREATE`` raises ``ObjectExistsError`` where the store enforces it.
            crc32c: CRC32C of ``body``, sent along so that the store can refuse damaged bytes.

        Raises:
            ObjectExistsError: ``CREATE`` and the key exists.
            StoreError: One of its kinds. After any but ``ObjectExistsError``,
                ``PermissionDeniedError`` and ``CorruptUploadError`` the object may or may not be there;
                after these too if ``facts`` holds ``earlier_attempt``.
        """
        ...

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        """Reads an object or a part of it.

        Raises:
            ObjectNotFoundError: No such key.
            FormatError: The object ends before ``byte_range.stop``.
            StoreError: One of its kinds; a body cut short is ``UnavailableError``, never short bytes.
        """
        ...

    def get_into(self, key: str, start: int, views: Sequence[memoryview]) -> None:
        """Reads bytes from offset ``start`` on, filling the writable ``views`` one after the other.

        After an error the views hold anything. Raises as ``get`` does.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Looks at one object.

        Raises:
            ObjectNotFoundError: No such key.
        """
        ...

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Lists objects whose key starts with ``prefix``, page by page as the iterator is drawn.

        An iterator that has raised is over; what it gave before stands.

        Args:
            prefix: Relative prefix, usually ending with ``/``; ``""`` lists everything.
            after: Only keys that come after this one in the store's order. That is the order of the
                bytes, but on some stores (SeaweedFS) the order of a directory tree, which puts ``a/x``
                before ``a-b/x``; names of one length that share a directory sort alike in both.
        """
        ...

    def delete(self, key: str) -> None:
        """Deletes an object; one that is already gone is success."""
        ...

    def server_time_s(self) -> float | None:
        """The server's clock, in whole seconds since the Unix epoch; None where it is this machine's, or not told.

        For people: signed requests fail when clocks differ too much. Nothing else depends on it (I8).
        """
        ...

    def close(self) -> None:
        """Releases clients and sockets; the store may be used again, which reopens them."""
        ...


def check_key(key: str) -> str:
    """Returns ``key`` if it is one that every store takes.

    Raises:
        InvalidInputError: Other characters, empty or dot segments, or too long.
    """
    segments = key.split("/")
    if not _KEY.fullmatch(key) or len(key) > MAX_KEY_BYTES or any(part in ("", ".", "..") for part in segments):
        raise InvalidInputError(f"{key!r} is not a key", hint="keys are segments of [A-Za-z0-9._-] joined by /")
    return key


def check_inside(byte_range: ByteRange, size: int, **facts: Any) -> None:
    """Checks that an object of ``size`` bytes holds all of ``byte_range``.

    Raises:
        FormatError: It ends before.
    """
    if byte_range.stop > size:
        asked = f"[{byte_range.start}, {byte_range.stop})"
        raise FormatError("the object ends before the bytes asked for", size=size, asked=asked, **facts)
