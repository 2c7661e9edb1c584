"""What admin requests do to topics: create, extend, delete; and the end of deletions that stopped half-way.

A topic's id is the stamp that tells our creation from somebody else's where an answer was lost.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from brokers.cluster import plans, znodes
from brokers.cluster.loading import children_or_none, read_or_none
from brokers.cluster.picture import Delta, Picture
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
from brokers.cluster.term import StaleState
from brokers.cluster.writes import Write
from brokers.model import TopicInfo, TopicPartition
from coordination.store import Delete, Operation, SessionExpired, StoreError
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from brokers.cluster.reign import Reign

log = logging.getLogger(__name__)

T = TypeVar("T", NewTopic, NewPartitions)

KEPT_CHANGING = "The cluster's state kept changing; try again."


class TopicCommands:
    """The topics of one reign."""

    def __init__(self, reign: Reign, new_id: Callable[[], uuid.UUID]) -> None:
        self._reign = reign
        self._term = reign.term
        self._new_id = new_id

    async def create(self, topics: Sequence[NewTopic], validate_only: bool) -> list[Outcome]:
        """One outcome per topic, in order; raises TermOver when the term ends before the last is done."""
        return await self._each(topics, lambda new: self._create(new, validate_only))

    async def _each(self, topics: Sequence[T], work: Callable[[T], Awaitable[Outcome]]) -> list[Outcome]:
        """One outcome per topic, in order; a topic that stands twice is refused both times."""
        twice = duplicates([topic.name for topic in topics])
        outcomes = []
        async with self._term.lock:
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
        term = self._term
        topic_id = self._topic_id()

        async def attempt() -> Outcome:
            made = term.picture.topics.get(new.name)
            if made is not None and made.id == topic_id:
                # an attempt whose answer we never got, or that stopped half-way
                await self._reign.settle()
                return Outcome(new.name, ErrorCode.NONE, None, term.picture.topics.get(new.name, made), topic_id)
            assignment, configs = plan_topic(
                new,
                term.picture,
                deleting=term.deleting,
                brokers=term.view.brokers,
                defaults=self._defaults(),
                start=sum(len(topic.partitions) for topic in term.picture.topics.values()),
            )
            writes = plans.create_topic(
                new.name, topic_id, assignment, configs=configs, picture=term.picture, lives=term.lives,
                controller_epoch=term.epoch,
            )  # fmt: skip
            if validate_only:
                planned = Picture()
                for write in writes:
                    planned.apply(write.changes, Delta())
                return Outcome(new.name, ErrorCode.NONE, None, planned.topics[new.name])
            await term.perform(writes)
            return Outcome(new.name, ErrorCode.NONE, None, term.picture.topics[new.name], topic_id)

        outcome = await term.persist(f"creating {new.name}", attempt)
        return outcome or Outcome(new.name, ErrorCode.REQUEST_TIMED_OUT, KEPT_CHANGING)

    def _topic_id(self) -> uuid.UUID:
        while True:
            made = self._new_id()
            # a leading '-' would look like an option on command lines (Kafka avoids it too)
            if made.int > 1 and not znodes.topic_id_text(made).startswith("-"):
                return made

    def _defaults(self) -> Defaults:
        config = self._term.view.effective
        return Defaults(config.num_partitions, config.default_replication_factor, config.topic_defaults())

    async def extend(self, topics: Sequence[NewPartitions], validate_only: bool) -> list[Outcome]:
        """One outcome per topic, in order; raises TermOver."""
        return await self._each(topics, lambda new: self._extend(new, validate_only))

    async def _extend(self, new: NewPartitions, validate_only: bool) -> Outcome:
        term = self._term
        wanted: uuid.UUID | None = None

        async def attempt() -> Outcome:
            nonlocal wanted
            topic = term.picture.topics.get(new.name)
            if wanted is not None and topic is not None and topic.id == wanted and len(topic.partitions) == new.count:
                # nobody else extends topics in our term: what stands there is our own attempt
                await self._reign.settle()
                return Outcome(new.name, ErrorCode.NONE, None, topic, topic.id)
            added = plan_partitions(new, term.picture, term.view.brokers)
            assert topic is not None, "plan_partitions refuses unknown topics"
            if validate_only:
                return Outcome(new.name, ErrorCode.NONE, None, topic, topic.id)
            wanted = topic.id
            version = term.picture.topic_versions[new.name]
            await term.perform(plans.extend_topic(topic, version, added, term.lives, term.epoch))
            return Outcome(new.name, ErrorCode.NONE, None, term.picture.topics[new.name], wanted)

        outcome = await term.persist(f"extending {new.name}", attempt)
        return outcome or Outcome(new.name, ErrorCode.REQUEST_TIMED_OUT, KEPT_CHANGING)

    async def delete(self, topics: Sequence[str | uuid.UUID]) -> list[Outcome]:
        """One outcome per topic (by name or id), in order; raises TermOver."""
        async with self._term.lock:
            return [await self._delete(wanted) for wanted in topics]

    async def _delete(self, wanted: str | uuid.UUID) -> Outcome:
        picture = self._term.picture
        name = picture.topic_names.get(wanted) if isinstance(wanted, uuid.UUID) else wanted
        topic = picture.topics.get(name) if name is not None else None
        if name is None or topic is None:
            if isinstance(wanted, uuid.UUID):
                return Outcome("", ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.", None, wanted)
            return Outcome(
                wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
            )
        done = await self._term.persist(f"deleting {name}", lambda: self._delete_once(name, topic))
        return done or Outcome(name, ErrorCode.REQUEST_TIMED_OUT, KEPT_CHANGING, None, topic.id)

    async def _delete_once(self, name: str, topic: TopicInfo) -> Outcome:
        picture = self._term.picture
        now = picture.topics.get(name)
        if now is None or now.id != topic.id:
            await self._reign.settle()  # the mark may be all that was written
        else:
            has_config = (znodes.CONFIG_TOPICS, name) in picture.config_versions
            await self._term.perform(plans.delete_topic(now, picture.topic_versions[name], has_config))
        return Outcome(name, ErrorCode.NONE, None, topic, topic.id)

    async def finish_deletions(self) -> None:
        """Go on where a deletion stopped after its mark; raises StaleState, TermOver."""
        for name in list(self._term.deleting):
            try:
                writes = await self._rest_of_deletion(name)
            except SessionExpired:
                self._term.end("the session expired")
            except StoreError as problem:
                raise StaleState(str(problem)) from problem
            await self._term.perform(writes)
            self._term.deleting.remove(name)
            log.info("finished deleting topic %s", name)

    async def _rest_of_deletion(self, name: str) -> list[Write]:
        store = self._term.store
        tail: list[Operation] = []
        partitions: list[Operation] = []
        found = await read_or_none(store, znodes.topic_path(name))
        if found is not None:
            for child in await children_or_none(store, znodes.partitions_path(name)):
                tp = TopicPartition(name, int(child))
                if await store.exists(znodes.state_path(tp)) is not None:
                    partitions.append(Delete(znodes.state_path(tp)))
                partitions.append(Delete(znodes.partition_path(tp)))
            if await store.exists(znodes.partitions_path(name)) is not None:
                tail.append(Delete(znodes.partitions_path(name)))
            tail.append(Delete(znodes.topic_path(name), found[1]))
            if await store.exists(znodes.config_path(znodes.CONFIG_TOPICS, name)) is not None:
                tail.append(Delete(znodes.config_path(znodes.CONFIG_TOPICS, name)))
        return plans.finish_deletion(name, partitions, tail)
