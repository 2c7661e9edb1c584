"""The lease: how long we may still act as the owner of our ephemerals. Pure; the clock comes in.

Callbacks are no base for that: after a freeze the client library says "suspended" seconds late and "lost" only when
it reaches a server again, and a paused process hears nothing. So validity is computed at the moment of each decision,
from when requests were *sent* (never from when answers arrived) and the timeout ZooKeeper granted.

Which send times count: the server that answers us is often a follower, and the leader, which alone expires sessions,
hears of our requests from it only with the next answer to the leader's ping (every half tick). A read answered by a
follower that was just cut off proves nothing. Therefore a heartbeat is a ``sync``, which the leader answers, and of
three heartbeats Z, A, C, each sent after the one before was answered, the answer to C proves that the leader has
counted Z: the leader pinged the follower between Z and A's answer (they are at least half a tick apart), the
follower answered that ping, naming our session, before it passed A's answer on, and C travelled the same ordered
connection behind it. A handshake (new session, or an old one taken up again) is answered by the leader itself and
counts at once. A margin covers drifting clocks and a deposed leader that answers for one tick more.
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
        """How long an answer may take before another server is tried: soon enough to keep the lease."""
        return max(self._timeout_ms // 4, 1)

    @property
    def margin_ms(self) -> int:
        """How long before ZooKeeper's earliest possible expiry the lease ends."""
        return max(self._timeout_ms // MARGIN_PER_TIMEOUT, 1)

    def handshake(self, sent_ms: int, timeout_ms: int) -> None:
        """The session was opened or taken up again by a handshake sent then; ``timeout_ms`` is what was granted."""
        self._timeout_ms = timeout_ms
        self._anchor_ms = sent_ms
        self._sent_ms.clear()

    def heartbeat_answered(self, sent_ms: int) -> None:
        """A heartbeat sent then, after the answer to the one before, was answered on the handshake's connection."""
        if self._anchor_ms is None:
            return
        self._sent_ms.append(sent_ms)
        if len(self._sent_ms) == _PROVING_HEARTBEATS:
            self._anchor_ms = max(self._anchor_ms, self._sent_ms[0])

    def disconnected(self) -> None:
        """The connection is gone: the proof starts anew, the lease runs on."""
        self._sent_ms.clear()

    def ended(self) -> None:
        """ZooKeeper said that the session is over, or we closed it."""
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
