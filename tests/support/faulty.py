"""The disk port's faulty twin: a real disk that fails where it is told to."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from fleetlog.brokers.log.disk.background import PendingSync, PendingWork
from fleetlog.brokers.log.disk.failures import DiskError, disk_error
from fleetlog.brokers.log.disk.files import RealDisk, RealFile


@dataclass
class Fault:
    """Fail the operation ``op`` on paths containing ``path``, after ``skip`` successes, ``times`` times (-1: always).

    ``written`` bytes reach the file first when the operation is a write; with ``error`` 0 it is a short write.
    """

    op: str
    path: str = ""
    error: int = errno.ENOSPC
    skip: int = 0
    times: int = -1
    written: int = 0


class FaultyFile(RealFile):
    __slots__ = ()

    def write(self, data, position):
        fault = self._disk.fault("write", self.path)
        if fault is None:
            super().write(data, position)
            return
        if fault.written:
            part = bytes(data)[: fault.written]
            os.pwrite(self.fileno(), part, position)
            self.size = max(self.size, position + len(part))
        error = fault.error or errno.ENOSPC
        raise disk_error(self.path, OSError(error, os.strerror(error)))

    def write_run(self, pieces, position):
        self.write(b"".join(pieces), position)

    def read(self, position, length):
        self._disk.check("read", self.path)
        return super().read(position, length)

    def truncate(self, size):
        self._disk.check("truncate", self.path)
        super().truncate(size)

    def sync(self):
        self._disk.check("sync", self.path)
        super().sync()


class Killed(BaseException):
    """The process ends here."""


class FaultyDisk(RealDisk):
    """``faults`` may be changed at any time; ``calls`` lists (operation, path)."""

    file_class = FaultyFile

    def __init__(self, *faults: Fault, max_open: int | None = None) -> None:
        super().__init__(max_open)
        self.faults = list(faults)
        self.calls: list[tuple[str, str]] = []

    def fault(self, op: str, path: str) -> Fault | None:
        self.calls.append((op, path))
        for fault in self.faults:
            if fault.op == op and fault.path in path and fault.times != 0:
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def check(self, op: str, path: str) -> None:
        fault = self.fault(op, path)
        if fault is not None:
            raise disk_error(path, OSError(fault.error, os.strerror(fault.error)))

    def open(self, path, *, create=False):
        self.check("create" if create else "open", path)
        return super().open(path, create=create)

    def replace(self, path, data, *, durable=True):
        self.check("replace", path)
        super().replace(path, data, durable=durable)

    def rename(self, path, to):
        self.check("rename", path)
        super().rename(path, to)

    def remove(self, path, *, later=False):
        if not later:
            self.check("remove", path)
        super().remove(path, later=later)

    def sync_later(self, paths):
        pending = PendingSync(paths)
        try:
            self.check("sync_later", paths[0])
            pending.run()
        except DiskError as wrong:
            pending.error = wrong
            pending.done = True
        return pending

    def work_later(self, work):
        pending = PendingWork(work)
        pending.run()
        return pending

    def for_work(self):
        return self

    def sync_directory(self, path):
        self.check("sync_directory", path)
        super().sync_directory(path)


class DyingDisk(FaultyDisk):
    """Lets ``left`` more operations pass, then raises Killed; None: all of them."""

    left: int | None = None

    def fault(self, op: str, path: str) -> Fault | None:
        if self.left is not None:
            if not self.left:
                raise Killed
            self.left -= 1
        return super().fault(op, path)


class CrampedDisk(RealDisk):
    """The next operation but ``left`` that needs a descriptor finds none; None: all find one."""

    left: int | None = None

    def _take(self, path: str) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise disk_error(path, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))

    def open_descriptor(self, file):
        self._take(file.path)
        return super().open_descriptor(file)

    def open(self, path, *, create=False):
        if create:
            self._take(path)
        return super().open(path, create=create)

    def names(self, path):
        self._take(path)
        return super().names(path)

    def read(self, path):
        self._take(path)
        return super().read(path)

    def replace(self, path, data, *, durable=True):
        self._take(path)
        super().replace(path, data, durable=durable)
