"""A cluster of server processes on this machine's loopback, started and stopped by the suite."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fleetlog.coordination.ensemble import spawn
from fleetlog.coordination.ports import free_ports
from fleetlog.wire import messages
from perf.generator.frames import fetch_frame

HOST = "127.0.0.1"
API_VERSIONS = 18
START_TIMEOUT_S = 90.0


class TargetError(Exception):
    """A server cannot be had, started or used; the message says why."""


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int


class Broker:
    """One server process with a directory, a port and a log file."""

    def __init__(self, directory: Path, number: int, port: int) -> None:
        self.directory = directory
        self.number = number
        self.address = Address(HOST, port)
        self.log_file = directory / "output.log"
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        """Its process."""
        assert self.process is not None, "not started"
        return self.process.pid

    def launch(self, command: list[str], environment: Mapping[str, str] = {}, cwd: Path | None = None) -> None:
        """Start it; it dies with us."""
        assert self.process is None or self.process.poll() is not None, "it runs already"
        with self.log_file.open("ab") as out:
            self.process = spawn(
                command, cwd or self.directory, out, die_with_parent=True, environment={**os.environ, **environment}
            )

    def end(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 60.0) -> None:
        """Send the signal and wait; SIGKILL when that takes too long."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def output(self) -> str:
        """The end of what it said."""
        return self.log_file.read_text(errors="replace")[-3000:] if self.log_file.exists() else ""


class Cluster:
    """Servers of one kind. ``label`` names the kind in tables; :meth:`running` is the usual way to have one."""

    label = "?"

    def __init__(self, brokers: int, directory: Path | None = None) -> None:
        self.home = Path(tempfile.mkdtemp(prefix=f"perf-{self.label}-", dir=directory))
        self.brokers = [
            Broker(self.home / f"broker-{number}", number, port)
            for number, port in enumerate(free_ports(brokers), start=1)
        ]
        self._admin: Any = None

    # ---- start and end

    def start(self) -> None:
        """Start everything and wait until each broker answers."""
        raise NotImplementedError

    def launch(self, broker: Broker) -> None:
        """Start one broker's process, without waiting."""
        raise NotImplementedError

    def stop(self) -> None:
        """End everything and remove its directory."""
        for broker in self.brokers:
            broker.end(signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)

    @contextlib.contextmanager
    def running(self) -> Iterator[Any]:
        """Started, and stopped at the end whatever happens."""
        try:
            self.start()
            yield self
        finally:
            self.stop()

    def wait_serving(self, broker: Broker, timeout_s: float = START_TIMEOUT_S, poll_s: float = 0.01) -> None:
        """Until it answers ApiVersions. Raises TargetError when it ended or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not _answers(broker.address):
            if broker.process is None or broker.process.poll() is not None:
                raise TargetError(f"{self.label} broker {broker.number} ended:\n{broker.output()}")
            if time.monotonic() > deadline:
                raise TargetError(f"{self.label} broker {broker.number} does not answer:\n{broker.output()}")
            time.sleep(poll_s)

    @property
    def pids(self) -> list[int]:
        """The processes whose CPU and memory count."""
        return [broker.pid for broker in self.brokers]

    @property
    def bootstrap(self) -> str:
        """For clients."""
        return ",".join(f"{broker.address.host}:{broker.address.port}" for broker in self.brokers)

    def loop_lags(self) -> dict[float, int]:
        """How often the brokers' event loops were at most so many ms late, since their start; nothing if unknown."""
        return {}

    # ---- topics

    @property
    def admin(self) -> Any:
        """A client of librdkafka."""
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def create_topic(self, name: str, partitions: int = 1, replicas: int = 1, **config: object) -> None:
        """Create it and wait until every partition has a leader. Raises TargetError."""
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=settings)
        try:
            self.admin.create_topics([topic], request_timeout=120, operation_timeout=120)[name].result(150)
        except Exception as error:
            raise TargetError(f"{self.label} does not create topic {name}: {error}") from error
        deadline = time.monotonic() + 60
        while len(self.leaders(name)) < partitions:
            if time.monotonic() > deadline:
                raise TargetError(f"{self.label}: not every partition of {name} has a leader")
            time.sleep(0.05)
        self._wait_leading(name, deadline)

    def alter(self, kind: str, name: str, settings: Mapping[str, str]) -> None:
        """Set settings of a ``TOPIC`` or a ``GROUP``, and leave the others."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined,unused-ignore]
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        entries = [ConfigEntry(*row, incremental_operation=AlterConfigOpType.SET) for row in settings.items()]
        resource = ConfigResource(ResourceType[kind], name, incremental_configs=entries)
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(60)

    def _wait_leading(self, topic: str, deadline: float) -> None:
        """Metadata names a new leader a moment before it leads: ask each for records until it says no error."""
        by_leader: dict[Address, list[int]] = {}
        for number, address in self.leaders(topic).items():
            by_leader.setdefault(address, []).append(number)
        for address, numbers in by_leader.items():
            with socket.create_connection(address, timeout=30) as sock, sock.makefile("rb") as answers:
                for number in numbers:
                    frame = fetch_frame(
                        topic, number, batch_bytes=1, batch_records=1, max_bytes=1, max_wait_ms=0, min_bytes=0
                    )
                    while True:
                        sock.sendall(frame.data)
                        answer = answers.read(int.from_bytes(answers.read(4), "big"))
                        error = int.from_bytes(answer[frame.error_at : frame.error_at + 2], "big")
                        if not error:
                            break
                        if time.monotonic() > deadline:
                            raise TargetError(f"{self.label}: {topic}-{number} is not led yet: error code {error}")
                        time.sleep(0.02)

    def delete_topic(self, name: str) -> None:
        """Delete it; its files go soon after."""
        self.admin.delete_topics([name])[name].result(60)

    def leaders(self, topic: str) -> dict[int, Address]:
        """Where the leader of each partition is, of those that have one with all replicas in sync."""
        metadata = self.admin.list_topics(topic, timeout=30)
        found = metadata.topics[topic]
        return {
            number: Address(metadata.brokers[partition.leader].host, metadata.brokers[partition.leader].port)
            for number, partition in found.partitions.items()
            if partition.leader in metadata.brokers and len(partition.isrs) == len(partition.replicas)
        }


def _answers(address: Address) -> bool:
    request = messages.request_class(API_VERSIONS)(version=0)
    try:
        with socket.create_connection(address, timeout=1) as sock:
            sock.settimeout(1)
            sock.sendall(messages.encode_request(API_VERSIONS, 0, 1, "perf", request))
            return len(sock.recv(8)) > 0
    except OSError:
        return False
