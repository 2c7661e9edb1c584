"""Sends transaction markers to the partitions' leaders until all are written. ``txn.markers`` plans the requests."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import fleetlog.wire.messages as m
from fleetlog.brokers.coordinators.ports import TransactionMarker
from fleetlog.coordination.store import StoreError
from fleetlog.txn.markers import Fate, Gone, Job, JobId, Markers, MarkerToSend, SentBy, fate
from fleetlog.wire import api_keys
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
    from fleetlog.brokers.peers.calls import PeersPort
    from fleetlog.brokers.timers import Timer, Timers

logger = logging.getLogger(__name__)

CALL_TIMEOUT_MS = 30_000
PAUSE_MS = 200
LOOK_MS = 10_000
"""How long the metadata cache may take to catch up with ZooKeeper before the next look."""

Errors = Mapping[tuple[JobId, TopicPartition], ErrorCode]
WriteHere = Callable[[Sequence[tuple[TopicPartition, TransactionMarker]], Callable[[list[ErrorCode]], None]], None]
"""Writes markers to partitions that this broker leads; the callback gets one error code for each."""


class MarkerSender:
    """One per broker, for all transaction shards it hosts. Loop thread only."""

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
            self._pause = self._timers.later(PAUSE_MS, self._wake)

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
        version = APIS[api_keys.WRITE_TXN_MARKERS].max_version
        sender = SentBy(self._broker_id, self._incarnation(), next(self._numbers))
        try:
            response = await self._peers.call(
                broker, api_keys.WRITE_TXN_MARKERS, version, encode_markers(entries, version, sender), CALL_TIMEOUT_MS
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
    kind = m.request_class(api_keys.WRITE_TXN_MARKERS)
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
