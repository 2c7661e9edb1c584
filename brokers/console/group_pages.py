"""Groups: their list, one of them with its settings, and the dead letters of share groups."""

from __future__ import annotations

from typing import Any, Final

from kafka import errors as kafka_errors

from fleetlog.brokers.cli.cluster_config import SOURCES
from fleetlog.brokers.cli.dlq import HEADERS, replayed_up_to, stored_letter
from fleetlog.brokers.cli.group_lags import lag_of_groups
from fleetlog.brokers.cli.groups import settings_of_group
from fleetlog.brokers.cli.overview import topic_setting
from fleetlog.brokers.cli.topic_reader import StoredRecord, TopicReader
from fleetlog.brokers.console.asking import NAME_BYTES_MAX, Answer, Asking, PageError
from fleetlog.brokers.console.commands import listed
from fleetlog.brokers.console.message_pages import Browse, Search, cursor_of, encode_cursor
from fleetlog.brokers.console.pages import LETTERS, fixed, one_setting, section
from fleetlog.brokers.console.pictures import Pictures

DESCRIBED_MAX: Final = 50
"""Groups that the list shows at a time: each whose coordinator has no figures costs a few requests."""
GROUP_ORDERS: Final = ("name", "behind")
COMPUTED_OF_PARTITIONS: Final = ("seconds", "status", "lag_read_committed")
SHARE: Final = "share"
SETTINGS_OF: Final = {SHARE: ("share.", "fleetlog.share.", "errors.deadletterqueue."), "consumer": ("consumer.",)}
"""What the names of a group's settings begin with, by its type."""
LETTERS_TOPIC: Final = "errors.deadletterqueue.topic.name"
LETTERS_SHOWN: Final = 50


def groups_page(asking: Asking) -> Answer:
    """Groups with state, lag in records and seconds, and status: those whose name has the text, some at a time.

    ``status`` and ``seconds`` are None where the group's coordinator has not computed them.
    """
    part, order = asking.text("name").lower(), asking.choice("order", GROUP_ORDERS)
    rows = [row for row in listed(asking.target, "groups") if part in row["group"].lower()]
    start = asking.number("start", 0, 0, 10**9)
    lags: dict[str, dict[str, Any]] = {}
    unknown: list[str] = []
    if order == "behind" and rows:
        lags, unknown = _lags(asking)
        rows.sort(key=lambda row: -lags[row["group"]]["seconds"] if row["group"] in lags else 0.0)
    shown = rows[start : start + DESCRIBED_MAX]
    names = [row["group"] for row in shown]
    if order == "name" and shown:
        lags, unknown = _lags(asking, *names)
    others = tuple(name for name in names if name not in lags)
    described = listed(asking.target, "groups", "describe", names=others) if others else []
    records = {one["group"]: one["lag"] for one in [*described, *lags.values()]}
    following = start + DESCRIBED_MAX if start + DESCRIBED_MAX < len(rows) else None
    groups = [{**row, "lag": records.get(row["group"]), **_judged(lags.get(row["group"]))} for row in shown]
    return {
        "groups": groups,
        "count": len(rows),
        "start": start,
        "next_start": following,
        "order": order,
        "unknown": unknown,
    }


def group_page(asking: Asking) -> Answer:
    """One group: members, and each partition's offsets, lag in records and seconds, and status; its settings.

    Offsets and records are the present ones. Seconds and status are as old as ``age_s`` says: the coordinator computes
    them now and then; they are None where it has not. A share group has ``start`` in the place of what is committed.
    """
    name = _name(asking)
    (description,) = listed(asking.target, "groups", "describe", names=(name,))
    lags, unknown = _lags(asking, name)
    group = lags.get(name)
    partitions = {(one["topic"], one["partition"]): one for one in group["partitions"]} if group is not None else {}
    by_topic: dict[str, int] = {}
    for row in description["offsets"]:
        by_topic[row["topic"]] = by_topic.get(row["topic"], 0) + (row["lag"] or 0)
        one = partitions.get((row["topic"], row["partition"]))
        row |= {column: one[column] if one is not None else None for column in COMPUTED_OF_PARTITIONS}
    settings = section(lambda: _group_settings(asking, name, description["type"]))
    letters = next((row["value"] for row in settings["rows"] if row["name"] == LETTERS_TOPIC), None)
    return {
        **description,
        **_judged(group),
        "settings": settings,
        "letters": letters or None,
        "worst": group["worst"] if group is not None else None,
        "age_s": group["age_s"] if group is not None else None,
        "unknown": unknown if group is None else [],
        "lag_by_topic": [{"topic": topic, "lag": lag} for topic, lag in sorted(by_topic.items())],
        "pictures": Pictures(asking).of_group(asking, name),
    }


