"""docs/operations.md without a machine: its settings, certificates and files are made by its commands, and are taken.

``make test-operations`` runs every command in a machine that boots.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from fleetlog.brokers.cli.command_config import read_command_config
from fleetlog.brokers.cli.fleet_file import read_fleet
from fleetlog.brokers.config import load_config
from fleetlog.brokers.console.command import console
from tests.support.operations_page import blocks

ROOT = Path(__file__).parents[2]
PAGE = blocks()
FILES_ONLY = re.compile(r"^(?:fleetlog|systemctl|systemd-run|until|promtool|echo .* \| fleetlog) .*$", re.MULTILINE)
"""Commands that need the machine; what is left makes files."""


@pytest.mark.parametrize("heading", PAGE)
def test_the_commands_are_bash(heading: str) -> None:
    for block in PAGE[heading]:
        subprocess.run(["bash", "-n"], input=block, text=True, check=True, timeout=60)


def test_the_package_has_the_version_of_this_tree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (install,), (again,) = PAGE["The package"], PAGE["Another version"]
    assert f" ./fleetlog_{version}_amd64.deb " in install
    assert f" ./fleetlog_{version}_amd64.deb\n" in again


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page's commands write, with the machine's root here."""
    root = tmp_path_factory.mktemp("machine")
    script = "".join(
        block
        for heading in ("Certificates", "Brokers", "A topic and its users", "Monitoring", "The console")
        for block in PAGE[heading]
    )
    script = FILES_ONLY.sub("", script).replace("chgrp fleetlog", f"chgrp {os.getgid()}")
    script = re.sub(r"^.*\bkcat\b.*$", "", script, flags=re.MULTILINE)
    script = re.sub(r"/(root|etc|var/lib)\b", rf"{root}/\1", script)
    for directory in ("root", "etc/fleetlog", "etc/prometheus", "etc/default", "var/lib/fleetlog"):
        (root / directory).mkdir(parents=True)
    subprocess.run(["bash", "-e"], input=script, text=True, check=True, timeout=60, capture_output=True, cwd=root)
    return root


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_broker_takes_its_settings(files: Path, number: int) -> None:
    path = files / "etc" / "fleetlog" / f"broker-{number}.properties"
    assert path.stat().st_mode & 0o777 == 0o640
    config = load_config(path.read_text(), str(path))
    assert config.broker_id == number
    assert config.min_insync_replicas == 2


def test_the_certificate_is_for_the_name_that_clients_are_told(files: Path) -> None:
    authority = files / "root" / "authority"
    command = ["openssl", "verify", "-CAfile", "ca.pem", "-verify_hostname", os.uname().nodename, "broker.crt"]
    subprocess.run(command, cwd=authority, check=True, timeout=60, capture_output=True)
    assert authority.stat().st_mode & 0o777 == 0o700


def test_clients_take_their_files(files: Path) -> None:
    properties = read_command_config(files / "root" / "admin.properties")
    assert properties["sasl.mechanism"] == "SCRAM-SHA-512"
    path = files / "root" / "fleet.yaml"
    found = read_fleet(path.read_text(), str(path))
    assert found.topics is not None
    assert found.topics["orders"].replication == 3


def test_the_console_takes_its_command(files: Path) -> None:
    """As far as the fleet, which is not there: the options, and the file, in which no password of the fleet stands."""
    (block,) = PAGE["The console"]
    (command,) = [line for line in block.splitlines() if line.startswith("systemd-run ")]
    words = command[command.index("fleetlog console") :].replace("$FLEETLOG_BOOTSTRAP", "127.0.0.1:1").split()
    with console.make_context("console", [word.replace("/etc", f"{files}/etc") for word in words[2:]]) as context:
        assert context.params["login"] == "SCRAM-SHA-512"
        path = Path(context.params["command_config"])
    assert path.stat().st_mode & 0o777 == 0o640
    assert 'password="none"' in read_command_config(path)["sasl.jaas.config"]


def test_prometheus_takes_its_file(files: Path) -> None:
    config = yaml.safe_load((files / "etc/prometheus/prometheus.yml").read_text())
    (targets,) = (job["static_configs"][0]["targets"] for job in config["scrape_configs"])
    pages = [
        load_config((files / f"etc/fleetlog/broker-{number}.properties").read_text()).admin_listener
        for number in (1, 2, 3)
    ]
    assert targets == pages
