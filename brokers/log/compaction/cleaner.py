"""Keeps one record of each key in compacted topics: which log is next, and passes over it at a bounded pace.

Which log is cleaned next, and how far, are decisions over values, as Kafka's LogCleanerManager makes them. Offsets are
record offsets, sizes bytes, times ms. A pass covers whole closed segments below the last stable offset, where Kafka
also takes the beginning of the segment that holds it: such a segment waits for the next pass here. The loop looks after
a pass at once while there is work, at a small share of its time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fleetlog._native.compact import SLOT_BYTES
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.compaction.passes import (
    Compaction,
    KnownProducers,
    MapSize,
    Overtaken,
    PassPlan,
    Rewritten,
    swap_in,
)
from fleetlog.brokers.log.disk.background import PendingSync, PendingWork, new_secret
from fleetlog.brokers.log.disk.failures import DiskError, DiskFailed, DiskFull, LogOffline
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.log import Log
from fleetlog.brokers.log.segment import CLEANED_SUFFIX, Segment
from fleetlog.brokers.log.state import LogState
from fleetlog.wire.compression import CodecError
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.model import Clock

logger = logging.getLogger(__name__)


FOREVER_MS = 2**63 - 1
T = TypeVar("T")


class SegmentFigures(NamedTuple):
    """One closed segment: the offsets it may hold, its bytes, its largest and its first batch's timestamps.

    Timestamps that nothing asks for may be -1.
    """

    base_offset: int
    end_offset: int
    size: int
    largest_timestamp: int = -1
    first_timestamp: int = -1


class CleaningTerms(NamedTuple):
    """The topic's settings that decide when its logs are cleaned."""

    min_dirty_ratio: float = 0.5
    min_lag_ms: int = 0
    max_lag_ms: int = FOREVER_MS


class Cleanable(NamedTuple):
    """What a pass would find: it maps the keys in [``dirty_from``, ``end``) and rewrites everything below ``end``."""

    dirty_from: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """By how much ``max.compaction.lag.ms`` is passed, also by records that no pass can reach yet; 0 if it is not."""

    @property
    def ratio(self) -> float:
        """Dirty bytes among all that could be cleaned."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def first_dirty_offset(checkpoint: int | None, log_start_offset: int, log_end_offset: int) -> int:
    """Where the keys begin that no pass has seen: the checkpoint, unless the log was cut or deleted past it."""
    if checkpoint is None or not log_start_offset <= checkpoint <= log_end_offset:
        return log_start_offset
    return checkpoint


def cleanable_part(
    closed: Sequence[SegmentFigures],
    first_dirty: int,
    stable_offset: int,
    terms: CleaningTerms,
    now_ms: int,
) -> Cleanable:
    """What of a log's closed segments, rising, a pass may cover now."""
    first_base = closed[0].base_offset if closed else first_dirty
    end = dirty_from = first_base
    clean_bytes = dirty_bytes = 0
    oldest, reached = FOREVER_MS, True
    for segment in closed:
        dirty = segment.end_offset > first_dirty
        if dirty and 0 < segment.first_timestamp < oldest:
            oldest = segment.first_timestamp  # also where an open transaction holds the pass back
        young = terms.min_lag_ms > 0 and segment.largest_timestamp > now_ms - terms.min_lag_ms
        reached = reached and segment.end_offset <= stable_offset and not (dirty and young)
        if not reached:
            continue
        end = segment.end_offset
        if dirty:
            dirty_bytes += segment.size
        else:
            clean_bytes += segment.size
            dirty_from = end
    dirty_from = max(dirty_from, min(first_dirty, end))
    overdue_ms = 0
    if terms.max_lag_ms < FOREVER_MS and oldest < FOREVER_MS:
        overdue_ms = max(0, now_ms - terms.max_lag_ms - oldest)
    return Cleanable(dirty_from, end, clean_bytes, dirty_bytes, overdue_ms)


