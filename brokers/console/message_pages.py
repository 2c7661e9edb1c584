"""The messages of a topic: newest, from an offset, from a time; filtered, page by page; exported.

Which records of a topic a page shows, and where the next page begins.

A page never hangs: what it scans is bounded in records, bytes and seconds, and it stops where the partitions ended when
it began. Where that is too little, it shows what it has, and its cursor goes on from there.

Keys and values as text: JSON, Avro by a registry, strings, numbers, bytes, and the internal topics' own records.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import csv
import heapq
import io
import json
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from fleetlog._native.batch import BatchHeader
from fleetlog.brokers.cli.consume import json_line
from fleetlog.brokers.cli.output import iso
from fleetlog.brokers.cli.record_decoding import RecordDecoding
from fleetlog.brokers.cli.record_filter import FilteredRecord, FilterError, json_of, parse_columns, parse_filter
from fleetlog.brokers.cli.records import RecordPlace, stored_record
from fleetlog.brokers.cli.schema_examples import example_of
from fleetlog.brokers.cli.schema_values import (
    PREFIX_BYTES,
    PageSchemas,
    SchemaProblem,
    SchemaRegistry,
    schema_header,
    schema_id,
)
from fleetlog.brokers.cli.times import parse_moment, parse_time
from fleetlog.brokers.cli.topic_reader import (
    COMMITTED,
    UNCOMMITTED,
    FetchedPart,
    PartitionBounds,
    StoredRecord,
    TopicReader,
)
from fleetlog.brokers.console.asking import Answer, Asking, PageError
from fleetlog.brokers.console.changes import PLACEHOLDERS
from fleetlog.brokers.console.json_views import cell_text, hex_lines, record_differences
from fleetlog.brokers.console.masking import INTERNAL

RECORDS_MAX: Final = 10_000
BYTES_MAX: Final = 20_000_000
SECONDS_MAX: Final = 10.0
_COMMITTED: Final = frozenset({"", "committed"})
FIRST_SPAN: Final = 16
"""Offsets of each partition that the first step back takes; each further one takes twice as many."""
CURSOR_MAX: Final = 40_000

Positions = dict[int, int]
Matches = Callable[[StoredRecord], bool]
HoldsNone = Callable[[bytes], bool]
"""Whether no record in these bytes of a batch can match."""


@dataclass(slots=True)
class ScanBudget:
    """What one page may still scan."""

    records: int = RECORDS_MAX
    size: int = BYTES_MAX
    seconds: float = SECONDS_MAX
    now_s: Callable[[], float] = time.monotonic
    scanned: int = 0
    scanned_bytes: int = 0
    only_time: bool = False
    """The first step of a page is made whatever its bytes: otherwise large records would never be shown."""
    end_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.end_s = self.now_s() + self.seconds

    def spend(self, records: int, size: int) -> None:
        """Count what was scanned."""
        self.scanned += records
        self.scanned_bytes += size

    @property
    def left(self) -> int:
        """Records that may still be scanned."""
        return max(self.records - self.scanned, 0)

    @property
    def left_bytes(self) -> int:
        """Bytes, inflated, that may still be scanned."""
        return max(self.size - self.scanned_bytes, 0)

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return self.now_s() >= self.end_s

    @property
    def exhausted(self) -> bool:
        """Whether the page must end."""
        if self.late:
            return True
        return not self.only_time and (not self.left or not self.left_bytes)


class BrowsedPage(NamedTuple):
    """Records in the order shown, the offsets where the next page begins, and whether the budget ended this one.

    ``following`` is None where there is nothing more in this direction; ``reached`` is where the page ends.
    """

    records: list[StoredRecord]
    following: Positions | None
    cut_short: bool
    reached: Positions


class Browse:
    """One page of a topic. With ``everything`` records of aborted and open transactions and markers are shown, too."""

    def __init__(
        self,
        source: TopicReader,
        bounds: Mapping[int, PartitionBounds],
        *,
        count: int,
        matches: Matches,
        everything: bool = False,
        budget: ScanBudget | None = None,
        holds_none: HoldsNone | None = None,
    ) -> None:
        self._source, self.bounds, self._count = source, bounds, count
        self._matches, self._everything, self._holds_none = matches, everything, holds_none
        self.budget = budget or ScanBudget()

    def end(self, partition: int) -> int:
        """Where reading stops."""
        bounds = self.bounds[partition]
        return bounds.end if self._everything else bounds.stable

    def onward(self, start: Positions) -> BrowsedPage:
        """The records from these offsets on, merged by time."""
        stop = {p: self.end(p) for p in start if p in self.bounds}
        at = {p: min(max(start[p], self.bounds[p].first), stop[p]) for p in stop}
        records: dict[int, list[StoredRecord]] = {p: [] for p in at}
        self._scan(at, stop, records, lambda p: len(records[p]) >= self._count)
        merged = heapq.merge(*records.values(), key=lambda one: (one.timestamp_ms, one.partition, one.offset))
        shown = [record for record, _ in zip(merged, range(self._count), strict=False)]
        number = Counter(record.partition for record in shown)
        following = {}
        for p, rows in records.items():
            taken = number[p]
            following[p] = rows[taken].offset if taken < len(rows) else at[p]
        at_end = all(following[p] >= stop[p] for p in following)
        reached = {**start, **following}  # a partition whose leader is away is gone on with when it is back
        return BrowsedPage(shown, None if at_end else reached, self.budget.exhausted, reached)

    def newest(self, before: Positions | None = None) -> BrowsedPage:
        """The newest records below these offsets, the newest first."""
        stop = {
            p: min((before or {}).get(p, self.end(p)), self.end(p))
            for p in self.bounds
            if before is None or p in before
        }
        records: dict[int, list[StoredRecord]] = {p: [] for p in stop}
        low = dict(stop)
        span = max(1, min(self._count, FIRST_SPAN, RECORDS_MAX // max(len(stop), 1)))
        self.budget.only_time = True
        while not self.budget.exhausted:
            top, low = low, {p: max(low[p] - span, min(self.bounds[p].first, low[p])) for p in low}
            wider = {p for p in low if low[p] < top[p]}
            if not wider:
                break
            part: dict[int, list[StoredRecord]] = {p: [] for p in wider}
            at = {p: low[p] for p in wider}
            self._scan(at, {p: top[p] for p in wider}, part, lambda _: False)
            self.budget.only_time = False
            for p in wider:
                if at[p] < top[p]:  # the budget ended in the middle: the next page takes this step again
                    low[p] = top[p]
                else:
                    records[p] = part[p] + records[p]
            if sum(map(len, records.values())) >= self._count:
                break
            span *= 2
        downward = [list(reversed(rows)) for rows in records.values()]
        merged = heapq.merge(*downward, key=lambda one: (-one.timestamp_ms, -one.partition, -one.offset))
        shown = [record for record, _ in zip(merged, range(self._count), strict=False)]
        number = Counter(record.partition for record in shown)
        following = {}
        for p, rows in records.items():
            taken = number[p]
            following[p] = low[p] if taken == len(rows) else rows[len(rows) - taken].offset if taken else stop[p]
        at_start = all(following[p] <= self.bounds[p].first for p in following)
        return BrowsedPage(shown, None if at_start else following, self.budget.exhausted, following)

    def _scan(
        self, at: Positions, stop: Positions, found: dict[int, list[StoredRecord]], enough: Callable[[int], bool]
    ) -> None:
        """Advance ``at`` up to ``stop``, and collect what matches, until the budget ends or nothing comes."""
        while not self.budget.exhausted:
            due = [p for p in at if at[p] < stop[p] and not enough(p)]
            if not due:
                return
            due.sort(key=lambda p: len(found[p]))  # brokers fill answers in the order asked for
            moved = False
            for isolation in (COMMITTED, UNCOMMITTED):
                asked = {p: at[p] for p in due if (at[p] < self.bounds[p].stable) == (isolation == COMMITTED)}
                for p, part in self._fetched(asked, stop, isolation).items():
                    reached = min(self._look_at(part, stop[p], found[p]), stop[p])
                    moved |= reached > at[p]
                    at[p] = max(at[p], reached)
            if not moved:
                return

    def _look_at(self, part: FetchedPart, stop: int, matching: list[StoredRecord]) -> int:
        """Collect what matches below ``stop``; returns up to which offset that was done."""
        budget, matches, all_of_them = self.budget, self._matches, self._everything
        now_s, end_s, looked, reached = budget.now_s, budget.end_s, part.passed_over, part.next_offset
        for record in part.records:
            if record.offset >= stop:  # a batch may reach beyond
                break
            if now_s() >= end_s:
                reached = record.offset
                break
            looked += 1
            if (all_of_them or (not record.marker and record.state in _COMMITTED)) and matches(record):
                matching.append(record)
        budget.spend(looked, part.size)
        return reached

    def _fetched(self, asked: Positions, stop: Positions, isolation: int) -> dict[int, FetchedPart]:
        if not asked:
            return {}
        holds_none, passes_over = self._holds_none, None
        if holds_none is not None:

            def passes_over(partition: int, header: BatchHeader, payload: bytes) -> bool:
                inside = header.base_offset >= asked[partition] and header.last_offset < stop[partition]
                return inside and holds_none(payload)

        records = max(self.budget.left // len(asked), 1)
        return self._source.fetch(asked, isolation, records, self.budget.left_bytes, passes_over)


def encode_cursor(positions: Positions) -> str:
    """Offsets by partition as text for an address."""
    text = ",".join(f"{partition}.{offset}" for partition, offset in sorted(positions.items()))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(text: str) -> Positions:
    """The reverse; raises ValueError."""
    if len(text) > CURSOR_MAX:
        raise ValueError("the cursor is too long")
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    positions = {}
    for one in raw.split(","):
        partition, _, offset = one.partition(".")
        if not (partition.isdecimal() and offset.isdecimal() and len(partition) < 10 and len(offset) < 20):
            raise ValueError("the cursor is malformed")
        positions[int(partition)] = int(offset)
    return positions


DECODERS: Final = ("auto", "json", "text", "number", "hex", "base64")
REGISTRY: Final = "registry"
"""The decoder of a console that was started with a schema registry."""
SHOWN_MAX: Final = 4_000
"""Characters of a key or value that a page shows; an export has all."""
WHOLE_MAX: Final = 200_000
"""The same on the page of one record."""
READ_MAX: Final = 16 * 1024
"""Bytes of a key or value that are decoded for a page. JSON that is larger is shown as it stands."""
ON_A_LINE: Final = 120
"""Characters of JSON that stand on one line."""
_NUMBERS: Final = {1: ">b", 2: ">h", 4: ">i", 8: ">q"}


class ShownBytes(NamedTuple):
    """``kind`` is what the bytes were taken for; ``text`` is None for a null.

    ``schema`` is the id in a registry by which they were decoded; ``problem`` says why they were not.
    """

    kind: str
    text: str | None
    size: int
    cut: bool = False
    schema: int | None = None
    problem: str = ""


def decode_bytes(raw: bytes | None, how: str, limit: int = SHOWN_MAX, schemas: PageSchemas | None = None) -> ShownBytes:
    """The bytes as that decoder shows them; as hexadecimal digits where it cannot."""
    if raw is None:
        return ShownBytes("null", None, 0)
    if how == REGISTRY or (how == "auto" and schemas is not None and schema_id(raw) is not None):
        return _by_schema(raw, how, limit, schemas)
    return _without_schema(raw, how, limit)


def _without_schema(raw: bytes, how: str, limit: int) -> ShownBytes:
    read = max(READ_MAX, limit)
    large = len(raw) > read
    for kind in ("json", "text", "hex") if how == "auto" or (how == "json" and large) else (how, "hex"):
        text = _AS[kind](raw[:read], large, limit)
        if text is not None:
            return ShownBytes(kind, text[:limit], len(raw), large or len(text) > limit)
    raise AssertionError("hexadecimal digits show everything")


def _by_schema(raw: bytes, how: str, limit: int, schemas: PageSchemas | None) -> ShownBytes:
    """By the schema whose id comes first. Bytes that have that look by chance are shown as others, with a word."""
    try:
        if schemas is None:
            raise SchemaProblem(NO_REGISTRY)
        decoded = schemas.decoded(raw)
    except SchemaProblem as problem:
        if how == "auto":
            return _without_schema(raw, how, limit)._replace(problem=str(problem))
        return _without_schema(raw, "hex", limit)._replace(problem=str(problem))
    number = schema_id(raw)
    if decoded is None:
        shown = _without_schema(raw[PREFIX_BYTES : PREFIX_BYTES + READ_MAX + 1], "json", limit)
        wrong = "" if shown.kind == "json" or shown.cut else f"schema {number} is one of JSON, and the value is not"
        return shown._replace(size=len(raw), schema=number, problem=wrong)
    text = _as_json(decoded.value, limit)
    return ShownBytes(decoded.kind, text[:limit], len(raw), len(text) > limit, number)


def _json(raw: bytes, large: bool, limit: int) -> str | None:
    if large:
        return None
    if raw[:1].strip() not in {b"{", b"[", b'"', b""} and not raw[:1].isdigit() and raw[:1] not in b"-tfn":
        return None
    try:
        return _as_json(json.loads(raw), limit)
    except (ValueError, RecursionError):
        return None


def _as_json(value: Any, limit: int) -> str:
    text = json.dumps(value, ensure_ascii=False, default=_bytes_in_json)
    if len(text) > ON_A_LINE:
        text = _indented(value, limit)
    return text.encode(
        errors="backslashreplace"
    ).decode()  # half of a surrogate pair is no character: as it was escaped


def _bytes_in_json(value: bytes) -> str:
    """Avro's bytes, as text where they are."""
    return _text(value, False, 0) or value.hex(" ")


