"""Attempts: how often, how long and how fast one store operation is tried.

What is tried again is decided by the error's class: ``UnavailableError`` and what is below it, nothing else.
Pauses are drawn with full jitter; a target that throttles gets fewer requests from this process
(see ``pace``), and no attempt begins after the deadline. When time is up, ``DeadlineError`` names the last
failure as its cause.

Create-if-absent whose answer was lost: when an earlier attempt failed and the next one finds an object
under the key, the object is read back and compared. The same bytes are our own success; others are
``ObjectExistsError``; as long as it cannot be read, the operation has failed and may have taken effect.

Reads are repeated as a whole, never spliced from two attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import tenacity

from objckpt.errors import (
    CorruptUploadError,
    DeadlineError,
    ObjckptError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    ThrottledError,
    UnavailableError,
)
from objckpt.seams import Clock, Random
from objckpt.store.pace import Pacer
from objckpt.store.port import Body, ByteRange, Capabilities, ObjectInfo, ObjectStore, PutMode
from objckpt.telemetry import Observer, RetryPlanned

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to go on.

    Attributes:
        operation_deadline_s: How long one operation (of a listing: one step) is tried.
        first_pause_s: Upper bound of the first pause; it doubles with every attempt.
        longest_pause_s: Upper bound of any pause, but for what the store itself asks.
        corrupt_attempts: How often bytes are sent that the store says arrive damaged. Then it is not the line.
    """

    operation_deadline_s: float = 120.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0
    corrupt_attempts: int = 4


