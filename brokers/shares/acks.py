"""What members say of the records that they have, as requests bring it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from fleetlog.wire.errors import ErrorCode

MAX_TYPES = 20_000
"""The most types that are said of a partition's records at a time: nobody has more records than half of it."""


class AckType(IntEnum):
    """What a member says of a record that it has."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AckBatch(NamedTuple):
    """Acknowledges offsets ``first`` to ``last`` (inclusive): all by one type, or each by its own."""

    first: int
    last: int
    types: Sequence[int]


class WrongAcknowledgement(Exception):
    """An acknowledgement that cannot be: its error code and text. Nothing of its partition's was taken over."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


def checked(batches: Iterable[AckBatch]) -> list[tuple[int, int, AckType]]:
    """First and last offset and type, in order, equal neighbours of a batch joined. Raises WrongAcknowledgement."""
    pieces: list[tuple[int, int, AckType]] = []
    before, named = -1, 0
    for first, last, types in batches:
        if not before < first <= last:
            raise WrongAcknowledgement(ErrorCode.INVALID_REQUEST, f"Offsets {first} to {last} after {before}.")
        named += len(types)
        if len(types) not in (1, last - first + 1) or named > MAX_TYPES:
            text = f"{len(types)} types for offsets {first} to {last}."
            raise WrongAcknowledgement(ErrorCode.INVALID_REQUEST, text)
        if any(not AckType.GAP <= kind <= AckType.RENEW for kind in types):
            raise WrongAcknowledgement(ErrorCode.INVALID_REQUEST, "A type of acknowledgement that is unknown.")
        before = last
        if len(types) == 1:
            pieces.append((first, last, AckType(types[0])))
            continue
        for offset, kind in enumerate(types, first):
            if offset > first and pieces[-1][2] == kind:
                pieces[-1] = (pieces[-1][0], offset, pieces[-1][2])
            else:
                pieces.append((offset, offset, AckType(kind)))
    return pieces
