"""Commands and results of a coordinator's pure state machine; the runtime (brokers.coordinators) performs them.

A shard is the state of one partition of an internal topic. A command reads the shard and returns a :class:`Result`:
records to append, an answer, and effects. Both sides rely on these rules:

1. State that survives a restart changes only in ``Shard.apply``, which the runtime calls for each record *after* the
   record is committed (below the high watermark), and at load, in log order. One code path, so a restarted shard
   cannot differ from a running one.
2. State that need not survive (members still joining, waiting tickets) may change inside the command.
3. While records of a key wait for replication, the runtime delays further commands of the *same key* (a group, a
   transactional id); other keys continue. So a command always sees its key's committed state. Commands whose shard
   says that their records commute (``shard_host.Beside``) see it too, without waiting for each other.
4. The answer and the effects of a Result happen after its records are applied. If the append fails or the partition
   moves to another broker, they don't happen: ``Result.failed`` returns an alternative, else the ticket gets the error.
5. A shard never reads a clock or a random source: both come from :class:`Now` or arguments.

Source: Kafka's coordinator runtime (KIP-848 design notes), as values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NewType, Protocol

from fleetlog.txn.batches import MemberMarker
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

Ticket = NewType("Ticket", int)
"""The id of a waiting request; the runtime creates it, the shard only stores it."""


class Now(NamedTuple):
    """The time of a command. ``wall_ms`` is for records; ``mono_ms`` for durations."""

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


class CommandFailed(NamedTuple):
    """A response that is only an error code."""

    error: ErrorCode


class Answer(NamedTuple):
    """Effect: answer a deferred ticket. A ticket that has timed out is ignored."""

    ticket: Ticket
    response: Any


class Schedule(NamedTuple):
    """Effect: call ``Shard.on_timer(name, now)`` after ``delay_ms``. Replaces a pending timer of the same name."""

    name: str
    delay_ms: int


class Cancel(NamedTuple):
    """Effect: cancel the timer of that name, if any."""

    name: str


class WriteMarkers(NamedTuple):
    """Effect (transaction coordinator only): write these markers at the partitions' leaders, until done.

    When every partition has its marker, the runtime submits ``Shard.on_markers_written(transactional_id,
    producer_id, producer_epoch, now)``. Partitions of deleted topics count as done. ``members`` are those of a batch
    (``txn.batches``): then the markers are theirs, and producer id and epoch identify the sink's record.
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
        """The markers of every partition: one, or those of a batch's members, which become visible together."""
        if self.members is not None:
            return self.members
        return (MemberMarker(self.producer_id, self.producer_epoch, self.commit),)


Effect = Answer | Schedule | Cancel | WriteMarkers


@dataclass(slots=True)
class Result:
    """The decisions of a command.

    ``producer`` marks the records as part of a transaction (TxnOffsetCommit): (producer id, producer epoch). They are
    appended as a transactional batch and applied with that producer; ``Shard.apply_marker`` later ends the transaction.
    """

    response: Any = None
    records: tuple[CoordinatorRecord, ...] = ()
    effects: tuple[Effect, ...] = ()
    producer: tuple[int, int] | None = None
    failed: Callable[[ErrorCode, Now], Result] | None = field(default=None, repr=False)


Command = Callable[[Any, Now, Ticket], Result]
"""``command(shard, now, ticket) -> Result``; submitted under a key, run on the loop thread."""
METRIC_ROWS = 100
"""Groups or transactions that :meth:`Shard.metric_parts` looks at between two of its parts."""


class Shard(Protocol):
    """The coordinator state of one partition. Pure; the runtime calls it."""

    def apply(self, record: CoordinatorRecord, producer: tuple[int, int] | None, now: Now) -> None:
        """Apply one committed record (or, with ``producer``, one record of an open transaction).

        Unknown record versions of newer writers are counted and skipped.
        """

    def apply_marker(self, producer_id: int, producer_epoch: int, commit: bool, now: Now) -> Result | None:
        """Apply a transaction marker of this partition: commit or drop the transaction's pending records.

        At load only the state matters; a returned Result is ignored.
        """

    def loaded(self, now: Now) -> Result:
        """Called once, after the log is applied up to its end at election: set timers, resume unfinished work."""

    def on_timer(self, name: str, now: Now) -> Result:
        """Handle a due timer."""

    def on_markers_written(self, transactional_id: str, producer_id: int, producer_epoch: int, now: Now) -> Result:
        """Handle the completion of a :class:`WriteMarkers` effect."""

    def timer_key(self, name: str) -> str:
        """The key under which a timer's command is serialised."""

    def metric_parts(self) -> Iterator[Mapping[str, float]]:
        """Gauges for the metrics endpoint (numbers of groups, members, open transactions), which are to be added up.

        Each part stands for :data:`METRIC_ROWS` groups or transactions at most. The state may change between two.
        """
