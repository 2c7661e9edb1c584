"""A disk that remembers what it was told, and builds what a power cut may have left of it.

The model: a write that no fsync of its file followed may be there, be missing, be there by its first 4 KiB blocks, or
have only made the file longer (zeros). Creations, renames and removals reach the disk in order, but everything after
the last fsync of their directory may be missing. A rename moves a name; the data behind it has its own fate.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from fleetlog.brokers.log.disk.background import PendingSync, PendingWork
from fleetlog.brokers.log.disk.files import RealDisk, RealFile

BLOCK = 4096


@dataclass
class Op:
    kind: str
    path: str
    inode: int = -1
    to: str = ""
    position: int = 0
    data: bytes = b""
    size: int = 0


class RecordingFile(RealFile):
    __slots__ = ()

    def write(self, data, position):
        self._disk.note("write", self.path, position=position, data=bytes(data))
        super().write(data, position)

    def write_run(self, pieces, position):
        self.write(b"".join(pieces), position)

    def truncate(self, size):
        self._disk.note("truncate", self.path, size=size)
        super().truncate(size)

    def sync(self):
        super().sync()
        self._disk.note("sync", self.path)

    def rename(self, path):
        self._disk.note_rename(self.path, path)
        super().rename(path)


class RecordingDisk(RealDisk):
    """Works on the real file system and keeps ``ops``; background syncs are done at once."""

    file_class = RecordingFile

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self._inodes: dict[str, int] = {}
        self._numbers = itertools.count()

    def found(self, root: str) -> None:
        """What is below ``root`` is on the disk."""
        for directory, _, names in os.walk(root):
            self.note("mkdir", directory)
            for name in names:
                path = os.path.join(directory, name)
                self.note_create(path)
                self.note("write", path, data=Path(path).read_bytes())
                self.note("sync", path)
            self.note("syncdir", directory)

    def note(self, kind, path, **fields):
        self.ops.append(Op(kind, path, self._inodes.get(path, -1), **fields))

    def note_create(self, path):
        self._inodes[path] = next(self._numbers)
        self.note("create", path)

    def note_rename(self, path, to):
        self.note("rename", path, to=to)
        moved = {name: inode for name, inode in self._inodes.items() if name == path or name.startswith(path + "/")}
        for name, inode in moved.items():
            del self._inodes[name]
            self._inodes[to + name[len(path) :]] = inode

    def open(self, path, *, create=False):
        if create and not os.path.exists(path):
            self.note_create(path)
        return super().open(path, create=create)

    def make_directory(self, path):
        self.note("mkdir", path)
        super().make_directory(path)

    def replace(self, path, data, *, durable=True):
        temporary = path + ".tmp"
        self.note_create(temporary)
        self.note("write", temporary, data=data)
        if durable:
            self.note("sync", temporary)
        self.note_rename(temporary, path)
        super().replace(path, data, durable=durable)

    def rename(self, path, to):
        self.note_rename(path, to)
        super().rename(path, to)

    def remove(self, path, *, later=False):
        if os.path.exists(path):
            self.note("remove", path)
            self._inodes.pop(path, None)
        super().remove(path)

    def remove_tree(self, path, *, later=False):
        for name in [name for name in self._inodes if name.startswith(path + "/")]:
            self.note("remove", name)
            del self._inodes[name]
        super().remove_tree(path)

    def work_later(self, work):
        pending = PendingWork(work)
        pending.run()
        return pending

    def for_work(self):
        return self

    def sync_directory(self, path):
        super().sync_directory(path)
        self.note("syncdir", path)

    def sync_later(self, paths):
        pending = PendingSync(paths)
        pending.run()
        for path in paths:
            self.note("syncdir" if os.path.isdir(path) else "sync", path)
        return pending

    def sync_file_system(self, path):
        super().sync_file_system(path)
        self.note("syncfs", path)


@dataclass
class _Data:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Op] = field(default_factory=list)

    def settle(self) -> None:
        for op in self.pending:
            _apply(self.durable, op)
        self.pending.clear()


def _apply(content: bytearray, op: Op, *, upto: int | None = None, zeros: bool = False) -> None:
    if op.kind == "truncate":
        del content[op.size :]
        content.extend(b"\0" * (op.size - len(content)))
        return
    data = op.data if upto is None else op.data[:upto]
    end = op.position + (len(op.data) if zeros else len(data))
    content.extend(b"\0" * (end - len(content)))
    if not zeros:
        content[op.position : op.position + len(data)] = data


def image(ops: list[Op], crash: int, rng: random.Random, root: str, target: Path) -> None:
    """Write into ``target`` one of the states that a power cut after ``crash`` operations may leave below ``root``."""
    past = ops[:crash]
    names: dict[str, int] = {}
    certain = max((i for i, op in enumerate(past) if op.kind in ("syncdir", "syncfs")), default=-1)
    # Directories are synced one by one; being pessimistic about the others only where the last sync was not theirs.
    lost_from = rng.randint(certain + 1, len(past)) if rng.random() < 0.7 else len(past)
    data: dict[int, _Data] = {}
    for number, op in enumerate(past):
        if op.kind in ("write", "truncate"):
            data.setdefault(op.inode, _Data()).pending.append(op)
        elif op.kind == "sync":
            data.setdefault(op.inode, _Data()).settle()
        elif op.kind == "syncfs":
            for file in data.values():
                file.settle()
        elif number >= lost_from and _unsynced(past, number, op):
            continue
        elif op.kind == "create":
            names[op.path] = op.inode
        elif op.kind == "rename":
            for name in [n for n in names if n == op.path or n.startswith(op.path + "/")]:
                names[op.to + name[len(op.path) :]] = names.pop(name)
        elif op.kind == "remove":
            names.pop(op.path, None)
    for path, inode in names.items():
        place = target / os.path.relpath(path, root)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(_content(data.get(inode, _Data()), rng))


def _unsynced(past: list[Op], number: int, op: Op) -> bool:
    parent = os.path.dirname(op.path)
    return not any(
        later.kind == "syncfs" or (later.kind == "syncdir" and later.path == parent) for later in past[number:]
    )


def _content(file: _Data, rng: random.Random) -> bytes:
    content = bytearray(file.durable)
    mode = rng.random()
    for op in file.pending:
        fate = rng.random()
        if mode < 0.3 or fate < 0.4 or op.kind == "truncate":
            if op.kind == "truncate" and fate > 0.8:
                continue
            _apply(content, op)
        elif fate < 0.6:
            continue
        elif fate < 0.8:
            _apply(content, op, zeros=True)
        else:
            blocks = len(op.data) // BLOCK
            cut = rng.randint(0, blocks) * BLOCK if blocks else rng.randint(0, len(op.data))
            _apply(content, op, upto=cut)
    return bytes(content)
