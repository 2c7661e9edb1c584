"""Rewriting closed segments so that only the last record of each key is left, transactions respected.

One :class:`Compaction` is one pass over one log, cut into steps so that the loop never waits long. It reads closed
segments below the last stable offset, writes ``.cleaned`` files, and swaps them in: ``.cleaned`` to ``.swap`` once they
are durable, the old segments removed (slices stay readable), ``.swap`` to its final name. A crash between any two
of these is finished or undone by recovery. What is kept, as Kafka keeps it:

- offsets, and the first and last offset of a rewritten batch;
- the last batch of a producer that is still known, if need be without records, for its sequence;
- a tombstone, and a marker whose transaction has no records left, for ``delete.retention.ms`` after they were first
  seen so (the horizon stands in the batch's header, KIP-534);
- a marker as long as any record of its transaction is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from _native.batch import Admitted, BatchHeader, encode_records, parse_header
from brokers.log import recovery
from brokers.log.failures import DiskFailed, DiskFull
from brokers.log.files import DiskPort
from brokers.log.indexes import AbortedTxn
from brokers.log.log import Log
from brokers.log.producers import admitted_of
from brokers.log.segment import CLEANED_SUFFIX, SWAP_SUFFIX, Segment
from brokers.log.validation import batch_records, build_batch
from wire import compression

DELETE_HORIZON_BIT = 0x40
MAX_KEYS = 2_000_000
_INT32_MAX = 2**31 - 1


class Overtaken(Exception):
    """The log was cut or deleted while it was being compacted; the pass is void."""


class Compaction:
    """One pass. ``run`` yields after each chunk with the bytes it handled; nothing is visible before a swap."""

    def __init__(self, disk: DiskPort, log: Log, dirty_from: int, end: int, now_ms: int) -> None:
        """Records in [``dirty_from``, ``end``) supersede; everything below ``end`` (a segment's base) is rewritten."""
        self.disk = disk
        self.log = log
        self.dirty_from = dirty_from
        self.end = end
        self.now_ms = now_ms
        self.bytes_before = 0
        self.bytes_after = 0
        self._cuts = log.cuts
        self._latest: dict[bytes, int] = {}
        self._aborted: dict[int, list[AbortedTxn]] = {}
        self._open_data: set[int] = set()
        self._kept_markers: set[int] = set()

    def run(self) -> Iterator[int]:
        """Do it; raises Overtaken, LogOffline or DiskFull, after which the log is as it was or partly compacted."""
        segments = [segment for segment in self.log.segments if segment.base_offset < self.end]
        for entry in self.log.reader.aborted_entries():
            self._aborted.setdefault(entry.producer_id, []).append(entry)
        yield from self._learn(segments)
        segments = [segment for segment in segments if segment.base_offset < self.end]
        for group in self._groups(segments):
            yield from self._rewrite(group)

    def _check(self) -> None:
        if self.log.offline or self.log.cuts != self._cuts:
            raise Overtaken

    # ---- which record of a key is the last

    def _learn(self, segments: list[Segment]) -> Iterator[int]:
        latest = self._latest
        limit = self.log.settings.inflate_limit
        for segment in segments:
            if segment.base_offset < self.dirty_from:
                continue
            if len(latest) > MAX_KEYS:
                # What is known is right for all before; the rest waits for the next pass.
                self.end = segment.base_offset
                return
            for _, data, found in segment.chunks():
                for at, header in found:
                    if header.is_control or self._is_aborted(header):
                        continue
                    for record in batch_records(data, at, header, limit):
                        if record.key is not None:
                            latest[record.key] = record.offset
                yield len(data)
                self._check()

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        return any(
            entry.first_offset <= header.base_offset <= entry.last_offset
            for entry in self._aborted.get(header.producer_id, ())
        )

    # ---- rewriting

    def _groups(self, segments: list[Segment]) -> Iterator[list[Segment]]:
        """Neighbours that fit into one new segment."""
        group: list[Segment] = []
        size = 0
        ends = [segment.base_offset for segment in segments[1:]] + [self.end]
        for segment, end in zip(segments, ends, strict=True):
            if group and (
                size + segment.size > self.log.config.segment_bytes or end - group[0].base_offset > _INT32_MAX
            ):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    def _rewrite(self, group: list[Segment]) -> Iterator[int]:
        log = self.log
        cleaned = Segment(
            self.disk, log.directory, group[0].base_offset, create=True, now_ms=self.now_ms, suffix=CLEANED_SUFFIX
        )
        try:
            cleaned.log.truncate(0)
            cleaned.reset_indexes()
            changed = len(group) > 1
            for segment in group:
                for _, data, found in segment.chunks():
                    changed = self._filter(cleaned, data, found) or changed
                    yield len(data)
                    self._check()
                for entry in segment.txn_index:
                    if entry.last_offset in self._kept_markers:
                        cleaned.add_aborted(entry)
            self.bytes_before += sum(segment.size for segment in group)
            self.bytes_after += cleaned.size
            if not changed:
                cleaned.remove()
                return
            cleaned.seal()
            cleaned.sync()
        except BaseException:
            cleaned.remove()
            raise
        self._swap(group, cleaned)

    def _swap(self, group: list[Segment], cleaned: Segment) -> None:
        log = self.log
        cleaned.change_suffix(SWAP_SUFFIX)
        self.disk.sync_directory(log.directory)
        try:
            for segment in group:
                log.take_out(segment)
                segment.remove()
            cleaned.change_suffix("")
        except DiskFull as wrong:
            # Half a swap is recovery's to finish; nothing here needs room, so the file system is not sane.
            raise DiskFailed(log.directory, f"compaction's swap: {wrong.reason}") from wrong
        log.segments.add(cleaned)
        log.dirty_names = True
        for segment in group[1:]:
            self.disk.remove(recovery.snapshot_path(log.directory, segment.base_offset))

    def _filter(self, cleaned: Segment, data: bytes, found: list[tuple[int, BatchHeader]]) -> bool:
        """Append what is kept of a chunk's batches; returns whether anything differs from before."""
        out = bytearray()
        placed: list[Admitted] = []
        changed = False
        for at, header in found:
            whole = memoryview(data)[at : at + header.size]
            kept = self._marker(whole, header) if header.is_control else self._data(whole, header)
            changed = changed or kept is not whole
            if kept is None:
                continue
            after = header
            if kept is not whole:
                after = _reread(kept, header)
            placed.append(admitted_of(after))
            out += kept
        if out:
            cleaned.append((out,), placed, self.log.config.index_interval_bytes)
        return changed

    def _marker(self, batch: memoryview, header: BatchHeader) -> memoryview | bytearray | None:
        if header.producer_id in self._open_data:
            self._open_data.discard(header.producer_id)
            self._kept_markers.add(header.base_offset)
            return batch
        horizon = _horizon(header)
        entry = self.log.producers.entries.get(header.producer_id)
        last_of_producer = entry is not None and entry.epoch == header.producer_epoch
        if horizon is not None and horizon <= self.now_ms and not last_of_producer:
            return None
        self._kept_markers.add(header.base_offset)
        return batch if horizon is not None else self._with_horizon(batch, header)

    def _data(self, batch: memoryview, header: BatchHeader) -> memoryview | bytearray | None:
        aborted = self._is_aborted(header)
        horizon = _horizon(header)
        gone = horizon is not None and horizon <= self.now_ms
        records = [] if not header.record_count else batch_records(batch, 0, header, self.log.settings.inflate_limit)
        latest = self._latest
        kept = (
            []
            if aborted
            else [
                record
                for record in records
                if record.key is not None
                and latest.get(record.key, -1) <= record.offset
                and not (gone and record.value is None)
            ]
        )
        if not kept:
            entry = self.log.producers.entries.get(header.producer_id)
            if entry is None or entry.last_offset != header.last_offset:
                return None
        if header.is_transactional:
            self._open_data.add(header.producer_id)
        needs_horizon = horizon is None and any(record.value is None for record in kept)
        if len(kept) == len(records) and not needs_horizon:
            return batch
        after = header._replace(
            record_count=len(kept),
            max_timestamp=max((record.timestamp for record in kept), default=header.max_timestamp),
        )
        if needs_horizon:
            after = after._replace(
                attributes=header.attributes | DELETE_HORIZON_BIT,
                base_timestamp=self.now_ms + self.log.config.delete_retention_ms,
            )
        payload = encode_records(kept, header.base_offset, after.base_timestamp)
        return build_batch(after, compression.compress(header.codec, payload) if kept else b"")

    def _with_horizon(self, batch: memoryview, header: BatchHeader) -> bytearray:
        records = batch_records(batch, 0, header, self.log.settings.inflate_limit)
        after = header._replace(
            attributes=header.attributes | DELETE_HORIZON_BIT,
            base_timestamp=self.now_ms + self.log.config.delete_retention_ms,
        )
        payload = encode_records(records, header.base_offset, after.base_timestamp)
        return build_batch(after, compression.compress(header.codec, payload))


def _horizon(header: BatchHeader) -> int | None:
    return header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None


def _reread(batch: memoryview | bytearray, before: BatchHeader) -> BatchHeader:
    after = parse_header(batch)
    assert after.base_offset == before.base_offset
    assert after.last_offset == before.last_offset
    return after
