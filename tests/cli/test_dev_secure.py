"""``fleetlog dev up --secure``: clients work by the printed settings as they stand, and no secret is anywhere else."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from fleetlog.brokers.cli import dev_security
from fleetlog.brokers.cli.dev_security import ADMIN, APP, CONSOLE, REGISTRY, SecurityError, load_or_make
from tests.support.certificates import openssl
from tests.support.needs import needs

ROOT = Path(__file__).parents[2]
LIMIT_S = 150


def run(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT,
        env={**os.environ, **environment},
    )  # fmt: skip


class Dev:
    """The command on a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *words: str) -> str:
        done = run(sys.executable, "-m", "fleetlog.brokers.cli.main", "dev", *words, "--dir", str(self.directory))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self, *words: str, brokers: int = 1) -> str:
        return self("up", "--brokers", str(brokers), "--port", "0", "--detach", *words)


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    found = Dev(tmp_path / "fleet")
    found.directory.mkdir()
    yield found
    found("down")


def pasted(printed: str, title: str) -> str:
    """What is printed under a title, without what is printed under the next one."""
    behind = printed.split(f"\n{title}", 1)[1].split(":\n\n", 1)[1]
    return behind.split("\n\n", 1)[0] + "\n"


def properties(text: str) -> dict[str, str]:
    pairs = (line.partition("=")[::2] for line in text.splitlines())
    return dict(pairs)


def assert_closed(connect: str) -> None:
    """ZooKeeper's port is open to every user of the machine: none of them writes, or reads what is secret."""
    stranger = KazooClient(connect)
    stranger.start(15)
    try:
        paths, seen = ["/"], []
        while paths:
            path = paths.pop()
            seen.append(path)
            with pytest.raises(NoAuthError):
                stranger.create(path.rstrip("/") + "/stranger")
            with pytest.raises(NoAuthError):
                stranger.set(path, b"")
            with suppress(NoAuthError):  # what is secret, it does not even see
                paths += [path.rstrip("/") + "/" + child for child in stranger.get_children(path)]
        assert len(seen) > 20
        for path in ("/config/users/app", "/fleetlog/login_secret"):
            with pytest.raises(NoAuthError):
                stranger.get(path)
    finally:
        stranger.stop()
        stranger.close()


