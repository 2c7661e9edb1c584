"""Consumer groups, transactions and sinks."""

from __future__ import annotations

from typing import Any, Final

from fleetlog.brokers.cli.group_lags import lag_of_groups
from fleetlog.brokers.console.asking import NAME_BYTES_MAX, Answer, Asking, PageError
from fleetlog.brokers.console.commands import listed

DESCRIBED_MAX: Final = 50
"""Groups that the list shows at a time: each whose coordinator has no figures costs a few requests."""
ORDERS: Final = ("name", "behind")
COMPUTED_OF_PARTITIONS: Final = ("seconds", "status", "lag_read_committed")
LONG_OPEN_S: Final = 60.0


def groups_page(asking: Asking) -> Answer:
    """Groups with state, lag in records and seconds, and status: those whose name has the text, some at a time.

    ``status`` and ``seconds`` are None where the group's coordinator has not computed them.
    """
    part, order = asking.text("name").lower(), asking.choice("order", ORDERS)
    rows = [row for row in listed(asking.target, "groups") if part in row["group"].lower()]
    start = asking.number("start", 0, 0, 10**9)
    lags: dict[str, dict[str, Any]] = {}
    unknown: list[str] = []
    if order == "behind" and rows:
        lags, unknown = _lags(asking)
        rows.sort(key=lambda row: -lags[row["group"]]["seconds"] if row["group"] in lags else 0.0)
    shown = rows[start : start + DESCRIBED_MAX]
    names = [row["group"] for row in shown]
    if order == "name" and shown:
        lags, unknown = _lags(asking, *names)
    others = tuple(name for name in names if name not in lags)
    described = listed(asking.target, "groups", "describe", names=others) if others else []
    records = {one["group"]: one["lag"] for one in [*described, *lags.values()]}
    following = start + DESCRIBED_MAX if start + DESCRIBED_MAX < len(rows) else None
    groups = [{**row, "lag": records.get(row["group"]), **_judged(lags.get(row["group"]))} for row in shown]
    return {
        "groups": groups,
        "count": len(rows),
        "start": start,
        "next_start": following,
        "order": order,
        "unknown": unknown,
    }


def group_page(asking: Asking) -> Answer:
    """One group: members, and each partition's offsets, lag in records and seconds, and status.

    Offsets and records are the present ones. Seconds and status are as old as ``age_s`` says: the coordinator computes
    them now and then; they are None where it has not.
    """
    name = _name(asking)
    (description,) = listed(asking.target, "groups", "describe", names=(name,))
    lags, unknown = _lags(asking, name)
    group = lags.get(name)
    partitions = {(one["topic"], one["partition"]): one for one in group["partitions"]} if group is not None else {}
    by_topic: dict[str, int] = {}
    for row in description["offsets"]:
        by_topic[row["topic"]] = by_topic.get(row["topic"], 0) + (row["lag"] or 0)
        one = partitions.get((row["topic"], row["partition"]))
        row |= {column: one[column] if one is not None else None for column in COMPUTED_OF_PARTITIONS}
    return {
        **description,
        **_judged(group),
        "worst": group["worst"] if group is not None else None,
        "age_s": group["age_s"] if group is not None else None,
        "unknown": unknown if group is None else [],
        "lag_by_topic": [{"topic": topic, "lag": lag} for topic, lag in sorted(by_topic.items())],
    }


def _lags(asking: Asking, *names: str) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """What the coordinators have computed, by group, and what could not be asked: of groups named, or of all."""
    lags, unknown = lag_of_groups(asking.client, names)
    return {one["group"]: one for one in lags if one["status"]}, unknown


def _judged(group: dict[str, Any] | None) -> dict[str, Any]:
    return {column: group[column] if group is not None else None for column in ("seconds", "status")}


def transactions_page(asking: Asking) -> Answer:
    """Transactional ids, the open ones first with their age, and Spark's sinks."""
    rows = listed(asking.target, "transactions")
    open_rows = [row for row in rows if row["state"] not in {"Empty", "CompleteCommit", "CompleteAbort"}]
    names = tuple(row["transactional_id"] for row in open_rows[:DESCRIBED_MAX])
    described = listed(asking.target, "transactions", "describe", names=names) if names else []
    for one in described:
        one["long"] = one["open_s"] is not None and one["open_s"] > max(LONG_OPEN_S, one["timeout_ms"] / 1000)
    described.sort(key=lambda one: -(one["open_s"] or 0))
    return {
        "open": described,
        "open_count": len(open_rows),
        "transactions": [row for row in rows if row not in open_rows][:500],
        "count": len(rows),
        "sinks": listed(asking.target, "sinks"),
    }


def _name(asking: Asking) -> str:
    name = asking.params.get("name", "")
    if not name:
        raise PageError(400, "name is missing")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise PageError(404, f"a group's name has {NAME_BYTES_MAX} bytes at most")
    return name
