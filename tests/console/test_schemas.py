"""Values that carry a schema's id: by another implementation's bytes, by bytes of strangers, and on a page."""

from __future__ import annotations

import contextlib
import json
import random
import time
import types
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from fleetlog.brokers.cli.main import cli
from fleetlog.brokers.cli.schema_values import PAGE_IDS, AvroError, AvroSchema, FieldBudget, PageSchemas, SchemaRegistry
from fleetlog.brokers.cli.topic_reader import StoredRecord
from fleetlog.brokers.console.masking import read_masks
from fleetlog.brokers.console.message_pages import Search, SearchedRecord, decode_bytes, record_row
from tests.cli.shell import Shell
from tests.console.served import Served, Visitor
from tests.support.fleet import Fleet
from tests.support.schema_registry import FakeRegistry
from tests.support.schema_samples import DEEP, DOUBLING, ENDLESS, ORDER, framed, order, schema_of, value_of, written


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    found = FakeRegistry()
    yield found
    found.close()


def test_what_another_implementation_wrote_is_read() -> None:
    schema = AvroSchema(json.dumps(ORDER))
    found = schema.decode(written(ORDER, order(-(2**62), order(3))), FieldBudget(1000))
    assert found == {
        "id": -(2**62), "note": "é", "price": "-12.50", "day": "2026-01-31", "at": "2026-01-31T12:00:00+00:00",
        "raw": b"\xff\0", "state": "PAID", "before": "OPEN", "lines": [{"a": 1.5}, {"b": True, "c": 2.25}],
        "parent": {**found["parent"]},
    }  # fmt: skip
    assert (found["parent"]["id"], found["parent"]["note"], found["parent"]["parent"]) == (3, None, None)


@pytest.mark.parametrize("seed", range(60))
def test_any_schema_and_value_are_read_as_they_were_written(seed: int) -> None:
    rng = random.Random(seed)
    schema = schema_of(rng, [])
    value = None
    for _ in range(5):
        try:
            value = value_of(schema, rng)
            data = written(schema, value)
        except fastavro.schema.SchemaParseException:
            return  # ["null", "null"] is no union
        reader = AvroSchema(json.dumps(schema))
        assert reader.decode(data, FieldBudget(100_000)) == value
        for _ in range(20):  # whatever else is in the bytes is read or refused
            torn = bytearray(data[: rng.randrange(len(data) + 1)])
            if torn:
                torn[rng.randrange(len(torn))] ^= 1 << rng.randrange(8)
            with contextlib.suppress(AvroError):
                reader.decode(bytes(torn), FieldBudget(10_000))


NULLS = {"type": "array", "items": "null"}


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        (NULLS, written("long", 2**60) + b"\0", "too many fields"),
        (DEEP, b"\2" * 50_000, "nested deeper"),
        (ENDLESS, b"", "nested deeper"),
        (DOUBLING, b"", "too many fields"),
        ("bytes", written("long", 2**60), "bytes wanted"),
        ("bytes", b"\1", "bytes wanted"),
        ("long", b"\xff" * 11, "too long"),
        (["null"], b"\4", "no branch"),
        ({"type": "fixed", "name": "F", "size": -1}, b"", "bytes wanted"),
        ({"type": "fixed", "name": "F", "size": "x"}, b"", "not of its schema"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\1", "no symbol"),
        ({"type": "array", "items": "Nowhere"}, b"\2", "no type 'Nowhere'"),
        ("string", b"\2\xff", "not of its schema"),
        ("null", b"\0", "left over"),
    ],
)
def test_bytes_of_strangers_end_soon(schema: Any, data: bytes, reason: str) -> None:
    begun_s = time.monotonic()
    with pytest.raises(AvroError, match=reason):
        AvroSchema(json.dumps(schema)).decode(data, FieldBudget(50_000))
    assert time.monotonic() - begun_s < 10


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, '{"type": "record"}', '{"name": "a"}', "3", "{}", '[{"type": []}']
)
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(AvroError):
        AvroSchema(text)


def test_a_timestamp_that_no_calendar_has_is_a_number() -> None:
    schema = {"type": "long", "logicalType": "timestamp-micros"}
    assert AvroSchema(json.dumps(schema)).decode(written("long", 2**62), FieldBudget(9)) == 2**62
    odd = {"type": "string", "logicalType": "timestamp-millis"}
    assert AvroSchema(json.dumps(odd)).decode(written("string", "a"), FieldBudget(9)) == "a"


