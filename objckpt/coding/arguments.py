"""What callers hand to a codec, checked before a kernel sees an address.

A kernel that is given buffers of unequal length, or an index twice, writes where it must not. The
checks are the same for every codec, so that both refuse the same calls in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from objckpt.coding.geometry import MAX_STRIPE_SIZE, Code
from objckpt.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One fragment, or the same byte range of each, as flat bytes."""

    index: int
    view: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """k sources that determine the targets, all of ``size`` bytes; indices ascend in both."""

    size: int
    sources: list[Piece]
    targets: list[Piece]


def encode_call(code: Code, data: Sequence[memoryview], parity: Sequence[memoryview]) -> Call:
    """Raises ``InvalidInputError`` unless these are k and m buffers of one length."""
    if (len(data), len(parity)) != (code.data, code.parity):
        raise InvalidInputError(
            f"{len(data)} data and {len(parity)} parity buffers do not fit a code of {code.data}+{code.parity}"
        )
    return _call(dict(enumerate(data)), dict(enumerate(parity, code.data)))


def reconstruct_call(code: Code, present: Mapping[int, memoryview], missing: Mapping[int, memoryview]) -> Call:
    """Chooses k of the present fragments, data first.

    Raises:
        InvalidInputError: Fewer than k are present, an index is unknown or in both, or lengths differ.
    """
    unknown = sorted(index for index in {*present, *missing} if not 0 <= index < code.fragments)
    if unknown:
        raise InvalidInputError(f"a code of {code.data}+{code.parity} has no fragments {unknown}")
    both = sorted({*present} & {*missing})
    if both:
        raise InvalidInputError(f"fragments {both} are said to be present and missing")
    if len(present) < code.data:
        raise InvalidInputError(
            f"{len(present)} fragments cannot rebuild others of a code of {code.data}+{code.parity}",
            hint=f"{code.data} verified fragments are needed",
        )
    chosen = sorted(present)[: code.data]
    return _call({index: present[index] for index in chosen}, {index: missing[index] for index in sorted(missing)})


def _call(sources: Mapping[int, memoryview], targets: Mapping[int, memoryview]) -> Call:
    views = [*sources.values(), *targets.values()]
    if not all(view.c_contiguous for view in views):
        raise InvalidInputError("a fragment's buffer is not contiguous", hint="pass flat memory")
    if any(view.readonly for view in targets.values()):
        raise InvalidInputError("a buffer to be filled is read-only")
    sizes = {view.nbytes for view in views}
    if len(sizes) != 1:
        raise InvalidInputError(f"the fragments of a stripe have one size, not {sorted(sizes)}")
    (size,) = sizes
    if size > MAX_STRIPE_SIZE:
        raise InvalidInputError(f"a fragment of {size} bytes", hint=f"at most {MAX_STRIPE_SIZE} bytes")
    return Call(size=size, sources=_pieces(sources), targets=_pieces(targets))


def _pieces(views: Mapping[int, memoryview]) -> list[Piece]:
    return [Piece(index=index, view=view.cast("B")) for index, view in views.items()]
