"""Objects as files below one directory: a disk, an NVMe drive, a network mount.

A key is the file's path below the root, so ``cat`` and ``cp`` work on it. A put writes a temporary file in a
private folder of the same root, flushes it, links it into place and flushes every directory on the
way: a reader sees a whole object or none, and what a put acknowledged survives a power cut.
Create-if-absent is ``link(2)``, which the file system decides.

Kept: the root is never made by a put. A root that is gone is ``BucketNotFoundError``, because a deleted failure
domain must be seen as lost and not as empty; ``prepare`` makes roots, for ``init``. The root may be a symbolic
link; below it none is followed. Temporary files have a name that is no key, and never show in a listing.

Limits: a file cannot also be a directory, so ``a`` and ``a/b`` exclude each other, and a segment of a key is
at most 255 bytes; both are refused with ``InvalidInputError``. On NFS, use it for fragments; for control
objects only when mounted ``noac`` (and exported ``sync``), since cached directories hide other clients' new files.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from objckpt.errors import (
    BucketNotFoundError,
    CapabilityError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from objckpt.seams import Seams
from objckpt.store.folders import flush_folders, make_folders, make_root, prune_folders, translated
from objckpt.store.perprocess import PerProcess
from objckpt.store.port import Body, ByteRange, Capabilities, ObjectInfo, PutMode, check_inside, check_key

_INCOMING = "~incoming"  # "~" is in no key
_ABANDONED_AFTER_S = 24 * 3600.0
_PLACING_ATTEMPTS = 100
_VIEWS_PER_READ = 512  # preadv takes at most IOV_MAX (1024) of them
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalStore:
    """An ``ObjectStore`` on a directory.

    Args:
        name: The target's name.
        root: Absolute path of an existing directory.
        seams: Clock and identities, for temporary files.
    """

    def __init__(self, name: str, *, root: str, seams: Seams) -> None:
        self._name = name
        self._root = os.path.abspath(root)
        self._seams = seams
        self._swept: PerProcess[bool] = PerProcess()

    @staticmethod
    def prepare(root: str) -> None:
        """Makes ``root`` and the directories above it, durably. Only ``init`` may call this."""
        try:
            make_root(os.path.abspath(root))
        except OSError as error:
            raise translated(error, path=root) from error

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(create_if_absent=True, verifies_crc32c=False)

    def put(self, key: str, body: Body, *, mode: PutMode = PutMode.WRITE, crc32c: int | None = None) -> None:
        path = self._path(key)
        with self._errors(key):
            self._swept.get(self._sweep)
            for _ in range(_PLACING_ATTEMPTS):
                # A delete beside us may prune the directory that we have just made, and a sweep by another
                # process may take our temporary file if we were suspended for a day: then begin again.
                with suppress(FileNotFoundError):
                    self._write(path, body, key, mode)
                    return
                self._require_root()
        raise UnavailableError("the object's directory vanishes again and again", key=key, target=self._name)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        with self._opened(key) as (descriptor, size):
            wanted = ByteRange(0, size) if byte_range is None else byte_range
            check_inside(wanted, size, key=key, target=self._name)
            buffer = bytearray(len(wanted))
            self._fill(key, descriptor, wanted.start, [memoryview(buffer)])
            return bytes(buffer)

    def get_into(self, key: str, start: int, views: Sequence[memoryview]) -> None:
        wanted = ByteRange(start, start + sum(len(view) for view in views))
        with self._opened(key) as (descriptor, size):
            check_inside(wanted, size, key=key, target=self._name)
            self._fill(key, descriptor, start, [view for view in views if len(view)])

    def head(self, key: str) -> ObjectInfo:
        with self._opened(key) as (_, size):
            return ObjectInfo(key=key, size=size)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        folder = prefix.rpartition("/")[0]
        with self._errors(prefix):
            self._require_root()
        if folder and not all(part not in (".", "..") and _SEGMENT.fullmatch(part) for part in folder.split("/")):
            return
        if folder and not self._is_inside(folder):
            return
        yield from self._walk(folder + "/" if folder else "", prefix, after or "")

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._errors(key):
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                self._require_root()
                return
            prune_folders(os.path.dirname(path), below=self._root)

    def server_time_s(self) -> float | None:
        return None

    def close(self) -> None:
        return None

    # Writing

    def _write(self, path: str, body: Body, key: str, mode: PutMode) -> None:
        temporary = os.path.join(self._root, _INCOMING, f"{os.getpid()}-{self._seams.ids.new_id()}")
        try:
            descriptor = self._open_temporary(temporary)
            try:
                rest = memoryview(body)
                while len(rest):
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._place(temporary, path, key, mode)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def _open_temporary(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.mkdir(os.path.dirname(path))
            return os.open(path, flags, 0o666)

    def _place(self, temporary: str, path: str, key: str, mode: PutMode) -> None:
        folder = os.path.dirname(path)
        make_folders(folder, below=self._root)
        if mode is PutMode.WRITE:
            os.rename(temporary, path)
        else:
            try:
                os.link(temporary, path)
            except FileExistsError:
                # A second name: it is ours. NFS repeats a request whose answer was lost.
                if os.stat(temporary).st_nlink == 1:
                    raise ObjectExistsError("create-if-absent found an object", key=key, target=self._name) from None
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise CapabilityError(
                        "the file system refuses hard links, which create-if-absent needs",
                        key=key,
                        target=self._name,
                        hint="use a file system with hard links for control objects",
                    ) from error
                raise
        flush_folders(folder, up_to=self._root)

    def _sweep(self) -> bool:
        """Removes temporary files of writers that died long ago; once per process."""
        oldest_s = self._seams.clock.now_s() - _ABANDONED_AFTER_S
        with suppress(FileNotFoundError), os.scandir(os.path.join(self._root, _INCOMING)) as entries:
            for entry in entries:
                with suppress(FileNotFoundError, PermissionError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest_s:
                        os.unlink(entry.path)
        return True

    # Reading

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        path = self._path(key)
        with self._errors(key):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                self._require_root()
                raise ObjectNotFoundError("no such object", key=key, target=self._name) from None
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise ObjectNotFoundError("the key names no file", key=key, target=self._name)
                yield descriptor, status.st_size
            finally:
                os.close(descriptor)

    def _fill(self, key: str, descriptor: int, offset: int, views: Sequence[memoryview]) -> None:
        pending = list(views)
        while pending:
            count = os.preadv(descriptor, pending[:_VIEWS_PER_READ], offset)
            if count == 0 and len(pending[0]):
                raise UnavailableError("the file became shorter while it was read", key=key, target=self._name)
            offset += count
            while pending and count >= len(pending[0]):
                count -= len(pending.pop(0))
            if pending and count:
                pending[0] = pending[0][count:]

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Lists in the order of the keys, one directory in memory per level."""
        for name in self._children(folder):
            key = folder + name
            if name.endswith("/"):
                # All keys below start with `key`: skip them if they are all too small, or do not match.
                may_match = key.startswith(prefix) or prefix.startswith(key)
                if may_match and (key > after or after.startswith(key)):
                    yield from self._walk(key, prefix, after)
            elif key.startswith(prefix) and key > after:
                size = self._size(key)
                if size is not None:
                    yield ObjectInfo(key=key, size=size)

    def _size(self, key: str) -> int | None:
        with self._errors(key):
            try:
                return os.lstat(os.path.join(self._root, key)).st_size
            except FileNotFoundError:
                return None  # deleted while the listing is drawn

    def _children(self, folder: str) -> Sequence[str]:
        names = []
        with self._errors(folder):
            try:
                with os.scandir(os.path.join(self._root, folder)) as entries:
                    for entry in entries:
                        if not _SEGMENT.fullmatch(entry.name):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            names.append(entry.name + "/")
                        elif entry.is_file(follow_symlinks=False):
                            names.append(entry.name)
            except (FileNotFoundError, NotADirectoryError):
                self._require_root()  # deleted while the listing is drawn
        names.sort()
        return names

    # Paths and errors

    def _path(self, key: str) -> str:
        folder = check_key(key).rpartition("/")[0]
        if not self._is_inside(folder):
            raise PermissionDeniedError(
                "a symbolic link lies on the way to the object",
                key=key,
                target=self._name,
                hint="only the root itself may be a link",
            )
        return os.path.join(self._root, key)

    def _is_inside(self, folder: str) -> bool:
        real_root = os.path.realpath(self._root)
        return os.path.realpath(os.path.join(self._root, folder)) == os.path.normpath(os.path.join(real_root, folder))

    def _require_root(self) -> None:
        if not os.path.isdir(self._root):
            raise BucketNotFoundError(
                "the target's directory does not exist",
                path=self._root,
                target=self._name,
                hint="mount the disk, or replace the target; a new run needs `objckpt init`",
            )

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise translated(error, key=key, target=self._name) from error
