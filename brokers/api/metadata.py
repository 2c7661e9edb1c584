"""Metadata, FindCoordinator, DescribeTopicPartitions: where things are.

Endpoints are those of the listener the client came by. A leader is named only while it lives in the life it was
elected in, so that who is named also serves. Topics that clients ask for by name are created where that is allowed;
the answer waits a moment for it, which saves the client a round.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from brokers.api.authorized import NOT_ASKED, TOPIC_OPERATIONS, mask
from brokers.api.base import Context, Done
from brokers.api.metadata_body import Rows, body, error_row, leader_of
from brokers.cluster.requests import check_name
from brokers.cluster.view import ClusterView
from brokers.model import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    NO_LEADER,
    TRANSACTION_STATE_TOPIC,
    PartitionState,
    TopicInfo,
    TopicPartition,
)
from wire import messages
from wire.errors import ErrorCode
from wire.hot import Encoded

METADATA_KEY = 3
FIND_COORDINATOR_KEY = 10
DESCRIBE_TOPIC_PARTITIONS_KEY = 75

CREATION_WAIT_MS = 1_500
"""How long an answer waits for a topic it has asked to be created; then the client hears a retriable error."""
MAX_DESCRIBED_PARTITIONS = 2_000
GROUP, TRANSACTION = 0, 1

_ROWS = Rows()
"""Kept for the process: rows belong to the very objects of one view, so several views can't mix."""


# ---------------------------------------------------------------- Metadata


def handle_metadata(request: Any, context: Context) -> Done | Coroutine[Any, Any, Done]:
    """Metadata v0-v13."""
    view = context.services.view
    assert view.ready, "the server listens only once the view is ready"
    if request.topics is None or (context.api_version == 0 and not request.topics):
        rows = [_row(view.topics[name], request, context) for name in sorted(view.topics)]
        return _answer(rows, request, context)
    missing = _to_create(request, context)
    if missing:
        return _create_and_answer(missing, request, context)
    return _answer(_asked_rows(request, context, {}), request, context)


def _to_create(request: Any, context: Context) -> list[str]:
    if not context.services.config.auto_create_topics_enable or not request.allow_auto_topic_creation:
        return []
    names = [topic.name for topic in request.topics if topic.name is not None and topic.topic_id is None]
    topics = context.services.view.topics
    return [name for name in dict.fromkeys(names) if name not in topics and check_name(name) is None]


async def _create_and_answer(missing: Sequence[str], request: Any, context: Context) -> Done:
    errors = await context.services.controller.auto_create(missing, CREATION_WAIT_MS)
    await _led(missing, context.services.view)
    return _answer(_asked_rows(request, context, errors), request, context)


async def _led(names: Sequence[str], view: ClusterView) -> None:
    """Wait a little until fresh partitions have their first leader: it stands in the same write, or the next."""

    def led() -> bool:
        topics = [view.topics[name] for name in names if name in view.topics]
        return all(state.leader != NO_LEADER for topic in topics for state in topic.partitions)

    await view.wait_until(led, 200)


def _asked_rows(request: Any, context: Context, errors: dict[str, ErrorCode]) -> list[bytes]:
    return [_asked_row(asked, request, context, errors) for asked in request.topics]


def _asked_row(asked: Any, request: Any, context: Context, errors: dict[str, ErrorCode]) -> bytes:
    view = context.services.view
    version = context.api_version
    if asked.topic_id is not None:
        name = view.topic_names.get(asked.topic_id)
        if name is None:
            return error_row(asked.name, asked.topic_id, ErrorCode.UNKNOWN_TOPIC_ID, version)
        return _row(view.topics[name], request, context)
    if asked.name is None:
        return error_row(None, None, ErrorCode.UNKNOWN_TOPIC_ID, version)
    topic = view.topics.get(asked.name)
    if topic is not None:
        return _row(topic, request, context)
    if check_name(asked.name) is not None:
        return error_row(asked.name, None, ErrorCode.INVALID_TOPIC_EXCEPTION, version)
    return error_row(asked.name, None, creation_error(errors.get(asked.name)), version)


def _row(topic: TopicInfo, request: Any, context: Context) -> bytes:
    operations = bool(request.include_topic_authorized_operations)
    return _ROWS.get(
        topic, context.services.view, context.connection.listener, context.api_version, operations=operations
    )


def _answer(rows: list[bytes], request: Any, context: Context) -> Done:
    operations = bool(request.include_cluster_authorized_operations)
    view, listener = context.services.view, context.connection.listener
    return Done(Encoded([body(rows, view, listener, context.api_version, operations)]))


def creation_error(error: ErrorCode | None) -> ErrorCode:
    """What a client hears of a topic that isn't there (yet), given how its creation went (None: not tried)."""
    match error:
        case None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        case ErrorCode.INVALID_REPLICATION_FACTOR | ErrorCode.INVALID_TOPIC_EXCEPTION | ErrorCode.POLICY_VIOLATION:
            return error
    return ErrorCode.LEADER_NOT_AVAILABLE


