"""The settings: one declaration each; files, environment and flags; what is refused, and how it is said."""

from __future__ import annotations

import re
import time

import pytest

from fleetlog.brokers.api.config_alterations import (
    check_internal_topic,
    check_tiering_settings,
    check_topic,
    without_idle_mark,
)
from fleetlog.brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, ConfigError, TopicConfig, load_config
from fleetlog.brokers.controller.requests import Refused, check_configs, check_schemas, check_tiering
from fleetlog.brokers.inert_settings import KAFKA_BROKER_SETTINGS, KAFKA_TOPIC_SETTINGS, OIDC_SETTINGS
from fleetlog.brokers.metadata.cache import effective_config
from fleetlog.brokers.setting_kinds import SettingType, table_of, without_effect
from fleetlog.wire.errors import ErrorCode

MINIMAL = "broker.id=1\nzookeeper.connect=127.0.0.1:2181\n"


def test_a_minimal_file_listens_on_the_loopback_only() -> None:
    config = load_config(MINIMAL, "f")
    (endpoint,) = config.advertised_endpoints()
    assert (endpoint.listener, endpoint.host, endpoint.port) == ("PLAINTEXT", "127.0.0.1", 9092)


def test_values_are_texts_and_nothing_is_looked_up_for_them() -> None:
    """CVE-2024-31141: with Kafka's config providers a setting could read files and the environment."""
    text = MINIMAL + "config.providers=file\nconfig.providers.file.class=x.FileConfigProvider\n"
    with pytest.raises(ConfigError, match=r"config\.providers=.file.: must be one of "):
        load_config(text, "f")
    config = load_config(MINIMAL + "broker.rack=${file:/etc/passwd:root}\nlog.dirs=${env:HOME}\n", "f")
    assert (config.broker_rack, config.log_dirs) == ("${file:/etc/passwd:root}", ("${env:HOME}",))


def test_where_the_keys_of_an_issuer_are_is_for_operators_alone() -> None:
    """CVE-2025-27817: an address that a client may set would be fetched by the broker, or a file read."""
    assert OIDC_SETTINGS
    assert [name for name in sorted(OIDC_SETTINGS) if BROKER_SETTINGS[name].live] == []


def test_later_sources_win() -> None:
    text = MINIMAL + "num.partitions=2\nlog.dirs=/a, /b\ndefault.replication.factor=1\n"
    environment = {"FLEETLOG_CONFIG_NUM_PARTITIONS": "3", "FLEETLOG_CONFIG_LOG_DIRS": "/c", "HOME": "/root"}
    config = load_config(text, "f", environment, {"num.partitions": "4"})
    assert (config.num_partitions, config.log_dirs) == (4, ("/c",))


