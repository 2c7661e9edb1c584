"""The leader's side of verification (KIP-890): may this producer's batch be appended to this partition now?

A transactional batch goes into a log only if its transaction is ongoing there, or if the coordinator confirmed for
this very attempt that the partition is in the producer's open transaction. Otherwise a batch that was held up on its
way would open a transaction nobody will ever end. The log gives out a guard before the coordinator is asked and takes
the batch only with that same guard; any marker in between makes it worthless (``brokers.log`` VerificationGuard).

Clients of transaction version 2 don't announce partitions: for them the leader asks the coordinator to add the
partition instead of only looking whether it is there.

Here: what to ask, and what the coordinator's answer means for the producer's request.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from wire.errors import ErrorCode
from wire.types import TopicPartition

PRODUCE_KEY, TXN_OFFSET_COMMIT_KEY = 0, 28
_ADDS_FROM = {PRODUCE_KEY: 12, TXN_OFFSET_COMMIT_KEY: 5}
_ABORTABLE_FROM = {PRODUCE_KEY: 11, TXN_OFFSET_COMMIT_KEY: 4}


class Ask(Enum):
    """What the coordinator is asked to do."""

    VERIFY = "verify"
    ADD = "add"


class Question(NamedTuple):
    """What is asked about one producer; ``abortable`` says that the client knows error 120 (TRANSACTION_ABORTABLE)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    ask: Ask
    abortable: bool


def question(
    api_key: int,
    api_version: int,
    transactional_id: str,
    producer: tuple[int, int],
    partitions: Iterable[TopicPartition],
) -> Question:
    """The question that a Produce or TxnOffsetCommit of that version leads to."""
    return Question(
        transactional_id,
        producer[0],
        producer[1],
        tuple(sorted(set(partitions))),
        Ask.ADD if api_version >= _ADDS_FROM[api_key] else Ask.VERIFY,
        api_version >= _ABORTABLE_FROM[api_key],
    )


_TRY_AGAIN = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


def client_error(asked: Question, answer: ErrorCode) -> ErrorCode:
    """What the producer is told, from the coordinator's word for one partition.

    - A fenced producer hears INVALID_PRODUCER_EPOCH, as it would from the log.
    - "Not in the transaction" is TRANSACTION_ABORTABLE for those who know it, else INVALID_TXN_STATE.
    - Whatever passes by itself (the previous end is being written, the coordinator moves) is retriable: old clients
      know NOT_ENOUGH_REPLICAS as such, clients of version 2 also CONCURRENT_TRANSACTIONS.
    """
    if answer is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if answer is ErrorCode.TRANSACTION_ABORTABLE and not asked.abortable:
        return ErrorCode.INVALID_TXN_STATE
    if answer is ErrorCode.CONCURRENT_TRANSACTIONS and asked.ask is Ask.ADD:
        return answer
    return ErrorCode.NOT_ENOUGH_REPLICAS if answer in _TRY_AGAIN else answer
