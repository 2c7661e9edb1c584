"""How fast connections may be created (KIP-612): by address, by listener, by broker; decided when they are accepted.

Above its address's rate a connection is not read, and closed a moment later, so that its client waits; other addresses
are served. Above the rate of the listener or the broker the listener accepts no further one for a moment.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetlog.brokers.security.connection_rates import ConnectionRates
from fleetlog.brokers.security.quotas import QuotaImage
from fleetlog.brokers.setting_kinds import ConfigError

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.timers import Timers

SETTING: Final = "max.connection.creation.rate"
NO_LIMIT: Final = 2**31 - 1
HELD_MAX: Final = 1_000
"""Connections that wait for their end at once; more are closed at once."""


class CreationVerdict(NamedTuple):
    """``refused``: the connection is not served. ``wait_ms``: the listener accepts no other one for so long."""

    refused: Callable[[], None] | None = None
    wait_ms: int = 0


SERVE: Final = CreationVerdict()


class CreationLimits:
    """The rates of one broker. Raises ConfigError for a rate of a listener that is no number."""

    def __init__(self, config: BrokerConfig, listeners: Iterable[str], timers: Timers) -> None:
        self._timers = timers
        self._held: set[socket.socket] = set()
        rates = {name: _rate_of(config, name) for name in listeners}
        self._rates = ConnectionRates(
            listener_rates={name: rate for name, rate in rates.items() if rate is not None},
            samples=config.quota_window_num,
            window_ms=config.quota_window_size_seconds * 1000,
        )

    def look(
        self, sock: socket.socket, listener: str, host: str, image: QuotaImage, broker_rate: int, now_ms: int
    ) -> CreationVerdict:
        """Counts a connection that was accepted; ``broker_rate`` is the dynamic setting."""
        self._rates.broker_rate = broker_rate if broker_rate < NO_LIMIT else None
        accepted = self._rates.accept(image, listener, host, now_ms)
        if accepted.close_after_ms:
            return CreationVerdict(partial(self._hold, sock, accepted.close_after_ms))
        return CreationVerdict(None, accepted.wait_ms) if accepted.wait_ms else SERVE

    def _hold(self, sock: socket.socket, close_after_ms: int) -> None:
        if len(self._held) >= HELD_MAX:
            sock.close()
            return
        self._held.add(sock)
        self._timers.later(close_after_ms, partial(self._release, sock))

    def _release(self, sock: socket.socket) -> None:
        self._held.discard(sock)
        sock.close()

    def close(self) -> None:
        """Close what is held."""
        for sock in list(self._held):
            self._release(sock)


def _rate_of(config: BrokerConfig, listener: str) -> int | None:
    text = config.of_listener(listener).get(SETTING)
    if text is None:
        return None
    try:
        rate = int(text)
    except ValueError:
        rate = -1
    if not 0 <= rate <= NO_LIMIT:
        name = f"listener.name.{listener.lower()}.{SETTING}"
        raise ConfigError(name, text, f"must be a whole number from 0 to {NO_LIMIT}: connections per second")
    return None if rate == NO_LIMIT else rate