def test_values_are_shown_by_their_schema_with_its_id(registry: FakeRegistry) -> None:
    avro = registry.add("order-value", json.dumps(ORDER))
    as_json = registry.add("j-value", '{"type": "object"}', "JSON")
    protobuf = registry.add("p-value", 'syntax = "proto3";', "PROTOBUF")
    schemas = PageSchemas(SchemaRegistry(registry.url))
    shown = decode_bytes(framed(avro, written(ORDER, order(7))), "auto", schemas=schemas)
    assert (shown.kind, shown.schema, json.loads(shown.text or "")["raw"]) == ("avro", avro, "ff 00")
    shown = decode_bytes(framed(as_json, b'{"a": 1}'), "auto", schemas=schemas)
    assert shown[:2] + shown[4:] == ("json", '{"a": 1}', as_json, "")
    assert "is not" in decode_bytes(framed(as_json, b"a"), "registry", schemas=schemas).problem
    shown = decode_bytes(framed(protobuf, b"\1"), "registry", schemas=schemas)
    assert (shown.kind, shown.text) == ("hex", "00 00 00 00 03 01")
    assert "PROTOBUF" in shown.problem
    shown = decode_bytes(framed(avro, b"\0"), "auto", schemas=schemas)
    assert (shown.kind, shown.schema) == ("hex", None)
    assert f"schema {avro}" in shown.problem
    by_chance = decode_bytes(framed(77, b"abc"), "auto", schemas=schemas)
    assert (by_chance.kind, by_chance.problem) == ("hex", "the registry has no schema 77")
    assert "no schema 77" in decode_bytes(framed(77, b"abc"), "registry", schemas=schemas).problem
    assert "zero byte" in decode_bytes(b"abc", "registry", schemas=schemas).problem
    assert decode_bytes(b"abc", "auto", schemas=schemas).text == "abc"
    assert set(registry.calls.values()) == {1}, "each id is asked for once"


def test_a_header_leads_to_the_schema_and_what_is_masked_stays_so(registry: FakeRegistry) -> None:
    number, guid = registry.add("order-value", json.dumps(ORDER)), uuid.UUID(int=5)
    registry.guids[str(guid)] = number
    schemas = PageSchemas(SchemaRegistry(registry.url))
    raw = written(ORDER, order(7))
    stored = StoredRecord(
        0, 0, 0, b"k", raw, (("__value_schema_id", b"\1" + guid.bytes),), "", "", -1, -1, -1, 0, "none"
    )
    row = record_row("t", stored, "auto", "auto", schemas)
    assert (row["value"]["kind"], row["value"]["schema"], row["value"]["size"]) == ("avro", number, len(raw))
    assert row["key"]["text"] == "k"
    assert record_row("t", stored, "auto", "hex", schemas)["value"]["text"] == raw.hex(" ")
    gone = stored._replace(headers=(("__value_schema_id", b"\1" + bytes(16)),))
    assert "has no schema" in record_row("t", gone, "auto", "auto", schemas)["value"]["problem"]
    seen = SearchedRecord("t", stored, schemas, Counter())
    assert seen.inner("value")["id"] == 7
    asked = types.SimpleNamespace(
        registry=SchemaRegistry(registry.url), name="t", masks=read_masks("t value.id"), text=lambda *_: "",
        choice=lambda name, choices: choices[0],
    )  # fmt: skip
    masked = Search(cast("Any", asked)).shown(stored)
    assert json.loads(masked.value or b"")["id"] == "***"
    assert masked.headers == ()
    assert json.loads(record_row("t", masked, "auto", "auto", schemas)["value"]["text"])["id"] == "***"


def test_a_page_asks_for_a_few_ids_and_stops_at_a_registry_that_is_silent(registry: FakeRegistry) -> None:
    kept = SchemaRegistry(registry.url)
    schemas = PageSchemas(kept)
    problems = [decode_bytes(framed(n, b""), "registry", schemas=schemas).problem for n in range(100, 150)]
    assert sum("not asked for" in one for one in problems) == 50 - PAGE_IDS
    assert len(registry.calls) == PAGE_IDS
    number = registry.add("s", '"long"')
    assert decode_bytes(framed(number, b"\2"), "auto", schemas=PageSchemas(kept)).text == "1"
    registry.broken = 10
    schemas = PageSchemas(SchemaRegistry(registry.url))
    shown = [decode_bytes(framed(n, b"\2"), "auto", schemas=schemas) for n in (number, 8, 9)]
    assert {(one.kind, one.problem) for one in shown} == {("hex", f"the registry answers 503 for schema {number}")}
    assert registry.broken == 9, "one silence is enough for a page"
    registry.broken = 0
    registry.close()
    gone = decode_bytes(framed(number, b"\2"), "auto", schemas=PageSchemas(SchemaRegistry(registry.url)))
    assert "does not answer" in gone.problem
    assert decode_bytes(framed(number, b"\2"), "auto", schemas=PageSchemas(kept)).text == "1", "schemas do not change"


