"""The transaction coordinator of this broker: the runtime of the pure shards, with their ports.

Markers are sent until every partition has one (:mod:`brokers.coordinators.transactions.markers`). This also completes
transactions that a previous coordinator left between prepare and complete: loading the shard yields the same effect
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fleetlog.brokers.coordinators.pending import PendingAnswer
from fleetlog.brokers.coordinators.ports import PartitionPort, TransactionMarker
from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
from fleetlog.brokers.coordinators.shard_host import ShardHost
from fleetlog.brokers.coordinators.transactions.enlisting import Enlisting
from fleetlog.brokers.coordinators.transactions.markers import MarkerSender
from fleetlog.brokers.coordinators.transactions.producer_ids import ProducerIdAllocator
from fleetlog.brokers.coordinators.transactions.verification import FIRST_PAUSE_MS, PATIENCE_MS, Verifier
from fleetlog.brokers.log import Origin
from fleetlog.brokers.log.markers import encode_marker_run
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Clock
from fleetlog.brokers.timers import Timers
from fleetlog.txn.commands import Command, Now, Result, Ticket, WriteMarkers
from fleetlog.txn.coordinator import TransactionSettings, TransactionShard
from fleetlog.txn.markers import Fate, Job, Senders, fate
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.groups.shard import GroupShard
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.peers.calls import PeersPort
    from fleetlog.brokers.replication.replicas import ReplicaManager
    from fleetlog.coordination.store import Store

__all__ = ["TransactionCoordinator", "partition_count_of", "settings_of"]


def settings_of(config: BrokerConfig) -> TransactionSettings:
    """The coordinator's part of the configuration."""
    return TransactionSettings(
        max_timeout_ms=config.transaction_max_timeout_ms,
        id_expiration_ms=config.transactional_id_expiration_ms,
        sweep_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
        abort_interval_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        last_epoch=config.transaction_last_producer_epoch,
    )


def partition_count_of(metadata: MetadataCache, topic: str, configured: int) -> Callable[[], int]:
    """The topic's number of partitions; the configured one until it exists."""

    def count() -> int:
        found = metadata.topics.get(topic)
        return len(found.partitions) if found is not None and found.partitions else configured

    return count


def _incarnation_of(metadata: MetadataCache, broker_id: int) -> int | None:
    broker = metadata.brokers.get(broker_id)
    return None if broker is None else broker.incarnation