def is_due(part: Cleanable, terms: CleaningTerms, *, forced: bool = False) -> bool:
    """Whether a pass is worth it: enough is dirty, records wait for too long, or it was asked for."""
    if not part.dirty_bytes:
        return False
    return forced or part.overdue_ms > 0 or part.ratio > terms.min_dirty_ratio


def dirtiest_first(candidates: Iterable[tuple[T, Cleanable]]) -> list[tuple[T, Cleanable]]:
    """Logs that are due, by falling dirty share; equals stay in their order."""
    return sorted(candidates, key=lambda candidate: candidate[1].ratio, reverse=True)


def roll_due(first_timestamp: int, now_ms: int, max_lag_ms: int) -> bool:
    """Whether an active segment must be closed, so that a pass can reach its first record in time."""
    return 0 < first_timestamp < now_ms - max_lag_ms


KNOWN_ENDS = (Overtaken, DiskError, CorruptBatch, CodecError, MemoryError)
"""What ends a pass, but for its end."""
TRIES = 4
SLICE_BYTES = 1024 * 1024
"""Read and written at once, in some 3 ms of a core: requests that want that core wait no longer."""


class CleaningWish:
    """That a partition is cleaned soon."""

    __slots__ = ("tries", "young")

    def __init__(self, young: bool) -> None:
        self.young = young
        """Also records that are younger than ``min.compaction.lag.ms``."""
        self.tries = TRIES
        """How often it may still be found that nothing can be done."""


class CleaningJob:
    """A pass under way: the log, the work, and what was so when it was planned."""

    __slots__ = ("begun_ms", "compaction", "cuts", "handled_bytes", "log", "noted", "pending", "ready", "steps", "wish")

    def __init__(
        self, log: Log, compaction: Compaction, noted: PendingSync | None, now_ms: int, wish: CleaningWish | None
    ) -> None:
        self.log = log
        self.cuts = log.cuts
        self.compaction = compaction
        self.noted = noted
        """That the log may have holes is being made durable: nothing is swapped before."""
        self.begun_ms = now_ms
        self.wish = wish
        """What the pass fulfils; a later one needs another."""
        self.steps = compaction.run()
        self.pending: PendingWork | None = None
        self.ready: Rewritten | None = None
        self.handled_bytes = 0
        """By the work that is pending or has just ended."""

    def advance(self, budget_bytes: int) -> None:
        """On the worker's thread: go on until a slice is done, or the budget, or a segment is to be swapped in."""
        enough = min(budget_bytes, SLICE_BYTES)
        try:
            while self.handled_bytes < enough:
                step = next(self.steps)
                if isinstance(step, Rewritten):
                    self.ready = step
                    return
                self.handled_bytes += step
        except (StopIteration, *KNOWN_ENDS):
            raise
        except Exception:
            logger.exception("%s: a fault of compaction", self.log.directory)
            raise


class CleanerSettings(NamedTuple):
    """The broker's settings of the cleaner: sizes in bytes, times in ms."""

    dedupe_buffer_bytes: int = 32 * 1024 * 1024
    max_bytes_per_second: float = float("inf")
    backoff_ms: int = 15_000


