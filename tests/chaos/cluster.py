"""The cluster under test: four brokers and three ZooKeeper nodes, each a process on a host and a disk of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from fleetlog.coordination.ensemble import ZooKeeperNode, find_classpath, find_java, spawn
from tests.chaos import workload_shares
from tests.chaos.bucket import ChaosBucket
from tests.chaos.clocks import HostClock
from tests.chaos.clocks import build as build_shim
from tests.chaos.login import broker_settings, make
from tests.chaos.network import Network, isolate, open_network

REPLICATION = 3
"""Replicas of every topic; with 1 the faults that would lose data on one replica are left out."""
MIN_INSYNC = 2 if REPLICATION >= 3 else 1
BROKERS = (1, 2, 3, 4)
"""One more than a topic has replicas: moves reach brokers that had none."""
KAFKA_PORT, ADMIN_PORT = 9092, 9100
ZOOKEEPER_PORTS = (2181, 2888, 3888)
ZOOKEEPER_PORT = ZOOKEEPER_PORTS[0]
SESSION_MS, LAG_MS, TICK_MS = 6_000, 10_000, 500
DISK_MB = 192
ROOT = Path(__file__).parents[2]
RUNNER = "runner"
CLIENT_HOSTS = ("c1", "c2")


def broker_host(number: int) -> str:
    """The host of a broker."""
    return f"b{number}"


class Machine:
    """What brokers and ZooKeeper nodes have in common: a host, a clock, a process that comes and goes."""

    process: subprocess.Popen[bytes] | None = None

    def __init__(self, host: str, network: Network, clock: HostClock, log_file: Path) -> None:
        self.host = host
        self.network = network
        self.clock = clock
        self.log_file = log_file
        self.wanted = False
        """Whether it should be running; a process that ends while it is wanted has died by itself."""
        self.environment: dict[str, str] = {}
        """Of its processes, besides all else."""

    @property
    def address(self) -> str:
        """The host's IP address."""
        return self.network.address(self.host)

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def command(self) -> list[str]:
        """What is started."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the process; doesn't wait for it to serve."""
        assert self.pid is None, f"{self.host} runs already"
        self.wanted = True
        with self.log_file.open("ab") as out, self.network.inside(self.host):
            self.process = spawn(
                self.command(),
                ROOT,
                out,
                die_with_parent=True,
                environment={
                    **os.environ,
                    **self.clock.environment,
                    **self.network.environment(self.host),
                    **self.environment,
                },
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when it doesn't run."""
        if self.pid is not None:
            os.kill(self.pid, number)

    def kill(self) -> int:
        """SIGKILL, wait for the end, return the exit status."""
        assert self.process is not None
        self.wanted = False
        self.process.kill()
        return self.process.wait()

    def serves(self) -> bool:
        """Does it say that it serves?"""
        raise NotImplementedError

    def state(self) -> str:
        """The kernel's letter for the process: T is stopped, Z or nothing is dead."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return ""


class ChaosBroker(Machine):
    """A broker; its log directory is a small file system of its own, so that it can fill up."""

    def __init__(
        self,
        number: int,
        network: Network,
        clock: HostClock,
        directory: Path,
        zookeeper: str,
        bucket: ChaosBucket | None = None,
    ) -> None:
        super().__init__(broker_host(number), network, clock, directory / f"broker-{number}.log")
        self.number = number
        self.disk = directory / f"disk-{number}"
        self.config_file = directory / f"broker-{number}.properties"
        mount_disk(self.disk)
        if bucket is not None:
            self.environment |= bucket.environment
        settings = {
            "broker.id": number,
            "broker.rack": f"rack-{number}",
            "replica.selector.class": "RackAwareReplicaSelector",
            **broker_settings(f"{self.address}:{KAFKA_PORT}", REPLICATION),
            "admin.listener": f"{self.address}:{ADMIN_PORT}",
            "log.dirs": self.disk / "data",
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": SESSION_MS,
            "zookeeper.connection.timeout.ms": 600_000,
            "replica.lag.time.max.ms": LAG_MS,
            "auto.create.topics.enable": "false",
            "default.replication.factor": REPLICATION,
            "min.insync.replicas": MIN_INSYNC,
            "offsets.topic.replication.factor": REPLICATION,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": REPLICATION,
            "transaction.state.log.min.isr": MIN_INSYNC,
            "transaction.state.log.num.partitions": 4,
            "transaction.last.producer.epoch": 40,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
            "group.initial.rebalance.delay.ms": 0,
            "group.consumer.min.session.timeout.ms": 6_000,
            "group.consumer.session.timeout.ms": 6_000,
            "group.consumer.min.heartbeat.interval.ms": 1_000,
            "group.consumer.heartbeat.interval.ms": 1_000,
            **workload_shares.BROKER,
            "log.segment.bytes": 1 << 17,
            "log.flush.offset.checkpoint.interval.ms": 15_000,
            "log.cleaner.backoff.ms": 500,
            **(bucket.broker_settings if bucket is not None else {}),
        }
        self.config_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.system.held", "broker", str(self.config_file)]

    def serves(self) -> bool:
        try:
            with urlopen(f"http://{self.address}:{ADMIN_PORT}/health/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def figures(self, prefix: str) -> dict[str, float]:
        """Its metrics whose names begin so, with their labels; none while it does not answer."""
        try:
            with urlopen(f"http://{self.address}:{ADMIN_PORT}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except (URLError, OSError):
            return {}
        rows = (line.rsplit(" ", 1) for line in lines if line.startswith(prefix))
        return {name: float(value) for name, value in rows}

    def standing(self) -> str:
        """What a thread of the broker says of a loop that does not move; empty when it moves or nothing answers."""
        try:
            with urlopen(f"http://{self.address}:{ADMIN_PORT}/health/live", timeout=2) as answer:
                said = answer.read().decode()
        except HTTPError as error:
            said = error.read().decode()
        except (URLError, OSError):
            return ""
        return said.strip() if "stood still" in said else ""

    @property
    def hold(self) -> Path:
        """The file that holds the loop after SIGUSR1, as long as it exists (tests/system/held.py)."""
        return self.config_file.with_suffix(".hold")

    @property
    def ballast(self) -> Path:
        """The file that fills the disk."""
        return self.disk / "ballast"


class ChaosZooKeeper(Machine):
    """A ZooKeeper node."""

    def __init__(self, number: int, network: Network, clock: HostClock, directory: Path, size: int) -> None:
        super().__init__(f"z{number}", network, clock, directory / f"zookeeper-{number}.log")
        self._settings = _Settings(directory / f"zookeeper-{number}", number, network, size)

    def command(self) -> list[str]:
        return self._settings.command()

    def serves(self) -> bool:
        return self.mode() is not None

    def mode(self) -> str | None:
        """``leader``, ``follower``, or None while it doesn't serve."""
        with contextlib.suppress(OSError):
            import socket

            with socket.create_connection((self.address, ZOOKEEPER_PORT), timeout=1) as sock:
                sock.settimeout(1)
                sock.sendall(b"srvr")
                for line in sock.makefile("r"):
                    if line.startswith("Mode: "):
                        return line.removeprefix("Mode: ").strip()
        return None


class _Settings(ZooKeeperNode):
    """Writes the files of an ensemble's node, with addresses of hosts instead of the loopback's."""

    def __init__(self, directory: Path, number: int, network: Network, size: int) -> None:
        peers = [
            f"server.{i}={network.address(f'z{i}')}:{ZOOKEEPER_PORTS[1]}:{ZOOKEEPER_PORTS[2]}"
            for i in range(1, size + 1)
        ]
        own = f"clientPortAddress={network.address(f'z{number}')}"
        super().__init__(
            directory, ZOOKEEPER_PORT, node_id=number, peers=[*peers, "standaloneEnabled=false"], tick_ms=TICK_MS,
            settings=[own],
        )  # fmt: skip

    def command(self) -> list[str]:
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self.node_id}\n")
        config = self._config(data).replace("clientPortAddress=127.0.0.1\n", "")
        (self.directory / "zoo.cfg").write_text(config)
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        options = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
        classpath = f"{find_classpath()}:{self.directory}"
        return [find_java(), *options, "-cp", classpath, main, str(self.directory / "zoo.cfg")]


