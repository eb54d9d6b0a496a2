"""Control objects: their fields, their canonical bytes, and the checks that plain data must pass.

Everything here is JSON with sorted keys; checksums of blocks are packed and base64-encoded. Every
object carries ``format`` and ``requires``: a reader that does not know a required feature refuses by
name. Unknown fields of a catalog are kept when an owner writes the next version. Nothing is pickled.

What is read from a store is untrusted: sizes and counts are checked against each other before any
memory is allocated for what they promise.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, TypeVar

import msgspec

from objckpt.coding.geometry import (
    BLOCK_SIZE,
    MAX_STRIPE_SIZE,
    Code,
    block_count,
    fragment_size,
    stripe_code,
    stripe_lengths,
)
from objckpt.errors import FormatError, InvalidInputError, UnsupportedVersionError
from objckpt.format import keys
from objckpt.format.keys import Epoch

FORMAT = 1
FEATURES: frozenset[str] = frozenset()
"""Features beyond format 1 that this release knows."""

MAX_CONTROL_BYTES = 256 * 1024 * 1024
"""No control object is larger; a listing that claims more is not even fetched."""

CRC32C = "crc32c"
T = TypeVar("T", bound="Document")


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What every control object begins with."""

    format: int = FORMAT
    requires: tuple[str, ...] = ()


class Marker(Document, frozen=True, kw_only=True):
    """What a place is: written once, before anything else."""

    run: str
    target: str
    domain: str
    instance: str
    created_at: float
    host: str


class Claim(Document, frozen=True, kw_only=True):
    """One epoch's claim; host, pid and time are for people."""

    run: str
    number: int
    uuid: str
    host: str
    pid: int
    created_at: float

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.number, self.uuid)


class TargetInForce(msgspec.Struct, frozen=True, kw_only=True):
    """One target of a set. ``control``: it speaks for its domain. ``lost``: neither read nor written."""

    name: str
    url: str
    domain: str
    instance: str
    control: bool
    witness: bool = False
    lost: bool = False
    unknown: dict[str, Any] = {}


class TargetSet(msgspec.Struct, frozen=True, kw_only=True):
    """Targets that are in force together; two sets are in force while targets change."""

    targets: tuple[TargetInForce, ...]
    unknown: dict[str, Any] = {}

    @property
    def control(self) -> tuple[TargetInForce, ...]:
        """One target per domain, in order."""
        return tuple(target for target in self.targets if target.control)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint in the catalog."""

    checkpoint: str
    parent: str | None
    step: int
    manifest_size: int
    manifest_sha256: str
    state: Literal["live", "retired", "purging"] = "live"
    retired_at: float | None = None
    pinned: bool = False
    proven: bool = False
    tolerance: int = 0
    degraded: bool = False
    size: int = 0
    created_at: float = 0.0
    unknown: dict[str, Any] = {}

    @property
    def manifest_key(self) -> str:
        return keys.checkpoint_key(self.checkpoint)


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an operator's wish."""

    request: str
    outcome: str


class CatalogVersion(Document, frozen=True, kw_only=True):
    """What exists: the list of a run's checkpoints as of one change."""

    run: str
    number: int
    uuid: str
    seq: int
    sets: tuple[TargetSet, ...]
    head: str | None
    entries: tuple[Entry, ...]
    outcomes: tuple[RequestOutcome, ...] = ()
    written_at: float = 0.0
    host: str = ""
    unknown: dict[str, Any] = {}

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.number, self.uuid)


class CodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A code as it is stored."""

    data: int
    parity: int
    algorithm: str

    def code(self) -> Code:
        """Raises FormatError for a code that does not exist or that this release does not know."""
        try:
            return Code(data=self.data, parity=self.parity, algorithm=self.algorithm)
        except InvalidInputError as error:
            raise FormatError(f"a stored code is not one that this release knows: {error.message}") from error


class Fragment(msgspec.Struct, frozen=True, kw_only=True):
    """One fragment: where it belongs, its size, its checksum, its blocks' (packed, little-endian)."""

    target: str
    size: int
    crc32c: int
    blocks: bytes
    stored: bool = True


class Stripe(msgspec.Struct, frozen=True, kw_only=True):
    """One stripe. ``shard`` and ``number`` name the data when it lies under another shard's id."""

    length: int
    fragments: tuple[Fragment, ...]
    shard: str | None = None
    number: int | None = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes ``[start, stop)`` of a shard: a box of a tensor, or an object (``dtype`` None)."""

    fqn: str
    start: int
    stop: int
    dtype: str | None = None
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


class ShardManifest(Document, frozen=True, kw_only=True):
    """What one rank wrote under one name, and where."""

    run: str
    id: str
    name: str
    kind: Literal["safetensors", "opaque"]
    rank: int
    length: int
    code: CodeRecord
    stripe_size: int
    checksum: str = CRC32C
    stripes: tuple[Stripe, ...] = ()
    index: tuple[Chunk, ...] = ()


class ShardRef(msgspec.Struct, frozen=True, kw_only=True):
    """A shard manifest as a checkpoint's manifest names it."""

    id: str
    name: str
    rank: int
    length: int
    size: int
    sha256: str