def _indented(value: Any, limit: int) -> str:
    """JSON on many lines, made only until it is longer than the limit: deep values are mostly indentation."""
    parts, size = [], 0
    for part in json.JSONEncoder(ensure_ascii=False, indent=1, default=_bytes_in_json).iterencode(value):
        parts.append(part)
        size += len(part)
        if size > limit:
            break
    return "".join(parts)


def _text(raw: bytes, large: bool, _: int) -> str | None:
    try:
        text = codecs.utf_8_decode(raw, "strict", not large)[0]  # a cut may be in the middle of a character
    except UnicodeDecodeError:
        return None
    readable = sum(character.isprintable() or character in "\t\r\n" for character in text)
    return text if readable == len(text) else None


def _number(raw: bytes, _large: bool, _limit: int) -> str | None:
    layout = _NUMBERS.get(len(raw))
    return None if layout is None else str(struct.unpack(layout, raw)[0])


_AS: Final[dict[str, Callable[[bytes, bool, int], str | None]]] = {
    "json": _json,
    "text": _text,
    "number": _number,
    "hex": lambda raw, *_: raw.hex(" "),
    "base64": lambda raw, *_: base64.b64encode(raw).decode(),
}


def _shown_part(record: StoredRecord, field: str, how: str, limit: int, schemas: PageSchemas | None) -> ShownBytes:
    """The record's key or value, whose schema may stand in a header of it."""
    raw: bytes | None = getattr(record, field)
    if raw is None or schemas is None or how not in {"auto", REGISTRY} or schema_header(record.headers, field) is None:
        return decode_bytes(raw, how, limit, schemas)
    try:
        framed = schemas.framed(raw, record.headers, field)
    except SchemaProblem as problem:
        return _without_schema(raw, "hex" if how == REGISTRY else how, limit)._replace(problem=str(problem))
    return decode_bytes(framed, how, limit, schemas)._replace(size=len(raw))


