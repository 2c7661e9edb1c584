"""The process beside a broker that checks payloads by JSON Schema and Protobuf; brokers start it and ask it.

``python -m fleetlog.brokers.schemas.payloads SECONDS``: standard input is a socket, on which
:mod:`brokers.server.payload_checks` says what is asked. It ends when that is closed, and if a question takes longer
than SECONDS. Schemas are bounded before they are compiled; those that were used last are kept.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from fleetlog._native.batch import BatchHeader, Record, decode_records
from fleetlog._native.errors import CorruptBatch
from fleetlog._native.schemas import misfits
from fleetlog.brokers.schemas.formats import (
    FormatError,
    finite_number,
    json_document,
    no_constant,
    unique_names,
    values_of,
)
from fleetlog.brokers.schemas.protobuf import CompilersBusy, file_descriptors

MEMORY_BYTES: Final = 1 << 30
FILE_BYTES: Final = 8 << 20
SCHEMAS_MAX: Final = 200
COMPILED_AT_ONCE_S: Final = 2.0
"""When compiling has taken so long, the batch is to be sent again."""
PATTERNS_MAX: Final = 1_000
PATTERN_BYTES: Final = 1 << 20
"""Of a compiled regular expression."""
BACKTRACKS: Final = 10_000
"""Steps of an expression that needs them; others take linear time."""
NICENESS: Final = 5
MESSAGES_DEPTH: Final = 100
_REASON_MAX: Final = 200
_PATH_MAX: Final = 16

Wrong = tuple[str, str]
"""The path of a field, and what is wrong with it."""
Check = Callable[[bytes, bytes], Wrong | None]
"""Of a payload, and what stood behind the id in a header."""


class NoCheck(ValueError):
    """Why payloads of a schema cannot be checked."""


# ---- JSON Schema ----------------------------------------------------------------------------------------------------


def json_check(text: str, named: Mapping[str, str]) -> Check:
    """The check of a JSON Schema; ``named`` are the texts that it refers to. Raises NoCheck."""
    try:
        import jsonschema_rs
    except ImportError:
        raise NoCheck("this broker lacks jsonschema-rs: install it with the extra schemas") from None
    try:
        documents = {name: json_document(part) for name, part in named.items()}
        document = json_document(text)
    except FormatError as error:
        raise NoCheck(str(error)) from None
    parts = (value for one in (document, *documents.values()) for value in values_of(one))
    patterns = sum(
        1 for value in parts if isinstance(value, dict) and ("pattern" in value or "patternProperties" in value)
    )
    if patterns > PATTERNS_MAX:
        raise NoCheck(f"the schema has more than {PATTERNS_MAX} patterns")

    def named_by(address: str) -> Any:
        for name, part in documents.items():
            if address == name or address.endswith(f"/{name.removeprefix('./')}"):
                return part
        raise ValueError("it is none of the schema's references")

    make = jsonschema_rs.validator_for
    if not (isinstance(document, dict) and "$schema" in document):
        make = jsonschema_rs.Draft7Validator
    bounds = jsonschema_rs.FancyRegexOptions(
        backtrack_limit=BACKTRACKS, size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_BYTES
    )
    try:
        validator = make(document, retriever=named_by, mask="it", pattern_options=bounds)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise NoCheck(_short(getattr(error, "message", None) or str(error))) from None

    def check(payload: bytes, _place: bytes) -> Wrong | None:
        try:
            value = json.loads(
                payload.decode(), object_pairs_hook=unique_names, parse_constant=no_constant, parse_float=finite_number
            )
            if validator.is_valid(value):
                return None
            error = next(iter(validator.iter_errors(value)))
        except RecursionError:
            return "", "is nested too deeply"
        except FormatError as problem:
            return "", f"cannot be read by all readers: {problem}"
        except UnicodeEncodeError:
            return "", "has half of a surrogate pair"
        except UnicodeDecodeError:
            return "", "is no UTF-8"
        except ValueError as problem:
            return "", f"is no JSON: {_short(str(problem))}"
        return _path(map(str, error.instance_path)), _short(error.message).removeprefix("it ")

    return check


def _short(text: str) -> str:
    return text.splitlines()[0][:_REASON_MAX] if text else "is not as it says"


def _path(names: Iterator[str]) -> str:
    listed = list(names)
    return ".".join(name[:100] for name in (listed if len(listed) <= _PATH_MAX else ["...", *listed[-_PATH_MAX:]]))


# ---- Protobuf -------------------------------------------------------------------------------------------------------


def protobuf_check(text: str, named: Mapping[str, str]) -> Check:
    """The check of a Protobuf file's messages; ``named`` are the sources that it imports. Raises NoCheck."""
    try:
        from google.protobuf import descriptor_pool, message_factory
        from google.protobuf.message import DecodeError

        files = file_descriptors(text, named)
    except ImportError:
        raise NoCheck("this broker lacks protobuf: install it with the extra schemas") from None
    except (FormatError, CompilersBusy) as error:
        raise NoCheck(_short(str(error))) from None
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        raise NoCheck(_short(str(error))) from None
    main = files[-1]
    kinds: dict[bytes, Any] = {}

    def kind_of(place: bytes) -> Any:
        made = kinds.get(place)
        if made is None:
            name = _message_at(main, place)
            made = None if name is None else message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
            if made is not None:
                kinds[place] = made
        return made

    def check(payload: bytes, place: bytes) -> Wrong | None:
        rest = place or payload
        end = _end_of_place(rest)
        kind = None if end is None else kind_of(rest[:end])
        if kind is None:
            return "", "names no message of its schema"
        body = payload if place else payload[end:]
        message = kind()
        try:
            message.MergeFromString(body)
        except DecodeError:
            return _protobuf_fault(body, kind.DESCRIPTOR) or ("", f"is no message {kind.DESCRIPTOR.full_name[:100]}")
        if not message.IsInitialized():
            path = str(message.FindInitializationErrors()[0])[:_REASON_MAX]
            return _protobuf_fault(body, kind.DESCRIPTOR) or (path, "is required, and is not there")
        size = message.ByteSize()
        message.DiscardUnknownFields()
        return None if message.ByteSize() == size else _protobuf_fault(body, kind.DESCRIPTOR)

    return check


