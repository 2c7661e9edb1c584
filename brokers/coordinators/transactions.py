"""The transaction coordinator of this broker: its runtime, and what the pure shards need from the world.

Markers are sent until every partition has its own (:mod:`marker_sender`), which also is how a transaction goes on that
another coordinator left between prepare and complete: loading the shard yields the same effect again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from brokers.coordinators.enlisting import Enlisting
from brokers.coordinators.hosting import ShardHost
from brokers.coordinators.marker_sender import MarkerSender
from brokers.coordinators.pending import Pending
from brokers.coordinators.ports import Marker
from brokers.coordinators.producer_ids import ProducerIdAllocator
from brokers.coordinators.runtime import CoordinatorRuntime
from brokers.coordinators.verification import FIRST_PAUSE_MS, PATIENCE_MS, Verifier
from brokers.log import Origin
from brokers.log.producers import encode_marker_run
from brokers.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Clock
from txn.commands import Command, Now, Result, Ticket, WriteMarkers
from txn.coordinator import TransactionSettings, TransactionShard
from txn.markers import Fate, Job, fate
from wire.errors import ErrorCode
from wire.types import TopicPartition

if TYPE_CHECKING:
    from brokers.cluster.peers import PeersPort
    from brokers.cluster.replicas import ReplicaManager
    from brokers.cluster.view import ClusterView
    from brokers.config import BrokerConfig
    from coordination.store import Store

__all__ = ["TransactionCoordinator", "partition_count_of", "settings_of"]


def settings_of(config: BrokerConfig) -> TransactionSettings:
    """The coordinator's part of the configuration."""
    return TransactionSettings(
        max_timeout_ms=config.transaction_max_timeout_ms,
        id_expiration_ms=config.transactional_id_expiration_ms,
    )


def partition_count_of(view: ClusterView, topic: str, configured: int) -> Callable[[], int]:
    """The topic's number of partitions; the configured one until it exists."""

    def count() -> int:
        found = view.topics.get(topic)
        return len(found.partitions) if found is not None and found.partitions else configured

    return count


class TransactionCoordinator(CoordinatorRuntime):
    """The runtime of ``__transaction_state`` with producer ids, markers and verification around it.

    ``groups`` is the runtime of ``__consumer_offsets``: markers there go through its shards. ``incarnation`` is this
    broker's present one (it makes the stamps of producer id blocks unique).
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        view: ClusterView,
        replicas: ReplicaManager,
        groups: CoordinatorRuntime,
        peers: PeersPort,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        incarnation: Callable[[], int],
    ) -> None:
        settings = settings_of(config)
        super().__init__(
            "transactions",
            TRANSACTION_STATE_TOPIC,
            lambda partition: TransactionShard(partition, settings),
            partition_count=partition_count_of(
                view, TRANSACTION_STATE_TOPIC, config.transaction_state_log_num_partitions
            ),
            loop=loop,
            clock=clock,
            origin=Origin.COORDINATOR,
            may_serve=replicas.lease_valid,
            write_markers=self._take_markers,
        )
        self._replicas = replicas
        self._groups = groups
        broker_id = config.broker_id
        self.producer_ids = ProducerIdAllocator(store, broker_id, lambda: f"{broker_id}-{incarnation()}")
        self.markers = MarkerSender(
            broker_id, view, peers, loop, clock, write_here=self.write_markers_here, on_written=self._markers_written
        )
        self.verifier = Verifier(broker_id, view, peers, self)
        self.enlisting = Enlisting(self)
        self.on_unloaded(self.markers.drop_shard)

    async def stop(self) -> None:
        """Unload everything and stop talking to others."""
        self.close()
        await self.markers.close()
        await self.verifier.close()
        await self.producer_ids.close()

    def submit_patiently(self, key: str, command: Command) -> Pending:
        """Like ``submit``, but "the previous end is being written" is waited out for a moment.

        Markers take a few milliseconds; a client that is told to come again waits ten times that. Every attempt is a
        command of its own, judged by the state it finds.
        """
        outer = Pending(self._next_ticket())
        self._attempt(key, command, outer, FIRST_PAUSE_MS, self._clock.mono_ms() + PATIENCE_MS)
        return outer

    def _attempt(self, key: str, command: Command, outer: Pending, pause_ms: int, until_ms: int) -> None:
        def answered(response: Any) -> None:
            busy = getattr(response, "error", None) is ErrorCode.CONCURRENT_TRANSACTIONS
            if busy and self._clock.mono_ms() + pause_ms <= until_ms:
                self._loop.call_later(pause_ms / 1000, self._attempt, key, command, outer, 2 * pause_ms, until_ms)
            else:
                outer.complete(response)

        if not outer.done:
            self.submit(key, command).on_done(answered)

    # ---- markers out -----------------------------------------------------------------------------------------------

    def _take_markers(self, host: ShardHost, effect: WriteMarkers) -> None:
        self.markers.add(host.partition.tp.partition, effect._replace(coordinator_epoch=host.leader_epoch))

    def _markers_written(self, job: Job) -> None:
        host = self.host(job.id.shard)
        if host is None or host.leader_epoch != job.id.coordinator_epoch:
            return  # another coordinator has it now, and writes the markers again

        def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
            return shard.on_markers_written(job.id.transactional_id, job.id.producer_id, job.id.producer_epoch, now)

        host.run(job.id.transactional_id, command)

    # ---- markers in ------------------------------------------------------------------------------------------------

    def write_markers_here(
        self, markers: Sequence[tuple[TopicPartition, Marker]], done: Callable[[list[ErrorCode]], None]
    ) -> None:
        """Append markers to partitions led here; ``done`` gets one error each, once all are replicated or refused."""
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

    def _append_run(self, tp: TopicPartition, run: Sequence[Marker], done: Callable[[ErrorCode], None]) -> None:
        partition = self._replicas.leader(tp)
        if isinstance(partition, ErrorCode):
            done(partition)
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
            partition.wait_for(info.last_offset, done)
        elif info.error is ErrorCode.INVALID_PRODUCER_EPOCH and len(run) > 1:
            # one member was ended here by another hand (an operator's abort): that mustn't keep the others open
            self._append_singly(tp, run, done)
        else:
            done(info.error)

    def _append_singly(self, tp: TopicPartition, run: Sequence[Marker], done: Callable[[ErrorCode], None]) -> None:
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


def runs_of(markers: Sequence[tuple[TopicPartition, Marker]]) -> list[list[int]]:
    """The places of the markers that belong together on a partition, in order."""
    found: list[list[int]] = []
    unfinished: dict[TopicPartition, list[int]] = {}
    for index, (tp, marker) in enumerate(markers):
        run = unfinished.get(tp)
        if run is None:
            run = unfinished[tp] = []
            found.append(run)
        run.append(index)
        if marker.run_remaining <= 0:
            del unfinished[tp]
    return found
