"""``fleetlog dlq``: dead letters of share groups: list, show, replay, purge."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click
from kafka.structs import OffsetAndMetadata, TopicPartition

from fleetlog.brokers.cli.client import (
    PartitionsOf,
    Target,
    admin,
    client_options,
    complete_topics,
    consumer,
    first_and_end,
    known_partitions,
    named_partitions,
    producer,
)
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.output import CliError, Output, confirm, count_text, iso, warn
from fleetlog.brokers.cli.overview import topic_setting
from fleetlog.brokers.cli.records import RecordPlace, place_argument, stored_record
from fleetlog.brokers.cli.topic_reader import StoredRecord

HEADERS: Final = "__dlq.errors."
REASON: Final = "fleetlog.dlq.reason"
POSITIONS: Final = "fleetlog-dlq-replay"
"""The group whose offsets are how far replays have come."""
POLL_MS = 1_000
TOGETHER = 500
"""Letters of one transaction at most."""


class Letter(NamedTuple):
    """A dead letter, and what it says of its record. ``own`` is what the record had, None for a letter without it."""

    partition: int
    offset: int
    timestamp_ms: int
    origin: RecordPlace | None
    group: str
    deliveries: str
    reason: str
    message: str
    own: tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]] | None

    def row(self) -> dict[str, Any]:
        """As it is shown."""
        return {
            "partition": self.partition, "offset": self.offset, "time": iso(self.timestamp_ms), "group": self.group,
            "record": None if self.origin is None else str(self.origin), "deliveries": self.deliveries,
            "reason": self.reason, "copied": self.own is not None,
        }  # fmt: skip


def letter_of(record: Any) -> Letter:
    """A consumer's record as a dead letter. What a letter of a letter says twice counts as it says it last."""
    said, own = dict[str, str](), list[tuple[str, bytes]]()
    for name, value in record.headers or ():
        if name == REASON or name.startswith(HEADERS):
            said[name.removeprefix(HEADERS)] = (value or b"").decode(errors="replace")
        else:
            own.append((name, value))
    origin = None
    if said.get("topic") and said.get("partition", "").isdigit() and said.get("offset", "0").isdigit():
        origin = RecordPlace(said["topic"], int(said["partition"]), int(said.get("offset", -1)))
    copied = record.key is not None or record.value is not None or bool(own)
    return Letter(
        record.partition, record.offset, record.timestamp, origin, said.get("group", ""),
        said.get("delivery.count", ""), said.get(REASON, ""), said.get("message", ""),
        (record.key, record.value, tuple(own)) if copied else None,
    )  # fmt: skip


def stored_letter(topic: str, record: StoredRecord) -> Letter:
    """A record as it stands in a topic as a dead letter."""
    return letter_of(_Stored(topic, *record[:6]))


def replayed_up_to(client: Any, topic: str, position: str = POSITIONS) -> dict[int, int]:
    """How far replays have come, by partition; none where nothing was replayed. Raises KafkaError."""
    committed = client.list_group_offsets({position: None})[position]
    return {tp.partition: at.offset for tp, at in committed.items() if tp.topic == topic and at.offset >= 0}


def _read(client: Any, places: Mapping[Any, int]) -> Iterator[list[Letter]]:
    """Letters from these offsets to the present end, as they come."""
    client.assign(list(places))
    ends = client.end_offsets(list(places))
    for tp, offset in places.items():
        client.seek(tp, offset)
    while behind := [tp for tp in places if client.position(tp) < ends[tp]]:
        client.resume(*behind)
        polled = client.poll(timeout_ms=POLL_MS, max_records=TOGETHER)
        yield [
            letter_of(record)
            for some in polled.values()
            for record in some
            if record.offset < ends[TopicPartition(record.topic, record.partition)]
        ]


@click.group(cls=CommandGroup)
def dlq() -> None:
    """Dead letters of share groups and of checks of schemas: list, show, replay, purge."""


