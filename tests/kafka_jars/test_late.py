"""The Java producer (protocol 2) whose transaction timed out: it gets the errors of Apache Kafka, but for one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kafka_jars.kafka import Kafka
from tests.support.clients import READ_COMMITTED, Confluent
from tests.support.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop, pytest.mark.timeout(600)]

OVERDUE_MS = 15_000
SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}


def outcomes(classpath: str, bootstrap: str) -> list[str]:
    """What the producer prints of each end of a transaction, and the values that a consumer then reads."""
    client, source = Confluent(), Path(__file__).parent / "Late.java"
    client.create_topic(bootstrap, "late")
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath, str(source)]
    arguments = [bootstrap, "late", str(OVERDUE_MS)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = client.consume(bootstrap, "late", 3, isolation=READ_COMMITTED, timeout_s=15)
    return [*done.stdout.splitlines(), *((message.value or b"").decode() for message in found)]


def test_a_late_producer_gets_kafkas_errors(classpath: str, fleet: Fleet, tmp_path: Path) -> None:
    kafka = Kafka(classpath, tmp_path, properties=SOON)
    kafka.format()
    try:
        kafka.start()
        theirs = outcomes(classpath, kafka.bootstrap)
    finally:
        kafka.stop()
    # A commit of what the timeout aborts: KAFKA-20785, fatal there. Here the producer hears that it is fenced.
    assert theirs[:2] == ["commit, commit: InvalidTxnStateException", "commit, next: KafkaException"]
    fenced = ["commit, commit: ProducerFencedException", "commit, next: ProducerFencedException"]
    assert outcomes(classpath, fleet.bootstrap) == [*fenced, *theirs[2:]]
