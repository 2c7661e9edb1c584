"""Consumer groups, transactions and sinks."""

from __future__ import annotations

from typing import Final

from brokers.console.asking import NAME_BYTES_MAX, Answer, Asking, PageError
from brokers.console.commands import listed

DESCRIBED_MAX: Final = 50
"""Groups whose lag the list shows: each costs a few requests."""
LONG_OPEN_S: Final = 60.0


def groups_page(asking: Asking) -> Answer:
    """Groups with state and lag: those whose name has the text."""
    part = asking.text("name").lower()
    rows = [row for row in listed(asking.target, "groups") if part in row["group"].lower()]
    start = asking.number("start", 0, 0, 10**9)
    shown = rows[start : start + DESCRIBED_MAX]
    lags: dict[str, int] = {}
    if shown:
        described = listed(asking.target, "groups", "describe", names=tuple(row["group"] for row in shown))
        lags = {one["group"]: one["lag"] for one in described}
    following = start + DESCRIBED_MAX if start + DESCRIBED_MAX < len(rows) else None
    groups = [{**row, "lag": lags.get(row["group"])} for row in shown]
    return {"groups": groups, "count": len(rows), "start": start, "next_start": following}


def group_page(asking: Asking) -> Answer:
    """One group: members, and offsets with their lag in records."""
    (found,) = listed(asking.target, "groups", "describe", names=(_name(asking),))
    by_topic: dict[str, int] = {}
    for row in found["offsets"]:
        by_topic[row["topic"]] = by_topic.get(row["topic"], 0) + (row["lag"] or 0)
    return {**found, "lag_by_topic": [{"topic": topic, "lag": lag} for topic, lag in sorted(by_topic.items())]}


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
