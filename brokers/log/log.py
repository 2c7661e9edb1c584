"""One partition's log. The loop thread is its only owner; nothing here is safe to call from another.

A log is composed: an appender, a reader, a flusher and a truncation work on one :class:`LogState`. Appends answer with
outcomes whatever goes wrong; all other methods raise LogOffline when the disk has failed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

from fleetlog.brokers.config import TopicConfig
from fleetlog.brokers.log import recovery
from fleetlog.brokers.log.append import Appender
from fleetlog.brokers.log.disk.checkpoints import PARTITION_METADATA, encode_partition_metadata
from fleetlog.brokers.log.disk.failures import DiskFailed, LogOffline
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.log.flush import Flusher
from fleetlog.brokers.log.producers.state import ProducerState
from fleetlog.brokers.log.read import LogReader
from fleetlog.brokers.log.state import LogSettings, LogState
from fleetlog.brokers.log.truncate import Truncation
from fleetlog.brokers.model import INTERNAL_TOPICS
from fleetlog.wire.types import TopicPartition

logger = logging.getLogger(__name__)


class Log(LogState):
    """A partition's records on disk, with what follows from them.

    The state is the log's base class, and not one more part: the parts are given the state alone, so none of them can
    call another behind its back, while every request reads offsets, settings and failures from the log itself. Held as
    a part, the state would cost each of these reads another attribute or the call of a property.
    """

    @classmethod
    def open(
        cls,
        disk: DiskPort,
        directory: str,
        topic_partition: TopicPartition,
        config: TopicConfig,
        settings: LogSettings | None = None,
        *,
        now_ms: int,
        topic_id: uuid.UUID | None = None,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        may_have_holes: bool = False,
        point_is_known: bool = True,
        on_failure: Callable[[LogState, DiskFailed], None] | None = None,
        checkpoint: Callable[[], None] | None = None,
    ) -> Log:
        """Load the directory (made if absent), recovering it unless it was closed ``clean``. Raises DiskError.

        ``may_have_holes``: it was compacted, or its leader's log was, whatever the topic's settings say now.
        ``point_is_known``: False where the recovery points of a used directory are missing or damaged.
        """
        settings = settings or LogSettings()
        loaded = recovery.load_log(
            disk,
            directory,
            topic_partition,
            ProducerState(expiration_ms=settings.producer_expiration_ms, max_producers=settings.max_producers),
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            index_interval_bytes=config.index_interval_bytes,
            may_have_holes=may_have_holes
            or topic_partition.topic in INTERNAL_TOPICS
            or "compact" in config.cleanup_policy,
            point_is_known=point_is_known,
        )
        log = cls(
            disk, directory, topic_partition, config, settings, loaded, topic_id=topic_id,
            recovery_point=recovery_point, now_ms=now_ms, high_watermark=high_watermark, on_failure=on_failure,
            checkpoint=checkpoint,
        )  # fmt: skip
        if config.fleetlog_dedup != "none":
            log.deduplicate(config)
        return log

    __slots__ = ("appender", "flusher", "reader", "truncation")

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.flusher = Flusher(self)
        self.appender = Appender(self, self.flusher)
        self.reader = LogReader(self)
        self.truncation = Truncation(self)

    def write_metadata(self, topic_id: uuid.UUID) -> None:
        """Write ``partition.metadata``; it reaches the disk in the background. Raises DiskError.

        Without its file, only the states that count on a log tell it from one of a deleted topic of the same name.
        """
        path = f"{self.directory}/{PARTITION_METADATA}"
        self.disk.replace(path, encode_partition_metadata(topic_id), durable=False)
        self.disk.sync_later([path, self.directory])
        self.topic_id = topic_id

    def close(self, *, clean: bool = True) -> None:
        """Close the files; when ``clean``, with everything flushed and a producer snapshot at the end.

        Raises DiskFull, LogOffline.
        """
        if self.offline:
            raise LogOffline(self.directory)
        if clean and self.flusher.settle():
            self.flusher.flush()
        self.abandon()

    def abandon(self) -> None:
        """Give all descriptors back without writing anything. Its methods raise LogOffline from now on.

        A read would open the files by their paths again, where there may be another log by then.
        """
        self.offline = True
        for segment in self.segments:
            segment.log.close()
            segment.offset_index.close()
            segment.time_index.close()
            segment.txn_index.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic_partition}, [{self.log_start_offset}, {self.log_end_offset}))"
