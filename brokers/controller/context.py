"""The controller context: the active controller's metadata image and its fenced writes to ZooKeeper.

Every write is a multi that checks ``/controller_epoch``, so that a deposed controller changes nothing. The outcome of
an unanswered write is decided by reading again in a live session.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NoReturn, TypeVar

from fleetlog.brokers.controller.elections import reason_of
from fleetlog.brokers.controller.writes import MultiWrite
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.metadata.image import NO_STATE_EPOCH, MetadataDelta, MetadataImage
from fleetlog.brokers.metadata.loading import children_or_none, list_changes, load_metadata
from fleetlog.brokers.metadata.znodes import BadZnode, Change, StatesChanged
from fleetlog.brokers.model import BrokerInfo, LiveBroker, PartitionState, TopicPartition
from fleetlog.brokers.replication.isr import LiveBrokers
from fleetlog.coordination.changes import entry
from fleetlog.coordination.election import ControllerMoved, Leadership, fenced_multi
from fleetlog.coordination.store import (
    MultiFailed,
    NoNode,
    SessionExpired,
    Store,
    StoreError,
    TooLarge,
    UnknownOutcome,
)
from fleetlog.coordination.tree import INCARNATIONS

logger = logging.getLogger(__name__)

R = TypeVar("R")

RETRY_SECONDS = 0.1
ATTEMPTS = 10
METADATA_WAIT_MS = 3_000


class NotController(Exception):
    """This broker is not the active controller (any more): it must not write."""


Settle = Callable[[Sequence[TopicPartition] | None], Awaitable[None]]
"""Completes topics and elects leaders, for these partitions or (None) for all. Raises NotController."""


class StaleState(Exception):
    """The metadata image is out of date, or the outcome of a write is unknown: read again.

    ``whole`` asks for a full read: the tree has a change that the change log lacks.
    """

    def __init__(self, message: str, *, whole: bool = False) -> None:
        super().__init__(message)
        self.whole = whole


class ControllerContext:
    """See the module. Every write holds ``lock``: one request or reaction at a time.

    Decisions build on ``image``: read once, then updated by the controller's own writes and by the metadata cache for
    the writes of leaders. ``deleting`` names topics with a deletion in progress.
    """

    def __init__(
        self, store: Store, metadata: MetadataCache, leadership: Leadership, elections: Counter[str] | None = None
    ) -> None:
        """``elections`` counts by reason the elections that are written."""
        self.elections: Counter[str] = Counter() if elections is None else elections
        self.leaving: Callable[[], Collection[int]] = tuple
        """The brokers that are about to stop."""
        self.store = store
        self.metadata = metadata
        self.leadership = leadership
        self.lock = asyncio.Lock()
        self.image = MetadataImage()
        self.deleting: list[str] = []
        self.over = False
        self._failed_at = ""
        self._brokers: dict[int, BrokerInfo] = {}
        self._live_brokers: dict[int, LiveBroker] = {}
        self._origin = f"controller epoch {leadership.epoch}"

    @property
    def epoch(self) -> int:
        """The controller epoch."""
        return self.leadership.epoch

    @property
    def live_brokers(self) -> LiveBrokers:
        """The registered brokers, from the metadata cache."""
        if self._brokers is not self.metadata.brokers:
            self._brokers = self.metadata.brokers
            self._live_brokers = {broker.id: broker.live_broker for broker in self._brokers.values()}
        return self._live_brokers

    def min_isr(self, topic: str) -> int:
        """The topic's ``min.insync.replicas``."""
        return self.metadata.topic_config(topic).min_insync_replicas

    # ------------------------------------------------------------ reading

    def absorb(self, changed: Iterable[TopicPartition]) -> None:
        """Apply the partition states that leaders wrote, from the metadata cache."""
        states: dict[str, dict[int, PartitionState]] = {}
        for tp in changed:
            state = self.metadata.partition(tp)
            if state is not None:
                states.setdefault(tp.topic, {})[tp.partition] = state
        news = [StatesChanged(name, self.metadata.topics[name].id, partitions) for name, partitions in states.items()]
        self.image.apply(news, MetadataDelta())

    async def look_again(self, *, whole: bool) -> None:
        """Bring the metadata image up to everything that was written before this call; raises NotController.

        The metadata cache is up to date once it has applied the newest change-log entry. Copying it is instant;
        reading 10,000 partitions takes seconds. ``whole`` reads them nevertheless.
        """
        await self.insist("reading the metadata", lambda: self._look(whole=whole))

    async def _look(self, *, whole: bool) -> None:
        try:
            await self.store.sync(znodes.CONTROLLER_EPOCH)
            _data, stat = await self.store.get(znodes.CONTROLLER_EPOCH)
            if stat.version != self.leadership.epoch_version:
                self.end("another controller was elected")
            if whole or not await self._copy_cache():
                await self.metadata.guard.check()
                loaded = await load_metadata(self.store)
                self.image, self.deleting = loaded.image, loaded.deleting
                self.absorb(self._all_partitions())  # the cache may have advanced during the read
        except NoNode:
            self.end(f"{znodes.CONTROLLER_EPOCH} does not exist")

    def _all_partitions(self) -> Iterable[TopicPartition]:
        for name, topic in self.metadata.topics.items():
            for index in range(len(topic.partitions)):
                yield TopicPartition(name, index)

    async def _copy_cache(self) -> bool:
        sequences = await list_changes(self.store)
        deleting = await children_or_none(self.store, znodes.DELETE_TOPICS)
        newest = sequences[-1] if sequences else -1
        if not await self.metadata.wait_until(lambda: self.metadata.sequence >= newest, METADATA_WAIT_MS):
            return False
        self.image, self.deleting = self.metadata.snapshot(), deleting
        return True

    async def insist(self, what: str, attempt: Callable[[], Awaitable[R]]) -> R:
        """Repeat until ZooKeeper has answered all of it; raises NotController."""
        while True:
            self.check_session()
            try:
                return await attempt()
            except SessionExpired:
                self.end("the session expired")
            except StoreError as problem:
                logger.info("controller: %s failed, retrying: %s", what, problem)
                await asyncio.sleep(RETRY_SECONDS)

    async def read_now(self, reading: Awaitable[R]) -> R:
        """Read once, as a part of what :meth:`persist` repeats; raises StaleState, NotController."""
        try:
            return await reading
        except SessionExpired:
            self.end("the session expired")
        except StoreError as problem:
            raise StaleState(str(problem)) from problem

    def check_session(self) -> None:
        """Raises NotController unless the session is the one that was elected."""
        session = self.store.session()
        if session is not None and session.session_id != self.leadership.session_id:
            self.end("the ZooKeeper session is not the elected one")
        if self.over:
            raise NotController("the controller epoch has ended")

    def end(self, reason: str) -> NoReturn:
        """Allow no further write; raises NotController."""
        self.over = True
        raise NotController(reason)

    # ------------------------------------------------------------ writing

    async def perform(self, writes: Iterable[MultiWrite]) -> None:
        """Write all, in order; raises NotController, StaleState."""
        for write in writes:
            await self._write(write)

    async def _write(self, write: MultiWrite) -> None:
        """One fenced multi, then its effect on the image; raises BadZnode while foreign brokers are registered."""
        if self.over:
            raise NotController("the controller epoch has ended")
        if self.metadata.guard.behind is not None:
            self.end("ZooKeeper is older than what this broker has seen")
        if self.metadata.foreign is not None:
            raise BadZnode(*self.metadata.foreign.split(" ", 1))
        operations = list(write.operations)
        if write.changes:
            operations.append(entry(znodes.encode_changes(write.changes, self._origin)))
        try:
            await fenced_multi(self.store, self.leadership, operations)
        except ControllerMoved as problem:
            self.end(str(problem))
        except MultiFailed as problem:
            # A leader wrote the state first, or a broker registered again: the metadata cache learns both shortly.
            # A second failure at the same path means a change that the change log lacks.
            restarted = problem.path.startswith(INCARNATIONS)
            again, self._failed_at = problem.path == self._failed_at, problem.path
            raise StaleState(str(problem), whole=again and not restarted) from problem
        except SessionExpired:
            self.end("the session expired")
        except TooLarge as problem:
            raise AssertionError("a planned multi exceeds ZooKeeper's limits") from problem
        except UnknownOutcome as problem:
            raise StaleState(f"unknown outcome of a write: {problem}") from problem
        self._failed_at = ""
        self._count(write.changes)
        self.image.apply(write.changes, MetadataDelta())

    def _count(self, changes: Iterable[Change]) -> None:
        """Count the elections among what was written; the image is as it was before."""
        leaving, live_brokers = self.leaving(), self.live_brokers
        for change in changes:
            if isinstance(change, StatesChanged):
                for index, new in change.states.items():
                    old = self.image.partition(TopicPartition(change.name, index))
                    if old is not None and old.partition_epoch != NO_STATE_EPOCH:
                        reason = reason_of(old, new, live_brokers, leaving)
                        if reason is not None:
                            self.elections[reason.value] += 1

    async def persist(self, what: str, attempt: Callable[[], Awaitable[R]], attempts: int = ATTEMPTS) -> R | None:
        """Repeat ``attempt`` until it raises no StaleState, reading again in between; None after ``attempts`` tries.

        Raises NotController and whatever else ``attempt`` raises. The caller holds the lock.
        """
        for number in range(attempts):
            try:
                return await attempt()
            except StaleState as problem:
                logger.info("controller: %s: %s; reading again", what, problem)
                # a broker may have registered again already; the metadata cache learns of it shortly
                await asyncio.sleep(min(RETRY_SECONDS * (number + 1), 2.0))
                await self.look_again(whole=problem.whole)
        return None
