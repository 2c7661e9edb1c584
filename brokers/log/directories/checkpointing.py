"""Writing the checkpoints of the log directories, as a rule without waiting for a disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fleetlog.brokers.log.disk import checkpoints
from fleetlog.brokers.log.disk.background_checkpoint import BackgroundCheckpoint
from fleetlog.brokers.log.disk.failures import DiskError, DiskFailed, DiskFull
from fleetlog.brokers.metrics.registry import Histogram

if TYPE_CHECKING:
    from fleetlog.brokers.log.directories.directories import LogDirectory
    from fleetlog.brokers.log.disk.background import PendingSync
    from fleetlog.brokers.log.disk.files import DiskPort
    from fleetlog.brokers.log.log import Log
    from fleetlog.brokers.model import Clock
    from fleetlog.wire.types import TopicPartition

logger = logging.getLogger(__name__)


class CheckpointTimes:
    """How long the checkpoints of a directory took until they were durable, and when, by its path, the last were."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun_us: dict[str, int] = {}
        self.seconds = Histogram()
        self.ended_ms: dict[str, int] = {}

    def begin(self, path: str) -> None:
        """The first of a directory's files is about to be written."""
        self._begun_us[path] = self._clock.mono_us()

    def end(self, path: str) -> None:
        """All of them are durable."""
        self.seconds.observe((self._clock.mono_us() - self._begun_us[path]) / 1e6)
        self.ended_ms[path] = self._clock.mono_ms()


