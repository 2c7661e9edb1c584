"""Produce requests of several connections that came in the same turn: one write for each log, and no other outcome."""

from __future__ import annotations

import itertools
import select
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from fleetlog._native.batch import scan
from fleetlog.brokers.api import produce
from fleetlog.brokers.log.disk.failures import DiskFailed
from fleetlog.brokers.log.disk.files import RealFile
from fleetlog.brokers.server import dispatch
from fleetlog.brokers.server.connection import BACKOFF_AFTER, MAX_CONNECTIONS, Connection
from fleetlog.wire.errors import ErrorCode
from tests.support.produce_runs import (
    KINDS,
    PLAIN,
    TRANSACTIONAL,
    VERSION,
    Broker,
    Producing,
    all_is_well,
    batch,
    decoded,
    frame,
    meanwhile,
    told,
)
from tests.support.stage import ME, OTHER


class Crowd:
    """A broker and some clients; what they send in a round is received in one turn of the loop."""

    def __init__(self, directory: Path, clients: int, *, batchable: bool = True, **config: str) -> None:
        self.broker = Broker(directory, **config)
        self.stage = self.broker.stage
        self.server = self.broker.server
        if not batchable:
            self.server.join_batch = lambda _: False
        self.clients = [self.broker.client, *(self.broker.connect() for _ in range(clients - 1))]
        self.as_if_each_had_sent_a_run()

    def as_if_each_had_sent_a_run(self) -> None:
        for connection in self.server.connections.values():
            connection.batchable = True

    def read(self, number: int) -> None:
        """The client's connection is readable."""
        self.broker.loop.callbacks[self.clients[number].fd, select.POLLIN][0]()

    def receive(self, requests: dict[int, bytes]) -> None:
        """Each client sends its requests, and they are received; the turn is not over."""
        for number, data in requests.items():
            self.clients[number].sock.sendall(data)
        for number in requests:
            self.read(number)

    def send(self, requests: dict[int, bytes]) -> None:
        """Each client sends its requests, then the loop has one turn for all of them."""
        self.receive(requests)
        self.broker.loop.run_soon()

    def told(self, number: int, count: int, version: int = VERSION) -> list[tuple[int, int, int]]:
        """Correlation id, error and base offset of so many answers for a client."""
        return told(decoded(bytes(self.clients[number].ask(b"", count)), version))

    def close(self) -> None:
        for client in self.clients[1:]:
            client.sock.close()
        self.broker.close()


