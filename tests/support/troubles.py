"""A fleet of processes that can be brought into each trouble that an operator has, and out of it again."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleetlog.coordination.ports import free_ports
from tests.chaos.clocks import HostClock, build
from tests.support.certificates import Authority, replaced
from tests.support.fleet import Fleet
from tests.support.slow_disk import SlowDisk
from tests.support.small_disk import SmallDisk

TOPIC, PARTITIONS = "orders", 3
HOT_BYTES, HOT_PAUSE_S = 50_000, 0.1
FEW_LEFT = 40
"""Descriptors that stay free when there are too few: enough to answer a doctor."""


class Trouble(NamedTuple):
    """What a doctor must find: the check, where, and a part of its sentence."""

    check: str
    where: str
    words: str


class TroubledFleet:
    """Broker 1 has a TLS listener, broker 2 a clock and a disk whose fsync may be slow, broker 3 a small disk."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.fleet = Fleet(
            directory / "fleet", 3, default_replication_factor=3, min_insync_replicas=2, group_lag_interval_ms=200,
            zookeeper_session_timeout_ms=3000, log_cleaner_dedupe_buffer_size=1_048_576, log_flush_policy="ack",
            auto_create_topics_enable="false",
        )  # fmt: skip
        authority = Authority(directory, "authority")
        pair = authority.pair("/O=fleet/CN=broker", days=30)
        self._whole = pair.key + pair.chain
        self._certificate = directory / "listener.pem"
        replaced(str(self._certificate), self._whole)
        one, two, three = self.fleet.brokers
        (port,) = free_ports(1)
        listeners = f"listeners=PLAINTEXT://{one.address}"
        one.config_file.write_text(
            one.config_file.read_text().replace(listeners, f"{listeners},S://127.0.0.1:{port}")
            + "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,S:SSL\nssl.keystore.type=PEM\n"
            f"ssl.keystore.location={self._certificate}\ninter.broker.listener.name=PLAINTEXT\n"
        )
        self._clock = HostClock(build(directory), directory / "clock")
        self._slow = SlowDisk(directory)
        libraries = ":".join(one.environment["LD_PRELOAD"] for one in (self._clock, self._slow))
        seen = {**self._clock.environment, **self._slow.environment, "LD_PRELOAD": libraries}
        two.within = ["env", *(f"{name}={value}" for name, value in seen.items())]
        self._small = SmallDisk(three)
        self.fleet.start()
        admin = AdminClient({"bootstrap.servers": self.fleet.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        self._producer = Producer({"bootstrap.servers": self.fleet.bootstrap, "log_level": 0})
        self.write(range(PARTITIONS), 10)

    def close(self) -> None:
        """End all processes."""
        self.fleet.close()

    def write(self, partitions: range, count: int, size: int = 10) -> None:
        """Records into each of these partitions, acknowledged."""
        for number in range(count * len(partitions)):
            self._producer.produce(TOPIC, bytes(size), partition=partitions[number % len(partitions)])
        assert self._producer.flush(60) == 0

    # ---- the troubles: each is a context, and says what must be found meanwhile

    @contextmanager
    def full_disk(self) -> Iterator[Trouble]:
        self._small.fill()
        self.write(range(PARTITIONS), 5)
        try:
            yield Trouble("disk", "broker 3", "is full")
        finally:
            self._small.free()

    @contextmanager
    def slow_disk(self) -> Iterator[Trouble]:
        self._slow.delay(0.8)
        try:
            self.write(range(PARTITIONS), 1)
            yield Trouble("disk", "broker 2", "its disk is slow: an fsync takes ")
        finally:
            self._slow.delay(0.0)

    @contextmanager
    def dead_zookeeper(self) -> Iterator[Trouble]:
        self.fleet.zookeeper.pause()
        try:
            yield Trouble("zookeeper", "broker 1", "ZooKeeper does not answer this broker")
        finally:
            self.fleet.zookeeper.resume()

    @contextmanager
    def wrong_clock(self) -> Iterator[Trouble]:
        self._clock.jump(-7.0)
        try:
            yield Trouble("clock", "broker 2", "s behind")
        finally:
            self._clock.jump(0.0)

    @contextmanager
    def stuck_transaction(self) -> Iterator[Trouble]:
        producer = Producer({"bootstrap.servers": self.fleet.bootstrap, "transactional.id": "stuck", "log_level": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(TOPIC, b"half", partition=1)
        assert producer.flush(30) == 0
        time.sleep(2)
        try:
            yield Trouble("transaction", "stuck", f"read_committed consumers wait at {TOPIC}:1")
        finally:
            producer.abort_transaction(30)

    @contextmanager
    def hot_partition(self) -> Iterator[Trouble]:
        """It is written to while it is looked at."""
        done, producer = threading.Event(), Producer({"bootstrap.servers": self.fleet.bootstrap, "log_level": 0})

        def heat() -> None:
            while not done.is_set():
                for _ in range(10):
                    producer.produce(TOPIC, bytes(HOT_BYTES), partition=2)
                producer.flush(30)
                time.sleep(HOT_PAUSE_S)

        thread = threading.Thread(target=heat, daemon=True)
        thread.start()
        try:
            yield Trouble("hot partition", f"{TOPIC}-2", "of what the 3 partitions of orders get")
        finally:
            done.set()
            thread.join()

    @contextmanager
    def lagging_group(self) -> Iterator[Trouble]:
        consumer = Consumer({"bootstrap.servers": self.fleet.bootstrap, "group.id": "late", "log_level": 0})
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 3)], asynchronous=False)
        try:
            yield Trouble("group", "late", "it has no members")
        finally:
            end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)[1]
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, end)], asynchronous=False)
            consumer.close()

    @contextmanager
    def broken_certificate(self) -> Iterator[Trouble]:
        replaced(str(self._certificate), "no certificate\n")
        try:
            yield Trouble("certificate", "broker 1, listener S", "the certificate on disk cannot be used")
        finally:
            replaced(str(self._certificate), self._whole)

    @contextmanager
    def killed_broker(self) -> Iterator[Trouble]:
        two = self.fleet.brokers[1]
        two.kill()
        try:
            yield Trouble("broker", "broker 2", "not registered")
        finally:
            two.start()
            two.wait_ready()

    @contextmanager
    def few_file_handles(self) -> Iterator[Trouble]:
        process = self.fleet.brokers[0].process
        assert process is not None
        before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{process.pid}/fd"))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + min(FEW_LEFT, used // 8), before[1]))
        try:
            yield Trouble("files", "broker 1", "file descriptors are in use")
        finally:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)


TROUBLES = (
    "full_disk", "slow_disk", "dead_zookeeper", "wrong_clock", "stuck_transaction", "hot_partition", "lagging_group",
    "broken_certificate", "killed_broker", "few_file_handles",
)  # fmt: skip
"""The methods of :class:`TroubledFleet` that bring one about."""
