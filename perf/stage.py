"""One broker that leads topics, in this process: real logs, replica manager and metadata, without ZooKeeper.

Time stands still, so that the same instructions run every time. The tests have a stage of their own, with much more.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.acls.access import Access
from fleetlog.brokers.acls.decisions import AclRules
from fleetlog.brokers.acls.image import (
    AccessControlEntry,
    AclImage,
    AclOperation,
    Permission,
    ResourcePattern,
    ResourceType,
)
from fleetlog.brokers.api.authorizer import AuthorizerLog
from fleetlog.brokers.api.base import Services
from fleetlog.brokers.api.disconnects import Disconnects
from fleetlog.brokers.api.fetch_sessions import FetchSessions
from fleetlog.brokers.config import load_config
from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
from fleetlog.brokers.coordinators.transactions.coordinator import TransactionCoordinator
from fleetlog.brokers.groups.requests import GroupSettings
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.brokers.log import LogStore, Origin, RealDisk
from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.metrics.topics import TopicTable
from fleetlog.brokers.model import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    BrokerId,
    BrokerInfo,
    Endpoint,
    PartitionState,
    TopicInfo,
    TopicPartition,
)
from fleetlog.brokers.quotas.image import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from fleetlog.brokers.quotas.metering import Metering
from fleetlog.brokers.replication.replicas import ReplicaManager

ME, INCARNATION = BrokerId(1), 7


class StandingClock:
    """Always the same moment."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def mono_ms(self) -> int:
        return self.now_ms

    def mono_us(self) -> int:
        return self.now_ms * 1000


class LoneLeader:
    """``services`` are the broker's, without a loop: the one that measures puts its own there."""

    def __init__(self, directory: Path, now_ms: int, *, figures: bool = True) -> None:
        """``figures``: whether requests and topics are counted, as with ``metrics.enable``."""
        overrides = {"broker.id": str(ME), "zookeeper.connect": "none:1", "log.dirs": str(directory / "data")}
        self.config = load_config(overrides=overrides)
        self.clock = StandingClock(now_ms)
        self.lease = True
        absent: Any = None
        self.metadata = MetadataCache(absent, self.config, absent)
        self.metadata.ready = True
        self.metadata.brokers = {ME: BrokerInfo(ME, 1, INCARNATION, (Endpoint("PLAINTEXT", "127.0.0.1", 9091),), None)}
        self.logs = logs = LogStore(self.config, RealDisk(), self.clock)
        logs.load()
        self.replicas = ReplicaManager(
            ME, self.metadata, logs, self.clock,
            session_valid=lambda: self.lease, incarnation=lambda: INCARNATION, isr_writer=cast(Any, self),
            call_soon=absent,  # its topics are small: their logs are made in the turn in which they are declared
            topic_figures=TopicTable(100) if figures else None,
        )  # fmt: skip
        metrics = Metrics()
        metrics.enabled = metrics.counting = figures
        self.services = Services(
            config=self.config, clock=self.clock, loop=absent, metadata=self.metadata, replicas=self.replicas,
            store=absent, groups=absent, controller=absent, metrics=metrics,
            transactions=absent, fetch_sessions=FetchSessions(),
            metering=Metering(self.config, self.clock, metrics), disconnects=Disconnects(), access=Access(),
            timers=absent,
        )  # fmt: skip

    def propose(self, *_: Any) -> None:
        """A lone leader has no in-sync set to change."""
        raise AssertionError("no change was expected")

    def topic(self, name: str, partitions: int, topic_id: uuid.UUID, settings: Mapping[str, str] = {}) -> None:
        """A new topic whose partitions this broker leads."""
        state = PartitionState((ME,), ME, 0, (ME,), 0, 1, INCARNATION, (INCARNATION,))
        self.metadata.image.topics[name] = TopicInfo(name, topic_id, (state,) * partitions, dict(settings))
        self.metadata.image.topic_names[topic_id] = name
        changed = tuple(TopicPartition(name, index) for index in range(partitions))
        self.replicas.apply(MetadataChange(topics_changed=(name,), partitions_changed=changed))

    def limit_clients(self, rate: int) -> None:
        """Measure what clients use from now on: so many bytes per second they may produce and fetch."""
        rates = {PRODUCER_BYTE_RATE.name: str(rate), CONSUMER_BYTE_RATE.name: str(rate)}
        self.services.quotas.take({"clients/<default>": rates}, True)

    def authorize(self, acls: int) -> None:
        """Ask an authorizer from now on: so many topics may be written and read by the clients, those here first."""
        asked = [
            AccessControlEntry("User:*", "*", one, Permission.ALLOW) for one in (AclOperation.WRITE, AclOperation.READ)
        ]
        names = [*self.metadata.topics, *(f"other-{number}" for number in range(acls))]
        kinds = itertools.product(names, asked)
        entries: dict[ResourcePattern, set[AccessControlEntry]] = {}
        for name, entry in itertools.islice(kinds, acls):
            entries.setdefault(ResourcePattern(ResourceType.TOPIC, name), set()).add(entry)
        rules = AclRules(AclImage({pattern: frozenset(found) for pattern, found in entries.items()}))
        self.services.access = Access(rules, AuthorizerLog(self.clock.mono_ms))

    def coordinate(self, loop: Any) -> None:
        """Lead the internal topics, of one partition each, and coordinate groups and transactions.

        The caller runs what they leave for later iterations of the loop, the load of their state included.
        """
        settings = GroupSettings.of(self.config)
        groups = CoordinatorRuntime(
            "groups", GROUP_METADATA_TOPIC, lambda partition: GroupShard(partition, settings),
            partition_count=lambda: 1, origin=Origin.COORDINATOR,
            loop=loop, timers=self.services.timers, clock=self.clock,
        )  # fmt: skip
        transactions = TransactionCoordinator(
            self.config, metadata=self.metadata, replicas=self.replicas, groups=groups, loop=loop,
            timers=self.services.timers, clock=self.clock,
            peers=SimpleNamespace(), store=SimpleNamespace(), incarnation=lambda: INCARNATION,
        )  # fmt: skip
        self.services.groups, self.services.transactions = groups, transactions
        for runtime in (groups, transactions):
            self.replicas.on_leader(runtime.partition_elected)
        for number, topic in enumerate((GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC), start=1):
            self.topic(topic, 1, topic_id=uuid.UUID(int=number))

    def append(self, topic: str, *, index: int, **fields: Any) -> None:
        """Append a batch of one record; ``fields`` as ``encode_batch`` names them."""
        partition = self.replicas.get(TopicPartition(topic, index))
        assert partition is not None
        batch = encode_batch([Record(0, self.clock.now_ms, b"k", b"vvv", ())], **fields)
        info = partition.append(batch, acks=1, origin=Origin.REPLICATION)
        assert info.error == 0, info
