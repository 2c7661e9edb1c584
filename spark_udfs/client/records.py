"""What source and column functions share of a record: Arrow types of its fields, and a batch's payload, bounded."""

from __future__ import annotations

import pyarrow as pa

from fleetlog._native.batch import HEADER_SIZE, BatchHeader
from fleetlog.wire.compression import Buffer, decompress

MAX_PAYLOAD_BYTES = 512 << 20  # of one batch, decompressed
MILLIS_MAX = (2**63 - 1) // 1000
"""Of a timestamp, before and after 1970: Spark counts in µs, with 64 bits."""

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(HEADER_TYPE)
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")


def batch_payload(records: Buffer, position: int, header: BatchHeader) -> Buffer:
    """The records of the batch at ``position``, decompressed. Raises CodecError beyond MAX_PAYLOAD_BYTES."""
    payload = memoryview(records)[position + HEADER_SIZE : position + header.size]
    return decompress(header.codec, payload, MAX_PAYLOAD_BYTES) if header.codec else payload
