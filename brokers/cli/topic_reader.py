"""Records of a topic as they stand in the log: raw batches, so that transactions and markers can be shown, too."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kafka.protocol.consumer import OffsetSpec
from kafka.structs import TopicPartition

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, CorruptBatch, decode_records, scan
from fleetlog.brokers.cli.client import PartitionsOf, explain, known_partitions
from fleetlog.brokers.cli.output import CliError
from fleetlog.wire.compression import NAMES, CodecError, decompress
from fleetlog.wire.messages import request_class

FETCH: Final = 1
COMMITTED, UNCOMMITTED = 1, 0
PATIENCE_S: Final = 4.0
ROUND_BYTES: Final = 4 * 1024 * 1024
PARTITION_BYTES: Final = 1024 * 1024
INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
"""A compressed batch that is larger is shown as damaged."""
DECODED_BYTES_MIN: Final = ROUND_BYTES
"""Inflated bytes that one fetch decodes, however little is left to scan: it must come forward."""
_MARKER = struct.Struct(">hh")
_MARKERS: Final = {0: "abort marker", 1: "commit marker"}
_FETCH_VERSION: Final = 12
"""The last one that names topics."""


class StoredRecord(NamedTuple):
    """A record with what its batch says. ``state``: committed, aborted, undecided, or empty without a transaction;
    ``marker`` is empty for data."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    state: str
    marker: str
    producer_id: int
    producer_epoch: int
    sequence: int
    leader_epoch: int
    codec: str

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        size = len(self.key or b"") + len(self.value or b"")
        return size + sum(len(name) + len(value or b"") for name, value in self.headers) if self.headers else size


class PartitionBounds(NamedTuple):
    """Offsets of one partition: the first, the end of what is decided, and the end of what is replicated."""

    first: int
    stable: int
    end: int


class StoredBatch(NamedTuple):
    """Bytes of a batch as it is stored, and with its records inflated. ``producer_id`` is -1 without idempotence."""

    stored: int
    inflated: int
    records: int
    codec: str
    is_control: bool
    producer_id: int


class FetchedPart(NamedTuple):
    """What one fetch gave for a partition, and where the next one begins. ``size`` counts inflated bytes.

    ``passed_over`` counts records of batches that were not wanted.
    """

    records: list[StoredRecord]
    next_offset: int
    size: int
    batches: tuple[StoredBatch, ...] = ()
    passed_over: int = 0


PassesOver = Callable[[int, BatchHeader, bytes], bool]
"""Whether a batch of that partition, with these inflated bytes of its records, can have none that is looked for."""


