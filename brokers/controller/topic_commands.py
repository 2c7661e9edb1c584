"""Admin requests on topics: create, extend, delete; and the completion of interrupted deletions.

After a lost answer the topic's id tells this controller's creation from another one's.

Absent brokers are known to the cluster, but without a registration at present: each registration leaves a record in the
persistent znode that counts the broker's incarnations. If the registered
brokers cannot hold all replicas of a new topic, absent brokers get some, as Kafka 4 places replicas on fenced brokers.
The in-sync sets start with the registered brokers. A broker stops counting as absent when it holds no replica and its
last registration is a week old.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from fleetlog.brokers.config import TOPIC_SETTINGS
from fleetlog.brokers.controller import plans
from fleetlog.brokers.controller.context import ControllerContext, Settle
from fleetlog.brokers.controller.deletions import UnconfirmedDeletions
from fleetlog.brokers.controller.requests import (
    MAX_NEW_PARTITIONS,
    Defaults,
    NewPartitions,
    NewTopic,
    Refused,
    TopicOutcome,
    duplicates,
    new_partitions,
    plan_partitions,
    plan_topic,
    too_many,
)
from fleetlog.brokers.controller.writes import MAX_TOPIC_BYTES, MultiWrite, size_of_topic, topic_znode
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.features import TIERING_VERSION
from fleetlog.brokers.metadata.image import MetadataImage, stateless
from fleetlog.brokers.metadata.loading import children_or_none, read_many, read_or_none
from fleetlog.brokers.metadata.znodes import TopicZnode
from fleetlog.brokers.model import BrokerId, BrokerInfo, TopicInfo, TopicPartition, random_id
from fleetlog.brokers.setting_kinds import without_effect
from fleetlog.coordination.registration import incarnation_path
from fleetlog.coordination.store import Delete, Operation, Store
from fleetlog.coordination.tree import INCARNATIONS
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)


REMEMBERED_MS = 7 * 86_400_000
"""How long after its last registration a broker without a replica counts as absent."""


async def read_known(store: Store, image: MetadataImage, now_ms: int) -> list[BrokerInfo]:
    """The known brokers, by id: those without a registration are absent. ``now_ms`` is wall time; raises StoreError.

    Which ones are registered may change while this reads, and afterwards: compare when you use them.
    """
    holding: set[int] | None = None
    known = []
    ids = sorted(int(name) for name in await children_or_none(store, INCARNATIONS) if name.isdigit())
    for broker_id, row in zip(ids, await read_many(store, [incarnation_path(b) for b in ids]), strict=True):
        if row is None or row[1].version == 0:
            continue  # it never registered
        record = _record(row[0])
        registered_ms = record.get("timestamp")
        if not isinstance(registered_ms, int) or now_ms - registered_ms > REMEMBERED_MS:
            if holding is None:
                holding = {b for topic in image.topics.values() for state in topic.partitions for b in state.replicas}
            if broker_id not in holding:
                continue
        known.append(_broker(broker_id, row[1].version, record))
    return known


def _record(data: bytes) -> dict[str, object]:
    try:
        record = json.loads(data) if data else {}
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _broker(broker_id: int, incarnation: int, record: dict[str, object]) -> BrokerInfo:
    rack, domain = record.get("rack"), record.get("failure_domain")
    return BrokerInfo(
        BrokerId(broker_id),
        -1,
        incarnation,
        (),
        rack if isinstance(rack, str) else None,
        failure_domain=domain if isinstance(domain, str) else None,
    )


T = TypeVar("T", NewTopic, NewPartitions)
P = TypeVar("P")

_WANTS_BROKERS = (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICATION_ASSIGNMENT)

Gone = Callable[[], bool]

UNKNOWN_PER_TURN = 100
"""Topics to delete after which the loop gets a turn, also if no write had to be awaited."""
CLIENT_GONE = "The client closed its connection before this topic's turn came."
KEPT_CHANGING = "The cluster's state kept changing; try again."


def check_room(name: str, topic: TopicZnode) -> None:
    """Raises Refused if the topic's assignment does not fit into one znode."""
    size = size_of_topic(topic)
    if size > MAX_TOPIC_BYTES:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{name}' would have {len(topic.assignment)} partitions, whose assignment takes {size} bytes in"
            f" ZooKeeper, above the limit of {MAX_TOPIC_BYTES} bytes. Use several topics.",
        )


