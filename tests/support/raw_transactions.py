"""A transactional producer of protocol 2 by hand: raw requests over sockets, several in flight, no pause anywhere."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import deque
from typing import Any

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch
from fleetlog.wire.errors import ErrorCode

PRODUCE, END_VERSION, PRODUCE_VERSION = 0, 5, 12
TRANSACTIONAL = 0x10
PAUSE_S = 0.02
"""Between two attempts, as clients do."""
PASSING = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
})  # fmt: skip


class Refused(AssertionError):
    """A broker answered a healthy producer with an error that is not retriable."""


class Wire:
    """One connection; answers come in the order of the requests."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sent: deque[tuple[int, int, int]] = deque()
        self._number = 0

    def send(self, message: Any, version: int) -> None:
        self._number += 1
        self._sent.append((message.API_KEY, version, self._number))
        self._socket.sendall(m.encode_request(message.API_KEY, version, self._number, "raw", message))

    def answer(self) -> Any:
        key, version, number = self._sent.popleft()
        correlation, body = m.split_response(key, version, self._read(struct.unpack(">i", self._read(4))[0]))
        assert correlation == number
        return m.decode_response(key, version, body)

    def ask(self, message: Any, version: int) -> Any:
        assert not self._sent
        self.send(message, version)
        return self.answer()

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            some = self._socket.recv(count - len(data))
            assert some, "the broker closed the connection"
            data += some
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


class RawProducer:
    """Commits, aborts and begins as fast as it is answered; ``committed`` are the values that must be seen, by
    partition and in order.
    """

    def __init__(
        self, bootstrap: str, transactional_id: str, topic: str, partitions: int, seed: int, timeout_s: float = 30.0
    ) -> None:
        host, _, port = bootstrap.partition(",")[0].partition(":")
        self._timeout_s = timeout_s
        self.id, self.topic, self.partitions = transactional_id, topic, partitions
        self.rng = random.Random(seed)
        self.committed: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
        self.producers: set[tuple[int, int]] = set()
        self.came_again = 0
        """How often something was to be asked again."""
        self._first = Wire(host, int(port), timeout_s)
        self._wires: dict[int, Wire] = {}
        self._producer, self._epoch = self._init()

    def close(self) -> None:
        for wire in (self._first, *self._wires.values()):
            wire.close()

    # ---- where things are

    def _leaders(self) -> dict[int, int]:
        topics = [m.MetadataRequest.MetadataRequestTopic(version=12, name=self.topic)]
        found = self._first.ask(m.MetadataRequest(version=12, topics=topics, allow_auto_topic_creation=False), 12)
        for broker in found.brokers:
            if broker.node_id not in self._wires:
                self._wires[broker.node_id] = Wire(broker.host, broker.port, timeout_s=self._timeout_s)
        return {part.partition_index: part.leader_id for part in found.topics[0].partitions}

    def _coordinator(self) -> Wire:
        request = m.FindCoordinatorRequest(version=4, key_type=1, coordinator_keys=[self.id])
        found = self._passing(lambda: self._first.ask(request, 4).coordinators[0])
        if found.node_id not in self._wires:
            self._wires[found.node_id] = Wire(found.host, found.port, self._timeout_s)
        return self._wires[found.node_id]

    def _passing(self, ask: Any) -> Any:
        """The first good answer, asked for as long as the others pass by themselves."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            found = ask()
            if found.error_code == ErrorCode.NONE:
                return found
            error = ErrorCode(found.error_code)
            if error not in PASSING or time.monotonic() > deadline:
                raise Refused(f"{self.id}: {type(found).__name__} {error.name}")
            self.came_again += 1
            time.sleep(PAUSE_S)

    # ---- transactions

    def _init(self) -> tuple[int, int]:
        request = m.InitProducerIdRequest(
            version=4, transactional_id=self.id, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        found = self._passing(lambda: self._coordinator().ask(request, 4))
        self.producers.add((found.producer_id, found.producer_epoch))
        return found.producer_id, found.producer_epoch

    def end(self, commit: bool) -> None:
        request = m.EndTxnRequest(
            version=END_VERSION, transactional_id=self.id, producer_id=self._producer, producer_epoch=self._epoch,
            committed=commit,
        )  # fmt: skip
        found = self._passing(lambda: self._coordinator().ask(request, END_VERSION))
        self._producer, self._epoch = found.producer_id, found.producer_epoch
        self.producers.add((self._producer, self._epoch))

    def transaction(self, number: int) -> None:
        """One of: several batches in flight and a commit, the same and an abort, nothing and an abort."""
        kind = self.rng.choice(("commit", "commit", "abort", "nothing"))
        if kind != "nothing":
            for index in self.rng.sample(range(self.partitions), self.rng.randint(1, self.partitions)):
                values = [b"%s/%d/%d" % (self.id.encode(), number, step) for step in range(self.rng.randint(1, 4))]
                self.produce(index, values)
                if kind == "commit":
                    self.committed[index] += values
        self.end(kind == "commit")

    def produce(self, index: int, values: list[bytes]) -> list[int]:
        """One batch for each value, all sent before the first answer; retries keep the order. Returns the offsets,
        -1 for an answer without one.
        """
        offsets: list[int] = []
        now_ms = int(time.time() * 1000)
        left = [
            encode_batch(
                [Record(-1, now_ms, None, value)], attributes=TRANSACTIONAL, producer_id=self._producer,
                producer_epoch=self._epoch, base_sequence=sequence,
            )
            for sequence, value in enumerate(values)
        ]  # fmt: skip
        deadline = time.monotonic() + self._timeout_s
        while left:
            leader = self._leaders()[index]
            if leader not in self._wires and time.monotonic() < deadline:
                time.sleep(PAUSE_S)
                continue
            wire = self._wires[leader]
            for data in left:
                wire.send(self._request(index, data), PRODUCE_VERSION)
            answers = [wire.answer().responses[0].partition_responses[0] for _ in left]
            errors = [ErrorCode(answer.error_code) for answer in answers]
            done = next((at for at, error in enumerate(errors) if error is not ErrorCode.NONE), len(left))
            del left[:done]
            offsets += [answer.base_offset for answer in answers[:done]]
            if left:
                first = errors[done]
                if first not in PASSING or time.monotonic() > deadline:
                    raise Refused(f"{self.id} epoch {self._epoch}: Produce {first.name}")
                self.came_again += 1
                time.sleep(PAUSE_S)
        return offsets

    def _request(self, index: int, data: bytes) -> Any:
        topic = m.ProduceRequest.TopicProduceData
        part = topic.PartitionProduceData(version=PRODUCE_VERSION, index=index, records=data)
        return m.ProduceRequest(
            version=PRODUCE_VERSION, transactional_id=self.id, acks=-1, timeout_ms=10_000,
            topic_data=[topic(version=PRODUCE_VERSION, name=self.topic, partition_data=[part])],
        )  # fmt: skip
