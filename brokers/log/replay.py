"""From the batches of a log, and the newest snapshot before them, to what is remembered of producers and positions."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence

from fleetlog._native.batch import HEADER_SIZE, Admitted, BatchHeader, parse_header, validate_batch
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.dedup import note
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.indexes import AbortedTxn
from fleetlog.brokers.log.positions import PositionSets
from fleetlog.brokers.log.producers.markers import Marker
from fleetlog.brokers.log.producers.snapshots import DamagedSnapshot, snapshot_offsets, snapshot_path
from fleetlog.brokers.log.producers.state import ProducerState, admitted_of
from fleetlog.brokers.log.segment import Segment
from fleetlog.brokers.log.segments import Segments
from fleetlog.brokers.log.validation import read_marker
from fleetlog.wire.compression import CodecError
from fleetlog.wire.types import NO_PRODUCER_ID

logger = logging.getLogger(__name__)

_LENGTH_AT, _MAGIC_AT = 8, 16
"""Of a batch's length and magic in its header: neither they nor the offset before them are under the checksum."""
_LARGEST = 256 * 1024 * 1024
"""Of a batch whose length is looked for: more is not read at one go."""
_SEARCH_BYTES = 1024 * 1024
NO_END = 2**63 - 1
"""The offset behind the last segment, whatever is appended to it."""


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
    for index, segment in enumerate(segments):
        if segment.base_offset >= end:
            return
        if segments.end_of(index, end) <= start:
            continue
        sets, lost = producers.positions, list[int]()
        beyond = segments.end_of(index, NO_END)
        try:
            for data, found in _surviving(segment, _place_of(segment, start), beyond, lost, checked=sets is not None):
                batches = [one for one in found if start <= one[1].base_offset < end]
                apply_batches(producers, data, batches, now_ms)
                if found[-1][1].base_offset >= end:
                    break
        except (CorruptBatch, CodecError) as wrong:
            # Damage below the recovery point: a read there gets an error. It is no reason to serve nothing at all.
            logger.error("%s: %s: what its producers did after that is not known", segment.log.path, wrong)
            lost.append(beyond)
        if sets is not None and lost and lost[-1] > start:
            sets.lacks(min(lost[-1], end))


def _place_of(segment: Segment, start: int) -> int:
    """Where to begin for the batches from ``start`` on: at the front if damage hides the place."""
    if segment.base_offset >= start:
        return 0
    try:
        return segment.position_of(start) or 0
    except CorruptBatch:
        return 0


def replay_positions(segments: Segments, sets: PositionSets, now_ms: int) -> None:
    """Accept what all records of a log say of their sources: for a log that has not dropped duplicates before."""
    for index, segment in enumerate(segments):
        try:
            for data, batches in _surviving(segment, 0, segments.end_of(index, NO_END), [], checked=True):
                for at, header in batches:
                    note(sets, data, at, header, now_ms)
        except (CorruptBatch, CodecError) as wrong:
            logger.error("%s: %s: which positions it has after that is not known", segment.log.path, wrong)


def _surviving(
    segment: Segment, position: int, beyond: int, lost: list[int], *, checked: bool
) -> Iterator[tuple[bytes, list[tuple[int, BatchHeader]]]]:
    """A segment's batches in runs, from ``position`` on; ``beyond`` is the offset behind its last one.

    Those behind a damaged batch are found, too. Its own length is not under its checksum: the one with which that holds
    is the true one. ``lost`` gets the offset behind each damage of which nothing can be told. With ``checked`` all
    checksums are asked: a batch with a wrong one would count what it never had.
    """
    expected = segment.base_offset
    while position < segment.size:
        reason = ""
        try:
            for begin, data, found in segment.chunks(position):
                sound, reason = sound_batches(data, found, expected, beyond, checked=checked)
                if sound:
                    yield data, sound
                    place, last = sound[-1]
                    position, expected = begin + place + last.size, last.last_offset + 1
                if reason:
                    break
        except CorruptBatch as wrong:
            reason = wrong.reason
        if position == segment.size:
            return
        following = _next_sound(segment, position + 1, expected, beyond)
        mended = _with_length(segment, position, following, expected, beyond)
        if mended is None:
            logger.error(
                "%s: at byte %d: %s: what its producers did, and what was accepted, in the %d bytes from there on is"
                " not known", segment.log.path, position, reason or "half a batch", following - position,
            )  # fmt: skip
            header = _header_at(segment, following)
            lost.append(beyond if header is None else header.base_offset)
        else:
            yield mended
            expected = mended[1][0][1].last_offset + 1
        position = following


