"""Consumers of 1,000 partitions whose network is slow: all partitions advance, and nobody else pays for it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch, scan
from tests.server.memory import rss_mib
from tests.support.clients import Client, Confluent, Message
from tests.support.copies import Cluster
from tests.support.fetching import FRAME_VERSION
from tests.support.fleet import Broker, Fleet
from tests.support.raw_transactions import PRODUCE_VERSION, Wire

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

client: Client = Confluent()
PARTITIONS = 1000
ROUNDS = 6
VALUE_BYTES = 4_000
ROOM = VALUE_BYTES + 200
"""Of one batch, but not of two."""
GREEDY = 12
GROWTH_MIB = 64
"""Much less than what is under way to all of them."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    fleet = Fleet(tmp_path, 1)
    try:
        fleet.start()
        Cluster(fleet).create("wide", partitions=PARTITIONS, replicas=1)
        Cluster(fleet).create("other", replicas=1)
        yield fleet.brokers[0]
    finally:
        fleet.close()


class SlowWire(Wire):
    """A connection with a small window that takes 16 KB every two milliseconds, at most."""

    def __init__(self, broker: Broker) -> None:
        super().__init__("127.0.0.1", broker.port, timeout_s=60)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            time.sleep(0.002)
            some = self._socket.recv(min(16_384, count - len(data)))
            assert some, "the broker closed the connection"
            data += some
        return bytes(data)


class Reader:
    """A consumer of the wide topic, by one fetch session, as Java's: it names what moved."""

    def __init__(self, wire: Wire, *, max_bytes: int, partition_bytes: int) -> None:
        self._wire = wire
        self._max_bytes, self._partition_bytes = max_bytes, partition_bytes
        self._moved = list(range(PARTITIONS))
        self._session_id = self._session_epoch = 0
        self.positions = [0] * PARTITIONS

    def ask(self) -> None:
        kind = m.FetchRequest
        named = [
            kind.FetchTopic.FetchPartition(
                partition=partition, current_leader_epoch=-1, fetch_offset=self.positions[partition],
                last_fetched_epoch=-1, log_start_offset=-1, partition_max_bytes=self._partition_bytes,
            )
            for partition in self._moved
        ]  # fmt: skip
        message = kind(
            version=FRAME_VERSION, max_wait_ms=500, min_bytes=1, max_bytes=self._max_bytes, isolation_level=0,
            session_id=self._session_id, session_epoch=self._session_epoch, rack_id="", forgotten_topics_data=[],
            topics=[kind.FetchTopic(topic="wide", partitions=named)] if named else [],
        )  # fmt: skip
        self._wire.send(message, FRAME_VERSION)

    def take(self) -> None:
        answer: Any = self._wire.answer()
        assert answer.error_code == 0
        self._session_id, self._session_epoch = answer.session_id, self._session_epoch + 1
        self._moved = []
        for part in (part for topic in answer.responses for part in topic.partitions):
            assert part.error_code == 0
            for _, header in scan(bytes(part.records or b"")):
                assert header.base_offset == self.positions[part.partition_index]
                self.positions[part.partition_index] += 1
            if part.records:
                self._moved.append(part.partition_index)


def fill(broker: Broker) -> None:
    """A batch of one record in each partition, in rounds."""
    kind, wire = m.ProduceRequest, Wire("127.0.0.1", broker.port, 60)
    batch = encode_batch([Record(-1, int(time.time() * 1000), None, bytes(VALUE_BYTES), ())])
    data = [kind.TopicProduceData.PartitionProduceData(index=index, records=batch) for index in range(PARTITIONS)]
    topic = kind.TopicProduceData(name="wide", partition_data=data)
    for _ in range(ROUNDS):
        request = kind(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=[topic])
        answer = wire.ask(request, PRODUCE_VERSION)
        assert {part.error_code for topic in answer.responses for part in topic.partition_responses} == {0}
    wire.close()


class OtherClient(threading.Thread):
    """Writes a record and reads it, until it is told to end."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker, self._over = broker, threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self._over.is_set():
            begun_s = time.monotonic()
            ((_, offset),) = client.produce(self._broker.address, "other", [Message(b"x")])
            assert len(client.consume(self._broker.address, "other", 1, offset=offset)) == 1
            self.seconds.append(time.monotonic() - begun_s)

    def end(self) -> None:
        self._over.set()
        self.join()


def test_all_partitions_advance_and_other_clients_are_served(broker: Broker) -> None:
    assert broker.process is not None
    pid = broker.process.pid
    fill(broker)
    client.produce(broker.address, "other", [Message(b"first")])
    before = most = rss_mib(pid, "RssAnon")
    greedy = [Reader(SlowWire(broker), max_bytes=50 << 20, partition_bytes=1 << 20) for _ in range(GREEDY)]
    for reader in greedy:
        reader.ask()
    other = OtherClient(broker)
    other.start()
    fair = Reader(SlowWire(broker), max_bytes=32 * ROOM, partition_bytes=ROOM)
    answers = 0
    try:
        while min(fair.positions) < ROUNDS:
            fair.ask()
            fair.take()
            answers += 1
            assert max(fair.positions) - min(fair.positions) <= 1, "one partition waits while another is served twice"
            if answers % 10 == 0:
                most = max(most, rss_mib(pid, "RssAnon"))
        greedy[0].take()
    finally:
        other.end()
    assert set(greedy[0].positions) == {ROUNDS}
    assert answers < PARTITIONS, "several partitions share an answer"
    assert most - before < GROWTH_MIB
    assert len(other.seconds) > 3
    assert max(other.seconds) < 10
