"""What a broker gives its peers at most: bytes of requests in flight, connections in all and per address."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address, ip_address

logger = logging.getLogger(__name__)

SELDOM_MS = 60_000
MOST_SUBJECTS = 1_000


class ByteBudget:
    """Bytes of requests held at once, over all connections. A request that finds none left waits its turn."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def reserve(self, size: int) -> bool:
        """Take ``size`` bytes, or say no. One request always fits when nothing else is held."""
        if self.used and self.used + size > self.limit:
            return False
        self.used += size
        return True

    def force(self, size: int) -> None:
        """Take bytes that are in memory already."""
        self.used += size

    def release(self, size: int) -> None:
        """Give bytes back, and let the waiting ones try again."""
        self.used -= size
        assert self.used >= 0, "more bytes were released than taken"
        if self._waiting and self.used < self.limit:
            waiting, self._waiting = self._waiting, deque()
            for resume in waiting:
                resume()

    def wait(self, resume: Callable[[], None]) -> None:
        """Call back when bytes were given back; they may be gone again by then."""
        self._waiting.append(resume)


class ConnectionCaps:
    """How many connections there may be. Listeners of the brokers among themselves don't count.

    ``overrides`` are items ``address:count``, for single hosts instead of ``per_host``.
    """

    def __init__(self, total: int, per_host: int, overrides: Sequence[str] = ()) -> None:
        self._total = total
        self._per_host = per_host
        self._given: Sequence[str] = ()
        self._overrides: dict[str, int] = {}
        self.limit(total, per_host, overrides)
        self._hosts: dict[str, int] = {}
        self.count = 0

    def limit(self, total: int, per_host: int, overrides: Sequence[str] = ()) -> None:
        """Change the caps; connections that are there stay."""
        self._total = total
        self._per_host = per_host
        if overrides != self._given:
            self._given = overrides
            items = (item.rpartition(":") for item in overrides)
            self._overrides = {_plain(host.strip("[]")): int(count) for host, _, count in items}

    def admit(self, host: str) -> str | None:
        """Count a connection in, or name the cap that refuses it."""
        if self.count >= self._total:
            return "max.connections"
        most, cap = self._per_host, "max.connections.per.ip"
        if self._overrides:
            override = self._overrides.get(_plain(host))
            if override is not None:
                most, cap = override, "max.connections.per.ip.overrides"
        if self._hosts.get(host, 0) >= most:
            return cap
        self.count += 1
        self._hosts[host] = self._hosts.get(host, 0) + 1
        return None

    def leave(self, host: str) -> None:
        """Count a connection out."""
        self.count -= 1
        left = self._hosts[host] - 1
        if left:
            self._hosts[host] = left
        else:
            del self._hosts[host]


def _plain(host: str) -> str:
    """An address as one text, also IPv4 over IPv6; what is no address stays as it is."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class QuietLog:
    """Log lines that a hostile peer can cause: at most ``rate`` a second, then a count of what was left out."""

    def __init__(self, now_ms: Callable[[], int], rate: int = 10) -> None:
        self._now_ms = now_ms
        self._rate = rate
        self._second = 0
        self._lines = 0
        self._dropped = 0
        self._said_ms: dict[str, int] = {}

    def seldom(self, subject: str, text: str, *args: object) -> None:
        """Log as :meth:`warning`, but about a subject (a peer) at most once a minute."""
        now_ms = self._now_ms()
        if now_ms - self._said_ms.get(subject, -SELDOM_MS) < SELDOM_MS:
            return
        if len(self._said_ms) >= MOST_SUBJECTS:
            self._said_ms.clear()
        self._said_ms[subject] = now_ms
        self.warning(text, *args)

    def warning(self, text: str, *args: object) -> None:
        """Log, or count."""
        second = self._now_ms() // 1000
        if second != self._second:
            if self._dropped:
                logger.warning("%d more refusals were not logged", self._dropped)
            self._second, self._lines, self._dropped = second, 0, 0
        self._lines += 1
        if self._lines > self._rate:
            self._dropped += 1
        else:
            logger.warning(text, *args)
