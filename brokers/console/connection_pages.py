"""Connections: clients by broker, their software and bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from fleetlog.brokers.cli.client import explain, raise_for_code
from fleetlog.brokers.console.asking import Answer, Asking
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

PER_BROKER: Final = 500
SHOWN: Final = 300
PATIENCE_S: Final = 4.0
ORDERS: Final = ("bytes", "age", "idle")
_OF_BROKERS: Final = re.compile("(?:broker|replica|audit|lag)-([0-9]{1,10})")
"""The client ids of brokers, which send no software (``brokers.node``)."""


def connections_page(asking: Asking) -> Answer:
    """The connections of all brokers that answer, those that carried most first; and how many each software has."""
    order, wanted = asking.choice("order", ORDERS), asking.text("contains").lower()
    client = asking.client
    brokers = sorted(row["broker_id"] for row in client.describe_cluster()["brokers"])
    request = messages.DescribeConnectionsRequest(version=0, limit=PER_BROKER)
    rows: list[dict[str, Any]] = []
    totals: dict[int, int] = {}
    troubles = []
    for broker_id, answer in client.ask_each(dict.fromkeys(brokers, request), PATIENCE_S).items():
        if answer is None:
            troubles.append({"broker": broker_id, "trouble": "it does not answer, or is of an older release"})
        elif answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise_for_code("connections", answer.error_code)
        elif answer.error_code:
            troubles.append({"broker": broker_id, "trouble": explain(answer.error_code)})
        else:
            totals[broker_id] = answer.total
            rows += [_row(broker_id, one, brokers) for one in answer.connections]
    matching = [row for row in rows if not wanted or any(wanted in text for text in _texts(row))]
    matching.sort(key=lambda row: (_rank(row, order), row["broker"], row["id"]))
    return {
        "connections": matching[:SHOWN],
        "matching": len(matching),
        "total": sum(totals.values()),
        "described": len(rows),
        "software": _by_software(matching),
        "order": order,
        "orders": ORDERS,
        "troubles": troubles,
    }


def _row(broker_id: int, one: Any, brokers: list[int]) -> dict[str, Any]:
    software, version = one.software_name, one.software_version
    own = _OF_BROKERS.fullmatch(one.client_id) if software == "unknown" else None
    if own is not None and int(own[1]) in brokers:
        software, version = f"broker {own[1]}", ""
    return {
        "broker": broker_id, "id": one.id, "listener": one.listener, "host": one.host, "principal": one.principal,
        "mechanism": one.mechanism, "client_id": one.client_id, "software": software,
        "version": version, "age_ms": one.age_ms, "idle_ms": one.idle_ms, "bytes_in": one.bytes_in,
        "bytes_out": one.bytes_out, "round_trip_us": one.round_trip_micros, "unsent": one.unsent_bytes,
    }  # fmt: skip


def _rank(row: dict[str, Any], order: str) -> int:
    if order == "bytes":
        return -int(max(row["bytes_in"], 0) + max(row["bytes_out"], 0))
    return int(row[f"{order}_ms"])


def _texts(row: dict[str, Any]) -> Iterator[str]:
    for name in ("listener", "host", "principal", "client_id", "software", "version"):
        yield str(row[name]).lower()


def _by_software(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Connections and bytes of each client software and version, the most connections first."""
    by_software: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        name, version = row["software"], row["version"]
        one = by_software.setdefault(
            (name, version), {"software": name, "version": version, "connections": 0, "bytes_in": 0, "bytes_out": 0}
        )
        one["connections"] += 1
        one["bytes_in"] += max(row["bytes_in"], 0)
        one["bytes_out"] += max(row["bytes_out"], 0)
    return sorted(by_software.values(), key=lambda one: (-one["connections"], one["software"], one["version"]))
