"""Apache Kafka itself, from its jars."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleetlog.brokers.model import id_text, random_id
from fleetlog.coordination.ports import free_ports


def java(classpath: str, name: str, *args: str) -> str:
    """Run a class of Kafka's to its end; what it printed."""
    command = ["java", "-Xmx256m", "-cp", classpath, name, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


DAMAGE = re.compile(r"mismatch|corrupt|isvalid: false|exception|not found|out of order", re.IGNORECASE)
"""What Kafka's dump tool prints where files are not as it expects them."""


def dumped(classpath: str, folder: Path) -> str:
    """What Kafka's dump tool prints of a log's files."""
    kinds = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    names = [str(file) for file in sorted(folder.iterdir()) if file.suffix in kinds]
    return java(classpath, "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(names))


class Kafka:
    """One Kafka 4.4.0 process, broker and controller in one.

    ``listener`` (NAME://host:port) stands beside the plain one; ``properties`` go on top. With ``joins`` it is a broker
    only, the next one of that Kafka's cluster.
    """

    def __init__(
        self,
        classpath: str,
        home: Path,
        *,
        listener: str = "",
        properties: Mapping[str, object] = {},
        joins: Kafka | None = None,
    ) -> None:
        self.classpath = classpath
        self.home = home
        self.data = home / "data"
        ports = free_ports(2)
        self.bootstrap = f"127.0.0.1:{ports[0]}"
        self.properties = home / "server.properties"
        listeners = ",".join([f"PLAINTEXT://{self.bootstrap}", *([listener] if listener else [])])
        self.node_id = 1 if joins is None else joins.node_id + 1
        self._cluster = id_text(random_id()) if joins is None else joins._cluster
        self._voters = f"1@127.0.0.1:{ports[1]}" if joins is None else joins._voters
        settings: dict[str, object] = {
            "process.roles": "broker,controller" if joins is None else "broker",
            "node.id": self.node_id,
            "controller.quorum.voters": self._voters,
            "listeners": listeners if joins is not None else f"{listeners},CONTROLLER://127.0.0.1:{ports[1]}",
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.data,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.min.isr": 1,
            "log.segment.bytes": 1048576,
            "log.retention.ms": -1,
            **properties,
        }
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.process: subprocess.Popen[bytes] | None = None

    def format(self) -> None:
        java(self.classpath, "kafka.tools.StorageTool", "format", "-t", self._cluster, "-c", str(self.properties))

    def start(self) -> Any:
        """Start it, and wait until it answers; a client of librdkafka for its administration."""
        command = ["java", "-Xmx384m", "-cp", self.classpath, "kafka.Kafka", str(self.properties)]
        with (self.home / "kafka.out").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for _ in range(90):
            try:
                admin.list_topics(timeout=2)
                return admin
            except Exception:
                assert self.process.poll() is None, (self.home / "kafka.out").read_text()[-3000:]
                time.sleep(0.5)
        raise AssertionError("Kafka does not answer")

    def stop(self, sig: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(sig)
            self.process.wait(60)
            self.process = None


@contextmanager
def formatted(classpath: str, home: Path, *, properties: Mapping[str, object] = {}) -> Iterator[Kafka]:
    """A Kafka with a formatted directory, for the test to start; killed at the end."""
    home.mkdir()
    kafka = Kafka(classpath, home, properties=properties)
    kafka.format()
    try:
        yield kafka
    finally:
        kafka.stop(signal.SIGKILL)
