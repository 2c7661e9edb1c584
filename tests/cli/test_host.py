"""``fleetlog host``: several broker processes as one unit, with crashes of a broker and of the unit."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from fleetlog.brokers.cli.main import cli
from fleetlog.coordination import ensemble
from fleetlog.coordination.ports import free_ports, free_row
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper

ROOT = Path(__file__).parents[2]
COUNT = 3


class Host:
    """A unit beside its ZooKeeper."""

    def __init__(self, directory: Path, count: int = COUNT) -> None:
        self.count = count
        self.zookeeper = ensemble.start_local(directory / "zookeeper")
        self.port = free_row(2 * (count + 2))[0]
        self.admin = self.port + count
        self.config = directory / "host.properties"
        self.log = directory / "host.out"
        self.data = directory / "data"
        self.settings: dict[str, Any] = {
            "broker.id": 1, "listeners": f"PLAINTEXT://127.0.0.1:{self.port}", "log.dirs": self.data,
            "admin.listener": f"127.0.0.1:{self.admin}", "zookeeper.connect": self.zookeeper.address,
            "offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2,
        }  # fmt: skip
        self.write()
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, **settings: Any) -> None:
        values = {**self.settings, **{name.replace("_", "."): value for name, value in settings.items()}}
        self.config.write_text("".join(f"{name}={value}\n" for name, value in values.items()))

    def start(self, *options: str, **environment: str) -> None:
        command = [
            sys.executable,
            "-m",
            "fleetlog.brokers.cli.main",
            "host",
            str(self.config),
            "--brokers",
            str(self.count),
            *options,
        ]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=os.environ | environment)

    def page(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
        try:
            eventually(condition, what, timeout_s=timeout_s, pause_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log.read_text()[-6000:]}") from None

    def wait_ready(self) -> None:
        self.until(lambda: self.page("/health/ready")[0] == 200, "all brokers are ready")

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.page("/brokers")[1])["brokers"]
        return rows

    def registry(self) -> dict[str, Any]:
        row: dict[str, Any] = json.loads(self.page("/brokers")[1])["registry"]
        return row

    def processes(self) -> list[int]:
        return [int(row["process"]) for row in self.rows()]

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.zookeeper.stop()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    try:
        yield made
    finally:
        made.close()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def samples(page: str, name: str) -> dict[str, float]:
    """The values of a family's samples by their broker."""
    families = text_string_to_metric_families(page)
    return {s.labels["broker"]: s.value for family in families for s in family.samples if s.name == name}


