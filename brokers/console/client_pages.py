"""Who uses a topic: groups, connections that read it, Spark's sinks and the producers that it remembers."""

from __future__ import annotations

import time
from typing import Any, Final

from kafka import errors as kafka_errors

from fleetlog.brokers.cli.client import PartitionsOf, known_partitions, raise_for_code
from fleetlog.brokers.cli.group_lags import lag_of_groups
from fleetlog.brokers.cli.output import CliError, iso
from fleetlog.brokers.console.asking import Answer, Asking
from fleetlog.brokers.console.commands import listed
from fleetlog.brokers.console.pages import CONNECTIONS_PER_BROKER, PATIENCE_S, section
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

SHOWN_MAX: Final = 200
"""Producers, and readers, that a page shows."""
GROUPS_MAX: Final = 200
"""Groups whose members are looked for among the readers."""
SINK_PRODUCERS_MAX: Final = 1_000
"""Producers that sinks are asked about, the latest ones."""
SPARK: Final = ("fleetlog-spark", "spark-kafka-source", "spark-kafka-relation")
"""Parts of the client ids of Spark's queries: fleetlog's data source, and Kafka's."""


def clients_page(asking: Asking) -> Answer:
    """Groups that consume a topic, the one that is behind by the longest time first; the clients that read it now;
    sinks; and the producers that its partitions remember, the latest first."""
    known_partitions(asking.client, [PartitionsOf(asking.name, None)])
    lags, unknown = lag_of_groups(asking.client)
    now_s = time.time()
    consumers = []
    for group in lags:
        rows = [row for row in group["partitions"] if row["topic"] == asking.name]
        if rows:
            worst = max(rows, key=lambda row: (row["seconds"], row["lag"]))
            consumers.append({
                "group": group["group"], "status": worst["status"], "seconds": worst["seconds"],
                "since": int((now_s - group["age_s"] - worst["seconds"]) * 1000) if worst["seconds"] > 0 else None,
                "lag": sum(row["lag"] for row in rows), "partitions": len(rows),
                "at_partition": worst["partition"], "at_offset": worst["committed"],
            })  # fmt: skip
    consumers.sort(key=lambda one: (-one["seconds"], -one["lag"], one["group"]))
    producers = section(lambda: _producers(asking))
    ids = [one["producer_id"] for one in producers["rows"][:SINK_PRODUCERS_MAX]]
    sinks = section(lambda: _sinks(asking, ids))
    own = {number for sink in sinks["rows"] for number in sink["producer_ids"]}
    others = [one for one in producers["rows"] if one["producer_id"] not in own]
    return {
        "topic": asking.name,
        "consumers": consumers,
        "unknown": unknown,
        "readers": section(lambda: _readers(asking)),
        "sinks": sinks,
        "producers": {**producers, "rows": others[:SHOWN_MAX], "count": len(others)},
    }


def _readers(asking: Asking) -> list[dict[str, Any]]:
    """Clients whose last Fetch named partitions of the topic, those of no group first. Raises CliError."""
    client = asking.client
    request = messages.DescribeConnectionsRequest(version=0, limit=CONNECTIONS_PER_BROKER, topic=asking.name)
    brokers = sorted(row["broker_id"] for row in client.describe_cluster()["brokers"])
    assigned = _assigned(client, asking.name)
    readers: dict[tuple[str, ...], dict[str, Any]] = {}
    for answer in client.ask_each(dict.fromkeys(brokers, request), PATIENCE_S).values():
        if answer is None:
            continue
        if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise CliError("Who reads it now is told to those who may describe the cluster.")
        raise_for_code("readers", answer.error_code)
        for one in answer.connections:
            if not one.fetches:  # of an older release, which tells all of its connections
                continue
            group = next((
                group for group, who, partitions in assigned
                if who == (one.client_id, one.host) and partitions.issuperset(one.fetches)
            ), "")  # fmt: skip
            key = (one.principal, one.host, one.client_id, one.software_name, one.software_version, group)
            row = readers.setdefault(key, {
                "client_id": one.client_id, "host": one.host, "principal": one.principal,
                "software": one.software_name, "version": one.software_version, "group": group or None,
                "spark": any(part in one.client_id for part in SPARK), "partitions": [], "connections": 0,
                "idle_ms": one.idle_ms,
            })  # fmt: skip
            row["partitions"] = sorted({*row["partitions"], *one.fetches})
            row["connections"] += 1
            row["idle_ms"] = min(row["idle_ms"], one.idle_ms)
    return sorted(readers.values(), key=lambda row: (row["group"] or "", row["client_id"], row["host"]))[:SHOWN_MAX]


