"""One checkpoint being read: its manifest, its shards, any ranges of their bytes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from objckpt.commit.quorum import ControlPlane
from objckpt.errors import FormatError, NotFoundError
from objckpt.format import keys
from objckpt.format.manifest import CheckpointManifest, Entry, ShardManifest, ShardRef, decode
from objckpt.transfer.download import Downloader, FragmentState, Piece


class Checkpoint:
    """A committed checkpoint. Picklable; the same in every process, whatever is committed later.

    Args:
        plane: The run's control plane.
        entry: The catalog's entry.
        lost: Domains that are lost: not asked.
    """

    def __init__(
        self, plane: ControlPlane, entry: Entry, manifest: CheckpointManifest, *, lost: frozenset[str]
    ) -> None:
        self.plane = plane
        self.entry = entry
        self.manifest = manifest
        self._lost = lost
        self._forget()

    @classmethod
    def open(cls, plane: ControlPlane, entry: Entry, *, lost: frozenset[str] = frozenset()) -> Checkpoint:
        """Reads and checks the manifest that a catalog entry names."""
        key = entry.manifest_key
        body = plane.read_object(key, size=entry.manifest_size, digest=entry.manifest_sha256, avoid=lost)
        manifest = decode(body, CheckpointManifest, key=key)
        if (manifest.run, manifest.step) != (plane.run, entry.step):
            raise FormatError(
                f"the manifest is of run {manifest.run!r}, step {manifest.step}", key=key, step=entry.step
            )
        return cls(plane, entry, manifest, lost=lost)

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def shards(self) -> tuple[ShardRef, ...]:
        return self.manifest.shards

    def metadata(self) -> list[bytes]:
        """The JSON documents that the front end stored with the checkpoint."""
        parts: list[bytes] = []
        for number, part in enumerate(self.manifest.metadata):
            if part.inline is not None:
                parts.append(msgspec.json.encode(part.inline))
            else:
                parts.append(
                    self.plane.read_object(
                        keys.part_key(self.id, number), size=part.size or 0, digest=part.sha256 or "", avoid=self._lost
                    )
                )
        return parts

    def shard(self, name: str) -> ShardManifest:
        """A shard's manifest by the shard's name or id; read once.

        Raises:
            NotFoundError: The checkpoint has no such shard.
        """
        ref = self._refs.get(name)
        if ref is None:
            raise NotFoundError(f"the checkpoint of step {self.step} has no shard {name!r}", checkpoint=self.id)
        with self._lock:
            found = self._manifests.get(ref.id)
        if found is None:
            key = keys.shard_key(ref.id)
            body = self.plane.read_object(key, size=ref.size, digest=ref.sha256, avoid=self._lost)
            found = decode(body, ShardManifest, key=key)
            if (found.run, found.id, found.name, found.length) != (self.plane.run, ref.id, ref.name, ref.length):
                raise FormatError(f"the manifest of shard {ref.name} is another shard's", key=key, step=self.step)
            with self._lock:
                self._manifests[ref.id] = found
        return found

    def read(self, name: str, pieces: Sequence[Piece]) -> None:
        """Fills memory with verified bytes of a shard; see ``Downloader.read``."""
        self._downloader.read(self.shard(name), pieces)

    def read_bytes(self, name: str, start: int, stop: int) -> bytes:
        """Bytes ``[start, stop)`` of a shard."""
        body = bytearray(stop - start)
        self.read(name, [Piece(start=start, stop=stop, into=memoryview(body))])
        return bytes(body)

    def check(self, name: str, *, deep: bool, progress: Any = None) -> list[FragmentState]:
        """Looks at every fragment of a shard; see ``Downloader.check``."""
        return self._downloader.check(self.shard(name), deep=deep, progress=progress)

    def __getstate__(self) -> dict[str, Any]:
        return {"plane": self.plane, "entry": self.entry, "manifest": self.manifest, "_lost": self._lost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        config = self.plane.targets.config
        unavailable = frozenset(target.name for target in config.targets if target.domain in self._lost)
        self._downloader = Downloader(self.plane.targets, unavailable=unavailable)
        self._refs = {ref.id: ref for ref in self.shards} | {ref.name: ref for ref in self.shards}
        self._manifests: dict[str, ShardManifest] = {}
        self._lock = threading.Lock()
