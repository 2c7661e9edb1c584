"""Fetch without a session, against real logs."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import DelayedResponse, Done
from fleetlog.brokers.api.fetch import handle_fetch
from fleetlog.brokers.log import Origin
from fleetlog.wire import hot
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from tests.support.fetching import part, request
from tests.support.stage import ME, OTHER, Stage, body_of, offsets_in

VERSIONS = range(APIS[1].lowest, APIS[1].max_version + 1)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def partitions(version: int, response: Any) -> list[Any]:
    message = m.decode_response(1, version, body_of(response))
    return [found for topic in message.responses for found in topic.partitions]


def fetch(stage: Stage, *parts: hot.FetchPart, version: int = 12, **fields: Any) -> list[Any]:
    outcome = stage.start(handle_fetch, 1, version, request(*parts, **fields))
    assert isinstance(outcome, Done)
    return partitions(version, outcome.response)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_returns_the_bytes_of_the_log(stage: Stage, version: int) -> None:
    info = stage.topic("t", 2)
    for _ in range(3):
        stage.append("t", 2)
    stage.append("t", index=1)
    name = info.id if version >= 13 else "t"
    first, second = fetch(stage, part(name, 2), part(name, 0, 1), version=version)
    assert offsets_in(first.records) == [2, 4]
    assert (first.error_code, first.high_watermark, first.last_stable_offset) == (0, 6, 6)
    assert first.aborted_transactions is None
    assert offsets_in(second.records) == [0]


def test_an_offset_inside_a_batch_returns_the_whole_batch(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t", 5)
    assert offsets_in(fetch(stage, part("t", 3))[0].records) == [0]


@pytest.mark.parametrize(("fields", "error"), [
    ({"offset": 4}, ErrorCode.OFFSET_OUT_OF_RANGE),
    ({"offset": -1}, ErrorCode.OFFSET_OUT_OF_RANGE),
    ({"offset": 0, "index": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ({"topic": "nope", "offset": 0}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ({"offset": 0, "current_leader_epoch": 1}, ErrorCode.FENCED_LEADER_EPOCH),
    ({"offset": 0, "current_leader_epoch": 3}, ErrorCode.UNKNOWN_LEADER_EPOCH),
])  # fmt: skip
def test_errors_answer_at_once_though_the_client_would_wait(
    stage: Stage, fields: dict[str, Any], error: ErrorCode
) -> None:
    stage.topic("t", epoch=2)
    stage.append("t", 3)
    found = fetch(stage, part(fields.pop("topic", "t"), **fields), max_wait_ms=60_000, min_bytes=1 << 20)
    assert found[0].error_code == error
    assert not found[0].records


def test_a_partition_that_stands_twice_is_read_once(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t")
    found = fetch(stage, part("t", 0), part("t", 0))
    assert [p.error_code for p in found] == [0, ErrorCode.INVALID_REQUEST]


def test_an_unknown_topic_id(stage: Stage) -> None:
    assert fetch(stage, part(uuid.uuid4(), 0), version=13)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [11, 12, 16])
def test_another_leader_is_named(stage: Stage, version: int) -> None:
    info = stage.topic("t", leader=OTHER, epoch=4, replicas=(ME, OTHER))
    name = info.id if version >= 13 else "t"
    outcome = stage.start(handle_fetch, 1, version, request(part(name, 0)))
    assert isinstance(outcome, Done)
    message = m.decode_response(1, version, body_of(outcome.response))
    found = message.responses[0].partitions[0]
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= 12:
        assert found.current_leader.leader_id == OTHER
    if version >= 16:
        assert [e.node_id for e in message.node_endpoints] == [OTHER]


def test_without_its_lease_a_leader_still_serves_what_is_committed(stage: Stage) -> None:
    stage.topic("t")
    stage.append("t")
    stage.lease = False
    assert offsets_in(fetch(stage, part("t", 0))[0].records) == [0]


def test_without_its_lease_a_leader_does_not_say_that_an_offset_is_nowhere(stage: Stage) -> None:
    """A consumer that hears OFFSET_OUT_OF_RANGE starts anew; a successor may have the offset."""
    stage.topic("t")
    stage.append("t", 3)
    stage.lease = False
    assert fetch(stage, part("t", 9))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    stage.lease = True
    assert fetch(stage, part("t", 9))[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_records_above_the_high_watermark_are_not_served(stage: Stage) -> None:
    stage.topic("t", replicas=(ME, OTHER))
    stage.append("t")
    stage.append("t")
    stage.fetched("t", OTHER, 1)
    found = fetch(stage, part("t", 0))[0]
    assert offsets_in(found.records) == [0]
    assert found.high_watermark == 1
    assert fetch(stage, part("t", 1))[0].error_code == 0


def test_a_fetch_waits_for_data_and_is_woken_by_it(stage: Stage) -> None:
    stage.topic("t")
    delayed = stage.start(handle_fetch, 1, 12, request(part("t", 0), max_wait_ms=500))
    assert isinstance(delayed, DelayedResponse)
    assert delayed.deadline_ms == 500
    stage.append("t")
    assert not delayed.done
    stage.turn()
    assert offsets_in(partitions(12, delayed.response)[0].records) == [0]
    assert not stage.partition("t").watchers


def test_a_fetch_waits_for_min_bytes_and_takes_what_there_is_at_the_end(stage: Stage) -> None:
    stage.topic("t")
    delayed = stage.start(handle_fetch, 1, 12, request(part("t", 0), max_wait_ms=500, min_bytes=200))
    assert isinstance(delayed, DelayedResponse)
    for _ in range(2):
        stage.append("t")
        stage.turn()
    assert not delayed.done
    delayed.expire()
    assert offsets_in(partitions(12, delayed.response)[0].records) == [0, 1]


def test_a_lost_leadership_wakes_a_fetch(stage: Stage) -> None:
    stage.topic("t")
    delayed = stage.start(handle_fetch, 1, 12, request(part("t", 0), max_wait_ms=500))
    assert isinstance(delayed, DelayedResponse)
    stage.topic("t", leader=OTHER, epoch=1)
    stage.turn()
    assert partitions(12, delayed.response)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_client_that_goes_away_leaves_nothing_waiting(stage: Stage) -> None:
    stage.topic("t")
    delayed = stage.start(handle_fetch, 1, 12, request(part("t", 0), max_wait_ms=500))
    assert isinstance(delayed, DelayedResponse)
    delayed.cancel()
    stage.append("t")
    stage.turn()
    assert not stage.partition("t").watchers


def test_a_fetch_that_may_not_wait_answers_empty(stage: Stage) -> None:
    stage.topic("t")
    assert fetch(stage, part("t", 0))[0].error_code == 0
    assert fetch(stage) == []


def test_limits_hold_but_the_first_batch_always_comes(stage: Stage) -> None:
    stage.topic("t", 3)
    for index in range(3):
        for _ in range(3):
            stage.append("t", size=1000, index=index)
    size = len(stage.batch(size=1000))
    parts = [part("t", 0, index) for index in range(3)]
    assert [len(offsets_in(p.records)) for p in fetch(stage, *parts, max_bytes=1)] == [1, 0, 0]
    assert [len(offsets_in(p.records)) for p in fetch(stage, *parts, max_bytes=4 * size)] == [3, 1, 0]
    small = [p._replace(max_bytes=size) for p in parts]
    assert [len(offsets_in(p.records)) for p in fetch(stage, *small)] == [1, 1, 1]
    tiny = [p._replace(max_bytes=1) for p in parts]
    assert [len(offsets_in(p.records)) for p in fetch(stage, *tiny)] == [1, 0, 0]
    empty_first = [part("t", 3, 0), part("t", 0, 1)]
    assert [len(offsets_in(p.records)) for p in fetch(stage, *empty_first, max_bytes=1)] == [0, 1]


def _transactions(stage: Stage) -> None:
    """Offsets: 0-1 plain, 2 aborted, 3 its marker, 4 committed, 5 its marker, 6 open, 7 plain."""
    stage.topic("t")
    stage.append("t", 2)
    for producer_id, commit in ((5, False), (6, True)):
        batch = stage.batch(attributes=16, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        assert stage.partition("t").append(batch, acks=1, origin=Origin.REPLICATION).error == 0
        stage.marker("t", producer_id, commit=commit)
    batch = stage.batch(attributes=16, producer_id=7, producer_epoch=0, base_sequence=0)
    assert stage.partition("t").append(batch, acks=1, origin=Origin.REPLICATION).error == 0
    stage.append("t")


def test_read_committed_stops_at_the_open_transaction_and_lists_the_aborted(stage: Stage) -> None:
    _transactions(stage)
    found = fetch(stage, part("t", 0), isolation_level=1)[0]
    assert (found.high_watermark, found.last_stable_offset) == (8, 6)
    assert offsets_in(found.records) == [0, 2, 3, 4, 5]
    assert [(a.producer_id, a.first_offset) for a in found.aborted_transactions] == [(5, 2)]
    assert fetch(stage, part("t", 4), isolation_level=1)[0].aborted_transactions == []
    assert offsets_in(fetch(stage, part("t", 0))[0].records) == [0, 2, 3, 4, 5, 6, 7]


def test_the_end_of_a_transaction_wakes_a_committed_reader(stage: Stage) -> None:
    _transactions(stage)
    delayed = stage.start(handle_fetch, 1, 12, request(part("t", 6), isolation_level=1, max_wait_ms=500))
    assert isinstance(delayed, DelayedResponse)
    stage.append("t")
    stage.turn()
    assert not delayed.done
    stage.marker("t", 7, commit=True)
    stage.turn()
    assert offsets_in(partitions(12, delayed.response)[0].records) == [6, 7, 8, 9]


def test_a_client_whose_log_diverged_gets_the_diverging_epoch(stage: Stage) -> None:
    stage.topic("t", epoch=1)
    stage.append("t", 3)
    stage.topic("t", epoch=4)
    stage.append("t", 3)
    found = fetch(stage, part("t", 5, last_fetched_epoch=2), max_wait_ms=1000)[0]
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (1, 3)
    assert not found.records
    assert offsets_in(fetch(stage, part("t", 3, last_fetched_epoch=1))[0].records) == [3]


def test_a_zstd_topic_needs_version_10(stage: Stage) -> None:
    stage.topic("t", compression_type="zstd")
    assert fetch(stage, part("t", 0), version=9)[0].error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert fetch(stage, part("t", 0), version=10)[0].error_code == 0