def _assigned(client: Any, topic: str) -> list[tuple[str, tuple[str, str], set[int]]]:
    """Group, (client id, host) and partitions of the topic, of each member that has some; of groups that can be
    described now."""
    try:
        names = [row["group_id"] for row in client.list_groups() if row.get("group_state") not in {"Empty", "Dead"}]
        described = client.describe_groups(sorted(names)[:GROUPS_MAX]) if names else {}
    except kafka_errors.KafkaError:  # a coordinator that moves: readers are told without their groups
        return []
    assigned = []
    for name, group in described.items():
        for member in group["members"]:
            value = member["member_assignment"]
            parts = value.get("assigned_partitions") or () if isinstance(value, dict) else ()
            partitions = {number for part in parts if part["topic"] == topic for number in part["partitions"]}
            if partitions:
                assigned.append((name, (member["client_id"], member["client_host"].lstrip("/")), partitions))
    return assigned


def _sinks(asking: Asking, producer_ids: list[int]) -> list[dict[str, Any]]:
    """Spark's sinks that write the topic: it remembers their producers, or they have it in an open batch."""
    client = asking.client
    request = messages.DescribeSinksRequest(version=0, sink_ids=None, producer_ids=producer_ids)
    brokers = sorted(row["broker_id"] for row in client.describe_cluster()["brokers"])
    rows = []
    for broker_id, answer in client.ask_each(dict.fromkeys(brokers, request), PATIENCE_S).items():
        if answer is None:
            raise CliError(f"Sinks are not told: broker {broker_id} does not answer.")
        raise_for_code(f"broker {broker_id}", answer.error_code, answer.error_message)
        for sink in answer.sinks:
            open_in = sorted({number for one in sink.topics if one.name == asking.name for number in one.partitions})
            if not sink.own_producer_ids and not open_in:
                continue
            fence = sink.fence
            rows.append({
                "sink": sink.sink_id, "state": sink.state, "coordinator": broker_id,
                "producer_ids": list(sink.own_producer_ids), "open_partitions": open_in,
                "query": fence.query_id if fence is not None else None,
                "batch": fence.batch_id if fence is not None else None,
                "committed": iso(fence.committed_ms) if fence is not None else None,
            })  # fmt: skip
    return sorted(rows, key=lambda row: str(row["sink"]))


def _producers(asking: Asking) -> list[dict[str, Any]]:
    ids = {row["producer_id"]: row["transactional_id"] for row in listed(asking.target, "transactions")}
    by_producer: dict[int, dict[str, Any]] = {}
    for row in listed(asking.target, "transactions", "producers", names=(asking.name,)):
        one = by_producer.setdefault(
            row["producer_id"],
            {"producer_id": row["producer_id"], "transactional_id": ids.get(row["producer_id"]), "epoch": -1,
             "partitions": 0, "last_write": "", "open": False},
        )  # fmt: skip
        one["partitions"] += 1
        one["epoch"] = max(one["epoch"], row["epoch"])
        one["last_write"] = max(one["last_write"], row["last_write"] or "")
        one["open"] |= row["transaction_from"] is not None
    return sorted(by_producer.values(), key=lambda one: one["last_write"], reverse=True)
