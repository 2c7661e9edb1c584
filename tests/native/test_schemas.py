"""The kernel that checks schemas: ids in records, and payloads by programs that are compiled from schemas of Avro."""

from __future__ import annotations

import decimal
import io
import json
import random
import struct
import uuid
from types import ModuleType
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog._native import schemas_cy, schemas_py
from fleetlog._native.batch import HEADER_SIZE, BatchHeader, Record, encode_batch, parse_header
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.schema_programs import Program, compile_avro
from tests.support.draw import examples

NOW = 1_700_000_000_000
TWINS: list[Any] = [schemas_py, schemas_cy]
HEADER = b"__value_schema_id"
SEVEN = b"\0\0\0\7"


def batch_of(records: list[Record]) -> tuple[bytes, BatchHeader]:
    data = encode_batch(records, base_offset=0)
    return data[HEADER_SIZE:], parse_header(data)


IDS = [b"\0\0\0\1", b"\0\0\0\2", b"\0\1\0\0", b"\xff\xff\xff\xff"]
GUIDS = [bytes([number]) * 16 for number in (0, 1, 200)]
frames = (
    st.none()
    | st.binary(max_size=18)
    | st.tuples(st.just(b"\0"), st.sampled_from([*IDS, b"\0\0\0\3"]), st.sampled_from([b"", b"payload"])).map(b"".join)
    | st.tuples(st.just(b"\1"), st.sampled_from([*GUIDS, b"x" * 16]), st.sampled_from([b"", b"payload"])).map(b"".join)
)
framed_rows = st.tuples(
    frames, frames, st.lists(st.tuples(st.sampled_from(["__value_schema_id", "other", "é"]), frames), max_size=2)
)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(framed_rows, min_size=1, max_size=8), st.sets(st.sampled_from(IDS)), st.sets(st.sampled_from(GUIDS)),
    st.booleans(), st.sampled_from([0, 1, 2, 99]),
)  # fmt: skip
def test_both_twins_find_the_same_misfits(
    rows: list[Any], ids: set[bytes], guids: set[bytes], of_keys: bool, most: int
) -> None:
    payload, header = batch_of([Record(at, NOW, key, value, tuple(more)) for at, (key, value, more) in enumerate(rows)])
    tables = b"".join(sorted(ids)), b"".join(sorted(guids))
    strange = schemas_py.misfits(payload, header, HEADER, of_keys, *tables, most)
    assert schemas_cy.misfits(memoryview(payload), header, HEADER, of_keys, *tables, most) == strange
    assert len(strange) <= most
    for index, number in strange:
        assert rows[index][0 if of_keys else 1] is not None
        assert number not in {*ids, *guids}


def test_ids_of_a_large_batch_are_looked_for_without_the_lock(schemas: ModuleType) -> None:
    values = [b"\0" + IDS[at % 2] + b"x" * 200_000 for at in range(4)]
    payload, header = batch_of([Record(at, NOW, None, value, ()) for at, value in enumerate(values)])
    assert schemas.misfits(payload, header, HEADER, False, b"".join(IDS), b"", 9) == []
    assert schemas.misfits(payload, header, HEADER, False, IDS[1], b"", 9) == [(0, IDS[0]), (2, IDS[0])]


# ---- payloads


def unfit(twin: Any, program: Program, payloads: list[bytes], most: int = 10_000) -> list[Any]:
    """Of values that carry the id 7."""
    data, header = batch_of([Record(at, NOW, None, b"\0" + SEVEN + one, ()) for at, one in enumerate(payloads)])
    return list(twin.unfit(memoryview(data), header, HEADER, False, SEVEN, b"", (program.code,), most))


