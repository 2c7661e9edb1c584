"""The nouns of the broker. No behaviour beyond spelling; depends on nothing above ``wire.types``."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from wire.types import NO_LEADER, BrokerId, LeaderEpoch, Offset, ProducerId, TopicPartition

__all__ = [
    "GROUP_METADATA_TOPIC",
    "INTERNAL_TOPICS",
    "NO_LEADER",
    "TRANSACTION_STATE_TOPIC",
    "BrokerId",
    "BrokerInfo",
    "Clock",
    "Endpoint",
    "LeaderEpoch",
    "Offset",
    "PartitionState",
    "ProducerId",
    "TopicInfo",
    "TopicPartition",
]

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})


class Clock(Protocol):
    """Time as a port, so that a simulation can own it."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump. For records only."""
        ...

    def mono_ms(self) -> int:
        """Milliseconds of a clock that never goes back and counts suspended time (CLOCK_BOOTTIME)."""
        ...


class Endpoint(NamedTuple):
    """One listener of one broker."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A registered, living broker. ``epoch`` is its registration's czxid; ``incarnation`` counts its registrations."""

    id: BrokerId
    epoch: int
    incarnation: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None

    def endpoint(self, listener: str) -> Endpoint | None:
        """The broker's address on the listener of that name."""
        return next((e for e in self.endpoints if e.listener == listener), None)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition's state znode, plus its replica assignment.

    ``partition_epoch`` is the znode's version. ``leader_incarnation`` names the incarnation the election counted on:
    a broker leads only while that is its present one.
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


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the view knows it: ``partitions[i]`` is partition i; ``configs`` holds the overrides only."""

    name: str
    id: uuid.UUID
    partitions: tuple[PartitionState, ...]
    configs: dict[str, str] = field(default_factory=dict)
