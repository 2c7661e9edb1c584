"""Share partitions that are led here: their windows, read and persisted by way of the share coordinator.

A share partition opens with the first share session that names it, in the leader epoch of its partition, and closes
when that epoch ends, or when no session has it any more and everything is persisted. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import re
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fleetlog._native.batch import CorruptBatch, parse_header, scan
from fleetlog._native.compact import header_values, record_keys
from fleetlog.brokers.coordinators.dead_letters import (
    COPIES,
    LETTER_TOPIC,
    Burying,
    DeadLetters,
    Letters,
    OutcomeUnknown,
)
from fleetlog.brokers.coordinators.share_states import ATTEMPTS, RETRY_S, ShareStates
from fleetlog.brokers.groups.requests import own_number
from fleetlog.brokers.log import DiskError, LogOffline, OffsetOutOfRange, SliceGone, read_if_cached, read_in
from fleetlog.brokers.log.validation import records_of
from fleetlog.brokers.model import Clock, TopicInfo
from fleetlog.brokers.replication.serving import Serve
from fleetlog.brokers.shares.acks import AckType
from fleetlog.brokers.shares.coordinator import ShareShard, ShareWrite, StateAnswer, coordinator_key
from fleetlog.brokers.shares.keys import MAX_KEYED
from fleetlog.brokers.shares.state import NO_OFFSET, ShareKey, ShareState
from fleetlog.brokers.shares.times import RecordTimes
from fleetlog.brokers.shares.window import Acquired, Noted, ShareLimits, Window
from fleetlog.brokers.timers import Timer, Timers
from fleetlog.txn.commands import Now, Result, Ticket
from fleetlog.wire.compression import CodecError
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
    from fleetlog.brokers.log import FileSlice, Log
    from fleetlog.brokers.metrics.registry import Counter
    from fleetlog.brokers.replication.partition import Partition

logger = logging.getLogger(__name__)

PAUSE_S = 1.0
"""After a write that failed, before the next one."""
MAX_SHARE_PARTITIONS = 10_000
"""The most that are open on a broker: whoever may read a topic controls their number by groups."""
READ_BYTES = 1 << 20
"""What is read of a partition for one acquisition at most, but for a batch that is larger."""
MAX_VOID_READS = 16
"""Reads in a row that have no record for the group."""
LONG_KEY_BYTES = 16
"""A longer key is told by a hash of so many bytes: two that share one wait for each other, and no more."""
DELIVER_AT: Final = "fleetlog.deliver-at"
"""The header that says from when on a record is given out: ms since 1970 in decimal digits."""
LONGEST_TIME = 15
"""The most digits of it."""
LONGEST_SLEEP_MS = 30_000
"""So long the wall clock may have jumped before it is noticed that a record's time has come."""
DROPPED_TOGETHER = 100
"""States of deleted topics that are forgotten in one turn of the loop."""
BURIAL_PAUSES_MS = (1_000, 30_000)
"""After dead letters that could not be written, before they are tried again: at first, and at most."""
_FENCED = (
    ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNSUPPORTED_VERSION,
)  # fmt: skip
"""This leader persists nothing any more; the last one: the fleet has finalized that it serves no share groups."""


class ShareRules(NamedTuple):
    """What a group may set for its share partitions."""

    limits: ShareLimits
    ordered: bool = False
    """By key."""
    reset: str = "latest"
    """Where it starts: ``earliest``, ``latest``, or ``by_duration:`` and an ISO 8601 duration."""
    committed_only: bool = False
    renews: bool = True
    letters: Letters | None = None

    @classmethod
    def of(cls, config: BrokerConfig, own: Mapping[str, str]) -> ShareRules:
        """The broker's, and what the group has of its own (``share.*`` of config resource GROUP)."""
        limits = ShareLimits(
            own_number(config, own, "partition.max.record.locks"),
            own_number(config, own, "delivery.count.limit"),
            own_number(config, own, "record.lock.duration.ms"),
            int(own.get("fleetlog.share.retry.backoff.ms", "0")),
            int(own.get("fleetlog.share.retry.backoff.max.ms", "60000")),
            int(own.get("fleetlog.share.delay.max.ms", "0")),
            poisons=own.get("fleetlog.share.poison.key") == "dlq",
        )
        return cls(
            limits,
            own.get("fleetlog.share.order") == "key",
            own.get("share.auto.offset.reset", "latest"),
            own.get("share.isolation.level") == "read_committed",
            own.get("share.renew.acknowledge.enable", "true") != "false",
            Letters(topic, own.get(COPIES, "false") == "true") if (topic := own.get(LETTER_TOPIC, "")) else None,
        )


