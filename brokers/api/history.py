"""DescribeElections (ours): what this broker has seen change, and what it does as the controller."""

from __future__ import annotations

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import DESCRIBE_CLUSTER
from fleetlog.brokers.api.base import Context, Done, Paced, in_slices
from fleetlog.brokers.api.rows import Row
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import DescribeElectionsRequest

ROWS_MAX = 500


@Row(api_keys.DESCRIBE_ELECTIONS, (DESCRIBE_CLUSTER,))
@in_slices
def handle_describe_elections(request: DescribeElectionsRequest, context: Context) -> Paced:
    """DescribeElections v0: the newest changes of leaders (of one topic, or all), controllers and registrations.

    The fields of the controller are those of the active controller, and -1 or 0 on other brokers.
    """
    kind, services = m.DescribeElectionsResponse, context.services
    if (refusal := context.refusal(*DESCRIBE_CLUSTER)) is not ErrorCode.NONE:
        return Done(kind(version=0, error_code=refusal))
    history = services.history
    assert history is not None, "a broker has one before it serves"
    limit = min(max(request.limit, 1), ROWS_MAX)
    rows: list[m.DescribeElectionsResponse.SeenElection] = []
    for one in list(history.elections()):
        yield
        if request.topic is not None and one.topic != request.topic:
            continue
        rows.append(
            kind.SeenElection(
                at_ms=one.at_ms, topic=one.topic, partition_index=one.partition,
                leader_epoch=one.leader_epoch, leader=one.leader, previous_leader=one.previous, isr=list(one.isr),
                unclean=one.unclean,
            )
        )  # fmt: skip
        if len(rows) >= limit:
            break
    work = services.controller.work()
    return Done(
        kind(
            version=0, since_ms=history.since_ms, elections=rows,
            controllers=[
                kind.SeenController(at_ms=one.at_ms, broker_id=one.broker_id)
                for one in reversed(history.controllers)
            ],
            brokers=[
                kind.SeenBroker(at_ms=one.at_ms, broker_id=one.broker_id, registered=one.registered)
                for one in reversed(history.brokers)
            ],
            controller_epoch=work.epoch, controller_since_ms=work.since_ms, admin_requests=work.admin_requests,
            leaders_asked_to_move=work.leaders_asked_to_move, silent_brokers=list(work.silent_brokers),
            unclean_elections=work.unclean_elections,
        )
    )  # fmt: skip
