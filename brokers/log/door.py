"""What a topic asks of its records' schemas: each value (or key) carries the id of a schema of the topic's subject.

Where the topic asks for more, it is also a payload of that schema.

A leader asks it of what clients send, before it appends; what is in a log is not looked at again. Which ids a topic
takes is known from the topic ``_schemas``, of which a broker keeps what its topics need (:class:`KnownSchemas`), as far
as it has read. An id that is not there may be one that is not there *yet*: so it is refused for good only when the
broker has read up to the end since it was first seen. Until then the answer is NOT_ENOUGH_REPLICAS, which the Java
client and librdkafka take for "not appended, try again", and after which an idempotent producer stays in order
(``producers.rejected``).

Payloads of Avro are checked by programs that are compiled from schemas when a record comes with their id, and kept as
long as there is room (:mod:`brokers.schema_programs`). Those of JSON Schema and Protobuf are checked by a process
beside the broker (``KnownSchemas.judge``): an append stops before such a batch, as before one whose transaction is to
be verified, and goes on with the verdict. With ``fleetlog.schema.invalid=dlq:TOPIC`` it stops until the dead letters of
what fails are in their topic, and goes on without these records (:mod:`brokers.log.rewrite`).

Framing: Confluent's serializers (magic byte 0 and an id, magic byte 1 and a GUID, also in a header).
"""

from __future__ import annotations

import logging
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, parse_header
from fleetlog._native.errors import CorruptBatch
from fleetlog._native.schemas import REASONS, UNKNOWN, Unfit, misfits, unfit
from fleetlog.brokers.config import TopicConfig
from fleetlog.brokers.log.disk.files import Buffer
from fleetlog.brokers.log.validation import Rejected, record_errors
from fleetlog.brokers.model import SCHEMAS_TOPIC, Clock
from fleetlog.brokers.schema_programs import TEXT_MAX, NoProgram, Program, compile_avro
from fleetlog.brokers.topic_config import RECORD_NAMES, TOPIC_NAMES
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

