"""The pages that only read, each from what its address asks to what its template and its JSON twin show."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import click
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.consumer import ListOffsetsRequest
from markupsafe import Markup, escape

from fleetlog.brokers.acls.access import OPERATIONS_OF
from fleetlog.brokers.acls.image import AclOperation, ResourceType
from fleetlog.brokers.acls.znodes import OPERATION_NAMES, TYPE_NAMES
from fleetlog.brokers.cli.bucket import tiered_topic
from fleetlog.brokers.cli.client import PartitionsOf, explain, explained, known_partitions, raise_for_code
from fleetlog.brokers.cli.cluster import overview_value
from fleetlog.brokers.cli.cluster_config import DEFAULT, SOURCES, settings_of_brokers
from fleetlog.brokers.cli.compact import compaction_of
from fleetlog.brokers.cli.diagnosis import Severity, Thresholds, findings_of
from fleetlog.brokers.cli.doctor import gathered, judged
from fleetlog.brokers.cli.group_lags import lag_of_groups
from fleetlog.brokers.cli.output import number_text
from fleetlog.brokers.cli.overview import (
    Overview,
    PartitionOverview,
    fetch_overview,
    read_directories,
    read_incarnations,
)
from fleetlog.brokers.cli.reassign import describe_moves
from fleetlog.brokers.cli.topics import fetch_ends, topic_value
from fleetlog.brokers.cli.users import users_at
from fleetlog.brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS
from fleetlog.brokers.console.asking import Answer, Asking, PageError
from fleetlog.brokers.console.commands import listed
from fleetlog.brokers.console.pictures import Pictures
from fleetlog.brokers.setting_kinds import Setting, SettingType, suggest
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

ELECTIONS_SHOWN: Final = 100


def fleet_page(asking: Asking) -> Answer:
    """Health in words, brokers, disks, loops, partitions with problems."""
    overview = fetch_overview(asking.client)
    read_incarnations(asking.client, overview)
    facts, health = judged(asking.client, overview)
    value = overview_value(overview, health)
    for broker in value["brokers"]:
        told = facts.health.get(broker["id"])
        broker["loop_lag_ms"] = None if told is None else _milliseconds(told.loop_micros)
        broker["loop_lag_max_ms"] = None if told is None else _milliseconds(told.loop_max_micros)
    value["pictures"] = Pictures(asking).of_fleet(asking, {one["id"]: one["alive"] for one in value["brokers"]})
    return value


MAP_TOPICS: Final = 200
MAP_ORDERS: Final = ("problems", "name", "partitions")


def partitions_page(asking: Asking) -> Answer:
    """The map: of each topic and broker which replicas lead, follow, are behind or move; some rows at a time.

    Topics of one partition that have no problem share a row with those whose names begin alike, unless ``fold`` is no.
    """
    overview = fetch_overview(asking.client, directories=False)
    part, order = asking.text("name").lower(), asking.choice("order", MAP_ORDERS)
    by_topic: dict[str, list[PartitionOverview]] = {}
    counts = {"leader": 0, "follower": 0, "behind": 0, "moving": 0, "offline": 0}
    for p in overview.partitions.values():
        by_topic.setdefault(p.topic, []).append(p)
        if p.untroubled:
            counts["leader"] += 1
            counts["follower"] += len(p.replicas) - 1
            continue
        counts["offline"] += p.offline
        for broker_id in p.replicas:
            counts[_replica_state(p, broker_id)] += 1
    if part:
        by_topic = {topic: partitions for topic, partitions in by_topic.items() if part in topic.lower()}
    rows = map_rows(by_topic, fold=asking.choice("fold", ("yes", "no")) == "yes")
    keys: dict[str, Callable[[MapRow], Any]] = {
        "problems": lambda row: (-row.troubled, row.name), "name": lambda row: row.name,
        "partitions": lambda row: (-len(row.partitions), row.name),
    }  # fmt: skip
    ordered, start = sorted(rows, key=keys[order]), asking.number("start", 0, 0, 10**9)
    brokers = sorted(overview.brokers)
    return {
        "brokers": [{"id": number, "alive": overview.brokers[number].alive} for number in brokers],
        "topics": [_map_value(row, brokers) for row in ordered[start : start + MAP_TOPICS]],
        "counts": counts,
        "partitions": len(overview.partitions),
        "count": len(by_topic),
        "rows": len(ordered),
        "start": start,
        "next_start": start + MAP_TOPICS if start + MAP_TOPICS < len(ordered) else None,
        "order": order,
        "orders": MAP_ORDERS,
    }


def _replica_state(partition: PartitionOverview, broker_id: int) -> str:
    if broker_id in partition.adding or broker_id in partition.removing:
        return "moving"
    if broker_id == partition.leader:
        return "leader"
    return "follower" if broker_id in partition.isr and not partition.offline else "behind"


FOLD_LEAST: Final = 5
"""So many topics of one partition share a row at least."""
_FIRST_WORD: Final = re.compile("[._-]*[^._-]*[._-]?")


class MapRow(NamedTuple):
    """A topic of the map, or several of one partition each: then ``name`` is what their names begin with."""

    name: str
    partitions: list[PartitionOverview]
    topics: int
    troubled: int


def map_rows(by_topic: dict[str, list[PartitionOverview]], *, fold: bool) -> list[MapRow]:
    """A row for each topic; with ``fold`` those of one partition without a problem are together by their first word,
    and the few that no other begins like, as well."""
    rows: list[MapRow] = []
    alike: dict[str, list[PartitionOverview]] = {}
    for name, partitions in by_topic.items():
        troubled = sum(not p.untroubled and (p.under_replicated or p.offline or p.moving) for p in partitions)
        if fold and len(partitions) == 1 and not troubled:
            alike.setdefault(first_word[0] if (first_word := _FIRST_WORD.match(name)) else "", []).extend(partitions)
        else:
            rows.append(MapRow(name, sorted(partitions, key=attrgetter("index")), 1, troubled))
    others: list[PartitionOverview] = []
    for word, some in alike.items():
        if len(some) < FOLD_LEAST:
            others += some
        else:
            rows.append(MapRow(word, sorted(some, key=lambda p: p.topic), len(some), 0))
    if len(others) < FOLD_LEAST:
        return rows + [MapRow(p.topic, [p], 1, 0) for p in others]
    return [*rows, MapRow("", sorted(others, key=lambda p: p.topic), len(others), 0)]


def _map_value(row: MapRow, brokers: list[int]) -> dict[str, Any]:
    """With the place of each square, which is a partition's number, or that of a topic in the order of names."""
    states: dict[int, list[tuple[int, str]]] = {broker_id: [] for broker_id in brokers}
    for number, p in enumerate(row.partitions):
        place = p.index if row.topics == 1 else number
        if p.untroubled:
            for broker_id in p.replicas:
                states[broker_id].append((place, "leader" if broker_id == p.leader else "follower"))
            continue
        for broker_id in p.replicas:
            states[broker_id].append((place, _replica_state(p, broker_id)))
    folded = row.topics > 1
    return {
        "topic": None if folded else row.name, "begin": row.name if folded else None, "topics": row.topics,
        "partitions": len(row.partitions), "troubled": row.troubled,
        "width": len(row.partitions) if folded else row.partitions[-1].index + 1,
        "replicas": [[broker_id, states[broker_id]] for broker_id in brokers],
    }  # fmt: skip


