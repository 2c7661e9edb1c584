"""Ports of the loopback for servers that are about to start, for development and tests."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from collections import deque
from pathlib import Path

from fleetlog._native.temporary import own_directory

FIRST_PORT, USUAL_OUTGOING = 10_000, 32_768
"""Of a server here; and where Linux usually begins with the ports of outgoing connections."""
TRIES, ENOUGH_PORTS = 1_000, 5_000
CLAIMED_MAX = 4_000
"""How many given ports a process remembers: fewer than there are."""


class _Claims:
    """The ports given to this process, which no other call is given meanwhile, here or in another process.

    A port that was given is free until its server listens, and a server may be started much later. Other processes see
    the claim as a lock on the port's byte of a file that they share; it ends with the process at the latest. Where
    there can be no such file, or no locks, claims hold within the process.
    """

    def __init__(self) -> None:
        self._given: deque[int] = deque()
        self._file: int | None = None
        self._process = -1

    def take(self, port: int) -> bool:
        """Claim the port; False if it is claimed."""
        if self._process != os.getpid():  # a fork inherits the file, but no lock
            self._process, self._file = os.getpid(), self._opened()
            self._given.clear()
        if port in self._given:
            return False
        if self._file is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except (BlockingIOError, PermissionError):
                return False
            except OSError:  # a file system without locks
                os.close(self._file)
                self._file = None
        self._given.append(port)
        if len(self._given) > CLAIMED_MAX:
            oldest = self._given.popleft()
            if self._file is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, oldest)
        return True

    @staticmethod
    def _opened() -> int | None:
        try:
            return os.open(own_directory("ports") / "claimed", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None


_claims = _Claims()


def free_ports(count: int) -> list[int]:
    """Different ports of the loopback that are free now, and that no other call is given while this process lives.

    They are below those that the kernel gives to outgoing connections: one of these could have a server's port while
    the server is restarted. Raises OSError where there are none.
    """
    ports: list[int] = []
    while len(ports) < count:
        ports += free_row(1)
    return ports


def free_row(count: int) -> list[int]:
    """The same, one after the other without a gap."""
    end = _first_outgoing()
    chance = random.SystemRandom()  # a seed that tests share would make them try the same ones
    for _ in range(TRIES):
        first = chance.randrange(FIRST_PORT, end - count)
        row = list(range(first, first + count))
        if all(is_free(port) and _claims.take(port) for port in row):
            return row
    raise OSError(f"no {count} ports in a row are free among those of 127.0.0.1 from {FIRST_PORT} to {end}")


def _first_outgoing() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return USUAL_OUTGOING
    return first if first >= FIRST_PORT + ENOUGH_PORTS else USUAL_OUTGOING


def is_free(port: int) -> bool:
    """Whether nothing listens on the loopback's port now."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen(1)  # several sockets may be bound to a port as long as none listens
        except OSError:
            return False
        return True
