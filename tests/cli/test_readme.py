"""The README's commands, properties and Python, run as they are printed, except for ports and directories."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coordination.ensemble import is_free
from tests.readme import ROOT, snippets
from tests.support.fleet import Fleet

FIRST_PORT = 9092
LIMIT_S = 240


def own_port() -> int:
    """The README's port, or the first of others in a row that are free."""
    for first in (FIRST_PORT, *range(27_800, 32_000, 10)):
        if all(is_free(port) for port in range(first, first + 3)):
            return first
    raise AssertionError("no three ports in a row are free")


class Reader:
    """A reader of the README with a shell, in a directory of their own."""

    def __init__(self, home: Path, port: int) -> None:
        self._port = port
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FLEETLOG_DEV_DIR": str(home),
        }
        if port != FIRST_PORT:
            self._environment["FLEETLOG_BOOTSTRAP"] = f"127.0.0.1:{port}"

    def run(self, *commands: str) -> str:
        """The output of the commands, each of which must do."""
        text = "\n".join(commands).replace(".venv/bin/", "")
        if self._port != FIRST_PORT:
            text = text.replace("dev up ", f"dev up --port {self._port} ").replace(str(FIRST_PORT), str(self._port))
        return self._do(["bash", "-e", "-o", "pipefail", "-c", text])

    def python(self, snippet: str) -> None:
        self._do([sys.executable, "-c", snippet.replace(str(FIRST_PORT), str(self._port))])

    def _do(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.mark.zookeeper
@pytest.mark.slow
def test_a_fleet_of_your_own_and_a_client(tmp_path: Path) -> None:
    begin, fails, _ = snippets("A fleet of your own")
    (moves,) = snippets("Replicas, and moving them")
    (client,) = snippets("A client", "python")
    reader = Reader(tmp_path / "dev", own_port())
    try:
        assert reader.run(begin).splitlines()[-1] == "hello"
        said = reader.run(fails)
        assert "broker 2 (pid" in said
        assert "broker 2 is ready" in said
        reader.python(client)
        assert reader.run("fleetlog consume payments --from beginning -n 1 --key-separator =") == "alice=42\n"
        reader.run("fleetlog dev add")
        commands = [line for line in moves.splitlines() if line.startswith("fleetlog ")]
        assert len(commands) == len(moves.splitlines())
        reader.run(*commands)
        assert "4 of 4 brokers alive" in reader.run("fleetlog cluster describe")
    finally:
        reader.run("fleetlog dev down")


@pytest.mark.zookeeper
def test_the_properties_of_one_broker(tmp_path: Path) -> None:
    several, alone = snippets("A fleet of your own", "properties")
    (start,) = (block for block in snippets("A fleet of your own") if "broker-1.properties" in block)
    fleet = Fleet(tmp_path, brokers=1)
    (broker,) = fleet.brokers
    text = several + alone
    for printed, own in {
        "10.0.0.11:9092": broker.address,
        "/var/lib/fleetlog": str(tmp_path / "data"),
        "zk1:2181,zk2:2181,zk3:2181": fleet.zookeeper_connect,
        "127.0.0.1:9644": f"127.0.0.1:{broker.admin_port}",
    }.items():
        assert printed in text
        text = text.replace(printed, own)
    (tmp_path / "broker-1.properties").write_text(text)
    assert start == "fleetlog broker broker-1.properties\n"
    reader = Reader(tmp_path, broker.port)
    try:
        check = f"cd {tmp_path} && fleetlog broker --check broker-1.properties"
        reader.run(check)
        with broker.log_file.open("wb") as log:
            broker.process = subprocess.Popen(
                [sys.executable, "-m", "brokers.cli.main", *start.split()[1:]], cwd=tmp_path, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        broker.wait_ready()
        reader.run(check, "fleetlog topics create t -p 2")
        said = reader.run("printf '1\\n2\\n' | fleetlog produce t && fleetlog consume t --group g --to end | sort")
        assert said == "2 records to t\n1\n2\n"
        assert '"lag": 0' in reader.run("fleetlog groups describe g --json")
        broker.signal(signal.SIGTERM)
        assert broker.process.wait(60) == 0
    finally:
        fleet.close()


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_versions_of_pyspark_that_are_named_are_those_that_are_taken() -> None:
    wanted = re.search(r'"pyspark>=(\d+\.\d+),<(\d+\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert wanted is not None
    must = [ROOT / "README.md", ROOT / "docs" / "spark.md"]
    may = [path for room in ("examples", "spark_udfs", "deploy") for path in (ROOT / room).rglob("*.*")]
    for place in (*must, *(path for path in may if path.suffix in (".py", ".md", ".yml"))):
        said = set(re.findall(r"(?:Py)?[Ss]park[ =>~v]*(\d+\.\d+)", place.read_text()))
        assert said or place not in must, place
        assert all(_number(wanted[1]) <= _number(version) < _number(wanted[2]) for version in said), place
    assert f"| >={wanted[1]},<{wanted[2]} |" in (ROOT / "docs" / "dependencies.md").read_text()
