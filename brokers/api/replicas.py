"""What brokers ask each other about replicas and leadership: ReplicaEnds, ControlledShutdown.

Internal: not advertised, and answered only on the listener that brokers use among themselves.
"""

from __future__ import annotations

from typing import Any

from brokers.api.base import Context, Done
from brokers.cluster import ends
from wire import messages
from wire.errors import ErrorCode

CONTROLLED_SHUTDOWN_MS = 10_000


def handle_replica_ends(request: Any, context: Context) -> Done:
    """ReplicaEnds v0 (ours): how far this broker's replicas reach, and by which leader epoch they act."""
    if _from_outside(context):
        return Done(
            messages.ReplicaEndsResponse(version=0, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, topics=[])
        )
    services = context.services
    own = services.view.brokers.get(services.config.broker_id)
    if own is None:  # between two lives: nobody may count on what we say
        return Done(messages.ReplicaEndsResponse(version=0, error_code=ErrorCode.BROKER_NOT_AVAILABLE, topics=[]))
    asked: dict[Any, list[int]] = {}
    for topic in request.topics:
        asked.setdefault(topic.topic_id, []).extend(topic.partitions)
    return Done(ends.response(own.incarnation, ends.own_ends(asked, services.view, services.replicas)))


async def handle_controlled_shutdown(request: Any, context: Context) -> Done:
    """ControlledShutdown v3: a broker that is about to stop wants to lead nothing any more."""
    answer = messages.ControlledShutdownResponse
    if _from_outside(context):
        return Done(answer(version=3, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, remaining_partitions=[]))
    error, remaining = await context.services.controller.controlled_shutdown(
        request.broker_id, request.broker_epoch, timeout_ms=CONTROLLED_SHUTDOWN_MS
    )
    rows = [answer.RemainingPartition(version=3, topic_name=tp.topic, partition_index=tp.partition) for tp in remaining]
    return Done(answer(version=3, error_code=int(error), remaining_partitions=rows))


def _from_outside(context: Context) -> bool:
    return context.connection.listener != context.services.config.inter_broker_listener()