FRESH_MS: Final = 1_000
"""How long ago a read to the end may have begun when an id is refused that is not in what was read. What takes longer
refuses none: its answer may come when others have known the schema for long.
"""
SOUGHT_MS: Final = 30_000
"""How long an id that was not there is looked for."""
OUTSIDE_KINDS: Final = ("JSON", "PROTOBUF")
SOUGHT_MAX: Final = 1_000
"""Ids of a want that are looked for at a time; what more is asked for is refused as not known yet."""
PROGRAMS_MAX: Final = 1_000
PROGRAM_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of the texts of the schemas whose programs are kept."""
COMPILED_AT_ONCE: Final = 100_000
"""Characters of schemas, some 10 ms: when so many were compiled for a batch, it waits if there are more."""
REFERENCES_MAX: Final = 100
"""Schemas that one refers to, those that they refer to among them."""
OUTSIDE_MAX: Final = 1_000
"""Schemas of a want that another process checks by and that are known at a time."""
MIXED_MAX: Final = 10_000
"""Records of a batch, where a want has schemas of both kinds: which are of Avro is asked of each."""
LETTERS_MAX: Final = 1_000
"""Records of a batch that may become dead letters; with more it is refused."""
_TOLD_MS: Final = 10_000
NOT_YET: Final = ErrorCode.NOT_ENOUGH_REPLICAS
HEADERS: Final = (b"__value_schema_id", b"__key_schema_id")


class Want(NamedTuple):
    """A subject whose schemas are wanted; ``of_records``: those that are this and the name of the schema itself.

    ``texts``: not only their ids.
    """

    subject: str
    of_records: bool = False
    texts: bool = False

    def __str__(self) -> str:
        return f"a subject {self.subject}<name of the record>" if self.of_records else f"subject {self.subject}"


Reference = tuple[str, int]
"""A subject and a version."""


class SchemaText(NamedTuple):
    """A schema as it was registered; ``packed`` is its text (zlib)."""

    kind: str
    packed: bytes
    references: tuple[Reference, ...] = ()
    names: tuple[str, ...] = ()
    """By which the schema calls its references."""

    @property
    def text(self) -> str:
        """What was packed."""
        return zlib.decompress(self.packed).decode("utf-8", "surrogatepass")


def packed(text: str) -> bytes:
    """A text for :class:`SchemaText`."""
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


class Outside(NamedTuple):
    """A schema by which another process checks. ``named``: all that is referred to, by the names that do so."""

    key: str
    source: SchemaText
    named: tuple[tuple[str, SchemaText], ...]


class Side(NamedTuple):
    """Values, or keys, and the schemas that are checked outside by the ids that records may carry."""

    of_keys: bool
    schemas: Mapping[bytes, Outside]


class PayloadQuestion(NamedTuple):
    """Whether the records of a batch, decompressed, are of the schemas whose ids they carry; ``most`` are named."""

    payload: bytes
    header: BatchHeader
    sides: tuple[Side, ...]
    most: int


class Fault(NamedTuple):
    """A record that is not of its schema; without a path it is so as a whole."""

    record: int
    of_keys: bool
    number: bytes
    path: str
    reason: str


class Judgement(NamedTuple):
    """``why``: nothing can be said now."""

    faults: tuple[Fault, ...] = ()
    why: str = ""


class BadRecords(NamedTuple):
    """Records of a batch (``payload``, decompressed) that are to be dead letters of a topic: why, by their index."""

    topic: str
    payload: bytes
    header: BatchHeader
    whys: Mapping[int, str]


@dataclass(slots=True)
class Judging:
    """What is to be asked before a batch can be appended, and what was answered to it.

    ``letters``: what is to be written first; ``buried`` are the records that have their letters; ``unburied`` says why
    others cannot have them.
    """

    question: PayloadQuestion | None = None
    verdict: Judgement | None = None
    letters: BadRecords | None = None
    buried: frozenset[int] = frozenset()
    unburied: tuple[ErrorCode, str] | None = None


@dataclass(slots=True)
class CheckerCounts:
    """Of the process that is asked: how often it was started, and bytes of records that wait for it."""

    starts: int = 0
    waiting_bytes: int = 0


class Elsewhere:
    """The batch waits for a verdict, or for its dead letters."""


ELSEWHERE: Final = Elsewhere()


@dataclass(slots=True)
class Table:
    """The ids and GUIDs of a want's schemas, as the kernel takes them. ``used`` since that was last looked at.

    ``sources`` are the schemas by id and GUID, if the want asks for them and there was room.
    """

    ids: bytes = b""
    guids: bytes = b""
    used: bool = True
    sources: Mapping[bytes, SchemaText] = field(default_factory=dict)

    def has(self, number: bytes) -> bool:
        """Whether it has this id, or GUID."""
        if not number:
            return False
        width, rows = len(number), self.ids if len(number) == 4 else self.guids
        at = bisect_left(range(len(rows) // width), number, key=lambda row: rows[row * width : (row + 1) * width])
        return rows[at * width : (at + 1) * width] == number


NOTHING_READ: Final = Table()


@dataclass(slots=True)
class DoorCounts:
    """Of a topic: records refused, batches that had to wait for the broker to know a schema, and when it was told."""

    refused_records: int = 0
    waiting_batches: int = 0
    told_ms: int | None = None


class Checks:
    """The programs of a want's schemas that records came with, by id; a text says why there is none."""

    def __init__(self) -> None:
        self.compiled: dict[bytes, Program | Outside | str] = {}
        self.ids = self.guids = b""
        self.codes: tuple[bytes, ...] = ()
        self.outside: Mapping[bytes, Outside] = {}
        self.outside_ids = self.outside_guids = b""

    def add(self, number: bytes, program: Program | Outside | str) -> None:
        """From now on records with this id are checked by it."""
        if isinstance(program, Outside) and len(self.outside) >= OUTSIDE_MAX:
            for old in self.outside:
                del self.compiled[old]
        self.compiled[number] = program
        programs = {key: one for key, one in self.compiled.items() if isinstance(one, Program)}
        self.ids, self.guids = _tables(programs)
        widths = (self.ids, 4), (self.guids, 16)
        rows = [table[at : at + width] for table, width in widths for at in range(0, len(table), width)]
        self.codes = tuple(programs[row].code for row in rows)
        self.outside = {key: one for key, one in self.compiled.items() if isinstance(one, Outside)}
        self.outside_ids, self.outside_guids = _tables(self.outside)


