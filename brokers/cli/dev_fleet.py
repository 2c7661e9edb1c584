"""Starts and stops the processes of a local fleet, and checks that a stock client can use it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fleetlog
from fleetlog._native.temporary import own_directory
from fleetlog.brokers.cli.dev_security import APP, CONSOLE, LISTENER, MECHANISM, REGISTRY, DevSecurity, write_private
from fleetlog.brokers.cli.dev_state import BrokerState, DevError, FleetState, Process, end_all, forget, load, save
from fleetlog.brokers.cli.interrupts import interrupts
from fleetlog.brokers.cli.output import CliError, count_text, visible
from fleetlog.coordination.ensemble import (
    EnsembleError,
    ZooKeeperNode,
    find_classpath,
    find_java,
    spawn,
    start_local,
)
from fleetlog.coordination.ports import free_ports, is_free

BROKER_PATIENCE_S = 20.0
ZOOKEEPER_PATIENCE_S = 5.0
READY_TIMEOUT_S = 60.0
ZOOKEEPER_HEAP = "-Xmx256m"
"""An upper bound: 10,000 partitions and their change log do not fit into the 64 MB that tests use, and a ZooKeeper
server without memory hangs instead of exiting.
"""
CONFIG_FILE = "broker.properties"
DEFAULT_COUNT = 3

DEFAULT_SETTINGS: Mapping[str, str] = {
    # A local fleet has few groups; fewer partitions start and load faster.
    "offsets.topic.num.partitions": "10",
    "transaction.state.log.num.partitions": "10",
    "group.initial.rebalance.delay.ms": "0",
}

OWN_SETTINGS: Mapping[str, str] = {
    "broker.id": "", "node.id": "", "listeners": "--port", "admin.listener": "", "log.dirs": "--dir",
    "log.dir": "--dir", "zookeeper.connect": "", "broker.rack": "--rack",
}  # fmt: skip
"""What differs from broker to broker and is dev's to choose, with the option that it is chosen by."""

Progress = Callable[[str], None]
STARTING = "starting"
"""What a broker says of itself until it has its services."""
ANSWER_BYTES = 65_536

TOPIC_PREFIX = "dev-ready-check-"
"""Prefix of the topic and the group that the ready check uses and deletes."""


def replication_settings(count: int) -> dict[str, str]:
    """As many replicas as a fleet of that size can have, up to Kafka's three."""
    factor = str(min(3, count))
    return {
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": str(min(2, count)),
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": str(min(2, count)),
    }


def check_tools() -> None:
    """Check for what ZooKeeper needs. Raises DevError that names what to install."""
    try:
        find_java()
        find_classpath()
        import confluent_kafka  # noqa: F401
    except EnsembleError as error:
        raise DevError(str(error)) from error
    except ImportError:
        raise DevError(f"the ready check needs confluent-kafka: {fleetlog.how_to_install('spark')}") from None


def homes(directory: Path) -> dict[int, Path]:
    """The brokers' own directories by broker id, including brokers that ``dev add`` added."""
    by_name = {
        path.parent.name.removeprefix("broker-"): path.parent for path in directory.glob(f"broker-*/{CONFIG_FILE}")
    }
    return {int(name): home for name, home in sorted(by_name.items()) if name.isdecimal()}


def _has_data(home: Path) -> bool:
    listed = _settings_in(home).get("log.dirs", "").split(",")
    return any(name.strip() and Path(name.strip()).exists() for name in listed)


def count_of(directory: Path, wanted: int | None) -> int:
    """How many brokers to start: those that the directory holds, or ``wanted`` if that is more. Raises DevError."""
    holds = max((number for number, home in homes(directory).items() if _has_data(home)), default=0)
    if wanted is None:
        return holds or DEFAULT_COUNT
    if wanted < holds:
        raise DevError(
            f"{directory} holds the data of {count_text(holds, 'broker')}: start them all"
            f" (without --brokers, or --brokers {holds}), use another directory with --dir, or delete the data with"
            f" `fleetlog dev down --delete-data --dir {directory}`"
        )
    return wanted


