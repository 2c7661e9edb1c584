"""Produce and CommitBatch, encoded here: records with one copy, winners without an object for each.

The library's encoder writes a request into a buffer of its own and copies that once more, which costs at hundreds of
megabytes a second, and it takes two microseconds for an element of an array.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any

from kafka.protocol.api_header import RequestHeader

from fleetlog._native.byte_reader import put_varint
from fleetlog._native.wire_fields import put_string
from fleetlog.wire.messages import response_class

PRODUCE, COMMIT_BATCH = 0, 12003
_INT, _LONG, _FIXED = struct.Struct(">i"), struct.Struct(">q"), struct.Struct(">hi")
_MEMBER, _WINNER = struct.Struct(">qh"), struct.Struct(">qhx")  # the latter's last byte: no tags
_NO_TAGS = b"\0"
_ALL_REPLICAS = -1


class Frame:
    """A request as the library's connection uses it."""

    API_KEY: int
    API_VERSION: int

    def __init__(self) -> None:
        self.header: Any = None

    def expect_response(self) -> bool:
        """Every request here has a response."""
        return True

    def with_header(self, correlation_id: int = 0, client_id: str = "") -> None:
        """Set the header. The library calls this when it sends the request; it finds the answer's class by the key."""
        response_class(self.API_KEY)
        self.header = RequestHeader(
            request_api_key=self.API_KEY,
            request_api_version=self.API_VERSION,
            correlation_id=correlation_id,
            client_id=client_id,
        )

    def encode(self, framed: bool = True, header: bool = True) -> bytes:
        """Size, header and body; the library always calls with ``framed`` and ``header``."""
        parts = [self.header.encode(flexible=True), *self._body(), _NO_TAGS]
        return b"".join([_INT.pack(sum(map(len, parts))), *parts])

    def _body(self) -> Sequence[bytes | bytearray]:
        raise NotImplementedError


class ProduceFrame(Frame):
    """Produce version 12 (KIP-890), ``acks`` of all."""

    API_KEY = PRODUCE
    API_VERSION = 12

    def __init__(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        topics: Mapping[str, Sequence[tuple[int, bytes | bytearray]]],
    ) -> None:
        super().__init__()
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._topics = topics

    def __str__(self) -> str:
        parts = {name: [number for number, _ in parts] for name, parts in self._topics.items()}
        return f"Produce(transactional_id={self._transactional_id}, {parts})"

    def _body(self) -> Sequence[bytes | bytearray]:
        parts: list[bytes | bytearray] = [
            _text(self._transactional_id),
            _FIXED.pack(_ALL_REPLICAS, self._timeout_ms),
            _number(len(self._topics) + 1),
        ]
        for name, partitions in self._topics.items():
            parts += (_text(name), _number(len(partitions) + 1))
            for index, records in partitions:
                parts += (_INT.pack(index), _number(len(records) + 1), records, _NO_TAGS)
            parts.append(_NO_TAGS)
        return parts


class CommitFrame(Frame):
    """CommitBatch version 0 (docs/protocol.md). ``winners``: producer ids and epochs; there may be thousands."""

    API_KEY = COMMIT_BATCH
    API_VERSION = 0

    def __init__(
        self,
        sink_id: str,
        producer_id: int,
        producer_epoch: int,
        query_id: str,
        batch_id: int,
        digest: str,
        winners: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__()
        self._sink_id = sink_id
        self._producer = producer_id, producer_epoch
        self._query_id = query_id
        self._batch_id = batch_id
        self._digest = digest
        self._winners = winners

    def __str__(self) -> str:
        return f"CommitBatch({self._sink_id}, {self._query_id}, {self._batch_id}, {len(self._winners)} winners)"

    def _body(self) -> Sequence[bytes | bytearray]:
        return [
            _text(self._sink_id),
            _MEMBER.pack(*self._producer),
            _text(self._query_id),
            _LONG.pack(self._batch_id),
            _text(self._digest),
            _number(len(self._winners) + 1),
            *starmap(_WINNER.pack, self._winners),
        ]


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
