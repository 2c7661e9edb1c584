"""ElectLeaders: an operator asks for a leader (KIP-183, KIP-460).

Preferred elections give leadership back to each partition's first replica; unclean ones make a replica the leader
that may lack acknowledged records, for when no replica that has them will come back. The controller does both.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from enum import IntEnum

from fleetlog.brokers.acls.access import ALTER_CLUSTER
from fleetlog.brokers.acls.image import CLUSTER_NAME, AclOperation
from fleetlog.brokers.api.base import Context, Done, in_slices, in_task
from fleetlog.brokers.api.by_topic import rows_by_topic
from fleetlog.brokers.api.changes import brief, codes_of, named
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.audit.events import Change, Changes
from fleetlog.brokers.controller.requests import NOT_CONTROLLER_TEXT
from fleetlog.brokers.model import TopicPartition
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import ElectLeadersRequest

Result = tuple[ErrorCode, str | None]


class ElectionType(IntEnum):
    """Which leader is wanted, numbered as on the wire."""

    PREFERRED = 0
    UNCLEAN = 1


def _elect_leaders(request: ElectLeadersRequest, response: messages.ElectLeadersResponse) -> Changes:
    kind = "unclean" if getattr(request, "election_type", 0) else "preferred"
    whole = getattr(response, "error_code", 0)
    if request.topic_partitions is None:
        yield Change("Cluster", CLUSTER_NAME, AclOperation.ALTER, ErrorCode(whole), f"{kind} leaders of all partitions")
        return
    names = ((one.topic, brief(f"{kind} leaders of partitions", one.partitions)) for one in request.topic_partitions)
    yield from named("Topic", AclOperation.ALTER, names, codes_of(response.replica_election_results, "topic"), whole)


@Row(api_keys.ELECT_LEADERS, (ALTER_CLUSTER,), Recorded(_elect_leaders, ("topic_partitions",)))
@in_task
async def handle_elect_leaders(request: ElectLeadersRequest, context: Context) -> Done:
    """ElectLeaders v0-v2. Asked for all partitions, the answer has only those where something was to be done."""
    kind = request.election_type if context.api_version >= 1 else ElectionType.PREFERRED
    wanted = None
    if request.topic_partitions is not None:
        wanted = list(dict.fromkeys(TopicPartition(t.topic, p) for t in request.topic_partitions for p in t.partitions))
    if (denied := context.refusal(*ALTER_CLUSTER)) is not ErrorCode.NONE:
        return Done(_elected(context, denied, dict.fromkeys(wanted or (), (denied, None))))
    if kind not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        results = dict.fromkeys(wanted or (), (ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}."))
        return Done(_elected(context, ErrorCode.INVALID_REQUEST, results))
    controller = context.services.controller
    chosen = await controller.elect_leaders(wanted, unclean=kind == ElectionType.UNCLEAN, timeout_ms=request.timeout_ms)
    if wanted is None:
        chosen = {tp: result for tp, result in chosen.items() if result[0] is not ErrorCode.ELECTION_NOT_NEEDED}
    elsewhere = any(error is ErrorCode.NOT_CONTROLLER for error, _ in chosen.values())
    if elsewhere or (not chosen and not controller.is_active):
        chosen = dict.fromkeys(wanted or (), (ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT))
        return Done(_elected(context, ErrorCode.NOT_CONTROLLER, chosen))
    return Done(_elected(context, ErrorCode.NONE, chosen))


@in_slices
def _elected(
    context: Context, top: ErrorCode, results: Mapping[TopicPartition, Result]
) -> Generator[None, None, messages.ElectLeadersResponse]:
    """The answer, made in slices."""
    response = messages.ElectLeadersResponse
    kind = response.ReplicaElectionResult
    rows = yield from rows_by_topic(
        results.items(),
        lambda tp, result: kind.PartitionResult(
            partition_id=tp.partition, error_code=int(result[0]), error_message=result[1]
        ),
        lambda name, parts: kind(topic=name, partition_result=parts),
    )
    return response(version=context.api_version, error_code=int(top), replica_election_results=rows)
