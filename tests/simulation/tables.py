"""A compacted topic: a client that writes updates and deletions of few keys, and what its replicas must hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetlog._native.batch import Record, encode_batch, scan
from fleetlog.brokers.log.validation import batch_records
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import INFLATE_LIMIT, OK, RETRIABLE, Producer, produce_body

if TYPE_CHECKING:
    from tests.simulation.world import World

TABLE = "table"
TP = TopicPartition(TABLE, 0)
KEYS = 6
DAY_MS = 86_400_000
"""More than the hours by which a broker's clock may jump: deletions must stay for the whole run."""


class TableWriter(Producer):
    """Sends one batch after the other, each until it is acknowledged: what the table holds then is known."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.keeps_deletions = self.rng.random() < 0.5
        self.last: dict[bytes, bytes | None] = {}
        """The last acknowledged value of each key, None for a deletion."""

    @property
    def settings(self) -> dict[str, str]:
        """Of the topic."""
        retention_ms = DAY_MS if self.keeps_deletions else 300
        return {
            "cleanup.policy": "compact",
            "segment.bytes": "600",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": str(retention_ms),
            "min.insync.replicas": "2",
        }

    async def write(self) -> None:
        """Until the run closes."""
        producer_id, sequence, number = await self.new_producer_id(), 0, 0
        while not self.world.closing:
            rows = []
            for _ in range(self.rng.randint(1, 4)):
                number += 1
                value = None if self.rng.random() < 0.25 else b"%d" % number
                rows.append(Record(-1, self.world.wall_ms(), b"key-%d" % self.rng.randrange(KEYS), value, ()))
            data = encode_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            sequence += len(rows)
            await self._until_acknowledged(data)
            self.last.update({row.key or b"": row.value for row in rows})
            await self.pause(0.01, 0.08)

    async def _until_acknowledged(self, data: bytes) -> None:
        body = produce_body(None, -1, 800, TP, data)
        while True:
            answer = await self.produce(TP, body)
            if answer is not None and answer.error_code in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                return
            if answer is not None and answer.error_code not in RETRIABLE:
                self.world.oracle.violate(f"{self.name} gets {ErrorCode(answer.error_code).name}")
            await self.lost_leader(TP)

    def _reappears(self, key: bytes | None, value: bytes | None) -> bool:
        """Whether this value of a key that is not among the wanted ones is wrong."""
        return value is not None and (self.keeps_deletions or (key or b"") not in self.last)

    def check(self, replicas: list[Any]) -> None:
        """Each replica has the last value of each key, and the deletions that it must still show.

        Without deletions that stay, a replica may have an older value of a deleted key: it was away, and the deletion
        was removed before it came back.
        """
        oracle = self.world.oracle
        for partition in replicas:
            records = records_of(partition.log)
            found = {record.key: record.value for record in records}
            wanted = {key: value for key, value in self.last.items() if value is not None or self.keeps_deletions}
            mine = {key: value for key, value in found.items() if key in wanted or self._reappears(key, value)}
            if mine != wanted:
                oracle.violate(f"a replica of {TP} has {mine}, acknowledged is {wanted}")
            oracle.checked["tables"] += 1
            cleaned = partition.log.log_end_offset - len(records)
            oracle.checked["records compacted"] += max(0, cleaned)


def records_of(log: Any) -> list[Record]:
    """All records of a log without transactions, in order."""
    offset, found = log.log_start_offset, []
    while offset < log.log_end_offset:
        result = log.reader.read(offset, 1 << 20, end_offset=log.log_end_offset)
        data = b"".join(part.read() for part in result.slices)
        offset = result.next_offset
        result.release()
        for at, header in scan(data):
            if header.record_count and not header.is_control:
                found += batch_records(data, at, header, INFLATE_LIMIT)
    return found