class PartRef(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the metadata: in the manifest itself, or an object beside it."""

    inline: Any = None
    size: int | None = None
    sha256: str | None = None


class ManifestTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target as it was when the checkpoint was written."""

    name: str
    domain: str
    instance: str


class CheckpointManifest(Document, frozen=True, kw_only=True):
    """What a checkpoint consists of."""

    run: str
    number: int
    uuid: str
    seq: int
    step: int
    parent: str | None
    code: CodeRecord
    stripe_size: int
    targets: tuple[ManifestTarget, ...]
    length: int
    tolerance: int
    degraded: bool
    shards: tuple[ShardRef, ...]
    data_refs: tuple[str, ...] = ()
    front: str = ""
    metadata: tuple[PartRef, ...] = ()
    user: dict[str, Any] = {}
    versions: dict[str, str] = {}
    host: str = ""
    created_at: float = 0.0

    @property
    def id(self) -> str:
        return keys.checkpoint_id(Epoch(self.number, self.uuid), self.seq)


def encode(document: Document) -> bytes:
    """Canonical bytes: sorted keys, no white space, unknown fields back in their places."""
    plain = msgspec.to_builtins(document)
    if isinstance(document, CatalogVersion):
        plain = _drop_catalog(plain)
    return msgspec.json.encode(plain, order="sorted")


def check_size(body: bytes, what: str) -> bytes:
    """Returns what is to be written, if a reader would take it.

    Raises:
        InvalidInputError: Too large.
    """
    if len(body) > MAX_CONTROL_BYTES:
        raise InvalidInputError(
            f"{what} has {len(body)} bytes, {MAX_CONTROL_BYTES} are possible",
            hint="keep less user data with it, or save fewer and larger tensors",
        )
    return body


def decode(body: bytes, kind: type[T], *, key: str, target: str | None = None) -> T:
    """Reads and checks one control object.

    Raises:
        FormatError: Truncated, malformed or contradictory.
        UnsupportedVersionError: A newer format, or a required feature that is not known here.
    """
    try:
        preamble = msgspec.json.decode(body, type=Document)
        _check_version(preamble, key=key, target=target)
        if kind is CatalogVersion:
            document: Any = msgspec.convert(_lift_catalog(msgspec.json.decode(body)), kind)
        else:
            document = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"the stored {kind.__name__} cannot be read: {error}", key=key, target=target) from error
    if isinstance(document, ShardManifest):
        _check_shard(document, key)
    elif isinstance(document, CheckpointManifest):
        _check_checkpoint(document, key)
    elif isinstance(document, CatalogVersion):
        _check_catalog(document, key)
    return document  # type: ignore[no-any-return]


def sha256(body: bytes) -> str:
    """The digest by which one control object names another."""
    return hashlib.sha256(body).hexdigest()


def _check_version(preamble: Document, *, key: str, target: str | None) -> None:
    missing = sorted(set(preamble.requires) - FEATURES)
    if preamble.format != FORMAT or missing:
        needs = f"format {preamble.format}" + (f" with {', '.join(missing)}" if missing else "")
        raise UnsupportedVersionError(
            f"a stored object needs {needs}; this release reads format {FORMAT}",
            hint="use a newer release of objckpt",
            key=key,
            target=target,
        )


