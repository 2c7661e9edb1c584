"""Produce requests that came together: appended by one write, with the outcome of one after the other."""

from __future__ import annotations

import itertools
import random
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import wire.messages as m
from _native.batch import Record, encode_batch
from brokers.api.base import Connection, Context, Done, Park
from brokers.api.produce_run import handle_produce_run
from brokers.coordinators import verification
from brokers.log import Log, Origin
from brokers.model import Endpoint
from brokers.server.listener import Server
from perf.counted import Client, TurnLoop
from tests.server.stage import ME, OTHER, Stage
from wire import compression, hot
from wire.errors import ErrorCode

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


# -- over a socket ------------------------------------------------------------------------------------------------


class Ended:
    """A task that is over."""

    def add_done_callback(self, callback: Any) -> None:
        callback(self)


class Loop(TurnLoop):
    """Coroutines that wait for nothing are done at once."""

    def create_task(self, coroutine: Any) -> Any:
        with pytest.raises(StopIteration):
            coroutine.send(None)
        return Ended()


class Broker:
    """A server on a socket, whose turns the test takes."""

    def __init__(self, directory: Path, *, runs: bool = True, **settings: str) -> None:
        self.stage = Stage(directory, **settings)
        self.loop = Loop()
        self.stage.services.loop = self.loop
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

    def connect(self) -> Client:
        listener = next(fd for (fd, _), (_, args) in self.loop.callbacks.items() if args)
        return Client(self.loop, self.port, listener)

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


def test_what_comes_together_is_appended_together(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.stage.topic("t", 2)
    broker.ask(frame(batch(), 0), 1)  # the first of a segment goes the general way
    broker.runs.clear()
    sent = [frame(batch(count), count) for count in (1, 2, 3)]
    assert told(broker.ask(b"".join(sent), 3)) == [(1, 0, 1), (2, 0, 2), (3, 0, 4)]
    assert broker.runs == [len(b"".join(sent))]
    metrics = broker.stage.services.metrics
    assert (metrics.requests.labels("Produce").value, metrics.records_in.value) == (4, 7)
    assert sum(metrics.request_seconds.labels("Produce").counts) == 4
    broker.close()


def test_a_frame_that_is_still_coming_waits_for_its_rest(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.stage.topic("t")
    broker.ask(frame(batch(), 0), 1)
    sent = [frame(batch(value=b"x" * 500), number) for number in range(1, 5)]
    cut = len(sent[0]) * 2 + 300
    assert told(broker.ask(b"".join(sent)[:cut], 2)) == [(1, 0, 1), (2, 0, 2)]
    assert told(broker.ask(b"".join(sent)[cut:], 2)) == [(3, 0, 3), (4, 0, 4)]
    assert broker.server.budget.used == 0
    broker.close()


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


def _between(broker: Broker, kind: str) -> None:
    """What happens to partitions while nobody produces."""
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


def _outcome(broker: Broker, kinds: list[str], version: int, directory: Path) -> list[Any]:
    """Everything that can be told apart afterwards."""
    client = Producing(version)
    found: list[Any] = []
    for between, together in itertools.groupby(kinds, lambda kind: kind in ("commit", "abort", "restart", "later")):
        if between:
            for kind in together:
                broker.stage.clock.now_ms += 700 * (kind == "later")
                _between(broker, kind)
            continue
        sent = [client.request(kind, number) for number, kind in enumerate(together)]
        found.append(bytes(broker.client.ask(b"".join(sent), len(sent))))
        for log in [broker.stage.partition("t", index).log for index in (0, 1)]:
            producers = log.producers
            found.append(
                (log.log_end_offset, log.high_watermark, log.last_stable_offset, list(producers.entries.values()),
                 list(producers.open.items()), log.aborted_entries())
            )  # fmt: skip
    metrics = broker.stage.services.metrics
    produced = metrics.requests.labels("Produce").value
    found.append((metrics.records_in.value, metrics.appended_bytes.value, produced))
    for index in (0, 1):
        broker.stage.partition("t", index).log.close()
    kept = [path for path in sorted(directory.rglob("t-*/*")) if path.suffix in (".log", ".snapshot", ".txnindex")]
    return [*found, [(path.name, path.read_bytes()) for path in kept if path.stat().st_size]]


async def _all_is_well(*args: Any, add: bool) -> dict[Any, ErrorCode]:
    """The transaction coordinator's answer."""
    return dict.fromkeys(args[4], ErrorCode.NONE)


@given(st.lists(KINDS, min_size=1, max_size=40), st.sampled_from([9, 11, 12]), st.sampled_from(["700", "100000"]))
@settings(max_examples=100, deadline=None)
def test_the_outcome_is_that_of_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], version: int, segment: str
) -> None:
    ends: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "verify", _all_is_well)
        for runs in (True, False):
            directory = tmp_path_factory.mktemp("runs")
            broker = Broker(directory, runs=runs, **{"producer.id.expiration.ms": "1000"})
            broker.stage.topic("t", 2, topic_id=uuid.UUID(int=7), segment_bytes=segment, max_message_bytes="800")
            if not runs:
                patch.setattr(Log, "_append_plain", lambda *_, **__: None)
            ends.append(_outcome(broker, kinds, version, directory))
            event(f"{sum(size > 0 for size in broker.runs)} runs")
            broker.close()
    for one, other in zip(*ends, strict=True):
        assert one == other


