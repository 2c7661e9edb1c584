"""The specification of the checks of schemas: which ids records carry, and whether payloads are of these schemas.

A program is what a schema asks of a payload's bytes, made by ``schema_programs``: words of 32 bits, in which each
type is an operation and its arguments, and types refer to each other by their places. The first word is the place of
the root. No type takes more steps than the payload has bytes, so neither does a payload: types whose values have no
bytes are NOTHING, and a collection may have EMPTY_ITEMS of them.

Source: Avro 1.12, binary encoding and logical types.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from fleetlog._native.batch_py import BatchHeader, Record, decode_records, validate_records

__all__ = [
    "ARRAY", "BOOLEAN", "BYTES", "DECIMAL", "DEPTH_MAX", "EMPTY_ITEMS", "ENUM", "FIXED", "INT", "LONG", "MAP",
    "NOTHING", "REASONS", "RECORD", "STRING", "TIME_MICROS", "TIME_MILLIS", "TRAIL_MAX", "UNION", "UNKNOWN", "UUID",
    "Unfit", "misfits", "unfit",
]  # fmt: skip

Buffer = bytes | bytearray | memoryview

NOTHING, BOOLEAN, INT, LONG, FIXED, BYTES, STRING, UUID = range(8)
"""NOTHING: no byte; FIXED: its size."""
ENUM, TIME_MILLIS, TIME_MICROS, DECIMAL, ARRAY, MAP, UNION, RECORD = range(8, 16)
"""ENUM: how many symbols; DECIMAL: size (-1: a length says it), sizes of the largest and the smallest number, and both,
big-endian, in two's complement, as words; ARRAY, MAP: the type of an item; UNION, RECORD: how many types, and they.
"""
DEPTH_MAX: Final = 200
"""Records, arrays and maps within each other in a payload."""
EMPTY_ITEMS: Final = 10_000
"""Items without bytes in a payload."""
TRAIL_MAX: Final = 16
_DAY_MS: Final = 86_400_000

UNKNOWN: Final = 0
"""No program has the id of the record, or it has no id; other codes have :data:`REASONS`."""
(
    CUT_OFF, NUMBER, LENGTH, TEXT, TRUTH, SYMBOL, BRANCH, LEFT_OVER, BLOCK, DEPTH, EMPTY, DIGITS, TIME, UUID_TEXT,
) = range(1, 15)  # fmt: skip
REASONS: Final = (
    "has no schema that is known",
    "is cut off",
    "is not a number of that size",
    "has a length that does not fit",
    "is no UTF-8",
    "is neither true nor false",
    "is none of the symbols",
    "is none of the union's types",
    "has bytes left over",
    "has a block whose size is not that of its items",
    f"is nested deeper than {DEPTH_MAX} levels",
    f"has more than {EMPTY_ITEMS} items without bytes",
    "has more digits than its precision",
    "is no time of a day",
    "is no UUID",
)
"""What is wrong, by code: "the value's field a.b ..."."""


class Unfit(NamedTuple):
    """A record that is not of its schema.

    ``record``: which one of the batch; ``number``: the id that it carries; ``position``: the byte in the payload where
    that is seen; ``trail``: the records around it, the innermost first, each a place in the program and the number of
    the field there, TRAIL_MAX at most.
    """

    record: int
    number: bytes
    code: int
    position: int
    trail: tuple[tuple[int, int], ...]


def _schema_id(record: Record, wanted: str, of_keys: bool) -> bytes | None:
    """The id that a record carries, of 4 bytes or 16; empty for none, None where none is needed.

    In a header it may be followed by more, which names a message of a Protobuf file.
    """
    data = record.key if of_keys else record.value
    if data is None:
        return None
    alone = [value for name, value in record.headers if name == wanted]
    if alone:
        data = alone[-1] or b""
    for magic, size in ((0, 5), (1, 17)):
        if len(data) >= size and data[0] == magic:
            return bytes(data[1:size])
    return b""


def misfits(
    payload: Buffer, header: BatchHeader, name: bytes, of_keys: bool, ids: bytes, guids: bytes, most: int
) -> list[tuple[int, bytes]]:
    """The records of a batch whose value (or key) carries no id of a schema that is in ``ids`` or ``guids``.

    They are (index, id), with an empty id where there is none, at most ``most`` of them. An id is what stands behind
    a magic byte: 4 bytes behind 0, 16 behind 1, in the last header ``name`` or, without it, at the start of the value.
    A null needs none. The tables have rows of 4 and 16 bytes, sorted. Raises CorruptBatch, but not for what lies behind
    more than ``most`` of them. ``payload`` is decompressed.
    """
    validate_records(payload, header)
    known = {table[at : at + width] for table, width in ((ids, 4), (guids, 16)) for at in range(0, len(table), width)}
    carried = (
        (index, _schema_id(one, name.decode(), of_keys)) for index, one in enumerate(decode_records(payload, header))
    )
    return [(index, mine) for index, mine in carried if mine is not None and mine not in known][:most]


class _Wrong(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(REASONS[code])
        self.code = code


class _Payload:
    """Walks through a payload as a program says."""

    def __init__(self, data: bytes, program: bytes) -> None:
        self.data, self.position = data, 0
        self.words = array("i", program)
        self.empty = 0
        self.trail: list[tuple[int, int]] = []

    def check(self) -> None:
        """Raises _Wrong."""
        self.value(self.words[0], 0)
        if self.position != len(self.data):
            raise _Wrong(LEFT_OVER)

    def number(self, bits: int) -> int:
        value = 0
        for count, byte in enumerate(self.data[self.position : self.position + (bits + 6) // 7]):
            value |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                if value >> bits:
                    raise _Wrong(NUMBER)
                self.position += count + 1
                return (value >> 1) ^ -(value & 1)
        raise _Wrong(CUT_OFF if len(self.data) - self.position < (bits + 6) // 7 else NUMBER)

    def fixed(self, size: int) -> bytes:
        if size > len(self.data) - self.position:
            raise _Wrong(CUT_OFF)
        self.position += size
        return self.data[self.position - size : self.position]

    def bytes(self) -> bytes:
        before = self.position
        size = self.number(64)
        if not 0 <= size <= len(self.data) - self.position:
            self.position = before
            raise _Wrong(LENGTH)
        return self.fixed(size)

    def text(self) -> str:
        before = self.position
        try:
            return self.bytes().decode()
        except UnicodeDecodeError:
            self.position = before
            raise _Wrong(TEXT) from None

    def value(self, at: int, depth: int) -> None:
        operation = self.words[at]
        before = self.position
        if operation == RECORD:
            self.record(at, depth + 1)
        elif operation in (ARRAY, MAP):
            self.collection(at, depth + 1)
        elif operation == UNION:
            branch = self.number(64)
            self.within(branch, self.words[at + 1], BRANCH, before)
            self.value(self.words[at + 2 + branch], depth)
        elif operation == BOOLEAN:
            self.within(self.fixed(1)[0], 2, TRUTH, before)
        elif operation == INT:
            self.number(32)
        elif operation == LONG:
            self.number(64)
        elif operation == FIXED:
            self.fixed(self.words[at + 1])
        elif operation == BYTES:
            self.bytes()
        elif operation == STRING:
            self.text()
        elif operation == UUID:
            if not re.fullmatch("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", self.text(), re.ASCII):
                self.position = before
                raise _Wrong(UUID_TEXT)
        elif operation == ENUM:
            self.within(self.number(32), self.words[at + 1], SYMBOL, before)
        elif operation == TIME_MILLIS:
            self.within(self.number(32), _DAY_MS, TIME, before)
        elif operation == TIME_MICROS:
            self.within(self.number(64), _DAY_MS * 1000, TIME, before)
        elif operation == DECIMAL:
            self.decimal(at)

    def within(self, value: int, bound: int, code: int, before: int) -> None:
        if not 0 <= value < bound:
            self.position = before
            raise _Wrong(code)

    def decimal(self, at: int) -> None:
        before = self.position
        size, larger, smaller = self.words[at + 1 : at + 4]
        data = self.bytes() if size < 0 else self.fixed(size)
        limits = self.words[at + 4 : at + 4 + (larger + smaller + 3) // 4].tobytes()
        largest = int.from_bytes(limits[:larger], "big", signed=True)
        smallest = int.from_bytes(limits[larger : larger + smaller], "big", signed=True)
        if not data or not smallest <= int.from_bytes(data, "big", signed=True) <= largest:
            self.position = before
            raise _Wrong(DIGITS)

    def record(self, at: int, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise _Wrong(DEPTH)
        for number, field in enumerate(self.words[at + 2 : at + 2 + self.words[at + 1]]):
            try:
                self.value(field, depth)
            except _Wrong:
                if len(self.trail) < TRAIL_MAX:
                    self.trail.append((at, number))
                raise

    def collection(self, at: int, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise _Wrong(DEPTH)
        is_map, items = self.words[at] == MAP, self.words[at + 1]
        while True:
            before = self.position
            count, stop = self.number(64), -1
            if count == 0:
                return
            if count < 0:
                count, size = -count, self.number(64)
                stop = self.position + size
                if not 0 <= size <= len(self.data) - self.position:
                    self.position = before
                    raise _Wrong(LENGTH)
            if self.words[items] == NOTHING and not is_map:
                self.empty += count
                if self.empty > EMPTY_ITEMS:
                    self.position = before
                    raise _Wrong(EMPTY)
            else:
                if count > len(self.data) - self.position:
                    self.position = before
                    raise _Wrong(LENGTH)
                for _ in range(count):
                    if is_map:
                        self.text()
                    self.value(items, depth)
            if stop >= 0 and self.position != stop:
                self.position = before
                raise _Wrong(BLOCK)


def _payload_of(record: Record, wanted: str, of_keys: bool, number: bytes) -> bytes:
    data = bytes((record.key if of_keys else record.value) or b"")
    return data if any(name == wanted for name, _ in record.headers) else data[1 + len(number) :]


def unfit(
    payload: Buffer, header: BatchHeader, name: bytes, of_keys: bool, ids: bytes, guids: bytes,
    programs: Sequence[bytes], most: int,
) -> list[Unfit]:  # fmt: skip
    """The records of a batch whose value (or key) is not of the schema whose id it carries, ``most`` at most.

    Ids are as in :func:`misfits`; ``programs`` has one for each row of ``ids``, then of ``guids``. Those without an id,
    or with one of no program, are among them, UNKNOWN. Raises CorruptBatch, but not for what lies behind more than
    ``most`` of them. ``payload`` is decompressed.
    """
    validate_records(payload, header)
    rows = [table[at : at + width] for table, width in ((ids, 4), (guids, 16)) for at in range(0, len(table), width)]
    known = dict(zip(rows, programs, strict=True))
    wrong = _unfit(payload, header, name.decode(), of_keys, known)
    return [row for row, _ in zip(wrong, range(most), strict=False)]


def _unfit(
    payload: Buffer, header: BatchHeader, name: str, of_keys: bool, known: dict[bytes, bytes]
) -> Iterator[Unfit]:
    for index, record in enumerate(decode_records(payload, header)):
        number = _schema_id(record, name, of_keys)
        if number is None:
            continue
        if number not in known:
            yield Unfit(index, number, UNKNOWN, 0, ())
            continue
        walk = _Payload(_payload_of(record, name, of_keys, number), known[number])
        try:
            walk.check()
        except _Wrong as wrong:
            yield Unfit(index, number, wrong.code, walk.position, tuple(walk.trail))
