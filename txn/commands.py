"""What a coordinator's pure state machine takes and returns; the runtime (brokers.coordinators) performs it.

A shard is the state of one partition of an internal topic. A command reads the shard and returns a :class:`Result`:
records to append, an answer, and effects. Rules both sides rely on:

1. State that survives a restart changes only in ``Shard.apply``, which the runtime calls for each record *after* the
   record is committed (below the high watermark), and at load, in log order. One code path, so a restarted shard
   cannot differ from a running one.
2. State that need not survive (members still joining, parked tickets) may change inside the command.
3. While records of a key wait for replication, the runtime holds back further commands of the *same key* (a group, a
   transactional id); other keys go on. So a command always sees its key's committed state.
4. The answer and the effects of a Result happen after its records are applied. If the append fails or the partition
   moves away, they don't happen: ``Result.failed`` is asked for an alternative, else the ticket gets the error code.
5. A shard never reads a clock or a random source: both come in through :class:`Now` or arguments.

Source of the shape: Kafka's coordinator runtime (KIP-848 design notes), redone as values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NewType, Protocol

from txn.batches import MemberMarker
from wire.errors import ErrorCode
from wire.types import TopicPartition

Ticket = NewType("Ticket", int)
"""Names one waiting request; the runtime makes it, the shard only stores it."""


class Now(NamedTuple):
    """The time a command runs at. ``wall_ms`` goes into records; ``mono_ms`` is for measuring."""

    wall_ms: int
    mono_ms: int


class CoordinatorRecord(NamedTuple):
    """One record for the shard's partition of the internal topic; ``value`` None is a tombstone."""

    key: bytes
    value: bytes | None


class _Deferred:
    """The response comes later, by an :class:`Answer` effect for the same ticket."""

    def __repr__(self) -> str:
        return "DEFERRED"


DEFERRED = _Deferred()


class Failed(NamedTuple):
    """A response that is nothing but an error code."""

    error: ErrorCode


class Answer(NamedTuple):
    """Effect: answer a ticket that was deferred. A ticket that is gone (timed out) is ignored."""

    ticket: Ticket
    response: Any


class Schedule(NamedTuple):
    """Effect: call ``Shard.on_timer(name, now)`` after ``delay_ms``. Replaces a pending timer of the same name."""

    name: str
    delay_ms: int


class Cancel(NamedTuple):
    """Effect: forget the timer of that name, if any."""

    name: str


class WriteMarkers(NamedTuple):
    """Effect (transaction coordinator only): write these markers at the partitions' leaders, until done.

    When every partition has its marker, the runtime submits ``Shard.on_markers_written(transactional_id,
    producer_id, producer_epoch, now)``. Partitions whose topic is gone count as done. ``members`` are those of a batch
    (``txn.batches``): then the markers are theirs, and producer id and epoch only name the sink's record.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    partitions: tuple[TopicPartition, ...]
    transaction_version: int = 0
    members: tuple[MemberMarker, ...] | None = None

    @property
    def markers(self) -> tuple[MemberMarker, ...]:
        """What every partition gets: one marker, or those of a batch's members, which become visible together."""
        if self.members is not None:
            return self.members
        return (MemberMarker(self.producer_id, self.producer_epoch, self.commit),)


Effect = Answer | Schedule | Cancel | WriteMarkers


@dataclass(slots=True)
class Result:
    """What a command wants to happen.

    ``producer`` marks the records as part of a transaction (TxnOffsetCommit): (producer id, producer epoch). They are
    appended as a transactional batch, and handed to ``apply`` at once with that producer; ``Shard.apply_marker`` says
    later how the transaction ended.
    """

    response: Any = None
    records: tuple[CoordinatorRecord, ...] = ()
    effects: tuple[Effect, ...] = ()
    producer: tuple[int, int] | None = None
    failed: Callable[[ErrorCode, Now], Result] | None = field(default=None, repr=False)


Command = Callable[[Any, Now, Ticket], Result]
"""``command(shard, now, ticket) -> Result``; submitted under a key, run on the loop thread."""


class Shard(Protocol):
    """One partition's worth of coordinator state. Pure; the runtime drives it."""

    def apply(self, record: CoordinatorRecord, producer: tuple[int, int] | None, now: Now) -> None:
        """Replay one committed record (or, with ``producer``, one record of an open transaction).

        Unknown record versions from a newer writer are skipped with a count, never guessed at.
        """
        ...

    def apply_marker(self, producer_id: int, producer_epoch: int, commit: bool, now: Now) -> Result | None:
        """A transaction marker was appended to this partition: make its pending records count, or drop them.

        At load only the state matters and a Result returned is ignored.
        """
        ...

    def loaded(self, now: Now) -> Result:
        """Called once, when the log up to the end seen at election is applied: arm timers, resume unfinished work."""
        ...

    def on_timer(self, name: str, now: Now) -> Result:
        """A scheduled timer is due."""
        ...

    def on_markers_written(self, transactional_id: str, producer_id: int, producer_epoch: int, now: Now) -> Result:
        """All markers of a :class:`WriteMarkers` effect are in their logs."""
        ...

    def timer_key(self, name: str) -> str:
        """The serialisation key a timer's command belongs to."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Gauges for the metrics endpoint (numbers of groups, members, open transactions)."""
        ...
