"""The disk port and its real implementation, behind which the log talks to the operating system.

Files open on first use and at most ``max_open`` stay open (10,000 partitions have 30,000 files), so a ``DiskFile`` is a
name that can produce a descriptor, not a descriptor. A :class:`FileSlice` pins the descriptor: it outlives eviction,
renaming and deletion of the file it points into.

What the system reports becomes DiskFull (no room now, may pass) or DiskFailed (the device; never retried).

Fetches are sent from windows of log files in the address space. A window is mapped when a slice in it is sent for the
first time. It is unmapped when it was not used for a while, when too many others are in use, or with its file. It may
reach beyond the end of a file that grows. Only the kernel looks into it. Their pages count as the process's RssFile:
they are the page cache's, which lends them.

A growing segment has room for what it will hold next, so that appends don't wait for the file system's own write-back.
ext4 allocates blocks when it writes pages back, and holds a lock of the file meanwhile, often for tens of milliseconds
of waiting for its journal. A write to blocks that it does not know yet needs that lock; one to blocks that were
allocated before doesn't. The file's size stays what was written; what is left over goes with :meth:`RealFile.trim`,
when a segment is closed and when nothing was appended for a while.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import resource
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from fleetlog._native.files import OpenFile
from fleetlog._native.io import Mapping
from fleetlog.brokers.log.disk.background import (
    LARGE,
    PendingSync,
    PendingWork,
    Removals,
    Worker,
    remove_file,
    remove_tree,
)
from fleetlog.brokers.log.disk.failures import DirectoryInUse, DiskError, DiskFailed, DiskFull, disk_error
from fleetlog.brokers.log.disk.sync_times import sync_once, timed_fsync

logger = logging.getLogger(__name__)


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
        mapping = self._recent.get(key)
        if mapping is None:
            mapping = self._older.pop(key, None) or self._map(key, fd)
            if mapping is not None:
                self._recent[key] = mapping
        return mapping

    def _map(self, key: tuple[F, int], fd: int) -> Mapping | None:
        while len(self) >= self._limit:
            self._unmap(self._older or self._recent)
        file, number = key
        try:
            mapping = Mapping(fd, number * STRIDE, WINDOW)
        except OSError:
            return None
        self._of.setdefault(file, []).append(number)
        return mapping

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


PREALLOCATED_FROM = 4 * 1024 * 1024
"""Smaller files get nothing: most partitions are small, and there may be many."""
PREALLOCATED_MAX = 32 * 1024 * 1024
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


Buffer = bytes | bytearray | memoryview

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LIBC = ctypes.CDLL(None, use_errno=True)
_MIN_OPEN_FILES = 64
_BLOCK = 512  # of st_blocks, whatever the file system's are
_ROUNDED = 64 * 1024  # more than a file's blocks are above its size without any allocated ahead
_NEVER = 1 << 62
_MAX_PIECES = 1024  # IOV_MAX
_MAX_OPEN_FILES = 8192
_CLEANER_NICENESS = 10  # the loop, where it wakes up on the cleaner's core, runs at once; yet the cleaner never starves


class DiskFile(Protocol):
    """One file of a log directory. Sizes and positions are in bytes; every method may raise DiskFull or DiskFailed."""

    path: str
    size: int
    """The end of the file as this object knows it; ``write`` and ``truncate`` keep it true."""

    def write(self, data: Buffer, position: int) -> None:
        """Write all of ``data`` at ``position``. A short write raises DiskFull; what it left behind is for recovery."""

    def write_run(self, pieces: Sequence[Buffer], position: int) -> None:
        """As :meth:`write`, for pieces that follow on each other in the file."""

    def read(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``position``; fewer only at the end of the file."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""

    def expect_growth(self) -> None:
        """The file will be appended to until it is large: room may be allocated ahead."""

    def trim(self) -> None:
        """Give back what was allocated behind the end. It is fine to write on."""

    def sync(self) -> None:
        """fsync, data and size."""

    def fileno(self) -> int:
        """The open descriptor. Valid until the next call into the disk, or while a FileSlice pins the file."""

    def window(self, position: int) -> Mapping | None:
        """A mapping that holds ``position``, to be sent from at once; None if there is none."""

    def retain(self) -> None:
        """Pin the descriptor."""

    def release(self) -> None:
        """Undo one ``retain``."""

    def rename(self, path: str) -> None:
        """Move the file to another name in place."""

    def remove(self, *, later: bool = False) -> None:
        """Delete the file's name, with ``later`` in the background; pinned readers continue."""

    def close(self) -> None:
        """Give the descriptor back once nothing pins it; a later use opens the file again."""


