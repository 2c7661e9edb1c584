"""What a partition remembers of its producers: sequences, epochs, open transactions, and Kafka's snapshot of it.

Appending is two steps, so that a failed write changes nothing: ``analyze`` looks at a run of batches and returns either
a refusal, a duplicate, or a :class:`Change`; ``apply`` makes the change true. Replay from the log uses the same two.

Rules: KIP-98 (sequences, five batches remembered), KIP-360 (unknown producers are accepted), KIP-890 (a client's
transactional batch needs an ongoing transaction or a verification guard; markers of protocol 2 carry a bumped epoch).
Deviation: Kafka expires a producer by the timestamps of its records, so one that writes old data is forgotten at once;
here it expires by when the broker last saw it.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from _native.batch import Admitted, BatchHeader, CorruptBatch, Record, crc32c, encode_batch, parse_header
from brokers.log.files import Buffer
from brokers.log.indexes import AbortedTxn
from wire.errors import ErrorCode
from wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

REMEMBERED_BATCHES = 5
SNAPSHOT_VERSION = 1
SNAPSHOT_SUFFIX = ".snapshot"
_MAX_SEQUENCE = 2**31 - 1
_MAX_VERIFICATIONS = 10_000
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_RUN_REMAINING = struct.Struct(">i")
_ABORT, _COMMIT = 0, 1
_new = tuple.__new__  # a named tuple without the Python function that its own constructor is
_CONTROL_ATTRIBUTES = 0x30  # transactional, control


class Origin(Enum):
    """Who appends: a client, a coordinator of this broker (markers, offsets, state), or replication."""

    CLIENT = auto()
    COORDINATOR = auto()
    REPLICATION = auto()


class Marker(NamedTuple):
    """What a control batch says about its producer's transaction.

    ``run_remaining`` markers of the same batch transaction follow it at once: what they end becomes stable together.
    """

    commit: bool
    coordinator_epoch: int
    run_remaining: int = 0


class BatchMeta(NamedTuple):
    """A remembered batch: enough to answer its duplicate with the original offsets."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """The first record's sequence, with the wrap at 2^31 - 1."""
        return _add_sequence(self.last_sequence, -self.offset_delta)

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


class Completed(NamedTuple):
    """A transaction that ended here: with the offset of its marker as ``last_offset``.

    ``run_end`` is the offset of the last marker of its run: the same, but for a batch of several producers.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    commit: bool
    run_end: int


class Refusal(NamedTuple):
    """Why a batch is not appended."""

    error: ErrorCode
    message: str


class Duplicate(NamedTuple):
    """The batch was appended before, as this one."""

    batch: BatchMeta


class Change:
    """What a run of batches does to the state, not yet done."""

    __slots__ = ("aborted", "entries", "events")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.events: list[tuple[int, int, Completed | None]] = []
        self.aborted: list[AbortedTxn] = []


class VerificationGuard:
    """Permission for one producer's first transactional batch; compared by identity, never by value (KIP-890)."""

    __slots__ = ()


class _Verification:
    __slots__ = ("epoch", "guard", "lowest_sequence")

    def __init__(self, epoch: int, sequence: int) -> None:
        self.guard = VerificationGuard()
        self.epoch = epoch
        self.lowest_sequence = sequence


def _add_sequence(sequence: int, delta: int) -> int:
    return (sequence + delta) % (_MAX_SEQUENCE + 1)


def last_sequence_of(header: BatchHeader) -> int:
    """The last record's sequence; -1 for a batch without sequences."""
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return _add_sequence(header.base_sequence, header.last_offset_delta)


def parse_marker(record: Record) -> Marker | None:
    """Read a control record; None if it is of a kind that is no end of a transaction. Raises ValueError if damaged."""
    key, value = record.key, record.value
    if key is None or len(key) < _MARKER_KEY.size:
        raise ValueError("a control record's key is too short")
    version, kind = _MARKER_KEY.unpack_from(key)
    if version < 0:
        raise ValueError(f"control record version {version}")
    if kind not in (_ABORT, _COMMIT):
        return None
    if value is None or len(value) < _MARKER_VALUE.size:
        raise ValueError("a transaction marker's value is too short")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    if version < 0:
        raise ValueError(f"transaction marker version {version}")
    remaining = 0
    if len(value) >= _MARKER_VALUE.size + _RUN_REMAINING.size:  # ours; Kafka reads no further
        (remaining,) = _RUN_REMAINING.unpack_from(value, _MARKER_VALUE.size)
    return Marker(kind == _COMMIT, coordinator_epoch, max(0, remaining))


