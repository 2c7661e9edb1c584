"""This broker leads a partition of three replicas, whose followers fetch as the test says."""

from __future__ import annotations

from pathlib import Path

from fleetlog.brokers.model import BrokerId, BrokerInfo, PartitionState
from fleetlog.brokers.replication.follower_progress import ReplicaSession
from fleetlog.brokers.replication.partition import Partition
from fleetlog.wire.errors import ErrorCode as E
from tests.support.stage import ME, OTHER, Stage

THIRD = BrokerId(3)
ALL = (ME, OTHER, THIRD)
LAG_MS = 10_000


class Trio(Stage):
    """This broker leads a partition of three replicas; sessions of both followers."""

    def __init__(self, directory: Path, isr: tuple[BrokerId, ...] = ALL, **configs: str) -> None:
        super().__init__(directory)
        self.metadata.brokers[THIRD] = BrokerInfo(
            THIRD, 1, self.incarnation, self.metadata.brokers[OTHER].endpoints, "rack-3"
        )
        self.topic("t", replicas=ALL, isr=isr, **configs)
        self.sessions = {b: ReplicaSession(b, 1, self.clock.mono_ms()) for b in (OTHER, THIRD)}

    @property
    def p(self) -> Partition:
        return self.partition("t")

    def fetch(self, broker_id: int, offset: int, log_start: int = 0) -> E:
        session = self.sessions[broker_id]
        session.last_fetch_ms = self.clock.mono_ms()
        return self.p.follower_fetched(session, offset, log_start, self.clock.mono_ms())

    def proposed(self) -> PartitionState:
        """The only proposal made since the last look."""
        ((in_sync, state),) = self.proposals
        assert in_sync is self.p.in_sync
        self.proposals.clear()
        return state

    def check(self) -> None:
        self.p.check_followers(self.clock.mono_ms(), LAG_MS)

    @property
    def watermark(self) -> int:
        return self.p.log.high_watermark