def test_sequences_that_come_together_are_appended_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "verify", _all_is_well)
    broker = Broker(tmp_path)
    broker.stage.topic("t", 2)
    client = Producing(VERSION)
    for kinds in (["next", "next other"], ["txn", "txn other"]):
        broker.ask(b"".join(client.request(kind, number) for number, kind in enumerate(kinds)), 2)
        broker.runs.clear()
        sent = [client.request(kind, number) for number, kind in enumerate(kinds * 3)]
        assert {error for _, error, _ in told(broker.ask(b"".join(sent), 6))} == {0}
        assert broker.runs == [len(b"".join(sent))]
    assert broker.stage.partition("t").log.producers.has_open_transaction(TRANSACTIONAL, 0)
    _between(broker, "commit")
    broker.runs.clear()
    sent = [client.request("txn", number) for number in range(3)]
    assert {error for _, error, _ in told(broker.ask(b"".join(sent), 3))} == {0}
    assert broker.runs == [0, len(b"".join(sent[1:]))], "the first is verified"
    broker.close()


# -- waiting ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    stage.topic("t", replicas=(ME, OTHER))
    stage.partition("t").append(bytearray(batch()), acks=1, origin=Origin.CLIENT)
    return stage


def start(stage: Stage, *batches: bytes, acks: int = -1, version: int = VERSION) -> Any:
    data = bytearray(b"".join(frame(data, 40 + n, acks=acks, version=version) for n, data in enumerate(batches)))
    run = hot.decode_produce_run(memoryview(data), 0, len(data), 3, 13, 99)
    assert run is not None
    assert len(run.ends) == len(batches)
    context = Context(stage.services, Connection(1, "PLAINTEXT", "peer"), 0, version, 40, "")
    executed = handle_produce_run(run, context)
    if executed is None:
        return None
    assert executed[0] == len(batches)
    del run
    data.extend(b"a block with a view on it could not grow")
    return executed[1]


def answers(response: Any, version: int = VERSION) -> list[tuple[int, int, int]]:
    assert type(response) is hot.Frames
    return told(decoded(bytes(response), version))


def test_all_are_answered_once_the_last_is_committed(stage: Stage) -> None:
    park = start(stage, batch(2), batch(1))
    assert isinstance(park, Park)
    stage.fetched("t", OTHER, 3)
    assert not park.done
    stage.fetched("t", OTHER, 4)
    assert answers(park.response) == [(40, 0, 1), (41, 0, 3)]


def test_acks_1_does_not_wait_unless_the_lease_is_gone(stage: Stage) -> None:
    done = start(stage, batch(2), batch(1), acks=1)
    assert isinstance(done, Done)
    assert answers(done.response) == [(40, 0, 1), (41, 0, 3)]
    stage.lease = False
    assert isinstance(start(stage, batch(), batch(), acks=1), Park)


def test_time_is_up_for_those_that_are_not_committed(stage: Stage) -> None:
    park = start(stage, batch(2), batch(1))
    assert park.deadline_ms == 1000
    stage.fetched("t", OTHER, 3)
    park.expire()
    assert answers(park.response) == [(40, 0, 1), (41, ErrorCode.REQUEST_TIMED_OUT, 3)]
    stage.fetched("t", OTHER, 4)  # too late, and harmless


def test_partitions_wait_for_each_other_and_fail_by_themselves(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.topic("t", 2, replicas=(ME, OTHER))
    for index in (0, 1):
        stage.partition("t", index).append(bytearray(batch()), acks=1, origin=Origin.CLIENT)
    sent = [frame(batch(2), 1, index=0), frame(batch(3), 2, index=1), frame(batch(1), 3, index=0)]
    run = hot.decode_produce_run(memoryview(bytearray(b"".join(sent))), 0, sum(map(len, sent)), 3, 13, 99)
    assert run is not None
    executed = handle_produce_run(run, Context(stage.services, Connection(1, "PLAINTEXT", "peer"), 0, VERSION, 1, ""))
    assert executed is not None
    count, park = executed
    assert count == 3
    assert isinstance(park, Park)
    stage.fetched("t", OTHER, 4, 0)
    assert not park.done
    park.expire()
    assert answers(park.response) == [(1, 0, 1), (2, ErrorCode.REQUEST_TIMED_OUT, 1), (3, 0, 3)]


def test_a_lost_leadership_ends_the_wait_and_names_the_leader(stage: Stage) -> None:
    park = start(stage, batch(2), batch(1))
    stage.fetched("t", OTHER, 3)
    stage.topic("t", leader=OTHER, epoch=1, replicas=(ME, OTHER))
    assert answers(park.response) == [(40, 0, 1), (41, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    data = bytes(park.response)
    second = data[4 + int.from_bytes(data[:4], "big") + 4 :]
    message = m.decode_response(0, VERSION, m.split_response(0, VERSION, second)[1])
    assert message.responses[0].partition_responses[0].current_leader.leader_id == OTHER
    assert [node.node_id for node in message.node_endpoints] == [OTHER]


def test_what_has_to_be_refused_is_left_to_the_general_way(stage: Stage) -> None:
    stage.topic("t", replicas=(ME, OTHER), isr=(ME,), min_insync_replicas="2")
    assert start(stage, batch()) is None
    stage.topic("t", leader=OTHER, epoch=1, replicas=(ME, OTHER))
    assert start(stage, batch()) is None
    assert start(stage, batch(), acks=1) is None
