"""``fleetlog bucket``: what it says of a bucket that is whole, and of each fault."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from obstore.exceptions import PermissionDeniedError

from fleetlog._native.batch import Record, crc32c, encode_batch
from fleetlog.brokers.cli.bucket import flagged, left_over
from fleetlog.brokers.cli.main import cli
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.tiering.bucket import (
    BucketOwner,
    ForeignBucket,
    ObjectBucket,
    Pace,
    SegmentParts,
    own,
    read_owner,
    remedy,
    take,
)
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
    with pytest.raises(ForeignBucket, match=r"id cluster-a, and this one is cluster-b.*fleetlog bucket take"):
        asyncio.run(ask("cluster-b"))


def test_a_bucket_that_is_taken(url: str) -> None:
    def on_bucket(work: Callable[[ObjectBucket], Coroutine[Any, Any, Any]]) -> Any:
        async def whole() -> Any:
            bucket = ObjectBucket(url)
            try:
                return await work(bucket)
            finally:
                bucket.close()

        return asyncio.run(whole())

    first = on_bucket(read_owner)
    assert first == BucketOwner(1, "cluster-a", 7)
    second = on_bucket(lambda bucket: take(bucket, first, "cluster-b", 9))
    assert second == on_bucket(read_owner) == BucketOwner(2, "cluster-b", 9, ("cluster-a",))
    with pytest.raises(ForeignBucket, match="was taken from this fleet by the one with cluster id cluster-b"):
        on_bucket(lambda bucket: own(bucket, "cluster-a", 10))
    with pytest.raises(BucketError, match="is not taken: it is of cluster id cluster-b"):
        on_bucket(lambda bucket: take(bucket, first, "cluster-c", 9))
    assert on_bucket(lambda bucket: take(bucket, first, "cluster-b", 11)) == second, "an answer that was lost"
    third = on_bucket(lambda bucket: take(bucket, second, "cluster-a", 12))
    assert third.former == ("cluster-b",)
    on_bucket(lambda bucket: own(bucket, "cluster-a", 13))
    (newest,) = files(url, "fleetlog-owner/*3")
    newest.write_bytes(newest.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(BucketError, match="format 2, of which this version of fleetlog knows 1: upgrade it"):
        on_bucket(lambda bucket: own(bucket, "cluster-a", 14))
    newest.write_bytes(b"[]")
    assert "cannot be read: restore it from a copy" in run("status", url, code=1).stderr


@pytest.mark.parametrize(
    ("values", "state", "waits"),
    [
        (("false", "false", "delete", "-2", "-2"), "remote.storage.enable is false", False),
        (("true", "true", "compact,delete", "-2", "-2"), "compacted: remote.storage.enable has no effect", False),
        (("true", "false", "compact", "-2", "-2"), "compacted", False),
        (("true", "false", "delete", "-2", "-2"), "is tiered", False),
        (("true", "true", "delete", "-2", "-2"), "waits: closed segments would be copied, all of it is kept", True),
        (("true", "true", "delete", "5", "-2"), "waits: closed segments would be copied", True),
    ],
)
def test_topics_with_flags(values: tuple[str, str, str, str, str], state: str, waits: bool) -> None:
    row = flagged("orders", *values)
    assert row.state.startswith(state)
    assert row.waits is waits


@pytest.mark.parametrize(
    ("url", "text", "says"),
    [
        ("s3://b/f", "Generic S3 error: Error performing PUT http://169.254.169.254/latest", "set AWS_ACCESS_KEY_ID"),
        ("gs://b/f", "GET http://169.254.169.254/computeMetadata", "set GOOGLE_SERVICE_ACCOUNT"),
        ("az://b/f", "Generic MicrosoftAzure error: Account must be specified", "set AZURE_STORAGE_ACCOUNT_NAME"),
        ("s3://b/f", "something else", ""),
    ],
)
def test_what_to_do_about_an_error_of_the_library(url: str, text: str, says: str) -> None:
    assert remedy(url, RuntimeError(text)).startswith("there are no credentials: " + says if says else "")
    assert bool(remedy(url, RuntimeError(text))) is bool(says)
    assert "need to put, get, list and delete" in remedy(url, PermissionDeniedError())
    assert "there is no bucket of that name" in remedy(url, FileNotFoundError())
    assert remedy("file:///b", FileNotFoundError()) == ""


def test_a_folder_that_is_not_mounted_is_not_claimed_while_topics_are_tiered(tmp_path: Path) -> None:
    async def ask(*, claim: bool) -> None:
        bucket = ObjectBucket(f"file://{tmp_path}/empty")
        await own(bucket, "cluster-a", 8, claim=claim)
        bucket.close()

    with pytest.raises(BucketError, match=r"is it the right one, and mounted\? .*bucket take file"):
        asyncio.run(ask(claim=False))
    asyncio.run(ask(claim=True))
    asyncio.run(ask(claim=False))


def test_no_bucket(tmp_path: Path) -> None:
    assert "begins with file://" in run("status", "bucket", code=1).stderr
    assert f"there is no folder {tmp_path}/absent" in run("status", f"file://{tmp_path}/absent", code=1).stderr
    assert not (tmp_path / "absent").exists(), "looking makes none"
    assert json.loads(run("status", f"file://{tmp_path}", "--json").stdout) == {"owner": "", "partitions": []}
