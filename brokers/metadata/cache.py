"""The broker's metadata cache: topics, leaders, configurations, registered brokers, the controller.

Built from one full read and then from the change log; brokers and controller come from watches. It changes only on the
loop, by whole change-log entries, and notifies its listeners afterwards. Before the first full read ``ready`` is false
and no request may be answered from it: a short list of brokers makes clients drop the others. While ZooKeeper is
unreachable the cache keeps its content.

``coordination.tree`` rejects a tree that Kafka used first. The cache detects foreign brokers that come later (Apache
Kafka's, with ZooKeeper or in a migration to KRaft), because a Kafka broker accepts any tree with a cluster id. Two
kinds of brokers that manage the same topics would destroy each other's logs, so while there are foreign ones, no
fleetlog broker starts and no fleetlog controller acts.

Source: ADR 0003; the watch rules are those of ``coordination.store``; kafka/zk/ZkData.scala of Kafka 3.9
(BrokerIdZNode, ControllerZNode); KIP-866 for the migration.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fleetlog.brokers.config import BROKER_SETTINGS, BrokerConfig, ConfigError, TopicConfig
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.image import MetadataDelta, MetadataImage, difference
from fleetlog.brokers.metadata.loading import (
    children_or_none,
    gather_bounded,
    list_changes,
    load_metadata,
    read_changes,
    read_or_none,
)
from fleetlog.brokers.metadata.tree_guard import TreeGuard
from fleetlog.brokers.metadata.watcher import ZnodeWatcher
from fleetlog.brokers.metadata.znodes import BadZnode, Change, FeaturesChanged, TopicDeleted
from fleetlog.brokers.model import BrokerInfo, PartitionState, TopicInfo, TopicPartition
from fleetlog.brokers.setting_kinds import attribute
from fleetlog.coordination.registration import broker_path, incarnation_path
from fleetlog.coordination.store import NoNode, SessionEvent, SessionState, Store
from fleetlog.coordination.tree import BROKER_IDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetlog.brokers.timers import Timers

logger = logging.getLogger(__name__)

S = TypeVar("S")

REMEDY = (
    "brokers of two kinds on one ZooKeeper tree destroy each other's logs; stop those of Apache Kafka, or give each"
    " kind a path of its own (zookeeper.connect=host:port/path)"
)


def foreign_registration(path: str, data: bytes) -> str | None:
    """The error of a broker registration that fleetlog did not write, or None."""
    document = _document(data)
    if document is None or "incarnation" in document:
        return None  # an unreadable document is another error
    return f"{path} was not written by fleetlog: {REMEDY}"


def foreign_controller(data: bytes) -> str | None:
    """The error of a controller znode that belongs to a KRaft controller, or None."""
    document = _document(data)
    epoch = document.get("kraftControllerEpoch", -1) if document is not None else -1
    if isinstance(epoch, int) and epoch < 0:
        return None
    return f"{znodes.CONTROLLER} belongs to a KRaft controller of Apache Kafka (epoch {epoch}): {REMEDY}"


def _document(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


DEPARTED_MS = 3000
"""How long a broker is kept after its registration ended: three of librdkafka's periodic Metadata requests."""
NO_CONTROLLER = -1
DELETIONS_MAX = 10_000
"""So many deleted topics are remembered. The log of one that is forgotten is put aside instead of being deleted."""


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """The changes of one step of the cache. Listeners read the new values from the cache.

    ``deleted`` has the last content of deleted topics (a topic created again under the same name has another id and is
    in ``topics_changed`` too). ``reloaded``: steps in between were skipped.
    """

    topics_changed: tuple[str, ...] = ()
    deleted: tuple[TopicInfo, ...] = ()
    partitions_changed: tuple[TopicPartition, ...] = ()
    configs_changed: tuple[tuple[str, str], ...] = ()
    brokers_changed: bool = False
    controller_changed: bool = False
    reloaded: bool = False


Listener = Callable[[MetadataChange], None]


