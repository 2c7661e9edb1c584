"""The server: named listeners, the connections behind them, and the caps on both.

How fast connections may be created (KIP-612) is decided when they are accepted: above its address's rate a connection
is not read, and closed a moment later, so that its client waits; other addresses are served. Above the rate of the
listener or the broker the listener accepts no further one for a moment.

When ``max.connections`` or ``max.connections.per.ip`` is reached, there is room for the connections of other brokers.
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
import dataclasses
import errno
import functools
import logging
import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from fleetlog.brokers.addresses import SASL_PROTOCOLS, TLS_PROTOCOLS
from fleetlog.brokers.api.base import ClientConnection, OpenConnection, Services
from fleetlog.brokers.logins.sasl import SaslListener
from fleetlog.brokers.metrics.exposition import BROKER_PAGE, KAFKA_PAGE, by_slices
from fleetlog.brokers.model import Endpoint
from fleetlog.brokers.quotas.image import QuotaImage
from fleetlog.brokers.quotas.metering import CREATED, ConnectionRates, Meter, Metering
from fleetlog.brokers.server.connection import (
    Connection,
    ConnectionBatcher,
    ConnectionLogin,
    TlsConnection,
    close_logins,
)
from fleetlog.brokers.server.descriptors import Descriptors
from fleetlog.brokers.server.disk import ReadAhead
from fleetlog.brokers.server.dispatch import Dispatcher
from fleetlog.brokers.server.framing import Blocks
from fleetlog.brokers.server.limits import ByteBudget, ConnectionCaps, QuietLog
from fleetlog.brokers.server.login import LoginGate
from fleetlog.brokers.server.tls_transport import (
    CERTIFICATE_LOGIN,
    Handshake,
    Handshakes,
    Opened,
    TlsBlocks,
    TlsTransport,
)
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.timers import Timer, Timers
from fleetlog.brokers.tls.listeners import CertificateWatch, TlsListener

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.metrics.registry import Counter as Counted
    from fleetlog.brokers.metrics.registry import Metrics
    from fleetlog.brokers.model import Clock

logger = logging.getLogger(__name__)


SOFTWARE_MAX = 50
"""Names and versions that metrics name: those with the most connections; the rest are other."""
_PER_SLICE = 500
WINDOW_MS = 60_000
PROCESSOR = "networkProcessor"


class CreationRates:
    """Connections per second by listener, of the last minute or since the scrape before if that is longer ago."""

    def __init__(self, created: Mapping[str, Counted], clock: Clock) -> None:
        self._created = created
        self._clock = clock
        self._before: deque[tuple[int, dict[str, int]]] = deque([(clock.mono_ms(), {})])

    def by_listener(self) -> dict[str, float]:
        """As of now."""
        now_ms, now = self._clock.mono_ms(), {name: one.value for name, one in self._created.items()}
        while len(self._before) > 1 and self._before[1][0] <= now_ms - WINDOW_MS:
            self._before.popleft()
        then_ms, then = self._before[0]
        if now_ms - self._before[-1][0] >= WINDOW_MS // 12:
            self._before.append((now_ms, now))
        return {name: 1000 * (count - then.get(name, 0)) / max(1, now_ms - then_ms) for name, count in now.items()}


class ConnectionFigures:
    """Counts the connections that are open when it is asked, and tells how fast they come."""

    def __init__(
        self, metrics: Metrics, connections: Mapping[int, Connection], listeners: Sequence[str], clock: Clock
    ) -> None:
        self._metrics = metrics
        self._connections = connections
        self._listeners = listeners
        for listener in listeners:
            metrics.created_connections.labels(listener)
        self._rates = CreationRates(metrics.created_connections.children, clock)

    def collect(self) -> Iterator[Metric | None]:
        """By the broker's own names."""
        yield from self._families(
            "fleetlog_listener_connections", "fleetlog_client_connections", "fleetlog_tls_connections"
        )

    def collect_for_kafka(self) -> Iterator[Metric | None]:
        """By the names of Kafka's dashboards. One loop is all network processors."""
        name = "kafka_server_socket_server_metrics"
        yield from self._families(
            f"{name}_connection_count", f"{name}_connections_software", f"{name}_connections_tls_info", kafka=True
        )
        rates = GaugeMetricFamily(
            f"{name}_connection_creation_rate", "Connections per second, of the last minute.",
            labels=["listener", PROCESSOR],
        )  # fmt: skip
        for listener, rate in self._rates.by_listener().items():
            rates.add_metric([listener, "0"], rate)
        yield rates
        counts: Counter[tuple[str, str]] = Counter()
        for (listener, _, result), number in self._metrics.authentications.items():
            counts[listener, result] += number
        for result, word in (("success", "successful"), ("failure", "failed")):
            family = CounterMetricFamily(
                f"{name}_{word}_authentication", "Logins by SASL, and TLS handshakes where there is no SASL.",
                labels=["listener", PROCESSOR],
            )  # fmt: skip
            for listener in self._listeners:
                family.add_metric([listener, "0"], counts[listener, result])
            yield family

    def _families(
        self, by_listener: str, by_software: str, by_tls: str, *, kafka: bool = False
    ) -> Iterator[Metric | None]:
        listeners: Counter[str] = Counter(dict.fromkeys(self._listeners, 0))
        software: Counter[tuple[str, str, str]] = Counter()
        ciphers: Counter[tuple[str, str, str]] = Counter()
        for some in by_slices(self._connections.values(), _PER_SLICE):
            listeners.update([one.peer.listener for one in some])
            software.update([(*one.software, one.peer.listener) for one in some])
            ciphers.update([(*one.tls, one.peer.listener) for one in some if isinstance(one, TlsConnection)])
            yield None
        more, zero = ([PROCESSOR], ("0",)) if kafka else ([], ())
        family = GaugeMetricFamily(by_listener, "Open connections by listener.", labels=["listener", *more])
        for listener, count in listeners.items():
            family.add_metric([listener, *zero], count)
        yield family
        labels = ("clientSoftwareName", "clientSoftwareVersion") if kafka else ("software", "version")
        family = GaugeMetricFamily(by_software, "Open connections by client.", labels=[*labels, "listener", *more])
        named = software.most_common(SOFTWARE_MAX)
        for key, count in named:
            family.add_metric([*key, *zero], count)
        rest = software.total() - sum(count for _, count in named)
        if rest:
            family.add_metric(["other", "other", "other", *zero], rest)
        yield family
        family = GaugeMetricFamily(
            by_tls, "Open connections with TLS.", labels=["cipher", "protocol", "listener", *more]
        )  # fmt: skip
        for key, count in ciphers.items():
            family.add_metric([*key, *zero], count)
        yield family


