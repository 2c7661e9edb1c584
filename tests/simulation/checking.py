"""A topic that asks for payloads of schemas: one writes schemas, others use those that exist, will, or never do.

Schemas with even ids are JSON Schemas, for which brokers ask another process (``judging``), the others Avro's. In some
runs what is not taken becomes a dead letter.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from fleetlog._native.batch import Record, encode_batch
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.clients import OK, RETRIABLE, Producer, produce_body
from tests.simulation.judging import is_json_text

if TYPE_CHECKING:
    from tests.simulation.world import World

CHECKED, SCHEMAS = TopicPartition("checked", 0), TopicPartition("_schemas", 0)
LETTERS = TopicPartition("dlq.checked", 0)
LETTERS_SETTINGS = {"errors.deadletterqueue.group.enable": "true", "min.insync.replicas": "2"}
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

    def __init__(self, world: World, name: str, registrar: Registrar, *, buries: bool) -> None:
        super().__init__(world, name)
        self._registrar = registrar
        self._buries = buries
        self.taken: dict[str, bool] = {}
        """What was answered as taken where dead letters are written, and whether it certainly is of its schema."""

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
        began_s = self.loop.time()
        for _ in range(self.rng.choice((1, 5, 40))):
            sent_s = self.loop.time()
            answer = await self.produce(CHECKED, produce_body(None, -1, 800, CHECKED, data))
            error = None if answer is None else answer.error_code
            if error in (OK, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                assert answer is not None
                oracle.checked["schemas taken"] += 1
                if self._buries:
                    since_s = registrar.registered.get(number, began_s)
                    self.taken[value] = fits and kind < 0.9 and began_s - since_s > SURE_S
                    return True
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


class Checking:
    """One that registers and two that write; ``topics`` are what they need, by partition, with settings."""

    def __init__(self, world: World) -> None:
        buries = random.Random(f"{world.seed}/letters").random() < 0.5
        self.registrar = Registrar(world, "schemas")
        self.writers = [CheckedWriter(world, name, self.registrar, buries=buries) for name in ("ca", "cb")]
        self.topics = {SCHEMAS: SCHEMAS_SETTINGS, CHECKED: SETTINGS}
        if buries:
            world.oracle.letters_of[LETTERS] = CHECKED
            buried = SETTINGS | {"fleetlog.schema.invalid": f"dlq:{LETTERS.topic}"}
            self.topics = {SCHEMAS: SCHEMAS_SETTINGS, LETTERS: LETTERS_SETTINGS, CHECKED: buried}


def check(world: World, clients: Checking, taken: list[str], letters: list[str]) -> None:
    """What readers see at the end."""
    registrar, seen, buried = clients.registrar, set(taken), set(letters)
    for writer in clients.writers:
        for value, sure in writer.taken.items():
            world.oracle.checked["letters"] += value in buried
            if value not in seen and value not in buried:
                world.oracle.violate(f"{value!r} was taken, and is neither there nor among the dead letters")
            if sure and value not in seen:
                world.oracle.violate(f"{value!r} is of its schema, and is among the dead letters alone")
    for value in taken:
        framed = value[:4] == "\0\0\0\0" and ord(value[4]) in registrar.begun
        if not framed or not (ord(value[5]) == 2 * len(value[6:]) if ord(value[4]) % 2 else is_json_text(value[5:])):
            world.oracle.violate(f"{value!r} is in a topic that takes payloads of its schemas only")
