"""A leader's questions, and the producer's errors."""

from __future__ import annotations

import pytest

from fleetlog.brokers.api import group_offsets, produce
from fleetlog.txn.verification import Ask, VerifiedFrom, client_error, client_message, question
from fleetlog.wire.errors import ErrorCode as E
from fleetlog.wire.types import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)


@pytest.mark.parametrize(
    ("verified", "version", "ask", "abortable"),
    [
        (produce.VERIFIED, 3, Ask.VERIFY, False),
        (produce.VERIFIED, 10, Ask.VERIFY, False),
        (produce.VERIFIED, 11, Ask.VERIFY, True),
        (produce.VERIFIED, 12, Ask.ADD, True),
        (group_offsets.VERIFIED, 3, Ask.VERIFY, False),
        (group_offsets.VERIFIED, 4, Ask.VERIFY, True),
        (group_offsets.VERIFIED, 5, Ask.ADD, True),
    ],
)
def test_the_version_decides_whether_partitions_are_verified_or_added(
    verified: VerifiedFrom, version: int, ask: Ask, abortable: bool
) -> None:
    asked = question(verified, version, "x", (7, 1), [B, A, B])
    assert (asked.ask, asked.abortable, asked.partitions) == (ask, abortable, (A, B))


@pytest.mark.parametrize(
    ("version", "answer", "told"),
    [
        (9, E.NONE, E.NONE),
        (9, E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH),
        (9, E.TRANSACTION_ABORTABLE, E.INVALID_TXN_STATE),
        (11, E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE),
        (9, E.CONCURRENT_TRANSACTIONS, E.NOT_ENOUGH_REPLICAS),
        (12, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
        (12, E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_LOAD_IN_PROGRESS),
        (12, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_NOT_AVAILABLE),
        (12, E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE),
        (12, E.NETWORK_EXCEPTION, E.COORDINATOR_NOT_AVAILABLE),
        (11, E.NOT_COORDINATOR, E.NOT_ENOUGH_REPLICAS),
        (9, E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_ENOUGH_REPLICAS),
        (9, E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_an_answer_becomes_an_error_that_the_version_knows(version: int, answer: E, told: E) -> None:
    asked = question(produce.VERIFIED, version, "x", (7, 1), [A])
    assert client_error(asked, answer) is told
    if told is E.NOT_ENOUGH_REPLICAS:
        assert "replicas are not to blame" in (client_message(asked, answer) or "")
