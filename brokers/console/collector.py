"""Collects the console's figures: each ten seconds it reads ``/metrics`` of all brokers and adds a step to the history.

It knows the brokers, and where they have their metrics, by a client of its own login, and shows nobody anything: pages
show of the history what their viewer may describe.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import isnan
from pathlib import Path
from typing import Any, Final

import click

from fleetlog.brokers.cli.broker_metrics import metrics_address, metrics_lines
from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.console.clients import FleetClients
from fleetlog.brokers.console.history import (
    KINDS,
    MOST_KEPT,
    NAN,
    STEP_S,
    SUM,
    History,
    HistoryError,
    folded,
    trouble_text,
)

logger = logging.getLogger(__name__)

PAGE_BYTES_MAX: Final = 64_000_000
READERS: Final = 4
"""Brokers that are read at the same time."""
ADDRESSES_S: Final = 60.0
LARGEST: Final = 50
"""Topics of which partitions have figures of their own."""
LATEST_S: Final = 25.0
"""Counters that are older than that say nothing of a step: it stays empty."""
_LABEL: Final = re.compile(rb'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")

Figures = dict[tuple[str, str], list[float]]


class Scrape:
    """What one page of a broker says, as far as the history has it."""

    def __init__(self, lines: Iterable[bytes], at_s: float) -> None:
        self.at_s = at_s
        self.plain: dict[bytes, float] = {}
        """Figures without labels, and the sums of those whose labels are not kept."""
        self.labelled: dict[bytes, dict[str, float]] = {}
        """Of each name the figures by the one label that is kept; several lines of it are added up."""
        self.histograms: dict[str, dict[float, float]] = {}
        """Cumulated counts by upper bound: of Produce, Fetch and ``loop``."""
        self.ends: dict[tuple[str, str], float] = {}
        """The end offset of each partition that the broker leads."""
        self.group_topics: dict[str, set[str]] = {}
        """Of which topics the lag of a group is a sum."""
        for line in lines:
            name, brace, rest = line.partition(b"{")
            if brace:
                label = _KEPT.get(name)
                if label is not None:
                    self._labelled(name, label, rest)
            elif line.startswith(_PLAIN):
                name, _, number = line.partition(b" ")
                self.plain[name] = float(number)

    def _labelled(self, name: bytes, label: bytes, rest: bytes) -> None:
        text, _, number = rest.rpartition(b"} ")
        labels = dict(_LABEL.findall(text))
        key, figure = _unescaped(labels.get(label, b"")), float(number)
        if name in _HISTOGRAMS:
            of = key if label == b"api" else "loop"
            if of in _TIMED:
                self.histograms.setdefault(of, {})[float(labels[b"le"])] = figure
        elif name == _END:
            self.ends[key, _unescaped(labels.get(b"partition", b""))] = figure
        else:
            if name == _LAG:
                self.group_topics.setdefault(key, set()).add(_unescaped(labels.get(b"topic", b"")))
            by_label = self.labelled.setdefault(name, {})
            known = by_label.get(key, 0.0)
            by_label[key] = max(known, figure) if name == _LAG_S else known + figure

    def total(self, name: bytes) -> float:
        """The sum over all labels; nan where the broker has no such figure."""
        by_label = self.labelled.get(name)
        return sum(by_label.values()) if by_label is not None else NAN


def _unescaped(text: bytes) -> str:
    label = text.decode(errors="replace")
    return _ESCAPED.sub(lambda one: "\n" if one[1] == "n" else one[1], label) if "\\" in label else label


_PLAIN: Final = (
    b"fleetlog_connections ", b"fleetlog_cpu_busy ", b"fleetlog_under_replicated_partitions ",
    b"fleetlog_oldest_transaction_seconds ",
)  # fmt: skip
_IN, _OUT = b"fleetlog_topic_produced_bytes_total", b"fleetlog_topic_fetched_bytes_total"
_RECORDS, _SIZE = b"fleetlog_topic_produced_records_total", b"fleetlog_topic_log_bytes"
_LAG, _LAG_S = b"fleetlog_group_lag_records", b"fleetlog_group_lag_seconds"
_MEMBERS, _COMMITS = b"fleetlog_group_members", b"fleetlog_group_commits_total"
_REBALANCES, _CONSUMED = b"fleetlog_group_rebalances_total", b"kafka_consumergroup_current_offset_sum"
_REQUESTS, _END = b"fleetlog_requests_total", b"kafka_topic_partition_current_offset"
_TOTAL, _USABLE, _COORDINATORS = b"fleetlog_disk_total_bytes", b"fleetlog_disk_usable_bytes", b"fleetlog_coordinators"
_REFUSED: Final = b"fleetlog_schema_refused_records_total"
_HISTOGRAMS: Final = (b"fleetlog_request_seconds_bucket", b"fleetlog_loop_lag_seconds_bucket")
_TIMED: Final = ("Produce", "Fetch", "loop")
_KEPT: Final[Mapping[bytes, bytes]] = {
    _IN: b"topic", _OUT: b"topic", _RECORDS: b"topic", _SIZE: b"topic", _END: b"topic", _LAG: b"group",
    _LAG_S: b"group", _MEMBERS: b"group", _COMMITS: b"group", _REBALANCES: b"group", _CONSUMED: b"consumergroup",
    _REFUSED: b"topic", _REQUESTS: b"api", _TOTAL: b"directory", _USABLE: b"directory", _COORDINATORS: b"what",
    _HISTOGRAMS[0]: b"api", _HISTOGRAMS[1]: b"le",
}  # fmt: skip
"""The names that are kept, and the label by which."""
_OFFSET_APIS: Final = ("ListOffsets", "Metadata", "OffsetForLeaderEpoch", "ApiVersions")
_GROUP_APIS: Final = (
    "OffsetCommit", "OffsetFetch", "TxnOffsetCommit", "FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat",
    "LeaveGroup", "ConsumerGroupHeartbeat",
)  # fmt: skip


class Differences:
    """Two pages of one broker: what happened between them."""

    def __init__(self, before: Scrape | None, now: Scrape) -> None:
        self.now = now
        fresh = before is not None and 0 < now.at_s - before.at_s <= LATEST_S
        self.before = before if fresh else None
        self.seconds = now.at_s - before.at_s if before is not None else 1.0

    def grown(self, name: bytes, key: str) -> float:
        """How much a counter grew; nan where that is not known, as after the broker's start."""
        if self.before is None:
            return NAN
        now, then = (one.labelled.get(name, {}) for one in (self.now, self.before))
        if key not in now:
            return NAN
        grown = now[key] - then.get(key, 0.0)
        return grown if grown >= 0 else NAN

    def rate(self, name: bytes, *keys: str) -> float:
        """How much counters grew in a second, added up: those named, or all."""
        grown = [self.grown(name, key) for key in keys or self.now.labelled.get(name, ())]
        return sum(grown) / self.seconds if self.before is not None else NAN

    def histogram(self, name: str) -> dict[float, float]:
        """Cumulated counts of what happened between the pages; empty where that is not known."""
        then = self.before.histograms.get(name, {}) if self.before is not None else {}
        now = self.now.histograms.get(name, {}) if self.before is not None else {}
        grown = {bound: count - then.get(bound, 0.0) for bound, count in now.items()}
        return grown if all(count >= 0 for count in grown.values()) else {}


