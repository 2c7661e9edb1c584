"""Spark over TLS and SASL: Apache Kafka as a source, read by executors, and as the target of driver mode."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetlog.spark import Fence, read_fence, write_stream
from tests.kafka_jars.kafka import Kafka
from tests.spark.conftest import Cluster, run_to_end, spark, warehouse  # noqa: F401  (fixtures)
from tests.support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.spark, pytest.mark.timeout(600)]

HOST = "127.0.0.1"
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="spark" password="{}";'


class Secured(Kafka):
    """With a second listener, which asks for a name and speaks TLS."""

    def __init__(self, classpath: str, home: Path) -> None:
        self.secure_port = free_port()
        self.certificate = home / "certificate.pem"
        key, store = home / "key.pem", home / "server.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={HOST}",
             "-addext", f"subjectAltName=IP:{HOST}", "-keyout", str(key), "-out", str(self.certificate)],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        store.write_text(key.read_text() + self.certificate.read_text())
        super().__init__(
            classpath,
            home,
            listener=f"SASL_SSL://{HOST}:{self.secure_port}",
            properties={
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
                "inter.broker.listener.name": "PLAINTEXT",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": store,
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS.format("secret")[:-1] + ' user_spark="secret";',
                "group.initial.rebalance.delay.ms": 0,
                "auto.create.topics.enable": "false",
            },
        )


@pytest.fixture
def secured(tmp_path: Path, classpath: str) -> Iterator[Secured]:
    kafka = Secured(classpath, tmp_path)
    kafka.format()
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.stop()


def options(kafka: Secured, password: str = "secret") -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": f"{HOST}:{kafka.secure_port}",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": JAAS.format(password),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(kafka.certificate),
    }


def test_tls_and_a_password(secured: Secured, spark: Any, tmp_path: Path) -> None:  # noqa: F811
    plain = Cluster(secured.bootstrap)
    source, target = plain.topic(2), plain.topic(2)
    values = [f"v{n}" for n in range(100)]
    plain.send(source, [{"key": value, "value": value} for value in values])
    reader = spark.read.format("fleetlog").option("subscribe", source)
    found = reader.options(**options(secured)).load().collect()
    assert sorted(bytes(row.value).decode() for row in found) == sorted(values)
    stream = spark.readStream.format("fleetlog").options(**options(secured), subscribe=source)
    rows = stream.option("startingOffsets", "earliest").load().select("key", "value")
    sink_id = f"sink-{uuid.uuid4().hex[:8]}"
    given = {**options(secured), "sink.mode": "driver"}

    def start() -> Any:
        return write_stream(
            rows, bootstrap_servers=given["kafka.bootstrap.servers"], sink_id=sink_id, topic=target,
            checkpoint_location=str(tmp_path / "checkpoint"), trigger={"availableNow": True}, options=given,
        )  # fmt: skip

    query = run_to_end(start)
    assert plain.values(target) == sorted(values)
    assert read_fence(secured.bootstrap, sink_id) == Fence(str(query.id), 0)
    with pytest.raises(Exception, match="refused the login of user spark"):
        reader.options(**options(secured, "wrong")).load().count()
