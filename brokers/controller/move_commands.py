"""Reassignments of replicas: started, replaced and cancelled on request, advanced as the cluster changes.

Before a move removes replicas it asks whether those that it leaves are there. Removed replicas delete their logs, and
the in-sync set does not show that another copy is left: a broker whose power failed is a member until its session ends.
So the controller asks those that stay (ReplicaEnds), a bounded number of partitions at a time, and removes the others
only while the answers are fresh.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence

from fleetlog.brokers.controller import plans
from fleetlog.brokers.controller.context import ControllerContext, Settle, StaleState
from fleetlog.brokers.controller.elections import is_led
from fleetlog.brokers.controller.leader_commands import (
    DONE,
    KEPT_CHANGING,
    SILENT,
    UNKNOWN_PARTITION,
    WAIVE_ROUNDS,
    LeaderCommands,
    Result,
    leader_is_silent,
)
from fleetlog.brokers.controller.log_end_probes import FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, LogEndProbes
from fleetlog.brokers.controller.plans import Step
from fleetlog.brokers.controller.requests import Refused, check_replication
from fleetlog.brokers.controller.writes import MultiWrite, StateWrites
from fleetlog.brokers.model import BrokerId, PartitionState, TopicPartition
from fleetlog.brokers.replication.ends import ASK_MS, ReplicaEnd
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)


FRESH_SECONDS = 2 * ASK_MS / 1000
"""How old an answer may be when a step is decided: a request, and as much of the controller's other work."""
PARTITIONS_PER_ROUND = 500
"""What is asked, and written, while the answers are fresh."""
MOVES_PER_TURN = 64
"""Moves planned before the loop gets a turn: there may be thousands."""

Staying = Mapping[TopicPartition, tuple[BrokerId, ...]]
"""Partitions with the replicas that stay, on which a step of a move relies."""