class Taken(NamedTuple):
    """What a member got: whole batches, as they are, and which of their offsets are its own."""

    error: ErrorCode
    records: bytes = b""
    acquired: tuple[Acquired, ...] = ()


@dataclass(slots=True, eq=False)
class SharePartition:
    """One share partition in one leader epoch. ``error`` is not NONE from when it has closed on."""

    key: ShareKey
    partition: Partition
    leader_epoch: int
    rules: ShareRules
    home: SharePartitions
    window: Window | None = None
    error: ErrorCode = ErrorCode.NONE
    sessions: int = 0
    """How many have it."""
    listeners: dict[Callable[[], None], None] = field(default_factory=dict)
    """Called when there may be something to acquire, or it has closed."""
    _noted: list[asyncio.Future[ErrorCode]] = field(default_factory=list)
    _rejected: list[tuple[int, int, asyncio.Future[ErrorCode]]] = field(default_factory=list)
    """Acknowledgements that wait for dead letters, with the first and the last offset of those."""
    burial_pause_ms: int = 0
    """How long the last dead letters that could not be written pause; 0 if the last ones could."""
    _burial_timer: Timer | None = None
    _writer: asyncio.Task[None] | None = None
    _timer: Timer | None = None
    _due_ms: int = 0

    # --- opening and closing --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the state, and choose a start where there is none."""
        try:
            await self._open()
        except Exception:
            logger.exception("the share partition %s cannot be opened", coordinator_key(self.key)[:200])
            self.close(ErrorCode.UNKNOWN_SERVER_ERROR)
        self.close_if_idle()

    async def _open(self) -> None:
        states = self.home.states
        known = await self._answer(partial(states.summary, self.key))
        if known is None:
            return
        if known.start == NO_OFFSET and not await self.home.subscribed(self.key.group_id, self.partition.tp.topic):
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # nobody would ever delete its state with its group
            return
        state = await self._answer(partial(states.read, self.key, self.leader_epoch))
        if state is None:
            return
        fresh = state.start == NO_OFFSET
        try:
            if fresh:
                state = state._replace(start=await self._first_start())
            if self.home.get(self.key) is not self:
                return  # it has closed meanwhile
            locks_end_ms = self.home.clock.mono_ms() + self.rules.limits.lock_ms
            until_ms = 0 if fresh or self.home.left_without_locks(self) else locks_end_ms
            self.window = Window(state, self.rules.limits, fresh=fresh, predecessors_until_ms=until_ms)
            self.window.ordered = self.rules.ordered
            if self.rules.letters is not None:
                self.window.bury(True)
        except (ValueError, LogOffline, DiskError) as problem:
            logger.error("the share partition %s cannot be opened: %s", coordinator_key(self.key)[:200], problem)
            self.close(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self.flush()
        self.arm()
        self.wake()

    async def _answer(self, ask: Callable[[], Awaitable[StateAnswer]]) -> ShareState | None:
        """What the coordinator says, who is asked again for a while; None once this has closed."""
        answer = StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for _ in range(ATTEMPTS):
            answer = await ask()
            if self.error is not ErrorCode.NONE or not answer.error.retriable or answer.error in _FENCED:
                break
            if answer.error is ErrorCode.CONCURRENT_TRANSACTIONS:
                await self.home.letters.settle(self.key)
            await asyncio.sleep(RETRY_S)
        if self.error is ErrorCode.NONE and answer.error is not ErrorCode.NONE:
            again = answer.error in _FENCED or answer.error.retriable
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER if again else ErrorCode.UNKNOWN_SERVER_ERROR)
        return answer.state if self.error is ErrorCode.NONE else None

    async def _first_start(self) -> int:
        log = self.partition.log
        if self.rules.reset == "earliest":
            return log.log_start_offset
        back_ms = iso_duration_ms(self.rules.reset.partition(":")[2])
        if back_ms is not None:
            steps = log.reader.search_timestamp(self.home.clock.wall_ms() - back_ms, lambda cost: None)
            while True:
                try:
                    next(steps)
                except StopIteration as ended:
                    return log.high_watermark if ended.value is None else int(ended.value[0])
                await asyncio.sleep(0)
        return log.high_watermark

    def close(self, error: ErrorCode) -> None:
        """It serves nothing any more; what waits for a write is not answered with success."""
        if self.error is not ErrorCode.NONE:
            return
        self.error, self.window = error, None
        self.partition.unwatch(self)
        self.home.forget(self)
        for timer in (self._timer, self._burial_timer):
            if timer is not None:
                timer.cancel()
        noted, self._noted = self._noted, []
        rejected, self._rejected = self._rejected, []
        for future in (*noted, *(future for _, _, future in rejected)):
            _tell(future, error)
        self.wake()

    def leave(self, member: str | None) -> None:
        """A session has it no more; the records of a member that is named are free."""
        self.sessions -= 1
        if member is not None and self.window is not None and self.window.release(member, self.home.clock.mono_ms()):
            self.flush()
            self.wake()
        self.close_if_idle()

    def close_if_idle(self) -> None:
        """Close if nobody has it and everything is persisted."""
        idle = self.sessions <= 0 and self._writer is None and not self._noted
        if idle and self.window is not None and not self.window.members and not self.window.doomed:
            self.home.leaves_without_locks(self)
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # --- the partition's watcher ----------------------------------------------------------------------------------

    def appended(self, partition: Partition) -> None:
        """Only what is committed can be acquired."""

    def committed(self, partition: Partition) -> None:
        """There may be something to acquire."""
        self.wake()

    def changed(self, partition: Partition) -> None:
        """Its leader, its state, or that it was deleted."""
        if partition.deleted or not partition.is_leader or partition.leader_epoch != self.leader_epoch:
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def wake(self) -> None:
        """Tell those who wait."""
        for listener in list(self.listeners):
            listener()

    def follow(self, rules: ShareRules) -> None:
        """The group's rules are these now."""
        self.rules = rules
        if self.window is not None:
            self.window.limits, self.window.ordered = rules.limits, rules.ordered
            if self._writer is None:
                self._follow_letters(self.window)
                self.flush()

    def _follow_letters(self, window: Window) -> None:
        """Whether the group has dead letters from now on. Not while a write is under way."""
        if window.buries != (self.rules.letters is not None):
            window.bury(self.rules.letters is not None)
            self._noted += [future for _, _, future in self._rejected]
            self._rejected = []

    # --- acquiring and acknowledging ------------------------------------------------------------------------------

    async def acquire(
        self, member: str, max_bytes: int, most: int, wanted: Callable[[], bool], *, whole_batches: bool
    ) -> Taken:
        """Give the member what it may have now, if that is still ``wanted`` when it was read."""
        try:
            for _ in range(MAX_VOID_READS):
                window, log = self.window, self.partition.log
                if window is None:
                    return Taken(self.error)
                if window.log_starts(log.log_start_offset):
                    self.flush()
                limit = log.last_stable_offset if self.rules.committed_only else log.high_watermark
                offset = max(window.next_offset, log.log_start_offset)
                if offset >= limit and window.read_again is not None:
                    offset = window.read_again
                if offset >= limit or not window.may_acquire:
                    break
                read = await _Read.of(log, offset, min(max_bytes, READ_BYTES), limit, self)
                if read is None or not wanted():
                    break
                if self.window is not window:
                    return Taken(self.error)
                refused = self.partition.may_serve(Serve.LIST_OFFSETS)  # by its lease: a successor knows of other ends
                if refused is not ErrorCode.NONE:
                    return Taken(refused)
                now_ms, times, inflate = self.home.clock.mono_ms(), self._times(read), log.settings.inflate_limit
                if window.ordered:
                    keys = read.keys(window.keys_known, inflate)
                    got = window.acquire_in_order(member, read.span, keys, most, now_ms, times)
                else:
                    got = window.acquire(member, read.span, read.data, most, now_ms, times, whole_batches=whole_batches)
                self.arm()
                if got:
                    self.flush()
                    self._count(got, times)
                    return Taken(ErrorCode.NONE, read.between(got[0].first, got[-1].last), tuple(got))
                await asyncio.sleep(0)
            else:
                self.wake()  # what was read is all to be given out later: there may be more
        except (OffsetOutOfRange, SliceGone):
            pass  # the log's start has moved, or its end: it is looked at again at the next fetch
        except (LogOffline, DiskError):
            return Taken(ErrorCode.KAFKA_STORAGE_ERROR)
        except (CorruptBatch, CodecError) as wrong:
            logger.error("the keys of %s cannot be read: %s", coordinator_key(self.key)[:200], wrong)
            return Taken(ErrorCode.CORRUPT_MESSAGE)
        self.flush()
        return Taken(ErrorCode.NONE)

    def _times(self, read: _Read) -> RecordTimes:
        """What the records that were read say of when they may be given out."""
        wall_ms = self.home.clock.wall_ms()
        if not self.rules.limits.delay_max_ms:
            return RecordTimes(wall_ms)
        return RecordTimes(wall_ms, list(read.times(self.partition.log.settings.inflate_limit)))

    def _count(self, got: Sequence[Acquired], times: RecordTimes) -> None:
        """Records that are given out the first time, before the time that they say."""
        early = [offset for offset, due_ms in times.of if due_ms > times.wall_ms]
        for first, last, count in got if early else ():
            inside = bisect_right(early, last) - bisect_left(early, first) if count == 1 else 0
            self.home.early.inc(inside)

    def acknowledge(self, member: str, pieces: Sequence[tuple[int, int, AckType]]) -> asyncio.Future[ErrorCode] | None:
        """Take over what the member says; what comes of it, None if that is nothing to wait for.

        Raises WrongAcknowledgement.
        """
        error: ErrorCode = self.error if self.error is not ErrorCode.NONE else ErrorCode.INVALID_RECORD_STATE
        if self.window is not None:
            renews = any(kind is AckType.RENEW for _, _, kind in pieces)
            error = self.partition.may_serve(Serve.LIST_OFFSETS) if renews else ErrorCode.NONE  # as acquire does
        if self.window is None or error is not ErrorCode.NONE:
            future = asyncio.get_running_loop().create_future()
            future.set_result(error)
            return future
        noted = self.window.acknowledge(member, pieces, self.home.clock.mono_ms())
        if not noted:
            return None
        loop, waits = asyncio.get_running_loop(), list[asyncio.Future[ErrorCode]]()
        if Noted.WRITE in noted:
            waits.append(loop.create_future())
            self._noted.append(waits[-1])
        if Noted.BURIAL in noted:
            waits.append(loop.create_future())
            doomed = [one for one in self.window.doomed if one.first <= pieces[-1][1] and one.last >= pieces[0][0]]
            first, last = max(doomed[0].first, pieces[0][0]), min(doomed[-1].last, pieces[-1][1])
            self._rejected.append((first, last, waits[-1]))
        self.flush()
        return waits[0] if len(waits) == 1 else asyncio.ensure_future(_worst(waits))

    # --- locks ----------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Look again when the next lock or wait ends."""
        due_ms = self._deadline_ms()
        if due_ms is None or (self._timer is not None and self._due_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms = due_ms
        self._timer = self.home.timers.later(max(1, due_ms - self.home.clock.mono_ms()), self._expire)

    def _deadline_ms(self) -> int | None:
        """When the next lock or wait ends, or a record's time may have come, by the monotonic clock."""
        if self.window is None:
            return None
        time_ms, deadline_ms, clock = self.window.next_time_ms, self.window.next_deadline_ms, self.home.clock
        if time_ms is None:
            return deadline_ms
        time_ms = clock.mono_ms() + min(max(0, time_ms - clock.wall_ms()), LONGEST_SLEEP_MS)
        return time_ms if deadline_ms is None else min(time_ms, deadline_ms)

    def _expire(self) -> None:
        self._timer = None
        if self.window is None:
            return
        due = self.window.due(self.home.clock.wall_ms())
        if self.window.expire(self.home.clock.mono_ms()) or due:
            self.flush()
            self.wake()
        self.arm()
        self.close_if_idle()

    # --- persisting -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Persist what is to be persisted, unless that is under way."""
        if self._writer is None and self.window is not None and (self.window.unsaved or self._may_bury()):
            self._writer = self.home.run(self._write_all(), self.key)

    async def _write_all(self) -> None:
        try:
            while (window := self.window) is not None:
                self._follow_letters(window)
                write = window.begin_write()
                if write is None and self._may_bury():
                    await self._bury()
                    continue
                if write is None:
                    break
                noted, self._noted = self._noted, []
                error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER  # if this task ends, with the broker
                try:
                    error = await self._persist(
                        ShareWrite(
                            self.key, window.state_epoch, self.leader_epoch, write.start, write.complete,
                            write.batches,
                        )
                    )  # fmt: skip
                except Exception:
                    error = ErrorCode.UNKNOWN_SERVER_ERROR
                    logger.exception("the share partition %s is not persisted", coordinator_key(self.key)[:200])
                finally:
                    for future in noted:
                        _tell(future, error)
                if self.error is not ErrorCode.NONE:
                    return
                window.end_write(error is ErrorCode.NONE, self.home.clock.mono_ms())
                self.arm()
                self.wake()
                if error in _FENCED:
                    self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                elif error is not ErrorCode.NONE:
                    await asyncio.sleep(PAUSE_S)
        finally:
            self._writer = None
        self.close_if_idle()

    # --- dead letters ---------------------------------------------------------------------------------------------

    def _may_bury(self) -> bool:
        """Not in a pause; but who rejects is told at once."""
        may = self._burial_timer is None or bool(self._rejected)
        return may and self.window is not None and bool(self.window.doomed)

    async def _bury(self) -> None:
        """Write the first of the dead letters that wait, in one transaction with the state."""
        window, letters, rules = self.window, self.home.letters, self.rules.letters
        assert window is not None, "it was asked for"
        assert rules is not None, "else nothing is doomed"
        doomed, rejected = window.doomed, list(self._rejected)
        share = Burying(
            self.key, self.partition, self.leader_epoch, rules, self.home.read, lambda: self.error,
            self.burial_pause_ms > 0,
        )  # fmt: skip
        try:
            plan = await letters.gather(share, doomed)
            buried = [(one.first, min(one.last, plan.until)) for one in doomed if one.first <= plan.until]
            if self.window is not window or (write := window.begin_burial(buried)) is None:
                return
            state = ShareWrite(
                self.key, window.state_epoch, self.leader_epoch, write.start, write.complete, write.batches
            )
            error = plan.error or await letters.write(share, plan, state)
        except Exception as problem:  # whether they are written the share coordinator knows
            logger.log(
                logging.INFO if isinstance(problem, OutcomeUnknown) else logging.ERROR, "dead letters of %s: %r",
                coordinator_key(self.key)[:200], problem,
            )  # fmt: skip
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if self.window is not window:
            return
        window.end_write(error is ErrorCode.NONE, self.home.clock.mono_ms())
        for waits in rejected:
            first, last, future = waits
            if last <= plan.until if error is ErrorCode.NONE else first <= plan.until:
                _tell(future, error)
                self._rejected.remove(waits)
        letters.waiting[self.key] = sum(one.last - one.first + 1 for one in window.doomed)
        self.arm()
        self.wake()
        if error in _FENCED:
            self.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif error is ErrorCode.NONE:
            self.burial_pause_ms = 0
        else:
            first_ms, most_ms = BURIAL_PAUSES_MS
            self.burial_pause_ms = min(2 * self.burial_pause_ms or first_ms, most_ms)
            if self._burial_timer is not None:
                self._burial_timer.cancel()
            self._burial_timer = self.home.timers.later(self.burial_pause_ms, self._bury_again)

    def _bury_again(self) -> None:
        self._burial_timer = None
        self.flush()
        self.close_if_idle()

    async def _persist(self, write: ShareWrite) -> ErrorCode:
        answer = StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(RETRY_S)
            if self.error is not ErrorCode.NONE:
                return self.error
            answer = await self.home.states.write(write)
            if answer.error is ErrorCode.NONE or answer.error in _FENCED or not answer.error.retriable:
                break
        if answer.error is not ErrorCode.NONE:
            logger.info(
                "the share partition %s is not persisted: %s", coordinator_key(self.key)[:200], answer.error.name
            )
        return self.error or answer.error


async def _worst(waits: Sequence[asyncio.Future[ErrorCode]]) -> ErrorCode:
    return max(await asyncio.gather(*waits), key=lambda error: error is not ErrorCode.NONE)


def _tell(future: asyncio.Future[ErrorCode], error: ErrorCode) -> None:
    if not future.done():
        future.set_result(error)


class _Read(NamedTuple):
    """Whole batches of a log: their bytes, where each begins, and what of them has records for a share group."""

    run: bytes
    places: tuple[tuple[int, int, int, int], ...]
    """First and last offset, begin and end of each batch."""
    data: tuple[tuple[int, int], ...]
    span: tuple[int, int]

    @classmethod
    async def of(cls, log: Log, offset: int, max_bytes: int, limit: int, share: SharePartition) -> _Read | None:
        """What there is from an offset on; None if that is nothing.

        Raises OffsetOutOfRange, SliceGone, LogOffline, DiskError.
        """
        result = log.reader.read(offset, max_bytes, limit)
        aborted = []
        try:
            if share.rules.committed_only and result.next_offset > offset:
                aborted = sorted(
                    (one.first_offset, one.producer_id)
                    for one in log.reader.aborted_transactions(offset, result.next_offset)
                )
            run = b"".join([await share.home.read(piece) for piece in result.slices])
        finally:
            result.release()
        places, data = [], []
        skipped: set[int] = set()
        for position, header in scan(run):
            places.append((header.base_offset, header.last_offset, position, position + header.size))
            while aborted and aborted[0][0] <= header.base_offset:
                skipped.add(aborted.pop(0)[1])
            if header.is_control:
                skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped) and header.record_count:
                data.append((header.base_offset, header.last_offset))
        if not places:
            return None
        return cls(run, tuple(places), tuple(data), (offset, places[-1][1]))

    def keys(self, start: int, inflate_limit: int) -> Iterator[tuple[int, bytes | None]]:
        """Offset and key of each record for the group from ``start`` on. Raises CorruptBatch, CodecError."""
        places = {place[0]: place[2] for place in self.places}
        for first, last in self.data:
            if last < start:
                continue
            header = parse_header(self.run, places[first])
            records = records_of(self.run, places[first], header, inflate_limit)
            for offset, key in record_keys(records, header, start, MAX_KEYED):
                if key is not None and len(key) > LONG_KEY_BYTES:
                    key = blake2b(key, digest_size=LONG_KEY_BYTES).digest()
                yield offset, key

    def times(self, inflate_limit: int) -> Iterator[tuple[int, int]]:
        """Offset of each record for the group that says when it may be given out, and when. Raises CorruptBatch.

        One whose time cannot be read, or whose batch cannot be unpacked, says nothing.
        """
        places = {place[0]: place[2] for place in self.places}
        for first, _last in self.data:
            place = places[first]
            header = parse_header(self.run, place)
            if not header.codec and self.run.find(DELIVER_AT.encode(), place, place + header.size) < 0:
                continue
            try:
                records = records_of(self.run, place, header, inflate_limit)
            except CodecError:
                continue
            for offset, value in header_values(records, header, DELIVER_AT):
                if value is not None and value.isdigit() and len(value) <= LONGEST_TIME:
                    yield offset, int(value)

    def between(self, first: int, last: int) -> bytes:
        """The batches that have these offsets."""
        wanted = [place for place in self.places if place[1] >= first and place[0] <= last]
        return self.run[wanted[0][2] : wanted[-1][3]]