class DiskPort(Protocol):
    """What the log asks of a disk. All paths are absolute or relative to the process."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """The file of that name, made if absent with ``create``. Raises DiskFailed if it must exist and doesn't."""

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted; empty if it doesn't exist."""

    def is_directory(self, path: str) -> bool:
        """Whether the path names a directory."""

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents; existing ones are fine."""

    def read(self, path: str) -> bytes | None:
        """A small file's whole content, None if there is none."""

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a whole small file atomically: ``.tmp``, fsync, rename, fsync of the directory.

        Without ``durable`` there is no fsync: for files with a checksum or that recovery can make anew.
        """

    def size(self, path: str) -> int | None:
        """The file's size in bytes, None if there is none."""

    def modified_ms(self, path: str) -> int:
        """The file's modification time in ms since the epoch; 0 if there is none."""

    def space(self, path: str) -> tuple[int, int]:
        """Bytes of the volume that holds the path: all of them, and those still free for us."""

    def rename(self, path: str, to: str) -> None:
        """Rename a file or directory, replacing a file of the new name."""

    def remove(self, path: str, *, later: bool = False) -> None:
        """Delete a file; one that is absent is fine. With ``later`` in the background: what fails is logged."""

    def remove_tree(self, path: str, *, later: bool = False) -> None:
        """Delete a directory with all that is in it, with ``later`` as :meth:`remove`."""

    def relax(self) -> None:
        """Give back what was not used since the last call. Call about every half minute."""

    def sync_directory(self, path: str) -> None:
        """fsync a directory, so that renames and new names in it survive power loss."""

    def sync_later(self, paths: list[str]) -> PendingSync:
        """fsync these files and directories in the background; names that are gone by then don't count."""

    def sync_file_system(self, path: str) -> None:
        """Make durable whatever was written to the file system that holds ``path``."""

    def work_later(self, work: Callable[[], object]) -> PendingWork:
        """Call ``work`` in the background, one such after the other. It uses no file and no disk of the caller's."""

    def for_work(self) -> DiskPort:
        """The same disk for ``work_later``'s thread: it shares no descriptor and no memory with this one."""

    def lock(self, path: str) -> DiskLock:
        """Take the exclusive lock of that file; raises DirectoryInUse."""


class DiskLock(Protocol):
    """A held lock."""

    def close(self) -> None:
        """Give it up."""


