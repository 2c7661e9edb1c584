"""The transaction coordinator of this broker: the runtime of the pure shards, with their ports.

Markers are sent until every partition has one (:mod:`brokers.coordinators.transactions.markers`). This also completes
transactions that a previous coordinator left between prepare and complete: loading the shard yields the same effect
again.

The tasks of one batch send EnlistProducer within milliseconds, and share one record. While a sink's record is being
replicated, further requests queue; the next command takes them together. A record has all members that the batch has so
far: enlisted one after the other, 10,000 would write 500 MB. So the next record of a sink waits for as long as the last
one takes at :data:`BYTES_PER_MS`; what is asked meanwhile is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog.brokers.coordinators.pending import PendingAnswer
from fleetlog.brokers.coordinators.ports import PartitionPort, TransactionMarker
from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
from fleetlog.brokers.coordinators.shard_host import ShardHost
from fleetlog.brokers.coordinators.transactions.markers import MarkerSender
from fleetlog.brokers.coordinators.transactions.producer_ids import ProducerIdAllocator
from fleetlog.brokers.coordinators.transactions.verification import FIRST_PAUSE_MS, PATIENCE_MS, Verifier
from fleetlog.brokers.log import Origin
from fleetlog.brokers.log.producers.markers import encode_marker_run
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Clock
from fleetlog.brokers.timers import Timers
from fleetlog.txn.commands import Command, CommandFailed, Now, Result, Ticket, WriteMarkers
from fleetlog.txn.coordinator import Producer, TransactionSettings, TransactionShard
from fleetlog.txn.markers import Fate, Job, Senders, fate
from fleetlog.txn.sinks import EnlistAnswer, enlist_members
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.groups.shard import GroupShard
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.peers.calls import PeersPort
    from fleetlog.brokers.replication.replicas import ReplicaManager
    from fleetlog.coordination.store import Store


MAX_WAITING = 10_000
BYTES_PER_MS = 1_000
"""What the enlistments of one sink write at most: 1 MB in a second, however few members are asked for at a time."""

Answered = Callable[[EnlistAnswer], None]


class _Request(NamedTuple):
    producer: Producer
    members: int
    answered: Answered


class Enlisting:
    """One per transaction coordinator. Loop thread only."""

    def __init__(
        self, runtime: CoordinatorRuntime[TransactionShard], producer_ids: ProducerIdAllocator, timers: Timers
    ) -> None:
        self._runtime = runtime
        self._timers = timers
        self._producer_ids = producer_ids
        self._waiting: dict[str, list[_Request]] = {}
        self._busy: dict[str, None] = {}

    def enlist(self, sink_id: str, producer: Producer, count: int, answered: Answered) -> None:
        """Enlist ``count`` members of the sink's batch; ``answered`` is called once."""
        waiting = self._waiting.setdefault(sink_id, [])
        if len(waiting) >= MAX_WAITING:
            answered(EnlistAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        waiting.append(_Request(producer, count, answered))
        self._next(sink_id)

    def _next(self, sink_id: str) -> None:
        if sink_id in self._busy:
            return
        waiting = self._waiting.pop(sink_id, [])
        if not waiting:
            return
        self._busy[sink_id] = None
        # a separate command per driver: requests of a zombie's tasks must not fail the others
        producer = waiting[0].producer
        together = [request for request in waiting if request.producer == producer]
        others = [request for request in waiting if request.producer != producer]
        if others:
            self._waiting[sink_id] = others
        self._producer_ids.when_filled(lambda: self._submit(sink_id, producer, together))

    def _submit(self, sink_id: str, producer: Producer, together: list[_Request]) -> None:
        counts = [request.members for request in together]
        take = self._producer_ids.take
        written = 0

        def command(shard: TransactionShard, now: Now, _ticket: Ticket) -> Result:
            nonlocal written
            result = enlist_members(shard, sink_id, producer, counts, take, now)
            if result.records:
                written = sum(len(record.value or b"") for record in result.records)
            return result

        def free() -> None:
            self._busy.pop(sink_id, None)
            self._next(sink_id)

        def done(response: object) -> None:
            if isinstance(response, list):
                answers = response
            else:
                error = response.error if isinstance(response, CommandFailed) else ErrorCode.UNKNOWN_SERVER_ERROR
                answers = [EnlistAnswer(error)] * len(together)
            for request, answer in zip(together, answers, strict=True):
                request.answered(answer)
            if written >= BYTES_PER_MS:
                self._timers.later(written // BYTES_PER_MS, free)
            else:
                free()

        self._runtime.submit(sink_id, command).on_done(done)


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
        info = metadata.topics.get(topic)
        return len(info.partitions) if info is not None and info.partitions else configured

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
    runs = MarkerRuns()
    for tp, marker in markers:
        runs.add(tp, marker)
    return runs.found


class MarkerRuns:
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
