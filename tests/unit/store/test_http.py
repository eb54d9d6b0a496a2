"""Bodies, ranges and headers of the HTTP adapters."""

from __future__ import annotations

import io

import pytest

from objckpt.errors import CapabilityError, FormatError, InvalidInputError, UnavailableError
from objckpt.store.http import (
    Pieces,
    check_part,
    full_key,
    http_date_s,
    receive,
    receive_into,
    retry_after_s,
)
from objckpt.store.port import ByteRange


def test_pieces_are_the_buffers_one_after_the_other_however_often_they_are_sent() -> None:
    body = bytes(range(256)) * 4096
    pieces = Pieces(b"head", memoryview(body), bytearray(b"tail"), b"")
    for _ in range(2):
        assert b"".join(pieces) == b"head" + body + b"tail"
    assert len(pieces) == len(body) + 8


def test_pieces_are_sent_in_steps_that_a_timeout_can_bound() -> None:
    sizes = [len(piece) for piece in Pieces(bytes(1_000_000))]
    assert max(sizes) <= 256 * 1024
    assert sum(sizes) == 1_000_000


def test_pieces_refer_to_the_callers_memory_and_copy_nothing() -> None:
    memory = bytearray(b"before")
    pieces = Pieces(memory)
    memory[:] = b"after!"
    assert b"".join(pieces) == b"after!"


def test_nothing_at_all_is_a_body_of_no_bytes() -> None:
    assert len(Pieces(b"")) == 0
    assert list(Pieces(b"")) == []


class Trickle(io.RawIOBase):
    """A body that comes a few bytes at a time."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        return self._content.readinto(buffer[:3])


def test_views_are_filled_from_a_body_that_comes_in_drops() -> None:
    views = [memoryview(bytearray(size)) for size in (1, 0, 10, 4)]
    receive_into(Trickle(b"0123456789abcdef"), views)
    assert b"".join(views) == b"0123456789abcde"


def test_a_body_shorter_than_the_views_is_unavailable() -> None:
    with pytest.raises(UnavailableError) as caught:
        receive_into(Trickle(b"0123"), [memoryview(bytearray(3)), memoryview(bytearray(3))], key="k")
    assert caught.value.facts == {"received": 4, "expected": 6, "key": "k"}


def test_a_body_shorter_than_announced_is_unavailable() -> None:
    assert receive(io.BytesIO(b"0123"), 4) == b"0123"
    assert receive(io.BytesIO(b"0123"), None) == b"0123"
    with pytest.raises(UnavailableError):
        receive(io.BytesIO(b"012"), 4)


@pytest.mark.parametrize(
    ("status", "length", "content_range"),
    [(206, 10, "bytes 5-14/100"), (200, 10, "bytes 5-14/100"), (206, 10, "bytes 5-14/*")],
)
def test_an_answer_with_the_bytes_asked_for_passes(status: int, length: int, content_range: str) -> None:
    check_part(ByteRange(5, 15), status=status, length=length, content_range=content_range)


def test_the_whole_object_passes_if_it_is_what_was_asked_for() -> None:
    check_part(ByteRange(0, 10), status=200, length=10, content_range=None)


@pytest.mark.parametrize(
    ("status", "length", "content_range"),
    [
        (200, 100, None),
        (206, 10, "bytes 6-15/100"),
        (206, 9, "bytes 5-13/100"),
        (206, None, "bytes 5-14/100"),
        (206, 10, None),
        (206, 10, "nonsense"),
    ],
)
def test_other_bytes_than_asked_for_are_refused(status: int, length: int | None, content_range: str | None) -> None:
    with pytest.raises(CapabilityError):
        check_part(ByteRange(5, 15), status=status, length=length, content_range=content_range)


@pytest.mark.parametrize(
    ("status", "length", "content_range"), [(206, 5, "bytes 5-9/10"), (200, 10, None), (200, 14, "bytes 0-13/14")]
)
def test_an_object_that_ends_before_the_range_is_a_format_error(
    status: int, length: int, content_range: str | None
) -> None:
    with pytest.raises(FormatError):
        check_part(ByteRange(5, 15), status=status, length=length, content_range=content_range)


def test_a_key_too_long_with_its_prefix_is_refused() -> None:
    assert full_key("p/", "k" * 1022) == "p/" + "k" * 1022
    with pytest.raises(InvalidInputError, match="shorter prefix"):
        full_key("p/", "k" * 1023)
    with pytest.raises(InvalidInputError):
        full_key("ü" * 512 + "/", "k")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        (" 17 ", 17.0),
        ("Thu, 01 Jan 1970 00:20:00 GMT", 200.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("", None),
    ],
)
def test_retry_after_is_read_in_both_forms(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, now_s=1000.0) == seconds


def test_a_date_that_is_none_is_none() -> None:
    assert http_date_s("yesterday") is None
    assert http_date_s(None) is None
    assert http_date_s("Thu, 01 Jan 1970 00:00:10 GMT") == 10.0
