"""Shards to fragments: stripes are cut, coded, summed and sent as they come.

A fragment that lies inside one contiguous source is coded and sent from that source's own memory;
the others are gathered into reused buffers. Never more than the byte budget is in flight, and
nothing of a source is read after ``upload`` has returned or raised.

C1: a stripe counts when at least k fragments are stored and the policy's tolerance is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from objckpt.coding.checksum import block_checksums, combine_blocks
from objckpt.coding.codec import codec
from objckpt.coding.geometry import Code, fragment_size, stripe_code, stripe_lengths
from objckpt.errors import NotEnoughFragmentsError, StoreError
from objckpt.format import keys
from objckpt.format.keys import ShardId
from objckpt.format.manifest import Chunk, CodeRecord, Fragment, ShardManifest, Stripe
from objckpt.telemetry import BytesMoved, FragmentLost, TargetGivenUp
from objckpt.transfer.placement import place, tolerance
from objckpt.transfer.targets import Targets


class Source(Protocol):
    """A run of bytes to be stored; asked from one thread, in order."""

    @property
    def length(self) -> int: ...

    def view(self, start: int, stop: int) -> memoryview | None:
        """Bytes ``[start, stop)`` without a copy, stable until the upload ends; None if that is impossible."""
        ...

    def read_into(self, start: int, into: memoryview) -> None:
        """Copies bytes from ``start`` on, as many as ``into`` has."""
        ...


class BytesSource:
    """Bytes that exist already."""

    def __init__(self, body: bytes | bytearray | memoryview) -> None:
        self._body = memoryview(body).cast("B")

    @property
    def length(self) -> int:
        return len(self._body)

    def view(self, start: int, stop: int) -> memoryview:
        return self._body[start:stop]

    def read_into(self, start: int, into: memoryview) -> None:
        into[:] = self._body[start : start + len(into)]


class Uploader:
    """Uploads the shards of one save; a target that fails is given up for the rest of it.

    Args:
        unavailable: Targets that are lost: their fragments are recorded as missing.
        min_tolerance: Domains that every stripe must survive, as stored.
        deadline_s: When the save has to be over, on the monotonic clock; None for no bound.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        run: str,
        code: Code,
        stripe_size: int,
        min_tolerance: int,
        unavailable: frozenset[str] = frozenset(),
        deadline_s: float | None = None,
    ) -> None:
        self._targets = targets
        self._run = run
        self._code = code
        self._stripe_size = stripe_size
        self._min_tolerance = min_tolerance
        self._domains = {site.name: site.domain for site in targets.sites}
        self._stores = {
            name: store if deadline_s is None else store.before(deadline_s) for name, store in targets.stores.items()
        }
        self._lock = threading.Lock()
        self._given_up: dict[str, str] = dict.fromkeys(unavailable, "lost domain")
        self._causes: dict[str, StoreError] = {}

    def upload(
        self,
        shard_id: ShardId,
        *,
        name: str,
        kind: Literal["safetensors", "opaque"],
        sources: Sequence[Source],
        index: tuple[Chunk, ...],
    ) -> ShardManifest:
        """Stores one shard's fragments and returns its manifest.

        Raises:
            NotEnoughFragmentsError: A stripe could not be stored as the policy demands.
        """
        stream = _Stream(sources)
        job = _Job()
        lengths = stripe_lengths(stream.length, self._stripe_size)
        buffers = _Buffers(fragment_size(self._code, self._stripe_size))
        start = 0
        stripes: list[_StripeUpload] = []
        try:
            for number, length in enumerate(lengths):
                used = stripe_code(self._code, length)
                cost = used.fragments * fragment_size(used, length)
                stripe = _StripeUpload(
                    shard=str(shard_id), name=name, number=number, length=length, code=used,
                    placed=place(self._targets.sites, fragments=used.fragments, turn=number),
                    cost=cost, job=job, buffers=buffers,
                )  # fmt: skip
                stripes.append(stripe)
                self._targets.budget.acquire(cost)
                job.begin()
                try:
                    if job.failure is None:
                        self._send(stripe, stream, start)
                except BaseException as error:
                    job.fail(error)
                    raise
                finally:
                    self._ended(stripe)
                if job.failure is not None:
                    break
                start += length
        finally:
            # The sources' memory and the buffers are in use until the last task has ended.
            job.wait()
        if job.failure is not None:
            raise job.failure
        return ShardManifest(
            run=self._run,
            id=str(shard_id),
            name=name,
            kind=kind,
            rank=shard_id.rank,
            length=stream.length,
            code=CodeRecord(data=self._code.data, parity=self._code.parity, algorithm=self._code.algorithm),
            stripe_size=self._stripe_size,
            stripes=tuple(stripe.record() for stripe in stripes),
            index=index,
        )

    def _send(self, stripe: _StripeUpload, stream: _Stream, start: int) -> None:
        size = fragment_size(stripe.code, stripe.length)
        for index in range(stripe.code.data):
            stripe.bodies.append(stripe.cut(stream, start, index, size))
        data = [memoryview(body) for body in stripe.bodies]
        parity = [stripe.take_buffer(size) for _ in range(stripe.code.parity)]
        stripe.bodies.extend(parity)
        for index in range(stripe.code.data):
            self._queue(stripe, self._put, stripe, index)
        if parity:
            self._queue(stripe, self._encode, stripe, data, parity)

    def _queue(self, stripe: _StripeUpload, task: Callable[..., None], *arguments: Any) -> None:
        """Hands a task to the executor; the stripe ends when all of its tasks have."""
        with self._lock:
            stripe.outstanding += 1
        try:
            self._targets.executor.submit(task, *arguments)
        except RuntimeError as error:
            # The interpreter is on its way out and takes no more tasks.
            stripe.job.fail(error)
            self._ended(stripe)

    def _encode(self, stripe: _StripeUpload, data: list[memoryview], parity: list[bytearray]) -> None:
        try:
            if stripe.job.failure is None:
                codec().encode(stripe.code, data, [memoryview(body) for body in parity])
        except BaseException as error:  # noqa: BLE001 - thread edge: the failure is raised by upload()
            stripe.job.fail(error)
        for index in range(stripe.code.data, stripe.code.fragments):
            self._queue(stripe, self._put, stripe, index)
        self._ended(stripe)

    def _put(self, stripe: _StripeUpload, index: int) -> None:
        try:
            if stripe.job.failure is None:
                self._put_fragment(stripe, index)
        except BaseException as error:  # noqa: BLE001 - thread edge: the failure is raised by upload()
            stripe.job.fail(error)
        self._ended(stripe)

    def _ended(self, stripe: _StripeUpload) -> None:
        with self._lock:
            stripe.outstanding -= 1
            last = stripe.outstanding == 0
        if last:
            self._finish(stripe)

    def _put_fragment(self, stripe: _StripeUpload, index: int) -> None:
        target = stripe.placed[index]
        body = stripe.bodies[index]
        blocks = block_checksums(body)
        checksum = combine_blocks(blocks, len(body))
        reason = self._given_up.get(target)
        expected = reason is not None
        if reason is None:
            try:
                self._stores[target].put(keys.fragment_key(stripe.shard, stripe.number, index), body, crc32c=checksum)
            except StoreError as error:
                reason = self._give_up(target, error)
        if reason is not None:
            stripe.reasons[target] = reason
            self._targets.observer.on_event(
                FragmentLost(
                    target=target,
                    shard=stripe.shard,
                    stripe=stripe.number,
                    index=index,
                    reason=reason,
                    while_doing="save",
                    expected=expected,
                )
            )
        stripe.fragments[index] = Fragment(
            target=target, size=len(body), crc32c=checksum, blocks=blocks, stored=reason is None
        )

    def _give_up(self, target: str, error: StoreError) -> str:
        reason = f"{type(error).__name__}: {error.message}"
        with self._lock:
            first = target not in self._given_up
            self._given_up.setdefault(target, reason)
            self._causes.setdefault(target, error)
        if first:
            self._targets.observer.on_event(TargetGivenUp(target=target, reason=reason, while_doing="save"))
        return reason

    def _finish(self, stripe: _StripeUpload) -> None:
        try:
            if stripe.job.failure is None:
                self._judge(stripe)
        finally:
            stripe.return_buffers()
            self._targets.budget.release(stripe.cost)
            stripe.job.end()

    def _judge(self, stripe: _StripeUpload) -> None:
        stored = [self._domains[f.target] for f in stripe.fragments.values() if f.stored]
        survives = tolerance(stored, data=stripe.code.data)
        if survives >= max(0, self._min_tolerance):
            self._targets.observer.on_event(BytesMoved(shard=stripe.name, size=stripe.length, while_doing="save"))
            return
        failed = stripe.code.fragments - len(stored)
        reasons = ", ".join(f"{target}: {reason}" for target, reason in sorted(stripe.reasons.items()))
        error = NotEnoughFragmentsError(
            f"stripe {stripe.number} of shard {stripe.shard}: need {stripe.code.data} of {stripe.code.fragments}"
            f" and to survive {self._min_tolerance} lost domains: stored={len(stored)} failed={failed} ({reasons})",
            hint="bring the failed targets back, or lower write.min_tolerance; nothing was committed",
        )
        error.__cause__ = next((self._causes[t] for t in sorted(stripe.reasons) if t in self._causes), None)
        stripe.job.fail(error)


