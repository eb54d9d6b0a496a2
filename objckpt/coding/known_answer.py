"""Asks a codec questions whose answers follow from the code's definition, before it touches data.

Parity fragment p of a code of k + m is the sum over j of ``data[j] / ((k + p) xor j)`` in GF(2**8) with
the polynomial 0x11D: a Cauchy matrix, of which every square part can be inverted, so that any m losses
can be made good. This module computes that plainly, in Python, and compares. A library that is broken,
was built for another processor, or has another idea of the code (a copy of the data in place of parity,
a Vandermonde matrix) fails here and not years later, in a restore.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from objckpt.coding.geometry import Code
from objckpt.errors import InternalError

_FIELD = 0x11D
# Every width of kernel (1 to 7 rows at once) and the codes on offer; lengths around vector registers.
_CODES = ((1, 1), (1, 2), (2, 1), (3, 3), (4, 2), (8, 3), (10, 4), (12, 4), (7, 5), (9, 6), (6, 7), (20, 12))
_LENGTHS = (1, 15, 64, 257)


class Answering(Protocol):
    """What is questioned: ``objckpt.coding.codec.Codec``."""

    def encode(self, code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None: ...

    def reconstruct(self, code: Code, present: Mapping[int, memoryview], missing: Mapping[int, memoryview]) -> None: ...


def check_answers(codec: Answering) -> None:
    """Raises ``InternalError`` if the codec does not compute the code of ``isa_l_rs_cauchy``."""
    for k, m in _CODES:
        code = Code.of(k, m)
        for length in _LENGTHS:
            data = [_pattern(index, length) for index in range(k)]
            fragments = [*data, *expected_parity(code, data)]
            _check_encode(codec, code, fragments)
            for lost in (range(min(k, m)), range(k - 1, k - 1 + m), range(k, k + m)):
                _check_reconstruct(codec, code, fragments, lost)


def expected_parity(code: Code, data: Sequence[bytes]) -> list[bytes]:
    """The parity fragments of equally long data fragments, by the definition."""
    length = len(data[0])
    parity = []
    for row in range(code.data, code.fragments):
        total = 0
        for column, fragment in enumerate(data):
            total ^= int.from_bytes(fragment.translate(_quotients(row ^ column)), "little")
        parity.append(total.to_bytes(length, "little"))
    return parity


def _check_encode(codec: Answering, code: Code, fragments: Sequence[bytes]) -> None:
    parity = [bytearray(len(fragments[0])) for _ in range(code.parity)]
    codec.encode(code, [memoryview(data) for data in fragments[: code.data]], [memoryview(body) for body in parity])
    if parity != list(fragments[code.data :]):
        raise _wrong(code, "encodes", len(fragments[0]))


def _check_reconstruct(codec: Answering, code: Code, fragments: Sequence[bytes], lost: Iterable[int]) -> None:
    missing = {index: bytearray(len(fragments[0])) for index in lost}
    codec.reconstruct(
        code,
        {index: memoryview(body) for index, body in enumerate(fragments) if index not in missing},
        {index: memoryview(body) for index, body in missing.items()},
    )
    if any(body != fragments[index] for index, body in missing.items()):
        raise _wrong(code, "reconstructs", len(fragments[0]))


def _wrong(code: Code, verb: str, length: int) -> InternalError:
    return InternalError(
        f"the Reed-Solomon library {verb} wrong bytes",
        hint="reinstall pyeclib from a wheel: pip install --force-reinstall pyeclib",
        code=f"{code.data}+{code.parity}",
        length=length,
    )


def _pattern(index: int, length: int) -> bytes:
    """Bytes without a period that a kernel's stride could hide."""
    return bytes((position * position + 7 * position + 83 * index + 29) * 167 >> 3 & 0xFF for position in range(length))


@functools.cache
def _quotients(divisor: int) -> bytes:
    """``value / divisor`` for each byte value, as a table for ``bytes.translate``."""
    exponents, logarithms = _field()
    shift = 255 - logarithms[divisor]
    return bytes([0, *(exponents[(logarithms[value] + shift) % 255] for value in range(1, 256))])


@functools.cache
def _field() -> tuple[list[int], list[int]]:
    exponents, logarithms = [0] * 255, [0] * 256
    value = 1
    for exponent in range(255):
        exponents[exponent] = value
        logarithms[value] = exponent
        value = value << 1 ^ (_FIELD if value & 0x80 else 0)
    return exponents, logarithms
