"""All logs of a broker: its log directories, their locks and checkpoints, start, upkeep and a clean stop.

A directory that fails takes its logs offline and nothing else. Every file here has Kafka's name and format, so that
Kafka's tools (and Kafka) can read the directories of a stopped broker.

A clean stop promises that each log ends where the stop saved its end. How far the start is with the logs is read by
another thread: the loop stands still while they are loaded.
"""

from __future__ import annotations

import logging
import re
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import MappingProxyType

from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.config import BrokerConfig, TopicConfig
from fleetlog.brokers.log.compaction.cleaner import Cleaner, CleanerSettings
from fleetlog.brokers.log.directories.directories import (
    PARTITION_DIRECTORY,
    STRAY_DIRECTORY,
    Checkpoints,
    DirectoryUsage,
    LogDirectory,
    TopicIds,
    space_of,
)
from fleetlog.brokers.log.directories.owner import DirectoryOwner
from fleetlog.brokers.log.disk import checkpoints
from fleetlog.brokers.log.disk.background import PendingSync
from fleetlog.brokers.log.disk.checkpoints import CleanStop, DamagedFile
from fleetlog.brokers.log.disk.failures import DiskError, DiskFailed, DiskFull, LogOffline, StoreRefused
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.door import KnownSchemas
from fleetlog.brokers.log.log import Log
from fleetlog.brokers.log.recovery_report import StoreReport
from fleetlog.brokers.log.segment import LOG_SUFFIX, Segment
from fleetlog.brokers.log.state import LogSettings, LogState
from fleetlog.brokers.log.verify import BackgroundVerify
from fleetlog.brokers.metrics.registry import StartFigures
from fleetlog.brokers.model import Clock, LiveBroker, has_room, id_text
from fleetlog.wire.compression import CodecError
from fleetlog.wire.types import TopicPartition

logger = logging.getLogger(__name__)


def delete_old_segments(log: Log, now_ms: int, *, tiered: bool = False) -> int:
    """Delete segments that ``retention.ms``, ``retention.bytes`` or the log's start offset allow. Returns how many.

    Only segments wholly below the high watermark go. If all of them are due, a new empty one is begun first, so that
    the log keeps its end. Topics that are only compacted, or ``tiered``, lose nothing but what was released by
    DeleteRecords, or by their tier. Raises DiskFull, LogOffline.
    """
    if log.offline:
        raise LogOffline(log.directory)
    try:
        due = _due(log, now_ms, tiered)
    except (DiskFailed, CorruptBatch, CodecError) as wrong:
        raise log.failure(wrong) from wrong
    if not due:
        return 0
    if len(due) == len(log.segments):
        log.appender.roll(now_ms)
    log.truncation.raise_start(log.segments.end_of(len(due) - 1, log.log_end_offset))
    log.truncation.remove_segments(due, now_ms)
    logger.info("%s: deleted %d segment(s), starts at %d", log.topic_partition, len(due), log.log_start_offset)
    return len(due)


def _due(log: Log, now_ms: int, tiered: bool) -> list[Segment]:
    config = log.config
    # The coordinators' topics are their memory: whatever their settings say, age and size delete nothing there.
    by_policy = "delete" in config.cleanup_policy and not log.is_internal and not tiered
    excess = log.size_bytes - config.retention_bytes if by_policy and config.retention_bytes >= 0 else 0
    due: list[Segment] = []
    for index, segment in enumerate(log.segments):
        end = log.segments.end_of(index, log.log_end_offset)
        active = segment is log.segments.active
        if end > log.high_watermark or (active and not segment.size):
            break
        released = end <= log.log_start_offset and not active
        too_old = (
            by_policy and config.retention_ms >= 0 and now_ms - segment.retention_timestamp() > config.retention_ms
        )
        too_much = excess >= segment.size > 0
        if not (released or too_old or too_much):
            break
        excess -= segment.size
        due.append(segment)
    return due


_PRODUCER_EXPIRY_CHECK_MS = 600_000
_RELAXATION_MS = 30_000
_RETENTION_LOGS_PER_TICK = 500
_FLUSH_INTERVAL_MS = 1000


