"""What a log answers without changing: records, aborted transactions, offsets by time."""

from __future__ import annotations

from typing import Any

from _native.batch import HEADER_SIZE, parse_header
from brokers.log.failures import DiskError, OffsetOutOfRange
from brokers.log.files import FileSlice
from brokers.log.indexes import AbortedTxn
from brokers.log.segment import Segment
from brokers.log.state import AbortedTransaction, LogState, ReadResult, guarded
from brokers.log.validation import batch_records

_result = tuple.__new__
"""A named tuple's own constructor is a Python function."""


class LogReads(LogState):
    """The reading half of ``Log``."""

    @guarded
    def read(self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True) -> ReadResult:
        """Slices of whole batches from the one that holds ``offset``, up to ``max_bytes`` and below ``end_offset``.

        With ``min_one_batch`` the first batch is returned even if it is larger. Raises OffsetOutOfRange.
        """
        log_end_offset = self.log_end_offset
        if offset < self.log_start_offset or offset > log_end_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, log_end_offset)
        end_offset = min(end_offset, log_end_offset)
        slices: list[FileSlice] = []
        room, next_offset = max_bytes, offset
        segments, index = self.segments.after(offset)
        while next_offset < end_offset and index < len(segments):
            segment = segments[index]
            index += 1
            active = index == len(segments)
            beyond = log_end_offset if active else segments[index].base_offset
            size = segment.log.size
            start = segment.position_of(next_offset)
            limit = size if end_offset >= beyond else segment.position_of(end_offset)
            if limit is None:
                limit = size
            if start is None or start >= limit:
                if limit < size:
                    break
                next_offset = max(next_offset, beyond)
                continue
            end, behind = limit, end_offset
            if limit - start > room:
                end, behind = segment.cut(start, start + room if room > 0 else start)
                end = min(end, limit)
                if end - start > room and (slices or not min_one_batch):
                    break
            slices.append(segment.slice(start, end))
            room -= end - start
            if end == size:
                next_offset = beyond
            elif end == limit:
                next_offset = end_offset
            else:
                next_offset = behind
            if active or end < size:
                segment.remember(next_offset, end)
            if not active:
                self.keep_warm(segment)
            if end < limit:
                break
        if next_offset > end_offset:
            next_offset = end_offset if end_offset > offset else offset
        return _result(ReadResult, (tuple(slices), max_bytes - room, offset, next_offset))

    def read_on(self, offset: int, max_bytes: int, end_offset: int) -> ReadResult | None:
        """The short way of :meth:`read` for who reads on where a read or an append ended, all of it in that segment.

        None asks :meth:`read`, also where that will find something wrong.
        """
        if self.offline:
            return None
        segments, index = self.segments.after(offset)
        segment = segments[index]
        start = segment.hints.get(offset)
        if start is None or offset < self.log_start_offset:
            return None
        active = index + 1 == len(segments)
        beyond = self.log_end_offset if active else segments[index + 1].base_offset
        limit = segment.log.size if end_offset >= beyond else segment.hints.get(end_offset)
        if limit is None or limit <= start:
            return None
        end, behind = limit, beyond if end_offset >= beyond else end_offset
        if limit - start > max_bytes:
            try:
                found = segment.quick_cut(start, start + max_bytes)
            except DiskError:
                return None
            if found is None:
                return None
            end, behind = found
        if not active:
            if behind == beyond < end_offset:  # the next segment may have more
                return None
            self.keep_warm(segment)
        if active or end < segment.log.size:
            segment.remember(behind, end)
        return _result(ReadResult, ((segment.slice(start, end),), end - start, offset, behind))

    @guarded
    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [start, end), in order of their markers."""
        found: list[AbortedTransaction] = []
        for segment in self.segments.from_offset(start):
            for entry in segment.txn_index:
                if entry.last_offset >= start and entry.first_offset < end:
                    found.append(AbortedTransaction(entry.producer_id, entry.first_offset))
                if entry.last_stable_offset >= end:
                    return found
        return found

    def aborted_entries(self) -> list[AbortedTxn]:
        """All entries of all transaction indexes."""
        return [entry for segment in self.segments for entry in segment.txn_index]

    @guarded
    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record with at least that timestamp, None if there is none."""
        for segment in self.segments.from_offset(self.log_start_offset):
            if segment.max_timestamp[0] >= timestamp:
                found = self._find_timestamp(segment, timestamp)
                if found is not None:
                    return found
        return None

    def _find_timestamp(self, segment: Segment, timestamp: int) -> tuple[int, int, int] | None:
        begin = self.log_start_offset
        position = self._time_index_position(segment, timestamp)
        if position is None:
            return None
        for _, data, batches in segment.chunks(position):
            for at, header in batches:
                if header.max_timestamp < timestamp or header.last_offset < begin or not header.record_count:
                    continue
                for record in batch_records(data, at, header, self.settings.inflate_limit):
                    if record.timestamp >= timestamp and record.offset >= self.log_start_offset:
                        return record.offset, record.timestamp, header.partition_leader_epoch
        return None

    def _time_index_position(self, segment: Segment, timestamp: int) -> int | None:
        """Where to start looking: at the time index's entry if the batch there confirms it, else at the start."""
        entry = segment.time_index.floor(timestamp)
        if entry.timestamp >= 0 and entry.offset >= self.log_start_offset:
            position = segment.position_of(entry.offset)
            if position is not None:
                header = parse_header(segment.log.read(position, HEADER_SIZE))
                if header.last_offset == entry.offset and header.max_timestamp == entry.timestamp:
                    return position
        return segment.position_of(max(segment.base_offset, self.log_start_offset))

    @guarded
    def max_timestamp(self) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the record with the largest timestamp (KIP-734)."""
        best: Segment | None = None
        for segment in self.segments:
            if segment.size and (best is None or segment.max_timestamp[0] > best.max_timestamp[0]):
                best = segment
        if best is None or best.max_timestamp[0] < 0:
            return None
        largest, last_offset = best.max_timestamp
        position = best.position_of(last_offset)
        if position is None:
            return None
        header = parse_header(best.log.read(position, HEADER_SIZE))
        if header.is_log_append_time or not header.record_count:
            return header.last_offset, header.max_timestamp, header.partition_leader_epoch
        data = best.log.read(position, header.size)
        for record in batch_records(data, 0, header, self.settings.inflate_limit):
            if record.timestamp == largest:
                return record.offset, record.timestamp, header.partition_leader_epoch
        return header.last_offset, largest, header.partition_leader_epoch

    def describe(self) -> dict[str, Any]:
        """Numbers for metrics and tools."""
        return {
            "log_start_offset": self.log_start_offset,
            "log_end_offset": self.log_end_offset,
            "high_watermark": self.high_watermark,
            "last_stable_offset": self.last_stable_offset,
            "size_bytes": self.size_bytes,
            "segments": len(self.segments),
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic_partition}, [{self.log_start_offset}, {self.log_end_offset}))"