class MetadataCache:
    """See the module. ``config`` is this broker's static configuration; dynamic ones override it.

    ``foreign`` is the evidence of foreign brokers in the tree, or None. ``departed``
    are the brokers whose registrations ended within the last ``DEPARTED_MS`` milliseconds.
    """

    def __init__(self, store: Store, config: BrokerConfig, timers: Timers, guard: TreeGuard | None = None) -> None:
        self.guard = guard or TreeGuard(store, config.broker_id)
        self._store = store
        self._timers = timers
        self.static = config
        self.image = MetadataImage()
        self._sequence = -1
        self._reconnected = False
        self._deletions: dict[uuid.UUID, None] = {}
        self._listeners: list[Listener] = []
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.watcher = ZnodeWatcher(store, "metadata", self._read)
        self._topic_configs: dict[str, TopicConfig] = {}
        self._group_settings: dict[tuple[Callable[..., Any], str], Any] = {}
        self.cluster_id = ""
        self.controller_id = NO_CONTROLLER
        self.ready = False
        self.foreign: str | None = None
        self._foreign: list[str] = []
        self.brokers: dict[int, BrokerInfo] = {}
        self.departed: dict[int, BrokerInfo] = {}
        self.features: dict[str, int] = {}
        self.features_epoch = -1
        self.effective = config

    # ------------------------------------------------------------ reading

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """All topics by name."""
        return self.image.topics

    @property
    def topic_names(self) -> Mapping[uuid.UUID, str]:
        """Names by topic id."""
        return self.image.topic_names

    @property
    def sequence(self) -> int:
        """The number of the last applied change-log entry."""
        return self._sequence

    def partition(self, tp: TopicPartition) -> PartitionState | None:
        """The partition's state, or None if there is no such partition."""
        return self.image.partition(tp)

    def was_deleted(self, topic_id: uuid.UUID) -> bool:
        """Whether the deletion of this topic was seen: in the change log, or by its mark in the tree.

        A topic that is only missing may be missing because ZooKeeper was restored from an older copy.
        """
        return topic_id in self._deletions

    def note_deletions(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """These topics are deleted."""
        self._deletions.update(dict.fromkeys(topic_ids))
        while len(self._deletions) > DELETIONS_MAX:
            del self._deletions[next(iter(self._deletions))]

    def snapshot(self) -> MetadataImage:
        """A copy of topics and configurations, for independent updates."""
        return self.image.copy()

    def dynamic_config(self, kind: str, entity: str) -> Mapping[str, str]:
        """The dynamic configuration stored for an entity; empty if there is none."""
        return self.image.configs.get((kind, entity), {})

    def config_version(self, kind: str, entity: str) -> int | None:
        """Version of the entity's configuration znode, or None if there is no znode."""
        return self.image.config_versions.get((kind, entity))

    def config_entities(self, kind: str) -> list[str]:
        """Names of the entities of that kind that have a dynamic configuration, sorted."""
        return sorted(entity for entity_kind, entity in self.image.configs if entity_kind == kind)

    def group_settings(self, of: Callable[[BrokerConfig, Mapping[str, str]], S], group_id: str) -> S:
        """``of(broker's configuration, group's own)``, made once for all groups without own settings until one changes.

        A group's own settings are those of config resource GROUP.
        """
        own = self.dynamic_config(znodes.CONFIG_GROUPS, group_id)
        key = (of, group_id if own else "")
        settings = self._group_settings.get(key)
        if settings is None:
            settings = self._group_settings[key] = of(self.effective, own)
        made: S = settings
        return made

    def topic_config(self, name: str) -> TopicConfig:
        """The topic's complete configuration; the broker's (dynamic) defaults for an unknown topic."""
        config = self._topic_configs.get(name)
        if config is None:
            topic = self.topics.get(name)
            config = self._parse_topic_config(name, topic.configs if topic is not None else {})
            if topic is not None:
                self._topic_configs[name] = config
        return config

    def _parse_topic_config(self, name: str, overrides: Mapping[str, str]) -> TopicConfig:
        config = self.effective.topic_defaults()
        for key, value in overrides.items():
            try:
                config = TopicConfig.parse({key: value}, config)
            except ConfigError as problem:
                # written by a newer fleetlog or by hand: one bad setting must not make the topic unusable
                logger.warning("topic %s: ignoring a setting: %s", name, problem)
        return config

    # ------------------------------------------------------------ listening

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener`` after each step, on the loop; it must not block. Its exceptions are logged."""
        self._listeners.append(listener)

    async def wait_until(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until the condition holds, checked after each step; False after the timeout."""
        if condition():
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (condition, future)
        self._waiters.append(entry)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await future
            return True
        except TimeoutError:
            return condition()
        finally:
            self._waiters.remove(entry)

    async def refreshed(self, timeout_ms: int) -> bool:
        """Wait until the cache has everything that was written before this call; False after the timeout.

        Raises StoreError if ZooKeeper cannot be read.
        """
        await self._store.sync(znodes.CHANGES)
        sequences = await list_changes(self._store)
        newest = sequences[-1] if sequences else -1
        return await self.wait_until(lambda: self._sequence >= newest, timeout_ms)

    def _notify(self, change: MetadataChange) -> None:
        if change.configs_changed or change.reloaded:
            self._apply_dynamic_configs(change)
        for name in change.topics_changed:
            self._topic_configs.pop(name, None)
        for topic in change.deleted:
            self._topic_configs.pop(topic.name, None)
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:  # one listener's bug must not keep the change from the others
                logger.exception("metadata cache: a listener failed")
        for condition, future in list(self._waiters):
            if not future.done() and condition():
                future.set_result(None)

    def _apply_dynamic_configs(self, change: MetadataChange) -> None:
        kinds = {kind for kind, _ in change.configs_changed}
        self._group_settings.clear()
        if znodes.CONFIG_BROKERS in kinds or change.reloaded:
            own = str(self.static.broker_id)
            self.effective = self.broker_with(own, self.dynamic_config(znodes.CONFIG_BROKERS, own))
            self._topic_configs.clear()

    def broker_with(self, entity: str, settings: Mapping[str, str]) -> BrokerConfig:
        """A broker's configuration if ``settings`` were those of the entity; its file is taken for this one's."""
        of_all, own = znodes.DEFAULT_ENTITY, str(self.static.broker_id)
        if entity != of_all:
            return effective_config(self.static, self.dynamic_config(znodes.CONFIG_BROKERS, of_all), settings)
        return effective_config(self.static, settings, self.dynamic_config(znodes.CONFIG_BROKERS, own))

    # ------------------------------------------------------------ following ZooKeeper

    async def start(self) -> None:
        """Read all metadata and follow its changes; returns when ``ready``, however long ZooKeeper is unreachable.

        Raises BadZnode, also if foreign brokers use the tree.
        """
        self._store.on_session(self._session_changed)
        await self.watcher.start()

    async def stop(self) -> None:
        """Stop following; the content stays."""
        await self.watcher.stop()

    def _session_changed(self, event: SessionEvent) -> None:
        self._reconnected |= event.state is SessionState.CONNECTED

    async def _read(self, whole: bool) -> None:
        sequences = await list_changes(self._store, self.watcher.watch)
        self._foreign = []
        brokers = await self._read_brokers()
        controller_id = await self._read_controller()
        if not self.cluster_id:
            self.cluster_id = await self._read_cluster_id()
        newest = sequences[-1] if sequences else -1
        whole = whole or self.guard.behind is not None
        if whole or self._reconnected or newest < self._sequence or controller_id != self.controller_id:
            self._reconnected = False  # a session may outlive that its ensemble is restored from a copy
            try:
                await self.guard.check()
            except BaseException:
                self._reconnected = True
                raise
        epoch = self.features_epoch
        delta, reloaded = await self._read_changes(sequences, whole)
        others_changed = self.features_epoch != epoch
        self.guard.note(change=self._sequence)
        others_changed |= self._note_foreign()
        brokers_changed = brokers != self.brokers
        controller_changed = controller_id != self.controller_id
        if brokers_changed:  # the same object while nothing changed: users detect changes by its identity
            self._remember_departed(brokers)
            self.brokers = brokers
        self.controller_id = controller_id
        first = not self.ready
        self.ready = True
        if delta or reloaded or brokers_changed or controller_changed or others_changed or first:
            self._notify(_change_of(delta, reloaded, brokers_changed or others_changed, controller_changed))

    def _remember_departed(self, living: Mapping[int, BrokerInfo]) -> None:
        for broker_id in living:
            self.departed.pop(broker_id, None)
        for broker_id, broker in self.brokers.items():
            if broker_id not in living:
                self.departed[broker_id] = broker
                self._timers.later(DEPARTED_MS, partial(self._forget_departed, broker))

    def _forget_departed(self, broker: BrokerInfo) -> None:
        if self.departed.get(broker.id) is broker:
            del self.departed[broker.id]

    def _note_foreign(self) -> bool:
        """Foreign brokers: none may exist at the start; later ones stop the controllers. True if this changed."""
        before, self.foreign = self.foreign, self._foreign[0] if self._foreign else None
        if self.foreign is not None and not self.ready:
            raise BadZnode(*self.foreign.split(" ", 1))
        if self.foreign != before:
            logger.error("%s", self.foreign or "the foreign brokers are gone: the controller may act again")
        return self.foreign != before

    def _has_gap(self, sequences: list[int], news: list[int]) -> bool:
        last = sequences[-1] if sequences else -1
        return last < self._sequence or news != list(range(self._sequence + 1, self._sequence + 1 + len(news)))

    async def _read_changes(self, sequences: list[int], whole: bool) -> tuple[MetadataDelta, bool]:
        delta = MetadataDelta()
        news = [sequence for sequence in sequences if sequence > self._sequence]
        if not whole and not self._has_gap(sequences, news):
            entries = await read_changes(self._store, news)
            if entries is not None:
                for sequence, (changes, made_ms) in zip(news, entries, strict=True):
                    self._apply(sequence, changes, delta)
                    self.guard.note(change=sequence, change_ms=made_ms)
                return delta, False
        if not whole:
            logger.info("gap in the change log after entry %d: reading all metadata again", self._sequence)
        loaded = await load_metadata(self._store)
        await self._read_features()  # may fail: what is read anew must not be in the image before listeners hear of it
        delta = difference(self.image, loaded.image)
        self.image, self._sequence = loaded.image, loaded.sequence
        self.note_deletions(loaded.deleted)
        return delta, True

    def _apply(self, sequence: int, entry: Iterable[Change], delta: MetadataDelta) -> None:
        assert sequence == self._sequence + 1, "change-log entries are applied in order"
        changes = list(entry)
        self.image.apply(changes, delta)
        for change in changes:
            if isinstance(change, FeaturesChanged) and change.version > self.features_epoch:
                self.features, self.features_epoch = dict(change.levels), change.version
        self.note_deletions(change.id for change in changes if isinstance(change, TopicDeleted))
        self._sequence = sequence

    async def _read_brokers(self) -> dict[int, BrokerInfo]:
        ids = [int(name) for name in await children_or_none(self._store, BROKER_IDS, self.watcher.watch)]
        brokers = await gather_bounded(sorted(ids), self._read_broker)
        return {broker.id: broker for broker in brokers if broker is not None}

    async def _read_broker(self, broker_id: int) -> BrokerInfo | None:
        path = broker_path(broker_id)
        try:
            data, stat = await self._store.get(path)
            incarnation = await self._store.exists(incarnation_path(broker_id))
        except NoNode:
            return None
        known = self.brokers.get(broker_id)
        if known is not None and known.epoch == stat.czxid:
            return known
        wrong = foreign_registration(path, data)
        if wrong is not None:
            self._foreign.append(wrong)
            return None
        return znodes.decode_broker(path, data, stat.czxid, incarnation.version if incarnation is not None else 0)

    async def _read_controller(self) -> int:
        try:
            data, _stat = await self._store.get(znodes.CONTROLLER, self.watcher.watch)
        except NoNode:
            if await self._store.exists(znodes.CONTROLLER, self.watcher.watch) is not None:
                self.watcher.read_soon()
            return NO_CONTROLLER
        wrong = foreign_controller(data)
        if wrong is not None:
            self._foreign.append(wrong)
        return znodes.decode_controller(data)

    async def _read_cluster_id(self) -> str:
        row = await read_or_none(self._store, znodes.CLUSTER_ID)
        return "" if row is None else znodes.decode_cluster_id(row[0])

    async def _read_features(self) -> None:
        row = await read_or_none(self._store, znodes.FEATURE)
        self.features, self.features_epoch = ({}, -1) if row is None else (znodes.decode_features(row[0]), row[1])


def _change_of(delta: MetadataDelta, reloaded: bool, brokers_changed: bool, controller_changed: bool) -> MetadataChange:
    return MetadataChange(
        topics_changed=tuple(sorted(delta.topics_changed)),
        deleted=tuple(delta.deleted),
        partitions_changed=tuple(sorted(delta.partitions_changed)),
        configs_changed=tuple(sorted(delta.configs_changed)),
        brokers_changed=brokers_changed,
        controller_changed=controller_changed,
        reloaded=reloaded,
    )


def effective_config(static: BrokerConfig, defaults: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
    """The static configuration, overridden by the live settings of ``<default>`` and then of the broker itself."""
    values = {}
    for name, text in {**defaults, **own}.items():
        row = BROKER_SETTINGS.get(name)
        if row is None or not row.live or row.inert:
            continue
        try:
            values[attribute(name)] = row.parse(text)
        except ConfigError as problem:
            logger.warning("ignoring a dynamic broker setting: %s", problem)
    return dataclasses.replace(static, **values) if values else static