def _framed(record: StoredRecord, schemas: PageSchemas | None) -> StoredRecord:
    """The record with the ids of its schemas in its key and value, where they are known, and not in headers."""
    for name in ("key", "value"):
        header = schema_header(record.headers, name)
        if header is None:
            continue
        with contextlib.suppress(SchemaProblem):
            if schemas is not None:
                framed: dict[str, Any] = {name: schemas.framed(getattr(record, name), record.headers, name)}
                record = record._replace(**framed)
        record = record._replace(headers=tuple(row for row in record.headers if row[1] != header))
    return record


def record_row(
    topic: str,
    record: StoredRecord,
    key_how: str,
    value_how: str,
    schemas: PageSchemas | None = None,
    limit: int = SHOWN_MAX,
) -> dict[str, Any]:
    """A record as a page shows it. A record of an internal topic has ``meaning``."""
    row: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": _shown_part(record, "key", key_how, limit, schemas)._asdict(),
        "value": _shown_part(record, "value", value_how, limit, schemas)._asdict(),
        "headers": [{"name": name, **decode_bytes(value, "auto")._asdict()} for name, value in record.headers],
        "size": record.size,
        "state": record.state,
        "marker": record.marker,
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "sequence": record.sequence,
        "leader_epoch": record.leader_epoch,
        "codec": record.codec,
    }
    if topic in INTERNAL and not record.marker:
        row["meaning"] = json.dumps(_meaning(topic, record), ensure_ascii=False, default=str)[:SHOWN_MAX]
    return row


