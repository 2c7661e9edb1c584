"""Client quotas on two brokers: what is over one is answered at once, and its connection is muted (KIP-219).

Windows are short: a client may use one second's worth at once. Amounts are compared with the time in which they passed,
upwards only; nothing fails because a machine is slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.request import urlopen

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch
from fleetlog.wire.errors import ErrorCode
from tests.support.fleet import Broker, Fleet
from tests.support.harness import Client
from tests.support.quotas import alter, remove_all
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.interop, pytest.mark.slow]

EFFECT_S = 1.0
"""A bound for the quickest of equal changes: any one of them may come while the machine stands still."""
KB = 1000
SILENCE_S = 0.5
BURST_S = 2.0
"""What the windows may hold beyond the rate, and one more for the first of them."""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings = {"quota.window.num": 2, "controller.quota.window.num": 2, "auto.create.topics.enable": "false"}
    found = Fleet(tmp_path_factory.mktemp("quotas"), brokers=2, **settings)
    try:
        yield found.start()
    finally:
        found.close()


@pytest.fixture(autouse=True)
def no_quotas_are_left(fleet: Fleet) -> Iterator[None]:
    yield
    remove_all(fleet.brokers[0])


@pytest.fixture
def slow_id() -> str:
    """A client id of its own: what another test used is not counted for it."""
    return f"slow-{next(_numbers)}"


@pytest.fixture
def topic(fleet: Fleet) -> str:
    """Partition 0 is led by broker 1, partition 1 by broker 2; each has one replica."""
    name, client = f"t-{next(_numbers)}", admin(fleet)
    (future,) = client.create_topics([NewTopic(name, 2, replica_assignment=[[1], [2]])]).values()
    future.result(20)
    for partition, broker in enumerate(fleet.brokers):
        wait_led(broker, name, partition)
    return name


def admin(fleet: Fleet, **settings: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": fleet.bootstrap, **settings})


def limit(fleet: Fleet, client_id: str, **values: float | None) -> None:
    limit_at(fleet.brokers[0], client_id, **values)


def limit_at(broker: Broker, client_id: str, **values: float | None) -> None:
    """That broker has read the change when it answers; others follow."""
    assert alter(broker, ((("client-id", client_id),), values)) == [ErrorCode.NONE]


def wait_led(broker: Broker, topic: str, partition: int = 0) -> None:
    prober = Wire(broker, "prober")
    eventually(partial(prober.led, topic, partition), f"broker {broker.id} leads partition {partition}")


def throttled_ms(broker: Broker, client: str) -> float:
    page = urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=30).read().decode()
    found = re.search(rf'^fleetlog_client_throttle_ms_total{{client="{client}"}} (\S+)$', page, re.MULTILINE)
    return float(found[1]) if found else 0.0


class Wire(Client):
    """One connection with a client id of its own."""

    def __init__(self, broker: Broker, client_id: str) -> None:
        super().__init__(broker.port)
        self.client_id = client_id

    def send(self, message: Any, version: int, correlation_id: int) -> None:
        self.sent[correlation_id] = (message.API_KEY, version)
        self.raw(m.encode_request(message.API_KEY, version, correlation_id, self.client_id, message))

    def produce(self, topic: str, partition: int, size: int, *, correlation_id: int = 1, acks: int = 1) -> None:
        data = m.request_class(0).TopicProduceData
        part = data.PartitionProduceData(
            version=9, index=partition, records=bytes(encode_batch([Record(-1, 1, None, bytes(size))]))
        )
        row = data(version=9, name=topic, partition_data=[part])
        request = m.request_class(0)(version=9, transactional_id=None, acks=acks, timeout_ms=9_000, topic_data=[row])
        self.send(request, 9, correlation_id)

    def produced(self, topic: str, partition: int, size: int) -> int:
        """The throttle time of the answer."""
        self.produce(topic, partition, size)
        _, answer = self.receive()
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        return int(answer.throttle_time_ms)

    def led(self, topic: str, partition: int) -> bool:
        """Whether the broker answers as the leader."""
        return bool(self.fetch(topic, partition).responses[0].partitions[0].error_code == ErrorCode.NONE)

    def fetch(self, topic: str, partition: int, offset: int = 0, **fields: Any) -> Any:
        kind = m.request_class(1)
        part = kind.FetchTopic.FetchPartition(
            version=12, partition=partition, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
            log_start_offset=-1, partition_max_bytes=1 << 20,
        )  # fmt: skip
        wanted = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 24, "session_id": 0, "session_epoch": -1}
        topics = [kind.FetchTopic(version=12, topic=topic, partitions=[part])]
        request = kind(
            version=12, isolation_level=0, rack_id="", forgotten_topics_data=[], topics=topics, **wanted | fields
        )  # fmt: skip
        return self.ask(request, 12)

    def versions(self, correlation_id: int = 9) -> None:
        kind = m.request_class(18)
        self.send(kind(version=3, client_software_name="t", client_software_version="1"), 3, correlation_id)

    def silent(self) -> bool:
        self.sock.settimeout(SILENCE_S)
        try:
            return not self.sock.recv(1)
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(20)


def records_of(answer: Any) -> int:
    return sum(len(part.records or b"") for row in answer.responses for part in row.partitions)


# ---------------------------------------------------------------- one connection


def test_a_producer_over_its_rate_is_answered_and_muted_others_are_not(fleet: Fleet, topic: str, slow_id: str) -> None:
    limit(fleet, slow_id, producer_byte_rate=1 * KB)
    slow, other = Wire(fleet.brokers[0], slow_id), Wire(fleet.brokers[0], "other")
    told_ms = slow.produced(topic, 0, 60 * KB)
    assert 55_000 < told_ms < 65_000, "60 KB take 60 s"
    slow.versions()
    assert slow.silent(), "what it sends is not read"
    assert other.produced(topic, 0, 60 * KB) == 0
    assert throttled_ms(fleet.brokers[0], f"ANONYMOUS/{slow_id}") >= told_ms - 1_000
    assert throttled_ms(fleet.brokers[0], "ANONYMOUS/other") == 0
    limit(fleet, slow_id, producer_byte_rate=None)
    assert slow.receive()[0] == 9, "without the quota the connection goes on"


def test_without_an_answer_the_connection_is_muted_nevertheless(fleet: Fleet, topic: str, slow_id: str) -> None:
    limit(fleet, slow_id, producer_byte_rate=1 * KB)
    slow = Wire(fleet.brokers[0], slow_id)
    slow.produce(topic, 0, 60 * KB, acks=0)
    slow.versions()
    assert slow.silent()


def test_connections_of_one_client_share_its_quota(fleet: Fleet, topic: str, slow_id: str) -> None:
    limit(fleet, slow_id, producer_byte_rate=10 * KB)
    assert Wire(fleet.brokers[0], slow_id).produced(topic, 0, 8 * KB) == 0
    assert Wire(fleet.brokers[0], slow_id).produced(topic, 0, 30 * KB) > 1_000
    assert Wire(fleet.brokers[1], slow_id).produced(topic, 1, 8 * KB) == 0, "quotas hold at each broker by itself"


def test_a_fetch_over_the_rate_is_answered_with_nothing(fleet: Fleet, topic: str, slow_id: str) -> None:
    feeder = Wire(fleet.brokers[0], "feeder")
    for _ in range(8):
        feeder.produced(topic, 0, 20 * KB)
    limit(fleet, slow_id, consumer_byte_rate=50 * KB)
    first = Wire(fleet.brokers[0], slow_id)
    answer = first.fetch(topic, 0)
    assert (answer.error_code, answer.throttle_time_ms) == (ErrorCode.NONE, 0)
    assert 20 * KB < records_of(answer) <= 50 * KB, "cut to what the windows may hold"
    answer = Wire(fleet.brokers[0], slow_id).fetch(topic, 0, session_epoch=0)
    assert answer.error_code == ErrorCode.NONE
    assert answer.throttle_time_ms > 0
    assert (records_of(answer), answer.session_id) == (0, 0), "no session begins"


def test_a_session_loses_nothing_by_an_empty_answer(fleet: Fleet, topic: str, slow_id: str) -> None:
    feeder = Wire(fleet.brokers[0], "feeder")
    feeder.produced(topic, 0, 20 * KB)
    slow = Wire(fleet.brokers[0], slow_id)
    opened = slow.fetch(topic, 0, session_epoch=0)
    session = opened.session_id
    assert session
    assert records_of(opened) > 0
    feeder.produced(topic, 0, 30 * KB)
    limit(fleet, slow_id, consumer_byte_rate=25 * KB)
    assert records_of(Wire(fleet.brokers[0], slow_id).fetch(topic, 0)) > 0, (
        "another connection uses what the client may have"
    )
    answer = slow.fetch(topic, 0, offset=1, session_id=session, session_epoch=1)
    assert (answer.error_code, answer.session_id, records_of(answer)) == (ErrorCode.NONE, session, 0)
    assert answer.throttle_time_ms > 0
    limit(fleet, slow_id, consumer_byte_rate=None)
    answer = slow.fetch(topic, 0, offset=1, session_id=session, session_epoch=2)
    assert records_of(answer) > 25 * KB


def test_a_batch_larger_than_all_windows_hold_is_fetched(fleet: Fleet, topic: str, slow_id: str) -> None:
    Wire(fleet.brokers[0], "feeder").produced(topic, 0, 60 * KB)
    limit(fleet, slow_id, consumer_byte_rate=1 * KB)
    answer = Wire(fleet.brokers[0], slow_id).fetch(topic, 0)
    assert records_of(answer) > 50 * KB
    assert answer.throttle_time_ms > 30_000


def test_request_percentage(fleet: Fleet, slow_id: str) -> None:
    limit(fleet, slow_id, request_percentage=0.01)
    slow, times = Wire(fleet.brokers[0], slow_id), []
    for _ in range(5):
        slow.versions()
        times.append(slow.receive()[1].throttle_time_ms)
    assert 0 < max(times) <= 1_000, "one window at most"


# ---------------------------------------------------------------- quotas that change, leaders that move


def test_a_quota_that_changes_takes_effect_on_both_brokers(fleet: Fleet, topic: str, slow_id: str) -> None:
    took = []
    for number in range(3):
        client_id = f"{slow_id}-{number}"
        limit(fleet, client_id, producer_byte_rate=10_000 * KB)
        wires = [Wire(broker, client_id) for broker in fleet.brokers]
        for partition, wire in enumerate(wires):
            assert wire.produced(topic, partition, 10 * KB) == 0
        limit(fleet, client_id, producer_byte_rate=5 * KB)
        began = time.monotonic()
        for partition, wire in enumerate(wires):
            produced = partial(wire.produced, topic, partition, 10 * KB)
            eventually(produced, f"broker {partition + 1} limits the client")
        took.append(time.monotonic() - began)
    assert min(took) < EFFECT_S


def test_a_muted_connection_outlives_a_change_of_leader(fleet: Fleet, slow_id: str) -> None:
    first, second = fleet.brokers
    name, client = f"t-{next(_numbers)}", admin(fleet)
    client.create_topics([NewTopic(name, 1, replica_assignment=[[1, 2]])])[name].result(20)
    wait_led(first, name)
    limit(fleet, slow_id, producer_byte_rate=1 * KB)
    slow = Wire(first, slow_id)
    assert slow.produced(name, 0, 60 * KB) > 50_000
    slow.produce(name, 0, 1 * KB, correlation_id=5)
    moved = kafka_move(fleet, name, [2, 1])
    eventually(moved, "broker 2 leads", good=lambda leader: leader == 2)
    assert slow.silent(), "muted as before, and open"
    limit(fleet, slow_id, producer_byte_rate=None)
    number, answer = slow.receive()
    assert number == 5
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    wait_led(second, name)
    assert Wire(second, "other").produced(name, 0, 1 * KB) == 0


def controller_of(fleet: Fleet) -> Broker:
    found = eventually(lambda: admin(fleet).list_topics(timeout=10).controller_id, "a controller", good=(0).__lt__)
    return fleet.brokers[found - 1]


def kafka_move(fleet: Fleet, topic: str, replicas: list[int]) -> Callable[[], int]:
    """Give the partition another order of replicas, and elect the first; returns what tells the leader."""
    wire = Wire(controller_of(fleet), "mover")
    kind = m.request_class(45)
    part = kind.ReassignableTopic.ReassignablePartition(version=0, partition_index=0, replicas=replicas)
    rows = [kind.ReassignableTopic(version=0, name=topic, partitions=[part])]
    answer = wire.ask(kind(version=0, timeout_ms=9_000, topics=rows), 0)
    assert answer.error_code == ErrorCode.NONE
    elect = m.request_class(43)
    named = elect.TopicPartitions(version=2, topic=topic, partitions=[0])

    def leader() -> int:
        wire.ask(elect(version=2, election_type=0, topic_partitions=[named], timeout_ms=9_000), 2)
        return int(admin(fleet).list_topics(topic, timeout=10).topics[topic].partitions[0].leader)

    return leader


def test_replication_is_exempt(fleet: Fleet) -> None:
    """Brokers have client ids, too: without a login nothing but what they ask tells them from others."""
    name, client = f"t-{next(_numbers)}", admin(fleet)
    client.create_topics([NewTopic(name, 1, replica_assignment=[[1, 2]])])[name].result(20)
    wait_led(fleet.brokers[0], name)
    everyone = (("user", None), ("client-id", None))
    limits = {"consumer_byte_rate": 1.0, "producer_byte_rate": 1000.0 * KB, "request_percentage": 0.001}
    assert alter(fleet.brokers[0], (everyone, limits)) == [ErrorCode.NONE]
    wire = Wire(fleet.brokers[0], f"feeder-{name}")
    for number in range(5):
        wire.produce(name, 0, 50 * KB, acks=-1, correlation_id=number)
        _, answer = wire.receive()
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE, "the follower has it"
    for number in (1, 2):
        for broker in fleet.brokers:
            assert throttled_ms(broker, f"ANONYMOUS/replica-{number}") == 0


def test_what_brokers_ask_of_each_other_is_exempt(fleet: Fleet, topic: str, slow_id: str) -> None:
    """Without a login, and by the listener of all; a consumer's request of the same kind is measured."""
    limit(fleet, slow_id, request_percentage=0.001)
    broker = fleet.brokers[0]
    wire = Wire(broker, slow_id)
    markers, ends = m.request_class(27), m.request_class(23)
    asked = ends.OffsetForLeaderTopic
    rows = [
        asked(
            topic=topic,
            partitions=[asked.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)],
        )
    ]
    for _ in range(5):
        assert wire.ask(markers(version=1, markers=[]), 1).markers == []
        answer = wire.ask(ends(version=4, replica_id=2, topics=rows), 4)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert throttled_ms(broker, f"ANONYMOUS/{slow_id}") == 0
    for _ in range(5):
        wire.ask(ends(version=4, replica_id=-1, topics=rows), 4)
    assert throttled_ms(broker, f"ANONYMOUS/{slow_id}") > 0


