"""Requests of members to one group "g" of the consumer protocol, and what is in the log then."""

from __future__ import annotations

from typing import Any

from fleetlog.brokers.groups.consumer.group import Beat, BeatAnswer, Picture
from fleetlog.brokers.groups.consumer.records import Partition
from fleetlog.brokers.groups.records import CommittedOffset, ConsumerKey, GroupKey, decode_group_key
from fleetlog.brokers.groups.requests import ConsumerSettings, OffsetCommitRequest
from fleetlog.txn.commands import CoordinatorRecord
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.groups.consumer_world import topic
from tests.support.group_driver import Driver, Entry

TOPICS = {"t": topic("t", 4), "u": topic("u", 2)}
T, U = TOPICS["t"].id.bytes, TOPICS["u"].id.bytes
SETTINGS = ConsumerSettings(assignment_interval_ms=0)


def ask(driver: Driver, command: Any) -> Any:
    return driver.submit("g", command).response


def send(
    driver: Driver, beat: Beat, topics: Any = None, version: int = 0, settings: ConsumerSettings = SETTINGS
) -> BeatAnswer:
    picture = Picture(TOPICS if topics is None else topics, version)
    answer = ask(driver, lambda shard, now, ticket: shard.consumer_heartbeat(beat, picture, settings, now, ticket))
    assert isinstance(answer, BeatAnswer)
    return answer


def joining(name: str, topics: tuple[str, ...] = ("t",), **more: Any) -> Beat:
    return Beat("g", name, 0, rebalance_timeout_ms=60_000, topics=topics, owned=frozenset(), **more)


def t(*indexes: int) -> tuple[Partition, ...]:
    return tuple((T, index) for index in indexes)


def committing(member: str, epoch: int, index: int, **more: Any) -> OffsetCommitRequest:
    offsets = ((TopicPartition("t", index), CommittedOffset(5, topic_id=T)),)
    more.setdefault("knows_missing_groups", True)
    return OffsetCommitRequest("g", epoch, member, None, offsets, **more)


def commit(driver: Driver, request: OffsetCommitRequest) -> ErrorCode:
    answer = ask(driver, lambda shard, now, ticket: shard.commit(request, now, ticket))
    return ErrorCode(next(iter(answer.values())))


def keys(entries: list[Entry]) -> list[tuple[int, str, bool]]:
    rows = []
    for entry in entries:
        record = entry[0]
        assert isinstance(record, CoordinatorRecord)
        key = decode_group_key(record.key)
        if isinstance(key, ConsumerKey):
            rows.append((int(key.kind), key.name, record.value is None))
        elif isinstance(key, GroupKey):
            rows.append((2, "", record.value is None))
    return rows
