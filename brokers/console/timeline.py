"""Elections as the brokers have seen them: each broker keeps what changed since its start, and all are put together."""

from __future__ import annotations

from typing import Any, Final

from brokers.cli.client import explain
from wire.errors import ErrorCode
from wire.messages import request_class

DESCRIBE_ELECTIONS_KEY: Final = 12014
PATIENCE_S: Final = 4.0


def read_timeline(client: Any, broker_ids: list[int], topic: str | None, limit: int) -> dict[str, Any]:
    """Changes of leaders (of a topic, or all), controllers and registrations, the newest first.

    ``since`` has, for each broker that answered, since when it keeps all of them (ms); what was before is in no broker.
    """
    request = request_class(DESCRIBE_ELECTIONS_KEY)(version=0, topic=topic, limit=limit)
    elections: dict[tuple[str, int, int], dict[str, Any]] = {}
    controllers: dict[tuple[int, int], int] = {}
    brokers: dict[tuple[int, bool, int], int] = {}
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
        _merge(controllers, [((one.broker_id,), one.at_ms) for one in answer.controllers])
        _merge(brokers, [((one.broker_id, one.registered), one.at_ms) for one in answer.brokers])
        if answer.controller_epoch >= 0:
            work = _work(broker_id, answer)
    rows = sorted(elections.values(), key=lambda one: (-one["at"], one["topic"], one["partition"]))
    return {
        "elections": rows[:limit],
        "controllers": _newest([{"at": at, "controller": key[0]} for key, at in controllers.items()]),
        "registrations": _newest(
            [{"at": at, "broker": key[0], "registered": key[1]} for key, at in brokers.items()]
        ),
        "since": since,
        "untold": untold,
        "work": work,
    }  # fmt: skip


NEAR_MS: Final = 15_000
"""Brokers see one change at different moments, by different clocks: equal ones within so long are one."""


def _keep_first(found: dict[tuple[str, int, int], dict[str, Any]], one: Any) -> None:
    key = (one.topic, one.partition_index, one.leader_epoch)
    known = found.get(key)
    if known is None or one.at_ms < known["at"]:
        found[key] = {
            "at": one.at_ms, "topic": one.topic, "partition": one.partition_index, "leader_epoch": one.leader_epoch,
            "leader": one.leader, "previous": one.previous_leader, "isr": list(one.isr), "unclean": one.unclean,
        }  # fmt: skip


def _merge(found: dict[Any, int], seen: list[tuple[tuple[Any, ...], int]]) -> None:
    """Add what was seen, each change once: under its values and its time."""
    known: dict[tuple[Any, ...], list[int]] = {}
    for (*values, _), at in found.items():
        known.setdefault(tuple(values), []).append(at)
    for values, at in seen:
        if not any(abs(at - other) <= NEAR_MS for other in known.get(values, ())):
            found[(*values, at)] = at


def _newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda one: -one["at"])[:100]


def _work(broker_id: int, answer: Any) -> dict[str, Any]:
    return {
        "broker": broker_id, "epoch": answer.controller_epoch, "since": answer.controller_since_ms,
        "admin_requests": answer.admin_requests, "leaders_asked_to_move": answer.leaders_asked_to_move,
        "silent_brokers": list(answer.silent_brokers), "unclean_elections": answer.unclean_elections,
    }  # fmt: skip
