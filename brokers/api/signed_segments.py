"""SignSegments (key 12021, ours): old records of a tiered partition by URLs that the bucket answers, not the broker.

Whoever reads by them needs no key of the bucket. Each names one object, a segment's log, and holds for
``fleetlog.bucket.url.lifetime.ms``. The answer has the checksums of the chunks and the aborted transactions, so that a
reader sees what a Fetch would give it.
"""

from __future__ import annotations

import uuid
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import READ_TOPIC
from fleetlog.brokers.api.base import Context, Done, in_task
from fleetlog.brokers.api.rows import Row
from fleetlog.brokers.audit.events import EventType
from fleetlog.brokers.log import LogOffline
from fleetlog.brokers.metadata.features import TIERING_VERSION
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.replication.partition import Partition
from fleetlog.brokers.replication.serving import Serve
from fleetlog.brokers.tiering.cold_reads import AskedRange, TierUnavailable
from fleetlog.brokers.tiering.leader import BucketError
from fleetlog.brokers.tiering.tiers import is_tiered
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import SignSegmentsRequest

MOST_BYTES = 256 * 1024 * 1024
"""Of the chunks that one answer names, but one is always named: some 64 chunks, in some 32 segments at most."""
MOST_SEGMENTS = 32
_NO_TOPIC = uuid.UUID(int=0)
_NONE = ErrorCode.NONE


class _NotSigned(Exception):
    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(message)
        self.error, self.message = error, message


@Row(api_keys.SIGN_SEGMENTS, (READ_TOPIC,), EventType.CONSUME, feature=TIERING_VERSION)
@in_task
async def handle_sign_segments(request: SignSegmentsRequest, context: Context) -> Done:
    """SignSegments v0 (ours). No segments: the bucket has nothing from the offset on, the broker's log may have."""
    try:
        return Done(await _signed(request, context))
    except _NotSigned as refused:
        error, message = refused.error, refused.message
    except (TierUnavailable, BucketError, LogOffline) as wrong:
        error, message = ErrorCode.KAFKA_STORAGE_ERROR, str(wrong)
    return Done(
        m.SignSegmentsResponse(
            version=0, error_code=int(error), error_message=message, topic_id=_NO_TOPIC, segments=[],
            aborted_transactions=[],
        )
    )  # fmt: skip


async def _signed(request: SignSegmentsRequest, context: Context) -> Any:
    """Raises _NotSigned, TierUnavailable, BucketError, LogOffline."""
    refused = context.refusal(*READ_TOPIC, request.topic)
    if refused is not _NONE:
        raise _NotSigned(refused)
    partition, tiers = _partition(request, context), context.services.tiers
    lifetime_ms = context.services.config.fleetlog_bucket_url_lifetime_ms
    if not lifetime_ms or tiers is None or not tiers.bucket.signs:
        why = "has no bucket" if tiers is None else "gives out no URLs of its bucket"
        raise _NotSigned(ErrorCode.INVALID_REQUEST, f"broker {context.services.config.broker_id} {why}: read by Fetch")
    start = tiers.start_of(partition)
    if start is None:
        raise TierUnavailable(f"{partition.tp}: what is in the bucket is not known yet")
    if request.start_offset < start[0]:
        raise _NotSigned(ErrorCode.OFFSET_OUT_OF_RANGE)
    meter, source = context.meter, context.source
    most = min(request.max_bytes, MOST_BYTES, MOST_BYTES if meter is None else meter.fetch_bytes_max)
    wanted = AskedRange(request.start_offset, request.end_offset, most, MOST_SEGMENTS)
    named = await tiers.named(partition, wanted)
    size = sum(chunk.size for one in named.segments for chunk in one.chunks)
    if size and meter is not None and source is not None and not meter.may_fetch(source, size):
        raise _NotSigned(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    urls = await tiers.sign(partition, named, lifetime_ms, size)
    if _partition(request, context) is not partition:  # it was waited for the bucket
        raise _NotSigned(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    kind = m.SignSegmentsResponse
    rows = [
        kind.SignedSegment(
            base_offset=one.segment.start, end_offset=one.end, size_in_bytes=one.segment.size, url=url,
            chunks=[
                kind.SignedSegment.SignedChunk(
                    base_offset=chunk.base_offset, position=chunk.position, size_in_bytes=chunk.size, crc=chunk.crc
                )
                for chunk in one.chunks
            ],
        )
        for one, url in zip(named.segments, urls, strict=True)
    ]  # fmt: skip
    aborted = [kind.SignedAborted(producer_id=producer, first_offset=first) for producer, first in named.aborted]
    return kind(
        version=0, error_message=None, topic_id=partition.topic_id, lifetime_ms=lifetime_ms, segments=rows,
        aborted_transactions=aborted,
    )  # fmt: skip


def _partition(request: SignSegmentsRequest, context: Context) -> Partition:
    """The tiered partition, which is led here for certain. Raises _NotSigned."""
    services = context.services
    partition, error = services.replicas.leader(TopicPartition(request.topic, request.partition_index))
    if partition is None:
        raise _NotSigned(error)
    if (error := partition.may_serve(Serve.FETCH)) is not _NONE:
        raise _NotSigned(error)
    if not partition.lease_valid():
        raise _NotSigned(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if not is_tiered(partition, services.metadata):
        raise _NotSigned(ErrorCode.INVALID_REQUEST, f"{request.topic} is not tiered: read by Fetch")
    return partition
