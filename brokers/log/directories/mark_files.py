"""A small file in each log directory, the same in all of them: it outlives the loss of all but one."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fleetlog.brokers.log.directories.directories import PARTITION_DIRECTORY, LogDirectory
from fleetlog.brokers.log.disk.background_checkpoint import BackgroundCheckpoint
from fleetlog.brokers.log.disk.failures import DiskError
from fleetlog.brokers.log.disk.files import DiskPort

logger = logging.getLogger(__name__)


class MarkFiles:
    """The file of that name in the directories. Loop thread only."""

    def __init__(self, disk: DiskPort, directories: Sequence[LogDirectory], name: str) -> None:
        self._disk = disk
        self._directories = directories
        self._name = name
        self._saved: bytes | None = None
        self._under_way: dict[str, BackgroundCheckpoint] = {}

    def read(self) -> dict[str, bytes]:
        """What the files hold, by their paths."""
        contents = {}
        for directory in self._online():
            path = f"{directory.path}/{self._name}"
            try:
                data = self._disk.read(path)
            except DiskError as wrong:
                logger.warning("%s cannot be read: %s", path, wrong)
                continue
            if data is not None:
                contents[path] = data
        return contents

    def save(self, data: bytes) -> None:
        """Write it, if it is news, without waiting for a disk. Call now and then: it also ends what is under way."""
        if self._under_way:
            for path in list(self._under_way):
                self._step(path)
            return
        if data == self._saved:
            return
        self._saved = data
        for directory in self._online():
            try:
                self._under_way[directory.path] = BackgroundCheckpoint(self._disk, directory.path, {self._name: data})
            except DiskError as wrong:
                self._failed(directory.path, wrong)

    def save_now(self, data: bytes) -> None:
        """Write it, and be done with it when this returns."""
        self._under_way.clear()
        self._saved = data
        for directory in self._online():
            try:
                self._disk.replace(f"{directory.path}/{self._name}", data)
            except DiskError as wrong:
                self._failed(directory.path, wrong)

    def _step(self, path: str) -> None:
        try:
            if self._under_way[path].step():
                del self._under_way[path]
        except DiskError as wrong:
            del self._under_way[path]
            self._failed(path, wrong)

    def _failed(self, path: str, wrong: DiskError) -> None:
        self._saved = None  # another try
        logger.warning("%s/%s is not saved: %s", path, self._name, wrong)

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if not directory.offline]


def hold_partitions(disk: DiskPort, path: str) -> bool:
    """Whether a directory holds the log of a partition."""
    return any(PARTITION_DIRECTORY.fullmatch(name) for name in disk.names(path))
