"""What a leader checks of batches that it did not make, and how they become batches of its log.

Everything a client may lie about: magic, sizes, checksum, counts, offset deltas, timestamps, control bit, codec, the
size after inflating, keys where the topic is compacted. A refusal carries Kafka's error code and, where single records
are at fault, their indexes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from fleetlog._native.batch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    crc32c,
    decode_records,
    longest_record,
    oldest_timestamp,
    parse_header,
    validate_batch,
    validate_records,
)
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.config import TopicConfig
from fleetlog.brokers.log.disk.files import Buffer
from fleetlog.brokers.log.producers.markers import Marker, parse_marker
from fleetlog.brokers.log.producers.state import Origin
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import NO_PRODUCER_ID, NO_TIMESTAMP

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
DELETE_HORIZON_BIT = 0x40
"""The base timestamp is the time from which on tombstones of the batch may go (KIP-534)."""
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_START = 21
_MAGIC_AT = 16
MAX_BATCH_RECORDS = 1_000_000
"""Records of one batch: seven bytes can be a record, so the inflated size alone would allow nine million objects."""
MAX_EXPLAINED_RECORDS = 10_000
"""Records of refused batches that one request may have looked at, to name the bad ones: some 20 ms and 1 MB at most."""
LEVEL_UP_TO, QUICKEST_ABOVE = 128 * 1024, 2 * 1024 * 1024
_OWN_LEVELS = {compression.GZIP: 6, compression.ZSTD: 3}
_MAX_RECORD_MESSAGES = 100
_RECORD_WORK = 40
_MIN_PREFIX = 17
_LENGTH_OVERHEAD = 12


class Checked(NamedTuple):
    """Batches fit to append: one writable buffer, and for each batch its position, header and marker."""

    buffer: bytearray | memoryview
    batches: list[tuple[int, BatchHeader, Marker | None]]


class Rejected(NamedTuple):
    """Why the whole append is refused; ``record_errors`` are (index of the record, message or None for ``message``).

    They name all bad records of the batch, or none: a client takes those that are not named for good ones.
    """

    error: ErrorCode
    message: str | None
    record_errors: tuple[tuple[int, str | None], ...] = ()


def takes_as_they_are(config: TopicConfig) -> bool:
    """Whether a topic takes sound batches without codec, with keys if it is compacted, as they are.

    :func:`check_for_leader` asks more of others.
    """
    return config.message_timestamp_type == "CreateTime" and config.compression_type in ("producer", "uncompressed")


def build_batch(header: BatchHeader, payload: Buffer) -> bytearray:
    """The bytes of a batch: the header's fields with length and checksum made anew, then the payload."""
    batch = bytearray(HEADER_SIZE + len(payload))
    batch[HEADER_SIZE:] = payload
    _HEADER.pack_into(
        batch, 0, header.base_offset, len(batch) - _LENGTH_OVERHEAD, header.partition_leader_epoch, header.magic, 0,
        header.attributes, header.last_offset_delta, header.base_timestamp, header.max_timestamp, header.producer_id,
        header.producer_epoch, header.base_sequence, header.record_count,
    )  # fmt: skip
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[_CRC_START:]))
    return batch


def records_of(batch: Buffer, position: int, header: BatchHeader, limit: int) -> Buffer:
    """The records of the batch at ``position``, decompressed to at most ``limit`` bytes. Raises CodecError."""
    payload: Buffer = memoryview(batch)[position + HEADER_SIZE : position + header.size]
    return compression.decompress(header.codec, payload, limit) if header.codec else payload


def batch_records(batch: Buffer, position: int, header: BatchHeader, limit: int) -> list[Record]:
    """All records of the batch at ``position``. Raises CorruptBatch or CodecError; inflates to at most ``limit``."""
    return decode_records(records_of(batch, position, header, limit), header)


def read_marker(batch: Buffer, position: int, header: BatchHeader) -> Marker | None:
    """The marker in a control batch; None if the batch is empty (compaction did that) or of another kind."""
    if not header.record_count:
        return None
    records = batch_records(batch, position, header, 64 * 1024)
    try:
        return parse_marker(records[0])
    except ValueError as wrong:
        raise CorruptBatch(str(wrong), position) from wrong


