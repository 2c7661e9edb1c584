"""The Debian package: installed, used by a broker, removed and installed again, in a Debian without a network."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import docker
import pytest
from docker.models.containers import Container

from tests.containers.fleet import PAUSE_S, Fleet
from tests.containers.images import debian, package
from tests.support.waiting import eventually

pytestmark = pytest.mark.containers

ALONE = r"sed -i -e 's#127.0.0.1:2181/fleetlog#zookeeper-1:2181/package#' -e 's/\(factor\|replicas\|isr\)=.*/\1=1/'"
START = (
    "echo $$ >/run/broker.pid; exec setpriv --reuid fleetlog --regid fleetlog --init-groups"
    " fleetlog broker /etc/fleetlog/broker-1.properties 2>>/tmp/broker.log"
)
END = "== it ended with "
READY = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9644/health/ready').status)"


class Machine:
    """A Debian beside the fleet's ZooKeeper."""

    def __init__(self, container: Container) -> None:
        self.container = container

    def run(self, command: str) -> None:
        """It must do."""
        code, output = self.container.exec_run(["bash", "-c", command])
        assert code == 0, f"{command} ended with {code}:\n{output.decode()}"

    def shown(self, command: str) -> str:
        """What it says, of one that changes nothing; it must do.

        On a busy machine the engine may lose what a short program says, and the end mark with it: then it is asked
        again.
        """
        output = eventually(
            lambda: self.said(f"({command})\necho {END}$?"), f"all that {command} says", good=lambda said: END in said,
            pause_s=PAUSE_S,
        )  # fmt: skip
        said, _, code = output.rpartition(END)
        assert code == "0", f"{command} ended with {code}:\n{said}"
        return said.strip()

    def said(self, command: str) -> str:
        """What it says, however it ends."""
        return str(self.container.exec_run(["bash", "-c", command]).output.decode().strip())

    def start(self) -> None:
        """Start the broker of the installed settings, and wait until it is ready."""
        self.container.exec_run(["bash", "-c", START], detach=True)
        eventually(
            lambda: self.said(f'python3 -c "{READY}"'), "the broker is ready",
            good=lambda said: said == "200", pause_s=PAUSE_S,
        )  # fmt: skip

    def stop(self) -> None:
        """SIGTERM, and wait until it has ended."""
        self.run("kill $(cat /run/broker.pid)")
        eventually(
            lambda: self.said("test -d /proc/$(cat /run/broker.pid) || echo ended"), "the broker ends",
            good=lambda said: said == "ended", pause_s=PAUSE_S,
        )  # fmt: skip


@pytest.fixture
def machine(fleet: Fleet) -> Iterator[Machine]:
    client = docker.from_env()
    container = client.containers.run(debian(), "sleep infinity", network=fleet.network("fleet"), detach=True)
    try:
        yield Machine(container)
    finally:
        container.remove(force=True, v=True)
        client.close()


def test_it_is_installed_started_and_removed(machine: Machine) -> None:
    deb = package()
    subprocess.run(["docker", "cp", "-q", str(deb), f"{machine.container.id}:/"], check=True, timeout=120)
    machine.run(f"dpkg -i /{deb.name}")
    assert machine.shown("stat -c '%a %U:%G' /etc/fleetlog /etc/fleetlog/broker-1.properties /var/lib/fleetlog") == (
        "750 root:fleetlog\n640 root:fleetlog\n750 fleetlog:fleetlog"
    )
    assert "fleetlog@.service" in machine.shown("ls /lib/systemd/system")
    program = "import sys; from fleetlog import _native; print(sys.prefix, _native.IMPLEMENTATION)"
    assert machine.shown(f"/usr/lib/fleetlog/bin/python3 -I -c '{program}'") == "/usr/lib/fleetlog cython"

    machine.run(f"{ALONE} /etc/fleetlog/broker-1.properties")
    machine.start()
    assert machine.shown("stat -c %U /proc/$(cat /run/broker.pid)") == "fleetlog"
    machine.run("fleetlog topics create orders && echo 'one book' | fleetlog produce orders")
    read = "fleetlog consume orders --from beginning -n 1"
    assert machine.shown(read) == "one book"
    machine.stop()

    machine.run("dpkg -r fleetlog")
    assert machine.shown("find /usr /lib/systemd -name '*fleetlog*'") == ""
    machine.run(f"dpkg -i /{deb.name}")
    machine.start()
    assert machine.shown(read) == "one book", "records and settings have stayed"
    machine.stop()
    machine.run("dpkg --purge fleetlog")
    machine.run("test ! -e /etc/fleetlog/broker-1.properties")
    assert "orders-0" in machine.shown("ls /var/lib/fleetlog/broker-1")
