"""The column functions inside Spark."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.partitioner.default import murmur2

from fleetlog._native.batch import Record, encode_batch
from fleetlog.spark import decode_record_batch, headers_get, headers_to_map, kafka_murmur2, kafka_partition

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side


def test_keys_go_where_java_puts_them(spark: Any) -> None:
    keys = [bytes(range(size)) for size in range(41)] + [None, b"\xff" * 7]
    df = spark.createDataFrame([(key,) for key in keys], "key binary").repartition(2)
    rows = df.select("key", kafka_murmur2("key").alias("h"), kafka_partition("key", 7).alias("p")).collect()
    assert len(rows) == len(keys)
    for key, hashed, partition in rows:
        if key is None:
            assert (hashed, partition) == (None, None)
            continue
        wanted = murmur2(bytes(key))  # unsigned here, signed in Java
        assert hashed == (wanted ^ 0x80000000) - 0x80000000
        assert partition == (wanted & 0x7FFFFFFF) % 7
    # What Java's client computes for these keys.
    known = spark.createDataFrame([("21",), ("foobar",), ("a-little-bit-long-string",)], "key string")
    assert [row.h for row in known.select(kafka_murmur2("key").alias("h")).collect()] == [
        -973932308,
        -790332482,
        -985981536,
    ]
    with pytest.raises(ValueError, match="at least one partition"):
        kafka_partition("key", 0)


def test_the_last_header_of_a_name_counts_in_the_map(spark: Any) -> None:
    schema = "headers array<struct<key:string,value:binary>>"
    rows = [([("a", b"1"), ("b", None), ("a", b"2")],), ([],), (None,)]
    df = spark.createDataFrame(rows, schema)
    found = df.select(
        headers_to_map("headers").alias("map"),
        headers_get("headers", "a").alias("a"),
        headers_get("headers", "b").alias("b"),
        headers_get("headers", "c").alias("c"),
    ).collect()
    assert [row.map for row in found] == [{"a": bytearray(b"2"), "b": None}, {}, None]
    assert [row.a for row in found] == [bytearray(b"2"), None, None]
    assert {row.b for row in found} == {row.c for row in found} == {None}


def test_record_batches_and_their_verdict(spark: Any) -> None:
    good = encode_batch([Record(3, 1000, b"k", b"v", (("h", None),)), Record(4, 2000, None, None)], base_offset=3)
    bad = bytearray(good)
    bad[-1] ^= 1
    df = spark.createDataFrame([(1, good), (2, bytes(bad)), (3, b"no batch"), (4, None)], "n int, raw binary")
    rows = df.select("n", decode_record_batch("raw").alias("b")).orderBy("n").collect()
    first, second, third, fourth = (row.b for row in rows)
    assert (first.crcValid, first.error, first.baseOffset, first.lastOffset) == (True, None, 3, 4)
    assert [(r.offset, r.key, r.value) for r in first.records] == [(3, b"k", b"v"), (4, None, None)]
    assert [(h.key, h.value) for h in first.records[0].headers] == [("h", None)]
    assert (second.crcValid, second.records, second.baseOffset) == (False, None, 3)
    assert "checksum" in second.error
    assert (third.crcValid, third.size, third.records) == (False, None, None)
    assert fourth is None
    assert df.where(~decode_record_batch("raw")["crcValid"]).count() == 2