class Upkeep:
    """What the logs need from time to time: retention, compaction, flush by age, expiry, checkpoints, removals.

    Each tick does a little of it, so that it never holds the loop for long. ``logs`` are those of the store, as they
    are now; ``end_syncs`` looks at those under way.
    """

    def __init__(
        self,
        config: BrokerConfig,
        disk: DiskPort,
        logs: Mapping[TopicPartition, Log],
        directories: Sequence[LogDirectory],
        *,
        cleaner: Cleaner,
        verify: BackgroundVerify,
        checkpoints: Checkpoints,
        end_syncs: Callable[[], None],
        tiered: Callable[[TopicConfig], bool],
    ) -> None:
        self._config = config
        self._disk = disk
        self._logs = logs
        self._directories = directories
        self._cleaner = cleaner
        self._verify = verify
        self.checkpoints = checkpoints
        self._end_syncs = end_syncs
        self._tiered = tiered
        self._retention_queue: deque[Log] = deque()
        self._next_retention_ms = -1
        self._next_checkpoint_ms = -1
        self._next_producer_expiry_ms = -1
        self._next_relaxation_ms = -1

    def tick(self, now_ms: int, late_ms: float = 0) -> None:
        """A little of it: call about every second. Retention, compaction, flush by age, expiry and checkpoints.

        ``late_ms`` is how late the loop has run its timers since: compaction goes slower if that is much.
        """
        config = self._config
        if self._next_retention_ms < 0:
            self._next_retention_ms = now_ms + config.log_retention_check_interval_ms
            self._next_checkpoint_ms = now_ms + config.log_flush_offset_checkpoint_interval_ms
            self._next_producer_expiry_ms = now_ms + _PRODUCER_EXPIRY_CHECK_MS
            self._next_relaxation_ms = now_ms + _RELAXATION_MS
        if now_ms >= self._next_retention_ms:
            self._next_retention_ms = now_ms + config.log_retention_check_interval_ms
            self._retention_queue = deque(self._logs.values())
        for _ in range(min(len(self._retention_queue), _RETENTION_LOGS_PER_TICK)):
            self._enforce_retention(self._retention_queue.popleft(), now_ms)
        if now_ms >= self._next_producer_expiry_ms:
            self._next_producer_expiry_ms = now_ms + _PRODUCER_EXPIRY_CHECK_MS
            for log in list(self._logs.values()):
                log.producers.expire(now_ms)
                if not log.offline:
                    self._quietly(partial(log.flusher.trim_if_idle, now_ms - _PRODUCER_EXPIRY_CHECK_MS))
        self._quietly(lambda: self._cleaner.step(now_ms, late_ms=late_ms))
        self._verify.step()
        flush_ms = _FLUSH_INTERVAL_MS if config.log_flush_policy == "interval" else sys.maxsize
        for log in list(self._logs.values()):
            if log.offline:
                continue
            if log.garbage:
                self._quietly(lambda log=log: log.truncation.sweep(now_ms))  # type: ignore[misc]
            if log.pending_flush is not None:
                self._quietly(log.flusher.end_flush)
            dirty = log.unflushed_since_ms
            if dirty is None:
                continue
            active = now_ms - dirty >= min(log.config.flush_ms, flush_ms)
            # Closed segments are fsynced soon, so that a crash has only the active one to check.
            if active or log.segments.active.base_offset > log.recovery_point:
                self._quietly(lambda log=log, active=active: log.flusher.begin_flush(active=active))  # type: ignore[misc]
        self._remove_doomed(now_ms)
        if now_ms >= self._next_relaxation_ms:
            self._next_relaxation_ms = now_ms + _RELAXATION_MS
            self._disk.relax()
        self._end_syncs()
        self.checkpoints.resume()
        if now_ms >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = now_ms + config.log_flush_offset_checkpoint_interval_ms
            self.checkpoints.begin()

    def resume_cleaning(self, now_ms: int) -> bool:
        """Between two ticks, as often as one likes: a pass of compaction continues as far as its budget allows.

        Returns whether that was of use now.
        """
        return bool(self._quietly(lambda: self._cleaner.resume(now_ms)))

    def _quietly(self, action: Callable[[], object]) -> object:
        """Upkeep finds a full or failed disk: a line in the log, None, and another try the next time."""
        try:
            return action()
        except DiskFull as wrong:
            logger.warning("upkeep postponed: %s", wrong)
        except LogOffline as wrong:
            logger.error("%s", wrong)
        return None

    def _enforce_retention(self, log: Log, now_ms: int) -> int:
        tp = log.topic_partition
        if log.offline or self._logs.get(tp) is not log or self._cleaner.is_cleaning(tp):
            return 0
        try:
            return delete_old_segments(log, now_ms, tiered=self._tiered(log.config))
        except DiskFull as wrong:
            logger.warning("%s: retention postponed: %s", log.topic_partition, wrong)
        except LogOffline as wrong:
            logger.error("%s", wrong)
        return 0

    def _remove_doomed(self, now_ms: int) -> None:
        for directory in self._directories:
            while not directory.offline and directory.doomed and directory.doomed[0][0] <= now_ms:
                self._disk.remove_tree(directory.doomed.pop(0)[1], later=True)
            if not directory.offline and directory.strays:
                self._quietly(lambda directory=directory: directory.forget_removed_strays(self._disk))  # type: ignore[misc]


NAMED_MAX = 5


