"""A broker's settings, declared once with Kafka's names; how they are read, and checked against each other.

Sources in rising order: the table's defaults, the properties file, the environment (``FLEETLOG_CONFIG_LOG_DIRS``), the
command line (``--override log.dirs=...``). An unknown name or a wrong value stops the start and says what is allowed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fleetlog.brokers.addresses import TLS_PROTOCOLS, parse_address, parse_listener
from fleetlog.brokers.inert_settings import KAFKA_BROKER_SETTINGS, KAFKA_TOPIC_SETTINGS, OIDC_SETTINGS
from fleetlog.brokers.model import Endpoint
from fleetlog.brokers.properties import parse_properties
from fleetlog.brokers.setting_kinds import (
    ConfigError,
    Setting,
    SettingType,
    attribute,
    field_of,
    setting,
    suggest,
    table_of,
)
from fleetlog.brokers.topic_config import (
    DAY_MS,
    FOREVER,
    LARGEST_ARRAY,
    MIB,
    TOPIC_SETTINGS,
    TopicConfig,
)
from fleetlog.coordination.connect import CannotConnect, parse_connect

BOOLEAN, STRING, INT, SHORT = SettingType.BOOLEAN, SettingType.STRING, SettingType.INT, SettingType.SHORT
LONG, DOUBLE, LIST = SettingType.LONG, SettingType.DOUBLE, SettingType.LIST

BOUNDLESS = 1.7976931348623157e308
PROTOCOLS = ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT")
ADDRESS_AND_COUNT = r"(\d{1,3}(\.\d{1,3}){3}|\[?[0-9A-Fa-f.]{0,45}:[0-9A-Fa-f:.]{0,45}\]?):\d{1,9}"

FALLBACKS: dict[str, tuple[tuple[str, int], ...]] = {
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "log.roll.ms": (("log.roll.hours", 3_600_000),),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", 3_600_000),),
    "log.flush.interval.ms": (("log.flush.scheduler.interval.ms", 1),),
}
"""What counts where a setting in milliseconds is unset: the next ones, with their unit in ms, in Kafka's order."""