def encode_marker_run(markers: Sequence[tuple[int, int, bool]], coordinator_epoch: int, timestamp: int) -> bytes:
    """Control batches that end the parts of several producers, as one run: (producer id, epoch, commit) each."""
    batches = []
    for index, (producer_id, epoch, commit) in enumerate(markers):
        value = _MARKER_VALUE.pack(0, coordinator_epoch)
        remaining = len(markers) - 1 - index
        if remaining:
            value += _RUN_REMAINING.pack(remaining)
        record = Record(-1, timestamp, _MARKER_KEY.pack(0, _COMMIT if commit else _ABORT), value)
        batches.append(
            encode_batch([record], attributes=_CONTROL_ATTRIBUTES, producer_id=producer_id, producer_epoch=epoch)
        )
    return b"".join(batches)


class ProducerState:
    """All producers of one partition."""

    def __init__(self, *, expiration_ms: int, max_producers: int) -> None:
        self.expiration_ms = expiration_ms
        self.max_producers = max_producers
        self.entries: OrderedDict[int, ProducerEntry] = OrderedDict()
        """In order of last use, so that the idlest is found without a search."""
        self.open: OrderedDict[int, int] = OrderedDict()
        """Producer id to first offset, in order of the first offsets."""
        self.unreplicated: list[Completed] = []
        """Runs of markers that are not below the high watermark yet."""
        self._verifications: OrderedDict[int, _Verification] = OrderedDict()
        self.first_unstable_offset: int | None = None
        """The lowest offset of a transaction that is open, or whose marker is not below the high watermark yet."""

    # ---- questions

    def active(self) -> list[ProducerEntry]:
        """All producers, for DescribeProducers."""
        return list(self.entries.values())

    def has_open_transaction(self, producer_id: int, producer_epoch: int | None = None) -> bool:
        """Whether the producer (in that epoch, if given) has a transaction ongoing on this partition."""
        entry = self.entries.get(producer_id)
        if entry is None or entry.txn_first_offset < 0:
            return False
        return producer_epoch is None or entry.epoch == producer_epoch

    def needs_verification(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the transaction coordinator must confirm a transactional batch of this producer first."""
        return not self.has_open_transaction(producer_id, producer_epoch)

    def verification_guard(self, producer_id: int, producer_epoch: int, base_sequence: int) -> VerificationGuard | None:
        """A guard to hold while the coordinator is asked; None if the transaction is already ongoing here.

        Attempts of the same producer and epoch share one guard until a marker or the first append invalidates it.
        """
        if not self.needs_verification(producer_id, producer_epoch):
            return None
        known = self._verifications.get(producer_id)
        if known is None or known.epoch < producer_epoch:
            known = self._verifications[producer_id] = _Verification(producer_epoch, base_sequence)
            if len(self._verifications) > _MAX_VERIFICATIONS:
                self._verifications.popitem(last=False)
        elif known.epoch == producer_epoch:
            known.lowest_sequence = min(known.lowest_sequence, base_sequence)
        return known.guard

    # ---- analysis

    def analyze(
        self,
        batches: Sequence[tuple[BatchHeader, Marker | None]],
        *,
        origin: Origin,
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
        now_ms: int,
    ) -> Change | Duplicate | Refusal | None:
        """What appending these batches (headers with their final offsets) would do; None if no producer is touched.

        A control batch comes with its marker; one without (or of another kind) only leaves its producer as it is.
        """
        change: Change | None = None
        for header, marker in batches:
            if header.producer_id == NO_PRODUCER_ID:
                continue
            if change is None:
                change = Change()
            entry = change.entries.get(header.producer_id) or self.entries.get(header.producer_id)
            if header.is_control:
                if marker is None:
                    continue
                outcome: Duplicate | Refusal | None = self._marker(
                    change, entry, header, marker, origin, transaction_version, now_ms
                )
            else:
                outcome = self._data(change, entry, header, origin, guard, now_ms)
            if outcome is not None:
                return outcome
        return change

    def _data(
        self,
        change: Change,
        known: ProducerEntry | None,
        header: BatchHeader,
        origin: Origin,
        guard: VerificationGuard | None,
        now_ms: int,
    ) -> Duplicate | Refusal | None:
        entry = known or ProducerEntry(header.producer_id)
        last_sequence = last_sequence_of(header)
        if origin is not Origin.REPLICATION:
            refused = self._check_data(entry, header, last_sequence, origin, guard)
            if refused is not None:
                return refused
        meta = BatchMeta(
            last_sequence, header.base_offset + header.last_offset_delta, header.last_offset_delta, header.max_timestamp
        )
        batches = entry.batches if entry.epoch == header.producer_epoch else ()
        txn_first_offset = entry.txn_first_offset
        if header.is_transactional and txn_first_offset < 0:
            txn_first_offset = header.base_offset
            change.events.append((header.producer_id, txn_first_offset, None))
        change.entries[header.producer_id] = entry._replace(
            epoch=header.producer_epoch,
            timestamp=header.max_timestamp,
            batches=(*batches[-(REMEMBERED_BATCHES - 1) :], meta),
            txn_first_offset=txn_first_offset,
            last_seen_ms=now_ms,
        )
        return None

    def _check_data(
        self,
        entry: ProducerEntry,
        header: BatchHeader,
        last_sequence: int,
        origin: Origin,
        guard: VerificationGuard | None,
    ) -> Duplicate | Refusal | None:
        epoch = header.producer_epoch
        verification: _Verification | None = None
        if origin is Origin.CLIENT and epoch == entry.epoch:
            for batch in entry.batches:
                if batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence:
                    return Duplicate(batch)
        if header.is_transactional and (entry.txn_first_offset < 0 or entry.epoch != epoch):
            verification = self._verifications.get(header.producer_id)
            asked = origin is Origin.CLIENT or guard is not None
            if asked and (guard is None or verification is None or verification.guard is not guard):
                return Refusal(ErrorCode.INVALID_TXN_STATE, "record is not part of an ongoing transaction")
        if epoch < entry.epoch:
            return Refusal(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {epoch} of producer {header.producer_id} is older than {entry.epoch}",
            )
        if entry.txn_first_offset >= 0 and not header.is_transactional:
            return Refusal(ErrorCode.INVALID_TXN_STATE, "expected a transactional write: the producer has one open")
        if origin is Origin.CLIENT:
            return _check_sequence(entry, header, verification)
        return None

    def _marker(
        self,
        change: Change,
        known: ProducerEntry | None,
        header: BatchHeader,
        marker: Marker,
        origin: Origin,
        transaction_version: int,
        now_ms: int,
    ) -> Refusal | None:
        entry = known or ProducerEntry(header.producer_id)
        epoch = header.producer_epoch
        if origin is not Origin.REPLICATION:
            # With protocol 2 the coordinator bumps the epoch before it writes the marker, so an equal epoch on an open
            # transaction is a marker of the transaction before; on a closed one it is a retry, and harmless.
            stale = epoch < entry.epoch or (
                transaction_version >= 2 and epoch == entry.epoch and entry.txn_first_offset >= 0
            )
            if stale:
                return Refusal(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"marker epoch {epoch} of producer {header.producer_id} is not above {entry.epoch}",
                )
            if marker.coordinator_epoch < entry.coordinator_epoch:
                return Refusal(
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                    f"coordinator epoch {marker.coordinator_epoch} is older than {entry.coordinator_epoch}",
                )
        if entry.txn_first_offset >= 0:
            run_end = header.base_offset + marker.run_remaining  # a marker is one record
            done = Completed(header.producer_id, entry.txn_first_offset, header.base_offset, marker.commit, run_end)
            change.events.append((header.producer_id, header.base_offset, done))
        else:
            change.events.append((header.producer_id, -1, None))
        change.entries[header.producer_id] = entry._replace(
            epoch=epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=header.max_timestamp,
            batches=entry.batches if epoch == entry.epoch else (),
            txn_first_offset=-1,
            last_seen_ms=now_ms,
        )
        return None

    # ---- change

    def apply(self, change: Change) -> list[AbortedTxn]:
        """Make a change true. Returns the aborted transactions, for the index of the segment that has the markers."""
        aborted: list[AbortedTxn] = []
        entries = self.entries
        for producer_id, entry in change.entries.items():
            if producer_id not in entries and len(entries) >= self.max_producers:
                self._forget_idlest()
            entries[producer_id] = entry
            entries.move_to_end(producer_id)
        for producer_id, offset, done in change.events:
            # The transaction's first batch uses the guard up; a marker invalidates guards given out before it.
            self._verifications.pop(producer_id, None)
            if done is None:
                if offset >= 0:
                    self.open[producer_id] = offset
                continue
            self.open.pop(producer_id, None)
            self.unreplicated.append(done)
            if not done.commit:
                stable = next(iter(self.open.values()), done.last_offset + 1)
                aborted.append(AbortedTxn(producer_id, done.first_offset, done.last_offset, stable))
        if change.events:
            self._update_first_unstable()
        return aborted

    def beginning(self, batch: Buffer, guard: object) -> Mapping[int, ProducerEntry] | None:
        """What the kernel shall believe of a producer whose verified batch begins a transaction: that one is open.

        None unless ``guard`` is the one that was given out for this very batch, and the producer is known in its epoch
        with none open.
        """
        try:
            header = parse_header(batch)
        except CorruptBatch:
            return None
        producer_id = header.producer_id
        known = self.entries.get(producer_id)
        verification = self._verifications.get(producer_id)
        if known is None or verification is None or verification.guard is not guard:
            return None
        if known.txn_first_offset >= 0 or not header.is_transactional:
            return None
        if verification.epoch != header.producer_epoch or verification.lowest_sequence != header.base_sequence:
            return None  # another batch is still being verified
        return {producer_id: known._replace(txn_first_offset=0)}

    def begun(self, admitted: Admitted, now_ms: int) -> None:
        """Make true what a batch changes that begins a transaction, admitted by :meth:`beginning`; it is in the log."""
        first_offset, producer_id = admitted[0], admitted[4]
        self.entries[producer_id] = self.entries[producer_id]._replace(txn_first_offset=first_offset)
        self._continued(producer_id, (admitted,), now_ms)
        self._verifications.pop(producer_id, None)
        self.open[producer_id] = first_offset
        self._update_first_unstable()

    def continued(self, admitted: Sequence[Admitted], now_ms: int) -> None:
        """Make true what batches change that only continue their producers' sequences; they are in the log.

        The kernel has admitted them by :attr:`entries`: the producer is known, in the same epoch, and with a
        transaction open for a transactional batch. So there is no event, and what :meth:`analyze` and :meth:`apply` do
        comes down to this.
        """
        producer_id = admitted[0][4]
        if len(admitted) == 1 or len({one[4] for one in admitted}) == 1:
            self._continued(producer_id, admitted, now_ms)
        else:
            for producer_id, theirs in _by_last_use(admitted).items():
                self._continued(producer_id, theirs, now_ms)

    def _continued(self, producer_id: int, admitted: Sequence[Admitted], now_ms: int) -> None:
        if producer_id == NO_PRODUCER_ID:
            return
        entries = self.entries
        _, epoch, coordinator_epoch, _, batches, txn_first_offset, _ = entries[producer_id]
        timestamp = -1
        for first_offset, last_offset, timestamp, _, _, last_sequence in admitted[-REMEMBERED_BATCHES:]:
            meta = _new(BatchMeta, (last_sequence, last_offset, last_offset - first_offset, timestamp))
            batches = (*batches[-(REMEMBERED_BATCHES - 1) :], meta)
        entries[producer_id] = _new(
            ProducerEntry, (producer_id, epoch, coordinator_epoch, timestamp, batches, txn_first_offset, now_ms)
        )
        entries.move_to_end(producer_id)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Runs of markers below the high watermark are final: their transactions no longer hold the stable offset."""
        if any(done.run_end < high_watermark for done in self.unreplicated):
            self.unreplicated = [done for done in self.unreplicated if done.run_end >= high_watermark]
            self._update_first_unstable()

    def _update_first_unstable(self) -> None:
        first = next(iter(self.open.values()), None)
        for done in self.unreplicated:
            if first is None or done.first_offset < first:
                first = done.first_offset
        self.first_unstable_offset = first

    def _forget_idlest(self) -> None:
        for producer_id, entry in self.entries.items():
            if entry.txn_first_offset < 0:
                del self.entries[producer_id]
                return

    def expire(self, now_ms: int) -> int:
        """Forget producers idle for ``expiration_ms``, never one with an open transaction. Returns how many."""
        idle = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.txn_first_offset < 0 and now_ms - entry.last_seen_ms >= self.expiration_ms
        ]
        for producer_id in idle:
            del self.entries[producer_id]
        return len(idle)

    def clear(self) -> None:
        """Forget everything, guards too."""
        self.entries.clear()
        self.open.clear()
        self.unreplicated.clear()
        self._verifications.clear()
        self.first_unstable_offset = None

    # ---- snapshots

    def to_snapshot(self) -> bytes:
        """Kafka's producer snapshot, version 1."""
        return encode_snapshot(self.entries.values())

    def load_snapshot(self, entries: Iterable[ProducerEntry], now_ms: int) -> None:
        """Replace all state by a snapshot's. What was idle before counts as seen now."""
        self.clear()
        for entry in entries:
            self.entries[entry.producer_id] = entry._replace(last_seen_ms=now_ms)
        opened = sorted((e.txn_first_offset, e.producer_id) for e in self.entries.values() if e.txn_first_offset >= 0)
        self.open.update((producer_id, offset) for offset, producer_id in opened)
        self._update_first_unstable()


