"""Dynamic configurations: what an alteration does (pure), and how two writers meet in ZooKeeper (real)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from brokers.api.config_values import GROUP_SETTINGS
from brokers.api.configs import Alteration, Operation, Resource, altered
from brokers.cluster import znodes
from brokers.cluster.config_writes import EntityGone, alter_config
from brokers.cluster.requests import NewTopic, Refused
from brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS
from tests.cluster.nodes import Nodes, lose_the_answer
from tests.coordination.support import on_loop
from wire.errors import ErrorCode

SET, DELETE, APPEND, SUBTRACT = Operation
TABLES = {Resource.TOPIC: TOPIC_SETTINGS, Resource.BROKER: BROKER_SETTINGS, Resource.GROUP: GROUP_SETTINGS}
DEFAULTS = {"cleanup.policy": "delete", "log.cleanup.policy": "delete"}

WORKS = {
    "set": (Resource.TOPIC, {}, [("retention.ms", SET, "5")], {"retention.ms": "5"}),
    "set again": (Resource.TOPIC, {"retention.ms": "5"}, [("retention.ms", SET, "6")], {"retention.ms": "6"}),
    "delete": (
        Resource.TOPIC,
        {"retention.ms": "5", "segment.ms": "7"},
        [("retention.ms", DELETE, None)],
        {"segment.ms": "7"},
    ),
    "delete what isn't set": (Resource.TOPIC, {}, [("retention.ms", DELETE, None)], {}),
    "delete what nobody knows": (Resource.TOPIC, {"from.the.future": "1"}, [("from.the.future", DELETE, None)], {}),
    "append to the default": (
        Resource.TOPIC,
        {},
        [("cleanup.policy", APPEND, "compact")],
        {"cleanup.policy": "delete,compact"},
    ),
    "append twice": (
        Resource.TOPIC,
        {"cleanup.policy": "delete,compact"},
        [("cleanup.policy", APPEND, "compact")],
        {"cleanup.policy": "delete,compact"},
    ),
    "subtract": (
        Resource.BROKER,
        {"log.cleanup.policy": "delete,compact"},
        [("log.cleanup.policy", SUBTRACT, "delete")],
        {"log.cleanup.policy": "compact"},
    ),
    "broker": (
        Resource.BROKER,
        {},
        [("background.threads", SET, "5"), ("sasl.kerberos.min.time.before.relogin", SET, "58000")],
        {"background.threads": "5", "sasl.kerberos.min.time.before.relogin": "58000"},
    ),
    "group": (
        Resource.GROUP,
        {},
        [("share.auto.offset.reset", SET, "earliest")],
        {"share.auto.offset.reset": "earliest"},
    ),
    "small segments": (
        Resource.TOPIC,
        {},
        [("segment.bytes", SET, "1048576"), ("segment.ms", SET, "500"), ("max.compaction.lag.ms", SET, "9")],
        {"segment.bytes": "1048576", "segment.ms": "500", "max.compaction.lag.ms": "9"},
    ),
}

REFUSED = {
    "unknown": (Resource.TOPIC, [("no.such", SET, "5")], ErrorCode.INVALID_CONFIG),
    "a broker's name": (Resource.TOPIC, [("log.retention.ms", SET, "5")], ErrorCode.INVALID_CONFIG),
    "no number": (Resource.TOPIC, [("retention.ms", SET, "five")], ErrorCode.INVALID_CONFIG),
    "out of range": (Resource.TOPIC, [("retention.ms", SET, "-2")], ErrorCode.INVALID_CONFIG),
    "no choice": (Resource.TOPIC, [("compression.type", SET, "zip")], ErrorCode.INVALID_CONFIG),
    "null": (Resource.TOPIC, [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
    "append to a number": (Resource.TOPIC, [("retention.ms", APPEND, "5")], ErrorCode.INVALID_CONFIG),
    "append nonsense": (Resource.TOPIC, [("cleanup.policy", APPEND, "shred")], ErrorCode.INVALID_CONFIG),
    "no operation": (Resource.TOPIC, [("retention.ms", 9, "5")], ErrorCode.INVALID_REQUEST),
    "needs a restart": (Resource.BROKER, [("num.partitions", SET, "5")], ErrorCode.INVALID_CONFIG),
    "no broker setting": (Resource.BROKER, [("retention.ms", SET, "5")], ErrorCode.INVALID_CONFIG),
    "no group setting": (Resource.GROUP, [("retention.ms", SET, "5")], ErrorCode.INVALID_CONFIG),
    "one bad among good": (Resource.TOPIC, [("segment.ms", SET, "5"), ("no", SET, "1")], ErrorCode.INVALID_CONFIG),
}


@pytest.mark.parametrize("name", WORKS)
def test_alterations(name: str) -> None:
    resource, present, steps, expected = WORKS[name]
    alterations = [Alteration(*step) for step in steps]
    assert altered(present, alterations, TABLES[resource], DEFAULTS, resource) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    resource, steps, error = REFUSED[name]
    with pytest.raises(Refused) as refused:
        altered({}, [Alteration(*step) for step in steps], TABLES[resource], DEFAULTS, resource)
    assert refused.value.error is error
    assert refused.value.message


@pytest.mark.zookeeper
@on_loop
async def test_alterations_reach_every_broker_without_restart(tree: str) -> None:
    async with Nodes(tree) as nodes:
        for broker_id in (1, 2):
            await nodes.start(broker_id)
        boss = await nodes.controller()
        other = next(node for node in nodes.alive.values() if node is not boss)
        await boss.controller.create_topics([NewTopic("t", configs={"segment.ms": "9"})])
        await nodes.agree(lambda node: "t" in node.view.topics)
        await alter_config(other.store, other.view, "topics", "t", lambda now: {**now, "retention.ms": "77"})
        assert other.view.topic_config("t").retention_ms == 77
        await nodes.agree(lambda node: node.view.topic_config("t").retention_ms == 77)
        assert boss.view.topic_config("t").segment_ms == 9

        default = znodes.DEFAULT_ENTITY
        await alter_config(other.store, other.view, "brokers", default, lambda now: {"log.segment.ms": "1"})
        await alter_config(other.store, other.view, "brokers", default, lambda now: {"message.max.bytes": "4000"})
        await alter_config(other.store, other.view, "brokers", str(boss.id), lambda now: {"message.max.bytes": "5000"})
        wanted = {boss.id: 5000, other.id: 4000}
        await nodes.agree(lambda node: node.view.topic_config("t").max_message_bytes == wanted[node.id])
        assert boss.config.message_max_bytes != 5000, "the static configuration stays what it was"
        late = await nodes.start(3)
        assert late.view.topic_config("t").max_message_bytes == 4000
        assert late.view.topic_config("t").retention_ms == 77


@pytest.mark.zookeeper
@on_loop
async def test_two_writers_lose_nothing(tree: str) -> None:
    async with Nodes(tree) as nodes:
        for broker_id in (1, 2):
            await nodes.start(broker_id)
        boss = await nodes.controller()
        await boss.controller.create_topics([NewTopic("t")])
        await nodes.agree(lambda node: "t" in node.view.topics)

        def adding(name: str, number: int) -> object:
            def step(now: Mapping[str, str]) -> dict[str, str]:
                return {**now, name: str(number)}

            return step

        names = ["retention.ms", "segment.ms", "flush.ms", "retention.bytes", "segment.bytes", "delete.retention.ms"]
        writers = list(nodes.alive.values())
        await asyncio.gather(
            *(
                alter_config(writers[i % 2].store, writers[i % 2].view, "topics", "t", adding(name, 1000 + i))
                for i, name in enumerate(names)
            )
        )
        await nodes.agree(lambda node: len(node.view.topics["t"].configs) == len(names))
        assert boss.view.topics["t"].configs == {name: str(1000 + i) for i, name in enumerate(names)}


@pytest.mark.zookeeper
@pytest.mark.parametrize("applied", [True, False])
@on_loop
async def test_a_lost_answer_is_settled_by_reading(tree: str, applied: bool) -> None:
    async with Nodes(tree) as nodes:
        node = await nodes.start(1)
        await nodes.controller()
        await node.controller.create_topics([NewTopic("t")])
        lost: list[int] = []

        def lose_once(number: int, _operations: object) -> None:
            if not lost:
                lost.append(number)
                lose_the_answer(number, [])

        if applied:
            node.store.after_multi = lose_once
        else:
            node.store.before_multi = lose_once
        await alter_config(node.store, node.view, "topics", "t", lambda now: {**now, "retention.ms": "77"})
        assert lost
        assert node.view.topic_config("t").retention_ms == 77
        assert node.view.config_version("topics", "t") == 1


@pytest.mark.zookeeper
@on_loop
async def test_a_topic_that_is_gone_keeps_no_configuration(tree: str) -> None:
    async with Nodes(tree) as nodes:
        node = await nodes.start(1)
        await nodes.controller()
        await node.controller.create_topics([NewTopic("t", configs={"retention.ms": "5"})])
        await node.controller.delete_topics(["t"])
        with pytest.raises(EntityGone):
            await alter_config(node.store, node.view, "topics", "t", lambda now: {"retention.ms": "77"})
        (made,) = await node.controller.create_topics([NewTopic("t")])
        assert made.ok
        assert node.view.topics["t"].configs == {}


@pytest.mark.zookeeper
@on_loop
async def test_settings_somebody_else_wrote_do_not_take_a_topic_down(tree: str) -> None:
    async with Nodes(tree) as nodes:
        node = await nodes.start(1)
        await nodes.controller()
        await node.controller.create_topics([NewTopic("t")])
        odd = {"from.the.future": "1", "segment.ms": "soon", "retention.ms": "5"}
        await alter_config(node.store, node.view, "topics", "t", lambda now: odd)
        assert node.view.topic_config("t").retention_ms == 5
        assert node.view.topic_config("t").segment_ms == node.config.topic_defaults().segment_ms


@pytest.mark.zookeeper
@on_loop
async def test_a_topic_deleted_at_the_last_moment_leaves_no_configuration_behind(tree: str) -> None:
    async with Nodes(tree) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        other = await nodes.start(2)
        await boss.controller.create_topics([NewTopic("t")])
        await nodes.agree(lambda node: "t" in node.view.topics)
        await boss.real.delete(znodes.config_path("topics", "t"))  # so that the write is a creation

        async def delete_first() -> None:
            other.store.before_multi = lambda number, operations: None
            boss.view._picture.config_versions.clear()
            await boss.controller.delete_topics(["t"])

        other.store.before_multi = lambda number, operations: delete_first()
        with pytest.raises(EntityGone):
            await alter_config(other.store, other.view, "topics", "t", lambda now: {"retention.ms": "77"})
        assert await boss.real.exists(znodes.config_path("topics", "t")) is None
