"""The entries of ``log.dirs``."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from brokers.log.full_disks import Room

if TYPE_CHECKING:
    from brokers.log.background import PendingSync
    from brokers.log.background_checkpoint import BackgroundCheckpoint
    from brokers.log.checkpoints import CleanStop
    from brokers.log.files import DiskLock
    from brokers.log.log import Log


class LogDirectory:
    """One entry of ``log.dirs``."""

    __slots__ = ("checkpoint", "doomed", "id", "lock", "logs", "offline", "path", "room", "stopped", "syncs")

    def __init__(self, path: str) -> None:
        self.path = path
        self.offline = False
        self.room = Room()
        self.lock: DiskLock | None = None
        self.id: uuid.UUID | None = None
        self.stopped: CleanStop | None = None
        """What it said of its last clean stop when it was opened."""
        self.logs = 0
        """How many logs it holds."""
        self.checkpoint: BackgroundCheckpoint | None = None
        """The one under way."""
        self.syncs: list[PendingSync] = []
        """Of the directory itself, after renames that nothing waits for."""
        self.doomed: list[tuple[int, str]] = []
        """Renamed partition directories and the time at which they go."""


class DirectoryUsage(NamedTuple):
    """What one log directory holds. The bytes are those of its volume; -1 where they are unknown.

    None is usable while it refuses appends, whatever the volume says: a quota, or a want of descriptors, isn't seen
    there.
    """

    path: str
    offline: bool
    total_bytes: int
    usable_bytes: int
    logs: list[Log]
