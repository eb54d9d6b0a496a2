"""Every error objckpt raises, grouped by what the caller does about it.

Each error carries the facts a person needs (key, target, step, attempt) and a hint that says
what to do next; both are part of its text. All of them survive pickling, because DCP sends
errors from rank to rank.
"""

from __future__ import annotations

from typing import Any


class ObjckptError(Exception):
    """The root of the tree.

    Args:
        message: What happened, in one sentence.
        hint: What to do next, in one sentence.
        **facts: Names and values that place the error (``key=``, ``target=``, ``step=`` ...);
            ``None`` values are dropped.
    """

    def __init__(self, message: str, *, hint: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = {name: value for name, value in facts.items() if value is not None}

    def __str__(self) -> str:
        text = self.message
        if self.facts:
            text += " [" + ", ".join(f"{name}={value}" for name, value in self.facts.items()) + "]"
        if self.hint:
            text += f" ({self.hint})"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.facts, _portable(self.__cause__))


def _rebuild(
    kind: type[ObjckptError],
    message: str,
    hint: str | None,
    facts: dict[str, Any],
    cause: BaseException | None,
) -> ObjckptError:
    error = kind(message, hint=hint, **facts)
    error.__cause__ = cause
    return error


class ForeignError(Exception):
    """Stands for another library's exception in a process that it was sent to: its name and text, nothing it held."""


def _portable(cause: BaseException | None) -> BaseException | None:
    # The SDKs' exceptions hold the request: its body, which cannot be pickled, and its credentials, which must not be.
    if cause is None or isinstance(cause, (ObjckptError, ForeignError)):
        return cause
    return ForeignError(f"{type(cause).__name__}: {cause}")


class InvalidInputError(ObjckptError, ValueError):
    """The call or the configuration is wrong: fix it."""


class NotFoundError(ObjckptError, LookupError):
    """The named thing does not exist, and enough domains answered to be sure."""


class FencedError(ObjckptError):
    """A newer job owns the run: stop, and do not restart this one."""


class ConflictError(ObjckptError):
    """Another writer of the same epoch got in between: a guard, not the rule."""


class QuorumError(ObjckptError):
    """Too few failure domains answered: wait, or ask for less, but never guess."""


class IndeterminateError(ObjckptError):
    """A commit may or may not have taken effect; if it did, the checkpoint is complete and valid."""


class StoreError(ObjckptError):
    """An object store refused or failed."""


class UnavailableError(StoreError):
    """The store cannot be reached, answered 5xx, or broke off: worth another try."""


class ThrottledError(UnavailableError):
    """The store asks for a slower sender. ``facts['retry_after_s']`` holds its wish, if it named one."""


class DeadlineError(StoreError):
    """Retries went on until the deadline; ``__cause__`` is the last failure."""


class ObjectNotFoundError(StoreError, LookupError):
    """The store says that this key does not exist."""


class ObjectExistsError(StoreError):
    """Create-if-absent found an object under this key."""


class PermissionDeniedError(StoreError):
    """Credentials are missing, expired beyond refresh, or not allowed to do this."""


class BucketNotFoundError(StoreError):
    """The bucket or the root directory of a target does not exist."""


class StoreFullError(StoreError):
    """Disk or quota is exhausted."""


class CorruptUploadError(UnavailableError):
    """The store received other bytes than were sent and refused them: worth another try."""


class CapabilityError(StoreError):
    """The store cannot do what was asked, or rejects the request as such."""


class DataError(ObjckptError):
    """What is stored is not what was written."""


class ChecksumError(DataError):
    """Bytes do not match their recorded checksum."""


class NotEnoughFragmentsError(DataError):
    """Fewer than k good fragments of a stripe are left; the text counts states per stripe."""


class FormatError(DataError):
    """A stored object is truncated, malformed or contradicts itself."""


class UnsupportedVersionError(DataError):
    """A stored object needs a feature or format version that this release does not know."""


class UnsafeObjectError(DataError):
    """A stored Python object needs full unpickling, which can run code."""


class MismatchError(InvalidInputError):
    """The state to load into does not fit the checkpoint; the text lists every difference."""


class InternalError(ObjckptError):
    """An invariant of objckpt is broken: please report it."""
