"""What brokers ask each other as leaders, replicas and the controller: ReplicaEnds, AcceptedPositions, WriteLetters,
ControlledShutdown.

Internal: not advertised, and answered only on the listener that brokers use among themselves.
"""

from __future__ import annotations

import logging
from typing import Any

from fleetlog.brokers.acls.access import CLUSTER_ACTION_CLUSTER
from fleetlog.brokers.api.base import Context, Done, Outcome, Paced, in_slices, in_task
from fleetlog.brokers.api.changes import changes_of_brokers
from fleetlog.brokers.api.rows import Cost, Recorded, Row
from fleetlog.brokers.coordinators.share_states import Within
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.replication import ends
from fleetlog.brokers.replication.accepted import ToldPart, own_accepted
from fleetlog.coordination.store import StoreError
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import (
    AcceptedPositionsRequest,
    ControlledShutdownRequest,
    ReplicaEndsRequest,
    WriteLettersRequest,
)

CONTROLLED_SHUTDOWN_MS = 10_000
READ_MS = 1_000
"""For the metadata cache to catch up with ZooKeeper; the controller asks again."""

logger = logging.getLogger(__name__)


@Row(api_keys.REPLICA_ENDS, (CLUSTER_ACTION_CLUSTER,), Recorded(changes_of_brokers), brokers_from=0)
def handle_replica_ends(request: ReplicaEndsRequest, context: Context) -> Outcome:
    """ReplicaEnds v0-v1 (ours): how far this broker's replicas reach, and by which leader epoch they act.

    From v1 on the leaders among them may be asked to act as without a lease, for a planned move.
    """
    version = min(context.api_version, ends.WAIVE_VERSION)
    if _from_outside(context):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, version)
    services = context.services
    own = services.metadata.brokers.get(services.config.broker_id)
    if own is None:
        return _refused(ErrorCode.BROKER_NOT_AVAILABLE, version)
    asked: dict[Any, list[int]] = {}
    for topic in request.topics:
        asked.setdefault(topic.topic_id, []).extend(topic.partitions)
    if version >= ends.WAIVE_VERSION and request.waive_lease:
        return _waive(own.incarnation, asked, context)
    if any(topic_id not in services.metadata.topic_names for topic_id in asked):
        return _after_reading(asked, context, version)
    return _answer(asked, context, version)


def _refused(error: ErrorCode, version: int) -> Done:
    return Done(messages.ReplicaEndsResponse(version=version, error_code=error))


def _answer(
    asked: dict[Any, list[int]], context: Context, version: int, unknown: ErrorCode = ErrorCode.UNKNOWN_TOPIC_ID
) -> Done:
    services = context.services
    # requests are served once this process has registered, so no answer names the incarnation of the one before
    own = services.metadata.brokers.get(services.config.broker_id)
    if own is None:  # between two registrations: the answer would count for neither
        return _refused(ErrorCode.BROKER_NOT_AVAILABLE, version)
    own_ends = ends.own_ends(asked, services.metadata, services.replicas, unknown)
    return Done(ends.response(own.incarnation, own_ends, version))


@in_task
async def _after_reading(asked: dict[Any, list[int]], context: Context, version: int) -> Done:
    """A topic that is unknown here may have been created since: its deletion is not known before its creation is."""
    try:
        current = await context.services.metadata.refreshed(READ_MS)
    except StoreError as problem:
        logger.debug("whether %d topics exist is not known: %s", len(asked), problem)
        current = False
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if current else ErrorCode.BROKER_NOT_AVAILABLE
    return _answer(asked, context, version, unknown)


@in_task
async def _waive(incarnation: int, asked: dict[Any, list[int]], context: Context) -> Done:
    own_ends = await ends.waive(asked, context.services.metadata, context.services.replicas)
    return Done(ends.response(incarnation, own_ends, ends.WAIVE_VERSION))


@Row(api_keys.ACCEPTED_POSITIONS, (CLUSTER_ACTION_CLUSTER,), brokers_from=0)
@in_slices
def handle_accepted_positions(request: AcceptedPositionsRequest, context: Context) -> Paced:
    """AcceptedPositions v0 (ours): what a partition led here had accepted before an offset, for a follower.

    Only for topics that drop duplicates. OFFSET_NOT_AVAILABLE: it is not to be told now, ask again.
    """
    services, kind = context.services, messages.AcceptedPositionsResponse
    name = services.metadata.topic_names.get(request.topic_id) if request.topic_id is not None else None
    error = ErrorCode.NONE
    if _from_outside(context):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif name is None:
        error = ErrorCode.UNKNOWN_TOPIC_ID
    if name is not None and error is ErrorCode.NONE:
        tp = TopicPartition(name, request.partition_index)
        partition, error = services.replicas.leader(tp, request.current_leader_epoch)
        if partition is not None:
            told = yield from own_accepted(partition, request.offset, request.position, request.now_ms)
            if isinstance(told, ToldPart):
                part, size, checksum = told
                return Done(kind(version=0, size=size, checksum=checksum, positions=part))
            error = told
    return Done(kind(version=0, error_code=int(error)))


@Row(api_keys.WRITE_LETTERS, (CLUSTER_ACTION_CLUSTER,), brokers_from=0)
@in_task
async def handle_write_letters(request: WriteLettersRequest, context: Context) -> Done:
    """WriteLetters v0 (ours): dead letters of what a checked topic does not take, for a partition led here."""
    kind = messages.WriteLettersResponse
    if _from_outside(context):
        return Done(kind(version=0, error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)))
    letters = context.services.schema_letters
    assert letters is not None, "it was built"
    within = None
    if request.transactional_id is not None:
        within = Within(request.transactional_id, (request.producer_id, request.producer_epoch))
    tp = TopicPartition(request.topic_name, request.partition_index)
    error, message = await letters.take(tp, within, bytes(request.records))
    return Done(kind(version=0, error_code=int(error), error_message=message))


@Row(
    api_keys.CONTROLLED_SHUTDOWN,
    (CLUSTER_ACTION_CLUSTER,),
    Recorded(changes_of_brokers),
    cost=Cost.CHEAP,
    brokers_from=0,
)
@in_task
async def handle_controlled_shutdown(request: ControlledShutdownRequest, context: Context) -> Done:
    """ControlledShutdown v3: a broker that is about to stop wants to lead nothing any more."""
    answer = messages.ControlledShutdownResponse
    if _from_outside(context):
        return Done(answer(version=3, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    error, remaining = await context.services.controller.controlled_shutdown(
        request.broker_id, request.broker_epoch, timeout_ms=CONTROLLED_SHUTDOWN_MS
    )
    rows = [answer.RemainingPartition(topic_name=tp.topic, partition_index=tp.partition) for tp in remaining]
    return Done(answer(version=3, error_code=int(error), remaining_partitions=rows))


def _from_outside(context: Context) -> bool:
    """Whether the request is not from a broker: it came by another listener, or may not act for the cluster."""
    if not context.allows(*CLUSTER_ACTION_CLUSTER):
        return True
    return context.connection.listener != context.services.config.inter_broker_listener()
