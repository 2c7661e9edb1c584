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
PARTITION = "{{topic}}-{{partition}}"
TOPIC = ', topic=~"$topic"'


def by_topic(name: str, by: str = "topic") -> str:
    """The rate of a counter of the chosen topics."""
    return f'sum by ({by}) (rate({name}{{job="fleetlog"{TOPIC}}}[$__rate_interval]))'


def of_topic(name: str, how: str = "sum", by: str = "topic") -> str:
    """A gauge of the chosen topics."""
    return f'{how} by ({by}) ({name}{{job="fleetlog"{TOPIC}}})'


def of_partition(name: str) -> str:
    """A gauge of each partition of the chosen topics, while two brokers lead it, too."""
    return of_topic(name, "max", "topic, partition")


def both(left: str, sign: str, right: str) -> str:
    """Two expressions joined by an operator."""
    return f"{left} {sign} {right}"


def fleet(name: str, how: str = "sum", labels: str = "") -> str:
    """A gauge of the whole fleet, as one number."""
    return f'{how}({name}{{job="fleetlog"{labels}}})'


FLEET = [
    stat("Brokers that do not answer", 'count(up{job="fleetlog"} == 0) or vector(0)'),
    stat("Controllers", fleet("fleetlog_controller"), 2, description="One, and only one."),
    stat("Partitions without a leader", fleet("fleetlog_offline_partitions", "max")),
    stat("Partitions below min.insync.replicas", fleet("fleetlog_under_min_isr_partitions"),
         description="Producers with acks=all get errors."),
    stat("Partitions lacking a replica in sync", fleet("fleetlog_under_replicated_partitions")),
    stat("Troubles of disks and logs", fleet("fleetlog_troubles")),
    stat("Unclean elections", fleet("fleetlog_unclean_elections"), description="Since the start of the brokers."),
    stat("Loss events", f"{fleet('fleetlog_lost_commits')} + {fleet('fleetlog_shortened_logs')}",
         description="Committed records cut off, and logs that were shorter at a start than at the clean stop before."),
    Panel("Records appended", "cps", [(rate("fleetlog_appended_records_total"), EACH)], "By producers."),
    Panel("Bytes appended", "Bps", [(rate("fleetlog_appended_bytes_total"), EACH)], "By producers, as stored."),
    Panel("Network", "Bps", [(rate("fleetlog_received_bytes_total"), "in " + EACH),
                             (rate("fleetlog_sent_bytes_total"), "out " + EACH)],
          "From and to clients and brokers."),
    Panel("Acknowledgements: time of Produce", "s",
          [(quantile(0.5, "fleetlog_request_seconds", ', api="Produce"'), "p50 " + EACH),
           (quantile(0.99, "fleetlog_request_seconds", ', api="Produce"'), "p99 " + EACH)],
          "From a request's last byte to its answer, with the wait for followers."),
    Panel("Time of Fetch", "s", [(quantile(0.5, "fleetlog_request_seconds", ', api="Fetch"'), "p50 " + EACH),
                                 (quantile(0.99, "fleetlog_request_seconds", ', api="Fetch"'), "p99 " + EACH)],
          "A fetch without data waits: a long time is not a slow broker."),
    Panel("Requests", "reqps", [(rate("fleetlog_requests_total", by="api"), "{{api}}")]),
    Panel("Request times in parts", "s",
          [(both(rate("fleetlog_request_part_seconds_sum", by="api, part"), "/",
                 rate("fleetlog_request_part_seconds_count", by="api, part")), "{{api}} {{part}}")],
          "Means of requests that wait. remote is the wait for replicas, data or a coordinator; throttle is a quota."),
    Panel("Request times: before and after the work, p99", "s",
          [(quantile(0.99, "fleetlog_queue_seconds"), "queue " + EACH),
           (quantile(0.99, "fleetlog_send_seconds"), "send " + EACH)],
          "Of requests that were not executed at once, and answers that could not leave at once."),
    Panel("Errors in answers", "cps", [(rate("fleetlog_errors_total", by="api, error"), "{{api}} {{error}}")],
          "One for each partition, topic or group of an answer."),
    Panel("Event loop: late by, p99", "s", [(quantile(0.99, "fleetlog_loop_lag_seconds"), EACH)],
          "Above 100 ms a broker has more work than one core can do."),
    Panel("Event loop: share of a core", "percentunit", [(gauge("fleetlog_cpu_busy"), EACH)],
          "A broker is one loop: at 1 it has no more to give."),
    Panel("Memory", "bytes", [(gauge("process_resident_memory_bytes"), EACH)], "Resident, without the page cache."),
    Panel("Garbage collections: share of the loop's time", "percentunit",
          [(rate("fleetlog_gc_pause_seconds_total"), EACH)]),
    Panel("File descriptors: share in use", "percentunit",
          [(f"{gauge('process_open_fds')} / {gauge('process_max_fds')}", EACH)]),
    Panel("fsync, p99", "s", [(quantile(0.99, "fleetlog_fsync_seconds"), EACH)], "Of files and directories."),
    Panel("Disks: share that is free", "percentunit",
          [(f"({gauge('fleetlog_disk_usable_bytes')} >= 0) / ({gauge('fleetlog_disk_total_bytes')} > 0)",
            "{{directory}} " + EACH)],
          "Of the volume of each log directory; 0 while the broker refuses appends there."),
    Panel("Disks: free bytes", "bytes",
          [(gauge("fleetlog_disk_usable_bytes") + " >= 0", "{{directory}} " + EACH)]),
    Panel("Disks that failed", "none", [(gauge("fleetlog_disk_offline"), "{{directory}} " + EACH)]),
    Panel("Logs", "bytes", [(gauge("fleetlog_log_bytes"), EACH)], "Size of all logs of a broker."),
    Panel("Connections", "none", [(gauge("fleetlog_connections"), EACH)]),
    Panel("Connections by client software", "none",
          [(f"sum by (software, version) ({gauge('fleetlog_client_connections')})", "{{software}} {{version}}")]),
    Panel("Refused frames and connections", "cps",
          [(rate("fleetlog_refused_requests_total", by="instance, reason"), "{{reason}} " + EACH)]),
    Panel("New connections", "cps", [(rate("fleetlog_created_connections_total"), EACH)],
          "Clients that open one for each record cost more than what they send."),
    Panel("Logins", "cps",
          [(rate("fleetlog_authentications_total", by="mechanism, result"), "{{mechanism}} {{result}}")],
          "By SASL, and TLS handshakes where there is no SASL."),
    Panel("Age of checkpoints", "s", [(gauge("fleetlog_checkpoint_age_seconds"), "{{directory}} " + EACH)],
          "What is newer is checked at the start after a crash."),
    Panel("Leaders per broker", "none", [(gauge("fleetlog_leaders"), EACH),
                                         (gauge("fleetlog_preferred_leaders"), "as first replica " + EACH)]),
    Panel("Replicas per broker", "none", [(gauge("fleetlog_partitions"), EACH)]),
    Panel("ZooKeeper: time of requests, p95", "s", [(quantile(0.95, "fleetlog_zookeeper_request_seconds"), EACH)]),
    Panel("ZooKeeper: lease of the session", "s", [(gauge("fleetlog_lease_seconds"), EACH)],
          "At 0 a broker acts as leader only where that is safe."),
    Panel("ZooKeeper: changes of the session", "cps",
          [(rate("fleetlog_zookeeper_session_events_total", by="instance, state"), "{{state}} " + EACH)]),
]  # fmt: skip

