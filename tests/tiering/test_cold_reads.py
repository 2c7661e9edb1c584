"""The cache of chunks: one load for all who ask, what is damaged or fails, what goes when there is no room."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fleetlog._native.batch import Record, crc32c, encode_batch, scan
from fleetlog.brokers.log import ReadResult, RealDisk
from fleetlog.brokers.tiering import cold_reads
from fleetlog.brokers.tiering.bucket import ObjectBucket, Pace, SegmentParts
from fleetlog.brokers.tiering.cold_reads import AskedRange, Cold, ColdReads, TierUnavailable, aborted_of
from fleetlog.brokers.tiering.manifest import Manifest, TieredAborted, TieredSegment, encode_index
from tests.support.clocks import RealClock
from tests.support.logs import append_txn, end_txn, open_log
from tests.support.waiting import eventually_async

PREFIX = "topics/t.0/0/"
EACH = 100
"""Records of a segment, each in a batch of its own, some 20 of them in a chunk."""


class Cache:
    """A cache over a bucket with segments of 100 records, and how often it told that something has come."""

    def __init__(self, directory: Path, segments: int, most_bytes: int) -> None:
        self.bucket = ObjectBucket(f"file://{directory}/bucket")
        self.files = directory / "bucket" / PREFIX
        self.segments = [asyncio.run(self.upload(directory, number)) for number in range(segments)]
        self.bucket = ObjectBucket(f"file://{directory}/bucket")
        self.cold = ColdReads(self.bucket, RealDisk(), f"{directory}/cache", most_bytes, RealClock())
        self.cold.open()
        self.told = 0

    async def upload(self, directory: Path, number: int) -> TieredSegment:
        path, first = directory / f"{number}.log", number * EACH
        rows = [
            encode_batch([Record(n, 1_000 + n, None, b"v" * 50)], base_offset=n, leader_epoch=number)
            for n in range(first, first + EACH)
        ]
        path.write_bytes(b"".join(map(bytes, rows)))
        size = path.stat().st_size
        parts = SegmentParts(str(path), 0, size, Pace(2**40))
        segment = TieredSegment(uuid.UUID(int=number + 1), first, first + EACH, size, 0, 0, 0, 1_000 + first + EACH - 1)
        await self.bucket.put_parts(PREFIX + segment.log_name, iter(parts), size)
        index = encode_index(parts.chunks, ())
        await self.bucket.put_new(PREFIX + segment.index_name, index)
        return segment._replace(index_size=len(index), index_crc=crc32c(index))

    def tell(self) -> None:
        self.told += 1

    @property
    def whole(self) -> Cold:
        return Cold(PREFIX, Manifest(uuid.UUID(int=0), 0, segments=tuple(self.segments)), self.tell)

    async def read(self, offset: int, room: int = 2**20, cold: Cold | None = None) -> ReadResult:
        found: list[ReadResult] = []

        def look() -> bool:
            result = self.cold.read(cold or self.whole, offset, room, True)
            if result is not None:
                found.append(result)
            return bool(found)

        await eventually_async(look, f"offset {offset}", pause_s=0.001)
        return found[0]


def offsets(result: ReadResult) -> list[int]:
    rows = [header.base_offset for piece in result.slices for _, header in scan(bytes(piece.read()))]
    result.release()
    return rows


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr("fleetlog.brokers.tiering.bucket.CHUNK_BYTES", 2_500)
    monkeypatch.setattr(cold_reads, "AGAIN_MS", 50)

    def run(work: Callable[[Cache], Coroutine[Any, Any, None]], segments: int = 2, most_bytes: int = 1_000_000) -> None:
        cache = Cache(tmp_path, segments, most_bytes)

        async def whole() -> None:
            await work(cache)
            await cache.cold.close()
            cache.bucket.close()

        asyncio.run(whole())

    return run


def test_every_record_is_read_once_and_in_order(cached: Callable[..., None]) -> None:
    async def work(cache: Cache) -> None:
        seen, offset = [], 0
        while offset < 2 * EACH:
            result = await cache.read(offset)
            assert result.first_offset == offset
            offset = result.next_offset
            seen += offsets(result)
        assert seen == list(range(2 * EACH))
        small = await cache.read(37, room=1)
        assert offsets(small) == [37], "one batch, however little room there is"

    cached(work)


def test_a_chunk_is_loaded_once_for_all_who_ask(cached: Callable[..., None]) -> None:
    async def work(cache: Cache) -> None:
        for _ in range(5):
            assert cache.cold.read(cache.whole, 50, 1_000, True) is None
        await cache.read(50)
        await eventually_async(lambda: cache.bucket.requests["get"] >= 3, "the chunk behind it is loaded ahead")
        assert cache.bucket.requests["get"] == 3, "an index and two chunks"
        assert cache.told == 2

    cached(work)


def test_a_damaged_chunk_is_an_error_and_the_others_are_read(cached: Callable[..., None]) -> None:
    async def work(cache: Cache) -> None:
        (path, other) = sorted(cache.files.glob("*.log"))
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        with pytest.raises(TierUnavailable, match="damaged at 0, its checksum does not hold"):
            await cache.read(0)
        assert 60 in offsets(await cache.read(60))
        data[100] ^= 1
        path.write_bytes(data)
        await asyncio.sleep(0.06)
        assert offsets(await cache.read(0))[0] == 0
        other.unlink()
        with pytest.raises(TierUnavailable, match="not found"):
            await cache.read(EACH)

    cached(work)


def test_the_cache_is_bounded_and_slices_outlive_their_chunk(cached: Callable[..., None], tmp_path: Path) -> None:
    async def work(cache: Cache) -> None:
        held = await cache.read(0)
        for offset in range(0, 3 * EACH, 10):
            (await cache.read(offset)).release()
        assert cache.cold.bytes <= 6_000
        assert offsets(held)[0] == 0
        await eventually_async(lambda: len(list((tmp_path / "cache").iterdir())) <= 3, "files go")

    cached(work, segments=3, most_bytes=6_000)


def test_a_segment_that_counts_in_part_ends_there(cached: Callable[..., None]) -> None:
    async def work(cache: Cache) -> None:
        shorter = cache.segments[0]._replace(end=33)
        cold = Cold(PREFIX, Manifest(uuid.UUID(int=0), 0, segments=(shorter,)), cache.tell)
        seen, offset = [], 0
        while offset < 33:
            result = await cache.read(offset, cold=cold)
            offset = result.next_offset
            seen += offsets(result)
        assert seen == list(range(33))
        assert await cache.cold.at_time(cold, 1_032, 0, 2**20) == (32, 1_032, 0)
        assert await cache.cold.at_time(cold, 1_033, 0, 2**20) is None

    cached(work)


class NoLog:
    """A log without transactions."""

    reader: Any = property(lambda self: self)

    def aborted_transactions(self, start: int, end: int) -> list[Any]:
        return []


def test_chunks_are_named_as_far_as_there_is_room(cached: Callable[..., None]) -> None:
    async def work(cache: Cache) -> None:
        log: Any = NoLog()

        async def named(*wanted: int, cold: Cold = cache.whole) -> list[tuple[int, int, int]]:
            """First offset, end and number of the chunks of each segment."""
            rows = (await cache.cold.named(cold, log, AskedRange(*wanted))).segments
            for row in rows:
                followers = [chunk.base_offset for chunk in row.chunks[1:]]
                assert [chunk.base_offset for chunk in row.chunks] == sorted({row.chunks[0].base_offset, *followers})
            return [(row.chunks[0].base_offset, row.end, len(row.chunks)) for row in rows]

        ((first, behind, count),) = await named(0, 2 * EACH, 0, 9)
        assert (first, count) == (0, 1), "one, however little room there is"
        assert 10 < behind < 40
        assert await named(behind - 1, behind, 2**20, 9) == [(0, behind, 1)]
        assert await named(behind, behind + 1, 2**20, 9) == [(behind, 2 * behind, 1)]
        whole = await named(0, 2 * EACH, 2**20, 9)
        assert [row[:2] for row in whole] == [(0, EACH), (EACH, 2 * EACH)]
        assert await named(0, 2 * EACH, 2**20, 1) == whole[:1]
        assert await named(0, EACH + 1, 2**20, 9) == [whole[0], (EACH, EACH + behind, 1)]
        size = sum(
            chunk.size
            for row in (await cache.cold.named(cache.whole, log, AskedRange(0, 9**9, 2**20, 9))).segments
            for chunk in row.chunks
        )
        assert await named(0, 2 * EACH, size, 9) == whole
        assert sum(row[2] for row in await named(0, 2 * EACH, size - 1, 9)) == sum(row[2] for row in whole) - 1
        assert await named(2 * EACH, 3 * EACH, 2**20, 9) == await named(50, 10, 2**20, 9) == []
        shorter = Manifest(uuid.UUID(int=0), 0, segments=(cache.segments[0]._replace(end=33),))
        assert [row[:2] for row in await named(0, 100, 2**20, 9, cold=cache.whole._replace(manifest=shorter))] == [
            (0, 33)
        ]

    cached(work)


def test_times(cached: Callable[..., None]) -> None:
    async def work(cache: Cache) -> None:
        for offset in (0, 42, 99, 100, 199):
            assert await cache.cold.at_time(cache.whole, 1_000 + offset, 0, 2**20) == (
                offset,
                1_000 + offset,
                offset // EACH,
            )
        assert await cache.cold.at_time(cache.whole, 1_000, 120, 2**20) == (120, 1_120, 1)
        assert await cache.cold.at_time(cache.whole, 5_000, 0, 2**20) is None

    cached(work)


def test_an_aborted_transaction_is_told_once_whatever_indexes_have_it(tmp_path: Path) -> None:
    """A replica with other segments copied a part of one; the log has all of it; another lineage was cut off."""
    log = open_log(tmp_path / "t-0")
    for sequence, committed in ((0, False), (2, True), (4, False)):
        append_txn(log, 1, 0, sequence, 2)
        end_txn(log, 1, 0, commit=committed)
    whole = aborted_of(log.segments.active, 0)
    assert [entry[:3] for entry in whole] == [(1, 0, 2), (1, 6, 8)]
    assert [entry[:3] for entry in aborted_of(log.segments.active, 3)] == [(1, 6, 8)]
    cut_off = TieredAborted(1, 3, 6, 7)

    async def work() -> None:
        bucket = ObjectBucket(f"file://{tmp_path}/bucket")
        segments = []
        for start, end in ((0, 3), (3, 6)):
            path = tmp_path / "chunk.log"
            path.write_bytes(bytes(encode_batch([Record(start, 0, None, b"v")], base_offset=start)))
            parts = SegmentParts(str(path), 0, path.stat().st_size, Pace(2**40))
            segment = TieredSegment(uuid.UUID(int=start + 1), start, end, path.stat().st_size, 0, 0, 2, 0)
            await bucket.put_parts(PREFIX + segment.log_name, iter(parts), segment.size)
            index = encode_index(parts.chunks, (whole[0], cut_off))
            await bucket.put_new(PREFIX + segment.index_name, index)
            segments.append(segment._replace(index_size=len(index), index_crc=crc32c(index)))
        reads = ColdReads(bucket, RealDisk(), f"{tmp_path}/cache", 10**6, RealClock())
        reads.open()
        cold = Cold(PREFIX, Manifest(uuid.UUID(int=0), 0, segments=tuple(segments)), lambda: None)
        for start, end, told in ((0, 9, [(1, 0), (1, 6)]), (0, 6, [(1, 0)]), (3, 6, []), (4, 9, [(1, 6)])):
            rows = await eventually_async(
                lambda start=start, end=end: (answer := reads.aborted(cold, log, start, end)) is not None and [answer],
                "indexes come", pause_s=0.001,
            )  # fmt: skip
            assert rows == [told], (start, end)
        await reads.close()
        bucket.close()

    asyncio.run(work())
