"""Old records by URLs of the bucket's: the same rows as from the brokers, whatever the bucket does; by real brokers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from confluent_kafka import Producer

import fleetlog.wire.messages as m
from fleetlog.spark.client.connections import shared_client
from fleetlog.spark.client.failures import DataLoss
from fleetlog.spark.source import bucket_reads
from fleetlog.spark.source.offsets import Range
from fleetlog.spark.source.options import ReadOptions
from fleetlog.spark.source.readers import read_range
from fleetlog.wire.api_keys import SIGN_SEGMENTS
from fleetlog.wire.errors import ErrorCode
from tests.cli.shell import Shell
from tests.support.copies import Cluster
from tests.support.fleet import Fleet
from tests.support.s3_server import S3Server
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

TIERED = {
    "remote.storage.enable": "true", "segment.bytes": 1_000_000, "local.retention.bytes": 1_000_000,
    "retention.bytes": -1, "retention.ms": -1,
}  # fmt: skip
EACH, SIZE = 400, 2_000
"""Records of a transaction, and their bytes."""
TRANSACTIONS = 12
TOPIC = "old"


class Tiered:
    """A broker whose bucket is a small S3, with a topic of transactions, every third of which was aborted."""

    def __init__(self, directory: Path, s3: S3Server) -> None:
        self.s3 = s3
        self.fleet = Fleet(
            directory, 1, **{
                "remote.log.storage.system.enable": "true", "remote.log.manager.task.interval.ms": 300,
                "log.retention.check.interval.ms": 300, "log.segment.delete.delay.ms": 0,
                "fleetlog.bucket.url": "s3://bucket/folder", "fleetlog.bucket.url.lifetime.ms": 60_000,
            }
        )  # fmt: skip
        self.cluster = Cluster(self.fleet.start())
        self.broker = self.fleet.brokers[0]
        self.shell = Shell(self.fleet)
        self.shell.run("features", "upgrade", "fleetlog.tiering.version=2")
        self.cluster.create(TOPIC, replicas=1, **TIERED)
        self.end = self._fill()
        eventually(lambda: self.segments()[0] > 3_000, "old segments are in the bucket only")
        (partition,) = self.shell.json("topics", "describe", TOPIC)[0]["partitions"]
        assert partition["tiered_bytes"] > 6_000_000

    def segments(self) -> list[int]:
        return [int(path.stem) for path in self.cluster.segments(self.broker, TOPIC)]

    def _fill(self) -> int:
        """One producer, whose aborted transactions stand between its others."""
        producer = Producer(
            {"bootstrap.servers": self.fleet.bootstrap, "transactional.id": "t", "linger.ms": 5, "batch.size": 16_000}
        )
        producer.init_transactions(30)
        last: list[int] = []
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            for each in range(EACH):
                kind = "no" if number % 3 == 1 else "yes"
                value = f"{kind} {number} {each}".encode().ljust(SIZE)
                producer.produce(
                    TOPIC, value, str(each), headers=[("n", str(number).encode())],
                    on_delivery=lambda _, message: last.append(message.offset()),
                )  # fmt: skip
                producer.poll(0)
            if number % 3 == 1:
                producer.flush(30)
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
        return max(last) + 1

    def options(self, **more: str) -> ReadOptions:
        given = {"kafka.bootstrap.servers": self.fleet.bootstrap, "subscribe": TOPIC, "includeHeaders": "true", **more}
        return ReadOptions.parse(given, streaming=False)

    def rows(self, start: int = 0, end: int | None = None, **more: str) -> list[dict[str, Any]]:
        item = Range(TOPIC, 0, start, self.end if end is None else end)
        return [row for batch in read_range(item, self.options(**more)) for row in batch.to_pylist()]

    def from_brokers(self) -> float:
        """Bytes that the broker read from the bucket for consumers."""
        return self.broker.figure('fleetlog_tier_copied{what="read"}')

    def ask(self, **other: Any) -> Any:
        asked = {
            "topic": TOPIC,
            "partition_index": 0,
            "start_offset": 0,
            "end_offset": self.end,
            "max_bytes": 2**31 - 1,
        }
        return shared_client(self.options().settings).request(m.SignSegmentsRequest(**{**asked, **other}))


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    s3 = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        made = Tiered(tmp_path_factory.mktemp("tiered"), s3)
    yield made
    made.fleet.close()
    s3.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bytes at once, so that each read asks often."""
    monkeypatch.setattr(bucket_reads, "SIGNED_BYTES", 2_500_000)
    monkeypatch.setattr(bucket_reads, "PIECE_BYTES", 1_000_000)
    monkeypatch.setattr(bucket_reads, "AGAIN_S", 0.0)


