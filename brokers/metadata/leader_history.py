"""What this broker has seen change since it started: leaders of partitions, controllers, registrations. In memory.

ZooKeeper holds the present state of a partition and not its earlier ones, and the change log is pruned: what is not
seen when it happens is gone. Each broker keeps the newest changes; two that happen between two looks at ZooKeeper are
one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
from fleetlog.brokers.model import PartitionState, TopicInfo

ELECTIONS_KEPT: Final = 10_000
OTHERS_KEPT: Final = 500


class SeenElection(NamedTuple):
    """A partition's leader changed; ``leader`` is -1 if it has none now.

    ``unclean``: the leader was neither in sync before nor eligible, so that acknowledged records may be lost.
    """

    at_ms: int
    topic: str
    partition: int
    leader_epoch: int
    leader: int
    previous: int
    isr: tuple[int, ...]
    unclean: bool


class SeenController(NamedTuple):
    """Another broker is the controller; -1: none is."""

    at_ms: int
    broker_id: int


class SeenBroker(NamedTuple):
    """A broker registered, or its registration ended."""

    at_ms: int
    broker_id: int
    registered: bool


class LeaderHistory:
    """Listens to the metadata cache. ``wall_ms`` is the wall clock, in milliseconds."""

    def __init__(self, metadata: MetadataCache, wall_ms: Callable[[], int]) -> None:
        self._metadata, self._wall_ms = metadata, wall_ms
        self._topics: dict[str, TopicInfo] = dict(metadata.topics)
        self._brokers = set(metadata.brokers)
        self._controller = metadata.controller_id
        self._since_ms = wall_ms()
        self._elections: deque[SeenElection] = deque(maxlen=ELECTIONS_KEPT)
        self.controllers: deque[SeenController] = deque(maxlen=OTHERS_KEPT)
        self.brokers: deque[SeenBroker] = deque(maxlen=OTHERS_KEPT)
        metadata.subscribe(self.absorb)

    @property
    def since_ms(self) -> int:
        """Since when all elections are kept: the start, or that of the oldest one if older ones were dropped."""
        return self._since_ms if len(self._elections) < ELECTIONS_KEPT else self._elections[0].at_ms

    def elections(self) -> Iterable[SeenElection]:
        """The newest first."""
        return reversed(self._elections)

    def absorb(self, change: MetadataChange) -> None:
        """A step of the cache."""
        now_ms, topics = self._wall_ms(), self._metadata.topics
        for topic in change.deleted:
            self._topics.pop(topic.name, None)
        for name, index in change.partitions_changed:
            before, after = self._topics.get(name), topics.get(name)
            if before is not None and after is not None and before.id == after.id and index < len(before.partitions):
                self._compare(now_ms, name, index, before.partitions[index], after.partitions[index])
        for name in {tp.topic for tp in change.partitions_changed}.union(change.topics_changed):
            if name in topics:
                self._topics[name] = topics[name]
        if change.controller_changed and self._metadata.controller_id != self._controller:
            self._controller = self._metadata.controller_id
            self.controllers.append(SeenController(now_ms, self._controller))
        if change.brokers_changed:
            present = set(self._metadata.brokers)
            for broker_id in sorted(present ^ self._brokers):
                self.brokers.append(SeenBroker(now_ms, broker_id, broker_id in present))
            self._brokers = present

    def _compare(self, now_ms: int, topic: str, index: int, before: PartitionState, after: PartitionState) -> None:
        if before.leader_epoch < 0 or after.leader_epoch == before.leader_epoch:
            return  # a first leader is no change
        could_lead = {before.leader, *before.isr, *before.elr}
        unclean = after.leader >= 0 and after.leader not in could_lead and bool(before.isr or before.elr)
        self._elections.append(
            SeenElection(
                now_ms, topic, index, after.leader_epoch, after.leader,
                before.leader if before.leader >= 0 else before.last_known_leader, after.isr, unclean,
            )
        )  # fmt: skip
