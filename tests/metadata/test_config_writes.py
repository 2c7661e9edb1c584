"""Dynamic configurations: what an alteration does (pure), and two concurrent writers in ZooKeeper (real)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleetlog.brokers import setting_kinds
from fleetlog.brokers.acls.access import Access
from fleetlog.brokers.api import config_alterations
from fleetlog.brokers.api.base import ClientConnection, Context
from fleetlog.brokers.api.config_alterations import (
    MAX_UNKNOWN,
    Alteration,
    Operation,
    Resource,
    Unknown,
    altered,
    check_broker_settings,
    check_group_settings,
    setting_of,
)
from fleetlog.brokers.api.config_values import GROUP_SETTINGS
from fleetlog.brokers.api.configs import MAX_ALTERATIONS, handle_alter_configs, handle_incremental_alter_configs
from fleetlog.brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig
from fleetlog.brokers.controller.requests import NewTopic, Refused
from fleetlog.brokers.groups.requests import ConsumerSettings, ShareSettings
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.metadata.config_writes import EntityGone, alter_config
from fleetlog.brokers.model import INTERNAL_TOPICS
from fleetlog.coordination.store import StoreError
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode
from tests.support.nodes import Node, Nodes, lose_the_answer
from tests.support.stores import on_loop
from tests.support.waiting import eventually_async

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
    "delete what is unknown": (Resource.TOPIC, {"from.the.future": "1"}, [("from.the.future", DELETE, None)], {}),
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
    "what tiering would use": (
        Resource.TOPIC,
        {"retention.ms": "5"},
        [
            ("remote.storage.enable", SET, "true"),
            ("local.retention.ms", SET, "9"),
            ("message.format.version", SET, "3"),
        ],
        {
            "retention.ms": "5",
            "remote.storage.enable": "true",
            "local.retention.ms": "9",
            "message.format.version": "3",
        },
    ),
    "a broker's, inert": (
        Resource.BROKER,
        {},
        [("log.cleaner.threads", SET, "2"), ("max.connections", SET, "7"), ("num.io.threads", SET, "9")],
        {"log.cleaner.threads": "2", "max.connections": "7", "num.io.threads": "9"},
    ),
    "a plugin's on a broker": (Resource.BROKER, {}, [("my.plugin.level", SET, "2")], {"my.plugin.level": "2"}),
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
    "misspelt on a broker": (Resource.BROKER, [("log.retention.mss", SET, "5")], ErrorCode.INVALID_CONFIG),
    "inert, out of range": (Resource.TOPIC, [("local.retention.ms", SET, "-3")], ErrorCode.INVALID_CONFIG),
    "inert, no boolean": (Resource.TOPIC, [("remote.storage.enable", SET, "yes")], ErrorCode.INVALID_CONFIG),
    "a level out of range": (Resource.TOPIC, [("compression.gzip.level", SET, "0")], ErrorCode.INVALID_CONFIG),
    "inert, needs a restart": (Resource.BROKER, [("queued.max.requests", SET, "5")], ErrorCode.INVALID_CONFIG),
    "no group setting": (Resource.GROUP, [("retention.ms", SET, "5")], ErrorCode.INVALID_CONFIG),
    "one bad among good": (Resource.TOPIC, [("segment.ms", SET, "5"), ("no", SET, "1")], ErrorCode.INVALID_CONFIG),
}


def _altered(resource: Resource, present: Mapping[str, str], alterations: Sequence[Alteration]) -> dict[str, str]:
    rows = {one.name: setting_of(one, TABLES[resource], resource, Unknown()) for one in alterations}
    return altered(present, alterations, {name: row for name, row in rows.items() if row is not None}, DEFAULTS)


@pytest.mark.parametrize("name", WORKS)
def test_an_alteration_gives_these_settings(name: str) -> None:
    resource, present, steps, expected = WORKS[name]
    alterations = [Alteration(*step) for step in steps]
    assert _altered(resource, present, alterations) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_an_alteration_that_cannot_be_made_is_refused(name: str) -> None:
    resource, steps, error = REFUSED[name]
    with pytest.raises(Refused) as refused:
        _altered(resource, {}, [Alteration(*step) for step in steps])
    assert refused.value.error is error
    assert refused.value.message


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"session.timeout.ms": "44999"}, "range 45000 to 60000"),
        ({"session.timeout.ms": "60001"}, "range 45000 to 60000"),
        ({"heartbeat.interval.ms": "4999"}, "range 5000 to 15000"),
        ({"assignment.interval.ms": "15001"}, "range 0 to 15000"),
        ({"session.timeout.ms": "60000", "heartbeat.interval.ms": "15000", "assignment.interval.ms": "0"}, None),
    ],
)
def test_a_groups_own_times_are_within_the_brokers_bounds(wanted: dict[str, str], why: str | None) -> None:
    named = {f"consumer.{name}": value for name, value in wanted.items()}
    if why is None:
        check_group_settings({}, named, BrokerConfig(), {})
        return
    with pytest.raises(Refused, match=why) as refused:
        check_group_settings({}, named, BrokerConfig(), {})
    assert refused.value.error is ErrorCode.INVALID_CONFIG
    check_group_settings(
        named, named, BrokerConfig(), {}
    )  # what was stored before is no reason to refuse another setting


def test_order_by_key_needs_leaders_that_know_it() -> None:
    wanted = {"fleetlog.share.order": "key"}
    for level in ({}, {"share.version": 1}):
        with pytest.raises(Refused, match=r"fleetlog\.share\.order needs share\.version 2"):
            check_group_settings({}, wanted, BrokerConfig(), level)
    check_group_settings({}, wanted, BrokerConfig(), {"share.version": 2})
    check_group_settings(wanted, wanted, BrokerConfig(), {})


def test_a_groups_session_is_longer_than_its_heartbeats() -> None:
    broker = BrokerConfig(group_consumer_max_heartbeat_interval_ms=60_000)
    wanted = {"consumer.heartbeat.interval.ms": "50000"}
    with pytest.raises(Refused, match="must be greater than"):
        check_group_settings({}, wanted, broker, {})
    check_group_settings({}, {**wanted, "consumer.session.timeout.ms": "50001"}, broker, {})


async def alter_without_zookeeper(key: int, resources: Sequence[tuple[int, str, Sequence[str]]]) -> list[ErrorCode]:
    """What is set at a broker whose store must not be touched; not only validated."""
    request = messages.request_class(key)
    resource = request.AlterConfigsResource
    fields: dict[str, Any] = {"value": "x", **({"config_operation": SET} if key == 44 else {})}
    rows = [
        resource(
            resource_type=kind, resource_name=name, configs=[resource.AlterableConfig(name=k, **fields) for k in keys]
        )
        for kind, name, keys in resources
    ]
    view = MetadataCache(cast(Any, None), BrokerConfig(broker_id=1, zookeeper_connect="unused"), cast(Any, None))
    context = Context(
        cast(Any, SimpleNamespace(metadata=view, store=None, access=Access())),
        ClientConnection(1, "PLAINTEXT", "h"),
        key,
        1,
        1,
        "client",
    )
    handle = handle_incremental_alter_configs if key == 44 else handle_alter_configs
    done: Any = await handle(request(resources=rows, validate_only=False), context).coroutine
    return [ErrorCode(row.error_code) for row in done.response.responses]


@pytest.mark.parametrize("entity", ["", "1"])
@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"max.connections.per.ip": "0"}, ErrorCode.INVALID_CONFIG),
        ({"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:9"}, ErrorCode.NONE),
        ({"log.retention.ms": "0"}, ErrorCode.INVALID_CONFIG),
        ({"log.retention.ms": "-1"}, ErrorCode.NONE),
        ({"message.max.bytes": "200000000"}, ErrorCode.INVALID_CONFIG),
    ],
)
@on_loop
async def test_no_alteration_makes_what_a_start_refuses(
    entity: str, settings: dict[str, str], error: ErrorCode
) -> None:
    request = messages.request_class(44)
    kind = request.AlterConfigsResource
    rows = [kind.AlterableConfig(name=name, value=text, config_operation=SET) for name, text in settings.items()]
    asked = request(
        resources=[kind(resource_type=Resource.BROKER, resource_name=entity, configs=rows)], validate_only=True
    )
    broker = BrokerConfig(broker_id=1, zookeeper_connect="unused")
    view = MetadataCache(cast(Any, None), broker, cast(Any, None))
    services: Any = SimpleNamespace(metadata=view, store=None, access=Access())
    context = Context(services, ClientConnection(1, "PLAINTEXT", "h"), 44, 1, 1, "client")
    done: Any = await handle_incremental_alter_configs(asked, context).coroutine
    [row] = done.response.responses
    assert (row.error_code, bool(row.error_message)) == (error, error is not ErrorCode.NONE)


@pytest.mark.parametrize("stored", [{"log.retention.ms": "0"}, {}])
def test_what_was_stored_before_does_not_keep_from_other_settings(stored: dict[str, str]) -> None:
    def broker() -> BrokerConfig:
        return BrokerConfig(log_retention_ms=0)

    check_broker_settings(stored, {**stored, "log.segment.bytes": "5000000"}, broker)
    with pytest.raises(Refused, match="at least 1, or -1 for ever"):
        check_broker_settings(stored, {**stored, "max.connections.per.ip": "5"}, broker)


@pytest.mark.parametrize("key", [33, 44])
@pytest.mark.parametrize("kind", [Resource.TOPIC, Resource.BROKER, Resource.GROUP])
@on_loop
async def test_thousands_of_unknown_names_are_refused_before_anything_is_waited_for(
    key: int, kind: Resource, compared: list[str]
) -> None:
    names = [f"u.{number}" for number in range(13_000)]
    assert await alter_without_zookeeper(key, [(kind, "1", names)]) == [ErrorCode.INVALID_REQUEST]
    assert compared == []
    several = [(kind, str(number), names[: MAX_ALTERATIONS // 2]) for number in range(300)]
    refused = ErrorCode.INVALID_REQUEST if kind is Resource.BROKER else ErrorCode.INVALID_CONFIG
    assert await alter_without_zookeeper(key, several) == [refused] * 300
    assert len(compared) == MAX_UNKNOWN, "a comparison takes milliseconds"


@on_loop
async def test_an_unknown_name_for_a_topic_that_is_not_there_needs_no_look() -> None:
    assert await alter_without_zookeeper(44, [(Resource.TOPIC, "t", ["nope"])]) == [ErrorCode.INVALID_CONFIG]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are compared with all known ones."""
    found: list[str] = []

    def compare(name: str, *_: object) -> None:
        found.append(name)

    monkeypatch.setattr(setting_kinds, "resembling", compare)
    monkeypatch.setattr(config_alterations, "resembling", compare)
    return found


