"""The controller's interface for request handlers, on any broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from fleetlog.brokers.controller.requests import NewPartitions, NewTopic, TopicOutcome
from fleetlog.brokers.model import TopicPartition
from fleetlog.wire.errors import ErrorCode

AUTO_CREATE_MS = 5_000
NOT_CONTROLLER_TEXT = "This is not the correct controller for this cluster."


Gone = Callable[[], bool]
Result = tuple[ErrorCode, str | None]


def still_there() -> bool:
    """For requests of the broker itself, which has no client connection."""
    return False


class RequestFailed(NamedTuple):
    """The error of a whole request: it failed, or its outcome is unknown."""

    error: ErrorCode
    message: str


TIMED_OUT = RequestFailed(ErrorCode.REQUEST_TIMED_OUT, "The request timed out.")
DEPOSED = RequestFailed(ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT)


class ControllerWork(NamedTuple):
    """What the active controller is doing; on other brokers the defaults.

    ``silent_brokers`` do not answer how far their logs reach, which elections and moves wait for;
    ``leaders_asked_to_move`` is the number of partitions whose leader is asked to let another one follow. ``since_ms``
    is by the wall clock.
    """

    epoch: int = -1
    since_ms: int = -1
    admin_requests: int = 0
    leaders_asked_to_move: int = 0
    silent_brokers: tuple[int, ...] = ()
    unclean_elections: int = 0


class ControllerHandle(Protocol):
    @property
    def is_active(self) -> bool:
        """Whether this broker is the active controller, and ready."""
        ...

    def work(self) -> ControllerWork:
        """What this broker does as the active controller."""
        ...

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
        gone: Gone = still_there,
    ) -> list[TopicOutcome]:
        """Create at the active controller; NOT_CONTROLLER for all on other brokers.

        Once the client is ``gone()`` no further topic is started; the same for the two below.
        """
        ...

    async def create_partitions(
        self,
        topics: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
        gone: Gone = still_there,
    ) -> list[TopicOutcome]:
        """Extend at the active controller; NOT_CONTROLLER for all on other brokers."""
        ...

    async def delete_topics(
        self, topics: Sequence[str | uuid.UUID], *, timeout_ms: int = 30_000, gone: Gone = still_there
    ) -> list[TopicOutcome]:
        """Delete at the active controller; NOT_CONTROLLER for all on other brokers."""
        ...

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, *, unclean: bool, timeout_ms: int = 60_000
    ) -> dict[TopicPartition, Result]:
        """Elect preferred replicas, or (``unclean``) the replica with the longest log in offline partitions.

        None stands for all partitions. ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
        ELIGIBLE_LEADERS_NOT_AVAILABLE; NOT_CONTROLLER for all on other brokers. Source: KIP-183, KIP-460.
        """
        ...

    async def alter_reassignments(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int = 60_000
    ) -> dict[TopicPartition, Result]:
        """Start the reassignment of each partition to the wanted replicas, or cancel the one in progress (None).

        The response comes when the reassignments are written to ZooKeeper; ``adding`` and ``removing`` in the states
        show their progress. NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICATION_ASSIGNMENT, UNKNOWN_TOPIC_OR_PARTITION;
        NOT_CONTROLLER for all on other brokers. Source: KIP-455.
        """
        ...

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int, *, timeout_ms: int
    ) -> tuple[ErrorCode, list[TopicPartition]]:
        """Move the broker's leaderships to other replicas; returns the partitions that no other replica can lead.

        The broker has closed its coordinators before this request. STALE_BROKER_EPOCH: its registration is another.
        """
        ...

    async def auto_create(self, names: Sequence[str], timeout_ms: int = AUTO_CREATE_MS) -> dict[str, ErrorCode]:
        """Create topics with default settings, from any broker, and wait until the metadata cache has them."""
        ...

    def creation_refused(self, name: str) -> str | None:
        """The reason why the last automatic creation of an internal topic was rejected, with a remedy, or None."""
        ...
