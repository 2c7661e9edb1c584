"""Leadership changes on request: preferred and unclean elections, controlled shutdown of a broker, and the periodic
rebalance of preferred leaders.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from fleetlog.brokers.controller import plans
from fleetlog.brokers.controller.context import ControllerContext, Settle
from fleetlog.brokers.controller.elections import handed_over, is_led, successor, to_ask
from fleetlog.brokers.controller.log_end_probes import LogEndProbes
from fleetlog.brokers.controller.writes import MultiWrite, StateWrites
from fleetlog.brokers.metadata.image import NO_STATE_EPOCH
from fleetlog.brokers.model import BrokerId, PartitionState, TopicPartition
from fleetlog.brokers.replication import isr
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

Result = tuple[ErrorCode, str | None]
DONE: Result = (ErrorCode.NONE, None)
KEPT_CHANGING: Result = (ErrorCode.REQUEST_TIMED_OUT, "The leaders kept changing; try again.")
NOT_NEEDED: Result = (ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
UNKNOWN_PARTITION: Result = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")


SILENT = ErrorCode.REQUEST_TIMED_OUT
WAIVE_ROUNDS = 3


def leader_is_silent(state: PartitionState) -> Result:
    """The error of a planned move whose live leader has not waived its lease: the move waits for its session's end."""
    return (SILENT, f"The leader {state.leader} does not answer the controller, or the partition changed; try again.")


