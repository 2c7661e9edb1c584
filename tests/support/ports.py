"""Ports of the loopback for what a test starts."""

from __future__ import annotations

from coordination.ensemble import free_ports


def free_port() -> int:
    """A port that is free now. ``free_ports(n)`` gives several that differ for certain."""
    return free_ports(1)[0]