def _milliseconds(micros: int) -> float | None:
    return None if micros < 0 else micros / 1000


BROKER_PARTITIONS_SHOWN: Final = 100


def broker_page(asking: Asking) -> Answer:
    """One broker: state, log directories, replicas, connections by software, and settings with their origin."""
    overview, client = fetch_overview(asking.client), asking.client
    broker_id = _broker_id(asking, overview)
    read_incarnations(client, overview)
    value = overview_value(overview, judged(client, overview)[1])
    (row,) = [one for one in value["brokers"] if one["id"] == broker_id]
    placed = [p for p in overview.partitions.values() if broker_id in p.replicas]
    placed.sort(key=lambda p: (p.problem is None, p.topic, p.index))
    start = asking.number("start", 0, 0, 10**9)
    return {
        **row,
        "is_controller": overview.controller == broker_id,
        "partitions": [
            {"topic": p.topic, "partition": p.index, "leads": p.leader == broker_id, "in_sync": broker_id in p.isr,
             "bytes": overview.size_of(p), "problem": p.problem}
            for p in placed[start : start + BROKER_PARTITIONS_SHOWN]
        ],
        "start": start,
        "next_start": start + BROKER_PARTITIONS_SHOWN if start + BROKER_PARTITIONS_SHOWN < len(placed) else None,
        "connections": _connections_of(client, broker_id, sorted(overview.brokers)),
        "settings": section(lambda: _broker_settings(asking, broker_id)),
        "pictures": Pictures(asking).of_broker(asking, broker_id, row["alive"]),
    }  # fmt: skip


def _broker_settings(asking: Asking, broker_id: int) -> list[dict[str, Any]]:
    rows = {name: by_broker[broker_id] for name, by_broker in settings_of_brokers(asking.client, (), broker_id).items()}
    return [
        {"name": name, "value": None if one.is_sensitive else one.value, "origin": SOURCES.get(one.config_source, "–"),
         "changed": one.config_source != DEFAULT, "fixed": fixed(one.is_sensitive, one.read_only), "synonyms": [],
         **_meaning(BROKER_SETTINGS.get(name))}
        for name, one in sorted(rows.items())
    ]  # fmt: skip


