"""``fleetlog registry`` on a fleet, asked by Confluent's own client and serializers, unchanged."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    header_schema_id_serializer,
    record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, type_pb2
from kafka import TopicPartition

from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.client import Target, admin
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.cli.sender import InputRecord, Sender
from fleetlog.brokers.schemas import command
from fleetlog.brokers.schemas.command import SchemaStore
from fleetlog.brokers.schemas.registry import Plan, RegistryState
from fleetlog.txn.transaction import LAST_CLIENT_EPOCH
from tests.cli.shell import Shell
from tests.console.served import scram_config
from tests.support.copies import Cluster, quick_cleaning
from tests.support.fleet import Fleet
from tests.support.ports import free_port
from tests.support.registry_process import RegistryProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def registry(fleet: Fleet) -> Iterator[RegistryProcess]:
    process = RegistryProcess(fleet.bootstrap)
    yield process
    assert process.close() == 0


def user(*more: dict[str, Any], name: str = "User") -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": "id", "type": "long"}, *more]})


MAIL = {"name": "mail", "type": "string", "default": ""}


def test_the_client_registers_looks_up_and_deletes(registry: RegistryProcess) -> None:
    client = registry.client()
    first, second = Schema(user(), "AVRO"), Schema(user(MAIL), "AVRO")
    number = client.register_schema("people", first)
    assert client.register_schema("people", first) == number
    assert client.register_schema("people-again", first) == number, "the same schema has the same id everywhere"
    other = client.register_schema("people", second)
    assert other > number
    assert client.get_schema(number).schema_str == json.dumps(json.loads(user()), separators=(",", ":"))
    assert client.get_versions("people") == [1, 2]
    latest = client.get_latest_version("people")
    assert (latest.version, latest.schema_id) == (2, other)
    assert client.lookup_schema("people", first).version == 1
    assert not client.test_compatibility("people", Schema(user({"name": "x", "type": "int"}), "AVRO"))
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("people", Schema(user({"name": "x", "type": "int"}), "AVRO"))
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused.value.error_message
    client.set_compatibility("people", "NONE")
    assert client.get_compatibility("people") == "NONE"
    assert client.register_schema("people", Schema(user({"name": "x", "type": "int"}), "AVRO")) > other
    assert client.delete_version("people", 3) == 3
    assert client.delete_subject("people") == [1, 2]
    assert "people" not in client.get_subjects()
    assert client.delete_subject("people", permanent=True) == [1, 2, 3]
    with pytest.raises(SchemaRegistryError) as unknown:
        registry.client().get_latest_version("people")
    assert unknown.value.error_code == 40401
    assert client.get_schema(number).schema_str, "the other subject still has it"


def test_what_is_refused_and_how(registry: RegistryProcess) -> None:
    ask = registry.ask
    assert ask("GET", "/") == {}
    assert ask("GET", "/nothing") == 404
    assert ask("PUT", "/subjects") == 405
    assert ask("GET", "/subjects/none/versions") == 40401
    assert ask("GET", "/schemas/ids/999999") == 40403
    assert ask("GET", "/config/none") == 40408
    assert ask("GET", "/mode/none") == 40409
    assert ask("PUT", "/config", {"compatibility": "SOME"}) == 42203
    assert ask("PUT", "/mode", {"mode": "FAST"}) == 42204
    assert ask("POST", "/subjects/s/versions", {"schema": "{"}) == 42201
    assert ask("POST", "/subjects/s/versions", {"schema": user(), "schemaType": "XML"}) == 42201
    assert ask("POST", "/subjects/s/versions", {"schema": user(), "id": 7}) == 42205
    assert ask("POST", "/subjects/s/versions", {"schema": "[" * 100_000}) == 42209
    assert ask("POST", "/subjects/s/versions", {"schema": '"' + "x" * 3_000_000 + '"'}) == 42209
    assert ask("POST", f"/subjects/{quote('a' * 1001)}/versions", {"schema": user()}) == 42208
    assert ask("POST", "/subjects/s/versions", {"schema": user()}, **{"Content-Type": "text/plain"}) == 415
    assert ask("POST", "/subjects/s/versions", {"schema": user()}, Origin="http://elsewhere.example") == 403
    assert ask("GET", "/subjects?subjectPrefix=s") == []
    slashed = f"/subjects/{quote('a/b ü', safe='')}/versions"
    number = ask("POST", slashed, {"schema": '"string"'})["id"]
    assert ask("GET", slashed) == [1]
    assert ask("GET", f"{slashed}/0") == 42202
    assert ask("GET", f"{slashed}/2") == 40402
    assert ask("GET", f"/schemas/ids/{number}/versions") == [{"subject": "a/b ü", "version": 1}]
    assert ask("DELETE", f"{slashed}/1?permanent=true") == 40407
    assert ask("DELETE", f"{slashed}/1") == 1
    assert ask("DELETE", f"{slashed}/1") == 40406
    assert ask("DELETE", f"{slashed}/1?permanent=true") == 1


def message_class() -> Any:
    """Of a message that only this test knows: the client has those of Google's own files itself."""
    file = descriptor_pb2.FileDescriptorProto(name="user.proto", package="test.users", syntax="proto3")
    file.message_type.add(name="User").field.add(
        name="id", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.users.User"))


def test_values_of_all_formats_go_through_topics(registry: RegistryProcess, fleet: Fleet) -> None:
    client = registry.client()
    as_json = json.dumps(
        {"title": "User", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    )
    kind = message_class()
    formats = {
        "avro": (AvroSerializer(client, user()), AvroDeserializer(client), {"id": 7}),
        "json": (JSONSerializer(as_json, client), JSONDeserializer(as_json, schema_registry_client=client), {"id": 7}),
        "protobuf": (
            ProtobufSerializer(kind, client),
            ProtobufDeserializer(kind, schema_registry_client=client),
            kind(id=7),
        ),
    }
    for name, (serializer, deserializer, sent) in formats.items():
        topic = f"registry-{name}"
        Shell(fleet).run("topics", "create", topic, "--partitions", "1")
        producer = SerializingProducer({"bootstrap.servers": fleet.bootstrap, "value.serializer": serializer})
        producer.produce(topic, value=sent)
        assert producer.flush(60) == 0
        consumer = DeserializingConsumer(
            {"bootstrap.servers": fleet.bootstrap, "group.id": topic, "auto.offset.reset": "earliest",
             "value.deserializer": deserializer}
        )  # fmt: skip
        consumer.subscribe([topic])
        message = eventually(partial(consumer.poll, 1.0), f"a record of {topic}", good=lambda got: got is not None)
        assert message.value() == sent
        consumer.close()
        kinds = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
        assert client.get_latest_version(f"{topic}-value").schema.schema_type == kinds[name]


def test_a_guid_in_a_header_leads_to_the_schema(registry: RegistryProcess) -> None:
    client = registry.client()
    text, sent = user(MAIL, name="Guid"), {"id": 7, "mail": "a@b.example"}
    serializer = AvroSerializer(client, text, conf={"schema.id.serializer": header_schema_id_serializer})
    context = SerializationContext("guids", MessageField.VALUE, {})
    raw = serializer(sent, context)
    assert raw == b"\x0e\x16a@b.example", "the payload is nothing but the value"
    (header,) = context.headers.values()
    guid = str(UUID(bytes=header[1:]))
    assert AvroDeserializer(registry.client())(raw, context) == sent
    assert json.loads(registry.client().get_schema_by_guid(guid).schema_str)["name"] == "Guid"
    number = client.get_latest_version("guids-value").schema_id
    assert registry.ask("GET", f"/schemas/guids/{guid}/ids") == [{"context": ".", "id": number}]
    assert registry.ask("GET", "/schemas/guids/x") == 40403
    again = registry.ask("POST", "/subjects/guids-value/versions", {"schema": text})
    assert again == {"id": number}, "who did not say that it takes more gets no more"


def test_protobuf_with_references_and_both_of_its_forms(registry: RegistryProcess) -> None:
    """Python's serializer registers file descriptors, one for each import; a lookup by their source finds the same."""
    client = registry.client()
    serializer = ProtobufSerializer(type_pb2.Type, client, {"skip.known.types": False})
    serializer(type_pb2.Type(name="T"), SerializationContext("types", MessageField.VALUE))
    latest = client.get_latest_version("types-value")
    assert {row.name for row in latest.schema.references} >= {"google/protobuf/any.proto"}
    assert "message Type {" in latest.schema.schema_str
    found = client.lookup_schema("types-value", latest.schema)
    assert (found.version, found.schema_id) == (latest.version, latest.schema_id)
    assert registry.ask("DELETE", f"/subjects/{quote('google/protobuf/any.proto', safe='')}") == 42206


def test_references_contexts_and_names_by_records(registry: RegistryProcess) -> None:
    client = registry.client()
    client.register_schema("address", Schema(user(name="x.Address"), "AVRO"))
    text = json.dumps({"type": "record", "name": "Person", "fields": [{"name": "home", "type": "x.Address"}]})
    reference = SchemaReference("x.Address", "address", -1)
    number = client.register_schema("person", Schema(text, "AVRO", [reference]))
    assert [row.version for row in client.get_schema(number).references] == [1]
    assert registry.ask("GET", "/subjects/address/versions/1/referencedby") == [number]
    assert registry.ask("DELETE", "/subjects/address/versions/1") == 42206
    strategy = {"subject.name.strategy": record_subject_name_strategy}
    AvroSerializer(client, user(name="a.b.C"), conf=strategy)({"id": 1}, SerializationContext("t", MessageField.VALUE))
    assert "a.b.C" in client.get_subjects()
    inside = registry.ask("POST", "/contexts/.dev/subjects/person/versions", {"schema": '"int"'})
    assert inside["id"] == 1, "ids are counted in each context"
    assert ":.dev:person" in client.get_subjects()
    assert registry.ask("GET", "/contexts/.dev/subjects") == [":.dev:person"]
    assert registry.ask("GET", "/contexts") == [".", ".dev"]
    assert registry.ask("GET", "/schemas/ids/1?subject=:.dev:person")["schema"] == '"int"'


def test_a_registry_that_is_paused_is_fenced_and_ids_are_given_once(tmp_path: Path) -> None:
    """Two registries and one topic: whichever is asked writes; one is killed; compaction takes nothing that counts."""
    with quick_cleaning(tmp_path / "fleet") as cluster:
        one, other = RegistryProcess(cluster.fleet.bootstrap), RegistryProcess(cluster.fleet.bootstrap)
        try:
            ids = _many_writers(one, other)
            assert one.ask("GET", "/subjects?deleted=true") == other.ask("GET", "/subjects?deleted=true")
            last = max(ids.values())
            assert one.ask("POST", "/subjects/last/versions", {"schema": user(name="Last")})["id"] == last + 1
            assert other.ask("DELETE", "/subjects/last") == [1]
            assert one.ask("DELETE", "/subjects/last?permanent=true") == [1]
            one.process.kill()
            one.process.wait()
            _compact(cluster)
            one = RegistryProcess(cluster.fleet.bootstrap)
            fresh = one.ask("POST", "/subjects/fresh/versions", {"schema": user(name="Fresh")})["id"]
            assert fresh == last + 2, "the id of what is gone for good is not given again"
            leader = cluster.leader("_schemas")
            leader.kill()
            assert other.ask("POST", "/subjects/moved/versions", {"schema": user(name="Moved")})["id"] == last + 3
            for subject, number in ids.items():
                assert one.ask("GET", f"/subjects/{subject}/versions/1")["id"] == number
        finally:
            one.process.kill()
            other.process.kill()


class LateWriter(Sender):
    """One that got this producer id and epoch before others did."""

    def __init__(self, client: AdminClient, producer: tuple[int, int]) -> None:
        self.producer = producer
        super().__init__(client, command.TOPIC, acks="all", codec="none", timeout_s=60.0)

    def _new_producer(self, deadline_s: float) -> tuple[int, int]:
        return self.producer


NOOP = InputRecord(None, b'{"keytype":"NOOP","magic":0}', partition=0)


def test_a_writer_whose_producer_id_ran_out_of_epochs_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 32,767 claims the transactional id gets another producer id, whose epochs say nothing of the old one's."""
    fleet = Fleet(tmp_path / "fleet", 1)
    target = Target(fleet.start().bootstrap, 60.0, {})
    old, new = SchemaStore(target), SchemaStore(target)
    try:
        old.start(None)
        old.change(partial(_registered, "a"), time.monotonic())
        with admin(target, "the partition") as client:
            partition = TopicPartition(command.TOPIC, 0)
            (first,) = client.describe_producers([partition])[partition].active_producers
            writer = LateWriter(client, (first.producer_id, LAST_CLIENT_EPOCH))
            writer.send([NOOP])
            monkeypatch.setattr(command, "TRANSACTIONAL_ID", "one-that-has-another-producer-id")
            new.start(None)
            new.change(partial(_registered, "b"), time.monotonic())
            with pytest.raises(CliError, match="epoch"):
                writer.send([NOOP])
        monkeypatch.setattr(command, "CLAIM_S", 0.0)
        new.change(partial(_registered, "c"), time.monotonic())
        assert new.registry().subjects() == ["a", "b", "c"]
    finally:
        old.close()
        new.close()
        fleet.close()


def _registered(subject: str, state: RegistryState) -> Plan:
    return state.register(subject, {"schema": user(name=subject)}, normalize=False)


def _many_writers(one: RegistryProcess, other: RegistryProcess) -> dict[str, int]:
    """Ids that both give at once, while each in turn stands still for a while."""

    def register(number: int) -> tuple[str, int]:
        process, subject = (one, other)[number % 2], f"s{number // 2}"
        answer = process.ask("POST", f"/subjects/{subject}/versions", {"schema": user(name=f"R{number // 2}")})
        return subject, answer["id"]

    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(register, number) for number in range(40)]
        for process in (one, other):
            process.process.send_signal(signal.SIGSTOP)
            eventually(
                lambda: sum(answer.done() for answer in answers), "the other goes on", good=lambda count: count > 2
            )
            process.process.send_signal(signal.SIGCONT)
        pairs = [answer.result() for answer in answers]
    ids = dict(pairs)
    assert set(pairs) == set(ids.items()), "both say the same of a subject"
    assert sorted(ids.values()) == list(range(1, 21))
    return ids


def _compact(cluster: Cluster) -> None:
    shell = Shell(cluster.fleet)

    def cleaned() -> bool:
        rows = shell.json("topics", "compact", "_schemas", "--now")
        return {row["broker"] for row in rows} == {1, 2, 3}

    eventually(cleaned, "_schemas is compacted")


def test_a_registry_does_not_start_where_it_would_give_its_rights_away(tmp_path: Path, fleet: Fleet) -> None:
    authorizer = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
    secured = Fleet(tmp_path / "fleet", 1, **{name.replace(".", "_"): value for name, value in authorizer.items()})
    try:
        assert "has ACLs" in Shell(secured.start()).fails("registry", "--port", "0")
    finally:
        secured.close()
    file = scram_config(tmp_path)
    assert "without --login" in Shell(fleet).fails(
        "registry", "--port", str(free_port()), "--command-config", str(file)
    )


def test_a_topic_that_was_made_anew_is_read_anew(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet", 1)
    shell = Shell(fleet.start())
    registry = RegistryProcess(fleet.bootstrap)
    try:
        for number in range(5):
            registry.ask("POST", f"/subjects/s{number}/versions", {"schema": user(name=f"R{number}")})
        shell.run("topics", "delete", "_schemas", "--yes")
        shell.run("topics", "create", "_schemas", "--partitions", "1", "--config", "cleanup.policy=compact")
        eventually(lambda: registry.ask("GET", "/subjects") == [], "the new topic is read")
        assert registry.ask("POST", "/subjects/new/versions", {"schema": '"int"'}) == {"id": 1}
        other = RegistryProcess(fleet.bootstrap)
        assert other.ask("GET", "/subjects") == registry.ask("GET", "/subjects") == ["new"]
        other.process.kill()
    finally:
        registry.process.kill()
        fleet.close()


def test_a_service_tells_its_manager_and_ends_cleanly(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, file = tmp_path / "notify", tmp_path / "registry.properties"
    file.write_text(f"bootstrap={fleet.bootstrap}\nlisten=127.0.0.1\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(path))
        inbox.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        process = RegistryProcess("127.0.0.1:1", "--config", str(file))
        try:
            assert inbox.recv(4096) == b"READY=1\nSTATUS=serves the schemas of the fleet"
            assert process.ask("GET", "/health/ready") == {"ready": True}
            assert [inbox.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            process.process.send_signal(signal.SIGTERM)
            while (told := inbox.recv(4096)) == b"WATCHDOG=1":
                pass
            assert told == b"STOPPING=1\nSTATUS=stopping"
            assert process.process.wait(60) == 0
        finally:
            process.process.kill()


def test_a_topic_that_loses_schemas_is_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet", 1)
    try:
        shell = Shell(fleet.start())
        shell.run("topics", "create", "_schemas", "--partitions", "1", "--config", "cleanup.policy=delete")
        assert "cleanup.policy=compact" in shell.fails("registry", "--port", "0")
    finally:
        fleet.close()
