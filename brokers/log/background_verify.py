"""Reads closed segments again, slowly, and checks each batch: damage is found while other replicas are whole.

The disk's worker reads, through descriptors of its own, at most ``log.verify.bytes.per.second``; the loop's thread
chooses what comes next, and decides whether what was found still counts. Nothing is repaired: docs/reliability.md says
how a whole copy is got from another replica.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from fleetlog._native.batch import validate_batch
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log.disk.background import PendingWork
from fleetlog.brokers.log.disk.failures import DiskError
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.log import Log
from fleetlog.brokers.log.segment import Segment
from fleetlog.wire.types import TopicPartition

logger = logging.getLogger(__name__)

MOST_SEGMENTS = 64
"""Of one round: small ones cost more than their bytes."""
MOST_LOGS = 500
"""That are looked at in one second: a broker may have thousands without a closed segment."""
TOLD = 3
"""Damaged segments that are named as troubles; the rest is counted."""
_STOP_S = 5.0


class DamagedSegment(NamedTuple):
    """Where the first wrong batch of a closed segment is, and what is wrong."""

    path: str
    position: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"segment {self.path} is damaged at offset {self.offset}, position {self.position}: {self.reason}"


class _Candidate(NamedTuple):
    log: Log
    segment: Segment
    end: int
    """The first offset that is not in it."""
    size: int
    cuts: int

    @property
    def still_counts(self) -> bool:
        """Whether the file is what it was when it was chosen: not cut, compacted, deleted."""
        log, segment = self.log, self.segment
        return not log.offline and log.cuts == self.cuts and segment.size == self.size and segment in log.segments


class _Round:
    """Some segments, on the worker's thread. ``found`` has a row for each that is done."""

    def __init__(self, disk: DiskPort, candidates: list[_Candidate]) -> None:
        self.disk = disk
        self.found: list[tuple[_Candidate, DamagedSegment | None]] = []
        self.handled_bytes = 0
        self.ended = self.stopped = False
        self.pending: PendingWork | None = None
        self.steps = self._run(candidates)

    def advance(self, budget_bytes: int) -> None:
        """Go on until that many bytes are read, or nothing is left."""
        while self.handled_bytes < budget_bytes and not self.stopped:
            size = next(self.steps, None)
            if size is None:
                self.ended = True
                return
            self.handled_bytes += size

    def _run(self, candidates: list[_Candidate]) -> Iterator[int]:
        for one in candidates:
            base, directory = one.segment.base_offset, one.segment.directory
            path = one.segment.log.path
            offset, position = base, 0
            try:
                own = Segment(self.disk, directory, base, create=False, now_ms=0)
                try:
                    for start, data, batches in own.chunks(0, one.size):
                        for at, header in batches:
                            position = start + at
                            validate_batch(data, at)
                            if header.base_offset < offset or header.last_offset >= one.end:
                                raise CorruptBatch(f"offset {header.base_offset} is not of {offset} to {one.end}", at)
                            offset = header.last_offset + 1
                            position += header.size
                        yield len(data)
                    if position < one.size:
                        raise CorruptBatch("a closed segment ends in half a batch", position)
                finally:
                    own.unload()
            except CorruptBatch as wrong:
                self.found.append((one, DamagedSegment(path, position, offset, wrong.reason)))
            except DiskError as wrong:
                self.found.append((one, DamagedSegment(path, position, offset, f"it cannot be read: {wrong}")))
            else:
                self.found.append((one, None))


