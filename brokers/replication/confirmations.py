"""What a leader without a valid lease may still be certain of: that it led at some time.

Its followers confirm it. As long as every possible successor followed this broker, none of them led.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fleetlog.brokers.log import Log
from fleetlog.brokers.model import Clock
from fleetlog.brokers.replication.followers import Followers
from fleetlog.brokers.replication.in_sync_set import InSyncSet
from fleetlog.brokers.replication.serving import LeaderLease
from fleetlog.brokers.replication.waiters import ConfirmationWaits
from fleetlog.wire.errors import ErrorCode


class ConfirmedReplica(Protocol):
    """What the confirmations need of their partition."""

    log: Log
    is_leader: bool


class Confirmations:
    """See the module, and :class:`~brokers.replication.serving.LeaderLease` for what needs them."""

    __slots__ = ("_clock", "_followers", "_in_sync", "_lease", "_replica", "_waits")

    def __init__(
        self, replica: ConfirmedReplica, followers: Followers, in_sync: InSyncSet, lease: LeaderLease, clock: Clock
    ) -> None:
        self._replica = replica
        self._followers = followers
        self._in_sync = in_sync
        self._lease = lease
        self._clock = clock
        self._waits = ConfirmationWaits()

    def confirmed_ms(self) -> int | None:
        """The latest time at which this broker provably led: every possible successor still followed it.

        None if it is unknown: a possible successor does not fetch here, or any replica could succeed.
        """
        if not self._replica.is_leader or self._replica.log.config.unclean_leader_election_enable:
            return None
        successors = self._in_sync.successors
        if not successors:
            return self._clock.mono_ms()
        moments = []
        for broker_id in successors:
            follower = self._followers.known.get(broker_id)
            if follower is None or follower.session is None:
                return None
            moments.append(follower.session.proven_ms)
        return min(moments)

    def when_confirmed(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back with NONE once it is certain that this broker led at some time after this call.

        Immediately with a valid lease; else when every possible successor has fetched from this broker since. With
        NOT_LEADER_OR_FOLLOWER if it stops leading first. The caller bounds the wait.
        """
        if not self._replica.is_leader:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._lease.valid():
            callback(ErrorCode.NONE)
        else:
            self._waits.add(self._clock.mono_ms(), callback)
            self.check()

    def check(self) -> None:
        """Complete what is confirmed by now; what is not waits for the next proofs of the followers' sessions."""
        if not self._waits:
            return
        self._waits.complete(self._clock.mono_ms() if self._lease.valid() else self.confirmed_ms())
        if self._waits:
            for follower in self._followers.known.values():
                if follower.session is not None:
                    follower.session.on_proof(self.check)

    def end(self) -> None:
        """This broker leads no longer."""
        self._waits.end()
