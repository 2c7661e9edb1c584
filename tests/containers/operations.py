"""docs/operations.md in a Debian that boots in a container: each command as it is printed, in one shell.

By hand: ``make test-operations``. It takes minutes, most of them for Debian's packages the first time.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest

from tests.containers.images import machine, package
from tests.support.operations_page import blocks
from tests.support.waiting import eventually

pytestmark = pytest.mark.containers

END = "== that was one block =="
SECTIONS = [
    "The package", "ZooKeeper", "Certificates", "Brokers", "A topic and its users", "Monitoring", "The console",
    "A broker crashes", "Another version", "Removal",
]  # fmt: skip


class Machine:
    """A booted container, and the operator's shell in it."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._network = client.networks.create(f"fleetlog-operations-{time.time_ns()}", internal=True)
        self.container = client.containers.run(
            machine(), "/sbin/init", detach=True, cap_add=["SYS_ADMIN", "SYS_PTRACE"], cgroupns="private",
            hostname="machine", security_opt=["seccomp=unconfined", "apparmor=unconfined"], network=self._network.name,
            dns=["127.0.0.1"], environment={"container": "docker"}, tmpfs={"/run": "", "/run/lock": ""},
            stop_signal="SIGRTMIN+3",
        )  # fmt: skip
        self._shell: subprocess.Popen[str] | None = None

    def boot(self) -> None:
        eventually(
            lambda: self.said("systemctl is-system-running"), "the machine has booted",
            good=lambda said: said in ("running", "degraded"), pause_s=0.3,
        )  # fmt: skip
        command = ["docker", "exec", "-i", "-w", "/root", self.container.id, "bash", "-e", "-o", "pipefail"]
        self._shell = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, block: str) -> str:
        """What the commands say in the operator's shell, whose variables stay. Each command must do."""
        shell = self._shell
        assert shell is not None
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(f"{{\n{block}\n}} </dev/null\necho '{END}'\n")
        shell.stdin.flush()
        said: list[str] = []
        for line in shell.stdout:
            if line.rstrip() == END:
                return "".join(said)
            said.append(line)
        raise AssertionError(f"{block}\nended with\n{''.join(said)[-6000:]}\n{self.journal()}")

    def said(self, command: str) -> str:
        """The output of a command in a shell of its own, whatever its exit code."""
        return str(self.container.exec_run(["bash", "-c", command], workdir="/root").output.decode().strip())

    def journal(self) -> str:
        return self.said("journalctl --no-pager -n 80 2>&1")

    def close(self) -> None:
        if self._shell is not None:
            self._shell.kill()
            self._shell.wait()
        self.container.remove(force=True, v=True)
        self._network.remove()


@pytest.fixture
def empty_machine(engine: str) -> Iterator[Machine]:
    client = docker.from_env()
    booted = Machine(client)
    try:
        booted.boot()
        yield booted
    finally:
        booted.close()
        client.close()


def put(found: Machine, path: Any) -> None:
    """Copy a file of this machine to the operator's directory."""
    subprocess.run(["docker", "cp", "-q", str(path), f"{found.container.id}:/root/"], check=True, timeout=120)


def instant(found: Machine, query: str) -> str:
    """What Prometheus says to a query."""
    return found.said(f"promtool query instant http://127.0.0.1:9090 '{query}'")


def check_console(found: Machine) -> None:
    """A stranger is led to the login; a user of the fleet logs in, and sees three brokers."""
    first = "curl -s -o /dev/null -w '%{http_code} %{redirect_url}' http://127.0.0.1:9696/"
    assert found.said(first) == "303 http://127.0.0.1:9696/login?next=%2F"
    login = "http://127.0.0.1:9696/login"
    found.run(f"TOKEN=$(curl -sf -c jar {login} | grep -o 'form_token\" value=\"[0-9a-f]*' | cut -d'\"' -f3)")
    fields = '-d form_token=$TOKEN -d user=admin -d "password=$ADMIN_PASSWORD"'
    assert found.run(f"curl -s -o /dev/null -w '%{{http_code}}\\n' -b jar -c jar {fields} {login}") == "303\n"
    page = found.run("curl -sf -b jar http://127.0.0.1:9696/; echo; rm jar")
    assert "3 of 3" in page
    assert "<h2>Loops</h2>" in page
    assert "fleetlog" in found.said("ps -o user= -p $(systemctl show -P MainPID fleetlog-console)")