def _number(data: bytes, at: int) -> tuple[int, int] | None:
    """A variable-length number, and where it ends."""
    value = 0
    for turn, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * turn
        if byte < 0x80:
            return value & (1 << 64) - 1, at + turn + 1
    return None


def _zigzags(data: bytes) -> tuple[list[int], int] | None:
    """The indexes at the start of a payload, and where they end: how many, then each; a 0 alone stands for [0]."""
    first = _number(data, 0)
    if first is None:
        return None
    count, at = first[0] >> 1 ^ -(first[0] & 1), first[1]
    if count == 0:
        return [0], at
    if not 0 < count <= MESSAGES_DEPTH:
        return None
    indexes = []
    for _ in range(count):
        row = _number(data, at)
        if row is None:
            return None
        indexes.append(row[0] >> 1 ^ -(row[0] & 1))
        at = row[1]
    return indexes, at


def _end_of_place(data: bytes) -> int | None:
    read = _zigzags(data)
    return None if read is None else read[1]


def _message_at(file: Any, place: bytes) -> str | None:
    """The full name of the message at that place of a file, if there is one."""
    read = _zigzags(place)
    assert read is not None, "its end was found"
    rows, names = file.message_type, [file.package] if file.package else []
    for index in read[0]:
        if not 0 <= index < len(rows):
            return None
        names.append(rows[index].name)
        rows = rows[index].nested_type
    return ".".join(names)