def _lags(asking: Asking, *names: str) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """What the coordinators have computed, by group, and what could not be asked: of groups named, or of all."""
    lags, unknown = lag_of_groups(asking.client, names)
    return {one["group"]: one for one in lags if one["status"]}, unknown


def _judged(group: dict[str, Any] | None) -> dict[str, Any]:
    return {column: group[column] if group is not None else None for column in ("seconds", "status")}


def _group_settings(asking: Asking, name: str, kind: str) -> list[dict[str, Any]]:
    """Those that a group of this type has. Raises CliError."""
    begins = SETTINGS_OF[kind]
    return [
        {"name": one.name, "value": None if one.is_sensitive else one.value, "meaning": one.documentation or "",
         "origin": SOURCES.get(one.config_source, "this group"), "changed": one.config_source not in SOURCES,
         "fixed": fixed(one.is_sensitive, one.read_only), "synonyms": [], "allowed": "", "default": None,
         "choices": ["true", "false"] if one.value in {"true", "false"} else []}
        for one in sorted(settings_of_group(asking.client, name), key=lambda one: str(one.name))
        if one.name.startswith(begins)
    ]  # fmt: skip


def group_setting_page(asking: Asking) -> Answer:
    """One setting of a group: meaning, value, and a form."""
    group = asking.text("group")
    if not group or len(group.encode()) > NAME_BYTES_MAX:
        raise PageError(400, "group is missing, or too long")
    rows = [row for kind in SETTINGS_OF for row in _group_settings(asking, group, kind)]
    return {"topic": None, "broker": None, "group": group, **one_setting(asking, rows)}


def _name(asking: Asking) -> str:
    name = asking.params.get("name", "")
    if not name:
        raise PageError(400, "name is missing")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise PageError(404, f"a group's name has {NAME_BYTES_MAX} bytes at most")
    return name


# ---- dead letters --------------------------------------------------------------------------------------------------


def letters_page(asking: Asking) -> Answer:
    """The dead letters in a topic, the newest first, some at a time: of which record each is, why, and whether replays
    have come so far. ``group`` leaves only those of that share group."""
    group, search = asking.text("group"), Search(asking)
    if touched := search.mask.touched([("headers", f"{HEADERS}group")] if group else []):
        raise PageError(403, f"letters cannot be chosen by {touched}, which is masked here")

    def wanted(record: StoredRecord) -> bool:
        return not group or stored_letter(asking.name, record).group == group

    reader = TopicReader(asking.client, asking.name, None)
    bounds = reader.bounds(undecided=False)
    browse = Browse(reader, bounds, count=LETTERS_SHOWN, matches=wanted)
    page = browse.newest(cursor_of(asking))
    try:
        replayed, unknown = replayed_up_to(asking.client, asking.name), None
    except kafka_errors.KafkaError as error:
        replayed, unknown = {}, f"How far replays have come is not told: {type(error).__name__}"
    letters = [
        {**stored_letter(asking.name, search.shown(one)).row(), "timestamp": one.timestamp_ms,
         "message": stored_letter(asking.name, search.shown(one)).message,
         "replayed": one.offset < replayed.get(one.partition, 0)}
        for one in page.records
    ]  # fmt: skip
    return {
        "topic": asking.name,
        "permitted": topic_setting(asking.client, [asking.name], LETTERS).get(asking.name) == "true",
        "letters": letters,
        "group": group,
        "waiting": sum(max(one.end - max(one.first, replayed.get(p, 0)), 0) for p, one in bounds.items()),
        "replayed": bool(replayed),
        "unknown": unknown,
        "silent": sorted(reader.silent),
        "masked": search.mask.names,
        "scanned": browse.budget.scanned,
        "cut_short": page.cut_short,
        "following": encode_cursor(page.following) if page.following is not None else None,
    }
