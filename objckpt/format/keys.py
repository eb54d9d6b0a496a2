"""The key grammar, both ways: every key is built and parsed here and nowhere else.

Keys are relative to ``<target prefix>/<run>/``. Names are never reused: claims and versions carry
their digest, everything else an identity that is drawn once.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from objckpt.errors import FormatError

MARKERS = "markers/"
CLAIMS = "claims/"
CATALOG = "catalog/"
CHECKPOINTS = "checkpoints/"
SHARDS = "shards/"
DATA = "data/"
PROBES = "probes/"

_UUID = r"[0-9a-f]{32}"
_EPOCH = rf"(?P<number>\d{{10}})-(?P<uuid>{_UUID})"
_DIGEST = r"(?P<digest>[0-9a-f]{16})"
_CLAIM = re.compile(rf"claims/{_EPOCH}-{_DIGEST}")
_VERSION = re.compile(rf"catalog/{_EPOCH}/(?P<seq>\d{{8}})-{_DIGEST}")
_MARKER = re.compile(rf"markers/(?P<instance>{_UUID})")
_CHECKPOINT_ID = re.compile(rf"{_EPOCH}-(?P<seq>\d{{8}})")
_SHARD_ID = re.compile(rf"{_EPOCH}-(?P<seq>\d{{8}})-(?P<rank>\d{{5,7}})-(?P<counter>\d{{6}})")


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """One incarnation of a run's owner; ordered by number, then uuid."""

    number: int
    uuid: str

    def __post_init__(self) -> None:
        if not (0 < self.number < 10**10 and re.fullmatch(_UUID, self.uuid)):
            raise FormatError(f"{self.number}-{self.uuid} is not an epoch")

    def __str__(self) -> str:
        return f"{self.number:010d}-{self.uuid}"


@dataclass(frozen=True, slots=True, order=True)
class VersionName:
    """What a catalog version's key says; ordered by epoch, then seq."""

    epoch: Epoch
    seq: int
    digest: str

    @property
    def key(self) -> str:
        return f"{CATALOG}{self.epoch}/{self.seq:08d}-{self.digest}"


@dataclass(frozen=True, slots=True, order=True)
class ClaimName:
    """What a claim's key says; ordered by epoch."""

    epoch: Epoch
    digest: str

    @property
    def key(self) -> str:
        return f"{CLAIMS}{self.epoch}-{self.digest}"


@dataclass(frozen=True, slots=True)
class ShardId:
    """Whose data it is: epoch and seq of the attempt, the rank that wrote it, a counter on that rank."""

    epoch: Epoch
    seq: int
    rank: int
    counter: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq:08d}-{self.rank:05d}-{self.counter:06d}"


def digest16(body: bytes) -> str:
    """The part of a control object's SHA-256 that its name carries."""
    return hashlib.sha256(body).hexdigest()[:16]


def marker_key(instance: str) -> str:
    return f"{MARKERS}{instance}"


def checkpoint_id(epoch: Epoch, seq: int) -> str:
    return f"{epoch}-{seq:08d}"


def checkpoint_key(identity: str) -> str:
    return f"{CHECKPOINTS}{identity}"


def part_key(identity: str, number: int) -> str:
    """A part of a checkpoint's metadata that did not fit into its manifest."""
    return f"{CHECKPOINTS}{identity}.{number:04d}"


def shard_key(shard_id: str) -> str:
    return f"{SHARDS}{_spread(shard_id)}/{shard_id}"


def fragment_key(shard_id: str, stripe: int, index: int) -> str:
    return f"{DATA}{_spread(shard_id)}/{shard_id}/{stripe:06d}.{index:03d}"


def probe_key(identity: str) -> str:
    """An object of ``doctor``'s, deleted by it; nothing else looks there."""
    return f"{PROBES}{identity}"


def parse_version_key(key: str) -> VersionName:
    match = _match(_VERSION, key)
    return VersionName(_epoch(match), int(match["seq"]), match["digest"])


def parse_claim_key(key: str) -> ClaimName:
    match = _match(_CLAIM, key)
    return ClaimName(_epoch(match), match["digest"])


def parse_marker_key(key: str) -> str:
    return _match(_MARKER, key)["instance"]


def parse_checkpoint_id(identity: str) -> tuple[Epoch, int]:
    match = _match(_CHECKPOINT_ID, identity)
    return _epoch(match), int(match["seq"])


def parse_shard_id(identity: str) -> ShardId:
    match = _match(_SHARD_ID, identity)
    return ShardId(_epoch(match), int(match["seq"]), int(match["rank"]), int(match["counter"]))


def _epoch(match: re.Match[str]) -> Epoch:
    return Epoch(int(match["number"]), match["uuid"])


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise FormatError(f"{text!r} is not of the form {pattern.pattern}")
    return match


def _spread(shard_id: str) -> str:
    """Two hexadecimal digits, so that a burst of writes spreads over a store's key partitions."""
    return hashlib.sha256(shard_id.encode()).hexdigest()[:2]
