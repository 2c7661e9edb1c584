"""The writes of a shard, and their encoding as batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fleetlog._native.batch import Record, control_batch, encode_batch
from fleetlog.brokers.coordinators.ports import TransactionMarker
from fleetlog.txn.commands import CoordinatorRecord, Result, Ticket
from fleetlog.wire.errors import ErrorCode

TRANSACTIONAL = 1 << 4
BATCH_OVERHEAD = 61
RECORD_OVERHEAD = 24
"""An upper bound of a record's varints and attributes without headers, in bytes."""


@dataclass(slots=True)
class ShardWrite:
    """One command's records, or one marker. All records of a write are in one batch, so a crash cannot split it."""

    key: str | None
    ticket: Ticket | None
    result: Result
    marker: TransactionMarker | None = None
    on_marker: Callable[[ErrorCode], None] | None = None
    guard: object | None = None

    @property
    def records(self) -> tuple[CoordinatorRecord, ...]:
        """The records to append; none for a marker."""
        return self.result.records

    def size(self) -> int:
        """An upper bound of the encoded size in bytes."""
        return sum(RECORD_OVERHEAD + len(r.key) + len(r.value or b"") for r in self.records)


def batches(writes: Sequence[ShardWrite], limit_bytes: int) -> Iterator[list[ShardWrite]]:
    """Runs of writes that may share a batch, in order: plain ones up to ``limit_bytes``, all others alone."""
    run: list[ShardWrite] = []
    run_bytes = BATCH_OVERHEAD
    for write in writes:
        alone = write.marker is not None or write.result.producer is not None
        size = write.size()
        if run and (alone or run_bytes + size > limit_bytes):
            yield run
            run, run_bytes = [], BATCH_OVERHEAD
        if alone:
            yield [write]
        else:
            run.append(write)
            run_bytes += size
    if run:
        yield run


def encode_writes(run: Sequence[ShardWrite], wall_ms: int) -> bytearray:
    """One record batch (or control batch) for a run made by :func:`batches`; the log stamps it in place."""
    first = run[0]
    if first.marker is not None:
        return bytearray(
            control_batch(
                commit=first.marker.commit,
                producer_id=first.marker.producer_id,
                producer_epoch=first.marker.producer_epoch,
                coordinator_epoch=first.marker.coordinator_epoch,
                timestamp=wall_ms,
            )
        )
    records = [record for write in run for record in write.records]
    encoded = [Record(i, wall_ms, record.key, record.value, ()) for i, record in enumerate(records)]
    if first.result.producer is None:
        return bytearray(encode_batch(encoded))
    producer_id, producer_epoch = first.result.producer
    return bytearray(
        encode_batch(encoded, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=producer_epoch)
    )
