"""What the main job prints at its end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.flights.steps import Result

LATE = ("late", "very late")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def print_reconciliation(console: Console, result: Result, evidence: Iterable[tuple[str, str]]) -> None:
    """The verdict, and what shows that the two kills really hit where they were meant to."""
    table = _table("Reconciliation, by a stock consumer with read_committed", "", "")
    rows = (
        ("flights sent", result.input),
        ("of them without a tail number (null key)", result.keyless),
        ("records in the result", result.output),
        ("duplicates", result.duplicates),
        ("missing", result.missing),
        ("not among the input", result.unexpected),
        ("different from an independent join", result.wrong),
        ("aborted records in the log, skipped by read_committed", result.skipped),
    )
    for name, value in rows:
        table.add_row(name, f"{value:,}")
    console.print(table)
    if result.wrong_example:
        console.print(f"an example of a different record: {result.wrong_example}", markup=False)
    table = _table("Evidence", "", "")
    table.columns[1].justify = "left"
    for name, text in evidence:
        table.add_row(name, text)
    console.print(table)


def print_findings(console: Console, rows: list[dict[str, Any]]) -> None:
    """A few things the enriched flights tell."""
    classes = Counter(row["delay_class"] for row in rows)
    table = _table("How the flights of 2013 went", "", "flights", "share")
    for name in ("on time", "late", "very late", "cancelled", "diverted"):
        table.add_row(name, f"{classes[name]:,}", f"{classes[name] / len(rows):.1%}")
    console.print(table)
    by_airline: dict[str, Counter[str]] = defaultdict(Counter)
    by_hour: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        by_airline[row.get("airline") or row["carrier"]][row["delay_class"]] += 1
        by_hour[row["scheduled"][5:10]][row["delay_class"]] += 1
    ranked = sorted(by_airline.items(), key=lambda item: -_late_share(item[1]))
    ranked = [item for item in ranked if item[1].total() >= 100]
    table = _table("Arriving more than 15 minutes late", "airline", "flights", "late")
    shown = ranked[:3] + ranked[-3:] if len(ranked) > 6 else ranked
    for name, counted in shown:
        table.add_row(name, f"{counted.total():,}", f"{_late_share(counted):.1%}")
    console.print(table)
    day, counted = max(by_hour.items(), key=lambda item: (item[1]["cancelled"], item[0]))
    console.print(
        f"The worst day (UTC) was 2013-{day}: {counted['cancelled']:,} of {counted.total():,} flights cancelled."
    )


def _late_share(counted: Counter[str]) -> float:
    return sum(counted[name] for name in LATE) / counted.total()
