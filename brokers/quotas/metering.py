"""What clients use, measured against their quotas, and how long their connections are muted for it (KIP-219).

A connection that a quota may govern has a :class:`Meter`, any other None: what is measured is decided where the quotas
change, and requests of other connections pay nothing. An answer is never held back. It leaves at once and says how long
its connection is muted; nothing is read from it for that time.

Requests of brokers are exempt: those that need ClusterAction, what comes by a listener that is the brokers' own, and
what the brokers' own principal sends after a login.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from fleetlog.brokers.acls.settings import inter_broker_principal
from fleetlog.brokers.logins.principals import ANONYMOUS
from fleetlog.brokers.quotas.image import (
    BUCKETS_MAX,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    SAMPLES,
    WINDOW_MS,
    Allowance,
    ClientQuotas,
    LeastRecentlyUsed,
    QuotaImage,
    WindowedRate,
)

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.metrics.registry import Metrics
    from fleetlog.brokers.model import Clock


CLIENTS_TOLD: Final = 100
"""Clients that metrics name; what is behind them is counted as ``OTHERS``."""
OTHERS: Final = "others"
PRODUCED, FETCHED, TIME, MUTATIONS, CREATED = "produce", "fetch", "request", "mutations", "connections"
_CLIENT_ID_AT: Final = 12
"""Where a frame, its size included, has the client id."""
_NS: Final = 1_000_000_000
FETCH_BYTES_MAX: Final = 2**31 - 1


class Mutable(Protocol):
    """A connection, as far as it can be muted."""

    def mute(self, mute_ms: int) -> None:
        """Read and execute nothing for so long; what is answered still leaves."""


class MeteredPeer(Protocol):
    """How a connection came, and whose it is."""

    @property
    def listener(self) -> str:
        """The name of its listener."""

    @property
    def principal(self) -> str:
        """``User:name``."""


def client_id_in(data: memoryview, start: int) -> str:
    """That of the frame that begins there; empty for none. Its size and header are there."""
    at = start + _CLIENT_ID_AT
    length = max(0, int.from_bytes(data[at : at + 2], "big", signed=True))
    return bytes(data[at + 2 : at + 2 + length]).decode(errors="replace")


class Meter:
    """Measures the requests of one connection; those of one client id at a time."""

    __slots__ = (
        "_bytes", "_metering", "_mono_ms", "_user", "asked_s", "client_id", "fetch_bytes_max", "fetched", "known",
        "produced", "time", "timed",
    )  # fmt: skip

    def __init__(self, metering: Metering, user: str) -> None:
        self._metering = metering
        self._mono_ms = metering.clock.mono_ms
        self._user = user
        self._bytes = 0
        self.asked_s = 0.0
        """When the latest request began to be executed, by the clock of the dispatcher."""
        self.known = False
        """Whether a request has named the client id. It is that of the last one that was not executed as a run."""
        self.timed = True
        """Whether its client waits for an answer: else only its bytes are measured."""
        self._resolve("")

    def _resolve(self, client_id: str) -> None:
        allowance = self._metering.quotas.allowance
        self.client_id = client_id
        self.produced = allowance(PRODUCER_BYTE_RATE, self._user, client_id)
        self.fetched = allowance(CONSUMER_BYTE_RATE, self._user, client_id)
        self.time = allowance(REQUEST_PERCENTAGE, self._user, client_id)
        most = self._metering.quotas.fetch_bytes_max(self._user, client_id)
        self.fetch_bytes_max = FETCH_BYTES_MAX if most is None else min(most, FETCH_BYTES_MAX)
        """What one Fetch may ask for: all windows' worth at most."""

    def of_client(self, client_id: str) -> None:
        """What comes next is of that client id."""
        self.timed = self.known = True
        if client_id != self.client_id:
            self._resolve(client_id)

    def of_frame(self, data: memoryview, start: int) -> None:
        """What comes next is of the client id in the frame that begins there; its size and header are there."""
        self.of_client(client_id_in(data, start))

    def add(self, produced_bytes: int) -> None:
        """Bytes of requests that carry records, and are measured next."""
        self._bytes += produced_bytes

    def measure(self, connection: Mutable, started_s: float, ended_s: float) -> None:
        """A request was executed, of which :meth:`add` has the bytes."""
        produced_bytes, self._bytes = self._bytes, 0
        if produced_bytes and self.produced is not None:
            mute_ms = self.produced.spend(produced_bytes, started_s, self._metering.clock.mono_ms)
            if mute_ms:
                self._mute(connection, PRODUCED, mute_ms)
        if self.time is not None:
            self.spent(connection, started_s, ended_s)

    def spent(self, connection: Mutable, started_s: float, ended_s: float) -> None:
        """Time of the loop for what the client asked; mutes for one window at most."""
        if self.time is not None and self.timed:
            mute_ms = self.time.spend(int((ended_s - started_s) * _NS), started_s, self._metering.clock.mono_ms)
            if mute_ms:
                self._mute(connection, TIME, min(mute_ms, self._metering.window_ms))

    def may_fetch(self, connection: Mutable, size_bytes: int, at_once: bool = False) -> bool:
        """Counts records that an answer has. False: the answer must have none, and they are not counted.

        ``at_once``: it is the latest request's answer, so that :attr:`asked_s` is the time. One answer is always given
        where nothing else was counted: a batch may be larger than all windows' worth.
        """
        fetched = self.fetched
        if fetched is None:
            return True
        left = fetched.left - size_bytes
        if left >= 0 and (self.asked_s < fetched.until_s if at_once else self._mono_ms() < fetched.until_ms):
            fetched.left = left
            return True
        return self._may_fetch(connection, fetched, size_bytes)

    def _may_fetch(self, connection: Mutable, fetched: Allowance, size_bytes: int) -> bool:
        """After a look at the rate."""
        now_ms = self._mono_ms()
        mute_ms = fetched.renew(size_bytes, self.asked_s, now_ms)
        if not mute_ms:
            return True
        self._mute(connection, FETCHED, mute_ms)
        if fetched.used(now_ms) <= size_bytes:
            return True
        fetched.record(-size_bytes, now_ms)
        return False

    def may_mutate(self, connection: Mutable, partitions: int, *, strict: bool) -> bool:
        """Counts partitions to create or to delete, a negative number takes back. False: error 89.

        ``strict``: the request's version knows that error.
        """
        allowed, mute_ms = self._metering.quotas.record_mutations(
            self._user, self.client_id, partitions, self._metering.clock.mono_ms(), strict
        )
        if mute_ms and partitions > 0:
            self._mute(connection, MUTATIONS, mute_ms)
        return allowed

    def _mute(self, connection: Mutable, quota: str, mute_ms: int) -> None:
        self._metering.count(quota, self._user, self.client_id, mute_ms)
        connection.mute(mute_ms)


