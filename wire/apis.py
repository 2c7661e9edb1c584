"""The API table: one row per API, from which ApiVersions, docs/apis.md and the test that each row has a handler and a
test are derived. ``brokers.api.rows`` finds what serves it.

Version ranges are what Kafka 4.4 advertises; DescribeConfigs has 0, too, for clients of Kafka 0.11. Produce says 0
although only 3 and up work: librdkafka before 2.11 turns compression off unless version 0 is advertised (KAFKA-18659);
a Produce below 3 closes its connection, as in Kafka. WriteTxnMarkers 2 is from Kafka 4.2: the coordinators need its
transaction version (KIP-1228).
"""

from __future__ import annotations

from typing import NamedTuple

from fleetlog.wire import api_keys


class Api(NamedTuple):
    """One API: its key (``wire.api_keys``), its versions, as clients and brokers speak of it."""

    key: int
    name: str
    min_version: int
    max_version: int
    min_supported: int = -1  # where it differs from what is advertised
    internal: bool = False  # between brokers only: not advertised
    large: bool = False  # carries data: bounded by socket.request.max.bytes alone

    @property
    def lowest(self) -> int:
        """The lowest version that works."""
        return self.min_version if self.min_supported < 0 else self.min_supported


_ROWS = (
    Api(api_keys.PRODUCE, "Produce", 0, 13, 3, large=True),
    Api(api_keys.FETCH, "Fetch", 4, 18),
    Api(api_keys.LIST_OFFSETS, "ListOffsets", 1, 11),
    Api(api_keys.METADATA, "Metadata", 0, 13),
    Api(api_keys.CONTROLLED_SHUTDOWN, "ControlledShutdown", 3, 3, internal=True),
    Api(api_keys.OFFSET_COMMIT, "OffsetCommit", 2, 10),
    Api(api_keys.OFFSET_FETCH, "OffsetFetch", 1, 10),
    Api(api_keys.FIND_COORDINATOR, "FindCoordinator", 0, 6),
    Api(api_keys.JOIN_GROUP, "JoinGroup", 0, 9),
    Api(api_keys.HEARTBEAT, "Heartbeat", 0, 4),
    Api(api_keys.LEAVE_GROUP, "LeaveGroup", 0, 5),
    Api(api_keys.SYNC_GROUP, "SyncGroup", 0, 5),
    Api(api_keys.DESCRIBE_GROUPS, "DescribeGroups", 0, 6),
    Api(api_keys.LIST_GROUPS, "ListGroups", 0, 5),
    Api(api_keys.SASL_HANDSHAKE, "SaslHandshake", 0, 1),
    Api(api_keys.API_VERSIONS, "ApiVersions", 0, 5),
    Api(api_keys.CREATE_TOPICS, "CreateTopics", 2, 7),
    Api(api_keys.DELETE_TOPICS, "DeleteTopics", 1, 6),
    Api(api_keys.DELETE_RECORDS, "DeleteRecords", 0, 2),
    Api(api_keys.INIT_PRODUCER_ID, "InitProducerId", 0, 5),
    Api(api_keys.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4),
    Api(api_keys.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5),
    Api(api_keys.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 4),
    Api(api_keys.END_TXN, "EndTxn", 0, 5),
    Api(api_keys.WRITE_TXN_MARKERS, "WriteTxnMarkers", 1, 2),
    Api(api_keys.TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 6),
    Api(api_keys.DESCRIBE_ACLS, "DescribeAcls", 1, 3),
    Api(api_keys.CREATE_ACLS, "CreateAcls", 1, 3),
    Api(api_keys.DELETE_ACLS, "DeleteAcls", 1, 3),
    Api(api_keys.DESCRIBE_CONFIGS, "DescribeConfigs", 0, 4),
    Api(api_keys.ALTER_CONFIGS, "AlterConfigs", 0, 2),
    Api(api_keys.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", 1, 2),
    Api(api_keys.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5),
    Api(api_keys.SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2),
    Api(api_keys.CREATE_PARTITIONS, "CreatePartitions", 0, 3),
    Api(api_keys.CREATE_DELEGATION_TOKEN, "CreateDelegationToken", 1, 3),
    Api(api_keys.RENEW_DELEGATION_TOKEN, "RenewDelegationToken", 1, 2),
    Api(api_keys.EXPIRE_DELEGATION_TOKEN, "ExpireDelegationToken", 1, 2),
    Api(api_keys.DESCRIBE_DELEGATION_TOKEN, "DescribeDelegationToken", 1, 3),
    Api(api_keys.DELETE_GROUPS, "DeleteGroups", 0, 3),
    Api(api_keys.ELECT_LEADERS, "ElectLeaders", 0, 2),
    Api(api_keys.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1),
    Api(api_keys.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 1),
    Api(api_keys.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0),
    Api(api_keys.OFFSET_DELETE, "OffsetDelete", 0, 0),
    Api(api_keys.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1),
    Api(api_keys.ALTER_CLIENT_QUOTAS, "AlterClientQuotas", 0, 1),
    Api(api_keys.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", 0, 0),
    Api(api_keys.ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", 0, 0),
    Api(api_keys.UPDATE_FEATURES, "UpdateFeatures", 0, 2),
    Api(api_keys.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2),
    Api(api_keys.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0),
    Api(api_keys.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0),
    Api(api_keys.LIST_TRANSACTIONS, "ListTransactions", 0, 2),
    Api(api_keys.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0, 1),
    Api(api_keys.LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1),
    Api(api_keys.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0),
    Api(api_keys.SHARE_GROUP_HEARTBEAT, "ShareGroupHeartbeat", 1, 1),
    Api(api_keys.REPLICA_ENDS, "ReplicaEnds", 0, 1, internal=True),
    Api(api_keys.BEGIN_BATCH, "BeginBatch", 0, 0),
    Api(api_keys.ENLIST_PRODUCER, "EnlistProducer", 0, 0),
    Api(api_keys.COMMIT_BATCH, "CommitBatch", 0, 0),
    Api(api_keys.HEARTBEAT_BATCH, "HeartbeatBatch", 0, 0),
    Api(api_keys.ABORT_BATCH, "AbortBatch", 0, 0),
    Api(api_keys.DESCRIBE_SINKS, "DescribeSinks", 0, 0),
    Api(api_keys.RESET_SINK, "ResetSink", 0, 0),
    Api(api_keys.COMPACT_TOPICS, "CompactTopics", 0, 0),
    Api(api_keys.DESCRIBE_COMPACTION, "DescribeCompaction", 0, 0),
    Api(api_keys.LOG_POSITIONS, "LogPositions", 0, 0, internal=True),
    Api(api_keys.DESCRIBE_LAG, "DescribeLag", 0, 0),
    Api(api_keys.DESCRIBE_HEALTH, "DescribeHealth", 0, 0),
    Api(api_keys.DESCRIBE_CONNECTIONS, "DescribeConnections", 0, 0),
    Api(api_keys.DESCRIBE_ELECTIONS, "DescribeElections", 0, 0),
    Api(api_keys.ACCEPTED_POSITIONS, "AcceptedPositions", 0, 0, internal=True),
)

APIS: dict[int, Api] = {row.key: row for row in _ROWS}
assert len(APIS) == len(_ROWS), "an API key is in the table twice"
LARGE_KEYS = frozenset(row.key for row in _ROWS if row.large)
