"""What a clean stop promises: each log ends where the stop saved its end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fleetlog.wire.types import TopicPartition

NAMED_MAX = 5


class EndedLog(Protocol):
    """A log, as far as what a clean stop left of it is concerned."""

    @property
    def lacks_positions(self) -> bool:
        """Whether it does not know what was accepted before its first record."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The offset behind the last record."""
        ...


def lost_since_stop(ends: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, EndedLog]) -> list[str]:
    """One text for each log that is gone, shorter or knows less than at the clean stop, which saved these ends."""
    lost = []
    for tp, end in ends.items():
        log = logs.get(tp)
        if log is None and end:
            lost.append(f"{tp}: its directory is gone; it ended at offset {end} at the clean stop")
        elif log is not None and log.log_end_offset < end:
            lost.append(f"{tp}: ends at {log.log_end_offset}; it ended at offset {end} at the clean stop")
        elif log is not None and log.lacks_positions:
            lost.append(f"{tp}: no sound producer snapshot tells what was accepted before its first record")
    return lost


def loss_message(directory: str, lost: Sequence[str]) -> str:
    """The message for the broker's log."""
    named = "; ".join(lost[:NAMED_MAX]) + ("; ..." if len(lost) > NAMED_MAX else "")
    return (
        f"log directory {directory} lost records since its clean stop, in {len(lost)} partition(s): {named}. This"
        " broker leads no partition that another in-sync replica can lead, and fetches the missing records"
    )
