"""The transaction coordinator of one partition of ``__transaction_state``: commands in, Results out.

Every command decides on the committed record of its transactional id (the runtime runs one command of an id at a time).
It either returns an error code or the record of the next state. ``txn.states`` has the allowed steps; this module
decides which requests are allowed.

Source: KIP-98, KIP-360 (recovery by epoch bump), KIP-588, KIP-664 (list, describe), KIP-890 (verification, and an
epoch for every transaction), KIP-1228.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fleetlog.txn.commands import METRIC_ROWS, Cancel, CoordinatorRecord, Effect, Now, Result, Schedule, WriteMarkers
from fleetlog.txn.records import (
    RecordError,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
)
from fleetlog.txn.states import ENDED, PREPARED, TransactionState
from fleetlog.txn.transaction import LAST_CLIENT_EPOCH, Transaction, member_refusal
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

__all__ = [
    "AddPartitionsAnswer",
    "End",
    "EndAnswer",
    "FreshProducerId",
    "InitAnswer",
    "ListedTransaction",
    "Producer",
    "TransactionSettings",
    "TransactionShard",
    "VerifyAnswer",
]

FreshProducerId = Callable[[], int | None]
"""Returns an unused producer id, or None if none is available now."""

_TIMEOUT, _COMPLETE, _EXPIRE, _SWEEP = "timeout/", "complete/", "expire/", "sweep"
RETRY_MS = 1_000
EXPIRED_PER_SWEEP = 500
"""The most ids that one sweep expires, because it must not flood the log; with more the next sweep follows at once."""


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The coordinator's part of the broker's configuration, all times in ms."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 7 * 24 * 3_600_000
    sweep_ms: int = 3_600_000
    abort_interval_ms: int = 1
    value_version: int = 1
    last_epoch: int = LAST_CLIENT_EPOCH
    """The last epoch before a new producer id. Tests use a small one."""


class InitAnswer(NamedTuple):
    """InitProducerId's outcome."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class AddPartitionsAnswer(NamedTuple):
    """One outcome for all partitions: either all are added or none."""

    error: ErrorCode


class Producer(NamedTuple):
    """The producer id and epoch of a request."""

    producer_id: int
    epoch: int


class VerifyAnswer(NamedTuple):
    """One outcome per partition."""

    errors: Mapping[TopicPartition, ErrorCode]


class EndAnswer(NamedTuple):
    """EndTxn's outcome; from version 2 on with the producer id and epoch of the next transaction."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class End(NamedTuple):
    """The request of EndTxn; ``client_version`` is its transaction version (EndTxn v5: 2, before: 0)."""

    commit: bool
    client_version: int


class ListedTransaction(NamedTuple):
    """One line of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: TransactionState


