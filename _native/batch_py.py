"""The specification of the batch kernel: Kafka's record batch, format v2, in plain Python.

Layout (big-endian): baseOffset i64, batchLength i32, partitionLeaderEpoch i32, magic i8, crc u32 over all that follows,
attributes i16, lastOffsetDelta i32, baseTimestamp i64, maxTimestamp i64, producerId i64, producerEpoch i16,
baseSequence i32, record count i32, records. Source: Kafka's message format documentation (KIP-98, KIP-482 varints).

Every length is compared with the bytes that are left before it is used; what does not fit raises CorruptBatch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import crc32c as _crc32c

from fleetlog._native.byte_reader import ByteReader, put_varint, zigzag
from fleetlog._native.errors import CorruptBatch

__all__ = [
    "HEADER_SIZE",
    "Admitted",
    "BatchHeader",
    "CorruptBatch",
    "Record",
    "admit",
    "control_batch",
    "crc32c",
    "decode_records",
    "encode_batch",
    "encode_records",
    "find_timestamp",
    "index_entries",
    "index_floor",
    "longest_record",
    "oldest_timestamp",
    "parse_header",
    "scan",
    "stamp",
    "validate_batch",
    "validate_records",
    "walk",
]

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_END = 12  # bytes that batchLength does not count
_MAGIC_AT = 16
_CRC_AT = 17
_CRC_FROM = 21
_MAX_TIMESTAMP_AT = 35
_MIN_RECORD_SIZE = 7  # length, attributes, two deltas, key and value lengths, header count: a byte each
_INT32_MAX = _MAX_SEQUENCE = 2**31 - 1
_INT64_MAX = 2**63 - 1
_BEHIND = 2**30  # a sequence that is further behind than this counts as ahead

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class BatchHeader(NamedTuple):
    """The 61 bytes in front of a batch's records."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + _LENGTH_END

    @property
    def last_offset(self) -> int:
        """Offset of the last record, even if compaction has removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether the records have the time of the append (LogAppendTime)."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a marker."""
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; sequences wrap from 2^31-1 to 0."""
        if self.base_sequence < 0:
            return self.base_sequence
        last = self.base_sequence + self.last_offset_delta
        return last if last <= _MAX_SEQUENCE else last - _MAX_SEQUENCE - 1


class Record(NamedTuple):
    """One record. ``timestamp`` in ms; header values may be None."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of ``data``, continuing from ``value``."""
    return int(_crc32c.crc32c(data, value))


