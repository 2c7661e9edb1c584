"""Produce requests that come together: over a socket whose turns the test takes, and by calling their handler."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.api.base import ClientConnection, Context
from fleetlog.brokers.api.produce import execute_produce
from fleetlog.brokers.log import Log
from fleetlog.brokers.model import Endpoint
from fleetlog.brokers.server.listener import Server
from fleetlog.brokers.timers import Timers
from fleetlog.txn.verification import Question
from fleetlog.wire import compression, hot
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from harness.turns import TurnClient, TurnLoop
from tests.support.stage import Stage

VERSION = 11


def batch(count: int = 1, value: bytes = b"v", **fields: Any) -> bytes:
    return encode_batch([Record(-1, 1_700_000_000_000 + i, None, value) for i in range(count)], **fields)


def frame(
    data: bytes, number: int, topic: str = "t", index: int = 0, acks: int = -1, version: int = VERSION,
    transactional_id: str | None = None,
) -> bytes:  # fmt: skip
    request = m.request_class(0)
    part = request.TopicProduceData.PartitionProduceData(index=index, records=data)
    topics = [request.TopicProduceData(name=topic, partition_data=[part])]
    message = request(version=version, transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=topics)
    return bytes(m.encode_request(0, version, number, "me", message))


class HandlerLoop(TurnLoop):
    """Runs coroutines too, those that wait for nothing: they are done at once."""

    def create_task(self, coroutine: Any) -> Any:
        try:
            coroutine.send(None)
        except StopIteration:
            return _Ended()
        raise AssertionError("the coroutine waits for something")


class _Ended:
    """A task that is over."""

    def add_done_callback(self, callback: Any) -> None:
        callback(self)


class Broker:
    """A server on a socket, whose turns the test takes."""

    def __init__(self, directory: Path, *, runs: bool = True, **settings: str) -> None:
        self.stage = Stage(directory, **settings)
        self.loop = HandlerLoop()
        self.stage.services.loop = self.loop
        self.stage.services.timers = Timers(self.loop, self.stage.clock)
        server = Server(self.stage.config)
        (endpoint,) = server.bind([Endpoint("PLAINTEXT", "127.0.0.1", 0)])
        server.serve(self.stage.services)
        self.runs: list[int] = []
        self.server = server
        execute = server.dispatch_run

        def counted(connection: Any, data: memoryview, start: int, end: int, most: int) -> int:
            until = execute(connection, data, start, end, most) if runs else start
            self.runs.append(until - start)
            return until

        server.dispatch_run = counted
        self.port = endpoint.port
        self.client = self.connect()

    def connect(self) -> TurnClient:
        listener = next(fd for (fd, _), (_, args) in self.loop.callbacks.items() if args)
        return TurnClient(self.loop, self.port, listener)

    def ask(self, requests: bytes, count: int) -> list[tuple[int, Any]]:
        return decoded(bytes(self.client.ask(requests, count)))

    def close(self) -> None:
        self.server.close()
        self.client.sock.close()


def decoded(data: bytes, version: int = VERSION) -> list[tuple[int, Any]]:
    """Correlation ids and messages of answers to Produce."""
    found: list[tuple[int, Any]] = []
    while data:
        size = int.from_bytes(data[:4], "big")
        number, body = m.split_response(0, version, data[4 : 4 + size])
        found.append((number, m.decode_response(0, version, body)))
        data = data[4 + size :]
    return found


def told(answers: list[tuple[int, Any]]) -> list[tuple[int, int, int]]:
    """Correlation id, error and base offset of each answer."""
    return [
        (number, part.error_code, part.base_offset)
        for number, message in answers
        for part in message.responses[0].partition_responses
    ]


PLAIN = ["plain", "plain", "plain", "plain", "other", "other", "other"]
PRODUCERS = ["next", "next", "next", "next", "next other", "second", "second", "txn", "txn", "txn", "txn other"]
ODD = [
    "unknown", "corrupt", "gzip", "acks1", "large", "empty", "again", "older", "gap", "stale", "bumped", "txn unnamed",
    "named", "commit", "abort", "restart", "later",
]  # fmt: skip
KINDS = st.sampled_from([*PLAIN, *PRODUCERS, *PRODUCERS, *ODD])
IDEMPOTENT, SECOND, TRANSACTIONAL = 7, 8, 9


class Producing:
    """What is sent; each producer has a sequence in each partition, and one an epoch that it may raise."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.noise = random.Random(5)
        self.sequences: dict[tuple[int, int, int], int] = {}
        self.epoch = 0
        self.sent: list[bytes] = []

    def of(self, producer_id: int, index: int = 0, *, ahead: int = 0, epoch: int = 0, **fields: Any) -> bytes:
        count, key = self.noise.randrange(1, 4), (producer_id, epoch, index)
        sequence = self.sequences.get(key, 0)
        if not ahead:
            self.sequences[key] = sequence + count
        value = self.noise.randbytes(20)
        return batch(
            count, value, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence + ahead, **fields
        )

    def request(self, kind: str, number: int) -> bytes:
        noise, options = self.noise, {"version": self.version}
        index = 1 if "other" in kind else 0
        data = batch(noise.randrange(1, 4), noise.randbytes(20))
        if kind == "unknown":
            options["topic"] = "nowhere"
        elif kind == "corrupt":
            data = data[:-1] + bytes([data[-1] ^ 1])
        elif kind == "gzip":
            data = batch(2, attributes=1, compress=lambda payload: compression.compress(1, payload))
        elif kind == "acks1":
            options["acks"] = 1
        elif kind == "large":
            data = batch(1, noise.randbytes(900))
        elif kind == "empty":
            data = b""
        elif kind in ("next", "next other", "bumped"):
            self.epoch += kind == "bumped"
            data = self.of(IDEMPOTENT, index, epoch=self.epoch)
            if not index:
                self.sent.append(data)
        elif kind in ("again", "older") and self.sent:
            data = self.sent[-1 if kind == "again" else -min(5, len(self.sent))]
        elif kind == "gap":
            data = self.of(IDEMPOTENT, epoch=self.epoch, ahead=1)
        elif kind == "stale":
            data = self.of(IDEMPOTENT, epoch=self.epoch - 1)
        elif kind == "second":
            data = self.of(SECOND)
        elif kind.startswith("txn"):
            data = self.of(TRANSACTIONAL, index, attributes=16, ahead=kind == "txn unnamed")
        if kind in ("named", "txn", "txn other"):
            options["transactional_id"] = "x"
        return frame(data, number, index=index, **options)


