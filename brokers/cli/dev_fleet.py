"""Starts and stops the processes of a local fleet, and finds out whether a stock client can use it."""

from __future__ import annotations

import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import brokers
from brokers.cli.dev_state import BrokerState, DevError, FleetState, Process, end_all, forget, load, save
from brokers.cli.interrupts import interrupts
from coordination.ensemble import EnsembleError, find_classpath, find_java, free_ports, is_free, spawn, start_local

BROKER_PATIENCE_S = 20.0
ZOOKEEPER_PATIENCE_S = 5.0
READY_TIMEOUT_S = 60.0
ZOOKEEPER_HEAP = "-Xmx256m"
"""A bound, not what it takes: 10,000 partitions and what is written about them don't fit the 64 MB of the tests', and a
ZooKeeper without memory hangs where it should die.
"""
CONFIG_FILE = "broker.properties"

DEFAULT_SETTINGS: Mapping[str, str] = {
    # A laptop's fleet has few groups; fewer partitions start and load faster.
    "offsets.topic.num.partitions": "10",
    "transaction.state.log.num.partitions": "10",
    "group.initial.rebalance.delay.ms": "0",
}

Progress = Callable[[str], None]


def replication_settings(count: int) -> dict[str, str]:
    """As many copies as a fleet of that size can have, up to Kafka's three."""
    factor = str(min(3, count))
    return {
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": str(min(2, count)),
    }


def check_tools() -> None:
    """Is there what ZooKeeper needs? Raises DevError, saying what to install."""
    try:
        find_java()
        find_classpath()
        import confluent_kafka  # noqa: F401
    except EnsembleError as error:
        raise DevError(str(error)) from error
    except ImportError:
        raise DevError("the ready check needs confluent-kafka: `pip install 'fleetlog[spark]'`") from None


def plan(directory: Path, count: int, port: int, detached: bool) -> FleetState:
    """Ports and directories for a fleet; broker N listens on ``port`` + N - 1 (0: on free ones). Raises DevError."""
    spare = free_ports(2 * count + 1)
    state = FleetState(zookeeper_port=spare[-1], detached=detached)
    for index in range(count):
        if port and not is_free(port + index):
            raise DevError(f"port {port + index} is taken: choose others with --port (0: any free ones)")
        state.brokers.append(
            BrokerState(
                id=index + 1,
                port=port + index if port else spare[2 * index],
                admin_port=spare[2 * index + 1],
                directory=str(directory / f"broker-{index + 1}"),
            )
        )
    return state


def add(directory: Path, state: FleetState) -> BrokerState:
    """One more broker, on free ports, with the settings of the first one; not started yet."""
    first = state.brokers[0]
    number = max(broker.id for broker in state.brokers) + 1
    port, admin_port = free_ports(2)
    broker = BrokerState(number, port, admin_port, str(directory / f"broker-{number}"))
    lines = (Path(first.directory) / CONFIG_FILE).read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    for own in ("broker.id", "listeners", "admin.listener", "log.dirs", "zookeeper.connect"):
        del settings[own]
    write_config(state, broker, settings)
    state.brokers.append(broker)
    return broker


def start_all(directory: Path, state: FleetState, settings: Mapping[str, str], tell: Progress) -> None:
    """Start ZooKeeper and all brokers, at the same time: brokers wait for ZooKeeper by themselves. Raises DevError."""
    tell("starting ZooKeeper and the brokers")
    with interrupts.held():
        node = start_local(
            directory / "zookeeper", state.zookeeper_port, die_with_parent=not state.detached, wait=False,
            heap=ZOOKEEPER_HEAP,
        )  # fmt: skip
        assert node.pid is not None, "it was started right now"
        state.zookeeper = Process.of(node.pid)
        save(directory, state)
    for broker in state.brokers:
        write_config(state, broker, settings)
        start_broker(directory, state, broker, die_with_parent=not state.detached)
    tell("waiting for ZooKeeper")
    try:
        node.wait_serving()
    except EnsembleError as error:
        raise DevError(str(error)) from error


def write_config(state: FleetState, broker: BrokerState, settings: Mapping[str, str]) -> Path:
    """The broker's properties file; ``settings`` win over what dev chooses."""
    directory = Path(broker.directory)
    directory.mkdir(parents=True, exist_ok=True)
    values = {
        "broker.id": str(broker.id),
        "listeners": f"PLAINTEXT://{broker.address}",
        "admin.listener": f"127.0.0.1:{broker.admin_port}",
        "log.dirs": str(directory / "data"),
        "zookeeper.connect": state.zookeeper_connect,
        **DEFAULT_SETTINGS,
        **replication_settings(len(state.brokers)),
        **settings,
    }
    path = directory / CONFIG_FILE
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return path


