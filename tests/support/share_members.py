"""A member of a share group at one broker, spoken for by its requests alone, and a fleet that serves share groups."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.shares.state import ShareKey
from tests.support.coordinator_broker import Broker, play
from tests.support.one_znode import OneZnode

TOPIC = uuid.uuid5(uuid.NAMESPACE_URL, "t")
KEY = ShareKey("g", TOPIC.bytes, 0)
HEARTBEAT, FETCH, ACKNOWLEDGE = 76, 78, 79
SETTINGS = {"group.share.min.record.lock.duration.ms": "1000", "group.share.max.share.sessions": "2"}


class Member:
    """A member of group "g" on one broker, without the client's care for sessions."""

    def __init__(self, broker: Broker, name: str = "m", version: int = 2) -> None:
        self.broker, self.name, self.version, self.epoch = broker, name, version, 0

    def batches(self, kind: Any, acks: dict[int, tuple[tuple[int, int, list[int]], ...]]) -> list[Any]:
        rows = []
        for index, some in acks.items():
            batch = kind.AcknowledgementBatch
            rows.append(
                kind(
                    partition_index=index,
                    acknowledgement_batches=[
                        batch(first_offset=first, last_offset=last, acknowledge_types=types)
                        for first, last, types in some
                    ],
                )
            )
        return rows

    async def fetch(self, *indexes: int, epoch: int | None = None, wait_ms: int = 0, **said: Any) -> Any:
        """``acks``: by partition, first and last offset and types."""
        kind = m.ShareFetchRequest
        acks = dict.fromkeys(indexes, ()) | said.pop("acks", {})
        topics = [kind.FetchTopic(topic_id=TOPIC, partitions=self.batches(kind.FetchTopic.FetchPartition, acks))]
        fields = {
            "version": self.version, "group_id": "g", "member_id": self.name, "max_wait_ms": wait_ms, "min_bytes": 1,
            "share_session_epoch": self.epoch if epoch is None else epoch, "max_bytes": 1 << 20, "max_records": 500,
            "topics": topics if acks else [], "forgotten_topics_data": [], **said,
        }  # fmt: skip
        answer = await self.broker.call(FETCH, self.version, kind(**fields))
        if epoch is None and answer.error_code == 0:
            self.epoch += 1
        return answer

    async def rows(self, *indexes: int, **said: Any) -> dict[int, Any]:
        answer = await self.fetch(*indexes, **said)
        assert answer.error_code == 0, answer
        return {row.partition_index: row for topic in answer.responses for row in topic.partitions}

    async def taken(self, *indexes: int, **said: Any) -> list[tuple[int, int, int]]:
        """What of partition 0 it acquires; its state may still be read at the first request."""
        said = {"wait_ms": 2_000, **said}
        row = (await self.rows(*indexes, **said)).get(0)
        if row is None:
            return []
        assert row.error_code == 0
        return [(one.first_offset, one.last_offset, one.delivery_count) for one in row.acquired_records]

    async def say(self, first: int, last: int, *types: int, epoch: int | None = None, **said: Any) -> Any:
        kind = m.ShareAcknowledgeRequest
        rows = self.batches(kind.AcknowledgeTopic.AcknowledgePartition, {0: ((first, last, list(types)),)})
        request = kind(
            version=self.version, group_id="g", member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=[kind.AcknowledgeTopic(topic_id=TOPIC, partitions=rows)], **said,
        )  # fmt: skip
        answer = await self.broker.call(ACKNOWLEDGE, self.version, request)
        if epoch is None and answer.error_code == 0:
            self.epoch += 1
        return answer

    async def said(self, first: int, last: int, *types: int, **said: Any) -> int:
        answer = await self.say(first, last, *types, **said)
        assert answer.error_code == 0, answer
        return int(answer.responses[0].partitions[0].error_code)


async def beats(broker: Broker, epoch: int, group: str = "g") -> int:
    """A heartbeat of member "m", which joins with 0 and leaves with -1; its error."""
    request = m.ShareGroupHeartbeatRequest(
        version=1, group_id=group, member_id="m", member_epoch=epoch, subscribed_topic_names=["t"]
    )
    return int((await broker.call(HEARTBEAT, 1, request)).error_code)


def served(tmp_path: Path, story: Callable[[Broker], Coroutine[Any, Any, None]], **own: str) -> None:
    """The story at a broker whose fleet serves share groups, and whose group begins at the log's start."""

    async def scenario() -> None:
        broker = await Broker(tmp_path, OneZnode(), **SETTINGS).ready()
        broker.metadata.features = {"share.version": 1}
        settings = {"share.auto.offset.reset": "earliest", **own}
        broker.metadata.dynamic_config = lambda kind, name: settings  # type: ignore[method-assign]
        for epoch in (0, -1):  # a member was there: the group has the topic
            assert await beats(broker, epoch) == 0
        try:
            await story(broker)
        finally:
            await broker.stop()

    play(scenario)
