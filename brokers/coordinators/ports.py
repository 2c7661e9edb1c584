"""What the coordinator runtime needs from the parts around it, as protocols.

The real ones are ``brokers.cluster.partition.Partition``, ``brokers.log.Log`` and the event loop; a simulation or a
test gives others. Naming only what is used keeps the runtime testable without a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from wire.errors import ErrorCode
from wire.types import TopicPartition


class Handle(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Forget the call."""
        ...


class LoopPort(Protocol):
    """The two calls of an event loop that the runtime uses."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Handle:
        """Call it in the next round of the loop."""
        ...

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Handle:
        """Call it after ``delay`` seconds."""
        ...


class SlicePort(Protocol):
    """A run of bytes in a segment file (``brokers.log`` FileSlice)."""

    def read(self) -> bytes:
        """The bytes."""
        ...

    def release(self) -> None:
        """The file may go."""
        ...


class ReadPort(Protocol):
    """What ``Log.read`` returns."""

    @property
    def slices(self) -> Sequence[SlicePort]:
        """The bytes, in order."""
        ...

    @property
    def next_offset(self) -> int:
        """Where the next read goes on."""
        ...


class LogPort(Protocol):
    """The part of ``brokers.log.Log`` that loading uses."""

    @property
    def log_start_offset(self) -> int:
        """The first offset kept."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        ...

    @property
    def high_watermark(self) -> int:
        """The first offset that is not known to be replicated."""
        ...

    def read(self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True) -> ReadPort:
        """Whole batches from ``offset`` on."""
        ...


class AppendPort(Protocol):
    """What an append returns (``brokers.log`` AppendInfo)."""

    @property
    def error(self) -> ErrorCode:
        """NONE if the batch is in the log."""
        ...

    @property
    def last_offset(self) -> int:
        """The offset of the batch's last record."""
        ...


class PartitionPort(Protocol):
    """A partition this broker leads (``brokers.cluster.partition.Partition``)."""

    @property
    def tp(self) -> TopicPartition:
        """Its name."""
        ...

    @property
    def leader_epoch(self) -> int:
        """The epoch this broker leads it in."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether the cluster's state names this broker, lease or no lease."""
        ...

    @property
    def log(self) -> LogPort:
        """Its log."""
        ...

    def append(
        self,
        records: Any,
        *,
        acks: int,
        origin: Any,
        verification_guard: Any = None,
        expected_leader_epoch: int | None = None,
        transaction_version: int = 0,
    ) -> AppendPort:
        """Append a batch as the leader."""
        ...

    def wait_for(self, offset: int, on_committed: Callable[[ErrorCode], None]) -> None:
        """Call back once the record at ``offset`` is below the high watermark, or can't get there."""
        ...

    def when_confirmed(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back with NONE, possibly at once, when this broker certainly led at some moment after this call."""
        ...


class Marker(NamedTuple):
    """One end-of-transaction marker, as WriteTxnMarkers brings it.

    ``run_remaining`` further ones of the same batch transaction follow it: on each partition they are appended as one.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0
    run_remaining: int = 0
