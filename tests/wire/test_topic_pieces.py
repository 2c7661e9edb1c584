"""The joined pieces of a long Fetch or Produce response equal the kernel's encoding."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from fleetlog.brokers.api.base import through
from fleetlog.wire.hot import (
    NO_HIGH_WATERMARK,
    FetchOutcome,
    FetchPart,
    NodeEndpoint,
    ProduceOutcome,
    ProducePart,
    encode_fetch_response,
    encode_produce_response,
)
from fleetlog.wire.pieces import PIECE_ELEMENTS
from fleetlog.wire.topic_pieces import fetch_response_pieces, produce_response_pieces

SIZES = [
    [],
    [1],
    [PIECE_ELEMENTS],
    [PIECE_ELEMENTS + 1],
    [1] * 300,
    [1000],
    [3, 500, 1, 63, 64, 65, 2],
    [2] * 40 + [200],
]


class Run:
    """A run of a file, that is not read here."""

    def __init__(self, length: int) -> None:
        self.position, self.length = 0, length

    def fileno(self) -> int:
        return 0

    def release(self) -> None:
        pass


def pairs(rng: random.Random, by_id: bool, sizes: list[int]) -> list[tuple[FetchPart, FetchOutcome]]:
    found = []
    for number, size in enumerate(sizes):
        name, topic_id = (None, uuid.UUID(int=number + 1)) if by_id else (f"topic-{number}", None)
        for index in range(size):
            part = FetchPart(name, topic_id, index, -1, 0, -1, -1, 1, NO_HIGH_WATERMARK)
            runs = [Run(7)] * rng.choice((0, 0, 1, 2))
            outcome = FetchOutcome(
                0, 5, 4, 0, rng.choice((None, [], [(1, 2)])), runs, 7 * len(runs),
                rng.choice((None, (1, 2))), rng.choice((None, (3, 4))),
            )  # fmt: skip
            found.append((part, outcome))
    return found


def joined(chunks: list[Any]) -> list[Any]:
    """Neighbouring byte runs as one."""
    found: list[Any] = []
    for chunk in chunks:
        if isinstance(chunk, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += chunk
        elif chunk != b"":
            found.append(chunk)
    return found


@pytest.mark.parametrize("version", range(4, 19))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_pieces_of_a_fetch_are_what_the_kernel_encodes(version: int, sizes: list[int]) -> None:
    rng = random.Random(version)
    parts = pairs(rng, version >= 13, sizes)
    near = [NodeEndpoint(1, "host", 9092)]
    pieces = fetch_response_pieces(version, parts, 77, near)
    whole = encode_fetch_response(version, parts, session_id=77, endpoints=near).chunks
    assert joined(through(pieces)) == joined(whole)


def produced(rng: random.Random, by_id: bool, sizes: list[int]) -> list[tuple[ProducePart, ProduceOutcome]]:
    found = []
    for number, size in enumerate(sizes):
        name, topic_id = (None, uuid.UUID(int=number + 1)) if by_id else (f"topic-{number}", None)
        for index in range(size):
            outcome = ProduceOutcome(
                rng.choice((0, 3)), index, -1, 0, rng.choice(((), [(0, "why"), (3, None)])),
                rng.choice((None, "because")), rng.choice((None, (1, 2))),
            )  # fmt: skip
            found.append((ProducePart(name, topic_id, index, None), outcome))
    return found


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_pieces_of_a_produce_are_what_the_kernel_encodes(version: int, sizes: list[int]) -> None:
    parts = produced(random.Random(version), version >= 13, sizes)
    for endpoints in ([], [NodeEndpoint(1, "host", 9092)]):
        pieces = through(produce_response_pieces(version, parts, endpoints))
        assert b"".join(pieces) == encode_produce_response(version, parts, endpoints=endpoints)


def test_there_are_many_pieces() -> None:
    parts = pairs(random.Random(1), True, [2000, *[1] * 2000])
    assert sum(1 for _ in fetch_response_pieces(18, parts)) >= 4000 // PIECE_ELEMENTS
    answers = produced(random.Random(1), True, [2000, *[1] * 2000])
    assert sum(1 for _ in produce_response_pieces(13, answers)) >= 4000 // PIECE_ELEMENTS
