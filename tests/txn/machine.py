"""Drives a TransactionShard as the runtime does: a result's records are applied, then its answer counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleetlog.txn.commands import CoordinatorRecord, Effect, Now, Result, Schedule, WriteMarkers
from fleetlog.txn.coordinator import End, Producer, TransactionSettings, TransactionShard
from fleetlog.txn.transaction import Transaction
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

ID = "app"
A, B, C = TopicPartition("flights", 0), TopicPartition("flights", 1), TopicPartition("__consumer_offsets", 7)


class Machine:
    """One shard with a log; ``restart`` replays the log into a new one."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.shard = TransactionShard(0, self.settings)
        self.log: list[CoordinatorRecord] = []
        self.now = Now(1_700_000_000_000, 0)
        self.next_id = 1000
        self.effects: list[Effect] = []

    def fresh(self) -> int | None:
        self.next_id += 1
        return self.next_id - 1

    def advance(self, ms: int) -> None:
        self.now = Now(self.now.wall_ms + ms, self.now.mono_ms + ms)

    def perform(self, result: Result) -> Any:
        for record in result.records:
            self.log.append(record)
            self.shard.apply(record, None, self.now)
        self.effects = list(result.effects)
        return result.response

    def restart(self) -> list[Effect]:
        self.shard = TransactionShard(0, self.settings)
        for record in self.log:
            self.shard.apply(record, None, self.now)
        self.effects = list(self.shard.loaded(self.now).effects)
        return self.effects

    # ---- commands

    def init(
        self,
        expected: tuple[int, int] | None = None,
        timeout_ms: int = 60_000,
        name: str = ID,
        fresh: Callable[[], int | None] | None = None,
    ) -> Any:
        return self.perform(self.shard.init_producer_id(name, timeout_ms, expected, fresh or self.fresh, self.now))

    def add(self, pid: int, epoch: int, *partitions: TopicPartition, version: int = 0, name: str = ID) -> ErrorCode:
        result = self.shard.add_partitions(name, Producer(pid, epoch), partitions, version, self.now)
        return self.perform(result).error

    def verify(self, pid: int, epoch: int, *partitions: TopicPartition, name: str = ID) -> dict[Any, ErrorCode]:
        return dict(self.perform(self.shard.verify_partitions(name, Producer(pid, epoch), partitions)).errors)

    def end(self, pid: int, epoch: int, commit: bool, version: int = 0, name: str = ID) -> Any:
        return self.perform(
            self.shard.end_transaction(name, Producer(pid, epoch), End(commit, version), self.fresh, self.now)
        )

    def timer(self, name: str) -> None:
        self.perform(self.shard.on_timer(name, self.now))

    # ---- looking

    @property
    def t(self) -> Transaction:
        found = self.shard.describe(ID)
        assert found is not None
        return found

    @property
    def markers(self) -> WriteMarkers:
        (found,) = [effect for effect in self.effects if isinstance(effect, WriteMarkers)]
        return found

    @property
    def timers(self) -> dict[str, int]:
        return {effect.name: effect.delay_ms for effect in self.effects if isinstance(effect, Schedule)}

    def markers_written(self) -> None:
        marker = self.markers
        self.perform(
            self.shard.on_markers_written(marker.transactional_id, marker.producer_id, marker.producer_epoch, self.now)
        )
