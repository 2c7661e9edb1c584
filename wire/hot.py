"""Codecs of the messages that carry the load, Produce, Fetch and Metadata, without an object per field; CommitBatch's,
which names thousands of members, without one per member.

The kernel is ``_native.wire``; the library's messages are the reference in the tests: equal content from equal bytes,
equal bytes from equal content. Requests come out as plain tuples whose records are views into the received frame.
Answers leave as byte runs with holes for file slices (:class:`Encoded`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fleetlog._native import wire as kernel
from fleetlog._native.wire import (
    NO_HIGH_WATERMARK,
    NO_OPERATIONS,
    FetchAnswer,
    FetchAnswerPart,
    FetchOutcome,
    FetchPart,
    FetchRequest,
    FetchRun,
    MetadataPartition,
    NodeEndpoint,
    ProduceOutcome,
    ProducePart,
    ProduceRequest,
    ProduceRun,
    Slice,
    decode_fetch,
    decode_fetch_response,
    decode_fetch_run,
    decode_produce,
    decode_produce_run,
    encode_fetch_answer,
    encode_fetch_request,
    encode_metadata_topic,
    encode_produce_response,
    encode_produce_run,
    join_metadata,
)
from fleetlog._native.wire_fields import I64, MAX_OBJECTS, Reader

__all__ = [
    "DECODERS",
    "NO_HIGH_WATERMARK",
    "NO_OPERATIONS",
    "CommitBatch",
    "Encoded",
    "FetchAnswer",
    "FetchAnswerPart",
    "FetchOutcome",
    "FetchPart",
    "FetchRequest",
    "FetchRun",
    "MetadataPartition",
    "NodeEndpoint",
    "ProduceOutcome",
    "ProducePart",
    "ProduceRequest",
    "ProduceRun",
    "Slice",
    "decode_commit_batch",
    "decode_fetch",
    "decode_fetch_response",
    "decode_fetch_run",
    "decode_produce",
    "decode_produce_run",
    "encode_fetch_answer",
    "encode_fetch_request",
    "encode_fetch_response",
    "encode_metadata_topic",
    "encode_produce_response",
    "encode_produce_run",
    "framed",
    "join_metadata",
]

PRODUCE, FETCH, COMMIT_BATCH = 0, 1, 12003
_IDS, _WINNER = struct.Struct(">qh"), struct.Struct(">qhx")  # the latter's last byte: no tagged fields


class Encoded:
    """An encoded body: byte runs and file slices in the order in which they leave."""

    __slots__ = ("chunks",)

    def __init__(self, chunks: list[Any]) -> None:
        self.chunks = chunks

    def release(self) -> None:
        """Release the files: the response will not be sent."""
        for chunk in self.chunks:
            if not isinstance(chunk, bytes):
                chunk.release()
        self.chunks = []


def framed(header: bytes, body: list[Any]) -> list[Any]:
    """Size, header and body, which is byte runs and file slices, as one answer."""
    if len(body) == 1 and isinstance(body[0], bytes):
        return [b"".join(((len(header) + len(body[0])).to_bytes(4, "big"), header, body[0]))]
    size = len(header)
    for chunk in body:
        size += len(chunk) if isinstance(chunk, bytes) else chunk.length
    prefix = size.to_bytes(4, "big") + header
    if body and isinstance(body[0], bytes):
        return [prefix + body[0], *body[1:]]
    return [prefix, *body]


def encode_fetch_response(
    version: int,
    parts: Sequence[tuple[FetchPart, FetchOutcome]],
    *,
    throttle_ms: int = 0,
    error: int = 0,
    session_id: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> Encoded:
    """The body of a Fetch answer, with the records left in their files."""
    return Encoded(kernel.encode_fetch_response(version, parts, throttle_ms, error, session_id, endpoints))


class CommitBatch(NamedTuple):
    """A CommitBatch request (docs/protocol.md). ``winners``: producer ids and epochs."""

    sink_id: str
    producer_id: int
    producer_epoch: int
    query_id: str
    batch_id: int
    digest: str
    winners: list[tuple[int, int]]


def decode_commit_batch(version: int, body: memoryview) -> CommitBatch:
    """Decode the request's only version. Raises MalformedRequest."""
    reader = Reader(body, MAX_OBJECTS)
    sink_id, (producer_id, producer_epoch) = reader.name(True), reader.unpack(_IDS)
    query_id, (batch_id,), digest = reader.name(True), reader.unpack(I64), reader.name(True)
    count = reader.count(True, _WINNER.size)
    packed = reader.data[reader.pos : reader.pos + count * _WINNER.size]
    winners: list[Any] = []
    if any(packed[_WINNER.size - 1 :: _WINNER.size].tobytes()):
        for _ in range(count):
            winners.append(reader.unpack(_IDS))
            reader.skip_tags()
    else:
        reader.take(len(packed))
        winners += _WINNER.iter_unpack(packed)
    reader.skip_tags()
    return reader.whole(CommitBatch(sink_id, producer_id, producer_epoch, query_id, batch_id, digest, winners))


DECODERS: dict[int, Callable[[int, memoryview], Any]] = {
    PRODUCE: decode_produce,
    FETCH: decode_fetch,
    COMMIT_BATCH: decode_commit_batch,
}
"""API keys whose requests don't go through ``wire.messages.decode_request``."""
