"""Transcripts of one sink: drivers begin, tasks enlist and write, one commit counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.txn import sinks
from fleetlog.txn.batches import BatchFence, BatchMember, MemberMarker, SinkBatch
from fleetlog.txn.commands import Cancel, CoordinatorRecord, Schedule, WriteMarkers
from fleetlog.txn.coordinator import Producer
from fleetlog.txn.records import RecordError, decode_transaction, encode_transaction, encode_transaction_key
from fleetlog.txn.sinks import BatchCommitRequest
from fleetlog.txn.states import TransactionState
from fleetlog.txn.transaction import Transaction
from fleetlog.wire.errors import ErrorCode as E
from tests.txn.machine import A, B, Machine

SINK, QUERY = "orders", "query-1"


class Sink(Machine):
    """A shard with one sink, spoken to as drivers and tasks do."""

    @property
    def sink(self) -> Transaction:
        return self.shard.transactions[SINK]

    @property
    def batch(self) -> SinkBatch:
        assert self.sink.batch is not None
        return self.sink.batch

    def begin(self, timeout_ms: int = 60_000, sink: str = SINK) -> Any:
        return self.perform(sinks.begin_batch(self.shard, sink, timeout_ms, self.fresh, self.now))

    def driver(self) -> Producer:
        answer = self.begin()
        while answer.error is E.CONCURRENT_TRANSACTIONS:
            self.finish()
            answer = self.begin()
        assert answer.error is E.NONE
        return Producer(answer.producer_id, answer.producer_epoch)

    def enlist(self, driver: Producer, *counts: int) -> list[Any]:
        answers = self.perform(sinks.enlist_members(self.shard, SINK, driver, counts or (1,), self.fresh, self.now))
        assert isinstance(answers, list)
        return answers

    def members(self, driver: Producer, count: int = 1) -> tuple[BatchMember, ...]:
        (answer,) = self.enlist(driver, count)
        assert answer.error is E.NONE
        return tuple(answer.members)

    def write(self, member: BatchMember, *partitions: Any) -> E:
        answer = self.perform(self.shard.add_partitions(SINK, Producer(*member), partitions or (A,), 2, self.now))
        error: E = answer.error
        return error

    def commit(
        self, driver: Producer, batch_id: int, *winners: BatchMember, query: str = QUERY, digest: str = ""
    ) -> Any:
        request = BatchCommitRequest(query, batch_id, digest, frozenset(winners))
        return self.perform(sinks.commit_batch(self.shard, SINK, driver, request, self.now))

    def abort(self, driver: Producer) -> E:
        error: E = self.perform(sinks.abort_batch(self.shard, SINK, driver, self.now)).error
        return error

    def finish(self) -> None:
        """All markers are written."""
        self.perform(self.shard.on_markers_written(SINK, self.sink.producer_id, self.sink.producer_epoch, self.now))

    def perform_record(self, t: Transaction) -> None:
        """Put a state into the log that would take long to reach."""
        record = CoordinatorRecord(encode_transaction_key(SINK), encode_transaction(t))
        self.log.append(record)
        self.shard.apply(record, None, self.now)

    def whole_batch(self, batch_id: int, count: int = 2) -> tuple[BatchMember, ...]:
        driver = self.driver()
        members = self.members(driver, count)
        for member in members:
            assert self.write(member) is E.NONE
        assert self.commit(driver, batch_id, *members).error is E.NONE
        self.finish()
        return members


@pytest.fixture
def m() -> Sink:
    return Sink()


def test_a_batch_from_begin_to_markers(m: Sink) -> None:
    driver = m.driver()
    first, second, loser = m.members(driver, 3)
    assert len({first.producer_id, second.producer_id, loser.producer_id, driver.producer_id}) == 4
    assert m.write(first, A) is m.write(second, A, B) is m.write(loser, B) is E.NONE
    m.advance(10)
    answer = m.commit(driver, 0, first, second, digest="d")
    assert (answer.error, answer.already) == (E.NONE, False)
    assert answer.fence == BatchFence(QUERY, 0, "d", m.now.wall_ms)
    cancel, markers = m.effects
    assert isinstance(cancel, Cancel)
    assert isinstance(markers, WriteMarkers)
    assert markers.partitions == (A, B)
    assert markers.transaction_version == 2
    assert set(markers.markers) == {
        MemberMarker(first.producer_id, 1, True),
        MemberMarker(second.producer_id, 1, True),
        MemberMarker(loser.producer_id, 1, False),
    }
    assert m.sink.state is TransactionState.PREPARE_COMMIT
    m.finish()
    assert (m.sink.state, m.batch.members, m.batch.winners) == (TransactionState.COMPLETE_COMMIT, (), ())
    assert m.begin().fence == answer.fence


def test_slots_are_used_again_with_bumped_epochs_and_only_after_the_markers(m: Sink) -> None:
    before = m.whole_batch(0)
    driver = m.driver()
    assert m.members(driver, 2) == tuple(BatchMember(b.producer_id, 1) for b in sorted(before))
    (third,) = m.members(driver)
    assert third.epoch == 0
    assert m.commit(driver, 1).error is E.NONE
    assert m.batch.slots == (), "no markers are written twice, but no batch may come between them either"
    assert m.begin().error is E.CONCURRENT_TRANSACTIONS
    m.finish()
    assert len(m.batch.slots) == 3


def test_a_slot_whose_epochs_are_used_up_goes(m: Sink) -> None:
    m.whole_batch(0, 1)
    worn = replace(m.sink, batch=replace(m.batch, slots=(BatchMember(m.batch.slots[0].producer_id, 32766),)))
    m.perform_record(worn)
    driver = m.driver()
    (member,) = m.members(driver)
    assert member.epoch == 32766
    assert m.commit(driver, 1, member).error is E.NONE
    m.finish()
    assert m.batch.slots == ()


def test_many_requests_become_one_record(m: Sink) -> None:
    driver = m.driver()
    records = len(m.log)
    answers = m.enlist(driver, 1, 2, 1)
    assert [len(a.members) for a in answers] == [1, 2, 1]
    assert len({member for a in answers for member in a.members}) == 4
    assert len(m.log) == records + 1
    assert m.effects == [Schedule(m.shard.timeout_timer(SINK), 60_000)]
    m.enlist(driver)
    assert m.effects == [], "only the first members begin the batch's time"


def test_an_older_driver_can_do_nothing(m: Sink) -> None:
    old = m.driver()
    (zombie,) = m.members(old)
    m.write(zombie)
    assert m.begin().error is E.CONCURRENT_TRANSACTIONS
    assert isinstance(m.effects[-1], WriteMarkers)
    assert all(not marker.commit for marker in m.effects[-1].markers)
    assert m.write(zombie) is E.PRODUCER_FENCED or m.sink.state is TransactionState.PREPARE_ABORT
    new = m.driver()
    assert m.enlist(old)[0].error is E.PRODUCER_FENCED
    assert m.commit(old, 0, zombie).error is E.PRODUCER_FENCED
    assert m.abort(old) in (E.PRODUCER_FENCED, E.NONE)
    assert m.write(zombie) is E.PRODUCER_FENCED
    (member,) = m.members(new)
    assert member == BatchMember(zombie.producer_id, zombie.epoch + 1)
    assert m.write(zombie) is E.PRODUCER_FENCED
    assert m.commit(new, 0, member).error is E.NONE


def test_a_retried_commit_gets_the_same_answer(m: Sink) -> None:
    driver = m.driver()
    (member,) = m.members(driver)
    m.write(member)
    first = m.commit(driver, 0, member)
    again = m.commit(driver, 0, member)
    assert (again.error, again.fence) == (E.NONE, first.fence)
    m.finish()
    late = m.commit(driver, 0, member)
    assert (late.error, late.already) == (E.NONE, True)
    assert m.abort(driver) is E.INVALID_TXN_STATE, "it is committed: an abort after a lost answer is no abort"


def test_a_replayed_batch_is_not_committed_twice(m: Sink) -> None:
    m.whole_batch(0)
    driver = m.driver()
    (member,) = m.members(driver)
    m.write(member)
    answer = m.commit(driver, 0, member)
    assert (answer.error, answer.already) == (E.NONE, True)
    assert m.sink.state is TransactionState.PREPARE_ABORT, "what was written once more must not count"
    assert not any(marker.commit for marker in m.effects[-1].markers)  # type: ignore[union-attr]
    m.finish()
    assert m.batch.fence is not None
    assert m.batch.fence.batch_id == 0


@pytest.mark.parametrize(
    ("query", "batch_id", "digest", "says"),
    [
        ("query-2", 1, "", "two queries with one sink"),
        ("query-2", 0, "", "two queries with one sink"),
        (QUERY, 2, "", "does not follow batch 0"),
        (QUERY, 0, "other rows", "other content"),
    ],
)
def test_what_does_not_follow_the_fence_is_refused(m: Sink, query: str, batch_id: int, digest: str, says: str) -> None:
    m.whole_batch(0)
    driver = m.driver()
    (member,) = m.members(driver)
    answer = m.commit(driver, batch_id, member, query=query, digest=digest)
    assert answer.error is E.FENCE_CONFLICT
    assert says in answer.message
    assert m.sink.state is TransactionState.ONGOING
    assert m.abort(driver) is E.NONE


def test_winners_must_be_members(m: Sink) -> None:
    driver = m.driver()
    (member,) = m.members(driver)
    stranger = BatchMember(member.producer_id, member.epoch + 1)
    assert m.commit(driver, 0, member, stranger).error is E.INVALID_TXN_STATE
    assert m.commit(driver, 0, member).error is E.NONE


def test_a_batch_without_rows_sets_the_fence(m: Sink) -> None:
    driver = m.driver()
    assert m.commit(driver, 0).error is E.NONE
    m.finish()
    assert m.batch.fence == BatchFence(QUERY, 0, "", m.now.wall_ms)


def test_an_abort_may_be_repeated(m: Sink) -> None:
    driver = m.driver()
    assert m.abort(driver) is E.NONE
    m.members(driver)
    assert m.abort(driver) is E.NONE
    assert m.abort(driver) is E.NONE
    m.finish()
    assert m.abort(driver) is E.NONE
    assert m.enlist(driver)[0].error is E.PRODUCER_FENCED


def test_time_runs_out_without_heartbeats_of_the_driver(m: Sink) -> None:
    driver = m.driver()
    m.members(driver)
    timer = m.shard.timeout_timer(SINK)
    assert m.perform(sinks.batch_heartbeat(m.shard, SINK, driver, m.now)).error is E.NONE
    assert m.effects == [Schedule(timer, 60_000)]
    m.perform(m.shard.on_timer(timer, m.now))
    assert m.sink.state is TransactionState.PREPARE_ABORT
    assert m.perform(sinks.batch_heartbeat(m.shard, SINK, driver, m.now)).error is E.PRODUCER_FENCED
    m.finish()
    assert m.commit(driver, 0).error is E.PRODUCER_FENCED


def test_ids_belong_to_one_kind_of_producer(m: Sink) -> None:
    m.driver()
    assert m.init(name=SINK).error is E.INVALID_REQUEST
    ordinary = m.init(name="app")
    assert m.begin(sink="app").error is E.NOT_A_SINK
    other = Producer(ordinary.producer_id, 0)
    assert m.perform(sinks.batch_heartbeat(m.shard, "app", other, m.now)).error is E.NOT_A_SINK
    assert m.begin(sink="").error is E.INVALID_REQUEST
    assert m.begin(timeout_ms=0).error is E.INVALID_TRANSACTION_TIMEOUT


def test_a_fence_never_expires(m: Sink) -> None:
    m.whole_batch(0)
    m.advance(10 * 365 * 24 * 3_600_000)
    names = [e.name for e in m.shard.on_timer("sweep", m.now).effects if isinstance(e, Schedule)]
    assert names == ["sweep"]


def test_an_operator_moves_the_fence(m: Sink) -> None:
    def reset(expected: str, fence: tuple[str, int] | None) -> E:
        error: E = m.perform(sinks.reset_sink_fence(m.shard, SINK, expected, fence, m.now)).error
        return error

    assert reset("", None) is E.TRANSACTIONAL_ID_NOT_FOUND
    m.whole_batch(4)
    driver = m.driver()
    assert reset("query-2", None) is E.FENCE_CONFLICT
    m.members(driver)
    assert reset(QUERY, None) is E.INVALID_TXN_STATE
    m.abort(driver)
    assert reset(QUERY, None) is E.CONCURRENT_TRANSACTIONS
    m.finish()
    assert reset(QUERY, ("query-2", 7)) is E.NONE
    driver = m.driver()
    assert m.commit(driver, 8, query="query-2").error is E.NONE


def test_a_sink_whose_epochs_are_used_up_continues_under_another_id(m: Sink) -> None:
    m.whole_batch(0)
    m.perform_record(replace(m.sink, producer_epoch=32766))
    before = m.sink.producer_id
    driver = m.driver()
    assert driver.producer_id != before
    assert m.batch.fence is not None
    assert m.commit(driver, 1).error is E.NONE


def test_a_coordinator_that_takes_over_continues(m: Sink) -> None:
    driver = m.driver()
    members = m.members(driver, 2)
    m.write(members[0])
    m.advance(50_000)
    effects = m.restart()
    assert Schedule(m.shard.timeout_timer(SINK), 60_000) in effects, "heartbeats are not in the log: time starts anew"
    assert m.write(members[1], B) is E.NONE
    m.commit(driver, 0, members[0])
    sent = m.effects[-1]
    (resumed,) = (e for e in m.restart() if isinstance(e, WriteMarkers))
    assert resumed == sent
    m.finish()
    assert m.commit(driver, 0, members[0]).already


_MEMBERS = st.lists(st.builds(BatchMember, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1)), max_size=5).map(tuple)
_BATCHES = st.builds(
    SinkBatch,
    members=_MEMBERS,
    slots=_MEMBERS,
    winners=_MEMBERS,
    fence=st.none()
    | st.builds(BatchFence, st.text(max_size=9), st.integers(0, 2**63 - 1), st.text(max_size=9), st.just(5)),
)


@given(_BATCHES, st.integers(0, 400))
def test_records_say_what_was_written_or_that_they_are_damaged(batch: SinkBatch, cut: int) -> None:
    t = Transaction(7, 3, 60_000, TransactionState.ONGOING, frozenset({A}), 1, 2, 6, -1, 2, batch)
    data = encode_transaction(t)
    assert decode_transaction(data) == t
    try:
        decode_transaction(data[: min(cut, len(data) - 1)])
    except RecordError:
        pass
    else:
        raise AssertionError("a record that was cut off passed")
