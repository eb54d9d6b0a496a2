"""Is all of a checkpoint there? Every fragment and every control copy, by size or byte by byte. Repairs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from objckpt.checkpoint.reading import Checkpoint
from objckpt.coding.geometry import stripe_code
from objckpt.errors import DataError, ObjectNotFoundError, StoreError
from objckpt.format import keys
from objckpt.format.manifest import ShardManifest, sha256
from objckpt.transfer.download import FragmentState
from objckpt.transfer.placement import tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """One shard: how many fragments are in which state, and what the worst stripe survives.

    Attributes:
        counts: Number of fragments by state (ok, missing, corrupt, unreachable, lost).
        tolerance: Domains that every stripe survives as it is now; -1 if a stripe cannot be read.
        problems: The fragments that are not ok.
    """

    name: str
    length: int
    counts: dict[str, int]
    tolerance: int
    problems: tuple[FragmentState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCopy:
    """One copy of a manifest on one control target; ``state`` is ok, missing, corrupt or unreachable."""

    key: str
    target: str
    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was found of one checkpoint.

    Attributes:
        deep: Every byte was read and compared.
        tolerance: Domains that the checkpoint survives as it is now, by its fragments and by the copies of its
            manifests; -1 if it cannot be read.
        control: The control copies that are not ok.
    """

    step: int
    checkpoint: str
    deep: bool
    shards: tuple[ShardReport, ...]
    control: tuple[ControlCopy, ...]
    tolerance: int

    @property
    def readable(self) -> bool:
        return self.tolerance >= 0

    @property
    def whole(self) -> bool:
        """Nothing at all is missing or damaged."""
        return not self.control and all(not shard.problems for shard in self.shards)


def verify(
    checkpoint: Checkpoint, *, deep: bool = False, progress: Callable[[int], None] | None = None
) -> VerifyReport:
    """Checks one checkpoint.

    Args:
        deep: Read every byte, instead of sizes only.
        progress: Told the bytes of every fragment that has been looked at.

    Raises:
        QuorumError: A shard manifest has no copy that can be read.
    """
    shards: list[ShardReport] = []
    for ref in checkpoint.shards:
        shard = checkpoint.shard(ref.id)
        shards.append(_judge(checkpoint, shard, checkpoint.check(ref.id, deep=deep, progress=progress)))
    highest = len({target.domain for target in checkpoint.plane.targets.config.fragment_targets})
    copies = tuple(_control_copies(checkpoint))
    return VerifyReport(
        step=checkpoint.step,
        checkpoint=checkpoint.id,
        deep=deep,
        shards=tuple(shards),
        control=tuple(copy for copy in copies if copy.state != "ok"),
        tolerance=min([highest, *(shard.tolerance for shard in shards), *_copies_to_spare(copies)]),
    )


def _judge(checkpoint: Checkpoint, shard: ShardManifest, states: list[FragmentState]) -> ShardReport:
    domains = {target.name: target.domain for target in checkpoint.plane.targets.config.targets}
    good: dict[int, list[str]] = {number: [] for number in range(len(shard.stripes))}
    for state in states:
        if state.state == "ok":
            good[state.stripe].append(domains[state.target])
    code = shard.code.code()
    return ShardReport(
        name=shard.name,
        length=shard.length,
        counts=dict(Counter(state.state for state in states)),
        tolerance=min(
            (
                tolerance(found, data=stripe_code(code, shard.stripes[number].length).data)
                for number, found in good.items()
            ),
            default=len(set(domains.values())),
        ),
        problems=tuple(state for state in states if state.state != "ok"),
    )


def _copies_to_spare(copies: Sequence[ControlCopy]) -> Iterator[int]:
    """Of each control object: any one good copy will do, and each is in a domain of its own."""
    good = Counter({copy.key: 0 for copy in copies})
    good.update(copy.key for copy in copies if copy.state == "ok")
    for count in good.values():
        yield count - 1


def _control_copies(checkpoint: Checkpoint) -> Iterator[ControlCopy]:
    entry, plane = checkpoint.entry, checkpoint.plane
    objects = [(entry.manifest_key, entry.manifest_size, entry.manifest_sha256)]
    objects += [(keys.shard_key(ref.id), ref.size, ref.sha256) for ref in checkpoint.shards]
    objects += [
        (keys.part_key(checkpoint.id, number), part.size or 0, part.sha256 or "")
        for number, part in enumerate(checkpoint.manifest.metadata)
        if part.inline is None
    ]
    for key, size, digest in objects:
        for target in plane.targets.config.control_targets:
            try:
                body = plane.targets.stores[target.name].get(key)
            except ObjectNotFoundError:
                yield ControlCopy(key=key, target=target.name, state="missing")
            except (StoreError, DataError) as error:
                yield ControlCopy(key=key, target=target.name, state="unreachable", detail=error.message)
            else:
                good = len(body) == size and sha256(body) == digest
                yield ControlCopy(key=key, target=target.name, state="ok" if good else "corrupt")