# ---------------------------------------------------------------- FindCoordinator


async def handle_find_coordinator(request: Any, context: Context) -> Done:
    """FindCoordinator v0-v6; from v4 for several keys at once, each answered by itself and in order."""
    response = messages.response_class(FIND_COORDINATOR_KEY)
    version = context.api_version
    keys = request.coordinator_keys if version >= 4 else [request.key]
    kind = request.key_type if version >= 1 else GROUP
    found = await _coordinators(kind, keys, context)
    if version >= 4:
        return Done(response(version=version, coordinators=[response.Coordinator(version=version, **f) for f in found]))
    fields = dict(found[0])
    del fields["key"]
    if version == 0:
        del fields["error_message"]
    return Done(response(version=version, **fields))


async def _coordinators(kind: int, keys: Sequence[str], context: Context) -> list[dict[str, Any]]:
    topic = {GROUP: GROUP_METADATA_TOPIC, TRANSACTION: TRANSACTION_STATE_TOPIC}.get(kind)
    if topic is None:
        return [_no_coordinator(key, ErrorCode.INVALID_REQUEST, f"Unsupported key type {kind}.") for key in keys]
    services = context.services
    if topic not in services.view.topics:
        await services.controller.auto_create([topic], CREATION_WAIT_MS)
        await _led([topic], services.view)
    return [_coordinator(kind, topic, key, context) for key in keys]


def _coordinator(kind: int, topic: str, key: str, context: Context) -> dict[str, Any]:
    services = context.services
    if kind == TRANSACTION and not key:
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, "An empty transactional id has no coordinator.")
    if topic not in services.view.topics:
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
    runtime = services.groups if kind == GROUP else services.transactions
    state = services.view.partition(TopicPartition(topic, runtime.partition_for(key)))
    listener = context.connection.listener
    leader, error = (NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE)
    if state is not None:
        leader, error = leader_of(state, services.view, listener)
    broker = services.view.brokers.get(leader)
    endpoint = broker.endpoint(listener) if broker is not None else None
    if error is not ErrorCode.NONE or endpoint is None:
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
    return {
        "key": key,
        "node_id": leader,
        "host": endpoint.host,
        "port": endpoint.port,
        "error_code": 0,
        "error_message": None,
    }


def _no_coordinator(key: str, error: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"key": key, "node_id": -1, "host": "", "port": -1, "error_code": int(error), "error_message": message}


# ---------------------------------------------------------------- DescribeTopicPartitions


def handle_describe_topic_partitions(request: Any, context: Context) -> Done:
    """DescribeTopicPartitions v0 (KIP-966): topics in order of name, a page of partitions at a time."""
    response = messages.response_class(DESCRIBE_TOPIC_PARTITIONS_KEY)
    view = context.services.view
    limit = max(1, min(request.response_partition_limit, MAX_DESCRIBED_PARTITIONS))
    cursor = request.cursor
    rows, next_cursor = [], None
    for name in _page_names(request, view):
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if limit <= 0:
            next_cursor = response.Cursor(version=0, topic_name=name, partition_index=first)
            break
        topic = view.topics.get(name)
        if topic is None:
            wrong = check_name(name) is not None
            error = ErrorCode.INVALID_TOPIC_EXCEPTION if wrong else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            rows.append(_described_topic(response, name, error, None, []))
            continue
        first = max(0, first)
        last = min(first + limit, len(topic.partitions))
        partitions = [_described_partition(response, i, topic.partitions[i], context) for i in range(first, last)]
        rows.append(_described_topic(response, name, ErrorCode.NONE, topic, partitions))
        limit -= len(partitions)
        if last < len(topic.partitions):
            next_cursor = response.Cursor(version=0, topic_name=name, partition_index=last)
            break
    return Done(response(version=0, topics=rows, next_cursor=next_cursor))


def _page_names(request: Any, view: ClusterView) -> Iterable[str]:
    names = sorted({topic.name for topic in request.topics} if request.topics else set(view.topics))
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
    return names


def _described_topic(response: Any, name: str, error: ErrorCode, topic: TopicInfo | None, partitions: list[Any]) -> Any:
    return response.DescribeTopicPartitionsResponseTopic(
        version=0,
        error_code=int(error),
        name=name,
        topic_id=topic.id if topic is not None else None,
        is_internal=name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=mask(TOPIC_OPERATIONS) if topic is not None else NOT_ASKED,
    )


def _described_partition(response: Any, index: int, state: PartitionState, context: Context) -> Any:
    view = context.services.view
    leader, error = leader_of(state, view, context.connection.listener)
    row = response.DescribeTopicPartitionsResponseTopic.DescribeTopicPartitionsResponsePartition
    return row(
        version=0,
        error_code=int(error),
        partition_index=index,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=list(state.elr),
        last_known_elr=[state.last_known_leader] if state.last_known_leader >= 0 else [],
        offline_replicas=[b for b in state.replicas if b not in view.brokers],
    )
