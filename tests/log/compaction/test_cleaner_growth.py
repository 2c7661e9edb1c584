"""What the cleaner writes would be larger than what it read, if it packed a producer's zstd of level 19 at the codec's
own level: segments and their indexes stay within the topic's bounds all the same.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.log import Log, Origin
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from tests.log.compaction.compacted import clean, cleaner_of, last_values, users_log
from tests.support.logs import NOW, append

SEGMENT_BYTES = 40_000
DAY_MS = 86_400_000
DELETE_HORIZON = 0x40
LONGER_BYTES = 5
"""By so much a record's timestamp may grow for a day; segments that are full grow by that, as Kafka's do."""
INDEX_BYTES = 12 * 40
"""Room for so many entries of the time index that one larger segment would pass it."""


def put(log: Log, rng: random.Random, phrases: list[bytes], number: int) -> None:
    """A batch that level 19 packs a good deal better than the own level of zstd; its first key comes again."""
    keys = [b"again", *(b"%d-%d" % (number, at) for at in range(30))]
    rows = [Record(-1, NOW + number, key, rng.choice(phrases)[rng.randrange(300) :][:400], ()) for key in keys]

    def hard(payload: bytes) -> bytes:
        packed = compression.compress(compression.ZSTD, payload, 19)
        assert len(packed) < 0.95 * len(compression.compress(compression.ZSTD, payload)), "else it proves nothing"
        return packed

    data = encode_batch(rows, attributes=compression.ZSTD, compress=hard)
    info = append(log, data, origin=Origin.COORDINATOR, now_ms=NOW + number)
    assert info.error is ErrorCode.NONE


@pytest.mark.parametrize("seed", range(3))
def test_a_larger_output_stays_within_the_bounds_of_its_segments(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = users_log(tmp_path, segment_bytes=SEGMENT_BYTES, segment_index_bytes=INDEX_BYTES, index_interval_bytes=1)
    phrases = [bytes(rng.choices(b"abcdefgh ", k=900)) for _ in range(6)]
    for number in range(90):
        put(log, rng, phrases, number)
    wanted, before = last_values(log), {segment.base_offset: segment.size for segment in log.segments}
    assert len(before) > 4
    cleaner = cleaner_of(log.disk, log)
    clean(cleaner)
    closed = [segment for segment in log.segments if segment is not log.segments.active]
    assert len(closed) > 3
    for segment in closed:
        assert segment.size < before[segment.base_offset] <= SEGMENT_BYTES
        assert segment.offset_index.size_bytes <= INDEX_BYTES
        assert segment.time_index.size_bytes <= INDEX_BYTES
    assert last_values(log) == wanted


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
@pytest.mark.parametrize("index_bytes", [INDEX_BYTES, 1 << 20])
def test_delete_horizons_keep_segments_within_their_bounds(tmp_path: Path, codec: int, index_bytes: int) -> None:
    """A horizon takes the place of a batch's first timestamp, so that all its records' timestamps are longer."""
    log = users_log(
        tmp_path, segment_bytes=SEGMENT_BYTES, segment_index_bytes=index_bytes, index_interval_bytes=1,
        delete_retention_ms=DAY_MS,
    )  # fmt: skip
    for number in range(400):
        rows = [Record(-1, NOW + at, b"%d-%d" % (number, at), b"v" if at % 2 else None, ()) for at in range(20)]
        compress = (lambda payload: compression.compress(codec, payload, 19)) if codec else None
        data = encode_batch(rows, attributes=codec, compress=compress)
        assert append(log, data, origin=Origin.COORDINATOR).error is ErrorCode.NONE
    log.appender.roll(NOW)
    wanted, end = last_values(log), log.log_end_offset
    assert len(log.segments) > 2
    cleaner = cleaner_of(log.disk, log)
    for now_ms, left in ((NOW, 20), (NOW + 2 * DAY_MS, 10)):
        clean(cleaner, now_ms)
        closed = [segment for segment in log.segments if segment is not log.segments.active]
        headers = [header for segment in closed for _, header in segment.headers() if header.base_offset < end]
        assert all(header.attributes & DELETE_HORIZON for header in headers)
        assert {header.record_count for header in headers} == {left}
        for segment in closed:
            batches = sum(1 for _ in segment.headers())
            assert segment.size <= SEGMENT_BYTES + (batches * 20 * LONGER_BYTES if left == 20 else 0)
            assert segment.offset_index.size_bytes <= index_bytes
            assert segment.time_index.size_bytes <= index_bytes
        append(log, encode_batch([Record(-1, NOW, b"again", b"v", ())]), origin=Origin.COORDINATOR)
        log.appender.roll(now_ms)
    assert {key: value for key, value in last_values(log).items() if key != b"again"} == wanted
