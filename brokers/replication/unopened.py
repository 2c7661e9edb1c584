"""A replica whose log could not be created or opened: it has no :class:`Partition`, but is in a partition's state.

If the disk had no room for a new log, the replica equals one with an empty log. It leaves the in-sync set or hands its
leadership over like other replicas without room (:mod:`brokers.replication.full_disks`); creation is retried every
second.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from fleetlog.brokers.model import NO_LEADER, PartitionState, TopicPartition
from fleetlog.brokers.replication import isr

if TYPE_CHECKING:
    from fleetlog.brokers.log import LogStore
    from fleetlog.brokers.replication.isr_writer import IsrWriter
    from fleetlog.brokers.replication.partition import InSyncSet


class UnopenedReplica:
    """See the module. ``full``: there was no room for a new log; ``lost``: it had one, which is not here; ``why``
    is the disk's error, or what is known of it."""

    __slots__ = (
        "_broker_id", "_pending", "_writer", "deleted", "effective_min_isr", "full", "is_leader", "lost", "state",
        "topic_id", "tp", "waived", "why",
    )  # fmt: skip

    def __init__(
        self, tp: TopicPartition, topic_id: uuid.UUID, state: PartitionState, *, broker_id: int, writer: IsrWriter
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.state = state
        self.is_leader = False
        self.effective_min_isr = 1
        self.waived = False
        """Whether the lease is waived for a planned move; applied when the log is opened."""
        self.full = False
        self.lost = False
        self.deleted = False
        self.why = ""
        self._broker_id = broker_id
        self._writer = writer
        self._pending: PartitionState | None = None

    def take(
        self, state: PartitionState, *, leads: bool, effective_min_isr: int, full: bool, lost: bool, why: str
    ) -> None:
        """Take the present state from the metadata cache; ``effective_min_isr`` as in ``Partition``."""
        self.effective_min_isr, self.full, self.why, self.is_leader = effective_min_isr, full, why, leads
        self.lost = lost
        self._see(state)

    def hands_over(self, state: PartitionState) -> bool:
        """Whether a resignation is in flight, given this state.

        Until its outcome is known the log must not be opened: this broker would lead while another one is elected.
        """
        self._see(state)
        return self.is_leader and self._pending is not None

    def opened(self) -> None:
        """Drop the proposal: the replica has a log now."""
        self.full, self._pending = False, None

    def close(self) -> None:
        """The partition was deleted: its name may belong to another one, of which this replica must say nothing."""
        self.opened()
        self.deleted = True

    def _see(self, state: PartitionState) -> None:
        if state.partition_epoch >= self.state.partition_epoch:
            self.state = state
        if self._pending is not None and self.state.partition_epoch >= self._pending.partition_epoch:
            self._pending = None

    def abdicate(self, left: PartitionState) -> PartitionState | None:
        """Propose ``left`` without a leader; None if this broker is not the leader or another change is in flight."""
        if not self.is_leader:
            return None
        return self._propose(
            replace(
                left,
                leader=NO_LEADER,
                last_known_leader=self._broker_id,
                leader_epoch=left.leader_epoch + 1,
                leader_incarnation=-1,
            )
        )

    def withdraw(self, left: PartitionState) -> PartitionState | None:
        """Propose ``left``, in which this follower is not in sync; None if it changes nothing."""
        return None if self.is_leader or left == self.state else self._propose(left)

    def _propose(self, state: PartitionState) -> PartitionState | None:
        if self._pending is not None or self.deleted:
            return None
        self._pending = replace(state, partition_epoch=state.partition_epoch + 1)
        self._writer.propose(self, self._pending)
        return self._pending

    # ---- for the writer

    @property
    def proposed(self) -> PartitionState | None:
        """The state whose write is in flight."""
        return self._pending

    def proposal_written(self, state: PartitionState) -> None:
        """The metadata cache brings the state; until then nothing else is proposed."""

    def proposal_refused(self, state: PartitionState) -> None:
        """Drop a proposal that certainly is not written and never will be."""
        if self._pending is state:
            self._pending = None


def why_lost(tp: TopicPartition, logs: LogStore) -> str:
    """Why a log that should be here is not made anew, and what to do."""
    if logs.offline_directories:
        return "the log is in an offline log directory"
    missing = ", ".join(sorted(logs.owner.missing.values()))
    where = f"in a missing log directory ({missing})" if missing else "gone"
    return (
        f"the log is {where}, and this replica is counted on: it does not begin anew. Bring the log back and restart"
        " this broker, or wait for another in-sync replica; only if all are lost: fleetlog topics elect"
        f" {tp.topic} --partition {tp.partition} --unclean"
    )


def step_aside(replica: InSyncSet | UnopenedReplica, broker_id: int) -> PartitionState | None:
    """Propose a state in which this follower is not in sync; returns it, or None if it changes nothing."""
    state = replica.state
    if state.leader in (NO_LEADER, broker_id):
        return None
    return replica.withdraw(isr.without(state, {broker_id}, replica.effective_min_isr))
