"""The entries of ``log.dirs``."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from brokers.log.background import PendingSync
    from brokers.log.checkpointing import BackgroundCheckpoint
    from brokers.log.files import DiskLock
    from brokers.log.log import Log


class LogDirectory:
    """One entry of ``log.dirs``."""

    __slots__ = ("checkpoint", "doomed", "id", "intact_since", "lock", "logs", "offline", "path", "syncs")

    def __init__(self, path: str) -> None:
        self.path = path
        self.offline = False
        self.lock: DiskLock | None = None
        self.id: uuid.UUID | None = None
        self.intact_since = -1
        self.logs = 0
        """How many logs it holds."""
        self.checkpoint: BackgroundCheckpoint | None = None
        """The one under way."""
        self.syncs: list[PendingSync] = []
        """Of the directory itself, after renames that nobody waits for."""
        self.doomed: list[tuple[int, str]] = []
        """Renamed partition directories and the time at which they go."""


class DirectoryUsage(NamedTuple):
    """What one log directory holds. The bytes are those of its volume; -1 where they can't be told."""

    path: str
    offline: bool
    total_bytes: int
    usable_bytes: int
    logs: list[Log]
