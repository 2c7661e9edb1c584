"""The right to act as the leader is decided here, and what is served without it. Pure.

ZooKeeper's part is the session's lease (``coordination.store``): until it ends the broker's registration cannot have
expired, so no other broker was elected because this one seemed dead. A broker gives the right up by itself, too: all of
it before it stops (:class:`BrokerLease`), or that of one partition, for a planned move or because it has proposed to
resign (:class:`LeaderLease`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from fleetlog.wire.errors import ErrorCode

WAIVED_MAX_MS = 5_000
"""How long a leader that waived its lease waits for the planned move; then it takes the lease back."""


class Serve(Enum):
    """The kinds of requests to a partition's leader."""

    APPEND = "append"
    FETCH = "fetch"
    LIST_OFFSETS = "list offsets"
    COORDINATOR_STATE = "coordinator state"


LEADER_ONLY = (Serve.FETCH,)
"""What a leader serves whatever its lease says."""
_WITHOUT_LEASE = {
    Serve.APPEND: ErrorCode.NONE,
    Serve.FETCH: ErrorCode.NONE,
    Serve.LIST_OFFSETS: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Serve.COORDINATOR_STATE: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


def not_led(kind: Serve) -> ErrorCode:
    """The error of a request of this kind to a broker that does not lead the partition."""
    return ErrorCode.NOT_COORDINATOR if kind is Serve.COORDINATOR_STATE else ErrorCode.NOT_LEADER_OR_FOLLOWER


class BrokerLease:
    """Whether no other broker can have taken over from this one. ``session_valid`` is the ZooKeeper session's lease."""

    __slots__ = ("_session_valid", "_waived")

    def __init__(self, session_valid: Callable[[], bool]) -> None:
        self._session_valid = session_valid
        self._waived = False

    def waive(self) -> None:
        """Give it up until the process ends, so that other brokers may lead."""
        self._waived = True

    def valid(self) -> bool:
        """Whether the session's lease is valid and was not given up. Asked at each decision."""
        return not self._waived and self._session_valid()


class LeaderLease:
    """Whether no broker but this leader can lead its partition now.

    The leader waives it for a planned move, which the controller may write at any moment from then on. A waiver ends
    with the leader epoch, or when a state that the leader proposed after it was last asked is written: the controller
    compares the state's version with the one of its request.
    """

    __slots__ = ("_broker_valid", "_voids_waiver", "_waived_ms", "resigning", "waived")

    def __init__(self, broker_valid: Callable[[], bool]) -> None:
        self._broker_valid = broker_valid
        self._waived_ms = 0
        self._voids_waiver = False
        self.waived = False
        """Whether this leader has waived its lease, for a planned move that may be written at any moment."""
        self.resigning = False
        """Whether this leader has proposed its resignation: from then on another may be elected at any moment."""

    def valid(self) -> bool:
        """Whether the broker's lease is valid, and the leader neither waived it nor proposed to resign."""
        return not self.waived and not self.resigning and self._broker_valid()

    def refusal(self, kind: Serve) -> ErrorCode:
        """NONE if the leader may serve a request of this kind immediately, else the error.

        Without a lease another broker may lead already. Records below the high watermark are served, because every
        later leader has them. An append is taken, because it is acknowledged only when every in-sync member has it, and
        a successor is a member that no longer fetches here; but not once a resignation is proposed. State in memory may
        be older than the new leader's: the latest offset, a committed group offset, a fence. Such requests wait for
        ``Partition.when_confirmed``, which needs the followers, or get this error. That of a coordinator's state is not
        NOT_COORDINATOR: usually ZooKeeper is unreachable and there is no successor. librdkafka never repeats an
        OffsetFetch after that error, so its consumer would stop until the next rebalance; it retries this one.
        """
        if kind is Serve.APPEND and self.resigning:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if self.valid() else _WITHOUT_LEASE[kind]

    def waive(self, now_ms: int) -> None:
        """Let the controller elect another leader."""
        self.waived, self._voids_waiver = True, False
        self._waived_ms = now_ms

    def overdue(self, now_ms: int) -> bool:
        """Whether the planned move has not come in time, so that the leader should take the lease back."""
        return self.waived and now_ms - self._waived_ms > WAIVED_MAX_MS

    def state_proposed(self) -> None:
        """The leader has proposed a new state of the partition: written, it ends a waiver made before."""
        self._voids_waiver = self.waived

    def state_written(self) -> bool:
        """The proposed state is written; returns whether that has ended a waiver."""
        if not self._voids_waiver:
            return False
        self.waived = False
        return True

    def new_epoch(self) -> None:
        """The leader epoch has ended: nothing that was given up in it counts in another one."""
        self.waived = self.resigning = self._voids_waiver = False