def verdict(twin: Any, schema: Any, payload: bytes) -> str:
    """What is wrong with a payload, with its field; empty if it is of the schema."""
    program = compile_avro(json.dumps(schema))
    for row in unfit(twin, program, [payload]):
        assert (row.record, row.number) == (0, SEVEN)
        return f"{program.path(row.trail)} {schemas_py.REASONS[row.code]}".strip()
    return ""


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def logical(kind: Any, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def zigzag(number: int) -> bytes:
    raw, out = (number << 1) ^ (number >> 63), bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


CUT, NUMBER, LENGTH = "is cut off", "is not a number of that size", "has a length that does not fit"
LEFT, BRANCH, DIGITS = "has bytes left over", "is none of the union's types", "has more digits than its precision"
CENTS = logical("bytes", "decimal", precision=4, scale=2)
LIST = record(value="int", next=["null", "R"])
NULLS = {"type": "array", "items": "null"}
CASES: list[tuple[Any, bytes, str]] = [
    ("null", b"", ""),
    ("null", b"\0", LEFT),
    ("boolean", b"\1", ""),
    ("boolean", b"\2", "is neither true nor false"),
    ("boolean", b"", CUT),
    ("int", zigzag(-(2**31)), ""),
    ("int", zigzag(2**31), NUMBER),
    ("int", b"\x80\0", ""),
    ("int", b"\x80" * 4 + b"\0", ""),
    ("int", b"\x80" * 5 + b"\0", NUMBER),
    ("int", b"\x80" * 4, CUT),
    ("long", zigzag(-(2**63)), ""),
    ("long", zigzag(2**63 - 1), ""),
    ("long", b"\xff" * 9 + b"\3", NUMBER),
    ("long", b"\xff" * 10, NUMBER),
    ("long", b"\xff" * 9, CUT),
    ("float", b"1234", ""),
    ("float", b"123", CUT),
    ("double", b"12345678", ""),
    ("double", b"123456789", LEFT),
    ("bytes", b"\4\xff\xfe", ""),
    ("bytes", b"\6\xff\xfe", LENGTH),
    ("bytes", b"\1", LENGTH),
    ("bytes", zigzag(2**62), LENGTH),
    ("string", b"\4\xc3\xa9", ""),
    ("string", b"\4\xff\xfe", "is no UTF-8"),
    ("string", b"\6\xed\xa0\x80", "is no UTF-8"),
    ({"type": "fixed", "name": "F", "size": 3}, b"abc", ""),
    ({"type": "fixed", "name": "F", "size": 3}, b"ab", CUT),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\2", ""),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\4", "is none of the symbols"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\1", "is none of the symbols"),
    (["null", "string"], b"\0", ""),
    (["null", "string"], b"\2\2a", ""),
    (["null", "string"], b"\4", BRANCH),
    (["null", "string"], b"\1", BRANCH),
    ([], b"\0", BRANCH),
    ({"type": "array", "items": "int"}, b"\4\2\2\0", ""),
    ({"type": "array", "items": "int"}, b"\2\2\2\2\0", ""),
    ({"type": "array", "items": "int"}, b"\3\4\2\2\0", ""),
    ({"type": "array", "items": "int"}, b"\3\2\2\2\0", "has a block whose size is not that of its items"),
    ({"type": "array", "items": "int"}, b"\3\6\2\2\0", "has a block whose size is not that of its items"),
    ({"type": "array", "items": "int"}, b"\3\10\2\2\0", LENGTH),
    ({"type": "array", "items": "int"}, b"\3\1\2\2\0", LENGTH),
    ({"type": "array", "items": "int"}, zigzag(2**62), LENGTH),
    ({"type": "array", "items": "int"}, zigzag(-(2**63)) + b"\0", LENGTH),
    ({"type": "array", "items": "int"}, b"\2\2", CUT),
    (NULLS, zigzag(10_000) + b"\0", ""),
    (NULLS, zigzag(10_001) + b"\0", "has more than 10000 items without bytes"),
    (NULLS, zigzag(5_001) * 2 + b"\0", "has more than 10000 items without bytes"),
    (NULLS, zigzag(-(2**63)) + b"\0\0", "has more than 10000 items without bytes"),
    ({"type": "map", "values": "int"}, b"\2\2a\2\0", ""),
    ({"type": "map", "values": "null"}, b"\2\2a\0", ""),
    ({"type": "map", "values": "int"}, b"\2\2\xff\2\0", "is no UTF-8"),
    ({"type": "map", "values": "int"}, zigzag(2**40), LENGTH),
    (record(), b"", ""),
    (record(a="null", b="string"), b"\2x", ""),
    (record(a="null", b="string"), b"\2", f"b {LENGTH}"),
    (record(a={**record(c="int"), "name": "I"}, b="I"), b"\2", f"b.c {CUT}"),
    (record(a={"type": "array", "items": {**record(c="boolean"), "name": "I"}}), b"\4\0\7\0",
     "a.c is neither true nor false"),
    (LIST, b"\0\2" * 199 + b"\0\0", ""),
    (LIST, b"\0\2" * 200 + b"\0\0", ".".join(["...", *["next"] * 16]) + " is nested deeper than 200 levels"),
    (record(a="R"), b"", ".".join(["...", *["a"] * 16]) + " is nested deeper than 200 levels"),
    (CENTS, b"\4" + (9999).to_bytes(2, "big"), ""),
    (CENTS, b"\4" + (-9999).to_bytes(2, "big", signed=True), ""),
    (CENTS, b"\4" + (10_000).to_bytes(2, "big"), DIGITS),
    (CENTS, b"\4" + (-10_000).to_bytes(2, "big", signed=True), DIGITS),
    (CENTS, b"\x14" + (99).to_bytes(10, "big"), ""),
    (CENTS, b"\0", DIGITS),
    (logical("bytes", "decimal", precision=4, scale=5), b"\x14" + b"x" * 10, ""),
    (logical("bytes", "decimal"), b"\x14" + b"x" * 10, ""),
    ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 3}, b"\3\xe7", ""),
    ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 3}, b"\3\xe8", DIGITS),
    ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5}, b"\x7f\xff", ""),
    (logical("string", "uuid"), b"\x48" + str(uuid.UUID(int=7)).encode(), ""),
    (logical("string", "uuid"), b"\x48" + b"x" * 36, "is no UUID"),
    (logical("string", "uuid"), b"\x40" + uuid.UUID(int=7).hex.encode(), "is no UUID"),
    (logical("int", "date"), zigzag(-(2**31)), ""),
    (logical("int", "time-millis"), zigzag(86_399_999), ""),
    (logical("int", "time-millis"), zigzag(86_400_000), "is no time of a day"),
    (logical("int", "time-millis"), zigzag(-1), "is no time of a day"),
    (logical("long", "time-micros"), zigzag(86_399_999_999), ""),
    (logical("long", "time-micros"), zigzag(86_400_000_000), "is no time of a day"),
    (logical("long", "timestamp-millis"), zigzag(-(2**63)), ""),
    (logical("long", "time-millis"), zigzag(-1), ""),
    (logical("string", "of-tomorrow"), b"\2x", ""),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "payload", "reason"), CASES)
