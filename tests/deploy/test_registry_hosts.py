"""docs/registry-hosts.md without its hosts: certificates and files are made by its commands, and are taken."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleetlog.brokers.cli.command_config import read_command_config
from fleetlog.brokers.cli.fleet_file import read_fleet
from fleetlog.brokers.schemas.command import registry
from tests.support.guarded_registry import RIGHTS
from tests.support.operations_page import blocks

ROOT = Path(__file__).parents[2]
PAGE = blocks(ROOT / "docs" / "registry-hosts.md")
HOSTS = ("schemas1.example", "schemas2.example", "schemas3.example")


@pytest.mark.parametrize("heading", PAGE)
def test_the_commands_are_bash(heading: str) -> None:
    for block in PAGE[heading]:
        subprocess.run(["bash", "-n"], input=block, text=True, check=True, timeout=60)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page's commands write, with the machine's root here; each host's files are at their place in ``etc``."""
    root = tmp_path_factory.mktemp("machine")
    authority = root / "root" / "authority"
    authority.mkdir(parents=True)
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=fleet-ca -keyout ca.key"
    subprocess.run([*make.split(), "-out", "ca.pem"], cwd=authority, check=True, timeout=60, capture_output=True)
    whole = (ROOT / "docs" / "registry-hosts.md").read_text()
    first = re.findall(r"^```bash\n(.*?)^```$", whole, re.MULTILINE | re.DOTALL)[0]
    script = "".join((first, *PAGE["Its login"], *PAGE["Files"]))
    script = re.sub(r"^fleetlog .*$", "", script, flags=re.MULTILINE)
    script = re.sub(r"/(root|etc)\b", rf"{root}/\1", script).replace(f"{root}/etc", f"{root}/root/registry/$HOST")
    script = script.replace("$HOST/fleetlog/", "$HOST/")
    environment = {**os.environ, "HOME": str(root)}
    subprocess.run(
        ["bash", "-e"], input=script, text=True, check=True, timeout=60, capture_output=True, cwd=root, env=environment
    )
    return root / "root"


@pytest.mark.parametrize("host", HOSTS)
def test_a_registry_takes_its_files(files: Path, host: str) -> None:
    directory = files / "registry" / host
    assert {path.stat().st_mode & 0o077 for path in directory.iterdir()} == {0}
    with registry.make_context("registry", ["--config", str(directory / "registry.properties")]) as context:
        options: dict[str, Any] = context.params
    assert options["mechanisms"] == ("SCRAM-SHA-512",)
    assert (options["host"], options["port"]) == ("0.0.0.0", 8081)
    properties = read_command_config(Path(options["command_config"]))
    assert properties["security.protocol"] == "SASL_SSL"
    password = re.search('password="([0-9a-f]{32})"', properties["sasl.jaas.config"])
    assert password is not None
    assert password[1] not in (directory / "registry.properties").read_text()
    command = ["openssl", "verify", "-CAfile", "registry-ca.pem", "-verify_hostname", host, "registry.crt"]
    subprocess.run(command, cwd=directory, check=True, timeout=60, capture_output=True)


def test_its_user_gets_what_the_registry_needs_and_no_more(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "any")
    path = files / "registry.yaml"
    found = read_fleet(path.read_text(), str(path))
    assert found.acls is not None
    kinds = {"--topic": "Topic", "--transactional-id": "TransactionalId", "--cluster": "Cluster"}
    needed = {(kinds[right[0]], right[-1]) for right in RIGHTS}
    given = {(row[0], row[4]) for row in found.acls if row[5] == "User:registry"}
    assert given == needed


def test_what_is_sent_to_a_host_changes_no_other_file_there() -> None:
    (start, _) = PAGE["Start"]
    assert "tar -c *)" in start, "not the directory itself, whose mode the host's would become"