def _meaning(topic: str, record: StoredRecord) -> dict[str, Any]:
    """In words. What reads them is imported when it is wanted: it brings the brokers' logs along, and their memory."""
    from fleetlog.brokers.cli.logdump import offsets_row, transactions_row

    return (offsets_row if topic == INTERNAL[0] else transactions_row)(record)


FROM: Final = ("newest", "beginning", "offset", "time", "end")
WHERE: Final = ("anywhere", "key", "value", "headers")
SHOW: Final = ("committed", "everything")
FORMATS: Final = ("ndjson", "csv", "parquet")
COUNT_MAX, EXPORT_MAX = 500, 10_000
COLUMNS_MAX: Final = 12
FILTER_FIELDS: Final = 2_000_000
"""Fields that a page decodes by schemas to filter by them."""
NO_REGISTRY: Final = "the console was started without --schema-registry"
_BY_SCHEMA: Final = b"\0"
"""Before a schema's id."""
_AT: Final = re.compile("(?:([0-9]{1,9}):)?([0-9]{1,18})")
"""An offset, with its partition or without."""


class SearchedRecord(FilteredRecord):
    """A record as filters and columns see it: what begins with a schema's id is decoded by that schema."""

    def __init__(self, topic: str, record: StoredRecord, schemas: PageSchemas | None, undecoded: Counter[str]) -> None:
        super().__init__(
            topic, record.partition, record.offset, record.timestamp_ms, record.key, record.value, record.headers
        )
        self._schemas, self._undecoded = schemas, undecoded

    def _inside(self, field: str) -> Any:
        """By the schema of a header, or that which stands in it."""
        raw = self._key if field == "key" else self._value
        if raw is not None and not self._headers and raw[:1] != _BY_SCHEMA:
            return json_of(raw)  # as decoded does, on a way that most records go
        try:
            return self.decoded(raw if self._schemas is None else self._schemas.framed(raw, self._headers, field))
        except SchemaProblem as problem:
            self._undecoded[str(problem)] += 1
            return None

    def decoded(self, raw: bytes | None) -> Any:
        """The value by its schema, or as JSON; None if it is none, which is counted where a schema was meant."""
        if raw is None or schema_id(raw) is None:
            return super().decoded(raw)
        try:
            if self._schemas is None:
                raise SchemaProblem(NO_REGISTRY)
            by_schema = self._schemas.decoded(raw)
        except SchemaProblem as problem:
            self._undecoded[str(problem)] += 1
            return None
        return super().decoded(raw[PREFIX_BYTES:]) if by_schema is None else by_schema.value


