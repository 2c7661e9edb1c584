"""The handlers of the group APIs over a driven shard; requests and responses go through their bytes."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import Access
from fleetlog.brokers.api.base import ClientConnection, Context, DelayedResponse, Done, InSlices, through
from fleetlog.brokers.api.disconnects import Disconnects
from fleetlog.brokers.api.rows import api_table
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.group_driver import Driver


class View:
    """A topic "t" with three partitions; it may be deleted and created again."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.sequence = 0
        self.create()

    def create(self) -> None:
        self.topics["t"] = SimpleNamespace(id=uuid.uuid4(), partitions=(None,) * 3)

    @property
    def topic_names(self) -> dict[uuid.UUID, str]:
        return {topic.id: name for name, topic in self.topics.items()}

    def partition(self, partition: TopicPartition) -> object | None:
        return object() if partition.topic in self.topics and partition.partition < 3 else None


class Api:
    """Calls a handler as the dispatcher does, with the bytes a client would send."""

    source: Any = None
    connection = ClientConnection(1, "PLAINTEXT", "127.0.0.1")

    def __init__(self) -> None:
        self.driver = Driver()
        self.services: Any = SimpleNamespace(
            groups=self.driver, metadata=View(), disconnects=Disconnects(), access=Access()
        )

    def call(self, key: int, version: int, message: Any) -> Any:
        body = memoryview(bytes(message.encode(version=version)))
        decoded = m.decode_request(key, version, body)
        context = Context(self.services, self.connection, key, version, 1, "client", self.source)
        outcome = api_table()[key].handler(decoded, context)
        if isinstance(outcome, InSlices):
            outcome = through(outcome.work)
        if isinstance(outcome, DelayedResponse):
            return self.wire(key, version, outcome.response) if outcome.done else outcome
        return self.wire(key, version, outcome)

    def wire(self, key: int, version: int, outcome: Done | Any) -> Any:
        response = outcome.response if isinstance(outcome, Done) else outcome
        if isinstance(response, InSlices):
            response = through(response.work)
        body = response if isinstance(response, bytes) else m.encode_response(response, key, version)
        return m.decode_response(key, version, body)

    def join(self, version: int, member_id: str = "", **kw: Any) -> Any:
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(version=version, name="range", metadata=b"sub")
        request = m.JoinGroupRequest(
            version=version,
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[protocol],
            **kw,
        )
        return self.call(11, version, request)

    def joined(self, version: int = 9) -> Any:
        """A lone member that has joined."""
        answer = self.join(version)
        if not isinstance(answer, DelayedResponse):
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
            answer = self.join(version, answer.member_id)
        assert isinstance(answer, DelayedResponse)
        self.driver.advance(6_000)
        assert answer.done
        return self.wire(11, version, answer.response)

    def topic_id(self, topic: str) -> uuid.UUID:
        """Of a topic that is gone, one that nobody knows."""
        present = self.services.metadata.topics.get(topic)
        return present.id if present is not None else uuid.uuid4()

    def commit(self, version: int, generation: int = -1, member_id: str = "", topic: str = "t") -> Any:
        request = m.OffsetCommitRequest
        topics = request.OffsetCommitRequestTopic
        named: dict[str, Any] = {"name": topic} if version < 10 else {"topic_id": self.topic_id(topic)}
        part = topics.OffsetCommitRequestPartition
        return self.call(
            8,
            version,
            request(
                version=version,
                group_id="g",
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                retention_time_ms=-1,
                topics=[
                    topics(
                        version=version,
                        **named,
                        partitions=[
                            part(version=version, partition_index=i, committed_offset=40 + i, committed_metadata="note")
                            for i in (0, 5)
                        ],
                    )
                ],
            ),
        )
