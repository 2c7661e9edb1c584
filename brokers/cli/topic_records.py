"""``fleetlog topics analyze`` and ``trim``: what a topic's records are like, and deleting the oldest of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from fleetlog.brokers.cli.client import (
    PartitionsOf,
    Target,
    admin,
    client_options,
    complete_topics,
    first_and_end,
    named_partitions,
    offsets_at,
    topic_partitions,
)
from fleetlog.brokers.cli.options import at_least
from fleetlog.brokers.cli.output import CliError, Output, bytes_text, confirm, count_text, table, warn
from fleetlog.brokers.cli.times import Point, PointType

if TYPE_CHECKING:
    from fleetlog.brokers.cli.topic_reader import StoredBatch, StoredRecord

KEYS_MAX: Final = 1_000_000
TOP_KEYS: Final = 5
TOP_PRODUCERS: Final = 5
FEW_RECORDS: Final = 5
"""A batch with fewer costs more than it need."""
MANY_BATCHES: Final = 20
"""Fewer say nothing of how producers batch."""
LARGE_SHARE: Final = 0.2
"""Of all records with keys: a key that has so many makes its partition larger than the others."""
SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "largest": 1.0}

# ---------------------------------------------------------------- trim


@click.command("trim")
@click.argument("wanted", callback=lambda ctx, param, value: topic_partitions(ctx, param, (value,)),
                metavar="TOPIC[:P,...]", shell_complete=complete_topics)  # fmt: skip
@click.option("--before", "point", type=PointType(), required=True,
              help="The first position that stays: end, end-10, an offset, a time, or -1h.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@client_options
def trim_topic(
    *, target: Target, out: Output, wanted: list[PartitionsOf], point: Point, dry_run: bool, yes: bool
) -> None:
    """Delete the records of a topic before a position, as DeleteRecords does. A time after the last record is the end;
    an offset after it is refused.

    \b
      fleetlog topics trim orders --before -7d --dry-run
      fleetlog topics trim orders:0,3 --before end
    """
    topic = wanted[0].topic
    with admin(target, f"topic {topic}") as client:
        begins, ends = first_and_end(client, named_partitions(client, wanted))
        goals = offsets_at(client, point, begins, ends)
        short = [tp for tp, goal in sorted(goals.items()) if goal > ends[tp]]
        if short:
            raise CliError(
                f"partition {short[0].partition} of {topic} ends at {ends[short[0]]}, before {point.value}: nothing was"
                " deleted; `--before end` deletes all of its records"
            )
        shrinking = {tp: goal for tp, goal in goals.items() if goal > begins[tp]}
        count = sum(goal - begins[tp] for tp, goal in shrinking.items())
        if shrinking and not dry_run:
            where = f"{count_text(len(shrinking), 'partition')} of {topic}"
            confirm(f"Delete {count_text(count, 'offset')} of {where}?", yes)
            client.delete_records(shrinking, target.timeout_ms)
    rows = [[tp.partition, begins[tp], goal, goal - begins[tp]] for tp, goal in sorted(goals.items())]
    out.rows(["partition", "first offset", "new first offset", "offsets"], rows)
    if dry_run:
        warn("nothing was deleted; without --dry-run it is")


# ---------------------------------------------------------------- analyze


class _Figures:
    """What was seen of a topic."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.keys: Counter[int] = Counter()
        self.names: dict[int, bytes] = {}
        self.without_key = self.tombstones = 0
        self.batches: list[StoredBatch] = []
        self.partitions: Counter[int] = Counter()
        self.oldest_ms = self.newest_ms = -1

    def add(self, records: Sequence[StoredRecord], batches: Sequence[StoredBatch]) -> None:
        """Count these."""
        self.batches += [one for one in batches if not one.is_control]
        for one in records:
            if one.marker:
                continue
            self.sizes.append(one.size)
            self.partitions[one.partition] += 1
            self.tombstones += one.value is None
            self.oldest_ms = min(self.oldest_ms, one.timestamp_ms) if self.oldest_ms >= 0 else one.timestamp_ms
            self.newest_ms = max(self.newest_ms, one.timestamp_ms)
            if one.key is None:
                self.without_key += 1
                continue
            mark = hash(one.key)
            if mark in self.keys or len(self.keys) < KEYS_MAX:
                self.keys[mark] += 1
                self.names.setdefault(mark, one.key[:100])

    def value(self) -> dict[str, Any]:
        """As JSON."""
        stored, inflated = sum(one.stored for one in self.batches), sum(one.inflated for one in self.batches)
        codecs = Counter(one.codec for one in self.batches)
        return {
            "records": len(self.sizes),
            "oldest_ms": self.oldest_ms,
            "newest_ms": self.newest_ms,
            "record_bytes": _spread(self.sizes),
            "tombstones": self.tombstones,
            "without_key": self.without_key,
            "distinct_keys": len(self.keys),
            "most_frequent_keys": [
                {"key": self.names[mark].decode(errors="backslashreplace"), "records": number}
                for mark, number in self.keys.most_common(TOP_KEYS)
            ],
            "batches": len(self.batches),
            "batch_records": _spread([one.records for one in self.batches]),
            "batch_bytes": _spread([one.stored for one in self.batches]),
            "stored_bytes": stored,
            "inflated_bytes": inflated,
            "compression_ratio": round(inflated / stored, 2) if stored else None,
            "codecs": dict(codecs.most_common()),
            "producers": self._producers(),
            "partitions": {str(p): number for p, number in sorted(self.partitions.items())},
        }

    def _producers(self) -> list[dict[str, Any]]:
        """Those whose batches have the fewest records, first; -1 are all that are not idempotent."""
        batches = Counter(one.producer_id for one in self.batches)
        records: Counter[int] = Counter()
        for one in self.batches:
            records[one.producer_id] += one.records
        worst = sorted(batches, key=lambda number: (records[number] / batches[number], number))[:TOP_PRODUCERS]
        return [
            {"producer_id": number, "batches": batches[number], "records": records[number],
             "batch_records": round(records[number] / batches[number], 1)}
            for number in worst
        ]  # fmt: skip