class RetryingStore:
    """An ``ObjectStore`` that tries again.

    Args:
        inner: The store to use.
        policy: How long to go on.
        clock: For pauses and deadlines.
        random: For jitter.
        observer: Told of every pause.
        deadline_s: On the clock's monotonic scale: when to stop in any case; see ``before``.
        pacer: Shared with other views of the same target; None makes one.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        policy: RetryPolicy,
        clock: Clock,
        random: Random,
        observer: Observer,
        deadline_s: float | None = None,
        pacer: Pacer | None = None,
    ) -> None:
        self._inner = inner
        self._policy = policy
        self._clock = clock
        self._random = random
        self._observer = observer
        self._deadline_s = deadline_s
        self._pacer = Pacer(clock) if pacer is None else pacer

    def before(self, deadline_s: float | None) -> RetryingStore:
        """A view of this store that begins no attempt after ``deadline_s`` on the monotonic clock.

        It shares everything else, the pace too. An earlier deadline of this store stays in force.
        """
        both = [deadline for deadline in (deadline_s, self._deadline_s) if deadline is not None]
        return RetryingStore(
            self._inner,
            policy=self._policy,
            clock=self._clock,
            random=self._random,
            observer=self._observer,
            deadline_s=min(both) if both else None,
            pacer=self._pacer,
        )

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def pacer(self) -> Pacer:
        """The pace towards this target, for metrics."""
        return self._pacer

    def put(self, key: str, body: Body, *, mode: PutMode = PutMode.WRITE, crc32c: int | None = None) -> None:
        operation = _Operation(self, "put", key)

        def attempt() -> None:
            try:
                self._inner.put(key, body, mode=mode, crc32c=crc32c)
            except ObjectExistsError as error:
                if operation.failures == 0 or not self._is_ours(key, body, error):
                    raise
            except StoreError as error:
                if operation.failures and not isinstance(error, UnavailableError):
                    error.facts["earlier_attempt"] = "may have stored the object"
                raise

        operation.run(attempt)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        return _Operation(self, "get", key).run(lambda: self._inner.get(key, byte_range))

    def get_into(self, key: str, start: int, views: Sequence[memoryview]) -> None:
        return _Operation(self, "get", key).run(lambda: self._inner.get_into(key, start, views))

    def head(self, key: str) -> ObjectInfo:
        return _Operation(self, "head", key).run(lambda: self._inner.head(key))

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        # A listing that breaks off begins again and skips what it gave: that holds in whatever order a store lists.
        given: set[str] = set()
        found: Iterator[ObjectInfo] = iter(())

        def begin() -> ObjectInfo | None:
            nonlocal found
            found = self._inner.list(prefix, after=after)
            return step()

        def step() -> ObjectInfo | None:
            return next((info for info in found if info.key not in given), None)

        info = _Operation(self, "list", prefix).run(begin)
        while info is not None:
            given.add(info.key)
            yield info
            try:
                info = step()
            except UnavailableError as error:
                operation = _Operation(self, "list", prefix)
                operation.failed(error)
                info = operation.run(begin)

    def delete(self, key: str) -> None:
        _Operation(self, "delete", key).run(lambda: self._inner.delete(key))

    def server_time_s(self) -> float | None:
        return _Operation(self, "list", "").run(self._inner.server_time_s)

    def close(self) -> None:
        self._inner.close()

    def _is_ours(self, key: str, body: Body, refusal: ObjectExistsError) -> bool:
        """Whether the object that refused a create is the one that an earlier attempt of it stored."""
        try:
            content = memoryview(body).cast("B")
            return self._inner.head(key).size == len(content) and memoryview(self._inner.get(key)) == content
        except ObjectNotFoundError as error:
            raise UnavailableError(
                "create-if-absent was refused, but the object is not there", key=key, target=self.name
            ) from error
        except UnavailableError:
            raise
        except ObjckptError as error:
            raise StoreError(
                "an object exists under the key, and it cannot be read to see if an earlier attempt stored it",
                key=key,
                target=self.name,
                refusal=str(refusal),
                hint="allow the credentials to read what they write",
            ) from error


class _Operation:
    """One operation through all of its attempts."""

    def __init__(self, store: RetryingStore, name: str, key: str) -> None:
        self._policy = store._policy
        self._clock = store._clock
        self._random = store._random
        self._observer = store._observer
        self._pacer = store._pacer
        self._facts = {"operation": name, "key": key, "target": store.name}
        self._began_s = self._clock.monotonic_s()
        ends_s = self._began_s + self._policy.operation_deadline_s
        self._deadline_s = ends_s if store._deadline_s is None else min(ends_s, store._deadline_s)
        self._last: UnavailableError | None = None
        self._damaged = 0
        self.failures = 0

    def run(self, attempt: Callable[[], T]) -> T:
        """Calls ``attempt`` until it succeeds, fails for good, or time is up."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_worth_another_try),
            wait=self._pause_s,
            stop=self._is_over,
            before_sleep=self._announce,
            sleep=self._clock.sleep,
            retry_error_callback=self._give_up,
        )
        result: T = retrying(self._paced, attempt)
        return result

    def failed(self, error: UnavailableError) -> None:
        """Takes note of an attempt that failed and may be repeated."""
        self.failures += 1
        self._last = error
        if isinstance(error, ThrottledError):
            self._pacer.throttled(error.facts.get("retry_after_s"))
        if isinstance(error, CorruptUploadError):
            self._damaged += 1

    def _paced(self, attempt: Callable[[], T]) -> T:
        wait_s = self._pacer.reserve(by_s=self._deadline_s)
        if self._clock.monotonic_s() + wait_s > self._deadline_s:
            raise self._deadline_error()
        if wait_s > 0:
            self._clock.sleep(wait_s)
        try:
            result = attempt()
        except UnavailableError as error:
            self.failed(error)
            raise
        self._pacer.succeeded()
        return result

    def _is_worth_another_try(self, error: BaseException) -> bool:
        return isinstance(error, UnavailableError) and self._damaged < self._policy.corrupt_attempts

    def _pause_s(self, state: tenacity.RetryCallState) -> float:
        doublings = min(state.attempt_number - 1, 32)
        longest_s = min(self._policy.first_pause_s * 2**doublings, self._policy.longest_pause_s)
        return self._random.uniform(0.0, longest_s)

    def _is_over(self, state: tenacity.RetryCallState) -> bool:
        return self._clock.monotonic_s() + state.upcoming_sleep >= self._deadline_s

    def _announce(self, state: tenacity.RetryCallState) -> None:
        self._observer.on_event(
            RetryPlanned(
                target=str(self._facts["target"]),
                operation=str(self._facts["operation"]),
                key=str(self._facts["key"]),
                attempt=state.attempt_number,
                pause_s=state.upcoming_sleep,
                error=type(self._last).__name__,
            )
        )

    def _give_up(self, _: tenacity.RetryCallState) -> NoReturn:
        raise self._deadline_error()

    def _deadline_error(self) -> DeadlineError:
        error = DeadlineError(
            "time is up" if self._last is None else f"time is up; the last failure: {self._last}",
            attempts=self.failures,
            seconds=round(self._clock.monotonic_s() - self._began_s, 3),
            **self._facts,
            hint="look at the cause, or allow more time",
        )
        error.__cause__ = self._last
        return error
