"""Throttled replication: which replicas are held back, and whether they had their bytes for now. Pure.

A move of partitions copies much at once and must not take the network from the clients. So an operator names replicas
in two topic settings and gives each broker a rate. Only replicas outside the in-sync set are ever held back: the
caller asks for those only, since an in-sync follower that is held back would hold back the producers.

Source: KIP-73, with a budget in the place of its sliding window, which large fetches overrun by a third.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from wire.types import TopicPartition

if TYPE_CHECKING:
    from brokers.cluster.view import ClusterView

ALL = "*"
LOOK_AGAIN_MS = 1_000

Side = Literal["leader", "follower"]


class Budget:
    """Bytes per second as a budget that refills with time, up to a second's worth, and may be overdrawn once.

    Overdrawn, it stays so until time has paid for it: whatever the size of the pieces, in the long run no more goes by
    than the rate allows. Times are ms of a clock that never goes back.
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
        """How long until there is something left again, if nothing is taken; 0 for now, at most ``LOOK_AGAIN_MS``."""
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
    """The (partition, broker) pairs of a ``*.replication.throttled.replicas`` setting; None stands for all of them.

    What is no pair (``none``) is left out.
    """
    if ALL in items:
        return None
    pairs = (item.partition(":") for item in items)
    return frozenset(
        (int(partition), int(broker_id))
        for partition, _, broker_id in pairs
        if partition.strip().isdecimal() and broker_id.strip().isdecimal()
    )


class ReplicationThrottle:
    """What one broker sends as leader, or fetches as follower, of throttled replicas. Loop thread only.

    Ask ``holds_back`` for a replica that is not in sync before its bytes are read, and ``record`` them afterwards if
    ``applies`` to it, in sync or not: what in-sync replicas take counts, though nothing stops them.
    """

    __slots__ = ("_broker_id", "_budget", "_items", "_rate")

    def __init__(self, broker_id: int, items: Callable[[str], tuple[str, ...]], rate: Callable[[], int]) -> None:
        """``items`` gives a topic's setting, ``rate`` the bytes per second of now."""
        self._broker_id = broker_id
        self._items = items
        self._rate = rate
        self._budget = Budget()

    def applies(self, tp: TopicPartition) -> bool:
        """Whether this broker's replica of the partition is named by its topic's setting."""
        items = self._items(tp.topic)
        if not items:
            return False
        pairs = throttled_replicas(items)
        return pairs is None or (tp.partition, self._broker_id) in pairs

    def holds_back(self, tp: TopicPartition, now_ms: int) -> bool:
        """Whether this replica, which is not in sync, must wait."""
        return self.applies(tp) and self.wait_ms(now_ms) > 0

    def record(self, size: int, now_ms: int) -> None:
        """Bytes of a throttled replica went by."""
        self._budget.take(size, self._rate(), now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """When to ask again: 0 if nothing holds back now, at most ``LOOK_AGAIN_MS``, for the rate may be raised."""
        return self._budget.wait_ms(self._rate(), now_ms)


def throttle_of(view: ClusterView, side: Side) -> ReplicationThrottle:
    """The throttle of this broker as leader or as follower, by the view's settings of the moment."""
    broker_id = view.static.broker_id
    if side == "leader":
        return ReplicationThrottle(
            broker_id,
            lambda topic: view.topic_config(topic).leader_replication_throttled_replicas,
            lambda: view.effective.leader_replication_throttled_rate,
        )
    return ReplicationThrottle(
        broker_id,
        lambda topic: view.topic_config(topic).follower_replication_throttled_replicas,
        lambda: view.effective.follower_replication_throttled_rate,
    )