class TopicReader:
    """Reads partitions from their leaders. A leader that does not answer in time is left out and named."""

    def __init__(self, client: Any, topic: str, partitions: Collection[int] | None = None) -> None:
        self._client, self.topic = client, topic
        wanted = None if partitions is None else tuple(sorted(partitions))
        rows = known_partitions(client, [PartitionsOf(topic, wanted)])[topic]
        self.leaders: dict[int, int] = {row["partition_index"]: row["leader_id"] for row in rows}
        self.silent = {partition for partition, leader in self.leaders.items() if leader < 0}

    def bounds(self, undecided: bool = True) -> dict[int, PartitionBounds]:
        """Of each partition whose leader answers. Without ``undecided`` its end is that of what is decided."""
        asked = [(OffsetSpec.EARLIEST, COMMITTED), (OffsetSpec.LATEST, COMMITTED)]
        first, stable, *others = self._offsets([*asked, (OffsetSpec.LATEST, UNCOMMITTED)] if undecided else asked)
        end = others[0] if others else stable
        known = sorted(first.keys() & stable.keys() & end.keys())
        return {p: PartitionBounds(first[p], stable[p], end[p]) for p in known}

    def offsets(self, moment: int, isolation: int) -> dict[int, int]:
        """The offset at a time in ms, or at an OffsetSpec; -1 where no record is that new."""
        return self._offsets([(moment, isolation)])[0]

    def _offsets(self, asked: Sequence[tuple[int, int]]) -> list[dict[int, int]]:
        """For each moment and isolation, asked for at once."""
        requests, numbers = [], []
        for leader in {self.leaders[p] for p in self.leaders if p not in self.silent}:
            led = [TopicPartition(self.topic, p) for p, by in self.leaders.items() if by == leader]
            for number, (moment, isolation) in enumerate(asked):
                request = self._client._list_partition_offsets_request(dict.fromkeys(led, moment), isolation)
                requests.append((leader, request))
                numbers.append(number)
        offsets: list[dict[int, int]] = [{} for _ in asked]
        answers = self._client.ask_all(requests, PATIENCE_S)
        for (leader, _), number, answer in zip(requests, numbers, answers, strict=True):
            if answer is None:
                self.silent |= {p for p, by in self.leaders.items() if by == leader}
                continue
            for row in answer.topics[0].partitions:
                if row.error_code:
                    self.silent.add(row.partition_index)
                else:
                    offsets[number][row.partition_index] = row.offset
        return offsets

    def fetch(
        self,
        positions: Mapping[int, int],
        isolation: int,
        records_max: int,
        bytes_max: int,
        passes_over: PassesOver | None = None,
    ) -> dict[int, FetchedPart]:
        """Records from the positions on, of partitions that have some, until ``bytes_max`` inflated bytes are passed;
        raises CliError for what is refused. Batches that ``passes_over`` names are only counted."""
        by_leader: dict[int, list[int]] = {}
        for partition in positions:
            if partition not in self.silent:
                by_leader.setdefault(self.leaders[partition], []).append(partition)
        requests = [(leader, self._request(ps, positions, isolation)) for leader, ps in by_leader.items()]
        parts: dict[int, FetchedPart] = {}
        bytes_left = max(bytes_max, DECODED_BYTES_MIN)
        for (leader, _), answer in zip(requests, self._client.ask_all(requests, PATIENCE_S), strict=True):
            if answer is None:
                self.silent |= set(by_leader[leader])
                continue
            for row in answer.responses[0].partitions if answer.responses else ():
                partition = row.partition_index
                if row.error_code:
                    text = explain(row.error_code)
                    raise CliError(f"topic {self.topic}, partition {partition}: {text}")
                aborted = [(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()]
                data = row.records
                if data and bytes_left > 0:
                    parts[partition] = decode_part(
                        bytes(data), partition, positions[partition], isolation, aborted, records_max, bytes_left,
                        passes_over,
                    )  # fmt: skip
                    bytes_left -= parts[partition].size
        return parts

    def _request(self, partitions: list[int], positions: Mapping[int, int], isolation: int) -> Any:
        kind = request_class(FETCH)
        rows = [
            kind.FetchTopic.FetchPartition(
                version=_FETCH_VERSION, partition=p, current_leader_epoch=-1, fetch_offset=positions[p],
                last_fetched_epoch=-1, log_start_offset=-1, partition_max_bytes=PARTITION_BYTES,
            )
            for p in partitions
        ]  # fmt: skip
        return kind(
            version=_FETCH_VERSION, replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=ROUND_BYTES,
            isolation_level=isolation, session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="",
            topics=[kind.FetchTopic(version=_FETCH_VERSION, topic=self.topic, partitions=rows)],
        )  # fmt: skip


class _Aborted:
    """Follows the aborted transactions of one answer through its batches, in the order of offsets (KIP-98)."""

    def __init__(self, listed: Iterable[tuple[int, int]]) -> None:
        self._coming = sorted(((first, producer) for producer, first in listed), reverse=True)
        self._open: set[int] = set()

    def has(self, header: BatchHeader) -> bool:
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        return header.is_transactional and header.producer_id in self._open

    def end(self, producer_id: int) -> None:
        self._open.discard(producer_id)


def decode_part(
    data: bytes,
    partition: int,
    start: int,
    isolation: int,
    aborted: Iterable[tuple[int, int]],
    records_max: int,
    bytes_max: int,
    passes_over: PassesOver | None = None,
) -> FetchedPart:
    """The records from ``start`` on. Batches beyond ``records_max`` records, or ``bytes_max`` inflated bytes, are left
    for the next fetch; one is decoded."""
    runs = _Aborted(aborted)
    stored: list[StoredRecord] = []
    batches: list[StoredBatch] = []
    next_offset, size, passed = start, 0, 0
    for position, header in scan(data):
        if (stored or passed) and (len(stored) + passed >= records_max or size >= bytes_max):
            break
        lost = runs.has(header)
        state = ""
        if header.is_transactional:
            state = "undecided" if isolation == UNCOMMITTED else "aborted" if lost else "committed"
        payload = _payload(data, position, header, partition)
        inflated = len(payload)
        if passes_over is not None and not header.is_control and passes_over(partition, header, bytes(payload)):
            passed += header.record_count
            next_offset = max(next_offset, header.last_offset + 1)
            size += max(header.size, inflated)
            continue
        records = _records(payload, header, partition, "" if header.is_control else state)
        if header.is_control and records and records[0].marker == _MARKERS[0]:
            runs.end(header.producer_id)
        stored += [record for record in records if record.offset >= start]
        next_offset = max(next_offset, header.last_offset + 1)
        size += max(header.size, inflated)
        codec = NAMES.get(header.codec, str(header.codec))
        sizes = header.size, HEADER_SIZE + inflated, len(records)
        batches.append(StoredBatch(*sizes, codec, header.is_control, header.producer_id))
    return FetchedPart(stored, next_offset, size, tuple(batches), passed)


_Payload = bytes | bytearray | memoryview


def _payload(data: bytes, position: int, header: BatchHeader, partition: int) -> _Payload:
    """The bytes of a batch's records, inflated."""
    payload: _Payload = memoryview(data)[position + HEADER_SIZE : position + header.size]
    if not header.codec:
        return payload
    try:
        return decompress(header.codec, payload, INFLATED_BYTES_MAX)
    except CodecError as error:
        raise _damaged(header, partition, error) from None


def _damaged(header: BatchHeader, partition: int, error: Exception) -> CliError:
    return CliError(
        f"partition {partition}: the batch at offset {header.base_offset} is damaged: {error}; "
        f"continue from offset {header.last_offset + 1}"
    )


def _records(payload: _Payload, header: BatchHeader, partition: int, state: str) -> list[StoredRecord]:
    """The records of a batch."""
    codec = NAMES.get(header.codec, str(header.codec))
    try:
        decoded = decode_records(payload, header)
    except CorruptBatch as error:
        raise _damaged(header, partition, error) from None
    producer_id, producer_epoch, leader_epoch = header.producer_id, header.producer_epoch, header.partition_leader_epoch
    sequence, base_offset, is_control = header.base_sequence, header.base_offset, header.is_control
    return [
        StoredRecord(
            partition, offset, timestamp, key, value, headers, state, _marker(key) if is_control else "",
            producer_id, producer_epoch, -1 if sequence < 0 else (sequence + offset - base_offset) % 2**31,
            leader_epoch, codec,
        )
        for offset, timestamp, key, value, headers in decoded
    ]  # fmt: skip


def _marker(key: bytes | None) -> str:
    if key is None or len(key) < _MARKER.size:
        return "control record"
    return _MARKERS.get(_MARKER.unpack_from(key)[1], "control record")
