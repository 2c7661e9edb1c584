"""Audit: the log line, the events, and what happens when there is no room."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog.brokers.acls.image import AclOperation, ResourceType
from fleetlog.brokers.audit.events import (
    AGGREGATE_MS,
    NAME_CHARS_MAX,
    AclDecision,
    AuditSettings,
    AuditTrail,
    EventSource,
    EventType,
    OnFull,
    authorizer_line,
    printable,
)
from tests.support.draw import examples

WALL = 1_700_000_000_000
SOURCE = EventSource("cluster", 3, "1.2")
EVERYTHING = frozenset(EventType)


def decision(**changes: Any) -> AclDecision:
    base = AclDecision(
        "User:alice",
        "10.0.0.1",
        "DeleteTopics",
        AclOperation.DELETE,
        ResourceType.TOPIC,
        "orders",
        True,
        kind=EventType.MANAGEMENT,
    )
    return base._replace(**changes)


def produce(**changes: Any) -> AclDecision:
    return decision(**({"kind": EventType.PRODUCE, "api": "Produce", "operation": AclOperation.WRITE} | changes))


def trail_of(types: frozenset[EventType] = EVERYTHING, **changes: Any) -> AuditTrail:
    return AuditTrail(AuditSettings(types=types, **changes), SOURCE)


def events(trail: AuditTrail) -> list[dict[str, Any]]:
    found = trail.pending(10**9)
    trail.mark_written(len(found))
    return [json.loads(data) for data in found]


# ---------------------------------------------------------------- the log line


def test_the_line_is_kafkas() -> None:
    assert authorizer_line(decision(allowed=False, references=2)) == (
        "Principal = User:alice is Denied Operation = Delete from host = 10.0.0.1 on resource = Topic:LITERAL:orders "
        "for request = DeleteTopics with resourceRefCount = 2"
    )
    line = authorizer_line(decision(type=ResourceType.TRANSACTIONAL_ID, operation=AclOperation.DESCRIBE_CONFIGS))
    assert "is Allowed Operation = DescribeConfigs " in line
    assert "TransactionalId:LITERAL:orders" in line


@given(st.text(), st.text())
def test_no_name_makes_a_second_line(principal: str, name: str) -> None:
    line = authorizer_line(decision(principal=f"User:{principal}", name=name))
    assert len(line.splitlines()) == 1


def test_long_names_are_cut() -> None:
    assert len(printable("a" * 50_000)) == NAME_CHARS_MAX + 3
    assert printable("é\n\x1b[") == "é\\n\\x1b["


# ---------------------------------------------------------------- events


def test_a_management_event() -> None:
    trail = trail_of()
    assert trail.record(decision(client_id="console"), WALL, 0)
    (event,) = events(trail)
    assert (event["category_uid"], event["class_uid"], event["activity_id"], event["type_uid"]) == (6, 6003, 4, 600304)
    assert event["actor"] == {"user": {"name": "alice", "type": "User", "type_id": 1}}
    assert event["resources"] == [{"name": "orders", "type": "Topic"}]
    assert event["api"]["operation"] == "DeleteTopics"
    assert event["src_endpoint"] == {"ip": "10.0.0.1", "name": "console"}
    assert (event["time"], event["status_id"], event["count"]) == (WALL, 1, 1)
    assert trail.record(decision(allowed=False), WALL, 0)
    assert events(trail)[0]["status_id"] == 2


def test_what_is_not_wanted() -> None:
    trail = AuditTrail(AuditSettings(excluded_principals=frozenset({"User:bot"})), SOURCE)
    trail.record(produce(), WALL, 0)
    trail.record(decision(principal="User:bot"), WALL, 0)
    trail.record_login("User:bot", "10.0.0.1", "SSL", True, "", WALL)
    trail.flush_all()
    assert events(trail) == []
    trail = trail_of(excluded_topics=frozenset({"noise"}))
    trail.record(decision(name="noise"), WALL, 0)
    trail.record(decision(name="noise", type=ResourceType.GROUP), WALL, 0)
    assert len(events(trail)) == 1


def test_logins_and_the_broker() -> None:
    trail = trail_of()
    trail.record_broker(started=True, wall_ms=WALL)
    trail.record_login("User:alice", "10.0.0.1", "SASL_PLAINTEXT/PLAIN", False, "wrong password", WALL)
    started, login = events(trail)
    assert (started["class_uid"], started["activity_id"]) == (6002, 3)
    assert (login["class_uid"], login["type_uid"], login["status_id"]) == (3002, 300201, 2)
    assert (login["auth_protocol"], login["is_cleartext"]) == ("SASL_PLAINTEXT/PLAIN", True)
    assert login["status_detail"] == "wrong password"


def test_data_events_are_counted_for_a_minute() -> None:
    trail = trail_of()
    for second in range(60):
        trail.record(produce(references=2), WALL + second * 1000, second * 1000)
        trail.record(produce(allowed=False), WALL, second * 1000)
        trail.flush(second * 1000)
    assert events(trail) == []
    trail.flush(AGGREGATE_MS)
    allowed, denied = events(trail)
    assert (allowed["count"], allowed["start_time"], allowed["end_time"]) == (120, WALL, WALL + 59_000)
    assert (denied["count"], denied["status_id"]) == (60, 2)
    trail.record(produce(), WALL, AGGREGATE_MS)
    trail.flush_all()
    assert events(trail)[0]["count"] == 1


def test_a_minute_that_is_over_is_not_counted_on() -> None:
    trail = trail_of()
    trail.record(produce(), WALL, 0)
    trail.record(produce(), WALL, AGGREGATE_MS)
    trail.flush_all()
    assert [event["count"] for event in events(trail)] == [1, 1]


def test_a_minute_that_is_over_is_counted_on_while_there_is_no_room() -> None:
    trail = trail_of(queue_bytes_max=1000)
    trail.record(decision(), WALL, 0)
    trail.record(produce(), WALL, 0)
    trail.record(produce(), WALL, AGGREGATE_MS)
    assert len(events(trail)) == 1
    trail.flush(AGGREGATE_MS)
    assert [event["count"] for event in events(trail)] == [2]


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.booleans(), st.integers(0, 40_000), st.booleans()), max_size=60),
    st.sampled_from([500, 2000, 10**6]),
    st.integers(1, 4),
    st.sampled_from(OnFull),
)
def test_nothing_is_lost_without_being_counted(
    steps: list[tuple[str, bool, int, bool]], queue_bytes: int, aggregates: int, on_full: OnFull
) -> None:
    trail = trail_of(queue_bytes_max=queue_bytes, aggregates_max=aggregates, on_full=on_full)
    recorded, written, now = 0, 0, 0
    for name, data, after, drained in steps:
        now += after
        kept = trail.record((produce if data else decision)(name=name), WALL, now)
        assert kept or on_full is OnFull.REFUSE
        recorded += kept
        assert trail.queued_bytes <= queue_bytes
        assert len(trail._aggregates) <= aggregates
        if drained:
            written += sum(event["count"] for event in events(trail))
    if on_full is OnFull.REFUSE:
        assert trail.dropped == 0
    trail.flush_all()
    written += sum(event["count"] for event in events(trail))
    assert written + trail.dropped == recorded


def test_a_full_queue_drops_or_refuses() -> None:
    for on_full, kept in ((OnFull.DROP, True), (OnFull.REFUSE, False)):
        trail = trail_of(queue_bytes_max=1000, on_full=on_full)
        assert trail.record(decision(), WALL, 0)
        assert trail.record(decision(references=3), WALL, 0) is kept
        assert trail.record_login("User:a", "h", "SSL", True, "x" * 600, WALL) is kept
        assert trail.dropped == (4 if kept else 0)


def test_events_stay_until_they_are_written() -> None:
    trail = trail_of()
    for name in "abc":
        trail.record(decision(name=name), WALL, 0)
    first = trail.pending(1)
    assert len(first) == 1
    assert trail.pending(1) == first
    trail.mark_written(1)
    assert [json.loads(data)["resources"][0]["name"] for data in trail.pending(10**6)] == ["b", "c"]
    assert trail.queued_bytes == sum(len(data) for data in trail.pending(10**6))