def p99(histogram: Mapping[float, float]) -> float:
    """In proportion between the bounds, as Prometheus has it; nan where nothing was counted."""
    bounds = sorted(histogram)
    wanted = histogram[bounds[-1]] * 0.99 if bounds else 0.0
    if not wanted:
        return NAN
    low = below = 0.0
    for bound in bounds:
        if histogram[bound] >= wanted:
            break
        low, below = bound, histogram[bound]
    return low if bound == float("inf") else low + (bound - low) * (wanted - below) / (histogram[bound] - below)


def figures_of(brokers: Mapping[int, Differences], complete: bool) -> Figures:
    """A step's figures. Sums over brokers are left out unless all of them answered: they would show a dip."""
    figures: Figures = {}
    for broker_id, one in brokers.items():
        figures["broker", str(broker_id)] = _of_broker(one)
    if not complete or not brokers:
        return figures
    rows = [figures["broker", str(broker_id)] for broker_id in brokers]
    number = {column.name: index for index, column in enumerate(KINDS["broker"])}

    def added(name: str) -> float:
        return sum(row[number[name]] for row in rows)

    every = list(brokers.values())
    figures["fleet", ""] = [
        added("bytes_in"), added("bytes_out"),
        sum(one.rate(_RECORDS) for one in every),
        _consumed(every),
        p99(_summed(every, "Produce")), p99(_summed(every, "Fetch")),
        added("under_replicated"), added("disk_used"), added("disk_total"), added("connections"),
        sum(one.now.labelled.get(_COORDINATORS, {}).get("transactions_open", 0.0) for one in every),
        max(one.now.plain.get(b"fleetlog_oldest_transaction_seconds", NAN) for one in every),
    ]  # fmt: skip
    figures.update(_topics(every))
    figures.update(_partitions(every))
    figures.update(_groups(every))
    return figures


