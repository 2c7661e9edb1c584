"""Protobuf for a registry: sources and file descriptors, by grpcio-tools' compiler, and what an update may change.

The compiler runs in a process of its own with bounds on its time and memory. A source is also written from its file
descriptor, which is what Python's clients register. Source: Protobuf's rules for updating a message type, with the
names that Confluent's registry gives to what breaks them.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Final

from fleetlog.brokers.schemas.formats import (
    DEPTH_MAX,
    TEXT_BYTES_MAX,
    Change,
    ComparisonBudget,
    FormatError,
    ParsedSchema,
    dumped,
)

PROTOBUF: Final = "PROTOBUF"
COMPILE_S: Final = 20
COMPILERS_MAX: Final = 3
"""Processes at a time, each of which may take 20 s and the memory of its bound; more wait as long as one may take."""
_MAIN: Final = "schema.proto"
_PATH: Final = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_PROTO_MARK: Final = re.compile(
    r"""\"(?:[^"\\\n]|\\[^\n]?)*\"?|'(?:[^'\\\n]|\\[^\n]?)*'?|//[^\n]*|/\*.*?(?:\*/|\Z)|[{}]""", re.DOTALL
)
"""Texts and comments, also those that do not end: an expression that failed there would begin anew at each mark."""
_FILE_BYTES_MAX: Final = 8 << 20
"""Of descriptors and of messages that the compiler writes: a long name can stand in each of many lines."""
_ERROR_BYTES: Final = 4_000
_NAME_MAX: Final = 200
_LABELS: Final = ("", "optional", "required", "repeated")
_REPEATED: Final = 3
_SCALARS: Final = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message",
    "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
_GROUPS_OF_SCALARS: Final = {
    name: group
    for group, names in {
        "general number": ("int32", "int64", "uint32", "uint64", "bool", "enum"), "signed number": ("sint32", "sint64"),
        "string or bytes": ("string", "bytes"), "fixed32": ("fixed32", "sfixed32"),
        "fixed64": ("fixed64", "sfixed64"), "float": ("float",), "double": ("double",),
    }.items()
    for name in names
}  # fmt: skip
"""Scalar types that read each other's bytes."""


_permits: Final[Queue[None]] = Queue()
for _ in range(COMPILERS_MAX):
    _permits.put(None)


class CompilersBusy(Exception):
    """All processes compile other schemas; the same schema may be sent again."""


def parse_protobuf(text: str, references: Mapping[str, str], normalize: bool) -> ParsedSchema:
    source = _source_of(text)
    files = _compiled(source, references)
    main = files[-1]
    main.name = ""
    main.ClearField("source_code_info")
    serialized = main.SerializeToString(deterministic=True)
    identity = base64.b64encode(serialized).decode()
    model = {name: row for file in files for name, row in _messages(file)}
    written = _proto_text(main) if normalize else source
    return ParsedSchema(PROTOBUF, written, identity, (main, model), identity)


def file_descriptors(text: str, references: Mapping[str, str]) -> list[Any]:
    """The file descriptors of a schema and of all that it imports, itself at the end.

    Raises FormatError, CompilersBusy.
    """
    return _compiled(_source_of(text), references)


