"""One partition on this broker: its role, its high watermark, its in-sync set, and the requests that wait for these.

The high watermark is the smallest log end of the *maximal* in-sync set: the committed set together with the proposed
one, because a successor may be elected from either. It does not move while the set is smaller than
``min.insync.replicas`` or other replicas are eligible to lead (KIP-966).

Changes of the in-sync set are proposed to an :class:`IsrWriter`, which writes them by compare-and-set. Its outcome, or
a newer state from the metadata cache, ends the proposal.

Source: Kafka's Partition and ReplicaManager; KIP-207, KIP-392, KIP-497, KIP-966.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from brokers.log import Appended, AppendInfo, Log, Origin, Terms, guards_of
from brokers.log.rejected import BatchOrder, BeforeLeading
from brokers.model import NO_LEADER, BrokerInfo, Clock, PartitionState, TopicPartition
from brokers.replication import isr
from brokers.replication.follower_progress import Follower, ReplicaSession
from brokers.replication.follower_role import FollowerRole
from brokers.replication.proposals import IsrWriter
from brokers.replication.serving import LEADER_ONLY, LeaderLease, Serve, not_led
from brokers.replication.waiters import CommitWaits, ConfirmationWaits, call
from wire.errors import ErrorCode

if TYPE_CHECKING:
    import uuid

    from brokers.topic_figures import TopicFigures

logger = logging.getLogger(__name__)

_NONE = ErrorCode.NONE
"""Looked up once: an enum's metaclass takes a thousand instructions to find a member."""
FAILED_INCARNATION = -2
"""The incarnation of an in-sync member whose log has failed: no other incarnation continues it."""


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
        self.follower_role = FollowerRole(self, clock)
        self._broker_id = broker_id
        self._clock = clock
        self._around = surroundings
        self._writer = isr_writer
        self.order = BatchOrder(tp, topic_id, clock, BeforeLeading())
        """What became of refused batches; the replica manager makes it follow the broker's own list."""
        self._followers: dict[int, Follower] = {}
        self._pending: PartitionState | None = None
        self._epoch_start = 0
        self.lease = LeaderLease(surroundings.lease_valid)
        self.lease_valid = self.lease.valid
        """Whether no other broker can lead now."""
        self._commits = CommitWaits()
        self._confirmations = ConfirmationWaits()
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

    @property
    def effective_min_isr(self) -> int:
        """``min.insync.replicas``, but at most the number of replicas, without those being added."""
        return isr.min_in_sync(self.log.config.min_insync_replicas, self.state.established)

    def _below_minimum(self) -> bool:
        in_sync = len(self.state.isr)
        return in_sync < len(self.state.replicas) and in_sync < self.effective_min_isr

    @property
    def epoch_start_offset(self) -> int:
        """The log end at the start of this broker's present leader epoch (KIP-207)."""
        return self._epoch_start

    @property
    def proposed(self) -> PartitionState | None:
        """The state whose write is in flight."""
        return self._pending

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The in-sync set together with the proposed one."""
        if self._pending is None:
            return self.state.isr
        return tuple(dict.fromkeys((*self.state.isr, *self._pending.isr)))

    def follower_ends(self) -> dict[int, int]:
        """The log ends of the followers by broker id; -1 before a follower's first fetch."""
        return {follower.broker_id: follower.end_offset for follower in self._followers.values()}

    def behind(self, now_ms: int) -> list[tuple[int, int, int]]:
        """Followers that lack records: broker id, the offset where they stand (-1: unknown), ms since they had all."""
        end = self.log.log_end_offset
        return [
            (follower.broker_id, follower.end_offset, max(0, now_ms - follower.caught_up_ms))
            for follower in self._followers.values()
            if follower.end_offset < end
        ]

    def lowest_start(self) -> int:
        """The smallest log start among replicas that are alive or may lead; -1 if one is unknown, or if this broker is
        not the leader.
        """
        if not self.is_leader:
            return -1
        successors = {*self.maximal_isr, *self.state.elr}
        counted = [
            follower.start_offset
            for broker_id, follower in self._followers.items()
            if broker_id in successors or self._around.broker(broker_id) is not None
        ]
        return min([self.log.log_start_offset, *counted])

    def preferred_replica(self, rack: str, fetch_offset: int) -> int:
        """A follower in the rack that can serve a consumer at the offset; -1 for the leader itself (KIP-392)."""
        own = self._around.broker(self._broker_id)
        if not rack or own is None or own.rack == rack:
            return -1
        best, best_end = -1, -1
        for broker_id in self.state.isr:
            broker = self._around.broker(broker_id)
            follower = self._followers.get(broker_id)
            if broker is None or broker.rack != rack or follower is None:
                continue
            if follower.start_offset <= fetch_offset <= follower.end_offset and follower.end_offset > best_end:
                best, best_end = broker_id, follower.end_offset
        return best

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
        if not self.is_leader or self._pending is not None:
            refusal = self.may_serve(Serve.APPEND)
        if refusal is _NONE and acks == -1 and self._below_minimum():
            refusal = ErrorCode.NOT_ENOUGH_REPLICAS
        end_before = log.log_end_offset
        order = self.order if terms.whole_request else None
        appended = log.appender.append(batches, self.leader_epoch, self._clock.wall_ms(), terms, order, refusal)
        if log.log_end_offset != end_before:
            for follower in self._followers.values():
                if follower.end_offset == end_before:
                    follower.overtaken()
            if self._watchers:
                for watcher in list(self._watchers):
                    call(watcher.appended, self)
            self.advance()
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
        follower = self._followers.get(broker_id)
        if follower is None:
            follower = self._followers[broker_id] = Follower(broker_id, now_ms)
        returned = follower.session is not session
        follower.fetched(session, fetch_offset, log_start_offset, end, now_ms)
        if returned:
            self._confirm()  # what waits for a confirmation waits for this session, too
        if broker_id in self.maximal_isr:
            self.advance()
        self._expand(follower)
        return ErrorCode.NONE

    def follower_forgotten(self, session: ReplicaSession) -> None:
        """The follower removed the partition from that fetch session."""
        follower = self._followers.get(session.broker_id)
        if follower is not None and follower.session is session:
            follower.forgotten()

    def _expand(self, follower: Follower) -> None:
        """Propose a caught-up follower for the in-sync set.

        It must have every committed record, and every record from before this epoch, because it is unknown how many of
        those are committed. Its log must not start below the leader's: there, records were not compared and may differ.
        A member with a new incarnation is proposed again.
        """
        session = follower.session
        if self._pending is not None or session is None or follower.start_offset < self.log.log_start_offset:
            return
        if follower.end_offset < max(self.log.high_watermark, self._epoch_start):
            return
        broker = self._around.broker(follower.broker_id)
        if broker is None or broker.epoch != session.broker_epoch or follower.broker_id in self.state.removing:
            return
        counted_on = dict(isr.members(self.state)).get(broker.id)
        if counted_on is not None and broker.live_broker.continues(counted_on):
            return
        self._propose(isr.joined(self.state, broker.id, broker.incarnation, self.effective_min_isr))

    def _expand_any(self) -> None:
        """Check the followers at the log's end: one that caught up while another change was in flight continues to
        fetch without naming the partition. Followers behind the end will name it.
        """
        end = self.log.log_end_offset
        for follower in self._followers.values():
            if follower.end_offset == end:
                self._expand(follower)

    def check_followers(self, now_ms: int, lag_max_ms: int) -> None:
        """Propose the in-sync set without lagging members; call it a few times per ``replica.lag.time.max.ms``."""
        self._confirm()  # the lease may have come back, and no follower fetches here
        if not self.is_leader or self._pending is not None:
            return
        if not self._followers and len(self.state.isr) == 1 and not self.state.elr:
            return  # a single replica: skip early, there may be thousands of these partitions
        minimum = self.effective_min_isr
        if self.state.elr and len(self.state.isr) >= minimum:
            self._propose(isr.settled(self.state, minimum))
            return
        if self.lease.overdue(now_ms):
            self._propose(self.state)  # the same state in a new version: the planned move's write will fail
            return
        self._expand_any()
        if self.proposed is not None:
            return
        end = self.log.log_end_offset
        lagging = [
            broker_id
            for broker_id in self.state.isr
            if broker_id != self._broker_id and self._follower(broker_id, now_ms).lags(end, now_ms, lag_max_ms)
        ]
        if lagging:
            shrunk = isr.without(self.state, lagging, minimum)
            if shrunk is not self.state:
                self._propose(shrunk)

    def _follower(self, broker_id: int, now_ms: int) -> Follower:
        follower = self._followers.get(broker_id)
        if follower is None:
            follower = self._followers[broker_id] = Follower(broker_id, now_ms)
        return follower

    def _propose(self, state: PartitionState) -> None:
        proposed = replace(state, partition_epoch=self.state.partition_epoch + 1, leader_recovery_state=0)
        logger.info(
            "%s: proposing in-sync set %s, present %s (leader epoch %d)",
            self.tp, list(proposed.isr), list(self.state.isr), self.leader_epoch,
        )  # fmt: skip
        self._pending = proposed
        self.lease.state_proposed()
        self._writer.propose(self, proposed)

    def proposal_written(self, state: PartitionState) -> None:
        """Apply the state that was written."""
        if self._pending is not state:
            return  # the metadata cache brought a newer state first
        if self.lease.resigning:
            return  # it stays proposed until the metadata cache has it: a successor may lead from now on
        self._pending = None
        if self.lease.state_written():
            self._confirm()
        if self.is_leader and state.partition_epoch > self.state.partition_epoch:
            if self.figures is not None:
                self.figures.isr_shrinks += len(state.isr) < len(self.state.isr)
                self.figures.isr_expands += len(state.isr) > len(self.state.isr)
            self._take(replace(state, replicas=self.state.replicas, adding=self.state.adding,
                               removing=self.state.removing))  # fmt: skip

    def proposal_refused(self, state: PartitionState) -> None:
        """Drop a proposal that certainly is not written and never will be."""
        if self._pending is state:
            self._pending = None
            self.lease.resigning = False
            self.advance()

    def abdicate(self, left: PartitionState | None = None) -> PartitionState | None:
        """Propose a state without a leader, and return it; None while another change is in flight.

        ``left`` has the in-sync set without this broker; by default as after a log failure.
        """
        if not self.is_leader or self._pending is not None:
            return None
        state = self._without_this_broker() if left is None else left
        self._pending = replace(
            state,
            leader=NO_LEADER,
            last_known_leader=self._broker_id,
            leader_epoch=state.leader_epoch + 1,
            leader_incarnation=-1,
            partition_epoch=state.partition_epoch + 1,
        )
        self.lease.resigning = True
        self._writer.propose(self, self._pending)
        return self._pending

    def withdraw(self, left: PartitionState | None = None) -> PartitionState | None:
        """Propose a state in which this follower is not in sync, and return it; None if it changes nothing.

        ``left``: as above. Its leader would remove it only after the lag time, and acks=all would wait until then.
        """
        if self.is_leader or self._pending is not None:
            return None
        state = self._without_this_broker() if left is None else left
        if state == self.state:
            return None
        self._pending = replace(state, partition_epoch=state.partition_epoch + 1)
        self._writer.propose(self, self._pending)
        return self._pending

    def _without_this_broker(self) -> PartitionState:
        """The state in which this broker no longer counts.

        It leaves the in-sync set unless it is the only member. If the set is then below the minimum, or this broker is
        the only member, it may be the only replica with every record, should the others lose their tails. So it stays
        eligible or a member, in an incarnation that no other continues: it leads only after all of them are back and
        their logs are compared.
        """
        state = isr.without(self.state, {self._broker_id}, self.effective_min_isr)
        return replace(
            state,
            isr_incarnations=tuple(self._failed(b, i) for b, i in isr.members(state)),
            elr_incarnations=tuple(self._failed(b, i) for b, i in isr.eligible(state)),
        )

    def _failed(self, broker_id: int, incarnation: int) -> int:
        return FAILED_INCARNATION if broker_id == self._broker_id else incarnation

    # ---- the high watermark ----------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Move the high watermark to the smallest log end of the maximal in-sync set, and complete waiting requests."""
        if not self.is_leader or self.state.elr or self._below_minimum():
            return
        log = self.log
        watermark = log.log_end_offset
        for broker_id in self.state.isr if self._pending is None else self.maximal_isr:
            if broker_id != self._broker_id:
                follower = self._followers.get(broker_id)
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

    # ---- leading without a lease -----------------------------------------------------------------------------------

    def confirmed_ms(self) -> int | None:
        """The latest time at which this broker provably led: every possible successor still followed it.

        None if it is unknown: a possible successor does not fetch here, or any replica could succeed.
        """
        if not self.is_leader or self.log.config.unclean_leader_election_enable:
            return None
        others = {*self.maximal_isr, *self.state.elr} - {self._broker_id}
        if not others:
            return self._clock.mono_ms()
        moments = []
        for broker_id in others:
            follower = self._followers.get(broker_id)
            if follower is None or follower.session is None:
                return None
            moments.append(follower.session.proven_ms)
        return min(moments)

    def when_confirmed(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back with NONE once it is certain that this broker led at some time after this call.

        Immediately with a valid lease; else when every possible successor has fetched from this broker since. With
        NOT_LEADER_OR_FOLLOWER if it stops leading first. The caller bounds the wait.
        """
        if not self.is_leader:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.lease_valid():
            callback(ErrorCode.NONE)
        else:
            self._confirmations.add(self._clock.mono_ms(), callback)
            self._confirm()

    def _confirm(self) -> None:
        if not self._confirmations:
            return
        self._confirmations.complete(self._clock.mono_ms() if self.lease_valid() else self.confirmed_ms())
        if self._confirmations:
            for follower in self._followers.values():
                if follower.session is not None:
                    follower.session.on_proof(self._confirm)

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
            self._pending = None
            self.lease.new_epoch()
        else:
            self._stop_leading()
        self.leader_epoch = state.leader_epoch
        self._epoch_start = self.log.log_end_offset
        self.log.assign_epoch(state.leader_epoch)
        self.is_leader = True
        self.state = state
        now_ms = self._clock.mono_ms()
        self._followers = {b: Follower(b, now_ms) for b in state.replicas if b != self._broker_id}
        self._tell_changed()
        self.advance()

    def update_state(self, state: PartitionState) -> None:
        """Apply a state with the same leader and epoch. Of an older state only the replicas are taken."""
        known = self.state
        if state.partition_epoch < known.partition_epoch:
            state = replace(known, replicas=state.replicas, adding=state.adding, removing=state.removing)
        elif self._pending is not None and state.partition_epoch >= self._pending.partition_epoch:
            self._pending = None
            self.lease.resigning = False
        self._take(state)

    def _take(self, state: PartitionState) -> None:
        self.state = state
        if not self.is_leader:
            return
        for broker_id in list(self._followers):
            if broker_id not in state.replicas:
                del self._followers[broker_id]
        self.advance()
        if self._pending is None:
            self._expand_any()
        if len(state.isr) < self.effective_min_isr:
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
        self._pending = None
        self.lease.new_epoch()
        self._followers = {}
        self._commits.end()
        self._confirmations.end()

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
