"""The lease: how long this broker may still act as the owner of its ephemerals. Pure; the clock is an argument.

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
from collections.abc import Callable

HEARTBEATS_PER_TIMEOUT = 6
MARGIN_PER_TIMEOUT = 10
_PROVING_HEARTBEATS = 3


class SessionLease:
    """The lease of the present session (``coordination.store.Lease``). Single owner: the loop thread."""

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
