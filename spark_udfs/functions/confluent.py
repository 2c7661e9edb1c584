"""Column functions for values that carry a schema registry's id: Avro and JSON, in both directions.

Modes are those of Spark's own parsers: PERMISSIVE makes null of a value that can't be decoded, FAILFAST stops the
query, DROPMALFORMED drops the row (with a generator, so it works in ``select``, once in each). A registry that does not
answer stops the query in every mode. Needs ``fleetlog[registry]`` (fastavro, jsonschema).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fleetlog.spark.client.failures import OptionError, RegistryError
from fleetlog.spark.functions.avro import Malformed, encode_avro, named_avro, parsed_avro
from fleetlog.spark.functions.columns import ColumnOrName, as_column
from fleetlog.spark.functions.registry import AVRO, Schema, UnknownSchema, frame, shared_registry, split_frame
from fleetlog.spark.versions import ARROW_FUNCTIONS, arrow_function, arrow_type, require

PERMISSIVE, FAILFAST, DROPMALFORMED = "PERMISSIVE", "FAILFAST", "DROPMALFORMED"
JSON = "JSON"

Decode = Callable[[Schema, memoryview], Any]
"""Raises ValueError and the like for a value that is not of its schema."""

_PRIMITIVES: dict[str, DataType] = {
    "null": StringType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_LOGICAL: dict[str, DataType] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "uuid": StringType(),
}


# ---- the functions ---------------------------------------------------------------------------------------------------


def from_confluent_avro(
    value: ColumnOrName,
    registry: str,
    *,
    subject: str | None = None,
    schema: str | None = None,
    schema_id: int | None = None,
    as_written: bool = False,
    mode: str = PERMISSIVE,
    settings: Mapping[str, str] | None = None,
) -> Column:
    """Avro values as Spark's: read by the schema each carries, into ``schema`` (JSON text), that of ``schema_id``, or
    ``subject``'s newest. ``as_written``: each as its own schema has it, as JSON text (``parse_json`` makes a VARIANT).

    Raises OptionError, RegistryError when the query is planned. Columns by the rules of ``spark_type``.
    """
    _check_mode(mode)
    if as_written:
        if (subject, schema, schema_id) != (None, None, None):
            raise OptionError("as_written takes each record's own schema: leave subject, schema and schema_id out")
        return _decoded(value, partial(_avro_text, registry, dict(settings or {})), StringType(), mode)
    target = _target(registry, subject, schema, AVRO, settings, schema_id)
    parsed, named = named_avro(target)
    kind = _spark_type(parsed, dict(named), ())
    decode = partial(_avro_decoded, registry, dict(settings or {}), target)
    return _decoded(value, decode, kind, mode)


def to_confluent_avro(
    value: ColumnOrName,
    registry: str,
    *,
    subject: str | None = None,
    schema: str | None = None,
    schema_id: int | ColumnOrName | None = None,
    settings: Mapping[str, str] | None = None,
) -> Column:
    """Values as Avro behind their schema's id: ``subject``'s newest schema, or ``schema``, which is registered there;
    that of ``schema_id``, or what the record says, where that is a column of ids.

    A value that does not fit the schema stops the query. Null stays null.
    """
    if schema_id is None:
        if subject is None:
            raise OptionError("a subject or a schema_id is needed: it determines the schema")
        return avro_column(value, _writing(registry, subject, schema, AVRO, settings))
    if (subject, schema) != (None, None):
        raise OptionError("schema_id names the schema: leave subject and schema out")
    if isinstance(schema_id, int):
        return avro_column(value, _target(registry, None, None, AVRO, settings, schema_id))
    return _encoded_each(value, schema_id, registry, dict(settings or {}))


def from_confluent_json(
    value: ColumnOrName,
    registry: str,
    kind: StructType | ArrayType | MapType | str,
    *,
    mode: str = PERMISSIVE,
    settings: Mapping[str, str] | None = None,
) -> Column:
    """JSON values as Spark's ``kind`` (a type, or DDL), after a check by the JSON schema that each carries."""
    _check_mode(mode)
    how = {"mode": FAILFAST if mode == FAILFAST else PERMISSIVE}
    check = partial(_json_checked, registry, dict(settings or {}))
    return _decoded(value, check, StringType(), mode, lambda text: f.from_json(text, kind, how))


