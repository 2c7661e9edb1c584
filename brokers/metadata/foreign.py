"""Detects foreign brokers in fleetlog's tree: Apache Kafka's, with ZooKeeper or in a migration to KRaft. Pure.

``coordination.tree`` rejects a tree that Kafka used first. This module detects Kafka brokers that come later, because a
Kafka broker accepts any tree with a cluster id. Two kinds of brokers that manage the same topics would destroy each
other's logs, so while there are foreign ones, no fleetlog broker starts and no fleetlog controller acts.

Source: kafka/zk/ZkData.scala of Kafka 3.9 (BrokerIdZNode, ControllerZNode); KIP-866 for the migration.
"""

from __future__ import annotations

import json
from typing import Any

from fleetlog.brokers.metadata import znodes

REMEDY = (
    "brokers of two kinds on one ZooKeeper tree destroy each other's logs; stop those of Apache Kafka, or give each"
    " kind a path of its own (zookeeper.connect=host:port/path)"
)


def registration(path: str, data: bytes) -> str | None:
    """The error of a broker registration that fleetlog did not write, or None."""
    document = _document(data)
    if document is None or "incarnation" in document:
        return None  # an unreadable document is another error
    return f"{path} was not written by fleetlog: {REMEDY}"


def controller(data: bytes) -> str | None:
    """The error of a controller znode that belongs to a KRaft controller, or None."""
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
