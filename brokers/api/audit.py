"""The audit of one broker: what clients do becomes events, which ``brokers.api.audit_writer`` writes to the topic.

A management request is executed to its end though its client has gone, and its answer says what is recorded. Data
requests are recorded by what the authorizer is asked for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fleetlog.brokers.acls.access import CLUSTER, CLUSTER_ACTION, Access, AskingClient, DecisionLog
from fleetlog.brokers.acls.hosts import host_as_acls_have_it
from fleetlog.brokers.acls.image import AclImage, AclOperation, ResourceType
from fleetlog.brokers.acls.rules import AclRules
from fleetlog.brokers.acls.settings import inter_broker_principal
from fleetlog.brokers.api.base import ROWS_PER_YIELD, Context, DelayedResponse, Done, InSlices, InTask, Outcome
from fleetlog.brokers.api.changes import created_topics, failed_changes
from fleetlog.brokers.api.rows import Handler, Recorded, Row, api_table
from fleetlog.brokers.audit.events import (
    AclDecision,
    AuditSettings,
    AuditTrail,
    Caller,
    Changes,
    EventSource,
    EventType,
)
from fleetlog.brokers.audit.settings import audit_settings
from fleetlog.wire import messages
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.api.base import ClientConnection
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.model import Clock

logger = logging.getLogger(__name__)

COMPLAINT_MS = 10_000
_SINGLE = frozenset({EventType.MANAGEMENT, EventType.AUTHENTICATE, EventType.ADMIN})
"""Types that are not recorded by the decisions of the authorizer."""


class Audit:
    """See the module. ``brokers`` is the principal with which brokers log in at each other; ``protocol_of`` tells the
    security protocol of a listener.
    """

    def __init__(
        self,
        settings: AuditSettings,
        source: EventSource,
        clock: Clock,
        brokers: str,
        protocol_of: Callable[[str], str],
    ) -> None:
        self.trail = AuditTrail(settings, source)
        self.wake: Callable[[], None] = lambda: None
        """Called when there is something to be written."""
        self.refused = 0
        """Requests and logins that were refused because they could not be recorded."""
        self._clock = clock
        self._brokers = brokers
        self._protocol_of = protocol_of
        self._types = settings.types
        self._kinds = {key: row.kind for key, row in api_table().items()}
        self._complained_at: int | None = None

    @property
    def records_data(self) -> bool:
        """Whether what the authorizer allows is recorded."""
        return not self._types <= _SINGLE

    def is_broker(self, context: Context) -> bool:
        """Whether another broker asks: only brokers write the audit topic."""
        return context.connection.principal == self._brokers and context.allows(CLUSTER_ACTION, CLUSTER, logged=False)

    # ---- management ------------------------------------------------------------------------------------------------

    def audited(self, row: Row) -> Handler:
        """The handler of an API, with a record of what each of its requests does."""
        recorded = row.audit
        if not isinstance(recorded, Recorded) or EventType.MANAGEMENT not in self._types:
            return row.handler

        def handle(request: object, context: Context) -> Outcome:
            if row.asked_by_brokers and context.connection.principal == self._brokers:
                return row.handler(request, context)
            return InTask(self._execute(row.handler, recorded, request, context))

        return handle

    async def _execute(self, handler: Handler, recorded: Recorded, request: object, context: Context) -> Done:
        key, version = context.api_key, context.api_version
        changes = recorded.count(request)
        if self.must_refuse(context, changes):
            context.services = replace(context.services, access=Access(AclRules(AclImage())))
            return Done(await _response(handler(request, context), context))
        context.lasting = True  # what is begun is done and recorded, whether the client waits for it or not
        self.trail.reserve(changes)
        try:
            try:
                response = await _response(handler(request, context), context)
            except BaseException:
                await self._record(failed_changes(key, ErrorCode.UNKNOWN_SERVER_ERROR), context)
                raise
            decoded = messages.decode_response(key, version, response) if isinstance(response, bytes) else response
            await self._record(recorded.changes(request, decoded), context)
        finally:
            self.trail.reserve(-changes)
        return Done(response)

    def must_refuse(self, context: Context, changes: int) -> bool:
        """Whether a request with so many changes cannot be recorded, and is not to be executed."""
        if self.trail.has_room(changes):
            return False
        self.refuse(f"{APIS[context.api_key].name} of {context.connection.principal}")
        return True

    async def topics_created(self, context: Context, errors: Mapping[str, ErrorCode]) -> None:
        """Keep which topics a client created by naming them."""
        await self._record(created_topics(errors), context)

    async def _record(self, changes: Changes, context: Context) -> None:
        login = context.connection
        caller = Caller(login.principal, host_as_acls_have_it(login.peer_host), context.client_id or "")
        name, wall_ms = APIS[context.api_key].name, self._clock.wall_ms()
        for number, change in enumerate(changes, 1):
            self.trail.record_change(caller, name, change, wall_ms)
            if number % ROWS_PER_YIELD == 0:
                await asyncio.sleep(0)
        self.wake()

    # ---- decisions -------------------------------------------------------------------------------------------------

    def decided(
        self, client: AskingClient, operation: AclOperation, resource: ResourceType, name: str, *, allowed: bool
    ) -> bool:
        """Keep a decision of the authorizer about a data request; False: it must be refused."""
        key, login = client.api_key, client.connection
        kind = self._kinds[key]
        if kind in _SINGLE or login.principal == self._brokers:
            return True
        host, client_id = host_as_acls_have_it(login.peer_host), getattr(client, "client_id", "") or ""
        decision = AclDecision(
            login.principal, host, APIS[key].name, operation, resource, name, allowed, client_id=client_id, kind=kind
        )
        kept = self.trail.record(decision, self._clock.wall_ms(), self._clock.mono_ms())
        if not kept:
            self.refuse(f"{APIS[key].name} of {login.principal}")
        return kept

    # ---- logins ----------------------------------------------------------------------------------------------------

    def logged_in(self, connection: ClientConnection, principal: str, mechanism: str) -> bool:
        """Keep a login; False: it must be refused. Those of brokers are not kept, so that they can always write."""
        if principal == self._brokers:
            return True
        protocol = f"{self._protocol_of(connection.listener)}/{mechanism}"
        kept = self.trail.record_login(
            principal, host_as_acls_have_it(connection.peer_host), protocol, True, "", self._clock.wall_ms()
        )  # fmt: skip
        if not kept:
            self.refuse(f"the login of {principal}")
        self.wake()
        return kept

    def login_refused(self, connection: ClientConnection, mechanism: str, detail: str) -> None:
        """Keep a login that was refused."""
        protocol = f"{self._protocol_of(connection.listener)}/{mechanism}"
        self.trail.record_login(
            "", host_as_acls_have_it(connection.peer_host), protocol, False, detail, self._clock.wall_ms()
        )
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


def started_audit(config: BrokerConfig, access: Access, source: EventSource, clock: Clock) -> Audit | None:
    """The audit that the settings ask for, which ``access`` tells its decisions from now on. Raises ConfigError."""
    settings = audit_settings(config)
    if settings is None:
        return None
    assert access.decisions is not None, "audit needs an authorizer"
    audit = Audit(settings, source, clock, inter_broker_principal(config), config.security_protocol)
    access.keep_decisions(Decisions(access.decisions, audit))
    return audit


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


async def _response(outcome: Outcome, context: Context) -> Any:
    """The message, or its encoding, in which a handler's outcome ends."""
    while not isinstance(outcome, (Done, DelayedResponse)):
        outcome = await (outcome.coroutine if isinstance(outcome, InTask) else _worked(outcome.work))
    response = outcome.response if isinstance(outcome, Done) else await _delayed(outcome, context)
    return await _worked(response.work) if isinstance(response, InSlices) else response


async def _worked(work: Generator[Any, Any, Any]) -> Any:
    """What paced work returns; the loop runs in between."""
    rows = 0
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value
        rows += 1
        if rows % ROWS_PER_YIELD == 0:
            await asyncio.sleep(0)


async def _delayed(delayed: DelayedResponse, context: Context) -> Any:
    services = context.services
    answered: asyncio.Future[Any] = services.loop.create_future()

    def answer(response: Any) -> None:
        if not answered.done():
            answered.set_result(response)

    delayed.on_done(answer)
    timer = None
    if delayed.deadline_ms is not None:
        timer = services.timers.later(delayed.deadline_ms, delayed.expire)
    try:
        return await answered
    finally:
        if timer is not None:
            timer.cancel()
