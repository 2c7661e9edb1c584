"""A broker short of file descriptors says so, with numbers and what to do."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.brokers.config import load_config
from fleetlog.brokers.model import Endpoint
from fleetlog.brokers.server.descriptors import REMEMBERED_MS, Descriptors, in_use
from fleetlog.brokers.server.listener import ACCEPT_PAUSE_MS, Server


class Process:
    """Its clock and its descriptors."""

    def __init__(self, used: int, limit: int | None) -> None:
        self.now_ms = 5_000
        self.usage = (used, limit)
        self.descriptors = Descriptors(lambda: self.now_ms, lambda: self.usage)


@pytest.mark.parametrize(
    ("used", "limit", "said"),
    [(239, 256, False), (240, 256, False), (241, 256, True), (98_000, 100_000, False), (98_001, 100_000, True)],
)
def test_few_descriptors_are_named_with_numbers(used: int, limit: int, *, said: bool) -> None:
    troubles = Process(used, limit).descriptors.troubles()
    if not said:
        assert troubles == []
        return
    (line,) = troubles
    assert f"{used} of {limit} file descriptors are in use" in line
    assert "raise the limit (ulimit -n, LimitNOFILE)" in line


def test_a_process_without_limit_lacks_none() -> None:
    assert Process(10**6, None).descriptors.troubles() == []


def test_a_want_of_descriptors_is_reported_for_a_minute_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    process = Process(100, 4096)
    for _ in range(5):
        process.descriptors.ran_out("cannot accept a connection", OSError(errno.EMFILE, "Too many open files"))
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "cannot accept a connection: Too many open files; 100 of 4096" in record.getMessage()
    assert "LimitNOFILE" in record.getMessage()
    process.now_ms += REMEMBERED_MS - 1
    (line,) = process.descriptors.troubles()
    assert "connections had to wait" in line
    process.now_ms += 1
    assert process.descriptors.troubles() == []
    process.descriptors.ran_out("cannot accept a connection", OSError(errno.EMFILE, "Too many open files"))
    assert len(caplog.records) == 2


def test_counting_without_a_free_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used, told = in_use()
    assert 0 < used < limit
    assert told == limit

    assert abs(used - len(os.listdir("/proc/self/fd"))) <= 1, "as counted one by one"

    def none_left(path: str) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files", path)

    monkeypatch.setattr(os, "listdir", none_left)
    monkeypatch.setattr(os, "stat", lambda path: SimpleNamespace(st_size=0))  # before Linux 6.2
    assert in_use() == (limit, limit)


class Crowded:
    """A listener that can accept nothing."""

    def accept(self) -> tuple[socket.socket, Any]:
        raise OSError(errno.EMFILE, "Too many open files")

    def fileno(self) -> int:
        return 9


def test_a_listener_that_cannot_accept_says_so_and_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    process = Process(4096, 4096)
    config = load_config(overrides={"broker.id": "1", "zookeeper.connect": "none:1"})
    server = Server(config, process.descriptors)
    later: list[int] = []
    removed: list[int] = []
    server.loop = SimpleNamespace(remove_reader=removed.append)  # type: ignore[assignment]
    server.timers = SimpleNamespace(later=lambda delay_ms, _: later.append(delay_ms))  # type: ignore[assignment]
    for _ in range(3):
        server._accept(Endpoint("PLAINTEXT", "127.0.0.1", 9092), Crowded())  # type: ignore[arg-type]
    assert (removed, later) == ([9] * 3, [ACCEPT_PAUSE_MS] * 3)
    assert len(caplog.records) == 1
    (line,) = process.descriptors.troubles()
    assert line.startswith("4096 of 4096 file descriptors are in use, and connections had to wait")
