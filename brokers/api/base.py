"""What a handler is: a plain function from a decoded request and a Context to an :data:`Outcome`.

The outcome says how the answer comes. ``Done`` has it, a ``DelayedResponse`` waits for it. What may have much to do is
``InSlices``: a generator that yields between two rows, which the dispatcher resumes a few milliseconds at a time, and
gives up when the client has gone. Admin work that asks another broker or ZooKeeper is ``InTask``: a coroutine, which
awaits :meth:`Context.yield_now` between two rows. These two return an outcome, and ``in_slices`` and ``in_task`` make a
handler of a function that is written as such. Handlers never touch a socket or a file descriptor.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar

from fleetlog._native.byte_reader import ReplacedText
from fleetlog.brokers.acls.access import AUTHORIZATION_ERRORS, CLUSTER, CLUSTER_ACTION, Access
from fleetlog.brokers.acls.image import CLUSTER_NAME, AclOperation, ResourceType
from fleetlog.brokers.api.disconnects import Disconnects
from fleetlog.brokers.api.fetch_sessions import Fetches, FetchSessions
from fleetlog.brokers.api.share_sessions import ShareSessions
from fleetlog.brokers.api.unpacking import Unpacking
from fleetlog.brokers.log_tail import LogTail
from fleetlog.brokers.model import Carried, ProcessHealth
from fleetlog.brokers.pending import Pending
from fleetlog.brokers.quotas.cache import QuotaCache
from fleetlog.brokers.quotas.metering import Meter, Metering
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

if TYPE_CHECKING:
    from fleetlog.brokers.acls.cache import AclCache
    from fleetlog.brokers.audit.recorder import Audit
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.controller.controller import Controller
    from fleetlog.brokers.coordinators.lags import LagWatch
    from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
    from fleetlog.brokers.coordinators.schema_letters import SchemaLetters
    from fleetlog.brokers.coordinators.share_offsets import ShareOffsets
    from fleetlog.brokers.coordinators.share_partitions import SharePartitions
    from fleetlog.brokers.coordinators.transactions.coordinator import TransactionCoordinator
    from fleetlog.brokers.groups.shard import GroupShard
    from fleetlog.brokers.metadata.cache import MetadataCache
    from fleetlog.brokers.metadata.client_configs import ClientConfigs
    from fleetlog.brokers.metadata.leader_history import LeaderHistory
    from fleetlog.brokers.metrics.registry import Metrics
    from fleetlog.brokers.model import Clock
    from fleetlog.brokers.replication.replicas import ReplicaManager
    from fleetlog.brokers.shares.coordinator import ShareShard
    from fleetlog.brokers.tiering.tiers import Tiers
    from fleetlog.brokers.timers import Timer, Timers
    from fleetlog.brokers.tls.dynamic_settings import DynamicTls
    from fleetlog.coordination.store import Store


P = ParamSpec("P")
R = TypeVar("R")


class Run(Protocol):
    """Requests of one connection that follow on each other and are executed together."""

    @property
    def version(self) -> int:
        """The API version of all of them."""

    @property
    def correlation_ids(self) -> list[int]:
        """Of each."""

    @property
    def ends(self) -> list[int]:
        """Where the frame of each ends."""


@dataclass(frozen=True, slots=True)
class Batching:
    """What a row of the API table has whose requests are executed where they were received, one or several together.

    ``decode(data, start, end, lowest, highest, most)`` finds the run with which received frames begin, of at most
    ``most`` requests in the versions from ``lowest`` to ``highest``; None if it begins with something else, which is
    then dispatched by itself. ``execute(runs, contexts)`` has an outcome for each run; answers that are given at once
    are whole frames, a list of chunks, or bodies as a handler's. ``keeps(run)`` is None unless executing
    it may wait with what was received: such a run is only executed if the budget of requests has that much left.
    ``alone(run)``: it is not executed together with those of other connections.
    ``batchable``: the requests of several connections are worth while to be executed together.
    """

    decode: Callable[[memoryview, int, int, int, int, int], Run | None]
    execute: Callable[[Sequence[Any], Sequence[Context]], Sequence[Outcome]]
    keeps: Callable[[Any], Any] | None
    alone: Callable[[Any], bool] | None = None
    batchable: bool = True


class _Close:
    def __repr__(self) -> str:
        return "CLOSE"


CLOSE = _Close()
"""As a response: close the connection without an answer, as for a failed Produce with acks=0."""


class Done(NamedTuple):
    """The response: a message of ``wire.messages``, an encoded body of ``wire.hot``, None for no answer, or ``CLOSE``.

    ``InSlices``, too, whose work returns one of these.
    """

    response: Any


class DelayedResponse(Pending):
    """The response to a request that waits: for replication, for data, for a rebalance. Kafka's delayed operation.

    The handler keeps it and calls ``complete`` when the wait is over; the dispatcher's ``timer`` calls ``on_deadline``
    once if ``deadline_ms`` (from now) passes first; its return value is the answer. ``on_cancel`` runs when the
    connection goes away first.
    """

    __slots__ = ("deadline_ms", "on_deadline", "serial", "timer")

    def __init__(
        self,
        deadline_ms: int | None,
        on_deadline: Callable[[], Any] | None = None,
        on_cancel: Callable[[], None] | None = None,
    ) -> None:
        assert (deadline_ms is None) == (on_deadline is None), "a deadline and its answer come together"
        super().__init__(on_cancel)
        self.deadline_ms = deadline_ms
        self.on_deadline = on_deadline
        self.timer: Timer | None = None
        self.serial = True
        """Whether the connection's next request waits for this one's answer; not if what it does is done."""

    def expire(self) -> None:
        """The deadline passed (called by the timer wheel)."""
        if not self.done:
            assert self.on_deadline is not None
            self.complete(self.on_deadline())

    def outcome(self) -> Done | DelayedResponse:
        """The response itself, if it is there already."""
        return Done(self.response) if self.done else self

    def _release(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._callback = self.on_cancel = self.on_deadline = self.timer = None


class InSlices:
    """Work that may be interrupted wherever it yields, and returns the outcome; as a response, the response itself."""

    __slots__ = ("work",)

    def __init__(self, work: Generator[Any, None, Any]) -> None:
        self.work = work


class InTask:
    """Work that waits for others, and returns the outcome. It keeps what was received."""

    __slots__ = ("coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Outcome]) -> None:
        self.coroutine = coroutine


Outcome = Done | DelayedResponse | InSlices | InTask
Paced = Generator[Any, None, Outcome]


def in_slices(paced: Callable[P, Generator[Any, None, Any]]) -> Callable[P, InSlices]:
    """A plain function of a generator function."""

    @functools.wraps(paced)
    def begin(*args: P.args, **kwargs: P.kwargs) -> InSlices:
        return InSlices(paced(*args, **kwargs))

    return begin


def in_task(function: Callable[P, Coroutine[Any, Any, Outcome]]) -> Callable[P, InTask]:
    """A plain function of a coroutine function."""

    @functools.wraps(function)
    def begin(*args: P.args, **kwargs: P.kwargs) -> InTask:
        return InTask(function(*args, **kwargs))

    return begin


NAME_BYTES_MAX = 30_000
"""Names go into strings of at most 32,767 bytes, some of them with a UUID behind them."""
ROWS_PER_YIELD = 16


def through(work: Generator[Any, None, R]) -> R:
    """What paced work returns, done without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as ended:
            result: R = ended.value
            return result


