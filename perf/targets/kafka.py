"""Apache Kafka in KRaft mode, from its jars, as its own start script would run it with a heap of 1 GB."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from fleetlog.coordination.ensemble import EnsembleError, find_java
from fleetlog.coordination.ports import free_ports
from perf.build import ROOT, TARGET
from perf.targets.base import HOST, Broker, Cluster, TargetError

POM = ROOT / "tests" / "kafka_jars" / "pom.xml"
GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
HEAP = ("-Xms1g", "-Xmx1g")
# kafka-run-class.sh's defaults
JVM_OPTIONS = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
)  # fmt: skip
CLUSTER_ID = "fleetlogPerfCluster000"


def classpath() -> str:
    """Kafka's class path: FLEETLOG_KAFKA_JARS, or what Maven fetches once. Raises TargetError, saying what to do."""
    given = os.environ.get("FLEETLOG_KAFKA_JARS")
    if given:
        return given
    cached = TARGET / "kafka-classpath"
    if cached.exists() and all(Path(jar).exists() for jar in cached.read_text().split(":")):
        return cached.read_text()
    how = (
        "the comparison with Apache Kafka needs its jars (org.apache.kafka:kafka_2.13 and kafka-tools 4.4.0): install "
        "Maven, which fetches them, or name a class path in FLEETLOG_KAFKA_JARS"
    )
    if shutil.which("mvn") is None:
        raise TargetError(how)
    TARGET.mkdir(parents=True, exist_ok=True)
    command = ["mvn", "-q", "-B", "-f", str(POM), GOAL, f"-Dmdep.outputFile={cached}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode or not cached.exists():
        raise TargetError(f"{how}; Maven said: {(done.stdout + done.stderr)[-600:]}")
    cached.write_text(cached.read_text().strip())
    return cached.read_text()


def java() -> str:
    """A Java to run it with."""
    try:
        return find_java()
    except EnsembleError as error:
        raise TargetError(str(error)) from error


def version() -> str:
    """Kafka's version, by its jar's name."""
    for jar in classpath().split(":"):
        for name in Path(jar).parent.glob("kafka_2.13-*.jar") if jar.endswith("*") else [Path(jar)]:
            found = re.fullmatch(r"kafka_2\.13-(.+)\.jar", name.name)
            if found:
                return found.group(1)
    return "unknown"


class Kafka(Cluster):
    """Combined brokers and controllers. ``settings`` on top of the defaults."""

    label = "kafka"

    def __init__(self, brokers: int = 1, directory: Path | None = None, **settings: object) -> None:
        self._classpath = classpath()
        super().__init__(brokers, directory)
        self.controllers = free_ports(brokers)
        self.settings: dict[str, object] = {name.replace("_", "."): value for name, value in settings.items()}

    def start(self) -> None:
        """Format the directories, start all, wait for all."""
        for broker in self.brokers:
            self._write_config(broker)
            self._format(broker)
        for broker in self.brokers:
            self.launch(broker)
        for broker in self.brokers:
            self.wait_serving(broker, poll_s=0.05)

    def _format(self, broker: Broker) -> None:
        command = [java(), "-Xmx256m", "-cp", self._classpath, "kafka.tools.StorageTool", "format"]
        command += ["-t", CLUSTER_ID, "-c", str(broker.directory / "server.properties")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise TargetError(f"Kafka's directory cannot be formatted: {done.stdout}{done.stderr}")

    def launch(self, broker: Broker) -> None:
        """Start one broker's process, without waiting."""
        command = [java(), *HEAP, *JVM_OPTIONS, "-cp", self._classpath, "kafka.Kafka"]
        broker.launch([*command, str(broker.directory / "server.properties")])

    def _write_config(self, broker: Broker) -> None:
        replicas = min(3, len(self.brokers))
        control = self.controllers[broker.number - 1]
        voters = ",".join(f"{number}@{HOST}:{port}" for number, port in enumerate(self.controllers, start=1))
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": broker.number,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{HOST}:{broker.address.port},CONTROLLER://{HOST}:{control}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{broker.address.port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": broker.directory / "data",
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": min(2, replicas),
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": min(2, replicas),
            "group.initial.rebalance.delay.ms": 0,
            "log.segment.delete.delay.ms": 0,
            "auto.create.topics.enable": "false",
            **self.settings,
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (broker.directory / "server.properties").write_text(text)
