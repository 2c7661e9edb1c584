"""The window of a share partition at its leader: who has which record, until when, and what is still to be persisted.

Everything below ``start`` is finished, nothing from ``end`` on was given out yet; runs of offsets tile what is between.
A record is AVAILABLE, ACQUIRED by a member until its lock ends, or finished: ACKNOWLEDGED or ARCHIVED. Times are
arguments, in ms of a monotonic clock; nothing here does I/O.

What members acknowledge counts once it is persisted, and only then is it answered: :meth:`Window.acknowledge` notes
it, :meth:`Window.begin_write` says what to persist, :meth:`Window.end_write` makes it so, or takes it back. What ends
by time alone (a lock, a member) is so at once, and is persisted with the next write. One write is under way at a time.

Unlike Kafka's, the limit counts records that are not finished; the span between start and end, and the runs, have
bounds of their own, so that one slow record does not stop the others (:attr:`Window.holds_back` names it).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from fleetlog.brokers.shares.state import ENDS, MAX_DELIVERIES, NO_OFFSET, RecordState, ShareState, StateBatch
from fleetlog.wire.errors import ErrorCode

MAX_SPAN = 100_000
"""The most offsets between start and end."""
MAX_TYPES = 20_000
"""The most types that are said of a partition's records at a time: nobody has more records than half of it."""
MAX_RUNS = 8_192
"""The most runs of a window: some 200 bytes of memory each, and 20 of its snapshot."""


class AckType(IntEnum):
    """What a member says of a record that it has."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AckBatch(NamedTuple):
    """Acknowledges offsets ``first`` to ``last`` (inclusive): all by one type, or each by its own."""

    first: int
    last: int
    types: Sequence[int]


class Acquired(NamedTuple):
    """Offsets ``first`` to ``last`` (inclusive) that a member got, and how often they were delivered with it."""

    first: int
    last: int
    deliveries: int


class ShareLimits(NamedTuple):
    """Of a group: records of a partition that are not finished, deliveries of a record, and a lock's length."""

    records: int = 2_000
    deliveries: int = 5
    lock_ms: int = 30_000


class StateWrite(NamedTuple):
    """What is to be persisted, as in :class:`~fleetlog.brokers.shares.coordinator.ShareWrite`."""

    start: int
    complete: int
    batches: tuple[StateBatch, ...]


class WrongAcknowledgement(Exception):
    """An acknowledgement that cannot be: its error code and text. Nothing of its partition's was taken over."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


@dataclass(slots=True)
class WindowRun:
    """Offsets ``first`` to ``last`` (inclusive) with one history.

    ``becomes``: the state that its member has acknowledged it to, which is not persisted yet; ``writing``: it is in
    the write that is under way. ``dirty``: its state is so, and is not in a write yet.
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

    @property
    def size(self) -> int:
        """Its offsets."""
        return self.last - self.first + 1

    @property
    def finished(self) -> bool:
        """Whether its records have reached their end, as far as this leader knows."""
        return self.state in ENDS

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
        )


def checked(batches: Iterable[AckBatch]) -> list[tuple[int, int, AckType]]:
    """First and last offset and type, in order, equal neighbours of a batch joined. Raises WrongAcknowledgement."""
    pieces: list[tuple[int, int, AckType]] = []
    before, named = -1, 0
    for first, last, types in batches:
        if not before < first <= last:
            raise WrongAcknowledgement(ErrorCode.INVALID_REQUEST, f"Offsets {first} to {last} after {before}.")
        named += len(types)
        if len(types) not in (1, last - first + 1) or named > MAX_TYPES:
            text = f"{len(types)} types for offsets {first} to {last}."
            raise WrongAcknowledgement(ErrorCode.INVALID_REQUEST, text)
        if any(not AckType.GAP <= kind <= AckType.RENEW for kind in types):
            raise WrongAcknowledgement(ErrorCode.INVALID_REQUEST, "A type of acknowledgement that is unknown.")
        before = last
        if len(types) == 1:
            pieces.append((first, last, AckType(types[0])))
            continue
        for offset, kind in enumerate(types, first):
            if offset > first and pieces[-1][2] == kind:
                pieces[-1] = (pieces[-1][0], offset, pieces[-1][2])
            else:
                pieces.append((offset, offset, AckType(kind)))
    return pieces


