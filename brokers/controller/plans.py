"""Controller decisions as ZooKeeper writes: bounded multis, each valid alone. Pure.

A plan of several writes may stop after any of them. The rest is visible in the tree (a partition without state, a topic
with a deletion mark), and the next controller completes it (:func:`missing_states`, :func:`finish_deletion`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fleetlog.brokers.controller.elections import elect, new_partition
from fleetlog.brokers.controller.writes import (
    BYTES_PER_WRITE,
    CHECKS_PER_WRITE,
    OPERATIONS_PER_WRITE,
    MultiWrite,
    StateWrites,
    counted_on,
    incarnation_checks,
    size_of,
    topic_znode,
)
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.image import NO_STATE_EPOCH, MetadataImage
from fleetlog.brokers.metadata.znodes import (
    Change,
    ConfigChanged,
    StatesChanged,
    TopicChanged,
    TopicDeleted,
    TopicZnode,
)
from fleetlog.brokers.model import BrokerId, PartitionState, TopicInfo, TopicPartition
from fleetlog.brokers.replication import isr
from fleetlog.brokers.replication.isr import LiveBrokers
from fleetlog.coordination.store import Create, Delete, Operation, SetData


def create_topic(
    name: str,
    topic_id: uuid.UUID,
    assignment: tuple[tuple[BrokerId, ...], ...],
    *,
    configs: Mapping[str, str],
    image: MetadataImage,
    live_brokers: LiveBrokers,
    controller_epoch: int,
) -> Iterator[MultiWrite]:
    """The topic with its whole assignment first, with as many partition states as fit, then the other states.

    A generator: building all writes of a topic with 10,000 partitions at once would block the loop.
    """
    topic = TopicZnode(topic_id, assignment)
    config_path = znodes.config_path(znodes.CONFIG_TOPICS, name)
    left_over = image.config_versions.get((znodes.CONFIG_TOPICS, name))
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
    states = ((i, new_partition(replicas, live_brokers, controller_epoch)) for i, replicas in enumerate(assignment))
    return _with_states(head, news, (name, topic_id), states, live_brokers)


def extend_topic(
    topic: TopicInfo,
    version: int,
    added: tuple[tuple[BrokerId, ...], ...],
    live_brokers: LiveBrokers,
    controller_epoch: int,
) -> Iterator[MultiWrite]:
    """Add partitions to a topic; ``version`` is that of its znode."""
    present = topic_znode(topic)
    first = len(present.assignment)
    znode = replace(present, assignment=present.assignment + added)
    states = ((first + i, new_partition(replicas, live_brokers, controller_epoch)) for i, replicas in enumerate(added))
    head: list[Operation] = [SetData(znodes.topic_path(topic.name), znodes.encode_topic(znode), version)]
    news: list[Change] = [TopicChanged(topic.name, znode, version + 1)]
    return _with_states(head, news, (topic.name, topic.id), states, live_brokers)


def missing_states(image: MetadataImage, live_brokers: LiveBrokers, controller_epoch: int) -> list[MultiWrite]:
    """First states of partitions whose creation an earlier controller did not complete."""
    writes: list[MultiWrite] = []
    for name in sorted(image.topics):
        topic = image.topics[name]
        states = {
            i: new_partition(state.replicas, live_brokers, controller_epoch)
            for i, state in enumerate(topic.partitions)
            if state.partition_epoch == NO_STATE_EPOCH
        }
        if states:
            writes += _with_states([], [], (name, topic.id), sorted(states.items()), live_brokers)
    return writes


def _with_states(
    head: Sequence[Operation],
    news: Sequence[Change],
    topic: tuple[str, uuid.UUID],
    states: Iterable[tuple[int, PartitionState]],
    live_brokers: LiveBrokers,
) -> Iterator[MultiWrite]:
    name, topic_id = topic
    operations, size = list(head), sum(map(size_of, head)) * 2
    batch: dict[int, PartitionState] = {}
    counted: set[int] = set()
    changes = list(news)

    def made() -> MultiWrite:
        if batch:
            changes.append(StatesChanged(name, topic_id, batch))
        return MultiWrite((*incarnation_checks(counted, live_brokers), *operations), tuple(changes))

    for index, state in states:
        tp = TopicPartition(name, index)
        pair = (Create(znodes.partition_path(tp)), Create(znodes.state_path(tp), znodes.encode_state(state)))
        added = sum(map(size_of, pair))
        relied_on = counted_on(None, state, live_brokers)
        if operations and (
            len(operations) + 2 > OPERATIONS_PER_WRITE
            or size + added > BYTES_PER_WRITE
            or len(counted | relied_on) > CHECKS_PER_WRITE
        ):
            yield made()
            operations, size, batch, changes, counted = [], 0, {}, [], set()
        counted |= relied_on
        operations += pair
        size += added
        batch[index] = state
    yield made()


def elections(
    image: MetadataImage,
    live_brokers: LiveBrokers,
    controller_epoch: int,
    *,
    min_isr: Callable[[str], int],
    only: Iterable[TopicPartition] | None = None,
    leaving: Collection[int] = (),
    must_wait: Callable[[TopicPartition, PartitionState], bool] = lambda tp, state: False,
) -> list[MultiWrite]:
    """The state changes that the live brokers require: new leaders for dead ones, or none if no replica may lead; dead
    members removed from in-sync sets.

    ``min_isr`` is a topic's ``min.insync.replicas``. Partitions that ``must_wait`` are left out.
    """
    writes = StateWrites(image, live_brokers)
    for tp, state in partitions(image, only):
        if state.partition_epoch == NO_STATE_EPOCH or must_wait(tp, state):
            continue
        minimum = isr.min_in_sync(min_isr(tp.topic), state.established)
        new = elect(state, live_brokers, controller_epoch, min_isr=minimum, leaving=leaving)
        if new is not None:
            writes.add(tp, new)
    return writes.done()


def partitions(
    image: MetadataImage, only: Iterable[TopicPartition] | None = None
) -> Iterable[tuple[TopicPartition, PartitionState]]:
    """All partitions, or those of ``only`` that exist, in order."""
    if only is not None:
        for tp in sorted(set(only)):
            state = image.partition(tp)
            if state is not None:
                yield tp, state
        return
    for name in sorted(image.topics):
        for index, state in enumerate(image.topics[name].partitions):
            yield TopicPartition(name, index), state


def delete_topic(topic: TopicInfo, version: int, config_exists: bool, *, taken: bool) -> list[MultiWrite]:
    """One write if it fits; else first the deletion mark, which deletes the topic for all brokers and clients.

    The name stays taken until the brokers have confirmed (:mod:`brokers.controller.deletions`). ``taken``: it is still,
    for a topic that was deleted before; only a controller of an older version lets another have it meanwhile.
    """
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
    marked = znodes.encode_delete_mark(topic.id)
    path = znodes.deleted_topic_path(topic.name)
    name: Operation = SetData(path, marked) if taken else Create(path, marked)
    if len(partitions) + len(tail) < OPERATIONS_PER_WRITE:
        return [MultiWrite((*partitions, *tail, name), (gone,))]
    mark = Create(znodes.delete_topic_path(topic.name), marked)
    return [MultiWrite((mark, name), (gone,)), *finish_deletion(topic.name, partitions, tail)]


def free_names(names: Sequence[str]) -> list[MultiWrite]:
    """Brokers have confirmed that the topics of these names are deleted."""
    taken = [Delete(znodes.deleted_topic_path(name)) for name in names]
    every = range(0, len(taken), OPERATIONS_PER_WRITE)
    return [MultiWrite(tuple(taken[i : i + OPERATIONS_PER_WRITE])) for i in every]


def finish_deletion(name: str, partitions: Sequence[Operation], tail: Sequence[Operation]) -> list[MultiWrite]:
    """The writes after the mark, also for a controller that finds the mark of a predecessor."""
    step = OPERATIONS_PER_WRITE - OPERATIONS_PER_WRITE % 2
    writes = [MultiWrite(tuple(partitions[i : i + step])) for i in range(0, len(partitions), step)]
    return [*writes, MultiWrite((*tail, Delete(znodes.delete_topic_path(name))))]
