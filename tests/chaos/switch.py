"""A switch in user space: every host's packets pass here, and are dropped, delayed or let through by rule.

Runs as a process of its own, so that nothing else holds it up: ``python -m tests.chaos.switch CONTROL_FD TUN_FD...``.
Host i has the TUN device of the i-th descriptor and the address PREFIX.(i+1). The kernel here has no netem; this is
one, per pair and per direction. Commands are JSON lines on the control socket, each answered by one line: ``{"rules":
[[from, to, drop, delay_ms], ...]}`` sets rules (the others stay), ``{"heal": true}`` removes all, ``{"counts": true}``
tells [from, to, passed, dropped, delayed] of each pair.
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

PREFIX = "10.77.0"
MTU = 32_000
FIRST = 1
"""Last byte of the first host's address."""
_SOURCE, _DESTINATION = 15, 19
"""Last bytes of the addresses in an IPv4 header."""
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
            if pair.drop:
                pair.dropped += 1
            elif pair.delay_s or pair.due:
                self._hold(pair, target, packet)
            else:
                pair.passed += 1
                self._deliver(target, packet)

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

    def _answer(self, command: dict[str, list[tuple[int, int, bool, float]]]) -> object:
        if "heal" in command:
            for row in self._pairs:
                for pair in row:
                    pair.drop, pair.delay_s = False, 0.0
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
