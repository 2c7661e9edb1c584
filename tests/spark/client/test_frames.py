"""Requests that are encoded here have the bytes that the library would send."""

from __future__ import annotations

from typing import Any

import pytest

from fleetlog.spark.client.frames import COMMIT_BATCH, PRODUCE, CommitFrame, Frame, ProduceFrame
from fleetlog.spark.client.write_settings import TaskMember
from fleetlog.wire.messages import request_class


@pytest.mark.parametrize("transactional_id", [None, "sink-1"])
def test_a_frame_is_what_the_library_would_send(transactional_id: str | None) -> None:
    topics = {"orders": [(0, b"x" * 200), (5, bytearray(20_000))], "bad": [(1, b"")]}
    ours = ProduceFrame(transactional_id, 1234, topics)
    kind = request_class(PRODUCE)
    theirs = kind(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1234,
        topic_data=[
            kind.TopicProduceData(
                name=name,
                partition_data=[
                    kind.TopicProduceData.PartitionProduceData(index=index, records=bytes(records))
                    for index, records in parts
                ],
            )
            for name, parts in topics.items()
        ],
    )
    same_bytes(ours, theirs)


def same_bytes(ours: Frame, theirs: Any) -> None:
    theirs.API_VERSION = ours.API_VERSION
    for request in (ours, theirs):
        request.with_header(correlation_id=77, client_id="fleetlog")
    assert ours.encode() == bytes(theirs.encode(framed=True, header=True))
    assert ours.header.get_response_class() is theirs.header.get_response_class()


@pytest.mark.parametrize("winners", [0, 1, 300])
def test_a_commits_frame_is_what_the_library_would_send(winners: int) -> None:
    members = [TaskMember(2**40 + 7 * n, n % 2**15) for n in range(winners)]
    fields: dict[str, Any] = {
        "sink_id": "orders-\u00e9", "producer_id": 5, "producer_epoch": 2**15 - 1, "query_id": "q" * 36,
        "batch_id": 2**33, "digest": "d",
    }  # fmt: skip
    kind = request_class(COMMIT_BATCH)
    named = [kind.BatchMember(producer_id=member.producer_id, producer_epoch=member.epoch) for member in members]
    same_bytes(CommitFrame(**fields, winners=members), kind(**fields, winners=named))
