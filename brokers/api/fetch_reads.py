"""Reading one partition for a Fetch: what the asker may see of it, and what to say when it is nothing.

A follower reads its leader up to the log's end. A consumer reads below the high watermark, or below the last stable
offset; from the leader, or from a follower if it says in which rack it is (KIP-392). A consumer without a rack that
asks a follower has old metadata, so it is sent to look again; Kafka would serve it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleetlog.brokers.acls.access import READ, TOPIC
from fleetlog.brokers.api.leaders import current_leader
from fleetlog.brokers.log import DiskError, LogOffline, OffsetOutOfRange
from fleetlog.brokers.model import SCHEMAS_TOPIC, TopicPartition
from fleetlog.brokers.replication.follower_progress import ReplicaSession
from fleetlog.brokers.replication.partition import Partition
from fleetlog.brokers.replication.serving import Serve
from fleetlog.brokers.tiering.cold_reads import TierUnavailable
from fleetlog.brokers.tiering.tiers import is_tiered
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import FetchOutcome, FetchPart, FetchRequest

if TYPE_CHECKING:
    from fleetlog.brokers.api.base import Context
    from fleetlog.brokers.api.fetch_sessions import SessionPart
    from fleetlog.brokers.log import Log, ReadResult
    from fleetlog.brokers.replication.throttles import ReplicationThrottle

READ_COMMITTED = 1
CONSUMER, DEBUGGING_REPLICA = -1, -2
ZSTD_VERSION = 10
RACK_VERSION = 11
_NONE = ErrorCode.NONE
_DENIED = FetchOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_new = tuple.__new__
"""A named tuple's own constructor is a Python function."""
_TELL_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def aborted_in(log: Log, read: ReadResult) -> list[tuple[int, int]]:
    """Producer id and first offset of the aborted transactions among what was read. Raises LogOffline."""
    transactions = log.reader.aborted_transactions(read.first_offset, read.next_offset)
    return [(transaction.producer_id, transaction.first_offset) for transaction in transactions]