def opened(directory: Path, clients: int, **config: str) -> Crowd:
    """A topic of two partitions that have been written to."""
    crowd = Crowd(directory, clients, **config)
    crowd.stage.topic("t", 2)
    for index in (0, 1):
        crowd.broker.ask(frame(batch(), 0, index=index), 1)
    crowd.as_if_each_had_sent_a_run()
    return crowd


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each write had."""
    found: list[int] = []
    write = RealFile.write_run

    def counted(self: RealFile, pieces: Any, position: int) -> None:
        found.append(len(pieces))
        write(self, pieces, position)

    monkeypatch.setattr(RealFile, "write_run", counted)
    return found


def test_what_several_connections_send_is_written_together(tmp_path: Path, writes: list[int]) -> None:
    crowd = opened(tmp_path, 3)
    writes.clear()
    crowd.send({n: b"".join(frame(batch(n + 1), 10 * n + i, index=i) for i in (0, 1)) for n in range(3)})
    assert writes == [3, 3]
    for n, base in enumerate((1, 2, 4)):
        assert crowd.told(n, 2) == [(10 * n, 0, base), (10 * n + 1, 0, base)]
    metrics = crowd.stage.services.metrics
    assert (metrics.request_seconds.labels("Produce").value, crowd.stage.counted.total("records_in")) == (8, 14)
    assert sum(metrics.request_seconds.labels("Produce").counts) == 8
    assert crowd.server.budget.used == 0
    crowd.close()


def test_more_connections_than_blocks_go_in_several_groups(tmp_path: Path, writes: list[int]) -> None:
    count = 2 * MAX_CONNECTIONS + 3
    crowd = opened(tmp_path, count)
    writes.clear()
    crowd.send({n: frame(batch(), n) for n in range(count)})
    assert writes == [MAX_CONNECTIONS, MAX_CONNECTIONS, 3]
    assert [crowd.told(n, 1) for n in range(count)] == [[(n, 0, n + 1)] for n in range(count)]
    crowd.close()


def test_what_has_not_come_whole_is_executed_when_it_has(tmp_path: Path, writes: list[int]) -> None:
    crowd = opened(tmp_path, 2)
    writes.clear()
    whole = frame(batch(value=b"x" * 300), 1)
    crowd.send({0: whole + whole[:100], 1: frame(batch(), 2)})
    assert writes == [2]
    crowd.send({0: whole[100:], 1: frame(batch(), 3)})
    assert writes == [2, 2]
    assert crowd.told(0, 2) == [(1, 0, 1), (1, 0, 3)]
    assert crowd.told(1, 2) == [(2, 0, 2), (3, 0, 4)]
    crowd.close()


def test_what_has_a_codec_is_executed_by_itself(tmp_path: Path, writes: list[int]) -> None:
    crowd = opened(tmp_path, 3)
    gzip = Producing(VERSION).request("gzip", 5)
    writes.clear()
    crowd.send({0: frame(batch(), 1), 1: gzip, 2: frame(batch(), 2)})
    assert writes == [2, 1]
    assert [crowd.told(n, 1)[0] for n in range(3)] == [(1, 0, 1), (5, 0, 3), (2, 0, 2)]
    crowd.close()


def test_requests_that_are_not_alike_are_appended_one_after_the_other(tmp_path: Path, writes: list[int]) -> None:
    crowd = opened(tmp_path, 3)
    writes.clear()
    crowd.send({0: frame(batch(), 1), 1: frame(batch(), 2, acks=1), 2: frame(batch(), 3)})
    assert writes == [2, 1]
    assert [crowd.told(n, 1)[0] for n in range(3)] == [(1, 0, 1), (2, 0, 3), (3, 0, 2)]
    crowd.close()


def test_large_requests_do_not_wait(tmp_path: Path, writes: list[int]) -> None:
    crowd = opened(tmp_path, 2)
    large = frame(batch(value=b"x" * 70_000), 1)
    crowd.send({0: large, 1: large})  # also those that sent small ones before
    crowd.told(0, 1)
    crowd.told(1, 1)
    writes.clear()
    crowd.send({0: large, 1: large})
    assert writes == [1, 1]
    assert [crowd.told(n, 1)[0][1] for n in (0, 1)] == [0, 0]
    crowd.close()


def test_a_connection_that_is_always_alone_seldom_waits(tmp_path: Path) -> None:
    crowd = opened(tmp_path, 2)
    waits: list[bool] = []
    join_batch = crowd.server.join_batch

    def noted(connection: Any) -> bool:
        waits.append(join_batch(connection))
        return waits[-1]

    crowd.server.join_batch = noted
    for n in range(10 * BACKOFF_AFTER):
        crowd.send({0: frame(batch(), n)})
        crowd.told(0, 1)
    assert all(waits[: BACKOFF_AFTER - 2]), "two turns went to the topic's first batches"
    assert sum(waits[BACKOFF_AFTER:]) <= len(waits) // BACKOFF_AFTER
    waits.clear()
    for n in range(4 * BACKOFF_AFTER):
        crowd.send({0: frame(batch(), n), 1: frame(batch(), n)})
        crowd.told(0, 1)
        crowd.told(1, 1)
    assert all(waits[-2 * BACKOFF_AFTER :]), "they met"
    crowd.close()


def test_a_connection_that_is_closed_meanwhile_is_left_out(tmp_path: Path, writes: list[int]) -> None:
    crowd = opened(tmp_path, 3)
    writes.clear()
    first = next(iter(crowd.server.connections.values()))
    crowd.receive({n: frame(batch(), n) for n in range(3)})
    first.close("for the test")
    crowd.broker.loop.run_soon()
    assert writes == [2]
    assert [crowd.told(n, 1) for n in (1, 2)] == [[(1, 0, 1)], [(2, 0, 2)]]
    crowd.close()


def test_a_fault_of_ours_closes_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = opened(tmp_path, 2)

    def wrong(*_: Any, **__: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(produce, "_append_together", wrong)
    crowd.send({0: frame(batch(), 1), 1: frame(batch(), 2)})
    assert not crowd.server.connections
    assert "on purpose" in caplog.text
    assert crowd.server.budget.used == 0
    crowd.close()


def test_each_waits_for_its_own_last_batch(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, 2)
    crowd.stage.topic("t", 2, replicas=(ME, OTHER))
    for index in (0, 1):
        crowd.stage.append("t", index=index)
        crowd.stage.fetched("t", OTHER, 1, index)
    crowd.send({0: frame(batch(2), 1), 1: frame(batch(3), 2)})
    assert crowd.stage.partition("t").log.log_end_offset == 6
    crowd.stage.fetched("t", OTHER, 3)
    assert crowd.told(0, 1) == [(1, 0, 1)]
    second = list(crowd.server.connections.values())[1]
    assert not second.unsent
    assert not second.idle
    crowd.stage.fetched("t", OTHER, 6)
    assert crowd.told(1, 1) == [(2, 0, 3)]
    crowd.close()


CLIENTS = 3


def _rounds(often: list[str]) -> st.SearchStrategy[list[list[tuple[int, str]]]]:
    """Rounds of (client, kind): mostly what may be executed together, now and then whatever there is."""
    kinds = st.one_of(*[st.sampled_from(often)] * 9, KINDS)
    sent = st.tuples(st.integers(0, CLIENTS - 1), kinds)
    return st.lists(st.lists(sent, min_size=3, max_size=9), min_size=3, max_size=8)


ROUNDS = _rounds(PLAIN) | _rounds(["plain", "other", "next", "next other"]) | _rounds(["txn", "txn other"])
BETWEEN = ("commit", "abort", "restart", "later")


class Own(Producing):
    """A client with producers of its own: what becomes of its requests does not depend on the others' turns."""

    def __init__(self, version: int, number: int) -> None:
        super().__init__(version)
        self.number = number

    def of(self, producer_id: int, index: int = 0, **fields: Any) -> bytes:
        return super().of(producer_id + 10 * self.number, index, **fields)


