"""Names of settings: what is misspelt is an error, what has no effect is named."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaException, Producer

from fleetlog.spark import exactly_once_batch
from fleetlog.spark.client import kafka_names
from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.settings import kafka_settings, librdkafka_settings
from fleetlog.spark.sink.administration import read_fence
from fleetlog.spark.sink.options import SinkOptions, WriteOptions
from fleetlog.spark.source.options import ReadOptions

BROKERS = {"kafka.bootstrap.servers": "a:1"}
SINK = {**BROKERS, "sinkId": "s", "topic": "t", "checkpointLocation": "/c"}
READ = {**BROKERS, "subscribe": "t"}


@pytest.fixture(autouse=True)
def _not_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_names, "_warned", set())


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("kafka.isolation.levle", "kafka.isolation.level"),
        ("kafka.security_protocol", "kafka.security.protocol"),
        ("kafka.sasl.user.name", "kafka.sasl.username"),
        ("kafka.compresion.type", "kafka.compression.type"),
    ],
)
def test_a_misspelt_setting_is_an_error_everywhere(given: str, near: str) -> None:
    expected = rf"option {given} is unknown: .*; did you mean {near}\?"
    with pytest.raises(OptionError, match=expected):
        ReadOptions.parse({**READ, given: "x"}, streaming=True)
    with pytest.raises(OptionError, match=expected):
        WriteOptions.parse({**SINK, given: "x"})
    with pytest.raises(OptionError, match=expected):
        exactly_once_batch({**SINK, given: "x"})


def test_a_misspelt_setting_of_a_call_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"option kafka.securty.protocol is unknown: .*kafka\.security\.protocol\?"):
        read_fence("a:1", "s", securty_protocol="SSL")


def test_a_name_that_resembles_none_gets_no_guess() -> None:
    with pytest.raises(OptionError, match=r"option kafka\.zzz is unknown: no Kafka client has such a setting$"):
        kafka_settings({**BROKERS, "kafka.zzz": "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**READ, "startingOffset": "earliest"}, r"option startingOffset is unknown; did you mean startingOffsets\?"),
        ({**READ, "bootstrap.servers": "a:1"}, r"bootstrap.servers is unknown; did you mean kafka.bootstrap.servers\?"),
    ],
)
def test_a_misspelt_option_is_named_as_written_with_the_nearest(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ReadOptions.parse(options, streaming=True)


def test_what_has_no_effect_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    unused = {**READ, "kafka.group.id": "g", "groupIdPrefix": "p"}
    ReadOptions.parse(unused, streaming=None)  # as load() checks them, before the query does
    assert not caplog.messages
    for _ in range(2):
        ReadOptions.parse(unused, streaming=True)
    assert sorted(caplog.messages) == [
        "option groupIdPrefix has no effect on the source: no consumer group is used",
        "option kafka.group.id has no effect on the source",
    ]
    caplog.clear()
    WriteOptions.parse({**SINK, "kafka.linger.ms": "5", "kafka.compression.type": "lz4"})
    assert caplog.messages == ["option kafka.linger.ms has no effect on a sink whose executors write"]
    caplog.clear()
    options = SinkOptions.parse({**SINK, "kafka.linger.ms": "5", "kafka.max.block.ms": "5"})  # of both modes
    assert caplog.messages == ["option kafka.max.block.ms has no effect on the sink"]
    assert "max.block.ms" not in librdkafka_settings(options.kafka)


def test_settings_with_an_effect_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    login = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.ssl.ca.location": "/ca"}
    ReadOptions.parse({**READ, **login, "kafka.isolation.level": "read_committed"}, streaming=True)
    WriteOptions.parse({**SINK, **login, "kafka.batch.size": "9000", "kafka.request.timeout.ms": "5"})
    assert not caplog.messages


@pytest.mark.parametrize("name", ["kafka.ssl.engine.location", "kafka.sasl.kerberos.service.name"])
def test_a_setting_of_logins_that_is_not_supported_is_an_error(name: str) -> None:
    """Left out, the connection would be another one than was asked for."""
    for parse in (
        lambda: ReadOptions.parse({**READ, name: "x"}, streaming=False),
        lambda: WriteOptions.parse({**SINK, name: "x"}),
        lambda: SinkOptions.parse({**SINK, name: "x"}),
    ):
        with pytest.raises(OptionError, match=rf"{name} is not supported by .*; supported are .*security\.protocol"):
            parse()


def test_librdkafka_has_every_setting_that_is_passed_to_it() -> None:
    refused = []
    for name in sorted(kafka_names.LIBRDKAFKA):
        try:
            Producer({"log_level": "0", name: "no such value"})
        except KafkaException as problem:
            refused += [str(problem)] if "No such configuration" in str(problem) else []
    assert not refused