class LeaderCommands:
    """Leadership changes of one controllership, except those that failures cause."""

    def __init__(self, context: ControllerContext, settle: Settle, probes: LogEndProbes) -> None:
        self._context = context
        self._settle = settle
        self._probes = probes
        self._leaving: dict[int, int] = {}

    @property
    def leaving(self) -> frozenset[int]:
        """Brokers that announced a controlled shutdown, as long as that registration lasts."""
        brokers = self._context.metadata.brokers
        self._leaving = {b: e for b, e in self._leaving.items() if b in brokers and brokers[b].epoch == e}
        return frozenset(self._leaving)

    # ------------------------------------------------------------ elections on request

    async def elect_preferred(self, partitions: Sequence[TopicPartition] | None) -> dict[TopicPartition, Result]:
        """Elect the first replica of each assignment. NONE may mean that the first of two steps is done.

        Raises NotController.
        """
        begun: set[TopicPartition] = set()
        for _ in range(WAIVE_ROUNDS):
            waived = await self._ask_to_waive([tp for tp, _ in plans.partitions(self._context.image, partitions)])
            async with self._context.lock:
                results = await self._context.persist(
                    "electing preferred leaders", lambda: self._prefer(partitions, begun)
                )
            if results is None or not waived or all(result[0] is not SILENT for result in results.values()):
                break  # else a state changed while its leader was asked
        self._probes.wake()
        if results is None:
            return dict.fromkeys(partitions or (), KEPT_CHANGING)
        return results

    async def _ask_to_waive(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Ask leaders that are not the preferred ones to waive their leases; returns partitions that may move now."""
        states = plans.partitions(self._context.image, partitions)
        return await self._probes.ask_to_waive(
            [tp for tp, state in states if state.partition_epoch != NO_STATE_EPOCH and self._may_prefer(state) == DONE]
        )

    async def _prefer(
        self, partitions: Sequence[TopicPartition] | None, begun: set[TopicPartition]
    ) -> dict[TopicPartition, Result]:
        """One attempt; ``begun`` has the partitions of earlier attempts, whose outcome may be unknown."""
        context = self._context
        writes = StateWrites(context.image, context.live_brokers)
        results: dict[TopicPartition, Result] = dict.fromkeys(partitions or (), UNKNOWN_PARTITION)
        for tp, state in plans.partitions(context.image, partitions):
            if state.partition_epoch == NO_STATE_EPOCH:
                continue
            results[tp] = self._may_prefer(state)
            if results[tp] == DONE and not self._probes.may_move(tp, state):
                results[tp] = leader_is_silent(state)
            if results[tp] == DONE:
                writes.add(tp, self._moved(tp, state, state.replicas[0]))
                begun.add(tp)
            elif tp in begun and (state.leader < 0 or state.leader == state.replicas[0]):
                results[tp] = DONE
        await context.perform(writes.done())
        return results

    def _may_prefer(self, state: PartitionState) -> Result:
        preferred = state.replicas[0]
        if state.leader == preferred:
            return NOT_NEEDED
        counting = dict(isr.members(state))
        if preferred not in counting or not isr.counts(self._context.live_brokers, preferred, counting[preferred]):
            return (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred leader {preferred} is not in sync.")
        if preferred in self.leaving:
            return (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred leader {preferred} is shutting down.")
        if not is_led(state, self._context.live_brokers):
            return (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "An election of the partition is in progress.")
        return DONE

    def _moved(self, tp: TopicPartition, state: PartitionState, to: BrokerId, *, heard: bool = False) -> PartitionState:
        context = self._context
        minimum = isr.min_in_sync(context.min_isr(tp.topic), state.established)
        return handed_over(tp, state, to, context.live_brokers, context.epoch, min_isr=minimum, heard=heard)

    async def elect_unclean(self, partitions: Sequence[TopicPartition] | None) -> dict[TopicPartition, Result]:
        """Allow an unclean election in partitions without a leader. NONE: it has started; raises NotController."""
        context = self._context
        results: dict[TopicPartition, Result] = dict.fromkeys(partitions or (), UNKNOWN_PARTITION)
        async with context.lock:
            await self._settle(None)
            for tp, state in plans.partitions(context.image, partitions):
                if state.partition_epoch == NO_STATE_EPOCH:
                    continue
                results[tp] = DONE
                if is_led(state, context.live_brokers):
                    results[tp] = NOT_NEEDED
                elif successor(state, context.live_brokers) is not None:
                    continue  # a clean one is on its way
                elif to_ask(state, context.live_brokers, unclean=True):
                    self._probes.allow_unclean(tp, state)
                else:
                    results[tp] = (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica of the partition is alive.")
        return results

    # ------------------------------------------------------------ controlled shutdown

    async def leave(self, broker_id: int, broker_epoch: int) -> tuple[ErrorCode, list[TopicPartition]]:
        """Move the broker's leaderships to other replicas, elect it last from now on; returns the partitions that stay.

        The broker has closed its coordinators before this request, which therefore confirms their end. Partitions with
        one replica cannot move and don't count. Raises NotController.
        """
        async with self._context.lock:
            known = self._context.metadata.brokers.get(broker_id)
            if known is None:
                return ErrorCode.BROKER_NOT_AVAILABLE, []
            if broker_epoch >= 0 and known.epoch != broker_epoch:
                return ErrorCode.STALE_BROKER_EPOCH, []
            self._leaving[broker_id] = known.epoch
            logger.info("controlled shutdown of broker %d: moving its leaderships", broker_id)
            remaining = await self._context.persist(f"relieving broker {broker_id}", lambda: self._relieve(broker_id))
        if remaining is None:
            return ErrorCode.REQUEST_TIMED_OUT, []
        return ErrorCode.NONE, remaining

    async def _relieve(self, broker_id: int) -> list[TopicPartition]:
        context = self._context
        writes = StateWrites(context.image, context.live_brokers)
        remaining: list[TopicPartition] = []
        leaving = self.leaving
        for tp, state in plans.partitions(context.image):
            if state.leader < 0 and state.last_known_leader == broker_id:
                self._probes.hear(tp, state)
            if state.leader != broker_id or len(state.replicas) == 1:
                continue
            to = successor(state, context.live_brokers, leaving)
            if to is None or to in leaving:
                remaining.append(tp)
            else:
                writes.add(tp, self._moved(tp, state, to, heard=True))
        await context.perform(writes.done())
        await self._settle(None)
        return remaining

    # ------------------------------------------------------------ balance

    async def rebalance(self, percentage: int) -> None:
        """Elect preferred leaders of brokers with more than this percentage of their preferred partitions elsewhere."""
        await self._ask_to_waive(imbalanced(dict(plans.partitions(self._context.image)), percentage))
        async with self._context.lock:
            await self._context.persist("rebalancing leaders", lambda: self._rebalance(percentage))
        self._probes.wake()

    async def _rebalance(self, percentage: int) -> None:
        context = self._context
        writes = StateWrites(context.image, context.live_brokers)
        due = imbalanced(dict(plans.partitions(context.image)), percentage)
        for tp in due:
            state = context.image.partition(tp)
            if state is None or state.adding or state.removing or self._may_prefer(state) != DONE:
                continue
            if self._probes.may_move(tp, state):
                writes.add(tp, self._moved(tp, state, state.replicas[0]))
        multis: list[MultiWrite] = writes.done()
        if multis:
            logger.info("controller: rebalancing leaders to preferred replicas")
        await context.perform(multis)


def imbalanced(states: Mapping[TopicPartition, PartitionState], percentage: int) -> list[TopicPartition]:
    """Partitions not led by their preferred replica, of those brokers for which they are more than ``percentage`` of
    the partitions that prefer the broker (Kafka's leader.imbalance.per.broker.percentage).
    """
    preferring = Counter(state.replicas[0] for state in states.values())
    elsewhere = {tp: state.replicas[0] for tp, state in states.items() if state.leader not in (-1, state.replicas[0])}
    away = Counter(elsewhere.values())
    return [tp for tp, broker in elsewhere.items() if away[broker] * 100 > percentage * preferring[broker]]
