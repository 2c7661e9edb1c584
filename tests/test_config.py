"""The settings: one declaration each; files, environment and flags; what is refused, and how it is said."""

from __future__ import annotations

import pytest

from brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, ConfigError, TopicConfig, load_config
from brokers.settings import SettingType

MINIMAL = "broker.id=1\nzookeeper.connect=127.0.0.1:2181\n"


def test_a_minimal_file_listens_on_the_loopback_only() -> None:
    config = load_config(MINIMAL, "f")
    (endpoint,) = config.advertised_endpoints()
    assert (endpoint.listener, endpoint.host, endpoint.port) == ("PLAINTEXT", "127.0.0.1", 9092)


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
        ("listeners=SSL://127.0.0.1:9092", r"security protocol SSL; this release has PLAINTEXT only"),
        ("listeners=A://h:1,A://h:2\nlistener.security.protocol.map=A:PLAINTEXT", r"must name each listener once"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:9092", r"no client can connect to that"),
        ("listeners=PLAINTEXT://0.0.0.0:9092", r"no client can connect to that"),
        ("inter.broker.listener.name=INSIDE", r"must be one of \['PLAINTEXT'\]"),
        ("zookeeper.session.timeout.ms=30000", r"must be below replica.lag.time.max.ms"),
        ("message.max.bytes=209715200", r"must not pass socket.request.max.bytes"),
        ("log.dirs=,", r"at least one directory"),
    ],
)
def test_what_is_refused_and_how(line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(MINIMAL + line + "\n", "f")


def test_wrong_words_in_the_environment_and_on_the_command_line_are_refused_too() -> None:
    with pytest.raises(ConfigError, match="environment variable FLEETLOG_CONFIG_NUM_PARTITONS"):
        load_config(MINIMAL, "f", {"FLEETLOG_CONFIG_NUM_PARTITONS": "3"})
    with pytest.raises(ConfigError, match="--override"):
        load_config(MINIMAL, "f", None, {"nope": "3"})


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
