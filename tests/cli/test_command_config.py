"""Commands that log in, and what is wrong with a file of ``--command-config``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fleetlog.brokers.cli.command_config import client_security, read_command_config
from fleetlog.brokers.setting_kinds import ConfigError
from tests.support.fleet import Fleet
from tests.support.secured import PASSWORD, PLAIN_MODULE, SCRAM_MODULE, USER, jaas, secured_fleet

ROOT = Path(__file__).parents[2]
LINE = jaas(PLAIN_MODULE, username=USER, password=PASSWORD)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = secured_fleet(tmp_path_factory.mktemp("commands"), 1)
    try:
        yield found.start()
    finally:
        found.close()


def run(fleet: Fleet, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", *words, "--bootstrap", fleet.bootstrap]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


def written(directory: Path, mechanism: str, password: str = PASSWORD) -> str:
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    line = jaas(module, username=USER, password=password)
    path = directory / "client.properties"
    path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={line}\n")
    return str(path)


def test_a_misspelt_name_does_not_go_on_in_plaintext(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protcol=SASL_SSL\n")
    with pytest.raises(click.BadParameter, match=r"protcol.*no setting of a client; did you mean security\.p"):
        read_command_config(file)
    file.write_text("my.password=secret\n")
    with pytest.raises(click.BadParameter) as caught:
        read_command_config(file)
    assert "secret" not in str(caught.value)


def test_a_file_of_kafkas_tools_is_taken_with_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=b:1\nacks=all\ngroup.id=g\nsecurity.protocol=PLAINTEXT\n")
    assert read_command_config(file)["acks"] == "all"
    assert capsys.readouterr().err == f"fleetlog: {file}: without use here: acks, group.id\n"


@pytest.mark.zookeeper
@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_commands_log_in(fleet: Fleet, tmp_path: Path, mechanism: str) -> None:
    file, topic = written(tmp_path, mechanism), f"t-{mechanism}"
    for words, text in (
        (("topics", "create", topic), ""),
        (("produce", topic), "one\n"),
        (("consume", topic, "--count", "1"), ""),
        (("cluster", "describe"), ""),
    ):
        done = run(fleet, *words, "--command-config", file, text=text)
        assert done.returncode == 0, done.stderr
        assert "consume" not in words or "one" in done.stdout
    listed = run(fleet, "topics", "list", "--json", "--command-config", file)
    assert topic in {row["topic"] for row in json.loads(listed.stdout)}


@pytest.mark.zookeeper
@pytest.mark.slow
def test_a_wrong_password_is_told_at_once(fleet: Fleet, tmp_path: Path) -> None:
    began = time.monotonic()
    done = run(
        fleet, "topics", "list", "--timeout", "60", "--command-config", written(tmp_path, "SCRAM-SHA-256", "wrong-one")
    )
    assert done.returncode == 1
    assert "login" in done.stderr or "uthentication" in done.stderr, done.stderr
    assert "wrong-one" not in done.stderr
    assert time.monotonic() - began < 40


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"security.protocol": "sasl"}, r"security.protocol='sasl': must be one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ({"sasl.mechanism": "PLAIN"}, r"security.protocol='PLAINTEXT': does not log in: set SASL_PLAINTEXT"),
        ({"security.protocol": "SASL_PLAINTEXT"}, r"sasl.mechanism='': must be one of PLAIN, SCRAM-SHA-256"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, r"sasl.jaas.config='': is no JAAS line"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": LINE},
         r"sasl.jaas.config='.hidden.': has the login module of another mechanism"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": LINE[:-1]},
         r"sasl.jaas.config='.hidden.': is no JAAS line: it must end with one semicolon"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
          "sasl.jaas.config": f'{PLAIN_MODULE} required username="a";'}, r"must have username=.* and password="),
    ],
)  # fmt: skip
def test_what_is_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        client_security(properties)
    assert re.search(message, str(refused.value))
    assert PASSWORD not in str(refused.value)
