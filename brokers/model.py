"""The nouns of the broker. No behaviour beyond spelling; depends on nothing above ``wire.types``."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fleetlog.wire.types import NO_LEADER, BrokerId, LeaderEpoch, Offset, ProducerId, TopicPartition

__all__ = [
    "AUDIT_TOPIC",
    "GROUP_METADATA_TOPIC",
    "INTERNAL_TOPICS",
    "NO_LEADER",
    "PROTECTED_TOPICS",
    "SCHEMAS_TOPIC",
    "SHARE_STATE_TOPIC",
    "TRANSACTION_STATE_TOPIC",
    "BrokerId",
    "BrokerInfo",
    "Clock",
    "Endpoint",
    "LeaderEpoch",
    "LiveBroker",
    "Offset",
    "PartitionState",
    "ProducerId",
    "TopicInfo",
    "TopicPartition",
]

GROUP_METADATA_TOPIC = "__consumer_offsets"
SHARE_STATE_TOPIC = "__share_group_state"
TRANSACTION_STATE_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC})
"""Those of coordinators, which hold in memory what stands there."""
AUDIT_TOPIC = "__fleetlog_audit"
SCHEMAS_TOPIC = "_schemas"
"""Of the schema registry, and clients may write to it."""
PROTECTED_TOPICS = INTERNAL_TOPICS | {AUDIT_TOPIC}
"""Those that clients never write to."""


def id_text(one: uuid.UUID) -> str:
    """Kafka's spelling of an id: 22 characters of URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(one.bytes).decode().rstrip("=")


def random_id(draw: Callable[[], uuid.UUID] = uuid.uuid4) -> uuid.UUID:
    """A new id of a topic or cluster; ``draw`` makes random ones.

    Neither a reserved one, nor one whose text begins with a dash: command lines would take it for an option. Source:
    Kafka's ``Uuid.randomUuid``.
    """
    while True:
        made = draw()
        if made.int > 1 and not id_text(made).startswith("-"):
            return made


class Clock(Protocol):
    """Time as a port, so that a simulation can own it."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump. For records only."""

    def mono_ms(self) -> int:
        """Milliseconds of a clock that never goes back and counts suspended time (CLOCK_BOOTTIME)."""

    def mono_us(self) -> int:
        """Microseconds of the same clock, to measure with: the loop's own clock stands still within a turn."""


class Endpoint(NamedTuple):
    """One listener of one broker."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class LiveBroker(NamedTuple):
    """A living broker's incarnation, and since which one its logs have lost nothing.

    A clean stop or a renewed ZooKeeper session begins a new incarnation and keeps ``intact_since``; a start after a
    crash sets it to the new incarnation, for the tail that was not yet on disk may be gone.
    """

    incarnation: int
    intact_since: int

    def continues(self, incarnation: int) -> bool:
        """Whether this incarnation's logs hold all that the broker's logs held in that incarnation."""
        return self.intact_since <= incarnation <= self.incarnation


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A registered, living broker. ``epoch`` is its registration's czxid; ``incarnation`` counts its registrations.

    ``intact_since`` is -1 for a registration that doesn't tell it: then only the present incarnation counts.
    ``failure_domain`` is what fails together with the broker; replicas of a partition avoid sharing it.
    Every broker that can replicate names one.
    """

    id: BrokerId
    epoch: int
    incarnation: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    intact_since: int = -1
    failure_domain: str | None = None
    waives_leases: bool = False
    """Whether it can be asked to act as without a lease for a partition that is about to move (ReplicaEnds v1)."""
    tells_positions: bool = False
    """Whether a follower can ask it what a topic that drops duplicates has accepted (AcceptedPositions)."""
    matches_ranges: bool = False
    """Whether ACLs with ranges of addresses count there."""

    @property
    def domain(self) -> str:
        """Its failure domain: the one it names, or else its host; a broker without an address is one of its own."""
        if self.failure_domain:
            return self.failure_domain
        return self.endpoints[0].host if self.endpoints else f"\0{self.id}"

    @property
    def replicates(self) -> bool:
        """Whether it can follow other leaders; the version that could not registers without a failure domain."""
        return self.failure_domain is not None

    @property
    def live_broker(self) -> LiveBroker:
        """What elections and in-sync sets ask about."""
        return LiveBroker(self.incarnation, self.intact_since if self.intact_since >= 0 else self.incarnation)

    def endpoint(self, listener: str) -> Endpoint | None:
        """The broker's address on the listener of that name."""
        return next((e for e in self.endpoints if e.listener == listener), None)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition's state znode, plus its replica assignment.

    ``partition_epoch`` is the znode's version. ``leader_incarnation`` names the incarnation the election counted on:
    a broker leads only while that is its present one. ``isr_incarnations[i]`` is that of ``isr[i]``; see
    :class:`LiveBroker`. ``elr`` are the eligible leader replicas (KIP-966): they left an in-sync set that then was
    smaller than min.insync.replicas, so the high watermark has not moved since, and they hold all that was ever
    acknowledged. ``last_known_leader`` is the last leader of a partition without one. ``adding`` and ``removing``
    describe a reassignment under way (KIP-455); like ``replicas`` they come from the topic's znode. ``unclean_epoch``
    is the leader epoch that the last unclean election began: only what was committed before it may be truncated.
    """

    replicas: tuple[BrokerId, ...]
    leader: int
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    partition_epoch: int
    controller_epoch: int
    leader_incarnation: int = -1
    isr_incarnations: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    elr: tuple[BrokerId, ...] = ()
    elr_incarnations: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    unclean_epoch: int = -1

    @property
    def established(self) -> tuple[BrokerId, ...]:
        """The replicas without those that a reassignment is bringing: a topic's minimum is counted over them."""
        return tuple(b for b in self.replicas if b not in self.adding) if self.adding else self.replicas

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas wanted: those assigned without those that are to go."""
        return tuple(b for b in self.replicas if b not in self.removing) if self.removing else self.replicas


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the view knows it: ``partitions[i]`` is partition i; ``configs`` holds the overrides only."""

    name: str
    id: uuid.UUID
    partitions: tuple[PartitionState, ...]
    configs: dict[str, str] = field(default_factory=dict)


