"""Which fragment goes to which target, and how many lost domains that survives. Pure functions.

Placement is as even over the failure domains as it can be, so that the tolerance is what the
configuration promises; within that, data fragments take the targets that are cheapest to read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A target as placement sees it. ``read_cost`` is relative; only its order counts."""

    name: str
    domain: str
    read_cost: float = 1.0


def place(sites: Sequence[Site], *, fragments: int, turn: int) -> tuple[str, ...]:
    """Chooses the target of every fragment of one stripe.

    Args:
        sites: At least one.
        fragments: n = k + m.
        turn: Rotates among equals; the stripe's number does.

    Returns:
        The target's name by fragment index. No domain holds more than ``ceil(n / domains)``, and within
        a domain no target holds more than its even share.
    """
    by_domain: dict[str, list[Site]] = {}
    for site in sites:
        by_domain.setdefault(site.domain, []).append(site)
    domains = sorted(_rotated(list(by_domain.values()), turn), key=lambda members: min(s.read_cost for s in members))
    share, rest = divmod(fragments, len(domains))
    slots: list[tuple[float, int, int, str]] = []
    for order, members in enumerate(domains):
        ranked = sorted(_rotated(members, turn), key=lambda site: site.read_cost)
        for level in range(share + (1 if order < rest else 0)):
            site = ranked[level % len(ranked)]
            slots.append((site.read_cost, level, order, site.name))
    # Sorted by cost, the first k slots are the cheapest: indices below k, the data fragments, take them.
    return tuple(name for _, _, _, name in sorted(slots))


def tolerance(domains: Sequence[str], *, data: int) -> int:
    """How many domains a stripe can lose.

    Args:
        domains: The domain of each fragment that is stored.
        data: k.

    Returns:
        The largest r such that k fragments are left whichever r domains are lost; -1 if fewer than k
        are there to begin with.
    """
    left = len(domains)
    if left < data:
        return -1
    fullest = sorted(Counter(domains).values(), reverse=True)
    survived = 0
    for count in fullest:
        left -= count
        if left < data:
            break
        survived += 1
    return survived


def _rotated(items: list[T], turn: int) -> list[T]:
    turn %= len(items)
    return items[turn:] + items[:turn]
