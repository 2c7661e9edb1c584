"""Follows the topic ``_schemas`` for the checks of topics that this broker leads (:mod:`brokers.log.door`).

Nothing is read until a topic asks. Then the topic is read from its start, here if this broker leads it, else from its
leader, and asked for more every second; while an id is looked for, ten times a second. It is read anew for what was not
wanted before, when its leader has changed, which may have lost records, and after an hour without an answer, since what
was deleted meanwhile may have left no trace. Kept are the numbers of versions of wanted subjects, not their schemas.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, CorruptBatch, Record, decode_records, scan, validate_batch
from fleetlog._native.errors import MalformedMessage
from fleetlog.brokers.log import DiskError, LogOffline
from fleetlog.brokers.log.disk.failures import OffsetOutOfRange
from fleetlog.brokers.log.door import KnownSchemas, Reference, SchemaText, Table, Want, packed
from fleetlog.brokers.model import SCHEMAS_TOPIC, TopicPartition
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.replication.serving import Serve
from fleetlog.brokers.schema_guids import guid_of
from fleetlog.wire.api_keys import FETCH, LIST_OFFSETS
from fleetlog.wire.compression import CodecError, decompress
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import NO_HIGH_WATERMARK, FetchPart, decode_fetch_response, encode_fetch_request
from fleetlog.wire.messages import ListOffsetsRequest

if TYPE_CHECKING:
    from fleetlog.brokers.api.base import Services
    from fleetlog.brokers.metrics.registry import Metrics

logger = logging.getLogger(__name__)

PLACE: Final = TopicPartition(SCHEMAS_TOPIC, 0)
VERSIONS_MAX: Final = 500_000
"""Of wanted subjects, some 200 bytes each: what is beyond them stays unknown."""
SOURCES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of schemas' texts, compressed: records with the ids of those beyond them wait."""
REFERENCED_MAX: Final = 10_000
READ_BYTES: Final = 1024 * 1024
INFLATE_MAX: Final = 64 * 1024 * 1024
FETCH_VERSION: Final = 13
ENDS_VERSION: Final = 6
LATEST: Final = -1
ANSWER_MS: Final = 10_000
PAUSE_S, SOUGHT_PAUSE_S = 1.0, 0.1
ANEW_MS: Final = 3_600_000
LOOK_MS: Final = 600_000
"""How often what no topic asks for any more is looked for."""


class CannotRead(Exception):
    """Why the topic cannot be read now."""


class Version(NamedTuple):
    """What is kept of a version of a subject; ``names``: those of its schema with which the subject ends, if wanted."""

    id: bytes
    guid: bytes
    names: tuple[str, ...]
    source: SchemaText | None = None


