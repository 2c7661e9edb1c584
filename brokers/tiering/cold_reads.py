"""Reads of what is in the bucket only: chunks as files of a cache, which are read as the log's own segments are.

What is not there yet is loaded once, however many ask for it, and whoever asked is told; nobody waits for the bucket on
the loop. A chunk whose checksum does not hold is never served. What failed is asked for again after a moment.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fleetlog._native.batch import crc32c, find_timestamp
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.log import DiskError, DiskPort, Log, ReadResult
from fleetlog.brokers.log.segment import LOG_SUFFIX, Segment, file_stem
from fleetlog.brokers.log.validation import records_of
from fleetlog.brokers.model import Clock
from fleetlog.brokers.tiering.bucket import ObjectBucket, Pace
from fleetlog.brokers.tiering.leader import BucketError, NoSuchObject
from fleetlog.brokers.tiering.manifest import (
    BadObject,
    Chunk,
    Manifest,
    SegmentIndex,
    TieredAborted,
    TieredSegment,
    decode_index,
)
from fleetlog.wire.compression import CodecError

logger = logging.getLogger(__name__)

AGAIN_MS = 1_000
"""How long a failure is told before the bucket is asked again."""
MOST_INDEXES = 256
"""In memory; each has 32 bytes for a chunk."""
T = TypeVar("T")
Key = tuple[uuid.UUID, int]
Work = Callable[[], Coroutine[Any, Any, None]]
FOREVER = 2**63 - 1
INDEX = -1
"""In place of a chunk's number."""


class TierUnavailable(Exception):
    """What is asked for cannot be read now; the message says why."""


class Cold(NamedTuple):
    """What a partition has in the bucket, and whom to tell when some of it has come."""

    prefix: str
    manifest: Manifest
    on_ready: Callable[[], None]


class AskedRange(NamedTuple):
    """Offsets from ``start`` up to ``end`` (not included), of which one answer has no more than the other two say."""

    start: int
    end: int
    most_bytes: int
    most_segments: int


class NamedChunks(NamedTuple):
    """Chunks of a segment, which have its records of a range up to ``end``."""

    segment: TieredSegment
    chunks: tuple[Chunk, ...]
    end: int


class Named(NamedTuple):
    """Where a range is in the bucket, as far as one answer goes, and the aborted transactions in it."""

    segments: tuple[NamedChunks, ...]
    aborted: list[tuple[int, int]]


