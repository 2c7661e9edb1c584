"""Answers with a row for each name, encoded row by row: rows that differ in their name only are encoded once.

A request may have ten thousand names that are all refused for the same reason. The library takes a hundred milliseconds
for their rows; the bytes behind the name are the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from fleetlog._native.byte_reader import varint_bytes
from fleetlog.wire.messages import EncodeBuffer
from fleetlog.wire.pieces import BUFFER_BYTES

THROTTLE_MS = bytes(4)


class NamedRows:
    """The rows of a response that is a throttle time and one array, whose structs begin with a name.

    The joined bytes are what the library encodes (``tests/wire/test_rows.py``).
    """

    def __init__(self, response: Any, version: int) -> None:
        self._version = version
        self._flexible: bool = response(version=version).flexible_version_q(version)
        (struct,) = (field.array_of for field in response._struct.untagged_fields(version) if field.is_struct_array())
        self._encode = struct.compiled_encode_into(version, compact=self._flexible, tagged=self._flexible)
        self._rows: list[bytes] = []
        self._behind: dict[Hashable, bytes] = {}

    def add(self, row: Any) -> None:
        """A row of its own kind."""
        self._rows.append(self._encoded(row))

    def add_alike(self, name: str, kind: Hashable, make: Callable[[], Any]) -> None:
        """A row that is equal to all others of that kind, but for its name; ``make`` makes the first of them."""
        raw = name.encode()
        behind = self._behind.get(kind)
        if behind is None:
            row = make()
            row.name = ""
            behind = self._behind[kind] = self._encoded(row)[len(self._length(0)) :]
        self._rows.append(self._length(len(raw)) + raw + behind)

    def body(self) -> bytes:
        """The response, encoded."""
        count = len(self._rows)
        head = varint_bytes(count + 1) if self._flexible else count.to_bytes(4, "big")
        return b"".join((THROTTLE_MS, head, *self._rows, b"\0" if self._flexible else b""))

    def _length(self, size: int) -> bytes:
        return varint_bytes(size + 1) if self._flexible else size.to_bytes(2, "big")

    def _encoded(self, row: Any) -> bytes:
        out = EncodeBuffer(BUFFER_BYTES)
        self._encode(row, out)
        return bytes(out.result())
