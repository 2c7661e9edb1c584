"""The network where namespaces aren't allowed: TCP relays on the loopback, one listener per pair of hosts and port.

Runs as a process of its own: ``python -m tests.chaos.relay CONTROL_FD HOSTS PORT,...``. Host b really listens on
127.77.0.B; what host a connects to is 127.77.A.B, where a relay stands that knows both ends. The shim (shim.c) turns
the one address into the other in connect(), so no client has to be told. Commands are those of the switch. A direction
that is cut carries nothing, neither bytes nor ends of connections; new connections are accepted and stay silent. What
was held arrives when the cut is healed, as a real network would send it again.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.switch import asks

PREFIX = "127.77"
FIRST = 1
CHUNK = 65_536


@dataclass
class Pair:
    """One direction between two hosts."""

    drop: bool = False
    delay_s: float = 0.0
    passed: int = 0
    dropped: int = 0
    delayed: int = 0
    wanted: tuple[int, int, float] | None = None
    """(port, API, seconds): the request that is waited for to hold its answer."""
    healed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Connection:
    """One connection: until when what it answers is held (the loop's time)."""

    port: int
    held_until: float = 0.0


class Relay:
    """All relays of a run."""

    def __init__(self, hosts: int, ports: list[int]) -> None:
        self._ports = ports
        self._pairs = [[Pair() for _ in range(hosts)] for _ in range(hosts)]
        for row in self._pairs:
            for pair in row:
                pair.healed.set()

    async def run(self, control: socket.socket) -> None:
        """Until the control socket closes."""
        servers = [
            await asyncio.start_server(self._accept(a, b, port), f"{PREFIX}.{a + FIRST}.{b + FIRST}", port)
            for a in range(len(self._pairs)) for b in range(len(self._pairs)) if a != b for port in self._ports
        ]  # fmt: skip
        reader, writer = await asyncio.open_connection(sock=control)
        while line := await reader.readline():
            writer.write(json.dumps(self._answer(json.loads(line))).encode() + b"\n")
            await writer.drain()
        for server in servers:
            server.close()

    def _accept(self, a: int, b: int, port: int):  # type: ignore[no-untyped-def]
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = self._pairs[a][b]
            if not there.healed.is_set():
                there.dropped += 1
            await there.healed.wait()
            try:
                far_reader, far_writer = await asyncio.open_connection(f"{PREFIX}.0.{b + FIRST}", port)
            except OSError:
                writer.transport.abort()
                return
            one, back = Connection(port), self._pairs[b][a]
            await asyncio.gather(
                self._carry(there, reader, far_writer, one, asks), self._carry(back, far_reader, writer, one)
            )
            far_writer.close()
            writer.close()

        return accepted

    async def _carry(
        self, pair: Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one: Connection,
        asks: Callable[[bytes, int], bool] | None = None,
    ) -> None:  # fmt: skip
        """One direction of one connection: bytes in order, each after its delay, none while it is cut.

        ``asks`` is given on the way there: what the pair waits for makes ``one`` hold its answers.
        """
        loop = asyncio.get_running_loop()
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)

        async def deliver() -> None:
            while True:
                due, chunk = await held.get()
                if (left := due - loop.time()) > 0:
                    await asyncio.sleep(left)
                await pair.healed.wait()
                if not chunk:
                    return
                writer.write(chunk)
                await writer.drain()

        sender = asyncio.create_task(deliver())
        broken = False
        try:
            while True:
                chunk = await reader.read(CHUNK)
                if pair.drop:
                    pair.dropped += 1
                elif pair.delay_s or (asks is None and one.held_until > loop.time()):
                    pair.delayed += 1
                else:
                    pair.passed += 1
                if asks is not None and pair.wanted and pair.wanted[0] == one.port and asks(chunk, pair.wanted[1]):
                    one.held_until, pair.wanted = loop.time() + pair.wanted[2], None
                due = loop.time() + pair.delay_s
                await held.put((due if asks is not None else max(due, one.held_until), chunk))
                if not chunk:
                    break
        except OSError:  # reset by the peer: the other side is told after what is held
            broken = True
            await held.put((loop.time() + pair.delay_s, b""))
        try:
            await sender
            if broken:
                writer.transport.abort()
            elif writer.can_write_eof():
                writer.write_eof()
        except OSError:
            pass

    def _answer(self, command: dict[str, Any]) -> object:
        changes = command.get("rules", [])
        if "hold" in command:
            source, target, port, api, seconds = command["hold"]
            self._pairs[source][target].wanted = (port, api, seconds) if port else None
        if "heal" in command:
            everywhere = range(len(self._pairs))
            changes = [(a, b, False, 0.0) for a in everywhere for b in everywhere]
        for source, target, drop, delay_ms in changes:
            pair = self._pairs[source][target]
            pair.drop, pair.delay_s = drop, delay_ms / 1000
            if drop:
                pair.healed.clear()
            else:
                pair.healed.set()
        if "counts" in command:
            return [
                (source, target, pair.passed, pair.dropped, pair.delayed)
                for source, row in enumerate(self._pairs)
                for target, pair in enumerate(row)
            ]
        return True


if __name__ == "__main__":
    relay = Relay(int(sys.argv[2]), [int(port) for port in sys.argv[3].split(",")])
    asyncio.run(relay.run(socket.socket(fileno=int(sys.argv[1]))))
