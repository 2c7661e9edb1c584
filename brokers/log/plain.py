"""How most batches get into a log: checked and stamped in one pass, one or many by one write.

What a batch may be to take this way, and what the active segment has room for, is :class:`Bounds`; everything else goes
the general way in :mod:`brokers.log.log`, with the same outcome. ADR 0011 and 0012 have the figures.
"""

from __future__ import annotations

import logging

from _native.batch import Admitted, admit, admit_run, crc32c, stamp
from brokers.config import TopicConfig
from brokers.log.failures import DiskFailed, DiskFull, LogOffline
from brokers.log.files import Buffer
from brokers.log.reads import LogReads
from brokers.log.segment import MAX_POSITION, Segment
from brokers.log.state import AppendInfo, guarded
from brokers.log.validation import MAX_BATCH_RECORDS, takes_as_they_are
from wire.errors import ErrorCode

logger = logging.getLogger("brokers.log.log")

_MAX_TIMESTAMP, _NO_TIMESTAMP = 2**63 - 1, -(2**63)


def unstamp(batch: Buffer) -> None:
    """Undo what admission wrote into a batch that is not appended after all, for who looks at it next."""
    assert not isinstance(batch, bytes), "it was stamped"
    stamp(batch, 0, 0, -1)


class Bounds:
    """Which batches may take the short way into a segment. Whatever goes the general way makes them anew.

    ``appends`` is how many batches the indexes have room for in any case, at most a thousand until they are asked anew.
    ``size`` is how large a client's batch may be, ``own_size`` one of a coordinator, whose records all have keys.
    """

    __slots__ = (
        "after_ms", "appends", "before_ms", "config", "newest", "offset", "own_size", "position", "segment", "size"
    )  # fmt: skip

    def __init__(self, active: Segment, config: TopicConfig, newest: int) -> None:
        self.segment = active
        self.config = config
        self.own_size = min(config.max_message_bytes, config.segment_bytes) if takes_as_they_are(config) else -1
        self.position = min(config.segment_bytes, MAX_POSITION)
        self.offset = active.base_offset + MAX_POSITION
        begun = active.first_timestamp
        self.newest = newest if begun is not None and begun >= 0 else _NO_TIMESTAMP  # else it depends on the clock
        self.after_ms = config.message_timestamp_after_max_ms
        self.before_ms = config.message_timestamp_before_max_ms  # below, the earliest timestamp is before the epoch
        self.appends = max(0, min(1000, active.index_room(config.segment_index_bytes)))
        if not self.appends:
            self.own_size = -1
        self.size = -1 if "compact" in config.cleanup_policy else self.own_size


