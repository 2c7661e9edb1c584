"""``kafka.*`` options under the names of two client libraries."""

from __future__ import annotations

import re

import pytest

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.settings import (
    connection_settings,
    kafka_python_settings,
    kafka_settings,
    librdkafka_settings,
)


@pytest.mark.parametrize("servers", ["h:9092", "[::1]:9092, SSL://h.example:1", " h_1-a.b:65535 ,"])
def test_servers_are_hosts_with_ports(servers: str) -> None:
    assert kafka_settings({"kafka.bootstrap.servers": servers})["bootstrap.servers"] == servers


@pytest.mark.parametrize("servers", ["h", "h:", "h:p", ":9092", "h:1;g:2", "::1:9092", "http://h/x"])
def test_a_server_without_a_port_is_named(servers: str) -> None:
    with pytest.raises(OptionError, match=rf"{re.escape(repr(servers))} is not HOST:PORT"):
        kafka_settings({"kafka.bootstrap.servers": servers})


def test_settings_reach_both_libraries() -> None:
    settings = kafka_settings(
        {
            "kafka.bootstrap.servers": "a:1, b:2",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": 'org.x.PlainLoginModule required username="me" password=\'s "p"\';',
            "kafka.ssl.truststore.location": "/ca.pem",
            "kafka.ssl.truststore.type": "pem",
            "kafka.ssl.endpoint.identification.algorithm": "",
            "kafka.request.timeout.ms": "1234",
            "topic": "not kafka's",
        }
    )
    stock = librdkafka_settings(settings)
    assert stock["sasl.mechanisms"] == "PLAIN"
    assert (stock["sasl.username"], stock["sasl.password"]) == ("me", 's "p"')
    assert stock["ssl.ca.location"] == "/ca.pem"
    assert "topic" not in stock
    assert "sasl.jaas.config" not in stock
    assert kafka_python_settings(settings) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": 's "p"',
        "ssl_cafile": "/ca.pem",
        "ssl_check_hostname": False,
        "request_timeout_ms": 1234,
    }


def test_keystores_of_java_are_refused() -> None:
    with pytest.raises(OptionError, match="truststore"):
        kafka_settings({"kafka.bootstrap.servers": "a:1", "kafka.ssl.truststore.type": "JKS"})
    with pytest.raises(OptionError, match="no password"):
        kafka_settings({"kafka.bootstrap.servers": "a:1", "kafka.sasl.jaas.config": 'x username="u";'})


def test_the_buffer_is_counted_in_bytes_by_java_and_in_kib_by_librdkafka() -> None:
    assert librdkafka_settings({"buffer.memory": "33554433"}) == {"queue.buffering.max.kbytes": "32769"}
    with pytest.raises(OptionError, match=r"kafka\.buffer\.memory"):
        librdkafka_settings({"buffer.memory": "much"})


def test_a_consumer_gets_no_settings_of_a_producer() -> None:
    connection = {"bootstrap.servers": "a:1", "ssl.ca.location": "/ca", "enable.ssl.certificate.verification": "false"}
    assert connection_settings({**connection, "linger.ms": "5", "compression.type": "lz4"}) == connection


@pytest.mark.parametrize(
    ("quoted", "password"),
    [
        (r'"p\"q"', 'p"q'), (r'"p\\"', "p\\"), (r"'p\'q'", "p'q"), (r'"p\tq\101\7;"', "p\tqA\x07;"), (r'"p\q"', "pq"),
        (r'"\\\""', '\\"'),
    ],
)  # fmt: skip
def test_escapes_in_a_jaas_line(quoted: str, password: str) -> None:
    line = f'org.x.PlainLoginModule required username="me" password={quoted};'
    settings = kafka_settings({"kafka.bootstrap.servers": "a:1", "kafka.sasl.jaas.config": line})
    assert settings["sasl.password"] == password
