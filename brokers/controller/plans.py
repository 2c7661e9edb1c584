"""Controller decisions as ZooKeeper writes: bounded multis, each valid alone. Pure.

A plan of several writes may stop after any of them. The rest is visible in the tree (a partition without state, a topic
with a deletion mark), and the next controller completes it (:func:`missing_states`, :func:`finish_deletion`).

Reassignment of replicas (KIP-455): start, retargeting, cancellation and completion, as pure decisions.

The topic's znode holds the whole state of a move: the target's replicas, followed by the replicas to remove, with
``adding`` and ``removing``. Any controller continues from there. The partition's leader adds new replicas to the
in-sync set as they catch up. When the whole target is in sync, leadership moves into the target if needed, and then the
other replicas are removed. No step makes an in-sync set smaller than ``min.insync.replicas``.

Removed replicas delete their logs. A broker that lost its power stays in the in-sync set until its session ends, so
the in-sync set alone does not show that another copy is left: a step names the replicas that it relies on
(``Step.relies_on``), and these must answer the controller before it is written.

When a replica leaves the assignment, the partition's state is written in the same multi: a leader that concurrently
adds the replica to the in-sync set fails on the znode's version. Its leader epoch rises, too, though the leader stays:
what the replica has fetched does not count when it is added again, because its log is deleted meanwhile.

Source: KIP-455; Kafka's PartitionChangeBuilder for the epoch; the error texts follow Kafka's, because tools show them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fleetlog.brokers.controller.elections import (
    elect,
    handed_over,
    is_led,
    led_by,
    moves_in_steps,
    new_partition,
    released,
    successor,
)
from fleetlog.brokers.controller.requests import Refused
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
from fleetlog.brokers.model import NO_LEADER, BrokerId, PartitionState, TopicInfo, TopicPartition
from fleetlog.brokers.replication import isr
from fleetlog.brokers.replication.isr import LiveBrokers
from fleetlog.coordination.store import Create, Delete, Operation, SetData
from fleetlog.wire.errors import ErrorCode


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


def delete_topic(
    topic: TopicInfo, version: int, config_exists: bool, *, taken: bool, tiered: bool = False
) -> list[MultiWrite]:
    """One write if it fits; else first the deletion mark, which deletes the topic for all brokers and clients.

    The name stays taken until the brokers have confirmed (:mod:`brokers.controller.deletions`). ``taken``: it is still,
    for a topic that was deleted before; only a controller of an older version lets another have it meanwhile.
    ``tiered``: it has objects in the bucket, of which a second mark tells until they are gone.
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
    marks: list[Operation] = [SetData(path, marked) if taken else Create(path, marked)]
    if tiered:
        marks.append(Create(znodes.deleted_tier_path(topic.id), znodes.encode_deleted_tier(topic.name, topic.id)))
    if len(partitions) + len(tail) + len(marks) <= OPERATIONS_PER_WRITE:
        return [MultiWrite((*partitions, *tail, *marks), (gone,))]
    mark = Create(znodes.delete_topic_path(topic.name), marked)
    return [MultiWrite((mark, *marks), (gone,)), *finish_deletion(topic.name, partitions, tail)]


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


class Step(NamedTuple):
    """A write: the partition with its next assignment (None: unchanged), and its next state (None: unchanged).

    ``relies_on``: in-sync replicas that stay while other copies are given up.
    """

    assigned: PartitionState | None
    state: PartitionState | None
    relies_on: tuple[BrokerId, ...] = ()


def retargeted(state: PartitionState, target: Sequence[int]) -> PartitionState:
    """The partition with the assignment of a move to that target; replaces a move in progress."""
    before = state.established
    wanted = tuple(BrokerId(b) for b in target)
    replicas = tuple(dict.fromkeys((*wanted, *before)))
    return replace(
        state,
        replicas=replicas,
        adding=tuple(b for b in replicas if b not in before),
        removing=tuple(b for b in replicas if b not in wanted),
    )


def first_relies_on(state: PartitionState, target: Sequence[int]) -> tuple[BrokerId, ...]:
    """The replicas on which the first step of a move to that target relies (``Step.relies_on``)."""
    return _staying(state, _dropped(state, retargeted(state, target)))


def _dropped(state: PartitionState, assigned: PartitionState) -> list[BrokerId]:
    return [b for b in state.replicas if b not in assigned.replicas]


def _staying(state: PartitionState, dropped: Collection[int]) -> tuple[BrokerId, ...]:
    """The in-sync replicas that are left, if a dropped replica may hold acknowledged records."""
    given_up = any(b in dropped for b in (*state.isr, *state.elr))
    return tuple(b for b in state.isr if b not in dropped) if given_up else ()


