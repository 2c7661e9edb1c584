"""The metadata image: topics, partition states and configurations as values, and the application of changes. Pure.

Contents have znode versions, and only newer ones apply. The topic id distinguishes a topic from a later one of the same
name, whose versions start again at 0.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fleetlog.brokers.metadata.znodes import (
    CONFIG_TOPICS,
    Change,
    ConfigChanged,
    StatesChanged,
    TopicChanged,
    TopicDeleted,
    TopicZnode,
)
from fleetlog.brokers.model import NO_LEADER, BrokerId, PartitionState, TopicInfo, TopicPartition

NO_STATE_EPOCH = -1
"""The partition epoch before the state znode is written."""


@dataclass(slots=True)
class MetadataDelta:
    """Names of changed entities, collected while changes are applied. ``deleted`` has the last content of topics."""

    topics_changed: set[str] = field(default_factory=set)
    deleted: list[TopicInfo] = field(default_factory=list)
    partitions_changed: set[TopicPartition] = field(default_factory=set)
    configs_changed: set[tuple[str, str]] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.topics_changed or self.deleted or self.partitions_changed or self.configs_changed)


def stateless(replicas: tuple[BrokerId, ...]) -> PartitionState:
    """A partition that is assigned but has no state znode yet: it has no leader."""
    return PartitionState(
        replicas=replicas,
        leader=NO_LEADER,
        leader_epoch=-1,
        isr=(),
        partition_epoch=NO_STATE_EPOCH,
        controller_epoch=-1,
    )


def _assigned(
    state: PartitionState,
    replicas: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...],
    removing: tuple[BrokerId, ...],
) -> PartitionState:
    """The state with that assignment; the same object if nothing changes, as for most partitions of a large topic."""
    if state.replicas == replicas and state.adding == adding and state.removing == removing:
        return state
    return replace(state, replicas=replicas, adding=adding, removing=removing)


@dataclass(slots=True)
class MetadataImage:
    """All topics and dynamic configurations of the cluster at one point of the change log."""

    topics: dict[str, TopicInfo] = field(default_factory=dict)
    topic_names: dict[uuid.UUID, str] = field(default_factory=dict)
    topic_versions: dict[str, int] = field(default_factory=dict)
    configs: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    config_versions: dict[tuple[str, str], int] = field(default_factory=dict)

    def copy(self) -> MetadataImage:
        """Another image with the same content; it shares the immutable topics and states."""
        return MetadataImage(
            dict(self.topics),
            dict(self.topic_names),
            dict(self.topic_versions),
            dict(self.configs),
            dict(self.config_versions),
        )

    def partition(self, tp: TopicPartition) -> PartitionState | None:
        """The partition's state; None if the topic or partition does not exist."""
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def apply(self, changes: Iterable[Change], delta: MetadataDelta) -> None:
        """Apply the changes, and note their effects in ``delta``. Outdated changes have no effect."""
        for change in changes:
            match change:
                case TopicChanged(name, topic, version):
                    self._topic_changed(name, topic, version, delta)
                case TopicDeleted(name, topic_id):
                    self._topic_deleted(name, topic_id, delta)
                case StatesChanged(name, topic_id, states):
                    self._states_changed(name, topic_id, states, delta)
                case ConfigChanged(kind, entity, version, config):
                    self._config_changed(kind, entity, version, config, delta)

    def _topic_changed(self, name: str, topic: TopicZnode, version: int, delta: MetadataDelta) -> None:
        old = self.topics.get(name)
        if old is not None and old.id != topic.id:
            # another topic of that name was created; the deletion of the old one is implied
            self._topic_deleted(name, old.id, delta)
            old = None
        if old is not None and version <= self.topic_versions[name]:
            return
        known = old.partitions if old is not None else ()
        partitions = tuple(
            _assigned(
                known[index] if index < len(known) else stateless(replicas),
                replicas,
                topic.adding.get(index, ()),
                topic.removing.get(index, ()),
            )
            for index, replicas in enumerate(topic.assignment)
        )
        configs = dict(self.configs.get((CONFIG_TOPICS, name), {}))
        self.topics[name] = TopicInfo(name, topic.id, partitions, configs)
        self.topic_names[topic.id] = name
        self.topic_versions[name] = version
        delta.topics_changed.add(name)
        for index, state in enumerate(partitions):
            if index >= len(known) or known[index] is not state:
                delta.partitions_changed.add(TopicPartition(name, index))

    def _topic_deleted(self, name: str, topic_id: uuid.UUID, delta: MetadataDelta) -> None:
        old = self.topics.get(name)
        if old is None or old.id != topic_id:
            # A full read may have found the deleted topic's settings but not the topic. If the settings are those of a
            # successor, later entries bring them again.
            if self.configs.pop((CONFIG_TOPICS, name), None) is not None:
                self.config_versions.pop((CONFIG_TOPICS, name))
                delta.configs_changed.add((CONFIG_TOPICS, name))
            return
        del self.topics[name]
        del self.topic_names[topic_id]
        del self.topic_versions[name]
        self.configs.pop((CONFIG_TOPICS, name), None)
        self.config_versions.pop((CONFIG_TOPICS, name), None)
        delta.topics_changed.discard(name)
        delta.configs_changed.discard((CONFIG_TOPICS, name))
        delta.partitions_changed = {tp for tp in delta.partitions_changed if tp.topic != name}
        delta.deleted.append(old)

    def _states_changed(
        self, name: str, topic_id: uuid.UUID, states: Mapping[int, PartitionState], delta: MetadataDelta
    ) -> None:
        topic = self.topics.get(name)
        if topic is None or topic.id != topic_id:
            return
        partitions = list(topic.partitions)
        for index, state in states.items():
            if not 0 <= index < len(partitions) or state.partition_epoch <= partitions[index].partition_epoch:
                continue
            # the assignment comes from the topic znode, not from the state
            known = partitions[index]
            partitions[index] = _assigned(state, known.replicas, known.adding, known.removing)
            delta.partitions_changed.add(TopicPartition(name, index))
        self.topics[name] = replace(topic, partitions=tuple(partitions))

    def _config_changed(
        self, kind: str, entity: str, version: int, config: Mapping[str, str], delta: MetadataDelta
    ) -> None:
        key = (kind, entity)
        if version < 0:
            if self.configs.pop(key, None) is None:
                return
            self.config_versions.pop(key, None)
            config = {}
        else:
            if version <= self.config_versions.get(key, -1):
                return
            self.configs[key] = dict(config)
            self.config_versions[key] = version
        delta.configs_changed.add(key)
        if kind == CONFIG_TOPICS and entity in self.topics:
            self.topics[entity] = replace(self.topics[entity], configs=dict(config))
            delta.topics_changed.add(entity)


def difference(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """The changes between two images, so that listeners of a reload get exactly the changes they missed."""
    delta = MetadataDelta()
    for name, topic in old.topics.items():
        now = new.topics.get(name)
        if now is None or now.id != topic.id:
            delta.deleted.append(topic)
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        known = before.partitions if before is not None and before.id == topic.id else ()
        if before is None or before.id != topic.id or before != topic:
            delta.topics_changed.add(name)
        for index, state in enumerate(topic.partitions):
            if index >= len(known) or known[index] != state:
                delta.partitions_changed.add(TopicPartition(name, index))
    for key in sorted(old.configs.keys() | new.configs.keys()):
        if old.configs.get(key) != new.configs.get(key):
            delta.configs_changed.add(key)
    return delta
