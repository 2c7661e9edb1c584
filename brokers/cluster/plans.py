"""Controller decisions as ZooKeeper writes: bounded multis, each valid alone. Pure.

A plan of several writes may stop after any of them; what is left is visible in the tree (a partition without state, a
topic with a deletion mark), and :func:`missing_states` or the mark tell the next controller to go on.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from brokers.cluster import isr, znodes
from brokers.cluster.elections import elect, new_partition
from brokers.cluster.isr import Lives
from brokers.cluster.picture import NO_STATE_EPOCH, Picture
from brokers.cluster.writes import (
    BYTES_PER_WRITE,
    CHECKS_PER_WRITE,
    OPERATIONS_PER_WRITE,
    StateWrites,
    Write,
    counted_on,
    incarnation_checks,
    size_of,
    topic_znode,
)
from brokers.cluster.znodes import Change, ConfigChanged, StatesChanged, TopicChanged, TopicDeleted, TopicZnode
from brokers.model import BrokerId, PartitionState, TopicInfo, TopicPartition
from coordination.store import Create, Delete, Operation, SetData


def create_topic(
    name: str,
    topic_id: uuid.UUID,
    assignment: tuple[tuple[BrokerId, ...], ...],
    *,
    configs: Mapping[str, str],
    picture: Picture,
    lives: Lives,
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
    states = {i: new_partition(replicas, lives, controller_epoch) for i, replicas in enumerate(assignment)}
    return _with_states(head, news, (name, topic_id), states, lives)


def extend_topic(
    topic: TopicInfo,
    version: int,
    added: tuple[tuple[BrokerId, ...], ...],
    lives: Lives,
    controller_epoch: int,
) -> list[Write]:
    """More partitions for a topic whose znode has that version."""
    present = topic_znode(topic)
    first = len(present.assignment)
    znode = replace(present, assignment=present.assignment + added)
    states = {first + i: new_partition(replicas, lives, controller_epoch) for i, replicas in enumerate(added)}
    head: list[Operation] = [SetData(znodes.topic_path(topic.name), znodes.encode_topic(znode), version)]
    news: list[Change] = [TopicChanged(topic.name, znode, version + 1)]
    return _with_states(head, news, (topic.name, topic.id), states, lives)


def missing_states(picture: Picture, lives: Lives, controller_epoch: int) -> list[Write]:
    """States for partitions that were assigned by a controller that didn't get further."""
    writes: list[Write] = []
    for name in sorted(picture.topics):
        topic = picture.topics[name]
        states = {
            i: new_partition(state.replicas, lives, controller_epoch)
            for i, state in enumerate(topic.partitions)
            if state.partition_epoch == NO_STATE_EPOCH
        }
        if states:
            writes += _with_states([], [], (name, topic.id), states, lives)
    return writes


def _with_states(
    head: Sequence[Operation],
    news: Sequence[Change],
    topic: tuple[str, uuid.UUID],
    states: Mapping[int, PartitionState],
    lives: Lives,
) -> list[Write]:
    name, topic_id = topic
    writes: list[Write] = []
    operations, size = list(head), sum(map(size_of, head)) * 2
    batch: dict[int, PartitionState] = {}
    counted: set[int] = set()
    changes = list(news)

    def flush() -> None:
        nonlocal operations, size, batch, changes, counted
        if batch:
            changes.append(StatesChanged(name, topic_id, batch))
        writes.append(Write((*incarnation_checks(counted, lives), *operations), tuple(changes)))
        operations, size, batch, changes, counted = [], 0, {}, [], set()

    for index, state in sorted(states.items()):
        tp = TopicPartition(name, index)
        pair = (Create(znodes.partition_path(tp)), Create(znodes.state_path(tp), znodes.encode_state(state)))
        added = sum(map(size_of, pair))
        lives_counted = counted_on(None, state, lives)
        if operations and (
            len(operations) + 2 > OPERATIONS_PER_WRITE
            or size + added > BYTES_PER_WRITE
            or len(counted | lives_counted) > CHECKS_PER_WRITE
        ):
            flush()
        counted |= lives_counted
        operations += pair
        size += added
        batch[index] = state
    flush()
    return writes


def elections(
    picture: Picture,
    lives: Lives,
    controller_epoch: int,
    *,
    min_isr: Callable[[str], int],
    only: Iterable[TopicPartition] | None = None,
    leaving: Collection[int] = (),
    must_wait: Callable[[TopicPartition, PartitionState], bool] = lambda tp, state: False,
) -> list[Write]:
    """Everything that has to change given who lives: leaders of the dead replaced, or marked as gone; the dead out of
    the in-sync sets of the living.

    ``min_isr`` is a topic's ``min.insync.replicas``. Partitions that ``must_wait`` stay as they are.
    """
    writes = StateWrites(picture, lives)
    for tp, state in partitions(picture, only):
        if state.partition_epoch == NO_STATE_EPOCH or must_wait(tp, state):
            continue
        minimum = isr.min_in_sync(min_isr(tp.topic), state.established)
        new = elect(state, lives, controller_epoch, min_isr=minimum, leaving=leaving)
        if new is not None:
            writes.add(tp, new)
    return writes.done()


def partitions(
    picture: Picture, only: Iterable[TopicPartition] | None = None
) -> Iterable[tuple[TopicPartition, PartitionState]]:
    """All partitions, or those of ``only`` that exist, in order."""
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
