"""Producer ids: assigned from blocks that brokers allocate, one after another, in ``/latest_producer_id_block``.

This module has the arithmetic and the decisions; ``brokers.coordinators.transactions.coordinator`` does the
compare-and-set in ZooKeeper.
The znode is Kafka's: ``{"version":1,"broker":0,"block_start":"0","block_end":"999"}``. An additional ``stamp`` names
the attempt, so that after an unknown outcome a broker can tell by reading whether the block is its own.

Source: KIP-98; ProducerIdBlockZNode of Kafka 3.9.
"""

from __future__ import annotations

import json
from typing import NamedTuple

BLOCK_SIZE = 1_000
MAX_PRODUCER_ID = 2**63 - 1
PREFETCH_BELOW = 100
"""With fewer ids left than this the next block is allocated, so that no request waits for ZooKeeper."""


class BlockError(ValueError):
    """The znode's content is not a block."""


class Exhausted(Exception):
    """All 2^63 producer ids are used up."""


class Block(NamedTuple):
    """Ids ``first`` to ``last``, both inclusive."""

    first: int
    last: int


class StoredBlock(NamedTuple):
    """The znode's content: the last allocated block, its broker, and the stamp of its attempt."""

    block: Block
    broker_id: int
    stamp: str


def decode_block(data: bytes) -> StoredBlock:
    """Parse the znode; raises BlockError."""
    try:
        document = json.loads(data)
        block = Block(int(document["block_start"]), int(document["block_end"]))
        broker_id = int(document["broker"])
        version = int(document["version"])
        stamp = str(document.get("stamp", ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BlockError(f"not a producer id block: {data[:200]!r}") from error
    if version < 1 or block.first < 0 or block.last < block.first:
        raise BlockError(f"not a producer id block: {data[:200]!r}")
    return StoredBlock(block, broker_id, stamp)


def encode_block(block: Block, broker_id: int, stamp: str) -> bytes:
    """Kafka's JSON, with the stamp."""
    content = {
        "version": 1,
        "broker": broker_id,
        "block_start": str(block.first),
        "block_end": str(block.last),
        "stamp": stamp,
    }
    return json.dumps(content, separators=(",", ":")).encode()


def next_block(stored: StoredBlock | None, in_use: int = -1) -> Block:
    """The block after the stored one (the first, if none is stored), and above the id ``in_use``; raises Exhausted."""
    first = max(0 if stored is None else stored.block.last + 1, in_use + 1)
    if first > MAX_PRODUCER_ID - BLOCK_SIZE:
        raise Exhausted
    return Block(first, first + BLOCK_SIZE - 1)


class ProducerIds:
    """The ids that this broker may assign: a block in use and the next one. No I/O."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._next = 0

    @property
    def left(self) -> int:
        """The number of available ids."""
        if not self._blocks:
            return 0
        return sum(block.last - block.first + 1 for block in self._blocks) - (self._next - self._blocks[0].first)

    @property
    def wants_block(self) -> bool:
        """Whether another block should be allocated."""
        return self.left < PREFETCH_BELOW

    def add(self, block: Block) -> None:
        """Add an allocated block."""
        assert not self._blocks or block.first > self._blocks[-1].last, "producer id blocks only go up"
        if not self._blocks:
            self._next = block.first
        self._blocks.append(block)

    def take(self) -> int | None:
        """An unused id; None without a block."""
        if not self._blocks:
            return None
        taken = self._next
        if taken == self._blocks[0].last:
            self._blocks.pop(0)
            self._next = self._blocks[0].first if self._blocks else 0
        else:
            self._next = taken + 1
        return taken