def _tables(numbers: Iterable[bytes]) -> tuple[bytes, bytes]:
    """The ids and the GUIDs among them, as the kernel takes them."""
    ids, guids = (b"".join(sorted(one for one in numbers if len(one) == width)) for width in (4, 16))
    return ids, guids


class Programs:
    """Programs of schemas, as many as there is room for: those that were asked for last."""

    def __init__(self) -> None:
        self._programs: OrderedDict[tuple[SchemaText, ...], tuple[Program | str, int]] = OrderedDict()
        self._size = 0

    def get(self, sources: tuple[SchemaText, ...]) -> tuple[Program | str, int, bool]:
        """The program of the last of these, which refers to those before it.

        Also how many characters were compiled for it, and whether others had to go.
        """
        row = self._programs.get(sources)
        if row is not None:
            self._programs.move_to_end(sources)
            return row[0], 0, False
        texts = [source.text for source in sources]
        row = _compiled(sources[-1].kind, texts), sum(map(len, texts))
        self._programs[sources] = row
        self._size += row[1]
        full = False
        while len(self._programs) > PROGRAMS_MAX or (self._size > PROGRAM_BYTES_MAX and len(self._programs) > 1):
            self._size -= self._programs.popitem(last=False)[1][1]
            full = True
        return *row, full


def _compiled(kind: str, texts: list[str]) -> Program | str:
    if kind != "AVRO":
        return f"payloads of {kind} schemas cannot be checked"
    try:
        return compile_avro(texts[-1], texts[:-1])
    except NoProgram as why:
        return str(why)


def _outside(source: SchemaText, sources: Mapping[Reference | None, SchemaText]) -> tuple[Outside | str, int]:
    """The schema for another process, or why it is too large; and how many characters were looked at."""
    size = sum(len(one.text) for one in sources.values())
    if size > TEXT_MAX:
        return f"the schema has more than {TEXT_MAX} characters", size
    named = [row for one in sources.values() for row in zip(one.names, one.references, strict=False)]
    kept = tuple((name, sources[reference]) for name, reference in named)
    import hashlib  # where it is needed: tools that read logs load this module, too

    digest = hashlib.sha256(source.kind.encode() + source.packed)
    for name, one in kept:
        digest.update(f"|{len(name.encode())}:{name}:{len(one.packed)}:".encode() + one.packed)
    return Outside(digest.hexdigest()[:32], source, kept), size


