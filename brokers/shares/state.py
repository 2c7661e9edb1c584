"""The persisted state of a share partition: runs of offsets, how they are merged, and their records. Pure.

A share partition is a group's view of one partition: its start offset, below which every record has reached its end,
and what became of those from there on. Records of ``__share_group_state`` are byte for byte Kafka 4.4's (ShareSnapshot
and ShareUpdate, keys 0 and 1): a snapshot is the whole state, an update is merged into that of its snapshot epoch.

Merging keeps, of each offset, what is further on: an end before anything else, then the higher delivery count, then
the higher state. So it does not matter in which order writes arrive, or whether one arrives twice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from fleetlog._native.byte_reader import varint_bytes
from fleetlog.brokers.groups.records import BadRecord, RecordReader
from fleetlog.txn.commands import CoordinatorRecord

SNAPSHOT_KEY, UPDATE_KEY = 0, 1
NO_OFFSET = -1
"""A start that is not known: of an uninitialised share partition, or one that a write leaves as it is."""
MAX_DELIVERIES = 0x7FFF
"""A delivery count is an int16 in records and requests."""
POISONED = MAX_DELIVERIES
"""The delivery count, which no record reaches by deliveries, of one that is behind a dead letter of its key."""

_KEY_END = struct.Struct(">16si")
_SNAPSHOT = struct.Struct(">hiiiqqq")
_UPDATE = struct.Struct(">hiiq")
_BATCH = struct.Struct(">qqbhx")
"""First and last offset, state, delivery count, and no tagged fields."""
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


class RecordState(IntEnum):
    """What became of a record, by Kafka's numbers; 1 and 3 are never persisted."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


