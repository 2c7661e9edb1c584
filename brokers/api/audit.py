"""Requests whose changes the audit records: a management request is executed to its end though its client has gone, and
its answer says what is recorded.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fleetlog.brokers.acls.access import Access
from fleetlog.brokers.acls.decisions import AclRules
from fleetlog.brokers.acls.image import AclImage
from fleetlog.brokers.acls.settings import inter_broker_principal
from fleetlog.brokers.api.base import Context, DelayedResponse, Done, InSlices, InTask, Outcome, worked
from fleetlog.brokers.api.changes import failed_changes
from fleetlog.brokers.api.rows import Handler, Recorded, Row, api_table
from fleetlog.brokers.audit.events import EventSource, EventType
from fleetlog.brokers.audit.recorder import Audit, Decisions
from fleetlog.brokers.audit.settings import audit_settings
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.model import Clock


def started_audit(config: BrokerConfig, access: Access, source: EventSource, clock: Clock) -> Audit | None:
    """The audit that the settings ask for, which ``access`` tells its decisions from now on. Raises ConfigError."""
    settings = audit_settings(config)
    if settings is None:
        return None
    assert access.decisions is not None, "audit needs an authorizer"
    kinds = {key: row.kind for key, row in api_table().items()}
    audit = Audit(settings, source, clock, inter_broker_principal(config), config.security_protocol, kinds)
    access.keep_decisions(Decisions(access.decisions, audit))
    return audit


def audited(audit: Audit, row: Row) -> Handler:
    """The handler of an API, with a record of what each of its requests does."""
    recorded = row.audit
    if not isinstance(recorded, Recorded) or EventType.MANAGEMENT not in audit.types:
        return row.handler

    def handle(request: object, context: Context) -> Outcome:
        if row.asked_by_brokers and context.connection.principal == audit.brokers:
            return row.handler(request, context)
        return InTask(_execute(audit, row.handler, recorded, request, context))

    return handle


async def _execute(audit: Audit, handler: Handler, recorded: Recorded, request: object, context: Context) -> Done:
    key, version = context.api_key, context.api_version
    changes = recorded.count(request)
    if audit.must_refuse(context, changes):
        context.services = replace(context.services, access=Access(AclRules(AclImage())))
        return Done(await _response(handler(request, context), context))
    context.lasting = True  # what is begun is done and recorded, whether the client waits for it or not
    audit.trail.reserve(changes)
    try:
        try:
            response = await _response(handler(request, context), context)
        except BaseException:
            await worked(audit.record(context, failed_changes(key, ErrorCode.UNKNOWN_SERVER_ERROR)))
            raise
        decoded = messages.decode_response(key, version, response) if isinstance(response, bytes) else response
        await worked(audit.record(context, recorded.changes(request, decoded)))
    finally:
        audit.trail.reserve(-changes)
    return Done(response)


async def _response(outcome: Outcome, context: Context) -> Any:
    """The message, or its encoding, in which a handler's outcome ends."""
    while not isinstance(outcome, (Done, DelayedResponse)):
        outcome = await (outcome.coroutine if isinstance(outcome, InTask) else worked(outcome.work))
    response = outcome.response if isinstance(outcome, Done) else await _delayed(outcome, context)
    return await worked(response.work) if isinstance(response, InSlices) else response


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
