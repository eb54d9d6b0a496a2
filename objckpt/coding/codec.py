"""The codec of this process: k data fragments to m parity fragments, and any k back to the lost ones.

It trusts what it is given: a damaged fragment decodes to wrong bytes without any error, so callers verify
fragments against the manifest first, and what was rebuilt afterwards (I7). It never allocates or keeps a
fragment. Reed-Solomon works byte by byte: equal byte ranges of fragments serve as well as whole ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from objckpt.coding.geometry import Code
from objckpt.coding.isal import IsalCodec, isal
from objckpt.coding.known_answer import check_answers
from objckpt.errors import CapabilityError

_log = logging.getLogger(__name__)
_process: dict[str, Codec] = {}


class Codec(Protocol):
    """Encodes and reconstructs in the caller's memory; thread-safe."""

    def encode(self, code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None:
        """Fills the parity fragments of a stripe; without parity there is nothing to do.

        Args:
            code: k + m.
            data: k contiguous buffers of one length, which may be 0.
            parity: m writable ones of the same length, apart from the data.

        Raises:
            InvalidInputError: The buffers do not fit the code or each other.
        """
        ...

    def reconstruct(self, code: Code, present: Mapping[int, memoryview], missing: Mapping[int, memoryview]) -> None:
        """Fills lost fragments, or one byte range of them.

        Args:
            code: k + m.
            present: At least k verified fragments by index, or the same byte range of each.
            missing: Writable buffers by index, of the same length; data and parity alike.

        Raises:
            InvalidInputError: Too few are present, or the buffers do not fit.
        """
        ...


def codec() -> Codec:
    """The process's codec: ISA-L's kernels, else PyECLib itself. It has answered known questions.

    Raises:
        CapabilityError: No Reed-Solomon library can be loaded.
        InternalError: The library computes something else.
    """
    chosen = _process.get("codec")
    if chosen is not None:
        return chosen
    # No lock, which a fork could leave held for good: threads that come at once each make one, and the
    # first one stays.
    made = _make()
    check_answers(made)
    chosen = _process.setdefault("codec", made)
    if chosen is made and not isinstance(made, IsalCodec):
        _log.warning("ISA-L was not found beside pyeclib: coding through PyECLib, which is slower and holds the GIL")
    return chosen


def _make() -> Codec:
    library = isal()
    if library is not None:
        return IsalCodec(library)
    try:
        from objckpt.coding.pyeclib_codec import PyeclibCodec
    except ImportError as error:
        raise CapabilityError(
            "no Reed-Solomon library can be loaded",
            hint="install pyeclib from a wheel; there are ones for Linux on x86-64 and aarch64",
        ) from error
    return PyeclibCodec()