def fixed(hidden: Any, read_only: Any) -> str:
    """Why the console does not change a setting; empty: it does."""
    if hidden:
        return "it is a secret, and fleetlog cluster config set changes it"
    return "it is read at the start alone, from the broker's properties" if read_only else ""


def _meaning(row: Setting | None) -> dict[str, Any]:
    """What a setting means and may be, as ``fleetlog config`` says; nothing of one that this release doesn't know."""
    if row is None:
        return {"meaning": "", "allowed": "", "choices": [], "default": None}
    choices = ["true", "false"] if row.type is SettingType.BOOLEAN else list(row.choices)
    lists = row.type is SettingType.LIST
    return {"meaning": row.doc, "allowed": row.allowed(), "choices": [] if lists else choices,
            "default": row.format(row.default)}  # fmt: skip


def topic_setting_page(asking: Asking) -> Answer:
    """One setting of a topic: meaning, value, origin, what it hides, and a form."""
    known_partitions(asking.client, [PartitionsOf(asking.name, None)])
    return {"topic": asking.name, "broker": None, **one_setting(asking, _topic_settings(asking.client, asking.name))}


def broker_setting_page(asking: Asking) -> Answer:
    """One setting of a broker, which may be set for all of them, too."""
    broker_id = _broker_id(asking, fetch_overview(asking.client, directories=False))
    return {"topic": None, "broker": broker_id, **one_setting(asking, _broker_settings(asking, broker_id))}


def one_setting(asking: Asking, rows: list[dict[str, Any]]) -> dict[str, Any]:
    name = asking.text("name")
    setting = next((row for row in rows if row["name"] == name), None)
    if setting is None:
        raise PageError(404, f"there is no setting {name[:100]!r}{suggest(name, [row['name'] for row in rows])}")
    return setting


def _broker_id(asking: Asking, overview: Any) -> int:
    if re.fullmatch("[0-9]{1,9}", asking.name) is None or int(asking.name) not in overview.brokers:
        raise PageError(404, f"there is no broker {asking.name[:40]}, and no replica on it")
    return int(asking.name)


def _connections_of(client: Any, broker_id: int, brokers: list[int]) -> dict[str, Any]:
    request = messages.DescribeConnectionsRequest(version=0, limit=CONNECTIONS_PER_BROKER)
    answer = client.ask_each({broker_id: request}, PATIENCE_S)[broker_id]
    if answer is None or answer.error_code:
        error = "it does not answer, or is of an older release" if answer is None else explain(answer.error_code)
        return {"total": None, "software": [], "error": error}
    rows = [_row(broker_id, one, brokers) for one in answer.connections]
    return {"total": answer.total, "software": _by_software(rows), "error": None}


def controller_page(asking: Asking) -> Answer:
    """The controller: which broker it is, moves under way, leaders that are not the preferred replica."""
    overview = fetch_overview(asking.client)
    partitions = overview.partitions.values()
    columns = ("topic", "partition", "adding", "removing", "copied")
    elsewhere = [
        {"topic": p.topic, "partition": p.index, "leader": p.leader, "preferred": p.target[0]}
        for p in sorted(partitions, key=lambda p: p.tp)
        if not p.led_by_preferred and not p.offline and p.target
    ]
    leads: dict[int, int] = {broker.id: 0 for broker in overview.live_brokers()}
    for p in partitions:
        if not p.offline:
            leads[p.leader] = leads.get(p.leader, 0) + 1
    timeline = read_timeline(asking.client, [one.id for one in overview.live_brokers()], None, ELECTIONS_SHOWN)
    elected = sorted((p for p in partitions if p.leader_epoch), key=lambda p: -p.leader_epoch)[:20]
    return {
        "controller": overview.controller,
        "moves": [dict(zip(columns, row, strict=True)) for row in describe_moves(overview)],
        "offline": sum(p.offline for p in partitions),
        "timeline": timeline,
        "events": _events(timeline),
        "led_elsewhere": elsewhere[:200],
        "led_elsewhere_count": len(elsewhere),
        "leads": [{"broker": broker_id, "partitions": count} for broker_id, count in sorted(leads.items())],
        "most_elections": [
            {"topic": p.topic, "partition": p.index, "leader": p.leader, "leader_epoch": p.leader_epoch}
            for p in elected
        ],
    }


