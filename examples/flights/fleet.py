"""Starts, kills and stops the three brokers of the main job, through the same command a user would type."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from examples.access import FleetAccess
from fleetlog.coordination.ports import free_row

ROOT = Path(__file__).parents[2]
BROKERS = 3


def free_port() -> int:
    """The first of a few consecutive free ports on loopback."""
    return free_row(BROKERS)[0]


def _fleetlog(*arguments: str, check: bool = True, quiet: bool = False) -> None:
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", *arguments]
    subprocess.run(command, cwd=ROOT, check=check, stdout=subprocess.DEVNULL if quiet else None)


def up(directory: Path, port: int, *, secure: bool = False) -> FleetAccess:
    """Three brokers beside a real ZooKeeper, and how to reach them. CalledProcessError when they don't come up.

    ``secure``: with TLS, logins, ACLs and an audit topic. Clients' settings, with passwords, stay in their file.
    """
    words = ["dev", "up", "--brokers", str(BROKERS), "--dir", str(directory), "--port", str(port), "--detach"]
    _fleetlog(*words, *(["--secure"] if secure else []), quiet=secure)
    bootstrap = ",".join(f"127.0.0.1:{port + number}" for number in range(BROKERS))
    return FleetAccess(bootstrap, directory / "security" / "app.properties" if secure else None)


def kill(directory: Path, broker_id: int) -> None:
    """SIGKILL one broker."""
    _fleetlog("dev", "kill", str(broker_id), "--dir", str(directory), quiet=True)


def start(directory: Path, broker_id: int) -> None:
    """Start it again, and wait until it is ready."""
    _fleetlog("dev", "start", str(broker_id), "--dir", str(directory), quiet=True)


def down(directory: Path) -> None:
    """Stops what `up` started."""
    _fleetlog("dev", "down", "--dir", str(directory), check=False)
