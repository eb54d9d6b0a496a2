"""Tensors as memory: their bytes without copies where that is possible, piece by piece where it is not.

Bytes are taken through ``uint8`` views, never through other libraries' types, so that every dtype comes
back bit for bit (D10).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from objckpt.errors import FormatError, InvalidInputError
from objckpt.units import MiB

PIECE_SIZE = 4 * MiB
"""Tensors whose memory cannot be used directly are copied in pieces of about this many bytes."""


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types to copy others as: torch can copy these with any strides."""

_QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})


def dtype_name(dtype: torch.dtype) -> str:
    """torch's own name of a type: ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: object) -> torch.dtype:
    """The type of a stored name.

    Raises:
        FormatError: There is no such type in this torch.
    """
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise FormatError(f"{name!r} is not a type of torch {torch.__version__}", hint="use a newer torch")
    return found


def memory_of(tensor: torch.Tensor) -> memoryview | None:
    """The writable bytes of a tensor, row-major; None if it does not lie in plain CPU memory like that.

    The view keeps the tensor alive.
    """
    if not _has_plain_memory(tensor) or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    if tensor.is_conj() or tensor.is_neg():
        return None
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(bytearray())
    memory = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    memory.owner = tensor  # type: ignore[attr-defined]  # kept alive with the memory
    return memoryview(memory).cast("B")


def copy_bits(target: torch.Tensor, source: torch.Tensor) -> None:
    """``target.copy_(source)`` of one type, also for types that torch cannot copy with strides."""
    as_integers = _INTEGERS.get(target.dtype.itemsize)
    if as_integers is None or not _has_plain_memory(target) or target.is_conj() or target.is_neg():
        target.copy_(source)
    else:
        target.view(as_integers).copy_(source.view(as_integers))


class TensorSource:
    """The bytes of one tensor for an upload, resolved when they are first asked for.

    Args:
        fqn: For errors.
        sizes: Planned shape.
        dtype: Planned type.
        resolve: Gives the tensor; called once.
    """

    def __init__(
        self, fqn: str, *, sizes: tuple[int, ...], dtype: torch.dtype, resolve: Callable[[], torch.Tensor]
    ) -> None:
        self._fqn = fqn
        self._sizes = sizes
        self._dtype = dtype
        self._resolve = resolve
        self._tensor: torch.Tensor | None = None
        self._memory: memoryview | None = None
        self.length = torch.Size(sizes).numel() * dtype.itemsize

    def view(self, start: int, stop: int) -> memoryview | None:
        self._resolved()
        if self._memory is None:
            return None
        view = self._memory[start:stop].toreadonly()
        self._passed(stop)
        return view

    def read_into(self, start: int, into: memoryview) -> None:
        tensor = self._resolved()
        if self._memory is not None:
            into[:] = self._memory[start : start + len(into)]
        else:
            item = self._dtype.itemsize
            done = 0
            while done < len(into):
                at = start + done
                stop = min(at + PIECE_SIZE, start + len(into))
                first = at // item
                found = memory_of(_row_major(_flat(tensor, first, -(-stop // item))))
                assert found is not None
                into[done : done + stop - at] = found[at - first * item : stop - first * item]
                done += stop - at
        self._passed(start + len(into))

    def _resolved(self) -> torch.Tensor:
        if self._tensor is None:
            tensor = self._resolve().detach()
            check_storable(self._fqn, tensor.dtype, tensor.layout)
            tensor = _plain(self._fqn, tensor)
            if tuple(tensor.shape) != self._sizes or tensor.dtype != self._dtype:
                raise InvalidInputError(
                    f"{self._fqn!r} is {dtype_name(tensor.dtype)}{list(tensor.shape)},"
                    f" the plan says {dtype_name(self._dtype)}{list(self._sizes)}",
                    hint="the state changed while it was being saved",
                )
            self._tensor = tensor
            self._memory = memory_of(tensor)
        return self._tensor

    def _passed(self, stop: int) -> None:
        """Lets go of the tensor once its last byte was asked for; views in flight keep it alive (D25)."""
        if stop == self.length:
            self._tensor = self._memory = None


def check_storable(fqn: str, dtype: torch.dtype, layout: torch.layout) -> None:
    """Raises InvalidInputError for tensors that are not dense arrays (D10)."""
    quantized = dtype in _QUANTIZED
    if layout is not torch.strided or quantized:
        kind = "quantized" if quantized else str(layout).removeprefix("torch.")
        raise InvalidInputError(
            f"{fqn!r} is a {kind} tensor, which cannot be stored",
            hint="store its parts (values, indices, scales) as dense tensors",
        )


def _has_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor is what its own storage holds, and no front for something else."""
    ordinary = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return ordinary and tensor.layout is torch.strided and tensor.dtype not in _QUANTIZED


def _plain(fqn: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without what a subclass adds to its methods.

    Raises:
        InvalidInputError: It has no bytes of its own: a wrapper around other tensors, or one of the meta device.
    """
    if not _has_plain_memory(tensor):
        raise InvalidInputError(
            f"{fqn!r} is a {type(tensor).__name__}, which has no memory of its own",
            hint="store the tensors inside of it under keys of their own",
        )
    if tensor.is_meta:
        raise InvalidInputError(
            f"{fqn!r} is on the meta device: there are no values to store", hint="materialise it first"
        )
    return tensor.as_subclass(torch.Tensor)


def _row_major(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, contiguous, with conjugations and signs carried out; itself if it is so already."""
    resolved = tensor.resolve_conj().resolve_neg()
    as_integers = _INTEGERS.get(resolved.dtype.itemsize)
    if as_integers is not None and not resolved.is_contiguous():
        resolved = resolved.view(as_integers)
    return resolved.cpu().contiguous()


def _flat(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Elements ``[start, stop)`` in row-major order, copying not much more than these."""
    if tensor.is_contiguous() or tensor.dim() == 0:
        return tensor.reshape(-1)[start:stop]
    if tensor.dim() == 1:
        return tensor[start:stop]
    row = tensor[0].numel()
    first, last = start // row, (stop - 1) // row
    if first == last:
        return _flat(tensor[first], start - first * row, stop - first * row)
    return _row_major(tensor[first : last + 1]).reshape(-1)[start - first * row : stop - first * row]