_VARINT, _EIGHT, _BYTES, _BEGIN, _END, _FOUR = range(6)
_WIRE: Final = {
    1: _EIGHT,
    2: _FOUR,
    6: _EIGHT,
    7: _FOUR,
    9: _BYTES,
    10: _BEGIN,
    11: _BYTES,
    12: _BYTES,
    15: _FOUR,
    16: _EIGHT,
}
"""How fields of a type are written; the others are numbers of variable length."""
_STRING, _GROUP, _MESSAGE, _BYTES_FIELD, _ENUM = 9, 10, 11, 12, 14


def _protobuf_fault(data: bytes, descriptor: Any) -> Wrong | None:
    """The first field of a message that its type does not have, or not so; None if that is not what is wrong."""
    fault, _ = _walk(data, 0, descriptor, [], 0)
    return fault


def _walk(data: bytes, at: int, descriptor: Any, names: list[str], group: int) -> tuple[Wrong | None, int]:
    """As :func:`_protobuf_fault`, and where the message ends; ``group``: it is one, which that number ends."""

    def wrong(reason: str, *more: str) -> tuple[Wrong, int]:
        return (_path(iter([*names, *more])), reason), at

    if len(names) > MESSAGES_DEPTH:
        return wrong(f"is nested deeper than {MESSAGES_DEPTH} levels")
    while at < len(data):
        tag = _number(data, at)
        if tag is None or not tag[0] >> 3 or tag[0] >> 32:
            return wrong("has bytes that are no field")
        number, wire = tag[0] >> 3, tag[0] & 7
        if wire == _END:
            return (None, tag[1]) if number == group else wrong("has bytes that are no field")
        field = None if descriptor is None else descriptor.fields_by_number.get(number)
        name = f"number {number}" if field is None else field.name
        if field is None and descriptor is not None and not _may_be_extended(descriptor, number):
            return wrong("is none of the schema's fields", name)
        if field is not None and wire != _WIRE.get(field.type, _VARINT) and not (_packed(field) and wire == _BYTES):
            return wrong("is not of its type", name)
        fault, at = _value(data, tag[1], (number, wire), field, [*names, name])
        if fault is not None:
            return fault, at
    return wrong("is cut off") if group else (None, at)


def _value(data: bytes, at: int, tag: tuple[int, int], field: Any, names: list[str]) -> tuple[Wrong | None, int]:
    """What is wrong with a field's value, and where it ends."""
    number, wire = tag
    cut_off = (_path(iter(names)), "is cut off"), at
    if wire == _BEGIN:
        return _walk(data, at, None if field is None else field.message_type, names, number)
    if wire in (_EIGHT, _FOUR):
        end = at + (8 if wire == _EIGHT else 4)
        return cut_off if end > len(data) else (None, end)
    row = _number(data, at)
    if row is None:
        return cut_off
    if wire == _VARINT:
        if field is not None and field.type == _ENUM and field.enum_type.is_closed:
            value = row[0] - (1 << 64) if row[0] >> 63 else row[0]
            if value not in field.enum_type.values_by_number:
                return (_path(iter(names)), "is none of the enum's values"), at
        return None, row[1]
    if wire != _BYTES:
        return (_path(iter(names)), "has bytes that are no field"), at
    end = row[1] + row[0]
    if end > len(data):
        return cut_off
    inner = data[row[1] : end]
    if field is not None and field.type == _MESSAGE:
        fault, _ = _walk(inner, 0, field.message_type, names, 0)
        return fault, end
    if field is not None and field.type == _STRING:
        try:
            inner.decode()
        except UnicodeDecodeError:
            return (_path(iter(names)), "is no UTF-8"), at
    return None, end


def _packed(field: Any) -> bool:
    """Whether its values may stand behind one length."""
    return bool(field.is_repeated and field.type not in (_STRING, _GROUP, _MESSAGE, _BYTES_FIELD))


def _may_be_extended(descriptor: Any, number: int) -> bool:
    return any(first <= number < end for first, end in descriptor.extension_ranges)


