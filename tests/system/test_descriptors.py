"""A broker whose file descriptors run out reports it: in its health, in ``cluster describe`` and in its log."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.fleet import Broker, Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

LIMIT = 256


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    fleet = Fleet(tmp_path, 1, max_connections_per_ip=10 * LIMIT)
    (broker,) = fleet.brokers
    broker.within = ["prlimit", f"--nofile={LIMIT}:{LIMIT}"]
    try:
        fleet.start()
        yield broker
    finally:
        fleet.close()


def readiness(broker: Broker) -> str:
    with urlopen(f"http://127.0.0.1:{broker.admin_port}/health/ready", timeout=10) as answer:
        return str(answer.read().decode())


def troubles(broker: Broker) -> list[Any]:
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "cluster", "describe", "-b", broker.address, "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)
    found: list[Any] = told["troubles"]
    return found


def connect(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=10)


def in_use(broker: Broker) -> int:
    assert broker.process is not None
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))


def test_a_broker_short_of_descriptors_says_so(broker: Broker) -> None:
    assert readiness(broker) == "ready\n"
    assert troubles(broker) == []
    clients = [connect(broker) for _ in range(LIMIT - 12 - in_use(broker))]
    eventually(lambda: in_use(broker) >= LIMIT - 15, "the broker accepts them")
    said = f"of {LIMIT} file descriptors are in use"
    assert said in readiness(broker)
    (trouble,) = troubles(broker)
    assert trouble["broker"] == 1
    assert said in trouble["trouble"]
    assert "LimitNOFILE" in trouble["trouble"]
    clients += [connect(broker) for _ in range(20)]
    eventually(lambda: "cannot accept a connection: Too many open files" in broker.output(), "the log says so")
    for client in clients:
        client.close()
    eventually(lambda: in_use(broker) < LIMIT // 2, "there is room")
    waited = "and connections had to wait for one within the last minute"
    assert waited in readiness(broker)
    assert waited in troubles(broker)[0]["trouble"]
