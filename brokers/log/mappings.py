"""Windows of log files in the address space, from which fetches are sent.

A window is mapped when a slice in it is sent for the first time. It is unmapped when it was not used for a while, when
too many others are in use, or with its file. It may reach beyond the end of a file that grows. Only the kernel
looks into it. Their pages count as the process's RssFile: they are the page cache's, which lends them.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from fleetlog._native.io import Mapping

WINDOW = 4 * 1024 * 1024
STRIDE = WINDOW // 2
"""Windows overlap, so that any slice up to this size lies in one."""
MAX_WINDOWS = 256

F = TypeVar("F")


class Mappings(Generic[F]):
    """The windows of all files ``F`` of a disk."""

    __slots__ = ("_limit", "_of", "_older", "_recent")

    def __init__(self, limit: int = MAX_WINDOWS) -> None:
        self._limit = limit
        self._recent: dict[tuple[F, int], Mapping] = {}
        self._older: dict[tuple[F, int], Mapping] = {}
        self._of: dict[F, list[int]] = {}

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def window(self, file: F, fd: int, position: int) -> Mapping | None:
        """The window that holds ``position`` and at least ``STRIDE`` bytes from there; None if it cannot be mapped."""
        key = (file, position // STRIDE)
        found = self._recent.get(key)
        if found is None:
            found = self._older.pop(key, None) or self._map(key, fd)
            if found is not None:
                self._recent[key] = found
        return found

    def _map(self, key: tuple[F, int], fd: int) -> Mapping | None:
        while len(self) >= self._limit:
            self._unmap(self._older or self._recent)
        file, number = key
        try:
            found = Mapping(fd, number * STRIDE, WINDOW)
        except OSError:
            return None
        self._of.setdefault(file, []).append(number)
        return found

    def _unmap(self, windows: dict[tuple[F, int], Mapping]) -> None:
        file, number = key = next(iter(windows))
        windows.pop(key).close()
        numbers = self._of[file]
        numbers.remove(number)
        if not numbers:
            del self._of[file]

    def forget(self, file: F) -> None:
        """The file is closed."""
        for number in self._of.pop(file, ()):
            key = (file, number)
            (self._recent.pop(key, None) or self._older.pop(key)).close()

    def relax(self) -> None:
        """Unmap what was not used since the last call."""
        while self._older:
            self._unmap(self._older)
        self._older, self._recent = self._recent, {}