def _events(timeline: dict[str, Any]) -> list[dict[str, Any]]:
    """Controllers and registrations as one list of sentences, the newest first."""
    events = [
        {"at": one["at"], "text": f"broker {one['broker']} {'registered' if one['registered'] else 'was gone'}"}
        for one in timeline["registrations"]
    ]
    for one in timeline["controllers"]:
        text = f"broker {one['controller']} is the controller" if one["controller"] >= 0 else "there is no controller"
        events.append({"at": one["at"], "text": text})
    return sorted(events, key=lambda one: -one["at"])


PAGE_ROWS = 200
TOPIC_ORDERS: Final = tuple(
    f"{sign}{name}"
    for sign in ("", "-")
    for name in ("topic", "partitions", "replication", "bytes", "records", "behind", "state")
)
TOPIC_ELECTIONS_SHOWN = 50
LETTERS: Final = "errors.deadletterqueue.group.enable"
"""The setting of topics that may have dead letters."""
CHECKS: Final = {
    "fleetlog.schema.validation": (None, "none"), "confluent.value.schema.validation": (None, "false"),
    "confluent.key.schema.validation": (None, "false"),
}  # fmt: skip
"""Settings of a topic that refuses records for their schemas, with the values that refuse none."""


def topics_page(asking: Asking) -> Answer:
    """Topics with counts, problems and bytes at the leaders: those whose name has the text, some at a time.

    ``sort`` is a column, downwards with a ``-`` before it; ``state`` has the worst first. Records are counted if one
    asks for that, or sorts by them; ``behind`` is by how many seconds the slowest group lags, if one sorts by it.
    """
    order = asking.choice("sort", TOPIC_ORDERS)
    overview = fetch_overview(asking.client)
    internal, part = asking.text("internal") == "yes", asking.text("name").lower()
    names: dict[str, list[PartitionOverview]] = {}
    for p in overview.partitions.values():
        if (internal or not p.internal) and part in p.topic.lower():
            names.setdefault(p.topic, []).append(p)
    start = asking.number("start", 0, 0, 10**9)
    rows = [_topic_row(overview, name, partitions) for name, partitions in sorted(names.items())]
    column = order.lstrip("-")
    counted = column == "records" or asking.text("records") == "yes"
    if column == "records":
        _count_records(asking, rows, names)
    unknown = _look_who_lags(asking, rows) if column == "behind" else []
    if column == "state":
        rows.sort(key=lambda row: [-row[one] for one in ("offline", "under_min_isr", "under_replicated", "moving")])
    elif column != "topic":
        rows.sort(key=lambda row: -1 if row[column] is None else row[column])
    if order.startswith("-"):
        rows.reverse()
    following = start + PAGE_ROWS if start + PAGE_ROWS < len(rows) else None
    if counted and column != "records":
        _count_records(asking, rows[start : start + PAGE_ROWS], names)
    return {
        "topics": rows[start : start + PAGE_ROWS],
        "count": len(rows),
        "start": start,
        "next_start": following,
        "sort": order,
        "counted": counted,
        "unknown": unknown,
        "settings": sorted(name for name, row in TOPIC_SETTINGS.items() if not row.inert),
    }


def _topic_row(overview: Overview, name: str, partitions: list[PartitionOverview]) -> dict[str, Any]:
    sizes = [size for p in partitions if (size := overview.size_of(p)) is not None]
    short = [p for p in partitions if len(p.isr) < max(1, len(p.replicas))]
    return {
        "topic": name,
        "partitions": len(partitions),
        "replication": max([len(p.target) for p in partitions]),
        "bytes": sum(sizes) if sizes else None,
        "records": None,
        "behind": None,
        "offline": sum([p.leader < 0 for p in partitions]),
        "under_replicated": sum([p.under_replicated for p in short]),
        "under_min_isr": sum([p.under_min_in_sync for p in short]),
        "moving": sum([p.moving for p in partitions]),
        "internal": partitions[0].internal,
    }


def _look_who_lags(asking: Asking, rows: list[dict[str, Any]]) -> list[str]:
    """Seconds of the slowest of each topic's groups, None without one; returns what could not be asked."""
    lags, unknown = lag_of_groups(asking.client)
    slowest: dict[str, float] = {}
    for partition in (one for group in lags for one in group["partitions"]):
        slowest[partition["topic"]] = max(partition["seconds"], slowest.get(partition["topic"], 0.0))
    for row in rows:
        row["behind"] = slowest.get(row["topic"])
    return unknown


