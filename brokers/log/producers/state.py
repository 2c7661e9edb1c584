"""What a partition remembers of its producers: sequences, epochs, open transactions.

Appending is two steps, so that a failed write changes nothing: ``check`` says whether batches may be appended, with a
refusal or a duplicate if not; ``appended`` makes true what batches change that are in the log, whether a kernel or
``check`` admitted them, a leader sent them, or they are replayed.

Rules: KIP-98 (sequences, five batches remembered), KIP-360 (unknown producers are accepted), KIP-890 (a client's
transactional batch needs an ongoing transaction or a verification guard; markers of protocol 2 carry a bumped epoch).
Deviations: in Kafka a batch may be answered as the duplicate of one whose transaction was aborted (its records are then
lost); here only as that of one in the open transaction, and a used sequence begins no transaction. Kafka expires a
producer by the timestamps of its records, so one that writes old data is forgotten at once; here it expires by when the
broker last saw it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from operator import itemgetter
from typing import NamedTuple

from fleetlog._native.batch import Admitted, BatchHeader, CorruptBatch, parse_header
from fleetlog.brokers.log.disk.files import Buffer
from fleetlog.brokers.log.indexes import AbortedTxn
from fleetlog.brokers.log.positions import PositionSets, encode_positions, load_positions, split_positions
from fleetlog.brokers.log.producers.entries import MAX_SEQUENCE, BatchMeta, ProducerEntry, add_sequence
from fleetlog.brokers.log.producers.markers import CONTROL, NO_MARKERS, TRANSACTIONAL, Marker
from fleetlog.brokers.log.producers.snapshots import DamagedSnapshot, behind_entries, decode_snapshot, encode_snapshot
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

REMEMBERED_BATCHES = 5
_MAX_VERIFICATIONS = 10_000
_producer_id = itemgetter(4)
_new = tuple.__new__  # a named tuple without the Python function that its own constructor is


class Origin(Enum):
    """Where an append comes from: a client, a coordinator of this broker (markers, offsets, state), or replication."""

    CLIENT = auto()
    COORDINATOR = auto()
    REPLICATION = auto()


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


class VerificationGuard:
    """Permission for one producer's first transactional batch; compared by identity, never by value (KIP-890)."""

    __slots__ = ()


class _Verification:
    __slots__ = ("epoch", "guard", "lowest_sequence")

    def __init__(self, epoch: int, sequence: int) -> None:
        self.guard = VerificationGuard()
        self.epoch = epoch
        self.lowest_sequence = sequence


