"""Writes the Grafana dashboards beside it: `python deploy/monitoring/dashboards.py`; a test compares.

A panel is a title, a unit and its expressions, each with the legend of its lines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "dashboards"
JOB = 'job="fleetlog", instance=~"$instance"'
COLUMNS, WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 8, 4


class Panel(NamedTuple):
    """One panel; ``stat`` shows the last value as a number, red from ``bad`` on."""

    title: str
    unit: str
    lines: Sequence[tuple[str, str]]
    description: str = ""
    stat: bool = False
    bad: float | None = None


def rate(name: str, labels: str = "", by: str = "instance") -> str:
    """The rate of a counter, added up."""
    return f"sum by ({by}) (rate({name}{{{JOB}{labels}}}[$__rate_interval]))"


def quantile(share: float, name: str, labels: str = "", by: str = "instance") -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({name}_bucket{{{JOB}{labels}}}[$__rate_interval])))"


def gauge(name: str, labels: str = "") -> str:
    """A gauge as it is."""
    return f"{name}{{{JOB}{labels}}}"


def stat(title: str, expression: str, bad: float | None = 1, unit: str = "none", description: str = "") -> Panel:
    """A number in the health row."""
    return Panel(title, unit, [(expression, "")], description, stat=True, bad=bad)


EACH = "{{instance}}"
FLEET = [
    stat("Brokers that do not answer", 'count(up{job="fleetlog"} == 0) or vector(0)'),
    stat("Controllers", 'sum(fleetlog_controller{job="fleetlog"})', 2, description="One, and only one."),
    stat("Partitions without a leader", 'max(fleetlog_offline_partitions{job="fleetlog"})'),
    stat("Partitions lacking a replica in sync", 'sum(fleetlog_under_replicated_partitions{job="fleetlog"})'),
    stat("Troubles of disks and logs", 'sum(fleetlog_troubles{job="fleetlog"})'),
    stat("Unclean elections", 'sum(fleetlog_unclean_elections{job="fleetlog"})',
         description="Since the start of the brokers."),
    Panel("Records appended", "cps", [(rate("fleetlog_appended_records_total"), EACH)], "By producers."),
    Panel("Bytes appended", "Bps", [(rate("fleetlog_appended_bytes_total"), EACH)], "By producers, as stored."),
    Panel("Network", "Bps", [(rate("fleetlog_received_bytes_total"), "in " + EACH),
                             (rate("fleetlog_sent_bytes_total"), "out " + EACH)],
          "From and to clients and brokers."),
    Panel("Time of Produce", "s", [(quantile(0.5, "fleetlog_request_seconds", ', api="Produce"'), "p50 " + EACH),
                                   (quantile(0.99, "fleetlog_request_seconds", ', api="Produce"'), "p99 " + EACH)],
          "From a request's last byte to its answer, with the wait for followers."),
    Panel("Time of Fetch", "s", [(quantile(0.5, "fleetlog_request_seconds", ', api="Fetch"'), "p50 " + EACH),
                                 (quantile(0.99, "fleetlog_request_seconds", ', api="Fetch"'), "p99 " + EACH)],
          "A fetch without data waits: a long time is not a slow broker."),
    Panel("Requests", "reqps", [(rate("fleetlog_requests_total", by="api"), "{{api}}")]),
    Panel("Event loop: late by, p99", "s", [(quantile(0.99, "fleetlog_loop_lag_seconds"), EACH)],
          "Above 100 ms a broker has more work than one core can do."),
    Panel("Connections", "none", [(gauge("fleetlog_connections"), EACH)]),
    Panel("Refused frames and connections", "cps",
          [(rate("fleetlog_refused_requests_total", by="instance, reason"), "{{reason}} " + EACH)]),
    Panel("Leaders", "none", [(gauge("fleetlog_leaders"), EACH)]),
    Panel("Replicas", "none", [(gauge("fleetlog_partitions"), EACH)]),
    Panel("Lease of ZooKeeper's session", "s", [(gauge("fleetlog_lease_seconds"), EACH)],
          "At 0 a broker acts as leader only where that is safe."),
]  # fmt: skip

REPLICATION = [
    stat("Partitions lacking a replica in sync", 'sum(fleetlog_under_replicated_partitions{job="fleetlog"})'),
    stat("Committed records cut off", 'sum(fleetlog_lost_commits{job="fleetlog"})'),
    stat("Damaged answers", 'sum(fleetlog_replica_fetcher{job="fleetlog", what="damaged_answers"})',
         description="Batches from leaders with a wrong checksum."),
    Panel("Largest lag of a follower", "none", [(gauge("fleetlog_replica_max_lag"), EACH)], "In records."),
    Panel("Bytes fetched from leaders", "Bps",
          [(f'rate(fleetlog_replica_fetcher{{{JOB}, what="bytes"}}[$__rate_interval])', EACH)]),
    Panel("Errors and truncations of followers", "cps",
          [(f'rate(fleetlog_replica_fetcher{{{JOB}, what=~"errors|truncations"}}[$__rate_interval])',
            "{{what}} " + EACH)]),
    Panel("Partitions lacking a replica in sync, by leader", "none",
          [(gauge("fleetlog_under_replicated_partitions"), EACH)]),
    Panel("Replicas that follow", "none", [(gauge("fleetlog_followers"), EACH)]),
    Panel("Fetch sessions", "none", [(gauge("fleetlog_fetch_sessions"), "{{what}} " + EACH)]),
    Panel("Compaction: largest dirty share", "percentunit", [(gauge("fleetlog_cleaner_max_dirty_ratio"), EACH)]),
    Panel("Compaction: passes", "cps", [(f"rate(fleetlog_cleaner_passes{{{JOB}}}[$__rate_interval])", EACH)]),
    Panel("Compaction: late by", "s", [(gauge("fleetlog_cleaner_max_compaction_delay_seconds"), EACH)]),
]  # fmt: skip

CLIENTS = [
    Panel("Lag of groups in records", "none",
          [('sum by (group, topic) (fleetlog_group_lag_records{job="fleetlog"})', "{{group}} {{topic}}")]),
    Panel("Lag of groups in seconds", "s",
          [('max by (group, topic) (fleetlog_group_lag_seconds{job="fleetlog"})', "{{group}} {{topic}}")],
          "Age of the first record that is not consumed."),
    Panel("State of groups", "none", [('max by (group) (fleetlog_group_state{job="fleetlog"})', "{{group}}")],
          "0 well, 1 falls behind, 2 stopped, 3 stalled, 4 set back."),
    Panel("Commits of groups", "cps",
          [('sum by (group) (rate(fleetlog_group_commits_total{job="fleetlog"}[$__rate_interval]))', "{{group}}")]),
    Panel("Members of groups", "none", [('sum by (group) (fleetlog_group_members{job="fleetlog"})', "{{group}}")]),
    Panel("Groups and transactions", "none", [(gauge("fleetlog_coordinators"), "{{what}} " + EACH)],
          "What this broker coordinates."),
    Panel("Requests of groups", "reqps",
          [(rate("fleetlog_requests_total", ', api=~"JoinGroup|SyncGroup|LeaveGroup|Heartbeat|OffsetCommit"', "api"),
            "{{api}}")], "Many JoinGroups are rebalances."),
    Panel("Requests of transactions and sinks", "reqps",
          [(rate("fleetlog_requests_total", ', api=~".*Txn.*|InitProducerId|.*Batch|EnlistProducer"', "api"),
            "{{api}}")]),
    Panel("Time of OffsetCommit and EndTxn", "s",
          [(quantile(0.99, "fleetlog_request_seconds", ', api=~"OffsetCommit|EndTxn|CommitBatch"', "api"),
            "p99 {{api}}")]),
    Panel("Time of JoinGroup", "s", [(quantile(0.99, "fleetlog_request_seconds", ', api="JoinGroup"'), "p99 " + EACH)],
          "How long a rebalance takes."),
    Panel("Throttled by quotas", "ms", [(rate("fleetlog_throttle_ms_total", by="quota"), "{{quota}}")],
          "Milliseconds of muted connections a second."),
    Panel("Throttled clients", "ms",
          [(f"topk(10, {rate('fleetlog_client_throttle_ms_total', by='client')})", "{{client}}")], "The ten longest."),
]  # fmt: skip

DASHBOARDS = {
    "fleetlog-fleet": ("fleetlog: fleet", FLEET),
    "fleetlog-replication": ("fleetlog: replication and compaction", REPLICATION),
    "fleetlog-clients": ("fleetlog: groups, transactions, quotas", CLIENTS),
}


def panel(number: int, one: Panel, place: tuple[int, int], width: int) -> dict[str, Any]:
    """A panel as Grafana has it."""
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if one.bad is not None:
        steps.append({"color": "red", "value": one.bad})
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": "stat" if one.stat else "timeseries",
        "title": one.title,
        "description": one.description,
        "datasource": source,
        "gridPos": {"x": place[0], "y": place[1], "w": width, "h": STAT_HEIGHT if one.stat else HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": one.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": {"colorMode": "background"} if one.stat else {"legend": {"displayMode": "list"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(one.lines)
        ],
    }


def dashboard(uid: str, title: str, panels: Sequence[Panel]) -> dict[str, Any]:
    """A dashboard as Grafana imports it."""
    rows: list[dict[str, Any]] = []
    stats = [one for one in panels if one.stat]
    width = COLUMNS // len(stats) if stats else COLUMNS
    for index, one in enumerate(stats):
        rows.append(panel(index + 1, one, (index * width, 0), width))
    top = STAT_HEIGHT if stats else 0
    for index, one in enumerate(one for one in panels if not one.stat):
        place = (index % (COLUMNS // WIDTH) * WIDTH, top + index // (COLUMNS // WIDTH) * HEIGHT)
        rows.append(panel(len(stats) + index + 1, one, place, WIDTH))
    source = {"type": "prometheus", "uid": "${datasource}"}
    query = 'label_values(up{job="fleetlog"}, instance)'
    return {
        "uid": uid,
        "title": title,
        "tags": ["fleetlog"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "15s",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "instance", "type": "query", "label": "Broker", "datasource": source, "query": query,
                    "definition": query, "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": rows,
    }  # fmt: skip


def files() -> dict[str, str]:
    """The text of each file by its name."""
    return {
        f"{uid}.json": json.dumps(dashboard(uid, title, panels), indent=1) + "\n"
        for uid, (title, panels) in DASHBOARDS.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text)
