"""What a broker keeps of ``_schemas``: ids of the subjects that its topics want, by the names that serializers use."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.api.offsets import handle_list_offsets
from fleetlog.brokers.api.schema_reader import VERSIONS_MAX, SchemaReader, SchemaRows, names_of
from fleetlog.brokers.log.door import DoorCounts, Want
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.peers.calls import PeerUnavailable
from fleetlog.brokers.schemas.registry import RegistryState
from fleetlog.wire.compression import ZSTD, decompress
from fleetlog.wire.messages import decode_response, encode_response
from tests.support.logs import batch
from tests.support.stage import ME, OTHER, Stage
from tests.support.waiting import eventually_async

ORDERS, NAMED, OF_ORDERS = Want("orders-value"), Want("", of_records=True), Want("orders-", of_records=True)
PROTO = """
syntax = "proto3";
// message Commented {}
package shop.v1; /* message { */
import "other.proto";
message Order {
  option (text) = "message Quoted {";
  message Line { int32 amount = 1; }
  oneof choice { Line line = 1; }
  enum Kind { NONE = 0; }
}
message Empty {}
"""


def key(subject: str, version: int = 1, **more: Any) -> bytes:
    return json.dumps({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1} | more).encode()


def value(number: int, schema: str = '"string"', **more: Any) -> bytes:
    return json.dumps({"id": number, "schema": schema} | more).encode()


def ids(rows: SchemaRows, want: Want) -> list[int]:
    table = rows.tables()[want].ids
    return [int.from_bytes(table[at : at + 4], "big") for at in range(0, len(table), 4)]


def test_ids_of_all_versions_are_kept_once_and_sorted() -> None:
    rows = SchemaRows([ORDERS])
    for version, number in ((1, 70_000), (2, 3), (3, 3), (4, 255)):
        rows.apply(key("orders-value", version), value(number))
    rows.apply(key("payments-value"), value(9))
    assert ids(rows, ORDERS) == [3, 255, 70_000]
    assert rows.count == 4


def test_a_version_goes_when_it_is_deleted_for_good_and_not_before() -> None:
    rows = SchemaRows([ORDERS])
    rows.apply(key("orders-value"), value(1))
    rows.apply(key("orders-value", 2), value(2))
    rows.apply(key("orders-value"), value(1, deleted=True))
    assert ids(rows, ORDERS) == [1, 2]
    rows.apply(key("orders-value"), None)
    assert ids(rows, ORDERS) == [2]
    rows.apply(key("orders-value", 2), value(5))  # in mode IMPORT another schema may take its place
    assert ids(rows, ORDERS) == [5]


def test_the_default_context_has_two_names_and_others_are_others() -> None:
    rows = SchemaRows([ORDERS, NAMED])
    rows.apply(key(":.:orders-value"), value(1))
    rows.apply(key(":.other:orders-value"), value(2))
    assert ids(rows, ORDERS) == [1]


def test_subjects_by_the_names_of_records() -> None:
    rows = SchemaRows([NAMED, OF_ORDERS])
    order = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": []})
    rows.apply(key("shop.Order"), value(1, order))
    rows.apply(key("orders-shop.Order"), value(2, order))
    rows.apply(key("orders-value"), value(3, order))
    rows.apply(key("Order"), value(4, order))
    rows.apply(key("shop.v1.Order.Line"), value(5, PROTO, schemaType="PROTOBUF"))
    assert ids(rows, NAMED) == [1, 5]
    assert ids(rows, OF_ORDERS) == [2]


@pytest.mark.parametrize(
    ("kind", "text", "names"),
    [
        ("AVRO", '{"type": "record", "name": "a.b.C", "namespace": "x", "fields": []}', ["a.b.C"]),
        ("AVRO", '{"type": "enum", "name": "C", "symbols": []}', ["C"]),
        ("AVRO", '"string"', ["string"]),
        ("AVRO", '{"type": "long"}', ["long"]),
        ("AVRO", '["null", "string"]', []),
        ("JSON", '{"title": "Order", "type": "object"}', ["Order"]),
        ("JSON", "true", []),
        ("PROTOBUF", PROTO, ["shop.v1.Order", "shop.v1.Order.Line", "shop.v1.Empty"]),
        ("PROTOBUF", "message A { message B {} } message C {}", ["A", "A.B", "C"]),
        ("PROTOBUF", "message A {} " + "/*" * 300_000, ["A"]),  # another registry may have taken it
    ],
)
def test_names_of_a_schema(kind: str, text: str, names: list[str]) -> None:
    assert list(names_of(kind, text, 1000)) == names


def test_names_of_messages_in_a_message_with_a_long_name_cost_no_more_than_the_schema() -> None:
    rows, inner = SchemaRows([NAMED]), "".join(f"message M{number} {{}} " for number in range(10_000))
    long = f"message {'L' * 300_000} {{ {inner} }} message Order {{}}"
    tracemalloc.start()
    try:
        rows.apply(key("Order"), value(7, long, schemaType="PROTOBUF"))
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert ids(rows, NAMED) == [7]


@pytest.mark.parametrize(
    ("key_text", "value_text"),
    [
        (None, None), (b"", b""), (b"{", b"{}"), (b"[]", b"{}"), (b"{}", b"{}"), (b'{"keytype": "SCHEMA"}', b"{}"),
        (key("orders-value"), b"{}"), (key("orders-value"), value(-1)), (key("orders-value"), value(2**32)),
        (key("orders-value"), b'{"id": "x", "schema": "{"}'), (key("orders-value", 1, keytype="NOOP"), None),
        (key("orders-value"), b"[" * 100_000),
    ],
)  # fmt: skip
def test_records_of_other_kinds_and_forms_change_nothing(key_text: bytes | None, value_text: bytes | None) -> None:
    rows = SchemaRows([ORDERS, NAMED])
    rows.apply(key_text, value_text)
    assert rows.count == 0


def test_guids_are_those_of_the_registry() -> None:
    order = json.dumps({"type": "record", "name": "Order", "fields": []})
    more: dict[str, Any] = {
        "references": [{"name": "a", "subject": "b", "version": 3}], "metadata": {"properties": {"owner": "shop"}},
    }  # fmt: skip
    rows, registry = SchemaRows([ORDERS]), RegistryState()
    for version, fields in enumerate(({}, more), 1):
        rows.apply(key("orders-value", version), value(version, order, **fields))
        registry.apply(key("orders-value", version), value(version, order, **fields))
    theirs = sorted(UUID(one.guid).bytes for one in registry.all("", deleted=False, latest=False))
    assert rows.tables()[ORDERS].guids == b"".join(theirs)


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert VERSIONS_MAX >= 100_000
    monkeypatch.setattr("fleetlog.brokers.api.schema_reader.VERSIONS_MAX", 2)
    rows = SchemaRows([ORDERS])
    for version in range(4):
        rows.apply(key("orders-value", version), value(version))
    assert ids(rows, ORDERS) == [0, 1]


TEXTS, NAMED_TEXTS = ORDERS._replace(texts=True), NAMED._replace(texts=True)
REFERS = [{"name": "n", "subject": "other", "version": 2}]


def test_texts_are_kept_of_subjects_whose_payloads_are_checked() -> None:
    rows = SchemaRows([ORDERS, TEXTS, NAMED_TEXTS])
    order = json.dumps({"type": "record", "name": "Order", "fields": []})
    rows.apply(key("orders-value"), value(1, order, references=REFERS))
    rows.apply(key("Order"), value(2, order))
    rows.apply(key("Orders"), value(3, order))
    tables = rows.tables()
    assert not tables[ORDERS].sources
    assert {int.from_bytes(number, "big") for number in tables[TEXTS].sources if len(number) == 4} == {1}
    assert [one.text for one in tables[TEXTS].sources.values()] == [order, order], "by id, and by GUID"
    assert {int.from_bytes(number, "big") for number in tables[NAMED_TEXTS].sources if len(number) == 4} == {2}
    assert rows.lacking == {("other", 2)}
    rows.apply(key("orders-value"), None)
    rows.apply(key("Order"), None)
    assert rows.size == 0


def test_what_schemas_refer_to_is_kept_by_subject_and_version() -> None:
    rows = SchemaRows([TEXTS], [("other", 2), ("other", 3)])
    rows.apply(key(":.:other", 1), value(1))
    rows.apply(key(":.:other", 2), value(2, references=[{"name": "n", "subject": ":.:more", "version": 1}]))
    rows.apply(key("orders-value"), value(3, references=REFERS))
    kept = rows.references[("other", 2)]
    assert kept is not None
    assert (kept.text, kept.references) == ('"string"', (("more", 1),))
    assert rows.references[("other", 3)] is None
    assert rows.lacking == {("more", 1)}
    assert ids(rows, TEXTS) == [3]
    rows.apply(key("other", 2), None)
    assert rows.references[("other", 2)] is None


def test_there_is_a_bound_for_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.brokers.api.schema_reader.SOURCES_BYTES_MAX", 40)
    rows = SchemaRows([TEXTS], [("other", 2)])
    for version in range(4):
        rows.apply(key("orders-value", version), value(version))
    rows.apply(key("other", 2), value(9))
    assert ids(rows, TEXTS) == [0, 1, 2, 3]
    assert 0 < len(rows.tables()[TEXTS].sources) < 5
    assert ("other", 2) not in rows.references, "it is not known"


def test_a_topic_that_is_deleted_has_no_series(tmp_path: Path) -> None:
    stage, metrics = Stage(tmp_path), Metrics()
    known = stage.logs.schemas
    reader = SchemaReader(stage.services, known, connect=lambda: cast("Any", None), start=lambda work: work.close())
    reader.watch(metrics)
    stage.topic("orders")
    for topic in ("orders", "gone"):
        known.counts[topic] = DoorCounts(refused_records=3)
    assert [line for line in metrics.render().decode().splitlines() if line.startswith("fleetlog_schema_refused")] == [
        'fleetlog_schema_refused_records_total{topic="orders"} 3.0'
    ]


def test_a_new_leader_knows_nothing_until_the_records_of_its_predecessor_are_committed(tmp_path: Path) -> None:
    stage, begun = Stage(tmp_path), list[Any]()
    known = stage.logs.schemas
    SchemaReader(stage.services, known, connect=lambda: cast("Any", None), start=begun.append)
    stage.topic("_schemas", replicas=(ME, OTHER))
    stage.append("_schemas")
    stage.topic("_schemas", epoch=1, replicas=(ME, OTHER))
    known.table(ORDERS)

    async def follow(work: Any) -> None:
        reading = asyncio.create_task(work)
        try:
            for _ in range(10):
                await asyncio.sleep(0)
            assert known.tables == {}
            stage.fetched("_schemas", OTHER, 1)
            await eventually_async(lambda: ORDERS in known.tables, "the topic is read", 10)
        finally:
            reading.cancel()

    asyncio.run(follow(*begun))


def test_what_is_referred_to_is_read_too(tmp_path: Path) -> None:
    stage, begun = Stage(tmp_path), list[Any]()
    known = stage.logs.schemas
    SchemaReader(stage.services, known, connect=lambda: cast("Any", object()), start=begun.append)
    stage.topic("_schemas")
    order = '{"type": "record", "name": "Order", "fields": [{"name": "a", "type": "Inner"}]}'
    refers = [{"name": "n", "subject": "inner", "version": 1}]
    rows = [
        Record(0, 0, key("inner"), value(1, '{"type": "fixed", "name": "Inner", "size": 1}'), ()),
        Record(1, 0, key("orders-value"), value(2, order, references=refers), ()),
    ]
    stage.replicate("_schemas", encode_batch(rows))
    known.table(TEXTS)
    number = (2).to_bytes(4, "big")

    async def follow(work: Any) -> None:
        reading = asyncio.create_task(work)
        try:
            await eventually_async(lambda: known.compile(TEXTS, number) is not None, "both are read", 10)
            assert number in known.checks(TEXTS).ids
        finally:
            reading.cancel()

    asyncio.run(follow(*begun))


class Leader:
    """Another broker, which leads the topic: its answers to ListOffsets are its own, it is never fetched from."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.fetches = 0

    async def call(self, broker_id: int, key: int, version: int, message: Any, timeout_ms: int) -> Any:
        made = handle_list_offsets(message, self.stage.context(key, version))
        response = self.stage.made(self.stage.made(made).response)
        return decode_response(key, version, encode_response(response, key, version))

    async def exchange(self, *_: Any) -> Any:
        self.fetches += 1
        raise PeerUnavailable("it is not there")


