"""A fleet whose only listener is SASL_PLAINTEXT: brokers log in at each other by SCRAM, clients by any mechanism."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.fleet import Broker, Fleet

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
BROKER_USER, BROKER_PASSWORD = "broker", "of-the-brokers-7"
USER, PASSWORD = "alice", "p'a,s=s;w\u00f6rd"


def escaped(text: str) -> str:
    """A text between the double quotes of a JAAS line."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def jaas(module: str, **options: str) -> str:
    return " ".join([module, "required", *(f'{name}="{escaped(value)}"' for name, value in options.items())]) + ";"


def settings(**more: object) -> dict[str, object]:
    scram = jaas(SCRAM_MODULE, username=BROKER_USER, password=BROKER_PASSWORD)
    return {
        "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "listener.name.inside.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.inside.plain.sasl.jaas.config": jaas(PLAIN_MODULE, **{f"user_{USER}": PASSWORD}),
        **more,
    }


def users(fleet: Fleet, *words: str, password: str = "") -> str:
    """``fleetlog users`` against the fleet's ZooKeeper; returns what it prints."""
    command = [
        sys.executable,
        "-m",
        "fleetlog.brokers.cli.main",
        "users",
        *words,
        "--zookeeper",
        fleet.zookeeper_connect,
    ]
    done = subprocess.run(
        command, input=password, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def secured_fleet(directory: Path, brokers: int = 1, **more: object) -> Fleet:
    """Not started; the broker's user and alice exist."""
    fleet = Fleet(directory, brokers)
    fleet.settings = settings(**more)
    fleet.brokers = [_secured(Broker(fleet, number)) for number in range(1, brokers + 1)]
    users(fleet, "add", BROKER_USER, "--password-stdin", password=BROKER_PASSWORD)
    users(fleet, "add", USER, "--password-stdin", password=PASSWORD)
    return fleet


def guarded_fleet(directory: Path, **issuer: Any) -> Fleet:
    """Not started; one broker with ACLs, whose super user is the broker's. Users log in by passwords, or tokens."""
    authorizer: dict[str, Any] = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{BROKER_USER}",
        "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
    }
    return secured_fleet(directory, **authorizer, **issuer)


def _secured(broker: Broker) -> Broker:
    text = broker.config_file.read_text()
    broker.config_file.write_text(text.replace("listeners=PLAINTEXT://", "listeners=INSIDE://"))
    return broker


def confluent(mechanism: str, user: str = USER, password: str = PASSWORD) -> dict[str, Any]:
    """Settings of librdkafka."""
    return {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": user,
        "sasl.password": password,
    }  # fmt: skip


def python_client(mechanism: str, user: str = USER, password: str = PASSWORD) -> dict[str, Any]:
    """Settings of kafka-python and aiokafka."""
    return {
        "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_plain_username": user,
        "sasl_plain_password": password,
    }  # fmt: skip
