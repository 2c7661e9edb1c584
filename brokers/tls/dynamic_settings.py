"""Settings of TLS that change while a broker runs: the certificates of one listener, as in Kafka.

They are dynamic settings of one broker, behind the listener's prefix, and count before those of its file. Secrets are
none of them: the change log of the metadata would show them to all that read ZooKeeper.

Source: KIP-226; DynamicBrokerConfig.DynamicSecurityConfigs, SslConfigs.RECONFIGURABLE_CONFIGS.

Certificates that ``kafka-configs`` changes are tried before they are stored, and in use before the answer. What was
stored and cannot be used, as after a file was removed, leaves the listener with what it has; the log, the metric and
``/health/ready`` say so, and each look at the files tries again. At a start the listener would have what its file says,
which may trust what was replaced: it serves no connection until what is stored can be used.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fleetlog.brokers.config import LISTENER_PREFIX, BrokerConfig
from fleetlog.brokers.metadata.znodes import CONFIG_BROKERS
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.tls.listener_settings import listener_tls

if TYPE_CHECKING:
    from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
    from fleetlog.brokers.model import Clock
    from fleetlog.brokers.tls.contexts import FollowedContexts
    from fleetlog.brokers.tls.listeners import TlsListener
    from fleetlog.brokers.tls.settings import TlsSettings

logger = logging.getLogger(__name__)

_DYNAMIC: Final = frozenset({
    "ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.certificate.chain",
    "ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.certificates",
})  # fmt: skip
_SECRET: Final = frozenset({
    "ssl.keystore.password", "ssl.keystore.key", "ssl.key.password", "ssl.truststore.password"
})  # fmt: skip


def of_tls(name: str) -> str:
    """The setting without its listener's prefix if it is one of TLS, else empty."""
    base = name
    if name.startswith(LISTENER_PREFIX):
        base = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    return base if base.startswith("ssl.") else ""


def refused_change(name: str, *, of_all_brokers: bool) -> str | None:
    """Why a setting of TLS cannot be given a value while brokers run; None if it can. For those with ``of_tls``."""
    base = of_tls(name)
    if base not in _DYNAMIC | _SECRET:
        return f"Cannot update these configs dynamically: {name}"
    if base == name:
        return (
            "These security configs can be dynamically updated only per-listener using the listener prefix:"
            f" {name}; set {LISTENER_PREFIX}NAME.{name} with the listener's name in lower case"
        )
    if of_all_brokers:
        return f"Cannot update these configs at default cluster level, broker id must be specified: {name}"
    if base in _SECRET:
        return (
            f"{name} is a secret, which is not kept in ZooKeeper: name a PEM file in"
            f" {name.removesuffix(base)}ssl.keystore.location, its password in the broker's own file"
        )
    return None


def tls_changes(own: Mapping[str, str]) -> dict[str, str]:
    """Those of a broker's dynamic settings that are TLS of a listener; others, as of another program, are left out."""
    return {
        name: text for name, text in own.items() if of_tls(name) in _DYNAMIC and name.startswith(LISTENER_PREFIX)
    }  # fmt: skip


def overridden(static: BrokerConfig, changes: Mapping[str, str]) -> BrokerConfig:
    """The broker's settings with the changes, for what reads TLS of listeners; ``given`` alone is another one."""
    return dataclasses.replace(static, given=tuple((dict(static.given) | dict(changes)).items()))