class CertificateState(NamedTuple):
    """The certificate that a listener uses; ``refusal`` says why the one on disk, if it differs, cannot be used."""

    listener: str
    valid_until_ms: int
    refusal: str | None


class ProcessHealth(NamedTuple):
    """What a broker's process uses and has; ``file_limit`` is None where there is none, -1 stands for unknown."""

    open_files: int = -1
    file_limit: int | None = None
    certificates: tuple[CertificateState, ...] = ()
    sync_micros: int = -1
    """How long all but one in a hundred fsyncs of the last minutes took at most."""
    loop_lag_micros: int = -1
    """How late the loop ran all but one in a hundred of the last minute's timers at most."""
    loop_lag_max_micros: int = -1
    """How late it ran the latest of them."""


FREE_SHARE, FREE_BYTES_MOST = 20, 256 * 1024 * 1024
"""A directory has room with a twentieth of its volume free, or with so many bytes where that is less."""


def has_room(total_bytes: int, usable_bytes: int) -> bool:
    """Whether a volume has enough to be written to for a while; not if it can't tell (-1)."""
    return total_bytes > 0 and usable_bytes >= min(total_bytes // FREE_SHARE, FREE_BYTES_MOST)


class Carried(NamedTuple):
    """What a connection has carried, as the kernel counts it; -1 where it does not."""

    bytes_in: int = -1
    bytes_out: int = -1
    round_trip_micros: int = -1


class LogEnd(NamedTuple):
    """How far a replica's log reaches; the larger one knows more, epoch first (Kafka compares logs like this, too).

    ``epochs`` are the newest of its epochs with the offsets where they start; empty from a broker that doesn't tell.
    """

    last_epoch: int
    offset: int
    epochs: tuple[tuple[int, int], ...] = ()

    def extends(self, other: LogEnd) -> bool:
        """Whether this log surely holds all of the other one, and more.

        It does if it has what the other one's last epoch appended up to the other one's end: what two logs have of one
        epoch came from one leader. A later last epoch proves nothing: its leader may have appended to less than what
        was committed afterwards. A log without batches, at whatever offset it starts, differs from none.
        """
        if other.last_epoch < 0:
            return self.offset > other.offset
        starts = [start for epoch, start in self.epochs if epoch > other.last_epoch]
        end = min(starts, default=self.offset)
        known = other.last_epoch == self.last_epoch or any(epoch == other.last_epoch for epoch, _ in self.epochs)
        return known and end >= other.offset and self.offset > other.offset


NO_LOG = LogEnd(-1, -1)
"""In place of the end of a log that its broker had, and that is gone: it must not begin anew before it is allowed."""
