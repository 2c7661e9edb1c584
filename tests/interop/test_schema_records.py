"""``fleetlog produce --schema`` and ``consume`` beside Confluent's serializers, with the registry of the fleet."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.cli.shell import ROOT, Shell
from tests.support.fleet import Fleet
from tests.support.registry_process import RegistryProcess

pytestmark = [pytest.mark.interop, pytest.mark.slow]

MONEY = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
ORDER = {
    "type": "record", "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "price", "type": "shop.Money"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}  # fmt: skip
ORDERS = [{"id": number, "price": {"cents": 100 * number}, "note": None} for number in range(3)]


@pytest.fixture(scope="module")
def registry(fleet: Fleet) -> Iterator[RegistryProcess]:
    process = RegistryProcess(fleet.bootstrap)
    yield process
    process.process.kill()


@pytest.fixture(scope="module")
def shell(fleet: Fleet, registry: RegistryProcess, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """With subjects of the three formats, each of which refers to another."""
    found, here = Shell(fleet), tmp_path_factory.mktemp("schemas")
    found.environment["FLEETLOG_REGISTRY"] = registry.url

    def register(subject: str, suffix: str, text: str, *words: str) -> None:
        (here / f"schema{suffix}").write_text(text)
        found.run("schemas", "register", subject, str(here / f"schema{suffix}"), *words)

    register("money", ".avsc", json.dumps(MONEY))
    register("order", ".avsc", json.dumps(ORDER), "--reference", "shop.Money=money:1")
    register("money-j", ".json", json.dumps({"type": "integer", "minimum": 0}))
    properties = {"id": {"type": "integer"}, "price": {"$ref": "money.json"}}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    register("order-j", ".json", json.dumps(schema), "--reference", "money.json=money-j:1")
    register("money-p", ".proto", 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }')
    register(
        "order-p", ".proto",
        'syntax = "proto3"; package shop; import "shop/money.proto"; import "google/protobuf/timestamp.proto";'
        " message Note { string text = 1; } message Order { int64 id = 1; Money price = 2;"
        " google.protobuf.Timestamp at = 3; }",
        "--reference", "shop/money.proto=money-p:1",
    )  # fmt: skip
    return found


@pytest.fixture
def topic(shell: Shell) -> str:
    name = f"records-{uuid.uuid4().hex[:8]}"
    shell.run("topics", "create", name, "-p", "1")
    return name


def lines_of(rows: list[Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def stored(shell: Shell, topic: str) -> list[bytes]:
    """The values' own bytes."""
    return [
        bytes.fromhex(line)
        for line in shell.lines("consume", topic, "--to", "end", "--decode", "raw", "-f", "%v{hex}\\n")
    ]


def test_avro_is_read_and_written_as_confluents_serializers_do(
    fleet: Fleet, shell: Shell, registry: RegistryProcess, topic: str
) -> None:
    shell.run(
        "produce", topic, "--schema", "order", "-K", "|", stdin="".join(f"k|{json.dumps(one)}\n" for one in ORDERS)
    )
    client, context = registry.client(), SerializationContext(topic, MessageField.VALUE)
    read = AvroDeserializer(client)
    assert [read(value, context) for value in stored(shell, topic)] == ORDERS
    write = AvroSerializer(client, json.dumps(MONEY), conf={"auto.register.schemas": False, "use.latest.version": True,
                           "subject.name.strategy": lambda *_: "money"})  # fmt: skip
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    producer.produce(topic, write({"cents": 5}, context), b"k")
    producer.produce(topic, b"\0\0\0\0\1damaged")
    producer.produce(topic, None, b"k")
    assert producer.flush(30) == 0
    result = shell.run("consume", topic, "--to", "end")
    assert [json.loads(line) for line in result.stdout.splitlines()[:4]] == [*ORDERS, {"cents": 5}]
    assert "damaged" in result.stdout
    assert result.stderr.count("shown as bytes") == 1
    rows = [json.loads(line) for line in shell.lines("consume", topic, "--to", "4", "--json")]
    assert [row["value"] for row in rows] == [*ORDERS, {"cents": 5}]
    assert len({row["value_schema"] for row in rows}) == 2
    assert shell.lines(
        "consume", topic, "--to", "4", "--filter", "value.price.cents >= 200", "-f", "%k %v %V %v{hex}\\n"
    ) == [f"k {json.dumps(ORDERS[2])} 9 {stored(shell, topic)[2].hex()}"]
    assert shell.lines("consume", topic, "--to", "end", "--decode", "avro", "--filter", "value.cents == 5") == [
        '{"cents": 5}'
    ]


