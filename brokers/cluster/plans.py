"""Controller decisions as ZooKeeper writes: bounded multis, each valid alone. Pure.

A :class:`Write` becomes one multi: a check of the controller's epoch, the operations, and one change-log entry with
what they changed. A plan of several writes may stop after any of them; what is left is visible in the tree (a
partition without state, a topic with a deletion mark), and :func:`missing_states` or the mark tell the next
controller to go on.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from brokers.cluster import znodes
from brokers.cluster.elections import elect, new_partition
from brokers.cluster.picture import NO_STATE_EPOCH, Picture
from brokers.cluster.znodes import Change, ConfigChanged, StatesChanged, TopicChanged, TopicDeleted, TopicZnode
from brokers.model import NO_LEADER, BrokerId, PartitionState, TopicInfo, TopicPartition
from coordination.store import MAX_MULTI_BYTES, MAX_MULTI_OPERATIONS, Check, Create, Delete, Operation, SetData

OPERATIONS_PER_WRITE = MAX_MULTI_OPERATIONS - 100
"""Room for the epoch check, the change-log entry and the incarnation checks."""
BYTES_PER_WRITE = MAX_MULTI_BYTES // 3
"""State data stands twice in a multi: in its znode and in the change log, there with a little more around it."""


@dataclass(frozen=True, slots=True)
class Write:
    """One multi, without the epoch check and the change-log entry that the controller adds."""

    operations: tuple[Operation, ...]
    changes: tuple[Change, ...] = ()


def size_of(operation: Operation) -> int:
    """About how many bytes the operation takes in a request."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path) + len(data) + 64


def create_topic(
    name: str,
    topic_id: uuid.UUID,
    assignment: tuple[tuple[BrokerId, ...], ...],
    *,
    configs: Mapping[str, str],
    picture: Picture,
    live: Mapping[int, int],
    controller_epoch: int,
) -> list[Write]:
    """The topic with its whole assignment first, then the partitions' states, as far as they don't fit in with it."""
    topic = TopicZnode(topic_id, assignment)
    config_path = znodes.config_path(znodes.CONFIG_TOPICS, name)
    left_over = picture.config_versions.get((znodes.CONFIG_TOPICS, name))
    config: Operation
    if left_over is None:
        config, version = Create(config_path, znodes.encode_config(configs)), 0
    else:
        config, version = SetData(config_path, znodes.encode_config(configs), left_over), left_over + 1
    head: list[Operation] = [
        Create(znodes.topic_path(name), znodes.encode_topic(topic)),
        Create(znodes.partitions_path(name)),
        config,
    ]
    news: list[Change] = [
        TopicChanged(name, topic, 0),
        ConfigChanged(znodes.CONFIG_TOPICS, name, version, dict(configs)),
    ]
    states = {i: new_partition(replicas, live, controller_epoch) for i, replicas in enumerate(assignment)}
    return _with_states(head, news, (name, topic_id), states, live)


def extend_topic(
    topic: TopicInfo,
    version: int,
    added: tuple[tuple[BrokerId, ...], ...],
    live: Mapping[int, int],
    controller_epoch: int,
) -> list[Write]:
    """More partitions for a topic whose znode has that version."""
    present = tuple(state.replicas for state in topic.partitions)
    znode = TopicZnode(topic.id, present + added)
    states = {len(present) + i: new_partition(replicas, live, controller_epoch) for i, replicas in enumerate(added)}
    head: list[Operation] = [SetData(znodes.topic_path(topic.name), znodes.encode_topic(znode), version)]
    news: list[Change] = [TopicChanged(topic.name, znode, version + 1)]
    return _with_states(head, news, (topic.name, topic.id), states, live)


def missing_states(picture: Picture, live: Mapping[int, int], controller_epoch: int) -> list[Write]:
    """States for partitions that were assigned by a controller that didn't get further."""
    writes: list[Write] = []
    for name in sorted(picture.topics):
        topic = picture.topics[name]
        states = {
            i: new_partition(state.replicas, live, controller_epoch)
            for i, state in enumerate(topic.partitions)
            if state.partition_epoch == NO_STATE_EPOCH
        }
        if states:
            writes += _with_states([], [], (name, topic.id), states, live)
    return writes


