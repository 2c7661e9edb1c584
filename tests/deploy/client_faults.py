"""Faults of clients that fire alerts: each begins one, yields what is called meanwhile, and ends it."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

import fleetlog.wire.messages as m
from tests.cli.shell import Shell
from tests.deploy.alert_stage import PATIENCE_S, Stage, nothing, start_patiently
from tests.support.harness import Client
from tests.support.produce_runs import batch, frame
from tests.support.quotas import alter
from tests.support.sasl_wire import RawLogin
from tests.support.secured import USER, secured_fleet
from tests.support.waiting import eventually

REQUESTS_AT_ONCE = 20


def garbage(stage: Stage) -> Iterator[Callable[[], None]]:
    address = ("127.0.0.1", stage.fleet.brokers[0].port)

    def send() -> None:
        for _ in range(5):
            with suppress(OSError), socket.create_connection(address, timeout=5) as one:
                one.sendall(b"\x7f\xff\xff\xff" + b"?" * 64)
                one.recv(1)
        time.sleep(0.3)

    yield send


def wrong_passwords(stage: Stage) -> Iterator[Callable[[], None]]:
    """A client that tries one password after the other."""
    fleet = secured_fleet(stage.directory / "logins", 1)
    broker = fleet.brokers[0]

    def log_in() -> None:
        connection = RawLogin(broker.port)
        try:
            assert connection.scram(USER, "none of his") != 0
        finally:
            connection.close()

    try:
        start_patiently(fleet)
        with stage.instead(f"127.0.0.1:{broker.admin_port}"):
            yield log_in
            stage.prometheus.wait(lambda firing: "AuthFailures" not in firing, "AuthFailures goes away", nothing)
    finally:
        fleet.close()


def groups_behind(stage: Stage) -> Iterator[Callable[[], None]]:
    """Four groups with a trouble each, and a fifth that has them all; the first two get on."""
    now_ms = int(time.time() * 1000)
    filled = {"Lag": (70_000, now_ms), "Late": (2_000, now_ms - 3_600_000), "Stopped": (20, now_ms),
              "LagHigh": (110_000, now_ms), "all": (110_000, now_ms - 3_600_000)}  # fmt: skip
    consumers = {name: Consumer({"bootstrap.servers": stage.fleet.bootstrap, "group.id": name}) for name in filled}
    numbers = itertools.count()

    def commit(name: str, offset: int) -> None:
        consumers[name].commit(offsets=[TopicPartition(f"behind-{name}", 0, offset)], asynchronous=False)

    for name, (count, timestamp_ms) in filled.items():
        stage.topic(f"behind-{name}", [1])
        for sent in range(count):
            stage.writer().produce(f"behind-{name}", b"x", timestamp=timestamp_ms)
            if sent % 10_000 == 0:
                stage.flush()
    stage.flush()
    for offset in range(3):
        for name in filled:
            commit(name, offset)
        time.sleep(0.6)

    def get_on() -> None:
        number = next(numbers)
        for name in ("Lag", "Late", "LagHigh"):
            commit(name, 3 + number)
        time.sleep(0.6)

    yield get_on
    wanted = {("GroupLagHigh" if name == "all" else f"Group{name}", name) for name in filled}
    eventually(
        lambda: get_on() or stage.prometheus.firing_for("group"), "each group has one alert",
        stage.prometheus.patience_s, good=lambda firing: firing == wanted,
    )  # fmt: skip
    for name, (count, _) in filled.items():
        commit(name, count)
        consumers[name].close()


def waiting_letters(stage: Stage) -> Iterator[Callable[[], None]]:
    """A share group whose topic of dead letters has no permit."""
    shell = Shell(stage.fleet)
    shell.run("features", "upgrade", "share.version=2")
    stage.topic("jobs", [1])
    stage.topic("dlq.jobs", [1])
    settings = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.jobs",
                "share.delivery.count.limit": "2", "share.record.lock.duration.ms": "15000"}  # fmt: skip
    entries = [ConfigEntry(*one, incremental_operation=AlterConfigOpType.SET) for one in settings.items()]
    resource = ConfigResource(ConfigResource.Type.GROUP, "workers", incremental_configs=entries)
    for future in (
        AdminClient({"bootstrap.servers": stage.fleet.bootstrap}).incremental_alter_configs([resource]).values()
    ):
        future.result(PATIENCE_S)
    stage.produce("jobs", 5)
    worker = ShareConsumer({"bootstrap.servers": stage.fleet.bootstrap, "group.id": "workers",
                            "share.acknowledgement.mode": "explicit"})  # fmt: skip
    worker.subscribe(["jobs"])

    def give_back() -> None:
        for message in worker.poll(1) or ():
            worker.acknowledge(message, AcknowledgeType.RELEASE)

    yield give_back
    shell.run("topics", "alter", "dlq.jobs", "--set", "errors.deadletterqueue.group.enable=true")
    worker.close()


def tight_quota(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("metered", [2])  # the brokers' own listener is exempt, and the first broker has another one beside it
    client = [("client-id", "greedy")]
    assert alter(stage.fleet.brokers[0], (client, {"producer_byte_rate": 10_000.0})) == [0]

    def write() -> None:
        """Two seconds' worth; the next waits until the connection is read again."""
        stage.produce("metered", 300, "1", "greedy")
        stage.writer("1", "greedy").flush(20)

    yield write
    stage.producers.pop("greedy 1").purge()
    assert alter(stage.fleet.brokers[0], (client, {"producer_byte_rate": None})) == [0]