class KnownSchemas:
    """What a broker knows of ``_schemas``; who reads it sets ``wake``, and calls :meth:`learn`."""

    def __init__(self, clock: Clock) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.judge: Callable[[PayloadQuestion], Awaitable[Judgement]] | None = None
        """Asks the process that checks by schemas that have no program; it does not raise."""
        self.checker = CheckerCounts()
        self.wants: dict[Want, None] = {}
        self.tables: Mapping[Want, Table] = {}
        self.referenced: dict[Reference, None] = {}
        """What wanted schemas refer to; who reads adds to it."""
        self._references: Mapping[Reference, SchemaText | None] = {}
        self._checks: dict[Want, Checks] = {}
        self._programs = Programs()
        self.any_outside = False
        """Whether there ever was a schema by which another process checks."""
        self.counts: dict[str, DoorCounts] = {}
        self.sought: dict[Want, dict[bytes, int]] = {}
        """When each id was first looked for that no table has."""
        self._read_ms = -1
        self.now_ms = clock.mono_ms

    def table(self, want: Want) -> Table:
        """What is known of it; from now on it is read."""
        table = self.tables.get(want)
        if table is None:
            if want not in self.wants:
                self.wants[want] = None
                self.wake()
            return NOTHING_READ
        table.used = True
        return table

    def learn(
        self,
        tables: Mapping[Want, Table],
        read_ms: int,
        references: Mapping[Reference, SchemaText | None] | None = None,
    ) -> None:
        """All of these were read up to an end that was the end at ``read_ms`` or later.

        ``references``: what others refer to, None for what is not there; without them nothing has changed in it.
        """
        if tables is not self.tables:
            self._checks = {}
        if references is not None:
            self._references, self._checks = references, {}
        self.tables, self._read_ms = tables, read_ms

    def checks(self, want: Want) -> Checks:
        """The programs of a want that were made so far."""
        checks = self._checks.get(want)
        if checks is None:
            checks = self._checks[want] = Checks()
        return checks

    def compile(self, want: Want, number: bytes) -> int | None:
        """Have the program of a schema among the checks of its want; None if not all of it was read yet.

        Returns how many characters were compiled.
        """
        source = self.table(want).sources.get(number)
        if source is None:
            self.wake()
            return None
        sources: dict[Reference | None, SchemaText] = {}
        why = self._gather(None, source, sources)
        if why == "":
            self.wake()
            return None
        full = False
        program: Program | Outside | str
        if why:
            program, size = why, 0
        elif source.kind in OUTSIDE_KINDS and self.judge is not None:
            program, size = _outside(source, sources)
            self.any_outside = True
        else:
            program, size, full = self._programs.get(tuple(sources.values()))
        if full:
            self._checks = {}
        self.checks(want).add(number, program)
        return size

    def _gather(
        self, name: Reference | None, source: SchemaText, sources: dict[Reference | None, SchemaText], depth: int = 0
    ) -> str | None:
        """Add what a schema refers to, then the schema itself; returns why that is not possible, "" for not yet."""
        if depth > REFERENCES_MAX or len(sources) > REFERENCES_MAX:
            return f"the schema refers to more than {REFERENCES_MAX} others"
        for reference in source.references:
            if reference in sources:
                continue
            if reference not in self._references:
                return ""
            other = self._references[reference]
            if other is None:
                return f"the schema refers to {reference[0]} version {reference[1]}, which is not there"
            why = self._gather(reference, other, sources, depth + 1)
            if why is not None:
                return why
        sources[name] = source
        return None

    def lacks(self, want: Want, number: bytes) -> bool:
        """Whether it is certain that no schema of the want has the id, which no table has."""
        now_ms, sought = self.now_ms(), self.sought.setdefault(want, {})
        since = sought.get(number)
        if since is None or now_ms - since > SOUGHT_MS:
            if since is not None or len(sought) < SOUGHT_MAX:
                sought[number] = now_ms
        elif want in self.tables and since < self._read_ms >= now_ms - FRESH_MS:
            return True
        self.wake()
        return False

    def looks_for_any(self) -> bool:
        """Whether an id was asked for that is not there, not long ago: then it is read more often."""
        earliest = self.now_ms() - SOUGHT_MS
        for want, numbers in list(self.sought.items()):
            self.sought[want] = {number: since_ms for number, since_ms in numbers.items() if since_ms >= earliest}
            if not self.sought[want]:
                del self.sought[want]
        return bool(self.sought)

    def forget_unused(self) -> None:
        """Want no longer what no topic asked for since this was last called."""
        for want, table in self.tables.items():
            if not table.used:
                self.wants.pop(want, None)
            table.used = False


class _Side(NamedTuple):
    """Values, or keys, of a topic."""

    of_keys: bool
    want: Want


