"""The host of one shard on a partition that this broker leads: order, appends, replication, application, answers.

It implements the rules of ``txn.commands``:

- commands of one key run one after another; a key with records in flight is held, and its later commands queue. Those
  that run beside each other (:class:`Beside`) do not wait for one another, but for all others and these for them;
- writes of one iteration of the loop are batched, appended in order with the leader epoch of the load, and applied
  strictly in log order once they are below the high watermark;
- a write never times out: its record may still be committed, so its key stays held until the outcome is known. Only
  answers time out;
- when the partition moves to another broker, all waiting commands fail with NOT_COORDINATOR and unapplied writes are
  dropped.

A partition is replayed into its shard in slices that do not block the loop. Heartbeats postpone deadlines far more
often than one passes, so postponing a shard's timer is cheap.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from fleetlog._native.batch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    control_batch,
    decode_records,
    encode_batch,
    scan,
    validate_batch,
)
from fleetlog.brokers.coordinators.pending import LEADERSHIP_LOST, PendingAnswer, commit_failure
from fleetlog.brokers.model import Clock
from fleetlog.brokers.replication.serving import Serve
from fleetlog.brokers.timers import Timer, Timers
from fleetlog.txn.commands import (
    DEFERRED,
    Answer,
    Cancel,
    Command,
    CommandFailed,
    CoordinatorRecord,
    Effect,
    Now,
    Result,
    Schedule,
    Shard,
    Ticket,
    WriteMarkers,
)
from fleetlog.wire.compression import decompress
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio

    from fleetlog.brokers.log import Log
    from fleetlog.brokers.replication.partition import Partition

logger = logging.getLogger(__name__)


READ_BYTES = 1 << 20
RECORDS_PER_SLICE = 2_000
SLICE_MS = 5
MAX_DECOMPRESSED_BYTES = 64 << 20
_CONTROL_KEY = struct.Struct(">hh")
_ABORT, _COMMIT = 0, 1


class TransactionMarker(NamedTuple):
    """One end-of-transaction marker of a WriteTxnMarkers request.

    ``run_remaining`` further markers of the same batch transaction follow; each partition appends them together.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0
    run_remaining: int = 0


