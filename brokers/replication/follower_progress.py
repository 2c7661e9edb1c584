"""The leader's state of its followers: log ends and caught-up times. Pure.

A follower at the log's end costs nothing while the partition is idle: its fetch session holds the time of its last
fetch, instead of one time stamp per partition.

Source: Kafka's Replica (caught-up times), KIP-227 (sessions), KIP-392 (reading from followers).
"""

from __future__ import annotations

from collections.abc import Callable

NEVER = -(2**62)


class ReplicaSession:
    """One follower's fetch session: the time of its last fetch, and until when it provably followed this broker.

    ``proven_ms`` is the send time of the response that the last fetch acknowledges: at that time the follower had no
    other leader, otherwise its fetch would have removed the partition from the session.
    """

    __slots__ = ("_listeners", "broker_epoch", "broker_id", "last_fetch_ms", "proven_ms")

    def __init__(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.last_fetch_ms = now_ms
        self.proven_ms = NEVER
        self._listeners: dict[Callable[[], None], None] = {}

    def fetched(self, now_ms: int, proven_ms: int) -> None:
        """Note a fetch of the session, after its forgotten partitions were handled."""
        self.last_fetch_ms = now_ms
        if proven_ms > self.proven_ms:
            self.proven_ms = proven_ms
            if self._listeners:
                listeners, self._listeners = self._listeners, {}
                for listener in listeners:
                    listener()

    def on_proof(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once, at the next rise of ``proven_ms``, however often it was added before.

        A listener that waits for several sessions adds itself to all of them whenever one rises: kept twice, it would
        be twice as many with each rise.
        """
        self._listeners[listener] = None


class Follower:
    """One follower of one partition, in one leader epoch."""

    __slots__ = (
        "broker_id", "caught_up_ms", "end_offset", "last_end", "last_fetch_ms", "session", "start_offset",
        "taken_out_ms",
    )  # fmt: skip

    def __init__(self, broker_id: int, now_ms: int) -> None:
        self.broker_id = broker_id
        self.session: ReplicaSession | None = None
        self.end_offset = -1
        """Its log end, -1 before its first fetch in this epoch."""
        self.start_offset = -1
        self.caught_up_ms = now_ms
        self.last_fetch_ms = now_ms
        self.last_end = -1
        """The leader's log end at its last fetch."""
        self.taken_out_ms: int | None = None
        """When the leader read a state without it in the in-sync set, not its own, if it has told no position since."""

    def fetched(
        self, session: ReplicaSession, fetch_offset: int, start_offset: int, log_end_offset: int, now_ms: int
    ) -> None:
        """Note a fetch from ``fetch_offset``: the follower has all records before it."""
        if fetch_offset >= log_end_offset:
            self.caught_up_ms = now_ms
        elif fetch_offset >= self.last_end >= 0:
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.session = session
        self.end_offset = fetch_offset
        self.start_offset = start_offset
        self.last_fetch_ms = now_ms
        self.last_end = log_end_offset
        self.taken_out_ms = None

    def overtaken(self) -> None:
        """The leader appended, and this follower was at the log's end: it was caught up until now."""
        if self.session is not None:
            self.caught_up_ms = max(self.caught_up_ms, self.session.last_fetch_ms)
            self.last_fetch_ms = max(self.last_fetch_ms, self.session.last_fetch_ms)

    def forgotten(self, log_end_offset: int) -> None:
        """The follower stopped fetching the partition: its position is unknown."""
        if self.end_offset >= log_end_offset:
            self.overtaken()
        self.session = None
        self.end_offset = -1
        self.last_end = -1

    def follows_still(self) -> bool:
        """Whether it has followed this leader since it was taken out of the in-sync set.

        One that takes itself out, because its disk failed or is full, stops fetching. Its next request says so, but
        the state may be known here before that.
        """
        if self.taken_out_ms is None:
            return True
        return self.session is not None and self.session.proven_ms > self.taken_out_ms

    def lags(self, log_end_offset: int, now_ms: int, lag_max_ms: int) -> bool:
        """Whether the follower has been behind for longer than ``replica.lag.time.max.ms``."""
        return self.end_offset < log_end_offset and now_ms - self.caught_up_ms > lag_max_ms
