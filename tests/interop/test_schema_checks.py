"""A topic that asks for schemas' ids, with ``fleetlog registry`` and Confluent's own serializers: ids and GUIDs are
taken as they write them, by each of the names of subjects, and plain values are not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, SerializingProducer
from confluent_kafka.schema_registry import (
    header_schema_id_serializer,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from google.protobuf.source_context_pb2 import SourceContext

from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.registry_process import RegistryProcess

pytestmark = [pytest.mark.interop, pytest.mark.slow]

AVRO = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]})
JSON_SCHEMA = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})
STRATEGIES = {
    "TopicName": topic_subject_name_strategy,
    "RecordName": record_subject_name_strategy,
    "TopicRecordName": topic_record_subject_name_strategy,
}


@pytest.fixture(scope="module")
def registry(fleet: Fleet) -> Iterator[RegistryProcess]:
    process = RegistryProcess(fleet.bootstrap)
    yield process
    assert process.close() == 0


def sent(producer: Any, topic: str, value: Any) -> int:
    """The code of the error that the producer hears, 0 if none."""
    codes: list[int] = []

    def told(error: Any, message: Any) -> None:
        codes.append(0 if error is None else error.code())

    producer.produce(topic, value=value, headers=[], on_delivery=told)
    assert producer.flush(60) == 0
    return codes[0]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["avro", "json", "protobuf", "guid in a header"])
def test_what_serializers_write_is_taken(fleet: Fleet, registry: RegistryProcess, kind: str, strategy: str) -> None:
    topic = f"checked-{kind.split(maxsplit=1)[0]}-{strategy}"
    Shell(fleet).run(
        "topics", "create", topic, "--partitions", "1", "--config", "fleetlog.schema.validation=id", "--config",
        f"confluent.value.subject.name.strategy=io.confluent.kafka.serializers.subject.{strategy}Strategy",
    )  # fmt: skip
    conf: dict[str, Any] = {"subject.name.strategy": STRATEGIES[strategy]}
    if kind == "guid in a header":
        conf["schema.id.serializer"] = header_schema_id_serializer
    client = registry.client()
    make: dict[str, Callable[[], Any]] = {
        "json": lambda: JSONSerializer(JSON_SCHEMA, client, conf=conf),
        "protobuf": lambda: ProtobufSerializer(SourceContext, client, conf),
    }
    serializer = make.get(kind, lambda: AvroSerializer(client, AVRO, conf=conf))()
    good = SourceContext(file_name="x") if kind == "protobuf" else {"id": 7}
    settings = {"bootstrap.servers": fleet.bootstrap, "message.timeout.ms": 60_000}
    assert sent(SerializingProducer({**settings, "value.serializer": serializer}), topic, good) == 0
    assert sent(Producer(settings), topic, b'{"id": 7}') == 87


def test_a_schema_of_another_topic_is_none_of_this_one(fleet: Fleet, registry: RegistryProcess) -> None:
    shell, client = Shell(fleet), registry.client()
    shell.run("topics", "create", "mine", "--partitions", "1", "--config", "fleetlog.schema.validation=id")
    shell.run("topics", "create", "theirs", "--partitions", "1", "--config", "fleetlog.schema.validation=id")
    settings = {"bootstrap.servers": fleet.bootstrap, "message.timeout.ms": 60_000}
    other = AVRO.replace("Order", "Invoice")
    theirs = AvroSerializer(client, other)
    assert sent(SerializingProducer({**settings, "value.serializer": theirs}), "theirs", {"id": 7}) == 0
    wrong = SerializingProducer(
        {**settings, "value.serializer": AvroSerializer(client, other, conf={
            "auto.register.schemas": False, "use.latest.version": True,
            "subject.name.strategy": lambda context, name: "theirs-value"})}
    )  # fmt: skip
    assert sent(wrong, "mine", {"id": 7}) == 87


@pytest.mark.parametrize("kind", ["json", "protobuf"])
def test_payloads_are_checked_beside_the_broker(fleet: Fleet, registry: RegistryProcess, kind: str) -> None:
    """Full checks of what another process has the library for; an idempotent producer goes on behind a refusal."""
    topic = f"full-{kind}"
    Shell(fleet).run("topics", "create", topic, "--partitions", "1", "--config", "fleetlog.schema.validation=full")
    client = registry.client()
    settings = {"bootstrap.servers": fleet.bootstrap, "message.timeout.ms": 60_000, "enable.idempotence": True}
    if kind == "json":
        serializer: Any = JSONSerializer(JSON_SCHEMA, client, conf={"validate": False})
        good, bad = {"id": 7}, b'{"id": "seven"}'
    else:
        serializer = ProtobufSerializer(SourceContext, client)
        good, bad = SourceContext(file_name="x"), b"\0\x0a\x01\xff"
    assert sent(SerializingProducer({**settings, "value.serializer": serializer}), topic, good) == 0
    number = client.get_latest_version(f"{topic}-value").schema_id
    framed = b"\0" + number.to_bytes(4, "big")
    fine = b'{"id": 8}' if kind == "json" else b"\0\x0a\x01y"
    codes: list[int] = []
    producer = Producer({**settings, "linger.ms": 0, "batch.num.messages": 1})
    for turn in range(30):
        payload = bad if turn % 10 == 5 else fine
        producer.produce(topic, value=framed + payload, on_delivery=lambda e, _: codes.append(e.code() if e else 0))
        producer.poll(0)
    assert producer.flush(60) == 0
    assert (codes.count(0), codes.count(87)) == (27, 3)