def _count_records(asking: Asking, rows: list[dict[str, Any]], names: dict[str, list[PartitionOverview]]) -> None:
    """Offsets between the first and the end, of partitions whose leaders answer; None where none does."""
    ends = fetch_ends(asking.client, [p for row in rows for p in names[row["topic"]]])
    for row in rows:
        spans = [ends[p.tp] for p in names[row["topic"]]]
        known = [end - first for first, end in spans if first is not None and end is not None]
        row["records"] = sum(known) if known else None


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
    timeline = read_timeline(client, [broker.id for broker in overview.live_brokers()], name, TOPIC_ELECTIONS_SHOWN)
    pictures = Pictures(asking).of_topic(name, len(value["partitions"]))
    for row in value["partitions"]:
        row["records_s"] = pictures["records_s"].get(str(row["partition"]))
    rates = [row["records_s"] for row in value["partitions"] if row["records_s"] is not None]
    settings = _topic_settings(client, name)
    values = {row["name"]: row["value"] for row in settings}
    tiered = values.get(TIERED) == "true"
    if tiered:
        _add_tiers(client, name, value["partitions"])
    return {
        **value,
        "pictures": pictures,
        "internal": internal,
        "letters": values.get(LETTERS) == "true",
        "tiered": tiered,
        "checked": any(values.get(name) not in unchecked for name, unchecked in CHECKS.items()),
        "bytes": sum(sizes) if sizes else None,
        "skew": {"bytes": _skew(sizes), "records_s": _skew(rates)},
        "timeline": timeline,
        "settings": settings,
    }


TIERED: Final = "remote.storage.enable"
BUCKET: Final = "fleetlog.bucket.url"
EARLIEST_LOCAL, LATEST_TIERED, TIERED_VERSION = -4, -5, 9
"""Positions of ListOffsets (KIP-405, KIP-1005), and the version that has both."""


def _add_tiers(client: Any, topic: str, rows: list[dict[str, Any]]) -> None:
    """Where each partition begins on the brokers' disks, and the last offset that is in the bucket; None if unknown."""
    by_leader: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        row["local_start"] = row["tiered_end"] = None
        if row["leader"] is not None:
            by_leader.setdefault(row["leader"], []).append((row["partition"], -1))
    by_partition = {row["partition"]: row for row in rows}
    for name, position in (("local_start", EARLIEST_LOCAL), ("tiered_end", LATEST_TIERED)):
        requests = {
            leader: ListOffsetsRequest(
                min_version=TIERED_VERSION, isolation_level=0, timeout_ms=int(PATIENCE_S * 1000),
                topics=[(topic, [(number, epoch, position) for number, epoch in partitions])],
            )
            for leader, partitions in by_leader.items()
        }  # fmt: skip
        for answer in client.ask_each(requests, PATIENCE_S).values():
            for told in answer.topics[0].partitions if answer is not None else ():
                if not told.error_code and told.offset >= 0:
                    by_partition[told.partition_index][name] = told.offset


def bucket_page(asking: Asking) -> Answer:
    """What the bucket has of a tiered topic, as ``fleetlog bucket status`` knows it: read by the console itself."""
    client, name = asking.client, asking.name
    known_partitions(client, [PartitionsOf(name, None)])
    (topic_id,) = [str(topic.get("topic_id") or "") for topic in client.describe_topics([name])]
    values = settings_of_brokers(client, (BUCKET,), None).get(BUCKET, {})
    urls = {str(one.value) for one in values.values() if one.value}
    answer: Answer = {"topic": name, "url": "", "owner": "", "partitions": [], "bytes": 0, "error": None}
    if len(urls) != 1:
        return {**answer, "error": "The brokers have no bucket." if not urls else "The brokers have different buckets."}
    answer["url"] = urls.pop()
    try:
        return {**answer, **(value := tiered_topic(answer["url"], name, uuid.UUID(topic_id).hex)),
                "bytes": sum(one.get("bytes", 0) for one in value["partitions"])}  # fmt: skip
    except (click.ClickException, ValueError, ImportError) as error:
        return {**answer, "error": error.format_message() if isinstance(error, click.ClickException) else str(error)}


def _skew(shares: Sequence[float]) -> float | None:
    """How many times the mean the largest is; None where that says nothing."""
    return round(max(shares) * len(shares) / sum(shares), 1) if len(shares) > 1 and sum(shares) > 0 else None


ANALYSED: Final = {"records": (20_000, 100_000), "megabytes": (20, 50), "seconds": (5, 10)}
"""What an analysis may read: by default, and at most."""


def analysis_page(asking: Asking) -> Answer:
    """What a topic's newest records are like, as ``fleetlog topics analyze`` has it, within a budget.

    Where fields are masked, neither keys nor sizes of single records and batches are told.
    """
    budget = {name: asking.number(name, usual, 1, most) for name, (usual, most) in ANALYSED.items()}
    options = tuple(f"--{name}={number}" for name, number in budget.items())
    value = listed(asking.target, "topics", "analyze", *options, names=(asking.name,))
    masked = asking.masks.of(asking.name).names
    if masked:
        value |= {"most_frequent_keys": [], "record_bytes": None, "batch_bytes": None}
    ids = {row["producer_id"]: row["transactional_id"] for row in listed(asking.target, "transactions")}
    for one in value["producers"]:
        one["transactional_id"] = ids.get(one["producer_id"])
    return {**value, "budget": budget, "most": {name: most for name, (_, most) in ANALYSED.items()}, "masked": masked}


