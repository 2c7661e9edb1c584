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
_QUANTILES, _PARTITION = {"request", "quantile"}, {"topic", "partition"}
_ON_LISTENER = {"listener", "networkProcessor"}
STRIMZI_KAFKA: dict[str, set[str]] = {
    "kafka_server_replicamanager_leadercount": set(),
    "kafka_controller_kafkacontroller_activecontrollercount": set(),
    "kafka_controller_controllerstats_uncleanleaderelections_total": set(),
    "kafka_server_replicamanager_partitioncount": set(),
    "kafka_server_replicamanager_underreplicatedpartitions": set(),
    "kafka_cluster_partition_atminisr": _PARTITION,
    "kafka_cluster_partition_underminisr": _PARTITION,
    "kafka_controller_kafkacontroller_offlinepartitionscount": set(),
    "process_cpu_seconds_total": set(),
    "process_open_fds": set(),
    "kafka_server_brokertopicmetrics_bytesin_total": {"topic"},
    "kafka_server_brokertopicmetrics_bytesout_total": {"topic"},
    "kafka_server_brokertopicmetrics_messagesin_total": {"topic"},
    "kafka_server_brokertopicmetrics_totalproducerequests_total": {"topic"},
    "kafka_server_brokertopicmetrics_failedproducerequests_total": {"topic"},
    "kafka_server_brokertopicmetrics_totalfetchrequests_total": {"topic"},
    "kafka_server_brokertopicmetrics_failedfetchrequests_total": {"topic"},
    "kafka_network_socketserver_networkprocessoravgidle_percent": set(),
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": set(),
    "kafka_server_kafkaserver_linux_disk_write_bytes": set(),
    "kafka_server_kafkaserver_linux_disk_read_bytes": set(),
    "kafka_server_socket_server_metrics_connection_count": _ON_LISTENER,
    "kafka_log_log_size": _PARTITION,
}
"""Every expression of Strimzi's dashboard for Kafka, in its order, but for :data:`LEFT_OUT`."""
STRIMZI_EXPORTER = {
    "kafka_exporter_build_info": {"version"},
    "kafka_topic_partitions": {"topic"},
    "kafka_topic_partition_replicas": _PARTITION,
    "kafka_topic_partition_in_sync_replica": _PARTITION,
    "kafka_topic_partition_under_replicated_partition": _PARTITION,
    "kafka_topic_partition_leader_is_preferred": _PARTITION,
    "kafka_topic_partition_current_offset": _PARTITION,
    "kafka_topic_partition_oldest_offset": _PARTITION,
    "kafka_consumergroup_current_offset": {"consumergroup", "topic", "partition"},
    "kafka_consumergroup_lag": {"consumergroup", "topic", "partition"},
}
"""Every expression of Strimzi's dashboard for Kafka Exporter but for ``kafka_cluster_partition_*``, which is above."""
STRIMZI_REST: dict[str, set[str]] = {
    "kafka_server_replicamanager_underminisrpartitioncount": set(),
    "kafka_server_replicamanager_isrshrinks_total": set(),
    "kafka_server_replicamanager_isrexpands_total": set(),
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount": set(),
    "kafka_cluster_partition_replicascount": _PARTITION,
    "kafka_cluster_partition_underreplicated": _PARTITION,
    "kafka_network_requestmetrics_totaltimems": _QUANTILES,
    "kafka_network_requestmetrics_requestqueuetimems": _QUANTILES,
    "kafka_network_requestmetrics_localtimems": _QUANTILES,
    "kafka_network_requestmetrics_remotetimems": _QUANTILES,
    "kafka_network_requestmetrics_throttletimems": _QUANTILES,
    "kafka_network_requestmetrics_responsesendtimems": _QUANTILES,
    "kafka_server_socket_server_metrics_connection_creation_rate": _ON_LISTENER,
    "kafka_server_socket_server_metrics_successful_authentication_total": _ON_LISTENER,
    "kafka_server_socket_server_metrics_failed_authentication_total": _ON_LISTENER,
    "kafka_server_socket_server_metrics_connections_software": {
        "clientSoftwareName", "clientSoftwareVersion", *_ON_LISTENER,
    },
    "kafka_server_socket_server_metrics_connections_tls_info": {"cipher", "protocol", *_ON_LISTENER},
    "kafka_log_log_logstartoffset": _PARTITION,
    "kafka_log_log_logendoffset": _PARTITION,
    "kafka_server_kafkaserver_brokerstate": set(),
    "kafka_server_sessionexpirelistener_zookeepersyncconnects_total": set(),
    "kafka_server_sessionexpirelistener_zookeeperdisconnects_total": set(),
    "kafka_server_sessionexpirelistener_zookeeperexpires_total": set(),
    "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms": {"quantile"},
    "process_resident_memory_bytes": set(),
}  # fmt: skip
"""What Strimzi's alerts and Grafana's library for Kafka ask for beside that, in Strimzi's spelling."""
LEFT_OUT = (
    "container_memory_working_set_bytes", "kubelet_volume_stats_available_bytes", "jvm_memory_bytes_used",
    "jvm_gc_collection_seconds_sum", "jvm_gc_collection_seconds_count", "jvm_threads_current",
    "kafka_network_requestmetrics_responsequeuetimems",
)  # fmt: skip
"""What these ask for and a broker does not have: docs/metrics.md says why."""
DASHBOARDS = {
    "Strimzi's for Kafka Exporter": STRIMZI_EXPORTER,
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
