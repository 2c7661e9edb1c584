"""How far replicas reach: what a broker says of its own logs, and how the controller asks for it.

The answer serves twice. Where every replica restarted uncleanly, the log that reaches furthest is chosen
(:func:`elections.elect_by_ends`). And it is the former leader's word that it has heard of an epoch in which it doesn't
lead, which a coordinator's successor has to wait for (:func:`elections.must_be_heard`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brokers.cluster.elections import LogEnd
from brokers.cluster.peers import PeerUnavailable
from brokers.model import BrokerId, PartitionState, TopicPartition
from wire import messages
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from brokers.cluster.partition import Partition
    from brokers.cluster.peers import PeersPort
    from brokers.cluster.view import ClusterView

REPLICA_ENDS_KEY = 12000
PARTITIONS_PER_REQUEST = 2_000
ASK_MS = 1_500


class Replicas(Protocol):
    """The replicas of this broker."""

    def get(self, tp: TopicPartition) -> Partition | None:
        """The replica, whatever its role."""
        ...


class ReplicaEnd(NamedTuple):
    """One replica's answer: ``leader_epoch`` is the newest that its broker acts by; ``end`` comes with error NONE only.

    KAFKA_STORAGE_ERROR: its log is offline. UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID: this broker has no such
    replica, or doesn't know of it yet.
    """

    error: ErrorCode
    leader_epoch: int = -1
    end: LogEnd | None = None
    is_leader: bool = False


def own_end(tp: TopicPartition, state: PartitionState, replicas: Replicas) -> ReplicaEnd:
    """What this broker says of one partition; ``state`` is its view's, which the replicas follow at once."""
    partition = replicas.get(tp)
    if partition is None:
        return ReplicaEnd(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, state.leader_epoch)
    epoch = partition.leader_epoch if partition.is_leader else state.leader_epoch
    if partition.log.offline:
        return ReplicaEnd(ErrorCode.KAFKA_STORAGE_ERROR, epoch, None, partition.is_leader)
    end = LogEnd(partition.log.epochs.latest, partition.log.log_end_offset)
    return ReplicaEnd(ErrorCode.NONE, epoch, end, partition.is_leader)


def own_ends(
    asked: Mapping[uuid.UUID, Sequence[int]], view: ClusterView, replicas: Replicas
) -> dict[uuid.UUID, dict[int, ReplicaEnd]]:
    """What this broker says of the partitions asked for."""
    found: dict[uuid.UUID, dict[int, ReplicaEnd]] = {}
    for topic_id, indexes in asked.items():
        name = view.topic_names.get(topic_id)
        answers = found.setdefault(topic_id, {})
        for index in indexes:
            tp = TopicPartition(name or "", index)
            state = view.partition(tp) if name is not None else None
            if state is None:
                unknown = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answers[index] = ReplicaEnd(unknown)
            else:
                answers[index] = own_end(tp, state, replicas)
    return found


async def ask(
    peers: PeersPort, broker_id: BrokerId, asked: Mapping[uuid.UUID, Sequence[int]]
) -> tuple[int, dict[uuid.UUID, dict[int, ReplicaEnd]]]:
    """A broker's present incarnation and its answers; raises PeerUnavailable, also where it refuses to answer."""
    found: dict[uuid.UUID, dict[int, ReplicaEnd]] = {}
    incarnation = -1
    for chunk in _chunks(asked):
        response = await peers.call(broker_id, REPLICA_ENDS_KEY, 0, _request(chunk), ASK_MS)
        if response.error_code != ErrorCode.NONE or incarnation not in (-1, response.incarnation):
            raise PeerUnavailable(broker_id, f"doesn't tell its replicas' ends (error {response.error_code})")
        incarnation = response.incarnation
        for topic in response.topics:
            answers = found.setdefault(topic.topic_id, {})
            answers.update((one.partition_index, _end_from(one)) for one in topic.partitions)
    return incarnation, found


def _chunks(asked: Mapping[uuid.UUID, Sequence[int]]) -> Iterable[dict[uuid.UUID, list[int]]]:
    chunk: dict[uuid.UUID, list[int]] = {}
    count = 0
    for topic_id, indexes in asked.items():
        for index in indexes:
            chunk.setdefault(topic_id, []).append(index)
            count += 1
            if count == PARTITIONS_PER_REQUEST:
                yield chunk
                chunk, count = {}, 0
    if chunk:
        yield chunk


def _request(asked: Mapping[uuid.UUID, Sequence[int]]) -> Any:
    topic = messages.ReplicaEndsRequest.TopicEnds
    topics = [topic(version=0, topic_id=topic_id, partitions=list(found)) for topic_id, found in asked.items()]
    return messages.ReplicaEndsRequest(version=0, topics=topics)


def response(incarnation: int, found: Mapping[uuid.UUID, Mapping[int, ReplicaEnd]]) -> messages.ReplicaEndsResponse:
    """The answer as a message."""
    topic = messages.ReplicaEndsResponse.TopicEnds
    rows = [
        topic(
            version=0,
            topic_id=topic_id,
            partitions=[_row(topic, index, one) for index, one in ends.items()],
        )
        for topic_id, ends in found.items()
    ]
    return messages.ReplicaEndsResponse(version=0, error_code=int(ErrorCode.NONE), incarnation=incarnation, topics=rows)


def _row(topic: Any, index: int, one: ReplicaEnd) -> Any:
    end = one.end if one.end is not None else LogEnd(-1, -1)
    return topic.PartitionEnd(
        version=0,
        partition_index=index,
        error_code=int(one.error),
        leader_epoch=one.leader_epoch,
        last_epoch=end.last_epoch,
        log_end_offset=end.offset,
        is_leader=one.is_leader,
    )


def _end_from(row: Any) -> ReplicaEnd:
    try:
        error = ErrorCode(row.error_code)
    except ValueError:
        error = ErrorCode.UNKNOWN_SERVER_ERROR
    end = LogEnd(row.last_epoch, row.log_end_offset) if error is ErrorCode.NONE else None
    return ReplicaEnd(error, row.leader_epoch, end, row.is_leader)
