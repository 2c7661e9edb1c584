"""Values that the sink writes by a subject's schema: what fits, what is refused and when, and schemas that change."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructType, _parse_datatype_string

from fleetlog.spark import OptionError, write_stream
from fleetlog.spark.functions.avro import Malformed, encode_values, encoder, misfit
from fleetlog.spark.functions.registry import Registry, Schema, split_frame
from fleetlog.spark.sink.options import SinkOptions, WriteOptions
from tests.spark.conftest import Cluster, run_while
from tests.spark.sink.job import FOREACH, FORMAT, Job, Read
from tests.support.schema_registry import FakeRegistry
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side

SUBJECT = "orders-value"
ORDER = {
    "type": "record", "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": "string", "default": "none"}],
}  # fmt: skip
WITH_DEFAULT = {**ORDER, "fields": [*ORDER["fields"], {"name": "paid", "type": "boolean", "default": False}]}
WITHOUT = {**ORDER, "fields": [*ORDER["fields"], {"name": "state", "type": "string"}]}
VALUE = "named_struct('id', try_cast(string(value) as int), 'note', concat('n', string(value))) as value"
GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:1", "sinkId": "s", "topic": "t", "checkpointLocation": "/c"}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    server = FakeRegistry()
    yield server
    server.close()


@pytest.fixture
def job(cluster: Cluster, read_stream: Read, tmp_path: Path) -> Job:
    return Job(cluster, read_stream, tmp_path)


class Orders(Job):
    """What is written, decoded by the schema that each value names."""

    def orders(self, registry: FakeRegistry) -> list[tuple[int, dict[str, Any]]]:
        rows = []
        for message in self.cluster.read(self.target):
            number, body = split_frame(message.value())
            schema = fastavro.parse_schema(json.loads(registry.schemas[number - 1][1]))
            rows.append((number, fastavro.schemaless_reader(io.BytesIO(body), schema, None)))
        return sorted(rows, key=lambda row: row[1]["id"])


@pytest.mark.parametrize("way", [FORMAT, FOREACH])
def test_a_running_query_takes_what_fits_and_stops_at_what_does_not(
    cluster: Cluster, read_stream: Read, tmp_path: Path, registry: FakeRegistry, way: str
) -> None:
    job = Orders(cluster, read_stream, tmp_path)
    first = registry.add(SUBJECT, json.dumps(ORDER))
    given = {"schema__subject": SUBJECT, "schema__registry__url": registry.url}
    rows = job.rows().selectExpr("key", VALUE)
    job.send("1")
    query = run_while(
        lambda: job.start(rows, way, once=False, **given), lambda: job.orders(registry), "an order", good=len
    )
    try:
        second = registry.add(SUBJECT, json.dumps(WITH_DEFAULT))
        job.send("2")
        orders = eventually(lambda: job.orders(registry), "another", 60, good=lambda orders: len(orders) == 2)
        assert orders == [
            (first, {"id": 1, "note": "n1"}),
            (second, {"id": 2, "note": "n2", "paid": False}),
        ]  # fmt: skip
        registry.add(SUBJECT, json.dumps(WITHOUT))
        job.send("3")
        with pytest.raises(Exception, match=r"column value does not fit schema 3 of subject orders-value: field state"):
            query.awaitTermination(120)
    finally:
        query.stop()
    registry.subjects[SUBJECT].pop()
    job.send("4", "none")
    row = r"row \d: " if way == FORMAT else ""
    with pytest.raises(Exception, match=row + r"a value does not fit schema 2: .*field id; it is .*'note': 'nnone'"):
        job.run(rows, way, **given)
    assert [order["id"] for _, order in job.orders(registry)] == [1, 2, 3], "nothing of a batch with a refused row"
    with pytest.raises(OptionError, match="field id is bigint, and the schema has int"):
        write_stream(
            job.rows().selectExpr("named_struct('id', 1L) as value"), bootstrap_servers=cluster.bootstrap,
            sink_id="another", checkpoint_location=str(tmp_path / "another"), topic=job.target,
            options={"schema.subject": SUBJECT, "schema.registry.url": registry.url}, by_format=way == FORMAT,
        )  # fmt: skip


NESTED = {
    "type": "record", "name": "R", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "ratio", "type": ["null", "double"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["A", "B"]}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [
                {"name": "sku", "type": "string"}, {"name": "s", "type": "State"},
            ],
        }}},
        {"name": "more", "type": {"type": "map", "values": "Line"}},
    ],
}  # fmt: skip
LINE = "struct<sku:string,s:string>"
FITTING = (
    f"struct<id:bigint,ratio:double,price:decimal(9,2),day:date,at:timestamp,state:string,lines:array<{LINE}>,"
    f"more:map<string,{LINE}>>"
)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("", "", ""),
        ("id:bigint", "id:int", ""),
        ("ratio:double,", "", ""),
        ("decimal(9,2)", "decimal(5,1)", ""),
        ("ratio:double", "ratio:void", ""),
        ("id:bigint", "id:string", "field id is string, and the schema has long"),
        ("id:bigint,", "", "field id of the schema has no default and is missing: add it"),
        ("struct<id", "struct<other:int,id", "field other is not in the schema: drop it"),
        ("decimal(9,2)", "decimal(9,3)", r"field price is decimal(9,3), and the schema has decimal(9,2)"),
        ("decimal(9,2)", "double", "field price is double, and the schema has decimal(9,2)"),
        ("day:date", "day:timestamp", "field day is timestamp, and the schema has date"),
        ("at:timestamp", "at:bigint", "field at is bigint, and the schema has timestamp-micros"),
        ("state:string", "state:int", "field state is int, and the schema has enum"),
        ("lines:array<struct<sku:string", "lines:array<struct<sku:int", "field lines[].sku is int"),
        ("map<string,struct<sku:string", "map<string,struct<sku:binary", "field more{}.sku is binary"),
        ("map<string,", "map<int,", "field more is map<int"),
        (f"array<{LINE}>", "string", "field lines is string, and the schema has array"),
        (FITTING, "int", "it is int, and the schema has record R"),
    ],
)  # fmt: skip
def test_a_type_that_does_not_fit_is_told_with_its_field(spark: Any, old: str, new: str, why: str) -> None:
    kind = _parse_datatype_string(FITTING.replace(old, new, 1))
    told = misfit(kind, Schema(1, "AVRO", json.dumps(NESTED)))
    assert told.startswith(why) if why else told == ""


def test_a_union_takes_one_of_its_types(spark: Any) -> None:
    union = json.dumps({"type": "record", "name": "U", "fields": [{"name": "a", "type": ["null", "string", "long"]}]})
    for kind, fits in (("string", True), ("int", True), ("date", False)):
        why = misfit(_parse_datatype_string(f"struct<a:{kind}>"), Schema(1, "AVRO", union))
        assert (why == "") == fits
    assert why == "field a is date, and the schema has none of its union's types for that"


def test_a_schema_may_refer_to_others(registry: FakeRegistry) -> None:
    sku = {"type": "record", "name": "Sku", "namespace": "stock", "fields": [{"name": "code", "type": "string"}]}
    line = {"type": "record", "name": "shop.Line", "fields": [{"name": "sku", "type": "stock.Sku"}]}
    order = {
        "type": "record", "name": "Order", "namespace": "shop",
        "fields": [{"name": "line", "type": "Line"}, {"name": "other", "type": ["null", "stock.Sku"], "default": None}],
    }  # fmt: skip
    for name, schema, refers in (("stock.Sku", sku, []), ("shop.Line", line, ["stock.Sku"]),
                                 (SUBJECT, order, ["shop.Line", "stock.Sku"])):  # fmt: skip
        number = registry.add(name, json.dumps(schema))
        registry.references[number] = [{"name": one, "subject": one, "version": 1} for one in refers]
    schema_ = Registry(registry.url).latest(SUBJECT)
    assert [json.loads(text)["name"] for text in schema_.references] == ["Sku", "shop.Line"]
    inner = StructType().add("sku", StructType().add("code", StringType()))
    assert misfit(StructType().add("line", inner), schema_) == ""
    wrong = StructType().add("sku", StructType().add("code", IntegerType()))
    assert misfit(StructType().add("line", wrong), schema_) == "field line.sku.code is int, and the schema has string"
    (written,) = encode_values(schema_, pa.array([{"line": {"sku": {"code": "a"}}}])).to_pylist()
    assert written == b"\0\0\0\0\x03\x02a\0"
    registry.references[1] = [{"name": SUBJECT, "subject": SUBJECT, "version": 1}]
    assert len(Registry(registry.url).latest(SUBJECT).references) == 3, "a circle ends"


def test_options_go_together(registry: FakeRegistry) -> None:
    columns = StructType().add("value", StructType().add("id", IntegerType()))
    subject = {"schema.subject": SUBJECT, "schema.registry.url": registry.url}
    for parse in (WriteOptions.parse, SinkOptions.parse):
        with pytest.raises(OptionError, match=r"schema\.registry\.url goes with schema\.subject"):
            parse({**GIVEN, "schema.registry.url": "http://x"})
        with pytest.raises(OptionError, match=r"schema\.subject needs schema\.registry\.url"):
            parse({**GIVEN, "schema.subject": "x"})
    with pytest.raises(OptionError, match=r"column value is string, and option schema\.subject"):
        WriteOptions.parse({**GIVEN, **subject}, StructType().add("value", StringType()))
    with pytest.raises(OptionError, match="column value is struct"):
        WriteOptions.parse(GIVEN, columns)
    registry.add(SUBJECT, "{}", "JSON")
    with pytest.raises(OptionError, match="schema 1 of subject orders-value is JSON: a sink writes AVRO"):
        WriteOptions.parse({**GIVEN, **subject}, columns).with_schema(columns)
    login = {"schema.registry.basic.auth.user.info": "me:secret"}
    guarded = FakeRegistry("me:secret")
    try:
        guarded.add(SUBJECT, json.dumps(ORDER))
        options = WriteOptions.parse({**GIVEN, **subject, "schema.registry.url": guarded.url, **login}, columns)
        made = options.with_schema(columns)
        assert made.schema == Schema(1, "AVRO", json.dumps(ORDER))
        assert b"secret" not in pickle.dumps(made), "tasks need no login"
    finally:
        guarded.close()


def test_rows_are_counted_over_a_tasks_batches() -> None:
    schema = Schema(7, "AVRO", json.dumps(ORDER))
    encode = encoder(schema)
    good = pa.array([{"id": 1, "note": "a"}, None])
    batch = pa.record_batch([pa.array(["k", "l"]), good], ["key", "value"])
    written = encode(batch)
    assert written.column(0).to_pylist() == ["k", "l"]
    assert written.column(1).to_pylist() == [b"\0\0\0\0\x07\x02\x02a", None]
    bad = pa.record_batch([pa.array(["m"]), pa.array([{"id": None, "note": "x" * 500}])], ["key", "value"])
    with pytest.raises(Malformed, match=r"^row 3: a value does not fit schema 7: .* on field id; it is .{200}\.\.\.$"):
        encode(bad)
    assert encode_values(schema, pa.array([], pa.struct([("id", pa.int32())]))).to_pylist() == []