def split_batches(records: Buffer) -> list[tuple[int, BatchHeader]]:
    """Validate each batch of a run, checksum included. Raises CorruptBatch, also for a torn last batch."""
    batches = []
    position, end = 0, len(records)
    while position < end:
        header = validate_batch(records, position)
        batches.append((position, header))
        position += header.size
    return batches


def check_for_leader(
    records: Buffer,
    *,
    origin: Origin,
    config: TopicConfig,
    now_ms: int,
    inflate_limit: int,
    compacted: bool,
    explain: int = MAX_EXPLAINED_RECORDS,
    payloads: list[Buffer] | None = None,
    unpacked: Callable[[int, int], object] | None = None,
) -> Checked | Rejected:
    """Check what a leader is asked to append, and put it into the form the topic wants (codec, true timestamps).

    ``compacted`` says that records without a key are refused. ``explain`` is the number of records up to which the bad
    ones of a batch are named. ``payloads`` gets each batch's records, decompressed. ``unpacked`` hears to how
    many bytes each one with a codec was decompressed, or could have been, and how many take as long as what was done.
    The buffer returned is the given one if it is writable and nothing had to change, else a new one. Offsets are not
    assigned yet.
    """
    if not len(records):
        return Rejected(ErrorCode.INVALID_RECORD, "no record batch")
    wrong_magic = _wrong_magic(records)
    if wrong_magic is not None:
        return wrong_magic
    try:
        batches = split_batches(records)
        checked = []
        changed = False
        for position, header in batches:
            rejected = _check_header(header, origin, config, len(batches))
            if rejected is not None:
                return rejected
            payload: Buffer = memoryview(records)[position + HEADER_SIZE : position + header.size]
            if header.codec:
                payload = _unpacked(header, payload, inflate_limit, unpacked)
            if payloads is not None:
                payloads.append(payload)
            batch = _check_records(records, position, header, payload, origin, config, now_ms, compacted, explain)
            if isinstance(batch, Rejected):
                return batch
            changed = changed or batch is not None
            checked.append((position, header, batch))
        return _assemble(records, checked, origin, changed, config)
    except CorruptBatch as wrong:
        return Rejected(ErrorCode.CORRUPT_MESSAGE, wrong.reason)
    except compression.CodecError as wrong:
        return Rejected(ErrorCode.CORRUPT_MESSAGE, str(wrong))


def _unpacked(
    header: BatchHeader, payload: Buffer, limit: int, unpacked: Callable[[int, int], object] | None
) -> Buffer:
    size, work = limit, [0]
    try:
        payload = compression.decompress(header.codec, payload, limit, work)
        size = len(payload)
    finally:
        if unpacked is not None:
            unpacked(size, work[0] + cost_of_looking(size, header.record_count))
    return payload


def cost_of_looking(size: int, records: int) -> int:
    """What it costs to unpack so many bytes and look at their records, in bytes that are unpacked in that time."""
    return size + _RECORD_WORK * records


def _wrong_magic(records: Buffer) -> Rejected | None:
    # Seen before the batch is parsed: old formats have other headers, and the client gets the reason.
    if len(records) >= _MIN_PREFIX and records[_MAGIC_AT] in (0, 1):
        return Rejected(
            ErrorCode.INVALID_RECORD, f"only record batches with magic 2 are allowed, not {records[_MAGIC_AT]}"
        )
    return None


