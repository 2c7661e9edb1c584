"""Topics that drop duplicates on real brokers: writers and brokers are killed, leaders change, writers repeat; each
position is there once.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.copies import Cluster
from tests.support.fleet import Fleet
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

TOPIC = "once"
PAGE = Path(__file__).parents[2] / "docs" / "deduplicating-topics.md"
TURNS = int(os.environ.get("DEDUP_TURNS", "1"))
"""How often writers and a leader are killed."""
DEDUP: dict[str, Any] = {"fleetlog_dedup": "source", "min_insync_replicas": 2, "segment_bytes": 200_000}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    fleet = Fleet(tmp_path, log_flush_offset_checkpoint_interval_ms=500)
    try:
        yield Cluster(fleet.start())
    finally:
        fleet.close()


def _writer(cluster: Cluster, source: str, end: int, checkpoint: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.position_writer", cluster.fleet.bootstrap, TOPIC, source, str(end)]
    return subprocess.Popen([*command, str(checkpoint)], stderr=subprocess.PIPE)


def _finish(writers: list[subprocess.Popen[bytes]]) -> None:
    for writer in writers:
        _, said = writer.communicate(timeout=4 * PATIENCE_S)
        assert writer.returncode == 0, said.decode()


def _read(cluster: Cluster, partitions: int, topic: str = TOPIC) -> list[bytes]:
    """The header of each record, read to the end that is committed now."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": cluster.fleet.bootstrap, "group.id": "reader", "enable.auto.commit": False,
         "auto.offset.reset": "error", "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[bytes] = []
    ended = set[int]()
    until = time.monotonic() + PATIENCE_S
    while len(ended) < partitions:
        assert time.monotonic() < until, f"the ends of {partitions} partitions are not reached: {ended}"
        for message in consumer.consume(500, 0.2):
            if message.error() is not None:
                ended.add(message.partition() or 0)
                continue
            headers = dict(message.headers() or [])
            if topic == TOPIC:
                assert headers["fleetlog.source"].split(b":")[-2] == message.value()
            found.append(headers["fleetlog.source"])
    consumer.close()
    return found


def _dropped(cluster: Cluster) -> float:
    total = 0.0
    for broker in cluster.running:
        with urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        rows = [line for line in lines if line.startswith("fleetlog_dedup_dropped_records{")]
        assert len(rows) == 2, "one of each replica"
        total += sum(float(row.split()[-1]) for row in rows)
    return total


