"""The cleaner's numbers for the metrics page."""

from __future__ import annotations

from collections.abc import Callable

from fleetlog.brokers.log.cleaner import Cleaner

Watch = Callable[[str, str, Callable[[], float]], None]


def watch_cleaner(watch: Watch, cleaner: Cleaner) -> None:
    """Give ``watch`` the name, meaning and reader of each number. Times are in seconds."""
    figures = cleaner.figures
    rows: list[tuple[str, str, Callable[[], float]]] = [
        (
            "uncleanable_partitions", "Partitions with a damaged batch, which are not compacted until the next start.",
            lambda: len(cleaner.uncleanable),
        ),
        ("max_dirty_ratio", "Largest dirty share of a compacted log, when the cleaner looked last.",
         lambda: figures.max_dirty_ratio),
        ("max_compaction_delay_seconds", "By how much max.compaction.lag.ms is passed, at most.",
         lambda: figures.max_overdue_ms / 1000),
        ("uncleanable_bytes", "Bytes of the logs with a damaged batch.", lambda: cleaner.uncleanable_bytes),
        ("time_since_last_run_seconds", "Time since a pass ended; -1 before the first.",
         lambda: (figures.looked_ms - figures.last_end_ms) / 1000 if figures.passes else -1),
        ("max_buffer_utilization_percent", "How full the map of keys was in the last pass, of what it may take.",
         lambda: figures.last_map_percent),
        ("passes", "Passes of compaction since the start.", lambda: figures.passes),
        ("last_pass_seconds", "Time that the last pass took.", lambda: figures.last_pass_ms / 1000),
        ("last_pass_keys", "Keys in the map of the last pass.", lambda: figures.last_pass_keys),
        ("bytes_before", "Bytes of logs before the passes since the start.", lambda: figures.bytes_before),
        ("bytes_after", "Bytes that these passes left.", lambda: figures.bytes_after),
    ]  # fmt: skip
    for name, meaning, read in rows:
        watch(f"fleetlog_cleaner_{name}", meaning, read)
