"""What the parts of a log share: its files, what is known from them, and what happens when the disk fails."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from fleetlog._native.errors import CorruptBatch
from fleetlog._native.files import FileSlice
from fleetlog.brokers.config import TopicConfig
from fleetlog.brokers.log.disk.background import PendingSync
from fleetlog.brokers.log.disk.checkpoints import LEADER_EPOCH_CHECKPOINT
from fleetlog.brokers.log.disk.failures import DiskFailed, DiskFull, LogOffline
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.door import Door, KnownSchemas
from fleetlog.brokers.log.positions import DEDUP_FILE, PositionSets, encode_dedup_file
from fleetlog.brokers.log.producers.snapshots import snapshot_path
from fleetlog.brokers.log.producers.state import ProducerState
from fleetlog.brokers.log.recovery import LoadedLog
from fleetlog.brokers.log.recovery_report import RecoveryReport
from fleetlog.brokers.log.replay import replay_positions
from fleetlog.brokers.log.segment import Segment
from fleetlog.brokers.log.segments import Segments
from fleetlog.brokers.model import INTERNAL_TOPICS
from fleetlog.wire.compression import CodecError
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

logger = logging.getLogger(__name__)

_WARM_INDEXES = 4

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Part")


class AppendInfo(NamedTuple):
    """What became of an append. ``error`` is NONE if the batches are in the log (or were before: ``duplicate``).

    ``in_transaction``: the duplicate is one of a batch whose transaction is open in this log.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_count: int
    size: int
    duplicate: bool
    error: ErrorCode
    error_message: str | None
    record_errors: tuple[tuple[int, str | None], ...] = ()
    in_transaction: bool = False


class ReadResult(NamedTuple):
    """Whole batches from the one holding ``first_offset``; ``next_offset`` is where the next read resumes."""

    slices: tuple[FileSlice, ...]
    size: int
    first_offset: int
    next_offset: int

    def release(self) -> None:
        """Let go of all slices."""
        for part in self.slices:
            part.release()


class AbortedTransaction(NamedTuple):
    """A producer whose records from ``first_offset`` up to its next abort marker are to be skipped."""

    producer_id: int
    first_offset: int


class LogSettings(NamedTuple):
    """The broker's settings that each log needs."""

    inflate_limit: int = 64 * 1024 * 1024
    producer_expiration_ms: int = 86_400_000
    max_producers: int = 100_000
    flush_each_append: bool = False
    schemas: KnownSchemas | None = None


class Part(Protocol):
    """A part of a log: the appender, the reader and their like."""

    _log: LogState


