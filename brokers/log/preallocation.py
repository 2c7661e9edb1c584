"""Room for what a growing segment will hold next, so that appends don't wait for the file system's own write-back.

ext4 allocates blocks when it writes pages back, and holds a lock of the file meanwhile, often for tens of milliseconds
of waiting for its journal. A write to blocks that it does not know yet needs that lock; one to blocks that were
allocated before doesn't. The file's size stays what was written; what is left over goes with :meth:`RealFile.trim`.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

FROM = 4 * 1024 * 1024
"""Smaller files get nothing: most partitions are small, and there may be many."""
MOST = 32 * 1024 * 1024
_KEEP_SIZE = 1
_MOUNTS = Path("/proc/self/mountinfo")

_fallocate: Any = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
"""None where there is no such call; os.posix_fallocate would change the size."""
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Preallocation:
    """Knows on which devices it helps."""

    __slots__ = ("_helps",)

    def __init__(self) -> None:
        self._helps: dict[int, bool] = {}

    def extend(self, fd: int, end: int) -> int:
        """Allocate as much as the file holds, ``MOST`` bytes at most, behind ``end``; returns where to ask again.

        Only tried: whether there is room for a record is for its write to find out.
        """
        room = min(end, MOST)
        device = os.fstat(fd).st_dev
        helps = self._helps.get(device)
        if helps is None:
            helps = self._helps[device] = _fallocate is not None and file_system(device) == "ext4"
        if helps and _fallocate(fd, _KEEP_SIZE, end, room) != 0 and ctypes.get_errno() == errno.EOPNOTSUPP:
            self._helps[device] = False
        return end + room


def file_system(device: int) -> str | None:
    """The type of the file system on a device, if that is known."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, source = line.partition(" - ")
        if mount.split()[2:3] == [wanted]:
            return source.split()[0]
    return None