def _compiled(source: str, references: Mapping[str, str]) -> list[Any]:
    """The file descriptors of a text and of all that it imports, itself at the end. Raises FormatError."""
    from google.protobuf import descriptor_pb2

    depth = 0
    for mark in _PROTO_MARK.finditer(source):
        depth += {"{": 1, "}": -1}.get(mark[0], 0)
        if depth > DEPTH_MAX:
            raise FormatError(f"the schema is nested deeper than {DEPTH_MAX} levels", too_large=True)
    with TemporaryDirectory(prefix="fleetlog-protobuf-") as directory:
        root = Path(directory).resolve()
        (root / _MAIN).write_text(source, "utf-8")
        for name, part in references.items():
            if len(name) > _NAME_MAX or not _PATH.fullmatch(name) or name == _MAIN or {".", ".."} & {*name.split("/")}:
                raise FormatError(f"a reference is named by the file that is imported, not {name[:200]!r}")
            try:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(_source_of(part), "utf-8")
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                raise FormatError(f"the reference {name!r} is a file and a directory of others") from None
        command = [sys.executable, "-I", "-c", _COMPILER, str(root), _MAIN, str(_FILE_BYTES_MAX)]
        with TemporaryFile() as errors:
            try:
                _permits.get(timeout=COMPILE_S)
            except Empty:
                raise CompilersBusy("too many schemas of Protobuf are being compiled; ask again") from None
            try:
                done = subprocess.run(
                    command, stdout=subprocess.DEVNULL, stderr=errors, timeout=COMPILE_S, check=False, cwd=root
                )
            except subprocess.TimeoutExpired:
                raise FormatError(f"the schema is not compiled within {COMPILE_S} s", too_large=True) from None
            finally:
                _permits.put(None)
            errors.seek(0)
            told = errors.read(_ERROR_BYTES)
        if done.returncode:
            lines = told.decode(errors="replace").replace(f"{root}/", "").strip().splitlines()
            problem = "; ".join(lines)[:500] or f"the compiler ended with {done.returncode}"
            raise FormatError(f"not a schema of Protobuf: {problem}")
        return list(descriptor_pb2.FileDescriptorSet.FromString((root / "out").read_bytes()).file)


def _source_of(text: str) -> str:
    """The source of a schema, which may be given as a file descriptor in base64. Raises FormatError."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        compiled = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return text
    if not compiled.message_type and not compiled.enum_type:
        raise FormatError("the file descriptor has no message and no enum")
    try:
        source = _proto_text(compiled)
    except (IndexError, ValueError):
        raise FormatError("the file descriptor has a oneof that is not there, or a map without key or value") from None
    if len(source.encode()) > TEXT_BYTES_MAX:
        raise FormatError(f"as source the file descriptor has more than {TEXT_BYTES_MAX} bytes", too_large=True)
    return source


_COMPILER: Final = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (15, 15))
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
import grpc_tools, os
from grpc_tools import protoc
own = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
where = ["-I" + sys.argv[1], "-I" + own]
sys.exit(protoc.main(["protoc", *where, "--include_imports", "--descriptor_set_out=out", sys.argv[2]]))
"""
"""Runs the compiler with bounds on time, memory and what it writes."""


def _messages(file: Any) -> Iterator[tuple[str, Any]]:
    """Each message and enum of a file by its full name, as fields name them."""
    space = f".{file.package}" if file.package else ""
    waiting = [(space, row) for row in (*file.message_type, *file.enum_type)]
    while waiting:
        inside, row = waiting.pop()
        name = f"{inside}.{row.name}"
        yield name, row
        waiting += [(name, inner) for inner in (*getattr(row, "nested_type", ()), *getattr(row, "enum_type", ()))]


def protobuf_changes(old: tuple[Any, Any], new: tuple[Any, Any]) -> Iterator[Change]:
    if old[0].package != new[0].package:
        yield "PACKAGE_CHANGED", "#/"
    comparison = _ProtobufComparison(old[1], new[1], old[0].package, new[0].package)
    yield from comparison.types(old[0].message_type, new[0].message_type, "#/")


