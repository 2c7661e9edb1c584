"""Hosts the shards of one internal topic: what both coordinators (groups, transactions) run on.

A shard is loaded when this broker is elected leader of its partition and unloaded when it resigns. The pure state
machines say what should happen (``txn.commands.Result``); ``brokers.coordinators.hosting`` makes it happen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from brokers.coordinators.hosting import ShardHost, State
from brokers.coordinators.pending import Pending
from brokers.coordinators.ports import LoopPort, Marker, PartitionPort
from brokers.model import Clock
from txn.commands import Command, Failed, Shard, Ticket, WriteMarkers
from wire.errors import ErrorCode
from wire.types import TopicPartition

__all__ = ["CoordinatorRuntime", "Pending", "java_string_hash"]


@lru_cache(maxsize=8192)
def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode`` (over UTF-16 code units), as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


class CoordinatorRuntime:
    """All shards of one internal topic that this broker hosts.

    ``partition_count()`` is the topic's number of partitions (the configured one until it exists), ``make_shard``
    makes an empty shard for a partition index, ``origin`` marks appends as the coordinator's
    (``brokers.log`` ``Origin.COORDINATOR``), ``may_serve()`` tells whether this broker's lease is valid: a broker that
    may have been replaced must not answer from memory. Commands are answered nevertheless, once the partition's
    followers confirm that it leads. ``write_markers`` performs the effect of the same name.
    """

    def __init__(
        self,
        kind: str,
        topic: str,
        make_shard: Callable[[int], Shard],
        *,
        partition_count: Callable[[], int],
        loop: LoopPort,
        clock: Clock,
        origin: Any,
        may_serve: Callable[[], bool] = lambda: True,
        write_markers: Callable[[ShardHost, WriteMarkers], None] | None = None,
    ) -> None:
        self.kind = kind
        self.topic = topic
        self.write_markers = write_markers
        self._make_shard = make_shard
        self._partition_count = partition_count
        self._loop = loop
        self._clock = clock
        self._origin = origin
        self._may_serve = may_serve
        self._hosts: dict[int, ShardHost] = {}
        self._closed = False
        self._last_ticket = 0
        self._loaded_listeners: list[Callable[[ShardHost], None]] = []
        self._unloaded_listeners: list[Callable[[int], None]] = []

    # ---- leadership ------------------------------------------------------------------------------------------------

    def partition_elected(self, partition: PartitionPort) -> None:
        """This broker leads the partition now (in a new epoch): load its shard anew."""
        if partition.tp.topic != self.topic or self._closed:
            return
        index = partition.tp.partition
        present = self._hosts.get(index)
        if present is not None:
            if present.partition is partition and present.leader_epoch == partition.leader_epoch:
                return
            self._unload(index)
        host = ShardHost(
            partition,
            self._make_shard(index),
            loop=self._loop,
            clock=self._clock,
            origin=self._origin,
            next_ticket=self._next_ticket,
            write_markers=self.write_markers,
            on_lost=self._lost,
            on_loaded=self._loaded,
        )
        self._hosts[index] = host
        host.start()

    def follow(self, replicas: Any) -> None:
        """Load and unload as the replica manager (``brokers.cluster.replicas``) says."""
        replicas.on_leader(self.partition_elected)
        replicas.on_resigned(self.partition_resigned)
        replicas.on_deleted(self.partition_resigned)

    def partition_resigned(self, tp: TopicPartition) -> None:
        """This broker doesn't lead the partition any more (or it is deleted)."""
        if tp.topic == self.topic:
            self._unload(tp.partition)

    def on_loaded(self, listener: Callable[[ShardHost], None]) -> None:
        """Call ``listener`` whenever a shard begins to serve."""
        self._loaded_listeners.append(listener)

    def on_unloaded(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with the partition index whenever a shard was given up."""
        self._unloaded_listeners.append(listener)

    def close(self) -> None:
        """Unload all shards, for good."""
        self._closed = True
        for index in sorted(self._hosts):
            self._unload(index)

    def _unload(self, index: int) -> None:
        host = self._hosts.pop(index, None)
        if host is not None:
            host.close()
            for listener in self._unloaded_listeners:
                listener(index)

    def _lost(self, host: ShardHost) -> None:
        index = host.partition.tp.partition
        if self._hosts.get(index) is host:
            self._unload(index)
        else:
            host.close()

    def _loaded(self, host: ShardHost) -> None:
        for listener in self._loaded_listeners:
            listener(host)

    # ---- commands --------------------------------------------------------------------------------------------------

    def partition_for(self, key: str) -> int:
        """The partition that coordinates a group or a transactional id: Kafka's abs(hashCode) % partitions."""
        value = java_string_hash(key)
        # Kafka's Utils.abs: the most negative number has no positive twin in Java, and counts as 0.
        return (0 if value == -(1 << 31) else abs(value)) % self._partition_count()

    def host_for(self, key: str) -> ShardHost | ErrorCode:
        """The serving host of a key's shard, or why there is none."""
        host = self._hosts.get(self.partition_for(key))
        if host is None:
            return ErrorCode.NOT_COORDINATOR
        refused = host.refusal()
        return host if refused is ErrorCode.NONE else refused

    def shard_for(self, key: str) -> Any:
        """The loaded shard of a key for reading committed state only, or the ErrorCode that says why there is none.

        Without a lease what is read could be older than what a successor has told. That is no NOT_COORDINATOR: most
        often ZooKeeper is away and nobody took over, and librdkafka never repeats an OffsetFetch after that error, so
        that its consumer would stand still until the next rebalance. It repeats it while a coordinator loads.
        """
        host = self.host_for(key)
        if isinstance(host, ShardHost):
            return host.shard if self._may_serve() else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return host

    def submit(
        self, key: str, command: Command, *, deadline_ms: int | None = None, guard: object | None = None
    ) -> Pending:
        """Run ``command(shard, now, ticket)`` on the key's shard when the key is free.

        ``guard`` goes with the append of a transactional write (see ``brokers.coordinators.verification``).

        The answer is the command's response, or ``Failed`` with NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE or, ``deadline_ms`` from now, REQUEST_TIMED_OUT (the command's work goes on).
        """
        host = self._hosts.get(self.partition_for(key))
        if host is None:
            pending = Pending(self._next_ticket())
            pending.complete(Failed(ErrorCode.NOT_COORDINATOR))
            return pending
        pending = host.submit(key, command, guard)
        if deadline_ms is not None and not pending.done:
            expired = Failed(ErrorCode.REQUEST_TIMED_OUT)
            self._loop.call_later(deadline_ms / 1000, partial(host.expire, pending.ticket, expired))
        return pending

    def append_marker(self, tp: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """Append a transaction marker to a partition of this topic and make its records count (or drop them).

        ``done`` gets NONE once it is replicated and applied, else the error of WriteTxnMarkers for the partition.
        """
        host = self._hosts.get(tp.partition)
        if host is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        host.append_marker(marker, done)

    # ---- looking in ------------------------------------------------------------------------------------------------

    def host(self, index: int) -> ShardHost | None:
        """The host of a partition led here, in whatever state."""
        return self._hosts.get(index)

    def hosts(self) -> list[ShardHost]:
        """Hosts of all partitions led here, by partition."""
        return [self._hosts[index] for index in sorted(self._hosts)]

    def shards(self) -> list[Any]:
        """The loaded shards, by partition, for lists and descriptions."""
        return [host.shard for host in self.hosts() if host.state is State.ACTIVE]

    @property
    def loading(self) -> bool:
        """Whether some partition led here is still being loaded: lists would be incomplete."""
        return any(host.state is State.LOADING for host in self._hosts.values())

    def metrics(self) -> dict[str, float]:
        """Gauges of all loaded shards, added up."""
        total: dict[str, float] = {f"{self.kind}_partitions": float(len(self._hosts))}
        for shard in self.shards():
            for name, value in shard.metrics().items():
                total[name] = total.get(name, 0.0) + value
        return total

    def _next_ticket(self) -> Ticket:
        self._last_ticket += 1
        return Ticket(self._last_ticket)