def start_move(
    tp: TopicPartition,
    state: PartitionState,
    target: Sequence[int],
    live_brokers: LiveBrokers,
    controller_epoch: int,
    *,
    min_isr: int,
) -> Step | None:
    """The first step of a move, which may replace another one; None if the target is the present one.

    ``min_isr`` is the topic's ``min.insync.replicas``. Raises Refused (INVALID_REPLICATION_ASSIGNMENT).
    """
    _check_target(target)
    assigned = retargeted(state, target)
    dead = [b for b in assigned.adding if b not in live_brokers]
    if dead:
        raise _refused(
            f"Replica assignment has brokers that are not alive. Replica list: {list(target)}, "
            f"live broker list: {sorted(live_brokers)}"
        )
    if _same_assignment(assigned, state):
        return None
    return _reassigned(tp, state, assigned, live_brokers, controller_epoch, min_isr)


def cancel_move(
    tp: TopicPartition, state: PartitionState, live_brokers: LiveBrokers, controller_epoch: int, *, min_isr: int
) -> Step:
    """Back to the replicas before the move. Raises Refused: NO_REASSIGNMENT_IN_PROGRESS, or if the in-sync set would
    become too small (INVALID_REPLICATION_ASSIGNMENT).
    """
    if not state.adding and not state.removing:
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    return _reassigned(tp, state, retargeted(state, state.established), live_brokers, controller_epoch, min_isr)


def _check_target(target: Sequence[int]) -> None:
    if not target:
        raise _refused("Empty replica list specified in partition reassignment.")
    if len(set(target)) != len(target):
        raise _refused(f"Duplicate replica ids in partition reassignment replica list: {list(target)}")
    if any(b < 0 for b in target):
        raise _refused(f"Invalid broker id in replica list: {list(target)}")


def _refused(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_REPLICATION_ASSIGNMENT, message)


def _same_assignment(one: PartitionState, other: PartitionState) -> bool:
    return (one.replicas, one.adding, one.removing) == (other.replicas, other.adding, other.removing)


def _reassigned(
    tp: TopicPartition,
    state: PartitionState,
    assigned: PartitionState,
    live_brokers: LiveBrokers,
    controller_epoch: int,
    min_isr: int,
) -> Step:
    """The step to an assignment; replicas that it lacks are removed at once."""
    dropped = _dropped(state, assigned)
    if not dropped or state.partition_epoch == NO_STATE_EPOCH:
        return Step(assigned, None)
    minimum = isr.min_in_sync(min_isr, assigned.established)
    staying = [b for b in state.isr if b not in dropped]
    relies_on = _staying(state, dropped)
    if len(staying) < len(state.isr) and len(staying) < minimum:
        raise _refused(
            f"Of the in-sync replicas {list(state.isr)} only {staying} would remain, fewer than {minimum}"
            " (min.insync.replicas). Wait until the other replicas have caught up."
        )
    lost = [b for b, i in isr.members(state) if b in relies_on and not isr.counts(live_brokers, b, i)]
    if lost:
        raise _refused(
            f"Replicas {lost} would keep the data, and are away or may have lost some of it since they were in sync."
            f" Wait until these, or replicas {dropped}, are back in sync."
        )
    reduced = without_replicas(assigned, dropped, minimum)
    if state.leader not in dropped:
        return Step(assigned, _next(reduced, state, controller_epoch), relies_on)
    to = successor(reduced, live_brokers)
    if to is None:
        raise _refused(f"The leader {state.leader} would be removed, and no remaining in-sync replica is alive.")
    if moves_in_steps(tp, state, live_brokers):
        return Step(assigned, released(reduced, controller_epoch), relies_on)
    return Step(assigned, led_by(reduced, to, live_brokers, controller_epoch, min_isr=minimum), relies_on)


def without_replicas(state: PartitionState, gone: Collection[int], min_isr: int) -> PartitionState:
    """The state without these replicas; its assignment already lacks them."""
    return isr.settled(isr.without(state, gone, min_isr), min_isr)


def _next(new: PartitionState, old: PartitionState, controller_epoch: int) -> PartitionState:
    """The state that follows the old one, with the same leader, if there is one, in a new epoch."""
    return replace(
        new, leader_epoch=old.leader_epoch + (old.leader != NO_LEADER), partition_epoch=old.partition_epoch + 1,
        controller_epoch=controller_epoch,
    )  # fmt: skip


def _caught_up(target: Collection[BrokerId], in_sync: set[BrokerId]) -> bool:
    return in_sync.issuperset(target)


def advance(
    tp: TopicPartition,
    state: PartitionState,
    live_brokers: LiveBrokers,
    controller_epoch: int,
    *,
    min_isr: int,
    leaving: Collection[int] = (),
) -> Step | None:
    """The next step of a move in progress, or None while it waits for replicas to catch up or for a leader."""
    if not (state.adding or state.removing) or not is_led(state, live_brokers):
        return None
    target = state.target
    counting = {b for b, i in isr.members(state) if isr.counts(live_brokers, b, i)}
    if not target or not _caught_up(target, counting):
        return None
    minimum = isr.min_in_sync(min_isr, target)
    if state.leader not in target:
        to = next((b for b in target if b not in leaving), target[0])
        return Step(None, handed_over(tp, state, to, live_brokers, controller_epoch, min_isr=minimum))
    assigned = replace(state, replicas=target, adding=(), removing=())
    if not state.removing:
        return Step(assigned, None)
    return Step(assigned, _next(without_replicas(assigned, state.removing, minimum), state, controller_epoch), target)