def test_a_payload_is_of_its_schema_or_it_is_said_why_not(
    schemas: ModuleType, schema: Any, payload: bytes, reason: str
) -> None:
    assert verdict(schemas, schema, payload) == reason


def test_records_are_told_by_their_index_and_id(schemas: ModuleType) -> None:
    whole, half = compile_avro('"int"').code, compile_avro('"string"').code
    guid = bytes(range(16))
    values = [b"\0\0\0\0\1\2", b"\0\0\0\0\2\2", None, b"plain", b"\0\0\0\0\3\2", b"\1" + guid + b"\2x"]
    data, header = batch_of([Record(at, NOW, None, value, ()) for at, value in enumerate(values)])
    tables = b"\0\0\0\1\0\0\0\2", guid, (whole, half, half)
    rows = schemas.unfit(data, header, HEADER, False, *tables, 9)
    assert rows == [(1, b"\0\0\0\2", 3, 0, ()), (3, b"", 0, 0, ()), (4, b"\0\0\0\3", 0, 0, ())]
    assert schemas.unfit(data, header, HEADER, False, *tables, 1) == rows[:1]
    assert schemas.unfit(data, header, HEADER, True, *tables, 9) == []
    with pytest.raises(ValueError, match=r"a program for each id|is shorter than"):
        schemas.unfit(data, header, HEADER, False, *tables[:2], (whole,), 9)