@pytest.mark.zookeeper
def test_a_page_shows_avro_by_a_registry_that_asks_for_a_login(fleet: Fleet, tmp_path: Path) -> None:
    name = f"console-{uuid.uuid4().hex[:8]}"
    Shell(fleet).run("topics", "create", name, "-p", "1")
    registry = FakeRegistry(user="me:secret")
    number = registry.add(f"{name}-value", json.dumps(ORDER))
    producer = Producer({"bootstrap.servers": fleet.bootstrap})
    for value in (framed(number, written(ORDER, order(7))), framed(number, b"<b>torn</b>")):
        producer.produce(name, value, "key")
    assert producer.flush(30) == 0
    file = tmp_path / "registry.properties"
    file.write_text("basic.auth.user.info=me:secret\n")
    console = Served(fleet.bootstrap, "--schema-registry", registry.url, "--schema-registry-config", str(file))
    try:
        visitor = Visitor(console)
        value = visitor.json(f"/topics/{name}/messages?from=beginning")
        assert "registry" in value["decoders"]
        good, torn = (one["value"] for one in value["messages"])
        assert (good["kind"], good["schema"], json.loads(good["text"])["price"]) == ("avro", number, "-12.50")
        assert torn["kind"] == "hex"
        assert f"schema {number}" in torn["problem"]
        page = visitor.page(f"/topics/{name}/messages?from=beginning&value_as=registry&key_as=registry")
        assert f"schema {number}</span>" in page
        assert "zero byte" in page
        assert "secret" not in page
        assert visitor.json(f"/topics/{name}/record?offset=0")["record"]["value"]["schema"] == number
    finally:
        registry.close()
        assert console.close() == 0


@pytest.mark.zookeeper
def test_a_record_is_written_by_a_schema_from_its_example(fleet: Fleet, tmp_path: Path) -> None:
    name = f"console-{uuid.uuid4().hex[:8]}"
    shell = Shell(fleet)
    shell.run("topics", "create", name, "-p", "1")
    registry = FakeRegistry(user="me:secret")
    number = registry.add(f"{name}-value", json.dumps(ORDER))
    file = tmp_path / "registry.properties"
    file.write_text("basic.auth.user.info=me:secret\n")
    console = Served(fleet.bootstrap, "--schema-registry", registry.url, "--schema-registry-config", str(file))
    try:
        visitor = Visitor(console)
        address = f"/topics/{name}/write"
        assert f"schema={name}-value" in visitor.page(address)
        draft = visitor.json(f"{address}?schema={name}-value")["draft"]
        assert json.loads(draft["value"])["state"] == "OPEN"
        assert "&#34;state&#34;" in visitor.page(f"{address}?schema={name}-value")
        assert "no subject nobody" in visitor.json(f"{address}?schema=nobody")["no_example"]
        form = {"topic": name, "key": "k", "value": draft["value"], "schema": f"{name}-value"}
        token = visitor.token(visitor.page(address))
        got = visitor.post("/change/write-record", {**form, "form_token": token}, Accept="application/json").value
        assert f"--schema={name}-value" in got["command"]
        assert f"--registry={registry.url}" in got["command"]
        assert "secret" not in got["command"]
        assert json.loads(got["preview"][0]["value"])["state"] == "OPEN"
        wrong = {**form, "value": draft["value"].replace("OPEN", "GONE"), "form_token": token}
        refused = visitor.post("/change/write-record", wrong, Accept="application/json")
        assert (refused.status, "state: one of OPEN, PAID is expected" in refused.value["error"]) == (400, True)
        visitor.post("/change/write-record", {**form, "form_token": token, "confirm": "yes"})
        (written,) = visitor.json(f"/topics/{name}/messages?from=beginning")["messages"]
        assert (written["value"]["kind"], written["value"]["schema"], written["key"]["text"]) == ("avro", number, "k")
        again = visitor.json(f"{address}?like=last")
        assert (again["schema"], json.loads(again["draft"]["value"])["state"]) == (str(number), "OPEN")
        assert (again["draft"]["base64"], again["key_schema"]) == (False, "")
    finally:
        registry.close()
        assert console.close() == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--schema-registry", "registry:8081"], "not the address"),
        (["--schema-registry", "http://me:secret@registry:8081"], "--schema-registry-config"),
        (["--schema-registry-config", "FILE"], "goes with --schema-registry"),
        (["--schema-registry", "http://registry:8081", "--schema-registry-config", "FILE"], "USER:PASSWORD"),
    ],
)
def test_half_a_registry_does_not_start(tmp_path: Path, options: list[str], reason: str) -> None:
    file = tmp_path / "registry.properties"
    file.write_text("user=me\n")
    words = [str(file) if word == "FILE" else word for word in options]
    result = CliRunner().invoke(cli, ["console", "--port", "0", *words])
    assert result.exit_code == 2
    assert reason in result.stderr
    assert "secret" not in result.stderr.replace("http://me:secret@", "")