def start_broker(directory: Path, state: FleetState, broker: BrokerState, *, die_with_parent: bool) -> None:
    """Start one broker's process from its properties file and write its pid down."""
    home = Path(broker.directory)
    root = str(Path(brokers.__file__).parents[1])
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "brokers.cli.main", "broker", str(home / CONFIG_FILE)]
    with interrupts.held(), log_path(broker).open("ab") as log:
        process = spawn(command, home, log, die_with_parent=die_with_parent, environment=environment)
        broker.process = Process.of(process.pid)
        save(directory, state)


def log_path(broker: BrokerState) -> Path:
    """Where the broker's output goes."""
    return Path(broker.directory) / "broker.log"


def wait_ready(broker: BrokerState, deadline: float) -> None:
    """Wait until the broker says it is ready; raises DevError with the end of its log when it died or takes long."""
    while not is_ready(broker):
        if broker.process is None or not broker.process.alive():
            raise DevError(f"broker {broker.id} ended:\n{log_tail(broker)}")
        if time.monotonic() > deadline:
            raise DevError(f"broker {broker.id} is not ready in time:\n{log_tail(broker)}")
        time.sleep(0.05)


def is_ready(broker: BrokerState) -> bool:
    """Does the broker's health endpoint say ready?"""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/health/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def log_tail(broker: BrokerState, lines: int = 15) -> str:
    """The last lines of the broker's output."""
    try:
        text = log_path(broker).read_text(errors="replace")
    except OSError:
        return f"(nothing in {log_path(broker)})"
    return "\n".join(text.splitlines()[-lines:]) + f"\n(all of it: {log_path(broker)})"


def stop_all(directory: Path, patience_s: float = BROKER_PATIENCE_S) -> None:
    """End every process of the fleet in the state file: brokers first, since they want to sign off at ZooKeeper."""
    state = load(directory)
    if state is None:
        return
    end_all([broker.process for broker in state.brokers if broker.process is not None], patience_s)
    if state.zookeeper is not None:
        end_all([state.zookeeper], min(patience_s, ZOOKEEPER_PATIENCE_S))
    forget(directory)


def check_with_client(state: FleetState, timeout_s: float = READY_TIMEOUT_S) -> None:
    """A stock client creates a topic, produces to each broker, commits and reads. Raises DevError."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    topic = f"dev-ready-check-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": state.bootstrap, "logger": _quiet()})
    try:
        _create_topic(admin, topic, len(state.brokers), time.monotonic() + timeout_s)
        _round_trip(state, topic, timeout_s)
        admin.delete_topics([topic], request_timeout=timeout_s)[topic].result(timeout_s)
    except (KafkaException, TimeoutError) as error:
        raise DevError(f"a stock client cannot use the fleet: {error}") from error


def _create_topic(admin: Any, topic: str, partitions: int, deadline: float) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    while True:
        left_s = max(deadline - time.monotonic(), 1.0)
        try:
            created = admin.create_topics([NewTopic(topic, partitions, -1)], request_timeout=left_s)
            created[topic].result(left_s)
            return
        except KafkaException as error:
            # Just started: the elected controller may not have begun to act.
            early = error.args[0].code() in (KafkaError.NOT_CONTROLLER, KafkaError.COORDINATOR_NOT_AVAILABLE)
            if not early or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _round_trip(state: FleetState, topic: str, timeout_s: float) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    common: dict[str, Any] = {"bootstrap.servers": state.bootstrap, "logger": _quiet()}
    producer = Producer({**common, "linger.ms": 0, "acks": "all", "message.timeout.ms": int(timeout_s * 1000)})
    for partition in range(len(state.brokers)):
        producer.produce(topic, b"ready?", partition=partition)
    if producer.flush(timeout_s):
        raise DevError("a stock client cannot produce: no acknowledgement in time")
    consumer = Consumer({**common, "group.id": topic, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(len(state.brokers))])
        got = 0
        deadline = time.monotonic() + timeout_s
        while got < len(state.brokers):
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                got += 1
            if time.monotonic() > deadline:
                raise DevError(f"a stock client reads {got} of {len(state.brokers)} records")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def _quiet() -> Any:
    import logging

    logger = logging.getLogger("brokers.cli.dev.client")
    logger.setLevel(logging.CRITICAL)  # refused connections of the first moment are no news
    return logger
