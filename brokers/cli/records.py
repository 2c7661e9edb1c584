"""``fleetlog records``: single records: write one, copy one to another topic or partition."""

from __future__ import annotations

import base64
import re
from typing import Any, NamedTuple

import click

from fleetlog._native.columns import partition_for_key
from fleetlog.brokers.cli.client import PartitionsOf, Target, admin, client_options, complete_topics, known_partitions
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.options import partition_option
from fleetlog.brokers.cli.output import CliError, Output, iso
from fleetlog.brokers.cli.record_encoding import WrongValue, schema_options, wanted_encoding
from fleetlog.brokers.cli.sender import InputRecord, Sender
from fleetlog.brokers.cli.topic_reader import COMMITTED, StoredRecord, TopicReader

READ_BYTES = 1
"""Inflated bytes after which reading may stop: the batch with the record is always decoded."""


class RecordPlace(NamedTuple):
    """Where a record stands; an offset of -1: nowhere, as it was not taken."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}" + (f":{self.offset}" if self.offset >= 0 else "")


def place_argument(_: click.Context, __: click.Parameter, value: str) -> RecordPlace:
    """Callback of an argument like ``TOPIC:PARTITION:OFFSET``."""
    match = re.fullmatch(r"([^:]+):([0-9]{1,9}):([0-9]{1,18})", value)
    if match is None:
        raise click.BadParameter(f"{value!r} must be TOPIC:PARTITION:OFFSET")
    return RecordPlace(match[1], int(match[2]), int(match[3]))


_dry_run_option = click.option("--dry-run", is_flag=True, help="Show the record; write nothing.")


def _headers(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    """Callback of an option that takes NAME=VALUE several times; a name may come again."""
    headers = []
    for value in values:
        name, mark, rest = value.partition("=")
        if not mark or not name:
            raise click.BadParameter(f"{value!r} must be NAME=VALUE")
        headers.append((name, rest.encode()))
    return tuple(headers)


@click.group(cls=CommandGroup)
def records() -> None:
    """Single records: write, copy."""


@records.command("write")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
@click.option("--key", "-k", help="Its key; without it the record has none.")
@click.option("--value", "-v", help="Its value.")
@click.option("--null-value", is_flag=True, help="Instead of --value: the record is a tombstone.")
@click.option("--base64", "in_base64", is_flag=True, help="Key and value are given in base64.")
@click.option("--header", "-H", "headers", multiple=True, callback=_headers, metavar="NAME=VALUE")
@partition_option
@schema_options
@_dry_run_option
@client_options
def write_record(
    *,
    target: Target,
    out: Output,
    topic: str,
    key: str | None,
    value: str | None,
    null_value: bool,
    in_base64: bool,
    headers: tuple[tuple[str, bytes], ...],
    partition: int | None,
    dry_run: bool,
    **schemas: Any,
) -> None:
    """Write one record to TOPIC, which must exist; with --schema its value is JSON, checked and written by that."""
    if (value is None) is not null_value:
        raise click.UsageError("give either --value or --null-value")
    if null_value and key is None:
        raise click.UsageError("a tombstone needs --key: it deletes that key's records in a compacted topic")
    encoding = wanted_encoding(target, schemas)
    if encoding is not None and in_base64:
        raise click.UsageError("a schema writes JSON: leave --base64 out")
    record = InputRecord(_raw("--value", value, in_base64), _raw("--key", key, in_base64), headers, partition)
    try:
        encoded = record if encoding is None else encoding.encoded(record)
    except WrongValue as error:
        raise click.UsageError(f"the record is not of its schema: {error}") from None
    _write(target, out, topic, encoded, dry_run, "", record)


@records.command("copy")
@click.argument("origin", callback=place_argument, metavar="TOPIC:PARTITION:OFFSET")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
@partition_option
@click.option("--keep-time", is_flag=True, help="The copy has the record's time instead of the present one.")
@_dry_run_option
@client_options
def copy_record(
    *,
    target: Target,
    out: Output,
    origin: RecordPlace,
    topic: str,
    partition: int | None,
    keep_time: bool,
    dry_run: bool,
) -> None:
    """Write a committed record again, to TOPIC: key, value and headers as they are."""
    with admin(target, f"record {origin}") as client:
        stored = stored_record(client, origin)
    time_ms = stored.timestamp_ms if keep_time else None
    record = InputRecord(stored.value, stored.key, stored.headers, partition, time_ms)
    _write(target, out, topic, record, dry_run, str(origin))


def stored_record(client: Any, place: RecordPlace) -> StoredRecord:
    """The committed record there. Raises CliError if there is none, or its leader does not answer."""
    reader = TopicReader(client, place.topic, [place.partition])
    bounds = reader.bounds().get(place.partition)
    if bounds is None:
        raise CliError(f"topic {place.topic}, partition {place.partition}: its leader does not answer; try again")
    if bounds.first <= place.offset < bounds.stable:
        part = reader.fetch({place.partition: place.offset}, COMMITTED, 1, READ_BYTES).get(place.partition)
        for one in part.records if part is not None else ():
            if one.offset == place.offset and not one.marker and one.state in {"", "committed"}:
                return one
    raise CliError(
        f"there is no committed record at {place}: the partition has offsets {bounds.first} to {bounds.stable}, "
        "without those of markers, aborted transactions and what compaction removed (OFFSET_OUT_OF_RANGE)"
    )


def _raw(option: str, text: str | None, in_base64: bool) -> bytes | None:
    if text is None:
        return None
    if not in_base64:
        return text.encode(errors="surrogateescape")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise click.BadParameter("it is not base64", param_hint=option) from None


def _write(
    target: Target,
    out: Output,
    topic: str,
    record: InputRecord,
    dry_run: bool,
    origin: str,
    shown: InputRecord | None = None,
) -> None:
    """``shown`` is the record as it was before a schema wrote it."""
    with admin(target, f"topic {topic}") as client:
        partition = record.partition
        wanted = PartitionsOf(topic, None if partition is None else (partition,))
        known = known_partitions(client, [wanted])[topic]
        if partition is None and record.key is not None:
            partition = partition_for_key(record.key, len(known))
        if dry_run:
            size = len(record.key or b"") + len(record.value or b"")
            _show(out, topic, partition, shown or record, size, origin)
            return
        sender = Sender(client, topic, acks="all", codec="none", timeout_s=target.timeout_s)
        sender.send([record])
    ((written, offset),) = sender.last.items()
    value = {"topic": topic, "partition": written, "offset": offset, **({"origin": origin} if origin else {})}
    out.done(f"{'copied' if origin else 'written'} to {topic}:{written}:{offset}", value)


def _show(out: Output, topic: str, partition: int | None, record: InputRecord, size: int, origin: str) -> None:
    headers = [f"{name}={_text(value)}" for name, value in record.headers]
    row = {
        "topic": topic, "partition": "any" if partition is None else partition, "key": _text(record.key),
        "value": _text(record.value), "headers": headers, "bytes": size,
        "time": "now" if record.timestamp_ms is None else iso(record.timestamp_ms), "origin": origin or None,
    }  # fmt: skip
    out.rows(list(row), [list(row.values())])


def _text(raw: bytes | None) -> str:
    """As far as it is shown: text, else hexadecimal digits."""
    if raw is None:
        return "null"
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw[:1_000].hex(" ")
    return text[:2_000]
