"""Fetch (key 1): records as slices of the log's files, waiting for them if there are too few.

There is one way: a session names the partitions to look at, ``Fetch`` reads them and answers or waits. A fetch without
a session has one for itself, which names what it names. Followers and consumers differ in how far they may read
(``fetch_reads``); a follower's fetch also says how far its log reaches (``fetch_followers``). One of many partitions
goes the same way in slices, in between which partitions move.

Source: KIP-74 (limits), KIP-227 (sessions), KIP-320 and KIP-595 (leader epochs), KIP-392 (other replicas), KIP-841
(broker epochs).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from fleetlog._native.tally import count_fetched
from fleetlog.brokers.acls.access import CLUSTER, CLUSTER_ACTION, CLUSTER_ACTION_CLUSTER, READ_TOPIC
from fleetlog.brokers.api import fetch_answers as answers
from fleetlog.brokers.api.base import Batching, Context, DelayedResponse, Done, InSlices, Outcome, Paced, in_slices
from fleetlog.brokers.api.fetch_answers import (
    encoded_in_slices,
    grouped_by_topic,
    is_urgent,
    refused,
    release,
    slices_of,
)
from fleetlog.brokers.api.fetch_followers import count_in_slices, count_positions
from fleetlog.brokers.api.fetch_reads import CONSUMER, PartitionReader
from fleetlog.brokers.api.fetch_sessions import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    NO_SESSION,
    Fetches,
    FetchSession,
    FollowerSession,
    Owner,
    SessionPart,
)
from fleetlog.brokers.api.leaders import endpoints_of
from fleetlog.brokers.api.rows import Cost, Row
from fleetlog.brokers.audit.events import EventType
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import (
    Encoded,
    FetchOutcome,
    FetchPart,
    FetchRequest,
    FetchRun,
    decode_fetch_run,
    encode_fetch_answer,
    encode_fetch_response,
)

if TYPE_CHECKING:
    from fleetlog.brokers.replication.partition import Partition
    from fleetlog.brokers.timers import Timer

TOPIC_IDS_VERSION = 13
Found = tuple[SessionPart, FetchOutcome]

NEWS_DELAY_MS = 5
"""How long a follower's waiting fetch keeps the news that a high watermark or a log start moved, for others to join."""

_NONE, _FULL = ErrorCode.NONE, (FIRST_EPOCH, FINAL_EPOCH)
_DENIED = FetchOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_new = tuple.__new__
"""A named tuple's own constructor is a Python function."""


def handle_fetch(request: FetchRequest, context: Context, whole: bool = False) -> Outcome:
    """Answer at once with enough bytes, an error, or nothing to wait for; else delay the answer until one of these.

    ``whole``: an answer that is given at once has its size and header.
    """
    replica_id, _, wait_ms, _, max_bytes, isolation_level, session_id, epoch, parts, forgotten, _, _ = request
    services, most = context.services, answers.LONG_PARTS
    sessions = services.fetch_sessions
    source = context.source
    if replica_id >= 0:
        if not context.allows(CLUSTER_ACTION, CLUSTER):
            return Done(
                encode_fetch_response(context.api_version, grouped_by_topic([(part, _DENIED) for part in parts]))
            )
        context.exempted = True
        error = _replica_error(request, context)
        if error is not _NONE:
            return Done(refused(error, context))
    elif source is not None and source.meter is not None and max_bytes > source.meter.fetch_bytes_max:
        request = request._replace(max_bytes=source.meter.fetch_bytes_max)  # what the client's quota allows at once
    full = epoch in _FULL
    if not full:
        by_id = context.api_version >= TOPIC_IDS_VERSION
        session = sessions.find(request, context.connection.principal, services.clock.mono_ms(), by_id)
        if isinstance(session, ErrorCode):
            return Done(refused(session, context))
        long = len(parts) > most or len(session.dirty) > most or (bool(forgotten) and names_many(request))
    else:
        session, long = NO_SESSION, len(parts) > most
    _note_fetches(request, context, parts[:most] if full else session.parts)
    fetch = Fetch(request, context, session, full, PartitionReader(request, context))
    if session is NO_SESSION and not session_id and epoch and replica_id < 0 and len(parts) == 1:
        row = SessionPart(session, parts[0])
        if fetch.look((row,)) or wait_ms <= 0:
            return _new(Done, (fetch.answer(whole),))
        fetch.without_session().adopt(row, isolation_level)
        fetch.session.waiter = fetch.woken
        return fetch.wait()
    if full or session.replica is not None:
        if full and not long:
            fetch.open()
            session = fetch.session
        fetch.follow()
    if long:
        return fetch.begin_in_slices()
    if not sessions.update(session, parts, () if full else forgotten):
        sessions.close(session)
        if not full:
            return Done(refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, context))
        session = fetch.without_session()
        sessions.update(session, parts, ())
    if not session.parts:
        sessions.close(session)
        return Done(encode_fetch_response(context.api_version, []))
    session.waiter = fetch.woken
    if session.isolation_level != isolation_level:
        session.isolate(isolation_level)
    if session.replica is not None:
        count_positions(session, session.replica, fetch.reader)
    if fetch.look(session.dirty) or wait_ms <= 0:
        return _new(Done, (fetch.answer(whole),))
    return fetch.wait()