@pytest.mark.zookeeper
@on_loop
async def test_alterations_reach_every_broker_without_restart(connect: str) -> None:
    async with Nodes(connect) as nodes:
        for broker_id in (1, 2):
            await nodes.start(broker_id)
        boss = await nodes.controller()
        other = next(node for node in nodes.alive.values() if node is not boss)
        await boss.controller.create_topics([NewTopic("t", configs={"segment.ms": "9"})])
        await nodes.agree(lambda node: "t" in node.metadata.topics)
        await alter_config(other.store, other.metadata, "topics", "t", lambda now: {**now, "retention.ms": "77"})
        assert other.metadata.topic_config("t").retention_ms == 77
        await nodes.agree(lambda node: node.metadata.topic_config("t").retention_ms == 77)
        assert boss.metadata.topic_config("t").segment_ms == 9

        default = znodes.DEFAULT_ENTITY
        await alter_config(other.store, other.metadata, "brokers", default, lambda now: {"log.segment.ms": "1"})
        await alter_config(other.store, other.metadata, "brokers", default, lambda now: {"message.max.bytes": "4000"})
        await alter_config(
            other.store, other.metadata, "brokers", str(boss.id), lambda now: {"message.max.bytes": "5000"}
        )
        wanted = {boss.id: 5000, other.id: 4000}
        await nodes.agree(lambda node: node.metadata.topic_config("t").max_message_bytes == wanted[node.id])
        assert boss.config.message_max_bytes != 5000, "the static configuration stays what it was"
        late = await nodes.start(3)
        assert late.metadata.topic_config("t").max_message_bytes == 4000
        assert late.metadata.topic_config("t").retention_ms == 77


