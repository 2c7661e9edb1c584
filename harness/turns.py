"""An event loop whose turns are taken one by one, and the other end of a connection of a server that runs on it."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any

SIZE_BYTES = 4
"""Of the length before each request and answer."""


class TurnLoop:
    """The part of an event loop that the server uses. Timers never fire; time stands."""

    def __init__(self) -> None:
        self.callbacks: dict[tuple[int, int], tuple[Callable[..., None], tuple[Any, ...]]] = {}
        """By descriptor and poll event."""
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def add_reader(self, fd: int, callback: Callable[..., None], *args: Any) -> None:
        self.callbacks[fd, select.POLLIN] = callback, args

    def add_writer(self, fd: int, callback: Callable[..., None], *args: Any) -> None:
        self.callbacks[fd, select.POLLOUT] = callback, args

    def remove_reader(self, fd: int) -> None:
        self.callbacks.pop((fd, select.POLLIN), None)

    def remove_writer(self, fd: int) -> None:
        self.callbacks.pop((fd, select.POLLOUT), None)

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self.soon.append((callback, args))

    def call_later(self, *_: Any) -> Any:
        return _NeverDue()

    call_at = call_later

    def time(self) -> float:
        return 0.0

    def turn(self, fd: int) -> None:
        """One turn in which the descriptor is readable."""
        callback, args = self.callbacks[fd, select.POLLIN]
        callback(*args)
        self.run_soon()

    def run_soon(self) -> None:
        """The rest of a turn: what callbacks left for it."""
        while self.soon:
            soon, self.soon = self.soon, []
            for callback, args in soon:
                callback(*args)


class _NeverDue:
    def cancel(self) -> None:
        """Nothing to do."""


class TurnClient:
    """The other end of a connection; ``fd`` is the server's end of it."""

    def __init__(self, loop: TurnLoop, port: int, listener: int) -> None:
        self.loop = loop
        self.sock = socket.create_connection(("127.0.0.1", port))
        known = set(loop.callbacks)
        loop.turn(listener)
        ((self.fd, _),) = set(loop.callbacks) - known
        self.poll = select.poll()  # descriptors may be many
        for fd in (self.fd, self.sock.fileno()):
            self.poll.register(fd, select.POLLIN)

    def arrive(self) -> None:
        """What was sent is received by the server, in a turn that is not over yet."""
        while self.fd not in [fd for fd, _ in self.poll.poll()]:
            pass
        self.loop.callbacks[self.fd, select.POLLIN][0]()

    def ask(self, requests: bytes, count: int) -> bytes:
        """Send, let the server work, and receive so many answers."""
        self.sock.sendall(requests)
        received, end = bytearray(), 0
        while count:
            readable = [fd for fd, _ in self.poll.poll()]
            if self.fd in readable:
                self.loop.turn(self.fd)
            if (self.fd, select.POLLOUT) in self.loop.callbacks:
                self.loop.callbacks[self.fd, select.POLLOUT][0]()
            if self.sock.fileno() in readable:
                received += self.sock.recv(1 << 20)
            while count and len(received) >= end + SIZE_BYTES + _size(received, end):
                end += SIZE_BYTES + _size(received, end)
                count -= 1
        return bytes(received)


def _size(data: bytes | bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + SIZE_BYTES], "big")
