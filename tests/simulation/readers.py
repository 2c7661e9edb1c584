"""Consumers that do not simply ask the leader for one partition: by fetch sessions, or from a replica in their rack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fleetlog.wire.messages as m
from fleetlog._native.wire import FetchPart, encode_fetch_request
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import FETCH, FETCH_VERSION, OK, RETRIABLE, Consumer

if TYPE_CHECKING:
    from tests.simulation.world import World

LOST_SESSION = frozenset({
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
})  # fmt: skip
MAX_WAIT_MS = 200


@dataclass
class _Session:
    """One broker's session: its id (0: none yet), the next request's epoch, and what it was told of each partition."""

    id: int = 0
    epoch: int = 0
    named: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)


class SessionReader(Consumer):
    """Reads all partitions, in one fetch session with each leader (KIP-227); names only what has changed."""

    async def main(self, partitions: Sequence[TopicPartition], committed: bool) -> None:  # type: ignore[override]
        self.positions = dict.fromkeys(partitions, 0)
        self.committed = committed
        self.sessions: dict[int, _Session] = {}
        while not self.world.closing:
            leaders: dict[int, list[TopicPartition]] = {}
            for tp in partitions:
                leaders.setdefault(await self.leader(tp), []).append(tp)
            for broker in sorted({*leaders, *self.sessions}):
                await self.turn(broker, leaders.get(broker, []))
            if self.rng.random() < 0.02:
                self.committed = not self.committed
            await self.pause(*self.world.pace)

    async def turn(self, broker: int, led: list[TopicPartition]) -> None:
        """One fetch of a broker's session."""
        session = self.sessions.setdefault(broker, _Session())
        wanted = {tp: (self.positions[tp], self.topics[tp][1]) for tp in led}
        news = {tp: now for tp, now in wanted.items() if session.named.get(tp) != now}
        gone = [tp for tp in session.named if tp not in wanted]
        session.named = wanted
        if not wanted:
            del self.sessions[broker]  # its broker forgets it when it likes
            return
        serving = self.world.oracle.serving
        pledges = {tp: serving.asked(broker, tp, self.positions[tp], self.committed) for tp in led}
        answer = await self.send(broker, session, news, gone)
        if answer is None or answer.error_code in LOST_SESSION:
            del self.sessions[broker]
            return
        if answer.error_code != OK:
            self.world.oracle.violate(f"{self.name}: a fetch of a session: {ErrorCode(answer.error_code).name}")
        if session.id:
            self.world.oracle.checked["fetches of sessions"] += 1
        session.id, session.epoch = answer.session_id, session.epoch + 1
        if not session.id:
            del self.sessions[broker]
        names = {self.ids[tp.topic]: tp.topic for tp in led}
        told = {
            TopicPartition(names[topic.topic_id], part.partition_index): part
            for topic in answer.responses if topic.topic_id in names for part in topic.partitions
        }  # fmt: skip
        for tp in led:
            part = told.get(tp)
            if part is None:
                serving.answered(self.name, pledges[tp], self.positions[tp], [])
            elif part.error_code in RETRIABLE:
                await self.lost_leader(tp)
            else:
                self.positions[tp] = await self.took(tp, self.positions[tp], part, self.committed, pledges[tp])

    async def send(
        self, broker: int, session: _Session, news: dict[TopicPartition, tuple[int, int]], gone: list[TopicPartition]
    ) -> Any:
        parts = [
            FetchPart(None, self.ids[tp.topic], tp.partition, epoch, offset, -1, -1, 64 * 1024, -1)
            for tp, (offset, epoch) in news.items()
        ]
        body = encode_fetch_request(
            FETCH_VERSION, replica_id=-1, replica_epoch=-1, max_wait_ms=MAX_WAIT_MS, min_bytes=1, max_bytes=1 << 20,
            session_id=session.id, session_epoch=session.epoch, parts=parts,
            forgotten=[(self.ids[tp.topic], [tp.partition]) for tp in gone], isolation_level=int(self.committed),
        )  # fmt: skip
        raw = await self.exchange(broker, FETCH, FETCH_VERSION, body, 1.0 + MAX_WAIT_MS / 1000)
        return None if raw is None else m.decode_response(FETCH, FETCH_VERSION, raw)


class RackReader(Consumer):
    """Reads one partition from the replica in its rack that the leader names (KIP-392)."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.rack = self.rng.choice(("r0", "r1"))
        self.nearby = -1
        self.nearby_until = 0.0

    async def main(self, tp: TopicPartition, committed: bool) -> None:
        position = 0
        while not self.world.closing:
            position = await self.poll_nearby(tp, position, committed)
            await self.pause(*self.world.pace)

    async def poll_nearby(self, tp: TopicPartition, position: int, committed: bool) -> int:
        """Fetch once; whatever goes wrong with the replica nearby, the leader is asked next."""
        broker = await self.leader(tp)
        if self.nearby >= 0 and self.loop.time() < self.nearby_until:
            broker = self.nearby
        pledge = self.world.oracle.serving.asked(broker, tp, position, committed)
        part = await self.fetch(broker, tp, position, committed=committed, max_wait_ms=100, rack=self.rack)
        followed, self.nearby = self.nearby == broker, -1
        if part is None or part.error_code in RETRIABLE:
            if not followed or part is None:
                await self.lost_leader(tp)
            return position
        if part.preferred_read_replica >= 0:
            self.nearby, self.nearby_until = part.preferred_read_replica, self.loop.time() + self.rng.uniform(0.3, 3.0)
            return position
        after = await self.took(tp, position, part, committed, pledge)
        if followed:
            self.nearby = broker
            self.world.oracle.checked["reads of followers"] += after > position
        return after
