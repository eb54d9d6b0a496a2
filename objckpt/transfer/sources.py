"""Which fragments of a stripe to ask next, and when to give up: a state machine without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum

from objckpt.errors import NotEnoughFragmentsError


class FragmentStatus(Enum):
    """What is known of one fragment."""

    AVAILABLE = "available"
    OK = "ok"
    MISSING = "missing"
    CORRUPT = "corrupt"
    UNREACHABLE = "unreachable"
    LOST = "lost"


FAILED = frozenset({FragmentStatus.MISSING, FragmentStatus.CORRUPT, FragmentStatus.UNREACHABLE, FragmentStatus.LOST})


class StripeSources:
    """The fragments of one stripe while it is read.

    Args:
        label: Names the stripe in errors, such as ``stripe 12 of shard ...``.
        need: k.
        targets: Target's name by fragment index.
        costs: Relative read cost by target's name; a missing name costs 1.
        doubtful: Indices that are asked last: recorded as not stored, or on targets known to be bad.
    """

    def __init__(
        self,
        *,
        label: str,
        need: int,
        targets: Mapping[int, str],
        costs: Mapping[str, float],
        doubtful: frozenset[int] = frozenset(),
    ) -> None:
        self.label = label
        self.need = need
        self.targets = dict(targets)
        self.status = dict.fromkeys(targets, FragmentStatus.AVAILABLE)
        self.details: dict[int, str] = {}
        self._costs = costs
        self._doubtful = doubtful

    def failed(self, index: int, status: FragmentStatus, detail: str) -> None:
        """A fragment is not to be had; it is not asked again for this stripe."""
        self.status[index] = status
        self.details[index] = detail

    def choose(self, count: int, *, exclude: frozenset[int], doubtful_targets: frozenset[str]) -> list[int]:
        """The next fragments to ask: data first, cheap first, doubtful ones last.

        Args:
            count: How many are wanted.
            exclude: Indices that are in use already.
            doubtful_targets: Targets that have failed in this load.

        Raises:
            NotEnoughFragmentsError: Fewer than ``count`` are left to ask.
        """
        usable = [index for index, status in self.status.items() if index not in exclude and status not in FAILED]
        if len(usable) < count:
            raise self.exhausted()
        usable.sort(
            key=lambda index: (
                index in self._doubtful or self.targets[index] in doubtful_targets,
                index >= self.need,
                self._costs.get(self.targets[index], 1.0),
                index,
            )
        )
        return usable[:count]

    def exhausted(self) -> NotEnoughFragmentsError:
        """The error that counts the states of this stripe's fragments."""
        good = sum(status not in FAILED for status in self.status.values())
        parts = [f"ok={good}"]
        counted = Counter(status for status in self.status.values() if status in FAILED)
        for status in (FragmentStatus.CORRUPT, FragmentStatus.MISSING, FragmentStatus.UNREACHABLE, FragmentStatus.LOST):
            if counted[status]:
                places = sorted({self.targets[i] for i, found in self.status.items() if found is status})
                parts.append(f"{status.value}={counted[status]} ({', '.join(places)})")
        details = "; ".join(f"{self.targets[i]}: {text}" for i, text in sorted(self.details.items()))
        return NotEnoughFragmentsError(
            f"{self.label}: need {self.need} of {len(self.status)}: {' '.join(parts)}; {details}",
            hint="bring the failed targets back, or load an older checkpoint",
        )