class Search:
    """What a page looks for. Raises PageError. ``undecoded`` are the reasons why it could not look into records."""

    def __init__(self, asking: Asking) -> None:
        registry = asking.registry
        self._topic, self._contains, text = asking.name, _contains(asking), asking.text("filter")
        self.holds_none = _holds_none(asking)
        self._schemas = None if registry is None else PageSchemas(registry, fields=FILTER_FIELDS)
        self.undecoded: Counter[str] = Counter()
        try:
            self._filter = parse_filter(text) if text else None
        except FilterError as error:
            raise PageError(400, f"filter: {error}") from None
        try:
            self.columns = parse_columns(asking.text("columns"))
        except FilterError as error:
            raise PageError(400, f"columns: {error}") from None
        if len(self.columns) > COLUMNS_MAX:
            raise PageError(400, f"columns: a page has {COLUMNS_MAX} at most")
        self.mask = asking.masks.of(asking.name)
        where = asking.choice("where", WHERE)
        looked_at = set(self._filter.paths if self._filter is not None else ())
        if asking.text("contains"):
            looked_at |= {(field,) for field in WHERE[1:] if where in {"anywhere", field}}
        if touched := self.mask.touched(sorted(looked_at, key=str)):
            raise PageError(403, f"no filter may look at {touched}: {', '.join(self.mask.names)} is masked here")

    def seen(self, record: StoredRecord) -> SearchedRecord:
        """As filters see it."""
        return SearchedRecord(self._topic, record, self._schemas, self.undecoded)

    def shown(self, record: StoredRecord) -> StoredRecord:
        """As pages may show it: with what is masked, masked, also where a header leads to its schema."""
        if not self.mask.paths or record.marker:
            return record
        apart = SearchedRecord(self._topic, record, self._schemas, Counter())
        return self.mask.masked(_framed(record, self._schemas), apart.decoded)

    def matches(self, record: StoredRecord) -> bool:
        """Whether the record is looked for; a marker is by no filter."""
        if self._contains is not None and not self._contains(record):
            return False
        try:
            return self._filter is None or (not record.marker and self._filter.matches(self.seen(record)))
        except FilterError as error:
            raise PageError(400, f"filter: {error}") from None