def remarks_of(value: dict[str, Any]) -> list[str]:
    """What of an analysis is worth a change, in words."""
    remarks, keyed = [], value["records"] - value["without_key"]
    mean, first = value["batch_records"]["mean"], next(iter(value["most_frequent_keys"]), None)
    if value["batches"] >= MANY_BATCHES and mean < FEW_RECORDS:
        remarks.append(
            f"Records in a batch: {mean:g}. Producers that wait a little (linger.ms) send fewer, larger ones."
        )
    if value["batches"] >= MANY_BATCHES and set(value["codecs"]) == {"none"}:
        remarks.append(
            "Nothing is compressed: with compression.type=lz4 or zstd producers send less, and disks hold more."
        )
    if first is not None and keyed >= 100 and first["records"] > LARGE_SHARE * keyed:
        share = round(100 * first["records"] / keyed)
        remarks.append(f"One key has {share} % of the records with keys: its partition gets more than the others.")
    return remarks


def _spread(numbers: list[int]) -> dict[str, float | int | None]:
    if not numbers:
        return {"mean": None, **dict.fromkeys(SHARES)}
    ordered = sorted(numbers)
    last = len(ordered) - 1
    shares = {name: ordered[min(int(share * len(ordered)), last)] for name, share in SHARES.items()}
    return {"mean": round(sum(ordered) / len(ordered), 1), **shares}


@click.command("analyze")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option("--records", type=click.IntRange(1, 1_000_000), default=100_000, show_default=True,
              help="Look at so many of the newest at most.")  # fmt: skip
@click.option("--megabytes", type=click.IntRange(1, 10_000), default=100, show_default=True,
              help="Read so many MB at most, inflated.")  # fmt: skip
@click.option("--seconds", type=at_least(0.1, 3_600), default=20.0, show_default=True, help="Take so long at most.")
@client_options
def analyze_topic(*, target: Target, out: Output, name: str, records: int, megabytes: int, seconds: float) -> None:
    """Look at a topic's newest committed records: sizes, keys, batches, compression. What is read is bounded.

    Sizes of batches and the compression ratio say how well producers batch: a mean of few records a batch costs brokers
    and disks most. Sizes of records are of key, value and headers.
    """
    from fleetlog.brokers.cli.topic_reader import COMMITTED, TopicReader  # with the kernels, which trim does not need

    with admin(target, f"topic {name}") as client:
        reader = TopicReader(client, name)
        bounds = reader.bounds(undecided=False)
        share = max(records // max(len(bounds), 1), 1)
        at = {p: max(one.first, one.stable - share) for p, one in bounds.items()}
        figures, left, deadline, whole = _Figures(), megabytes * 1_000_000, time.monotonic() + seconds, False
        while left > 0 and time.monotonic() < deadline:
            due = {p: offset for p, offset in at.items() if offset < bounds[p].stable}
            parts = reader.fetch(due, COMMITTED, max(share, 1), left) if due else {}
            if not parts:
                whole = not due
                break
            for p, part in parts.items():
                figures.add([one for one in part.records if one.state in {"", "committed"}], part.batches)
                left -= part.size
                at[p] = max(at[p] + 1, part.next_offset)
        if reader.silent:
            warn(f"left out, since their leaders do not answer: partitions {sorted(reader.silent)}")
        if not bounds:
            raise CliError("no partition could be read")
    value = {"topic": name, "cut_short": not whole, **figures.value()}
    value["remarks"] = remarks_of(value)
    if out.as_json:
        out.value(value)
    else:
        _show(value)


def _show(value: dict[str, Any]) -> None:
    """For people."""
    click.echo(
        f"{value['topic']}: {count_text(value['records'], 'newest record')} in {count_text(value['batches'], 'batch')}"
        f" of {count_text(len(value['partitions']), 'partition')}"
        + (", until the budget ended" if value["cut_short"] else "")
    )
    spreads = {"record": "record_bytes", "batch": "batch_bytes", "records of a batch": "batch_records"}
    rows = []
    for title, name in spreads.items():
        numbers = value[name].values()
        as_text = (
            (lambda one: one)
            if name == "batch_records"
            else lambda one: None if one is None else bytes_text(round(one))
        )
        rows.append([title, *(as_text(number) for number in numbers)])
    table(["size of", "mean", *SHARES], rows)
    click.echo(
        f"stored {bytes_text(value['stored_bytes'])}, inflated {bytes_text(value['inflated_bytes'])}:"
        f" compression ratio {value['compression_ratio']} ({', '.join(value['codecs']) or 'nothing'})"
    )
    click.echo(
        f"keys: {count_text(value['distinct_keys'], 'distinct one')},"
        f" {count_text(value['without_key'], 'record')} without; {count_text(value['tombstones'], 'tombstone')}"
    )
    if value["most_frequent_keys"]:
        table(["most frequent key", "records"], [[one["key"], one["records"]] for one in value["most_frequent_keys"]])
    if len(value["producers"]) > 1:
        table(
            ["producer id", "batches", "records", "records a batch"], [list(one.values()) for one in value["producers"]]
        )
    table(["partition", "records"], list(value["partitions"].items()))
    for one in value["remarks"]:
        click.echo(one)
