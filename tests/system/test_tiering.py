"""A tiered topic on real brokers, with a folder as the bucket: what stock clients read of it, whatever is killed."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from fleetlog.brokers.tiering.bucket import ObjectBucket, read_owner, take
from fleetlog.brokers.tiering.manifest import decode_manifest, encode_manifest
from tests.cli.shell import Shell
from tests.support.copies import Cluster
from tests.support.fleet import Broker, Fleet
from tests.support.rollback import Copy, repair, repair_plan, wait_refusal
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": 500,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 0,
}
TIERED = {
    "remote.storage.enable": "true", "segment.bytes": 1_000_000, "local.retention.bytes": 1_000_000,
    "retention.bytes": -1, "retention.ms": -1,
}  # fmt: skip
RECORDS, SIZE = 3_000, 2_000


def tiered_fleet(directory: Path, brokers: int) -> Cluster:
    fleet = Fleet(directory, brokers, **{"fleetlog.bucket.url": f"file://{directory}/bucket"}, **SETTINGS)
    cluster = Cluster(fleet.start())
    Shell(fleet).run("features", "upgrade", "fleetlog.tiering.version=2")
    return cluster


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = tiered_fleet(tmp_path_factory.mktemp("tier"), 1)
    yield cluster
    cluster.fleet.close()


def produce(cluster: Cluster, topic: str, numbers: range, **settings: Any) -> None:
    from confluent_kafka import Producer

    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.alive, "linger.ms": 5, "batch.size": 16_000, **settings})
    for number in numbers:
        value = f"{number:08d}".encode() + bytes(SIZE)
        producer.produce(topic, value, partition=0, on_delivery=lambda e, m: failed.append(e) if e else None)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def read(cluster: Cluster, topic: str, count: int, **settings: Any) -> list[tuple[int, int]]:
    """Offsets and numbers of the records from the earliest on, until so many are read or the end is reached."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": cluster.alive, "group.id": "r", "auto.offset.reset": "error", **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    rows: list[tuple[int, int]] = []

    def poll() -> bool:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            rows.append((message.offset(), int(message.value()[:8])))
        return len(rows) >= count

    eventually(poll, f"{count} records of {topic}", pause_s=0)
    consumer.close()
    return rows


def local_bases(cluster: Cluster, topic: str, broker: Broker | None = None) -> list[int]:
    return [int(path.stem) for path in cluster.segments(broker or cluster.fleet.brokers[0], topic)]


def bucket_objects(cluster: Cluster, topic: str, suffix: str) -> list[Path]:
    return sorted((cluster.fleet.directory / "bucket").glob(f"topics/{topic}.*/0/*{suffix}"))


def wait_tiered(cluster: Cluster, topic: str, broker: Broker | None = None) -> None:
    """Until old segments are in the bucket, and here no more."""
    eventually(lambda: local_bases(cluster, topic, broker)[0] > 0, f"{topic} begins later here")
    eventually(lambda: len(local_bases(cluster, topic, broker)) <= 2, f"{topic} keeps a segment here")


def test_old_records_are_read_from_the_bucket_whatever_is_killed(single: Cluster) -> None:
    single.create("old", replicas=1, **TIERED)
    produce(single, "old", range(RECORDS))
    wait_tiered(single, "old")
    (described,) = Shell(single.fleet).json("topics", "describe", "old")
    (row,) = described["partitions"]
    assert row["local_bytes"] < 1_500_000 < 4_000_000 < row["tiered_bytes"]
    assert "tiered bytes" in Shell(single.fleet).run("topics", "describe", "old").stdout
    whole = [(number, number) for number in range(RECORDS)]
    assert read(single, "old", RECORDS) == whole
    broker = single.fleet.brokers[0]
    broker.kill()
    broker.start()
    broker.wait_ready()
    assert read(single, "old", RECORDS) == whole
    produce(single, "old", range(RECORDS, 2 * RECORDS))
    assert read(single, "old", 2 * RECORDS) == [(number, number) for number in range(2 * RECORDS)]
    assert not list((single.fleet.directory / "bucket").glob("**/*#*")), "no part of an upload is left"


