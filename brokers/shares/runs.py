"""Runs of offsets with one history, which tile a share partition's window. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from fleetlog.brokers.shares.state import ENDS, RecordState

_FIRST = attrgetter("first")


class Doom(Enum):
    """Why a record becomes a dead letter."""

    REJECTED = "rejected"
    TOO_MANY_DELIVERIES = "too-many-deliveries"
    AFTER_POISON = "after-poison"
    """It is behind another dead letter of its key."""


@dataclass(slots=True)
class WindowRun:
    """Offsets ``first`` to ``last`` (inclusive) with one history.

    ``until_ms``: when the lock of its member ends; of an available one, until when it waits, 0 if it does not.
    ``becomes``: the state that its member has acknowledged it to, which is not persisted yet; ``writing``: it is in
    the write that is under way. ``dirty``: its state is so, and is not in a write yet. ``doom``: its end takes a dead
    letter; its state is ARCHIVING if its member has it no more. ``delayed``: it waits for the times that its records
    say.
    """

    first: int
    last: int
    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    member: str | None = None
    until_ms: int = 0
    becomes: RecordState | None = None
    writing: bool = False
    dirty: bool = False
    doom: Doom | None = None
    delayed: bool = False

    @property
    def size(self) -> int:
        """Its offsets."""
        return self.last - self.first + 1

    @property
    def free(self) -> bool:
        """Whether it can be given out now."""
        return self.state is RecordState.AVAILABLE and not self.until_ms and not self.delayed

    @property
    def waits(self) -> bool:
        """Whether it is to be given out later."""
        return self.delayed or (self.state is RecordState.AVAILABLE and self.until_ms > 0)

    @property
    def finished(self) -> bool:
        """Whether its records have reached their end, as far as this leader knows."""
        return self.state in ENDS

    @property
    def told(self) -> str:
        """What it is waited for, in a word or two."""
        if self.doom is not None:
            return "dead letter"
        if self.waits:
            return "waits"
        return "with a member" if self.state is RecordState.ACQUIRED else "free"

    def alike(self, other: WindowRun) -> bool:
        """Whether they differ in their offsets alone."""
        return (
            self.state is other.state
            and self.count == other.count
            and self.member == other.member
            and self.until_ms == other.until_ms
            and self.becomes is other.becomes
            and self.writing == other.writing
            and self.dirty == other.dirty
            and self.doom is other.doom
            and self.delayed == other.delayed
        )


class WindowRuns(list[WindowRun]):
    """In the order of their offsets, without gaps."""

    def at(self, offset: int) -> WindowRun:
        """The run that has it, which is in one."""
        return self[bisect_right(self, offset, key=_FIRST) - 1]

    def between(self, first: int, last: int) -> Iterator[WindowRun]:
        """Those that have some of these offsets."""
        for index in range(max(0, bisect_right(self, first, key=_FIRST) - 1), len(self)):
            run = self[index]
            if run.first > last:
                return
            if run.last >= first:
                yield run

    def cut(self, first: int, last: int) -> WindowRun:
        """The run of exactly these offsets, which are in one run."""
        index = bisect_right(self, first, key=_FIRST) - 1
        run = self[index]
        if run.first < first:
            self.insert(index, _copy(run, run.first, first - 1))
            run.first = first
            index += 1
        if run.last > last:
            self.insert(index + 1, _copy(run, last + 1, run.last))
            run.last = last
        return run

    def join(self) -> None:
        """Make one of neighbours that are alike."""
        joined: list[WindowRun] = []
        for run in self:
            if joined and joined[-1].alike(run):
                joined[-1].last = run.last
            else:
                joined.append(run)
        self[:] = joined


def _copy(run: WindowRun, first: int, last: int) -> WindowRun:
    return WindowRun(
        first, last, run.state, run.count, run.member, run.until_ms, run.becomes, run.writing, run.dirty, run.doom,
        run.delayed,
    )  # fmt: skip