class TopicCommands:
    """The topic commands of one controllership."""

    def __init__(
        self,
        context: ControllerContext,
        settle: Settle,
        new_id: Callable[[], uuid.UUID],
        wall_ms: Callable[[], int],
        unconfirmed: UnconfirmedDeletions,
    ) -> None:
        self._context = context
        self._settle = settle
        self._unconfirmed = unconfirmed
        self._new_id = new_id
        self._wall_ms = wall_ms
        self._known: list[BrokerInfo] | None = None
        """The known brokers, registered or not; read once per request."""

    async def create(
        self, topics: Sequence[NewTopic], validate_only: bool, gone: Gone = lambda: False
    ) -> list[TopicOutcome]:
        """One outcome per topic, in order; raises NotController if the controllership ends before the last is done.

        Once the client is ``gone()`` no further topic is started.
        """
        default = self._defaults().partitions
        counts = [len(new.assignments) or (default if new.partitions == -1 else new.partitions) for new in topics]
        return await self._each(topics, lambda new: self._create(new, validate_only), new_partitions(counts), gone)

    async def _each(
        self, topics: Sequence[T], work: Callable[[T], Awaitable[TopicOutcome]], partitions: int, gone: Gone
    ) -> list[TopicOutcome]:
        """One outcome per topic, in order; a topic that occurs twice is rejected both times.

        ``partitions`` is the number of new partitions of the whole request. The lock is free between two topics, so
        that reactions to failures need not wait for the last of thousands.
        """
        if partitions > MAX_NEW_PARTITIONS:
            return list(too_many((new.name for new in topics), partitions))
        twice = duplicates([topic.name for topic in topics])
        outcomes = []
        self._known = None
        for new in topics:
            await asyncio.sleep(0)
            if new.name in twice:
                outcomes.append(TopicOutcome(new.name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
                continue
            if gone():
                outcomes.append(TopicOutcome(new.name, ErrorCode.REQUEST_TIMED_OUT, CLIENT_GONE))
                continue
            async with self._context.lock:
                try:
                    outcomes.append(await work(new))
                except Refused as refused:
                    outcomes.append(TopicOutcome(new.name, refused.error, refused.message))
        return outcomes

    async def _create(self, new: NewTopic, validate_only: bool) -> TopicOutcome:
        context = self._context
        topic_id = self._topic_id()

        async def attempt() -> TopicOutcome:
            made = context.image.topics.get(new.name)
            if made is not None and made.id == topic_id:
                # an earlier attempt whose answer was lost, or that stopped half-way
                await self._settle(None)
                return TopicOutcome(new.name, ErrorCode.NONE, None, context.image.topics.get(new.name, made), topic_id)
            assignment, configs = await self._with_absent(
                lambda absent: plan_topic(
                    new,
                    context.image,
                    deleting=self._unconfirmed,
                    brokers=context.metadata.brokers,
                    defaults=self._defaults(),
                    start=sum(len(topic.partitions) for topic in context.image.topics.values()),
                    absent=absent,
                )
            )
            check_room(new.name, TopicZnode(topic_id, assignment))
            if validate_only:
                states = tuple(stateless(replicas) for replicas in assignment)
                return TopicOutcome(new.name, ErrorCode.NONE, None, TopicInfo(new.name, topic_id, states, configs))
            writes = plans.create_topic(
                new.name, topic_id, assignment, configs=configs, image=context.image, live_brokers=context.live_brokers,
                controller_epoch=context.epoch,
            )  # fmt: skip
            await context.perform(writes)
            inert = without_effect(configs, TOPIC_SETTINGS)
            if inert:
                logger.warning(
                    "topic %s: settings stored, but without effect in fleetlog: %s", new.name, ", ".join(inert)
                )
            return TopicOutcome(new.name, ErrorCode.NONE, None, context.image.topics[new.name], topic_id)

        outcome = await context.persist(f"creating {new.name}", attempt)
        return outcome or TopicOutcome(new.name, ErrorCode.REQUEST_TIMED_OUT, KEPT_CHANGING)

    async def _with_absent(self, plan: Callable[[Sequence[BrokerInfo]], P]) -> P:
        """The plan with the live brokers, or, if these don't suffice, with absent ones as well; raises Refused."""
        try:
            return plan(())
        except Refused as refused:
            if refused.error not in _WANTS_BROKERS:
                raise
            context = self._context
            if self._known is None:
                self._known = await context.read_now(read_known(context.store, context.image, self._wall_ms()))
            # Now, not when they were read: brokers come and go in the meantime.
            absent = [broker for broker in self._known if broker.id not in context.metadata.brokers]
            planned = plan(absent)
            if absent:
                logger.info(
                    "%s Placing replicas on absent brokers as well: %s", refused.message, [b.id for b in absent]
                )
            return planned

    def _topic_id(self) -> uuid.UUID:
        return random_id(self._new_id)

    def _defaults(self) -> Defaults:
        metadata = self._context.metadata
        config, features = metadata.effective, metadata.features
        return Defaults(config.num_partitions, config.default_replication_factor, config.topic_defaults(), features)

    async def extend(
        self, topics: Sequence[NewPartitions], validate_only: bool, gone: Gone = lambda: False
    ) -> list[TopicOutcome]:
        """One outcome per topic, in order; raises NotController. None is started once the client is ``gone()``."""
        known = self._context.image.topics
        counts = [new.count - len(known[new.name].partitions) for new in topics if new.name in known]
        return await self._each(topics, lambda new: self._extend(new, validate_only), new_partitions(counts), gone)

    async def _extend(self, new: NewPartitions, validate_only: bool) -> TopicOutcome:
        context = self._context
        wanted: uuid.UUID | None = None

        async def attempt() -> TopicOutcome:
            nonlocal wanted
            topic = context.image.topics.get(new.name)
            if wanted is not None and topic is not None and topic.id == wanted and len(topic.partitions) == new.count:
                # only this controller extends topics in its epoch: this is its own earlier attempt
                await self._settle(None)
                return TopicOutcome(new.name, ErrorCode.NONE, None, topic, topic.id)
            added = await self._with_absent(
                lambda absent: plan_partitions(new, context.image, context.metadata.brokers, absent)
            )
            assert topic is not None, "plan_partitions refuses unknown topics"
            present = topic_znode(topic)
            check_room(new.name, replace(present, assignment=present.assignment + added))
            if validate_only:
                return TopicOutcome(new.name, ErrorCode.NONE, None, topic, topic.id)
            wanted = topic.id
            version = context.image.topic_versions[new.name]
            await context.perform(plans.extend_topic(topic, version, added, context.live_brokers, context.epoch))
            return TopicOutcome(new.name, ErrorCode.NONE, None, context.image.topics[new.name], wanted)

        outcome = await context.persist(f"extending {new.name}", attempt)
        return outcome or TopicOutcome(new.name, ErrorCode.REQUEST_TIMED_OUT, KEPT_CHANGING)

    async def delete(self, topics: Sequence[str | uuid.UUID], gone: Gone = lambda: False) -> list[TopicOutcome]:
        """One outcome per topic (by name or id), in order, when live brokers have confirmed; raises NotController.

        None is started once the client is ``gone()``.
        """
        outcomes: list[TopicOutcome] = []
        await self._delete_each(topics, gone, outcomes)
        await self._unconfirmed.confirmed([done.name for done in outcomes if done.ok])
        return outcomes

    async def _delete_each(self, topics: Sequence[str | uuid.UUID], gone: Gone, outcomes: list[TopicOutcome]) -> None:
        for number, wanted in enumerate(topics):
            if number % UNKNOWN_PER_TURN == 0:
                await asyncio.sleep(0)
            if gone():
                name, topic_id = (wanted, None) if isinstance(wanted, str) else ("", wanted)
                outcomes.append(TopicOutcome(name, ErrorCode.REQUEST_TIMED_OUT, CLIENT_GONE, None, topic_id))
                continue
            async with self._context.lock:
                outcomes.append(await self._delete(wanted))

    async def _delete(self, wanted: str | uuid.UUID) -> TopicOutcome:
        image = self._context.image
        name = image.topic_names.get(wanted) if isinstance(wanted, uuid.UUID) else wanted
        topic = image.topics.get(name) if name is not None else None
        if name is None or topic is None:
            if isinstance(wanted, uuid.UUID):
                return TopicOutcome(
                    "", ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.", None, wanted
                )
            return TopicOutcome(
                wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
            )
        done = None
        try:
            done = await self._context.persist(f"deleting {name}", lambda: self._delete_once(name, topic))
        finally:
            if topic.id not in self._context.image.topic_names:  # the first of its writes was done, at least
                self._unconfirmed.add(name, topic.id)
                if done is None and name not in self._context.deleting:
                    self._context.deleting.append(name)  # the next reaction does the rest
        return done or TopicOutcome(name, ErrorCode.REQUEST_TIMED_OUT, KEPT_CHANGING, None, topic.id)

    async def _delete_once(self, name: str, topic: TopicInfo) -> TopicOutcome:
        image = self._context.image
        now = image.topics.get(name)
        if now is None or now.id != topic.id:
            await self._settle(None)  # perhaps only the deletion mark was written
        else:
            has_config = (znodes.CONFIG_TOPICS, name) in image.config_versions
            marked = await self._context.read_now(read_or_none(self._context.store, znodes.deleted_topic_path(name)))
            plan = plans.delete_topic(
                now, image.topic_versions[name], has_config, taken=marked is not None, tiered=self._in_bucket(now)
            )
            await self._context.perform(plan)
        return TopicOutcome(name, ErrorCode.NONE, None, topic, topic.id)

    def _in_bucket(self, topic: TopicInfo) -> bool:
        """Whether there may be objects of it."""
        metadata = self._context.metadata
        if metadata.features.get(TIERING_VERSION, 0) < 1:
            return False
        config = metadata.topic_config(topic.name)
        return config.tiers or config.ends_tier

    async def finish_deletions(self) -> None:
        """Complete deletions that stopped after their mark; raises StaleState, NotController."""
        for name in list(self._context.deleting):
            await self._context.perform(await self._context.read_now(self._rest_of_deletion(name)))
            self._context.deleting.remove(name)
            logger.info("finished deleting topic %s", name)

    async def _rest_of_deletion(self, name: str) -> list[MultiWrite]:
        store = self._context.store
        tail: list[Operation] = []
        partitions: list[Operation] = []
        row = await read_or_none(store, znodes.topic_path(name))
        if row is not None:
            for child in await children_or_none(store, znodes.partitions_path(name)):
                tp = TopicPartition(name, int(child))
                if await store.exists(znodes.state_path(tp)) is not None:
                    partitions.append(Delete(znodes.state_path(tp)))
                partitions.append(Delete(znodes.partition_path(tp)))
            if await store.exists(znodes.partitions_path(name)) is not None:
                tail.append(Delete(znodes.partitions_path(name)))
            tail.append(Delete(znodes.topic_path(name), row[1]))
            if await store.exists(znodes.config_path(znodes.CONFIG_TOPICS, name)) is not None:
                tail.append(Delete(znodes.config_path(znodes.CONFIG_TOPICS, name)))
        return plans.finish_deletion(name, partitions, tail)