def parse_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at ``position``; raises CorruptBatch when it cannot be one. Reads 61 bytes, not more."""
    if position < 0 or len(buf) - position < HEADER_SIZE:
        raise CorruptBatch("a batch header needs 61 bytes", position)
    if buf[position + _MAGIC_AT] != 2:
        raise CorruptBatch(f"magic {buf[position + _MAGIC_AT]} is not 2", position)
    header = BatchHeader._make(_HEADER.unpack_from(buf, position))
    if header.batch_length < HEADER_SIZE - _LENGTH_END:
        raise CorruptBatch(f"batch length {header.batch_length} is too small", position)
    if header.last_offset_delta < 0:
        raise CorruptBatch(f"last offset delta {header.last_offset_delta} is negative", position)
    if header.record_count < 0:
        raise CorruptBatch(f"record count {header.record_count} is negative", position)
    if header.last_offset > _INT64_MAX:
        raise CorruptBatch("the last offset does not fit into 64 bits", position)
    return header


def validate_batch(buf: Buffer, position: int = 0) -> BatchHeader:
    """The header of a batch that is wholly there and whose checksum holds; raises CorruptBatch."""
    header = parse_header(buf, position)
    if header.size > len(buf) - position:
        raise CorruptBatch(f"batch of {header.size} bytes is cut at {len(buf) - position}", position)
    payload = header.size - HEADER_SIZE
    if header.codec == 0 and header.record_count > payload // _MIN_RECORD_SIZE:
        raise CorruptBatch(f"{header.record_count} records cannot fit into {payload} bytes", position)
    checksum = crc32c(memoryview(buf)[position + _CRC_FROM : position + header.size])
    if checksum != header.crc:
        raise CorruptBatch(f"checksum {checksum:#010x} is not the header's {header.crc:#010x}", position)
    return header


def scan(buf: Buffer, start: int = 0, end: int = -1) -> list[tuple[int, BatchHeader]]:
    """Position and header of each whole batch in ``buf[start:end]``.

    A batch cut off by ``end`` ends the list; bytes that are not a header raise CorruptBatch. Checksums are not checked.
    """
    stop = len(buf) if end < 0 else min(end, len(buf))
    batches = []
    position = start
    while stop - position >= HEADER_SIZE:
        header = parse_header(buf, position)
        if header.size > stop - position:
            break
        batches.append((position, header))
        position += header.size
    return batches


def walk(buf: Buffer, limit: int, offset: int) -> tuple[int, int, int, int, int, int]:
    """Step over the batches from the start of ``buf``, by their headers alone: the last one may be cut off.

    Stops at the first batch that ends beyond ``limit`` or whose last offset is at least ``offset``. Returns the last
    offset of the batch it began with; then of the one where it stopped the position, the offset behind the batch before
    it (-1: there is none), its base and last offset, and its size, which is 0 if its header is not there. Bytes that
    are not a header end the walk too; CorruptBatch if they come first.
    """
    position, passed = 0, -1
    first = parse_header(buf).last_offset
    while len(buf) - position >= HEADER_SIZE:
        try:
            header = parse_header(buf, position)
        except CorruptBatch:
            break
        if position + header.size > limit or header.last_offset >= offset:
            return first, position, passed, header.base_offset, header.last_offset, header.size
        position += header.size
        passed = header.last_offset + 1
    return first, position, passed, -1, -1, 0


def index_floor(data: Buffer, base_offset: int, field: int, wanted: int) -> tuple[int, int]:
    """Offset and position of an offset index's last entry that has at most ``wanted`` in the int32 at ``field``.

    An entry has 8 bytes, offset relative to ``base_offset`` and position, and they are sorted by both; a torn last one
    does not count. ``(base_offset, 0)`` if there is none.
    """
    assert field in (0, 4)
    low, high = 0, len(data) // 8
    while low < high:
        middle = (low + high) >> 1
        at = middle * 8 + field
        if int.from_bytes(data[at : at + 4], "big", signed=True) <= wanted:
            low = middle + 1
        else:
            high = middle
    if not low:
        return base_offset, 0
    relative, position = struct.unpack_from(">ii", data, 8 * low - 8)
    return base_offset + relative, position


def stamp(
    buf: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int, log_append_time_ms: int = -1
) -> None:
    """Write base offset and leader epoch into the batch at ``position``; both lie outside the checksum.

    With ``log_append_time_ms`` >= 0 also sets the timestamp type and the maximal timestamp, and computes the checksum
    anew. The batch must have been validated; one that does not fit into ``buf`` raises CorruptBatch.
    """
    if position < 0 or len(buf) - position < HEADER_SIZE:
        raise CorruptBatch("a batch header needs 61 bytes", position)
    size = struct.unpack_from(">i", buf, position + 8)[0] + _LENGTH_END
    if log_append_time_ms >= 0 and not HEADER_SIZE <= size <= len(buf) - position:
        raise CorruptBatch(f"batch of {size} bytes is cut at {len(buf) - position}", position)
    struct.pack_into(">q", buf, position, base_offset)
    struct.pack_into(">i", buf, position + 12, leader_epoch)
    if log_append_time_ms < 0:
        return
    (attributes,) = struct.unpack_from(">h", buf, position + _CRC_FROM)
    struct.pack_into(">h", buf, position + _CRC_FROM, attributes | LOG_APPEND_TIME)
    struct.pack_into(">q", buf, position + _MAX_TIMESTAMP_AT, log_append_time_ms)
    covered = memoryview(buf)[position + _CRC_FROM : position + size]
    struct.pack_into(">I", buf, position + _CRC_AT, crc32c(covered))


class _Remembered(Protocol):
    """A batch in a partition's state of a producer."""

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record."""


class _Producer(Protocol):
    """A partition's state of a producer."""

    @property
    def epoch(self) -> int:
        """The latest epoch that it wrote in."""

    @property
    def batches(self) -> tuple[_Remembered, ...]:
        """Its last batches in that epoch, oldest first."""

    @property
    def txn_first_offset(self) -> int:
        """Where its open transaction begins, -1 if it has none."""


