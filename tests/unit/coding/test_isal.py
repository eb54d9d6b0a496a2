from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from objckpt.coding.geometry import Code
from objckpt.coding.isal import Isal, IsalCodec, isal


@pytest.fixture
def undecided() -> Iterator[None]:
    isal.cache_clear()
    yield
    isal.cache_clear()


def test_the_library_that_pyeclib_ships_is_found() -> None:
    library = isal()
    assert library is not None
    assert "pyeclib.libs" in library.path
    with pytest.raises(OSError, match="no-such"):
        Isal("/no-such/libisal.so.2")


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize("name", ["libisal-pyeclib.so.2", "libisal-0a1b2c3d.so.2.0.32"])
def test_the_library_is_found_whatever_a_wheel_calls_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = isal()
    assert shipped is not None
    isal.cache_clear()
    (tmp_path / "pyeclib.libs").mkdir()
    (tmp_path / "pyeclib.libs" / name).symlink_to(shipped.path)
    spec = ModuleSpec("pyeclib", None, origin=str(tmp_path / "pyeclib" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: spec)
    found = isal()
    assert found is not None
    assert found.path == str(tmp_path / "pyeclib.libs" / name)


@pytest.mark.usefixtures("undecided")
def test_a_library_that_cannot_be_loaded_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyeclib.libs").mkdir()
    (tmp_path / "pyeclib.libs" / "libisal.so.2").write_bytes(b"for another processor")
    spec = ModuleSpec("pyeclib", None, origin=str(tmp_path / "pyeclib" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: spec)
    monkeypatch.setattr("objckpt.coding.isal._SYSTEM_NAME", "libisal-not-here.so")
    assert isal() is None


def test_matrices_are_kept_and_not_without_bound() -> None:
    library = isal()
    assert library is not None
    codec = IsalCodec(library)
    code = Code.of(20, 12)
    body = memoryview(bytes(8))
    for lost in range(20):
        for other in range(20, 32):
            present = {index: body for index in range(32) if index not in (lost, other)}
            codec.reconstruct(code, present, {lost: memoryview(bytearray(8)), other: memoryview(bytearray(8))})
    for _ in range(5):
        codec.encode(code, [body] * 20, [memoryview(bytearray(8)) for _ in range(12)])
    kept = codec._tables.cache_info()
    assert kept.hits >= 4
    assert kept.currsize <= 256
