"""What loading one partition says in the broker's log."""

from __future__ import annotations

from dataclasses import dataclass, field

from wire.types import TopicPartition


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
