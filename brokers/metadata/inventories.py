"""What a broker has on its disks, as it tells it in ZooKeeper while the tree is older than that. Pure.

All inventories together say what a tree must know again.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fleetlog.brokers.metadata.marks import ClusterMarks
from fleetlog.brokers.metadata.znodes import BadZnode, topic_id_from
from fleetlog.brokers.model import id_text

PART_BYTES = 256 * 1024
INFLATED_MAX_BYTES = 256 * 1024 * 1024


class LogSummary(NamedTuple):
    """One log: whose it is, the leader epoch of its last record (-1 if unknown), and its offsets."""

    topic: str
    partition: int
    topic_id: uuid.UUID
    last_epoch: int
    start: int
    end: int
    compacted: bool = False
    deduplicated: bool = False

    @property
    def reach(self) -> tuple[int, int]:
        """To compare replicas by: the furthest one has every committed record."""
        return self.last_epoch, self.end


class Inventory(NamedTuple):
    """What one broker has. ``producer_id`` is the highest one in its logs; -1 if there is none.

    ``offline`` are log directories that cannot be read, ``nameless`` logs without a topic id.
    """

    broker_id: int
    marks: ClusterMarks
    logs: Sequence[LogSummary]
    offline: Sequence[str] = ()
    nameless: Sequence[str] = ()
    producer_id: int = -1


def encode_inventory(inventory: Inventory) -> list[bytes]:
    """The parts, each small enough for a znode."""
    document = {
        "version": 1,
        "broker": inventory.broker_id,
        "marks": inventory.marks._asdict(),
        "offline": list(inventory.offline),
        "nameless": list(inventory.nameless),
        "producer_id": inventory.producer_id,
        "logs": [
            [log.topic, log.partition, id_text(log.topic_id), *log.reach, log.start, log.compacted, log.deduplicated]
            for log in inventory.logs
        ],
    }
    data = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1)
    pieces = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
    return [b"%d/%d " % (number, len(pieces)) + piece for number, piece in enumerate(pieces)]


def decode_inventory(path: str, parts: Mapping[int, bytes]) -> Inventory:
    """Read it from its parts by number; raises BadZnode."""
    try:
        count = int(parts[0].split(b" ", 1)[0].split(b"/")[1])
        inflating = zlib.decompressobj()
        data = inflating.decompress(b"".join(parts[n].split(b" ", 1)[1] for n in range(count)), INFLATED_MAX_BYTES)
        document: dict[str, Any] = json.loads(data)
        marks = {name: int(value) for name, value in document["marks"].items() if name in ClusterMarks._fields}
        return Inventory(
            int(document["broker"]),
            ClusterMarks(**marks),
            [
                LogSummary(str(topic), int(partition), topic_id_from(topic_id), int(epoch), int(start), int(end),
                           bool(compacted), bool(deduplicated))
                for topic, partition, topic_id, epoch, end, start, compacted, deduplicated in document["logs"]
            ],
            [str(text) for text in document["offline"]],
            [str(text) for text in document["nameless"]],
            int(document["producer_id"]),
        )  # fmt: skip
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, zlib.error) as problem:
        raise BadZnode(path, f"not the inventory of a broker ({problem!r})") from problem
