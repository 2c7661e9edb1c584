"""The leader of a partition, for answers that redirect a client (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable

from fleetlog.brokers.api.base import Context
from fleetlog.brokers.model import TopicPartition
from fleetlog.wire.hot import NodeEndpoint


def current_leader(context: Context, tp: TopicPartition) -> tuple[int, int] | None:
    """Leader id and epoch of the metadata image; None for a partition that does not exist."""
    state = context.services.metadata.partition(tp)
    return None if state is None else (int(state.leader), state.leader_epoch)


def endpoints_of(context: Context, leaders: Iterable[tuple[int, int] | None]) -> list[NodeEndpoint]:
    """The addresses of those leaders on the listener of the connection, each once; dead ones are left out."""
    endpoints: dict[int, NodeEndpoint] = {}
    for leader in leaders:
        if leader is None or leader[0] in endpoints:
            continue
        broker = context.services.metadata.brokers.get(leader[0])
        endpoint = broker.endpoint(context.connection.listener) if broker is not None else None
        if broker is not None and endpoint is not None:
            endpoints[leader[0]] = NodeEndpoint(leader[0], endpoint.host, endpoint.port, broker.rack)
    return list(endpoints.values())
