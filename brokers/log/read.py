"""What a log answers without changing: records, aborted transactions, offsets by time.

Where a topic that drops duplicates has batches without records only, consumers get a marker instead. librdkafka takes
an answer whose batches have no record for one whose limit was too small: it doubles the limit, and from 1 GiB on tells
the application MSG_SIZE_TOO_LARGE. It does so for as long as the consumer lives. An answer with a control record it
passes over, as all clients do. So such batches leave as one control batch with a marker that ends nothing, of no
producer, from the first offset to the last one. The log, and what followers read, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, encode_batch, find_timestamp, parse_header
from fleetlog._native.errors import CorruptBatch
from fleetlog._native.files import FileSlice
from fleetlog._native.wire_tuples import HeldBytes
from fleetlog.brokers.log.disk.failures import DiskFailed, LogOffline, OffsetOutOfRange
from fleetlog.brokers.log.disk.files import Buffer
from fleetlog.brokers.log.producers.markers import CONTROL, marker_of_nothing
from fleetlog.brokers.log.segment import Segment
from fleetlog.brokers.log.state import AbortedTransaction, LogState, ReadResult, guarded
from fleetlog.brokers.log.validation import cost_of_looking, records_of
from fleetlog.wire.compression import CodecError

MOST_BATCHES = 256
"""Looked at for one answer: what follows is in the next one."""


def passed_over(found: ReadResult) -> HeldBytes | None:
    """The control batch for what was read, which is released, if its first slice, or the first 256 batches of that,
    have no record. None if it can leave as it is.

    Raises DiskFailed or CorruptBatch.
    """
    piece = found.slices[0]
    at, end = piece.position, piece.position + piece.length
    last: BatchHeader | None = None
    for _ in range(MOST_BATCHES):
        if at >= end:
            break
        header = parse_header(piece.file.read(at, HEADER_SIZE))
        if header.record_count:
            return None
        at, last = at + header.size, header
    assert last is not None, "a slice has a batch"
    found.release()
    marker, epoch = marker_of_nothing(last.max_timestamp), last.partition_leader_epoch
    return HeldBytes(encode_batch([marker], base_offset=last.last_offset, leader_epoch=epoch, attributes=CONTROL))


_result = tuple.__new__
"""A named tuple's own constructor is a Python function."""


