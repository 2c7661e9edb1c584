"""The numbers of topics that drop duplicates, for the metrics page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from brokers.log.positions import PositionSets
from brokers.log.state import LogState

WatchFamily = Callable[[str, str, str, Callable[[], Mapping[str, float]]], None]


def watch_dedup(watch: WatchFamily, logs: Callable[[], Iterable[LogState]]) -> None:
    """Give ``watch`` the name, meaning, label and reader of each number; ``logs`` are this broker's replicas."""

    def rows(value: Callable[[PositionSets], float]) -> Callable[[], Mapping[str, float]]:
        return lambda: {
            str(log.topic_partition): value(log.producers.positions)
            for log in logs()
            if log.producers.positions is not None
        }

    families: list[tuple[str, str, Callable[[PositionSets], float]]] = [
        ("bytes", "Bytes that the accepted positions of a replica take.", lambda sets: sets.cost),
        ("sources", "Sources of which a replica knows positions.", lambda sets: len(sets.sources)),
        ("dropped_records", "Duplicates that this broker dropped as the leader.", lambda sets: sets.dropped),
        ("refused_batches", "Batches refused for want of room, or below what is known.", lambda sets: sets.refused),
    ]
    for name, meaning, value in families:
        watch(f"fleetlog_dedup_{name}", meaning, "partition", rows(value))