class _ProtobufComparison:
    """One comparison of two files with what they import."""

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any], *packages: str) -> None:
        self._types, self._packages = (old, new), packages
        self._compared: set[tuple[int, int]] = set()
        self._budget = ComparisonBudget()

    def types(self, old: Sequence[Any], new: Sequence[Any], path: str) -> Iterator[Change]:
        """Messages by their names."""
        after = {row.name: row for row in new}
        for row in old:
            if row.options.map_entry:
                continue
            if row.name not in after:
                yield "MESSAGE_REMOVED", f"{path}{row.name}"
            else:
                yield from self._message(row, after[row.name], f"{path}{row.name}/")

    def _message(self, old: Any, new: Any, path: str) -> Iterator[Change]:
        pair = id(old), id(new)
        if pair in self._compared:
            return
        self._compared.add(pair)
        self._budget.spend()
        before, after = ({field.number: field for field in row.field} for row in (old, new))
        homes, places = _oneof_of(old), _oneof_of(new)
        by_name: dict[str, list[int]] = {}
        for number, name in places.items():
            if number in before:
                by_name.setdefault(name, []).append(number)
        for name, members in sorted(by_name.items()):
            moved = [number for number in members if number not in homes]
            if len(moved) > 1:
                yield "MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{path}{name}"
            elif moved and len(members) > 1:
                yield "FIELD_MOVED_TO_EXISTING_ONEOF", f"{path}{name}"
        oneofs = set(places.values())
        for number in sorted(before.keys() | after.keys()):
            place = f"{path}{number}"
            if number not in after:
                if homes.get(number) in oneofs:
                    yield "ONEOF_FIELD_REMOVED", place
                elif _LABELS[before[number].label] == "required":
                    yield "REQUIRED_FIELD_REMOVED", place
            elif number not in before:
                if _LABELS[after[number].label] == "required":
                    yield "REQUIRED_FIELD_ADDED", place
            else:
                yield from self._field(before[number], after[number], place)
        yield from self.types(old.nested_type, new.nested_type, path)

    def _field(self, old: Any, new: Any, path: str) -> Iterator[Change]:
        rows: list[Any] = [self._types[turn].get(field.type_name) for turn, field in enumerate((old, new))]
        maps = [row is not None and _SCALARS[field.type] == "message" and row.options.map_entry
                for row, field in zip(rows, (old, new), strict=True)]  # fmt: skip
        kinds = ["map" if is_map else _SCALARS[field.type] for is_map, field in zip(maps, (old, new), strict=True)]
        shapes = [kind if kind in {"map", "message", "group"} else "scalar" for kind in kinds]
        if shapes[0] != shapes[1]:
            yield "FIELD_KIND_CHANGED", path
        elif shapes[0] == "map":
            for one, other in zip(rows[0].field, rows[1].field, strict=True):
                yield from self._field(one, other, f"{path}/{one.name}")
        elif shapes[0] == "scalar":
            groups = [_GROUPS_OF_SCALARS[kind] for kind in kinds]
            if groups[0] != groups[1]:
                yield "FIELD_SCALAR_KIND_CHANGED", path
            elif groups[0] != "string or bytes" and (old.label == _REPEATED) != (new.label == _REPEATED):
                yield "FIELD_NUMERIC_LABEL_CHANGED", path
        else:
            names = [
                field.type_name.removeprefix(f".{package}." if package else ".")
                for field, package in zip((old, new), self._packages, strict=True)
            ]
            if names[0] != names[1]:
                yield "FIELD_NAMED_TYPE_CHANGED", path
            elif None not in rows:
                yield from self._message(rows[0], rows[1], f"{path}/")


def _oneof_of(message: Any) -> dict[int, str]:
    """The oneof of each field that is in one; proto3's optional fields are in none."""
    return {
        field.number: message.oneof_decl[field.oneof_index].name
        for field in message.field
        if field.HasField("oneof_index") and not field.proto3_optional
    }


def _proto_text(file: Any) -> str:
    """The source of a file descriptor, without options of one's own."""
    lines = [f"syntax = {dumped(file.syntax or 'proto2')};"]
    if file.syntax == "editions":
        lines = [f'edition = "{file.edition + 1023}";']
    lines += [f"package {file.package};"] if file.package else []
    public = set(file.public_dependency)
    for number, name in enumerate(file.dependency):
        lines.append(f'import {"public " if number in public else ""}"{name}";')
    for field, value in file.options.ListFields():
        if field.name in {"java_package", "java_outer_classname", "go_package", "csharp_namespace", "php_namespace"}:
            lines.append(f"option {field.name} = {dumped(value)};")
        elif field.name in {"java_multiple_files", "deprecated"}:
            lines.append(f"option {field.name} = {str(value).lower()};")
    for row in file.message_type:
        lines += _message_text(row, file.syntax == "proto3", "")
    for row in file.enum_type:
        lines += _enum_text(row, "")
    for service in file.service:
        lines.append(f"service {service.name} {{")
        for call in service.method:
            takes = f"{'stream ' if call.client_streaming else ''}{call.input_type}"
            gives = f"{'stream ' if call.server_streaming else ''}{call.output_type}"
            lines.append(f"  rpc {call.name} ({takes}) returns ({gives});")
        lines.append("}")
    return "\n".join(lines) + "\n"


