"""Every setting of a topic, declared once, with Kafka's names; brokers' are in ``config``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fleetlog.brokers.inert_settings import KAFKA_TOPIC_SETTINGS
from fleetlog.brokers.setting_kinds import ConfigError, Setting, SettingType, attribute, setting, suggest, table_of
from fleetlog.wire import compression_codecs

BOOLEAN, STRING, INT = SettingType.BOOLEAN, SettingType.STRING, SettingType.INT
LONG, DOUBLE, LIST = SettingType.LONG, SettingType.DOUBLE, SettingType.LIST

MIB, DAY_MS = 1024 * 1024, 24 * 3600 * 1000
FOREVER = 2**63 - 1
LARGEST_ARRAY = 2**31 - 9
"""Of a Java array, in bytes: Kafka's way to say that there is no limit."""
THROTTLED = r"\*|none|[0-9]{1,10}:[0-9]{1,10}"
THROTTLED_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
CODECS = ("producer", "uncompressed", *list(compression_codecs.CODES)[1:])
GZIP_LEVELS = "-1|[1-9]"
TOPIC_NAMES, RECORD_NAMES, TOPIC_RECORD_NAMES = NAME_STRATEGIES = tuple(
    f"io.confluent.kafka.serializers.subject.{name}Strategy" for name in ("TopicName", "RecordName", "TopicRecordName")
)
"""How Confluent's serializers make a subject's name: ``orders-value``, ``shop.Order``, ``orders-shop.Order``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings, complete: its overrides on top of the broker's defaults."""

    cleanup_policy: tuple[str, ...] = setting(
        LIST, ("delete",), "What happens to old segments: delete them, or keep the last record of each key.",
        choices=("delete", "compact"), live=True, synonym="log.cleanup.policy",
    )  # fmt: skip
    compression_type: str = setting(
        STRING, "producer", "Codec of the stored batches; 'producer' keeps what the producer chose.",
        choices=CODECS, live=True, synonym="compression.type",
    )  # fmt: skip
    compression_gzip_level: int = setting(
        INT, -1, "Level of gzip where the broker compresses; -1 is gzip's own.", low=-1, high=9, live=True,
        pattern=GZIP_LEVELS, synonym="compression.gzip.level",
    )  # fmt: skip
    compression_lz4_level: int = setting(
        INT, 9, "Level of lz4 where the broker compresses; 9 is the fast one.", low=1, high=17, live=True,
        synonym="compression.lz4.level",
    )  # fmt: skip
    compression_zstd_level: int = setting(
        INT, 3, "Level of zstd where the broker compresses.", low=-131_072, high=22, live=True,
        synonym="compression.zstd.level",
    )  # fmt: skip
    confluent_key_schema_validation: bool = setting(
        BOOLEAN, False, "Whether keys must have the id of a schema of the topic's subject, as "
        "fleetlog.schema.validation=id asks of values.", live=True,
    )  # fmt: skip
    confluent_key_subject_name_strategy: str = setting(
        STRING, TOPIC_NAMES, "How the subject of the keys' schemas is named.", choices=NAME_STRATEGIES, live=True
    )
    confluent_value_schema_validation: bool = setting(
        BOOLEAN, False, "As fleetlog.schema.validation=id, where that is none.", live=True
    )
    confluent_value_subject_name_strategy: str = setting(
        STRING, TOPIC_NAMES, "How the subject of the values' schemas is named.", choices=NAME_STRATEGIES, live=True
    )
    delete_retention_ms: int = setting(
        LONG, DAY_MS, "How long compaction keeps a tombstone, in ms.", low=0, live=True,
        synonym="log.cleaner.delete.retention.ms",
    )  # fmt: skip
    errors_deadletterqueue_group_enable: bool = setting(
        BOOLEAN, False, "Whether share groups may write dead letters to the topic.", live=True
    )
    file_delete_delay_ms: int = setting(
        LONG, 60_000, "How long a deleted segment's file stays on disk, in ms.", low=0, live=True,
        synonym="log.segment.delete.delay.ms",
    )  # fmt: skip
    flush_messages: int = setting(
        LONG, FOREVER, "Records between two fsyncs of a partition.", low=1, live=True,
        synonym="log.flush.interval.messages",
    )  # fmt: skip
    flush_ms: int = setting(
        LONG, FOREVER, "Longest time a record stays without fsync, in ms.", low=0, live=True,
        synonym="log.flush.interval.ms",
    )  # fmt: skip
    fleetlog_dedup: str = setting(
        STRING, "none", "Whether records are dropped whose position in their source was accepted before; set with the "
        "topic's creation.", choices=("none", "source"),
    )  # fmt: skip
    fleetlog_dedup_max_bytes: int = setting(
        LONG, 16 * MIB, "Memory of a partition's accepted positions, in bytes; what does not fit is refused.",
        low=64 * 1024, live=True,
    )  # fmt: skip
    fleetlog_dedup_window_ms: int = setting(
        LONG, 1_800_000, "How long accepted positions are known at least, in ms.", low=1000, live=True
    )  # fmt: skip
    fleetlog_schema_invalid: str = setting(
        STRING, "refuse", "What becomes of records that fail the check of their schema: they are refused, or are dead "
        "letters of a topic (dlq:TOPIC).", pattern="refuse|tag|dlq:[A-Za-z0-9._-]{1,249}", live=True,
    )  # fmt: skip
    fleetlog_schema_validation: str = setting(
        STRING, "none", "What values are checked for before they are taken: the id of a schema of the topic's subject; "
        "full: also that they are of that schema.",
        choices=("none", "id", "full"), live=True,
    )  # fmt: skip
    fleetlog_tiering_waits: bool = setting(
        BOOLEAN, False, "Whether remote.storage.enable is from when it had no effect, and waits for fleetlog bucket "
        "enable; written when fleetlog.tiering.version is finalized.", live=True,
    )  # fmt: skip
    index_interval_bytes: int = setting(
        INT, 4096, "Bytes of log per index entry.", low=0, live=True, synonym="log.index.interval.bytes"
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        LIST, (), "Replicas whose fetching is throttled: '*', 'none', or partition:broker pairs.", live=True,
        pattern=THROTTLED,
    )  # fmt: skip
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        LIST, (), "Replicas whose fetching is throttled at the leader: '*', 'none', or partition:broker pairs.",
        live=True, pattern=THROTTLED,
    )  # fmt: skip
    local_retention_bytes: int = setting(
        LONG, -2, "Bytes that a partition of a tiered topic keeps in log.dirs at most; -2: as retention.bytes.", low=-2,
        live=True, synonym="log.local.retention.bytes",
    )  # fmt: skip
    local_retention_ms: int = setting(
        LONG, -2, "How long a tiered topic's record is kept in log.dirs, in ms; -2: as retention.ms.", low=-2,
        live=True, synonym="log.local.retention.ms",
    )  # fmt: skip
    max_compaction_lag_ms: int = setting(
        LONG, FOREVER, "Longest time a record stays uncompacted, in ms.", low=1, live=True,
        synonym="log.cleaner.max.compaction.lag.ms",
    )  # fmt: skip
    max_decompressed_message_bytes: int = setting(
        INT, LARGEST_ARRAY, "Largest record accepted in a compressed batch, in bytes, once it is decompressed.",
        low=1, high=LARGEST_ARRAY, live=True, synonym="max.decompressed.message.bytes",
    )  # fmt: skip
    max_message_bytes: int = setting(
        INT, MIB + 12, "Largest record batch accepted, in bytes, after compression.", low=0, live=True,
        synonym="message.max.bytes",
    )  # fmt: skip
    message_timestamp_type: str = setting(
        STRING, "CreateTime", "Whether a record's timestamp is the producer's or the append's.",
        choices=("CreateTime", "LogAppendTime"), live=True, synonym="log.message.timestamp.type",
    )  # fmt: skip
    message_timestamp_before_max_ms: int = setting(
        LONG, FOREVER, "How far a CreateTime may lie in the past, in ms.", low=0, live=True,
        synonym="log.message.timestamp.before.max.ms",
    )  # fmt: skip
    message_timestamp_after_max_ms: int = setting(
        LONG, 3_600_000, "How far a CreateTime may lie in the future, in ms.", low=0, live=True,
        synonym="log.message.timestamp.after.max.ms",
    )  # fmt: skip
    min_cleanable_dirty_ratio: float = setting(
        DOUBLE, 0.5, "Share of uncompacted bytes at which compaction starts.", low=0, high=1, live=True,
        synonym="log.cleaner.min.cleanable.ratio",
    )  # fmt: skip
    min_compaction_lag_ms: int = setting(
        LONG, 0, "Shortest time a record stays uncompacted, in ms.", low=0, live=True,
        synonym="log.cleaner.min.compaction.lag.ms",
    )  # fmt: skip
    min_insync_replicas: int = setting(
        INT, 1, "In-sync replicas an acks=all produce needs.", low=1, live=True, synonym="min.insync.replicas"
    )
    preallocate: bool = setting(
        BOOLEAN,
        False,
        "Accepted; large segments on ext4 are always allocated a little ahead.",
        live=True,
        inert=True,
        synonym="log.preallocate",
    )
    remote_copy_lag_bytes: int = setting(
        LONG, -1, "A closed segment is copied once so many bytes are newer, or remote.copy.lag.ms says so; -1: as "
        "local.retention.bytes.", low=-1, live=True, synonym="log.remote.copy.lag.bytes",
    )  # fmt: skip
    remote_copy_lag_ms: int = setting(
        LONG, 0, "A closed segment is copied once its newest record is so old, in ms, or by remote.copy.lag.bytes; "
        "-1: as local.retention.ms.", low=-1, live=True, synonym="log.remote.copy.lag.ms",
    )  # fmt: skip
    remote_log_copy_disable: bool = setting(
        BOOLEAN, False, "Whether nothing more is copied to the bucket; what is there is read as before.", live=True
    )
    remote_log_delete_on_disable: bool = setting(
        BOOLEAN, False, "Whether remote.storage.enable may go back to false, which deletes what is in the bucket.",
        live=True,
    )  # fmt: skip
    remote_storage_enable: bool = setting(
        BOOLEAN, False, "Whether closed segments are copied to the bucket; back with remote.log.delete.on.disable.",
        live=True,
    )  # fmt: skip
    retention_bytes: int = setting(
        LONG, -1, "Bytes a partition keeps at most; -1 for no limit.", low=-1, live=True, synonym="log.retention.bytes"
    )
    retention_ms: int = setting(
        LONG, 7 * DAY_MS, "How long a record is kept, in ms; -1 for ever.", low=-1, live=True,
        synonym="log.retention.ms",
    )  # fmt: skip
    segment_bytes: int = setting(
        INT, 1024 * MIB, "Size at which a new segment starts.", low=14, live=True, synonym="log.segment.bytes"
    )
    segment_index_bytes: int = setting(
        INT, 10 * MIB, "Largest size of a segment's index.", low=4, live=True, synonym="log.index.size.max.bytes"
    )
    segment_jitter_ms: int = setting(
        LONG, 0, "Random part taken off segment.ms, so that segments don't roll together.", low=0, live=True,
        synonym="log.roll.jitter.ms",
    )  # fmt: skip
    segment_ms: int = setting(
        LONG, 7 * DAY_MS, "Age at which a new segment starts, in ms.", low=1, live=True, synonym="log.roll.ms"
    )
    unclean_leader_election_enable: bool = setting(
        BOOLEAN, False, "Whether a replica that may lack records can become leader.", live=True,
        synonym="unclean.leader.election.enable",
    )  # fmt: skip

    @classmethod
    def parse(cls, overrides: Mapping[str, str], base: TopicConfig) -> TopicConfig:
        """``base`` with the overrides on top; raises ConfigError for an unknown name or a wrong value."""
        values = {}
        for name, text in overrides.items():
            row = TOPIC_SETTINGS.get(name)
            if row is None:
                raise ConfigError(name, text, "is no setting of a topic" + suggest(name, TOPIC_SETTINGS))
            value = row.parse(text)
            if name not in KAFKA_TOPIC_SETTINGS:
                values[attribute(name)] = value
        return dataclasses.replace(base, **values) if values else base

    @property
    def checks_values(self) -> bool:
        """Whether values must have the id of a schema."""
        return self.fleetlog_schema_validation != "none" or self.confluent_value_schema_validation

    @property
    def checks_payloads(self) -> bool:
        """Whether what has an id must be of that schema, too."""
        return self.fleetlog_schema_validation == "full"

    @property
    def checks_schemas(self) -> bool:
        """Whether values or keys must."""
        return self.checks_values or self.confluent_key_schema_validation

    @property
    def letter_topic(self) -> str:
        """Whose dead letters records become that fail the check; empty: they are refused."""
        return self.fleetlog_schema_invalid.removeprefix("dlq:") if self.fleetlog_schema_invalid != "refuse" else ""

    def _check_schemas(self) -> None:
        """Raises ConfigError for what this version cannot do."""
        if self.fleetlog_schema_invalid == "tag":
            raise ConfigError(
                "fleetlog.schema.invalid", "tag", "is not possible in this version: they are refused ('refuse'), or "
                "are dead letters of a topic ('dlq:TOPIC')",
            )  # fmt: skip
        if self.letter_topic and self.fleetlog_dedup != "none":
            raise ConfigError(
                "fleetlog.schema.invalid", self.fleetlog_schema_invalid, "is not possible with fleetlog.dedup: a "
                "repeat of a dead letter would be one more",
            )  # fmt: skip

    @property
    def tiers(self) -> bool:
        """Whether it asks to be tiered and may be; other flags were stored before there were tiers."""
        return self.remote_storage_enable and not self.fleetlog_tiering_waits and "compact" not in self.cleanup_policy

    @property
    def ends_tier(self) -> bool:
        """Whether what the topic has in the bucket is to be deleted, if it has anything there."""
        return self.remote_log_delete_on_disable and not self.remote_storage_enable

    @property
    def kept_here(self) -> tuple[int, int]:
        """How long and how much a tiered topic keeps in log.dirs, in ms and bytes; -1 for ever."""
        ms, size = self.local_retention_ms, self.local_retention_bytes
        return self.retention_ms if ms == -2 else ms, self.retention_bytes if size == -2 else size

    def _check_tiering(self) -> None:
        """Raises ConfigError, in Kafka's words where it has some."""
        if not self.remote_storage_enable or self.fleetlog_tiering_waits:
            return
        if "compact" in self.cleanup_policy:
            raise ConfigError(
                "remote.storage.enable", "true", "is not possible for a compacted topic: set cleanup.policy=delete"
            )
        for name, total, here in zip(
            ("ms", "bytes"), (self.retention_ms, self.retention_bytes), self.kept_here, strict=True
        ):
            if total >= 0 and (here > total or here == -1):
                raise ConfigError(
                    f"local.retention.{name}", str(here), f"must be at most retention.{name} ({total}): set both"
                )
            if self.remote_log_copy_disable and here != total:
                raise ConfigError(
                    f"local.retention.{name}", str(here), f"must be retention.{name} ({total}) or -2 while "
                    "remote.log.copy.disable is true: no more is copied to the bucket",
                )  # fmt: skip
            lag = getattr(self, f"remote_copy_lag_{name}")
            if lag > here >= 0:
                raise ConfigError(
                    f"remote.copy.lag.{name}", str(lag), f"must be at most local.retention.{name} ({here}): it would "
                    "be kept here for longer",
                )  # fmt: skip

    def check_together(self) -> None:
        """Raises ConfigError where settings that are right by themselves contradict each other."""
        self._check_schemas()
        self._check_tiering()
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                "min.compaction.lag.ms", str(self.min_compaction_lag_ms), "must be at most max.compaction.lag.ms "
                f"({self.max_compaction_lag_ms}): set both",
            )  # fmt: skip
        for name in THROTTLED_REPLICAS:
            items = getattr(self, attribute(name))
            if len(items) > 1 and not {"*", "none"}.isdisjoint(items):
                raise ConfigError(name, ",".join(items), "must be '*' or 'none' alone, or a list of partition:broker")
        if self.fleetlog_dedup == "none":
            return
        if "compact" in self.cleanup_policy:
            raise ConfigError(
                "fleetlog.dedup", self.fleetlog_dedup, "is not possible with cleanup.policy=compact: a repeat that is "
                "forgotten would replace a later value of its key",
            )  # fmt: skip
        if 0 <= self.retention_ms < self.fleetlog_dedup_window_ms:
            raise ConfigError(
                "retention.ms", str(self.retention_ms), "must be at least fleetlog.dedup.window.ms "
                f"({self.fleetlog_dedup_window_ms}): a new replica learns of accepted positions from records",
            )  # fmt: skip


SCHEMA_SETTINGS = frozenset(
    {
        "confluent.key.schema.validation", "confluent.key.subject.name.strategy", "confluent.value.schema.validation",
        "confluent.value.subject.name.strategy", "fleetlog.schema.invalid", "fleetlog.schema.validation",
    }
)  # fmt: skip
TIERING_SETTINGS = frozenset(
    {
        "fleetlog.tiering.waits", "local.retention.bytes", "local.retention.ms", "remote.copy.lag.bytes",
        "remote.copy.lag.ms", "remote.log.copy.disable", "remote.storage.enable",
    }
)  # fmt: skip
CHECKED_TOGETHER = frozenset(
    {"min.compaction.lag.ms", "max.compaction.lag.ms", *THROTTLED_REPLICAS, *SCHEMA_SETTINGS, *TIERING_SETTINGS}
)
"""What :meth:`TopicConfig.check_together` looks at on a topic that does not drop duplicates."""
TOPIC_SETTINGS: dict[str, Setting] = table_of(TopicConfig) | KAFKA_TOPIC_SETTINGS
