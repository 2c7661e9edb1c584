"""The port to ZooKeeper: plain async calls and values.

``coordination.zookeeper`` is the real store (over kazoo); the simulation has another. All coroutines and callbacks run
on the broker's event loop thread. Watches fire once, on the loop, and are lost with a changed session: after a
:class:`SessionEvent` with a new session id, read again everything that was watched.

Source: ZooKeeper's programmer's guide (watches, multi); docs/INVARIANTS.md (Z3 to Z5) has the rules of writes.

A lease says how long this broker may still act as the owner of its ephemerals. Pure; the clock is an argument.

Callbacks cannot decide it: after a freeze the client library reports "suspended" seconds late and "lost" only when it
reaches a server again, and a paused process gets no event. So validity is computed for each decision, from the times
when requests were *sent* (never from the arrival of answers) and the timeout that ZooKeeper granted.

The send times that count: the answering server is often a follower. Only the leader expires sessions, and it learns of
the follower's requests with the next answer to its ping (every half tick). A read answered by a follower that was just
cut off proves nothing. Therefore a heartbeat is a ``sync``, which the leader answers. Of three heartbeats Z, A, C, each
sent after the answer to the previous one, the answer to C proves that the leader has counted Z: the leader pinged the
follower between Z and A's answer (they are at least half a tick apart), the follower answered that ping, with this
session, before it forwarded A's answer, and C followed on the same ordered connection. A handshake (of a new or a
reconnected session) is answered by the leader itself and counts at once. A margin covers clock drift and a deposed
leader that answers for one more tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

HEARTBEATS_PER_TIMEOUT = 6
MARGIN_PER_TIMEOUT = 10
_PROVING_HEARTBEATS = 3


class SessionLease:
    """The lease of the present session. Single owner: the loop thread."""

    __slots__ = ("_anchor_ms", "_mono_ms", "_sent_ms", "_timeout_ms")

    def __init__(self, mono_ms: Callable[[], int]) -> None:
        self._mono_ms = mono_ms
        self._timeout_ms = 0
        self._anchor_ms: int | None = None
        self._sent_ms: deque[int] = deque(maxlen=_PROVING_HEARTBEATS)

    @property
    def heartbeat_interval_ms(self) -> int:
        """Pause between an answered heartbeat and the next one."""
        return max(self._timeout_ms // HEARTBEATS_PER_TIMEOUT, 1)

    @property
    def patience_ms(self) -> int:
        """How long an answer may take before another server is tried, so that the lease is kept."""
        return max(self._timeout_ms // 4, 1)

    @property
    def margin_ms(self) -> int:
        """The time between the end of the lease and ZooKeeper's earliest possible expiry."""
        return max(self._timeout_ms // MARGIN_PER_TIMEOUT, 1)

    def handshake(self, sent_ms: int, timeout_ms: int) -> None:
        """The session was opened or reconnected by a handshake sent then; ``timeout_ms`` is the granted timeout."""
        self._timeout_ms = timeout_ms
        self._anchor_ms = sent_ms
        self._sent_ms.clear()

    def heartbeat_answered(self, sent_ms: int) -> None:
        """A heartbeat sent then, after the answer to the previous one, was answered on the handshake's connection."""
        if self._anchor_ms is None:
            return
        self._sent_ms.append(sent_ms)
        if len(self._sent_ms) == _PROVING_HEARTBEATS:
            self._anchor_ms = max(self._anchor_ms, self._sent_ms[0])

    def disconnected(self) -> None:
        """The connection is lost: the proof starts again, the lease continues."""
        self._sent_ms.clear()

    def ended(self) -> None:
        """The session has expired or was closed."""
        self._anchor_ms = None
        self._sent_ms.clear()

    def valid(self) -> bool:
        """True while the session cannot have expired at ZooKeeper."""
        return self.remaining_ms() > 0

    def remaining_ms(self) -> int:
        """Milliseconds until ``valid`` turns false if no further heartbeat is answered; 0 when it is false."""
        if self._anchor_ms is None:
            return 0
        return max(0, self._anchor_ms + self._timeout_ms - self.margin_ms - self._mono_ms())


MAX_MULTI_OPERATIONS = 500
MAX_MULTI_BYTES = 512 * 1024
"""Above 1 MB ZooKeeper answers ConnectionLoss instead of an error; this limit is far below it."""
UNANSWERED: Final = (
    "ZooKeeper does not answer this broker: see whether the ZooKeeper servers run, have a majority and can be reached "
    "from it; then try again."
)
"""What a client is told whose request needs a write or a read that got no answer."""
MAX_GET_MANY = 500
"""The most znodes of one call of :meth:`Store.get_many`."""


class Stat(NamedTuple):
    """The used part of a znode's Stat. ``czxid`` of a broker's registration is its broker epoch.

    ``created_ms`` is when it was made, by the clock of ZooKeeper's leader then.
    """

    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int
    child_count: int = 0
    created_ms: int = 0


class Create(NamedTuple):
    """Multi operation: create a znode; fails with NodeExists."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class SetData(NamedTuple):
    """Multi operation: compare-and-set; ``version`` -1 writes any version."""

    path: str
    data: bytes
    version: int = -1


class Delete(NamedTuple):
    """Multi operation: delete; ``version`` -1 deletes any version."""

    path: str
    version: int = -1


class Check(NamedTuple):
    """Multi operation: fail the multi unless the znode exists with this version."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


class StoreError(Exception):
    """An error of ZooKeeper or of the connection; ``path`` names the znode."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class NoNode(StoreError):
    """The znode (or its parent) does not exist."""


class NodeExists(StoreError):
    """The znode to create exists."""


class BadVersion(StoreError):
    """The znode's version differs from the expected one."""


class NotEmpty(StoreError):
    """The znode to delete has children."""


class UnknownOutcome(StoreError):
    """The connection was lost before the answer: the write may or may not have happened. Only a read decides."""


class SessionExpired(StoreError):
    """The session is over: its ephemerals are gone, or will be; nothing was written."""


class TooLarge(StoreError):
    """The write was rejected locally because ZooKeeper would answer it with ConnectionLoss (jute.maxbuffer)."""


class MultiFailed(StoreError):
    """No operation of the multi happened; operation ``index`` failed with ``cause``."""

    def __init__(self, index: int, cause: StoreError) -> None:
        super().__init__(f"operation {index}: {cause}", cause.path)
        self.index = index
        self.cause = cause


class WatchKind(Enum):
    """The cause of a fired watch."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    """One fired watch."""

    kind: WatchKind
    path: str


Watch = Callable[[WatchEvent], None]


class SessionState(Enum):
    """CONNECTED: usable. SUSPENDED: disconnected, perhaps still valid. EXPIRED: over; a new one is being opened."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


class SessionEvent(NamedTuple):
    """A change of the session; ``session_id`` is the present one (0 when there is none)."""

    state: SessionState
    session_id: int


class OperationResult(NamedTuple):
    """One operation's result in a multi: the real path of a Create, the Stat of a SetData (else None)."""

    path: str
    stat: Stat | None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Facts about the present session. ``timeout_ms`` is the negotiated one."""

    session_id: int
    timeout_ms: int


class Store(Protocol):
    """ZooKeeper, as seen by the broker. Every call may raise UnknownOutcome (writes) or SessionExpired."""

    lease: SessionLease

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Data and Stat; raises NoNode (then no watch is set)."""

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """Data and Stat of each, by one request; None where the znode does not exist. Not an atomic snapshot."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of the children, sorted; raises NoNode."""

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Stat or None; the watch is set in both cases."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = False
    ) -> str:
        """Create and return the real path; raises NodeExists, NoNode (missing parent and not ``parents``)."""

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        """Compare-and-set; raises NoNode, BadVersion."""

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete; raises NoNode, BadVersion, NotEmpty."""

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """All or nothing; raises MultiFailed, TooLarge (over MAX_MULTI_*: split it), UnknownOutcome."""

    async def sync(self, path: str) -> None:
        """Make the next reads of this session see everything committed before the call."""

    def session(self) -> SessionInfo | None:
        """The present session, or None while there is none."""

    def on_session(self, listener: Callable[[SessionEvent], None]) -> None:
        """Call ``listener`` on the loop at every change of the session."""

    async def close(self) -> None:
        """Close the session: its ephemerals are deleted at once."""


class SessionStore(Store, Protocol):
    """A store with session credentials, so that a successor of this process can close the session."""

    def credentials(self) -> tuple[int, bytes] | None:
        """Session id and password; None while not connected."""

    async def end_session(self, session_id: int, password: bytes, timeout_ms: int = 5_000) -> bool:
        """Close another session by its credentials; returns whether it is certainly over."""