def test_killed_writers_and_brokers_leave_each_position_once(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create(TOPIC, partitions=2, **DEDUP)
    end, rng, names = 0, random.Random(4), ("a", "b:c")
    for turn in range(TURNS):
        end += 20_000
        writers = [_writer(cluster, name, end, tmp_path / name) for name in names]
        time.sleep(rng.uniform(0.8, 1.5))
        victim = cluster.leader(TOPIC, turn % 2)
        victim.kill()
        time.sleep(rng.uniform(0.0, 0.5))
        for one in writers:
            assert one.poll() is None, "it ended before it was killed"
            one.kill()
            one.communicate()
        _finish([_writer(cluster, name, end, tmp_path / name) for name in names])
        assert cluster.leader(TOPIC, turn % 2, other_than=victim.id)
        victim.start()
        victim.wait_ready()
        cluster.wait_isr(TOPIC, {1, 2, 3}, turn % 2)
    _finish([_writer(cluster, "a", end, tmp_path / name) for name in ("all again", "twice at once")])
    wanted = Counter(f"{name}:{position}:0".encode() for name in names for position in range(end))
    assert Counter(_read(cluster, 2)) == wanted
    assert _dropped(cluster) >= 2 * end, "so many were sent again at the end alone"
    cluster.wait_equal(TOPIC, 2)
    assert cluster.lost_commits() == 0
    assert cluster.mistakes() == []


def test_what_such_a_topic_refuses_and_the_recipe_of_the_page(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, brokers=1)
    try:
        cluster = Cluster(fleet.start())
        _refusals(cluster)
        _recipe(cluster, tmp_path)
        _repeats_in_front_of_a_reader(cluster)
    finally:
        fleet.close()


def _recipe(cluster: Cluster, directory: Path) -> None:
    """The page's script, run again without what it has saved, as after a crash."""
    recipe = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert recipe.count("localhost:9092") == recipe.count('"once"') == 1
    script = recipe.replace("localhost:9092", cluster.fleet.bootstrap).replace('"once"', '"recipe"')
    cluster.create("recipe", partitions=8, replicas=1, fleetlog_dedup="source")
    log = directory / "input.log"
    for lines in (100, 150):
        log.write_text("".join(f"line {number}\n" for number in range(lines)))
        subprocess.run([sys.executable, "-c", script], cwd=directory, check=True, timeout=PATIENCE_S)
        assert (directory / "done").read_text() == str(log.stat().st_size)
        (directory / "done").unlink()
    assert len(_read(cluster, 8, "recipe")) == 150
    script = script.replace("position % 8", "8")
    assert subprocess.run([sys.executable, "-c", script], cwd=directory, timeout=PATIENCE_S, check=False).returncode
    assert not (directory / "done").exists(), "nothing was written, so no progress is saved"


def _repeats_in_front_of_a_reader(cluster: Cluster) -> None:
    """It is told of no error, though answers have batches without records only: 512 MiB is a limit that librdkafka
    raises once before it complains of a record that is too large.
    """
    from confluent_kafka import Consumer, Producer, TopicPartition

    cluster.create("passed", replicas=1, fleetlog_dedup="source")
    producer = Producer({"bootstrap.servers": cluster.alive, "linger.ms": 0})
    reader = Consumer(
        {"bootstrap.servers": cluster.alive, "group.id": "passing", "enable.auto.commit": False,
         "fetch.message.max.bytes": 1 << 29, "fetch.wait.max.ms": 100}
    )  # fmt: skip
    reader.assign([TopicPartition("passed", 0, 0)])
    found: list[Any] = []

    def read() -> int:
        found.extend(reader.consume(10, 0.25))
        return len(found)

    for position in (1, 1, 1, 1, 1, 1, 1, 1, 2):
        producer.produce("passed", b"%d" % position, headers=[("fleetlog.source", b"q:%d:0" % position)])
        assert producer.flush(PATIENCE_S) == 0
        read()
    eventually(read, "two records", good=lambda so_many: so_many >= 2, pause_s=0)
    reader.close()
    assert [(one.error(), one.offset(), one.value()) for one in found] == [(None, 0, b"1"), (None, 8, b"2")]


def _refusals(cluster: Cluster) -> None:
    from confluent_kafka import KafkaError, KafkaException, Producer
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    with pytest.raises(KafkaException, match=r"cleanup\.policy=compact"):
        cluster.create("both", replicas=1, cleanup_policy="compact", fleetlog_dedup="source")
    cluster.create(TOPIC, replicas=1, fleetlog_dedup="source")

    admin = AdminClient({"bootstrap.servers": cluster.alive})

    def alter(name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    for name, value in (("fleetlog.dedup", "none"), ("retention.ms", "1000"), ("cleanup.policy", "compact")):
        with pytest.raises(KafkaException, match="INVALID_CONFIG"):
            alter(name, value)
    alter("fleetlog.dedup.window.ms", "60000")
    errors: list[Any] = []
    plain = Producer({"bootstrap.servers": cluster.fleet.bootstrap})
    plain.produce(TOPIC, b"no position", on_delivery=lambda error, _: errors.append(error))
    assert plain.flush(PATIENCE_S) == 0
    assert [error.code() for error in errors] == [KafkaError.INVALID_RECORD]
    transactional = Producer({"bootstrap.servers": cluster.fleet.bootstrap, "transactional.id": "t"})
    transactional.init_transactions(PATIENCE_S)
    transactional.begin_transaction()
    transactional.produce(TOPIC, b"v", headers=[("fleetlog.source", b"q:1:0")])
    with pytest.raises(KafkaException):
        transactional.commit_transaction(PATIENCE_S)
    eventually(lambda: _read(cluster, 1) == [], "nothing was taken")
