"""``fleetlog topics compact``, and how far the copies of compacted topics are clean."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import click

from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.client import (
    PartitionsOf,
    Target,
    admin,
    client_options,
    complete_topics,
    known_partitions,
    raise_for_code,
)
from fleetlog.brokers.cli.output import CliError, Output, bytes_text, count_text, progress
from fleetlog.brokers.cli.overview import PATIENCE_S, Overview, fetch_overview
from fleetlog.wire import messages
from fleetlog.wire.messages import Encodable

ASKED, CLEANING, STOPPED, OFF = 1, 2, 3, 4
STATES = ("idle", "asked for", "under way", "stopped", "off")
POLL_S = 0.5


class Copy(NamedTuple):
    """A broker's copy of a partition."""

    topic: str
    partition: int
    broker: int


class CopyFigures(NamedTuple):
    """How far a copy is clean."""

    state: int
    clean_offset: int
    end_offset: int
    size_bytes: int
    dirty_ratio: float
    trouble: str | None


Figures = dict[Copy, CopyFigures]
COLUMNS = ["partition", "broker", "compaction", "clean up to", "dirty", "size", "trouble"]


def compaction_of(client: AdminClient, overview: Overview) -> Figures:
    """The figures of all copies of the overview's partitions that are compacted; silent brokers' are missing."""
    figures_of = _figures(client, _copies(overview.partitions.values()))
    return {copy: figures for copy, figures in figures_of.items() if figures.state != OFF}


def figure_rows(figures: Figures, topic: str) -> list[list[Any]]:
    """Of one topic, as ``COLUMNS``."""
    return [
        [
            copy.partition, copy.broker, STATES[one.state], one.clean_offset, f"{one.dirty_ratio:.0%}",
            bytes_text(one.size_bytes), one.trouble,
        ]
        for copy, one in sorted(figures.items())
        if copy.topic == topic
    ]  # fmt: skip


def _copies(partitions: Iterable[Any]) -> list[Copy]:
    return [Copy(p.topic, p.index, broker) for p in partitions for broker in p.replicas]


def _ask(client: AdminClient, copies: Iterable[Copy], request: Callable[..., Encodable]) -> dict[Copy, Any]:
    """Ask each broker about its copies; the answer's row for each of them. Silent brokers' copies are missing."""
    named: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for copy in copies:
        named[copy.broker][copy.topic].append(copy.partition)
    asked = {broker: request(topics=list(topics.items())) for broker, topics in named.items()}
    return {
        Copy(topic.name, row.partition_index, broker): row
        for broker, answer in client.ask_each(asked, PATIENCE_S).items()
        if answer is not None
        for topic in answer.topics
        for row in topic.partitions
    }


def _figures(client: AdminClient, copies: Iterable[Copy]) -> Figures:
    return {
        copy: CopyFigures(row.state, row.clean_offset, row.end_offset, row.size_bytes, row.dirty_ratio, row.trouble)
        for copy, row in _ask(client, copies, messages.DescribeCompactionRequest).items()
        if not row.error_code
    }


@click.command("compact")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--partition", "-p", "indexes", type=int, multiple=True, help="Only this partition (several times).")
@click.option("--now", is_flag=True, help="Also compact records that min.compaction.lag.ms would keep.")
@click.option("--no-wait", is_flag=True, help="Return when all brokers have been asked.")
@client_options
def compact_topics(
    *, target: Target, out: Output, names: tuple[str, ...], indexes: tuple[int, ...], now: bool, no_wait: bool
) -> None:
    """Compact topics soon, however little of them is dirty, on all brokers that hold a replica; wait for the end.

    The active segments are closed for that, so that what was written until now is covered. Records younger than
    min.compaction.lag.ms stay, unless --now is given. In any case tombstones stay for delete.retention.ms, and what is
    not replicated, or behind the first record of an open transaction, is left for a later pass. If this command is
    ended, the brokers go on. Needs the right Alter on the topic, and Describe.
    """
    if indexes and len(names) != 1:
        raise click.UsageError("--partition needs exactly one topic")
    with admin(target) as client:
        known_partitions(client, [PartitionsOf(name, indexes or None) for name in names])
        overview = fetch_overview(client, list(dict.fromkeys(names)), directories=False)
        copies = _copies(p for p in overview.partitions.values() if not indexes or p.index in indexes)
        before = _figures(client, copies)
        _ask_for(client, copies, now)
        if no_wait:
            out.done("asked for", {"asked": len(copies)})
            return
        after = _wait(client, list(before), out, target.timeout_s)
    rows = [_row(copy, before.get(copy), after.get(copy), now) for copy in copies]
    out.rows(["topic", "partition", "broker", "clean up to", "before", "after", "note"], rows)
    if any(row[3] is None for row in rows):
        raise CliError("not all copies are compacted; see the notes")


def _ask_for(client: AdminClient, copies: list[Copy], now: bool) -> None:
    for copy, row in _ask(client, copies, partial(messages.CompactTopicsRequest, now=now)).items():
        what = f"topic {copy.topic}, partition {copy.partition} on broker {copy.broker}"
        raise_for_code(what, row.error_code, row.error_message)


def _wait(client: AdminClient, copies: list[Copy], out: Output, patience_s: float) -> Figures:
    """Until nothing is asked for any more; brokers that do not answer are waited for ``patience_s``."""
    after: Figures = {}
    silent_since = time.monotonic()
    with progress(not out.as_json) as bar:
        task = bar.add_task("compacting", total=len(copies))
        while True:
            figures = _figures(client, copies)
            after |= figures
            if len(figures) == len(copies):
                silent_since = time.monotonic()
            working = sum(one.state in (ASKED, CLEANING) for one in figures.values())
            bar.update(task, completed=len(figures) - working)
            if not working and (len(figures) == len(copies) or time.monotonic() > silent_since + patience_s):
                return figures
            time.sleep(POLL_S)


def _row(copy: Copy, before: CopyFigures | None, after: CopyFigures | None, now: bool) -> list[Any]:
    if before is None or after is None:
        return [*copy, None, None, None, "the broker does not answer, or is older"]
    note = after.trouble
    if note is None and after.clean_offset < before.end_offset:
        young = "" if now else ", or younger than min.compaction.lag.ms"
        left = count_text(before.end_offset - after.clean_offset, "offset", "are")
        note = f"{left} left for later: not replicated, or behind an open transaction{young}"
    clean = None if after.state == STOPPED else after.clean_offset
    return [*copy, clean, before.size_bytes, after.size_bytes, note]
