"""Tensors as memory: bit for bit, piece by piece, and refused by name where there are no bytes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

from objckpt.dcp.tensors import PIECE_SIZE, TensorSource, check_storable, copy_bits, dtype_of, memory_of
from objckpt.errors import FormatError, InvalidInputError

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support", "ignore:.*torch.quantized")

EXOTIC = [
    torch.int4, torch.uint1, torch.bits8, torch.float4_e2m1fn_x2, torch.float8_e8m0fnu, torch.float8_e5m2fnuz,
    torch.uint16, torch.uint64, torch.bool, torch.bfloat16, torch.complex32, torch.complex128,
]  # fmt: skip


def source_of(tensor: torch.Tensor) -> TensorSource:
    return TensorSource("w", sizes=tuple(tensor.shape), dtype=tensor.dtype, resolve=lambda: tensor)


def read(source: TensorSource, step: int) -> bytes:
    body = bytearray(source.length)
    for start in range(0, source.length, step):
        source.read_into(start, memoryview(body)[start : start + step])
    return bytes(body)


def patterns(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (torch.Size(shape).numel() * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The elements' bytes row by row, by a path that the code under test does not take."""
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    item = tensor.element_size()
    planes = [
        storage.as_strided(tensor.shape, tuple(s * item for s in tensor.stride()), tensor.storage_offset() * item + i)
        for i in range(item)
    ]
    return torch.stack(planes, dim=-1).contiguous().numpy().tobytes()


@pytest.mark.parametrize("dtype", EXOTIC, ids=str)
@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_strided_tensors_of_types_that_torch_cannot_copy_give_their_bytes(dtype: torch.dtype, step: int) -> None:
    """D07, D10: a transposed, a stepped and a repeated one, cut anywhere."""
    base = patterns(dtype, 6, 10)
    for tensor in (base.t(), base[:, ::3], base[1:, 2:7], base[0].expand(4, 10), base[:, 3]):
        assert memory_of(tensor) is None or tensor.is_contiguous()
        assert read(source_of(tensor), step) == bytes_of(tensor)


@pytest.mark.parametrize("dtype", EXOTIC, ids=str)
def test_bits_are_copied_into_any_strides(dtype: torch.dtype) -> None:
    source = patterns(dtype, 5, 8)
    target = patterns(dtype, 9, 20).t()[3:13:2, :8]
    copy_bits(target, source)
    assert bytes_of(target) == bytes_of(source)


def test_conjugated_and_negated_tensors_give_what_they_show() -> None:
    for dtype in (torch.complex64, torch.complex128):
        base = torch.randn(6, 10, dtype=dtype)
        for tensor in (base.conj(), base.conj().t(), base.conj().imag, base.t().conj()[1]):
            assert read(source_of(tensor), 24) == bytes_of(tensor.resolve_conj().resolve_neg().clone())
        target = torch.zeros(10, 6, dtype=dtype).conj().t()
        copy_bits(target, base)
        assert torch.equal(target, base)


def test_a_large_transposed_tensor_is_never_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """D25: the copies are as small as the pieces, whatever the caller asks for at once."""
    tensor = torch.arange(3 * PIECE_SIZE // 4, dtype=torch.float32).reshape(1024, -1).t()
    largest = 0
    original = torch.Tensor.contiguous

    def contiguous(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        nonlocal largest
        result = original(self, *arguments, **options)
        largest = max(largest, result.numel() * result.element_size())
        return result

    monkeypatch.setattr(torch.Tensor, "contiguous", contiguous)
    assert read(source_of(tensor), 2 * PIECE_SIZE) == original(tensor).numpy().tobytes()
    assert 0 < largest <= PIECE_SIZE + 2 * tensor.shape[1] * 4


def test_a_tensor_is_let_go_when_its_last_byte_was_asked_for() -> None:
    """D25: but not while a view of it is in use."""
    tensor = torch.arange(100.0)
    alive = weakref.ref(tensor)
    held = [tensor]
    source = TensorSource("w", sizes=(100,), dtype=torch.float32, resolve=held.pop)
    del tensor
    view = source.view(0, 400)
    assert view is not None
    gc.collect()
    assert bytes(view) == torch.arange(100.0).numpy().tobytes()
    del view
    gc.collect()
    assert alive() is None


def test_a_subclass_that_only_adds_methods_is_a_tensor() -> None:
    class Named(torch.Tensor):
        pass

    tensor = torch.arange(12.0).reshape(3, 4).as_subclass(Named)
    assert read(source_of(tensor.t()), 5) == bytes_of(torch.arange(12.0).reshape(3, 4).t())
    assert memory_of(tensor) is not None


class Wrapper(torch.Tensor):
    """As quantising libraries build theirs: no memory of its own."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = [arg.inner if isinstance(arg, Wrapper) else arg for arg in args]
        result = func(*inner, **(kwargs or {}))
        wrapped = Wrapper(result) if isinstance(result, torch.Tensor) else result
        return return_and_correct_aliasing(func, args, kwargs or {}, wrapped)


def test_tensors_without_bytes_of_their_own_are_refused_by_name() -> None:
    """D10: a wrapper of other tensors, the meta device."""
    with pytest.raises(InvalidInputError, match="'w' is a Wrapper"):
        source_of(Wrapper(torch.ones(3))).view(0, 12)
    with pytest.raises(InvalidInputError, match="'w' is on the meta device"):
        source_of(torch.ones(3, device="meta")).view(0, 12)
    assert memory_of(Wrapper(torch.ones(3))) is None


def test_quantized_and_sparse_tensors_are_refused_by_what_the_plan_says() -> None:
    with pytest.raises(InvalidInputError, match="'w' is a quantized tensor"):
        check_storable("w", torch.qint8, torch.strided)
    with pytest.raises(InvalidInputError, match="'w' is a sparse_csr tensor"):
        check_storable("w", torch.float32, torch.sparse_csr)


@pytest.mark.parametrize("name", ["tensor", "strided", "__doc__", "", 5, None, "float33"])
def test_only_types_are_types(name: object) -> None:
    with pytest.raises(FormatError):
        dtype_of(name)