def admitted_of(header: BatchHeader) -> Admitted:
    """What a batch with its final header is in a log."""
    last_sequence = NO_SEQUENCE
    if header.base_sequence != NO_SEQUENCE:
        last_sequence = add_sequence(header.base_sequence, header.last_offset_delta)
    return _new(
        Admitted,
        (
            header.base_offset, header.base_offset + header.last_offset_delta, header.max_timestamp, header.size,
            header.producer_id, header.producer_epoch, last_sequence, header.attributes,
        ),
    )  # fmt: skip


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
        self.verifications: OrderedDict[int, _Verification] = OrderedDict()
        self.first_unstable_offset: int | None = None
        """The lowest offset of a transaction that is open, or whose marker is not below the high watermark yet."""
        self.positions: PositionSets | None = None
        """What was accepted of each source, where the topic drops duplicates."""

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

    def may_write(self, producer_id: int, producer_epoch: int, guard: object | None) -> bool:
        """Whether the producer's transaction is ongoing here, or was verified with this guard and nothing since."""
        if self.has_open_transaction(producer_id, producer_epoch):
            return True
        return isinstance(guard, VerificationGuard) and _is_verified(self.verifications.get(producer_id), guard)

    def verification_guard(self, producer_id: int, producer_epoch: int, base_sequence: int) -> VerificationGuard | None:
        """A guard to hold while the coordinator is asked; None if the transaction is already ongoing here.

        Attempts of the same producer and epoch share one guard until a marker or the first append invalidates it.
        """
        if not self.needs_verification(producer_id, producer_epoch):
            return None
        known = self.verifications.get(producer_id)
        if known is None or known.epoch < producer_epoch:
            known = self.verifications[producer_id] = _Verification(producer_epoch, base_sequence)
            if len(self.verifications) > _MAX_VERIFICATIONS:
                self.verifications.popitem(last=False)
        elif known.epoch == producer_epoch:
            known.lowest_sequence = min(known.lowest_sequence, base_sequence)
        return known.guard

    # ---- whether batches may be appended

    def check(
        self,
        batches: Sequence[tuple[BatchHeader, Marker | None]],
        *,
        origin: Origin,
        guards: Mapping[int, VerificationGuard],
        transaction_version: int = 0,
    ) -> Duplicate | Refusal | None:
        """Whether a leader may append these batches (headers with their final offsets): None if it may.

        A control batch comes with its marker; one without (or of another kind) only leaves its producer as it is.
        ``guards`` are those of the producers whose transactional batches were verified, by producer id.
        """
        after: dict[int, ProducerEntry] = {}
        for header, marker in batches:
            producer_id = header.producer_id
            if producer_id == NO_PRODUCER_ID or (header.is_control and marker is None):
                continue
            entry = after.get(producer_id) or self.entries.get(producer_id) or ProducerEntry(producer_id)
            outcome: Duplicate | Refusal | None
            if marker is not None:
                outcome = _check_marker(entry, header, marker, transaction_version)
            else:
                outcome = self._check_data(entry, header, origin, guards.get(producer_id))
            if outcome is not None:
                return outcome
            if len(batches) > 1:
                one = admitted_of(header)
                after[producer_id] = _continued(entry, (one,), 0) if marker is None else _ended(entry, one, marker, 0)
        return None

    def _check_data(
        self,
        entry: ProducerEntry,
        header: BatchHeader,
        origin: Origin,
        guard: VerificationGuard | None,
    ) -> Duplicate | Refusal | None:
        epoch = header.producer_epoch
        verification: _Verification | None = None
        if origin is Origin.CLIENT and epoch == entry.epoch:
            last_sequence = header.last_sequence
            # Protocol 1 keeps the epoch over an end: a batch of an ended transaction answers for none of the next.
            since = entry.txn_first_offset if header.is_transactional else 0
            for batch in entry.batches:
                same = batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence
                if same and 0 <= since <= batch.first_offset:
                    return Duplicate(batch)
        if header.is_transactional and (entry.txn_first_offset < 0 or entry.epoch != epoch):
            verification = self.verifications.get(header.producer_id)
            asked = origin is Origin.CLIENT or guard is not None
            if asked and not _is_verified(verification, guard):
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

    # ---- change

    def appended(
        self, batches: Sequence[Admitted], now_ms: int, markers: Mapping[int, Marker | None] = NO_MARKERS
    ) -> list[AbortedTxn]:
        """Make true what batches change that are in the log now, in the order of the log.

        ``markers`` are those of its control batches, by offset. Returns the aborted transactions, for the index of the
        segment that has the markers.
        """
        aborted: list[AbortedTxn] = []
        begin, count = 0, len(batches)
        alike = not markers and (count == 1 or len({*map(_producer_id, batches)}) == 1)
        while begin < count:
            first, end = batches[begin], begin + 1
            producer_id, marker = first.producer_id, None
            control = first.attributes & CONTROL
            if alike:
                end = count
            elif control:
                marker = markers.get(first.first_offset)
            else:
                while end < count and batches[end][4] == producer_id and not batches[end][7] & CONTROL:
                    end += 1
            if producer_id != NO_PRODUCER_ID and (marker is not None or not control):
                entry = self.entries.get(producer_id)
                if entry is None:
                    entry = ProducerEntry(producer_id)
                    if len(self.entries) >= self.max_producers:
                        self._forget_idlest()
                if marker is not None:
                    self._marker_appended(entry, first, marker, now_ms, aborted)
                else:
                    self._data_appended(entry, batches if alike else batches[begin:end], now_ms)
            begin = end
        return aborted

    def _data_appended(self, known: ProducerEntry, batches: Sequence[Admitted], now_ms: int) -> None:
        producer_id = known.producer_id
        entry = self.entries[producer_id] = _continued(known, batches, now_ms)
        self.entries.move_to_end(producer_id)
        if entry.txn_first_offset >= 0 and known.txn_first_offset < 0:
            self.verifications.pop(producer_id, None)  # the transaction's first batch uses the guard up
            self.open[producer_id] = entry.txn_first_offset
            self._update_first_unstable()

    def _marker_appended(
        self, known: ProducerEntry, batch: Admitted, marker: Marker, now_ms: int, aborted: list[AbortedTxn]
    ) -> None:
        producer_id, first_offset = known.producer_id, known.txn_first_offset
        self.entries[producer_id] = _ended(known, batch, marker, now_ms)
        self.entries.move_to_end(producer_id)
        self.verifications.pop(producer_id, None)  # a marker invalidates guards given out before it
        if first_offset >= 0:
            self.open.pop(producer_id, None)
            run_end = batch.first_offset + marker.run_remaining  # a marker is one record
            self.unreplicated.append(
                Completed(producer_id, first_offset, batch.first_offset, marker.commit, run_end)
            )  # fmt: skip
            if not marker.commit:
                stable = next(iter(self.open.values()), batch.first_offset + 1)
                aborted.append(AbortedTxn(producer_id, first_offset, batch.first_offset, stable))
        self._update_first_unstable()

    def beginning(self, batch: Buffer, guards: Mapping[int, VerificationGuard]) -> Mapping[int, ProducerEntry] | None:
        """What the kernel shall believe of a producer whose verified batch begins a transaction: that one is open.

        None unless the producer's guard is the one that was given out for this very batch, and the producer is known in
        its epoch with none open.
        """
        try:
            header = parse_header(batch)
        except CorruptBatch:
            return None
        producer_id = header.producer_id
        known, guard = self.entries.get(producer_id), guards.get(producer_id)
        verification = self.verifications.get(producer_id)
        if known is None or guard is None or verification is None or verification.guard is not guard:
            return None
        if known.txn_first_offset >= 0 or not header.is_transactional:
            return None
        if verification.epoch != header.producer_epoch or verification.lowest_sequence != header.base_sequence:
            return None  # another batch is still being verified
        return {producer_id: known._replace(txn_first_offset=0)}

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

    def silent_ms(self, now_ms: int) -> int:
        """For how long the open transaction that is silent for longest has got no record; 0 where none is open."""
        return max((now_ms - self.entries[producer_id].last_seen_ms for producer_id in self.open), default=0)

    def like(self) -> ProducerState:
        """One with the same settings that knows of no producer."""
        other = ProducerState(expiration_ms=self.expiration_ms, max_producers=self.max_producers)
        if self.positions is not None:
            other.positions = self.positions.like()
        return other

    def become(self, other: ProducerState) -> None:
        """Know what the other one knows, and forget guards that were given out."""
        self.entries, self.open, self.unreplicated = other.entries, other.open, other.unreplicated
        self.first_unstable_offset, self.positions = other.first_unstable_offset, other.positions
        self.verifications.clear()

    def clear(self, start: int = 0) -> None:
        """Forget everything, guards too. What was accepted before ``start``, where the log begins, is lacking then."""
        self.entries.clear()
        self.open.clear()
        self.unreplicated.clear()
        self.verifications.clear()
        self.first_unstable_offset = None
        if self.positions is not None:
            self.positions.clear()
            self.positions.known = not start

    # ---- snapshots

    def to_snapshot(self) -> bytes:
        """Kafka's producer snapshot, version 1, and behind it accepted positions and all remembered batches.

        Without positions that are not all known, so that who loads it finds them missing.
        """
        sets = self.positions
        positions = encode_positions(sets) if sets is not None and sets.known else b""
        return encode_snapshot(self.entries.values(), positions)

    def load_snapshot(self, data: bytes, now_ms: int) -> None:
        """Replace all state by a snapshot's; raises DamagedSnapshot. What was idle before counts as seen now."""
        self.clear()
        entries = decode_snapshot(data)
        if self.positions is not None:
            body, _ = split_positions(behind_entries(data))
            if body is None:
                raise DamagedSnapshot("it has no accepted positions")
            try:
                load_positions(self.positions, body)
            except ValueError as wrong:
                raise DamagedSnapshot(str(wrong)) from wrong
        for entry in entries:
            self.entries[entry.producer_id] = entry._replace(last_seen_ms=now_ms)
        opened = sorted((e.txn_first_offset, e.producer_id) for e in self.entries.values() if e.txn_first_offset >= 0)
        self.open.update((producer_id, offset) for offset, producer_id in opened)
        self._update_first_unstable()


