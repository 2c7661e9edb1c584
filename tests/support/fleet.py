"""A real fleet for tests: one ZooKeeper, broker processes that are started, killed with SIGKILL and started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from fleetlog.coordination import ensemble
from fleetlog.coordination.ports import free_ports

START_TIMEOUT_S = 60.0


def says_ready(admin_port: int) -> bool:
    """Whether the broker whose admin listener this is says that it is ready; no answer means no."""
    return _says_yes(admin_port, "ready")


def _says_yes(admin_port: int, question: str) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{admin_port}/health/{question}", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Broker:
    """One broker process with its own directory, configuration and log file."""

    module = "fleetlog.brokers.cli.main"

    def __init__(self, fleet: Fleet, broker_id: int) -> None:
        self.id = broker_id
        self.port, self.admin_port = free_ports(2)
        self.directory = fleet.directory / f"broker-{broker_id}"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.config_file = self.directory / "broker.properties"
        self.log_file = self.directory / "broker.out"
        self.process: subprocess.Popen[bytes] | None = None
        self.within: list[str] = []
        """What runs the broker's command, if something does."""
        settings = {
            "broker.id": broker_id,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "admin.listener": f"127.0.0.1:{self.admin_port}",
            "log.dirs": self.directory / "data",
            "zookeeper.connect": fleet.zookeeper_connect,
            "group.initial.rebalance.delay.ms": 0,
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": min(3, fleet.size),
            "transaction.state.log.num.partitions": 4,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
            "transaction.state.log.replication.factor": min(3, fleet.size),
            "transaction.state.log.min.isr": min(2, fleet.size),
            **fleet.settings,
        }
        self.config_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *overrides: str) -> None:
        assert self.process is None or self.process.poll() is not None, "already running"
        command = [*self.within, sys.executable, "-m", self.module, "broker", str(self.config_file)]
        for override in overrides:
            command += ["--override", override]
        with self.log_file.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, cwd=Path(__file__).parents[1])

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"broker {self.id} ended with {self.process.returncode}:\n{self.output()}")
            if says_ready(self.admin_port):
                return
            time.sleep(0.05)
        raise AssertionError(f"broker {self.id} is not ready after {timeout_s} s:\n{self.output()}")

    def caught_up(self) -> bool:
        """Whether all of its replicas have been in sync since it started: only then another broker may stop."""
        return _says_yes(self.admin_port, "caught-up")

    def answered(self, api: str) -> float:
        """How many requests of an API the broker has answered."""
        return self._figure(rf'fleetlog_requests_total{{.*"{api}".*}}')

    def figure(self, name: str) -> float:
        """A figure without labels; 0 where it is not on the page."""
        return self._figure(re.escape(name))

    def _figure(self, pattern: str) -> float:
        page = urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=30).read().decode()
        found = re.search(rf"^{pattern} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def operators_pages(self) -> str:
        """All that the admin listener tells, with the names of its pages."""
        address = f"http://127.0.0.1:{self.admin_port}"
        try:
            urlopen(f"{address}/", timeout=30)
        except HTTPError as error:
            listed = error.read().decode()
        found = [listed]
        for page in re.findall(r"/[a-z/-]+", listed):
            try:
                found.append(urlopen(f"{address}{page}", timeout=30).read().decode())
            except HTTPError as error:  # a verdict that is no
                found.append(error.read().decode())
        return "\n".join(found)

    def output(self) -> str:
        return self.log_file.read_text(errors="replace")[-8000:]

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = 20.0) -> int:
        """SIGTERM: a clean shutdown."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.kill(self.process.pid, signal.SIGABRT)
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"broker {self.id} did not stop in {timeout_s} s:\n{self.output()}") from None
        return self.process.returncode


class Fleet:
    """N brokers beside one ZooKeeper, all on loopback, all ended by :meth:`close`, or when one cannot start."""

    def __init__(self, directory: Path, brokers: int = 3, **settings: object) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.size = brokers
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.zookeeper = ensemble.start_local(directory / "zookeeper")
        self.zookeeper_connect = self.zookeeper.address
        self.brokers = [Broker(self, number) for number in range(1, brokers + 1)]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def start(self, count: int | None = None) -> Fleet:
        """All brokers, or the first of them: the rest are a test's to start."""
        started = self.brokers[:count]
        try:
            for broker in started:
                broker.start()
            for broker in started:
                broker.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        for broker in self.brokers:
            if broker.process is not None and broker.process.poll() is None:
                broker.kill()
        self.zookeeper.stop()
