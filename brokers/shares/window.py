"""The window of a share partition at its leader: who has which record, until when, and what is still to be persisted.

Everything below ``start`` is finished, nothing from ``end`` on was given out yet; runs of offsets tile what is between.
A record is AVAILABLE, ACQUIRED by a member until its lock ends, or finished: ACKNOWLEDGED or ARCHIVED. Times are
arguments, in ms of a monotonic clock; nothing here does I/O.

What members acknowledge counts once it is persisted, and only then is it answered: :meth:`Window.acknowledge` notes
it, :meth:`Window.begin_write` says what to persist, :meth:`Window.end_write` makes it so, or takes it back. What ends
by time alone (a lock, a member) is so at once, and is persisted with the next write. One write is under way at a time.

With dead letters (KIP-1191) a record that is rejected or was delivered too often is finished by a letter: it is
DOOMED until :meth:`Window.begin_burial` takes it into a write of its own, which goes with the letters. Until then it
counts as not finished, and nobody gets it. A rejection that could not be buried was never said; what was delivered too
often stays doomed.

Unlike Kafka's, the limit counts records that are not finished; the span between start and end, and the runs, have
bounds of their own, so that one slow record does not stop the others (:attr:`Window.holds_back` names it). What is
given back may have to wait before it is tried again, ``backoff_ms`` the first time and twice as long each time after
it: then it counts for none of these. :attr:`Window.ordered` by key, no record overtakes another one of its key.

A record may say itself from when on it may be given out: until then it waits, too, where it is. Times that records say
are of the wall clock. The window knows ``times_kept`` of them at most; when the soonest of those that it does not know
may have come, the records that wait are read again, some by each acquisition. A new leader finds them all so: what
waits was never persisted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import NamedTuple

from fleetlog.brokers.shares.acks import AckType, WrongAcknowledgement
from fleetlog.brokers.shares.keys import MAX_KEYED, KeyOrder
from fleetlog.brokers.shares.runs import Doom, WindowRun, WindowRuns
from fleetlog.brokers.shares.state import ENDS, MAX_DELIVERIES, NO_OFFSET, POISONED, RecordState, ShareState, StateBatch
from fleetlog.brokers.shares.times import CROWDED_MS, MAX_TIMES, NO_TIMES, KnownTimes, RecordTimes, in_runs, piece_at
from fleetlog.wire.errors import ErrorCode

MAX_SPAN = 100_000
"""The most offsets from the first record that is neither finished nor waits to the end."""
MAX_REACH = 1 << 30
"""The most offsets between start and end: how many of them are finished is persisted as an int32."""
SET_BACK_MS = 1_000  # by so much or less a wall clock is put right
MAX_SUSPECTS = 64
"""The most records together that have been delivered often."""
MAX_RUNS = 8_192
"""The most runs of a window: some 200 bytes of memory each, and 20 of its snapshot."""
CROWD = 64  # beyond twice as many runs as there were, and these, neighbours that are alike are joined again


class Noted(IntFlag):
    """What an acknowledgement waits for; 0 for nothing."""

    NOTHING = 0
    WRITE = 1
    BURIAL = 2


class Acquired(NamedTuple):
    """Offsets ``first`` to ``last`` (inclusive) that a member got, and how often they were delivered with it."""

    first: int
    last: int
    deliveries: int


class ShareLimits(NamedTuple):
    """Of a group: records of a partition that are not finished, deliveries of a record, a lock's length, and waits."""

    records: int = 2_000
    deliveries: int = 5
    lock_ms: int = 30_000
    backoff_ms: int = 0
    """Before the second delivery."""
    backoff_max_ms: int = 0
    """Before any."""
    delay_max_ms: int = 0
    """As long a record that was never given out may wait for the time that it says itself; 0 if it does not wait."""
    times_kept: int = MAX_TIMES
    poisons: bool = False
    """By key: what is known to be behind a record that becomes a dead letter becomes one, too."""


class HeldBack(NamedTuple):
    """A record that keeps a full window from moving on, in which state it is, and by key which one it has."""

    offset: int
    state: str
    deliveries: int
    member: str | None
    key: bytes | None = None


class StateWrite(NamedTuple):
    """What is to be persisted, as in :class:`~fleetlog.brokers.shares.coordinator.ShareWrite`."""

    start: int
    complete: int
    batches: tuple[StateBatch, ...]