class Loader:
    """Reads a log from its start to its end at election. Calls ``on_done(None)`` or ``on_done(error)`` at the end."""

    def __init__(
        self,
        log: Log,
        shard: Shard,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        self._log = log
        self._shard = shard
        self._loop = loop
        self._clock = clock
        self._on_done = on_done
        self._cancelled = False
        self.end_offset = log.log_end_offset
        self.records = 0
        self._steps = self._replay()

    def start(self) -> None:
        """Start in the next iteration of the loop."""
        self._loop.call_soon(self._slice)

    def cancel(self) -> None:
        """Stop without a callback."""
        self._cancelled = True

    def _slice(self) -> None:
        if self._cancelled:
            return
        deadline_ms = self._clock.mono_ms() + SLICE_MS
        try:
            for count, _ in enumerate(self._steps, 1):
                if count >= RECORDS_PER_SLICE or self._clock.mono_ms() >= deadline_ms:
                    self._loop.call_soon(self._slice)
                    return
        except Exception as error:
            # An error of the log or the shard fails this partition only.
            self._on_done(error)
            return
        self._on_done(None)

    def _now(self) -> Now:
        return Now(self._clock.wall_ms(), self._clock.mono_ms())

    def _replay(self) -> Iterator[None]:
        offset = self._log.log_start_offset
        while offset < self.end_offset:
            result = self._log.reader.read(offset, READ_BYTES, end_offset=self.end_offset)
            chunks = []
            for piece in result.slices:
                chunks.append(piece.read())
                piece.release()
            run = b"".join(chunks)
            if result.next_offset <= offset:  # an empty read alone is no error: compaction leaves gaps
                raise LoadError(f"nothing to read at offset {offset}, although the log ends at {self.end_offset}")
            yield
            for position, header in scan(run):
                yield from self._batch(run, position, header, offset)
            offset = result.next_offset

    def _batch(self, run: bytes, position: int, header: BatchHeader, from_offset: int) -> Iterator[None]:
        validate_batch(run, position)
        payload: bytes | bytearray | memoryview = memoryview(run)[position + HEADER_SIZE : position + header.size]
        if header.codec:
            payload = decompress(header.codec, payload, MAX_DECOMPRESSED_BYTES)
        producer = (header.producer_id, header.producer_epoch) if header.is_transactional else None
        for record in decode_records(payload, header):
            if record.offset < from_offset or record.offset >= self.end_offset:
                continue
            self.records += 1
            if header.is_control:
                self._control(record.key, header)
            elif record.key is not None:
                self._shard.apply(CoordinatorRecord(record.key, record.value), producer, self._now())
            yield

    def _control(self, key: bytes | None, header: BatchHeader) -> None:
        if key is None or len(key) < _CONTROL_KEY.size:
            raise LoadError("a control record without a type")
        kind = _CONTROL_KEY.unpack_from(key)[1]
        if kind in (_ABORT, _COMMIT):
            self._shard.apply_marker(header.producer_id, header.producer_epoch, kind == _COMMIT, self._now())


class LoadError(Exception):
    """The partition of the internal topic cannot be replayed."""


class _Deadline:
    """A timer; the callback of its own entry in the wheel, for there are as many as members of groups."""

    __slots__ = ("deadline_ms", "name", "of", "timer", "wakes_ms")

    def __init__(self, of: ShardTimers, name: str, deadline_ms: int) -> None:
        self.of = of
        self.name = name
        self.deadline_ms = deadline_ms
        self.wakes_ms = deadline_ms
        self.timer: Timer | None = None

    def __call__(self) -> None:
        self.of.wake(self)


class ShardTimers:
    """Calls ``on_due(name)`` once after the delay, unless the timer is replaced or cancelled before."""

    def __init__(self, timers: Timers, clock: Clock, on_due: Callable[[str], None]) -> None:
        self._timers = timers
        self._clock = clock
        self._on_due = on_due
        self._deadlines: dict[str, _Deadline] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def schedule(self, name: str, delay_ms: int) -> None:
        """Set or replace the timer."""
        deadline_ms = self._clock.mono_ms() + max(0, delay_ms)
        deadline = self._deadlines.get(name)
        if deadline is None:
            deadline = self._deadlines[name] = _Deadline(self, name, deadline_ms)
            self._arm(deadline, delay_ms)
            return
        deadline.deadline_ms = deadline_ms
        if deadline_ms < deadline.wakes_ms:
            self._arm(deadline, delay_ms)  # a later deadline uses the wake-up that is already scheduled

    def cancel(self, name: str) -> None:
        """Cancel the timer, if any."""
        deadline = self._deadlines.pop(name, None)
        if deadline is not None and deadline.timer is not None:
            deadline.timer.cancel()

    def clear(self) -> None:
        """Cancel all timers."""
        for name in list(self._deadlines):
            self.cancel(name)

    def _arm(self, deadline: _Deadline, delay_ms: int) -> None:
        if deadline.timer is not None:
            deadline.timer.cancel()
        deadline.wakes_ms = deadline.deadline_ms
        deadline.timer = self._timers.later(delay_ms, deadline)

    def wake(self, deadline: _Deadline) -> None:
        """The wheel's callback: the deadline has passed, or was put off."""
        if self._deadlines.get(deadline.name) is not deadline:
            return
        left_ms = deadline.deadline_ms - self._clock.mono_ms()
        if left_ms > 0:
            self._arm(deadline, left_ms)
            return
        deadline.timer = None
        del self._deadlines[deadline.name]
        self._on_due(deadline.name)


TRANSACTIONAL = 1 << 4
_RECORDS = attrgetter("result.records")
RECORD_OVERHEAD = 24
"""An upper bound of a record's varints and attributes without headers, in bytes."""


class Beside(NamedTuple):
    """A command that may run while records of others like it are in flight, if theirs are of other parts of the key.

    ``commutes(shard)``: whether it is one, by the state in the log: its records and its answer depend on nothing that
    the others' records change.
    """

    part: str
    commutes: Callable[[Any], bool]


@dataclass(slots=True)
class ShardWrite:
    """One command's records, or one marker. All records of a write are in one batch, so a crash cannot split it."""

    key: str | None
    ticket: Ticket | None
    result: Result
    marker: TransactionMarker | None = None
    on_marker: Callable[[ErrorCode], None] | None = None
    guard: object | None = None
    part: str | None = None
    """Of the key, if that is not held as a whole."""


def batches(writes: Sequence[ShardWrite], limit_bytes: int) -> Iterator[list[ShardWrite]]:
    """Runs of writes that may share a batch, in order: plain ones up to ``limit_bytes``, all others alone."""
    run: list[ShardWrite] = []
    run_bytes = HEADER_SIZE
    for write in writes:
        alone = write.marker is not None or write.result.producer is not None
        size = sum(RECORD_OVERHEAD + len(r.key) + len(r.value or b"") for r in write.result.records)  # at most
        if run and (alone or run_bytes + size > limit_bytes):
            yield run
            run, run_bytes = [], HEADER_SIZE
        if alone:
            yield [write]
        else:
            run.append(write)
            run_bytes += size
    if run:
        yield run


def encode_writes(run: Sequence[ShardWrite], wall_ms: int) -> bytearray:
    """One record batch (or control batch) for a run made by :func:`batches`; the log stamps it in place."""
    first = run[0]
    if first.marker is not None:
        return bytearray(
            control_batch(
                commit=first.marker.commit,
                producer_id=first.marker.producer_id,
                producer_epoch=first.marker.producer_epoch,
                coordinator_epoch=first.marker.coordinator_epoch,
                timestamp=wall_ms,
            )
        )
    records = chain.from_iterable(map(_RECORDS, run))
    encoded = [Record(i, wall_ms, record.key, record.value, ()) for i, record in enumerate(records)]
    if first.result.producer is None:
        return bytearray(encode_batch(encoded))
    producer_id, producer_epoch = first.result.producer
    return bytearray(
        encode_batch(encoded, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=producer_epoch)
    )


S = TypeVar("S", bound=Shard)

NO_TICKET = Ticket(0)
MAX_BATCH_BYTES = 512 * 1024
LONG_WRITE = 1_000
"""Above so many records a write is appended in one turn of the loop and applied in another."""
MAX_WAITING_PER_KEY = 10_000
"""Commands: all members of a large group may ask at once. The bytes of their requests have a bound of their own."""
RETRY_WAIT_MS = 500


class ShardState(Enum):
    """LOADING -> ACTIVE -> CLOSED, or FAILED if the log cannot be replayed."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(slots=True)
class _Item:
    command: Command
    ticket: Ticket
    guard: object | None = None
    beside: Beside | None = None
    cancelled: bool = False


@dataclass(slots=True)
class _Flight:
    writes: list[ShardWrite]
    last_offset: int
    committed: bool = False


class ShardHost(Generic[S]):
    """Runs one shard. Loop thread only."""

    def __init__(
        self,
        partition: Partition,
        shard: S,
        *,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        clock: Clock,
        origin: Any,
        next_ticket: Callable[[], Ticket],
        write_markers: Callable[[ShardHost[S], WriteMarkers], None] | None,
        on_lost: Callable[[ShardHost[S]], None],
    ) -> None:
        self.partition = partition
        self.shard = shard
        self.leader_epoch = partition.leader_epoch
        self.state = ShardState.LOADING
        self._loop = loop
        self._clock = clock
        self._origin = origin
        self._next_ticket = next_ticket
        self._write_markers = write_markers
        self._on_lost = on_lost
        self._held: dict[str, deque[_Item]] = {}
        self._parts: dict[str, set[str]] = {}
        """Of keys that are not held as a whole, those with records in flight."""
        self._pending: dict[Ticket, PendingAnswer] = {}
        self._staged: list[ShardWrite] = []
        self._flights: deque[_Flight] = deque()
        self._flush_scheduled = False
        self._wheel = timers
        self._timers = ShardTimers(timers, clock, self._timer_due)
        self._due: dict[str, _Item] = {}
        self._loader = Loader(partition.log, shard, loop, clock, self._replayed)
        self._load_began_ms = clock.mono_ms()

    # ---- lifecycle -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the partition; until then commands are rejected with COORDINATOR_LOAD_IN_PROGRESS."""
        self._loader.start()

    def close(self) -> None:
        """Stop, because the partition moved or was deleted: fail waiting commands, drop unapplied writes."""
        if self.state is ShardState.CLOSED:
            return
        self.state = ShardState.CLOSED
        self._stop(CommandFailed(ErrorCode.NOT_COORDINATOR))

    def _active(self) -> bool:
        return self.state is ShardState.ACTIVE

    def _stop(self, answer: CommandFailed) -> None:
        self._loader.cancel()
        self._timers.clear()
        self._held = {}
        self._parts = {}
        self._due = {}
        writes = [w for flight in self._flights for w in flight.writes] + self._staged
        self._flights = deque()
        self._staged = []
        waiting, self._pending = self._pending, {}
        for pending in waiting.values():
            pending.complete(answer)
        self._forget(writes)

    def _replayed(self, error: Exception | None) -> None:
        if self.state is not ShardState.LOADING:
            return
        if error is not None:
            self._fail("cannot be loaded", error)
            return
        end = self._loader.end_offset
        if end > self.partition.log.high_watermark:
            self.partition.wait_for(end - 1, self._load_committed)
        else:
            self._load_committed(ErrorCode.NONE)

    def _load_committed(self, error: ErrorCode) -> None:
        if self.state is not ShardState.LOADING:
            return
        if error in LEADERSHIP_LOST:
            self._on_lost(self)
            return
        if error is not ErrorCode.NONE:
            self._wheel.later(RETRY_WAIT_MS, partial(self._replayed, None))
            return
        try:
            result = self.shard.loaded(self._now())
        except Exception as problem:
            self._fail("cannot be loaded", problem)
            return
        self.state = ShardState.ACTIVE
        logger.info(
            "loaded %s, epoch %d: %d records up to offset %d in %d ms",
            self.partition.tp,
            self.leader_epoch,
            self._loader.records,
            self._loader.end_offset,
            self._clock.mono_ms() - self._load_began_ms,
        )
        self._perform(None, None, result)

    def _fail(self, what: str, error: BaseException) -> None:
        """After a bug or with a corrupt log the shard stops: no answer is better than a wrong one."""
        logger.error("%s %s; coordinator stopped for this partition", self.partition.tp, what, exc_info=error)
        self.state = ShardState.FAILED
        self._stop(CommandFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    # ---- commands --------------------------------------------------------------------------------------------------

    def refusal(self) -> ErrorCode:
        """The error of commands now; NONE if they are accepted."""
        match self.state:
            case ShardState.ACTIVE:
                return ErrorCode.NONE
            case ShardState.LOADING:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            case ShardState.FAILED:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            case ShardState.CLOSED:
                return ErrorCode.NOT_COORDINATOR

    def answers_now(self, key: str, part: str) -> bool:
        """Whether a command of that part of the key would run at once, and what it says from memory leave at once."""
        idle = self.state is ShardState.ACTIVE and key not in self._held and part not in self._parts.get(key, ())
        return idle and self.partition.may_serve(Serve.COORDINATOR_STATE) is ErrorCode.NONE

    def schedule(self, name: str, delay_ms: int) -> None:
        """Set or replace a timer of the shard."""
        self._forget_due(name)
        self._timers.schedule(name, delay_ms)

    def submit(
        self, key: str, command: Command, guard: object | None = None, beside: Beside | None = None
    ) -> PendingAnswer:
        """Run the command when its key is free, or what is in flight of it may be ``beside`` it.

        ``guard`` is the log's verification guard for a transactional write (KIP-890): the append is rejected if a
        marker was written in between.
        """
        pending = PendingAnswer(self._next_ticket(), self._abandon)
        if self.state is not ShardState.ACTIVE:
            pending.complete(CommandFailed(self.refusal()))
            return pending
        waiting = self._held.get(key)
        if waiting is not None and len(waiting) >= MAX_WAITING_PER_KEY:
            pending.complete(CommandFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return pending
        self._pending[pending.ticket] = pending
        self._enqueue(key, _Item(command, pending.ticket, guard, beside))
        return pending

    def run(self, key: str, command: Command) -> None:
        """Run a command without an answer (timers, written markers)."""
        if self._active():
            self._enqueue(key, _Item(command, NO_TICKET))

    def append_marker(self, marker: TransactionMarker, done: Callable[[ErrorCode], None]) -> None:
        """Append a transaction marker in order with the records; ``done`` once it is replicated and applied."""
        refused = self.refusal()
        if refused is not ErrorCode.NONE:
            done(refused)
            return
        self._stage(ShardWrite(None, None, Result(), marker, done))

    def expire(self, ticket: Ticket, answer: Any) -> None:
        """Answer the ticket at its deadline; its command's effects still happen."""
        self._answer(ticket, answer)

    def _abandon(self, ticket: Ticket) -> None:
        self._pending.pop(ticket, None)

    def _enqueue(self, key: str, item: _Item) -> None:
        held = self._held.get(key)
        if held is not None:
            held.append(item)
            return
        self._held[key] = deque((item,))
        self._drain(key)

    def _drain(self, key: str) -> None:
        """Run the key's queue until it is empty or a command must wait for records in flight."""
        while True:
            line = self._held.get(key)
            if line is None or not self._active():
                return
            if not line:
                del self._held[key]
                return
            item, in_flight = line[0], self._parts.get(key)
            part = None
            if item.beside is not None and item.beside.commutes(self.shard):
                part = item.beside.part
            if in_flight and (part is None or part in in_flight) and not item.cancelled:
                return
            line.popleft()
            if item.cancelled:
                continue
            try:
                result = item.command(self.shard, self._now(), item.ticket)
            except Exception:
                # A request must not stop the shard; its incomplete changes in memory are not in the log.
                logger.exception("coordinator %s: a command of %r failed", self.partition.tp, key)
                self._answer(item.ticket, CommandFailed(ErrorCode.UNKNOWN_SERVER_ERROR))
                continue
            if self._perform(key, item.ticket, result, item.guard, part) and part is None:
                return

    def _free(self, write: ShardWrite) -> None:
        """The write's key, or part of one, has no records in flight any more."""
        if write.key is None or not self._active():
            return
        if write.part is not None:
            in_flight = self._parts[write.key]
            in_flight.remove(write.part)
            if not in_flight:
                del self._parts[write.key]
        self._drain(write.key)

    def _perform(
        self, key: str | None, ticket: Ticket | None, result: Result, guard: object | None = None,
        part: str | None = None,
    ) -> bool:  # fmt: skip
        """Perform a result; True if its records are in flight, so that the key, or a part of it, stays held."""
        if result.records:
            if key is not None and part is not None:
                self._parts.setdefault(key, set()).add(part)
            self._stage(ShardWrite(key, ticket, result, guard=guard, part=part))
            return True
        if ticket is not None and result.response is not DEFERRED:
            self._answer(ticket, result.response)
        self._effects(result.effects)
        return False

    def _answer(self, ticket: Ticket, response: Any, *, replicated: bool = False) -> None:
        """Answer a ticket. An answer from memory waits until this broker certainly led after the request."""
        pending = self._pending.pop(ticket, None)
        if pending is None:
            return
        if replicated:
            pending.complete(response)
            return

        def confirmed(error: ErrorCode) -> None:
            pending.complete(response if error is ErrorCode.NONE else CommandFailed(ErrorCode.NOT_COORDINATOR))

        self.partition.when_confirmed(confirmed)

    def _effects(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if not self._active():
                return
            match effect:
                case Answer(ticket, response):
                    self._answer(ticket, response)
                case Schedule(name, delay_ms):
                    self.schedule(name, delay_ms)
                case Cancel(name):
                    self._forget_due(name)
                    self._timers.cancel(name)
                case WriteMarkers():
                    assert self._write_markers is not None, "this runtime hosts no transactions"
                    self._write_markers(self, effect)

    # ---- timers ----------------------------------------------------------------------------------------------------

    def _timer_due(self, name: str) -> None:
        if not self._active():
            return

        def command(shard: Shard, now: Now, _ticket: Ticket) -> Result:
            self._due.pop(name, None)
            return shard.on_timer(name, now)

        self._forget_due(name)
        item = self._due[name] = _Item(command, NO_TICKET)
        self._enqueue(self.shard.timer_key(name), item)

    def _forget_due(self, name: str) -> None:
        # The timer fired while its key was held, and an earlier command in the queue replaced or cancelled it.
        item = self._due.pop(name, None)
        if item is not None:
            item.cancelled = True

    # ---- the log ---------------------------------------------------------------------------------------------------

    def _stage(self, write: ShardWrite) -> None:
        self._staged.append(write)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        staged, self._staged = self._staged, []
        runs = deque(batches(staged, MAX_BATCH_BYTES))
        while runs and self._active():
            self._append(runs.popleft())
        for run in runs:
            self._forget(run)

    def _await_commit(self, flight: _Flight) -> None:
        self.partition.wait_for(flight.last_offset, partial(self._committed, flight))

    def _append(self, run: list[ShardWrite]) -> None:
        try:
            batch = encode_writes(run, self._clock.wall_ms())
        except Exception:
            logger.exception("coordinator %s: encoding records failed", self.partition.tp)
            for write in run:
                self._not_appended(write, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        marker = run[0].marker
        try:
            info = self.partition.append(
                batch,
                acks=-1,
                origin=self._origin,
                verification_guard=run[0].guard,
                expected_leader_epoch=self.leader_epoch,
                transaction_version=0 if marker is None else marker.transaction_version,
            )
        except Exception as error:
            self._forget(run)
            self._fail("could not be appended to", error)  # unknown whether the records are in the log
            return
        if info.error in LEADERSHIP_LOST and not self._still_leads():
            self._forget(run)
            self._on_lost(self)
        elif info.error is not ErrorCode.NONE:
            for write in run:
                self._not_appended(write, info.error)
        elif not self._active():  # an earlier write, committed by this append, could not be applied
            self._forget(run)
        else:
            flight = _Flight(run, info.last_offset)
            self._flights.append(flight)
            if sum(map(len, map(_RECORDS, run))) > LONG_WRITE:  # applying them is a turn's work, too
                self._loop.call_soon(self._wait_again, flight)
            else:
                self._await_commit(flight)

    def _still_leads(self) -> bool:
        """An append may be rejected for an invalid lease only: then the shard stays, because the lease may return."""
        return self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    @staticmethod
    def _forget(run: list[ShardWrite]) -> None:
        """Drop unappended writes of a stopped shard; their tickets are answered already."""
        for write in run:
            if write.on_marker is not None:
                write.on_marker(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _not_appended(self, write: ShardWrite, error: ErrorCode) -> None:
        if not self._active():
            self._forget([write])
            return
        if write.on_marker is not None:
            write.on_marker(error)
            return
        held = False
        if write.result.failed is not None:
            try:
                instead = write.result.failed(error, self._now())
            except Exception:
                logger.exception(
                    "coordinator %s: a command of %r failed to handle %s", self.partition.tp, write.key, error.name
                )
                instead = Result(CommandFailed(ErrorCode.UNKNOWN_SERVER_ERROR))
            held = self._perform(write.key, write.ticket, instead, part=write.part)
        elif write.ticket is not None:
            self._answer(write.ticket, CommandFailed(commit_failure(error)))
        if not held:
            self._free(write)

    def _committed(self, flight: _Flight, error: ErrorCode) -> None:
        if not self._active():
            return
        if error in LEADERSHIP_LOST:
            self._on_lost(self)
            return
        if error is not ErrorCode.NONE:
            # The record is in the log and may still be committed: wait for the log's outcome.
            self._wheel.later(RETRY_WAIT_MS, partial(self._wait_again, flight))
            return
        flight.committed = True
        while self._flights and self._flights[0].committed and self._active():
            for write in self._flights.popleft().writes:
                self._finish(write)
                if not self._active():
                    return

    def _wait_again(self, flight: _Flight) -> None:
        if self._active():
            self._await_commit(flight)

    def _finish(self, write: ShardWrite) -> None:
        now = self._now()
        try:
            if write.marker is not None:
                marker = write.marker
                after = self.shard.apply_marker(marker.producer_id, marker.producer_epoch, marker.commit, now)
            else:
                after = None
                for record in write.result.records:
                    self.shard.apply(record, write.result.producer, now)
        except Exception as error:
            # The state no longer matches the log: its answers cannot be trusted any more.
            if write.on_marker is not None:
                write.on_marker(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._fail("could not apply its own record", error)
            return
        if write.on_marker is not None:
            write.on_marker(ErrorCode.NONE)
        if after is not None:
            self._perform(None, None, after)
        if write.ticket is not None and write.result.response is not DEFERRED:
            self._answer(write.ticket, write.result.response, replicated=True)
        self._effects(write.result.effects)
        self._free(write)

    def _now(self) -> Now:
        return Now(self._clock.wall_ms(), self._clock.mono_ms())
