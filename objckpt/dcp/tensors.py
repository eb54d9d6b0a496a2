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
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.device.type != "cpu" or tensor.is_quantized or not tensor.is_contiguous():
        return None
    if tensor.is_conj() or tensor.is_neg():
        return None
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(bytearray())
    memory = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    memory.owner = tensor  # type: ignore[attr-defined]  # kept alive with the memory
    return memoryview(memory).cast("B")


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
        view = None if self._memory is None else self._memory[start:stop].toreadonly()
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
                piece = _flat(tensor, first, -(-stop // item)).resolve_conj().resolve_neg().cpu().contiguous()
                found = memory_of(piece)
                assert found is not None
                into[done : done + stop - at] = found[at - first * item : stop - first * item]
                done += stop - at
        self._passed(start + len(into))

    def _resolved(self) -> torch.Tensor:
        if self._tensor is None:
            tensor = self._resolve().detach()
            check_storable(self._fqn, tensor.layout, quantized=tensor.is_quantized)
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


def check_storable(fqn: str, layout: torch.layout, *, quantized: bool = False) -> None:
    """Raises InvalidInputError for tensors that are not dense arrays (D10)."""
    if layout is not torch.strided or quantized:
        kind = "quantized" if quantized else str(layout).removeprefix("torch.")
        raise InvalidInputError(
            f"{fqn!r} is a {kind} tensor, which cannot be stored",
            hint="store its parts (values, indices, scales) as dense tensors",
        )


def _flat(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Elements ``[start, stop)`` in row-major order, copying not much more than these."""
    if tensor.is_contiguous() or tensor.dim() == 0:
        return tensor.reshape(-1)[start:stop]
    row = tensor[0].numel()
    first, last = start // row, (stop - 1) // row
    if first == last:
        return _flat(tensor[first], start - first * row, stop - first * row)
    return tensor[first : last + 1].reshape(-1)[start - first * row : stop - first * row]
