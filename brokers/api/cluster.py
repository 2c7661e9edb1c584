"""DescribeCluster: the brokers of the cluster and its controller."""

from __future__ import annotations

from typing import Any

from fleetlog.brokers.acls.access import CLUSTER, DESCRIBE, DESCRIBE_CLUSTER, bits
from fleetlog.brokers.api.base import Context, Done
from fleetlog.brokers.api.rows import Cost, Row
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import DescribeClusterRequest

BROKERS = 1
CONTROLLERS = 2


def handle_describe_cluster(request: DescribeClusterRequest, context: Context) -> Done:
    """DescribeCluster v0-v2. Brokers without an address on the client's listener are left out, as in Metadata."""
    response = messages.response_class(api_keys.DESCRIBE_CLUSTER)
    version = context.api_version
    metadata = context.services.metadata
    fields: dict[str, Any] = {"error_code": 0, "error_message": None, "cluster_id": metadata.cluster_id}
    if version >= 1:
        fields["endpoint_type"] = request.endpoint_type
        if request.endpoint_type != BROKERS:
            controllers = request.endpoint_type == CONTROLLERS
            error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if controllers else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            fields["error_code"], fields["error_message"] = int(error), "The request was sent to a broker endpoint."
            return Done(response(version=version, brokers=[], **fields))
    rows = []
    for broker_id in sorted(metadata.brokers):
        broker = metadata.brokers[broker_id]
        endpoint = broker.endpoint(context.connection.listener)
        if endpoint is not None:
            rows.append(
                response.DescribeClusterBroker(
                    version=version, broker_id=broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
            )
    fields["authorized_operations"] = None
    if request.include_cluster_authorized_operations:
        allowed = context.operations(CLUSTER) if context.allows(DESCRIBE, CLUSTER) else ()
        fields["authorized_operations"] = bits(allowed)
    return Done(response(version=version, controller_id=metadata.controller_id, brokers=rows, **fields))


API = (
    # for the operations of the answer
    Row(api_keys.DESCRIBE_CLUSTER, handle_describe_cluster, (DESCRIBE_CLUSTER,), cost=Cost.CHEAP),
)