BUCKET = {"tieredRead": "bucket"}


def test_the_same_rows_as_from_the_brokers(tiered: Tiered, small: None) -> None:
    wanted = tiered.rows()
    assert {row["value"].split()[0] for row in wanted} == {b"yes"}
    assert len(wanted) == EACH * TRANSACTIONS * 2 // 3
    read, served = tiered.from_brokers(), tiered.s3.signed[206]
    assert tiered.rows(**BUCKET) == wanted
    assert tiered.from_brokers() == read, "nothing that the bucket has came from the broker"
    assert tiered.s3.signed[206] > served + 5
    uncommitted = {"kafka.isolation.level": "read_uncommitted"}
    assert tiered.rows(**BUCKET, **uncommitted) == tiered.rows(**uncommitted)
    assert tiered.broker.figure('fleetlog_tier_copied{what="signed"}') > 6_000_000
    for start, end in ((0, 1), (399, 403), (777, 2_345), (2_345, 2_345), (tiered.end - 3, tiered.end)):
        assert tiered.rows(start, end, **BUCKET) == [row for row in wanted if start <= row["offset"] < end]


def test_a_url_that_is_refused_is_asked_for_anew(tiered: Tiered, small: None) -> None:
    wanted, refused, read = tiered.rows(), tiered.s3.signed[403], tiered.from_brokers()
    tiered.s3.refuse = 2
    assert tiered.rows(**BUCKET) == wanted
    assert tiered.s3.signed[403] == refused + 2
    assert tiered.from_brokers() == read


