"""A Produce request that is encoded with one copy of its records.

The library's encoder writes a request into a buffer of its own and copies that once more, which is felt where hundreds
of megabytes a second go through it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from kafka.protocol.api_header import RequestHeader

from _native.wire_fields import put_string, put_varint

PRODUCE = 0
_INT, _FIXED = struct.Struct(">i"), struct.Struct(">hi")
_NO_TAGS = b"\0"
_ALL_REPLICAS = -1


class ProduceFrame:
    """What the library's connection asks of a request: Produce version 12 (KIP-890), ``acks`` of all."""

    API_KEY = PRODUCE
    API_VERSION = 12

    def __init__(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        topics: Mapping[str, Sequence[tuple[int, bytes | bytearray]]],
    ) -> None:
        self.header: Any = None
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._topics = topics

    def __str__(self) -> str:
        parts = {name: [number for number, _ in parts] for name, parts in self._topics.items()}
        return f"Produce(transactional_id={self._transactional_id}, {parts})"

    def expect_response(self) -> bool:
        """Always, with these ``acks``."""
        return True

    def with_header(self, correlation_id: int = 0, client_id: str = "") -> None:
        """The library numbers its requests when it sends them."""
        self.header = RequestHeader(
            request_api_key=self.API_KEY,
            request_api_version=self.API_VERSION,
            correlation_id=correlation_id,
            client_id=client_id,
        )

    def encode(self, framed: bool = True, header: bool = True) -> bytes:
        """The request with its header, behind its size: the library asks for nothing else."""
        parts: list[bytes | bytearray] = [
            self.header.encode(flexible=True),
            _text(self._transactional_id),
            _FIXED.pack(_ALL_REPLICAS, self._timeout_ms),
            _number(len(self._topics) + 1),
        ]
        for name, partitions in self._topics.items():
            parts += (_text(name), _number(len(partitions) + 1))
            for index, records in partitions:
                parts += (_INT.pack(index), _number(len(records) + 1), records, _NO_TAGS)
            parts.append(_NO_TAGS)
        parts.append(_NO_TAGS)
        return b"".join([_INT.pack(sum(map(len, parts))), *parts])


def _text(value: str | None) -> bytearray:
    """A compact string; null for None."""
    out = bytearray()
    put_string(out, value, True)
    return out


def _number(value: int) -> bytearray:
    """An unsigned varint."""
    out = bytearray()
    put_varint(out, value)
    return out