def test_the_file_format_is_javas() -> None:
    text = "# comment\n! comment\n\nbroker.id : 7\nzookeeper.connect=zk1:2181,\\\n    zk2:2181/fleet\nlog.dirs = /a=b\n"
    config = load_config(text, "f")
    assert (config.broker_id, config.zookeeper_connect, config.log_dirs) == (7, "zk1:2181,zk2:2181/fleet", ("/a=b",))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("num.partitions=many", r"f:3: num.partitions='many': must be a number \(at least 1\)"),
        ("num.partitions=0", r"f:3: num.partitions='0': must be at least 1"),
        ("num.partitons=1", r"f:3: num.partitons='1': is no setting of a broker; did you mean num.partitions\?"),
        ("auto.create.topics.enable=yes", r"f:3: auto.create.topics.enable='yes': must be true or false"),
        ("log.cleanup.policy=delete,shred", r"must be one of delete, compact"),
        ("broker.id=2", r"f:3: broker.id='2': stands twice, first at f:1"),
        ("no equals sign", r"f:3: .*must be name=value"),
        ("listeners=127.0.0.1:9092", r"must be NAME://host:port"),
        ("listeners=A://h:1,A://h:2\nlistener.security.protocol.map=A:PLAINTEXT", r"must name each listener once"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:9092", r"no client can connect to that"),
        ("listeners=PLAINTEXT://0.0.0.0:9092", r"no client can connect to that"),
        ("inter.broker.listener.name=INSIDE", r"f:3: .*must be one of PLAINTEXT$"),
        ("zookeeper.session.timeout.ms=30000", r"f:3: .*must be below replica.lag.time.max.ms"),
        ("log.retention.minutes=0", r"f:3: log.retention.minutes='0': must be at least 1, or -1 for ever"),
        ("replica.fetch.wait.max.ms=30001", r"f:3: .*must not pass replica.lag.time.max.ms"),
        ("connections.max.idle.ms=100", r"delay.ms='100': must be below connections.max.idle.ms \(100\)$"),
        ("max.connections.per.ip=0", r"f:3: max.connections.per.ip='0': shuts out every client"),
        ("message.max.bytes=209715200", r"f:3: .*must not pass socket.request.max.bytes .*refused before.*raise"),
        ("group.consumer.session.timeout.ms=6000",
         r"f:3: .*must not be below group.consumer.min.session.timeout.ms \(45000\): set that, too$"),
        ("group.consumer.heartbeat.interval.ms=20000", r"f:3: .*must not pass group.consumer.max.heartbeat"),
        ("group.consumer.max.heartbeat.interval.ms=60000\ngroup.consumer.heartbeat.interval.ms=45000",
         r"f:4: .*must be below group.consumer.session.timeout.ms \(45000\)"),
        ("group.consumer.max.assignment.interval.ms=1\ngroup.consumer.min.assignment.interval.ms=2",
         r"f:3: .*must not be below group.consumer.min.assignment.interval.ms \(2\)$"),
        ("log.dirs=,", r"f:3: .*at least one directory"),
        ("log.dirs=/a,/a/", r"f:3: .*must name each directory once"),
        ("num.partitions=3000000000", r"f:3: num.partitions='3000000000': must be at most 2147483647$"),
        ("num.partitions=-1", r"must be at least 1$"),
        ("num.partitions=1_000", r"must be a number"),
        ("num.partitions=" + "9" * 5000, r"must be a number"),
        ("socket.request.max.bytes=1", r"must be at least 1024$"),
        ("socket.request.max.bytes=2000000000", r"must be at most 1073741824$"),
        ("log.retention.ms=9223372036854775808", r"must be at most 9223372036854775807$"),
        ("log.cleaner.min.cleanable.ratio=2", r"must be at most 1$"),
        ("log.cleaner.min.cleanable.ratio=nan", r"must be a number"),
        ("listeners=PLAINTEXT://127.0.0.1:70000", r"f:3: listeners=.*the port must be a number from 0 to 65535"),
        ("listeners=PLAINTEXT://127.0.0.1:x", r"f:3: listeners=.*the port must be"),
        ("listeners=PLAINTEXT://127.0.0.1:\u0662", r"f:3: listeners=.*the port must be"),
        ("listeners=PLAINTEXT://a..b c:9092", r"f:3: listeners=.*a host's name"),
        ("listeners=PLAINTEXT://::1:9092", r"f:3: listeners=.*IPv6 address in \[\]"),
        ("listeners=PLAINTEXT://h:1,B://h:1\nlistener.security.protocol.map=PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
         r"f:3: .*must name each address once"),
        ("listeners=,", r"f:3: .*must name each listener once"),
        ("listener.security.protocol.map=PLAINTEXT", r"f:3: .*'PLAINTEXT' must be NAME:PROTOCOL"),
        ("advertised.listeners=OTHER://h:1\nlistener.security.protocol.map=PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
         r"f:3: .*is none of listeners: PLAINTEXT"),
        ("admin.listener=9644", r"f:3: admin.listener='9644': must be host:port"),
        ("admin.listener=:9644", r"f:3: admin.listener=':9644': must name a host"),
        ("admin.listener=127.0.0.1:99999", r"f:3: admin.listener=.*the port must be"),
        ("admin.listener=127.0.0.1:9092", r"f:3: admin.listener=.*is an address of listeners"),
        ("security.inter.broker.protocol=SSL", r"security.inter.broker.protocol='SSL': is the security protocol of no"),
        ("authorizer.class.name=org.example.Acl", r"name kafka.security.authorizer.AclAuthorizer or org"),
        ("super.users=User:a,b;admin", r"principals that may do everything, as Type:name with semicolons"),
        ("allow.everyone.if.no.acl.found=maybe", r"must be true or false"),
        ("node.id=2", r"must be the same as broker.id \(1\)"),
        ("queued.max.requests=0", r"f:3: queued.max.requests='0': must be at least 1"),
        ("queued.max.request=5", r"is no setting of a broker; did you mean queued.max.requests\?"),
        ("listener.name.outside.ssl.keystor=5", r"is no setting of a broker"),
    ],
)  # fmt: skip
def test_what_is_refused_and_how(line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(MINIMAL + line + "\n", "f")


def test_wrong_words_in_the_environment_and_on_the_command_line_are_refused_too() -> None:
    with pytest.raises(ConfigError, match="environment variable FLEETLOG_CONFIG_NUM_PARTITONS"):
        load_config(MINIMAL, "f", {"FLEETLOG_CONFIG_NUM_PARTITONS": "3"})
    with pytest.raises(ConfigError, match="--override"):
        load_config(MINIMAL, "f", None, {"nope": "3"})


@pytest.mark.parametrize("address", ["zk:port", "zk1:2181,,zk2:2181", "zk:2181/a//b", "zk:0"])
def test_where_zookeeper_cannot_be_is_refused_before_the_start(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^f:2: zookeeper\.connect='[^']*': (?!zookeeper)"):
        load_config(f"broker.id=1\nzookeeper.connect={address}\n", "f")


def test_addresses_of_ipv6() -> None:
    config = load_config(MINIMAL + "listeners=PLAINTEXT://[::1]:9092\nadmin.listener=[::1]:9644\n", "f")
    assert config.listener_endpoints()[0].host == "::1"
    assert config.admin_endpoint() == ("::1", 9644)


@pytest.mark.parametrize(("text", "missing"), [("broker.id=1\n", "zookeeper.connect"), (MINIMAL[12:], "broker.id")])
def test_what_is_required(text: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"{missing}.*is required"):
        load_config(text, "f")


@pytest.mark.parametrize("table", [BROKER_SETTINGS, TOPIC_SETTINGS], ids=["broker", "topic"])
def test_every_default_is_a_value_the_setting_itself_accepts(table: dict) -> None:
    for row in table.values():
        text = row.format(row.default)
        if text is not None and row.name not in ("broker.id",):
            assert row.parse(text) == row.default, row.name
        assert row.doc.endswith("."), f"{row.name} has no sentence"


def test_topic_settings_lie_over_the_brokers() -> None:
    config = load_config(MINIMAL + "log.retention.ms=5\nlog.segment.bytes=1000\n", "f")
    base = config.topic_defaults()
    assert (base.retention_ms, base.segment_bytes) == (5, 1000)
    topic = TopicConfig.parse({"retention.ms": "-1", "cleanup.policy": "compact,delete"}, base)
    assert (topic.retention_ms, topic.segment_bytes, topic.cleanup_policy) == (-1, 1000, ("compact", "delete"))
    with pytest.raises(ConfigError, match=r"is no setting of a topic; did you mean retention\.ms"):
        TopicConfig.parse({"retention.m": "1"}, base)
    with pytest.raises(ConfigError, match="at least -1"):
        TopicConfig.parse({"retention.ms": "-2"}, base)


def test_types_are_numbered_as_describe_configs_sends_them() -> None:
    assert (SettingType.BOOLEAN, SettingType.STRING, SettingType.INT, SettingType.LIST) == (1, 2, 3, 7)
    assert isinstance(BrokerConfig().num_partitions, int)


def test_several_named_listeners() -> None:
    text = MINIMAL + (
        "listeners=OUT://0.0.0.0:9092,IN://127.0.0.1:9093\n"
        "advertised.listeners=OUT://broker1.example:9092,IN://127.0.0.1:9093\n"
        "listener.security.protocol.map=OUT:PLAINTEXT,IN:PLAINTEXT\n"
        "inter.broker.listener.name=IN\n"
    )
    config = load_config(text, "f")
    assert [e.host for e in config.listener_endpoints()] == ["0.0.0.0", "127.0.0.1"]
    assert [e.host for e in config.advertised_endpoints()] == ["broker1.example", "127.0.0.1"]
    assert config.inter_broker_listener() == "IN"


STOCK = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_the_file_that_kafka_comes_with_needs_zookeepers_address_only() -> None:
    for line in ("", "process.roles=controller", "controller.quorum.voters=1@localhost:9093"):
        with pytest.raises(ConfigError) as raised:
            load_config(f"node.id=1\n{line}\n" if line else STOCK, "f")
        told = str(raised.value)
        assert line.partition("=")[0] in told
        assert "is of Kafka in KRaft mode" in told
        assert "add zookeeper.connect=host:port" in told
    with pytest.raises(ConfigError, match=r"zookeeper\.connect.*is required"):
        load_config("node.id=1\n", "f")
    config = load_config(STOCK + "zookeeper.connect=zk:2181\n", "f")
    assert config.broker_id == 1
    assert [e.listener for e in config.listener_endpoints()] == ["PLAINTEXT"], "there is no controller to listen for"
    assert [(e.listener, e.host) for e in config.advertised_endpoints()] == [("PLAINTEXT", "localhost")]
    assert config.without_effect() == sorted(
        [
            "process.roles", "node.id", "controller.quorum.bootstrap.servers", "controller.listener.names",
            "num.network.threads", "num.io.threads", "num.recovery.threads.per.data.dir",
        ]
    )  # fmt: skip


def test_settings_of_older_kafkas_and_of_single_listeners_are_accepted() -> None:
    text = "log.dir=/a,/b\ninter.broker.protocol.version=3.9\nlistener.name.inside.ssl.keystore.location=/k\n"
    text += (
        "listener.name.inside.scram-sha-256.sasl.jaas.config=secret\nzookeeper.set.acl=false\nlog.cleaner.enable=true\n"
    )
    config = load_config(MINIMAL + text, "f")
    assert config.log_dirs == ("/a", "/b")
    assert "listener.name.inside.ssl.keystore.location" in config.without_effect()
    assert "secret" not in repr(config)
    assert load_config(MINIMAL + "log.dir=/a\nlog.dirs=/c\n", "f").log_dirs == ("/c",)
    assert load_config("node.id=7\nzookeeper.connect=z:1\n", "f").broker_id == 7


FOREVER = 2**63 - 1
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "retention", "segment", "jitter", "flush"),
    [
        ("", 168 * HOUR_MS, 168 * HOUR_MS, 0, FOREVER),
        ("log.retention.hours=2\nlog.roll.hours=3\nlog.roll.jitter.hours=1", 7_200_000, 3 * HOUR_MS, HOUR_MS, FOREVER),
        ("log.retention.hours=2\nlog.retention.minutes=5", 300_000, 168 * HOUR_MS, 0, FOREVER),
        ("log.retention.minutes=5\nlog.retention.ms=7\nlog.roll.ms=8\nlog.roll.hours=1", 7, 8, 0, FOREVER),
        ("log.retention.hours=-1", -1, 168 * HOUR_MS, 0, FOREVER),
        ("log.retention.minutes=-1\nlog.flush.scheduler.interval.ms=9", -1, 168 * HOUR_MS, 0, 9),
        ("log.flush.interval.ms=4\nlog.flush.scheduler.interval.ms=9", 168 * HOUR_MS, 168 * HOUR_MS, 0, 4),
    ],
)  # fmt: skip
def test_hours_and_minutes_count_where_milliseconds_are_unset(
    text: str, retention: int, segment: int, jitter: int, flush: int
) -> None:
    found = load_config(MINIMAL + text + "\n", "f").topic_defaults()
    assert (found.retention_ms, found.segment_ms, found.segment_jitter_ms, found.flush_ms) == (
        retention, segment, jitter, flush,
    )  # fmt: skip
    dynamic = effective_config(
        load_config(MINIMAL + text + "\n", "f"), {"log.retention.ms": "77"}, {"max.connections": "5"}
    )
    assert (dynamic.topic_defaults().retention_ms, dynamic.max_connections) == (77, 5)


