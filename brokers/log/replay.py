"""From the batches of a log, and the newest snapshot before them, to what is remembered of producers and positions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from fleetlog._native.batch import Admitted, BatchHeader, validate_batch
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.dedup import note
from fleetlog.brokers.log.files import DiskPort
from fleetlog.brokers.log.indexes import AbortedTxn
from fleetlog.brokers.log.markers import Marker
from fleetlog.brokers.log.positions import PositionSets
from fleetlog.brokers.log.producer_snapshots import DamagedSnapshot, snapshot_offsets, snapshot_path
from fleetlog.brokers.log.producers import ProducerState, admitted_of
from fleetlog.brokers.log.segment import Segment
from fleetlog.brokers.log.segments import Segments
from fleetlog.brokers.log.validation import read_marker
from fleetlog.wire.compression import CodecError
from fleetlog.wire.types import NO_PRODUCER_ID

logger = logging.getLogger(__name__)


def restore_producers(
    disk: DiskPort,
    directory: str,
    segments: Segments,
    producers: ProducerState,
    end: int,
    now_ms: int,
    snapshots: list[int] | None = None,
) -> None:
    """Producer state as of offset ``end``: the best snapshot at or below it, and replay from there.

    Damaged snapshots are removed, also from ``snapshots``, the caller's list of those there are.
    """
    if snapshots is None:
        snapshots = snapshot_offsets(disk, directory)
    for offset in reversed(snapshots[:]):
        if offset > end:
            continue
        path = snapshot_path(directory, offset)
        try:
            producers.load_snapshot(disk.read(path) or b"", now_ms)
        except DamagedSnapshot as wrong:
            logger.warning("%s: %s; removed", path, wrong)
            disk.remove(path)
            snapshots.remove(offset)
            continue
        if producers.positions is not None and offset < segments.first.base_offset:
            producers.positions.known = False  # what was accepted between the two is gone
        replay(segments, producers, offset, end, now_ms)
        return
    producers.clear(segments.first.base_offset)
    replay(segments, producers, segments.first.base_offset, end, now_ms)


def replay(segments: Segments, producers: ProducerState, start: int, end: int, now_ms: int) -> None:
    """Apply the batches in [start, end) to the producer state."""
    if start >= end:
        return
    for segment in segments.from_offset(start):
        if segment.base_offset >= end:
            return
        position = segment.position_of(start) if segment.base_offset < start else 0
        if position is None:
            continue
        try:
            for _, data, found in segment.chunks(position):
                batches = [(at, header) for at, header in found if start <= header.base_offset < end]
                if producers.positions is not None:
                    batches = [*_sound(segment, data, batches)]
                apply_batches(producers, data, batches, now_ms)
                if found[-1][1].base_offset >= end:
                    return
        except (CorruptBatch, CodecError) as wrong:
            # Damage below the recovery point: a read there gets an error. It is no reason to serve nothing at all.
            logger.error("%s: %s: what its producers did after that is not known", segment.log.path, wrong)


def replay_positions(segments: Segments, sets: PositionSets, now_ms: int) -> None:
    """Accept what all records of a log say of their sources: for a log that has not dropped duplicates before."""
    for segment in segments:
        try:
            for _, data, found in segment.chunks():
                for at, header in _sound(segment, data, found):
                    note(sets, data, at, header, now_ms)
        except (CorruptBatch, CodecError) as wrong:
            logger.error("%s: %s: which positions it has after that is not known", segment.log.path, wrong)


def _sound(
    segment: Segment, data: bytes, batches: Sequence[tuple[int, BatchHeader]]
) -> Iterator[tuple[int, BatchHeader]]:
    """Those whose checksum holds: a damaged one would count what it never had, and hide what lies behind it."""
    for at, header in batches:
        try:
            validate_batch(data, at)
        except CorruptBatch as wrong:
            logger.error(
                "%s: the batch at offset %d: %s: what was accepted with it is not known, and is taken again",
                segment.log.path, header.base_offset, wrong,
            )  # fmt: skip
        else:
            yield at, header


def apply_batches(
    producers: ProducerState, data: bytes, batches: Sequence[tuple[int, BatchHeader]], now_ms: int
) -> list[AbortedTxn]:
    """Apply batches that are in the log; returns the transactions they aborted. Raises CorruptBatch."""
    touched: list[Admitted] = []
    markers: dict[int, Marker | None] = {}
    for at, header in batches:
        if producers.positions is not None:
            note(producers.positions, data, at, header, now_ms)
        if header.producer_id != NO_PRODUCER_ID:
            touched.append(admitted_of(header))
            if header.is_control:
                markers[header.base_offset] = read_marker(data, at, header)
    return producers.appended(touched, now_ms, markers)
