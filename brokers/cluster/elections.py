"""Who leads: pure decisions over a partition's state and the living brokers.

A broker counts only in the life (incarnation) the state names: one that restarted is a new broker that happens to have
the same disk. It may lead again because it *was the whole ISR* (nobody else can know more), never because its id
stands in the list. With replication factor 1 that means: a dead leader's partition goes offline (leader -1) and comes
back with the broker's next incarnation. The functions are shaped for larger factors.

Source: Kafka's PartitionLeaderElectionAlgorithms (3.9); incarnations are ours (DESIGN section 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from brokers.model import NO_LEADER, BrokerId, PartitionState


def new_partition(replicas: tuple[BrokerId, ...], live: Mapping[int, int], controller_epoch: int) -> PartitionState:
    """The first state: every living replica is in sync, because all logs are empty; the first of them leads.

    ``live`` maps living broker ids to incarnations. With no living replica the whole list stays the ISR and nobody
    leads, so that any of them may start the (empty) log later.
    """
    isr = tuple(b for b in replicas if b in live)
    if not isr:
        return PartitionState(
            replicas=replicas,
            leader=NO_LEADER,
            leader_epoch=0,
            isr=replicas,
            partition_epoch=0,
            controller_epoch=controller_epoch,
            leader_incarnation=-1,
            isr_incarnations=(-1,) * len(replicas),
        )
    return PartitionState(
        replicas=replicas,
        leader=isr[0],
        leader_epoch=0,
        isr=isr,
        partition_epoch=0,
        controller_epoch=controller_epoch,
        leader_incarnation=live[isr[0]],
        isr_incarnations=tuple(live[b] for b in isr),
    )


def elect(state: PartitionState, live: Mapping[int, int], controller_epoch: int) -> PartitionState | None:
    """The state that should replace this one given who lives, or None where it is right as it is.

    The result's ``partition_epoch`` is the version the write leaves behind (compare-and-set on the present one).
    Unclean election is not offered: a partition whose ISR is dead waits for it.
    """
    known = dict(zip(state.isr, state.isr_incarnations, strict=True))
    if state.leader != NO_LEADER and live.get(state.leader) == state.leader_incarnation:
        return None  # the leader lives; removing dead followers from the ISR is the leader's own work
    in_sync = [b for b in state.isr if live.get(b) == known[b]]
    if in_sync:
        leader = next((b for b in state.replicas if b in in_sync), in_sync[0])
        return _led(state, leader, tuple(b for b in state.isr if b in in_sync), live, controller_epoch)
    returned = _may_return(state, live)
    if returned is not None:
        return _led(state, returned, (returned,), live, controller_epoch)
    if state.leader == NO_LEADER:
        return None  # offline already, and nobody to bring it back
    return replace(
        state,
        leader=NO_LEADER,
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=state.partition_epoch + 1,
        controller_epoch=controller_epoch,
        leader_incarnation=-1,
    )


def _may_return(state: PartitionState, live: Mapping[int, int]) -> BrokerId | None:
    """Brokers in later lives that nevertheless hold all there is: the whole ISR came back, so nobody can know more.

    With larger replication factors the logs' ends must be compared here before one of several is chosen.
    """
    if state.isr and all(b in live for b in state.isr):
        return state.isr[0]
    if state.isr_incarnations and all(i < 0 for i in state.isr_incarnations):
        # nobody ever led: the log is empty wherever it starts
        return next((b for b in state.replicas if b in live), None)
    return None


def _led(
    state: PartitionState,
    leader: BrokerId,
    isr: tuple[BrokerId, ...],
    live: Mapping[int, int],
    controller_epoch: int,
) -> PartitionState:
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        partition_epoch=state.partition_epoch + 1,
        controller_epoch=controller_epoch,
        leader_incarnation=live[leader],
        isr_incarnations=tuple(live[b] for b in isr),
    )