def test_topic_settings_without_effect_leave_the_others_alone() -> None:
    base = load_config(MINIMAL, "f").topic_defaults()
    overrides = {"cleanup.policy": "compact", "remote.copy.lag.ms": "7", "message.format.version": "3.0"}
    overrides |= {"retention.ms": "3", "message.downconversion.enable": "false"}
    topic = TopicConfig.parse(overrides, base)
    assert (topic.cleanup_policy, topic.retention_ms) == (("compact",), 3)
    assert without_effect(overrides, TOPIC_SETTINGS) == [
        "message.downconversion.enable", "message.format.version",
    ]  # fmt: skip
    assert without_effect({"remote.copy.lag.ms": "0", "retention.ms": "1"}, TOPIC_SETTINGS) == []


@pytest.mark.parametrize(
    ("overrides", "wrong"),
    [
        (
            {"min.compaction.lag.ms": "100000", "max.compaction.lag.ms": "50000"},
            "must be at most max.comp",
        ),
        ({"min.compaction.lag.ms": "50000", "max.compaction.lag.ms": "50000"}, ""),
        ({"leader.replication.throttled.replicas": "0:1,*"}, "alone"),
        ({"follower.replication.throttled.replicas": "none,0:1"}, "alone"),
        ({"follower.replication.throttled.replicas": "0:1,0:2"}, ""),
        ({"follower.replication.throttled.replicas": "*"}, ""),
        ({"fleetlog.schema.validation": "full"}, ""),
        ({"fleetlog.schema.validation": "id", "fleetlog.schema.invalid": "tag"}, "not possible in this version"),
        ({"fleetlog.schema.validation": "id", "fleetlog.schema.invalid": "dlq:dlq.letters"}, ""),
        ({"remote.storage.enable": "true", "cleanup.policy": "compact"}, "not possible for a compacted topic"),
        ({"remote.storage.enable": "true", "cleanup.policy": "compact,delete"}, "not possible for a compacted topic"),
        ({"remote.storage.enable": "true", "retention.ms": "5", "local.retention.ms": "6"}, "at most retention.ms"),
        ({"remote.storage.enable": "true", "retention.bytes": "5", "local.retention.bytes": "-1"}, "at most retention"),
        ({"remote.storage.enable": "true", "retention.ms": "5", "local.retention.ms": "5"}, ""),
        ({"remote.storage.enable": "true", "retention.ms": "-1", "local.retention.ms": "6"}, ""),
        ({"remote.storage.enable": "true", "local.retention.ms": "5", "remote.copy.lag.ms": "6"}, "at most local"),
        ({"remote.storage.enable": "true", "local.retention.ms": "5", "remote.log.copy.disable": "true"}, "no more is"),
        ({"remote.storage.enable": "true", "remote.log.copy.disable": "true"}, ""),
        ({"remote.storage.enable": "true", "local.retention.ms": "5", "remote.copy.lag.bytes": "6"}, ""),
        ({"retention.ms": "5", "local.retention.ms": "6"}, ""),  # without a tier it means nothing, as in Kafka
        ({"fleetlog.schema.validation": "id", "fleetlog.schema.invalid": "refuse"}, ""),
    ],
)
def test_settings_that_contradict_each_other(overrides: dict[str, str], wrong: str) -> None:
    """As Kafka refuses them: INVALID_CONFIG when a topic is created, and however an alteration makes them."""
    base = BrokerConfig(broker_id=1, zookeeper_connect="none:1").topic_defaults()
    if not wrong:
        check_configs(overrides, base)
        check_topic({}, overrides, base)
        return
    with pytest.raises(Refused, match=wrong):
        check_configs(overrides, base)
    with pytest.raises(Refused, match=wrong):
        check_topic({}, overrides, base)
    check_topic(overrides, {**overrides, "retention.ms": "5"}, base)  # stored by a version that took them


