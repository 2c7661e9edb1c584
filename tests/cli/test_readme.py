"""The README's commands, properties and Python, run as they are printed, except for ports and directories."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readme import ROOT, PageReader, own_port, snippets
from tests.support.fleet import Fleet


def reader_of(home: Path, port: int) -> PageReader:
    """One whose commands are those of this installation."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return PageReader(home, port, {**os.environ, "PATH": path})


@pytest.mark.zookeeper
@pytest.mark.slow
def test_a_fleet_of_your_own_and_a_client(tmp_path: Path) -> None:
    begin, fails, _ = snippets("A fleet of your own")
    (moves,) = snippets("Replicas, and moving them")
    (client,) = snippets("A client", "python")
    reader = reader_of(tmp_path / "dev", own_port())
    try:
        assert reader.run(begin).splitlines()[-1] == "hello"
        said = reader.run(fails)
        assert "broker 2 (pid" in said
        assert "broker 2 is ready" in said
        reader.python(client)
        assert reader.run("fleetlog consume payments --from beginning -n 1 --key-separator =") == "alice=42\n"
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
    reader = reader_of(tmp_path, broker.port)
    try:
        check = f"cd {tmp_path} && fleetlog broker --check broker-1.properties"
        reader.run(check)
        with broker.log_file.open("wb") as log:
            broker.process = subprocess.Popen(
                [sys.executable, "-m", "fleetlog.brokers.cli.main", *start.split()[1:]],
                cwd=tmp_path, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)},
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
