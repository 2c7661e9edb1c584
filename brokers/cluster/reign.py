"""One reign of a controller: what it does between a won election and the end of its term.

It decides with pure functions (``elections``, ``plans``, ``requests``); its :class:`Term` performs what they decided.
Commands and reactions have files of their own by subject; all work runs under the term's lock.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence

from brokers.cluster import ends, plans, znodes
from brokers.cluster.elections import is_led
from brokers.cluster.inquiries import Inquiries
from brokers.cluster.isr import Lives, counts, members
from brokers.cluster.leader_commands import LeaderCommands
from brokers.cluster.move_commands import MoveCommands
from brokers.cluster.peers import PeersPort
from brokers.cluster.picture import NO_STATE_EPOCH
from brokers.cluster.term import RETRY_SECONDS, StaleState, Term
from brokers.cluster.topic_commands import TopicCommands
from brokers.cluster.view import ViewChange
from brokers.model import Clock, PartitionState, TopicPartition
from coordination.changes import Pruner
from coordination.election import ControllerMoved
from coordination.store import SessionExpired, StoreError
from coordination.tree import ensure

log = logging.getLogger(__name__)

KEEP_CHANGES = 5_000
KEEP_CHANGES_MS = 15 * 60_000
"""A broker that missed more than this reads everything again."""


class Reign:
    """See the module."""

    def __init__(
        self,
        term: Term,
        peers: PeersPort,
        *,
        broker_id: int,
        clock: Clock,
        new_id: Callable[[], uuid.UUID],
        replicas: ends.Replicas | None,
    ) -> None:
        self.term = term
        self.topics = TopicCommands(self, new_id)
        self.leaders = LeaderCommands(self)
        self.moves = MoveCommands(self)
        self.inquiries = Inquiries(self, peers, broker_id, replicas)
        self._touched: set[TopicPartition] = set()
        self._pruner = Pruner(term.store, keep_count=KEEP_CHANGES, keep_ms=KEEP_CHANGES_MS, mono_ms=clock.mono_ms)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.term.over

    async def begin(self) -> None:
        """Read everything and finish what was left half done; raises TermOver."""
        async with self.term.lock:
            await self._make_parents()
            await self.term.look_again(whole=False)
            await self.settle()

    async def _make_parents(self) -> None:
        while True:
            self.term.check_session()
            try:
                for path in znodes.PERSISTENT_PATHS:
                    await ensure(self.term.store, path)
                return
            except SessionExpired:
                self.term.end("the session expired")
            except StoreError as problem:
                log.info("controller: making the tree's parents: %s", problem)
                await asyncio.sleep(RETRY_SECONDS)

    # ------------------------------------------------------------ reacting

    def absorb(self, change: ViewChange) -> bool:
        """Take in what the view learned; True if there may be something to set right: then :meth:`react`."""
        self.term.absorb(change.partitions_changed)
        if change.brokers_changed or change.reloaded or change.configs_changed:
            return True
        lives = self.term.lives
        for tp in change.partitions_changed:
            state = self.term.picture.partition(tp)
            if state is not None and _unsettled(state, lives):
                self._touched.add(tp)
        return bool(self._touched)

    async def react(self, *, everything: bool = True) -> None:
        """Set right what the world's changes made wrong, everywhere or where leaders wrote; raises TermOver."""
        async with self.term.lock:
            touched, self._touched = self._touched, set()
            await self.settle(None if everything else sorted(touched))

    async def settle(self, only: Sequence[TopicPartition] | None = None) -> None:
        """Complete topics and deletions, elect, go on with moves, until nothing is in the way; raises TermOver."""
        term = self.term
        attempt = 0
        while True:
            try:
                if only is None:
                    await self.topics.finish_deletions()
                    await term.perform(plans.missing_states(term.picture, term.lives, term.epoch))
                await term.perform(
                    plans.elections(
                        term.picture,
                        term.lives,
                        term.epoch,
                        min_isr=term.min_isr,
                        only=only,
                        leaving=self.leaders.leaving,
                        must_wait=self.inquiries.must_wait,
                    )
                )
                await self.moves.advance(only)
                break
            except StaleState as problem:
                attempt += 1
                log.info("controller: %s; reading again", problem)
                # a broker seen by us may be in its next life already: our view will hear of it in a moment
                await asyncio.sleep(min(RETRY_SECONDS * attempt, 2.0))
                await term.look_again(whole=problem.whole)
                only = None
        self.inquiries.wake()

    # ------------------------------------------------------------ the change log

    async def prune(self) -> None:
        """Delete old change-log entries; raises TermOver."""
        async with self.term.lock:
            self.term.check_session()
            try:
                await self._pruner.prune(self.term.leadership)
            except ControllerMoved as problem:
                self.term.end(str(problem))
            except SessionExpired:
                self.term.end("the session expired")
            except StoreError as problem:
                log.info("pruning the change log: %s", problem)


def _unsettled(state: PartitionState, lives: Lives) -> bool:
    """Whether a state that a leader wrote leaves the controller something to do."""
    if state.partition_epoch == NO_STATE_EPOCH:
        return False
    if not is_led(state, lives) or state.adding or state.removing:
        return True
    return not all(counts(lives, b, i) for b, i in members(state))
