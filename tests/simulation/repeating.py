"""A topic that drops duplicates: writers that give up batches, restart and repeat, two of them for the same source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetlog._native.batch import Record, encode_batch
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import OK, RETRIABLE, Consumer, Producer, produce_body
from tests.simulation.eraser import Eraser

if TYPE_CHECKING:
    from tests.simulation.world import World

ONCE = "once"
TP = TopicPartition(ONCE, 0)
SETTINGS = {
    "fleetlog.dedup": "source", "fleetlog.dedup.window.ms": "10800000", "min.insync.replicas": "2",
    "segment.bytes": "1500",
}  # fmt: skip
"""The window is longer than the clocks of two leaders are ever apart: behind it a repeat is refused, rightly."""
STEP = 700
"""Between two positions of a source, so that some records reach the next page."""
Place = tuple[int, int]
"""Number of a position in its source, and ordinal."""


class RepeatingWriter(Producer):
    """Writes one source after its checkpoint, which moves only sometimes, and never over a gap.

    Writers whose names begin with the same letters write the same records of the same source.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.source = name[:-1]
        self.checkpoint = 0
        self.next = 0
        self.missing: set[int] = set()
        """What is below ``next`` and not acknowledged."""

    async def write(self) -> None:
        """Until the run closes; then everything that was ever begun once more, until it is acknowledged."""
        furthest = 0
        while not self.world.closing:
            await self._session(self.rng.randint(1, 12))
            furthest = max(furthest, self.next)
            self.world.note(f"{self.name} restarts from {self.checkpoint}, it was at {self.next}")
            self.next = self.checkpoint
            self.missing.clear()
        self.next = self.checkpoint
        producer_id, sequence = await self.new_producer_id(), 0
        while self.next < furthest:
            places = self._batch()
            await self._send(places, producer_id, sequence, attempts=1_000_000)
            sequence += len(places)

    async def _session(self, batches: int) -> None:
        """What one process writes. It gives a batch up after some attempts, and goes on under another producer id."""
        producer_id, sequence = await self.new_producer_id(), 0
        for _ in range(batches):
            if self.world.closing:
                return
            places = self._batch()
            if await self._send(places, producer_id, sequence, attempts=self.rng.choice((1, 2, 20))):
                sequence += len(places)
            else:
                self.missing.update(range(self.next - len(places), self.next))
                self.world.oracle.checked["batches given up"] += 1
                producer_id, sequence = await self.new_producer_id(), 0
            if self.rng.random() < 0.2:
                self.checkpoint = min(self.missing, default=self.next)
            await self.pause(0.01, 0.15)

    def _batch(self) -> list[Place]:
        """The next records: one number of three has two outputs, which may go into two batches."""
        begin, self.next = self.next, self.next + self.rng.randint(1, 5)
        return [_place(index) for index in range(begin, self.next)]

    async def _send(self, places: list[Place], producer_id: int, sequence: int, attempts: int) -> bool:
        """Whether it was acknowledged within so many attempts."""
        oracle = self.world.oracle
        values = [f"{self.source}-{number}-{ordinal}" for number, ordinal in places]
        rows = [
            Record(-1, self.world.wall_ms(), None, value.encode(), (("fleetlog.source", self._position(place)),))
            for value, place in zip(values, places, strict=True)
        ]
        data = encode_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        oracle.sending(TP, values)
        body = produce_body(None, -1, 800, TP, data)
        for _ in range(attempts):
            answer = await self.produce(TP, body)
            if answer is not None and answer.error_code in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                oracle.checked["repeats"] += sum(value in oracle.acked for value in values)
                oracle.acknowledged(TP, values, answer.base_offset)
                return True
            if answer is not None and answer.error_code not in RETRIABLE:
                oracle.violate(f"{self.name} gets {ErrorCode(answer.error_code).name} for {values[0]}")
            await self.lost_leader(TP)
        return False

    def _position(self, place: Place) -> bytes:
        number, ordinal = place
        return b"%s:%d:%d" % (self.source.encode(), number * STEP, ordinal)


class Trimmer(Eraser, Consumer):
    """Deletes the first records, after it has read where they stood: replicas that were away fall off the log."""

    async def trim(self) -> None:
        """Until the run closes."""
        position = 0
        while not self.world.closing:
            position = await self.poll(TP, position, True)
            await self.pause(0.05, 0.3)
            await self.erase(TP, position, most=10_000)


def _place(index: int) -> Place:
    """Of the source's records: the numbers from 0 on, each third with the ordinals 0 and 1."""
    three, rest = divmod(index, 4)
    return 3 * three + max(0, rest - 1), int(rest == 1)


def writers(world: World) -> list[RepeatingWriter]:
    """Two of one source at the same time, and one of another."""
    return [RepeatingWriter(world, name) for name in ("ua", "ub", "va")]
