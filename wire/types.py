"""Types that appear on the wire and therefore in every layer above it."""

from __future__ import annotations

from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER = -1
NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    """A partition's name: topic and zero-based partition index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Kafka's spelling, also the name of the partition's directory."""
        return f"{self.topic}-{self.partition}"
