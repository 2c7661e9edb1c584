"""The audit of one broker: what clients do becomes events, which ``brokers.api.audit_writer`` writes to the topic.

What a management request changed is recorded by who executes it (``brokers.api.audit``); data requests are recorded by
what the authorizer is asked for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING

from fleetlog.brokers.acls.access import AskingClient, DecisionLog
from fleetlog.brokers.acls.hosts import host_as_acls_have_it
from fleetlog.brokers.acls.image import AclOperation, ResourceType
from fleetlog.brokers.audit.events import (
    AclDecision,
    AuditSettings,
    AuditTrail,
    Caller,
    Changes,
    EventSource,
    EventType,
)
from fleetlog.wire.apis import APIS

if TYPE_CHECKING:
    from fleetlog.brokers.model import Clock

logger = logging.getLogger(__name__)

COMPLAINT_MS = 10_000
_SINGLE = frozenset({EventType.MANAGEMENT, EventType.AUTHENTICATE, EventType.ADMIN})
"""Types that are not recorded by the decisions of the authorizer."""


class Audit:
    """See the module. ``brokers`` is the principal with which brokers log in at each other; ``protocol_of`` tells the
    security protocol of a listener, ``kinds`` the type of an API's events.
    """

    def __init__(
        self,
        settings: AuditSettings,
        source: EventSource,
        clock: Clock,
        brokers: str,
        protocol_of: Callable[[str], str],
        kinds: Mapping[int, EventType],
    ) -> None:
        self.trail = AuditTrail(settings, source)
        self.wake: Callable[[], None] = lambda: None
        """Called when there is something to be written."""
        self.refused = 0
        """Requests and logins that were refused because they could not be recorded."""
        self._clock = clock
        self.brokers = brokers
        self._protocol_of = protocol_of
        self.types = settings.types
        self._kinds = kinds
        self._complained_at: int | None = None

    @property
    def records_data(self) -> bool:
        """Whether what the authorizer allows is recorded."""
        return not self.types <= _SINGLE

    # ---- management ------------------------------------------------------------------------------------------------

    def must_refuse(self, client: AskingClient, changes: int) -> bool:
        """Whether a request with so many changes cannot be recorded, and is not to be executed."""
        if self.trail.has_room(changes):
            return False
        self.refuse(f"{APIS[client.api_key].name} of {client.connection.principal}")
        return True

    def record(self, client: AskingClient, changes: Changes) -> Generator[None, None, None]:
        """Keep what a client's request changed. Paced work."""
        login = client.connection
        caller = Caller(login.principal, host_as_acls_have_it(login.peer_host), _client_id(client))
        name, wall_ms = APIS[client.api_key].name, self._clock.wall_ms()
        for change in changes:
            self.trail.record_change(caller, name, change, wall_ms)
            yield
        self.wake()

    # ---- decisions -------------------------------------------------------------------------------------------------

    def decided(
        self, client: AskingClient, operation: AclOperation, resource: ResourceType, name: str, *, allowed: bool
    ) -> bool:
        """Keep a decision of the authorizer about a data request; False: it must be refused."""
        key, login = client.api_key, client.connection
        kind = self._kinds[key]
        if kind in _SINGLE or login.principal == self.brokers:
            return True
        decision = AclDecision(
            login.principal, host_as_acls_have_it(login.peer_host), APIS[key].name, operation, resource, name, allowed,
            client_id=_client_id(client), kind=kind,
        )  # fmt: skip
        kept = self.trail.record(decision, self._clock.wall_ms(), self._clock.mono_ms())
        if not kept:
            self.refuse(f"{APIS[key].name} of {login.principal}")
        return kept

    # ---- logins ----------------------------------------------------------------------------------------------------

    def logged_in(self, listener: str, host: str, principal: str, mechanism: str) -> bool:
        """Keep a login; False: it must be refused. Those of brokers are not kept, so that they can always write."""
        if principal == self.brokers:
            return True
        protocol = f"{self._protocol_of(listener)}/{mechanism}"
        kept = self.trail.record_login(
            principal, host_as_acls_have_it(host), protocol, True, "", self._clock.wall_ms()
        )  # fmt: skip
        if not kept:
            self.refuse(f"the login of {principal}")
        self.wake()
        return kept

    def login_refused(self, listener: str, host: str, mechanism: str, detail: str) -> None:
        """Keep a login that was refused."""
        protocol = f"{self._protocol_of(listener)}/{mechanism}"
        self.trail.record_login("", host_as_acls_have_it(host), protocol, False, detail, self._clock.wall_ms())
        self.wake()

    # ---- no room ---------------------------------------------------------------------------------------------------

    def refuse(self, what: str) -> None:
        """Something is refused because it cannot be recorded."""
        self.refused += 1
        self._complain(f"{what} is refused (audit.on.full=refuse)")

    def report_dropped(self, before: int) -> None:
        """Say it if events were dropped since there were ``before``."""
        if self.trail.dropped > before:
            self._complain(f"{self.trail.dropped - before} events are dropped (audit.on.full=drop)")

    def _complain(self, what: str) -> None:
        """At most every ten seconds: the metrics count."""
        now = self._clock.mono_ms()
        if self._complained_at is None or now - self._complained_at >= COMPLAINT_MS:
            self._complained_at = now
            logger.error("the audit queue is full, because events come faster than they can be written: %s", what)


class Decisions:
    """Keeps decisions in the authorizer's log and in the audit."""

    def __init__(self, lines: DecisionLog, audit: Audit) -> None:
        self._lines = lines
        self._audit = audit

    @property
    def keeps_allowed(self) -> bool:
        """Whether it gets what is allowed, too."""
        return self._lines.keeps_allowed or self._audit.records_data

    def note(
        self, client: AskingClient, operation: AclOperation, resource: ResourceType, name: str, *, allowed: bool
    ) -> bool:
        """One decision; False: it cannot be recorded, so the request is refused."""
        self._lines.note(client, operation, resource, name, allowed=allowed)
        return self._audit.decided(client, operation, resource, name, allowed=allowed)


def _client_id(client: AskingClient) -> str:
    return getattr(client, "client_id", "") or ""
