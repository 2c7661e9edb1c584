"""One partition on this broker: its role, its appends, its high watermark, and the requests that wait for these.

The high watermark is the smallest log end of the *maximal* in-sync set: the committed set together with the proposed
one, because a successor may be elected from either. It does not move while the set is smaller than
``min.insync.replicas`` or other replicas are eligible to lead (KIP-966).

A partition is composed: the followers and the in-sync set of a leader, the confirmations that it still leads, and the
role of a follower are parts. What the parts share, and what every request asks for, are the partition's own attributes.

Source: Kafka's Partition and ReplicaManager; KIP-207, KIP-392, KIP-497, KIP-966.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from fleetlog.brokers.log import Appended, AppendInfo, DiskError, Log, LogOffline, Origin, Terms, guards_of
from fleetlog.brokers.log.rejected import BatchOrder, BeforeLeading
from fleetlog.brokers.model import BrokerInfo, Clock, PartitionState, TopicPartition
from fleetlog.brokers.replication.confirmations import Confirmations
from fleetlog.brokers.replication.follower_progress import ReplicaSession
from fleetlog.brokers.replication.follower_role import FollowerRole
from fleetlog.brokers.replication.followers import Followers
from fleetlog.brokers.replication.in_sync_set import InSyncSet
from fleetlog.brokers.replication.proposals import IsrWriter
from fleetlog.brokers.replication.serving import LEADER_ONLY, LeaderLease, Serve, not_led
from fleetlog.brokers.replication.waiters import CommitWaits, call
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    import uuid

    from fleetlog._native.batch import Admitted
    from fleetlog.brokers.topic_figures import TopicFigures

logger = logging.getLogger(__name__)

_NONE = ErrorCode.NONE
"""Looked up once: an enum's metaclass takes a thousand instructions to find a member."""


class Watcher(Protocol):
    """A listener for a partition's changes. Called synchronously on the loop: it must not block."""

    def appended(self, partition: Partition) -> None:
        """The leader's log end moved."""
        ...

    def committed(self, partition: Partition) -> None:
        """The high watermark, the last stable offset or the log start moved."""
        ...

    def changed(self, partition: Partition) -> None:
        """Role, leader epoch or existence changed."""
        ...


class Surroundings(Protocol):
    """The cluster state that a partition needs."""

    stopped: dict[TopicPartition, str]
    """Why replicas of this broker do not follow their leaders."""

    def lease_valid(self) -> bool:
        """Whether this broker's lease is valid (``BrokerLease``)."""
        ...

    def broker(self, broker_id: int) -> BrokerInfo | None:
        """The registered broker with this id, or None."""
        ...


