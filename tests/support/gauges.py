"""Gauges that come in parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def added_up(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """By name, the sum over all parts."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total
