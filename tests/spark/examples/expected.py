"""What the examples must write, computed from their data in plain Python."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[3] / "examples" / "data"

Row = tuple[str, dict[str, Any] | None]
"""Key and value of a record."""


def lines(name: str) -> list[Row]:
    """A file of the examples' data."""
    split = (line.split("\t") for line in (DATA / f"{name}.tsv").read_text().splitlines())
    return [(key, json.loads(value)) for key, value in split]


def _time(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["at"])


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def in_time(
    records: list[dict[str, Any]], late: timedelta, per_batch: int, gap: timedelta = timedelta()
) -> list[dict[str, Any]]:
    """Those that come before the watermark, wherever batches of ``per_batch`` records were cut.

    A record that is late for one way to cut the batches and not for another is an error in the data. Spark drops what
    is older than the watermark of the batch before, which knows the batches before that one; of sessions, what is
    older by their gap.
    """
    kept, newest = [], [datetime.fromtimestamp(0, UTC)]
    for position, record in enumerate(records):
        if _time(record) > newest[-1] - late:
            kept.append(record)
        else:
            assert _time(record) + gap < newest[max(0, position - 2 * per_batch)] - late, record
        newest.append(max(newest[-1], _time(record)))
    return kept


def sessions(per_batch: int) -> list[Row]:
    """All but the last click's, which stays open."""
    records = [value for _, value in lines("clicks") if value is not None]
    gap = timedelta(minutes=30)
    clicks = in_time(records, timedelta(minutes=10), per_batch, gap)
    assert len(clicks) < len(records), "no click is late"
    found: list[Row] = []
    for user in {click["user"] for click in clicks}:
        times = sorted((_time(click), click["page"]) for click in clicks if click["user"] == user)
        starts = [0] + [n for n in range(1, len(times)) if times[n][0] - times[n - 1][0] > gap]
        for first, end in zip(starts, [*starts[1:], len(times)], strict=True):
            session = times[first:end]
            bounds = {"first": _text(session[0][0]), "last": _text(session[-1][0])}
            bought = any(page == "/buy" for _, page in session)
            found.append((user, {"user": user, **bounds, "clicks": len(session), "bought": bought}))
    last = _text(max(_time(click) for click in clicks))
    return [(key, value) for key, value in found if value is None or value["last"] != last]


def settled_orders(per_batch: int) -> list[Row]:
    """One record for each order."""
    orders = [value for _, value in lines("orders") if value is not None]
    payments = [value for _, value in lines("payments") if value is not None]
    for records in (orders, payments):
        assert in_time(records, timedelta(hours=1), per_batch) == records, "the data has late orders or payments"
    paid = {payment["order"]: payment for payment in payments}
    found: list[Row] = []
    for order in orders:
        payment = paid.get(order["order"])
        value = {**order, "at": _text(_time(order)), "state": "unpaid"}
        if payment is not None and timedelta() <= _time(payment) - _time(order) <= timedelta(hours=1):
            value |= {"state": "paid", "payment": payment["payment"], "paid_at": _text(_time(payment))}
        found.append((str(order["order"]), value))
    return found


def customers(batches: Iterable[list[Row]]) -> list[Row]:
    """Of each batch one record for each row of the table that it has changes of: what is newest by then."""
    newest: dict[str, dict[str, Any]] = {}
    found: list[Row] = []
    for batch in batches:
        changed = {key: value for key, value in batch if value is not None}
        for key, value in batch:
            if value is not None and (key not in newest or newest[key]["source"]["lsn"] < value["source"]["lsn"]):
                newest[key] = value
        found += [(key, newest[key]["after"]) for key in changed]
    return found


def table() -> dict[str, dict[str, Any]]:
    """The table that the changes lead to: each applied once, in the order of the database's log."""
    rows: dict[str, dict[str, Any]] = {}
    changes = {value["source"]["lsn"]: (key, value) for key, value in lines("changes") if value is not None}
    for _, (key, value) in sorted(changes.items()):
        if value["op"] == "d":
            del rows[key]
        else:
            rows[key] = value["after"]
    return rows