class Doomed(NamedTuple):
    """Offsets ``first`` to ``last`` (inclusive) that are to become dead letters, and how often they were delivered."""

    first: int
    last: int
    deliveries: int
    why: Doom


@dataclass(slots=True)
class _Giving:
    """One acquisition: whose, until when, what it got, and whether what it got last goes to the member alone."""

    member: str
    until_ms: int
    waiting: Sequence[tuple[int, int]] = ()
    """First and last offsets, in order, of what was read, lies beyond the end, and has to wait for its time."""
    times: Mapping[int, int] = field(default_factory=dict)
    """When that comes."""
    got: list[Acquired] = field(default_factory=list)
    over: bool = False


class Window:
    """One share partition, as its leader has it since it read ``state``, whose ``start`` is known.

    ``fresh``: that start was chosen just now, and is to be persisted. ``predecessors_until_ms``: so long members may
    have locks that this leader does not know. Raises ValueError for a state that cannot be.
    """

    def __init__(
        self, state: ShareState, limits: ShareLimits, *, fresh: bool = False, predecessors_until_ms: int = 0
    ) -> None:
        self._limits = limits
        self.buries = False
        """Whether records become dead letters."""
        self.state_epoch = state.state_epoch
        self.start = state.start
        """Everything below is finished, and that is persisted."""
        self._runs = WindowRuns()
        self._crowded = CROWD
        self._burying = False
        self._write_start: int | None = None
        """The start that the write under way persists; None if there is none under way."""
        self._persisted_start = NO_OFFSET if fresh else state.start
        self._predecessors_until_ms = predecessors_until_ms
        self._room = 0
        self._locks_left = 0
        self._end_at_most = 0
        self._keys: KeyOrder | None = None
        self._times = KnownTimes()
        self._again: int | None = None
        """From here to ``_again_until`` the times of what waits are to be read again; None if they are not."""
        self._again_until = self._turn = self._wall_ms = 0
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
    def limits(self) -> ShareLimits:
        """Of the group; once records may not wait for their time any more, those that do wait no longer."""
        return self._limits

    @limits.setter
    def limits(self, limits: ShareLimits) -> None:
        might_wait, self._limits = self._limits.delay_max_ms > 0, limits
        if limits.delay_max_ms or not might_wait:
            return
        self._times, self._again = KnownTimes(), None
        for run in self._runs:
            if run.delayed:
                run.delayed = False
                self._is_back(run)
        self._tidy()

    @property
    def runs(self) -> Sequence[WindowRun]:
        """What is between start and end, in order."""
        return self._runs

    @property
    def unfinished(self) -> int:
        """Records between start and end that have not reached their end."""
        return sum(run.size for run in self._runs if not run.finished)

    @property
    def locked(self) -> int:
        """Records that members have."""
        acquired = RecordState.ACQUIRED
        return sum([run.last - run.first + 1 for run in self._runs if run.state is acquired])

    @property
    def waiting(self) -> int:
        """Records that are to be given out later."""
        return sum(run.size for run in self._runs if run.waits)

    @property
    def delayed(self) -> int:
        """Records that wait for the time that they say themselves."""
        return sum(run.size for run in self._runs if run.delayed)

    @property
    def next_offset(self) -> int:
        """Where to read for the next acquisition: the first record that may be given out, else what is not known.

        Every other time what is to be read again.
        """
        again = self.read_again if self._turn % 2 else None
        if again is not None:
            return again
        if self._keys is not None:
            ready = self._keys.next()
            return self._keys.end if ready is None else ready
        return next((run.first for run in self._runs if run.free), self.end)

    @property
    def read_again(self) -> int | None:
        """The first record that waits for a time that is to be read again; None if there is none."""
        if self._again is None:
            return None
        waits = (run for run in self._runs.between(self._again, self._again_until) if run.delayed)
        return next((max(run.first, self._again) for run in waits), None)

    @property
    def room(self) -> int:
        """How many records from the end on may be given out, or, with keys, get into the window."""
        if len(self._runs) >= MAX_RUNS:
            return 0
        span = self._span_end - self.end
        if self._keys is not None:
            return max(0, min(MAX_KEYED - len(self._keys), span))
        return max(0, min(self.limits.records - self.unfinished + self.waiting, span))

    @property
    def _span_end(self) -> int:
        """The window ends here at the latest, where that may matter: records that wait do not count."""
        if self.start + MAX_SPAN - self.end >= max(MAX_KEYED, self.limits.records):
            return self.start + MAX_SPAN
        held, waiting = self.end, 0
        for run in self._runs:
            if held < self.end:
                waiting += run.size if run.waits else 0
            elif not run.finished and not run.waits:
                held = run.first
        return min(held + MAX_SPAN + waiting, self.start + MAX_REACH)

    @property
    def may_acquire(self) -> bool:
        """Whether an acquisition could give anything, if the log has it."""
        if self._keys is not None:
            if self._predecessors_until_ms or self._persisted_start == NO_OFFSET:
                return False  # a start that is persisted tells the next leader that there may be locks
            ready = self._keys.end < self.end or self._keys.next() is not None
        else:
            ready = any(run.free for run in self._runs)
        ready = ready or self.room > 0 or self.read_again is not None
        return ready and self.locked < self.limits.records

    @property
    def holds_back(self) -> HeldBack | None:
        """What keeps a full window from moving on; None while there is room.

        The first record that is not finished, one that waits only where there is no other; by key, that of the key
        which has most.
        """
        left = [run for run in self._runs if not run.finished]
        if self.room or not left:
            return None
        run = next((run for run in left if not run.waits), left[0])
        offset, key = run.first, None
        longest = self._keys.longest() if self._keys is not None else None
        if longest is not None and longest[0] >= self.start:
            offset, key = longest
            run = self._runs.at(offset)
        return HeldBack(offset, run.told, run.count % POISONED, run.member, key)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next lock or wait ends, at the earliest; None if there are none."""
        held = self._predecessors_until_ms if self._keys is not None else 0
        if held:
            return held if self._soonest_ms is None else min(held, self._soonest_ms)
        return self._soonest_ms

    @property
    def next_time_ms(self) -> int | None:
        """When the next record that waits for its time may be given out, by the wall clock; None if that is not known.

        Not while what is known by then is to be read again.
        """
        known = self._times.next_ms
        if self._times.unknown_ms is None or self.read_again is not None:
            return known
        return self._times.unknown_ms if known is None else min(known, self._times.unknown_ms)

    @property
    def unsaved(self) -> bool:
        """Whether a write could begin."""
        if self._write_start is not None:
            return False
        return self._persisted_start < self._finished_until() or any(
            r.dirty or (r.becomes is not None and r.doom is None) for r in self._runs
        )

    @property
    def doomed(self) -> list[Doomed]:
        """What is to become dead letters, in order."""
        return [
            Doomed(r.first, r.last, r.count % POISONED, r.doom)
            for r in self._runs
            if r.doom is not None and not r.writing
        ]

    @property
    def members(self) -> set[str]:
        """Those who have records."""
        return {run.member for run in self._runs if run.member is not None}

    # --- acquiring ----------------------------------------------------------------------------------------------

    @property
    def ordered(self) -> bool:
        """Whether no record is given out while another of its key is with a member, or waits.

        That holds while a lock is valid and its leader stays; and nothing is given out until the locks of earlier
        leaders have ended.
        """
        return self._keys is not None

    @ordered.setter
    def ordered(self, ordered: bool) -> None:
        if ordered is not self.ordered:
            self._keys = KeyOrder(self.start, self._is_free) if ordered else None

    @property
    def keys_known(self) -> int:
        """The keys of all records below are known, as far as they matter; only with ``ordered``."""
        assert self._keys is not None, "records are ordered by key"
        return self._keys.end

    def acquire(
        self, member: str, read: tuple[int, int], data: Sequence[tuple[int, int]], most: int, now_ms: int,
        times: RecordTimes = NO_TIMES, *, whole_batches: bool = True,
    ) -> list[Acquired]:  # fmt: skip
        """Give the member available records of what was read, at most ``most``.

        ``read``: first and last offset that were looked at; ``data``: of those, the batches that have records for this
        group (first and last offset, in order). What lies between them is nobody's: it is archived. With
        ``whole_batches`` the batch that passes ``most`` is given as a whole.
        """
        first, last = max(read[0], self.start), read[1]
        giving = self._giving(member, read, now_ms, times)
        left, at = most, first
        for begin, end in data:
            begin, end = max(begin, first), min(end, last)
            if end < begin:
                continue
            if left <= 0 or giving.over:
                last = begin - 1
                break
            self._archive_gap(at, begin - 1)
            taken, at = self._take(giving, begin, end, end - begin + 1 if whole_batches else left)
            left -= taken
            if at <= end:
                last = at - 1
                break
        self._archive_gap(at, last)
        self._tidy()
        return giving.got

    def acquire_in_order(
        self, member: str, read: tuple[int, int], keys: Iterable[tuple[int, bytes | None]], most: int, now_ms: int,
        times: RecordTimes = NO_TIMES,
    ) -> list[Acquired]:  # fmt: skip
        """As :meth:`acquire`, of records that are ``ordered``.

        ``keys``: offset and key of what was read and has a record for this group, from ``keys_known`` on.
        """
        order = self._keys
        assert order is not None, "records are ordered by key"
        giving = self._giving(member, read, now_ms, times)
        if read[0] <= order.end:
            self._learn(order, keys, read[1], giving)
        left, passed = most, list[int]()
        while left > 0 and self._locks_left > 0 and not giving.over:
            offset = order.next()
            if offset is None or offset > read[1]:
                break
            if offset < read[0]:  # it has become free since: it is read next time
                passed.append(order.pop())
                continue
            run = self._runs.at(offset)
            alone = self._together(run) is not None
            if giving.got and alone:
                break
            last, most_to = order.pop(), min(run.last, read[1], offset + min(left, self._locks_left) - 1)
            while not alone and last < most_to and order.pop_if(last + 1):
                last += 1
            self._give(giving, self._runs.cut(offset, last))
            left -= last - offset + 1
        for offset in passed:
            order.freed(offset, offset)
        if order.end < self.end and (run := self._runs.at(order.end)).finished:
            order.begin(run.last + 1)
        if len(self._runs) > min(self._crowded, MAX_RUNS - 1):
            self._tidy()
        if giving.got:
            self._soonest_ms = min(self._soonest_ms or giving.until_ms, giving.until_ms)
        return giving.got

    def _learn(self, order: KeyOrder, keys: Iterable[tuple[int, bytes | None]], last: int, giving: _Giving) -> None:
        """Take the next records into the window, as far as there is room; what lies between them is archived."""
        fresh: WindowRun | None = None
        for offset, key in keys:
            if offset < order.end:
                continue
            if offset > order.end:
                self._archive_gap(order.end, offset - 1)
                order.end = max(order.end, min(offset, self.end))
            if offset > self.end or (offset == self.end and self._room <= 0):
                return
            if offset == self.end:
                self._room -= 1
                self.end += 1
                if fresh is not None and fresh.last + 1 == offset and offset not in giving.times:
                    fresh.last = offset
                else:
                    fresh = self._append(offset, giving.times.get(offset))
            elif self._runs.at(offset).finished:
                order.end = offset + 1
                continue
            order.learn(offset, key)
            before = order.before(offset) if self.limits.poisons else None
            if before is not None and self._runs.at(before).doom is Doom.AFTER_POISON:
                self._poison([offset])
                fresh = None
        self._archive_gap(order.end, last)
        order.end = max(order.end, min(last + 1, self.end))

    def _append(self, offset: int, due_ms: int | None) -> WindowRun | None:
        """A record after all others, which waits for a time, perhaps; its run, which may grow, if it does not."""
        newest = WindowRun(offset, offset, delayed=due_ms is not None)
        if due_ms is not None:
            self._remember(offset, due_ms)
        if self._runs and self._runs[-1].alike(newest):
            self._runs[-1].last = offset
        else:
            self._runs.append(newest)
        return self._runs[-1] if due_ms is None else None

    def _giving(self, member: str, read: tuple[int, int], now_ms: int, times: RecordTimes) -> _Giving:
        giving = _Giving(member, now_ms + self.limits.lock_ms)
        if self.limits.delay_max_ms:
            self._delay(giving, read, times)
        self._room, self._locks_left = self.room, self.limits.records - self.locked
        self._end_at_most = self._span_end
        self._turn += 1
        return giving

    # --- times that records say -----------------------------------------------------------------------------------

    def _delay(self, giving: _Giving, read: tuple[int, int], times: RecordTimes) -> None:
        """What was read and was never given out waits until its time; that beyond the end once it is in the window."""
        again = self.read_again
        if again is not None and read[0] <= again <= read[1]:
            self._reread(again, min(read[1], self._again_until), times)
        waiting: list[int] = []
        beyond: dict[int, int] = {}
        for offset, due_ms in times.of:
            if not times.waits(due_ms, self.limits.delay_max_ms) or offset < self.start:
                continue
            if offset >= self.end:
                beyond[offset] = due_ms
            elif (run := self._runs.at(offset)).free and not run.count:
                self._remember(offset, due_ms)
                waiting.append(offset)
        for first, last in in_runs(waiting):
            for run in list(self._runs.between(first, last)):
                self._runs.cut(max(run.first, first), min(run.last, last)).delayed = True
        giving.waiting, giving.times = list(in_runs(beyond)), beyond
        self.due(times.wall_ms)

    def _reread(self, first: int, last: int, times: RecordTimes) -> None:
        """Learn anew when what waits of these offsets may be given out."""
        self._again, known = last + 1, dict(times.of)
        come: list[int] = []
        for run in [run for run in self._runs.between(first, last) if run.delayed]:
            for offset in range(max(run.first, first), min(run.last, last) + 1):
                if times.waits(due_ms := known.get(offset, 0), self.limits.delay_max_ms):
                    self._remember(offset, due_ms)
                else:
                    come.append(offset)
        self._come(come, times.wall_ms)

    def _remember(self, offset: int, due_ms: int) -> None:
        self._times.remember(offset, due_ms, self.limits.times_kept)

    def due(self, wall_ms: int) -> bool:
        """Whether records may be given out, whose time has come, or are read again: all, if the clock was set back."""
        set_back, self._wall_ms = wall_ms < self._wall_ms - SET_BACK_MS, wall_ms
        ready = self._times.take(wall_ms)
        self._come(ready, wall_ms)
        unknown_ms = self._times.unknown_ms
        if set_back or (unknown_ms is not None and unknown_ms <= wall_ms and self.read_again is None):
            self._times = KnownTimes()
            self._again, self._again_until = self.start, self.end - 1
        self._tidy()
        return bool(ready) or self.read_again is not None

    def _come(self, offsets: Iterable[int], wall_ms: int) -> None:
        """The time of these has come; of a window with very many runs only where that makes no more of them."""
        for first, last in in_runs(offset for offset in offsets if self.start <= offset < self.end):
            for run in [run for run in self._runs.between(first, last) if run.delayed]:
                begin, end = max(run.first, first), min(run.last, last)
                if begin > run.first and end < run.last and len(self._runs) >= 2 * MAX_RUNS:
                    for offset in range(begin, end + 1):
                        self._remember(offset, wall_ms + CROWDED_MS)
                    continue
                run = self._runs.cut(begin, end)
                run.delayed = False
                self._is_back(run)

    def _take_waiting(self, giving: _Giving, size: int) -> bool:
        """Take the next records into the window, which wait for their time; whether there was room for any."""
        size = min(size, self.start + MAX_REACH - self.end)
        if size <= 0 or len(self._runs) >= 2 * MAX_RUNS:
            return False
        self._runs.append(WindowRun(self.end, self.end + size - 1, delayed=True))
        for offset in range(self.end, self.end + size):
            self._remember(offset, giving.times[offset])
        self.end += size
        self._end_at_most = min(self._end_at_most + size, self.start + MAX_REACH)
        return True

    # --- giving -----------------------------------------------------------------------------------------------------

    def _take(self, giving: _Giving, first: int, last: int, most: int) -> tuple[int, int]:
        """Acquire what is free of a batch; how many were taken, and the first offset that was not looked at."""
        taken, at = 0, first
        while at <= last and not giving.over:
            if at >= self.end:
                waits, until = piece_at(giving.waiting, at)
                size = min(last, until) - at + 1
                if waits and at == self.end and self._take_waiting(giving, size):
                    at = self.end
                    continue
                size = 0 if waits else min(size, most - taken, self._room, self._locks_left)
                if at > self.end or size <= 0:
                    break
                run = WindowRun(at, at + size - 1)
                self._runs.append(run)
                self.end = at + size
                self._room -= size
            else:
                run = self._runs.at(at)
                if not run.free:
                    at = run.last + 1
                    continue
                together = self._together(run)
                size = min(last - at + 1, run.last - at + 1, most - taken, self._locks_left, together or run.size)
                if size <= 0 or (together is not None and giving.got):
                    break
                run = self._runs.cut(at, at + size - 1)
            self._give(giving, run)
            taken += run.size
            at = run.last + 1
            if len(self._runs) > 1 and self._runs[-1] is run and self._runs[-2].alike(run):
                self._runs.pop()
                self._runs[-1].last = run.last
        return taken, min(at, last + 1)

    def _together(self, run: WindowRun) -> int | None:
        """How many records of a run go to a member at most, and without others: one may be what kills members.

        From half of the deliveries on ``MAX_SUSPECTS``, then half of them, and so on; at last each by itself. None
        while all may.
        """
        first = max(2, (self.limits.deliveries + 1) // 2)
        if run.count < first:
            return None
        return 1 if run.count + 1 >= self.limits.deliveries else max(1, MAX_SUSPECTS >> (run.count - first))

    def _give(self, giving: _Giving, run: WindowRun) -> None:
        giving.over = self._together(run) is not None
        run.state, run.member, run.until_ms = RecordState.ACQUIRED, giving.member, giving.until_ms
        run.count = min(run.count + 1, MAX_DELIVERIES)
        run.writing = run.dirty = False  # a write that is under way persists what it was before
        self._locks_left -= run.size
        got = giving.got
        if got and (got[-1].last + 1, got[-1].deliveries) == (run.first, run.count):
            got[-1] = got[-1]._replace(last=run.last)
        else:
            got.append(Acquired(run.first, run.last, run.count))

    def _archive_gap(self, first: int, last: int) -> None:
        """There are no records for this group from ``first`` to ``last``: archive what is available of it."""
        while first <= last:
            if first >= self.end:
                size = min(last - first + 1, self._end_at_most - self.end)
                if first > self.end or size <= 0 or len(self._runs) >= MAX_RUNS:
                    return
                self._room = min(self._room, self._end_at_most - self.end - size)
                self._runs.append(WindowRun(first, first + size - 1, RecordState.ARCHIVED, dirty=True))
                self.end = first + size
                return
            run = self._runs.at(first)
            if run.state is RecordState.AVAILABLE:
                run = self._runs.cut(first, min(last, run.last))
                run.until_ms = 0
                self._end_run(run, RecordState.ARCHIVED)
            first = run.last + 1

    # --- acknowledging ------------------------------------------------------------------------------------------

    def acknowledge(self, member: str, pieces: Sequence[tuple[int, int, AckType]], now_ms: int) -> Noted:
        """Note what the member says of its records; what has to be persisted before that is answered.

        All or nothing: raises WrongAcknowledgement if it does not have one of them. Offsets below the start are
        finished whatever is said of them.
        """
        runs_of: list[list[WindowRun]] = []
        for first, last, _ in pieces:
            if last >= self.end:
                raise WrongAcknowledgement(ErrorCode.INVALID_RECORD_STATE, f"Nobody has offset {last} yet.")
            runs_of.append(list(self._runs.between(max(first, self.start), last)))
            for run in runs_of[-1]:
                mine = run.state is RecordState.ACQUIRED and run.member == member
                if not mine or run.becomes is not None or run.until_ms <= now_ms:
                    text = f"The member has no lock on offsets {run.first} to {run.last}."
                    raise WrongAcknowledgement(ErrorCode.INVALID_RECORD_STATE, text)
        noted = Noted.NOTHING
        for (first, last, kind), inside in zip(pieces, runs_of, strict=True):
            if inside and (inside[0].first < first or inside[-1].last > last):  # they may have been cut since
                some = list(self._runs.between(max(first, self.start), last))
                inside = [self._runs.cut(max(run.first, first), min(run.last, last)) for run in some]
            for run in inside:
                if kind is AckType.RENEW:
                    run.until_ms = now_ms + self.limits.lock_ms
                else:
                    run.becomes = self._after(kind, run)
                    run.doom = self._doom(kind, run)
                    noted |= Noted.WRITE if run.doom is None else Noted.BURIAL
        return noted

    def _doom(self, kind: AckType, run: WindowRun) -> Doom | None:
        if not self.buries or run.becomes is not RecordState.ARCHIVED or kind is AckType.GAP:
            return None
        return Doom.REJECTED if kind is AckType.REJECT else Doom.TOO_MANY_DELIVERIES

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
        """End the locks and waits whose time is over; whether any was. What is being persisted decides for itself."""
        if self.next_deadline_ms is None or now_ms < self.next_deadline_ms:
            return False
        ended = self._predecessors_until_ms > 0
        if now_ms >= self._predecessors_until_ms:
            self._predecessors_until_ms = 0
        for run in self._runs:
            if run.state is RecordState.ACQUIRED and run.becomes is None and run.until_ms <= now_ms:
                self._free(run, now_ms)
                ended = True
            elif run.waits and run.until_ms <= now_ms:
                run.until_ms = 0
                self._is_back(run)
                ended = True
        self._tidy()
        return ended

    def release(self, member: str, now_ms: int) -> bool:
        """The member is gone: free what it has; whether there was anything. What it has acknowledged counts."""
        freed = False
        for run in self._runs:
            if run.member == member and run.becomes is None:
                self._free(run, now_ms)
                freed = True
        self._tidy()
        return freed

    def _free(self, run: WindowRun, now_ms: int) -> None:
        state = self._freed(run)
        if self.buries and state is RecordState.ARCHIVED:
            run.state, run.member, run.until_ms = RecordState.ARCHIVING, None, 0
            run.doom = Doom.TOO_MANY_DELIVERIES
        else:
            self._end_lock(run, state, now_ms)
        run.dirty = True

    def _end_lock(self, run: WindowRun, state: RecordState, now_ms: int) -> None:
        """Nobody has the run any more: it is available, now or after a wait, or finished."""
        run.state, run.member, run.until_ms = state, None, 0
        if state in ENDS:
            self._end_run(run, state)
            return
        if self.limits.backoff_ms:
            wait_ms = min(self.limits.backoff_ms << min(run.count - 1, 32), self.limits.backoff_max_ms)
            step_ms = max(1, wait_ms // 16)  # neighbours that are given back one by one are one run
            run.until_ms = (now_ms + wait_ms + step_ms - 1) // step_ms * step_ms
        self._is_back(run)

    def _is_back(self, run: WindowRun) -> None:
        if self._keys is not None and run.free:
            self._keys.freed(run.first, run.last)

    def _end_run(self, run: WindowRun, state: RecordState) -> None:
        run.state, run.dirty, run.delayed = state, True, False
        if self._keys is not None:
            self._keys.finished(run.first, run.last)

    def _is_free(self, offset: int) -> bool:
        return self.start <= offset < self.end and self._runs.at(offset).free

    def bury(self, letters: bool) -> None:
        """Whether records become dead letters from now on, also those that a leader before could not bury.

        Without, they are archived as they are. Not while a write is under way.
        """
        self.buries = letters
        for run in self._runs:
            doomed = run.doom is not None or (run.state is RecordState.AVAILABLE and self._freed(run) in ENDS)
            if not doomed:
                continue
            why = Doom.AFTER_POISON if run.count == POISONED else Doom.TOO_MANY_DELIVERIES
            run.doom = (run.doom or why) if letters else None
            if run.becomes is None:
                run.until_ms = 0
                if letters:
                    run.state, run.dirty = RecordState.ARCHIVING, True
                else:
                    self._end_run(run, RecordState.ARCHIVED)
        self._tidy()

    def log_starts(self, offset: int) -> bool:
        """The log has nothing below this offset any more; whether that finishes records."""
        if offset <= self.start:
            return False
        if offset > self.end:
            self._runs.append(WindowRun(self.end, offset - 1))
            self.end = offset
        if self._keys is not None:
            self._keys.begin(offset)
        changed = False
        for run in list(self._runs.between(self.start, offset - 1)):
            if not run.finished and run.becomes is None and run.doom is None:
                run = self._runs.cut(run.first, min(run.last, offset - 1))
                run.member, run.until_ms = None, 0
                self._end_run(run, RecordState.ARCHIVED)
                changed = True
        self._tidy()
        return changed

    # --- persisting ---------------------------------------------------------------------------------------------

    def begin_write(self) -> StateWrite | None:
        """What is to be persisted now; None while a write is under way, or if there is nothing."""
        if self._write_start is not None:
            return None
        start = self._finished_until()
        changed = [run for run in self._runs if run.dirty or (run.becomes is not None and run.doom is None)]
        if not changed and start == self._persisted_start:
            return None
        return self._written(changed, start, burying=False)

    def begin_burial(self, pieces: Iterable[tuple[int, int]]) -> StateWrite | None:
        """What is to be persisted together with the dead letters of these offsets (first and last), which are doomed.

        None while a write is under way, or if none of them is doomed any more.
        """
        if self._write_start is not None:
            return None
        buried: list[WindowRun] = []
        for first, last in pieces:
            inside = [run for run in self._runs.between(max(first, self.start), last) if run.doom is not None]
            buried += [self._runs.cut(max(run.first, first), min(run.last, last)) for run in inside]
        if not buried:
            return None
        behind = self._behind(buried)
        write = self._written(buried, self._finished_until(buried), burying=True)
        marks = [StateBatch(first, last, RecordState.AVAILABLE, POISONED) for first, last in in_runs(behind)]
        return write._replace(batches=tuple(sorted((*write.batches, *marks))))

    def _behind(self, buried: Sequence[WindowRun]) -> list[int]:
        """What becomes dead letters with these: offsets, in order, that nobody has and that are behind one of a key."""
        if self._keys is None or not self.limits.poisons:
            return []
        offsets = {offset for run in buried for offset in range(run.first, run.last + 1)}
        behind = {other for offset in offsets for other in self._keys.behind(offset)} - offsets
        free = (RecordState.AVAILABLE, None)
        return sorted(o for o in behind if (self._runs.at(o).state, self._runs.at(o).doom) == free)

    def _poison(self, offsets: Iterable[int]) -> None:
        """These become dead letters, though nobody had them."""
        for first, last in in_runs(offsets):
            for run in list(self._runs.between(first, last)):
                run = self._runs.cut(max(run.first, first), min(run.last, last))
                run.state, run.count, run.doom = RecordState.ARCHIVING, POISONED, Doom.AFTER_POISON
                run.until_ms, run.delayed, run.dirty = 0, False, True

    def _written(self, changed: Sequence[WindowRun], start: int, *, burying: bool) -> StateWrite:
        for run in changed:
            run.writing, run.dirty = True, False
        complete, batches = 0, list[StateBatch]()
        for run in self._runs:
            if run.last < start:
                continue
            state = run.state if run.becomes is None else run.becomes
            if run.doom is not None:
                state = RecordState.ARCHIVED if burying and run.writing else RecordState.AVAILABLE
            first = run.first if run.first > start else start
            if state in ENDS:
                complete += run.last - first + 1
            if run.writing and state is not RecordState.ACQUIRED:
                batches.append(StateBatch(first, run.last, state, run.count))
        self._write_start, self._burying = start, burying
        return StateWrite(start, complete, tuple(batches))

    def end_write(self, persisted: bool, now_ms: int) -> None:
        """The write under way has been persisted, or has failed: then acknowledgements are as if never said."""
        start = self._write_start
        assert start is not None, "a write was begun"
        self._write_start = None
        if self._burying and persisted:
            self._poison(self._behind([run for run in self._runs if run.writing]))
        for run in self._runs:
            if not run.writing:
                continue
            run.writing = False
            if self._burying and persisted:
                run.becomes, run.doom, run.member, run.until_ms = None, None, None, 0
                self._end_run(run, RecordState.ARCHIVED)
                run.dirty = False
            elif self._burying and run.becomes is not None:
                run.becomes = run.doom = None
            elif run.becomes is None:
                run.dirty = run.dirty or (not persisted and run.state is not RecordState.ACQUIRED)
            elif persisted:
                becomes, run.becomes = run.becomes, None
                self._end_lock(run, becomes, now_ms)
                run.dirty = False
            else:
                run.becomes = None  # its lock goes on; a late answer of the coordinator's does no harm
        if persisted:
            self._persisted_start = start
            self._move_start(start)
        self._soonest_ms = min((run.until_ms for run in self._runs if run.until_ms), default=None)
        self.expire(now_ms)
        self._tidy()

    def _finished_until(self, buried: Sequence[WindowRun] | None = None) -> int:
        """The start as it would be if everything that is known was persisted; or only these were, which are buried."""
        at, ending = self.start, {id(run) for run in buried or ()}
        for run in self._runs:
            ends = run.doom is None and _next(run) in ENDS
            if buried is not None:
                ends = id(run) in ending or (run.finished and not run.dirty)
            if not ends:
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
        if self._keys is not None:
            self._keys.begin(start)

    def _tidy(self) -> None:
        """Join neighbours that are alike, and look anew when the next lock ends."""
        self._runs.join()
        self._crowded = 2 * len(self._runs) + CROWD
        ends = (run.until_ms for run in self._runs if run.until_ms and run.becomes is None)
        self._soonest_ms = min(ends, default=None)


def _next(run: WindowRun) -> RecordState:
    return run.state if run.becomes is None else run.becomes