def test_another_broker_that_is_new_as_leader_is_read_when_it_knows_what_is_committed(tmp_path: Path) -> None:
    there, here, begun = Stage(tmp_path / "there"), Stage(tmp_path / "here"), list[Any]()
    here.topic("_schemas", leader=OTHER, epoch=1, replicas=(ME, OTHER))
    there.topic("_schemas", replicas=(ME, OTHER))
    there.append("_schemas")
    there.topic("_schemas", epoch=1, replicas=(ME, OTHER))
    leader = Leader(there)
    SchemaReader(here.services, here.logs.schemas, connect=lambda: cast("Any", leader), start=begun.append)
    here.logs.schemas.table(ORDERS)

    async def follow(work: Any) -> None:
        reading = asyncio.create_task(work)
        try:
            for _ in range(10):
                await asyncio.sleep(0)
            assert not leader.fetches
            there.fetched("_schemas", OTHER, 1)
            await eventually_async(lambda: leader.fetches > 0, "it is read", 10)
        finally:
            reading.cancel()

    asyncio.run(follow(*begun))


def test_a_batch_with_a_codec_is_unpacked_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, begun, threads = Stage(tmp_path), list[Any](), set[int]()

    def seen(*of: Any) -> Any:
        threads.add(threading.get_ident())
        return decompress(*of)

    monkeypatch.setattr("fleetlog.brokers.api.schema_reader.decompress", seen)
    known = stage.logs.schemas
    SchemaReader(stage.services, known, connect=lambda: cast("Any", object()), start=begun.append)
    stage.topic("_schemas")
    stage.replicate("_schemas", batch(value=value(7), key=key("orders-value"), codec=ZSTD))
    known.table(ORDERS)

    async def follow(work: Any) -> None:
        reading = asyncio.create_task(work)
        try:
            await eventually_async(lambda: known.table(ORDERS).ids == (7).to_bytes(4, "big"), "it is read", 10)
        finally:
            reading.cancel()

    asyncio.run(follow(*begun))
    assert threads
    assert threading.get_ident() not in threads
