"""Numbers of ZooKeeper's tree that only grow, as a broker has seen them. Pure.

A tree with a lower one was restored from an older copy: what it says of topics, leaders and deletions is of the past. A
broker keeps these marks beside its logs. A missing file, or a missing field, accepts any tree: directories of earlier
versions have none.

A tree that was repaired has a higher generation; its numbers count from there on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

MARKS_FILE = "cluster-marks.json"
"""In each log directory."""


class ClusterMarks(NamedTuple):
    """The numbers; the defaults are lower than those of any tree.

    ``change`` is the number of the newest entry of the change log, ``incarnation`` counts this broker's registrations,
    ``producer_id`` is the highest producer id that is known to be in use, ``change_ms`` when ZooKeeper made the entry
    ``change``; -1 if that is not known.
    """

    generation: int = 0
    controller_epoch: int = -1
    change: int = -1
    incarnation: int = 0
    producer_id: int = -1
    change_ms: int = -1


_NAMES = ("generation", "controllerEpoch", "change", "incarnation", "producerId", "changeMs")
_WORDS = {"controller_epoch": "controller epoch", "change": "change number", "incarnation": "registration"}


def encode_marks(marks: ClusterMarks) -> bytes:
    """The file :data:`MARKS_FILE`."""
    return json.dumps({"version": 1, **dict(zip(_NAMES, marks, strict=True))}, separators=(",", ":")).encode()


def decode_marks(data: bytes) -> ClusterMarks:
    """Read it; what is missing is its default. Raises ValueError."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    try:
        return ClusterMarks(*(int(document[name]) if name in document else default
                              for name, default in zip(_NAMES, ClusterMarks(), strict=True)))  # fmt: skip
    except TypeError as problem:
        raise ValueError(str(problem)) from problem


def newest(seen: Iterable[ClusterMarks]) -> ClusterMarks:
    """The highest of what was seen. Numbers of an older generation do not count, but for the producer id."""
    listed = list(seen) or [ClusterMarks()]
    generation = max(marks.generation for marks in listed)
    present = [marks for marks in listed if marks.generation == generation]
    producer_id = max(marks.producer_id for marks in listed)
    highest = ClusterMarks(*map(max, zip(*present, strict=True)))
    change_ms = max(marks.change_ms for marks in present if marks.change == highest.change)
    return highest._replace(producer_id=producer_id, change_ms=change_ms)


def lower(seen: ClusterMarks, found: ClusterMarks) -> str | None:
    """What of a tree with the numbers ``found`` is lower than was seen, as text; None if nothing is."""
    if found.generation != seen.generation:
        repaired = f"it is of generation {found.generation}, generation {seen.generation} was seen"
        return repaired if found.generation < seen.generation else None
    lower_ones = [
        f"{words} {getattr(found, name)}, {getattr(seen, name)} was seen"
        for name, words in _WORDS.items()
        if getattr(found, name) < getattr(seen, name)
    ]
    return "it has " + "; ".join(lower_ones) if lower_ones else None
