"""The messages of a topic: newest, from an offset, from a time; filtered, page by page; exported."""

from __future__ import annotations

import csv
import io
import re
from types import SimpleNamespace
from typing import Any, Final

from fleetlog.brokers.cli.consume import json_line
from fleetlog.brokers.cli.output import iso
from fleetlog.brokers.cli.records import RecordPlace, stored_record
from fleetlog.brokers.cli.times import parse_time
from fleetlog.brokers.cli.topic_reader import COMMITTED, PartitionBounds, StoredRecord, TopicReader
from fleetlog.brokers.console.asking import Answer, Asking, PageError
from fleetlog.brokers.console.browsing import Browse, BrowsedPage, Matches, Positions, decode_cursor, encode_cursor
from fleetlog.brokers.console.decoding import DECODERS, REGISTRY, record_row
from fleetlog.brokers.console.schemas import PageSchemas

FROM: Final = ("newest", "beginning", "offset", "time", "end")
WHERE: Final = ("anywhere", "key", "value", "headers")
SHOW: Final = ("committed", "everything")
FORMATS: Final = ("ndjson", "csv", "parquet")
COUNT_MAX, EXPORT_MAX = 500, 10_000


def messages_page(asking: Asking) -> Answer:
    """A page of records, and the cursors of the one before and behind.

    ``behind``: so many offsets are between the page and the ends of its partitions, to which ``ends`` goes on.
    """
    decoders = DECODERS if asking.registry is None else (*DECODERS, REGISTRY)
    key_how, value_how = asking.choice("key_as", decoders), asking.choice("value_as", decoders)
    schemas = None if asking.registry is None else PageSchemas(asking.registry)
    reader, page, browse, mode = _browse(asking, asking.number("count", 50, 1, COUNT_MAX))
    following, budget = encode_cursor(page.following) if page.following is not None else None, browse.budget
    ends = {p: browse.end(p) if p in browse.bounds else at for p, at in page.reached.items()}
    return {
        "topic": asking.name,
        "partitions": sorted(reader.leaders),
        "silent": sorted(reader.silent),
        "mode": mode,
        "messages": [record_row(asking.name, one, key_how, value_how, schemas) for one in page.records],
        "decoders": decoders,
        "following": following,
        "reached": encode_cursor(page.reached),
        "ends": encode_cursor(ends),
        "behind": None if mode == "newest" else sum(ends[p] - page.reached[p] for p in ends),
        "cut_short": page.cut_short,
        "scanned": budget.scanned,
        "scanned_bytes": budget.scanned_bytes,
    }


def copy_page(asking: Asking) -> Answer:
    """One committed record, and where it may be copied to."""
    place = RecordPlace(
        asking.name, asking.number("partition", 0, 0, 2**31 - 1), asking.number("offset", 0, 0, 2**63 - 1)
    )
    schemas = None if asking.registry is None else PageSchemas(asking.registry)
    row = record_row(asking.name, stored_record(asking.client, place), "auto", "auto", schemas)
    return {"topic": asking.name, "record": row}


def export_file(asking: Asking) -> tuple[bytes, str, str]:
    """The records that the page's form names, as a file: contents, media type, name. Raises PageError."""
    kind = asking.choice("to", FORMATS)
    _, page, _, _ = _browse(asking, asking.number("count", EXPORT_MAX, 1, EXPORT_MAX))
    contents, media = {"ndjson": _ndjson, "csv": _csv, "parquet": _parquet}[kind](asking.name, page.records)
    return contents, media, f"{asking.name}.{kind}"


def _browse(asking: Asking, count: int) -> tuple[TopicReader, BrowsedPage, Browse, str]:
    mode = asking.choice("from", FROM)
    reader = TopicReader(asking.client, asking.name, _partitions(asking.text("partitions")))
    everything = asking.choice("show", SHOW) == "everything"
    bounds = reader.bounds(undecided=everything)
    browse = Browse(reader, bounds, count=count, matches=_filter(asking), everything=everything)
    cursor = _cursor(asking.text("cursor"))
    if mode == "newest":
        page = browse.newest(cursor)
    else:
        page = browse.onward(cursor if cursor is not None else _start(asking, mode, reader, bounds, browse))
    return reader, page, browse, mode


