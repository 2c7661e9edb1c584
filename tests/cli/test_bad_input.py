"""What an operator types wrong is answered by a sentence that names it, before any broker is asked."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from fleetlog.brokers.cli.main import cli

NOWHERE = ("-b", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("host stop FILE", "'stop' is neither a file nor one of the commands restart, run, status"),
        ("host FILE --brokers 2 --check", "FILE: not a text file in UTF-8 (byte 0)"),
        ("host status FILE", "FILE: not a text file in UTF-8 (byte 0)"),
        ("broker FILE --check", "FILE: not a text file in UTF-8 (byte 0)"),
        ("host restart FILE --timeout nan", "'nan' must be a number"),
        ("doctor --lag-s nan", "'nan' must be a number"),
        ("doctor --transaction-s inf", "'inf' must be a number"),
        ("doctor --hot-mb -1", "-1.0 is not in the range x>=0"),
        ("doctor --timeout nan", "'nan' must be a number"),
        ("brokers drain three", "'three' is not a valid broker id."),
        ("brokers drain 2147483648", "2147483648 is not in the range 0<=x<=2147483647"),
        ("brokers replace 1 --with next", "'next' is not a valid broker id."),
        ("groups lag g ''", "groups lag: a group's name must not be empty (INVALID_GROUP_ID)"),
        ("apply -f FILE", "FILE: no text in UTF-8"),
    ],
)
def test_it_is_named(tmp_path: Path, words: str, said: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xff\xfe")
    command = shlex.split(words.replace("FILE", str(file)))
    at = NOWHERE if command[0] in ("doctor", "brokers", "apply", "groups") else ()
    done = CliRunner().invoke(cli, [*command, *at], catch_exceptions=False)
    assert done.exit_code in (1, 2)
    assert said.replace("FILE", str(file)) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_number_is_a_number() -> None:
    done = CliRunner().invoke(cli, ["doctor", "--lag-s", "0.5", "--timeout", "0.2", *NOWHERE], catch_exceptions=False)
    assert "no broker answers at 127.0.0.1:1" in done.stderr


@pytest.mark.parametrize("named", ["own", "address", "profile", "properties"])
def test_a_fleet_to_try_things_with_is_offered_only_where_no_other_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setattr("fleetlog.brokers.cli.client.DEFAULT_BOOTSTRAP", "localhost:1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in ("FLEETLOG_BOOTSTRAP", "FLEETLOG_PROFILE", "FLEETLOG_COMMAND_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    properties = tmp_path / "properties.properties"
    properties.write_text("security.protocol=SSL\n")
    words = {
        "own": ["--bootstrap", "localhost:1"], "address": NOWHERE, "profile": ["--profile", "far"],
        "properties": ["--bootstrap", "localhost:1", "--command-config", str(properties)],
    }[named]  # fmt: skip
    made = CliRunner().invoke(cli, ["profile", "create", "far", *NOWHERE], catch_exceptions=False)
    assert made.exit_code == 0
    done = CliRunner().invoke(cli, ["topics", "list", "--timeout", "0.5", *words], catch_exceptions=False)
    assert done.exit_code == 1
    assert "no broker answers at" in done.stderr
    assert ("fleetlog dev" in done.stderr) == (named == "own")
