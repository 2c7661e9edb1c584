"""Random histories of producers against a crashing broker: every transaction is complete or absent.

The log itself is the witness: batches and markers are read from the partitions' bytes, not asked of the broker.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from fleetlog._native.batch import decode_records, scan
from fleetlog.wire.errors import ErrorCode as E
from tests.support.coordinator_broker import Broker, play
from tests.support.one_znode import OneZnode

GROUP = "group"


class Producer:
    """A client of one protocol version that remembers its answers."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.identity: tuple[int, int] | None = None
        self.sequences = [0, 0]
        self.written: list[tuple[int, int, int, int]] = []  # partition, producer id, epoch, sequence
        self.offset: int | None = None

    def begin(self, identity: tuple[int, int], *, fresh: bool) -> None:
        if fresh or self.version == 2:
            self.sequences = [0, 0]
        self.identity = identity
        self.written = []
        self.offset = None


class Walk:
    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.directory = directory
        self.znode = OneZnode()
        self.epoch = 0
        self.broker: Any = None
        self.producers = [Producer("x", 2), Producer("y", 0), Producer("x", 0)]
        self.committed: list[list[tuple[int, int, int, int]]] = []
        self.aborted: list[list[tuple[int, int, int, int]]] = []
        self.unknown: list[list[tuple[int, int, int, int]]] = []
        self.offsets: list[int] = []
        self.next_offset = 0

    async def start(self) -> None:
        self.broker = await Broker(self.directory, self.znode, epoch=self.epoch).ready()

    async def crash(self) -> None:
        await self.broker.crash()
        self.epoch += 1
        await self.start()

    async def step(self) -> None:
        producer = self.rng.choice(self.producers)
        what = self.rng.choices(["init", "write", "offset", "end", "crash"], [1, 6, 2, 4, 1])[0]
        if what == "crash":
            await self.crash()
        elif producer.identity is None or what == "init":
            await self.init(producer)
        elif what == "write":
            await self.write(producer)
        elif what == "offset":
            await self.offset(producer)
        else:
            await self.end(producer)

    async def init(self, producer: Producer) -> None:
        if producer.written:
            self.unknown.append(producer.written)  # the next coordinator decides
        while (answer := await self.broker.init(producer.name)).error_code == E.CONCURRENT_TRANSACTIONS:
            await asyncio.sleep(0.005)
        assert answer.error_code == 0
        producer.begin((answer.producer_id, answer.producer_epoch), fresh=True)

    async def write(self, producer: Producer) -> None:
        assert producer.identity is not None
        index = self.rng.randrange(2)
        if producer.version == 0:
            error = await self.broker.add(*producer.identity, index, name=producer.name)
            if error:
                self.gave_up(producer)
                return
        sequence = producer.sequences[index]
        version = 12 if producer.version == 2 else 9
        error = await self.broker.produce(*producer.identity, sequence, version, name=producer.name, index=index)
        if error:
            self.gave_up(producer)
            return
        producer.sequences[index] += 1
        producer.written.append((index, *producer.identity, sequence))

    async def offset(self, producer: Producer) -> None:
        assert producer.identity is not None
        if producer.version == 0 and await self.broker.add_offsets(*producer.identity, GROUP, name=producer.name):
            self.gave_up(producer)
            return
        self.next_offset += 1
        version = 5 if producer.version == 2 else 3
        error = await self.broker.commit_offsets(
            *producer.identity, GROUP, self.next_offset, version, name=producer.name
        )
        if error:
            self.gave_up(producer)
        else:
            producer.offset = self.next_offset

    async def end(self, producer: Producer) -> None:
        assert producer.identity is not None
        commit = self.rng.random() < 0.6
        version = 5 if producer.version == 2 else 3
        asked = asyncio.ensure_future(self.broker.end(*producer.identity, commit, version, name=producer.name))
        if self.rng.random() < 0.3:
            for _ in range(self.rng.randrange(6)):
                await asyncio.sleep(0)
            lost = not asked.done()
            await self.crash()
            if lost:
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                asked = asyncio.ensure_future(self.broker.end(*producer.identity, commit, version, name=producer.name))
        answer = await asked
        if answer.error_code:
            self.gave_up(producer)
            return
        if producer.written:
            (self.committed if commit else self.aborted).append(producer.written)
        if commit and producer.offset is not None:
            self.offsets.append(producer.offset)
        identity = (answer.producer_id, answer.producer_epoch) if producer.version == 2 else producer.identity
        producer.begin(identity, fresh=False)

    def gave_up(self, producer: Producer) -> None:
        if producer.written:
            self.unknown.append(producer.written)
        producer.identity = None
        producer.written = []

    async def finish(self) -> None:
        """End what is open, wait for all markers, and look at the bytes."""
        await self.crash()
        for producer in self.producers[:2]:
            await self.init(producer)
        while any(low != high for low, high in (self.broker.visible(0), self.broker.visible(1))):
            await asyncio.sleep(0.002)
        visible = [self.read(index) for index in range(2)]
        flat = [entry for found in visible for entry in found]
        assert len(flat) == len(set(flat)), "a batch is there twice"
        seen = set(flat)
        for written in self.committed:
            assert seen.issuperset(written), "a committed transaction lost records"
        for written in self.aborted:
            assert seen.isdisjoint(written), "an aborted transaction is visible"
        for written in self.unknown:
            assert seen.issuperset(written) or seen.isdisjoint(written), "half a transaction"
        if self.offsets:
            assert self.broker.offset(GROUP) is not None
        await self.broker.stop()

    def read(self, index: int) -> list[tuple[int, int, int, int]]:
        log = self.broker.partition("t", index).log
        data = b"".join(p.read() for p in log.reader.read(0, 1 << 24, end_offset=log.log_end_offset).slices)
        opened: dict[int, list[tuple[int, int, int, int]]] = {}
        visible = []
        for position, header in scan(data):
            if not header.is_control:
                entry = (index, header.producer_id, header.producer_epoch, header.base_sequence)
                opened.setdefault(header.producer_id, []).append(entry)
                continue
            (record,) = decode_records(data[position + 61 : position + header.size], header)
            ended = opened.pop(header.producer_id, [])
            if record.key is not None and record.key[3] == 1:
                visible += ended
        assert not any(opened.values()), "a transaction hangs"
        return visible


@pytest.mark.parametrize("seed", range(12))
def test_whole_transactions_only(tmp_path: Path, seed: int) -> None:
    async def scenario() -> None:
        walk = Walk(tmp_path, seed)
        await walk.start()
        for _ in range(70):
            await walk.step()
        assert walk.committed, "a walk without a commit shows nothing"
        await walk.finish()

    play(scenario)