def mount_disk(where: Path) -> None:
    """A file system of DISK_MB: ext4 in a file, or a tmpfs without loop devices. It goes with the mount namespace."""
    where.mkdir(parents=True)
    image = where.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(DISK_MB << 20)
    loop = subprocess.run(
        f"mkfs.ext4 -q -m 0 -O ^has_journal {image} && mount -o loop {image} {where}",
        shell=True,
        capture_output=True,
        check=False,
    )
    if loop.returncode:
        image.unlink()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(where)], check=True)


class Cluster:
    """Everything under test, by name."""

    def __init__(
        self,
        directory: Path,
        network: str = "auto",
        zookeepers: int = 3,
        *,
        secure: bool = False,
        with_bucket: bool = False,
    ) -> None:
        isolate()
        self.directory, self.secure = directory, secure
        directory.mkdir(parents=True, exist_ok=True)
        self.bucket: ChaosBucket | None = None
        if with_bucket:
            mount_disk(directory / "bucket")
            self.bucket = ChaosBucket(directory / "bucket")
        names = [f"z{number}" for number in range(1, zookeepers + 1)]
        library = build_shim(directory)
        hosts = [RUNNER, *CLIENT_HOSTS, *map(broker_host, BROKERS), *names]
        self.network = open_network(network, hosts, directory / "network.log", (KAFKA_PORT, *ZOOKEEPER_PORTS), library)
        clocks = {name: HostClock(library, directory / f"{name}.clock") for name in self.network.hosts}
        if secure:
            names_of = [f"IP:{self.network.address(broker_host(number))}" for number in BROKERS]
            make(directory / "security", names_of, HostClock(library, directory / "authority.clock"))
        self.zookeeper_connect = connect = ",".join(f"{self.network.address(name)}:{ZOOKEEPER_PORT}" for name in names)
        self.zookeepers = [
            ChaosZooKeeper(number, self.network, clocks[name], directory, zookeepers)
            for number, name in enumerate(names, 1)
        ]
        self.brokers = [
            ChaosBroker(n, self.network, clocks[broker_host(n)], directory, connect, self.bucket) for n in BROKERS
        ]

    @property
    def machines(self) -> Sequence[Machine]:
        """All of them."""
        return [*self.zookeepers, *self.brokers]

    @property
    def bootstrap(self) -> str:
        """``bootstrap.servers`` for clients."""
        return ",".join(f"{broker.address}:{KAFKA_PORT}" for broker in self.brokers)

    def close(self) -> None:
        """End all processes."""
        for machine in self.machines:
            if machine.pid is not None:
                machine.kill()
        self.network.close()
