"""What loading the logs says in the broker's log."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from fleetlog.brokers.log.disk.checkpoints import CleanStop
from fleetlog.wire.types import TopicPartition


@dataclass(slots=True)
class RecoveryReport:
    """What loading one partition found and did."""

    partition: TopicPartition
    clean: bool
    segments_scanned: int = 0
    bytes_scanned: int = 0
    truncated_bytes: int = 0
    truncated_at: int | None = None
    reason: str = ""
    segments_removed: int = 0
    indexes_rebuilt: int = 0
    swaps_completed: int = 0
    files_removed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def cut(self) -> bool:
        """Whether records, or what was left of them, were taken off the end."""
        return bool(self.truncated_bytes or self.segments_removed)

    @property
    def changed(self) -> bool:
        """Whether anything was repaired or cut."""
        return bool(
            self.truncated_bytes
            or self.segments_removed
            or self.indexes_rebuilt
            or self.swaps_completed
            or self.files_removed
            or self.notes
        )

    def line(self) -> str:
        """One line for the broker's log."""
        parts = [f"{self.partition}: "]
        if self.segments_scanned:
            parts.append(f"checked {self.bytes_scanned} bytes in {self.segments_scanned} segment(s)")
        if self.truncated_at is not None:
            parts.append(f"cut {self.truncated_bytes} bytes at offset {self.truncated_at} ({self.reason})")
        if self.segments_removed:
            parts.append(f"removed {self.segments_removed} segment(s) after the damage")
        if self.indexes_rebuilt:
            parts.append(f"rebuilt the indexes of {self.indexes_rebuilt} segment(s)")
        if self.swaps_completed:
            parts.append(f"finished {self.swaps_completed} compaction swap(s)")
        if self.files_removed:
            parts.append(f"removed {len(self.files_removed)} leftover file(s)")
        parts += self.notes
        return parts[0] + ("; ".join(parts[1:]) or "nothing to do")


@dataclass(slots=True)
class StoreReport:
    """What loading found: how many logs, and what had to be repaired."""

    logs: int = 0
    clean_directories: list[str] = field(default_factory=list)
    unclean_directories: list[str] = field(default_factory=list)
    offline_directories: list[str] = field(default_factory=list)
    recovered: list[RecoveryReport] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    """Second copies of a partition, as text."""
    lost: list[str] = field(default_factory=list)
    """Logs that lost records after a clean stop, as text."""
    stopped: dict[str, CleanStop | None] = field(default_factory=dict)
    """What each directory says of its clean stop; None where it was not closed in order, is new or offline."""

    def log(self, logger: logging.Logger) -> None:
        """What an operator should know is a warning."""
        for line in self.lines():
            logger.info("%s", line)
        for line in self.warnings():
            logger.warning("%s", line)

    def lines(self) -> list[str]:
        """The report for the broker's log, one line a finding."""
        lines = [f"{self.logs} log(s) in {len(self.clean_directories) + len(self.unclean_directories)} directory(ies)"]
        lines += [
            f"{path} was not closed in order: checked from its recovery points" for path in self.unclean_directories
        ]
        lines += [f"{path} is offline" for path in self.offline_directories]
        lines += [report.line() for report in self.recovered if report.changed and not report.cut]
        return lines + [f"{path}: leftover of a deletion, removed" for path in self.removed]

    def warnings(self) -> list[str]:
        """What an operator should know: logs that were cut or set aside, or that lost records; one line a finding."""
        return [report.line() for report in self.recovered if report.cut] + self.set_aside + self.lost
