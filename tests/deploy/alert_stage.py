"""Where alerts are fired: a fleet, and a Prometheus that scrapes it, by the tree's rules with shorter minutes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml
from confluent_kafka import ElectionType, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
)

from fleetlog.coordination.ensemble import ZooKeeperNode
from fleetlog.coordination.ports import free_ports
from tests.support.certificates import Authority, replaced
from tests.support.fleet import Broker, Fleet
from tests.support.waiting import eventually

RULES = Path(__file__).parents[2] / "deploy" / "monitoring" / "fleetlog.rules.yaml"
PATIENCE_S = 120.0
SHORTEST = "1s"
TARGETS = "targets.json"


def nothing() -> None:
    """Only time."""
    time.sleep(0.3)


def faster(rules: str, minute_s: int) -> str:
    """The rules with each minute as so many seconds, and each time below a minute as one second.

    Minutes are those of durations, the sixty of an hour, and what is written as ``15 * 60`` seconds.
    """
    minutes = re.sub(r"\b(\d+)h\b", lambda found: f"{int(found[1]) * 60}m", rules).replace(" * 60", f" * {minute_s}")
    seconds = re.sub(r"\b(\d+)m\b", lambda found: f"{int(found[1]) * minute_s}§", minutes)
    return re.sub(r"\b\d+s\b(?! *\*)", SHORTEST, seconds).replace("§", "s")


class Prometheus:
    """A Prometheus that scrapes the fleet. A minute of the rules takes ``minute_s``."""

    def __init__(self, program: str, directory: Path, targets: list[str], minute_s: int) -> None:
        self.patience_s = PATIENCE_S * minute_s
        directory.mkdir()
        (directory / "rules.yaml").write_text(faster(RULES.read_text(), minute_s))
        every = f"{minute_s}s"
        config = {
            "global": {"scrape_interval": every, "evaluation_interval": "1s", "scrape_timeout": every},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "fleetlog", "file_sd_configs": [{"files": [TARGETS]}]}],
        }
        self._targets = directory / TARGETS
        self.scrape(targets)
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

    def scrape(self, targets: list[str], registries: list[str] | None = None) -> None:
        """These addresses and no others, from about now on."""
        new = self._targets.with_suffix(".new")
        job = {"targets": registries or [], "labels": {"job": "fleetlog-registry"}}
        new.write_text(json.dumps([{"targets": targets}, job]))
        new.replace(self._targets)

    def firing(self) -> set[str]:
        """Names of the alerts that fire now; none while it starts. Raises AssertionError when it has ended."""
        return {name for name, _ in self.firing_for("")}

    def firing_for(self, label: str) -> set[tuple[str, str]]:
        """The same with the alert's value of a label; those without it are left out, unless no label is asked for."""
        assert self.process.poll() is None, f"Prometheus has ended:\n{self.log.read_text()[-2000:]}"
        try:
            with urlopen(f"{self.address}/api/v1/alerts", timeout=10) as answer:
                alerts = json.load(answer)["data"]["alerts"]
        except OSError:
            return set()
        firing = [one["labels"] for one in alerts if one["state"] == "firing" and (not label or label in one["labels"])]
        return {(labels["alertname"].removeprefix("Fleetlog"), labels.get(label, "")) for labels in firing}

    def wait(self, condition: Callable[[set[str]], bool], what: str, step: Callable[[], None]) -> float:
        """Wait, and take ``step`` meanwhile; returns the seconds. Raises AssertionError."""
        started = time.monotonic()
        while not condition(firing := self.firing()):
            took_s = time.monotonic() - started
            assert took_s < self.patience_s, f"{what}; after {took_s:.0f} s these fire: {sorted(firing)}"
            step()
        return time.monotonic() - started

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def start_patiently(fleet: Fleet) -> None:
    """All brokers that do not run yet; the machine may have other work."""
    for broker in fleet.brokers:
        if broker.process is None or broker.process.poll() is not None:
            broker.start()
    for broker in fleet.brokers:
        broker.wait_ready(PATIENCE_S)


