"""Fragments to bytes: any ranges of a shard, from any k of n fragments, never unverified (I7).

Only the blocks that hold wanted bytes are fetched; they are read straight into the destination
memory where whole pieces allow it. A fragment that is lost, damaged or out of reach costs a warning
and a decoding of the same range, never of the whole fragment. One thread decides, the executor's
threads move bytes and report back, so that nothing here needs a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from objckpt.coding.codec import codec
from objckpt.coding.geometry import (
    Code,
    fragment_ranges,
    fragment_size,
    stripe_code,
)
from objckpt.errors import (
    BucketNotFoundError,
    ChecksumError,
    DataError,
    FormatError,
    InvalidInputError,
    NotEnoughFragmentsError,
    ObjectNotFoundError,
    StoreError,
    UnavailableError,
)
from objckpt.format import keys
from objckpt.format.manifest import ShardManifest, Stripe
from objckpt.telemetry import BytesMoved, FragmentLost, TargetGivenUp
from objckpt.transfer.runs import Run, plan_runs, verify
from objckpt.transfer.sources import FragmentStatus, StripeSources
from objckpt.transfer.targets import Targets
from objckpt.units import MiB

RECOVERY_SIZE = 4 * MiB
"""Lost ranges are decoded in steps of at most this many bytes per fragment, which bounds memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes ``[start, stop)`` of a shard and the writable memory that receives them."""

    start: int
    stop: int
    into: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentState:
    """What a check found out about one fragment; ``state`` is ok, missing, corrupt, unreachable or lost."""

    stripe: int
    index: int
    target: str
    state: str
    detail: str = ""


class Downloader:
    """Reads shards; remembers which targets failed, and asks those last.

    Args:
        unavailable: Targets that are lost: never asked.
    """

    def __init__(self, targets: Targets, *, unavailable: frozenset[str] = frozenset()) -> None:
        self._targets = targets
        self._unavailable = unavailable
        self._failed_targets: set[str] = set()

    def read(self, shard: ShardManifest, pieces: Sequence[Piece]) -> None:
        """Fills every piece with verified bytes; after an error their memory holds anything.

        Raises:
            InvalidInputError: A piece lies outside of the shard, or its memory has another size.
            NotEnoughFragmentsError: Fewer than k fragments of a stripe are good where they are needed.
        """
        _Load(self._targets, shard, self._unavailable, self._failed_targets).run(pieces)

    def check(
        self, shard: ShardManifest, *, deep: bool, progress: Callable[[int], None] | None = None
    ) -> list[FragmentState]:
        """Looks at every fragment: its size, or, ``deep``, every byte. Repairs nothing.

        Args:
            progress: Told the bytes of each fragment when it has been looked at.
        """
        found: list[FragmentState] = []
        waiting: deque[Future[FragmentState]] = deque()
        for number, stripe in enumerate(shard.stripes):
            for index, fragment in enumerate(stripe.fragments):
                while len(waiting) >= 2 * self._targets.config.transfer.threads:
                    found.append(waiting.popleft().result())
                self._targets.budget.acquire(fragment.size if deep else 0)
                task = self._targets.executor.submit(self._look, shard, number, stripe, index, deep)
                task.add_done_callback(partial(self._looked, fragment.size, deep, progress))
                waiting.append(task)
        found.extend(task.result() for task in waiting)
        return found

    def _looked(self, size: int, deep: bool, progress: Callable[[int], None] | None, _: object) -> None:
        self._targets.budget.release(size if deep else 0)
        if progress is not None:
            progress(size)

    def _look(self, shard: ShardManifest, number: int, stripe: Stripe, index: int, deep: bool) -> FragmentState:
        fragment = stripe.fragments[index]
        state, detail = FragmentStatus.OK, ""
        store = self._targets.stores.get(fragment.target)
        if store is None or fragment.target in self._unavailable:
            state, detail = FragmentStatus.LOST, "the target is lost or not configured"
        else:
            key = _fragment_key(shard, number, stripe, index)
            try:
                size = store.head(key).size
                if size != fragment.size:
                    raise FormatError(f"{size} bytes instead of {fragment.size}", key=key)
                if deep:
                    verify(fragment, [memoryview(store.get(key))], 0)
            except (StoreError, FormatError, ChecksumError) as error:
                state, detail = _classify(error), error.message
        return FragmentState(stripe=number, index=index, target=fragment.target, state=state.value, detail=detail)


@dataclass(slots=True, kw_only=True, eq=False)
class _Recovery:
    """A range of a run that has to be decoded from k other fragments."""

    run: Run
    start: int
    stop: int
    cost: int = 0
    present: dict[int, memoryview] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)


@dataclass(slots=True, kw_only=True, eq=False)
class _StripeLoad:
    number: int
    stripe: Stripe
    code: Code
    size: int
    sources: StripeSources
    unfinished: int = 0
    good: list[Run] = field(default_factory=list)
    bad: list[Run] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class _Done:
    """A task's report to the deciding thread."""

    run: Run
    recovery: _Recovery | None
    index: int
    error: BaseException | None
    decoded: bool = False