def _by_last_use(admitted: Sequence[Admitted]) -> dict[int, Sequence[Admitted]]:
    """The batches of each producer; who wrote last comes last."""
    found: dict[int, list[Admitted]] = {}
    for one in admitted:
        theirs = found.pop(one[4], [])
        theirs.append(one)
        found[one[4]] = theirs
    return dict(found)


def _check_sequence(entry: ProducerEntry, header: BatchHeader, verification: _Verification | None) -> Refusal | None:
    first = header.base_sequence
    who = f"producer {header.producer_id} epoch {header.producer_epoch}"
    if (
        verification is not None
        and verification.epoch == header.producer_epoch
        and first > verification.lowest_sequence
    ):
        return Refusal(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"{who}: sequence {first} came before {verification.lowest_sequence}, which is still being verified",
        )
    if entry.epoch == NO_PRODUCER_EPOCH:
        return None  # unknown here, perhaps because its records were deleted: any sequence starts it
    if header.producer_epoch != entry.epoch:
        if first != 0:
            return Refusal(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{who}: a new epoch starts at sequence 0, not {first}"
            )
        return None
    last = entry.last_sequence
    if first == last + 1 or (first == 0 and last == _MAX_SEQUENCE):
        return None
    return Refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{who}: sequence {first} after {last}")


class DamagedSnapshot(ValueError):
    """A producer snapshot whose checksum, version or size is wrong; it is dropped and the log replayed instead."""


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Kafka's ``.snapshot`` file, version 1: of each producer its last batch."""
    packed = [
        _SNAPSHOT_ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.batches[-1].offset_delta if entry.batches else 0,
            entry.timestamp,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )
        for entry in entries
    ]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """Read a snapshot; raises DamagedSnapshot."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise DamagedSnapshot("shorter than its head")
    version, checksum, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise DamagedSnapshot(f"version {version} is not known")
    if crc32c(memoryview(data)[6:]) != checksum:
        raise DamagedSnapshot("checksum is wrong")
    if count < 0 or len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        raise DamagedSnapshot(f"{count} entries don't fit {len(data)} bytes")
    entries = []
    for fields in _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEAD.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first_offset = fields
        # Kafka writes an offset of -1 for a producer that only has a marker; there is no batch to compare with then.
        batches = (BatchMeta(sequence, offset, delta, timestamp),) if offset >= 0 else ()
        entries.append(ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, batches, txn_first_offset))
    return entries