class PlainAppends(LogReads):
    """The part of a log that appends in the short way, and what both ways share."""

    _bounds: Bounds | None = None

    def _append_plain(
        self, records: Buffer, leader_epoch: int, now_ms: int, *, guard: object | None = None, own: bool = False
    ) -> AppendInfo | None:
        """The short way of what most producers send, with the same outcome; None if it must go the general way.

        ``own`` says that a coordinator of this broker made it, for no producer then. With a ``guard`` the batch may
        begin a transaction.
        """
        size, offset = len(records), self.log_end_offset
        bounds = self._short_way(1, size, leader_epoch, now_ms)
        if bounds is None or size > (bounds.own_size if own else bounds.size):
            return None
        latest = min(now_ms + bounds.after_ms, bounds.newest)
        begins = None if guard is None or own else self.producers.beginning(records, guard)
        known = {} if own else begins or self.producers.entries
        admitted = admit(records, offset, leader_epoch, latest, MAX_BATCH_RECORDS, known, True)
        if admitted is None:
            return None
        bounds.appends -= 1
        _, last_offset, largest, _, producer_id, _ = admitted
        try:
            bounds.segment.append_one(records, offset, last_offset, largest, self._config.index_interval_bytes)
        except (DiskFull, DiskFailed) as wrong:
            return self._unwritten(wrong)
        if begins is not None:
            self.producers.begun(admitted, now_ms)
        elif producer_id >= 0:
            self.producers.continued((admitted,), now_ms)
        self._appended_to(last_offset + 1, now_ms)
        failed = self._flushed() if self._flush_now() else None
        return self._appended(offset, last_offset + 1 - offset, size) if failed is None else failed

    def admit_run(
        self, batches: list[Buffer], *, leader_epoch: int, now_ms: int, transactional: bool
    ) -> list[Admitted]:
        """Check and stamp what clients sent, a batch each: as many from the first on as may take the short way.

        Nothing else has happened yet. Those that are admitted are either appended next, by :meth:`append_run`, or given
        back by :func:`unstamp`. ``transactional`` says whether any of them may belong to a transaction.
        """
        if self.offline:
            return []
        bounds = self._short_way(len(batches), sum(map(len, batches)), leader_epoch, now_ms)
        if bounds is None:
            return []
        latest = min(now_ms + bounds.after_ms, bounds.newest)
        return admit_run(
            batches, self.log_end_offset, leader_epoch, latest, MAX_BATCH_RECORDS, bounds.size,
            self.producers.entries, transactional,
        )  # fmt: skip

    def append_run(self, batches: list[Buffer], admitted: list[Admitted], *, now_ms: int) -> AppendInfo | None:
        """Append what was just admitted, by one write: None, or the refusal of all of it.

        The outcome is that of :meth:`append_as_leader` for one after the other, but that the disk takes all or none.
        """
        if self.offline:  # another log of the directory met a failed disk since this was admitted
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory} is offline")
        bounds = self._bounds
        assert bounds is not None, "admitted by bounds"
        assert admitted[0][0] == self.log_end_offset, "nothing else was appended meanwhile"
        bounds.appends -= len(admitted)
        try:
            bounds.segment.append_run(batches, admitted, self._config.index_interval_bytes)
        except (DiskFull, DiskFailed) as wrong:
            return self._unwritten(wrong)
        if self.producers.entries:
            self.producers.continued(admitted, now_ms)
        self._appended_to(admitted[-1][1] + 1, now_ms)
        return self._flushed() if self._flush_now() else None

    def _short_way(self, count: int, size: int, leader_epoch: int, now_ms: int) -> Bounds | None:
        """The bounds of the short way for ``count`` batches of ``size`` bytes, None if it is closed to them."""
        active = self.segments.active
        bounds = self._bounds
        known = bounds is not None and bounds.segment is active and bounds.config is self._config
        if bounds is None or not known or bounds.appends < count:
            bounds = self._bounds = Bounds(active, self._config, self._newest_for(active, now_ms))
        position = active.log.size
        if (
            not position  # the first batch of a segment decides how long it lasts
            or bounds.own_size < 0
            or bounds.appends < count
            or position + size > bounds.position
            or self.log_end_offset + size > bounds.offset  # a record has more than one byte
            or now_ms > bounds.before_ms
            or leader_epoch != self.epochs.latest
            or self.epochs.dirty
        ):
            return None
        return bounds

    def _appended_to(self, end: int, now_ms: int) -> None:
        """What was written up to there counts."""
        self.log_end_offset = end
        self._settled = False
        if now_ms > self.last_now_ms:
            self.last_now_ms = now_ms
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = now_ms

    def _unwritten(self, wrong: DiskFull | DiskFailed) -> AppendInfo:
        """The refusal of what the disk did not take."""
        if isinstance(wrong, DiskFull):
            # as text: who keeps the exception keeps its frames, and the views of what was received in them
            logger.error("%s: append refused: %s", self.topic_partition, str(wrong))
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, f"no room: {wrong.reason}")
        self.fail(wrong)
        return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, str(wrong))

    def _flush_now(self) -> bool:
        """Whether settings ask for an fsync before the append is answered."""
        return (
            self.settings.flush_each_append or self.log_end_offset - self.recovery_point >= self._config.flush_messages
        )

    def _flushed(self) -> AppendInfo | None:
        """Flush; the refusal if that fails. Without room for an index the records are still in the log, and safe."""
        try:
            self.flush()
        except DiskFull as wrong:
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, f"no room: {wrong.reason}")
        except LogOffline as wrong:
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, str(wrong))
        return None

    def _newest_for(self, active: Segment, now_ms: int) -> int:
        """The largest timestamp that the active segment still takes, by segment.ms.

        Kafka's rule: by the records' own time if they have any, else by the segment's age.
        """
        begun = active.first_timestamp
        if not active.size or begun is None:
            return _MAX_TIMESTAMP
        longest = self._config.segment_ms - self._jitter_ms(active)
        if begun >= 0:
            return begun + longest
        return _MAX_TIMESTAMP if now_ms - active.created_ms <= longest else _NO_TIMESTAMP

    def _jitter_ms(self, segment: Segment) -> int:
        jitter = self._config.segment_jitter_ms
        if not jitter:
            return 0
        jitter = min(jitter, self._config.segment_ms)
        return crc32c(f"{self.directory}/{segment.base_offset}".encode()) % jitter if jitter else 0

    def refused(
        self, error: ErrorCode, message: str | None, record_errors: tuple[tuple[int, str], ...] = ()
    ) -> AppendInfo:
        """The answer to an append that changed nothing."""
        return AppendInfo(-1, -1, -1, self.log_start_offset, 0, 0, False, error, message, record_errors)

    def _appended(self, first_offset: int, record_count: int, size: int) -> AppendInfo:
        return tuple.__new__(  # without the Python function that a named tuple's constructor is
            AppendInfo,
            (
                first_offset, self.log_end_offset - 1, -1, self.log_start_offset, record_count, size, False,
                ErrorCode.NONE, None, (),
            ),
        )  # fmt: skip

    @guarded
    def flush(self) -> None:
        """fsync everything above the recovery point, then raise it to the log's end. Raises DiskFull, LogOffline."""
        end = self.log_end_offset
        if self.recovery_point < end:
            for segment in self.segments.from_offset(self.recovery_point):
                if segment.size:
                    segment.sync()
        if self.epochs.dirty or not self._epochs_durable:
            self.save_epochs(durable=True)
        if self.dirty_names:
            self.disk.sync_directory(self.directory)
            self.dirty_names = False
        self.recovery_point = end
        self.unflushed_since_ms = None