class DynamicTls:
    """See the module. ``listeners`` are all with TLS; ``peers`` the contexts of connections to brokers, if with TLS."""

    def __init__(
        self,
        config: BrokerConfig,
        listeners: Mapping[str, TlsListener],
        peers: FollowedContexts | None,
        clock: Clock,
    ) -> None:
        self._config = config
        self._listeners = listeners
        self._peers = peers
        self._clock = clock
        self._changes: dict[str, str] = {}
        self.left_over: str | None = None
        """What is stored for a listener that is not there, as after it got another name."""
        self._following: asyncio.Task[None] | None = None

    async def start(self, metadata: MetadataCache) -> None:
        """Take over what is stored for this broker, and follow it.

        Raises ConfigError where the brokers' own listener cannot use it: they would not reach this one.
        """
        metadata.subscribe(lambda change: self._on_change(metadata, change))
        self._take(metadata)
        await self.applied()
        touched = self._listeners_of(self._changes)
        for name, one in self._listeners.items():
            if name not in touched or one.refusal is None:
                continue
            if name == self._config.inter_broker_listener():
                first = min(touched[name])
                raise ConfigError(first, touched[name][first], f"is stored and cannot be used: {one.refusal}")
            one.withheld = True
            logger.error("listener %s serves no connection until what is stored for it can be used", name)

    async def check(self, own: Mapping[str, str]) -> None:
        """Try the certificates that the broker's dynamic settings would give. Raises ConfigError."""
        changes = tls_changes(own)
        wanted, before = self._listeners_of(changes), self._listeners_of(self._changes)
        touched = wanted.keys() | before.keys()
        # What is stored for another listener, and cannot be used, is no reason against this change.
        tries = {name for name in touched if wanted.get(name) != before.get(name)} or touched
        stored = self._changes.items()
        new = {name: changes[name] for name in self._left_over(changes) if (name, changes[name]) not in stored}
        listener_tls(overridden(self._config, new))
        settings = {name: self._settings(name, wanted) for name in sorted(tries)}
        now_s = self._clock.wall_ms() / 1000

        def tried() -> None:
            for name, one in settings.items():
                self._listeners[name].check(one, now_s)

        await asyncio.get_running_loop().run_in_executor(None, tried)

    async def applied(self) -> None:
        """Look at the files now; returns when what was stored before is in use, or refused."""
        self._begin()
        assert self._following is not None, "just begun"
        await asyncio.shield(self._following)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._following = loop.create_task(self._follow(self._following), name="new settings of TLS")

    def _listeners_of(self, changes: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """The changes by the name of their listener, for those listeners that are there."""
        listeners: dict[str, dict[str, str]] = {}
        for listener in self._listeners:
            prefix = f"{LISTENER_PREFIX}{listener.lower()}."
            own = {name: text for name, text in changes.items() if name.startswith(prefix)}
            if own:
                listeners[listener] = own
        return listeners

    def _on_change(self, metadata: MetadataCache, change: MetadataChange) -> None:
        if change.reloaded or (CONFIG_BROKERS, str(self._config.broker_id)) in change.configs_changed:
            self._take(metadata)

    def _take(self, metadata: MetadataCache) -> None:
        changes = tls_changes(metadata.dynamic_config(CONFIG_BROKERS, str(self._config.broker_id)))
        if changes == self._changes:
            return
        wanted, before = self._listeners_of(changes), self._listeners_of(self._changes)
        self._changes = changes
        self._note_left_over()
        for name in sorted(wanted.keys() | before.keys()):
            try:
                settings = self._settings(name, wanted)
            except ConfigError as error:
                self._listeners[name].refuse(str(error))
                continue
            self._listeners[name].want(settings)
            if self._peers is not None and name == self._config.inter_broker_listener():
                self._peers.want(settings)
        self._begin()

    def _settings(self, name: str, wanted: Mapping[str, Mapping[str, str]]) -> TlsSettings:
        return listener_tls(overridden(self._config, wanted.get(name, {})))[name]

    def _left_over(self, changes: Mapping[str, str]) -> set[str]:
        known = {name for own in self._listeners_of(changes).values() for name in own}
        return set(changes.keys() - known)

    def _note_left_over(self) -> None:
        names = ", ".join(sorted(self._left_over(self._changes)))
        self.left_over = (
            f"stored for a listener that is not there, or has no TLS: {names}: delete it" if names else None
        )
        if self.left_over is not None:
            logger.error("%s", self.left_over)

    async def _follow(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        loop, now_s = asyncio.get_running_loop(), self._clock.wall_ms() / 1000
        for listener in self._listeners.values():
            news = await loop.run_in_executor(None, listener.follow, now_s)
            if news is not None:
                logger.log(logging.WARNING if listener.refusal else logging.INFO, "%s", news)
