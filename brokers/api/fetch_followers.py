"""What a follower's fetch says of its logs: its positions, which move the leader's high watermarks.

First of all, what it no longer reads here, or not in our epoch: only then the fetch proves that at the time of the
answer it acknowledges, the follower followed no other leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetlog.brokers.api.fetch_answers import slices_of
from fleetlog.brokers.log import OffsetOutOfRange
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import FetchOutcome

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from fleetlog.brokers.api.fetch_reads import PartitionReader
    from fleetlog.brokers.api.fetch_sessions import FetchSession, FollowerSession, SessionPart
    from fleetlog.brokers.replication.partition import Partition

Current = tuple["SessionPart", "Partition"]


def count_positions(session: FetchSession, replica: FollowerSession, reader: PartitionReader) -> None:
    """Count the positions of what the session has to look at."""
    now_ms = reader.context.services.clock.mono_ms()
    current = _sort_out(reader, replica, session.dirty)
    _prove(session, replica, now_ms)
    _count(reader, replica, current, now_ms)


def count_in_slices(
    session: FetchSession, replica: FollowerSession, reader: PartitionReader
) -> Generator[None, None, None]:
    """What was sorted out may have changed when its turn comes to be counted: then it is not counted.

    Nor is anything once the session has ended, for the follower has said since where it is.
    """
    current: list[Current] = []
    now_ms = reader.context.services.clock.mono_ms()
    for some in slices_of(list(session.dirty)):
        current += _sort_out(reader, replica, some)
        yield
        if session.closed:
            return
    _prove(session, replica, now_ms)
    for pairs in slices_of(current):
        still = []
        for part, partition in pairs:
            if part.partition is not partition or partition.deleted:
                continue
            if reader.refusal(partition, part.asked) is ErrorCode.NONE:
                still.append((part, partition))
            else:
                partition.followers.forget_position(replica)
        _count(reader, replica, still, now_ms)
        yield
        if session.closed:
            return


def _sort_out(reader: PartitionReader, replica: FollowerSession, parts: Iterable[SessionPart]) -> list[Current]:
    """Which positions count."""
    current: list[Current] = []
    for part in parts:
        if part.counted:
            continue
        part.error = ErrorCode.NONE
        partition = reader.partition_of(part)
        if isinstance(partition, FetchOutcome):
            continue
        if reader.refusal(partition, part.asked) is ErrorCode.NONE:
            current.append((part, partition))
        else:
            partition.followers.forget_position(replica)
    return current


def _prove(session: FetchSession, replica: FollowerSession, now_ms: int) -> None:
    if session.proof_ms is not None:
        replica.fetched(now_ms, session.proof_ms)


def _count(reader: PartitionReader, replica: FollowerSession, current: Sequence[Current], now_ms: int) -> None:
    for part, partition in current:
        asked = part.asked
        try:
            diverging = reader.diverging(partition, asked)
        except OffsetOutOfRange:
            continue
        if diverging is None and asked.fetch_offset >= partition.log.log_start_offset:
            part.error = partition.follower_fetched(replica, asked.fetch_offset, asked.log_start_offset, now_ms)
            part.counted = part.error is ErrorCode.NONE
