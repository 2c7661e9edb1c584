"""The transaction coordinator of one partition of ``__transaction_state``: commands in, Results out.

Every command answers from the committed record of its transactional id (the runtime runs one command of an id at a
time) and either refuses with an error code or returns the record of the next state. Which steps exist is in
``txn.states``; who may ask for which is here.

Source: KIP-98, KIP-360 (recovery by epoch bump), KIP-588, KIP-664 (list, describe), KIP-890 (verification, and an
epoch for every transaction), KIP-1228.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from txn.commands import Cancel, CoordinatorRecord, Effect, Now, Result, Schedule, WriteMarkers
from txn.patterns import Pattern
from txn.records import RecordError, decode_key, decode_value, encode_key, encode_value
from txn.sinks import BeginAnswer, member_refusal
from txn.states import ENDED, PREPARED, TransactionState
from txn.transaction import LAST_CLIENT_EPOCH, Transaction
from wire.errors import ErrorCode
from wire.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

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
"""A producer id nobody ever had, or None when none is at hand just now."""

_TIMEOUT, _COMPLETE, _EXPIRE, _SWEEP = "timeout/", "complete/", "expire/", "sweep"
RETRY_MS = 1_000
EXPIRED_PER_SWEEP = 500
"""Ids forgotten in one go: a sweep must not flood the log. The next one follows at once while there are more."""


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The coordinator's part of the broker's configuration, all times in ms."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 7 * 24 * 3_600_000
    sweep_ms: int = 3_600_000
    value_version: int = 1


class InitAnswer(NamedTuple):
    """InitProducerId's outcome."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class AddPartitionsAnswer(NamedTuple):
    """One outcome for all partitions asked for: either all joined or none."""

    error: ErrorCode


class Producer(NamedTuple):
    """Who a client says it is."""

    producer_id: int
    epoch: int


class VerifyAnswer(NamedTuple):
    """An outcome for each partition asked about."""

    errors: Mapping[TopicPartition, ErrorCode]