def check_services(found: Machine) -> None:
    """What systemd does by the units: a wrong setting, the watchdog, and all brokers of a machine as one unit."""
    found.run("sed s/^broker.id=.*/broker.id=x/ /etc/fleetlog/broker-1.properties > /etc/fleetlog/broker-9.properties")
    found.run("chgrp fleetlog /etc/fleetlog/broker-9.properties")
    assert "failed" in found.said("systemctl start fleetlog@9")
    assert "broker.id='x': must be a number" in found.said("journalctl -u fleetlog@9 --no-pager")
    assert found.said("sleep 3; systemctl show -P NRestarts fleetlog@9") == "0", "it does not become better"

    found.run("kill -STOP $(systemctl show -P MainPID fleetlog@3)")
    eventually(
        lambda: found.said("journalctl -u fleetlog@3 --no-pager"), "the watchdog ends a loop that stands still", 100,
        good=lambda said: "Watchdog timeout" in said, pause_s=2,
    )  # fmt: skip
    ready = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:9646/health/ready"
    eventually(lambda: found.said(ready), "the broker runs again", good=lambda said: said == "200", pause_s=0.5)

    moved = "s/^broker.id=.*/broker.id=11/; s/:9092/:9192/g; s/9644/9744/; s#/broker-1#/host#"
    found.run(f"cd /etc/fleetlog; sed -e '{moved}' broker-1.properties > host.properties; echo BROKERS=2 > host.env")
    found.run("chgrp fleetlog /etc/fleetlog/host.*; systemctl start fleetlog-host; systemctl reload fleetlog-host")
    eventually(
        lambda: found.said("fleetlog host status /etc/fleetlog/host.properties"), "the rolling restart is done",
        good=lambda said: "last rolling restart: done" in said and said.count("2 starts, ready") == 2, pause_s=0.5,
    )  # fmt: skip
    found.run("systemctl stop fleetlog.slice")
    assert found.said("pgrep -u fleetlog") == ""


def test_from_an_empty_machine_to_a_fleet(empty_machine: Machine, say: Callable[[str], None]) -> None:
    commands, found, began = blocks(), empty_machine, time.monotonic()
    assert list(commands) == SECTIONS
    (install,) = commands["The package"]
    deb = package()
    assert f"./{deb.name} " in install
    put(found, deb)

    def follow(heading: str) -> str:
        """The last block's output."""
        output = [found.run(block) for block in commands[heading]][-1]
        say(f"{heading}: done after {time.monotonic() - began:.0f} s")
        return output

    follow("The package")
    assert found.said("systemctl is-active fleetlog@1") == "inactive"
    assert found.said("stat -c '%a %U:%G' /etc/fleetlog/broker-1.properties") == "640 root:fleetlog"
    kernels = "/usr/lib/fleetlog/bin/python3 -c 'from fleetlog import _native; print(_native.IMPLEMENTATION)'"
    assert found.said(kernels) == "cython"

    follow("ZooKeeper")
    follow("Certificates")
    follow("Brokers")
    assert found.said("systemctl is-active fleetlog@1 fleetlog@2 fleetlog@3").split() == ["active"] * 3
    assert found.said("ps -o user= -C fleetlog | sort -u") == "fleetlog"
    assert found.said("stat -c '%a %U:%G' /etc/fleetlog/broker-3.properties") == "640 root:fleetlog"

    assert follow("A topic and its users").splitlines()[-1] == "one book"
    assert found.said("kcat -b machine:9092 -L -m 5 >/dev/null 2>&1; echo $?") != "0", "a client without a login"
    assert "User:shop" in found.run("fleetlog acls list")

    follow("Monitoring")
    eventually(
        lambda: instant(found, 'sum(up{job="fleetlog"})'), "Prometheus scrapes three brokers",
        good=lambda said: "=> 3 @" in said, pause_s=0.5,
    )  # fmt: skip
    assert instant(found, 'ALERTS{alertstate="firing"}') == ""

    follow("The console")
    check_console(found)

    assert follow("A broker crashes").splitlines()[-1] == "one book"
    assert found.said("systemctl show -P NRestarts fleetlog@2") == "1"

    processes = "systemctl show -P MainPID fleetlog@1 fleetlog@2 fleetlog@3"
    before = set(found.said(processes).split())
    follow("Another version")
    after = set(found.said(processes).split())
    assert len(after) == 3
    assert not before & after, "each broker was restarted"
    (*_, read) = commands["A broker crashes"][-1].splitlines()
    assert found.run(read).splitlines()[-1] == "one book"

    follow("Removal")
    assert found.said("pgrep -u fleetlog") == ""
    assert found.said("find /usr /lib/systemd /etc/systemd -name '*fleetlog*'") == ""
    assert "orders-0" in found.said("ls /var/lib/fleetlog/broker-1")
    assert "broker.pem" in found.said("ls /etc/fleetlog")

    found.run(install)
    found.run("systemctl start fleetlog@1 fleetlog@2 fleetlog@3")
    assert "one book" in found.run(read).splitlines(), "what was there before"
    check_services(found)
    say(f"services: done after {time.monotonic() - began:.0f} s")
