"""Avro behind a schema's id: values in and out, and whether a column's type fits a schema that is to write it.

Pure but for the libraries: which schema it is, others say. Needs ``fleetlog[registry]`` (fastavro), on executors, too.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructType

from fleetlog import how_to_install
from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.functions.registry import Schema, frame

SHOWN: Final = 200
"""Characters of a row that an error shows."""
_WHOLE, _LARGE = ("tinyint", "smallint", "int"), ("tinyint", "smallint", "int", "bigint")
_TIME = ("timestamp", "timestamp_ntz")
_NAMED = ("record", "error", "enum", "fixed")
_WRITTEN_FROM: Final[Mapping[str, tuple[str, ...]]] = {
    "null": ("void",),
    "boolean": ("boolean",),
    "int": _WHOLE,
    "long": _LARGE,
    "float": (*_WHOLE, "float"),
    "double": (*_WHOLE, "float", "double"),
    "bytes": ("binary",),
    "string": ("string",),
    "enum": ("string",),
    "fixed": ("binary",),
    "date": ("date",),
    "uuid": ("string",),
    **{
        f"{local}timestamp-{unit}": _TIME
        for local in ("", "local-")
        for unit in ("millis", "micros")
    },
}  # fmt: skip
"""Spark's types by the type of Avro, or the logical one, that takes each of their values."""


class Malformed(ValueError):
    """A value can't be decoded or encoded; the message names the schema and the reason."""


def encode_avro(schema: Schema, value: Any) -> bytes:
    """A value behind its schema's id. Raises Malformed."""
    fastavro = _library()
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, parsed_avro(schema), value)
    except Exception as problem:
        shown = repr(value)
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
        raise Malformed(
            f"a value does not fit schema {schema.id}: {type(problem).__name__}: {problem}; it is {shown}"
        ) from None
    return frame(schema.id, out.getvalue())


def encode_values(schema: Schema, values: pa.Array, first: int = 1) -> pa.Array:
    """A column, written; null stays null. ``first``: the number of its first row. Raises Malformed, with the row's."""
    written = []
    for number, value in enumerate(values.to_pylist(maps_as_pydicts="lossy"), first):
        try:
            written.append(None if value is None else encode_avro(schema, value))
        except Malformed as problem:
            raise Malformed(f"row {number}: {problem}") from None
    return pa.array(written, pa.binary())


