"""The ports of the coordinator runtime.

Implemented by ``brokers.replication.partition.Partition``, ``brokers.log.Log`` and the event loop, or by a simulation
or test. They contain only what the runtime uses, so that it can be tested without a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from fleetlog.brokers.replication.serving import Serve
from fleetlog.brokers.timers import Handle
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition


class LoopPort(Protocol):
    """The call of an event loop that the runtime uses."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Handle:
        """Call it in the next iteration of the loop."""


class LogSlicePort(Protocol):
    """A run of bytes in a segment file (``brokers.log`` FileSlice)."""

    def read(self) -> bytes:
        """The bytes."""

    def release(self) -> None:
        """Release the file."""


class ReadPort(Protocol):
    """What ``Log.read`` returns."""

    @property
    def slices(self) -> Sequence[LogSlicePort]:
        """The bytes, in order."""

    @property
    def next_offset(self) -> int:
        """The offset of the next read."""


class ReaderPort(Protocol):
    """The part of ``brokers.log.read.LogReader`` that loading uses."""

    def read(self, offset: int, max_bytes: int, *, end_offset: int, min_one_batch: bool = True) -> ReadPort:
        """Whole batches from ``offset`` on."""


class LogPort(Protocol):
    """The part of ``brokers.log.Log`` that loading uses."""

    @property
    def log_start_offset(self) -> int:
        """The first offset kept."""

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""

    @property
    def high_watermark(self) -> int:
        """The first offset that is not known to be replicated."""

    @property
    def reader(self) -> ReaderPort:
        """What reads it."""


class AppendPort(Protocol):
    """What an append returns (``brokers.log`` AppendInfo)."""

    @property
    def error(self) -> ErrorCode:
        """NONE if the batch is in the log."""

    @property
    def last_offset(self) -> int:
        """The offset of the batch's last record."""


class PartitionPort(Protocol):
    """A partition this broker leads (``brokers.replication.partition.Partition``)."""

    @property
    def tp(self) -> TopicPartition:
        """The topic and partition."""

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of this broker's leadership."""

    @property
    def is_leader(self) -> bool:
        """Whether the partition's state names this broker as leader, with or without a valid lease."""

    @property
    def log(self) -> LogPort:
        """The partition's log."""

    def may_serve(self, kind: Serve) -> ErrorCode:
        """NONE, or the error that a request of this kind gets now."""

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

    def wait_for(self, offset: int, on_committed: Callable[[ErrorCode], None], *, gives_up: bool = False) -> None:
        """Call back once the record at ``offset`` is below the high watermark, or with an error.

        With ``gives_up`` also when the in-sync set has become too small.
        """

    def when_confirmed(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back with NONE, possibly immediately, once this broker certainly led at some time after this call."""


class TransactionMarker(NamedTuple):
    """One end-of-transaction marker of a WriteTxnMarkers request.

    ``run_remaining`` further markers of the same batch transaction follow; each partition appends them together.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0
    run_remaining: int = 0
