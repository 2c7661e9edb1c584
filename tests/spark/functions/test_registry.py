"""Values behind a registry's schema ids, in real Spark, with a small registry of our own."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DecimalType, LongType, StringType, StructField, StructType

from fleetlog.spark import (
    OptionError,
    RegistryError,
    from_confluent_avro,
    from_confluent_json,
    to_confluent_avro,
    to_confluent_json,
)
from fleetlog.spark.functions.confluent import spark_type
from fleetlog.spark.functions.registry import Registry, UnknownSchema, frame, split_frame
from tests.support.schema_registry import FakeRegistry

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side

OLD = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": ["null", "string"], "default": None}],
}  # fmt: skip
NEW = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
         "default": "\u0000"},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}, "default": "OPEN"},
        {"name": "extra", "type": {"type": "map", "values": "double"}, "default": {}},
    ],
}  # fmt: skip
RULES = {
    "type": "object", "required": ["id"], "additionalProperties": False,
    "properties": {"id": {"type": "integer", "minimum": 1}, "note": {"type": "string"}},
}  # fmt: skip


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    server = FakeRegistry()
    yield server
    server.close()


def avro(schema: dict[str, Any], number: int, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return frame(number, out.getvalue())


def test_avro_of_every_version_is_read_as_the_newest(spark: Any, registry: FakeRegistry) -> None:
    old, new = registry.add("orders-value", json.dumps(OLD)), registry.add("orders-value", json.dumps(NEW))
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    full = {
        "id": 2, "note": "b", "tags": ["x", "y"], "price": Decimal("12.34"), "day": date(2026, 1, 2), "at": moment,
        "state": "PAID", "extra": {"w": 1.5},
    }  # fmt: skip
    values = [avro(OLD, old, {"id": 1, "note": None}), avro(NEW, new, full), None]
    frame_ = spark.createDataFrame([(value,) for value in values], "value binary").coalesce(1)
    rows = frame_.select(from_confluent_avro("value", registry.url, subject="orders-value").alias("o")).collect()
    assert rows[0].o.asDict() == {
        "id": 1, "note": None, "tags": [], "price": Decimal("0.00"), "day": None, "at": None, "state": "OPEN",
        "extra": {},
    }  # fmt: skip
    found = rows[1].o.asDict()
    assert found.pop("at").replace(tzinfo=UTC) == moment
    full.pop("at")
    assert found == full
    assert rows[2].o is None
    assert registry.calls[f"/schemas/ids/{old}"] <= 2, "once for each worker"


def test_avro_goes_out_and_comes_back(spark: Any, registry: FakeRegistry) -> None:
    rows = spark.range(1, 6).selectExpr(
        "named_struct('id', id, 'note', case when id > 1 then concat('n', id) end, 'tags', array('a'), 'price',"
        " cast(id as decimal(9,2)), 'day', date'2026-01-02', 'at', timestamp'2026-01-02 03:04:05', 'state', 'PAID',"
        " 'extra', map('w', 1.5d)) as o"
    )
    encoded = rows.select(to_confluent_avro("o", registry.url, subject="out", schema=json.dumps(NEW)).alias("value"))
    assert registry.subjects["out"] == [1]
    assert all(split_frame(bytes(row.value))[0] == 1 for row in encoded.collect())
    again = encoded.select(
        from_confluent_avro("value", registry.url, schema=json.dumps(NEW), mode="FAILFAST").alias("o")
    )
    assert sorted(again.collect()) == sorted(rows.collect())
    wrong = spark.range(1).selectExpr("named_struct('id', 'one') as o")
    with pytest.raises(Exception, match="a value does not fit schema 1"):
        wrong.select(to_confluent_avro("o", registry.url, subject="out")).collect()


def test_a_schema_may_be_named_by_its_id_or_by_the_record(spark: Any, registry: FakeRegistry) -> None:
    old, new = registry.add("orders-value", json.dumps(OLD)), registry.add("orders-value", json.dumps(NEW))
    rules = registry.add("rules-value", json.dumps(RULES), "JSON")
    rows = spark.createDataFrame([(1, old), (2, old)], "id int, schema int").coalesce(1)
    item = rows.selectExpr("named_struct('id', id, 'note', 'n') as o", "schema")
    by_id = item.select(to_confluent_avro("o", registry.url, schema_id=old).alias("value"), "schema")
    by_record = item.select(to_confluent_avro("o", registry.url, schema_id="schema").alias("value"), "schema")
    assert by_id.collect() == by_record.collect()
    into = from_confluent_avro("value", registry.url, schema_id=new, mode="FAILFAST")
    as_written = from_confluent_avro("value", registry.url, as_written=True, mode="FAILFAST")
    assert [row.o.tags for row in by_id.select(into.alias("o")).collect()] == [[], []]
    order = {"id": 3, "price": Decimal("1.50"), "day": date(2026, 1, 2), "tags": ["t"]}
    full = spark.createDataFrame([(avro(NEW, new, order),)], "value binary")
    texts = [row.o for row in by_record.select("value").union(full).select(as_written.alias("o")).collect()]
    assert [json.loads(text) for text in texts] == [
        {"id": 1, "note": "n"}, {"id": 2, "note": "n"},
        {"id": 3, "note": None, "tags": ["t"], "price": "1.50", "day": "2026-01-02", "at": None, "state": "OPEN",
         "extra": {}},
    ]  # fmt: skip
    other = item.withColumn("schema", f.lit(rules)).select(to_confluent_avro("o", registry.url, schema_id="schema"))
    with pytest.raises(Exception, match="a row names schema 3, a JSON"):
        other.collect()
    for wrong in ({"schema_id": old, "subject": "orders-value"}, {}):
        with pytest.raises(OptionError):
            to_confluent_avro("o", registry.url, **wrong)
    with pytest.raises(OptionError, match="as_written"):
        from_confluent_avro("value", registry.url, as_written=True, schema_id=old)


def test_the_mode_decides_about_malformed_values(spark: Any, registry: FakeRegistry) -> None:
    number = registry.add("orders-value", json.dumps(OLD))
    rules = registry.add("rules-value", json.dumps(RULES), "JSON")
    good = avro(OLD, number, {"id": 1, "note": "a"})
    bad = [b"", b"\x01aaaaaaa", good[:-1], good + b"x", frame(99, b"\x02"), frame(rules, b"{}")]
    rows = spark.createDataFrame([(value,) for value in [good, *bad, None]], "value binary").coalesce(1)

    def ids(mode: str) -> list[Any]:
        column = from_confluent_avro("value", registry.url, subject="orders-value", mode=mode)
        return [row.o and row.o.id for row in rows.select(column.alias("o")).collect()]

    assert ids("PERMISSIVE") == [1, *[None] * len(bad), None]
    assert ids("DROPMALFORMED") == [1, None], "null is not malformed"
    with pytest.raises(Exception, match="not in the registry's format"):
        ids("FAILFAST")
    with pytest.raises(OptionError, match="mode"):
        ids("LOOSE")


def test_json_is_checked_by_its_schema(spark: Any, registry: FakeRegistry) -> None:
    number = registry.add("orders-value", json.dumps(RULES), "JSON")
    values = [frame(number, text.encode()) for text in ('{"id": 1, "note": "a"}', '{"id": 0}', '{"id": 2,', "[]")]
    rows = spark.createDataFrame([(value,) for value in values], "value binary").coalesce(1)

    def ids(mode: str) -> list[Any]:
        column = from_confluent_json("value", registry.url, "id int, note string", mode=mode)
        return [row.o and row.o.id for row in rows.select(column.alias("o")).collect()]

    assert ids("PERMISSIVE") == [1, None, None, None]
    assert ids("DROPMALFORMED") == [1]
    with pytest.raises(Exception, match=r"\$\.id: 0 is less than the minimum"):
        ids("FAILFAST")
    out = spark.range(1, 3).selectExpr("named_struct('id', id, 'note', 'x') as o")
    encoded = out.select(to_confluent_json("o", registry.url, subject="orders-value").alias("value"))
    back = encoded.select(from_confluent_json("value", registry.url, "id int, note string", mode="FAILFAST").alias("o"))
    assert sorted(row.o.id for row in back.collect()) == [1, 2]
    with pytest.raises(Exception, match="not a value of schema"):
        spark.range(1).selectExpr("named_struct('id', 'x') as o").select(
            to_confluent_json("o", registry.url, subject="orders-value")
        ).collect()


def test_a_registry_that_is_away_stops_every_mode(spark: Any, registry: FakeRegistry) -> None:
    number = registry.add("orders-value", json.dumps(OLD))
    rows = spark.createDataFrame([(avro(OLD, number, {"id": 1}),)], "value binary")
    column = from_confluent_avro("value", registry.url, schema=json.dumps(OLD), mode="DROPMALFORMED")
    registry.broken = 100
    with pytest.raises(Exception, match="503"):
        rows.select(column).collect()
    registry.broken = 2
    assert rows.select(column.alias("o")).collect()[0].o.id == 1
    with pytest.raises(UnknownSchema):
        from_confluent_avro("value", registry.url, subject="nothing")
    with pytest.raises(OptionError, match="exactly one"):
        from_confluent_avro("value", registry.url)


def test_a_registry_may_ask_for_credentials() -> None:
    server = FakeRegistry("me:secret")
    try:
        server.add("s", json.dumps(OLD))
        with pytest.raises(RegistryError, match="401"):
            Registry(server.url).latest("s")
        assert Registry(server.url, {"basic.auth.user.info": "me:secret"}).latest("s").id == 1
    finally:
        server.close()
    with pytest.raises(ValueError, match="http"):
        Registry("file:///etc/passwd")
    with pytest.raises(OptionError, match=r"setting basic\.auth of a registry is unknown"):
        Registry(server.url, {"basic.auth": "me:secret"})
    with pytest.raises(OptionError, match=r"ssl\.ca\.location of a registry: /nowhere"):
        Registry(server.url, {"ssl.ca.location": "/nowhere"})


def test_types_follow_sparks_own_avro_source() -> None:
    nested = {
        "type": "record", "name": "R",
        "fields": [
            {"name": "a", "type": {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 5}},
            {"name": "b", "type": ["null", {"type": "array", "items": ["null", "long"]}]},
            {"name": "c", "type": {"type": "record", "name": "In", "fields": [{"name": "d", "type": "string"}]}},
            {"name": "e", "type": "In"},
        ],
    }  # fmt: skip
    inner = StructType([StructField("d", StringType())])
    assert spark_type(nested) == StructType(
        [
            StructField("a", DecimalType(5, 0)), StructField("b", ArrayType(LongType())), StructField("c", inner),
            StructField("e", inner),
        ]
    )  # fmt: skip
    loop = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
    for wrong, message in ((loop, "contains itself"), (["int", "string"], "union of 2"), ("gone", "unknown")):
        with pytest.raises(OptionError, match=message):
            spark_type(wrong)


def test_a_login_goes_to_no_other_server(registry: FakeRegistry) -> None:
    other = FakeRegistry()
    try:
        registry.leads_to = other.url
        with pytest.raises(RegistryError, match="name the registry's address itself"):
            Registry(registry.url, {"basic.auth.user.info": "reader:secret"}).schema(1)
        assert not other.calls
    finally:
        other.close()