def watch_connections(
    metrics: Metrics, connections: Mapping[int, Connection], listeners: Sequence[str], clock: Clock
) -> None:
    """Add the figures to the broker's pages."""
    figures = ConnectionFigures(metrics, connections, listeners, clock)
    metrics.register(BROKER_PAGE, figures.collect)
    metrics.register(KAFKA_PAGE, figures.collect_for_kafka)


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


CONNECTIONS_PER_BROKER = 8
"""A broker has one for its requests and one to replicate; the rest is for those of its previous process."""
MAX_WAITING = 64
PATIENCE_MS = 2_000
_HEAD_BYTES = 64
_CLIENT_ID_AT = 14
"""Behind the frame's size, API key, version, correlation id and the client id's length."""
_BROKER = re.compile(rb"(?:broker|replica)-(\d{1,10})")


class FirstBytes:
    """The first bytes of a socket, to be looked at; of one with TLS they are its ``TlsTransport``'s."""

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
        """So many first bytes at most, which stay where they are. Raises OSError, BlockingIOError for none yet."""
        return self._sock.recv(limit, socket.MSG_PEEK)


class _Waiting(NamedTuple):
    fd: int
    first: FirstBytes | TlsTransport
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
        self,
        number: int,
        fd: int,
        first: FirstBytes | TlsTransport,
        admit: Callable[[], None],
        refuse: Callable[[], None],
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


ACCEPTS_PER_TURN = 64
SWEEP_MS = 1_000
PARTIAL_FRAME_MS = 30_000
ACCEPT_PAUSE_MS = 200
METERED_PER_TURN = 500
INHERITED = ((socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE))
"""Switched on for listeners: the connections that they accept have them, too, without a call for each."""


