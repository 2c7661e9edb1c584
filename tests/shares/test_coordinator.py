"""The share coordinator's shard: fencing, starts, snapshots and updates, and loading."""

from __future__ import annotations

import pytest

from fleetlog.brokers.shares import coordinator
from fleetlog.brokers.shares.coordinator import ShareShard, ShareWrite, StateAnswer
from fleetlog.brokers.shares.state import NO_OFFSET, RecordState, ShareKey, ShareState, StateBatch, decode_state_key
from fleetlog.txn.commands import CoordinatorRecord, Now, Result, Ticket
from fleetlog.wire.errors import ErrorCode

KEY = ShareKey("g", bytes(16), 0)
NOW, TICKET = Now(1_000, 1_000), Ticket(0)
DONE = StateBatch(3, 4, RecordState.ACKNOWLEDGED, 1)


class Log:
    """A shard and what it wrote."""

    def __init__(self, updates: int = 0) -> None:
        self.shard = ShareShard(0, updates)
        self.records: list[CoordinatorRecord] = []

    def do(self, result: Result) -> StateAnswer:
        self.records += result.records
        for record in result.records:
            self.shard.apply(record, None, NOW)
        assert isinstance(result.response, StateAnswer)
        return result.response

    def read(self, leader_epoch: int) -> StateAnswer:
        return self.do(self.shard.read(KEY, leader_epoch, NOW, TICKET))

    def write(self, leader_epoch: int, start: int, *batches: StateBatch, state_epoch: int = 0) -> StateAnswer:
        write = ShareWrite(KEY, state_epoch, leader_epoch, start, -1, batches)
        return self.do(self.shard.write(write, NOW, TICKET))

    @property
    def state(self) -> ShareState:
        return self.shard.states[KEY]


def test_a_leader_reads_and_those_before_are_fenced() -> None:
    log = Log()
    assert log.read(3) == StateAnswer(ErrorCode.NONE, ShareState(leader_epoch=3, created_ms=1_000, written_ms=1_000))
    assert log.write(3, 0, DONE).error is ErrorCode.NONE
    assert log.read(4).state.batches == (DONE,)
    assert log.write(3, 5).error is ErrorCode.FENCED_LEADER_EPOCH
    assert log.read(3).error is ErrorCode.FENCED_LEADER_EPOCH
    again = ShareShard(0)
    for record in log.records:
        again.apply(record, None, NOW)
    assert again.states == log.shard.states, "a coordinator that loads fences, too"
    assert not log.shard.read(KEY, 4, NOW, TICKET).records, "the same leader reads again"


def test_a_state_epoch_begins_anew() -> None:
    log = Log()
    log.read(1)
    log.write(1, 10)
    assert log.do(log.shard.initialize(KEY, 0, 4, NOW, TICKET)).error is ErrorCode.FENCED_STATE_EPOCH
    assert log.do(log.shard.initialize(KEY, 1, 4, NOW, TICKET)).error is ErrorCode.NONE
    assert (log.state.start, log.state.state_epoch, log.state.leader_epoch) == (4, 1, 1)
    assert log.write(1, 12).error is ErrorCode.FENCED_STATE_EPOCH
    assert not log.shard.initialize(KEY, 1, 4, NOW, TICKET).records, "asked again"


def test_the_start_never_goes_back() -> None:
    log = Log()
    log.read(1)
    for start in (10, 7, NO_OFFSET):
        assert log.write(1, start, DONE).error is ErrorCode.NONE
        assert (log.state.start, log.state.batches) == (10, ())


def test_updates_between_snapshots() -> None:
    log = Log(updates=2)
    log.read(1)
    for offset in range(5):
        log.write(1, NO_OFFSET, StateBatch(2 * offset, 2 * offset, RecordState.AVAILABLE, offset))
    kinds = [decoded[0] for record in log.records if (decoded := decode_state_key(record.key)) is not None]
    assert kinds == [0, 1, 1, 0, 1, 1]
    assert len(log.state.batches) == 5
    again = ShareShard(0, 2)
    for record in log.records:
        again.apply(record, None, NOW)
    assert again.states == log.shard.states


