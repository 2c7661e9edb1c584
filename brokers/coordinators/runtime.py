"""The runtime of both coordinators (groups, transactions): hosts the shards of one internal topic.

A shard is loaded when this broker is elected leader of its partition and unloaded when it resigns. The pure state
machines return decisions (``txn.commands.Result``); ``brokers.coordinators.shard_host`` performs them.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from operator import mul
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fleetlog.brokers.coordinators.pending import PendingAnswer
from fleetlog.brokers.coordinators.shard_host import Beside, ShardHost, ShardState, TransactionMarker
from fleetlog.brokers.model import Clock
from fleetlog.brokers.replication.serving import Serve
from fleetlog.brokers.timers import Timers
from fleetlog.txn.commands import Command, CommandFailed, Shard, Ticket, WriteMarkers
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    import asyncio

    from fleetlog.brokers.replication.partition import Partition
    from fleetlog.brokers.replication.replicas import ReplicaManager

__all__ = ["CoordinatorRuntime", "PendingAnswer", "java_string_hash"]

S = TypeVar("S", bound=Shard)

KEPT_NAME_LENGTH = 256
"""Hashes of names up to this length are cached: longer names would use too much memory."""
PART_UNITS = 1024
_POWERS = [pow(31, PART_UNITS - 1 - i, 1 << 32) for i in range(PART_UNITS)]


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode`` (over UTF-16 code units), as a signed 32-bit number."""
    return _kept_hash(text) if len(text) <= KEPT_NAME_LENGTH else _hash(text)


def _hash(text: str) -> int:
    data = text.encode("utf-16-le", "surrogatepass")
    units = struct.unpack(f"<{len(data) // 2}H", data)
    value = 0
    for begin in range(0, len(units), PART_UNITS):
        part = units[begin : begin + PART_UNITS]
        value = (value * pow(31, len(part), 1 << 32) + sum(map(mul, part, _POWERS[-len(part) :]))) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


_kept_hash = lru_cache(maxsize=8192)(_hash)