def damaged_produces(stage: Stage) -> Iterator[Callable[[], None]]:
    """A producer whose memory or network turns a bit after the checksum was made."""
    stage.topic("received", [1])
    whole = batch(10)
    wrong = whole[:-1] + bytes([whole[-1] ^ 1])
    client = Client(stage.fleet.brokers[0].port)

    def send() -> None:
        client.raw(frame(wrong, 1, "received"))
        client.frame()
        time.sleep(0.3)

    try:
        yield send
    finally:
        client.close()


def refused_produces(stage: Stage) -> Iterator[Callable[[], None]]:
    """Records that are larger than the topic takes."""
    stage.topic("small", [1], max_message_bytes="1000")

    def send() -> None:
        for _ in range(3):
            stage.writer().produce("small", bytes(5_000))
            stage.flush()
        time.sleep(0.1)

    yield send


def unframed_records(stage: Stage) -> Iterator[Callable[[], None]]:
    """Records without the id of a schema, for a topic that asks for it."""
    stage.topic("_schemas", [1], cleanup_policy="compact")
    stage.topic("checked", [1], fleetlog_schema_validation="id")

    def send() -> None:
        stage.writer().produce("checked", b"plain")
        stage.flush()
        time.sleep(0.3)

    yield send


def busy_loop(stage: Stage) -> Iterator[Callable[[], None]]:
    """Long requests without a pause, on several connections, so that one is always there to be answered.

    The broker needs a core of the machine for itself: where much else runs, it is late (LoopLag), not busy.
    """
    kind = m.request_class(32)
    broker = kind.DescribeConfigsResource(version=4, resource_type=4, resource_name="2", configuration_keys=None)
    asked = kind(version=4, resources=[broker], include_synonyms=True, include_documentation=True)
    requests = m.encode_request(32, 4, 1, "busy", asked) * REQUESTS_AT_ONCE
    clients = [Client(stage.fleet.brokers[1].port) for _ in range(10)]

    def ask() -> None:
        for client in clients:
            for _ in range(REQUESTS_AT_ONCE):
                client.frame()
            client.raw(requests)

    for client in clients:
        client.raw(requests)
    try:
        yield ask
    finally:
        for client in clients:
            client.close()


def _transactional(stage: Stage, name: str) -> Producer:
    """A producer that has begun a transaction."""
    producer = Producer({
        "bootstrap.servers": stage.fleet.bootstrap, "transactional.id": name, "transaction.timeout.ms": 900_000,
        "log_level": 0,
    })  # fmt: skip
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    return producer


def hanging_transaction(stage: Stage) -> Iterator[Callable[[], None]]:
    """A producer that neither ends its transaction nor lets it time out soon."""
    stage.topic("half", [1, 2])
    producer = _transactional(stage, "hangs")
    producer.produce("half", b"half")
    assert producer.flush(60) == 0
    yield nothing
    producer.abort_transaction(60)