def _topic_settings(client: Any, name: str) -> list[dict[str, Any]]:
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
            "fixed": fixed(hidden, row.get("read_only")),
            "synonyms": synonyms,
            **_meaning(TOPIC_SETTINGS.get(key)),
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


DESCRIBED_MAX: Final = 50
"""Transactions that are described, of those that are open."""
LONG_OPEN_S: Final = 60.0


def transactions_page(asking: Asking) -> Answer:
    """Transactional ids, the open ones first with their age, and Spark's sinks."""
    rows = listed(asking.target, "transactions")
    open_rows = [row for row in rows if row["state"] not in {"Empty", "CompleteCommit", "CompleteAbort"}]
    names = tuple(row["transactional_id"] for row in open_rows[:DESCRIBED_MAX])
    described = listed(asking.target, "transactions", "describe", names=names) if names else []
    for one in described:
        one["long"] = one["open_s"] is not None and one["open_s"] > max(LONG_OPEN_S, one["timeout_ms"] / 1000)
    described.sort(key=lambda one: -(one["open_s"] or 0))
    return {
        "open": described,
        "open_count": len(open_rows),
        "transactions": [row for row in rows if row not in open_rows][:500],
        "count": len(rows),
        "sinks": listed(asking.target, "sinks"),
        "pictures": Pictures(asking).of_transactions(asking),
    }


FIND_MAX: Final = 8
"""Results of a kind."""


def find_page(asking: Asking) -> Answer:
    """Topics and their messages, groups and brokers whose name has the text, the likeliest first; without one, none."""
    text, client = asking.text("q").lower(), asking.client
    sources: list[tuple[str, str, Callable[[], Iterable[Any]]]] = [
        ("topic", "/topics/{}", client.list_topics),
        ("broker", "/brokers/{}", lambda: (row["broker_id"] for row in client.describe_cluster()["brokers"])),
        ("group", "/group?name={}", lambda: (row["group_id"] for row in client.list_groups())),
    ]
    results: list[dict[str, str]] = []
    untold: list[str] = []
    for kind, address, names in sources if text else ():
        wanted = text.removeprefix("broker").strip() if kind == "broker" else text
        try:
            likely = sorted((str(name) for name in names() if wanted in str(name).lower()), key=_likelihood(wanted))
        except kafka_errors.KafkaError as error:
            untold.append(f"{kind}s are not told: {type(error).__name__}")
            continue
        rows = [{"kind": kind, "name": name, "address": address.format(quote(name, ""))} for name in likely[:FIND_MAX]]
        results += rows
        if kind == "topic":
            results += [{**row, "kind": "messages", "address": f"{row['address']}/messages"} for row in rows[:3]]
    return {"results": results, "untold": untold}


def _likelihood(text: str) -> Callable[[str], tuple[bool, bool, int, str]]:
    return lambda name: (name.lower() != text, not name.lower().startswith(text), len(name), name)


CONNECTIONS_PER_BROKER: Final = 500
CONNECTIONS_SHOWN: Final = 300
PATIENCE_S: Final = 4.0
CONNECTION_ORDERS: Final = ("bytes", "age", "idle")
_OF_BROKERS: Final = re.compile("(?:broker|replica|audit|lag)-([0-9]{1,10})")
"""The client ids of brokers, which send no software (``brokers.node``)."""


def connections_page(asking: Asking) -> Answer:
    """The connections of all brokers that answer, those that carried most first; and how many each software has."""
    order, wanted = asking.choice("order", CONNECTION_ORDERS), asking.text("contains").lower()
    client = asking.client
    brokers = sorted(row["broker_id"] for row in client.describe_cluster()["brokers"])
    request = messages.DescribeConnectionsRequest(version=0, limit=CONNECTIONS_PER_BROKER)
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
        "connections": matching[:CONNECTIONS_SHOWN],
        "matching": len(matching),
        "total": sum(totals.values()),
        "described": len(rows),
        "software": _by_software(matching),
        "order": order,
        "orders": CONNECTION_ORDERS,
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


def security_page(asking: Asking) -> Answer:
    """Users, ACLs and quotas, each as far as the user may see it."""
    return {
        "users": section(lambda: _users(asking)),
        "acls": acl_tables(section(lambda: listed(asking.target, "acls")), asking.text("acls").lower()),
        "quotas": section(lambda: listed(asking.target, "quotas")),
    }