class Admitted(NamedTuple):
    """A batch with its place in a log: checked, and stamped with offset and leader epoch.

    ``size`` is in bytes, ``max_timestamp`` in ms; without a producer its id, epoch and last sequence are -1.
    """

    first_offset: int
    last_offset: int
    max_timestamp: int
    size: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    attributes: int


class _Sequences:
    """Decides which batches of producers continue the known sequences."""

    def __init__(self, producers: Mapping[int, _Producer], transactional: bool, unknown: bool) -> None:
        self.producers = producers
        self.transactional = transactional
        self.unknown = unknown
        self.seen: dict[int, int] = {}
        """By producer id the last sequence of those that others' batches follow."""
        self.producer_id = self.epoch = self.last = -1
        self.open = False

    def continued_by(self, header: BatchHeader) -> bool:
        """Whether it is the next batch of a known producer in its epoch, and in its open transaction if it has one.

        Or the first one of a producer that is not known, if such are taken.
        """
        if header.producer_id < 0 or (header.is_transactional and not self.transactional):
            return False
        if header.producer_id != self.producer_id:
            if self.producer_id >= 0:
                self.seen[self.producer_id] = self.last
                self.producer_id = -1
            if header.producer_id not in self.producers:
                return self._begun_by(header)
            if not self._known(header.producer_id, self.producers[header.producer_id]):
                return False
        if header.producer_epoch != self.epoch or header.is_transactional != self.open:
            return False
        return header.base_sequence == (self.last + 1) & _MAX_SEQUENCE

    def _begun_by(self, header: BatchHeader) -> bool:
        if not self.unknown or header.is_transactional or header.producer_id in self.seen:
            return False
        return header.producer_epoch >= 0 and header.base_sequence >= 0

    def _known(self, producer_id: int, known: _Producer) -> bool:
        if not known.batches or known.epoch < 0:
            return False
        last = known.batches[-1].last_sequence
        if last < 0 or any((last - one.last_sequence) & _MAX_SEQUENCE >= _BEHIND for one in known.batches):
            return False  # not one after the other: whether a batch is one of them again, the caller finds out
        self.epoch, self.open = known.epoch, known.txn_first_offset >= 0
        self.last = self.seen.get(producer_id, last)
        self.producer_id = producer_id
        return True

    def taken(self, header: BatchHeader) -> None:
        """The batch is admitted."""
        if header.producer_id != self.producer_id:
            self.producer_id, self.epoch, self.open = header.producer_id, header.producer_epoch, False
        self.last = header.last_sequence


def admit(
    batches: Sequence[Buffer],
    base_offset: int,
    leader_epoch: int,
    latest: int,
    max_records: int,
    max_bytes: int,
    room: int,
    producers: Mapping[int, _Producer],
    transactional: bool,
    unknown: bool,
    walked: Sequence[int] | None = None,
) -> tuple[list[Admitted], int]:
    """Check and stamp what most producers send, a batch each, up to the first that needs a closer look.

    Returns those, and how many of them have a producer id.

    Each is writable and exactly one batch, sound and with base offset 0, of at most ``max_bytes`` and ``max_records``,
    without gaps, codec or flags, whose largest timestamp is what the header says and not above ``latest``. One with a
    producer id is the next one, by its sequence, of a producer in ``producers`` in the same epoch; it belongs to a
    transaction if its producer has one open, and then only if ``transactional`` allows it. Those before it are
    remembered in order, and none of them is 2^30 records away. With ``unknown`` it may be the first of a producer that
    is not in ``producers``, outside of transactions. Batches of the same producer continue each other's sequences. All
    together have ``room`` bytes at most. What is not admitted is left as it was. ``walked``: the largest timestamp
    that ``validate_records`` has found in each batch; their records are not validated again.
    """
    admitted: list[Admitted] = []
    produced = 0
    sequences = _Sequences(producers, transactional, unknown)
    for batch in batches:
        size = memoryview(batch).nbytes
        if size > max_bytes or size > room:
            break
        largest = None if walked is None else walked[len(admitted)]
        admitted_batch = _admit(batch, base_offset, leader_epoch, latest, max_records, sequences, largest)
        if admitted_batch is None:
            break
        admitted.append(admitted_batch)
        produced += admitted_batch.producer_id != -1
        room -= size
        base_offset = admitted_batch.last_offset + 1
    return admitted, produced


