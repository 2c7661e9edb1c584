"""The files that keep what a partition remembers of its producers: Kafka's producer snapshots, version 1.

The tail of a producer snapshot: all remembered batches, where Kafka's format has room for each producer's last one.

Kafka reads as many entries as the snapshot's count names, and checks one checksum over everything behind it up to the
end of the file (``ProducerStateManager.readSnapshot``, the same in 2.8 to 4.1). So what follows the entries is covered
by the checksum and passed over by Kafka and its tools, and cannot belong to another snapshot. Kafka writes no tail;
what begins with other bytes than ours is of another program and is passed over here, too.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain

from fleetlog._native.batch import crc32c
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.positions import split_positions
from fleetlog.brokers.log.producers.entries import BatchMeta, ProducerEntry
from fleetlog.brokers.log.segment import file_stem
from fleetlog.wire.types import NO_SEQUENCE

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


SNAPSHOT_VERSION = 1
SNAPSHOT_SUFFIX = ".snapshot"
_SNAPSHOT_FILE = re.compile(r"(\d{20})" + re.escape(SNAPSHOT_SUFFIX))
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


def snapshot_path(directory: str, offset: int) -> str:
    """The producer snapshot of the state before ``offset``."""
    return f"{directory}/{file_stem(offset)}{SNAPSHOT_SUFFIX}"


def snapshot_offsets(disk: DiskPort, directory: str) -> list[int]:
    """Offsets of the snapshots in a directory, rising."""
    return snapshots_among(disk.names(directory))


def snapshots_among(names: Iterable[str]) -> list[int]:
    """Offsets of those among sorted file names, rising."""
    return [int(match[1]) for match in map(_SNAPSHOT_FILE.fullmatch, names) if match is not None]


class DamagedSnapshot(ValueError):
    """A producer snapshot whose checksum, version or size is wrong; it is dropped and the log replayed instead."""


def encode_snapshot(entries: Iterable[ProducerEntry], positions: bytes = b"") -> bytes:
    """Kafka's ``.snapshot`` file, version 1: of each producer its last batch; then what that has no room for.

    ``positions`` are accepted ones, as :func:`encode_positions` writes them.
    """
    packed: list[bytes] = []
    more: list[tuple[int, tuple[BatchMeta, ...]]] = []
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        packed.append(
            _SNAPSHOT_ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                NO_SEQUENCE if last is None else last.last_sequence,
                -1 if last is None else last.last_offset,
                0 if last is None else last.offset_delta,
                entry.timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
        )
        # a marker's timestamp stands in the place of the batch's
        if last is not None and (len(entry.batches) > 1 or last.timestamp != entry.timestamp):
            more.append((entry.producer_id, entry.batches))
    body = struct.pack(">i", len(packed)) + b"".join(packed) + positions + encode_tail(more)
    return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """Read a snapshot; raises DamagedSnapshot."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise DamagedSnapshot("shorter than its head")
    version, checksum, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise DamagedSnapshot(f"version {version} is not known")
    if crc32c(memoryview(data)[6:]) != checksum:
        raise DamagedSnapshot("checksum is wrong")
    end = _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size
    if count < 0 or len(data) < end:
        raise DamagedSnapshot(f"{count} entries don't fit {len(data)} bytes")
    try:
        remembered = decode_tail(split_positions(memoryview(data)[end:])[1])
    except ValueError as wrong:
        raise DamagedSnapshot(str(wrong)) from wrong
    entries = []
    for fields in _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEAD.size : end]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first_offset = fields
        batches: tuple[BatchMeta, ...] = ()
        # Kafka writes an offset of -1 for a producer that only has a marker; there is no batch to compare with then.
        if offset >= 0:
            batches = tuple(map(BatchMeta._make, remembered.get(producer_id, ((sequence, offset, delta, timestamp),))))
            if not batches or batches[-1][:3] != (sequence, offset, delta):
                raise DamagedSnapshot(f"the remembered batches of producer {producer_id} are not those of its entry")
        entries.append(ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, batches, txn_first_offset))
    return entries


def behind_entries(data: bytes) -> memoryview:
    """What follows the entries of a sound snapshot: accepted positions, then the tail."""
    _, _, count = _SNAPSHOT_HEAD.unpack_from(data)
    return memoryview(data)[_SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size :]
