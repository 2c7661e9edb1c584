"""Fleets by name: what wins, who may read the file, and that a login goes to its own fleet only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fleetlog.brokers.cli.profile import profile
from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.ports import free_port

pytestmark = pytest.mark.zookeeper
LOGIN = """security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="planted";
"""


class Profiled(Shell):
    """A user with a folder for settings, and no address of a fleet."""

    def __init__(self, fleet: Fleet, home: Path) -> None:
        super().__init__(fleet)
        self.environment: dict[str, Any] = {"XDG_CONFIG_HOME": str(home), "FLEETLOG_BOOTSTRAP": None}
        self.file = home / "fleetlog" / "profiles.json"


@pytest.fixture
def shell(fleet: Fleet, tmp_path: Path) -> Profiled:
    return Profiled(fleet, tmp_path)


def test_what_says_which_fleet_is_meant(fleet: Fleet, shell: Profiled, tmp_path: Path) -> None:
    """Each of the addresses is one where nobody listens, but one: the error names the address that was taken."""
    dead = [f"127.0.0.1:{free_port()}" for _ in range(4)]
    login = tmp_path / "login.properties"
    login.write_text(LOGIN)
    shell.run("profile", "create", "good", "-b", fleet.bootstrap)
    shell.run("profile", "create", "used", "-b", dead[0], "--command-config", str(login), "--use")
    shell.run("profile", "create", "other", "-b", dead[1])
    listing = ("topics", "list", "--timeout", "5")
    assert dead[0] in shell.fails(*listing)
    shell.run(*listing, "-b", fleet.bootstrap)  # without the login of the profile in use
    shell.run(*listing, "--profile", "good")
    shell.environment["FLEETLOG_PROFILE"] = "other"
    assert dead[1] in shell.fails(*listing)
    shell.environment["FLEETLOG_BOOTSTRAP"] = dead[2]
    assert dead[2] in shell.fails(*listing)
    shell.run(*listing, "--profile", "good")
    assert dead[3] in shell.fails(*listing, "--profile", "good", "-b", dead[3])
    shell.environment["FLEETLOG_BOOTSTRAP"] = fleet.bootstrap
    shell.run(*listing)
    assert "did you mean good?" in shell.fails(*listing, "--profile", "goof")
    del shell.environment["FLEETLOG_PROFILE"]
    shell.environment["FLEETLOG_BOOTSTRAP"] = None
    shell.run("profile", "use", "good")
    shell.run(*listing)


def test_a_profile_from_its_creation_to_its_deletion(fleet: Fleet, shell: Profiled, tmp_path: Path) -> None:
    login, editor = tmp_path / "login.properties", tmp_path / "editor"
    login.write_text(LOGIN)
    words = ("--command-config", str(login), "--console", "https://console", "--registry", "http://registry:8081")
    shell.run("profile", "create", "prod", "-b", "a:1,b:2", *words)
    assert shell.file.stat().st_mode & 0o777 == 0o600
    assert "profile edit prod" in shell.fails("profile", "create", "prod")
    assert "no profile is in use" in shell.fails("profile", "show")
    shown = shell.run("profile", "show", "prod").stdout
    assert json.loads(shown) == {
        "profile": "prod", "bootstrap": "a:1,b:2", "console": "https://console", "registry": "http://registry:8081",
        "security": {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "[hidden]"},
    }  # fmt: skip
    assert "planted" not in shown + repr(shell.run("profile", "list"))
    assert shell.json("profile", "list") == [
        {"profile": "prod", "bootstrap": "a:1,b:2", "protocol": "SASL_PLAINTEXT", "in_use": False}
    ]
    editor.write_text('#!/bin/sh\nsed -i "s/$FROM/$TO/" "$1"\n')
    editor.chmod(0o755)
    shell.environment |= {"VISUAL": str(editor), "FROM": "a:1,b:2", "TO": fleet.bootstrap}
    shell.run("profile", "edit", "prod")
    assert json.loads(shell.file.read_text())["profiles"]["prod"]["bootstrap"] == fleet.bootstrap
    before = shell.file.read_text()
    for broken, reason in (
        (":", "nothing was changed"),
        ("bootstrap", "bootstrap"),
        ("SASL_PLAINTEXT", "security.protocol"),
        ("http:", "is not like http://host:8081"),
    ):
        shell.environment |= {"FROM": broken, "TO": "x"}
        assert reason in shell.fails("profile", "edit", "prod")
    assert shell.file.read_text() == before
    assert shell.file.stat().st_mode & 0o777 == 0o600
    shell.run("profile", "use", "prod")
    shell.run("profile", "delete", "prod")
    assert json.loads(shell.file.read_text()) == {"in_use": "", "profiles": {}}
    assert "no profile 'prod'" in shell.fails("profile", "use", "prod")


def test_a_file_that_others_may_read_is_refused(shell: Profiled) -> None:
    shell.run("profile", "create", "prod", "--use")
    shell.file.chmod(0o644)
    assert "chmod 600" in shell.fails("topics", "list")
    shell.file.chmod(0o600)
    shell.file.write_text('{"in_use": "", "profiles": {"x": {"bootstrap": 5}}}')
    assert "no file of profiles" in shell.fails("profile", "list")
    for text, what in (
        ('{"in_use": "", "profiles": {"x": {"bootstrp": "a:1"}}}', "profile x: bootstrp is none of"),
        ('{"in_use": "", "profiles": {"x": {"bootstrp": "a:1"}}}', "did you mean bootstrap?"),
        ('{"in_usse": "x", "profiles": {}}', "did you mean in_use?"), ('{"in_use": "x"}', 'an object with "profiles"'),
    ):  # fmt: skip
        shell.file.write_text(text)
        assert what in shell.fails("profile", "list")


def test_a_name_that_no_command_can_give_makes_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("", "a\nb"):
        refused = CliRunner().invoke(profile, ["create", "--", name])
        assert (refused.exit_code, "a name is not empty" in refused.output) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_none_makes_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for option in ("--registry", "--console"):
        for address in ("ftp://q", "registry:8081", "http://", "http://r:x", "http://[::1"):
            refused = CliRunner().invoke(profile, ["create", "p", option, address])
            assert (refused.exit_code, option in refused.output, "is not like http" in refused.output) == (
                2,
                True,
                True,
            )
    assert list(tmp_path.iterdir()) == []