def test_a_tier_needs_all_brokers_and_stays() -> None:
    base = BrokerConfig(broker_id=1, zookeeper_connect="n:1").topic_defaults()
    on, finalized = {"remote.storage.enable": "true"}, {"fleetlog.tiering.version": 1}
    config = TopicConfig.parse(on, base)
    assert config.kept_here == (base.retention_ms, base.retention_bytes)
    assert TopicConfig.parse({"local.retention.ms": "5", "local.retention.bytes": "6"}, base).kept_here == (5, 6)
    check_tiering("orders", config, finalized)
    check_tiering("orders", base, {})
    check_tiering_settings("orders", {}, on, base, finalized)
    check_tiering_settings("orders", on, {**on, "retention.ms": "5"}, base, {})  # stored when it had no effect
    check_tiering_settings("orders", on, {}, base, {})
    for name, present, features, why in (
        ("orders", {}, {}, "fleetlog.tiering.version 1 is not finalized: fleetlog features upgrade"),
        ("__consumer_offsets", {}, finalized, "brokers need all of __consumer_offsets at hand"),
        ("orders", on, finalized, "To keep it and copy no more, set remote.log.copy.disable=true"),
    ):
        with pytest.raises(Refused, match=why) as refused:
            check_tiering_settings(name, present, {} if present else on, base, features)
        assert refused.value.error is ErrorCode.INVALID_CONFIG
    compacted = {"cleanup.policy": "compact"}
    with pytest.raises(Refused, match="cannot be compacted, or wait"):
        check_tiering_settings("orders", on, {**on, **compacted}, base, finalized)
    with pytest.raises(Refused, match="from when it had no effect, and would begin"):
        check_tiering_settings("orders", {**on, **compacted}, on, base, finalized)