def _message_text(message: Any, implicit: bool, indent: str) -> list[str]:
    inner = f"{indent}  "
    maps = {row.name: row for row in message.nested_type if row.options.map_entry}
    lines = [f"{indent}message {message.name} {{"]
    homes, begun = _oneof_of(message), set()
    members: dict[str | None, list[Any]] = {}
    for field in message.field:
        members.setdefault(homes.get(field.number), []).append(field)
    for field in message.field:
        home = homes.get(field.number)
        if home is None:
            lines.append(inner + _field_text(field, maps, implicit))
        elif home not in begun:
            begun.add(home)
            lines.append(f"{inner}oneof {home} {{")
            lines += [f"{inner}  {_field_text(one, maps, True)}" for one in members[home]]
            lines.append(f"{inner}}}")
    for row in message.nested_type:
        if row.name not in maps:
            lines += _message_text(row, implicit, inner)
    for row in message.enum_type:
        lines += _enum_text(row, inner)
    lines += [f"{inner}extensions {_range_text(row.start, row.end - 1)};" for row in message.extension_range]
    lines += [f"{inner}reserved {_range_text(row.start, row.end - 1)};" for row in message.reserved_range]
    lines += [f"{inner}reserved {dumped(name)};" for name in message.reserved_name]
    return [*lines, f"{indent}}}"]


def _range_text(first: int, last: int) -> str:
    end = "max" if last >= (1 << 29) - 1 else str(last)
    return str(first) if first == last else f"{first} to {end}"


def _field_text(field: Any, maps: Mapping[str, Any], implicit: bool) -> str:
    kind, label = field.type_name or _SCALARS[field.type], _LABELS[field.label]
    entry = maps.get(field.type_name.rpartition(".")[2]) if field.type_name else None
    if entry is not None:
        key, value = ((one.type_name or _SCALARS[one.type]) for one in entry.field)
        kind, label = f"map<{key}, {value}>", ""
    elif label == "optional" and implicit and not field.proto3_optional:
        label = ""
    options = []
    if field.HasField("default_value"):
        text = _SCALARS[field.type] in {"string", "bytes"}
        options.append(f"default = {dumped(field.default_value) if text else field.default_value}")
    if field.options.HasField("packed"):
        options.append(f"packed = {str(field.options.packed).lower()}")
    if field.options.deprecated:
        options.append("deprecated = true")
    plain = "".join(
        part if not turn else part[:1].upper() + part[1:] for turn, part in enumerate(field.name.split("_"))
    )
    if field.json_name and field.json_name != plain:
        options.append(f"json_name = {dumped(field.json_name)}")
    listed = f" [{', '.join(options)}]" if options else ""
    return f"{label} {kind} {field.name} = {field.number}{listed};".lstrip()


def _enum_text(enum: Any, indent: str) -> list[str]:
    lines = [f"{indent}enum {enum.name} {{"]
    lines += [f"{indent}  option allow_alias = true;"] if enum.options.allow_alias else []
    lines += [f"{indent}  {value.name} = {value.number};" for value in enum.value]
    lines += [f"{indent}  reserved {_range_text(row.start, row.end)};" for row in enum.reserved_range]
    lines += [f"{indent}  reserved {dumped(name)};" for name in enum.reserved_name]
    return [*lines, f"{indent}}}"]
