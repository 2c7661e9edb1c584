"""The entries of ``log.dirs``, and what is without room: which appends it refused, and when it is worth another try.

A refusal (no space, a quota, no file descriptor) marks the log until its directory has room again: not only for the
next batch, or its replica would come and go with each of them, and not before a pause, which grows while the directory
keeps filling up. What the replicas on it do meanwhile is ``brokers.replication.full_disks``'s.

Writing the checkpoints of the log directories, as a rule without waiting for a disk.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fleetlog.brokers.log.disk import checkpoints
from fleetlog.brokers.log.disk.failures import DiskError, DiskFailed, DiskFull
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.metrics.registry import Histogram
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.log.disk.background import PendingSync
    from fleetlog.brokers.log.disk.checkpoints import CleanStop
    from fleetlog.brokers.log.disk.files import DiskLock
    from fleetlog.brokers.log.log import Log
    from fleetlog.brokers.model import Clock

logger = logging.getLogger(__name__)


class BackgroundCheckpoint:
    """Files of one directory that are about to be replaced: written now, fsynced on the disk's thread, then renamed.

    The names change on the caller's thread, in :meth:`step` alone. So a caller that must replace one of them at once
    drops this object first, and nothing older can come after what it writes.
    """

    __slots__ = ("_disk", "_names", "_path", "_pending")

    def __init__(self, disk: DiskPort, path: str, files: Mapping[str, bytes]) -> None:
        """Write ``files`` (name -> content) of the directory ``path`` beside the old ones. Raises DiskError."""
        self._disk = disk
        self._path = path
        self._names = list(files)
        for name, data in files.items():
            file = disk.open(self._temporary(name), create=True)
            try:
                file.truncate(0)
                file.write(data, 0)
            finally:
                file.close()
        self._pending = disk.sync_later([self._temporary(name) for name in files])

    def _temporary(self, name: str) -> str:
        return f"{self._path}/{name}.tmp"

    def leave_out(self, name: str) -> None:
        """Something newer has replaced that file."""
        self._names = [known for known in self._names if known != name]

    def step(self) -> bool:
        """Continue if the disk is through with what was asked of it; whether all is durable now. Raises DiskError."""
        if not self._pending.done:
            return False
        if self._pending.error is not None:
            raise self._pending.error
        if not self._names:
            return True
        for name in self._names:
            self._disk.rename(self._temporary(name), f"{self._path}/{name}")
        self._names = []
        self._pending = self._disk.sync_later([self._path])
        return False


class MarkFiles:
    """A small file of that name in each log directory, the same in all of them: it outlives the loss of all but one.

    Loop thread only.
    """

    def __init__(self, disk: DiskPort, directories: Sequence[LogDirectory], name: str) -> None:
        self._disk = disk
        self._directories = directories
        self._name = name
        self._saved: bytes | None = None
        self._under_way: dict[str, BackgroundCheckpoint] = {}

    def read(self) -> dict[str, bytes]:
        """What the files hold, by their paths."""
        contents = {}
        for directory in self._online():
            path = f"{directory.path}/{self._name}"
            try:
                data = self._disk.read(path)
            except DiskError as wrong:
                logger.warning("%s cannot be read: %s", path, wrong)
                continue
            if data is not None:
                contents[path] = data
        return contents

    def save(self, data: bytes) -> None:
        """Write it, if it is news, without waiting for a disk. Call now and then: it also ends what is under way."""
        if self._under_way:
            for path in list(self._under_way):
                self._step(path)
            return
        if data == self._saved:
            return
        self._saved = data
        for directory in self._online():
            try:
                self._under_way[directory.path] = BackgroundCheckpoint(self._disk, directory.path, {self._name: data})
            except DiskError as wrong:
                self._failed(directory.path, wrong)

    def save_now(self, data: bytes) -> None:
        """Write it, and be done with it when this returns."""
        self._under_way.clear()
        self._saved = data
        for directory in self._online():
            try:
                self._disk.replace(f"{directory.path}/{self._name}", data)
            except DiskError as wrong:
                self._failed(directory.path, wrong)

    def _step(self, path: str) -> None:
        try:
            if self._under_way[path].step():
                del self._under_way[path]
        except DiskError as wrong:
            del self._under_way[path]
            self._failed(path, wrong)

    def _failed(self, path: str, wrong: DiskError) -> None:
        self._saved = None  # another try
        logger.warning("%s/%s is not saved: %s", path, self._name, wrong)

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if not directory.offline]


def hold_partitions(disk: DiskPort, path: str) -> bool:
    """Whether a directory holds the log of a partition."""
    return any(PARTITION_DIRECTORY.fullmatch(name) for name in disk.names(path))


FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1_000, 60_000
CALM_MS = 300_000
"""A directory that had room for so long begins with the first pause again."""


class Room:
    """What one log directory refused for want of room; empty where all is well."""

    __slots__ = ("_again_ms", "_calm_from_ms", "_pause_ms", "crowded")

    def __init__(self) -> None:
        self.crowded: dict[TopicPartition, None] = {}
        self._pause_ms = 0
        self._again_ms = 0
        self._calm_from_ms = 0

    def refused(self, tp: TopicPartition, now_ms: int) -> bool:
        """An append found no room; whether that is news of the directory."""
        news = not self.crowded
        if news:
            calm = now_ms >= self._calm_from_ms
            self._pause_ms = FIRST_PAUSE_MS if calm else min(2 * self._pause_ms, LONGEST_PAUSE_MS)
        self.crowded[tp] = None
        self._again_ms = now_ms + self._pause_ms
        return news

    def due(self, now_ms: int) -> bool:
        """Whether to look how much room there is."""
        return bool(self.crowded) and now_ms >= self._again_ms

    def returned(self, now_ms: int) -> list[TopicPartition]:
        """There is room: those that were refused, of which none is any more."""
        partitions = list(self.crowded)
        self.crowded.clear()
        self._calm_from_ms = now_ms + CALM_MS
        return partitions


PARTITION_DIRECTORY = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")
"""Names of the directories that hold the log of a partition."""
STRAY_DIRECTORY = re.compile(r"(?P<partition>.+)\.[0-9a-f]{32}-stray")
"""Names of those that were put aside: nothing but a person removes them."""
_STRAYS_PER_LOOK = 100
_STRAYS_NAMED = 5


class LogDirectory:
    """One entry of ``log.dirs``."""

    __slots__ = ("checkpoint", "doomed", "fresh", "id", "lock", "logs", "offline", "path", "room", "stopped", "strays",
                 "syncs")  # fmt: skip

    def __init__(self, path: str) -> None:
        self.path = path
        self.offline = False
        self.fresh = False
        """Whether it was empty, and became this broker's at this start."""
        self.room = Room()
        self.lock: DiskLock | None = None
        self.id: uuid.UUID | None = None
        self.stopped: CleanStop | None = None
        """What it said of its last clean stop when it was opened."""
        self.logs = 0
        """How many logs it holds."""
        self.checkpoint: BackgroundCheckpoint | None = None
        """The one under way."""
        self.syncs: list[PendingSync] = []
        """Of the directory itself, after renames that nothing waits for."""
        self.doomed: list[tuple[int, str]] = []
        """Renamed partition directories and the time at which they go."""
        self.strays: dict[str, int] = {}
        """What was put aside, by path, with the bytes of its segments."""

    def found_stray(self, disk: DiskPort, path: str) -> None:
        """Such a directory was there at the start; one that cannot be read has no bytes."""
        self.strays[path] = 0
        with contextlib.suppress(DiskError):
            for name in disk.names(path):
                self.strays[path] += (disk.size(f"{path}/{name}") or 0) if name.endswith(".log") else 0

    def forget_removed_strays(self, disk: DiskPort) -> None:
        """Forget what a person has removed; each call looks at some."""
        for path in list(islice(self.strays, _STRAYS_PER_LOOK)):
            size = self.strays.pop(path)
            if disk.is_directory(path):
                self.strays[path] = size

    def strays_text(self) -> str | None:
        """What lies aside and how large it is, for a person; None if nothing does."""
        if self.offline or not self.strays:
            return None
        matches = (STRAY_DIRECTORY.fullmatch(path.rsplit("/", 1)[1]) for path in self.strays)
        names = sorted(match["partition"] for match in matches if match)
        more = f" and {len(names) - _STRAYS_NAMED} more" if len(names) > _STRAYS_NAMED else ""
        size = sum(self.strays.values())
        return f"{len(names)} log(s), {size} bytes, lie aside in {self.path}: {', '.join(names[:_STRAYS_NAMED])}{more}"


