"""ISA-L, Intel's erasure-code and CRC kernels, as PyECLib ships them: called directly through ctypes.

It is not another code: the matrices are those of PyECLib's ``isa_l_rs_cauchy``, so the bytes are the
same. What a direct call saves is PyECLib's two copies and the GIL, which PyECLib holds for the whole
call. Kept here: the kernel reads and writes the caller's memory only, only while its buffers are
pinned, and without the GIL. A handle survives a fork; it holds no state but code.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from objckpt.coding.arguments import Call, encode_call, reconstruct_call
from objckpt.coding.buffers import pinned
from objckpt.coding.geometry import Code
from objckpt.errors import InternalError

_SYSTEM_NAME = "libisal.so.2"
_TABLE_BYTES = 32  # of one coefficient, as ec_init_tables writes them
_KEPT_TABLES = 256


class Isal:
    """One loaded library.

    Attributes:
        crc32_iscsi: (address, bytes, state) -> state; gives up the GIL.
        crc32_iscsi_holding: The same with the GIL held, for calls shorter than a switch of threads.
    """

    def __init__(self, path: str) -> None:
        """Raises ``OSError`` or ``AttributeError`` if there is no such library or it lacks a kernel."""
        self.path = path
        library, holding = ctypes.CDLL(path), ctypes.PyDLL(path)
        self.ec_init_tables = _function(library.ec_init_tables, None)
        self.ec_encode_data = _function(library.ec_encode_data, None)
        self.gf_gen_cauchy1_matrix = _function(library.gf_gen_cauchy1_matrix, None)
        self.gf_invert_matrix = _function(library.gf_invert_matrix, ctypes.c_int)
        self.gf_mul = _function(library.gf_mul, ctypes.c_ubyte)
        self.crc32_iscsi = _crc_function(library.crc32_iscsi)
        self.crc32_iscsi_holding = _crc_function(holding.crc32_iscsi)


@functools.cache
def isal() -> Isal | None:
    """The library that came with PyECLib, else the system's; ``None`` if there is neither."""
    for path in _candidates():
        try:
            return Isal(path)
        except (OSError, AttributeError):
            continue
    return None


class IsalCodec:
    """Encodes and reconstructs with ISA-L's kernels; thread-safe, and usable after a fork."""

    def __init__(self, library: Isal) -> None:
        self._library = library
        self._tables = functools.lru_cache(maxsize=_KEPT_TABLES)(functools.partial(_make_tables, library))

    def encode(self, code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None:
        self._run(code, encode_call(code, data, parity))

    def reconstruct(self, code: Code, present: Mapping[int, memoryview], missing: Mapping[int, memoryview]) -> None:
        self._run(code, reconstruct_call(code, present, missing))

    def _run(self, code: Code, call: Call) -> None:
        if call.size == 0 or not call.targets:
            return
        tables = self._tables(
            code, tuple(piece.index for piece in call.sources), tuple(piece.index for piece in call.targets)
        )
        with (
            pinned(piece.view for piece in call.sources) as sources,
            pinned((piece.view for piece in call.targets), writable=True) as targets,
        ):
            self._library.ec_encode_data(
                call.size, len(sources), len(targets), tables, _pointers(sources), _pointers(targets)
            )


def _candidates() -> Iterator[str]:
    spec = importlib.util.find_spec("pyeclib")
    if spec is not None and spec.origin is not None:
        # Wheels put it beside the package, under a name that a build may decorate with a hash.
        beside = Path(spec.origin).parent.parent / "pyeclib.libs"
        yield from (str(path) for path in sorted(beside.glob("libisal*.so*")))
    yield _SYSTEM_NAME


def _function(function: Any, result: Any) -> Any:
    function.restype = result
    return function


def _crc_function(function: Any) -> Any:
    function.restype = ctypes.c_uint32
    # The address alone is typed: ctypes hands plain ints over as C ints, twice as fast as by a type.
    function.argtypes = [ctypes.c_void_p]
    return function


def _make_tables(library: Isal, code: Code, present: tuple[int, ...], wanted: tuple[int, ...]) -> ctypes.Array[Any]:
    """The kernel's tables of the matrix that takes the ``present`` fragments to the ``wanted`` ones.

    With ``present`` the data and ``wanted`` the parity fragments, that is encoding.
    """
    k = code.data
    generator = (ctypes.c_ubyte * (code.fragments * k))()
    library.gf_gen_cauchy1_matrix(generator, code.fragments, k)
    rows = [bytes(generator[index * k : (index + 1) * k]) for index in range(code.fragments)]

    survivors = (ctypes.c_ubyte * (k * k)).from_buffer_copy(b"".join(rows[index] for index in present))
    inverse = (ctypes.c_ubyte * (k * k))()
    if library.gf_invert_matrix(survivors, inverse, k) != 0:
        raise InternalError(f"fragments {present} of a code of {code.data}+{code.parity} do not determine the data")
    columns = [bytes(inverse[column::k]) for column in range(k)]
    matrix = b"".join(bytes(_dot(library, rows[index], column) for column in columns) for index in wanted)

    tables = ctypes.create_string_buffer(_TABLE_BYTES * len(matrix))
    library.ec_init_tables(k, len(wanted), matrix, tables)
    return tables


def _dot(library: Isal, row: bytes, column: bytes) -> int:
    total = 0
    for left, right in zip(row, column, strict=True):
        total ^= library.gf_mul(left, right)
    return total


def _pointers(buffers: Sequence[tuple[int, int]]) -> ctypes.Array[Any]:
    return (ctypes.c_void_p * len(buffers))(*(address for address, _ in buffers))
