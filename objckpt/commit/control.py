"""What one control target answers: its markers, its claims, its newest catalog version, undamaged.

Keys that are not of the grammar are passed over with a warning: whoever may write to a bucket may
leave anything there. A newest version that is damaged means that the target has not answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from objckpt.errors import BucketNotFoundError, DataError, FormatError, ObjectNotFoundError
from objckpt.format import keys
from objckpt.format.keys import ClaimName, VersionName, digest16
from objckpt.format.manifest import MAX_CONTROL_BYTES, CatalogVersion, Marker, decode
from objckpt.store.port import ObjectInfo, ObjectStore

_log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_MARKER_BYTES = 64 * 1024

LISTINGS = 5
"""How often a catalog is listed again because its newest version went away before it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAnswer:
    """One target's answer; ``problem`` says why it does not count, where it does not."""

    target: str
    markers: dict[str, Marker] = field(default_factory=dict)
    claims: frozenset[ClaimName] = frozenset()
    name: VersionName | None = None
    version: CatalogVersion | None = None
    problem: str | None = None
    place_is_missing: bool = False


def ask(store: ObjectStore, run: str, known: dict[tuple[str, str], Marker]) -> ControlAnswer:
    """Asks one target for everything that decides.

    Args:
        known: Markers by (target, instance) that were read before; they never change.

    Raises:
        StoreError: It cannot be reached.
    """
    try:
        markers = read_markers(store, known)
        claims = frozenset(name for name, _ in _names(store, keys.CLAIMS, keys.parse_claim_key))
        name, version = _newest_version(store, run)
    except BucketNotFoundError as error:
        return ControlAnswer(target=store.name, problem=error.message, place_is_missing=True)
    except DataError as error:
        return ControlAnswer(target=store.name, problem=f"{type(error).__name__}: {error}")
    return ControlAnswer(target=store.name, markers=markers, claims=claims, name=name, version=version)


def read_markers(store: ObjectStore, known: dict[tuple[str, str], Marker]) -> dict[str, Marker]:
    """All readable markers of a place by their instance id; a damaged one counts as missing."""
    markers: dict[str, Marker] = {}
    for instance, info in _names(store, keys.MARKERS, keys.parse_marker_key):
        key = info.key
        marker = known.get((store.name, instance))
        if marker is None and info.size <= MAX_MARKER_BYTES:
            try:
                marker = decode(store.get(key), Marker, key=key, target=store.name)
            except (FormatError, ObjectNotFoundError) as error:
                _log.warning("a marker of target %s cannot be read: %s", store.name, error)
                continue
            known[store.name, instance] = marker
        if marker is not None and marker.instance == instance:
            markers[instance] = marker
    return markers


def _newest_version(store: ObjectStore, run: str) -> tuple[VersionName | None, CatalogVersion | None]:
    for _ in range(LISTINGS):
        sizes = {name: info.size for name, info in _names(store, keys.CATALOG, keys.parse_version_key)}
        if not sizes:
            return None, None
        newest = max(sizes)
        if sizes[newest] > MAX_CONTROL_BYTES:
            raise FormatError("the newest catalog version is too large", key=newest.key, target=store.name)
        try:
            body = store.get(newest.key)
        except ObjectNotFoundError:
            continue
        if digest16(body) != newest.digest:
            raise FormatError("the newest catalog version does not match its name", key=newest.key, target=store.name)
        version = decode(body, CatalogVersion, key=newest.key, target=store.name)
        if version.run != run:
            raise FormatError(f"a catalog version of run {version.run!r}", key=newest.key, target=store.name)
        return newest, version
    raise FormatError("the newest catalog version is listed but cannot be read", target=store.name)


def _names(store: ObjectStore, prefix: str, parse: Callable[[str], T]) -> Iterator[tuple[T, ObjectInfo]]:
    for info in store.list(prefix):
        try:
            name = parse(info.key)
        except FormatError:
            _log.warning("target %s holds a foreign object: %s", store.name, info.key)
            continue
        yield name, info