def test_with_an_id_in_a_header_the_whole_value_is_the_payload(schemas: ModuleType) -> None:
    program = compile_avro('"string"')
    rows = [
        Record(at, NOW, None, value, ((HEADER.decode(), b"\0" + SEVEN + more),))
        for at, (value, more) in enumerate([(b"\2x", b""), (b"\0" + SEVEN + b"\2x", b""), (b"\2x", b"\2\0")])
    ]
    data, header = batch_of(rows)
    wrong = schemas.unfit(data, header, HEADER, False, SEVEN, b"", (program.code,), 9)
    assert [row.record for row in wrong] == [1]


def test_a_message_of_a_protobuf_file_may_be_named_behind_the_id_in_a_header(schemas: ModuleType) -> None:
    """As stock clients' header_schema_id_serializer writes it."""
    data, header = batch_of([Record(0, NOW, None, b"", ((HEADER.decode(), b"\1" + GUIDS[1] + b"\2\4"),))])
    assert schemas.misfits(data, header, HEADER, False, b"", GUIDS[1], 9) == []


# ---- any schema, any payload; fastavro is the judge

PLAIN = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


class Drawn:
    """A schema, drawn at random, with its types' names."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.names = rng, dict[str, Any]()
        self.schema = self.type(0)

    def type(self, depth: int, union: bool = True) -> Any:
        rng = self.rng
        kinds = [*PLAIN, "fixed", "enum"]
        if depth < 4:
            kinds += ["record"] * 6 + ["array", "map"] * 3 + ["union"] * 4 * union
        kind = rng.choice([*kinds, *self.names])
        if kind in PLAIN or kind in self.names:
            return kind
        if kind == "union":
            branches = {}
            for _ in range(rng.randrange(1, 4)):
                before = dict(self.names)
                branch = self.type(depth + 1, union=False)
                word = branch if isinstance(branch, str) else branch.get("name", branch["type"])
                if branches.setdefault(word, branch) is not branch:
                    self.names = before
            return list(branches.values())
        if kind in ("array", "map"):
            return {"type": kind, "items" if kind == "array" else "values": self.type(depth + 1)}
        name = f"N{len(self.names)}"
        made: dict[str, Any] = {"type": kind, "name": name}
        self.names[name] = made
        if kind == "fixed":
            made["size"] = rng.randrange(4)
        elif kind == "enum":
            made["symbols"] = ["A", "B", "C"][: rng.randrange(1, 4)]
        else:
            made["fields"] = []
            fields = [{"name": f"f{n}", "type": self.type(depth + 1)} for n in range(rng.randrange(5))]
            made["fields"] = fields
        return made

    def payload(self, schema: Any, depth: int = 0) -> bytes:
        """A value's bytes. Raises RecursionError for one without an end."""
        rng = self.rng
        if depth > 12:
            raise RecursionError
        if isinstance(schema, list):
            number = rng.randrange(len(schema))
            return zigzag(number) + self.payload(schema[number], depth + 1)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in self.names:
            return self.payload(self.names[kind], depth + 1)
        data = rng.choice([b"", b"a", "né€𝄞".encode(), b"long" * 30])
        simple = {
            "null": b"", "boolean": bytes([rng.randrange(2)]), "int": zigzag(rng.choice([0, -1, 2**31 - 1, -(2**31)])),
            "long": zigzag(rng.choice([0, -1, 300, 2**63 - 1, -(2**63)])), "float": struct.pack("<f", rng.random()),
            "double": struct.pack("<d", rng.random()), "string": zigzag(len(data)) + data,
            "bytes": zigzag(len(data) + 1) + data + b"\xff",
        }  # fmt: skip
        if kind in simple:
            return simple[kind]
        if kind == "fixed":
            return rng.randbytes(schema["size"])
        if kind == "enum":
            return zigzag(rng.randrange(len(schema["symbols"])))
        if kind == "record":
            return b"".join(self.payload(field["type"], depth + 1) for field in schema["fields"])
        return b"".join(self.block(schema, kind, depth) for _ in range(rng.randrange(3))) + b"\0"

    def block(self, schema: Any, kind: str, depth: int) -> bytes:
        count = self.rng.randrange(1, 3)
        if kind == "array":
            items = [self.payload(schema["items"], depth + 1) for _ in range(count)]
        else:
            items = [b"\2" + bytes([97 + n]) + self.payload(schema["values"], depth + 1) for n in range(count)]
        data = b"".join(items)
        return zigzag(-count) + zigzag(len(data)) + data if self.rng.random() < 0.3 else zigzag(count) + data


