"""The tail of a producer snapshot: all remembered batches, where Kafka's format has room for each producer's last one.

Kafka reads as many entries as the snapshot's count names, and checks one checksum over everything behind it up to the
end of the file (``ProducerStateManager.readSnapshot``, the same in 2.8 to 4.1). So what follows the entries is covered
by the checksum and passed over by Kafka and its tools, and cannot belong to another snapshot. Kafka writes no tail;
what begins with other bytes than ours is of another program and is passed over here, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain

Batches = Sequence[tuple[int, int, int, int]]
"""Last sequence, last offset, offset delta and timestamp of each, oldest first."""

_MAGIC = b"flb1"
_HEAD = struct.Struct(">4si")
_PRODUCER = struct.Struct(">qb")
_BATCH = struct.Struct(">iqiq")


@cache
def _producer_with(count: int) -> struct.Struct:
    return struct.Struct(">qb" + "iqiq" * count)


def encode_tail(producers: Iterable[tuple[int, Batches]]) -> bytes:
    """The bytes behind the entries for these producers: (producer id, remembered batches); none for none."""
    packed = [
        _producer_with(len(batches)).pack(producer_id, len(batches), *chain.from_iterable(batches))
        for producer_id, batches in producers
    ]
    return b"".join((_HEAD.pack(_MAGIC, len(packed)), *packed)) if packed else b""


def decode_tail(data: bytes | memoryview) -> dict[int, list[tuple[int, int, int, int]]]:
    """Remembered batches by producer id; none where the tail is absent or foreign. ValueError for half of one."""
    if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
        return {}
    batches: dict[int, list[tuple[int, int, int, int]]] = {}
    try:
        _, producers = _HEAD.unpack_from(data)
        position = _HEAD.size
        for _ in range(producers):
            producer_id, count = _PRODUCER.unpack_from(data, position)
            position += _PRODUCER.size
            end = position + count * _BATCH.size
            batches[producer_id] = list(_BATCH.iter_unpack(data[position:end]))
            position = end
    except struct.error as wrong:
        raise ValueError(f"the remembered batches are cut off: {wrong}") from wrong
    if position != len(data):
        raise ValueError(f"the remembered batches end at {position} of {len(data)} bytes")
    return batches
