"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455).

The controller begins and cancels moves; any broker lists them, because the partition states of its metadata image name
the replicas that are added and removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fleetlog.brokers.acls.access import ALTER_CLUSTER, DESCRIBE_CLUSTER
from fleetlog.brokers.acls.image import AclOperation
from fleetlog.brokers.api.base import Context, Done, Paced, in_slices, in_task
from fleetlog.brokers.api.by_topic import rows_by_topic
from fleetlog.brokers.api.changes import brief, codes_of, named
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.audit.events import Changes
from fleetlog.brokers.controller.requests import NOT_CONTROLLER_TEXT
from fleetlog.brokers.model import PartitionState, TopicPartition
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

if TYPE_CHECKING:
    from fleetlog.brokers.metadata.cache import MetadataCache


Result = tuple[ErrorCode, str | None]


def _reassign(
    request: AlterPartitionReassignmentsRequest, response: messages.AlterPartitionReassignmentsResponse
) -> Changes:
    def names() -> Iterator[tuple[str, str]]:
        for topic in request.topics:
            parts = (
                f"{part.partition_index} to {'the present ones' if part.replicas is None else list(part.replicas)}"
                for part in topic.partitions
            )
            yield topic.name, brief("replicas of", parts)

    return named("Topic", AclOperation.ALTER, names(), codes_of(response.responses, "name"), response.error_code)


@Row(api_keys.ALTER_PARTITION_REASSIGNMENTS, (ALTER_CLUSTER,), Recorded(_reassign, ("topics",)))
@in_task
async def handle_alter_partition_reassignments(request: AlterPartitionReassignmentsRequest, context: Context) -> Done:
    """AlterPartitionReassignments v0-v1: new replicas for partitions, or null to cancel; each succeeds by itself."""
    if (denied := context.refusal(*ALTER_CLUSTER)) is not ErrorCode.NONE:
        return Done(_altered(context, request, (denied, None), {}))
    wanted = []
    for topic in request.topics:
        for one in topic.partitions:
            await context.yield_now()
            wanted.append((TopicPartition(topic.name, one.partition_index), one.replicas))
    keep_factor = context.api_version >= 1 and not request.allow_replication_factor_change
    refused = await _refused(wanted, context, keep_factor=keep_factor)
    controller = context.services.controller
    results = await controller.alter_reassignments(
        {tp: replicas for tp, replicas in wanted if tp not in refused}, timeout_ms=request.timeout_ms
    )
    elsewhere = any(error is ErrorCode.NOT_CONTROLLER for error, _ in results.values())
    if elsewhere or (not results and not controller.is_active):
        return Done(_altered(context, request, (ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT), {}))
    return Done(_altered(context, request, (ErrorCode.NONE, None), {**results, **refused}))


async def _refused(
    wanted: Sequence[tuple[TopicPartition, Sequence[int] | None]], context: Context, *, keep_factor: bool
) -> dict[TopicPartition, Result]:
    """What is wrong with single lines of the request itself, before the controller is asked."""
    refused: dict[TopicPartition, Result] = {}
    counted = Counter(tp for tp, _ in wanted)
    for tp, replicas in wanted:
        await context.yield_now()
        state = context.services.metadata.partition(tp)
        if counted[tp] > 1:
            refused[tp] = (ErrorCode.INVALID_REQUEST, f"Partition {tp} stands more than once in the request.")
        elif keep_factor and replicas is not None and state is not None and len(replicas) != _factor(state):
            refused[tp] = (
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {_factor(state)} to {len(replicas)}",
            )
    return refused


def _factor(state: PartitionState) -> int:
    """How many replicas the partition has apart from a move that is under way."""
    return len([replica for replica in state.replicas if replica not in state.adding])


@in_slices
def _altered(
    context: Context, request: AlterPartitionReassignmentsRequest, top: Result, results: Mapping[TopicPartition, Result]
) -> Generator[None, None, messages.AlterPartitionReassignmentsResponse]:
    """The answer, made in slices: once the moves stand in ZooKeeper, they are not given up with their client."""
    response = messages.AlterPartitionReassignmentsResponse
    kind = response.ReassignableTopicResponse
    rows = yield from rows_by_topic(
        results.items(),
        lambda tp, result: kind.ReassignablePartitionResponse(
            partition_index=tp.partition, error_code=int(result[0]), error_message=result[1]
        ),
        lambda name, parts: kind(name=name, partitions=parts),
    )
    return response(
        version=context.api_version,
        error_code=int(top[0]),
        error_message=top[1],
        responses=rows,
        allow_replication_factor_change=request.allow_replication_factor_change,
    )


@Row(api_keys.LIST_PARTITION_REASSIGNMENTS, (DESCRIBE_CLUSTER,))
@in_slices
def handle_list_partition_reassignments(request: ListPartitionReassignmentsRequest, context: Context) -> Paced:
    """ListPartitionReassignments v0: the moves under way, of all topics or of those asked for."""
    response = messages.ListPartitionReassignmentsResponse
    version = context.api_version
    metadata = context.services.metadata
    if (denied := context.refusal(*DESCRIBE_CLUSTER)) is not ErrorCode.NONE:
        return Done(response(version=version, error_code=int(denied), error_message=None))
    asked = _all(metadata) if request.topics is None else _named(request.topics)
    moving = {}
    for tp in asked:
        yield
        state = metadata.partition(tp)
        if state is not None and (state.adding or state.removing):
            moving[tp] = state
    kind = response.OngoingTopicReassignment
    rows = yield from rows_by_topic(
        moving.items(),
        lambda tp, state: kind.OngoingPartitionReassignment(
            partition_index=tp.partition,
            replicas=list(state.replicas),
            adding_replicas=list(state.adding),
            removing_replicas=list(state.removing),
        ),
        lambda name, parts: kind(name=name, partitions=parts),
    )
    return Done(response(version=version, error_message=None, topics=rows))


def _all(metadata: MetadataCache) -> Iterator[TopicPartition]:
    """Every partition, of the topics that there are at first."""
    for name, topic in list(metadata.topics.items()):
        for index in range(len(topic.partitions)):
            yield TopicPartition(name, index)


def _named(topics: Iterable[ListPartitionReassignmentsTopics]) -> Iterator[TopicPartition]:
    """The partitions of a request, as often as they are named."""
    for topic in topics:
        for index in topic.partition_indexes:
            yield TopicPartition(topic.name, index)
