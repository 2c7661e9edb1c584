"""``fleetlog consume``: records to stdout, from one position to another, alone or as a member of a group."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from kafka.errors import RebalanceInProgressError
from kafka.protocol.consumer import IsolationLevel, OffsetSpec
from kafka.structs import OffsetAndMetadata, TopicPartition

from fleetlog.brokers.cli.client import (
    PartitionsOf,
    Target,
    admin,
    client_options,
    complete_groups,
    complete_topics,
    consumer,
    explain,
    known_partitions,
    offsets_at,
    topic_partitions,
)
from fleetlog.brokers.cli.options import regular_expression
from fleetlog.brokers.cli.output import CliError, Output, count_text, iso, number_text, progress, warn
from fleetlog.brokers.cli.record_format import RecordText
from fleetlog.brokers.cli.registries import BY_SCHEMA, known_registry, registry_access, registry_option
from fleetlog.brokers.cli.times import Point, PointType

if TYPE_CHECKING:
    from fleetlog.brokers.cli.record_decoding import DecodedPart, DecodedRecord, RecordDecoding
    from fleetlog.brokers.cli.record_filter import RecordFilter

POLL_MS = 1_000
"""Data ends a poll at once; on a busy machine shorter polls only split a group join into more steps."""


DECODERS = ("auto", "avro", "json", "protobuf", "string", "hex", "raw")
_FIELDS = ("key", "value")
_RESETS = {"beginning": "earliest", "end": "latest"}
"""Where a group without offsets begins, as clients call it."""


def _shape(_: click.Context, __: click.Parameter, text: str | None) -> RecordText | None:
    try:
        return None if text is None else RecordText(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _condition(_: click.Context, __: click.Parameter, text: str | None) -> RecordFilter | None:
    if text is None:
        return None
    from fleetlog.brokers.cli.record_filter import FilterError, parse_filter

    try:
        return parse_filter(text)
    except FilterError as error:
        raise click.BadParameter(str(error)) from None


def _decoders(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """How key and value are decoded, as far as it is said."""
    wanted: dict[str, str] = {}
    for value in values:
        field, mark, how = value.rpartition("=")
        if how not in DECODERS or (mark and field not in _FIELDS):
            raise click.BadParameter(f"{value!r} is none of {', '.join(DECODERS)}, and key= or value= may stand before")
        for name in [field] if mark else _FIELDS:
            if wanted.setdefault(name, how) != how:
                raise click.BadParameter(f"the {name} is decoded in one way, not as {wanted[name]} and {how}")
    return wanted


def _wanted(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[PartitionsOf]:
    if not ctx.params.get("regex"):
        return topic_partitions(ctx, param, values)
    for value in values:
        _expression(value)
    return [PartitionsOf(value, None) for value in values]


def _expression(text: str) -> Any:
    try:
        return regular_expression(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument(
    "wanted",
    nargs=-1,
    required=True,
    callback=_wanted,
    metavar="TOPIC[:P,...]...",
    shell_complete=complete_topics,
)
@click.option(
    "--regex", "-r", is_flag=True, is_eager=True,
    help="Each TOPIC is a regular expression (RE2) of whole names; topics that are made later are not read.",
)  # fmt: skip
@click.option(
    "--from",
    "--offset",
    "-o",
    "start",
    type=PointType(),
    help="beginning, end, end-10 or -10 (10 offsets before the end of each partition), an offset, a time"
    " (2013-01-31T12:00, @1359633600000), or -1h.  [default: beginning, or what the group committed; a new group"
    " takes beginning or end]",
)
@click.option(
    "--to",
    "stop",
    type=PointType(),
    help="The same, exclusive; end is that of now.  [default: never stop]",
)
@click.option("--count", "-n", type=click.IntRange(0, 2**63 - 1), help="Stop after so many records.")
@click.option(
    "--filter", "matches", metavar="EXPRESSION", callback=_condition,
    help="Only records that match, such as \"value.price > 10 && key startsWith 'eu-'\"; fields are key, value,"
    " headers, time, topic, partition and offset; also ==, !=, contains, endsWith, matches (RE2), !, || and brackets.",
)  # fmt: skip
@click.option(
    "--decode", "decoders", metavar="[key=|value=]HOW", multiple=True, callback=_decoders,
    help=f"How keys and values are shown: {', '.join(DECODERS)}; may be repeated. auto: by the schema whose id comes"
    " first, where a registry is known, else as they are.  [default: auto]",
)  # fmt: skip
@registry_option
@click.option("--group", "-g", shell_complete=complete_groups, help="Read as a member of this group and commit.")
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Whether to skip records of transactions that are open or aborted.",
)
@click.option("--key-separator", "-K", metavar="TEXT", help="Write the key and this before each value; \\t is a tab.")
@click.option("--details", is_flag=True, help="Write topic, partition, offset, time and headers before each record.")
@click.option(
    "--format", "-f", "shape", metavar="TEXT", callback=_shape,
    help="Write each record so: %k key, %v value, %t topic, %p partition, %o offset, %T time in ms, %T{iso},"
    " %h headers, %h{name} one of them, %K and %V lengths, %H number of headers, %e leader epoch; %k{hex}, {base64},"
    " {json}; \\n, \\t, \\xNN.",
)  # fmt: skip
@client_options
def consume(
    *,
    target: Target,
    out: Output,
    wanted: list[PartitionsOf],
    start: Point | None,
    stop: Point | None,
    count: int | None,
    group: str | None,
    isolation: str,
    key_separator: str | None,
    details: bool,
    regex: bool,
    shape: RecordText | None,
    matches: RecordFilter | None,
    decoders: dict[str, str],
    registry: str | None,
) -> None:
    """Write records of topics to stdout: values as they are, one JSON object a line with --json, or by a --format.

    \b
      fleetlog consume orders --from -1h --to end
      fleetlog consume orders -o end-10 -f '%T{iso} %p:%o %k %h{trace} %v\\n'
      fleetlog consume orders --to end --filter "value.price > 10 && headers.region == 'eu' && time > '-2h'"
      fleetlog consume orders --decode key=string --decode value=avro --filter "value.price > 10"
      fleetlog consume --regex 'orders\\..*' --from 2013-01-31T12:00
    """
    if shape is not None and (out.as_json or details or key_separator is not None):
        raise click.UsageError("--format says all: leave --json, --details and --key-separator out")
    if group is not None:
        _check_group(group, wanted, start)
    separator = key_separator.replace("\\t", "\t").encode() if key_separator is not None else None
    about = "topic " + ", ".join(one.topic for one in wanted)
    text_of = shape.of if shape is not None else _Lines(separator, details).of
    decoding = _decoding(target, registry, decoders)
    writer = _Writer(None if out.as_json else text_of, count, matches, decoding)
    with admin(target, about) as client:
        if regex:
            wanted = _matching(client, [one.topic for one in wanted])
        bounds = _Bounds(client, wanted, start or Point("beginning"), stop, isolation)
        if group and start is not None:
            _check_new(client, group, {one.topic for one in wanted})
    if not bounds.open and (count == 0 or bounds.finished()):
        return
    config: dict[str, Any] = {
        "isolation_level": isolation,
        "group_id": group,
        "auto_offset_reset": _RESETS[start.kind if group and start is not None else "beginning"],
        "request_timeout_ms": min(max(target.timeout_ms, 1_000), 500_000),
    }
    # On SIGTERM the member leaves its group: the others need not wait for its session to time out.
    before = signal.signal(signal.SIGTERM, _interrupt)
    # On a terminal the records themselves show the progress.
    with consumer(target, about, **config) as client, progress(not sys.stdout.isatty()) as bar:
        task = bar.add_task(about, total=count if count is not None else bounds.total())
        writer.on_progress = lambda done: bar.update(task, completed=done)
        try:
            watch = _Watch(client, target)
            if group is None:
                _read_alone(client, bounds, writer, watch)
            else:
                _read_in_group(client, wanted, bounds, writer, watch)
        except KeyboardInterrupt:
            pass
        except NotJoined:
            assert group is not None, "only members join"
            raise _why_not_joined(target, group) from None
        except BrokenPipeError:  # as in `consume ... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            signal.signal(signal.SIGTERM, before)
            sys.stdout.flush()
    if sys.stderr.isatty():
        seen = f" of {writer.count + writer.left_out}" if matches is not None else ""
        warn(f"{count_text(writer.count, 'record')}{seen}")


def _check_group(group: str, wanted: list[PartitionsOf], start: Point | None) -> None:
    """Raises click.UsageError."""
    if any(one.partitions is not None for one in wanted):
        raise click.UsageError("a group reads whole topics: name no partitions")
    if start is not None and start.kind not in _RESETS:
        raise click.UsageError("a new group begins at beginning or end: move it with `fleetlog groups reset`")
    if group == "":
        raise click.UsageError("a group's name must not be empty")


def _decoding(target: Target, registry: str | None, decoders: dict[str, str]) -> RecordDecoding | None:
    """None where records are written as they are. Raises CliError and click's errors."""
    how = {name: decoders.get(name, "auto") for name in _FIELDS}
    url = known_registry(registry, target) if {*how.values()} - {"raw", "hex", "string"} else ""
    if not url and {*how.values()} & {*BY_SCHEMA}:
        raise click.UsageError("--decode avro and protobuf need the schemas of a registry: name it by --registry URL")
    if not url and not {*how.values()} - {"raw", "auto"}:
        return None
    from fleetlog.brokers.cli.record_decoding import RecordDecoding  # with all that reads schemas
    from fleetlog.brokers.cli.schema_values import SchemaRegistry

    schemas = None
    if url:
        try:
            access = registry_access(url, target)
        except CliError as error:
            if registry is not None or {*how.values()} & {*BY_SCHEMA}:
                raise
            warn(f"nothing is decoded by a schema: {error.message}")
        else:
            schemas = SchemaRegistry.of(access, target.timeout_s)
    return RecordDecoding(how["key"], how["value"], schemas)


