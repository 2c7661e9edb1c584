"""DescribeLogDirs and AlterReplicaLogDirs: what a broker's log directories hold (KIP-113, KIP-827)."""

from __future__ import annotations

from functools import partial

from fleetlog.brokers.acls.access import ALTER_CLUSTER, CLUSTER_ACTION_CLUSTER, DESCRIBE_CLUSTER
from fleetlog.brokers.acls.image import AclOperation
from fleetlog.brokers.api.base import Context, Done, Paced, in_slices
from fleetlog.brokers.api.by_topic import rows_by_topic
from fleetlog.brokers.api.changes import brief, codes_of, named
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.audit.events import Changes
from fleetlog.brokers.log import Log
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.tiering.tiers import Tiers, tier_troubles
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import AlterReplicaLogDirsRequest, DescribeLogDirsRequest

_Topic = messages.DescribeLogDirsResponse.DescribeLogDirsResult.DescribeLogDirsTopic


# one of both: brokers look for room
@Row(api_keys.DESCRIBE_LOG_DIRS, (DESCRIBE_CLUSTER, CLUSTER_ACTION_CLUSTER))
@in_slices
def handle_describe_log_dirs(request: DescribeLogDirsRequest, context: Context) -> Paced:
    """DescribeLogDirs v1-v5: every directory, with those of its partitions that were asked for (null: all).

    Logs that were put aside (-stray) are not among them, as in Kafka. From v2 on tagged fields of ours, for ``cluster
    describe``, ``topics describe`` and the doctor, name them, what the process lacks, and sizes in the bucket. No
    directory is cordoned (v5, KIP-1066).
    """
    response = messages.DescribeLogDirsResponse
    version = context.api_version
    if not context.acts_as_broker() and (refusal := context.refusal(*DESCRIBE_CLUSTER)):
        return Done(response(version=version, error_code=int(refusal)))
    asked = None
    if request.topics is not None:
        asked = {TopicPartition(topic.topic, index) for topic in request.topics for index in topic.partitions}
    rows = []
    for directory in context.services.replicas.logs.usage():
        logs = [] if directory.offline else directory.logs
        wanted = [(log.topic_partition, log) for log in logs if asked is None or log.topic_partition in asked]
        error = ErrorCode.KAFKA_STORAGE_ERROR if directory.offline else ErrorCode.NONE
        topic_rows = yield from rows_by_topic(
            wanted, partial(_partition, context.services.tiers), lambda name, parts: _Topic(name=name, partitions=parts)
        )
        rows.append(
            response.DescribeLogDirsResult(
                error_code=int(error), log_dir=directory.path, topics=topic_rows,
                total_bytes=directory.total_bytes, usable_bytes=directory.usable_bytes,
            )
        )  # fmt: skip
    services = context.services
    store = services.replicas.logs
    troubles = services.process_troubles() + store.verify.troubles() + services.replicas.faults()
    troubles += tier_troubles(services.tiers, services.metadata, services.replicas)
    troubles += [text for one in store.directories if (text := one.strays_text()) is not None]
    if troubles and version >= 2:
        return Done(response(version=version, results=rows, troubles=troubles))
    return Done(response(version=version, results=rows))


def _partition(tiers: Tiers | None, tp: TopicPartition, log: Log) -> _Topic.DescribeLogDirsPartition:
    return _Topic.DescribeLogDirsPartition(
        partition_index=tp.partition,
        partition_size=log.size_bytes,
        offset_lag=max(log.high_watermark - log.log_end_offset, 0),
        tiered_bytes=-1 if tiers is None else tiers.size_of(tp),
    )


def _move_directories(request: AlterReplicaLogDirsRequest, response: messages.AlterReplicaLogDirsResponse) -> Changes:
    names = ((topic.name, brief("directories of", topic.partitions)) for one in request.dirs for topic in one.topics)
    return named("Topic", AclOperation.ALTER, names, codes_of(response.results, "topic_name"))


@Row(api_keys.ALTER_REPLICA_LOG_DIRS, (ALTER_CLUSTER,), Recorded(_move_directories, ("dirs",)))
@in_slices
def handle_alter_replica_log_dirs(request: AlterReplicaLogDirsRequest, context: Context) -> Paced:
    """AlterReplicaLogDirs v1-v2: a replica stays in the directory that it was created in.

    Asking for the directory it is in succeeds; for another one it is UNSUPPORTED_VERSION: move the replica to another
    broker, or to this one again.
    """
    response = messages.AlterReplicaLogDirsResponse
    refusal = context.refusal(*ALTER_CLUSTER)
    directories = {directory.path: directory for directory in context.services.replicas.logs.usage()}
    homes = {log.topic_partition: path for path, directory in directories.items() for log in directory.logs}
    results: dict[TopicPartition, ErrorCode] = {}
    error: ErrorCode
    for wanted in request.dirs:
        path = wanted.path.rstrip("/") or "/"
        for tp in (TopicPartition(topic.name, index) for topic in wanted.topics for index in topic.partitions):
            yield
            if refusal is not ErrorCode.NONE:
                error = refusal
            elif path not in directories:
                error = ErrorCode.LOG_DIR_NOT_FOUND
            elif directories[path].offline:
                error = ErrorCode.KAFKA_STORAGE_ERROR
            elif tp not in homes:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                error = ErrorCode.NONE if homes[tp] == path else ErrorCode.UNSUPPORTED_VERSION
            results[tp] = error
    kind = response.AlterReplicaLogDirTopicResult
    rows = yield from rows_by_topic(
        results.items(),
        lambda tp, error: kind.AlterReplicaLogDirPartitionResult(partition_index=tp.partition, error_code=int(error)),
        lambda name, parts: kind(topic_name=name, partitions=parts),
    )
    return Done(response(version=context.api_version, results=rows))