class TransactionShard:
    """Implements ``txn.commands.Shard``."""

    def __init__(self, partition: int, settings: TransactionSettings) -> None:
        self.partition = partition
        self.settings = settings
        self.transactions: dict[str, Transaction] = {}
        self.skipped_records = 0

    # ---- InitProducerId --------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        fresh: FreshProducerId,
        now: Now,
    ) -> Result:
        """Assign (producer id, epoch) to the transactional id's producer, and fence all earlier ones.

        ``expected`` is the (producer id, epoch) of a producer that recovers by itself (KIP-360). An open transaction
        is aborted first; the client gets CONCURRENT_TRANSACTIONS and retries.
        """
        if not transactional_id:
            return Result(InitAnswer(ErrorCode.INVALID_REQUEST))
        if not 0 < timeout_ms <= self.settings.max_timeout_ms:
            return Result(InitAnswer(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
        t = self.transactions.get(transactional_id)
        if t is None:
            return self._init_new(transactional_id, timeout_ms, fresh, now)
        if t.batch is not None:
            return Result(InitAnswer(ErrorCode.INVALID_REQUEST))  # a sink's id: its batches start with BeginBatch
        if t.state in PREPARED:
            return Result(InitAnswer(ErrorCode.CONCURRENT_TRANSACTIONS))
        if expected is not None and not self._may_recover(t, expected):
            return Result(InitAnswer(ErrorCode.PRODUCER_FENCED))
        before = NO_PRODUCER_EPOCH if expected is None else expected[1]
        if t.state is TransactionState.ONGOING:
            answer = InitAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
            return self.fence(transactional_id, t, now, answer, epoch_before=before)
        retried = expected is not None and expected != (t.producer_id, t.producer_epoch)
        if retried and (t.state is TransactionState.EMPTY or t.client_version >= 2):
            return self._initialised(transactional_id, t.with_same_epoch(timeout_ms, now.wall_ms, before))
        if not self.exhausted(t):
            return self._initialised(transactional_id, t.with_bumped_epoch(timeout_ms, now.wall_ms, before))
        producer_id = fresh()
        if producer_id is None:
            return Result(InitAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        after = t.with_new_producer_id(producer_id, timeout_ms, now.wall_ms, before)
        return self._initialised(transactional_id, after)

    def _init_new(self, transactional_id: str, timeout_ms: int, fresh: FreshProducerId, now: Now) -> Result:
        producer_id = fresh()
        if producer_id is None:
            return Result(InitAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        new = Transaction(
            producer_id=producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            last_update_ms=now.wall_ms,
        )
        return self._initialised(transactional_id, new)

    def _may_recover(self, t: Transaction, expected: tuple[int, int]) -> bool:
        if expected == (t.producer_id, t.producer_epoch):
            return True
        if t.state not in ENDED:
            return False  # a newer producer is active; Kafka would abort its transaction before this check
        producer_id, epoch = expected
        # A retry after a lost answer (of an epoch bump, or of the step to a new producer id), or after the abort of the
        # producer's own open transaction.
        before = self._epoch_before(t)
        return epoch == before != NO_PRODUCER_EPOCH and producer_id in (t.producer_id, t.previous_producer_id)

    def _epoch_before(self, t: Transaction) -> int:
        """The epoch from which the producer itself came to the present one; -1 if it did not."""
        if t.client_version >= 2 and t.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            return self.settings.last_epoch if t.producer_epoch == 0 else t.producer_epoch - 1
        return t.epoch_before

    def _initialised(self, transactional_id: str, after: Transaction) -> Result:
        return Result(
            InitAnswer(ErrorCode.NONE, after.producer_id, after.producer_epoch),
            records=(self.record(transactional_id, after),),
        )

    # ---- partitions ------------------------------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        client_version: int,
        now: Now,
    ) -> Result:
        """Add partitions to the transaction, for the producer or (version 2) for a partition's leader."""
        refused = self._refuse_producer(transactional_id, producer)
        if refused is not ErrorCode.NONE:
            return Result(AddPartitionsAnswer(refused))
        t = self.transactions[transactional_id]
        added = frozenset(partitions)
        open_already = t.state is TransactionState.ONGOING
        if open_already and added <= t.partitions:
            return Result(AddPartitionsAnswer(ErrorCode.NONE))
        after = t.with_partitions(added, client_version, now.wall_ms)
        effects: tuple[Effect, ...] = ()
        if not open_already:
            effects = (self.abort_later(transactional_id, t.timeout_ms, now),)
        return Result(
            AddPartitionsAnswer(ErrorCode.NONE),
            records=(self.record(transactional_id, after),),
            effects=effects,
        )

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> Result:
        """Check for a leader whether these partitions are in the open transaction (KIP-890, part 1). Read-only."""
        asked = list(partitions)
        refused = self._refuse_producer(transactional_id, producer)
        if refused is not ErrorCode.NONE:
            return Result(VerifyAnswer(dict.fromkeys(asked, refused)))
        known = self.transactions[transactional_id].partitions
        return Result(
            VerifyAnswer({tp: ErrorCode.NONE if tp in known else ErrorCode.TRANSACTION_ABORTABLE for tp in asked})
        )

    def _refuse_producer(self, transactional_id: str, producer: Producer) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        t = self.transactions.get(transactional_id)
        if t is not None and t.batch is not None:
            return member_refusal(t, producer)
        if t is not None and t.state in PREPARED:
            # Before any comparison: the producer may already have its next epoch or producer id.
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if t is None or t.producer_id != producer.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if t.producer_epoch != producer.epoch or producer.epoch > LAST_CLIENT_EPOCH:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    def exhausted(self, t: Transaction) -> bool:
        """Whether the producer id has no epoch left for a client."""
        return t.producer_epoch >= self.settings.last_epoch

    # ---- the end ---------------------------------------------------------------------------------------------------

    def end_transaction(
        self, transactional_id: str, producer: Producer, end: End, fresh: FreshProducerId, now: Now
    ) -> Result:
        """Commit or abort. Version 2 (EndTxn v5) bumps the epoch and answers with the next one."""
        if not transactional_id:
            return Result(EndAnswer(ErrorCode.INVALID_REQUEST))
        t = self.transactions.get(transactional_id)
        if t is None:
            return Result(EndAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        if t.batch is not None:
            return Result(EndAnswer(ErrorCode.INVALID_TXN_STATE))  # a member ends with its batch only
        if not 0 <= producer.epoch <= LAST_CLIENT_EPOCH:
            return Result(EndAnswer(ErrorCode.PRODUCER_FENCED))  # no producer ever gets such an epoch
        bumps = end.client_version >= 2
        error: ErrorCode | None
        if bumps and self._was_timed_out(t, producer):
            if not end.commit and t.state not in PREPARED and t.producer_epoch > self.settings.last_epoch:
                return self._continued_in_a_new_id(transactional_id, t, fresh, now)
            error = ErrorCode.PRODUCER_FENCED
            if not end.commit:
                error = ErrorCode.CONCURRENT_TRANSACTIONS if t.state in PREPARED else ErrorCode.NONE
        elif bumps and not end.commit and self._has_continued(t, producer):
            error = ErrorCode.NONE
        else:
            error = (self._end_with_bump if bumps else self._end_without_bump)(t, producer, end.commit)
        if error is None:
            return self._prepare(transactional_id, t, end, fresh, now)
        if error is ErrorCode.NONE and bumps:
            return Result(EndAnswer(error, t.producer_id, t.producer_epoch))
        return Result(EndAnswer(error))

    def _was_timed_out(self, t: Transaction, producer: Producer) -> bool:
        """Whether the timeout aborted the producer's transaction, without another producer since.

        As in Kafka such a producer of version 2 cannot commit (PRODUCER_FENCED, because clients end at
        INVALID_TXN_STATE), but gets its next epoch from an abort and continues.
        Records of version 0 have no field for it: a coordinator loaded from them fences the producer.
        """
        return t.timed_out and (producer.producer_id, producer.epoch + 1) == (t.producer_id, t.producer_epoch)

    def _continued_in_a_new_id(self, transactional_id: str, t: Transaction, fresh: FreshProducerId, now: Now) -> Result:
        """The abort of a producer whose last epoch timed out: it continues with a new producer id (KAFKA-20090)."""
        producer_id = fresh()
        if producer_id is None:
            return Result(EndAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        after = t.with_new_producer_id(producer_id, t.timeout_ms, now.wall_ms, self.settings.last_epoch)
        return Result(
            EndAnswer(ErrorCode.NONE, after.producer_id, after.producer_epoch),
            records=(self.record(transactional_id, after),),
        )

    @staticmethod
    def _has_continued(t: Transaction, producer: Producer) -> bool:
        """Whether the producer got a new producer id, and may have missed the answer."""
        changed = t.state is TransactionState.EMPTY and t.producer_id != t.previous_producer_id
        return changed and producer == (t.previous_producer_id, t.epoch_before)

    @staticmethod
    def _end_without_bump(t: Transaction, producer: Producer, commit: bool) -> ErrorCode | None:
        """Versions 0 and 1: the epoch stays, so a retry equals a late request. None: proceed."""
        if t.producer_id != producer.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if t.producer_epoch != producer.epoch:
            return ErrorCode.PRODUCER_FENCED
        if t.state is TransactionState.ONGOING:
            return None
        if t.state is TransactionState.EMPTY or t.commits is not commit:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.CONCURRENT_TRANSACTIONS if t.state in PREPARED else ErrorCode.NONE

    def _is_retried_end(self, t: Transaction, producer: Producer) -> bool:
        """Whether this producer was the present one before the last end.

        Kafka accepts any bump by one as a retry's; here it must come from a version 2 end (a fence or an old client's
        end is recorded as version 0), otherwise a fenced producer could get the answer that it has committed.
        """
        ended_by_bump = t.client_version >= 2 and t.state not in (TransactionState.EMPTY, TransactionState.ONGOING)
        return ended_by_bump and producer in (
            (t.producer_id, t.producer_epoch - 1),
            (t.previous_producer_id, self.settings.last_epoch if t.producer_epoch == 0 else NO_PRODUCER_EPOCH),
        )

    def _end_with_bump(self, t: Transaction, producer: Producer, commit: bool) -> ErrorCode | None:
        """Version 2: the present epoch ends the present transaction, the previous epoch is a retry. None: proceed.

        While an end is being written all other requests get CONCURRENT_TRANSACTIONS: the producer already has its next
        epoch.
        """
        retry = self._is_retried_end(t, producer)
        if retry and t.commits is not commit:
            return ErrorCode.PRODUCER_FENCED if commit else ErrorCode.INVALID_TXN_STATE
        if t.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if retry:
            return ErrorCode.NONE
        if t.producer_id != producer.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if t.producer_epoch != producer.epoch:
            return ErrorCode.PRODUCER_FENCED
        if t.state is not TransactionState.ONGOING and commit:
            return ErrorCode.INVALID_TXN_STATE
        return None

    def _prepare(self, transactional_id: str, t: Transaction, end: End, fresh: FreshProducerId, now: Now) -> Result:
        next_producer_id = NO_PRODUCER_ID
        bumps = end.client_version >= 2
        if bumps and self.exhausted(t):
            taken = fresh()
            if taken is None:
                return Result(EndAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            next_producer_id = taken
        after = t.prepared(
            commit=end.commit, client_version=end.client_version, next_producer_id=next_producer_id, now_ms=now.wall_ms
        )
        answer = EndAnswer(ErrorCode.NONE)
        if bumps:
            completed = after.completed(now.wall_ms)
            answer = EndAnswer(ErrorCode.NONE, completed.producer_id, completed.producer_epoch)
        return Result(
            answer,
            records=(self.record(transactional_id, after),),
            effects=(Cancel(_TIMEOUT + transactional_id), self.markers(transactional_id, after)),
        )

    def fence(
        self,
        transactional_id: str,
        t: Transaction,
        now: Now,
        answer: object | None,
        epoch_before: int = NO_PRODUCER_EPOCH,
    ) -> Result:
        """Abort an open transaction by the coordinator itself; ``answer`` None: by its timeout."""
        after = t.fenced(now.wall_ms, timed_out=answer is None, epoch_before=epoch_before)
        again = Result(effects=(Schedule(_TIMEOUT + transactional_id, RETRY_MS),))
        return Result(
            answer,
            records=(self.record(transactional_id, after),),
            effects=(Cancel(_TIMEOUT + transactional_id), self.markers(transactional_id, after)),
            failed=(lambda error, now: again) if answer is None else None,
        )

    def on_markers_written(self, transactional_id: str, producer_id: int, producer_epoch: int, now: Now) -> Result:
        """Complete the transaction after its last marker, unless it is completed already."""
        t = self.transactions.get(transactional_id)
        if t is None or t.state not in PREPARED or (t.producer_id, t.producer_epoch) != (producer_id, producer_epoch):
            return Result()
        return self._complete(transactional_id, t, now)

    def _complete(self, transactional_id: str, t: Transaction, now: Now) -> Result:
        return Result(
            records=(self.record(transactional_id, t.completed(now.wall_ms)),),
            # The markers are written; only the completion's record is missing.
            failed=lambda error, now: Result(effects=(Schedule(_COMPLETE + transactional_id, RETRY_MS),)),
        )

    @staticmethod
    def markers(transactional_id: str, t: Transaction) -> WriteMarkers:
        """The effect for the transaction's markers; the sender sets ``coordinator_epoch`` (the load's leader epoch)."""
        return WriteMarkers(
            transactional_id=transactional_id,
            producer_id=t.producer_id,
            producer_epoch=t.producer_epoch,
            commit=t.commits,
            coordinator_epoch=-1,
            partitions=tuple(sorted(t.partitions)),
            transaction_version=t.client_version if t.batch is None else 2,
            members=None if t.batch is None else t.batch.markers(),
        )

    # ---- timers ----------------------------------------------------------------------------------------------------

    def on_timer(self, name: str, now: Now) -> Result:
        """Handle a transaction timeout, the expiry of an id, or the retry of a completion."""
        if name == _SWEEP:
            return self._sweep(now)
        transactional_id = self.timer_key(name)
        t = self.transactions.get(transactional_id)
        if t is None:
            return Result()
        if name.startswith(_TIMEOUT) and t.state is TransactionState.ONGOING:
            return self.fence(transactional_id, t, now, None)
        if name.startswith(_COMPLETE) and t.state in PREPARED:
            return self._complete(transactional_id, t, now)
        if name.startswith(_EXPIRE) and self._expired(t, now):
            return Result(records=(CoordinatorRecord(encode_transaction_key(transactional_id), None),))
        return Result()

    @staticmethod
    def timeout_timer(transactional_id: str) -> str:
        """The name of the timer that aborts the id's open transaction."""
        return _TIMEOUT + transactional_id

    def abort_later(self, transactional_id: str, left_ms: int, now: Now) -> Schedule:
        """Abort the id's open transaction at the first look after its time has run out.

        As Kafka, which looks once in each ``transaction.abort.timed.out.transaction.cleanup.interval.ms``.
        """
        rest_ms = -(now.mono_ms + left_ms) % self.settings.abort_interval_ms
        return Schedule(_TIMEOUT + transactional_id, left_ms + rest_ms)

    def timer_key(self, name: str) -> str:
        """The transactional id in a timer's name (empty for the sweep)."""
        return name.partition("/")[2]

    def _expired(self, t: Transaction, now: Now) -> bool:
        return t.batch is None and t.state in ENDED and t.last_update_ms + self.settings.id_expiration_ms <= now.wall_ms

    def _sweep(self, now: Now) -> Result:
        expired: list[Effect] = []
        for transactional_id, t in self.transactions.items():
            if self._expired(t, now):
                expired.append(Schedule(_EXPIRE + transactional_id, 0))
                if len(expired) >= EXPIRED_PER_SWEEP:
                    break
        again_ms = self.settings.sweep_ms if len(expired) < EXPIRED_PER_SWEEP else RETRY_MS
        return Result(effects=(*expired, Schedule(_SWEEP, again_ms)))

    # ---- the log ---------------------------------------------------------------------------------------------------

    def record(self, transactional_id: str, t: Transaction) -> CoordinatorRecord:
        """The id's record for that state."""
        return CoordinatorRecord(
            encode_transaction_key(transactional_id), encode_transaction(t, self.settings.value_version)
        )

    def apply(self, record: CoordinatorRecord, producer: tuple[int, int] | None, now: Now) -> None:
        """Apply one committed record. Raises RecordError for bytes that are no record of this topic."""
        transactional_id = decode_transaction_key(record.key)
        if transactional_id is None:
            self.skipped_records += 1
            return
        if record.value is None:
            self.transactions.pop(transactional_id, None)
            return
        t = decode_transaction(record.value)
        if t is None:
            self.skipped_records += 1
            return
        if t.state in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
            raise RecordError(f"unexpected transaction state {t.state.label}, which is never written")
        self.transactions[transactional_id] = t

    def apply_marker(self, producer_id: int, producer_epoch: int, commit: bool, now: Now) -> Result | None:
        """No effect: no transaction writes to this topic."""
        return None

    def loaded(self, now: Now) -> Result:
        """Resume the previous coordinator's work: markers of prepared transactions, timeouts of open ones."""
        effects: list[Effect] = [Schedule(_SWEEP, min(self.settings.sweep_ms, 60_000))]
        for transactional_id, t in self.transactions.items():
            if t.state in PREPARED:
                effects.append(self.markers(transactional_id, t))
            elif t.state is TransactionState.ONGOING:
                # Heartbeats extend a batch but are not logged: it gets its whole timeout again.
                left_ms = t.timeout_ms if t.batch is not None else t.start_ms + t.timeout_ms - now.wall_ms
                # The wall clock may have jumped: never wait longer than the timeout itself.
                effects.append(self.abort_later(transactional_id, min(max(left_ms, 0), t.timeout_ms), now))
        return Result(effects=tuple(effects))

    # ---- inspection ------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction | None:
        """The committed state of one id."""
        return self.transactions.get(transactional_id)

    def list_transactions(
        self,
        now: Now,
        states: frozenset[TransactionState] = frozenset(),
        producer_ids: frozenset[int] = frozenset(),
        longer_than_ms: int = -1,
        matches: Callable[[str], bool] | None = None,
    ) -> Iterator[ListedTransaction | None]:
        """All ids that pass the filters (an empty filter passes all); ``longer_than_ms`` selects open ones only.

        ``matches`` is asked last. None stands for each id that does not pass: there is one item for each.
        """
        for transactional_id, t in list(self.transactions.items()):
            passes = (
                (not states or t.state in states)
                and (not producer_ids or t.producer_id in producer_ids)
                and not (longer_than_ms >= 0 and (t.start_ms < 0 or now.wall_ms - t.start_ms <= longer_than_ms))
                and (matches is None or matches(transactional_id))
            )
            yield ListedTransaction(transactional_id, t.producer_id, t.state) if passes else None

    def metric_parts(self) -> Iterator[Mapping[str, float]]:
        """Numbers of ids, of these sinks, open transactions, of these sinks' batches, and of transactions whose markers
        are being written, to be added up.
        """
        every = list(self.transactions.values())
        yield {
            "transactional_ids": float(len(every)), "transactions_open": 0.0, "transactions_ending": 0.0,
            "sinks": 0.0, "sink_batches_open": 0.0,
            "transaction_records_skipped": float(self.skipped_records),
        }  # fmt: skip
        for begin in range(0, len(every), METRIC_ROWS):
            some = every[begin : begin + METRIC_ROWS]
            states = [one.state for one in some]
            sinks = [one.state for one in some if one.batch is not None]
            yield {
                "transactions_open": float(states.count(TransactionState.ONGOING)),
                "transactions_ending": float(sum(state in PREPARED for state in states)),
                "sinks": float(len(sinks)),
                "sink_batches_open": float(sinks.count(TransactionState.ONGOING)),
            }