class _Job:
    """One upload: its stripes in flight, and the first failure."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._in_flight = 0
        self._changed = threading.Condition()

    def begin(self) -> None:
        with self._changed:
            self._in_flight += 1

    def end(self) -> None:
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            if self.failure is None:
                self.failure = error

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._in_flight == 0)


class _Buffers:
    """Buffers of one full fragment's size, reused from stripe to stripe: page faults cost more than coding."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        return self._free.pop() if self._free else bytearray(self.size)

    def give(self, buffer: bytearray) -> None:
        self._free.append(buffer)


@dataclass(slots=True, kw_only=True)
class _StripeUpload:
    shard: str
    name: str
    number: int
    length: int
    code: Code
    placed: tuple[str, ...]
    cost: int
    job: _Job
    buffers: _Buffers
    outstanding: int = 1  # the sender's own share
    bodies: list[bytearray | memoryview] = field(default_factory=list)
    fragments: dict[int, Fragment] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    borrowed: list[bytearray] = field(default_factory=list)

    def cut(self, stream: _Stream, start: int, index: int, size: int) -> bytearray | memoryview:
        """Data fragment ``index``: the source's own memory where possible, else a filled buffer."""
        first, last = min(index * size, self.length), min((index + 1) * size, self.length)
        if last - first == size:
            view = stream.view(start + first, start + last)
            if view is not None:
                return view
        buffer = self.take_buffer(size)
        filled = memoryview(buffer)
        stream.read_into(start + first, filled[: last - first])
        if last - first < size:
            filled[last - first :] = bytes(size - (last - first))
        return buffer

    def take_buffer(self, size: int) -> bytearray:
        if size != self.buffers.size:
            return bytearray(size)
        buffer = self.buffers.take()
        self.borrowed.append(buffer)
        return buffer

    def return_buffers(self) -> None:
        self.bodies.clear()
        while self.borrowed:
            self.buffers.give(self.borrowed.pop())

    def record(self) -> Stripe:
        return Stripe(
            length=self.length, fragments=tuple(self.fragments[index] for index in range(self.code.fragments))
        )


class _Stream:
    """Sources laid end to end, read front to back."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._starts: list[int] = []
        self.length = 0
        for source in sources:
            self._starts.append(self.length)
            self.length += source.length
        self._at = 0

    def view(self, start: int, stop: int) -> memoryview | None:
        number = self._seek(start)
        offset = start - self._starts[number]
        source = self._sources[number]
        if offset + (stop - start) > source.length:
            return None
        return source.view(offset, offset + (stop - start))

    def read_into(self, start: int, into: memoryview) -> None:
        done = 0
        while done < len(into):
            number = self._seek(start + done)
            source = self._sources[number]
            offset = start + done - self._starts[number]
            step = min(source.length - offset, len(into) - done)
            source.read_into(offset, into[done : done + step])
            done += step

    def _seek(self, position: int) -> int:
        """The source that holds the byte at ``position``; sources of no length are passed over."""
        if position < self._starts[self._at]:
            self._at = 0
        while position >= self._starts[self._at] + self._sources[self._at].length:
            self._at += 1
        return self._at