def listed(cluster: Cluster, topic: str, spec: Any) -> tuple[int, int]:
    """Offset and timestamp that ListOffsets answers."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    tp = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": cluster.alive})
    result = admin.list_offsets({tp: spec})[tp].result(PATIENCE_S)
    return result.offset, result.timestamp


def test_offsets_times_deletion_and_the_objects_that_go(single: Cluster) -> None:
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    single.create("times", replicas=1, **TIERED)
    produce(single, "times", range(RECORDS))
    wait_tiered(single, "times")
    assert listed(single, "times", OffsetSpec.earliest())[0] == 0
    consumer = Consumer({"bootstrap.servers": single.alive, "group.id": "slow"})
    consumer.commit(offsets=[TopicPartition("times", 0, 10)], asynchronous=False)
    consumer.close()
    shell = Shell(single.fleet)
    eventually(
        lambda: [row["lag"] for row in shell.json("groups", "lag") if row["group"] == "slow"] == [RECORDS - 10],
        "what is in the bucket only counts as lag",
    )
    stamps = {}
    consumer = Consumer({"bootstrap.servers": single.alive, "group.id": "r"})
    consumer.assign([TopicPartition("times", 0, 0)])
    while len(stamps) < RECORDS:
        stamps |= {message.offset(): message.timestamp()[1] for message in consumer.consume(500, 1)}
    for offset in (0, 700, 1_500, RECORDS - 1):
        first = min(at for at, stamp in stamps.items() if stamp >= stamps[offset])
        assert listed(single, "times", OffsetSpec.for_timestamp(stamps[offset])) == (first, stamps[first])
    before = bucket_objects(single, "times", ".log")
    admin = AdminClient({"bootstrap.servers": single.alive})
    deleted = TopicPartition("times", 0, 1_200)
    assert admin.delete_records([deleted])[deleted].result(PATIENCE_S).low_watermark == 1_200
    assert listed(single, "times", OffsetSpec.earliest())[0] == 1_200
    assert read(single, "times", RECORDS - 1_200)[0] == (1_200, 1_200)
    eventually(lambda: len(bucket_objects(single, "times", ".log")) < len(before), "what is deleted goes")
    consumer.close()
    broker = single.fleet.brokers[0]
    broker.kill()
    broker.start()
    broker.wait_ready()
    assert read(single, "times", RECORDS - 1_200)[0] == (1_200, 1_200)
    assert listed(single, "times", OffsetSpec.earliest())[0] == 1_200


def test_one_consumer_reads_many_cold_partitions_side_by_side(single: Cluster) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    partitions, each = 6, 1_500
    single.create("many", partitions, replicas=1, **TIERED)
    producer = Producer({"bootstrap.servers": single.alive, "linger.ms": 5, "batch.size": 16_000})
    for number in range(partitions * each):
        producer.produce("many", bytes(SIZE), partition=number % partitions)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    broker = single.fleet.brokers[0]
    for partition in range(partitions):
        eventually(
            lambda p=partition: int(single.segments(broker, "many", p)[0].stem) > 0, f"many-{partition} is tiered"
        )
    consumer = Consumer({"bootstrap.servers": single.alive, "group.id": "r", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition("many", partition, 0) for partition in range(partitions)])
    offsets: dict[int, list[int]] = {partition: [] for partition in range(partitions)}

    def poll() -> bool:
        for message in consumer.consume(500, 0.2):
            offsets[message.partition()].append(message.offset())
        return all(len(read) >= each for read in offsets.values())

    eventually(poll, "all of all partitions", pause_s=0)
    consumer.close()
    assert offsets == {partition: list(range(each)) for partition in range(partitions)}


def test_objects_of_deleted_topics_go_and_those_of_unknown_ones_are_swept(single: Cluster) -> None:
    from confluent_kafka.admin import AdminClient

    for topic in ("stays", "goes"):
        single.create(topic, replicas=1, **TIERED)
        produce(single, topic, range(1_000))
        wait_tiered(single, topic)
    (folder,) = (single.fleet.directory / "bucket").glob("topics/goes.*")
    shutil.copytree(folder, folder.with_name(f"left.{9:032x}"))  # as an older version left them
    admin = AdminClient({"bootstrap.servers": single.alive})
    admin.delete_topics(["goes"])["goes"].result(PATIENCE_S)
    eventually(lambda: bucket_objects(single, "goes", ".*") == [], "its objects go")
    assert bucket_objects(single, "left", ".log") != [], "nobody has seen its deletion"
    shell, url = Shell(single.fleet), f"file://{single.fleet.directory}/bucket"
    assert shell.json("bucket", "sweep", url)["topics"] == [], "a day old"
    (row,) = (row for row in shell.json("bucket", "sweep", url, "--hours", "0")["topics"] if row["topic"] == "left")
    shell.run("bucket", "sweep", url, "--hours", "0", "--execute")
    assert bucket_objects(single, "left", ".*") == []
    assert row["objects"] > 0
    assert read(single, "stays", 1_000) == [(number, number) for number in range(1_000)]


def test_objects_go_though_every_broker_is_killed_right_behind_the_deletion(tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient

    cluster = tiered_fleet(tmp_path, 2)
    try:
        for topic in ("stays", "goes"):
            cluster.create(topic, replicas=2, **TIERED)
            produce(cluster, topic, range(1_000), acks="all")
            wait_tiered(cluster, topic, cluster.leader(topic))
        bucket, away = tmp_path / "bucket", tmp_path / "away"
        bucket.rename(away)
        bucket.write_text("no folder")
        AdminClient({"bootstrap.servers": cluster.alive}).delete_topics(["goes"])["goes"].result(PATIENCE_S)
        for broker in cluster.fleet.brokers:
            broker.kill()
        bucket.unlink()
        away.rename(bucket)
        assert bucket_objects(cluster, "goes", ".log") != []
        cluster.fleet.start()
        eventually(lambda: bucket_objects(cluster, "goes", ".*") == [], "its objects go")
        assert read(cluster, "stays", 1_000) == [(number, number) for number in range(1_000)]
        assert Shell(cluster.fleet).json("bucket", "verify", f"file://{bucket}", "-r")["problems"] == []
    finally:
        cluster.fleet.close()


def test_a_zookeeper_that_was_rolled_back_takes_nothing_from_the_bucket(tmp_path: Path) -> None:
    """It knows nothing of one topic, and an older epoch of the other: a repair brings back both."""
    cluster = tiered_fleet(tmp_path, 2)
    fleet = cluster.fleet
    try:
        cluster.create("old", replicas=2, **TIERED)
        before = Copy(fleet, "before")
        for broker in fleet.brokers:
            eventually(broker.caught_up, f"broker {broker.id} is in sync")
            broker.kill()
            broker.start()
            broker.wait_ready()
        cluster.create("new", replicas=2, **TIERED)
        for topic in ("old", "new"):
            produce(cluster, topic, range(1_000), acks="all")
            wait_tiered(cluster, topic, cluster.leader(topic))
        for broker in fleet.brokers:
            assert broker.stop() == 0
        objects = {topic: bucket_objects(cluster, topic, ".log") for topic in ("old", "new")}
        newest = bucket_objects(cluster, "old", "manifest/*")[-1]
        manifest = decode_manifest(newest.read_bytes(), "")
        later = manifest._replace(
            generation=manifest.generation + 1, leader_epoch=500
        )  # elections leave no trace in logs
        newest.with_name(f"{later.generation:020d}").write_bytes(encode_manifest(later))
        before.put_back()
        for broker in fleet.brokers:
            broker.start()
        for broker in fleet.brokers:
            wait_refusal(broker, PATIENCE_S)
        plan = eventually(lambda: repair_plan(fleet), "both have told what they have")
        assert "topic new (id " in plan
        assert "its manifest in the bucket has 500" in plan
        assert "done" in repair(fleet, "--execute", "--yes")
        for broker in fleet.brokers:
            broker.wait_ready()
        for topic in ("old", "new"):
            assert read(cluster, topic, 1_000) == [(number, number) for number in range(1_000)]
            assert set(objects[topic]) <= set(bucket_objects(cluster, topic, ".log"))
        assert Shell(fleet).json("bucket", "verify", f"file://{tmp_path}/bucket", "-r")["problems"] == []
    finally:
        fleet.close()


def test_a_damaged_object_is_an_error_and_never_wrong_records(single: Cluster) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    single.create("damaged", replicas=1, **TIERED)
    produce(single, "damaged", range(RECORDS))
    wait_tiered(single, "damaged")
    oldest = bucket_objects(single, "damaged", ".log")[0]
    whole = oldest.read_bytes()
    oldest.write_bytes(whole[:5_000] + bytes([whole[5_000] ^ 1]) + whole[5_001:])
    consumer = Consumer({"bootstrap.servers": single.alive, "group.id": "r", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition("damaged", 0, OFFSET_BEGINNING)])
    broker = single.fleet.brokers[0]
    eventually(lambda: consumer.consume(10, 0.1) == [] and b"damaged at 0" in broker.output().encode(), "it is named")
    oldest.write_bytes(whole)
    messages: list[Any] = []
    eventually(lambda: messages.extend(consumer.consume(100, 0.2)) or messages, "it is read once it is sound")
    assert messages[0].offset() == 0
    consumer.close()


def test_aborted_transactions_are_skipped_in_the_bucket_too(single: Cluster) -> None:
    from confluent_kafka import Producer

    single.create("decided", replicas=1, **TIERED)
    producer = Producer({"bootstrap.servers": single.alive, "transactional.id": "t", "linger.ms": 5})
    producer.init_transactions(PATIENCE_S)
    kept = []
    for turn in range(30):
        producer.begin_transaction()
        for number in range(turn * 100, turn * 100 + 100):
            producer.produce("decided", f"{number:08d}".encode() + bytes(SIZE), partition=0)
        assert producer.flush(PATIENCE_S) == 0
        if turn % 3:
            producer.commit_transaction(PATIENCE_S)
            kept += range(turn * 100, turn * 100 + 100)
        else:
            producer.abort_transaction(PATIENCE_S)
    produce(single, "decided", range(3_000, 4_000))
    kept += range(3_000, 4_000)
    wait_tiered(single, "decided")
    rows = read(single, "decided", len(kept), **{"isolation.level": "read_committed"})
    assert [number for _, number in rows] == kept
    everything = read(single, "decided", 4_000, **{"isolation.level": "read_uncommitted"})
    assert [number for _, number in everything] == list(range(4_000))


def test_leaders_change_and_a_replica_that_is_far_behind_begins_where_its_leader_does(tmp_path: Path) -> None:
    cluster = tiered_fleet(tmp_path, 3)
    try:
        cluster.create("moved", replicas=3, **TIERED, min_insync_replicas=2)
        produce(cluster, "moved", range(300), acks="all")
        leader = cluster.leader("moved")
        late = next(broker for broker in cluster.fleet.brokers if broker is not leader)
        late.kill()
        produce(cluster, "moved", range(300, RECORDS), acks="all")
        wait_tiered(cluster, "moved", leader)
        late.start()
        late.wait_ready()
        cluster.wait_isr("moved", {1, 2, 3})
        assert local_bases(cluster, "moved", late)[0] > 300, "it has the tail only"
        whole = [(number, number) for number in range(2 * RECORDS)]
        assert read(cluster, "moved", RECORDS) == whole[:RECORDS]
        leader.kill()
        successor = cluster.leader("moved", other_than=leader.id)
        assert read(cluster, "moved", RECORDS) == whole[:RECORDS]
        produce(cluster, "moved", range(RECORDS, 2 * RECORDS), acks="all")
        wait_tiered(cluster, "moved", successor)
        leader.start()
        leader.wait_ready()
        cluster.wait_isr("moved", {1, 2, 3})
        assert read(cluster, "moved", 2 * RECORDS) == whole
        status = Shell(cluster.fleet).json("bucket", "status", f"file://{tmp_path}/bucket")
        (row,) = status["partitions"]
        assert (row["partition"], row["start"], row["problem"]) == ("moved-0", 0, "")
        assert row["broker"] == successor.id
        assert Shell(cluster.fleet).json("bucket", "verify", f"file://{tmp_path}/bucket", "-r")["problems"] == []
    finally:
        cluster.fleet.close()


def test_a_bucket_that_is_gone_delays_who_reads_old_records_and_nobody_else(single: Cluster) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    single.create("gone", replicas=1, **TIERED)
    produce(single, "gone", range(RECORDS))
    wait_tiered(single, "gone")
    bucket, away = single.fleet.directory / "bucket", single.fleet.directory / "away"
    bucket.rename(away)
    bucket.write_text("no folder")
    broker = single.fleet.brokers[0]
    broker.kill()
    broker.start()
    broker.wait_ready()
    old = Consumer({"bootstrap.servers": single.alive, "group.id": "old", "auto.offset.reset": "error"})
    old.assign([TopicPartition("gone", 0, OFFSET_BEGINNING)])
    told = "nothing is copied, and old records are not read"
    eventually(lambda: old.consume(10, 0.1) == [] and told in broker.output(), "it is said")
    produce(single, "gone", range(RECORDS, 2 * RECORDS))
    recent = Consumer({"bootstrap.servers": single.alive, "group.id": "recent"})
    recent.assign([TopicPartition("gone", 0, RECORDS)])
    seen: list[Any] = []
    eventually(lambda: seen.extend(recent.consume(500, 0.2)) or len(seen) >= RECORDS, "what is here is read", pause_s=0)
    assert seen[0].offset() == RECORDS
    assert len(local_bases(single, "gone")) > 4, "nothing goes that is not copied"
    bucket.unlink()
    away.rename(bucket)
    wait_tiered(single, "gone")
    messages: list[Any] = []
    eventually(lambda: messages.extend(old.consume(100, 0.2)) or messages, "old records are read again")
    assert messages[0].offset() == 0
    old.close()
    recent.close()
    assert read(single, "gone", 2 * RECORDS) == [(number, number) for number in range(2 * RECORDS)]


def test_a_flag_that_waits_begins_when_it_is_enabled(single: Cluster) -> None:
    shell, waits = Shell(single.fleet), {"fleetlog.tiering.waits": "true"}
    single.create("unflagged", replicas=1)
    single.create("waiting", replicas=1, **TIERED, **waits)
    single.create("keyed", replicas=1, **TIERED, **waits, **{"cleanup.policy": "compact"})
    produce(single, "waiting", range(RECORDS))
    states = {row["topic"]: row["state"] for row in shell.json("bucket", "enable")}
    assert "waits: closed segments would be copied" in states["waiting"]
    assert "compacted: remote.storage.enable has no effect" in states["keyed"]
    planned = shell.run("bucket", "enable", "waiting", "keyed").stdout
    assert "nothing is changed yet" in planned
    assert local_bases(single, "waiting")[0] == 0
    assert bucket_objects(single, "waiting", ".log") == []
    done = {row["topic"]: row["enabled"] for row in shell.json("bucket", "enable", "waiting", "keyed", "--execute")}
    assert done == {"waiting": True, "keyed": False}
    wait_tiered(single, "waiting")
    assert read(single, "waiting", RECORDS) == [(number, number) for number in range(RECORDS)]
    assert shell.json("bucket", "enable", "waiting") == [{"topic": "waiting", "state": "is tiered", "enabled": False}]
    assert "remote.storage.enable is false" in shell.run("bucket", "enable", "unflagged", "unflagged").stdout
    assert "needs the topics' names" in shell.run("bucket", "enable", "--execute", code=2).stderr
    assert bucket_objects(single, "keyed", "") == []


def test_a_bucket_that_another_fleet_takes_is_left_alone_and_may_be_taken_back(single: Cluster) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    single.create("taken", replicas=1, **TIERED)
    produce(single, "taken", range(RECORDS))
    wait_tiered(single, "taken")
    shell, url, broker = Shell(single.fleet), f"file://{single.fleet.directory}/bucket", single.fleet.brokers[0]
    assert "already" in shell.run("bucket", "take", url).stdout

    async def take_it() -> None:
        bucket = ObjectBucket(url)
        await take(bucket, await read_owner(bucket), "another-fleet", 1)
        bucket.close()

    asyncio.run(take_it())
    broker.kill()
    broker.start()
    broker.wait_ready()
    told = "was taken from this fleet by the one with cluster id another-fleet"
    eventually(lambda: told in broker.output(), "the former owner says so")
    findings = shell.json("doctor", code=4)
    assert [row["what"] for row in findings if row["check"] == "bucket"] == ["its bucket is of no use"]
    before = bucket_objects(single, "taken", "")
    old = Consumer({"bootstrap.servers": single.alive, "group.id": "old", "auto.offset.reset": "error"})
    old.assign([TopicPartition("taken", 0, OFFSET_BEGINNING)])
    produce(single, "taken", range(RECORDS, 2 * RECORDS))
    assert old.consume(10, 2) == []
    assert bucket_objects(single, "taken", "") == before, "nothing is copied"
    planned = shell.run("bucket", "take", url).stdout
    assert "cluster id of its owner: another-fleet" in planned
    assert "nothing is changed yet" in planned
    assert shell.json("bucket", "take", url, "--execute")["taken"] is True
    messages: list[Any] = []
    eventually(lambda: messages.extend(old.consume(100, 0.2)) or messages, "old records are read again")
    old.close()
    wait_tiered(single, "taken")
    assert read(single, "taken", 2 * RECORDS) == [(number, number) for number in range(2 * RECORDS)]


def figures(broker: Broker) -> dict[str, float]:
    """Kafka's names of what is counted of tiers, without a label."""
    page = urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics/kafka", timeout=30).read().decode()
    rows = re.findall(r"^kafka_server_brokertopicmetrics_(remote\w+) (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in rows}


def test_copies_wait_stop_and_are_deleted_as_settings_say(single: Cluster) -> None:
    shell, broker = Shell(single.fleet), single.fleet.brokers[0]
    waits = {"remote.copy.lag.ms": 3_600_000, "remote.copy.lag.bytes": 3_000_000, "local.retention.bytes": 3_500_000}
    single.create("settled", replicas=1, **TIERED | waits)
    produce(single, "settled", range(RECORDS))
    eventually(lambda: bucket_objects(single, "settled", ".log"), "what is old enough by bytes is copied")
    eventually(lambda: figures(broker)["remotecopylagsegments"] >= 2, "what is newer is counted as lag")
    before = len(bucket_objects(single, "settled", ".log"))
    assert len(local_bases(single, "settled")) > 3, "what is newer stays here, and no more than that goes"
    shell.run(
        "topics", "alter", "settled", "--set", "remote.log.copy.disable=true", "--set", "local.retention.bytes=-2"
    )
    produce(single, "settled", range(RECORDS, 2 * RECORDS))
    assert read(single, "settled", 2 * RECORDS) == [(number, number) for number in range(2 * RECORDS)]
    assert len(bucket_objects(single, "settled", ".log")) == before, "no more is copied"
    assert figures(broker)["remotefetchbytes_total"] > 0
    alter = ("topics", "alter", "settled", "--set", "remote.storage.enable=false")
    assert "set remote.log.copy.disable=true" in shell.fails(*alter)
    eventually(lambda: local_bases(single, "settled")[0] > 0, "files of what was released have gone")
    first = local_bases(single, "settled")[0]
    shell.run(*alter, "--set", "remote.log.delete.on.disable=true")
    eventually(lambda: bucket_objects(single, "settled", ".log") == [], "the bucket has nothing of it")
    assert bucket_objects(single, "settled", ".index") == []
    rows = read(single, "settled", 2 * RECORDS - first)
    assert rows == [(number, number) for number in range(first, 2 * RECORDS)]
    shell.run("topics", "alter", "settled", "--set", "remote.storage.enable=true", "--unset", "remote.log.copy.disable")
    eventually(lambda: bucket_objects(single, "settled", ".log"), "it is tiered again, from where it begins now")
    rows = read(single, "settled", 2 * RECORDS - first)
    assert rows == [(number, number) for number in range(first, 2 * RECORDS)]


def test_a_transaction_that_hangs_holds_copies_and_shows(single: Cluster) -> None:
    from confluent_kafka import Producer

    single.create("hanging", replicas=1, **TIERED)
    producer = Producer({"bootstrap.servers": single.alive, "transactional.id": "hangs"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("hanging", b"00000000", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    produce(single, "hanging", range(RECORDS))
    broker = single.fleet.brokers[0]
    eventually(lambda: broker.figure("fleetlog_tier_held_partitions") == 1, "it is counted")
    assert bucket_objects(single, "hanging", ".log") == []
    producer.abort_transaction(PATIENCE_S)
    eventually(lambda: broker.figure("fleetlog_tier_held_partitions") == 0, "it has ended")
    wait_tiered(single, "hanging")


def test_the_largest_timestamp_is_looked_for_in_the_bucket_too(single: Cluster) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import OffsetSpec

    single.create("newest", replicas=1, **TIERED, **{"message.timestamp.after.max.ms": 10**12})
    produce(single, "newest", range(200))
    eventually(lambda: bucket_objects(single, "newest", "manifest/*"), "its leader knows what is in the bucket")
    now_ms = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": single.alive})
    for value in (b"00000200", b"00000201"):
        producer.produce("newest", value, partition=0, timestamp=now_ms + 3_600_000)
    assert producer.flush(PATIENCE_S) == 0
    assert listed(single, "newest", OffsetSpec.max_timestamp()) == (200, now_ms + 3_600_000)
    produce(single, "newest", range(202, RECORDS))
    wait_tiered(single, "newest")
    assert local_bases(single, "newest")[0] > 201
    assert listed(single, "newest", OffsetSpec.max_timestamp()) == (200, now_ms + 3_600_000)
    for value in (b"a" * 8, b"b" * 8):
        producer.produce("newest", value, partition=0, timestamp=now_ms + 7_200_000)
    assert producer.flush(PATIENCE_S) == 0
    assert listed(single, "newest", OffsetSpec.max_timestamp()) == (RECORDS, now_ms + 7_200_000)