def _start(
    asking: Asking, mode: str, reader: TopicReader, bounds: dict[int, PartitionBounds], browse: Browse
) -> Positions:
    if mode == "beginning":
        return {p: one.first for p, one in bounds.items()}
    if mode == "end":
        return {p: browse.end(p) for p in bounds}
    if mode == "offset":
        return dict.fromkeys(bounds, asking.number("offset", 0, 0, 2**63 - 1))
    text = asking.text("time")
    try:
        moment = parse_time(text)
    except ValueError:
        raise PageError(400, f"{text[:40]!r} is not a time such as 2026-01-31T12:00 or @1769860800000") from None
    offsets = reader.offsets(max(moment, 0), COMMITTED)
    # a partition without a record that is so new has nothing to show
    return {p: offsets[p] if offsets.get(p, -1) >= 0 else browse.end(p) for p in bounds}


def _partitions(text: str) -> list[int] | None:
    if not text:
        return None
    if re.fullmatch(r"[0-9]{1,6}( *, *[0-9]{1,6})*", text) is None:
        raise PageError(400, "partitions must be numbers like 0,3")
    return sorted({int(one) for one in text.split(",")})


def _cursor(text: str) -> Positions | None:
    if not text:
        return None
    try:
        return decode_cursor(text)
    except ValueError:
        raise PageError(400, "the cursor is malformed; begin again without it") from None


def _filter(asking: Asking) -> Matches:
    """Whether the text is in the key, the value, or a header; letters of ASCII in either case."""
    wanted, where = asking.text("contains").encode().lower(), asking.choice("where", WHERE)
    if not wanted:
        return lambda record: True

    def matches(record: StoredRecord) -> bool:
        if where in {"anywhere", "key"} and wanted in (record.key or b"").lower():
            return True
        if where in {"anywhere", "value"} and wanted in (record.value or b"").lower():
            return True
        in_headers = where in {"anywhere", "headers"}
        return in_headers and any(wanted in (n.encode() + b"=" + (v or b"")).lower() for n, v in record.headers)

    return matches


def _ndjson(topic: str, records: list[StoredRecord]) -> tuple[bytes, str]:
    """As ``fleetlog consume --json`` writes and ``fleetlog produce --json`` reads."""
    lines = [json_line(SimpleNamespace(**_consumed(topic, one))) for one in records]
    return b"".join(line + b"\n" for line in lines), "application/x-ndjson"


def _consumed(topic: str, one: StoredRecord) -> dict[str, Any]:
    return {
        "topic": topic, "partition": one.partition, "offset": one.offset, "timestamp": one.timestamp_ms,
        "key": one.key, "value": one.value, "headers": one.headers,
    }  # fmt: skip


def _csv(_: str, records: list[StoredRecord]) -> tuple[bytes, str]:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["partition", "offset", "time", "key", "value", "headers", "state"])
    for one in records:
        headers = " ".join(f"{name}={_cell(value)}" for name, value in one.headers)
        row = [one.partition, one.offset, iso(one.timestamp_ms), _cell(one.key), _cell(one.value), headers]
        writer.writerow([*row[:3], *(_no_formula(str(cell)) for cell in row[3:]), one.marker or one.state])
    return out.getvalue().encode(), "text/csv; charset=utf-8"


def _cell(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode(errors="backslashreplace")


def _no_formula(text: str) -> str:
    """A spreadsheet computes what begins like a formula: an apostrophe says that it is text."""
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r"} and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", text) is not None


def _parquet(_: str, records: list[StoredRecord]) -> tuple[bytes, str]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise PageError(501, "Parquet needs pyarrow: pip install pyarrow") from None
    columns = {
        "partition": pa.array([one.partition for one in records], pa.int32()),
        "offset": pa.array([one.offset for one in records], pa.int64()),
        "timestamp": pa.array([one.timestamp_ms for one in records], pa.timestamp("ms", "UTC")),
        "key": pa.array([one.key for one in records], pa.binary()),
        "value": pa.array([one.value for one in records], pa.binary()),
        "headers": pa.array([list(one.headers) for one in records], pa.map_(pa.string(), pa.binary())),
        "state": pa.array([one.marker or one.state for one in records], pa.string()),
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes(), "application/vnd.apache.parquet"