class Window:
    """One share partition, as its leader has it since it read ``state``, whose ``start`` is known.

    ``fresh``: that start was chosen just now, and is to be persisted. Raises ValueError for a state that cannot be.
    """

    def __init__(self, state: ShareState, limits: ShareLimits, *, fresh: bool = False) -> None:
        self.limits = limits
        self.state_epoch = state.state_epoch
        self.start = state.start
        """Everything below is finished, and that is persisted."""
        self._runs: list[WindowRun] = []
        self._write_start: int | None = None
        """The start that the write under way persists; None if there is none under way."""
        self._persisted_start = NO_OFFSET if fresh else state.start
        self._room = 0
        end = state.start
        for first, last, persisted, count in state.batches:
            if first < end or last < first:
                raise ValueError(f"the persisted batch {first} to {last} of a share partition is below {end}")
            if first > end:  # what was in the window and in no write: as if it was never given out
                self._runs.append(WindowRun(end, first - 1))
            self._runs.append(WindowRun(first, last, persisted, count))
            end = last + 1
        self.end = end
        """The first offset that was not given out."""
        self._soonest_ms: int | None = None

    # --- reading ------------------------------------------------------------------------------------------------

    @property
    def runs(self) -> Sequence[WindowRun]:
        """What is between start and end, in order."""
        return self._runs

    @property
    def unfinished(self) -> int:
        """Records between start and end that have not reached their end."""
        return sum(run.size for run in self._runs if not run.finished)

    @property
    def next_offset(self) -> int:
        """Where to read for the next acquisition: the first available record, else the end."""
        return next((run.first for run in self._runs if run.state is RecordState.AVAILABLE), self.end)

    @property
    def room(self) -> int:
        """How many records from the end on may be given out."""
        if len(self._runs) >= MAX_RUNS:
            return 0
        return max(0, min(self.limits.records - self.unfinished, self.start + MAX_SPAN - self.end))

    @property
    def may_acquire(self) -> bool:
        """Whether an acquisition could give anything, if the log has it."""
        return self.room > 0 or any(run.state is RecordState.AVAILABLE for run in self._runs)

    @property
    def holds_back(self) -> WindowRun | None:
        """The first run that is not finished, if it is what keeps a full window from moving on."""
        first = next((run for run in self._runs if not run.finished), None)
        return first if self.room == 0 else None

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next lock ends, at the earliest; None if there are no locks."""
        return self._soonest_ms

    @property
    def unsaved(self) -> bool:
        """Whether a write could begin."""
        if self._write_start is not None:
            return False
        return self._persisted_start < self._finished_until() or any(
            r.dirty or r.becomes is not None for r in self._runs
        )

    @property
    def members(self) -> set[str]:
        """Those who have records."""
        return {run.member for run in self._runs if run.member is not None}

    # --- acquiring ----------------------------------------------------------------------------------------------

    def acquire(
        self, member: str, read: tuple[int, int], data: Sequence[tuple[int, int]], most: int, now_ms: int, *,
        whole_batches: bool = True,
    ) -> list[Acquired]:  # fmt: skip
        """Give the member available records of what was read, at most ``most``.

        ``read``: first and last offset that were looked at; ``data``: of those, the batches that have records for this
        group (first and last offset, in order). What lies between them is nobody's: it is archived. With
        ``whole_batches`` the batch that passes ``most`` is given as a whole.
        """
        first, last = max(read[0], self.start), read[1]
        left, got, until_ms = most, list[Acquired](), now_ms + self.limits.lock_ms
        at, self._room = first, self.room
        for begin, end in data:
            begin, end = max(begin, first), min(end, last)
            if end < begin:
                continue
            if left <= 0:
                last = begin - 1
                break
            self._archive_gap(at, begin - 1)
            taken, at = self._take(member, begin, end, end - begin + 1 if whole_batches else left, until_ms, got)
            left -= taken
            if at <= end:
                last = at - 1
                break
        self._archive_gap(at, last)
        self._tidy()
        return got

    def _take(
        self, member: str, first: int, last: int, most: int, until_ms: int, got: list[Acquired]
    ) -> tuple[int, int]:
        """Acquire what is available of a batch; how many were taken, and the first offset that was not looked at."""
        taken, at = 0, first
        while at <= last:
            if at >= self.end:
                size = min(last - at + 1, most - taken, self._room)
                if at > self.end or size <= 0:
                    break
                run = WindowRun(at, at + size - 1)
                self._runs.append(run)
                self.end = at + size
                self._room -= size
            else:
                run = self._run_at(at)
                if run.state is not RecordState.AVAILABLE:
                    at = run.last + 1
                    continue
                size = min(last - at + 1, run.last - at + 1, most - taken)
                if size <= 0:
                    break
                run = self._cut(at, at + size - 1)
            run.state, run.member, run.until_ms = RecordState.ACQUIRED, member, until_ms
            run.count = min(run.count + 1, MAX_DELIVERIES)
            run.writing = run.dirty = False  # a write that is under way persists what it was before
            self._soonest_ms = until_ms if self._soonest_ms is None else min(self._soonest_ms, until_ms)
            if got and (got[-1].last + 1, got[-1].deliveries) == (run.first, run.count):
                got[-1] = got[-1]._replace(last=run.last)
            else:
                got.append(Acquired(run.first, run.last, run.count))
            taken += run.size
            at = run.last + 1
            if len(self._runs) > 1 and self._runs[-1] is run and self._runs[-2].alike(run):
                self._runs.pop()
                self._runs[-1].last = run.last
        return taken, min(at, last + 1)

    def _archive_gap(self, first: int, last: int) -> None:
        """There are no records for this group from ``first`` to ``last``: archive what is available of it."""
        while first <= last:
            if first >= self.end:
                size = min(last - first + 1, self.start + MAX_SPAN - self.end)
                if first > self.end or size <= 0 or len(self._runs) >= MAX_RUNS:
                    return
                self._room = min(self._room, self.start + MAX_SPAN - self.end - size)
                self._runs.append(WindowRun(first, first + size - 1, RecordState.ARCHIVED, dirty=True))
                self.end = first + size
                return
            run = self._run_at(first)
            if run.state is RecordState.AVAILABLE:
                run = self._cut(first, min(last, run.last))
                run.state, run.dirty = RecordState.ARCHIVED, True
            first = run.last + 1

    # --- acknowledging ------------------------------------------------------------------------------------------

    def acknowledge(self, member: str, pieces: Sequence[tuple[int, int, AckType]], now_ms: int) -> bool:
        """Note what the member says of its records; whether anything has to be persisted before that is answered.

        All or nothing: raises WrongAcknowledgement if it does not have one of them. Offsets below the start are
        finished whatever is said of them.
        """
        for first, last, _ in pieces:
            if last >= self.end:
                raise WrongAcknowledgement(ErrorCode.INVALID_RECORD_STATE, f"Nobody has offset {last} yet.")
            for run in self._between(max(first, self.start), last):
                mine = run.state is RecordState.ACQUIRED and run.member == member
                if not mine or run.becomes is not None or run.until_ms <= now_ms:
                    text = f"The member has no lock on offsets {run.first} to {run.last}."
                    raise WrongAcknowledgement(ErrorCode.INVALID_RECORD_STATE, text)
        noted = False
        for first, last, kind in pieces:
            for run in list(self._between(max(first, self.start), last)):
                run = self._cut(max(run.first, first), min(run.last, last))
                if kind is AckType.RENEW:
                    run.until_ms = now_ms + self.limits.lock_ms
                else:
                    run.becomes = self._after(kind, run)
                    noted = True
        return noted

    def _after(self, kind: AckType, run: WindowRun) -> RecordState:
        match kind:
            case AckType.ACCEPT:
                return RecordState.ACKNOWLEDGED
            case AckType.RELEASE:
                return self._freed(run)
            case _:
                return RecordState.ARCHIVED

    def _freed(self, run: WindowRun) -> RecordState:
        """What becomes of a record that its member gives up: it is not delivered more often than the limit says."""
        return RecordState.ARCHIVED if run.count >= self.limits.deliveries else RecordState.AVAILABLE

    def expire(self, now_ms: int) -> bool:
        """End the locks whose time is over; whether there were any. What is being persisted decides for itself."""
        if self._soonest_ms is None or now_ms < self._soonest_ms:
            return False
        ended = False
        for run in self._runs:
            if run.state is RecordState.ACQUIRED and run.becomes is None and run.until_ms <= now_ms:
                self._free(run)
                ended = True
        self._tidy()
        return ended

    def release(self, member: str) -> bool:
        """The member is gone: free what it has; whether there was anything. What it has acknowledged counts."""
        freed = False
        for run in self._runs:
            if run.member == member and run.becomes is None:
                self._free(run)
                freed = True
        self._tidy()
        return freed

    def _free(self, run: WindowRun) -> None:
        run.state, run.member, run.until_ms, run.dirty = self._freed(run), None, 0, True

    def log_starts(self, offset: int) -> bool:
        """The log has nothing below this offset any more; whether that finishes records."""
        if offset <= self.start:
            return False
        if offset > self.end:
            self._runs.append(WindowRun(self.end, offset - 1))
            self.end = offset
        changed = False
        for run in list(self._between(self.start, offset - 1)):
            if not run.finished and run.becomes is None:
                run = self._cut(run.first, min(run.last, offset - 1))
                run.state, run.member, run.until_ms, run.dirty = RecordState.ARCHIVED, None, 0, True
                changed = True
        self._tidy()
        return changed

    # --- persisting ---------------------------------------------------------------------------------------------

    def begin_write(self) -> StateWrite | None:
        """What is to be persisted now; None while a write is under way, or if there is nothing."""
        if self._write_start is not None:
            return None
        start = self._finished_until()
        changed = [run for run in self._runs if run.becomes is not None or run.dirty]
        if not changed and start == self._persisted_start:
            return None
        complete = 0
        batches: list[StateBatch] = []
        for run in self._runs:
            state = run.state if run.becomes is None else run.becomes
            if run.last >= start and state in ENDS:
                complete += run.last - max(run.first, start) + 1
        for run in changed:
            state = run.state if run.becomes is None else run.becomes
            run.writing, run.dirty = True, False
            if run.last >= start and state is not RecordState.ACQUIRED:
                batches.append(StateBatch(max(run.first, start), run.last, state, run.count))
        self._write_start = start
        return StateWrite(start, complete, tuple(batches))

    def end_write(self, persisted: bool, now_ms: int) -> None:
        """The write under way has been persisted, or has failed: then acknowledgements are as if never said."""
        start = self._write_start
        assert start is not None, "a write was begun"
        self._write_start = None
        for run in self._runs:
            if not run.writing:
                continue
            run.writing = False
            if run.becomes is None:
                run.dirty = run.dirty or (not persisted and run.state is not RecordState.ACQUIRED)
            elif persisted:
                run.state, run.becomes, run.member, run.until_ms = run.becomes, None, None, 0
            else:
                run.becomes = None  # its lock goes on; a late answer of the coordinator's does no harm
        if persisted:
            self._persisted_start = start
            self._move_start(start)
        self._soonest_ms = min((run.until_ms for run in self._runs if run.member is not None), default=None)
        self.expire(now_ms)
        self._tidy()

    def _finished_until(self) -> int:
        """The start as it would be if everything that is known was persisted."""
        at = self.start
        for run in self._runs:
            if (run.state if run.becomes is None else run.becomes) not in ENDS:
                break
            at = run.last + 1
        return at

    def _move_start(self, start: int) -> None:
        gone = 0
        while gone < len(self._runs) and self._runs[gone].last < start:
            gone += 1
        del self._runs[:gone]
        if self._runs and self._runs[0].first < start:
            self._runs[0].first = start
        self.start = start
        self.end = max(self.end, start)

    # --- runs ---------------------------------------------------------------------------------------------------

    def _index(self, offset: int) -> int:
        return bisect_right(self._runs, offset, key=_first) - 1

    def _run_at(self, offset: int) -> WindowRun:
        return self._runs[self._index(offset)]

    def _between(self, first: int, last: int) -> Iterator[WindowRun]:
        """The runs that have some of these offsets."""
        for index in range(max(0, self._index(first)), len(self._runs)):
            run = self._runs[index]
            if run.first > last:
                return
            if run.last >= first:
                yield run

    def _cut(self, first: int, last: int) -> WindowRun:
        """The run of exactly these offsets, which are in one run."""
        index = self._index(first)
        run = self._runs[index]
        if run.first < first:
            self._runs.insert(index, _copy(run, run.first, first - 1))
            run.first = first
            index += 1
        if run.last > last:
            self._runs.insert(index + 1, _copy(run, last + 1, run.last))
            run.last = last
        return run

    def _tidy(self) -> None:
        """Join neighbours that are alike, and look anew when the next lock ends."""
        joined: list[WindowRun] = []
        for run in self._runs:
            if joined and joined[-1].alike(run):
                joined[-1].last = run.last
            else:
                joined.append(run)
        self._runs = joined
        locks = (run.until_ms for run in joined if run.member is not None and run.becomes is None)
        self._soonest_ms = min(locks, default=None)


def _first(run: WindowRun) -> int:
    return run.first


def _copy(run: WindowRun, first: int, last: int) -> WindowRun:
    return replace(run, first=first, last=last)
