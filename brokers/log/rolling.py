"""When a log begins another segment, and how; what is undone if the disk doesn't take it."""

from __future__ import annotations

from collections.abc import Sequence

from fleetlog._native.batch import Admitted, crc32c
from fleetlog.brokers.config import TopicConfig
from fleetlog.brokers.log.producer_snapshots import snapshot_path
from fleetlog.brokers.log.segment import MAX_POSITION, Segment
from fleetlog.brokers.log.state import LogState
from fleetlog.brokers.log.validation import takes_as_they_are

_MAX_TIMESTAMP, _NO_TIMESTAMP = 2**63 - 1, -(2**63)


class SegmentRoom:
    """What the active segment takes before the log rolls, and which batches need no closer look.

    ``batches`` is how many the indexes have room for, should each of them become an entry; at most a thousand until
    they are asked anew. ``max_bytes`` is how large a client's batch may be, ``own_max_bytes`` one of a coordinator,
    whose records all have keys; -1 where each needs a closer look.
    """

    __slots__ = (
        "after_ms", "batches", "before_ms", "config", "end_offset", "end_position", "max_bytes", "newest",
        "own_max_bytes", "segment", "steady",
    )  # fmt: skip

    def __init__(self, active: Segment, config: TopicConfig, newest: int) -> None:
        self.segment = active
        self.config = config
        self.end_position = min(config.segment_bytes, MAX_POSITION)
        self.end_offset = active.base_offset + MAX_POSITION
        self.newest = newest
        begun = active.first_timestamp
        self.steady = begun is not None and begun >= 0  # else the newest timestamp depends on the clock
        self.batches = max(0, min(1000, active.index_room(config.segment_index_bytes)))
        self.after_ms = config.message_timestamp_after_max_ms
        self.before_ms = config.message_timestamp_before_max_ms  # below, the earliest timestamp is before the epoch
        own = self.steady and self.batches and takes_as_they_are(config)
        self.own_max_bytes = min(config.max_message_bytes, config.segment_bytes) if own else -1
        self.max_bytes = -1 if "compact" in config.cleanup_policy else self.own_max_bytes

    def takes(self, size: int, last_offset: int, newest: int) -> bool:
        """Whether batches of so many bytes, up to that offset and timestamp, still go into the segment."""
        fits = self.segment.log.size + size <= self.end_position and last_offset <= self.end_offset
        return fits and self.batches > 0 and newest <= self.newest


class Roller:
    """The rolls of a log."""

    __slots__ = ("_begun", "_log")

    def __init__(self, log: LogState) -> None:
        self._log = log
        self._begun = -1
        """Where the newest roll was to begin, or began, a segment."""

    def room(self, now_ms: int) -> SegmentRoom:
        """What the active segment still takes. Raises DiskFull, DiskFailed, CorruptBatch."""
        active = self._log.segments.active
        return SegmentRoom(active, self._log._config, self._newest_for(active, now_ms))

    def segment_for(self, placed: Sequence[Admitted], now_ms: int) -> Segment:
        """The active segment, after a roll if it is full, too old, or can't address the batches.

        Raises DiskFull, DiskFailed, CorruptBatch.
        """
        log = self._log
        active = log.segments.active
        first_offset = placed[0].first_offset
        if not active.size and active.base_offset == first_offset:
            active.created_ms = now_ms
            return active
        room = self.room(now_ms)
        size, newest = sum([one.size for one in placed]), max([one.max_timestamp for one in placed])
        if room.takes(size, placed[-1].last_offset, newest):
            return active
        # Behind a hole, too, it begins where the log ends, unless its offsets have too many bits then: another leader
        # may have what is missing here.
        far = placed[-1].last_offset - log.log_end_offset > MAX_POSITION
        return self.roll(first_offset if far else log.log_end_offset, now_ms)

    def take_back(self) -> None:
        """Remove what a roll left above the log's end: it was made for batches that the disk did not take."""
        log, active = self._log, self._log.segments.active
        if active.base_offset > log.log_end_offset:
            log.take_out(active)
            active.remove()
        if self._begun > log.log_end_offset:
            log.disk.remove(snapshot_path(log.directory, self._begun))

    def roll(self, offset: int, now_ms: int) -> Segment:
        """Begin a segment there, or at the log's end; the active one stays if it is empty and begins there.

        Raises DiskFull, DiskFailed.
        """
        log = self._log
        active = log.segments.active
        offset = max(offset, log.log_end_offset)
        if not active.size and active.base_offset == offset:
            return active
        active.seal()
        self._begun = offset
        log.disk.replace(snapshot_path(log.directory, offset), log.producers.to_snapshot(), durable=False)
        fresh = Segment(log.disk, log.directory, offset, create=True, now_ms=now_ms)
        if fresh.size:  # left by a roll that failed half-way before a restart
            fresh.log.truncate(0)
        fresh.reset_indexes()
        log.segments.add(fresh)
        log.dirty_names = True
        log.keep_warm(active)
        return fresh

    def _newest_for(self, active: Segment, now_ms: int) -> int:
        """The largest timestamp that the active segment still takes, by segment.ms.

        Kafka's rule: by the records' own time if they have any, else by the segment's age.
        """
        begun = active.first_timestamp
        if not active.size or begun is None:
            return _MAX_TIMESTAMP
        longest = _segment_ms(self._log._config) - self._jitter_ms(active)
        if begun >= 0:
            return min(begun + longest, _MAX_TIMESTAMP)
        return _MAX_TIMESTAMP if now_ms - active.created_ms <= longest else _NO_TIMESTAMP

    def _jitter_ms(self, segment: Segment) -> int:
        config = self._log._config
        jitter = config.segment_jitter_ms
        if not jitter:
            return 0
        jitter = min(jitter, _segment_ms(config))
        return crc32c(f"{self._log.directory}/{segment.base_offset}".encode()) % jitter if jitter else 0


def _segment_ms(config: TopicConfig) -> int:
    """How long a segment is appended to; in a compacted topic no longer than its records may wait for a pass."""
    if "compact" in config.cleanup_policy:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms
