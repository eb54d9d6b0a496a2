"""Sizes and small integer arithmetic: constants in bytes, parsing and showing of sizes."""

from __future__ import annotations

import re

from objckpt.errors import InvalidInputError

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB

_UNITS = {
    "": 1,
    "b": 1,
    "kib": KiB,
    "mib": MiB,
    "gib": GiB,
    "tib": TiB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def ceil_div(numerator: int, denominator: int) -> int:
    """Divides, rounding up; the denominator is positive."""
    return -(-numerator // denominator)


def parse_size(text: str | int, *, name: str = "size") -> int:
    """Reads ``"64MiB"``, ``"1.5GB"`` or a plain number of bytes.

    Raises:
        InvalidInputError: Not a size, or not a whole number of bytes.
    """
    if isinstance(text, bool) or not isinstance(text, (int, str)):
        raise InvalidInputError(f"{name} is {text!r}, which is not a size", hint='write a size such as "64MiB"')
    if isinstance(text, int):
        if text < 0:
            raise InvalidInputError(f"{name} is {text}, which is negative", hint='write a size such as "64MiB"')
        return text
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise InvalidInputError(
            f"{name} is {text!r}, which is not a size",
            hint='write a number and one of B, KiB, MiB, GiB, TiB, kB, MB, GB, TB, such as "64MiB"',
        )
    whole, _, fraction = match.group(1).partition(".")
    scaled = int(whole + fraction) * factor
    size, rest = divmod(scaled, 10 ** len(fraction))
    if rest:
        raise InvalidInputError(f"{name} is {text!r}, which is not a whole number of bytes")
    return int(size)


def show_size(size: int) -> str:
    """Shows bytes for people: ``"64.0 MiB"``."""
    if size < KiB:
        return f"{size} B"
    for unit, name in ((TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / KiB:.1f} KiB"