def messages_page(asking: Asking) -> Answer:
    """A page of records, and the cursors of the one before and behind.

    ``behind``: so many offsets are between the page and the ends of its partitions, to which ``ends`` goes on.
    ``left``: so many are left in the page's direction. A form that cannot be read is shown again, with the reason.
    """
    decoders = DECODERS if asking.registry is None else (*DECODERS, REGISTRY)
    form: Answer = {"topic": asking.name, "decoders": decoders, "messages": [], "following": None}
    try:
        return {**form, **_messages(asking, decoders)}
    except PageError as error:
        raise PageError(error.status, str(error), form) from None


def _messages(asking: Asking, decoders: tuple[str, ...]) -> Answer:
    key_how, value_how = asking.choice("key_as", decoders), asking.choice("value_as", decoders)
    schemas = None if asking.registry is None else PageSchemas(asking.registry)
    search = Search(asking)
    reader, page, browse, mode = _browse(asking, asking.number("count", 50, 1, COUNT_MAX), search)
    following, budget = encode_cursor(page.following) if page.following is not None else None, browse.budget
    ends = {p: browse.end(p) if p in browse.bounds else at for p, at in page.reached.items()}
    behind = sum(ends[p] - page.reached[p] for p in ends)
    rows = [record_row(asking.name, one, key_how, value_how, schemas) for one in page.records]
    for row, record in zip(rows, page.records, strict=True):
        if search.columns and not record.marker:
            seen = search.seen(record)
            row["columns"] = [cell_text(column.part(seen)) for column in search.columns]
    left = sum(max(at - browse.bounds[p].first, 0) for p, at in page.reached.items() if p in browse.bounds)
    return {
        "partitions": sorted(reader.leaders),
        "silent": sorted(reader.silent),
        "mode": mode,
        "messages": rows,
        "columns": [column.name for column in search.columns],
        "masked": search.mask.names,
        "following": following,
        "reached": encode_cursor(page.reached),
        "ends": encode_cursor(ends),
        "behind": None if mode == "newest" else behind,
        "left": (left if mode == "newest" else behind) if following else 0,
        "cut_short": page.cut_short,
        "scanned": budget.scanned,
        "scanned_bytes": None if search.mask.paths else budget.scanned_bytes,  # of one record it is its length
        "undecoded": [{"reason": reason, "records": count} for reason, count in search.undecoded.most_common(5)],
    }


