"""``format("fleetlog_segments")``: log directories read from disk, without a broker. Batch only.

``load("/data/broker-1")`` reads every topic of a log directory (Kafka's layout, so Apache Kafka's directories, too):
columns as in the main source. Transactions are resolved: with ``read_committed`` (the default) aborted records are left
out, and a partition ends before its first open transaction. A partition also ends at the high watermark that the broker
has written to its checkpoint, as records above it may still be truncated; ``until=end`` reads to the end of the files.

A broker may run meanwhile: a torn last batch is left out, and a segment that it deletes fails the job.
"""

from __future__ import annotations

import itertools
import mmap
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from fleetlog._native.batch import HEADER_SIZE, BatchHeader, CorruptBatch, parse_header
from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.kernels import check_kernels
from fleetlog.spark.client.options import Option, OptionTable, one_of
from fleetlog.spark.client.workers import keep_loaded
from fleetlog.spark.source import decode
from fleetlog.spark.source.offsets import parse_assign
from fleetlog.spark.source.options import (
    INCLUDE_HEADERS,
    ISOLATION_LEVEL,
    STRATEGIES,
    check_choice,
)
from fleetlog.wire.types import TopicPartition

CHUNK_BYTES = 4 << 20
HIGH_WATERMARK, END = "highWatermark", "end"
_TABLE = OptionTable(
    Option("path", required="load(path) names the log directory, or several with commas between them"),
    *map(Option, STRATEGIES),
    INCLUDE_HEADERS,
    ISOLATION_LEVEL,
    Option("until", one_of(HIGH_WATERMARK, END), HIGH_WATERMARK),
    kafka=False,
)
_DIRECTORY = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d+)")
_SEGMENT = re.compile(r"(\d{20})\.log")
_MARKER = struct.Struct(">hi")


class AbortedSpan(NamedTuple):
    """An aborted transaction in a partition: its producer, its first offset, and that of its marker."""

    producer_id: int
    first: int
    marker: int


@dataclass
class ResolvedTransactions:
    """A partition's transactions. ``stable``: the offset below which every one is committed or aborted."""

    aborted: list[AbortedSpan] = field(default_factory=list)
    stable: int = 2**63 - 1


class PartitionDirectory(InputPartition):
    """One partition's directory and the offsets to read."""

    def __init__(self, directory: str, topic: str, number: int, start: int, end: int) -> None:
        super().__init__((directory, topic, number, start, end))


class SegmentsReader(DataSourceReader):
    """A task for each partition found. Raises OptionError, which names the option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        values = _TABLE.parse(options)
        self._paths = [Path(part.strip()) for part in values["path"].split(",") if part.strip()]
        self._until = values["until"]
        self._committed = values["kafka.isolation.level"] == "read_committed"
        self._headers = values["includeHeaders"]
        self._selection = _selection(values)

    def partitions(self) -> Sequence[InputPartition]:
        """Every selected partition of the directories, by topic and number. Raises OptionError for a wrong path."""
        directories: dict[TopicPartition, PartitionDirectory] = {}
        for path in self._paths:
            if not path.is_dir():
                raise OptionError(f"option path: {path} is no directory")
            starts = _checkpoint(path / "log-start-offset-checkpoint")
            ends = {} if self._until == END else _checkpoint(path / "replication-offset-checkpoint")
            for directory in sorted(path.iterdir()):
                named = _DIRECTORY.fullmatch(directory.name)
                if named is None or not directory.is_dir():
                    continue
                tp = TopicPartition(named["topic"], int(named["partition"]))
                if not self._selection.includes(tp):
                    continue
                if tp in directories:
                    raise OptionError(f"option path: {tp} is in several of the directories; name one copy")
                directories[tp] = PartitionDirectory(str(directory), *tp, starts.get(tp, 0), ends.get(tp, 2**63 - 1))
        return [directories[tp] for tp in sorted(directories)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        if not isinstance(partition, PartitionDirectory):
            return
        check_kernels()
        keep_loaded()
        name, topic, number, start, end = partition.value
        tp, directory = TopicPartition(topic, number), Path(name)
        resolved = resolve_transactions(_headers(directory), end) if self._committed else ResolvedTransactions()
        end = min(end, resolved.stable)
        schema = decode.row_arrow_schema(self._headers)
        for chunk, first in _chunks(directory, start, end):
            decoded = decode.decode_rows(
                chunk,
                max(first, start),
                end,
                aborted=_open_at(resolved.aborted, first),
                committed=self._committed,
                headers=self._headers,
                tp=tp,
            )
            if decoded.rows:
                yield decode.row_batch(decoded, tp, schema)


def resolve_transactions(batches: Iterable[tuple[BatchHeader, bytes]], end: int) -> ResolvedTransactions:
    """Follow the transactions of a partition up to ``end``; ``batches`` are headers, with the whole batch of markers.

    Markers of one batch transaction stand in a run, each with the number that follow it: a run that is cut off decides
    nothing yet (docs/protocol.md).
    """
    resolved = ResolvedTransactions()
    began: dict[int, int] = {}
    run: list[int] = []  # first offsets of the transactions that the present run of markers ends
    for header, data in batches:
        if header.base_offset >= end:
            break
        if not header.is_control:
            if header.is_transactional:
                began.setdefault(header.producer_id, header.base_offset)
            continue
        kind, follow = _marker(data, header)
        first = began.pop(header.producer_id, None)
        if first is not None:
            run.append(first)
            if kind == decode.ABORT:
                resolved.aborted.append(AbortedSpan(header.producer_id, first, header.base_offset))
        if follow == 0:
            run.clear()
    resolved.stable = min((*began.values(), *run, end))
    return resolved


def _marker(data: bytes, header: BatchHeader) -> tuple[int, int]:
    """(type, how many markers of its run follow)."""
    kind, value = decode.control_record(data, 0, header)
    follow = int.from_bytes(value[_MARKER.size : _MARKER.size + 4], "big") if len(value) >= _MARKER.size + 4 else 0
    return kind, follow


def _open_at(aborted: Sequence[AbortedSpan], first: int) -> list[tuple[int, int]]:
    """The aborted transactions with records from ``first`` on, as a fetch response lists them."""
    return [(one.producer_id, one.first) for one in aborted if one.marker >= first]


def _segments(directory: Path) -> list[tuple[int, Path]]:
    segments = [(int(named[1]), path) for path in directory.iterdir() if (named := _SEGMENT.fullmatch(path.name))]
    return sorted(segments)


def _mapped(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def _batches(data: mmap.mmap | bytes, path: Path) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch; a torn end is left out. Raises CorruptBatch with the file's name."""
    position = 0
    while len(data) - position >= HEADER_SIZE:
        head = data[position : position + HEADER_SIZE]
        if not any(head):  # preallocated
            return
        try:
            header = parse_header(head)
        except CorruptBatch as damage:
            raise CorruptBatch(f"{path}: {damage.reason}", position) from damage
        if header.size > len(data) - position:
            return
        yield position, header
        position += header.size


