"""Column functions for records of Kafka: keys to partitions, headers, raw record batches.

Headers need no Python worker: those functions are made of Spark's own expressions.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import IntegerType

from fleetlog._native.batch import CorruptBatch, decode_records, parse_header, validate_batch
from fleetlog._native.columns import murmur2, partitions_for_keys
from fleetlog.spark.client.records import HEADERS_TYPE, MILLIS_MAX, TIMESTAMP_TYPE, batch_payload
from fleetlog.spark.versions import arrow_function
from fleetlog.wire.compression import CodecError

ColumnOrName = Column | str

BATCH_TYPE = pa.struct(
    [
        pa.field("crcValid", pa.bool_()),
        pa.field("error", pa.string()),
        pa.field("size", pa.int32()),
        pa.field("baseOffset", pa.int64()),
        pa.field("lastOffset", pa.int64()),
        pa.field("leaderEpoch", pa.int32()),
        pa.field("compression", pa.int32()),
        pa.field("isTransactional", pa.bool_()),
        pa.field("isControl", pa.bool_()),
        pa.field("producerId", pa.int64()),
        pa.field("producerEpoch", pa.int32()),
        pa.field("baseSequence", pa.int32()),
        pa.field(
            "records",
            pa.list_(
                pa.struct(
                    [
                        pa.field("offset", pa.int64()),
                        pa.field("timestamp", TIMESTAMP_TYPE),
                        pa.field("key", pa.binary()),
                        pa.field("value", pa.binary()),
                        pa.field("headers", HEADERS_TYPE),
                    ]
                )
            ),
        ),
    ]
)


def as_column(value: ColumnOrName) -> Column:
    """A column of this name, or the column itself."""
    return f.col(value) if isinstance(value, str) else value


def kafka_murmur2(key: ColumnOrName) -> Column:
    """Java's ``Utils.murmur2`` of a key (binary or string) as a signed 32-bit number; null for null."""
    hashed: Column = _hashes(as_column(key).cast("binary"))
    return hashed


def kafka_partition(key: ColumnOrName, partitions: int) -> Column:
    """The partition of a key (binary or string) by Kafka's default partitioner; null for null, which has no partition.

    As Java's producer, Spark's own sink and this one; librdkafka's default (CRC32) differs.
    """
    if partitions < 1:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    partition: Column = _partitions(as_column(key).cast("binary"), f.lit(partitions))
    return partition


def headers_to_map(headers: ColumnOrName) -> Column:
    """Headers as a map; of several with one name, the last one, as Kafka's ``lastHeader`` does. Null for null."""
    column = as_column(headers)

    def last_of_its_name(header: Column, position: Column) -> Column:
        later = f.slice(column, position + 2, f.size(column))
        return ~f.exists(later, lambda other: other["key"] == header["key"])

    return f.map_from_entries(f.filter(column, last_of_its_name))


def headers_get(headers: ColumnOrName, name: str) -> Column:
    """The value of the last header of that name; null when there is none, or when its value is null."""
    matching = f.filter(as_column(headers), lambda header: header["key"] == f.lit(name))
    return f.try_element_at(matching, f.lit(-1))["value"]


def decode_record_batch(batch: ColumnOrName) -> Column:
    """One record batch (format v2, as in a log segment) as a struct of its header's fields and its records.

    A corrupt batch is a value and never an exception: ``crcValid`` is the result of the checksum, ``error`` the reason,
    and ``records`` is null where it is corrupt. ``size`` is the batch's length in bytes, after which a next one starts.
    """
    described: Column = _batch(as_column(batch))
    return described


@arrow_function(IntegerType())
def _hashes(keys: pa.Array) -> pa.Array:
    return pa.array([None if key is None else murmur2(key) for key in keys.to_pylist()], pa.int32())


@arrow_function(IntegerType())
def _partitions(keys: pa.Array, count: pa.Array) -> pa.Array:
    if len(keys) == 0:
        return pa.array([], pa.int32())
    numbers = partitions_for_keys(keys, count[0].as_py())
    return pc.if_else(keys.is_null(), pa.scalar(None, pa.int32()), numbers)


@arrow_function(from_arrow_type(BATCH_TYPE))
def _batch(batches: pa.Array) -> pa.Array:
    return pa.array([None if item is None else describe_batch(item) for item in batches.to_pylist()], BATCH_TYPE)


def describe_batch(data: bytes) -> dict[str, Any]:
    """One batch as `decode_record_batch` describes it; absent fields are null."""
    try:
        header = parse_header(data)
    except CorruptBatch as damage:
        return {"crcValid": False, "error": damage.reason}
    described: dict[str, Any] = {
        "crcValid": False,
        "size": header.size,
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "leaderEpoch": header.partition_leader_epoch,
        "compression": header.codec,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "baseSequence": header.base_sequence,
    }
    try:
        validate_batch(data)
        described["crcValid"] = True
        records = decode_records(batch_payload(data, 0, header), header)
    except CorruptBatch as damage:
        return {**described, "error": damage.reason}
    except CodecError as damage:
        return {**described, "error": str(damage)}
    beyond = next((record for record in records if abs(record.timestamp) > MILLIS_MAX), None)
    if beyond is not None:
        reason = f"the record at offset {beyond.offset} has the timestamp {beyond.timestamp} ms, beyond Spark's µs"
        return {**described, "error": reason}
    described["records"] = [
        {
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in records
    ]
    return described
