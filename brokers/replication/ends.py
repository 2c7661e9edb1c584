"""Log end probes: the ends of this broker's logs, and the controller's requests for them.

An answer has four uses:

- if every replica restarted uncleanly, the longest log is elected (:func:`elections.elect_by_ends`);
- it confirms that the previous leader knows an epoch in which it does not lead; a coordinator's successor waits for
  this (:func:`elections.must_be_heard`);
- before a move removes replicas, it shows that one that stays still has its log (:mod:`controller.move_commands`);
- in a request that waives the lease, it is the leader's permission for a planned move.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fleetlog.brokers.model import BrokerId, LogEnd, PartitionState, TopicPartition
from fleetlog.brokers.peers.calls import PeerUnavailable
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.peers.calls import PeersPort
    from fleetlog.brokers.replication.partition import Partition
    from fleetlog.brokers.replication.replicas import ReplicaManager


K = TypeVar("K")
V = TypeVar("V")


def in_chunks(pairs: Iterable[tuple[K, V]], most: int) -> Iterator[dict[K, list[V]]]:
    """The pairs grouped by their keys, ``most`` of them at a time, in their order."""
    chunk: dict[K, list[V]] = {}
    count = 0
    for key, value in pairs:
        chunk.setdefault(key, []).append(value)
        count += 1
        if count == most:
            yield chunk
            chunk, count = {}, 0
    if chunk:
        yield chunk


WAIVE_VERSION = 1
PARTITIONS_PER_REQUEST = 2_000
ASK_MS = 1_500
EPOCHS_TOLD = 32
"""The newest leader epochs of each log in an answer: they compare the logs of replicas that left the in-sync set."""
DRAIN_S = 0.25
"""How long a leader that waives its lease waits for followers that lack records it has acknowledged."""


class ReplicaEnd(NamedTuple):
    """One replica's answer: ``leader_epoch`` is the newest that its broker has applied; ``end`` needs error NONE.

    KAFKA_STORAGE_ERROR: its log is offline. LOG_DIR_NOT_FOUND: its log was there and is gone.
    UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID: the broker has no such replica, or its metadata cache lacks it.
    BROKER_NOT_AVAILABLE: it lacks the topic, but may have read too little. ``topic_id`` is for those that keep answers
    by name.
    """

    error: ErrorCode
    leader_epoch: int = -1
    end: LogEnd | None = None
    is_leader: bool = False
    topic_id: uuid.UUID | None = None


def own_end(tp: TopicPartition, state: PartitionState, replicas: ReplicaManager) -> ReplicaEnd:
    """This broker's answer for one partition; ``state`` is that of the metadata cache, which replicas apply at once."""
    partition = replicas.get(tp)
    if partition is None:
        return ReplicaEnd(replicas.without_log(tp), state.leader_epoch)
    epoch = partition.leader_epoch if partition.is_leader else state.leader_epoch
    if partition.log.offline:
        return ReplicaEnd(ErrorCode.KAFKA_STORAGE_ERROR, epoch, None, partition.is_leader)
    epochs = partition.log.epochs
    newest = tuple((entry.epoch, entry.start_offset) for entry in epochs.entries[-EPOCHS_TOLD:])
    end = LogEnd(epochs.latest, partition.log.log_end_offset, newest)
    return ReplicaEnd(ErrorCode.NONE, epoch, end, partition.is_leader)


