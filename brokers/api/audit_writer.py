"""Writes a broker's audit events to the audit topic, by the way of all records: an append at a partition's leader.

A partition that this broker leads is preferred; otherwise the leader of another one gets a Produce. Events stay in
the queue until all in-sync replicas have them. After an unknown outcome they are written again: an event that comes
twice has the same ``metadata.uid``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.audit.settings import BATCH_BYTES
from fleetlog.brokers.log import Origin
from fleetlog.brokers.model import AUDIT_TOPIC, TopicPartition
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.api.base import Services
    from fleetlog.brokers.audit.recorder import Audit

logger = logging.getLogger(__name__)

PRODUCE_VERSION = 9
WRITE_TIMEOUT_MS = 10_000
LOOK_S = 1.0
"""How often minutes that are over are looked for."""
GATHER_S = 0.02
"""What comes within it is one batch."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 2.0
STOP_S = 3.0


class AuditWriter:
    """See the module. :meth:`run` is a task that must not end; :meth:`finish` writes what is left."""

    def __init__(self, audit: Audit, services: Services, peers: PeersPort) -> None:
        self._audit = audit
        self._services = services
        self._peers = peers
        self._wanted = asyncio.Event()
        self._turn = 0
        self.written = 0
        audit.wake = self._wanted.set

    def metrics(self) -> dict[str, float]:
        """Numbers since the start, and the bytes that wait."""
        trail = self._audit.trail
        return {
            "dropped": float(trail.dropped),
            "refused": float(self._audit.refused),
            "written": float(self.written),
            "queued_bytes": float(trail.queued_bytes),
        }

    async def run(self) -> None:
        """Write events as they come, for ever."""
        trail, services = self._audit.trail, self._services
        trail.record_broker(started=True, wall_ms=services.clock.wall_ms())
        pause_s, dropped = FIRST_PAUSE_S, 0
        while True:
            self._audit.report_dropped(dropped)
            dropped = trail.dropped
            trail.flush(services.clock.mono_ms())
            if not trail.queued_bytes:
                await self._wait()
                continue
            problem = await self._write_some()
            if problem is None:
                pause_s = FIRST_PAUSE_S
                continue
            logger.log(
                logging.WARNING if pause_s == LAST_PAUSE_S else logging.DEBUG, "audit events wait: %s", problem
            )  # fmt: skip
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    async def finish(self) -> None:
        """Write what was counted and what is queued, for some seconds at most."""
        trail = self._audit.trail
        trail.record_broker(started=False, wall_ms=self._services.clock.wall_ms())
        trail.flush_all()
        try:
            async with asyncio.timeout(STOP_S):
                while trail.queued_bytes and await self._write_some() is None:
                    pass
        except TimeoutError:
            pass
        if trail.queued_bytes:
            logger.error(
                "%d audit events are lost: they could not be written before the stop", len(trail.pending(2**40))
            )

    async def close(self) -> None:
        """Close the connections to other brokers."""
        await self._peers.close()

    async def _wait(self) -> None:
        """Wait for events; several that come together are one batch."""
        try:
            async with asyncio.timeout(LOOK_S):
                await self._wanted.wait()
        except TimeoutError:
            return
        self._wanted.clear()
        await asyncio.sleep(GATHER_S)

    async def _write_some(self) -> str | None:
        """Write the oldest events; returns why that is not possible now."""
        metadata = self._services.metadata
        if AUDIT_TOPIC not in metadata.topics:
            made = await self._services.controller.auto_create([AUDIT_TOPIC])
            if made[AUDIT_TOPIC] is not ErrorCode.NONE:
                return f"{AUDIT_TOPIC} cannot be created: {made[AUDIT_TOPIC].name}"
        events = self._audit.trail.pending(BATCH_BYTES)
        place = self._place()
        if place is None:
            return f"no partition of {AUDIT_TOPIC} has a leader"
        tp, leader = place
        batch = _batch(events)
        if leader == self._services.config.broker_id:
            error = await self._append(tp, batch)
        else:
            error = await self._send(leader, tp, batch)
        if error is not ErrorCode.NONE:
            self._turn += 1
            return f"{tp.topic}-{tp.partition} at broker {leader}: {error.name}"
        self._audit.trail.mark_written(len(events))
        self.written += len(events)
        return None

    def _place(self) -> tuple[TopicPartition, int] | None:
        """A partition and its leader: one of this broker's, if there is any, and another one after each failure."""
        metadata, here = self._services.metadata, self._services.config.broker_id
        states = metadata.topics[AUDIT_TOPIC].partitions
        led = [(index, state.leader) for index, state in enumerate(states) if state.leader in metadata.brokers]
        own = [one for one in led if one[1] == here]
        if own and self._turn % 2 == 0:
            led = own
        if not led:
            return None
        index, leader = led[self._turn // 2 % len(led)]
        return TopicPartition(AUDIT_TOPIC, index), leader

    async def _append(self, tp: TopicPartition, batch: bytearray) -> ErrorCode:
        partition, refusal = self._services.replicas.leader(tp)
        if partition is None:
            return refusal
        info = partition.append(batch, acks=-1, origin=Origin.COORDINATOR)
        if info.error is not ErrorCode.NONE:
            return info.error
        committed: asyncio.Future[ErrorCode] = self._services.loop.create_future()
        partition.wait_for(info.last_offset, lambda error: None if committed.done() else committed.set_result(error))
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_MS / 1000):
                return await committed
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT

    async def _send(self, leader: int, tp: TopicPartition, batch: bytearray) -> ErrorCode:
        try:
            request = _produce(tp, bytes(batch))
            response = await self._peers.call(leader, request.API_KEY, PRODUCE_VERSION, request, 2 * WRITE_TIMEOUT_MS)
        except PeerUnavailable as problem:
            logger.debug("audit events for broker %d: %s", leader, problem)
            return ErrorCode.NETWORK_EXCEPTION
        return ErrorCode(response.responses[0].partition_responses[0].error_code)


def _batch(events: Sequence[bytes]) -> bytearray:
    """The events as one batch, each with its own time."""
    return bytearray(encode_batch([Record(i, json.loads(data)["time"], None, data) for i, data in enumerate(events)]))


def _produce(tp: TopicPartition, batch: bytes) -> Any:
    request, version = messages.ProduceRequest, PRODUCE_VERSION
    topic = request.TopicProduceData
    part = topic.PartitionProduceData(index=tp.partition, records=batch)
    return request(
        version=version, transactional_id=None, acks=-1, timeout_ms=WRITE_TIMEOUT_MS,
        topic_data=[topic(name=tp.topic, partition_data=[part])],
    )  # fmt: skip