def test_a_broker_with_muted_connections_stops(tmp_path_factory: pytest.TempPathFactory, slow_id: str) -> None:
    alone = Fleet(tmp_path_factory.mktemp("alone"), brokers=1, **{"quota.window.num": 2})
    try:
        alone.start()
        client = admin(alone)
        client.create_topics([NewTopic("t", 1, 1)])["t"].result(20)
        limit(alone, slow_id, producer_byte_rate=1 * KB)
        slow = Wire(alone.brokers[0], slow_id)
        assert slow.produced("t", 0, 60 * KB) > 50_000
        assert alone.brokers[0].stop(10) == 0
        assert slow.closed()
    finally:
        alone.close()


# ---------------------------------------------------------------- partitions created and deleted


def test_controller_mutations(fleet: Fleet, slow_id: str) -> None:
    broker = controller_of(fleet)
    limit_at(broker, slow_id, controller_mutation_rate=1)
    name = f"t-{next(_numbers)}"

    def create(version: int, *topics: str, partitions: int = 1, validate_only: bool = False) -> Any:
        kind = m.request_class(19)
        rows = [
            kind.CreatableTopic(
                version=version, name=one, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
            )
            for one in topics
        ]
        wire = Wire(broker, slow_id)
        request = kind(version=version, topics=rows, timeout_ms=9_000, validate_only=validate_only)
        with contextlib.closing(wire):
            answer = wire.ask(request, version)
        return answer.throttle_time_ms, {row.name: row.error_code for row in answer.topics}

    over, none = ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.NONE
    assert create(6, f"{name}-v", partitions=500, validate_only=True) == (0, {f"{name}-v": none})
    assert create(6, f"{name}-a", partitions=100) == (0, {f"{name}-a": none}), "one request may overdraw"
    told_ms, codes = create(6, f"{name}-b", f"{name}-c")
    assert codes == {f"{name}-b": over, f"{name}-c": over}
    assert 80_000 < told_ms < 100_000
    told_ms, codes = create(5, f"{name}-b")
    assert codes == {f"{name}-b": none}, "an older version does not know the error"
    assert told_ms > 80_000
    deletion = m.request_class(20)
    rows = [deletion.DeleteTopicState(version=6, name=f"{name}-a", topic_id=None)]
    answer = Wire(broker, slow_id).ask(deletion(version=6, topics=rows, timeout_ms=9_000), 6)
    assert [row.error_code for row in answer.responses] == [over]
    more = m.request_class(37)
    rows = [more.CreatePartitionsTopic(version=3, name=f"{name}-a", count=101, assignments=None)]
    answer = Wire(broker, slow_id).ask(more(version=3, topics=rows, timeout_ms=9_000, validate_only=False), 3)
    assert [row.error_code for row in answer.results] == [over]
    eventually(
        lambda: set(admin(fleet).list_topics(timeout=10).topics), "both are listed",
        good={f"{name}-a", f"{name}-b"}.issubset,
    )  # fmt: skip
    limit_at(broker, slow_id, controller_mutation_rate=None)
    assert create(6, f"{name}-c") == (0, {f"{name}-c": none})