def _matching(client: Any, patterns: list[str]) -> list[PartitionsOf]:
    """The topics, but internal ones, whose whole names match one of the patterns. Raises CliError if there is none."""
    matched = [_expression(pattern) for pattern in patterns]
    listed = [topic["name"] for topic in client.describe_topics() if not topic["is_internal"]]
    names = [name for name in sorted(listed) if any(one.fullmatch(name) for one in matched)]
    if not names:
        raise CliError("no topic has such a name; see `fleetlog topics list`")
    return [PartitionsOf(name, None) for name in names]


def _check_new(client: Any, group: str, topics: set[str]) -> None:
    """Raises CliError for a group that has a position in one of the topics already."""
    committed = client.list_group_offsets({group: None})[group]
    known = sorted({tp.topic for tp, row in committed.items() if row.offset >= 0} & topics)
    if known:
        raise CliError(
            f"group {group} has committed offsets of {', '.join(known)}: without --from it goes on there, and"
            f" `fleetlog groups reset` moves it"
        )


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Bounds:
    """First and end offset of each partition."""

    def __init__(self, client: Any, wanted: list[PartitionsOf], start: Point, stop: Point | None, isolation: str):
        level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
        self.partitions = [
            TopicPartition(topic, p["partition_index"])
            for topic, listed in known_partitions(client, wanted).items()
            for p in listed
        ]
        self.open = stop is None
        ends = client.list_partition_offsets(dict.fromkeys(self.partitions, OffsetSpec.LATEST), level)
        begins = client.list_partition_offsets(dict.fromkeys(self.partitions, OffsetSpec.EARLIEST))
        first, end = ({tp: offsets[tp].offset for tp in self.partitions} for offsets in (begins, ends))
        self.start = offsets_at(client, start, first, end)
        self.stop = offsets_at(client, stop, first, end) if stop is not None else {}

    def total(self) -> int | None:
        """About how many records there are to read."""
        return None if self.open else sum(max(self.stop[tp] - self.start[tp], 0) for tp in self.partitions)

    def past(self, tp: Any, offset: int) -> bool:
        """Whether the position is at or beyond the end of the range."""
        return not self.open and offset >= self.stop.get(tp, 0)

    def finished(self, positions: dict[Any, int] | None = None) -> bool:
        """Whether every partition has been read to the end of its range."""
        at = self.start if positions is None else positions
        return not self.open and all(at.get(tp, -1) >= offset for tp, offset in self.stop.items())