def test_a_tier_ends_and_copies_no_more_once_all_brokers_heed_that() -> None:
    base = BrokerConfig(broker_id=1, zookeeper_connect="n:1").topic_defaults()
    on, first, second = (
        {"remote.storage.enable": "true"},
        {"fleetlog.tiering.version": 1},
        {"fleetlog.tiering.version": 2},
    )
    off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    assert TopicConfig.parse(off, base).ends_tier
    assert not TopicConfig.parse({**off, **on}, base).ends_tier
    check_tiering_settings("orders", on, off, base, second)
    check_tiering_settings("orders", {"remote.log.delete.on.disable": "true"}, off, base, {})
    for newer in ({"remote.log.copy.disable": "true"}, {"remote.copy.lag.ms": "-1"}):
        check_tiering_settings("orders", on, {**on, **newer}, base, second)
        with pytest.raises(Refused, match=r"fleetlog\.tiering\.version 2 is not finalized"):
            check_tiering_settings("orders", on, {**on, **newer}, base, first)
        check_tiering_settings("orders", {**on, **newer}, {**on, **newer, "retention.ms": "5"}, base, first)
    with pytest.raises(Refused, match="would not delete what is in the bucket"):
        check_tiering_settings("orders", on, off, base, first)


def test_a_flag_that_waits_begins_nothing_until_the_mark_goes() -> None:
    base = BrokerConfig(broker_id=1, zookeeper_connect="n:1").topic_defaults()
    on, finalized = {"remote.storage.enable": "true"}, {"fleetlog.tiering.version": 2}
    waits, compacted = {**on, "fleetlog.tiering.waits": "true"}, {"cleanup.policy": "compact"}
    assert not TopicConfig.parse(waits, base).tiers
    check_topic(waits | compacted, waits | compacted | {"local.retention.ms": "5"}, base)
    check_tiering_settings("orders", waits | compacted, waits, base, finalized)
    check_tiering_settings("orders", waits, on, base, finalized)
    check_tiering_settings("orders", waits, {}, base, finalized)
    with pytest.raises(Refused, match=r"fleetlog\.tiering\.version 2 is not finalized"):
        check_tiering_settings("orders", {}, waits, base, {"fleetlog.tiering.version": 1})
    with pytest.raises(Refused, match="cannot be compacted, or wait"):
        check_tiering_settings("orders", on, waits, base, finalized)
    with pytest.raises(Refused, match="not possible for a compacted topic"):
        check_topic(waits | compacted, on | compacted, base)
    assert without_idle_mark({"fleetlog.tiering.waits": "true", "retention.ms": "5"}, base) == {"retention.ms": "5"}
    assert without_idle_mark(dict(waits), base) == waits


