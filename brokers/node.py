"""A broker without its sockets: builds and runs all components between the ports.

``brokers.app`` passes real ports, a simulation its own; the components are the same. The order of :meth:`Node.start`:
adopt the ZooKeeper tree, recover the logs (before other brokers rely on this one), register, take the assigned roles.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from fleetlog.brokers.api.audit import started_audit
from fleetlog.brokers.api.audit_writer import AuditWriter
from fleetlog.brokers.api.authorizer import Authorization, CannotReplicate
from fleetlog.brokers.api.base import Services
from fleetlog.brokers.api.groups import drop_topic_offsets
from fleetlog.brokers.api.schema_reader import SchemaReader
from fleetlog.brokers.audit.events import EventSource
from fleetlog.brokers.audit.recorder import Audit
from fleetlog.brokers.broker_figures import counted_topics, watch_broker, watch_rebalances
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.controller.controller import Controller, hand_over
from fleetlog.brokers.coordinators.dead_letters import DeadLetters
from fleetlog.brokers.coordinators.lags import LagWatch, serve_lags
from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
from fleetlog.brokers.coordinators.schema_letters import SchemaLetters
from fleetlog.brokers.coordinators.share_offsets import ShareOffsets
from fleetlog.brokers.coordinators.share_partitions import SharePartitions, drop_topic_states
from fleetlog.brokers.coordinators.share_states import ShareStates
from fleetlog.brokers.coordinators.transactions.coordinator import TransactionCoordinator, partition_count_of
from fleetlog.brokers.groups.member_memory import MemberRoom
from fleetlog.brokers.groups.requests import GroupSettings
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.brokers.log import DiskError, DiskPort, LogStore, Origin, StoreRefused
from fleetlog.brokers.log.compaction.cleaner import until_next_tick, watch_cleaner
from fleetlog.brokers.log.disk.checkpoints import CleanStop
from fleetlog.brokers.log.door import CheckerCounts, Judgement, PayloadQuestion
from fleetlog.brokers.log_tail import LogTail
from fleetlog.brokers.metadata import features, znodes
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.metadata.leader_history import LeaderHistory
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.brokers.metrics.registry import Histogram, Metrics
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, Clock, Endpoint, LiveBroker, ProcessHealth
from fleetlog.brokers.peers.calls import PeersPort
from fleetlog.brokers.quotas.metering import Metering
from fleetlog.brokers.replication.fetcher import ReplicaFetchers
from fleetlog.brokers.replication.full_disks import RoomKeeper
from fleetlog.brokers.replication.inventory_keeper import (
    InventoryKeeper,
    cluster_id_of,
    intact_since,
    later_epochs,
    stale_directories,
)
from fleetlog.brokers.replication.isr_writer import IsrWriter, Proposer
from fleetlog.brokers.replication.replicas import ReplicaManager
from fleetlog.brokers.replication.throttles import throttle_of
from fleetlog.brokers.shares.coordinator import ShareShard
from fleetlog.brokers.tiering.bucket import ObjectBucket
from fleetlog.brokers.tiering.tiers import Tiers, tier_troubles
from fleetlog.brokers.timers import Timers
from fleetlog.coordination.previous_session import PreviousSession
from fleetlog.coordination.registration import (
    Advertisement,
    DuplicateBroker,
    LastRegistration,
    ListenerAddress,
    Registered,
    register,
    registered_directories,
    unregister,
)
from fleetlog.coordination.store import SessionEvent, SessionExpired, SessionState, SessionStore, StoreError
from fleetlog.coordination.tree import adopt

logger = logging.getLogger(__name__)

TICK_S = 0.25
LOG_TICKS = 4
RETRY_S = 1.0
UNREGISTER_S = 2.0
METADATA_WAIT_MS = 30_000


class StartError(Exception):
    """The broker cannot start; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a broker. ``connect_peers`` makes a client for the other brokers, one per purpose.

    ``listen`` opens the listeners before they are registered; it raises StartError. ``previous_session`` stores the
    session's credentials. ``process_troubles`` returns problems of the process (file descriptors) as texts.
    """

    loop: asyncio.AbstractEventLoop
    clock: Clock
    disk: DiskPort
    store: SessionStore
    previous_session: PreviousSession
    connect_peers: Callable[[MetadataCache, Timers, str], PeersPort]
    new_cluster_id: Callable[[], str]
    new_id: Callable[[], uuid.UUID] = uuid.uuid4
    host: str = ""
    listen: Callable[[], None] = lambda: None
    process_troubles: Callable[[], list[str]] = list
    process_health: Callable[[], ProcessHealth] = ProcessHealth
    log_tail: LogTail | None = None
    bucket: ObjectBucket | None = None
    judge: Callable[[CheckerCounts, PayloadQuestion], Awaitable[Judgement]] | None = None
    """Asks the process that checks payloads; None: there is none."""
    addresses: tuple[str, ...] = ()
    """Those from which the other brokers see this one, as far as that is known."""


class Node:
    """See the module. :meth:`start` once, :meth:`stop` once, on the loop."""

    def __init__(self, config: BrokerConfig, ports: Ports, advertised: tuple[Endpoint, ...], metrics: Metrics) -> None:
        self.config = config
        self.services: Services | None = None
        self._ports = ports
        self._advertised = advertised
        self._metrics = metrics
        self._timers = Timers(ports.loop, ports.clock)
        self._logs: LogStore | None = None
        self._isr_writer: IsrWriter | None = None
        self._fetchers: ReplicaFetchers | None = None
        self._room: RoomKeeper | None = None
        self._authorization = Authorization(config, ports.store, ports.clock.mono_ms, ports.addresses)
        self._audit: Audit | None = None
        self._peers: PeersPort | None = None
        self._audit_writer: AuditWriter | None = None
        self._schemas: SchemaReader | None = None
        self._cluster_id = ""
        self._registered: Registered | None = None
        self._registrations = 0
        self._stopped: Mapping[str, CleanStop | None] = {}
        self._intact_since: int | None = None
        self._keeper: InventoryKeeper | None = None
        self._process = ports.new_id().hex
        self._session_changed = asyncio.Event()
        self._cut_off = False
        self._failed: asyncio.Future[None] = ports.loop.create_future()
        self._tasks: list[asyncio.Task[None]] = []

    # ---- start -----------------------------------------------------------------------------------------------------

    async def start(self) -> Services:
        """Start in the order of the module's docstring; the store is connected. Raises StartError."""
        store = self._ports.store
        store.on_session(self._on_session)
        try:
            seeds = {znodes.FEATURE: znodes.encode_features(features.NEWEST)}
            known = cluster_id_of(self._ports.disk, self.config.log_dirs)
            cluster_id = await adopt(store, lambda: known or self._ports.new_cluster_id(), seeds=seeds)
            registered = await registered_directories(store, self.config.broker_id)
        except (StoreError, ValueError, DiskError) as error:
            raise StartError(str(error)) from error
        self._cluster_id = cluster_id
        logs = self._open_logs(cluster_id, registered)
        self._keeper = keeper = InventoryKeeper(store, self.config.broker_id, self._ports.disk, logs, self._stopped)
        keeper.guard.on_behind = self._refuse
        self._upkeep(keeper.run(), "inventory")
        await self._end_previous_session()
        try:
            await self._authorization.start()
        except CannotReplicate as error:
            raise StartError(str(error)) from error
        metadata = MetadataCache(store, self.config, self._timers, keeper.guard)
        try:
            await metadata.start()
        except BadZnode as error:
            raise StartError(str(error)) from error
        await keeper.guard.compare_logs(
            lambda: later_epochs(metadata.topics, logs), partial(metadata.refreshed, METADATA_WAIT_MS)
        )
        source = EventSource(cluster_id, self.config.broker_id, version("fleetlog"), self._process)
        self._audit = started_audit(self.config, self._authorization.access, source, self._ports.clock)
        services = self._build(metadata, logs)
        self._follow_tiers(services, logs)
        if self.config.group_lag_interval_ms:
            self._watch_lag(services)
        self._ports.listen()
        await self._register()
        self._upkeep(self._keep_registered(), "registration")  # the session may expire before it is visible
        if not await metadata.wait_until(self.known, METADATA_WAIT_MS):
            raise StartError("the broker's registration is not visible in ZooKeeper after 30 s")
        services.replicas.reconcile()
        services.controller.start()
        self._upkeep(self._tick(logs), "upkeep")
        if services.tiers is not None:
            self._upkeep(services.tiers.run(), "tiers")
        if self._audit_writer is not None:
            self._upkeep(self._audit_writer.run(), "audit")
        if services.lags is not None:
            self._upkeep(services.lags.run(), "lag")
        # librdkafka's admin calls hang on Metadata without a controller: serve clients once there is one
        if not await metadata.wait_until(
            lambda: metadata.controller_id >= 0, 2 * self.config.zookeeper_session_timeout_ms
        ):
            logger.warning("no controller is elected yet; continuing without one")
        return services

    def _upkeep(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._ports.loop.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._upkeep_ended)

    def _open_logs(self, cluster_id: str, registered: Mapping[str, str]) -> LogStore:
        started = self._metrics.start
        logs = LogStore(
            self.config, self._ports.disk, self._ports.clock, cluster_id=cluster_id, start_figures=started
        )  # fmt: skip
        try:
            report = logs.load(registered)
        except StoreRefused as error:
            raise StartError(str(error)) from error
        self._logs = logs
        watch_cleaner(self._metrics.watch, logs.cleaner)
        self._stopped = report.stopped
        started.shortened_logs = len(report.lost)
        report.log(logger)
        return logs

    def _refuse(self) -> None:
        """ZooKeeper was replaced by an older copy: lead nothing, and register again when it is new enough."""
        self._registered = None
        if self.services is not None:
            self.services.replicas.resign_all()
        self._session_changed.set()

    async def _end_previous_session(self) -> None:
        """After a crash: this process has the logs' lock, so the stored session has no owner any more."""
        credentials = self._ports.previous_session.load()
        if credentials is not None and await self._ports.store.end_session(*credentials):
            logger.info("ended the ZooKeeper session %#x of this broker's previous process", credentials[0])
        self._keep_session()

    def _keep_session(self) -> None:
        credentials = self._ports.store.credentials()
        if credentials is not None:
            self._ports.previous_session.keep(*credentials)

    def _build(self, metadata: MetadataCache, logs: LogStore) -> Services:
        """Build the components, each with the ports it needs."""
        config, ports = self.config, self._ports
        store, clock, timers = ports.store, ports.clock, self._timers
        peers = self._peers = ports.connect_peers(metadata, timers, f"broker-{config.broker_id}")
        self._isr_writer = IsrWriter(
            store, config.broker_id, incarnation=self._incarnation, topic_exists=lambda p: _exists(metadata, p),
            refreshed=metadata.refreshed,
        )  # fmt: skip
        replicas = ReplicaManager(
            config.broker_id, metadata, logs, clock, session_valid=store.lease.valid, incarnation=self._incarnation,
            isr_writer=self._isr_writer, call_soon=ports.loop.call_soon, topic_figures=counted_topics(config),
        )  # fmt: skip
        self._room = RoomKeeper(config.broker_id, replicas, peers, ports.loop)
        rebalances = Histogram()  # of all shards, so that what it has counted stays when one moves to another broker
        groups, transactions, share_states = self._coordinators(metadata, replicas, peers, rebalances)
        controller = Controller(
            store, metadata, peers, broker_id=config.broker_id, clock=clock, new_id=ports.new_id, replicas=replicas
        )
        for runtime in (groups, transactions, share_states):
            runtime.follow(replicas)
        self._fetchers = ReplicaFetchers(
            config,
            ports.connect_peers(metadata, timers, f"replica-{config.broker_id}"),
            clock,
            broker_epoch=self._broker_epoch,
            loop=ports.loop,
            throttle=throttle_of(metadata, "follower"),
            tells_positions=replicas.tells_positions,
        )
        self._fetchers.watch(self._metrics)
        replicas.on_follower(self._fetchers.follow)
        replicas.on_unfollow(self._fetchers.unfollow)
        metadata.subscribe(replicas.apply)
        logs.broker_config = lambda: metadata.effective
        metadata.subscribe(lambda change: drop_topic_offsets(groups, change.deleted))
        self.services = Services(
            config=config,
            clock=clock,
            loop=ports.loop,
            timers=timers,
            store=store,
            metadata=metadata,
            replicas=replicas,
            groups=groups,
            transactions=transactions,
            share_states=share_states,
            controller=controller,
            metrics=self._metrics,
            process_troubles=ports.process_troubles,
            process_health=ports.process_health,
            log_tail=ports.log_tail,
            access=self._authorization.access,
            acls=self._authorization.acls,
            audit=self._audit,
            metering=Metering(config, clock, self._metrics),
            history=LeaderHistory(metadata, clock.wall_ms),
        )
        if self._audit is not None:
            writer = AuditWriter(
                self._audit, self.services, ports.connect_peers(metadata, timers, f"audit-{config.broker_id}")
            )  # fmt: skip
            self._metrics.watch_family(
                "fleetlog_audit", "Audit events, by what became of them.", "what", writer.metrics
            )
            self._audit_writer = writer
        self._follow_schemas(self.services, logs)
        sessions = self.services.fetch_sessions
        replicas.on_leader(lambda partition: sessions.expect(partition.state.replicas, clock.mono_ms()))
        watch_broker(self.services, store.lease.remaining_ms, partial(getattr, self._fetchers.counts, "corrupt"))
        watch_rebalances(self.services, rebalances)
        self._share(self.services, peers)
        return self.services

    def _share(self, services: Services, peers: PeersPort) -> None:
        """Ready for share groups (KIP-932) and for dead letters."""
        broker_id, metadata, replicas = self.config.broker_id, services.metadata, services.replicas
        transactions, runtime, create = services.transactions, services.share_states, services.controller.auto_create
        assert runtime is not None, "it was built"
        states = ShareStates(broker_id, metadata, peers, runtime, create, transactions.verifier.ask, services.clock)
        offsets = ShareOffsets(broker_id, services.groups, states, metadata, replicas, peers)
        letters = DeadLetters(
            broker_id, metadata, peers, transactions, replicas, states, create, services.clock,
            self._metrics.dead_letters,
        )  # fmt: skip
        services.schema_letters = SchemaLetters(
            broker_id, metadata, peers, transactions, replicas, services.clock, self._metrics.dead_letters
        )
        services.share_offsets = offsets
        services.share_partitions = SharePartitions(
            states, services.timers, services.clock, letters, offsets.subscribed, self._metrics.early_deliveries
        )
        self._metrics.watch(
            "fleetlog_dead_letters_waiting",
            "Records of share partitions led here that wait to become dead letters, as of the last try.",
            letters.waiting_records,
        )

    def _follow_tiers(self, services: Services, logs: LogStore) -> None:
        """Leave the retention of tiered topics to their tiers, and have these, where this broker has a bucket."""
        metadata = services.metadata
        logs.tiered = lambda topic: topic.tiers and metadata.features.get(features.TIERING_VERSION, 0) >= 1
        if self._ports.bucket is not None:
            services.tiers = Tiers(
                self.config, self._ports.bucket, metadata=metadata, replicas=services.replicas, disk=self._ports.disk,
                store=self._ports.store, clock=services.clock, cluster_id=self._cluster_id,
                incarnation=self._incarnation,
            )  # fmt: skip
            services.replicas.log_start = services.tiers.log_start
            services.tiers.watch(self._metrics)

    def _follow_schemas(self, services: Services, logs: LogStore) -> None:
        """Ready to read ``_schemas`` once a topic asks for it."""
        if self._ports.judge is not None:
            logs.schemas.judge = partial(self._ports.judge, logs.schemas.checker)
        name = f"schemas-{self.config.broker_id}"
        self._schemas = SchemaReader(
            services,
            logs.schemas,
            connect=partial(self._ports.connect_peers, services.metadata, self._timers, name),
            start=partial(self._upkeep, name="schemas"),
        )
        self._schemas.watch(self._metrics)

    def _coordinators(
        self, metadata: MetadataCache, replicas: ReplicaManager, peers: PeersPort, rebalances: Histogram
    ) -> tuple[CoordinatorRuntime[GroupShard], TransactionCoordinator, CoordinatorRuntime[ShareShard]]:
        """The coordinators of groups, of transactions, and of share partitions."""
        config, ports = self.config, self._ports
        clock, timers = ports.clock, self._timers
        settings = GroupSettings.of(config)
        room = MemberRoom(settings.members_max_bytes)
        groups = CoordinatorRuntime(
            "groups",
            GROUP_METADATA_TOPIC,
            lambda partition: GroupShard(partition, settings, room, rebalances),
            partition_count=partition_count_of(metadata, GROUP_METADATA_TOPIC, config.offsets_topic_num_partitions),
            loop=ports.loop,
            timers=timers,
            clock=clock,
            origin=Origin.COORDINATOR,
        )
        transactions = TransactionCoordinator(
            config,
            metadata=metadata,
            replicas=replicas,
            groups=groups,
            peers=peers,
            store=ports.store,
            loop=ports.loop,
            timers=timers,
            clock=clock,
            incarnation=self._incarnation,
        )
        share_count = partition_count_of(
            metadata, SHARE_STATE_TOPIC, config.share_coordinator_state_topic_num_partitions
        )
        share_states = CoordinatorRuntime(
            "share", SHARE_STATE_TOPIC, ShareShard, partition_count=share_count, loop=ports.loop, timers=timers,
            clock=clock, origin=Origin.COORDINATOR,
        )  # fmt: skip
        transactions.states_of[SHARE_STATE_TOPIC] = share_states
        metadata.subscribe(lambda change: drop_topic_states(share_states, change.deleted, ports.loop.call_soon))
        return groups, transactions, share_states

    def _watch_lag(self, services: Services) -> None:
        """Compute the lag of the groups, and tell it in the metrics. Connections of its own: old brokers close them."""
        config, metadata, replicas = self.config, services.metadata, services.replicas
        peers = self._ports.connect_peers(metadata, self._timers, f"lag-{config.broker_id}")
        lags = services.lags = LagWatch(
            config.broker_id, config.group_lag_interval_ms, services.groups, metadata, replicas, peers, services.clock,
            services.share_offsets,
        )  # fmt: skip
        serve_lags(config, version("fleetlog"), lags, metadata, replicas, self._metrics, self._ports.clock)

    # ---- registration ----------------------------------------------------------------------------------------------

    def _incarnation(self) -> int:
        return self._registered.incarnation if self._registered is not None else -1

    def _broker_epoch(self) -> int:
        return self._registered.broker_epoch if self._registered is not None else -1

    def known(self) -> bool:
        """Whether the metadata cache shows this broker's present registration."""
        if self.services is None:
            return False
        seen = self.services.metadata.brokers.get(self.config.broker_id)
        return seen is not None and seen.incarnation == self._incarnation()

    def not_ready(self) -> str | None:
        """Why the broker should not get traffic now; None if it should."""
        if self._keeper is not None and self._keeper.guard.behind is not None:
            return f"ZooKeeper is older than what this broker has seen: {self._keeper.guard.behind}"
        if self.services is None:
            return "starting"
        if not self.services.metadata.ready:
            return "the cluster's metadata is not read yet"
        if self._registered is None or not self.known():
            return "not registered in ZooKeeper"
        if self.services.metadata.controller_id < 0:
            return "no controller is elected"
        if not self.services.store.lease.valid():
            return "the ZooKeeper session's lease has run out"
        return None

    def troubles(self) -> list[str]:
        """Problems of its disks and replicas, and a lost ZooKeeper, as texts; the broker serves nevertheless."""
        if self.services is None:
            return []
        left_ms = self.services.store.lease.remaining_ms()
        cut_off = f"ZooKeeper does not answer this broker: its lease runs out in {left_ms} ms"
        services = self.services
        tiers = tier_troubles(services.tiers, services.metadata, services.replicas)
        return [*([cut_off] if self._cut_off else ()), *services.replicas.troubles(), *tiers]

    def _on_session(self, event: SessionEvent) -> None:
        self._cut_off = event.state is not SessionState.CONNECTED
        if event.state is SessionState.EXPIRED:
            logger.warning("ZooKeeper session expired: resigned all leaderships until registered again")
            self._registered = None
            if self.services is not None:
                self.services.replicas.resign_all()
        elif event.state is SessionState.SUSPENDED:
            logger.warning("connection to ZooKeeper lost; leaderships continue until the lease runs out")
        else:
            self._keep_session()
            self._session_changed.set()

    async def _register(self) -> None:
        """Register in the present session, as soon as the tree is new enough."""
        assert self._keeper is not None, "made with the logs"
        advertisement = Advertisement(
            self.config.broker_id,
            [ListenerAddress(*endpoint) for endpoint in self._advertised],
            rack=self.config.broker_rack,
            features=features.SUPPORTED,
            details={
                "failure_domain": self.config.failure_domain or self._ports.host,
                "waives_leases": True,
                "tells_positions": True,
                "matches_ranges": True,
            },
        )
        try:
            self._registered = await self._keeper.guard.when_current(
                partial(
                    register,
                    self._ports.store,
                    advertisement,
                    wall_ms=self._ports.clock.wall_ms,
                    mono_ms=self._ports.clock.mono_ms,
                    on_waiting=lambda message: logger.warning("%s", message),
                    process=self._process,
                    details=self._intactness,
                    guards=partial(features.registration_guards, self._ports.store),
                )
            )
        except (DuplicateBroker, features.LacksFeature) as error:
            raise StartError(str(error)) from error
        except StoreError as error:
            raise StartError(f"cannot register in ZooKeeper: {error}") from error
        self._registrations += 1
        self._keeper.guard.registered(self._registered.incarnation)
        if self._intact_since is None:
            self._intact_since = self._registered.incarnation
        if self.services is not None:
            self.services.replicas.registered(self._registered.incarnation, self._intact_since)
        logger.info(
            "registered: broker id %d, epoch %d, incarnation %d, intact since %d",
            self.config.broker_id,
            self._registered.broker_epoch,
            self._registered.incarnation,
            self._intact_since,
        )

    def _intactness(self, last: LastRegistration) -> dict[str, object]:
        """The incarnation since which the logs have lost nothing, for the registration that follows ``last``.

        It is known if this process registers again, and after a clean stop in the incarnation of ``last``. Otherwise it
        is the new incarnation itself: after a crash, or if another process has had this broker id since, with other
        directories.
        """
        assert self._logs is not None, "opened before"
        self._forget_missing()
        if last.process != self._process:
            since = None
            if self._keeper is not None and self._keeper.guard.repaired:
                logger.info("ZooKeeper was repaired: broker %d counts as intact from now on", self.config.broker_id)
            elif self._registrations:
                logger.error("another process registered as broker %d meanwhile (incarnation %d): its"
                             " acknowledged records are not here", self.config.broker_id, last.incarnation)  # fmt: skip
            else:
                since = intact_since(self._stopped, last, self._logs.owner.missing)
                for line in stale_directories(self.config.broker_id, self._stopped, last):
                    logger.error("%s", line)
            self._intact_since = since
        details: dict[str, object] = {"directories": self._logs.known_directories()}
        return details if self._intact_since is None else details | {"intact_since": self._intact_since}

    def _forget_missing(self) -> None:
        """Missing log directories are asked for no more once no replica waits for a log that may be there."""
        if self._logs is not None and self.services is not None and self.services.replicas.has_all_logs():
            self._logs.owner.missing.clear()

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
                if isinstance(error.__cause__, DuplicateBroker | features.LacksFeature):
                    raise
                if not isinstance(error.__cause__, SessionExpired):
                    logger.error("%s; retrying", error)
                    await asyncio.sleep(RETRY_S)
                    self._session_changed.set()
                continue
            assert self.services is not None
            self.services.replicas.reconcile()

    # ---- upkeep ----------------------------------------------------------------------------------------------------

    async def _tick(self, logs: LogStore) -> None:
        assert self.services is not None
        assert self._room is not None, "built with the services"
        assert self._keeper is not None, "made with the logs"
        ticks, late_ms, clock = 0, 0.0, self._ports.clock
        while True:
            late_ms = max(late_ms, await until_next_tick(TICK_S, logs.cleaner, logs.resume_cleaning, clock))
            self.services.replicas.tick(self._ports.clock.mono_ms())
            self._room.tick(self._ports.clock.mono_ms())
            ticks += 1
            if ticks % LOG_TICKS == 0:
                logs.tick(clock.wall_ms(), late_ms)
                late_ms = 0.0
                self._keeper.save()

    def _upkeep_ended(self, task: asyncio.Task[None]) -> None:
        """A task that must not end did (a bug, or another broker with this id): stop the broker."""
        if not task.cancelled() and not self._failed.done():
            error = task.exception()
            logger.critical("%s ended: %s", task.get_name(), error, exc_info=error)
            self._failed.set_exception(error or RuntimeError(f"{task.get_name()} ended"))

    async def failed(self) -> None:
        """Wait for the end of a task that must not end; raises its exception."""
        await self._failed

    # ---- stop ------------------------------------------------------------------------------------------------------

    async def retire(self) -> None:
        """The first half of a clean stop: hand over leaderships while clients are still served.

        Coordinators close first: their successors may answer as soon as they are elected.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._failed.cancel()
        if self._room is not None:
            self._room.stop()
        services = self.services
        if services is None:
            return
        if self._audit_writer is not None and self._registered is not None:
            await self._audit_writer.finish()
        assert services.share_partitions is not None
        assert services.share_states is not None
        await services.share_partitions.stop()
        services.share_states.close()
        services.groups.close()
        await services.transactions.stop()
        if self._registered is not None and self._peers is not None:
            await hand_over(
                self.config,
                self._registered.broker_epoch,
                metadata=services.metadata,
                replicas=services.replicas,
                controller=services.controller,
                peers=self._peers,
            )
        await services.controller.stop()
        services.replicas.resign_all()

    async def stop(self) -> None:
        """The second half: unregister, so that other brokers take over at once, then close the logs."""
        services = self.services
        self._forget_missing()
        if services is not None:
            if self._isr_writer is not None:
                await self._isr_writer.stop()
            if self._fetchers is not None:
                await self._fetchers.close()
            await services.metadata.stop()
            services.replicas.close()
            if self._peers is not None:
                await self._peers.close()
            if services.lags is not None:
                await services.lags.close()
            if self._audit_writer is not None:
                await self._audit_writer.close()
            if self._schemas is not None:
                await self._schemas.close()
        self._timers.close()
        await self._authorization.stop()
        live_broker, broker_epoch = self._live_broker(), self._broker_epoch()
        store = self._ports.store
        try:
            if self._registered is not None:
                async with asyncio.timeout(UNREGISTER_S):
                    await unregister(store, self._registered)
        except (StoreError, TimeoutError) as error:
            logger.info("unregistering failed: %s", error)
        await store.close()
        self._ports.previous_session.forget()
        if self._logs is not None:
            if self._keeper is not None:
                self._keeper.save_now()
            self._logs.close(clean=True, broker_epoch=broker_epoch, live_broker=live_broker)

    def _live_broker(self) -> LiveBroker | None:
        if self._registered is None or self._intact_since is None:
            return None
        return LiveBroker(self._registered.incarnation, self._intact_since)


def _exists(metadata: MetadataCache, partition: Proposer) -> bool:
    topic = metadata.topics.get(partition.tp.topic)
    return topic is not None and topic.id == partition.topic_id
