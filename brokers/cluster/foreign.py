"""Tells brokers of another kind in our tree: Apache Kafka's, with ZooKeeper or on their way to KRaft. Pure.

``coordination.tree`` refuses a tree that was theirs before it was ours. This is for those that come later: a Kafka
broker takes any tree with a cluster id for its own. Two kinds of brokers and controllers that manage the same topics
would destroy each other's logs, so while there are any, no broker of ours starts and no controller of ours acts.

Source: kafka/zk/ZkData.scala of Kafka 3.9 (BrokerIdZNode, ControllerZNode); KIP-866 for the migration.
"""

from __future__ import annotations

import json
from typing import Any

from brokers.cluster import znodes

REMEDY = (
    "brokers of two kinds on one ZooKeeper tree destroy each other's logs; stop those of Apache Kafka, or give each"
    " kind a path of its own (zookeeper.connect=host:port/path)"
)


def registration(path: str, data: bytes) -> str | None:
    """What is wrong with a broker's registration that a broker of ours didn't write, or None."""
    document = _document(data)
    if document is None or "incarnation" in document:
        return None  # what can't be read at all is another error
    return f"{path} was not written by fleetlog: {REMEDY}"


def controller(data: bytes) -> str | None:
    """What is wrong with a controller's znode that says it belongs to a KRaft controller, or None."""
    document = _document(data)
    epoch = document.get("kraftControllerEpoch", -1) if document is not None else -1
    if isinstance(epoch, int) and epoch < 0:
        return None
    return f"{znodes.CONTROLLER} belongs to a KRaft controller of Apache Kafka (epoch {epoch}): {REMEDY}"


def _document(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
