"""What a log is made of: its files, what is known from them, and what happens when the disk fails.

:class:`LogState` is the bottom of three: ``reads`` adds what only looks, ``log`` what changes.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from _native.errors import CorruptBatch
from brokers.config import TopicConfig
from brokers.log import recovery
from brokers.log.background import PendingSync
from brokers.log.checkpoints import LEADER_EPOCH_CHECKPOINT
from brokers.log.failures import DiskFailed, DiskFull, LogOffline
from brokers.log.files import DiskPort, FileSlice
from brokers.log.producers import ProducerState
from brokers.log.recovery import RecoveryReport
from brokers.log.segment import Segment
from brokers.log.segments import Segments
from brokers.model import INTERNAL_TOPICS
from wire.compression import CodecError
from wire.errors import ErrorCode
from wire.types import TopicPartition

logger = logging.getLogger(__name__)

_WARM_INDEXES = 4

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="LogState")


class AppendInfo(NamedTuple):
    """What became of an append. ``error`` is NONE if the batches are in the log (or were before: ``duplicate``)."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_count: int
    size: int
    duplicate: bool
    error: ErrorCode
    error_message: str | None
    record_errors: tuple[tuple[int, str], ...] = ()


class ReadResult(NamedTuple):
    """Whole batches from the one holding ``first_offset``; ``next_offset`` is where the next read goes on."""

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


def guarded(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Refuse when offline; on a failed disk go offline; damage found while reading is told as the log's failure too."""

    @functools.wraps(method)
    def inner(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.offline:
            raise LogOffline(self.directory)
        try:
            return method(self, *args, **kwargs)
        except DiskFailed as wrong:
            self.fail(wrong)
            raise LogOffline(self.directory, str(wrong)) from wrong
        except (CorruptBatch, CodecError) as wrong:
            logger.error("%s: damaged batch: %s", self.directory, wrong)
            raise LogOffline(self.directory, f"damaged batch: {wrong}") from wrong

    return inner  # type: ignore[return-value]  # functools.wraps hides that it is a method


class LogState:
    """A log's parts; see ``Log``."""

    def __init__(
        self,
        disk: DiskPort,
        directory: str,
        topic_partition: TopicPartition,
        config: TopicConfig,
        settings: LogSettings,
        loaded: recovery.Loaded,
        *,
        topic_id: uuid.UUID | None,
        recovery_point: int,
        high_watermark: int,
        now_ms: int,
        on_failure: Callable[[LogState, DiskFailed], None] | None = None,
        warned_topics: set[str] | None = None,
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
        self.cuts = 0
        """Counts truncations and deletions: who works on segments over several turns looks whether it still may."""
        self.unflushed_since_ms: int | None = None
        self.dirty_names = recovery_point < loaded.log_end_offset or not loaded.report.clean
        """Whether files were made or renamed since the directory was last fsynced."""
        self.garbage: list[tuple[int, Segment]] = []
        """Deleted segments, with the time at which their files go."""
        self._on_failure = on_failure
        self._checkpoint = checkpoint
        self._warm: list[Segment] = []
        self._epochs_durable = True
        self._settled = not self.dirty_names and not loaded.report.changed
        self._warned_topics = set() if warned_topics is None else warned_topics
        self.pending_flush: tuple[PendingSync, int, int] | None = None
        """A flush under way: the work, the offset it reaches, and ``cuts`` when it began."""
        self._config = config
        self.config = config
        self.producers.high_watermark_moved(self.high_watermark)
        if self.epochs.behind:
            self.save_epochs()

    # ---- what it is

    @property
    def config(self) -> TopicConfig:
        """The topic's settings; assigning new ones takes effect with the next append or upkeep."""
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        topic = self.topic_partition.topic
        if "compact" in config.cleanup_policy and not self.is_internal and topic not in self._warned_topics:
            self._warned_topics.add(topic)
            logger.warning("%s: cleanup.policy=compact is accepted, but superseded records are kept for now", topic)

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

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch, -1 if none is known."""
        return self.epochs.latest

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch not above ``epoch``, and where it ended; (-1, -1) if unknown."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def assign_epoch(self, epoch: int) -> None:
        """A leader starts to append in this epoch; the first append writes it down."""
        self.epochs.begin(epoch, self.log_end_offset)
        if self.epochs.behind:
            self.save_epochs()

    def keep_warm(self, segment: Segment) -> None:
        """Closed segments keep their indexes in memory only while they are among the last few read."""
        warm = self._warm
        if segment is self.segments.active or (warm and warm[-1] is segment):
            return
        if segment in warm:
            warm.remove(segment)
        warm.append(segment)
        if len(warm) > _WARM_INDEXES:
            cold = warm.pop(0)
            if cold is not self.segments.active:
                cold.unload()

    def fail(self, wrong: DiskFailed) -> None:
        """The disk under this log has failed: no retry, and the whole directory with it."""
        if not self.offline:
            self.offline = True
            logger.critical("%s goes offline: %s", self.directory, wrong)
            if self._on_failure is not None:
                self._on_failure(self, wrong)

    def save_epochs(self, *, durable: bool = False) -> None:
        """Write the leader epochs. Without room they stay in memory for the next try: recovery can make them anew."""
        if not self.epochs.dirty and not durable:
            return
        try:
            self.disk.replace(f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}", self.epochs.to_bytes(), durable=durable)
        except DiskFull as wrong:
            logger.warning("%s: leader epochs not written: %s", self.topic_partition, wrong)
            return
        except DiskFailed as wrong:
            self.fail(wrong)
            return
        self.epochs.saved()
        self._epochs_durable = durable