@pytest.mark.zookeeper
@on_loop
async def test_a_groups_settings_are_made_anew_when_something_changes(connect: str) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1)
        await nodes.controller()

        def settings(group_id: str) -> ConsumerSettings:
            return node.metadata.group_settings(ConsumerSettings.of, group_id)

        assert settings("g") is settings("h") == ConsumerSettings()
        assert node.metadata.group_settings(ShareSettings.of, "g") == ShareSettings()
        own = {"consumer.session.timeout.ms": "50000"}
        await alter_config(node.store, node.metadata, "groups", "g", lambda now: own)
        assert settings("g") is settings("g") == ConsumerSettings(session_timeout_ms=50_000)
        assert settings("h") == ConsumerSettings()
        name = "group.consumer.assignment.interval.ms"
        await alter_config(node.store, node.metadata, "brokers", "1", lambda now: {name: "7"})
        assert settings("g") == ConsumerSettings(session_timeout_ms=50_000, assignment_interval_ms=7)
        assert settings("h") == ConsumerSettings(assignment_interval_ms=7)
        await alter_config(node.store, node.metadata, "groups", "g", lambda now: {})
        assert settings("g") is settings("h")


async def alter_topics(node: Node, names: Sequence[str], key: int = 44) -> dict[str, ErrorCode]:
    """IncrementalAlterConfigs (44) or AlterConfigs (33) at that broker; the answers by topic."""
    request = messages.request_class(key)
    resource = request.AlterConfigsResource
    fields: dict[str, Any] = {"name": "retention.ms", "value": "77"}
    if key == 44:
        fields["config_operation"] = SET
        handle: Any = handle_incremental_alter_configs
    else:
        handle = handle_alter_configs
    rows = [
        resource(resource_type=Resource.TOPIC, resource_name=name, configs=[resource.AlterableConfig(**fields)])
        for name in names
    ]
    services: Any = SimpleNamespace(metadata=node.metadata, store=node.store, access=Access())
    context = Context(services, ClientConnection(1, "PLAINTEXT", "127.0.0.1"), key, 1, 1, "client")
    done: Any = await handle(request(resources=rows, validate_only=False), context).coroutine
    return {row.resource_name: ErrorCode(row.error_code) for row in done.response.responses}


