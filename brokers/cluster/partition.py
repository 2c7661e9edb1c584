"""One partition as this broker sees it: its role, its high watermark, and who waits for either to move.

The high watermark is the smallest log end offset of the in-sync replicas. With one replica that is the log's own end;
the function is written over the in-sync set so that followers only have to report theirs.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from brokers.log import AppendInfo, Log, Origin
from brokers.model import Clock, PartitionState, TopicPartition
from wire.errors import ErrorCode

if TYPE_CHECKING:
    import uuid

logger = logging.getLogger(__name__)


class Serve(Enum):
    """What a broker may be asked to do for a partition it believes to lead."""

    APPEND = "append"
    FETCH = "fetch"
    LIST_OFFSETS = "list offsets"
    COORDINATE = "coordinate"


def may_serve(kind: Serve, lease_valid: bool) -> ErrorCode:
    """What is still served when the broker's lease on its registration has run out: the one place that decides it.

    A broker without its lease may have been replaced as a leader without knowing. It may still hand out records below
    its high watermark, which no later leader takes back. Everything else could contradict the new leader: an append
    would be lost, a latest offset too low, a committed group offset or a fence too old. Those clients are sent to look
    for the leader again, which is what NOT_LEADER_OR_FOLLOWER and NOT_COORDINATOR make them do.
    """
    if lease_valid or kind is Serve.FETCH:
        return ErrorCode.NONE
    return ErrorCode.NOT_COORDINATOR if kind is Serve.COORDINATE else ErrorCode.NOT_LEADER_OR_FOLLOWER


class DataWaiter:
    """A fetch that waits for data; ``cancel`` forgets it."""

    __slots__ = ("_waiters", "callback")

    def __init__(self, waiters: dict[DataWaiter, None], callback: Callable[[], None]) -> None:
        self._waiters = waiters
        self.callback = callback
        waiters[self] = None

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._waiters.pop(self, None)


class Partition:
    """A replica on this broker. Loop thread only.

    ``is_leader`` says that the state names this broker in its present incarnation; whether it may act on it is
    :func:`may_serve`'s word, asked for each request.
    """

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: uuid.UUID,
        log: Log,
        state: PartitionState,
        *,
        broker_id: int,
        clock: Clock,
        lease_valid: Callable[[], bool],
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.state = state
        self.is_leader = False
        self.leader_epoch = -1
        self.deleted = False
        self._broker_id = broker_id
        self._clock = clock
        self._lease_valid = lease_valid
        self._follower_ends: dict[int, int] = {}
        self._committed_waiters: list[tuple[int, int, Callable[[ErrorCode], None]]] = []
        self._numbers = itertools.count()
        self._data_waiters: dict[DataWaiter, None] = {}

    def may_serve(self, kind: Serve) -> ErrorCode:
        """NONE, or the error that a request of that kind gets now."""
        if not self.is_leader:
            return ErrorCode.NOT_COORDINATOR if kind is Serve.COORDINATE else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return may_serve(kind, self._lease_valid())

    def check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Compare the epoch a client knows with ours (KIP-320); -1 is a client that does not know it."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def append(
        self,
        records: Any,
        *,
        acks: int,
        origin: Origin,
        verification_guard: object | None = None,
        expected_leader_epoch: int | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append batches as the leader; a client's mistakes come back in ``error``, never as an exception.

        ``acks`` is the producer's: -1 asks for ``min.insync.replicas``. ``expected_leader_epoch`` refuses the append
        when the partition was led by somebody else since the caller looked. ``transaction_version`` 2 on a marker says
        that its producer epoch was bumped for it (KIP-890).
        """
        error = self.may_serve(Serve.APPEND)
        if error is ErrorCode.NONE and expected_leader_epoch not in (None, self.leader_epoch):
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error is ErrorCode.NONE and acks == -1 and len(self.state.isr) < self.effective_min_isr:
            error = ErrorCode.NOT_ENOUGH_REPLICAS
        if error is not ErrorCode.NONE:
            return refused(error)
        info = self.log.append_as_leader(
            records,
            leader_epoch=self.leader_epoch,
            now_ms=self._clock.wall_ms(),
            origin=origin,
            verification_guard=verification_guard,
            transaction_version=transaction_version,
        )
        if info.error is ErrorCode.NONE:
            self.advance()
        return info

    @property
    def effective_min_isr(self) -> int:
        """``min.insync.replicas``, but never more than there are replicas (as Kafka 4.1 counts it)."""
        return min(self.log.config.min_insync_replicas, max(1, len(self.state.replicas)))

    def follower_reached(self, broker_id: int, log_end_offset: int) -> None:
        """A follower's fetch says how far its log reaches."""
        self._follower_ends[broker_id] = log_end_offset
        self.advance()

    def advance(self) -> None:
        """Move the high watermark to what the in-sync replicas have, and tell whoever waits for it."""
        if not self.is_leader or len(self.state.isr) < self.effective_min_isr:
            return
        ends = [
            self.log.log_end_offset if replica == self._broker_id else self._follower_ends.get(replica, -1)
            for replica in self.state.isr
        ]
        watermark = min(ends, default=self.log.log_end_offset)
        if watermark <= self.log.high_watermark:
            return
        self.log.set_high_watermark(watermark)
        waiters = self._committed_waiters
        while waiters and waiters[0][0] < self.log.high_watermark:
            _call(heapq.heappop(waiters)[2], ErrorCode.NONE)
        self.wake_fetches()

    def wait_for(self, offset: int, on_committed: Callable[[ErrorCode], None]) -> None:
        """Call back once the record at ``offset`` is below the high watermark; possibly at once.

        The argument is NONE, or NOT_LEADER_OR_FOLLOWER if this broker stops leading first.
        """
        if not self.is_leader:
            on_committed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif offset < self.log.high_watermark:
            on_committed(ErrorCode.NONE)
        else:
            heapq.heappush(self._committed_waiters, (offset, next(self._numbers), on_committed))

    def on_data(self, callback: Callable[[], None]) -> DataWaiter:
        """Call back whenever a waiting fetch may have something to answer: new data, or a lost leadership."""
        return DataWaiter(self._data_waiters, callback)

    def wake_fetches(self) -> None:
        """Let the waiting fetches look again."""
        for waiter in list(self._data_waiters):
            _call(waiter.callback)

    def become_leader(self, state: PartitionState) -> None:
        """Lead in the state's epoch."""
        self.state = state
        if self.leader_epoch != state.leader_epoch or not self.is_leader:
            self.leader_epoch = state.leader_epoch
            self.log.assign_epoch(state.leader_epoch)
            self._follower_ends.clear()
        self.is_leader = True
        self.advance()

    def update_state(self, state: PartitionState) -> None:
        """A change that keeps leader and epoch: the in-sync set or the replicas."""
        self.state = state
        self.advance()

    def resign(self, state: PartitionState | None) -> None:
        """Somebody else leads, or nobody; whoever waits is told."""
        if state is not None:
            self.state = state
            self.leader_epoch = max(self.leader_epoch, state.leader_epoch)
        self.is_leader = False
        waiters, self._committed_waiters = self._committed_waiters, []
        for _, _, callback in waiters:
            _call(callback, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.wake_fetches()


def refused(error: ErrorCode, message: str | None = None) -> AppendInfo:
    """The outcome of an append that was not tried."""
    return AppendInfo(
        first_offset=-1,
        last_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_count=0,
        size=0,
        duplicate=False,
        error=error,
        error_message=message,
    )


def _call(callback: Callable[..., None], *args: Any) -> None:
    """Run somebody's callback; its bug must not keep the others waiting."""
    try:
        callback(*args)
    except Exception:
        logger.exception("a waiter's callback failed")
