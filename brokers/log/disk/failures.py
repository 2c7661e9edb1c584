"""How the world fails a log. A client's mistakes are error codes in an ``AppendInfo``, never one of these."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from fleetlog._native.files import SliceGone
from fleetlog.wire.errors import ErrorCode

__all__ = [
    "DirectoryInUse",
    "DiskError",
    "DiskFailed",
    "DiskFull",
    "ForeignDirectory",
    "LogOffline",
    "OffsetOutOfRange",
    "SliceGone",
    "StoreRefused",
    "disk_error",
]

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class DiskError(OSError):
    """A disk operation failed. ``path`` is the file, ``reason`` what the system said."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class DiskFull(DiskError):
    """No room now (space, quota or file descriptors); the same operation may succeed later."""


class DiskFailed(DiskError):
    """The device or file system failed. Nothing is retried: after a failed fsync the cache lies about the disk."""


def disk_error(path: str, wrong: OSError) -> DiskError:
    """What the system reported, as one of the two."""
    kind = DiskFull if wrong.errno in _NO_ROOM else DiskFailed
    return kind(path, wrong.strerror or str(wrong))


@contextmanager
def no_way_back(path: str, what: str) -> Iterator[None]:
    """Steps behind which files and memory would differ: without room for one the directory has failed."""
    try:
        yield
    except DiskFull as wrong:
        raise DiskFailed(path, f"{what}: {wrong.reason}") from wrong


class LogOffline(Exception):
    """The log's directory has failed; the partition answers KAFKA_STORAGE_ERROR until the broker is restarted."""

    error = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, path: str, reason: str = "") -> None:
        super().__init__(f"log directory of {path} is offline" + (f": {reason}" if reason else ""))
        self.path = path


class OffsetOutOfRange(Exception):
    """The offset lies outside what the log holds. ``low`` and ``high`` are its start and end offsets."""

    error = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, offset: int, low: int, high: int) -> None:
        super().__init__(f"offset {offset} is outside [{low}, {high}]")
        self.offset = offset
        self.low = low
        self.high = high


class StoreRefused(Exception):
    """The log directories can't be used as they are; the text says why and what to do."""


class DirectoryInUse(StoreRefused):
    """Another process holds the log directory's lock."""


class ForeignDirectory(StoreRefused):
    """The log directory belongs to another broker or another cluster; it is left untouched."""
