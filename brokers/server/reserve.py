"""Room for the connections of other brokers when ``max.connections`` or ``max.connections.per.ip`` is reached.

Replication must not stop because clients have taken every connection, also where brokers and clients share a listener
(Kafka exempts the listener of the brokers among themselves; so do we, if there is one). A broker is known by its first
request: the client id in its header is that of a registered broker. The server looks at it without taking it out of the
socket, so an admitted connection begins as any other; where it comes through TLS, it is looked at behind the handshake.
What says nothing within two seconds, or something else, goes.

Whether a client may name itself a broker is not checked before brokers authenticate; ``inter.broker.listener.name``
with an address that clients can't reach is what keeps strangers out.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

from fleetlog.brokers.timers import Timer, Timers

CONNECTIONS_PER_BROKER = 8
"""A broker has one for its requests and one to replicate; the rest is for those of its previous process."""
MAX_WAITING = 64
PATIENCE_MS = 2_000
_HEAD_BYTES = 64
_CLIENT_ID_AT = 14
"""Behind the frame's size, API key, version, correlation id and the client id's length."""
_BROKER = re.compile(rb"(?:broker|replica)-(\d{1,10})")


class FirstBytes(Protocol):
    """A connection whose first bytes can be looked at."""

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        """Call back when there is something to look at."""
        ...

    def remove_reader(self, fd: int) -> object:
        """Call back no more."""
        ...

    def peek(self, limit: int) -> bytes:
        """So many first bytes at most, which stay where they are. Raises OSError, BlockingIOError for none yet."""
        ...


class PlainFirstBytes:
    """Those of a socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = loop

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        """Call back when there is something to look at."""
        self._loop.add_reader(fd, callback)

    def remove_reader(self, fd: int) -> None:
        """Call back no more."""
        self._loop.remove_reader(fd)

    def peek(self, limit: int) -> bytes:
        """So many first bytes at most."""
        return self._sock.recv(limit, socket.MSG_PEEK)


class _Waiting(NamedTuple):
    fd: int
    first: FirstBytes
    admit: Callable[[], None]
    refuse: Callable[[], None]
    timer: Timer


class Reserve:
    """See the module. ``brokers`` gives the ids of the other registered brokers. Loop thread only."""

    def __init__(self, timers: Timers, brokers: Callable[[], set[int]]) -> None:
        self._timers = timers
        self._brokers = brokers
        self._waiting: dict[int, _Waiting] = {}
        self._broker_of: dict[int, int] = {}
        self._used: Counter[int] = Counter()

    @property
    def wanted(self) -> bool:
        """Whether there are other brokers at all."""
        return bool(self._brokers())

    def consider(
        self, number: int, fd: int, first: FirstBytes, admit: Callable[[], None], refuse: Callable[[], None]
    ) -> None:
        """Wait for the first request on a non-blocking socket, then call one of the two.

        ``number`` names the connection from now on, ``fd`` is its socket's. Of those that wait the one that has waited
        longest makes room.
        """
        if not self._brokers():
            refuse()
            return
        if len(self._waiting) >= MAX_WAITING:
            self._refuse(next(iter(self._waiting)))
        timer = self._timers.later(PATIENCE_MS, functools.partial(self._refuse, number))
        self._waiting[number] = _Waiting(fd, first, admit, refuse, timer)
        first.add_reader(fd, functools.partial(self._look, number))

    def leave(self, number: int) -> bool:
        """A connection is closed; whether it was one from here."""
        broker_id = self._broker_of.pop(number, None)
        if broker_id is None:
            return False
        self._used[broker_id] -= 1
        return True

    def close(self) -> None:
        """Refuse all that wait."""
        for number in list(self._waiting):
            self._refuse(number)

    def _look(self, number: int) -> None:
        try:
            head = self._waiting[number].first.peek(_HEAD_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            head = b""
        broker_id = _broker_in(head)
        if broker_id not in self._brokers() or self._used[broker_id] >= CONNECTIONS_PER_BROKER:
            self._refuse(number)
            return
        self._broker_of[number] = broker_id
        self._used[broker_id] += 1
        self._end(number).admit()

    def _refuse(self, number: int) -> None:
        self._end(number).refuse()

    def _end(self, number: int) -> _Waiting:
        waiting = self._waiting.pop(number)
        waiting.timer.cancel()
        waiting.first.remove_reader(waiting.fd)
        return waiting


def _broker_in(head: bytes) -> int:
    """The broker whose request begins so; -1 for none. Brokers send a header at once, in one piece."""
    length = int.from_bytes(head[_CLIENT_ID_AT - 2 : _CLIENT_ID_AT], "big")
    match = _BROKER.fullmatch(head[_CLIENT_ID_AT : _CLIENT_ID_AT + length])
    return int(match[1]) if match is not None else -1
