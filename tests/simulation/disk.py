"""A broker's disk in memory: ``brokers.log.disk.files.DiskPort`` for one run of its process.

The :class:`Medium` outlives the process. When only the process dies, everything written stays. When the power fails,
writes that no fsync followed may be there, be missing, be there by their first blocks, or have only made the file
longer; creations, renames and removals after their directory's last fsync may be missing (the model of
``tests.support.crashes``). On demand the disk is full, or fails for good.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fleetlog.brokers.log.disk.background import PendingSync, PendingWork
from fleetlog.brokers.log.disk.failures import DirectoryInUse, DiskFailed, DiskFull
from fleetlog.brokers.log.disk.files import Buffer
from tests.simulation.loop import Killed, Owner, SimLoop
from tests.support.crashes import BLOCK, Op, _content, _Data

MAX_SYNC_S = 0.03


class Inode:
    """A file's bytes as the process sees them, and what of them is on the medium."""

    __slots__ = ("content", "kept", "modified_ms")

    def __init__(self) -> None:
        self.content = bytearray()
        self.kept = _Data()
        self.modified_ms = 0

    def write(self, data: bytes, position: int) -> None:
        self.kept.pending.append(Op("write", "", position=position, data=data))
        if position > len(self.content):
            self.content.extend(bytes(position - len(self.content)))
        self.content[position : position + len(data)] = data

    def truncate(self, size: int) -> None:
        self.kept.pending.append(Op("truncate", "", size=size))
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))

    def lose_power(self, rng: random.Random) -> None:
        self.content = bytearray(_content(self.kept, rng))
        self.kept = _Data(bytearray(self.content))


@dataclass
class _Step:
    """A change of names; ``certain`` once its directory was synced."""

    kind: str
    path: str
    to: str = ""
    inode: Inode | None = None
    certain: bool = False


class Copy(NamedTuple):
    """A device's files and directories at one moment."""

    files: dict[str, bytes]
    directories: set[str]


class Medium:
    """The device: files by path, directories, and the changes of names that may still be lost."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self.files: dict[str, Inode] = {}
        self.directories: set[str] = set()
        self.locks: dict[str, Owner] = {}
        self.full = False
        self.failed_directory = ""
        self.die_after_writes = -1
        self.on_death: Callable[[], None] = lambda: None
        self._durable: dict[str, Inode] = {}
        self._steps: list[_Step] = []

    def note(self, kind: str, path: str, to: str = "", inode: Inode | None = None) -> None:
        self._steps.append(_Step(kind, path, to, inode))

    def synced(self, directory: str | None) -> None:
        """Names in that directory (None: everywhere) are on the medium."""
        for step in self._steps:
            if directory is None or parent(step.path) == directory or parent(step.to) == directory:
                step.certain = True
        certain = 0
        while certain < len(self._steps) and self._steps[certain].certain:
            _replay(self._durable, self._steps[certain])
            certain += 1
        del self._steps[:certain]

    def lose_power(self) -> None:
        """What the process saw is gone; what the medium kept is there."""
        cut = self.rng.randint(0, len(self._steps)) if self.rng.random() < 0.7 else len(self._steps)
        for number, step in enumerate(self._steps):
            if step.certain or number < cut:
                _replay(self._durable, step)
        self._steps.clear()
        self.files = dict(self._durable)
        for inode in dict.fromkeys(self.files.values()):
            inode.lose_power(self.rng)
        for path in self.files:
            self.add_directories(parent(path))
        self.directories = {path for path in sorted(self.directories) if self._survives(path)}

    def copy(self) -> Copy:
        """All that is there, as a backup of a stopped broker's disk would have it."""
        return Copy({path: bytes(inode.content) for path, inode in self.files.items()}, set(self.directories))

    def put_back(self, copy: Copy) -> None:
        """Make the device what it was at that copy, for good."""
        self.files, self.directories = {}, set(copy.directories)
        for path, content in copy.files.items():
            inode = self.files[path] = Inode()
            inode.write(content, 0)
            inode.kept.settle()
        self._durable, self._steps = dict(self.files), []

    def remove_tree(self, path: str) -> None:
        """Take a directory and all that is in it away, for good."""
        for name in [name for name in self.files if name.startswith(path + "/")]:
            del self.files[name]
        self.directories = {name for name in self.directories if name != path and not name.startswith(path + "/")}
        self._durable, self._steps = dict(self.files), []

    def move(self, path: str, to: str) -> None:
        """A directory and all that is in it has another name, for good."""
        moved = {name: to + name[len(path) :] for name in (*self.files, *self.directories) if _within(name, path)}
        self.files = {moved.get(name, name): inode for name, inode in self.files.items()}
        self.directories = {moved.get(name, name) for name in self.directories}
        self._durable, self._steps = dict(self.files), []

    def _survives(self, directory: str) -> bool:
        return any(path.startswith(directory + "/") for path in self.files) or self.rng.random() < 0.5

    def add_directories(self, path: str) -> None:
        while path and path not in self.directories:
            self.directories.add(path)
            path = parent(path)


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def _replay(names: dict[str, Inode], step: _Step) -> None:
    if step.kind == "create":
        assert step.inode is not None
        names[step.path] = step.inode
    elif step.kind == "remove":
        names.pop(step.path, None)
    else:
        _rename(names, step.path, step.to)


