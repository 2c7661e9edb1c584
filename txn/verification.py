"""The leader's side of verification (KIP-890): whether a producer's batch may be appended to a partition now.

A transactional batch is appended only if its transaction is ongoing on the partition, or if the coordinator has
confirmed for this attempt that the partition is in the producer's open transaction. Otherwise a delayed batch would
open a transaction that never ends. The log creates a guard before the coordinator is asked and accepts the batch only
with that guard; any marker in between invalidates it (``brokers.log`` VerificationGuard).

Clients of transaction version 2 don't send AddPartitionsToTxn: for them the leader asks the coordinator to add the
partition instead of only verifying it.

This module has the questions, and the meaning of the coordinator's answers for the producer's request.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition


class Ask(Enum):
    """The kinds of questions."""

    VERIFY = "verify"
    ADD = "add"


class VerifiedFrom(NamedTuple):
    """A request that may need a question: from which versions on it adds partitions, and its client knows error 120."""

    adding: int
    abortable: int


class Question(NamedTuple):
    """A question about one producer; ``abortable``: the client knows error 120 (TRANSACTION_ABORTABLE)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    ask: Ask
    abortable: bool


def question(
    verified: VerifiedFrom,
    api_version: int,
    transactional_id: str,
    producer: tuple[int, int],
    partitions: Iterable[TopicPartition],
) -> Question:
    """The question for a request of that version."""
    return Question(
        transactional_id,
        producer[0],
        producer[1],
        tuple(sorted(set(partitions))),
        Ask.ADD if api_version >= verified.adding else Ask.VERIFY,
        api_version >= verified.abortable,
    )


_NAMED = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
TRY_AGAIN = frozenset(
    {
        *_NAMED,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


def client_error(asked: Question, answer: ErrorCode) -> ErrorCode:
    """The producer's error, from the coordinator's answer for one partition.

    - A fenced producer gets INVALID_PRODUCER_EPOCH, as from the log.
    - A partition outside the transaction gets TRANSACTION_ABORTABLE if the client knows it, else INVALID_TXN_STATE.
    - Temporary conditions are retriable. Clients of version 2 get the cause: CONCURRENT_TRANSACTIONS (the previous end
      is being written), COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE. Of the codes for which older clients
      retry a batch, only NOT_ENOUGH_REPLICAS makes none of them look for another leader.
    """
    if answer is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if answer is ErrorCode.TRANSACTION_ABORTABLE and not asked.abortable:
        return ErrorCode.INVALID_TXN_STATE
    if answer not in TRY_AGAIN:
        return answer
    if asked.ask is Ask.VERIFY:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return answer if answer in _NAMED else ErrorCode.COORDINATOR_NOT_AVAILABLE


def client_message(asked: Question, answer: ErrorCode) -> str | None:
    """The message for :func:`client_error`, for the client's log; None if the code suffices."""
    if answer in TRY_AGAIN:
        why = (
            "the end of its previous transaction is still being written"
            if answer is ErrorCode.CONCURRENT_TRANSACTIONS
            else f"its coordinator cannot answer now ({answer.name})"
        )
        return f"transactional id {asked.transactional_id}: {why}; the replicas are not to blame, try again"
    if answer is ErrorCode.TRANSACTION_ABORTABLE:
        return f"transactional id {asked.transactional_id}: the partition is not in the open transaction"
    return None
