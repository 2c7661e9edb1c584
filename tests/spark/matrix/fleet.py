"""Three brokers behind the wire, beside three ZooKeeper nodes, each broker on a small disk of its own."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from fleetlog.spark.client.connections import Client
from fleetlog.spark.sink.batch_transactions import BatchTransactions
from tests.spark.matrix.wire import Wire
from tests.support.ensemble import local_ensemble
from tests.support.fleet import Broker
from tests.support.ports import free_port
from tests.support.waiting import eventually

DISK_MB = 1024
SESSION_MS = 10_000
SETTINGS = {
    "zookeeper.session.timeout.ms": SESSION_MS,
    "zookeeper.connection.timeout.ms": 120_000,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}


class MatrixBroker(Broker):
    """A broker with two listeners: one that clients reach through the wire, and one for brokers and readers."""

    def __init__(self, fleet: MatrixFleet, broker_id: int) -> None:  # not the base's: other listeners, another disk
        self.id = broker_id
        self.port, self.inner_port, self.admin_port = free_port(), free_port(), free_port()
        self.directory = fleet.directory / f"broker-{broker_id}"
        self.disk = self.directory / "disk"
        self.disk.mkdir(parents=True)
        self.mounted = _mounted(self.disk)
        self.config_file = self.directory / "broker.properties"
        self.log_file = self.directory / "broker.out"
        self.process = None
        self.missing = fleet.missing
        outside = fleet.wire.open(broker_id, lambda: self.port)
        settings = {
            "broker.id": broker_id,
            "listeners": f"CLIENT://127.0.0.1:{self.port},INNER://127.0.0.1:{self.inner_port}",
            "advertised.listeners": f"CLIENT://127.0.0.1:{outside},INNER://127.0.0.1:{self.inner_port}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,INNER:PLAINTEXT",
            "inter.broker.listener.name": "INNER",
            "admin.listener": f"127.0.0.1:{self.admin_port}",
            "log.dirs": self.disk / "data",
            "zookeeper.connect": fleet.zookeeper.connect_string,
            **SETTINGS,
        }
        self.config_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def start(self, *overrides: str) -> None:
        """Start it, without the safeguard that the fleet shall miss."""
        assert self.process is None or self.process.poll() is not None, "already running"
        module = (
            ["fleetlog.brokers.cli.main"] if not self.missing else ["tests.spark.matrix.broken_broker", self.missing]
        )
        command = [sys.executable, "-m", *module, "broker", str(self.config_file)]
        with self.log_file.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, cwd=Path(__file__).parents[3])

    def fill_disk(self) -> int:
        """Take all space of its disk; how many bytes that took."""
        assert self.mounted, "a small disk can only be mounted by root"
        ballast = self.disk / "ballast"
        space = os.statvfs(self.disk)
        with ballast.open("wb", buffering=0) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, max(1, space.f_bavail * space.f_frsize - (1 << 16)))
                file.seek(0, os.SEEK_END)
                while True:
                    file.write(bytes(4096))
            except OSError as problem:
                if problem.errno != errno.ENOSPC:
                    raise
            return file.tell()

    def free_disk(self) -> None:
        """Give the space back."""
        (self.disk / "ballast").unlink(missing_ok=True)


def _mounted(where: Path) -> bool:
    if os.getuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(where)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class MatrixFleet:
    """Everything but Spark. ``missing``: the safeguard the brokers do without, for negative controls."""

    def __init__(self, directory: Path, missing: str = "") -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.missing = missing
        self.wire = Wire()
        self.zookeeper = local_ensemble(directory / "zookeeper", 3)
        self._starter = ThreadPoolExecutor(1)
        self.brokers = [MatrixBroker(self, number) for number in (1, 2, 3)]

    def start(self) -> MatrixFleet:
        """Start all, and wait until all serve."""
        self.zookeeper.start()
        for broker in self.brokers:
            broker.start()
        for broker in self.brokers:
            broker.wait_ready()
        self.admin = AdminClient({"bootstrap.servers": self.inner, "log_level": 0})
        return self

    def start_again(self, *nodes: Any) -> None:
        """Nodes of ZooKeeper that were killed. They die with the thread that started them, so no run's own does."""
        for node in nodes:
            self._starter.submit(node.start).result()

    @property
    def inner(self) -> str:
        """Bootstrap addresses that do not pass the wire."""
        return ",".join(f"127.0.0.1:{broker.inner_port}" for broker in self.brokers)

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses through the wire."""
        return ",".join(f"127.0.0.1:{port}" for port in self.wire.ports.values())

    def broker(self, broker_id: int) -> MatrixBroker:
        """By id."""
        return self.brokers[broker_id - 1]

    def close(self) -> None:
        """End and clean up."""
        for broker in self.brokers:
            if broker.process is not None and broker.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    broker.signal(signal.SIGCONT)
                broker.kill()
        for node in self.zookeeper.nodes:
            with contextlib.suppress(Exception):
                node.resume()
        self.zookeeper.close()
        self._starter.shutdown()
        self.wire.clear()
        self.wire.close()
        for broker in self.brokers:
            if broker.mounted:
                subprocess.run(["umount", "-l", str(broker.disk)], check=False)

    # ---- roles of brokers ------------------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, -1 if none does, or the broker that is asked does not know of it yet."""
        partitions = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
        return int(partitions[partition].leader) if partition in partitions else -1

    def controller(self) -> int:
        """The controller's id."""
        return int(self.admin.list_topics(timeout=10).controller_id)

    def coordinator(self, sink_id: str) -> int:
        """The broker that coordinates a sink."""
        client = Client({"bootstrap_servers": self.inner.split(",")})
        try:
            return BatchTransactions(client, sink_id)._find()
        finally:
            client.close()

    # ---- health ----------------------------------------------------------------------------------------------------

    def kill(self, broker_id: int) -> str:
        """SIGKILL; what was done."""
        broker = self.broker(broker_id)
        assert broker.process is not None
        pid = broker.process.pid
        broker.kill()
        assert broker.process.returncode == -signal.SIGKILL
        return f"broker {broker_id} (process {pid}) killed with SIGKILL"

    def revive(self) -> None:
        """Brokers that are down come back; waits until all replicas are in sync."""
        for broker in self.brokers:
            if broker.process is None or broker.process.poll() is not None:
                broker.start()
        for broker in self.brokers:
            broker.wait_ready(120)
        eventually(self.in_sync, "every replica is in sync", 120)

    def in_sync(self) -> bool:
        """Whether every replica of every topic is in sync."""
        try:
            topics = self.admin.list_topics(timeout=5).topics.values()
        except Exception:
            return False
        parts = [part for topic in topics for part in topic.partitions.values()]
        return all(part.leader >= 0 and len(part.isrs) == len(part.replicas) for part in parts)
