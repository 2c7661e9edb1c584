"""Where offsets lie in logs: a leader's answer to brokers that compute the lag of their consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fleetlog.brokers.groups.lag import LogPosition
from fleetlog.brokers.log import DiskError, LogOffline
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.peers.calls import PeerUnavailable
from fleetlog.brokers.replication.ends import in_chunks
from fleetlog.brokers.replication.partition import Partition
from fleetlog.brokers.replication.serving import Serve
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.peers.calls import PeersPort
    from fleetlog.brokers.replication.replicas import ReplicaManager

PAIRS_PER_REQUEST = 200
"""Making and decoding more would hold the loop for long."""
ASK_MS = 3_000
NO_OFFSET = -1
"""Instead of an offset: only the ends of the log are asked for, which reads nothing."""

Asked = tuple[TopicPartition, int]
"""A partition and an offset in it, or NO_OFFSET."""


def own_position(tp: TopicPartition, offset: int, replicas: ReplicaManager) -> LogPosition | ErrorCode:
    """This leader's answer, or why it has none. With an offset that has a record behind it, one header is read."""
    partition, error = replicas.leader(tp)
    if partition is None:
        return error
    error = partition.may_serve(Serve.LIST_OFFSETS)
    if error is not ErrorCode.NONE:
        return error
    try:
        return _position(partition, offset, replicas.log_start(partition))
    except (LogOffline, DiskError):
        return ErrorCode.KAFKA_STORAGE_ERROR


def _position(partition: Partition, offset: int, start: int) -> LogPosition:
    log = partition.log
    end = log.high_watermark
    since_ms = -1
    if offset >= 0 and max(offset, start) < end:
        since_ms = log.reader.timestamp_from(max(offset, start))
    return LogPosition(start, end, log.last_stable_offset, since_ms)


async def ask_positions(peers: PeersPort, broker_id: int, asked: Iterable[Asked]) -> dict[Asked, LogPosition]:
    """A leader's answers, without those that it could not give. Raises PeerUnavailable, also for a refusal."""
    positions: dict[Asked, LogPosition] = {}
    for chunk in in_chunks(((tp.topic, (tp.partition, offset)) for tp, offset in asked), PAIRS_PER_REQUEST):
        request = messages.LogPositionsRequest
        topics = [
            request.TopicPositions(
                name=name,
                partitions=[request.TopicPositions.AskedPosition(partition_index=i, offset=at) for i, at in pairs],
            )
            for name, pairs in chunk.items()
        ]
        answer = await peers.call(broker_id, request.API_KEY, 0, request(version=0, topics=topics), ASK_MS)
        if answer.error_code:
            raise PeerUnavailable(broker_id, f"log positions: error {answer.error_code}")
        positions.update(_rows(answer))
    return positions


def _rows(answer: Any) -> Iterator[tuple[Asked, LogPosition]]:
    for topic in answer.topics:
        for row in topic.partitions:
            if not row.error_code:
                position = LogPosition(row.start_offset, row.end_offset, row.stable_offset, row.waiting_since_ms)
                yield (TopicPartition(topic.name, row.partition_index), row.offset), position
