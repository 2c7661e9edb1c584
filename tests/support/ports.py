"""A port of the loopback for what a test starts."""

from __future__ import annotations

from fleetlog.coordination.ports import free_ports


def free_port() -> int:
    """A port that is free now, and given to no other call."""
    return free_ports(1)[0]
