"""The io kernel on both twins, over real sockets and files: same bytes out, same reasons to stop, same worker."""

from __future__ import annotations

import errno
import mmap
import os
import random
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fleetlog._native.io_py import MAPPING_MAX, FilePart, Stop
from tests.support.needs import lacks

PAGE = mmap.PAGESIZE


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    content = random.Random(4).randbytes(3_000_000)
    (tmp_path / "log").write_bytes(content)
    fd = os.open(tmp_path / "log", os.O_RDWR)
    yield fd, content
    os.close(fd)


def drain(theirs: socket.socket) -> bytes:
    theirs.setblocking(False)
    found = bytearray()
    while True:
        try:
            found += theirs.recv(1 << 20)
        except BlockingIOError:
            return bytes(found)


def rest(chunks: list[Any], count: int) -> list[Any]:
    """What is left of the chunks after ``count`` bytes, as an outbox would know it."""
    left: list[Any] = []
    for chunk in chunks:
        size = chunk.length if isinstance(chunk, FilePart) else len(chunk)
        step = min(size, count)
        count -= step
        if step < size:
            if isinstance(chunk, FilePart):
                left.append(chunk._replace(position=chunk.position + step, length=size - step))
            else:
                left.append(memoryview(chunk)[step:])
    return left


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_everything_arrives_in_order(
    io: ModuleType, pair: tuple[socket.socket, socket.socket], file: tuple[int, bytes], seed: int, mapped: bool
) -> None:
    ours, theirs = pair
    fd, content = file
    rng = random.Random(seed)
    chunks: list[Any] = []
    for _ in range(rng.randrange(1, 150)):
        if rng.random() < 0.5:
            chunks.append(rng.randbytes(rng.randrange(3000)))
        else:
            length = rng.choice((0, 1, 500, 65_536, 65_537, 200_000))
            position = rng.randrange(len(content) - length)
            start = position // PAGE * PAGE  # a window may hold only the beginning, or nothing
            mapping = io.Mapping(fd, start, rng.choice((PAGE, 100_000, 4_000_000))) if mapped else None
            if mapping is not None and rng.random() < 0.1:
                mapping.close()
            chunks.append(FilePart(fd, position, length, mapping))
    expected = b"".join(c if isinstance(c, bytes) else content[c.position : c.position + c.length] for c in chunks)
    found, left = b"", chunks
    for _ in range(5000):
        sent = io.send_slices(ours.fileno(), left, rng.choice((1, 10_000, 8_000_000)))
        assert sent.stop in (Stop.DONE, Stop.SOCKET, Stop.LIMIT)
        left = rest(left, sent.sent)
        found += drain(theirs)
        if sent.stop == Stop.DONE:
            break
    assert not left
    assert found == expected


