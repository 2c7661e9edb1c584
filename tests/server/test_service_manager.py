"""What is sent to a service manager, on a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetlog.brokers.server.service_manager import ServiceManager, service_manager
from tests.support.waiting import eventually_async


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(10)
        yield made


def manager(inbox: socket.socket, **variables: str) -> ServiceManager:
    return ServiceManager({"NOTIFY_SOCKET": str(inbox.getsockname()), **variables}, 7)


def test_each_call_is_one_datagram(inbox: socket.socket) -> None:
    one = manager(inbox)
    one.ready("broker 1 serves")
    one.status("waiting")
    one.stopping()
    assert [inbox.recv(4096) for _ in range(3)] == [
        b"READY=1\nSTATUS=broker 1 serves", b"STATUS=waiting", b"STOPPING=1\nSTATUS=stopping",
    ]  # fmt: skip


def test_an_abstract_socket() -> None:
    name = f"fleetlog-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind("\0" + name)
        made.settimeout(10)
        ServiceManager({"NOTIFY_SOCKET": "@" + name}, 7).ready("yes")
        assert made.recv(4096).startswith(b"READY=1\n")


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, None),  # meant for another process
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_for_one_process(
    inbox: socket.socket, variables: dict[str, str], seconds: float | None
) -> None:
    assert manager(inbox, **variables).watchdog_s == seconds


def test_a_loop_that_stands_feeds_no_watchdog(inbox: socket.socket) -> None:
    well = [True]

    async def work() -> None:
        one = manager(inbox, WATCHDOG_USEC="60000")
        one.feed_watchdog(asyncio.get_running_loop(), lambda: well[0])
        inbox.setblocking(False)
        fed: list[bytes] = []

        def times_fed() -> int:
            fed.extend(taken(inbox))
            return len(fed)

        await eventually_async(times_fed, "it is fed twice", good=lambda times: times >= 2)
        assert set(fed) == {b"WATCHDOG=1"}
        drain(inbox)
        time.sleep(0.2)  # the loop stands
        assert drain(inbox) == 0
        await asyncio.sleep(0.1)
        assert drain(inbox) > 0
        well[0] = False
        await asyncio.sleep(0.05)
        drain(inbox)
        await asyncio.sleep(0.1)
        assert drain(inbox) == 0
        well[0] = True
        one.stopping()
        await asyncio.sleep(0.1)
        assert inbox.recv(4096).startswith(b"STOPPING=1")
        assert drain(inbox) == 0

    asyncio.run(work())


def taken(inbox: socket.socket) -> list[bytes]:
    """The datagrams that are waiting."""
    found: list[bytes] = []
    while True:
        try:
            found.append(inbox.recv(4096))
        except BlockingIOError:
            return found


def drain(inbox: socket.socket) -> int:
    """How many datagrams are waiting; they are taken."""
    return len(taken(inbox))


def test_without_a_service_manager_nothing_is_sent_or_run(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async def work() -> None:
        one = ServiceManager({"WATCHDOG_USEC": "3000000"}, 7)
        one.ready("yes")
        before = asyncio.all_tasks()
        one.feed_watchdog(asyncio.get_running_loop())
        assert asyncio.all_tasks() == before
        one.stopping()

    asyncio.run(work())
    assert caplog.text == ""
    ServiceManager({"NOTIFY_SOCKET": "vsock:1:2"}, 7).ready("yes")
    assert "neither a path nor abstract" in caplog.text
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nothing")}, 7).ready("yes")
    assert "cannot send READY=1" in caplog.text


def test_children_inherit_none_of_it() -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "PATH": "/bin"}
    assert service_manager(environment).watchdog_s == 3.0
    assert environment == {"PATH": "/bin"}