@given(ROUNDS, st.sampled_from([9, 11, 12]), st.sampled_from(["700", "100000"]))
def test_the_outcome_is_that_of_one_connection_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[int, str]]], version: int, segment: str
) -> None:
    ends: list[Any] = []
    together: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(produce, "_append_together", _noting(together))
        for batchable in (True, False):
            directory = tmp_path_factory.mktemp("batching")
            crowd = Crowd(directory, CLIENTS, batchable=batchable, **{"producer.id.expiration.ms": "1000"})
            crowd.stage.verify_by(all_is_well)
            crowd.stage.topic("t", 2, topic_id=uuid.UUID(int=7), segment_bytes=segment, max_message_bytes="800")
            for index in (0, 1):
                crowd.stage.append("t", index=index)
            ends.append(_outcome(crowd, rounds, version))
            crowd.close()
    event(f"{len(together)} times together")
    assert ends[0] == ends[1]


def _noting(together: list[int]) -> Any:
    append = produce._append_together

    def noted(works: Any) -> None:
        together.append(len(works))
        append(works)

    return noted


def _outcome(crowd: Crowd, rounds: list[list[tuple[int, str]]], version: int) -> list[Any]:
    """Errors of each client in order, and what is in the logs, in whatever order clients took turns."""
    clients = [Own(version, number) for number in range(CLIENTS)]
    found: list[Any] = []
    bases: dict[tuple[int, int], list[int]] = {}
    for sent in rounds:
        requests: dict[int, list[tuple[str, bytes]]] = {}
        for client, kind in sent:
            if kind not in BETWEEN:
                own = requests.setdefault(client, [])
                own.append((kind, clients[client].request(kind, len(own))))
        if requests:
            crowd.send({client: b"".join(data for _, data in own) for client, own in requests.items()})
        for client, own in sorted(requests.items()):
            answers = crowd.told(client, len(own), version)
            assert [number for number, _, _ in answers] == list(range(len(own)))
            found.append([error for _, error, _ in answers])
            for (kind, _), (_, error, base) in zip(own, answers, strict=True):
                if not error and kind in (*PLAIN, "second"):  # none of these can be a duplicate
                    bases.setdefault((client, "other" in kind), []).append(base)
        for kind in (kind for _, kind in sent if kind in BETWEEN):
            _after(crowd, kind)
    assert all(sorted(set(told)) == told for told in bases.values()), "a client's batches are in its order"
    logs = [crowd.stage.partition("t", index).log for index in (0, 1)]
    for log in logs:
        read = log.reader.read(0, 1 << 20, end_offset=log.log_end_offset)
        batches = [entry for part in read.slices for _, entry in scan(part.read())]
        read.release()
        found.append(sorted((one.producer_id, one.base_sequence, one.record_count, one.size) for one in batches))
        found.append(sorted((key, e.epoch, e.last_sequence) for key, e in log.producers.entries.items()))
        found.append((log.log_end_offset, log.high_watermark, sorted(log.producers.open)))
    return [*found, crowd.stage.counted.total("records_in"), crowd.stage.counted.total("bytes_in")]


