"""Audit: the line of Kafka's authorizer log, and events in JSON (OCSF 1.0) for the topic ``__fleetlog_audit``.

A management event is one document. What clients do all the time (produce, consume, describe, heartbeat) is one document
for each principal, API, resource and outcome in a minute, with a count. The queue is bounded; when it is full, events
are dropped and counted, or refused: then the caller refuses the request that would go unrecorded. What is counted has
half of the queue, and of refused logins a bounded number is kept in a second: neither displaces management events.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from fleetlog.brokers.acls.image import AclOperation, ResourceType
from fleetlog.brokers.acls.znodes import OPERATION_NAMES, TYPE_NAMES
from fleetlog.wire.errors import ErrorCode

LOGGER: Final = "kafka.authorizer.logger"
"""Denied at INFO, allowed at DEBUG."""
AGGREGATE_MS: Final = 60_000
AGGREGATES_MAX: Final = 16_384
QUEUE_BYTES_MAX: Final = 1_048_576
NAME_CHARS_MAX: Final = 1000
"""Longer names are cut: clients choose them."""
REFUSED_LOGINS_PER_SECOND: Final = 100
EVENT_BYTES: Final = 1024
"""About what the event of a short name takes; it counts before a request is executed."""

_OCSF_VERSION: Final = "1.0.0"
_AUTHENTICATION: Final = 3002
_APPLICATION_LIFECYCLE: Final = 6002
_API_ACTIVITY: Final = 6003
_SUCCESS: Final = 1
_FAILURE: Final = 2
_INFORMATIONAL: Final = 1
_LOGON: Final = 1
_CREATE, _READ, _UPDATE, _DELETE, _OTHER = 1, 2, 3, 4, 99
_START, _STOP = 3, 4


class EventType(Enum):
    """What an event is about; the names are those of the setting ``audit.event.types``."""

    MANAGEMENT = "management"
    PRODUCE = "produce"
    CONSUME = "consume"
    DESCRIBE = "describe"
    HEARTBEAT = "heartbeat"
    AUTHENTICATE = "authenticate"
    ADMIN = "admin"


DEFAULT_TYPES: Final = frozenset({EventType.MANAGEMENT, EventType.AUTHENTICATE, EventType.ADMIN})
_AGGREGATED: Final = frozenset({EventType.PRODUCE, EventType.CONSUME, EventType.DESCRIBE, EventType.HEARTBEAT})

_ACTIVITIES: Final = {
    AclOperation.CREATE: _CREATE,
    AclOperation.READ: _READ,
    AclOperation.DESCRIBE: _READ,
    AclOperation.DESCRIBE_CONFIGS: _READ,
    AclOperation.WRITE: _UPDATE,
    AclOperation.ALTER: _UPDATE,
    AclOperation.ALTER_CONFIGS: _UPDATE,
    AclOperation.DELETE: _DELETE,
}


def printable(text: str) -> str:
    """A name for a log line or an event: cut, and control characters written as escapes."""
    cut = text if len(text) <= NAME_CHARS_MAX else f"{text[:NAME_CHARS_MAX]}..."
    return cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


class AclDecision(NamedTuple):
    """What was asked of the authorizer, and its answer. ``references``: how often the request names
    the resource."""

    principal: str
    host: str
    api: str
    operation: AclOperation
    type: ResourceType
    name: str
    allowed: bool
    references: int = 1
    client_id: str = ""
    kind: EventType = EventType.DESCRIBE


def authorizer_line(decision: AclDecision) -> str:
    """The line that Kafka's authorizer logs for a decision on a literal resource."""
    return (
        f"Principal = {printable(decision.principal)} is {'Allowed' if decision.allowed else 'Denied'} "
        f"Operation = {OPERATION_NAMES[decision.operation]} from host = {printable(decision.host)} "
        f"on resource = {TYPE_NAMES[decision.type]}:LITERAL:{printable(decision.name)} "
        f"for request = {decision.api} with resourceRefCount = {decision.references}"
    )


# ---------------------------------------------------------------- events