REPLICATION = [
    stat("Partitions lacking a replica in sync", fleet("fleetlog_under_replicated_partitions")),
    stat("Partitions below min.insync.replicas", fleet("fleetlog_under_min_isr_partitions")),
    stat("Committed records cut off", fleet("fleetlog_lost_commits"), description="Times; since the brokers' start."),
    stat("Logs shorter than at the clean stop", fleet("fleetlog_shortened_logs")),
    stat("Damaged answers", fleet("fleetlog_replica_fetcher", labels=', what="damaged_answers"'),
         description="Batches from leaders with a wrong checksum."),
    stat("Damaged segments", fleet("fleetlog_damaged_segments"), description="Found by the background check."),
    Panel("In-sync replicas against the factor", "none",
          [(fleet("kafka_topic_partition_replicas"), "replicas"),
           (fleet("kafka_topic_partition_in_sync_replica"), "in sync")],
          "Added up over all partitions: the lines lie on each other when all is well."),
    Panel("In-sync replicas that are missing, by leader", "none",
          [(gauge("fleetlog_missing_in_sync_replicas"), EACH)]),
    Panel("Partitions at or below min.insync.replicas, by leader", "none",
          [(gauge("fleetlog_at_min_isr_partitions"), "at " + EACH),
           (gauge("fleetlog_under_min_isr_partitions"), "below " + EACH)],
          "At it: one failure more and acks=all gets errors."),
    Panel("Partitions lacking a replica in sync, by leader", "none",
          [(gauge("fleetlog_under_replicated_partitions"), EACH)]),
    Panel("Changes of in-sync sets", "cps", [(rate("fleetlog_topic_isr_shrinks_total"), "out " + EACH),
                                             (rate("fleetlog_topic_isr_expands_total"), "in " + EACH)],
          "By leaders, of all topics."),
    Panel("Changes of leaders", "cps", [(rate("fleetlog_elections_total", by="reason"), "{{reason}}")],
          "By the controller, by reason."),
    Panel("Unclean elections", "none", [(gauge("fleetlog_unclean_elections"), EACH)], "By the controller that did it."),
    Panel("Followers behind: records", "none",
          [('sum by (follower) (fleetlog_follower_lag_records{job="fleetlog"})', "broker {{follower}}")],
          "Of all partitions, as the leaders see it."),
    Panel("Followers behind: bytes", "bytes",
          [('sum by (follower) (fleetlog_follower_lag_bytes{job="fleetlog"})', "broker {{follower}}")]),
    Panel("Followers behind: seconds", "s",
          [('max by (follower) (fleetlog_follower_lag_seconds{job="fleetlog"})', "broker {{follower}}")],
          "For how long the follower has not had all records of some partition."),
    Panel("Catch-up rate", "Bps",
          [('-sum by (follower) (deriv(fleetlog_follower_lag_bytes{job="fleetlog"}[5m])) > 0',
            "broker {{follower}}")],
          "How fast followers get nearer to their leaders: bytes behind divided by it are the seconds that are left."),
    Panel("Bytes fetched from leaders", "Bps",
          [(f'rate(fleetlog_replica_fetcher{{{JOB}, what="bytes"}}[$__rate_interval])', EACH)]),
    Panel("Time of followers' fetches, p99", "s", [(quantile(0.99, "fleetlog_follower_fetch_seconds"), EACH)],
          "At the leader; a fetch without data waits."),
    Panel("Largest lag of a follower", "none", [(gauge("fleetlog_replica_max_lag"), EACH)],
          "In records, of one partition, as the follower knows it."),
    Panel("Errors and truncations of followers", "cps",
          [(f'rate(fleetlog_replica_fetcher{{{JOB}, what=~"errors|truncations"}}[$__rate_interval])',
            "{{what}} " + EACH)]),
    Panel("Wrong checksums", "cps", [(rate("fleetlog_checksum_failures_total", by="instance, source"),
                                      "from {{source}} " + EACH)],
          "Batches of a producer, of a leader, or in a closed segment on disk."),
    Panel("Replicas that follow", "none", [(gauge("fleetlog_followers"), EACH)]),
    Panel("Fetch sessions", "none", [(gauge("fleetlog_fetch_sessions"), "{{what}} " + EACH)]),
    Panel("Background check of segments", "Bps", [(rate("fleetlog_verified_bytes_total"), EACH)]),
    Panel("Compaction: largest dirty share", "percentunit", [(gauge("fleetlog_cleaner_max_dirty_ratio"), EACH)]),
    Panel("Compaction: passes", "cps", [(f"rate(fleetlog_cleaner_passes{{{JOB}}}[$__rate_interval])", EACH)]),
    Panel("Compaction: late by", "s", [(gauge("fleetlog_cleaner_max_compaction_delay_seconds"), EACH)]),
]  # fmt: skip

