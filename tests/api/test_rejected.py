"""What follows on a batch that was rejected is rejected with the same message."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from fleetlog._native.batch import BatchHeader, parse_header
from fleetlog.brokers.log import Origin
from fleetlog.brokers.log.disk.failures import DiskFull
from fleetlog.brokers.log.producers.rejected import MAX_PRODUCERS, REMEMBERED_MS, BeforeLeading, RejectedBatches
from fleetlog.txn.verification import Question
from fleetlog.wire.errors import ErrorCode as E
from fleetlog.wire.types import TopicPartition
from tests.support.produce_runs import answers, start
from tests.support.producing import TRANSACTIONAL, answer, request
from tests.support.stage import ME, OTHER, Stage

FULL, FEW, GAP, OK = E.KAFKA_STORAGE_ERROR, E.NOT_ENOUGH_REPLICAS, E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.NONE


def no_room(*_: Any) -> None:
    raise DiskFull("t-0", "no space left")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def header(stage: Stage, sequence: int, producer: int = 7, epoch: int = 0) -> BatchHeader:
    batch = stage.batch(1, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return parse_header(batch)


@pytest.mark.parametrize("error", [FULL, FEW, E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_NOT_AVAILABLE])
def test_a_gap_behind_a_refused_batch_is_no_gap(stage: Stage, error: E) -> None:
    away = RejectedBatches()
    assert away.answer(header(stage, 4), error, 0) is error
    assert away.answer(header(stage, 5), GAP, 1) is error
    assert away.answer(header(stage, 6), GAP, 2) is error
    assert away.answer(header(stage, 4), OK, 3) is OK
    assert away.answer(header(stage, 6), GAP, 4) is GAP, "the first has come: this gap is real"


def test_other_gaps_stay_gaps(stage: Stage) -> None:
    away = RejectedBatches()
    away.answer(header(stage, 4), FULL, 0)
    assert away.answer(header(stage, 5, producer=8), GAP, 1) is GAP
    assert away.answer(header(stage, 3), GAP, 1) is GAP, "before it"
    assert away.answer(header(stage, 5), E.INVALID_PRODUCER_EPOCH, 1) is E.INVALID_PRODUCER_EPOCH
    assert away.answer(header(stage, 5, epoch=1), GAP, 1) is GAP, "another epoch"
    assert away.answer(header(stage, 5), GAP, 2) is GAP, "and the old one is over"


def test_it_is_not_waited_for_for_ever(stage: Stage) -> None:
    away = RejectedBatches()
    away.answer(header(stage, 4), FULL, 0)
    assert away.answer(header(stage, 5), GAP, REMEMBERED_MS) is FULL
    assert away.answer(header(stage, 5), GAP, REMEMBERED_MS + 1) is GAP


def test_memory_is_bounded(stage: Stage) -> None:
    away = RejectedBatches()
    for producer in range(MAX_PRODUCERS + 5):
        away.answer(header(stage, 4, producer), FULL, 0)
    assert away.answer(header(stage, 5, 0), GAP, 1) is GAP, "forgotten"
    assert away.answer(header(stage, 5, 5), GAP, 1) is FULL


def test_too_few_replicas_and_then_enough_between_two_batches(stage: Stage) -> None:
    def produce(sequence: int, acks: int) -> E:
        batch = stage.batch(1, producer_id=7, producer_epoch=0, base_sequence=sequence)
        return E(answer(stage, 9, request(("t", 0, batch), acks=acks))[0].error_code)

    config = {"min.insync.replicas": "2"}
    stage.topic("t", replicas=(ME, OTHER), isr=(ME,), **config)
    assert [produce(0, acks=1), produce(1, acks=-1)] == [OK, FEW]
    stage.topic("t", replicas=(ME, OTHER), isr=(ME, OTHER), epoch=1, **config)
    assert produce(2, acks=-1) is FEW
    assert [produce(1, acks=1), produce(2, acks=1)] == [OK, OK]
    assert produce(4, acks=1) is GAP


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_gap_behind_batches_refused_before_this_broker_led_is_no_gap(stage: Stage, policy: str) -> None:
    def produce(sequence: int, epoch: int = 0) -> E:
        batch = stage.batch(3, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        return E(answer(stage, 9, request(("t", 0, batch), acks=1))[0].error_code)

    config: dict[str, Any] = {"replicas": (ME, OTHER), "isr": (ME, OTHER), "cleanup.policy": policy}
    stage.topic("t", leader=ME, epoch=0, **config)
    assert produce(0) is OK
    stage.topic("t", leader=OTHER, epoch=1, **config)
    assert [produce(0), produce(3)] == [E.NOT_LEADER_OR_FOLLOWER] * 2, "its answer was lost, so it comes again"
    stage.topic("t", leader=ME, epoch=2, **config)
    assert produce(6) is E.NOT_LEADER_OR_FOLLOWER, "a new producer epoch would repeat what is in the log"
    assert [produce(0), produce(3), produce(6)] == [OK, OK, OK]
    assert stage.partition("t").log.log_end_offset == 9, "the first one was a duplicate"
    assert not stage.replicas.before_leading.first
    assert produce(12) is GAP, "this gap is real"


def test_a_newer_epoch_ends_the_wait_for_what_came_before_this_broker_led(stage: Stage) -> None:
    early, tp = BeforeLeading(), TopicPartition("t", 0)
    batch = memoryview(stage.batch(1, producer_id=7, producer_epoch=3, base_sequence=4))
    early.refused(tp, batch, E.NOT_LEADER_OR_FOLLOWER, 0)
    assert early.answer(tp, header(stage, 9, epoch=2), GAP, 1) is GAP
    assert early.answer(tp, header(stage, 9, epoch=2), OK, 1) is OK
    assert early.answer(tp, header(stage, 3, epoch=3), OK, 1) is OK, "it was sent before the refused one"
    assert early.first
    assert early.answer(tp, header(stage, 0, epoch=4), OK, 1) is OK
    assert not early.first


def test_a_late_batch_of_an_older_epoch_ends_no_wait(stage: Stage) -> None:
    away = RejectedBatches()
    away.answer(header(stage, 4, epoch=1), FULL, 0)
    fenced = E.INVALID_PRODUCER_EPOCH
    assert away.answer(header(stage, 9, epoch=0), fenced, 1) is fenced
    assert away.answer(header(stage, 5, epoch=1), GAP, 2) is FULL


@pytest.mark.parametrize("known", [True, False])
def test_what_a_leader_refused_while_it_meant_to_resign_is_not_overtaken(stage: Stage, known: bool) -> None:
    def produce(sequence: int) -> E:
        batch = stage.batch(3, producer_id=7, producer_epoch=0, base_sequence=sequence)
        return E(answer(stage, 9, request(("t", 0, batch), acks=1))[0].error_code)

    stage.topic("t", replicas=(ME, OTHER), isr=(ME, OTHER))
    partition = stage.partition("t")
    if known:
        assert produce(0) is OK
    end = partition.log.log_end_offset
    assert partition.in_sync.abdicate() is not None
    assert produce(end) is E.NOT_LEADER_OR_FOLLOWER
    _, proposed = stage.proposals[-1]
    partition.in_sync.proposal_refused(proposed)
    assert produce(end + 3) is E.NOT_LEADER_OR_FOLLOWER, "the first has to come first"
    assert partition.log.log_end_offset == end
    assert [produce(end), produce(end + 3)] == [OK, OK]
    assert not partition.order.rejected.first


def test_a_new_producers_second_batch_waits_for_one_to_a_topic_id_that_was_unknown(stage: Stage) -> None:
    topic_id = uuid.uuid4()

    def produce(sequence: int) -> E:
        batch = stage.batch(1, producer_id=7, producer_epoch=0, base_sequence=sequence)
        return E(answer(stage, 13, request((topic_id, 0, batch), acks=1))[0].error_code)

    assert produce(0) is E.UNKNOWN_TOPIC_ID
    stage.topic("t", topic_id=topic_id)
    assert produce(1) is E.UNKNOWN_TOPIC_ID
    assert [produce(0), produce(1)] == [OK, OK]
    assert not stage.replicas.before_leading.first


@pytest.mark.parametrize("refused", ["not led", "unknown", "no room", "too few"])
def test_a_new_producers_second_batch_does_not_overtake_its_first(
    stage: Stage, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def produce(sequence: int, producer: int = 7, epoch: int = 0, acks: int = 1) -> E:
        batch = stage.batch(1, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        return E(answer(stage, 9, request(("t", 0, batch), acks=acks))[0].error_code)

    config = {"min.insync.replicas": "2"}
    if refused != "unknown":
        leader = OTHER if refused == "not led" else ME
        stage.topic(
            "t", replicas=(ME, OTHER), leader=leader, isr=(ME,) if refused == "too few" else (ME, OTHER), **config
        )
    with monkeypatch.context() as full:
        if refused == "no room":
            full.setattr(type(stage.partition("t").log.segments.active.log), "write_run", no_room)
        first = produce(0, acks=-1)
    assert first is {"not led": E.NOT_LEADER_OR_FOLLOWER, "unknown": E.UNKNOWN_TOPIC_OR_PARTITION}.get(
        refused, FULL if refused == "no room" else FEW
    )
    stage.topic("t", replicas=(ME, OTHER), leader=ME, isr=(ME, OTHER), epoch=1, **config)
    assert produce(1) is first, "the first has to come first"
    log = stage.partition("t").log
    assert log.log_end_offset == 0
    assert produce(5, producer=8) is OK, "the records of another one may have been deleted"
    assert [produce(0), produce(1)] == [OK, OK]
    assert log.log_end_offset == 3
    assert not stage.replicas.before_leading.first
    assert not stage.partition("t").order.rejected.first


def test_a_batch_before_this_broker_led_is_not_waited_for_for_ever(stage: Stage) -> None:
    early, tp = BeforeLeading(), TopicPartition("t", 0)

    def batch(sequence: int, producer: int = 7) -> memoryview:
        return memoryview(stage.batch(1, producer_id=producer, producer_epoch=0, base_sequence=sequence))

    early.refused(tp, batch(3), E.NOT_LEADER_OR_FOLLOWER, 0)
    early.refused(tp, batch(5), E.NOT_LEADER_OR_FOLLOWER, 0)
    early.refused(tp, memoryview(b"no batch"), E.NOT_LEADER_OR_FOLLOWER, 0)
    old = stage.batch(1, producer_id=7, producer_epoch=-1, base_sequence=1)
    early.refused(tp, memoryview(old), E.NOT_LEADER_OR_FOLLOWER, 0)
    assert early.overtaken(tp, parse_header(batch(5)), REMEMBERED_MS) is E.NOT_LEADER_OR_FOLLOWER
    assert early.overtaken(TopicPartition("t", 1), parse_header(batch(5)), 1) is OK
    assert early.overtaken(tp, parse_header(batch(5)), REMEMBERED_MS + 1) is OK
    early.expire(REMEMBERED_MS + 1)
    assert not early.first
    for producer in range(MAX_PRODUCERS + 5):
        early.refused(tp, batch(3, producer), E.NOT_LEADER_OR_FOLLOWER, 0)
    assert len(early.first) == MAX_PRODUCERS


def test_a_transaction_that_cannot_be_verified_and_then_can(stage: Stage) -> None:
    said = [E.COORDINATOR_LOAD_IN_PROGRESS]

    def verify(question: Question) -> dict[TopicPartition, E]:
        return dict.fromkeys(question.partitions, said.pop() if said else OK)

    stage.verify_by(verify)
    stage.topic("t")

    def produce(sequence: int) -> E:
        batch = stage.batch(base_sequence=sequence, **TRANSACTIONAL)
        return E(answer(stage, 9, request(("t", 0, batch), transactional_id="tx"))[0].error_code)

    assert [produce(0), produce(1)] == [FEW, FEW]
    assert [produce(0), produce(1)] == [OK, OK]


def test_a_full_disk_under_a_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.topic("t", replicas=(ME, OTHER))
    partition = stage.partition("t")
    file = type(partition.log.segments.active.log)

    def batches(*sequences: int) -> list[bytes]:
        return [stage.batch(1, producer_id=7, producer_epoch=0, base_sequence=sequence) for sequence in sequences]

    def run(*sequences: int) -> list[tuple[int, int, int]]:
        return [told[1] for told in answers(start(stage, *batches(*sequences), acks=1).response)]

    partition.append(bytearray(batches(0)[0]), acks=1, origin=Origin.CLIENT)
    known = dict(partition.log.producers.entries)
    with monkeypatch.context() as full:
        full.setattr(file, "write_run", no_room)
        assert run(1, 2, 3) == [FULL, FULL, FULL]
    assert partition.log.producers.entries == known
    assert run(2) == [FULL], "out of order, and the first has to come first"
    found = answer(stage, 9, request(("t", 0, batches(2)[0]), acks=1))
    assert found[0].error_code == FULL, "the first has to come first"
    assert run(1, 2) == [OK, OK]
    assert not partition.order.rejected.first
    found = answer(stage, 9, request(("t", 0, batches(4)[0]), acks=1))
    assert found[0].error_code == GAP, "this gap is real"