@dataclass(slots=True, eq=False)
class PartitionReader:
    """Reads for one request. ``replica`` is the follower that asks; ``throttle`` the leader's, which may hold it back.

    ``out_of_turn`` says of the latest read that the partition may have records, but not in this answer;
    ``throttled`` that the throttle held something back since it was last set to False.
    """

    request: FetchRequest
    context: Context
    replica: ReplicaSession | None = None
    throttle: ReplicationThrottle | None = None
    out_of_turn: bool = field(default=False, init=False)
    throttled: bool = field(default=False, init=False)

    def find(self, part: FetchPart) -> Partition | FetchOutcome:
        """This broker's replica, or what to answer if there is none."""
        services = self.context.services
        topic, topic_id, index, leader_epoch, _, _, _, _, _ = part
        if topic_id is not None:
            topic = services.metadata.topic_names.get(topic_id)
            if topic is None:
                return FetchOutcome(ErrorCode.UNKNOWN_TOPIC_ID)
        assert topic is not None, "a Fetch names its topic by name or by id"
        partition = services.replicas.get((topic, index))
        if partition is None:
            if self._forbids(topic):
                return _DENIED
            tp = TopicPartition(topic, index)
            return self._error(services.replicas.leader(tp, leader_epoch).error, tp)
        if topic_id is not None and partition.topic_id != topic_id:
            return FetchOutcome(ErrorCode.UNKNOWN_TOPIC_ID)
        return partition

    def refusal(self, partition: Partition, part: FetchPart) -> ErrorCode:
        """Why the partition may not be read by the asker; NONE if it may.

        A follower must name its epoch: a position counts in the epoch of its leader only (KIP-320).
        """
        if self.replica is not None and part.current_leader_epoch < 0:
            return ErrorCode.FENCED_LEADER_EPOCH
        if self._forbids(partition.tp.topic):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        error = partition.check_epoch(part.current_leader_epoch)
        if error is not ErrorCode.NONE or (not partition.is_leader and self._follows()):
            return error
        return partition.may_serve(Serve.FETCH)

    def _forbids(self, topic: str) -> bool:
        """Whether a consumer may not read the topic; what a follower may was asked for the request as a whole.

        Brokers read ``_schemas`` as consumers.
        """
        if self.replica is not None or (topic == SCHEMAS_TOPIC and self.context.acts_as_broker()):
            return False
        return not self.context.allows(READ, TOPIC, topic)

    def _follows(self) -> bool:
        """Whether a follower may answer."""
        request = self.request
        rack = request.replica_id == CONSUMER and self.context.api_version >= RACK_VERSION and bool(request.rack_id)
        return rack or request.replica_id == DEBUGGING_REPLICA

    def partition_of(self, part: SessionPart) -> Partition | FetchOutcome:
        """This broker's replica of a session's partition, or what to answer if there is none."""
        partition = part.partition
        if partition is not None and not partition.deleted:
            return partition
        current = self.find(part.asked)
        part.settle(None if isinstance(current, FetchOutcome) else current)
        return current

    def read(self, partition: Partition, part: FetchPart, left: int, first: bool) -> FetchOutcome:
        """What the partition has for the asker, at most ``left`` bytes, but one batch if it is the ``first``."""
        replica, request, log = self.replica, self.request, partition.log
        _, _, _, leader_epoch, offset, last_epoch, _, part_bytes, _ = part
        context = self.context
        access = context.services.access
        if leader_epoch >= 0 or replica is not None or not partition.is_leader:
            error = self.refusal(partition, part)
            if error is not _NONE:
                return self._error(error, partition.tp)
        elif access.authorizer is not None:  # a leader refuses no other consumer that names no epoch
            client, topic = context.connection, partition.tp.topic
            granted = access.granted.get((client.principal, client.peer_host, READ, TOPIC, topic))
            if not granted and not access.allows(context, READ, TOPIC, topic):
                return _DENIED
        if context.api_version < ZSTD_VERSION and log.config.compression_type == "zstd":
            return FetchOutcome(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        start, watermark = log.log_start_offset, log.high_watermark
        stable = watermark if log.producers.first_unstable_offset is None else log.last_stable_offset
        committed_only = replica is None and request.isolation_level == READ_COMMITTED
        try:
            if (last_epoch >= 0 or request.rack_id) and partition.is_leader:
                elsewhere = self._elsewhere(partition, part)
                if elsewhere is not None:
                    return elsewhere
            limit = log.log_end_offset if replica is not None else stable if committed_only else watermark
            if not start <= offset < limit:
                if offset < start or offset > log.log_end_offset:
                    return self._outside(partition, part, left, first)
                return self.state(partition)
            if (left <= 0 and not first) or (replica is not None and self._held_back(partition)):
                self.out_of_turn = True
                return self.state(partition)
            if part_bytes < left:
                left = part_bytes
            result = log.reader.read(offset, left if left > 0 else 0, limit, first)
            slices, size, _, _ = result
            if not size:  # the next batch is too large for what is left, or only a part of it is below the limit
                self.out_of_turn = not first
                return self.state(partition)
            aborted = aborted_in(log, result) if committed_only else None
            if log.producers.positions is not None and replica is None:
                passed = log.reader.passing(result)
                if passed is not None:
                    return FetchOutcome(_NONE, watermark, stable, start, aborted, (passed,), len(passed))
        except OffsetOutOfRange:
            return self._outside(partition, part, left, first)
        except (LogOffline, DiskError):
            return FetchOutcome(ErrorCode.KAFKA_STORAGE_ERROR)
        return _new(FetchOutcome, (_NONE, watermark, stable, start, aborted, slices, size, None, None, -1))

    def _elsewhere(self, partition: Partition, part: FetchPart) -> FetchOutcome | None:
        """Where the asker should continue instead: back to where its log leaves ours, or at a replica in its rack."""
        diverging = self.diverging(partition, part)
        if diverging is not None:
            return self.state(partition, diverging=diverging)
        request, log = self.request, partition.log
        if (
            request.rack_id
            and request.replica_id == CONSUMER
            and self.context.api_version >= RACK_VERSION
            and self.context.services.config.replica_selector_class
            and log.log_start_offset <= part.fetch_offset <= log.log_end_offset
        ):
            preferred = partition.followers.preferred(request.rack_id, part.fetch_offset)
            if preferred >= 0:
                return self.state(partition)._replace(preferred_read_replica=preferred)
        return None

    def _outside(self, partition: Partition, part: FetchPart, left: int, first: bool) -> FetchOutcome:
        """What to answer for an offset that this log does not have: records from the bucket, if they are there."""
        tiers, log, offset = self.context.services.tiers, partition.log, part.fetch_offset
        metadata = self.context.services.metadata
        if offset >= log.log_start_offset or not partition.is_leader or not is_tiered(partition, metadata):
            return FetchOutcome(self._nowhere(partition))
        if self.replica is not None:
            return FetchOutcome(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
        if tiers is None:  # this broker has no bucket: another leader may have
            return FetchOutcome(ErrorCode.KAFKA_STORAGE_ERROR)
        start = tiers.start_of(partition)
        if start is not None and offset < start[0]:
            return FetchOutcome(self._nowhere(partition))
        if left <= 0 and not first:
            self.out_of_turn = True
            return self.state(partition)
        committed_only = self.request.isolation_level == READ_COMMITTED
        try:
            result = tiers.read(partition, offset, max(0, min(left, part.max_bytes)), first)
            if result is None:  # it is on its way: the partition says so when it is here
                return self.state(partition)
            if not result.size:
                self.out_of_turn = not first
                return self.state(partition)
            aborted = tiers.aborted(partition, result) if committed_only else None
            if committed_only and aborted is None:
                result.release()
                return self.state(partition)
            if log.producers.positions is not None:
                passed = log.reader.passing(result)
                if passed is not None:
                    return self.state(partition)._replace(aborted=aborted, slices=(passed,), size=len(passed))
        except (TierUnavailable, LogOffline, DiskError):
            return FetchOutcome(ErrorCode.KAFKA_STORAGE_ERROR)
        return self.state(partition)._replace(aborted=aborted, slices=result.slices, size=result.size)

    def _nowhere(self, partition: Partition) -> ErrorCode:
        """What is said of an offset that this log does not have: a consumer that hears OFFSET_OUT_OF_RANGE starts anew.

        Only the leader knows that an offset is nowhere; elsewhere it is just not here (KIP-392). A leader whose lease
        has run out may have a successor that has it.
        """
        if not partition.is_leader:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        if self.replica is None and not partition.lease_valid():
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.OFFSET_OUT_OF_RANGE

    def state(self, partition: Partition, diverging: tuple[int, int] | None = None) -> FetchOutcome:
        """An answer without records."""
        log = partition.log
        committed_only = self.replica is None and self.request.isolation_level == READ_COMMITTED
        aborted: list[tuple[int, int]] | None = [] if committed_only else None
        return FetchOutcome(
            _NONE, log.high_watermark, log.last_stable_offset, log.log_start_offset, aborted, diverging=diverging
        )

    @staticmethod
    def diverging(partition: Partition, part: FetchPart) -> tuple[int, int] | None:
        """Where the asker's log leaves ours, if it does (KIP-595): the epoch it should go back to, and its end.

        Raises OffsetOutOfRange if that is not known.
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
        replica, throttle = self.replica, self.throttle
        if replica is None or throttle is None or replica.broker_id in partition.state.isr:
            return False
        now_ms = self.context.services.clock.mono_ms()
        if not throttle.holds_back(partition.tp, now_ms):
            return False
        self.throttled = True
        return True

    def _error(self, error: ErrorCode, tp: TopicPartition) -> FetchOutcome:
        leader = current_leader(self.context, tp) if error in _TELL_LEADER else None
        return FetchOutcome(error, current_leader=leader)