class _Translate:
    """Context manager that turns OSError into the log's own exceptions."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(wrong, OSError) and not isinstance(wrong, DiskError):
            raise disk_error(self.path, wrong) from wrong


class RealFile(OpenFile):
    """A DiskFile on the real file system."""

    __slots__ = ("_ahead", "_disk", "_spare", "path", "size")

    def __init__(self, disk: RealDisk, path: str, size: int, allocated: int) -> None:
        super().__init__()
        self.path = path
        self.size = size
        self._ahead = _NEVER
        """The end at which more is to be allocated."""
        self._spare = allocated > size + _ROUNDED
        """Whether there may be blocks behind the end."""
        self._disk = disk

    def opened(self) -> int:
        if self.removed:
            raise DiskFailed(self.path, "was removed")
        return self._disk.open_descriptor(self)

    def failure(self, wrong: OSError) -> DiskError:
        return disk_error(self.path, wrong)

    def write(self, data: Buffer, position: int) -> None:
        RealFile.write_run(self, (data,), position)

    def write_run(self, pieces: Sequence[Buffer], position: int) -> None:
        if len(pieces) > _MAX_PIECES:
            pieces = (b"".join(pieces),)
        self.recently_used = True
        fd = self.fd
        if fd < 0:
            fd = self.fileno()
        try:
            written = os.pwritev(fd, pieces, position)
        except OSError as wrong:
            raise disk_error(self.path, wrong) from wrong
        end, size = position + written, sum(map(len, pieces))
        if end > self.size:
            self.size = end
            if end > self._ahead:
                room = min(end, PREALLOCATED_MAX)
                self._ahead = end + room
                self._spare = self._disk.preallocation.extend(self.fd, end, room)
        if written != size:
            raise DiskFull(self.path, f"short write: {written} of {size} bytes")

    def truncate(self, size: int) -> None:
        with _Translate(self.path):
            os.ftruncate(self.fileno(), size)
        self.size = size
        self._spare = False
        if self._ahead != _NEVER:
            self.expect_growth()

    def expect_growth(self) -> None:
        self._ahead = PREALLOCATED_FROM

    def trim(self) -> None:
        if self._spare:
            self.truncate(self.size)  # as large as before, and without what lies behind it

    def sync(self) -> None:
        with _Translate(self.path):
            sync_once(self.fileno(), self.path)

    def window(self, position: int) -> Mapping | None:
        mappings = self._disk.mappings
        return None if mappings is None else mappings.window(self, self.fileno(), position)

    def rename(self, path: str) -> None:
        with _Translate(self.path):
            os.rename(self.path, path)
        self.path = path

    def remove(self, *, later: bool = False) -> None:
        disk = self._disk
        held = disk.removals.hold(self.path) if not later and self.fd < 0 and self.size >= LARGE else -1
        try:
            disk.remove(self.path, later=later)
        finally:
            disk.removals.close(held)
        self.removed = True
        self.close()

    def close(self) -> None:
        if self.fd >= 0 and self.pins == 0:
            fd, self.fd = self.fd, -1
            self._disk.closed(self)
            if self.removed and self.size >= LARGE:
                self._disk.removals.close(fd)
            else:
                os.close(fd)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, size={self.size})"


class RealLock:
    """A POSIX record lock, the kind that Kafka's JVM takes, so neither runs on the other's directory."""

    def __init__(self, path: str) -> None:
        with _Translate(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as wrong:
            os.close(self._fd)
            raise DirectoryInUse(f"{path} is locked: another broker process uses this log directory") from wrong

    def close(self) -> None:
        """Give the lock up."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealDisk:
    """The DiskPort of the operating system. ``max_open`` bounds the descriptors it keeps (default: half the limit).

    Slices of medium size are sent from mappings of their files, or by sendfile like the large ones if not ``mapped``.
    """

    file_class: type[RealFile] = RealFile

    def __init__(self, max_open: int | None = None, *, mapped: bool = True) -> None:
        if max_open is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            max_open = min(_MAX_OPEN_FILES, max(_MIN_OPEN_FILES, soft // 2))
        self._max_open = max_open
        self.opened: deque[RealFile] = deque()
        self.mappings: Mappings[RealFile] | None = Mappings() if mapped else None
        self.removals = Removals(max_open // 4)
        self.preallocation = Preallocation()
        self._syncs = Worker("log sync")
        self._works = Worker("log cleaner", _CLEANER_NICENESS)

    def open_descriptor(self, file: RealFile) -> int:
        """Open a file's descriptor, closing others that were not used lately if there are too many."""
        while len(self.opened) >= self._max_open and self._evict():
            pass
        with _Translate(file.path):
            fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
        self.opened.append(file)
        return fd

    def closed(self, file: RealFile) -> None:
        """A file gave its descriptor back."""
        self.opened.remove(file)
        if self.mappings is not None:
            self.mappings.forget(file)

    def relax(self) -> None:
        if self.mappings is not None:
            self.mappings.relax()

    def _evict(self) -> bool:
        # Second chance: files used since the last round stay; two rounds at most, pinned ones always stay.
        for _ in range(2 * len(self.opened)):
            candidate = self.opened[0]
            if candidate.pinned or candidate.recently_used:
                candidate.recently_used = False
                self.opened.rotate(-1)
                continue
            candidate.close()
            return True
        return False

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        with _Translate(path):
            if create:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
            status = os.stat(path)
            return self.file_class(self, path, status.st_size, status.st_blocks * _BLOCK)

    def names(self, path: str) -> list[str]:
        with _Translate(path):
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: str) -> None:
        with _Translate(path):
            os.makedirs(path, exist_ok=True)

    def read(self, path: str) -> bytes | None:
        with _Translate(path):
            try:
                with open(path, "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        temporary = path + ".tmp"
        with _Translate(path):
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                if os.write(fd, data) != len(data):
                    raise DiskFull(temporary, "short write")
                if durable:
                    timed_fsync(fd)
            except OSError:
                remove_file(temporary)  # it takes what room there is
                raise
            finally:
                os.close(fd)
            os.replace(temporary, path)
        if durable:
            self.sync_directory(os.path.dirname(path) or ".")

    def size(self, path: str) -> int | None:
        with _Translate(path):
            try:
                return os.stat(path).st_size
            except FileNotFoundError:
                return None

    def modified_ms(self, path: str) -> int:
        with _Translate(path):
            try:
                return os.stat(path).st_mtime_ns // 1_000_000
            except FileNotFoundError:
                return 0

    def space(self, path: str) -> tuple[int, int]:
        with _Translate(path):
            volume = os.statvfs(path)
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize

    def rename(self, path: str, to: str) -> None:
        with _Translate(path):
            os.replace(path, to)

    def remove(self, path: str, *, later: bool = False) -> None:
        self._remove(remove_file, path, later)

    def remove_tree(self, path: str, *, later: bool = False) -> None:
        self._remove(remove_tree, path, later)

    def _remove(self, how: Callable[[str], None], path: str, later: bool) -> None:
        if later:
            self.removals.later(how, path)
            return
        with _Translate(path):
            how(path)

    def sync_directory(self, path: str) -> None:
        with _Translate(path):
            fd = os.open(path, _DIRECTORY_FLAGS)
            try:
                sync_once(fd, path)
            finally:
                os.close(fd)

    def sync_later(self, paths: list[str]) -> PendingSync:
        pending = PendingSync(paths)
        self._syncs.do(pending.run)
        return pending

    def work_later(self, work: Callable[[], object]) -> PendingWork:
        pending = PendingWork(work)
        self._works.do(pending.run)
        return pending

    def for_work(self) -> DiskPort:
        return RealDisk(_MIN_OPEN_FILES, mapped=False)

    def sync_file_system(self, path: str) -> None:
        with _Translate(path):
            fd = os.open(path, _DIRECTORY_FLAGS)
            try:
                # One call instead of several fsyncs for each of thousands of partitions; not in Python's os module.
                if _LIBC.syncfs(fd) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number), path)
            finally:
                os.close(fd)

    def lock(self, path: str) -> DiskLock:
        return RealLock(path)


def read_if_cached(fd: int, length: int, position: int) -> bytearray | None:
    """All these bytes of a file; None if the disk must be waited for, or may have to."""
    data = bytearray(length)
    try:
        count = os.preadv(fd, [data], position, os.RWF_NOWAIT)
    except OSError:
        return None
    return data if count == length else None


def read_in(fd: int, length: int, position: int) -> None:
    """Bring them into memory, in a thread that may wait. Raises OSError."""
    os.pread(fd, length, position)
