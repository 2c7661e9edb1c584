"""A topic that asks for payloads of schemas: one writes schemas, others use those that exist, will, or never do.

Schemas with even ids are JSON Schemas, for which brokers ask another process (``judging``), the others Avro's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fleetlog._native.batch import Record, encode_batch
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import OK, RETRIABLE, Producer, produce_body
from tests.simulation.judging import is_json_text

if TYPE_CHECKING:
    from tests.simulation.world import World

CHECKED, SCHEMAS = TopicPartition("checked", 0), TopicPartition("_schemas", 0)
SETTINGS = {"fleetlog.schema.validation": "full", "min.insync.replicas": "2", "segment.bytes": "1500"}
SCHEMAS_SETTINGS = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
NEVER = 120
"""Ids from here on are of no schema; below 128, so that values stay text."""
SURE_S = 1.0
"""A schema that was registered so long before a record was sent is no reason to refuse it for good."""


class Registrar(Producer):
    """Registers one schema after the other."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.begun: set[int] = set()
        self.registered: dict[int, float] = {}
        """When each was acknowledged."""

    async def register(self) -> None:
        """Until the run closes."""
        for number in range(1, NEVER):
            if self.world.closing:
                return
            key = json.dumps({"keytype": "SCHEMA", "subject": "checked-value", "version": number, "magic": 1})
            kind = {} if number % 2 else {"schemaType": "JSON"}
            text = '"string"' if number % 2 else '{"type": "string"}'
            value = json.dumps({"id": number, "schema": text, "deleted": False, **kind})
            data = encode_batch([Record(-1, self.world.wall_ms(), key.encode(), value.encode(), ())])
            self.begun.add(number)
            while not self.world.closing:
                answer = await self.produce(SCHEMAS, produce_body(None, -1, 800, SCHEMAS, data))
                if answer is not None and answer.error_code == OK:
                    self.registered[number] = self.loop.time()
                    break
                await self.lost_leader(SCHEMAS)
            await self.pause(0.02, 0.3)


class CheckedWriter(Producer):
    """Sends batches of one record, with ids of all kinds, and looks at what it is told."""

    def __init__(self, world: World, name: str, registrar: Registrar) -> None:
        super().__init__(world, name)
        self._registrar = registrar

    async def write(self) -> None:
        """Until the run closes."""
        producer_id, sequence, count = await self.new_producer_id(), 0, 0
        while not self.world.closing:
            count += 1
            newest = len(self._registrar.registered)
            number = self.rng.choice((NEVER, newest + 1, newest, newest, self.rng.randint(1, newest + 1)))
            if await self._send(number, f"{self.name}-{count}", producer_id, sequence):
                sequence += 1
            else:
                producer_id, sequence = await self.new_producer_id(), 0
            await self.pause(0.01, 0.1)

    async def _send(self, number: int, name: str, producer_id: int, sequence: int) -> bool:
        """Whether it was taken."""
        oracle, registrar = self.world.oracle, self._registrar
        kind = self.rng.random()
        fits = kind < 0.8
        size = chr(2 * len(name) if fits else 2 * len(name) + 2)  # as Avro writes a string: one of more letters is none
        payload = f"{size}{name}" if number % 2 else f'"{name}"' if fits else f'"{name}'
        value = f"\0\0\0\0{chr(number)}{payload}" if kind < 0.9 else name
        row = Record(-1, self.world.wall_ms(), None, value.encode(), ())
        data = encode_batch([row], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        oracle.sending(CHECKED, [value])
        for _ in range(self.rng.choice((1, 5, 40))):
            sent_s = self.loop.time()
            answer = await self.produce(CHECKED, produce_body(None, -1, 800, CHECKED, data))
            error = None if answer is None else answer.error_code
            if error in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                assert answer is not None
                oracle.checked["schemas taken"] += 1
                oracle.acknowledged(CHECKED, [value], answer.base_offset)
                return True
            if error == ErrorCode.INVALID_RECORD:
                oracle.checked["schemas refused"] += 1
                since_s = registrar.registered.get(number)
                if fits and since_s is not None and sent_s - since_s > SURE_S:
                    oracle.violate(
                        f"{name} is refused, but schema {number} was registered {sent_s - since_s:.1f} s before"
                    )
                return False
            if error is not None and error not in RETRIABLE:
                oracle.violate(f"{self.name} gets {ErrorCode(error).name} for {name}")
            await self.lost_leader(CHECKED)
        return False


def clients(world: World) -> tuple[Registrar, list[CheckedWriter]]:
    """One that registers and two that write."""
    registrar = Registrar(world, "schemas")
    return registrar, [CheckedWriter(world, name, registrar) for name in ("ca", "cb")]


def check(world: World, registrar: Registrar, shown: list[str]) -> None:
    """What readers see at the end."""
    for value in shown:
        framed = value[:4] == "\0\0\0\0" and ord(value[4]) in registrar.begun
        if not framed or not (ord(value[5]) == 2 * len(value[6:]) if ord(value[4]) % 2 else is_json_text(value[5:])):
            world.oracle.violate(f"{value!r} is in a topic that takes payloads of its schemas only")