async def worked(work: Generator[Any, None, R]) -> R:
    """What paced work returns; the loop runs in between."""
    rows = 0
    while True:
        try:
            next(work)
        except StopIteration as ended:
            result: R = ended.value
            return result
        rows += 1
        if rows % ROWS_PER_YIELD == 0:
            await asyncio.sleep(0)


def named_once(topics: Iterable[tuple[str, Iterable[int]]]) -> Generator[None, None, tuple[TopicPartition, ...]]:
    """The partitions that a request names by topic and index, each once, in its order. Paced work."""
    named: dict[TopicPartition, None] = {}
    for topic, indexes in topics:
        for index in indexes:
            yield
            named[TopicPartition(topic, index)] = None
    return tuple(named)


class ClientGone(Exception):
    """The connection has closed, and nothing was promised yet: a coroutine's work ends where it stands."""


class RequestSource(Protocol):
    """The connection a request came by."""

    closed: bool
    meter: Meter | None
    software: tuple[str, str]
    fetches: Fetches
    """What its last Fetch named."""

    def mute(self, mute_ms: int) -> None:
        """Read and execute nothing for so long."""


class OpenConnection(NamedTuple):
    """A connection, as it is described to administrators. Times are the monotonic clock's."""

    peer: ClientConnection
    mechanism: str
    client_id: str
    """That of its first request; empty before."""
    software: tuple[str, str]
    since_ms: int
    last_active_ms: int
    carried: Carried
    unsent: int
    """Answer bytes that have not left yet."""
    fetches: Fetches


