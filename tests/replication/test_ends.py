"""How far replicas reach: a broker's answer about its real logs, and the asking of it."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import InTask
from fleetlog.brokers.api.replicas import handle_replica_ends
from fleetlog.brokers.log import DiskFailed
from fleetlog.brokers.model import BrokerId, LogEnd
from fleetlog.brokers.peers.calls import PeerUnavailable
from fleetlog.brokers.replication import ends
from fleetlog.brokers.replication.ends import ReplicaEnd
from fleetlog.coordination.store import StoreError
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from tests.support.stage import ME, OTHER, Stage

KEY = api_keys.REPLICA_ENDS


class Line:
    """The way to one broker: requests and answers go through bytes; ``twist`` changes an answer on the way."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.requests: list[Any] = []
        self.twist = lambda answer: None

    async def call(self, broker_id: int, api_key: int, version: int, message: Any, timeout_ms: int = 30_000) -> Any:
        request = m.decode_request(api_key, version, memoryview(message.encode(version=version)))
        self.requests.append(request)
        outcome = handle_replica_ends(request, self.stage.context(api_key, version))
        done: Any = await outcome.coroutine if isinstance(outcome, InTask) else outcome
        answer = m.decode_response(api_key, version, m.encode_response(done.response, api_key, version))
        self.twist(answer)
        return answer

    async def exchange(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int = 30_000
    ) -> memoryview:
        raise NotImplementedError


def ask(line: Line, asked: dict[uuid.UUID, list[int]]) -> tuple[int, dict[uuid.UUID, dict[int, ReplicaEnd]]]:
    return asyncio.run(ends.ask(line, BrokerId(1), asked))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path)
    monkeypatch.setattr(stage.metadata, "refreshed", AsyncMock(return_value=True))
    return stage


def test_a_broker_reports_its_logs(stage: Stage) -> None:
    led = stage.topic("led", epoch=3)
    for _ in range(4):
        stage.append("led", count=5)
    followed = stage.topic("followed", epoch=6, leader=OTHER, replicas=(ME, OTHER))
    given_up = stage.topic("given up", 2, epoch=1)
    stage.append("given up", count=7, index=1)
    stage.topic("given up", 2, epoch=2, leader=-1, incarnation=-1)
    elsewhere = stage.topic("elsewhere", epoch=9, leader=OTHER, replicas=(OTHER,))
    unknown = uuid.uuid4()
    asked = {led.id: [0, 1], followed.id: [0], given_up.id: [0, 1], elsewhere.id: [0], unknown: [0]}
    incarnation, found = ask(Line(stage), asked)
    assert incarnation == stage.incarnation
    assert found == {
        led.id: {
            0: ReplicaEnd(ErrorCode.NONE, 3, LogEnd(3, 20, ((3, 0),)), is_leader=True),
            1: ReplicaEnd(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        },
        followed.id: {0: ReplicaEnd(ErrorCode.NONE, 6, LogEnd(-1, 0))},
        given_up.id: {
            0: ReplicaEnd(ErrorCode.NONE, 2, LogEnd(1, 0, ((1, 0),))),
            1: ReplicaEnd(ErrorCode.NONE, 2, LogEnd(1, 7, ((1, 0),))),
        },
        elsewhere.id: {0: ReplicaEnd(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 9)},
        unknown: {0: ReplicaEnd(ErrorCode.UNKNOWN_TOPIC_ID)},
    }


def test_an_unknown_topic_may_have_been_created_since(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has read neither knows a created and deleted topic as little as one that has read both."""
    created = uuid.uuid4()

    async def refreshed(timeout_ms: int) -> bool:
        stage.topic("t", epoch=3, topic_id=created)
        return True

    monkeypatch.setattr(stage.metadata, "refreshed", refreshed)
    _, found = ask(Line(stage), {created: [0]})
    assert found[created][0] == ReplicaEnd(ErrorCode.NONE, 3, LogEnd(3, 0, ((3, 0),)), is_leader=True)


@pytest.mark.parametrize("outcome", [{"return_value": False}, {"side_effect": StoreError("no ZooKeeper")}])
def test_whether_a_topic_is_unknown_is_not_said_without_zookeeper(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, outcome: dict[str, Any]
) -> None:
    known = stage.topic("t")
    monkeypatch.setattr(stage.metadata, "refreshed", AsyncMock(**outcome))
    unknown = uuid.uuid4()
    _, found = ask(Line(stage), {known.id: [0], unknown: [0]})
    assert found[known.id][0].is_leader
    assert found[unknown] == {0: ReplicaEnd(ErrorCode.BROKER_NOT_AVAILABLE)}


def test_a_failed_log_answers_without_an_end(stage: Stage) -> None:
    info = stage.topic("t", epoch=3)
    stage.append("t")
    stage.partition("t").log.fail(DiskFailed("data", "planted"))
    _, found = ask(Line(stage), {info.id: [0]})
    assert found[info.id][0] == ReplicaEnd(ErrorCode.KAFKA_STORAGE_ERROR, 3, None, is_leader=True)


def test_many_partitions_are_asked_for_in_bounded_requests(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "PARTITIONS_PER_REQUEST", 3)
    first, second = stage.topic("a", 5), stage.topic("b", 4)
    line = Line(stage)
    _, found = ask(line, {first.id: list(range(5)), second.id: list(range(4))})
    assert [sum(len(t.partitions) for t in request.topics) for request in line.requests] == [3, 3, 3]
    assert {topic: sorted(answers) for topic, answers in found.items()} == {
        first.id: list(range(5)),
        second.id: list(range(4)),
    }


def test_answers_of_two_incarnations_are_rejected(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "PARTITIONS_PER_REQUEST", 1)
    info = stage.topic("t", 2)
    line = Line(stage)

    def restarted(answer: Any) -> None:
        answer.incarnation = 7 + len(line.requests)

    line.twist = restarted
    with pytest.raises(PeerUnavailable):
        ask(line, {info.id: [0, 1]})


def test_a_broker_without_registration_gives_no_answer(stage: Stage) -> None:
    info = stage.topic("t")
    del stage.metadata.brokers[ME]
    with pytest.raises(PeerUnavailable, match="error 8"):
        ask(Line(stage), {info.id: [0]})
