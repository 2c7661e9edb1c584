"""The transaction coordinator of this broker: the runtime of the pure shards, with their ports.

Markers are sent until every partition has one (:class:`MarkerSender`). This also completes
transactions that a previous coordinator left between prepare and complete: loading the shard yields the same effect
again.

The tasks of one batch send EnlistProducer within milliseconds, and share one record. While a sink's record is being
replicated, further requests queue; the next command takes them together. A record has all members that the batch has so
far: enlisted one after the other, 10,000 would write 500 MB. So the next record of a sink waits for as long as the last
one takes at :data:`BYTES_PER_MS`; what is asked meanwhile is in it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import fleetlog.wire.messages as m
from fleetlog.brokers.coordinators.pending import PendingAnswer
from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
from fleetlog.brokers.coordinators.shard_host import ShardHost, TransactionMarker
from fleetlog.brokers.coordinators.transactions.verification import FIRST_PAUSE_MS, PATIENCE_MS, Verifier
from fleetlog.brokers.log import Origin
from fleetlog.brokers.log.producers.markers import encode_marker_run
from fleetlog.brokers.metadata.tree_guard import TreeBehind, TreeGuard
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Clock
from fleetlog.brokers.timers import Timers
from fleetlog.coordination.store import BadVersion, NodeExists, NoNode, SessionExpired, StoreError, UnknownOutcome
from fleetlog.coordination.store import Store as StorePort
from fleetlog.txn.commands import Command, CommandFailed, Now, Result, Ticket, WriteMarkers
from fleetlog.txn.coordinator import Producer, TransactionSettings, TransactionShard
from fleetlog.txn.markers import Fate, Gone, Job, JobId, Markers, MarkerToSend, Senders, SentBy, fate
from fleetlog.txn.producer_ids import Block, BlockError, Exhausted, ProducerIds, decode_block, encode_block, next_block
from fleetlog.txn.sinks import EnlistAnswer, enlist_members
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.groups.shard import GroupShard
    from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
    from fleetlog.brokers.peers.calls import PeersPort
    from fleetlog.brokers.replication.partition import Partition
    from fleetlog.brokers.replication.replicas import ReplicaManager
    from fleetlog.brokers.timers import Timer
    from fleetlog.coordination.store import Store

logger = logging.getLogger(__name__)

CALL_TIMEOUT_MS = 30_000
MARKER_PAUSE_MS = 200
LOOK_MS = 10_000
"""How long the metadata cache may take to catch up with ZooKeeper before the next look."""

Errors = Mapping[tuple[JobId, TopicPartition], ErrorCode]
WriteHere = Callable[[Sequence[tuple[TopicPartition, TransactionMarker]], Callable[[list[ErrorCode]], None]], None]
"""Writes markers to partitions that this broker leads; the callback gets one error code for each."""


class MarkerSender:
    """Sends transaction markers to the partitions' leaders until all are written. ``txn.markers`` plans the requests.

    One per broker, for all transaction shards it hosts. Loop thread only.
    """

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        peers: PeersPort,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        *,
        incarnation: Callable[[], int],
        write_here: WriteHere,
        on_written: Callable[[Job], None],
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._peers = peers
        self._loop = loop
        self._timers = timers
        self._incarnation = incarnation
        self._numbers = itertools.count()
        self._write_here = write_here
        self._on_written = on_written
        self._markers = Markers()
        self._unknown: set[TopicPartition] = set()
        """Partitions that the metadata cache lacks; it may lag behind the broker that has one and added it."""
        self._looked_for: set[TopicPartition] = set()
        self._gone: set[TopicPartition] = set()
        """Those that a look at ZooKeeper has not found that began after their transactions were decided."""
        self._looking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_scheduled = False
        self._pause: Timer | None = None
        self._closed = False
        metadata.subscribe(self._metadata_changed)

    def __len__(self) -> int:
        return len(self._markers)

    def add(self, shard: int, effect: Any) -> None:
        """Add a WriteMarkers effect whose ``coordinator_epoch`` is set."""
        for looked in (self._looked_for, self._gone):  # by a look that began before this decision
            looked.difference_update(effect.partitions)
        self._markers.add(shard, effect)
        self._schedule()

    def drop_shard(self, shard: int) -> None:
        """Drop the markers of a shard that was unloaded."""
        self._markers.drop_shard(shard)

    async def close(self) -> None:
        """Stop sending; the next coordinator of the shards sends the rest."""
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- scheduling ------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._pump_scheduled and not self._closed:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._closed:
            return
        for broker, entries in self._markers.plan(self._leader_of).items():
            if broker == self._broker_id:
                self._send_here(entries)
            else:
                task = self._loop.create_task(self._send(broker, entries), name=f"markers to broker {broker}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._gone.clear()
        for job in self._markers.finished():
            self._on_written(job)
        if self._unknown and self._looking is None:
            self._looking = self._loop.create_task(self._look(), name="partitions of transactions that are unknown")
            self._tasks.add(self._looking)
            self._looking.add_done_callback(self._tasks.discard)
        if self._markers.delayed and self._pause is None:
            self._pause = self._timers.later(MARKER_PAUSE_MS, self._wake)

    def _wake(self) -> None:
        self._pause = None
        self._markers.wake()
        self._schedule()

    def _metadata_changed(self, change: MetadataChange) -> None:
        if len(self._markers) and (change.deleted or change.partitions_changed or change.reloaded):
            self._markers.wake()
            self._schedule()

    def _leader_of(self, tp: TopicPartition) -> int | Gone | None:
        state = self._metadata.partition(tp)
        if state is not None:
            return state.leader if state.leader in self._metadata.brokers else None
        if tp in self._gone:
            logger.info("%s: no transaction marker written: the partition does not exist any more", tp)
            return Gone.GONE
        self._unknown.add(tp)
        return None

    async def _look(self) -> None:
        """Let the metadata cache catch up with ZooKeeper: what it lacks then was deleted."""
        self._looked_for, self._unknown = self._unknown, set()
        try:
            current = await self._metadata.refreshed(LOOK_MS)
        except StoreError as problem:
            logger.info(
                "transaction markers wait: whether %d partitions exist is not known: %s", len(self._looked_for), problem
            )
            current = False
        finally:
            self._looking = None
        if current:  # else the next try looks again
            self._gone |= self._looked_for
            self._markers.wake()
            self._schedule()

    # ---- one request -----------------------------------------------------------------------------------------------

    def _send_here(self, entries: Sequence[MarkerToSend]) -> None:
        places: list[tuple[JobId, TopicPartition]] = []
        markers: list[tuple[TopicPartition, TransactionMarker]] = []
        for entry in entries:
            for marker in markers_of(entry):
                places += [(entry.job, tp) for tp in entry.partitions]
                markers += [(tp, marker) for tp in entry.partitions]

        def done(errors: list[ErrorCode]) -> None:
            self._answered(self._broker_id, combined(zip(places, errors, strict=True)))

        self._write_here(markers, done)

    async def _send(self, broker: int, entries: Sequence[MarkerToSend]) -> None:
        key = m.WriteTxnMarkersResponse.API_KEY
        version = APIS[key].max_version
        sender = SentBy(self._broker_id, self._incarnation(), next(self._numbers))
        try:
            response = await self._peers.call(
                broker, key, version, encode_markers(entries, version, sender), CALL_TIMEOUT_MS
            )
            errors = decode_markers(entries, response)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.info("sending transaction markers to broker %d failed, retrying: %s", broker, error)
            errors = {}
        self._answered(broker, errors)

    def _answered(self, broker: int, errors: Errors) -> None:
        self._markers.answered(broker, errors)
        self._schedule()


def markers_of(entry: MarkerToSend) -> list[TransactionMarker]:
    """The entry's markers as a run for one leader."""
    job, last = entry.job, len(entry.markers) - 1
    return [
        TransactionMarker(
            marker.producer_id, marker.epoch, job.coordinator_epoch, marker.commit, entry.transaction_version,
            last - index,
        )
        for index, marker in enumerate(entry.markers)
    ]  # fmt: skip