class Stage:
    """The fleet with what faults need. ``program`` is a Prometheus."""

    def __init__(self, directory: Path, program: str, minute_s: int) -> None:
        self.directory = directory
        self.bucket = directory / "bucket"
        self.authority = Authority(directory, "authority")
        self.certificate = directory / "listener.pem"
        self.short, self.long = (self._pem(days) for days in (1, 30))
        replaced(str(self.certificate), self.long)
        self.fleet = Fleet(
            directory / "fleet", 3,
            **{
                "zookeeper.session.timeout.ms": 3000, "group.lag.interval.ms": 500, "log.cleaner.backoff.ms": 500,
                "internal.topics.alter.enable": "true", "leader.imbalance.check.interval.seconds": 86_400,
                "remote.log.storage.system.enable": "true", "fleetlog.bucket.url": f"file://{self.bucket}",
                "remote.log.manager.task.interval.ms": 500,
            },
        )  # fmt: skip
        (tls,) = free_ports(1)
        first = self.fleet.brokers[0].config_file
        listeners = f"listeners=PLAINTEXT://{self.fleet.brokers[0].address}"
        first.write_text(
            first.read_text().replace(listeners, f"{listeners},S://127.0.0.1:{tls}")
            + "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,S:SSL\nssl.keystore.type=PEM\n"
            f"ssl.keystore.location={self.certificate}\ninter.broker.listener.name=PLAINTEXT\n"
        )
        try:
            start_patiently(self.fleet)
        except BaseException:
            self.fleet.close()
            raise
        self.admin = AdminClient({"bootstrap.servers": self.fleet.bootstrap, "log_level": 0})
        self.producers: dict[str, Producer] = {}
        self._pages = [f"127.0.0.1:{broker.admin_port}" for broker in self.fleet.brokers]
        self.prometheus = Prometheus(program, directory / "prometheus", self._pages, minute_s)

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

    def partition(self, topic: str) -> Any:
        """What the brokers say of the topic's one partition; None when none of them answers now."""
        with suppress(KafkaException):
            return self.admin.list_topics(topic, timeout=30).topics[topic].partitions.get(0)
        return None

    def wait_leader(self, topic: str, wanted: int) -> None:
        """Until that broker leads the topic's one partition."""
        eventually(
            lambda: self.partition(topic), f"broker {wanted} leads {topic}", PATIENCE_S,
            good=lambda found: found is not None and found.leader == wanted, pause_s=0.3,
        )  # fmt: skip

    def wait_in_sync(self, topic: str, wanted: set[int]) -> None:
        """Until these are the in-sync replicas of the topic's one partition."""
        eventually(
            lambda: self.partition(topic), f"{wanted} are in sync in {topic}", PATIENCE_S,
            good=lambda found: found is not None and set(found.isrs) == wanted, pause_s=0.3,
        )  # fmt: skip

    def prefer(self) -> None:
        """Every partition is led by its first replica, where that is in sync."""

        def elected() -> bool:
            with suppress(KafkaException):  # the client may not know the controller yet
                answers = self.admin.elect_leaders(ElectionType.PREFERRED).result(60)
                return {error and error.code() for error in answers.values()} <= {None, KafkaError.ELECTION_NOT_NEEDED}
            return False

        eventually(elected, "preferred replicas lead", PATIENCE_S, pause_s=0.5)

    def heal(self) -> None:
        """After a fault that went wrong: all brokers run, whatever it did to them."""
        self.prometheus.scrape(self._pages)
        start_patiently(self.fleet)
        self.prefer()

    @contextmanager
    def instead(self, *pages: str) -> Iterator[None]:
        """Prometheus scrapes these, not the fleet."""
        self.prometheus.scrape(list(pages))
        try:
            yield
        finally:
            self.prometheus.scrape(self._pages)

    @contextmanager
    def beside(self, registry: str) -> Iterator[None]:
        """Prometheus scrapes this schema registry, too."""
        self.prometheus.scrape(self._pages, [registry])
        try:
            yield
        finally:
            self.prometheus.scrape(self._pages)

    def log_of(self, broker: Broker, topic: str) -> Path:
        """The newest segment of the topic's one partition on that broker."""
        return max((broker.directory / "data").glob(f"{topic}-0/*.log"))

    def writer(self, acks: str = "all", client: str = "writer") -> Producer:
        """The producer of that client."""
        key = f"{client} {acks}"
        if key not in self.producers:
            self.producers[key] = Producer({
                "bootstrap.servers": self.fleet.bootstrap, "acks": acks, "client.id": client, "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000, "log_level": 0,
            })  # fmt: skip
        return self.producers[key]

    def produce(self, topic: str, count: int = 1, acks: str = "all", client: str = "writer") -> None:
        """Write records; what cannot be written for now is left to the client."""
        producer = self.writer(acks, client)
        for _ in range(count):
            with suppress(BufferError):
                producer.produce(topic, b"x" * 64)
        producer.poll(0)

    def flush(self) -> None:
        """Wait until all that was produced is acknowledged."""
        for producer in self.producers.values():
            assert producer.flush(60) == 0

    def close(self) -> None:
        self.prometheus.close()
        for broker in self.fleet.brokers:
            if broker.process is not None:
                with suppress(ProcessLookupError):
                    broker.signal(signal.SIGCONT)
        self.fleet.close()


@contextmanager
def stuttering(process: Broker | ZooKeeperNode, stopped_s: float, running_s: float) -> Iterator[None]:
    """Stop and continue the process again and again."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            process.pause()
            time.sleep(stopped_s)
            process.resume()
            time.sleep(running_s)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def damaged(log: Path) -> Iterator[None]:
    """Four bytes of the log's last batch are inverted, and put back."""
    with log.open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        whole = file.read(4)
        file.seek(-4, os.SEEK_CUR)
        file.write(bytes(byte ^ 0xFF for byte in whole))
    yield
    with log.open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(whole)
