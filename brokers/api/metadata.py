"""Metadata, FindCoordinator, DescribeTopicPartitions: where things are.

Endpoints are those of the listener that the client is connected to. A leader is named only while it is registered with
the incarnation that was elected, so a named leader also serves. Topics that clients ask for by name are created where
that is allowed; the answer waits a moment for it, which saves the client a round trip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fleetlog.brokers.acls.access import (
    AUTHORIZATION_ERRORS,
    CLUSTER,
    CREATE_CLUSTER,
    CREATE_TOPIC,
    DESCRIBE_CLUSTER,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    DESCRIBE_TRANSACTIONAL_ID,
    NOT_ASKED,
    TOPIC,
    mask,
)
from fleetlog.brokers.api.base import Context, Done, InSlices, Outcome, Paced, in_slices, in_task, through, worked
from fleetlog.brokers.api.changes import created_topics
from fleetlog.brokers.api.metadata_body import TopicRows, body, error_row, leader_of
from fleetlog.brokers.api.rows import Cost, Row
from fleetlog.brokers.controller.requests import check_name
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.model import (
    GROUP_METADATA_TOPIC,
    NO_LEADER,
    PROTECTED_TOPICS,
    TRANSACTION_STATE_TOPIC,
    PartitionState,
    TopicInfo,
    TopicPartition,
)
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import Encoded
from fleetlog.wire.requests import (
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataTopics,
)

CREATION_WAIT_MS = 1_500
"""How long an answer waits for a topic it has asked to be created; then the client gets a retriable error."""
MAX_DESCRIBED_PARTITIONS = 2_000
FEW_TOPICS = 100
"""So many are answered at once."""
GROUP_KEY, TRANSACTION_KEY = 0, 1

_ROWS = TopicRows()
"""Kept for the process: rows belong to the very objects of one metadata image, so brokers in one process can't mix."""


# ---------------------------------------------------------------- Metadata


# one of both to create
@Row(api_keys.METADATA, (DESCRIBE_TOPIC, CREATE_CLUSTER, CREATE_TOPIC, DESCRIBE_CLUSTER), cost=Cost.CHEAP)
def handle_metadata(request: MetadataRequest, context: Context) -> Outcome:
    """Metadata v0-v13. A topic that is named more than once is answered once, as in Kafka."""
    metadata = context.services.metadata
    assert metadata.ready, "the server listens only once the metadata cache is ready"
    work = _metadata(request, context)
    return InSlices(work) if len(request.topics or metadata.topics) > FEW_TOPICS else through(work)


