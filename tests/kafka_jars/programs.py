"""Java programs that run beside a test until they are ended, and what they left in topics."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.support.clients import READ_COMMITTED, Message

GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
LIMIT_S = 120.0


def kafka_classpath(target: Path) -> str:
    """The jars of ``pom.xml``, fetched by Maven, which writes ``target``; or what FLEETLOG_KAFKA_JARS says."""
    return os.environ.get("FLEETLOG_KAFKA_JARS") or fetched_jars("pom.xml", target)


def fetched_jars(pom: str, target: Path, **properties: str) -> str:
    """The class path that Maven makes of one of its files, whose properties may be set; ``target`` keeps it."""
    own = [f"-D{name.replace('_', '.')}={value}" for name, value in properties.items()]
    command = ["mvn", "-q", "-B", "-f", str(Path(__file__).parent / pom), GOAL, f"-Dmdep.outputFile={target}", *own]
    subprocess.run(command, check=True, timeout=280)
    return target.read_text().strip()


def compiled(classpath: str, source: Path, target: Path) -> str:
    """Compile one file of Java; a class path with it in front."""
    command = ["javac", "-nowarn", "-cp", classpath, "-d", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return f"{target}:{classpath}"


def write_properties(path: Path, settings: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


class Program:
    """A class with a ``main`` in a JVM of its own; what it prints is in ``log``."""

    def __init__(
        self, classpath: str, log: Path, name: str, *arguments: str, heap_mb: int = 256, java: str = "java"
    ) -> None:
        self.log = log
        self._command = [java, f"-Xmx{heap_mb}m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        self._command += ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp", classpath, name, *arguments]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self.process is None, "already running"
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self._command, stdout=out, stderr=out, cwd=self.log.parent)

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; nothing where it does not run."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """SIGTERM: it closes its clients."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)
        self.process = None

    def printed(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self) -> str:
        return self.printed()[-6000:]


def read_topic(bootstrap: str, topic: str, isolation: str = READ_COMMITTED) -> list[Message]:
    """All records of a topic up to the end that a reader with that isolation sees now, partition after partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False,
         "isolation.level": isolation, "auto.offset.reset": "earliest", "enable.partition.eof": True}
    )  # fmt: skip
    found: list[Message] = []
    try:
        for partition in sorted(consumer.list_topics(topic, LIMIT_S).topics[topic].partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (got := consumer.poll(LIMIT_S)) is not None and got.error() is None:
                key, value = got.key(), got.value()
                found.append(Message(value, key, (), got.timestamp()[1], partition, got.offset()))  # type: ignore[arg-type]
            if got is None or got.error().name() != "_PARTITION_EOF":
                raise KafkaException(got.error() if got else f"{topic}-{partition}: no answer in {LIMIT_S:g} s")
    finally:
        consumer.close()
    return found