class DirectoryUsage(NamedTuple):
    """What one log directory holds. The bytes are those of its volume; -1 where they are unknown.

    None is usable while it refuses appends, whatever the volume says: a quota, or a want of descriptors, isn't seen
    there.
    """

    path: str
    offline: bool
    total_bytes: int
    usable_bytes: int
    logs: list[Log]


def space_of(disk: DiskPort, directory: LogDirectory) -> tuple[int, int]:
    """The bytes of the directory's volume, and those that are usable: see :class:`DirectoryUsage`."""
    total, usable = -1, -1
    if not directory.offline:
        try:
            total, usable = disk.space(directory.path)
        except DiskError as wrong:
            logger.warning("free space of the log directories is unknown: %s", wrong)
        if directory.room.crowded:
            usable = 0
    return total, usable


class TopicIds:
    """Reads ``partition.metadata``; that of all partitions of a topic is the same."""

    def __init__(self, disk: DiskPort) -> None:
        self._disk = disk
        self._known: dict[bytes, uuid.UUID] = {}

    def read(self, directory: str) -> uuid.UUID | None:
        """The id; None where there is none, or none that can be read."""
        data = self._disk.read(f"{directory}/{checkpoints.PARTITION_METADATA}")
        if data is None:
            return None
        topic_id = self._known.get(data)
        if topic_id is None:
            try:
                topic_id = self._known[data] = checkpoints.decode_partition_metadata(data)
            except checkpoints.DamagedFile as wrong:
                logger.warning("%s: %s; ignored", directory, wrong)
        return topic_id


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
