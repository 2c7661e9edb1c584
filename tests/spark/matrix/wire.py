"""The wire between Spark and the brokers: a relay that reads frames, and stops, loses or delays the ones it is told to.

One listener stands before each broker; the brokers tell it to clients as their address. A :class:`Trap` names a request
by its API key, or the answer to one, and says what happens to it. Which process sent it is found in /proc, so that a
test can kill the very process whose request it holds. Nothing in Spark, in the sink or in the brokers knows of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.matrix.together import NotTried

PRODUCE = 0
BEGIN, ENLIST, COMMIT, HEARTBEAT, ABORT = range(12001, 12006)
NAMES = {
    PRODUCE: "Produce",
    BEGIN: "BeginBatch",
    ENLIST: "EnlistProducer",
    COMMIT: "CommitBatch",
    HEARTBEAT: "HeartbeatBatch",
    ABORT: "AbortBatch",
}
REQUEST, ANSWER = "request", "answer"
HOLD, LOSE, PASS = "hold", "lose", "pass"
LINGER_S = 5.0
_HEADER = struct.Struct(">hhi")
_CORRELATION = struct.Struct(">i")


@dataclass
class Hit:
    """One frame that a trap caught. ``pid`` is the client's process, 0 if it is gone already."""

    api: int
    side: str
    broker: int
    pid: int
    at: float
    decided: asyncio.Event
    fate: str = ""

    def __str__(self) -> str:
        return f"{NAMES.get(self.api, self.api)} {self.side} at broker {self.broker}, process {self.pid}"


@dataclass
class Trap:
    """Waits for frames: of this API, on this side, with these bytes in the request; every one from ``skip`` on.

    ``find_process``: look for the process (slow). ``over``: no process is left that could send such a frame.
    """

    wire: Wire
    api: int
    side: str
    action: str
    contains: bytes = b""
    skip: int = 0
    times: int = 1
    every: int = 1
    find_process: bool = True
    over: Callable[[], bool] = lambda: False
    hits: list[Hit] = field(default_factory=list)
    seen: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wants(self, api: int, side: str, request: bytes) -> bool:
        """Whether this frame is caught; counts it."""
        if api != self.api or side != self.side or len(self.hits) >= self.times or self.contains not in request:
            return False
        self.seen += 1
        return self.seen > self.skip and (self.seen - self.skip - 1) % self.every == 0

    def wait(self, timeout_s: float = 240.0, count: int = 1) -> Hit:
        """The newest hit, when there are ``count``.

        Raises NotTried when the queries ended without it, AssertionError when they hang.
        """
        with self.changed:
            began = time.monotonic()
            while len(self.hits) < count and time.monotonic() - began < timeout_s and not self.over():
                self.changed.wait(0.5)
            if len(self.hits) < count:
                name = f"{NAMES.get(self.api, self.api)} {self.side}"
                waited = time.monotonic() - began
                problem = f"no {name} came by in {waited:.0f} s ({self.seen} seen, {len(self.hits)} hit)"
                raise NotTried(problem) if self.over() else AssertionError(problem)
            return self.hits[count - 1]

    def held(self) -> list[Hit]:
        """What it holds."""
        return [hit for hit in self.hits if self.action == HOLD and not hit.fate]

    def decide(self, fate: str) -> None:
        """What becomes of held frames, and of those still to come: PASS or LOSE."""
        self.action = fate

        def tell() -> None:
            for hit in self.hits:
                hit.fate = hit.fate or fate
                hit.decided.set()

        self.wire.loop.call_soon_threadsafe(tell)

    def release(self) -> None:
        """Held frames go on."""
        self.decide(PASS)

    def drop(self) -> None:
        """Held frames, and their connections, are gone."""
        self.decide(LOSE)