def _check_header(header: BatchHeader, origin: Origin, config: TopicConfig, batches: int) -> Rejected | None:
    if header.size > config.max_message_bytes:
        return Rejected(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {header.size} bytes passes max.message.bytes {config.max_message_bytes}",
        )
    if header.codec not in compression.NAMES:
        return Rejected(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.codec} is not known")
    if header.record_count > MAX_BATCH_RECORDS:
        return Rejected(ErrorCode.RECORD_LIST_TOO_LARGE, f"{header.record_count} records in one batch")
    if origin is not Origin.CLIENT:
        return None
    if header.base_offset != 0 and batches == 1:
        return Rejected(ErrorCode.INVALID_RECORD, f"base offset of a produced batch is 0, not {header.base_offset}")
    if header.is_control:
        return Rejected(ErrorCode.INVALID_RECORD, "clients are not allowed to write control records")
    if header.attributes & DELETE_HORIZON_BIT:
        return Rejected(ErrorCode.INVALID_RECORD, "a batch gets its delete horizon from compaction, not from a client")
    if header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count:
        return Rejected(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records announced, last offset delta {header.last_offset_delta}",
        )
    if header.producer_id != NO_PRODUCER_ID:
        if header.base_sequence < 0 or header.producer_epoch < 0 or header.producer_id < 0:
            return Rejected(
                ErrorCode.INVALID_RECORD,
                f"producer {header.producer_id} epoch {header.producer_epoch} sequence {header.base_sequence}",
            )
        if batches > 1:
            return Rejected(ErrorCode.INVALID_RECORD, "an idempotent or transactional produce has exactly one batch")
    elif header.is_transactional:
        return Rejected(ErrorCode.INVALID_RECORD, "a transactional batch without a producer id")
    return None


def _check_records(
    records: Buffer,
    position: int,
    header: BatchHeader,
    payload: Buffer,
    origin: Origin,
    config: TopicConfig,
    now_ms: int,
    compacted: bool,
    explain: int,
) -> bytearray | Rejected | None:
    """Check the records; returns the batch in its new form, or None if it stays as it is."""
    max_timestamp, all_have_keys = validate_records(payload, header)
    if origin is Origin.CLIENT:
        rejected = _check_lengths(payload, header, config.max_decompressed_message_bytes)
        if rejected is not None:
            return rejected
        if compacted and not all_have_keys:
            rejected = _missing_keys(payload, header, explain)
        elif config.message_timestamp_type == "CreateTime":
            rejected = _check_timestamps(payload, header, max_timestamp, config, now_ms, explain)
        if rejected is not None:
            return rejected
    target = header.codec
    if config.compression_type != "producer" and not header.is_control:
        target = compression.CODES["none" if config.compression_type == "uncompressed" else config.compression_type]
    attributes = (header.attributes & ~(CODEC_MASK | TIMESTAMP_TYPE_BIT)) | target
    append_time = config.message_timestamp_type == "LogAppendTime" and not header.is_control
    if target == header.codec and (
        append_time or (max_timestamp == header.max_timestamp and attributes == header.attributes)
    ):
        return None
    if target != header.codec:
        payload = pack_quickly(target, bytes(payload), _level(target, config))
    else:
        payload = memoryview(records)[position + HEADER_SIZE : position + header.size]
    return build_batch(header._replace(attributes=attributes, max_timestamp=max_timestamp), payload)


def pack_quickly(codec: int, payload: bytes, level: int | None = None) -> bytes:
    """Compress records while the loop waits.

    A level above the codec's own counts up to LEVEL_UP_TO bytes: the highest ones pack a few MiB in a second. Of more
    than QUICKEST_ABOVE bytes it is the codec's quickest, for they may be 64 MiB.
    """
    if len(payload) > QUICKEST_ABOVE:
        level = 1 if codec in (compression.GZIP, compression.ZSTD) else None
    elif len(payload) > LEVEL_UP_TO and level is not None and level > _OWN_LEVELS.get(codec, 0):
        level = None
    return compression.compress(codec, payload, level)


def _level(codec: int, config: TopicConfig) -> int | None:
    """The topic's level for a codec; None for the codec's own (KIP-390)."""
    levels = {
        compression.GZIP: (config.compression_gzip_level, -1),
        compression.LZ4: (config.compression_lz4_level, 9),
        compression.ZSTD: (config.compression_zstd_level, 3),
    }
    level, usual = levels.get(codec, (0, 0))
    return None if level == usual else level


