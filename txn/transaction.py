"""One transactional id's state as a value, and its transitions."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from fleetlog.txn.batches import BatchFence, BatchMember, SinkBatch
from fleetlog.txn.states import PREPARED, TransactionState, may_follow
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

MAX_EPOCH = 2**15 - 1
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
"""The highest epoch of a client, so that its transaction can always be fenced by one more bump."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The content of a transactional id's record.

    ``previous_producer_id`` is the producer id before the last step, ``next_producer_id`` the one after an end that
    used the last epoch. ``client_version`` is the transaction version (0, 1, 2) of the last step's client; a fence
    counts as 0, so that it is never taken for a retry. Times in ms since the epoch. ``batch`` is for sinks only
    (``txn.batches``). ``timed_out``: the timeout aborted the transaction; any other step resets it. ``epoch_before``:
    the epoch that the producer itself named in the request that gave it the present one (InitProducerId, or the abort
    of a transaction that timed out in the last epoch), for a retry after a lost answer; -1 if it named none, or has
    used its new epoch since.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    last_update_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    batch: SinkBatch | None = None
    timed_out: bool = False
    epoch_before: int = NO_PRODUCER_EPOCH

    @property
    def epoch_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for a client."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    @property
    def commits(self) -> bool:
        """Whether the outcome is a commit (for prepared and complete states)."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def _step(self, state: TransactionState, now_ms: int, **changes: object) -> Transaction:
        assert may_follow(self.state, state), f"{self.state.name} -> {state.name} is not in the table"
        reset: dict[str, object] = {
            "previous_producer_id": self.producer_id,
            "timed_out": False,
            "epoch_before": NO_PRODUCER_EPOCH,
        }
        return replace(self, state=state, last_update_ms=now_ms, **reset | changes)  # type: ignore[arg-type]

    # ---- InitProducerId --------------------------------------------------------------------------------------------

    def with_bumped_epoch(self, timeout_ms: int, now_ms: int, epoch_before: int = NO_PRODUCER_EPOCH) -> Transaction:
        """Restart the producer with the next epoch."""
        assert not self.epoch_exhausted
        return self._step(
            TransactionState.EMPTY,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            next_producer_id=NO_PRODUCER_ID,
            epoch_before=epoch_before,
        )

    def with_same_epoch(self, timeout_ms: int, now_ms: int, epoch_before: int) -> Transaction:
        """Keep the producer id and the epoch, for a retry of InitProducerId after a lost answer, and for the next."""
        return self._step(
            TransactionState.EMPTY,
            now_ms,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            next_producer_id=NO_PRODUCER_ID,
            previous_producer_id=self.previous_producer_id,
            epoch_before=epoch_before,
        )

    def with_new_producer_id(
        self, producer_id: int, timeout_ms: int, now_ms: int, epoch_before: int = NO_PRODUCER_EPOCH
    ) -> Transaction:
        """Use a new producer id from epoch 0: the epochs of the present one are used up."""
        return self._step(
            TransactionState.EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            next_producer_id=NO_PRODUCER_ID,
            epoch_before=epoch_before,
        )

    # ---- in the transaction ----------------------------------------------------------------------------------------

    def with_partitions(self, added: Iterable[TopicPartition], client_version: int, now_ms: int) -> Transaction:
        """Add partitions; the first one starts the transaction."""
        begins = self.state is not TransactionState.ONGOING
        return self._step(
            TransactionState.ONGOING,
            now_ms,
            partitions=self.partitions.union(added),
            start_ms=now_ms if begins else self.start_ms,
            client_version=client_version,
        )

    def with_batch(self, batch: SinkBatch, now_ms: int) -> Transaction:
        """Set the batch with new members; the first ones start the transaction."""
        begins = self.state is not TransactionState.ONGOING
        return self._step(
            TransactionState.ONGOING,
            now_ms,
            batch=batch,
            start_ms=now_ms if begins else self.start_ms,
            client_version=2,
        )

    # ---- the end ---------------------------------------------------------------------------------------------------

    def prepared_batch(
        self, winners: AbstractSet[BatchMember], fence: BatchFence | None, commit: bool, now_ms: int
    ) -> Transaction:
        """End the batch: bump the sink's epoch, set the fence, decide the members' outcomes."""
        assert self.batch is not None
        assert self.producer_epoch < MAX_EPOCH
        return self._step(
            TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            client_version=2,
            batch=self.batch.ended(winners, fence),
        )

    def with_fence(self, fence: BatchFence | None, now_ms: int) -> Transaction:
        """Set the fence of a sink without an open batch, for an operator; fences the present driver."""
        assert self.batch is not None
        assert not self.epoch_exhausted
        return self._step(
            TransactionState.EMPTY,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            batch=replace(self.batch, fence=fence),
        )

    def prepared(self, *, commit: bool, client_version: int, next_producer_id: int, now_ms: int) -> Transaction:
        """End the transaction for its client. From version 2 on this bumps the epoch; the markers have the new one."""
        bumps = client_version >= 2
        assert not bumps or self.producer_epoch < MAX_EPOCH
        return self._step(
            TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=self.producer_epoch + bumps,
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            next_producer_id=next_producer_id,
            client_version=client_version,
        )

    def fenced(self, now_ms: int, *, timed_out: bool = False, epoch_before: int = NO_PRODUCER_EPOCH) -> Transaction:
        """Abort an open transaction by the coordinator, and fence its producer with an epoch bump.

        ``epoch_before``: it is the producer itself that asks, and it will come again with this epoch.
        """
        assert self.state is TransactionState.ONGOING
        assert self.producer_epoch < MAX_EPOCH
        return self._step(
            TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            next_producer_id=NO_PRODUCER_ID,
            client_version=0,
            timed_out=timed_out,
            epoch_before=epoch_before,
        )

    def completed(self, now_ms: int) -> Transaction:
        """Complete after all markers. After the last epoch the next producer id takes over."""
        assert self.state in PREPARED
        rotates = self.next_producer_id != NO_PRODUCER_ID
        return self._step(
            TransactionState.COMPLETE_COMMIT if self.commits else TransactionState.COMPLETE_ABORT,
            now_ms,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            batch=None if self.batch is None else self.batch.released(),
            timed_out=self.timed_out,
            epoch_before=self.epoch_before,
        )


def member_refusal(t: Transaction, producer: tuple[int, int]) -> ErrorCode:
    """The error of this producer's writes to the sink's batch: only members of an open batch may write."""
    assert t.batch is not None
    member = BatchMember(*producer)
    if t.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS if member in t.batch.members else ErrorCode.PRODUCER_FENCED
    if t.state is TransactionState.ONGOING and member in t.batch.members:
        return ErrorCode.NONE
    return ErrorCode.PRODUCER_FENCED
