"""Fetch (key 1): records as slices of the log's files, waiting for them if there are too few.

Followers and consumers alike: what differs is how far they may read (``fetch_reads``). Whoever asks for a session gets
one, and its fetches look only at partitions that have something to tell (``fetch_sessions``). A follower's fetch says
how far its log reaches, which is what moves the high watermark (``brokers.cluster.partition``).

Source: KIP-74 (limits), KIP-227 (sessions), KIP-320 and KIP-595 (leader epochs), KIP-392 (other replicas), KIP-841
(broker epochs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brokers.api.base import Context, Done, Outcome, Park
from brokers.api.fetch_reads import CONSUMER, Reader
from brokers.api.fetch_sessions import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    FetchSession,
    FollowerSession,
    Owner,
    SessionPart,
)
from brokers.api.fetch_short import short_fetch
from brokers.api.leaders import endpoints_of
from brokers.cluster.partition import Partition
from brokers.log import OffsetOutOfRange
from wire.errors import ErrorCode
from wire.hot import Encoded, FetchOutcome, FetchPart, FetchRequest, encode_fetch_response

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

TOPIC_IDS_VERSION = 13
READS_PER_ANSWER = 1_000
"""Partitions with records in one answer: others' turn on the loop comes before the rest."""
NEWS_DELAY_S = 0.005
"""How long a follower's waiting fetch keeps the news that only a high watermark moved, for others to join it."""

Pair = tuple[FetchPart, FetchOutcome]


def handle_fetch(request: FetchRequest, context: Context) -> Outcome:
    """Answer at once with enough bytes, an error, or nothing to wait for; else park until one of these.

    The dispatcher asks ``fetch_short`` first.
    """
    if request.replica_id >= 0:
        error = _replica_error(request, context)
        if error is not ErrorCode.NONE:
            return _refused(error, context)
    sessions = context.services.fetch_sessions
    who = Owner(context.connection.principal, max(CONSUMER, request.replica_id))
    if request.session_epoch in (FIRST_EPOCH, FINAL_EPOCH):
        if request.session_id:
            sessions.end(request.session_id, who)
        return _full(request, context, who)
    by_id = context.api_version >= TOPIC_IDS_VERSION
    session = sessions.find(request.session_id, request.session_epoch, who, by_id=by_id)
    if isinstance(session, ErrorCode):
        return _refused(session, context)
    if session.replica is not None and session.replica.broker_epoch != request.replica_epoch:
        return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, context)
    if not sessions.update(session, request.parts, request.forgotten):
        sessions.close(session)
        return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, context)
    if not session.parts:
        sessions.close(session)
        return Done(encode_fetch_response(context.api_version, []))
    sessions.used(session, context.services.clock.mono_ms())
    return _SessionFetch(request, context, session, full=False).begin()


def _refused(error: ErrorCode, context: Context) -> Done:
    return Done(encode_fetch_response(context.api_version, [], error=error))


def _replica_error(request: FetchRequest, context: Context) -> ErrorCode:
    """A follower counts by its registration: a fetch of a former life, or of one not known yet, says nothing."""
    services = context.services
    if request.replica_id == services.config.broker_id:
        return ErrorCode.INVALID_REQUEST
    broker = services.view.brokers.get(request.replica_id)
    if broker is None or broker.epoch != request.replica_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    return ErrorCode.NONE


def _full(request: FetchRequest, context: Context, owner: Owner) -> Outcome:
    """A fetch that names all partitions; the first of a session if there is room for one."""
    services = context.services
    now_ms = services.clock.mono_ms()
    replica: FollowerSession | None = None
    if request.replica_id >= 0:
        replica = FollowerSession(request.replica_id, request.replica_epoch, now_ms)
    session: FetchSession | None = None
    if request.session_epoch == FIRST_EPOCH and request.parts:
        sessions = services.fetch_sessions
        session = sessions.open(
            now_ms,
            services.config.max_incremental_fetch_session_cache_slots,
            len(request.parts),
            owner,
            by_id=context.api_version >= TOPIC_IDS_VERSION,
            replica=replica,
        )
        if session is not None and not sessions.update(session, request.parts, ()):
            sessions.close(session)
            session = None
    if session is None and replica is not None:  # one for this fetch only
        session = FetchSession(0, now_ms, owner, by_id=True, replica=replica)
        for part in request.parts:
            session.name(part)
    if session is not None:
        return _SessionFetch(request, context, session, full=True).begin()
    if len(request.parts) == 1:
        return _single(request, context)
    fetch = _Fetch(request, context)
    if fetch.attempt() or request.max_wait_ms <= 0 or not request.parts:
        return Done(fetch.answer())
    return fetch.park()