class Partition:
    """A replica on this broker. Loop thread only.

    ``is_leader``: the state names this broker in its present incarnation. Whether a request may be served is decided
    for each request by :meth:`may_serve`.
    """

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: uuid.UUID,
        log: Log,
        state: PartitionState,
        *,
        broker_id: int,
        clock: Clock,
        surroundings: Surroundings,
        isr_writer: IsrWriter,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.state = state
        self.is_leader = False
        self.leader_epoch = -1
        self.deleted = False
        self.figures: TopicFigures | None = None
        """What its topic's partitions are counted in, if that is done."""
        self.epoch_start_offset = 0
        """The log end at the start of this broker's present leader epoch (KIP-207)."""
        self.order = BatchOrder(tp, topic_id, clock, BeforeLeading())
        """What became of refused batches; the replica manager makes it follow the broker's own list."""
        self.lease = LeaderLease(surroundings.lease_valid)
        self.lease_valid = self.lease.valid
        """Whether no other broker can lead now."""
        broker = surroundings.broker
        self.follower_role = FollowerRole(self, clock, surroundings.stopped)
        self.followers = Followers(self, broker_id, broker)
        self.in_sync = InSyncSet(self, self.followers, self.lease, isr_writer, broker_id=broker_id, broker=broker)
        self.confirmations = Confirmations(self, self.followers, self.in_sync, self.lease, clock)
        self.when_confirmed = self.confirmations.when_confirmed
        """Call back once it is certain that this broker led; see :meth:`Confirmations.when_confirmed`."""
        self._broker_id = broker_id
        self._clock = clock
        self._commits = CommitWaits()
        self._watchers: dict[Watcher, None] = {}

    # ---- state -----------------------------------------------------------------------------------------------------

    def may_serve(self, kind: Serve) -> ErrorCode:
        """NONE, or the error that a request of this kind gets now."""
        if not self.is_leader:
            return not_led(kind)
        return ErrorCode.NONE if kind in LEADER_ONLY else self.lease.refusal(kind)

    def waive_lease(self) -> None:
        """Waive the lease, so that the controller may elect another leader."""
        if self.is_leader:
            self.lease.waive(self._clock.mono_ms())

    def check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Compare the client's leader epoch with the partition's (KIP-320); -1 if the client has none."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def _below_minimum(self) -> bool:
        in_sync = len(self.state.isr)
        return in_sync < len(self.state.replicas) and in_sync < self.in_sync.effective_min_isr

    def lowest_start(self) -> int:
        """The smallest log start among replicas that are alive or may lead; -1 if one is unknown, or if this broker is
        not the leader.
        """
        if not self.is_leader:
            return -1
        return self.followers.lowest_start(self.in_sync.successors)

    # ---- appending -------------------------------------------------------------------------------------------------

    def append(
        self,
        records: Any,
        *,
        acks: int,
        origin: Origin,
        verification_guard: object | None = None,
        expected_leader_epoch: int | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """:meth:`append_batches` for one buffer, which may hold several batches that become visible together.

        ``expected_leader_epoch`` refuses the append when the partition had another leader since the caller
        looked. ``transaction_version`` 2 on a marker says that its producer epoch was bumped for it (KIP-890).
        """
        if expected_leader_epoch not in (None, self.leader_epoch):
            return rejected_append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        guards = guards_of(records, verification_guard)
        terms = Terms(origin, guards=guards, transaction_version=transaction_version)
        return self.log.appender.info(self.append_batches([records], acks, terms)[0][0])

    def append_batches(self, batches: Sequence[Any], acks: int, terms: Terms) -> Appended:
        """Append batches as the leader; a client's mistakes come back in the outcomes, never as an exception.

        ``acks`` is the producer's: -1 asks for ``min.insync.replicas``. See :meth:`Appender.append`.
        """
        log = self.log
        refusal = _NONE
        if not self.is_leader or self.in_sync.proposed is not None:
            refusal = self.may_serve(Serve.APPEND)
        if refusal is _NONE and acks == -1 and self._below_minimum():
            refusal = ErrorCode.NOT_ENOUGH_REPLICAS
        end_before = log.log_end_offset
        order = self.order if terms.whole_request else None
        appended = log.appender.append(batches, self.leader_epoch, self._clock.wall_ms(), terms, order, refusal)
        if log.log_end_offset != end_before:
            for follower in self.followers.known.values():
                if follower.end_offset == end_before:
                    follower.overtaken()
            if self._watchers:
                for watcher in list(self._watchers):
                    call(watcher.appended, self)
            self.advance()
        if not appended[1] and not self.lease_valid():
            return [_unless_repeated(one) for one in appended[0]], False
        return appended

    def is_committed(self, offset: int) -> bool:
        """Whether this broker leads and the record at ``offset`` is below the high watermark."""
        return self.is_leader and offset < self.log.high_watermark

    def must_wait(self, acks: int, offset: int) -> bool:
        """Whether the answer to a producer waits until the record at ``offset`` is committed.

        Without its lease a leader may have been replaced: it then promises nothing that its followers don't have.
        """
        if acks == 0 or (self.is_leader and offset < self.log.high_watermark):
            return False
        return acks == -1 or not self.lease_valid()

    def wait_for(self, offset: int, on_committed: Callable[[ErrorCode], None], *, gives_up: bool = False) -> None:
        """Call back once the record at ``offset`` is below the high watermark; possibly immediately.

        The argument is NONE, or NOT_LEADER_OR_FOLLOWER if this broker stops leading first. With ``gives_up`` it is
        NOT_ENOUGH_REPLICAS_AFTER_APPEND as soon as the in-sync set has become too small: the record may be committed
        later, or not.
        """
        if not self.is_leader:
            on_committed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.is_committed(offset):
            on_committed(ErrorCode.NONE)
        else:
            self._commits.add(offset, on_committed, gives_up=gives_up)

    # ---- followers -------------------------------------------------------------------------------------------------

    def follower_fetched(
        self, session: ReplicaSession, fetch_offset: int, log_start_offset: int, now_ms: int
    ) -> ErrorCode:
        """Note a fetch of a follower in the present epoch: it has all records before ``fetch_offset``.

        UNKNOWN_LEADER_EPOCH if the known state lacks that replica: the follower may have a newer one, and retries.
        """
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        broker_id = session.broker_id
        if broker_id not in self.state.replicas:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        end = self.log.log_end_offset
        if fetch_offset > end:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        follower = self.followers.known.get(broker_id) or self.followers.add(broker_id, now_ms)
        returned = follower.session is not session
        follower.fetched(session, fetch_offset, log_start_offset, end, now_ms)
        if returned:
            self.confirmations.check()  # what waits for a confirmation waits for this session, too
        if broker_id in self.in_sync.maximal_isr:
            self.advance()
        self.in_sync.expand(follower)
        return ErrorCode.NONE

    def check_followers(self, now_ms: int, lag_max_ms: int) -> None:
        """Propose the in-sync set without lagging members; call it a few times per ``replica.lag.time.max.ms``."""
        self.confirmations.check()  # the lease may have come back, and no follower fetches here
        if self.is_leader:
            self.in_sync.check(now_ms, lag_max_ms)

    def state_written(self, state: PartitionState) -> None:
        """Take a state that this replica proposed and that is written."""
        if self.lease.state_written():
            self.confirmations.check()
        if self.is_leader and state.partition_epoch > self.state.partition_epoch:
            if self.figures is not None:
                self.figures.isr_shrinks += len(state.isr) < len(self.state.isr)
                self.figures.isr_expands += len(state.isr) > len(self.state.isr)
            self._take(replace(state, replicas=self.state.replicas, adding=self.state.adding,
                               removing=self.state.removing))  # fmt: skip

    # ---- the high watermark ----------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Move the high watermark to the smallest log end of the maximal in-sync set, and complete waiting requests."""
        if not self.is_leader or self.state.elr or self._below_minimum():
            return
        log = self.log
        watermark = log.log_end_offset
        for broker_id in self.state.isr if self.in_sync.proposed is None else self.in_sync.maximal_isr:
            if broker_id != self._broker_id:
                follower = self.followers.known.get(broker_id)
                end = follower.end_offset if follower is not None else -1
                if end < watermark:
                    watermark = end
        if watermark <= log.high_watermark:
            return
        log.appender.set_high_watermark(watermark)
        if self._commits.heap:
            self._commits.complete(log.high_watermark)
        if self._watchers:
            self.committed()

    def committed(self) -> None:
        """Notify readers: the high watermark, the last stable offset or the log start moved."""
        for watcher in list(self._watchers):
            call(watcher.committed, self)

    # ---- listeners -------------------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Notify ``watcher`` of every change until :meth:`unwatch`."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Stop notifying ``watcher``."""
        self._watchers.pop(watcher, None)

    # ---- roles -----------------------------------------------------------------------------------------------------

    def become_leader(self, state: PartitionState) -> None:
        """Lead in the state's epoch. What waits in the epoch just before waits on: no other broker led between."""
        if self.leader_epoch == state.leader_epoch and self.is_leader:
            self.update_state(state)
            return
        if self.is_leader and state.leader_epoch == self.leader_epoch + 1:
            self.in_sync.new_epoch()
        else:
            self._stop_leading()
        self.leader_epoch = state.leader_epoch
        self.epoch_start_offset = self.log.log_end_offset
        self.log.assign_epoch(state.leader_epoch)
        if self.log.lacks_positions:
            self._do_without_positions()
        self.is_leader = True
        self.follower_role.goes_on()
        self.state = state
        self.followers.begin_epoch(state.replicas, self._clock.mono_ms())
        self._tell_changed()
        self.advance()

    def _do_without_positions(self) -> None:
        """Nobody can tell any more: this replica is the last one, or an operator's choice."""
        logger.error(
            "%s: leading without what was accepted before offset %d: no producer snapshot of it is sound, and no other"
            " replica could lead; a repeat from before may be accepted again",
            self.tp, self.log.segments.first.base_offset,
        )  # fmt: skip
        try:
            self.log.learn_positions(None)
        except (DiskError, LogOffline) as problem:
            logger.error("%s: %s", self.tp, problem)

    def update_state(self, state: PartitionState) -> None:
        """Apply a state with the same leader and epoch. Of an older state only the replicas are taken."""
        known = self.state
        if state.partition_epoch < known.partition_epoch:
            state = replace(known, replicas=state.replicas, adding=state.adding, removing=state.removing)
        elif not self.in_sync.state_known(state):
            self.followers.taken_out(set(known.isr).difference(state.isr), self._clock.mono_ms())
        self._take(state)

    def _take(self, state: PartitionState) -> None:
        self.state = state
        if not self.is_leader:
            return
        self.followers.keep(state.replicas)
        self.advance()
        if self.in_sync.proposed is None:
            self.in_sync.expand_any()
        if len(state.isr) < self.in_sync.effective_min_isr:
            self._commits.give_up()

    def become_follower(self, state: PartitionState) -> None:
        """Follow the state's leader, if there is one."""
        self._stop_leading()
        self.leader_epoch = max(self.leader_epoch, state.leader_epoch)
        self.state = state
        self._tell_changed()

    def resign(self, state: PartitionState | None) -> None:
        """Stop leading: there is another leader, or none; waiting requests get NOT_LEADER_OR_FOLLOWER."""
        if state is not None:
            self.state = state
            self.leader_epoch = max(self.leader_epoch, state.leader_epoch)
        self._stop_leading()
        self._tell_changed()

    def _stop_leading(self) -> None:
        self.is_leader = False
        self.in_sync.new_epoch()
        self.followers.end_epoch()
        self._commits.end()
        self.confirmations.end()

    def _tell_changed(self) -> None:
        for watcher in list(self._watchers):
            call(watcher.changed, self)


def rejected_append(error: ErrorCode, message: str | None = None) -> AppendInfo:
    """The outcome of an append that was rejected before the log."""
    return AppendInfo(
        first_offset=-1,
        last_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_count=0,
        size=0,
        duplicate=False,
        error=error,
        error_message=message,
    )


def _unless_repeated(outcome: Admitted | AppendInfo) -> Admitted | AppendInfo:
    """What a leader without its lease says of a batch: not that it has it already, if it is one of a transaction.

    Another leader may have the end of the transaction that is open here. Producers of protocol 1 then use the sequences
    that were not acknowledged again, in the same epoch: this batch may belong to the next transaction.
    """
    if isinstance(outcome, AppendInfo) and outcome.in_transaction:
        return rejected_append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return outcome
