"""``fleetlog broker`` and ``config``: the errors of a start, and ``--check``, which reports the same ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from fleetlog.brokers import app
from fleetlog.brokers.cli.main import cli
from fleetlog.brokers.config import BROKER_SETTINGS, load_config
from fleetlog.brokers.model import Endpoint
from fleetlog.brokers.server.listener import Server
from tests.support.fleet import Fleet
from tests.support.ports import free_port

MINIMAL = "broker.id=1\nzookeeper.connect=127.0.0.1:2181\n"


def check(path: Path, *overrides: str, code: int = 0) -> str:
    words = [word for override in overrides for word in ("--override", override)]
    result: Result = CliRunner().invoke(cli, ["broker", str(path), "--check", *words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stderr.strip()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (MINIMAL.encode() + b"log.dirs=/\xff\n", "not a text file in UTF-8"),
        (MINIMAL.encode() + b"num.partitions=0\n", "f.properties:3: num.partitions='0': must be at least 1"),
        (MINIMAL.encode() + b"listeners=PLAINTEXT://h:99999\n", "f.properties:3: listeners="),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "f.properties"
    path.write_bytes(content)
    (line,) = check(path, code=2).splitlines()
    assert line.startswith("fleetlog: ")
    assert said in line


def test_config_as_json() -> None:
    rows = json.loads(CliRunner().invoke(cli, ["config", "--json"]).stdout)
    assert {row["name"] for row in rows} == set(BROKER_SETTINGS)
    (row,) = [row for row in rows if row["name"] == "num.partitions"]
    assert (row["type"], row["default"], row["low"], row["live"]) == ("int", "1", 1, False)
    topic = {row["name"]: row for row in json.loads(CliRunner().invoke(cli, ["config", "topic", "--json"]).stdout)}
    assert topic["retention.ms"]["broker_setting"] == "log.retention.ms"
    assert topic["cleanup.policy"]["choices"] == ["delete", "compact"]


# --- listening --------------------------------------------------------------------------------------------------


def test_of_two_that_are_bound_to_an_address_one_listens() -> None:
    first, second = (Server(load_config(MINIMAL)) for _ in range(2))
    try:
        (endpoint,) = first.bind([Endpoint("PLAINTEXT", "127.0.0.1", 0)])
        second.bind([endpoint])
        first.listen()
        first.listen()
        with pytest.raises(OSError, match=f"127.0.0.1:{endpoint.port}"):
            second.listen()
    finally:
        first.close()
        second.close()


def test_ready_means_serving() -> None:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        broker = app.Broker(load_config(MINIMAL), loop)
        broker._node = cast(Any, SimpleNamespace(not_ready=lambda: None))
        assert broker._not_ready() == "starting"
        broker._server._services = cast(Any, object())
        assert broker._not_ready() is None
        broker._stopping = True
        assert broker._not_ready() == "stopping"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """One broker, not started, beside its ZooKeeper."""
    fleet = Fleet(tmp_path, brokers=1)
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.mark.zookeeper
def test_a_broker_that_cannot_listen_does_not_register(fleet: Fleet) -> None:
    from kazoo.client import KazooClient

    (broker,) = fleet.brokers
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", broker.port))
        fleet.zookeeper.pause()
        try:
            broker.start()
            deadline = time.monotonic() + 60
            while True:  # its own addresses come first
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/health/live", timeout=5).close()
                    break
                assert time.monotonic() < deadline, broker.output()
            other.listen()
        finally:
            fleet.zookeeper.resume()
        assert broker.process is not None
        assert broker.process.wait(60) == 1
    last = broker.output().splitlines()[-1]
    assert (
        last
        == f"fleetlog: broker 1 cannot start: cannot listen on {broker.address}: Address already in use; see listeners"
    )
    assert "Traceback" not in broker.output()
    with KazooSession(KazooClient(fleet.zookeeper_connect)) as client:
        assert client.get_children("/brokers/ids") == []


# --- --check ----------------------------------------------------------------------------------------------------


@pytest.mark.zookeeper
def test_check_checks_what_a_start_checks_and_changes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    from kazoo.client import KazooClient

    (broker,) = fleet.brokers
    path, data = broker.config_file, broker.directory / "data"
    check(path, f"zookeeper.connect={fleet.zookeeper_connect}/not/there")
    assert not data.exists()
    with KazooSession(KazooClient(fleet.zookeeper_connect)) as client:
        assert client.get_children("/") == ["zookeeper"]

    closed = f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        (tmp_path / "file").touch()
        said = check(
            path, f"listeners=PLAINTEXT://{taken}", f"log.dirs={tmp_path / 'file'}/x",
            f"zookeeper.connect={closed}", "zookeeper.connection.timeout.ms=200", code=1,
        )  # fmt: skip
    for part in (
        f"cannot listen on {taken}: Address already in use; see listeners",
        "none of log.dirs is usable",
        closed,
    ):
        assert part in said
    said = check(path, "listeners=PLAINTEXT://no-such-host.invalid:9092", "admin.listener=203.0.113.1:9644", code=1)
    assert "cannot listen on no-such-host.invalid:9092" in said
    assert "cannot listen on 203.0.113.1:9644: Cannot assign requested address; see admin.listener" in said

    broker.start()
    broker.wait_ready()
    check(path)  # what it holds is its own
    broker.signal(signal.SIGTERM)
    assert broker.process is not None
    broker.process.wait(60)
    check(path)
    assert "belongs to broker 1, this is broker 2" in check(path, "broker.id=2", code=1)


class KazooSession:
    """A ZooKeeper client for a block."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __enter__(self) -> Any:
        self._client.start()
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.stop()
        self._client.close()
