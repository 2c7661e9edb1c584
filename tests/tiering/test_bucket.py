"""A bucket in a folder; and segments in chunks."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from fleetlog._native.batch import Record, encode_batch, scan
from fleetlog.brokers.tiering.bucket import BadUrl, BucketThreads, ObjectBucket, Pace, SegmentParts, open_store
from fleetlog.brokers.tiering.leader import BucketError, NameTaken, NoSuchObject
from tests.support.s3_server import S3Server


def test_objects(tmp_path: Path) -> None:
    async def steps() -> None:
        bucket = ObjectBucket(f"file://{tmp_path}/bucket")
        await bucket.put_new("a/m/1", b"first")
        with pytest.raises(NameTaken):
            await bucket.put_new("a/m/1", b"second")
        await bucket.put_parts("a/x", iter([b"0123", b"4567"]), 8)
        assert await bucket.get("a/m/1") == b"first"
        assert await bucket.get("a/x", 2, 3) == b"234"
        with pytest.raises(NoSuchObject):
            await bucket.get("a/y")
        assert sorted(entry[:2] for entry in await bucket.objects("a/")) == [("a/m/1", 5), ("a/x", 8)]
        assert [entry.name for entry in await bucket.objects("a/m/")] == ["a/m/1"]
        assert await bucket.objects("b/") == []
        await bucket.delete(["a/y", "a/x"])
        assert [entry.name for entry in await bucket.objects("a/")] == ["a/m/1"]
        assert (bucket.requests["put"], bucket.failures) == (3, 0)
        with pytest.raises(BucketError, match="file://"):
            await bucket.get("a/m/1", 10, 5)
        assert bucket.failures == 1
        assert not bucket.signs
        with pytest.raises(BucketError, match="files have no URLs"):
            await bucket.sign(["a/m/1"], 1_000)
        bucket.close()

    asyncio.run(steps())


def test_who_has_a_url_reads_that_object_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = S3Server()
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)

    def status(url: str) -> int:
        try:
            with urlopen(url, timeout=30) as answer:
                assert answer.read() == b"old records"
                return int(answer.status)
        except HTTPError as refused:
            with refused:
                return refused.code

    async def steps() -> None:
        bucket = ObjectBucket("s3://bucket/folder")
        for name in ("t.1/0/a b.log", "t.2/0/x.log"):
            await bucket.put_new(name, b"old records")
        assert bucket.signs
        assert await bucket.sign([], 1_000) == []
        mine, other = await bucket.sign(["t.1/0/a b.log", "t.2/0/x.log"], 60_000)
        assert status(mine) == status(other) == 200
        assert status(mine.replace("Expires=60", "Expires=600")) == 403
        assert status(mine.replace(mine.partition("?")[0], other.partition("?")[0])) == 403
        assert status(mine.partition("?")[0]) == 403
        s3.late_s = 61
        assert status(mine) == 403
        bucket.close()

    asyncio.run(steps())
    s3.close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://host/x", "begins with file://, s3://"),
        ("bucket", "begins with"),
        ("s3://key:secret@bucket", "no credentials"),
        ("s3://bucket?secret=x", "no credentials"),
        ("file://relative", "from its root, with three slashes"),
    ],
)
def test_urls_that_are_none(url: str, why: str) -> None:
    with pytest.raises(BadUrl, match=why) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_a_call_that_hangs_ends_at_its_deadline_and_leaves_room_for_another() -> None:
    async def steps() -> None:
        threads, hangs = BucketThreads("test", 2), threading.Event()
        with pytest.raises(BucketError, match="no answer from the bucket within 0 s"):
            await threads.call(hangs.wait, 0.05)
        assert await threads.call(lambda: "another", 5) == "another"
        hangs.set()
        threads.close()

    asyncio.run(steps())


def batches(count: int, value: bytes = b"v" * 100) -> list[bytes]:
    return [
        bytes(encode_batch([Record(n, 1000 + n, b"k", value)], base_offset=n, leader_epoch=3)) for n in range(count)
    ]


def parts_of(path: Path, position: int = 0) -> SegmentParts:
    return SegmentParts(str(path), position, path.stat().st_size - position, Pace(2**40))


def test_chunks_are_whole_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.brokers.tiering.bucket.CHUNK_BYTES", 1000)
    monkeypatch.setattr("fleetlog.brokers.tiering.bucket.WINDOW_BYTES", 400)
    rows = batches(20)
    rows[7] = bytes(encode_batch([Record(7, 5000, b"k", b"x" * 3000)], base_offset=7, leader_epoch=3))
    path = tmp_path / "0.log"
    path.write_bytes(b"".join(rows))
    parts = parts_of(path)
    pieces = list(parts)
    assert b"".join(pieces) == path.read_bytes()
    assert [chunk.size for chunk in parts.chunks] == [len(piece) for piece in pieces]
    firsts = [scan(piece)[0][1].base_offset for piece in pieces]
    assert [chunk.base_offset for chunk in parts.chunks] == firsts
    assert sum(len(scan(piece)) for piece in pieces) == 20
    assert max(chunk.max_timestamp for chunk in parts.chunks) == 5000
    later = parts_of(path, len(rows[0]))
    assert b"".join(later) == path.read_bytes()[len(rows[0]) :]
    assert (later.chunks[0].base_offset, later.chunks[0].position) == (1, 0)


def test_a_damaged_batch_is_not_copied(tmp_path: Path) -> None:
    path, rows = tmp_path / "0.log", batches(3)
    path.write_bytes(rows[0] + rows[1][:-1] + bytes([rows[1][-1] ^ 1]) + rows[2])
    with pytest.raises(BucketError, match="not copied, a batch is damaged"):
        list(parts_of(path))
    path.write_bytes(rows[0] + rows[1][:-1])
    with pytest.raises(BucketError, match="a batch is cut off"):
        list(parts_of(path))


def test_pace() -> None:
    pace, began = Pace(10_000), time.monotonic()
    for _ in range(3):
        pace.take(1_000)
    assert time.monotonic() - began >= 0.19
