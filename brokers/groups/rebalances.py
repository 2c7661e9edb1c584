"""How long the rebalances of a broker's groups take. Pure."""

from __future__ import annotations

from fleetlog.brokers.metrics.registry import Histogram


class RebalanceTimes:
    """Shared by the shards of a broker, so that what it has counted stays when a shard moves to another one."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = Histogram()
        """From the first member that has to join again until the new generation is in the log."""

    def ended(self, took_ms: int) -> None:
        """A generation is complete, ``took_ms`` after the one before ended."""
        self.seconds.observe(max(0, took_ms) / 1000)
