"""One broker's data plane without sockets and ZooKeeper: real logs, replica manager and view; handlers are called."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from _native.batch import Record, control_batch, encode_batch, scan
from brokers.api.base import Connection, Context, Done, Park
from brokers.api.fetch_sessions import FetchSessions
from brokers.api.fetch_wakes import Wakes
from brokers.cluster.followers import ReplicaSession
from brokers.cluster.partition import Partition
from brokers.cluster.replicas import ReplicaManager
from brokers.cluster.view import ClusterView, ViewChange
from brokers.config import load_config
from brokers.log import LogStore, Origin, RealDisk
from brokers.metrics import Metrics
from brokers.model import BrokerId, BrokerInfo, Endpoint, PartitionState, TopicInfo, TopicPartition
from wire.errors import ErrorCode

ME, OTHER = BrokerId(1), BrokerId(2)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def mono_ms(self) -> int:
        return self.now_ms


class Timer:
    """What ``call_later`` returns."""

    def __init__(self, due_ms: float, callback: Any, args: tuple[Any, ...]) -> None:
        self.due_ms, self.callback, self.args = due_ms, callback, args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Stage:
    """``topic`` declares topics; ``call`` runs a handler; ``turn`` runs what the handlers left for the loop."""

    def __init__(self, directory: Path, **settings: str) -> None:
        overrides = {"broker.id": "1", "zookeeper.connect": "none:1", "log.dirs": str(directory / "data")}
        self.config = load_config(overrides=overrides | settings)
        self.clock = Clock()
        self.lease = True
        self.incarnation = 7
        self.view = ClusterView(None, self.config)  # type: ignore[arg-type]
        self.view.ready = True
        self.view.brokers = {
            broker: BrokerInfo(
                broker, 1, self.incarnation, (Endpoint("PLAINTEXT", "127.0.0.1", 9090 + broker),), f"rack-{broker}"
            )
            for broker in (ME, OTHER)
        }
        self.logs = LogStore(self.config, RealDisk(), self.clock)
        self.report = self.logs.load()
        self.replicas = ReplicaManager(
            ME, self.view, self.logs, self.clock,
            lease_valid=lambda: self.lease, incarnation=lambda: self.incarnation, isr_writer=self,
        )  # fmt: skip
        self.proposals: list[tuple[Partition, PartitionState]] = []
        self._soon: list[Any] = []
        self._later: list[Timer] = []
        loop: Any = SimpleNamespace(
            call_soon=lambda callback, *args: self._soon.append((callback, args)), call_later=self._call_later
        )
        self.services: Any = SimpleNamespace(
            config=self.config, clock=self.clock, loop=loop, view=self.view, replicas=self.replicas, metrics=Metrics(),
            transactions=None, fetch_sessions=FetchSessions(), fetch_wakes=Wakes(),
        )  # fmt: skip

    def fetched(self, name: str, broker_id: int, offset: int, partition: int = 0) -> ErrorCode:
        """A follower's fetch says that it has everything below the offset."""
        session = ReplicaSession(broker_id, 1, self.clock.mono_ms())
        return self.partition(name, partition).follower_fetched(session, offset, 0, self.clock.mono_ms())

    def propose(self, partition: Partition, state: PartitionState) -> None:
        """What a leader wants written; the test says what becomes of it."""
        self.proposals.append((partition, state))

    # -- the cluster ----------------------------------------------------------------------------------------------

    def topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        leader: int = ME,
        epoch: int = 0,
        replicas: tuple[BrokerId, ...] = (ME,),
        isr: tuple[BrokerId, ...] | None = None,
        incarnation: int | None = None,
        topic_id: uuid.UUID | None = None,
        **configs: str,
    ) -> TopicInfo:
        """Declare or change a topic, as the controller would, and let the replica manager follow."""
        known = self.view.topics.get(name)
        in_sync = replicas if isr is None else isr
        state = PartitionState(
            replicas, leader, epoch, in_sync, epoch, 1, self.incarnation if incarnation is None else incarnation,
            (self.incarnation,) * len(in_sync),
        )  # fmt: skip
        found = topic_id or (known.id if known else uuid.uuid4())
        overrides = {key.replace("_", "."): value for key, value in configs.items()}
        info = TopicInfo(name, found, (state,) * partitions, overrides)
        deleted = (known,) if known is not None and known.id != found else ()
        self.view._picture.topics[name] = info
        self.view._picture.topic_names[info.id] = name
        self.view._topic_configs.pop(name, None)
        self.replicas.apply(
            ViewChange(
                topics_changed=(name,),
                deleted=deleted,
                configs_changed=(("topics", name),),
                partitions_changed=tuple(TopicPartition(name, index) for index in range(partitions)),
            )
        )
        return info

    def delete(self, name: str) -> None:
        info = self.view.topics[name]
        del self.view._picture.topics[name]
        del self.view._picture.topic_names[info.id]
        self.replicas.apply(ViewChange(deleted=(info,)))

    @staticmethod
    def tp(topic: str, index: int = 0) -> TopicPartition:
        return TopicPartition(topic, index)

    def partition(self, topic: str, index: int = 0) -> Partition:
        found = self.replicas.get(TopicPartition(topic, index))
        assert found is not None
        return found

    def append(self, topic: str, count: int = 1, index: int = 0, **batch: Any) -> int:
        """Append one batch of ``count`` records; returns its first offset."""
        info = self.partition(topic, index).append(self.batch(count, **batch), acks=1, origin=Origin.REPLICATION)
        assert info.error == 0, info
        return info.first_offset

    def replicate(self, topic: str, batch: bytes, index: int = 0) -> None:
        """Append a batch as it is."""
        info = self.partition(topic, index).append(batch, acks=1, origin=Origin.REPLICATION)
        assert info.error == 0, info

    def batch(self, count: int = 1, *, timestamp: int | None = None, size: int = 3, **fields: Any) -> bytes:
        stamp = self.clock.now_ms if timestamp is None else timestamp
        return encode_batch([Record(i, stamp + i, b"k", b"v" * size, ()) for i in range(count)], **fields)

    def marker(self, topic: str, producer_id: int, *, commit: bool, index: int = 0) -> None:
        batch = control_batch(
            commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=self.clock.now_ms
        )
        info = self.partition(topic, index).append(batch, acks=-1, origin=Origin.COORDINATOR)
        assert info.error == 0, info

    # -- requests -------------------------------------------------------------------------------------------------

    def context(self, key: int, version: int) -> Context:
        return Context(self.services, Connection(1, "PLAINTEXT", "127.0.0.1"), key, version, 1, "test")

    def start(self, handler: Any, key: int, version: int, request: Any) -> Done | Park:
        outcome = handler(request, self.context(key, version))
        if inspect.iscoroutine(outcome):
            outcome = asyncio.run(outcome)  # type: ignore[arg-type]
        assert isinstance(outcome, Done | Park)
        return outcome

    def turn(self) -> None:
        """One turn of the loop."""
        soon, self._soon = self._soon, []
        for callback, args in soon:
            callback(*args)

    def _call_later(self, seconds: float, callback: Any, *args: Any) -> Timer:
        timer = Timer(self.clock.now_ms + 1000 * seconds, callback, args)
        self._later.append(timer)
        return timer

    @property
    def timers(self) -> int:
        """Timers that are set."""
        return sum(not timer.cancelled for timer in self._later)

    def wait(self, ms: int) -> None:
        """Let time go by: timers that are due run, then one turn of the loop."""
        self.clock.now_ms += ms
        due = [timer for timer in self._later if timer.due_ms <= self.clock.now_ms]
        self._later = [timer for timer in self._later if timer not in due]
        for timer in due:
            if not timer.cancelled:
                timer.callback(*timer.args)
        self.turn()


def body_of(response: Any) -> bytes:
    """An encoded answer with its file slices read in, and let go."""
    data = b"".join(chunk if isinstance(chunk, bytes) else chunk.read() for chunk in response.chunks)
    response.release()
    return data


def offsets_in(records: bytes) -> list[int]:
    """First offsets of the batches in a run."""
    return [header.base_offset for _, header in scan(records)]