def guarded(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Refuse when offline; on a failed disk go offline; damage found while reading counts as the log's failure."""

    @functools.wraps(method)
    def inner(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        log = self._log
        if log.offline:
            raise LogOffline(log.directory)
        try:
            return method(self, *args, **kwargs)
        except (DiskFailed, CorruptBatch, CodecError) as wrong:
            raise log.failure(wrong) from wrong

    return inner  # type: ignore[return-value]  # functools.wraps hides that it is a method


class Calls:
    """What a log tells its store: its disk failed, a checkpoint is due, there is no room, its start has moved."""

    __slots__ = ("checkpoint", "on_cut", "on_failure", "on_full", "on_hole", "save_starts", "saved_start")

    def __init__(
        self,
        on_failure: Callable[[LogState, DiskFailed], None] | None,
        checkpoint: Callable[[], None] | None,
        saved_start: int,
    ) -> None:
        self.on_failure = on_failure
        self.checkpoint = checkpoint
        self.on_full: Callable[[LogState, DiskFull], None] | None = None
        self.save_starts: Callable[[], None] | None = None
        """Writes the starts of all logs of the directory."""
        self.on_cut: Callable[[LogState, int], None] | None = None
        """The log was cut at that offset."""
        self.on_hole: Callable[[LogState], None] | None = None
        """The log is about to get batches with a hole between them, as compaction leaves it. Raises DiskError."""
        self.saved_start = saved_start
        """The start that the directory's checkpoint or the first segment says."""


class LogState:
    """What is known of a log; :class:`Log` adds the parts that work on it. Slots: CPython gives a large object a
    dictionary otherwise, which cost a produce 1.2 %.
    """

    __slots__ = (
        "_config",
        "calls",
        "crowded",
        "cuts",
        "directory",
        "dirty_names",
        "disk",
        "door",
        "durable_epochs",
        "epochs",
        "garbage",
        "high_watermark",
        "is_internal",
        "last_now_ms",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "pending_flush",
        "producers",
        "recovery_point",
        "recovery_report",
        "segments",
        "settings",
        "settled",
        "told_damage",
        "topic_id",
        "topic_partition",
        "unflushed_since_ms",
        "warm",
    )  # fmt: skip

    def __init__(
        self,
        disk: DiskPort,
        directory: str,
        topic_partition: TopicPartition,
        config: TopicConfig,
        settings: LogSettings,
        loaded: LoadedLog,
        *,
        topic_id: uuid.UUID | None,
        recovery_point: int,
        high_watermark: int,
        now_ms: int,
        on_failure: Callable[[LogState, DiskFailed], None] | None = None,
        checkpoint: Callable[[], None] | None = None,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.topic_partition = topic_partition
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        """Whether the topic is one of the coordinators'."""
        self.topic_id = topic_id
        self.settings = settings
        self.segments: Segments = loaded.segments
        self.epochs = loaded.epochs
        self.producers: ProducerState = loaded.producers
        self.recovery_report: RecoveryReport = loaded.report
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = min(max(recovery_point, loaded.log_start_offset), loaded.log_end_offset)
        self.high_watermark = min(max(high_watermark, loaded.log_start_offset), loaded.log_end_offset)
        self.last_now_ms = now_ms
        self.offline = False
        self.crowded = False
        """Whether its directory has no room: an append was refused, and there was no room since."""
        self.told_damage = ""
        """The damage that was met last: one line in the broker's log is enough."""
        self.cuts = 0
        """Counts truncations and deletions: work on segments over several turns continues while this stands."""
        self.unflushed_since_ms: int | None = None
        self.dirty_names = recovery_point < loaded.log_end_offset or not loaded.report.clean or loaded.report.changed
        """Whether files were made or renamed since the directory was last fsynced."""
        self.garbage: list[tuple[int, Segment]] = []
        """Deleted segments, with the time at which their files go."""
        self.calls = Calls(on_failure, checkpoint, loaded.log_start_offset)
        self.warm: list[Segment] = []
        """Closed segments whose indexes are in memory."""
        self.durable_epochs = self.epochs.saves
        """Which of the epochs' checkpoints is known to be on the disk: see ``EpochCache.saves``."""
        self.settled = not self.dirty_names and not loaded.report.changed
        self.pending_flush: tuple[PendingSync, int, int, int] | None = None
        """A flush under way: the work, the offset it reaches, and ``cuts`` and ``epochs.saves`` when it began."""
        self._config = config
        self.door = self._door(config)
        """What clients' records must have; None if nothing."""
        self.producers.high_watermark_moved(self.high_watermark)
        if self.epochs.behind:
            self.save_epochs()

    # ---- what it is

    @property
    def config(self) -> TopicConfig:
        """The topic's settings; assigning new ones takes effect with the next append or upkeep.

        Raises DiskFull, LogOffline if those of accepted positions can't be written: they stay as they were.
        """
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        self.door = self._door(config)
        if config.fleetlog_dedup != "none":
            self.deduplicate(config)

    def _door(self, config: TopicConfig) -> Door | None:
        if not config.checks_schemas:
            return None
        assert self.settings.schemas is not None, "a broker's logs have them"
        return Door(self.topic_partition.topic, config, self.settings.schemas)

    def deduplicate(self, config: TopicConfig) -> None:
        """Drop duplicates from now on, by those settings; accepted positions are made from what the log has.

        Once a log does, it does until it is deleted. Raises DiskFull, LogOffline.
        """
        known, path = self.producers.positions, f"{self.directory}/{DEDUP_FILE}"
        sets = PositionSets(window_ms=config.fleetlog_dedup_window_ms, max_bytes=config.fleetlog_dedup_max_bytes)
        if known is not None and (known.window_ms, known.max_bytes) == (sets.window_ms, sets.max_bytes):
            return
        try:
            self.disk.replace(path, encode_dedup_file(sets), durable=True)
            if known is None:
                self.producers.positions = sets
                self.settled = False
                sets.known = not self.segments.first.base_offset
                replay_positions(self.segments, sets, self.last_now_ms)
            else:
                known.window_ms, known.max_bytes = sets.window_ms, sets.max_bytes
        except DiskFailed as wrong:
            raise self.failure(wrong) from wrong

    @property
    def lacks_positions(self) -> bool:
        """Whether it drops duplicates, but does not know all that was accepted before :attr:`accepted_from`."""
        sets = self.producers.positions
        return sets is not None and not sets.known

    @property
    def accepted_from(self) -> int:
        """The offset from which on its records tell what was accepted: its first one, or one behind damage."""
        sets = self.producers.positions
        return max(self.segments.first.base_offset, 0 if sets is None else sets.unread)

    def learn_positions(self, told: PositionSets | None) -> None:
        """Take what was accepted before ``accepted_from`` from its leader, durably; None if nobody can tell.

        Raises DiskFull, LogOffline: then it is lacking as before.
        """
        sets = self.producers.positions
        assert sets is not None, "its topic drops duplicates"
        if told is not None:
            sets.merge(told)
        sets.known = True
        path = snapshot_path(self.directory, self.log_end_offset)
        try:
            self.disk.replace(path, self.producers.to_snapshot(), durable=True)
        except DiskFull:
            sets.known = False
            raise
        except DiskFailed as wrong:
            sets.known = False
            raise self.failure(wrong) from wrong
        sets.unread = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self.segments.size_bytes

    @property
    def last_stable_offset(self) -> int:
        """The end for read_committed: the first record of an undecided transaction, or the high watermark."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch not above ``epoch``, and where it ended; (-1, -1) if unknown."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def assign_epoch(self, epoch: int) -> None:
        """A leader starts to append in this epoch; the first append writes it down."""
        self.epochs.begin(epoch, self.log_end_offset)
        if self.epochs.behind:
            self.save_epochs()

    def take_out(self, segment: Segment) -> None:
        """The segment is no longer part of the log; its files are the caller's to bury or remove."""
        self.segments.remove(segment)
        if segment in self.warm:
            self.warm.remove(segment)

    def keep_warm(self, segment: Segment) -> None:
        """Closed segments keep their indexes in memory only while they are among the last few read."""
        warm = self.warm
        if segment is self.segments.active or (warm and warm[-1] is segment):
            return
        if segment in warm:
            warm.remove(segment)
        warm.append(segment)
        if len(warm) > _WARM_INDEXES:
            cold = warm.pop(0)
            if cold is not self.segments.active:
                cold.unload()

    def failure(self, wrong: DiskFailed | CorruptBatch | CodecError) -> LogOffline:
        """The error of callers after a failed disk, which takes the log offline, or of damage found while reading."""
        if isinstance(wrong, DiskFailed):
            self.fail(wrong)
            return LogOffline(self.directory, str(wrong))
        told, self.told_damage = self.told_damage, str(wrong)
        logger.log(
            logging.DEBUG if told == str(wrong) else logging.ERROR, "%s: damaged batch: %s", self.directory, wrong
        )
        return LogOffline(self.directory, f"damaged batch: {wrong}")

    def fail(self, wrong: DiskFailed) -> None:
        """The disk under this log has failed: no retry, and the whole directory with it."""
        if not self.offline:
            self.offline = True
            logger.critical("%s goes offline: %s", self.directory, wrong)
            if self.calls.on_failure is not None:
                self.calls.on_failure(self, wrong)

    def no_room(self, wrong: DiskFull) -> None:
        """Something that replication waits for was refused for want of room."""
        if self.calls.on_full is not None:
            self.calls.on_full(self, wrong)

    def save_epochs(self, *, durable: bool = False) -> None:
        """Write the leader epochs. Without room they stay in memory for the next try: recovery can make them anew."""
        if not self.epochs.dirty and not durable:
            return
        try:
            self.disk.replace(f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}", self.epochs.to_bytes(), durable=durable)
        except DiskFull as wrong:
            logger.warning("%s: leader epochs not written: %s", self.topic_partition, wrong)
            self.epochs.behind = True  # the file may contradict what is appended after a cut
            return
        except DiskFailed as wrong:
            self.fail(wrong)
            return
        self.epochs.saved()
        if durable:
            self.durable_epochs = self.epochs.saves

    @property
    def epochs_durable(self) -> bool:
        """Whether the newest checkpoint of the epochs is on the disk."""
        return self.durable_epochs == self.epochs.saves