def _no_connections(after_id: int) -> tuple[int, Iterator[OpenConnection]]:
    return 0, iter(())


class NewTopics:
    """Topics that connections create by naming them in Metadata, this second: each costs the whole cluster."""

    def __init__(self) -> None:
        self._second = 0
        self._taken: dict[int, int] = {}

    def take(self, connection_id: int, wanted: int, per_second: int, now_ms: int) -> int:
        """How many of the ``wanted`` topics may be made now; they are counted."""
        second = now_ms // 1000
        if second != self._second:
            self._second = second
            self._taken.clear()
        taken = self._taken.get(connection_id, 0)
        given = min(wanted, max(0, per_second - taken))
        self._taken[connection_id] = taken + given
        return given


@dataclass(slots=True)
class Services:
    """Everything a handler may use. Built by ``brokers.app`` only."""

    config: BrokerConfig
    clock: Clock
    loop: asyncio.AbstractEventLoop
    timers: Timers
    store: Store
    metadata: MetadataCache
    replicas: ReplicaManager
    groups: CoordinatorRuntime[GroupShard]
    transactions: TransactionCoordinator
    controller: Controller
    metrics: Metrics
    access: Access = field(default_factory=Access)
    acls: AclCache | None = None
    quotas: QuotaCache = field(default_factory=QuotaCache)
    metering: Metering | None = None
    """What clients use, where that is measured."""
    client_configs: ClientConfigs | None = None
    """What the quotas are taken from, once the broker follows it."""
    audit: Audit | None = None
    certificates: DynamicTls | None = None
    """Certificates of this broker's listeners, where some have TLS."""
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    share_states: CoordinatorRuntime[ShareShard] | None = None
    """The share coordinator."""
    share_partitions: SharePartitions | None = None
    """The share partitions that are led here."""
    share_offsets: ShareOffsets | None = None
    schema_letters: SchemaLetters | None = None
    tiers: Tiers | None = None
    """What is in the bucket, where one is configured."""
    share_sessions: ShareSessions = field(default_factory=ShareSessions)
    new_topics: NewTopics = field(default_factory=NewTopics)
    disconnects: Disconnects = field(default_factory=Disconnects)
    lags: LagWatch | None = None
    """How far the groups are behind, where that is computed."""
    history: LeaderHistory | None = None
    """What has changed since the start."""
    connections: Callable[[int], tuple[int, Iterator[OpenConnection]]] = _no_connections
    """How many are open, and those behind an id, by their ids, which grow."""
    process_troubles: Callable[[], list[str]] = list
    """What the process lacks, in words."""
    process_health: Callable[[], ProcessHealth] = ProcessHealth
    log_tail: LogTail | None = None
    """The newest lines of the process's log, where they are kept."""
    unpacking: Unpacking = field(default_factory=Unpacking)
    """What compressed batches were unpacked to in this turn of the loop."""


_NONE = ErrorCode.NONE
"""Looking a member up in its enum runs a Python function each time."""
WRITE_SECONDS = 25.0
"""How long a request waits for ZooKeeper; below the time that clients wait for an answer, so that it says why."""


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """The client of a request. ``listener`` decides which endpoints Metadata and FindCoordinator answer with.

    No tuple: what an authorizer asks of it for each request is quicker to reach in slots.
    """

    id: int
    listener: str
    peer_host: str
    principal: str = "User:ANONYMOUS"


