"""Idempotent batches that were rejected for a while, and the ones that follow on them.

A producer has several batches on their way. When one is refused because there is no room, too few replicas are in sync,
or its transaction cannot be verified just now, the next ones find a gap in the sequence. After
OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka begins a new producer epoch; what it had in flight elsewhere and could not
hear of any more it then sends again in that epoch, and the log cannot know that it is there already: duplicates. So the
followers of a rejected batch are rejected with the same error, which is true for them, too: not appended, try again.

That holds for a batch that was refused because this broker did not lead the partition yet, too: what was sent behind
it may arrive a moment later, when this broker leads.

Worse is a log that does not know the producer: it takes any sequence for its first one (its records may have been
deleted), so the second batch would be appended before the first. Therefore such a producer is asked for its first batch
before anything is appended.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from typing import NamedTuple

from fleetlog._native.batch import BatchHeader, CorruptBatch, parse_header
from fleetlog.brokers.model import Clock
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

MAX_PRODUCERS = 1000
"""Producers remembered per partition, and per broker those that came before it led their partition."""
REMEMBERED_MS = 300_000
"""How long the first batch is waited for: librdkafka's message.timeout.ms, the longest of the clients' defaults. A
broker or a connection may stand still for long between it and what was on its way behind it; and a producer that gives
a batch up begins a new epoch anyway.
"""
_TURNS_AWAY = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,  # the leader has proposed to resign; if that is refused, it leads on
    # the verification of a transactional batch waits
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


Place = TopicPartition | tuple[uuid.UUID, int]
"""A partition by the name of its topic, or by the topic's id where this broker does not know it."""


class First(NamedTuple):
    """The batch that has to come first."""

    epoch: int
    sequence: int
    error: ErrorCode
    at_ms: int


class RejectedBatches:
    """What one partition remembers of them. Lost with its leader: a client that changes leaders begins in order."""

    def __init__(self) -> None:
        self.first: OrderedDict[int, First] = OrderedDict()
        """By producer id, the batch that is waited for."""

    def answer(self, header: BatchHeader, error: ErrorCode, now_ms: int) -> ErrorCode:
        """The error to answer for a batch whose append ended with ``error``; ``now_ms`` of a monotonic clock."""
        if header.producer_id < 0 or (error is ErrorCode.NONE and not self.first):
            return error
        producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
        first = self.first.get(producer_id)
        if first is not None and epoch < first.epoch:
            return error  # late, and of no consequence for the present epoch
        if first is not None and (first.epoch != epoch or now_ms - first.at_ms > REMEMBERED_MS):
            del self.first[producer_id]
            first = None
        if error in _TURNS_AWAY:
            if first is None or sequence <= first.sequence:
                self.first[producer_id] = First(epoch, sequence, error, now_ms)
                if len(self.first) > MAX_PRODUCERS:
                    self.first.popitem(last=False)
        elif first is not None:
            if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and sequence > first.sequence:
                return first.error
            if error is ErrorCode.NONE and sequence >= first.sequence:
                del self.first[producer_id]
        return error

    def overtaken(self, header: BatchHeader, now_ms: int) -> ErrorCode:
        """What to answer for a batch of a producer that the log does not know, before it is appended; NONE: append."""
        return _overtaken(self.first.get(header.producer_id), header, now_ms)


class BeforeLeading:
    """Idempotent batches that came to this broker before it led their partitions, the first of each producer."""

    def __init__(self) -> None:
        self.first: OrderedDict[tuple[Place, int], First] = OrderedDict()

    def refused(self, place: Place, records: memoryview, error: ErrorCode, now_ms: int) -> None:
        """A batch was refused with ``error``, for this broker does not lead the partition."""
        try:
            header = parse_header(records)
        except CorruptBatch:
            return
        if header.producer_id < 0:
            return
        key, epoch, sequence = (place, header.producer_id), header.producer_epoch, header.base_sequence
        self.expire(now_ms)
        known = self.first.get(key)
        if known is None or epoch > known.epoch or (epoch == known.epoch and sequence <= known.sequence):
            self.first[key] = First(epoch, sequence, error, now_ms)
            self.first.move_to_end(key)
            if len(self.first) > MAX_PRODUCERS:
                self.first.popitem(last=False)

    def expire(self, now_ms: int) -> None:
        """Forget those that were waited for long enough."""
        while self.first and now_ms - next(iter(self.first.values())).at_ms > REMEMBERED_MS:
            self.first.popitem(last=False)

    def answer(self, place: Place, header: BatchHeader, error: ErrorCode, now_ms: int) -> ErrorCode:
        """As :meth:`RejectedBatches.answer`, for a batch that came when this broker led its partition."""
        first = self.first.get((place, header.producer_id))
        if first is None:
            return error
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return _overtaken(first, header, now_ms) or error
        if error is ErrorCode.NONE and (header.producer_epoch, header.base_sequence) >= (first.epoch, first.sequence):
            del self.first[place, header.producer_id]
        return error

    def overtaken(self, place: Place, header: BatchHeader, now_ms: int) -> ErrorCode:
        """As :meth:`RejectedBatches.overtaken`."""
        return _overtaken(self.first.get((place, header.producer_id)), header, now_ms)


class BatchOrder:
    """Both for one partition, as its appends ask."""

    __slots__ = ("_clock", "_early", "_places", "refused", "refused_early", "rejected")

    def __init__(self, tp: TopicPartition, topic_id: uuid.UUID, clock: Clock, early: BeforeLeading) -> None:
        self.rejected = RejectedBatches()
        self.refused = self.rejected.first
        self._places: tuple[Place, ...] = (tp, (topic_id, tp.partition))
        self._clock = clock
        self.follow(early)

    def follow(self, early: BeforeLeading) -> None:
        """The broker's, which all of its partitions share."""
        self._early = early
        self.refused_early = early.first

    def overtaken(self, header: BatchHeader) -> ErrorCode:
        """The error of the first batch of this one's producer, if it was refused. The log does not know it."""
        if not self.refused and not self.refused_early:
            return ErrorCode.NONE
        now_ms = self._clock.mono_ms()
        self._early.expire(now_ms)
        error = self.rejected.overtaken(header, now_ms)
        for place in self._places:
            error = error or self._early.overtaken(place, header, now_ms)
        return error

    def answer(self, header: BatchHeader, error: ErrorCode) -> ErrorCode:
        """What to answer for a batch whose append ended with ``error``."""
        now_ms = self._clock.mono_ms()
        error = self.rejected.answer(header, error, now_ms)
        if self.refused_early:
            for place in self._places:
                error = self._early.answer(place, header, error, now_ms)
        return error


def _overtaken(first: First | None, header: BatchHeader, now_ms: int) -> ErrorCode:
    if first is None or first.epoch != header.producer_epoch or now_ms - first.at_ms > REMEMBERED_MS:
        return ErrorCode.NONE
    return first.error if header.base_sequence > first.sequence else ErrorCode.NONE