# ---- the process ----------------------------------------------------------------------------------------------------


class Compiled(NamedTuple):
    """A schema's check, or why there is none."""

    check: Check | None
    why: str = ""


_MAKE: Final = {"JSON": json_check, "PROTOBUF": protobuf_check}


class Checker:
    """Answers questions; ``schemas`` are those that were used last."""

    def __init__(self) -> None:
        self.schemas: OrderedDict[str, Compiled] = OrderedDict()

    def answer(self, asked: Any, payload: bytes) -> dict[str, Any]:
        """The answer: ``faults``, or what it ``lacks``, or that it wants ``more`` time for compiling."""
        begun_s = time.monotonic()
        for key, (kind, text, named) in asked["texts"].items():
            if time.monotonic() - begun_s > COMPILED_AT_ONCE_S:
                return {"more": True}
            try:
                kept = Compiled(_MAKE[kind](text, named))
            except NoCheck as why:
                kept = Compiled(None, str(why))
            self.schemas[key] = kept
            while len(self.schemas) > SCHEMAS_MAX:
                self.schemas.popitem(last=False)
        header = BatchHeader(*asked["batch"])
        rows: list[tuple[int, bool, bytes, str]] = []
        for side in asked["sides"]:
            known = {bytes.fromhex(number): key for number, key in side["schemas"].items()}
            carried = misfits(payload, header, side["header"].encode(), side["keys"], b"", b"", header.record_count)
            rows += [(index, side["keys"], number, side["header"]) for index, number in carried if number in known]
            lacks = {known[number] for _, of_keys, number, _ in rows if of_keys == side["keys"]} - self.schemas.keys()
            if lacks:
                return {"lacks": sorted(lacks)[:SCHEMAS_MAX]}
        keys = {
            (side["keys"], bytes.fromhex(number)): key
            for side in asked["sides"]
            for number, key in side["schemas"].items()
        }
        for key in {keys[of_keys, number] for _, of_keys, number, _ in rows}:
            self.schemas.move_to_end(key)
        records = decode_records(payload, header)
        faults: list[list[Any]] = []
        for index, of_keys, number, name in sorted(rows):
            if len(faults) >= asked["most"]:
                break
            wrong = self._wrong(records[index], self.schemas[keys[of_keys, number]], (of_keys, number, name))
            if wrong is not None:
                faults.append([index, of_keys, number.hex(), *wrong])
        return {"faults": faults}

    @staticmethod
    def _wrong(record: Record, kept: Compiled, carried: tuple[bool, bytes, str]) -> Wrong | None:
        of_keys, number, name = carried
        if kept.check is None:
            return "", f"cannot be checked by its schema: {kept.why}"
        data = bytes((record.key if of_keys else record.value) or b"")
        alone = [value for header, value in record.headers if header == name]
        if alone:
            return kept.check(data, bytes(alone[-1] or b"")[1 + len(number) :])
        return kept.check(data[1 + len(number) :], b"")


def _received(stream: Any) -> tuple[Any, bytes] | None:
    """A question; None at the end."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    first, second = struct.unpack(">II", head)
    return json.loads(stream.read(first)), stream.read(second)


def answer_questions(seconds: float) -> None:
    """Answer what comes, until there is no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    checker = Checker()
    with socket.socket(fileno=0) as connection, connection.makefile("rwb") as stream:
        while (asked := _received(stream)) is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds)  # its signal ends the process, wherever that is
            try:
                answer = checker.answer(*asked)
            except CorruptBatch as wrong:
                raise SystemExit(f"a broker asks of what is no batch: {wrong}") from None
            signal.setitimer(signal.ITIMER_REAL, 0)
            text = json.dumps(answer).encode()
            stream.write(len(text).to_bytes(4, "big") + text)
            stream.flush()


if __name__ == "__main__":
    answer_questions(float(sys.argv[1]))
