"""The in-sync set of a partition as its replica sees it, and the changes that the replica proposes.

A leader proposes that caught-up followers join and that lagging ones leave, or resigns; a follower can only leave. One
change at a time: it is written by compare-and-set (:class:`~brokers.replication.isr_writer.IsrWriter`). The outcome, or
a newer state from the metadata cache, ends the proposal. Until then both sets count (:attr:`InSyncSet.maximal_isr`).

Source: KIP-497, KIP-966; :mod:`brokers.replication.isr` has the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from fleetlog.brokers.log import Log
from fleetlog.brokers.model import NO_LEADER, BrokerInfo, PartitionState, TopicPartition
from fleetlog.brokers.replication import isr
from fleetlog.brokers.replication.follower_progress import Follower
from fleetlog.brokers.replication.followers import Followers
from fleetlog.brokers.replication.serving import LeaderLease

if TYPE_CHECKING:
    import uuid

    from fleetlog.brokers.replication.isr_writer import IsrWriter

logger = logging.getLogger(__name__)


class ProposingReplica(Protocol):
    """What the in-sync set needs of its partition."""

    tp: TopicPartition
    topic_id: uuid.UUID
    log: Log
    state: PartitionState
    is_leader: bool
    leader_epoch: int
    epoch_start_offset: int

    def advance(self) -> None:
        """Move the high watermark, as far as the in-sync set allows."""

    def state_written(self, state: PartitionState) -> None:
        """Take the proposed state: it is written."""


class InSyncSet:
    """See the module. It is the ``Proposer`` of its partition's states."""

    __slots__ = ("_broker", "_broker_id", "_followers", "_lease", "_replica", "_writer", "proposed", "topic_id", "tp")

    def __init__(
        self,
        replica: ProposingReplica,
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
