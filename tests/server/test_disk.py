"""Slices that are not in the page cache: a worker reads them in, and no other connection waits meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.io import FilePart, Mapping
from fleetlog.brokers.api.base import Done
from fleetlog.wire import hot
from tests.support.harness import RunningServer
from tests.support.needs import lacks

HEARTBEAT = 12
MIB = 1024 * 1024
CONTENT = os.urandom(MIB) * 9


class ColdFile:
    """A file that leaves the page cache when told."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(CONTENT)
        self.fd = os.open(path, os.O_RDONLY)
        self.released = 0
        self.position, self.length = 0, len(CONTENT)
        self.mapped = False

    def fileno(self) -> int:
        return self.fd

    def part(self, position: int, length: int) -> FilePart:
        start = position // (4 * MIB) * 4 * MIB
        return FilePart(self.fd, position, length, Mapping(self.fd, start, 4 * MIB) if self.mapped else None)

    def release(self) -> None:
        self.released += 1

    def chill(self) -> None:
        os.fsync(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def is_cold(self) -> bool:
        try:
            os.preadv(self.fd, [bytearray(1)], 5 * MIB, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
        return False


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[ColdFile]:
    file = ColdFile(tmp_path / "segment.log")
    file.chill()
    if not file.is_cold():
        lacks("cold files")
    yield file
    os.close(file.fd)


def heartbeat() -> Any:
    return m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("length", [1000, len(CONTENT)])
def test_a_cold_slice_arrives_whole(cold: ColdFile, length: int, mapped: bool) -> None:
    cold.length, cold.mapped = length, mapped

    def handler(*_: Any) -> Done:
        cold.chill()  # as late as can be: the probe of is_cold() may have started the system's own read-ahead
        return Done(hot.Encoded([b"<", cold, b">"]))

    with RunningServer({HEARTBEAT: handler}) as server:
        asked: list[int] = []
        fetch = server.server.read_ahead.fetch

        def counted(fd: int, position: int, size: int, done: Any) -> None:
            asked.append(size)
            fetch(fd, position, size, done)

        server.call(lambda: setattr(server.server.read_ahead, "fetch", counted))
        client = server.client()
        client.send(heartbeat(), 0, 1)
        assert client.frame()[4:] == b"<" + CONTENT[:length] + b">"
        assert asked, "no worker was asked to read it in"
        server.until(lambda: cold.released == 1, "the release")


def test_a_slice_that_is_cold_again_after_it_was_read_in_still_arrives(cold: ColdFile) -> None:
    with RunningServer({HEARTBEAT: lambda *_: Done(hot.Encoded([b"<", cold, b">"]))}) as server:

        def forgetful(fd: int, position: int, size: int, done: Any) -> None:
            cold.chill()
            server.server.loop.call_soon(done, None)

        server.call(lambda: setattr(server.server.read_ahead, "fetch", forgetful))
        client = server.client()
        client.send(heartbeat(), 0, 1)
        assert client.frame()[4:] == b"<" + CONTENT + b">"
        server.until(lambda: cold.released == 1, "the release")


def test_others_are_served_while_a_disk_is_waited_for(cold: ColdFile) -> None:
    held: list[Any] = []

    def handler(request: Any, context: Any) -> Done:
        if request.group_id:
            return Done(hot.Encoded([b"<", cold, b">"]))
        return Done(m.HeartbeatResponse(version=context.api_version, error_code=0))

    with RunningServer({HEARTBEAT: handler}) as server:
        fetch = server.server.read_ahead.fetch
        server.call(lambda: setattr(server.server.read_ahead, "fetch", lambda *job: held.append(job)))
        waiting, other, gone = server.client(), server.client(), server.client()
        waiting.send(heartbeat(), 0, 1)
        server.until(lambda: len(held) == 1, "the disk")
        for number in range(20):
            empty = m.HeartbeatRequest(group_id="", generation_id=1, member_id="m")
            assert other.ask(empty, 4, number).error_code == 0
        gone.send(heartbeat(), 0, 1)
        server.until(lambda: len(held) == 2, "the disk, again")
        gone.close()
        server.until(lambda: len(server.server) == 2, "the close")
        assert cold.released == 0, "the worker still reads from the file"
        server.call(lambda: held[1][3](None))
        assert cold.released == 1
        server.call(lambda: setattr(server.server.read_ahead, "fetch", fetch))
        server.call(lambda: fetch(*held[0]))
        assert waiting.frame()[4:] == b"<" + CONTENT + b">"


def test_a_disk_that_fails_closes_the_connection(cold: ColdFile) -> None:
    with RunningServer({HEARTBEAT: lambda *_: Done(hot.Encoded([b"<", cold, b">"]))}) as server:
        failed = OSError(errno.EIO, "planted")
        server.call(lambda: setattr(server.server.read_ahead, "fetch", lambda *job: job[3](failed)))
        client = server.client()
        client.send(heartbeat(), 0, 1)
        with pytest.raises(ConnectionError):
            client.frame()
        server.until(lambda: cold.released == 1, "the release")