def _admit(
    buf: Buffer,
    base_offset: int,
    leader_epoch: int,
    latest: int,
    max_records: int,
    sequences: _Sequences,
    largest: int | None,
) -> Admitted | None:
    if memoryview(buf).readonly:
        return None
    try:
        header = parse_header(buf)
        if header.size != len(buf) or header.base_offset or header.record_count <= 0:
            return None
        if header.last_offset_delta != header.record_count - 1 or header.record_count > max_records:
            return None
        if base_offset + header.last_offset_delta > _INT64_MAX:
            return None
        if header.producer_id == -1:
            if header.attributes:
                return None
        elif header.attributes not in (0, TRANSACTIONAL) or not sequences.continued_by(header):
            return None
        validate_batch(buf)
        if largest is None:
            largest, _ = validate_records(memoryview(buf)[HEADER_SIZE:], header)
    except CorruptBatch:
        return None
    if largest != header.max_timestamp or largest > latest:
        return None
    assert not isinstance(buf, bytes)
    stamp(buf, 0, base_offset, leader_epoch)
    producer_epoch = last_sequence = -1
    if header.producer_id != -1:
        sequences.taken(header)
        producer_epoch, last_sequence = header.producer_epoch, header.last_sequence
    return Admitted(
        base_offset, base_offset + header.last_offset_delta, largest, header.size, header.producer_id, producer_epoch,
        last_sequence, header.attributes,
    )  # fmt: skip


def index_entries(
    batches: Sequence[Admitted], position: int, since: int, interval: int, largest: int, largest_offset: int
) -> tuple[list[tuple[int, int, int, int]], int, int, int]:
    """Which of the batches that stand at ``position``, one behind the other, become index entries: one per interval.

    ``since`` are the bytes after the last entry, ``interval`` those that it takes before the next, ``largest`` the
    largest timestamp so far and ``largest_offset`` the last offset of the first batch that has it. Returns the entries
    as (last offset, position, largest timestamp, its offset), and then the same three.
    """
    entries: list[tuple[int, int, int, int]] = []
    for batch in batches:
        if batch.max_timestamp > largest:
            largest, largest_offset = batch.max_timestamp, batch.last_offset
        if since > interval:
            entries.append((batch.last_offset, position, largest, largest_offset))
            since = 0
        since += batch.size
        position += batch.size
    return entries, since, largest, largest_offset


# ---- records ----------------------------------------------------------------------------------------------------


def _put_varint(out: bytearray, value: int) -> None:
    put_varint(out, zigzag(value))


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1
        return
    _put_varint(out, len(value))
    out += value


def encode_records(records: Sequence[Record], base_offset: int, base_timestamp: int) -> bytes:
    """The uncompressed payload of a batch. Records with offset -1 are numbered from ``base_offset`` on.

    Raises ValueError when an offset or a timestamp is too far from the base for the format.
    """
    out = bytearray()
    for number, record in enumerate(records):
        body = bytearray(b"\0")
        shift = record.timestamp - base_timestamp
        delta = number if record.offset < 0 else record.offset - base_offset
        if not -_INT64_MAX - 1 <= shift <= _INT64_MAX:
            raise ValueError("a timestamp is too far from the batch's")
        if not 0 <= delta <= _INT32_MAX:
            raise ValueError(f"offset {record.offset} is too far from the batch's {base_offset}")
        _put_varint(body, shift)
        _put_varint(body, delta)
        _put_bytes(body, record.key)
        _put_bytes(body, record.value)
        _put_varint(body, len(record.headers))
        for name, value in record.headers:
            _put_bytes(body, name.encode())
            _put_bytes(body, value)
        _put_varint(out, len(body))
        out += body
    return bytes(out)