def to_confluent_json(
    value: ColumnOrName,
    registry: str,
    *,
    subject: str,
    schema: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Column:
    """Values as JSON behind their schema's id, checked by it. As `to_confluent_avro`."""
    target = _writing(registry, subject, schema, JSON, settings)
    return _encoded(f.to_json(as_column(value)), partial(_json_encoded, target))


def spark_type(schema: Any) -> DataType:
    """Spark's type of an Avro schema, as Spark's own Avro source has it; OptionError for what has none.

    A union is its only branch beside null; enums and uuids are strings, fixed is binary, decimal, date and timestamps
    (in UTC) are Spark's. A record that contains itself has none.
    """
    return _spark_type(schema, {}, ())


# ---- Spark's side ----------------------------------------------------------------------------------------------------


def _check_mode(mode: str) -> None:
    if mode not in (PERMISSIVE, FAILFAST, DROPMALFORMED):
        raise OptionError(f"mode {mode!r} is not one of {PERMISSIVE}, {FAILFAST}, {DROPMALFORMED}")


def _target(
    registry: str,
    subject: str | None,
    text: str | None,
    kind: str,
    settings: Mapping[str, str] | None,
    number: int | None = None,
) -> Schema:
    """The schema that columns follow."""
    if sum(given is not None for given in (subject, text, number)) != 1:
        raise OptionError("exactly one of subject, schema and schema_id must be given: it determines the columns")
    if text is not None:
        return Schema(-1, kind, text)
    client = shared_registry(registry, settings or {})
    target = client.latest(str(subject)) if number is None else client.schema(number)
    if target.kind != kind:
        what = f"subject {subject}" if number is None else f"schema {number}"
        raise OptionError(f"{what} is {target.kind}, not {kind}")
    return target


def _writing(registry: str, subject: str, schema: str | None, kind: str, settings: Mapping[str, str] | None) -> Schema:
    """The schema that values are written by: the subject's newest, or this one, registered."""
    if schema is None:
        return _target(registry, subject, None, kind, settings)
    return shared_registry(registry, settings or {}).register(subject, kind, schema)


def _decoded(
    value: ColumnOrName,
    decode: Callable[[bytes], Any],
    kind: DataType,
    mode: str,
    finish: Callable[[Column], Column] = lambda column: column,
) -> Column:
    """A column of each value decoded by ``decode``, then by Spark's expression ``finish``."""
    _require_arrays()
    result = StructType([StructField("ok", BooleanType()), StructField("value", kind)])
    arrow = arrow_type(result)

    @arrow_function(result)
    def run(values: pa.Array) -> pa.Array:
        rows = []
        for data in values.to_pylist():
            try:
                rows.append({"ok": True, "value": None if data is None else decode(data)})
            except Malformed:
                if mode == FAILFAST:
                    raise
                rows.append({"ok": False, "value": None})
        return pa.array(rows, arrow)

    outcome: Column = run(as_column(value).cast("binary"))
    done = finish(outcome["value"])
    return (
        done if mode != DROPMALFORMED else f.explode(f.slice(f.array(done), 1, f.when(outcome["ok"], 1).otherwise(0)))
    )


def avro_column(value: ColumnOrName, schema: Schema) -> Column:
    """Values as Avro behind the id of this schema."""
    return _encoded(value, partial(encode_avro, schema))


def _encoded(value: ColumnOrName, encode: Callable[[Any], bytes]) -> Column:
    _require_arrays()

    @arrow_function(BinaryType())
    def run(values: pa.Array) -> pa.Array:
        items = values.to_pylist(maps_as_pydicts="lossy")
        return pa.array([None if item is None else encode(item) for item in items], pa.binary())

    encoded: Column = run(as_column(value))
    return encoded


def _encoded_each(value: ColumnOrName, number: ColumnOrName, registry: str, settings: Mapping[str, str]) -> Column:
    """Each value by the schema whose id stands beside it. A null id is no schema's."""
    _require_arrays()

    @arrow_function(BinaryType())
    def run(values: pa.Array, numbers: pa.Array) -> pa.Array:
        client, written = shared_registry(registry, settings), list[bytes | None]()
        for item, one in zip(values.to_pylist(maps_as_pydicts="lossy"), numbers.to_pylist(), strict=True):
            if item is None:
                written.append(None)
                continue
            schema = None if one is None else client.schema(one)
            if schema is None or schema.kind != AVRO:
                raise Malformed(f"a row names {'no schema' if schema is None else f'schema {one}, a {schema.kind}'}")
            written.append(encode_avro(schema, item))
        return pa.array(written, pa.binary())

    encoded: Column = run(as_column(value), as_column(number))
    return encoded


def _require_arrays() -> None:
    require("a function of a schema registry", ARROW_FUNCTIONS, "decode and encode in a function of your own")


def _framed(data: bytes, registry: str, settings: Mapping[str, str], kind: str) -> tuple[Schema, memoryview]:
    """A value's own schema, and its body. Raises Malformed, RegistryError."""
    try:
        number, body = split_frame(data)
        schema = shared_registry(registry, settings).schema(number)
    except UnknownSchema as problem:
        raise Malformed(str(problem)) from None
    except ValueError as problem:
        raise Malformed(str(problem)) from None
    if schema.kind != kind:
        raise Malformed(f"schema {number} is {schema.kind}, not {kind}")
    return schema, body


# ---- Avro ------------------------------------------------------------------------------------------------------------


def _avro_decoded(registry: str, settings: Mapping[str, str], target: Schema | None, data: bytes) -> Any:
    """A value by its own schema, into ``target`` if there is one."""
    import fastavro

    schema, body = _framed(data, registry, settings, AVRO)
    source = io.BytesIO(body)
    try:
        into = None if target is None else parsed_avro(target)
        value = fastavro.schemaless_reader(source, parsed_avro(schema), into)
        left = len(body) - source.tell()
        if left:
            raise ValueError(f"{left} bytes are left over")
    except RegistryError:
        raise
    except Exception as problem:  # the library raises whatever broken bytes lead it to
        raise Malformed(f"not a value of schema {schema.id}: {type(problem).__name__}: {problem}") from None
    return value


def _avro_text(registry: str, settings: Mapping[str, str], data: bytes) -> str:
    """The same as JSON: bytes as Avro's JSON has them, a character for each; decimals, dates and times as text."""

    def of_json(value: Any) -> str:
        return value.decode("latin-1") if isinstance(value, bytes) else str(value)

    return json.dumps(_avro_decoded(registry, settings, None, data), ensure_ascii=False, default=of_json)


def _spark_type(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> DataType:
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema not in named:
            raise OptionError(f"Avro type {schema} is unknown")
        if schema in within:
            raise OptionError(f"Avro record {schema} contains itself, which Spark has no type for")
        return _spark_type(named[schema], named, within)
    if isinstance(schema, list):
        branches = [one for one in schema if one != "null"]
        if len(branches) != 1:
            raise OptionError(f"a union of {len(branches)} types beside null has no type in Spark")
        return _spark_type(branches[0], named, within)
    if not isinstance(schema, dict):
        raise OptionError(f"{schema!r} is no Avro type")
    kind = schema.get("type")
    if kind in ("record", "enum", "fixed"):
        space = schema.get("namespace")
        name = schema["name"] if not space or "." in schema["name"] else f"{space}.{schema['name']}"
        named[name] = named[schema["name"]] = schema
        within = (*within, name, schema["name"]) if kind == "record" else within
    logical = schema.get("logicalType")
    if logical == "decimal":
        return DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        fields = [(one["name"], _spark_type(one["type"], named, within)) for one in schema["fields"]]
        return StructType([StructField(name, inner) for name, inner in fields])
    if kind == "array":
        return ArrayType(_spark_type(schema["items"], named, within))
    if kind == "map":
        return MapType(StringType(), _spark_type(schema["values"], named, within))
    if kind in ("enum", "fixed"):
        return StringType() if kind == "enum" else BinaryType()
    return _spark_type(kind, named, within)


# ---- JSON ------------------------------------------------------------------------------------------------------------

_validators: dict[str, Any] = {}


def _validator(text: str) -> Any:
    """A validator of a JSON schema, kept."""
    validator = _validators.get(text)
    if validator is None:
        import jsonschema

        schema = json.loads(text)
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft7Validator)
        validator = _validators[text] = kind(schema)
    return validator


def _json_fits(schema: Schema, text: str) -> None:
    """Raises Malformed unless the text is JSON of the schema."""
    import jsonschema

    try:
        _validator(schema.text).validate(json.loads(text))
    except jsonschema.ValidationError as problem:
        raise Malformed(f"not a value of schema {schema.id}: {problem.json_path}: {problem.message}") from None
    except ValueError as problem:
        raise Malformed(f"not JSON: {problem}") from None


def _json_checked(registry: str, settings: Mapping[str, str], data: bytes) -> str:
    schema, body = _framed(data, registry, settings, JSON)
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError as problem:
        raise Malformed(f"not JSON: {problem}") from None
    _json_fits(schema, text)
    return text


def _json_encoded(schema: Schema, text: str) -> bytes:
    _json_fits(schema, text)
    return frame(schema.id, text.encode())
