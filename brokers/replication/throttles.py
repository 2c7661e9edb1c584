"""Throttled replication: the throttled replicas, and their budget of bytes. Pure.

A reassignment copies much data and must not take the network from the clients. So an operator names replicas in two
topic settings and sets a rate per broker. Only replicas outside the in-sync set are delayed: callers check only those,
because a delayed in-sync follower would delay producers.

Source: KIP-73, with a budget instead of its sliding window, which large fetches exceed by a third.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.metadata.cache import MetadataCache

ALL = "*"
LOOK_AGAIN_MS = 1_000
_PAIR = re.compile(r"\s*([0-9]{1,10})\s*:\s*([0-9]{1,10})\s*")

Side = Literal["leader", "follower"]


class Budget:
    """Bytes per second as a token bucket: refills with time, up to one second's worth, and may be overdrawn once.

    An overdrawn budget stays so until time has refilled it: for any size of the pieces, the long-run average does not
    exceed the rate. Times are ms of a monotonic clock.
    """

    __slots__ = ("_left", "_refilled_ms")

    def __init__(self) -> None:
        self._left = 0  # in thousandths of bytes, so that slow rates refill each millisecond
        self._refilled_ms: int | None = None

    def take(self, size: int, rate: int, now_ms: int) -> None:
        """Count ``size`` bytes."""
        self._refill(rate, now_ms)
        self._left -= size * 1000

    def wait_ms(self, rate: int, now_ms: int) -> int:
        """The time until the budget is positive, in ms; 0 if it is now, at most ``LOOK_AGAIN_MS``."""
        self._refill(rate, now_ms)
        if self._left > 0:
            return 0
        return min(-self._left // rate + 1, LOOK_AGAIN_MS) if rate > 0 else LOOK_AGAIN_MS

    def _refill(self, rate: int, now_ms: int) -> None:
        if self._refilled_ms is None:
            self._left = rate * 1000
        else:
            self._left = min(self._left + rate * (now_ms - self._refilled_ms), rate * 1000)
        self._refilled_ms = now_ms


@lru_cache(maxsize=1024)
def throttled_replicas(items: tuple[str, ...]) -> frozenset[tuple[int, int]] | None:
    """The (partition, broker) pairs of a ``*.replication.throttled.replicas`` setting; None stands for all.

    Items that are no pair (``none``) are ignored.
    """
    if ALL in items:
        return None
    pairs = (_PAIR.fullmatch(item) for item in items)
    return frozenset((int(pair[1]), int(pair[2])) for pair in pairs if pair is not None)


class ReplicationThrottle:
    """The throttle of one broker as leader, or as follower. Loop thread only.

    Check ``holds_back`` for a replica that is not in sync before its bytes are read. Then ``record`` the bytes if the
    throttle ``applies`` to the replica: bytes of in-sync replicas count, though they are never delayed.
    """

    __slots__ = ("_broker_id", "_budget", "_items", "_rate")

    def __init__(self, broker_id: int, items: Callable[[str], tuple[str, ...]], rate: Callable[[], int]) -> None:
        """``items`` returns a topic's setting, ``rate`` the present rate in bytes per second."""
        self._broker_id = broker_id
        self._items = items
        self._rate = rate
        self._budget = Budget()

    def applies(self, tp: TopicPartition) -> bool:
        """Whether the topic's setting names this broker's replica of the partition."""
        items = self._items(tp.topic)
        if not items:
            return False
        pairs = throttled_replicas(items)
        return pairs is None or (tp.partition, self._broker_id) in pairs

    def holds_back(self, tp: TopicPartition, now_ms: int) -> bool:
        """Whether this replica, which is not in sync, must wait."""
        return self.applies(tp) and self.wait_ms(now_ms) > 0

    def record(self, size: int, now_ms: int) -> None:
        """Count transferred bytes of a throttled replica."""
        self._budget.take(size, self._rate(), now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """The delay in ms: 0 for none, at most ``LOOK_AGAIN_MS``, because the rate may be raised."""
        return self._budget.wait_ms(self._rate(), now_ms)


def throttle_of(metadata: MetadataCache, side: Side) -> ReplicationThrottle:
    """The throttle of this broker as leader or as follower, by the metadata cache's present settings."""
    broker_id = metadata.static.broker_id
    if side == "leader":
        return ReplicationThrottle(
            broker_id,
            lambda topic: metadata.topic_config(topic).leader_replication_throttled_replicas,
            lambda: metadata.effective.leader_replication_throttled_rate,
        )
    return ReplicationThrottle(
        broker_id,
        lambda topic: metadata.topic_config(topic).follower_replication_throttled_replicas,
        lambda: metadata.effective.follower_replication_throttled_rate,
    )
