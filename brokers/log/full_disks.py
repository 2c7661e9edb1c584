"""Log directories without room: which appends they refused, and when they are worth another try. Pure.

A refusal (no space, a quota, no file descriptor) marks the log until its directory has room again: not only for the
next batch, or its replica would come and go with each of them, and not before a pause, which grows while the directory
keeps filling up. What the replicas on it do meanwhile is ``brokers.replication.full_disks``'s.
"""

from __future__ import annotations

from fleetlog.wire.types import TopicPartition

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1_000, 60_000
CALM_MS = 300_000
"""A directory that had room for so long begins with the first pause again."""


class Room:
    """What one log directory refused for want of room; empty where all is well."""

    __slots__ = ("_again_ms", "_calm_from_ms", "_pause_ms", "crowded")

    def __init__(self) -> None:
        self.crowded: dict[TopicPartition, None] = {}
        self._pause_ms = 0
        self._again_ms = 0
        self._calm_from_ms = 0

    def refused(self, tp: TopicPartition, now_ms: int) -> bool:
        """An append found no room; whether that is news of the directory."""
        news = not self.crowded
        if news:
            calm = now_ms >= self._calm_from_ms
            self._pause_ms = FIRST_PAUSE_MS if calm else min(2 * self._pause_ms, LONGEST_PAUSE_MS)
        self.crowded[tp] = None
        self._again_ms = now_ms + self._pause_ms
        return news

    def due(self, now_ms: int) -> bool:
        """Whether to look how much room there is."""
        return bool(self.crowded) and now_ms >= self._again_ms

    def returned(self, now_ms: int) -> list[TopicPartition]:
        """There is room: those that were refused, of which none is any more."""
        found = list(self.crowded)
        self.crowded.clear()
        self._calm_from_ms = now_ms + CALM_MS
        return found
