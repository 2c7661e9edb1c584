"""Puts ``throttle_time_ms`` into answers that are encoded already: answers are throttled seldom, and all of them alike.

Most answers begin with it, from some version on; those of Produce end with it. Source: Kafka's message definitions.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from fleetlog.wire import messages

PRODUCE, API_VERSIONS, OFFSET_DELETE = 0, 18, 47
TAGGED_PRODUCE: Final = 9
TAGGED_API_VERSIONS: Final = 3
WITHOUT: Final = frozenset({7, 17, 27, 36, 12000, 12015})
"""APIs whose answers have no such field."""
FIRST_VERSIONS: Final = {
    PRODUCE: 1, 2: 2, 3: 3, 8: 3, 9: 3, 10: 1, 11: 2, 12: 1, 13: 1, 14: 1, 15: 1, 16: 1, API_VERSIONS: 1,
}  # fmt: skip
"""The first version with the field, where that is not the lowest one that is served."""

DELEGATION_TOKENS: Final = frozenset({38, 39, 40, 41})
"""Their answers have it behind fields of any length."""

_I32: Final = struct.Struct(">i")
_SIZE: Final = 4
_NO_TIME: Final = bytes(4)
_ROW_OF_VERSIONS: Final = 7  # three 16-bit numbers, no tagged fields


def with_throttle_time(key: int, version: int, chunks: list[Any], throttle_ms: int) -> list[Any]:
    """The answers, each with its size and header, as they are with that throttle time.

    ``chunks`` are byte runs and file slices; the first of them holds the header and what comes before any slice.
    """
    if key in WITHOUT or version < FIRST_VERSIONS.get(key, 0) or not chunks or not isinstance(chunks[0], bytes):
        return chunks
    first = bytearray(chunks[0])
    header = len(messages.encode_response_header(key, version, 0))
    if key == PRODUCE:
        first = _produced(first, version, header, throttle_ms)
    elif key in DELEGATION_TOKENS:
        first = _exchanged(first, key, version, header, throttle_ms)
    else:
        at = _SIZE + header
        if key == OFFSET_DELETE:
            at += 2
        elif key == API_VERSIONS:
            at = _behind_versions(first, at + 2, version)
        _I32.pack_into(first, at, throttle_ms)
    return [bytes(first), *chunks[1:]]


def _behind_versions(data: bytearray, at: int, version: int) -> int:
    if version < TAGGED_API_VERSIONS:
        return at + 4 + 6 * int.from_bytes(data[at : at + 4], "big")
    count = shift = 0
    while True:
        byte = data[at]
        at += 1
        count |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return at + _ROW_OF_VERSIONS * (count - 1)


def _produced(data: bytearray, version: int, header: int, throttle_ms: int) -> bytearray:
    """Answers of requests that were executed together stand behind each other."""
    found, start = bytearray(), 0
    while start < len(data):
        end = start + _SIZE + int.from_bytes(data[start : start + _SIZE], "big")
        frame = data[start:end]
        tail = 1 if version >= TAGGED_PRODUCE else 0
        time_end = len(frame) - tail
        if frame[time_end - 4 : time_end] == _NO_TIME and not any(frame[time_end:]):
            _I32.pack_into(frame, time_end - 4, throttle_ms)
        else:  # endpoints of leaders follow it
            frame = _exchanged(frame, PRODUCE, version, header, throttle_ms)
        found += frame
        start = end
    return found


def _exchanged(frame: bytearray, key: int, version: int, header: int, throttle_ms: int) -> bytearray:
    """One answer, decoded and encoded again."""
    answer = messages.decode_response(key, version, memoryview(frame)[_SIZE + header :])
    answer.throttle_time_ms = throttle_ms
    body = frame[_SIZE : _SIZE + header] + messages.encode_response(answer, key, version)
    return bytearray(len(body).to_bytes(_SIZE, "big")) + body
