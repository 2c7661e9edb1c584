"""The Java producer, idempotent and with five requests on their way, at a topic that asks for schemas' ids."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.clients import Confluent
from tests.support.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop, pytest.mark.timeout(300)]

SCHEMA = 7
BAD = range(17, 200, 40)


def test_a_java_producer_hears_which_records_are_refused_and_goes_on(classpath: str, fleet: Fleet) -> None:
    """The first batches wait until the broker knows the schema; the refused ones are named, the others in order."""
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    for topic, settings in (("_schemas", "cleanup.policy=compact"), ("checked", "fleetlog.schema.validation=id")):
        made = admin.create_topics([NewTopic(topic, 1, config=dict([settings.split("=")]))])
        made[topic].result(30)
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    key = {"keytype": "SCHEMA", "subject": "checked-value", "version": 1, "magic": 1}
    value = {"subject": "checked-value", "version": 1, "id": SCHEMA, "schema": '"string"', "deleted": False}
    producer.produce("_schemas", json.dumps(value), json.dumps(key))
    assert producer.flush(30) == 0
    program = str(Path(__file__).parent / "Checked.java")
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath, program]
    done = subprocess.run(
        [*command, fleet.bootstrap, "checked", str(SCHEMA)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    why = f"InvalidRecordException: the value has schema id {SCHEMA + 1}, which is none of subject checked-value"
    assert done.stdout.splitlines() == [f"{number} {why}" for number in BAD]
    good = [number for number in range(200) if number not in BAD]
    taken = Confluent().consume(fleet.bootstrap, "checked", len(good), timeout_s=30)
    assert [int.from_bytes((message.value or b"")[5:9], "big") for message in taken] == good
