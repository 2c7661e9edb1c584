"""DescribeConnections (ours): the connections to this broker, their client software and bytes."""

from __future__ import annotations

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import DESCRIBE_CLUSTER, DESCRIBE_TOPIC
from fleetlog.brokers.api.base import Context, Done, Paced, in_slices
from fleetlog.brokers.api.fetch_sessions import partitions_read
from fleetlog.brokers.api.rows import Row
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import DescribeConnectionsRequest

ROWS_MAX = 500


@Row(api_keys.DESCRIBE_CONNECTIONS, (DESCRIBE_CLUSTER, DESCRIBE_TOPIC))
@in_slices
def handle_describe_connections(request: DescribeConnectionsRequest, context: Context) -> Paced:
    """DescribeConnections v0: the open connections behind an id, the oldest first, at most ``limit``, 500 at most.

    With a topic only consumers whose last Fetch named some of its partitions, which ``fetches`` has then.
    Bytes and the round trip are the kernel's, with the overhead of TLS; -1 where it does not count them.
    """
    kind, services = m.DescribeConnectionsResponse, context.services
    if (refusal := context.refusal(*DESCRIBE_CLUSTER)) is not ErrorCode.NONE:
        return Done(kind(version=0, error_code=refusal))
    topic = request.topic
    if topic is not None and (refusal := context.refusal(*DESCRIBE_TOPIC, topic)) is not ErrorCode.NONE:
        return Done(kind(version=0, error_code=refusal))
    known = services.metadata.topics.get(topic) if topic is not None else None
    limit, now_ms = min(max(request.limit, 1), ROWS_MAX), services.clock.mono_ms()
    rows = []
    total, behind = services.connections(request.after_id)
    for connection in behind:
        yield
        fetches: list[int] = []
        if topic is not None:
            fetches = partitions_read(connection.fetches, topic, known.id if known is not None else None)
            if not fetches:
                continue
        peer, carried, (name, version) = connection.peer, connection.carried, connection.software
        rows.append(
            kind.OpenConnection(
                id=peer.id, listener=peer.listener, host=peer.peer_host, principal=peer.principal,
                mechanism=connection.mechanism, client_id=connection.client_id, software_name=name,
                software_version=version, age_ms=max(0, now_ms - connection.since_ms),
                idle_ms=max(0, now_ms - connection.last_active_ms), bytes_in=carried.bytes_in,
                bytes_out=carried.bytes_out, round_trip_micros=carried.round_trip_micros,
                unsent_bytes=connection.unsent, fetches=fetches,
            )
        )  # fmt: skip
        if len(rows) >= limit:
            break
    return Done(kind(version=0, total=total, connections=rows))
