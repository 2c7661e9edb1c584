"""Certificates of listeners that ``kafka-configs`` changes: tried before they are stored, in use before the answer.

What was stored and cannot be used, as after a file was removed, leaves the listener with what it has; the log, the
metric and ``/health/ready`` say so, and each look at the files tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from brokers.metadata.znodes import CONFIG_BROKERS
from brokers.security.dynamic_tls import overridden, tls_changes
from brokers.security.listener_tls import listener_tls
from brokers.setting_kinds import ConfigError

if TYPE_CHECKING:
    from brokers.config import BrokerConfig
    from brokers.metadata.cache import MetadataCache, MetadataChange
    from brokers.model import Clock
    from brokers.security.followed_contexts import FollowedContexts
    from brokers.security.tls_settings import TlsSettings
    from brokers.server.tls_listeners import TlsListener

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
        self._following: asyncio.Task[None] | None = None

    async def start(self, metadata: MetadataCache) -> None:
        """Take over what is stored for this broker, and follow it."""
        metadata.subscribe(lambda change: self._on_change(metadata, change))
        self._take(metadata)
        await self.applied()

    async def check(self, own: Mapping[str, str]) -> None:
        """Try the certificates that the broker's dynamic settings would give. Raises ConfigError."""
        settings = self._settings(tls_changes(own))
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

    def _settings(self, changes: Mapping[str, str]) -> dict[str, TlsSettings]:
        """TLS of the listeners that one of the changes, old or new, is about."""
        found = listener_tls(overridden(self._config, changes))
        touched = {name.split(".")[2] for name in (changes.keys() | self._changes.keys())}
        return {name: one for name, one in found.items() if name.lower() in touched}

    def _on_change(self, metadata: MetadataCache, change: MetadataChange) -> None:
        if change.reloaded or (CONFIG_BROKERS, str(self._config.broker_id)) in change.configs_changed:
            self._take(metadata)

    def _take(self, metadata: MetadataCache) -> None:
        changes = tls_changes(metadata.dynamic_config(CONFIG_BROKERS, str(self._config.broker_id)))
        if changes == self._changes:
            return
        try:
            settings = self._settings(changes)
        except ConfigError as error:
            logger.error("the stored settings of TLS cannot be used, those of before stay in use: %s", error)
            return
        self._changes = changes
        for name, one in settings.items():
            self._listeners[name].want(one)
            if self._peers is not None and name == self._config.inter_broker_listener():
                self._peers.want(one)
        self._begin()

    async def _follow(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        loop, now_s = asyncio.get_running_loop(), self._clock.wall_ms() / 1000
        for listener in self._listeners.values():
            news = await loop.run_in_executor(None, listener.follow, now_s)
            if news is not None:
                logger.log(logging.WARNING if listener.refusal else logging.INFO, "%s", news)
