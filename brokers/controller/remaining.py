"""The replicas that a move leaves: whether they are there, before the move removes the others.

Removed replicas delete their logs, and the in-sync set does not show that another copy is left: a broker whose power
failed is a member until its session ends. So the controller asks those that stay (ReplicaEnds), a bounded number of
partitions at a time, and removes the others only while the answers are fresh.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from fleetlog.brokers.controller.context import ControllerContext, Settle
from fleetlog.brokers.controller.log_end_probes import FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, LogEndProbes
from fleetlog.brokers.model import BrokerId, TopicPartition
from fleetlog.brokers.replication.ends import ASK_MS, ReplicaEnd

log = logging.getLogger(__name__)

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
        found = await asyncio.gather(*(self._probes.ask_one(b, partitions) for b, partitions in asked.items()))
        for (broker_id, partitions), (incarnation, answers) in zip(asked.items(), found, strict=True):
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
        found: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        for number, tp in enumerate([*self._new, *self._waiting]):
            if number % MOVES_PER_TURN == 0:
                await asyncio.sleep(0)
            if len(found) == PARTITIONS_PER_ROUND:
                break
            self._new.pop(tp, None)
            unconfirmed = self._waiting.pop(tp, [])
            if replicas := still_staying(tp):
                found[tp] = replicas
                self._waiting[tp] = unconfirmed
        return found

    def _report(self) -> None:
        """Log for which brokers moves wait, when these change."""
        silent = self.silent
        if silent and silent != self._reported:
            log.info(
                "%d moves, one of %s, wait before they remove replicas: brokers %s, which keep the data, have not"
                " confirmed that they have it", len(self._waiting), next(iter(self._waiting)), sorted(silent),
            )  # fmt: skip
        self._reported = silent