@pytest.mark.zookeeper
@pytest.mark.slow
@needs("kcat")
def test_clients_work_by_what_is_printed_and_it_stays(dev: Dev, tmp_path: Path) -> None:
    printed = dev.up("--secure", brokers=2)
    conf, java = tmp_path / "pasted.conf", tmp_path / "pasted.properties"
    conf.write_text(pasted(printed, "librdkafka"))
    java.write_text(pasted(printed, "Java"))
    assert properties(conf.read_text())["security.protocol"] == "SASL_SSL"
    sent = run("kcat", "-F", str(conf), "-P", "-t", "orders", stdin="one\ntwo\n")
    assert sent.returncode == 0, sent.stderr
    read = run("kcat", "-F", str(conf), "-C", "-t", "orders", "-e", "-q", "-o", "beginning")
    assert read.stdout.split() == ["one", "two"]

    bootstrap = properties(java.read_text())["bootstrap.servers"]
    command = (sys.executable, "-m", "fleetlog.brokers.cli.main", "topics", "list", "--bootstrap", bootstrap)
    assert "orders" in run(*command, "--command-config", str(java)).stdout
    assert run(*command).returncode != 0, "without a login"
    exported = properties(pasted(printed, "fleetlog,").replace("export ", ""))
    acls = run(sys.executable, "-m", "fleetlog.brokers.cli.main", "acls", "list", **exported)
    assert f"User:{APP}" in acls.stdout, acls.stderr
    words = ("acls", "add", "--allow", "--principal", f"User:{APP}", "--operation", "All", "--cluster")
    denied = run(*command[:3], *words, "--bootstrap", bootstrap, "--command-config", str(java))
    assert "CLUSTER_AUTHORIZATION_FAILED" in denied.stderr, "programs cannot give themselves rights"

    words = ("acls", "add", "--deny", "--principal", "User:guest", "--operation", "All", "--topic", "orders")
    warned = run(*command[:3], *words, "--host", "::1", **exported)
    assert warned.returncode == 0, warned.stderr
    assert "never counts: it is an IPv6 address, and this broker's listeners are IPv4" in warned.stderr

    options = json.loads(pasted(printed, "Spark").split("=", 1)[1])
    assert options == {f"kafka.{name}": value for name, value in properties(java.read_text()).items()}

    passwords = json.loads((dev.directory / "security" / "users.json").read_text())
    assert set(passwords) == {"broker", ADMIN, APP, REGISTRY, CONSOLE}
    url = json.loads(dev("status", "--json"))["registry"]
    with pytest.raises(HTTPError, match="401"):
        urlopen(f"{url}/subjects", timeout=60)
    login = base64.b64encode(f"{APP}:{passwords[APP]}".encode()).decode()
    with urlopen(Request(f"{url}/subjects", headers={"Authorization": f"Basic {login}"}), timeout=60) as answer:
        assert json.load(answer) == []
    passwords["zookeeper"] = (dev.directory / "security" / "zookeeper.password").read_text().strip()
    shown = dev("status") + dev("status", "--json")
    state = (dev.directory / "state.json").read_text()
    log = (dev.directory / "broker-1" / "broker.log").read_text()
    for password in passwords.values():
        assert password not in shown + state + log
    for file in [*(dev.directory / "security").iterdir(), dev.directory / "broker-1" / "broker.properties"]:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file

    for name in ("zookeeper", "broker-1", "broker-2", "security"):
        assert stat.S_IMODE((dev.directory / name).stat().st_mode) == 0o700, name
    assert_closed(json.loads(dev("status", "--json"))["zookeeper"]["connect"])

    dev("down")
    again = dev.up(brokers=2)  # it stays secured
    for title in ("librdkafka", "Java"):
        before, after = properties(pasted(printed, title)), properties(pasted(again, title))
        assert {name for name in before if before[name] != after[name]} <= {"bootstrap.servers"}
    conf.write_text(pasted(again, "librdkafka"))
    read = run("kcat", "-F", str(conf), "-C", "-t", "orders", "-e", "-q", "-o", "beginning")
    assert read.stdout.split() == ["one", "two"]


def test_the_certificate_is_of_the_authority_and_has_the_names(tmp_path: Path) -> None:
    made = load_or_make(tmp_path, ("DNS:broker.test", "IP:127.0.0.1"))
    assert "OK" in openssl("verify", "-CAfile", str(made.authority), str(made.directory / "broker.pem"))
    text = openssl("x509", "-in", str(made.directory / "broker.pem"), "-noout", "-text")
    assert "DNS:broker.test, IP Address:127.0.0.1" in text
    assert stat.S_IMODE(made.directory.stat().st_mode) == 0o700
    assert load_or_make(tmp_path) == made
    assert not [password for password in made.passwords.values() if password in repr(made)]


def test_without_openssl_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: Any) -> None:
        return None

    monkeypatch.setattr(dev_security.shutil, "which", nothing)
    with pytest.raises(SecurityError, match="apt-get install openssl"):
        load_or_make(tmp_path)


def test_a_fleet_of_an_earlier_release_gets_the_user_of_the_console(tmp_path: Path) -> None:
    made = load_or_make(tmp_path)
    file = made.directory / "users.json"
    earlier = {user: password for user, password in made.passwords.items() if user != CONSOLE}
    file.write_text(json.dumps(earlier))
    again = load_or_make(tmp_path)
    assert {user: again.passwords[user] for user in earlier} == earlier
    assert (
        again.passwords[CONSOLE] == json.loads(file.read_text())[CONSOLE] == load_or_make(tmp_path).passwords[CONSOLE]
    )


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    load_or_make(tmp_path)
    (tmp_path / "security" / "users.json").write_text("{}")
    with pytest.raises(SecurityError, match=r"users\.json"):
        load_or_make(tmp_path)
