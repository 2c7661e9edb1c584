"""A fleet's ZooKeeper that goes back to an older copy, and what brokers say of it."""

from __future__ import annotations

import shutil
from urllib.error import HTTPError
from urllib.request import urlopen

from click.testing import CliRunner

from fleetlog.brokers.cli.main import cli
from tests.support.fleet import Broker, Fleet
from tests.support.waiting import eventually


class Copy:
    """A copy of ZooKeeper's data, made and put back while ZooKeeper is down."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self._fleet = fleet
        self._data = fleet.directory / "zookeeper" / "data"
        self._copy = fleet.directory / name
        fleet.zookeeper.kill()
        shutil.copytree(self._data, self._copy)
        fleet.zookeeper.restart()

    def put_back(self) -> None:
        self._fleet.zookeeper.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self._fleet.zookeeper.restart()


def _not_ready(broker: Broker) -> str:
    try:
        urlopen(f"http://127.0.0.1:{broker.admin_port}/health/ready", timeout=5)
    except HTTPError as refusal:
        return refusal.read().decode()
    except OSError:
        return ""
    return "ready"


def wait_refusal(broker: Broker, timeout_s: float) -> None:
    refusal = "older than what this broker has seen"
    eventually(lambda: _not_ready(broker), f"broker {broker.id} refuses", timeout_s, good=lambda why: refusal in why)


def repair(fleet: Fleet, *options: str) -> str:
    done = CliRunner().invoke(cli, ["cluster", "repair", str(fleet.brokers[0].config_file), *options])
    assert done.exit_code == 0, done.output
    return done.output


def repair_plan(fleet: Fleet) -> str | None:
    """What a repair would do; None while the brokers have not told what they have."""
    done = CliRunner().invoke(cli, ["cluster", "repair", str(fleet.brokers[0].config_file)])
    return done.output if done.exit_code == 0 else None
