"""What a unit does for its brokers when the machine refuses it something, with programs in the brokers' place."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from fleetlog.brokers.cli.host_pages import fetch_page
from fleetlog.brokers.cli.host_plan import HostPlan, PlannedBroker, plan_host
from fleetlog.brokers.cli.host_unit import Unit
from fleetlog.brokers.cli.options import settings_text
from fleetlog.brokers.server.service_manager import ServiceManager
from fleetlog.coordination.ports import free_ports
from tests.support.waiting import eventually_async

TALKS = [sys.executable, "-c", "import sys; sys.stderr.write(('x' * 99 + chr(10)) * 20_000)"]
"""Writes far more than a pipe holds, then ends."""
RUNS = [sys.executable, "-c", "import time; time.sleep(600)"]


def planned(directory: Path, count: int) -> HostPlan:
    (port,) = free_ports(1)
    text = f"broker.id=1\nlog.dirs={directory}\nzookeeper.connect=127.0.0.1:1\nlisteners=PLAINTEXT://127.0.0.1:0\n"
    return plan_host(f"{text}admin.listener=127.0.0.1:{port}\n", "f.properties", {}, {}, count, 1)


def run_unit(
    plan: HostPlan,
    command: Callable[[PlannedBroker], list[str]],
    out: IO[bytes],
    good: Callable[[Unit], bool] | None = None,
) -> int:
    """The unit's exit code; it is stopped once it is good."""

    async def work() -> int:
        unit = Unit(plan, command, lambda: plan, out)
        running = asyncio.create_task(unit.run(ServiceManager({}, os.getpid())))
        if good is not None:
            await eventually_async(lambda: good(unit), "the unit is well", 20)
            unit.stop()
        try:
            return await asyncio.wait_for(running, 20)
        finally:  # a unit that has failed leaves its children to the kernel; their pipes end with this loop
            for child in unit._children:
                if child.process is not None:
                    child.process._transport.close()  # type: ignore[attr-defined]
            await asyncio.sleep(0.1)

    return asyncio.run(work())


def started_again(unit: Unit) -> bool:
    return bool(unit.state()["brokers"][0]["starts"] > 1)


def test_a_log_that_takes_no_lines_stops_no_broker(tmp_path: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        code = run_unit(planned(tmp_path, 1), lambda _: TALKS, full, started_again)
    assert code == 0


def test_lost_lines_are_counted_when_the_log_takes_lines_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    with log.open("wb", buffering=0) as out:
        os.close(reader)  # from now on each write is EPIPE

        def good(unit: Unit) -> bool:
            nonlocal reader
            if started_again(unit) and not again:
                reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
                again.append(reader)
            return "the log took no lines for a while: about" in caplog.text

        again: list[int] = []
        run_unit(planned(tmp_path, 1), lambda _: [sys.executable, "-c", "print('x')"], out, good)
        assert os.read(reader, 100).startswith(b"[broker 1] x\n")
        os.close(reader)


def test_a_broker_that_the_machine_cannot_start_is_tried_again(tmp_path: Path) -> None:
    program = tmp_path / "program"

    def good(unit: Unit) -> bool:
        (row,) = unit.state()["brokers"]
        if row["said"].startswith("could not be started: ") and not program.exists():
            program.symlink_to("/bin/sleep")
        return row["process"] is not None

    with (tmp_path / "log").open("wb") as out:
        code = run_unit(planned(tmp_path, 1), lambda _: [str(program), "600"], out, good)
    assert code == 0


def test_a_unit_that_cannot_look_after_its_brokers_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def command(broker: PlannedBroker) -> list[str]:
        if broker.id == 2:
            raise RuntimeError("can't start new thread")
        return RUNS

    with (tmp_path / "log").open("wb") as out:
        assert run_unit(planned(tmp_path, 2), command, out) == 1
    assert "nothing looks after broker 2 any more: the unit stops" in caplog.text
    assert "can't start new thread" in caplog.text


@pytest.mark.parametrize(
    "said", [b"", b"hello\r\n\r\n", b"HTTP/1.1 fine\r\n\r\n", b"HTTP/1.1 200\r\nContent-Length: x\r\n\r\n"]
)
def test_what_else_answers_at_a_brokers_address_is_no_page(said: bytes) -> None:
    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            with pytest.raises(OSError, match="no whole answer from"):
                await fetch_page(server.sockets[0].getsockname(), "/health/ready", 5)

    asyncio.run(work())


def test_a_file_that_is_no_text_any_more_ends_a_rolling_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "broker.properties"
    file.write_bytes(b"\xff\xfe")

    def again() -> HostPlan:
        settings_text(file)
        raise AssertionError("it is no text")

    plan = planned(tmp_path, 1)
    Unit(plan, lambda _: TALKS, again, io.BytesIO()).roll()
    assert f"the settings cannot be used: {file}: not a text file in UTF-8 (byte 0)" in caplog.text


@pytest.mark.parametrize("controller", [1, 2, 3, None])
@pytest.mark.parametrize("silent", [None, 2])
def test_a_rolling_restart_ends_with_the_controller(tmp_path: Path, controller: int | None, silent: int | None) -> None:
    """Each election costs time. The others go in the order of their ids, one that does not answer, too."""

    async def work() -> list[int]:
        async with contextlib.AsyncExitStack() as servers:
            plan = planned(tmp_path, 3)
            unit = Unit(plan, lambda _: RUNS, lambda: plan, io.BytesIO())
            for broker in plan.brokers:
                if broker.id != silent:
                    leads = int(broker.id == controller)
                    body = f"fleetlog_controller_epoch 1\nfleetlog_controller {leads}\nfleetlog_partitions 1\n".encode()
                    await servers.enter_async_context(await page_of(broker.admin_address(), body))
            return [child.plan.id for child in await unit._controller_last()]

    last = [controller] if controller is not None and controller != silent else []
    assert asyncio.run(work()) == [broker_id for broker_id in (1, 2, 3) if broker_id not in last] + last


async def page_of(address: tuple[str, int], body: bytes) -> asyncio.Server:
    """A server whose every page is this one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, *address)