TOPICS = [
    Panel("Records produced", "cps", [(by_topic("fleetlog_topic_produced_records_total"), "{{topic}}")]),
    Panel("Bytes produced", "Bps", [(by_topic("fleetlog_topic_produced_bytes_total"), "{{topic}}")], "As stored."),
    Panel("Bytes consumed", "Bps", [(by_topic("fleetlog_topic_fetched_bytes_total"), "{{topic}}")],
          "Sent to consumers."),
    Panel("Bytes replicated", "Bps",
          [(by_topic("fleetlog_topic_replicated_in_bytes_total"), "in {{topic}}"),
           (by_topic("fleetlog_topic_replicated_out_bytes_total"), "out {{topic}}")],
          "Appended by followers, and sent by leaders."),
    Panel("Batch sizes", "bytes",
          [(f"histogram_quantile({share}, sum by (le) (rate(fleetlog_batch_bytes_bucket{{{JOB}}}[$__rate_interval])))",
            legend) for share, legend in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))],
          "Of all topics, as producers sent them."),
    Panel("Records in a batch", "none",
          [(both(by_topic("fleetlog_topic_produced_records_total"), "/",
                 by_topic("fleetlog_topic_produced_batches_total")), "{{topic}}")],
          "Mean. Few records in a batch cost the broker most: linger.ms, batch.size."),
    Panel("Failed sends by topic", "cps", [(by_topic("fleetlog_topic_failed_produces_total"), "{{topic}}")],
          "Batches that were refused."),
    Panel("Failed sends by error", "cps", [(rate("fleetlog_errors_total", ', api="Produce"', "error"), "{{error}}")]),
    Panel("Failed fetches", "cps", [(by_topic("fleetlog_topic_failed_fetches_total"), "{{topic}}")]),
    Panel("Duplicates that idempotence caught", "cps",
          [(by_topic("fleetlog_topic_duplicate_batches_total"), "{{topic}}")],
          "Batches that a producer sent again, and that were not stored twice."),
    Panel("Batches with wrong checksums", "cps", [(by_topic("fleetlog_topic_damaged_batches_total"), "{{topic}}")],
          "Refused: nothing of them is stored."),
    Panel("Committed records lost", "none", [(of_topic("fleetlog_topic_lost_records_total"), "{{topic}}")],
          "Cut off since the brokers' start: an unclean election's."),
    Panel("Size of logs", "bytes", [(of_topic("fleetlog_topic_log_bytes"), "{{topic}}")], "Of all replicas."),
    Panel("Partitions", "none", [(of_topic("fleetlog_topic_leaders"), "{{topic}}")], "Those that have a leader."),
    Panel("Partitions lacking a replica in sync", "none",
          [(of_topic("fleetlog_topic_under_replicated_partitions"), "{{topic}}")]),
    Panel("Changes of in-sync sets", "cps", [(by_topic("fleetlog_topic_isr_shrinks_total"), "out {{topic}}"),
                                             (by_topic("fleetlog_topic_isr_expands_total"), "in {{topic}}")]),
    Panel("In-sync replicas that are missing, by partition", "none",
          [(both(of_partition("kafka_topic_partition_replicas"), "-",
                 of_partition("kafka_topic_partition_in_sync_replica")) + " > 0", PARTITION)],
          "Only partitions that lack one."),
    Panel("Partitions not led by their first replica", "none",
          [(f'count by (topic) (kafka_topic_partition_leader_is_preferred{{job="fleetlog"{TOPIC}}} == 0)',
            "{{topic}}")]),
    Panel("Busiest partitions", "cps",
          [(f"topk(10, {by_topic('kafka_topic_partition_current_offset', 'topic, partition')})", PARTITION)],
          "Offsets a second, of the ten with the most. One far above its neighbours is a hot key."),
    Panel("Offsets kept by partition", "none",
          [("topk(10, " + both(of_partition("kafka_topic_partition_current_offset"), "-",
                                of_partition("kafka_topic_partition_oldest_offset")) + ")", PARTITION)],
          "The ten with the most, from their first offset to their end."),
    Panel("Figures left out", "none",
          [(fleet("fleetlog_lag_topics_left_out", "max"), "topics"),
           (fleet("fleetlog_lag_series_left_out", "max"), "partitions"),
           (fleet("fleetlog_lag_groups_left_out", "max"), "groups")],
          "Without series of their own: group.lag.series.max. Topics beyond metrics.topics.max are _other."),
]  # fmt: skip

