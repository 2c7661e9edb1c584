"""Handlers that look into transactions (keys 61, 65, 66; KIP-664): what tools need to find hanging ones."""

from __future__ import annotations

from typing import Any

import wire.messages as m
from brokers.api.base import Context, Done, Outcome
from brokers.cluster.partition import Partition
from txn.commands import Now
from txn.patterns import BadPattern, Pattern
from txn.states import TransactionState
from wire.errors import ErrorCode
from wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition


def handle_describe_producers(request: Any, context: Context) -> Outcome:
    """DescribeProducers: who wrote to these partitions of ours, and whose transactions are open there."""
    version = context.api_version
    kind = m.DescribeProducersResponse.TopicResponse
    topics = [
        kind(
            version=version,
            name=topic.name,
            partitions=[
                _describe_partition(TopicPartition(topic.name, index), version, context)
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics
    ]
    return Done(m.DescribeProducersResponse(version=version, throttle_time_ms=0, topics=topics))


def _describe_partition(tp: TopicPartition, version: int, context: Context) -> Any:
    kind = m.DescribeProducersResponse.TopicResponse.PartitionResponse
    found = context.services.replicas.leader(tp)
    if not isinstance(found, Partition):
        return kind(
            version=version, partition_index=tp.partition, error_code=found, error_message=None, active_producers=[]
        )
    producers = [
        kind.ProducerState(
            version=version,
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.txn_first_offset,
        )
        for entry in found.log.producers.active()
    ]
    return kind(
        version=version,
        partition_index=tp.partition,
        error_code=ErrorCode.NONE,
        error_message=None,
        active_producers=producers,
    )


def handle_describe_transactions(request: Any, context: Context) -> Outcome:
    """DescribeTransactions: the state of ids this broker coordinates."""
    version = context.api_version
    states = [_describe_transaction(name, version, context) for name in dict.fromkeys(request.transactional_ids)]
    return Done(m.DescribeTransactionsResponse(version=version, throttle_time_ms=0, transaction_states=states))


def _describe_transaction(transactional_id: str, version: int, context: Context) -> Any:
    kind = m.DescribeTransactionsResponse.TransactionState

    def refused(error: ErrorCode) -> Any:
        return kind(
            version=version,
            error_code=error,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            topics=[],
        )

    if not transactional_id:
        return refused(ErrorCode.INVALID_REQUEST)
    shard = context.services.transactions.shard_for(transactional_id)
    if isinstance(shard, ErrorCode):
        return refused(shard)
    t = shard.describe(transactional_id)
    if t is None:
        return refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(t.partitions):
        by_topic.setdefault(topic, []).append(index)
    return kind(
        version=version,
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=t.state.label,
        transaction_timeout_ms=t.timeout_ms,
        transaction_start_time_ms=t.start_ms,
        producer_id=t.producer_id,
        producer_epoch=t.producer_epoch,
        topics=[kind.TopicData(version=version, topic=name, partitions=indexes) for name, indexes in by_topic.items()],
    )


def handle_list_transactions(request: Any, context: Context) -> Outcome:
    """ListTransactions: all ids this broker coordinates that pass the filters."""
    version = context.api_version
    runtime = context.services.transactions
    states: set[TransactionState] = set()
    unknown: list[str] = []
    for label in request.state_filters:
        state = TransactionState.from_label(label)
        if state is None:
            unknown.append(label)
        else:
            states.add(state)
    error, pattern = ErrorCode.NONE, None
    if runtime.loading:
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if version >= 2 and request.transactional_id_pattern:
        try:
            pattern = Pattern(request.transactional_id_pattern)
        except BadPattern:
            error = ErrorCode.INVALID_REGULAR_EXPRESSION
    found: list[Any] = []
    if error is ErrorCode.NONE and (states or not request.state_filters):
        clock = context.services.clock
        now = Now(clock.wall_ms(), clock.mono_ms())
        longer_than_ms = request.duration_filter if version >= 1 else -1
        try:
            for shard in runtime.shards():
                found += shard.list_transactions(
                    now, frozenset(states), frozenset(request.producer_id_filters), longer_than_ms, pattern
                )
        except BadPattern:
            error, found = ErrorCode.INVALID_REGULAR_EXPRESSION, []
    kind = m.ListTransactionsResponse.TransactionState
    return Done(
        m.ListTransactionsResponse(
            version=version,
            throttle_time_ms=0,
            error_code=error,
            unknown_state_filters=unknown,
            transaction_states=[
                kind(
                    version=version,
                    transactional_id=entry.transactional_id,
                    producer_id=entry.producer_id,
                    transaction_state=entry.state.label,
                )
                for entry in found
            ],
        )
    )
