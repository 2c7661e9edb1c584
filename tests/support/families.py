"""What well-known dashboards ask of a fleet: names of metrics with the labels that their expressions use."""

from __future__ import annotations

import re
import urllib.request

from tests.support.fleet import Fleet

KAFKA_EXPORTER_7589 = {
    "kafka_topic_partition_current_offset": {"topic", "partition"},
    "kafka_consumergroup_lag": {"consumergroup", "topic", "partition"},
    "kafka_consumergroup_current_offset": {"consumergroup", "topic", "partition"},
    "kafka_topic_partitions": {"topic"},
}
"""Grafana's 7589: messages in and consumed by topic and group, lag by group, partitions by topic."""
KAFKA_EXPORTER_REST = {
    "kafka_brokers": set(),
    "kafka_broker_info": {"id", "address"},
    "kafka_topic_partition_oldest_offset": {"topic", "partition"},
    "kafka_topic_partition_in_sync_replica": {"topic", "partition"},
    "kafka_topic_partition_leader": {"topic", "partition"},
    "kafka_topic_partition_leader_is_preferred": {"topic", "partition"},
    "kafka_topic_partition_replicas": {"topic", "partition"},
    "kafka_topic_partition_under_replicated_partition": {"topic", "partition"},
    "kafka_consumergroup_current_offset_sum": {"consumergroup", "topic"},
    "kafka_consumergroup_lag_sum": {"consumergroup", "topic"},
    "kafka_consumergroup_members": {"consumergroup"},
    "kafka_consumergroup_uncommitted_offsets": {"consumergroup", "topic", "partition"},
    "kafka_consumer_lag_millis": {"consumergroup", "topic", "partition"},
}
"""What kafka_exporter and Grafana's fork of it have beside that."""
KMINION_CLUSTER_14012 = {
    "kminion_exporter_up": {"version"},
    "kminion_kafka_cluster_info": {"broker_count", "cluster_id", "cluster_version", "controller_id"},
    "kminion_kafka_broker_info": {"address", "broker_id", "is_controller", "port", "rack_id"},
    "kminion_kafka_broker_log_dir_size_total_bytes": {"address", "broker_id", "port", "rack_id"},
    "kminion_kafka_topic_info": {"cleanup_policy", "partition_count", "replication_factor", "topic_name"},
    "kminion_kafka_topic_high_water_mark_sum": {"topic_name"},
    "kminion_kafka_topic_log_dir_size_total_bytes": {"topic_name"},
}
KMINION_TOPICS_14013 = {
    "kminion_kafka_topic_info": {"cleanup_policy", "partition_count", "replication_factor", "topic_name"},
    "kminion_kafka_topic_high_water_mark_sum": {"topic_name"},
    "kminion_kafka_topic_low_water_mark_sum": {"topic_name"},
    "kminion_kafka_topic_partition_high_water_mark": {"partition_id", "topic_name"},
    "kminion_kafka_topic_partition_low_water_mark": {"partition_id", "topic_name"},
    "kminion_kafka_topic_log_dir_size_total_bytes": {"topic_name"},
    "kminion_kafka_consumer_group_topic_lag": {"group_id", "topic_name"},
}
KMINION_GROUPS_14014 = {
    "kminion_kafka_consumer_group_info": {
        "coordinator_id", "group_id", "member_count", "protocol", "protocol_type", "state",
    },
    "kminion_kafka_consumer_group_members": {"group_id"},
    "kminion_kafka_consumer_group_empty_members": {"group_id"},
    "kminion_kafka_consumer_group_topic_members": {"group_id", "topic_name"},
    "kminion_kafka_consumer_group_topic_assigned_partitions": {"group_id", "topic_name"},
    "kminion_kafka_consumer_group_topic_offset_sum": {"group_id", "topic_name"},
    "kminion_kafka_consumer_group_topic_lag": {"group_id", "topic_name"},
    "kminion_kafka_consumer_group_topic_partition_lag": {"group_id", "partition_id", "topic_name"},
    "kminion_kafka_consumer_group_offset_commits_total": {"group_id"},
}  # fmt: skip
DASHBOARDS = {
    "kafka_exporter 7589": KAFKA_EXPORTER_7589,
    "kafka_exporter, all": KAFKA_EXPORTER_REST,
    "kminion cluster 14012": KMINION_CLUSTER_14012,
    "kminion topics 14013": KMINION_TOPICS_14013,
    "kminion groups 14014": KMINION_GROUPS_14014,
}
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Series = dict[tuple[str, frozenset[tuple[str, str]]], list[float]]
"""Of each series, the values of all brokers that have it."""


def scraped(fleet: Fleet) -> Series:
    """The pages of all brokers together."""
    found: Series = {}
    for broker in fleet.brokers:
        page = urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=10).read().decode()
        for name, labels, value in _SAMPLE.findall(page):
            found.setdefault((name, frozenset(_LABEL.findall(labels))), []).append(float(value))
    return found


def summed(series: Series, name: str, **labels: str) -> float | None:
    """The sum of the series of that name that have these labels; None without any."""
    values = [v for (one, told), found in series.items() for v in found if one == name and set(labels.items()) <= told]
    return sum(values) if values else None
