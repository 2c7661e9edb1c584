"""Replicas of one partition with real logs, real follower roles and real plans; only the way between them is short."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

from fleetlog.brokers.log import OffsetOutOfRange
from fleetlog.brokers.metrics.topics import TopicFigures
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.replication.accepted import accepted_as_of
from fleetlog.brokers.replication.fetch_plan import Counts, FetchPlan, LackingReplica, Limits
from fleetlog.brokers.replication.partition import FollowerRole
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import FetchAnswer, FetchAnswerPart, FetchPart
from fleetlog.wire.types import LeaderEpoch
from tests.support.clocks import ManualClock
from tests.support.faulty import FaultyDisk
from tests.support.logs import NOW, append, batch, config, content, open_log
from tests.support.small_leader import state_of, topic_id

TP = TopicPartition("t", 0)
ID = topic_id("t")
PAUSE = 100
numbers = itertools.count()


class Replica:
    """One broker's copy, and what it fetches by."""

    def __init__(self, broker_id: int, directory: Path, **changes: object) -> None:
        self.directory = directory
        self.disk = FaultyDisk()
        self.changes = changes
        self.tp, self.topic_id, self.log, self.state = TP, ID, self._open(), state_of(-1, 0)
        self.is_leader, self.leader_epoch, self.deleted = False, -1, False
        self.figures: TopicFigures | None = None
        self.follower_role = FollowerRole(self, ManualClock(), {})
        self.broker_id = broker_id
        self.counts = Counts()
        self.plan: FetchPlan | None = None
        self.now = 0
        self.commits = 0

    def _open(self, **options: object):  # type: ignore[no-untyped-def]
        return open_log(self.directory, self.disk, TP, config=config(**self.changes), **options)

    def committed(self) -> None:
        self.commits += 1

    def restart(self, *, clean: bool = True, lost: int = 0, snapshots: bool = True) -> None:
        """After a crash the last ``lost`` bytes are gone; without ``snapshots`` those of producers are."""
        watermark, start = self.log.high_watermark, self.log.log_start_offset
        if clean:
            self.log.close()
        else:
            self.log.abandon()
            last = max(self.directory.glob("*.log"))
            with last.open("r+b") as file:
                file.truncate(max(0, last.stat().st_size - lost))
        for snapshot in () if snapshots else self.directory.glob("*.snapshot"):
            snapshot.unlink()
        self.log = self._open(clean=clean, high_watermark=watermark, log_start_offset=start)

    def lead(self, epoch: int) -> None:
        self.is_leader, self.leader_epoch, self.plan = True, epoch, None
        self.state = state_of(self.broker_id, epoch)
        self.log.assign_epoch(LeaderEpoch(epoch))

    def follow(self, leader: Replica, *, unclean: bool = False) -> None:
        self.is_leader, self.leader_epoch = False, leader.leader_epoch
        elected = leader.leader_epoch if unclean else -1
        self.state = replace(state_of(leader.broker_id, leader.leader_epoch), unclean_epoch=elected)
        self.plan = FetchPlan(self.broker_id, leader.broker_id, Limits(1 << 20, PAUSE), self.counts)
        self.plan.follow(self)

    def produce(self, count: int = 1) -> None:
        data = batch(count, value=b"%d" % next(numbers))
        append(self.log, data, epoch=self.leader_epoch, commit_hw=False)

    def fetch(self, leader: Replica, damage: bool = False) -> None:
        """One round, with what the answer asks for."""
        assert self.plan is not None
        for lacking in self.plan.lacking():
            self.plan.positions_told(lacking, self.tell(leader, lacking), self.now)
        request = self.plan.next_request(1, self.now)
        if request is None:
            self.now += PAUSE
            return
        answer = FetchAnswer(0, 0, 0, [leader.answer(part, damage) for part in request.parts])
        assert self.plan.answered(answer) is ErrorCode.NONE
        for part in answer.parts:
            self.plan.apply(part, self.now, NOW)
        for tp, epoch in self.plan.questions():
            assert epoch == leader.leader_epoch
            self.plan.range_found(tp, leader.log.log_start_offset, leader.log.log_end_offset, self.now)

    def tell(self, leader: Replica, lacking: LackingReplica) -> memoryview | ErrorCode | None:
        """What the leader says of accepted positions."""
        work = accepted_as_of(leader.log, lacking.offset, NOW)
        try:
            while True:
                next(work)
        except StopIteration as end:
            return ErrorCode.OFFSET_NOT_AVAILABLE if end.value is None else memoryview(end.value.body)

    def catch_up(self, leader: Replica, rounds: int = 60) -> None:
        for _ in range(rounds):
            self.fetch(leader)
        assert self.plan is not None
        assert self.plan.next_request(1, self.now) is not None, "it must not end in a pause"

    def answer(self, part: FetchPart, damage: bool = False) -> FetchAnswerPart:
        log = self.log

        def answer(error: int, diverging: tuple[int, int] | None = None, records: bytes = b"") -> FetchAnswerPart:
            fine = error == ErrorCode.NONE
            return FetchAnswerPart(
                ID, 0, error, log.high_watermark if fine else -1, -1, log.log_start_offset if fine else -1,
                diverging, None, -1, memoryview(records),
            )  # fmt: skip

        if part.current_leader_epoch != self.leader_epoch:
            return answer(ErrorCode.FENCED_LEADER_EPOCH)
        if part.last_fetched_epoch >= 0:
            epoch, end = log.epoch_end_offset(part.last_fetched_epoch)
            if end < 0:
                return answer(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < part.last_fetched_epoch or end < part.fetch_offset:
                return answer(0, (epoch, end))
        try:
            result = log.reader.read(part.fetch_offset, 200, end_offset=log.log_end_offset)
        except OffsetOutOfRange:
            return answer(ErrorCode.OFFSET_OUT_OF_RANGE)
        records = bytearray(b"".join(piece.read() for piece in result.slices))
        result.release()
        if damage and records:
            records[-1] ^= 1
        return answer(0, None, bytes(records))

    def commit(self, *others: Replica) -> None:
        """The high watermark of a leader whose in-sync set these others are."""
        self.log.appender.set_high_watermark(min(replica.log.log_end_offset for replica in (self, *others)))

    @property
    def bytes(self) -> bytes:
        return content(self.log)

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """Those that have records here."""
        end = self.log.log_end_offset
        return [(entry.epoch, entry.start_offset) for entry in self.log.epochs.entries if entry.start_offset < end]


def same(*replicas: Replica) -> None:
    first = replicas[0]
    for other in replicas[1:]:
        assert other.log.log_end_offset == first.log.log_end_offset
        assert other.bytes == first.bytes
        assert other.epochs == first.epochs