def meanwhile(broker: Broker, kind: str) -> None:
    """What happens to partitions between the requests."""
    for index in (0, 1):
        log = broker.stage.partition("t", index).log
        if kind == "later":
            log.producers.expire(broker.stage.clock.now_ms)
        elif kind == "restart":
            log.close()
            opened = Log.open(
                log.disk, log.directory, log.topic_partition, log.config, log.settings,
                now_ms=broker.stage.clock.now_ms, topic_id=log.topic_id, clean=True, recovery_point=log.log_end_offset,
                high_watermark=log.high_watermark,
            )  # fmt: skip
            broker.stage.partition("t", index).log = opened
        elif log.producers.has_open_transaction(TRANSACTIONAL):
            broker.stage.marker("t", TRANSACTIONAL, commit=kind == "commit", index=index)


def all_is_well(question: Question) -> dict[TopicPartition, ErrorCode]:
    """The transaction coordinator's answer."""
    return dict.fromkeys(question.partitions, ErrorCode.NONE)


def start(stage: Stage, *batches: bytes, acks: int = -1, version: int = VERSION) -> Any:
    data = bytearray(b"".join(frame(data, 40 + n, acks=acks, version=version) for n, data in enumerate(batches)))
    run = hot.decode_produce_run(memoryview(data), 0, len(data), 3, 13, 99)
    assert run is not None
    assert len(run.ends) == len(batches)
    context = Context(stage.services, ClientConnection(1, "PLAINTEXT", "peer"), 0, version, 40, "")
    (outcome,) = execute_produce([run], [context])
    del run
    data.extend(b"a block with a view on it could not grow")
    return outcome


def answers(response: Any, version: int = VERSION) -> list[tuple[int, int, int]]:
    assert type(response) is list
    return told(decoded(b"".join(response), version))
