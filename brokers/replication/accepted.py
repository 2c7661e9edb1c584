"""What a leader tells a follower of the positions that its topic has accepted (AcceptedPositions, between brokers).

It may be many megabytes, so it comes in parts, each asked for by itself; a checksum shows that they belong together.

A replica that was away for longer than its leader keeps records, a new one, and one whose snapshots are damaged have no
record of what was accepted before their first one. A set as of an offset and the records from there on are all there is
to know, wherever floors stood meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog._native.batch import crc32c
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log import DiskError, LogOffline
from fleetlog.brokers.log.dedup import note
from fleetlog.brokers.log.positions import PositionSets, encode_positions, load_positions, split_positions
from fleetlog.brokers.log.producers.snapshots import (
    DamagedSnapshot,
    behind_entries,
    decode_snapshot,
    snapshot_offsets,
    snapshot_path,
)
from fleetlog.brokers.log.replay import NO_END, sound_batches
from fleetlog.brokers.log.state import LogState
from fleetlog.wire import messages
from fleetlog.wire.compression import CodecError
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.peers.calls import PeersPort
    from fleetlog.brokers.replication.fetch_plan import LackingReplica
    from fleetlog.brokers.replication.partition import Partition

logger = logging.getLogger(__name__)


class AcceptedPositions(NamedTuple):
    """What was accepted below ``offset``, as a snapshot has it."""

    offset: int
    body: bytes


def accepted_as_of(log: LogState, offset: int, now_ms: int) -> Generator[None, None, AcceptedPositions | None]:
    """What the log had accepted before ``offset``, or its start if that is higher; never above the high watermark.

    The newest snapshot there and the records behind it say so; where none is sound, or a record is damaged, the lowest
    snapshot above it tells more than was asked, all of it committed, and what this log knows does if all of that is.
    Yields between two batches. None: not to be told now, because there is none of these, or the log was cut meanwhile.
    ``now_ms`` stands for the time of what is replayed. Raises DiskError, LogOffline.
    """
    known = log.producers.positions
    if known is None or not known.known:
        return None
    target = min(max(offset, log.log_start_offset), log.high_watermark)
    at, body = _snapshot_for(log, target)
    if body is None and log.segments.first.base_offset:
        return None
    if body is None or at < target:
        try:
            return (yield from _replayed(log, at, body, target, now_ms))
        except (CorruptBatch, CodecError) as wrong:
            logger.error("%s: %s: what was accepted is told as of a later offset", log.directory, wrong)
        at, body = _snapshot_above(log, target)
    if body is not None:
        return AcceptedPositions(at, bytes(body))
    return _of(known, log.high_watermark) if log.high_watermark == log.log_end_offset else None


def _of(sets: PositionSets, offset: int) -> AcceptedPositions:
    told, _ = split_positions(memoryview(encode_positions(sets)))
    return AcceptedPositions(offset, bytes(told or b""))


def _replayed(
    log: LogState, at: int, body: memoryview | None, target: int, now_ms: int
) -> Generator[None, None, AcceptedPositions | None]:
    """From what was known at ``at`` to ``target``. Raises CorruptBatch, also where half of a batch hides the rest."""
    known = log.producers.positions
    assert known is not None, "its topic drops duplicates"
    sets = known.like()
    if body is not None:
        load_positions(sets, body)
    cuts, segments = log.cuts, list(log.segments)
    ends = [*(segment.base_offset for segment in segments[1:]), NO_END]
    for segment, beyond in zip(segments, ends, strict=True):
        expected = segment.base_offset
        if beyond <= at or expected >= target:
            continue
        reached = (segment.position_of(at) or 0) if expected < at else 0
        for start, data, found in segment.chunks(reached):
            sound, reason = sound_batches(data, found, expected, beyond, checked=True)
            for place, header in sound:
                if at <= header.base_offset < target:
                    note(sets, data, place, header, now_ms)
                yield
                if log.cuts != cuts or log.offline:
                    return None
                reached, expected = start + place + header.size, header.last_offset + 1
            if reason:
                raise CorruptBatch(reason, reached)
            if expected >= target:
                break
        if reached < segment.size and expected < min(target, beyond):
            raise CorruptBatch("half a batch", reached)
    return _of(sets, target)


def _snapshot_for(log: LogState, target: int) -> tuple[int, memoryview | None]:
    """The newest sound snapshot with positions at or below ``target``, else the lowest committed one above it."""
    first = log.segments.first.base_offset
    offsets = snapshot_offsets(log.disk, log.directory)
    found = _first_sound(log, [offset for offset in reversed(offsets) if first <= offset <= target])
    if found is not None:
        return found
    return (first, None) if not first else _snapshot_above(log, target)  # the records say it all, from the first one on


def _snapshot_above(log: LogState, target: int) -> tuple[int, memoryview | None]:
    offsets = snapshot_offsets(log.disk, log.directory)
    found = _first_sound(log, [offset for offset in offsets if target < offset <= log.high_watermark])
    return (log.segments.first.base_offset, None) if found is None else found


def _first_sound(log: LogState, offsets: Iterable[int]) -> tuple[int, memoryview] | None:
    for offset in offsets:
        try:
            data = log.disk.read(snapshot_path(log.directory, offset)) or b""
            decode_snapshot(data)
            body, _ = split_positions(behind_entries(data))
        except (DamagedSnapshot, ValueError):
            continue
        if body is not None:
            return offset, body
    return None


PART_BYTES = 4 * 1024 * 1024
ASK_MS = 10_000


class ToldPart(NamedTuple):
    """A part of the positions, from the byte on that was asked for; size and checksum are those of all of them."""

    part: bytes
    size: int
    checksum: int


def own_accepted(
    partition: Partition, offset: int, position: int, now_ms: int
) -> Generator[None, None, ToldPart | ErrorCode]:
    """This leader's answer; OFFSET_NOT_AVAILABLE: ask again later."""
    try:
        accepted = yield from accepted_as_of(partition.log, offset, now_ms)
    except (LogOffline, DiskError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    if accepted is None or not partition.is_leader:
        return ErrorCode.OFFSET_NOT_AVAILABLE
    body = accepted.body
    return ToldPart(body[position : position + PART_BYTES], len(body), crc32c(body))


async def ask_accepted(
    peers: PeersPort, broker_id: int, lacking: LackingReplica, now_ms: int
) -> memoryview | ErrorCode:
    """The leader's positions, or why there are none now. Raises PeerUnavailable."""
    received = bytearray()
    size = checksum = -1
    while size != len(received):
        answer = await _ask(peers, broker_id, lacking, len(received), now_ms)
        if answer.error_code:
            return ErrorCode(answer.error_code) if answer.error_code in _CODES else ErrorCode.UNKNOWN_SERVER_ERROR
        if size >= 0 and (size, checksum) != (answer.size, answer.checksum):
            return ErrorCode.OFFSET_NOT_AVAILABLE  # the leader's log went on: from the beginning
        size, checksum = answer.size, answer.checksum
        if not answer.positions and len(received) != size:
            return ErrorCode.CORRUPT_MESSAGE
        received += answer.positions
    return memoryview(bytes(received)) if crc32c(received) == checksum else ErrorCode.CORRUPT_MESSAGE


_CODES = frozenset(map(int, ErrorCode))


async def _ask(peers: PeersPort, broker_id: int, lacking: LackingReplica, position: int, now_ms: int) -> Any:
    topic_id, index = lacking.key
    request = messages.AcceptedPositionsRequest(
        version=0, topic_id=topic_id, partition_index=index, current_leader_epoch=lacking.leader_epoch,
        offset=lacking.offset, position=position, now_ms=now_ms,
    )  # fmt: skip
    return await peers.call(broker_id, request.API_KEY, 0, request, ASK_MS)