CLIENTS = [
    stat("Groups that do not get on", 'sum(fleetlog_groups{job="fleetlog", state=~"STOP|STALL|REWIND"})'),
    stat("Open transactions", fleet("fleetlog_coordinators", labels=', what="transactions_open"'), None),
    stat("Oldest open transaction", fleet("fleetlog_oldest_transaction_seconds", "max"), 900, "s"),
    stat("Oldest rebalance under way", fleet("fleetlog_group_rebalance_longest_seconds", "max"), 10, "s"),
    Panel("Lag of groups in records", "none",
          [('sum by (group, topic) (fleetlog_group_lag_records{job="fleetlog"})', "{{group}} {{topic}}")]),
    Panel("Lag of groups in seconds", "s",
          [('max by (group, topic) (fleetlog_group_lag_seconds{job="fleetlog"})', "{{group}} {{topic}}")],
          "Age of the first record that is not consumed."),
    Panel("Records consumed", "cps",
          [('sum by (group, topic) (rate(kafka_consumergroup_current_offset_sum{job="fleetlog"}[$__rate_interval]))',
            "{{group}} {{topic}}")], "By the offsets that groups commit."),
    Panel("State of groups", "none", [('max by (group) (fleetlog_group_state{job="fleetlog"})', "{{group}}")],
          "0 well, 1 falls behind, 2 stopped, 3 stalled, 4 set back."),
    Panel("Commits of groups", "cps",
          [('sum by (group) (rate(fleetlog_group_commits_total{job="fleetlog"}[$__rate_interval]))', "{{group}}")]),
    Panel("Members of groups", "none", [('sum by (group) (fleetlog_group_members{job="fleetlog"})', "{{group}}")]),
    Panel("Rebalances of groups", "cpm",
          [('sum by (group) (rate(fleetlog_group_rebalances_total{job="fleetlog"}[5m])) * 60', "{{group}}")],
          "In a minute."),
    Panel("How long rebalances take", "s",
          [(quantile(0.5, "fleetlog_group_rebalance_seconds"), "p50 " + EACH),
           (quantile(0.99, "fleetlog_group_rebalance_seconds"), "p99 " + EACH),
           (gauge("fleetlog_group_rebalance_longest_seconds"), "under way " + EACH)],
          "Those that ended, and the oldest under way."),
    Panel("Groups and transactions", "none", [(gauge("fleetlog_coordinators"), "{{what}} " + EACH)],
          "What this broker coordinates."),
    Panel("Requests of groups", "reqps",
          [(rate("fleetlog_requests_total", ', api=~"JoinGroup|SyncGroup|LeaveGroup|Heartbeat|OffsetCommit"', "api"),
            "{{api}}")]),
    Panel("Time of OffsetCommit and EndTxn", "s",
          [(quantile(0.99, "fleetlog_request_seconds", ', api=~"OffsetCommit|EndTxn|CommitBatch"', "api"),
            "p99 {{api}}")]),
    Panel("Transactions that are open or end", "none",
          [(gauge("fleetlog_coordinators", ', what=~"transactions_open|transactions_ending"'), "{{what}} " + EACH)],
          "Those that end wait for their markers."),
    Panel("Oldest open transaction, by coordinator, and the longest silent one in a log", "s",
          [(gauge("fleetlog_oldest_transaction_seconds"), EACH),
           (gauge("fleetlog_silent_transaction_seconds"), EACH + " in a log")],
          "Consumers with read_committed wait behind it."),
    Panel("Requests of transactions", "reqps",
          [(rate("fleetlog_requests_total", ', api=~".*Txn.*|InitProducerId"', "api"), "{{api}}")]),
    Panel("Batches of Spark's sinks", "reqps",
          [(rate("fleetlog_requests_total", ', api=~"BeginBatch|CommitBatch|AbortBatch|EnlistProducer"', "api"),
            "{{api}}")]),
    Panel("Oldest open batch of a Spark sink", "s", [(gauge("fleetlog_oldest_sink_batch_seconds"), EACH)],
          "0: none is open. A micro-batch that takes long, or one whose query has ended without an end."),
    Panel("Errors of Spark's sinks", "cps",
          [(rate("fleetlog_errors_total", ', api=~".*Batch|EnlistProducer"', "api, error"), "{{api}} {{error}}")],
          "INVALID_PRODUCER_EPOCH: a newer run of the query has taken over."),
    Panel("Throttled by quotas", "ms", [(rate("fleetlog_throttle_ms_total", by="quota"), "{{quota}}")],
          "Milliseconds of muted connections a second."),
    Panel("Throttled clients", "ms",
          [(f"topk(10, {rate('fleetlog_client_throttle_ms_total', by='client')})", "{{client}}")], "The ten longest."),
]  # fmt: skip