def plan(directory: Path, count: int, port: int, detached: bool, racks: Sequence[str] = ()) -> FleetState:
    """Ports and directories for a fleet; broker N listens on ``port`` + N - 1 (0: on free ones). Raises DevError.

    ``racks`` go round; without any a broker keeps the rack that it had in this directory.
    """
    spare = free_ports(2 * count + 1)
    state = FleetState(zookeeper_port=spare[-1], detached=detached)
    for index in range(count):
        if port and not is_free(port + index):
            raise DevError(f"port {port + index} is taken: choose others with --port (0: any free ones)")
        home = directory / f"broker-{index + 1}"
        state.brokers.append(
            BrokerState(
                id=index + 1,
                port=port + index if port else spare[2 * index],
                admin_port=spare[2 * index + 1],
                directory=str(home),
                rack=racks[index % len(racks)] if racks else _settings_in(home).get("broker.rack", ""),
            )
        )
    return state


def check_settings(settings: Iterable[str], state: FleetState, security: DevSecurity | None) -> None:
    """Names that a user gave for every broker. Raises DevError of one that dev itself sets, and goes on to use."""
    own = dict(OWN_SETTINGS)
    if len(state.brokers) > 1:
        own["advertised.listeners"] = ""
    if security is not None:
        own |= {name: "" for name in security.broker_settings(1) if not name.startswith("audit.")}
    for name in settings:
        if name in own:
            instead = f"choose it with {own[name]}" if own[name] else "leave it out"
            raise DevError(f"--set {name}: `fleetlog dev` itself sets that for each broker; {instead}")


@contextlib.contextmanager
def reserved(ports: Iterable[int]) -> Iterator[None]:
    """Keep the ports from other `dev` commands until the brokers listen on them. Raises DevError."""
    try:
        place = own_directory("dev")
    except OSError as problem:
        raise DevError(str(problem)) from None
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(_locked(port, place / f"port-{port}.lock"))
        yield


