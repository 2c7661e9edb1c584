"""CompactTopics and DescribeCompaction (keys 12008 and 12009, ours): the cleaner's work on this broker's copies."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import ALTER_TOPIC, DESCRIBE_TOPIC, Need
from fleetlog.brokers.acls.image import AclOperation
from fleetlog.brokers.api.base import Context, Done, Paced, in_slices, named_once
from fleetlog.brokers.api.by_topic import by_topic
from fleetlog.brokers.api.changes import brief, codes_of, named
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.audit.events import Changes
from fleetlog.brokers.log import DiskError, Log, LogStore
from fleetlog.brokers.log.compaction.cleaner import CleaningReport, CleaningState
from fleetlog.brokers.model import TopicPartition
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import (
    CompactTopicsRequest,
    CompactTopicsTopics,
    DescribeCompactionRequest,
    DescribeCompactionTopics,
)

Asked = list[tuple[TopicPartition, Log | ErrorCode]]
_UNKNOWN = CleaningReport(CleaningState.STOPPED, -1, -1, -1, 0.0, None)


def _compact_topics(request: CompactTopicsRequest, response: m.CompactTopicsResponse) -> Changes:
    verb = "compact at once" if request.now else "compact"
    names = ((topic.name, brief(verb, topic.partitions)) for topic in request.topics)
    return named("Topic", AclOperation.ALTER, names, codes_of(response.topics, "name"))


@Row(api_keys.COMPACT_TOPICS, (ALTER_TOPIC,), Recorded(_compact_topics, ("topics",)))
@in_slices
def handle_compact_topics(request: CompactTopicsRequest, context: Context) -> Paced:
    """CompactTopics: this broker's copies are cleaned soon, whatever their dirty ratio. Answered before that is done.

    A topic that is not compacted is INVALID_REQUEST, a partition without a replica here REPLICA_NOT_AVAILABLE.
    """
    store = context.services.replicas.logs
    now_ms = context.services.clock.wall_ms()
    answers = []
    for tp, log in (yield from _named(request.topics, context, ALTER_TOPIC)):
        yield
        code, message = ErrorCode.NONE, None
        log = _still(store, tp, log)
        if isinstance(log, ErrorCode):
            code = log
        else:
            report = _report(store, log, now_ms)
            if report is None or report.state >= CleaningState.STOPPED:
                code = ErrorCode.KAFKA_STORAGE_ERROR if report is None or log.offline else ErrorCode.INVALID_REQUEST
                message = None if report is None else report.trouble
            else:
                store.cleaner.ask_for(tp, young=request.now)
        answers.append((tp, {"error_code": int(code), "error_message": message}))
    kind = m.CompactTopicsResponse.CompactedTopic
    return Done(m.CompactTopicsResponse(version=0, topics=_rows(kind, kind.CompactedPartition, answers)))


@Row(api_keys.DESCRIBE_COMPACTION, (DESCRIBE_TOPIC,))
@in_slices
def handle_describe_compaction(request: DescribeCompactionRequest, context: Context) -> Paced:
    """DescribeCompaction: how far this broker's copies of the partitions are clean, and what the cleaner does."""
    store = context.services.replicas.logs
    now_ms = context.services.clock.wall_ms()
    answers = []
    for tp, log in (yield from _named(request.topics, context, DESCRIBE_TOPIC)):
        yield
        code, report = ErrorCode.NONE, None
        log = _still(store, tp, log)
        if isinstance(log, ErrorCode):
            code = log
        else:
            report = _report(store, log, now_ms)
            code = ErrorCode.KAFKA_STORAGE_ERROR if report is None else code
        answers.append((tp, {"error_code": int(code), **(report or _UNKNOWN)._asdict()}))
    kind = m.DescribeCompactionResponse.DescribedCompaction
    return Done(m.DescribeCompactionResponse(version=0, topics=_rows(kind, kind.CompactionOfPartition, answers)))


def _named(
    topics: Sequence[CompactTopicsTopics | DescribeCompactionTopics], context: Context, need: Need
) -> Generator[None, None, Asked]:
    """The partitions with their logs, or what is wrong with them."""
    named: Asked = []
    logs = context.services.replicas.logs
    for tp in (yield from named_once((topic.name, topic.partitions) for topic in topics)):
        yield
        refusal = context.refusal(*need, tp.topic)
        named.append((tp, refusal or logs.get(tp) or ErrorCode.REPLICA_NOT_AVAILABLE))
    return named


def _still(store: LogStore, tp: TopicPartition, log: Log | ErrorCode) -> Log | ErrorCode:
    """The log, unless it was deleted meanwhile."""
    return log if isinstance(log, ErrorCode) or store.get(tp) is log else ErrorCode.REPLICA_NOT_AVAILABLE


def _report(store: LogStore, log: Log, now_ms: int) -> CleaningReport | None:
    """None if the disk does not let it be known; then the next step of the cleaner deals with that."""
    try:
        return store.cleaner.report(log, now_ms)
    except DiskError:
        return None


def _rows(kind: Any, part: Any, answers: list[tuple[TopicPartition, dict[str, Any]]]) -> list[Any]:
    return [
        kind(name=name, partitions=[part(partition_index=tp.partition, **fields) for tp, fields in those])
        for name, those in by_topic(answers)
    ]
