"""The active controller: its work between a won election and the end of its epoch.

Pure functions decide (``elections``, ``plans``, ``requests``); :class:`ControllerContext` writes their decisions. Each
subject's commands have a file. All work runs under the context's lock.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence

from fleetlog.brokers.controller import plans
from fleetlog.brokers.controller.context import RETRY_SECONDS, ControllerContext, StaleState
from fleetlog.brokers.controller.deletions import UnconfirmedDeletions
from fleetlog.brokers.controller.elections import is_led
from fleetlog.brokers.controller.leader_commands import LeaderCommands
from fleetlog.brokers.controller.log_end_probes import LogEndProbes
from fleetlog.brokers.controller.move_commands import MoveCommands
from fleetlog.brokers.controller.topic_commands import TopicCommands
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.cache import MetadataChange
from fleetlog.brokers.metadata.image import NO_STATE_EPOCH
from fleetlog.brokers.model import Clock, PartitionState, TopicPartition
from fleetlog.brokers.peers.calls import PeersPort
from fleetlog.brokers.replication import ends
from fleetlog.brokers.replication.isr import LiveBrokers, counts, members
from fleetlog.coordination.changes import Pruner
from fleetlog.coordination.election import ControllerMoved
from fleetlog.coordination.store import SessionExpired, StoreError
from fleetlog.coordination.tree import ensure

log = logging.getLogger(__name__)

KEEP_CHANGES = 5_000
KEEP_CHANGES_MS = 15 * 60_000
"""A broker that missed more changes than this reads all metadata again."""


class ActiveController:
    def __init__(
        self,
        context: ControllerContext,
        peers: PeersPort,
        *,
        broker_id: int,
        clock: Clock,
        new_id: Callable[[], uuid.UUID],
        replicas: ends.Replicas | None,
    ) -> None:
        self.context = context
        self.probes = LogEndProbes(context, self.settle, peers, broker_id, replicas)
        self.deletions = UnconfirmedDeletions(context, peers, broker_id)
        self.topics = TopicCommands(context, self.settle, new_id, clock.wall_ms, self.deletions)
        self.leaders = LeaderCommands(context, self.settle, self.probes)
        self.moves = MoveCommands(context, self.settle, self.probes, self.leaders)
        context.leaving = lambda: self.leaders.leaving
        self._touched: set[TopicPartition] = set()
        self._pruner = Pruner(context.store, keep_count=KEEP_CHANGES, keep_ms=KEEP_CHANGES_MS, mono_ms=clock.mono_ms)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.context.over

    async def begin(self) -> None:
        """Read all metadata and finish the previous controller's incomplete writes; raises NotController."""
        async with self.context.lock:
            await self.context.insist("creating the parent znodes", self._make_parents)
            await self.deletions.begin()
            await self.context.look_again(whole=False)
            await self.settle()

    async def _make_parents(self) -> None:
        for path in znodes.PERSISTENT_PATHS:
            await ensure(self.context.store, path)

    # ------------------------------------------------------------ reacting

    def absorb(self, change: MetadataChange) -> bool:
        """Apply a change of the metadata cache; True if it may need a reaction (:meth:`react`)."""
        self.context.absorb(change.partitions_changed)
        if change.brokers_changed or change.reloaded or change.configs_changed:
            return True
        live_brokers = self.context.live_brokers
        for tp in change.partitions_changed:
            state = self.context.image.partition(tp)
            if state is not None and _unsettled(state, live_brokers):
                self._touched.add(tp)
        return bool(self._touched)

    async def react(self, *, everything: bool = True) -> None:
        """React to changes: in all partitions, or in those whose leaders wrote their state; raises NotController."""
        async with self.context.lock:
            touched, self._touched = self._touched, set()
            await self.settle(None if everything else sorted(touched))

    async def settle(self, only: Sequence[TopicPartition] | None = None) -> None:
        """Complete topics and deletions, elect leaders, advance moves, until all is written; raises NotController."""
        context = self.context
        attempt = 0
        while True:
            try:
                if only is None:
                    await self.topics.finish_deletions()
                    await context.perform(plans.missing_states(context.image, context.live_brokers, context.epoch))
                await context.perform(
                    plans.elections(
                        context.image,
                        context.live_brokers,
                        context.epoch,
                        min_isr=context.min_isr,
                        only=only,
                        leaving=self.leaders.leaving,
                        must_wait=self.probes.must_wait,
                    )
                )
                await self.moves.advance(only)
                break
            except StaleState as problem:
                attempt += 1
                log.info("controller: stale state: %s; reading again", problem)
                # a broker may have registered again already; the metadata cache learns of it shortly
                await asyncio.sleep(min(RETRY_SECONDS * attempt, 2.0))
                await context.look_again(whole=problem.whole)
                only = None
        self.probes.wake()

    # ------------------------------------------------------------ the change log

    async def prune(self) -> None:
        """Delete old change-log entries; raises NotController."""
        async with self.context.lock:
            self.context.check_session()
            try:
                await self._pruner.prune(self.context.leadership)
            except ControllerMoved as problem:
                self.context.end(str(problem))
            except SessionExpired:
                self.context.end("the session expired")
            except StoreError as problem:
                log.info("controller: pruning the change log failed: %s", problem)


def _unsettled(state: PartitionState, live_brokers: LiveBrokers) -> bool:
    """Whether a state that a leader wrote needs a reaction of the controller."""
    if state.partition_epoch == NO_STATE_EPOCH:
        return False
    if not is_led(state, live_brokers) or state.adding or state.removing:
        return True
    return not all(counts(live_brokers, b, i) for b, i in members(state))