def test_deleting() -> None:
    log = Log()
    log.read(1)
    assert log.do(log.shard.delete(KEY, NOW, TICKET)).error is ErrorCode.NONE
    assert not log.shard.states
    assert not log.shard.delete(KEY, NOW, TICKET).records
    assert log.write(1, 0).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert log.shard.summary(KEY) == ShareState()


def test_what_is_too_much_or_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.read(1)
    for wrong in (StateBatch(4, 3, RecordState.ARCHIVED, 1), StateBatch(3, 3, RecordState.ACQUIRED, 1)):
        assert log.write(1, 0, wrong).error is ErrorCode.INVALID_REQUEST
    monkeypatch.setattr(coordinator, "MAX_BATCHES", 1)
    assert log.write(1, 0, DONE).error is ErrorCode.NONE
    assert log.write(1, 0, DONE._replace(first=9, last=9)).error is ErrorCode.INVALID_REQUEST
    assert log.write(1, 5, DONE._replace(first=9, last=9)).error is ErrorCode.NONE
    monkeypatch.setattr(coordinator, "MAX_STATES", 1)
    other = KEY._replace(partition=1)
    assert log.do(log.shard.read(other, 0, NOW, TICKET)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert log.do(log.shard.initialize(other, 0, 0, NOW, TICKET)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_other_records_are_counted() -> None:
    log = Log()
    log.read(1)
    for key, value in ((b"\0\7", b""), (b"\0", b""), (log.records[0].key, b"\0\1"), (log.records[0].key, b"\0\0")):
        log.shard.apply(CoordinatorRecord(key, value), None, NOW)
    assert dict(log.shard.skipped) == {"key": 1, "damaged": 2, "snapshot value": 1}
    assert list(log.shard.metric_parts()) == [{"share_partitions": 1.0, "skipped_records": 4.0}]


PRODUCER = 7, 3


def in_transaction(log: Log, *batches: StateBatch) -> StateAnswer:
    result = log.shard.write(ShareWrite(KEY, 0, 1, 3, -1, batches), NOW, TICKET, PRODUCER)
    assert result.producer == (PRODUCER if result.records else None)
    for record in result.records:
        log.shard.apply(record, PRODUCER, NOW)
    assert isinstance(result.response, StateAnswer)
    return result.response


@pytest.mark.parametrize("commit", [True, False])
def test_what_is_written_in_a_transaction_counts_with_its_commit(commit: bool) -> None:
    log = Log()
    log.read(1)
    before = log.state
    assert in_transaction(log, DONE).error is ErrorCode.NONE
    assert log.state == before, "until it ends nothing has changed"
    for busy in (log.read(2), log.write(1, 9), log.do(log.shard.delete(KEY, NOW, TICKET))):
        assert busy.error is ErrorCode.CONCURRENT_TRANSACTIONS, "what comes between would be lost, or not be in it"
    assert log.do(log.shard.initialize(KEY, 1, 9, NOW, TICKET)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert in_transaction(log, DONE).error is ErrorCode.NONE, "asked again"
    log.shard.apply_marker(8, 0, True, NOW)
    assert log.write(1, 9).error is ErrorCode.CONCURRENT_TRANSACTIONS, "another producer's end"
    log.shard.apply_marker(PRODUCER[0], PRODUCER[1], commit, NOW)
    assert (log.state == before) is not commit
    assert log.state.batches == ((DONE,) if commit else ())
    assert log.read(2).error is ErrorCode.NONE


def test_a_coordinator_that_loads_waits_for_the_end_of_a_transaction() -> None:
    log = Log()
    log.read(1)
    (record,) = log.shard.write(ShareWrite(KEY, 0, 1, 3, -1, (DONE,)), NOW, TICKET, PRODUCER).records
    again = Log()
    again.shard.apply(log.records[0], None, NOW)
    again.shard.apply(record, PRODUCER, NOW)
    assert again.read(2).error is ErrorCode.CONCURRENT_TRANSACTIONS
    again.shard.apply_marker(*PRODUCER, True, NOW)
    assert again.read(2).state.batches == (DONE,)
