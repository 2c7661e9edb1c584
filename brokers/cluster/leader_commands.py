"""Leadership by request: preferred and unclean elections, the leave-taking of a broker that is about to stop, and the
balance of preferred leaders that a controller keeps by itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from brokers.cluster import isr, plans
from brokers.cluster.elections import handed_over, is_led, successor, to_ask
from brokers.cluster.picture import NO_STATE_EPOCH
from brokers.cluster.term import Term
from brokers.cluster.writes import StateWrites, Write
from brokers.model import BrokerId, PartitionState, TopicPartition
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from brokers.cluster.reign import Reign

log = logging.getLogger(__name__)

Result = tuple[ErrorCode, str | None]
DONE: Result = (ErrorCode.NONE, None)
KEPT_CHANGING: Result = (ErrorCode.REQUEST_TIMED_OUT, "The leaders kept changing; try again.")
NOT_NEEDED: Result = (ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
UNKNOWN_PARTITION: Result = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")


class LeaderCommands:
    """The leaders of one reign, as far as they change by request and not by death."""

    def __init__(self, reign: Reign) -> None:
        self._reign = reign
        self._term: Term = reign.term
        self._leaving: dict[int, int] = {}

    @property
    def leaving(self) -> frozenset[int]:
        """Brokers that said they were about to stop, as long as that registration of theirs stands."""
        brokers = self._term.view.brokers
        self._leaving = {b: e for b, e in self._leaving.items() if b in brokers and brokers[b].epoch == e}
        return frozenset(self._leaving)

    # ------------------------------------------------------------ elections on request

    async def elect_preferred(self, partitions: Sequence[TopicPartition] | None) -> dict[TopicPartition, Result]:
        """Give leadership to the first replica of each assignment. NONE may mean that the first of two steps is done.

        Raises TermOver.
        """
        begun: set[TopicPartition] = set()
        async with self._term.lock:
            results = await self._term.persist("electing preferred leaders", lambda: self._prefer(partitions, begun))
        self._reign.inquiries.wake()
        if results is None:
            return dict.fromkeys(partitions or (), KEPT_CHANGING)
        return results

    async def _prefer(
        self, partitions: Sequence[TopicPartition] | None, begun: set[TopicPartition]
    ) -> dict[TopicPartition, Result]:
        """One attempt; ``begun`` keeps what earlier ones tried, whose outcome may be unknown."""
        term = self._term
        writes = StateWrites(term.picture, term.lives)
        results: dict[TopicPartition, Result] = dict.fromkeys(partitions or (), UNKNOWN_PARTITION)
        for tp, state in plans.partitions(term.picture, partitions):
            if state.partition_epoch == NO_STATE_EPOCH:
                continue
            results[tp] = self._may_prefer(state)
            if results[tp] == DONE:
                writes.add(tp, self._moved(tp, state, state.replicas[0]))
                begun.add(tp)
            elif tp in begun and (state.leader < 0 or state.leader == state.replicas[0]):
                results[tp] = DONE
        await term.perform(writes.done())
        return results

    def _may_prefer(self, state: PartitionState) -> Result:
        preferred = state.replicas[0]
        if state.leader == preferred:
            return NOT_NEEDED
        counting = dict(isr.members(state))
        if preferred not in counting or not isr.counts(self._term.lives, preferred, counting[preferred]):
            return (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred leader {preferred} is not in sync.")
        if preferred in self.leaving:
            return (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred leader {preferred} is shutting down.")
        if not is_led(state, self._term.lives):
            return (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "An election of the partition is under way.")
        return DONE

    def _moved(self, tp: TopicPartition, state: PartitionState, to: BrokerId, *, heard: bool = False) -> PartitionState:
        term = self._term
        minimum = isr.min_in_sync(term.min_isr(tp.topic), state.established)
        return handed_over(tp, state, to, term.lives, term.epoch, min_isr=minimum, heard=heard)

    async def elect_unclean(self, partitions: Sequence[TopicPartition] | None) -> dict[TopicPartition, Result]:
        """Allow an unclean election wherever nobody leads. NONE means that one is begun; raises TermOver."""
        term = self._term
        results: dict[TopicPartition, Result] = dict.fromkeys(partitions or (), UNKNOWN_PARTITION)
        async with term.lock:
            await self._reign.settle()
            for tp, state in plans.partitions(term.picture, partitions):
                if state.partition_epoch == NO_STATE_EPOCH:
                    continue
                results[tp] = DONE
                if is_led(state, term.lives):
                    results[tp] = NOT_NEEDED
                elif successor(state, term.lives) is not None:
                    continue  # a clean one is on its way
                elif to_ask(state, term.lives, unclean=True):
                    self._reign.inquiries.allow_unclean(tp, state)
                else:
                    results[tp] = (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica of the partition is alive.")
        return results

    # ------------------------------------------------------------ a broker leaves

    async def leave(self, broker_id: int, broker_epoch: int) -> tuple[ErrorCode, list[TopicPartition]]:
        """Move all that the broker leads to others, and elect it for nothing any more; what remains is the answer.

        The broker has closed its coordinators before it asks: its request is the word that those moves wait for.
        Partitions with one replica have nowhere to go and don't count. Raises TermOver.
        """
        async with self._term.lock:
            known = self._term.view.brokers.get(broker_id)
            if known is None:
                return ErrorCode.BROKER_NOT_AVAILABLE, []
            if broker_epoch >= 0 and known.epoch != broker_epoch:
                return ErrorCode.STALE_BROKER_EPOCH, []
            self._leaving[broker_id] = known.epoch
            log.info("broker %d is about to stop: moving what it leads", broker_id)
            remaining = await self._term.persist(f"relieving broker {broker_id}", lambda: self._relieve(broker_id))
        if remaining is None:
            return ErrorCode.REQUEST_TIMED_OUT, []
        return ErrorCode.NONE, remaining

    async def _relieve(self, broker_id: int) -> list[TopicPartition]:
        term = self._term
        writes = StateWrites(term.picture, term.lives)
        remaining: list[TopicPartition] = []
        leaving = self.leaving
        for tp, state in plans.partitions(term.picture):
            if state.leader < 0 and state.last_known_leader == broker_id:
                self._reign.inquiries.hear(tp, state)
            if state.leader != broker_id or len(state.replicas) == 1:
                continue
            to = successor(state, term.lives, leaving)
            if to is None or to in leaving:
                remaining.append(tp)
            else:
                writes.add(tp, self._moved(tp, state, to, heard=True))
        await term.perform(writes.done())
        await self._reign.settle()
        return remaining

    # ------------------------------------------------------------ balance

    async def rebalance(self, percentage: int) -> None:
        """Give leadership back to those brokers whose preferred partitions others lead in a larger share than that."""
        async with self._term.lock:
            await self._term.persist("rebalancing leaders", lambda: self._rebalance(percentage))
        self._reign.inquiries.wake()

    async def _rebalance(self, percentage: int) -> None:
        term = self._term
        writes = StateWrites(term.picture, term.lives)
        due = imbalanced(dict(plans.partitions(term.picture)), percentage)
        for tp in due:
            state = term.picture.partition(tp)
            if state is not None and not state.adding and not state.removing and self._may_prefer(state) == DONE:
                writes.add(tp, self._moved(tp, state, state.replicas[0]))
        found: list[Write] = writes.done()
        if found:
            log.info("giving leadership back to preferred leaders")
        await term.perform(found)


def imbalanced(states: Mapping[TopicPartition, PartitionState], percentage: int) -> list[TopicPartition]:
    """Partitions led by another than the preferred replica, of those brokers where that is so for more than
    ``percentage`` of the partitions that prefer them (Kafka's leader.imbalance.per.broker.percentage).
    """
    preferring = Counter(state.replicas[0] for state in states.values())
    elsewhere = {tp: state.replicas[0] for tp, state in states.items() if state.leader not in (-1, state.replicas[0])}
    away = Counter(elsewhere.values())
    return [tp for tp, broker in elsewhere.items() if away[broker] * 100 > percentage * preferring[broker]]
