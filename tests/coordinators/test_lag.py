"""The lag of groups through the handlers: what a leader says of its logs, and what a coordinator makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.wire.errors import ErrorCode as E
from tests.support.coordinator_broker import Broker, play
from tests.support.one_znode import OneZnode

AGE_MS = 60_000
APART_MS = 1_000


async def furnished(tmp_path: Path) -> Broker:
    """Five records in t, written a second apart in the minute before, of which the group g has committed two."""
    broker = await Broker(tmp_path, OneZnode()).ready()
    first_ms = broker.clock.wall_ms() - AGE_MS
    for sequence in range(5):
        assert await produced(broker, first_ms + sequence * APART_MS) == 0
    kind = m.OffsetCommitRequest.OffsetCommitRequestTopic
    part = kind.OffsetCommitRequestPartition(version=8, partition_index=0, committed_offset=2)
    topic = kind(version=8, name="t", partitions=[part])
    request = m.OffsetCommitRequest(version=8, group_id="g", generation_id_or_member_epoch=-1, topics=[topic])
    (answer,) = (await broker.call(8, 8, request)).topics[0].partitions
    assert answer.error_code == 0
    return broker


async def produced(broker: Broker, timestamp: int) -> int:
    from fleetlog.wire import hot

    data = broker.batch(timestamp=timestamp)
    request = hot.ProduceRequest(None, -1, 1_000, [hot.ProducePart("t", None, 0, memoryview(bytearray(data)))])
    encoded = await broker.outcome(0, 9, request)
    response = m.decode_response(0, 9, b"".join(bytes(chunk) for chunk in encoded.chunks))
    return int(response.responses[0].partition_responses[0].error_code)


def positions(*asked: tuple[str, int, int]) -> Any:
    kind = m.LogPositionsRequest
    topics = [
        kind.TopicPositions(
            version=0, name=name,
            partitions=[kind.TopicPositions.AskedPosition(version=0, partition_index=index, offset=offset)],
        )
        for name, index, offset in asked
    ]  # fmt: skip
    return kind(version=0, topics=topics)


async def lag_of(broker: Broker, *names: str) -> Any:
    request = m.DescribeLagRequest(version=0, group_ids=list(names) or None)
    return await broker.call(12011, 0, request)


def test_a_leader_says_where_its_logs_end_and_since_when_a_record_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await furnished(tmp_path)
        log = broker.partition("t", 0).log
        found = await broker.call(12010, 0, positions(("t", 0, 2), ("t", 0, 5), ("t", 0, -1), ("t", 9, 0), ("x", 0, 0)))
        rows = [topic.partitions[0] for topic in found.topics]
        assert [row.error_code for row in rows] == [0, 0, 0, E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_OR_PARTITION]
        assert [(row.start_offset, row.end_offset, row.stable_offset) for row in rows[:3]] == [(0, 5, 5)] * 3
        assert rows[0].waiting_since_ms == log.reader.timestamp_from(0) + 2 * APART_MS
        assert [row.waiting_since_ms for row in rows[1:3]] == [-1, -1]
        await broker.stop()

    play(scenario)


def test_a_coordinator_says_what_its_groups_lack(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await furnished(tmp_path)
        assert (await lag_of(broker)).groups == []
        (row,) = (await lag_of(broker, "g")).groups
        assert (row.error_code, row.topics) == (0, []), "nothing is computed yet"
        await broker.services.lags.round()
        (row,) = (await lag_of(broker)).groups
        ((one,),) = [topic.partitions for topic in row.topics]
        assert (row.group_id, row.status, row.topics[0].name) == ("g", "OK", "t")
        assert (one.committed_offset, one.end_offset, one.lag, one.stable_lag, one.status) == (2, 5, 3, 3, "OK")
        assert one.lag_ms >= AGE_MS - 2 * APART_MS
        (row,) = (await lag_of(broker, "unknown")).groups
        assert row.error_code == E.GROUP_ID_NOT_FOUND
        await broker.stop()

    play(scenario)


def test_groups_of_the_consumer_protocol_are_watched_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await furnished(tmp_path)
        broker.services.metadata.features = {"group.version": 1}
        for group in ("g", "without commits"):
            joining = m.ConsumerGroupHeartbeatRequest(
                version=1, group_id=group, member_id="m", member_epoch=0, rebalance_timeout_ms=60_000,
                subscribed_topic_names=["t"], topic_partitions=[],
            )  # fmt: skip
            assert (await broker.call(68, 1, joining)).error_code == 0
        await broker.services.lags.round()
        rows = {row.group_id: row for row in (await lag_of(broker)).groups}
        assert [(len(row.topics), row.error_code) for _, row in sorted(rows.items())] == [(1, 0), (0, 0)]
        for one in broker.services.lags.groups.values():
            assert (one.state, one.protocol_type, one.protocol) == ("Stable", "consumer", "uniform")
            assert (one.members, one.assignments) == (1, [{"t": 2}])
        (row,) = (await lag_of(broker, "without commits")).groups
        assert row.error_code == 0
        await broker.stop()

    play(scenario)


def test_known_times_are_not_asked_for_again_unless_the_record_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await furnished(tmp_path)
        lags = broker.services.lags
        await lags.round()
        log = broker.partition("t", 0).log
        kept = lags._since
        assert kept == {(broker.partition("t", 0).tp, 2): log.reader.timestamp_from(2)}
        first = lags.groups["g"].partitions
        await lags.round()
        assert lags._since == kept
        assert lags.groups["g"].partitions == {tp: one._replace(seconds=lags.groups["g"].partitions[tp].seconds)
                                               for tp, one in first.items()}  # fmt: skip
        log.truncation.delete_records_before(4)
        await lags.round()
        await lags.round()
        (one,) = lags.groups["g"].partitions.values()
        assert one.records == 1, "what is deleted is no lag"
        await broker.stop()

    play(scenario)


def test_switched_off_it_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await furnished(tmp_path)
        broker.services.lags = None
        assert (await lag_of(broker)).error_code == E.INVALID_CONFIG
        await broker.stop()

    play(scenario)
