"""Directories that survive a power cut, and what the operating system's errors mean.

The local store's tools: they know paths, and neither keys nor objects.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Any

from objckpt.errors import InvalidInputError, PermissionDeniedError, StoreError, StoreFullError, UnavailableError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_BAD_KEY = {errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}


def make_root(root: str) -> None:
    """Makes ``root`` and every directory above it that is missing, durably."""
    missing = _missing(root, below="/")
    for folder in missing:
        with suppress(FileExistsError):
            os.mkdir(folder)
        flush_folder(os.path.dirname(folder))


def make_folders(folder: str, *, below: str) -> None:
    """Makes the directories between ``below``, which is never made itself, and ``folder``."""
    for made in _missing(folder, below=below):
        with suppress(FileExistsError):
            os.mkdir(made)


def flush_folders(folder: str, *, up_to: str) -> None:
    """Makes entries durable in every directory from ``folder`` up to and including ``up_to``.

    All of them, every time: a directory that another writer has just made may not be durable yet, and
    flushing one without changes costs microseconds.
    """
    while folder != up_to:
        flush_folder(folder)
        folder = os.path.dirname(folder)
    flush_folder(up_to)


def prune_folders(folder: str, *, below: str) -> None:
    """Removes ``folder`` and the directories above it as far as they are empty."""
    while folder != below:
        try:
            os.rmdir(folder)
        except OSError:
            return  # not empty, or somebody else was quicker
        folder = os.path.dirname(folder)


def flush_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def translated(error: OSError, **facts: Any) -> StoreError | InvalidInputError:
    """What an error of the operating system means to the user of a store."""
    number = error.errno or 0
    facts = {"path": error.filename, "errno": errno.errorcode.get(number)} | facts
    if number in _FULL:
        return StoreFullError("the file system is full", **facts, hint="free space, or raise the quota")
    if number in _DENIED:
        hint = "check the owner and the mode of the target's directory"
        return PermissionDeniedError("the file system denies access", **facts, hint=hint)
    if number in _BAD_KEY:
        hint = "segments are at most 255 bytes, and no key may continue another with /"
        return InvalidInputError("the key cannot be a file here", **facts, hint=hint)
    if number == errno.ELOOP:
        hint = "only the root itself may be a link"
        return PermissionDeniedError("a symbolic link lies in the way", **facts, hint=hint)
    return UnavailableError(f"the file system failed: {os.strerror(number)}", **facts)


def _missing(folder: str, *, below: str) -> list[str]:
    missing = []
    while folder != below and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing[::-1]
