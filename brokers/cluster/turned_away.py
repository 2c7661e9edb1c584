"""Idempotent batches that were turned away for a while, and the ones that follow on them.

A producer has several batches on their way. When one is refused because there is no room, or too few replicas are in
sync, the next ones find a gap in the sequence. Told so (OUT_OF_ORDER_SEQUENCE_NUMBER), librdkafka begins a new producer
epoch; what it had in flight elsewhere and could not hear of any more it then sends again in that epoch, and nobody can
tell that it is there already: duplicates. So the followers of a batch that was turned away are turned away by the same
words, which are true for them, too: not appended, try again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from _native.batch import BatchHeader
from wire.errors import ErrorCode

MAX_PRODUCERS = 1000
"""Producers remembered per partition."""
REMEMBERED_MS = 300_000
"""How long the first batch is waited for: librdkafka's message.timeout.ms, the longest of the clients' defaults. A
broker or a connection may stand still for long between it and what was on its way behind it; and a producer that gives
a batch up begins a new epoch anyway.
"""
_TURNS_AWAY = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS)


class First(NamedTuple):
    """The batch that has to come first."""

    epoch: int
    sequence: int
    error: ErrorCode
    at_ms: int


class TurnedAway:
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