def _with_states(
    head: Sequence[Operation],
    news: Sequence[Change],
    topic: tuple[str, uuid.UUID],
    states: Mapping[int, PartitionState],
    live: Mapping[int, int],
) -> list[Write]:
    name, topic_id = topic
    writes: list[Write] = []
    operations, size = list(head), sum(map(size_of, head)) * 2
    batch: dict[int, PartitionState] = {}
    changes = list(news)

    def flush() -> None:
        nonlocal operations, size, batch, changes
        if batch:
            changes.append(StatesChanged(name, topic_id, batch))
        checks = _incarnation_checks(batch.values(), live)
        writes.append(Write((*checks, *operations), tuple(changes)))
        operations, size, batch, changes = [], 0, {}, []

    for index, state in sorted(states.items()):
        tp = TopicPartition(name, index)
        pair = (Create(znodes.partition_path(tp)), Create(znodes.state_path(tp), znodes.encode_state(state)))
        added = sum(map(size_of, pair))
        if operations and (len(operations) + 2 > OPERATIONS_PER_WRITE or size + added > BYTES_PER_WRITE):
            flush()
        operations += pair
        size += added
        batch[index] = state
    flush()
    return writes


def _incarnation_checks(states: Iterable[PartitionState], live: Mapping[int, int]) -> list[Check]:
    """The leaders counted on must still be in the life we saw: their incarnation znodes have exactly that version."""
    leaders = sorted({state.leader for state in states if state.leader != NO_LEADER})
    return [Check(znodes.incarnation_path(leader), live[leader]) for leader in leaders]


def elections(
    picture: Picture, live: Mapping[int, int], controller_epoch: int, only: Iterable[TopicPartition] | None = None
) -> list[Write]:
    """Everything that has to change given who lives: leaders of the dead replaced, or marked as gone."""
    writes: list[Write] = []
    chosen: dict[str, dict[int, PartitionState]] = {}
    operations: list[Operation] = []
    size = 0

    def flush() -> None:
        nonlocal chosen, operations, size
        if not operations:
            return
        states = [state for topic in chosen.values() for state in topic.values()]
        changes = tuple(StatesChanged(n, picture.topics[n].id, found) for n, found in sorted(chosen.items()))
        writes.append(Write((*_incarnation_checks(states, live), *operations), changes))
        chosen, operations, size = {}, [], 0

    for tp, state in _states(picture, only):
        if state.partition_epoch == NO_STATE_EPOCH:
            continue
        new = elect(state, live, controller_epoch)
        if new is None:
            continue
        operation = SetData(znodes.state_path(tp), znodes.encode_state(new), state.partition_epoch)
        if len(operations) + 1 > OPERATIONS_PER_WRITE or size + size_of(operation) > BYTES_PER_WRITE:
            flush()
        operations.append(operation)
        size += size_of(operation)
        chosen.setdefault(tp.topic, {})[tp.partition] = replace(new, partition_epoch=state.partition_epoch + 1)
    flush()
    return writes


def _states(picture: Picture, only: Iterable[TopicPartition] | None) -> Iterable[tuple[TopicPartition, PartitionState]]:
    if only is not None:
        for tp in sorted(set(only)):
            state = picture.partition(tp)
            if state is not None:
                yield tp, state
        return
    for name in sorted(picture.topics):
        for index, state in enumerate(picture.topics[name].partitions):
            yield TopicPartition(name, index), state


def delete_topic(topic: TopicInfo, version: int, config_exists: bool) -> list[Write]:
    """All at once where it fits; else a mark first, which is when the topic is gone for everybody."""
    partitions: list[Operation] = []
    for index, state in enumerate(topic.partitions):
        if state.partition_epoch != NO_STATE_EPOCH:
            tp = TopicPartition(topic.name, index)
            partitions += [Delete(znodes.state_path(tp)), Delete(znodes.partition_path(tp))]
    tail: list[Operation] = [
        Delete(znodes.partitions_path(topic.name)),
        Delete(znodes.topic_path(topic.name), version),
    ]
    if config_exists:
        tail.append(Delete(znodes.config_path(znodes.CONFIG_TOPICS, topic.name)))
    gone = TopicDeleted(topic.name, topic.id)
    if len(partitions) + len(tail) <= OPERATIONS_PER_WRITE:
        return [Write((*partitions, *tail), (gone,))]
    mark = Create(znodes.delete_topic_path(topic.name), znodes.encode_delete_mark(topic.id))
    return [Write((mark,), (gone,)), *finish_deletion(topic.name, partitions, tail)]


def finish_deletion(name: str, partitions: Sequence[Operation], tail: Sequence[Operation]) -> list[Write]:
    """The writes after the mark; also those of a controller that finds the mark of a dead one."""
    step = OPERATIONS_PER_WRITE - OPERATIONS_PER_WRITE % 2
    writes = [Write(tuple(partitions[i : i + step])) for i in range(0, len(partitions), step)]
    return [*writes, Write((*tail, Delete(znodes.delete_topic_path(name))))]
