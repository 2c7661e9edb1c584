"""One directory's checkpoint files, replaced without waiting for the disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetlog.brokers.log.disk.files import DiskPort


class BackgroundCheckpoint:
    """Files of one directory that are about to be replaced: written now, fsynced on the disk's thread, then renamed.

    The names change on the caller's thread, in :meth:`step` alone. So a caller that must replace one of them at once
    drops this object first, and nothing older can come after what it writes.
    """

    __slots__ = ("_disk", "_names", "_path", "_pending")

    def __init__(self, disk: DiskPort, path: str, files: Mapping[str, bytes]) -> None:
        """Write ``files`` (name -> content) of the directory ``path`` beside the old ones. Raises DiskError."""
        self._disk = disk
        self._path = path
        self._names = list(files)
        for name, data in files.items():
            file = disk.open(self._temporary(name), create=True)
            try:
                file.truncate(0)
                file.write(data, 0)
            finally:
                file.close()
        self._pending = disk.sync_later([self._temporary(name) for name in files])

    def _temporary(self, name: str) -> str:
        return f"{self._path}/{name}.tmp"

    def leave_out(self, name: str) -> None:
        """Something newer has replaced that file."""
        self._names = [known for known in self._names if known != name]

    def step(self) -> bool:
        """Continue if the disk is through with what was asked of it; whether all is durable now. Raises DiskError."""
        if not self._pending.done:
            return False
        if self._pending.error is not None:
            raise self._pending.error
        if not self._names:
            return True
        for name in self._names:
            self._disk.rename(self._temporary(name), f"{self._path}/{name}")
        self._names = []
        self._pending = self._disk.sync_later([self._path])
        return False
