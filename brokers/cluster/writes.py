"""Bounded multis: what the controller decided, as ZooKeeper writes that are each valid alone. Pure.

A :class:`Write` becomes one multi: a check of the controller's epoch, the operations, and one change-log entry with
what they changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from brokers.cluster import znodes
from brokers.cluster.isr import Lives
from brokers.cluster.picture import NO_STATE_EPOCH, Picture
from brokers.cluster.znodes import Change, StatesChanged, TopicChanged, TopicZnode
from brokers.model import BrokerId, PartitionState, TopicInfo, TopicPartition
from coordination.store import MAX_MULTI_BYTES, MAX_MULTI_OPERATIONS, Check, Create, Operation, SetData

OPERATIONS_PER_WRITE = MAX_MULTI_OPERATIONS - 100
"""Room for the epoch check, the change-log entry and the incarnation checks."""
CHECKS_PER_WRITE = 98
"""The most brokers that one write can count on."""
BYTES_PER_WRITE = MAX_MULTI_BYTES // 3
"""State data stands twice in a multi: in its znode and in the change log, there with a little more around it."""
_ROOM = 24 * 1024
"""For checks, and for an assignment that grows while it is being changed."""


@dataclass(frozen=True, slots=True)
class Write:
    """One multi, without the epoch check and the change-log entry that the controller adds."""

    operations: tuple[Operation, ...]
    changes: tuple[Change, ...] = ()


def size_of(operation: Operation) -> int:
    """About how many bytes the operation takes in a request."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path) + len(data) + 64


def incarnation_checks(counted: Iterable[int], lives: Lives) -> list[Check]:
    """The brokers counted on must still be in the life we saw: their incarnation znodes have exactly that version."""
    return [Check(znodes.incarnation_path(b), lives[b].incarnation) for b in sorted(set(counted))]


def counted_on(old: PartitionState | None, new: PartitionState, lives: Lives) -> set[int]:
    """Whose life a new state relies on: its leader's, and with a new leader those of the whole in-sync set."""
    if new.leader not in lives:
        return set()
    if old is not None and old.leader_epoch == new.leader_epoch:
        return {new.leader}
    return {b for b in new.isr if b in lives}


def topic_znode(topic: TopicInfo) -> TopicZnode:
    """The topic's znode as its partitions say, moves under way included."""
    return TopicZnode(
        topic.id,
        tuple(state.replicas for state in topic.partitions),
        {i: state.adding for i, state in enumerate(topic.partitions) if state.adding},
        {i: state.removing for i, state in enumerate(topic.partitions) if state.removing},
    )


class StateWrites:
    """Collects new states, and new assignments with them, into as few writes as the bounds allow.

    A partition's assignment and state go in the same write. Add topic by topic: a topic's znode is written once for
    all its partitions that stand in one write.
    """

    def __init__(self, picture: Picture, lives: Lives) -> None:
        self._picture = picture
        self._lives = lives
        self._writes: list[Write] = []
        self._versions: dict[str, int] = {}
        self._topics: dict[str, _Assignments] = {}
        self._reset()

    def _reset(self) -> None:
        self._operations: list[Operation] = []
        self._counted: set[int] = set()
        self._states: dict[str, dict[int, PartitionState]] = {}
        self._assigned: dict[str, None] = {}
        self._size = 0

    def add(self, tp: TopicPartition, new: PartitionState | None, *, assigned: PartitionState | None = None) -> None:
        """A partition's next state, if it changes, and the state that carries its next assignment, if that does."""
        topic = self._picture.topics[tp.topic]
        old = topic.partitions[tp.partition]
        counted = counted_on(old, new, self._lives) if new is not None else set()
        size = 0
        operation: SetData | None = None
        if new is not None:
            assert old.partition_epoch != NO_STATE_EPOCH, "a first state is created, not changed"
            new = replace(new, partition_epoch=old.partition_epoch + 1)
            operation = SetData(znodes.state_path(tp), znodes.encode_state(new), old.partition_epoch)
            size = 3 * size_of(operation)
        if assigned is not None and tp.topic not in self._assigned:
            size += 2 * len(znodes.encode_topic(self._topic(tp.topic).znode()))
        if self._full(size, counted):
            self._flush()
        if assigned is not None:
            self._assign(tp, assigned)
        if operation is not None and new is not None:
            self._operations.append(operation)
            self._states.setdefault(tp.topic, {})[tp.partition] = new
        self._counted |= counted
        self._size += size

    def done(self) -> list[Write]:
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
            self._topics[name] = _Assignments(topic_znode(self._picture.topics[name]))
        return self._topics[name]

    def _assign(self, tp: TopicPartition, state: PartitionState) -> None:
        self._topic(tp.topic).assign(tp.partition, state)
        self._assigned[tp.topic] = None

    def _flush(self) -> None:
        if not self._operations and not self._assigned:
            return
        operations: list[Operation] = [*incarnation_checks(self._counted, self._lives)]
        changes: list[Change] = []
        for name in self._assigned:
            version = self._versions.get(name, self._picture.topic_versions[name])
            topic = self._topics[name].znode()
            operations.append(SetData(znodes.topic_path(name), znodes.encode_topic(topic), version))
            changes.append(TopicChanged(name, topic, version + 1))
            self._versions[name] = version + 1
        for name, states in sorted(self._states.items()):
            changes.append(StatesChanged(name, self._picture.topics[name].id, states))
        self._writes.append(Write((*operations, *self._operations), tuple(changes)))
        self._reset()


class _Assignments:
    """A topic's znode while its partitions are assigned anew, one by one."""

    def __init__(self, topic: TopicZnode) -> None:
        self._id = topic.id
        self._replicas = list(topic.assignment)
        self._adding = dict(topic.adding)
        self._removing = dict(topic.removing)

    def assign(self, index: int, state: PartitionState) -> None:
        self._replicas[index] = state.replicas
        self._adding[index] = state.adding
        self._removing[index] = state.removing

    def znode(self) -> TopicZnode:
        """As it is now; partitions that don't move aren't named among those that do."""
        return TopicZnode(self._id, tuple(self._replicas), _named(self._adding), _named(self._removing))


def _named(replicas: Mapping[int, tuple[BrokerId, ...]]) -> dict[int, tuple[BrokerId, ...]]:
    return {index: found for index, found in replicas.items() if found}