def forgotten_transaction(stage: Stage) -> Iterator[Callable[[], None]]:
    """The coordinators' topic is deleted while a transaction is open: only the log knows of it then."""
    stage.topic("forgotten", [1, 2])
    producer = _transactional(stage, "forgets")
    producer.produce("forgotten", b"half")
    assert producer.flush(60) == 0
    stage.admin.delete_topics(["__transaction_state"])["__transaction_state"].result(60)

    def known_s() -> float:
        return max(broker.figure("fleetlog_oldest_transaction_seconds") for broker in stage.fleet.brokers)

    eventually(known_s, "no coordinator knows of a transaction", PATIENCE_S, good=lambda age: age == 0, pause_s=0.3)
    yield nothing
    assert known_s() == 0, "the log's leader alone has told of it"
    client = Client(stage.fleet.brokers[0].port)
    try:
        _abort(client, "forgotten")
    finally:
        client.close()


def _abort(leader: Client, topic: str) -> None:
    """End the transaction that is open in partition 0, as Kafka's tool does (KIP-664)."""
    asked = m.DescribeProducersRequest
    answer = leader.ask(asked(version=0, topics=[asked.TopicRequest(version=0, name=topic, partition_indexes=[0])]), 0)
    (row,) = [one for one in answer.topics[0].partitions[0].active_producers if one.current_txn_start_offset >= 0]
    kind = m.WriteTxnMarkersRequest.WritableTxnMarker
    marker = kind(
        version=1, producer_id=row.producer_id, producer_epoch=row.producer_epoch, transaction_result=False,
        topics=[kind.WritableTxnMarkerTopic(version=1, name=topic, partition_indexes=[0])],
        coordinator_epoch=row.coordinator_epoch,
    )  # fmt: skip
    answer = leader.ask(m.WriteTxnMarkersRequest(version=1, markers=[marker]), 1)
    assert answer.markers[0].topics[0].partitions[0].error_code == 0


def _member(stage: Stage, group: str, topic: str, assigned: list[bool]) -> Consumer:
    """A member that joins, and leaves nothing of a rebalance to its client: that goes on when it is polled."""
    consumer = Consumer({
        "bootstrap.servers": stage.fleet.bootstrap, "group.id": group, "max.poll.interval.ms": 600_000,
        "session.timeout.ms": 10_000, "heartbeat.interval.ms": 100, "log_level": 0,
    })  # fmt: skip
    consumer.subscribe([topic], on_assign=lambda *_: assigned.append(True), on_revoke=lambda *_: None)
    return consumer


def slow_rebalance(stage: Stage) -> Iterator[Callable[[], None]]:
    """A member works on its records, and hears of no rebalance meanwhile."""
    stage.topic("shared", [1, 2])
    first: list[bool] = []
    busy = _member(stage, "slow", "shared", first)
    eventually(lambda: busy.poll(0.1) or first, "the first member has its partition", PATIENCE_S)
    second: list[bool] = []
    new = _member(stage, "slow", "shared", second)
    yield lambda: new.poll(0.3) and None

    def ended() -> bool:
        busy.poll(0.1)
        new.poll(0.1)
        return len(first) > 1 and bool(second)

    eventually(ended, "the rebalance ends when the member is polled", PATIENCE_S)
    for one in (busy, new):
        one.close()


def frequent_rebalances(stage: Stage) -> Iterator[Callable[[], None]]:
    """A member joins and leaves again and again."""
    stage.topic("restless", [1, 2])
    first: list[bool] = []
    stays = _member(stage, "restless", "restless", first)
    eventually(lambda: stays.poll(0.1) or first, "the first member has its partition", PATIENCE_S)

    def come_and_go() -> None:
        assigned: list[bool] = []
        other = _member(stage, "restless", "restless", assigned)

        def joined() -> bool:
            stays.poll(0.02)
            other.poll(0.02)
            return bool(assigned)

        eventually(joined, "the other member is in the group", PATIENCE_S)
        other.close()
        stays.poll(0.02)

    yield come_and_go
    stays.close()