class TransactionCoordinator(CoordinatorRuntime[TransactionShard]):
    """The runtime of ``__transaction_state``, with producer ids, markers and verification.

    ``groups`` is the runtime of ``__consumer_offsets``; markers for that topic go through its shards. ``incarnation``
    is this broker's present one (it makes the stamps of producer id blocks unique).
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        groups: CoordinatorRuntime[GroupShard],
        peers: PeersPort,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        clock: Clock,
        incarnation: Callable[[], int],
    ) -> None:
        settings = settings_of(config)
        super().__init__(
            "transactions",
            TRANSACTION_STATE_TOPIC,
            lambda partition: TransactionShard(partition, settings),
            partition_count=partition_count_of(
                metadata, TRANSACTION_STATE_TOPIC, config.transaction_state_log_num_partitions
            ),
            loop=loop,
            timers=timers,
            clock=clock,
            origin=Origin.COORDINATOR,
            write_markers=self._take_markers,
        )
        self._replicas = replicas
        self._groups = groups
        broker_id = config.broker_id
        self.producer_ids = ProducerIdAllocator(
            store, broker_id, lambda: f"{broker_id}-{incarnation()}", metadata.guard
        )
        self.markers = MarkerSender(
            broker_id,
            metadata,
            peers,
            loop,
            timers,
            incarnation=incarnation,
            write_here=self.write_markers_here,
            on_written=self._markers_written,
        )
        self.marker_senders = Senders(partial(_incarnation_of, metadata))
        self.verifier = Verifier(broker_id, metadata, peers, self)
        self.enlisting = Enlisting(self, self.producer_ids, timers)
        self.on_unloaded(self.markers.drop_shard)

    async def stop(self) -> None:
        """Unload all shards and cancel all requests to other brokers."""
        self.close()
        await self.markers.close()
        await self.verifier.close()
        await self.producer_ids.close()

    def submit_patiently(self, key: str, command: Command) -> PendingAnswer:
        """Like ``submit``, but retries CONCURRENT_TRANSACTIONS for up to PATIENCE_MS.

        Markers take a few milliseconds; a client's own backoff is ten times that. Every attempt is a separate command
        on the state at that time.
        """
        outer = PendingAnswer(self._next_ticket())
        self._attempt(key, command, outer, FIRST_PAUSE_MS, self._clock.mono_ms() + PATIENCE_MS)
        return outer

    def _attempt(self, key: str, command: Command, outer: PendingAnswer, pause_ms: int, until_ms: int) -> None:
        def answered(response: Any) -> None:
            busy = getattr(response, "error", None) is ErrorCode.CONCURRENT_TRANSACTIONS
            if busy and self._clock.mono_ms() + pause_ms <= until_ms:
                self._timers.later(pause_ms, partial(self._attempt, key, command, outer, 2 * pause_ms, until_ms))
            else:
                outer.complete(response)

        if not outer.done:
            self.submit(key, command).on_done(answered)

    # ---- sending markers -------------------------------------------------------------------------------------------

    def _take_markers(self, host: ShardHost[TransactionShard], effect: WriteMarkers) -> None:
        self.markers.add(host.partition.tp.partition, effect._replace(coordinator_epoch=host.leader_epoch))

    def _markers_written(self, job: Job) -> None:
        host = self.host(job.id.shard)
        if host is None or host.leader_epoch != job.id.coordinator_epoch:
            return  # another coordinator has the transaction now, and writes the markers again

        def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
            return shard.on_markers_written(job.id.transactional_id, job.id.producer_id, job.id.producer_epoch, now)

        host.run(job.id.transactional_id, command)

    # ---- writing markers -------------------------------------------------------------------------------------------

    def write_markers_here(
        self, markers: Sequence[tuple[TopicPartition, TransactionMarker]], done: Callable[[list[ErrorCode]], None]
    ) -> None:
        """Append markers to partitions of this leader; ``done`` gets one error each once all are written or failed."""
        errors = [ErrorCode.UNKNOWN_SERVER_ERROR] * len(markers)
        missing = set(range(len(markers)))
        if not markers:
            done(errors)
            return

        def take(indexes: Sequence[int]) -> Callable[[ErrorCode], None]:
            def answered(error: ErrorCode) -> None:
                for index in indexes:
                    if index in missing:
                        missing.discard(index)
                        errors[index] = error
                        if not missing:
                            done(errors)

            return answered

        for indexes in runs_of(markers):
            tp = markers[indexes[0]][0]
            run = [markers[index][1] for index in indexes]
            if tp.topic == GROUP_METADATA_TOPIC:
                for index, marker in zip(indexes, run, strict=True):
                    self._groups.append_marker(tp, marker, take([index]))
            else:
                self._append_run(tp, run, take(indexes))

    @staticmethod
    def _await_commit(partition: PartitionPort, offset: int, done: Callable[[ErrorCode], None]) -> None:
        partition.wait_for(offset, done, gives_up=True)  # it is sent again, and others must not wait

    def _append_run(
        self, tp: TopicPartition, run: Sequence[TransactionMarker], done: Callable[[ErrorCode], None]
    ) -> None:
        partition, error = self._replicas.leader(tp)
        if partition is None:
            done(error)
            return
        first = run[0]
        batches = encode_marker_run(
            [(marker.producer_id, marker.producer_epoch, marker.commit) for marker in run],
            first.coordinator_epoch,
            self._clock.wall_ms(),
        )
        info = partition.append(
            batches, acks=-1, origin=Origin.COORDINATOR, transaction_version=first.transaction_version
        )
        if info.error is ErrorCode.NONE:
            self._await_commit(partition, info.last_offset, done)
        elif info.error is ErrorCode.INVALID_PRODUCER_EPOCH and len(run) > 1:
            # one member was already ended on this partition (an operator's abort): the others must still end
            self._append_singly(tp, run, done)
        else:
            done(info.error)

    def _append_singly(
        self, tp: TopicPartition, run: Sequence[TransactionMarker], done: Callable[[ErrorCode], None]
    ) -> None:
        waiting = len(run)
        worst = ErrorCode.NONE

        def one(error: ErrorCode) -> None:
            nonlocal waiting, worst
            if fate(error) is not Fate.WRITTEN:
                worst = error
            waiting -= 1
            if not waiting:
                done(worst)

        for marker in run:
            self._append_run(tp, [marker], one)


def runs_of(markers: Iterable[tuple[TopicPartition, TransactionMarker]]) -> list[list[int]]:
    """The indexes of the markers of each run on a partition, in order."""
    runs = Runs()
    for tp, marker in markers:
        runs.add(tp, marker)
    return runs.found


class Runs:
    """Collects the runs of markers per partition, marker by marker."""

    def __init__(self) -> None:
        self.found: list[list[int]] = []
        """The indexes of the markers of each run, in order."""
        self._unfinished: dict[TopicPartition, list[int]] = {}
        self._count = 0

    def add(self, tp: TopicPartition, marker: TransactionMarker) -> None:
        """Add the next marker."""
        run = self._unfinished.get(tp)
        if run is None:
            run = self._unfinished[tp] = []
            self.found.append(run)
        run.append(self._count)
        self._count += 1
        if marker.run_remaining <= 0:
            del self._unfinished[tp]
