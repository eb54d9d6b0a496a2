"""Tests of the test: every wrong codec here must be caught before it touches data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import pyeclib.ec_iface
import pytest

from objckpt.coding.codec import Codec
from objckpt.coding.geometry import CAUCHY, Code
from objckpt.coding.known_answer import check_answers, expected_parity
from objckpt.errors import InternalError


def test_both_codecs_answer_correctly(either: Codec) -> None:
    check_answers(either)


@pytest.mark.parametrize(("k", "m"), [(1, 1), (1, 3), (4, 2), (10, 4), (5, 9), (28, 4)])
def test_the_definition_is_pyeclibs(k: int, m: int) -> None:
    data = [bytes((index * 37 + position * 11) % 256 for position in range(123)) for index in range(k)]
    oracle = pyeclib.ec_iface.ECDriver(k=k, m=m, ec_type=CAUCHY).encode(b"".join(data))
    assert expected_parity(Code.of(k, m), data) == [fragment[80:] for fragment in oracle[k:]]


class Wrapped:
    """A right codec, to be made wrong in one respect."""

    def __init__(self, inner: Codec) -> None:
        self.inner = inner

    def encode(self, code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None:
        self.inner.encode(code, data, parity)

    def reconstruct(self, code: Code, present: Mapping[int, memoryview], missing: Mapping[int, memoryview]) -> None:
        self.inner.reconstruct(code, present, missing)


class EqualParities(Wrapped):
    """XOR in every row: survives one loss, is sold as surviving m."""

    def encode(self, code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None:
        super().encode(code, data, parity)
        for body in parity[1:]:
            body[:] = parity[0]


class CopiedParities(Wrapped):
    def encode(self, code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None:
        for row, body in enumerate(parity):
            body[:] = data[row % code.data]


class SwappedParities(Wrapped):
    def encode(self, code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None:
        super().encode(code, data, parity[::-1])


class LazyTail(Wrapped):
    """A vector kernel that forgets the bytes behind its last whole register."""

    def encode(self, code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None:
        whole = len(data[0]) // 16 * 16
        super().encode(code, [body[:whole] for body in data], [body[:whole] for body in parity])


class WrongAtSixRows(Wrapped):
    """One kernel of several is broken."""

    def encode(self, code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None:
        super().encode(code, data, parity)
        if code.parity == 6:
            parity[5][-1] ^= 1


class IgnoresParity(Wrapped):
    """Rebuilds as if every lost byte were zero."""

    def reconstruct(self, code: Code, present: Mapping[int, memoryview], missing: Mapping[int, memoryview]) -> None:
        for body in missing.values():
            body[:] = bytes(len(body))


class RebuildsTheWrongOne(Wrapped):
    def reconstruct(self, code: Code, present: Mapping[int, memoryview], missing: Mapping[int, memoryview]) -> None:
        views = list(missing.values())
        super().reconstruct(code, present, dict(zip(missing, reversed(views), strict=True)))


class Vandermonde(Wrapped):
    """Another Reed-Solomon code: right in itself, and unable to read what was written."""

    def encode(self, code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None:
        other = pyeclib.ec_iface.ECDriver(k=code.data, m=code.parity, ec_type="isa_l_rs_vand")
        for body, fragment in zip(parity, other.encode(b"".join(data))[code.data :], strict=True):
            body[:] = fragment[80:]


MUTANTS = [
    EqualParities,
    CopiedParities,
    SwappedParities,
    LazyTail,
    WrongAtSixRows,
    IgnoresParity,
    RebuildsTheWrongOne,
    Vandermonde,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_codec_that_is_wrong_in_any_respect_is_caught(either: Codec, mutant: type[Wrapped]) -> None:
    """E02, E08."""
    with pytest.raises(InternalError, match="wrong bytes"):
        check_answers(mutant(either))


def test_vandermonde_codes_lose_data_that_cauchy_keeps() -> None:
    """E01: why the algorithm is not a choice."""
    unsafe = pyeclib.ec_iface.ECDriver(k=6, m=5, ec_type="isa_l_rs_vand")
    stripe = bytes(range(240))
    fragments = unsafe.encode(stripe)
    failed = 0
    for kept in combinations(range(11), 6):
        try:
            failed += unsafe.decode([fragments[index] for index in kept]) != stripe
        except pyeclib.ec_iface.ECDriverError:
            failed += 1
    assert failed > 0
