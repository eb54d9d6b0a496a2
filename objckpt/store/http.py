"""What the HTTP adapters share: bodies out of and into buffers, ranges, and the reading of headers.

It knows no provider and makes no requests.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from objckpt.errors import CapabilityError, InvalidInputError, UnavailableError
from objckpt.store.port import MAX_KEY_BYTES, Body, ByteRange, check_inside, check_key
from objckpt.units import KiB, MiB

# A socket's timeout bounds one whole sendall, so bodies are sent piece by piece: the timeout then
# bounds a stall and not the speed of the line.
_SEND_STEP = 256 * KiB
# Small enough that the copy which urllib3 makes stays in the processor's cache.
_READ_STEP = 1 * MiB


class Pieces:
    """A request body made of several buffers, sent from where they lie.

    It has a length and can be iterated again and again, and it is no file: the SDKs treat files worse
    (Expect: 100-continue, reads of 16 KiB).
    """

    def __init__(self, *buffers: Body) -> None:
        self._views = [memoryview(buffer).cast("B") for buffer in buffers]

    def __len__(self) -> int:
        return sum(len(view) for view in self._views)

    def __iter__(self) -> Iterator[memoryview]:
        for view in self._views:
            for start in range(0, len(view), _SEND_STEP):
                yield view[start : start + _SEND_STEP]

    def seek(self, offset: int) -> None:
        """Every iteration begins at the start, which is all that an SDK wants when it sends again."""


class Readable(Protocol):
    """A response body: botocore's and urllib3's streams."""

    def read(self) -> bytes: ...

    def readinto(self, buffer: memoryview) -> int: ...


def receive(stream: Readable, length: int | None, **facts: Any) -> bytes:
    """Reads a body to its end.

    Raises:
        UnavailableError: It ended before the announced ``length``.
    """
    content = stream.read()
    if length is not None and len(content) != length:
        raise _cut_short(len(content), length, facts)
    return content


def receive_into(stream: Readable, views: Sequence[memoryview], **facts: Any) -> None:
    """Fills ``views`` one after the other from a body.

    Raises:
        UnavailableError: The body ended before the views were full.
    """
    received = 0
    for view in views:
        while len(view):
            count = stream.readinto(view[:_READ_STEP])
            if count == 0:
                raise _cut_short(received, received + len(view), facts)
            received += count
            view = view[count:]


def check_part(wanted: ByteRange, *, status: int, length: int | None, content_range: str | None, **facts: Any) -> None:
    """Checks that an answer to a ranged GET is about to deliver exactly the bytes asked for.

    Raises:
        FormatError: The object ends before them.
        CapabilityError: The server serves other bytes: it does not know ranges.
    """
    part, _, total = (content_range or "").removeprefix("bytes ").rpartition("/")
    if total.isdigit():
        check_inside(wanted, int(total), **facts)
    elif content_range is None and status == 200 and length is not None:
        check_inside(wanted, length, **facts)
    asked = f"{wanted.start}-{wanted.stop - 1}"
    is_whole_object = content_range is None and status == 200 and wanted.start == 0
    if length == len(wanted) and (part == asked or is_whole_object):
        return
    raise CapabilityError(
        "the store does not serve byte ranges",
        status=status,
        length=length,
        content_range=content_range,
        asked=asked,
        hint="is a caching proxy in between?",
        **facts,
    )


def full_key(prefix: str, key: str) -> str:
    """The key in the bucket of a relative key.

    Raises:
        InvalidInputError: Not a key, or too long together with the prefix.
    """
    name = prefix + check_key(key)
    if len(name.encode()) > MAX_KEY_BYTES:
        raise InvalidInputError(f"the key is longer than {MAX_KEY_BYTES} bytes", key=name, hint="use a shorter prefix")
    return name


def is_certificate_failure(error: BaseException | None) -> bool:
    """Whether TLS failed because the server's certificate is not trusted, however deep that is wrapped."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        wrapped = (getattr(error, "kwargs", {}).get("error"), getattr(error, "reason", None), *error.args)
        inner = next((each for each in wrapped if isinstance(each, BaseException)), None)
        error = inner or error.__cause__ or error.__context__
    return False


def retry_after_s(value: str | None, *, now_s: float) -> float | None:
    """Reads a ``Retry-After`` header: seconds or a date."""
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    date_s = http_date_s(value)
    return None if date_s is None else max(0.0, date_s - now_s)


def http_date_s(value: str | None) -> float | None:
    """Reads an HTTP date as seconds since the Unix epoch; None if it is none."""
    if value is None:
        return None
    try:
        return parsedate_to_datetime(value).timestamp()
    except (TypeError, ValueError):
        return None


def _cut_short(received: int, expected: int, facts: dict[str, Any]) -> UnavailableError:
    return UnavailableError("the body ended early", received=received, expected=expected, **facts)