def read(schema: Any, payload: bytes) -> Any:
    """What fastavro makes of all bytes of it. Raises what it raises."""
    stream = io.BytesIO(payload)
    value = fastavro.schemaless_reader(stream, schema, None)
    if stream.tell() != len(payload):
        raise ValueError("bytes are left over")
    return value


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32))
def test_what_fastavro_writes_fits_and_what_fits_fastavro_reads(seed: int) -> None:
    """For any schema: a value's bytes fit; changed or cut they fit only if they are another value's."""
    rng = random.Random(seed)
    drawn = Drawn(rng)
    try:
        whole = drawn.payload(drawn.schema)
    except RecursionError:  # a record that is in itself has no values
        return
    program = compile_avro(json.dumps(drawn.schema))
    payloads = [whole]
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 3)):
            if data:
                data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.4:
            del data[rng.randrange(len(data) + 1) :]
        payloads.append(bytes(data) + rng.choice((b"", b"", b"\0")))
    wrong = unfit(schemas_cy, program, payloads)
    assert wrong == unfit(schemas_py, program, payloads)
    refused = {row.record for row in wrong}
    assert 0 not in refused
    for index, payload in enumerate(payloads):
        if index not in refused:
            read(drawn.schema, payload)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 60), st.integers(-(10**60), 10**60), st.integers(0, 3))
def test_decimals_have_so_many_digits(precision: int, number: int, more: int) -> None:
    payload = number.to_bytes(number.bit_length() // 8 + 1 + more, "big", signed=True)
    schema = logical("bytes", "decimal", precision=precision)
    fits = len(decimal.Decimal(number).as_tuple().digits) <= precision
    for twin in TWINS:
        assert verdict(twin, schema, zigzag(len(payload)) + payload) == ("" if fits else DIGITS)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=20) | st.text(max_size=9).map(str.encode), st.binary(max_size=9))
def test_texts_are_those_that_python_decodes(before: bytes, after: bytes) -> None:
    data = before + after
    try:
        data.decode()
        reason = ""
    except UnicodeDecodeError:
        reason = "is no UTF-8"
    for twin in TWINS:
        assert verdict(twin, "string", zigzag(len(data)) + data) == reason


def outcome(twin: Any, program: Program, data: bytes, header: BatchHeader, of_keys: bool) -> Any:
    try:
        rows = twin.unfit(data, header, HEADER, of_keys, SEVEN, b"", (program.code,), 10)
        return rows, twin.misfits(data, header, HEADER, of_keys, b"", b"", 10)
    except CorruptBatch as wrong:
        return str(wrong), wrong.position


@pytest.mark.parametrize("seed", range(10))
def test_hostile_batches(seed: int) -> None:
    """Bytes changed anywhere, cut anywhere, counts that lie: both twins find the same, and nothing else happens."""
    rng = random.Random(seed)
    program = compile_avro(json.dumps(record(a="string", b=["null", {"type": "array", "items": "long"}])))
    rows = [Record(at, NOW, b"k", b"\0" + SEVEN + b"\2x\2\4\2\2\0" * (at % 3), ()) for at in range(8)]
    rows = [row._replace(headers=((HEADER.decode(), b"\0" + SEVEN),)) if row.offset % 4 == 1 else row for row in rows]
    whole, header = batch_of(rows)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        lying = header._replace(
            record_count=rng.choice((8, 8, 8, 7, 9, 0, -1, 2**31 - 1)),
            last_offset_delta=rng.choice((7, 7, 3, 2**31 - 1)),
        )
        for of_keys in (False, True):
            results = [outcome(twin, program, bytes(data), lying, of_keys) for twin in TWINS]
            assert results[0] == results[1], (bytes(data), lying)
        refused += isinstance(results[0][0], str)
    assert refused > 50


def test_a_large_batch_is_checked_without_the_lock(schemas: ModuleType) -> None:
    program = compile_avro('"string"')
    rows = unfit(schemas, program, [zigzag(200_000) + b"x" * (200_000 - at % 2) for at in range(4)])
    assert [(row.record, row.code) for row in rows] == [(1, 3), (3, 3)]
