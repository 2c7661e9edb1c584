"""Produce requests that came together: appended by one write, with the outcome of one after the other."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import ClientConnection, Context, DelayedResponse, Done
from fleetlog.brokers.api.produce import execute_produce, handle_produce
from fleetlog.brokers.log import Origin
from fleetlog.brokers.log.append import Appender
from fleetlog.txn.verification import Question
from fleetlog.wire import hot
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.logs import aborted_entries
from tests.support.produce_runs import (
    KINDS,
    TRANSACTIONAL,
    VERSION,
    Broker,
    Producing,
    all_is_well,
    answers,
    batch,
    frame,
    meanwhile,
    start,
    told,
)
from tests.support.stage import ME, OTHER, Stage


def test_what_comes_together_is_appended_together(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.stage.topic("t", 2)
    broker.ask(frame(batch(), 0), 1)  # the first of a segment goes the slow path
    broker.runs.clear()
    sent = [frame(batch(count), count) for count in (1, 2, 3)]
    assert told(broker.ask(b"".join(sent), 3)) == [(1, 0, 1), (2, 0, 2), (3, 0, 4)]
    assert broker.runs == [len(b"".join(sent))]
    metrics = broker.stage.services.metrics
    assert (metrics.request_seconds.labels("Produce").value, broker.stage.counted.total("records_in")) == (4, 7)
    assert sum(metrics.request_seconds.labels("Produce").counts) == 4
    broker.close()


def test_a_frame_that_is_still_coming_waits_for_its_rest(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.stage.topic("t")
    broker.ask(frame(batch(), 0), 1)
    sent = [frame(batch(value=b"x" * 500), number) for number in range(1, 5)]
    cut = len(sent[0]) * 2 + 300
    assert told(broker.ask(b"".join(sent)[:cut], 2)) == [(1, 0, 1), (2, 0, 2)]
    assert told(broker.ask(b"".join(sent)[cut:], 2)) == [(3, 0, 3), (4, 0, 4)]
    assert broker.server.budget.used == 0
    broker.close()


def _outcome(broker: Broker, kinds: list[str], version: int, directory: Path) -> list[Any]:
    """Everything that can be told apart afterwards."""
    client = Producing(version)
    found: list[Any] = []
    for between, together in itertools.groupby(kinds, lambda kind: kind in ("commit", "abort", "restart", "later")):
        if between:
            for kind in together:
                broker.stage.clock.now_ms += 700 * (kind == "later")
                meanwhile(broker, kind)
            continue
        sent = [client.request(kind, number) for number, kind in enumerate(together)]
        found.append(bytes(broker.client.ask(b"".join(sent), len(sent))))
        for log in [broker.stage.partition("t", index).log for index in (0, 1)]:
            producers = log.producers
            found.append(
                (log.log_end_offset, log.high_watermark, log.last_stable_offset, list(producers.entries.values()),
                 list(producers.open.items()), aborted_entries(log))
            )  # fmt: skip
    metrics = broker.stage.services.metrics
    produced = metrics.request_seconds.labels("Produce").value
    found.append((broker.stage.counted.total("records_in"), broker.stage.counted.total("bytes_in"), produced))
    for index in (0, 1):
        broker.stage.partition("t", index).log.close()
    kept = [path for path in sorted(directory.rglob("t-*/*")) if path.suffix in (".log", ".snapshot", ".txnindex")]
    return [*found, [(path.name, path.read_bytes()) for path in kept if path.stat().st_size]]


@given(st.lists(KINDS, min_size=1, max_size=40), st.sampled_from([9, 11, 12]), st.sampled_from(["700", "100000"]))
def test_the_outcome_is_that_of_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], version: int, segment: str
) -> None:
    ends: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        for runs in (True, False):
            directory = tmp_path_factory.mktemp("runs")
            broker = Broker(directory, runs=runs, **{"producer.id.expiration.ms": "1000"})
            broker.stage.verify_by(all_is_well)
            broker.stage.topic("t", 2, topic_id=uuid.UUID(int=7), segment_bytes=segment, max_message_bytes="800")
            if not runs:
                patch.setattr(Appender, "_ready", lambda *_: ([], 0))
            ends.append(_outcome(broker, kinds, version, directory))
            event(f"{sum(size > 0 for size in broker.runs)} runs")
            broker.close()
    for one, other in zip(*ends, strict=True):
        assert one == other


def test_sequences_that_come_together_are_appended_together(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.stage.verify_by(all_is_well)
    broker.stage.topic("t", 2)
    client = Producing(VERSION)
    for kinds in (["next", "next other"], ["txn", "txn other"]):
        broker.ask(b"".join(client.request(kind, number) for number, kind in enumerate(kinds)), 2)
        broker.runs.clear()
        sent = [client.request(kind, number) for number, kind in enumerate(kinds * 3)]
        assert {error for _, error, _ in told(broker.ask(b"".join(sent), 6))} == {0}
        assert broker.runs == [len(b"".join(sent))]
    assert broker.stage.partition("t").log.producers.has_open_transaction(TRANSACTIONAL, 0)
    meanwhile(broker, "commit")
    broker.runs.clear()
    sent = [client.request("txn", number) for number in range(3)]
    assert {error for _, error, _ in told(broker.ask(b"".join(sent), 3))} == {0}
    assert broker.runs == [len(b"".join(sent))], "the first is verified, and they stay together"
    assert broker.server.budget.used == 0
    broker.close()


# -- waiting ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    stage.topic("t", replicas=(ME, OTHER))
    stage.partition("t").append(bytearray(batch()), acks=1, origin=Origin.CLIENT)
    return stage


def test_all_are_answered_once_the_last_is_committed(stage: Stage) -> None:
    delayed = start(stage, batch(2), batch(1))
    assert isinstance(delayed, DelayedResponse)
    stage.fetched("t", OTHER, 3)
    assert not delayed.done
    stage.fetched("t", OTHER, 4)
    assert answers(delayed.response) == [(40, 0, 1), (41, 0, 3)]


def test_acks_1_does_not_wait_unless_the_lease_is_gone(stage: Stage) -> None:
    done = start(stage, batch(2), batch(1), acks=1)
    assert isinstance(done, Done)
    assert answers(done.response) == [(40, 0, 1), (41, 0, 3)]
    stage.lease = False
    assert isinstance(start(stage, batch(), batch(), acks=1), DelayedResponse)


def test_acks_1_waits_where_the_lease_is_waived(stage: Stage) -> None:
    stage.partition("t").waive_lease()
    delayed = start(stage, batch(2), acks=1)
    assert isinstance(delayed, DelayedResponse)
    stage.fetched("t", OTHER, 3)
    assert answers(delayed.response) == [(40, 0, 1)]


def test_time_is_up_for_those_that_are_not_committed(stage: Stage) -> None:
    delayed = start(stage, batch(2), batch(1))
    assert delayed.deadline_ms == 1000
    stage.fetched("t", OTHER, 3)
    delayed.expire()
    assert answers(delayed.response) == [(40, 0, 1), (41, ErrorCode.REQUEST_TIMED_OUT, 3)]
    stage.fetched("t", OTHER, 4)  # too late, and harmless


def test_partitions_wait_for_each_other_and_fail_by_themselves(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.topic("t", 2, replicas=(ME, OTHER))
    for index in (0, 1):
        stage.partition("t", index).append(bytearray(batch()), acks=1, origin=Origin.CLIENT)
    sent = [frame(batch(2), 1, index=0), frame(batch(3), 2, index=1), frame(batch(1), 3, index=0)]
    run = hot.decode_produce_run(memoryview(bytearray(b"".join(sent))), 0, sum(map(len, sent)), 3, 13, 99)
    assert run is not None
    (delayed,) = execute_produce(
        [run], [Context(stage.services, ClientConnection(1, "PLAINTEXT", "peer"), 0, VERSION, 1, "")]
    )
    assert isinstance(delayed, DelayedResponse)
    stage.fetched("t", OTHER, 4, 0)
    assert not delayed.done
    delayed.expire()
    assert answers(delayed.response) == [(1, 0, 1), (2, ErrorCode.REQUEST_TIMED_OUT, 1), (3, 0, 3)]


def test_a_lost_leadership_ends_the_wait_and_names_the_leader(stage: Stage) -> None:
    delayed = start(stage, batch(2), batch(1))
    stage.fetched("t", OTHER, 3)
    stage.topic("t", leader=OTHER, epoch=1, replicas=(ME, OTHER))
    assert answers(delayed.response) == [(40, 0, 1), (41, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    data = b"".join(delayed.response)
    second = data[4 + int.from_bytes(data[:4], "big") + 4 :]
    message = m.decode_response(0, VERSION, m.split_response(0, VERSION, second)[1])
    assert message.responses[0].partition_responses[0].current_leader.leader_id == OTHER
    assert [node.node_id for node in message.node_endpoints] == [OTHER]


def test_what_has_to_be_refused_is_answered_one_by_one(stage: Stage) -> None:
    stage.topic("t", replicas=(ME, OTHER), isr=(ME,), min_insync_replicas="2")
    few = start(stage, batch(), batch())
    assert answers(few.response) == [(40, ErrorCode.NOT_ENOUGH_REPLICAS, -1), (41, ErrorCode.NOT_ENOUGH_REPLICAS, -1)]
    assert answers(start(stage, batch(), acks=1).response) == [(40, 0, 1)]
    stage.topic("t", leader=OTHER, epoch=1, replicas=(ME, OTHER))
    for acks in (-1, 1):
        done = start(stage, batch(), acks=acks)
        assert answers(done.response) == [(40, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_a_request_with_the_same_partition_twice_is_answered_in_its_order(stage: Stage) -> None:
    request = hot.ProduceRequest(
        None, 1, 1000,
        [hot.ProducePart("t", None, index, memoryview(bytearray(data))) for index, data in
         ((0, batch(2)), (3, batch()), (0, b""), (0, batch(attributes=16)), (0, batch(3)))],
    )  # fmt: skip
    context = Context(stage.services, ClientConnection(1, "PLAINTEXT", "peer"), 0, VERSION, 40, "")
    done = handle_produce(request, context)
    assert isinstance(done, Done)
    message = m.decode_response(0, VERSION, b"".join(done.response.chunks))
    parts = [(part.index, part.error_code, part.base_offset) for topic in message.responses
             for part in topic.partition_responses]  # fmt: skip
    assert parts == [
        (0, 0, 1), (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1), (0, ErrorCode.INVALID_RECORD, -1),
        (0, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1), (0, 0, 3),
    ]  # fmt: skip


def test_what_waits_for_a_transactions_verification_is_counted(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.stage.topic("t", 2)
    asked: list[tuple[int, Any]] = []

    def verify(question: Question) -> dict[TopicPartition, ErrorCode]:
        asked.append((broker.server.budget.used, question.partitions))
        return dict.fromkeys(question.partitions, ErrorCode.NONE)

    broker.stage.verify_by(verify)
    client = Producing(VERSION)
    sent = [client.request(kind, number) for number, kind in enumerate(["txn", "txn", "txn other", "txn other", "txn"])]
    assert {error for _, error, _ in told(broker.ask(b"".join(sent), 5))} == {0}
    assert broker.runs == [len(b"".join(sent))]
    ((used, partitions),) = asked
    assert used == len(b"".join(sent)), "they are kept meanwhile"
    assert len(partitions) == 2, "one question for all of them"
    assert broker.server.budget.used == 0
    broker.close()


def test_without_room_in_the_budget_requests_that_may_be_kept_wait_one_by_one(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.stage.verify_by(all_is_well)
    broker.stage.topic("t", 2)
    client = Producing(VERSION)
    sent = [client.request("txn", number) for number in range(3)]
    budget = broker.server.budget
    budget.force(budget.limit - len(sent[0]))
    assert {error for _, error, _ in told(broker.ask(b"".join(sent), 3))} == {0}
    assert max(broker.runs) <= max(map(len, sent)), "each by itself"
    assert budget.used == budget.limit - len(sent[0])
    plain = [frame(batch(), number) for number in range(3)]
    broker.runs.clear()
    assert {error for _, error, _ in told(broker.ask(b"".join(plain), 3))} == {0}
    assert broker.runs == [len(b"".join(plain))], "what keeps nothing asks for nothing"
    broker.close()
