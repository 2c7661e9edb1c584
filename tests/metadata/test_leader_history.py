"""What a broker keeps of the elections that it sees: newest first, bounded, and with what they may have cost."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from fleetlog.brokers.config import load_config
from fleetlog.brokers.metadata import leader_history
from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
from fleetlog.brokers.metadata.leader_history import LeaderHistory
from fleetlog.brokers.model import BrokerId, BrokerInfo, PartitionState, TopicInfo, TopicPartition

REPLICAS = (BrokerId(1), BrokerId(2), BrokerId(3))


def state(leader: int, epoch: int, isr: tuple[int, ...] = (1, 2, 3), elr: tuple[int, ...] = ()) -> PartitionState:
    return PartitionState(REPLICAS, leader, epoch, isr, epoch, 1, elr=elr)  # type: ignore[arg-type]


class Seen:
    """A metadata cache whose content a test sets, and the history that listens to it."""

    def __init__(self) -> None:
        nothing: Any = None
        config = load_config(overrides={"broker.id": "1", "zookeeper.connect": "none:1", "log.dirs": "/nowhere"})
        self.cache = MetadataCache(nothing, config, nothing)
        self.topic_id = uuid.uuid4()
        self.now_ms = 1_000
        self.put(state(1, 0), state(-1, -1, ()))
        self.history = LeaderHistory(self.cache, lambda: self.now_ms)

    def put(self, *states: PartitionState) -> None:
        self.cache.topics["t"] = TopicInfo("t", self.topic_id, states, {})  # type: ignore[index]

    def change(self, *states: PartitionState, **change: Any) -> None:
        self.now_ms += 1
        if states:
            self.put(*states)
            change = {"partitions_changed": tuple(TopicPartition("t", n) for n in range(len(states)))}
        self.cache._notify(MetadataChange(**change))

    def found(self) -> list[tuple[int, int, int, int, bool]]:
        rows = self.history.elections()
        return [(one.at_ms, one.partition, one.previous, one.leader, one.unclean) for one in rows]


def test_changes_of_leaders_are_kept_and_others_are_not() -> None:
    seen = Seen()
    seen.change(state(1, 0, (1, 2)), state(2, 0))  # an in-sync set, and a first leader
    assert seen.found() == []
    seen.change(state(2, 1, (2,)), state(2, 0))
    seen.change(state(-1, 2, (2,)), state(2, 0, (2,)))
    seen.change(state(3, 3, (3,)), state(3, 1, (3,), (1,)))
    assert seen.found() == [
        (1004, 1, 2, 3, True), (1004, 0, -1, 3, True), (1003, 0, 2, -1, False), (1002, 0, 1, 2, False),
    ]  # fmt: skip
    seen.change(state(3, 3, (3,)), state(1, 2, (1,)))
    assert seen.found()[0] == (1005, 1, 3, 1, False), "an eligible replica has all that was acknowledged"
    assert seen.history.since_ms == 1_000


def test_a_topic_of_the_same_name_is_another_one() -> None:
    seen = Seen()
    old = seen.cache.topics["t"]
    seen.topic_id = uuid.uuid4()
    seen.put(state(2, 5))
    seen.now_ms += 1
    seen.cache._notify(
        MetadataChange(("t",), deleted=(old,), partitions_changed=(TopicPartition("t", 0),), reloaded=False)
    )
    assert seen.found() == []
    seen.change(state(3, 6))
    assert len(seen.found()) == 1


def test_controllers_and_registrations_are_kept() -> None:
    seen = Seen()
    seen.cache.controller_id = 2
    seen.cache.brokers = {n: BrokerInfo(n, 1, 1, (), None) for n in REPLICAS}
    seen.change(controller_changed=True, brokers_changed=True)
    seen.cache.brokers = {n: one for n, one in seen.cache.brokers.items() if n != 2}
    seen.cache.controller_id = -1
    seen.change(controller_changed=True, brokers_changed=True)
    assert [tuple(one) for one in seen.history.controllers] == [(1001, 2), (1002, -1)]
    assert [tuple(one) for one in seen.history.brokers] == [
        (1001, 1, True), (1001, 2, True), (1001, 3, True), (1002, 2, False),
    ]  # fmt: skip


def test_what_is_dropped_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_history, "ELECTIONS_KEPT", 3)
    seen = Seen()
    for epoch in range(1, 6):
        seen.change(state(1 + epoch % 2, epoch), state(-1, -1, ()))
    assert [one.leader_epoch for one in seen.history.elections()] == [5, 4, 3]
    assert seen.history.since_ms == 1_003
