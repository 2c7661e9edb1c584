"""``fleetlog dev``: a fleet comes up, is seen, loses a broker, gets it back, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from fleetlog._native.temporary import own_directory
from fleetlog.brokers.cli import dev_fleet
from fleetlog.brokers.cli.dev_security import USERS, DevSecurity
from fleetlog.brokers.cli.dev_state import (
    BrokerState,
    DevError,
    FleetState,
    Process,
    end_all,
    forget,
    load,
    locked,
    save,
    start_time,
)
from fleetlog.brokers.cli.main import cli
from tests.support.fleet import Fleet
from tests.support.ports import free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
LIMIT_S = 90


# --- processes and state ---


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_known_by_its_start(sleeper: subprocess.Popen[bytes]) -> None:
    process = Process.of(sleeper.pid)
    assert process.alive()
    impostor = Process(sleeper.pid, "another time")
    assert not impostor.alive()
    assert not impostor.send(signal.SIGKILL)
    end_all([impostor], 0.1)
    assert sleeper.poll() is None
    assert not process.wait(0.05)
    end_all([process], 10)
    assert not process.alive()
    assert not process.send(signal.SIGTERM)


def test_a_zombie_does_not_run(sleeper: subprocess.Popen[bytes]) -> None:
    process = Process.of(sleeper.pid)
    sleeper.kill()
    eventually(lambda: not process.alive(), "the process ends")
    assert start_time(sleeper.pid) is None
    with pytest.raises(DevError):
        Process.of(sleeper.pid)


def test_a_process_that_ignores_the_polite_signal_is_killed() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    stubborn = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    process = Process.of(stubborn.pid)
    end_all([process], 0.2)
    assert not process.alive()
    stubborn.communicate()


def test_the_state_is_kept(tmp_path: Path) -> None:
    state = FleetState(
        2181, True, [BrokerState(1, 9092, 8080, "/d/1", Process(5, "x")), BrokerState(2, 9093, 8081, "/d")]
    )
    assert load(tmp_path) is None
    save(tmp_path, state)
    assert load(tmp_path) == state
    assert state.bootstrap == "127.0.0.1:9092,127.0.0.1:9093"
    with pytest.raises(DevError, match="there are 1, 2"):
        state.broker(3)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(DevError, match=re.escape("state.json")):
        load(tmp_path)
    forget(tmp_path)
    assert load(tmp_path) is None


def test_one_command_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(DevError, match="another"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DevError, match=str(port)):
            dev_fleet.plan(tmp_path, 1, port, True)


def test_one_start_at_a_time_takes_a_port() -> None:
    with dev_fleet.reserved([27599]):
        with pytest.raises(DevError, match="27599"), dev_fleet.reserved([27598, 27599]):
            pass
        with dev_fleet.reserved([27598]):
            pass
    with dev_fleet.reserved([27599]):
        pass


def test_a_reserved_port_has_one_owner_and_leaves_no_file() -> None:
    owners, most = [0], [0]

    def own_it_often(_: int) -> None:
        for _ in range(300):
            with contextlib.suppress(DevError), dev_fleet.reserved([27597]):
                owners[0] += 1
                most[0] = max(most[0], owners[0])
                time.sleep(0)
                owners[0] -= 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(own_it_often, range(8)))
    assert most == [1]
    assert not list(own_directory("dev").glob("port-2759*.lock"))


def configured(directory: Path, broker_id: int, **settings: str) -> None:
    home = directory / f"broker-{broker_id}"
    (home / "data").mkdir(parents=True)
    lines = {"log.dirs": str(home / "data"), **settings}
    (home / "broker.properties").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))


def test_a_directory_keeps_its_brokers(tmp_path: Path) -> None:
    assert dev_fleet.count_of(tmp_path, None) == 3
    assert dev_fleet.count_of(tmp_path, 1) == 1
    for broker_id in (1, 2, 3, 4):
        configured(tmp_path, broker_id)
    assert dev_fleet.count_of(tmp_path, None) == 4
    assert dev_fleet.count_of(tmp_path, 5) == 5
    with pytest.raises(DevError, match=r"4 brokers.*--brokers 4.*--dir.*--delete-data"):
        dev_fleet.count_of(tmp_path, 1)


def test_a_start_that_failed_binds_nothing(tmp_path: Path) -> None:
    configured(tmp_path, 1)
    (tmp_path / "broker-1" / "data").rmdir()
    assert dev_fleet.count_of(tmp_path, None) == 3


def test_racks_go_round_and_are_kept(tmp_path: Path) -> None:
    def racks(*wanted: str) -> list[str]:
        return [broker.rack for broker in dev_fleet.plan(tmp_path, 3, 0, True, wanted).brokers]

    assert racks() == ["", "", ""]
    assert racks("a", "b") == ["a", "b", "a"]
    configured(tmp_path, 2, **{"broker.rack": "z"})
    assert racks() == ["", "z", ""]
    state = dev_fleet.plan(tmp_path, 3, 0, True, ("a",))
    assert "broker.rack=a\n" in dev_fleet.write_config(state, state.brokers[0], {}).read_text()
    assert dev_fleet.add_broker(tmp_path, state, "b").rack == "b"
    assert "broker.rack=b\n" in (tmp_path / "broker-4" / "broker.properties").read_text()


def test_what_dev_sets_for_each_broker_is_refused(tmp_path: Path) -> None:
    one, three = (dev_fleet.plan(tmp_path, count, 0, True) for count in (1, 3))
    written = dev_fleet.write_config(one, one.brokers[0], {}).read_text().splitlines()
    chosen = {line.partition("=")[0] for line in written} - set(dev_fleet.DEFAULT_SETTINGS)
    assert chosen - set(dev_fleet.OWN_SETTINGS) == set(dev_fleet.replication_settings(1)), "which may be given"
    for name in (*dev_fleet.OWN_SETTINGS, "advertised.listeners"):
        with pytest.raises(DevError, match=f"^--set {re.escape(name)}: .*sets that for each broker"):
            dev_fleet.check_settings([name], three, None)
    dev_fleet.check_settings(["advertised.listeners", "ssl.keystore.type", "num.partitions"], one, None)
    security = DevSecurity(tmp_path, dict.fromkeys(USERS, "x"), "x")
    dev_fleet.check_settings(["audit.enable"], one, security)
    with pytest.raises(DevError, match=re.escape("ssl.keystore.type")):
        dev_fleet.check_settings(["ssl.keystore.type"], one, security)
    words = ["dev", "up", "--detach", "--port", "0", "--set", "admin.listener=127.0.0.1:1", "--dir", str(tmp_path)]
    done = CliRunner().invoke(cli, words)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "--set admin.listener" in done.stderr


def test_only_what_dev_made_is_deleted(tmp_path: Path) -> None:
    configured(tmp_path, 1)
    (tmp_path / "broker-notes").mkdir()
    done = CliRunner().invoke(cli, ["dev", "down", "--delete-data", "--dir", str(tmp_path)])
    assert done.exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["broker-notes"]


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetlog.coordination.ensemble.importlib.util.find_spec", lambda name: None)
    with pytest.raises(DevError, match=r"pip install '\.\[spark\]'"):
        dev_fleet.check_tools()


def test_without_a_schema_registry_it_says_why(tmp_path: Path) -> None:
    """As where a package is missing: its last words stand in the warning, and the fleet goes on without it."""
    state = FleetState(2181, True, [BrokerState(1, free_port(), 8080, str(tmp_path))])
    dev_fleet.start_registry(tmp_path, state, None, 0)
    assert state.registry is not None
    began = state.registry
    why = dev_fleet.wait_registry(tmp_path, state, time.monotonic() + 60)
    assert why.startswith("no broker answers at 127.0.0.1:")
    assert not began.alive()
    assert load(tmp_path) == state
    assert state.registry is None


# --- the whole thing ---


class Dev:
    """The command line, always with this test's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "fleetlog.brokers.cli.main", "dev", *words, "--dir", str(self.directory)]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    def ok(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return report

    def processes(self) -> list[int]:
        """Everything that runs in the directory, or has it in its command line, the commands of this class aside."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and start_time(int(entry.name)) is not None:
                try:
                    words = [*(entry / "cmdline").read_bytes().split(b"\0"), bytes((entry / "cwd").readlink())]
                except OSError:
                    continue
                if any(word.startswith(bytes(self.directory)) for word in words) and b"dev" not in words:
                    found.append(int(entry.name))
        return found


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    dev = Dev(tmp_path / "fleet")
    yield dev
    dev.run("down")
    for pid in dev.processes():
        os.kill(pid, signal.SIGKILL)


def use(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"x")
    assert producer.flush(30) == 0


def register(registry: str, subject: str) -> int:
    """The id of a schema."""
    request = Request(
        f"{registry}/subjects/{subject}/versions", b'{"schema":"\\"int\\""}', {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=60) as answer:
        return int(json.load(answer)["id"])


def replicas(bootstrap: str, *topics: str) -> set[int]:
    from confluent_kafka.admin import AdminClient

    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics
    return {len(p.replicas) for topic in topics for p in found[topic].partitions.values()}


@pytest.mark.parametrize(("count", "factor", "minimum"), [(1, "1", "1"), (2, "2", "2"), (3, "3", "2"), (9, "3", "2")])
def test_replicas_by_the_number_of_brokers(count: int, factor: str, minimum: str) -> None:
    assert dev_fleet.replication_settings(count) == {
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": minimum,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": minimum,
    }


@pytest.mark.zookeeper
def test_the_ready_check_waits_for_each_brokers_registration_and_leaves_nothing(tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient

    fleet = Fleet(tmp_path, brokers=2, default_replication_factor=2)
    try:
        first, second = fleet.brokers
        state = FleetState(0, True, [BrokerState(b.id, b.port, b.admin_port, str(b.directory)) for b in fleet.brokers])
        first.start()
        first.wait_ready()
        with ThreadPoolExecutor() as pool:
            checking = pool.submit(dev_fleet.check_with_client, state)
            eventually(
                lambda: first.answered("CreateTopics") > 0 or checking.done(), "the check creates a topic", LIMIT_S
            )
            second.start()
            checking.result(LIMIT_S)
        admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
        eventually(  # another broker may not have read the deletion yet
            lambda: {name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")},
            "the check's topic is gone",
            good=lambda names: not names,
        )
        assert admin.list_consumer_groups().result(30).valid == []
    finally:
        fleet.close()


@pytest.mark.zookeeper
@pytest.mark.slow
def test_up_kill_start_down(dev: Dev) -> None:
    assert dev.run("status").returncode == 3
    assert dev.run("kill", "1").returncode == 1
    bucket = dev.directory.parent / "bucket"
    words = ("--brokers", "2", "--port", "0", "--bucket", f"file://{bucket}")
    ready = json.loads(dev.ok("up", *words, "--detach", "--json"))
    assert ready["running"]
    assert len(dev.processes()) == 4
    eventually(lambda: list(bucket.glob("fleetlog-owner/*")), "the bucket is this fleet's")
    use(ready["bootstrap"], "t")
    assert dev.status()["bucket"] == f"file://{bucket}"
    assert register(ready["registry"], "t-value") == 1
    again = dev.run("up", "--port", "0", "--detach")
    assert again.returncode == 1
    assert "runs there already" in again.stderr
    dev.ok("kill", "1")
    report = dev.status()
    assert not report["running"]
    assert [row["running"] for row in report["brokers"]] == [False, True]
    assert dev.run("kill", "1").returncode == 1
    assert dev.run("kill", "3").returncode == 1
    dev.ok("start", "1")
    assert dev.status()["running"]
    assert replicas(ready["bootstrap"], "t", "__consumer_offsets") == {2}, "as many copies as there are brokers"
    dev.ok("add")
    report = dev.status()
    assert report["running"]
    assert [row["id"] for row in report["brokers"]] == [1, 2, 3]
    assert len(dev.processes()) == 5
    use(report["brokers"][2]["address"], "t")
    assert [row["state"] for row in report["brokers"]] == ["ready"] * 3
    os.kill(report["zookeeper"]["pid"], signal.SIGKILL)
    reason = "the ZooKeeper session's lease has run out"
    report = eventually(
        dev.status, "leases run out", good=lambda one: {row["not_ready"] for row in one["brokers"]} == {reason}
    )
    assert [row["state"] for row in report["brokers"]] == ["not ready"] * 3
    shown = dev.run("status").stdout
    assert "starting" not in shown
    assert shown.count(" is not ready: ") == 3
    assert "no ZooKeeper runs: `fleetlog dev down" in shown
    dev.ok("down")
    assert dev.processes() == []
    assert dev.status()["running"] is False
    assert "no fleet runs" in dev.ok("down")
    # the data is still there, also with other ports, and so is the broker that was added
    assert "holds the data of 3 brokers" in dev.run("up", "--brokers", "2", "--port", "0", "--detach").stderr
    assert f"`fleetlog dev down --dir {dev.directory}` ends it" in dev.ok("up", "--port", "0", "--detach")
    second = dev.status()
    assert [row["id"] for row in second["brokers"]] == [1, 2, 3]
    assert register(second["registry"], "other-value") == 1, "the same schema has the same id"
    from confluent_kafka.admin import AdminClient

    assert "t" in AdminClient({"bootstrap.servers": second["bootstrap"]}).list_topics(timeout=30).topics
    dev.ok("down", "--delete-data")
    assert not list(dev.directory.glob("broker-*"))
    assert dev.processes() == []


def _foreground(dev: Dev) -> subprocess.Popen[str]:
    return subprocess.Popen(
        dev.command("up", "--brokers", "1", "--port", "0"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _wait_for(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"it ended without {text!r}:\n{seen}")


@pytest.mark.zookeeper
@pytest.mark.slow
@pytest.mark.parametrize("how", ["ctrl-c", "sigterm", "sigkill", "down"])
def test_the_foreground_leaves_nothing_behind(dev: Dev, how: str) -> None:
    process = _foreground(dev)
    try:
        _wait_for(process, "Ctrl-C ends it")
        assert len(dev.processes()) == 3
        if how == "ctrl-c":
            os.killpg(process.pid, signal.SIGINT)
        elif how == "sigterm":
            process.terminate()
        elif how == "sigkill":
            process.kill()
        else:
            dev.ok("down")
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == (-signal.SIGKILL if how == "sigkill" else 0)
        if how == "sigkill":
            eventually(dev.processes, "the processes end with it", good=lambda left: left == [])
        assert dev.processes() == []
    finally:
        process.kill()
        process.communicate()


@pytest.mark.zookeeper
@pytest.mark.parametrize("detach", [True, False])
def test_ctrl_c_during_the_start_leaves_nothing_behind(dev: Dev, detach: bool) -> None:
    words = ["up", "--brokers", "2", "--port", "0", *(["--detach"] if detach else [])]
    process = subprocess.Popen(
        dev.command(*words), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    log = dev.directory / "broker-1" / "broker.log"
    eventually(log.exists, "the first broker starts", pause_s=0.01)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, said
    assert dev.processes() == []


@pytest.mark.zookeeper
def test_a_broker_that_cannot_start_is_quoted_and_all_is_ended(dev: Dev) -> None:
    done = dev.run("up", "--brokers", "1", "--port", "0", "--detach", "--set", "num.partitions=none")
    assert done.returncode == 1
    assert "broker 1 ended" in done.stderr
    assert "num.partitions" in done.stderr
    assert dev.processes() == []
