"""The API table: one row per API, from which dispatch, ApiVersions, docs/apis.md and the test that each row has a
handler and a test are derived.

Version ranges are what Kafka 4.1 advertises; DescribeConfigs has 0, too, for clients of Kafka 0.11. Produce says 0
although only 3 and up work: librdkafka before 2.11 turns compression off unless version 0 is advertised (KAFKA-18659);
a Produce below 3 is answered UNSUPPORTED_VERSION. WriteTxnMarkers 2 is from Kafka 4.2: the coordinators need its
transaction version (KIP-1228).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Cost(Enum):
    """What admission reserves before the body is decoded."""

    CHEAP = "cheap"
    DATA = "data"  # the body is kept while the request is in flight
    ADMIN = "admin"  # decodes into many small objects: counts several times its size


class Api(NamedTuple):
    """``handler`` is ``module:function`` below ``brokers.api``. Keys from 12000 on are ours, not Kafka's.

    ``batch`` names, in the same way, how requests of that API are executed where they were received, one or several
    together (``brokers.api.base`` Batching).
    """

    key: int
    name: str
    min_version: int
    max_version: int
    cost: Cost
    handler: str
    min_supported: int = -1  # where it differs from what is advertised
    internal: bool = False  # between brokers only: not advertised
    large: bool = False  # carries data: bounded by socket.request.max.bytes alone
    batch: str = ""

    @property
    def lowest(self) -> int:
        """The lowest version that works."""
        return self.min_version if self.min_supported < 0 else self.min_supported


_ROWS = (
    Api(0, "Produce", 0, 13, Cost.DATA, "produce:handle_produce", 3, large=True, batch="produce:BATCHING"),
    Api(1, "Fetch", 4, 18, Cost.DATA, "fetch:handle_fetch", batch="fetch:BATCHING"),
    Api(2, "ListOffsets", 1, 10, Cost.CHEAP, "offsets:handle_list_offsets"),
    Api(3, "Metadata", 0, 13, Cost.CHEAP, "metadata:handle_metadata"),
    Api(7, "ControlledShutdown", 3, 3, Cost.CHEAP, "replicas:handle_controlled_shutdown", internal=True),
    Api(8, "OffsetCommit", 2, 9, Cost.CHEAP, "group_offsets:handle_offset_commit"),
    Api(9, "OffsetFetch", 1, 9, Cost.CHEAP, "group_offsets:handle_offset_fetch"),
    Api(10, "FindCoordinator", 0, 6, Cost.CHEAP, "metadata:handle_find_coordinator"),
    Api(11, "JoinGroup", 0, 9, Cost.CHEAP, "groups:handle_join_group"),
    Api(12, "Heartbeat", 0, 4, Cost.CHEAP, "groups:handle_heartbeat"),
    Api(13, "LeaveGroup", 0, 5, Cost.CHEAP, "groups:handle_leave_group"),
    Api(14, "SyncGroup", 0, 5, Cost.CHEAP, "groups:handle_sync_group"),
    Api(15, "DescribeGroups", 0, 6, Cost.ADMIN, "groups:handle_describe_groups"),
    Api(16, "ListGroups", 0, 5, Cost.ADMIN, "groups:handle_list_groups"),
    Api(17, "SaslHandshake", 0, 1, Cost.CHEAP, "security:handle_sasl_handshake"),
    Api(18, "ApiVersions", 0, 4, Cost.CHEAP, "versions:handle_api_versions"),
    Api(19, "CreateTopics", 2, 7, Cost.ADMIN, "topics:handle_create_topics"),
    Api(20, "DeleteTopics", 1, 6, Cost.ADMIN, "topics:handle_delete_topics"),
    Api(21, "DeleteRecords", 0, 2, Cost.ADMIN, "offsets:handle_delete_records"),
    Api(22, "InitProducerId", 0, 5, Cost.CHEAP, "transactions:handle_init_producer_id"),
    Api(23, "OffsetForLeaderEpoch", 2, 4, Cost.CHEAP, "offsets:handle_offset_for_leader_epoch"),
    Api(24, "AddPartitionsToTxn", 0, 5, Cost.CHEAP, "transactions:handle_add_partitions_to_txn"),
    Api(25, "AddOffsetsToTxn", 0, 4, Cost.CHEAP, "transactions:handle_add_offsets_to_txn"),
    Api(26, "EndTxn", 0, 5, Cost.CHEAP, "transactions:handle_end_txn"),
    Api(27, "WriteTxnMarkers", 1, 2, Cost.CHEAP, "transactions:handle_write_txn_markers"),
    Api(28, "TxnOffsetCommit", 0, 5, Cost.CHEAP, "transactions:handle_txn_offset_commit"),
    Api(29, "DescribeAcls", 1, 3, Cost.CHEAP, "acls:handle_describe_acls"),
    Api(30, "CreateAcls", 1, 3, Cost.ADMIN, "acls:handle_create_acls"),
    Api(31, "DeleteAcls", 1, 3, Cost.ADMIN, "acls:handle_delete_acls"),
    Api(32, "DescribeConfigs", 0, 4, Cost.ADMIN, "configs:handle_describe_configs"),
    Api(33, "AlterConfigs", 0, 2, Cost.ADMIN, "configs:handle_alter_configs"),
    Api(34, "AlterReplicaLogDirs", 1, 2, Cost.ADMIN, "log_dirs:handle_alter_replica_log_dirs"),
    Api(35, "DescribeLogDirs", 1, 4, Cost.ADMIN, "log_dirs:handle_describe_log_dirs"),
    Api(36, "SaslAuthenticate", 0, 2, Cost.CHEAP, "security:handle_sasl_authenticate"),
    Api(37, "CreatePartitions", 0, 3, Cost.ADMIN, "topics:handle_create_partitions"),
    Api(38, "CreateDelegationToken", 1, 3, Cost.ADMIN, "delegation_tokens:handle_delegation_token"),
    Api(39, "RenewDelegationToken", 1, 2, Cost.ADMIN, "delegation_tokens:handle_delegation_token"),
    Api(40, "ExpireDelegationToken", 1, 2, Cost.ADMIN, "delegation_tokens:handle_delegation_token"),
    Api(41, "DescribeDelegationToken", 1, 3, Cost.ADMIN, "delegation_tokens:handle_delegation_token"),
    Api(42, "DeleteGroups", 0, 2, Cost.ADMIN, "groups:handle_delete_groups"),
    Api(43, "ElectLeaders", 0, 2, Cost.ADMIN, "elections:handle_elect_leaders"),
    Api(44, "IncrementalAlterConfigs", 0, 1, Cost.ADMIN, "configs:handle_incremental_alter_configs"),
    Api(45, "AlterPartitionReassignments", 0, 1, Cost.ADMIN, "reassignments:handle_alter_partition_reassignments"),
    Api(46, "ListPartitionReassignments", 0, 0, Cost.ADMIN, "reassignments:handle_list_partition_reassignments"),
    Api(47, "OffsetDelete", 0, 0, Cost.ADMIN, "group_offsets:handle_offset_delete"),
    Api(48, "DescribeClientQuotas", 0, 1, Cost.ADMIN, "client_quotas:handle_describe_client_quotas"),
    Api(49, "AlterClientQuotas", 0, 1, Cost.ADMIN, "client_quotas:handle_alter_client_quotas"),
    Api(50, "DescribeUserScramCredentials", 0, 0, Cost.ADMIN, "scram:handle_describe_user_scram_credentials"),
    Api(51, "AlterUserScramCredentials", 0, 0, Cost.ADMIN, "scram:handle_alter_user_scram_credentials"),
    Api(60, "DescribeCluster", 0, 2, Cost.CHEAP, "cluster:handle_describe_cluster"),
    Api(61, "DescribeProducers", 0, 0, Cost.ADMIN, "transactions:handle_describe_producers"),
    Api(65, "DescribeTransactions", 0, 0, Cost.ADMIN, "transactions:handle_describe_transactions"),
    Api(66, "ListTransactions", 0, 2, Cost.ADMIN, "transactions:handle_list_transactions"),
    Api(68, "ConsumerGroupHeartbeat", 0, 1, Cost.CHEAP, "new_groups:handle_consumer_group_heartbeat"),
    Api(74, "ListConfigResources", 0, 1, Cost.ADMIN, "configs:handle_list_config_resources"),
    Api(75, "DescribeTopicPartitions", 0, 0, Cost.ADMIN, "metadata:handle_describe_topic_partitions"),
    Api(76, "ShareGroupHeartbeat", 1, 1, Cost.CHEAP, "new_groups:handle_share_group_heartbeat"),
    Api(12000, "ReplicaEnds", 0, 1, Cost.ADMIN, "replicas:handle_replica_ends", internal=True),
    Api(12001, "BeginBatch", 0, 0, Cost.CHEAP, "sinks:handle_begin_batch"),
    Api(12002, "EnlistProducer", 0, 0, Cost.CHEAP, "sinks:handle_enlist_producer"),
    Api(12003, "CommitBatch", 0, 0, Cost.ADMIN, "sinks:handle_commit_batch"),
    Api(12004, "HeartbeatBatch", 0, 0, Cost.CHEAP, "sinks:handle_heartbeat_batch"),
    Api(12005, "AbortBatch", 0, 0, Cost.CHEAP, "sinks:handle_abort_batch"),
    Api(12006, "DescribeSinks", 0, 0, Cost.ADMIN, "sinks:handle_describe_sinks"),
    Api(12007, "ResetSink", 0, 0, Cost.CHEAP, "sinks:handle_reset_sink"),
    Api(12008, "CompactTopics", 0, 0, Cost.ADMIN, "compaction:handle_compact_topics"),
    Api(12009, "DescribeCompaction", 0, 0, Cost.ADMIN, "compaction:handle_describe_compaction"),
    Api(12010, "LogPositions", 0, 0, Cost.ADMIN, "lags:handle_log_positions", internal=True),
    Api(12011, "DescribeLag", 0, 0, Cost.ADMIN, "lags:handle_describe_lag"),
    Api(12012, "DescribeHealth", 0, 0, Cost.ADMIN, "health:handle_describe_health"),
    Api(12013, "DescribeConnections", 0, 0, Cost.ADMIN, "connections:handle_describe_connections"),
    Api(12014, "DescribeElections", 0, 0, Cost.ADMIN, "history:handle_describe_elections"),
)

APIS: dict[int, Api] = {row.key: row for row in _ROWS}
assert len(APIS) == len(_ROWS), "an API key is in the table twice"
LARGE_KEYS = frozenset(row.key for row in _ROWS if row.large)