PERSISTED = (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
ENDS = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
"""States in which a record is finished."""


class StateBatch(NamedTuple):
    """Offsets ``first`` to ``last`` (inclusive) that are in one state and were delivered equally often."""

    first: int
    last: int
    state: RecordState
    deliveries: int

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Of two states of an offset the higher one is further on."""
        return self.state in ENDS, self.deliveries, self.state


class ShareKey(NamedTuple):
    """One share partition; ``topic_id`` has 16 bytes."""

    group_id: str
    topic_id: bytes
    partition: int


class ShareState(NamedTuple):
    """What the log of the share coordinator says of a share partition.

    ``state_epoch`` rises when the offsets are reset; ``leader_epoch`` is the newest of those that read or wrote it.
    ``complete``: how many records from the start on are finished (KIP-1226), -1 if not known.
    """

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = -1
    start: int = NO_OFFSET
    complete: int = -1
    batches: tuple[StateBatch, ...] = ()
    created_ms: int = -1
    written_ms: int = -1


class ShareUpdate(NamedTuple):
    """What one write changed, in the log. ``start`` and ``leader_epoch`` -1: as they were."""

    snapshot_epoch: int
    leader_epoch: int
    start: int
    complete: int
    batches: tuple[StateBatch, ...]


def merged(older: Iterable[StateBatch], newer: Iterable[StateBatch], start: int = NO_OFFSET) -> tuple[StateBatch, ...]:
    """One state per offset: disjoint batches in order, equal neighbours joined, none below ``start``."""
    waiting = sorted((max(one.first, start), one) for one in (*older, *newer) if one.last >= start)
    result: list[StateBatch] = []
    open_batches: list[tuple[tuple[bool, int, int], StateBatch]] = []  # a heap by the negated rank
    at = index = 0
    while open_batches or index < len(waiting):
        if not open_batches:
            at = waiting[index][0]
        while index < len(waiting) and waiting[index][0] <= at:
            ended, count, state = waiting[index][1].rank
            heappush(open_batches, ((not ended, -count, -state), waiting[index][1]))
            index += 1
        best = open_batches[0][1]
        if best.last < at:
            heappop(open_batches)
            continue
        until = best.last if index == len(waiting) else min(best.last, waiting[index][0] - 1)
        _append(result, StateBatch(at, until, best.state, best.deliveries))
        at = until + 1
    return tuple(result)


def _append(batches: list[StateBatch], batch: StateBatch) -> None:
    last = batches[-1] if batches else None
    if last is not None and (last.last + 1, last.state, last.deliveries) == (
        batch.first,
        batch.state,
        batch.deliveries,
    ):
        batches[-1] = last._replace(last=batch.last)
    else:
        batches.append(batch)


def updated(state: ShareState, update: ShareUpdate, now_ms: int) -> ShareState:
    """The state with an update of its snapshot epoch; the start never goes back."""
    start = max(state.start, update.start)
    return state._replace(
        leader_epoch=max(state.leader_epoch, update.leader_epoch),
        start=start,
        complete=update.complete,
        batches=merged(state.batches, update.batches, start),
        written_ms=now_ms,
    )


def wrong(batches: Sequence[StateBatch]) -> str | None:
    """What is wrong with batches that a leader sends or a record has; None if nothing is."""
    for first, last, state, count in batches:
        if not 0 <= first <= last:
            return f"offsets {first} to {last}"
        if state not in PERSISTED or not 0 <= count <= MAX_DELIVERIES:
            return f"state {state} with delivery count {count}"
    return None


# --- records ----------------------------------------------------------------------------------------------------


def state_key(kind: int, key: ShareKey) -> bytes:
    """Key of a snapshot or an update."""
    group = key.group_id.encode()
    return _I16.pack(kind) + _I16.pack(len(group)) + group + _KEY_END.pack(key.topic_id, key.partition)


def decode_state_key(raw: bytes) -> tuple[int, ShareKey] | None:
    """Kind and share partition; None for a kind that is not known. Raises BadRecord."""
    reader = RecordReader(raw)
    kind = reader.i16()
    if kind not in (SNAPSHOT_KEY, UPDATE_KEY):
        return None
    return kind, ShareKey(reader.string(), reader.take(16), reader.i32())


def _batches(batches: Sequence[StateBatch]) -> bytes:
    return varint_bytes(len(batches) + 1) + b"".join(_BATCH.pack(*batch) for batch in batches)


def _tags(complete: int) -> bytes:
    return b"\0" if complete == -1 else b"\1\0\4" + _I32.pack(complete)


def snapshot_value(state: ShareState) -> bytes:
    """Value of key 0."""
    head = _SNAPSHOT.pack(
        0, state.snapshot_epoch, state.state_epoch, state.leader_epoch, state.start, state.created_ms, state.written_ms
    )
    return head + _batches(state.batches) + _tags(state.complete)


def update_value(update: ShareUpdate) -> bytes:
    """Value of key 1."""
    head = _UPDATE.pack(0, update.snapshot_epoch, update.leader_epoch, update.start)
    return head + _batches(update.batches) + _tags(update.complete)


def snapshot_record(key: ShareKey, state: ShareState) -> CoordinatorRecord:
    """The record of a whole state."""
    return CoordinatorRecord(state_key(SNAPSHOT_KEY, key), snapshot_value(state))


def update_record(key: ShareKey, update: ShareUpdate) -> CoordinatorRecord:
    """The record of what one write changed."""
    return CoordinatorRecord(state_key(UPDATE_KEY, key), update_value(update))


def _reader(raw: bytes) -> RecordReader | None:
    reader = RecordReader(raw)
    if reader.i16() != 0:
        return None
    reader.flexible = True
    return reader


def _decode_batches(reader: RecordReader) -> tuple[StateBatch, ...]:
    batches = []
    for _ in range(reader.array_size()):
        first, last, state, count = reader.i64(), reader.i64(), reader.take(1)[0], reader.i16()
        reader.tags()
        try:
            batches.append(StateBatch(first, last, RecordState(state), count))
        except ValueError as error:
            raise BadRecord(f"the state {state} of a record") from error
    if (problem := wrong(batches)) is not None:
        raise BadRecord(problem)
    return tuple(batches)


def _complete(reader: RecordReader) -> int:
    raw = reader.tags().get(0)
    return -1 if raw is None else RecordReader(raw).i32()


def decode_share_snapshot(raw: bytes) -> ShareState | None:
    """Value of key 0; None for a newer version. Raises BadRecord."""
    reader = _reader(raw)
    if reader is None:
        return None
    snapshot_epoch, state_epoch, leader_epoch = reader.i32(), reader.i32(), reader.i32()
    start, created_ms, written_ms = reader.i64(), reader.i64(), reader.i64()
    batches = _decode_batches(reader)
    return ShareState(
        snapshot_epoch, state_epoch, leader_epoch, start, _complete(reader), batches, created_ms, written_ms
    )


def decode_share_update(raw: bytes) -> ShareUpdate | None:
    """Value of key 1; None for a newer version. Raises BadRecord."""
    reader = _reader(raw)
    if reader is None:
        return None
    snapshot_epoch, leader_epoch, start = reader.i32(), reader.i32(), reader.i64()
    batches = _decode_batches(reader)
    return ShareUpdate(snapshot_epoch, leader_epoch, start, _complete(reader), batches)