def _check_lengths(payload: Buffer, header: BatchHeader, bytes_max: int) -> Rejected | None:
    """As in Kafka, records of a batch without codec are bounded by max.message.bytes alone."""
    if not header.codec or len(payload) <= bytes_max:
        return None
    longest = longest_record(payload, header)
    if longest <= bytes_max:
        return None
    why = f"a record of {longest} bytes, decompressed: max.decompressed.message.bytes is {bytes_max}"
    return Rejected(ErrorCode.INVALID_RECORD, why)


def _missing_keys(payload: Buffer, header: BatchHeader, explain: int) -> Rejected:
    why = "a compacted topic takes no record without a key"
    if header.record_count > explain:
        return Rejected(ErrorCode.INVALID_RECORD, why)
    missing = [index for index, record in enumerate(decode_records(payload, header)) if record.key is None]
    return record_errors(ErrorCode.INVALID_RECORD, [(index, why) for index in missing], explain)


def _check_timestamps(
    payload: Buffer, header: BatchHeader, max_timestamp: int, config: TopicConfig, now_ms: int, explain: int
) -> Rejected | None:
    if header.is_log_append_time:
        return Rejected(
            ErrorCode.INVALID_TIMESTAMP,
            "a producer must not set the timestamp type to LogAppendTime",
            ((0, "timestamp type"),),
        )
    latest = now_ms + config.message_timestamp_after_max_ms
    earliest = now_ms - config.message_timestamp_before_max_ms
    # The earliest is looked for only where it can matter: by default the bound lies before the epoch.
    oldest = oldest_timestamp(payload, header) if earliest > 0 else earliest
    if max_timestamp <= latest and oldest >= earliest:
        return None
    if header.record_count > explain:
        wrong_one = f"{max_timestamp} is after {latest}" if max_timestamp > latest else f"{oldest} is before {earliest}"
        return Rejected(ErrorCode.INVALID_TIMESTAMP, f"timestamp {wrong_one}")
    wrong = [
        (index, f"timestamp {record.timestamp} is outside [{earliest}, {latest}]")
        for index, record in enumerate(decode_records(payload, header))
        if record.timestamp != NO_TIMESTAMP and not earliest <= record.timestamp <= latest
    ]
    return record_errors(ErrorCode.INVALID_TIMESTAMP, wrong, explain) if wrong else None


def record_errors(error: ErrorCode, wrong: list[tuple[int, str]], most: int) -> Rejected:
    """The refusal of a batch for these records (index, why); without their indexes if they are more than ``most``."""
    message = f"{'1 record was' if len(wrong) == 1 else f'{len(wrong)} records were'} rejected: {wrong[0][1]}"
    if len(wrong) > most:
        return Rejected(error, message)
    named = [(index, why if number < _MAX_RECORD_MESSAGES else None) for number, (index, why) in enumerate(wrong)]
    return Rejected(error, message, tuple(named))


def _assemble(
    records: Buffer,
    checked: list[tuple[int, BatchHeader, bytearray | None]],
    origin: Origin,
    changed: bool,
    config: TopicConfig,
) -> Checked | Rejected:
    if not changed:
        view = memoryview(records)
        buffer: bytearray | memoryview = bytearray(records) if view.readonly else view
        return Checked(buffer, [(p, h, _marker(records, p, h, origin)) for p, h, _ in checked])
    joined = bytearray()
    batches: list[tuple[int, BatchHeader, Marker | None]] = []
    for position, header, batch in checked:
        start = len(joined)
        joined += memoryview(records)[position : position + header.size] if batch is None else batch
        after = parse_header(joined, start)
        if after.size > config.max_message_bytes and after.codec != header.codec:
            return Rejected(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"batch of {after.size} bytes as {compression.NAMES[after.codec]} passes max.message.bytes",
            )
        batches.append((start, after, _marker(joined, start, after, origin)))
    return Checked(joined, batches)


def _marker(records: Buffer, position: int, header: BatchHeader, origin: Origin) -> Marker | None:
    assert not (header.is_control and origin is Origin.CLIENT)
    return read_marker(records, position, header) if header.is_control else None
