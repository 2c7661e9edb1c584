"""Encoding a Fetch or Produce answer of many partitions a piece at a time, so that the loop can do something else in
between.

All pieces joined are what ``wire.hot`` makes in one go (``tests/wire/test_topic_pieces.py``): the kernel encodes
answers of some dozens of partitions, of which only the partitions are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from fleetlog._native import wire as kernel
from fleetlog._native.byte_reader import varint_bytes
from fleetlog._native.wire import FetchOutcome, FetchPart, NodeEndpoint, ProduceOutcome, ProducePart
from fleetlog.wire.pieces import PIECE_ELEMENTS

FETCH_FLEXIBLE, PRODUCE_FLEXIBLE, TOPIC_IDS = 12, 9, 13
THROTTLE = 4
"""Bytes of a Produce answer's throttle time, behind the topics."""
Pair = tuple[Any, Any]
"""A partition of the request, and its outcome."""


def fetch_response_pieces(
    version: int,
    parts: Sequence[tuple[FetchPart, FetchOutcome]],
    session_id: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> Generator[None, None, list[Any]]:
    """Yields between two pieces; returns the body as byte runs and slices, in the order in which they leave."""
    flexible = version >= FETCH_FLEXIBLE
    begin, end = _frame(version, session_id, endpoints)

    def encode(pairs: Sequence[Pair]) -> list[Any]:
        return kernel.encode_fetch_response(version, pairs)

    topics = yield from _topics(version, parts, encode, flexible, len(begin), 1 if flexible else 0)
    return [chunk for chunk in (begin, *topics, end) if chunk != b""]


def produce_response_pieces(
    version: int, parts: Sequence[tuple[ProducePart, ProduceOutcome]], endpoints: Sequence[NodeEndpoint] = ()
) -> Generator[None, None, list[Any]]:
    """Yields between two pieces; returns the body as byte runs, in the order in which they leave."""
    flexible = version >= PRODUCE_FLEXIBLE

    def encode(pairs: Sequence[Pair]) -> list[Any]:
        return [kernel.encode_produce_response(version, pairs)]

    topics = yield from _topics(version, parts, encode, flexible, 0, THROTTLE + (1 if flexible else 0))
    end = kernel.encode_produce_response(version, [], 0, endpoints)[len(_count(0, flexible)) :]
    return [*topics, end]


def _topics(
    version: int,
    parts: Sequence[Pair],
    encode: Callable[[Sequence[Pair]], list[Any]],
    flexible: bool,
    before: int,
    behind: int,
) -> Generator[None, None, list[Any]]:
    """The answer's topics with their number. ``encode`` makes answers with so many bytes before and behind those."""
    topics: list[list[Pair]] = []
    last: Any = topics
    for number, pair in enumerate(parts):
        if number % PIECE_ELEMENTS == 0:
            yield
        topic = pair[0].topic_id or pair[0].topic
        if topic != last:
            topics.append([])
            last = topic
        topics[-1].append(pair)
    tags = 1 if flexible else 0
    chunks: list[Any] = [_count(len(topics), flexible)]
    for together in _together(topics):
        yield
        if len(together) > 1 or len(together[0]) <= PIECE_ELEMENTS:
            head = before + len(_count(len(together), flexible))
            chunks += _inner(encode([pair for topic in together for pair in topic]), head, behind)
            continue
        (members,) = together
        name = _name(version, members[0][0], flexible)
        chunks.append(name + _count(len(members), flexible))
        for start in range(0, len(members), PIECE_ELEMENTS):
            yield
            piece = members[start : start + PIECE_ELEMENTS]
            head = before + len(_count(1, flexible)) + len(name) + len(_count(len(piece), flexible))
            chunks += _inner(encode(piece), head, behind + tags)
        chunks.append(b"\0" * tags)
    return chunks


def _frame(version: int, session_id: int, endpoints: Sequence[NodeEndpoint]) -> tuple[bytes, bytes]:
    """The bytes before the number of topics, and those after the topics."""
    no_topics = len(_count(0, version >= FETCH_FLEXIBLE))
    (empty,) = kernel.encode_fetch_response(version, [], 0, 0, 0, endpoints)
    (short,) = kernel.encode_fetch_response(version, [], 0, 0, session_id, ())
    begin = len(short) - no_topics - (1 if version >= FETCH_FLEXIBLE else 0)
    return short[:begin], empty[begin + no_topics :]


def _together(topics: Sequence[list[Pair]]) -> Iterator[list[list[Pair]]]:
    """Topics of some dozens of partitions in all, or one that has more."""
    together: list[list[Pair]] = []
    count = 0
    for topic in topics:
        if together and count + len(topic) > PIECE_ELEMENTS:
            yield together
            together, count = [], 0
        together.append(topic)
        count += len(topic)
    if together:
        yield together


def _inner(chunks: list[Any], head: int, tail: int) -> list[Any]:
    """An encoded response without its first and last bytes."""
    chunks[0] = chunks[0][head:]
    if tail:
        chunks[-1] = chunks[-1][:-tail]
    return chunks


def _name(version: int, part: Any, flexible: bool) -> bytes:
    if version >= TOPIC_IDS:
        assert part.topic_id is not None, "topics have ids from version 13 on"
        raw: bytes = part.topic_id.bytes
        return raw
    name = (part.topic or "").encode()
    return (varint_bytes(len(name) + 1) if flexible else len(name).to_bytes(2, "big")) + name


def _count(count: int, flexible: bool) -> bytes:
    return varint_bytes(count + 1) if flexible else count.to_bytes(4, "big")
