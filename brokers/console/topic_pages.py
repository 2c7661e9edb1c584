"""Topics: the list, and one with its partitions, sizes and settings."""

from __future__ import annotations

from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType

from fleetlog.brokers.cli.client import PartitionsOf, known_partitions
from fleetlog.brokers.cli.compact import compaction_of
from fleetlog.brokers.cli.overview import fetch_overview, read_directories
from fleetlog.brokers.cli.topics import fetch_ends, topic_value
from fleetlog.brokers.console.asking import Answer, Asking
from fleetlog.brokers.console.timeline import read_timeline

PAGE_ROWS = 200
ELECTIONS_SHOWN = 50


def topics_page(asking: Asking) -> Answer:
    """Topics with counts, problems and bytes at the leaders: those whose name has the text, some at a time."""
    overview = fetch_overview(asking.client)
    internal, part = asking.text("internal") == "yes", asking.text("name").lower()
    names: dict[str, list[Any]] = {}
    for _, p in sorted(overview.partitions.items()):
        if (internal or not p.internal) and part in p.topic.lower():
            names.setdefault(p.topic, []).append(p)
    listed, start = list(names), asking.number("start", 0, 0, 10**9)
    rows = []
    for name in listed[start : start + PAGE_ROWS]:
        partitions = names[name]
        sizes = [size for p in partitions if (size := overview.size_of(p)) is not None]
        rows.append({
            "topic": name,
            "partitions": len(partitions),
            "replication": max(len(p.target) for p in partitions),
            "bytes": sum(sizes) if sizes else None,
            "offline": sum(p.offline for p in partitions),
            "under_replicated": sum(p.under_replicated for p in partitions),
            "under_min_isr": sum(p.under_min_in_sync for p in partitions),
            "moving": sum(p.moving for p in partitions),
            "internal": partitions[0].internal,
        })  # fmt: skip
    following = start + PAGE_ROWS if start + PAGE_ROWS < len(listed) else None
    return {"topics": rows, "count": len(listed), "start": start, "next_start": following}


def topic_page(asking: Asking) -> Answer:
    """One topic: partitions with offsets, leaders, ISR and bytes; all settings with where each comes from."""
    client, name = asking.client, asking.name
    known_partitions(client, [PartitionsOf(name, None)])
    ids = {topic["name"]: topic.get("topic_id") for topic in client.describe_topics([name])}
    overview = fetch_overview(client, [name], directories=False)
    read_directories(client, overview, overview.partitions)
    ends = fetch_ends(client, list(overview.partitions.values()))
    value = topic_value(client, name, overview, ids.get(name), ends, compaction_of(client, overview))
    for row, partition in zip(value["partitions"], overview.of_topic(name), strict=True):
        row["bytes"] = overview.size_of(partition)
        row["leader_epoch"] = partition.leader_epoch
    sizes = [row["bytes"] for row in value["partitions"] if row["bytes"] is not None]
    internal = any(p.internal for p in overview.partitions.values())
    timeline = read_timeline(client, [broker.id for broker in overview.live_brokers()], name, ELECTIONS_SHOWN)
    return {
        **value,
        "internal": internal,
        "bytes": sum(sizes) if sizes else None,
        "timeline": timeline,
        "settings": _settings(client, name),
    }


def _settings(client: Any, name: str) -> list[dict[str, Any]]:
    """Each setting: value, origin, and the values that it hides, nearest first."""
    configs = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)], True, "all")
    rows = []
    for key, row in sorted(configs.get("topic", {}).get(name, {}).items()):
        origin = str(row.get("config_source") or "")
        synonyms = [
            {"name": one["name"], "value": one["value"], "origin": _origin(str(one["source"]))}
            for one in row.get("synonyms") or ()
        ]
        hidden = bool(row.get("is_sensitive"))
        rows.append({
            "name": key,
            "value": None if hidden else row["value"],
            "origin": _origin(origin),
            "changed": "TOPIC" in origin,
            "synonyms": synonyms,
        })  # fmt: skip
    return rows


def _origin(source: str) -> str:
    """Where a value comes from, by Kafka's name for it."""
    words = {
        "DYNAMIC_TOPIC_CONFIG": "this topic",
        "DYNAMIC_BROKER_CONFIG": "this broker, changed while it runs",
        "DYNAMIC_DEFAULT_BROKER_CONFIG": "all brokers, changed while they run",
        "STATIC_BROKER_CONFIG": "the broker's file",
        "DEFAULT_CONFIG": "default",
    }
    return next((text for name, text in words.items() if source.endswith(name)), source.lower())
