"""Fetch sessions (KIP-227): what a client fetches is remembered, so that a fetch names only what changed.

A session hears of its partitions' moves and keeps the set of those that have something to tell, its *dirty* ones. A
fetch looks at these and at no others, so idle partitions cost nothing, however many they are. A partition that is dirty
and for which no fetch waits need not be marked again: an abandoned session costs one mark per partition, then nothing.

How many sessions there are, and how many partitions they name, is bounded. Followers' sessions push out consumers',
large ones push out smaller ones, and an idle one goes first, as Kafka's cache has it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fleetlog.brokers.replication.follower_progress import ReplicaSession
from fleetlog.brokers.replication.partition import Partition
from fleetlog.brokers.replication.throttles import ReplicationThrottle, throttle_of
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import NO_HIGH_WATERMARK, FetchOutcome, FetchPart, FetchRequest

if TYPE_CHECKING:
    import asyncio

    from fleetlog.brokers.metadata.cache import MetadataCache

Key = tuple[uuid.UUID | str | None, int]

FIRST_EPOCH, FINAL_EPOCH = 0, -1
EVICTION_MS = 120_000
"""A session that was not used for so long may be evicted by any other; a younger one is not evicted by its equals."""
EARLY_REPLY_INTERVAL_MS = 100
"""Least time between two answers of a session that leave only because the fetch after them is waited for."""
EXPECT_HASTE_MS = 20
"""The same for followers that are about to hear that this broker leads something new."""
EXPECT_MS = 300
"""For so long after this broker began to lead, its followers' fetches don't wait long: they learn of it meanwhile."""
EVICTION_RETRY_MS = 1_000
"""Time for which a full cache is not searched again after a search that found none to evict."""
MAX_CONSUMER_PARTITIONS = 30_000
"""Partitions that all consumers' sessions may name together, at about 500 bytes each. Others get no session."""
MAX_FOLLOWER_PARTITIONS = 200_000
"""Partitions that one follower's session may name."""
LOOKS_PER_TURN = 32
_LAST_EPOCH = 2**31 - 1
_UNTOLD = -2
_NONE = ErrorCode.NONE
"""Looked up once: an enum's metaclass takes a thousand instructions to find a member."""


Fetches = Sequence[FetchPart] | dict[Key, "SessionPart"]
"""What a consumer's connection reads: the parts of a fetch without a session, or those of its session now."""


def partitions_read(fetches: Fetches, topic: str, topic_id: uuid.UUID | None) -> list[int]:
    """The partitions of a topic among them."""
    keys: Iterable[Key] = fetches.keys() if isinstance(fetches, dict) else map(key_of, fetches)
    return sorted({index for name, index in keys if name in (topic, topic_id)})


def key_of(asked: FetchPart) -> Key:
    """The name by which a session knows a partition."""
    return asked.topic_id or asked.topic, asked.partition


