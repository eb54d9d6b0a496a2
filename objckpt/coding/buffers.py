"""Addresses of Python buffers, for kernels that take pointers.

Nothing is copied. A buffer is exported (PEP 3118) for as long as its address is in use, so that it can
be neither resized nor freed under a kernel that runs without the GIL. Read-only buffers have addresses
too, which ``ctypes``' own ``from_buffer`` refuses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from objckpt.errors import InvalidInputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PYBUF_SIMPLE = 0
_PYBUF_WRITABLE = 1


@contextmanager
def pinned(buffers: Iterable[Buffer], *, writable: bool = False) -> Iterator[list[tuple[int, int]]]:
    """Exports contiguous buffers for the time of the block.

    Args:
        buffers: Anything with the buffer protocol: bytes, bytearray, memoryview, mmap.
        writable: Refuse read-only ones.

    Yields:
        (address, bytes) of each. The address of an empty buffer is not to be read.

    Raises:
        InvalidInputError: Not contiguous, or read-only where a writable one is needed.
    """
    flags = _PYBUF_WRITABLE if writable else _PYBUF_SIMPLE
    exports: list[_PyBuffer] = []
    try:
        for buffer in buffers:
            export = _PyBuffer()
            try:
                _get_buffer(buffer, ctypes.byref(export), flags)
            except (BufferError, TypeError) as error:
                kind = "writable contiguous" if writable else "contiguous"
                raise InvalidInputError(f"a {type(buffer).__name__} is not a {kind} buffer: {error}") from error
            exports.append(export)
        yield [(export.buf or 0, export.len) for export in exports]
    finally:
        for export in exports:
            _release_buffer(ctypes.byref(export))


class _PyBuffer(ctypes.Structure):
    """``Py_buffer``, part of CPython's stable ABI since 3.11."""

    buf: int | None
    len: int

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


# Prototypes of our own: argument types set on ``ctypes.pythonapi`` would be everybody's.
_get_buffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)(
    ("PyObject_GetBuffer", ctypes.pythonapi)
)
_release_buffer = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyBuffer_Release", ctypes.pythonapi))