class _RecordReader(ByteReader[memoryview]):
    """Reads the records of one batch's payload, never past ``end``; their varints are zig-zag. Raises CorruptBatch."""

    __slots__ = ()

    def error(self, reason: str) -> CorruptBatch:
        return CorruptBatch(reason, self.pos)

    def signed(self, bits: int) -> int:
        """A zig-zag varint of at most ``bits`` bits (32 or 64)."""
        value = self.varint(bits)
        return (value >> 1) ^ -(value & 1)

    def span(self) -> tuple[int, int] | None:
        """Start and end of a nullable byte run."""
        length = self.signed(32)
        if length == -1:
            return None
        if length < 0 or length > self.end - self.pos:
            raise CorruptBatch(f"a length of {length} does not fit", self.pos)
        start = self.pos
        self.pos += length
        return start, self.pos


def decode_records(payload: Buffer, header: BatchHeader) -> list[Record]:
    """All records of a batch from its decompressed payload; raises CorruptBatch."""
    view = memoryview(payload)
    reader = _checked_reader(view, header)
    records = []
    for _ in range(header.record_count):
        stop = _begin_record(reader)
        timestamp = _timestamp(reader, header)
        offset = header.base_offset + _offset_delta(reader, header)
        key = _take(view, reader.span())
        value = _take(view, reader.span())
        headers = []
        for _ in range(_header_count(reader, stop)):
            name = reader.span()
            if name is None:
                raise CorruptBatch("a header without a name", reader.pos)
            headers.append((_header_name(view, name), _take(view, reader.span())))
        _end_record(reader, stop, len(view))
        if header.is_log_append_time:
            timestamp = header.max_timestamp
        records.append(Record(offset, timestamp, key, value, tuple(headers)))
    _end_payload(reader)
    return records


