"""Plans of many changes: each write keeps ZooKeeper's bounds, counts on whom it must, and is valid alone."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from brokers.cluster import plans, znodes
from brokers.cluster.elections import elect, new_partition
from brokers.cluster.picture import Delta, Picture
from brokers.cluster.writes import StateWrites, Write, counted_on
from brokers.cluster.znodes import StatesChanged, TopicChanged, TopicZnode
from brokers.model import BrokerId, Life, PartitionState, TopicPartition
from coordination.store import MAX_MULTI_BYTES, MAX_MULTI_OPERATIONS, Check, Create, Delete, SetData

EPOCH = 7


def lives(count: int) -> dict[int, Life]:
    return {1000 + b: Life(5, 5) for b in range(count)}


def picture(partitions: int, brokers: int, factor: int = 3) -> Picture:
    made = Picture()
    assignment = tuple(tuple(BrokerId(1000 + (i + k) % brokers) for k in range(factor)) for i in range(partitions))
    topic = TopicZnode(uuid.UUID(int=7), assignment)
    states = {i: new_partition(replicas, lives(brokers), 1) for i, replicas in enumerate(assignment)}
    made.apply([TopicChanged("t", topic, 0), StatesChanged("t", topic.id, states)], Delta())
    return made


def bytes_of(write: Write) -> int:
    data = [operation.data for operation in write.operations if isinstance(operation, Create | SetData)]
    paths = [
        operation.path for operation in write.operations if isinstance(operation, Create | SetData | Check | Delete)
    ]
    return sum(map(len, data)) + sum(map(len, paths)) + len(znodes.encode_changes(write.changes, "controller epoch 7"))


def check_bounds(writes: list[Write]) -> None:
    for write in writes:
        assert len(write.operations) + 2 <= MAX_MULTI_OPERATIONS, "the epoch's check and the change come on top"
        assert bytes_of(write) <= MAX_MULTI_BYTES


@pytest.mark.parametrize(("partitions", "brokers"), [(3_000, 5), (600, 250)])
def test_elections(partitions: int, brokers: int) -> None:
    before = picture(partitions, brokers)
    after = {b: life for b, life in lives(brokers).items() if b != 1000}
    writes = plans.elections(before, after, EPOCH, min_isr=lambda name: 2)
    check_bounds(writes)
    if brokers == 5:
        assert len(writes) > 1
    for write in writes:
        checked = {operation.path: operation.version for operation in write.operations if isinstance(operation, Check)}
        changed = [change for change in write.changes if isinstance(change, StatesChanged)]
        counted = {
            b
            for change in changed
            for index, state in change.states.items()
            for b in counted_on(before.topics["t"].partitions[index], state, after)
        }
        assert checked == {znodes.incarnation_path(b): 5 for b in counted}
        before_write = [operation for operation in write.operations if isinstance(operation, SetData)]
        assert all(operation.version == 0 for operation in before_write)
        before.apply(write.changes, Delta())
    for state in before.topics["t"].partitions:
        assert elect(state, after, EPOCH, min_isr=2) is None


def test_an_election_counts_on_its_whole_set_and_a_shrinking_on_its_leader() -> None:
    one = picture(1, 3).topics["t"].partitions[0]
    shrunk = elect(one, {b: life for b, life in lives(3).items() if b != 1002}, EPOCH, min_isr=1)
    moved = elect(one, {b: life for b, life in lives(3).items() if b != 1000}, EPOCH, min_isr=1)
    given_up = elect(one, {}, EPOCH, min_isr=1)
    assert shrunk is not None
    assert moved is not None
    assert given_up is not None
    assert counted_on(one, shrunk, lives(3)) == {1000}
    assert counted_on(one, moved, lives(3)) == {1001, 1002}
    assert counted_on(one, given_up, lives(3)) == set()


@pytest.mark.parametrize(("partitions", "factor"), [(2_000, 3), (5_000, 2)])
def test_assignments_and_states_go_together(partitions: int, factor: int) -> None:
    """Every partition loses its last replica: the topic's znode is written once in each write, its version rising."""
    before = picture(partitions, 5, factor)
    made = StateWrites(before, lives(5))
    wanted: dict[int, PartitionState] = {}
    for index, state in enumerate(before.topics["t"].partitions):
        assigned = replace(state, replicas=state.replicas[:-1])
        wanted[index] = assigned
        next_state = replace(state, isr=state.isr[:-1], isr_incarnations=state.isr_incarnations[:-1])
        made.add(TopicPartition("t", index), next_state, assigned=assigned)
    writes = made.done()
    check_bounds(writes)
    assert len(writes) > 1
    for number, write in enumerate(writes):
        topics = [one for one in write.operations if isinstance(one, SetData) and one.path == znodes.topic_path("t")]
        assert [one.version for one in topics] == [number]
        delta = Delta()
        before.apply(write.changes, delta)
        changed = [before.partition(tp) for tp in delta.partitions_changed]
        assert changed
        assert all(s is not None and s.isr == s.replicas for s in changed), (
            "who leaves the one leaves the other with it"
        )
    assert [s.replicas for s in before.topics["t"].partitions] == [wanted[i].replicas for i in range(partitions)]


def test_a_large_topic_is_made_in_bounded_writes() -> None:
    assignment = tuple(tuple(BrokerId(1000 + (i + k) % 250) for k in range(3)) for i in range(1_000))
    writes = plans.create_topic(
        "t", uuid.UUID(int=7), assignment, configs={}, picture=Picture(), lives=lives(250), controller_epoch=EPOCH
    )
    check_bounds(writes)
    made = Picture()
    for write in writes:
        checked = {operation.path for operation in write.operations if isinstance(operation, Check)}
        changes = [change for change in write.changes if isinstance(change, StatesChanged)]
        counted = {b for change in changes for state in change.states.values() for b in state.isr}
        assert checked == {znodes.incarnation_path(b) for b in counted}
        made.apply(write.changes, Delta())
    assert all(state.isr == state.replicas for state in made.topics["t"].partitions)