# ---------------------------------------------------------------- clients


RATE = 200 * KB
WORK_S = 12.0
MESSAGE = b"x" * (10 * KB)


def heard(name: str) -> list[str]:
    """What that logger says from now on."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(name)
    logger.disabled = False  # other tests of the process may have silenced the client
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    return lines


def by_librdkafka(fleet: Fleet, topic: str, slow_id: str, until_s: float) -> tuple[int, bool]:
    told: list[Any] = []
    acknowledged = itertools.count()
    producer = Producer({
        "bootstrap.servers": fleet.bootstrap, "client.id": slow_id, "throttle_cb": told.append, "linger.ms": 0,
        "batch.size": 20 * KB, "queue.buffering.max.kbytes": 2_000, "compression.type": "none",
    })  # fmt: skip
    while time.monotonic() < until_s:
        try:
            producer.produce(topic, MESSAGE, partition=0, on_delivery=lambda *_: next(acknowledged))
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    producer.purge()
    return next(acknowledged) * len(MESSAGE), any(one.throttle_time > 0 for one in told)


def by_kafka_python(fleet: Fleet, topic: str, slow_id: str, until_s: float) -> tuple[int, bool]:
    warnings = heard("kafka.net.connection")
    producer = KafkaProducer(bootstrap_servers=fleet.bootstrap, client_id=slow_id, batch_size=20 * KB)
    sent = [producer.send(topic, MESSAGE, partition=0)]
    while time.monotonic() < until_s:
        if sum(not one.is_done for one in sent) < 40:
            sent.append(producer.send(topic, MESSAGE, partition=0))
        else:
            time.sleep(0.02)
    done = sum(one.succeeded() for one in sent)
    limit(fleet, slow_id, producer_byte_rate=None)
    producer.close(timeout=30)
    return done * len(MESSAGE), any("ProduceResponse throttled" in line for line in warnings)


def by_aiokafka(fleet: Fleet, topic: str, slow_id: str, until_s: float) -> tuple[int, bool]:
    async def run() -> int:
        producer = AIOKafkaProducer(bootstrap_servers=fleet.bootstrap, client_id=slow_id, max_batch_size=20 * KB)
        await producer.start()
        done = 0
        while time.monotonic() < until_s:
            try:
                async with asyncio.timeout(max(0.1, until_s - time.monotonic())):
                    await producer.send_and_wait(topic, MESSAGE, partition=0)
                    done += 1
            except TimeoutError:
                break
        producer._sender.sender_task.cancel()
        return done

    return asyncio.run(run()) * len(MESSAGE), True


@pytest.mark.parametrize("work", [by_librdkafka, by_kafka_python, by_aiokafka])
def test_producers_stay_at_the_rate_and_are_told(fleet: Fleet, topic: str, work: Any, slow_id: str) -> None:
    limit(fleet, slow_id, producer_byte_rate=RATE)
    begun_s = time.monotonic()
    size, told = work(fleet, topic, slow_id, begun_s + WORK_S)
    spent_s = time.monotonic() - begun_s
    assert 0 < size <= RATE * (spent_s + BURST_S) + 500 * KB
    assert told
    assert throttled_ms(fleet.brokers[0], f"ANONYMOUS/{slow_id}") > 0


def read_by_librdkafka(fleet: Fleet, topic: str, slow_id: str, until_s: float) -> tuple[int, bool]:
    told: list[Any] = []
    consumer = Consumer({
        "bootstrap.servers": fleet.bootstrap, "client.id": slow_id, "group.id": slow_id, "throttle_cb": told.append,
        "fetch.message.max.bytes": 20 * KB,
    })  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    size = 0
    while time.monotonic() < until_s:
        message = consumer.poll(0.1)
        size += 0 if message is None or message.error() else len(message.value())
    consumer.close()
    return size, any(one.throttle_time > 0 for one in told)


def read_by_kafka_python(fleet: Fleet, topic: str, slow_id: str, until_s: float) -> tuple[int, bool]:
    warnings = heard("kafka.net.connection")
    consumer = KafkaConsumer(bootstrap_servers=fleet.bootstrap, client_id=slow_id, max_partition_fetch_bytes=20 * KB)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    size = 0
    while time.monotonic() < until_s:
        size += sum(len(one.value) for rows in consumer.poll(100).values() for one in rows)
    consumer.close()
    return size, any("FetchResponse throttled" in line for line in warnings)


def read_by_aiokafka(fleet: Fleet, topic: str, slow_id: str, until_s: float) -> tuple[int, bool]:
    async def run() -> int:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=fleet.bootstrap, client_id=slow_id, max_partition_fetch_bytes=20 * KB
        )
        await consumer.start()
        partition, size = TopicPartition(topic, 0), 0
        consumer.assign([partition])
        consumer.seek(partition, 0)
        while time.monotonic() < until_s:
            found = await consumer.getmany(timeout_ms=100)
            size += sum(len(one.value) for rows in found.values() for one in rows)
        await consumer.stop()
        return size

    return asyncio.run(run()), True


@pytest.mark.parametrize("read", [read_by_librdkafka, read_by_kafka_python, read_by_aiokafka])
def test_consumers_stay_at_the_rate_and_are_told(fleet: Fleet, topic: str, slow_id: str, read: Any) -> None:
    feeder = Wire(fleet.brokers[0], "feeder")
    for _ in range(400):  # more than may be read in the time
        feeder.produced(topic, 0, 10 * KB)
    limit(fleet, slow_id, consumer_byte_rate=RATE)
    begun_s = time.monotonic()
    size, told = read(fleet, topic, slow_id, begun_s + WORK_S)
    spent_s = time.monotonic() - begun_s
    assert RATE <= size <= RATE * (spent_s + BURST_S) + 100 * KB
    assert told
    assert throttled_ms(fleet.brokers[0], f"ANONYMOUS/{slow_id}") > 0
