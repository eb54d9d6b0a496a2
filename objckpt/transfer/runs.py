"""Requests for parts of a fragment: which whole blocks to ask for, where their bytes go, whether they are right.

A checksum covers a block, so whole blocks are fetched; what a caller wants of them lands in the
caller's own memory where that is possible. Pure planning and summing, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from objckpt.coding.checksum import block_checksums, crc32c
from objckpt.coding.geometry import BLOCK_SIZE, widen_to_blocks
from objckpt.errors import ChecksumError
from objckpt.format.manifest import Fragment

MAX_VIEWS = 64
"""A request that would scatter into more pieces than this reads into one scratch buffer instead."""


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """Whole blocks ``[start, stop)`` of one fragment, and where their bytes go.

    ``views`` cover the range end to end: destination memory, or the length of a gap, which becomes
    scratch memory while the run is in flight. ``copies`` say which parts of a run that is one single
    gap go where: (offset in the range, destination).
    """

    stripe: int
    index: int
    start: int
    stop: int
    views: list[memoryview | int]
    copies: list[tuple[int, memoryview]]
    cost: int

    def memory(self) -> list[memoryview]:
        """The views with fresh scratch memory in the gaps."""
        return [memoryview(bytearray(view)) if isinstance(view, int) else view for view in self.views]

    def part(self, start: int, stop: int) -> memoryview | None:
        """Bytes ``[start, stop)`` of the fragment, if they lie in one destination."""
        at = self.start
        for view in self.views:
            size = view if isinstance(view, int) else len(view)
            if at <= start and stop <= at + size and not isinstance(view, int):
                return view[start - at : stop - at]
            at += size
        return None

    def spread(self, found: memoryview, start: int) -> None:
        """Copies bytes that begin at ``start`` of the fragment to all destinations that want them."""
        at = self.start
        places = [(self.start + offset, into) for offset, into in self.copies]
        for view in self.views:
            if isinstance(view, int):
                at += view
            else:
                places.append((at, view))
                at += len(view)
        for at, into in places:
            first, last = max(at, start), min(at + len(into), start + len(found))
            if first < last:
                into[first - at : last - at] = found[first - start : last - start]


def plan_runs(number: int, index: int, segments: list[tuple[int, int, memoryview]], size: int) -> list[Run]:
    """Joins the wanted segments of one fragment into requests of whole blocks."""
    groups: list[tuple[int, int, list[tuple[int, int, memoryview]]]] = []
    for segment in segments:
        start, stop = widen_to_blocks(segment[0], segment[1], size)
        if groups and start <= groups[-1][1] + BLOCK_SIZE:
            first, last, members = groups.pop()
            groups.append((first, max(last, stop), [*members, segment]))
        else:
            groups.append((start, stop, [segment]))
    return [_run(number, index, start, stop, members) for start, stop, members in groups]


def _run(number: int, index: int, start: int, stop: int, segments: list[tuple[int, int, memoryview]]) -> Run:
    """Scatters a request into the destinations, or, where that is not possible, into one scratch buffer."""
    overlap = any(after[0] < before[1] for before, after in pairwise(segments))
    if overlap or 2 * len(segments) + 1 > MAX_VIEWS:
        copies = [(first - start, into) for first, _, into in segments]
        return Run(
            stripe=number, index=index, start=start, stop=stop, views=[stop - start], copies=copies,
            cost=stop - start,
        )  # fmt: skip
    views: list[memoryview | int] = []
    at, scratch = start, 0
    for first, last, into in [*segments, (stop, stop, memoryview(b""))]:
        if first > at:
            views.append(first - at)
            scratch += first - at
        if last > first:
            views.append(into)
        at = last
    return Run(stripe=number, index=index, start=start, stop=stop, views=views, copies=[], cost=scratch)


def verify(fragment: Fragment, views: list[memoryview], start: int) -> None:
    """Checks whole blocks of a fragment, from offset ``start`` on, that lie scattered over ``views``."""
    number = start // BLOCK_SIZE
    partial, filled = 0, 0
    for view in views:
        at = 0
        while at < len(view):
            if filled == 0:
                whole = (len(view) - at) // BLOCK_SIZE * BLOCK_SIZE
                if number * BLOCK_SIZE + (len(view) - at) == fragment.size:
                    whole = len(view) - at
                if whole:
                    _compare(fragment, number, block_checksums(view[at : at + whole]))
                    number += -(-whole // BLOCK_SIZE)
                    at += whole
                    continue
            block = min(BLOCK_SIZE, fragment.size - number * BLOCK_SIZE)
            step = min(block - filled, len(view) - at)
            partial = crc32c(view[at : at + step], partial)
            filled += step
            at += step
            if filled == block:
                _compare(fragment, number, partial.to_bytes(4, "little"))
                number, partial, filled = number + 1, 0, 0
    if filled:
        raise ChecksumError(f"{filled} bytes of block {number} cannot be verified alone")


def _compare(fragment: Fragment, number: int, found: bytes) -> None:
    if fragment.blocks[4 * number : 4 * number + len(found)] != found:
        raise ChecksumError(f"bytes from block {number} on do not match their checksum", target=fragment.target)
