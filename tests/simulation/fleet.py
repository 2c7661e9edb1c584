"""Simulated brokers: the production ``Node`` on simulated ports, with a disk and a clock that outlive its processes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.logins.users import ScramUsers
from fleetlog.brokers.metadata.client_configs import ClientConfigs
from fleetlog.brokers.model import Endpoint
from fleetlog.brokers.node import Node, Ports, StartError
from fleetlog.brokers.server import connection
from fleetlog.coordination.connect import CannotConnect
from tests.simulation.disk import Medium, SimDisk
from tests.simulation.judging import judge
from tests.simulation.logins import logins_of
from tests.simulation.loop import Owner, SimLoop
from tests.simulation.network import Network, SimPeers
from tests.simulation.store import SimStore
from tests.simulation.zookeeper import SimZooKeeper

if TYPE_CHECKING:
    from fleetlog.brokers.api.base import Services
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.metrics.registry import Metrics

WALL_MS = 1_700_000_000_000
SESSION_MS = 1_000
LAG_MS = 1_400
LISTENER = "PLAINTEXT"

SETTINGS: dict[str, Any] = {
    "zookeeper_connect": "simulated:1",
    "zookeeper_session_timeout_ms": SESSION_MS,
    "replica_lag_time_max_ms": LAG_MS,
    "replica_fetch_wait_max_ms": 900,
    "default_replication_factor": 3,
    "min_insync_replicas": 2,
    "group_lag_interval_ms": 0,
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 3,
    "transaction_state_log_num_partitions": 1,
    "transaction_state_log_replication_factor": 3,
    "transaction_state_log_min_isr": 2,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 500,
    "group_min_session_timeout_ms": 500,
    "group_initial_rebalance_delay_ms": 0,
    "log_flush_offset_checkpoint_interval_ms": 5_000,
    "log_segment_bytes": 2_000,
    "log_index_interval_bytes": 200,
    "auto_create_topics_enable": False,
    "leader_imbalance_check_interval_seconds": 5,
}


class _NoMetrics:
    """Takes every measurement and forgets it: real counters cost more than what they count here."""

    def __getattr__(self, name: str) -> _NoMetrics:
        return self

    def __call__(self, *args: Any, **options: Any) -> _NoMetrics:
        return self

    def __contains__(self, name: object) -> bool:
        return True

    def __iadd__(self, more: float) -> _NoMetrics:
        return self


NO_METRICS = cast("Metrics", _NoMetrics())


class SimClock:
    """A machine's clock: the loop's time for measuring, and a wall clock that faults may move."""

    def __init__(self, loop: SimLoop) -> None:
        self.skew_ms = 0
        self._loop = loop

    def wall_ms(self) -> int:
        return WALL_MS + self._loop.now_us // 1000 + self.skew_ms

    def mono_ms(self) -> int:
        return self._loop.now_us // 1000

    def mono_us(self) -> int:
        return self._loop.now_us


class KeptSession:
    """The session's credentials beside the logs; lost with the power like any file, or not."""

    def __init__(self) -> None:
        self.credentials: tuple[int, bytes] | None = None

    def load(self) -> tuple[int, bytes] | None:
        return self.credentials

    def keep(self, session_id: int, password: bytes) -> None:
        self.credentials = session_id, password

    def forget(self) -> None:
        self.credentials = None


