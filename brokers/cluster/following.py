"""A replica that follows: appending what its leader has, cutting off what its leader never had.

Every call names the leader epoch of the fetch that it answers; an answer from before a change of leader does nothing.

Source: KIP-101 and KIP-279 (truncation by epoch), KIP-595 (the diverging epoch in a Fetch answer), KIP-320.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from _native.batch import parse_header
from brokers.log import DiskError, Log, LogOffline
from brokers.model import Clock, PartitionState, TopicPartition
from wire.errors import ErrorCode

if TYPE_CHECKING:
    import uuid

logger = logging.getLogger(__name__)


class Position(NamedTuple):
    """Where a follower's next fetch begins, and the epoch of the record before it (-1: its log is empty)."""

    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class Following:
    """The following half of ``Partition``."""

    def __init__(
        self, tp: TopicPartition, topic_id: uuid.UUID, log: Log, state: PartitionState, *, broker_id: int, clock: Clock
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.state = state
        self.is_leader = False
        self.leader_epoch = -1
        self.deleted = False
        self.lost_commits = 0
        """How often a truncation went below the high watermark: only an unclean election may cause it."""
        self._broker_id = broker_id
        self._clock = clock

    def committed(self) -> None:
        """The high watermark or the log's start moved."""
        raise NotImplementedError

    def fetch_position(self) -> Position:
        """Where to fetch from."""
        return Position(self.log.log_end_offset, self.log.epochs.latest, self.log.log_start_offset)

    def _refusal(self, leader_epoch: int) -> ErrorCode:
        if self.deleted:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.is_leader or leader_epoch != self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def replicate(
        self, leader_epoch: int, records: memoryview, high_watermark: int, log_start_offset: int, now_ms: int
    ) -> ErrorCode:
        """Append the leader's batches as they are, then follow its high watermark and log start. Never raises."""
        error = self._refusal(leader_epoch)
        if error is not ErrorCode.NONE:
            return error
        log = self.log
        if len(records):
            info = log.append_as_follower(records, now_ms=now_ms)
            if info.error is ErrorCode.OFFSET_OUT_OF_RANGE and self._step_back(records, log_start_offset):
                info = log.append_as_follower(records, now_ms=now_ms)
            if info.error is not ErrorCode.NONE:
                logger.error(
                    "%s: records from leader %d at offset %d refused: %s",
                    self.tp, self.state.leader, log.log_end_offset, info.error_message,
                )  # fmt: skip
                return info.error
        moved = False
        watermark = min(high_watermark, log.log_end_offset)
        if watermark > log.high_watermark:
            log.set_high_watermark(watermark)
            moved = True
        if log.log_start_offset < log_start_offset <= log.log_end_offset:
            error = self._guarded(lambda: log.raise_start(log_start_offset))
            moved = True
        if moved:
            self.committed()
        return error

    def _step_back(self, records: memoryview, leader_start: int) -> bool:
        """The leader's log may start within a batch, for deleted records need not end with one. If we have nothing that
        still counts, our log begins with that batch, too; its start follows the leader's again afterwards.
        """
        log, first = self.log, parse_header(records)
        nothing = log.log_end_offset <= max(log.log_start_offset, leader_start)
        if not nothing or not first.base_offset < log.log_end_offset <= first.last_offset:
            return False
        return self._guarded(lambda: log.restart_at(first.base_offset)) is ErrorCode.NONE

    def diverged(self, leader_epoch: int, epoch: int, end_offset: int) -> ErrorCode:
        """Truncate: at the leader, ``epoch`` (the largest that is not above our last one) ended at ``end_offset``.

        Our own end of the largest epoch up to that one counts too, for we may have records of an epoch that the
        leader never heard of. The next fetch tells whether another step is needed.
        """
        error = self._refusal(leader_epoch)
        if error is not ErrorCode.NONE:
            return error
        log = self.log
        own_epoch, own_end = log.epoch_end_offset(epoch)
        if own_epoch < 0 and own_end < 0:
            # no epoch of ours is known at or below the leader's: nothing of ours is surely its too
            target = end_offset if end_offset >= 0 else log.log_start_offset
        else:
            target = min(end_offset, own_end) if own_epoch == epoch else own_end
        return self._truncate(target, f"leader {self.state.leader} ended epoch {epoch} at offset {end_offset}")

    def out_of_range(self, leader_epoch: int, leader_start: int, leader_end: int) -> ErrorCode:
        """Our position isn't in the leader's log: start over at its start, or cut back to its end."""
        error = self._refusal(leader_epoch)
        if error is not ErrorCode.NONE:
            return error
        log = self.log
        if log.log_end_offset > leader_end:
            return self._truncate(leader_end, f"leader {self.state.leader} ends at offset {leader_end}")
        if log.log_end_offset < leader_start:
            logger.warning(
                "%s: the leader's log starts at offset %d, ours ends at %d: starting over there",
                self.tp, leader_start, log.log_end_offset,
            )  # fmt: skip
            error = self._guarded(lambda: log.restart_at(leader_start, now_ms=self._clock.wall_ms()))
            self.committed()
        return error

    def _truncate(self, offset: int, why: str) -> ErrorCode:
        log = self.log
        if offset < log.high_watermark:
            self.lost_commits += 1
            logger.error(
                "%s: truncating to offset %d, below the high watermark %d: committed records are lost here (%s)",
                self.tp, offset, log.high_watermark, why,
            )  # fmt: skip
        elif offset < log.log_end_offset:
            logger.info("%s: truncating from offset %d to %d (%s)", self.tp, log.log_end_offset, offset, why)
        error = self._guarded(lambda: log.truncate_to(max(0, offset), now_ms=self._clock.wall_ms()))
        self.committed()
        return error

    def _guarded(self, action: Callable[[], object]) -> ErrorCode:
        try:
            action()
        except (LogOffline, DiskError) as problem:
            logger.error("%s: %s", self.tp, problem)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE
