"""Fires the alerts by real faults on a real fleet, and sees them go away: ``python -m tests.deploy.alerts``.

Run by hand; it takes some minutes and a Prometheus (``--prometheus PATH``; Debian's package has one). The rules are
those of the tree with minutes as seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
)

from coordination.ensemble import free_ports
from tests.support.certificates import Authority, replaced
from tests.support.fleet import Broker, Fleet

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "monitoring" / "fleetlog.rules.yaml"
PATIENCE_S = 120.0
SHORTEST = "1s"


def faster(rules: str) -> str:
    """The rules with each minute as a second, and nothing below a second."""
    return re.sub(r"\b\d+s\b(?! *\*)", SHORTEST, re.sub(r"\b(\d+)m\b", r"\1§", rules)).replace("§", "s")


class Prometheus:
    """A Prometheus that scrapes the fleet each second."""

    def __init__(self, program: str, directory: Path, targets: list[str]) -> None:
        directory.mkdir()
        (directory / "rules.yaml").write_text(faster(RULES.read_text()))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "fleetlog", "static_configs": [{"targets": targets}]}],
        }
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
        (port,) = free_ports(1)
        self.address = f"http://127.0.0.1:{port}"
        self.log = directory / "prometheus.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [program, "--config.file=prometheus.yaml", "--storage.tsdb.path=data",
                 f"--web.listen-address=127.0.0.1:{port}"],
                cwd=directory, stdout=out, stderr=out,
            )  # fmt: skip

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        try:
            with urlopen(f"{self.address}/api/v1/alerts", timeout=10) as answer:
                alerts = json.load(answer)["data"]["alerts"]
        except OSError:
            return set()
        return {one["labels"]["alertname"].removeprefix("Fleetlog") for one in alerts if one["state"] == "firing"}

    def wait(self, condition: Callable[[set[str]], bool], what: str, step: Callable[[], None]) -> float:
        """Wait, and take ``step`` meanwhile; returns the seconds. Raises AssertionError."""
        started = time.monotonic()
        while not condition(firing := self.firing()):
            took_s = time.monotonic() - started
            assert took_s < PATIENCE_S, f"{what}; after {took_s:.0f} s these fire: {sorted(firing)}"
            step()
        return time.monotonic() - started

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


class Stage:
    """The fleet with what faults need."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory, "authority")
        self.certificate = directory / "listener.pem"
        self.short, self.long = (self._pem(days) for days in (1, 30))
        replaced(str(self.certificate), self.long)
        self.fleet = Fleet(
            directory / "fleet", 3,
            **{"zookeeper.session.timeout.ms": 3000, "group.lag.interval.ms": 500},
        )  # fmt: skip
        (tls,) = free_ports(1)
        first = self.fleet.brokers[0].config_file
        listeners = f"listeners=PLAINTEXT://{self.fleet.brokers[0].address}"
        first.write_text(
            first.read_text().replace(listeners, f"{listeners},S://127.0.0.1:{tls}")
            + "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,S:SSL\nssl.keystore.type=PEM\n"
            f"ssl.keystore.location={self.certificate}\ninter.broker.listener.name=PLAINTEXT\n"
        )
        self.fleet.start()
        self.admin = AdminClient({"bootstrap.servers": self.fleet.bootstrap})
        self.producers: dict[str, Producer] = {}

    def _pem(self, days: int) -> str:
        pair = self.authority.pair("/O=fleet/CN=broker", days=days)
        return pair.key + pair.chain

    def topic(self, name: str, replicas: list[int], **config: str) -> None:
        """A topic of one partition with these replicas."""
        given = {key.replace("_", "."): value for key, value in config.items()}
        deadline = time.monotonic() + PATIENCE_S
        while True:  # after a fault the client may not know the controller yet
            made = self.admin.create_topics([NewTopic(name, 1, replica_assignment=[replicas], config=given)])
            try:
                made[name].result(30)
                return
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_CONTROLLER or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def alter(self, kind: Any, name: str, key: str, value: str | None) -> None:
        """Set a dynamic setting, or remove it."""
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(key, value or "", source=ConfigSource.DYNAMIC_TOPIC_CONFIG, incremental_operation=operation)
        resource_ = ConfigResource(kind, name, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource_])[resource_].result(30)

    def produce(self, topic: str, count: int = 1, acks: str = "all", client: str = "writer") -> None:
        """Write records; what cannot be written for now is left to the client."""
        key = f"{client} {acks}"
        producer = self.producers.get(key)
        if producer is None:
            settings = {"bootstrap.servers": self.fleet.bootstrap, "acks": acks, "client.id": client, "linger.ms": 5,
                        "queue.buffering.max.messages": 1_000_000, "log_level": 0}  # fmt: skip
            producer = self.producers[key] = Producer(settings)
        for _ in range(count):
            with suppress(BufferError):
                producer.produce(topic, b"x" * 64)
        producer.poll(0)

    def writer(self) -> Producer:
        """The producer with acks=all."""
        return self.producers["writer all"]

    def flush(self) -> None:
        """Wait until all that was produced is acknowledged."""
        for producer in self.producers.values():
            assert producer.flush(60) == 0

    def close(self) -> None:
        for broker in self.fleet.brokers:
            if broker.process is not None:
                with suppress(ProcessLookupError):
                    broker.signal(signal.SIGCONT)
        self.fleet.close()


