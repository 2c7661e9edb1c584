"""A virtual loop, a partition whose high watermark the test moves, and a shard that keeps a list per key."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fleetlog._native.batch import scan
from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
from fleetlog.brokers.replication.serving import LeaderLease, Serve
from fleetlog.brokers.timers import Timers
from fleetlog.txn.commands import CoordinatorRecord, Now, Result, Ticket
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

TOPIC = "__consumer_offsets"


class Call:
    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.callback: Callable[..., Any] | None = callback
        self.args = args

    def cancel(self) -> None:
        self.callback = None


class VirtualLoop:
    """Runs due callbacks on demand. Also the clock."""

    def __init__(self) -> None:
        self.ms = 1_000_000
        self._soon: list[Call] = []
        self._later: list[tuple[float, int, Call]] = []
        self._count = itertools.count()
        self.rounds = 0

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.ms

    def mono_ms(self) -> int:
        return self.ms

    def mono_us(self) -> int:
        return self.ms * 1000

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Call:
        call = Call(callback, args)
        self._soon.append(call)
        return call

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Call:
        call = Call(callback, args)
        heapq.heappush(self._later, (self.ms + delay * 1000, next(self._count), call))
        return call

    def round(self) -> None:
        self.rounds += 1
        soon, self._soon = self._soon, []
        for call in soon:
            if call.callback is not None:
                call.callback(*call.args)

    def settle(self) -> None:
        while self._soon:
            self.round()

    def advance(self, ms: int) -> None:
        end = self.ms + ms
        self.settle()
        while self._later and self._later[0][0] <= end:
            at, _, call = heapq.heappop(self._later)
            self.ms = max(self.ms, round(at))
            if call.callback is not None:
                call.callback(*call.args)
            self.settle()
        self.ms = end


class Info(NamedTuple):
    error: ErrorCode = ErrorCode.NONE
    last_offset: int = -1


class Slice(NamedTuple):
    data: bytes

    def read(self) -> bytes:
        return self.data

    def release(self) -> None:
        pass


class Read(NamedTuple):
    slices: tuple[Slice, ...]
    next_offset: int


class MemoryLog:
    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes, int]] = []  # first offset, bytes, next offset
        self.log_start_offset = 0
        self.high_watermark = 0
        self.reads = 0

    @property
    def log_end_offset(self) -> int:
        return self.batches[-1][2] if self.batches else self.log_start_offset

    @property
    def reader(self) -> MemoryLog:
        return self

    def read(self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True) -> Read:
        self.reads += 1
        taken, size, after = [], 0, offset
        for _first, data, following in self.batches:
            if following <= offset or after >= end_offset or (taken and size + len(data) > max_bytes):
                continue
            taken.append(Slice(data))
            size += len(data)
            after = following
        return Read(tuple(taken), after)


class MemoryPartition:
    """Leads in ``leader_epoch``; nothing is committed before :meth:`commit`, unless ``instant``."""

    def __init__(self, tp: TopicPartition, *, instant: bool = False, log: MemoryLog | None = None) -> None:
        from fleetlog._native.batch import stamp

        self._stamp = stamp
        self.tp = tp
        self.leader_epoch = 3
        self.is_leader = True
        self.log = log or MemoryLog()
        self.instant = instant
        self.refuse = ErrorCode.NONE
        self.waiters: list[tuple[int, Callable[[ErrorCode], None]]] = []
        self.confirmed = True
        self.lease = LeaderLease(lambda: self.confirmed)
        self.unconfirmed: list[Callable[[ErrorCode], None]] = []
        self.appends: list[dict[str, Any]] = []

    def append(self, records: Any, **how: Any) -> Info:
        self.appends.append(how)
        if self.refuse is not ErrorCode.NONE:
            return Info(self.refuse)
        if how["expected_leader_epoch"] != self.leader_epoch:
            return Info(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        data = bytearray(records)
        first = self.log.log_end_offset
        ((_, header),) = scan(bytes(data))
        self._stamp(data, 0, first, self.leader_epoch)
        following = first + header.last_offset_delta + 1
        self.log.batches.append((first, bytes(data), following))
        if self.instant:
            self.commit()
        return Info(ErrorCode.NONE, following - 1)

    def wait_for(self, offset: int, on_committed: Callable[[ErrorCode], None], *, gives_up: bool = False) -> None:
        if offset < self.log.high_watermark:
            on_committed(ErrorCode.NONE)
        else:
            self.waiters.append((offset, on_committed))

    def may_serve(self, kind: Serve) -> ErrorCode:
        return self.lease.refusal(kind)

    def when_confirmed(self, callback: Callable[[ErrorCode], None]) -> None:
        if self.confirmed:
            callback(ErrorCode.NONE)
        else:
            self.unconfirmed.append(callback)

    def confirm(self, error: ErrorCode = ErrorCode.NONE) -> None:
        waiting, self.unconfirmed = self.unconfirmed, []
        for callback in waiting:
            callback(error)

    def commit(self, offset: int | None = None) -> None:
        self.log.high_watermark = self.log.log_end_offset if offset is None else offset
        due = [w for w in self.waiters if w[0] < self.log.high_watermark]
        self.waiters = [w for w in self.waiters if w[0] >= self.log.high_watermark]
        for _, callback in due:
            callback(ErrorCode.NONE)

    def fail_waiters(self, error: ErrorCode) -> None:
        waiters, self.waiters = self.waiters, []
        for _, callback in waiters:
            callback(error)


@dataclass
class ListShard:
    """Every record appends its value to its key's list; commands say what they want by a plain Result."""

    partition: int = 0
    lists: dict[str, list[str]] = field(default_factory=dict)
    pending: list[tuple[tuple[int, int], str, str]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    on_load: Result = field(default_factory=Result)
    timer_result: Callable[[str], Result] = lambda _name: Result()
    poison: str | None = None

    def apply(self, record: CoordinatorRecord, producer: tuple[int, int] | None, now: Now) -> None:
        key, value = record.key.decode(), (record.value or b"").decode()
        if value == self.poison:
            raise RuntimeError("poison")
        if producer is not None:
            self.pending.append((producer, key, value))
        else:
            self.lists.setdefault(key, []).append(value)
        self.log.append(f"apply {key}={value}")

    def apply_marker(self, producer_id: int, producer_epoch: int, commit: bool, now: Now) -> Result | None:
        self.log.append(f"marker {producer_id}/{producer_epoch} {commit}")
        for producer, key, value in self.pending:
            if producer[0] == producer_id and commit:
                self.lists.setdefault(key, []).append(value)
        self.pending = [entry for entry in self.pending if entry[0][0] != producer_id]
        return None

    def loaded(self, now: Now) -> Result:
        self.log.append("loaded")
        return self.on_load

    def on_timer(self, name: str, now: Now) -> Result:
        self.log.append(f"timer {name}")
        return self.timer_result(name)

    def on_markers_written(self, transactional_id: str, producer_id: int, producer_epoch: int, now: Now) -> Result:
        raise AssertionError

    def timer_key(self, name: str) -> str:
        return name.partition("/")[2]

    def metric_parts(self) -> Iterator[Mapping[str, float]]:
        yield {"keys": float(len(self.lists))}


def get(key: str) -> Callable[[Any, Now, Ticket], Result]:
    """A command that answers with the key's list, from memory."""
    return lambda shard, now, ticket: Result(list(shard.lists.get(key, [])))


def put(key: str, *values: str, **more: Any) -> Callable[[Any, Now, Ticket], Result]:
    """A command that appends values to its key and answers with what the list was before."""

    def command(shard: ListShard, now: Now, ticket: Ticket) -> Result:
        shard.log.append(f"run {key}+{','.join(values)}")
        records = tuple(CoordinatorRecord(key.encode(), value.encode()) for value in values)
        return Result(response=list(shard.lists.get(key, [])), records=records, **more)

    return command


class Bench:
    """A runtime with one partition."""

    def __init__(self, *, instant: bool = False, log: MemoryLog | None = None, start: bool = True) -> None:
        self.loop = VirtualLoop()
        self.shards: list[ListShard] = []
        self.setup: Callable[[ListShard], None] = lambda shard: None
        self.runtime = CoordinatorRuntime(
            "lists",
            TOPIC,
            self._make,
            partition_count=lambda: 1,
            loop=self.loop,
            timers=Timers(self.loop, self.loop),
            clock=self.loop,
            origin="coordinator",
        )
        self.partition = MemoryPartition(TopicPartition(TOPIC, 0), instant=instant, log=log)
        if start:
            self.elect()
            self.loop.settle()

    def _make(self, partition: int) -> ListShard:
        shard = ListShard(partition)
        self.setup(shard)
        self.shards.append(shard)
        return shard

    def elect(self) -> None:
        self.runtime.partition_elected(self.partition)

    @property
    def shard(self) -> ListShard:
        return self.shards[-1]

    def submit(self, key: str, command: Any, **how: Any) -> list[Any]:
        """The list gets the answer when it is there."""
        answers: list[Any] = []
        self.runtime.submit(key, command, **how).on_done(answers.append)
        return answers
