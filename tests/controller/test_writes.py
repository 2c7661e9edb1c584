"""Plans of many changes: each write keeps ZooKeeper's bounds, checks its brokers, and is valid alone."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from fleetlog.brokers.controller import plans
from fleetlog.brokers.controller.elections import elect, new_partition, released
from fleetlog.brokers.controller.requests import Refused
from fleetlog.brokers.controller.topic_commands import check_room
from fleetlog.brokers.controller.writes import MultiWrite, StateWrites, counted_on
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.image import MetadataDelta, MetadataImage
from fleetlog.brokers.metadata.znodes import StatesChanged, TopicChanged, TopicZnode
from fleetlog.brokers.model import BrokerId, LiveBroker, PartitionState, TopicPartition
from fleetlog.coordination.registration import incarnation_path
from fleetlog.coordination.store import MAX_MULTI_BYTES, MAX_MULTI_OPERATIONS, Check, Create, Delete, SetData
from fleetlog.wire.errors import ErrorCode

EPOCH = 7


def live_brokers(count: int) -> dict[int, LiveBroker]:
    return {1000 + b: LiveBroker(5, 5) for b in range(count)}


def image(partitions: int, brokers: int, factor: int = 3) -> MetadataImage:
    made = MetadataImage()
    assignment = tuple(tuple(BrokerId(1000 + (i + k) % brokers) for k in range(factor)) for i in range(partitions))
    topic = TopicZnode(uuid.UUID(int=7), assignment)
    states = {i: new_partition(replicas, live_brokers(brokers), 1) for i, replicas in enumerate(assignment)}
    made.apply([TopicChanged("t", topic, 0), StatesChanged("t", topic.id, states)], MetadataDelta())
    return made


def bytes_of(write: MultiWrite) -> int:
    data = [operation.data for operation in write.operations if isinstance(operation, Create | SetData)]
    paths = [
        operation.path for operation in write.operations if isinstance(operation, Create | SetData | Check | Delete)
    ]
    return sum(map(len, data)) + sum(map(len, paths)) + len(znodes.encode_changes(write.changes, "controller epoch 7"))


def check_bounds(writes: list[MultiWrite]) -> None:
    for write in writes:
        assert len(write.operations) + 2 <= MAX_MULTI_OPERATIONS, "the epoch's check and the change come on top"
        assert bytes_of(write) <= MAX_MULTI_BYTES


@pytest.mark.parametrize(("partitions", "brokers"), [(3_000, 5), (600, 250)])
def test_writes_of_elections_are_bounded_and_checked(partitions: int, brokers: int) -> None:
    before = image(partitions, brokers)
    after = {b: live_broker for b, live_broker in live_brokers(brokers).items() if b != 1000}
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
        assert checked == {incarnation_path(b): 5 for b in counted}
        before_write = [operation for operation in write.operations if isinstance(operation, SetData)]
        assert all(operation.version == 0 for operation in before_write)
        before.apply(write.changes, MetadataDelta())
    for state in before.topics["t"].partitions:
        assert elect(state, after, EPOCH, min_isr=2) is None


def test_an_election_counts_on_its_whole_set_and_a_shrinking_on_its_leader() -> None:
    one = image(1, 3).topics["t"].partitions[0]
    shrunk = elect(one, {b: live_broker for b, live_broker in live_brokers(3).items() if b != 1002}, EPOCH, min_isr=1)
    moved = elect(one, {b: live_broker for b, live_broker in live_brokers(3).items() if b != 1000}, EPOCH, min_isr=1)
    given_up = elect(one, {}, EPOCH, min_isr=1)
    assert shrunk is not None
    assert moved is not None
    assert given_up is not None
    assert counted_on(one, shrunk, live_brokers(3)) == {1000}
    assert counted_on(one, moved, live_brokers(3)) == {1001, 1002}
    assert counted_on(one, given_up, live_brokers(3)) == set()


def test_a_write_checks_the_replicas_on_which_it_relies() -> None:
    """Without a leader it counts on no other broker."""
    before = image(1, 3)
    state = released(before.topics["t"].partitions[0], EPOCH)
    made = StateWrites(before, live_brokers(3))
    made.add(
        TopicPartition("t", 0), state, assigned=replace(state, replicas=state.replicas[1:]), relies_on=(BrokerId(1002),)
    )
    (write,) = made.done()
    assert [one for one in write.operations if isinstance(one, Check)] == [Check(incarnation_path(1002), 5)]


@pytest.mark.parametrize(("partitions", "factor"), [(2_000, 3), (5_000, 2)])
def test_assignments_and_states_go_together(partitions: int, factor: int) -> None:
    """Every partition loses its last replica: the topic's znode is written once in each write, its version rising."""
    before = image(partitions, 5, factor)
    made = StateWrites(before, live_brokers(5))
    wanted: dict[int, PartitionState] = {}
    for index, state in enumerate(before.topics["t"].partitions):
        assigned = replace(state, replicas=state.replicas[:-1])
        wanted[index] = assigned
        next_state = replace(
            state, isr=state.isr[:-1], isr_incarnations=state.isr_incarnations[:-1],
            partition_epoch=state.partition_epoch + 1,
        )  # fmt: skip
        made.add(TopicPartition("t", index), next_state, assigned=assigned)
    writes = made.done()
    check_bounds(writes)
    assert len(writes) > 1
    for number, write in enumerate(writes):
        topics = [one for one in write.operations if isinstance(one, SetData) and one.path == znodes.topic_path("t")]
        assert [one.version for one in topics] == [number]
        delta = MetadataDelta()
        before.apply(write.changes, delta)
        changed = [before.partition(tp) for tp in delta.partitions_changed]
        assert changed
        assert all(s is not None and s.isr == s.replicas for s in changed), (
            "a replica that leaves the one leaves the other with it"
        )
    assert [s.replicas for s in before.topics["t"].partitions] == [wanted[i].replicas for i in range(partitions)]


