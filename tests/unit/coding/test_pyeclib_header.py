from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import zlib
from itertools import combinations

import pyeclib.ec_iface
import pytest

from objckpt.coding.codec import codec
from objckpt.coding.geometry import CAUCHY, Code, fragment_size
from objckpt.errors import ChecksumError, FormatError, InvalidInputError, UnsupportedVersionError
from objckpt.format.pyeclib_header import HEADER_BYTES, unwrap, wrap

CODES = [(1, 1), (1, 2), (2, 1), (4, 2), (8, 3), (10, 4)]


def stored(code: Code, stripe: bytes) -> list[bytes]:
    """Fragments as objckpt stores them: bare."""
    size = fragment_size(code, len(stripe))
    padded = stripe.ljust(size * code.data, b"\0")
    data = [padded[index * size : (index + 1) * size] for index in range(code.data)]
    parity = [bytearray(size) for _ in range(code.parity)]
    codec().encode(code, [memoryview(body) for body in data], [memoryview(body) for body in parity])
    return [*data, *(bytes(body) for body in parity)]


def wrapped(code: Code, stripe: bytes) -> list[bytes]:
    return [
        wrap(body, code=code, index=index, stripe_length=len(stripe)) for index, body in enumerate(stored(code, stripe))
    ]


def driver(code: Code, **options: str) -> pyeclib.ec_iface.ECDriver:
    return pyeclib.ec_iface.ECDriver(k=code.data, m=code.parity, ec_type=CAUCHY, **options)


@pytest.mark.parametrize(("k", "m"), CODES)
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_stock_pyeclib_decodes_what_is_stored_whatever_is_lost(k: int, m: int, extra: int) -> None:
    """E10: and it returns exactly the stripe, without the padding."""
    code = Code.of(k, m)
    stripe = bytes(position % 241 for position in range(50 * k + extra))
    fragments = wrapped(code, stripe)
    stock = driver(code)
    for kept in combinations(range(code.fragments), k):
        assert stock.decode([fragments[index] for index in kept]) == stripe
    assert stock.decode(fragments, force_metadata_checks=True) == stripe
    assert stock.decode(fragments[m:], force_metadata_checks=True) == stripe


def test_stock_pyeclib_rebuilds_and_inspects_what_is_stored() -> None:
    code = Code.of(4, 2)
    fragments = wrapped(code, bytes(range(203)))
    stock = driver(code)
    rebuilt = stock.reconstruct([fragments[index] for index in (1, 2, 3, 5)], [0, 4])
    assert [unwrap(body).payload for body in rebuilt] == [unwrap(fragments[index]).payload for index in (0, 4)]
    metadata = stock.get_metadata(fragments[5], 1)
    assert metadata["index"] == 5
    assert metadata["orig_data_size"] == 203
    assert metadata["backend_id"] == CAUCHY
    assert stock.verify_stripe_metadata([stock.get_metadata(body) for body in fragments])["status"] == 0


def test_a_tiny_stripe_decodes_too() -> None:
    code = Code.of(1, 2)
    for length in (1, 2, 79):
        fragments = wrapped(code, bytes(range(length)))
        for fragment in fragments:
            assert driver(code).decode([fragment]) == bytes(range(length))


@pytest.mark.parametrize("checksum", ["none", "inline_crc32"])
@pytest.mark.parametrize("length", [0, 1, 5, 1000])
def test_what_pyeclib_encodes_is_read(checksum: str, length: int) -> None:
    code = Code.of(4, 2)
    stripe = os.urandom(length)
    found = [unwrap(fragment) for fragment in driver(code, chksum_type=checksum).encode(stripe)]
    assert [fragment.index for fragment in found] == list(range(6))
    assert {fragment.stripe_length for fragment in found} == {length}
    assert [bytes(fragment.payload) for fragment in found] == stored(code, stripe)


def test_the_checksum_of_old_libraries_is_read() -> None:
    """E07: written by the real library, told to write what its releases up to 1.5 wrote."""
    script = (
        "import pickle, sys, pyeclib.ec_iface as e;"
        "d = e.ECDriver(k=4, m=2, ec_type='isa_l_rs_cauchy', chksum_type='inline_crc32');"
        "sys.stdout.buffer.write(pickle.dumps(d.encode(bytes(range(250)) * 3)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"LIBERASURECODE_WRITE_LEGACY_CRC": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    fragments = pickle.loads(done.stdout)
    assert any(zlib.crc32(body[:59]) != struct.unpack_from("<I", body, 67)[0] for body in fragments)
    assert [bytes(unwrap(body).payload) for body in fragments] == stored(Code.of(4, 2), bytes(range(250)) * 3)


def test_headers_of_the_other_byte_order_are_read() -> None:
    """E07: what a big-endian machine writes, simulated."""
    little = wrapped(Code.of(4, 2), bytes(100))[5]
    fields = list(struct.unpack_from("<IIIQB8IBBIIII9x", little))
    head = struct.pack(">IIIQB8IBBI", *fields[:16])
    body = head + struct.pack(">III9x", fields[16], fields[17], zlib.crc32(head)) + little[HEADER_BYTES:]
    assert unwrap(body) == unwrap(little)


def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    """E03."""
    good = wrapped(Code.of(4, 2), bytes(range(100)))[1]
    for position in [*range(63), *range(67, 71)]:
        for bit in range(8):
            damaged = bytearray(good)
            damaged[position] ^= 1 << bit
            with pytest.raises((ChecksumError, FormatError)):
                unwrap(damaged)


def test_a_damaged_payload_is_noticed_where_it_is_summed() -> None:
    fragment = bytearray(driver(Code.of(2, 1), chksum_type="inline_crc32").encode(bytes(range(100)))[0])
    fragment[-1] ^= 1
    with pytest.raises(ChecksumError, match="payload"):
        unwrap(fragment)


def test_fragments_cut_short_or_of_something_else_are_refused() -> None:
    good = wrapped(Code.of(4, 2), bytes(100))[0]
    for body in (b"", good[:79], good[:-1], good + b"\0", bytes(200)):
        with pytest.raises(FormatError):
            unwrap(body)


def test_fragments_of_another_backend_are_refused_by_number() -> None:
    """E08."""
    foreign = pyeclib.ec_iface.ECDriver(k=4, m=2, ec_type="liberasurecode_rs_vand").encode(bytes(100))[0]
    with pytest.raises(UnsupportedVersionError, match="backend 6"):
        unwrap(foreign)


def test_an_unknown_kind_of_checksum_is_refused_by_number() -> None:
    """E07."""
    head = bytearray(wrapped(Code.of(4, 2), bytes(100))[0])
    head[20] = 9
    head[67:71] = zlib.crc32(head[:59]).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersionError, match="9"):
        unwrap(head)


def test_a_header_is_put_on_whole_fragments_of_the_stripe_only() -> None:
    """E04."""
    code = Code.of(4, 2)
    for payload, index, length in [(bytes(24), 0, 100), (bytes(26), 0, 100), (bytes(25), 6, 100), (bytes(25), -1, 100)]:
        with pytest.raises(InvalidInputError):
            wrap(payload, code=code, index=index, stripe_length=length)
    with pytest.raises(InvalidInputError, match="join"):
        wrap(bytes(25), code=Code.of(4, 0), index=0, stripe_length=100)
