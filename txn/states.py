"""The life of a transaction: every state, every allowed step, and what a client is told for a step that is not.

Charter
-------
A transactional id has one record in ``__transaction_state``: who may write under it (producer id and epoch), and how
far the transaction of that producer is. The record moves only along ``TRANSITIONS``; whoever asks for another step is
answered by the tables below and changes nothing. Three promises hang on it:

1. *Fencing.* A client's (producer id, epoch) that is not the present one changes nothing, whatever it asks for.
2. *One fate.* Once PREPARE_COMMIT or PREPARE_ABORT is in the log, only the matching COMPLETE state can follow. A retry
   hears the same fate; a request for the other fate hears INVALID_TXN_STATE.
3. *No delayed end* (transaction version 2). Every end bumps the epoch, so an EndTxn that was held up on its way cannot
   end the next transaction (KAFKA-17754): its epoch is old by then.

PREPARE_EPOCH_FENCE and DEAD exist in Kafka's encoding. Here neither is ever written: fencing an open transaction goes
straight to PREPARE_ABORT with a bumped epoch in the same record, and a forgotten id is a tombstone.

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
"""The fate is decided, markers are being written: nothing else can happen to the id until they are."""

ENDED = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""No transaction is open: one may begin, the producer may be initialised anew, the id may expire."""

TRANSITIONS: dict[TransactionState | None, dict[TransactionState, str]] = {
    None: {_S.EMPTY: "InitProducerId of a new id"},
    _S.EMPTY: {
        _S.EMPTY: "InitProducerId or BeginBatch: epoch bump or new producer id; ResetSink",
        _S.ONGOING: "first partition added, or first members enlisted in a batch",
        _S.PREPARE_ABORT: "EndTxn(abort) of version 2 with nothing written: it bumps the epoch all the same",
        _S.PREPARE_COMMIT: "CommitBatch of a batch without rows: it sets the fence all the same",
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
        _S.EMPTY: "InitProducerId, BeginBatch, ResetSink",
        _S.ONGOING: "first partition of the next transaction",
        _S.PREPARE_ABORT: "EndTxn(abort) of version 2 with nothing written",
    },
}
"""from -> to -> why. ``None`` is an id without a record."""


def may_follow(before: TransactionState | None, after: TransactionState) -> bool:
    """Whether the table allows this step."""
    return after in TRANSITIONS.get(before, {})