class Checkpoints:
    """Recovery points, log starts, high watermarks and the cleaner's progress of all directories."""

    def __init__(
        self,
        disk: DiskPort,
        directories: Sequence[LogDirectory],
        logs_of: Callable[[LogDirectory], list[Log]],
        cleaned: Callable[[], dict[TopicPartition, int]],
        on_failure: Callable[[LogDirectory, DiskError], None],
        clock: Clock,
    ) -> None:
        self.times = CheckpointTimes(clock)
        self._disk = disk
        self._directories = directories
        self._logs_of = logs_of
        self._cleaned = cleaned
        self._on_failure = on_failure
        self.outlived: set[TopicPartition] = set()
        """Partitions whose logs are gone, but not yet from the checkpoints."""
        self._compacted: set[str] = set()
        """Directories with a checkpoint of the cleaner."""
        self._covered: set[TopicPartition] = set()
        """Those that the checkpoints under way will take out of it, if none of them is given up."""

    def write_all(self) -> None:
        """Write all now, and be done with it when this returns. A directory that is full keeps its old ones."""
        outlived, self.outlived = self.outlived, set()
        for directory in self._directories:
            if not self._tried(directory, self.write):
                self.outlived |= outlived

    def begin(self) -> None:
        """As :meth:`write_all`, without waiting for a disk: :meth:`resume` does the rest."""
        if any(directory.checkpoint is not None for directory in self._directories):
            return
        self._covered = set(self.outlived)
        for directory in self._directories:
            self._tried(directory, self._begin)

    def resume(self) -> None:
        """Call now and then."""
        under_way = [directory for directory in self._directories if directory.checkpoint is not None]
        for directory in under_way:
            self._tried(directory, self._schedule)
        if under_way and all(directory.checkpoint is None for directory in under_way):
            self.outlived -= self._covered

    def _tried(self, directory: LogDirectory, action: Callable[[LogDirectory], None]) -> bool:
        """Whether that could be done, or is not needed."""
        if directory.offline:
            return True
        try:
            action(directory)
        except DiskFull as wrong:
            self.give_up(directory)
            logger.warning("checkpoints of %s postponed: %s", directory.path, wrong)
            return False
        except DiskFailed as wrong:
            self._on_failure(directory, wrong)
        return True

    def _begin(self, directory: LogDirectory) -> None:
        self.times.begin(directory.path)
        directory.checkpoint = BackgroundCheckpoint(self._disk, directory.path, self._files(directory))

    def _schedule(self, directory: LogDirectory) -> None:
        if directory.checkpoint is not None and directory.checkpoint.step():
            directory.checkpoint = None
            self.times.end(directory.path)

    def give_up(self, directory: LogDirectory) -> None:
        """Forget what is under way there."""
        directory.checkpoint = None
        self._covered = set()

    def forget_outlived(self, directories: Iterable[LogDirectory]) -> None:
        """Before a log of an outlived partition's name is made. Raises DiskError."""
        for directory in directories:
            self.write(directory)
        self.outlived.clear()

    def write(self, directory: LogDirectory) -> None:
        """All checkpoints of a directory, now. Raises DiskError."""
        self.times.begin(directory.path)
        self._replace(directory, self._files(directory))
        self.times.end(directory.path)

    def write_points(self, directory: LogDirectory) -> None:
        """Recovery points and high watermarks, now: one of them is lower than before. Raises DiskError."""
        logs = self._logs_of(directory)
        self._replace(directory, _recovery_points(logs) | _high_watermarks(logs))

    def lower(self, directory: LogDirectory) -> None:
        """A log ended at the start below what is said of it: that would be believed of what is appended from now on."""
        self._tried(directory, self.write)

    def write_starts(self, directory: LogDirectory) -> None:
        """The logs' starts, now: they outlive this process, and reach the disk in the background. Raises DiskError.

        The other checkpoints under way continue: deletions may come more often than those take.
        """
        logs, path = self._logs_of(directory), f"{directory.path}/{checkpoints.LOG_START_CHECKPOINT}"
        if directory.checkpoint is not None:  # before: they have one temporary name
            directory.checkpoint.leave_out(checkpoints.LOG_START_CHECKPOINT)
        self._disk.replace(path, _starts(logs)[checkpoints.LOG_START_CHECKPOINT], durable=False)
        directory.syncs.append(self._disk.sync_later([path, directory.path]))
        for log in logs:
            log.calls.saved_start = log.log_start_offset

    def _replace(self, directory: LogDirectory, files: Mapping[str, bytes]) -> None:
        self.give_up(directory)  # its recovery points may be too high
        for name, data in files.items():
            self._disk.replace(f"{directory.path}/{name}", data)

    def _files(self, directory: LogDirectory) -> dict[str, bytes]:
        """All checkpoints of a directory by the names of their files, the recovery points first."""
        logs = self._logs_of(directory)
        return _recovery_points(logs) | _starts(logs) | _high_watermarks(logs) | self._cleaner_file(directory, logs)

    def _cleaner_file(self, directory: LogDirectory, logs: Iterable[Log]) -> dict[str, bytes]:
        """How far the directory's logs are clean; nothing as long as no log in it ever was."""
        cleaned = self._cleaned()
        table = {log.topic_partition: cleaned[log.topic_partition] for log in logs if log.topic_partition in cleaned}
        if not table and directory.path not in self._compacted:
            return {}
        self._compacted.add(directory.path)
        return {checkpoints.CLEANER_CHECKPOINT: checkpoints.encode_offsets(table)}

    def had_cleaner_file(self, directory: LogDirectory) -> None:
        """The directory has one from before the start."""
        self._compacted.add(directory.path)

    def write_cleaned(self, directory: LogDirectory) -> PendingSync:
        """How far logs are clean, now; it reaches the disk in the background. Raises DiskError."""
        path = f"{directory.path}/{checkpoints.CLEANER_CHECKPOINT}"
        files = self._cleaner_file(directory, self._logs_of(directory))
        if directory.checkpoint is not None:
            directory.checkpoint.leave_out(checkpoints.CLEANER_CHECKPOINT)
        self._disk.replace(path, files[checkpoints.CLEANER_CHECKPOINT], durable=False)
        return self._disk.sync_later([path, directory.path])


def _recovery_points(logs: Iterable[Log]) -> dict[str, bytes]:
    points = {log.topic_partition: log.recovery_point for log in logs}
    return {checkpoints.RECOVERY_POINT_CHECKPOINT: checkpoints.encode_offsets(points)}


def _high_watermarks(logs: Iterable[Log]) -> dict[str, bytes]:
    table = {log.topic_partition: log.high_watermark for log in logs}
    return {checkpoints.HIGH_WATERMARK_CHECKPOINT: checkpoints.encode_offsets(table)}


def _starts(logs: Iterable[Log]) -> dict[str, bytes]:
    """Of the logs that start inside a segment; the others' first segments say it."""
    inside = [log for log in logs if log.log_start_offset > log.segments.first.base_offset]
    table = {log.topic_partition: log.log_start_offset for log in inside}
    return {checkpoints.LOG_START_CHECKPOINT: checkpoints.encode_offsets(table)}
