"""DescribeCluster: who is there, and who is controller."""

from __future__ import annotations

from typing import Any

from brokers.api.authorized import CLUSTER_OPERATIONS, bits
from brokers.api.base import Context, Done
from wire import messages
from wire.errors import ErrorCode

DESCRIBE_CLUSTER_KEY = 60
BROKERS = 1
CONTROLLERS = 2


def handle_describe_cluster(request: Any, context: Context) -> Done:
    """DescribeCluster v0-v2. Brokers without an address on the client's listener are left out, as in Metadata."""
    response = messages.response_class(DESCRIBE_CLUSTER_KEY)
    version = context.api_version
    view = context.services.view
    fields: dict[str, Any] = {"error_code": 0, "error_message": None, "cluster_id": view.cluster_id}
    if version >= 1:
        fields["endpoint_type"] = request.endpoint_type
        if request.endpoint_type != BROKERS:
            controllers = request.endpoint_type == CONTROLLERS
            error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if controllers else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            fields["error_code"], fields["error_message"] = int(error), "The request was sent to a broker endpoint."
            return Done(response(version=version, brokers=[], **fields))
    rows = []
    for broker_id in sorted(view.brokers):
        broker = view.brokers[broker_id]
        endpoint = broker.endpoint(context.connection.listener)
        if endpoint is not None:
            rows.append(
                response.DescribeClusterBroker(
                    version=version, broker_id=broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
            )
    asked = request.include_cluster_authorized_operations
    fields["authorized_operations"] = bits(CLUSTER_OPERATIONS) if asked else None
    return Done(response(version=version, controller_id=view.controller_id, brokers=rows, **fields))
