"""The plan that brings a restored tree and the brokers' logs together."""

from __future__ import annotations

import json
import uuid

import pytest

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.image import MetadataDelta, MetadataImage
from fleetlog.brokers.metadata.inventories import Inventory, LogSummary
from fleetlog.brokers.metadata.marks import ClusterMarks
from fleetlog.brokers.metadata.repair import BELIEVED_IDS, EPOCHS_LEFT_OUT, CannotRepair, RepairPlan, plan_repair
from fleetlog.brokers.metadata.znodes import StatesChanged, TopicChanged, TopicZnode
from fleetlog.brokers.model import BrokerId, PartitionState, TopicPartition
from fleetlog.coordination.store import Create, Delete, SetData

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)
MARKS = ClusterMarks(0, 9, 100, 7, 4999)
TREE = ClusterMarks(0, 4, 50, 3)


def _image(replicas: tuple[int, ...] = (1, 2), epoch: int = 3) -> MetadataImage:
    brokers = tuple(map(BrokerId, replicas))
    image = MetadataImage()
    state = PartitionState(brokers, brokers[0], epoch, brokers, 5, 4, 1, (1,) * len(brokers))
    changes = [TopicChanged("t", TopicZnode(OLD, (brokers,)), 0), StatesChanged("t", OLD, {0: state})]
    image.apply(changes, MetadataDelta())
    return image


def _log(end: int, epoch: int = 6, topic: str = "t", topic_id: uuid.UUID = OLD, partition: int = 0) -> LogSummary:
    return LogSummary(topic, partition, topic_id, epoch, 0, end)


def _plan(image: MetadataImage, logs: dict[int, list[LogSummary]], **options: object) -> RepairPlan:
    inventories = [Inventory(broker_id, MARKS, held) for broker_id, held in logs.items()]
    return plan_repair(image, inventories, dict.fromkeys(logs, TREE), **options)  # type: ignore[arg-type]


def _states(plan: RepairPlan, topic: str) -> dict[str, PartitionState]:
    return {
        operation.path: znodes.decode_state(operation.path, operation.data, (), 0)
        for operation in plan.topics[topic]
        if isinstance(operation, Create | SetData) and operation.path.endswith("/state")
    }


def test_numbers_go_on_above_all_that_were_seen() -> None:
    plan = _plan(_image(), {1: [_log(10)], 2: [_log(10)]})
    assert (plan.generation, plan.controller_epoch, plan.producer_id) == (1, 10, 4999)
    assert plan.incarnations == {1: 7, 2: 7}


def test_the_log_that_reaches_furthest_is_in_sync() -> None:
    plan = _plan(_image(), {1: [_log(90, epoch=5)], 2: [_log(80, epoch=6)]})
    (state,) = _states(plan, "t").values()
    assert (state.leader, state.isr, state.isr_incarnations) == (-1, (2,), (8,))
    assert state.leader_epoch == 6 + EPOCHS_LEFT_OUT
    plan = _plan(_image(), {1: [_log(90)], 2: [_log(90)]})
    (state,) = _states(plan, "t").values()
    assert state.isr == (1, 2)


def test_a_partition_that_moved_is_where_its_logs_are() -> None:
    plan = _plan(_image((1, 2)), {1: [_log(90)], 2: [], 3: [_log(90)]})
    head = plan.topics["t"][0]
    assert isinstance(head, SetData)
    assert znodes.decode_topic(head.path, head.data).assignment == ((1, 3),)


def test_a_topic_that_the_tree_does_not_know_is_made_again_and_keeps_its_records() -> None:
    made = [_log(5, topic="n", topic_id=NEW, partition=partition) for partition in (0, 2)]
    plan = _plan(_image(), {1: [_log(9), *made], 2: [_log(9)]})
    operations = plan.topics["n"]
    assert isinstance(operations[0], Create)
    assert znodes.decode_topic("/n", operations[0].data).id == NEW
    (config,) = [one for one in operations if isinstance(one, Create) and one.path == "/config/topics/n"]
    assert json.loads(config.data)["config"]["retention.ms"] == "-1"
    assert len(_states(plan, "n")) == 3
    assert any("partition 1" in line for line in plan.lines)


def test_a_topic_that_was_made_again_has_the_later_id() -> None:
    plan = _plan(_image(), {1: [_log(5, topic_id=NEW)], 2: [_log(9)]})
    kinds = [type(operation) for operation in plan.topics["t"]]
    assert kinds.index(Create) > kinds.index(Delete)
    (made,) = [one for one in plan.topics["t"] if isinstance(one, Create) and one.path == znodes.topic_path("t")]
    assert znodes.decode_topic("/t", made.data).id == NEW


def test_a_topic_without_any_log_was_deleted() -> None:
    plan = _plan(_image(), {1: [], 2: []})
    assert {type(operation) for operation in plan.topics["t"]} == {Delete}
    assert Delete(znodes.state_path(TopicPartition("t", 0))) in plan.topics["t"]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(CannotRepair, match="nothing to repair"):
        plan_repair(_image(), [], {})
    with pytest.raises(CannotRepair, match=r"broker\(s\) 2, 5"):
        _plan(_image(), {1: [_log(9)]}, known_brokers=[5])
    assert _plan(_image(), {1: [_log(9)]}, known_brokers=[5], without=[2, 5]).topics
    offline = Inventory(1, MARKS, [], ["/data/b"])
    with pytest.raises(CannotRepair, match="/data/b"):
        plan_repair(_image((1,)), [offline], {1: TREE})


def test_a_producer_id_that_a_client_made_up_is_not_believed() -> None:
    inventories = [Inventory(1, MARKS, [_log(1)], producer_id=5100), Inventory(2, MARKS, [], producer_id=2**62)]
    plan = plan_repair(_image(), inventories, {1: TREE, 2: TREE}, allocated_id=999)
    assert plan.producer_id == 5100
    assert BELIEVED_IDS > 5100