def combined(
    errors: Iterable[tuple[tuple[JobId, TopicPartition], ErrorCode]],
) -> dict[tuple[JobId, TopicPartition], ErrorCode]:
    """One error for each job and partition: that of an unwritten marker, if there is one."""
    by_place: dict[tuple[JobId, TopicPartition], ErrorCode] = {}
    for place, error in errors:
        known = by_place.get(place)
        if known is None or fate(known) is Fate.WRITTEN:
            by_place[place] = error
    return by_place


def encode_markers(entries: Sequence[MarkerToSend], version: int, sender: SentBy) -> Any:
    """A WriteTxnMarkers request. Other brokers than ours pass over its sender."""
    kind = m.WriteTxnMarkersRequest
    markers = []
    for entry in entries:
        topics: dict[str, list[int]] = {}
        for topic, partition in entry.partitions:
            topics.setdefault(topic, []).append(partition)
        for one in markers_of(entry):
            marker = kind.WritableTxnMarker(
                version=version,
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                transaction_result=one.commit,
                coordinator_epoch=one.coordinator_epoch,
                topics=[
                    kind.WritableTxnMarker.WritableTxnMarkerTopic(version=version, name=name, partition_indexes=indexes)
                    for name, indexes in topics.items()
                ],
            )
            if version >= 2:
                marker.transaction_version = one.transaction_version
                marker.run_remaining = one.run_remaining
            markers.append(marker)
    request = kind(version=version, markers=markers)
    if version >= 2:
        request.sender_id, request.sender_incarnation, request.sender_number = sender
    return request