class SimBroker:
    """One machine: what stays when its broker's process ends, and the process while there is one."""

    def __init__(
        self, fleet: Fleet, broker_id: int, rack: str | None, settings: dict[str, Any], *, spread: bool
    ) -> None:
        self.id = broker_id
        self.name = f"b{broker_id}"
        self.clock = SimClock(fleet.loop)
        self.previous_session = KeptSession()
        self.medium = Medium(self.name, random.Random(f"{fleet.seed}/disk{broker_id}"))
        self.medium.on_death = self.kill
        self._luck = random.Random(f"{fleet.seed}/luck{broker_id}")
        log_dirs = tuple(f"/{self.name}{name}" for name in (("/a", "/b", "/c") if spread else ("",)))
        self.config = BrokerConfig(broker_id=broker_id, broker_rack=rack, log_dirs=log_dirs, **{**SETTINGS, **settings})
        self.owner: Owner | None = None
        self.store: SimStore | None = None
        self.node: Node | None = None
        self.services: Services | None = None
        self.users = ScramUsers(self._withdrawn)
        self.starts = 0
        self.stopping = False
        self._fleet = fleet

    @property
    def running(self) -> bool:
        """Whether there is a process (it may be paused)."""
        return self.owner is not None

    def start(self) -> None:
        """Start a process, which starts again when it gives up."""
        if self.running:
            return
        self.starts += 1
        self.stopping = False
        fleet = self._fleet
        owner = self.owner = fleet.loop.owner(f"{self.name}#{self.starts}")
        fleet.loop.spawn(owner, self._run(owner), f"{owner.name} main")

    async def _run(self, owner: Owner) -> None:
        fleet, loop = self._fleet, self._fleet.loop
        store = self.store = SimStore(
            fleet.zookeeper, owner, self.clock.mono_ms, name=self.name, session_timeout_ms=SESSION_MS
        )
        disk = SimDisk(loop, owner, self.medium, self.clock.wall_ms)
        ports = Ports(
            loop=loop,
            clock=self.clock,
            disk=disk,
            store=store,
            previous_session=self.previous_session,
            connect_peers=lambda metadata, timers, client_id: self._peers(owner, metadata),
            new_cluster_id=lambda: "simulated",
            new_id=fleet.new_id,
            host=self.name,
            judge=judge(owner.name),
        )
        node = self.node = Node(self.config, ports, (Endpoint(LISTENER, self.name, 9092),), NO_METRICS)
        try:
            await store.start(self.config.zookeeper_connection_timeout_ms)
            services = await node.start()
            if services.acls is not None or fleet.logs_in:
                await self._follow_clients(services, store)
        except (StartError, CannotConnect, TimeoutError) as problem:
            fleet.note(f"{owner.name} does not start: {problem}")
            if "is not visible" in str(problem):
                fleet.invisible.append(owner.name)
            self._gone(owner)
            loop.call_later(1.0, self.start, context=loop.world.context)
            return
        self.services = services
        fleet.network.open_door(self.name, owner, services, logins_of(self.users) if fleet.logs_in else None)
        fleet.note(f"{owner.name} serves")
        try:
            await node.failed()
        except StartError as problem:
            fleet.note(f"{owner.name} failed: {problem}")
            self.kill()
            loop.call_later(1.0, self.start, context=loop.world.context)

    async def _follow_clients(self, services: Services, store: SimStore) -> None:
        """Quotas and users, as the process around the node follows them."""
        self.users = ScramUsers(self._withdrawn)
        services.client_configs = ClientConfigs(store)
        services.client_configs.subscribe(services.quotas.take)
        services.client_configs.subscribe(self.users.take)
        await services.client_configs.start()

    def _withdrawn(self, credentials: frozenset[tuple[str, str]]) -> None:
        door = self._fleet.network.doors.get(self.name)
        if door is not None:
            connection.close_logins(door.connections, credentials)

    def _peers(self, owner: Owner, metadata: MetadataCache) -> SimPeers:
        return SimPeers(self._fleet.network, owner, self.name, metadata)

    def kill(self, *, power: bool = False) -> None:
        """SIGKILL; with ``power`` the machine loses power, and what was not synced."""
        owner = self.owner
        if owner is None:
            return
        self._gone(owner)
        if power:
            self.medium.lose_power()
            if self._luck.random() < 0.5:
                self.previous_session.forget()

    def _gone(self, owner: Owner) -> None:
        fleet = self._fleet
        fleet.loop.crash(owner)
        fleet.network.died(self.name, owner)
        self.owner = self.store = self.node = self.services = None
        self.medium.die_after_writes = -1
        self.medium.full = False
        self.medium.failed_directory = ""

    def stop(self) -> None:
        """A clean stop (SIGTERM)."""
        owner, node = self.owner, self.node
        if owner is None or node is None or self.services is None or self.stopping:
            return
        self.stopping = True
        self._fleet.loop.spawn(owner, self._stop(owner, node), f"{owner.name} stop")

    async def _stop(self, owner: Owner, node: Node) -> None:
        await node.retire()
        self._fleet.network.close_door(self.name)
        await node.stop()
        self._fleet.note(f"{owner.name} has stopped")
        self._gone(owner)


class Fleet:
    """The machines, ZooKeeper and the network between them."""

    def __init__(
        self,
        seed: int,
        size: int,
        *,
        note: Callable[[str], None] = lambda text: None,
        settings: dict[str, Any] | None = None,
        racks: bool = False,
        logs_in: bool = False,
        spread: bool = False,
    ) -> None:
        self.seed = seed
        self.note = note
        self.logs_in = logs_in
        """Whether some clients log in."""
        self.spread = spread
        """Whether the brokers have several log directories."""
        self.loop = SimLoop(seed)
        self.zookeeper = SimZooKeeper(self.loop, seed, tick_ms=200)
        self.network = Network(self.loop, seed)
        self.invisible: list[str] = []
        """Brokers whose start waited for a registration that was never shown: they did not register again."""
        self._ids = random.Random(f"{seed}/ids")
        self.brokers = {
            broker_id: SimBroker(self, broker_id, f"r{broker_id % 2}" if racks else None, settings or {}, spread=spread)
            for broker_id in range(1, size + 1)
        }

    def new_id(self) -> uuid.UUID:
        """A random id, from the seed."""
        return uuid.UUID(int=self._ids.getrandbits(128), version=4)

    def start(self) -> None:
        """Start all brokers."""
        for broker in self.brokers.values():
            broker.start()

    def serving(self) -> bool:
        """Whether all brokers answer."""
        return all(broker.services is not None for broker in self.brokers.values())
