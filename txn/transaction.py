"""One transactional id's state as a value, and the values it can become next."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from txn.batches import Batch, Fence, Member
from txn.states import PREPARED, TransactionState, may_follow
from wire.types import NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

MAX_EPOCH = 2**15 - 1
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
"""A client never gets a higher epoch than this, so that its transaction can always be fenced by one more bump."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the record of a transactional id holds.

    ``previous_producer_id`` is the producer id before the last step, ``next_producer_id`` the one to go on with after
    an end that used up the epochs. ``client_version`` is the transaction version (0, 1, 2) of the one who made the last
    step; a fence counts as 0, so that nobody's retry can be mistaken for it. Times in ms since the epoch. ``batch`` is
    there for sinks only (``txn.batches``).
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
    batch: Batch | None = None

    @property
    def epoch_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for a client."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    @property
    def commits(self) -> bool:
        """Whether the fate is to commit (meaningful when prepared or complete)."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def _step(self, state: TransactionState, now_ms: int, **changes: object) -> Transaction:
        assert may_follow(self.state, state), f"{self.state.name} -> {state.name} is not in the table"
        return replace(
            self,
            state=state,
            previous_producer_id=self.producer_id,
            last_update_ms=now_ms,
            **changes,  # type: ignore[arg-type]
        )

    # ---- InitProducerId --------------------------------------------------------------------------------------------

    def with_bumped_epoch(self, timeout_ms: int, now_ms: int) -> Transaction:
        """The producer starts anew with the next epoch."""
        assert not self.epoch_exhausted
        return self._step(
            TransactionState.EMPTY,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            next_producer_id=NO_PRODUCER_ID,
        )

    def with_same_epoch(self, timeout_ms: int, now_ms: int) -> Transaction:
        """The answer to InitProducerId was lost: the same epoch again."""
        return self._step(
            TransactionState.EMPTY,
            now_ms,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            next_producer_id=NO_PRODUCER_ID,
        )

    def with_new_producer_id(self, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        """The epochs of the producer id are used up: a new id, from epoch 0."""
        return self._step(
            TransactionState.EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            next_producer_id=NO_PRODUCER_ID,
        )

    # ---- in the transaction ----------------------------------------------------------------------------------------

    def with_partitions(self, added: Iterable[TopicPartition], client_version: int, now_ms: int) -> Transaction:
        """Partitions join; the first one begins the transaction."""
        begins = self.state is not TransactionState.ONGOING
        return self._step(
            TransactionState.ONGOING,
            now_ms,
            partitions=self.partitions.union(added),
            start_ms=now_ms if begins else self.start_ms,
            client_version=client_version,
        )

    def with_batch(self, batch: Batch, now_ms: int) -> Transaction:
        """Members join; the first ones begin the transaction."""
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
        self, winners: AbstractSet[Member], fence: Fence | None, commit: bool, now_ms: int
    ) -> Transaction:
        """The driver ended the batch: the sink's epoch is bumped, the fence set, and the members' fates decided."""
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

    def with_fence(self, fence: Fence | None, now_ms: int) -> Transaction:
        """An operator set the fence of a sink that has nothing open; the present driver is locked out."""
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
        """The client ended it. From version 2 on the epoch is bumped at once: the markers carry the new one."""
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

    def fenced(self, now_ms: int) -> Transaction:
        """The coordinator aborts an open transaction and locks its producer out by one epoch."""
        assert self.state is TransactionState.ONGOING
        assert self.producer_epoch < MAX_EPOCH
        return self._step(
            TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            next_producer_id=NO_PRODUCER_ID,
            client_version=0,
        )

    def completed(self, now_ms: int) -> Transaction:
        """All markers are written. An end that used up the epochs goes on under the next producer id."""
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
        )
