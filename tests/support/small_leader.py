"""A leader and its followers without disk, network or clock: enough to tell a right follower from a wrong one.

A record is its epoch; a log is a list of them. The leader keeps fetch sessions as KIP-227 says, strictly: a request
that a real leader would take for another broker's mistake is one here.
"""

from __future__ import annotations

import struct
import uuid
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, cast

from fleetlog.brokers.model import BrokerId, PartitionState, TopicPartition
from fleetlog.brokers.replication.fetch_plan import Request
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import FetchAnswer, FetchAnswerPart, FetchPart

RECORD = struct.Struct(">qi")
DAMAGED = b"x"


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def state_of(leader: int, epoch: int, replicas: tuple[int, ...] = (1, 2), isr: tuple[int, ...] | None = None) -> Any:
    members = tuple(BrokerId(b) for b in (replicas if isr is None else isr))
    return PartitionState(
        tuple(BrokerId(b) for b in replicas), leader, epoch, members, partition_epoch=epoch, controller_epoch=1,
        isr_incarnations=(1,) * len(members),
    )  # fmt: skip


@dataclass
class SmallLog:
    """Epochs of the records from ``log_start_offset`` on."""

    records: list[int] = field(default_factory=list)
    log_start_offset: int = 0
    high_watermark: int = 0
    offline: bool = False

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    @property
    def latest_epoch(self) -> int:
        return self.records[-1] if self.records else -1

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above that one, and where it ends; (-1, -1) if it is above all."""
        if not self.records or epoch > self.records[-1]:
            return -1, -1
        end = bisect_right(self.records, epoch)
        return (self.records[end - 1] if end else epoch), self.log_start_offset + end

    def cut(self, offset: int) -> None:
        del self.records[max(0, offset - self.log_start_offset) :]
        self.high_watermark = min(self.high_watermark, self.log_end_offset)

    def drop_before(self, offset: int) -> None:
        if offset > self.log_start_offset:
            del self.records[: offset - self.log_start_offset]
            self.log_start_offset = offset
            self.high_watermark = max(self.high_watermark, offset)


class SmallFollower:
    """A replica that follows, as ``brokers.replication.partition`` behaves."""

    def __init__(self, name: str = "t", partition: int = 0, leader: int = 1, epoch: int = 0) -> None:
        self.tp = TopicPartition(name, partition)
        self.topic_id = topic_id(name)
        self.state = state_of(leader, epoch)
        self.leader_epoch = epoch
        self.log: Any = SmallLog()
        self.positions_from: int | None = None
        self.told: bytes | None = None
        self.follower_role = self
        self.calls: list[str] = []
        self.fails_with = ErrorCode.NONE

    def lead_by(self, leader: int, epoch: int) -> None:
        self.state = state_of(leader, epoch)
        self.leader_epoch = epoch

    def take_positions(self, leader_epoch: int, body: memoryview | None) -> ErrorCode:
        self.positions_from, self.told = None, None if body is None else bytes(body)
        return ErrorCode.NONE

    def fetch_position(self) -> tuple[int, int, int]:
        return self.log.log_end_offset, self.log.latest_epoch, self.log.log_start_offset

    def replicate(
        self, leader_epoch: int, records: memoryview, high_watermark: int, log_start_offset: int, now_ms: int, /
    ) -> ErrorCode:
        self.calls.append("replicate")
        if self.fails_with is not ErrorCode.NONE:
            return self.fails_with
        if leader_epoch != self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if records == DAMAGED:
            return ErrorCode.CORRUPT_MESSAGE
        for offset, epoch in RECORD.iter_unpack(records):
            if offset != self.log.log_end_offset:
                return ErrorCode.OFFSET_OUT_OF_RANGE
            self.log.records.append(epoch)
        self.log.high_watermark = max(self.log.high_watermark, min(high_watermark, self.log.log_end_offset))
        self.log.drop_before(min(log_start_offset, self.log.log_end_offset))
        return ErrorCode.NONE

    def diverged(self, leader_epoch: int, epoch: int, end_offset: int, /) -> ErrorCode:
        self.calls.append("diverged")
        if self.fails_with is not ErrorCode.NONE:
            return self.fails_with
        if leader_epoch != self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        own_epoch, own_end = self.log.end_of(epoch)
        self.log.cut(min(end_offset, own_end) if own_epoch >= 0 else end_offset)
        return ErrorCode.NONE

    def out_of_range(self, leader_epoch: int, leader_start: int, leader_end: int, /) -> ErrorCode:
        self.calls.append("out_of_range")
        if leader_epoch != self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if self.log.log_end_offset > leader_end:
            self.log.cut(leader_end)
        elif self.log.log_end_offset < leader_start:
            self.log = SmallLog(log_start_offset=leader_start, high_watermark=leader_start)
        return ErrorCode.NONE


@dataclass
class Led:
    """A partition at its leader. ``error`` is what fetches get instead of records."""

    log: SmallLog
    epoch: int = 0
    error: ErrorCode = ErrorCode.NONE
    damaged: bool = False


class SmallLeader:
    """Answers fetches of one follower broker."""

    def __init__(self, broker_id: int = 1) -> None:
        self.broker_id = broker_id
        self.led: dict[tuple[uuid.UUID, int], Led] = {}
        self.requests: list[Request] = []
        self.session_id = 0
        self.session_epoch = 0
        self.sessions = 0
        self.cached: dict[tuple[uuid.UUID, int], FetchPart] = {}
        self.told: dict[tuple[uuid.UUID, int], tuple[int, int]] = {}
        self.per_partition = 3
        self.offers_sessions = True
        self.error = ErrorCode.NONE

    def lead(self, follower: SmallFollower, records: list[int] | None = None) -> Led:
        key = (follower.topic_id, follower.tp.partition)
        led = self.led[key] = Led(SmallLog(list(records or [])), follower.leader_epoch)
        led.log.high_watermark = led.log.log_end_offset
        return led

    def evict(self) -> None:
        self.session_id = 0
        self.cached.clear()

    def fetch(self, request: Request) -> FetchAnswer:
        self.requests.append(request)
        if self.error is not ErrorCode.NONE:
            return FetchAnswer(0, self.error, 0, [])
        named = {(part.topic_id, part.partition): part for part in request.parts}
        assert len(named) == len(request.parts), "a partition stands twice"
        if request.session_epoch == 0:
            assert not request.forgotten, "a full request forgets by leaving out"
            if request.session_id == self.session_id:
                self.evict()
            self.cached = cast("dict[tuple[uuid.UUID, int], FetchPart]", dict(named))
            self.told.clear()
            if self.offers_sessions:
                self.sessions += 1
                self.session_id, self.session_epoch = self.sessions, 1
            return FetchAnswer(0, 0, self.session_id if self.offers_sessions else 0, self._parts(everything=True))
        if not self.session_id or request.session_id != self.session_id:
            return FetchAnswer(0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, [])
        if request.session_epoch != self.session_epoch:
            return FetchAnswer(0, ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, [])
        self.session_epoch = 1 if self.session_epoch == 0x7FFF_FFFF else self.session_epoch + 1
        for name, indexes in request.forgotten:
            for index in indexes:
                del self.cached[name, index]  # KeyError: forgotten, though it was not there
                self.told.pop((name, index), None)
        self.cached.update(cast("dict[tuple[uuid.UUID, int], FetchPart]", named))
        return FetchAnswer(0, 0, self.session_id, self._parts(everything=False))

    def _parts(self, *, everything: bool) -> list[FetchAnswerPart]:
        parts = []
        for (name, index), asked in self.cached.items():
            part = self._part(name, index, asked)
            news = (part.high_watermark, part.log_start_offset)
            told = self.told.get((name, index))
            if everything or part.error or part.diverging or len(part.records) or news != told:
                parts.append(part)
            self.told[name, index] = news
        return parts

    def _part(self, name: uuid.UUID, index: int, asked: FetchPart) -> FetchAnswerPart:
        def answer(
            error: int, watermark: int = -1, start: int = -1, diverging: Any = None, records: bytes = b""
        ) -> Any:
            return FetchAnswerPart(
                name, index, error, watermark, watermark, start, diverging, None, -1, memoryview(records)
            )  # fmt: skip

        led = self.led.get((name, index))
        if led is None:
            return answer(ErrorCode.UNKNOWN_TOPIC_ID)
        if led.error is not ErrorCode.NONE:
            return answer(led.error)
        if asked.current_leader_epoch != led.epoch:
            older = asked.current_leader_epoch < led.epoch
            return answer(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)
        log = led.log
        if asked.last_fetched_epoch >= 0:
            epoch, end = log.end_of(asked.last_fetched_epoch)
            if end >= 0 and (epoch < asked.last_fetched_epoch or end < asked.fetch_offset):
                return answer(0, log.high_watermark, log.log_start_offset, (epoch, end))
        if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            return answer(ErrorCode.OFFSET_OUT_OF_RANGE)
        first = asked.fetch_offset - log.log_start_offset
        records = b"".join(
            RECORD.pack(asked.fetch_offset + number, epoch)
            for number, epoch in enumerate(log.records[first : first + self.per_partition])
        )
        if led.damaged and records:
            records = DAMAGED
        return answer(0, log.high_watermark, log.log_start_offset, None, records)