def _want(topic: str, strategy: str, part: str, texts: bool) -> Want:
    if strategy == TOPIC_NAMES:
        return Want(f"{topic}-{part}", texts=texts)
    return Want("" if strategy == RECORD_NAMES else f"{topic}-", of_records=True, texts=texts)


def _alike(before: Sequence[Side], now: Sequence[Side]) -> bool:
    """Whether ids have the schemas that they had. What has come since no record had that was asked of."""
    known = {(side.of_keys, number): one.key for side in before for number, one in side.schemas.items()}
    rows = [(side.of_keys, number, one.key) for side in now for number, one in side.schemas.items()]
    return all(known.get((of_keys, number), key) == key for of_keys, number, key in rows)


class Door:
    """The check of a topic's records; without settings that ask for one there is none."""

    __slots__ = ("_counts", "_known", "_letter_topic", "_sides", "_topic", "reads_payloads")

    def __init__(self, topic: str, config: TopicConfig, known: KnownSchemas) -> None:
        self._topic = topic
        self._known = known
        self._counts = known.counts.setdefault(topic, DoorCounts())
        self.reads_payloads = config.checks_payloads
        """Whether it looks at more than ids."""
        self._letter_topic = config.letter_topic
        values, keys = config.confluent_value_subject_name_strategy, config.confluent_key_subject_name_strategy
        self._sides: list[_Side] = []
        if config.checks_values:
            self._sides.append(_Side(False, _want(topic, values, "value", self.reads_payloads)))
        if config.confluent_key_schema_validation:
            self._sides.append(_Side(True, _want(topic, keys, "key", self.reads_payloads)))

    def passing(self, batches: Sequence[Buffer]) -> int:
        """How many of the first batches need no closer look for their ids; whether they are sound is not said."""
        for number, batch in enumerate(batches):
            try:
                header = parse_header(batch)
                if header.codec or self._outside() or self._strange(memoryview(batch)[HEADER_SIZE:], header, 1):
                    return number
            except CorruptBatch:
                return number
        return len(batches)

    def _strange(self, payload: Buffer, header: BatchHeader, most: int) -> list[tuple[_Side, Unfit]]:
        """Up to so many records of each side whose ids are not known, or whose payloads are not of their schemas."""
        strange: list[tuple[_Side, Unfit]] = []
        for side in self._sides:
            table, name = self._known.table(side.want), HEADERS[side.of_keys]
            if side.want.texts:
                checks = self._known.checks(side.want)
                if checks.outside and not checks.codes:
                    ids, guids = checks.outside_ids, checks.outside_guids
                    wrong = misfits(payload, header, name, side.of_keys, ids, guids, most)
                    rows = [Unfit(index, number, UNKNOWN, 0, ()) for index, number in wrong]
                else:
                    so_many = header.record_count if checks.outside else most
                    rows = unfit(payload, header, name, side.of_keys, checks.ids, checks.guids, checks.codes, so_many)
                    rows = [row for row in rows if row.code != UNKNOWN or row.number not in checks.outside][:most]
                strange += [(side, row) for row in rows]
            else:
                wrong = misfits(payload, header, name, side.of_keys, table.ids, table.guids, most)
                strange += [(side, Unfit(index, number, UNKNOWN, 0, ())) for index, number in wrong]
        return strange

    def _compiled(self, strange: list[tuple[_Side, Unfit]]) -> int | None:
        """Make programs for these records' ids; how many characters were compiled, None if there is no new program."""
        size, any_new = 0, False
        for side, row in strange:
            want, number = side.want, row.number
            if row.code != UNKNOWN or not want.texts or number in self._known.checks(want).compiled:
                continue
            if size <= COMPILED_AT_ONCE and self._known.table(want).has(number):
                made = self._known.compile(want, number)
                size, any_new = size + (made or 0), any_new or made is not None
        return size if any_new else None

    def _outside(self) -> bool:
        """Whether records may have schemas by which another process checks."""
        known = self._known
        return (
            known.any_outside and self.reads_payloads and any(known.checks(side.want).outside for side in self._sides)
        )

    def _asked(self, payload: Buffer, header: BatchHeader) -> tuple[Side, ...]:
        """The schemas by which another process checks these records, all of which have one that is known."""
        asked: list[Side] = []
        for side in self._sides if self.reads_payloads else ():
            checks, name = self._known.checks(side.want), HEADERS[side.of_keys]
            if checks.outside and misfits(payload, header, name, side.of_keys, checks.ids, checks.guids, 1):
                asked.append(Side(side.of_keys, checks.outside))
        return tuple(asked)

    def check(
        self, payloads: Sequence[Buffer], headers: Sequence[BatchHeader], explain: int, judging: Judging | None = None
    ) -> Rejected | Elsewhere | list[Set[int]] | None:
        """Why the batches are not taken; ``payloads`` are their records, decompressed. Raises CorruptBatch.

        In batches of up to ``explain`` records the bad ones are named. ELSEWHERE: what ``judging`` asks then must be
        answered first; without it, that there is something to be asked. A list: they are taken without the records of
        these indexes, by batch.
        """
        gone: list[Set[int]] = []
        for payload, header in zip(payloads, headers, strict=True):
            bad = self._bad(payload, header, explain, judging)
            if isinstance(bad, (Rejected, Elsewhere)):
                return bad
            if bad and not self._letter_topic:
                return self._told(bad, header, explain)
            if bad and (waits := self._without_letters(bad, payload, header, explain, judging)) is not None:
                return waits
            gone.append(bad.keys())
        return gone if any(gone) else None

    def _bad(
        self, payload: Buffer, header: BatchHeader, explain: int, judging: Judging | None
    ) -> Rejected | Elsewhere | Mapping[int, str]:
        """Why records of a batch fail, by index: of all that are to be told, or buried."""
        count = header.record_count
        most = min(count, LETTERS_MAX + 1) if self._letter_topic else count if count <= explain else 1
        if count > MIXED_MAX and self._mixed():
            why = f"a batch of more than {MIXED_MAX} records cannot be checked by schemas of several kinds"
            return Rejected(ErrorCode.INVALID_RECORD, why)
        strange, compiled = self._strange(payload, header, most), 0
        while strange and compiled <= COMPILED_AT_ONCE and (made := self._compiled(strange)) is not None:
            compiled += max(made, COMPILED_AT_ONCE // 100)
            strange = self._strange(payload, header, most)
        bad = self._whys(strange) if strange else {}
        if isinstance(bad, Rejected) or (bad and not self._letter_topic):
            return bad
        if self._known.any_outside and (asked := self._asked(payload, header)):
            judged = self._judged(PayloadQuestion(b"", header, asked, most), payload, judging)
            if not isinstance(judged, dict):
                return judged
            bad = judged | bad
        return bad

    def _without_letters(
        self, bad: Mapping[int, str], payload: Buffer, header: BatchHeader, explain: int, judging: Judging | None
    ) -> Rejected | Elsewhere | None:
        """What becomes of a batch some of whose bad records have no dead letters (yet); None if all have."""
        if len(bad) > LETTERS_MAX:
            first = min(bad)
            why = f"more than {LETTERS_MAX} records of the batch fail, and so many become no dead letters; record"
            self._note(len(bad), bad[first])
            return Rejected(ErrorCode.INVALID_RECORD, f"{why} {first}: {bad[first]}")
        if judging is None:
            return ELSEWHERE
        left = {index: why for index, why in sorted(bad.items()) if index not in judging.buried}
        if not left:
            return None
        if judging.unburied is not None:
            error, detail = judging.unburied
            detail = f"dead letter in topic {self._letter_topic}: {detail}"
            if error is not ErrorCode.INVALID_RECORD:
                return Rejected(error, detail)
            return self._told({index: f"{why}; no {detail}" for index, why in left.items()}, header, explain)
        judging.letters = BadRecords(self._letter_topic, bytes(payload), header, left)
        return ELSEWHERE

    def _mixed(self) -> bool:
        checks = [self._known.checks(side.want) for side in self._sides if side.want.texts]
        return any(one.outside and one.codes for one in checks)

    def _judged(
        self, question: PayloadQuestion, payload: Buffer, judging: Judging | None
    ) -> Rejected | Elsewhere | dict[int, str]:
        """What another process says of the records, if it was asked just that."""
        if judging is None:
            return ELSEWHERE
        verdict, before = judging.verdict, judging.question
        if verdict is None or before is None or not (verdict.why or _alike(before.sides, question.sides)):
            judging.question, judging.verdict = question._replace(payload=bytes(payload)), None
            return ELSEWHERE
        if verdict.why:
            self._counts.waiting_batches += 1
            return Rejected(NOT_YET, verdict.why)
        why: dict[int, str] = {}
        for fault in verdict.faults:
            what = "key" if fault.of_keys else "value"
            place = f"the {what}'s field {fault.path}:" if fault.path else f"the {what}"
            why.setdefault(fault.record, f"{place} {fault.reason} ({_text(fault.number)})")
        return why

    def _whys(self, strange: Sequence[tuple[_Side, Unfit]]) -> Rejected | dict[int, str]:
        """Why these records fail, by index; the refusal for now if that is not certain of all."""
        why: dict[int, str] = {}
        numbers = {(side.want, row.number) for side, row in strange if row.code == UNKNOWN and row.number}
        unsure = [one for one in numbers if not self._settled(*one)]
        if unsure:
            want, number = unsure[0]
            self._counts.waiting_batches += 1
            return Rejected(
                NOT_YET, f"{_text(number)} is not known yet as one of {want}: {SCHEMAS_TOPIC} is being read"
            )
        for side, row in strange:
            why.setdefault(row.record, self._why(side, row))
        return why

    def _told(self, why: Mapping[int, str], header: BatchHeader, explain: int) -> Rejected:
        """The refusal of a batch for these records."""
        self._note(len(why), next(iter(why.values())))
        if header.record_count > explain:
            return Rejected(ErrorCode.INVALID_RECORD, next(iter(why.values())))
        return record_errors(ErrorCode.INVALID_RECORD, sorted(why.items()), explain)

    def _settled(self, want: Want, number: bytes) -> bool:
        """Whether it is certain that a record with this id, by which nothing was checked, is not taken."""
        table = self._known.table(want)
        if not table.has(number):
            return self._known.lacks(want, number)
        return number in self._known.checks(want).compiled

    def _why(self, side: _Side, row: Unfit) -> str:
        what = "key" if side.of_keys else "value"
        if not row.number:
            return f"the {what} has no schema's id"
        program = self._known.checks(side.want).compiled.get(row.number) if side.want.texts else None
        if program is None:
            return f"the {what} has {_text(row.number)}, which is none of {side.want}"
        if isinstance(program, str):
            return f"the {what} has {_text(row.number)}, by which it cannot be checked: {program}"
        assert isinstance(program, Program), "others are asked elsewhere"
        path = program.path(row.trail)
        place = f"the {what}'s field {path}" if path else f"the {what}"
        return f"{place} {REASONS[row.code]} ({_text(row.number)}, byte {row.position} of the payload)"

    def _note(self, records: int, reason: str) -> None:
        counts, now_ms = self._counts, self._known.now_ms()
        counts.refused_records += records
        if counts.told_ms is None or now_ms - counts.told_ms >= _TOLD_MS:
            counts.told_ms = now_ms
            logger.warning(
                "%s: records were refused for their schemas, %d by now: %s", self._topic, counts.refused_records, reason
            )


def _text(number: bytes) -> str:
    return f"schema id {int.from_bytes(number, 'big')}" if len(number) == 4 else f"schema GUID {UUID(bytes=number)}"