def _continued(known: ProducerEntry, batches: Sequence[Admitted], now_ms: int) -> ProducerEntry:
    """A producer after batches with records of its own; the first transactional one begins a transaction.

    What brokers write in its transaction has no sequence, and tells nothing of the next one.
    """
    producer_id, epoch, coordinator_epoch, timestamp, remembered, txn_first_offset, _ = known
    last = batches[-1]
    begins = txn_first_offset < 0 and last.attributes & TRANSACTIONAL
    if len(batches) > REMEMBERED_BATCHES and last.producer_epoch == epoch and not begins:
        batches = batches[-REMEMBERED_BATCHES:]  # the others are forgotten again at once
    for first_offset, last_offset, timestamp, _, _, its_epoch, last_sequence, attributes in batches:
        if its_epoch != epoch:
            epoch, remembered = its_epoch, ()
        if txn_first_offset < 0 and attributes & TRANSACTIONAL:
            txn_first_offset = first_offset
        if last_sequence != NO_SEQUENCE:
            meta = _new(BatchMeta, (last_sequence, last_offset, last_offset - first_offset, timestamp))
            remembered = (*remembered[-(REMEMBERED_BATCHES - 1) :], meta)
    return _new(ProducerEntry, (producer_id, epoch, coordinator_epoch, timestamp, remembered, txn_first_offset, now_ms))