def _metadata(request: MetadataRequest, context: Context) -> Paced:
    if request.topics is None or (context.api_version == 0 and not request.topics):
        topics = context.services.metadata.topics
        denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, topics, logged=False)
        shown = [topics[name] for name in sorted(topics) if name not in denied]
        return (yield from _answer_paced((_row(topic, request, context) for topic in shown), request, context))
    refused = yield from context.denied_in_turns(*DESCRIBE_TOPIC, _asked_names(request, context))
    errors = dict.fromkeys(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    missing = [name for name in _to_create(request, context) if name not in errors]
    if missing and not context.allows(*CREATE_CLUSTER, logged=False):
        denied = yield from context.denied_in_turns(*CREATE_TOPIC, missing)
        errors |= dict.fromkeys(denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        missing = [name for name in missing if name not in denied]
    if missing:
        services, config = context.services, context.services.config
        if services.audit is not None and services.audit.must_refuse(context, len(missing)):
            errors |= dict.fromkeys(missing, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            missing = []
        allowed = services.new_topics.take(
            context.connection.id, len(missing), config.auto_create_topics_max_per_second, services.clock.mono_ms()
        )
        return _create_and_answer(missing[:allowed], missing[allowed:], errors, request, context)
    return (yield from _answer_paced(_asked_rows(request, context, errors), request, context))


def _asked_names(request: MetadataRequest, context: Context) -> Iterator[str]:
    """The names of the topics asked for; of ids those that exist."""
    names = context.services.metadata.topic_names
    for topic in request.topics or ():
        name = topic.name if topic.topic_id is None else names.get(topic.topic_id)
        if name is not None:
            yield name


def _answer_paced(rows: Iterator[bytes], request: MetadataRequest, context: Context) -> Paced:
    answered = []
    for row in rows:
        answered.append(row)
        yield
    return _answer(answered, request, context)


def _to_create(request: MetadataRequest, context: Context) -> list[str]:
    if not context.services.config.auto_create_topics_enable or not request.allow_auto_topic_creation:
        return []
    names = [topic.name for topic in request.topics or () if topic.name is not None and topic.topic_id is None]
    topics = context.services.metadata.topics
    return [name for name in dict.fromkeys(names) if name not in topics and check_name(name) is None]


@in_task
async def _create_and_answer(
    missing: Sequence[str],
    later: Sequence[str],
    denied: Mapping[str, ErrorCode],
    request: MetadataRequest,
    context: Context,
) -> Outcome:
    """``later`` are topics whose creation has not begun: the client gets a retriable error."""
    made = await context.services.controller.auto_create(missing, CREATION_WAIT_MS)
    audit = context.services.audit
    if audit is not None:
        await worked(audit.record(context, created_topics(made)))
    errors = {**denied} | dict(made)
    await _led([name for name, error in errors.items() if error is ErrorCode.NONE], context.services.metadata)
    errors |= dict.fromkeys(later, ErrorCode.REQUEST_TIMED_OUT)
    return InSlices(_answer_paced(_asked_rows(request, context, errors), request, context))


async def _led(names: Sequence[str], metadata: MetadataCache) -> None:
    """Wait a little until fresh partitions have their first leader: it stands in the same write, or the next."""

    def led() -> bool:
        topics = [metadata.topics[name] for name in names if name in metadata.topics]
        return all(state.leader != NO_LEADER for topic in topics for state in topic.partitions)

    await metadata.wait_until(led, 200)


def _asked_rows(request: MetadataRequest, context: Context, errors: dict[str, ErrorCode]) -> Iterator[bytes]:
    once = {(asked.name, asked.topic_id): asked for asked in request.topics or ()}
    return (_asked_row(asked, request, context, errors) for asked in once.values())


def _asked_row(
    asked: MetadataTopics, request: MetadataRequest, context: Context, errors: dict[str, ErrorCode]
) -> bytes:
    metadata = context.services.metadata
    version = context.api_version
    if asked.topic_id is not None:
        name = metadata.topic_names.get(asked.topic_id)
        if name is None:
            return error_row(asked.name, asked.topic_id, ErrorCode.UNKNOWN_TOPIC_ID, version)
        if name in errors:
            return error_row(None, asked.topic_id, errors[name], version)
        return _row(metadata.topics[name], request, context)
    if asked.name is None:
        return error_row(None, None, ErrorCode.UNKNOWN_TOPIC_ID, version)
    if errors.get(asked.name) is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return error_row(asked.name, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED, version)
    topic = metadata.topics.get(asked.name)
    if topic is not None:
        return _row(topic, request, context)
    if check_name(asked.name) is not None:
        return error_row(asked.name, None, ErrorCode.INVALID_TOPIC_EXCEPTION, version)
    return error_row(asked.name, None, creation_error(errors.get(asked.name)), version)


def _row(topic: TopicInfo, request: MetadataRequest, context: Context) -> bytes:
    operations = NOT_ASKED
    if request.include_topic_authorized_operations:
        operations = mask(context.operations(TOPIC, topic.name))
    return _ROWS.get(
        topic, context.services.metadata, context.connection.listener, context.api_version, operations=operations
    )


def _answer(rows: list[bytes], request: MetadataRequest, context: Context) -> Done:
    operations = NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = mask(context.operations(CLUSTER)) if context.allows(*DESCRIBE_CLUSTER) else 0
    metadata, listener = context.services.metadata, context.connection.listener
    return Done(Encoded([body(rows, metadata, listener, context.api_version, operations)]))


def creation_error(error: ErrorCode | None) -> ErrorCode:
    """The error for a topic that does not exist (yet), given the outcome of its creation (None: not tried)."""
    match error:
        case None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        case ErrorCode.INVALID_REPLICATION_FACTOR | ErrorCode.INVALID_TOPIC_EXCEPTION | ErrorCode.POLICY_VIOLATION:
            return error
    return ErrorCode.LEADER_NOT_AVAILABLE


# ---------------------------------------------------------------- FindCoordinator


# by the type of the key
@Row(api_keys.FIND_COORDINATOR, (DESCRIBE_GROUP, DESCRIBE_TRANSACTIONAL_ID), cost=Cost.CHEAP)
@in_task
async def handle_find_coordinator(request: FindCoordinatorRequest, context: Context) -> Outcome:
    """FindCoordinator v0-v6; from v4 for several keys at once, each answered by itself and in order."""
    response = messages.FindCoordinatorResponse
    version = context.api_version
    keys = request.coordinator_keys if version >= 4 else [request.key]
    kind = request.key_type if version >= 1 else GROUP_KEY
    topic = {GROUP_KEY: GROUP_METADATA_TOPIC, TRANSACTION_KEY: TRANSACTION_STATE_TOPIC}.get(kind)
    services = context.services
    need = DESCRIBE_GROUP if kind == GROUP_KEY else DESCRIBE_TRANSACTIONAL_ID
    denied = frozenset() if topic is None else await context.denied_meanwhile(*need, keys)
    if topic is not None and topic not in services.metadata.topics and not denied.issuperset(keys):
        await services.controller.auto_create([topic], CREATION_WAIT_MS)
        await _led([topic], services.metadata)

    def found(key: str) -> dict[str, Any]:
        if key in denied:
            return _no_coordinator(key, AUTHORIZATION_ERRORS[need.resource], None)
        return _coordinator(kind, topic, key, context)

    @in_slices
    def answer() -> Paced:
        if version >= 4:
            rows = []
            for key in keys:
                yield
                rows.append(response.Coordinator(**found(key)))
            return Done(response(version=version, coordinators=rows))
        fields = found(keys[0])
        del fields["key"]
        if version == 0:
            del fields["error_message"]
        return Done(response(version=version, **fields))

    return answer()


def _coordinator(kind: int, topic: str | None, key: str, context: Context) -> dict[str, Any]:
    services = context.services
    if topic is None:
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, f"Unsupported key type {kind}.")
    if kind == TRANSACTION_KEY and not key:
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, "An empty transactional id has no coordinator.")
    if topic not in services.metadata.topics:
        why = services.controller.creation_refused(topic)
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, why)
    runtime = services.groups if kind == GROUP_KEY else services.transactions
    state = services.metadata.partition(TopicPartition(topic, runtime.partition_for(key)))
    listener = context.connection.listener
    leader, error = (NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE)
    if state is not None:
        leader, error = leader_of(state, services.metadata, listener)
    broker = services.metadata.brokers.get(leader)
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


