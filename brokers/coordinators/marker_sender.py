"""Sends transaction markers to the partitions' leaders until every one is in its log. Planning: ``txn.markers``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import wire.messages as m
from brokers.coordinators.ports import Marker
from brokers.model import Clock
from txn.markers import Fate, Gone, Job, JobId, Markers, MarkerToSend, fate
from wire.apis import APIS
from wire.errors import ErrorCode
from wire.types import TopicPartition

if TYPE_CHECKING:
    from brokers.cluster.peers import PeersPort
    from brokers.cluster.view import ClusterView, ViewChange

log = logging.getLogger(__name__)

WRITE_TXN_MARKERS = 27
CALL_TIMEOUT_MS = 30_000
PAUSE_S = 0.2
UNKNOWN_IS_GONE_MS = 10_000
"""A partition that our view never knew may be newer than our view; so long it gets to appear."""

Errors = Mapping[tuple[JobId, TopicPartition], ErrorCode]
WriteHere = Callable[[Sequence[tuple[TopicPartition, Marker]], Callable[[list[ErrorCode]], None]], None]
"""Write markers at partitions led by this broker; the callback gets one error code for each."""


class MarkerSender:
    """One per broker, for all transaction shards it hosts. Loop thread only."""

    def __init__(
        self,
        broker_id: int,
        view: ClusterView,
        peers: PeersPort,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        write_here: WriteHere,
        on_written: Callable[[Job], None],
    ) -> None:
        self._broker_id = broker_id
        self._view = view
        self._peers = peers
        self._loop = loop
        self._clock = clock
        self._write_here = write_here
        self._on_written = on_written
        self._markers = Markers()
        self._unknown_since_ms: dict[TopicPartition, int] = {}
        self._deleted: dict[str, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_scheduled = False
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False
        view.subscribe(self._view_changed)

    def __len__(self) -> int:
        return len(self._markers)

    def add(self, shard: int, effect: Any) -> None:
        """Take on a WriteMarkers effect whose ``coordinator_epoch`` is filled in."""
        self._markers.add(shard, effect)
        self._schedule()

    def drop_shard(self, shard: int) -> None:
        """The shard moved away."""
        self._markers.drop_shard(shard)

    async def close(self) -> None:
        """Stop sending; what is left is resumed by whoever loads the shards next."""
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- the pump --------------------------------------------------------------------------------------------------

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
        for job in self._markers.finished():
            self._on_written(job)
        if self._markers.delayed and self._pause is None:
            self._pause = self._loop.call_later(PAUSE_S, self._wake)

    def _wake(self) -> None:
        self._pause = None
        self._markers.wake()
        self._schedule()

    def _view_changed(self, change: ViewChange) -> None:
        for topic in change.deleted:
            self._deleted[topic.name] = None
            while len(self._deleted) > 10_000:
                del self._deleted[next(iter(self._deleted))]
        if len(self._markers) and (change.deleted or change.partitions_changed or change.reloaded):
            self._markers.wake()
            self._schedule()

    def _leader_of(self, tp: TopicPartition) -> int | Gone | None:
        state = self._view.partition(tp)
        if state is not None:
            self._unknown_since_ms.pop(tp, None)
            return state.leader if state.leader in self._view.brokers else None
        now_ms = self._clock.mono_ms()
        since_ms = self._unknown_since_ms.setdefault(tp, now_ms)
        if tp.topic in self._deleted or now_ms - since_ms >= UNKNOWN_IS_GONE_MS:
            self._unknown_since_ms.pop(tp, None)
            log.info("no marker for %s: it does not exist any more", tp)
            return Gone.GONE
        return None

    # ---- one request -----------------------------------------------------------------------------------------------

    def _send_here(self, entries: Sequence[MarkerToSend]) -> None:
        places: list[tuple[JobId, TopicPartition]] = []
        markers: list[tuple[TopicPartition, Marker]] = []
        for entry in entries:
            for marker in markers_of(entry):
                places += [(entry.job, tp) for tp in entry.partitions]
                markers += [(tp, marker) for tp in entry.partitions]

        def done(errors: list[ErrorCode]) -> None:
            self._answered(self._broker_id, combined(zip(places, errors, strict=True)))

        self._write_here(markers, done)

    async def _send(self, broker: int, entries: Sequence[MarkerToSend]) -> None:
        version = APIS[WRITE_TXN_MARKERS].max_version
        try:
            response = await self._peers.call(
                broker, WRITE_TXN_MARKERS, version, encode(entries, version), CALL_TIMEOUT_MS
            )
            errors = decode(entries, response)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.info("markers to broker %d: %s; trying again", broker, error)
            errors = {}
        self._answered(broker, errors)

    def _answered(self, broker: int, errors: Errors) -> None:
        self._markers.answered(broker, errors)
        self._schedule()


def markers_of(entry: MarkerToSend) -> list[Marker]:
    """The entry's markers as a leader takes them: a run."""
    job, last = entry.job, len(entry.markers) - 1
    return [
        Marker(
            marker.producer_id, marker.epoch, job.coordinator_epoch, marker.commit, entry.transaction_version,
            last - index,
        )
        for index, marker in enumerate(entry.markers)
    ]  # fmt: skip


def combined(
    errors: Iterable[tuple[tuple[JobId, TopicPartition], ErrorCode]],
) -> dict[tuple[JobId, TopicPartition], ErrorCode]:
    """One error for each job and partition: that of a marker that isn't written, if there is one."""
    found: dict[tuple[JobId, TopicPartition], ErrorCode] = {}
    for place, error in errors:
        known = found.get(place)
        if known is None or fate(known) is Fate.WRITTEN:
            found[place] = error
    return found


def encode(entries: Sequence[MarkerToSend], version: int) -> Any:
    """A WriteTxnMarkers request."""
    kind = m.request_class(WRITE_TXN_MARKERS)
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
    return kind(version=version, markers=markers)


def decode(entries: Sequence[MarkerToSend], response: Any) -> dict[tuple[JobId, TopicPartition], ErrorCode]:
    """Outcomes by job and partition; the response keeps the request's order of markers."""
    sent = [(entry, marker) for entry in entries for marker in entry.markers]
    errors: list[tuple[tuple[JobId, TopicPartition], ErrorCode]] = []
    for (entry, marker), result in zip(sent, response.markers, strict=False):
        if result.producer_id != marker.producer_id:
            continue  # not our order: what is left out here is sent again
        for topic in result.topics:
            for partition in topic.partitions:
                place = TopicPartition(topic.name, partition.partition_index)
                errors.append(((entry.job, place), ErrorCode(partition.error_code)))
    answered = combined(errors)
    if len(response.markers) < len(sent):  # a run of which a part wasn't answered isn't written
        answered = {place: error for place, error in answered.items() if len(_markers_for(entries, place)) == 1}
    return answered


def _markers_for(entries: Sequence[MarkerToSend], place: tuple[JobId, TopicPartition]) -> Sequence[object]:
    return next((entry.markers for entry in entries if entry.job == place[0]), ())
