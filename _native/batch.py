"""Record batches (format v2): checksum, headers, stamping, records. See ``batch_py`` for what each function means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _native import choose
from _native.errors import CorruptBatch

if TYPE_CHECKING:
    from _native.batch_py import (
        HEADER_SIZE,
        Admitted,
        BatchHeader,
        Record,
        admit,
        admit_run,
        control_batch,
        crc32c,
        decode_records,
        encode_batch,
        encode_records,
        entries_at_most,
        parse_header,
        scan,
        stamp,
        validate_batch,
        validate_records,
        walk,
    )
else:
    from _native.batch_py import Admitted

    _twin = choose("batch")
    HEADER_SIZE = _twin.HEADER_SIZE
    BatchHeader = _twin.BatchHeader
    Record = _twin.Record
    admit = _twin.admit
    admit_run = _twin.admit_run
    control_batch = _twin.control_batch
    crc32c = _twin.crc32c
    decode_records = _twin.decode_records
    encode_batch = _twin.encode_batch
    encode_records = _twin.encode_records
    entries_at_most = _twin.entries_at_most
    parse_header = _twin.parse_header
    scan = _twin.scan
    stamp = _twin.stamp
    validate_batch = _twin.validate_batch
    validate_records = _twin.validate_records
    walk = _twin.walk

__all__ = [
    "HEADER_SIZE",
    "Admitted",
    "BatchHeader",
    "CorruptBatch",
    "Record",
    "admit",
    "admit_run",
    "control_batch",
    "crc32c",
    "decode_records",
    "encode_batch",
    "encode_records",
    "entries_at_most",
    "parse_header",
    "scan",
    "stamp",
    "validate_batch",
    "validate_records",
    "walk",
]
