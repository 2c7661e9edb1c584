"""What a topic asks of its records' schemas: each value (or key) carries the id of a schema of the topic's subject.

A leader asks it of what clients send, before it appends; what is in a log is not looked at again. Which ids a topic
takes is known from the topic ``_schemas``, of which a broker keeps what its topics need (:class:`KnownSchemas`), as far
as it has read. An id that is not there may be one that is not there *yet*: so it is refused for good only when the
broker has read up to the end since it was first seen. Until then the answer is NOT_ENOUGH_REPLICAS, which the Java
client and librdkafka take for "not appended, try again", and after which an idempotent producer stays in order
(``producers.rejected``).

Framing: Confluent's serializers (magic byte 0 and an id, magic byte 1 and a GUID, also in a header).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, parse_header
from fleetlog._native.schemas import misfits
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.config import TopicConfig
from fleetlog.brokers.log.disk.files import Buffer
from fleetlog.brokers.log.validation import Rejected, record_errors
from fleetlog.brokers.model import SCHEMAS_TOPIC, Clock
from fleetlog.brokers.topic_config import RECORD_NAMES, TOPIC_NAMES
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

FRESH_MS: Final = 500
"""How old what was read may be when an id is refused that is not in it."""
SOUGHT_MS: Final = 30_000
"""How long an id that was not there is looked for."""
SOUGHT_MAX: Final = 1_000
"""Ids that are looked for at a time; what more is asked for is refused as not known yet."""
_TOLD_MS: Final = 10_000
NOT_YET: Final = ErrorCode.NOT_ENOUGH_REPLICAS
_HEADERS: Final = (b"__value_schema_id", b"__key_schema_id")


class Want(NamedTuple):
    """A subject whose schemas are wanted; ``of_records``: those that are this and the name of the schema itself."""

    subject: str
    of_records: bool = False

    def __str__(self) -> str:
        return f"a subject {self.subject}<name of the record>" if self.of_records else f"subject {self.subject}"


@dataclass(slots=True)
class Table:
    """The ids and GUIDs of a want's schemas, as the kernel takes them. ``used`` since that was last looked at."""

    ids: bytes = b""
    guids: bytes = b""
    used: bool = True


NOTHING_READ: Final = Table()


@dataclass(slots=True)
class DoorCounts:
    """Of a topic: records refused, batches that had to wait for the broker to know a schema, and when it was told."""

    refused_records: int = 0
    waiting_batches: int = 0
    told_ms: int | None = None


class KnownSchemas:
    """What a broker knows of ``_schemas``; who reads it sets ``wake``, and calls :meth:`learn`."""

    def __init__(self, clock: Clock) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.wants: dict[Want, None] = {}
        self.tables: Mapping[Want, Table] = {}
        self.counts: dict[str, DoorCounts] = {}
        self.sought: dict[tuple[Want, bytes], int] = {}
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

    def learn(self, tables: Mapping[Want, Table], read_ms: int) -> None:
        """All of these were read up to an end that was the end at ``read_ms`` or later."""
        self.tables, self._read_ms = tables, read_ms

    def lacks(self, want: Want, number: bytes) -> bool:
        """Whether it is certain that no schema of the want has the id, which no table has."""
        now_ms = self.now_ms()
        since = self.sought.get((want, number))
        if since is None or now_ms - since > SOUGHT_MS:
            if since is not None or len(self.sought) < SOUGHT_MAX:
                self.sought[want, number] = now_ms
        elif want in self.tables and self._read_ms > since and now_ms - self._read_ms <= FRESH_MS:
            return True
        self.wake()
        return False

    def looks_for_any(self) -> bool:
        """Whether an id was asked for that is not there, not long ago: then it is read more often."""
        earliest = self.now_ms() - SOUGHT_MS
        self.sought = {sought: since_ms for sought, since_ms in self.sought.items() if since_ms >= earliest}
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


def _want(topic: str, strategy: str, part: str) -> Want:
    if strategy == TOPIC_NAMES:
        return Want(f"{topic}-{part}")
    return Want("" if strategy == RECORD_NAMES else f"{topic}-", of_records=True)


class Door:
    """The check of a topic's records; without settings that ask for one there is none."""

    __slots__ = ("_counts", "_known", "_sides", "_topic")

    def __init__(self, topic: str, config: TopicConfig, known: KnownSchemas) -> None:
        self._topic = topic
        self._known = known
        self._counts = known.counts.setdefault(topic, DoorCounts())
        self._sides: list[_Side] = []
        if config.checks_values:
            self._sides.append(_Side(False, _want(topic, config.confluent_value_subject_name_strategy, "value")))
        if config.confluent_key_schema_validation:
            self._sides.append(_Side(True, _want(topic, config.confluent_key_subject_name_strategy, "key")))

    def passing(self, batches: Sequence[Buffer]) -> int:
        """How many of the first batches need no closer look for their ids; whether they are sound is not said."""
        for number, batch in enumerate(batches):
            try:
                header = parse_header(batch)
                if header.codec or self._strange(memoryview(batch)[HEADER_SIZE:], header, 1):
                    return number
            except CorruptBatch:
                return number
        return len(batches)

    def _strange(self, payload: Buffer, header: BatchHeader, most: int) -> list[tuple[int, _Side, bytes]]:
        """Up to so many records of each side whose ids are not known."""
        strange: list[tuple[int, _Side, bytes]] = []
        for side in self._sides:
            table = self._known.table(side.want)
            wrong = misfits(payload, header, _HEADERS[side.of_keys], side.of_keys, table.ids, table.guids, most)
            if wrong:
                strange += [(index, side, number) for index, number in wrong]
        return strange

    def check(self, payloads: Sequence[Buffer], headers: Sequence[BatchHeader], explain: int) -> Rejected | None:
        """Why the batches are not taken; ``payloads`` are their records, decompressed. Raises CorruptBatch.

        In batches of up to ``explain`` records the bad ones are named.
        """
        for payload, header in zip(payloads, headers, strict=True):
            most = header.record_count if header.record_count <= explain else 1
            strange = self._strange(payload, header, most)
            if strange:
                return self._refused(strange, header, explain)
        return None

    def _refused(self, strange: Iterable[tuple[int, _Side, bytes]], header: BatchHeader, explain: int) -> Rejected:
        why: dict[int, str] = {}
        numbers = {(side.want, number) for _, side, number in strange if number}
        unsure = [one for one in numbers if not self._known.lacks(*one)]
        if unsure:
            want, number = unsure[0]
            self._counts.waiting_batches += 1
            return Rejected(
                NOT_YET, f"{_text(number)} is not known yet as one of {want}: {SCHEMAS_TOPIC} is being read"
            )
        for index, side, number in strange:
            what = "key" if side.of_keys else "value"
            wrong = f"{_text(number)}, which is none of {side.want}" if number else "no schema's id"
            why.setdefault(index, f"the {what} has {wrong}")
        self._note(len(why), next(iter(why.values())))
        if header.record_count > explain:
            return Rejected(ErrorCode.INVALID_RECORD, next(iter(why.values())))
        return record_errors(ErrorCode.INVALID_RECORD, sorted(why.items()), explain)

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
