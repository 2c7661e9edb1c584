"""Produce against real logs: every version, every refusal, and what acks mean."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch, scan
from fleetlog.brokers.api import fetch_answers, produce
from fleetlog.brokers.api.base import CLOSE, DelayedResponse, Done
from fleetlog.brokers.api.produce import handle_produce
from fleetlog.brokers.log import MAX_EXPLAINED_RECORDS
from fleetlog.txn.verification import Ask, Question
from fleetlog.wire import hot
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.producing import TRANSACTIONAL, answer, request
from tests.support.stage import ME, OTHER, Stage, body_of

VERSIONS = range(APIS[0].lowest, APIS[0].max_version + 1)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture(params=["in one go", "in slices"], autouse=True)
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in slices":
        monkeypatch.setattr(produce, "LONG_PARTS", 0)
        monkeypatch.setattr(fetch_answers, "SLICE_PARTS", 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_appends_and_answers_offsets(stage: Stage, version: int) -> None:
    info = stage.topic("t", 2)
    name = info.id if version >= 13 else "t"
    for turn in range(3):
        found = answer(stage, version, request((name, 0, stage.batch(2)), (name, 1, stage.batch(1))))
        assert [(p.index, p.error_code, p.base_offset) for p in found] == [(0, 0, 2 * turn), (1, 0, turn)]
    assert stage.partition("t").log.high_watermark == 6


@pytest.mark.parametrize(("change", "error"), [
    (lambda s, t: (("nope", 0, s.batch()),), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (lambda s, t: (("t", 9, s.batch()),), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (lambda s, t: (("t", -1, s.batch()),), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (lambda s, t: ((uuid.uuid4(), 0, s.batch()),), ErrorCode.UNKNOWN_TOPIC_ID),
    (lambda s, t: (("__consumer_offsets", 0, s.batch()),), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (lambda s, t: (("t", 0, None),), ErrorCode.INVALID_RECORD),
    (lambda s, t: (("t", 0, b""),), ErrorCode.INVALID_RECORD),
    (lambda s, t: (("t", 0, b"\0" * 70),), ErrorCode.CORRUPT_MESSAGE),
    (lambda s, t: (("t", 0, s.batch()[:-1]),), ErrorCode.CORRUPT_MESSAGE),
    (lambda s, t: (("t", 0, s.batch() + s.batch()),), ErrorCode.INVALID_RECORD),
    (lambda s, t: (("t", 0, s.batch()[:-1] + b"!"),), ErrorCode.CORRUPT_MESSAGE),
    (lambda s, t: (("t", 0, s.batch(size=2_000_000)),), ErrorCode.MESSAGE_TOO_LARGE),
    (lambda s, t: (("t", 0, s.batch(attributes=16, producer_id=1, producer_epoch=0, base_sequence=0)),),
     ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
])  # fmt: skip
def test_what_is_wrong_with_a_partition_is_its_own_error(stage: Stage, change: Any, error: ErrorCode) -> None:
    info = stage.topic("t")
    stage.topic("__consumer_offsets")
    stage.topic("good")
    version = 13 if isinstance(change(stage, info)[0][0], uuid.UUID) else 9
    good = stage.metadata.topics["good"].id if version == 13 else "good"
    found = answer(stage, version, request(*change(stage, info), (good, 0, stage.batch())))
    assert [part.error_code for part in found] == [error, 0]
    assert stage.partition("t").log.log_end_offset == 0


def test_zstd_needs_version_7(stage: Stage) -> None:
    stage.topic("t")
    batch = stage.batch(attributes=4)
    assert answer(stage, 6, request(("t", 0, batch)))[0].error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_that_mean_nothing_are_refused(stage: Stage, acks: int) -> None:
    stage.topic("t")
    found = answer(stage, 9, request(("t", 0, stage.batch()), acks=acks))
    assert found[0].error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert stage.partition("t").log.log_end_offset == 0


def test_acks_0_has_no_answer_and_acks_1_does_not_wait(stage: Stage) -> None:
    stage.topic("t", replicas=(ME, OTHER))
    assert stage.start(handle_produce, 0, 9, request(("t", 0, stage.batch()), acks=0)) == Done(None)
    assert answer(stage, 9, request(("t", 0, stage.batch()), acks=1))[0].base_offset == 1
    assert stage.partition("t").log.high_watermark == 0
    assert stage.start(handle_produce, 0, 9, request(("nope", 0, stage.batch()), acks=0)) == Done(CLOSE)


@pytest.mark.parametrize("version", [9, 10, 13])
def test_another_leader_is_named_from_version_10_on(stage: Stage, version: int) -> None:
    info = stage.topic("t", leader=OTHER, epoch=4, replicas=(ME, OTHER))
    name = info.id if version >= 13 else "t"
    outcome = stage.start(handle_produce, 0, version, request((name, 0, stage.batch())))
    assert isinstance(outcome, Done)
    message = m.decode_response(0, version, body_of(outcome.response))
    part = message.responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= 10:
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (OTHER, 4)
        assert [(e.node_id, e.port, e.rack) for e in message.node_endpoints] == [(OTHER, 9092, "rack-2")]


def test_an_id_writes_into_its_own_topic_alone(stage: Stage) -> None:
    """The metadata cache knows a topic that was created again; the replica of the deleted one is still there."""
    old, new = stage.topic("t"), uuid.uuid4()
    image = stage.metadata.image
    image.topics["t"] = dataclasses.replace(old, id=new)
    image.topic_names[new] = image.topic_names.pop(old.id)
    outcome = stage.start(handle_produce, 0, 13, request((new, 0, stage.batch())))
    part = m.decode_response(0, 13, body_of(outcome.response)).responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert stage.partition("t").log.log_end_offset == 0


@pytest.mark.parametrize("acks", [-1, 1])
def test_without_its_lease_a_leader_promises_only_what_its_followers_have(stage: Stage, acks: int) -> None:
    stage.topic("t", replicas=(ME, OTHER))
    stage.lease = False
    delayed = stage.start(handle_produce, 0, 9, request(("t", 0, stage.batch()), acks=acks))
    assert isinstance(delayed, DelayedResponse), "another broker may lead by now"
    assert not delayed.done
    stage.fetched("t", OTHER, 1)
    assert delayed.done, "every possible successor has it"


def test_acks_1_waits_only_where_the_lease_was_waived(stage: Stage) -> None:
    stage.topic("t", 2, replicas=(ME, OTHER))
    stage.partition("t", 0).waive_lease()
    assert isinstance(stage.start(handle_produce, 0, 9, request(("t", 1, stage.batch()), acks=1)), Done)
    delayed = stage.start(handle_produce, 0, 9, request(("t", 0, stage.batch()), ("t", 1, stage.batch()), acks=1))
    assert isinstance(delayed, DelayedResponse), "another broker may lead partition 0 by now"
    stage.fetched("t", OTHER, 1, 0)
    assert delayed.done


def test_acks_all_waits_for_every_replica_in_sync(stage: Stage) -> None:
    stage.topic("t", 2, replicas=(ME, OTHER))
    delayed = stage.start(handle_produce, 0, 9, request(("t", 0, stage.batch(3)), ("t", 1, stage.batch(2))))
    assert isinstance(delayed, DelayedResponse)
    stage.fetched("t", OTHER, 2, 0)
    stage.fetched("t", OTHER, 2, 1)
    assert not delayed.done
    stage.fetched("t", OTHER, 3, 0)
    assert delayed.done
    message = m.decode_response(0, 9, body_of(delayed.response))
    assert [p.error_code for p in message.responses[0].partition_responses] == [0, 0]


def test_a_request_that_waits_keeps_nothing_of_the_frame(stage: Stage) -> None:
    stage.topic("t", replicas=(ME, OTHER))
    frame = bytearray(stage.batch(3))
    part = hot.ProducePart("t", None, 0, memoryview(frame))
    delayed = stage.start(handle_produce, 0, 9, hot.ProduceRequest(None, -1, 1000, [part]))
    assert isinstance(delayed, DelayedResponse)
    del part
    frame.extend(b"a frame with a view on it could not grow")
    stage.fetched("t", OTHER, 3)
    assert delayed.done


def test_acks_all_times_out_per_partition(stage: Stage) -> None:
    stage.topic("t", 2, replicas=(ME, OTHER))
    delayed = stage.start(
        handle_produce, 0, 9, request(("t", 0, stage.batch()), ("t", 1, stage.batch()), timeout_ms=50)
    )
    assert isinstance(delayed, DelayedResponse)
    assert delayed.deadline_ms == 50
    stage.fetched("t", OTHER, 1, 1)
    delayed.expire()
    message = m.decode_response(0, 9, body_of(delayed.response))
    assert [p.error_code for p in message.responses[0].partition_responses] == [ErrorCode.REQUEST_TIMED_OUT, 0]
    stage.fetched("t", OTHER, 1, 0)  # too late, and harmless


def test_a_lost_leadership_ends_the_wait(stage: Stage) -> None:
    stage.topic("t", replicas=(ME, OTHER))
    delayed = stage.start(handle_produce, 0, 10, request(("t", 0, stage.batch())))
    assert isinstance(delayed, DelayedResponse)
    stage.topic("t", leader=OTHER, epoch=1, replicas=(ME, OTHER))
    part = m.decode_response(0, 10, body_of(delayed.response)).responses[0].partition_responses[0]
    assert (part.error_code, part.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, OTHER)


def test_too_few_in_sync_refuse_acks_all_only(stage: Stage) -> None:
    stage.topic("t", replicas=(ME, OTHER), isr=(ME,), min_insync_replicas="2")
    assert answer(stage, 9, request(("t", 0, stage.batch())))[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert answer(stage, 9, request(("t", 0, stage.batch()), acks=1))[0].error_code == 0
    assert stage.partition("t").log.high_watermark == 0, "the high watermark stands still below min.insync.replicas"


def test_more_in_sync_wanted_than_there_are_replicas_is_accepted_as_kafka_does(stage: Stage) -> None:
    stage.topic("t", min_insync_replicas="3")
    assert answer(stage, 9, request(("t", 0, stage.batch())))[0].error_code == 0


def test_a_duplicate_gets_its_first_offset_again(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 5)
    batch = stage.batch(2, producer_id=9, producer_epoch=0, base_sequence=0)
    for _ in range(2):
        found = answer(stage, 9, request(("t", 0, batch)))
        assert (found[0].error_code, found[0].base_offset) == (0, 5)
    assert stage.partition("t").log.log_end_offset == 7


def test_a_bad_record_is_named(stage: Stage) -> None:
    stage.topic("t", message_timestamp_after_max_ms="10")
    batch = stage.batch(3, timestamp=stage.clock.now_ms + 9)  # 9, 10 and 11 ms ahead
    found = answer(stage, 8, request(("t", 0, batch)))[0]
    assert found.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [e.batch_index for e in found.record_errors] == [2]


def test_a_compacted_topic_names_the_records_without_a_key_and_takes_none(stage: Stage) -> None:
    stage.topic("t", cleanup_policy="compact")
    rows = [Record(-1, stage.clock.now_ms, key, b"v", ()) for key in (b"a", None, b"c", None)]
    found = answer(stage, 8, request(("t", 0, encode_batch(rows))))[0]
    assert found.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in found.record_errors] == [1, 3]
    assert "key" in found.record_errors[0].batch_index_error_message
    assert stage.partition("t").log.log_end_offset == 0


def test_a_request_names_so_many_bad_records_and_then_none_of_a_batch(stage: Stage) -> None:
    """Looking for them takes time, naming them bytes: both are bounded for the request as a whole."""
    parts = []
    for number in range(3):
        stage.topic(f"t{number}", message_timestamp_after_max_ms="10")
        batch = stage.batch(MAX_EXPLAINED_RECORDS // 2, timestamp=stage.clock.now_ms + 1_000_000)
        parts.append((f"t{number}", 0, batch))
    found = answer(stage, 8, request(*parts))
    assert [one.error_code for one in found] == [ErrorCode.INVALID_TIMESTAMP] * 3
    assert [len(one.record_errors) for one in found] == [MAX_EXPLAINED_RECORDS // 2] * 2 + [0]
    assert all(one.error_message for one in found)


@pytest.mark.parametrize(("version", "add"), [(9, False), (11, False), (12, True)])
def test_the_first_transactional_batch_is_verified_and_later_ones_are_not(
    stage: Stage, version: int, add: bool
) -> None:
    asked: list[Any] = []

    def verify(question: Question) -> dict[TopicPartition, ErrorCode]:
        asked.append(question)
        return dict.fromkeys(question.partitions, ErrorCode.NONE)

    stage.verify_by(verify)
    stage.topic("t")
    for sequence in range(3):
        batch = stage.batch(base_sequence=sequence, **TRANSACTIONAL)
        assert answer(stage, version, request(("t", 0, batch), transactional_id="tx"))[0].error_code == 0
    kind = Ask.ADD if add else Ask.VERIFY
    assert asked == [Question("tx", 9, 0, (TopicPartition("t", 0),), kind, abortable=True)]
    assert stage.partition("t").log.last_stable_offset == 0


def test_no_leader_without_its_lease_calls_a_batch_of_a_transaction_a_duplicate(stage: Stage) -> None:
    """The transaction may have been aborted at another leader, and its sequence be used again by the next one (a
    client of protocol 1 that gave an answer up): what this leader has is not what it is asked to append.
    """

    def verify(question: Question) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(question.partitions, ErrorCode.NONE)

    stage.verify_by(verify)
    stage.topic("t")
    stage.topic("plain")
    parts = [
        ("t", 0, stage.batch(base_sequence=0, **TRANSACTIONAL)),
        ("plain", 0, stage.batch(base_sequence=0, producer_id=9, producer_epoch=0)),
    ]
    for acks in (-1, 1):
        for lease, told in ((True, ErrorCode.NONE), (False, ErrorCode.NOT_LEADER_OR_FOLLOWER), (True, ErrorCode.NONE)):
            stage.lease = lease
            found = answer(stage, 9, request(*parts, acks=acks, transactional_id="tx"))
            assert [one.error_code for one in found] == [told, 0]
            assert [one.base_offset for one in found] == [0 if lease else -1, 0]
    assert stage.partition("t").log.log_end_offset == 1


def test_what_is_behind_a_batch_that_must_be_verified_waits_too(stage: Stage) -> None:
    """Also a batch that needs no verification, and where the partition is named again much later."""
    asked: list[Any] = []

    def verify(question: Question) -> dict[TopicPartition, ErrorCode]:
        asked.append(question.partitions)
        assert stage.partition("t").log.log_end_offset == 0
        assert stage.partition("t", 1).log.log_end_offset == 1
        return dict.fromkeys(question.partitions, ErrorCode.NONE)

    stage.verify_by(verify)
    stage.topic("t", 2)
    first, second = (stage.batch(base_sequence=sequence, **TRANSACTIONAL) for sequence in (0, 1))
    parts = [("t", 0, first), ("t", 1, stage.batch()), ("t", 0, stage.batch()), ("t", 0, second)]
    found = answer(stage, 9, request(*parts, transactional_id="tx"))
    assert [(one.index, one.error_code, one.base_offset) for one in found] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 0, 1),
        (0, 0, 2),
    ]
    assert asked == [(TopicPartition("t", 0),)]


@pytest.mark.parametrize(("version", "said", "told"), [
    (9, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
    (11, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
    (11, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
    (11, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
    (11, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
    (11, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
])  # fmt: skip
def test_a_refused_verification_appends_nothing(stage: Stage, version: int, said: ErrorCode, told: ErrorCode) -> None:
    def verify(question: Question) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(question.partitions, said)

    stage.verify_by(verify)
    stage.topic("t")
    stage.topic("plain")
    batch = stage.batch(base_sequence=0, **TRANSACTIONAL)
    found = answer(stage, version, request(("t", 0, batch), ("plain", 0, stage.batch()), transactional_id="tx"))
    assert [part.error_code for part in found] == [told, 0]
    assert stage.partition("t").log.log_end_offset == 0


@pytest.mark.parametrize(
    ("version", "told"), [(11, ErrorCode.NOT_ENOUGH_REPLICAS), (12, ErrorCode.CONCURRENT_TRANSACTIONS)]
)
def test_a_marker_between_question_and_append_makes_the_answer_void(
    stage: Stage, version: int, told: ErrorCode
) -> None:
    def verify(question: Question) -> dict[TopicPartition, ErrorCode]:
        stage.marker("t", 9, commit=False)  # the transaction is aborted meanwhile
        return dict.fromkeys(question.partitions, ErrorCode.NONE)

    stage.verify_by(verify)
    stage.topic("t")
    batch = stage.batch(base_sequence=0, **TRANSACTIONAL)
    found = answer(stage, version, request(("t", 0, batch), transactional_id="tx"))
    assert found[0].error_code == told, "it may come again"
    assert "try again" in found[0].error_message
    log = stage.partition("t").log
    assert log.last_stable_offset == log.log_end_offset, "nothing hangs"
    data = b"".join(piece.read() for piece in log.reader.read(0, 10_000, end_offset=log.log_end_offset).slices)
    assert {header.is_control for _, header in scan(data)} == {True}
