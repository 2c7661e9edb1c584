"""One broker's data plane without sockets and ZooKeeper: real logs, replica manager and view; handlers are called."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fleetlog._native.batch import Record, control_batch, encode_batch, scan
from fleetlog.brokers.acls.access import Access
from fleetlog.brokers.api.base import ClientConnection, Context, DelayedResponse, Done, InSlices, InTask, through
from fleetlog.brokers.api.disconnects import Disconnects
from fleetlog.brokers.api.fetch_sessions import FetchSessions
from fleetlog.brokers.api.unpacking import Unpacking
from fleetlog.brokers.config import load_config
from fleetlog.brokers.log import LogStore, Origin, RealDisk
from fleetlog.brokers.metadata.cache import MetadataCache, MetadataChange
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.metrics.topics import TopicTable
from fleetlog.brokers.model import BrokerId, BrokerInfo, Endpoint, PartitionState, TopicInfo, TopicPartition
from fleetlog.brokers.replication.follower_progress import ReplicaSession
from fleetlog.brokers.replication.isr_writer import Proposer
from fleetlog.brokers.replication.partition import Partition
from fleetlog.brokers.replication.replicas import ReplicaManager
from fleetlog.brokers.timers import Timers
from fleetlog.txn.verification import Question
from fleetlog.wire.errors import ErrorCode
from tests.support.clocks import ManualClock

ME, OTHER = BrokerId(1), BrokerId(2)


class Timer:
    """What ``call_later`` returns."""

    def __init__(self, due_ms: float, callback: Any, args: tuple[Any, ...]) -> None:
        self.due_ms, self.callback, self.args = due_ms, callback, args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Turn:
    """A call that replicas left for a later turn of the loop."""

    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


OPEN: list[Stage] = []
"""Those whose logs are open; ``tests/conftest.py`` closes them behind each test."""


class Stage:
    """``topic`` declares topics; ``call`` runs a handler; ``turn`` runs what the handlers left for the loop."""

    def __init__(self, directory: Path, clock: Any = None, **settings: str) -> None:
        overrides = {"broker.id": "1", "zookeeper.connect": "none:1", "log.dirs": str(directory / "data")}
        self.config = load_config(overrides=overrides | settings)
        self.clock = ManualClock() if clock is None else clock
        self.lease = True
        self.incarnation = 7
        self.between: Callable[[], None] = lambda: None
        nothing: Any = None
        self.metadata = MetadataCache(nothing, self.config, nothing)
        self.metadata.ready = True
        self.metadata.brokers = {
            broker: BrokerInfo(
                broker, 1, self.incarnation, (Endpoint("PLAINTEXT", "127.0.0.1", 9090 + broker),), f"rack-{broker}"
            )
            for broker in (ME, OTHER)
        }
        self.backlog: list[Turn] = []
        """What replicas leave for later turns; ``topic`` and ``delete`` take those turns unless it is ``held``."""
        self.held = False
        self.logs = LogStore(self.config, RealDisk(), self.clock)
        self.report = self.logs.load()
        self.counted = TopicTable(3)
        self.replicas = ReplicaManager(
            ME, self.metadata, self.logs, self.clock,
            session_valid=lambda: self.lease, incarnation=lambda: self.incarnation, isr_writer=self,
            call_soon=self._next_turn, topic_figures=self.counted,
        )  # fmt: skip
        self.proposals: list[tuple[Proposer, PartitionState]] = []
        self._soon: list[Any] = []
        self._later: list[Timer] = []
        loop: Any = SimpleNamespace(
            call_soon=lambda callback, *args: self._soon.append((callback, args)), call_later=self._call_later
        )
        self.services: Any = SimpleNamespace(
            config=self.config, clock=self.clock, loop=loop, timers=Timers(loop, self.clock),
            metadata=self.metadata, replicas=self.replicas,
            metrics=Metrics(), transactions=None, fetch_sessions=FetchSessions(), tiers=None,
            disconnects=Disconnects(), access=Access(), audit=None, metering=None, unpacking=Unpacking(),
        )  # fmt: skip
        OPEN.append(self)

    def close(self) -> None:
        """Give the descriptors of locks and logs back."""
        self.logs.close(clean=False)

    def fetched(self, name: str, broker_id: int, offset: int, partition: int = 0) -> ErrorCode:
        """A follower's fetch says that it has everything below the offset."""
        session = ReplicaSession(broker_id, 1, self.clock.mono_ms())
        return self.partition(name, partition).follower_fetched(session, offset, 0, self.clock.mono_ms())

    def propose(self, partition: Proposer, state: PartitionState) -> None:
        """What a leader wants written; the test says what becomes of it."""
        self.proposals.append((partition, state))

    # -- the cluster ----------------------------------------------------------------------------------------------

    def verify_by(self, answer: Callable[[Question], dict[TopicPartition, ErrorCode]]) -> None:
        """What the transaction coordinator says to a question."""

        async def ask(question: Question) -> dict[TopicPartition, ErrorCode]:
            return answer(question)

        self.services.transactions = SimpleNamespace(verifier=SimpleNamespace(ask=ask))  # type: ignore[assignment]

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
        known = self.metadata.topics.get(name)
        in_sync = replicas if isr is None else isr
        state = PartitionState(
            replicas, leader, epoch, in_sync, epoch, 1, self.incarnation if incarnation is None else incarnation,
            (self.incarnation,) * len(in_sync),
        )  # fmt: skip
        found = topic_id or (known.id if known else uuid.uuid4())
        overrides = {key.replace("_", "."): value for key, value in configs.items()}
        info = TopicInfo(name, found, (state,) * partitions, overrides)
        deleted = (known,) if known is not None and known.id != found else ()
        self.metadata.image.topics[name] = info
        self.metadata.image.topic_names[info.id] = name
        self.metadata._topic_configs.pop(name, None)
        self.metadata.note_deletions(topic.id for topic in deleted)
        self.replicas.apply(
            MetadataChange(
                topics_changed=(name,),
                deleted=deleted,
                configs_changed=(("topics", name),),
                partitions_changed=tuple(TopicPartition(name, index) for index in range(partitions)),
            )
        )
        self._take_turns()
        return info

    def delete(self, name: str) -> None:
        info = self.metadata.topics[name]
        del self.metadata.image.topics[name]
        del self.metadata.image.topic_names[info.id]
        self.metadata.note_deletions([info.id])
        self.replicas.apply(MetadataChange(deleted=(info,)))
        self._take_turns()

    def _next_turn(self, callback: Callable[[], None]) -> Turn:
        self.backlog.append(Turn(callback))
        return self.backlog[-1]

    def _take_turns(self) -> None:
        while self.backlog and not self.held:
            self.take_turn()

    def take_turn(self) -> None:
        """One turn of what replicas left."""
        turn = self.backlog.pop(0)
        if not turn.cancelled:
            turn.callback()

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
        stamp = self.clock.wall_ms() if timestamp is None else timestamp
        return encode_batch([Record(i, stamp + i, b"k", b"v" * size, ()) for i in range(count)], **fields)

    def marker(self, topic: str, producer_id: int, *, commit: bool, index: int = 0) -> None:
        stamp = self.clock.wall_ms()
        batch = control_batch(
            commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=stamp
        )
        info = self.partition(topic, index).append(batch, acks=-1, origin=Origin.COORDINATOR)
        assert info.error == 0, info

    # -- requests -------------------------------------------------------------------------------------------------

    def context(self, key: int, version: int) -> Context:
        return Context(self.services, ClientConnection(1, "PLAINTEXT", "127.0.0.1"), key, version, 1, "test")

    def start(self, handler: Any, key: int, version: int, request: Any) -> Done | DelayedResponse:
        outcome = handler(request, self.context(key, version))
        while isinstance(outcome, InSlices | InTask):
            outcome = self.made(outcome) if isinstance(outcome, InSlices) else asyncio.run(outcome.coroutine)
        assert isinstance(outcome, Done | DelayedResponse)
        return outcome

    def made(self, response: Any) -> Any:
        """What paced work returns; ``between`` is called wherever it may be interrupted. Anything else as it is."""
        while isinstance(response, InSlices):
            try:
                while True:
                    next(response.work)
                    self.between()
            except StopIteration as ended:
                response = ended.value
        return response

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
        return len(self.services.timers)

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
    """An encoded answer, made in slices or at once, with its file slices read in, and let go."""
    if isinstance(response, InSlices):
        response = through(response.work)
    data = b"".join(chunk if isinstance(chunk, bytes) else chunk.read() for chunk in response.chunks)
    response.release()
    return data


def offsets_in(records: bytes) -> list[int]:
    """First offsets of the batches in a run."""
    return [header.base_offset for _, header in scan(records)]