def _summed(every: Iterable[Differences], name: str) -> dict[float, float]:
    total: dict[float, float] = {}
    for one in every:
        for bound, count in one.histogram(name).items():
            total[bound] = total.get(bound, 0.0) + count
    return total


def _of_broker(one: Differences) -> list[float]:
    plain, total = one.now.plain, one.now.total(_TOTAL)
    requests = one.now.labelled.get(_REQUESTS, {})
    others = [api for api in requests if api not in {"Produce", "Fetch", *_OFFSET_APIS, *_GROUP_APIS}]
    return [
        one.rate(_IN), one.rate(_OUT), p99(one.histogram("Produce")), p99(one.histogram("Fetch")),
        p99(one.histogram("loop")), plain.get(b"fleetlog_cpu_busy", NAN),
        total - one.now.total(_USABLE) if total >= 0 else NAN, total if total >= 0 else NAN,
        plain.get(b"fleetlog_connections", NAN), plain.get(b"fleetlog_under_replicated_partitions", NAN),
        one.rate(_REQUESTS, "Produce"), one.rate(_REQUESTS, "Fetch"), one.rate(_REQUESTS, *_OFFSET_APIS),
        one.rate(_REQUESTS, *_GROUP_APIS), one.rate(_REQUESTS, *others),
    ]  # fmt: skip


def _consumed(every: list[Differences]) -> float:
    """Records that groups went over: by how much their offsets grew. One that was set back counts for nothing."""
    if any(one.before is None for one in every):
        return NAN
    rates = [
        one.grown(_CONSUMED, group) / one.seconds
        for one in every
        for group in one.now.labelled.get(_CONSUMED, ())
        if one.before is not None and group in one.before.labelled.get(_CONSUMED, ())
    ]
    return sum(rate for rate in rates if not isnan(rate))


def _topics(every: list[Differences]) -> Iterator[tuple[tuple[str, str], list[float]]]:
    names = {name for one in every for name in one.now.labelled.get(_SIZE, ())}
    for name in sorted(names):
        rates = [
            folded((one.grown(metric, name) / one.seconds for one in every), SUM) for metric in (_IN, _OUT, _RECORDS)
        ]  # fmt: skip
        yield ("topic", name), [*rates, folded((one.now.labelled.get(_SIZE, {}).get(name, NAN) for one in every), SUM)]


def _partitions(every: list[Differences]) -> Iterator[tuple[tuple[str, str], list[float]]]:
    sizes: dict[str, float] = {}
    for one in every:
        for name, size in one.now.labelled.get(_SIZE, {}).items():
            sizes[name] = sizes.get(name, 0.0) + size
    largest = set(sorted(sizes, key=lambda name: -sizes[name])[:LARGEST])
    earlier = {key: end for one in every if one.before is not None for key, end in one.before.ends.items()}
    for one in every:
        for key, end in one.now.ends.items():
            if key[0] in largest:
                grown = end - earlier.get(key, NAN)
                yield ("partition", f"{key[0]}/{key[1]}"), [grown / one.seconds if grown >= 0 else NAN]


def _groups(every: list[Differences]) -> Iterator[tuple[tuple[str, str], list[float]]]:
    for one in every:
        by_name = one.now.labelled
        for name in {**by_name.get(_MEMBERS, {}), **by_name.get(_LAG, {})}:
            yield ("group", name), [
                by_name.get(_LAG, {}).get(name, NAN), by_name.get(_LAG_S, {}).get(name, NAN),
                by_name.get(_MEMBERS, {}).get(name, NAN),
                one.grown(_COMMITS, name) / one.seconds, one.grown(_REBALANCES, name),
            ]  # fmt: skip


def state_directory() -> Path:
    """Where figures stand, by the XDG base directory specification."""
    folder = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(folder) / "fleetlog" / "console"


