"""One partition as this broker sees it: its role, its high watermark, its in-sync set, and who waits for them to move.

The high watermark is the smallest log end of the *maximal* in-sync set: the committed one together with the one that is
being proposed, for nobody can know which of them a successor will be chosen from. It stands still while the set is
smaller than ``min.insync.replicas`` or others are eligible to lead (KIP-966).

Changes of the in-sync set are proposed to an :class:`IsrWriter`, which writes them by compare-and-set; what it says, or
a newer state from the view, ends the proposal.

Source: Kafka's Partition and ReplicaManager; KIP-207, KIP-392, KIP-497, KIP-966.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from brokers.cluster import isr
from brokers.cluster.followers import Follower, ReplicaSession
from brokers.cluster.following import Following
from brokers.cluster.turned_away import TurnedAway
from brokers.log import Admitted, AppendInfo, Log, Origin
from brokers.model import NO_LEADER, BrokerInfo, Clock, PartitionState, TopicPartition
from wire.errors import ErrorCode

if TYPE_CHECKING:
    import uuid

logger = logging.getLogger(__name__)

FAILED_INCARNATION = -2
"""The incarnation of an in-sync member whose log has failed: no life continues it."""


class Serve(Enum):
    """What a broker may be asked to do for a partition it believes to lead."""

    APPEND = "append"
    FETCH = "fetch"
    LIST_OFFSETS = "list offsets"
    COORDINATE = "coordinate"


_WITHOUT_LEASE = (Serve.FETCH, Serve.APPEND)


def may_serve(kind: Serve, lease_valid: bool) -> ErrorCode:
    """What is served at once when the broker's lease on its registration has run out: the one place that decides it.

    A broker without its lease may have been replaced as a leader without knowing. It may hand out records below its
    high watermark, which no later leader takes back. It may append, because an append is acknowledged only when every
    member of the in-sync set has it, and a successor comes from that set and no longer fetches here. What is read from
    memory could contradict the new leader: a latest offset too low, a committed group offset or a fence too old. For
    these ``Partition.when_confirmed`` asks the followers; who doesn't wait for that is sent to look for the leader.
    """
    if lease_valid or kind in _WITHOUT_LEASE:
        return ErrorCode.NONE
    return ErrorCode.NOT_COORDINATOR if kind is Serve.COORDINATE else ErrorCode.NOT_LEADER_OR_FOLLOWER


class Watcher(Protocol):
    """Who wants to hear of a partition's moves. Called at once, on the loop: mark, schedule, return."""

    def appended(self, partition: Partition) -> None:
        """The log's end moved at its leader."""
        ...

    def committed(self, partition: Partition) -> None:
        """The high watermark, the last stable offset or the log's start moved."""
        ...

    def changed(self, partition: Partition) -> None:
        """Role, leader epoch or existence changed."""
        ...


class IsrWriter(Protocol):
    """Writes proposed states; see ``brokers.cluster.isr_writer``."""

    def propose(self, partition: Partition, state: PartitionState) -> None:
        """Write it, and tell ``partition`` by ``proposal_written`` or ``proposal_refused``, now or later."""
        ...


class Surroundings(Protocol):
    """What a partition asks about the cluster."""

    def lease_valid(self) -> bool:
        """Whether this broker still holds its registration."""
        ...

    def broker(self, broker_id: int) -> BrokerInfo | None:
        """A living broker."""
        ...


class DataWaiter:
    """A fetch that waits for data; ``cancel`` forgets it."""

    __slots__ = ("_waiters", "callback")

    def __init__(self, waiters: dict[DataWaiter, None], callback: Callable[[], None]) -> None:
        self._waiters = waiters
        self.callback = callback
        waiters[self] = None

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._waiters.pop(self, None)


class _Waiter:
    """Who waits for an offset to be committed; ``gives_up`` if a shrunk in-sync set is reason enough to answer."""

    __slots__ = ("callback", "gives_up")

    def __init__(self, callback: Callable[[ErrorCode], None], gives_up: bool) -> None:
        self.callback = callback
        self.gives_up = gives_up


