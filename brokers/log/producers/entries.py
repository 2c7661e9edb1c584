"""What is remembered of one producer: its epoch, its last batches, its open transaction."""

from __future__ import annotations

from typing import NamedTuple

from fleetlog.wire.types import NO_PRODUCER_EPOCH, NO_SEQUENCE

MAX_SEQUENCE = 2**31 - 1


def add_sequence(sequence: int, delta: int) -> int:
    """A sequence ``delta`` records later (or earlier), with the wrap at 2^31 - 1."""
    return (sequence + delta) % (MAX_SEQUENCE + 1)


class BatchMeta(NamedTuple):
    """A remembered batch: enough to answer its duplicate with the original offsets."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """The first record's sequence, with the wrap at 2^31 - 1."""
        return add_sequence(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        """The first record's offset."""
        return self.last_offset - self.offset_delta


class ProducerEntry(NamedTuple):
    """One producer's state; ``batches`` holds up to five, oldest first; ``txn_first_offset`` is -1 outside one."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = -1
    timestamp: int = -1
    batches: tuple[BatchMeta, ...] = ()
    txn_first_offset: int = -1
    last_seen_ms: int = -1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence, -1 if no batch is remembered."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The last record's offset, -1 if no batch is remembered."""
        return self.batches[-1].last_offset if self.batches else -1