def decode_markers(entries: Sequence[MarkerToSend], response: Any) -> dict[tuple[JobId, TopicPartition], ErrorCode]:
    """Outcomes by job and partition; the response keeps the request's order of markers."""
    sent = [(entry, marker) for entry in entries for marker in entry.markers]
    errors: list[tuple[tuple[JobId, TopicPartition], ErrorCode]] = []
    for (entry, marker), result in zip(sent, response.markers, strict=False):
        if result.producer_id != marker.producer_id:
            continue  # another order than the request's: markers without an outcome are sent again
        for topic in result.topics:
            for partition in topic.partitions:
                place = TopicPartition(topic.name, partition.partition_index)
                errors.append(((entry.job, place), ErrorCode(partition.error_code)))
    answered = combined(errors)
    if len(response.markers) < len(sent):  # a run without all its outcomes counts as unwritten
        answered = {place: error for place, error in answered.items() if len(_markers_for(entries, place)) == 1}
    return answered


def _markers_for(entries: Sequence[MarkerToSend], place: tuple[JobId, TopicPartition]) -> Sequence[object]:
    return next((entry.markers for entry in entries if entry.job == place[0]), ())


PRODUCER_IDS_PATH = "/latest_producer_id_block"
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 2.0
MAX_WAITING_FOR_IDS = 10_000


