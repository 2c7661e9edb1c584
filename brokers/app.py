"""A broker process: the only place that builds real ports. ``brokers.node`` connects them.

The order of a start: bind the addresses (a port in use is the most common error), connect to ZooKeeper, start the node,
serve clients. The node opens the listeners just before it registers, because registered addresses must be its own.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from fleetlog.brokers.api.base import Services
from fleetlog.brokers.audit.settings import audit_settings
from fleetlog.brokers.config import BrokerConfig, ConfigError
from fleetlog.brokers.log import DirectoryInUse, DiskError, LogStore, RealDisk, StoreRefused
from fleetlog.brokers.log.directories.directories import LogDirectory
from fleetlog.brokers.log.directories.owner import DirectoryOwner
from fleetlog.brokers.log.disk.sync_times import slow_sync_micros
from fleetlog.brokers.log_tail import kept_log_tail
from fleetlog.brokers.logins.issuer_keys import IssuerKeys, KeysUnavailable
from fleetlog.brokers.logins.listener_settings import LoginSettings, login_settings
from fleetlog.brokers.logins.sasl import SaslListener
from fleetlog.brokers.logins.scram import random_text
from fleetlog.brokers.logins.users import ScramUsers, login_secret
from fleetlog.brokers.metadata.client_configs import ClientConfigs
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.brokers.metrics.process import ProcessFigures, watch_zookeeper
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.model import BrokerId, CertificateState, Endpoint, ProcessHealth, id_text, random_id
from fleetlog.brokers.node import Node, Ports, StartError
from fleetlog.brokers.peers.calls import Peers
from fleetlog.brokers.replication.isr import held_back, not_in_sync, some_of
from fleetlog.brokers.server.admin import Admin, admin_contexts
from fleetlog.brokers.server.descriptors import Descriptors, in_use
from fleetlog.brokers.server.listener import Server
from fleetlog.brokers.server.login import sasl_listener
from fleetlog.brokers.server.service_manager import service_manager
from fleetlog.brokers.server.watchdog import LoopWatch
from fleetlog.brokers.tiering.bucket import BadUrl, ObjectBucket
from fleetlog.brokers.tls.contexts import server_context
from fleetlog.brokers.tls.dynamic_settings import DynamicTls
from fleetlog.brokers.tls.listener_settings import ignored_client_auth, listener_tls
from fleetlog.brokers.tls.listeners import TlsListener
from fleetlog.brokers.tls.peers import inter_broker_contexts, inter_broker_server_context
from fleetlog.brokers.tls.zookeeper import ZookeeperSettings
from fleetlog.coordination.previous_session import FILE_NAME, PreviousSession
from fleetlog.coordination.store import StoreError
from fleetlog.coordination.zookeeper import ZookeeperStore

if TYPE_CHECKING:
    from fleetlog.brokers.log.door import CheckerCounts, Judgement, PayloadQuestion
    from fleetlog.brokers.server.payload_checks import PayloadChecks

__all__ = ["Broker", "StartError", "SystemClock", "new_cluster_id", "run"]

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0002  # ZooKeeper's client threads otherwise take 5 ms slices from the loop
GC_THRESHOLDS = (50_000, 2, 500)
"""The second value: one collection of the middle generation traverses all objects that survived since the last one.
After the creation of 10,000 partitions it blocked the loop for 400 ms with 20, for a tenth of that with 2. Each object
is traversed there once in any case.
"""
LAG_PROBE_S = 0.25


class SystemClock:
    """The real clock: CLOCK_REALTIME for records, CLOCK_BOOTTIME, which counts suspended time, for measuring."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        """Milliseconds since boot."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def mono_us(self) -> int:
        """Microseconds since boot."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def new_cluster_id() -> str:
    """A fresh cluster id, 22 characters of base64url as Kafka writes it."""
    return id_text(random_id())


def new_nonce() -> str:
    """Unpredictable text, for one login by SCRAM."""
    return random_text(secrets.randbits)


def tls_listeners(config: BrokerConfig, clock: SystemClock) -> dict[str, TlsListener]:
    """The listeners with TLS, with their certificates and keys. Raises ConfigError."""
    settings = listener_tls(config)
    protocols = {endpoint.listener: endpoint.security_protocol for endpoint in config.listener_endpoints()}
    now_s = clock.wall_ms() / 1000
    inside = config.inter_broker_listener()
    makers = {inside: inter_broker_server_context(config)} if inside in settings else {}
    return {
        name: TlsListener(name, protocols[name], one, now_s, makers.get(name, server_context))
        for name, one in settings.items()
    }


def open_bucket(config: BrokerConfig) -> ObjectBucket | None:
    """The bucket of tiered storage, where this broker has one. Raises StartError."""
    if not config.remote_log_storage_system_enable:
        return None
    if not config.fleetlog_bucket_url:
        logger.warning("remote.log.storage.system.enable has no effect without fleetlog.bucket.url")
        return None
    try:
        return ObjectBucket(config.fleetlog_bucket_url)
    except BadUrl as error:
        raise StartError(f"{error}; see fleetlog.bucket.url") from error


def cannot_listen(setting: str, error: OSError, address: str = "") -> StartError:
    """The error of an address that cannot be bound; ``setting`` is the setting that has it."""
    number = error.errno or 0  # a resolver's are negative
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    return StartError(f"cannot listen on {address or error.filename}: {reason}; see {setting}")


class Broker:
    """One broker process: sockets and real ports around a :class:`Node`. :meth:`start` once, :meth:`stop` once."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self._loop = loop
        self._clock = SystemClock()
        self._metrics = Metrics()
        self._metrics.enabled = config.metrics_enable
        self._metrics.counting = config.metrics_enable and bool(config.admin_listener)
        self._process = ProcessFigures(self._metrics) if self._metrics.counting else None
        self._descriptors = Descriptors(self._clock.mono_ms)
        self._server = Server(config, self._descriptors)
        self._watch = LoopWatch(loop)
        self._admin = Admin(
            self._metrics,
            self._not_ready,
            self._troubles,
            standing_ms=self._watch.standing_ms,
            dead_ms=2 * config.zookeeper_session_timeout_ms,
            more={b"/health/caught-up": self._not_caught_up, b"/health/stoppable": self._not_stoppable},
        )
        self._store: ZookeeperStore | None = None
        self._node: Node | None = None
        self._tls: dict[str, TlsListener] = {}
        self._certificates: DynamicTls | None = None
        self._issuers: dict[str, IssuerKeys] = {}
        self._client_configs: ClientConfigs | None = None
        self._stopping = False
        self._caught_up = False
        self._lag_probe: asyncio.Task[None] | None = None
        self._payloads: PayloadChecks | None = None

    async def _judge(self, counts: CheckerCounts, question: PayloadQuestion) -> Judgement:
        """Ask the process that checks payloads."""
        if self._payloads is None:
            from fleetlog.brokers.server.payload_checks import PayloadChecks

            self._payloads = PayloadChecks(counts)
        return await self._payloads.judge(question)

    # ---- start -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start in the order of the module's docstring; raises StartError."""
        logins = login_settings(self.config)
        self._tls = tls_listeners(self.config, self._clock)
        peer_contexts = inter_broker_contexts(self.config, time.time)
        unasked = ignored_client_auth(self.config)
        if unasked is not None:
            logger.warning("%s", unasked)
        audit_settings(self.config)
        inert = self.config.without_effect()
        if inert:
            logger.warning("settings accepted, but without effect in fleetlog: %s", ", ".join(inert))
        advertised = self._bind()
        if self.config.admin_listener:
            await self._start_admin()
        self._store = await self._connect()
        boot = Path("/proc/sys/kernel/random/boot_id")
        previous_session = PreviousSession(
            Path(self.config.log_dirs[0]) / FILE_NAME, boot.read_text() if boot.exists() else ""
        )
        listener = self.config.inter_broker_listener()
        ports = Ports(
            loop=self._loop,
            clock=self._clock,
            disk=RealDisk(mapped=self.config.fetch_send == "mmap"),
            store=self._store,
            previous_session=previous_session,
            connect_peers=lambda metadata, timers, client_id: Peers(
                metadata, timers, listener, client_id, logins.own, new_nonce, peer_contexts
            ),
            new_cluster_id=new_cluster_id,
            host=socket.gethostname(),
            listen=self._listen,
            process_troubles=self._descriptors.troubles,
            process_health=self._health,
            log_tail=kept_log_tail(),
            bucket=open_bucket(self.config),
            judge=self._judge,
            addresses=await self._addresses(advertised, listener),
        )
        self._node = Node(self.config, ports, advertised, self._metrics)
        watch_zookeeper(self._metrics, self._store)
        services = await self._node.start()
        # Only now: recovery may block the loop for minutes, but no registration depends on the loop until here.
        self._watch.start()
        self._store.heartbeats_prove(self._watch.standing_ms)
        if self._tls:
            self._certificates = DynamicTls(self.config, self._tls, peer_contexts, self._clock)
            services.certificates = self._certificates
            await self._certificates.start(services.metadata)
        self._server.serve(services, logins=await self._follow_clients(services, logins), tls=self._tls)
        self._lag_probe = self._loop.create_task(self._probe_loop_lag(), name="loop lag")

    async def _follow_clients(self, services: Services, logins: LoginSettings) -> dict[str, SaslListener]:
        """Follow quotas, and SCRAM's credentials if a listener needs them; returns the logins of those with SASL."""
        assert self._store is not None, "connected before"
        users, fake_key = ScramUsers(self._server.close_logins), b""
        self._client_configs = services.client_configs = ClientConfigs(self._store)
        self._client_configs.subscribe(services.quotas.take)
        if logins.has_scram:
            self._client_configs.subscribe(users.take)
            try:
                fake_key = await login_secret(self._store, secrets.token_bytes)
            except (StoreError, BadZnode) as error:
                raise StartError(f"the secret of SCRAM logins cannot be had from ZooKeeper: {error}") from error
        await self._client_configs.start()
        by_name = {}
        for name, one in logins.listeners.items():
            verify = None
            if one.oidc is not None:
                issuer = self._issuers[name] = IssuerKeys(one.oidc, self._clock)
                try:
                    await issuer.start()
                except KeysUnavailable as error:
                    raise StartError(f"listener {name}: {error}; see sasl.oauthbearer.jwks.endpoint.url") from error
                verify = issuer.verify
            by_name[name] = sasl_listener(one, users, fake_key, verify)
        return by_name

    def _bind(self) -> tuple[Endpoint, ...]:
        """Bind the listeners; returns the advertised endpoints."""
        wanted = self.config.listener_endpoints()
        try:
            bound = self._server.bind(wanted)
        except OSError as error:
            raise cannot_listen("listeners", error) from error
        chosen = {endpoint.listener: endpoint.port for endpoint in bound}
        return tuple(
            endpoint._replace(port=endpoint.port or chosen[endpoint.listener])
            for endpoint in self.config.advertised_endpoints()
        )

    async def _addresses(self, advertised: tuple[Endpoint, ...], listener: str) -> tuple[str, ...]:
        """The addresses of the host that other brokers connect to: from those, they see connections of this one."""
        host = next(endpoint.host for endpoint in advertised if endpoint.listener == listener)
        try:
            resolved = await self._loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError:
            return ()
        return tuple(dict.fromkeys(str(address[4][0]) for address in resolved))

    def _listen(self) -> None:
        try:
            self._server.listen()
        except OSError as error:
            raise cannot_listen("listeners", error) from error

    async def _start_admin(self) -> None:
        host, port = self.config.admin_endpoint()
        contexts = admin_contexts(self.config, time.time)
        try:
            await self._admin.start(host, port, None if contexts is None else contexts.newest)
        except OSError as error:
            raise cannot_listen("admin.listener", error, self.config.admin_listener) from error

    async def _connect(self) -> ZookeeperStore:
        config = self.config
        security = ZookeeperSettings.of(dict(config.given)).connection(time.time)
        try:
            store = ZookeeperStore(
                config.zookeeper_connect, session_timeout_ms=config.zookeeper_session_timeout_ms, security=security
            )
            await store.start(config.zookeeper_connection_timeout_ms)
        except (StoreError, ValueError) as error:
            where = (
                "" if str(error).startswith("zookeeper.connect") else f"zookeeper.connect={config.zookeeper_connect}: "
            )
            raise StartError(f"{where}{error}") from error
        return store

    def _not_ready(self) -> str | None:
        if self._stopping:
            return "stopping"
        if self._node is None:
            return "starting"
        return self._node.not_ready() or (None if self._server.serving else "starting")

    def _not_caught_up(self) -> str | None:
        """Why not ready, or which replicas have not been in sync once since the start; None if there are none."""
        missing = self._not_ready()
        if missing is not None or self._caught_up or self._node is None or self._node.services is None:
            return missing
        metadata = self._node.services.metadata
        behind = not_in_sync(metadata.topics.values(), metadata.brokers[BrokerId(self.config.broker_id)])
        self._caught_up = not behind
        return f"replicas are not in sync: {some_of(behind)}" if behind else None

    def _not_stoppable(self) -> str | None:
        """Which partitions would fall below min.insync.replicas without this broker; None if there are none."""
        if self._node is None or self._node.services is None:
            return "starting"
        metadata = self._node.services.metadata
        if not metadata.ready:
            return "the cluster's metadata is not read yet"
        held = held_back(
            metadata.topics.values(),
            self.config.broker_id,
            lambda topic: metadata.topic_config(topic).min_insync_replicas,
        )
        return f"too few replicas in sync without this broker: {some_of(held)}" if held else None

    def _troubles(self) -> list[str]:
        certificates = [f"listener {one.name}: {one.refusal}" for one in self._tls.values() if one.refusal is not None]
        if self._certificates is not None and self._certificates.left_over is not None:
            certificates.append(self._certificates.left_over)
        return [
            *(self._node.troubles() if self._node is not None else ()), *self._descriptors.troubles(), *certificates,
        ]  # fmt: skip

    def _health(self) -> ProcessHealth:
        used, limit = in_use()
        states = [
            CertificateState(one.name, round(one.valid_until_s * 1000), one.refusal) for one in self._tls.values()
        ]
        return ProcessHealth(used, limit, tuple(states), slow_sync_micros(), *self._watch.lag_micros())

    async def _probe_loop_lag(self) -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(LAG_PROBE_S)
            self._metrics.loop_lag_seconds.observe(max(0.0, time.perf_counter() - started - LAG_PROBE_S))

    async def failed(self) -> None:
        """Wait for the end of a task that must not end; raises its exception."""
        assert self._node is not None, "after start"
        await self._node.failed()

    # ---- stop ------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """A clean shutdown: hand over leaderships while clients are still served; then sockets, session and logs."""
        self._stopping = True
        if self._lag_probe is not None:
            self._lag_probe.cancel()
        if self._node is not None:
            await self._node.retire()
        self._server.close()
        for issuer in self._issuers.values():
            await issuer.stop()
        if self._client_configs is not None:
            await self._client_configs.stop()
        self._watch.stop()
        if self._node is not None:
            await self._node.stop()
        elif self._store is not None:
            await self._store.close()
        if self._payloads is not None:
            self._payloads.close()
        await self._admin.close()
        if self._process is not None:
            self._process.stop()
        logger.info("broker %d has stopped", self.config.broker_id)


