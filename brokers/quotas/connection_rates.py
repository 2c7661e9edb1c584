"""How fast connections may be created: by address, by listener and by broker (KIP-612)."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Mapping
from typing import NamedTuple

from fleetlog.brokers.quotas.image import (
    BUCKETS_MAX,
    CONNECTION_CREATION_RATE,
    SAMPLES,
    WINDOW_MS,
    LeastRecentlyUsed,
    QuotaImage,
    WindowedRate,
)

ADDRESSES_KNOWN = 4096
"""Addresses that need not be read again."""


class Acceptance(NamedTuple):
    """What to do with a connection that was accepted; one of the two is 0.

    ``wait_ms``: the listener accepts no further connection for so long; this one is served.
    ``close_after_ms``: this connection is never read, and closed after so long, so that its client waits.
    """

    wait_ms: int = 0
    close_after_ms: int = 0


class _Address(NamedTuple):
    text: str
    bucket: str


@functools.lru_cache(ADDRESSES_KNOWN)
def _address(ip: str) -> _Address:
    """An address as quotas name it, and what counts as one: an IPv4 address, mapped ones too, or a /64 of IPv6."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return _Address(ip, ip)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return _Address(str(address), str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64))))
        address = address.ipv4_mapped
    return _Address(str(address), str(address))


class ConnectionRates:
    """Counts new connections. ``max.connection.creation.rate`` is per broker and per listener; None: no limit.

    Rates are connections per second. Throttles are one window at most. The listener that brokers use among themselves
    should not be asked about.
    """

    def __init__(
        self,
        broker_rate: int | None = None,
        listener_rates: Mapping[str, int] | None = None,
        samples: int = SAMPLES,
        window_ms: int = WINDOW_MS,
        addresses_max: int = BUCKETS_MAX,
    ) -> None:
        self._window_ms = window_ms
        self.broker_rate = broker_rate
        """May be changed at any time."""
        self._listener_rates = dict(listener_rates or {})
        self._broker = WindowedRate(samples, window_ms)
        self._listeners = {name: WindowedRate(samples, window_ms) for name in self._listener_rates}
        self._addresses: LeastRecentlyUsed[str, WindowedRate] = LeastRecentlyUsed(
            lambda: WindowedRate(samples, window_ms), addresses_max
        )

    @property
    def addresses(self) -> int:
        """How many addresses are counted now."""
        return len(self._addresses)

    def accept(self, quotas: QuotaImage, listener: str, ip: str, mono_ms: int) -> Acceptance:
        """Counts one connection. One that is closed for its address counts for nothing."""
        rate_milli = None
        if quotas.has(CONNECTION_CREATION_RATE):
            address = _address(ip)
            rate_milli = quotas.connection_rate_milli(address.text)
        if rate_milli is not None:
            of_address = self._addresses.of(address.bucket)
            of_address.record(1, mono_ms)
            throttle_ms = min(of_address.throttle_ms(rate_milli, mono_ms), self._window_ms)
            if throttle_ms:
                of_address.record(-1, mono_ms)
                return Acceptance(close_after_ms=throttle_ms)
        wait_ms = 0
        if self.broker_rate is not None:
            self._broker.record(1, mono_ms)
            wait_ms = self._broker.throttle_ms(self.broker_rate * 1000, mono_ms)
        listener_rate = self._listener_rates.get(listener)
        if listener_rate is not None:
            self._listeners[listener].record(1, mono_ms)
            wait_ms = max(wait_ms, self._listeners[listener].throttle_ms(listener_rate * 1000, mono_ms))
        return Acceptance(wait_ms=min(wait_ms, self._window_ms))
