"""Produce (key 0): append batches to the partitions this broker leads, and answer as the producer's acks ask.

Each partition succeeds or fails by itself. A transactional batch whose transaction is not known on the partition yet is
verified with the transaction coordinator first (KIP-890), holding the log's guard; a producer of protocol 2 (version 12
and up) adds the partition to its transaction by the same question.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Coroutine
from typing import Any

from _native.batch import BatchHeader, parse_header
from _native.errors import CorruptBatch
from brokers.api.base import CLOSE, Context, Done, Outcome, Park
from brokers.api.leaders import current_leader, endpoints_of
from brokers.cluster.partition import Partition, Serve
from brokers.log import Origin
from brokers.model import INTERNAL_TOPICS, TopicPartition
from wire.errors import ErrorCode
from wire.hot import Encoded, NodeEndpoint, ProduceOutcome, ProducePart, ProduceRequest, encode_produce_response

logger = logging.getLogger(__name__)

ALL, LEADER, NONE = -1, 1, 0
ADDS_PARTITIONS_VERSION = 12
ABORTABLE_VERSION = 11
ZSTD, ZSTD_VERSION = 4, 7
MAGIC = 2


_UNTRIED = ProduceOutcome(ErrorCode.UNKNOWN_SERVER_ERROR)
named = tuple.__new__
"""Makes a named tuple without the Python function that its own constructor is."""


class Item:
    """One partition's batch, found acceptable so far."""

    __slots__ = ("header", "partition", "place", "records")

    def __init__(self, place: int, partition: Partition, header: BatchHeader, records: memoryview) -> None:
        self.place = place
        self.partition = partition
        self.header = header
        self.records = records


def handle_produce(request: ProduceRequest, context: Context) -> Outcome | Coroutine[Any, Any, Outcome]:
    """Append what can be appended; park while acks=all waits for the in-sync replicas."""
    outcomes = [_UNTRIED] * len(request.parts)
    if request.acks not in (ALL, LEADER, NONE):
        outcomes = [ProduceOutcome(ErrorCode.INVALID_REQUIRED_ACKS)] * len(request.parts)
        return _answer(request, outcomes, context)
    items: list[Item] = []
    unverified: set[int] = set()
    for index, part in enumerate(request.parts):
        found = _accept(index, part, request, context)
        if isinstance(found, Item):
            items.append(found)
            if found.header.is_transactional and _needs_verification(found):
                unverified.add(index)
        else:
            outcomes[index] = found
    if unverified:
        for item in items:
            item.records = memoryview(bytearray(item.records))
        request = _without_records(request)
        return _verify_then_append(request, context, items, unverified, outcomes)
    return _append(request, context, items, {}, outcomes)


