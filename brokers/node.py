"""A broker without its sockets: everything between the ports, put together and kept going.

``brokers.app`` gives it the real ports, a simulation gives others; the rooms behind them are the same.
:meth:`Node.start` reads from top to bottom: whose ZooKeeper tree it is, then the logs (recovery takes as long
as it takes, before anybody counts on this broker), the registration, and the roles that the cluster has for it last.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from brokers.api.base import Services
from brokers.api.groups import forget_topics
from brokers.cluster import znodes
from brokers.cluster.controller import Controller
from brokers.cluster.fetcher import ReplicaFetchers
from brokers.cluster.handover import hand_over
from brokers.cluster.isr_writer import ZooKeeperIsrWriter
from brokers.cluster.partition import Partition
from brokers.cluster.peers import PeersPort
from brokers.cluster.replicas import ReplicaManager
from brokers.cluster.throttles import throttle_of
from brokers.cluster.view import ClusterView
from brokers.cluster.znodes import BadZnode
from brokers.config import BrokerConfig
from brokers.coordinators.runtime import CoordinatorRuntime
from brokers.coordinators.transactions import TransactionCoordinator, partition_count_of
from brokers.groups.requests import GroupSettings
from brokers.groups.shard import GroupShard
from brokers.log import DiskPort, LogStore, Origin, StoreRefused
from brokers.metrics import Metrics
from brokers.model import GROUP_METADATA_TOPIC, Clock, Endpoint, Life
from coordination.registration import Advertisement, DuplicateBroker, ListenerAddress, Registered, register, unregister
from coordination.store import SessionEvent, SessionExpired, SessionState, SessionStore, StoreError
from coordination.tree import adopt

logger = logging.getLogger(__name__)

TICK_S = 0.25
LOG_TICKS = 4
RETRY_S = 1.0
UNREGISTER_S = 2.0
VIEW_WAIT_MS = 30_000
NEW_CLUSTER_FEATURES = {"transaction.version": 2}
"""What a new cluster finalizes (KIP-584): clients that can use protocol 2 of transactions (KIP-890) do."""


class StartError(Exception):
    """The broker cannot start; the message says what to change."""


class FormerPort(Protocol):
    """Where a broker keeps its ZooKeeper session's credentials for its next life (``coordination.former``)."""

    def load(self) -> tuple[int, bytes] | None:
        """Session id and password of the former life, if they are surely ours."""
        ...

    def keep(self, session_id: int, password: bytes) -> None:
        """Write the present ones down."""
        ...

    def forget(self) -> None:
        """The session was closed properly."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The world of a broker. ``connect_peers`` makes a way to other brokers over the view, for one purpose each."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    disk: DiskPort
    store: SessionStore
    former: FormerPort
    connect_peers: Callable[[ClusterView, str], PeersPort]
    new_cluster_id: Callable[[], str]
    new_id: Callable[[], uuid.UUID] = uuid.uuid4
    host: str = ""


class Node:
    """See the module. :meth:`start` once, :meth:`stop` once, on the loop."""

    def __init__(self, config: BrokerConfig, ports: Ports, advertised: tuple[Endpoint, ...], metrics: Metrics) -> None:
        self.config = config
        self.services: Services | None = None
        self._ports = ports
        self._advertised = advertised
        self._metrics = metrics
        self._logs: LogStore | None = None
        self._isr_writer: ZooKeeperIsrWriter | None = None
        self._fetchers: ReplicaFetchers | None = None
        self._registered: Registered | None = None
        self._intact_since: int | None = None
        self._session_changed = asyncio.Event()
        self._failed: asyncio.Future[None] = ports.loop.create_future()
        self._tasks: list[asyncio.Task[None]] = []

    # ---- start -----------------------------------------------------------------------------------------------------

    async def start(self) -> Services:
        """Come up in the order of the module's docstring; the store is connected. Raises StartError."""
        store = self._ports.store
        store.on_session(self._on_session)
        try:
            seeds = {znodes.FEATURE: znodes.encode_features(NEW_CLUSTER_FEATURES)}
            cluster_id = await adopt(store, self._ports.new_cluster_id, seeds=seeds)
        except (StoreError, ValueError) as error:
            raise StartError(str(error)) from error
        logs = self._open_logs(cluster_id)
        await self._end_former_life()
        view = ClusterView(store, self.config)
        try:
            await view.start()
        except BadZnode as error:
            raise StartError(str(error)) from error
        services = self._build(view, logs)
        await self._register()
        if not await view.wait_until(self.known, VIEW_WAIT_MS):
            raise StartError("the registration does not show in ZooKeeper after 30 s")
        services.replicas.reconcile()
        controller = services.controller
        assert isinstance(controller, Controller)
        controller.start()
        self._upkeep(self._keep_registered(), "registration")
        self._upkeep(self._tick(logs), "upkeep")
        # librdkafka's admin calls hang on a Metadata answer without a controller: answer nobody before there is one.
        if not await view.wait_until(lambda: view.controller_id >= 0, 2 * self.config.zookeeper_session_timeout_ms):
            logger.warning("no controller is elected yet; going on without")
        return services

    def _upkeep(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._ports.loop.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._upkeep_ended)

    def _open_logs(self, cluster_id: str) -> LogStore:
        logs = LogStore(self.config, self._ports.disk, self._ports.clock, cluster_id=cluster_id)
        try:
            report = logs.load()
        except StoreRefused as error:
            raise StartError(str(error)) from error
        self._logs = logs
        self._intact_since = report.intact_since
        for line in report.lines():
            logger.info("%s", line)
        return logs

    async def _end_former_life(self) -> None:
        """After a crash: the logs' lock is ours, so the session that is written down beside them has no owner."""
        credentials = self._ports.former.load()
        if credentials is not None and await self._ports.store.end_session(*credentials):
            logger.info("ended the ZooKeeper session %#x of this broker's former life", credentials[0])
        self._keep_session()

    def _keep_session(self) -> None:
        credentials = self._ports.store.credentials()
        if credentials is not None:
            self._ports.former.keep(*credentials)

    def _build(self, view: ClusterView, logs: LogStore) -> Services:
        """The rooms, each with the ports it needs."""
        config, ports = self.config, self._ports
        store, clock = ports.store, ports.clock
        peers = ports.connect_peers(view, f"broker-{config.broker_id}")
        self._isr_writer = ZooKeeperIsrWriter(
            store, config.broker_id, incarnation=self._incarnation, topic_exists=lambda p: _exists(view, p)
        )
        replicas = ReplicaManager(
            config.broker_id, view, logs, clock, lease_valid=store.lease.valid, incarnation=self._incarnation,
            isr_writer=self._isr_writer,
        )  # fmt: skip
        settings = GroupSettings.of(config)
        groups = CoordinatorRuntime(
            "groups",
            GROUP_METADATA_TOPIC,
            lambda partition: GroupShard(partition, settings),
            partition_count=partition_count_of(view, GROUP_METADATA_TOPIC, config.offsets_topic_num_partitions),
            loop=ports.loop,
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
            loop=ports.loop,
            clock=clock,
            incarnation=self._incarnation,
        )
        controller = Controller(
            store, view, peers, broker_id=config.broker_id, clock=clock, new_id=ports.new_id, replicas=replicas
        )
        for runtime in (groups, transactions):
            replicas.on_leader(runtime.partition_elected)
            replicas.on_resigned(runtime.partition_resigned)
            replicas.on_deleted(runtime.partition_resigned)
        self._fetchers = ReplicaFetchers(
            config,
            ports.connect_peers(view, f"replica-{config.broker_id}"),
            clock,
            broker_epoch=self._broker_epoch,
            loop=ports.loop,
            throttle=throttle_of(view, "follower"),
        )
        self._fetchers.watch(self._metrics)
        replicas.on_follower(self._fetchers.follow)
        replicas.on_unfollow(self._fetchers.unfollow)
        view.subscribe(replicas.apply)
        view.subscribe(lambda change: forget_topics(groups, [topic.name for topic in change.deleted]))
        self.services = Services(
            config=config,
            clock=clock,
            loop=ports.loop,
            store=store,
            view=view,
            replicas=replicas,
            groups=groups,
            transactions=transactions,
            controller=controller,
            peers=peers,
            metrics=self._metrics,
        )
        sessions = self.services.fetch_sessions
        replicas.on_leader(lambda partition: sessions.expect(partition.state.replicas, clock.mono_ms()))
        self._watch_gauges(self.services)
        return self.services

    def _watch_gauges(self, services: Services) -> None:
        watch = self._metrics.watch
        watch("fleetlog_partitions", "Replicas on this broker.", lambda: len(list(services.replicas.all())))
        watch(
            "fleetlog_leaders",
            "Partitions this broker leads.",
            lambda: sum(partition.is_leader for partition in services.replicas.all()),
        )
        watch(
            "fleetlog_under_replicated_partitions",
            "Partitions led here whose in-sync set lacks a replica.",
            lambda: sum(p.is_leader and len(p.state.isr) < len(p.state.target) for p in services.replicas.all()),
        )
        watch(
            "fleetlog_lost_commits",
            "Truncations below the high watermark: only an unclean election may cause one.",
            lambda: sum(partition.lost_commits for partition in services.replicas.all()),
        )
        watch("fleetlog_controller", "1 on the controller.", lambda: float(services.controller.is_active))
        watch(
            "fleetlog_unclean_elections",
            "Leaders that this broker, as controller, elected without knowing that they hold everything.",
            lambda: getattr(services.controller, "unclean_elections", 0),
        )
        self._metrics.watch_family(
            "fleetlog_coordinators",
            "What this broker's group and transaction coordinators hold.",
            "what",
            lambda: {**services.groups.metrics(), **services.transactions.metrics()},
        )
        self._metrics.watch_family(
            "fleetlog_fetch_sessions",
            "Fetch sessions of consumers and followers, the partitions they name, and how many were evicted.",
            "what",
            services.fetch_sessions.metrics,
        )
        watch("fleetlog_lease_seconds", "Time left on the lease.", lambda: services.store.lease.remaining_ms() / 1000)

    # ---- registration ----------------------------------------------------------------------------------------------

    def _incarnation(self) -> int:
        return self._registered.incarnation if self._registered is not None else -1

    def _broker_epoch(self) -> int:
        return self._registered.broker_epoch if self._registered is not None else -1

    def known(self) -> bool:
        """Our view shows this very registration."""
        if self.services is None:
            return False
        seen = self.services.view.brokers.get(self.config.broker_id)
        return seen is not None and seen.incarnation == self._incarnation()

    def not_ready(self) -> str | None:
        """Why the broker should get no traffic yet, or any more; None if it should."""
        if self.services is None:
            return "starting"
        if not self.services.view.ready:
            return "the cluster's state is not read yet"
        if self._registered is None or not self.known():
            return "not registered in ZooKeeper"
        if self.services.view.controller_id < 0:
            return "no controller is elected"
        if not self.services.store.lease.valid():
            return "the ZooKeeper session's lease has run out"
        return None

    def _on_session(self, event: SessionEvent) -> None:
        if event.state is SessionState.EXPIRED:
            logger.warning("the ZooKeeper session expired: leading nothing until registered again")
            self._registered = None
            if self.services is not None:
                self.services.replicas.resign_all()
        elif event.state is SessionState.SUSPENDED:
            logger.warning("the connection to ZooKeeper is lost; the lease decides what is still served")
        else:
            self._keep_session()
            self._session_changed.set()

    async def _register(self) -> None:
        """Register in the present session. What the logs hold since ``intact_since`` is told with it: the
        incarnation itself after a crash, for then nobody knows what was lost.
        """
        details: dict[str, object] = {"failure_domain": self.config.failure_domain or self._ports.host}
        if self._intact_since is not None:
            details["intact_since"] = self._intact_since
        advertisement = Advertisement(
            self.config.broker_id,
            [ListenerAddress(*endpoint) for endpoint in self._advertised],
            rack=self.config.broker_rack,
            details=details,
        )
        try:
            self._registered = await register(
                self._ports.store,
                advertisement,
                wall_ms=self._ports.clock.wall_ms,
                mono_ms=self._ports.clock.mono_ms,
                on_waiting=lambda message: logger.warning("%s", message),
            )
        except DuplicateBroker as error:
            raise StartError(str(error)) from error
        except StoreError as error:
            raise StartError(f"cannot register in ZooKeeper: {error}") from error
        if self._intact_since is None:
            self._intact_since = self._registered.incarnation
        logger.info(
            "registered: broker id %d, epoch %d, incarnation %d, intact since %d",
            self.config.broker_id,
            self._registered.broker_epoch,
            self._registered.incarnation,
            self._intact_since,
        )

    async def _keep_registered(self) -> None:
        """Register again in each new session."""
        while True:
            await self._session_changed.wait()
            self._session_changed.clear()
            session = self._ports.store.session()
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
            assert self.services is not None
            self.services.replicas.reconcile()

    # ---- upkeep ----------------------------------------------------------------------------------------------------

    async def _tick(self, logs: LogStore) -> None:
        assert self.services is not None
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            self.services.replicas.tick(self._ports.clock.mono_ms())
            ticks += 1
            if ticks % LOG_TICKS == 0:
                logs.tick(self._ports.clock.wall_ms())

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

    async def retire(self) -> None:
        """The first half of a clean stop: hand over what is led here, while clients are still served.

        Coordinators close first: their successors may answer as soon as they are elected.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._failed.cancel()
        services = self.services
        if services is None:
            return
        services.groups.close()
        assert isinstance(services.transactions, TransactionCoordinator)
        await services.transactions.stop()
        if self._registered is not None:
            await hand_over(
                self.config,
                self._registered.broker_epoch,
                view=services.view,
                replicas=services.replicas,
                controller=services.controller,
                peers=services.peers,
            )
        assert isinstance(services.controller, Controller)
        await services.controller.stop()
        services.replicas.resign_all()

    async def stop(self) -> None:
        """The second half: say goodbye to ZooKeeper, so that nobody waits for us, then close the logs."""
        services = self.services
        if services is not None:
            if self._isr_writer is not None:
                await self._isr_writer.stop()
            if self._fetchers is not None:
                await self._fetchers.close()
            await services.view.stop()
            await services.peers.close()
        life = self._life()
        store = self._ports.store
        try:
            if self._registered is not None:
                async with asyncio.timeout(UNREGISTER_S):
                    await unregister(store, self._registered)
        except (StoreError, TimeoutError) as error:
            logger.info("unregistering: %s", error)
        await store.close()
        self._ports.former.forget()
        if self._logs is not None:
            self._logs.close(clean=True, life=life)

    def _life(self) -> Life | None:
        if self._registered is None or self._intact_since is None:
            return None
        return Life(self._registered.incarnation, self._intact_since)


def _exists(view: ClusterView, partition: Partition) -> bool:
    topic = view.topics.get(partition.tp.topic)
    return topic is not None and topic.id == partition.topic_id