class Partition(Following):
    """A replica on this broker. Loop thread only.

    ``is_leader`` says that the state names this broker in its present incarnation; whether it may act on it is
    :func:`may_serve`'s word, asked for each request.
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
        super().__init__(tp, topic_id, log, state, broker_id=broker_id, clock=clock)
        self._around = surroundings
        self._writer = isr_writer
        self.turned_away = TurnedAway()
        self._followers: dict[int, Follower] = {}
        self._pending: PartitionState | None = None
        self._epoch_start = 0
        self._numbers = itertools.count()
        self._committed_waiters: list[tuple[int, int, _Waiter]] = []
        self._confirm_waiters: list[tuple[int, Callable[[ErrorCode], None]]] = []
        self._data_waiters: dict[DataWaiter, None] = {}
        self._watchers: dict[Watcher, None] = {}

    # ---- what may be asked of it -----------------------------------------------------------------------------------

    def may_serve(self, kind: Serve) -> ErrorCode:
        """NONE, or the error that a request of that kind gets now."""
        if not self.is_leader:
            return ErrorCode.NOT_COORDINATOR if kind is Serve.COORDINATE else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if kind in _WITHOUT_LEASE else may_serve(kind, self._around.lease_valid())

    def check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Compare the epoch a client knows with ours (KIP-320); -1 is a client that does not know it."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    @property
    def effective_min_isr(self) -> int:
        """``min.insync.replicas``, but never more than there are replicas; those just being added don't count yet."""
        return isr.min_in_sync(self.log.config.min_insync_replicas, self.state.established)

    def _below_minimum(self) -> bool:
        in_sync = len(self.state.isr)
        return in_sync < len(self.state.replicas) and in_sync < self.effective_min_isr

    @property
    def epoch_start_offset(self) -> int:
        """Where the log ended when this broker began to lead in the present epoch (KIP-207)."""
        return self._epoch_start

    @property
    def proposed(self) -> PartitionState | None:
        """The state whose writing is under way."""
        return self._pending

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The in-sync set together with the one being proposed."""
        if self._pending is None:
            return self.state.isr
        return tuple(dict.fromkeys((*self.state.isr, *self._pending.isr)))

    def follower_ends(self) -> dict[int, int]:
        """The log ends of the followers as far as they told them, for metrics and tools; -1 where they did not."""
        return {follower.broker_id: follower.end_offset for follower in self._followers.values()}

    def lowest_start(self) -> int:
        """Where the replica begins that reaches furthest back, of who lives or may lead; -1 if one hasn't told."""
        successors = {*self.maximal_isr, *self.state.elr}
        counted = [
            follower.start_offset
            for broker_id, follower in self._followers.items()
            if broker_id in successors or self._around.broker(broker_id) is not None
        ]
        return min([self.log.log_start_offset, *counted])

    def preferred_replica(self, rack: str, fetch_offset: int) -> int:
        """A follower in that rack that can serve a consumer at the offset, -1 if the leader is as near (KIP-392)."""
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
        """Append batches as the leader; a client's mistakes come back in ``error``, never as an exception.

        ``acks`` is the producer's: -1 asks for ``min.insync.replicas``. ``expected_leader_epoch`` refuses the append
        when the partition was led by somebody else since the caller looked. ``transaction_version`` 2 on a marker says
        that its producer epoch was bumped for it (KIP-890).
        """
        error = self.may_serve(Serve.APPEND)
        if error is ErrorCode.NONE and expected_leader_epoch not in (None, self.leader_epoch):
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error is ErrorCode.NONE and acks == -1 and self._below_minimum():
            error = ErrorCode.NOT_ENOUGH_REPLICAS
        if error is not ErrorCode.NONE:
            return refused(error)
        end_before = self.log.log_end_offset
        info = self.log.append_as_leader(
            records,
            leader_epoch=self.leader_epoch,
            now_ms=self._clock.wall_ms(),
            origin=origin,
            verification_guard=verification_guard,
            transaction_version=transaction_version,
        )
        if self.log.log_end_offset != end_before:
            self._appended(end_before)
        return info

    def admit_run(self, batches: list[Any], *, acks: int, transactional: bool, now_ms: int) -> list[Admitted]:
        """Check and stamp what clients sent, a batch each, as many from the first on as the log takes by one write.

        Empty where :meth:`append` has to be asked, which may refuse them. ``transactional``: they came with an id that
        allows them to be.
        """
        if not self.is_leader or (acks == -1 and self._below_minimum()):
            return []
        return self.log.admit_run(
            batches, leader_epoch=self.leader_epoch, now_ms=now_ms, transactional=transactional
        )  # fmt: skip

    def append_run(self, batches: list[Any], admitted: list[Admitted], *, now_ms: int) -> AppendInfo | None:
        """Append what was just admitted: None, or the refusal of all of it."""
        log = self.log
        end_before = log.log_end_offset
        refusal = log.append_run(batches, admitted, now_ms=now_ms)
        if log.log_end_offset != end_before:
            self._appended(end_before)
        return refusal

    def _appended(self, end_before: int) -> None:
        """The log's end has moved."""
        for follower in self._followers.values():
            if follower.end_offset == end_before:
                follower.overtaken()
        if self._watchers:
            for watcher in list(self._watchers):
                _call(watcher.appended, self)
        self.advance()

    def is_committed(self, offset: int) -> bool:
        """Whether the record at ``offset`` is below the high watermark, as far as this broker may say so."""
        return self.is_leader and offset < self.log.high_watermark

    def wait_for(self, offset: int, on_committed: Callable[[ErrorCode], None], *, gives_up: bool = False) -> None:
        """Call back once the record at ``offset`` is below the high watermark; possibly at once.

        The argument is NONE, or NOT_LEADER_OR_FOLLOWER if this broker stops leading first. With ``gives_up`` it is
        NOT_ENOUGH_REPLICAS_AFTER_APPEND as soon as the in-sync set has become too small: the record may be committed
        later, or not.
        """
        if not self.is_leader:
            on_committed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.is_committed(offset):
            on_committed(ErrorCode.NONE)
        else:
            heapq.heappush(self._committed_waiters, (offset, next(self._numbers), _Waiter(on_committed, gives_up)))

    # ---- followers -------------------------------------------------------------------------------------------------

    def follower_fetched(
        self, session: ReplicaSession, fetch_offset: int, log_start_offset: int, now_ms: int
    ) -> ErrorCode:
        """A follower in our epoch asks for records from ``fetch_offset`` on, so it has all before: count it.

        UNKNOWN_LEADER_EPOCH where it is no replica as far as we know (it may know better, so it shall ask again).
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
        follower.fetched(session, fetch_offset, log_start_offset, end, now_ms)
        if broker_id in self.maximal_isr:
            self.advance()
        self._expand(follower)
        return ErrorCode.NONE

    def follower_forgotten(self, session: ReplicaSession) -> None:
        """The follower no longer fetches the partition in that session."""
        follower = self._followers.get(session.broker_id)
        if follower is not None and follower.session is session:
            follower.forgotten()

    def _expand(self, follower: Follower) -> None:
        """Propose a follower that has caught up for the in-sync set.

        It must have all that is committed, and all that was there when this epoch began, for what is committed then is
        not known yet. A member whose incarnation is no longer the one counted on is proposed anew.
        """
        session = follower.session
        if self._pending is not None or session is None:
            return
        if follower.end_offset < max(self.log.high_watermark, self._epoch_start):
            return
        broker = self._around.broker(follower.broker_id)
        if broker is None or broker.epoch != session.broker_epoch or follower.broker_id in self.state.removing:
            return
        counted_on = dict(isr.members(self.state)).get(broker.id)
        if counted_on is not None and broker.life.continues(counted_on):
            return
        self._propose(isr.joined(self.state, broker.id, broker.incarnation, self.effective_min_isr))

    def _expand_any(self) -> None:
        """Look at the followers at the log's end: one that arrived there while another change was under way fetches
        on without naming the partition. Those behind the end will name it.
        """
        end = self.log.log_end_offset
        for follower in self._followers.values():
            if follower.end_offset == end:
                self._expand(follower)

    def check_followers(self, now_ms: int, lag_max_ms: int) -> None:
        """Propose the in-sync set without those who lag; call it a few times per ``replica.lag.time.max.ms``."""
        if not self.is_leader or self._pending is not None:
            return
        if not self._followers and len(self.state.isr) == 1 and not self.state.elr:
            return  # the only replica, as thousands may be
        minimum = self.effective_min_isr
        if self.state.elr and len(self.state.isr) >= minimum:
            self._propose(isr.settled(self.state, minimum))
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
            "%s: proposes in-sync set %s for %s (epoch %d)",
            self.tp, list(proposed.isr), list(self.state.isr), self.leader_epoch,
        )  # fmt: skip
        self._pending = proposed
        self._writer.propose(self, proposed)

    def proposal_written(self, state: PartitionState) -> None:
        """The proposal stands in ZooKeeper."""
        if self._pending is not state:
            return  # a newer state from the view was quicker
        self._pending = None
        if state.leader_epoch != self.leader_epoch:
            return  # an abdication: the view brings it, with all that follows
        if self.is_leader and state.partition_epoch > self.state.partition_epoch:
            self._take(replace(state, replicas=self.state.replicas, adding=self.state.adding,
                               removing=self.state.removing))  # fmt: skip

    def proposal_refused(self, state: PartitionState) -> None:
        """The proposal certainly isn't written and never will be."""
        if self._pending is state:
            self._pending = None
            self.advance()

    def abdicate(self) -> PartitionState | None:
        """The state in which this broker, whose log failed, leads no more; None while another change is under way."""
        if not self.is_leader or self._pending is not None:
            return None
        state = self._without_us()
        self._pending = replace(
            state,
            leader=NO_LEADER,
            last_known_leader=self._broker_id,
            leader_epoch=state.leader_epoch + 1,
            leader_incarnation=-1,
            partition_epoch=state.partition_epoch + 1,
        )
        self._writer.propose(self, self._pending)
        return self._pending

    def withdraw(self) -> PartitionState | None:
        """The state in which nobody counts on this follower, whose log has failed; None if there is nothing to change.

        Its leader would see no more than that it lags, and until then nothing would be acknowledged.
        """
        if self.is_leader or self._pending is not None:
            return None
        state = self._without_us()
        if state == self.state:
            return None
        self._pending = replace(state, partition_epoch=state.partition_epoch + 1)
        self._writer.propose(self, self._pending)
        return self._pending

    def _without_us(self) -> PartitionState:
        """The state in which nobody counts on this broker.

        It leaves the in-sync set unless it is the whole of it. Where the set is then too small for the high watermark
        to move, or was this broker alone, it may be the only one that holds everything, should the others lose their
        tails: it stays a member, but in an incarnation that no life continues, so that it leads only after all of them
        are back and their logs are compared.
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
        """Move the high watermark to what the maximal in-sync set has, and tell whoever waits for it."""
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
        log.set_high_watermark(watermark)
        waiters = self._committed_waiters
        while waiters and waiters[0][0] < log.high_watermark:
            _call(heapq.heappop(waiters)[2].callback, ErrorCode.NONE)
        if self._watchers or self._data_waiters:
            self.committed()

    def committed(self) -> None:
        """Tell readers that the high watermark, the last stable offset or the log's start moved."""
        if self._watchers:
            for watcher in list(self._watchers):
                _call(watcher.committed, self)
        if self._data_waiters:
            self.wake_fetches()

    # ---- leading without a lease -----------------------------------------------------------------------------------

    def confirmed_ms(self) -> int | None:
        """The latest moment at which this broker provably still led: nobody who could succeed it had turned away.

        None if that cannot be told, because a possible successor does not fetch here, or anybody could succeed.
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
        """Call back with NONE once it is certain that this broker led at some moment after this call.

        At once with a valid lease; else when every possible successor has fetched from here since. With
        NOT_LEADER_OR_FOLLOWER when it stops leading first. The caller bounds the wait.
        """
        if not self.is_leader:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._around.lease_valid():
            callback(ErrorCode.NONE)
        else:
            self._confirm_waiters.append((self._clock.mono_ms(), callback))
            self._confirm()

    def _confirm(self) -> None:
        if not self._confirm_waiters:
            return
        confirmed = self._clock.mono_ms() if self._around.lease_valid() else self.confirmed_ms()
        waiters, self._confirm_waiters = self._confirm_waiters, []
        for since_ms, callback in waiters:
            if confirmed is not None and confirmed >= since_ms:
                _call(callback, ErrorCode.NONE)
            else:
                self._confirm_waiters.append((since_ms, callback))
        if self._confirm_waiters:
            for follower in self._followers.values():
                if follower.session is not None:
                    follower.session.on_proof(self._confirm)

    # ---- who wants to know -----------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Tell ``watcher`` of every move until :meth:`unwatch`."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Tell it no more."""
        self._watchers.pop(watcher, None)

    def on_data(self, callback: Callable[[], None]) -> DataWaiter:
        """Call back whenever a waiting fetch may have something to answer: new data, or a lost leadership."""
        return DataWaiter(self._data_waiters, callback)

    def wake_fetches(self) -> None:
        """Let the waiting fetches look again."""
        for waiter in list(self._data_waiters):
            _call(waiter.callback)

    # ---- roles -----------------------------------------------------------------------------------------------------

    def become_leader(self, state: PartitionState) -> None:
        """Lead in the state's epoch."""
        if self.leader_epoch == state.leader_epoch and self.is_leader:
            self.update_state(state)
            return
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
        """A change that keeps leader and epoch: the in-sync set or the replicas. Older news only brings replicas."""
        known = self.state
        if state.partition_epoch < known.partition_epoch:
            state = replace(known, replicas=state.replicas, adding=state.adding, removing=state.removing)
        elif self._pending is not None and state.partition_epoch >= self._pending.partition_epoch:
            self._pending = None
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
            self._give_up_waiters()

    def _give_up_waiters(self) -> None:
        given_up = [entry for entry in self._committed_waiters if entry[2].gives_up]
        if given_up:
            self._committed_waiters = [entry for entry in self._committed_waiters if not entry[2].gives_up]
            heapq.heapify(self._committed_waiters)
            for entry in sorted(given_up, key=lambda entry: entry[:2]):
                _call(entry[2].callback, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def become_follower(self, state: PartitionState) -> None:
        """Follow the state's leader, or nobody if there is none."""
        self._stop_leading()
        self.leader_epoch = max(self.leader_epoch, state.leader_epoch)
        self.state = state
        self._tell_changed()

    def resign(self, state: PartitionState | None) -> None:
        """Somebody else leads, or nobody; whoever waits is told."""
        if state is not None:
            self.state = state
            self.leader_epoch = max(self.leader_epoch, state.leader_epoch)
        self._stop_leading()
        self._tell_changed()

    def _stop_leading(self) -> None:
        self.is_leader = False
        self._pending = None
        self._followers = {}
        waiters, self._committed_waiters = self._committed_waiters, []
        for _, _, waiter in waiters:
            _call(waiter.callback, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        confirming, self._confirm_waiters = self._confirm_waiters, []
        for _, callback in confirming:
            _call(callback, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _tell_changed(self) -> None:
        for watcher in list(self._watchers):
            _call(watcher.changed, self)
        self.wake_fetches()


def refused(error: ErrorCode, message: str | None = None) -> AppendInfo:
    """The outcome of an append that was not tried."""
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


def _call(callback: Callable[..., None], *args: Any) -> None:
    """Run somebody's callback; its bug must not keep the others waiting."""
    try:
        callback(*args)
    except Exception:
        logger.exception("a waiter's callback failed")