DASHBOARDS = {
    "fleetlog-fleet": ("fleetlog: fleet", FLEET),
    "fleetlog-replication": ("fleetlog: replication and compaction", REPLICATION),
    "fleetlog-topics": ("fleetlog: topics and partitions", TOPICS),
    "fleetlog-clients": ("fleetlog: groups, transactions, quotas", CLIENTS),
}


def panel(number: int, one: Panel, place: tuple[int, int], width: int) -> dict[str, Any]:
    """A panel as Grafana has it."""
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if one.bad is not None:
        steps.append({"color": "red", "value": one.bad})
    return {
        "id": number,
        "type": "stat" if one.stat else "timeseries",
        "title": one.title,
        "description": one.description,
        "datasource": SOURCE,
        "gridPos": {"x": place[0], "y": place[1], "w": width, "h": STAT_HEIGHT if one.stat else HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": one.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": {"colorMode": "background"} if one.stat else {"legend": {"displayMode": "list"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(one.lines)
        ],
    }


SOURCE = {"type": "prometheus", "uid": "${datasource}"}
VARIABLES = {
    "instance": ("Broker", 'label_values(up{job="fleetlog"}, instance)'),
    "topic": ("Topic", 'label_values(fleetlog_topic_replicas{job="fleetlog"}, topic)'),
}
"""What panels are narrowed to: each with its label, and what gives its values."""


def variable(name: str) -> dict[str, Any]:
    """A variable as Grafana has it: all values unless some are chosen."""
    label, query = VARIABLES[name]
    return {
        "name": name, "type": "query", "label": label, "datasource": SOURCE, "query": query, "definition": query,
        "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def dashboard(uid: str, title: str, panels: Sequence[Panel]) -> dict[str, Any]:
    """A dashboard as Grafana imports it, with the variables that its expressions use."""
    rows: list[dict[str, Any]] = []
    stats = [one for one in panels if one.stat]
    width = COLUMNS // len(stats) if stats else COLUMNS
    for index, one in enumerate(stats):
        rows.append(panel(index + 1, one, (index * width, 0), width))
    top = STAT_HEIGHT if stats else 0
    for index, one in enumerate(one for one in panels if not one.stat):
        place = (index % (COLUMNS // WIDTH) * WIDTH, top + index // (COLUMNS // WIDTH) * HEIGHT)
        rows.append(panel(len(stats) + index + 1, one, place, WIDTH))
    asked = "".join(expression for one in panels for expression, _ in one.lines)
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
                *(variable(name) for name in VARIABLES if f"${name}" in asked),
            ]
        },
        "panels": rows,
    }


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