@pytest.mark.parametrize("partitions", [4_000, 10_000])
def test_as_many_moves_begin_as_the_znode_has_room_for(partitions: int) -> None:
    before = image(partitions, 6, 3)
    made, begun = StateWrites(before, live_brokers(6)), 0
    for index, state in enumerate(before.topics["t"].partitions):
        others = [b for b in live_brokers(6) if b not in state.replicas]
        assigned = plans.retargeted(state, others)
        if made.has_room(TopicPartition("t", index), assigned):
            made.add(TopicPartition("t", index), None, assigned=assigned)
            begun += 1
    writes = made.done()
    check_bounds(writes)
    assert 500 < begun < partitions
    for write in writes:
        before.apply(write.changes, MetadataDelta())
    assert sum(bool(state.adding) for state in before.topics["t"].partitions) == begun
    done = StateWrites(before, live_brokers(6))
    for index, state in enumerate(before.topics["t"].partitions):
        if state.adding:  # all of them end at once
            assigned = replace(state, replicas=state.target, adding=(), removing=())
            done.add(TopicPartition("t", index), state, assigned=assigned)
    check_bounds(done.done())


def test_a_topic_that_does_not_fit_in_a_multi_is_refused() -> None:
    replicas = (BrokerId(1001), BrokerId(1002), BrokerId(1003))
    check_room("t", TopicZnode(uuid.UUID(int=7), (replicas,) * 10_000))
    with pytest.raises(Refused, match="15000 partitions") as refused:
        check_room("t", TopicZnode(uuid.UUID(int=7), (replicas,) * 15_000))
    assert refused.value.error is ErrorCode.INVALID_PARTITIONS


def test_a_large_topic_is_made_in_bounded_writes() -> None:
    assignment = tuple(tuple(BrokerId(1000 + (i + k) % 250) for k in range(3)) for i in range(1_000))
    made_one_by_one = plans.create_topic(
        "t",
        uuid.UUID(int=7),
        assignment,
        configs={},
        image=MetadataImage(),
        live_brokers=live_brokers(250),
        controller_epoch=EPOCH,
    )
    writes = list(made_one_by_one)
    check_bounds(writes)
    made = MetadataImage()
    for write in writes:
        checked = {operation.path for operation in write.operations if isinstance(operation, Check)}
        changes = [change for change in write.changes if isinstance(change, StatesChanged)]
        counted = {b for change in changes for state in change.states.values() for b in state.isr}
        assert checked == {incarnation_path(b) for b in counted}
        made.apply(write.changes, MetadataDelta())
    assert all(state.isr == state.replicas for state in made.topics["t"].partitions)


@pytest.mark.parametrize("partitions", [2, 3_000])
def test_a_deletion_marks_the_objects_of_a_tiered_topic_in_its_first_write(partitions: int) -> None:
    topic = image(partitions, 5).topics["t"]
    mark = Create(znodes.deleted_tier_path(topic.id), znodes.encode_deleted_tier("t", topic.id))
    assert znodes.decode_deleted_tier(mark.path, mark.data) == ("t", topic.id)
    for tiered in (True, False):
        writes = plans.delete_topic(topic, 0, True, taken=False, tiered=tiered)
        check_bounds(writes)
        assert [mark in write.operations for write in writes] == [tiered, *([False] * (len(writes) - 1))]