class FollowerSession(ReplicaSession):
    """A follower's session as its leader's partitions know it. A wait for a proof makes its answers leave early."""

    __slots__ = ("expected_until_ms", "session")

    def __init__(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        super().__init__(broker_id, broker_epoch, now_ms)
        self.session: FetchSession | None = None
        self.expected_until_ms = now_ms
        """Until when it may be about to name partitions that we lead since a short while."""

    def interval_ms(self, now_ms: int) -> int | None:
        """Least time between answers that leave because the next fetch is waited for; None if it is not."""
        if now_ms < self.expected_until_ms:
            return EXPECT_HASTE_MS
        return EARLY_REPLY_INTERVAL_MS if self._listeners else None

    def on_proof(self, listener: Callable[[], None]) -> None:
        """Call once, when ``proven_ms`` rises next. That takes an answer, and the fetch after it."""
        super().on_proof(listener)
        if self.session is not None and self.session.waiter is not None:
            self.session.waiter(None, False)


@dataclass(slots=True, eq=False)
class SessionPart:
    """One partition of one session; the partition tells it of its moves."""

    session: FetchSession
    asked: FetchPart
    partition: Partition | None = field(default=None, init=False)
    watching: bool = field(default=False, init=False)
    out_of_turn: bool = field(default=False, init=False)
    """Whether it had records at the latest look, but not for that answer."""
    counted: bool = field(default=False, init=False)
    """Whether the position of this naming was counted as the follower's."""
    error: ErrorCode = field(default=_NONE, init=False)
    """Why it was not counted."""
    told_watermark: int = field(default=_UNTOLD, init=False)
    told_start: int = field(default=_UNTOLD, init=False)

    def appended(self, partition: Partition) -> None:
        """A follower reads up to the log's end, a consumer does not."""
        session = self.session
        if session.replica is not None:
            session.mark(self, urgent=True)

    def committed(self, partition: Partition) -> None:
        """To a consumer this brings records, to a follower only the news."""
        session = self.session
        session.mark(self, urgent=session.replica is None)

    def changed(self, partition: Partition) -> None:
        """Another role or epoch, or the end of the partition."""
        self.session.mark(self, urgent=True)

    def watch(self) -> None:
        """Hear of the partition."""
        if not self.watching and self.partition is not None and not self.session.closed:
            self.watching = True
            self.partition.watch(self)

    def unwatch(self) -> None:
        """Hear of it no more."""
        if self.watching and self.partition is not None:
            self.watching = False
            self.partition.unwatch(self)

    def settle(self, partition: Partition | None) -> None:
        """This is the partition that the name stands for now."""
        if partition is not self.partition:
            self.unwatch()
            self.partition = partition
            self.counted = False

    def has_news(self, outcome: FetchOutcome) -> bool:
        """Whether an incremental answer must contain it."""
        return (
            outcome.size > 0
            or outcome.high_watermark != self.told_watermark
            or outcome.log_start_offset != self.told_start
            or outcome.error != _NONE
            or outcome.diverging is not None
            or outcome.preferred_read_replica >= 0
        )

    def tell(self, outcome: FetchOutcome) -> bool:
        """It is in the answer that leaves now. Returns whether there will be more to tell without another move.

        An error is answered each time until it is gone, for a client may need several to find the new leader.
        """
        if outcome.diverging is not None:  # the client truncates, and takes in nothing else of it
            self.told_watermark = self.told_start = _UNTOLD
        else:
            self.told_watermark = outcome.high_watermark
            self.told_start = outcome.log_start_offset
        return (
            self.out_of_turn
            or outcome.size > 0
            or outcome.error != _NONE
            or outcome.diverging is not None
            or outcome.preferred_read_replica >= 0
        )


class Owner(NamedTuple):
    """The owner of a session, which alone resumes or ends it. ``broker_id`` is a follower's, -1 for consumers."""

    principal: str
    broker_id: int


@dataclass(slots=True, eq=False)
class FetchSession:
    """One client's session. ``replica`` says that the client is a follower. One whose id is 0 is for one fetch only."""

    id: int
    owner: Owner | None = None
    by_id: bool = False
    replica: FollowerSession | None = None
    created_ms: int = 0
    used_ms: int = 0
    early_reply_ms: int = 0
    """When an answer last left only because the next fetch was waited for."""
    parts: dict[Key, SessionPart] = field(default_factory=dict, init=False)
    dirty: dict[SessionPart, None] = field(default_factory=dict, init=False)
    """In the order in which they are served."""
    epoch: int = field(default=1, init=False)
    """The epoch of the request that is expected next."""
    closed: bool = field(default=False, init=False)
    isolation_level: int = field(default=0, init=False)
    proof_ms: int | None = field(default=None, init=False)
    """A moment at which the latest answer had not left yet: a client that acknowledges it still followed us then."""
    twice: list[FetchPart] | None = field(default=None, init=False)
    """Of a fetch without a session: what it named again. Reading that would hold the loop."""
    waiter: Callable[[SessionPart | None, bool], None] | None = field(default=None, init=False)
    """The fetch that waits: called with a partition that moved and whether that is urgent, for what is not can wait for
    a few ms and for company. With None the fetch after it is waited for, or, if that is urgent, the session is evicted.
    """

    @property
    def privileged(self) -> bool:
        """Followers before consumers."""
        return self.replica is not None

    def mark(self, part: SessionPart, *, urgent: bool) -> None:
        """The partition has something to tell, perhaps."""
        self.dirty[part] = None
        if self.waiter is not None:
            self.waiter(part, urgent)
        else:
            part.unwatch()

    def adopt(self, part: SessionPart, isolation_level: int) -> None:
        """The only partition of a fetch that has to wait."""
        part.session = self
        self.isolation_level = isolation_level
        self.parts[key_of(part.asked)] = part
        self.dirty[part] = None

    def isolate(self, isolation_level: int) -> None:
        """What there is to read is something else now."""
        self.isolation_level = isolation_level
        self.dirty.update(dict.fromkeys(self.parts.values()))

    def forget(self, forgotten: Iterable[tuple[str | uuid.UUID, Sequence[int]]]) -> None:
        """Partitions leave the session; unknown ones don't matter."""
        for topic, indexes in forgotten:
            for index in indexes:
                part = self.parts.pop((topic, index), None)
                if part is not None:
                    self.dirty.pop(part, None)
                    self._leave(part)

    def settled(self, part: SessionPart) -> None:
        """It has nothing to tell until it moves."""
        self.dirty.pop(part, None)
        part.watch()

    def served(self, part: SessionPart) -> None:
        """It had its share: the others come first next time."""
        self.dirty.pop(part, None)
        self.dirty[part] = None

    def close(self, *, forget: bool = True) -> None:
        """Hear of nothing any more. With ``forget`` its follower's positions count no more."""
        self.closed = True
        for part in self.parts.values():
            if forget:
                self._leave(part)
            else:
                part.unwatch()
        self.parts.clear()
        self.dirty.clear()

    def _leave(self, part: SessionPart) -> None:
        part.unwatch()
        if self.replica is not None and part.partition is not None:
            part.partition.followers.forget_position(self.replica)


NO_SESSION = FetchSession(0)
"""Of fetches without a session that don't wait; it stays as it is."""


class Wakes:
    """Consumers' fetches that wait and were woken: some in each turn of the loop, in order, others in the next ones.

    One batch may wake thousands. Were they all answered in the turn that brought it, producers would wait for that
    turn, and then for the one in which all of these consumers ask again. A consumer that waits for its turn finds more
    when it comes, so under load there are fewer answers with more in each.
    """

    __slots__ = ("_looks", "_running")

    def __init__(self) -> None:
        self._looks: deque[Callable[[], None]] = deque()
        self._running = False

    def __len__(self) -> int:
        return len(self._looks)

    def add(self, loop: asyncio.AbstractEventLoop, look: Callable[[], None]) -> None:
        """Call ``look`` in a turn to come. A waiting fetch asks once, however often it is woken."""
        self._looks.append(look)
        if not self._running:
            self._running = True
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        looks = self._looks
        try:
            for _ in range(min(len(looks), LOOKS_PER_TURN)):
                looks.popleft()()
        finally:  # a look that fails is logged by the loop, and costs no other
            self._running = bool(looks)
            if looks:
                loop.call_soon(self._turn, loop)


class FetchSessions:
    """All sessions of a broker. Loop thread only."""

    def __init__(self) -> None:
        self.evicted = 0
        self.wakes = Wakes()
        self._sessions: dict[int, FetchSession] = {}  # the longest unused first
        self._followers: dict[int, FetchSession] = {}  # by broker id: each has one
        self._numbers = 0
        self._consumer_partitions = 0
        self._evict_again_ms = {False: -1, True: -1}
        self._throttle: ReplicationThrottle | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Partitions that all sessions together name."""
        return sum(len(session.parts) for session in self._sessions.values())

    def metrics(self) -> dict[str, float]:
        """Numbers for the broker's metrics."""
        return {
            "consumers": len(self._sessions) - len(self._followers),
            "followers": len(self._followers),
            "partitions": self.partitions,
            "evicted": self.evicted,
        }

    def throttle(self, metadata: MetadataCache) -> ReplicationThrottle:
        """What this broker sends to throttled followers, in all their sessions together."""
        if self._throttle is None:
            self._throttle = throttle_of(metadata, "leader")
        return self._throttle

    def open(
        self, now_ms: int, slots: int, size: int, owner: Owner, *, by_id: bool, replica: FollowerSession | None
    ) -> FetchSession | None:
        """A new session for ``size`` partitions, or None if there is no room and none can be evicted."""
        if replica is not None:
            self._end_previous(replica)
        elif size > MAX_CONSUMER_PARTITIONS:
            return None
        while replica is None and self._consumer_partitions + size > MAX_CONSUMER_PARTITIONS:
            if not self._evict_idle(now_ms):
                return None
        while len(self._sessions) >= slots:
            if not (self._evict_idle(now_ms) or self._evict_lesser(now_ms, replica is not None, size)):
                return None
        session = FetchSession(
            self._new_id(now_ms), owner, by_id, replica, created_ms=now_ms, used_ms=now_ms,
            early_reply_ms=now_ms - EARLY_REPLY_INTERVAL_MS,
        )  # fmt: skip
        if replica is not None:
            replica.session = session
        self._sessions[session.id] = session
        if replica is not None:
            self._followers[replica.broker_id] = session
        return session

    def expect(self, brokers: Collection[int], now_ms: int) -> None:
        """This broker begins to lead a partition of these. No follower may sit out the wait of the fetch that it sent
        before it knew, for nothing is committed until it fetches the partition here.
        """
        for broker_id, session in self._followers.items():
            replica = session.replica
            if broker_id in brokers and replica is not None:
                replica.expected_until_ms = now_ms + EXPECT_MS
                if session.waiter is not None:
                    session.waiter(None, False)

    def _end_previous(self, replica: FollowerSession) -> None:
        """The follower's session before, or that of its previous incarnation, ends.

        A full fetch of a connection that the follower has given up may come behind the one that it sent next, and
        counts positions that are behind. The session that the follower uses would not name them again until they move:
        it ends, so that the follower names all of them at once.
        """
        session = self._followers.get(replica.broker_id)
        if session is not None:
            self.close(session)

    def _new_id(self, now_ms: int) -> int:
        """Not to be mistaken for one of this broker's previous incarnation, which counted from 1 as well."""
        while True:
            self._numbers += 1
            digest = hashlib.blake2b(b"%d %d" % (now_ms, self._numbers), digest_size=4).digest()
            session_id = int.from_bytes(digest, "big") & 0x7FFF_FFFF
            if session_id and session_id not in self._sessions:
                return session_id

    def find(self, request: FetchRequest, principal: str, now_ms: int, by_id: bool) -> FetchSession | ErrorCode:
        """The session of an incremental fetch, which is used with it; or what to answer."""
        session_id, epoch, replica_id = request.session_id, request.session_epoch, request.replica_id
        session = self._sessions.get(session_id)
        if session is None or session.owner != (principal, replica_id if replica_id > -1 else -1):
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch or session.waiter is not None:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if session.replica is not None and session.replica.broker_epoch != request.replica_epoch:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        session.used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def end(self, session_id: int, owner: Owner) -> None:
        """A full fetch ends the session that it names."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner == owner:
            self.close(session)

    def update(
        self,
        session: FetchSession,
        parts: Sequence[FetchPart],
        forgotten: Iterable[tuple[str | uuid.UUID, Sequence[int]]],
    ) -> bool:
        """Forget and name partitions, in this order. False if these were too many."""
        known, dirty, before = session.parts, session.dirty, len(session.parts)
        consumer = session.replica is None
        if session.id:
            if forgotten:
                session.forget(forgotten)
                if consumer:
                    self._consumer_partitions -= before - len(known)
                before = len(known)
            room = MAX_CONSUMER_PARTITIONS - self._consumer_partitions if consumer else MAX_FOLLOWER_PARTITIONS - before
            if len(parts) > room and len({key_of(asked) for asked in parts} - known.keys()) > room:
                return False
        for asked in parts:
            topic, topic_id, index, _, _, _, _, _, _ = asked
            key = topic_id or topic, index
            part = known.get(key)
            if part is None:
                part = known[key] = SessionPart(session, asked)
            elif not session.id:
                if session.twice is None:
                    session.twice = []
                session.twice.append(asked)
                continue
            else:
                part.asked = asked
                part.counted = False
                if part.told_watermark != _UNTOLD:  # what it knows counts: it may have dropped an answer
                    if asked.high_watermark != NO_HIGH_WATERMARK:
                        part.told_watermark = asked.high_watermark  # KIP-1166
                    if not consumer and 0 <= asked.log_start_offset < part.told_start:
                        part.told_start = asked.log_start_offset
            dirty[part] = None
        if consumer and session.id:
            self._consumer_partitions += len(known) - before
        return True

    def close(self, session: FetchSession) -> None:
        """Forget the session."""
        if self._sessions.pop(session.id, None) is None:
            return
        if session.replica is None:
            self._consumer_partitions -= len(session.parts)
        else:
            del self._followers[session.replica.broker_id]
        session.close()
        if session.waiter is not None:
            session.waiter(None, True)

    def _evict_idle(self, now_ms: int) -> bool:
        """Make room: a session that is not used goes, whichever owner it has."""
        longest = next(iter(self._sessions.values()), None)
        if longest is None or now_ms - longest.used_ms <= EVICTION_MS:
            return False
        self.evicted += 1
        self.close(longest)
        return True

    def _evict_lesser(self, now_ms: int, privileged: bool, size: int) -> bool:
        """Make room: the least valuable session goes, if it is not young and worth no more than the new one."""
        if now_ms < self._evict_again_ms[privileged]:
            return False
        candidates = (
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > EVICTION_MS or (privileged and not session.privileged)
        )
        victim = min(candidates, key=lambda session: (session.privileged, len(session.parts)), default=None)
        if victim is None or (victim.privileged, len(victim.parts)) > (privileged, size):
            self._evict_again_ms[privileged] = now_ms + EVICTION_RETRY_MS
            return False
        self.evicted += 1
        self.close(victim)
        return True