class CleanerFigures:
    """What the cleaner has done since the start, and found when it looked last."""

    __slots__ = (
        "bytes_after", "bytes_before", "last_end_ms", "last_map_percent", "last_pass_keys", "last_pass_ms", "looked_ms",
        "max_dirty_ratio", "max_overdue_ms", "passes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.passes = 0
        self.bytes_before = 0
        self.bytes_after = 0
        self.last_pass_ms = 0
        self.last_pass_keys = 0
        self.last_map_percent = 0.0
        """How full the map of keys was, of what ``log.cleaner.dedupe.buffer.size`` allows."""
        self.last_end_ms = 0
        """When the last pass ended."""
        self.looked_ms = 0
        """When the cleaner took its last step."""
        self.max_dirty_ratio = 0.0
        """Of all logs, the largest dirty share."""
        self.max_overdue_ms = 0
        """By how much ``max.compaction.lag.ms`` is passed somewhere."""


class CleaningState(IntEnum):
    """Of one log."""

    IDLE = 0
    ASKED = 1
    CLEANING = 2
    STOPPED = 3
    OFF = 4


class CleaningReport(NamedTuple):
    """How far a log is clean: offsets of records, bytes."""

    state: CleaningState
    clean_offset: int
    end_offset: int
    size_bytes: int
    dirty_ratio: float
    trouble: str | None
    """Why it is not compacted."""


STEP_BYTES = 64 * 1024 * 1024
"""Read and written in one step at most: with a step a second, what a pass does to the machine."""
MIN_STEP_BYTES = 16 * 1024 * 1024
"""Also beside a loop that is always late: some 3 % of a core, without which a busy broker's logs only grow."""
BUSY_LOOP_MS = 5
"""A loop that runs its timers later than this gets a cleaner that does half as much in its next step."""
ROLL_BYTES = 8 * 1024 * 1024
_STOP_S = 10.0
_ASKED_BACKOFF_MS = 1000
"""Between two looks for what was asked for."""
_LOAD_FACTOR = 0.9
_MAX_MAP_BYTES = 2**31 - 1


class Cleaner:
    """Keeps the last record of each key in compacted logs: one pass after the other, a bounded step at a time.

    The disk's worker reads and writes files; the loop's thread chooses the log, swaps files in, and remembers how far
    each log is clean.
    """

    def __init__(
        self,
        disk: DiskPort,
        logs: Mapping[TopicPartition, Log],
        settings: Callable[[], CleanerSettings] = CleanerSettings,
        note: Callable[[TopicPartition], PendingSync | None] = lambda tp: None,
    ) -> None:
        """``note`` begins to make durable that the partition is in :meth:`progress`; None if that takes no time."""
        self._disk = disk
        self._work_disk: DiskPort | None = None
        self._logs = logs
        self._settings = settings
        self._note = note
        self._cleaned: dict[TopicPartition, int] = {}
        self.job: CleaningJob | None = None
        self._scan_at_ms = -1
        self._due: deque[TopicPartition] = deque()
        """What else was worth a pass when all logs were looked at last, the dirtiest first."""
        self._asked: dict[TopicPartition, CleaningWish] = {}
        """Partitions that are to be cleaned whatever their ratio."""
        self._full: dict[str, int] = {}
        """Log directories without room, and until when their logs wait. Those of other directories do not."""
        self._budget_bytes = STEP_BYTES
        self._left_bytes = 0
        self.figures = CleanerFigures()
        self.uncleanable: dict[TopicPartition, str] = {}
        """Partitions that are left alone until the broker restarts, and what is wrong with their logs."""

    def restore(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Take over the progress from before the restart."""
        self._cleaned.update(offsets)

    def progress(self) -> dict[TopicPartition, int]:
        """First offset not yet cleaned, per partition. A log without an entry was never cleaned, and has no holes."""
        return dict(self._cleaned)

    def may_have_holes(self, log: LogState) -> None:
        """The log gets batches of a leader that has cleaned its own. Raises DiskError."""
        if log.topic_partition not in self._cleaned:
            self._noted(log.topic_partition, log.log_start_offset)

    def _noted(self, tp: TopicPartition, offset: int) -> PendingSync | None:
        """Begin to make durable that the partition has an entry. Raises DiskError, and there is none then."""
        self._cleaned[tp] = offset
        try:
            return self._note(tp)
        except DiskError:
            del self._cleaned[tp]
            raise

    def was_cut(self, tp: TopicPartition, offset: int) -> None:
        """What the log gets from that offset on no pass has seen. Raises DiskFailed."""
        known = self._cleaned.get(tp)
        if known is not None and known > offset:
            self._cleaned[tp] = offset
            try:
                self._note(tp)  # a killed process must not find the offset of before the cut
            except DiskFull as wrong:
                logger.warning("%s: that it was cut is not written yet: %s", tp, wrong)

    @property
    def uncleanable_bytes(self) -> int:
        """Size of the logs that are left alone."""
        return sum(self._logs[tp].size_bytes for tp in self.uncleanable if tp in self._logs)

    def forget(self, tp: TopicPartition) -> None:
        """The partition is deleted."""
        self._cleaned.pop(tp, None)
        self._asked.pop(tp, None)
        self.uncleanable.pop(tp, None)
        if self.is_cleaning(tp):
            self._stop()

    def is_cleaning(self, tp: TopicPartition) -> bool:
        """Whether a pass over it is under way: its old segments are not to be deleted now."""
        return self.job is not None and self.job.log.topic_partition == tp

    def ask_for(self, tp: TopicPartition, *, young: bool = False) -> None:
        """Clean the partition soon, however little of it is dirty. Its active segment is closed for that.

        ``young``: also records that ``min.compaction.lag.ms`` would keep. The rest of the rules stands: what is not
        replicated, or in an open transaction, waits, and tombstones stay for ``delete.retention.ms``.
        """
        self._asked[tp] = CleaningWish(young)
        self._scan_at_ms = -1

    def report(self, log: Log, now_ms: int) -> CleaningReport:
        """How far the log is clean. Raises DiskFull or DiskFailed."""
        tp = log.topic_partition
        trouble = self.uncleanable.get(tp)
        if log.offline:
            trouble = "its log directory is offline"
        elif trouble is None and _parent(log) in self._full:
            trouble = "its log directory has no room"
        if not is_cleaned(log):
            state, trouble = CleaningState.OFF, "its cleanup.policy does not contain compact"
        elif trouble is not None:
            state = CleaningState.STOPPED
        elif self.is_cleaning(tp):
            state = CleaningState.CLEANING
        else:
            state = CleaningState.ASKED if tp in self._asked else CleaningState.IDLE
        clean = first_dirty_offset(self._cleaned.get(tp), log.log_start_offset, log.log_end_offset)
        ratio = 0.0 if log.offline else self.dirt(log, now_ms).ratio
        return CleaningReport(state, clean, log.log_end_offset, log.size_bytes, ratio, trouble)

    def close(self) -> None:
        """Stop; returns when the worker does nothing more."""
        job = self.job
        if job is not None and (job.pending is None or job.pending.done):
            PendingWork(job.steps.close).run()
        stopping = self._stop()
        if stopping is not None and not stopping.wait(_STOP_S):
            logger.warning("a pass of compaction does not stop")

    def _stop(self) -> PendingWork | None:
        job, self.job = self.job, None
        if job is None:
            return None
        job.compaction.stopped = True
        # What it has begun to write goes by its name: before the worker begins another pass, never after that.
        return None if getgeneratorstate(job.steps) == GEN_CLOSED else self._disk.work_later(job.steps.close)

    # ---- a step

    def step(self, now_ms: int, budget_bytes: int = -1, *, late_ms: float = 0) -> bool:
        """Look for a log that is worth a pass unless one is under way, and advance; returns whether one is.

        Call about every second. ``late_ms`` is how late the loop runs its timers. Raises DiskFull or LogOffline, having
        stopped.
        """
        # What was done beyond the last second's budget is this one's.
        self._left_bytes = min(0, self._left_bytes) + self._paced(late_ms) if budget_bytes < 0 else budget_bytes
        self._due.clear()
        self.figures.looked_ms = now_ms
        if self.job is None and not self._begin(now_ms):
            return False
        self.resume(now_ms)
        return True

    @property
    def goes_on(self) -> bool:
        """Whether :meth:`resume` may have something to do before the next step."""
        job = self.job
        if job is None:
            return self._left_bytes > 0 and bool(self._due)
        return self._left_bytes > 0 or job.pending is not None or job.ready is not None

    def resume(self, now_ms: int) -> bool:
        """Between two steps: continue with what is left of the step's budget, with the next pass if one has ended.

        Returns whether anything could be done; if not, the disk's thread is at work. Raises as :meth:`step`.
        """
        job = self.job
        if job is None:
            return self._left_bytes > 0 and self._begin_next(now_ms)
        overtaken = job.log.offline or job.log.cuts != job.cuts or not is_cleaned(job.log)
        if overtaken:
            job.compaction.stopped = True
        error: Exception | None = None
        if job.pending is not None:
            if not job.pending.done:
                return False
            error, job.pending = job.pending.error, None
            self._left_bytes -= job.handled_bytes
            job.handled_bytes = 0
        if overtaken:
            error = Overtaken()
        elif error is None and job.ready is not None:
            error = self._swap(job, now_ms)
        if error is not None:
            self._ended(job, error, now_ms)
        elif job.ready is None and self._left_bytes > 0:
            job.pending = self._disk.work_later(partial(job.advance, self._left_bytes))
        return job.ready is None

    def _paced(self, late_ms: float) -> int:
        if late_ms > BUSY_LOOP_MS:
            self._budget_bytes = max(MIN_STEP_BYTES, self._budget_bytes // 2)
        else:
            self._budget_bytes = min(STEP_BYTES, self._budget_bytes * 2)
        return max(1, int(min(self._budget_bytes, self._settings().max_bytes_per_second)))

    def _swap(self, job: CleaningJob, now_ms: int) -> Exception | None:
        """Swap what is ready; the error if that fails."""
        assert job.ready is not None
        if job.noted is not None:
            if not job.noted.done:
                return None
            if job.noted.error is not None:
                return job.noted.error
        try:
            swap_in(job.log, job.ready, now_ms)
        except DiskError as wrong:
            return wrong
        job.ready = None
        return None

    def _ended(self, job: CleaningJob, error: Exception, now_ms: int) -> None:
        tp, compaction = job.log.topic_partition, job.compaction
        self._stop()
        if isinstance(error, StopIteration):
            self._cleaned[tp] = compaction.end
            if compaction.end == compaction.plan.end and self._asked.get(tp) is job.wish:
                self._asked.pop(tp, None)
            self._scan_at_ms = -1
            self._due.append(tp)  # the map may have been full
            figures, total = compaction.figures, self.figures
            total.passes += 1
            total.bytes_before += figures.bytes_before
            total.bytes_after += figures.bytes_after
            total.last_pass_ms = now_ms - job.begun_ms
            total.last_pass_keys = figures.keys
            total.last_map_percent = 100 * figures.keys * SLOT_BYTES / self._settings().dedupe_buffer_bytes
            total.last_end_ms = now_ms
            logger.info(
                "%s: compacted %d bytes to %d, up to offset %d, %d keys", tp, figures.bytes_before,
                figures.bytes_after, compaction.end, figures.keys,
            )  # fmt: skip
            return
        self._scan_at_ms = now_ms + self._settings().backoff_ms
        if job.ready is not None:
            self._discard(job.log, job.ready)
        if isinstance(error, Overtaken):
            return
        if isinstance(error, DiskFailed):
            job.log.fail(error)
            raise LogOffline(job.log.directory, str(error)) from error
        if isinstance(error, CorruptBatch | CodecError):
            self.uncleanable[tp] = str(error)
            self._asked.pop(tp, None)
            logger.error("%s is not compacted until the next start: %s", job.log.directory, error)
            return
        if isinstance(error, MemoryError):
            self._no_memory(compaction)
            return
        if isinstance(error, DiskFull):
            self._wait_for_room(job.log, now_ms)
        if isinstance(error, DiskError):
            raise error
        # a fault of a pass is that partition's alone: the broker serves on
        self.uncleanable[tp] = repr(error)
        self._asked.pop(tp, None)
        logger.error("%s is not compacted until the next start: %r", job.log.directory, error)

    def _no_memory(self, compaction: Compaction) -> None:
        plan = compaction.plan
        self._due.clear()
        logger.error(
            "%s is not compacted now, there is no memory for it: the map of keys takes %d bytes"
            " (log.cleaner.dedupe.buffer.size). Lower that setting or give the broker more; tried again in %d ms",
            plan.directory, plan.keys.slots * SLOT_BYTES, self._settings().backoff_ms,
        )  # fmt: skip

    def _discard(self, log: Log, rewritten: Rewritten) -> None:
        """A segment that is not swapped in after all; a restart would remove what is left of it."""
        try:
            base = rewritten.bases[0]
            Segment(self._disk, log.directory, base, create=False, now_ms=0, suffix=CLEANED_SUFFIX).remove()
        except DiskError as wrong:
            logger.warning("%s: a rewritten segment is left behind: %s", log.directory, wrong)

    def _wait_for_room(self, log: Log, now_ms: int) -> None:
        self._full[_parent(log)] = now_ms + self._settings().backoff_ms
        self._scan_at_ms = -1

    # ---- the next pass

    def _begin(self, now_ms: int) -> bool:
        """Choose the log with the largest dirty share among those that are due."""
        if now_ms < self._scan_at_ms:
            return False
        self._full = {path: until_ms for path, until_ms in self._full.items() if until_ms > now_ms}
        self._due.extend(log.topic_partition for log, _ in dirtiest_first(self._candidates(now_ms)))
        if self._begin_next(now_ms):
            return True
        backoff_ms = self._settings().backoff_ms
        if self._asked:
            backoff_ms = min(backoff_ms, _ASKED_BACKOFF_MS)
        self._scan_at_ms = min([now_ms + backoff_ms, *self._full.values()])
        return False

    def _begin_next(self, now_ms: int) -> bool:
        """A pass over the first of those that were due and still are."""
        while self._due:
            tp = self._due.popleft()
            log = self._logs.get(tp)
            part = None if log is None or self._is_left_alone(log) else self._look(log, now_ms, roll=False)
            if log is not None and part is not None and is_due(part, _terms(log), forced=tp in self._asked):
                self._begin_pass(log, part, now_ms)
                return True
        return False

    def _begin_pass(self, log: Log, part: Cleanable, now_ms: int) -> None:
        tp = log.topic_partition
        noted = None
        if tp not in self._cleaned:
            try:
                noted = self._noted(tp, part.dirty_from)
            except DiskFull:
                self._wait_for_room(log, now_ms)
                raise
            except DiskFailed as wrong:
                log.fail(wrong)
                raise LogOffline(log.directory, str(wrong)) from wrong
        if self._work_disk is None:
            self._work_disk = self._disk.for_work()
        compaction = Compaction(self._work_disk, self._plan(log, part, now_ms))
        self.job = CleaningJob(log, compaction, noted, now_ms, self._asked.get(tp))

    def _is_left_alone(self, log: Log) -> bool:
        tp = log.topic_partition
        return not is_cleaned(log) or log.offline or tp in self.uncleanable or _parent(log) in self._full

    def _look(self, log: Log, now_ms: int, *, roll: bool) -> Cleanable | None:
        """What a pass over the log would find; None if its disk does not let that be known.

        With ``roll`` an active segment that waits for a pass is closed.
        """
        try:
            if roll:
                self._roll_early(log, now_ms)
            return self.dirt(log, now_ms)
        except (DiskFull, LogOffline) as wrong:
            logger.warning("%s: compaction postponed: %s", log.topic_partition, wrong)
        except DiskFailed as wrong:
            log.fail(wrong)
        return None

    def _candidates(self, now_ms: int) -> Iterator[tuple[Log, Cleanable]]:
        figures = self.figures
        figures.max_dirty_ratio, figures.max_overdue_ms = 0.0, 0
        for tp, log in self._logs.items():
            if self._is_left_alone(log):
                self._asked.pop(tp, None)  # it would be looked for each second
                continue
            forced = tp in self._asked
            part = self._look(log, now_ms, roll=True)
            if part is None:
                continue
            figures.max_dirty_ratio = max(figures.max_dirty_ratio, part.ratio)
            figures.max_overdue_ms = max(figures.max_overdue_ms, part.overdue_ms)
            if is_due(part, _terms(log), forced=forced):
                yield log, part
            elif forced:
                self._tried_in_vain(log, part)

    def _tried_in_vain(self, log: Log, part: Cleanable) -> None:
        """It is clean, or its records are not replicated yet, or in an open transaction, or too young."""
        tp = log.topic_partition
        self._asked[tp].tries -= 1
        if not self._asked[tp].tries or part.end == log.log_end_offset:
            del self._asked[tp]

    def _roll_early(self, log: Log, now_ms: int) -> None:
        """Close an active segment that a pass must reach now; what isn't closed can't be compacted.

        Also one of an internal topic that outweighs all others: a coordinator reads all of it when it loads.
        """
        active = log.segments.active
        if not active.size:
            return
        max_lag_ms = log.config.max_compaction_lag_ms
        late = max_lag_ms < FOREVER_MS and roll_due(active.first_timestamp or -1, now_ms, max_lag_ms)
        heavy = log.is_internal and active.size >= ROLL_BYTES and active.size > log.size_bytes - active.size
        wish = self._asked.get(log.topic_partition)
        asked = wish is not None and (wish.young or _is_old_enough(log, now_ms))
        if late or heavy or asked:
            log.appender.roll(now_ms)

    def dirt(self, log: Log, now_ms: int) -> Cleanable:
        """What a pass over the log would find now. Raises DiskFull or DiskFailed."""
        terms = _terms(log)
        wish = self._asked.get(log.topic_partition)
        if wish is not None and wish.young:
            terms = terms._replace(min_lag_ms=0)
        dated, lagging = terms.min_lag_ms > 0, terms.max_lag_ms < FOREVER_MS
        closed = [
            SegmentFigures(
                segment.base_offset,
                log.segments.end_of(index, log.log_end_offset),
                segment.size,
                segment.max_timestamp[0] if dated else -1,
                (segment.first_timestamp or -1) if lagging else -1,
            )
            for index, segment in enumerate(log.segments)
            if segment is not log.segments.active
        ]
        first = first_dirty_offset(self._cleaned.get(log.topic_partition), log.log_start_offset, log.log_end_offset)
        return cleanable_part(closed, first, log.last_stable_offset, terms, now_ms)

    def _plan(self, log: Log, part: Cleanable, now_ms: int) -> PassPlan:
        config = log.config
        segments = [
            (segment.base_offset, log.segments.end_of(index, log.log_end_offset))
            for index, segment in enumerate(log.segments)
            if segment.base_offset < part.end
        ]
        return PassPlan(
            directory=log.directory,
            segments=tuple(segments),
            dirty_from=part.dirty_from,
            end=part.end,
            now_ms=now_ms,
            aborted=log.reader.aborted_indexes(),
            producers=KnownProducers(dict(log.producers.entries), log.high_watermark),
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            delete_retention_ms=config.delete_retention_ms,
            inflate_limit=log.settings.inflate_limit,
            keys=map_size(self._settings(), part.end - part.dirty_from),
        )


def _parent(log: LogState) -> str:
    return log.directory.rpartition("/")[0]


def is_cleaned(log: LogState) -> bool:
    """Whether passes are made over that log."""
    return log.is_internal or "compact" in log.config.cleanup_policy


def _is_old_enough(log: Log, now_ms: int) -> bool:
    """Whether a pass would reach the active segment if that were closed."""
    min_lag_ms = log.config.min_compaction_lag_ms
    return min_lag_ms <= 0 or log.segments.active.max_timestamp[0] <= now_ms - min_lag_ms


def map_size(settings: CleanerSettings, offsets: int) -> MapSize:
    """A map for that many offsets, as far as the settings allow one."""
    slots = max(2, min(settings.dedupe_buffer_bytes, _MAX_MAP_BYTES) // SLOT_BYTES)
    enough = int(offsets / _LOAD_FACTOR) + 2
    slots = min(slots, enough)
    return MapSize(slots, min(slots - 1, max(1, int(slots * _LOAD_FACTOR))), new_secret())


def _terms(log: Log) -> CleaningTerms:
    config = log.config
    return CleaningTerms(config.min_cleanable_dirty_ratio, config.min_compaction_lag_ms, config.max_compaction_lag_ms)


SHORTEST_MS = 5.0
LONGEST_MS = 250.0
_SHARE = 5
"""Of the loop's time, a pass gets one part in so many at most: swaps are renames and an fsync."""
_LATE_FACTOR = 10
SLICE_MS = 50.0
"""The longest wait between two slices of work: beside a loop that is always late, ``MIN_STEP_BYTES`` in a second."""


class CleaningPace:
    """The time until a pass is continued next. Times are in ms."""

    __slots__ = ("wait_ms",)

    def __init__(self) -> None:
        self.wait_ms = SHORTEST_MS

    def continued(self, *, moved: bool, took_ms: float, late_ms: float) -> None:
        """A pass was continued: whether that was of use, how long the loop stood still for it, how late it was."""
        wait_ms = SHORTEST_MS if moved else min(SLICE_MS, self.wait_ms * 2)
        if late_ms > BUSY_LOOP_MS:
            wait_ms = max(wait_ms, min(SLICE_MS, _LATE_FACTOR * late_ms))
        self.wait_ms = min(LONGEST_MS, max(wait_ms, (_SHARE - 1) * took_ms))


async def until_next_tick(tick_s: float, cleaner: Cleaner, resume: Callable[[int], bool], clock: Clock) -> float:
    """Until the next tick, while a pass of compaction goes on. Returns by how many ms a timer was late at most."""
    pace = CleaningPace()
    now_ms = clock.mono_ms()
    end_ms, most_ms = now_ms + int(tick_s * 1000), 0.0
    while now_ms < end_ms:
        begun_ms = now_ms
        wait_ms = min(end_ms - now_ms, pace.wait_ms if cleaner.goes_on else LONGEST_MS)
        await asyncio.sleep(wait_ms / 1000)
        woke_ms = now_ms = clock.mono_ms()
        late_ms = now_ms - begun_ms - wait_ms
        most_ms = max(most_ms, late_ms)
        if cleaner.goes_on:
            moved = resume(clock.wall_ms())
            now_ms = clock.mono_ms()
            pace.continued(moved=moved, took_ms=now_ms - woke_ms, late_ms=late_ms)
    return most_ms


Watch = Callable[[str, str, Callable[[], float]], None]


def watch_cleaner(watch: Watch, cleaner: Cleaner) -> None:
    """Give ``watch`` the name, meaning and reader of each number. Times are in seconds."""
    figures = cleaner.figures
    rows: list[tuple[str, str, Callable[[], float]]] = [
        (
            "uncleanable_partitions", "Partitions with a damaged batch, which are not compacted until the next start.",
            lambda: len(cleaner.uncleanable),
        ),
        ("max_dirty_ratio", "Largest dirty share of a compacted log, when the cleaner looked last.",
         lambda: figures.max_dirty_ratio),
        ("max_compaction_delay_seconds", "By how much max.compaction.lag.ms is passed, at most.",
         lambda: figures.max_overdue_ms / 1000),
        ("uncleanable_bytes", "Bytes of the logs with a damaged batch.", lambda: cleaner.uncleanable_bytes),
        ("time_since_last_run_seconds", "Time since a pass ended; -1 before the first.",
         lambda: (figures.looked_ms - figures.last_end_ms) / 1000 if figures.passes else -1),
        ("max_buffer_utilization_percent", "How full the map of keys was in the last pass, of what it may take.",
         lambda: figures.last_map_percent),
        ("passes", "Passes of compaction since the start.", lambda: figures.passes),
        ("last_pass_seconds", "Time that the last pass took.", lambda: figures.last_pass_ms / 1000),
        ("last_pass_keys", "Keys in the map of the last pass.", lambda: figures.last_pass_keys),
        ("bytes_before", "Bytes of logs before the passes since the start.", lambda: figures.bytes_before),
        ("bytes_after", "Bytes that these passes left.", lambda: figures.bytes_after),
    ]  # fmt: skip
    for name, meaning, read in rows:
        watch(f"fleetlog_cleaner_{name}", meaning, read)