class LogReader:
    """The reading part of a log."""

    __slots__ = ("_log",)

    def __init__(self, log: LogState) -> None:
        self._log = log

    def read(self, offset: int, max_bytes: int, end_offset: int, min_one_batch: bool = True) -> ReadResult:
        """Slices of whole batches from the one that holds ``offset``, up to ``max_bytes`` and below ``end_offset``.

        With ``min_one_batch`` the first batch is returned even if it is larger. Raises OffsetOutOfRange.
        """
        log = self._log
        if log.offline:
            raise LogOffline(log.directory)
        log_end_offset = log.log_end_offset
        if offset < log.log_start_offset or offset > log_end_offset:
            raise OffsetOutOfRange(offset, log.log_start_offset, log_end_offset)
        if end_offset > log_end_offset:
            end_offset = log_end_offset
        slices: tuple[FileSlice, ...] = ()
        room, next_offset = max_bytes, offset
        last = log.segments.active
        items, index = ((last,), 0) if offset >= last.base_offset else log.segments.after(offset)
        try:
            while next_offset < end_offset and index < len(items):
                segment = items[index]
                index += 1
                active = segment is last
                beyond = log_end_offset if active else items[index].base_offset
                piece, next_offset, ended = segment.take(
                    next_offset, end_offset, beyond, room, active, min_one_batch and not slices
                )
                if piece is not None:
                    slices += (piece,)
                    room -= piece.length
                    if not active:
                        log.keep_warm(segment)
                if ended:
                    break
        except (DiskFailed, CorruptBatch, CodecError) as wrong:
            raise log.failure(wrong) from wrong
        if next_offset > end_offset:
            next_offset = end_offset if end_offset > offset else offset
        return _result(ReadResult, (slices, max_bytes - room, offset, next_offset))

    @guarded
    def passing(self, found: ReadResult) -> HeldBytes | None:
        """What a consumer gets instead of batches without records, which are released; None if there are records."""
        return passed_over(found)

    @guarded
    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [start, end), in order of their markers."""
        aborted: list[AbortedTransaction] = []
        for segment in self._log.segments.from_offset(start):
            for entry in segment.txn_index:
                if entry.last_offset >= start and entry.first_offset < end:
                    aborted.append(AbortedTransaction(entry.producer_id, entry.first_offset))
                if entry.last_stable_offset >= end:
                    return aborted
        return aborted

    def aborted_indexes(self) -> tuple[bytes | str, ...]:
        """All transaction indexes, for another thread: their bytes where these are in memory, else the files' paths."""
        indexes = [segment.txn_index for segment in self._log.segments]
        return tuple(index.path if index.kept is None else bytes(index.kept) for index in indexes)

    def search_timestamp(
        self, timestamp: int, spend: Callable[[int], None]
    ) -> Generator[None, None, tuple[int, int, int] | None]:
        """(offset, timestamp, leader epoch) of the first record with at least that timestamp, None if there is none.

        Times may be in any order, so a segment may have to be walked from an index's entry to its end. It yields after
        each run of batches, and the log may change until it goes on. ``spend`` gets what each step cost, in bytes that
        are unpacked in that time. Raises LogOffline, also where the log was deleted or closed meanwhile.
        """
        offset = self._log.log_start_offset
        while True:
            position, behind = self._search_from(offset, timestamp, spend)
            if behind is None:
                return position
            offset = behind
            yield

    @guarded
    def _search_from(
        self, offset: int, timestamp: int, spend: Callable[[int], None]
    ) -> tuple[tuple[int, int, int] | None, int | None]:
        """What the run of batches from ``offset`` on has, and the offset behind it; None where the search ends."""
        begin = self._log.log_start_offset
        offset = max(offset, begin)
        for segment in self._log.segments.from_offset(offset):
            if not self._may_hold(segment, timestamp):
                continue
            starts = offset <= max(segment.base_offset, begin)
            position = self._time_index_position(segment, timestamp) if starts else segment.position_of(offset)
            if position is None:
                continue
            for _, data, batches in segment.chunks(position):
                spend(len(data))  # the headers of small batches take as long as unpacking so much
                for at, header in batches:
                    if header.max_timestamp < timestamp or header.last_offset < begin or not header.record_count:
                        continue
                    records = self._records(data, at, header, spend)
                    match = find_timestamp(records, header, timestamp, begin)
                    if match is not None:
                        return (*match, header.partition_leader_epoch), None
                return None, batches[-1][1].last_offset + 1
        return None, None

    @staticmethod
    def _may_hold(segment: Segment, timestamp: int) -> bool:
        return segment.max_timestamp[0] >= timestamp

    def _records(self, data: Buffer, at: int, header: BatchHeader, spend: Callable[[int], None]) -> Buffer:
        records = records_of(data, at, header, self._log.settings.inflate_limit)
        spend(cost_of_looking(len(records), header.record_count))
        return records

    def _time_index_position(self, segment: Segment, timestamp: int) -> int | None:
        """Where to start looking: at the time index's entry if the batch there confirms it, else at the start."""
        entry = segment.time_index.floor(timestamp)
        if entry.timestamp >= 0 and entry.offset >= self._log.log_start_offset:
            position = segment.position_of(entry.offset)
            if position is not None:
                header = parse_header(segment.log.read(position, HEADER_SIZE))
                if header.last_offset == entry.offset and header.max_timestamp == entry.timestamp:
                    return position
        return segment.position_of(max(segment.base_offset, self._log.log_start_offset))

    @guarded
    def timestamp_from(self, offset: int) -> int:
        """The time of the batch that holds the first record from ``offset`` on, in ms; -1 if there is none.

        It is that of the batch's first record, or of its append: the record's own is not much younger, and would have
        to be unpacked.
        """
        for segment in self._log.segments.from_offset(offset):
            position = segment.position_of(offset)
            if position is not None:
                header = parse_header(segment.log.read(position, HEADER_SIZE))
                return header.max_timestamp if header.is_log_append_time else header.base_timestamp
        return -1

    @guarded
    def max_timestamp(self, spend: Callable[[int], None]) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record with the largest timestamp (KIP-734).

        ``spend`` gets the cost as in ``search_timestamp``.
        """
        best: Segment | None = None
        for segment in self._log.segments:
            if segment.size and (best is None or segment.max_timestamp[0] > best.max_timestamp[0]):
                best = segment
        if best is None or best.max_timestamp[0] < 0:
            return None
        largest, last_offset = best.max_timestamp
        position = best.position_of(last_offset)
        if position is None:
            return None
        header = parse_header(best.log.read(position, HEADER_SIZE))
        if not header.record_count:
            return header.last_offset, header.max_timestamp, header.partition_leader_epoch
        records = self._records(best.log.read(position, header.size), 0, header, spend)
        match = find_timestamp(records, header, largest, max(header.base_offset, self._log.log_start_offset))
        return *(match or (header.last_offset, largest)), header.partition_leader_epoch