def encoder(schema: Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Writes the column ``value`` of a task's batches, whose rows it counts. It raises Malformed, with the row."""
    rows = 0

    def encode(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal rows
        place = batch.schema.get_field_index("value")
        written = encode_values(schema, batch.column(place), rows + 1)
        rows += batch.num_rows
        columns = [written if number == place else column for number, column in enumerate(batch.columns)]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    return encode


def _library() -> Any:
    try:
        import fastavro
    except ImportError:
        raise OptionError(
            f"Avro needs fastavro on the driver and on the executors: {how_to_install('registry')}; an archive has it "
            "where it is packed with that"
        ) from None
    return fastavro


_parsed: dict[tuple[str, ...], tuple[Any, dict[str, Any]]] = {}


def parsed_avro(schema: Schema) -> Any:
    """A schema as the library has it, with those that it refers to, kept."""
    return named_avro(schema)[0]


def named_avro(schema: Schema) -> tuple[Any, dict[str, Any]]:
    """The same, and its named types and those that it refers to, by full names, which it has everywhere."""
    key = *schema.references, schema.text
    if key not in _parsed:
        parsed, named = None, dict[str, Any]()
        for text in key:
            parsed = _library().parse_schema(json.loads(text), named)
            _settle_defaults(parsed)
        _parsed[key] = parsed, named
    return _parsed[key]


def _settle_defaults(schema: Any) -> None:
    """Make values of the defaults: the library hands them out as JSON has them, bytes as text, dates as numbers."""
    fastavro = _library()
    for one in schema if isinstance(schema, list) else [schema]:
        if not isinstance(one, dict):
            continue
        for field in one.get("fields", ()):
            kind, default = field["type"], field.get("default")
            _settle_defaults(kind)
            branch = kind[0] if isinstance(kind, list) else kind
            plain = {**branch} if isinstance(branch, dict) else {"type": branch}
            logical = plain.pop("logicalType", None)
            raw = isinstance(default, str) and plain["type"] in ("bytes", "fixed")
            if default is not None and (raw or logical is not None):
                out = io.BytesIO()
                fastavro.schemaless_writer(out, plain, default.encode("latin-1") if raw else default)
                out.seek(0)
                field["default"] = fastavro.schemaless_reader(out, branch, None)
        for inner in ("items", "values"):
            _settle_defaults(one.get(inner))


# ---- whether a type fits ---------------------------------------------------------------------------------------------


def misfit(kind: DataType, schema: Schema) -> str:
    """Why values of Spark's type cannot be written by the schema, with the field's name; empty if they can.

    Whether a field is null only its rows say.
    """
    named: dict[str, Any] = {}
    for text in schema.references:
        _collect(json.loads(text), named, "")
    return next(_misfits(kind, json.loads(schema.text), named, "", ""), "")


def _collect(schema: Any, named: dict[str, Any], space: str) -> None:
    """Add the named types of a schema, by their full names."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named, space)
    if not isinstance(schema, dict):
        return
    if schema.get("type") in _NAMED:
        space = _named(schema, named, space)
    for inner in ("type", "items", "values"):
        _collect(schema.get(inner), named, space)
    for field in schema.get("fields", ()):
        _collect(field["type"], named, space)


def _named(schema: Any, named: dict[str, Any], space: str) -> str:
    """Add a named type; the namespace inside of it."""
    name = schema["name"]
    space = name.rpartition(".")[0] if "." in name else schema.get("namespace", space)
    full = name if "." in name or not space else f"{space}.{name}"
    named[full] = named[full.rpartition(".")[2]] = {**schema, "namespace": space}
    return str(space)


def _misfits(kind: DataType, schema: Any, named: dict[str, Any], space: str, path: str) -> Iterator[str]:
    """The differences, first one first; ``named``: the types seen so far by full name."""
    where = f"field {path}" if path else "it"
    if isinstance(schema, str):
        known = named.get(f"{space}.{schema}") or named.get(schema)
        if known is not None:
            yield from _misfits(kind, known, named, space, path)
            return
        schema = {"type": schema}
    if isinstance(schema, list):
        yield from _union_misfits(kind, schema, named, space, path)
        return
    of, logical = schema.get("type"), schema.get("logicalType")
    if not isinstance(of, str):  # a type in a type, {"type": {"type": "string"}}
        yield from _misfits(kind, of, named, space, path)
        return
    if of in _NAMED:
        space = _named(schema, named, space)
    if logical == "decimal":
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        whole = precision - scale
        if not isinstance(kind, DecimalType) or kind.scale > scale or kind.precision - kind.scale > whole:
            yield f"{where} is {kind.simpleString()}, and the schema has decimal({precision},{scale})"
    elif of in ("record", "error"):
        yield from _record_misfits(kind, schema, named, space, path)
    elif of in ("array", "map"):
        fits = isinstance(kind, ArrayType) if of == "array" else isinstance(kind, MapType)
        if not fits or (isinstance(kind, MapType) and not isinstance(kind.keyType, StringType)):
            yield f"{where} is {kind.simpleString()}, and the schema has {of}"
        elif isinstance(kind, ArrayType):
            yield from _misfits(kind.elementType, schema["items"], named, space, f"{path}[]")
        elif isinstance(kind, MapType):
            yield from _misfits(kind.valueType, schema["values"], named, space, f"{path}{{}}")
    else:
        written = _WRITTEN_FROM.get(str(logical)) or _WRITTEN_FROM.get(of, ())
        if kind.simpleString() not in written and not (kind.simpleString() == "void" and not path):
            yield f"{where} is {kind.simpleString()}, and the schema has {logical or of}"


def _union_misfits(kind: DataType, branches: list[Any], named: dict[str, Any], space: str, path: str) -> Iterator[str]:
    reasons = [list(_misfits(kind, branch, named, space, path)) for branch in branches if branch != "null"]
    if kind.simpleString() == "void" and "null" in branches:
        return
    if all(reasons):
        if len(reasons) == 1:
            yield from reasons[0]
        else:
            where = f"field {path}" if path else "it"
            yield f"{where} is {kind.simpleString()}, and the schema has none of its union's types for that"


def _record_misfits(kind: DataType, schema: Any, named: dict[str, Any], space: str, path: str) -> Iterator[str]:
    if not isinstance(kind, StructType):
        where = f"field {path}" if path else "it"
        yield f"{where} is {kind.simpleString()}, and the schema has record {schema['name']}"
        return
    fields = {field["name"]: field for field in schema["fields"]}
    dot = f"{path}." if path else ""
    for given in kind.fields:
        if given.name not in fields:
            yield f"field {dot}{given.name} is not in the schema: drop it, or register a schema that has it"
    types = {one.name: one.dataType for one in kind.fields}
    for name, field in fields.items():
        if name in types:
            yield from _misfits(types[name], field["type"], named, space, f"{dot}{name}")
        elif "default" not in field:
            yield f"field {dot}{name} of the schema has no default and is missing: add it"
