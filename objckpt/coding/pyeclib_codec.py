"""PyECLib itself as a codec: the way out where its ISA-L cannot be loaded directly.

The payloads are the same bytes; PyECLib's headers are taken off and put on here, and never stored. It
copies, and holds the GIL while it works, so it is given short columns of a stripe at a time, between
which other threads run. Kept here:

- only ``bytes`` reach PyECLib's decoder: any other type aborts the process;
- no call comes near 2**31 bytes, where the library crashes;
- fragments are handed over with headers of one shape, so that it cannot refuse good ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyeclib.ec_iface

from objckpt.coding.arguments import encode_call, reconstruct_call
from objckpt.coding.geometry import CAUCHY, Code
from objckpt.errors import InternalError
from objckpt.units import KiB

_HEADER_BYTES = 80
_COLUMN_BYTES = 128 * KiB
_KEPT_DRIVERS = 64


class PyeclibCodec:
    """Encodes and reconstructs through PyECLib's public interface; thread-safe, and usable after a fork."""

    def __init__(self) -> None:
        self._driver = functools.lru_cache(maxsize=_KEPT_DRIVERS)(_make_driver)
        self._headers = functools.lru_cache(maxsize=_KEPT_DRIVERS)(self._make_headers)

    def encode(self, code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None:
        call = encode_call(code, data, parity)
        if not call.targets:
            return
        driver = self._driver(code)
        for start in range(0, call.size, _COLUMN_BYTES):
            stop = min(start + _COLUMN_BYTES, call.size)
            # k x size bytes: nothing to pad, so a payload is exactly a column of the fragment.
            column = b"".join(piece.view[start:stop] for piece in call.sources)
            fragments = _checked(driver.encode, column)
            for piece in call.targets:
                piece.view[start:stop] = memoryview(fragments[piece.index])[_HEADER_BYTES:]

    def reconstruct(self, code: Code, present: Mapping[int, memoryview], missing: Mapping[int, memoryview]) -> None:
        call = reconstruct_call(code, present, missing)
        if not call.targets:
            return
        driver = self._driver(code)
        indices = [piece.index for piece in call.targets]
        for start in range(0, call.size, _COLUMN_BYTES):
            stop = min(start + _COLUMN_BYTES, call.size)
            headers = self._headers(code, stop - start)
            survivors = [b"".join((headers[piece.index], piece.view[start:stop])) for piece in call.sources]
            rebuilt = _checked(driver.reconstruct, survivors, indices)
            for piece, fragment in zip(call.targets, rebuilt, strict=True):
                piece.view[start:stop] = memoryview(fragment)[_HEADER_BYTES:]

    def _make_headers(self, code: Code, size: int) -> list[bytes]:
        # From the library itself: what it expects in them depends on its version.
        fragments = _checked(self._driver(code).encode, bytes(code.data * size))
        return [fragment[:_HEADER_BYTES] for fragment in fragments]


def _make_driver(code: Code) -> Any:
    return _checked(pyeclib.ec_iface.ECDriver, k=code.data, m=code.parity, ec_type=CAUCHY)


def _checked(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except pyeclib.ec_iface.ECDriverError as error:
        raise InternalError(
            f"PyECLib refused {getattr(function, '__name__', function)}: {error}",
            hint="reinstall pyeclib from a wheel: pip install --force-reinstall pyeclib",
        ) from error