@dlq.command("list")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
@click.option("--group", "-g", help="Only letters of this share group.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Show so many at most.")
@client_options
def list_letters(target: Target, out: Output, topic: str, group: str | None, limit: int) -> None:
    """List the dead letters of TOPIC from its beginning, with the record that each is of and why."""
    with admin(target, f"topic {topic}") as client:
        begins, _ = first_and_end(client, named_partitions(client, [PartitionsOf(topic, None)]))
    shown: list[Letter] = []
    with consumer(target, f"topic {topic}", isolation_level="read_committed") as reader:
        for some in _read(reader, begins):
            shown += [one for one in some if group is None or one.group == group]
            if len(shown) > limit:
                break
    rows = [one.row() for one in shown[:limit]]
    columns = ["partition", "offset", "time", "group", "record", "deliveries", "reason", "copied"]
    out.rows(columns, [[row[column] for column in columns] for row in rows])
    if len(shown) > limit:
        warn(f"there are more than {limit}: --limit")


@dlq.command("show")
@click.argument("place", callback=place_argument, metavar="TOPIC:PARTITION:OFFSET")
@client_options
def show_letter(target: Target, out: Output, place: RecordPlace) -> None:
    """Show one dead letter with its record: a copy, or the original where the topic still has it."""
    with admin(target, f"topic {place.topic}") as client:
        stored = stored_record(client, place)
        one = stored_letter(place.topic, stored)
        where, own = "copy", one.own
        if own is None:
            where, own = _original(client, one)
    value: dict[str, Any] = {**one.row(), "message": one.message, "original": where}
    if own is not None:
        key, content, headers = own
        shown = [f"{name}={_text(raw)}" for name, raw in headers]
        value |= {"key": _text(key), "value": _text(content), "headers": shown}
    if out.as_json:
        out.value(value)
    else:
        out.rows(["what", "is"], [[name, one] for name, one in value.items()])