Spent = Callable[[float, float], None]
"""Gets when something began and ended, in seconds."""


def timed_work(work: Generator[Any, None, Any], spent: Spent, now: Callable[[], float]) -> Generator[Any, None, Any]:
    """The same paced work; the time of each step is measured."""
    try:
        while True:
            begun = now()
            try:
                place = next(work)
            except StopIteration as ended:
                return ended.value
            finally:
                spent(begun, now())
            yield place
    finally:
        work.close()


class TimedCoroutine(Coroutine[Any, Any, Any]):
    """The same coroutine; the time of each step is measured, not that for which it waits."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], spent: Spent, now: Callable[[], float]) -> None:
        self._coroutine, self._spent, self._now = coroutine, spent, now

    def send(self, value: Any) -> Any:
        """Go on to the next thing that is waited for."""
        begun = self._now()
        try:
            return self._coroutine.send(value)
        finally:
            self._spent(begun, self._now())

    def throw(self, *error: Any) -> Any:
        """Go on with an exception."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Give up."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self.send
        value: Any = None
        while True:
            try:
                awaited = step(value)
            except StopIteration as ended:
                return ended.value
            try:
                value = yield awaited
                step = self.send
            except BaseException as error:
                value, step = error, self.throw


class Metering:
    """What all clients of a broker use."""

    def __init__(self, config: BrokerConfig, clock: Clock, metrics: Metrics) -> None:
        self.clock = clock
        self.window_ms = config.quota_window_size_seconds * 1000
        self.quotas = ClientQuotas(
            samples=config.quota_window_num,
            window_ms=self.window_ms,
            mutation_windows=(config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000),
        )
        self._metrics = metrics
        self._exempt_listener = config.inter_broker_listener() if len(config.listener_endpoints()) > 1 else None
        own = inter_broker_principal(config)
        self._exempt_principal = None if own == str(ANONYMOUS) else own

    def replace(self, image: QuotaImage) -> None:
        """Other quotas from now on: every connection needs another meter."""
        self.quotas.replace(image)

    def meter(self, peer: MeteredPeer) -> Meter | None:
        """What measures a connection; None if no quota can govern it."""
        if peer.listener == self._exempt_listener or peer.principal == self._exempt_principal:
            return None
        user = peer.principal.partition(":")[2]
        return Meter(self, user) if self.quotas.image.may_concern(user) else None

    def count(self, quota: str, user: str, client_id: str, mute_ms: int) -> None:
        """A connection is muted: for the metrics."""
        metrics = self._metrics
        metrics.throttled.labels(quota).inc()
        metrics.throttle_ms.labels(quota).inc(mute_ms)
        by_client = metrics.throttle_ms_by_client
        name = f"{user}/{client_id}"[:200]
        if name not in by_client.children and len(by_client.children) >= CLIENTS_TOLD:
            name = OTHERS
        by_client.labels(name).inc(mute_ms)


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
    """Counts new connections (KIP-612). ``max.connection.creation.rate`` is of broker and listener; None: no limit.

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