def execute_fetch(runs: Sequence[FetchRun], contexts: Sequence[Context]) -> list[Outcome]:
    """Execute requests that lie where they were received; answers that are given at once are whole frames."""
    if len(runs) == 1:
        return [handle_fetch(runs[0][0], contexts[0], True)]
    return [handle_fetch(run.request, context, True) for run, context in zip(runs, contexts, strict=True)]


def _note_fetches(request: FetchRequest, context: Context, fetches: Fetches) -> None:
    """For administrators: what a consumer's connection reads, but not names of topics that are none: they may be long,
    and the connection keeps them while it is idle."""
    if context.source is not None and request.replica_id < 0:
        if len(fetches) > 1 and not isinstance(fetches, dict):
            topics = context.services.metadata.topics
            fetches = [part for part in fetches if part.topic is None or part.topic in topics]
        context.source.fetches = fetches


def names_many(request: FetchRequest) -> bool:
    """Whether the fetch forgets so many partitions that it is executed in slices."""
    return sum(1 + len(indexes) for _, indexes in request.forgotten) > answers.LONG_PARTS


def _replica_error(request: FetchRequest, context: Context) -> ErrorCode:
    """A follower counts by its registration, so not in another incarnation or in one that is not known yet."""
    services = context.services
    if request.replica_id == services.config.broker_id:
        return ErrorCode.INVALID_REQUEST
    broker = services.metadata.brokers.get(request.replica_id)
    if broker is None or broker.epoch != request.replica_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    return ErrorCode.NONE


def _replica_of(request: FetchRequest, context: Context) -> FollowerSession | None:
    if request.replica_id < 0:
        return None
    return FollowerSession(request.replica_id, request.replica_epoch, context.services.clock.mono_ms())


