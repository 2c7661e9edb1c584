"""Windows of files: how many there are, whose they are, and when they go."""

from __future__ import annotations

import os
import random
import socket

from fleetlog._native import io, io_py
from fleetlog._native.files import MAPPED_BELOW, MAPPED_FROM, FileSlice
from fleetlog.brokers.log import RealDisk
from fleetlog.brokers.log.disk.files import MAX_WINDOWS, STRIDE, WINDOW, Mappings


def mapped_ranges(path):
    """Address ranges of this process that belong to the file."""
    with open("/proc/self/maps") as maps:
        return sum(str(path) in line for line in maps)


def test_windows_are_bounded_and_the_longest_unused_goes(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDONLY)
    mappings = Mappings(3)
    first, second, third = (mappings.window("f", fd, number * STRIDE) for number in range(3))
    assert mappings.window("f", fd, STRIDE - 1) is first
    assert (second.position, second.length) == (STRIDE, WINDOW)
    mappings.relax()
    assert mappings.window("f", fd, 0) is first
    assert mappings.window("f", fd, 2 * STRIDE) is third
    mappings.window("g", fd, 0)
    assert len(mappings) == 3
    assert mappings.window("f", fd, 0) is first
    assert mappings.window("f", fd, STRIDE) is not second
    assert len(mappings) == 3


def test_what_was_unused_between_two_looks_goes(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDONLY)
    mappings = Mappings()
    for number in range(4):
        mappings.window(number % 2, fd, number * STRIDE)
    mappings.relax()
    kept = mappings.window(1, fd, STRIDE)
    mappings.relax()
    assert len(mappings) == 1
    assert mappings.window(1, fd, STRIDE) is kept
    mappings.forget(1)
    mappings.forget(1)
    assert len(mappings) == 0


def test_the_bound_holds_for_any_order(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDONLY)
    mappings, rng = Mappings(), random.Random(5)
    for _ in range(3000):
        file, action = rng.randrange(40), rng.random()
        if action < 0.02:
            mappings.relax()
        elif action < 0.05:
            mappings.forget(file)
        else:
            mappings.window(file, fd, rng.randrange(30) * STRIDE)
        assert len(mappings) <= MAX_WINDOWS
    assert sorted((f, n) for f, numbers in mappings._of.items() for n in numbers) == sorted(
        {**mappings._recent, **mappings._older}
    )


def test_a_file_takes_its_windows_with_it(tmp_path):
    disk = RealDisk()
    path = str(tmp_path / "log")
    file = disk.open(path, create=True)
    file.write(b"y" * (MAPPED_FROM + 10), 0)
    piece = FileSlice(file, 5, MAPPED_FROM)
    assert piece.part(5, MAPPED_FROM - 1).mapping is None, "small slices are copied"
    before = mapped_ranges(path)
    part = piece.part(5, MAPPED_FROM)
    fast = io.Mapping is not io_py.Mapping
    assert (mapped_ranges(path) - before, len(disk.mappings)) == (fast, 1)
    assert piece.part(5, MAPPED_FROM).mapping is part.mapping
    file.close()
    assert len(disk.mappings) == 1, "the slice pins the file"
    piece.release()
    file.close()
    assert (len(disk.mappings), mapped_ranges(path)) == (0, before)
    ours, theirs = socket.socketpair()
    with open(path, "rb") as again:  # what still names the window is served all the same
        sent = io.send_slices(ours.fileno(), [part._replace(fd=again.fileno())])
    assert theirs.recv(sent.sent, socket.MSG_WAITALL) == b"y" * MAPPED_FROM


def test_large_slices_leave_by_sendfile_until_they_are_smaller(tmp_path):
    disk = RealDisk()
    file = disk.open(str(tmp_path / "log"), create=True)
    file.write(b"x" * (MAPPED_BELOW + 3), 0)
    piece = FileSlice(file, 3, MAPPED_BELOW)
    assert piece.part(3, MAPPED_BELOW).mapping is None
    assert piece.part(4, MAPPED_BELOW - 1).mapping is not None, "the rest, when the socket took a part"
    piece.release()
    file.close()


def test_without_mappings_slices_leave_by_sendfile(tmp_path):
    disk = RealDisk(mapped=False)
    file = disk.open(str(tmp_path / "log"), create=True)
    file.write(b"z" * 100_000, 0)
    piece = FileSlice(file, 0, 100_000)
    assert piece.part(0, 100_000) == (file.fileno(), 0, 100_000, None)
    disk.relax()
    piece.release()