@pytest.mark.parametrize(
    ("setting", "level"),
    [("fleetlog.schema.validation=id", 1), ("confluent.value.schema.validation=true", 1),
     ("confluent.key.schema.validation=true", 1), ("fleetlog.schema.validation=full", 2)],
)  # fmt: skip
def test_a_check_of_schemas_needs_all_brokers_and_schemas(setting: str, level: int) -> None:
    config = TopicConfig.parse(
        dict([setting.split("=")]), BrokerConfig(broker_id=1, zookeeper_connect="n:1").topic_defaults()
    )
    finalized, before = {"fleetlog.schema.version": level}, {"fleetlog.schema.version": level - 1}
    check_schemas("orders", config, ["_schemas"], finalized)
    for name, topics, features, why in (
        ("orders", ["_schemas"], {}, f"before fleetlog.schema.version {level} is finalized"),
        ("orders", ["_schemas"], before, f"before fleetlog.schema.version {level} is finalized"),
        ("orders", ["orders"], finalized, "there is no topic _schemas"),
        ("_schemas", ["_schemas"], finalized, "what is written to _schemas has no schema"),
        ("__fleetlog_audit", ["_schemas"], finalized, "has no schema"),
    ):
        with pytest.raises(Refused, match=why) as refused:
            check_schemas(name, config, topics, features)
        assert refused.value.error is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("present", "wanted", "refused"),
    [
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "delete"}, True),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact,delete"}, True),
        ({"cleanup.policy": "compact"}, {"segment.bytes": "5000000"}, True),  # AlterConfigs that does not name it
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact", "retention.ms": "1"}, True),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact", "retention.bytes": "1"}, True),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact", "segment.bytes": "5000000"}, False),
        ({"cleanup.policy": "delete", "retention.ms": "5"}, {"cleanup.policy": "compact"}, False),
        ({"retention.ms": "5"}, {"retention.ms": "5", "min.insync.replicas": "2"}, False),
    ],
)
def test_internal_topics_keep_what_was_committed(
    present: dict[str, str], wanted: dict[str, str], refused: bool
) -> None:
    if not refused:
        check_internal_topic("__consumer_offsets", present, wanted)
        return
    with pytest.raises(Refused, match=r"of the internal topic __consumer_offsets.*internal\.topics\.alter\.enable"):
        check_internal_topic("__consumer_offsets", present, wanted)