class _Stored(NamedTuple):
    """A stored record as a consumer has it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="backslashreplace")


def _original(client: Any, one: Letter) -> tuple[str, Any]:
    """Whether the record is still there, and what it had."""
    if one.origin is None:
        return "unknown", None
    if one.origin.offset < 0:
        return "not taken", None
    try:
        stored = stored_record(client, one.origin)
    except CliError:
        return "gone", None
    return "there", (stored.key, stored.value, stored.headers)


# --- replay -----------------------------------------------------------------------------------------------------


@dlq.command("replay")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
@click.option("--letter", callback=lambda *given: _one_place(given[2]), metavar="PARTITION:OFFSET",
              help="Only this letter. The position of replays stays where it is.")  # fmt: skip
@click.option("--to", "goal", metavar="TOPIC", help="Write there.  [default: the topic that the record was in]")
@click.option("--position", default=POSITIONS, show_default=True, metavar="GROUP",
              help="The group whose offsets say how far replays have come.")  # fmt: skip
@click.option("--execute", is_flag=True, help="Perform the replay. Without it, only show the plan.")
@client_options
def replay_letters(
    *, target: Target, out: Output, topic: str, letter: tuple[int, int] | None, goal: str | None, position: str,
    execute: bool,
) -> None:  # fmt: skip
    """Write the records of dead letters again: all that came after the last replay, or one.

    Records and the position are written in one transaction: a replay that is broken off goes on where it was, and
    nothing is written twice. Shows the plan; --execute performs it.
    """
    with admin(target, f"topic {topic}") as client:
        begins, _ = first_and_end(client, named_partitions(client, [PartitionsOf(topic, None)]))
        if letter is not None:
            letters = [[stored_letter(topic, stored_record(client, RecordPlace(topic, *letter)))]]
            _replay(target, out, client, topic, letters, goal, None, execute)
            return
        reached = replayed_up_to(client, topic, position)
        places = {tp: max(first, reached.get(tp.partition, 0)) for tp, first in begins.items()}
        with consumer(target, f"topic {topic}", isolation_level="read_committed") as reader:
            _replay(target, out, client, topic, _read(reader, places), goal, (position, reader, places), execute)


def _replay(
    target: Target, out: Output, client: Any, topic: str, letters: Any, goal: str | None, position: Any, execute: bool
) -> None:
    counted: Counter[tuple[str, str]] = Counter()
    partitions: dict[str, int] = {}
    with producer(target, f"topic {topic}", f"{POSITIONS}.{topic}") if execute else _Nothing() as writer:
        for some in letters:
            made = [_made(client, one, goal) for one in some]
            for origin, _, what in made:
                counted[origin.topic if origin is not None else "", what] += 1
                if origin is not None and origin.topic not in partitions:
                    known = known_partitions(client, [PartitionsOf(origin.topic, None)])[origin.topic]
                    partitions[origin.topic] = len(known)
            if not execute:
                continue
            writer.begin_transaction()
            sent = []
            for origin, own, what in made:
                if what != "written" or origin is None:
                    continue
                key, value, headers = own
                where = origin.partition if origin.partition < partitions[origin.topic] else None
                sent.append(writer.send(origin.topic, value=value, key=key, headers=list(headers), partition=where))
            if position is not None:
                group, reader, places = position
                reached = {tp: OffsetAndMetadata(reader.position(tp), "", -1) for tp in places}
                writer.send_offsets_to_transaction(reached, group)
            writer.commit_transaction()
            for future in sent:
                future.get(target.timeout_s)
    remarks = _remarks(client, sorted(partitions))
    rows = [[goal_topic or None, what, count] for (goal_topic, what), count in sorted(counted.items())]
    if out.as_json:
        columns = ("topic", "what", "letters", "remarks")
        out.value([dict(zip(columns, (*row, remarks.get(str(row[0]), [])), strict=True)) for row in rows])
    else:
        out.rows(["topic", "what", "letters"], rows)
        for text in (text for _, texts in sorted(remarks.items()) for text in texts):
            warn(text)
    if not execute:
        warn("nothing was written; add --execute to perform the replay")


def _made(client: Any, one: Letter, goal: str | None) -> tuple[RecordPlace | None, Any, str]:
    """Where the record goes, what it has, and what becomes of it."""
    own, what = one.own, "written"
    if own is None:
        where, own = _original(client, one)
        what = "written" if own is not None else f"left out: the original is {where}"
    origin = one.origin
    if origin is not None and goal is not None:
        origin = origin._replace(topic=goal)
    if origin is None:
        what = "left out: it says no topic"
    return origin, own, what


def _remarks(client: Any, topics: list[str]) -> dict[str, list[str]]:
    """What is to be known before something is written to each topic."""
    values = topic_setting(client, topics, "fleetlog.dedup") if topics else {}
    remarks = {}
    for topic in topics:
        reach = f"what is written to {topic} reaches all groups that read it, not only the one that gave the record up"
        drops = f"{topic} drops what it knows (fleetlog.dedup): records that it had before may not come again"
        remarks[topic] = [reach] + ([drops] if values.get(topic, "none") != "none" else [])
    return remarks


class _Nothing:
    """In the place of a producer where nothing is written."""

    def __enter__(self) -> Any:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _one_place(value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,18})", value)
    if match is None:
        raise click.BadParameter(f"{value!r} must be PARTITION:OFFSET")
    return int(match[1]), int(match[2])


# --- purge ------------------------------------------------------------------------------------------------------


@dlq.command("purge")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
@click.option("--to", "wanted", multiple=True, required=True, metavar="[PARTITION:]OFFSET|end",
              help="Delete what is before this offset; of one partition, or of all. Repeatable.")  # fmt: skip
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@client_options
def purge_letters(
    *, target: Target, out: Output, topic: str, wanted: tuple[str, ...], yes: bool, dry_run: bool
) -> None:
    """Delete dead letters before an offset."""
    with admin(target, f"topic {topic}") as client:
        begins, ends = first_and_end(client, named_partitions(client, [PartitionsOf(topic, None)]))
        goals: dict[Any, int] = {}
        for text in wanted:
            match = re.fullmatch(r"(?:([0-9]{1,9}):)?([0-9]{1,18}|end)", text)
            if match is None or (match[1] is not None and TopicPartition(topic, int(match[1])) not in begins):
                raise click.UsageError(
                    f"--to {text}: give OFFSET, PARTITION:OFFSET or end, of partitions that there are"
                )
            for tp in [TopicPartition(topic, int(match[1]))] if match[1] is not None else begins:
                goals[tp] = ends[tp] if match[2] == "end" else min(int(match[2]), ends[tp])
        shrinking = {tp: goal for tp, goal in goals.items() if goal > begins[tp]}
        count = sum(goal - begins[tp] for tp, goal in shrinking.items())
        if shrinking and not dry_run:
            confirm(f"Delete {count_text(count, 'offset')} of {topic}, with the letters there?", yes)
            client.delete_records(shrinking, target.timeout_ms)
    rows = [[tp.partition, begins[tp], goal] for tp, goal in sorted(goals.items())]
    out.rows(["partition", "first offset", "new first offset"], rows)