class _Writer:
    """Writes records, and knows when it has written enough."""

    def __init__(
        self,
        text_of: Callable[[Any, Any], bytes] | None,
        limit: int | None,
        matches: RecordFilter | None,
        decoding: RecordDecoding | None,
    ) -> None:
        """``text_of`` makes the text of a record, and of what is shown of it; None: JSON."""
        self._text_of, self._limit, self._matches, self._decoding = text_of, limit, matches, decoding
        self.count = 0
        self.left_out = 0
        self.on_progress: Callable[[int], None] = lambda done: None

    @property
    def left(self) -> int | None:
        """How many more are wanted; None where that is not known to be so many records of the log."""
        return None if self._limit is None or self._matches is not None else self._limit - self.count

    def flush(self) -> None:
        """After each poll."""
        sys.stdout.flush()
        self.on_progress(self.count if self._limit is not None else self.count + self.left_out)

    @property
    def full(self) -> bool:
        return self._limit is not None and self.count >= self._limit

    def write(self, record: Any) -> None:
        seen = None if self._decoding is None else self._decoding.seen(record)
        if self._matches is not None and not self._fits(self._matches, record, seen):
            self.left_out += 1
            return
        if self._text_of is None:
            text = json_line(record, seen) + b"\n"
        else:
            text = self._text_of(record, None if seen is None else seen.as_shown)
        sys.stdout.buffer.write(text)
        self.count += 1

    def _fits(self, matches: RecordFilter, one: Any, seen: DecodedRecord | None) -> bool:
        from fleetlog.brokers.cli.record_filter import FilteredRecord, FilterError

        plain = (one.topic, one.partition, one.offset, one.timestamp, one.key, one.value, one.headers)
        try:
            return matches(FilteredRecord(*plain) if seen is None else seen)
        except FilterError as error:
            raise CliError(f"--filter: {error}") from None