def record_page(asking: Asking) -> Answer:
    """One committed record as a whole, where it differs from another one (``with``), and where it may be copied to."""
    place = RecordPlace(
        asking.name, asking.number("partition", 0, 0, 2**31 - 1), asking.number("offset", 0, 0, 2**63 - 1)
    )
    other = asking.text("with")
    match = _AT.fullmatch(other)
    if other and match is None:
        raise PageError(400, f"{other[:40]!r} is not an OFFSET or a PARTITION:OFFSET, such as 3:1200")
    schemas, search = None if asking.registry is None else PageSchemas(asking.registry), Search(asking)
    stored = search.shown(stored_record(asking.client, place))
    answer: Answer = {
        "topic": asking.name,
        "record": record_row(asking.name, stored, "auto", "auto", schemas, WHOLE_MAX),
        "hex": {"key": hex_lines(stored.key), "value": hex_lines(stored.value)},
        "masked": search.mask.names,
        "other": None,
        "differences": [],
    }
    if match is not None:
        there = RecordPlace(asking.name, int(match[1] or place.partition), int(match[2]))
        second = search.shown(stored_record(asking.client, there))
        rows = record_differences(search.seen(stored), search.seen(second))
        for name in ("key", "value", "timestamp_ms"):
            one, two = getattr(stored, name), getattr(second, name)
            if one != two and not any(row["path"].startswith(name) for row in rows):
                as_shown = ("its bytes", "other bytes") if name != "timestamp_ms" else (iso(one), iso(two))
                rows.append({"path": name.removesuffix("stamp_ms"), "this": as_shown[0], "other": as_shown[1]})
        answer |= {"other": {"partition": there.partition, "offset": there.offset}, "differences": rows}
    return answer


def write_page(asking: Asking) -> Answer:
    """A form for one record; raises PageError.

    It is filled in ``like`` a record of the topic, which may be its ``last``, or by the example of a ``schema``.
    """
    text, search = asking.text("like"), Search(asking)
    match = _AT.fullmatch(text)
    if text not in {"", "last"} and match is None:
        raise PageError(400, f"{text[:40]!r} is neither last nor a PARTITION:OFFSET, such as 3:1200")
    if text and search.mask.paths:
        raise PageError(403, "fields of this topic are masked here: the console writes none of its records again")
    reader = TopicReader(asking.client, asking.name, None)
    record = None
    if match is not None:
        record = stored_record(asking.client, RecordPlace(asking.name, int(match[1] or 0), int(match[2])))
    elif text:
        browse = Browse(reader, reader.bounds(undecided=False), count=1, matches=lambda _: True)
        record = next(iter(browse.newest().records), None)
    return {
        "topic": asking.name,
        "partitions": sorted(reader.leaders),
        "like": f"{record.partition}:{record.offset}" if record is not None else "",
        "placeholders": PLACEHOLDERS,
        "registry": asking.registry is not None,
        **_drafted(asking.registry, record, asking.text("schema")),
    }


def _drafted(registry: SchemaRegistry | None, record: StoredRecord | None, schema: str) -> Answer:
    """The draft, the schemas that write it, and why a schema has no example."""
    draft = _draft(record)
    answer: Answer = {"draft": draft, "schema": schema, "key_schema": "", "no_example": ""}
    if registry is None:
        return answer
    if record is not None:
        decoding = RecordDecoding("auto", "auto", registry, lambda _: None)
        # one whose schema stands in a header is copied as bytes: its header says what they are in the copy, too
        seen = {name: decoding.part(name, getattr(record, name), (), "") for name in ("key", "value")}
        by_schema = {name: part for name, part in seen.items() if part.schema is not None}
        other = [_text(getattr(record, name) or b"", False, 0) for name in seen if name not in by_schema]
        if by_schema and None not in other:
            draft["base64"] = False
            for name, raw in (("key", record.key), ("value", record.value)):
                part = by_schema.get(name)
                draft[name] = (raw or b"").decode() if part is None else _as_json(part.value, WHOLE_MAX)
                answer["schema" if name == "value" else "key_schema"] = "" if part is None else str(part.schema)
    elif schema:
        try:
            draft["value"] = example_of(registry.named(schema)[1])
        except SchemaProblem as problem:
            answer["no_example"] = str(problem)
        else:
            answer["no_example"] = "" if draft["value"] else "it is too large for an example, or has no end"
    return answer


def _draft(record: StoredRecord | None) -> dict[str, Any]:
    """The fields of a form that writes the same again; headers that are no text are left out."""
    if record is None:
        return {"key": "", "value": "", "headers": "", "left_out": 0, "null_value": False, "base64": False}
    key, value = record.key or b"", record.value or b""
    is_text = all(_text(raw, False, 0) is not None for raw in (key, value))
    shown = [raw.decode() if is_text else base64.b64encode(raw).decode() for raw in (key, value)]
    lines = [f"{name}={text}" for name, raw in record.headers if (text := _text(raw or b"", False, 0)) is not None]
    lines = [line for line in lines if not {"\n", "\r"} & {*line}]
    return {
        "key": shown[0], "value": shown[1], "headers": "\n".join(lines),
        "left_out": len(record.headers) - len(lines), "null_value": record.value is None, "base64": not is_text,
    }  # fmt: skip