class Writing:
    """A producer with acks=all, and what was acknowledged and refused."""

    def __init__(self, host: Host) -> None:
        bootstrap = ",".join(f"127.0.0.1:{host.port + index}" for index in range(host.count))
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topic = NewTopic("orders", 6, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["orders"].result(30)
        self.failed: list[str] = []
        self.acknowledged = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})

    def _on_delivery(self, error: Any, _: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged += 1

    def write(self) -> None:
        self._producer.produce("orders", b"x", on_delivery=self._on_delivery)
        self._producer.poll(0.02)

    def end(self) -> None:
        assert self._producer.flush(60) == 0


def test_a_rolling_restart_refuses_no_write(host: Host) -> None:
    host.start()
    host.wait_ready()
    before, writing = host.processes(), Writing(host)
    host.until(lambda: host.page("/health/caught-up")[0] == 200, "all are in sync")
    names = {line.split("]")[0] for line in host.log.read_text().splitlines()}
    assert names == {"[host", "[broker 1", "[broker 2", "[broker 3"}
    status, page = host.page("/metrics")
    assert status == 200
    assert set(samples(page, "fleetlog_partitions")) == {"1", "2", "3"}
    assert samples(page, "fleetlog_host_broker_up") == {"1": 1, "2": 1, "3": 1}
    leading = samples(page, "fleetlog_controller")
    refused = CliRunner().invoke(cli, ["host", str(host.config), "--brokers", "3"])
    assert refused.exit_code == 2
    assert "is used by another `fleetlog host` that runs" in refused.stderr

    host.write(num_partitions=5)
    restarting = subprocess.Popen(
        [sys.executable, "-m", "fleetlog.brokers.cli.main", "host", "restart", str(host.config), "--timeout", "120"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
    )  # fmt: skip
    while restarting.poll() is None:
        writing.write()
    assert restarting.stdout is not None
    said = restarting.stdout.read()
    assert restarting.returncode == 0, said + host.log.read_text()[-6000:]
    assert said == "restarted 3 brokers\n"
    writing.end()
    assert writing.failed == []
    assert writing.acknowledged > 50
    assert not set(before) & set(host.processes())
    text = host.log.read_text()
    stops = [text.index(f"rolling restart: broker {number} stops") for number in (1, 2, 3)]
    backs = [text.index(f"rolling restart: broker {number} is back") for number in (1, 2, 3)]
    order = sorted(zip(stops, backs, strict=True))
    assert all(back < stop for (_, back), (stop, _) in itertools.pairwise(order)), "one at a time"
    assert leading == {str(number): float(stop == max(stops)) for number, stop in enumerate(stops, 1)}, "one election"

    assert host.process is not None
    host.write(broker_id=7)
    host.process.send_signal(signal.SIGHUP)
    host.until(lambda: "rolling restart given up: the settings cannot be used" in host.log.read_text(), "it is refused")
    host.process.terminate()
    assert host.process.wait(90) == 0, host.log.read_text()[-6000:]
    assert host.log.read_text().count("has stopped") == 6


def test_a_killed_broker_comes_back_and_none_outlives_the_unit(host: Host) -> None:
    host.count = 2
    host.start()
    host.wait_ready()
    (first, *others) = host.processes()
    os.kill(first, signal.SIGKILL)
    host.until(lambda: host.rows()[0]["process"] not in (None, first), "the broker is started again")
    host.wait_ready()
    assert [row["starts"] for row in host.rows()] == [2, 1]
    assert host.processes()[1:] == others
    assert "broker 1 ended with -9; it is started again in 0.5 s" in host.log.read_text()

    children = host.processes()
    assert host.process is not None
    host.process.kill()
    host.process.wait()
    eventually(lambda: not any(map(alive, children)), "all brokers end with the unit", 60, pause_s=0.1)
    gone = CliRunner().invoke(cli, ["host", "status", str(host.config)])
    assert gone.exit_code == 1
    assert "no `fleetlog host` runs on" in gone.stderr


def test_a_registry_runs_beside_the_brokers(tmp_path: Path) -> None:
    """It is started once a broker is ready, again when it ends, anew by a rolling restart, and ends with the unit."""
    host = Host(tmp_path, 1)
    host.write(transaction_state_log_replication_factor=1, transaction_state_log_min_isr=1)
    (port,) = free_ports(1)
    file = tmp_path / "registry.properties"
    file.write_text(f"bootstrap=127.0.0.1:{host.port}\nport={port}\n")
    words = ["host", str(host.config), "--brokers", "1", "--registry", str(file)]
    checked = CliRunner().invoke(cli, [*words, "--check"])
    assert f"registry: http://127.0.0.1:{port}\n" in checked.output
    try:
        host.start("--registry", str(file))
        host.wait_ready()
        body = json.dumps({"schema": '"string"'}).encode()
        address = f"http://127.0.0.1:{port}/subjects/s/versions"
        with urllib.request.urlopen(
            urllib.request.Request(address, body, {"Content-Type": "application/json"}, method="POST"), timeout=60
        ) as answer:
            assert json.load(answer) == {"id": 1}
        first = host.registry()
        os.kill(first["process"], signal.SIGKILL)
        host.until(lambda: host.registry()["starts"] == 2 and host.registry()["ready"], "it is started again")
        assert "[registry] " in host.log.read_text() or "registry has process" in host.log.read_text()
        second = host.registry()["process"]
        roll = CliRunner().invoke(cli, ["host", "restart", str(host.config), "--timeout", "120"])
        assert roll.exit_code == 0, roll.output
        last = host.registry()
        assert last["process"] not in {first["process"], second}
        assert f"registry: process {last['process']}, 3 starts" in (
            CliRunner().invoke(cli, ["host", "status", str(host.config)]).output
        )
        with urllib.request.urlopen(f"{address}/1/schema", timeout=60) as answer:
            assert answer.read() == b'"string"'
        assert host.process is not None
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(90) == 0, "all ended cleanly"
        assert not alive(last["process"])
    finally:
        host.close()


def test_a_broker_that_cannot_start_is_tried_again(tmp_path: Path) -> None:
    made = Host(tmp_path, 2)
    try:
        made.write(listeners="SSL://127.0.0.1:0")  # without a certificate
        made.start()
        assert made.process is not None
        made.until(lambda: "it is started again" in made.log.read_text(), "a refusal is told")
        assert "cannot start" in made.log.read_text()
        made.process.terminate()
        assert made.process.wait(60) == 0
    finally:
        made.close()


def test_the_start_is_complete_without_a_broker_that_fails(tmp_path: Path) -> None:
    made = Host(tmp_path, 2)
    path = tmp_path / "notify"
    told: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox, socket.socket() as other:
        inbox.bind(str(path))
        inbox.settimeout(60)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of before may rest there
        other.bind(("127.0.0.1", made.port + 1))  # the second broker's
        other.listen(1)
        try:
            made.start(NOTIFY_SOCKET=str(path))
            while "READY=1" not in (told or [""])[-1]:
                told.append(inbox.recv(4096).decode())
            while not told[-1].endswith("STATUS=1 of 2 brokers ready; failed, and started again: broker 2"):
                told.append(inbox.recv(4096).decode())
            other.close()
            while not told[-1].endswith("STATUS=2 of 2 brokers ready"):
                told.append(inbox.recv(4096).decode())
            assert sum("READY=1" in one for one in told) == 1
            assert made.process is not None
            made.process.terminate()
            assert made.process.wait(90) == 0
        finally:
            made.close()
