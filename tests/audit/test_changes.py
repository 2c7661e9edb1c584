"""What management requests changed: a row for each API, one change for each resource, and never a value."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.image import AclOperation, ResourceType
from fleetlog.brokers.api.rows import Recorded, api_table
from fleetlog.brokers.audit.events import (
    AGGREGATES_MAX,
    QUEUE_BYTES_MAX,
    REFUSED_LOGINS_PER_SECOND,
    AclDecision,
    AuditSettings,
    AuditTrail,
    Caller,
    Change,
    EventSource,
    EventType,
    OnFull,
)
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from tests.support.filled import filled

WALL = 1_700_000_000_000
ALICE = Caller("User:alice", "10.0.0.1")
EVERYTHING = frozenset(EventType)
RECORDED = {key: row.audit for key, row in api_table().items() if isinstance(row.audit, Recorded)}


@pytest.mark.parametrize("key", RECORDED)
def test_each_request_asks_for_changes(key: int) -> None:
    for version in range(APIS[key].lowest, APIS[key].max_version + 1):
        assert RECORDED[key].count(filled(key, version)) == (2 if key == 51 else 1)


def test_topics_that_are_deleted_by_id_have_names() -> None:
    response = m.response_class(20)
    row = response.DeletableTopicResult
    answer = response(version=6, responses=[
        row(version=6, name="orders", topic_id=m.request_class(20).DeleteTopicState(version=6).topic_id, error_code=0),
        row(version=6, name=None, error_code=29, error_message=None),
    ])  # fmt: skip
    known, unknown = RECORDED[20].changes(None, answer)
    assert (known.kind, known.name, known.operation, known.error) == (
        "Topic", "orders", AclOperation.DELETE, ErrorCode.NONE,
    )  # fmt: skip
    assert unknown.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_of_partitions_the_first_error_counts() -> None:
    request, response = m.request_class(45), m.response_class(45)
    parts = request.ReassignableTopic.ReassignablePartition
    asked = request(version=0, timeout_ms=1, topics=[request.ReassignableTopic(version=0, name="t", partitions=[
        parts(version=0, partition_index=0, replicas=[1, 2]), parts(version=0, partition_index=1, replicas=None),
    ])])  # fmt: skip
    row = response.ReassignableTopicResponse
    part = row.ReassignablePartitionResponse
    answer = response(version=0, error_code=0, error_message=None, responses=[row(version=0, name="t", partitions=[
        part(version=0, partition_index=0, error_code=0), part(version=0, partition_index=1, error_code=85),
    ])])  # fmt: skip
    (change,) = RECORDED[45].changes(asked, answer)
    assert change.error is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert change.detail == "replicas of 0 to [1, 2], 1 to the present ones"


def trail_of(**settings: Any) -> AuditTrail:
    return AuditTrail(AuditSettings(types=EVERYTHING, **settings), EventSource("c", 1, "1", "p"))


def test_what_was_let_in_has_its_place() -> None:
    trail = trail_of(on_full=OnFull.REFUSE, queue_bytes_max=10_000)
    assert trail.has_room(9)
    assert not trail.has_room(10)
    for number in range(12):
        trail.record_change(ALICE, "DeleteTopics", Change("Topic", f"t{number}", AclOperation.DELETE), WALL)
    assert len(trail.pending(10**6)) == 12
    assert trail.dropped == 0
    assert not trail.has_room(9)


def test_requests_that_are_executed_together_share_the_room() -> None:
    trail = trail_of(on_full=OnFull.REFUSE, queue_bytes_max=10_000)
    trail.reserve(5)
    assert not trail.has_room(5)
    assert trail.has_room(4)
    trail.reserve(-5)
    assert trail.has_room(9)


def test_names_of_events_differ() -> None:
    trail = trail_of()
    for _ in range(100):
        trail.record_change(ALICE, "DeleteTopics", Change("Topic", "t", AclOperation.DELETE), WALL)
    assert len({data.split(b'"uid":"')[1].split(b'"')[0] for data in trail.pending(10**6)}) == 100


def test_refused_logins_displace_nothing() -> None:
    trail = trail_of()
    for _ in range(10_000):
        trail.record_login("", "10.0.0.9", "SASL_SSL/PLAIN", False, "wrong password", WALL)
    assert len(trail.pending(10**9)) == REFUSED_LOGINS_PER_SECOND
    assert trail.dropped == 10_000 - REFUSED_LOGINS_PER_SECOND
    trail.record_login("", "10.0.0.9", "SASL_SSL/PLAIN", False, "wrong password", WALL + 1000)
    assert len(trail.pending(10**9)) == REFUSED_LOGINS_PER_SECOND + 1


def test_a_flood_of_denials_takes_bounded_memory_and_leaves_room() -> None:
    """Three seconds of 10,000 denied requests, each with another long name; nothing is written meanwhile."""
    trail = trail_of()
    tracemalloc.start()
    try:
        for number in range(30_000):
            name = f"{number}-" + "x" * 20_000
            denied = AclDecision(
                "User:alice", "10.0.0.1", "Produce", AclOperation.WRITE, ResourceType.TOPIC, name, False,
                kind=EventType.PRODUCE,
            )  # fmt: skip
            trail.record(denied, WALL, number // 10)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < AGGREGATES_MAX * 2500 + QUEUE_BYTES_MAX
    assert trail.dropped > 0
    assert trail.queued_bytes <= QUEUE_BYTES_MAX // 2
    trail.record_change(ALICE, "DeleteTopics", Change("Topic", "orders", AclOperation.DELETE), WALL)
    assert b"orders" in trail.pending(10**9)[-1]
