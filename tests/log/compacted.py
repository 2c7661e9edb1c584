"""A compacted log, what is put into it, and the table that it keeps."""

from __future__ import annotations

from _native.batch import Record, encode_batch
from brokers.log import Origin
from brokers.model import GROUP_METADATA_TOPIC
from tests.support.logs import NOW, append, config, open_log, records
from wire import compression
from wire.errors import ErrorCode
from wire.types import TopicPartition

TP = TopicPartition(GROUP_METADATA_TOPIC, 0)
COMPACT = {"cleanup_policy": ("compact",), "index_interval_bytes": 64}
"""Settings of a compacted topic."""


def internal_log(path, disk=None, segment_bytes=600, **changes):
    settings = {**COMPACT, "segment_bytes": segment_bytes, **changes}
    return open_log(path / "c-0", disk, TP, config=config(**settings))


def put(log, *pairs, codec=0, **fields):
    rows = [Record(-1, NOW, key.encode(), None if value is None else value.encode(), ()) for key, value in pairs]
    compress = (lambda payload: compression.compress(codec, payload)) if codec else None
    data = encode_batch(rows, attributes=codec | fields.pop("attributes", 0), compress=compress, **fields)
    info = append(log, data, origin=Origin.COORDINATOR)
    assert info.error == ErrorCode.NONE
    return info


def last_values(log):
    table = {}
    for record in records(log):
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table