@contextmanager
def stuttering(broker: Broker, stopped_s: float, running_s: float) -> Iterator[None]:
    """Stop and continue the process again and again."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            broker.signal(signal.SIGSTOP)
            time.sleep(stopped_s)
            broker.signal(signal.SIGCONT)
            time.sleep(running_s)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


Fault = tuple[set[str], Iterator[Callable[[], None]]]
"""Alerts that must fire, and a generator: what it yields is called while they are awaited, its rest ends the fault."""


def nothing() -> None:
    """Only time."""
    time.sleep(0.3)


def one_broker_down(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("lonely", [3])
    stage.topic("pair", [1, 3])
    stage.fleet.brokers[2].kill()
    yield nothing
    stage.fleet.brokers[2].start()


def all_brokers_down(stage: Stage) -> Iterator[Callable[[], None]]:
    for broker in stage.fleet.brokers:
        broker.kill()
    yield nothing
    for broker in stage.fleet.brokers:
        broker.start()
    for broker in stage.fleet.brokers:
        broker.wait_ready()


def dead_zookeeper(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.fleet.zookeeper.pause()
    yield nothing
    stage.fleet.zookeeper.resume()


def stalling_loop(stage: Stage) -> Iterator[Callable[[], None]]:
    with stuttering(stage.fleet.brokers[1], 0.4, 0.3):
        yield nothing


def slow_follower(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("slow", [1, 2, 3], min_insync_replicas="2")

    def write() -> None:
        stage.produce("slow", 5)
        time.sleep(0.1)

    with stuttering(stage.fleet.brokers[2], 1.0, 0.3):
        yield write
    stage.flush()


def garbage(stage: Stage) -> Iterator[Callable[[], None]]:
    address = ("127.0.0.1", stage.fleet.brokers[0].port)

    def send() -> None:
        for _ in range(5):
            with suppress(OSError), socket.create_connection(address, timeout=5) as one:
                one.sendall(b"\x7f\xff\xff\xff" + b"?" * 64)
                one.recv(1)
        time.sleep(0.3)

    yield send


def few_descriptors(stage: Stage) -> Iterator[Callable[[], None]]:
    process = stage.fleet.brokers[1].process
    assert process is not None
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{process.pid}/fd"))
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + 6, before[1]))
    yield nothing
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)


def short_certificate(stage: Stage) -> Iterator[Callable[[], None]]:
    replaced(str(stage.certificate), stage.short)
    yield nothing
    replaced(str(stage.certificate), stage.long)


def broken_certificate(stage: Stage) -> Iterator[Callable[[], None]]:
    replaced(str(stage.certificate), "no certificate\n")
    yield nothing
    replaced(str(stage.certificate), stage.long)


def damaged_batch(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("damaged", [1, 3])
    stage.produce("damaged", 10)
    stage.flush()
    three = stage.fleet.brokers[2]
    three.kill()
    time.sleep(6)
    stage.produce("damaged", 500)
    stage.flush()
    (log,) = (stage.fleet.brokers[0].directory / "data").glob("damaged-0/*.log")
    with log.open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        whole = file.read(4)
        file.seek(-4, os.SEEK_CUR)
        file.write(bytes(byte ^ 0xFF for byte in whole))
    three.start()
    yield nothing
    with log.open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(whole)


def late_follower(stage: Stage) -> Iterator[Callable[[], None]]:
    three = stage.fleet.brokers[2]
    three.stop()
    stage.topic("far", [1, 3], follower_replication_throttled_replicas="*")
    for _ in range(15):
        stage.produce("far", 10_000, "1")
        stage.flush()
    three.start("follower.replication.throttled.rate=20000")
    yield nothing
    stage.alter(ConfigResource.Type.TOPIC, "far", "follower.replication.throttled.replicas", None)
    three.wait_ready()


def idle_group(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("backlog", [1])
    stage.produce("backlog", 0)
    hour_ago = int(time.time() * 1000) - 3_600_000
    for _ in range(11):
        for _ in range(10_000):
            stage.writer().produce("backlog", b"x", timestamp=hour_ago)
        stage.flush()
    consumer = Consumer({"bootstrap.servers": stage.fleet.bootstrap, "group.id": "idle"})
    for offset in range(3):
        consumer.commit(offsets=[TopicPartition("backlog", 0, offset)], asynchronous=False)
        time.sleep(0.6)
    yield nothing
    consumer.commit(offsets=[TopicPartition("backlog", 0, 110_000)], asynchronous=False)
    consumer.close()


FAULTS: dict[Callable[[Stage], Iterator[Callable[[], None]]], set[str]] = {
    one_broker_down: {"BrokerDown", "OfflinePartitions", "UnderReplicated"},
    all_brokers_down: {"BrokersDown", "NoController"},
    dead_zookeeper: {"NoLease"},
    stalling_loop: {"LoopLag"},
    slow_follower: {"ProduceSlow"},
    garbage: {"RefusedRequests"},
    few_descriptors: {"Troubles"},
    short_certificate: {"CertificateExpires", "CertificateExpiresSoon"},
    broken_certificate: {"CertificateRefused"},
    damaged_batch: {"DamagedData"},
    late_follower: {"FollowerBehind"},
    idle_group: {"GroupLag", "GroupLagHigh", "GroupLate", "GroupStopped"},
}
NOT_FIRED = {
    "UncleanElection": "no fault here has made one in time",
    "LostCommits": "follows an unclean election",
    "Throttled": "no quota here has held a client back for long enough",
    "UncleanablePartitions": "needs a damaged batch below the cleaner's point of a compacted log",
    "CompactionLate": "needs an hour",
    "AuditLoss": "needs an audit topic without a leader",
    "LeaderImbalance": "needs half an hour without auto.leader.rebalance.enable",
    "BrokerRestarts": "is of `fleetlog host`",
}
"""Alerts that have no fault here, and why."""


def run_fault(stage: Stage, prometheus: Prometheus, fault: Callable[[Stage], Any], alerts: set[str]) -> str:
    """One line of the report. Raises AssertionError."""
    seen: set[str] = set()

    def all_seen(firing: set[str]) -> bool:
        seen.update(firing)
        return alerts <= seen

    prometheus.wait(lambda firing: not firing, f"before {fault.__name__} nothing fires", nothing)
    work = fault(stage)
    step = next(work)
    fired_s = prometheus.wait(all_seen, f"{fault.__name__}: {sorted(alerts)} must fire", step)
    with suppress(StopIteration):
        next(work)
    gone_s = prometheus.wait(lambda firing: not alerts & firing, f"{fault.__name__}: {sorted(alerts)} go away", nothing)
    return f"{fault.__name__}: {', '.join(sorted(alerts))}: fired after {fired_s:.0f} s, gone after {gone_s:.0f} s"


def main() -> None:
    """Run all faults, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", help=f"default: all of {', '.join(one.__name__ for one in FAULTS)}")
    parser.add_argument("--prometheus", default=shutil.which("prometheus"))
    options = parser.parse_args()
    if options.prometheus is None:
        parser.error("no prometheus found: give --prometheus PATH")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="fleetlog-alerts-") as name:
        stage = Stage(Path(name))
        targets = [f"127.0.0.1:{broker.admin_port}" for broker in stage.fleet.brokers]
        prometheus = Prometheus(options.prometheus, Path(name) / "prometheus", targets)
        try:
            for fault, alerts in FAULTS.items():
                if options.faults and fault.__name__ not in options.faults:
                    continue
                try:
                    print(run_fault(stage, prometheus, fault, alerts), flush=True)
                except (AssertionError, KafkaException, subprocess.CalledProcessError) as error:
                    failed += 1
                    print(f"FAILED {fault.__name__}: {error}", flush=True)
        finally:
            prometheus.close()
            stage.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
