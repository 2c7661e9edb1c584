"""ListOffsets (2), DeleteRecords (21) and OffsetForLeaderEpoch (23): the ends of a log.

A consumer sees committed records only, a replica sees all. A leader that was just elected may not know yet how far its
predecessor's records were committed: until then it answers OFFSET_NOT_AVAILABLE, not an offset lower than one that was
answered before (KIP-207, KIP-320).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog.brokers.acls.access import (
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_ACTION_CLUSTER,
    DELETE,
    DELETE_TOPIC,
    DESCRIBE,
    DESCRIBE_TOPIC,
    TOPIC,
)
from fleetlog.brokers.acls.image import AclOperation
from fleetlog.brokers.api.base import Context, Done, InSlices, Paced, Services, in_slices, in_task, worked
from fleetlog.brokers.api.changes import brief, codes_of, named
from fleetlog.brokers.api.rows import Cost, Recorded, Row
from fleetlog.brokers.api.unpacking import Unpacking
from fleetlog.brokers.api.waiting import JoinedResponse
from fleetlog.brokers.audit.events import Changes
from fleetlog.brokers.log import DiskError, LogOffline
from fleetlog.brokers.log.read import LogReader
from fleetlog.brokers.model import PROTECTED_TOPICS, SCHEMAS_TOPIC, TopicPartition
from fleetlog.brokers.replication.partition import Partition
from fleetlog.brokers.replication.replicas import LedPartition
from fleetlog.brokers.replication.serving import Serve
from fleetlog.brokers.tiering.cold_reads import TierUnavailable
from fleetlog.brokers.tiering.tiers import Tiers, is_tiered
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.messages import DeleteRecordsResponse, ListOffsetsResponse, OffsetForLeaderEpochResponse
from fleetlog.wire.requests import (
    DeleteRecordsRequest,
    ListOffsetsRequest,
    ListOffsetsTopicsPartitions,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochTopicsPartitions,
)

if TYPE_CHECKING:
    _Moved = tuple[DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult, Partition]

logger = logging.getLogger(__name__)

READ_COMMITTED = 1
CONSUMER, DEBUGGING_REPLICA = -1, -2
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_FIRST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_OF_TIER = (EARLIEST, LATEST_TIERED, EARLIEST_PENDING_UPLOAD, MAX_TIMESTAMP)
HIGH_WATERMARK = -1
NOT_AVAILABLE_VERSION = 5
REPLICA_ID_VERSION = 3
CONFIRM_MS, CONFIRM_MAX_MS = 5_000, 30_000
"""How long a question waits for followers to confirm that this broker still leads: if it says nothing, and at most."""
FOLLOWED_LOOK_S, FOLLOWED_MAX_MS = 0.02, 120_000
"""How often DeleteRecords, a rare request, looks whether the followers have deleted, too; and for how long at most."""
_DELETE_DENIED = LedPartition(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class Found(NamedTuple):
    """An answer of ListOffsets for one partition; -1 for what is not there."""

    error: ErrorCode = ErrorCode.NONE
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@Row(api_keys.LIST_OFFSETS, (DESCRIBE_TOPIC,), cost=Cost.CHEAP)
@in_slices
def handle_list_offsets(request: ListOffsetsRequest, context: Context) -> Paced:
    """The offset for a timestamp, or for one of the special ones. Read committed, the latest is the stable one.

    A leader without its lease asks its followers first: an answer from memory could be older than a successor's.
    """
    names = (topic.name for topic in request.topics if topic.name != SCHEMAS_TOPIC or not context.acts_as_broker())
    denied = yield from context.denied_in_turns(DESCRIBE, TOPIC, names)
    twice = yield from _named_twice(request)
    listing = _Listing(request, context, denied, twice)
    unconfirmed = yield from listing.unconfirmed()
    if not unconfirmed:
        done = yield from listing.paced()
        return listing.colder(done.response) if listing.cold else done
    return listing.delay(unconfirmed).outcome()


class _View(NamedTuple):
    """A partition at the moment for which an answer is true: this broker leads, by its lease or its followers' word."""

    limit: int
    """The offset behind what the client may see."""
    behind: bool
    """Whether this leader does not know yet how far its predecessor had committed."""
    leader: tuple[bool, int]
    """Whether this broker leads, and in which epoch."""
    partition: Partition
    """Whose view it is: another topic of that name has another one."""
    tiered: bool
    """Whether what is in the bucket counts; not for followers, which begin where their leader's log does."""