@dataclass(slots=True, eq=False)
class Fetch:
    """One fetch of a session, possibly tried several times while it waits."""

    request: FetchRequest
    context: Context
    session: FetchSession
    full: bool
    """Whether the answer has all partitions, also those that didn't fit."""
    reader: PartitionReader
    found: list[Found] | None = field(default=None, init=False)
    """What was read last, for the answer."""
    total: int = field(default=0, init=False)
    """Bytes of records that were found."""
    reads: int = field(default=0, init=False)
    """Partitions that have them."""
    urgent: bool = field(default=False, init=False)
    crowded: bool = field(default=False, init=False)
    """Whether no more partitions fit into the answer."""
    delayed: DelayedResponse | None = field(default=None, init=False)
    stirred: dict[SessionPart, None] | None = field(default=None, init=False)
    """Of a long fetch: what moved since it was read."""
    sizes: dict[SessionPart, int] | None = field(default=None, init=False)
    """Of a long fetch that waits: bytes that were found in each."""
    begun_us: int = field(default=0, init=False)
    """Of a follower's: monotonic times of its start (0 if its session begins in slices), and of when it began to wait
    (0 if it did not)."""
    delayed_us: int = field(default=0, init=False)
    _moved: bool = field(default=False, init=False)
    _scheduled: bool = field(default=False, init=False)
    _timers: dict[Callable[[], None], Timer] | None = field(default=None, init=False)

    def open(self) -> None:
        """Begin a session if the fetch asks for one and there is room; the one that it names ends."""
        request, context = self.request, self.context
        services = context.services
        sessions, now_ms = services.fetch_sessions, services.clock.mono_ms()
        owner = Owner(context.connection.principal, max(CONSUMER, request.replica_id))
        if request.session_id:
            sessions.end(request.session_id, owner)
        session = None
        if request.session_epoch == FIRST_EPOCH and request.parts:
            session = sessions.open(
                now_ms,
                services.config.max_incremental_fetch_session_cache_slots,
                len(request.parts),
                owner,
                by_id=context.api_version >= TOPIC_IDS_VERSION,
                replica=_replica_of(request, context),
            )
        if session is None:
            self.without_session()
        else:
            self.session = session

    def without_session(self) -> FetchSession:
        """A session for this fetch only: a follower's position counts, too, if there is no room for another."""
        replica = _replica_of(self.request, self.context)
        session = self.session = FetchSession(0, replica=replica)
        self.reader.replica = replica
        if replica is not None:
            replica.session = session
        return session

    def follow(self) -> None:
        """Read as the follower whose session it is, if it is one's."""
        replica = self.reader.replica = self.session.replica
        if replica is not None:
            services = self.context.services
            if services.metrics.counting:
                self.begun_us = services.clock.mono_us()
            self.reader.throttle = services.fetch_sessions.throttle(services.metadata)

    @property
    def most_bytes(self) -> int:
        """Bytes of records that the answer may have."""
        return min(max(0, self.request.max_bytes), self.context.services.config.fetch_max_bytes)

    # ---- trying ----------------------------------------------------------------------------------------------------

    def look(self, parts: Iterable[SessionPart], found: list[Found] | None = None) -> bool:
        """Read those that may have something to tell, behind what was ``found``. True if that is worth sending now."""
        reader, full = self.reader, self.full
        most, max_bytes = self.context.services.config.fetch_max_bytes, self.request.max_bytes
        self.found = found = [] if found is None else found
        left = (max_bytes if max_bytes < most else most) - self.total
        if self.reads >= answers.READS_PER_ANSWER:
            left = 0
        quiet: list[SessionPart] | None = None
        for part in parts:
            reader.out_of_turn = False
            partition = part.partition
            if part.error is not _NONE:
                outcome = FetchOutcome(part.error)
            else:
                known: Partition | FetchOutcome
                if partition is None:
                    known = reader.find(part.asked)
                    if not isinstance(known, FetchOutcome):
                        part.partition = known
                else:
                    known = reader.partition_of(part) if partition.deleted else partition
                if isinstance(known, FetchOutcome):
                    outcome = known
                else:
                    outcome = reader.read(known, part.asked, left, not self.total)
            part.out_of_turn = out_of_turn = reader.out_of_turn
            error, watermark, _, start, _, _, size, diverging, _, preferred = outcome
            if not size and not part.has_news(outcome):
                if not out_of_turn:
                    if quiet is None:
                        quiet = []
                    quiet.append(part)
                continue
            found.append((part, outcome))
            if watermark != part.told_watermark or start != part.told_start:
                self._moved = True
            if error or diverging is not None or preferred >= 0:
                self.urgent = True
            if size:
                self.total += size
                left -= size
                self.reads += 1
                if self.reads == answers.READS_PER_ANSWER:
                    left = 0
                    if not full:
                        self.crowded = True
                        break
        for part in quiet or ():
            self.session.settled(part)
        return self.urgent or self.total >= self.request.min_bytes

    def again(self) -> bool:
        """Begin anew, and look."""
        self.begin()
        return self.look(self.session.dirty)

    def begin(self) -> None:
        """Nothing is found yet."""
        self.drop()
        self.total, self.reads, self.urgent, self.crowded = 0, 0, False, False
        self._moved = self.reader.throttled = False

    def answer(self, whole: bool = False) -> Encoded | list[Any]:
        """The answer with what was found last; the slices of files go with it. ``whole``: with size and header."""
        session, context, leaders = self.session, self.context, None
        if session is not NO_SESSION:
            session.waiter = None
        if self._timers is not None:
            self.end_wait()
        source = context.source
        if (
            source is not None
            and source.meter is not None
            and self.total
            and not (context.exempted or source.meter.may_fetch(source, self.total, self.delayed is None))
        ):
            return self.empty_answer(whole)
        found, self.found = self.found or [], None
        counts = context.services.replicas.topic_figures is not None
        if counts and count_fetched(found, session.replica is not None):
            self.count_errors(found)
        pairs: list[tuple[FetchPart, FetchOutcome]] = []
        session_id, dirty = session.id, session.dirty
        for part, outcome in found:
            pairs.append((part.asked, outcome))
            _, watermark, _, start, _, _, size, diverging, leader, _ = outcome
            if leader is not None:
                leaders = [*(leaders or ()), leader]
            if not session_id:
                continue
            if size and diverging is None:
                part.told_watermark, part.told_start = watermark, start
                if len(dirty) > 1:  # it had its share: the others come first next time
                    dirty.pop(part, None)
                    dirty[part] = None
            elif not part.tell(outcome):
                session.settled(part)
        if session.replica is not None:
            self.count_sent(found)
        if session.twice is not None:
            pairs += [(asked, FetchOutcome(ErrorCode.INVALID_REQUEST)) for asked in session.twice]
        if len(pairs) > 1:
            pairs = grouped_by_topic(pairs)
        if not session_id:
            if self.delayed is not None or session.replica is not None:
                session.close(forget=False)
            elif session.parts:
                session.parts.clear()  # nothing refers to itself: that would be the garbage collector's
                dirty.clear()
        endpoints = endpoints_of(context, leaders) if leaders is not None else ()
        if whole:
            return encode_fetch_answer(context.api_version, context.correlation_id, pairs, session_id, endpoints)
        return encode_fetch_response(context.api_version, pairs, session_id=session_id, endpoints=endpoints)

    def over_quota(self) -> bool:
        """Whether the client may not have what was found now. If it may, that is counted."""
        context = self.context
        source = context.source
        if source is None or source.meter is None or context.exempted:
            return False
        return not source.meter.may_fetch(source, self.total)

    def empty_answer(self, whole: bool) -> Encoded | list[Any]:
        """Nothing, and the session is as it was (KIP-219); one that began with this fetch ends."""
        session, context = self.session, self.context
        self.drop()
        session_id = 0 if self.full else session.id
        if session.id and self.full:
            context.services.fetch_sessions.close(session)
        elif not session.id and self.delayed is not None:
            session.close(forget=False)
        elif not session.id and session.parts:
            session.parts.clear()
            session.dirty.clear()
        if whole:
            return encode_fetch_answer(context.api_version, context.correlation_id, [], session_id, ())
        return encode_fetch_response(context.api_version, [], session_id=session_id)

    def count(self, found: Sequence[Found]) -> None:
        """Count what is answered, by topic, and its errors."""
        if count_fetched(found, self.session.replica is not None):
            self.count_errors(found)

    def count_errors(self, found: Sequence[Found]) -> None:
        """Count errors that are answered, by topic and code."""
        for part, outcome in found:
            if outcome.error is not _NONE:
                self.context.services.metrics.failed("Fetch", outcome.error)
                if part.partition is not None and part.partition.figures is not None:
                    part.partition.figures.failed_fetches += 1

    def count_sent(self, found: list[Found]) -> None:
        """What a follower gets: its throttle counts it, and when it acknowledges it, it has followed until now."""
        services = self.context.services
        now_ms = services.clock.mono_ms()
        if self.begun_us:
            services.metrics.follower_fetches.observe(self.begun_us, self.delayed_us, services.clock.mono_us())
        self.session.proof_ms = now_ms - 1  # it leaves in this millisecond: the one before is proven as a whole
        throttle = self.reader.throttle
        if throttle is not None:
            for part, outcome in found:
                if outcome.size and part.partition is not None and throttle.applies(part.partition.tp):
                    throttle.record(outcome.size, now_ms)

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def wait(self) -> DelayedResponse:
        """Wait for data, news, or ``max_wait_ms``."""
        self.delayed = DelayedResponse(self.request.max_wait_ms, self.expired, self.dropped)
        if self.begun_us:
            self.delayed_us = self.context.services.clock.mono_us()
        for part in self.session.dirty:
            part.watch()
        self.rest()
        return self.delayed

    @property
    def long(self) -> bool:
        """Whether what there is to look at takes slices."""
        return len(self.session.dirty) > answers.LONG_PARTS

    def woken(self, part: SessionPart | None, urgent: bool) -> None:
        """The session's ``waiter``. Moves in one turn of the loop are one look; followers don't wait for consumers."""
        if part is None:
            if not urgent:
                self._reply_early()
            elif self.delayed is not None:  # no fetch can resume this session: answer with what there is
                self.context.services.loop.call_soon(self._finish)
            return
        if self.delayed is None or self.sizes is not None:
            if self.stirred is None:
                self.stirred = {}
            self.stirred[part] = None
            if self.delayed is None:
                self._moved = self._moved or not urgent  # the look may be past it
                return
        if not urgent:
            self._later(NEWS_DELAY_MS, self._tell)
        elif not self._scheduled:
            self.schedule()

    def schedule(self) -> None:
        """Look in a turn to come."""
        self._scheduled = True
        services = self.context.services
        if self.session.replica is not None:
            services.loop.call_soon(self._look)
        else:
            services.fetch_sessions.wakes.add(services.loop, self._look)

    def _reply_early(self) -> None:
        """The in-sync set may wait for the fetch that acknowledges this answer."""
        replica, now_ms = self.session.replica, self.context.services.clock.mono_ms()
        interval_ms = replica.interval_ms(now_ms) if replica is not None else None
        if self.delayed is not None and interval_ms is not None:
            rest_ms = self.session.early_reply_ms + interval_ms - now_ms
            self._later(max(NEWS_DELAY_MS, rest_ms), self._early_reply_due)

    def _later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call back once, however often it was asked for."""
        if self._timers is None:
            self._timers = {}
        if callback not in self._timers:
            self._timers[callback] = self.context.services.timers.later(delay_ms, partial(self._due, callback))

    def _due(self, callback: Callable[[], None]) -> None:
        if self._timers is not None:
            del self._timers[callback]
        if self.delayed is not None and not self.delayed.done:
            callback()

    def rest(self) -> None:
        """Wait on. What was found goes: a waiting fetch pins no files; it reads again when it is woken."""
        self.drop()
        replica, throttle = self.session.replica, self.reader.throttle
        if replica is None:
            return
        if self._moved:
            self._later(NEWS_DELAY_MS, self._tell)
        self._reply_early()
        if throttle is not None and self.reader.throttled:
            self._later(max(1, throttle.wait_ms(self.context.services.clock.mono_ms())), self._look)

    def _tell(self) -> None:
        """What is new goes out now, if it still is."""
        assert self.delayed is not None, "there is a timer, but nothing waits"
        if self.long:
            self.delayed.complete(self.answer_in_slices())
        elif self.again() or self._moved:
            self.delayed.complete(self.answer())
        else:
            self.rest()

    def _early_reply_due(self) -> None:
        self.session.early_reply_ms = self.context.services.clock.mono_ms()
        self._finish()

    def _look(self) -> None:
        self._scheduled = False
        if self.delayed is None or self.delayed.done:
            return
        if self.long:
            if self.looks_enough():
                self.delayed.complete(self.answer_in_slices())
            elif self.stirred:
                self.schedule()
        elif self.again():
            self.delayed.complete(self.answer())
        else:
            self.rest()

    def expired(self) -> Encoded | list[Any] | InSlices:
        """What came meanwhile, though it is less than min_bytes."""
        if self.long:
            return self.answer_in_slices()
        self.again()
        return self.answer()

    def _finish(self) -> None:
        if self.delayed is not None and not self.delayed.done:
            self.delayed.complete(self.expired())

    def dropped(self) -> None:
        """The connection is gone. A session whose first answer never left ends; others may be ended by name."""
        self.end_wait()
        self.drop()
        if not self.session.id:
            self.session.close(forget=False)
        elif self.full:
            self.context.services.fetch_sessions.close(self.session)

    def end_wait(self) -> None:
        """No timer calls back any more."""
        self.session.waiter = None
        for timer in (self._timers or {}).values():
            timer.cancel()
        self._timers = None

    def drop(self) -> None:
        """Let go of the files of what was found."""
        if self.found is not None:
            release(self.found)
            self.found = None

    # ---- in slices --------------------------------------------------------------------------------------------------
    # Each partition leaves the dirty ones, and is watched, in the moment in which it is read: what moves later marks it
    # again. While such a fetch waits, only what moves is read, to know when there is enough for an answer.

    @in_slices
    def begin_in_slices(self) -> Paced:
        """Name partitions, read them, and answer or wait."""
        over = False
        try:
            if self.full:
                self.open()
                self.follow()
            self.session.waiter = self.woken
            while not (yield from self._name_in_slices()):
                # A full fetch of the follower that came meanwhile has ended it: what this one says is older, perhaps.
                overtaken = self.session.closed and self.session.replica is not None
                self.context.services.fetch_sessions.close(self.session)
                if overtaken or not self.full:
                    return Done(refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, self.context))
                self.without_session().waiter = self.woken
            session = self.session
            if not session.parts and not self.full:
                self.context.services.fetch_sessions.close(session)
                return Done(encode_fetch_response(self.context.api_version, []))
            if session.isolation_level != self.request.isolation_level:
                session.isolate(self.request.isolation_level)
            if session.replica is not None:
                yield from count_in_slices(session, session.replica, self.reader)
            yield from self._look_in_slices()
            if session.closed:
                return Done(refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, self.context))
            if self.request.max_wait_ms <= 0 or self.urgent or self.total >= self.request.min_bytes:
                answer = yield from self._answer_in_slices()
                over = True
                return Done(answer)
            self.sizes = {part: outcome.size for part, outcome in self.found or ()}
            self._restore()
            over = True
            delayed = self.wait()
            if self.stirred:
                self.schedule()
            return delayed
        finally:
            if not over:
                self._give_up()

    @in_slices
    def answer_in_slices(self) -> Generator[None, None, Encoded]:
        """The answer of one that has waited: with what there is now."""
        over = False
        try:
            yield from self._look_in_slices()
            answer = yield from self._answer_in_slices()
            over = True
            return answer
        finally:
            if not over:
                self._give_up()

    def looks_enough(self) -> bool:
        """Whether what moved makes an answer worth sending. Reads some dozens of partitions at most."""
        reader, sizes, stirred = self.reader, self.sizes, self.stirred
        if sizes is None:  # it was short when it began
            return True
        for part in list(islice(stirred or (), answers.SLICE_PARTS)):
            if stirred is not None:
                del stirred[part]
            partition = reader.partition_of(part)
            if isinstance(partition, FetchOutcome):
                return True
            outcome = reader.read(partition, part.asked, self.most_bytes, True)
            for piece in outcome.slices:
                piece.release()
            self.total += outcome.size - sizes.get(part, 0)
            sizes[part] = outcome.size
            if is_urgent(outcome) or self.total >= self.request.min_bytes:
                return True
        return False

    def _name_in_slices(self) -> Generator[None, None, bool]:
        """Forget and name what the request says. False if that is too much, or the session was evicted meanwhile."""
        session, request = self.session, self.request
        sessions = self.context.services.fetch_sessions
        for topic, indexes in request.forgotten if not self.full else ():
            for some in slices_of(indexes):
                if session.closed:
                    return False
                sessions.update(session, (), [(topic, some)])
                yield
        for parts in slices_of(request.parts):
            if session.closed or not sessions.update(session, parts, ()):
                return False
            yield
        return not session.closed

    def _look_in_slices(self) -> Generator[None, None, None]:
        self._restore()
        self.begin()
        session = self.session
        found: list[Found] = []
        for some in slices_of(list(session.dirty)):
            if session.closed:
                return
            before = len(found)
            self.look(some, found)
            for part, _ in found[before:]:
                session.settled(part)
            if self.crowded:
                return
            yield

    def _answer_in_slices(self) -> Generator[None, None, Encoded]:
        """The answer with what was found last; the slices of files go with it."""
        if self.total and self.over_quota():
            self._restore()
            self.end_wait()
            answer = self.empty_answer(False)
            assert isinstance(answer, Encoded), "without its size and header"
            return answer
        session, found = self.session, self.found or []
        pairs = []
        shares: list[SessionPart] = []
        counts = self.context.services.replicas.topic_figures is not None
        for some in slices_of(found):
            if counts:
                self.count(some)
            for part, outcome in some:
                if part.tell(outcome) and not session.closed:
                    if outcome.size:
                        shares.append(part)
                    else:  # its turn is to come
                        session.served(part)
                pairs.append((part.asked, outcome))
            yield
        for part in shares if not session.closed else ():
            session.served(part)
        pairs += [(asked, FetchOutcome(ErrorCode.INVALID_REQUEST)) for asked in session.twice or ()]
        answer = yield from encoded_in_slices(self.context, pairs, session.id)
        self.found = None
        self.end_wait()
        if session.replica is not None:
            self.count_sent(found)
        if not session.id:
            session.close(forget=False)
        return answer

    def _restore(self) -> None:
        """What was found is not answered now: it stays to be answered."""
        if not self.session.closed:
            self.session.dirty.update((part, None) for part, _ in self.found or ())
        self.drop()

    def _give_up(self) -> None:
        """The connection is gone, or the session: what was found and not answered is as before."""
        self._restore()
        self.dropped()


BATCHING = Batching(decode_fetch_run, execute_fetch, None, batchable=False)
"""How the server executes a Fetch where it was received."""


# consumers, replicas
Row(api_keys.FETCH, (READ_TOPIC, CLUSTER_ACTION_CLUSTER), EventType.CONSUME, batching=BATCHING, cost=Cost.DATA)(
    handle_fetch
)