@pytest.mark.parametrize(
    ("schema", "options", "row", "wrong", "reason"),
    [
        ("order-j", (), {"id": 1, "price": 5}, {"id": 1, "price": -5}, "price: -5 is less than the minimum"),
        (
            "order-p", ("--schema-message", "Order"),
            {"id": 1, "price": {"cents": 5}, "at": "2026-01-31T12:00:00+00:00"},
            {"id": 1, "price": {"pence": 5}}, 'no field named "pence"',
        ),
        ("order", (), {"id": 1, "price": {"cents": 5}, "note": None}, {"id": 1, "price": 5}, "price: an object"),
    ],
)  # fmt: skip
def test_what_refers_to_others_is_written_and_read(
    shell: Shell, topic: str, schema: str, options: tuple[str, ...], row: Any, wrong: Any, reason: str
) -> None:
    shell.run("produce", topic, "--schema", schema, *options, stdin=lines_of([row]))
    assert [json.loads(line) for line in shell.lines("consume", topic, "--to", "end")] == [row]
    copy = shell.run("consume", topic, "--to", "end", "--json").stdout
    shell.run("produce", topic, "-f", "json", "--schema", schema, *options, stdin=copy)
    before, after = stored(shell, topic)
    if schema != "order-j":  # JSON stays as it is written
        assert before == after
    failed = shell.fails("produce", topic, "--schema", schema, *options, stdin=lines_of([row, wrong, row]))
    assert "line 2: " in failed
    assert reason in failed
    assert "1 record was written before, and none behind" in failed
    assert len(stored(shell, topic)) == 3


def test_json_is_read_by_confluents_deserializer(shell: Shell, registry: RegistryProcess, topic: str) -> None:
    shell.run("produce", topic, "--schema", "money-j:1", "--key-schema", "money-j", "-K", "|", stdin="1|5\n")
    (value,) = stored(shell, topic)
    read = JSONDeserializer('{"type": "integer"}', schema_registry_client=registry.client())
    assert read(value, SerializationContext(topic, MessageField.VALUE)) == 5
    assert shell.lines("consume", topic, "--to", "end", "-K", " is ") == ["1 is 5"]
    assert shell.lines("consume", topic, "--to", "end", "--decode", "key=hex", "-f", "%k\\n")[0].startswith("00000000")


def test_nothing_of_a_file_with_a_wrong_line_is_written(shell: Shell, topic: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text(lines_of(ORDERS))
    bad.write_text(lines_of([ORDERS[0], {"id": "x"}, ORDERS[1]]) + "no json\n")
    failed = shell.fails("produce", topic, "--schema", "order", str(good), str(bad))
    assert "nothing was written: line 5: id: a whole number is expected" in failed
    assert "line 7: it is not JSON" in failed
    assert stored(shell, topic) == []
    with bad.open() as stdin:  # `< bad`
        words = [sys.executable, "-m", "fleetlog.brokers.cli.main", "produce", topic, "--schema", "order"]
        environment = {**shell.environment, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            words, stdin=stdin, capture_output=True, text=True, env=environment, cwd=ROOT, check=False
        )
    assert (done.returncode, "nothing was written: line 2:" in done.stderr) == (1, True), done.stderr
    assert stored(shell, topic) == []
    done_json = shell.json("produce", topic, "--schema", "order", "--skip-invalid", str(good), str(bad))
    assert (done_json["records"], done_json["left_out"]) == (5, 2)
    assert "no schema" in shell.fails("produce", topic, "--schema", "4711", stdin="1\n")
    assert "no subject nobody" in shell.fails("produce", topic, "--schema", "nobody", stdin="1\n")
    assert "name one of shop.Note, shop.Order" in shell.fails("produce", topic, "--schema", "order-p", stdin="{}\n")
