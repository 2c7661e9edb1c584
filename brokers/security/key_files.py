"""Files of keys and certificates: read whole, told apart by what ``stat`` says, and lent to the TLS library.

The TLS library takes a key by path only. It gets the path of an anonymous file in memory, so that what was checked is
what is loaded, and no key that stands in a setting reaches a disk.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The longest store that is read: an operating system's list of authorities has a twentieth of it."""


class FileStamp(NamedTuple):
    """What changes when a file is replaced or written; a file that is not there has none."""

    mtime_ns: int
    size: int
    inode: int


def file_stamp(path: str) -> FileStamp | None:
    """The stamp of what the path leads to, through links; None where nothing is there or it may not be looked at."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return FileStamp(found.st_mtime_ns, found.st_size, found.st_ino)


def is_world_readable(path: str) -> bool:
    """Whether each user of the machine may read the file; False where it is not there."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except (OSError, ValueError):
        return False


def read_store(path: str) -> bytes:
    """A file's bytes. Raises OSError, also for what is no regular file or longer than FILE_BYTES_MAX."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:
        raise OSError("the path contains a NUL") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is no regular file")
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise OSError(f"it has more than {FILE_BYTES_MAX} bytes")
    return data


@contextmanager
def in_memory_file(data: bytes) -> Iterator[str]:
    """A path under which the bytes can be read until the end of the block."""
    descriptor = os.memfd_create("fleetlog-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
