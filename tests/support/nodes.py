"""Brokers reduced to this area: a session, a registration, a view and a controller. Many fit into a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import pytest

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.controller import controller, move_commands
from fleetlog.brokers.controller.controller import Controller
from fleetlog.brokers.metadata import config_writes, features, znodes
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.model import LogEnd, PartitionState, TopicPartition
from fleetlog.brokers.peers.calls import Peers, PeerUnavailable
from fleetlog.brokers.replication import ends, isr
from fleetlog.brokers.replication.ends import ReplicaEnd
from fleetlog.coordination import changes
from fleetlog.coordination.registration import Advertisement, ListenerAddress, register
from fleetlog.coordination.store import (
    BadVersion,
    MultiFailed,
    Operation,
    OperationResult,
    SetData,
    Stat,
    Store,
    UnknownOutcome,
    Watch,
)
from fleetlog.coordination.tree import adopt
from fleetlog.coordination.zookeeper import ZookeeperStore
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from tests.support.clocks import RealClock, running_timers

SESSION_MS = 12_000
"""No test here waits for the end of a session, and a machine that stalls ends none of these."""
PATIENCE_MS = 60_000


class Meddled:
    """A store between the code and a real one: ``before_multi`` may raise or return what to await first."""

    def __init__(self, real: Store) -> None:
        self.real = real
        self.lease = real.lease
        self.multis = 0
        self.before_multi: Callable[[int, Sequence[Operation]], Any] = lambda number, operations: None
        self.after_multi: Callable[[int, Sequence[Operation]], None] = lambda number, operations: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        self.multis += 1
        number = self.multis
        interlude = self.before_multi(number, operations)
        if interlude is not None:
            await interlude
        results = await self.real.multi(operations)
        self.after_multi(number, operations)
        return results

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        return await self.real.get(path, watch)


def lose_the_answer(_number: int, _operations: Sequence[Operation]) -> None:
    raise UnknownOutcome("the test lost the answer")


class Neighbours(Peers):
    """Peers that ask a node of the same test how far its replicas reach; everything else needs a server."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.metadata, running_timers(), "PLAINTEXT", f"broker-{node.id}")
        self._node = node

    async def call(self, broker_id: int, api_key: int, version: int, message: Any, timeout_ms: int = 30_000) -> Any:
        if api_key != api_keys.REPLICA_ENDS:
            return await super().call(broker_id, api_key, version, message, timeout_ms)
        other = self._node.neighbours.get(broker_id)
        if other is None or other.silent:
            raise PeerUnavailable(broker_id, "is silent")
        other.asked += 1
        return other.answer(message)


