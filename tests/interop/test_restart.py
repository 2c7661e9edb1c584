"""Every broker is killed and started again in the middle of a run: nothing acknowledged is lost, nothing is doubled."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition

from tests.support.clients import READ_COMMITTED, Client, Confluent, Message
from tests.support.copies import read_all
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 6


class Writer(threading.Thread):
    """Produces numbered records until it is stopped; records which were acknowledged, per partition and in order."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Producer

        self.topic = topic
        self.partitions = partitions
        self.stopping = threading.Event()
        self.sent = 0
        self.acknowledged: dict[int, list[int]] = {p: [] for p in range(partitions)}
        self.failed: list[str] = []
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120_000}
        )

    def run(self) -> None:
        while not self.stopping.is_set():
            number = self.sent
            self.producer.produce(
                self.topic, str(number).encode(), partition=number % self.partitions, on_delivery=self._report(number)
            )
            self.sent += 1
            self.producer.poll(0)
            if number % 50 == 0:
                time.sleep(0.01)
        assert self.producer.flush(120) == 0

    def _report(self, number: int):  # type: ignore[no-untyped-def]
        def done(error, message) -> None:  # type: ignore[no-untyped-def]
            if error is not None:
                self.failed.append(f"{number}: {error}")
            else:
                self.acknowledged[message.partition()].append(number)

        return done


def test_a_leader_moves_each_second(bootstrap: str, fresh: Callable[[str], str]) -> None:
    """Five requests in flight to each broker, and one of twelve leaders goes away from under them all the time."""
    topic, count = fresh("moving"), 12
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    orders = {index: [1, 2, 3] for index in range(count)}
    admin.create_topics({topic: {"assignments": orders}})

    def leaders() -> list[int]:
        (described,) = admin.describe_topics([topic])
        return [p["leader_id"] for p in sorted(described["partitions"], key=lambda p: int(p["partition_index"]))]

    eventually(leaders, "all have leaders", good=lambda found: len(found) == count and min(found) > 0)
    writer = Writer(bootstrap, topic, count)
    writer.start()
    moved = 0
    for index in (*range(count), 0, 5, 10):
        orders[index] = orders[index][1:] + orders[index][:1]
        admin.alter_partition_reassignments({TopicPartition(topic, index): orders[index]})
        before = leaders()
        admin.elect_leaders(0, {topic: [index]})
        time.sleep(1.0)
        moved += before != leaders()
    writer.stopping.set()
    writer.join(150)
    admin.close()
    assert not writer.is_alive()
    assert not writer.failed, writer.failed[:3]
    assert moved >= 8, "the leaders move"
    for partition in range(count):
        expected = list(range(partition, writer.sent, count))
        found = [int(value) for _, value in read_all(bootstrap, topic, partition)]
        assert found == expected, f"partition {partition}: lost, doubled or reordered"


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_every_broker_restarts_in_the_middle(own_fleet: Fleet, how: str) -> None:
    fleet = own_fleet.start()
    client: Client = Confluent()
    client.create_topic(fleet.bootstrap, "run", PARTITIONS)
    writer = Writer(fleet.bootstrap, "run")
    writer.start()
    for broker in fleet.brokers:
        before = writer.sent
        while writer.sent < before + 2000:
            time.sleep(0.05)
        if how == "kill":
            broker.kill()
        else:
            assert broker.stop() == 0, broker.output()
        time.sleep(1.0)
        broker.start()
        broker.wait_ready()
    writer.stopping.set()
    writer.join(150)
    assert not writer.is_alive()
    assert not writer.failed, writer.failed[:3]
    for partition in range(PARTITIONS):
        expected = list(range(partition, writer.sent, PARTITIONS))
        assert writer.acknowledged[partition] == expected
        found = [int(value) for _, value in read_all(fleet.bootstrap, "run", partition)]
        assert found == expected, f"partition {partition}: lost, doubled or reordered"


def test_transactions_and_groups_survive_the_coordinators_restart(own_fleet: Fleet) -> None:
    fleet = own_fleet.start()
    client: Client = Confluent()
    client.create_topic(fleet.bootstrap, "txn", PARTITIONS)
    producer = client.transactional(fleet.bootstrap, "survivor")
    for number, broker in enumerate(fleet.brokers):
        producer.begin()
        for partition in range(PARTITIONS):
            producer.send("txn", Message(b"%d" % number, partition=partition))
        producer.send_offsets({("txn", 0): number + 1}, "survivors")
        broker.kill()
        broker.start()
        broker.wait_ready()
        producer.commit()
        assert client.committed(fleet.bootstrap, "survivors", "txn") == number + 1
    producer.close()
    for partition in range(PARTITIONS):
        found = client.consume(fleet.bootstrap, "txn", 3, partition=partition, isolation=READ_COMMITTED)
        assert [m.value for m in found] == [b"0", b"1", b"2"]


class DeafEar:
    """A way to a broker on which answers get lost while ``lost`` is set."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lost = threading.Event()
        self.lost_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                near.close()
                continue
            threading.Thread(target=self._carry, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._carry, args=(far, near, True), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65_536):
                if answers and self.lost.is_set():
                    self.lost_bytes += len(data)
                else:
                    target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _batches(data: bytes) -> int:
    """How many batches there are before the zeros of the room ahead."""
    position = count = 0
    while data[position + 16 : position + 17] == b"\x02":
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        count += 1
    return count


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_five_requests_in_flight_whose_answers_are_lost_survive_a_restart(tmp_path: Path, how: str) -> None:
    """A batch is a request here. The broker has all of them; the client must get its answers from the next process."""
    from confluent_kafka import Producer

    fleet = Fleet(tmp_path, brokers=1)
    broker = fleet.brokers[0]
    ear = DeafEar(broker.port)
    advertised = f"advertised.listeners=PLAINTEXT://127.0.0.1:{ear.port}"
    answers: list[tuple[str, str, int]] = []
    try:
        broker.start(advertised)
        broker.wait_ready()
        bootstrap = f"127.0.0.1:{ear.port}"
        client: Client = Confluent()
        client.create_topic(bootstrap, "five")
        producer = Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 1,
                "reconnect.backoff.max.ms": 500,
            }
        )  # fmt: skip

        def report(error: object, message: object) -> None:
            answers.append((message.value().decode(), str(error or ""), message.offset()))  # type: ignore[attr-defined]

        producer.produce("five", b"0", partition=0, on_delivery=report)
        assert producer.flush(60) == 0
        log = broker.directory / "data" / "five-0" / f"{0:020d}.log"
        ear.lost.set()
        for number in range(1, 6):
            producer.produce("five", b"%d" % number, partition=0, on_delivery=report)
            deadline = time.monotonic() + 60
            while _batches(log.read_bytes()) <= number:
                assert time.monotonic() < deadline, f"batch {number} is not in the log"
                producer.poll(0.01)
        assert len(answers) == 1
        assert ear.lost_bytes
        if how == "kill":
            broker.kill()
        else:
            assert broker.stop() == 0, broker.output()
        ear.lost.clear()
        broker.start(advertised)
        broker.wait_ready()
        assert producer.flush(60) == 0
        assert answers == [(str(number), "", number) for number in range(6)]
        assert [value for _, value in read_all(bootstrap, "five")] == [b"%d" % number for number in range(6)]
    finally:
        ear.close()
        fleet.close()
