"""Rewriting closed segments so that only the last record of each key is left, transactions respected.

One :class:`Compaction` is one pass over one log, cut into steps. It works on a plan, which is a value, and on files
that nothing changes any more, so a worker's thread does it; what it needs of the log's present state was copied before.
A step reads closed segments below the last stable offset and writes ``.cleaned`` files. The loop swaps them in
(:func:`swap_in`): ``.cleaned`` to ``.swap`` once they are durable, the old segments removed (slices stay readable),
``.swap`` to its final name. A crash between any two of these is finished or undone by recovery.

Which *records* stay is the kernel's (``_native.compact``): those whose key has no later record, tombstones up to their
batch's delete horizon (KIP-534). Here: what a batch's transaction and its producer make of it, by the rules of Kafka's
Cleaner and CleanedTransactionMetadata. The last batch of each new segment stays, if need be without records: the next
segment's base then follows on it, as in a log without holes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import NamedTuple

from fleetlog._native.batch import HEADER_SIZE, Admitted, BatchHeader, encode_records, parse_header, validate_batch
from fleetlog._native.compact import KeyMap, collect_keys, keep_records
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.disk.failures import DiskError, DiskFailed, DiskFull, no_way_back
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.indexes import AbortedTxn, unpack_aborted
from fleetlog.brokers.log.producers.entries import ProducerEntry
from fleetlog.brokers.log.producers.markers import Marker
from fleetlog.brokers.log.producers.snapshots import snapshot_path
from fleetlog.brokers.log.producers.state import admitted_of
from fleetlog.brokers.log.segment import (
    CLEANED_SUFFIX,
    MAX_POSITION,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    file_stem,
)
from fleetlog.brokers.log.state import LogState
from fleetlog.brokers.log.validation import CODEC_MASK, DELETE_HORIZON_BIT, batch_records, build_batch, read_marker
from fleetlog.wire import compression
from fleetlog.wire.types import NO_PRODUCER_ID, NO_TIMESTAMP


class KnownProducers(NamedTuple):
    """By producer id those that are remembered, and the high watermark: batches at or above it may be lost yet."""

    entries: Mapping[int, ProducerEntry]
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


_HARDEST = {compression.GZIP: 9, compression.LZ4: 17, compression.ZSTD: 19}
"""The highest level of each codec that has levels; those of zstd above take hundreds of MiB of memory."""
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
Batch = memoryview | bytearray


class Overtaken(Exception):
    """The log was cut or deleted while it was being compacted; the pass is void."""


class MapSize(NamedTuple):
    """Of the map of keys: its slots, the keys that it takes, and the secret of this pass."""

    slots: int
    limit: int
    secret: bytes


class PassPlan(NamedTuple):
    """All that a pass knows. Keys in [``dirty_from``, ``end``) supersede; everything below ``end`` is rewritten."""

    directory: str
    segments: tuple[tuple[int, int], ...]
    """Base and end offsets of the closed segments below ``end``, rising."""
    dirty_from: int
    end: int
    now_ms: int
    aborted: tuple[bytes | str, ...]
    """Of each segment that has one its transaction index: the bytes, or the path of a file that nothing changes."""
    producers: KnownProducers
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    inflate_limit: int
    keys: MapSize


class Rewritten(NamedTuple):
    """A ``.cleaned`` segment, durable, that takes the place of those with these base offsets."""

    bases: tuple[int, ...]


class Figures:
    """What a pass has done so far."""

    __slots__ = ("bytes_after", "bytes_before", "keys", "records_after", "records_before")

    def __init__(self) -> None:
        self.bytes_before = 0
        self.bytes_after = 0
        self.records_before = 0
        self.records_after = 0
        self.keys = 0


class Compaction:
    """One pass. ``run`` yields after each chunk with the bytes it read and wrote; nothing is visible before a swap."""

    def __init__(self, disk: DiskPort, plan: PassPlan) -> None:
        """``disk`` is used by the thread that advances ``run``, one call at a time."""
        self.disk = disk
        self.plan = plan
        self.end = plan.end
        """Where the pass ends: below the plan's end if the map was full."""
        self.figures = Figures()
        self.stopped = False
        """Set from outside: the next step ends with Overtaken."""
        self._new_horizon = min(plan.now_ms + plan.delete_retention_ms, _INT64_MAX)
        self._read = 0

    def run(self) -> Generator[int | Rewritten, None, None]:
        """Do it. Raises Overtaken, DiskFull, DiskFailed, CorruptBatch, CodecError or MemoryError, after which nothing
        is left over but what was handed out as :class:`Rewritten`.
        """
        self._keys = KeyMap(*self.plan.keys)
        try:
            aborted: list[AbortedTxn] = []
            yield from self._read_aborted(aborted)
            self._met = MetTransactions(aborted)
            yield from self._collect(aborted)
            self.figures.keys = len(self._keys)
            for group in self._groups():
                yield from self._rewrite(group)
        finally:
            del self._keys  # the most of the pass's memory, whatever still refers to the pass

    # ---- which record of a key is the last

    def _read_aborted(self, found: list[AbortedTxn]) -> Iterator[int]:
        for index in self.plan.aborted:
            if self.stopped:
                raise Overtaken
            data = index if isinstance(index, bytes) else self.disk.read(index)
            if data:
                found.extend(unpack_aborted(data))
                yield len(data)

    def _collect(self, aborted: list[AbortedTxn]) -> Iterator[int]:
        plan, keys = self.plan, self._keys
        met = MetTransactions(entry for entry in aborted if entry.last_offset >= plan.dirty_from)
        for base, end in plan.segments:
            if end <= plan.dirty_from:
                continue
            for data, headers in self._chunks(base, end):
                for at, header in headers:
                    if header.is_control or header.last_offset < plan.dirty_from or met.is_aborted(header):
                        continue
                    full = collect_keys(self._payload(data, at, header), header, keys, plan.dirty_from)
                    if full >= 0:
                        self.end = full  # what is known is right for all before; the rest waits for the next pass
                        return
                yield len(data)

    def _chunks(self, base: int, end: int) -> Iterator[tuple[bytes, list[tuple[int, BatchHeader]]]]:
        """A segment's batches, each sound and where it belongs. Raises CorruptBatch, Overtaken, DiskError."""
        segment = Segment(self.disk, self.plan.directory, base, create=False, now_ms=self.plan.now_ms)
        expected, reached = base, 0
        try:
            for position, data, headers in segment.chunks():
                if self.stopped:
                    raise Overtaken
                for at, header in headers:
                    validate_batch(data, at)
                    if header.base_offset < expected or header.last_offset >= end:
                        raise CorruptBatch(f"offset {header.base_offset} where {expected} to {end} is expected", at)
                    expected = header.last_offset + 1
                last_at, last = headers[-1]
                reached = position + last_at + last.size
                yield data, headers
            if reached != segment.size:
                raise CorruptBatch("a closed segment ends in half a batch", reached)
        finally:
            segment.unload()

    def _payload(self, data: bytes | Batch, at: int, header: BatchHeader) -> bytes | bytearray | memoryview:
        payload = memoryview(data)[at + HEADER_SIZE : at + header.size]
        if not header.codec or not header.record_count:
            return payload
        return compression.decompress(header.codec, payload, self.plan.inflate_limit)

    # ---- rewriting

    def _groups(self) -> Iterator[list[tuple[int, int]]]:
        """Neighbours that fit into one new segment."""
        plan = self.plan
        group: list[tuple[int, int]] = []
        sizes = [0, 0, 0]
        for base, end in plan.segments:
            if base >= self.end:
                break
            stem = f"{plan.directory}/{file_stem(base)}"
            mine = [
                self.disk.size(stem + ".log") or 0,
                self.disk.size(stem + OFFSET_INDEX_SUFFIX) or 0,
                self.disk.size(stem + TIME_INDEX_SUFFIX) or 0,
            ]
            sums = [one + more for one, more in zip(sizes, mine, strict=True)]
            too_much = sums[0] > plan.segment_bytes or max(sums[1:]) > plan.segment_index_bytes
            if group and (too_much or end - group[0][0] > _INT32_MAX):
                yield group
                group, sums = [], mine
            group.append((base, end))
            sizes = sums
        if group:
            yield group

    def _rewrite(self, group: list[tuple[int, int]]) -> Iterator[int | Rewritten]:
        plan = self.plan
        base, group_end = group[0][0], group[-1][1]
        cleaned = Segment(self.disk, plan.directory, base, create=True, now_ms=plan.now_ms, suffix=CLEANED_SUFFIX)
        try:
            cleaned.log.truncate(0)
            cleaned.reset_indexes()
            changed, before = len(group) > 1, 0
            for first, end in group:
                for data, headers in self._chunks(first, end):
                    written = cleaned.size
                    changed = self._filter(cleaned, data, headers, group_end) or changed
                    before += len(data)
                    yield len(data) + cleaned.size - written
            self.figures.bytes_before += before
            if not changed:
                self.figures.bytes_after += before
                cleaned.remove()
                return
            cleaned.seal()
            cleaned.sync()
        except BaseException:
            cleaned.remove()
            raise
        self.figures.bytes_after += cleaned.size
        cleaned.unload()
        yield Rewritten(tuple(first for first, _ in group))

    def _filter(self, cleaned: Segment, data: bytes, found: list[tuple[int, BatchHeader]], group_end: int) -> bool:
        """Append what is kept of a chunk's batches; returns whether anything differs from before."""
        out = bytearray()
        placed: list[Admitted] = []
        changed = False
        for at, header in found:
            whole = memoryview(data)[at : at + header.size]
            if header.is_control:
                kept = self._marker(cleaned, whole, header, group_end)
            else:
                kept = self._data(whole, header, group_end)
            self.figures.records_before += header.record_count
            changed = changed or kept is not whole
            if kept is None:
                continue
            after = header if kept is whole else _reread(kept, header)
            self.figures.records_after += after.record_count
            placed.append(admitted_of(after))
            out += kept
        if out:
            if cleaned.size + len(out) > MAX_POSITION:
                raise CorruptBatch("the rewritten segment does not fit into one file", cleaned.size)
            cleaned.append((out,), placed, self.plan.index_interval_bytes)
        return changed

    def _marker(self, cleaned: Segment, batch: memoryview, header: BatchHeader, group_end: int) -> Batch | None:
        plan = self.plan
        marker = read_marker(batch, 0, header)
        verdict = verdict_on_marker(header, marker, self._met, plan.producers, group_end, plan.now_ms)
        if verdict.aborted is not None:
            cleaned.add_aborted(verdict.aborted)
        if verdict.drop:
            return None
        return self._with_horizon(batch, header) if verdict.needs_horizon else batch

    def _data(self, batch: memoryview, header: BatchHeader, group_end: int) -> Batch | None:
        plan = self.plan
        verdict = verdict_on_data(header, self._met, plan.producers, group_end)
        if verdict.drop:
            return None
        if verdict.empty or not header.record_count:
            return _emptied(batch, header, verdict)
        if header.base_offset >= self.end:
            return batch
        horizon = delete_horizon(header)
        kept = keep_records(
            self._payload(batch, 0, header), header, self._keys, self.end,
            horizon is not None and horizon <= plan.now_ms,
            self._new_horizon if horizon is None else -1,
        )  # fmt: skip
        if kept.payload is None:
            return batch
        if not kept.record_count:
            return _emptied(batch, header, verdict)
        after = header._replace(
            record_count=kept.record_count, max_timestamp=kept.max_timestamp, base_timestamp=kept.base_timestamp
        )
        if kept.base_timestamp != header.base_timestamp:
            after = after._replace(attributes=header.attributes | DELETE_HORIZON_BIT)
        return build_batch(after, _packed(header, kept.payload))

    def _with_horizon(self, batch: memoryview, header: BatchHeader) -> Batch:
        records = batch_records(batch, 0, header, self.plan.inflate_limit)
        after = header._replace(
            attributes=header.attributes | DELETE_HORIZON_BIT,
            base_timestamp=self._new_horizon,
        )
        payload = encode_records(records, header.base_offset, after.base_timestamp)
        return build_batch(after, _packed(header, payload))


