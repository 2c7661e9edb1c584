"""A client of fetch sessions for tests, and what it would see without one."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import DelayedResponse, Done
from fleetlog.brokers.api.fetch import handle_fetch
from fleetlog.brokers.api.fetch_reads import PartitionReader
from fleetlog.brokers.replication.follower_progress import ReplicaSession
from fleetlog.wire import hot
from fleetlog.wire.errors import ErrorCode
from tests.support.stage import Stage, body_of

Key = tuple[Any, int]
FRAME_VERSION = 12
"""The last version that names topics."""


def part(topic: Any, offset: int, index: int = 0, **fields: Any) -> hot.FetchPart:
    by_id = isinstance(topic, uuid.UUID)
    defaults = hot.FetchPart(
        None if by_id else topic, topic if by_id else None, index, -1, offset, -1, -1, 1 << 20, hot.NO_HIGH_WATERMARK
    )  # fmt: skip
    return defaults._replace(**fields)


def request(*parts: hot.FetchPart, **fields: Any) -> hot.FetchRequest:
    defaults = hot.FetchRequest(-1, -1, 0, 1, 1 << 20, 0, 0, -1, list(parts), [], "", None)
    return defaults._replace(**fields)


def fetch_frame(topic: str, max_wait_ms: int = 500) -> bytes:
    """A Fetch of partition 0 from the first record on, without a session, with its length in front."""
    kind = m.FetchRequest
    asked = kind.FetchTopic.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )  # fmt: skip
    message = kind(
        version=FRAME_VERSION, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        session_id=0, session_epoch=-1, rack_id="", forgotten_topics_data=[],
        topics=[kind.FetchTopic(topic=topic, partitions=[asked])],
    )  # fmt: skip
    return bytes(m.encode_request(1, FRAME_VERSION, 0, "test", message))


class Seen(NamedTuple):
    """What an answer says of a partition."""

    error: int
    high_watermark: int
    log_start_offset: int
    records: bytes
    diverging: tuple[int, int] | None = None
    preferred: int = -1


class Answer(NamedTuple):
    error: int
    session_id: int
    parts: dict[Key, Seen]


def decoded(version: int, response: Any) -> Answer:
    message = m.decode_response(1, version, body_of(response))
    parts: dict[Key, Seen] = {}
    for topic in message.responses:
        for found in topic.partitions:
            key = (topic.topic_id if version >= 13 else topic.topic, found.partition_index)
            assert key not in parts, "a partition stands twice in an answer"
            tail = found.diverging_epoch
            parts[key] = Seen(
                found.error_code, found.high_watermark, found.log_start_offset, bytes(found.records or b""),
                None if tail is None else (tail.epoch, tail.end_offset), found.preferred_read_replica,
            )  # fmt: skip
    assert len(message.responses) == len({key[0] for key in parts}), "a topic stands twice in an answer"
    return Answer(message.error_code, message.session_id, parts)


class Client:
    """Keeps a session as KIP-227 says, and what its answers tell of each partition. ``replica`` makes it a follower."""

    def __init__(self, stage: Stage, version: int = 17, replica: int = -1, **fields: Any) -> None:
        self.stage = stage
        self.version = version
        self.fields = {"replica_id": replica, "replica_epoch": 1 if replica >= 0 else -1, **fields}
        self.id = self.epoch = 0
        self.parts: dict[Key, hot.FetchPart] = {}
        self.known: dict[Key, Seen] = {}
        self.delayed: DelayedResponse | None = None

    def start(self, *named: hot.FetchPart, forget: tuple[Key, ...] = (), **fields: Any) -> Done | DelayedResponse:
        """Send a fetch; all partitions go with it if it is the first."""
        for key in forget:
            self.parts.pop(key, None)
            self.known.pop(key, None)
        if self.fields["replica_id"] >= 0:
            named = tuple(self._in_epoch(p) for p in named)
        self.parts |= {(p.topic_id or p.topic, p.partition): p for p in named}
        parts = list(self.parts.values()) if self.epoch == 0 else list(named)
        gone = [(topic, [index]) for topic, index in forget] if self.epoch else []
        outcome = self.stage.start(
            handle_fetch, 1, self.version,
            request(*parts, session_id=self.id, session_epoch=self.epoch, forgotten=gone, **{**self.fields, **fields}),
        )  # fmt: skip
        if isinstance(outcome, DelayedResponse):
            self.delayed = outcome
        return outcome

    def _in_epoch(self, asked: hot.FetchPart) -> hot.FetchPart:
        """A follower knows in which epoch it follows; a test may say another one."""
        topic = asked.topic or self.stage.metadata.topic_names.get(asked.topic_id, "")
        partition = self.stage.replicas.get(self.stage.tp(topic, asked.partition))
        if asked.current_leader_epoch != -1 or partition is None:
            return asked
        return asked._replace(current_leader_epoch=partition.leader_epoch)

    def take(self, response: Any) -> Answer:
        """Take in an answer."""
        self.delayed = None
        answer = decoded(self.version, self.stage.made(response))
        if answer.error:
            self.epoch = 0
            self.id = 0 if answer.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND else self.id
            return answer
        if self.epoch == 0:
            assert answer.parts.keys() == self.parts.keys(), "a full answer has all partitions"
            self.known = {}
        assert answer.parts.keys() <= self.parts.keys(), "an answer has partitions that were not asked for"
        self.id = answer.session_id
        self.epoch = self.epoch + 1 if self.id else 0
        self.known |= answer.parts
        return answer

    def fetch(self, *named: hot.FetchPart, forget: tuple[Key, ...] = (), **fields: Any) -> Answer:
        """Send a fetch that is answered at once."""
        outcome = self.start(*named, forget=forget, **fields)
        assert isinstance(outcome, Done), "the fetch waits"
        return self.take(outcome.response)

    def wait(self, *named: hot.FetchPart, forget: tuple[Key, ...] = (), **fields: Any) -> DelayedResponse:
        """Send a fetch that waits."""
        outcome = self.start(*named, forget=forget, **{"max_wait_ms": 500, **fields})
        assert isinstance(outcome, DelayedResponse), "the fetch is answered at once"
        return outcome

    def without_session(self) -> dict[Key, Seen]:
        """What a full fetch would show now, read partition by partition."""
        replica = self.fields["replica_id"]
        session = ReplicaSession(replica, 1, 0) if replica >= 0 else None
        reader = PartitionReader(request(**self.fields), self.stage.context(1, self.version), session)
        return {key: self._read(reader, asked) for key, asked in self.parts.items()}

    @staticmethod
    def _read(reader: PartitionReader, asked: hot.FetchPart) -> Seen:
        found: Any = reader.find(asked)
        if not isinstance(found, hot.FetchOutcome):
            found = reader.read(found, asked, 1 << 40, True)
        records = b"".join(piece.read() for piece in found.slices)
        for piece in found.slices:
            piece.release()
        return Seen(
            found.error, found.high_watermark, found.log_start_offset, records, found.diverging,
            found.preferred_read_replica,
        )  # fmt: skip