def lost_since_stop(ends: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, Log]) -> list[str]:
    """One text for each log that is gone, shorter or knows less than at the clean stop, which saved these ends."""
    lost = []
    for tp, end in ends.items():
        log = logs.get(tp)
        if log is None and end:
            lost.append(f"{tp}: its directory is gone; it ended at offset {end} at the clean stop")
        elif log is not None and log.log_end_offset < end:
            lost.append(f"{tp}: ends at {log.log_end_offset}; it ended at offset {end} at the clean stop")
        elif log is not None and log.lacks_positions:
            lost.append(f"{tp}: no sound producer snapshot or record tells all that was accepted")
    return lost


def loss_message(directory: str, lost: Sequence[str]) -> str:
    """The message for the broker's log."""
    named = "; ".join(lost[:NAMED_MAX]) + ("; ..." if len(lost) > NAMED_MAX else "")
    return (
        f"log directory {directory} lost records since its clean stop, in {len(lost)} partition(s): {named}. This"
        " broker leads no partition that another in-sync replica can lead, and fetches the missing records"
    )


TOLD_MS = 5_000
"""Between two lines in the broker's log."""
_SEGMENT = re.compile(r"(\d{20})" + re.escape(LOG_SUFFIX))


class StartProgress:
    """Counts down while a directory's logs are loaded."""

    def __init__(self, disk: DiskPort, clock: Clock, figures: StartFigures) -> None:
        self.figures = figures
        figures.under_way = True
        self._disk = disk
        self._clock = clock
        self._begun_ms = self._told_ms = clock.mono_ms()
        self._bytes: dict[str, int] = {}

    def expect(self, directories: Iterable[tuple[str, int]], *, clean: bool) -> None:
        """These partitions' directories will be loaded, each with its recovery point; raises DiskError.

        Below the recovery point nothing is read, nor after a clean stop.
        """
        for path, recovery_point in directories:
            size = 0 if clean else self._left_to_read(path, recovery_point)
            self._bytes[path] = size
            self.figures.logs_left += 1
            self.figures.bytes_left += size

    def _left_to_read(self, path: str, recovery_point: int) -> int:
        bases = sorted(
            int(name_parts[1]) for name in self._disk.names(path) if (name_parts := _SEGMENT.fullmatch(name))
        )
        first = max((base for base in bases if base <= recovery_point), default=-1)
        files = (f"{path}/{base:020d}{LOG_SUFFIX}" for base in bases if base >= first)
        return sum(self._disk.size(file) or 0 for file in files)

    def loaded(self, path: str) -> None:
        """That one is done."""
        figures, now_ms = self.figures, self._clock.mono_ms()
        figures.logs_left -= 1
        figures.logs_done += 1
        figures.bytes_left -= self._bytes.pop(path, 0)
        figures.seconds = (now_ms - self._begun_ms) / 1000
        if now_ms - self._told_ms >= TOLD_MS and figures.logs_left:
            self._told_ms = now_ms
            logger.info(
                "loading logs: %d done, %d left, at most %d MB of these to check; %.0f s so far",
                figures.logs_done, figures.logs_left, figures.bytes_left // 1_000_000, figures.seconds,
            )  # fmt: skip

    def ended(self) -> None:
        """Nothing is left, whatever became of it."""
        self.figures.logs_left = self.figures.bytes_left = 0
        self.figures.under_way = False


_DELETED_DIRECTORY = re.compile(r".+\.[0-9a-f]{32}-delete")
_DIRECTORY_NAME_MAX = 255


