"""The replicas that a move leaves: whether they are there, before the move removes the others.

Removed replicas delete their logs, and the in-sync set does not show that another copy is left: a broker whose power
failed is a member until its session ends. So the controller asks those that stay (ReplicaEnds), a bounded number of
partitions at a time, and removes the others only while the answers are fresh.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from brokers.controller.context import ControllerContext, Settle
from brokers.controller.log_end_probes import FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, LogEndProbes
from brokers.model import BrokerId, TopicPartition

log = logging.getLogger(__name__)

SEEN_SECONDS = 3.0
"""How long an answer shows that a replica is there. A request takes half of this at most; the other half is for the
controller's other work."""
PARTITIONS_PER_ROUND = 500
"""What is asked, and written, while the answers are fresh."""
CHECKED_PER_TURN = 64

ReliedOn = Mapping[TopicPartition, tuple[BrokerId, ...]]
"""Partitions with the replicas that a move relies on."""


class RemainingReplicas:
    """See the module. Holds what was answered, and the partitions that wait for answers."""

    def __init__(self, context: ControllerContext, settle: Settle, probes: LogEndProbes) -> None:
        self._context = context
        self._settle = settle
        self._probes = probes
        self._wake = asyncio.Event()
        self._new: dict[TopicPartition, None] = {}
        self._waiting: dict[TopicPartition, None] = {}
        self._seen: dict[tuple[TopicPartition, BrokerId], tuple[int, float]] = {}
        self.silent: tuple[BrokerId, ...] = ()
        """The brokers for which moves wait."""

    def silent_of(self, tp: TopicPartition, relied_on: Collection[BrokerId]) -> list[BrokerId]:
        """Those of the replicas that have not answered just now, in their registered incarnation and with a log.

        A broker that answers still has what it had in that incarnation. Whether this is the incarnation that the
        in-sync set names is for the caller to compare (``isr.counts``).
        """
        live_brokers, since = self._context.live_brokers, asyncio.get_running_loop().time() - SEEN_SECONDS

        def is_there(broker_id: BrokerId) -> bool:
            incarnation, seen = self._seen.get((tp, broker_id), (-1, 0.0))
            live_broker = live_brokers.get(broker_id)
            return live_broker is not None and live_broker.incarnation == incarnation and seen >= since

        return [b for b in relied_on if not is_there(b)]

    async def ask(self, relied_on: ReliedOn) -> list[TopicPartition]:
        """Ask these replicas once; returns the partitions of which all have answered. Call without the lock.

        At most PARTITIONS_PER_ROUND partitions, which is one request to each broker.
        """
        now = asyncio.get_running_loop().time()
        self._seen = {key: seen for key, seen in self._seen.items() if seen[1] >= now - SEEN_SECONDS}
        asked: dict[BrokerId, list[TopicPartition]] = {}
        for tp, replicas in relied_on.items():
            for broker_id in replicas:
                asked.setdefault(broker_id, []).append(tp)
        found = await asyncio.gather(*(self._probes.ask_one(b, partitions) for b, partitions in asked.items()))
        for broker_id, (incarnation, answers) in zip(asked, found, strict=True):
            for tp, answer in answers.items():
                if answer.end is not None and self._seen.get((tp, broker_id), (-1, 0.0))[1] <= now:
                    self._seen[tp, broker_id] = incarnation, now
        return [tp for tp, replicas in relied_on.items() if not self.silent_of(tp, replicas)]

    # ------------------------------------------------------------ moves that wait

    def want(self, tp: TopicPartition) -> None:
        """Ask the replicas on which the partition's move relies until all have answered; then the move continues."""
        if tp not in self._waiting:
            self._new[tp] = None
            self._wake.set()

    async def run(self, relied_on: Callable[[TopicPartition], tuple[BrokerId, ...]]) -> None:
        """Ask until cancelled; raises NotController.

        ``relied_on`` names the replicas on which the next step of a partition's move relies; none: it need not wait.
        New partitions come first. Those in vain take turns, with backoff.
        """
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with asyncio.timeout(pause if self._waiting else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            asked = await self._next(relied_on)
            there = await self.ask(asked)
            self._report(asked)
            for tp in there:
                self._waiting.pop(tp, None)
            if there:
                async with self._context.lock:
                    await self._settle(sorted(there))
            if self._new:
                self._wake.set()
            pause = FIRST_PAUSE_SECONDS if there else min(2 * pause, LAST_PAUSE_SECONDS)

    async def _next(self, relied_on: Callable[[TopicPartition], tuple[BrokerId, ...]]) -> ReliedOn:
        """What to ask now: the new partitions, then those that were asked longest ago. They wait from now on."""
        found: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        for number, tp in enumerate([*self._new, *self._waiting]):
            if number % CHECKED_PER_TURN == 0:
                await asyncio.sleep(0)
            if len(found) == PARTITIONS_PER_ROUND:
                break
            self._new.pop(tp, None)
            self._waiting.pop(tp, None)
            if replicas := relied_on(tp):
                found[tp] = replicas
        self._waiting |= dict.fromkeys(found)
        return found

    def _report(self, asked: ReliedOn) -> None:
        """Log for which brokers moves wait, when these change."""
        silent = {tp: found for tp, replicas in asked.items() if (found := self.silent_of(tp, replicas))}
        brokers = tuple(sorted({b for found in silent.values() for b in found}))
        if brokers and brokers != self.silent:
            log.info(
                "%d moves, one of %s, wait before they remove replicas: brokers %s, which keep the data, have not"
                " confirmed that they have it", len(silent), next(iter(silent)), list(brokers),
            )  # fmt: skip
        self.silent = brokers
