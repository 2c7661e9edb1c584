"""One partition on this broker: its role, its appends, its high watermark, and the requests that wait for these.

The high watermark is the smallest log end of the *maximal* in-sync set: the committed set together with the proposed
one, because a successor may be elected from either. It does not move while the set is smaller than
``min.insync.replicas`` or other replicas are eligible to lead (KIP-966).

A partition is composed: the followers and the in-sync set of a leader, the confirmations that it still leads, and the
role of a follower are parts. What the parts share, and what every request asks for, are the partition's own attributes.

A leader without a valid lease may still be certain that it led at some time: its followers confirm it. As long as every
possible successor followed this broker, none of them led.

A follower appends the leader's records and truncates records that the leader does not have. Every call has the leader
epoch of its fetch; a response from before a change of leader has no effect.

Source: Kafka's Partition and ReplicaManager; KIP-207, KIP-392, KIP-497, KIP-966; KIP-101 and KIP-279 (truncation by
epoch), KIP-595 (the diverging epoch in a Fetch response), KIP-320.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fleetlog._native.batch import parse_header
from fleetlog.brokers.log import Appended, AppendInfo, DiskError, DiskFull, Log, LogOffline, Origin, Terms, guards_of
from fleetlog.brokers.log.positions import load_positions
from fleetlog.brokers.log.producers.rejected import BatchOrder, BeforeLeading
from fleetlog.brokers.model import NO_LEADER, BrokerInfo, Clock, PartitionState, TopicPartition
from fleetlog.brokers.replication import isr
from fleetlog.brokers.replication.follower_progress import Follower, ReplicaSession
from fleetlog.brokers.replication.followers import Followers
from fleetlog.brokers.replication.serving import LEADER_ONLY, LeaderLease, Serve, not_led
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    import uuid

    from fleetlog._native.batch import Admitted
    from fleetlog.brokers.metrics.topics import TopicFigures
    from fleetlog.brokers.replication.isr_writer import IsrWriter

logger = logging.getLogger(__name__)


class InSyncSet:
    """The in-sync set as a replica sees it, and the changes that the replica proposes: the ``Proposer`` of its states.

    A leader proposes that caught-up followers join and that lagging ones leave, or resigns; a follower can only leave.
    One change at a time: it is written by compare-and-set (:class:`~brokers.replication.isr_writer.IsrWriter`). The
    outcome, or a newer state from the metadata cache, ends the proposal. Until then both sets count
    (:attr:`maximal_isr`). :mod:`brokers.replication.isr` has the rules.
    """

    __slots__ = ("_broker", "_broker_id", "_followers", "_lease", "_replica", "_writer", "proposed", "topic_id", "tp")

    def __init__(
        self,
        replica: Partition,
        followers: Followers,
        lease: LeaderLease,
        writer: IsrWriter,
        *,
        broker_id: int,
        broker: Callable[[int], BrokerInfo | None],
    ) -> None:
        self.tp = replica.tp
        self.topic_id = replica.topic_id
        self.proposed: PartitionState | None = None
        """The state whose write is in flight."""
        self._replica = replica
        self._followers = followers
        self._lease = lease
        self._writer = writer
        self._broker_id = broker_id
        self._broker = broker

    @property
    def state(self) -> PartitionState:
        """The known state of the partition."""
        return self._replica.state

    @property
    def effective_min_isr(self) -> int:
        """``min.insync.replicas``, but at most the number of replicas, without those being added."""
        return isr.min_in_sync(self._replica.log.config.min_insync_replicas, self._replica.state.established)

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The in-sync set together with the proposed one."""
        state = self._replica.state
        if self.proposed is None:
            return state.isr
        return tuple(dict.fromkeys((*state.isr, *self.proposed.isr)))

    @property
    def successors(self) -> set[int]:
        """The replicas that may lead after this broker, in a clean election."""
        return {*self.maximal_isr, *self._replica.state.elr} - {self._broker_id}

    # ---- what the leader proposes

    def expand(self, follower: Follower) -> None:
        """Propose a caught-up follower for the in-sync set.

        It must have every committed record, and every record from before this epoch, because it is unknown how many of
        those are committed. Its log must not start below the leader's: there, records were not compared and may differ.
        One that has taken itself out must fetch from this leader again.
        A member with a new incarnation is proposed again.
        """
        replica, session = self._replica, follower.session
        if self.proposed is not None or session is None or follower.start_offset < replica.log.log_start_offset:
            return
        if not follower.follows_still():
            return
        if follower.end_offset < max(replica.log.high_watermark, replica.epoch_start_offset):
            return
        broker = self._broker(follower.broker_id)
        if broker is None or broker.epoch != session.broker_epoch or follower.broker_id in replica.state.removing:
            return
        counted_on = dict(isr.members(replica.state)).get(broker.id)
        if counted_on is not None and broker.live_broker.continues(counted_on):
            return
        self._propose(isr.joined(replica.state, broker.id, broker.incarnation, self.effective_min_isr))

    def expand_any(self) -> bool:
        """Check the followers at the log's end: one that caught up while another change was in flight continues to
        fetch without naming the partition. Followers behind the end will name it. Returns whether a change is proposed.
        """
        for follower in self._followers.at_end():
            self.expand(follower)
        return self.proposed is not None

    def check(self, now_ms: int, lag_max_ms: int) -> None:
        """Propose what is due at a leader: take the lease back, let caught-up followers join, lagging ones leave."""
        replica = self._replica
        if self.proposed is not None:
            return
        if not self._followers.known and len(replica.state.isr) == 1 and not replica.state.elr:
            return  # a single replica: skip early, there may be thousands of these partitions
        minimum = self.effective_min_isr
        if replica.state.elr and len(replica.state.isr) >= minimum:
            self._propose(isr.settled(replica.state, minimum))
            return
        if self._lease.overdue(now_ms):
            self._propose(replica.state)  # the same state in a new version: the planned move's write will fail
            return
        if self.expand_any():
            return
        lagging = self._followers.lagging(now_ms, lag_max_ms)
        if lagging:
            shrunk = isr.without(replica.state, lagging, minimum)
            if shrunk is not replica.state:
                self._propose(shrunk)

    def _propose(self, state: PartitionState) -> None:
        replica = self._replica
        proposed = replace(state, partition_epoch=replica.state.partition_epoch + 1, leader_recovery_state=0)
        logger.info(
            "%s: proposing in-sync set %s, present %s (leader epoch %d)",
            self.tp, list(proposed.isr), list(replica.state.isr), replica.leader_epoch,
        )  # fmt: skip
        self.proposed = proposed
        self._lease.state_proposed()
        self._writer.propose(self, proposed)

    # ---- how a replica leaves

    def abdicate(self, left: PartitionState | None = None) -> PartitionState | None:
        """Propose a state without a leader, and return it; None while another change is in flight.

        ``left`` has the in-sync set without this broker; by default as after a log failure.
        """
        if not self._replica.is_leader or self.proposed is not None:
            return None
        state = self._without_this_broker() if left is None else left
        self.proposed = replace(
            state,
            leader=NO_LEADER,
            last_known_leader=self._broker_id,
            leader_epoch=state.leader_epoch + 1,
            leader_incarnation=-1,
            partition_epoch=state.partition_epoch + 1,
        )
        self._lease.resigning = True
        self._writer.propose(self, self.proposed)
        return self.proposed

    def withdraw(self, left: PartitionState | None = None) -> PartitionState | None:
        """Propose a state in which this follower is not in sync, and return it; None if it changes nothing.

        ``left``: as above. Its leader would remove it only after the lag time, and acks=all would wait until then.
        """
        if self._replica.is_leader or self.proposed is not None:
            return None
        state = self._without_this_broker() if left is None else left
        if state == self._replica.state:
            return None
        self.proposed = replace(state, partition_epoch=state.partition_epoch + 1)
        self._writer.propose(self, self.proposed)
        return self.proposed

    def _without_this_broker(self) -> PartitionState:
        return isr.failed(self._replica.state, self._broker_id, self.effective_min_isr)

    # ---- what becomes of a proposal

    def proposal_written(self, state: PartitionState) -> None:
        """Apply the state that was written."""
        if self.proposed is not state:
            return  # the metadata cache brought a newer state first
        if self._lease.resigning:
            return  # it stays proposed until the metadata cache has it: a successor may lead from now on
        self.proposed = None
        self._replica.state_written(state)

    def proposal_refused(self, state: PartitionState) -> None:
        """Drop a proposal that certainly is not written and never will be."""
        if self.proposed is state:
            self.proposed = None
            self._lease.resigning = False
            self._replica.advance()

    def state_known(self, state: PartitionState) -> bool:
        """The metadata cache has this state: a proposal on top of an older one cannot be written any more.

        Returns whether it is what was proposed.
        """
        proposed = self.proposed
        if proposed is None or state.partition_epoch < proposed.partition_epoch:
            return False
        self.proposed = None
        self._lease.resigning = False
        return (state.partition_epoch, state.isr) == (proposed.partition_epoch, proposed.isr)

    def new_epoch(self) -> None:
        """The leader epoch has ended, and with it whatever was proposed in it."""
        self.proposed = None
        self._lease.new_epoch()