def _check_shard(shard: ShardManifest, key: str) -> None:
    code = shard.code.code()
    identity = keys.parse_shard_id(shard.id)
    _require(identity.rank == shard.rank, "a shard's id and rank differ", key)
    _require(shard.checksum == CRC32C, f"checksum {shard.checksum!r} is not known", key)
    _require(0 < shard.stripe_size <= MAX_STRIPE_SIZE, f"a stripe of {shard.stripe_size} bytes is not possible", key)
    # Counted before anything is listed: a hostile length must not become a list.
    stripes = -(-shard.length // shard.stripe_size)
    _require(shard.length >= 0 and stripes == len(shard.stripes), "a shard's length and stripes differ", key)
    _require(
        [s.length for s in shard.stripes] == list(stripe_lengths(shard.length, shard.stripe_size)),
        "stripe lengths are wrong",
        key,
    )
    for stripe in shard.stripes:
        used = stripe_code(code, stripe.length)
        size = fragment_size(used, stripe.length)
        _require(len(stripe.fragments) == used.fragments, "a stripe has a wrong number of fragments", key)
        _require((stripe.shard is None) == (stripe.number is None), "a stripe names a shard or a number alone", key)
        if stripe.shard is not None:
            keys.parse_shard_id(stripe.shard)
        for fragment in stripe.fragments:
            _require(fragment.size == size, "a fragment's size is wrong", key)
            _require(len(fragment.blocks) == 4 * block_count(size), "a fragment's checksums are incomplete", key)
            _require(0 <= fragment.crc32c < 2**32, "a checksum is out of range", key)
    for chunk in shard.index:
        _require(0 <= chunk.start <= chunk.stop <= shard.length, f"{chunk.fqn!r} lies outside of its shard", key)
        _require(len(chunk.offsets) == len(chunk.sizes), f"{chunk.fqn!r} has offsets and sizes that differ", key)
        _require(
            min((*chunk.offsets, *chunk.sizes), default=0) >= 0, f"{chunk.fqn!r} has a negative offset or size", key
        )


def _check_checkpoint(manifest: CheckpointManifest, key: str) -> None:
    manifest.code.code()
    _require(keys.checkpoint_key(manifest.id) == key, "a manifest lies under another checkpoint's key", key)
    _require(len({s.id for s in manifest.shards}) == len(manifest.shards), "a shard is listed twice", key)
    _require(len({s.name for s in manifest.shards}) == len(manifest.shards), "a shard's name is used twice", key)
    _require(manifest.length == sum(s.length for s in manifest.shards), "the planned total is wrong", key)
    for shard in manifest.shards:
        keys.parse_shard_id(shard.id)
        _require(0 <= shard.size <= MAX_CONTROL_BYTES and shard.length >= 0, "a shard's size is out of range", key)
        # Each block has a checksum of several bytes in the shard's manifest: a few of them cannot stand for a shard.
        _require(shard.length <= shard.size * BLOCK_SIZE, f"{shard.name!r} is longer than its manifest can say", key)
        _require(
            "/" not in shard.name and shard.name not in ("", ".", ".."), f"{shard.name!r} is not a shard's name", key
        )
    for part in manifest.metadata:
        if part.inline is None:
            _require(
                part.sha256 is not None and 0 <= (part.size or 0) <= MAX_CONTROL_BYTES,
                "a metadata part is incomplete",
                key,
            )


def _check_catalog(version: CatalogVersion, key: str) -> None:
    name = keys.parse_version_key(key)
    _require((name.epoch, name.seq) == (version.epoch, version.seq), "a version lies under another version's key", key)
    _require(1 <= len(version.sets) <= 2, "a version names no set of targets, or more than two", key)
    for members in version.sets:
        names = [target.name for target in members.targets]
        domains = [target.domain for target in members.control]
        _require(len(set(names)) == len(names) > 0, "a set of targets is empty or names one twice", key)
        _require(len(set(domains)) == len(domains), "a domain has two control targets", key)
        _require({t.domain for t in members.targets} == set(domains), "a domain has no control target", key)
    known = {entry.checkpoint for entry in version.entries}
    _require(len(known) == len(version.entries), "a checkpoint is listed twice", key)
    _require(version.head is None or version.head in known, "the head is not in the list", key)
    for entry in version.entries:
        keys.parse_checkpoint_id(entry.checkpoint)
        _require(0 <= entry.manifest_size <= MAX_CONTROL_BYTES, "a manifest's size is out of range", key)


def _require(holds: bool, complaint: str, key: str) -> None:
    if not holds:
        raise FormatError(complaint, key=key)


def _lift_catalog(raw: Any) -> Any:
    """Puts unknown fields of a catalog and its parts where the structs keep them."""
    raw = _lift(raw, CatalogVersion)
    if isinstance(raw, dict):
        raw["entries"] = [_lift(entry, Entry) for entry in _items(raw, "entries")]
        raw["sets"] = [_lift(members, TargetSet) for members in _items(raw, "sets")]
        for members in raw["sets"]:
            if isinstance(members, dict):
                members["targets"] = [_lift(target, TargetInForce) for target in _items(members, "targets")]
    return raw


def _items(raw: dict[str, Any], field: str) -> list[Any]:
    found = raw.get(field)
    if not isinstance(found, list):
        raise msgspec.ValidationError(f"{field} is missing or not a list")
    return found


def _lift(raw: Any, kind: type[msgspec.Struct]) -> Any:
    if not isinstance(raw, dict):
        return raw
    known = set(kind.__struct_fields__) - {"unknown"}
    lifted = {name: value for name, value in raw.items() if name in known}
    lifted["unknown"] = {name: value for name, value in raw.items() if name not in known}
    return lifted


def _drop_catalog(plain: dict[str, Any]) -> dict[str, Any]:
    """The mirror of ``_lift_catalog``: unknown fields of a catalog and its parts back in their places."""
    dropped = _drop(plain)
    dropped["entries"] = [_drop(entry) for entry in dropped["entries"]]
    dropped["sets"] = [_drop(members) for members in dropped["sets"]]
    for members in dropped["sets"]:
        members["targets"] = [_drop(target) for target in members["targets"]]
    return dropped


def _drop(plain: dict[str, Any]) -> dict[str, Any]:
    return {**plain["unknown"], **{name: value for name, value in plain.items() if name != "unknown"}}