class ProducerIdAllocator:
    """Takes blocks of producer ids in ZooKeeper, by compare-and-set. ``txn.producer_ids`` decides.

    Every attempt has a unique stamp, so that after an unknown outcome the znode, read after a sync, shows whether it
    was written. If the stamp is not there the attempt may have been overwritten; its ids are lost and never used.
    ``attempt_prefix`` names broker and incarnation, for the stamps.

    No id is given twice: not while the tree is ``guard``ed as older than what was seen, and none below those seen.
    """

    def __init__(
        self, store: StorePort, broker_id: int, attempt_prefix: Callable[[], str], guard: TreeGuard | None = None
    ) -> None:
        self._store = store
        self._guard = guard or TreeGuard(store, broker_id)
        self._broker_id = broker_id
        self._attempt_prefix = attempt_prefix
        self._attempts = 0
        self._unresolved: dict[str, Block] = {}
        """What was written without an answer, by stamp. A process before this one may have used the same stamps."""
        self._ids = ProducerIds()
        self._waiting: list[Callable[[int | None], None]] = []
        self._fillers: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    def take(self) -> int | None:
        """An id, or None if none is available (then a block is requested)."""
        taken = self._ids.take()
        if self._ids.wants_block:
            self._refill()
        return taken

    def when_ready(self, callback: Callable[[int | None], None]) -> None:
        """Call with an id as soon as there is one, or with None if too many callbacks wait already."""
        taken = self.take()
        if taken is not None or len(self._waiting) >= MAX_WAITING_FOR_IDS:
            callback(taken)
        else:
            self._waiting.append(callback)

    def when_filled(self, callback: Callable[[], None]) -> None:
        """Call when :meth:`take` can return an id, or when no more ids will come."""
        if self._ids.wants_block:
            self._refill()
        if self._ids.left or len(self._fillers) >= MAX_WAITING_FOR_IDS:
            callback()
        else:
            self._fillers.append(callback)

    async def close(self) -> None:
        """Stop allocating; waiting callbacks get None."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._serve_waiting(give_up=True)

    def _refill(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._fetch(), name="producer id block")

    async def _fetch(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._ids.wants_block or self._waiting or self._fillers:
            try:
                block = await self._try_once()
            except (Exhausted, BlockError) as error:
                logger.error("no producer ids available: %s", error or "all are used up")
                self._serve_waiting(give_up=True)
                return
            except StoreError as error:
                logger.info("allocating a producer id block failed, retrying: %s", error)
                block = None
            if block is not None:
                self._ids.add(block)
                self._serve_waiting()
                pause_s = FIRST_PAUSE_S
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LAST_PAUSE_S)

    def _serve_waiting(self, give_up: bool = False) -> None:
        fillers, self._fillers = self._fillers, []
        for filler in fillers:
            filler()
        waiting, self._waiting = self._waiting, []
        for position, callback in enumerate(waiting):
            taken = None if give_up else self._ids.take()
            if taken is None and not give_up:
                self._waiting = waiting[position:] + self._waiting
                return
            callback(taken)

    async def _try_once(self) -> Block | None:
        """One compare-and-set; None if another broker was faster or the outcome is unknown."""
        if self._guard.behind is not None:
            raise TreeBehind("ZooKeeper may have given these ids to others")
        if self._unresolved:
            await self._store.sync(PRODUCER_IDS_PATH)
        try:
            data, stat = await self._store.get(PRODUCER_IDS_PATH)
        except NoNode:
            data, stat = b"", None
        stored = decode_block(data) if data else None
        if stored is not None and self._unresolved.get(stored.stamp) == stored.block:
            self._unresolved.clear()
            self._guard.note(producer_id=stored.block.last)
            return stored.block  # the write whose answer was lost
        block = next_block(stored, self._guard.marks.producer_id)
        self._attempts += 1
        stamp = f"{self._attempt_prefix()}-{self._attempts}"
        written = encode_block(block, self._broker_id, stamp)
        try:
            if stat is None:
                await self._store.create(PRODUCER_IDS_PATH, written, parents=True)
            else:
                await self._store.set(PRODUCER_IDS_PATH, written, stat.version)
        except UnknownOutcome:
            self._unresolved[stamp] = block
            raise
        except (BadVersion, NodeExists, NoNode, SessionExpired):
            return None
        self._unresolved.clear()
        self._guard.note(producer_id=block.last)
        return block


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
        self.states_of: dict[str, CoordinatorRuntime[Any]] = {GROUP_METADATA_TOPIC: groups}
        """By internal topic, whose records of transactions are applied when these end."""
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
            applied_by = self.states_of.get(tp.topic)
            if applied_by is not None:
                for index, marker in zip(indexes, run, strict=True):
                    applied_by.append_marker(tp, marker, take([index]))
            else:
                self._append_run(tp, run, take(indexes))

    @staticmethod
    def _await_commit(partition: Partition, offset: int, done: Callable[[ErrorCode], None]) -> None:
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
