"""Reading one partition for a Fetch: what the one who asks may see of it, and what to say when it is nothing.

A follower reads its leader up to the log's end. A consumer reads below the high watermark, or below the last stable
offset; from the leader, or from a follower if it says in which rack it is (KIP-392). A consumer without a rack that
asks a follower has old metadata, so it is sent to look again; Kafka would serve it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokers.api.leaders import current_leader
from brokers.cluster.followers import ReplicaSession
from brokers.cluster.partition import Partition, Serve
from brokers.log import DiskError, LogOffline, OffsetOutOfRange
from brokers.model import TopicPartition
from wire.errors import ErrorCode
from wire.hot import FetchOutcome, FetchPart, FetchRequest

if TYPE_CHECKING:
    from brokers.api.base import Context
    from brokers.cluster.throttles import ReplicationThrottle
    from brokers.log import Log, ReadResult

READ_COMMITTED = 1
CONSUMER, DEBUGGING_REPLICA = -1, -2
ZSTD_VERSION = 10
RACK_VERSION = 11
_TELL_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def aborted_in(log: Log, read: ReadResult) -> list[tuple[int, int]]:
    """Producer id and first offset of the aborted transactions among what was read. Raises LogOffline."""
    found = log.aborted_transactions(read.first_offset, read.next_offset)
    return [(transaction.producer_id, transaction.first_offset) for transaction in found]


class Reader:
    """Reads for one request. ``replica`` is the follower that asks; ``throttle`` the leader's, which may hold it back.

    ``out_of_turn`` says of the latest read that the partition may have records, but not in this answer;
    ``throttled`` that the throttle held something back since it was last set to False.
    """

    __slots__ = (
        "_committed_only", "_context", "_follow", "_rack", "_replica", "_throttle", "out_of_turn", "throttled"
    )  # fmt: skip

    def __init__(
        self,
        request: FetchRequest,
        context: Context,
        replica: ReplicaSession | None = None,
        throttle: ReplicationThrottle | None = None,
    ) -> None:
        self._context = context
        self._replica = replica
        self._throttle = throttle
        self.out_of_turn = self.throttled = False
        self._committed_only = request.isolation_level == READ_COMMITTED and replica is None
        rack = request.rack_id if request.replica_id == CONSUMER and context.api_version >= RACK_VERSION else ""
        self._follow = bool(rack) or request.replica_id == DEBUGGING_REPLICA
        self._rack = rack if rack and context.services.config.replica_selector_class else ""

    def find(self, part: FetchPart) -> Partition | FetchOutcome:
        """This broker's replica, or what to answer if there is none."""
        services = self._context.services
        topic = part.topic
        if part.topic_id is not None:
            topic = services.view.topic_names.get(part.topic_id)
            if topic is None:
                return FetchOutcome(ErrorCode.UNKNOWN_TOPIC_ID)
        assert topic is not None, "a Fetch names its topic by name or by id"
        tp = TopicPartition(topic, part.partition)
        partition = services.replicas.get(tp)
        if partition is None:
            refusal = services.replicas.leader(tp, part.current_leader_epoch)
            assert isinstance(refusal, ErrorCode), f"{tp}: led without a replica"
            return self._error(refusal, tp)
        if part.topic_id is not None and partition.topic_id != part.topic_id:
            return FetchOutcome(ErrorCode.UNKNOWN_TOPIC_ID)
        return partition

    def refusal(self, partition: Partition, part: FetchPart) -> ErrorCode:
        """Why the partition may not be read by the one who asks; NONE if it may.

        A follower must name its epoch: a position counts in the epoch of its leader only (KIP-320).
        """
        if self._replica is not None and part.current_leader_epoch < 0:
            return ErrorCode.FENCED_LEADER_EPOCH
        error = partition.check_epoch(part.current_leader_epoch)
        if error is not ErrorCode.NONE or (self._follow and not partition.is_leader):
            return error
        return partition.may_serve(Serve.FETCH)

    def read(self, partition: Partition, part: FetchPart, left: int, *, first: bool) -> FetchOutcome:
        """What the partition has for the one who asks, at most ``left`` bytes, but one batch if it is the ``first``."""
        self.out_of_turn = False
        error = self.refusal(partition, part)
        if error is not ErrorCode.NONE:
            return self._error(error, partition.tp)
        log: Log = partition.log
        if self._context.api_version < ZSTD_VERSION and log.config.compression_type == "zstd":
            return FetchOutcome(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        try:
            return self._read(partition, part, log, left, first)
        except OffsetOutOfRange:
            return FetchOutcome(ErrorCode.OFFSET_OUT_OF_RANGE)
        except (LogOffline, DiskError):
            return FetchOutcome(ErrorCode.KAFKA_STORAGE_ERROR)

    def _read(self, partition: Partition, part: FetchPart, log: Log, left: int, first: bool) -> FetchOutcome:
        offset, end = part.fetch_offset, log.log_end_offset
        if partition.is_leader:
            diverging = self.diverging(partition, part)
            if diverging is not None:
                return self.state(partition, diverging=diverging)
            if self._rack and log.log_start_offset <= offset <= end:
                preferred = partition.preferred_replica(self._rack, offset)
                if preferred >= 0:
                    return self.state(partition)._replace(preferred_read_replica=preferred)
        if not log.log_start_offset <= offset <= end:
            # only the leader knows that an offset is nowhere; elsewhere it is just not here (KIP-392)
            return FetchOutcome(
                ErrorCode.OFFSET_OUT_OF_RANGE if partition.is_leader else ErrorCode.OFFSET_NOT_AVAILABLE
            )  # fmt: skip
        limit = end if self._replica is not None else self._limit(log)
        if offset >= limit:
            return self.state(partition)
        if (left <= 0 and not first) or self._held_back(partition):
            self.out_of_turn = True
            return self.state(partition)
        result = log.read(offset, min(left, max(0, part.max_bytes)), end_offset=limit, min_one_batch=first)
        if not result.size:  # the next batch is too large for what is left, or only a part of it is below the limit
            self.out_of_turn = not first
            return self.state(partition)
        return FetchOutcome(
            ErrorCode.NONE, log.high_watermark, log.last_stable_offset, log.log_start_offset,
            aborted_in(log, result) if self._committed_only else None, result.slices, result.size,
        )  # fmt: skip

    def _limit(self, log: Log) -> int:
        return log.last_stable_offset if self._committed_only else log.high_watermark

    def state(self, partition: Partition, diverging: tuple[int, int] | None = None) -> FetchOutcome:
        """An answer without records."""
        log = partition.log
        return FetchOutcome(
            ErrorCode.NONE, log.high_watermark, log.last_stable_offset, log.log_start_offset,
            [] if self._committed_only else None, diverging=diverging,
        )  # fmt: skip

    @staticmethod
    def diverging(partition: Partition, part: FetchPart) -> tuple[int, int] | None:
        """Where the asker's log leaves ours, if it does (KIP-595): the epoch it should go back to, and its end.

        Raises OffsetOutOfRange if that cannot be told.
        """
        log = partition.log
        if part.last_fetched_epoch < 0:
            return None
        if part.fetch_offset < log.log_start_offset:
            raise OffsetOutOfRange(part.fetch_offset, log.log_start_offset, log.log_end_offset)
        epoch, end_offset = log.epoch_end_offset(part.last_fetched_epoch)
        if epoch < 0 or end_offset < 0:
            raise OffsetOutOfRange(part.fetch_offset, log.log_start_offset, log.log_end_offset)
        if epoch < part.last_fetched_epoch or end_offset < part.fetch_offset:
            return epoch, end_offset
        return None

    def _held_back(self, partition: Partition) -> bool:
        replica, throttle = self._replica, self._throttle
        if replica is None or throttle is None or replica.broker_id in partition.state.isr:
            return False
        now_ms = self._context.services.clock.mono_ms()
        if not throttle.holds_back(partition.tp, now_ms):
            return False
        self.throttled = True
        return True

    def _error(self, error: ErrorCode, tp: TopicPartition) -> FetchOutcome:
        leader = current_leader(self._context, tp) if error in _TELL_LEADER else None
        return FetchOutcome(error, current_leader=leader)
