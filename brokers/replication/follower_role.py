"""The follower role of a replica: append the leader's records, truncate records that the leader does not have.

Every call has the leader epoch of its fetch; a response from before a change of leader has no effect.

Source: KIP-101 and KIP-279 (truncation by epoch), KIP-595 (the diverging epoch in a Fetch response), KIP-320.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fleetlog._native.batch import parse_header
from fleetlog.brokers.log import DiskError, DiskFull, Log, LogOffline
from fleetlog.brokers.log.position_snapshot import load_positions
from fleetlog.brokers.model import Clock, PartitionState, TopicPartition
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.topic_figures import TopicFigures

logger = logging.getLogger(__name__)


class Position(NamedTuple):
    """The offset of a follower's next fetch, and the epoch of the record before it (-1: the log is empty)."""

    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class FollowingReplica(Protocol):
    """What the role needs of its partition."""

    tp: TopicPartition
    log: Log
    state: PartitionState
    is_leader: bool
    leader_epoch: int
    deleted: bool
    figures: TopicFigures | None

    def committed(self) -> None:
        """The high watermark or the log start moved."""
        ...


class FollowerRole:
    """See the module. It acts only while its replica follows in the epoch of the call."""

    __slots__ = ("_clock", "_replica", "_stopped", "lost_commits")

    def __init__(self, replica: FollowingReplica, clock: Clock, stopped: dict[TopicPartition, str]) -> None:
        """``stopped``: why replicas of this broker do not follow their leaders, kept by their roles."""
        self._replica = replica
        self._clock = clock
        self.lost_commits = 0
        """The number of truncations below the high watermark: only an unclean election may cause one."""
        self._stopped = stopped

    def fetch_position(self) -> Position:
        """The position of the next fetch. Its log start is one that this replica's directory has stored."""
        log = self._replica.log
        start = log.log_start_offset
        if start != log.calls.saved_start and self._guarded(log.truncation.save_start) is not ErrorCode.NONE:
            start = min(start, log.calls.saved_start)
        return Position(log.log_end_offset, log.epochs.latest, start)

    def _refusal(self, leader_epoch: int) -> ErrorCode:
        replica = self._replica
        if replica.deleted:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if replica.is_leader or leader_epoch != replica.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def replicate(
        self, leader_epoch: int, records: memoryview, high_watermark: int, log_start_offset: int, now_ms: int
    ) -> ErrorCode:
        """Append the leader's batches as they are, then apply its high watermark and log start. Never raises."""
        error = self._refusal(leader_epoch)
        if error is not ErrorCode.NONE:
            return error
        replica = self._replica
        log = replica.log
        if len(records):
            info = log.appender.append_as_follower(records, now_ms=now_ms)
            if info.error is ErrorCode.OFFSET_OUT_OF_RANGE and self._step_back(records, log_start_offset):
                info = log.appender.append_as_follower(records, now_ms=now_ms)
            if info.error is not ErrorCode.NONE:
                logger.error(
                    "%s: records from leader %d at offset %d rejected: %s",
                    replica.tp, replica.state.leader, log.log_end_offset, info.error_message,
                )  # fmt: skip
                return info.error
            if replica.figures is not None:
                replica.figures.replicated_in += info.size
        watermark = min(high_watermark, log.log_end_offset)
        rises = watermark > log.high_watermark
        starts_later = log.log_start_offset < log_start_offset <= log.log_end_offset
        if starts_later:  # before anything counts as committed: below the leader's start other records may lie here
            error = self._guarded(lambda: log.truncation.raise_start(log_start_offset))
        self.goes_on()
        if rises:
            log.appender.set_high_watermark(watermark)
        if rises or starts_later:
            replica.committed()
        return error

    def _step_back(self, records: memoryview, leader_start: int) -> bool:
        """The leader's log may start within a batch, because DeleteRecords ignores batch bounds. If all records of this
        log are below that start, the log restarts at that batch; its start is the leader's again afterwards.
        """
        log, first = self._replica.log, parse_header(records)
        nothing = log.log_end_offset <= max(log.log_start_offset, leader_start)
        if not nothing or not first.base_offset < log.log_end_offset <= first.last_offset:
            return False
        return self._guarded(lambda: self._restart_below(first.base_offset)) is ErrorCode.NONE

    def _restart_below(self, offset: int) -> None:
        """What was accepted up to this log's end is all committed, so it stays known."""
        log = self._replica.log
        sets = log.producers.positions
        if sets is not None:
            log.producers.positions = sets.like()
        log.truncation.restart_at(offset)
        if sets is not None and log.lacks_positions:
            log.learn_positions(sets)

    def diverged(self, leader_epoch: int, epoch: int, end_offset: int) -> ErrorCode:
        """Truncate: at the leader, ``epoch`` (its largest not above the follower's last) ends at ``end_offset``.

        This log's own end of its largest epoch up to that one bounds the result too, because this log may have records
        of an epoch that the leader does not have. The next fetch shows whether another step is needed.
        """
        error = self._refusal(leader_epoch)
        if error is not ErrorCode.NONE:
            return error
        log = self._replica.log
        own_epoch, own_end = log.epoch_end_offset(epoch)
        if own_epoch < 0 and own_end < 0:
            # no own epoch at or below the leader's: no record is certain to be in both logs
            target = end_offset if end_offset >= 0 else log.log_start_offset
        else:
            target = min(end_offset, own_end) if own_epoch == epoch else own_end
        return self._truncate(target, f"leader {self._replica.state.leader} ended epoch {epoch} at offset {end_offset}")

    def out_of_range(self, leader_epoch: int, leader_start: int, leader_end: int) -> ErrorCode:
        """The position is outside the leader's log: restart at its start, or truncate to its end."""
        error = self._refusal(leader_epoch)
        if error is not ErrorCode.NONE:
            return error
        log = self._replica.log
        if log.log_end_offset > leader_end:
            return self._truncate(leader_end, f"leader {self._replica.state.leader} ends at offset {leader_end}")
        if log.log_end_offset < leader_start:
            logger.warning(
                "%s: the leader's log starts at offset %d, the local log ends at %d: restarting the log there",
                self._replica.tp, leader_start, log.log_end_offset,
            )  # fmt: skip
            error = self._guarded(lambda: log.truncation.restart_at(leader_start, now_ms=self._clock.wall_ms()))
            self._replica.committed()
        return error

    @property
    def positions_from(self) -> int | None:
        """The offset before which it lacks what its topic has accepted; until it has that it must not fetch."""
        log = self._replica.log
        return log.segments.first.base_offset if log.lacks_positions else None

    def take_positions(self, leader_epoch: int, body: memoryview | None) -> ErrorCode:
        """Take what the leader says of accepted positions; None: its version cannot tell."""
        error = self._refusal(leader_epoch)
        log = self._replica.log
        sets = log.producers.positions
        if error is not ErrorCode.NONE or sets is None or sets.known:
            return error
        tp, leader, base = self._replica.tp, self._replica.state.leader, log.segments.first.base_offset
        if body is None:
            logger.warning(
                "%s: what was accepted before offset %d is not known here, and leader %d is of a version that cannot"
                " tell: a repeat from before may be accepted again; upgrade it", tp, base, leader,
            )  # fmt: skip
            return self._guarded(lambda: log.learn_positions(None))
        told = sets.like()
        try:
            load_positions(told, body)
        except ValueError as wrong:
            logger.error("%s: what leader %d says of accepted positions: %s", tp, leader, wrong)
            return ErrorCode.CORRUPT_MESSAGE
        error = self._guarded(lambda: log.learn_positions(told))
        if error is ErrorCode.NONE:
            logger.info("%s: leader %d told what was accepted before offset %d", tp, leader, base)
        return error

    def _truncate(self, offset: int, why: str) -> ErrorCode:
        replica = self._replica
        log = replica.log
        if offset < log.high_watermark and not self._may_lose():
            self._stop(offset, why)
            return ErrorCode.OFFSET_OUT_OF_RANGE
        self.goes_on()
        if offset < log.high_watermark:
            self.lost_commits += 1
            if replica.figures is not None:
                replica.figures.lost_records += log.high_watermark - max(0, offset)
            logger.error(
                "%s: truncating to offset %d, below the high watermark %d: committed records are lost (%s)",
                replica.tp, offset, log.high_watermark, why,
            )  # fmt: skip
        elif offset < log.log_end_offset:
            logger.info("%s: truncating from offset %d to %d (%s)", replica.tp, log.log_end_offset, offset, why)
        error = self._guarded(lambda: log.truncation.truncate_to(max(0, offset), now_ms=self._clock.wall_ms()))
        replica.committed()
        return error

    def _may_lose(self) -> bool:
        """Whether an unclean election has given up the records before its epoch, and nothing later was committed here.

        Such an election of an older version is known only until the next change of the in-sync set.
        """
        state, log = self._replica.state, self._replica.log
        return state.leader_recovery_state != 0 or log.epochs.epoch_at(log.high_watermark - 1) < state.unclean_epoch

    def _stop(self, offset: int, why: str) -> None:
        """Keep what is committed here and not at the leader, and say so; the next fetch asks again.

        It would lose committed records, and no unclean election allows that.
        """
        tp, log, leader = self._replica.tp, self._replica.log, self._replica.state.leader
        stopped = (
            f"{tp}: does not follow broker {leader}: {why}, and committed records {max(0, offset)} to"
            f" {log.high_watermark - 1} are here. To keep them stop broker {leader}, then: fleetlog topics elect"
            f" {tp.topic} --partition {tp.partition} --unclean. To give them up stop this broker, move {log.directory}"
            " away, and start it"
        )
        if stopped != self._stopped.get(tp):
            logger.error("%s", stopped)
        self._stopped[tp] = stopped

    def goes_on(self) -> None:
        """It follows its leader, leads, or is gone: nothing that was said of it is true any more."""
        if self._stopped:
            self._stopped.pop(self._replica.tp, None)

    def _guarded(self, action: Callable[[], object]) -> ErrorCode:
        try:
            action()
        except (LogOffline, DiskError) as problem:
            logger.error("%s: %s", self._replica.tp, problem)
            if isinstance(problem, DiskFull):
                self._replica.log.no_room(problem)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE
