"""A client that is served while others send what they should not."""

from __future__ import annotations

import ssl
import threading
import time

import fleetlog.wire.messages as m
from fleetlog.wire.errors import ErrorCode
from tests.support.harness import Client
from tests.support.waiting import eventually


class Canary:
    """A well-behaved client that produces and reads back on one partition, all the time."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._context = context
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sing)
        self.rounds = 0
        self.retries = 0
        self.slowest_s = 0.0
        self.failure: BaseException | None = None

    def __enter__(self) -> Canary:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the canary's last request was never answered"

    def _sing(self) -> None:
        try:
            client = Client(self._port, context=self._context)
            while not self._stop.is_set():
                started = time.monotonic()
                self._round(client)
                self.slowest_s = max(self.slowest_s, time.monotonic() - started)
                self.rounds += 1
                time.sleep(0.01)
        except BaseException as error:
            self.failure = error

    def _round(self, client: Client) -> None:
        from fleetlog._native.batch import Record, encode_batch

        value = b"canary %d" % self.rounds
        batch = encode_batch([Record(0, int(time.time() * 1000), b"k", value, ())])
        topic = m.ProduceRequest.TopicProduceData
        data = [topic(name="canary", partition_data=[topic.PartitionProduceData(index=0, records=batch)])]
        request = m.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data)
        part = client.ask(request, 9, 1).responses[0].partition_responses[0]
        deadline = time.monotonic() + 30
        while part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and time.monotonic() < deadline:
            # a machine so busy that ZooKeeper does not answer in time costs the broker its lease for a moment
            self.retries += 1
            time.sleep(0.1)
            part = client.ask(request, 9, 1).responses[0].partition_responses[0]
        assert (part.error_code, part.base_offset) == (0, self.rounds)
        topic = m.FetchRequest.FetchTopic
        fetch = [topic.FetchPartition(partition=0, fetch_offset=self.rounds, partition_max_bytes=1 << 20)]
        answer = client.ask(
            m.FetchRequest(max_wait_ms=1000, min_bytes=1, topics=[topic(topic="canary", partitions=fetch)]), 11, 2
        )
        assert value in answer.responses[0].partitions[0].records


def create_topics(port: int) -> None:
    topics = [
        m.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
        )
        for name, count in (("canary", 1), ("lies", 2))
    ]
    request = m.CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=False)
    # NOT_CONTROLLER for a moment: a fresh fleet elects one
    eventually(
        lambda: all(t.error_code in (0, 36) for t in Client(port).ask(request, 5).topics), "the topics are created"
    )
