"""All partitions with a replica on this broker, in step with the metadata cache.

Logs are made and removed a few in each turn of the loop. A topic may come or go with 10,000 partitions in one entry of
the change log, and a directory on disk costs a quarter of a millisecond: all in one turn would hold the loop for
seconds, longer than the lease.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog.brokers.log import DiskError, DiskFull, Log, LogOffline, LogStore
from fleetlog.brokers.log.producers.rejected import BeforeLeading
from fleetlog.brokers.model import (
    INTERNAL_TOPICS,
    NO_LEADER,
    BrokerInfo,
    Clock,
    PartitionState,
    TopicPartition,
    id_text,
)
from fleetlog.brokers.replication import isr
from fleetlog.brokers.replication.partition import Partition
from fleetlog.brokers.replication.serving import BrokerLease
from fleetlog.brokers.replication.unopened import UnopenedReplica, step_aside, why_lost
from fleetlog.brokers.timers import Handle
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    import uuid

    from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
    from fleetlog.brokers.metrics.topics import TopicTable
    from fleetlog.brokers.replication.isr_writer import IsrWriter

logger = logging.getLogger(__name__)


PER_TURN = 32
"""At most so many in one turn: about 10 ms."""


CallSoon = Callable[[Callable[[], None]], Handle]
"""The loop's ``call_soon``."""


