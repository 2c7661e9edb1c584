"""A controller's term: what it knows, and its hand on ZooKeeper.

Every write is a multi that checks ``/controller_epoch``, so that a deposed controller changes nothing. A write whose
outcome is unknown is decided by reading again in a living session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NoReturn, TypeVar

from brokers.cluster import znodes
from brokers.cluster.isr import Lives
from brokers.cluster.loading import children_or_none, list_changes, load
from brokers.cluster.picture import Delta, Picture
from brokers.cluster.view import ClusterView
from brokers.cluster.writes import Write
from brokers.cluster.znodes import BadZnode, StatesChanged
from brokers.model import BrokerInfo, Life, PartitionState, TopicPartition
from coordination.changes import entry
from coordination.election import ControllerMoved, Leadership, fenced_multi
from coordination.store import (
    MultiFailed,
    NoNode,
    SessionExpired,
    Store,
    StoreError,
    TooLarge,
    UnknownOutcome,
)

log = logging.getLogger(__name__)

R = TypeVar("R")

RETRY_SECONDS = 0.1
ATTEMPTS = 10
VIEW_WAIT_MS = 3_000


class TermOver(Exception):
    """Somebody else is controller, or nobody: this broker may not write any more."""


class StaleState(Exception):
    """The tree isn't as we thought, or we don't know what became of a write: look again.

    ``whole`` asks for a full read: something is there that the change log didn't tell.
    """

    def __init__(self, message: str, *, whole: bool = False) -> None:
        super().__init__(message)
        self.whole = whole


class Term:
    """See the module. Whoever writes holds ``lock``: one request or reaction at a time.

    ``picture`` is what the next decision builds on: read at first, then kept by our own writes and by what the view
    learns of others'. ``deleting`` names topics whose deletion began.
    """

    def __init__(self, store: Store, view: ClusterView, leadership: Leadership) -> None:
        self.store = store
        self.view = view
        self.leadership = leadership
        self.lock = asyncio.Lock()
        self.picture = Picture()
        self.deleting: list[str] = []
        self.over = False
        self._failed_at = ""
        self._brokers: dict[int, BrokerInfo] = {}
        self._lives: dict[int, Life] = {}
        self._origin = f"controller epoch {leadership.epoch}"

    @property
    def epoch(self) -> int:
        """The controller's epoch."""
        return self.leadership.epoch

    @property
    def lives(self) -> Lives:
        """The living brokers, as our view knows them."""
        if self._brokers is not self.view.brokers:
            self._brokers = self.view.brokers
            self._lives = {broker.id: broker.life for broker in self._brokers.values()}
        return self._lives

    def min_isr(self, topic: str) -> int:
        """The topic's ``min.insync.replicas``."""
        return self.view.topic_config(topic).min_insync_replicas

    # ------------------------------------------------------------ reading

    def absorb(self, changed: Iterable[TopicPartition]) -> None:
        """Take in states that leaders wrote themselves, as the view learns of them."""
        states: dict[str, dict[int, PartitionState]] = {}
        for tp in changed:
            state = self.view.partition(tp)
            if state is not None:
                states.setdefault(tp.topic, {})[tp.partition] = state
        news = [StatesChanged(name, self.view.topics[name].id, found) for name, found in states.items()]
        self.picture.apply(news, Delta())

    async def look_again(self, *, whole: bool) -> None:
        """Bring our picture up to everything that was written before this call; raises TermOver.

        Our broker's view knows it once it has applied the newest change-log entry, and copying it is instant, where
        reading 10,000 partitions takes seconds. ``whole`` reads them nevertheless.
        """
        while True:
            self.check_session()
            try:
                await self.store.sync(znodes.CONTROLLER_EPOCH)
                _data, stat = await self.store.get(znodes.CONTROLLER_EPOCH)
                if stat.version != self.leadership.epoch_version:
                    self.end("another controller was elected")
                if whole or not await self._copy_view():
                    loaded = await load(self.store)
                    self.picture, self.deleting = loaded.picture, loaded.deleting
                    self.absorb(self._all_partitions())  # the view may have told of more while we read
                return
            except NoNode:
                self.end("the controller's epoch is gone")
            except SessionExpired:
                self.end("the session expired")
            except StoreError as problem:
                log.info("controller: reading again after %s", problem)
                await asyncio.sleep(RETRY_SECONDS)

    def _all_partitions(self) -> Iterable[TopicPartition]:
        for name, topic in self.view.topics.items():
            for index in range(len(topic.partitions)):
                yield TopicPartition(name, index)

    async def _copy_view(self) -> bool:
        sequences = await list_changes(self.store)
        deleting = await children_or_none(self.store, znodes.DELETE_TOPICS)
        newest = sequences[-1] if sequences else -1
        if not await self.view.wait_until(lambda: self.view.sequence >= newest, VIEW_WAIT_MS):
            return False
        self.picture, self.deleting = self.view.snapshot(), deleting
        return True

    def check_session(self) -> None:
        """Raises TermOver unless the session is the one that was elected."""
        session = self.store.session()
        if session is not None and session.session_id != self.leadership.session_id:
            self.end("the session is another")
        if self.over:
            raise TermOver("the term is over")

    def end(self, reason: str) -> NoReturn:
        """No more writes; raises TermOver."""
        self.over = True
        raise TermOver(reason)

    # ------------------------------------------------------------ writing

    async def perform(self, writes: Sequence[Write]) -> None:
        """The writes in order; raises TermOver, StaleState."""
        for write in writes:
            await self._write(write)

    async def _write(self, write: Write) -> None:
        """One fenced multi, and its effect on our picture; raises BadZnode while brokers of another kind are there."""
        if self.over:
            raise TermOver("the term is over")
        if self.view.foreign is not None:
            raise BadZnode(*self.view.foreign.split(" ", 1))
        operations = list(write.operations)
        if write.changes:
            operations.append(entry(znodes.encode_changes(write.changes, self._origin)))
        try:
            await fenced_multi(self.store, self.leadership, operations)
        except ControllerMoved as problem:
            self.end(str(problem))
        except MultiFailed as problem:
            # A leader wrote the state first, or a broker began a new life: the view learns both in a moment. Only what
            # fails at the same place again is nothing that the change log tells of.
            lives = problem.path.startswith(znodes.BROKER_INCARNATIONS)
            again, self._failed_at = problem.path == self._failed_at, problem.path
            raise StaleState(str(problem), whole=again and not lives) from problem
        except SessionExpired:
            self.end("the session expired")
        except TooLarge as problem:
            raise AssertionError("a plan's write passes ZooKeeper's bounds") from problem
        except UnknownOutcome as problem:
            raise StaleState(f"unknown outcome: {problem}") from problem
        self._failed_at = ""
        self.picture.apply(write.changes, Delta())

    async def persist(self, what: str, attempt: Callable[[], Awaitable[R]], attempts: int = ATTEMPTS) -> R | None:
        """``attempt`` until it meets a tree that is as it thought, reading again in between; None if that never comes.

        Raises TermOver and whatever else ``attempt`` raises. The caller holds the lock.
        """
        for number in range(attempts):
            try:
                return await attempt()
            except StaleState as problem:
                log.info("controller: %s: %s; reading again", what, problem)
                # a broker seen by us may be in its next life already: our view will hear of it in a moment
                await asyncio.sleep(min(RETRY_SECONDS * (number + 1), 2.0))
                await self.look_again(whole=problem.whole)
        return None
