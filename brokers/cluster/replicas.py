"""All partitions with a replica on this broker, kept in step with the cluster view."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from brokers.cluster.partition import IsrWriter, Partition
from brokers.log import DiskError, Log, LogOffline, LogStore
from brokers.model import NO_LEADER, BrokerInfo, Clock, PartitionState, TopicPartition
from wire.errors import ErrorCode

if TYPE_CHECKING:
    import uuid

    from brokers.cluster.view import ClusterView, ViewChange

logger = logging.getLogger(__name__)

CHECK_MS = 1_000
"""Time between two looks at the followers; shorter where replica.lag.time.max.ms is."""
LINES_MAX = 20
"""How many lines one change may write into the broker's log about what it leads now."""


class ReplicaManager:
    """Opens, leads, resigns and deletes partitions as the view says. Loop thread only.

    ``incarnation`` is this broker's present one: a state that names another incarnation of it is old news, and leading
    on it is what loses data after a quick unclean restart. ``lease_valid`` says whether the broker still holds its
    registration; it is asked at each decision. ``isr_writer`` writes what leaders propose.
    """

    def __init__(
        self,
        broker_id: int,
        view: ClusterView,
        logs: LogStore,
        clock: Clock,
        *,
        lease_valid: Callable[[], bool],
        incarnation: Callable[[], int],
        isr_writer: IsrWriter,
    ) -> None:
        self._broker_id = broker_id
        self._view = view
        self._logs = logs
        self._clock = clock
        self._lease_valid = lease_valid
        self._incarnation = incarnation
        self._isr_writer = isr_writer
        self._partitions: dict[TopicPartition, Partition] = {}
        self._unopened: dict[TopicPartition, None] = {}  # those whose disk refused: tried again with every change
        self._leader_listeners: list[Callable[[Partition], None]] = []
        self._resigned_listeners: list[Callable[[TopicPartition], None]] = []
        self._deleted_listeners: list[Callable[[TopicPartition], None]] = []
        self._follower_listeners: list[Callable[[Partition], None]] = []
        self._unfollow_listeners: list[Callable[[TopicPartition], None]] = []
        self._newly_led: list[Partition] = []
        self._next_check_ms = -1

    # -- what handlers ask ----------------------------------------------------------------------------------------

    def get(self, tp: TopicPartition) -> Partition | None:
        """This broker's replica, whatever its role."""
        return self._partitions.get(tp)

    def all(self) -> Iterable[Partition]:
        """All replicas on this broker."""
        return self._partitions.values()

    def leader(self, tp: TopicPartition, current_leader_epoch: int = -1) -> Partition | ErrorCode:
        """The partition if this broker leads it in the epoch the client knows, else what to tell the client."""
        partition = self._partitions.get(tp)
        if partition is None:
            if self._view.partition(tp) is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return ErrorCode.KAFKA_STORAGE_ERROR if tp in self._unopened else ErrorCode.NOT_LEADER_OR_FOLLOWER
        error = partition.check_epoch(current_leader_epoch)
        if error is not ErrorCode.NONE:
            return error
        if not partition.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return partition

    @property
    def logs(self) -> LogStore:
        """The logs of this broker and their directories."""
        return self._logs

    def lease_valid(self) -> bool:
        """Whether the broker still holds its registration."""
        return self._lease_valid()

    # -- who wants to know ----------------------------------------------------------------------------------------

    def on_leader(self, listener: Callable[[Partition], None]) -> None:
        """Call when this broker starts to lead a partition, or leads it in a new epoch."""
        self._leader_listeners.append(listener)

    def on_resigned(self, listener: Callable[[TopicPartition], None]) -> None:
        """Call when this broker stops leading a partition."""
        self._resigned_listeners.append(listener)

    def on_deleted(self, listener: Callable[[TopicPartition], None]) -> None:
        """Call when a partition of this broker is deleted."""
        self._deleted_listeners.append(listener)

    def on_follower(self, listener: Callable[[Partition], None]) -> None:
        """Call when this broker must follow a partition's leader: a new leader, or a new epoch."""
        self._follower_listeners.append(listener)

    def on_unfollow(self, listener: Callable[[TopicPartition], None]) -> None:
        """Call when this broker need not follow any more: it leads, nobody leads, or the partition is gone."""
        self._unfollow_listeners.append(listener)

    # -- what partitions ask --------------------------------------------------------------------------------------

    def broker(self, broker_id: int) -> BrokerInfo | None:
        """A living broker."""
        return self._view.brokers.get(broker_id)

    def tick(self, now_ms: int) -> None:
        """Look at the followers of all partitions led here, and at failed logs; call it about every second."""
        lag_max_ms = self._view.effective.replica_lag_time_max_ms
        if now_ms < self._next_check_ms:
            return
        self._next_check_ms = now_ms + min(CHECK_MS, max(1, lag_max_ms // 4))
        for partition in list(self._partitions.values()):
            if not partition.log.offline:
                partition.check_followers(now_ms, lag_max_ms)
            elif partition.abdicate() is not None:
                logger.error("%s: its log directory has failed: this broker leads it no more", partition.tp)
            elif not partition.is_leader:
                self._withdraw(partition)

    def _withdraw(self, partition: Partition) -> None:
        """Stop following into a failed log: while nothing is appended, the leader would take us for in sync."""
        for unfollow in self._unfollow_listeners:
            _call(unfollow, partition.tp)
        if partition.withdraw() is not None:
            logger.error("%s: its log directory has failed: this broker is in sync no more", partition.tp)

    # -- the view's changes ---------------------------------------------------------------------------------------

    def apply(self, change: ViewChange) -> None:
        """Follow a change of the view. After a reload everything is compared again."""
        for topic in change.deleted:
            for index in range(len(topic.partitions)):
                self._delete(TopicPartition(topic.name, index), topic.id)
        if change.reloaded:
            self.reconcile()
            return
        for tp in sorted({*change.partitions_changed, *self._unopened}):
            self._follow(tp)
        self._tell_what_is_led()
        for kind, entity in change.configs_changed:
            if kind == "topics":
                self._reconfigure(entity)
            elif kind == "brokers":  # the defaults of every topic may have changed
                for name in self._view.topics:
                    self._reconfigure(name)

    def reconcile(self) -> None:
        """Compare every partition with the view: at the start and after a reload."""
        for tp in list(self._partitions):
            if self._view.partition(tp) is None:
                self._delete(tp, self._partitions[tp].topic_id)
        if self._view.ready:
            self._remove_strays()
        for name, topic in self._view.topics.items():
            for index in range(len(topic.partitions)):
                self._follow(TopicPartition(name, index))
            self._reconfigure(name)
        self._tell_what_is_led()

    def _tell_what_is_led(self) -> None:
        """One line for each partition, or topic, or for all: a broker may come to lead thousands at once."""
        led, self._newly_led = self._newly_led, []
        topics: dict[str, list[Partition]] = {}
        for partition in led:
            topics.setdefault(partition.tp.topic, []).append(partition)
        if len(topics) > LINES_MAX:
            logger.info("leads %d partitions of %d topics in new epochs", len(led), len(topics))
            return
        for topic, partitions in topics.items():
            if len(led) > LINES_MAX and len(partitions) > 1:
                logger.info("leads %d partitions of topic %s in new epochs", len(partitions), topic)
                continue
            for partition in partitions:
                offset = partition.log.log_end_offset
                logger.info("leads %s in epoch %d from offset %d", partition.tp, partition.leader_epoch, offset)

    def _remove_strays(self) -> None:
        """Delete the logs of topics that were deleted while this broker was away.

        The log directories were checked to belong to this cluster, so a topic that the cluster does not know is gone.
        """
        for tp in list(self._logs.all()):
            if tp not in self._partitions and self._view.partition(tp) is None:
                logger.warning("%s: its topic was deleted meanwhile; the log goes", tp)
                self._logs.delete(tp)

    def resign_all(self) -> None:
        """Stop leading everything: the session is lost, or the broker shuts down."""
        for partition in list(self._partitions.values()):
            if partition.is_leader:
                self._resign(partition, None)

    def _follow(self, tp: TopicPartition) -> None:
        topic = self._view.topics.get(tp.topic)
        state = self._view.partition(tp)
        if topic is None or state is None:
            return
        partition = self._partitions.get(tp)
        if partition is not None and partition.topic_id != topic.id:
            self._delete(tp, partition.topic_id)  # the topic was deleted and created again
            partition = None
        if self._broker_id not in state.replicas:
            if partition is not None:
                self._delete(tp, partition.topic_id)
            return
        if partition is None:
            partition = self._open(tp, topic.id, state)
            if partition is None:
                self._unopened[tp] = None
                return
            self._unopened.pop(tp, None)
        if self._leads(state):
            fresh = not partition.is_leader or partition.leader_epoch != state.leader_epoch
            if not fresh:
                partition.update_state(state)
                return
            if partition.is_leader:
                # a new epoch of our own: whoever waited in the old one must not be answered from the new one
                self._resign(partition, state)
            for unfollow in self._unfollow_listeners:
                _call(unfollow, tp)
            partition.become_leader(state)
            self._newly_led.append(partition)
            for listener in self._leader_listeners:
                _call(listener, partition)
        elif partition.is_leader:
            self._resign(partition, state)
            self._find_leader(partition, state)
        elif partition.leader_epoch != state.leader_epoch:
            partition.become_follower(state)
            self._find_leader(partition, state)
        else:
            partition.update_state(state)

    def _find_leader(self, partition: Partition, state: PartitionState) -> None:
        """Follow whom the state names. Our own former incarnation is nobody: a new election is due."""
        if state.leader in (NO_LEADER, self._broker_id):
            for unfollow in self._unfollow_listeners:
                _call(unfollow, partition.tp)
        else:
            for follow in self._follower_listeners:
                _call(follow, partition)

    def _leads(self, state: PartitionState) -> bool:
        return state.leader == self._broker_id and state.leader_incarnation in (-1, self._incarnation())

    def _open(self, tp: TopicPartition, topic_id: uuid.UUID, state: PartitionState) -> Partition | None:
        log: Log | None = self._logs.get(tp)
        if log is not None and log.topic_id not in (None, topic_id):
            logger.warning("%s: the log belongs to a deleted topic of the same name; it goes", tp)
            self._logs.delete(tp)
            log = None
        if log is not None and log.topic_id is None and not self._is_counted_on(state) and log.log_end_offset:
            logger.warning("%s: nobody knows which topic of that name the log is of, or counts on it; it goes", tp)
            self._logs.delete(tp)
            log = None
        config = self._view.topic_config(tp.topic)
        try:
            if log is None:
                if not self._may_create(state):
                    if tp not in self._unopened:
                        logger.error("%s: its log is in a directory that is offline", tp)
                    return None
                log = self._logs.create(tp, topic_id, config)
            elif log.topic_id is None:
                log.write_metadata(topic_id)
            log.config = config
        except (DiskError, LogOffline) as error:
            logger.error("%s: cannot create its log: %s", tp, error)
            return None
        partition = Partition(
            tp, topic_id, log, state, broker_id=self._broker_id, clock=self._clock, surroundings=self,
            isr_writer=self._isr_writer,
        )  # fmt: skip
        self._partitions[tp] = partition
        return partition

    def _is_counted_on(self, state: PartitionState) -> bool:
        """Whether what was acknowledged may be in this broker's log."""
        return self._broker_id in (*state.isr, *state.elr)

    def _may_create(self, state: PartitionState) -> bool:
        """Whether an absent log is a new one. If not, it lies in an offline directory, and an empty one in its place
        would stand for what was acknowledged. Once nobody counts on this broker any more, it may start over.
        """
        if not self._logs.offline_directories or state.leader_epoch < 0:
            return True
        if not self._is_counted_on(state):
            return True
        return state.leader_epoch == 0 and state.leader_incarnation == self._incarnation()

    def _resign(self, partition: Partition, state: PartitionState | None) -> None:
        partition.resign(state)
        for listener in self._resigned_listeners:
            _call(listener, partition.tp)

    def _delete(self, tp: TopicPartition, topic_id: uuid.UUID) -> None:
        self._unopened.pop(tp, None)
        partition = self._partitions.get(tp)
        if partition is None or partition.topic_id != topic_id:
            return
        del self._partitions[tp]
        partition.deleted = True
        if partition.is_leader:
            self._resign(partition, None)
        else:
            partition.resign(None)  # who reads from a follower hears of its end as well
        for unfollow in self._unfollow_listeners:
            _call(unfollow, tp)
        for listener in self._deleted_listeners:
            _call(listener, tp)
        self._logs.delete(tp)

    def _reconfigure(self, topic: str) -> None:
        info = self._view.topics.get(topic)
        if info is None:
            return
        config = self._view.topic_config(topic)
        for index in range(len(info.partitions)):
            partition = self._partitions.get(TopicPartition(topic, index))
            if partition is not None:
                partition.log.config = config
                partition.advance()


def _call(listener: Callable[[Any], None], argument: Any) -> None:
    try:
        listener(argument)
    except Exception:
        logger.exception("a listener failed on %s", argument)