class _Lines:
    """Values as they are, a line each, behind what was asked for."""

    def __init__(self, separator: bytes | None, details: bool) -> None:
        self._separator = separator
        self._details = details

    def of(self, record: Any, shown: Any = None) -> bytes:
        """The line of a record. ``shown`` has its key and value as text, where they are decoded."""
        shown = record if shown is None else shown
        parts = (
            [f"{record.topic}:{record.partition}:{record.offset} {iso(record.timestamp) or '-'} "]
            if self._details
            else []
        )
        if self._details and record.headers:
            parts.append(" ".join(f"{k}={(v or b'').decode(errors='replace')}" for k, v in record.headers) + " ")
        begin = "".join(parts).encode()
        if self._separator is not None:
            begin += (shown.key or b"") + self._separator
        return begin + (shown.value or b"") + b"\n"


def json_line(record: Any, seen: DecodedRecord | None = None) -> bytes:
    """One record as one line of JSON; bytes that are not text are written as ``..._base64``.

    ``seen`` has key and value decoded: those stand as values of JSON, with the id of their schema.
    """
    data: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **(_text("key", record.key) if seen is None else _decoded("key", seen.key_part)),
        **(_text("value", record.value) if seen is None else _decoded("value", seen.value_part)),
    }
    if record.headers:
        data["headers"] = [{"name": name, **_text("value", value)} for name, value in record.headers]
    # half of a surrogate pair, which JSON may name, is no character: it stays as it was written
    return json.dumps(data, ensure_ascii=False).encode(errors="backslashreplace")


def _decoded(name: str, part: DecodedPart) -> dict[str, Any]:
    if not part.is_json:
        return _text(name, part.text)
    return {name: part.value} | ({} if part.schema is None else {f"{name}_schema": part.schema})


def _text(name: str, raw: bytes | None) -> dict[str, Any]:
    try:
        return {name: None if raw is None else bytes(raw).decode()}
    except UnicodeDecodeError:
        assert raw is not None
        return {f"{name}_base64": base64.b64encode(raw).decode()}


class NotJoined(Exception):
    """The group did not take this member within the timeout."""


def _why_not_joined(target: Target, group: str) -> CliError:
    """What is wrong with a group's coordinator, or that other members are slow."""
    with admin(target, f"group {group}") as client:
        for answer in client.find_coordinators(group, target.timeout_s):
            if answer.error_code:
                return CliError(f"group {group}: {explain(answer.error_code, answer.error_message)}")
    return CliError(
        f"group {group}: no partitions within {number_text(target.timeout_s)} s: its coordinator does not answer "
        "(see `fleetlog cluster describe`), or other members are slow to rebalance; wait longer with --timeout"
    )


