"""Absent brokers: known to the cluster, but without a registration at present.

Each registration leaves a record in the persistent znode that counts the broker's incarnations. If the registered
brokers cannot hold all replicas of a new topic, absent brokers get some, as Kafka 4 places replicas on fenced brokers.
The in-sync sets start with the registered brokers. A broker stops counting as absent when it holds no replica and its
last registration is a week old.
"""

from __future__ import annotations

import json
import logging

from fleetlog.brokers.metadata.image import MetadataImage
from fleetlog.brokers.metadata.loading import children_or_none, read_many
from fleetlog.brokers.model import BrokerId, BrokerInfo
from fleetlog.coordination.registration import incarnation_path
from fleetlog.coordination.store import Store
from fleetlog.coordination.tree import INCARNATIONS

log = logging.getLogger(__name__)

REMEMBERED_MS = 7 * 86_400_000
"""How long after its last registration a broker without a replica counts as absent."""


async def read_known(store: Store, image: MetadataImage, now_ms: int) -> list[BrokerInfo]:
    """The known brokers, by id: those without a registration are absent. ``now_ms`` is wall time; raises StoreError.

    Which ones are registered may change while this reads, and afterwards: compare when you use them.
    """
    holding: set[int] | None = None
    known = []
    ids = sorted(int(name) for name in await children_or_none(store, INCARNATIONS) if name.isdigit())
    for broker_id, found in zip(ids, await read_many(store, [incarnation_path(b) for b in ids]), strict=True):
        if found is None or found[1].version == 0:
            continue  # it never registered
        record = _record(found[0])
        registered_ms = record.get("timestamp")
        if not isinstance(registered_ms, int) or now_ms - registered_ms > REMEMBERED_MS:
            if holding is None:
                holding = {b for topic in image.topics.values() for state in topic.partitions for b in state.replicas}
            if broker_id not in holding:
                continue
        known.append(_broker(broker_id, found[1].version, record))
    return known


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
