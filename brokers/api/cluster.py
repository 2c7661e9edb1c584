"""The brokers of the cluster: DescribeCluster, and UnregisterBroker (key 64, KIP-631) for one that is gone for good."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fleetlog.brokers.acls.access import ALTER_CLUSTER, CLUSTER, DESCRIBE_CLUSTER, bits
from fleetlog.brokers.acls.image import CLUSTER_NAME, AclOperation
from fleetlog.brokers.api.base import WRITE_SECONDS, Context, Done, in_task
from fleetlog.brokers.api.rows import Cost, Recorded, Row
from fleetlog.brokers.audit.events import Change, Changes
from fleetlog.coordination.registration import DuplicateBroker, remove_record
from fleetlog.coordination.store import UNANSWERED, StoreError
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import DescribeClusterRequest, UnregisterBrokerRequest

BROKERS = 1
CONTROLLERS = 2

logger = logging.getLogger(__name__)


# for the operations of the answer
@Row(api_keys.DESCRIBE_CLUSTER, (DESCRIBE_CLUSTER,), cost=Cost.CHEAP)
def handle_describe_cluster(request: DescribeClusterRequest, context: Context) -> Done:
    """DescribeCluster v0-v2. Brokers without an address on the client's listener are left out, as in Metadata."""
    response = messages.DescribeClusterResponse
    version = context.api_version
    metadata = context.services.metadata
    fields: dict[str, Any] = {"error_code": 0, "error_message": None, "cluster_id": metadata.cluster_id}
    if version >= 1:
        fields["endpoint_type"] = request.endpoint_type
        if request.endpoint_type != BROKERS:
            controllers = request.endpoint_type == CONTROLLERS
            error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if controllers else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            fields["error_code"], fields["error_message"] = int(error), "The request was sent to a broker endpoint."
            return Done(response(version=version, **fields))
    rows = []
    for broker_id in sorted(metadata.brokers):
        broker = metadata.brokers[broker_id]
        endpoint = broker.endpoint(context.connection.listener)
        if endpoint is not None:
            rows.append(
                response.DescribeClusterBroker(
                    broker_id=broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
            )
    fields["authorized_operations"] = None
    if request.include_cluster_authorized_operations:
        allowed = context.operations(CLUSTER) if context.allows(*DESCRIBE_CLUSTER) else ()
        fields["authorized_operations"] = bits(allowed)
    return Done(response(version=version, controller_id=metadata.controller_id, brokers=rows, **fields))


def _unregister_broker(request: UnregisterBrokerRequest, response: messages.UnregisterBrokerResponse) -> Changes:
    detail = f"unregister broker {request.broker_id}"
    yield Change("Cluster", CLUSTER_NAME, AclOperation.ALTER, ErrorCode(response.error_code), detail)


@Row(api_keys.UNREGISTER_BROKER, (ALTER_CLUSTER,), Recorded(_unregister_broker))
@in_task
async def handle_unregister_broker(request: UnregisterBrokerRequest, context: Context) -> Done:
    """UnregisterBroker v0: the record of a broker that is stopped, and holds no replica, is removed; by any broker."""
    error = context.refusal(*ALTER_CLUSTER)
    message: str | None = None
    if error is ErrorCode.NONE:
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                error, message = await _unregister(request.broker_id, context)
        except (StoreError, TimeoutError) as problem:
            logger.warning("broker %d cannot be unregistered: %s", request.broker_id, problem)
            error, message = ErrorCode.REQUEST_TIMED_OUT, UNANSWERED
    response = messages.UnregisterBrokerResponse
    return Done(response(version=0, error_code=int(error), error_message=message))


async def _unregister(broker_id: int, context: Context) -> tuple[ErrorCode, str | None]:
    services = context.services
    if not await services.metadata.refreshed(int(1000 * WRITE_SECONDS)):
        raise StoreError("the metadata is not read to its end")
    topics = services.metadata.topics.items()
    held = [f"{name}-{n}" for name, one in topics for n, p in enumerate(one.partitions) if broker_id in p.replicas]
    if held:
        return ErrorCode.POLICY_VIOLATION, (
            f"Broker {broker_id} holds replicas of {len(held)} partition(s), such as {held[0]}: move them to other"
            f" brokers first (fleetlog brokers drain {broker_id})."
        )
    try:
        known = await remove_record(services.store, broker_id)
    except DuplicateBroker:
        return ErrorCode.DUPLICATE_BROKER_REGISTRATION, f"Broker {broker_id} is alive: stop it first."
    if not known:
        return ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered"
    logger.info("broker %d was unregistered by %s", broker_id, context.client_id)
    return ErrorCode.NONE, None
