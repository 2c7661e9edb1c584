"""What a suite measured: rows of numbers, kept as JSON in ``perf/results``, and shown as medians with their spread."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf import machine

DIRECTORY = Path(__file__).parent / "results"

Row = dict[str, Any]
"""``case`` and ``target`` name it, ``round`` counts repetitions; everything else is a number."""


class Spread:
    """Several measurements of one thing."""

    def __init__(self, values: Iterable[float]) -> None:
        self.values = sorted(values)
        assert self.values, "nothing was measured"
        self.median = float(statistics.median(self.values))
        self.low, self.high = self.values[0], self.values[-1]

    def __format__(self, spec: str) -> str:
        if len(self.values) == 1:
            return number(self.median)
        return f"{number(self.median)} ({number(self.low)} - {number(self.high)})"


def number(value: float) -> str:
    """Three digits that matter."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


@dataclass(slots=True)
class Results:
    """The rows of one suite's run. :meth:`add` says each row as it comes, :meth:`save` writes the file."""

    suite: str
    rows: list[Row] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, suite: str, **about: Any) -> Results:
        """A new run, with the machine's description."""
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        about = {
            "command": machine.command(), "started": started, "load": machine.load(), **machine.describe(), **about
        }  # fmt: skip
        return cls(suite, about=about)

    @classmethod
    def load(cls, suite: str) -> Results | None:
        """The last run's, None if there is none of this form."""
        path = DIRECTORY / f"{suite}.json"
        found = json.loads(path.read_text()) if path.exists() else None
        if not isinstance(found, dict) or "rows" not in found:
            return None
        return cls(suite, found["rows"], found["about"])

    def add(self, case: str, target: str, values: Mapping[str, Any], *, round_: int = 0) -> Row:
        """Keep a row, and print it."""
        row = {"case": case, "target": target, "round": round_, **values}
        self.rows.append(row)
        numbers = "  ".join(
            f"{name} {number(value)}" for name, value in values.items() if isinstance(value, int | float)
        )
        print(f"{case:<34} {target:<10} {numbers}", flush=True)
        return row

    def save(self) -> Path:
        """Write the file that ``perf report`` reads."""
        DIRECTORY.mkdir(exist_ok=True)
        path = DIRECTORY / f"{self.suite}.json"
        path.write_text(json.dumps({"about": self.about, "rows": self.rows}, indent=1) + "\n")
        print(f"written: {path}", file=sys.stderr)
        return path

    # ---- reading

    def values(self, case: str, target: str, name: str) -> list[float]:
        """What was measured for it in all rounds."""
        return [
            row[name]
            for row in self.rows
            if row["case"] == case and row["target"] == target and row.get(name) is not None
        ]

    def spread(self, case: str, target: str, name: str) -> Spread | None:
        """The same as one thing; None if there is nothing."""
        values = self.values(case, target, name)
        return Spread(values) if values else None

    def median(self, case: str, target: str, name: str) -> float:
        """The median; NaN if there is nothing."""
        found = self.spread(case, target, name)
        return found.median if found else float("nan")

    def cases(self) -> list[str]:
        """In the order in which they came."""
        return list(dict.fromkeys(row["case"] for row in self.rows))

    def targets(self, case: str) -> list[str]:
        """The servers measured in a case."""
        return list(dict.fromkeys(row["target"] for row in self.rows if row["case"] == case))


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns also stand in line on a terminal."""
    cells = [list(heads), *[list(line) for line in lines]]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    rows = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([rows[0], rule, *rows[1:]])