@pytest.mark.zookeeper
@on_loop
async def test_the_retention_of_internal_topics_is_the_brokers(connect: str) -> None:
    """Who may alter configurations could drop all committed offsets by it: Kafka lets them."""
    async with Nodes(connect) as nodes:
        node = await nodes.start(1)
        boss = await nodes.controller()
        configs = {"cleanup.policy": "compact"}
        await boss.controller.create_topics([NewTopic(name, configs=configs) for name in sorted(INTERNAL_TOPICS)])
        await eventually_async(lambda: node.metadata.topics.keys() >= INTERNAL_TOPICS, "the topics are known")
        for key in (33, 44):
            answers = await alter_topics(node, sorted(INTERNAL_TOPICS), key)
            assert answers == dict.fromkeys(sorted(INTERNAL_TOPICS), ErrorCode.POLICY_VIOLATION)
        assert node.metadata.topic_config("__consumer_offsets").cleanup_policy == ("compact",)
        permitting = dataclasses.replace(node.metadata.static, internal_topics_alter_enable=True)
        node.metadata.static = permitting
        assert await alter_topics(node, ["__consumer_offsets"]) == {"__consumer_offsets": ErrorCode.NONE}


@pytest.mark.zookeeper
@pytest.mark.parametrize("key", [33, 44])
@on_loop
async def test_a_topic_that_another_broker_has_just_created_can_be_altered(
    connect: str, key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client was told by the controller that the topic is there; the broker that it asks now lags behind."""
    async with Nodes(connect) as nodes:
        for broker_id in (1, 2):
            await nodes.start(broker_id)
        boss = await nodes.controller()
        other = next(node for node in nodes.alive.values() if node is not boss)
        read, lagging = other.metadata._read, asyncio.Event()

        async def late(whole: bool) -> None:
            await lagging.wait()
            await read(whole)

        monkeypatch.setattr(other.metadata.watcher, "_read", late)
        looks, refreshed = 0, other.metadata.refreshed

        async def counted(timeout_ms: int) -> bool:
            nonlocal looks
            looks += 1
            return await refreshed(timeout_ms)

        monkeypatch.setattr(other.metadata, "refreshed", counted)
        await boss.controller.create_topics([NewTopic("new")])
        await eventually_async(lambda: "new" in boss.metadata.topics, "the topic is known")
        assert "new" not in other.metadata.topics
        answers = asyncio.create_task(alter_topics(other, ["new", "no.such", "nor.this", "wrong name"], key))
        await eventually_async(lambda: looks > 0, "the other broker asks ZooKeeper")
        lagging.set()
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await answers == {
            "new": ErrorCode.NONE,
            "no.such": unknown,
            "nor.this": unknown,
            "wrong name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert looks == 1, "one look for the whole request"
        await nodes.agree(lambda node: node.metadata.topic_config("new").retention_ms == 77)


@pytest.mark.zookeeper
@on_loop
async def test_a_topic_that_cannot_be_looked_for_is_not_called_unknown(connect: str) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1)
        await nodes.controller()

        async def away(_path: str) -> None:
            raise StoreError("ZooKeeper is away")

        node.store.sync = away  # type: ignore[method-assign]
        timed_out = ErrorCode.REQUEST_TIMED_OUT
        assert await alter_topics(node, ["a", "b"]) == {"a": timed_out, "b": timed_out}


@pytest.mark.zookeeper
@on_loop
async def test_two_writers_lose_nothing(connect: str) -> None:
    async with Nodes(connect) as nodes:
        for broker_id in (1, 2):
            await nodes.start(broker_id)
        boss = await nodes.controller()
        await boss.controller.create_topics([NewTopic("t")])
        await nodes.agree(lambda node: "t" in node.metadata.topics)

        def adding(name: str, number: int) -> object:
            def step(now: Mapping[str, str]) -> dict[str, str]:
                return {**now, name: str(number)}

            return step

        names = ["retention.ms", "segment.ms", "flush.ms", "retention.bytes", "segment.bytes", "delete.retention.ms"]
        writers = list(nodes.alive.values())
        await asyncio.gather(
            *(
                alter_config(writers[i % 2].store, writers[i % 2].metadata, "topics", "t", adding(name, 1000 + i))
                for i, name in enumerate(names)
            )
        )
        await nodes.agree(lambda node: len(node.metadata.topics["t"].configs) == len(names))
        assert boss.metadata.topics["t"].configs == {name: str(1000 + i) for i, name in enumerate(names)}


@pytest.mark.zookeeper
@pytest.mark.parametrize("applied", [True, False])
@on_loop
async def test_a_lost_answer_is_settled_by_reading(connect: str, applied: bool) -> None:
    async with Nodes(connect) as nodes:
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
        await alter_config(node.store, node.metadata, "topics", "t", lambda now: {**now, "retention.ms": "77"})
        assert lost
        assert node.metadata.topic_config("t").retention_ms == 77
        assert node.metadata.config_version("topics", "t") == 1


@pytest.mark.zookeeper
@on_loop
async def test_a_topic_that_is_gone_keeps_no_configuration(connect: str) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1)
        await nodes.controller()
        await node.controller.create_topics([NewTopic("t", configs={"retention.ms": "5"})])
        await node.controller.delete_topics(["t"])
        with pytest.raises(EntityGone):
            await alter_config(node.store, node.metadata, "topics", "t", lambda now: {"retention.ms": "77"})
        (made,) = await node.controller.create_topics([NewTopic("t")])
        assert made.ok
        assert node.metadata.topics["t"].configs == {}


@pytest.mark.zookeeper
@on_loop
async def test_unknown_settings_do_not_make_a_topic_unusable(connect: str) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1)
        await nodes.controller()
        await node.controller.create_topics([NewTopic("t")])
        odd = {"from.the.future": "1", "segment.ms": "soon", "retention.ms": "5"}
        await alter_config(node.store, node.metadata, "topics", "t", lambda now: odd)
        assert node.metadata.topic_config("t").retention_ms == 5
        assert node.metadata.topic_config("t").segment_ms == node.config.topic_defaults().segment_ms


@pytest.mark.zookeeper
@on_loop
async def test_a_topic_deleted_at_the_last_moment_leaves_no_configuration_behind(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        other = await nodes.start(2)
        await boss.controller.create_topics([NewTopic("t")])
        await nodes.agree(lambda node: "t" in node.metadata.topics)
        await boss.real.delete(znodes.config_path("topics", "t"))  # so that the write is a creation

        async def delete_first() -> None:
            other.store.before_multi = lambda number, operations: None
            boss.metadata.image.config_versions.clear()
            await boss.controller.delete_topics(["t"])

        other.store.before_multi = lambda number, operations: delete_first()
        with pytest.raises(EntityGone):
            await alter_config(other.store, other.metadata, "topics", "t", lambda now: {"retention.ms": "77"})
        assert await boss.real.exists(znodes.config_path("topics", "t")) is None


@pytest.mark.zookeeper
@on_loop
async def test_a_configuration_that_cannot_be_read_is_named_and_the_others_are_altered(connect: str) -> None:
    async with Nodes(connect) as nodes:
        boss = await nodes.start(1)
        await nodes.controller()
        await boss.controller.create_topics([NewTopic("damaged"), NewTopic("whole")])
        await nodes.agree(lambda node: {"damaged", "whole"} <= set(node.metadata.topics))
        await boss.real.set(znodes.config_path(znodes.CONFIG_TOPICS, "damaged"), b"by hand")
        assert await alter_topics(boss, ["damaged", "whole"]) == {
            "damaged": ErrorCode.INVALID_CONFIG,
            "whole": ErrorCode.NONE,
        }


@pytest.mark.parametrize("name", ["a/b", "..", "a\tb", "a\x85b", "a\ue000b", "\U0001f600", "g" * 250])
@on_loop
async def test_a_group_that_no_znode_can_be_named_by_has_no_configuration(name: str) -> None:
    assert await alter_without_zookeeper(44, [(Resource.GROUP, name, [])]) == [ErrorCode.INVALID_REQUEST]
