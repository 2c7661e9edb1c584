"""The lag of consumer groups, as their coordinators tell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleetlog.brokers.cli.overview import PATIENCE_S
from fleetlog.wire.errors import ErrorCode


def lag_of_groups(
    client: Any, names: Sequence[str] = (), brokers: Sequence[int] | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The groups, the one that is behind by the longest time first, and what could not be asked, as texts.

    All that the client may describe, or those named; of these brokers, or of all. ``seconds`` is the age of the oldest
    record not consumed; a ``status`` is empty until the group's coordinator has computed it.
    """
    from fleetlog.wire import messages

    request = messages.DescribeLagRequest(version=0, group_ids=list(names) or None)
    if brokers is None:
        brokers = sorted(row["broker_id"] for row in client.describe_cluster()["brokers"])
    groups: list[dict[str, Any]] = []
    unknown: list[str] = []
    for broker_id, answer in client.ask_each(dict.fromkeys(brokers, request), PATIENCE_S).items():
        if answer is None:
            unknown.append(f"broker {broker_id} does not answer; the groups that it coordinates are left out")
        elif answer.error_code == ErrorCode.INVALID_CONFIG:
            unknown.append(f"broker {broker_id} computes no lag: group.lag.interval.ms is 0")
        else:
            groups += [_group(row, broker_id) for row in answer.groups if not row.error_code]
    return sorted(groups, key=lambda one: (-one["seconds"], one["group"])), unknown


def _group(row: Any, broker_id: int) -> dict[str, Any]:
    partitions = [
        {
            "topic": topic.name,
            "partition": one.partition_index,
            "status": one.status,
            "committed": one.committed_offset,
            "end": one.end_offset,
            "lag": one.lag,
            "lag_read_committed": one.stable_lag,
            "seconds": one.lag_ms / 1000,
        }
        for topic in row.topics
        for one in topic.partitions
    ]
    worst = max(partitions, key=lambda one: (one["seconds"], one["lag"]), default=None)
    behind = worst is not None and worst["lag"] > 0
    return {
        "group": row.group_id,
        "status": row.status,
        "lag": sum(one["lag"] for one in partitions),
        "seconds": max((one["seconds"] for one in partitions), default=0.0),
        "worst": f"{worst['topic']}:{worst['partition']} {worst['status']}" if worst and behind else None,
        "coordinator": broker_id,
        "age_s": row.age_ms / 1000,
        "partitions": partitions,
    }