def _rename(names: dict[str, Inode], path: str, to: str) -> None:
    for name in [name for name in names if name == path or name.startswith(path + "/")]:
        names[to + name[len(path) :]] = names.pop(name)


class SimFile:
    """A DiskFile."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self.path = path
        self.inode = inode
        self.size = len(inode.content)
        self._disk = disk

    def write(self, data: Buffer, position: int) -> None:
        self._disk.check(self.path, writes=True)
        self._disk.maybe_die(self.inode, bytes(data), position)
        self.inode.write(bytes(data), position)
        self.inode.modified_ms = self._disk.now_ms()
        self.size = max(self.size, position + len(data))

    def write_run(self, pieces: Sequence[Buffer], position: int) -> None:
        self.write(b"".join(pieces), position)

    def read(self, position: int, length: int) -> bytes:
        self._disk.check(self.path)
        return bytes(self.inode.content[position : position + length])

    def truncate(self, size: int) -> None:
        self._disk.check(self.path)
        self.inode.truncate(size)
        self.size = size

    def sync(self) -> None:
        self._disk.check(self.path)
        self.inode.kept.settle()

    def fileno(self) -> int:
        return -1

    def window(self, position: int) -> None:
        return None

    def retain(self) -> None:
        pass

    def release(self) -> None:
        pass

    def rename(self, path: str) -> None:
        self._disk.rename(self.path, path)
        self.path = path

    def expect_growth(self) -> None:
        pass

    def trim(self) -> None:
        pass

    def remove(self, *, later: bool = False) -> None:
        self._disk.remove(self.path)

    def close(self) -> None:
        pass


class _Lock:
    def __init__(self, medium: Medium, path: str) -> None:
        self._medium, self._path = medium, path

    def close(self) -> None:
        self._medium.locks.pop(self._path, None)


class SimDisk:
    """The DiskPort of one run of a process; once its owner is dead nothing is written any more."""

    def __init__(self, loop: SimLoop, owner: Owner, medium: Medium, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self._loop = loop
        self._owner = owner
        self._medium = medium

    def check(self, path: str, *, writes: bool = False) -> None:
        """Fail as the medium fails."""
        if self._owner.dead:
            raise Killed(self._owner.name)
        medium = self._medium
        if medium.failed_directory and path.startswith(medium.failed_directory):
            raise DiskFailed(path, "Input/output error")
        if writes and medium.full:
            raise DiskFull(path, "No space left on device")

    def maybe_die(self, inode: Inode, data: bytes, position: int) -> None:
        """The process may die within a write, which is then there in part."""
        medium = self._medium
        if medium.die_after_writes > 0:
            medium.die_after_writes -= 1
        elif medium.die_after_writes == 0:
            medium.die_after_writes = -1
            inode.write(data[: medium.rng.randrange(len(data) + 1) // BLOCK * BLOCK], position)
            medium.on_death()
            raise Killed(self._owner.name)

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.check(path, writes=create)
        inode = self._medium.files.get(path)
        if inode is None:
            if not create or parent(path) not in self._medium.directories:
                raise DiskFailed(path, "No such file or directory")
            inode = self._create(path)
        return SimFile(self, path, inode)

    def _create(self, path: str) -> Inode:
        inode = self._medium.files[path] = Inode()
        inode.modified_ms = self.now_ms()
        self._medium.note("create", path, inode=inode)
        return inode

    def names(self, path: str) -> list[str]:
        self.check(path)
        prefix = path + "/"
        found = {name[len(prefix) :].partition("/")[0] for name in self._medium.files if name.startswith(prefix)}
        found |= {name[len(prefix) :].partition("/")[0] for name in self._medium.directories if name.startswith(prefix)}
        return sorted(found)

    def is_directory(self, path: str) -> bool:
        return path in self._medium.directories

    def make_directory(self, path: str) -> None:
        self.check(path)
        self._medium.add_directories(path)

    def read(self, path: str) -> bytes | None:
        self.check(path)
        inode = self._medium.files.get(path)
        return None if inode is None else bytes(inode.content)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        temporary = path + ".tmp"
        self.check(path, writes=True)
        inode = self._create(temporary)
        self.maybe_die(inode, data, 0)
        inode.write(data, 0)
        if durable:
            inode.kept.settle()
        self.rename(temporary, path)
        if durable:
            self.sync_directory(parent(path))

    def size(self, path: str) -> int | None:
        inode = self._medium.files.get(path)
        return None if inode is None else len(inode.content)

    def modified_ms(self, path: str) -> int:
        inode = self._medium.files.get(path)
        return 0 if inode is None else inode.modified_ms

    def space(self, path: str) -> tuple[int, int]:
        return 1 << 40, 0 if self._medium.full else 1 << 39

    def rename(self, path: str, to: str) -> None:
        self.check(path)
        medium = self._medium
        if path in medium.directories:
            moved = {name for name in medium.directories if name == path or name.startswith(path + "/")}
            medium.directories -= moved
            for name in sorted(moved):
                medium.add_directories(to + name[len(path) :])
        elif path not in medium.files:
            raise DiskFailed(path, "No such file or directory")
        _rename(medium.files, path, to)
        medium.note("rename", path, to)

    def remove(self, path: str, *, later: bool = False) -> None:
        self.check(path)
        if self._medium.files.pop(path, None) is not None:
            self._medium.note("remove", path)

    def remove_tree(self, path: str, *, later: bool = False) -> None:
        self.check(path)
        medium = self._medium
        for name in [name for name in medium.files if name.startswith(path + "/")]:
            self.remove(name)
        medium.directories -= {name for name in medium.directories if name == path or name.startswith(path + "/")}

    def relax(self) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        self.check(path)
        self._medium.synced(path)

    def sync_later(self, paths: list[str]) -> PendingSync:
        pending = PendingSync(paths)
        delay_s = self._medium.rng.uniform(0.0005, MAX_SYNC_S)
        self._loop.call_later(delay_s, self._sync_now, pending, context=self._owner.context)
        return pending

    def _sync_now(self, pending: PendingSync) -> None:
        try:
            for path in pending.paths:
                self.check(path)
                inode = self._medium.files.get(path)
                if inode is not None:
                    inode.kept.settle()
                elif path in self._medium.directories:
                    self._medium.synced(path)
        except DiskFailed as wrong:
            pending.error = wrong
        pending.done = True

    def work_later(self, work: Callable[[], object]) -> PendingWork:
        pending = PendingWork(work)
        delay_s = self._medium.rng.uniform(0.0005, MAX_SYNC_S)
        self._loop.call_later(delay_s, pending.run, context=self._owner.context)
        return pending

    def for_work(self) -> SimDisk:
        return self

    def sync_file_system(self, path: str) -> None:
        self.check(path)
        for inode in self._medium.files.values():
            inode.kept.settle()
        self._medium.synced(None)

    def lock(self, path: str) -> _Lock:
        self.check(path)
        holder = self._medium.locks.get(path)
        if holder is not None and not holder.dead:
            raise DirectoryInUse(f"{path} is locked: another broker process uses this log directory")
        self._medium.locks[path] = self._owner
        return _Lock(self._medium, path)


def _within(name: str, path: str) -> bool:
    return name == path or name.startswith(path + "/")
