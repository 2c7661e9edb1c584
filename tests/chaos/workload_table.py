"""A compacted topic: updates and deletions of few keys by an idempotent producer, several in flight."""

from __future__ import annotations

from tests.chaos.recorder import NAME_HEADER, Recorder, RoleControl, pack
from tests.chaos.workload_produce import Drawn, several_in_flight

KEYS = 20
DELETIONS = 0.15
SETTINGS = {
    "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.05", "segment.bytes": "30000"
}  # fmt: skip
"""Deletions stay for ``delete.retention.ms``, a day: every reader of a run must be shown them."""


def table(recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, rate: float) -> None:
    """The name of each value ends with its record's key: ``PROC.N@KEY``. A deletion has its name in a header."""

    def draw(value: str) -> Drawn:
        number = control.rng.randrange(KEYS)
        key = f"k{number}"
        named = f"{value}@{key}"
        payload = None if control.rng.random() < DELETIONS else pack(named)
        return Drawn(number % partitions, named, payload, {"key": key, "headers": [(NAME_HEADER, named.encode())]})

    several_in_flight(recorder, control, bootstrap, topic, rate, draw)
