"""Codecs of the messages that carry the load, Produce, Fetch and Metadata, without an object per field.

The kernel is ``_native.wire``; the library's messages are the reference in the tests: equal content from equal bytes,
equal bytes from equal content. Requests come out as plain tuples whose records are views into the received frame.
Answers leave as byte runs with holes for file slices (:class:`Encoded`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from _native import wire as kernel
from _native.wire import (
    NO_HIGH_WATERMARK,
    NO_OPERATIONS,
    FetchAnswer,
    FetchAnswerPart,
    FetchOutcome,
    FetchPart,
    FetchRequest,
    MetadataPartition,
    NodeEndpoint,
    ProduceOutcome,
    ProducePart,
    ProduceRequest,
    ProduceRun,
    Slice,
    decode_fetch,
    decode_fetch_response,
    decode_produce,
    decode_produce_run,
    encode_fetch_request,
    encode_metadata_topic,
    encode_produce_response,
    encode_produce_run,
    join_metadata,
)

__all__ = [
    "DECODERS",
    "NO_HIGH_WATERMARK",
    "NO_OPERATIONS",
    "Encoded",
    "FetchAnswer",
    "FetchAnswerPart",
    "FetchOutcome",
    "FetchPart",
    "FetchRequest",
    "Frames",
    "MetadataPartition",
    "NodeEndpoint",
    "ProduceOutcome",
    "ProducePart",
    "ProduceRequest",
    "ProduceRun",
    "Slice",
    "decode_fetch",
    "decode_fetch_response",
    "decode_produce",
    "decode_produce_run",
    "encode_fetch_request",
    "encode_fetch_response",
    "encode_metadata_topic",
    "encode_produce_response",
    "encode_produce_run",
    "join_metadata",
]

PRODUCE, FETCH = 0, 1


class Encoded:
    """An encoded body: byte runs and file slices in the order in which they leave."""

    __slots__ = ("chunks",)

    def __init__(self, chunks: list[Any]) -> None:
        self.chunks = chunks

    def release(self) -> None:
        """The answer will not be sent: the files may go."""
        for chunk in self.chunks:
            if not isinstance(chunk, bytes):
                chunk.release()
        self.chunks = []


class Frames(bytes):
    """Whole answers of several requests, with their headers and sizes."""

    __slots__ = ()


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


DECODERS: dict[int, Callable[[int, memoryview], Any]] = {PRODUCE: decode_produce, FETCH: decode_fetch}
"""API keys whose requests don't go through ``wire.messages.decode_request``."""
