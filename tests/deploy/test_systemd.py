"""The unit files, by systemd's own checker, and what a broker tells the service manager."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fleet import Fleet
from tests.support.needs import needs, program
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
SERVICES = ("fleetlog@.service", "fleetlog-host.service", "fleetlog-registry.service")
EXPOSURE_MAX = 2.0
"""Of 10, by `systemd-analyze security`: below 2 it says OK."""

needs_systemd = needs("systemd-analyze")


def analyze(*arguments: str) -> str:
    command = [program("systemd-analyze") or "systemd-analyze", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def printed() -> str:
    """The commands that docs/running.md has for systemd."""
    text = (ROOT / "docs" / "running.md").read_text()
    found = re.search(r"^## systemd\n.*?^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The unit files as a machine has them after the printed commands, with its root here.

    This environment stands for the one that is made there; the link is the printed command's.
    """
    link = re.search(r"^ln -s (\S+) (\S+)", printed(), re.MULTILINE)
    assert link is not None, "nothing makes the command that the units start"
    root = tmp_path / "root"
    (root / link[2][1:]).parent.mkdir(parents=True)
    (root / link[1][1:]).parent.parent.mkdir(parents=True)
    (root / link[1][1:]).parent.symlink_to(Path(sys.executable).parent)
    command = ["ln", "-s", f"{root}{link[1]}", f"{root}{link[2]}"]
    subprocess.run(command, check=True, timeout=60)
    for path in UNITS.iterdir():
        (tmp_path / path.name).write_text(path.read_text().replace("ExecStart=/", f"ExecStart={root}/"))
    return tmp_path


def test_the_printed_commands_make_what_the_units_start(units: Path) -> None:
    venv = re.search(r"-m venv (\S+) && (\S+)/bin/pip install ", printed())
    link = re.search(r"^ln -s (\S+)/bin/fleetlog ", printed(), re.MULTILINE)
    assert venv is not None
    assert link is not None
    assert {venv[1], venv[2], link[1]} == {venv[1]}
    assert not venv[1].startswith(("/home", "/root", "/tmp")), "the services don't see it"
    for name in SERVICES:
        started = re.search(r"^ExecStart=(\S+)", (units / name).read_text(), re.MULTILINE)
        assert started is not None
        done = subprocess.run([started[1], "--version"], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.startswith("fleetlog, version ")


@needs_systemd
@pytest.mark.parametrize("name", ["fleetlog@1.service", "fleetlog.slice", *SERVICES[1:]])
def test_systemd_finds_no_fault(units: Path, name: str) -> None:
    if "@" in name:
        (units / name).write_text((units / "fleetlog@.service").read_text())
    said = analyze("verify", "--man=no", str(units / name))
    assert [line for line in said.splitlines() if "fleetlog" in line] == []


@needs_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_little_of_the_system_is_exposed(units: Path, name: str) -> None:
    said = analyze(
        "security", "--offline=true", f"--threshold={int(EXPOSURE_MAX * 10)}", "--no-pager", str(units / name)
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= EXPOSURE_MAX


def test_all_services_are_hardened_alike() -> None:
    one, other, registry = ((UNITS / name).read_text().partition("# Hardening")[2] for name in SERVICES)
    assert one == other != ""
    wanted = [line for line in one.splitlines()[1:] if "setpriority" not in line and not line.startswith("# the")]
    assert registry.splitlines()[1:] == wanted, "but for the cleaner, which it has not"


def test_no_secret_stands_where_others_see_it() -> None:
    """A command line and a service's environment are shown to whoever may look; what the units start is in files."""
    for name in SERVICES:
        text = (UNITS / name).read_text()
        assert re.findall(r"^ExecStart=.*$", text, re.MULTILINE)
        assert not re.search(r"^Environment=|password|secret|--login", text.replace("hold passwords", "").replace(
            "keys and passwords", ""), re.MULTILINE | re.IGNORECASE)  # fmt: skip


def fed_again(inbox: socket.socket) -> bool:
    """Whether a datagram comes in the socket's time."""
    try:
        inbox.recv(4096)
    except TimeoutError:
        return False
    return True


@pytest.mark.zookeeper
def test_a_broker_tells_the_service_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    fleet = Fleet(tmp_path / "fleet", brokers=1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(path))
        inbox.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        try:
            (broker,) = fleet.brokers
            broker.start()
            assert inbox.recv(4096) == b"READY=1\nSTATUS=broker 1 serves"
            with socket.create_connection(("127.0.0.1", broker.port), timeout=10):
                pass
            assert [inbox.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3

            broker.signal(signal.SIGSTOP)
            inbox.settimeout(1.0)
            eventually(lambda: fed_again(inbox), "what is under way has come", good=lambda fed: not fed)
            assert not fed_again(inbox)
            broker.signal(signal.SIGCONT)
            inbox.settimeout(60)
            assert inbox.recv(4096) == b"WATCHDOG=1"
            broker.signal(signal.SIGTERM)
            while (told := inbox.recv(4096)) == b"WATCHDOG=1":
                pass
            assert told == b"STOPPING=1\nSTATUS=stopping"
            assert broker.process is not None
            assert broker.process.wait(60) == 0
            inbox.settimeout(0.1)
            assert not fed_again(inbox)
        finally:
            fleet.close()