class Wire:
    """Relays on the loopback, in a thread of their own. ``ports``: where clients connect, by broker id."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.ports: dict[int, int] = {}
        self.traps: list[Trap] = []
        self.passed: dict[tuple[int, str], int] = {}
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self.loop.run_forever, name="wire", daemon=True)
        self._thread.start()

    def open(self, broker_id: int, target: Callable[[], int]) -> int:
        """A relay before a broker; ``target`` gives its real port."""

        async def listen() -> int:
            async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._serve(broker_id, target(), reader, writer)

            server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=1 << 20)
            self._servers.append(server)
            return int(server.sockets[0].getsockname()[1])

        port = asyncio.run_coroutine_threadsafe(listen(), self.loop).result(10)
        self.ports[broker_id] = port
        return port

    def trap(self, api: int, side: str, action: str, **more: Any) -> Trap:
        """Set a trap."""
        trap = Trap(self, api, side, action, **more)
        self.traps.append(trap)
        return trap

    def clear(self, contains: bytes = b"") -> None:
        """No trap any more, or none for these bytes; what they hold goes on."""
        gone = [trap for trap in self.traps if contains in trap.contains]
        self.traps = [trap for trap in self.traps if trap not in gone]
        for trap in gone:
            trap.times = 0
            trap.release()

    def close(self) -> None:
        """No relay any more."""

        async def end() -> None:
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()

        for server in self._servers:
            self.loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    def count(self, api: int, side: str = REQUEST) -> int:
        """How many frames of this kind have come by since the start."""
        return self.passed.get((api, side), 0)

    # ---- frames ----------------------------------------------------------------------------------------------------

    async def _serve(
        self, broker_id: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        except OSError:
            writer.transport.abort()
            return
        waiting: dict[int, tuple[int, bytes]] = {}
        client_port = int(writer.get_extra_info("peername")[1])

        def abort() -> None:
            writer.transport.abort()
            far_writer.transport.abort()

        async def requests() -> None:
            while True:
                frame = await _frame(reader)
                api, _, correlation = _HEADER.unpack_from(frame)
                if not await self._admit(api, REQUEST, frame, broker_id, client_port):
                    abort()
                    return
                waiting[correlation] = api, frame
                far_writer.write(len(frame).to_bytes(4, "big") + frame)
                await far_writer.drain()

        async def answers() -> None:
            while True:
                frame = await _frame(far_reader)
                (correlation,) = _CORRELATION.unpack_from(frame)
                api, request = waiting.pop(correlation, (-1, b""))
                if not await self._admit(api, ANSWER, request, broker_id, client_port):
                    abort()
                    return
                writer.write(len(frame).to_bytes(4, "big") + frame)
                await writer.drain()

        async def quietly(pump: Any, to_close: asyncio.StreamWriter, linger: bool) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await pump
            until = time.monotonic() + LINGER_S
            while linger and waiting and time.monotonic() < until:  # what a dead client sent is dealt with
                await asyncio.sleep(0.05)
            with contextlib.suppress(OSError):
                to_close.close()

        await asyncio.gather(quietly(requests(), far_writer, True), quietly(answers(), writer, False))

    async def _admit(self, api: int, side: str, request: bytes, broker_id: int, client_port: int) -> bool:
        """False when the frame is lost."""
        self.passed[api, side] = self.passed.get((api, side), 0) + 1
        for trap in self.traps:
            if not trap.wants(api, side, request):
                continue
            pid = _process_of(client_port, self.ports[broker_id]) if trap.find_process and trap.action != LOSE else 0
            hit = Hit(api, side, broker_id, pid, time.monotonic(), asyncio.Event())
            with trap.changed:
                trap.hits.append(hit)
                trap.changed.notify_all()
            if trap.action == HOLD:
                await hit.decided.wait()
            else:
                hit.fate = trap.action
            return hit.fate != LOSE
        return True


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def _process_of(client_port: int, port: int) -> int:
    """The process that holds the client's end of a connection to ``port``; a port serves several ends at a time."""
    inode = ""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            ends = [int(address.rpartition(":")[2], 16) for address in fields[1:3]]
            if ends == [client_port, port] and fields[3] == "01":
                inode = fields[9]
    if not inode or inode == "0":
        return 0
    wanted = f"socket:[{inode}]"
    for links in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for link in links.iterdir():
                with contextlib.suppress(OSError):
                    if str(link.readlink()) == wanted:
                        return int(links.parent.name)
    return 0