def _single(request: FetchRequest, context: Context) -> Outcome:
    """One partition without a session. Most of these are answered at once, and leave nothing behind."""
    (part,) = request.parts
    reader = Reader(request, context)
    partition = reader.find(part)
    if isinstance(partition, FetchOutcome):
        return Done(_encoded(context, [(part, partition)]))
    outcome = reader.read(partition, part, _most_bytes(request, context), first=True)
    if outcome.size >= request.min_bytes or request.max_wait_ms <= 0 or _urgent(outcome):
        return Done(_encoded(context, [(part, outcome)]))
    _release([(part, outcome)])
    return _Fetch(request, context, [partition]).park()


def _most_bytes(request: FetchRequest, context: Context) -> int:
    return min(max(0, request.max_bytes), context.services.config.fetch_max_bytes)


class _Fetch:
    """A consumer's fetch without a session, possibly tried several times while it waits. It watches its partitions."""

    def __init__(self, request: FetchRequest, context: Context, partitions: Sequence[Partition] = ()) -> None:
        self._request = request
        self._context = context
        self._reader = Reader(request, context)
        self._max_bytes = _most_bytes(request, context)
        self._outcomes: list[Pair] = []
        self._partitions = partitions
        self._scheduled = False
        self._park: Park | None = None

    def attempt(self) -> bool:
        """Read every partition once. True if the answer is worth sending now."""
        self._drop()
        left, total, reads, urgent = self._max_bytes, 0, 0, False
        partitions: list[Partition] = []
        seen: set[tuple[Any, Any, int]] = set()
        for part in self._request.parts:
            name = (part.topic, part.topic_id, part.partition)
            if name in seen:  # reading one partition thousands of times in one request would hold the loop
                self._outcomes.append((part, FetchOutcome(ErrorCode.INVALID_REQUEST)))
                urgent = True
                continue
            seen.add(name)
            partition = self._reader.find(part)
            if isinstance(partition, FetchOutcome):
                outcome = partition
            else:
                partitions.append(partition)
                outcome = self._reader.read(partition, part, left, first=total == 0)
            if outcome.size:
                total += outcome.size
                reads += 1
                left = max(0, left - outcome.size) if reads < READS_PER_ANSWER else 0
            urgent = urgent or _urgent(outcome)
            self._outcomes.append((part, outcome))
        if self._park is None:
            self._partitions = partitions
        return urgent or total >= self._request.min_bytes

    def answer(self) -> Encoded:
        """The answer with what the last attempt found; the slices go with it."""
        self._unwatch()
        outcomes, self._outcomes = self._outcomes, []
        return _encoded(self._context, outcomes)

    def park(self) -> Park:
        """Wait for data, a lost leadership, or ``max_wait_ms``."""
        self._park = Park(self._request.max_wait_ms, self._expired, self._dropped)
        for partition in self._partitions:
            partition.watch(self)
        self._drop()  # a waiting fetch pins no files; it reads again when it is woken
        return self._park

    def appended(self, partition: Partition) -> None:
        """No consumer may read it yet."""

    def committed(self, partition: Partition) -> None:
        """Perhaps there are records; many moves until its turn comes are one look."""
        if not self._scheduled:
            self._scheduled = True
            services = self._context.services
            services.fetch_wakes.add(services.loop, self._look)

    def changed(self, partition: Partition) -> None:
        """Perhaps this is an error now."""
        self.committed(partition)

    def _look(self) -> None:
        self._scheduled = False
        if self._park is None or self._park.done:
            return
        context = self._context
        short = short_fetch(self._request, context.services, context.api_version)
        if short is not None:
            self._unwatch()
            self._park.complete(encode_fetch_response(context.api_version, [short]))
        elif self.attempt():
            self._park.complete(self.answer())
        else:
            self._drop()

    def _expired(self) -> Encoded:
        self.attempt()  # what came meanwhile, though it is less than min_bytes
        return self.answer()

    def _dropped(self) -> None:
        self._unwatch()
        self._drop()

    def _unwatch(self) -> None:
        if self._park is not None:
            for partition in self._partitions:
                partition.unwatch(self)

    def _drop(self) -> None:
        _release(self._outcomes)
        self._outcomes = []