def find_timestamp(payload: Buffer, header: BatchHeader, wanted: int, begin: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record from offset ``begin`` on with at least the timestamp ``wanted`` (ms).

    Walks the records without creating objects, and looks at no key, value or header. None if there is no such record.
    Raises CorruptBatch for what lies before it.
    """
    view = memoryview(payload)
    reader = _checked_reader(view, header)
    for _ in range(header.record_count):
        stop = _begin_record(reader)
        timestamp = _timestamp(reader, header)
        if header.is_log_append_time:
            timestamp = header.max_timestamp
        offset = header.base_offset + _offset_delta(reader, header)
        if timestamp >= wanted and offset >= begin:
            return offset, timestamp
        reader.pos, reader.end = stop, len(view)
    _end_payload(reader)
    return None


def oldest_timestamp(payload: Buffer, header: BatchHeader) -> int:
    """The smallest timestamp (ms) of a batch's records, those without one (-1) left out; 2^63 - 1 if none has one.

    Walks the records without creating objects, and looks at no key, value or header. Raises CorruptBatch.
    """
    view = memoryview(payload)
    reader = _checked_reader(view, header)
    oldest = _INT64_MAX
    for _ in range(header.record_count):
        stop = _begin_record(reader)
        timestamp = _timestamp(reader, header)
        if timestamp != -1:
            oldest = min(oldest, timestamp)
        reader.pos, reader.end = stop, len(view)
    _end_payload(reader)
    return oldest


def longest_record(payload: Buffer, header: BatchHeader) -> int:
    """The bytes of a batch's longest record, without the length before it; 0 of an empty batch.

    Walks the records without creating objects, and looks at nothing in them. Raises CorruptBatch.
    """
    view = memoryview(payload)
    reader = _checked_reader(view, header)
    longest = 0
    for _ in range(header.record_count):
        stop = _begin_record(reader)
        longest = max(longest, stop - reader.pos + 1)  # with the attributes
        reader.pos, reader.end = stop, len(view)
    _end_payload(reader)
    return longest


def validate_records(payload: Buffer, header: BatchHeader) -> tuple[int, bool]:
    """Walk all records without creating objects: (largest timestamp, whether every record has a key).

    Checks all lengths, that offset deltas rise and stay within the header's, and that nothing is left over. Raises
    CorruptBatch. The largest timestamp of an empty batch is -1.
    """
    view = memoryview(payload)
    reader = _checked_reader(view, header)
    largest, keyed, previous = -1, True, -1
    for _ in range(header.record_count):
        stop = _begin_record(reader)
        largest = max(largest, _timestamp(reader, header))
        delta = _offset_delta(reader, header)
        if delta <= previous:
            raise CorruptBatch(f"offset delta {delta} after {previous}", reader.pos)
        previous = delta
        keyed = reader.span() is not None and keyed
        reader.span()
        for _ in range(_header_count(reader, stop)):
            name = reader.span()
            if name is None:
                raise CorruptBatch("a header without a name", reader.pos)
            _header_name(view, name)
            reader.span()
        _end_record(reader, stop, len(view))
    _end_payload(reader)
    return largest, keyed


def _header_name(view: memoryview, span: tuple[int, int]) -> str:
    try:
        return str(view[span[0] : span[1]], "utf-8")
    except UnicodeDecodeError:
        raise CorruptBatch("a header name is not UTF-8", span[0]) from None


def _checked_reader(view: memoryview, header: BatchHeader) -> _RecordReader:
    if header.record_count > len(view) // _MIN_RECORD_SIZE:
        raise CorruptBatch(f"{header.record_count} records cannot fit into {len(view)} bytes", 0)
    return _RecordReader(view)


def _begin_record(reader: _RecordReader) -> int:
    """Read length and attributes; bound the reader to the record and return where it ends."""
    length = reader.signed(32)
    if length < _MIN_RECORD_SIZE - 1 or length > reader.end - reader.pos:
        raise CorruptBatch(f"a record of {length} bytes does not fit", reader.pos)
    stop = reader.pos + length
    reader.end = stop
    reader.pos += 1  # attributes, unused
    return stop


def _timestamp(reader: _RecordReader, header: BatchHeader) -> int:
    timestamp = header.base_timestamp + reader.signed(64)
    if not -_INT64_MAX - 1 <= timestamp <= _INT64_MAX:
        raise CorruptBatch("a timestamp does not fit into 64 bits", reader.pos)
    return timestamp


def _offset_delta(reader: _RecordReader, header: BatchHeader) -> int:
    delta = reader.signed(32)
    if not 0 <= delta <= header.last_offset_delta:
        raise CorruptBatch(f"offset delta {delta} is outside 0..{header.last_offset_delta}", reader.pos)
    return delta


def _header_count(reader: _RecordReader, stop: int) -> int:
    count = reader.signed(32)
    if not 0 <= count <= (stop - reader.pos) // 2:
        raise CorruptBatch(f"{count} headers cannot fit", reader.pos)
    return count


def _end_record(reader: _RecordReader, stop: int, end: int) -> None:
    if reader.pos != stop:
        raise CorruptBatch(f"{stop - reader.pos} bytes are left over in a record", reader.pos)
    reader.end = end


def _end_payload(reader: _RecordReader) -> None:
    if reader.pos != reader.end:
        raise CorruptBatch(f"{reader.end - reader.pos} bytes are left over after the records", reader.pos)


def _take(view: memoryview, span: tuple[int, int] | None) -> bytes | None:
    return None if span is None else bytes(view[span[0] : span[1]])


# ---- whole batches ----------------------------------------------------------------------------------------------


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    compress: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """A whole batch. ``attributes`` names the codec that ``compress`` applies; an empty ``records`` is refused."""
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0].timestamp
    payload = encode_records(records, base_offset, base_timestamp)
    if compress is not None:
        payload = compress(payload)
    last = records[-1].offset
    body = _HEADER.pack(
        base_offset,
        HEADER_SIZE - _LENGTH_END + len(payload),
        leader_epoch,
        2,
        0,
        attributes,
        len(records) - 1 if last < 0 else last - base_offset,
        base_timestamp,
        max(record.timestamp for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    out = bytearray(body + payload)
    struct.pack_into(">I", out, _CRC_AT, crc32c(memoryview(out)[_CRC_FROM:]))
    return bytes(out)


def control_batch(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The marker that ends a transaction in one partition (KIP-98): a control batch with one record."""
    key = struct.pack(">hh", 0, 1 if commit else 0)
    value = struct.pack(">hi", 0, coordinator_epoch)
    return encode_batch(
        [Record(-1, timestamp, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
