"""The broker's authorizer as it is configured, and the lines of Kafka's authorizer log.

Denied requests are logged at INFO, allowed ones at DEBUG, by the logger that Kafka uses. A client chooses how many
names it asks for, so the denials of one second have a bounded number of lines; one more says how many are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetlog.brokers.acls.access import Access, AskingClient, OpenAccess
from fleetlog.brokers.acls.cache import AclCache
from fleetlog.brokers.acls.decisions import AclRules
from fleetlog.brokers.acls.hosts import host_as_acls_have_it
from fleetlog.brokers.acls.image import CLUSTER_NAME, AclImage, AclOperation, ResourceType
from fleetlog.brokers.acls.settings import (
    AuthorizerSettings,
    broker_principals,
    cannot_replicate,
    inter_broker_principal,
    without_authorizer,
)
from fleetlog.brokers.audit.events import LOGGER, AclDecision, authorizer_line
from fleetlog.wire.apis import APIS

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.coordination.store import Store

logger = logging.getLogger(__name__)
decisions_log = logging.getLogger(LOGGER)

LINES_PER_SECOND = 200


class AuthorizerLog:
    """Writes decisions to Kafka's authorizer log. ``now_ms`` is the monotonic clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._second = -1
        self._lines = 0

    @property
    def keeps_allowed(self) -> bool:
        """Whether what is allowed is written, too: at the level DEBUG."""
        return decisions_log.isEnabledFor(logging.DEBUG)

    def note(
        self, client: AskingClient, operation: AclOperation, resource: ResourceType, name: str, *, allowed: bool
    ) -> bool:
        """One decision, as one line."""
        if allowed:
            if self.keeps_allowed:
                decisions_log.debug("%s", _line(client, operation, resource, name, allowed=True))
            return True
        second = self._now_ms() // 1000
        if second != self._second:
            if self._lines > LINES_PER_SECOND:
                decisions_log.info("%d more denied within that second", self._lines - LINES_PER_SECOND)
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= LINES_PER_SECOND:
            decisions_log.info("%s", _line(client, operation, resource, name, allowed=False))
        return True


def _line(client: AskingClient, operation: AclOperation, resource: ResourceType, name: str, *, allowed: bool) -> str:
    key, login = client.api_key, client.connection
    return authorizer_line(
        AclDecision(
            login.principal, host_as_acls_have_it(login.peer_host), APIS[key].name, operation, resource, name, allowed
        )
    )


# ---------------------------------------------------------------- as configured


class CannotReplicate(Exception):
    """The authorizer does not let the brokers replicate; the text says what to do."""


class Authorization:
    """The door of a broker, and the ACLs behind it (None: no authorizer is configured).

    ``now_ms`` is the monotonic clock. ``addresses`` are those from which other brokers see this one, as far as known.
    """

    def __init__(
        self, config: BrokerConfig, store: Store, now_ms: Callable[[], int], addresses: tuple[str, ...] = ()
    ) -> None:
        self.access = Access()
        self.acls: AclCache | None = None
        self._config = config
        self._hosts = [host_as_acls_have_it(address) for address in addresses] or [""]
        self._may_replicate = True
        self._started = False
        self._principal = ""
        settings, brokers = AuthorizerSettings.of(config), broker_principals(config)
        if settings is None and brokers:
            self.access = OpenAccess(brokers, AuthorizerLog(now_ms))
        if settings is not None:
            self._principal = inter_broker_principal(config)
            rules = AclRules(
                AclImage(), settings.super_users, settings.allow_if_no_acl, audited=config.audit_enable
            )  # fmt: skip
            self.acls = AclCache(store, rules, self._acls_changed)
            self.access = Access(rules, AuthorizerLog(now_ms))

    async def start(self) -> None:
        """Read the ACLs, if requests are authorized, and follow them. Raises CannotReplicate."""
        warning = without_authorizer(self._config)
        if warning is not None:
            logger.warning("%s", warning)
        if self.acls is None:
            return
        await self.acls.start()
        if not self._may_replicate:
            raise CannotReplicate(cannot_replicate(self._principal))
        self._started = True
        logger.info("requests are authorized by %d ACLs", sum(map(len, self.acls.image.entries.values())))

    async def stop(self) -> None:
        """Stop following the ACLs."""
        if self.acls is not None:
            await self.acls.stop()

    def _acls_changed(self) -> None:
        """Say it where the brokers cannot replicate any more, before partitions fall behind."""
        assert self.acls is not None, "its caller"
        rules, before = self.acls.rules, self._may_replicate
        self._may_replicate = any(
            rules.allows(self._principal, host, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
            for host in self._hosts
        )
        if self._started and before and not self._may_replicate:
            logger.error("%s", cannot_replicate(self._principal))
