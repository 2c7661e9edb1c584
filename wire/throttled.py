"""Puts ``throttle_time_ms`` into answers that are encoded already: answers are throttled seldom, and all of them alike.

Most answers begin with it, from some version on; those of Produce end with it. Where it is, the schemas say.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, Final

from fleetlog.wire import api_keys, messages

TAGGED_PRODUCE: Final = 9
_FIELD: Final = "throttle_time_ms"
_I32: Final = struct.Struct(">i")
_SIZE: Final = 4
_NO_TIME: Final = bytes(4)


def with_throttle_time(key: int, version: int, chunks: list[Any], throttle_ms: int) -> list[Any]:
    """The answers, each with its size and header, as they are with that throttle time.

    ``chunks`` are byte runs and file slices; the first of them holds the header and what comes before any slice.
    """
    place = _place(key, version)
    if place is None or not chunks or not isinstance(chunks[0], bytes):
        return chunks
    first = bytearray(chunks[0])
    header = len(messages.encode_response_header(key, version, 0))
    if key == api_keys.PRODUCE:
        first = _produced(first, version, header, throttle_ms)
    elif place == 0:
        _I32.pack_into(first, _SIZE + header, throttle_ms)
    else:
        first = _exchanged(first, key, version, header, throttle_ms)
    return [bytes(first), *chunks[1:]]


@cache
def _place(key: int, version: int) -> int | None:
    """Which field of the answer it is, in that version; None: it has none."""
    fields = [
        name for name, field in messages.response_class(key)._struct.fields.items() if field.for_version_q(version)
    ]
    return fields.index(_FIELD) if _FIELD in fields else None


def _produced(data: bytearray, version: int, header: int, throttle_ms: int) -> bytearray:
    """Answers of requests that were executed together stand behind each other."""
    produced, start = bytearray(), 0
    while start < len(data):
        end = start + _SIZE + int.from_bytes(data[start : start + _SIZE], "big")
        frame = data[start:end]
        tail = 1 if version >= TAGGED_PRODUCE else 0
        time_end = len(frame) - tail
        if frame[time_end - 4 : time_end] == _NO_TIME and not any(frame[time_end:]):
            _I32.pack_into(frame, time_end - 4, throttle_ms)
        else:  # endpoints of leaders follow it
            frame = _exchanged(frame, api_keys.PRODUCE, version, header, throttle_ms)
        produced += frame
        start = end
    return produced


def _exchanged(frame: bytearray, key: int, version: int, header: int, throttle_ms: int) -> bytearray:
    """One answer, decoded and encoded again."""
    answer = messages.decode_response(key, version, memoryview(frame)[_SIZE + header :])
    answer.throttle_time_ms = throttle_ms
    body = frame[_SIZE : _SIZE + header] + messages.encode_response(answer, key, version)
    return bytearray(len(body).to_bytes(_SIZE, "big")) + body