ACL_ROWS: Final = 200
"""Rows that a page shows; the others are found by a part of their principal or name."""
_EDITABLE: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER)


def acl_tables(section: dict[str, Any], text: str = "") -> dict[str, Any]:
    """With ``tables``: for each type of resource a row for each principal, name, pattern, host and permission, with its
    operations. ``text`` is a part of the principals or names that are meant; ``count`` are all rows that match."""
    by_type: dict[str, dict[tuple[str, ...], set[str]]] = {}
    for row in section["rows"]:
        if text in row["principal"].lower() or text in row["name"].lower():
            key = tuple(row[one] for one in ("principal", "name", "pattern", "host", "permission"))
            by_type.setdefault(row["resource"], {}).setdefault(key, set()).add(row["operation"])
    tables, left = [], ACL_ROWS
    for kind, resource in TYPE_NAMES.items():
        by_key = by_type.get(resource, {})
        if not by_key and kind not in _EDITABLE:
            continue
        usual = [*(OPERATION_NAMES[one] for one in OPERATIONS_OF[kind]), OPERATION_NAMES[AclOperation.ALL]]
        odd = sorted({one for operations in by_key.values() for one in operations}.difference(usual))
        rows = [
            {"principal": key[0], "name": key[1], "pattern": key[2], "host": key[3], "permission": key[4],
             "operations": [one for one in usual + odd if one in operations]}
            for key, operations in sorted(by_key.items())[:left]
        ]  # fmt: skip
        left -= len(rows)
        tables.append(
            {"resource": resource, "editable": kind in _EDITABLE, "operations": usual + odd, "rows": rows,
             "named": kind is not ResourceType.CLUSTER}
        )  # fmt: skip
    return {**section, "tables": tables, "count": sum(map(len, by_type.values())), "shown": ACL_ROWS - left}