def _headers(directory: Path) -> Iterator[tuple[BatchHeader, bytes]]:
    """All headers of a partition, with the whole batch where it is a marker."""
    for _, path in _segments(directory):
        data = _mapped(path)
        for position, header in _batches(data, path):
            yield header, data[position : position + header.size] if header.is_control else b""


def _chunks(directory: Path, start: int, end: int) -> Iterator[tuple[bytes, int]]:
    """Runs of whole batches of about CHUNK_BYTES with offsets in the range, and the first offset of each."""
    segments = _segments(directory)
    for (_, path), following in itertools.zip_longest(segments, segments[1:]):
        if following is not None and following[0] <= start:
            continue
        data = _mapped(path)
        begin, stop, first = -1, 0, 0
        for position, header in _batches(data, path):
            if header.last_offset < start:
                continue
            if header.base_offset >= end:
                break
            if begin < 0:
                begin, first = position, header.base_offset
            stop = position + header.size
            if stop - begin >= CHUNK_BYTES:
                yield data[begin:stop], first
                begin = -1
        if begin >= 0:
            yield data[begin:stop], first


def _checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Offsets of one of Kafka's checkpoint files; empty without the file. Raises OptionError when it is damaged."""
    if not path.exists():
        return {}
    try:
        lines = path.read_text().splitlines()
        fields = [line.split() for line in lines[2:] if line.strip()]
        if int(lines[0]) != 0 or int(lines[1]) != len(fields):
            raise ValueError("version or number of entries is wrong")
        return {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in fields}
    except (ValueError, IndexError) as damage:
        raise OptionError(f"{path} is damaged ({damage}); option until=end reads without it") from None


class _Selection:
    """Which partitions are read. Without any of the options every topic that is not internal."""

    def __init__(
        self, topics: frozenset[str] | None, pattern: str | None, parts: frozenset[TopicPartition] | None
    ) -> None:
        self._topics, self._pattern, self._parts = topics, pattern, parts

    def includes(self, tp: TopicPartition) -> bool:
        if self._parts is not None:
            return tp in self._parts
        if self._topics is not None:
            return tp.topic in self._topics
        if self._pattern is not None:
            return re.fullmatch(self._pattern, tp.topic) is not None
        return not tp.topic.startswith("__")


def _selection(values: Mapping[str, Any]) -> _Selection:
    assign, subscribe, pattern = (values[name] for name in STRATEGIES)
    if sum(text is not None for text in (assign, subscribe, pattern)) > 1:
        raise OptionError("at most one of the options assign, subscribe, subscribePattern is allowed")
    for name in STRATEGIES:
        if values[name] is not None:
            check_choice(name, values[name])
    return _Selection(
        None if subscribe is None else frozenset(part.strip() for part in subscribe.split(",") if part.strip()),
        pattern,
        None if assign is None else frozenset(parse_assign(assign)),
    )