class LogStore:
    """All logs. Loop thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: DiskPort,
        clock: Clock,
        *,
        cluster_id: str | None = None,
        topic_config: Callable[[str], TopicConfig] | None = None,
        start_figures: StartFigures | None = None,
    ) -> None:
        """``topic_config`` gives a topic's settings at load; by default the broker's, until others are assigned.

        ``start_figures`` tell how far :meth:`load` is.
        """
        self._config = config
        self._disk = disk
        self._clock = clock
        self.owner = DirectoryOwner(disk, config.broker_id, cluster_id)
        self._start_figures = start_figures or StartFigures()
        self._topic_config = topic_config or (lambda topic: config.topic_defaults())
        self.schemas = KnownSchemas(clock)
        self._settings = LogSettings(
            inflate_limit=config.decompressed_batch_max_bytes,
            producer_expiration_ms=config.producer_id_expiration_ms,
            max_producers=config.producer_state_max_per_partition,
            flush_each_append=config.log_flush_policy == "ack",
            schemas=self.schemas,
        )
        self.directories = [LogDirectory(path.rstrip("/") or "/") for path in config.log_dirs]
        self._logs: dict[TopicPartition, Log] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self._rivals: dict[TopicPartition, list[tuple[Log, LogDirectory]]] = {}
        """Copies of partitions in a second directory, with another topic id, until it is known which one counts."""
        self._gone: set[TopicPartition] = set()
        """Partitions that a directory's checkpoints name without having them: not all of them were deleted."""
        self.broker_config: Callable[[], BrokerConfig] = lambda: config
        """The broker's settings as they are now."""
        self.tiered: Callable[[TopicConfig], bool] = lambda config: False
        """Whether a topic with these settings is tiered: its tier decides what goes by age and size."""
        self.cleaner = Cleaner(disk, self._logs, self._cleaner_settings, self._note_cleaned)
        self.verify = BackgroundVerify(disk, self._logs, lambda: self.broker_config().log_verify_bytes_per_second)
        self._deletions = 0
        progress = self.cleaner.progress
        self.checkpoints = Checkpoints(disk, self.directories, self._logs_of, progress, self._failed, clock)
        self.checkpoint_times = self.checkpoints.times
        # Of each one for all logs: there may be thousands.
        self._calls = (self._no_room, self._was_cut, self.cleaner.may_have_holes)
        self._write_points = {one.path: partial(self.checkpoints.write_points, one) for one in self.directories}
        self._write_starts = {one.path: partial(self.checkpoints.write_starts, one) for one in self.directories}
        self._upkeep = Upkeep(
            config, disk, self._logs, self.directories, cleaner=self.cleaner, verify=self.verify,
            checkpoints=self.checkpoints, end_syncs=self._end_syncs, tiered=self._is_tiered,
        )  # fmt: skip

    # ---- start and stop

    def load(self, registered: Mapping[str, str] = MappingProxyType({})) -> StoreReport:
        """Lock the directories, check whose they are, open every log, recover those that were not closed in order.

        ``registered`` are the directories of this broker's last registration, by id with their paths. Raises
        DirectoryInUse or ForeignDirectory (both StoreRefused), and StoreRefused if no directory is usable.
        """
        report = StoreReport()
        progress = StartProgress(self._disk, self._clock, self._start_figures)
        self.owner.look_for_missing(self.directories, registered)
        for directory in self.directories:
            try:
                self._open_directory(directory, report, progress)
            except StoreRefused:
                self._unlock()
                raise
            except DiskError as wrong:
                logger.error("log directory %s is not usable: %s", directory.path, wrong)
                self.take_offline(directory)
                report.offline_directories.append(directory.path)
        if all(directory.offline for directory in self.directories):
            raise StoreRefused(f"none of log.dirs is usable: {', '.join(d.path for d in self.directories)}")
        progress.ended()
        report.logs = len(self._logs)
        counted = [one for one in self.directories if not (one.fresh and self.owner.remembers)]
        report.stopped = {directory.path: directory.stopped for directory in counted}
        return report

    def _remove_clean_stop(self, directory: LogDirectory) -> None:
        """Before anything can change: a crash from here on is not a clean stop."""
        self._disk.remove(f"{directory.path}/{checkpoints.CLEAN_SHUTDOWN}")
        self._disk.sync_directory(directory.path)

    def _open_directory(self, directory: LogDirectory, report: StoreReport, progress: StartProgress) -> None:
        disk, path = self._disk, directory.path
        self.owner.refuse_unmounted(directory, [one for one in self.directories if one is not directory])
        disk.make_directory(path)
        directory.lock = disk.lock(f"{path}/{checkpoints.LOCK}")
        fresh = directory.fresh = self.owner.claim(directory, self._new_id)
        left = disk.read(f"{path}/{checkpoints.CLEAN_SHUTDOWN}")
        clean = fresh or left is not None
        directory.stopped = checkpoints.decode_clean_stop(left) if left is not None else None
        (report.clean_directories if clean else report.unclean_directories).append(path)
        known_points = self._read_offsets_or_none(path, checkpoints.RECOVERY_POINT_CHECKPOINT, fresh=fresh)
        recovery_points = known_points or {}
        starts = self._read_offsets(path, checkpoints.LOG_START_CHECKPOINT)
        watermarks = self._read_offsets(path, checkpoints.HIGH_WATERMARK_CHECKPOINT)
        cleaned = self._read_cleaned(directory, fresh)
        self._remove_clean_stop(directory)
        absent = {*recovery_points, *starts, *watermarks, *(cleaned or ())}
        shorter = False
        checkpoint = self._write_points[path]
        topic_ids = TopicIds(disk)
        configs: dict[str, TopicConfig] = {}
        partitions: dict[str, TopicPartition] = {}
        for name in disk.names(path):
            child = f"{path}/{name}"
            if _DELETED_DIRECTORY.fullmatch(name):
                disk.remove_tree(child)
                report.removed.append(child)
                continue
            if STRAY_DIRECTORY.fullmatch(name):
                directory.found_stray(disk, child)
                continue
            match = PARTITION_DIRECTORY.fullmatch(name)
            if match and disk.is_directory(child):
                partitions[child] = TopicPartition(match["topic"], int(match["partition"]))
        progress.expect(((child, recovery_points.get(tp, 0)) for child, tp in partitions.items()), clean=clean)
        for child, tp in partitions.items():
            config = configs.get(tp.topic)
            if config is None:
                config = configs[tp.topic] = self._topic_config(tp.topic)
            absent.discard(tp)
            log = Log.open(
                disk, child, tp, config, self._settings, now_ms=self._clock.wall_ms(), topic_id=topic_ids.read(child),
                clean=clean, recovery_point=recovery_points.get(tp, 0), log_start_offset=starts.get(tp, 0),
                high_watermark=watermarks.get(tp, 0), may_have_holes=cleaned is None or tp in cleaned,
                point_is_known=known_points is not None, on_failure=self._disk_failed, checkpoint=checkpoint,
            )  # fmt: skip
            report.recovered.append(log.recovery_report)
            clean_to = cleaned.get(tp, 0) if cleaned else 0
            shorter |= max(recovery_points.get(tp, 0), watermarks.get(tp, 0), clean_to) > log.log_end_offset
            if tp not in self._logs or self._is_better(log, directory, report):
                self._add(log, directory)
                self.cleaner.forget(tp)  # of a copy that is set aside now
                if cleaned is None or tp in cleaned:
                    self.cleaner.restore({tp: min(clean_to, log.log_end_offset)})
            progress.loaded(child)
        self.checkpoints.outlived |= absent
        if left is None:
            self._gone |= absent
        if shorter:
            self.checkpoints.lower(directory)
        if left is not None:
            self._compare_with_the_stop(directory, recovery_points, report)

    def _compare_with_the_stop(
        self, directory: LogDirectory, ends: Mapping[TopicPartition, int], report: StoreReport
    ) -> None:
        """A clean stop saves the end of each log. A log that is gone or shorter was removed or damaged since then.

        Its records are acknowledged, so the mark does not count: replicas that are whole come before this broker.
        """
        lost = lost_since_stop(ends, self._logs)
        if lost:
            directory.stopped = None
            self._gone.update(tp for tp, end in ends.items() if end)
            report.lost += lost
            logger.error("%s", loss_message(directory.path, lost))

    def _is_better(self, log: Log, directory: LogDirectory, report: StoreReport) -> bool:
        """Of two logs of one partition the one that reaches further stays; the other is set aside for a person.

        A broker that starts without one of its disks makes new copies of what it held, once the old ones do not count
        any more; then the disk comes back. Either copy is a beginning of what its leader has, up to what is truncated.
        """
        tp = log.topic_partition
        known, home = self._logs[tp], self._homes[tp]
        if known.topic_id != log.topic_id:  # of two topics of that name one is gone, but which?
            self._rivals.setdefault(tp, []).append((log, directory))
            return False
        better = _reach(log) > _reach(known)
        lesser, where = (known, home) if better else (log, directory)
        aside = self._renamed(lesser, where, "stray")
        lesser.abandon()
        self._disk.sync_directory(where.path)
        report.set_aside.append(f"{tp} is in two log directories; the copy that ends at offset"
                                f" {lesser.log_end_offset} is now {aside}")  # fmt: skip
        return better

    def settle(self, tp: TopicPartition, topic_id: uuid.UUID) -> None:
        """Of copies with several topic ids that of this topic stays, and the others are set aside: a disk that was away
        comes back with the log of a topic that was deleted and made again, or with one whose id cannot be read.
        """
        for log, directory in self._rivals.pop(tp, ()):
            lesser, where = log, directory
            if log.topic_id == topic_id != self._logs[tp].topic_id:
                lesser, where = self._logs[tp], self._homes[tp]
                self._add(log, directory)
            lesser.abandon()
            try:
                aside = self._renamed(lesser, where, "stray")
                where.syncs.append(self._disk.sync_later([where.path]))
            except DiskError as wrong:
                logger.error("%s: a second copy in %s cannot be set aside: %s", tp, lesser.directory, wrong)
                continue
            logger.warning("%s is in two log directories; the copy of topic id %s, which ends at offset %d, is now %s",
                           tp, lesser.topic_id, lesser.log_end_offset, aside)  # fmt: skip

    def _renamed(self, log: Log, directory: LogDirectory, suffix: str) -> str:
        """Rename the log's directory so that it is none any more; returns its new path. Raises DiskError."""
        self._deletions += 1
        unique = self._new_id(f"{log.directory}/{self._deletions}").hex
        ending = f".{unique}-{suffix}"
        path = f"{directory.path}/{str(log.topic_partition)[: _DIRECTORY_NAME_MAX - len(ending)]}{ending}"
        self._disk.rename(log.directory, path)
        if suffix == "stray":
            directory.strays[path] = log.size_bytes
        return path

    def _unlock(self) -> None:
        for directory in self.directories:
            if directory.lock is not None:
                directory.lock.close()
                directory.lock = None

    def check_owners(self) -> None:
        """Only look whether the directories that exist are this broker's and free; nothing is changed.

        Raises DirectoryInUse or ForeignDirectory (both StoreRefused).
        """
        self.owner.check(self.directories)

    def _read_offsets(self, path: str, name: str) -> dict[TopicPartition, int]:
        return self._read_offsets_or_none(path, name) or {}

    def _read_offsets_or_none(self, path: str, name: str, *, fresh: bool = False) -> dict[TopicPartition, int] | None:
        """None if the file is missing or damaged; a ``fresh`` directory gets it, so that it is missed later."""
        data = self._disk.read(f"{path}/{name}")
        if data is None and fresh:
            self._disk.replace(f"{path}/{name}", checkpoints.encode_offsets({}))
            return {}
        if data is None:
            return None
        try:
            return checkpoints.decode_offsets(data, name)
        except DamagedFile as wrong:
            logger.warning("%s: %s; ignored", path, wrong)
            return None

    def _read_cleaned(self, directory: LogDirectory, fresh: bool) -> dict[TopicPartition, int] | None:
        """How far its logs are clean; None if that is not known: then each of them may have holes."""
        path = f"{directory.path}/{checkpoints.CLEANER_CHECKPOINT}"
        data = self._disk.read(path)
        if data is None and fresh:
            self._disk.replace(path, checkpoints.encode_offsets({}))
            return {}
        self.checkpoints.had_cleaner_file(directory)
        if data is None:
            unknown = any(PARTITION_DIRECTORY.fullmatch(name) for name in self._disk.names(directory.path))
            return None if unknown else {}
        try:
            return checkpoints.decode_offsets(data, checkpoints.CLEANER_CHECKPOINT)
        except DamagedFile as wrong:
            logger.warning("%s: %s; all logs are cleaned anew", directory.path, wrong)
            return None

    def _cleaner_settings(self) -> CleanerSettings:
        config = self.broker_config()
        return CleanerSettings(
            config.log_cleaner_dedupe_buffer_size, config.log_cleaner_io_max_bytes_per_second,
            config.log_cleaner_backoff_ms,
        )  # fmt: skip

    def _is_tiered(self, config: TopicConfig) -> bool:
        return self.tiered(config)

    def _note_cleaned(self, tp: TopicPartition) -> PendingSync:
        directory = self._homes[tp]
        sync = self.checkpoints.write_cleaned(directory)
        directory.syncs.append(sync)
        return sync

    def close(self, *, clean: bool = True, broker_epoch: int = -1, live_broker: LiveBroker | None = None) -> None:
        """Close all logs; when ``clean``, flushed, checkpointed and marked so: the next start needn't check them.

        ``live_broker`` goes into the marker: the next start is then known to have lost nothing since.
        """
        self.cleaner.close()
        self.verify.close()
        for directory in self.directories:
            if directory.offline:
                continue
            try:
                self._close_directory(directory, clean, broker_epoch, live_broker)
            except (DiskError, LogOffline) as wrong:
                logger.error("%s is not closed cleanly: %s", directory.path, wrong)
        self._unlock()
        self._logs.clear()
        self._homes.clear()

    def _close_directory(
        self, directory: LogDirectory, clean: bool, broker_epoch: int, live_broker: LiveBroker | None
    ) -> None:
        logs = self._logs_of(directory)
        if clean:
            for log in logs:
                for _, segment in log.garbage:
                    segment.remove()
                log.flusher.settle()
            for _, path in directory.doomed:
                self._disk.remove_tree(path)
            self._disk.sync_file_system(directory.path)
            for log in logs:
                log.recovery_point = log.log_end_offset
        rivals = [log for of_partition in self._rivals.values() for log, home in of_partition if home is directory]
        for log in (*logs, *rivals):
            log.abandon()
        if not clean:
            return
        self.checkpoints.write(directory)
        marker = f"{directory.path}/{checkpoints.CLEAN_SHUTDOWN}"
        stop = CleanStop(broker_epoch)
        if live_broker is not None:
            stop = CleanStop(broker_epoch, *live_broker, tuple(self.known_directories().items()))
        self._disk.replace(marker, checkpoints.encode_clean_stop(stop))

    # ---- logs

    def known_directories(self) -> dict[str, str]:
        """The directories that this broker has, and those that are missed, by id with their paths."""
        here = {id_text(one.id): one.path for one in self.directories if one.id is not None}
        return {**self.owner.missing, **here}

    def may_have_had(self, tp: TopicPartition) -> bool:
        """Whether a log that is not here may be in a directory that is missing or offline, or was here before."""
        return bool(self.owner.missing or self.offline_directories) or tp in self._gone

    def get(self, tp: TopicPartition) -> Log | None:
        """The partition's log, if this broker has it."""
        return self._logs.get(tp)

    def all(self) -> Mapping[TopicPartition, Log]:
        """All logs."""
        return self._logs

    def usage(self) -> list[DirectoryUsage]:
        """All directories in the order of ``log.dirs``, with their logs and the room on their volumes."""
        logs: dict[str, list[Log]] = {directory.path: [] for directory in self.directories}
        for tp, log in self._logs.items():
            logs[self._homes[tp].path].append(log)
        rooms = self.room()
        return [DirectoryUsage(one.path, one.offline, total, usable, logs[one.path]) for one, total, usable in rooms]

    def room(self) -> list[tuple[LogDirectory, int, int]]:
        """The directories, each with the bytes of its volume and those that are usable: see :class:`DirectoryUsage`."""
        return [(directory, *space_of(self._disk, directory)) for directory in self.directories]

    def create(self, tp: TopicPartition, topic_id: uuid.UUID | None, config: TopicConfig) -> Log:
        """The partition's log, made in the directory that has the fewest of those with room. Raises DiskError."""
        log = self._logs.get(tp)
        if log is not None:
            return log
        online = [directory for directory in self.directories if not directory.offline]
        if not online:
            raise DiskFailed(str(tp), "all log directories are offline")
        if tp in self.checkpoints.outlived:
            # the recovery point of the log before would say that a beginning of the new one is safe on disk, its high
            # watermark that it is committed, and its start would hide that beginning
            self.checkpoints.forget_outlived(online)
        full: DiskFull | None = None
        for directory in sorted(online, key=attrgetter("logs")):
            try:
                log = self._create_in(directory, tp, topic_id, config)
            except DiskFull as wrong:
                full = full or wrong
                continue
            self.cleaner.forget(tp)
            self._add(log, directory)
            return log
        assert full is not None, "a directory was tried"
        raise full

    def _create_in(
        self, directory: LogDirectory, tp: TopicPartition, topic_id: uuid.UUID | None, config: TopicConfig
    ) -> Log:
        """A new log in that directory; without room nothing of it stays, lest a start finds it beside another one."""
        path = f"{directory.path}/{tp}"
        existed = self._disk.is_directory(path)
        try:
            log = Log.open(
                self._disk, path, tp, config, self._settings,
                now_ms=self._clock.wall_ms(), clean=True, on_failure=self._disk_failed,
                checkpoint=self._write_points[directory.path],
            )  # fmt: skip
            if topic_id is not None:
                log.write_metadata(topic_id)
        except DiskFailed:
            self.take_offline(directory)
            raise
        except DiskFull:
            if not existed and self._disk.is_directory(path):
                try:
                    self._disk.remove_tree(path)
                except DiskError as wrong:
                    logger.warning("%s: what was begun of it stays: %s", path, wrong)
            raise
        return log

    def _add(self, log: Log, directory: LogDirectory) -> None:
        previous = self._homes.get(log.topic_partition)
        if previous is not None:
            previous.logs -= 1
        directory.logs += 1
        self._logs[log.topic_partition] = log
        self._homes[log.topic_partition] = directory
        log.calls.on_full, log.calls.on_cut, log.calls.on_hole = self._calls
        log.calls.save_starts = self._write_starts[directory.path]

    def delete(self, tp: TopicPartition) -> None:
        """Forget the partition; its directory is renamed now and removed after file.delete.delay.ms."""
        log, directory = self._logs.get(tp), self._homes.get(tp)
        if log is None or directory is None:
            return
        self._remove(log, directory)
        if directory.offline:
            return
        try:
            path = self._renamed(log, directory, "delete")
            # Without waiting: before there is a log of that name again, its directory is synced (Checkpoints.outlived).
            directory.syncs.append(self._disk.sync_later([directory.path]))
        except DiskFull as wrong:
            # Not even a longer name has room. Removing needs none, and makes some.
            logger.warning("%s: removed at once: %s", log.directory, wrong)
            self._removed_at_once(log, directory)
        except DiskFailed as wrong:
            self._failed(directory, wrong)
        else:
            directory.doomed.append((self._clock.wall_ms() + log.config.file_delete_delay_ms, path))

    def set_aside(self, tp: TopicPartition) -> str | None:
        """Forget the partition, and rename its directory, which stays, to ``<partition>.<id>-stray``, as Kafka does.

        Returns the new path; None without such a log, or where its disk has failed. Raises DiskFull: the log stays.
        """
        log, directory = self._logs.get(tp), self._homes.get(tp)
        if log is None or directory is None or directory.offline:
            return None
        try:
            path = self._renamed(log, directory, "stray")
            directory.syncs.append(self._disk.sync_later([directory.path]))
        except DiskFailed as wrong:
            self._failed(directory, wrong)
            return None
        self._remove(log, directory)
        return path

    def _remove(self, log: Log, directory: LogDirectory) -> None:
        """Know the log no more."""
        tp = log.topic_partition
        del self._logs[tp], self._homes[tp]
        self.cleaner.forget(tp)
        directory.logs -= 1
        directory.room.crowded.pop(tp, None)
        if not directory.offline:
            self.checkpoints.outlived.add(tp)
            log.abandon()

    def _removed_at_once(self, log: Log, directory: LogDirectory) -> None:
        try:
            self._disk.remove_tree(log.directory)
        except DiskError as wrong:
            self._failed(directory, wrong)

    def _end_syncs(self) -> None:
        """A directory whose renames could not be made durable has failed."""
        for directory in self.directories:
            for sync in [sync for sync in directory.syncs if sync.done]:
                directory.syncs.remove(sync)
                if sync.error is not None:
                    self._failed(directory, sync.error)

    def _new_id(self, name: str) -> uuid.UUID:
        return uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{self._config.broker_id}/{self._clock.wall_ms()}")

    # ---- failure

    def _disk_failed(self, log: LogState, wrong: DiskFailed) -> None:
        directory = self._homes.get(log.topic_partition)
        if directory is not None and self._logs.get(log.topic_partition) is log:  # not one that was deleted
            self.take_offline(directory)

    def _failed(self, directory: LogDirectory, wrong: DiskError) -> None:
        logger.critical("%s: %s", directory.path, wrong)
        self.take_offline(directory)

    def take_offline(self, directory: LogDirectory) -> None:
        """The directory's disk has failed: none of its logs is served again before a restart."""
        if directory.offline:
            return
        directory.offline = True
        self.checkpoints.give_up(directory)
        logger.critical(
            "log directory %s is offline, with %d partition(s)", directory.path, len(self._logs_of(directory))
        )
        for log in self._logs_of(directory):
            log.offline = True

    def _was_cut(self, log: LogState, offset: int) -> None:
        self.cleaner.was_cut(log.topic_partition, offset)

    def _no_room(self, log: LogState, wrong: DiskFull) -> None:
        directory = self._homes.get(log.topic_partition)
        if directory is None:
            return
        log.crowded = True
        if directory.room.refused(log.topic_partition, self._clock.mono_ms()):
            logger.error(
                "log directory %s has no room (%s): free space there, or raise the quota or the limit of open files",
                directory.path, wrong.reason,
            )  # fmt: skip

    def crowded(self) -> list[Log]:
        """The logs that refused an append for want of room, and whose directories have had none since."""
        return [self._logs[tp] for directory in self.directories for tp in directory.room.crowded]

    def with_room_again(self, now_ms: int) -> list[Log]:
        """The logs whose directories have room again, each named once; ``now_ms`` of the monotonic clock."""
        logs: list[Log] = []
        for directory in self.directories:
            if directory.offline or not directory.room.due(now_ms):
                continue
            try:
                enough = has_room(*self._disk.space(directory.path))
            except DiskError as wrong:
                logger.warning("free space of the log directories is unknown: %s", wrong)
                continue
            if enough:
                logger.info("log directory %s has room again", directory.path)
                logs += [self._logs[tp] for tp in directory.room.returned(now_ms)]
        for log in logs:
            log.crowded = False
        return logs

    @property
    def offline_directories(self) -> list[str]:
        """Paths of the directories that failed."""
        return [directory.path for directory in self.directories if directory.offline]

    def _logs_of(self, directory: LogDirectory) -> list[Log]:
        return [log for tp, log in self._logs.items() if self._homes[tp] is directory]

    # ---- upkeep

    def checkpoint(self) -> None:
        """Write recovery points, log starts, high watermarks and the cleaner's progress of all directories now."""
        self.checkpoints.write_all()

    def tick(self, now_ms: int, late_ms: float = 0) -> None:
        """A little upkeep, see :meth:`Upkeep.tick`; call it about every second."""
        self._upkeep.tick(now_ms, late_ms)

    def resume_cleaning(self, now_ms: int) -> bool:
        """Between two ticks, as often as one likes: a pass of compaction continues as far as its budget allows.

        Returns whether that was of use now.
        """
        return self._upkeep.resume_cleaning(now_ms)


def _reach(log: Log) -> tuple[int, int]:
    """Epoch and offset of the last record, to compare copies by."""
    last_offset = log.log_end_offset - 1
    return log.epochs.epoch_at(last_offset), last_offset
