"""The accepted positions of a leader's log as of an offset, for a replica that does not know them.

A replica that was away for longer than its leader keeps records, a new one, and one whose snapshots are damaged have no
record of what was accepted before their first one. A set as of an offset and the records from there on are all there is
to know, wherever floors stood meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from fleetlog.brokers.log.dedup import note
from fleetlog.brokers.log.position_snapshot import encode_positions, load_positions, split_positions
from fleetlog.brokers.log.producer_snapshots import (
    DamagedSnapshot,
    behind_entries,
    decode_snapshot,
    snapshot_offsets,
    snapshot_path,
)
from fleetlog.brokers.log.state import LogState


class AcceptedPositions(NamedTuple):
    """What was accepted below ``offset``, as a snapshot has it."""

    offset: int
    body: bytes


def accepted_as_of(log: LogState, offset: int, now_ms: int) -> Generator[None, None, AcceptedPositions | None]:
    """What the log had accepted before ``offset``, or its start if that is higher; never above the high watermark.

    The newest snapshot there and the records behind it say so; where none is sound, the lowest one above it tells more
    than was asked, all of it committed. Yields between two batches. None: not to be told now, because no snapshot is
    sound, or the log was cut meanwhile. ``now_ms`` stands for the time of what is replayed. Raises DiskError,
    LogOffline, CorruptBatch, CodecError.
    """
    known = log.producers.positions
    if known is None or not known.known:
        return None
    target = min(max(offset, log.log_start_offset), log.high_watermark)
    at, body = _snapshot_for(log, target)
    if body is not None and at >= target:
        return AcceptedPositions(at, bytes(body))
    if body is None and log.segments.first.base_offset:
        return None
    sets = known.like()
    if body is not None:
        load_positions(sets, body)
    cuts = log.cuts
    for segment in list(log.segments.from_offset(at)):
        position = segment.position_of(at) if segment.base_offset < at else 0
        for _, data, placed in segment.chunks(position if position is not None else segment.size):
            for place, header in placed:
                if at <= header.base_offset < target:
                    note(sets, data, place, header, now_ms)
                yield
                if log.cuts != cuts or log.offline:
                    return None
            if placed[-1][1].base_offset >= target:
                break
    told, _ = split_positions(memoryview(encode_positions(sets)))
    return AcceptedPositions(target, bytes(told or b""))


def _snapshot_for(log: LogState, target: int) -> tuple[int, memoryview | None]:
    """The newest sound snapshot with positions at or below ``target``, else the lowest committed one above it."""
    first = log.segments.first.base_offset
    offsets = [offset for offset in snapshot_offsets(log.disk, log.directory) if offset >= first]
    below = [offset for offset in reversed(offsets) if offset <= target]
    for offset in below + [offset for offset in offsets if target < offset <= log.high_watermark]:
        if offset > target and not first:
            break  # the records say it all
        try:
            data = log.disk.read(snapshot_path(log.directory, offset)) or b""
            decode_snapshot(data)
            body, _ = split_positions(behind_entries(data))
        except (DamagedSnapshot, ValueError):
            continue
        if body is not None:
            return offset, body
    return first, None
