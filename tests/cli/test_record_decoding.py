"""Keys and values as ``fleetlog consume`` shows them, by a registry that knows, does not know, or is silent."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.cli.command_config import REGISTRY_USER
from fleetlog.brokers.cli.consume import json_line
from fleetlog.brokers.cli.dev_state import BrokerState, FleetState, Process, save
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.cli.record_decoding import UNKNOWN_MAX, DecodedRecord, RecordDecoding
from fleetlog.brokers.cli.record_filter import parse_filter
from fleetlog.brokers.cli.registries import known_registry, registry_access
from fleetlog.brokers.cli.schema_values import REFERENCES_MAX, SchemaProblem, SchemaRegistry
from tests.cli.shell import Shell
from tests.support.schema_registry import FakeRegistry
from tests.support.schema_samples import framed, written


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    found = FakeRegistry()
    yield found
    found.close()


class Record(SimpleNamespace):
    """As kafka-python has it."""

    def _replace(self, **parts: Any) -> Record:
        return Record(**{**vars(self), **parts})


def record(value: bytes | None, key: bytes | None = None, offset: int = 0) -> Record:
    return Record(topic="t", partition=0, offset=offset, timestamp=0, key=key, value=value, headers=[])


POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "double"}, {"name": "raw", "type": "bytes"}],
}


def test_values_are_decoded_and_filtered_and_why_not_is_said_once_for_each_id(registry: FakeRegistry) -> None:
    told: list[str] = []
    avro, as_json = registry.add("a", json.dumps(POINT)), registry.add("j", "{}", "JSON")
    decoding = RecordDecoding("auto", "auto", SchemaRegistry(registry.url), told.append)
    good = decoding.seen(record(framed(avro, written(POINT, {"x": 1.5, "raw": b"\xff"})), b"k"))
    assert (good.as_shown.key, good.as_shown.value) == (b"k", '{"x": 1.5, "raw": "ÿ"}'.encode())
    assert json.loads(json_line(record(b"", b"k"), good)) | {"value": 0} == {
        "topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "key": "k", "value": 0, "value_schema": avro,
    }  # fmt: skip
    assert parse_filter("value.x > 1 && value.raw == 'ÿ'")(good)
    infinite = decoding.seen(record(framed(avro, written(POINT, {"x": float("inf"), "raw": b""}))))
    assert infinite.value_part.value["x"] == "Infinity"
    lined = decoding.seen(record(framed(as_json, b'{\n "a": "\\ud800"}')))
    assert lined.as_shown.value == b'{"a": "\\ud800"}'
    assert b'"\\ud800"' in json_line(record(b""), lined)
    plain = decoding.seen(record(b'{"a": 1}'))
    assert (plain.as_shown.value, parse_filter("value.a == 1")(plain)) == (b'{"a": 1}', True)
    assert decoding.seen(record(None)).as_shown.value is None
    assert not told
    for offset in (3, 4):
        for number, raw in ((avro, b"\xff"), (as_json, b"x"), (77, b"abc")):
            damaged = decoding.seen(record(framed(number, raw), offset=offset))
            assert damaged.as_shown.value == framed(number, raw)
            assert "value_base64" in json.loads(json_line(record(framed(number, raw)), damaged)) or raw != b"\xff"
    place = "t-0, offset 3: the value is shown as bytes"
    assert told == [
        f"{place}: schema {avro}: the value is not of its schema: 8 bytes wanted at byte 5",
        f"{place}: schema {as_json} is one of JSON, and the value is not",
        f"{place}: the registry has no schema 77",
    ]


def test_one_way_for_all(registry: FakeRegistry) -> None:
    told: list[str] = []
    avro = registry.add("a", '"long"')
    schemas = SchemaRegistry(registry.url)

    def shown(how: str, raw: bytes) -> bytes:
        return RecordDecoding("raw", how, schemas, told.append).seen(record(raw)).as_shown.value

    assert [shown(how, b"\0\xff") for how in ("raw", "hex", "string")] == [b"\0\xff", b"00ff", "\0�".encode()]
    assert shown("json", b'{"a":\n 1}') == b'{"a": 1}'
    assert shown("json", framed(avro, b"\2")) == framed(avro, b"\2")
    assert shown("protobuf", framed(avro, b"\2")) == framed(avro, b"\2")
    assert shown("avro", framed(avro, b"\2")) == b"1"
    assert shown("avro", b"abc") == b"abc"
    assert shown("json", b"abc") == b"abc"
    assert [line.partition("bytes: ")[2] for line in told] == [
        f"schema {avro} is one of avro", f"schema {avro} is one of avro",
        "not in the registry's format: a zero byte and a schema's id come first", "it is not JSON",
    ]  # fmt: skip


def test_a_header_leads_to_the_schema(registry: FakeRegistry) -> None:
    told: list[str] = []
    number = registry.add("a", json.dumps(POINT))
    guid = UUID("00112233-4455-6677-8899-aabbccddeeff")
    registry.guids[str(guid)] = number
    decoding = RecordDecoding("auto", "auto", SchemaRegistry(registry.url), told.append)
    raw = written(POINT, {"x": 0.1, "raw": b""})

    def seen(header: bytes, name: str = "__value_schema_id", value: bytes | None = raw) -> DecodedRecord:
        given = record(value)
        given.headers = [("other", b"x"), (name, header)]
        return decoding.seen(given)

    for header in (b"\1" + guid.bytes, b"\0" + number.to_bytes(4, "big")):
        shown = seen(header)
        assert (shown.as_shown.value, shown.value_part.schema) == (b'{"x": 0.1, "raw": ""}', number)
        assert parse_filter("value.x == 0.1")(shown)
    assert seen(b"\1" + guid.bytes).value_part.value["x"] == 0.1
    assert registry.calls[f"/schemas/guids/{guid}/ids"] == 1, "it is kept"
    key = record(None, raw)
    key.headers = [("__key_schema_id", b"\1" + guid.bytes)]
    assert decoding.seen(key).key_part.schema == number
    assert seen(b"\1" + guid.bytes, value=None).as_shown.value is None
    for header in (b"", b"\1short", b"\2" + guid.bytes):
        assert seen(header).as_shown.value == raw, "no header of a schema"
    assert seen(b"\1" + guid.bytes, "__key_schema_id").as_shown.value == raw, "of the key"
    assert not told
    unknown = UUID(int=7)
    for _ in range(2):
        assert seen(b"\1" + unknown.bytes).as_shown.value == raw
    assert [line.partition("bytes: ")[2] for line in told] == [f"the registry has no schema {unknown}"]
    assert registry.calls[f"/schemas/guids/{unknown}/ids"] == 1


def test_a_schema_of_another_context_is_not_taken_for_that_with_its_id_in_this_one(registry: FakeRegistry) -> None:
    told: list[str] = []
    guid = UUID(int=9)
    registry.guids[str(guid)] = -1
    assert registry.add("a", '"string"') == 1, "it has the id that the other one has in its context"
    given = record(b"\6abc")
    given.headers = [("__value_schema_id", b"\1" + guid.bytes)]
    shown = RecordDecoding("auto", "auto", SchemaRegistry(registry.url), told.append).seen(given).as_shown
    assert shown.value == b"\6abc"
    assert [line.partition("bytes: ")[2] for line in told] == [
        f"the registry has no schema {guid} in the default context"
    ]


def test_bytes_that_begin_so_by_chance_do_not_ask_for_ever(registry: FakeRegistry) -> None:
    told: list[str] = []
    decoding = RecordDecoding("auto", "auto", SchemaRegistry(registry.url), told.append)
    for number in range(200):
        assert decoding.seen(record(struct.pack(">q", number << 32))).as_shown.value == struct.pack(">q", number << 32)
    assert len(registry.calls) == UNKNOWN_MAX
    assert len(told) == UNKNOWN_MAX


def test_a_registry_that_is_silent_is_left_alone_for_a_moment(registry: FakeRegistry) -> None:
    told: list[str] = []
    now = [100.0]
    number = registry.add("a", '"long"')
    registry.broken = 1
    decoding = RecordDecoding("auto", "auto", SchemaRegistry(registry.url), told.append, lambda: now[0])
    values = [decoding.seen(record(framed(number, b"\2"))).as_shown.value for _ in range(3)]
    assert values == [framed(number, b"\2")] * 3
    assert sum(registry.calls.values()) == 1
    now[0] += 6
    assert decoding.seen(record(framed(number, b"\2"))).as_shown.value == b"1"
    assert [line.partition("bytes: ")[2] for line in told] == [f"the registry answers 503 for schema {number}"]


def test_references_end_also_in_a_circle(registry: FakeRegistry) -> None:
    inner = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
    money = registry.add("money", json.dumps(inner))
    price = {"type": "record", "name": "Price", "fields": [{"name": "is", "type": "shop.Money"}]}
    number = registry.add("price", json.dumps(price))
    registry.references[number] = [{"name": "shop.Money", "subject": "money", "version": 1}]
    registry.references[money] = [{"name": "Price", "subject": "price", "version": 1}]
    known = SchemaRegistry(registry.url, now_s=lambda: 0.0)
    decoding = RecordDecoding("raw", "avro", known)
    assert decoding.seen(record(framed(number, b"\2"))).value_part.value == {"is": {"cents": 1}}
    assert list(known.schema(number).texts) == ["Price", "shop.Money", ""]
    registry.references[number] = [
        {"name": f"n{place}", "subject": "money", "version": 1} for place in range(REFERENCES_MAX + 1)
    ]
    with pytest.raises(SchemaProblem, match="refers to more than"):
        SchemaRegistry(registry.url, now_s=lambda: 0.0).schema(number)
    registry.references[number] = [{"name": "n", "subject": "nobody", "version": 1}]
    with pytest.raises(SchemaProblem, match="no schema"):
        SchemaRegistry(registry.url).schema(number)


def test_which_registry_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETLOG_DEV_DIR", str(tmp_path))
    here = Target("other:9092,localhost:9192", 1.0)
    assert known_registry(None, here) == ""
    fleet = FleetState(1, True, [BrokerState(1, 9192, 0, "b")], registry=Process.of(os.getpid()), registry_port=8099)
    save(tmp_path, fleet)
    assert known_registry(None, here) == "http://127.0.0.1:8099"
    assert known_registry(None, Target("127.0.0.1:9193", 1.0)) == "", "another fleet"
    assert known_registry(None, replace(here, registry="https://p")) == "https://p"
    assert known_registry("https://o", replace(here, registry="https://p")) == "https://o"
    fleet.registry = Process(os.getpid(), "another start")
    save(tmp_path, fleet)
    assert known_registry(None, here) == "", "it does not run"
    (tmp_path / "state.json").write_text("{")
    assert known_registry(None, here) == ""


def test_no_password_of_the_fleet_goes_to_a_registry_without_tls() -> None:
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="hush";'
    secured = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    target = Target("b:9092", 1.0, secured)
    with pytest.raises(CliError, match="without TLS"):
        registry_access("http://registry:8081", target)
    assert registry_access("https://registry:8081/", target).headers["Authorization"] == "Basic YTpodXNo"
    own = replace(target, properties={**secured, REGISTRY_USER: "b:c"})
    assert registry_access("http://localhost:8081", own).headers["Authorization"] == "Basic Yjpj"
    none = replace(target, properties={**secured, REGISTRY_USER: ""})
    assert "Authorization" not in registry_access("http://registry:8081", none).headers


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("consume", "t", "--decode", "xml"), "is none of auto, avro"),
        (("consume", "t", "--decode", "header=avro"), "key= or value="),
        (("consume", "t", "--decode", "key=hex", "--decode", "raw"), "decoded in one way"),
        (("consume", "t", "--decode", "avro"), "--registry URL"),
        (("consume", "t", "--decode", "avro", "--registry", "ftp://x"), "is not like"),
        (("produce", "t", "--schema", "s"), "--registry URL"),
        (("produce", "t", "--schema-message", "s"), "goes with --schema"),
        (("produce", "t", "--skip-invalid"), "goes with --schema"),
        (("produce", "t", "--schema", ""), "must not be empty"),
    ],
)
def test_what_cannot_be_is_said(words: tuple[str, ...], expected: str) -> None:
    assert expected in Shell(SimpleNamespace(bootstrap="127.0.0.1:1")).run(*words, code=2).stderr  # type: ignore[arg-type]