def export_file(asking: Asking) -> tuple[bytes, str, str]:
    """The records that the page's form names, as a file: contents, media type, name. Raises PageError."""
    kind = asking.choice("to", FORMATS)
    _, page, _, _ = _browse(asking, asking.number("count", EXPORT_MAX, 1, EXPORT_MAX), Search(asking))
    contents, media = {"ndjson": _ndjson, "csv": _csv, "parquet": _parquet}[kind](asking.name, page.records)
    return contents, media, f"{asking.name}.{kind}"


def _browse(asking: Asking, count: int, search: Search) -> tuple[TopicReader, BrowsedPage, Browse, str]:
    mode, at = asking.choice("from", FROM), _AT.fullmatch(asking.text("at"))
    if asking.text("at") and mode in {"newest", "beginning"}:
        mode = "at"
    partitions = [int(at[1])] if mode == "at" and at and at[1] else _partitions(asking.text("partitions"))
    everything = asking.choice("show", SHOW) == "everything"
    cursor = cursor_of(asking)
    reader = TopicReader(asking.client, asking.name, partitions)
    bounds = reader.bounds(undecided=everything)
    browse = Browse(
        reader, bounds, count=count, matches=search.matches, everything=everything, holds_none=search.holds_none
    )
    if mode == "newest":
        page = browse.newest(cursor)
    else:
        page = browse.onward(cursor if cursor is not None else _start(asking, mode, reader, bounds, browse))
    return reader, page._replace(records=[search.shown(one) for one in page.records]), browse, mode


def _start(
    asking: Asking, mode: str, reader: TopicReader, bounds: dict[int, PartitionBounds], browse: Browse
) -> Positions:
    if mode == "beginning":
        return {p: one.first for p, one in bounds.items()}
    if mode == "end":
        return {p: browse.end(p) for p in bounds}
    if mode == "offset":
        return dict.fromkeys(bounds, asking.number("offset", 0, 0, 2**63 - 1))
    text = asking.text("at" if mode == "at" else "time")
    if mode == "at" and (offset := _AT.fullmatch(text)):
        return dict.fromkeys(bounds, int(offset[2]))
    try:
        moment = parse_moment(text) if mode == "at" else parse_time(text)
    except ValueError:
        also = ", nor -1h, an offset, or a PARTITION:OFFSET" if mode == "at" else ""
        raise PageError(
            400, f"{text[:40]!r} is not a time such as 2026-01-31T12:00, @20260131 or @1769860800000{also}"
        ) from None
    offsets = reader.offsets(max(moment, 0), COMMITTED)
    # a partition without a record that is so new has nothing to show
    return {p: offsets[p] if offsets.get(p, -1) >= 0 else browse.end(p) for p in bounds}


def _partitions(text: str) -> list[int] | None:
    if not text:
        return None
    if re.fullmatch(r"[0-9]{1,6}( *, *[0-9]{1,6})*", text) is None:
        raise PageError(400, "partitions must be numbers like 0,3")
    return sorted({int(one) for one in text.split(",")})


def cursor_of(asking: Asking) -> Positions | None:
    """Where the page goes on, by its address; None: it begins. Raises PageError."""
    text = asking.text("cursor")
    if not text:
        return None
    try:
        return decode_cursor(text)
    except ValueError:
        raise PageError(400, "the cursor is malformed; begin again without it") from None


def _holds_none(asking: Asking) -> HoldsNone | None:
    """By the text that is looked for, which stands as it is in keys, values, names and values of headers."""
    wanted, where = asking.text("contains").encode().lower(), asking.choice("where", WHERE)
    if not wanted or (b"=" in wanted and where in {"anywhere", "headers"}):  # a header's two parts are apart there
        return None
    return lambda payload: wanted not in payload.lower()


def _contains(asking: Asking) -> Matches | None:
    """Whether the text is in the key, the value, or a header; letters of ASCII in either case. None: none is given."""
    wanted, where = asking.text("contains").encode().lower(), asking.choice("where", WHERE)
    if not wanted:
        return None

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
