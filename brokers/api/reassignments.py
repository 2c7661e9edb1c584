"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455).

Moves are begun and cancelled at the controller; any broker lists them, since the states of its view tell who is being
added and who is to go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from brokers.api.base import Context, Done
from brokers.api.by_topic import by_topic
from brokers.cluster.controller import NOT_CONTROLLER_TEXT
from brokers.model import PartitionState, TopicPartition
from wire import messages
from wire.errors import ErrorCode

ALTER_PARTITION_REASSIGNMENTS_KEY = 45
LIST_PARTITION_REASSIGNMENTS_KEY = 46

Result = tuple[ErrorCode, str | None]


async def handle_alter_partition_reassignments(request: Any, context: Context) -> Done:
    """AlterPartitionReassignments v0-v1: new replicas for partitions, or null to cancel; each succeeds by itself."""
    wanted = [
        (TopicPartition(topic.name, one.partition_index), one.replicas)
        for topic in request.topics
        for one in topic.partitions
    ]
    keep_factor = context.api_version >= 1 and not request.allow_replication_factor_change
    refused = _refused(wanted, context, keep_factor=keep_factor)
    controller = context.services.controller
    results = await controller.alter_reassignments(
        {tp: replicas for tp, replicas in wanted if tp not in refused}, timeout_ms=request.timeout_ms
    )
    elsewhere = any(error is ErrorCode.NOT_CONTROLLER for error, _ in results.values())
    if elsewhere or (not results and not controller.is_active):
        return Done(_altered(context, request, (ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT), {}))
    return Done(_altered(context, request, (ErrorCode.NONE, None), {**results, **refused}))


def _refused(
    wanted: Sequence[tuple[TopicPartition, Sequence[int] | None]], context: Context, *, keep_factor: bool
) -> dict[TopicPartition, Result]:
    """What is wrong with single lines of the request itself, before the controller is asked."""
    found: dict[TopicPartition, Result] = {}
    counted = Counter(tp for tp, _ in wanted)
    for tp, replicas in wanted:
        state = context.services.view.partition(tp)
        if counted[tp] > 1:
            found[tp] = (ErrorCode.INVALID_REQUEST, f"Partition {tp} stands more than once in the request.")
        elif keep_factor and replicas is not None and state is not None and len(replicas) != _factor(state):
            found[tp] = (
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {_factor(state)} to {len(replicas)}",
            )
    return found


def _factor(state: PartitionState) -> int:
    """How many replicas the partition has apart from a move that is under way."""
    return len([replica for replica in state.replicas if replica not in state.adding])


def _altered(context: Context, request: Any, top: Result, results: Mapping[TopicPartition, Result]) -> Any:
    response = messages.response_class(ALTER_PARTITION_REASSIGNMENTS_KEY)
    version = context.api_version
    topic_row = response.ReassignableTopicResponse
    rows = [
        topic_row(
            version=version,
            name=name,
            partitions=[
                topic_row.ReassignablePartitionResponse(
                    version=version, partition_index=tp.partition, error_code=int(error), error_message=message
                )
                for tp, (error, message) in found
            ],
        )
        for name, found in by_topic(results.items())
    ]
    fields = {"error_code": int(top[0]), "error_message": top[1], "responses": rows}
    if version >= 1:
        fields["allow_replication_factor_change"] = request.allow_replication_factor_change
    return response(version=version, **fields)


def handle_list_partition_reassignments(request: Any, context: Context) -> Done:
    """ListPartitionReassignments v0: the moves under way, of all topics or of those asked for."""
    response = messages.response_class(LIST_PARTITION_REASSIGNMENTS_KEY)
    version = context.api_version
    view = context.services.view
    asked: Iterable[TopicPartition]
    if request.topics is None:
        asked = (
            TopicPartition(name, index) for name, topic in view.topics.items() for index in range(len(topic.partitions))
        )
    else:
        asked = dict.fromkeys(TopicPartition(t.name, index) for t in request.topics for index in t.partition_indexes)
    states = ((tp, view.partition(tp)) for tp in asked)
    moving = [(tp, state) for tp, state in states if state is not None and (state.adding or state.removing)]
    topic_row = response.OngoingTopicReassignment
    rows = [
        topic_row(
            version=version,
            name=name,
            partitions=[
                topic_row.OngoingPartitionReassignment(
                    version=version,
                    partition_index=tp.partition,
                    replicas=list(state.replicas),
                    adding_replicas=list(state.adding),
                    removing_replicas=list(state.removing),
                )
                for tp, state in found
            ],
        )
        for name, found in by_topic(moving)
    ]
    return Done(response(version=version, error_code=0, error_message=None, topics=rows))
