"""A broker process: the only place that builds real ports. What happens between them is ``brokers.node``.

Order matters: addresses first (a taken port is the commonest mistake), then ZooKeeper, the node, and clients last.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import logging
import signal
import socket
import sys
import time
import uuid
from pathlib import Path

from brokers.cluster.peers import Peers
from brokers.config import BrokerConfig, ConfigError
from brokers.log import RealDisk
from brokers.metrics import Metrics
from brokers.model import Endpoint
from brokers.node import Node, Ports, StartError
from brokers.server.admin import Admin
from brokers.server.listener import Server
from coordination.former import FILE_NAME, FormerSession
from coordination.store import StoreError
from coordination.zookeeper import ZookeeperStore

__all__ = ["Broker", "StartError", "SystemClock", "new_cluster_id", "run"]

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0002  # ZooKeeper's client threads otherwise take 5 ms slices from the loop
GC_THRESHOLDS = (50_000, 20, 50)
LAG_PROBE_S = 0.25


class SystemClock:
    """The real clock: CLOCK_REALTIME for records, CLOCK_BOOTTIME, which counts suspended time, for measuring."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        """Milliseconds since boot."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def new_cluster_id() -> str:
    """A fresh cluster id, 22 characters of base64url as Kafka writes it."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


class Broker:
    """One broker process: sockets and real ports around a :class:`Node`. :meth:`start` once, :meth:`stop` once."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self._loop = loop
        self._clock = SystemClock()
        self._metrics = Metrics()
        self._server = Server(config)
        self._admin = Admin(self._metrics, self._not_ready)
        self._store: ZookeeperStore | None = None
        self._node: Node | None = None
        self._lag_probe: asyncio.Task[None] | None = None

    # ---- start -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Come up in the order of the module's docstring; raises StartError."""
        advertised = self._bind()
        if self.config.admin_listener:
            await self._start_admin()
        self._store = await self._connect()
        boot = Path("/proc/sys/kernel/random/boot_id")
        former = FormerSession(Path(self.config.log_dirs[0]) / FILE_NAME, boot.read_text() if boot.exists() else "")
        listener = self.config.inter_broker_listener()
        ports = Ports(
            loop=self._loop,
            clock=self._clock,
            disk=RealDisk(mapped=self.config.fetch_send == "mmap"),
            store=self._store,
            former=former,
            connect_peers=lambda view, client_id: Peers(view, listener, client_id),
            new_cluster_id=new_cluster_id,
            host=socket.gethostname(),
        )
        self._node = Node(self.config, ports, advertised, self._metrics)
        self._server.serve(await self._node.start())
        self._lag_probe = self._loop.create_task(self._probe_loop_lag(), name="loop lag")

    def _bind(self) -> tuple[Endpoint, ...]:
        """Listen; what clients are told about it."""
        wanted = self.config.listener_endpoints()
        try:
            bound = self._server.bind(wanted)
        except OSError as error:
            addresses = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in wanted)
            raise StartError(f"cannot listen on {addresses}: {error.strerror or error}; see listeners") from error
        chosen = {endpoint.listener: endpoint.port for endpoint in bound}
        return tuple(
            endpoint._replace(port=endpoint.port or chosen[endpoint.listener])
            for endpoint in self.config.advertised_endpoints()
        )

    async def _start_admin(self) -> None:
        host, _, port = self.config.admin_listener.rpartition(":")
        if not host or not port.isdigit():
            raise StartError(f"admin.listener={self.config.admin_listener!r} must be host:port")
        try:
            await self._admin.start(host.strip("[]"), int(port))
        except OSError as error:
            raise StartError(
                f"cannot listen on admin.listener {self.config.admin_listener}: {error.strerror}"
            ) from error

    async def _connect(self) -> ZookeeperStore:
        config = self.config
        try:
            store = ZookeeperStore(config.zookeeper_connect, session_timeout_ms=config.zookeeper_session_timeout_ms)
            await store.start(config.zookeeper_connection_timeout_ms)
        except (StoreError, ValueError) as error:
            where = (
                "" if str(error).startswith("zookeeper.connect") else f"zookeeper.connect={config.zookeeper_connect}: "
            )
            raise StartError(f"{where}{error}") from error
        return store

    def _not_ready(self) -> str | None:
        return self._node.not_ready() if self._node is not None else "starting"

    async def _probe_loop_lag(self) -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(LAG_PROBE_S)
            self._metrics.loop_lag_seconds.observe(max(0.0, time.perf_counter() - started - LAG_PROBE_S))

    async def failed(self) -> None:
        """Wait until something that must not end did; raises what ended it."""
        assert self._node is not None, "after start"
        await self._node.failed()

    # ---- stop ------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """A clean shutdown: leadership first, while clients are still answered; then sockets, session and logs."""
        if self._lag_probe is not None:
            self._lag_probe.cancel()
        if self._node is not None:
            await self._node.retire()
        self._server.close()
        if self._node is not None:
            await self._node.stop()
        elif self._store is not None:
            await self._store.close()
        await self._admin.close()
        logger.info("broker %d has stopped", self.config.broker_id)


def run(config: BrokerConfig) -> None:
    """Run a broker until SIGTERM or SIGINT; raises StartError."""
    import uvloop

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    gc.disable()  # until the start is over: what it makes stays
    uvloop.run(_run(config))


async def _run(config: BrokerConfig) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(config, loop)
    stopping = loop.create_task(stop.wait(), name="signal")
    starting = loop.create_task(broker.start(), name="start")
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return
        starting.result()
        gc.freeze()  # what the start made lives for ever: full collections needn't look at it
        gc.enable()
        logger.info("broker %d is ready", config.broker_id)
        failing = loop.create_task(broker.failed(), name="failure")
        await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            error = failing.exception()
            raise error if isinstance(error, StartError) else StartError(f"stopped by a fault: {error}")
        failing.cancel()
    except ConfigError as error:
        raise StartError(str(error)) from error
    finally:
        starting.cancel()
        stopping.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        await broker.stop()