def own_ends(
    asked: Mapping[uuid.UUID, Sequence[int]],
    metadata: MetadataCache,
    replicas: ReplicaManager,
    unknown: ErrorCode = ErrorCode.UNKNOWN_TOPIC_ID,
) -> dict[uuid.UUID, dict[int, ReplicaEnd]]:
    """This broker's answers, by topic id and partition index; ``unknown`` for ids that it does not know."""
    ends: dict[uuid.UUID, dict[int, ReplicaEnd]] = {}
    for topic_id, indexes in asked.items():
        name = metadata.topic_names.get(topic_id)
        answers = ends.setdefault(topic_id, {})
        for index in indexes:
            tp = TopicPartition(name or "", index)
            state = metadata.partition(tp) if name is not None else None
            if state is None:
                answers[index] = ReplicaEnd(unknown if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                answers[index] = own_end(tp, state, replicas)
    return ends


async def waive(
    asked: Mapping[uuid.UUID, Sequence[int]], metadata: MetadataCache, replicas: ReplicaManager
) -> dict[uuid.UUID, dict[int, ReplicaEnd]]:
    """As :func:`own_ends`, after the leaders among these partitions have waived their leases.

    Waits up to DRAIN_S for the replication of records acknowledged with acks=1, so that a successor has them.
    """
    led: list[Partition] = []
    for topic_id, indexes in asked.items():
        name = metadata.topic_names.get(topic_id)
        waived = [replicas.waive_lease(TopicPartition(name, index)) for index in indexes] if name is not None else []
        led += [one for one in waived if one is not None]
    await drained(led)
    return own_ends(asked, metadata, replicas)


async def drained(partitions: Iterable[Partition]) -> None:
    """Return when all records that these leaders have now are committed, or after DRAIN_S."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    waiting = {partition.tp for partition in partitions if not partition.is_committed(partition.log.log_end_offset - 1)}

    def on_committed(tp: TopicPartition, _error: ErrorCode) -> None:
        waiting.discard(tp)
        if not waiting and not done.done():
            done.set_result(None)

    for partition in partitions:
        if partition.tp in waiting:
            callback = functools.partial(on_committed, partition.tp)
            partition.wait_for(partition.log.log_end_offset - 1, callback, gives_up=True)
    if waiting:
        await asyncio.wait([done], timeout=DRAIN_S)


async def ask(
    peers: PeersPort,
    broker_id: BrokerId,
    asked: Mapping[uuid.UUID, Sequence[int]],
    *,
    waive_lease: bool = False,
) -> tuple[int, dict[uuid.UUID, dict[int, ReplicaEnd]]]:
    """A broker's present incarnation and its answers; raises PeerUnavailable, also for an error response.

    With ``waive_lease`` it waives its leases on those that it leads (``BrokerInfo.waives_leases``).
    """
    ends: dict[uuid.UUID, dict[int, ReplicaEnd]] = {}
    incarnation = -1
    pairs = ((topic_id, index) for topic_id, indexes in asked.items() for index in indexes)
    for chunk in in_chunks(pairs, PARTITIONS_PER_REQUEST):
        version = WAIVE_VERSION if waive_lease else 0
        request = _request(chunk, version)
        response = await peers.call(broker_id, request.API_KEY, version, request, ASK_MS)
        if response.error_code != ErrorCode.NONE or incarnation not in (-1, response.incarnation):
            raise PeerUnavailable(broker_id, f"log end probe failed with error {response.error_code}")
        incarnation = response.incarnation
        for topic in response.topics:
            answers = ends.setdefault(topic.topic_id, {})
            answers.update((one.partition_index, _end_from(one)) for one in topic.partitions)
    return incarnation, ends


def _request(asked: Mapping[uuid.UUID, Sequence[int]], version: int) -> Any:
    topic = messages.ReplicaEndsRequest.TopicEnds
    topics = [topic(version=version, topic_id=topic_id, partitions=list(parts)) for topic_id, parts in asked.items()]
    waived = {"waive_lease": True} if version >= WAIVE_VERSION else {}
    return messages.ReplicaEndsRequest(version=version, topics=topics, **waived)


def response(
    incarnation: int, found: Mapping[uuid.UUID, Mapping[int, ReplicaEnd]], version: int = 0
) -> messages.ReplicaEndsResponse:
    """The answers as a ReplicaEnds response."""
    topic = messages.ReplicaEndsResponse.TopicEnds
    rows = [
        topic(
            version=version,
            topic_id=topic_id,
            partitions=[_row(topic, index, one, version) for index, one in ends.items()],
        )
        for topic_id, ends in found.items()
    ]
    return messages.ReplicaEndsResponse(
        version=version, error_code=int(ErrorCode.NONE), incarnation=incarnation, topics=rows
    )


def _row(topic: Any, index: int, one: ReplicaEnd, version: int) -> Any:
    end = one.end if one.end is not None else LogEnd(-1, -1)
    return topic.PartitionEnd(
        version=version,
        partition_index=index,
        error_code=int(one.error),
        leader_epoch=one.leader_epoch,
        last_epoch=end.last_epoch,
        log_end_offset=end.offset,
        is_leader=one.is_leader,
        epochs=[epoch for epoch, _ in end.epochs],
        epoch_starts=[start for _, start in end.epochs],
    )


def _end_from(row: Any) -> ReplicaEnd:
    try:
        error = ErrorCode(row.error_code)
    except ValueError:
        error = ErrorCode.UNKNOWN_SERVER_ERROR
    epochs = tuple(zip(row.epochs or (), row.epoch_starts or (), strict=False))
    end = LogEnd(row.last_epoch, row.log_end_offset, epochs) if error is ErrorCode.NONE else None
    return ReplicaEnd(error, row.leader_epoch, end, row.is_leader)