@pytest.mark.parametrize(
    ("overrides", "wrong"),
    [
        ({"cleanup.policy": "compact,delete"}, "is not possible with cleanup.policy=compact"),
        ({"retention.ms": "1799999"}, r"must be at least fleetlog.dedup.window.ms \(1800000\)"),
        ({"fleetlog.dedup.window.ms": "604800001"}, "retention.ms='604800000': must be at least"),
        ({"retention.ms": "1800000"}, ""),
        ({"retention.ms": "-1", "fleetlog.dedup.window.ms": "1000000000000"}, ""),
    ],
)
def test_settings_that_a_deduplicating_topic_can_not_have(overrides: dict[str, str], wrong: str) -> None:
    base = BrokerConfig(broker_id=1, zookeeper_connect="none:1").topic_defaults()
    TopicConfig.parse(overrides, base).check_together()  # elsewhere they are right
    topic = TopicConfig.parse(overrides | {"fleetlog.dedup": "source"}, base)
    if not wrong:
        topic.check_together()
        return
    with pytest.raises(ConfigError, match=wrong):
        topic.check_together()


PIECES = ("0:1,", "1", "1:", " ", "a", "a.", "User:a;", "0:1 ,", "127.0.0.1:", "::1:1,", ";", " ;", "::", "[", "/")
PATTERNS = {row.pattern: name for name, row in (BROKER_SETTINGS | TOPIC_SETTINGS).items() if row.pattern}


@pytest.mark.parametrize("pattern", PATTERNS, ids=PATTERNS.values())
def test_a_long_value_is_refused_as_soon_as_a_short_one(pattern: str) -> None:
    """A value comes with a request: backtracking over 32 KB would hold the loop for seconds, or hours."""
    for piece in PIECES:
        value = (piece * 16_000)[:32_000] + "!"
        began = time.thread_time()
        re.fullmatch(pattern, value)
        assert time.thread_time() - began < 0.5, piece


def test_a_setting_has_an_effect_or_none() -> None:
    """A row of the settings without effect would hide the field of the same name."""
    assert not table_of(BrokerConfig).keys() & KAFKA_BROKER_SETTINGS.keys()
    assert not table_of(TopicConfig).keys() & KAFKA_TOPIC_SETTINGS.keys()