@contextlib.contextmanager
def _locked(port: int, path: Path) -> Iterator[None]:
    """Hold the lock on a port, whose file goes with it."""
    with contextlib.ExitStack() as stack:
        while True:
            lock = stack.enter_context(path.open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DevError(
                    f"another `fleetlog dev` is starting a broker on port {port}: choose other ports with --port"
                ) from None
            if os.fstat(lock.fileno()).st_nlink:  # else who had it before has just removed the file
                break
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def add_broker(directory: Path, state: FleetState, rack: str = "") -> BrokerState:
    """One more broker, on free ports, with the settings of the first one; not started yet."""
    first = state.brokers[0]
    number = max(broker.id for broker in state.brokers) + 1
    port, admin_port = free_ports(2)
    broker = BrokerState(number, port, admin_port, str(directory / f"broker-{number}"), rack=rack)
    settings = _settings_in(Path(first.directory))
    for own in ("broker.id", "broker.rack", "listeners", "admin.listener", "log.dirs", "zookeeper.connect"):
        settings.pop(own, None)
    write_config(state, broker, settings)
    state.brokers.append(broker)
    return broker


def _settings_in(home: Path) -> dict[str, str]:
    """The properties in a broker's file as :func:`write_config` wrote it; empty if there is none."""
    try:
        lines = (home / CONFIG_FILE).read_text().splitlines()
    except FileNotFoundError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def bucket_of(state: FleetState) -> str | None:
    """The URL of the brokers' bucket, if they have one."""
    settings = _settings_in(Path(state.brokers[0].directory)) if state.brokers else {}
    on = settings.get("remote.log.storage.system.enable") == "true"
    return (settings.get("fleetlog.bucket.url") or None) if on else None


def start_all(
    directory: Path, state: FleetState, settings: Mapping[str, str], tell: Progress, security: DevSecurity | None
) -> None:
    """Start ZooKeeper and all brokers, at the same time: brokers wait for ZooKeeper by themselves. Raises DevError.

    With ``security`` ZooKeeper comes first: it has the users, also the brokers' own.
    """
    if security is not None:
        settings = {**security.broker_settings(min(3, len(state.brokers))), **settings}
        for home in (directory / "zookeeper", *(Path(broker.directory) for broker in state.brokers)):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            home.chmod(0o700)  # what an earlier start made, too: the data of both have credentials and records
    tell("starting ZooKeeper and the brokers")
    with interrupts.held():
        node = start_local(
            directory / "zookeeper", state.zookeeper_port, die_with_parent=not state.detached, wait=False,
            heap=ZOOKEEPER_HEAP,
        )  # fmt: skip
        assert node.pid is not None, "it has just been started"
        state.zookeeper = Process.of(node.pid)
        save(directory, state)
    if security is not None:
        tell("waiting for ZooKeeper, and adding the users")
        _add_users(node, state, security)
    for broker in state.brokers:
        write_config(state, broker, settings)
        start_broker(directory, state, broker, die_with_parent=not state.detached)
    tell("waiting for ZooKeeper")
    try:
        node.wait_serving()
    except EnsembleError as error:
        raise DevError(str(error)) from error


def _add_users(node: ZooKeeperNode, state: FleetState, security: DevSecurity) -> None:
    from fleetlog.brokers.cli.users import add_users

    try:
        node.wait_serving()
        add_users(state.zookeeper_connect, security.passwords, security=security.zookeeper)
    except (EnsembleError, CliError) as error:
        raise DevError(str(error)) from error


def write_config(state: FleetState, broker: BrokerState, settings: Mapping[str, str]) -> Path:
    """Write the broker's properties file; ``settings`` override the values that dev chooses."""
    directory = Path(broker.directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    values = {
        "broker.id": str(broker.id),
        "listeners": f"{LISTENER if state.secure else 'PLAINTEXT'}://{broker.address}",
        "admin.listener": f"127.0.0.1:{broker.admin_port}",
        "log.dirs": str(directory / "data"),
        "zookeeper.connect": state.zookeeper_connect,
        **DEFAULT_SETTINGS,
        **replication_settings(len(state.brokers)),
        **({"broker.rack": broker.rack} if broker.rack else {}),
        **settings,
    }
    path = directory / CONFIG_FILE
    write_private(path, "".join(f"{name}={value}\n" for name, value in values.items()))
    return path


def start_broker(directory: Path, state: FleetState, broker: BrokerState, *, die_with_parent: bool) -> None:
    """Start one broker's process from its properties file and record its pid."""
    home = Path(broker.directory)
    with interrupts.held():
        words = ["broker", str(home / CONFIG_FILE)]
        broker.process = _spawned(words, home, log_path(broker), die_with_parent=die_with_parent)
        save(directory, state)


def _spawned(words: Sequence[str], home: Path, log_file: Path, *, die_with_parent: bool) -> Process:
    """A process of the command ``fleetlog``. Raises DevError when it ended at once."""
    root = str(Path(fleetlog.__file__).parents[1])
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", *words]
    with log_file.open("ab") as log:
        return Process.of(spawn(command, home, log, die_with_parent=die_with_parent, environment=environment).pid)


def start_registry(directory: Path, state: FleetState, security: DevSecurity | None, wanted_port: int) -> None:
    """Start the schema registry on that port, or if it is taken or 0 on a free one, and record its pid.

    In a secured fleet callers log in as at the brokers. The brokers must serve; it is not waited for.
    """
    home = directory / "registry"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    state.registry_port = wanted_port if wanted_port and is_free(wanted_port) else free_ports(1)[0]
    words = ["registry", "--bootstrap", state.bootstrap, "--port", str(state.registry_port)]
    if security is not None:
        words += ["--command-config", str(security.client_file(REGISTRY, "java")), "--login", MECHANISM]
    registry_log(directory).unlink(missing_ok=True)
    with interrupts.held():
        state.registry = _spawned(words, home, registry_log(directory), die_with_parent=not state.detached)
        save(directory, state)


def registry_log(directory: Path) -> Path:
    """The file with the schema registry's output."""
    return directory / "registry" / "registry.log"


def wait_registry(directory: Path, state: FleetState, deadline: float) -> str:
    """Wait until the schema registry answers. Returns why it does not: its last words; empty if it does."""
    import urllib.request

    why = "it does not answer in time"
    while time.monotonic() < deadline and state.registry is not None:
        try:
            with urllib.request.urlopen(state.registry_url, timeout=2):
                return ""
        except OSError:
            if not state.registry.alive():
                lines = registry_log(directory).read_text(errors="replace").strip().splitlines()
                why = lines[-1].removeprefix("fleetlog: ") if lines else "it ended"
                break
        time.sleep(0.05)
    if state.registry is not None:
        end_all([state.registry], ZOOKEEPER_PATIENCE_S)
    state.registry, state.registry_port = None, 0
    save(directory, state)
    return why


def log_path(broker: BrokerState) -> Path:
    """The file with the broker's output."""
    return Path(broker.directory) / "broker.log"


def wait_ready(broker: BrokerState, deadline: float) -> None:
    """Wait until the broker is ready; raises DevError with the end of its log if it ended or is not ready in time."""
    while not_ready(broker) is not None:
        if broker.process is None or not broker.process.alive():
            raise DevError(f"broker {broker.id} ended:\n{log_tail(broker)}")
        if time.monotonic() > deadline:
            raise DevError(f"broker {broker.id} is not ready in time:\n{log_tail(broker)}")
        time.sleep(0.05)


def not_ready(broker: BrokerState) -> str | None:
    """Why the broker's health endpoint says that it is not ready, STARTING before it says anything; None if it is."""
    question = b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", broker.admin_port), timeout=2) as connection:
            connection.sendall(question)
            with connection.makefile("rb") as answer:
                head, _, text = answer.read(ANSWER_BYTES).partition(b"\r\n\r\n")
    except TimeoutError:
        return "it does not answer"
    except OSError:
        return STARTING
    if head.split()[1:2] == [b"200"]:
        return None
    return visible(text.decode(errors="replace").strip().removeprefix("not ready: ")) or "it does not say why"


def log_tail(broker: BrokerState, lines: int = 15) -> str:
    """The last lines of the broker's output."""
    try:
        text = log_path(broker).read_text(errors="replace")
    except OSError:
        return f"(nothing in {log_path(broker)})"
    return "\n".join(text.splitlines()[-lines:]) + f"\n(all of it: {log_path(broker)})"


def stop_all(directory: Path, patience_s: float = BROKER_PATIENCE_S) -> None:
    """End every process of the fleet in the state file: clients first, then brokers, which deregister at ZooKeeper."""
    state = load(directory)
    if state is None:
        return
    if state.registry is not None:
        end_all([state.registry], min(patience_s, ZOOKEEPER_PATIENCE_S))
    end_all([broker.process for broker in state.brokers if broker.process is not None], patience_s)
    if state.zookeeper is not None:
        end_all([state.zookeeper], min(patience_s, ZOOKEEPER_PATIENCE_S))
    forget(directory)


def check_with_client(
    state: FleetState, security: DevSecurity | None = None, timeout_s: float = READY_TIMEOUT_S
) -> None:
    """A stock client creates a topic, produces to each broker, commits and reads, and deletes what it made.

    A secured fleet's client is the user of programs, with the rights that :func:`grant_programs` gave. Raises DevError.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    name = f"{TOPIC_PREFIX}{uuid.uuid4().hex[:8]}"
    settings = {"bootstrap.servers": state.bootstrap}
    deadline = time.monotonic() + timeout_s
    try:
        if security is not None:
            settings = security.librdkafka(state.bootstrap)
        admin = AdminClient({**settings, "logger": _quiet()})
        _create_topic(admin, name, len(state.brokers), deadline)
        try:
            _round_trip(settings, len(state.brokers), name, timeout_s)
            admin.delete_consumer_groups([name], request_timeout=timeout_s)[name].result(timeout_s)
        finally:
            # Also the topics and groups of a check that was killed.
            left = [topic for topic in admin.list_topics(timeout=timeout_s).topics if topic.startswith(TOPIC_PREFIX)]
            for deleted in admin.delete_topics([*{name, *left}], request_timeout=timeout_s).values():
                deleted.result(timeout_s)
    except (KafkaException, TimeoutError) as error:
        raise DevError(f"a stock client cannot use the fleet: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The client's error text without its punctuation."""
    cause: Any = error.args[0] if error.args else None
    return str(cause.str() if hasattr(cause, "str") else error) or "no answer in time"


def _create_topic(admin: Any, topic: str, partitions: int, deadline: float) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    # Just started: the elected controller may not have begun to act, or not have seen each broker's registration.
    early = (KafkaError.NOT_CONTROLLER, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.INVALID_REPLICATION_FACTOR)
    while True:
        left_s = max(deadline - time.monotonic(), 1.0)
        try:
            created = admin.create_topics([NewTopic(topic, partitions, -1)], request_timeout=left_s)
            created[topic].result(left_s)
            return
        except KafkaException as error:
            if error.args[0].code() not in early or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def grant_programs(settings: dict[str, str], timeout_s: float = READY_TIMEOUT_S) -> None:
    """Programs may do everything with topics, groups and transactional ids, and describe the cluster.

    The schema registry's login gets what docs/registry.md says; the console's may describe the cluster and the
    brokers' settings. Raises DevError.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    allow, literal = AclPermissionType.ALLOW, ResourcePatternType.LITERAL
    acls = [AclBinding(kind, "*", literal, f"User:{APP}", "*", AclOperation.ALL, allow) for kind in kinds]
    describe = (ResourceType.BROKER, "kafka-cluster", literal, f"User:{APP}", "*", AclOperation.DESCRIBE, allow)
    acls.append(AclBinding(*describe))
    own = (
        (ResourceType.TOPIC, "_schemas", ("CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS")),
        (ResourceType.TRANSACTIONAL_ID, "fleetlog-registry", ("WRITE",)),
        (ResourceType.BROKER, "kafka-cluster", ("DESCRIBE", "DESCRIBE_CONFIGS")),
    )
    acls += [
        AclBinding(kind, name, literal, f"User:{REGISTRY}", "*", AclOperation[operation], allow)
        for kind, name, operations in own
        for operation in operations
    ]
    acls += [
        AclBinding(*describe[:3], f"User:{CONSOLE}", "*", operation, allow)
        for operation in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    ]
    admin = AdminClient({**settings, "logger": _quiet()})
    try:
        for created in admin.create_acls(acls).values():
            created.result(timeout_s)
    except (KafkaException, TimeoutError) as error:
        raise DevError(f"the users get no rights: {_reason(error)}") from error


def _round_trip(settings: dict[str, str], count: int, topic: str, timeout_s: float) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    common: dict[str, Any] = {**settings, "logger": _quiet()}
    producer = Producer({**common, "linger.ms": 0, "acks": "all", "message.timeout.ms": int(timeout_s * 1000)})
    for partition in range(count):
        producer.produce(topic, b"ready?", partition=partition)
    if producer.flush(timeout_s):
        raise DevError("a stock client cannot produce: no acknowledgement in time")
    consumer = Consumer({**common, "group.id": topic, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(count)])
        got = 0
        deadline = time.monotonic() + timeout_s
        while got < count:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                got += 1
            if time.monotonic() > deadline:
                raise DevError(f"a stock client reads {got} of {count_text(count, 'record')}")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def _quiet() -> Any:
    import logging

    logger = logging.getLogger("fleetlog.brokers.cli.dev.client")
    logger.setLevel(logging.CRITICAL)  # connections are refused until the brokers listen
    return logger