class CoordinatorRuntime(Generic[S]):
    """All shards of one internal topic that this broker hosts.

    ``partition_count()`` is the topic's number of partitions (the configured one until it exists), ``make_shard``
    makes an empty shard for a partition index, ``origin`` marks appends as the coordinator's
    (``brokers.log`` ``Origin.COORDINATOR``). ``write_markers`` performs the effect of the same name. Without its lease
    the broker may have been replaced and must not answer from memory. Commands are still answered, once the partition's
    followers confirm its leadership.
    """

    def __init__(
        self,
        kind: str,
        topic: str,
        make_shard: Callable[[int], S],
        *,
        partition_count: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        clock: Clock,
        origin: Any,
        write_markers: Callable[[ShardHost[S], WriteMarkers], None] | None = None,
    ) -> None:
        self.kind = kind
        self.topic = topic
        self.write_markers = write_markers
        self._make_shard = make_shard
        self._partition_count = partition_count
        self._loop = loop
        self._timers = timers
        self._clock = clock
        self._origin = origin
        self._hosts: dict[int, ShardHost[S]] = {}
        self._closed = False
        self._next_ticket: Callable[[], Ticket] = map(Ticket, itertools.count(1)).__next__
        self._unloaded_listeners: list[Callable[[int], None]] = []

    # ---- leadership ------------------------------------------------------------------------------------------------

    def partition_elected(self, partition: Partition) -> None:
        """Load the partition's shard: this broker was elected, in a new epoch."""
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
            timers=self._timers,
            clock=self._clock,
            origin=self._origin,
            next_ticket=self._next_ticket,
            write_markers=self.write_markers,
            on_lost=self._lost,
        )
        self._hosts[index] = host
        host.start()

    def follow(self, replicas: ReplicaManager) -> None:
        """Load and unload with the leaderships of the replica manager (``brokers.replication.replicas``)."""
        replicas.on_leader(self.partition_elected)
        replicas.on_resigned(self.partition_resigned)
        replicas.on_deleted(self.partition_resigned)

    def partition_resigned(self, tp: TopicPartition) -> None:
        """Unload the partition's shard: this broker resigned, or the partition was deleted."""
        if tp.topic == self.topic:
            self._unload(tp.partition)

    def on_unloaded(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with the partition index whenever a shard was unloaded."""
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

    def _lost(self, host: ShardHost[S]) -> None:
        index = host.partition.tp.partition
        if self._hosts.get(index) is host:
            self._unload(index)
        else:
            host.close()

    # ---- commands --------------------------------------------------------------------------------------------------

    def partition_for(self, key: str) -> int:
        """The partition that coordinates a group or a transactional id: Kafka's abs(hashCode) % partitions."""
        value = java_string_hash(key)
        # Kafka's Utils.abs: the most negative number has no positive twin in Java, and counts as 0.
        return (0 if value == -(1 << 31) else abs(value)) % self._partition_count()

    def host_for(self, key: str) -> tuple[ErrorCode, ShardHost[S] | None]:
        """The serving host of a key's shard; an error and None if there is none."""
        host = self._hosts.get(self.partition_for(key))
        if host is None:
            return ErrorCode.NOT_COORDINATOR, None
        refused = host.refusal()
        return refused, host if refused is ErrorCode.NONE else None

    def shard_for(self, key: str) -> tuple[ErrorCode, S | None]:
        """The loaded shard of a key, for reads of committed state only; an error and None if there is none.

        Without a lease there is none: its state could be older than a successor's answers.
        """
        error, host = self.host_for(key)
        if host is None:
            return error, None
        refused = host.partition.may_serve(Serve.COORDINATOR_STATE)
        return refused, host.shard if refused is ErrorCode.NONE else None

    def idle_host(self, key: str, part: str) -> ShardHost[S] | None:
        """The host of a key's shard, if a command of that part of it which writes nothing would be answered at once."""
        host = self._hosts.get(self.partition_for(key))
        return host if host is not None and host.answers_now(key, part) else None

    def submit(
        self, key: str, command: Command, *, deadline_ms: int | None = None, guard: object | None = None,
        beside: Beside | None = None,
    ) -> PendingAnswer:  # fmt: skip
        """Run ``command(shard, now, ticket)`` on the key's shard when the key is free; ``beside`` others: sooner.

        ``guard`` goes with the append of a transactional write (``brokers.coordinators.transactions.verification``).

        The answer is the command's response, or ``CommandFailed`` with NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE or, after ``deadline_ms``, REQUEST_TIMED_OUT (the command's effects still happen).
        """
        host = self._hosts.get(self.partition_for(key))
        if host is None:
            pending = PendingAnswer(self._next_ticket())
            pending.complete(CommandFailed(ErrorCode.NOT_COORDINATOR))
            return pending
        pending = host.submit(key, command, guard, beside)
        if deadline_ms is not None and not pending.done:
            expired = CommandFailed(ErrorCode.REQUEST_TIMED_OUT)
            self._timers.later(deadline_ms, partial(host.expire, pending.ticket, expired))
        return pending

    def append_marker(self, tp: TopicPartition, marker: TransactionMarker, done: Callable[[ErrorCode], None]) -> None:
        """Append a transaction marker to a partition of this topic, and commit or drop the transaction's records.

        ``done`` gets NONE once the marker is replicated and applied, else the partition's error of WriteTxnMarkers.
        """
        host = self._hosts.get(tp.partition)
        if host is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        host.append_marker(marker, done)

    # ---- inspection ------------------------------------------------------------------------------------------------

    def host(self, index: int) -> ShardHost[S] | None:
        """The host of a partition that this broker leads, in any state."""
        return self._hosts.get(index)

    def hosts(self) -> list[ShardHost[S]]:
        """Hosts of all partitions that this broker leads, by partition."""
        return [self._hosts[index] for index in sorted(self._hosts)]

    def shards(self) -> list[S]:
        """The loaded shards, by partition, for lists and descriptions."""
        return [host.shard for host in self.hosts() if host.state is ShardState.ACTIVE]

    @property
    def loading(self) -> bool:
        """Whether a shard is still loading: lists would be incomplete."""
        return any(host.state is ShardState.LOADING for host in self._hosts.values())

    def metric_parts(self) -> Iterator[Mapping[str, float]]:
        """Gauges of all loaded shards, to be added up: see :meth:`txn.commands.Shard.metric_parts`."""
        yield {f"{self.kind}_partitions": float(len(self._hosts))}
        for shard in self.shards():
            yield from shard.metric_parts()
