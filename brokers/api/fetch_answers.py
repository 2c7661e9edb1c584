"""What the answers of a Fetch have in common: with and without a session, at once and in slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fleetlog.brokers.api.base import Context
from fleetlog.brokers.api.leaders import endpoints_of
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import Encoded, FetchOutcome, FetchPart, encode_fetch_response
from fleetlog.wire.topic_pieces import fetch_response_pieces

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

Pair = tuple[FetchPart, FetchOutcome]
T = TypeVar("T")

LONG_PARTS = 512
"""A Fetch that has more partitions to look at is executed in slices (``brokers.server.dispatch``)."""
SLICE_PARTS = 32
"""Partitions between two places at which such a Fetch may be interrupted: some 100 microseconds of work."""
READS_PER_ANSWER = 1_000
"""Partitions with records in one answer: others' turn on the loop comes before the rest."""


def slices_of(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Some dozens of rows at a time."""
    for start in range(0, len(rows), SLICE_PARTS):
        yield rows[start : start + SLICE_PARTS]


def refused(error: ErrorCode, context: Context) -> Encoded:
    """An answer that is nothing but an error."""
    return encode_fetch_response(context.api_version, [], error=error)


def is_urgent(outcome: FetchOutcome) -> bool:
    """Whether the asker should hear of it without waiting for more."""
    return outcome.error != ErrorCode.NONE or outcome.diverging is not None or outcome.preferred_read_replica >= 0


def release(found: Iterable[tuple[Any, FetchOutcome]]) -> None:
    """They are not sent: the files may go."""
    for _, outcome in found:
        for piece in outcome.slices:
            piece.release()


def grouped_by_topic(pairs: list[Pair]) -> list[Pair]:
    """Partitions of one topic side by side: the answer names each topic once."""
    if len(pairs) < 2:
        return pairs
    topics: dict[Any, list[Pair]] = {}
    for pair in pairs:
        topics.setdefault(pair[0].topic_id or pair[0].topic, []).append(pair)
    return [pair for members in topics.values() for pair in members]


def encoded_in_slices(context: Context, outcomes: list[Pair], session_id: int = 0) -> Generator[None, None, Encoded]:
    """The body of an answer that names each topic once, with pauses."""
    topics: dict[Any, list[Pair]] = {}
    for some in slices_of(outcomes):
        yield
        for pair in some:
            topics.setdefault(pair[0].topic_id or pair[0].topic, []).append(pair)
    outcomes = []
    for members in topics.values():
        yield
        outcomes += members
    leaders: dict[tuple[int, int], None] = {}
    for some in slices_of(outcomes):
        yield
        leaders.update((outcome.current_leader, None) for _, outcome in some if outcome.current_leader is not None)
    endpoints = endpoints_of(context, list(leaders)) if leaders else ()
    chunks = yield from fetch_response_pieces(context.api_version, outcomes, session_id, endpoints)
    return Encoded(chunks)
