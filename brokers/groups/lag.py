"""How far a consumer group is behind, and whether it makes progress: by its last commits, without thresholds. Pure.

Each partition of a group has a window of its last commits, with the records that were waiting when each was seen. The
rules are Burrow's: a consumer whose lag was zero in the window is fine, however far it is behind now; one that stopped
committing, or commits the same offset with records waiting, is not.

What its members were assigned is read from the bytes that the group's leader wrote.

Source: LinkedIn's Burrow, consumer lag evaluation rules (its wiki page of that name); Kafka's
ConsumerProtocolAssignment v0 to 3, which begin alike.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


class AssignmentUnreadable(ValueError):
    """The bytes are something else."""


def assigned_counts(assignment: bytes) -> Iterator[tuple[str, int]]:
    """Topics, each with a number of its partitions; a topic may come again. Raises AssignmentUnreadable, also later."""
    try:
        (topics,) = _I32.unpack_from(assignment, 2)
        position = 6
        for _ in range(topics):
            (size,) = _I16.unpack_from(assignment, position)
            position += 2
            name = assignment[position : position + size].decode()
            (count,) = _I32.unpack_from(assignment, position + size)
            position += size + 4 + 4 * count
            if size < 0 or count < 0 or position > len(assignment):
                raise AssignmentUnreadable(f"it ends at byte {len(assignment)}, before the partitions of topic {name}")
            yield name, count
    except (struct.error, UnicodeDecodeError) as wrong:
        raise AssignmentUnreadable(str(wrong)) from wrong


WINDOW = 10
"""Commits of a partition that are judged, and ends of its log that are remembered."""
UNKNOWN = -1


class Progress(IntEnum):
    """The state of a partition or, as the worst of these, of a group; worse ones are larger."""

    OK = 0
    WARN = 1
    """It consumes, but falls behind: its lag has not shrunk from one commit of the window to the next."""
    STOP = 2
    """No commit for longer than the whole window took, with records waiting."""
    STALL = 3
    """It commits the same offset again and again, with records waiting."""
    REWIND = 4
    """It committed an offset lower than one before, and has not come back to that."""

    @property
    def group_status(self) -> str:
        """Burrow's word for a group whose worst partition this is: OK, WARN or ERR."""
        return "ERR" if self >= Progress.STOP else self.name


class SeenCommit(NamedTuple):
    """One commit of the window: its offset, its time in milliseconds, and the records behind it when it was seen."""

    offset: int
    at_ms: int
    lag: int


class LogPosition(NamedTuple):
    """What a partition's leader says of an offset: its log's ends, and the time of the first record not consumed.

    ``stable`` is the end for read_committed consumers. ``waiting_since_ms`` is -1 where no record waits.
    """

    start: int
    end: int
    stable: int
    waiting_since_ms: int = UNKNOWN


class PartitionLag(NamedTuple):
    """One partition of a group: ``seconds`` is the age of the first record not consumed, 0.0 without one."""

    committed: int
    end: int
    records: int
    seconds: float
    progress: Progress
    stable_records: int = 0
    """Records up to the last stable offset: what a read_committed consumer could have."""


def progress_of(
    commits: Sequence[SeenCommit], ends: Sequence[int], lag: int, waiting_ms: int, now_ms: int, interval_ms: int
) -> Progress:
    """A partition's state by its last commits and the last ends of its log, both oldest first.

    ``waiting_ms`` is the age of the first record not consumed. A window that is not full yet counts as long as a full
    one takes at least, ``WINDOW`` times ``interval_ms``: before that a consumer has not stopped.
    """
    if lag <= 0 or not commits:
        return Progress.OK
    full = len(commits) >= WINDOW
    span_ms = commits[-1].at_ms - commits[0].at_ms
    if not full:
        span_ms = max(span_ms, WINDOW * interval_ms)
    reached_lately = bool(ends) and commits[-1].offset >= ends[0]
    if now_ms - commits[-1].at_ms > span_ms and not reached_lately and (full or waiting_ms > span_ms):
        return Progress.STOP
    if any(one.lag == 0 for one in commits):
        return Progress.OK
    offsets = [one.offset for one in commits]
    if any(after < before for before, after in pairwise(offsets)) and offsets[-1] < max(offsets):
        return Progress.REWIND
    if not full:
        return Progress.OK
    if offsets[0] == offsets[-1]:
        return Progress.STALL
    if all(after.lag >= before.lag for before, after in pairwise(commits)):
        return Progress.WARN
    return Progress.OK


class PartitionWindow:
    """The last commits of a group to one partition, and the last ends of the partition's log."""

    __slots__ = ("_commits", "_ends", "_sequence", "seen")

    def __init__(self) -> None:
        self._commits: deque[SeenCommit] = deque(maxlen=WINDOW)
        self._ends: deque[int] = deque(maxlen=WINDOW)
        self._sequence = UNKNOWN
        self.seen = 0
        """New commits that it has seen."""

    def look(
        self, sequence: int, offset: int, at_ms: int, position: LogPosition, now_ms: int, interval_ms: int
    ) -> PartitionLag:
        """Judge, with what was committed last (``sequence`` tells commits apart) and where the log ends now."""
        lag = max(0, position.end - max(offset, position.start))
        if sequence != self._sequence:
            self._sequence = sequence
            self.seen += 1
            self._commits.append(SeenCommit(offset, at_ms, lag))
        self._ends.append(position.end)
        waiting_ms = 0
        if lag and position.waiting_since_ms >= 0:
            waiting_ms = max(0, now_ms - position.waiting_since_ms)
        progress = progress_of(self._commits, self._ends, lag, waiting_ms, now_ms, interval_ms)
        stable = max(0, position.stable - max(offset, position.start))
        return PartitionLag(offset, position.end, lag, waiting_ms / 1000, progress, stable)


def worst(states: Iterable[Progress]) -> Progress:
    """The state of a group with such partitions."""
    return max(states, default=Progress.OK)
