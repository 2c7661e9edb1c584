"""Ports of the loopback for what a test starts."""

from __future__ import annotations

import os

from coordination.ensemble import free_ports, is_free


def free_port() -> int:
    """A port that is free now. ``free_ports(n)`` gives several that differ for certain."""
    return free_ports(1)[0]


def first_free(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in range(20_000 + os.getpid() % 5_000, 32_000, count):
        if all(is_free(first + index) for index in range(count)):
            return first
    raise AssertionError(f"no {count} free ports in a row")
