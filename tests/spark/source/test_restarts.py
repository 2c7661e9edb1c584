"""A batch that Spark runs again reads what was planned for it: histories of the pure model, and its planted bugs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from fleetlog.spark.client.failures import DataLoss, OptionError
from fleetlog.spark.source import offsets
from fleetlog.spark.source.options import ReadOptions
from fleetlog.spark.source.readers import StreamReader
from fleetlog.spark.versions import ReadAllAvailable
from fleetlog.wire.types import TopicPartition
from tests.spark.source.restarts import History, Logs, ModelReader

HISTORIES = 3000
OPTIONS = {"kafka.bootstrap.servers": "model:1", "subscribe": "t0"}


def run_histories(count: int = HISTORIES) -> int:
    """Committed batches."""
    batches = 0
    for seed in range(count):
        history = History(seed)
        history.run()
        batches += history.committed
    return batches


def test_each_attempt_at_a_batch_reads_what_was_planned(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    assert run_histories() > HISTORIES


def planned_nowhere(_: Any) -> offsets.Offsets:
    return {}


def without_starts(to_json: Callable[..., offsets.Json]) -> Callable[..., offsets.Json]:
    return lambda positions, topic_ids=None, planned=None: to_json(positions, topic_ids)


def test_the_model_sees_a_start_that_is_resolved_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    for name, planted in (("planned_from", planned_nowhere), ("to_json", without_starts(offsets.to_json))):
        with monkeypatch.context() as patched:
            patched.setattr(offsets, name, planted)
            with pytest.raises(AssertionError, match="batch 0 is"):
                run_histories()


def logs_of(records: int) -> Logs:
    logs = Logs()
    logs.create("t0", 1)
    logs.topics_now["t0"].times[0] += [logs.clock] * records
    return logs


def reader(logs: Logs, **options: str) -> StreamReader:
    return ModelReader(ReadOptions.parse({**OPTIONS, **options}, streaming=True), logs)


def bounds(plan: Any) -> list[tuple[int, int]]:
    return [(item.start, item.end) for task in plan for item in task.ranges]


def test_a_start_is_noted_until_a_batch_after_it(caplog: pytest.LogCaptureFixture) -> None:
    logs = logs_of(10)
    query = reader(logs)
    first = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    assert offsets.planned_from(first) == {TopicPartition("t0", 0): 10}
    assert offsets.topic_ids_of(first) == {"t0": "id1"}
    assert query.latestOffset(first, ReadAllAvailable()) is first, "another text would be a batch of no record"
    logs.topics_now["t0"].times[0] += [1] * 5
    second = query.latestOffset(first, ReadAllAvailable())
    assert second == {"t0": {"0": 15}, "topic ids": {"t0": "id1"}}
    logs.topics_now["t0"].times.append([1, 1])
    logs.topics_now["t0"].starts.append(1)
    third = query.latestOffset(second, ReadAllAvailable())
    assert offsets.planned_from(third) == {TopicPartition("t0", 1): 1}
    assert bounds(query.partitions(second, third)) == [(1, 2)]
    assert query.partitions(third, third) == []


def test_partitions_that_are_left_out_exist_still() -> None:
    logs = logs_of(3)
    logs.create("t1", 1)
    both = {"t0": {"0": 3}, "t1": {"0": 0}, "topic ids": {"t0": "id1", "t1": "id2"}}
    with pytest.raises(DataLoss, match="t1-0 were read by the query and are left out by the option subscribe now"):
        reader(logs).latestOffset(both, ReadAllAvailable())
    del logs.topics_now["t1"]
    with pytest.raises(DataLoss, match="t1-0 do not exist any more"):
        reader(logs).latestOffset(both, ReadAllAvailable())
    accepted = reader(logs, failOnDataLoss="false").latestOffset(both, ReadAllAvailable())
    assert accepted == {"t0": {"0": 3}, "topic ids": {"t0": "id1"}}


def test_a_version_that_knows_no_starts_skips_them() -> None:
    """It takes the entry for the id of a topic that it does not read."""
    noted = offsets.to_json({TopicPartition("t", 0): 7}, {"t": "a"}, {TopicPartition("t", 0): 3})
    taken_for_ids = dict(noted["topic ids"])
    assert offsets.recreated(taken_for_ids, {"t": "a"}) == []
    assert offsets.recreated(taken_for_ids, {"t": "b"}) == ["t"]
    assert noted.keys() == {"t", "topic ids"}, "any other name would be a topic to it"


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_first_batch_of_an_older_version_is_not_read_from_the_log_start(
    loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its end is in the checkpoint, without a start; rows came since, so the start of now is above it."""
    logs = logs_of(15)
    end = {"t0": {"0": 12}, "topic ids": {"t0": "id1"}}
    query = reader(logs, failOnDataLoss=loss)
    if loss == "true":
        with pytest.raises(DataLoss, match=r"t0-0: the batch ends at 12, below its start 15.*startingOffsets"):
            query.partitions(query.initialOffset(), end)
    else:
        assert query.partitions(query.initialOffset(), end) == []
    named = reader(logs, startingOffsets=json.dumps({"t0": {"0": 10}}))
    assert bounds(named.partitions(named.initialOffset(), end)) == [(10, 12)]
    assert bounds(named.partitions(end, named.latestOffset(end, ReadAllAvailable()))) == [(12, 15)]


def test_a_planned_batch_needs_no_starting_offsets() -> None:
    logs = logs_of(3)
    late = {"startingTimestamp": "1000"}
    refused = reader(logs, **late)
    start = refused.initialOffset()
    with pytest.raises(OptionError, match="no record of t0-0 is as late as 1000 ms"):
        refused.latestOffset(start, ReadAllAvailable())
    end = {"t0": {"0": 3}, "topic ids": {"t0": "id1", "planned from": {"t0": {"0": 1}}}}
    again = reader(logs, **late)
    assert bounds(again.partitions(again.initialOffset(), end)) == [(1, 3)]
    without = {"t0": {"0": 3}, "topic ids": {"t0": "id1"}}
    with pytest.raises(OptionError, match="no record of t0-0"):
        again.partitions(again.initialOffset(), without)