class CommitWaits:
    """Callbacks that wait until offsets are committed, called in the order of the offsets, then of their coming."""

    __slots__ = ("_numbers", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, bool, Callable[[ErrorCode], None]]] = []
        """(offset, number, whether it gives up, callback), the lowest offset first."""
        self._numbers = itertools.count()

    def add(self, offset: int, on_committed: Callable[[ErrorCode], None], *, gives_up: bool) -> None:
        """Wait until the record at ``offset`` is committed; ``gives_up``: a too small in-sync set ends the wait."""
        heapq.heappush(self.heap, (offset, next(self._numbers), gives_up, on_committed))

    def complete(self, high_watermark: int) -> None:
        """Everything below the high watermark is committed."""
        while self.heap and self.heap[0][0] < high_watermark:
            call(heapq.heappop(self.heap)[3], ErrorCode.NONE)

    def give_up(self) -> None:
        """The in-sync set has become too small."""
        ending = sorted(entry for entry in self.heap if entry[2])
        if ending:
            self.heap = [entry for entry in self.heap if not entry[2]]
            heapq.heapify(self.heap)
            for entry in ending:
                call(entry[3], ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def end(self) -> None:
        """This broker leads the partition no longer."""
        ending, self.heap = self.heap, []
        for entry in ending:
            call(entry[3], ErrorCode.NOT_LEADER_OR_FOLLOWER)


class ConfirmationWaits:
    """Callbacks that wait for the certainty that this broker led at some time after they came."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []
        """Those that wait, with the time since when."""

    def add(self, now_ms: int, callback: Callable[[ErrorCode], None]) -> None:
        """Wait from now on."""
        self.waiting.append((now_ms, callback))

    def complete(self, confirmed_ms: int | None) -> None:
        """It is certain that this broker led at that time; None: at no time."""
        waiting, self.waiting = self.waiting, []
        for since_ms, callback in waiting:
            if confirmed_ms is not None and confirmed_ms >= since_ms:
                call(callback, ErrorCode.NONE)
            else:
                self.waiting.append((since_ms, callback))

    def end(self) -> None:
        """This broker leads the partition no longer."""
        waiting, self.waiting = self.waiting, []
        for _, callback in waiting:
            call(callback, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def call(callback: Callable[..., None], *args: Any) -> None:
    """Run a callback; its bug must not keep other callbacks from running."""
    try:
        callback(*args)
    except Exception:
        logger.exception("partition: a callback failed")


class Confirmations:
    """See the module, and :class:`~brokers.replication.serving.LeaderLease` for what needs them."""

    __slots__ = ("_clock", "_followers", "_in_sync", "_lease", "_replica", "waits")

    def __init__(
        self, replica: Partition, followers: Followers, in_sync: InSyncSet, lease: LeaderLease, clock: Clock
    ) -> None:
        self._replica = replica
        self._followers = followers
        self._in_sync = in_sync
        self._lease = lease
        self._clock = clock
        self.waits = ConfirmationWaits()

    def confirmed_ms(self) -> int | None:
        """The latest time at which this broker provably led: every possible successor still followed it.

        None if it is unknown: a possible successor does not fetch here, or any replica could succeed.
        """
        if not self._replica.is_leader or self._replica.log.config.unclean_leader_election_enable:
            return None
        successors = self._in_sync.successors
        if not successors:
            return self._clock.mono_ms()
        moments = []
        for broker_id in successors:
            follower = self._followers.known.get(broker_id)
            if follower is None or follower.session is None:
                return None
            moments.append(follower.session.proven_ms)
        return min(moments)

    def when_confirmed(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back with NONE once it is certain that this broker led at some time after this call.

        Immediately with a valid lease; else when every possible successor has fetched from this broker since. With
        NOT_LEADER_OR_FOLLOWER if it stops leading first. The caller bounds the wait.
        """
        if not self._replica.is_leader:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._lease.valid():
            callback(ErrorCode.NONE)
        else:
            self.waits.add(self._clock.mono_ms(), callback)
            self.check()

    def check(self) -> None:
        """Complete what is confirmed by now; what is not waits for the next proofs of the followers' sessions."""
        if not self.waits.waiting:
            return
        self.waits.complete(self._clock.mono_ms() if self._lease.valid() else self.confirmed_ms())
        if self.waits.waiting:
            for follower in self._followers.known.values():
                if follower.session is not None:
                    follower.session.on_proof(self.check)

    def end(self) -> None:
        """This broker leads no longer."""
        self.waits.end()


class Position(NamedTuple):
    """The offset of a follower's next fetch, and the epoch of the record before it (-1: the log is empty)."""

    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class FollowerRole:
    """See the module. It acts only while its replica follows in the epoch of the call."""

    __slots__ = ("_clock", "_replica", "_stopped", "lost_commits")

    def __init__(self, replica: Partition, clock: Clock, stopped: dict[TopicPartition, str]) -> None:
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
        return log.accepted_from if log.lacks_positions else None

    def take_positions(self, leader_epoch: int, body: memoryview | None) -> ErrorCode:
        """Take what the leader says of accepted positions; None: its version cannot tell."""
        error = self._refusal(leader_epoch)
        log = self._replica.log
        sets = log.producers.positions
        if error is not ErrorCode.NONE or sets is None or sets.known:
            return error
        tp, leader, base = self._replica.tp, self._replica.state.leader, log.accepted_from
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
        loses = max(offset, log.log_start_offset) < log.high_watermark  # what was deleted before is not lost by this
        if loses and not self._may_lose():
            self._stop(offset, why)
            return ErrorCode.OFFSET_OUT_OF_RANGE
        self.goes_on()
        if loses:
            self.lost_commits += 1
            if replica.figures is not None:
                replica.figures.lost_records += log.high_watermark - max(log.log_start_offset, offset)
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


_NONE = ErrorCode.NONE
"""Looked up once: an enum's metaclass takes a thousand instructions to find a member."""


class Watcher(Protocol):
    """A listener for a partition's changes. Called synchronously on the loop: it must not block."""

    def appended(self, partition: Partition) -> None:
        """The leader's log end moved."""

    def committed(self, partition: Partition) -> None:
        """The high watermark, the last stable offset or the log start moved."""

    def changed(self, partition: Partition) -> None:
        """Role, leader epoch or existence changed."""


class Partition:
    """A replica on this broker. Loop thread only.

    ``is_leader``: the state names this broker in its present incarnation. Whether a request may be served is decided
    for each request by :meth:`may_serve`. ``lease_valid`` is the broker's (``BrokerLease``), ``broker`` a registered
    broker by its id, ``stopped`` says why replicas of this broker do not follow their leaders.
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
        lease_valid: Callable[[], bool],
        broker: Callable[[int], BrokerInfo | None],
        stopped: dict[TopicPartition, str],
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
        self.lease = LeaderLease(lease_valid)
        self.lease_valid = self.lease.valid
        """Whether no other broker can lead now."""
        self.follower_role = FollowerRole(self, clock, stopped)
        self.followers = Followers(self, broker_id, broker)
        self.in_sync = InSyncSet(self, self.followers, self.lease, isr_writer, broker_id=broker_id, broker=broker)
        self.confirmations = Confirmations(self, self.followers, self.in_sync, self.lease, clock)
        self.when_confirmed = self.confirmations.when_confirmed
        """Call back once it is certain that this broker led; see :meth:`Confirmations.when_confirmed`."""
        self._broker_id = broker_id
        self._clock = clock
        self._commits = CommitWaits()
        self.watchers: dict[Watcher, None] = {}

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
            if self.watchers:
                for watcher in list(self.watchers):
                    call(watcher.appended, self)
            self.advance()
        if not appended[1] and not self.lease_valid():
            return [_without_lease(one) for one in appended[0]], False
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
        if self.confirmations.waits.waiting:
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
        if self.watchers:
            self.committed()

    def committed(self) -> None:
        """Notify readers: the high watermark, the last stable offset or the log start moved."""
        for watcher in list(self.watchers):
            call(watcher.committed, self)

    # ---- listeners -------------------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Notify ``watcher`` of every change until :meth:`unwatch`."""
        self.watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Stop notifying ``watcher``."""
        self.watchers.pop(watcher, None)

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
            self.tp, self.log.accepted_from,
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
        for watcher in list(self.watchers):
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


def _without_lease(outcome: Admitted | AppendInfo) -> Admitted | AppendInfo:
    """What a leader without its lease says of a batch: never what is wrong with it, as another leader's log may have
    what comes before it, and that it has it already only if it is none of a transaction.

    Another leader may have the end of the transaction that is open here. Producers of protocol 1 then use the sequences
    that were not acknowledged again, in the same epoch: this batch may belong to the next transaction.
    """
    if isinstance(outcome, AppendInfo) and (outcome.in_transaction or outcome.error is not _NONE):
        return rejected_append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return outcome