def test_a_full_socket_stops_it(io: ModuleType, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    sent = io.send_slices(ours.fileno(), [b"x" * 10_000_000])
    assert sent.stop == Stop.SOCKET
    assert 0 < sent.sent < 10_000_000
    assert io.send_slices(ours.fileno(), [b"y"]) == (0, Stop.SOCKET)
    assert drain(theirs) == b"x" * sent.sent


def test_nothing_is_done_at_once(io: ModuleType, pair: tuple[socket.socket, socket.socket]) -> None:
    assert io.send_slices(pair[0].fileno(), []) == (0, Stop.DONE)
    assert io.send_slices(pair[0].fileno(), [b"", b""]) == (0, Stop.DONE)


def test_a_broken_connection_is_an_error(io: ModuleType, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(BrokenPipeError):
        io.send_slices(ours.fileno(), [b"hello"])


@pytest.mark.parametrize("length", [10, 100_000])
def test_a_file_that_ends_too_early_is_an_error(
    io: ModuleType, pair: tuple[socket.socket, socket.socket], file: tuple[int, bytes], length: int
) -> None:
    with pytest.raises(OSError, match="behind the end") as caught:
        io.send_slices(pair[0].fileno(), [FilePart(file[0], len(file[1]) + 5, length)])
    assert caught.value.errno == errno.EIO


def test_a_mapped_file_that_was_cut_is_an_error_and_no_signal(
    io: ModuleType, pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 20 * PAGE)
    fd = os.open(path, os.O_RDWR)
    part = FilePart(fd, 0, 20 * PAGE, io.Mapping(fd, 0, MAPPING_MAX))
    assert io.send_slices(pair[0].fileno(), [part]) == (20 * PAGE, Stop.DONE)
    assert drain(pair[1]) == b"x" * 20 * PAGE
    os.ftruncate(fd, 2 * PAGE)
    with pytest.raises(OSError, match="behind the end") as caught:
        _send_all(io, pair[0], part)
    assert caught.value.errno == errno.EIO
    os.close(fd)


def _send_all(io: ModuleType, ours: socket.socket, part: FilePart) -> None:
    while part.length:
        sent = io.send_slices(ours.fileno(), [part]).sent
        part = part._replace(position=part.position + sent, length=part.length - sent)


def test_a_mapping_sees_what_is_appended_later(
    io: ModuleType, pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    mapping = io.Mapping(fd, 0, MAPPING_MAX)
    expected = b""
    for number in range(40):
        run = random.Random(number).randbytes(number * 333)
        os.pwrite(fd, run, len(expected))
        part = FilePart(fd, len(expected), len(run), mapping)
        assert io.send_slices(pair[0].fileno(), [b"head", part, b"end"]) == (len(run) + 7, Stop.DONE)
        assert drain(pair[1]) == b"head" + run + b"end"
        expected += run
    os.close(fd)


def test_windows_have_bounds(io: ModuleType, file: tuple[int, bytes]) -> None:
    for position, length in ((-PAGE, PAGE), (1, PAGE), (0, 0), (0, MAPPING_MAX + 1)):
        with pytest.raises(ValueError, match="no window"):
            io.Mapping(file[0], position, length)
    with pytest.raises(OSError):  # noqa: PT011 - the system's message
        io.Mapping(999_999, 0, PAGE)
    mapping = io.Mapping(file[0], PAGE, 3 * PAGE)
    assert (mapping.position, mapping.length) == (PAGE, 3 * PAGE)
    mapping.close()
    mapping.close()


def test_a_closed_file_is_an_error(io: ModuleType, pair: tuple[socket.socket, socket.socket]) -> None:
    for length in (10, 100_000):
        with pytest.raises(OSError, match="Bad file"):
            io.send_slices(pair[0].fileno(), [FilePart(999_999, 0, length)])


def _evict(fd: int) -> bool:
    """Drop a file's pages; whether the file system lets one see that."""
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        os.preadv(
            fd, [bytearray(1)], 2_900_000, os.RWF_NOWAIT
        )  # far from the range that is read, which starts a read-ahead
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("length", [1000, 300_000])
def test_what_is_not_in_memory_stops_it_and_a_worker_brings_it(
    io: ModuleType, pair: tuple[socket.socket, socket.socket], file: tuple[int, bytes], length: int, mapped: bool
) -> None:
    ours, theirs = pair
    fd, content = file
    mapping = io.Mapping(fd, 0, 3_000_000) if mapped else None
    chunks = [b"front", FilePart(fd, 1_000_000, length, mapping), b"back"]
    for _ in range(20):  # the disk may have read it before this check
        if not _evict(fd):
            lacks("cold files")
        drain(theirs)
        sent = io.send_slices(ours.fileno(), chunks)
        if sent.stop == Stop.DISK:
            break
    assert sent == (5, Stop.DISK)
    worker = io.DiskWorker()
    worker.read_ahead(fd, 1_000_000, length, "there")
    assert wait(worker, 1) == [("there", length)]
    worker.close()
    found = drain(theirs)
    left = rest(chunks, sent.sent)
    for _ in range(100):
        sent = io.send_slices(ours.fileno(), left)
        left = rest(left, sent.sent)
        found += drain(theirs)
        if sent.stop == Stop.DONE:
            break
    assert found == b"front" + content[1_000_000 : 1_000_000 + length] + b"back"


def wait(worker: Any, count: int) -> list[tuple[Any, int]]:
    """Completions as a loop would take them: when the eventfd is readable."""
    found: list[tuple[Any, int]] = []
    while len(found) < count:
        poll = select.poll()  # select() itself takes no descriptor above 1023
        poll.register(worker.fileno(), select.POLLIN)
        assert poll.poll(30_000), "the worker did not say that it was done"
        found += worker.completions()
    return found


def test_reads_are_done_in_order_and_their_sizes_come_back(io: ModuleType, file: tuple[int, bytes]) -> None:
    fd, content = file
    worker = io.DiskWorker()
    for number in range(200):
        worker.read_ahead(fd, number, number + 1, number)
    worker.read_ahead(fd, 0, len(content) + 1, "all")
    assert worker.pending == 201
    assert wait(worker, 201) == [*((number, number + 1) for number in range(200)), ("all", len(content))]
    assert worker.pending == 0
    worker.close()


def test_what_the_disk_refuses_comes_back_as_its_errno(io: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    fd, unreadable = os.open(tmp_path / "f", os.O_RDONLY), os.open(tmp_path / "g", os.O_WRONLY | os.O_CREAT)
    worker = io.DiskWorker()
    worker.read_ahead(unreadable, 0, 1, "write-only")
    worker.read_ahead(999_999, 0, 1, "closed")
    worker.read_ahead(fd, 1, 100, "short")
    worker.read_ahead(fd, 9, 100, "behind the end")
    assert wait(worker, 4) == [
        ("write-only", -errno.EBADF), ("closed", -errno.EBADF), ("short", 2), ("behind the end", 0),
    ]  # fmt: skip
    worker.close()
    os.close(fd)
    os.close(unreadable)


def test_closing_ends_the_worker(io: ModuleType, file: tuple[int, bytes]) -> None:
    fd, _ = file
    worker = io.DiskWorker()
    event = worker.fileno()
    for number in range(50):
        worker.read_ahead(fd, number, 1000)
    worker.close()
    worker.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(event)
    with pytest.raises(RuntimeError, match="closed"):
        worker.read_ahead(fd, 0, 1)
    assert worker.completions() == []
