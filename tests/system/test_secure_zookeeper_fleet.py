"""Brokers that reach ZooKeeper by TLS only, and whose znodes are their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import Permissions

from tests.support.fleet import Broker, Fleet
from tests.support.secure_zookeeper import SecureZooKeeper

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def add_user(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "users", "add", "alice", "--password-stdin"]
    command += ["--zookeeper", f"{address}/fleet", *words]
    return subprocess.run(command, input="secret\n", capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


def test_a_broker_with_znodes_of_its_own(tmp_path: Path) -> None:
    """It starts on an empty ensemble, survives a kill, and others read no credentials and change nothing."""
    server = SecureZooKeeper(tmp_path / "zookeeper").start()
    fleet = Fleet(tmp_path / "fleet", 0)
    try:
        fleet.size, fleet.zookeeper_connect = 1, f"{server.address}/fleet"
        fleet.settings = {**server.settings(tmp_path / "own"), "zookeeper.set.acl": "true"}
        broker = Broker(fleet, 1)
        broker.start()
        broker.wait_ready()
        broker.kill()  # the next one ends the session that this one leaves
        broker.start()
        broker.wait_ready()
        producer = Producer({"bootstrap.servers": broker.address, "acks": "all"})
        failed: list[object] = []
        producer.produce("t", b"one", on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(30) == 0
        assert failed == []
        plain = server.node.address
        assert "it belongs to another login (zookeeper.set.acl)" in add_user(plain).stderr
        done = add_user(server.address, "--zk-tls-config-file", str(broker.config_file))
        assert done.returncode == 0, done.stderr
        other = KazooClient(f"{plain}/fleet")
        other.start(10)
        try:
            assert other.get_children("/brokers/ids") == ["1"]
            with pytest.raises(NoAuthError):
                other.get("/config/users/alice")
            for path in ("/controller", "/brokers/ids/1", "/brokers/topics/t"):
                with pytest.raises(NoAuthError):
                    other.set(path, b"{}")
        finally:
            other.stop()
            other.close()
        assert broker.stop() == 0
    finally:
        fleet.close()
        server.stop()


def test_three_brokers_share_znodes_of_their_own(tmp_path: Path) -> None:
    """Each has a key pair of its own with the one subject, and changes what the others made."""
    server = SecureZooKeeper(tmp_path / "zookeeper").start()
    fleet = Fleet(tmp_path / "fleet", 0)
    try:
        fleet.size, fleet.zookeeper_connect = 3, f"{server.address}/fleet"
        for number in (1, 2, 3):
            fleet.settings = {**server.settings(tmp_path / f"own-{number}"), "zookeeper.set.acl": "true"}
            fleet.brokers.append(Broker(fleet, number))
        fleet.start()
        admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
        topics = [NewTopic("t", 3, 3, config={"min.insync.replicas": "2"})]
        admin.create_topics(topics)["t"].result(60)
        other = KazooClient(f"{server.node.address}/fleet")
        other.start(10)
        try:
            first, _ = other.get("/controller")
            leading = fleet.brokers[json.loads(first)["brokerid"] - 1]
            leading.kill()
            left = [broker for broker in fleet.brokers if broker is not leading]
            producer = Producer({"bootstrap.servers": ",".join(broker.address for broker in left), "acks": "all"})
            failed: list[object] = []
            for partition in range(3):
                producer.produce("t", b"one", partition=partition, on_delivery=lambda error, _: failed.append(error))
            assert producer.flush(60) == 0
            assert failed == [None] * 3, "leaders and in-sync replicas were written by another broker"
            assert json.loads(other.get("/controller")[0])["brokerid"] != leading.id
            leading.start()
            leading.wait_ready(90)
            assert sorted(other.get_children("/brokers/ids")) == ["1", "2", "3"]
            states = [f"/brokers/topics/t/partitions/{partition}/state" for partition in range(3)]
            for path in (
                "/controller",
                "/brokers/topics/t",
                *(f"/brokers/ids/{number}" for number in (1, 2, 3)),
                *states,
            ):
                acls, _ = other.get_acls(path)
                assert {(acl.id.scheme, acl.id.id) for acl in acls if acl.perms != Permissions.READ} == {
                    ("x509", "CN=fleet")
                }
                with pytest.raises(NoAuthError):
                    other.set(path, b"{}")
        finally:
            other.stop()
            other.close()
        assert [broker.stop() for broker in fleet.brokers] == [0, 0, 0]
    finally:
        fleet.close()
        server.stop()
