"""What a leader knows of its followers in its epoch: how far they are, which lag, which can serve a consumer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from fleetlog.brokers.log import Log
from fleetlog.brokers.model import BrokerInfo, PartitionState
from fleetlog.brokers.replication.follower_progress import Follower, ReplicaSession


class FollowedReplica(Protocol):
    """What the followers' leader has of its partition."""

    log: Log
    state: PartitionState


class Followers:
    """The followers of one partition. ``broker`` gives the registered broker with an id, or None."""

    __slots__ = ("_broker", "_broker_id", "_replica", "known")

    def __init__(self, replica: FollowedReplica, broker_id: int, broker: Callable[[int], BrokerInfo | None]) -> None:
        self._replica = replica
        self._broker_id = broker_id
        self._broker = broker
        self.known: dict[int, Follower] = {}
        """By broker id. Empty while this broker follows."""

    def begin_epoch(self, replicas: Iterable[int], now_ms: int) -> None:
        """Expect fetches of the other replicas: what they said in an earlier epoch does not count."""
        self.known = {b: Follower(b, now_ms) for b in replicas if b != self._broker_id}

    def end_epoch(self) -> None:
        """This broker leads no longer."""
        self.known = {}

    def add(self, broker_id: int, now_ms: int) -> Follower:
        """Expect fetches of a further replica."""
        follower = self.known[broker_id] = Follower(broker_id, now_ms)
        return follower

    def keep(self, replicas: Collection[int]) -> None:
        """Drop those that are no replicas any more."""
        for broker_id in list(self.known):
            if broker_id not in replicas:
                del self.known[broker_id]

    def forget_position(self, session: ReplicaSession) -> None:
        """The follower removed the partition from that fetch session."""
        follower = self.known.get(session.broker_id)
        if follower is not None and follower.session is session:
            follower.forgotten(self._replica.log.log_end_offset)

    def taken_out(self, broker_ids: Collection[int], now_ms: int) -> None:
        """These are not in sync any more, by a state that this leader has not proposed."""
        for broker_id in broker_ids:
            if broker_id in self.known:
                self.known[broker_id].taken_out_ms = now_ms

    def ends(self) -> dict[int, int]:
        """The log ends by broker id; -1 before a follower's first fetch."""
        return {follower.broker_id: follower.end_offset for follower in self.known.values()}

    def at_end(self) -> list[Follower]:
        """Those that have every record."""
        end = self._replica.log.log_end_offset
        return [follower for follower in self.known.values() if follower.end_offset == end]

    def behind(self, now_ms: int) -> list[tuple[int, int, int]]:
        """Followers that lack records: broker id, the offset where they stand (-1: unknown), ms since they had all."""
        end = self._replica.log.log_end_offset
        return [
            (follower.broker_id, follower.end_offset, max(0, now_ms - follower.caught_up_ms))
            for follower in self.known.values()
            if follower.end_offset < end
        ]

    def lagging(self, now_ms: int, lag_max_ms: int) -> list[int]:
        """Members of the in-sync set that lacked records for longer than ``replica.lag.time.max.ms``."""
        end = self._replica.log.log_end_offset
        return [
            broker_id
            for broker_id in self._replica.state.isr
            if broker_id != self._broker_id
            and (self.known.get(broker_id) or self.add(broker_id, now_ms)).lags(end, now_ms, lag_max_ms)
        ]

    def lowest_start(self, successors: Collection[int]) -> int:
        """The smallest log start among this replica, those that are alive, and ``successors``; -1 if one is unknown."""
        counted = [
            follower.start_offset
            for broker_id, follower in self.known.items()
            if broker_id in successors or self._broker(broker_id) is not None
        ]
        return min([self._replica.log.log_start_offset, *counted])

    def preferred(self, rack: str, fetch_offset: int) -> int:
        """A follower in the rack that can serve a consumer at the offset; -1 for the leader itself (KIP-392)."""
        own = self._broker(self._broker_id)
        if not rack or own is None or own.rack == rack:
            return -1
        best, best_end = -1, -1
        for broker_id in self._replica.state.isr:
            broker = self._broker(broker_id)
            follower = self.known.get(broker_id)
            if broker is None or broker.rack != rack or follower is None:
                continue
            if follower.start_offset <= fetch_offset <= follower.end_offset and follower.end_offset > best_end:
                best, best_end = broker_id, follower.end_offset
        return best