def _after(crowd: Crowd, kind: str) -> None:
    """What happens to partitions between the requests."""
    crowd.stage.clock.now_ms += 700 * (kind == "later")
    if kind not in ("commit", "abort"):
        meanwhile(crowd.broker, kind)
        return
    for index, client in itertools.product((0, 1), range(CLIENTS)):
        producer = TRANSACTIONAL + 10 * client
        if crowd.stage.partition("t", index).log.producers.has_open_transaction(producer):
            crowd.stage.marker("t", producer, commit=kind == "commit", index=index)


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_a_connection_that_fails_costs_no_other_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = opened(tmp_path, 3)
    first, *others = crowd.server.connections.values()
    pump = Connection.pump

    def failing(self: Connection) -> None:
        if self is first and not self.awaits_batch:
            raise RuntimeError("on purpose")
        pump(self)

    monkeypatch.setattr(Connection, "pump", failing)
    crowd.send({n: frame(batch(), n) for n in range(3)})
    assert first.closed
    assert "on purpose" in caplog.text
    assert not any(connection.awaits_batch for connection in others)
    assert [crowd.told(n, 1) for n in (1, 2)] == [[(1, 0, 2)], [(2, 0, 3)]]
    crowd.close()


def test_no_connection_waits_for_ever_when_batching_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = opened(tmp_path, 3)

    def wrong(*_: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(dispatch.Dispatcher, "_execute_runs", wrong)
    crowd.send({n: frame(batch(), n) for n in range(3)})
    assert not crowd.server.connections
    assert "on purpose" in caplog.text
    assert crowd.stage.partition("t").log.log_end_offset == 1
    crowd.close()


def test_an_answer_that_cannot_be_given_is_not_executed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = opened(tmp_path, 3)
    connections = list(crowd.server.connections.values())
    deliver = Connection.deliver

    def failing(self: Connection, key: int, chunks: Any) -> None:
        if self is connections[0]:
            raise RuntimeError("on purpose")
        deliver(self, key, chunks)

    monkeypatch.setattr(Connection, "deliver", failing)
    crowd.send({n: frame(batch(), n) for n in range(3)})
    assert [connection.closed for connection in connections] == [True, False, False]
    assert [crowd.told(n, 1) for n in (1, 2)] == [[(1, 0, 2)], [(2, 0, 3)]]
    assert crowd.stage.partition("t").log.log_end_offset == 4
    crowd.close()


def test_a_connection_that_is_readable_twice_in_a_turn_is_read_later(tmp_path: Path, writes: list[int]) -> None:
    crowd = opened(tmp_path, 2)
    writes.clear()
    crowd.receive({0: frame(batch(), 1), 1: frame(batch(), 2)})
    crowd.receive({0: frame(batch(), 3)})
    crowd.broker.loop.run_soon()
    assert writes == [2]
    assert crowd.told(0, 2) == [(1, 0, 1), (3, 0, 3)]
    crowd.close()


def test_what_came_before_the_end_of_a_connection_is_executed(tmp_path: Path) -> None:
    crowd = opened(tmp_path, 2)
    crowd.receive({0: frame(batch(), 1)})
    crowd.clients[0].sock.shutdown(socket.SHUT_WR)
    crowd.read(0)
    crowd.broker.loop.run_soon()
    assert crowd.stage.partition("t").log.log_end_offset == 2
    crowd.close()


@pytest.mark.parametrize("connections", [1, 2])
def test_a_failed_disk_refuses_all_partitions_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connections: int
) -> None:
    crowd = opened(tmp_path, 2)
    write = RealFile.write_run

    def failing(self: RealFile, pieces: Any, position: int) -> None:
        if "t-0" in self.path:
            raise DiskFailed(self.path, "on purpose")
        write(self, pieces, position)

    monkeypatch.setattr(RealFile, "write_run", failing)
    sent = [frame(batch(), 1, index=0), frame(batch(), 2, index=1)]
    if connections == 1:
        crowd.send({0: b"".join(sent)})
        found = crowd.told(0, 2)
    else:
        crowd.send(dict(enumerate(sent)))
        found = [crowd.told(n, 1)[0] for n in (0, 1)]
    assert [error for _, error, _ in found] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert crowd.stage.partition("t", 1).log.log_end_offset == 1
    crowd.close()


def test_a_connection_that_sends_large_requests_in_parts_no_longer_waits(tmp_path: Path) -> None:
    crowd = opened(tmp_path, 2)
    large = frame(batch(value=b"x" * 900_000), 1)
    crowd.send({0: large[:1000]})
    crowd.clients[0].ask(large[1000:], 1)
    first = next(iter(crowd.server.connections.values()))
    assert not first.batchable
    crowd.close()