class OnFull(Enum):
    """``audit.on.full``."""

    DROP = "drop"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Which events are kept, and what happens when there is no room. Principals are spelled ``User:alice``."""

    types: frozenset[EventType] = DEFAULT_TYPES
    on_full: OnFull = OnFull.DROP
    excluded_principals: frozenset[str] = frozenset()
    excluded_topics: frozenset[str] = frozenset()
    queue_bytes_max: int = QUEUE_BYTES_MAX
    aggregates_max: int = AGGREGATES_MAX


class EventSource(NamedTuple):
    """The broker in its events. ``process`` differs in each start: with it and a number an event has a name."""

    cluster_id: str
    broker_id: int
    version: str
    process: str = ""


class Caller(NamedTuple):
    """Where a request comes from."""

    principal: str
    host: str
    client_id: str = ""


class Change(NamedTuple):
    """What a management request did, or tried to do, to one resource. ``kind`` as in ``Topic``."""

    kind: str
    name: str
    operation: AclOperation
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""


Changes = Iterator[Change]


class _Key(NamedTuple):
    principal: str
    api: str
    operation: AclOperation
    type: ResourceType
    name: str
    allowed: bool


@dataclass(slots=True)
class _Aggregate:
    first: AclDecision
    began_mono_ms: int
    first_wall_ms: int
    last_wall_ms: int
    count: int


class AuditTrail:
    """The events of one broker until they are written to the topic: :meth:`pending`, then :meth:`mark_written`."""

    def __init__(self, settings: AuditSettings, source: EventSource) -> None:
        self._settings = settings
        self._source = source
        self._aggregates: dict[_Key, _Aggregate] = {}
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._reserved = 0
        self._numbers = 0
        self._login_second = 0
        self._refused_logins = 0
        self.dropped = 0
        """Decisions, changes and logins that are in no event because there was no room."""

    @property
    def queued_bytes(self) -> int:
        """The size of the events that wait to be written."""
        return self._queued_bytes

    def record(self, decision: AclDecision, wall_ms: int, mono_ms: int) -> bool:
        """Keeps a decision; False: it could not be kept, and the request must be refused (``audit.on.full=refuse``)."""
        kind = decision.kind
        settings = self._settings
        if kind not in settings.types or decision.principal in settings.excluded_principals:
            return True
        if decision.type is ResourceType.TOPIC and decision.name in settings.excluded_topics:
            return True
        if kind not in _AGGREGATED:
            return self._enqueue(self._activity(decision, decision.references, wall_ms, wall_ms), decision.references)
        name = printable(decision.name)
        key = _Key(decision.principal, decision.api, decision.operation, decision.type, name, decision.allowed)
        self.flush(mono_ms)
        known = self._aggregates.get(key)
        if known is not None:
            known.count += decision.references
            known.last_wall_ms = wall_ms
            return True
        if len(self._aggregates) >= settings.aggregates_max and not self._flush_oldest():
            return self._without_room(decision.references)
        first = decision._replace(name=name, client_id=printable(decision.client_id))
        self._aggregates[key] = _Aggregate(first, mono_ms, wall_ms, wall_ms, decision.references)
        return True

    def has_room(self, changes: int) -> bool:
        """Whether a request with so many changes may be executed; asked before, as an event comes after."""
        if self._settings.on_full is OnFull.DROP or EventType.MANAGEMENT not in self._settings.types:
            return True
        return self._queued_bytes + self._reserved + changes * EVENT_BYTES <= self._settings.queue_bytes_max

    def reserve(self, changes: int) -> None:
        """Keeps room for the changes of a request that is executed now; a negative number gives it back."""
        self._reserved += changes * EVENT_BYTES

    def record_change(self, caller: Caller, api: str, change: Change, wall_ms: int) -> None:
        """Keeps what a management request did. What :meth:`has_room` let in has its place."""
        settings = self._settings
        if EventType.MANAGEMENT not in settings.types or caller.principal in settings.excluded_principals:
            return
        if change.kind == TYPE_NAMES[ResourceType.TOPIC] and change.name in settings.excluded_topics:
            return
        event = self._request(caller, api, change, wall_ms, wall_ms, 1)
        event["status_code"] = change.error.name
        if change.detail:
            event["status_detail"] = printable(change.detail)
        if not self._put(event, admitted=settings.on_full is OnFull.REFUSE):
            self.dropped += 1

    def record_login(
        self, principal: str, host: str, protocol: str, succeeded: bool, detail: str, wall_ms: int
    ) -> bool:
        """Keeps a login or its failure; ``protocol`` as in ``SSL/CERTIFICATE``. As :meth:`record` otherwise."""
        if EventType.AUTHENTICATE not in self._settings.types or principal in self._settings.excluded_principals:
            return True
        if not succeeded and not self._may_keep_refusal(wall_ms):
            self.dropped += 1
            return True
        event = self._event(_AUTHENTICATION, _LOGON, wall_ms, succeeded)
        event |= {
            "user": _user(principal),
            "src_endpoint": {"ip": printable(host)},
            "auth_protocol": protocol,
            "is_cleartext": protocol.startswith("SASL_PLAINTEXT/PLAIN"),
        }
        if detail:
            event["status_detail"] = printable(detail)
        return self._enqueue(event, 1)

    def _may_keep_refusal(self, wall_ms: int) -> bool:
        second = wall_ms // 1000
        if second != self._login_second:
            self._login_second, self._refused_logins = second, 0
        self._refused_logins += 1
        return self._refused_logins <= REFUSED_LOGINS_PER_SECOND

    def record_broker(self, started: bool, wall_ms: int) -> None:
        """Keeps that the broker starts or stops."""
        if EventType.ADMIN in self._settings.types:
            event = self._event(_APPLICATION_LIFECYCLE, _START if started else _STOP, wall_ms, succeeded=True)
            self._enqueue(event | {"app": {"name": "fleetlog", "version": self._source.version}}, 1)

    # --- the queue ----------------------------------------------------------------------------------------------

    def flush(self, mono_ms: int) -> None:
        """Makes events of what was counted for a minute; where the queue is full, the rest waits for more room."""
        while self._aggregates:
            oldest = next(iter(self._aggregates.values()))
            if mono_ms - oldest.began_mono_ms < AGGREGATE_MS or not self._flush_oldest():
                return

    def flush_all(self) -> None:
        """Makes events of everything, at a stop; what has no room is dropped and counted."""
        while self._aggregates:
            if not self._flush_oldest():
                self.dropped += self._aggregates.pop(next(iter(self._aggregates))).count

    def _flush_oldest(self) -> bool:
        """Whether there was room for its event."""
        key = next(iter(self._aggregates))
        aggregate = self._aggregates[key]
        event = self._activity(aggregate.first, aggregate.count, aggregate.first_wall_ms, aggregate.last_wall_ms)
        if not self._put(event, counted=True):
            return False
        del self._aggregates[key]
        return True

    def _enqueue(self, event: Mapping[str, Any], count: int) -> bool:
        return self._put(event) or self._without_room(count)

    def _without_room(self, count: int) -> bool:
        if self._settings.on_full is OnFull.REFUSE:
            return False
        self.dropped += count
        return True

    def _put(self, event: Mapping[str, Any], *, counted: bool = False, admitted: bool = False) -> bool:
        """Whether the event is in the queue; one that was admitted before is in any case."""
        data = json.dumps(event, separators=(",", ":")).encode()
        most = self._settings.queue_bytes_max
        if counted and self._queue:
            most //= 2
        if self._queued_bytes + len(data) > most and not admitted:
            return False
        self._queue.append(data)
        self._queued_bytes += len(data)
        return True

    def pending(self, bytes_max: int) -> list[bytes]:
        """The oldest events, about so many bytes and at least one, if there is any; they stay until written."""
        encoded: list[bytes] = []
        size = 0
        for data in self._queue:
            size += len(data)
            if encoded and size > bytes_max:
                break
            encoded.append(data)
        return encoded

    def mark_written(self, count: int) -> None:
        """So many of the oldest events are in the topic."""
        for _ in range(count):
            self._queued_bytes -= len(self._queue.popleft())

    # --- documents ----------------------------------------------------------------------------------------------

    def _event(self, class_uid: int, activity: int, wall_ms: int, succeeded: bool) -> dict[str, Any]:
        source = self._source
        self._numbers += 1
        return {
            "category_uid": class_uid // 1000,
            "class_uid": class_uid,
            "activity_id": activity,
            "type_uid": class_uid * 100 + activity,
            "severity_id": _INFORMATIONAL,
            "status_id": _SUCCESS if succeeded else _FAILURE,
            "time": wall_ms,
            "metadata": {
                "version": _OCSF_VERSION,
                "uid": f"{source.broker_id}-{source.process}-{self._numbers}",
                "product": {"name": "fleetlog", "vendor_name": "fleetlog", "version": source.version},
            },
            "dst_endpoint": {"uid": source.cluster_id, "svc_name": f"broker {source.broker_id}"},
        }

    def _activity(self, decision: AclDecision, count: int, first_wall_ms: int, last_wall_ms: int) -> dict[str, Any]:
        caller = Caller(decision.principal, decision.host, decision.client_id)
        error = ErrorCode.NONE if decision.allowed else ErrorCode.UNKNOWN_SERVER_ERROR
        change = Change(TYPE_NAMES[decision.type], decision.name, decision.operation, error)
        return self._request(caller, decision.api, change, first_wall_ms, last_wall_ms, count)

    def _request(
        self, caller: Caller, api: str, change: Change, first_wall_ms: int, last_wall_ms: int, count: int
    ) -> dict[str, Any]:
        activity = _ACTIVITIES.get(change.operation, _OTHER)
        event = self._event(_API_ACTIVITY, activity, first_wall_ms, change.error is ErrorCode.NONE)
        return event | {
            "count": count,
            "start_time": first_wall_ms,
            "end_time": last_wall_ms,
            "actor": {"user": _user(caller.principal)},
            "api": {"operation": api, "service": {"name": "kafka"}},
            "resources": [{"name": printable(change.name), "type": change.kind}],
            "src_endpoint": {"ip": printable(caller.host), "name": printable(caller.client_id)},
            "unmapped": {"operation": OPERATION_NAMES[change.operation]},
        }


def _user(principal: str) -> dict[str, Any]:
    """OCSF's user; ``type_id`` 1 is a user, 0 unknown."""
    kind, _, name = principal.partition(":")
    return {"name": printable(name), "type": kind, "type_id": 1 if kind == "User" else 0}