class Backlog:
    """Calls ``work`` for each partition once, ``PER_TURN`` in a turn, in the order in which they were added.

    The first turn is the caller's: up to ``PER_TURN`` partitions are done when ``add`` returns. ``emptied`` is called
    whenever nothing is left. Loop thread only.
    """

    def __init__(
        self, call_soon: CallSoon, work: Callable[[TopicPartition], None], emptied: Callable[[], None] | None = None
    ) -> None:
        self._call_soon = call_soon
        self._work = work
        self._emptied = emptied
        self._left: dict[TopicPartition, None] = {}
        self._turn: Handle | None = None

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._left

    def __len__(self) -> int:
        return len(self._left)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Do the work for these, too, in this turn and in later ones."""
        self._left.update(dict.fromkeys(partitions))
        if self._turn is None:
            self._work_on()

    def discard(self, tp: TopicPartition) -> bool:
        """Take a partition out; returns whether its work was not done yet."""
        if tp not in self._left:
            return False
        del self._left[tp]
        return True

    def close(self) -> None:
        """Do nothing more."""
        self._left.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _work_on(self) -> None:
        self._turn = None
        for tp in list(itertools.islice(self._left, PER_TURN)):
            if self.discard(tp):
                self._work(tp)
        if self._left:
            self._turn = self._call_soon(self._work_on)
        elif self._emptied is not None:
            self._emptied()


CHECK_MS = 1_000
"""Time between two checks of the followers; shorter if replica.lag.time.max.ms is."""
UNOPENED_NAMED = 3
LINES_MAX = 20
"""The most log lines that one metadata change may write about new leaderships."""


class LedPartition(NamedTuple):
    """A partition that this broker leads; or None, and the error for the client."""

    partition: Partition | None
    error: ErrorCode


def _own_start(partition: Partition) -> int:
    """Where the log begins here."""
    return partition.log.log_start_offset


class ReplicaManager:
    """Opens, leads, resigns and deletes partitions as the metadata cache changes. Loop thread only.

    ``incarnation`` is this broker's present one: a state with another incarnation is outdated, and leading by it could
    lose data after a quick unclean restart. ``session_valid``: the ZooKeeper session's lease. ``isr_writer`` writes the
    states that leaders propose.
    """

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        logs: LogStore,
        clock: Clock,
        *,
        session_valid: Callable[[], bool],
        incarnation: Callable[[], int],
        isr_writer: IsrWriter,
        call_soon: CallSoon,
        topic_figures: TopicTable | None = None,
    ) -> None:
        self.topic_figures = topic_figures
        """What is counted by topic; None if nothing is."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._logs = logs
        self._clock = clock
        self._lease = BrokerLease(session_valid)
        self.lease_valid = self._lease.valid
        """Whether no other broker can have taken over from this one."""
        self._incarnation = incarnation
        self._isr_writer = isr_writer
        self._partitions: dict[tuple[str, int], Partition] = {}
        self.get: Callable[[tuple[str, int]], Partition | None] = self._partitions.get
        """This broker's replica, whatever its role."""
        self.log_start: Callable[[Partition], int] = _own_start
        """Where a partition begins for clients: a tier may have what is not here any more."""
        self._unopened: dict[TopicPartition, UnopenedReplica] = {}
        """Replicas whose log could not be opened, retried with every change and tick."""
        self.stopped: dict[TopicPartition, str] = {}
        """Why replicas do not follow their leaders."""
        self._leader_listeners: list[Callable[[Partition], None]] = []
        self._resigned_listeners: list[Callable[[TopicPartition], None]] = []
        self._deleted_listeners: list[Callable[[TopicPartition], None]] = []
        self._follower_listeners: list[Callable[[Partition], None]] = []
        self._unfollow_listeners: list[Callable[[TopicPartition], None]] = []
        self._newly_led: list[Partition] = []
        self._to_open = Backlog(call_soon, self._follow, self._log_new_leaderships)
        self._to_remove = Backlog(call_soon, self._discard)
        self.before_leading = BeforeLeading()
        self._next_check_ms = -1
        self._intact_since = -1
        self._continues = False
        self._compared = False
        """Whether the replicas were compared with the metadata since the start."""

    # -- for request handlers -------------------------------------------------------------------------------------

    def all(self) -> Iterable[Partition]:
        """All replicas on this broker."""
        return self._partitions.values()

    def leader(self, tp: TopicPartition, current_leader_epoch: int = -1) -> LedPartition:
        """The partition if this broker leads it in the client's leader epoch, else the error for the client."""
        partition = self._partitions.get(tp)
        if partition is None:
            if self._metadata.partition(tp) is None:
                return LedPartition(None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            unopened = tp in self._unopened
            return LedPartition(None, ErrorCode.KAFKA_STORAGE_ERROR if unopened else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        error = partition.check_epoch(current_leader_epoch)
        if error is not ErrorCode.NONE:
            return LedPartition(None, error)
        if not partition.is_leader:
            return LedPartition(None, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return LedPartition(partition, ErrorCode.NONE)

    @property
    def logs(self) -> LogStore:
        """This broker's logs and log directories."""
        return self._logs

    def waive_lease(self, tp: TopicPartition) -> Partition | None:
        """Waive the lease on the partition, also if its log is opened later; returns it if this broker leads it."""
        partition = self._partitions.get(tp)
        if partition is not None and partition.is_leader:
            partition.waive_lease()
            return partition
        if tp in self._unopened:
            self._unopened[tp].waived = True
        elif self._to_open.discard(tp):
            self._follow(tp)
            return self.waive_lease(tp)
        return None

    def waive_leases(self) -> list[Partition]:
        """Waive all leases until the process ends, so that other brokers may lead; returns the led partitions."""
        self._lease.waive()
        return [partition for partition in self._partitions.values() if partition.is_leader]

    # -- listeners ------------------------------------------------------------------------------------------------

    def on_leader(self, listener: Callable[[Partition], None]) -> None:
        """Call ``listener`` when this broker starts to lead a partition, or leads it in a new epoch."""
        self._leader_listeners.append(listener)

    def on_resigned(self, listener: Callable[[TopicPartition], None]) -> None:
        """Call ``listener`` when this broker stops leading a partition."""
        self._resigned_listeners.append(listener)

    def on_deleted(self, listener: Callable[[TopicPartition], None]) -> None:
        """Call ``listener`` when a partition of this broker is deleted."""
        self._deleted_listeners.append(listener)

    def on_follower(self, listener: Callable[[Partition], None]) -> None:
        """Call ``listener`` when this broker must follow a partition's leader: a new leader, or a new epoch."""
        self._follower_listeners.append(listener)

    def on_unfollow(self, listener: Callable[[TopicPartition], None]) -> None:
        """Call ``listener`` when this broker stops following: it leads, there is no leader, or no partition."""
        self._unfollow_listeners.append(listener)

    # -- for partitions -------------------------------------------------------------------------------------------

    def broker(self, broker_id: int) -> BrokerInfo | None:
        """The registered broker with this id, or None."""
        return self._metadata.brokers.get(broker_id)

    def tells_positions(self, broker_id: int) -> bool:
        """Whether that broker can be asked what a topic that drops duplicates has accepted."""
        broker = self.broker(broker_id)
        return broker is not None and broker.tells_positions

    def tick(self, now_ms: int) -> None:
        """Check the followers of led partitions, failed logs and logs that could not be created; call it about every
        second.
        """
        lag_max_ms = self._metadata.effective.replica_lag_time_max_ms
        if now_ms < self._next_check_ms:
            return
        self._next_check_ms = now_ms + min(CHECK_MS, max(1, lag_max_ms // 4))
        for partition in list(self._partitions.values()):
            if not partition.log.offline:
                partition.check_followers(now_ms, lag_max_ms)
            elif partition.in_sync.abdicate() is not None:
                logger.error("%s: log directory failed: this broker resigns its leadership", partition.tp)
            elif not partition.is_leader:
                self._withdraw(partition)
        for tp in list(self._unopened):
            self._follow(tp)
            self._give_up_lost(tp)
        self._log_new_leaderships()

    def _withdraw(self, partition: Partition) -> None:
        """Stop following with a failed log: without new records the leader would keep this broker in sync."""
        for unfollow in self._unfollow_listeners:
            _call(unfollow, partition.tp)
        if partition.in_sync.withdraw() is not None:
            logger.error("%s: log directory failed: this broker leaves the in-sync set", partition.tp)

    def registered(self, incarnation: int, intact_since: int) -> None:
        """This broker's logs have lost nothing since that incarnation; called with every registration."""
        if intact_since != self._intact_since:
            self._intact_since, self._continues = intact_since, intact_since < incarnation

    def _give_up_lost(self, tp: TopicPartition) -> None:
        """Tell in the partition's state that this broker's log is gone: a later start may not know it any more."""
        replica = self._unopened.get(tp)
        if replica is not None and replica.lost:
            replica.withdraw(isr.failed(replica.state, self._broker_id, replica.effective_min_isr))

    def has_all_logs(self) -> bool:
        """Whether no replica of this broker waits for its log."""
        return self._compared and not self._unopened and not self._to_open

    def successors(self, state: PartitionState) -> list[int]:
        """The other members of the in-sync set that are alive and may be elected."""
        successors: list[int] = []
        for broker_id, incarnation in isr.members(state):
            broker = self.broker(broker_id)
            if broker_id != self._broker_id and broker is not None and broker.live_broker.continues(incarnation):
                successors.append(broker_id)
        return successors

    def faults(self) -> list[str]:
        """Replicas that must not do what would lose committed records, as texts that say what to do; some of many."""
        lost = [f"{tp}: {one.why}" for tp, one in self._unopened.items() if one.lost]
        return [*heapq.nsmallest(UNOPENED_NAMED, lost), *heapq.nsmallest(UNOPENED_NAMED, self.stopped.values())]

    def troubles(self) -> list[str]:
        """Problems of this broker's replicas and log directories, as texts for the health check; empty if none."""
        troubles = self.faults()
        for directory in self._logs.directories:
            if directory.offline:
                troubles.append(
                    f"log directory {directory.path} is offline: its disk failed; repair it and restart the broker"
                )
            elif directory.room.crowded:
                troubles.append(
                    f"log directory {directory.path} has no room:"
                    f" {len(directory.room.crowded)} replica(s) cannot append"
                )
        if self._unopened:
            named = ", ".join(map(str, heapq.nsmallest(UNOPENED_NAMED, self._unopened)))
            troubles.append(
                f"no log of {len(self._unopened)} replica(s) assigned to this broker ({named}, ...); see the log"
            )
        return troubles + self._logs.verify.troubles()

    def stand_back(self, partition: Partition) -> None:
        """Stop following with a log without room, and leave the in-sync set: without new records the leader would keep
        this broker in sync.
        """
        for unfollow in self._unfollow_listeners:
            _call(unfollow, partition.tp)
        if step_aside(partition.in_sync, self._broker_id) is not None:
            logger.error(
                "%s: no room in log directory %s: this broker leaves the in-sync set",
                partition.tp, partition.log.directory,
            )  # fmt: skip

    def follow_again(self, tp: TopicPartition) -> None:
        """Follow the leader again: the log has room."""
        partition = self._partitions.get(tp)
        if partition is not None and not partition.is_leader:
            self._find_leader(partition, partition.state)

    # -- metadata changes -----------------------------------------------------------------------------------------

    def apply(self, change: MetadataChange) -> None:
        """Apply a change of the metadata cache. After a reload every partition is compared.

        What this broker has it leads, follows or gives up at once. Of what is new, and of what is to be removed from
        disk, a part is left to later turns of the loop if it is much (:class:`Backlog`).
        """
        for topic in change.deleted:
            deleted = [TopicPartition(topic.name, index) for index in range(len(topic.partitions))]
            self._to_remove.add([tp for tp in deleted if self._forget(tp, topic.id)])
            if self.topic_figures is not None:
                self.topic_figures.forget(topic.name)
        if change.reloaded:
            self.reconcile()
            return
        changed = sorted({*change.partitions_changed, *self._unopened})
        if len(changed) > PER_TURN:
            new = [tp for tp in changed if tp not in self._partitions]
            changed = [tp for tp in changed if tp in self._partitions]
        else:
            new = []
        for tp in changed:
            self._follow(tp)
        self._to_open.add(new)
        self._log_new_leaderships()
        for kind, entity in change.configs_changed:
            if kind == "topics":
                self._reconfigure(entity)
            elif kind == "brokers":  # the defaults of every topic may have changed
                for name in self._metadata.topics:
                    self._reconfigure(name)

    def reconcile(self) -> None:
        """Compare every partition with the metadata cache: at the start and after a reload."""
        for partition in list(self._partitions.values()):
            if self._metadata.partition(partition.tp) is None and self._forget(partition.tp, partition.topic_id):
                self._discard(partition.tp)
        if self._metadata.ready:
            for tp in list(self._logs.all()):
                if tp not in self._partitions and self._metadata.partition(tp) is None:
                    self._discard(tp)
        for name, topic in self._metadata.topics.items():
            for index in range(len(topic.partitions)):
                self._follow(TopicPartition(name, index))
            self._reconfigure(name)
        self._compared = self._metadata.ready
        self._log_new_leaderships()

    def _log_new_leaderships(self) -> None:
        """One log line per partition, per topic, or for all: a broker may start to lead thousands at once."""
        if self._to_open:
            return
        led, self._newly_led = self._newly_led, []
        topics: dict[str, list[Partition]] = {}
        for partition in led:
            topics.setdefault(partition.tp.topic, []).append(partition)
        if len(topics) > LINES_MAX:
            logger.info("leading %d partitions of %d topics in new epochs", len(led), len(topics))
            return
        for topic, partitions in topics.items():
            if len(led) > LINES_MAX and len(partitions) > 1:
                logger.info("leading %d partitions of topic %s in new epochs", len(partitions), topic)
                continue
            for partition in partitions:
                offset = partition.log.log_end_offset
                logger.info("leading %s in epoch %d from offset %d", partition.tp, partition.leader_epoch, offset)

    def _discard(self, tp: TopicPartition) -> None:
        """Delete the log of a topic whose deletion was seen; put aside that of any other topic.

        A topic without metadata may have been deleted while this broker was down. Or ZooKeeper was restored from a copy
        that is older than the topic, and this log has its records.
        """
        log = self._logs.get(tp)
        if log is None:
            return
        if log.topic_id is not None and self._metadata.was_deleted(log.topic_id):
            logger.info("%s: deleting the log: its topic (id %s) was deleted", tp, id_text(log.topic_id))
            self._logs.delete(tp)
            return
        named = "it has no topic id"
        if log.topic_id is not None:
            named = f"topic id {id_text(log.topic_id)} is not in ZooKeeper"
        try:
            path = self._logs.set_aside(tp)
        except DiskError as wrong:
            logger.error("%s: the log in %s cannot be put aside: %s", tp, log.directory, wrong)
            return
        if path is not None:
            logger.warning(
                "%s: the log, %d bytes up to offset %d, is put aside as %s: %s, and no deletion of its topic was seen",
                tp, log.size_bytes, log.log_end_offset, path, named,
            )  # fmt: skip

    def resign_all(self) -> None:
        """Stop leading all partitions: the session is lost, or the broker shuts down."""
        for partition in list(self._partitions.values()):
            if partition.is_leader:
                self._resign(partition, None)

    def close(self) -> None:
        """Leave what was left to later turns of the loop: the next start opens the new logs and discards the others."""
        self._to_open.close()
        self._to_remove.close()

    def _follow(self, tp: TopicPartition) -> None:
        topic = self._metadata.topics.get(tp.topic)
        state = self._metadata.partition(tp)
        if topic is None or state is None:
            return
        partition = self._partitions.get(tp)
        if partition is not None and partition.topic_id != topic.id:  # the topic was deleted and created again
            if self._forget(tp, partition.topic_id):
                self._discard(tp)
            partition = None
        waived = False
        if self._broker_id not in state.replicas:
            self._unopened.pop(tp, None)
            if partition is not None and self._forget(tp, partition.topic_id):
                self._logs.delete(tp)
            return
        if partition is None:
            unopened = self._unopened.get(tp)
            if unopened is not None and unopened.topic_id == topic.id and unopened.hands_over(state):
                return
            partition = self._open(tp, topic.id, state)
            if partition is None:
                return
            if unopened is not None:
                waived = unopened.waived
                unopened.opened()
                self._unopened.pop(tp, None)
        if self._leads(state):
            fresh = not partition.is_leader or partition.leader_epoch != state.leader_epoch
            if not fresh:
                partition.update_state(state)
                return
            if partition.is_leader:
                self._begin_epoch(partition, state)
            for unfollow in self._unfollow_listeners:
                _call(unfollow, tp)
            partition.become_leader(state)
            if waived:
                partition.waive_lease()
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
        """Follow the state's leader. A previous incarnation of this broker is no leader: an election is due."""
        if state.leader in (NO_LEADER, self._broker_id) or partition.log.crowded:
            for unfollow in self._unfollow_listeners:
                _call(unfollow, partition.tp)
        else:
            for follow in self._follower_listeners:
                _call(follow, partition)

    def _leads(self, state: PartitionState) -> bool:
        return state.leader == self._broker_id and state.leader_incarnation in (-1, self._incarnation())

    def _open(self, tp: TopicPartition, topic_id: uuid.UUID, state: PartitionState) -> Partition | None:
        if self._to_remove.discard(tp):
            self._discard(tp)
        self._logs.settle(tp, topic_id)
        log: Log | None = self._logs.get(tp)
        if log is not None and not self._is_of(log, topic_id, state):
            self._discard(tp)
            log = self._logs.get(tp)
            if log is not None:
                if self._is_news(tp, topic_id, state, "the log of another topic of that name cannot be put aside"):
                    logger.error("%s: no log for topic id %s: %s is in its place", tp, id_text(topic_id), log.directory)
                return None
        config = self._metadata.topic_config(tp.topic)
        try:
            if log is None:
                if not self._may_create(tp, state):
                    why = why_lost(tp, self._logs)
                    lost = self._incarnation() >= 0 and not self._logs.offline_directories
                    if self._is_news(tp, topic_id, state, why, lost=lost) and self._incarnation() >= 0:
                        logger.error("%s: %s", tp, why)
                    return None
                log = self._logs.create(tp, topic_id, config)
            elif log.topic_id is None:
                log.write_metadata(topic_id)
            log.config = config
        except (DiskError, LogOffline) as error:
            full = log is None and isinstance(error, DiskFull)
            if self._is_news(tp, topic_id, state, str(error), full=full):
                logger.error("%s: cannot create the log: %s; retrying every second", tp, error)
            return None
        partition = Partition(
            tp, topic_id, log, state, broker_id=self._broker_id, clock=self._clock, lease_valid=self.lease_valid,
            broker=self.broker, stopped=self.stopped, isr_writer=self._isr_writer,
        )  # fmt: skip
        partition.order.follow(self.before_leading)
        if self.topic_figures is not None:
            partition.figures = self.topic_figures.of(tp.topic)
        self._partitions[tp] = partition
        return partition

    def _is_news(
        self,
        tp: TopicPartition,
        topic_id: uuid.UUID,
        state: PartitionState,
        why: str,
        *,
        full: bool = False,
        lost: bool = False,
    ) -> bool:
        """Note that this replica has no log; returns whether this is new."""
        known = self._unopened.get(tp)
        news = known is None or known.topic_id != topic_id
        if known is None or news:
            known = UnopenedReplica(tp, topic_id, state, broker_id=self._broker_id, writer=self._isr_writer)
            self._unopened[tp] = known
        minimum = isr.min_in_sync(self._metadata.topic_config(tp.topic).min_insync_replicas, state.established)
        known.take(state, leads=self._leads(state), effective_min_isr=minimum, full=full, lost=lost, why=why)
        return news

    def why_unopened(self, tp: TopicPartition) -> str | None:
        """Why this broker's replica of the partition has no log; None if it has one, or if there is no replica."""
        replica = self._unopened.get(tp)
        return None if replica is None else f"this broker has no log of the partition: {replica.why}"

    def without_log(self, tp: TopicPartition) -> ErrorCode:
        """Why this broker has no replica of the partition: LOG_DIR_NOT_FOUND if its log was here and is gone."""
        replica = self._unopened.get(tp)
        lost = replica is not None and replica.lost
        return ErrorCode.LOG_DIR_NOT_FOUND if lost else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def without_room(self) -> list[UnopenedReplica]:
        """The replicas for whose new logs there was no room."""
        return [one for one in self._unopened.values() if one.full]

    def _is_counted_on(self, state: PartitionState) -> bool:
        """Whether this broker's log may have every acknowledged record."""
        return self._broker_id in (*state.isr, *state.elr)

    def _is_of(self, log: Log, topic_id: uuid.UUID, state: PartitionState) -> bool:
        """Whether the log is that topic's. One without a topic id is, if it is empty or counted on."""
        if log.topic_id is None:
            return self._is_counted_on(state) or not log.log_end_offset
        return log.topic_id == topic_id

    def _may_create(self, tp: TopicPartition, state: PartitionState) -> bool:
        """Whether a missing log is a new one. Otherwise this broker had it, and an empty one would replace acknowledged
        records. Once the broker is neither in sync nor eligible, it may start with an empty log.

        It had none if it is counted on since it lost nothing: in the first state of a partition, or after an election
        that lets it begin anew. A crash may come between that state and the log; a start that lost nothing (it
        continues) has all logs that the one before had, and what that one had lost is lost still.
        """
        counted_on = isr.relied_on(state, self._broker_id)
        if counted_on is None:
            return True
        if self._incarnation() < 0:
            return False  # not registered: what was lost is not known yet
        if counted_on >= self._intact_since:
            return True
        if state.leader == NO_LEADER and state.leader_epoch <= 0 and counted_on == -1:
            return True  # no replica of it has ever been alive
        if counted_on == isr.FAILED_INCARNATION and state.leader != NO_LEADER and self._broker_id not in state.isr:
            return True  # known to have lost it, so never elected for it: it follows a leader that has everything
        if counted_on == isr.FAILED_INCARNATION or self._continues:
            return False
        return not self._logs.may_have_had(tp)

    def _begin_epoch(self, partition: Partition, state: PartitionState) -> None:
        """Another epoch of this leader: requests of the old one must not be answered from it if another broker led
        between, nor those of a coordinator, whose state is loaded again.
        """
        if state.leader_epoch != partition.leader_epoch + 1 or partition.tp.topic in INTERNAL_TOPICS:
            partition.resign(state)
        self._tell_resigned(partition)

    def _resign(self, partition: Partition, state: PartitionState | None) -> None:
        partition.resign(state)
        self._tell_resigned(partition)

    def _tell_resigned(self, partition: Partition) -> None:
        for listener in self._resigned_listeners:
            _call(listener, partition.tp)

    def _forget(self, tp: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Serve and follow the partition no more; returns whether it has a log, which nobody needs."""
        unopened = self._unopened.pop(tp, None)
        if unopened is not None:
            unopened.close()
        partition = self._partitions.get(tp)
        if partition is None or partition.topic_id != topic_id:
            return False
        del self._partitions[tp]
        partition.deleted = True
        partition.follower_role.goes_on()
        if partition.is_leader:
            self._resign(partition, None)
        else:
            partition.resign(None)  # consumers may be fetching from this follower
        for unfollow in self._unfollow_listeners:
            _call(unfollow, tp)
        for listener in self._deleted_listeners:
            _call(listener, tp)
        return True

    def _reconfigure(self, topic: str) -> None:
        info = self._metadata.topics.get(topic)
        if info is None:
            return
        config = self._metadata.topic_config(topic)
        for index in range(len(info.partitions)):
            partition = self._partitions.get(TopicPartition(topic, index))
            if partition is None:
                continue
            try:
                partition.log.config = config
            except (DiskError, LogOffline) as wrong:  # a failed disk has taken the log offline
                logger.error(
                    "%s: new settings of its accepted positions count after a restart: %s", partition.tp, wrong
                )
            partition.advance()


def _call(listener: Callable[[Any], None], argument: Any) -> None:
    try:
        listener(argument)
    except Exception:
        logger.exception("replica manager: a listener failed on %s", argument)
