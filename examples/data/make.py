"""Writes the examples' data, the same each time: ``python examples/data/make.py`` in any directory.

A line is a record in the order of arrival: its key, a tab, its value as JSON.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
PAGES = ["/", "/search", "/shoes", "/hats", "/cart", "/buy"]
CITIES = ["Lagos", "Lima", "Lyon", "Oslo", "Pune", "Quito"]

Arrival = tuple[datetime, str, dict[str, Any] | None]
"""When a record arrives, its key, its value."""


def text(time: datetime) -> str:
    """As the records have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def clicks() -> list[Arrival]:
    """Two days of 24 users. Some clicks come up to nine minutes late; some of Monday's, of phones without a network,
    come on Tuesday evening. The first click of Wednesday ends all sessions but its own."""
    rng = random.Random("clicks")
    found: list[Arrival] = []
    for user in range(24):
        for _ in range(6):
            time = MONDAY + timedelta(seconds=rng.randrange(47 * 3600))
            for _ in range(rng.randrange(2, 7)):
                arrival = time + timedelta(seconds=rng.randrange(540) if rng.random() < 0.2 else 0)
                if time < MONDAY + timedelta(hours=10) and rng.random() < 0.1:
                    arrival = MONDAY + timedelta(hours=44, seconds=rng.randrange(3600))
                name = f"u{user:02}"
                found.append((arrival, name, {"user": name, "at": text(time), "page": rng.choice(PAGES)}))
                time += timedelta(seconds=rng.randrange(20, 1500))
    last = MONDAY + timedelta(hours=60)
    return [*found, (last, "u00", {"user": "u00", "at": text(last), "page": "/"})]


def orders_and_payments() -> tuple[list[Arrival], list[Arrival]]:
    """Two days of orders: paid within the hour, too late, or never. Some payments arrive before their orders."""
    rng = random.Random("orders")
    orders: list[Arrival] = []
    payments: list[Arrival] = []
    for number in range(1000, 1240):
        time = MONDAY + timedelta(seconds=rng.randrange(47 * 3600))
        fields = {"order": number, "customer": f"c{rng.randrange(60)}", "at": text(time), "cents": rng.randrange(9999)}
        orders.append((time + timedelta(seconds=rng.randrange(1200)), str(number), fields))
        chance = rng.random()
        if chance < 0.9:
            after = rng.randrange(10, 3600) if chance < 0.8 else rng.randrange(3700, 9000)
            paid = time + timedelta(seconds=after)
            fields = {"payment": 5000 + number, "order": number, "at": text(paid), "cents": fields["cents"]}
            payments.append((paid + timedelta(seconds=rng.randrange(600)), str(number), fields))
    last = MONDAY + timedelta(hours=60)
    orders.append((last, "1240", {"order": 1240, "customer": "c0", "at": text(last), "cents": 100}))
    payments.append((last, "1240", {"payment": 6240, "order": 1240, "at": text(last), "cents": 100}))
    return orders, payments


def changes() -> list[Arrival]:
    """Changes of a table of customers as Debezium tells them: created, updated, deleted, some created again.

    After a delete comes a tombstone. The connector was started again twice, and told what it had told before.
    """
    rng = random.Random("changes")
    table: dict[int, dict[str, Any]] = {}
    told: list[tuple[str, dict[str, Any] | None]] = []
    for lsn in range(7000, 7360):
        number = rng.randrange(1, 41)
        before = table.get(number)
        if before is None or rng.random() < 0.8:
            after = {"id": number, "city": rng.choice(CITIES), "points": rng.randrange(1000)}
            table[number] = after
            told.append((str(number), _change(lsn, "c" if before is None else "u", before, after)))
        else:
            del table[number]
            told += [(str(number), _change(lsn, "d", before, None)), (str(number), None)]
    for position in (300, 150):
        told[position:position] = told[position - 60 : position]
    return [(MONDAY + timedelta(seconds=position), *one) for position, one in enumerate(told)]


def _change(lsn: int, op: str, before: Any, after: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"table": "customers", "lsn": lsn}}


def lines(arrivals: Iterable[Arrival]) -> str:
    """In the order of arrival."""
    in_order = sorted(arrivals, key=lambda arrival: arrival[0])
    return "".join(f"{key}\t{json.dumps(value, separators=(',', ':'))}\n" for _, key, value in in_order)


def files() -> dict[str, str]:
    """Each file's name and content."""
    orders, payments = orders_and_payments()
    found = {"clicks": clicks(), "orders": orders, "payments": payments, "changes": changes()}
    return {f"{name}.tsv": lines(arrivals) for name, arrivals in found.items()}


if __name__ == "__main__":
    for name, content in files().items():
        (HERE / name).write_text(content)