class FigureCollector:
    """A thread that adds steps to the history until it is stopped. ``history`` is None before it knows the fleet."""

    def __init__(self, target: Target, directory: Path | None = None) -> None:
        self.history: History | None = None
        self.trouble: str | None = "the brokers have not been asked yet"
        """Why there are no new figures at all; None if there are."""
        self.troubles: dict[int, str] = {}
        """Why brokers told none, by id."""
        self.group_topics: dict[str, set[str]] = {}
        """The topics that were in the sums of each group, as long as this process knows."""
        self._directory = directory
        self._clients = FleetClients(target, lambda _: True)
        self._scrapes: dict[int, Scrape] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._addressed_s = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="figures", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the step under way or some seconds."""
        self._ends.set()
        self._thread.join(5)
        self._clients.close()
        if self.history is not None and not self._thread.is_alive():
            self.history.close()

    def refused_records(self) -> dict[str, int]:
        """Records that brokers refused for their schemas since each of them started, by topic, at the last step."""
        counts: dict[str, int] = {}
        for scrape in self._scrapes.values():
            for topic, count in scrape.labelled.get(_REFUSED, {}).items():
                counts[topic] = counts.get(topic, 0) + int(count)
        return counts

    def _run(self) -> None:
        wait_s = 0.0
        while not self._ends.wait(wait_s):
            try:
                self._step()
                trouble = None
            except click.ClickException as error:
                trouble = error.format_message()
            except HistoryError as error:
                trouble = str(error)
            except OSError as error:
                trouble = trouble_text(error, self.history.directory if self.history else state_directory())
            except Exception as error:  # pages go on without figures, and say why
                logger.exception("cannot collect figures")
                trouble = f"{type(error).__name__}: see the console's log"
            if trouble is not None and trouble != self.trouble:
                logger.warning("no figures: %s", trouble)
            self.trouble = trouble
            wait_s = STEP_S - time.time() % STEP_S

    def _step(self) -> None:
        with self._clients.lend(None) as client:
            cluster = client.describe_cluster()
            hosts = {row["broker_id"]: str(row["host"]) for row in cluster["brokers"]}
            history = self._history_of(cluster["cluster_id"])
            troubles = self._find(client, hosts)
        with ThreadPoolExecutor(READERS) as readers:
            read = dict(zip(self._addresses, readers.map(self._scrape, self._addresses.values()), strict=True))
        scrapes: dict[int, Scrape] = {}
        for broker_id, scrape in read.items():
            if isinstance(scrape, Scrape):
                scrapes[broker_id] = scrape
            else:
                troubles[broker_id] = scrape
                self._addressed_s = 0.0
        brokers = {
            broker_id: Differences(self._scrapes.get(broker_id), scrape) for broker_id, scrape in scrapes.items()
        }
        self.troubles, self._scrapes = troubles, scrapes
        if len(self.group_topics) > 2 * MOST_KEPT["group"]:
            self.group_topics = {}
        for scrape in scrapes.values():
            for group, topics in scrape.group_topics.items():
                self.group_topics[group] = self.group_topics.get(group, set()) | topics
        at = round(time.time() / STEP_S) * STEP_S
        history.add(at, figures_of(brokers, complete=not troubles))

    def _history_of(self, cluster_id: str) -> History:
        """That of the fleet that answers: it may be another one than before at the same address."""
        directory = (self._directory or state_directory()) / re.sub(r"[^A-Za-z0-9_-]", "_", cluster_id)
        if self.history is None or self.history.directory != directory:
            if self.history is not None:
                self.history.close()
            self._scrapes, self.history = {}, None
            self.history = History(directory)
        return self.history

    def _find(self, client: Any, hosts: Mapping[int, str]) -> dict[int, str]:
        """Where brokers have their metrics, once in a while; returns what is wrong, by broker."""
        if hosts.keys() == self._addresses.keys() and time.monotonic() - self._addressed_s < ADDRESSES_S:
            return {}
        self._addresses, troubles = {}, {}
        for broker_id, host in sorted(hosts.items()):
            try:
                self._addresses[broker_id] = metrics_address(client, broker_id, host)
            except (ValueError, click.ClickException) as error:
                text = error.format_message() if isinstance(error, click.ClickException) else str(error)
                troubles[broker_id] = text
        self._addressed_s = time.monotonic()
        return troubles

    @staticmethod
    def _scrape(address: tuple[str, int]) -> Scrape | str:
        """The broker's page, or what is wrong with it."""
        try:
            return Scrape(metrics_lines(address, PAGE_BYTES_MAX), time.monotonic())
        except OSError as error:
            host, port = address
            return f"its admin.listener at {host}:{port} does not answer: {error.strerror or error}"
        except ValueError as error:
            return str(error)