def sound_batches(
    data: bytes, found: Sequence[tuple[int, BatchHeader]], expected: int, beyond: int, *, checked: bool
) -> tuple[list[tuple[int, BatchHeader]], str]:
    """The batches before the first one that is damaged, and what is wrong with that one.

    A batch whose offsets are not in [``expected``, ``beyond``), behind those before it, is; with ``checked`` one with a
    wrong checksum, too.
    """
    sound: list[tuple[int, BatchHeader]] = []
    for at, header in found:
        if not expected <= header.base_offset <= header.last_offset < beyond:
            return sound, f"offsets {header.base_offset} to {header.last_offset} behind {expected - 1}"
        if checked:
            try:
                validate_batch(data, at)
            except CorruptBatch as wrong:
                return sound, wrong.reason
        sound.append((at, header))
        expected = header.last_offset + 1
    return sound, ""


def _next_sound(segment: Segment, position: int, expected: int, beyond: int) -> int:
    """Where the first sound batch begins whose offsets are in that range; the segment's end if there is none.

    Reads five times the rest of the segment at most, whatever looks like a batch there.
    """
    low, high = expected.to_bytes(8, "big"), (beyond - 1).to_bytes(8, "big")
    alike = next((count for count in range(8) if low[count] != high[count]), 8)
    header = re.compile(b"(?=" + re.escape(low[:alike]) + b".{%d}\2)" % (_MAGIC_AT - alike), re.DOTALL)
    left = 4 * (segment.size - position)
    while segment.size - position >= HEADER_SIZE and left >= 0:
        data = segment.log.read(position, min(_SEARCH_BYTES, segment.size - position))
        for match in header.finditer(data):
            place = position + match.start()
            found = _header_at(segment, place)
            if found is None or not expected <= found.base_offset <= found.last_offset < beyond:
                continue
            if found.size <= segment.size - place and left >= 0:
                left -= found.size
                try:
                    validate_batch(segment.log.read(place, found.size))
                except CorruptBatch:
                    continue
                return place
        position += len(data) - HEADER_SIZE + 1
    return segment.size


def _header_at(segment: Segment, position: int) -> BatchHeader | None:
    try:
        return parse_header(segment.log.read(position, min(HEADER_SIZE, segment.size - position)))
    except CorruptBatch:
        return None


def _with_length(
    segment: Segment, position: int, following: int, expected: int, beyond: int
) -> tuple[bytes, list[tuple[int, BatchHeader]]] | None:
    """The batch at ``position`` if it is sound but for length, offset or magic: it ends where the next one begins."""
    if not HEADER_SIZE <= following - position <= _LARGEST:
        return None
    data = bytearray(segment.log.read(position, following - position))
    data[_LENGTH_AT : _LENGTH_AT + 4] = (len(data) - _LENGTH_AT - 4).to_bytes(4, "big")
    data[_MAGIC_AT] = 2
    if not expected <= int.from_bytes(data[:_LENGTH_AT], "big") < beyond:
        data[:_LENGTH_AT] = expected.to_bytes(_LENGTH_AT, "big")
    try:
        return bytes(data), [(0, validate_batch(data))]
    except CorruptBatch:
        return None


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
