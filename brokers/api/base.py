"""What a handler is: a plain function from a decoded request and a Context to ``Done`` or ``Park``.

Cold admin handlers that must ask another broker or ZooKeeper may be coroutine functions; the dispatcher runs them as
a parked task. Handlers never touch a socket or a file descriptor.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from brokers.api.fetch_sessions import FetchSessions
from brokers.api.fetch_wakes import Wakes

if TYPE_CHECKING:
    import asyncio

    from brokers.cluster.controller import ControllerHandle
    from brokers.cluster.peers import PeersPort
    from brokers.cluster.replicas import ReplicaManager
    from brokers.cluster.view import ClusterView
    from brokers.config import BrokerConfig
    from brokers.coordinators.runtime import CoordinatorRuntime
    from brokers.metrics import Metrics
    from brokers.model import Clock
    from coordination.store import Store


class _Close:
    def __repr__(self) -> str:
        return "CLOSE"


CLOSE = _Close()
"""As a response: say nothing and close the connection, which is how a failed acks=0 Produce is told."""


class Done(NamedTuple):
    """The answer: a message of ``wire.messages``, an encoded body of ``wire.hot``, None for no answer, or ``CLOSE``."""

    response: Any


class Park:
    """A request that waits: for replication, for data, for a rebalance. One kind of waiting for all of them.

    The handler keeps the Park and calls ``complete`` when the wait is over; the dispatcher's timer wheel calls
    ``on_deadline`` once if ``deadline_ms`` (from now) passes first; its return value is the answer. Completing twice is
    a no-op, so both may race freely on the loop thread. ``on_drop`` runs when the connection goes away first.

    When the wait is over it lets go of them all: they refer to it, and a circle for each waiting fetch would be left to
    the garbage collector, which then holds the loop for longer the more of them wait.
    """

    __slots__ = ("_sink", "deadline_ms", "done", "on_deadline", "on_drop", "response")

    def __init__(
        self,
        deadline_ms: int | None,
        on_deadline: Callable[[], Any] | None = None,
        on_drop: Callable[[], None] | None = None,
    ) -> None:
        assert (deadline_ms is None) == (on_deadline is None), "a deadline and its answer come together"
        self.deadline_ms = deadline_ms
        self.on_deadline = on_deadline
        self.on_drop = on_drop
        self.done = False
        self.response: Any = None
        self._sink: Callable[[Any], None] | None = None

    def complete(self, response: Any) -> None:
        """Answer the request, unless it was answered before."""
        if self.done:
            return
        self.done = True
        sink = self._sink
        if sink is None:
            self.response = response
        else:
            self._end()
            sink(response)

    def _end(self) -> None:
        self._sink = self.on_deadline = self.on_drop = None

    def expire(self) -> None:
        """The deadline passed (called by the timer wheel)."""
        if not self.done:
            assert self.on_deadline is not None
            self.complete(self.on_deadline())

    def drop(self) -> None:
        """Nobody waits any more: the connection is gone."""
        if not self.done:
            self.done = True
            on_drop = self.on_drop
            self._end()
            if on_drop is not None:
                on_drop()

    def attach(self, sink: Callable[[Any], None]) -> None:
        """The dispatcher takes the answer; at once if it is there already."""
        if self.done:
            self._end()
            sink(self.response)
        else:
            self._sink = sink


Outcome = Done | Park
Handler = Callable[[Any, "Context"], Outcome | Coroutine[Any, Any, Outcome]]


@dataclass(slots=True)
class Services:
    """Everything a handler may use. Built by ``brokers.app`` only."""

    config: BrokerConfig
    clock: Clock
    loop: asyncio.AbstractEventLoop
    store: Store
    view: ClusterView
    replicas: ReplicaManager
    groups: CoordinatorRuntime
    transactions: CoordinatorRuntime
    controller: ControllerHandle
    peers: PeersPort
    metrics: Metrics
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    fetch_wakes: Wakes = field(default_factory=Wakes)


class Connection(NamedTuple):
    """Who asks. ``listener`` decides which endpoints Metadata and FindCoordinator answer with."""

    id: int
    listener: str
    peer_host: str
    principal: str = "User:ANONYMOUS"


@dataclass(slots=True)
class Context:
    """One request's surroundings."""

    services: Services
    connection: Connection
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
