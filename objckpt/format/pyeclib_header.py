"""The header that PyECLib's library, liberasurecode, expects in front of a fragment.

objckpt stores fragments bare, because that header holds library versions; this module puts it in front of
a stored fragment, so that stock PyECLib decodes without objckpt, and takes it off what PyECLib encoded.
It neither encodes nor verifies a payload against a manifest. No stored object has this header.

Layout (packed, 80 bytes, the byte order of the machine that wrote it): index u32, payload size u32, size
of backend metadata u32, length of the stripe u64, kind of payload checksum u8, 8 checksums u32, mismatch
flag u8, backend u8, backend version u32; magic u32, library version u32, CRC-32 of the 59 bytes before
the magic u32, padding.
"""

from __future__ import annotations

import functools
import struct
import zlib
from dataclasses import dataclass

from objckpt.coding.geometry import CAUCHY, Code, fragment_size
from objckpt.errors import ChecksumError, FormatError, InvalidInputError, UnsupportedVersionError

HEADER_BYTES = 80

_FIELDS = "IIIQB8IBBIIII9x"
_METADATA_BYTES = 59
_MAGIC = 0x0B0C5ECC
_BACKEND_CAUCHY = 7
_BACKEND_VERSION = 0x020E01
_LIBRARY_VERSION = 0x010600
_CHECKSUM_NONE = 1
_CHECKSUM_CRC32 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PyeclibFragment:
    """What a fragment of PyECLib's says of itself; ``payload`` is a view of it."""

    index: int
    stripe_length: int
    payload: memoryview


def wrap(payload: bytes | bytearray | memoryview, *, code: Code, index: int, stripe_length: int) -> bytes:
    """A fragment for ``pyeclib.ec_iface.ECDriver(k=..., m=..., ec_type="isa_l_rs_cauchy")``.

    Args:
        payload: The whole fragment as stored, padding included. Verify it first: PyECLib does not.
        code: The code of the stripe, which for a short one is not that of the shard.
        index: The fragment's index.
        stripe_length: Bytes of the stripe; ``decode`` returns that many.

    Raises:
        InvalidInputError: Not a fragment of such a stripe, or one without parity, which PyECLib does not have.
    """
    if code.algorithm != CAUCHY:
        raise InvalidInputError("a stripe without parity is not PyECLib's", hint="join its data fragments instead")
    if not 0 <= index < code.fragments:
        raise InvalidInputError(f"a code of {code.data}+{code.parity} has no fragment {index}")
    body = memoryview(payload).cast("B")
    expected = fragment_size(code, stripe_length)
    if len(body) != expected:
        raise InvalidInputError(
            f"a fragment of {len(body)} bytes is not one of a stripe of {stripe_length} bytes",
            hint=f"with {code.data}+{code.parity} it has {expected} bytes",
        )
    metadata = (index, expected, 0, stripe_length, _CHECKSUM_NONE, *[0] * 8, 0, _BACKEND_CAUCHY, _BACKEND_VERSION)
    header = struct.Struct("<" + _FIELDS)
    checksum = zlib.crc32(header.pack(*metadata, _MAGIC, _LIBRARY_VERSION, 0)[:_METADATA_BYTES])
    return b"".join((header.pack(*metadata, _MAGIC, _LIBRARY_VERSION, checksum), body))


def unwrap(fragment: bytes | bytearray | memoryview) -> PyeclibFragment:
    """Reads a fragment that PyECLib encoded, of either byte order and of old and new libraries.

    Raises:
        FormatError: Not such a fragment, or one cut short.
        ChecksumError: The header or, where it is summed, the payload was damaged.
        UnsupportedVersionError: Coded by another backend, or summed in an unknown way.
    """
    body = memoryview(fragment).cast("B")
    if len(body) < HEADER_BYTES:
        raise FormatError(f"{len(body)} bytes are too few for a PyECLib fragment")
    for order in "<>":
        fields = struct.unpack_from(order + _FIELDS, body)
        if fields[-3] == _MAGIC:
            break
    else:
        raise FormatError("not a PyECLib fragment: its magic number is missing")
    index, size, extra, stripe_length, kind = fields[:5]
    payload = body[HEADER_BYTES:]
    _check_sum("header", body[:_METADATA_BYTES], fields[-1])
    if fields[14] != _BACKEND_CAUCHY:
        raise UnsupportedVersionError(
            f"the fragment was coded by PyECLib's backend {fields[14]}",
            hint=f"only {CAUCHY} ({_BACKEND_CAUCHY}) is known",
        )
    if extra or len(payload) != size:
        raise FormatError(f"a PyECLib fragment of {size} bytes has {len(payload)}")
    if kind == _CHECKSUM_CRC32:
        _check_sum("payload", payload, fields[5])
    elif kind != _CHECKSUM_NONE:
        raise UnsupportedVersionError(f"the fragment's payload has a checksum of unknown kind {kind}")
    return PyeclibFragment(index=index, stripe_length=stripe_length, payload=payload)


def _check_sum(what: str, data: memoryview, expected: int) -> None:
    if zlib.crc32(data) != expected and _legacy_crc32(data) != expected:
        raise ChecksumError(f"the {what} of a PyECLib fragment was damaged")


def _legacy_crc32(data: memoryview) -> int:
    """What old libraries, and new ones with LIBERASURECODE_WRITE_LEGACY_CRC, take for CRC-32.

    They shift a signed number, so ones come in from the left where CRC-32 has zeros.
    """
    entries = _signed_entries()
    state = -1
    for byte in data:
        state = state >> 8 ^ entries[(state ^ byte) & 0xFF]
    return ~state & 0xFFFFFFFF


@functools.cache
def _signed_entries() -> list[int]:
    entries = []
    for byte in range(256):
        entry = byte
        for _ in range(8):
            entry = entry >> 1 ^ (0xEDB88320 if entry & 1 else 0)
        entries.append(entry - (entry >> 31 << 32))
    return entries
