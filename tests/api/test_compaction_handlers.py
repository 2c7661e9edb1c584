"""CompactTopics and DescribeCompaction over real logs: what they ask of the cleaner, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.log.compaction.cleaner import CleaningState
from fleetlog.brokers.model import TopicPartition
from fleetlog.wire.errors import ErrorCode as E
from tests.support.coordinator_broker import Broker, play
from tests.support.one_znode import OneZnode
from tests.support.waiting import eventually

TP = TopicPartition("t", 0)


async def compact(broker: Broker, *topics: tuple[str, list[int]], now: bool = False) -> dict[TopicPartition, Any]:
    kind = m.CompactTopicsRequest
    named = [kind.CompactTopic(version=0, name=name, partitions=indexes) for name, indexes in topics]
    return _rows(await broker.call(12008, 0, kind(version=0, now=now, topics=named)))


async def describe(broker: Broker, *topics: tuple[str, list[int]]) -> dict[TopicPartition, Any]:
    kind = m.DescribeCompactionRequest
    named = [kind.CompactionTopic(version=0, name=name, partitions=indexes) for name, indexes in topics]
    return _rows(await broker.call(12009, 0, kind(version=0, topics=named)))


def _rows(answer: Any) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic.name, row.partition_index): row for topic in answer.topics for row in topic.partitions}


def _tick(broker: Broker) -> None:
    now_ms = broker.clock.wall_ms()
    broker.logs.cleaner.step(now_ms, late_ms=0)
    while broker.logs.cleaner.goes_on:
        broker.logs.cleaner.resume(now_ms)


def test_a_partition_is_compacted_when_that_is_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, OneZnode()).ready()
        log = broker.logs.get(TP)
        assert log is not None
        for _ in range(5):
            broker.append("t", 2)
        (row,) = (await compact(broker, ("t", [0]))).values()
        assert (row.error_code, row.error_message) == (
            E.INVALID_REQUEST,
            "its cleanup.policy does not contain compact",
        )
        (row,) = (await describe(broker, ("t", [0]))).values()
        assert (row.error_code, row.state) == (0, CleaningState.OFF)
        log.config = replace(log.config, cleanup_policy=("compact",), min_compaction_lag_ms=3_600_000)
        _tick(broker)
        (row,) = (await describe(broker, ("t", [0]))).values()
        assert (row.state, row.clean_offset, row.end_offset, row.trouble) == (CleaningState.IDLE, 0, 10, None)
        found = await compact(broker, ("t", [0, 7]), ("none", [0]), now=True)
        assert {tp: row.error_code for tp, row in found.items()} == {
            TP: 0,
            TopicPartition("t", 7): E.REPLICA_NOT_AVAILABLE,
            TopicPartition("none", 0): E.REPLICA_NOT_AVAILABLE,
        }
        assert (await describe(broker, ("t", [0])))[TP].state == CleaningState.ASKED
        eventually(lambda: [_tick(broker), broker.logs.cleaner.figures.passes][1], "the pass has ended")
        row = (await describe(broker, ("t", [0])))[TP]
        assert (row.error_code, row.state, row.clean_offset, row.end_offset) == (0, CleaningState.IDLE, 10, 10)
        assert row.size_bytes == log.size_bytes
        await broker.stop()

    play(scenario)


def test_copies_that_cannot_be_compacted(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await Broker(tmp_path, OneZnode()).ready()
        log = broker.logs.get(TP)
        assert log is not None
        log.config = replace(log.config, cleanup_policy=("compact",))
        broker.logs.cleaner.uncleanable[TP] = "a damaged batch"
        (row,) = (await compact(broker, ("t", [0]))).values()
        assert (row.error_code, row.error_message) == (E.INVALID_REQUEST, "a damaged batch")
        (row,) = (await describe(broker, ("t", [0]))).values()
        assert (row.state, row.trouble) == (CleaningState.STOPPED, "a damaged batch")
        log.offline = True
        (row,) = (await compact(broker, ("t", [0]))).values()
        assert row.error_code == E.KAFKA_STORAGE_ERROR
        log.offline = False
        await broker.stop()

    play(scenario)
