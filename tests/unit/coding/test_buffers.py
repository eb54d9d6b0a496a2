from __future__ import annotations

import ctypes
import mmap

import pytest

from objckpt.coding.buffers import pinned
from objckpt.errors import InvalidInputError


def test_an_address_is_that_of_the_bytes_themselves() -> None:
    body = bytearray(b"checkpoint")
    with mmap.mmap(-1, 10) as mapped:
        mapped[:] = body
        with pinned([bytes(body), body, memoryview(body)[2:5], mapped]) as addresses:
            found = [ctypes.string_at(address, size) for address, size in addresses]
    assert found == [b"checkpoint", b"checkpoint", b"eck", b"checkpoint"]
    with pinned([body], writable=True) as ((address, size),):
        ctypes.memset(address, 0, size)
    assert body == bytes(10)


def test_a_pinned_buffer_cannot_move_and_moves_again_afterwards() -> None:
    body = bytearray(10)
    with pinned([body]), pytest.raises(BufferError):
        body.extend(bytes(1000))
    body.extend(bytes(1000))


def test_what_has_no_flat_memory_is_refused_and_the_others_are_let_go() -> None:
    body = bytearray(10)
    for unfit in (memoryview(bytes(10))[::2], "text", 7):
        with pytest.raises(InvalidInputError), pinned([body, unfit]):  # type: ignore[list-item]
            pass
    with pytest.raises(InvalidInputError, match="writable"), pinned([body, bytes(10)], writable=True):
        pass
    body.extend(bytes(1000))


def test_an_error_inside_lets_the_buffers_go() -> None:
    body = bytearray(10)
    with pytest.raises(ZeroDivisionError), pinned([body]):
        raise ZeroDivisionError
    body.extend(bytes(1000))
