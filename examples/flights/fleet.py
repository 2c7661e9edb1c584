"""Starts and stops the three brokers of the main job, through the same command a user would type."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BROKERS = 3


def free_port() -> int:
    """The first of a few consecutive free ports on loopback."""
    for base in range(19092, 20000, 10):
        try:
            for port in range(base, base + BROKERS):
                with socket.create_server(("127.0.0.1", port)):
                    pass
        except OSError:
            continue
        return base
    raise SystemExit("no three consecutive free ports between 19092 and 20000")


def _fleetlog(*arguments: str, check: bool = True) -> None:
    subprocess.run([sys.executable, "-m", "brokers.cli.main", *arguments], cwd=ROOT, check=check)


def up(directory: Path, port: int) -> str:
    """Three brokers beside a real ZooKeeper; the bootstrap address. CalledProcessError when they don't come up."""
    _fleetlog("dev", "up", "--brokers", str(BROKERS), "--dir", str(directory), "--port", str(port), "--detach")
    return ",".join(f"127.0.0.1:{port + number}" for number in range(BROKERS))


def down(directory: Path) -> None:
    """Stops what `up` started."""
    _fleetlog("dev", "down", "--dir", str(directory), check=False)
