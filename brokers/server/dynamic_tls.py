"""Certificates of listeners that ``kafka-configs`` changes: tried before they are stored, in use before the answer.

What was stored and cannot be used, as after a file was removed, leaves the listener with what it has; the log, the
metric and ``/health/ready`` say so, and each look at the files tries again. At a start the listener would have what its
file says, which may trust what was replaced: it serves no connection until what is stored can be used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fleetlog.brokers.config import LISTENER_PREFIX
from fleetlog.brokers.metadata.znodes import CONFIG_BROKERS
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.tls.dynamic_settings import overridden, tls_changes
from fleetlog.brokers.tls.listener_settings import listener_tls

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
    from fleetlog.brokers.model import Clock
    from fleetlog.brokers.tls.followed_contexts import FollowedContexts
    from fleetlog.brokers.tls.listeners import TlsListener
    from fleetlog.brokers.tls.settings import TlsSettings

logger = logging.getLogger(__name__)


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
