"""Events and observers: what happened, as data; log lines, metrics and progress bars all come from it.

Events never hold credentials, signed URLs or bodies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened; the subclasses say what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDone(Event):
    """One attempt of one store operation ended.

    Attributes:
        operation: put, get, head, delete, or list (a whole listing, however many pages).
        size: Bytes moved.
        error: Name of the error's class, or None.
    """

    target: str
    operation: str
    key: str
    size: int
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPlanned(Event):
    """A failed attempt will be repeated after a pause."""

    target: str
    operation: str
    key: str
    attempt: int
    pause_s: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentLost(Event):
    """A fragment could not be written or read.

    Attributes:
        expected: Its target was lost or given up before; that was news then.
    """

    target: str
    shard: str
    stripe: int
    index: int
    reason: str
    while_doing: str
    expected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGivenUp(Event):
    """A target failed for good; this save or load goes on without it."""

    target: str
    reason: str
    while_doing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainLost(Event):
    """A domain is unreachable, or its marker is missing or foreign: neither read nor written."""

    domain: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesMoved(Event):
    """Progress of one shard: logical bytes that are now safe (save) or in place (load)."""

    shard: str
    size: int
    while_doing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """A checkpoint is visible and acknowledged."""

    run: str
    step: int
    checkpoint: str
    size: int
    tolerance: int
    degraded: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Began(Event):
    """This job owns the run now."""

    run: str
    epoch: str
    head_step: int | None


class Observer(Protocol):
    """Takes events. Called from many threads; must be quick and must not raise."""

    def on_event(self, event: Event) -> None: ...


class LogObserver:
    """Writes events to the standard logger: losses as warnings, commits as info, the rest as debug."""

    _LEVELS: ClassVar[dict[type[Event], int]] = {
        FragmentLost: logging.WARNING,
        TargetGivenUp: logging.WARNING,
        DomainLost: logging.WARNING,
        RetryPlanned: logging.INFO,
        Committed: logging.INFO,
        Began: logging.INFO,
    }

    def on_event(self, event: Event) -> None:
        level = self._LEVELS.get(type(event), logging.DEBUG)
        if isinstance(event, FragmentLost) and event.expected:
            level = logging.DEBUG
        if _log.isEnabledFor(level):
            _log.log(level, "%s", event)


class NullObserver:
    """Ignores everything."""

    def on_event(self, event: Event) -> None:
        return None


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)

    def on_event(self, event: Event) -> None:
        for observer in self._observers:
            observer.on_event(event)
