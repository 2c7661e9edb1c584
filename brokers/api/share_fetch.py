"""ShareFetch and ShareAcknowledge (KIP-932, keys 78, 79) at the leaders of share partitions."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import READ_GROUP, READ_TOPIC
from fleetlog.brokers.api.base import ClientGone, Context, Done, in_task, unfit
from fleetlog.brokers.api.groups import bad_group_id
from fleetlog.brokers.api.leaders import current_leader, endpoints_of
from fleetlog.brokers.api.rows import Row
from fleetlog.brokers.api.share_groups import NOT_SERVED, shares_served
from fleetlog.brokers.api.share_sessions import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    Owner,
    Place,
    ShareSession,
)
from fleetlog.brokers.audit.events import EventType
from fleetlog.brokers.coordinators.share_partitions import SharePartition, ShareRules
from fleetlog.brokers.metadata.features import SHARE_VERSION
from fleetlog.brokers.metadata.znodes import CONFIG_GROUPS
from fleetlog.brokers.model import INTERNAL_TOPICS
from fleetlog.brokers.shares.acks import AckBatch, AckType, WrongAcknowledgement, checked
from fleetlog.brokers.shares.state import ShareKey
from fleetlog.brokers.shares.window import Acquired
from fleetlog.brokers.tiering.tiers import is_tiered
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import ShareAcknowledgeRequest, ShareFetchRequest
from fleetlog.wire.types import TopicPartition

ACKNOWLEDGE_S = 15.0
"""How long an acknowledgement may take: more than a leader tries to persist it."""
RECORD_LIMIT = 1
"""The acquire mode in which the number of records is a hard limit (KIP-1206)."""
LONGEST_WAIT_MS = 60_000
_NONE = ErrorCode.NONE


@dataclass(slots=True)
class _Row:
    """What is answered of one partition."""

    error: ErrorCode = _NONE
    acknowledged: ErrorCode = _NONE
    message: str | None = None
    records: bytes = b""
    """Never null: librdkafka takes null for a broken answer."""
    acquired: tuple[Acquired, ...] = ()
    leader: tuple[int, int] | None = None


@dataclass(slots=True)
class _Work:
    """One request of a member, and what came of its partitions."""

    context: Context
    group: str
    member: str
    rules: ShareRules
    rows: dict[Place, _Row] = field(default_factory=dict)

    def row(self, place: Place) -> _Row:
        """The partition's row of the answer."""
        return self.rows.setdefault(place, _Row())

    def share(self, place: Place, unopened: ErrorCode = _NONE) -> SharePartition | ErrorCode:
        """The share partition, which may still be opening; why not, if it isn't led here.

        With an error ``unopened`` that is the answer where it is not open.
        """
        services = self.context.services
        assert services.share_partitions is not None, "it was asked for"
        topic = services.metadata.topic_names.get(uuid.UUID(bytes=place[0]))
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if not self.context.allows(*READ_TOPIC, topic):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_REQUEST
        partition = services.replicas.get((topic, place[1]))
        if partition is None:
            return services.replicas.leader(TopicPartition(topic, place[1]), -1).error
        if not partition.is_leader or partition.topic_id.bytes != place[0]:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if is_tiered(partition, services.metadata):
            return ErrorCode.INVALID_REQUEST  # its window would take what is in the bucket only for deleted
        key = ShareKey(self.group, *place)
        if unopened is not _NONE and services.share_partitions.get(key) is None:
            return unopened
        share = services.share_partitions.opened(key, partition, self.rules)
        return share if share is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def refused(self, place: Place, error: ErrorCode) -> None:
        """An error of the fetch, with the leader where that may help."""
        row = self.row(place)
        row.error = error
        self._tell_leader(place, row, error)

    def _tell_leader(self, place: Place, row: _Row, error: ErrorCode) -> None:
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            topic = self.context.services.metadata.topic_names.get(uuid.UUID(bytes=place[0]))
            row.leader = current_leader(self.context, TopicPartition(topic, place[1])) if topic is not None else None

    # --- acknowledging --------------------------------------------------------------------------------------------

    async def acknowledge(self, topics: Sequence[Any], renews: bool) -> None:
        """Take over what the member says, and wait until it is persisted."""
        waiting: list[tuple[Place, asyncio.Future[ErrorCode]]] = []
        named: Counter[Place] = Counter()
        for topic in topics:
            for part in topic.partitions:
                await self.context.yield_now()
                if topic.topic_id is not None and part.acknowledgement_batches:
                    named[topic.topic_id.bytes, part.partition_index] += 1
        for topic in topics:
            for part in topic.partitions:
                await self.context.yield_now()
                if topic.topic_id is None:
                    continue
                place = (topic.topic_id.bytes, part.partition_index)
                if named[place] > 1:
                    row = self.row(place)
                    row.acknowledged, row.message = ErrorCode.INVALID_REQUEST, "The partition is named more than once."
                elif part.acknowledgement_batches:
                    future = self._acknowledge(place, part.acknowledgement_batches, renews)
                    if future is not None:
                        waiting.append((place, future))
        if not waiting:
            return
        await asyncio.wait([future for _, future in waiting], timeout=ACKNOWLEDGE_S)
        for place, future in waiting:
            self._acknowledged(place, future.result() if future.done() else ErrorCode.REQUEST_TIMED_OUT)

    def _acknowledged(self, place: Place, error: ErrorCode) -> None:
        row = self.row(place)
        row.acknowledged = error
        self._tell_leader(place, row, error)

    def _acknowledge(self, place: Place, batches: Sequence[Any], renews: bool) -> asyncio.Future[ErrorCode] | None:
        row = self.row(place)
        share = self.share(place, ErrorCode.INVALID_RECORD_STATE)
        if isinstance(share, ErrorCode):
            self._acknowledged(place, share)
            return None
        try:
            pieces = checked(AckBatch(b.first_offset, b.last_offset, b.acknowledge_types) for b in batches)
            if not renews and any(kind is AckType.RENEW for _, _, kind in pieces):
                raise WrongAcknowledgement(ErrorCode.INVALID_REQUEST, "Locks are not renewed by this request.")
            return share.acknowledge(self.member, pieces)
        except WrongAcknowledgement as wrong:
            row.acknowledged, row.message = wrong.error, str(wrong)
            return None

    # --- the answer -----------------------------------------------------------------------------------------------

    def endpoints(self, kind: Any) -> list[Any]:
        """Of the leaders that rows tell."""
        leaders = [row.leader for row in self.rows.values() if row.leader is not None]
        return [
            kind(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in endpoints_of(self.context, leaders)
        ]

    def by_topic(self, topic: Any, part: Any) -> list[Any]:
        """The rows as messages."""
        topics: dict[bytes, list[Any]] = {}
        for (topic_id, index), row in self.rows.items():
            topics.setdefault(topic_id, []).append(part(index, row))
        return [topic(topic_id=uuid.UUID(bytes=topic_id), partitions=parts) for topic_id, parts in topics.items()]


class _Refused(Exception):
    """The request as a whole: its error code and text."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def _owner(group: str | None, member: str | None, context: Context) -> Owner:
    """The group and the member. Raises _Refused."""
    if (code := context.refusal(*READ_GROUP, group or "")) is not _NONE:
        raise _Refused(code)
    if not shares_served(context) or context.services.share_partitions is None:
        raise _Refused(ErrorCode.UNSUPPORTED_VERSION, NOT_SERVED)
    if group is None or bad_group_id(group) or not member or unfit(member):
        raise _Refused(ErrorCode.INVALID_REQUEST, "A share group and a member must be named.")
    return group, member


def _session(owner: Owner, epoch: int, context: Context) -> ShareSession:
    """The session of a request that is not its first. Raises _Refused."""
    services, connection_id = context.services, context.connection.id
    session = services.share_sessions.use(owner, epoch, connection_id, services.clock.mono_ms())
    if isinstance(session, ErrorCode):
        raise _Refused(session)
    _watch(owner, context)
    return session


async def _wait(owner: Owner, seconds: float, context: Context) -> None:
    """Raises ClientGone as soon as nobody waits for the answer."""
    gone, disconnects, connection_id = asyncio.Event(), context.services.disconnects, context.connection.id
    if context.gone():
        raise ClientGone
    disconnects.watch(connection_id, (owner, "refused"), gone.set)
    try:
        await asyncio.wait_for(gone.wait(), seconds)
    except TimeoutError:
        return
    finally:
        disconnects.unwatch(connection_id, (owner, "refused"))
    raise ClientGone


def _watch(owner: Owner, context: Context) -> None:
    """The session ends with the connection. Raises ClientGone."""
    sessions, connection_id = context.services.share_sessions, context.connection.id
    if context.gone():  # before this task began: nobody would tell
        sessions.disconnected(owner, connection_id)
        raise ClientGone
    context.services.disconnects.watch(connection_id, owner, lambda: sessions.disconnected(owner, connection_id))


def _work(owner: Owner, context: Context) -> _Work:
    services = context.services
    own = services.metadata.dynamic_config(CONFIG_GROUPS, owner[0])
    return _Work(context, *owner, ShareRules.of(services.metadata.effective, own))


@Row(
    api_keys.SHARE_FETCH, (READ_GROUP, READ_TOPIC), EventType.CONSUME, feature=SHARE_VERSION
)  # fmt: skip
@in_task
async def handle_share_fetch(request: ShareFetchRequest, context: Context) -> Done:
    """ShareFetch v1-v2: acknowledges, and acquires records of the session's partitions, or waits for some."""
    try:
        work = await _fetch(request, context)
    except _Refused as refused:
        kind = m.ShareFetchResponse
        error = int(refused.error)
        return Done(kind(version=context.api_version, error_code=error, error_message=refused.message))
    if (size := sum(len(row.records) for row in work.rows.values())) and context.meter is not None:
        assert context.source is not None, "it is what is measured"
        context.meter.may_fetch(context.source, size)  # what is acquired is sent; the next request waits for it
    return Done(_fetched(work))


async def _fetch(request: ShareFetchRequest, context: Context) -> _Work:
    """Raises _Refused."""
    owner, services = _owner(request.group_id, request.member_id, context), context.services
    work, epoch, sessions = _work(owner, context), request.share_session_epoch, services.share_sessions
    speaks = any(part.acknowledgement_batches for topic in request.topics for part in topic.partitions)
    if epoch == FIRST_EPOCH:
        if speaks:
            raise _Refused(ErrorCode.INVALID_REQUEST, "A first request acknowledges nothing.")
        most = services.config.group_share_max_share_sessions
        opened = sessions.open(owner, context.connection.id, most, services.clock.mono_ms())
        if opened is None:  # clients would come back at once
            await _wait(owner, min(max(request.max_wait_ms, 0), LONGEST_WAIT_MS) / 1000, context)
            raise _Refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = opened
        _watch(owner, context)
    else:
        session = _session(owner, epoch, context)
    places = [(t.topic_id.bytes, p.partition_index) for t in request.topics if t.topic_id for p in t.partitions]
    gone = [(t.topic_id.bytes, i) for t in request.forgotten_topics_data if t.topic_id for i in t.partitions]
    version = context.api_version
    renews = version >= 2 and bool(request.is_renew_ack)
    if speaks:
        await work.acknowledge(request.topics, renews and work.rules.renews)
    if epoch == FINAL_EPOCH:
        sessions.close(session)
    elif not session.name(places, gone):
        sessions.close(session)
        raise _Refused(ErrorCode.INVALID_REQUEST, "The session has too many partitions.")
    elif request.max_bytes > 0 and request.max_records > 0 and not renews:
        hard = version >= 2 and request.share_acquire_mode == RECORD_LIMIT
        fetch = _ShareFetch(work, session, request.max_bytes, request.max_records, not hard)
        await fetch.run(request.max_wait_ms)
    return work


@dataclass(slots=True)
class _ShareFetch:
    """The acquisition of one request, tried anew whenever a partition may have something."""

    work: _Work
    session: ShareSession
    max_bytes: int
    max_records: int
    whole_batches: bool

    async def run(self, max_wait_ms: int) -> None:
        """Acquire, or wait until there is something, news of an error, or the time is over."""
        context, session = self.work.context, self.session
        services = context.services
        moved = asyncio.Event()
        until = services.loop.time() + min(max(max_wait_ms, 0), LONGEST_WAIT_MS) / 1000
        session.wake()
        session.waiter = waiter = moved.set
        for place in [place for place, share in session.shares.items() if share.error is not _NONE]:
            session.drop(place)
        try:
            while session.waiter is waiter and services.share_sessions.holds(session) and not context.gone():
                moved.clear()
                await self._look()
                left = until - services.loop.time()
                if self.work.rows or left <= 0:
                    return
                try:
                    await asyncio.wait_for(moved.wait(), left)
                except TimeoutError:
                    return
        finally:
            if session.waiter is waiter:
                session.waiter = None

    async def _look(self) -> None:
        """Acquire of each partition what there is, as far as it goes into the answer."""
        session, work = self.session, self.work
        size, records = work.context.services.config.fetch_max_bytes, self.max_records
        size = min(size, self.max_bytes)
        for place in session.rotated():
            await work.context.yield_now()
            if not work.context.services.share_sessions.holds(session):
                break
            held = session.shares.get(place)  # one that has closed since: to open it anew could fail as fast
            share = work.share(place, held.error if held is not None else _NONE)
            if isinstance(share, ErrorCode):
                session.drop(place)
                work.refused(place, share)
                continue
            session.hold(place, share)
            if share.window is None and share.error is _NONE:
                continue  # its state is being read
            if size <= 0 or records <= 0:
                break
            wanted = partial(session.reads, place, share)
            taken = await share.acquire(session.owner[1], size, records, wanted, whole_batches=self.whole_batches)
            if taken.error is not _NONE:
                work.refused(place, taken.error)
            elif taken.acquired:
                row = work.row(place)
                row.records, row.acquired = taken.records, taken.acquired
                size -= len(taken.records)
                records -= sum(one.last - one.first + 1 for one in taken.acquired)


def _fetched(work: _Work) -> m.ShareFetchResponse:
    kind = m.ShareFetchResponse
    topic = kind.ShareFetchableTopicResponse
    data = topic.PartitionData

    def part(index: int, row: _Row) -> Any:
        leader = row.leader or (-1, -1)
        return data(
            partition_index=index,
            error_code=int(row.error),
            acknowledge_error_code=int(row.acknowledged),
            acknowledge_error_message=row.message,
            current_leader=data.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
            records=row.records,
            acquired_records=[
                data.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
                for first, last, count in row.acquired
            ],
        )

    return kind(
        version=work.context.api_version,
        acquisition_lock_timeout_ms=work.rules.limits.lock_ms,
        responses=work.by_topic(topic, part),
        node_endpoints=work.endpoints(kind.NodeEndpoint),
    )


@Row(
    api_keys.SHARE_ACKNOWLEDGE, (READ_GROUP, READ_TOPIC), EventType.CONSUME, feature=SHARE_VERSION
)  # fmt: skip
@in_task
async def handle_share_acknowledge(request: ShareAcknowledgeRequest, context: Context) -> Done:
    """ShareAcknowledge v1-v2: what a member says of records that it has; answered when it is persisted."""
    kind = m.ShareAcknowledgeResponse
    version, epoch = context.api_version, request.share_session_epoch
    try:
        owner = _owner(request.group_id, request.member_id, context)
        if epoch == FIRST_EPOCH:
            raise _Refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session = _session(owner, epoch, context)
    except _Refused as refused:
        return Done(kind(version=version, error_code=int(refused.error), error_message=refused.message))
    work = _work(owner, context)
    await work.acknowledge(request.topics, version >= 2 and bool(request.is_renew_ack) and work.rules.renews)
    if epoch == FINAL_EPOCH:
        context.services.share_sessions.close(session)
    topic = kind.ShareAcknowledgeTopicResponse
    data = topic.PartitionData

    def part(index: int, row: _Row) -> Any:
        leader = row.leader or (-1, -1)
        return data(
            partition_index=index,
            error_code=int(row.acknowledged),
            error_message=row.message,
            current_leader=data.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
        )

    answer = kind(
        version=version,
        responses=work.by_topic(topic, part),
        node_endpoints=work.endpoints(kind.NodeEndpoint),
    )
    if version >= 2:
        answer.acquisition_lock_timeout_ms = work.rules.limits.lock_ms
    return Done(answer)