class SharePartitions:
    """Those that are open on this broker."""

    def __init__(
        self,
        states: ShareStates,
        timers: Timers,
        clock: Clock,
        letters: DeadLetters,
        subscribed: Callable[[str, str], Awaitable[bool]],
        early: Counter,
    ) -> None:
        """``subscribed`` says whether a group has a topic: only then one of its share partitions may begin."""
        self.subscribed = subscribed
        self.early = early
        """Records that were given out before the time that they say."""
        self.states = states
        self.letters = letters
        self.timers = timers
        self.clock = clock
        self._open: dict[ShareKey, SharePartition] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._without_locks: dict[ShareKey, int] = {}
        """The leader epochs here in which those that are not open were left when nobody had a record."""
        self._disk = ThreadPoolExecutor(1, "share-reads")  # its thread begins with the first use

    def __len__(self) -> int:
        return len(self._open)

    def get(self, key: ShareKey) -> SharePartition | None:
        """The open one."""
        return self._open.get(key)

    def of_group(self, group_id: str) -> list[SharePartition]:
        """The open ones of a group."""
        return [share for key, share in self._open.items() if key.group_id == group_id]

    async def read(self, piece: FileSlice) -> bytes | bytearray:
        """The slice's bytes; a thread waits for the disk first if they are not in memory. Raises as the slice does."""
        place = piece.fileno(), piece.length, piece.position
        data = read_if_cached(*place)
        if data is not None:
            return data
        with suppress(OSError):  # the slice says it better
            await asyncio.get_running_loop().run_in_executor(self._disk, read_in, *place)
        return piece.read()

    def opened(self, key: ShareKey, partition: Partition, rules: ShareRules) -> SharePartition | None:
        """The share partition in the present leader epoch, which may still be read; None if there are too many."""
        known = self._open.get(key)
        if not self.letters.served:
            rules = rules._replace(letters=None)
        if known is not None:
            if known.partition is partition and known.leader_epoch == partition.leader_epoch:
                known.follow(rules)
                return known
            known.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if len(self._open) >= MAX_SHARE_PARTITIONS:
            return None
        share = self._open[key] = SharePartition(key, partition, partition.leader_epoch, rules, self)
        partition.watch(share)
        self.run(share.open(), key)
        return share

    def run(self, work: Coroutine[Any, Any, None], key: ShareKey) -> asyncio.Task[None]:
        """A task for a share partition."""
        task = asyncio.get_running_loop().create_task(work, name=f"share partition {coordinator_key(key)[:100]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def leaves_without_locks(self, share: SharePartition) -> None:
        """It closes, and nobody has a record of it."""
        if share.rules.ordered:
            if len(self._without_locks) >= MAX_SHARE_PARTITIONS:
                del self._without_locks[next(iter(self._without_locks))]
            self._without_locks[share.key] = share.leader_epoch

    def left_without_locks(self, share: SharePartition) -> bool:
        """Whether nobody can have a record of it, for it was last left so here, in the same leader epoch."""
        return self._without_locks.pop(share.key, None) == share.leader_epoch

    def forget(self, share: SharePartition) -> None:
        """It has closed."""
        if self._open.get(share.key) is share:
            del self._open[share.key]
            self.letters.forget(share.key)

    async def stop(self) -> None:
        """Close all."""
        for share in list(self._open.values()):
            share.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._disk.shutdown(wait=False, cancel_futures=True)


def drop_topic_states(
    runtime: CoordinatorRuntime[ShareShard],
    deleted: Iterable[TopicInfo],
    call_soon: Callable[[Callable[[], None]], Any],
) -> None:
    """Topics were deleted: forget the states of their share partitions that are coordinated here, some in each turn.

    What is left over, because a shard was loading, is bounded, and no later topic has it: that has another id.
    """
    ids = [topic.id.bytes for topic in deleted]
    keys = [key for shard in (runtime.shards() if ids else ()) for one in ids for key in shard.of_topic(one)]

    def some() -> None:
        for key in keys[:DROPPED_TOGETHER]:
            runtime.submit(coordinator_key(key), partial(_forget, key))
        del keys[:DROPPED_TOGETHER]
        if keys:
            call_soon(some)

    some()


def _forget(key: ShareKey, shard: ShareShard, now: Now, ticket: Ticket) -> Result:
    return shard.delete(key, now, ticket)


_DURATION = re.compile(r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?)?", re.ASCII)


def iso_duration_ms(text: str) -> int | None:
    """An ISO 8601 duration of days, hours, minutes and seconds (``P1DT2H3M4.5S``); None if it is none."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return int(1000 * (86_400 * days + 3_600 * hours + 60 * minutes + seconds))
