"""The states of a transaction, and the allowed transitions.

A transactional id has one record in ``__transaction_state``: the producer id and epoch that may write, and the state of
that producer's transaction. The record changes only along ``TRANSITIONS``; a request for another transition gets an
error and changes nothing. Three guarantees depend on it:

1. *Fencing.* A request with a (producer id, epoch) that is not the present one changes nothing.
2. *One outcome.* Once PREPARE_COMMIT or PREPARE_ABORT is in the log, only the matching COMPLETE state can follow. A
   retry gets the same outcome; a request for the other outcome gets INVALID_TXN_STATE, or, if it is a commit of
   version 2, PRODUCER_FENCED.
3. *No delayed end* (transaction version 2). Every end bumps the epoch, so a delayed EndTxn cannot end the next
   transaction (KAFKA-17754): its epoch is outdated by then.

PREPARE_EPOCH_FENCE and DEAD exist in Kafka's encoding. fleetlog never writes them: fencing an open transaction leads
directly to PREPARE_ABORT with a bumped epoch in the same record, and an expired id is a tombstone.

Source: KIP-98, KIP-360, KIP-588, KIP-890; states and their numbers as in Kafka's TransactionLogValue.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ENDED", "PREPARED", "TRANSITIONS", "TransactionState", "may_follow"]


class TransactionState(IntEnum):
    """Kafka's states with Kafka's numbers (the byte in the record)."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's spelling, as DescribeTransactions and ListTransactions show it."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def from_label(cls, label: str) -> TransactionState | None:
        """The state of that spelling; None for an unknown one."""
        return _BY_LABEL.get(label)


_BY_LABEL = {state.label: state for state in TransactionState}

_S = TransactionState

PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""The outcome is decided and markers are being written: until then the id cannot change otherwise."""

ENDED = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""No transaction is open: one may start, the producer may be initialised again, the id may expire."""

TRANSITIONS: dict[TransactionState | None, dict[TransactionState, str]] = {
    None: {_S.EMPTY: "InitProducerId of a new id"},
    _S.EMPTY: {
        _S.EMPTY: "InitProducerId or BeginBatch: epoch bump or new producer id; ResetSink",
        _S.ONGOING: "first partition added, or first members enlisted in a batch",
        _S.PREPARE_ABORT: "EndTxn(abort) of version 2 with nothing written: it also bumps the epoch",
        _S.PREPARE_COMMIT: "CommitBatch of a batch without rows: it also sets the fence",
    },
    _S.ONGOING: {
        _S.ONGOING: "further partitions added, or members enlisted",
        _S.PREPARE_COMMIT: "EndTxn(commit), CommitBatch",
        _S.PREPARE_ABORT: "EndTxn(abort), AbortBatch, the timeout, or InitProducerId or BeginBatch by a newer one",
    },
    _S.PREPARE_COMMIT: {_S.COMPLETE_COMMIT: "all markers written"},
    _S.PREPARE_ABORT: {_S.COMPLETE_ABORT: "all markers written"},
    _S.COMPLETE_COMMIT: {
        _S.EMPTY: "InitProducerId, BeginBatch, ResetSink",
        _S.ONGOING: "first partition of the next transaction",
        _S.PREPARE_ABORT: "EndTxn(abort) of version 2 with nothing written",
    },
    _S.COMPLETE_ABORT: {
        _S.EMPTY: "InitProducerId, BeginBatch, ResetSink, EndTxn(abort) of version 2 whose last epoch has timed out",
        _S.ONGOING: "first partition of the next transaction",
        _S.PREPARE_ABORT: "EndTxn(abort) of version 2 with nothing written",
    },
}
"""from -> to -> cause. ``None`` is an id without a record."""


def may_follow(before: TransactionState | None, after: TransactionState) -> bool:
    """Whether the table allows this step."""
    return after in TRANSITIONS.get(before, {})