def _ended(known: ProducerEntry, batch: Admitted, marker: Marker, now_ms: int) -> ProducerEntry:
    """A producer after the end of its transaction."""
    epoch = batch.producer_epoch
    return known._replace(
        epoch=epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=batch.max_timestamp,
        batches=known.batches if epoch == known.epoch else (),
        txn_first_offset=-1,
        last_seen_ms=now_ms,
    )


def _is_verified(verification: _Verification | None, guard: VerificationGuard | None) -> bool:
    """Whether the batch has the guard that its producer was given last."""
    return guard is not None and verification is not None and verification.guard is guard


def _check_marker(
    entry: ProducerEntry, header: BatchHeader, marker: Marker, transaction_version: int
) -> Refusal | None:
    epoch = header.producer_epoch
    # With protocol 2 the coordinator bumps the epoch before it writes the marker, so an equal epoch on an open
    # transaction is a marker of the transaction before; on a closed one it is a retry, and harmless.
    stale = epoch < entry.epoch or (transaction_version >= 2 and epoch == entry.epoch and entry.txn_first_offset >= 0)
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
    return None


def _check_sequence(entry: ProducerEntry, header: BatchHeader, verification: _Verification | None) -> Refusal | None:
    first = header.base_sequence
    name = f"producer {header.producer_id} epoch {header.producer_epoch}"
    if (
        verification is not None
        and verification.epoch == header.producer_epoch
        and first > verification.lowest_sequence
    ):
        return Refusal(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"{name}: sequence {first} came before {verification.lowest_sequence}, which is still being verified",
        )
    if entry.epoch == NO_PRODUCER_EPOCH:
        return None  # unknown here, perhaps because its records were deleted: any sequence starts it
    if header.producer_epoch != entry.epoch:
        if first != 0:
            return Refusal(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{name}: a new epoch starts at sequence 0, not {first}"
            )
        return None
    last = entry.last_sequence
    if first == last + 1 or (first == 0 and last == MAX_SEQUENCE):
        return None
    if header.is_transactional and entry.txn_first_offset < 0 and add_sequence(last, -first) <= MAX_SEQUENCE // 2:
        # A copy that was held up, or new records under the sequence of a batch whose answer was lost before its
        # transaction was aborted. The two look alike, and more copies may come: only a new epoch shuts them out.
        return Refusal(
            ErrorCode.UNKNOWN_PRODUCER_ID,
            f"{name}: sequence {first} was used in a transaction that has ended (the last was {last}):"
            " abort, and continue in a new epoch (InitProducerId)",
        )
    return Refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{name}: sequence {first} after {last}")