@pytest.mark.parametrize("fault", ["refused", "late", "damaged", "gone"])
def test_what_the_bucket_does_not_give_comes_from_the_brokers(
    tiered: Tiered, small: None, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Which have it in their cache by now."""
    wanted, objects = tiered.rows(), dict(tiered.s3.objects)
    names = sorted(name for name in objects if name.endswith(".log"))
    try:
        if fault == "refused":
            tiered.s3.refuse = 10_000
        elif fault == "late":
            tiered.s3.late_s = 3_600.0
        elif fault == "damaged":
            tiered.s3.objects[names[2]] = bytes(len(objects[names[2]]))
        else:
            del tiered.s3.objects[names[2]]
        assert tiered.rows(**BUCKET) == wanted
    finally:
        tiered.s3.refuse, tiered.s3.late_s = 0, 0.0
        tiered.s3.objects.update(objects)
    why = {"damaged": "its checksum does not hold", "gone": "the bucket answers 404"}.get(
        fault, "the bucket answers 403"
    )
    said = [record.getMessage() for record in caplog.records if "read from the brokers from offset" in record.message]
    assert len(said) == 1
    assert why in said[0]
    assert "Signature" not in said[0]


def test_a_bucket_that_cannot_be_reached_is_left_alone_for_a_while(
    tiered: Tiered, small: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise URLError("no route to host")

    wanted, served = tiered.rows(), tiered.s3.signed[206]
    monkeypatch.setattr(bucket_reads, "REST_S", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(bucket_reads, "urlopen", unreachable)
        assert tiered.rows(**BUCKET) == wanted
    assert "no answer from the bucket: URLError: <urlopen error no route to host>" in caplog.text
    assert tiered.rows(**BUCKET) == wanted
    assert tiered.s3.signed[206] == served
    eventually(lambda: tiered.rows(**BUCKET) == wanted and tiered.s3.signed[206] > served, "it is asked again")


def test_a_topic_that_was_created_again_is_not_read_from_the_bucket(tiered: Tiered) -> None:
    client = shared_client(tiered.options().settings)
    client.topics({TOPIC})
    item = Range(TOPIC, 0, 0, 3, client.topic_id(TOPIC))
    assert next(read_range(item, tiered.options(**BUCKET))).num_rows == 3
    with pytest.raises(DataLoss, match="deleted and created again"):
        list(read_range(item._replace(topic_id=str(uuid.uuid4())), tiered.options(**BUCKET)))


def test_answers(tiered: Tiered) -> None:
    answer = tiered.ask(max_bytes=-5)
    (segment,) = answer.segments
    assert (segment.base_offset, len(segment.chunks), answer.lifetime_ms) == (0, 1, 60_000)
    assert segment.url.startswith(f"{tiered.s3.environment['AWS_ENDPOINT']}/bucket/folder/topics/{TOPIC}.")
    assert "test-secret" not in segment.url
    whole = tiered.ask()
    assert [one.end_offset for one in whole.segments[:-1]] == [one.base_offset for one in whole.segments[1:]]
    assert sum(chunk.size_in_bytes for one in whole.segments for chunk in one.chunks) > 6_000_000
    aborted = [one.first_offset for one in whole.aborted_transactions]
    assert aborted == sorted(aborted)
    assert len(aborted) >= 3
    assert (tiered.ask(start_offset=tiered.end).segments, tiered.ask(start_offset=50, end_offset=10).segments) == (
        [],
        [],
    )
    assert tiered.ask(start_offset=-1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert tiered.ask(topic="none").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert tiered.ask(partition_index=7).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    tiered.cluster.create("plain", replicas=1)
    refused = eventually(lambda: tiered.ask(topic="plain"), "it is led", good=lambda told: told.error_code == 42)
    assert refused.error_message == "plain is not tiered: read by Fetch"


def test_a_quota_counts_what_the_urls_are_for(tiered: Tiered) -> None:
    client = shared_client(tiered.options().settings)
    assert client.serves(SIGN_SEGMENTS)
    name = f"quota-{uuid.uuid4().hex[:6]}"
    tiered.shell.run("quotas", "set", "--client-id", name, "consumer_byte_rate=400000")
    options = tiered.options(**{"kafka.client.id": name}, **BUCKET)
    muted = 'fleetlog_throttled_total{quota="fetch"}'
    before, served = tiered.broker.figure(muted), tiered.s3.signed[206]
    rows = [row for batch in read_range(Range(TOPIC, 0, 0, 3_000), options) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == [row["offset"] for row in tiered.rows(0, 3_000)]
    assert tiered.s3.signed[206] > served
    assert tiered.broker.figure(muted) > before


def test_a_broker_that_gives_out_no_urls(tiered: Tiered, caplog: pytest.LogCaptureFixture) -> None:
    """Of a folder there are none either; records come from the brokers."""
    wanted, served = tiered.rows(), tiered.s3.signed[206]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in tiered.s3.environment.items():
            patch.setenv(name, value)
        tiered.broker.kill()
        tiered.broker.start("fleetlog.bucket.url.lifetime.ms=0")
        tiered.broker.wait_ready()
    assert tiered.rows(**BUCKET) == wanted
    assert tiered.s3.signed[206] == served
    answer = eventually(tiered.ask, "it leads", good=lambda told: told.error_code == ErrorCode.INVALID_REQUEST)
    assert "old: records come from the brokers: INVALID_REQUEST broker 1 gives out no URLs" in caplog.text
    assert answer.error_message == "broker 1 gives out no URLs of its bucket: read by Fetch"