def _accept(index: int, part: ProducePart, request: ProduceRequest, context: Context) -> Item | ProduceOutcome:
    """Everything that can be said about a part before its log is touched."""
    services = context.services
    topic = part.topic
    if part.topic_id is not None:
        topic = services.view.topic_names.get(part.topic_id)
        if topic is None:
            return ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_ID)
    assert topic is not None, "a Produce names its topic by name or by id"
    if topic in INTERNAL_TOPICS:
        return ProduceOutcome(ErrorCode.INVALID_TOPIC_EXCEPTION, error_message=f"{topic} is not for clients")
    if part.records is None or not len(part.records):
        return ProduceOutcome(ErrorCode.INVALID_RECORD, error_message="no record batch")
    tp = named(TopicPartition, (topic, part.partition))
    partition = services.replicas.leader(tp)
    if isinstance(partition, ErrorCode):
        return refusal(partition, tp, context)
    try:
        header = parse_header(part.records)
    except CorruptBatch as error:
        return ProduceOutcome(ErrorCode.CORRUPT_MESSAGE, error_message=str(error))
    if header.size != len(part.records):
        if header.size > len(part.records):
            return ProduceOutcome(ErrorCode.CORRUPT_MESSAGE, error_message="the record batch is cut off")
        return ProduceOutcome(ErrorCode.INVALID_RECORD, error_message="exactly one record batch per partition")
    if header.codec == ZSTD and context.api_version < ZSTD_VERSION:
        return ProduceOutcome(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if header.is_transactional and request.transactional_id is None:
        return ProduceOutcome(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return Item(index, partition, header, part.records)


def _needs_verification(item: Item) -> bool:
    header = item.header
    return bool(
        item.partition.may_serve(Serve.APPEND) is ErrorCode.NONE
        and item.partition.log.producers.needs_verification(header.producer_id, header.producer_epoch)
    )


async def _verify_then_append(
    request: ProduceRequest,
    context: Context,
    items: list[Item],
    unverified: set[int],
    outcomes: list[ProduceOutcome],
) -> Outcome:
    """Ask the transaction coordinator about the partitions that do not know the transaction yet."""
    from brokers.coordinators import verification

    transactional_id = request.transactional_id
    assert transactional_id is not None, "checked in _accept"
    guards: dict[int, object | None] = {}
    refused: set[int] = set()
    by_producer: dict[tuple[int, int], list[Item]] = {}
    for item in items:
        if item.place not in unverified:
            continue
        by_producer.setdefault((item.header.producer_id, item.header.producer_epoch), []).append(item)
    for producer, members in by_producer.items():
        admitted = await verification.admit(
            context.services,
            transactional_id,
            producer,
            {item.partition.tp: (item.partition.log.producers, item.header.base_sequence) for item in members},
            add=context.api_version >= ADDS_PARTITIONS_VERSION,
        )
        for item in members:
            error, guards[item.place] = admitted[item.partition.tp]
            if error is not ErrorCode.NONE:
                refused.add(item.place)
                told = _verification_error(error, context.api_version)
                now_ms = context.services.clock.mono_ms()
                outcomes[item.place] = ProduceOutcome(item.partition.turned_away.answer(item.header, told, now_ms))
    return _append(request, context, [item for item in items if item.place not in refused], guards, outcomes)


def _verification_error(error: ErrorCode, version: int) -> ErrorCode:
    """What an old producer can understand: retry where retrying helps, else abort the transaction."""
    if error in (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    ):
        return ErrorCode.NOT_ENOUGH_REPLICAS  # retriable for every producer, and says nothing about the batch
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH  # as Kafka: the producer asks InitProducerId, which says it plainly
    return error


def _append(
    request: ProduceRequest,
    context: Context,
    items: list[Item],
    guards: dict[int, object | None],
    outcomes: list[ProduceOutcome],
) -> Outcome:
    metrics = context.services.metrics
    waits: list[tuple[int, Partition, int]] = []
    # Without its lease a leader may have been replaced: it then promises nothing that its followers don't have.
    waiting = request.acks == ALL or (request.acks == LEADER and not context.services.replicas.lease_valid())
    for item in items:
        partition = item.partition
        info = partition.append(
            item.records,
            acks=request.acks,
            origin=Origin.CLIENT,
            verification_guard=guards.get(item.place),
        )
        error = info.error
        if item.header.producer_id >= 0:
            error = partition.turned_away.answer(item.header, error, context.services.clock.mono_ms())
        if error is not ErrorCode.NONE:
            outcomes[item.place] = refusal(error, partition.tp, context, info.record_errors, info.error_message)
            continue
        metrics.records_in.value += info.record_count
        metrics.appended_bytes.value += info.size
        outcomes[item.place] = named(
            ProduceOutcome,
            (ErrorCode.NONE, info.first_offset, info.log_append_time_ms, info.log_start_offset, (), None, None),
        )
        if waiting and not partition.is_committed(info.last_offset):
            waits.append((item.place, partition, info.last_offset))
    if not waits:
        return _answer(request, outcomes, context)
    return _wait(request, context, waits, outcomes)


def _wait(
    request: ProduceRequest,
    context: Context,
    waits: list[tuple[int, Partition, int]],
    outcomes: list[ProduceOutcome],
) -> Outcome:
    """acks=all: the answer comes when every appended batch is committed, or the in-sync set has become too small."""
    missing = {index for index, _, _ in waits}
    request = _without_records(request)

    def expired() -> Any:
        for index in missing:
            outcomes[index] = outcomes[index]._replace(error=ErrorCode.REQUEST_TIMED_OUT)
        return _answer(request, outcomes, context).response

    park = Park(max(0, request.timeout_ms), expired)

    def committed(index: int, partition: Partition, error: ErrorCode) -> None:
        if index not in missing or park.done:
            return
        missing.discard(index)
        if error is not ErrorCode.NONE:
            outcomes[index] = refusal(error, partition.tp, context)
        if not missing and armed:
            park.complete(_answer(request, outcomes, context).response)

    armed = False
    for index, partition, last_offset in waits:
        partition.wait_for(last_offset, functools.partial(committed, index, partition), gives_up=True)
    armed = True
    if not missing:
        return _answer(request, outcomes, context)
    return park


def _without_records(request: ProduceRequest) -> ProduceRequest:
    """What a request that waits may keep of itself: a view of the frame would hold all that was received beside it."""
    return request._replace(parts=[part._replace(records=None) for part in request.parts])


def refusal(
    error: ErrorCode,
    tp: TopicPartition,
    context: Context,
    record_errors: Any = (),
    message: str | None = None,
) -> ProduceOutcome:
    """The answer for a partition whose batch was not taken; it names the leader if somebody else leads."""
    leader = current_leader(context, tp) if error is ErrorCode.NOT_LEADER_OR_FOLLOWER else None
    return ProduceOutcome(error, record_errors=record_errors, error_message=message, current_leader=leader)


def _answer(request: ProduceRequest, outcomes: list[ProduceOutcome], context: Context) -> Done:
    if request.acks == NONE:
        # without an answer, a closed connection is what makes the producer look for the leader again
        return Done(None if all(outcome.error == ErrorCode.NONE for outcome in outcomes) else CLOSE)
    endpoints: list[NodeEndpoint] = []
    for outcome in outcomes:
        if outcome.current_leader is not None:
            endpoints = endpoints_of(context, [outcome.current_leader for outcome in outcomes])
            break
    body = encode_produce_response(
        context.api_version, list(zip(request.parts, outcomes, strict=True)), endpoints=endpoints
    )
    return named(Done, (Encoded([body]),))
