"""The specification of the batch kernel: Kafka's record batch, format v2, in plain Python.

Layout (big-endian): baseOffset i64, batchLength i32, partitionLeaderEpoch i32, magic i8, crc u32 over all that follows,
attributes i16, lastOffsetDelta i32, baseTimestamp i64, maxTimestamp i64, producerId i64, producerEpoch i16,
baseSequence i32, record count i32, records. Source: Kafka's message format documentation (KIP-98, KIP-482 varints).

Every length is compared with the bytes that are there before it is used; whatever does not fit raises CorruptBatch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import crc32c as _crc32c

from _native.errors import CorruptBatch

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
_BEHIND = 2**30  # a sequence that is further behind than that is ahead

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40


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
        """Offset of the last record, also where compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether the records' timestamps are the append's."""
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
    """The header of the batch at ``position``; raises CorruptBatch when it cannot be one. Needs 61 bytes, not more."""
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
    found = crc32c(memoryview(buf)[position + _CRC_FROM : position + header.size])
    if found != header.crc:
        raise CorruptBatch(f"checksum {found:#010x} is not the header's {header.crc:#010x}", position)
    return header


def scan(buf: Buffer, start: int = 0, end: int = -1) -> list[tuple[int, BatchHeader]]:
    """Position and header of each whole batch in ``buf[start:end]``.

    A batch cut off by ``end`` ends the list; bytes that are no header raise CorruptBatch. Checksums are not looked at.
    """
    stop = len(buf) if end < 0 else min(end, len(buf))
    found = []
    position = start
    while stop - position >= HEADER_SIZE:
        header = parse_header(buf, position)
        if header.size > stop - position:
            break
        found.append((position, header))
        position += header.size
    return found


def walk(buf: Buffer, limit: int, offset: int) -> tuple[int, int, int, int, int, int]:
    """Step over the batches from the start of ``buf``, by their headers alone: the last one may be cut off.

    Stops at the first batch that ends beyond ``limit`` or whose last offset is at least ``offset``. Returns the last
    offset of the batch it began with; then of the one where it stopped the position, the offset behind the batch before
    it (-1: there is none), its base and last offset, and its size, which is 0 if its header is not there. Bytes that
    are no header end the walk too; CorruptBatch if they come first.
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