class _Listing:
    """One ListOffsets, possibly waiting for followers to confirm that this broker leads."""

    def __init__(
        self, request: ListOffsetsRequest, context: Context, denied: frozenset[str], twice: set[TopicPartition]
    ) -> None:
        self._request = request
        self._context = context
        self._refused: dict[TopicPartition, ErrorCode] = {}
        self._confirmed: dict[TopicPartition, _View] = {}
        self._twice = twice
        self._denied = denied
        self.cold: dict[TopicPartition, tuple[_View, int]] = {}
        """Times to be looked for in the bucket."""

    def unconfirmed(self) -> Generator[None, None, dict[TopicPartition, Partition]]:
        """The partitions led here, as far as this broker knows, whose lease does not answer for them. Paced work."""
        uncertain: dict[TopicPartition, Partition] = {}
        replicas = self._context.services.replicas
        if self._request.replica_id != CONSUMER:
            return uncertain
        for topic in self._request.topics:
            if topic.name in self._denied:
                continue
            for part in topic.partitions:
                yield
                tp = TopicPartition(topic.name, part.partition_index)
                partition, _ = replicas.leader(tp, part.current_leader_epoch)
                if partition is not None and tp not in self._twice and not partition.lease_valid():
                    uncertain[tp] = partition
        return uncertain

    def delay(self, partitions: dict[TopicPartition, Partition]) -> JoinedResponse:
        """Wait until each of them is confirmed or refused; those that are neither in time are refused."""
        timeout_ms = self._request.timeout_ms if self._context.api_version >= 10 else 0
        wait_ms = min(timeout_ms, CONFIRM_MAX_MS) if timeout_ms > 0 else CONFIRM_MS

        def render(errors: list[ErrorCode]) -> InSlices:
            for (tp, partition), error in zip(partitions.items(), errors, strict=True):
                if error is ErrorCode.NONE:
                    self._confirmed[tp] = _view(partition, self._request, self._context)
                else:
                    self._refused[tp] = error
            return self.answer()

        joined = JoinedResponse([ErrorCode.NOT_LEADER_OR_FOLLOWER] * len(partitions), render, wait_ms)
        for index, partition in enumerate(partitions.values()):
            partition.when_confirmed(partial(joined.take, index))
        return joined

    @in_slices
    def answer(self) -> Generator[Any, None, Any]:
        """What the logs say now, partition by partition."""
        return (yield from self.paced()).response

    def paced(self) -> Generator[Any, None, Done]:
        """The same, partition by partition."""
        topics = []
        for topic in self._request.topics:
            yield
            answers = []
            for part in topic.partitions:
                yield
                yield from self._context.services.unpacking.share()
                offset = yield from self._find(TopicPartition(topic.name, part.partition_index), part)
                answers.append(
                    ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
                        partition_index=part.partition_index,
                        error_code=offset.error,
                        timestamp=offset.timestamp,
                        offset=offset.offset,
                        leader_epoch=offset.leader_epoch,
                    )
                )
            topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return Done(ListOffsetsResponse(version=self._context.api_version, topics=topics))

    def _find(self, tp: TopicPartition, part: ListOffsetsTopicsPartitions) -> Generator[object, None, Found]:
        version = self._context.api_version
        if tp.topic in self._denied:
            return Found(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if tp in self._twice:
            return Found(ErrorCode.INVALID_REQUEST)
        if version < _FIRST_VERSION.get(part.timestamp, 1 if part.timestamp >= EARLIEST else 32767):
            return Found(ErrorCode.UNSUPPORTED_VERSION)
        if tp in self._refused:
            return Found(self._refused[tp])
        partition, error = self._partition(tp, part.current_leader_epoch)
        if partition is None:
            return Found(error)
        view = self._confirmed.get(tp)
        if view is None:
            if self._request.replica_id == CONSUMER and not partition.lease_valid():
                return Found(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # it had its lease when the request came
            view = _view(partition, self._request, self._context)
        elif view.partition is not partition:
            return Found(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        offset: Found | None = None
        if view.tiered and (part.timestamp >= 0 or part.timestamp in _OF_TIER):
            offset = self._of_tier(tp, view, part.timestamp)
        try:
            if offset is None:
                offset = yield from _lookup(view, part.timestamp, self._context.services.unpacking)
        except (LogOffline, DiskError):
            if self._partition(tp, part.current_leader_epoch).partition is not partition:
                return Found(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # deleted meanwhile, or moved
            return Found(ErrorCode.KAFKA_STORAGE_ERROR)
        if offset.error is ErrorCode.OFFSET_NOT_AVAILABLE and version < NOT_AVAILABLE_VERSION:
            return Found(ErrorCode.LEADER_NOT_AVAILABLE)
        return offset

    def _of_tier(self, tp: TopicPartition, view: _View, timestamp: int) -> Found | None:
        """Of a tiered partition: where it begins, what is in the bucket, what is to be copied next.

        A time that may be in the bucket is noted, for :meth:`colder`; None if only the log may have it.
        """
        tiers, partition = self._context.services.tiers, view.partition
        if tiers is None:  # this broker has no bucket: another leader may have
            return Found(ErrorCode.KAFKA_STORAGE_ERROR)
        start, end = tiers.start_of(partition), tiers.end_of(partition)
        if start is None or end is None:
            return Found(ErrorCode.OFFSET_NOT_AVAILABLE)
        if timestamp == EARLIEST:
            return Found(offset=start[0], leader_epoch=start[1])
        if timestamp == LATEST_TIERED:
            return Found(offset=end[0], leader_epoch=end[1])
        if timestamp == EARLIEST_PENDING_UPLOAD:
            pending = max(end[0] + 1, start[0])
            return Found(offset=pending, leader_epoch=partition.log.epochs.epoch_at(pending))
        if not (tiers.newest_times(partition) if timestamp == MAX_TIMESTAMP else tiers.may_hold(partition, timestamp)):
            return None
        self.cold[tp] = view, timestamp
        return Found(ErrorCode.OFFSET_NOT_AVAILABLE)

    @in_task
    async def colder(self, response: ListOffsetsResponse) -> Done:
        """The same answer, with those times looked up for which the bucket is asked, first in there, then here."""
        services = self._context.services
        assert services.tiers is not None, "some are of tiered topics"
        for topic in response.topics:
            for part in topic.partitions:
                view, timestamp = self.cold.get(TopicPartition(topic.name, part.partition_index), (None, -1))
                if view is None:
                    continue
                try:
                    if timestamp == MAX_TIMESTAMP:
                        offset = await _newest(view, services.tiers, services.unpacking)
                    else:
                        match = await services.tiers.at_time(view.partition, timestamp)
                        offset = (
                            Found(ErrorCode.NONE, match[1], match[0], match[2])
                            if match is not None
                            else await worked(_lookup(view, timestamp, services.unpacking))
                        )
                except (TierUnavailable, LogOffline, DiskError):
                    offset = Found(ErrorCode.KAFKA_STORAGE_ERROR)
                part.error_code, part.timestamp = offset.error, offset.timestamp
                part.offset, part.leader_epoch = offset.offset, offset.leader_epoch
        return Done(response)

    def _partition(self, tp: TopicPartition, current_leader_epoch: int) -> LedPartition:
        replicas = self._context.services.replicas
        if self._request.replica_id == DEBUGGING_REPLICA:
            replica = replicas.get(tp)
            if replica is not None:
                error = replica.check_epoch(current_leader_epoch)
                return LedPartition(replica if error is ErrorCode.NONE else None, error)
        return replicas.leader(tp, current_leader_epoch)


def _named_twice(request: ListOffsetsRequest) -> Generator[None, None, set[TopicPartition]]:
    seen: set[TopicPartition] = set()
    twice: set[TopicPartition] = set()
    for topic in request.topics:
        for part in topic.partitions:
            yield
            tp = TopicPartition(topic.name, part.partition_index)
            (twice if tp in seen else seen).add(tp)
    return twice


def _view(partition: Partition, request: ListOffsetsRequest, context: Context) -> _View:
    """A replica, which is no consumer, sees what is not committed."""
    log = partition.log
    leader = partition.is_leader, partition.leader_epoch
    tiered = request.replica_id < 0 and partition.is_leader and is_tiered(partition, context.services.metadata)
    if request.replica_id != CONSUMER:
        return _View(log.log_end_offset, False, leader, partition, tiered)
    limit = log.last_stable_offset if request.isolation_level == READ_COMMITTED else log.high_watermark
    return _View(limit, log.high_watermark < partition.epoch_start_offset, leader, partition, tiered)


def _lookup(view: _View, timestamp: int, unpacking: Unpacking) -> Generator[object, None, Found]:
    """The answer as of the view; a search may take long."""
    partition, log = view.partition, view.partition.log
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return Found(offset=log.log_start_offset, leader_epoch=log.epochs.epoch_at(log.log_start_offset))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return Found()  # nothing is tiered
    if timestamp == LATEST:
        if view.behind:
            return Found(ErrorCode.OFFSET_NOT_AVAILABLE)
        return Found(offset=view.limit, leader_epoch=view.leader[1])
    match = yield from _search(log.reader, timestamp, unpacking)
    if (partition.is_leader, partition.leader_epoch) != view.leader:
        return Found(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # what was searched may have been cut meanwhile
    if match is None or match[0] >= view.limit:
        return Found(ErrorCode.OFFSET_NOT_AVAILABLE) if view.behind else Found()
    offset, stamp, leader_epoch = match
    return Found(ErrorCode.NONE, stamp, offset, leader_epoch)


async def _newest(view: _View, tiers: Tiers, unpacking: Unpacking) -> Found:
    """The first record of the largest timestamp, here and in the bucket. Raises TierUnavailable, LogOffline, DiskError.

    A segment's newest record may have been deleted by a client: then the next one's counts.
    """
    here = await worked(_lookup(view, MAX_TIMESTAMP, unpacking))
    if here.error is not ErrorCode.NONE:
        return here
    for timestamp in tiers.newest_times(view.partition):
        if timestamp < here.timestamp:
            break
        match = await tiers.at_time(view.partition, timestamp)
        if match is not None:
            return Found(ErrorCode.NONE, match[1], match[0], match[2])
    return here


def _search(
    reader: LogReader, timestamp: int, unpacking: Unpacking
) -> Generator[Any, None, tuple[int, int, int] | None]:
    """Offset, timestamp and leader epoch of the record that is asked for by its time."""
    if timestamp == MAX_TIMESTAMP:
        return reader.max_timestamp(unpacking.spend)
    steps = reader.search_timestamp(timestamp, unpacking.spend)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]
        yield
        yield from unpacking.share()


def _delete_records(request: DeleteRecordsRequest, response: DeleteRecordsResponse) -> Changes:
    def names() -> Iterator[tuple[str, str]]:
        for topic in request.topics:
            parts = (f"{part.partition_index} before {part.offset}" for part in topic.partitions)
            yield topic.name, brief("partitions", parts)

    return named("Topic", AclOperation.DELETE, names(), codes_of(response.topics, "name"))


@Row(api_keys.DELETE_RECORDS, (DELETE_TOPIC,), Recorded(_delete_records, ("topics",)))
@in_slices
def handle_delete_records(request: DeleteRecordsRequest, context: Context) -> Paced:
    """Move the start of logs; -1 means up to the high watermark. Answered once every living replica has followed."""
    response = DeleteRecordsResponse(version=context.api_version, topics=[])
    moved: list[_Moved] = []
    denied = yield from context.denied_in_turns(DELETE, TOPIC, (topic.name for topic in request.topics))
    for topic in request.topics:
        result = DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=[])
        for part in topic.partitions:
            yield
            deleted, error = _DELETE_DENIED
            if topic.name not in denied:
                deleted, error = _delete(TopicPartition(topic.name, part.partition_index), part.offset, context)
            answer = result.DeleteRecordsPartitionResult(partition_index=part.partition_index, low_watermark=-1)
            if deleted is None:
                answer.error_code = error
            else:
                answer.low_watermark = _start_of(deleted, context.services.tiers)
                moved.append((answer, deleted))
            result.partitions.append(answer)
        response.topics.append(result)
    behind: list[_Moved] = []
    for one in moved:
        yield
        if _saved(*one):
            behind += _behind([one], context.services.tiers)
    return _followed(behind, response, request.timeout_ms, context.services.tiers) if behind else Done(response)


def _saved(
    answer: DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult, partition: Partition
) -> bool:
    """Whether a killed process would find the log's new start again; otherwise the answer says so."""
    if partition.deleted:
        answer.error_code, answer.low_watermark = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        return False
    try:
        partition.log.truncation.save_start()
    except (LogOffline, DiskError) as problem:
        logger.error("%s: its new start %d is not saved: %s", partition.tp, answer.low_watermark, problem)
        answer.error_code, answer.low_watermark = ErrorCode.KAFKA_STORAGE_ERROR, -1
        return False
    return True


def _start_of(partition: Partition, tiers: Tiers | None) -> int:
    """Where clients may begin."""
    return partition.log.log_start_offset if tiers is None else tiers.log_start(partition)


def _behind(moved: list[_Moved], tiers: Tiers | None) -> list[_Moved]:
    """Those of which a replica that counts begins below the answer's low watermark, or whose manifest does."""
    return [
        (answer, partition)
        for answer, partition in moved
        if partition.lowest_start() < min(answer.low_watermark, partition.log.log_start_offset)
        or not (tiers is None or tiers.has_deleted(partition))
    ]


@in_task
async def _followed(
    behind: list[_Moved], response: DeleteRecordsResponse, timeout_ms: int, tiers: Tiers | None
) -> Done:
    """Wait for the followers' logs to begin where the leader's do; an error after the timeout, as in Kafka."""
    deadline = asyncio.get_running_loop().time() + min(timeout_ms, FOLLOWED_MAX_MS) / 1000
    while any(partition.is_leader for _, partition in behind) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(FOLLOWED_LOOK_S)
        behind = _behind(behind, tiers)
    for answer, partition in behind:
        answer.error_code = ErrorCode.REQUEST_TIMED_OUT if partition.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer.low_watermark = -1
    return Done(response)


def _delete(tp: TopicPartition, offset: int, context: Context) -> LedPartition:
    """The partition, whose log begins at the offset now, or what is wrong."""
    if tp.topic in PROTECTED_TOPICS:
        return LedPartition(None, ErrorCode.INVALID_TOPIC_EXCEPTION)
    led = context.services.replicas.leader(tp)
    if led.partition is not None:
        error = _delete_before(led.partition, offset, context.services)
        if error is not ErrorCode.NONE:
            return LedPartition(None, error)
    return led


def _delete_before(partition: Partition, offset: int, services: Services) -> ErrorCode:
    error = partition.may_serve(Serve.LIST_OFFSETS)
    if error is not ErrorCode.NONE:
        return error
    log = partition.log
    if "delete" not in log.config.cleanup_policy:
        return ErrorCode.POLICY_VIOLATION
    target = log.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= target <= log.high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    tiers = services.tiers
    if is_tiered(partition, services.metadata) and (tiers is None or not tiers.delete_before(partition, target)):
        return ErrorCode.KAFKA_STORAGE_ERROR
    try:
        log.truncation.delete_records_before(target)
    except (LogOffline, DiskError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    partition.committed()  # a fetch that waits below the new start is out of range now; followers delete, too
    return ErrorCode.NONE


# one of both
@Row(api_keys.OFFSET_FOR_LEADER_EPOCH, (CLUSTER_ACTION_CLUSTER, DESCRIBE_TOPIC), cost=Cost.CHEAP)
@in_slices
def handle_offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, context: Context) -> Paced:
    """Where an epoch ended, so that a client or a follower finds out whether its position was truncated (KIP-320)."""
    consumer = context.api_version < REPLICA_ID_VERSION or request.replica_id == CONSUMER
    denied: frozenset[str] = frozenset()
    if context.allows(CLUSTER_ACTION, CLUSTER, logged=False):
        context.exempted = not consumer and request.replica_id >= 0
    else:
        denied = yield from context.denied_in_turns(DESCRIBE, TOPIC, (topic.topic for topic in request.topics))
    topics = []
    for topic in request.topics:
        answers = []
        for part in topic.partitions:
            yield
            error, epoch, end_offset = ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, -1
            if topic.topic not in denied:
                error, epoch, end_offset = _epoch_end(
                    TopicPartition(topic.topic, part.partition), part, consumer, context
                )
            answers.append(
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset(
                    partition=part.partition, error_code=error, leader_epoch=epoch, end_offset=end_offset
                )
            )
        topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
    return Done(OffsetForLeaderEpochResponse(version=context.api_version, topics=topics))


def _epoch_end(
    tp: TopicPartition, part: OffsetForLeaderEpochTopicsPartitions, consumer: bool, context: Context
) -> tuple[ErrorCode, int, int]:
    partition, error = context.services.replicas.leader(tp, part.current_leader_epoch)
    if partition is None:
        return error, -1, -1
    log = partition.log
    epoch, end_offset = log.epoch_end_offset(part.leader_epoch)
    if not consumer:  # a replica's epoch was checked; a lease says nothing that it doesn't
        return ErrorCode.NONE, epoch, end_offset
    error = partition.may_serve(Serve.LIST_OFFSETS)
    if error is not ErrorCode.NONE:
        return error, -1, -1
    if end_offset <= log.high_watermark:
        return ErrorCode.NONE, epoch, end_offset
    if log.high_watermark < partition.epoch_start_offset:  # a lower end than the true one would look like truncation
        return ErrorCode.OFFSET_NOT_AVAILABLE, -1, -1
    return ErrorCode.NONE, epoch, log.high_watermark
