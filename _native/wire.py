"""Produce, Fetch and Metadata on the wire. See ``wire_py`` for what each function means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _native import choose
from _native.errors import MalformedMessage
from _native.wire_py import (
    MAX_OBJECTS,
    MAX_TAGS,
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
    RequestHeader,
    Slice,
)

if TYPE_CHECKING:
    from _native.wire_py import (
        decode_fetch,
        decode_fetch_response,
        decode_produce,
        decode_produce_run,
        encode_fetch_answer,
        encode_fetch_request,
        encode_fetch_response,
        encode_metadata_topic,
        encode_produce_response,
        encode_produce_run,
        join_metadata,
        parse_request_header,
    )
else:
    _twin = choose("wire")
    decode_fetch = _twin.decode_fetch
    decode_fetch_response = _twin.decode_fetch_response
    decode_produce = _twin.decode_produce
    decode_produce_run = _twin.decode_produce_run
    encode_fetch_answer = _twin.encode_fetch_answer
    encode_fetch_request = _twin.encode_fetch_request
    encode_fetch_response = _twin.encode_fetch_response
    encode_metadata_topic = _twin.encode_metadata_topic
    encode_produce_response = _twin.encode_produce_response
    encode_produce_run = _twin.encode_produce_run
    join_metadata = _twin.join_metadata
    parse_request_header = _twin.parse_request_header

__all__ = [
    "MAX_OBJECTS",
    "MAX_TAGS",
    "NO_HIGH_WATERMARK",
    "NO_OPERATIONS",
    "FetchAnswer",
    "FetchAnswerPart",
    "FetchOutcome",
    "FetchPart",
    "FetchRequest",
    "MalformedMessage",
    "MetadataPartition",
    "NodeEndpoint",
    "ProduceOutcome",
    "ProducePart",
    "ProduceRequest",
    "ProduceRun",
    "RequestHeader",
    "Slice",
    "decode_fetch",
    "decode_fetch_response",
    "decode_produce",
    "decode_produce_run",
    "encode_fetch_answer",
    "encode_fetch_request",
    "encode_fetch_response",
    "encode_metadata_topic",
    "encode_produce_response",
    "encode_produce_run",
    "join_metadata",
    "parse_request_header",
]
