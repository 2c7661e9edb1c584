"""The server: named listeners, the connections behind them, and the caps on both."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from brokers.api.base import Connection as Peer
from brokers.api.base import Services
from brokers.model import Endpoint
from brokers.server.blocks import Blocks
from brokers.server.connection import Connection
from brokers.server.disk import ReadAhead
from brokers.server.dispatch import Dispatcher
from brokers.server.gathering import Gathering
from brokers.server.limits import ByteBudget, ConnectionCaps, QuietLog
from brokers.server.parking import Parking

if TYPE_CHECKING:
    from brokers.config import BrokerConfig

logger = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTS_PER_TURN = 64
SWEEP_SECONDS = 1.0
PARTIAL_FRAME_MS = 30_000
ACCEPT_PAUSE_SECONDS = 0.2


class Server:
    """Accepts connections and executes their requests. Everything runs on one loop.

    :meth:`bind` takes the addresses and tells the ports that were chosen for port 0; nobody is accepted until
    :meth:`serve`: a broker learns its ports before it registers, and answers only once it has.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self._services: Services | None = None
        self._listeners: list[tuple[Endpoint, socket.socket]] = []
        self._connections: dict[int, Connection] = {}
        self._numbers = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._caps = ConnectionCaps(config.max_connections, config.max_connections_per_ip)
        self.budget = ByteBudget(config.queued_max_request_bytes)
        self.max_frame = config.socket_request_max_bytes
        self.max_outbox = config.connection_outbox_max_bytes
        self.max_in_flight = config.max_in_flight_requests_per_connection
        self._held = 0
        self._relieving = False
        self.blocks = Blocks()

    # -- life -----------------------------------------------------------------------------------------------------

    def bind(self, endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
        """Bind every listener; returns them with the ports that the system chose for port 0.

        Raises:
            OSError: an address is taken or not ours; nothing stays bound then.

        """
        try:
            for endpoint in endpoints:
                family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
                sock = socket.socket(family, socket.SOCK_STREAM)
                self._listeners.append((endpoint, sock))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.setblocking(False)
                sock.bind((endpoint.host, endpoint.port))
        except OSError:
            self._close_listeners()
            raise
        self._listeners = [
            (endpoint._replace(port=sock.getsockname()[1]), sock) for endpoint, sock in self._listeners
        ]  # fmt: skip
        return self.endpoints

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where the server listens."""
        return tuple(endpoint for endpoint, _ in self._listeners)

    def serve(
        self, services: Services, handlers: dict[int, Callable[[Any, Any], Any]] | None = None
    ) -> None:  # fmt: skip
        """Start to accept. ``handlers`` replaces the API table's handlers in tests."""
        self._services = services
        self.loop = services.loop
        self.clock = services.clock
        self.metrics = services.metrics
        self.quiet = QuietLog(services.clock.mono_ms)
        self.read_ahead = ReadAhead(self.loop)
        self.parking = Parking(self.loop, services.clock)
        self._dispatcher = Dispatcher(services, self.parking, self.budget, self.quiet, handlers)
        self.dispatch = self._dispatcher.dispatch
        self.dispatch_run = self._dispatcher.dispatch_run
        self.gather = Gathering(self.loop, self._dispatcher.dispatch_runs).gather
        for endpoint, sock in self._listeners:
            sock.listen(BACKLOG)
            self.loop.add_reader(sock.fileno(), self._accept, endpoint, sock)
            logger.info("listens on %s://%s:%d", *endpoint[:3])
        self._sweep()

    def close(self) -> None:
        """Stop accepting and close every connection, after what can be sent at once."""
        self._close_listeners()
        if self._services is None:
            return
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._dispatcher.close()
        for connection in list(self._connections.values()):
            connection.flush_and_close("the broker stops")
        self.parking.close()
        self.read_ahead.close()
        self._services = None

    def _close_listeners(self) -> None:
        for _, sock in self._listeners:
            if self._services is not None and sock.fileno() >= 0:
                self.loop.remove_reader(sock.fileno())
            sock.close()
        self._listeners = []

    # -- connections ----------------------------------------------------------------------------------------------

    def _accept(self, endpoint: Endpoint, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # accepting again at once would spin: the waiting connection stays in the backlog
                    logger.error("cannot accept a connection: %s", error)
                    self.loop.remove_reader(listener.fileno())
                    self.loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_again, endpoint, listener)
                    return
                raise
            self._admit(endpoint, sock, address[0])

    def _accept_again(self, endpoint: Endpoint, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self.loop.add_reader(listener.fileno(), self._accept, endpoint, listener)

    def _counted(self, listener: str) -> bool:
        """Brokers among themselves must not be shut out by clients, if they have a listener of their own."""
        return len(self._listeners) == 1 or listener != self.config.inter_broker_listener()

    def _admit(self, endpoint: Endpoint, sock: socket.socket, host: str) -> None:
        if self._counted(endpoint.listener):
            cap = self._caps.admit(host)
            if cap is not None:
                self.metrics.refused.labels("connections").inc()
                self.quiet.warning("%s: refused, %s is reached", host, cap)
                sock.close()
                return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._numbers += 1
        peer = Peer(self._numbers, endpoint.listener, host)
        self._connections[peer.id] = Connection(self, sock, peer)
        self.metrics.connections.set(len(self._connections))

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        if self._connections.pop(connection.peer.id, None) is None:
            return
        if self._counted(connection.peer.listener):
            self._caps.leave(connection.peer.peer_host)
        self.metrics.connections.set(len(self._connections))

    def held(self, difference: int) -> None:
        """Connections hold more or less. Above ``queued.max.request.bytes`` the one that holds most is closed.

        Each connection has its own bound already; this one is for many clients that do not read their answers.
        """
        self._held += difference
        if self._held > self.config.queued_max_request_bytes and not self._relieving:
            self._relieving = True
            self.loop.call_soon(self._relieve)

    def _relieve(self) -> None:
        self._relieving = False
        while self._held > self.config.queued_max_request_bytes and self._connections:
            greediest = max(self._connections.values(), key=lambda connection: connection.held)
            self.metrics.refused.labels("memory").inc()
            self.quiet.warning(
                "%s: closed, it holds %d of %d bytes that wait in memory",
                greediest.peer.peer_host, greediest.held, self._held,
            )  # fmt: skip
            greediest.close("too much waits in memory")

    def __len__(self) -> int:
        return len(self._connections)

    def _sweep(self) -> None:
        """Close what is overdue, once a second."""
        now_ms = self.clock.mono_ms()
        for connection in list(self._connections.values()):
            reason = connection.overdue(now_ms, PARTIAL_FRAME_MS, self.config.connections_max_idle_ms)
            if reason is not None:
                connection.close(reason)
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)