class EndAnswer(NamedTuple):
    """EndTxn's outcome; from version 2 on with the producer id and epoch of the next transaction."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class End(NamedTuple):
    """What EndTxn asks for; ``client_version`` is the transaction version its request speaks (v5: 2, before: 0)."""

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
        # Epochs before the last InitProducerId, known only to the process that did it (Kafka's record has no room
        # for them): id -> (producer id, producer epoch, the epoch before). Counts only while the first two match.
        self._epochs_before: dict[str, tuple[int, int, int]] = {}

    # ---- InitProducerId --------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        fresh: FreshProducerId,
        now: Now,
    ) -> Result:
        """Give the id's producer its (id, epoch), locking out all before it.

        ``expected`` is the (producer id, epoch) of a producer that recovers by itself (KIP-360). An open transaction
        is aborted first; the client is told CONCURRENT_TRANSACTIONS and asks again.
        """
        if not transactional_id:
            return Result(InitAnswer(ErrorCode.INVALID_REQUEST))
        if not 0 < timeout_ms <= self.settings.max_timeout_ms:
            return Result(InitAnswer(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
        t = self.transactions.get(transactional_id)
        if t is None:
            return self._init_new(transactional_id, timeout_ms, fresh, now)
        if t.batch is not None:
            return Result(InitAnswer(ErrorCode.INVALID_REQUEST))  # a sink's id: its batches begin with BeginBatch
        if t.state in PREPARED:
            return Result(InitAnswer(ErrorCode.CONCURRENT_TRANSACTIONS))
        if expected is not None and not self._may_recover(transactional_id, t, expected):
            return Result(InitAnswer(ErrorCode.PRODUCER_FENCED))
        if t.state is TransactionState.ONGOING:
            return self.fence(transactional_id, t, now, InitAnswer(ErrorCode.CONCURRENT_TRANSACTIONS))
        if expected is not None and expected != (t.producer_id, t.producer_epoch):
            return self._initialised(transactional_id, t.with_same_epoch(timeout_ms, now.wall_ms), expected[1])
        before = NO_PRODUCER_EPOCH if expected is None else expected[1]
        if not t.epoch_exhausted:
            return self._initialised(transactional_id, t.with_bumped_epoch(timeout_ms, now.wall_ms), before)
        producer_id = fresh()
        if producer_id is None:
            return Result(InitAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        return self._initialised(transactional_id, t.with_new_producer_id(producer_id, timeout_ms, now.wall_ms), before)

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
        return self._initialised(transactional_id, new, NO_PRODUCER_EPOCH)

    def _may_recover(self, transactional_id: str, t: Transaction, expected: tuple[int, int]) -> bool:
        if expected == (t.producer_id, t.producer_epoch):
            return True
        if t.state not in ENDED:
            return False  # a newer producer is at work; Kafka would abort its transaction before noticing
        producer_id, epoch = expected
        before = self._epoch_before(transactional_id, t)
        if before == NO_PRODUCER_EPOCH or epoch != before:
            return False
        # A retry whose answer was lost: of an epoch bump, or of the step to a new producer id.
        return producer_id == t.producer_id or (producer_id == t.previous_producer_id and epoch >= LAST_CLIENT_EPOCH)

    def _epoch_before(self, transactional_id: str, t: Transaction) -> int:
        """The epoch the present one was bumped from by its own producer; -1 if it was not, or nobody knows."""
        if t.client_version >= 2 and t.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            return LAST_CLIENT_EPOCH if t.producer_epoch == 0 else t.producer_epoch - 1
        producer_id, epoch, before = self._epochs_before.get(transactional_id, (NO_PRODUCER_ID, 0, NO_PRODUCER_EPOCH))
        return before if (producer_id, epoch) == (t.producer_id, t.producer_epoch) else NO_PRODUCER_EPOCH

    def _initialised(self, transactional_id: str, after: Transaction, before: int) -> Result:
        # Noted before the append: should it fail, the note names an epoch that does not come to be, and counts nothing.
        if before == NO_PRODUCER_EPOCH:
            self._epochs_before.pop(transactional_id, None)
        else:
            self._epochs_before[transactional_id] = (after.producer_id, after.producer_epoch, before)
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
        """The producer (or, for version 2, a partition's leader in its name) is about to write to these partitions."""
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
            effects = (Schedule(_TIMEOUT + transactional_id, t.timeout_ms),)
        return Result(
            AddPartitionsAnswer(ErrorCode.NONE),
            records=(self.record(transactional_id, after),),
            effects=effects,
        )

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> Result:
        """A leader asks whether these partitions are in the open transaction (KIP-890, part 1). Changes nothing."""
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
        if t is None or t.producer_id != producer.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if t.producer_epoch != producer.epoch or producer.epoch > LAST_CLIENT_EPOCH:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if t.state in PREPARED else ErrorCode.NONE

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
            return Result(EndAnswer(ErrorCode.PRODUCER_FENCED))  # nobody was ever given such an epoch
        bumps = end.client_version >= 2
        error = (self._end_with_bump if bumps else self._end_without_bump)(t, producer, end.commit)
        if error is None:
            return self._prepare(transactional_id, t, end, fresh, now)
        if error is ErrorCode.NONE and bumps:
            return Result(EndAnswer(error, t.producer_id, t.producer_epoch))
        return Result(EndAnswer(error))

    @staticmethod
    def _end_without_bump(t: Transaction, producer: Producer, commit: bool) -> ErrorCode | None:
        """Version 0 and 1: the epoch stays, so a retry and a late request look alike. None: go on."""
        if t.producer_id != producer.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if t.producer_epoch != producer.epoch:
            return ErrorCode.PRODUCER_FENCED
        if t.state is TransactionState.ONGOING:
            return None
        if t.state is TransactionState.EMPTY or t.commits is not commit:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.CONCURRENT_TRANSACTIONS if t.state in PREPARED else ErrorCode.NONE

    @staticmethod
    def _end_with_bump(t: Transaction, producer: Producer, commit: bool) -> ErrorCode | None:
        """Version 2: the present epoch ends the present transaction, the one before is a retry. None: go on.

        Kafka takes any bump of one for a retry's; here it must have been made by a version 2 end (a fence or an old
        client's end is recorded as version 0), or a fenced producer could be told that it had committed.
        """
        ended_by_bump = t.client_version >= 2 and t.state not in (TransactionState.EMPTY, TransactionState.ONGOING)
        retry = ended_by_bump and producer in (
            (t.producer_id, t.producer_epoch - 1),
            (t.previous_producer_id, LAST_CLIENT_EPOCH if t.producer_epoch == 0 else NO_PRODUCER_EPOCH),
        )
        if t.producer_id != producer.producer_id and not retry:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if not retry and (t.producer_epoch != producer.epoch or t.state in PREPARED):
            return ErrorCode.PRODUCER_FENCED
        if retry:
            if t.commits is not commit:
                return ErrorCode.INVALID_TXN_STATE
            return ErrorCode.CONCURRENT_TRANSACTIONS if t.state in PREPARED else ErrorCode.NONE
        if t.state is not TransactionState.ONGOING and commit:
            return ErrorCode.INVALID_TXN_STATE
        return None

    def _prepare(self, transactional_id: str, t: Transaction, end: End, fresh: FreshProducerId, now: Now) -> Result:
        next_producer_id = NO_PRODUCER_ID
        bumps = end.client_version >= 2
        if bumps and t.epoch_exhausted:
            taken = fresh()
            if taken is None:
                return Result(EndAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            next_producer_id = taken
        after = t.prepared(
            commit=end.commit, client_version=end.client_version, next_producer_id=next_producer_id, now_ms=now.wall_ms
        )
        answer = EndAnswer(ErrorCode.NONE)
        if bumps:
            goes_on = after.completed(now.wall_ms)
            answer = EndAnswer(ErrorCode.NONE, goes_on.producer_id, goes_on.producer_epoch)
        return Result(
            answer,
            records=(self.record(transactional_id, after),),
            effects=(Cancel(_TIMEOUT + transactional_id), self.markers(transactional_id, after)),
        )

    def fence(self, transactional_id: str, t: Transaction, now: Now, answer: InitAnswer | BeginAnswer | None) -> Result:
        """Abort an open transaction in the coordinator's own name; ``answer`` None is the timeout's doing."""
        after = t.fenced(now.wall_ms)
        again = Result(effects=(Schedule(_TIMEOUT + transactional_id, RETRY_MS),))
        return Result(
            answer,
            records=(self.record(transactional_id, after),),
            effects=(Cancel(_TIMEOUT + transactional_id), self.markers(transactional_id, after)),
            failed=(lambda error, now: again) if answer is None else None,
        )

    def on_markers_written(self, transactional_id: str, producer_id: int, producer_epoch: int, now: Now) -> Result:
        """All markers are in their logs: complete, unless that is old news."""
        t = self.transactions.get(transactional_id)
        if t is None or t.state not in PREPARED or (t.producer_id, t.producer_epoch) != (producer_id, producer_epoch):
            return Result()
        return self._complete(transactional_id, t, now)

    def _complete(self, transactional_id: str, t: Transaction, now: Now) -> Result:
        return Result(
            records=(self.record(transactional_id, t.completed(now.wall_ms)),),
            # The markers are written once and for all; only our note of it is missing.
            failed=lambda error, now: Result(effects=(Schedule(_COMPLETE + transactional_id, RETRY_MS),)),
        )

    @staticmethod
    def markers(transactional_id: str, t: Transaction) -> WriteMarkers:
        """``coordinator_epoch`` is filled in by the sender: it is the leader epoch the shard was loaded in."""
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
        """A transaction ran out of time, an id expires, or an unwritten completion is tried again."""
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
            return Result(records=(CoordinatorRecord(encode_key(transactional_id), None),))
        return Result()

    @staticmethod
    def timeout_timer(transactional_id: str) -> str:
        """The name of the timer that aborts the id's open transaction."""
        return _TIMEOUT + transactional_id

    def timer_key(self, name: str) -> str:
        """The transactional id behind a timer's name (none for the sweep)."""
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
        return CoordinatorRecord(encode_key(transactional_id), encode_value(t, self.settings.value_version))

    def apply(self, record: CoordinatorRecord, producer: tuple[int, int] | None, now: Now) -> None:
        """Replay one committed record. Raises RecordError for bytes that are no record of this topic."""
        transactional_id = decode_key(record.key)
        if transactional_id is None:
            self.skipped_records += 1
            return
        if record.value is None:
            self.transactions.pop(transactional_id, None)
            self._epochs_before.pop(transactional_id, None)
            return
        t = decode_value(record.value)
        if t is None:
            self.skipped_records += 1
            return
        if t.state in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
            raise RecordError(f"state {t.state.label} is never written")
        self.transactions[transactional_id] = t

    def apply_marker(self, producer_id: int, producer_epoch: int, commit: bool, now: Now) -> Result | None:
        """Nothing: no transaction writes into this topic."""
        return None

    def loaded(self, now: Now) -> Result:
        """Resume what a coordinator before us left: markers of decided transactions, timeouts of open ones."""
        effects: list[Effect] = [Schedule(_SWEEP, min(self.settings.sweep_ms, 60_000))]
        for transactional_id, t in self.transactions.items():
            if t.state in PREPARED:
                effects.append(self.markers(transactional_id, t))
            elif t.state is TransactionState.ONGOING:
                # A batch is extended by heartbeats, which are not in the log: it gets its whole time again.
                left_ms = t.timeout_ms if t.batch is not None else t.start_ms + t.timeout_ms - now.wall_ms
                # The wall clock may have jumped: never wait longer than the timeout itself.
                effects.append(Schedule(_TIMEOUT + transactional_id, min(max(left_ms, 0), t.timeout_ms)))
        return Result(effects=tuple(effects))

    # ---- looking in ------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction | None:
        """The committed state of one id."""
        return self.transactions.get(transactional_id)

    def list_transactions(
        self,
        now: Now,
        states: frozenset[TransactionState] = frozenset(),
        producer_ids: frozenset[int] = frozenset(),
        longer_than_ms: int = -1,
        pattern: Pattern | None = None,
    ) -> list[ListedTransaction]:
        """All ids that pass the filters (an empty filter passes all); ``longer_than_ms`` looks at open ones only."""
        found = []
        for transactional_id, t in self.transactions.items():
            if states and t.state not in states:
                continue
            if producer_ids and t.producer_id not in producer_ids:
                continue
            if longer_than_ms >= 0 and (t.start_ms < 0 or now.wall_ms - t.start_ms <= longer_than_ms):
                continue
            if pattern is not None and not pattern.matches(transactional_id):
                continue
            found.append(ListedTransaction(transactional_id, t.producer_id, t.state))
        return found

    def metrics(self) -> Mapping[str, float]:
        """Numbers of ids, open transactions and transactions whose markers are being written."""
        states = [t.state for t in self.transactions.values()]
        return {
            "transactional_ids": float(len(states)),
            "transactions_open": float(states.count(TransactionState.ONGOING)),
            "transactions_ending": float(sum(state in PREPARED for state in states)),
            "transaction_records_skipped": float(self.skipped_records),
        }