class _Watch:
    """Whether the brokers still answer: a consumer cannot distinguish an idle partition from one without a leader."""

    def __init__(self, client: Any, target: Target) -> None:
        self._client = client
        self.timeout_s = target.timeout_s
        self.timeout_ms = target.timeout_ms
        self._heard_s = time.monotonic()

    def heard(self) -> None:
        """Note that data arrived."""
        self._heard_s = time.monotonic()

    def ask(self, partitions: Collection[Any]) -> None:
        """After half of the timeout in silence ask the leaders; raises KafkaTimeoutError after the other half."""
        if time.monotonic() - self._heard_s >= self.timeout_s / 2:
            self._client.end_offsets(list(partitions), timeout_ms=max(1, self.timeout_ms // 2))
            self.heard()

    def poll_ms(self) -> int:
        """How long one poll may take."""
        return min(POLL_MS, max(1, self.timeout_ms // 2))


def _read_alone(client: Any, bounds: _Bounds, writer: _Writer, watch: _Watch) -> None:
    client.assign(bounds.partitions)
    for tp, offset in bounds.start.items():
        client.seek(tp, offset)
    while not writer.full:
        if _write(client.poll(timeout_ms=watch.poll_ms()), bounds, writer):
            watch.heard()
        writer.flush()
        # Positions also pass what is never delivered: markers and aborted records.
        if bounds.finished({tp: client.position(tp, timeout_ms=watch.timeout_ms) for tp in bounds.partitions}):
            return
        watch.ask(bounds.partitions)


def _write(batch: dict[Any, list[Any]], bounds: _Bounds, writer: _Writer) -> dict[Any, Any]:
    """Write a poll's records as far as they are wanted; returns what may be committed."""
    written: dict[Any, Any] = {}
    for tp, records in batch.items():
        for record in records:
            if writer.full or bounds.past(tp, record.offset):
                break
            writer.write(record)
            written[tp] = OffsetAndMetadata(record.offset + 1, "", -1)
    return written


class _Commits:
    """Commits the offsets of written records. While the group rebalances that fails: they wait for a later poll."""

    def __init__(self, client: Any, watch: _Watch) -> None:
        self._client = client
        self._watch = watch
        self._due: dict[Any, Any] = {}

    def commit(self, written: dict[Any, Any]) -> None:
        """Commit these and what is due, but for partitions that other members own now: those read them again."""
        owned = self._client.assignment()  # empty in the midst of a rebalance
        due = {tp: offset for tp, offset in (self._due | written).items() if not owned or tp in owned}
        if not due:
            self._due = {}
            return
        try:
            self._client.commit(due, timeout_ms=self._watch.timeout_ms)
        except RebalanceInProgressError:
            self._due = due
        else:
            self._due = {}

    def finish(self) -> None:
        """Commit what is due; a rebalance may take the timeout to end."""
        deadline = time.monotonic() + self._watch.timeout_s
        while self._due and time.monotonic() < deadline:
            self._client.poll(timeout_ms=self._watch.poll_ms(), max_records=1)  # joins the group again
            self.commit({})
        if self._due:
            raise RebalanceInProgressError


def _read_in_group(client: Any, wanted: list[PartitionsOf], bounds: _Bounds, writer: _Writer, watch: _Watch) -> None:
    """At least once: the offsets of written records are committed after each poll, and at the end."""
    for topic, _ in wanted:
        client.partitions_for_topic(topic)  # otherwise the first assignment would be empty: the topic is unknown
    client.subscribe([one.topic for one in wanted])
    idle_since = time.monotonic()
    commits = _Commits(client, watch)
    while not writer.full:
        written = _write(client.poll(timeout_ms=watch.poll_ms(), max_records=writer.left), bounds, writer)
        writer.flush()
        if written:
            watch.heard()
        commits.commit(written)
        owned = client.assignment()
        if not owned:
            waited = time.monotonic() - idle_since > watch.timeout_s
            if waited and client._coordinator.need_rejoin():
                raise NotJoined
            if waited and not bounds.open:
                warn("the group gave this member no partition")
                return
            continue
        idle_since = time.monotonic()
        positions = {tp: client.position(tp, timeout_ms=watch.timeout_ms) or 0 for tp in owned}
        mine = {tp: positions.get(tp, bounds.stop[tp]) for tp in bounds.stop}
        if bounds.finished(mine):
            break
        watch.ask(owned)
    commits.finish()
