"""How a run's programs connect: by PLAINTEXT, or with TLS and a login where ``CHAOS_SECURITY`` names a directory.

That directory is as ``fleetlog dev up --secure`` makes it: an authority, the brokers' certificate, users.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

from fleetlog.brokers.cli.dev_security import ADMIN, APP, LISTENER, MECHANISM, PROTOCOL, DevSecurity, load_or_make
from tests.chaos.clocks import HostClock

VARIABLE = "CHAOS_SECURITY"
ROOT = Path(__file__).parents[2]
EARLIER_S = 86_400.0
"""Certificates are valid before now, too: clocks jump."""


def security() -> DevSecurity | None:
    """Of this run; None: there is none."""
    directory = os.environ.get(VARIABLE)
    return load_or_make(Path(directory)) if directory else None


def make(directory: Path, names: list[str], clock: HostClock) -> None:
    """Secure the run: certificates for those addresses, and users; programs that are started later find them."""
    before = dict(os.environ)
    clock.jump(-EARLIER_S)
    os.environ.update(clock.environment)
    try:
        load_or_make(directory, names)
    finally:
        os.environ.clear()
        os.environ.update(before)
    os.environ[VARIABLE] = str(directory)


def broker_settings(address: str, replicas: int) -> dict[str, object]:
    """What a broker needs besides all else."""
    found = security()
    if found is None:
        return {"listeners": f"PLAINTEXT://{address}"}
    return {"listeners": f"{LISTENER}://{address}", **found.broker_settings(replicas)}


def add_users(zookeeper: str) -> None:
    """Once ZooKeeper serves, before the brokers start."""
    found = security()
    for user, password in found.passwords.items() if found is not None else ():
        command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "users", "add", user, "--zookeeper", zookeeper]
        subprocess.run(
            [*command, "--mechanism", MECHANISM, "--password-stdin"], input=password + "\n", text=True, check=True,
            capture_output=True, cwd=ROOT, timeout=60,
        )  # fmt: skip


def allow_programs(bootstrap: str) -> None:
    """``User:app`` may use all topics, groups and transactional ids."""
    if security() is None:
        return
    from fleetlog.brokers.cli.dev_fleet import grant_programs  # late: a workload starts without it

    grant_programs(confluent(bootstrap, ADMIN), 60)


def confluent(bootstrap: str, user: str = APP) -> dict[str, Any]:
    """Settings of librdkafka."""
    found = security()
    return {"bootstrap.servers": bootstrap} if found is None else dict(found.librdkafka(bootstrap, user))


def python(bootstrap: str, user: str = APP) -> dict[str, Any]:
    """Arguments of kafka-python's and aiokafka's clients."""
    found = security()
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap.split(",")}
    if found is None:
        return settings
    return settings | {
        "security_protocol": PROTOCOL, "sasl_mechanism": MECHANISM, "sasl_plain_username": user,
        "sasl_plain_password": found.passwords[user],
        "ssl_context": ssl.create_default_context(cafile=str(found.authority)),
    }  # fmt: skip
