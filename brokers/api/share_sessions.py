"""Share sessions (KIP-932): which partitions a member of a share group reads here, by the epoch of its last request.

A session belongs to the connection that used it last, and ends with it: then what its member has acquired is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fleetlog.brokers.coordinators.share_partitions import SharePartition
from fleetlog.wire.errors import ErrorCode

FIRST_EPOCH, FINAL_EPOCH = 0, -1
MAX_EPOCH = 2**31 - 1
IDLE_MS = 300_000
"""After so long without a request a session makes room for others."""
MAX_PARTITIONS = 10_000
"""The most partitions of a session: clients control their number."""

Place = tuple[bytes, int]
"""A partition by its topic's id."""
Owner = tuple[str, str]
"""A group and its member."""


@dataclass(slots=True, eq=False)
class ShareSession:
    """One session. ``epoch`` is that of the next request."""

    owner: Owner
    connection_id: int
    epoch: int = 1
    places: dict[Place, None] = field(default_factory=dict)
    shares: dict[Place, SharePartition] = field(default_factory=dict)
    """Those that are open here for it."""
    used_ms: int = 0
    waiter: Callable[[], None] | None = None
    """The fetch that waits; one that comes later takes its place."""

    def wake(self) -> None:
        """A partition has something, or the session has ended."""
        if self.waiter is not None:
            self.waiter()

    def reads(self, place: Place, share: SharePartition) -> bool:
        """Whether it has not ended, nor forgotten this share partition."""
        return self.shares.get(place) is share

    def hold(self, place: Place, share: SharePartition) -> None:
        """It reads this share partition, and hears of it."""
        before = self.shares.get(place)
        if before is not share:
            if before is not None:
                self.drop(place)
            self.shares[place] = share
            share.sessions += 1
            share.listeners[self.wake] = None

    def drop(self, place: Place, *, release: bool = True) -> None:
        """It does not read it any more. Without ``release`` its member keeps what it has until the locks end."""
        share = self.shares.pop(place, None)
        if share is not None:
            share.listeners.pop(self.wake, None)
            share.leave(self.owner[1] if release else None)

    def name(self, places: Iterable[Place], forgotten: Iterable[Place]) -> bool:
        """Add what a request names, then remove; False for more partitions than a session may have.

        Who forgets a partition may name it as well, for its last acknowledgements, and acknowledge more later.
        """
        self.places.update(dict.fromkeys(places))
        for place in forgotten:
            self.places.pop(place, None)
            self.drop(place, release=False)
        return len(self.places) <= MAX_PARTITIONS

    def rotated(self) -> list[Place]:
        """Its partitions, each request beginning with another one."""
        places = list(self.places)
        first = self.epoch % len(places) if places else 0
        return places[first:] + places[:first]


class ShareSessions:
    """Those of all members that read here."""

    def __init__(self) -> None:
        self._sessions: dict[Owner, ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, owner: Owner, connection_id: int, most: int, now_ms: int) -> ShareSession | None:
        """A new session, in the place of the member's one before; None where there is no room.

        What the member has acquired it keeps, for it may still acknowledge it.
        """
        before = self._sessions.pop(owner, None)
        if before is None and len(self._sessions) >= most:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_ms < IDLE_MS:
                return None
            self.close(oldest)
        session = self._sessions[owner] = ShareSession(owner, connection_id, used_ms=now_ms)
        if before is not None:
            for place, share in before.shares.items():
                session.hold(place, share)
                share.listeners.pop(before.wake, None)
                share.sessions -= 1
            before.shares.clear()
            before.wake()
        return session

    def use(self, owner: Owner, epoch: int, connection_id: int, now_ms: int) -> ShareSession | ErrorCode:
        """The member's session for a request of that epoch, which it must be at."""
        session = self._sessions.get(owner)
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch not in (session.epoch, FINAL_EPOCH):
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        session.connection_id, session.used_ms = connection_id, now_ms
        self._sessions[owner] = self._sessions.pop(owner)
        if epoch != FINAL_EPOCH:
            session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        return session

    def holds(self, session: ShareSession) -> bool:
        """Whether it has not ended."""
        return self._sessions.get(session.owner) is session

    def close(self, session: ShareSession) -> None:
        """It ends, and what its member has acquired is free."""
        if self.holds(session):
            del self._sessions[session.owner]
        for place in list(session.shares):
            session.drop(place)
        session.places.clear()
        session.wake()

    def disconnected(self, owner: Owner, connection_id: int) -> None:
        """The connection has closed; a session that another one uses by now goes on."""
        session = self._sessions.get(owner)
        if session is not None and session.connection_id == connection_id:
            self.close(session)