class Node:
    """One broker. ``die`` ends its session as a SIGKILL and an expiry would, only sooner.

    ``log_ends`` are its logs' ends (0 in epoch 0 unless told), ``silent`` keeps it from answering about them, and
    ``offline`` are logs on a failed disk;
    ``intact_since`` is what it registers (None: its restart was unclean). An ``old`` one
    registers as the version without replication did.
    """

    def __init__(
        self,
        connect: str,
        broker_id: int,
        rack: str | None = None,
        *,
        intact_since: int | None = None,
        session_ms: int = SESSION_MS,
        **settings: Any,
    ) -> None:
        self.id = broker_id
        self.session_ms = session_ms
        self.neighbours: dict[int, Node] = {broker_id: self}
        self.log_ends: dict[TopicPartition, LogEnd] = {}
        self.intact_since = intact_since
        self.silent = False
        self.offline: set[TopicPartition] = set()
        self.old = False
        self.asked = 0
        self.most_asked = 0
        self.waived: list[TopicPartition] = []
        self.connect = connect
        self.config = BrokerConfig(broker_id=broker_id, zookeeper_connect=connect, broker_rack=rack, **settings)
        self.port = 10_000 + broker_id
        self.real: ZookeeperStore
        self.store: Meddled
        self.metadata: MetadataCache
        self.controller: Controller
        self.incarnation = -1

    async def start(self, *, controller: bool = True, registered: bool = True) -> Node:
        self.real = ZookeeperStore(self.connect, session_timeout_ms=self.session_ms)
        await self.real.start(PATIENCE_MS)
        self.store = Meddled(self.real)
        await adopt(self.real, lambda: "test-cluster-0123456789")
        self.metadata = MetadataCache(self.store, self.config, running_timers())
        await self.metadata.start()
        if registered:
            await self.register()
        self.peers = Neighbours(self)
        self.controller = Controller(self.store, self.metadata, self.peers, broker_id=self.id, clock=RealClock())
        if controller:
            self.controller.start()
        return self

    async def register(self) -> None:
        listeners = [ListenerAddress("PLAINTEXT", "127.0.0.1", self.port)]
        details: dict[str, object] = {} if self.old else {"failure_domain": "127.0.0.1", "waives_leases": True}
        if self.intact_since is not None:
            details["intact_since"] = self.intact_since
        advertisement = Advertisement(self.id, listeners, rack=self.config.broker_rack, details=details)
        clock = RealClock()
        made = await register(self.real, advertisement, wall_ms=clock.wall_ms, mono_ms=clock.mono_ms)
        self.incarnation = made.incarnation
        if self.intact_since is None:
            self.intact_since = made.incarnation  # the process goes on: a new session keeps its logs
        assert await self.metadata.wait_until(lambda: self.id in self.metadata.brokers, PATIENCE_MS)

    def answer(self, request: Any) -> Any:
        """ReplicaEnds, as a broker with these logs would answer it."""
        found: dict[Any, dict[int, ReplicaEnd]] = {}
        self.most_asked = max(self.most_asked, sum(len(topic.partitions) for topic in request.topics))
        for topic in request.topics:
            name = self.metadata.topic_names.get(topic.topic_id, "")
            for index in topic.partitions:
                tp = TopicPartition(name, index)
                state = self.metadata.partition(tp)
                if state is None:
                    known = topic.topic_id in self.metadata.topic_names
                    end = ReplicaEnd(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.UNKNOWN_TOPIC_ID)
                elif tp in self.offline:
                    end = ReplicaEnd(ErrorCode.KAFKA_STORAGE_ERROR, state.leader_epoch)
                else:
                    reached, leads = self.log_ends.get(tp, LogEnd(0, 0)), state.leader == self.id
                    end = ReplicaEnd(ErrorCode.NONE, state.leader_epoch, reached, leads)
                found.setdefault(topic.topic_id, {})[index] = end
                if request.version >= ends.WAIVE_VERSION and request.waive_lease:
                    self.waived.append(tp)
        return ends.response(self.incarnation, found, request.version)

    async def die(self) -> None:
        """No goodbye from the controller: only the session ends."""
        await self.metadata.stop()
        self.controller._resigned()  # a dead process runs nothing any more
        for task in list(self.controller._jobs):
            task.cancel()
        election = self.controller._election
        election._stopped = True
        if election._task is not None:
            election._task.cancel()
        await self.peers.close()
        await self.real.close()

    async def stop(self) -> None:
        await self.controller.stop()
        await self.metadata.stop()
        await self.peers.close()
        await self.real.close()

    async def write(self, tp: TopicPartition, state: PartitionState) -> None:
        """What a leader does when it changes its in-sync set: the next state, and the entry that tells of it."""
        seen = self.state(tp.topic, tp.partition)
        written = replace(state, partition_epoch=seen.partition_epoch + 1)
        change = znodes.StatesChanged(tp.topic, self.metadata.topics[tp.topic].id, {tp.partition: written})
        await self.real.multi(
            [
                SetData(znodes.state_path(tp), znodes.encode_state(written), seen.partition_epoch),
                changes.entry(znodes.encode_changes([change])),
            ]
        )

    async def join(self, tp: TopicPartition, *brokers: int) -> None:
        """As the leader: these have caught up. What a controller wrote meanwhile is read first, as a leader does."""
        assert await self.metadata.wait_until(lambda: set(brokers) <= set(self.metadata.brokers), PATIENCE_MS)
        while True:
            seen = state = self.state(tp.topic, tp.partition)
            minimum = isr.min_in_sync(self.metadata.topic_config(tp.topic).min_insync_replicas, state.established)
            for broker_id in brokers:
                state = isr.joined(state, broker_id, self.metadata.brokers[broker_id].incarnation, minimum)
            try:
                return await self.write(tp, state)
            except MultiFailed as failed:
                if not isinstance(failed.cause, BadVersion):
                    raise
            newer = partial(self._newer_than, seen.partition_epoch, tp)
            assert await self.metadata.wait_until(newer, PATIENCE_MS), f"{tp}: another's write is not seen"

    def _newer_than(self, partition_epoch: int, tp: TopicPartition) -> bool:
        return bool(self.state(tp.topic, tp.partition).partition_epoch > partition_epoch)

    def leaders(self, topic: str) -> list[int]:
        return [state.leader for state in self.metadata.topics[topic].partitions]

    def state(self, topic: str, partition: int) -> Any:
        return self.metadata.partition(TopicPartition(topic, partition))


class Nodes:
    """Starts nodes and stops those that still live at the end.

    Their answers wait for their own view as long as it takes: the real ones come without it after two seconds.
    """

    def __init__(self, connect: str, session_ms: int = SESSION_MS) -> None:
        self.connect, self.session_ms = connect, session_ms
        self.alive: dict[int, Node] = {}
        self._patience = pytest.MonkeyPatch()

    async def __aenter__(self) -> Nodes:
        for module in (controller, config_writes, features):
            self._patience.setattr(module, "METADATA_WAIT_MS", PATIENCE_MS)
        self._patience.setattr(controller, "AUTO_CREATE_MS", PATIENCE_MS)
        self._patience.setattr(move_commands, "FRESH_SECONDS", PATIENCE_MS / 1000)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patience.undo()
        await asyncio.gather(*(node.stop() for node in self.alive.values()), return_exceptions=True)

    async def start(self, broker_id: int, *, controller: bool = True, registered: bool = True, **settings: Any) -> Node:
        node = Node(self.connect, broker_id, session_ms=self.session_ms, **settings)
        node.neighbours = self.alive
        self.alive[broker_id] = node
        await node.start(controller=controller, registered=registered)
        return node

    async def die(self, node: Node) -> None:
        del self.alive[node.id]
        await node.die()

    def registered(self) -> set[int]:
        return {node.id for node in self.alive.values() if node.incarnation >= 0}

    async def controller(self) -> Node:
        """The node in office, once there is exactly one, and all see all."""
        await self.agree(lambda node: self.registered() <= set(node.metadata.brokers))
        deadline = asyncio.get_running_loop().time() + PATIENCE_MS / 1000
        while True:
            found = [node for node in self.alive.values() if node.controller.is_active]
            if len(found) == 1:
                return found[0]
            assert asyncio.get_running_loop().time() < deadline, "no controller"
            await asyncio.sleep(0.02)

    async def agree(self, condition: Callable[[Node], bool], timeout_ms: int = PATIENCE_MS) -> None:
        """Every node's view comes to satisfy the condition."""
        for node in self.alive.values():
            assert await node.metadata.wait_until(lambda node=node: condition(node), timeout_ms), f"node {node.id}"
