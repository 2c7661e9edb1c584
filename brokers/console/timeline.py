"""Elections as the brokers have seen them: each broker keeps what changed since its start, and all are put together."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from fleetlog.brokers.cli.client import explain
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

PATIENCE_S: Final = 4.0
SHOWN_MAX: Final = 100
NEAR_MS: Final = 15_000
"""Brokers see one change at different moments, by different clocks: equal ones within so long are one."""

_Change = TypeVar("_Change")


def read_timeline(client: Any, broker_ids: list[int], topic: str | None, limit: int) -> dict[str, Any]:
    """Changes of leaders (of a topic, or all), controllers and registrations, the newest first.

    ``since`` has, for each broker that answered, since when it keeps all of them (ms); what was before is in no broker.
    """
    request = messages.DescribeElectionsRequest(version=0, topic=topic, limit=limit)
    elections: dict[tuple[str, int, int], dict[str, Any]] = {}
    controllers: list[tuple[int, int]] = []
    brokers: list[tuple[int, tuple[int, bool]]] = []
    since, untold, work = [], [], None
    for broker_id, answer in client.ask_each(dict.fromkeys(broker_ids, request), PATIENCE_S).items():
        if answer is None:
            untold.append({"broker": broker_id, "trouble": "it does not answer, or is of an older release"})
            continue
        if answer.error_code:
            reason = "the right to describe the cluster is needed"
            denied = answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            untold.append({"broker": broker_id, "trouble": reason if denied else explain(answer.error_code)})
            continue
        since.append({"broker": broker_id, "since": answer.since_ms})
        for one in answer.elections:
            _keep_first(elections, one)
        controllers += [(one.at_ms, one.broker_id) for one in answer.controllers]
        brokers += [(one.at_ms, (one.broker_id, one.registered)) for one in answer.brokers]
        if answer.controller_epoch >= 0:
            work = _work(broker_id, answer)
    rows = sorted(elections.values(), key=lambda one: (-one["at"], one["topic"], one["partition"]))
    return {
        "elections": rows[:limit],
        "controllers": [{"at": at, "controller": broker_id} for at, broker_id in merged_changes(controllers)],
        "registrations": [
            {"at": at, "broker": broker_id, "registered": registered}
            for at, (broker_id, registered) in merged_changes(brokers)
        ],
        "since": since,
        "untold": untold,
        "work": work,
    }  # fmt: skip


def _keep_first(found: dict[tuple[str, int, int], dict[str, Any]], one: Any) -> None:
    key = (one.topic, one.partition_index, one.leader_epoch)
    known = found.get(key)
    if known is None or one.at_ms < known["at"]:
        found[key] = {
            "at": one.at_ms, "topic": one.topic, "partition": one.partition_index, "leader_epoch": one.leader_epoch,
            "leader": one.leader, "previous": one.previous_leader, "isr": list(one.isr), "unclean": one.unclean,
        }  # fmt: skip


def merged_changes(seen: list[tuple[int, _Change]]) -> list[tuple[int, _Change]]:
    """What several brokers saw, each change once at the first time that it was seen; the newest first."""
    merged: list[tuple[int, _Change]] = []
    latest: dict[_Change, int] = {}
    for at, change in sorted(seen, key=lambda one: one[0]):
        if change not in latest or at - latest[change] > NEAR_MS:
            merged.append((at, change))
            latest[change] = at
    return merged[::-1][:SHOWN_MAX]


def _work(broker_id: int, answer: Any) -> dict[str, Any]:
    return {
        "broker": broker_id, "epoch": answer.controller_epoch, "since": answer.controller_since_ms,
        "admin_requests": answer.admin_requests, "leaders_asked_to_move": answer.leaders_asked_to_move,
        "silent_brokers": list(answer.silent_brokers), "unclean_elections": answer.unclean_elections,
    }  # fmt: skip
