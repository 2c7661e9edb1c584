"""The lag of consumer groups: what brokers ask of each other for it (LogPositions), and the result (DescribeLag)."""

from __future__ import annotations

from collections.abc import Generator

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import CLUSTER_ACTION_CLUSTER, DESCRIBE_GROUP, DESCRIBE_TOPIC
from fleetlog.brokers.api.base import Context, Done, Paced, in_slices
from fleetlog.brokers.api.by_topic import rows_by_topic
from fleetlog.brokers.api.rows import Row
from fleetlog.brokers.coordinators.lags import LagWatch
from fleetlog.brokers.groups.lag import LogPosition, PartitionLag
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.replication.positions import own_position
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import DescribeLagRequest, LogPositionsRequest, LogPositionsTopicsPartitions

_TopicLag = m.DescribeLagResponse.GroupLagRow.TopicLag


@Row(api_keys.LOG_POSITIONS, (CLUSTER_ACTION_CLUSTER,), brokers_from=0)
@in_slices
def handle_log_positions(request: LogPositionsRequest, context: Context) -> Paced:
    """LogPositions v0 (ours): ends of the logs led here, and the times of records at offsets."""
    services, kind = context.services, m.LogPositionsResponse
    granted = context.acts_as_broker()
    if not granted or context.connection.listener != services.config.inter_broker_listener():
        return Done(kind(version=0, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    topics = []
    for topic in request.topics:
        rows = []
        for one in topic.partitions:
            yield
            position = own_position(TopicPartition(topic.name, one.partition_index), one.offset, services.replicas)
            rows.append(_position_row(kind.TopicPositions, one, position))
        topics.append(kind.TopicPositions(name=topic.name, partitions=rows))
    return Done(kind(version=0, topics=topics))


def _position_row(
    kind: type[m.LogPositionsResponse.TopicPositions],
    asked: LogPositionsTopicsPartitions,
    found: LogPosition | ErrorCode,
) -> m.LogPositionsResponse.TopicPositions.FoundPosition:
    row = kind.FoundPosition(partition_index=asked.partition_index, offset=asked.offset)
    if isinstance(found, LogPosition):
        row.start_offset, row.end_offset, row.stable_offset, row.waiting_since_ms = found
    else:
        row.error_code = int(found)
    return row


# topics that may not be described are left out
@Row(api_keys.DESCRIBE_LAG, (DESCRIBE_GROUP,))
@in_slices
def handle_describe_lag(request: DescribeLagRequest, context: Context) -> Paced:
    """DescribeLag v0 (ours): groups that this broker coordinates, all of them or those named.

    INVALID_CONFIG where ``group.lag.interval.ms`` is 0; a group of which nothing was computed yet has no topics.
    """
    lags, kind = context.services.lags, m.DescribeLagResponse
    if lags is None:
        return Done(kind(version=0, error_code=ErrorCode.INVALID_CONFIG))
    rows = []
    if request.group_ids is None:
        for group_id in list(lags.groups):
            yield
            if context.allows(*DESCRIBE_GROUP, group_id, logged=False):
                rows.append((yield from _described(group_id, lags, context)))
    else:
        for group_id in dict.fromkeys(request.group_ids):
            yield
            rows.append((yield from _described(group_id, lags, context)))
    return Done(kind(version=0, groups=rows))


def _described(
    group_id: str, lags: LagWatch, context: Context
) -> Generator[None, None, m.DescribeLagResponse.GroupLagRow]:
    kind = m.DescribeLagResponse.GroupLagRow
    error = context.refusal(*DESCRIBE_GROUP, group_id)
    if error is ErrorCode.NONE:
        error, shard = context.services.groups.shard_for(group_id)
        if shard is not None and not any(group_id in some for some in (shard.groups, shard.consumers, shard.shares)):
            error = ErrorCode.GROUP_ID_NOT_FOUND
    lag = lags.groups.get(group_id)
    if error is not ErrorCode.NONE or lag is None:
        return kind(error_code=error, group_id=group_id)
    denied = context.denied(*DESCRIBE_TOPIC, {tp.topic for tp in lag.partitions}, logged=False)
    shown = ((tp, one) for tp, one in lag.partitions.items() if tp.topic not in denied)
    topics = yield from rows_by_topic(shown, _partition, lambda name, rows: _TopicLag(name=name, partitions=rows))
    age_ms = context.services.clock.mono_ms() - lag.at_ms
    status = lag.progress.group_status
    return kind(group_id=group_id, status=status, age_ms=age_ms, topics=topics)


def _partition(tp: TopicPartition, one: PartitionLag) -> _TopicLag.LagOfPartition:
    return _TopicLag.LagOfPartition(
        partition_index=tp.partition, committed_offset=one.committed, end_offset=one.end, lag=one.records,
        stable_lag=one.stable_records, lag_ms=round(one.seconds * 1000), status=one.progress.name,
    )  # fmt: skip