def _packed(before: BatchHeader, payload: bytes) -> bytes:
    """Records of a rewritten batch, compressed. Its producer may have packed harder than the codec does by itself; then
    so does this, or the segment might outgrow the bounds that its size before was held to.
    """
    packed = compression.compress(before.codec, payload)
    if len(packed) > before.size - HEADER_SIZE and before.codec in _HARDEST:
        packed = min(packed, compression.compress(before.codec, payload, _HARDEST[before.codec]), key=len)
    return packed


def _emptied(batch: memoryview, header: BatchHeader, verdict: BatchVerdict) -> Batch | None:
    """The batch without its records, as Kafka writes such a one: no codec, no delete horizon."""
    if not verdict.keep_empty:
        return None
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    if not header.record_count and attributes == header.attributes and header.size == HEADER_SIZE:
        return batch
    return build_batch(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def _reread(batch: Batch, before: BatchHeader) -> BatchHeader:
    after = parse_header(batch)
    assert after.base_offset == before.base_offset
    assert after.last_offset == before.last_offset
    return after


def swap_in(log: LogState, rewritten: Rewritten, now_ms: int) -> None:
    """Put a rewritten segment into the place of those that it replaces. On the loop's thread; the log is as it was when
    the pass was planned, but for what was appended. Raises DiskFull, before anything changed, or DiskFailed.
    """
    base, bases = rewritten.bases[0], set(rewritten.bases)
    group = [segment for segment in log.segments if segment.base_offset in bases]
    assert len(group) == len(bases), "the log was cut"
    cleaned = Segment(log.disk, log.directory, base, create=False, now_ms=now_ms, suffix=CLEANED_SUFFIX)
    try:
        cleaned.change_suffix(SWAP_SUFFIX)
        log.disk.sync_directory(log.directory)
    except DiskFull as wrong:
        _undo(log, cleaned, wrong)
        raise
    # Half a swap is recovery's to finish; nothing here needs room, so the file system is not sane.
    with no_way_back(log.directory, "compaction's swap"):
        for segment in group:
            log.take_out(segment)
            segment.remove()
        cleaned.change_suffix("")
    log.segments.add(cleaned)
    log.dirty_names = True
    for segment in group[1:]:
        log.disk.remove(snapshot_path(log.directory, segment.base_offset))


def _undo(log: LogState, cleaned: Segment, wrong: DiskFull) -> None:
    """Nothing is swapped: a ``.swap`` that stayed would be taken for the newer data at some later start."""
    try:
        cleaned.change_suffix(CLEANED_SUFFIX)
    except DiskError as again:
        raise DiskFailed(log.directory, f"compaction's swap: {wrong.reason}, then {again.reason}") from again
