"""Ports between replicas and the writer of their proposed states."""

from __future__ import annotations

import uuid
from typing import Protocol

from fleetlog.brokers.model import PartitionState, TopicPartition


class Proposer(Protocol):
    """What a replica proposes states by, as their writer sees it."""

    tp: TopicPartition
    topic_id: uuid.UUID

    @property
    def state(self) -> PartitionState:
        """The known state, which a proposal changes."""

    @property
    def proposed(self) -> PartitionState | None:
        """The state whose write is in flight."""

    def proposal_written(self, state: PartitionState) -> None:
        """The state is written."""

    def proposal_refused(self, state: PartitionState) -> None:
        """The state certainly is not written and never will be."""


class IsrWriter(Protocol):
    """Writes proposed states; see ``brokers.replication.isr_writer``."""

    def propose(self, partition: Proposer, state: PartitionState) -> None:
        """Write it; the outcome goes to ``proposal_written`` or ``proposal_refused`` of ``partition``."""
