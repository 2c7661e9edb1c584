"""Bounded multis: the controller's decisions as ZooKeeper writes that are each valid alone. Pure.

A :class:`MultiWrite` becomes one multi: a check of the controller epoch, the operations, and one change-log entry with
their changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.image import NO_STATE_EPOCH, MetadataImage
from fleetlog.brokers.metadata.znodes import Change, StatesChanged, TopicChanged, TopicZnode
from fleetlog.brokers.model import BrokerId, PartitionState, TopicInfo, TopicPartition
from fleetlog.brokers.replication.isr import LiveBrokers
from fleetlog.coordination.registration import incarnation_path
from fleetlog.coordination.store import MAX_MULTI_BYTES, MAX_MULTI_OPERATIONS, Check, Create, Operation, SetData

OPERATIONS_PER_WRITE = MAX_MULTI_OPERATIONS - 100
"""Room for the epoch check, the change-log entry and the incarnation checks."""
CHECKS_PER_WRITE = 98
"""The most brokers that one write can count on."""
BYTES_PER_WRITE = MAX_MULTI_BYTES // 3
"""A multi contains state data twice: for its znode and, with a little overhead, for the change log."""
_ROOM = 24 * 1024
"""For checks and for the overhead around the data."""
MAX_TOPIC_BYTES = MAX_MULTI_BYTES - 2 * _ROOM
"""The most that a topic's znode and its change-log entry may take together; it leaves room for some states."""


@dataclass(frozen=True, slots=True)
class MultiWrite:
    """One multi, without the epoch check and the change-log entry that the controller adds."""

    operations: tuple[Operation, ...]
    changes: tuple[Change, ...] = ()


def size_of(operation: Operation) -> int:
    """The approximate size of the operation in a request, in bytes."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path) + len(data) + 64


def incarnation_checks(counted: Iterable[int], live_brokers: LiveBrokers) -> list[Check]:
    """Checks that these brokers are still in the known incarnation, which is the version of their incarnation znode."""
    return [Check(incarnation_path(b), live_brokers[b].incarnation) for b in sorted(set(counted))]


def counted_on(old: PartitionState | None, new: PartitionState, live_brokers: LiveBrokers) -> set[int]:
    """The brokers whose incarnations a new state relies on: the leader, and with a new leader the whole in-sync set."""
    if new.leader not in live_brokers:
        return set()
    if old is not None and old.leader_epoch == new.leader_epoch:
        return {new.leader}
    return {b for b in new.isr if b in live_brokers}


def topic_znode(topic: TopicInfo) -> TopicZnode:
    """The topic's znode from its partitions, with moves in progress."""
    return TopicZnode(
        topic.id,
        tuple(state.replicas for state in topic.partitions),
        {i: state.adding for i, state in enumerate(topic.partitions) if state.adding},
        {i: state.removing for i, state in enumerate(topic.partitions) if state.removing},
    )


