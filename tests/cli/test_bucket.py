"""``fleetlog bucket``: what it says of a bucket that is whole, and of each fault."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fleetlog._native.batch import Record, crc32c, encode_batch
from fleetlog.brokers.cli.bucket import left_over
from fleetlog.brokers.cli.main import cli
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.tiering.bucket import ForeignBucket, ObjectBucket, Pace, SegmentParts, own
from fleetlog.brokers.tiering.decisions import Listed
from fleetlog.brokers.tiering.leader import BucketError, prefix_of
from fleetlog.brokers.tiering.manifest import (
    Manifest,
    ManifestEpoch,
    TieredSegment,
    encode_index,
    encode_manifest,
    manifest_name,
)

TOPIC = uuid.UUID(int=5)
PREFIX = prefix_of("orders.new", TOPIC, 3)


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["bucket", *arguments], prog_name="fleetlog", catch_exceptions=False)
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A bucket with one partition of one segment, and an object that nothing names."""
    url = f"file://{tmp_path}/bucket"
    segment_file = tmp_path / "segment.log"
    batches = [encode_batch([Record(n, 1_000 + n, None, b"v" * 50)], base_offset=n, leader_epoch=2) for n in range(9)]
    segment_file.write_bytes(b"".join(map(bytes, batches)))
    size = segment_file.stat().st_size

    async def fill() -> None:
        bucket = ObjectBucket(url)
        await own(bucket, "cluster-a", 7)
        parts = SegmentParts(str(segment_file), 0, size, Pace(2**40))
        segment = TieredSegment(uuid.UUID(int=1), 0, 9, size, 0, 0, 0, 1_008)
        await bucket.put_parts(PREFIX + segment.log_name, iter(parts), size)
        index = encode_index(parts.chunks, ())
        segment = segment._replace(index_size=len(index), index_crc=crc32c(index))
        await bucket.put_new(PREFIX + segment.index_name, index)
        manifest = Manifest(TOPIC, 3, 1, 2, 1, 1, 9, 0, (ManifestEpoch(2, 0),), (segment,))
        await bucket.put_new(PREFIX + manifest_name(1), encode_manifest(manifest))
        await bucket.put_new(PREFIX + f"{0:020d}-{2:032x}.log", b"left over")
        bucket.close()

    asyncio.run(fill())
    return url


def files(url: str, pattern: str) -> list[Path]:
    return sorted(Path(url.removeprefix("file://")).glob(pattern))


def test_a_whole_bucket(url: str) -> None:
    told = json.loads(run("status", url, "--json").stdout)
    assert told["owner"] == "cluster-a"
    (row,) = told["partitions"]
    assert (row["partition"], row["start"], row["end"], row["segments"]) == ("orders.new-3", 0, 9, 1)
    assert (row["unnamed"], row["unnamed_bytes"], row["generation"]) == (1, 9, 1)
    assert "orders.new-3" in run("status", url).stdout
    assert json.loads(run("verify", url, "--records", "--json").stdout)["problems"] == []
    assert "1 segment" in run("verify", url).stdout


@pytest.mark.parametrize(
    ("pattern", "at", "options", "why"),
    [
        (f"{PREFIX}*{1:032x}.log", 30, ["--records"], "damaged at 0, its checksum does not hold"),
        (f"{PREFIX}*.index", 30, [], "it is not what the manifest names"),
        (f"{PREFIX}manifest/*", 30, [], "damaged, its checksum does not hold"),
        (f"{PREFIX}*{1:032x}.log", None, [], "missing"),
        (f"{PREFIX}*.index", None, [], "missing"),
        (f"{PREFIX}manifest/*", None, [], "no manifest, so none of its objects counts"),
    ],
)
def test_each_fault_is_named(url: str, pattern: str, at: int | None, options: list[str], why: str) -> None:
    (file,) = files(url, pattern)
    data = bytearray(file.read_bytes())
    file.unlink()
    if at is not None:
        data[at] ^= 1
        file.write_bytes(data)
    assert why in run("verify", url, *options, code=1).stderr


def test_what_deleted_topics_left() -> None:
    def listed(topic: str, name: str, modified_ms: int) -> Listed:
        return Listed(f"topics/{topic}/0/{name}", 10, modified_ms)

    here, gone, fresh = (f"t{number}.{number:032x}" for number in range(3))
    objects = [
        listed(here, "manifest/1", 5), listed(gone, "manifest/1", 5), listed(gone, "0-a.log", 6),
        listed(fresh, "0-a.log", 5), listed(fresh, "manifest/1", 50),
    ]  # fmt: skip
    (row,) = left_over(objects, {f"{0:032x}"}, 10)
    assert (row["topic"], row["objects"], row["bytes"]) == ("t1", 2, 20)
    assert row["names"] == [f"topics/{gone}/0/0-a.log", f"topics/{gone}/0/manifest/1"]
    with pytest.raises(CliError, match="knows none of the bucket's topics"):
        left_over(objects, {"another"}, 10)
    assert len(left_over(objects, {"another"}, 10, all_gone=True)) == 2
    assert left_over([], set(), 10) == []


def test_a_bucket_is_one_fleets(url: str) -> None:
    async def ask(cluster_id: str) -> None:
        bucket = ObjectBucket(url)
        await own(bucket, cluster_id, 8)
        bucket.close()

    asyncio.run(ask("cluster-a"))
    with pytest.raises(ForeignBucket, match="fleet with cluster id cluster-a, and this one is cluster-b"):
        asyncio.run(ask("cluster-b"))


def test_a_folder_that_is_not_mounted_is_not_claimed_while_topics_are_tiered(tmp_path: Path) -> None:
    async def ask(*, claim: bool) -> None:
        bucket = ObjectBucket(f"file://{tmp_path}/empty")
        await own(bucket, "cluster-a", 8, claim=claim)
        bucket.close()

    with pytest.raises(BucketError, match=r"is it the right one, and mounted\? .* to fleetlog-owner/0*1 in it"):
        asyncio.run(ask(claim=False))
    asyncio.run(ask(claim=True))
    asyncio.run(ask(claim=False))


def test_no_bucket(tmp_path: Path) -> None:
    assert "begins with file://" in run("status", "bucket", code=1).stderr
    assert f"there is no folder {tmp_path}/absent" in run("status", f"file://{tmp_path}/absent", code=1).stderr
    assert not (tmp_path / "absent").exists(), "looking makes none"
    assert json.loads(run("status", f"file://{tmp_path}", "--json").stdout) == {"owner": "", "partitions": []}