class RemainingReplicas:
    """See the module. Holds what was answered, and the partitions whose moves wait for answers."""

    def __init__(self, context: ControllerContext, settle: Settle, probes: LogEndProbes) -> None:
        self._context = context
        self._settle = settle
        self._probes = probes
        self._wake = asyncio.Event()
        self._new: dict[TopicPartition, None] = {}
        self._waiting: dict[TopicPartition, list[BrokerId]] = {}
        """With the brokers that have not confirmed; those that were asked longest ago come first."""
        self._confirmed: dict[tuple[TopicPartition, BrokerId], tuple[int, float, ReplicaEnd]] = {}
        """Answers with their incarnations and times."""
        self._reported: frozenset[BrokerId] = frozenset()

    @property
    def silent(self) -> frozenset[BrokerId]:
        """The brokers for which moves wait."""
        return frozenset(b for brokers in self._waiting.values() for b in brokers)

    def unconfirmed(self, tp: TopicPartition, staying: Collection[BrokerId]) -> list[BrokerId]:
        """Those of the replicas that have not just answered, in their registered incarnation and with a log.

        A broker that answers still has what it had in that incarnation. Whether this is the incarnation that the
        in-sync set names is for the caller to compare (``isr.counts``).
        """
        live_brokers, since = self._context.live_brokers, asyncio.get_running_loop().time() - FRESH_SECONDS

        def is_there(broker_id: BrokerId) -> bool:
            live_broker, known = live_brokers.get(broker_id), self._confirmed.get((tp, broker_id))
            if live_broker is None or known is None:
                return False
            incarnation, at, answer = known
            return live_broker.incarnation == incarnation and at >= since and self._probes.is_present(tp, answer)

        return [b for b in staying if not is_there(b)]

    async def ask(self, staying: Staying) -> list[TopicPartition]:
        """Ask these replicas once; returns the partitions of which all have confirmed. Call without the lock."""
        now = asyncio.get_running_loop().time()
        self._confirmed = {key: known for key, known in self._confirmed.items() if known[1] >= now - FRESH_SECONDS}
        asked: dict[BrokerId, list[TopicPartition]] = {}
        for tp, replicas in staying.items():
            for broker_id in replicas:
                asked.setdefault(broker_id, []).append(tp)
        replies = await asyncio.gather(*(self._probes.ask_one(b, partitions) for b, partitions in asked.items()))
        for (broker_id, partitions), (incarnation, answers) in zip(asked.items(), replies, strict=True):
            for tp in partitions:
                answer = answers.get(tp)
                known = self._confirmed.get((tp, broker_id))
                if known is not None and known[1] > now:
                    continue  # a later request was faster
                if answer is not None and answer.end is not None:
                    self._confirmed[tp, broker_id] = incarnation, now, answer
                else:
                    self._confirmed.pop((tp, broker_id), None)
        return [tp for tp, replicas in staying.items() if not self.unconfirmed(tp, replicas)]

    # ------------------------------------------------------------ moves that wait

    def want(self, tp: TopicPartition) -> None:
        """Ask the replicas on which the partition's move relies until all have confirmed; then the move continues."""
        if tp not in self._waiting:
            self._new[tp] = None
            self._wake.set()

    async def run(self, still_staying: Callable[[TopicPartition], tuple[BrokerId, ...]]) -> None:
        """Ask until cancelled; raises NotController.

        ``still_staying`` names the replicas on which the next step of a partition's move relies; none: it need not
        wait. New partitions come first. Those in vain take turns, with backoff.
        """
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with asyncio.timeout(pause if self._waiting else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            asked = await self._next(still_staying)
            confirmed = set(await self.ask(asked))
            for tp, replicas in asked.items():
                if tp in confirmed:
                    self._waiting.pop(tp, None)
                else:
                    self._waiting[tp] = self.unconfirmed(tp, replicas)
            self._report()
            if confirmed:
                async with self._context.lock:
                    await self._settle(sorted(confirmed))
            if self._new:
                self._wake.set()
            pause = FIRST_PAUSE_SECONDS if confirmed else min(2 * pause, LAST_PAUSE_SECONDS)

    async def _next(self, still_staying: Callable[[TopicPartition], tuple[BrokerId, ...]]) -> Staying:
        """What to ask now: the new partitions, then those that were asked longest ago. They wait from now on."""
        staying: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        for number, tp in enumerate([*self._new, *self._waiting]):
            if number % MOVES_PER_TURN == 0:
                await asyncio.sleep(0)
            if len(staying) == PARTITIONS_PER_ROUND:
                break
            self._new.pop(tp, None)
            unconfirmed = self._waiting.pop(tp, [])
            if replicas := still_staying(tp):
                staying[tp] = replicas
                self._waiting[tp] = unconfirmed
        return staying

    def _report(self) -> None:
        """Log for which brokers moves wait, when these change."""
        silent = self.silent
        if silent and silent != self._reported:
            logger.info(
                "%d moves, one of %s, wait before they remove replicas: brokers %s, which keep the data, have not"
                " confirmed that they have it", len(self._waiting), next(iter(self._waiting)), sorted(silent),
            )  # fmt: skip
        self._reported = silent


NO_ROOM: Result = (
    ErrorCode.REASSIGNMENT_IN_PROGRESS,
    "The topic's znode has no room for more moving partitions; move this one when some of the others are done.",
)
Wanted = Mapping[TopicPartition, Sequence[int] | None]


class MoveCommands:
    """The reassignments of one controllership; their whole state is in the metadata image."""

    def __init__(
        self, context: ControllerContext, settle: Settle, probes: LogEndProbes, leaders: LeaderCommands
    ) -> None:
        self._context = context
        self._settle = settle
        self._probes = probes
        self._leaders = leaders
        self._remaining = RemainingReplicas(context, settle, probes)

    @property
    def silent(self) -> frozenset[BrokerId]:
        """The brokers that keep the data of moves, and have not confirmed that they have it: the moves wait."""
        return self._remaining.silent

    async def run(self) -> None:
        """Continue moves that wait for the replicas that stay, until cancelled; raises NotController."""
        await self._remaining.run(self._still_staying)

    def _still_staying(self, tp: TopicPartition) -> tuple[BrokerId, ...]:
        state = self._context.image.partition(tp)
        step = self._next_step(tp, state) if state is not None else None
        return step.relies_on if step is not None else ()

    async def alter(self, wanted: Wanted) -> dict[TopicPartition, Result]:
        """Start a move to each target, or cancel the one in progress (None); each partition has its own result.

        A move without data to copy goes on at once. Raises NotController.
        """
        results: dict[TopicPartition, Result] = {}
        for portion in await self._portions(wanted):
            tried: set[TopicPartition] = set()
            for _ in range(WAIVE_ROUNDS):
                unanswered = await self._ask(wanted, portion)
                results_of_portion = await self._order({tp: wanted[tp] for tp in portion}, tried)
                results |= results_of_portion
                # some changed while their brokers were asked
                again = [tp for tp in portion if results_of_portion[tp][0] is SILENT and tp not in unanswered]
                portion = [tp for tp in again if results_of_portion[tp] != KEPT_CHANGING]
                if not portion:
                    break
        return results

    async def _order(self, wanted: Wanted, tried: set[TopicPartition]) -> dict[TopicPartition, Result]:
        async with self._context.lock:
            results = await self._context.persist("reassigning partitions", lambda: self._alter(wanted, tried))
            await self._settle([tp for tp in tried if self._context.image.partition(tp) is not None])
        return results if results is not None else dict.fromkeys(wanted, KEPT_CHANGING)

    async def _portions(self, wanted: Wanted) -> list[list[TopicPartition]]:
        """The partitions, and in bounded portions those whose first step relies on replicas that stay."""
        relying: dict[TopicPartition, None] = {}
        async for tp, state in self._present(wanted):
            if state is not None and _asked_first(state, wanted[tp])[1]:
                relying[tp] = None
        rest, bounded, most = [tp for tp in wanted if tp not in relying], list(relying), PARTITIONS_PER_ROUND
        return ([rest] if rest else []) + [bounded[i : i + most] for i in range(0, len(bounded), most)]

    async def _ask(self, wanted: Wanted, partitions: Sequence[TopicPartition]) -> set[TopicPartition]:
        """Ask the brokers that these moves need first; returns the partitions of which not all have answered."""
        dropping: list[TopicPartition] = []
        staying: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        async for tp, state in self._present(partitions):
            if state is None:
                continue
            drops_leader, replicas = _asked_first(state, wanted[tp])
            if drops_leader and not self._probes.may_move(tp, state):
                dropping.append(tp)
            if replicas:
                staying[tp] = replicas
        waived, confirmed = await asyncio.gather(self._probes.ask_to_waive(dropping), self._remaining.ask(staying))
        return {*dropping}.difference(waived) | staying.keys() - confirmed

    async def _alter(self, wanted: Wanted, tried: set[TopicPartition]) -> dict[TopicPartition, Result]:
        """One attempt; ``tried`` has the partitions of earlier attempts, whose outcome may be unknown."""
        context = self._context
        writes = StateWrites(context.image, context.live_brokers)
        results: dict[TopicPartition, Result] = {}
        planned: list[TopicPartition] = []
        async for tp, state in self._present(sorted(wanted)):
            if state is None:
                results[tp] = UNKNOWN_PARTITION
                continue
            try:
                step = self._first_step(tp, state, wanted[tp])
            except Refused as refused:
                done = tp in tried and refused.error is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
                results[tp] = DONE if done else (refused.error, refused.message)
                continue
            moves = step is not None and step.state is not None and step.state.leader != state.leader
            if moves and is_led(state, context.live_brokers) and not self._probes.may_move(tp, state):
                results[tp] = leader_is_silent(state)
                continue
            if step is not None and (silent := self._remaining.unconfirmed(tp, step.relies_on)):
                results[tp] = _remaining_are_silent(silent)
                continue
            if step is not None and step.assigned is not None and not writes.has_room(tp, step.assigned):
                results[tp] = NO_ROOM
                continue
            results[tp] = DONE
            if step is not None:
                logger.info("%s: reassigning replicas %s to %s", tp, list(state.replicas), _target_of(wanted[tp], step))
                writes.add(tp, step.state, assigned=step.assigned, relies_on=step.relies_on)
                planned.append(tp)
        multis = self._done(writes)
        tried.update(planned)
        await context.perform(multis)
        return results

    async def _present(
        self, partitions: Iterable[TopicPartition]
    ) -> AsyncIterator[tuple[TopicPartition, PartitionState | None]]:
        """Each with its present state, which leaders change in the turns that the loop gets in between."""
        for number, tp in enumerate(partitions, 1):
            if number % MOVES_PER_TURN == 0:
                await asyncio.sleep(0)
            yield tp, self._context.image.partition(tp)

    def _done(self, writes: StateWrites) -> list[MultiWrite]:
        """All writes; raises StaleState if brokers have come or gone since the first was planned."""
        if writes.live_brokers is not self._context.live_brokers:
            raise StaleState("brokers came or went while moves were planned")
        return writes.done()

    def _first_step(self, tp: TopicPartition, state: PartitionState, target: Sequence[int] | None) -> Step | None:
        context = self._context
        minimum = context.min_isr(tp.topic)
        if target is None:
            return plans.cancel_move(tp, state, context.live_brokers, context.epoch, min_isr=minimum)
        check_replication(len(target), context.metadata.brokers)
        return plans.start_move(tp, state, target, context.live_brokers, context.epoch, min_isr=minimum)

    def _next_step(self, tp: TopicPartition, state: PartitionState) -> Step | None:
        context = self._context
        minimum, leaving = context.min_isr(tp.topic), self._leaders.leaving
        return plans.advance(tp, state, context.live_brokers, context.epoch, min_isr=minimum, leaving=leaving)

    async def advance(self, only: Sequence[TopicPartition] | None) -> None:
        """Advance every move as far as possible; raises StaleState, NotController."""
        context = self._context
        while True:
            writes = StateWrites(context.image, context.live_brokers)
            done: list[tuple[TopicPartition, PartitionState]] = []
            moving = [tp for tp, state in plans.partitions(context.image, only) if state.adding or state.removing]
            async for tp, state in self._present(moving):
                if state is None or (step := self._next_step(tp, state)) is None:
                    continue
                if step.assigned is None and not self._probes.may_move(tp, state):
                    self._probes.want_move(tp)
                elif self._remaining.unconfirmed(tp, step.relies_on):
                    self._remaining.want(tp)
                else:
                    writes.add(tp, step.state, assigned=step.assigned, relies_on=step.relies_on)
                    if step.assigned is not None:
                        done.append((tp, step.assigned))
            multis = self._done(writes)
            if not multis:
                return
            await context.perform(multis)
            for tp, assigned in done:
                logger.info("%s: reassignment completed: replicas are %s", tp, list(assigned.replicas))


def _remaining_are_silent(silent: Sequence[int]) -> Result:
    """The error of a step that would give up copies while those that stay have not been seen just now."""
    text = f"Replicas {list(silent)} are to keep the data, and have not confirmed to the controller that they have it; "
    return (SILENT, text + "try again.")


def _asked_first(state: PartitionState, target: Sequence[int] | None) -> tuple[bool, tuple[BrokerId, ...]]:
    """Whether the move's first step removes the leader, and the replicas on which it relies."""
    if not state.adding:
        return False, ()  # only new replicas are removed at once
    wanted = state.established if target is None else target
    dropped = state.leader not in plans.retargeted(state, wanted).replicas
    return dropped, plans.first_relies_on(state, wanted)


def _target_of(wanted: Sequence[int] | None, step: Step) -> list[int]:
    if wanted is not None:
        return list(wanted)
    return list(step.assigned.target) if step.assigned is not None else []
