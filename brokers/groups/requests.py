"""Requests and answers of a group shard: plain values, independent of message versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fleetlog.brokers.groups.records import CommittedOffset
from fleetlog.brokers.setting_kinds import attribute
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long a new member may wait in a rebalance: it has no id yet, so it cannot send heartbeats (as Kafka)."""


ASSIGNOR_NAMES = ("uniform", "range")
UNLIMITED = 2**31 - 1
"""Members of a group."""


class ConsumerSettings(NamedTuple):
    """``group.consumer.*`` of the broker, or of the group where it has its own. Times in ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = UNLIMITED
    assignors: tuple[str, ...] = ASSIGNOR_NAMES
    migration: str = "bidirectional"
    """How a group may change its protocol while it has members: also ``upgrade``, ``downgrade``, ``disabled``."""
    classic_max_size: int = UNLIMITED

    @property
    def upgrades(self) -> bool:
        """Whether a classic group with members becomes one of the consumer protocol."""
        return self.migration in ("bidirectional", "upgrade")

    @property
    def downgrades(self) -> bool:
        """Whether a group becomes a classic one when its last member of the consumer protocol leaves."""
        return self.migration in ("bidirectional", "downgrade")

    @classmethod
    def of(cls, config: BrokerConfig, own: Mapping[str, str] | None = None) -> ConsumerSettings:
        """The broker's, and what the group has of its own (``consumer.*`` of config resource GROUP).

        A time of its own that has left the brokers' bounds since it was set counts as the nearest that is in them.
        """
        own = own or {}

        def time_ms(name: str) -> int:
            text = own.get(f"consumer.{name}", "")
            if text.isdecimal():
                low, high = cls.bounds(config, name)
                return min(max(int(text), low), high)
            default: int = getattr(config, attribute(f"group.consumer.{name}"))
            return default

        session_ms, heartbeat_ms, assignment_ms = (time_ms(name.replace("_", ".")) for name in cls._fields[:3])
        assignors = _served(config.group_consumer_assignors)
        return cls(
            session_ms, heartbeat_ms, assignment_ms, config.group_consumer_max_size, assignors,
            config.group_consumer_migration_policy.lower(), config.group_max_size,
        )  # fmt: skip

    @staticmethod
    def bounds(config: BrokerConfig, name: str) -> tuple[int, int]:
        """What a group's own time of that name may be: ``group.consumer.min.*`` and ``group.consumer.max.*``."""
        low, high = (getattr(config, attribute(f"group.consumer.{end}.{name}")) for end in ("min", "max"))
        return low, high


class ShareSettings(NamedTuple):
    """``group.share.*`` of the broker's group coordinator, or of the group where it has its own. Times in ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 200

    @classmethod
    def of(cls, config: BrokerConfig, own: Mapping[str, str] | None = None) -> ShareSettings:
        """The broker's, and what the group has of its own (``share.*`` of config resource GROUP)."""
        own = own or {}
        session_ms, heartbeat_ms = (
            own_number(config, own, name) for name in ("session.timeout.ms", "heartbeat.interval.ms")
        )
        return cls(session_ms, heartbeat_ms, config.group_share_max_size)


def own_number(config: BrokerConfig, own: Mapping[str, str], name: str) -> int:
    """A share group's own ``share.NAME``, within ``group.share.min.NAME`` and ``max``; else the broker's."""
    text = own.get(f"share.{name}", "")
    if text.isdecimal():
        low, high = (int(getattr(config, attribute(f"group.share.{end}.{name}"))) for end in ("min", "max"))
        return min(max(int(text), low), high)
    return int(getattr(config, attribute(f"group.share.{name}")))


def _served(assignors: Iterable[str]) -> tuple[str, ...]:
    """Those of ``group.consumer.assignors`` that there are, by their names instead of Kafka's classes; else all."""
    named = {f"org.apache.kafka.coordinator.group.assignor.{name.title()}Assignor": name for name in ASSIGNOR_NAMES}
    names = dict.fromkeys(named.get(text, text) for text in assignors)
    return tuple(name for name in names if name in ASSIGNOR_NAMES) or ASSIGNOR_NAMES


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker settings of a shard (Kafka's names: ``group.*``, ``offset.metadata.max.bytes``, ``offsets.*``)."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = UNLIMITED
    member_max_bytes: int = 1 << 20
    members_max_bytes: int = 128 << 20
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    share: ShareSettings = field(default_factory=ShareSettings)

    @classmethod
    def of(cls, config: BrokerConfig) -> GroupSettings:
        """The settings from the broker's configuration."""
        return cls(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_size=config.group_max_size,
            member_max_bytes=config.group_member_max_bytes,
            members_max_bytes=config.group_members_max_bytes,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
            share=ShareSettings.of(config),
            consumer=ConsumerSettings.of(config),
        )


class Protocol(NamedTuple):
    """An assignment strategy that a member supports, with its subscription."""

    name: str
    metadata: bytes


class JoinRequest(NamedTuple):
    """``fresh_id`` is a random text (a UUID) for the id of a new member; not needed with a member id."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    fresh_id: str
    requires_known_member_id: bool = True  # JoinGroup v4 (KIP-394)
    supports_skipping_assignment: bool = True  # JoinGroup v9 (KIP-814)


class JoinedMember(NamedTuple):
    """One member in the leader's JoinGroup response."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """Answer to JoinGroup."""

    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncRequest(NamedTuple):
    """``assignments`` by member id; only the leader's count. A protocol of None: not in the request (before v5)."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


class SyncAnswer(NamedTuple):
    """Answer to SyncGroup; ``topics`` are those of an assignment that the coordinator made itself."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""
    topics: tuple[str, ...] = ()


class HeartbeatRequest(NamedTuple):
    """The heartbeat of a classic member."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


class Leaver(NamedTuple):
    """One member to remove; an empty ``member_id`` with an instance id is an operator's removal."""

    member_id: str
    instance_id: str | None


class LeaveAnswer(NamedTuple):
    """One error per leaver, in request order."""

    error: ErrorCode
    members: tuple[tuple[Leaver, ErrorCode], ...] = ()


class OffsetCommitRequest(NamedTuple):
    """OffsetCommit and TxnOffsetCommit. ``retention_ms`` comes from requests before v5."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    offsets: tuple[tuple[TopicPartition, CommittedOffset], ...]
    retention_ms: int = -1
    knows_missing_groups: bool = False  # GROUP_ID_NOT_FOUND, not ILLEGAL_GENERATION (OffsetCommit 9, TxnOffsetCommit 6)


CommitAnswer = dict[TopicPartition, ErrorCode]
"""Outcome per partition."""


class FetchRequest(NamedTuple):
    """``partitions`` None: all partitions with a committed offset."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None
    require_stable: bool = False


class FetchedOffset(NamedTuple):
    """``committed`` None: no committed offset (-1 on the wire)."""

    partition: TopicPartition
    committed: CommittedOffset | None
    error: ErrorCode = ErrorCode.NONE


class DescribedMember(NamedTuple):
    """A member as DescribeGroups shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class Description(NamedTuple):
    """A group as DescribeGroups shows it; ``state`` is Kafka's spelling."""

    error: ErrorCode
    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()
    message: str | None = None


class Listing(NamedTuple):
    """A group as ListGroups shows it."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"