class _SessionFetch:
    """One fetch of a session, possibly tried several times while it waits."""

    def __init__(self, request: FetchRequest, context: Context, session: FetchSession, *, full: bool) -> None:
        self._request = request
        self._context = context
        self._session = session
        self._full = full
        services = context.services
        self._throttle = services.fetch_sessions.throttle(services.view) if session.replica is not None else None
        self._reader = Reader(request, context, session.replica, self._throttle)
        self._max_bytes = _most_bytes(request, context)
        self._found: list[tuple[SessionPart, FetchOutcome]] = []
        self._moved = False
        self._scheduled = False
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._park: Park | None = None

    def begin(self) -> Outcome:
        """Answer now, or wait for data, news, or ``max_wait_ms``."""
        session, request = self._session, self._request
        session.waiter = self
        if session.isolation_level != request.isolation_level:  # what there is to read is something else now
            session.isolation_level = request.isolation_level
            session.dirty.update(dict.fromkeys(session.parts.values()))
        if session.replica is not None:
            self._count_positions(session.replica)
        if self._attempt() or request.max_wait_ms <= 0:
            return Done(self._answer())
        self._park = Park(request.max_wait_ms, self._expired, self._dropped)
        for part in session.dirty:
            part.watch()
        self._wait()
        return self._park

    # ---- a follower's positions ------------------------------------------------------------------------------------

    def _count_positions(self, replica: FollowerSession) -> None:
        """What the fetch says of the follower's logs.

        First of all, what it no longer reads here, or not in our epoch: only then the fetch proves that at the time of
        the answer it acknowledges, the follower had turned to nobody else.
        """
        now_ms = self._context.services.clock.mono_ms()
        current: list[tuple[SessionPart, Partition]] = []
        for part in self._session.dirty:
            if part.counted:
                continue
            part.error = ErrorCode.NONE
            partition = self._partition_of(part)
            if isinstance(partition, FetchOutcome):
                continue
            if self._reader.refusal(partition, part.asked) is ErrorCode.NONE:
                current.append((part, partition))
            else:
                partition.follower_forgotten(replica)
        if self._session.proof_ms is not None:
            replica.fetched(now_ms, self._session.proof_ms)
        for part, partition in current:
            asked = part.asked
            try:
                diverging = self._reader.diverging(partition, asked)
            except OffsetOutOfRange:
                continue
            if diverging is None and asked.fetch_offset >= partition.log.log_start_offset:
                part.error = partition.follower_fetched(replica, asked.fetch_offset, asked.log_start_offset, now_ms)
                part.counted = part.error is ErrorCode.NONE

    def _partition_of(self, part: SessionPart) -> Partition | FetchOutcome:
        partition = part.partition
        if partition is not None and not partition.deleted:
            return partition
        found = self._reader.find(part.asked)
        part.settle(None if isinstance(found, FetchOutcome) else found)
        return found

    # ---- trying ----------------------------------------------------------------------------------------------------

    def _attempt(self) -> bool:
        """Read the partitions that may have something to tell. True if the answer is worth sending now."""
        self._drop()
        session = self._session
        left, total, reads, urgent = self._max_bytes, 0, 0, False
        quiet: list[SessionPart] = []
        self._moved = self._reader.throttled = False
        for part in session.dirty:
            outcome = self._read(part, left, first=total == 0)
            part.out_of_turn = self._reader.out_of_turn
            if not part.has_news(outcome):
                if not part.out_of_turn:
                    quiet.append(part)
                continue
            self._found.append((part, outcome))
            self._moved = self._moved or outcome.high_watermark != part.told_watermark
            urgent = urgent or _urgent(outcome)
            if outcome.size:
                total += outcome.size
                left = max(0, left - outcome.size)
                reads += 1
                if reads == READS_PER_ANSWER:
                    if not self._full:
                        break
                    left = 0
        for part in quiet:
            session.settled(part)
        return urgent or total >= self._request.min_bytes

    def _read(self, part: SessionPart, left: int, *, first: bool) -> FetchOutcome:
        self._reader.out_of_turn = False
        if part.error is not ErrorCode.NONE:
            return FetchOutcome(part.error)
        partition = self._partition_of(part)
        if isinstance(partition, FetchOutcome):
            return partition
        return self._reader.read(partition, part.asked, left, first=first)

    def _answer(self) -> Encoded:
        """The answer with what the last attempt found; the slices go with it."""
        self._end_wait()
        session = self._session
        found, self._found = self._found, []
        for part, outcome in found:
            if not part.tell(outcome):
                session.settled(part)
            elif outcome.size:
                session.served(part)
        now_ms = self._context.services.clock.mono_ms()
        session.proof_ms = now_ms - 1  # it leaves at some time of this millisecond: the one before is proven as a whole
        self._count_throttled(found, now_ms)
        answer = _encoded(self._context, _by_topic([(part.asked, outcome) for part, outcome in found]), session.id)
        if not session.id:
            session.close(forget=False)
        return answer

    def _count_throttled(self, found: list[tuple[SessionPart, FetchOutcome]], now_ms: int) -> None:
        throttle = self._throttle
        if throttle is None:
            return
        for part, outcome in found:
            if outcome.size and part.partition is not None and throttle.applies(part.partition.tp):
                throttle.record(outcome.size, now_ms)

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def woken(self, urgent: bool) -> None:
        """A partition moved; many moves in one turn of the loop are one look. Followers don't wait for consumers."""
        if self._park is None:
            return
        if not urgent:
            self._later(NEWS_DELAY_S, self._tell)
        elif not self._scheduled:
            self._scheduled = True
            services = self._context.services
            if self._session.replica is not None:
                services.loop.call_soon(self._look)
            else:
                services.fetch_wakes.add(services.loop, self._look)

    def hasten(self) -> None:
        """Somebody may wait for the fetch that acknowledges this answer."""
        replica, now_ms = self._session.replica, self._context.services.clock.mono_ms()
        haste_ms = replica.haste_ms(now_ms) if replica is not None else None
        if self._park is not None and haste_ms is not None:
            rest_ms = self._session.hastened_ms + haste_ms - now_ms
            self._later(max(NEWS_DELAY_S, rest_ms / 1000), self._hastened)

    def abandoned(self) -> None:
        """Nobody can go on with this session: answer with what there is."""
        if self._park is not None:
            self._context.services.loop.call_soon(self._finish)

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back once, however often it was asked for."""
        if callback not in self._timers:
            self._timers[callback] = self._context.services.loop.call_later(delay_s, self._due, callback)

    def _due(self, callback: Callable[[], None]) -> None:
        del self._timers[callback]
        if self._park is not None and not self._park.done:
            callback()

    def _wait(self) -> None:
        self._drop()  # a waiting fetch pins no files; it reads again when it is woken
        replica, throttle = self._session.replica, self._throttle
        if replica is None:
            return
        if self._moved:
            self._later(NEWS_DELAY_S, self._tell)
        self.hasten()
        if throttle is not None and self._reader.throttled:
            self._later(max(1, throttle.wait_ms(self._context.services.clock.mono_ms())) / 1000, self._look)

    def _tell(self) -> None:
        """What is new goes out now, if it still is."""
        assert self._park is not None, "there is a timer, but nobody waits"
        if self._attempt() or self._moved:
            self._park.complete(self._answer())
        else:
            self._wait()

    def _hastened(self) -> None:
        self._session.hastened_ms = self._context.services.clock.mono_ms()
        self._finish()

    def _look(self) -> None:
        self._scheduled = False
        if self._park is None or self._park.done:
            return
        if self._attempt():
            self._park.complete(self._answer())
        else:
            self._wait()

    def _expired(self) -> Encoded:
        self._attempt()  # what came meanwhile, though it is less than min_bytes
        return self._answer()

    def _finish(self) -> None:
        if self._park is not None and not self._park.done:
            self._park.complete(self._expired())

    def _dropped(self) -> None:
        """The connection is gone. A session whose first answer never left is nobody's; others may be ended by name."""
        self._end_wait()
        self._drop()
        if not self._session.id:
            self._session.close(forget=False)
        elif self._full:
            self._context.services.fetch_sessions.close(self._session)

    def _end_wait(self) -> None:
        self._session.waiter = None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _drop(self) -> None:
        _release(self._found)
        self._found = []


def _urgent(outcome: FetchOutcome) -> bool:
    """Whether the asker should hear of it without waiting for more."""
    return outcome.error != ErrorCode.NONE or outcome.diverging is not None or outcome.preferred_read_replica >= 0


def _release(found: Iterable[tuple[Any, FetchOutcome]]) -> None:
    for _, outcome in found:
        for piece in outcome.slices:
            piece.release()


def _by_topic(pairs: list[Pair]) -> list[Pair]:
    """Partitions of one topic side by side: the answer names each topic once."""
    if len(pairs) < 2:
        return pairs
    topics: dict[Any, list[Pair]] = {}
    for pair in pairs:
        topics.setdefault(pair[0].topic_id or pair[0].topic, []).append(pair)
    return [pair for members in topics.values() for pair in members]


def _encoded(context: Context, outcomes: list[Pair], session_id: int = 0) -> Encoded:
    leaders = [outcome.current_leader for _, outcome in outcomes if outcome.current_leader is not None]
    endpoints = endpoints_of(context, leaders) if leaders else ()
    return encode_fetch_response(context.api_version, outcomes, session_id=session_id, endpoints=endpoints)
