"""What a leader tells a follower of the positions that its topic has accepted (AcceptedPositions, between brokers).

It may be many megabytes, so it comes in parts, each asked for by itself; a checksum shows that they belong together.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fleetlog._native.batch import crc32c
from fleetlog.brokers.log import DiskError, LogOffline
from fleetlog.brokers.log.accepted_positions import accepted_as_of
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.peers.calls import PeersPort
    from fleetlog.brokers.replication.partition import Partition

PART_BYTES = 4 * 1024 * 1024
ASK_MS = 10_000


class Lacking(Protocol):
    """A replica that lacks what was accepted before ``offset``."""

    @property
    def key(self) -> tuple[uuid.UUID, int]:
        """Topic id and index."""
        ...

    @property
    def leader_epoch(self) -> int:
        """In which it follows."""
        ...

    @property
    def offset(self) -> int:
        """Where its log begins."""
        ...


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


async def ask_accepted(peers: PeersPort, broker_id: int, lacking: Lacking, now_ms: int) -> memoryview | ErrorCode:
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


async def _ask(peers: PeersPort, broker_id: int, lacking: Lacking, position: int, now_ms: int) -> Any:
    topic_id, index = lacking.key
    request = messages.AcceptedPositionsRequest(
        version=0, topic_id=topic_id, partition_index=index, current_leader_epoch=lacking.leader_epoch,
        offset=lacking.offset, position=position, now_ms=now_ms,
    )  # fmt: skip
    return await peers.call(broker_id, request.API_KEY, 0, request, ASK_MS)