class StateWrites:
    """Collects new states and assignments into as few writes as the bounds allow.

    A partition's assignment and state go into the same write. Add topic by topic: one write contains a topic's znode
    once, for all its partitions.
    """

    def __init__(self, image: MetadataImage, live_brokers: LiveBrokers) -> None:
        self._image = image
        self.live_brokers = live_brokers
        self._writes: list[MultiWrite] = []
        self._versions: dict[str, int] = {}
        self._topics: dict[str, _Assignments] = {}
        self._reset()

    def _reset(self) -> None:
        self._operations: list[Operation] = []
        self._counted: set[int] = set()
        self._states: dict[str, dict[int, PartitionState]] = {}
        self._assigned: dict[str, None] = {}
        self._size = 0

    def has_room(self, tp: TopicPartition, assigned: PartitionState) -> bool:
        """Whether the topic's znode stays within its bound with that assignment and those added before."""
        topic = self._topic(tp.topic)
        grown = topic.size_with(tp.partition, assigned)
        return grown <= max(MAX_TOPIC_BYTES, topic.size)

    def add(
        self,
        tp: TopicPartition,
        new: PartitionState | None,
        *,
        assigned: PartitionState | None = None,
        relies_on: Collection[BrokerId] = (),
    ) -> None:
        """Add a partition's next state, if it changes, and the state with its next assignment, if that changes.

        The write compares the znode's version with that of the state that ``new`` follows, ``partition_epoch`` - 1.
        ``relies_on`` are registered brokers whose incarnations are checked, too.
        """
        topic = self._image.topics[tp.topic]
        old = topic.partitions[tp.partition]
        counted = counted_on(old, new, self.live_brokers) if new is not None else set()
        counted |= set(relies_on)
        size = 0
        operation: SetData | None = None
        if new is not None:
            assert old.partition_epoch != NO_STATE_EPOCH, "a first state is created, not changed"
            operation = SetData(znodes.state_path(tp), znodes.encode_state(new), new.partition_epoch - 1)
            size = 3 * size_of(operation)
        topics = 0
        if assigned is not None:
            topics = self._topic(tp.topic).size_with(tp.partition, assigned)
        topics += sum(self._topics[name].size for name in self._assigned if assigned is None or name != tp.topic)
        if self._full(size + topics, counted):
            self._flush()
        if assigned is not None:
            self._assign(tp, assigned)
        if operation is not None and new is not None:
            self._operations.append(operation)
            self._states.setdefault(tp.topic, {})[tp.partition] = new
        self._counted |= counted
        self._size += size

    def done(self) -> list[MultiWrite]:
        """All writes, in order."""
        self._flush()
        return self._writes

    def _full(self, size: int, counted: set[int]) -> bool:
        if not self._operations and not self._assigned:
            return False
        return (
            len(self._operations) + len(self._assigned) + 2 > OPERATIONS_PER_WRITE
            or len(self._counted | counted) > CHECKS_PER_WRITE
            or self._size + size > MAX_MULTI_BYTES - _ROOM
        )

    def _topic(self, name: str) -> _Assignments:
        if name not in self._topics:
            self._topics[name] = _Assignments(topic_znode(self._image.topics[name]))
        return self._topics[name]

    def _assign(self, tp: TopicPartition, state: PartitionState) -> None:
        self._topic(tp.topic).assign(tp.partition, state)
        self._assigned[tp.topic] = None

    def _flush(self) -> None:
        if not self._operations and not self._assigned:
            return
        operations: list[Operation] = [*incarnation_checks(self._counted, self.live_brokers)]
        changes: list[Change] = []
        for name in self._assigned:
            version = self._versions.get(name, self._image.topic_versions[name])
            topic = self._topics[name].znode()
            operations.append(SetData(znodes.topic_path(name), znodes.encode_topic(topic), version))
            changes.append(TopicChanged(name, topic, version + 1))
            self._versions[name] = version + 1
        for name, states in sorted(self._states.items()):
            changes.append(StatesChanged(name, self._image.topics[name].id, states))
        self._writes.append(MultiWrite((*operations, *self._operations), tuple(changes)))
        self._reset()


class _Assignments:
    """A topic's znode while its partitions are reassigned one by one.

    ``size`` is that of the znode's data and of its change-log entry, in bytes.
    """

    def __init__(self, topic: TopicZnode) -> None:
        self._id = topic.id
        self._replicas = list(topic.assignment)
        self._adding = dict(topic.adding)
        self._removing = dict(topic.removing)
        self.size = size_of_topic(topic)

    def size_with(self, index: int, state: PartitionState) -> int:
        """The size with that assignment of the partition, give or take a comma."""
        present = (self._replicas[index], self._adding.get(index, ()), self._removing.get(index, ()))
        wanted = (state.replicas, state.adding, state.removing)
        return self.size + 2 * (sum(_listed(index, b) for b in wanted) - sum(_listed(index, b) for b in present))

    def assign(self, index: int, state: PartitionState) -> None:
        self.size = self.size_with(index, state)
        self._replicas[index] = state.replicas
        self._adding[index] = state.adding
        self._removing[index] = state.removing

    def znode(self) -> TopicZnode:
        """The present znode; ``adding`` and ``removing`` name only partitions that move."""
        return TopicZnode(self._id, tuple(self._replicas), _named(self._adding), _named(self._removing))


def _listed(index: int, brokers: Sequence[BrokerId]) -> int:
    """The bytes of ``"index":[brokers],`` in JSON; nothing is written for none."""
    return len(str(index)) + 6 + sum(len(str(b)) + 1 for b in brokers) - 1 if brokers else 0


def size_of_topic(topic: TopicZnode) -> int:
    """The bytes of a topic's znode and of its change-log entry, which go in one multi."""
    return len(znodes.encode_topic(topic)) + len(znodes.encode_changes([TopicChanged("", topic, 0)]))


def _named(replicas: Mapping[int, tuple[BrokerId, ...]]) -> dict[int, tuple[BrokerId, ...]]:
    return {index: brokers for index, brokers in replicas.items() if brokers}
