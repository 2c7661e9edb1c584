"""Batching of EnlistProducer: the tasks of one batch send it within milliseconds, and share one record.

While a sink's record is being replicated, further requests queue; the next command takes them together. A record has
all members that the batch has so far: enlisted one after the other, 10,000 would write 500 MB. So the next record of a
sink waits for as long as the last one takes at :data:`BYTES_PER_MS`; what is asked meanwhile is in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fleetlog.txn.commands import CommandFailed, Now, Result, Ticket
from fleetlog.txn.coordinator import Producer, TransactionShard
from fleetlog.txn.sinks import EnlistAnswer, enlist_members
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
    from fleetlog.brokers.coordinators.transactions.producer_ids import ProducerIdAllocator
    from fleetlog.brokers.timers import Timers

MAX_WAITING = 10_000
BYTES_PER_MS = 1_000
"""What the enlistments of one sink write at most: 1 MB in a second, however few members are asked for at a time."""

Answered = Callable[[EnlistAnswer], None]


class _Request(NamedTuple):
    producer: Producer
    members: int
    answered: Answered


class Enlisting:
    """One per transaction coordinator. Loop thread only."""

    def __init__(
        self, runtime: CoordinatorRuntime[TransactionShard], producer_ids: ProducerIdAllocator, timers: Timers
    ) -> None:
        self._runtime = runtime
        self._timers = timers
        self._producer_ids = producer_ids
        self._waiting: dict[str, list[_Request]] = {}
        self._busy: dict[str, None] = {}

    def enlist(self, sink_id: str, producer: Producer, count: int, answered: Answered) -> None:
        """Enlist ``count`` members of the sink's batch; ``answered`` is called once."""
        waiting = self._waiting.setdefault(sink_id, [])
        if len(waiting) >= MAX_WAITING:
            answered(EnlistAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        waiting.append(_Request(producer, count, answered))
        self._next(sink_id)

    def _next(self, sink_id: str) -> None:
        if sink_id in self._busy:
            return
        waiting = self._waiting.pop(sink_id, [])
        if not waiting:
            return
        self._busy[sink_id] = None
        # a separate command per driver: requests of a zombie's tasks must not fail the others
        producer = waiting[0].producer
        together = [request for request in waiting if request.producer == producer]
        others = [request for request in waiting if request.producer != producer]
        if others:
            self._waiting[sink_id] = others
        self._producer_ids.when_filled(lambda: self._submit(sink_id, producer, together))

    def _submit(self, sink_id: str, producer: Producer, together: list[_Request]) -> None:
        counts = [request.members for request in together]
        take = self._producer_ids.take
        written = 0

        def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
            nonlocal written
            result = enlist_members(shard, sink_id, producer, counts, take, now)
            if result.records:
                written = sum(len(record.value or b"") for record in result.records)
            return result

        def free() -> None:
            self._busy.pop(sink_id, None)
            self._next(sink_id)

        def done(response: object) -> None:
            if isinstance(response, list):
                answers = response
            else:
                error = response.error if isinstance(response, CommandFailed) else ErrorCode.UNKNOWN_SERVER_ERROR
                answers = [EnlistAnswer(error)] * len(together)
            for request, answer in zip(together, answers, strict=True):
                request.answered(answer)
            if written >= BYTES_PER_MS:
                self._timers.later(written // BYTES_PER_MS, free)
            else:
                free()

        self._runtime.submit(sink_id, command).on_done(done)