class SchemaRows:
    """The versions of wanted subjects, and others that are referred to, as records of the topic make them. Pure."""

    def __init__(self, wants: Iterable[Want], referenced: Iterable[Reference] = ()) -> None:
        self.wants = frozenset(wants)
        self.referenced = frozenset(referenced)
        self.references: dict[Reference, SchemaText | None] = dict.fromkeys(self.referenced)
        self.lacking: set[Reference] = set()
        """What kept schemas refer to, but for ``referenced``."""
        self.count = self.size = 0
        self._subjects = {want.subject: want.texts for want in self.wants if not want.of_records}
        self._subjects |= {want.subject: True for want in self.wants if want.texts and not want.of_records}
        self._prefixes = tuple(want.subject for want in self.wants if want.of_records)
        self._text_prefixes = tuple(want.subject for want in self.wants if want.of_records and want.texts)
        self._rows: dict[str, dict[int, Version]] = {}

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take a record; one that is no version of a wanted subject changes nothing.

        A version that is deleted softly stays: its id can be read. One that is deleted for good is gone.
        """
        try:
            fields = json.loads(key or b"null")
            if fields["keytype"] != "SCHEMA":
                return
            subject, version = str(fields["subject"]).removeprefix(":.:"), int(fields["version"])
            self._apply(subject, version, value)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            logger.warning("a record of %s is not understood, and is left out: %s", SCHEMAS_TOPIC, error)

    def _apply(self, subject: str, version: int, value: bytes | None) -> None:
        by_name, reference = subject.startswith(self._prefixes), (subject, version)
        wanted = by_name or subject in self._subjects
        if not wanted and reference not in self.referenced:
            return
        self._drop(subject, version)
        if reference in self.referenced:
            self.references[reference] = None
        if value is None:
            return
        schema = json.loads(value)
        kind = schema.get("schemaType") or "AVRO"
        names = set(filter(subject.endswith, names_of(kind, schema["schema"], len(subject)))) if by_name else ()
        number = int(schema["id"]).to_bytes(4, "big")
        more = [one if one and isinstance(one, dict) else None for one in map(schema.get, ("metadata", "ruleSet"))]
        guid = guid_of(schema["schema"], schema.get("references") or (), *more)
        checked = self._subjects.get(subject) or (names and subject.startswith(self._text_prefixes))
        source = self._source(schema, kind) if checked or reference in self.referenced else None
        if reference in self.referenced:
            self.references[reference] = source
            if source is None:
                del self.references[reference]
        if wanted and self.count < VERSIONS_MAX:
            self._rows.setdefault(subject, {})[version] = Version(number, guid.bytes, tuple(names), source)
            self.count += 1

    def _source(self, schema: Any, kind: str) -> SchemaText | None:
        """The schema with its text; None if there is no room."""
        rows = schema.get("references") or ()
        references = tuple((str(row["subject"]).removeprefix(":.:"), int(row["version"])) for row in rows)
        text = packed(schema["schema"])
        if self.size + len(text) > SOURCES_BYTES_MAX:
            return None
        self.lacking.update(row for row in references if row not in self.referenced)
        self.size += len(text)
        return SchemaText(str(kind), text, references, tuple(str(row.get("name")) for row in rows))

    def _drop(self, subject: str, version: int) -> None:
        rows = self._rows.get(subject, {})
        row = rows.pop(version, None)
        source = row.source if row is not None else self.references.get((subject, version))
        if source is not None:
            self.size -= len(source.packed)
        if row is not None:
            self.count -= 1
            if not rows:
                del self._rows[subject]

    def tables(self) -> dict[Want, Table]:
        """What the wants have now."""
        tables = {}
        for want in self.wants:
            versions = list(self._versions(want))
            ids, guids = ({one.id for one in versions}, {one.guid for one in versions})
            tables[want] = table = Table(b"".join(sorted(ids)), b"".join(sorted(guids)))
            if want.texts:
                kept = [(one, one.source) for one in versions if one.source is not None]
                table.sources = {number: source for one, source in kept for number in (one.id, one.guid)}
        return tables

    def _versions(self, want: Want) -> Iterator[Version]:
        if not want.of_records:
            yield from self._rows.get(want.subject, {}).values()
            return
        for subject, rows in self._rows.items():
            if subject.startswith(want.subject):
                name = subject[len(want.subject) :]
                yield from (one for one in rows.values() if name in one.names)


_PROTOBUF_WORDS = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[\w.]+|[{};]", re.DOTALL
)


def names_of(kind: str, text: str, most: int) -> Iterator[str]:
    """The names by which serializers may call a schema: an Avro record's, a JSON Schema's title, Protobuf's messages'.

    Of messages only those of at most so many characters: each has the names of those around it. Raises ValueError for
    what is no JSON.
    """
    if kind == "PROTOBUF":
        yield from _messages_of(text, most)
        return
    schema = json.loads(text)
    if kind == "JSON":
        if isinstance(schema, dict) and isinstance(schema.get("title"), str):
            yield schema["title"]
        return
    if isinstance(schema, dict):
        name, space = schema.get("name"), schema.get("namespace")
        if isinstance(name, str):
            yield f"{space}.{name}" if space and "." not in name else name
            return
        schema = schema.get("type")
    if isinstance(schema, str):
        yield schema


def _messages_of(text: str, most: int) -> Iterator[str]:
    """Full names of all messages, those in messages, too, as far as words and braces tell, if they are short enough."""
    words = [word for word in _PROTOBUF_WORDS.findall(text) if word[:2] not in ("//", "/*") and word[0] not in "\"'"]
    package, within, opening = "", list[str](), ""
    size = 0  # of the names in ``within``, each with a character that divides it from the next one
    for before, word in zip(["", *words], words, strict=False):
        if before == "package" and not within:
            package = f"{word}."
        elif before == "message" and word not in "{};":
            opening = word
        elif word == "{":
            within.append(opening)
            size += len(opening) + 1
            if opening and len(package) + size - 1 <= most:
                yield package + ".".join(within)
            opening = ""
        elif word == "}" and within:
            size -= len(within.pop()) + 1


class _Chunk(NamedTuple):
    """What was read from an offset on, and the end of what is committed."""

    records: bytes | memoryview
    end: int
    start: int


class SchemaReader:
    """See the module. ``start`` makes a task, which must not end, when a topic asks first; ``connect`` the connections
    to other brokers.
    """

    def __init__(
        self,
        services: Services,
        known: KnownSchemas,
        *,
        connect: Callable[[], PeersPort],
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._services = services
        self._known = known
        self._connect = connect
        self._start = start
        self._peers: PeersPort | None = None
        self._wanted = asyncio.Event()
        self._rows = SchemaRows(())
        self._place: tuple[uuid.UUID, int] | None = None
        """The topic's id and leader epoch when the rows were begun."""
        self._asked: tuple[uuid.UUID, int] | None = None
        """Those for which another broker has said that it knows what is committed."""
        self._offset = 0
        self._changed = False
        """Whether the rows have what the tables lack."""
        self._ended_ms: int | None = None
        """When the rows were complete last."""
        self._current_ms = 0
        self._looked_ms = 0
        known.wake = self._wake

    def _wake(self) -> None:
        self._wanted.set()
        if self._peers is None:
            self._peers = self._connect()
            self._current_ms = self._services.clock.mono_ms()
            self._start(self._run())

    def watch(self, metrics: Metrics) -> None:
        """Show what the checks of this broker did, and how old is what they know."""

        def of_topics(count: str) -> dict[tuple[str, ...], float]:
            counts, topics = self._known.counts, self._services.metadata.topics
            return {(topic,): float(getattr(row, count)) for topic, row in counts.items() if topic in topics}

        metrics.watch_counters(
            "fleetlog_schema_refused_records", "Records refused for their schemas.", ("topic",),
            partial(of_topics, "refused_records"),
        )  # fmt: skip
        metrics.watch_counters(
            "fleetlog_schema_waiting_batches", "Batches sent back until it is known whether their schemas exist.",
            ("topic",), partial(of_topics, "waiting_batches"),
        )  # fmt: skip
        metrics.watch_counters(
            "fleetlog_schema_checker_starts", "Starts of the process that checks payloads.", (),
            lambda: {(): float(self._known.checker.starts)},
        )  # fmt: skip
        metrics.watch(
            "fleetlog_schema_checker_waiting_bytes", "Bytes of records that wait for the process that checks payloads.",
            lambda: float(self._known.checker.waiting_bytes),
        )  # fmt: skip
        metrics.watch(
            "fleetlog_schema_age_seconds", "How long ago _schemas was read to its end; 0 if no topic here asks for it.",
            lambda: (self._services.clock.mono_ms() - self._current_ms) / 1000 if self._known.wants else 0.0,
        )  # fmt: skip

    async def _run(self) -> None:
        """Read as long as topics ask, for ever."""
        failed = False
        while True:
            self._wanted.clear()
            if not self._known.wants:
                self._rows, self._place = SchemaRows(()), None
                self._known.referenced.clear()
                self._known.learn({}, -1, {})
                await self._wanted.wait()
                self._current_ms = self._services.clock.mono_ms()
                continue
            try:
                ended = await self._read_some()
                failed = False
            except (CannotRead, PeerUnavailable, MalformedMessage, DiskError, LogOffline) as problem:
                logger.log(
                    logging.DEBUG if failed else logging.WARNING, "%s cannot be read: %s", SCHEMAS_TOPIC, problem
                )
                failed, ended = True, True
            if ended:
                await self._rest(failed)

    async def close(self) -> None:
        """Close the connections to other brokers."""
        if self._peers is not None:
            await self._peers.close()

    async def _rest(self, failed: bool) -> None:
        now_ms = self._services.clock.mono_ms()
        if now_ms - self._looked_ms > LOOK_MS:
            self._looked_ms = now_ms
            self._known.forget_unused()
        sought = self._known.looks_for_any()
        if sought or failed:
            await asyncio.sleep(SOUGHT_PAUSE_S)
            return
        try:
            async with asyncio.timeout(PAUSE_S):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _read_some(self) -> bool:
        """Whether all was read. Raises CannotRead, PeerUnavailable, MalformedMessage, DiskError, LogOffline."""
        metadata, now_ms = self._services.metadata, self._services.clock.mono_ms()
        topic = metadata.topics.get(SCHEMAS_TOPIC)
        if topic is None:
            raise CannotRead("it does not exist")
        state = topic.partitions[0]
        place = topic.id, state.leader_epoch
        lacking = self._lacking()
        stale = self._ended_ms is not None and now_ms - self._ended_ms > ANEW_MS
        if place != self._place or lacking or stale:
            self._rows, self._place, self._offset, self._ended_ms = self._new_rows(), place, 0, None
            self._changed = True
        if state.leader == self._services.config.broker_id:
            chunk = self._read_here()
        else:
            assert self._peers is not None, "made when the first topic asked"
            if self._asked != place:
                await self._ask_for_end(self._peers, state.leader, state.leader_epoch)
                self._asked = place
            chunk = await self._fetch(self._peers, state.leader, topic.id, state.leader_epoch)
        if chunk.start > self._offset:
            self._offset = chunk.start
        before = self._offset
        await self._apply(chunk.records)
        if self._offset < chunk.end and self._offset > before:
            return False
        if self._changed or self._known.tables.keys() != self._rows.wants:
            self._known.learn(self._rows.tables(), now_ms, self._rows.references.copy())
            self._changed = False
        else:
            self._known.learn(self._known.tables, now_ms)
        if self._rows.count >= VERSIONS_MAX or self._rows.size > SOURCES_BYTES_MAX * 0.9:
            logger.error(
                "%s has more than %d versions, or %d bytes, that topics check: some stay unknown",
                PLACE,
                VERSIONS_MAX,
                SOURCES_BYTES_MAX,
            )
        self._ended_ms = self._current_ms = now_ms
        return not self._lacking()

    def _new_rows(self) -> SchemaRows:
        return SchemaRows(self._known.wants, self._known.referenced)

    def _lacking(self) -> bool:
        """Whether more is wanted than was read, also since it was found that schemas refer to it."""
        for reference in self._rows.lacking:
            if len(self._known.referenced) < REFERENCED_MAX:
                self._known.referenced[reference] = None
        rows, known = self._rows, self._known
        return not (rows.wants.issuperset(known.wants) and rows.referenced.issuperset(known.referenced))

    def _read_here(self) -> _Chunk:
        partition, refusal = self._services.replicas.leader(PLACE)
        if partition is None:
            raise CannotRead(refusal.name)
        refusal = partition.may_serve(Serve.FETCH)
        if refusal is not ErrorCode.NONE:
            raise CannotRead(refusal.name)
        log = partition.log
        if log.high_watermark < partition.epoch_start_offset:  # what others were told to be written may be behind it
            raise CannotRead("its new leader does not know yet what is committed")
        try:
            offset = max(self._offset, log.log_start_offset)
            run = log.reader.read(offset, READ_BYTES, end_offset=log.high_watermark)
        except OffsetOutOfRange as wrong:
            self._place = None
            raise CannotRead(str(wrong)) from None
        pieces = [bytes(piece.read()) for piece in run.slices]
        run.release()
        return _Chunk(b"".join(pieces), log.high_watermark, log.log_start_offset)

    async def _ask_for_end(self, peers: PeersPort, leader: int, epoch: int) -> None:
        """Raises CannotRead if the leader is new and does not know yet what its predecessor had committed.

        What it serves then ends too early. It leads in this epoch until there is another one, so it is asked once.
        """
        partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=0, current_leader_epoch=epoch, timestamp=LATEST
        )
        request = ListOffsetsRequest(
            version=ENDS_VERSION, replica_id=-1, isolation_level=0,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=SCHEMAS_TOPIC, partitions=[partition])],
        )  # fmt: skip
        answer = await peers.call(leader, LIST_OFFSETS, ENDS_VERSION, request, timeout_ms=ANSWER_MS)
        error = ErrorCode(answer.topics[0].partitions[0].error_code)
        if error not in (ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED):  # an older broker asks for Describe
            raise CannotRead(f"broker {leader} answers {error.name}")

    async def _fetch(self, peers: PeersPort, leader: int, topic_id: uuid.UUID, epoch: int) -> _Chunk:
        asked = FetchPart(None, topic_id, 0, epoch, self._offset, -1, -1, READ_BYTES, NO_HIGH_WATERMARK)
        body = encode_fetch_request(
            FETCH_VERSION, replica_id=-1, replica_epoch=-1, max_wait_ms=0, min_bytes=0, max_bytes=READ_BYTES,
            session_id=0, session_epoch=-1, parts=[asked],
        )  # fmt: skip
        answer = decode_fetch_response(
            FETCH_VERSION, await peers.exchange(leader, FETCH, FETCH_VERSION, body, ANSWER_MS)
        )
        error = ErrorCode(answer.error or (answer.parts[0].error if answer.parts else ErrorCode.UNKNOWN_SERVER_ERROR))
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._place = None
        if error is not ErrorCode.NONE:
            raise CannotRead(f"broker {leader} answers {error.name}")
        part = answer.parts[0]
        return _Chunk(bytes(part.records), part.high_watermark, part.log_start_offset)

    async def _apply(self, records: bytes | memoryview) -> None:
        """Take what was read. Raises CannotRead for what is no batch."""
        try:
            for position, header in scan(records):
                validate_batch(records, position)
                payload = memoryview(records)[position + HEADER_SIZE : position + header.size]
                if header.codec:  # some kilobytes may be 64 MiB: the loop goes on meanwhile
                    taken = await asyncio.to_thread(_unpacked, payload, header)
                else:
                    taken = [] if header.is_control else decode_records(payload, header)
                for record in taken:
                    if record.offset >= self._offset:
                        self._rows.apply(record.key, record.value)
                        await asyncio.sleep(0)
                self._offset = max(self._offset, header.last_offset + 1)
                self._changed = True
        except (CorruptBatch, CodecError) as wrong:
            raise CannotRead(str(wrong)) from None


def _unpacked(payload: memoryview, header: BatchHeader) -> list[Record]:
    """The records of a batch with a codec. Raises CorruptBatch, CodecError."""
    unpacked = decompress(header.codec, payload, INFLATE_MAX)
    return [] if header.is_control else decode_records(unpacked, header)