class Server:
    """Accepts connections and executes their requests. Everything runs on one loop.

    :meth:`bind` takes the addresses and tells the ports that were chosen for port 0. :meth:`listen` makes them the
    broker's own, which comes before it registers: of two that are bound to a port only one may listen. Connections
    wait in the backlog until :meth:`serve`.
    """

    def __init__(self, config: BrokerConfig, descriptors: Descriptors | None = None) -> None:
        self.config = config
        self._inter_broker_listener = config.inter_broker_listener()
        self._descriptors = descriptors
        self._services: Services | None = None
        self._listening = False
        self._listeners: list[tuple[Endpoint, socket.socket]] = []
        self.connections: dict[int, Connection] = {}
        self._numbers = 0
        self._sweeper: Timer | None = None
        self.caps = ConnectionCaps(
            config.max_connections, config.max_connections_per_ip, config.max_connections_per_ip_overrides
        )
        self.budget = ByteBudget(config.queued_max_request_bytes)
        self.max_frame = config.socket_request_max_bytes
        self.max_control_frame = config.socket_control_request_max_bytes
        self.max_outbox = config.connection_outbox_max_bytes
        self.fits_send_buffers = config.socket_send_buffer_bytes == -1
        self.max_in_flight = config.max_in_flight_requests_per_connection
        self._metering: Metering | None = None
        self._creations: CreationLimits | None = None
        self.held_bytes = 0
        self._relieving = False
        self.blocks = Blocks()
        self._handshakes: Handshakes | None = None
        self._beside_caps: dict[int, Handshake] = {}

    # -- lifecycle ------------------------------------------------------------------------------------------------

    def bind(self, endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
        """Bind every listener; returns them with the ports that the system chose for port 0.

        Raises:
            OSError: an address is taken or not ours (``filename`` is it); nothing stays bound then.

        """
        sizes = (socket.SO_SNDBUF, self.config.socket_send_buffer_bytes), (
            socket.SO_RCVBUF, self.config.socket_receive_buffer_bytes,
        )  # fmt: skip
        buffer_sizes = [(option, size) for option, size in sizes if size != -1]
        try:
            for endpoint in endpoints:
                family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
                sock = socket.socket(family, socket.SOCK_STREAM)
                self._listeners.append((endpoint, sock))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                for level, option in INHERITED:
                    sock.setsockopt(level, option, 1)
                for option, size in buffer_sizes:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)
                sock.setblocking(False)
                try:
                    sock.bind((endpoint.host, endpoint.port))
                except OSError as error:
                    raise OSError(error.errno, error.strerror, f"{endpoint.host}:{endpoint.port}") from error
        except OSError:
            self._close_listeners()
            raise
        self._listeners = [
            (endpoint._replace(port=sock.getsockname()[1]), sock) for endpoint, sock in self._listeners
        ]  # fmt: skip
        return self.endpoints

    def listen(self) -> None:
        """Let clients connect; no-op if they can. They are answered from :meth:`serve` on.

        Raises:
            OSError: another process, bound to the same address, listens; ``filename`` is the address.

        """
        if self._listening:
            return
        for endpoint, sock in self._listeners:
            try:
                sock.listen(self.config.socket_listen_backlog_size)
            except OSError as error:
                raise OSError(error.errno, error.strerror, f"{endpoint.host}:{endpoint.port}") from error
        self._listening = True

    @property
    def serving(self) -> bool:
        """Are requests answered?"""
        return self._services is not None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where the server listens."""
        return tuple(endpoint for endpoint, _ in self._listeners)

    def serve(
        self,
        services: Services,
        handlers: dict[int, Callable[[Any, Any], Any]] | None = None,
        logins: Mapping[str, SaslListener] | None = None,
        tls: Mapping[str, TlsListener] | None = None,
    ) -> None:
        """Start to accept. ``handlers`` replaces the API table's handlers in tests. Raises OSError: as ``listen``.

        ``logins`` are those of the listeners with SASL, ``tls`` those with TLS, by name; each of them must be there.
        """
        self._logins = dict(logins or {})
        self._tls = dict(tls or {})
        for listener, protocol in ((endpoint.listener, endpoint.security_protocol) for endpoint in self.endpoints):
            if (protocol in SASL_PROTOCOLS) is not (listener in self._logins):
                raise RuntimeError(f"listener {listener} is {protocol}, but its logins are not")
            if (protocol in TLS_PROTOCOLS) is not (listener in self._tls):
                raise RuntimeError(f"listener {listener} is {protocol}, but its TLS is not")
        self.listen()
        self._services = services
        services.connections = self.described
        watch_connections(
            services.metrics, self.connections, [one.listener for one in self.endpoints], services.clock
        )  # fmt: skip
        self.loop = services.loop
        self.clock = services.clock
        self.metrics = services.metrics
        counting = services.metrics.counting
        self.received = services.metrics.bytes_in if counting else None
        self.sent = services.metrics.bytes_out if counting else None
        self._audit = services.audit
        self.quiet = QuietLog(services.clock.mono_ms)
        self.read_ahead = ReadAhead(self.loop)
        self.timers = services.timers
        self._metering = services.metering
        if self._metering is not None:
            self._creations = CreationLimits(self.config, [one.listener for one in self.endpoints], self.timers)
            self._metering.replace(services.quotas.image)
            services.quotas.on_change.append(self._quotas_changed)
        gate = LoginGate(services, self.quiet, self.config.connection_failed_authentication_delay_ms)
        self._dispatcher = Dispatcher(services, self.budget, self.quiet, handlers, gate=gate)
        self.dispatch = self._dispatcher.dispatch
        self.dispatch_run = self._dispatcher.dispatch_run
        self._reserve = Reserve(self.timers, self._other_brokers)
        self.join_batch = ConnectionBatcher(self.loop, self._dispatcher.dispatch_runs).join_batch
        if self._tls:
            self._begin_tls()
        for endpoint, sock in self._listeners:
            self.loop.add_reader(sock.fileno(), self._accept, endpoint, sock)
            logger.info("listens on %s://%s:%d", *endpoint[:3])
        self._sweep()

    def _begin_tls(self) -> None:
        self._tls_blocks = TlsBlocks()
        self._handshakes = Handshakes(
            self.loop, self.timers, self.clock, self.quiet, self.metrics, self._audit
        )  # fmt: skip
        self._certificates = CertificateWatch(
            self._tls, self._handshakes.workers, loop=self.loop, timers=self.timers, clock=self.clock,
            metrics=self.metrics,
        )  # fmt: skip
        self._certificates.start()

    def close(self) -> None:
        """Stop accepting and close every connection, after what can be sent at once."""
        self._close_listeners()
        if self._services is None:
            return
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._handshakes is not None:
            self._certificates.stop()
            self._handshakes.close()
        self._dispatcher.close()
        self._reserve.close()
        if self._creations is not None:
            self._creations.close()
        for connection in list(self.connections.values()):
            connection.flush_and_close("the broker stops")
        self.read_ahead.close()
        self._services = None

    def _close_listeners(self) -> None:
        for _, sock in self._listeners:
            if self._services is not None and sock.fileno() >= 0:
                self.loop.remove_reader(sock.fileno())
            sock.close()
        self._listeners = []
        self._listening = False

    # -- connections ----------------------------------------------------------------------------------------------

    def described(self, after_id: int) -> tuple[int, Iterator[OpenConnection]]:
        """How many are open, and those behind an id, each as it is when its turn comes; one may have closed till then.

        By their ids: one whose handshake took longer is among the connections behind younger ones.
        """
        connections = self.connections
        ids = sorted(number for number in connections if number > after_id)
        return len(connections), (connections[number].described() for number in ids if number in connections)

    def _accept(self, endpoint: Endpoint, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # accepting again at once would spin: the waiting connection stays in the backlog
                    if self._descriptors is not None and error.errno in (errno.EMFILE, errno.ENFILE):
                        self._descriptors.ran_out("cannot accept a connection", error)
                    else:
                        logger.error("cannot accept a connection: %s", error)
                    self.loop.remove_reader(listener.fileno())
                    self.timers.later(ACCEPT_PAUSE_MS, functools.partial(self._accept_again, endpoint, listener))
                    return
                raise
            wait_ms = self._admit(endpoint, sock, address[0])
            if wait_ms:
                self.loop.remove_reader(listener.fileno())
                self.timers.later(wait_ms, functools.partial(self._accept_again, endpoint, listener))
                return

    def _accept_again(self, endpoint: Endpoint, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self.loop.add_reader(listener.fileno(), self._accept, endpoint, listener)

    def _counted(self, listener: str) -> bool:
        """Brokers among themselves must not be shut out by clients, if they have a listener of their own."""
        return len(self._listeners) == 1 or listener != self._inter_broker_listener

    def _other_brokers(self) -> set[int]:
        metadata = self._services.metadata if self._services is not None else None
        return set(metadata.brokers) - {self.config.broker_id} if metadata is not None else set()

    def _admit(self, endpoint: Endpoint, sock: socket.socket, host: str) -> int:
        """Serve a connection, or refuse it; returns for how long (ms) its listener must accept no other one."""
        sock.setblocking(False)
        self._numbers += 1
        number = self._numbers
        if self._services is not None:
            config = self._services.metadata.effective  # the caps are dynamic
            self.caps.limit(
                config.max_connections, config.max_connections_per_ip, config.max_connections_per_ip_overrides
            )
        verdict = self._creation(endpoint, sock, host)
        if verdict.refused is not None:
            self.metrics.throttled.labels(CREATED).inc()
            self._look_for_broker(number, endpoint, sock, host, verdict.refused)
            return 0
        cap = self.caps.admit(host) if self._counted(endpoint.listener) else None
        if cap is None:
            self._begin(number, endpoint, sock, host)
            return verdict.wait_ms

        def refuse() -> None:
            self.metrics.refused.labels("connections").inc()
            self.quiet.warning("%s: refused, %s is reached", host, cap)
            sock.close()

        self._look_for_broker(number, endpoint, sock, host, refuse)
        return verdict.wait_ms

    def _creation(self, endpoint: Endpoint, sock: socket.socket, host: str) -> CreationVerdict:
        """Whether connections are created too fast."""
        services = self._services
        if services is None or self._creations is None or not self._counted(endpoint.listener):
            return SERVE
        rate = services.metadata.effective.max_connection_creation_rate
        return self._creations.look(sock, endpoint.listener, host, services.quotas.image, rate, self.clock.mono_ms())

    def _look_for_broker(
        self, number: int, endpoint: Endpoint, sock: socket.socket, host: str, refuse: Callable[[], None]
    ) -> None:
        """A connection over a bound is refused unless it is another broker's."""
        if endpoint.listener in self._tls:
            self._consider_behind_tls(number, endpoint, sock, host, refuse)
            return
        first = FirstBytes(self.loop, sock)
        self._reserve.consider(
            number, sock.fileno(), first, lambda: self._begin(number, endpoint, sock, host), refuse
        )  # fmt: skip

    def _consider_behind_tls(
        self, number: int, endpoint: Endpoint, sock: socket.socket, host: str, refuse: Callable[[], None]
    ) -> None:
        """What it says first cannot be read before a handshake, of which there are a few beside the caps."""
        theirs = endpoint.listener == self._inter_broker_listener  # no broker comes to another one
        if self._handshakes is None or not theirs or not self._reserve.wanted:
            refuse()
            return
        if len(self._beside_caps) >= MAX_WAITING:
            self._handshakes.drop(next(iter(self._beside_caps.values())))
        peer, tls = ClientConnection(number, endpoint.listener, host), self._tls[endpoint.listener]
        login = self._login(endpoint)

        def opened(found: Opened) -> None:
            del self._beside_caps[number]
            transport = self._transport(sock, peer, tls, found)

            def end() -> None:
                transport.close()
                refuse()

            connect = functools.partial(self._connect_tls, sock, peer, login, transport, found)
            self._reserve.consider(number, sock.fileno(), transport, connect, end)

        def dropped() -> None:
            del self._beside_caps[number]
            refuse()

        handshake = self._beside_caps[number] = Handshake(sock, tls, host, opened, dropped)
        self._handshakes.begin(handshake)

    def _begin(self, number: int, endpoint: Endpoint, sock: socket.socket, host: str) -> None:
        peer, login = ClientConnection(number, endpoint.listener, host), self._login(endpoint)
        tls = self._tls.get(endpoint.listener)
        if tls is None or self._handshakes is None:
            self.connections[peer.id] = Connection(self, sock, peer, login)
            self._opened(peer)
            return

        def opened(found: Opened) -> None:
            self._connect_tls(sock, peer, login, self._transport(sock, peer, tls, found), found)

        self._handshakes.begin(Handshake(sock, tls, host, opened, functools.partial(self._left, peer)))

    def _login(self, endpoint: Endpoint) -> ConnectionLogin | None:
        """What a connection has to do first; its time begins when it is accepted."""
        listener = self._logins.get(endpoint.listener)
        return None if listener is None else ConnectionLogin(listener, self.clock.mono_ms())

    def _transport(self, sock: socket.socket, peer: ClientConnection, tls: TlsListener, opened: Opened) -> TlsTransport:
        assert self._handshakes is not None, "it has one less now"
        return TlsTransport(
            self.loop, sock, opened.engine, self._tls_blocks, opened.unread, opened.unsent, self.held,
            functools.partial(self._handshakes.refused, tls, peer.peer_host),
        )  # fmt: skip

    def _connect_tls(
        self,
        sock: socket.socket,
        peer: ClientConnection,
        login: ConnectionLogin | None,
        transport: TlsTransport,
        opened: Opened,
    ) -> None:
        if opened.principal is not None:
            if self._audit is not None and not self._audit.logged_in(
                peer.listener, peer.peer_host, opened.principal, CERTIFICATE_LOGIN
            ):
                transport.close()  # it cannot be recorded
                self._left(peer)
                return
            peer = dataclasses.replace(peer, principal=opened.principal)
        self.connections[peer.id] = TlsConnection(self, sock, peer, login, transport)
        self._opened(peer)

    def _opened(self, peer: ClientConnection) -> None:
        self.metrics.connections.set(len(self.connections))
        self.metrics.created_connections.labels(peer.listener).inc()

    def _left(self, peer: ClientConnection) -> None:
        if not self._reserve.leave(peer.id) and self._counted(peer.listener):
            self.caps.leave(peer.peer_host)

    def meter(self, peer: ClientConnection) -> Meter | None:
        """What measures a connection of that peer; None if no quota can govern it."""
        return self._metering.meter(peer) if self._metering is not None else None

    def _quotas_changed(self, image: QuotaImage) -> None:
        """Every connection is measured anew; those that are muted go on, and are muted again if they are over it."""
        assert self._metering is not None, "else nothing follows the quotas"
        self._metering.replace(image)
        self._meter_anew(list(self.connections.values()))

    def _meter_anew(self, connections: list[Connection]) -> None:
        """Some of them in each turn of the loop."""
        for connection in connections[:METERED_PER_TURN]:
            if not connection.closed:
                connection.measure_anew()
        if len(connections) > METERED_PER_TURN:
            self.loop.call_soon(self._meter_anew, connections[METERED_PER_TURN:])

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        if self.connections.pop(connection.peer.id, None) is None:
            return
        self._left(connection.peer)
        self.metrics.connections.set(len(self.connections))
        if self._services is not None:
            self._services.disconnects.closed(connection.peer.id)

    def close_logins(self, withdrawn: frozenset[tuple[str, str]]) -> None:
        """Close the connections that logged in with credentials, as (mechanism, user), that do not count any more."""
        close_logins(self.connections.values(), withdrawn)

    def held(self, difference: int) -> None:
        """Connections hold more or less. Above ``queued.max.request.bytes`` the one that holds most is closed.

        Each connection has its own bound already; this one is for many clients that do not read their answers.
        """
        self.held_bytes += difference
        if self.held_bytes > self.config.queued_max_request_bytes and not self._relieving:
            self._relieving = True
            self.loop.call_soon(self._relieve)

    def _relieve(self) -> None:
        self._relieving = False
        while self.held_bytes > self.config.queued_max_request_bytes and self.connections:
            greediest = max(self.connections.values(), key=lambda connection: connection.held_in_all)
            self.metrics.refused.labels("memory").inc()
            self.quiet.warning(
                "%s: closed, it holds %d of %d bytes that wait in memory",
                greediest.peer.peer_host, greediest.held_in_all, self.held_bytes,
            )  # fmt: skip
            greediest.close("too much waits in memory")

    def __len__(self) -> int:
        return len(self.connections)

    def _sweep(self) -> None:
        """Close what is overdue, once a second."""
        now_ms = self.clock.mono_ms()
        for connection in list(self.connections.values()):
            reason = connection.overdue(now_ms, PARTIAL_FRAME_MS, self.config.connections_max_idle_ms)
            if reason is not None:
                connection.close(reason)
        self._sweeper = self.timers.later(SWEEP_MS, self._sweep)
