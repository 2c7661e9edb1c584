"""A switch in user space: every host's packets pass here, and are dropped, delayed or let through by rule.

Runs as a process of its own, so that nothing else holds it up: ``python -m tests.chaos.switch CONTROL_FD TUN_FD...``.
Host i has the TUN device of the i-th descriptor and the address PREFIX.(i+1). The kernel here has no netem; this is
one, per pair and per direction. Commands are JSON lines on the control socket, each answered by one line: ``{"rules":
[[from, to, drop, delay_ms], ...]}`` sets rules (the others stay), ``{"heal": true}`` removes all, ``{"counts": true}``
tells [from, to, passed, dropped, delayed] of each pair. ``{"hold": [from, to, port, api, seconds]}`` waits for the next
request of that Kafka API from one host to the other's port, and holds what that connection answers, and nothing else,
for so many seconds: packets that are held count as delayed on the way back.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

PREFIX = "10.77.0"
MTU = 32_000
FIRST = 1
"""Last byte of the first host's address."""
_SOURCE, _DESTINATION = 15, 19
"""Last bytes of the addresses in an IPv4 header."""
_TCP = 6
_HELD_MAX = 20_000
"""Packets held at once; a real queue drops, too."""


@dataclass(slots=True)
class Pair:
    """One direction between two hosts."""

    drop: bool = False
    delay_s: float = 0.0
    due: float = 0.0
    """When the last held packet leaves: the ones behind it keep their order."""
    passed: int = 0
    dropped: int = 0
    delayed: int = 0
    wanted: tuple[int, int, float] | None = None
    """On the way there: (port, API, seconds), the request that is waited for to hold its answer."""
    flow: tuple[bytes, float] | None = None
    """On the way back: the ports of the connection that is held, and until when."""


def segment(packet: bytes) -> tuple[bytes, bytes]:
    """The two ports of a TCP packet (source first, four bytes), and its payload; empty where it is none."""
    start = (packet[0] & 15) * 4
    if packet[9] != _TCP or len(packet) < start + 20:
        return b"", b""
    return packet[start : start + 4], packet[start + (packet[start + 12] >> 4) * 4 :]


ENCRYPTED = -1
"""As an API: any request over TLS, which cannot be read."""
_TLS_DATA = b"\x17\x03\x03"


def asks(payload: bytes, api: int) -> bool:
    """Whether a TCP payload begins with a Kafka request of this API."""
    if api == ENCRYPTED:
        return payload.startswith(_TLS_DATA)
    size, key = int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:6], "big")
    return len(payload) >= 14 and 10 <= size < 1 << 26 and key == api and payload[6] == 0


class Switch:
    """Forwards packets between TUN devices."""

    def __init__(self, control: socket.socket, devices: list[int]) -> None:
        self._control = control
        self._devices = devices
        hosts = range(len(devices))
        self._pairs = [[Pair() for _ in hosts] for _ in hosts]
        self._held: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._input = b""

    def run(self) -> None:
        """Until the control socket closes."""
        poll = select.epoll()
        poll.register(self._control.fileno(), select.EPOLLIN)
        by_descriptor = {descriptor: host for host, descriptor in enumerate(self._devices)}
        for descriptor in self._devices:
            poll.register(descriptor, select.EPOLLIN)
        while True:
            wait = max(0.0, self._held[0][0] - time.monotonic()) if self._held else -1
            for descriptor, _ in poll.poll(wait):
                host = by_descriptor.get(descriptor)
                if host is None:
                    if not self._command():
                        return
                else:
                    self._drain(descriptor, host)
            self._release()

    def _drain(self, descriptor: int, source: int) -> None:
        row, devices = self._pairs[source], self._devices
        for _ in range(64):
            try:
                packet = os.read(descriptor, 65_536)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue
            target = packet[_DESTINATION] - FIRST
            if not 0 <= target < len(devices):
                continue
            pair = row[target]
            if pair.wanted is not None:
                self._look_for(pair, source, target, packet)
            if pair.drop:
                pair.dropped += 1
            elif pair.flow is not None and self._flows(pair, target, packet):
                pair.delayed += 1
            elif pair.delay_s or pair.due:
                self._hold(pair, target, packet)
            else:
                pair.passed += 1
                self._deliver(target, packet)

    def _look_for(self, pair: Pair, source: int, target: int, packet: bytes) -> None:
        """Hold the answers of the connection that this packet's request came on, if it is the one that is wanted."""
        assert pair.wanted is not None
        port, api, seconds = pair.wanted
        ports, payload = segment(packet)
        if ports[2:] == port.to_bytes(2, "big") and asks(payload, api):
            pair.wanted = None
            self._pairs[target][source].flow = (ports[2:] + ports[:2], time.monotonic() + seconds)

    def _flows(self, pair: Pair, target: int, packet: bytes) -> bool:
        """Whether the packet belongs to the connection that is held; then it is."""
        assert pair.flow is not None
        ports, due = pair.flow
        if time.monotonic() >= due:
            pair.flow = None
            return False
        if segment(packet)[0] != ports or len(self._held) >= _HELD_MAX:
            return False
        self._number += 1
        heapq.heappush(self._held, (due, self._number, target, packet))
        return True

    def _hold(self, pair: Pair, target: int, packet: bytes) -> None:
        now = time.monotonic()
        if not pair.delay_s and pair.due <= now:  # the last held one has left
            pair.due = 0.0
            pair.passed += 1
            self._deliver(target, packet)
            return
        if len(self._held) >= _HELD_MAX:
            pair.dropped += 1
            return
        pair.delayed += 1
        pair.due = max(pair.due, now + pair.delay_s)
        self._number += 1
        heapq.heappush(self._held, (pair.due, self._number, target, packet))

    def _release(self) -> None:
        now = time.monotonic()
        while self._held and self._held[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._held)
            self._deliver(target, packet)

    def _deliver(self, target: int, packet: bytes) -> None:
        try:
            os.write(self._devices[target], packet)
        except OSError:  # the device is full or down: packets get lost
            pass

    def _command(self) -> bool:
        received = self._control.recv(65_536)
        if not received:
            return False
        *lines, self._input = (self._input + received).split(b"\n")
        for line in lines:
            answer = self._answer(json.loads(line))
            self._control.sendall(json.dumps(answer).encode() + b"\n")
        return True

    def _answer(self, command: dict[str, Any]) -> object:
        if "heal" in command:
            for row in self._pairs:
                for pair in row:
                    pair.drop, pair.delay_s, pair.wanted = False, 0.0, None
        if "hold" in command:
            source, target, port, api, seconds = command["hold"]
            self._pairs[source][target].wanted = (port, api, seconds) if port else None
        for source, target, drop, delay_ms in command.get("rules", []):
            pair = self._pairs[source][target]
            pair.drop, pair.delay_s = drop, delay_ms / 1000
        if "counts" in command:
            return [
                (source, target, pair.passed, pair.dropped, pair.delayed)
                for source, row in enumerate(self._pairs)
                for target, pair in enumerate(row)
            ]
        return True


if __name__ == "__main__":
    Switch(socket.socket(fileno=int(sys.argv[1])), [int(argument) for argument in sys.argv[2:]]).run()
