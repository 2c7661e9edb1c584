"""Absent brokers: known to the cluster, but without a registration at present.

Each registration leaves a record in the persistent znode that counts the broker's incarnations. If the registered
brokers cannot hold all replicas of a new topic, absent brokers get some, as Kafka 4 places replicas on fenced brokers.
The in-sync sets start with the registered brokers. A broker stops counting as absent when it holds no replica and its
last registration is a week old.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection

from brokers.metadata.image import MetadataImage
from brokers.metadata.loading import children_or_none, read_or_none
from brokers.model import BrokerId, BrokerInfo
from coordination.registration import incarnation_path
from coordination.store import Store
from coordination.tree import INCARNATIONS

log = logging.getLogger(__name__)

REMEMBERED_MS = 7 * 86_400_000
"""How long after its last registration a broker without a replica counts as absent."""


async def read_absent(store: Store, image: MetadataImage, living: Collection[int], now_ms: int) -> list[BrokerInfo]:
    """The absent brokers, by id; ``now_ms`` is wall time. Raises StoreError."""
    holding: set[int] | None = None
    found = []
    for name in await children_or_none(store, INCARNATIONS):
        if not name.isdigit() or int(name) in living:
            continue
        read = await read_or_none(store, incarnation_path(int(name)))
        if read is None or read[1] == 0:
            continue  # it never registered
        record = _record(read[0])
        registered_ms = record.get("timestamp")
        if not isinstance(registered_ms, int) or now_ms - registered_ms > REMEMBERED_MS:
            if holding is None:
                holding = {b for topic in image.topics.values() for state in topic.partitions for b in state.replicas}
            if int(name) not in holding:
                continue
        found.append(_broker(int(name), read[1], record))
    return sorted(found, key=lambda broker: broker.id)


def _record(data: bytes) -> dict[str, object]:
    try:
        record = json.loads(data) if data else {}
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _broker(broker_id: int, incarnation: int, record: dict[str, object]) -> BrokerInfo:
    rack, domain = record.get("rack"), record.get("failure_domain")
    return BrokerInfo(
        BrokerId(broker_id),
        -1,
        incarnation,
        (),
        rack if isinstance(rack, str) else None,
        failure_domain=domain if isinstance(domain, str) else None,
    )
