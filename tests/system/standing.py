"""Clients that work on one connection all the time, and keep what each request was answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch
from tests.support.fleet import Broker
from tests.support.harness import Client


class Standing:
    """A client that asks the same of one broker all the time, on one connection; each answer's error, and when."""

    def __init__(self, broker: Broker, ask: Callable[[Client], int]) -> None:
        self.broker = broker
        self.answers: list[tuple[float, int]] = []
        self._ask = ask
        self._client = Client(broker.port)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.wait(0.01):
            error = self._ask(self._client)
            self.answers.append((time.monotonic(), error))

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._client.close()

    def errors_from(self, moment: float) -> list[int]:
        """The errors of all requests that were answered later, in order."""
        return [error for when, error in list(self.answers) if when > moment]

    def last_other(self, moment: float, wanted: int) -> float:
        """When the last answer came, after that moment, that was not the wanted one; the moment where none was."""
        return max((when for when, error in list(self.answers) if when > moment and error != wanted), default=moment)


def produces(topic: str, partition: int) -> Callable[[Client], int]:
    group = m.ProduceRequest.TopicProduceData
    records = encode_batch([Record(0, int(time.time() * 1000), b"k", b"v", ())])
    data = [group(name=topic, partition_data=[group.PartitionProduceData(index=partition, records=records)])]
    request = m.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data)
    return lambda client: int(client.ask(request, 9).responses[0].partition_responses[0].error_code)


def fetches(topic: str, partition: int) -> Callable[[Client], int]:
    group = m.FetchRequest.FetchTopic
    wanted = [group.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 16)]
    request = m.FetchRequest(max_wait_ms=100, min_bytes=1, topics=[group(topic=topic, partitions=wanted)])
    return lambda client: int(client.ask(request, 11).responses[0].partitions[0].error_code)