class BackgroundVerify:
    """One pass after the other over all closed segments, while the rate is not 0. Loop thread only."""

    def __init__(self, disk: DiskPort, logs: Mapping[TopicPartition, Log], bytes_per_second: Callable[[], int]) -> None:
        self._disk = disk
        self._work_disk: DiskPort | None = None
        self._logs = logs
        self._rate = bytes_per_second
        self._round: _Round | None = None
        self._queue: deque[tuple[TopicPartition, int]] = deque()
        """Partitions of the pass, and the base offset from which they are left to be read."""
        self.damaged: dict[tuple[TopicPartition, int], DamagedSegment] = {}
        """By partition and base offset: until a later pass finds the segment whole, or gone."""
        self.bytes = self.segments = self.failures = self.passes = 0
        """Read, checked, and found damaged since the start; passes that ended."""

    def troubles(self) -> list[str]:
        """What is damaged, as texts; empty if nothing is known to be."""
        more = len(self.damaged) - TOLD
        first = [str(one) for one in islice(self.damaged.values(), TOLD)]
        return [*first, f"{more} more segments are damaged"] if more > 0 else first

    def step(self) -> None:
        """Go on by what one second may cost; call it about every second. Off, it does nothing."""
        rate, under_way = self._rate(), self._round
        if under_way is not None and under_way.pending is not None:
            if not under_way.pending.done:
                return
            self._take(under_way)
        if not rate:
            self._round = None
            self._queue.clear()
            return
        if self._round is None:
            chosen = self._choose(rate)
            if chosen:
                if self._work_disk is None:
                    self._work_disk = self._disk.for_work()
                self._round = _Round(self._work_disk, chosen)
        if self._round is not None:
            current = self._round
            current.handled_bytes = 0
            current.pending = self._disk.work_later(lambda: current.advance(rate))

    def close(self) -> None:
        """Stop; returns when the worker reads no more."""
        under_way, self._round = self._round, None
        if under_way is not None:
            under_way.stopped = True
            if under_way.pending is not None and not under_way.pending.wait(_STOP_S):
                logger.warning("checking segments in the background does not stop")

    def _choose(self, most_bytes: int) -> list[_Candidate]:
        """The next closed segments, as many as the rate takes; a new pass begins where the last one has ended."""
        if not self._queue:
            self._queue.extend((tp, -1) for tp in sorted(self._logs))
        chosen: list[_Candidate] = []
        size = 0
        looked = 0
        while self._queue and size < most_bytes and len(chosen) < MOST_SEGMENTS and looked < MOST_LOGS:
            looked += 1
            tp, after = self._queue.popleft()
            log = self._logs.get(tp)
            if log is None or log.offline:
                self._forget(tp, set())
                continue
            closed = [one for one in log.segments if one is not log.segments.active]
            if after < 0:
                self._forget(tp, {one.base_offset for one in closed})
            for index, segment in enumerate(closed):
                if segment.base_offset <= after:
                    continue
                if size >= most_bytes or len(chosen) >= MOST_SEGMENTS:
                    self._queue.appendleft((tp, closed[index - 1].base_offset if index else -1))
                    break
                end = log.segments.end_of(index, log.log_end_offset)
                chosen.append(_Candidate(log, segment, end, segment.size, log.cuts))
                size += segment.size
        if not self._queue:
            self.passes += 1
        return chosen

    def _forget(self, tp: TopicPartition, bases: set[int]) -> None:
        """Damage of segments that are gone."""
        for known in [key for key in self.damaged if key[0] == tp and key[1] not in bases]:
            del self.damaged[known]

    def _take(self, under_way: _Round) -> None:
        pending, under_way.pending = under_way.pending, None
        assert pending is not None, "its work has ended"
        self.bytes += under_way.handled_bytes
        for candidate, damage in under_way.found:
            key = candidate.log.topic_partition, candidate.segment.base_offset
            if not candidate.still_counts:
                continue  # it was cut, compacted or deleted meanwhile
            self.segments += 1
            if damage is None:
                self.damaged.pop(key, None)
                continue
            if self.damaged.get(key) != damage:  # each pass finds it again
                self.failures += 1
                self.damaged[key] = damage
                logger.error("%s; get a whole copy from another replica: docs/reliability.md", damage)
        under_way.found.clear()
        if pending.error is not None:  # a bug: the next round begins behind these segments
            logger.error("checking segments in the background failed", exc_info=pending.error)
        if under_way.ended or pending.error is not None:
            self._round = None
