"""Which batches and markers a pass keeps: Kafka's rules of Cleaner and CleanedTransactionMetadata, over values.

Which *records* stay is the kernel's (``_native.compact``): those whose key has no later record, tombstones up to their
batch's delete horizon (KIP-534). Here: what a batch's transaction and its producer make of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from fleetlog._native.batch import BatchHeader
from fleetlog.brokers.log.indexes import AbortedTxn
from fleetlog.brokers.log.producers.markers import Marker
from fleetlog.brokers.log.validation import DELETE_HORIZON_BIT
from fleetlog.wire.types import NO_PRODUCER_ID


class KnownProducer(Protocol):
    """What is remembered of a producer; ``ProducerEntry`` is one."""

    @property
    def epoch(self) -> int:
        """Its epoch."""
        ...

    @property
    def last_offset(self) -> int:
        """The last offset of its last batch with records, or -1."""
        ...

    @property
    def batches(self) -> Sequence[KnownBatch]:
        """Its last batches with records, oldest first."""
        ...


class KnownBatch(Protocol):
    """One of them; ``BatchMeta`` is one."""

    @property
    def last_offset(self) -> int:
        """Of its last record."""
        ...


class KnownProducers(NamedTuple):
    """By producer id those that are remembered, and the high watermark: batches at or above it may be lost yet."""

    entries: Mapping[int, KnownProducer]
    high_watermark: int


class BatchVerdict(NamedTuple):
    """What becomes of a batch, before its records are looked at."""

    drop: bool
    """It goes, whatever it holds."""
    empty: bool
    """None of its records stays."""
    keep_empty: bool
    """Its header stays if no record does."""
    needs_horizon: bool
    """It is a marker whose transaction has nothing left, and has no delete horizon yet."""
    aborted: AbortedTxn | None = None
    """Of an abort marker whose transaction still had batches: its entry in the new transaction index."""


_AS_IT_IS = BatchVerdict(False, False, False, False)
_KEPT_FOR_ITS_HEADER = BatchVerdict(False, False, True, False)
_TO_HAVE_A_HORIZON = BatchVerdict(False, False, False, True)
_GONE = BatchVerdict(True, True, False, False)


def delete_horizon(header: BatchHeader) -> int | None:
    """From when on a batch's tombstones, or a marker without a transaction, may go; None if no pass has set it."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None


class MetTransactions:
    """The transactions that a pass walks through, in the order of the log.

    A marker can be discarded only if the pass has met no batch of its transaction before it, kept or not: so it stays
    at least one pass longer than the last of them.
    """

    __slots__ = ("_aborted", "_committed", "_next", "_waiting")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset)
        self._next = 0
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}
        """Of producers in an aborted transaction: its entry, and whether a batch of it was met."""
        self._committed: set[int] = set()
        """Producers with a batch since their last marker."""

    def _reach(self, last_offset: int) -> None:
        waiting = self._waiting
        while self._next < len(waiting) and waiting[self._next].first_offset <= last_offset:
            entry = waiting[self._next]
            known = self._aborted.get(entry.producer_id)
            if known is None or known[0].last_offset < entry.first_offset:
                self._aborted[entry.producer_id] = (entry, False)
            self._next += 1

    def is_aborted(self, header: BatchHeader) -> bool:
        """Meet a batch of data; whether its transaction was aborted. Markers need not be met for that."""
        self._reach(header.last_offset)
        if not header.is_transactional:
            return False
        known = self._aborted.get(header.producer_id)
        if known is None or known[0].last_offset < header.base_offset:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = (known[0], True)
        return True

    def ended(self, header: BatchHeader, marker: Marker | None) -> tuple[bool, AbortedTxn | None]:
        """Meet a control batch (``marker`` None: an empty one, or of another kind).

        Returns whether its transaction had nothing left, and the entry of an aborted one that had.
        """
        self._reach(header.last_offset)
        if marker is None:
            return not header.record_count, None
        if marker.commit:
            met = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not met, None
        entry, met = self._aborted.pop(header.producer_id, (None, False))
        # Without an entry, what is left of the transaction was met as if it were committed: it must not stay open.
        left = header.producer_id in self._committed
        self._committed.discard(header.producer_id)
        return not met and not left, entry if met else None


def is_last_of_producer(header: BatchHeader, producers: KnownProducers) -> bool:
    """Whether sequences (or the epoch) of a producer that is still known could not be rebuilt without this batch.

    A new leader may lack the producer's last batches, those that are not committed: then the last one below the high
    watermark is the last of all, and a repetition of it would be appended again by a leader that does not know it. If
    that one is not remembered any more, all batches of the producer stay until the next pass. Kafka keeps the last.
    """
    known = None if header.producer_id == NO_PRODUCER_ID else producers.entries.get(header.producer_id)
    if known is None:
        return False
    if known.last_offset < 0:
        return header.is_control and header.producer_epoch == known.epoch
    if header.last_offset == known.last_offset or known.last_offset < producers.high_watermark:
        return header.last_offset == known.last_offset
    committed = [batch.last_offset for batch in known.batches if batch.last_offset < producers.high_watermark]
    return not committed or header.last_offset == committed[-1]


def verdict_on_data(
    header: BatchHeader, transactions: MetTransactions, producers: KnownProducers, end: int
) -> BatchVerdict:
    """On a batch of data. ``end`` is where the pass ends: its last batch stays, so that the end can be rebuilt."""
    aborted = transactions.is_aborted(header)
    keep_empty = header.last_offset + 1 == end or is_last_of_producer(header, producers)
    if not aborted:
        return _KEPT_FOR_ITS_HEADER if keep_empty else _AS_IT_IS
    return BatchVerdict(not keep_empty, True, keep_empty, False)


def verdict_on_marker(
    header: BatchHeader,
    marker: Marker | None,
    transactions: MetTransactions,
    producers: KnownProducers,
    end: int,
    now_ms: int,
) -> BatchVerdict:
    """On a control batch. One that must stay for its producer or the end stays whole; Kafka empties it then."""
    discardable, entry = transactions.ended(header, marker)
    if not discardable:
        return _AS_IT_IS if entry is None else BatchVerdict(False, False, False, False, entry)
    horizon = delete_horizon(header)
    if horizon is None and header.record_count:
        return _TO_HAVE_A_HORIZON
    if header.last_offset + 1 == end or is_last_of_producer(header, producers):
        return _AS_IT_IS
    return _GONE if horizon is None or horizon <= now_ms else _AS_IT_IS