@dataclass(slots=True)
class Context:
    """What a handler knows of its request, apart from the body."""

    services: Services
    connection: ClientConnection
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    source: RequestSource | None = None
    rows: int = 0
    lasting: bool = False
    """Whether the request is executed to its end, also for a client that has gone."""
    exempted: bool = False
    """Whether no quota governs the request: it is a broker's."""

    def allows(
        self, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME, *, logged: bool = True
    ) -> bool:
        """Whether the client may do the operation on that resource; ``logged`` unless it only filters an answer."""
        return self.services.access.allows(self, operation, resource, name, logged)

    def refusal(self, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME) -> ErrorCode:
        """NONE if the client may do the operation on that resource, else the authorization error."""
        return _NONE if self.services.access.allows(self, operation, resource, name) else AUTHORIZATION_ERRORS[resource]

    def denied(
        self, operation: AclOperation, resource: ResourceType, names: Iterable[str], *, logged: bool = True
    ) -> frozenset[str]:
        """Those names on which the client may not do the operation; ``logged`` unless they only filter an answer."""
        return self.services.access.denied(self, operation, resource, names, logged)

    def denied_in_turns(
        self, operation: AclOperation, resource: ResourceType, names: Iterable[str], *, logged: bool = True
    ) -> Generator[None, None, frozenset[str]]:
        """The same as :meth:`denied` for any number of names. Paced work: each question takes some microseconds."""
        if self.services.access.authorizer is None:
            return frozenset()
        asked: set[str] = set()
        denied: set[str] = set()
        for name in names:
            yield
            if name not in asked:
                asked.add(name)
                if not self.allows(operation, resource, name, logged=logged):
                    denied.add(name)
        return frozenset(denied)

    async def denied_meanwhile(
        self, operation: AclOperation, resource: ResourceType, names: Iterable[str]
    ) -> frozenset[str]:
        """The same in a coroutine."""
        work = self.denied_in_turns(operation, resource, names)
        while True:
            try:
                next(work)
            except StopIteration as ended:
                denied: frozenset[str] = ended.value
                return denied
            await self.yield_now()

    def operations(self, resource: ResourceType, name: str = CLUSTER_NAME) -> tuple[AclOperation, ...]:
        """The operations that the client may do on that resource (KIP-430)."""
        return self.services.access.operations(self, resource, name)

    @property
    def meter(self) -> Meter | None:
        """What measures the client; None if no quota can govern it."""
        return None if self.source is None or self.exempted else self.source.meter

    def acts_as_broker(self) -> bool:
        """Whether the client may do what brokers do. If not every client may, no quota governs the request."""
        granted = self.allows(CLUSTER_ACTION, CLUSTER, logged=False)
        if granted and self.services.access.tells_brokers:
            self.exempted = True
        return granted

    def writes_audit(self) -> bool:
        """Whether another broker asks: only brokers write the audit topic. False without an audit."""
        audit = self.services.audit
        return (
            audit is not None
            and self.connection.principal == audit.brokers
            and self.allows(CLUSTER_ACTION, CLUSTER, logged=False)
        )

    def may_mutate(self, partitions: int, *, strict: bool) -> bool:
        """Counts partitions to create or delete, a negative number takes back; False: THROTTLING_QUOTA_EXCEEDED."""
        source, meter = self.source, self.meter
        return source is None or meter is None or meter.may_mutate(source, partitions, strict=strict)

    def gone(self) -> bool:
        """Whether the connection has closed, so that nothing waits for the answer, and the work may end."""
        return self.source is not None and self.source.closed and not self.lasting

    async def yield_now(self) -> None:
        """Let the loop run now and then, between two rows of a coroutine's work; raises ClientGone."""
        self.rows += 1
        if self.rows % ROWS_PER_YIELD == 0:
            await asyncio.sleep(0)
            if self.gone():
                raise ClientGone


def unfit(*names: str | None) -> bool:
    """Whether one of the names cannot be stored: too long for a coordinator's records, or not UTF-8 when it came."""
    return any(
        name is not None and (type(name) is ReplacedText or len(name.encode()) > NAME_BYTES_MAX) for name in names
    )
