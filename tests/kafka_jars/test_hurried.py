"""Kafka's own Java producer (protocol 2) without a pause, over three brokers, to the end of its epochs and beyond."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import READ_COMMITTED, Confluent
from tests.support.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

CYCLES = 40


@pytest.fixture
def few_epochs(tmp_path: Path) -> Iterator[str]:
    fleet = Fleet(tmp_path, transaction_last_producer_epoch=7)
    try:
        yield fleet.start().bootstrap
    finally:
        fleet.close()


def test_the_java_producer_is_never_refused(classpath: str, few_epochs: str) -> None:
    stock = Confluent()
    stock.create_topic(few_epochs, "hurried", 3)
    source = Path(__file__).parent / "Hurried.java"
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath, str(source)]
    arguments = [few_epochs, "hurried", str(CYCLES)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.strip().endswith("done"), done.stdout[-3000:] + done.stderr[-3000:]
    for partition in range(3):
        found = stock.consume(few_epochs, "hurried", CYCLES, partition=partition, isolation=READ_COMMITTED)
        assert [message.value for message in found] == [b"kept-%d" % cycle for cycle in range(CYCLES)]
