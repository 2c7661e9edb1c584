"""fleetlog brokers beside one ZooKeeper."""

from __future__ import annotations

import re
import shutil
import sys
import urllib.request
from collections import Counter
from pathlib import Path

from fleetlog.coordination import ensemble
from fleetlog.coordination.ports import free_ports
from perf.build import ROOT
from perf.targets.base import HOST, Broker, Cluster

ZOOKEEPER_HEAP = "-Xmx512m"
"""As a fleet with 10,000 partitions needs it."""
LAG = r'^fleetlog_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)'


class Fleetlog(Cluster):
    """``tree`` is the source tree to run, ``native`` the kernels: auto, cython or pure. ``settings`` on top of all."""

    label = "fleetlog"

    def __init__(
        self,
        brokers: int = 1,
        directory: Path | None = None,
        *,
        tree: Path = ROOT,
        native: str = "cython",
        label: str = "fleetlog",
        **settings: object,
    ) -> None:
        self.label = label
        super().__init__(brokers, directory)
        self.tree, self.native = tree, native
        self.zookeeper: ensemble.ZooKeeperNode | None = None
        self._admin_ports = dict(enumerate(free_ports(brokers), start=1))
        self.settings: dict[str, object] = {name.replace("_", "."): value for name, value in settings.items()}

    def start(self) -> None:
        """ZooKeeper first, then the brokers."""
        self.zookeeper = ensemble.start_local(self.home / "zookeeper", heap=ZOOKEEPER_HEAP)
        for broker in self.brokers:
            self._write_config(broker)
            self.launch(broker)
        for broker in self.brokers:
            self.wait_serving(broker)

    def launch(self, broker: Broker) -> None:
        """Start one broker's process, without waiting."""
        package = "fleetlog." if (self.tree / "fleetlog").is_dir() else ""  # older trees' rooms had bare names
        properties = str(broker.directory / "broker.properties")
        command = [sys.executable, "-m", f"{package}brokers.cli.main", "broker", properties]
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(self.home / "bytecode")}  # as installed
        broker.launch(command, {"FLEETLOG_NATIVE": self.native, **compiled}, self.tree)

    def _write_config(self, broker: Broker) -> None:
        assert self.zookeeper is not None, "started before"
        replicas = min(3, len(self.brokers))
        settings: dict[str, object] = {
            "broker.id": broker.number,
            "listeners": f"PLAINTEXT://{HOST}:{broker.address.port}",
            "log.dirs": broker.directory / "data",
            "zookeeper.connect": self.zookeeper.address,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": min(2, replicas),
            "group.initial.rebalance.delay.ms": 0,
            "log.segment.delete.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "admin.listener": f"{HOST}:{self._admin_ports[broker.number]}",
            **self.settings,
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (broker.directory / "broker.properties").write_text(text)

    def loop_lags(self) -> dict[float, int]:
        """As the brokers' metrics say."""
        found: Counter[float] = Counter()
        for port in self._admin_ports.values():
            with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=30) as answer:
                text = answer.read().decode()
            for bound, count in re.findall(
                r'^fleetlog_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)', text, re.MULTILINE
            ):
                found[float(bound) * 1000] += round(float(count))
        return dict(found)

    def stop(self) -> None:
        """Brokers, then ZooKeeper."""
        for broker in self.brokers:
            broker.end()
        if self.zookeeper is not None:
            self.zookeeper.stop()
        shutil.rmtree(self.home, ignore_errors=True)
