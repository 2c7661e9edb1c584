"""``kafka.ssl.*`` options by Java's names: what both libraries get, and that both connect by it to a real broker."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
)

from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.failures import ClientError, OptionError
from fleetlog.spark.client.settings import kafka_python_settings, kafka_settings, librdkafka_settings
from fleetlog.spark.client.tls import with_context
from tests.support.certificates import Pair
from tests.support.tls_fleet import TlsFleet
from tests.support.tls_listeners import Certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def fleet(made: Certificates) -> Iterator[TlsFleet]:
    found = TlsFleet(made.directory / "fleet", made)
    try:
        yield found.start()  # type: ignore[misc]
    finally:
        found.close()


def options(bootstrap: str = "a:1", **more: str) -> dict[str, str]:
    """``more`` with underscores for dots and without ``kafka.ssl.``."""
    named = {f"kafka.ssl.{name.replace('_', '.')}": text for name, text in more.items()}
    return {"kafka.bootstrap.servers": bootstrap, "kafka.security.protocol": "SSL", **named}


def in_files(made: Certificates, own: str) -> dict[str, str]:
    return {
        "truststore_type": "PEM", "truststore_location": made.authority.file,
        "keystore_type": "PEM", "keystore_location": own,
    }  # fmt: skip


def inside(made: Certificates, pair: Pair) -> dict[str, str]:
    """As Kafka allows it: one line with spaces, or with a backslash and an n."""
    return {
        "truststore_type": "PEM", "truststore_certificates": made.authority.pem.replace("\n", " "),
        "keystore_type": "PEM", "keystore_certificate_chain": pair.chain.replace("\n", "\\n"),
        "keystore_key": pair.key.replace("\n", " "),
    }  # fmt: skip


def test_names_of_java_reach_both_libraries(made: Certificates) -> None:
    settings = kafka_settings(options(**in_files(made, made.alice), key_password="p"))
    assert librdkafka_settings(settings) == {
        "bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.ca.location": made.authority.file,
        "ssl.certificate.location": made.alice, "ssl.key.location": made.alice, "ssl.key.password": "p",
    }  # fmt: skip
    assert kafka_python_settings(settings) == {
        "bootstrap_servers": ["a:1"], "security_protocol": "SSL", "ssl_cafile": made.authority.file,
        "ssl_certfile": made.alice, "ssl_keyfile": made.alice, "ssl_password": "p",
    }  # fmt: skip


def test_pem_inside_options_goes_with_them_to_executors(made: Certificates) -> None:
    pair = made.authority.pair("/CN=alice", password="open")
    settings = kafka_settings(options(**inside(made, pair), key_password="open"))
    assert librdkafka_settings(settings)["ssl.ca.pem"] == made.authority.pem
    carried = pickle.loads(pickle.dumps(kafka_python_settings(settings)))
    context = with_context(carried)["ssl_context"]
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    with pytest.raises(OptionError, match="certificates or key cannot be used"):
        with_context({**carried, "ssl_password": "shut"})


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"keystore_type": "JKS", "keystore_location": "/x/own.jks"},
         "kafka.ssl.keystore.type: JKS cannot be read; run keytool -importkeystore -srckeystore /x/own.jks"),
        ({"truststore_location": "/x/ca.p12"}, "PKCS12 cannot be read; run openssl pkcs12 -in /x/ca.p12 -nokeys"),
        ({"truststore_type": "PEM", "truststore_password": "s3cret"}, "a PEM store has none"),
        ({"keystore_key": "x"}, "kafka.ssl.keystore.key needs kafka.ssl.keystore.certificate.chain"),
        ({"truststore_certificates": "/x/ca.pem"}, "must be PEM"),
    ],
)  # fmt: skip
def test_what_is_refused(more: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as refused:
        kafka_settings(options(**more))
    assert text in str(refused.value)
    assert "s3cret" not in str(refused.value)


def connected(given: dict[str, str]) -> None:
    settings = kafka_settings(given)
    client = Client(kafka_python_settings(settings), timeout_ms=20_000)
    try:
        assert client.serves(0)
    finally:
        client.close()
    stock: Any = AdminClient(librdkafka_settings(settings))
    assert stock.list_topics(timeout=20).brokers


@pytest.mark.zookeeper
@pytest.mark.slow
def test_both_libraries_connect(fleet: TlsFleet, made: Certificates) -> None:
    bootstrap = fleet.bootstrap_of("MUTUAL")
    connected(options(bootstrap, **in_files(made, made.alice)))
    pair = made.authority.pair("/O=fleet/CN=alice", password="open")
    connected(options(bootstrap, **inside(made, pair), key_password="open"))
    own = pair.store(Path(made.directory) / "locked.pem")
    connected(options(bootstrap, **in_files(made, own), key_password="open"))


@pytest.mark.zookeeper
@pytest.mark.slow
def test_a_broker_of_another_authority_is_not_talked_to(fleet: TlsFleet, made: Certificates) -> None:
    given = {**in_files(made, made.alice), "truststore_location": made.stranger.file}
    client = Client(kafka_python_settings(kafka_settings(options(fleet.bootstrap_of("MUTUAL"), **given))), 1_500)
    with pytest.raises(ClientError, match="certificate: see the log"):
        client.serves(0)
    client.close()
