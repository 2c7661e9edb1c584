"""Moves of replicas: begun, replaced and cancelled by request, brought on by whatever happens in the cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from brokers.cluster import plans, reassignment
from brokers.cluster.leader_commands import DONE, KEPT_CHANGING, UNKNOWN_PARTITION, Result
from brokers.cluster.reassignment import Step
from brokers.cluster.requests import Refused, check_replication
from brokers.cluster.term import Term
from brokers.cluster.writes import StateWrites
from brokers.model import PartitionState, TopicPartition
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from brokers.cluster.reign import Reign

log = logging.getLogger(__name__)

Wanted = Mapping[TopicPartition, Sequence[int] | None]


class MoveCommands:
    """The moves of one reign; all that is known about them stands in the picture."""

    def __init__(self, reign: Reign) -> None:
        self._reign = reign
        self._term: Term = reign.term

    async def alter(self, wanted: Wanted) -> dict[TopicPartition, Result]:
        """Begin a move to each target, or cancel the one under way (None); each partition succeeds by itself.

        A move that has nothing to wait for is done when this returns. Raises TermOver.
        """
        tried: set[TopicPartition] = set()
        async with self._term.lock:
            results = await self._term.persist("reassigning partitions", lambda: self._alter(wanted, tried))
            await self._reign.settle([tp for tp in wanted if self._term.picture.partition(tp) is not None])
        return results if results is not None else dict.fromkeys(wanted, KEPT_CHANGING)

    async def _alter(self, wanted: Wanted, tried: set[TopicPartition]) -> dict[TopicPartition, Result]:
        """One attempt; ``tried`` keeps what earlier ones wrote, whose outcome may be unknown."""
        term = self._term
        writes = StateWrites(term.picture, term.lives)
        results: dict[TopicPartition, Result] = {}
        for tp in sorted(wanted):
            state = term.picture.partition(tp)
            if state is None:
                results[tp] = UNKNOWN_PARTITION
                continue
            try:
                step = self._first_step(tp, state, wanted[tp])
            except Refused as refused:
                done = tp in tried and refused.error is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
                results[tp] = DONE if done else (refused.error, refused.message)
                continue
            results[tp] = DONE
            if step is not None:
                log.info("%s: replicas %s are to become %s", tp, list(state.replicas), _target_of(wanted[tp], step))
                writes.add(tp, step.state, assigned=step.assigned)
                tried.add(tp)
        await term.perform(writes.done())
        return results

    def _first_step(self, tp: TopicPartition, state: PartitionState, target: Sequence[int] | None) -> Step | None:
        term = self._term
        minimum = term.min_isr(tp.topic)
        if target is None:
            return reassignment.cancel(tp, state, term.lives, term.epoch, min_isr=minimum)
        check_replication(len(target), term.view.brokers)
        return reassignment.start(tp, state, target, term.lives, term.epoch, min_isr=minimum)

    async def advance(self, only: Sequence[TopicPartition] | None) -> None:
        """Take every move as far as it goes now; raises StaleState, TermOver."""
        term = self._term
        while True:
            writes = StateWrites(term.picture, term.lives)
            done: list[tuple[TopicPartition, PartitionState]] = []
            for tp, state in plans.partitions(term.picture, only):
                if not state.adding and not state.removing:
                    continue
                step = reassignment.advance(
                    tp,
                    state,
                    term.lives,
                    term.epoch,
                    min_isr=term.min_isr(tp.topic),
                    leaving=self._reign.leaders.leaving,
                )
                if step is not None:
                    writes.add(tp, step.state, assigned=step.assigned)
                    if step.assigned is not None:
                        done.append((tp, step.assigned))
            found = writes.done()
            if not found:
                return
            await term.perform(found)
            for tp, assigned in done:
                log.info("%s: its replicas are %s now", tp, list(assigned.replicas))


def _target_of(wanted: Sequence[int] | None, step: Step) -> list[int]:
    if wanted is not None:
        return list(wanted)
    return list(step.assigned.target) if step.assigned is not None else []