def default_of(name: str) -> Any:
    """A broker's default of that setting of topics: of the same type and bounds, and what the topic's row has."""
    return field_of(TOPIC_SETTINGS[name]._replace(doc=f"Default of {name}.", synonym=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings. Attributes are Kafka's names with underscores."""

    # identity and addresses
    broker_id: int = setting(INT, -1, "This broker's id, unique in the fleet; required.", low=0)
    broker_rack: str | None = setting(STRING, None, "The availability zone the broker stands in.")
    listeners: tuple[str, ...] = setting(
        LIST, ("PLAINTEXT://127.0.0.1:9092",), "Addresses to listen on, NAME://host:port; loopback unless you say so.",
    )  # fmt: skip
    advertised_listeners: tuple[str, ...] = setting(
        LIST, (), "Addresses that clients get; the listeners' own when empty.", unset=True
    )
    listener_security_protocol_map: tuple[str, ...] = setting(
        LIST,
        PROTOCOLS,
        "Security protocol of each listener name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
        shown_as=STRING,
    )
    inter_broker_listener_name: str = setting(
        STRING, "", "Listener that brokers use among each other; default: first.", unset=True
    )
    security_inter_broker_protocol: str = setting(
        STRING,
        "PLAINTEXT",
        "Instead of inter.broker.listener.name: brokers use the first listener of that protocol.",
    )
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        LIST, ("GSSAPI",), "SASL mechanisms of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER "
        "(GSSAPI, Kafka's default, is not served). listener.name.X.sasl.enabled.mechanisms counts before it.",
    )  # fmt: skip
    sasl_mechanism_inter_broker_protocol: str = setting(
        STRING,
        "GSSAPI",
        "SASL mechanism with which brokers log in at each other.",
    )
    connections_max_reauth_ms: int = setting(
        LONG, 0, "Longest SASL session, in ms, before a client must log in again (KIP-368); 0 for no limit.", low=0
    )
    connection_failed_authentication_delay_ms: int = setting(
        INT, 100, "How long the answer to a refused login is held back, in ms.", low=0, high=10_000
    )
    admin_listener: str = setting(
        STRING, "", "host:port of the HTTP endpoint for /metrics, /health/live and /health/ready; empty: none."
    )
    log_format: str = setting(
        STRING, "text", "How log lines look: text, or json with one object in each line.", choices=("text", "json")
    )
    metrics_enable: bool = setting(
        BOOLEAN, True, "Whether admin.listener serves metrics; false: nothing is counted by topic or size either."
    )
    metrics_topics_max: int = setting(
        INT, 1_000, "Topics that metrics name, the first that this broker has; the rest are counted as _other.", low=0
    )
    metrics_partitions_enable: bool = setting(
        BOOLEAN, True, "Whether /metrics/partitions and /metrics/kafka have figures of each partition."
    )

    # ZooKeeper
    zookeeper_connect: str = setting(STRING, "", "ZooKeeper's host:port list, with an optional /chroot; required.")
    zookeeper_session_timeout_ms: int = setting(INT, 6_000, "Session timeout asked of ZooKeeper.", low=500)
    zookeeper_connection_timeout_ms: int = setting(
        INT, 10_000, "How long the start waits for ZooKeeper before it gives up.", low=100
    )

    # log
    log_dirs: tuple[str, ...] = setting(LIST, ("/var/lib/fleetlog",), "Directories that hold the partitions.")
    log_dir: str | None = setting(
        STRING, None, "The directory that holds the partitions, where log.dirs is not set.", shown_as=LIST
    )
    num_partitions: int = setting(INT, 1, "Partitions of a topic that is created without a number.", low=1)
    default_replication_factor: int = setting(INT, 1, "Replicas of a topic that is created without a number.", low=1)
    auto_create_topics_enable: bool = setting(BOOLEAN, True, "Create a topic when a client first asks for it.")
    auto_create_topics_max_per_second: int = setting(
        INT, 100, "New topics that one connection may make in a second by naming them; it asks again for others.", low=1
    )
    auto_create_topics_max_pending: int = setting(
        INT, 1_000, "Topics that a broker may be making at once because they were named.", low=1
    )
    delete_topic_enable: bool = setting(BOOLEAN, True, "Whether topics may be deleted.")
    internal_topics_alter_enable: bool = setting(
        BOOLEAN, False, "Whether clients may delete __consumer_offsets and __transaction_state, or give them another "
        "cleanup.policy, or a retention: committed offsets and open transactions are lost by it.",
    )  # fmt: skip
    log_cleanup_policy: tuple[str, ...] = default_of("cleanup.policy")
    compression_type: str = default_of("compression.type")
    compression_gzip_level: int = default_of("compression.gzip.level")
    compression_lz4_level: int = default_of("compression.lz4.level")
    compression_zstd_level: int = default_of("compression.zstd.level")
    log_cleaner_delete_retention_ms: int = default_of("delete.retention.ms")
    log_segment_delete_delay_ms: int = default_of("file.delete.delay.ms")
    log_flush_interval_messages: int = default_of("flush.messages")
    log_flush_interval_ms: int | None = setting(
        LONG, None, "Default of flush.ms; unset, log.flush.scheduler.interval.ms counts.", low=0, live=True
    )
    log_flush_scheduler_interval_ms: int = setting(
        LONG, FOREVER, "Default of flush.ms where log.flush.interval.ms is not set.", low=0
    )
    log_index_interval_bytes: int = default_of("index.interval.bytes")
    log_cleaner_max_compaction_lag_ms: int = default_of("max.compaction.lag.ms")
    max_decompressed_message_bytes: int = setting(
        INT, LARGEST_ARRAY, "Largest record accepted in a compressed batch, in bytes, once it is decompressed.",
        low=1, high=LARGEST_ARRAY, live=True,
    )  # fmt: skip
    message_max_bytes: int = default_of("max.message.bytes")
    log_message_timestamp_type: str = default_of("message.timestamp.type")
    log_message_timestamp_before_max_ms: int = default_of("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = default_of("message.timestamp.after.max.ms")
    log_cleaner_min_cleanable_ratio: float = default_of("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = default_of("min.compaction.lag.ms")
    log_cleaner_backoff_ms: int = setting(LONG, 15_000, "Pause before compaction looks again, in ms.", low=0, live=True)
    log_cleaner_dedupe_buffer_size: int = setting(LONG, 32 * MIB, "Bytes of a pass's map of keys.", low=MIB, live=True)
    log_cleaner_io_max_bytes_per_second: float = setting(
        DOUBLE, BOUNDLESS, "Bytes that compaction reads and writes in a second.", low=1, live=True
    )
    log_verify_bytes_per_second: int = setting(
        LONG, 0, "Bytes of closed segments that are read in a second to check them in the background; 0: none.", low=0,
        live=True,
    )  # fmt: skip
    min_insync_replicas: int = default_of("min.insync.replicas")
    log_preallocate: bool = default_of("preallocate")
    log_retention_bytes: int = default_of("retention.bytes")
    log_local_retention_bytes: int = default_of("local.retention.bytes")
    log_local_retention_ms: int = default_of("local.retention.ms")
    log_remote_copy_lag_bytes: int = default_of("remote.copy.lag.bytes")
    log_remote_copy_lag_ms: int = default_of("remote.copy.lag.ms")
    log_retention_ms: int | None = setting(
        LONG, None, "Default of retention.ms; unset, log.retention.minutes counts, then log.retention.hours.",
        low=-1, live=True,
    )  # fmt: skip
    log_retention_minutes: int | None = setting(
        INT, None, "Default of retention.ms in minutes, where log.retention.ms is not set; -1 for ever.", low=-1
    )
    log_retention_hours: int = setting(
        INT, 168, "Default of retention.ms in hours, where neither log.retention.ms nor .minutes is set; -1 for ever.",
        low=-1,
    )  # fmt: skip
    log_segment_bytes: int = default_of("segment.bytes")
    log_index_size_max_bytes: int = default_of("segment.index.bytes")
    log_roll_jitter_ms: int | None = setting(
        LONG, None, "Default of segment.jitter.ms; unset, log.roll.jitter.hours counts.", low=0, live=True
    )
    log_roll_jitter_hours: int = setting(
        INT, 0, "Default of segment.jitter.ms in hours, where log.roll.jitter.ms is not set.", low=0
    )
    log_roll_ms: int | None = setting(
        LONG, None, "Default of segment.ms; unset, log.roll.hours counts.", low=1, live=True
    )
    log_roll_hours: int = setting(INT, 168, "Default of segment.ms in hours, where log.roll.ms is not set.", low=1)
    unclean_leader_election_enable: bool = default_of("unclean.leader.election.enable")
    log_retention_check_interval_ms: int = setting(LONG, 300_000, "Time between two retention checks, in ms.", low=1)
    log_flush_policy: str = setting(
        STRING, "os", "When appends reach the disk: left to the system, every flush.ms, or before they are answered.",
        choices=("os", "interval", "ack"),
    )  # fmt: skip
    log_flush_offset_checkpoint_interval_ms: int = setting(
        INT, 60_000, "Time between two writes of the recovery-point checkpoint, in ms.", low=1
    )
    producer_id_expiration_ms: int = setting(
        INT, DAY_MS, "How long an idle producer's sequence numbers are remembered, in ms.", low=1, live=True
    )
    producer_state_max_per_partition: int = setting(
        INT, 100_000, "Producers remembered per partition; the longest idle one goes first.", low=1
    )

    # tiered storage
    remote_log_storage_system_enable: bool = setting(
        BOOLEAN, False, "Whether this broker copies segments of tiered topics to the bucket, and reads from there."
    )
    fleetlog_bucket_url: str = setting(
        STRING, "", "The bucket, the same for all brokers: s3://name/folder, gs://, az://, or file:///path of a folder "
        "that all of them have; without credentials, which come from the environment, files or roles.",
    )  # fmt: skip
    fleetlog_bucket_cache_bytes: int = setting(
        LONG, 1024 * MIB, "What was read from the bucket and is kept in the first log directory, in bytes.",
        low=16 * MIB,
    )  # fmt: skip
    fleetlog_bucket_url_lifetime_ms: int = setting(
        INT, 300_000, "For how long a URL holds by which a client that may read a topic reads old records of it from "
        "the bucket itself, in ms; 0: no URLs are given out.", low=0, high=DAY_MS,
    )  # fmt: skip
    fleetlog_bucket_orphan_ms: int = setting(
        LONG, DAY_MS, "The age at which an object that no manifest names is removed from the bucket, in ms.", low=60_000
    )
    remote_log_manager_task_interval_ms: int = setting(
        LONG, 30_000, "Time between two looks for segments to copy or to delete, in ms.", low=1
    )
    remote_log_manager_copy_max_bytes_per_second: int = setting(
        LONG, FOREVER, "What this broker copies to the bucket at most, in bytes per second.", low=1, live=True
    )
    remote_log_manager_fetch_max_bytes_per_second: int = setting(
        LONG, FOREVER, "What this broker reads from the bucket for consumers at most, in bytes per second.", low=1,
        live=True,
    )  # fmt: skip

    # replication
    replica_lag_time_max_ms: int = setting(LONG, 30_000, "How long a follower may lag and stay in sync, in ms.", low=1)
    replica_fetch_wait_max_ms: int = setting(
        INT, 500, "How long a follower's fetch waits at the leader for data, in ms.", low=1
    )
    replica_fetch_min_bytes: int = setting(INT, 1, "Bytes a follower's fetch waits for.", low=0)
    replica_fetch_max_bytes: int = setting(
        INT, MIB, "Bytes a follower asks for per partition; one batch always comes, however large.", low=0
    )
    replica_fetch_response_max_bytes: int = setting(
        INT, 10 * MIB, "Bytes a follower takes in one answer; one batch always comes, however large.", low=0
    )
    replica_fetch_backoff_ms: int = setting(INT, 200, "Pause of a follower after a failed fetch, in ms.", low=0)
    num_replica_fetchers: int = setting(INT, 1, "Accepted; one fetcher per leader.", low=1, live=True, inert=True)
    replica_selector_class: str = setting(
        STRING, "", "Which replica consumers are sent to: empty for the leader, RackAwareReplicaSelector for one in "
        "the consumer's rack.", unset=True,
    )  # fmt: skip
    max_incremental_fetch_session_cache_slots: int = setting(
        INT, 1_000, "Incremental fetch sessions kept at once.", low=0
    )
    leader_replication_throttled_rate: int = setting(
        LONG, FOREVER, "Bytes per second sent to throttled followers.", low=0, live=True
    )
    follower_replication_throttled_rate: int = setting(
        LONG, FOREVER, "Bytes per second that throttled replicas fetch.", low=0, live=True
    )
    auto_leader_rebalance_enable: bool = setting(
        BOOLEAN, True, "Whether leadership goes back to preferred replicas by itself."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        LONG, 300, "Time between two looks at the balance of leaders, in seconds.", low=1
    )
    leader_imbalance_per_broker_percentage: int = setting(
        INT, 10, "Share of a broker's preferred partitions led by others at which leadership goes back.", low=0
    )
    controlled_shutdown_enable: bool = setting(
        BOOLEAN, True, "Whether a stopping broker hands its leaderships over first."
    )
    controlled_shutdown_max_retries: int = setting(INT, 3, "How often it asks the controller for that.", low=0)
    controlled_shutdown_retry_backoff_ms: int = setting(LONG, 1_000, "Pause between two such requests, in ms.", low=0)
    failure_domain: str = setting(
        STRING, "", "What fails together with this broker; replicas avoid sharing it. Empty: the host's name."
    )

    # groups
    offsets_topic_num_partitions: int = setting(INT, 50, "Partitions of __consumer_offsets.", low=1)
    offsets_topic_replication_factor: int = setting(SHORT, 3, "Replicas of __consumer_offsets.", low=1)
    offsets_topic_segment_bytes: int = setting(INT, 100 * MIB, "Segment size of __consumer_offsets.", low=1)
    offsets_retention_minutes: int = setting(INT, 10_080, "How long an empty group's offsets are kept.", low=1)
    offsets_retention_check_interval_ms: int = setting(LONG, 600_000, "Time between two expiry checks, in ms.", low=1)
    offset_metadata_max_bytes: int = setting(
        INT, 4096, "Longest metadata of an offset commit, in characters (UTF-16).", low=0
    )
    group_min_session_timeout_ms: int = setting(INT, 6_000, "Shortest session timeout a member may ask for.", low=0)
    group_max_session_timeout_ms: int = setting(INT, 1_800_000, "Longest session timeout a member may ask for.", low=0)
    group_initial_rebalance_delay_ms: int = setting(
        INT, 3_000, "How long an empty group waits for more members before its first rebalance, in ms.", low=0
    )
    group_max_size: int = setting(INT, 2**31 - 1, "Members of a group at most.", low=1)
    group_member_max_bytes: int = setting(
        INT, MIB, "Largest subscription of a group member, over all protocols that it offers, in bytes.", low=1024
    )
    group_members_max_bytes: int = setting(
        LONG, 128 * MIB, "Subscriptions of all members of a broker's groups, in bytes: above it none joins.",
        low=MIB,
    )  # fmt: skip
    group_consumer_session_timeout_ms: int = setting(
        INT, 45_000, "After so long without a heartbeat a consumer leaves its group (group.protocol=consumer), in ms.",
        low=1,
    )  # fmt: skip
    group_consumer_heartbeat_interval_ms: int = setting(
        INT, 5_000, "How often consumers are told to send heartbeats (group.protocol=consumer), in ms.", low=1
    )
    group_consumer_assignment_interval_ms: int = setting(
        INT, 1_000, "Time between two assignments of a group (group.protocol=consumer), in ms.", low=0, live=True
    )
    group_consumer_min_session_timeout_ms: int = setting(INT, 45_000, "Least consumer.session.timeout.ms.", low=1)
    group_consumer_max_session_timeout_ms: int = setting(INT, 60_000, "Largest consumer.session.timeout.ms.", low=1)
    group_consumer_min_heartbeat_interval_ms: int = setting(INT, 5_000, "Least consumer.heartbeat.interval.ms.", low=1)
    group_consumer_max_heartbeat_interval_ms: int = setting(
        INT, 15_000, "Largest consumer.heartbeat.interval.ms of a group.", low=1
    )
    group_consumer_min_assignment_interval_ms: int = setting(INT, 0, "Least consumer.assignment.interval.ms.", low=0)
    group_consumer_max_assignment_interval_ms: int = setting(
        INT, 15_000, "Largest consumer.assignment.interval.ms of a group.", low=0
    )
    group_consumer_max_size: int = setting(
        INT, 2**31 - 1, "Members of a group at most (group.protocol=consumer).", low=1
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        LIST, ("uniform", "range"), "Assignors that members may ask for; the first is the default. Those that are not"
        " Kafka's uniform and range are passed over.",
    )  # fmt: skip
    group_consumer_migration_policy: str = setting(
        STRING, "bidirectional", "Which groups change their protocol while they have members: to the consumer protocol"
        " when one of it joins, back when the last of them leaves, both, or none.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )  # fmt: skip
    group_lag_interval_ms: int = setting(
        INT, 5_000, "How often a coordinator computes how far its groups are behind, in ms; 0: never.", low=0
    )
    group_lag_series_max: int = setting(
        INT, 10_000, "Partitions, partitions of groups, groups with their topics, and topics of which a broker's"
        " /metrics has series of their own; above it sums alone.", low=0,
    )  # fmt: skip

    # share groups
    group_share_session_timeout_ms: int = setting(
        INT, 45_000, "After so long without a heartbeat a share consumer leaves its group, in ms.", low=1
    )
    group_share_heartbeat_interval_ms: int = setting(
        INT, 5_000, "How often share consumers are told to send heartbeats, in ms.", low=1
    )
    errors_deadletterqueue_topic_name_prefix: str = setting(
        STRING, "dlq.", "How the names of topics begin that share groups may name for their dead letters.", live=True
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = setting(
        BOOLEAN, False, "Create the topic that a share group names for its dead letters with the first of them.",
        live=True,
    )  # fmt: skip
    group_share_record_lock_duration_ms: int = setting(
        INT, 30_000, "How long a share consumer has a record before another one may get it, in ms.",
        low=1_000, high=3_600_000,
    )  # fmt: skip
    group_share_delivery_count_limit: int = setting(
        INT, 5, "How often a record is given to share consumers at most.", low=2, high=10
    )
    group_share_partition_max_record_locks: int = setting(
        INT, 2_000, "Records of a partition that a share group may have in flight.", low=100, high=10_000
    )
    group_share_max_size: int = setting(INT, 200, "Members of a share group at most.", low=1, high=1_000)
    group_share_max_share_sessions: int = setting(INT, 2_000, "Share sessions of a broker at most.", low=1)
    group_share_min_session_timeout_ms: int = setting(INT, 45_000, "Least share.session.timeout.ms.", low=1)
    group_share_max_session_timeout_ms: int = setting(INT, 60_000, "Largest share.session.timeout.ms.", low=1)
    group_share_min_heartbeat_interval_ms: int = setting(INT, 5_000, "Least share.heartbeat.interval.ms.", low=1)
    group_share_max_heartbeat_interval_ms: int = setting(INT, 15_000, "Largest share.heartbeat.interval.ms.", low=1)
    group_share_min_record_lock_duration_ms: int = setting(
        INT, 15_000, "Least share.record.lock.duration.ms.", low=1_000, high=30_000
    )
    group_share_max_record_lock_duration_ms: int = setting(
        INT, 60_000, "Largest share.record.lock.duration.ms.", low=30_000, high=3_600_000
    )
    group_share_min_delivery_count_limit: int = setting(INT, 2, "Least share.delivery.count.limit.", low=2, high=5)
    group_share_max_delivery_count_limit: int = setting(INT, 10, "Largest share.delivery.count.limit.", low=5, high=25)
    group_share_min_partition_max_record_locks: int = setting(
        INT, 100, "Least share.partition.max.record.locks.", low=100, high=2_000
    )
    group_share_max_partition_max_record_locks: int = setting(
        INT, 4_000, "Largest share.partition.max.record.locks.", low=2_000, high=10_000
    )
    share_coordinator_state_topic_num_partitions: int = setting(INT, 50, "Partitions of __share_group_state.", low=1)
    share_coordinator_state_topic_replication_factor: int = setting(SHORT, 3, "Replicas of __share_group_state.", low=1)
    share_coordinator_state_topic_min_isr: int = setting(SHORT, 2, "min.insync.replicas of __share_group_state.", low=1)
    share_coordinator_state_topic_segment_bytes: int = setting(
        INT, 100 * MIB, "Segment size of __share_group_state.", low=1
    )

    # transactions
    transaction_state_log_num_partitions: int = setting(INT, 50, "Partitions of __transaction_state.", low=1)
    transaction_state_log_replication_factor: int = setting(SHORT, 3, "Replicas of __transaction_state.", low=1)
    transaction_state_log_min_isr: int = setting(INT, 2, "min.insync.replicas of __transaction_state.", low=1)
    transaction_state_log_segment_bytes: int = setting(INT, 100 * MIB, "Segment size of __transaction_state.", low=1)
    transaction_max_timeout_ms: int = setting(INT, 900_000, "Longest timeout a transaction may ask for, in ms.", low=1)
    transactional_id_expiration_ms: int = setting(
        INT, 7 * DAY_MS, "How long an idle transactional id is remembered, in ms.", low=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        INT, 3_600_000, "Time between two looks for transactional ids that have expired, in ms.", low=1
    )
    transaction_last_producer_epoch: int = setting(
        INT, 32_766, "Epoch after which a transactional id gets a new producer id. Lower in tests only.",
        low=1, high=32_766,
    )  # fmt: skip
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        INT, 10_000, "Time between two looks for transactions that ran out of time, in ms.", low=1
    )

    # limits
    socket_request_max_bytes: int = setting(
        INT, 100 * MIB, "Largest request frame, in bytes.", low=1024, high=1024 * MIB
    )
    socket_control_request_max_bytes: int = setting(
        INT, 8 * MIB, "Largest request that carries no records (all but Produce), in bytes.", low=65_536
    )
    max_connections: int = setting(
        INT, 10_000, "Connections a broker accepts at most; other brokers have room beside them.", low=1, live=True
    )
    max_connections_per_ip: int = setting(
        INT, 2_500, "Connections of one address at most; other brokers have room beside them.", low=0, live=True
    )
    max_connections_per_ip_overrides: tuple[str, ...] = setting(
        LIST, (), "Instead of max.connections.per.ip for single addresses: ADDRESS:COUNT with commas; names are not"
        " looked up.", live=True, pattern=ADDRESS_AND_COUNT, shown_as=STRING,
    )  # fmt: skip
    max_connection_creation_rate: int = setting(
        INT, 2**31 - 1, "Connections per second that a broker accepts, or a listener (listener.name.X.); brokers have"
        " room beside them where they have a listener of their own.", low=0, live=True,
    )  # fmt: skip
    quota_window_num: int = setting(INT, 11, "Windows over which client quotas are measured.", low=1)
    quota_window_size_seconds: int = setting(INT, 1, "Length of such a window, in seconds.", low=1)
    controller_quota_window_num: int = setting(
        INT, 11, "Windows' worth of partitions that a client may create or delete at once.", low=1
    )
    controller_quota_window_size_seconds: int = setting(INT, 1, "Length of such a window, in seconds.", low=1)
    socket_send_buffer_bytes: int = setting(
        INT, -1, "SO_SNDBUF; -1: 100 KiB for who takes much and is near, what the link needs for who is far.", low=-1
    )
    socket_receive_buffer_bytes: int = setting(INT, -1, "SO_RCVBUF; -1: what the link needs.", low=-1)
    socket_listen_backlog_size: int = setting(
        INT, 1024, "Connections of a listener that may wait to be accepted; the system may allow fewer.", low=1
    )
    connections_max_idle_ms: int = setting(LONG, 600_000, "Idle time after which a connection is closed, in ms.", low=1)
    queued_max_request_bytes: int = setting(
        LONG, 256 * MIB, "Bytes of requests held at once over all connections; nothing is read above it.", low=MIB
    )
    connection_outbox_max_bytes: int = setting(
        INT, 16 * MIB, "Unsent answer bytes at which a connection's requests are no longer read.", low=65_536
    )
    max_in_flight_requests_per_connection: int = setting(
        INT, 64, "Requests of one connection that are worked on or delayed at once.", low=1
    )
    fetch_send: str = setting(
        STRING, "mmap", "How records leave: by what costs least for their size (mmap), or all by sendfile.",
        choices=("mmap", "sendfile"),
    )  # fmt: skip
    fetch_max_bytes: int = setting(INT, 55 * MIB, "Largest answer to one Fetch, in bytes.", low=1024)
    decompressed_batch_max_bytes: int = setting(
        INT, 64 * MIB, "Largest size a compressed batch may unpack to, in bytes.", low=MIB
    )
    decompressed_request_max_bytes: int = setting(
        LONG, 1024 * MIB, "What the batches of one Produce may unpack to; those beyond it are refused as too large.",
        low=MIB,
    )  # fmt: skip

    # Kafka's, without meaning for a broker of one loop
    background_threads: int = setting(INT, 10, "Accepted; there is no such pool here.", low=1, live=True, inert=True)
    num_network_threads: int = setting(INT, 3, "Accepted; one loop does it.", low=1, live=True, inert=True)
    num_io_threads: int = setting(INT, 8, "Accepted; one loop does it.", low=1, live=True, inert=True)
    num_recovery_threads_per_data_dir: int = setting(INT, 2, "Accepted; no effect.", low=1, live=True, inert=True)
    sasl_kerberos_min_time_before_relogin: int = setting(LONG, 60_000, "Accepted; no Kerberos.", live=True, inert=True)

    # audit
    audit_enable: bool = setting(
        BOOLEAN, False, "Whether what principals do is written to __fleetlog_audit; needs an authorizer, and brokers "
        "that log in at each other.",
    )  # fmt: skip
    audit_event_types: tuple[str, ...] = setting(
        LIST, ("management", "authenticate", "admin"), "What is written: the first three are single events, the others"
        " one in a minute for each principal, API and resource, with a count.",
        choices=("management", "authenticate", "admin", "produce", "consume", "describe", "heartbeat"),
    )  # fmt: skip
    audit_on_full: str = setting(
        STRING, "drop", "What happens to what cannot be recorded: it is served unrecorded, or refused.",
        choices=("drop", "refuse"),
    )  # fmt: skip
    audit_queue_max_bytes: int = setting(LONG, 1024 * 1024, "Events that wait to be written, in bytes.", low=65_536)
    audit_excluded_principals: str = setting(
        STRING,
        "",
        "Principals of which nothing is recorded, with semicolons between them: User:alice;User:bob.",
    )
    audit_excluded_topics: tuple[str, ...] = setting(LIST, (), "Topics of whose use nothing is recorded.")
    audit_topic_num_partitions: int = setting(INT, 12, "Partitions of __fleetlog_audit.", low=1)
    audit_topic_replication_factor: int = setting(SHORT, 3, "Replicas of __fleetlog_audit.", low=1)
    audit_topic_retention_ms: int = setting(
        LONG, 7 * DAY_MS, "How long __fleetlog_audit keeps an event, in ms; the topic's retention.ms cannot be altered"
        " to less.", low=60_000,
    )  # fmt: skip

    given: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    """What files, environment and flags set, as text; it also holds the settings that change nothing here."""

    def without_effect(self) -> list[str]:
        """Names of the settings that were given and change nothing here, sorted."""
        tls = any(endpoint.security_protocol in TLS_PROTOCOLS for endpoint in self.listener_endpoints())
        return sorted(name for name, _ in self.given if _changes_nothing(name) and not (tls and _is_of_tls(name)))

    def topic_defaults(self) -> TopicConfig:
        """The settings of a topic without overrides."""
        return _topic_defaults(self)

    def security_protocol(self, listener: str) -> str:
        """The listener's security protocol by ``listener.security.protocol.map``."""
        pairs = (pair.partition(":") for pair in self.listener_security_protocol_map)
        return {name.strip(): protocol.strip() for name, _, protocol in pairs}.get(listener, listener)

    def listener_endpoints(self) -> tuple[Endpoint, ...]:
        """Where to listen."""
        return tuple(parse_listener("listeners", item, self.security_protocol) for item in self._served(self.listeners))

    def advertised_endpoints(self) -> tuple[Endpoint, ...]:
        """What clients and brokers get."""
        items = self.advertised_listeners or self.listeners
        return tuple(
            parse_listener("advertised.listeners", item, self.security_protocol) for item in self._served(items)
        )

    def _served(self, items: tuple[str, ...]) -> list[str]:
        """The listeners without those of a KRaft controller, of which there is none here."""
        controllers = dict(self.given).get("controller.listener.names", "").split(",")
        names = {name.strip() for name in controllers}
        return [item for item in items if item.partition("://")[0] not in names]

    def admin_endpoint(self) -> tuple[str, int]:
        """Host and port of ``admin.listener``; raises ConfigError."""
        host, port = parse_address("admin.listener", self.admin_listener, self.admin_listener, "host:port", low=0)
        if not host:
            raise ConfigError("admin.listener", self.admin_listener, "must name a host, e.g. 127.0.0.1:9644")
        return host, port

    def inter_broker_listener(self) -> str:
        """The name of the listener that brokers use among each other."""
        if self.inter_broker_listener_name:
            return self.inter_broker_listener_name
        endpoints = self.listener_endpoints()
        if "security.inter.broker.protocol" in dict(self.given):
            wanted = self.security_inter_broker_protocol
            return next((endpoint.listener for endpoint in endpoints if endpoint.security_protocol == wanted), "")
        return endpoints[0].listener

    def check_of_listener(self, name: str, text: str, protocols: Sequence[str], what: str) -> None:
        """Raises ConfigError where a setting ``listener.name.X.`` is of no listener, or of one of another protocol.

        It would look like protection, and be none. ``what`` those with one of the ``protocols`` have.
        """
        listener = name.removeprefix(LISTENER_PREFIX).partition(".")[0]
        known = {end.listener.lower(): end.security_protocol for end in self.listener_endpoints()}
        if listener not in known:
            listed = ", ".join(sorted(known))
            raise ConfigError(name, text, f"there is no listener {listener!r}; in lower case, there are {listed}")
        if known[listener] not in protocols:
            raise ConfigError(
                name, text, f"listener {listener} has security protocol {known[listener]}, which has no {what}: set "
                f"{' or '.join(protocols)} in listener.security.protocol.map, or remove this setting",
            )  # fmt: skip

    def of_listener(self, listener: str) -> dict[str, str]:
        """What ``listener.name.X.`` sets for that listener, by the rest of the name, as text."""
        prefix = f"{LISTENER_PREFIX}{listener.lower()}."
        return {name.removeprefix(prefix): text.strip() for name, text in self.given if name.startswith(prefix)}


BROKER_SETTINGS: dict[str, Setting] = table_of(BrokerConfig) | KAFKA_BROKER_SETTINGS
LISTENER_PREFIX = "listener.name."
LISTENER_SETTINGS = OIDC_SETTINGS | {
    "max.connection.creation.rate", "sasl.enabled.mechanisms", "sasl.jaas.config", "connections.max.reauth.ms"
}  # fmt: skip
"""What has an effect behind ``listener.name.X.``; all but the first two also behind a mechanism's name."""


def broker_setting(name: str) -> Setting | None:
    """The setting of a broker of that name; None for ``listener.name.X.``, with which Kafka limits one to a listener.

    Raises LookupError for a name that is neither.
    """
    row = BROKER_SETTINGS.get(name)
    if row is None and not _of_one_listener(name) & (KAFKA_BROKER_SETTINGS.keys() | LISTENER_SETTINGS):
        raise LookupError(name)
    return row


def _of_one_listener(name: str) -> set[str]:
    """What ``listener.name.X.`` may limit to the listener X: the rest of the name, with and without a mechanism."""
    base = name.removeprefix(LISTENER_PREFIX).partition(".")[2] if name.startswith(LISTENER_PREFIX) else ""
    mechanism, _, rest = base.partition(".")
    return {base, rest if mechanism else base}


def _is_of_tls(name: str) -> bool:
    """Whether it is a setting of TLS, of all listeners or of one."""
    return any(base.startswith("ssl.") for base in (name, *_of_one_listener(name)))


def _changes_nothing(name: str) -> bool:
    row = broker_setting(name)
    return row.inert if row is not None else not _of_one_listener(name) & LISTENER_SETTINGS


@cache
def _topic_defaults(config: BrokerConfig) -> TopicConfig:
    rows = (row for row in table_of(TopicConfig).values() if row.synonym)
    return TopicConfig(**{attribute(row.name): _effective(config, row.synonym) for row in rows})


def _effective(config: BrokerConfig, name: str) -> Any:
    """A broker's value of a topic's default; of an unset one the FALLBACKS count."""
    value, unit = getattr(config, attribute(name)), 1
    for other, unit_ms in FALLBACKS.get(name, ()):
        if value is None:
            value, unit = getattr(config, attribute(other)), unit_ms
    return value * unit if unit != 1 and value > 0 else value


for _row in TOPIC_SETTINGS.values():
    if not _row.synonym:  # a topic's own affair: no broker sets it for all
        continue
    assert _row.synonym in BROKER_SETTINGS, f"{_row.name}: no broker setting {_row.synonym}"
    if _row.name not in KAFKA_TOPIC_SETTINGS:
        _default = getattr(_topic_defaults(BrokerConfig()), attribute(_row.name))
        assert _default == _row.default, f"{_row.name}: its default differs from the broker's"


__all__ = [
    "BROKER_SETTINGS",
    "CONSUMER_TIMES",
    "ENVIRONMENT_PREFIX",
    "FALLBACKS",
    "LISTENER_PREFIX",
    "TOPIC_SETTINGS",
    "BrokerConfig",
    "ConfigError",
    "Setting",
    "SettingType",
    "TopicConfig",
    "broker_setting",
    "check_together",
    "load_config",
    "parse_properties",
]

ENVIRONMENT_PREFIX = "FLEETLOG_CONFIG_"


LIVE_TOGETHER = frozenset({
    "group.consumer.assignment.interval.ms", "log.retention.ms", "max.connections.per.ip",
    "max.connections.per.ip.overrides", "message.max.bytes",
})  # fmt: skip
"""What :func:`check_together` looks at and may be altered while a broker runs."""
CONSUMER_TIMES = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
"""The broker's ``group.consumer.X``, between its ``.min.X`` and ``.max.X``, and a group's own ``consumer.X``."""
KRAFT_ONLY = ("process.roles", "controller.quorum.voters", "controller.quorum.bootstrap.servers")
"""What a file for Kafka without ZooKeeper has."""


def load_config(
    text: str = "",
    source: str = "<none>",
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """A complete, checked configuration; raises ConfigError with the place, the value and what is allowed."""
    entries = parse_properties(text, source)
    for variable, value in (environment or {}).items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
            entries[name] = (value, f"environment variable {variable}")
    for name, value in (overrides or {}).items():
        entries[name] = (value, "--override")
    values: dict[str, Any] = {}
    for name, (value, where) in entries.items():
        try:
            row = broker_setting(name)
        except LookupError:
            known = "is no setting of a broker" + suggest(name, BROKER_SETTINGS)
            raise ConfigError(name, value, known, where) from None
        if row is not None:
            parsed = row.parse(value, where)
            if name not in KAFKA_BROKER_SETTINGS:
                values[attribute(name)] = parsed
    _take_synonyms(values, entries)
    config = BrokerConfig(**values, given=tuple((name, value) for name, (value, _) in entries.items()))
    try:
        _check_whole(config)
    except ConfigError as error:
        where = entries[error.name][1] if error.name in entries else source
        raise ConfigError(error.name, error.value, error.allowed, where) from None
    return config


def _take_synonyms(values: dict[str, Any], entries: Mapping[str, tuple[str, str]]) -> None:
    """KRaft's ``node.id`` counts as ``broker.id``, ``log.dir`` where ``log.dirs`` is not given."""
    if "node.id" in entries:
        text, where = entries["node.id"]
        if values.setdefault("broker_id", int(text)) != int(text):
            raise ConfigError("node.id", text, f"must be the same as broker.id ({values['broker_id']})", where)
    if values.get("log_dir") is not None and "log_dirs" not in values:
        values["log_dirs"] = BROKER_SETTINGS["log.dirs"].parse(values["log_dir"], entries["log.dir"][1])


def _check_whole(config: BrokerConfig) -> None:
    """The values against each other: a configuration that would lose data or hang later is refused now."""
    if config.broker_id < 0:
        raise ConfigError("broker.id", "", "is required: an id that no other broker of the fleet has")
    if not config.zookeeper_connect:
        _check_not_kraft(dict(config.given))
        raise ConfigError("zookeeper.connect", "", "is required: host:port[,host:port...][/chroot]")
    try:
        parse_connect(config.zookeeper_connect)
    except CannotConnect as error:
        reason = str(error).partition(": ")[2]
        raise ConfigError("zookeeper.connect", config.zookeeper_connect, reason) from None
    if not config.log_dirs:
        raise ConfigError("log.dirs", "", "is required: at least one directory")
    if len({path.rstrip("/") for path in config.log_dirs}) < len(config.log_dirs):
        raise ConfigError("log.dirs", ",".join(config.log_dirs), "must name each directory once")
    _check_listeners(config)
    check_together(config)
    if config.zookeeper_session_timeout_ms >= config.replica_lag_time_max_ms:
        raise ConfigError(
            "zookeeper.session.timeout.ms", str(config.zookeeper_session_timeout_ms),
            f"must be below replica.lag.time.max.ms ({config.replica_lag_time_max_ms}), "
            "else a dead leader could become the whole in-sync set",
        )  # fmt: skip


def check_together(config: BrokerConfig) -> None:
    """What Kafka's brokers check across those settings that have an effect here, at the start and when one is altered.

    Raises ConfigError.
    """
    kept = (
        ("ms", config.log_retention_ms),
        ("minutes", config.log_retention_minutes),
        ("hours", config.log_retention_hours),
    )
    unit, retention = next((unit, value) for unit, value in kept if value is not None)
    if retention == 0:
        raise ConfigError(f"log.retention.{unit}", "0", "must be at least 1, or -1 for ever")
    lag, idle = config.replica_lag_time_max_ms, config.connections_max_idle_ms
    if config.replica_fetch_wait_max_ms > lag:
        reason = f"must not pass replica.lag.time.max.ms ({lag}), else followers that wait leave the in-sync set"
        raise ConfigError("replica.fetch.wait.max.ms", str(config.replica_fetch_wait_max_ms), reason)
    if config.connection_failed_authentication_delay_ms >= idle:
        name, reason = "connection.failed.authentication.delay.ms", f"must be below connections.max.idle.ms ({idle})"
        raise ConfigError(name, str(config.connection_failed_authentication_delay_ms), reason)
    if config.max_connections_per_ip == 0 and not config.max_connections_per_ip_overrides:
        raise ConfigError("max.connections.per.ip", "0", "shuts out every client: name some in its .overrides")
    if config.message_max_bytes > config.socket_request_max_bytes:
        raise ConfigError(
            "message.max.bytes", str(config.message_max_bytes),
            f"must not pass socket.request.max.bytes ({config.socket_request_max_bytes}): a Produce with such a batch "
            "would be refused before it is read; raise socket.request.max.bytes, too",
        )  # fmt: skip
    for row in CONSUMER_TIMES:
        _check_consumer_time(config, row)
    session_ms = config.group_consumer_session_timeout_ms
    if config.group_consumer_heartbeat_interval_ms >= session_ms:
        raise ConfigError(
            "group.consumer.heartbeat.interval.ms", str(config.group_consumer_heartbeat_interval_ms),
            f"must be below group.consumer.session.timeout.ms ({session_ms}), else members are gone before their next",
        )  # fmt: skip


def _check_consumer_time(config: BrokerConfig, name: str) -> None:
    """``group.consumer.X`` is between ``group.consumer.min.X`` and ``group.consumer.max.X``. Raises ConfigError."""
    least, largest, own = (f"group.consumer.{end}{name}" for end in ("min.", "max.", ""))
    low, high, time_ms = (getattr(config, attribute(each)) for each in (least, largest, own))
    if high < low:
        raise ConfigError(largest, str(high), f"must not be below {least} ({low})")
    if not low <= time_ms <= high:
        end, bound = (least, low) if time_ms < low else (largest, high)
        what = "be below" if time_ms < low else "pass"
        raise ConfigError(own, str(time_ms), f"must not {what} {end} ({bound}): set that, too")


def _check_not_kraft(given: Mapping[str, str]) -> None:
    """Say of a file for Kafka without ZooKeeper what it lacks. Raises ConfigError."""
    name = next((name for name in KRAFT_ONLY if name in given), None)
    if name is not None:
        raise ConfigError(
            name, given[name], "is of Kafka in KRaft mode. Here brokers coordinate by ZooKeeper, and each can be the "
            "controller: add zookeeper.connect=host:port[,host:port...][/chroot] to this file (a local one comes with "
            "`fleetlog dev up`); what is KRaft's may stay, without effect",
        )  # fmt: skip


def _check_listeners(config: BrokerConfig) -> None:
    for pair in config.listener_security_protocol_map:
        if re.fullmatch(r"[^:]+:[^:]+", pair) is None:
            listed = ",".join(config.listener_security_protocol_map)
            raise ConfigError("listener.security.protocol.map", listed, f"{pair!r} must be NAME:PROTOCOL")
    endpoints = config.listener_endpoints()
    listed, names = ",".join(config.listeners), [endpoint.listener for endpoint in endpoints]
    if not names or len(set(names)) != len(names):
        raise ConfigError("listeners", listed, "must name each listener once")
    taken = {(endpoint.host, endpoint.port) for endpoint in endpoints if endpoint.port}
    if len(taken) < sum(endpoint.port > 0 for endpoint in endpoints):
        raise ConfigError("listeners", listed, "must name each address once")
    if config.admin_listener and config.admin_endpoint() in taken:
        raise ConfigError("admin.listener", config.admin_listener, "is an address of listeners; choose another port")
    advertised = "advertised.listeners" if config.advertised_listeners else "listeners"
    for endpoint in config.advertised_endpoints():
        if endpoint.listener not in names:
            raise ConfigError(advertised, endpoint.listener, f"is none of listeners: {', '.join(names)}")
        if endpoint.host in ("0.0.0.0", "::", ""):
            raise ConfigError(advertised, endpoint.host, "no client can connect to that: set advertised.listeners")
    if "security.inter.broker.protocol" in dict(config.given):
        _check_inter_broker_protocol(config)
    if config.inter_broker_listener() not in names:
        raise ConfigError(
            "inter.broker.listener.name", config.inter_broker_listener_name, f"must be one of {', '.join(names)}"
        )


def _check_inter_broker_protocol(config: BrokerConfig) -> None:
    name, protocol = "security.inter.broker.protocol", config.security_inter_broker_protocol
    if config.inter_broker_listener_name:
        raise ConfigError(name, protocol, "stands beside inter.broker.listener.name: remove one of both")
    if not config.inter_broker_listener():
        raise ConfigError(name, protocol, "is the security protocol of none of listeners: add one, or set another")
