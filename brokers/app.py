"""The wiring: the only place that builds real ports and puts the rooms together. Reads from top to bottom as a start.

Order matters: addresses first (a taken port is the commonest mistake), then ZooKeeper and whose tree it is, then the
logs (recovery takes as long as it takes, before anybody counts on this broker), the registration, and clients last.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import logging
import signal
import sys
import time
import uuid
from pathlib import Path

from brokers.api.base import Services
from brokers.api.groups import forget_topics
from brokers.cluster import znodes
from brokers.cluster.controller import Controller
from brokers.cluster.peers import Peers
from brokers.cluster.replicas import ReplicaManager
from brokers.cluster.view import ClusterView
from brokers.config import BrokerConfig, ConfigError
from brokers.coordinators.runtime import CoordinatorRuntime
from brokers.coordinators.transactions import TransactionCoordinator, partition_count_of
from brokers.groups.requests import GroupSettings
from brokers.groups.shard import GroupShard
from brokers.log import LogStore, Origin, RealDisk, StoreRefused
from brokers.metrics import Metrics
from brokers.model import GROUP_METADATA_TOPIC, Endpoint
from brokers.server.admin import Admin
from brokers.server.listener import Server
from coordination.former import FILE_NAME, FormerSession
from coordination.registration import Advertisement, DuplicateBroker, ListenerAddress, Registered, register, unregister
from coordination.store import SessionEvent, SessionExpired, SessionState, StoreError
from coordination.tree import adopt
from coordination.zookeeper import ZookeeperStore

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0002  # ZooKeeper's client threads otherwise take 5 ms slices from the loop
GC_THRESHOLDS = (50_000, 20, 50)
LAG_PROBE_S = 0.25
LOG_TICK_S = 1.0
RETRY_S = 1.0
UNREGISTER_S = 2.0
NEW_CLUSTER_FEATURES = {"transaction.version": 2}
"""What a new cluster finalizes (KIP-584): clients that can use protocol 2 of transactions (KIP-890) do."""


class StartError(Exception):
    """The broker cannot start; the message says what to change."""


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
    """One broker, from its ports to its rooms. :meth:`start` once, :meth:`stop` once, on the loop."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self._loop = loop
        self._clock = SystemClock()
        self._metrics = Metrics()
        self._server = Server(config)
        self._admin = Admin(self._metrics, self._not_ready)
        self._store: ZookeeperStore | None = None
        self._logs: LogStore | None = None
        self._services: Services | None = None
        self._registered: Registered | None = None
        self._former: FormerSession | None = None
        self._advertised: tuple[Endpoint, ...] = ()
        self._session_changed = asyncio.Event()
        self._failed: asyncio.Future[None] = loop.create_future()
        self._tasks: list[asyncio.Task[None]] = []

    # ---- start -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Come up in the order of the module's docstring; raises StartError."""
        self._bind()
        if self.config.admin_listener:
            await self._start_admin()
        cluster_id, store = await self._connect()
        logs = self._open_logs(cluster_id)
        await self._end_former_life(store)
        view = ClusterView(store, self.config)
        await view.start()
        services = self._build(store, view, logs)
        await self._register()
        if not await view.wait_until(self._known, 30_000):
            raise StartError("the registration does not show in ZooKeeper after 30 s")
        services.replicas.reconcile()
        controller = services.controller
        assert isinstance(controller, Controller)
        controller.start()
        # librdkafka's admin calls hang on a Metadata answer without a controller: answer nobody before there is one.
        if not await view.wait_until(lambda: view.controller_id >= 0, 2 * self.config.zookeeper_session_timeout_ms):
            logger.warning("no controller is elected yet; going on without")
        self._server.serve(services)
        self._tasks += [
            self._loop.create_task(self._keep_registered(), name="registration"),
            self._loop.create_task(self._tick_logs(logs), name="log upkeep"),
            self._loop.create_task(self._probe_loop_lag(), name="loop lag"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._upkeep_ended)

    def _bind(self) -> None:
        wanted = self.config.listener_endpoints()
        try:
            bound = self._server.bind(wanted)
        except OSError as error:
            addresses = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in wanted)
            raise StartError(f"cannot listen on {addresses}: {error.strerror or error}; see listeners") from error
        chosen = {endpoint.listener: endpoint.port for endpoint in bound}
        self._advertised = tuple(
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

    async def _connect(self) -> tuple[str, ZookeeperStore]:
        config = self.config
        try:
            store = ZookeeperStore(config.zookeeper_connect, session_timeout_ms=config.zookeeper_session_timeout_ms)
            self._store = store
            store.on_session(self._on_session)
            await store.start(config.zookeeper_connection_timeout_ms)
            seeds = {znodes.FEATURE: znodes.encode_features(NEW_CLUSTER_FEATURES)}
            return await adopt(store, new_cluster_id, seeds=seeds), store
        except (StoreError, ValueError) as error:
            where = (
                "" if str(error).startswith("zookeeper.connect") else f"zookeeper.connect={config.zookeeper_connect}: "
            )
            raise StartError(f"{where}{error}") from error

    def _open_logs(self, cluster_id: str) -> LogStore:
        logs = LogStore(self.config, RealDisk(), self._clock, cluster_id=cluster_id)
        try:
            report = logs.load()
        except StoreRefused as error:
            raise StartError(str(error)) from error
        self._logs = logs
        for line in report.lines():
            logger.info("%s", line)
        return logs

    async def _end_former_life(self, store: ZookeeperStore) -> None:
        """After a crash: the logs' lock is ours, so the session that is written down beside them has no owner."""
        boot = Path("/proc/sys/kernel/random/boot_id")
        former = FormerSession(Path(self.config.log_dirs[0]) / FILE_NAME, boot.read_text() if boot.exists() else "")
        credentials = former.load()
        if credentials is not None and await store.end_session(*credentials):
            logger.info("ended the ZooKeeper session %#x of this broker's former life", credentials[0])
        self._former = former
        self._keep_session()

    def _keep_session(self) -> None:
        credentials = self._store.credentials() if self._store is not None else None
        if self._former is not None and credentials is not None:
            self._former.keep(*credentials)

    def _build(self, store: ZookeeperStore, view: ClusterView, logs: LogStore) -> Services:
        """The rooms, each with the ports it needs."""
        config, clock = self.config, self._clock
        peers = Peers(view, config.inter_broker_listener(), f"broker-{config.broker_id}")
        replicas = ReplicaManager(
            config.broker_id, view, logs, clock, lease_valid=store.lease.valid, incarnation=self._incarnation
        )
        settings = GroupSettings.of(config)
        groups = CoordinatorRuntime(
            "groups",
            GROUP_METADATA_TOPIC,
            lambda partition: GroupShard(partition, settings),
            partition_count=partition_count_of(view, GROUP_METADATA_TOPIC, config.offsets_topic_num_partitions),
            loop=self._loop,
            clock=clock,
            origin=Origin.COORDINATOR,
            may_serve=replicas.lease_valid,
        )
        transactions = TransactionCoordinator(
            config,
            view=view,
            replicas=replicas,
            groups=groups,
            peers=peers,
            store=store,
            loop=self._loop,
            clock=clock,
            incarnation=self._incarnation,
        )
        controller = Controller(store, view, peers, broker_id=config.broker_id, clock=clock)
        for runtime in (groups, transactions):
            replicas.on_leader(runtime.partition_elected)
            replicas.on_resigned(runtime.partition_resigned)
            replicas.on_deleted(runtime.partition_resigned)
        view.subscribe(replicas.apply)
        view.subscribe(lambda change: forget_topics(groups, [topic.name for topic in change.deleted]))
        self._services = Services(
            config=config,
            clock=clock,
            loop=self._loop,
            store=store,
            view=view,
            replicas=replicas,
            groups=groups,
            transactions=transactions,
            controller=controller,
            peers=peers,
            metrics=self._metrics,
        )
        self._watch_gauges(self._services)
        return self._services

    def _watch_gauges(self, services: Services) -> None:
        watch = self._metrics.watch
        watch("fleetlog_partitions", "Replicas on this broker.", lambda: len(list(services.replicas.all())))
        watch(
            "fleetlog_leaders",
            "Partitions this broker leads.",
            lambda: sum(partition.is_leader for partition in services.replicas.all()),
        )
        watch("fleetlog_controller", "1 on the controller.", lambda: float(services.controller.is_active))
        self._metrics.watch_family(
            "fleetlog_coordinators",
            "What this broker's group and transaction coordinators hold.",
            "what",
            lambda: {**services.groups.metrics(), **services.transactions.metrics()},
        )
        watch("fleetlog_lease_seconds", "Time left on the lease.", lambda: services.store.lease.remaining_ms() / 1000)

    # ---- registration ----------------------------------------------------------------------------------------------

    def _incarnation(self) -> int:
        return self._registered.incarnation if self._registered is not None else -1

    def _known(self) -> bool:
        """Our view shows this very registration."""
        assert self._services is not None
        seen = self._services.view.brokers.get(self.config.broker_id)
        return seen is not None and seen.incarnation == self._incarnation()

    def _not_ready(self) -> str | None:
        if self._services is None:
            return "starting"
        if not self._services.view.ready:
            return "the cluster's state is not read yet"
        if self._registered is None or not self._known():
            return "not registered in ZooKeeper"
        if self._services.view.controller_id < 0:
            return "no controller is elected"
        if not self._services.store.lease.valid():
            return "the ZooKeeper session's lease has run out"
        return None

    def _on_session(self, event: SessionEvent) -> None:
        if event.state is SessionState.EXPIRED:
            logger.warning("the ZooKeeper session expired: leading nothing until registered again")
            self._registered = None
            if self._services is not None:
                self._services.replicas.resign_all()
        elif event.state is SessionState.SUSPENDED:
            logger.warning("the connection to ZooKeeper is lost; the lease decides what is still served")
        else:
            self._keep_session()
            self._session_changed.set()

    async def _register(self) -> None:
        assert self._store is not None
        advertisement = Advertisement(
            self.config.broker_id,
            [ListenerAddress(*endpoint) for endpoint in self._advertised],
            rack=self.config.broker_rack,
        )
        try:
            self._registered = await register(
                self._store,
                advertisement,
                wall_ms=self._clock.wall_ms,
                mono_ms=self._clock.mono_ms,
                on_waiting=lambda message: logger.warning("%s", message),
            )
        except DuplicateBroker as error:
            raise StartError(str(error)) from error
        except StoreError as error:
            raise StartError(f"cannot register in ZooKeeper: {error}") from error
        logger.info(
            "registered: broker id %d, epoch %d, incarnation %d",
            self.config.broker_id,
            self._registered.broker_epoch,
            self._registered.incarnation,
        )

    async def _keep_registered(self) -> None:
        """Register again in each new session."""
        assert self._store is not None
        while True:
            await self._session_changed.wait()
            self._session_changed.clear()
            session = self._store.session()
            if session is None:
                continue
            if self._registered is not None and self._registered.session_id == session.session_id:
                continue
            try:
                await self._register()
            except StartError as error:
                if isinstance(error.__cause__, DuplicateBroker):
                    raise
                if not isinstance(error.__cause__, SessionExpired):
                    logger.error("%s; trying again", error)
                    await asyncio.sleep(RETRY_S)
                    self._session_changed.set()
                continue
            assert self._services is not None
            self._services.replicas.reconcile()

    # ---- upkeep ----------------------------------------------------------------------------------------------------

    async def _tick_logs(self, logs: LogStore) -> None:
        while True:
            await asyncio.sleep(LOG_TICK_S)
            logs.tick(self._clock.wall_ms())

    async def _probe_loop_lag(self) -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(LAG_PROBE_S)
            self._metrics.loop_lag_seconds.observe(max(0.0, time.perf_counter() - started - LAG_PROBE_S))

    def _upkeep_ended(self, task: asyncio.Task[None]) -> None:
        """A task that must not end did: our own bug, or a lost id. The broker stops rather than limp on."""
        if not task.cancelled() and not self._failed.done():
            error = task.exception()
            logger.critical("%s ended: %s", task.get_name(), error, exc_info=error)
            self._failed.set_exception(error or RuntimeError(f"{task.get_name()} ended"))

    async def failed(self) -> None:
        """Wait until something that must not end did; raises what ended it."""
        await self._failed

    # ---- stop ------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """A clean shutdown: leadership and session first, so that nobody waits for us; then the logs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._failed.cancel()
        services = self._services
        if services is not None:
            assert isinstance(services.controller, Controller)
            await services.controller.stop()
            services.replicas.resign_all()
            services.groups.close()
            assert isinstance(services.transactions, TransactionCoordinator)
            await services.transactions.stop()
            self._server.close()
            await services.view.stop()
            await services.peers.close()
        else:
            self._server.close()
        if self._store is not None:
            try:
                if self._registered is not None:
                    await asyncio.wait_for(unregister(self._store, self._registered), UNREGISTER_S)
            except (StoreError, TimeoutError) as error:
                logger.info("unregistering: %s", error)
            await self._store.close()
            if self._former is not None:
                self._former.forget()
        if self._logs is not None:
            self._logs.close(clean=True)
        await self._admin.close()
        logger.info("broker %d has stopped", self.config.broker_id)


def run(config: BrokerConfig) -> None:
    """Run a broker until SIGTERM or SIGINT; raises StartError."""
    import uvloop

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
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
        gc.collect()
        gc.freeze()  # what the start made lives for ever: full collections needn't look at it
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