def section(read: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    """Rows, or why there are none."""
    try:
        return {"rows": read(), "error": None}
    except click.ClickException as error:
        return {"rows": [], "error": error.format_message()}


def _users(asking: Asking) -> list[dict[str, Any]]:
    with explained(asking.target, "users"):
        users = users_at(asking.client)
    return [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user, credentials in users.items()
        for mechanism, iterations in credentials.items()
    ]


LEVELS = {Severity.ERROR: "bad", Severity.WARNING: "warning", Severity.NOTE: "good"}


def doctor_page(asking: Asking) -> Answer:
    """All findings, the worst first; what cannot be asked in two seconds is a finding, too. Raises PageError."""
    limits = thresholds(asking)
    facts = gathered(asking.client)
    findings = findings_of(facts, limits)
    given = limits._asdict()
    changed = [name for name, default in Thresholds()._asdict().items() if given[name] != default]
    return {
        "brokers": len(facts.overview.live_brokers()),
        "partitions": len(facts.overview.partitions),
        "limits": given,
        "command": " ".join(
            ["fleetlog doctor", *(f"--{name.replace('_', '-')}={number_text(given[name])}" for name in changed)]
        ),
        "findings": [
            {**one._asdict(), "severity": one.severity.name.lower(), "level": LEVELS[one.severity]} for one in findings
        ],
    }


def thresholds(asking: Asking) -> Thresholds:
    """From when on something is a trouble: the command's options by their names with underscores; raises PageError."""
    limits: dict[str, Any] = {}
    for name, default in Thresholds()._asdict().items():
        text = asking.text(name)
        if isinstance(default, int):
            limits[name] = asking.number(name, default, 1, 10**9)
        elif not text:
            limits[name] = default
        elif re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", text):
            limits[name] = float(text)
        else:
            raise PageError(400, f"{name} must be a number such as 0.5, not {text[:40]!r}")
    return Thresholds(**limits)


CHANGES_MAX: Final = 100
NEAR_MS: Final = 15_000
"""Brokers see one change at different moments, by different clocks: equal ones within so long are one."""

_Change = TypeVar("_Change")


def read_timeline(client: Any, broker_ids: list[int], topic: str | None, limit: int) -> dict[str, Any]:
    """Changes of leaders (of a topic, or all), controllers and registrations, the newest first.

    ``since`` has, for each broker that answered, since when it keeps all of them (ms); what was before is in no broker.
    """
    request = messages.DescribeElectionsRequest(version=0, topic=topic, limit=limit)
    elections: dict[tuple[str, int, int], dict[str, Any]] = {}
    controllers: list[tuple[int, int]] = []
    brokers: list[tuple[int, tuple[int, bool]]] = []
    since, untold, work = [], [], None
    for broker_id, answer in client.ask_each(dict.fromkeys(broker_ids, request), PATIENCE_S).items():
        if answer is None:
            untold.append({"broker": broker_id, "trouble": "it does not answer, or is of an older release"})
            continue
        if answer.error_code:
            reason = "the right to describe the cluster is needed"
            denied = answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            untold.append({"broker": broker_id, "trouble": reason if denied else explain(answer.error_code)})
            continue
        since.append({"broker": broker_id, "since": answer.since_ms})
        for one in answer.elections:
            _keep_first(elections, one)
        controllers += [(one.at_ms, one.broker_id) for one in answer.controllers]
        brokers += [(one.at_ms, (one.broker_id, one.registered)) for one in answer.brokers]
        if answer.controller_epoch >= 0:
            work = _work(broker_id, answer)
    rows = sorted(elections.values(), key=lambda one: (-one["at"], one["topic"], one["partition"]))
    return {
        "elections": rows[:limit],
        "controllers": [{"at": at, "controller": broker_id} for at, broker_id in merged_changes(controllers)],
        "registrations": [
            {"at": at, "broker": broker_id, "registered": registered}
            for at, (broker_id, registered) in merged_changes(brokers)
        ],
        "since": since,
        "untold": untold,
        "work": work,
    }  # fmt: skip


def _keep_first(found: dict[tuple[str, int, int], dict[str, Any]], one: Any) -> None:
    key = (one.topic, one.partition_index, one.leader_epoch)
    known = found.get(key)
    if known is None or one.at_ms < known["at"]:
        found[key] = {
            "at": one.at_ms, "topic": one.topic, "partition": one.partition_index, "leader_epoch": one.leader_epoch,
            "leader": one.leader, "previous": one.previous_leader, "isr": list(one.isr), "unclean": one.unclean,
        }  # fmt: skip


def merged_changes(seen: list[tuple[int, _Change]]) -> list[tuple[int, _Change]]:
    """What several brokers saw, each change once at the first time that it was seen; the newest first."""
    merged: list[tuple[int, _Change]] = []
    latest: dict[_Change, int] = {}
    for at, change in sorted(seen, key=lambda one: one[0]):
        if change not in latest or at - latest[change] > NEAR_MS:
            merged.append((at, change))
            latest[change] = at
    return merged[::-1][:CHANGES_MAX]


def _work(broker_id: int, answer: Any) -> dict[str, Any]:
    return {
        "broker": broker_id, "epoch": answer.controller_epoch, "since": answer.controller_since_ms,
        "admin_requests": answer.admin_requests, "leaders_asked_to_move": answer.leaders_asked_to_move,
        "silent_brokers": list(answer.silent_brokers), "unclean_elections": answer.unclean_elections,
    }  # fmt: skip


WIDTH, HEIGHT, GAP = 420, 18, 4
"""Narrow, since a chart is as wide as a phone, and its text must be readable there."""
LABEL, NAME_MAX = 130, 17
"""The part of the width that names have, and how many characters fit into it; of longer ones the end is shown."""


def share_bar(part: float, whole: float, title: str) -> Markup:
    """One bar: how much of the whole is used."""
    share = 0.0 if whole <= 0 else min(max(part / whole, 0.0), 1.0)
    level = "bad" if share >= 0.95 else "warning" if share >= 0.85 else "good"
    return Markup(
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{0}">'
        "<title>{0}</title>"
        '<rect class="track" width="100" height="8"/><rect class="{1}" width="{2:.1f}" height="8"/></svg>'
    ).format(title, level, share * 100)


def bars(rows: Sequence[tuple[str, float, str]], label: str) -> Markup:
    """Horizontal bars of (name, number, its text), on the scale of the largest."""
    if not rows:
        return Markup("")
    largest = max(number for _, number, _ in rows) or 1.0
    height = len(rows) * (HEIGHT + GAP)
    drawn = [
        Markup(
            '<text x="{0}" y="{1}" text-anchor="end">{9}</text>'
            '<rect class="bar" x="{3}" y="{4}" width="{5:.1f}" height="{6}"><title>{2}: {7}</title></rect>'
            '<text x="{8:.1f}" y="{1}">{7}</text>'
        ).format(
            LABEL - 6, at + HEIGHT - 5, name, LABEL, at, width := number / largest * (WIDTH - LABEL - 70), HEIGHT,
            text, LABEL + width + 5, name if len(name) <= NAME_MAX else "…" + name[1 - NAME_MAX :],
        )
        for at, (name, number, text) in ((i * (HEIGHT + GAP), row) for i, row in enumerate(rows))
    ]  # fmt: skip
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, escape(label), Markup("").join(drawn)
    )