def accept_directory(config: BrokerConfig, path: str) -> None:
    """Make an empty entry of ``log.dirs`` this broker's, in place of a lost disk; raises StartError."""
    directories = [LogDirectory(one.rstrip("/") or "/") for one in config.log_dirs]
    chosen = next((one for one in directories if one.path == (path.rstrip("/") or "/")), None)
    if chosen is None:
        raise StartError(f"{path} is not in log.dirs ({', '.join(config.log_dirs)})")
    others = [one for one in directories if one is not chosen]
    try:
        DirectoryOwner(RealDisk(), config.broker_id, None).accept(chosen, others, uuid.uuid4())
    except (StoreRefused, DiskError) as error:
        raise StartError(str(error)) from error


def check_start(config: BrokerConfig) -> None:
    """Check everything that a start needs, without changes; raises StartError with all errors.

    If a broker already runs with this configuration, its addresses are not checked.
    """
    wrong = []
    runs = False
    for check in (
        login_settings,
        audit_settings,
        lambda one: tls_listeners(one, SystemClock()),
        lambda one: inter_broker_contexts(one, time.time),
        lambda one: admin_contexts(one, time.time),
    ):
        try:
            check(config)
        except ConfigError as error:
            wrong.append(str(error))
    try:
        open_bucket(config)
    except StartError as error:
        wrong.append(str(error))
    try:
        LogStore(config, RealDisk(), SystemClock()).check_owners()
    except DirectoryInUse:
        runs = True
    except StoreRefused as error:
        wrong.append(str(error))
    usable = [_unusable(Path(path)) for path in config.log_dirs]
    if all(usable):
        wrong.append(f"none of log.dirs is usable: {'; '.join(reason for reason in usable if reason)}")
    if not runs:
        wrong += _untakable(config)
    try:
        asyncio.run(_reach_zookeeper(config))
    except (StoreError, ValueError) as error:
        wrong.append(str(error))
    if wrong:
        raise StartError("; ".join(wrong))