class ColdReads:
    """The cache of one broker. On the loop; the bucket's threads check chunks and write their files."""

    def __init__(self, bucket: ObjectBucket, disk: DiskPort, directory: str, most_bytes: int, clock: Clock) -> None:
        self.pace = Pace(FOREVER)
        self.hits = self.misses = self.bytes = 0
        self._bucket = bucket
        self._disk = disk
        self._directory = directory
        self._most_bytes = most_bytes
        self._clock = clock
        self._indexes: OrderedDict[uuid.UUID, SegmentIndex] = OrderedDict()
        self._chunks: OrderedDict[Key, Segment] = OrderedDict()
        self._loading: dict[Key, list[Callable[[], None]]] = {}
        self._failed: dict[Key, tuple[int, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Begin with an empty directory: what a former process has cached is not known. Raises DiskError."""
        if self._disk.is_directory(self._directory):
            self._disk.remove_tree(self._directory)
        self._disk.make_directory(self._directory)

    # ---- reading

    def read(self, cold: Cold, offset: int, room: int, one: bool) -> ReadResult | None:
        """As ``LogReader.read``, of one chunk; None while what is needed is on its way. Raises TierUnavailable."""
        segments = cold.manifest.segments
        for number in range(cold.manifest.at(offset), len(segments)):
            segment = segments[number]
            index = self._index(cold, segment)
            if index is None:
                return None
            for at in range(index.at(offset), len(index.chunks)):
                chunk = self._chunk(cold, segment, index, at)
                if chunk is None:
                    return None
                beyond = index.chunks[at + 1].base_offset if at + 1 < len(index.chunks) else segment.end
                try:
                    taken = chunk.take(max(offset, segment.start), min(beyond, segment.end), beyond, room, False, one)
                except (CorruptBatch, DiskError) as wrong:
                    self._drop((segment.id, at))
                    raise TierUnavailable(f"{chunk.log.path}: {wrong}") from wrong
                piece, behind, ended = taken
                if piece is not None:
                    if at + 1 < len(index.chunks):
                        self._chunk(cold._replace(on_ready=_nobody), segment, index, at + 1)
                    elif number + 1 < len(segments):
                        self._index(cold._replace(on_ready=_nobody), segments[number + 1])
                    return ReadResult((piece,), piece.length, offset, behind)
                if ended:
                    return ReadResult((), 0, offset, offset)
        return ReadResult((), 0, offset, offset)

    def aborted(self, cold: Cold, log: Log, start: int, end: int) -> list[tuple[int, int]] | None:
        """Producers and first offsets of aborted transactions in [start, end); None while indexes are on their way.

        A transaction's marker may be in a later segment, or in the log. Each comes once, from where its marker is:
        librdkafka takes one that comes twice for two, and drops what the producer commits next. Raises TierUnavailable,
        LogOffline.
        """
        aborted: list[tuple[int, int]] = []
        segments = cold.manifest.segments
        for segment in segments[cold.manifest.at(start) :]:
            if not segment.aborted:
                continue
            index = self._index(cold, segment)
            if index is None:
                return None
            for entry in index.aborted:
                if not segment.start <= entry.last_offset < segment.end:  # of a segment of which a part counts
                    continue
                if entry.last_offset >= start and entry.first_offset < end:
                    aborted.append((entry.producer_id, entry.first_offset))
                if entry.last_stable_offset >= end:
                    return aborted
        here = log.reader.aborted_transactions(max(start, cold.manifest.end), end)
        return aborted + [(transaction.producer_id, transaction.first_offset) for transaction in here]

    async def named(self, cold: Cold, log: Log, wanted: AskedRange) -> Named:
        """Where the chunks with a range lie; one of them, however little room there is. Raises TierUnavailable,
        LogOffline."""
        come = asyncio.Event()
        cold = cold._replace(on_ready=come.set)
        rows: list[NamedChunks] = []
        room, (start, end, _, most_segments) = wanted.most_bytes, wanted
        for segment in cold.manifest.segments[cold.manifest.at(start) :]:
            if max(start, segment.start) >= end or len(rows) == most_segments:
                break
            index = await self._awaited(partial(self._index, cold, segment), come)
            at = number = index.at(max(start, segment.start))
            while number < len(index.chunks) and index.chunks[number].base_offset < min(end, segment.end):
                if index.chunks[number].size > room and (rows or number > at):
                    break
                room -= index.chunks[number].size
                number += 1
            if number == at:
                break
            reached = index.chunks[number].base_offset if number < len(index.chunks) else segment.end
            rows.append(NamedChunks(segment, index.chunks[at:number], min(reached, segment.end)))
            if reached < segment.end:
                break
        if not rows:
            return Named((), [])
        aborted = await self._awaited(partial(self.aborted, cold, log, start, rows[-1].end), come)
        return Named(tuple(rows), aborted)

    @staticmethod
    async def _awaited(look: Callable[[], T | None], come: asyncio.Event) -> T:
        """What is there now, or when it has come. Raises what the look does."""
        while (value := look()) is None:
            await come.wait()
            come.clear()
        return value

    async def at_time(self, cold: Cold, timestamp: int, start: int, inflate_limit: int) -> tuple[int, int, int] | None:
        """Offset, timestamp and leader epoch of the first record with at least that time, from ``start`` on; None
        if there is none. Raises TierUnavailable."""
        come = asyncio.Event()
        cold = cold._replace(on_ready=come.set)
        for segment in cold.manifest.segments[cold.manifest.at(start) :]:
            if segment.max_timestamp < timestamp:
                continue
            index = await self._awaited(partial(self._index, cold, segment), come)
            for number, chunk in enumerate(index.chunks):
                if chunk.max_timestamp < timestamp:
                    continue
                source = await self._awaited(partial(self._chunk, cold, segment, index, number), come)
                try:
                    match = _search(source, timestamp, max(start, segment.start), inflate_limit)
                except (CorruptBatch, CodecError, DiskError) as wrong:
                    raise TierUnavailable(f"{source.log.path}: {wrong}") from wrong
                if match is not None:
                    return match if match[0] < segment.end else None
                await asyncio.sleep(0)
        return None

    # ---- loading

    def _index(self, cold: Cold, segment: TieredSegment) -> SegmentIndex | None:
        index = self._indexes.get(segment.id)
        if index is None:
            self._load((segment.id, INDEX), cold.on_ready, partial(self._load_index, cold.prefix, segment))
            return None
        self._indexes.move_to_end(segment.id)
        return index

    def _chunk(self, cold: Cold, segment: TieredSegment, index: SegmentIndex, number: int) -> Segment | None:
        key = segment.id, number
        chunk = self._chunks.get(key)
        if chunk is None:
            self._load(key, cold.on_ready, partial(self._load_chunk, cold.prefix, segment, index, number))
            return None
        self._chunks.move_to_end(key)
        self.hits += 1
        return chunk

    def _load(self, key: Key, on_ready: Callable[[], None], work: Work) -> None:
        """Once for all who ask. Raises TierUnavailable for what has just failed."""
        until_ms, why = self._failed.get(key, (0, ""))
        if self._clock.mono_ms() < until_ms:
            if on_ready is not _nobody:
                raise TierUnavailable(why)
            return
        waiting = self._loading.get(key)
        if waiting is not None:
            if on_ready not in waiting:
                waiting.append(on_ready)
            return
        self.misses += 1
        self._loading[key] = [on_ready]
        task = asyncio.get_running_loop().create_task(self._loaded(key, work), name="bucket read")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _loaded(self, key: Key, work: Work) -> None:
        self._failed.pop(key, None)
        try:
            await work()
        except (BucketError, NoSuchObject, BadObject, DiskError, OSError) as wrong:
            logger.error("old records cannot be read: %s", wrong)
            if len(self._failed) > MOST_INDEXES:
                self._failed.clear()
            self._failed[key] = self._clock.mono_ms() + AGAIN_MS, str(wrong)
        finally:
            for on_ready in self._loading.pop(key):
                on_ready()

    async def _load_index(self, prefix: str, segment: TieredSegment) -> None:
        name = prefix + segment.index_name
        data = await self._bucket.get(name)
        if crc32c(data) != segment.index_crc:
            raise BadObject(f"{name}: damaged, it is not what the manifest names")
        self._indexes[segment.id] = decode_index(data, name)
        if len(self._indexes) > MOST_INDEXES:
            self._indexes.popitem(last=False)

    async def _load_chunk(self, prefix: str, segment: TieredSegment, index: SegmentIndex, number: int) -> None:
        chunk, name = index.chunks[number], prefix + segment.log_name
        directory = f"{self._directory}/{segment.id.hex}.{number}"
        path = f"{directory}/{file_stem(chunk.base_offset)}{LOG_SUFFIX}"

        def keep(data: memoryview) -> None:
            if len(data) != chunk.size or crc32c(data) != chunk.crc:
                raise BadObject(f"{name}: damaged at {chunk.position}, its checksum does not hold")
            self._disk.make_directory(directory)
            self._disk.replace(path, bytes(data), durable=False)

        wait_s = self.pace.reserve(chunk.size)
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        await self._bucket.read(name, keep, chunk.position, chunk.size)
        key = segment.id, number
        self._chunks[key] = Segment(
            self._disk, directory, chunk.base_offset, create=False, now_ms=self._clock.wall_ms()
        )  # fmt: skip
        self.bytes += chunk.size
        while self.bytes > self._most_bytes and len(self._chunks) > 1:
            self._drop(next(iter(self._chunks)))

    def _drop(self, key: Key) -> None:
        chunk = self._chunks.pop(key, None)
        if chunk is None:
            return
        self.bytes -= chunk.size
        try:
            chunk.remove()
            self._disk.remove_tree(chunk.directory, later=True)
        except DiskError as wrong:
            logger.warning("%s is left behind: %s", chunk.directory, wrong)

    async def close(self) -> None:
        """Load nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _nobody() -> None:
    """Who asks ahead is told nothing."""


def _search(source: Segment, timestamp: int, begin: int, inflate_limit: int) -> tuple[int, int, int] | None:
    for _, data, batches in source.chunks():
        for at, header in batches:
            if header.max_timestamp < timestamp or header.last_offset < begin or not header.record_count:
                continue
            match = find_timestamp(records_of(data, at, header, inflate_limit), header, timestamp, begin)
            if match is not None:
                return *match, header.partition_leader_epoch
    return None


def aborted_of(segment: Segment, start: int) -> list[TieredAborted]:
    """A closed segment's transaction index from an offset on, for the bucket. Raises DiskError."""
    return [
        TieredAborted(e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
        for e in segment.txn_index
        if e.last_offset >= start
    ]