def entries_at_most(data: Buffer, size: int, field: int, wanted: int) -> int:
    """How many of an index's first entries have at most ``wanted`` in the int32 at ``field``, by which they are sorted.

    An entry has ``size`` bytes; a torn last one does not count.
    """
    assert 0 <= field <= size - 4
    low, high = 0, len(data) // size
    while low < high:
        middle = (low + high) >> 1
        at = middle * size + field
        if int.from_bytes(data[at : at + 4], "big", signed=True) <= wanted:
            low = middle + 1
        else:
            high = middle
    return low


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
    """A batch that a partition remembers of a producer."""

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record."""


class _Producer(Protocol):
    """What a partition knows of a producer."""

    @property
    def epoch(self) -> int:
        """The latest epoch that it wrote in."""

    @property
    def batches(self) -> tuple[_Remembered, ...]:
        """Its last batches in that epoch, oldest first."""

    @property
    def txn_first_offset(self) -> int:
        """Where its open transaction begins, -1 if it has none."""


Admitted = tuple[int, int, int, int, int, int]
"""A batch that was checked and stamped: first and last offset, largest timestamp, size in bytes, its producer's id and
its last sequence (-1 without a producer).
"""


class _Sequences:
    """Which batches of producers continue what is known."""

    def __init__(self, producers: Mapping[int, _Producer], transactional: bool) -> None:
        self.producers = producers
        self.transactional = transactional
        self.last: dict[int, int] = {}

    def continued_by(self, header: BatchHeader) -> bool:
        """Whether it is the next batch of a known producer in its epoch, and in its open transaction if it has one."""
        known = self.producers.get(header.producer_id)
        if header.producer_id < 0 or known is None or not known.batches:
            return False
        if header.producer_epoch < 0 or header.producer_epoch != known.epoch:
            return False
        if header.is_transactional != (known.txn_first_offset >= 0):
            return False
        if header.is_transactional and not self.transactional:
            return False
        last = known.batches[-1].last_sequence
        if last < 0 or any((last - one.last_sequence) & _MAX_SEQUENCE >= _BEHIND for one in known.batches):
            return False  # not one after the other: whether a batch is one of them again, the caller finds out
        return header.base_sequence == (self.last.get(header.producer_id, last) + 1) & _MAX_SEQUENCE


def admit(
    buf: Buffer,
    base_offset: int,
    leader_epoch: int,
    latest: int,
    max_records: int,
    producers: Mapping[int, _Producer],
    transactional: bool,
) -> Admitted | None:
    """Check and stamp, in one go, what most producers send; None, and nothing changed, for everything else.

    That is: ``buf`` is writable and exactly one batch, sound and with base offset 0, of at most ``max_records``
    records, without gaps, codec or flags, whose largest timestamp is what the header says and not above ``latest``. One
    with a producer id is the next one, by its sequence, of a producer in ``producers`` in the same epoch; it belongs to
    a transaction if its producer has one open, and then only if ``transactional`` allows it. Those before it are
    remembered in order, and none of them is 2^30 records away.
    """
    return _admit(buf, base_offset, leader_epoch, latest, max_records, _Sequences(producers, transactional))


def _admit(
    buf: Buffer, base_offset: int, leader_epoch: int, latest: int, max_records: int, sequences: _Sequences
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
        largest, _ = validate_records(memoryview(buf)[HEADER_SIZE:], header)
    except CorruptBatch:
        return None
    if largest != header.max_timestamp or largest > latest:
        return None
    assert not isinstance(buf, bytes)
    stamp(buf, 0, base_offset, leader_epoch)
    last_sequence = -1
    if header.producer_id != -1:
        last_sequence = sequences.last[header.producer_id] = header.last_sequence
    last_offset = base_offset + header.last_offset_delta
    return base_offset, last_offset, largest, header.size, header.producer_id, last_sequence


def admit_run(
    batches: Sequence[Buffer],
    base_offset: int,
    leader_epoch: int,
    latest: int,
    max_records: int,
    max_bytes: int,
    producers: Mapping[int, _Producer],
    transactional: bool,
) -> list[Admitted]:
    """:meth:`admit` for batches that follow on each other, up to the first that it does not take.

    None of them has more than ``max_bytes``; all together have less than 2^30 records. Batches of the same producer
    continue each other's sequences.
    """
    admitted: list[Admitted] = []
    sequences = _Sequences(producers, transactional)
    for batch in batches:
        if memoryview(batch).nbytes > max_bytes:
            break
        found = _admit(batch, base_offset, leader_epoch, latest, max_records, sequences)
        if found is None:
            break
        admitted.append(found)
        base_offset = found[1] + 1
    return admitted


# ---- records ----------------------------------------------------------------------------------------------------


def _put_varint(out: bytearray, value: int) -> None:
    encoded = (value << 1) ^ (value >> 63)
    while encoded > 0x7F:
        out.append((encoded & 0x7F) | 0x80)
        encoded >>= 7
    out.append(encoded)


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


class _Reader:
    """Reads varints and byte runs of one record batch's payload, never past ``end``."""

    __slots__ = ("buf", "end", "position")

    def __init__(self, buf: memoryview) -> None:
        self.buf = buf
        self.position = 0
        self.end = len(buf)

    def varint(self, bits: int) -> int:
        """A zig-zag varint of at most ``bits`` bits (32 or 64)."""
        value = shift = 0
        while True:
            if self.position >= self.end:
                raise CorruptBatch("a varint is cut off", self.position)
            byte = self.buf[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise CorruptBatch("a varint is too long", self.position)
        if value >> bits:
            raise CorruptBatch("a varint is too large", self.position)
        return (value >> 1) ^ -(value & 1)

    def span(self) -> tuple[int, int] | None:
        """Start and end of a nullable byte run."""
        length = self.varint(32)
        if length == -1:
            return None
        if length < 0 or length > self.end - self.position:
            raise CorruptBatch(f"a length of {length} does not fit", self.position)
        start = self.position
        self.position += length
        return start, self.position


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
                raise CorruptBatch("a header without a name", reader.position)
            headers.append((_header_name(view, name), _take(view, reader.span())))
        _end_record(reader, stop, len(view))
        if header.is_log_append_time:
            timestamp = header.max_timestamp
        records.append(Record(offset, timestamp, key, value, tuple(headers)))
    _end_payload(reader)
    return records


def validate_records(payload: Buffer, header: BatchHeader) -> tuple[int, bool]:
    """Walk all records without making objects: (largest timestamp, whether every record has a key).

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
            raise CorruptBatch(f"offset delta {delta} after {previous}", reader.position)
        previous = delta
        keyed = reader.span() is not None and keyed
        reader.span()
        for _ in range(_header_count(reader, stop)):
            name = reader.span()
            if name is None:
                raise CorruptBatch("a header without a name", reader.position)
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


def _checked_reader(view: memoryview, header: BatchHeader) -> _Reader:
    if header.record_count > len(view) // _MIN_RECORD_SIZE:
        raise CorruptBatch(f"{header.record_count} records cannot fit into {len(view)} bytes", 0)
    return _Reader(view)


def _begin_record(reader: _Reader) -> int:
    """Read length and attributes; bound the reader to the record and return where it ends."""
    length = reader.varint(32)
    if length < _MIN_RECORD_SIZE - 1 or length > reader.end - reader.position:
        raise CorruptBatch(f"a record of {length} bytes does not fit", reader.position)
    stop = reader.position + length
    reader.end = stop
    reader.position += 1  # attributes, unused
    return stop


def _timestamp(reader: _Reader, header: BatchHeader) -> int:
    found = header.base_timestamp + reader.varint(64)
    if not -_INT64_MAX - 1 <= found <= _INT64_MAX:
        raise CorruptBatch("a timestamp does not fit into 64 bits", reader.position)
    return found


def _offset_delta(reader: _Reader, header: BatchHeader) -> int:
    delta = reader.varint(32)
    if not 0 <= delta <= header.last_offset_delta:
        raise CorruptBatch(f"offset delta {delta} is outside 0..{header.last_offset_delta}", reader.position)
    return delta


def _header_count(reader: _Reader, stop: int) -> int:
    count = reader.varint(32)
    if not 0 <= count <= (stop - reader.position) // 2:
        raise CorruptBatch(f"{count} headers cannot fit", reader.position)
    return count


def _end_record(reader: _Reader, stop: int, end: int) -> None:
    if reader.position != stop:
        raise CorruptBatch(f"{stop - reader.position} bytes are left over in a record", reader.position)
    reader.end = end


def _end_payload(reader: _Reader) -> None:
    if reader.position != reader.end:
        raise CorruptBatch(f"{reader.end - reader.position} bytes are left over after the records", reader.position)


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