def _unusable(path: Path) -> str | None:
    """Why a log directory cannot be used; None if it can be used or created."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        return f"{there} is not a directory"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"


def _untakable(config: BrokerConfig) -> list[str]:
    untakable = []
    server = Server(config)
    try:
        server.bind(config.listener_endpoints())
        server.listen()
    except OSError as error:
        untakable.append(str(cannot_listen("listeners", error)))
    finally:
        server.close()
    if config.admin_listener:
        host, port = config.admin_endpoint()
        try:
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError as error:
            untakable.append(str(cannot_listen("admin.listener", error, config.admin_listener)))
    return untakable


async def _reach_zookeeper(config: BrokerConfig) -> None:
    """Open a session and close it, without the chroot, which a start would create."""
    servers = config.zookeeper_connect.partition("/")[0]
    security = ZookeeperSettings.of(dict(config.given)).connection(time.time)
    store = ZookeeperStore(servers, session_timeout_ms=config.zookeeper_session_timeout_ms, security=security)
    await store.start(config.zookeeper_connection_timeout_ms)
    await store.close()


def run(config: BrokerConfig) -> None:
    """Run a broker until SIGTERM or SIGINT; raises StartError."""
    import uvloop

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    gc.disable()  # during the start, whose objects are permanent
    uvloop.run(_run(config))


async def _run(config: BrokerConfig) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    manager = service_manager(os.environ)
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
        gc.freeze()  # the start's objects are permanent: full collections can skip them
        gc.enable()
        logger.info("broker %d is ready", config.broker_id)
        manager.ready(f"broker {config.broker_id} serves")
        manager.feed_watchdog(loop)
        failing = loop.create_task(broker.failed(), name="failure")
        await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            error = failing.exception()
            raise error if isinstance(error, StartError) else StartError(f"stopped by an unexpected error: {error}")
        failing.cancel()
    except ConfigError as error:
        raise StartError(str(error)) from error
    finally:
        manager.stopping()
        starting.cancel()
        stopping.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        await broker.stop()
