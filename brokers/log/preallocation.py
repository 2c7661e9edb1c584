"""Room for what a growing segment will hold next, so that appends don't wait for the file system's own write-back.

ext4 allocates blocks when it writes pages back, and holds a lock of the file meanwhile, often for tens of milliseconds
of waiting for its journal. A write to blocks that it does not know yet needs that lock; one to blocks that were
allocated before doesn't. The file's size stays what was written; what is left over goes with :meth:`RealFile.trim`,
when a segment is closed and when nothing was appended for a while.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

FROM = 4 * 1024 * 1024
"""Smaller files get nothing: most partitions are small, and there may be many."""
MOST = 32 * 1024 * 1024
_KEPT_FREE = 64
"""So many times the room must be free, and a twentieth of the volume: a disk that fills up keeps what it has."""
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

    def extend(self, fd: int, end: int, room: int) -> bool:
        """Allocate ``room`` bytes behind ``end``, the file's size; returns whether there are some now.

        Only tried, and only where a disk has plenty: whether there is room for a record is for its write to find out.
        Never raises.
        """
        try:
            device = os.fstat(fd).st_dev
            helps = self._helps.get(device)
            if helps is None:
                helps = self._helps[device] = _fallocate is not None and file_system(device) == "ext4"
            if not helps:
                return False
            volume = os.fstatvfs(fd)
            if volume.f_bavail * volume.f_frsize < max(_KEPT_FREE * room, volume.f_blocks * volume.f_frsize // 20):
                return False
            if _fallocate(fd, _KEEP_SIZE, end, room) == 0:
                return True
            if ctypes.get_errno() == errno.EOPNOTSUPP:
                self._helps[device] = False
            else:
                os.ftruncate(fd, end)  # it keeps what it got before the room ended
        except OSError as wrong:
            logger.warning("nothing is allocated ahead: %s", wrong)
        return False


def file_system(device: int) -> str | None:
    """The type of the file system on a device, if that is known."""
    wanted = f"{os.major(device)}:{os.minor(device)}".encode()
    try:
        lines = _MOUNTS.read_bytes().splitlines()  # the names of mount points are in any encoding
    except OSError:
        return None
    for line in lines:
        mount, _, source = line.partition(b" - ")
        if mount.split()[2:3] == [wanted]:
            return source.split()[0].decode("ascii", "replace")
    return None
