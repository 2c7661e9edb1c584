"""DescribeProducers, DescribeTransactions, ListTransactions (keys 61, 65, 66; KIP-664): for tools that find hanging
transactions."""

from __future__ import annotations

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import DESCRIBE_TOPIC, DESCRIBE_TRANSACTIONAL_ID, READ_TOPIC
from fleetlog.brokers.api.base import Context, Done, Paced, in_slices
from fleetlog.brokers.api.rows import Row
from fleetlog.brokers.api.unpacking import PAUSE
from fleetlog.txn.commands import Now
from fleetlog.txn.patterns import BadPattern, Pattern
from fleetlog.txn.states import TransactionState
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest
from fleetlog.wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition


@Row(api_keys.DESCRIBE_PRODUCERS, (READ_TOPIC,))
@in_slices
def handle_describe_producers(request: DescribeProducersRequest, context: Context) -> Paced:
    """DescribeProducers: the producers of this broker's replicas, with their open transactions as its logs have them.

    Each partition is described once, however often it is named: it may have many producers.
    """
    version = context.api_version
    kind = m.DescribeProducersResponse.TopicResponse
    asked = dict.fromkeys((topic.name, index) for topic in request.topics for index in topic.partition_indexes)
    denied = yield from context.denied_in_turns(*READ_TOPIC, (topic.name for topic in request.topics))
    rows: dict[str, list[m.DescribeProducersResponse.TopicResponse.PartitionResponse]] = {
        topic.name: [] for topic in request.topics
    }
    for name, index in asked:
        yield
        tp = TopicPartition(name, index)
        if name in denied:
            rows[name].append(_undescribed(tp, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        else:
            rows[name].append(_describe_partition(tp, context))
    topics = [kind(name=name, partitions=partitions) for name, partitions in rows.items()]
    return Done(m.DescribeProducersResponse(version=version, topics=topics))


def _undescribed(tp: TopicPartition, error: ErrorCode) -> m.DescribeProducersResponse.TopicResponse.PartitionResponse:
    kind = m.DescribeProducersResponse.TopicResponse.PartitionResponse
    return kind(partition_index=tp.partition, error_code=error)


def _describe_partition(
    tp: TopicPartition, context: Context
) -> m.DescribeProducersResponse.TopicResponse.PartitionResponse:
    kind = m.DescribeProducersResponse.TopicResponse.PartitionResponse
    replica = context.services.replicas.get(tp)
    if replica is None:
        return _undescribed(tp, context.services.replicas.leader(tp).error)
    if replica.log.offline:
        return _undescribed(tp, ErrorCode.KAFKA_STORAGE_ERROR)
    producers = [
        kind.ProducerState(
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.txn_first_offset,
        )
        for entry in replica.log.producers.active()
    ]
    return kind(partition_index=tp.partition, error_code=ErrorCode.NONE, active_producers=producers)


@Row(api_keys.DESCRIBE_TRANSACTIONS, (DESCRIBE_TRANSACTIONAL_ID, DESCRIBE_TOPIC))
@in_slices
def handle_describe_transactions(request: DescribeTransactionsRequest, context: Context) -> Paced:
    """DescribeTransactions: the state of ids this broker coordinates."""
    version = context.api_version
    states = []
    for name in dict.fromkeys(request.transactional_ids):
        yield
        states.append(_describe_transaction(name, context))
    return Done(m.DescribeTransactionsResponse(version=version, transaction_states=states))


def _describe_transaction(transactional_id: str, context: Context) -> m.DescribeTransactionsResponse.TransactionState:
    kind = m.DescribeTransactionsResponse.TransactionState

    def refused(error: ErrorCode) -> m.DescribeTransactionsResponse.TransactionState:
        return kind(
            error_code=error,
            transactional_id=transactional_id,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )

    if (refusal := context.refusal(*DESCRIBE_TRANSACTIONAL_ID, transactional_id)) is not ErrorCode.NONE:
        return refused(refusal)
    if not transactional_id:
        return refused(ErrorCode.INVALID_REQUEST)
    error, shard = context.services.transactions.shard_for(transactional_id)
    if shard is None:
        return refused(error)
    t = shard.describe(transactional_id)
    if t is None:
        return refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    denied = context.denied(*DESCRIBE_TOPIC, (topic for topic, _ in t.partitions), logged=False)
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(t.partitions):
        if topic in denied:
            continue
        by_topic.setdefault(topic, []).append(index)
    return kind(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=t.state.label,
        transaction_timeout_ms=t.timeout_ms,
        transaction_start_time_ms=t.start_ms,
        producer_id=t.producer_id,
        producer_epoch=t.producer_epoch,
        topics=[kind.TopicData(topic=name, partitions=indexes) for name, indexes in by_topic.items()],
    )


@Row(api_keys.LIST_TRANSACTIONS, (DESCRIBE_TRANSACTIONAL_ID,))
@in_slices
def handle_list_transactions(request: ListTransactionsRequest, context: Context) -> Paced:
    """ListTransactions: the ids this broker coordinates that pass the filters and that the client may describe."""
    version = context.api_version
    runtime = context.services.transactions
    states: set[TransactionState] = set()
    unknown: list[str] = []
    for label in request.state_filters:
        yield
        state = TransactionState.from_label(label)
        if state is None:
            unknown.append(label)
        else:
            states.add(state)
    error, pattern = ErrorCode.NONE, None
    if runtime.loading:
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    elif version >= 2 and request.transactional_id_pattern:
        yield PAUSE  # patterns of several clients are compiled in one turn each
        try:
            pattern = Pattern(request.transactional_id_pattern)
        except BadPattern:
            error = ErrorCode.INVALID_REGULAR_EXPRESSION

    def matches(transactional_id: str) -> bool:
        may_be_shown = context.allows(*DESCRIBE_TRANSACTIONAL_ID, transactional_id, logged=False)
        return may_be_shown and (pattern is None or pattern.matches(transactional_id))

    kind = m.ListTransactionsResponse.TransactionState
    listed: list[m.ListTransactionsResponse.TransactionState] = []
    if error is ErrorCode.NONE and (states or not request.state_filters):
        clock = context.services.clock
        now = Now(clock.wall_ms(), clock.mono_ms())
        longer_than_ms = request.duration_filter if version >= 1 else -1
        producer_ids = frozenset(request.producer_id_filters)
        try:
            for shard in runtime.shards():
                for entry in shard.list_transactions(now, frozenset(states), producer_ids, longer_than_ms, matches):
                    yield
                    if entry is not None:
                        listed.append(
                            kind(
                                transactional_id=entry.transactional_id,
                                producer_id=entry.producer_id,
                                transaction_state=entry.state.label,
                            )
                        )
        except BadPattern:
            error, listed = ErrorCode.INVALID_REGULAR_EXPRESSION, []
    return Done(
        m.ListTransactionsResponse(
            version=version, error_code=error, unknown_state_filters=unknown, transaction_states=listed
        )
    )
