"""One reign of a controller: what it does between a won election and the end of its term.

It decides with the pure functions of ``plans`` and ``requests``; here they are performed: as multis that check
``/controller_epoch``, so that a deposed controller changes nothing. A write whose outcome is unknown is decided by
reading again in a living session; a topic's id is the stamp that tells our creation from somebody else's.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar

from brokers.cluster import plans, znodes
from brokers.cluster.loading import children_or_none, list_changes, load, read_or_none
from brokers.cluster.picture import Delta, Picture
from brokers.cluster.plans import Write
from brokers.cluster.requests import (
    Defaults,
    NewPartitions,
    NewTopic,
    Outcome,
    Refused,
    duplicates,
    plan_partitions,
    plan_topic,
)
from brokers.cluster.view import ClusterView, ViewChange
from brokers.cluster.znodes import StatesChanged
from brokers.model import Clock, TopicPartition
from coordination.changes import Pruner, entry
from coordination.election import ControllerMoved, Leadership, fenced_multi
from coordination.store import (
    Delete,
    MultiFailed,
    NoNode,
    Operation,
    SessionExpired,
    Store,
    StoreError,
    TooLarge,
    UnknownOutcome,
)
from coordination.tree import ensure
from wire.errors import ErrorCode

log = logging.getLogger(__name__)

T = TypeVar("T", NewTopic, NewPartitions)

RETRY_SECONDS = 0.1
ATTEMPTS = 10
VIEW_WAIT_MS = 3_000
KEEP_CHANGES = 5_000
KEEP_CHANGES_MS = 15 * 60_000
"""A broker that missed more than this reads everything again."""


class TermOver(Exception):
    """Somebody else is controller, or nobody: this broker may not write any more."""


class StaleState(Exception):
    """The tree isn't as we thought, or we don't know what became of a write: look again.

    ``whole`` asks for a full read: something is there that the change log didn't tell.
    """

    def __init__(self, message: str, *, whole: bool = False) -> None:
        super().__init__(message)
        self.whole = whole


class Reign:
    """See the module. All work runs under one lock, one request or reaction at a time."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        term: Leadership,
        clock: Clock,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self._store = store
        self._view = view
        self._new_id = new_id
        self._lock = asyncio.Lock()
        self._picture = Picture()
        self._deleting: list[str] = []
        self._pruner = Pruner(store, keep_count=KEEP_CHANGES, keep_ms=KEEP_CHANGES_MS, mono_ms=clock.mono_ms)
        self._origin = f"controller epoch {term.epoch}"
        self.term = term
        self.over = False

    # ------------------------------------------------------------ beginning and reacting

    async def begin(self) -> None:
        """Read everything and finish what was left half done; raises TermOver."""
        async with self._lock:
            await self._make_parents()
            await self._look_again(whole=False)
            await self._settle()

    async def _make_parents(self) -> None:
        while True:
            self._check_session()
            try:
                for path in znodes.PERSISTENT_PATHS:
                    await ensure(self._store, path)
                return
            except SessionExpired:
                self._end("the session expired")
            except StoreError as problem:
                log.info("controller: making the tree's parents: %s", problem)
                await asyncio.sleep(RETRY_SECONDS)

    async def react(self) -> None:
        """Set leaders right for the brokers that live now; raises TermOver."""
        async with self._lock:
            await self._settle()

    async def _settle(self) -> None:
        """Complete topics and deletions, then elect. Repeats until nothing is in the way."""
        attempt = 0
        while True:
            try:
                await self._finish_deletions()
                live = self._live()
                await self._perform(plans.missing_states(self._picture, live, self.term.epoch))
                await self._perform(plans.elections(self._picture, live, self.term.epoch))
                return
            except StaleState as problem:
                attempt += 1
                log.info("controller: %s; reading again", problem)
                # a broker seen by us may be in its next life already: our view will hear of it in a moment
                await asyncio.sleep(min(RETRY_SECONDS * attempt, 2.0))
                await self._look_again(whole=problem.whole)

    def absorb(self, change: ViewChange) -> None:
        """Take in states that leaders wrote themselves, as the view learns of them."""
        for tp in change.partitions_changed:
            topic, state = self._view.topics.get(tp.topic), self._view.partition(tp)
            if topic is not None and state is not None:
                self._picture.apply([StatesChanged(tp.topic, topic.id, {tp.partition: state})], Delta())

    def _live(self) -> dict[int, int]:
        return {broker.id: broker.incarnation for broker in self._view.brokers.values()}

    # ------------------------------------------------------------ reading and writing

    async def _look_again(self, *, whole: bool) -> None:
        """Bring our picture up to everything that was written before this call; raises TermOver.

        Our broker's view knows it once it has applied the newest change-log entry, and copying it is instant, where
        reading 10,000 partitions takes seconds. ``whole`` reads them nevertheless.
        """
        while True:
            self._check_session()
            try:
                await self._store.sync(znodes.CONTROLLER_EPOCH)
                _data, stat = await self._store.get(znodes.CONTROLLER_EPOCH)
                if stat.version != self.term.epoch_version:
                    self._end("another controller was elected")
                if whole or not await self._copy_view():
                    loaded = await load(self._store)
                    self._picture, self._deleting = loaded.picture, loaded.deleting
                return
            except NoNode:
                self._end("the controller's epoch is gone")
            except SessionExpired:
                self._end("the session expired")
            except StoreError as problem:
                log.info("controller: reading again after %s", problem)
                await asyncio.sleep(RETRY_SECONDS)

    async def _copy_view(self) -> bool:
        sequences = await list_changes(self._store)
        deleting = await children_or_none(self._store, znodes.DELETE_TOPICS)
        newest = sequences[-1] if sequences else -1
        if not await self._view.wait_until(lambda: self._view.sequence >= newest, VIEW_WAIT_MS):
            return False
        self._picture, self._deleting = self._view.snapshot(), deleting
        return True

    def _check_session(self) -> None:
        session = self._store.session()
        if session is not None and session.session_id != self.term.session_id:
            self._end("the session is another")
        if self.over:
            raise TermOver("the term is over")

    def _end(self, reason: str) -> NoReturn:
        self.over = True
        raise TermOver(reason)

    async def _perform(self, writes: Sequence[Write]) -> None:
        for write in writes:
            await self._write(write)

    async def _write(self, write: Write) -> None:
        """One fenced multi, and its effect on our picture; raises TermOver, StaleState."""
        if self.over:
            raise TermOver("the term is over")
        operations = list(write.operations)
        if write.changes:
            operations.append(entry(znodes.encode_changes(write.changes, self._origin)))
        try:
            await fenced_multi(self._store, self.term, operations)
        except ControllerMoved as problem:
            self._end(str(problem))
        except MultiFailed as problem:
            # a broker's life is the view's to learn; anything else the log should have told us
            lives = problem.path.startswith(znodes.BROKER_INCARNATIONS)
            raise StaleState(str(problem), whole=not lives) from problem
        except SessionExpired:
            self._end("the session expired")
        except TooLarge as problem:
            raise AssertionError("a plan's write passes ZooKeeper's bounds") from problem
        except UnknownOutcome as problem:
            raise StaleState(f"unknown outcome: {problem}") from problem
        self._picture.apply(write.changes, Delta())

    # ------------------------------------------------------------ topics

    async def create_topics(self, topics: Sequence[NewTopic], validate_only: bool) -> list[Outcome]:
        """One outcome per topic, in order; raises TermOver when the term ends before the last is done."""
        return await self._each(topics, lambda new: self._create(new, validate_only))

    async def _each(self, topics: Sequence[T], work: Callable[[T], Awaitable[Outcome]]) -> list[Outcome]:
        """One outcome per topic, in order; a topic that stands twice is refused both times."""
        twice = duplicates([topic.name for topic in topics])
        outcomes = []
        async with self._lock:
            for new in topics:
                if new.name in twice:
                    outcomes.append(Outcome(new.name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
                    continue
                try:
                    outcomes.append(await work(new))
                except Refused as refused:
                    outcomes.append(Outcome(new.name, refused.error, refused.message))
        return outcomes

    async def _create(self, new: NewTopic, validate_only: bool) -> Outcome:
        topic_id = self._topic_id()
        for _ in range(ATTEMPTS):
            made = self._picture.topics.get(new.name)
            if made is not None and made.id == topic_id:
                # an attempt whose answer we never got, or that stopped half-way
                await self._settle()
                return Outcome(new.name, ErrorCode.NONE, None, self._picture.topics.get(new.name, made), topic_id)
            assignment, configs = plan_topic(
                new,
                self._picture,
                deleting=self._deleting,
                brokers=self._view.brokers,
                defaults=self._defaults(),
                start=sum(len(topic.partitions) for topic in self._picture.topics.values()),
            )
            writes = plans.create_topic(
                new.name, topic_id, assignment, configs=configs, picture=self._picture, live=self._live(),
                controller_epoch=self.term.epoch,
            )  # fmt: skip
            if validate_only:
                planned = Picture()
                for write in writes:
                    planned.apply(write.changes, Delta())
                return Outcome(new.name, ErrorCode.NONE, None, planned.topics[new.name])
            try:
                await self._perform(writes)
                return Outcome(new.name, ErrorCode.NONE, None, self._picture.topics[new.name], topic_id)
            except StaleState as problem:
                log.info("creating %s: %s; reading again", new.name, problem)
                await asyncio.sleep(RETRY_SECONDS)
                await self._look_again(whole=problem.whole)
        return Outcome(new.name, ErrorCode.REQUEST_TIMED_OUT, "The cluster's state kept changing; try again.")

    def _topic_id(self) -> uuid.UUID:
        while True:
            made = self._new_id()
            # a leading '-' would look like an option on command lines (Kafka avoids it too)
            if made.int > 1 and not znodes.topic_id_text(made).startswith("-"):
                return made

    def _defaults(self) -> Defaults:
        config = self._view.effective
        return Defaults(config.num_partitions, config.default_replication_factor, config.topic_defaults())

    async def create_partitions(self, topics: Sequence[NewPartitions], validate_only: bool) -> list[Outcome]:
        """One outcome per topic, in order; raises TermOver."""
        return await self._each(topics, lambda new: self._extend(new, validate_only))

    async def _extend(self, new: NewPartitions, validate_only: bool) -> Outcome:
        wanted: uuid.UUID | None = None
        for _ in range(ATTEMPTS):
            topic = self._picture.topics.get(new.name)
            if wanted is not None and topic is not None and topic.id == wanted and len(topic.partitions) == new.count:
                # nobody else extends topics in our term: what stands there is our own attempt
                await self._settle()
                return Outcome(new.name, ErrorCode.NONE, None, topic, topic.id)
            added = plan_partitions(new, self._picture, self._view.brokers)
            assert topic is not None, "plan_partitions refuses unknown topics"
            if validate_only:
                return Outcome(new.name, ErrorCode.NONE, None, topic, topic.id)
            wanted = topic.id
            version = self._picture.topic_versions[new.name]
            try:
                await self._perform(plans.extend_topic(topic, version, added, self._live(), self.term.epoch))
                return Outcome(new.name, ErrorCode.NONE, None, self._picture.topics[new.name], wanted)
            except StaleState as problem:
                log.info("extending %s: %s; reading again", new.name, problem)
                await asyncio.sleep(RETRY_SECONDS)
                await self._look_again(whole=problem.whole)
        return Outcome(new.name, ErrorCode.REQUEST_TIMED_OUT, "The cluster's state kept changing; try again.")

    async def delete_topics(self, topics: Sequence[str | uuid.UUID]) -> list[Outcome]:
        """One outcome per topic (by name or id), in order; raises TermOver."""
        async with self._lock:
            return [await self._delete(wanted) for wanted in topics]

    async def _delete(self, wanted: str | uuid.UUID) -> Outcome:
        name = self._picture.topic_names.get(wanted) if isinstance(wanted, uuid.UUID) else wanted
        topic = self._picture.topics.get(name) if name is not None else None
        if name is None or topic is None:
            if isinstance(wanted, uuid.UUID):
                return Outcome("", ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.", None, wanted)
            return Outcome(
                wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
            )
        for _ in range(ATTEMPTS):
            now = self._picture.topics.get(name)
            if now is None or now.id != topic.id:
                await self._settle()  # the mark may be all that was written
                return Outcome(name, ErrorCode.NONE, None, topic, topic.id)
            has_config = (znodes.CONFIG_TOPICS, name) in self._picture.config_versions
            try:
                await self._perform(plans.delete_topic(now, self._picture.topic_versions[name], has_config))
                return Outcome(name, ErrorCode.NONE, None, topic, topic.id)
            except StaleState as problem:
                log.info("deleting %s: %s; reading again", name, problem)
                await asyncio.sleep(RETRY_SECONDS)
                await self._look_again(whole=problem.whole)
        return Outcome(
            name, ErrorCode.REQUEST_TIMED_OUT, "The cluster's state kept changing; try again.", None, topic.id
        )

    async def _finish_deletions(self) -> None:
        """Go on where a deletion stopped after its mark; raises StaleState, TermOver."""
        for name in list(self._deleting):
            try:
                writes = await self._rest_of_deletion(name)
            except SessionExpired:
                self._end("the session expired")
            except StoreError as problem:
                raise StaleState(str(problem)) from problem
            await self._perform(writes)
            self._deleting.remove(name)
            log.info("finished deleting topic %s", name)

    async def _rest_of_deletion(self, name: str) -> list[Write]:
        tail: list[Operation] = []
        partitions: list[Operation] = []
        found = await read_or_none(self._store, znodes.topic_path(name))
        if found is not None:
            for child in await children_or_none(self._store, znodes.partitions_path(name)):
                tp = TopicPartition(name, int(child))
                if await self._store.exists(znodes.state_path(tp)) is not None:
                    partitions.append(Delete(znodes.state_path(tp)))
                partitions.append(Delete(znodes.partition_path(tp)))
            if await self._store.exists(znodes.partitions_path(name)) is not None:
                tail.append(Delete(znodes.partitions_path(name)))
            tail.append(Delete(znodes.topic_path(name), found[1]))
            if await self._store.exists(znodes.config_path(znodes.CONFIG_TOPICS, name)) is not None:
                tail.append(Delete(znodes.config_path(znodes.CONFIG_TOPICS, name)))
        return plans.finish_deletion(name, partitions, tail)

    # ------------------------------------------------------------ the change log

    async def prune(self) -> None:
        """Delete old change-log entries; raises TermOver."""
        async with self._lock:
            self._check_session()
            try:
                await self._pruner.prune(self.term)
            except ControllerMoved as problem:
                self._end(str(problem))
            except SessionExpired:
                self._end("the session expired")
            except StoreError as problem:
                log.info("pruning the change log: %s", problem)
