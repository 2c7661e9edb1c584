"""The bundle for those who help: what it has, and that planted secrets are not in it."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetlog.brokers.cli import debug
from fleetlog.brokers.cli.debug import CONTENTS, lines_without_secrets, tail_of
from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.secured import BROKER_PASSWORD, BROKER_USER, PASSWORD, SCRAM_MODULE, USER, jaas, secured_fleet

PLANTED = "pl4nted-s3cret"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Its properties have passwords of stores and logins that no listener uses."""
    settings = {
        "ssl.keystore.password": f"{PLANTED}-1", "ssl.key.password": f"{PLANTED}-2",
        "sasl.jaas.config": f'any.Module required password="{PLANTED}-3";',
    }  # fmt: skip
    fleet = Fleet(tmp_path_factory.mktemp("bundled"), 1, **settings)
    try:
        yield fleet.start()
    finally:
        fleet.close()


def test_no_line_of_a_key_is_left_in_a_log() -> None:
    key = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBg", f"{PLANTED}", "-----END PRIVATE KEY-----"]
    shown = lines_without_secrets("\n".join(["before", *key, "after", "A1b+" * 16, "last"])).split("\n")
    assert [line for line in shown if line != debug.LINE_HIDDEN] == ["before", "after", "last"]


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        (f"Authorization: Bearer {PLANTED}", True), (f'{{"authorization": "Basic {PLANTED}"}}', True),
        (f"sent Bearer {PLANTED * 2}", True), ("token eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln", True),
        (f"https://user:{PLANTED}@registry/", True), (f"sasl.password={PLANTED}", True),
        ("the bearer token has expired", False), ("authorization failed for User:a", False),
    ],
)  # fmt: skip
def test_a_line_that_looks_like_a_secret_is_left_out(line: str, hidden: bool) -> None:
    assert (lines_without_secrets(line) == debug.LINE_HIDDEN) == hidden


def test_the_tail_of_a_log_begins_with_a_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a line has the password without the name of its setting."""
    log = tmp_path / "a.log"
    log.write_text(f"sasl.password={PLANTED}\nnext\nlast\n")
    assert tail_of(log) == log.read_text()
    monkeypatch.setattr(debug, "LOG_BYTES_MAX", len("anted-s3cret\nnext\nlast\n"))
    assert tail_of(log) == "next\nlast\n"


@pytest.mark.zookeeper
def test_a_bundle_has_what_its_readme_says_and_no_secret(own: Fleet, tmp_path: Path) -> None:
    shell = Shell(own)
    shell.run("topics", "create", "orders", "-p", "1", "-c", "retention.ms=987654321")
    shell.run("produce", "orders", stdin="a record\n")
    shell.run("groups", "reset", "g", "--topic", "orders", "--to-earliest", "--execute")
    (broker,) = own.brokers
    other = tmp_path / "other.log"
    lines = (
        "harmless line", f"sasl.jaas.config=x required password=\"{PLANTED}-4\";", f"url https://me:{PLANTED}-5@host/",
        f"ssl.keystore.password: {PLANTED}-6", f"-----BEGIN PRIVATE KEY-----{PLANTED}-7",
    )  # fmt: skip
    other.write_text("\n".join(lines) + "\n")
    path = tmp_path / "bundle.zip"
    shown = shell.json("debug", "bundle", "-o", str(path), "--log", str(broker.log_file), "--log", str(other))
    assert path.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(path) as bundle:
        files = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert sorted(shown["files"]) == sorted(files)
    assert set(files) == {
        *(name for name in CONTENTS if "/" not in name), "README.txt", "metrics/broker-1.txt", "logs/broker-1.txt",
        "logs/1-broker.out", "logs/2-other.log",
    }  # fmt: skip
    assert [name for name, text in files.items() if PLANTED in text] == []
    assert all(name in files["README.txt"] for name in CONTENTS)
    assert json.loads(files["errors.json"]) == []
    settings = {row["name"]: row for row in json.loads(files["settings.json"])}
    assert settings["broker.id"]["value"] == "1"
    assert settings["ssl.keystore.password"]["value"] == "[hidden]"
    assert json.loads(files["topics.json"])["orders"] == {"retention.ms": "987654321"}
    assert json.loads(files["groups.json"])["groups"][0]["group_id"] == "g"
    assert json.loads(files["fleet.json"])["brokers"][0]["alive"] is True
    assert "findings" in json.loads(files["doctor.json"])
    assert "fleetlog_requests_total" in files["metrics/broker-1.txt"]
    assert re.search("INFO fleetlog[.].* leading orders-0 in epoch 0", files["logs/broker-1.txt"])
    assert files["logs/2-other.log"].count("is left out") == 4
    assert files["logs/2-other.log"].startswith("harmless line\n")
    assert "File exists" in shell.fails("debug", "bundle", "-o", str(path))


@pytest.mark.zookeeper
def test_who_may_not_describe_the_cluster_gets_a_bundle_without_the_brokers_logs(tmp_path: Path) -> None:
    acls: dict[str, Any] = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": f"User:{BROKER_USER}"
    }  # fmt: skip
    fleet = secured_fleet(tmp_path / "guarded", **acls)
    try:
        fleet.start()
        shell = Shell(fleet)
        shown = {}
        for user, password in ((USER, PASSWORD), (BROKER_USER, BROKER_PASSWORD)):
            config, path = tmp_path / f"{user}.properties", tmp_path / f"{user}.zip"
            login = jaas(SCRAM_MODULE, username=user, password=password)
            config.write_text(
                f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={login}\n"
            )
            shell.run("debug", "bundle", "-o", str(path), "--command-config", str(config))
            with zipfile.ZipFile(path) as bundle:
                shown[user] = {name: bundle.read(name).decode() for name in bundle.namelist()}
        assert "logs/broker-1.txt" not in shown[USER]
        why = {row["file"]: row["why"] for row in json.loads(shown[USER]["errors.json"])}
        assert "CLUSTER_AUTHORIZATION_FAILED" in why["logs/broker-1.txt"]
        assert "INFO fleetlog." in shown[BROKER_USER]["logs/broker-1.txt"]
        assert [name for name, text in shown[BROKER_USER].items() if BROKER_PASSWORD in text or PASSWORD in text] == []
    finally:
        fleet.close()
