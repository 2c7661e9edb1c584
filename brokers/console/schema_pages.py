"""Schemas: subjects and their versions, as the registry tells them, and records that brokers refused for them."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import Any, Final

from fleetlog.brokers.cli.broker_logs import LINES_MAX
from fleetlog.brokers.cli.client import raise_for_code
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.console.asking import Answer, Asking, PageError
from fleetlog.brokers.console.commands import choices, listed
from fleetlog.brokers.console.pages import PATIENCE_S, section
from fleetlog.wire import messages

SUBJECTS_SHOWN: Final = 200
SUBJECT_CHARS_MAX: Final = 1_000
ROLES: Final = ("-value", "-key")
"""What the subjects of a topic end with."""
LOOKED_AT: Final = 2_000
"""The newest lines of each broker's log that are looked at."""
REASONS_SHOWN: Final = 100
DOOR: Final = "fleetlog.brokers.log.door"
_REFUSED: Final = re.compile("([^ ]+): records were refused for their schemas, ([0-9]+) by now: (.*)", re.DOTALL)


def schemas_page(asking: Asking) -> Answer:
    """Subjects with their latest version: those whose name has the text, some at a time."""
    form: Answer = {"closed": asking.closed, "subjects": [], "count": 0, "next_start": None, "kinds": _kinds()}
    if asking.closed:
        return {**form, "compatibility": None, "levels": []}
    text, start = asking.text("name").lower(), asking.number("start", 0, 0, 10**9)
    rows = [row for row in listed(asking.target, "schemas") if text in row["subject"].lower()]
    return {
        **form,
        "subjects": rows[start : start + SUBJECTS_SHOWN],
        "count": len(rows),
        "next_start": start + SUBJECTS_SHOWN if start + SUBJECTS_SHOWN < len(rows) else None,
        "compatibility": _level_of_all(asking),
        "levels": choices("schemas", "compatibility", "level"),
    }


def _level_of_all(asking: Asking) -> str | None:
    """None where the viewer may not know."""
    try:
        return str(listed(asking.target, "schemas", "compatibility")["compatibility"])
    except CliError as error:
        if PageError.of(error).status != HTTPStatus.FORBIDDEN:
            raise
        return None


def schema_page(asking: Asking) -> Answer:
    """One subject: a version of it, by default the latest, and what it differs in from another one, by default the one
    before it. Raises PageError, CliError."""
    if asking.closed:
        raise PageError(403, asking.closed)
    name = asking.text("name")
    if not name or len(name) > SUBJECT_CHARS_MAX:
        raise PageError(400 if not name else 404, "give the name of a subject")
    versions = [row["version"] for row in listed(asking.target, "schemas", "versions", names=(name,))]
    version = asking.number("version", versions[-1], 1, 2**31 - 1)
    shown = listed(asking.target, "schemas", "show", f"--version={version}", names=(name,))
    latest = shown
    if version != versions[-1]:
        latest = listed(asking.target, "schemas", "show", names=(name,))
    before = [one for one in versions if one < version]
    other = asking.number("with", before[-1] if before else 0, 0, 2**31 - 1)
    difference = None
    if other and other != version:
        options = (f"--from={other}", f"--to={version}")
        difference = listed(asking.target, "schemas", "diff", *options, names=(name,))
    topics = {str(topic) for topic in asking.client.list_topics()}
    return {
        "subject": name,
        "versions": versions,
        "version": shown["version"],
        "id": shown["id"],
        "kind": shown.get("schemaType", "AVRO"),
        "kinds": _kinds(),
        "schema": _pretty(shown),
        "latest": _pretty(latest),
        "references": shown.get("references") or [],
        "latest_references": latest.get("references") or [],
        "difference": difference,
        "compatibility": listed(asking.target, "schemas", "compatibility", names=(name,))["compatibility"],
        "levels": choices("schemas", "compatibility", "level"),
        "topics": [name.removesuffix(role) for role in ROLES if name.endswith(role) and name[: -len(role)] in topics],
    }


def _kinds() -> tuple[str, ...]:
    return choices("schemas", "check", "kind")


def _pretty(version: dict[str, Any]) -> str:
    """JSON with a line for each part, and what is none as it stands."""
    try:
        return json.dumps(json.loads(version["schema"]), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return str(version["schema"]).strip()


# ---- refused at the door -------------------------------------------------------------------------------------------


def refused_page(asking: Asking) -> Answer:
    """Records that brokers refused for their schemas: how many of each topic since the brokers started, and the last
    reasons, as their logs have them. ``topic`` leaves only those of that one."""
    wanted = asking.text("topic")
    topics = {str(topic) for topic in asking.client.list_topics()}
    reasons = section(lambda: [row for row in _reasons(asking) if row["topic"] in topics])
    counts = asking.collector.refused_records() if asking.collector is not None else {}
    told: dict[str, dict[int, int]] = {}
    for row in reasons["rows"]:  # the newest first
        told.setdefault(row["topic"], {}).setdefault(row["broker"], row["by_now"])
    rows = [
        {"topic": topic, "records": max(counts.get(topic, 0), sum(told.get(topic, {}).values())),
         "last": next((row["time"] for row in reasons["rows"] if row["topic"] == topic), None)}
        for topic in sorted({*counts, *told} & topics)
    ]  # fmt: skip
    shown = [row for row in reasons["rows"] if wanted in ("", row["topic"])]
    return {
        "topic": wanted,
        "topics": [row for row in rows if row["records"] and wanted in ("", row["topic"])],
        "reasons": {**reasons, "rows": shown[:REASONS_SHOWN]},
        "count": len(shown),
    }


def _reasons(asking: Asking) -> list[dict[str, Any]]:
    """What the brokers' logs say of refused records, the newest first. Raises CliError, also without the right."""
    client, kind = asking.client, messages.DescribeLogLinesRequest
    brokers = sorted(row["broker_id"] for row in client.describe_cluster()["brokers"])
    newest = client.ask_each({one: kind(version=0, after_number=-1, limit=1) for one in brokers}, PATIENCE_S)
    ends = {number: _last(number, answer) for number, answer in newest.items() if answer is not None}
    if not ends:
        raise CliError("no broker tells its log: they do not answer, or are of an older release")
    at = {number: max(end - LOOKED_AT, 0) for number, end in ends.items()}
    rows = []
    while at:
        requests = {number: kind(version=0, after_number=after, limit=LINES_MAX) for number, after in at.items()}
        at = {}
        for number, answer in client.ask_each(requests, PATIENCE_S).items():
            lines = answer.lines if answer is not None else []
            rows += [
                {"time": one.time_ms, "broker": number, "topic": match[1], "by_now": int(match[2]), "reason": match[3]}
                for one in lines
                if one.logger == DOOR and (match := _REFUSED.fullmatch(one.message))
            ]
            if lines and lines[-1].number < ends[number]:
                at[number] = lines[-1].number
    return sorted(rows, key=lambda row: (-row["time"], row["broker"]))


def _last(broker_id: int, answer: Any) -> int:
    raise_for_code(f"the log of broker {broker_id}", answer.error_code)
    return int(answer.lines[-1].number) if answer.lines else 0