@Row(api_keys.DESCRIBE_TOPIC_PARTITIONS, (DESCRIBE_TOPIC,))
@in_slices
def handle_describe_topic_partitions(request: DescribeTopicPartitionsRequest, context: Context) -> Paced:
    """DescribeTopicPartitions v0 (KIP-966): topics in order of name, a page of partitions at a time."""
    response = messages.DescribeTopicPartitionsResponse
    metadata = context.services.metadata
    limit = max(1, min(request.response_partition_limit, MAX_DESCRIBED_PARTITIONS))
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        wrong_cursor = ErrorCode.INVALID_REQUEST
        refused = [_described_topic(response, t.name, wrong_cursor, None, [], context) for t in request.topics]
        return Done(response(version=0, topics=refused))
    rows, next_cursor = [], None
    names = _page_names(request, metadata)
    denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, names, logged=bool(request.topics))
    for name in names if request.topics else (one for one in names if one not in denied):
        yield
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if limit <= 0:
            next_cursor = response.Cursor(topic_name=name, partition_index=first)
            break
        if name in denied:
            rows.append(_described_topic(response, name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, [], context))
            continue
        topic = metadata.topics.get(name)
        if topic is None:
            wrong = check_name(name) is not None
            error = ErrorCode.INVALID_TOPIC_EXCEPTION if wrong else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            rows.append(_described_topic(response, name, error, None, [], context))
            continue
        last = min(first + limit, len(topic.partitions))
        partitions = [_described_partition(response, i, topic.partitions[i], context) for i in range(first, last)]
        rows.append(_described_topic(response, name, ErrorCode.NONE, topic, partitions, context))
        limit -= len(partitions)
        if last < len(topic.partitions):
            next_cursor = response.Cursor(topic_name=name, partition_index=last)
            break
    return Done(response(version=0, topics=rows, next_cursor=next_cursor))


def _page_names(request: DescribeTopicPartitionsRequest, metadata: MetadataCache) -> Sequence[str]:
    names = sorted({topic.name for topic in request.topics} if request.topics else set(metadata.topics))
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
    return names


_DescribedTopic = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic


def _described_topic(
    response: type[messages.DescribeTopicPartitionsResponse],
    name: str,
    error: ErrorCode,
    topic: TopicInfo | None,
    partitions: list[_DescribedTopic.DescribeTopicPartitionsResponsePartition],
    context: Context,
) -> _DescribedTopic:
    return response.DescribeTopicPartitionsResponseTopic(
        error_code=int(error),
        name=name,
        topic_id=topic.id if topic is not None else None,
        is_internal=name in PROTECTED_TOPICS,
        partitions=partitions,
        topic_authorized_operations=mask(context.operations(TOPIC, name)) if topic is not None else NOT_ASKED,
    )


def _described_partition(
    response: type[messages.DescribeTopicPartitionsResponse], index: int, state: PartitionState, context: Context
) -> _DescribedTopic.DescribeTopicPartitionsResponsePartition:
    metadata = context.services.metadata
    leader, error = leader_of(state, metadata, context.connection.listener)
    row = response.DescribeTopicPartitionsResponseTopic.DescribeTopicPartitionsResponsePartition
    return row(
        error_code=int(error),
        partition_index=index,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=list(state.elr),
        last_known_elr=[state.last_known_leader] if state.last_known_leader >= 0 else [],
        offline_replicas=[b for b in state.replicas if b not in metadata.brokers],
    )