class _Load:
    def __init__(
        self, targets: Targets, shard: ShardManifest, unavailable: frozenset[str], failed_targets: set[str]
    ) -> None:
        self._targets = targets
        self._shard = shard
        self._unavailable = unavailable
        self._failed_targets = failed_targets
        self._costs = {target.name: target.read_cost for target in targets.config.targets}
        self._stripes: dict[int, _StripeLoad] = {}
        self._waiting: deque[Run | _Recovery] = deque()
        self._reports: SimpleQueue[_Done] = SimpleQueue()
        self._in_flight = 0
        self._held = 0
        self._most = 2 * targets.config.transfer.threads
        self._stopped = False

    def run(self, pieces: Sequence[Piece]) -> None:
        self._plan(pieces)
        try:
            while self._waiting or self._in_flight:
                self._start_what_fits()
                if self._in_flight:
                    self._take(self._reports.get())
        except BaseException:
            self._stopped = True
            # Tasks write into the caller's memory: none may outlive this call.
            while self._in_flight:
                self._reports.get()
                self._in_flight -= 1
            raise
        finally:
            if self._held:
                self._targets.budget.release(self._held)

    def _plan(self, pieces: Sequence[Piece]) -> None:
        wanted: dict[tuple[int, int], list[tuple[int, int, memoryview]]] = {}
        for piece in pieces:
            if not 0 <= piece.start <= piece.stop <= self._shard.length or len(piece.into) != piece.stop - piece.start:
                raise InvalidInputError(
                    f"[{piece.start}, {piece.stop}) into {len(piece.into)} bytes does not fit"
                    f" shard {self._shard.name} of {self._shard.length} bytes"
                )
            self._cut(piece, wanted)
        for (number, index), segments in sorted(wanted.items(), key=lambda item: item[0]):
            load = self._stripe(number)
            runs = plan_runs(number, index, sorted(segments, key=lambda s: s[:2]), load.size)
            load.unfinished += len(runs)
            self._waiting.extend(runs)

    def _cut(self, piece: Piece, wanted: dict[tuple[int, int], list[tuple[int, int, memoryview]]]) -> None:
        stripe_size = self._shard.stripe_size
        for number in range(piece.start // stripe_size, -(-piece.stop // stripe_size)):
            base = number * stripe_size
            start, stop = max(piece.start, base), min(piece.stop, base + stripe_size)
            if start == stop:
                continue
            load = self._stripe(number)
            done = start - piece.start
            for part in fragment_ranges(load.code, load.stripe.length, start - base, stop - base):
                step = part.stop - part.start
                into = piece.into[done : done + step]
                wanted.setdefault((number, part.index), []).append((part.start, part.stop, into))
                done += step

    def _stripe(self, number: int) -> _StripeLoad:
        found = self._stripes.get(number)
        if found is None:
            stripe = self._shard.stripes[number]
            code = stripe_code(self._shard.code.code(), stripe.length)
            sources = StripeSources(
                label=f"stripe {number} of shard {self._shard.id} ({self._shard.name})",
                need=code.data,
                targets={index: fragment.target for index, fragment in enumerate(stripe.fragments)},
                costs=self._costs,
                doubtful=frozenset(index for index, fragment in enumerate(stripe.fragments) if not fragment.stored),
            )
            for index, fragment in enumerate(stripe.fragments):
                if fragment.target not in self._targets.stores or fragment.target in self._unavailable:
                    sources.failed(index, FragmentStatus.LOST, "the target is lost or not configured")
            size = fragment_size(code, stripe.length)
            found = _StripeLoad(number=number, stripe=stripe, code=code, size=size, sources=sources)
            self._stripes[number] = found
        return found

    def _start_what_fits(self) -> None:
        # Few enough in the queue that what is learned of a target is heeded by most of the requests to it.
        while self._waiting and self._in_flight < self._most:
            item = self._waiting[0]
            cost = item.cost
            if not self._targets.budget.try_acquire(cost):
                if self._in_flight:
                    return
                self._targets.budget.acquire(cost)
            self._held += cost
            self._waiting.popleft()
            if isinstance(item, _Recovery):
                self._start_recovery(item)
            else:
                self._start_run(item)

    def _start_run(self, run: Run) -> None:
        load = self._stripes[run.stripe]
        fragment = load.stripe.fragments[run.index]
        status = load.sources.status[run.index]
        doubtful = fragment.target in self._failed_targets or not fragment.stored
        spares = len(load.sources.status) - load.code.data
        if status is not FragmentStatus.AVAILABLE or (doubtful and spares > 0):
            # Known bad, or doubtful: others are asked first, and this one only when they do not suffice.
            self._run_failed(load, run)
            self._maybe_recover(load)
            return
        self._submit(run, None, run.index, run.start, run.memory())

    def _submit(self, run: Run, recovery: _Recovery | None, index: int, start: int, views: list[memoryview]) -> None:
        self._targets.executor.submit(self._fetch, run, recovery, index, start, views)
        self._in_flight += 1

    def _fetch(self, run: Run, recovery: _Recovery | None, index: int, start: int, views: list[memoryview]) -> None:
        error: BaseException | None = None
        try:
            stripe = self._shard.stripes[run.stripe]
            fragment = stripe.fragments[index]
            if self._stopped:
                raise UnavailableError("the load has failed already")
            key = _fragment_key(self._shard, run.stripe, stripe, index)
            self._targets.stores[fragment.target].get_into(key, start, views)
            verify(fragment, views, start)
            if recovery is None and run.copies:
                run.spread(views[0], start)
        except BaseException as caught:  # noqa: BLE001 - thread edge: the deciding thread judges it
            error = caught
        self._reports.put(_Done(run=run, recovery=recovery, index=index, error=error))

    def _take(self, done: _Done) -> None:
        self._in_flight -= 1
        load = self._stripes[done.run.stripe]
        if done.error is not None:
            if done.decoded or not isinstance(done.error, (StoreError, DataError)):
                raise done.error
            self._note_failure(load, done.index, done.error)
        if done.recovery is not None:
            self._advance(load, done.recovery, done)
        elif done.error is not None:
            self._run_failed(load, done.run)
            self._maybe_recover(load)
        else:
            load.good.append(done.run)
            load.unfinished -= 1
            self._release(done.run.cost)
            self._moved(done.run.stop - done.run.start)
            self._maybe_recover(load)

    def _note_failure(self, load: _StripeLoad, index: int, error: StoreError | DataError) -> None:
        fragment = load.stripe.fragments[index]
        status = _classify(error)
        first = load.sources.status[index] is FragmentStatus.AVAILABLE
        load.sources.failed(index, status, f"{type(error).__name__}: {error.message}")
        if first:
            self._targets.observer.on_event(
                FragmentLost(
                    target=fragment.target, shard=self._shard.id, stripe=load.number, index=index,
                    reason=f"{status.value}: {error.message}", while_doing="load",
                    expected=fragment.target in self._failed_targets,
                )
            )  # fmt: skip
        if status in (FragmentStatus.UNREACHABLE, FragmentStatus.LOST) and fragment.target not in self._failed_targets:
            self._failed_targets.add(fragment.target)
            self._targets.observer.on_event(
                TargetGivenUp(target=fragment.target, reason=error.message, while_doing="load")
            )

    def _run_failed(self, load: _StripeLoad, run: Run) -> None:
        self._release(run.cost)
        load.bad.append(run)
        load.unfinished -= 1

    def _maybe_recover(self, load: _StripeLoad) -> None:
        """Once every run of the stripe has ended, the failed ones are decoded, from good ones where possible."""
        if load.unfinished or not load.bad:
            return
        for run in load.bad:
            for start in range(run.start, run.stop, RECOVERY_SIZE):
                stop = min(start + RECOVERY_SIZE, run.stop)
                self._waiting.append(
                    _Recovery(run=run, start=start, stop=stop, cost=(load.code.data + 1) * (stop - start))
                )
            load.unfinished += -(-(run.stop - run.start) // RECOVERY_SIZE)
        load.bad = []

    def _start_recovery(self, recovery: _Recovery) -> None:
        load = self._stripes[recovery.run.stripe]
        for run in load.good:
            view = run.part(recovery.start, recovery.stop)
            if view is not None and len(recovery.present) < load.code.data:
                recovery.present[run.index] = view
        self._ask(load, recovery)

    def _ask(self, load: _StripeLoad, recovery: _Recovery) -> None:
        short = load.code.data - len(recovery.present) - len(recovery.pending)
        if short > 0:
            busy = frozenset(recovery.present) | recovery.pending
            chosen = load.sources.choose(short, exclude=busy, doubtful_targets=frozenset(self._failed_targets))
            for index in chosen:
                view = memoryview(bytearray(recovery.stop - recovery.start))
                recovery.present[index] = view
                recovery.pending.add(index)
                self._submit(recovery.run, recovery, index, recovery.start, [view])
        elif not recovery.pending:
            self._targets.executor.submit(self._decode, load, recovery)
            self._in_flight += 1

    def _decode(self, load: _StripeLoad, recovery: _Recovery) -> None:
        error: BaseException | None = None
        run = recovery.run
        try:
            own = recovery.present.get(run.index)
            rebuilt = own if own is not None else memoryview(bytearray(recovery.stop - recovery.start))
            if own is None:
                codec().reconstruct(load.code, recovery.present, {run.index: rebuilt})
                # I7: what comes out of the decoder is as untrusted as what came in.
                verify(load.stripe.fragments[run.index], [rebuilt], recovery.start)
            run.spread(rebuilt, recovery.start)
        except BaseException as caught:  # noqa: BLE001 - thread edge: the deciding thread raises it
            error = caught
        self._reports.put(_Done(run=run, recovery=recovery, index=run.index, error=error, decoded=True))

    def _advance(self, load: _StripeLoad, recovery: _Recovery, done: _Done) -> None:
        if done.decoded:
            load.unfinished -= 1
            self._release(recovery.cost)
            self._moved(recovery.stop - recovery.start)
            return
        recovery.pending.discard(done.index)
        if done.error is not None:
            del recovery.present[done.index]
        try:
            self._ask(load, recovery)
        except NotEnoughFragmentsError as error:
            raise error from done.error

    def _release(self, cost: int) -> None:
        self._held -= cost
        self._targets.budget.release(cost)

    def _moved(self, size: int) -> None:
        self._targets.observer.on_event(BytesMoved(shard=self._shard.name, size=size, while_doing="load"))


def _classify(error: BaseException) -> FragmentStatus:
    if isinstance(error, ObjectNotFoundError):
        return FragmentStatus.MISSING
    if isinstance(error, (FormatError, ChecksumError)):
        return FragmentStatus.CORRUPT
    if isinstance(error, BucketNotFoundError):
        return FragmentStatus.LOST
    return FragmentStatus.UNREACHABLE


def _fragment_key(shard: ShardManifest, number: int, stripe: Stripe, index: int) -> str:
    return keys.fragment_key(stripe.shard or shard.id, number if stripe.number is None else stripe.number, index)
