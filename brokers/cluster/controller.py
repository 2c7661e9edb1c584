"""The controller: one broker of the fleet decides who leads and performs what admin requests ask of the cluster.

Every broker runs a :class:`Controller`. The elected one reads the whole state, finishes what its predecessor left half
done, sets right the leaders for the brokers that live, and from then on reacts to brokers that come and go. On the
others it forwards what a broker needs done by itself (automatic and internal topics) to the elected one.

Source: KafkaController of Kafka 3.9 for the reactions; DESIGN section 5 for the writes.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from brokers.cluster.peers import Peers, PeerUnavailable
from brokers.cluster.picture import NO_STATE_EPOCH
from brokers.cluster.reign import Reign, TermOver
from brokers.cluster.requests import NewPartitions, NewTopic, Outcome, check_name
from brokers.cluster.view import NO_CONTROLLER, ClusterView, ViewChange
from brokers.cluster.znodes import BadZnode
from brokers.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Clock
from coordination.election import ControllerElection, Leadership
from coordination.store import Store
from wire import messages
from wire.errors import ErrorCode

log = logging.getLogger(__name__)

CREATE_TOPICS_KEY = 19
CREATE_TOPICS_VERSION = 7
VIEW_WAIT_MS = 2_000
"""How long an answer waits for our own view to show what was done."""
AUTO_CREATE_MS = 5_000
RETRY_SECONDS = 0.1
PRUNE_EVERY_SECONDS = 30.0
FAILED_SECONDS = 1.0
OFFICE_WAIT_MS = 8_000
OFFICE_POLL_SECONDS = 0.02

NOT_CONTROLLER_TEXT = "This is not the correct controller for this cluster."


class ControllerHandle(Protocol):
    """What handlers use."""

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, and ready."""
        ...

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[Outcome]:
        """Create at the controller itself; NOT_CONTROLLER for all elsewhere."""
        ...

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[Outcome]:
        """Extend at the controller itself; NOT_CONTROLLER for all elsewhere."""
        ...

    async def delete_topics(self, topics: Sequence[str | uuid.UUID], *, timeout_ms: int = 30_000) -> list[Outcome]:
        """Delete at the controller itself; NOT_CONTROLLER for all elsewhere."""
        ...

    async def auto_create(self, names: Sequence[str], timeout_ms: int = AUTO_CREATE_MS) -> dict[str, ErrorCode]:
        """Create topics with default settings, from any broker, and wait until our view has them."""
        ...


class Controller:
    """See the module; implements :class:`ControllerHandle`."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        peers: Peers,
        *,
        broker_id: int,
        clock: Clock,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self._store = store
        self._view = view
        self._peers = peers
        self._broker_id = broker_id
        self._clock = clock
        self._new_id = new_id
        self._reign: Reign | None = None
        self._active = False
        self._stopped = False
        self._poked = asyncio.Event()
        self._reign_task: asyncio.Task[None] | None = None
        self._jobs: set[asyncio.Task[Any]] = set()
        self._creating: dict[str, asyncio.Task[ErrorCode]] = {}
        self._election = ControllerElection(
            store, broker_id, wall_ms=clock.wall_ms, on_elected=self._elected, on_resigned=self._resigned
        )

    # ------------------------------------------------------------ lifecycle

    def start(self) -> None:
        """Campaign from now on; the view must be ready."""
        assert self._view.ready, "the controller decides on the view"
        self._view.subscribe(self._view_changed)
        self._election.start()

    async def stop(self) -> None:
        """Resign, so that another broker takes over at once."""
        self._stopped = True
        self._resigned()
        for task in list(self._jobs):
            task.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._election.stop()

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, and has read and settled everything."""
        return self._active and self._reign is not None and not self._reign.over

    @property
    def epoch(self) -> int:
        """The epoch of our reign, or -1."""
        return self._reign.term.epoch if self._reign is not None else -1

    def _elected(self, term: Leadership) -> None:
        log.info("elected controller with epoch %d", term.epoch)
        self._reign = Reign(self._store, self._view, term, self._clock, self._new_id)
        self._poked.clear()
        self._reign_task = asyncio.create_task(self._rule(self._reign), name=f"controller epoch {term.epoch}")
        self._jobs.add(self._reign_task)
        self._reign_task.add_done_callback(self._jobs.discard)

    def _resigned(self) -> None:
        if self._reign is not None:
            log.info("no longer controller (epoch %d)", self._reign.term.epoch)
            self._reign.over = True
        self._active = False
        self._reign = None
        if self._reign_task is not None and self._reign_task is not asyncio.current_task():
            self._reign_task.cancel()
        self._reign_task = None

    def _view_changed(self, change: ViewChange) -> None:
        if self._reign is None:
            return
        self._reign.absorb(change)
        if change.brokers_changed or change.reloaded:
            self._poked.set()

    async def _rule(self, reign: Reign) -> None:
        """One reign, from reading everything to its end."""
        try:
            await reign.begin()
            self._active = True
            log.info("controller epoch %d: in office", reign.term.epoch)
            while True:
                try:
                    async with asyncio.timeout(PRUNE_EVERY_SECONDS):
                        await self._poked.wait()
                except TimeoutError:
                    await reign.prune()
                    continue
                self._poked.clear()
                await reign.react()
        except TermOver as ended:
            log.info("controller epoch %d ends: %s", reign.term.epoch, ended)
            if self._reign is reign:
                self._election.deposed()
        except BadZnode as problem:
            # Ruling over a tree we don't understand could destroy it: leave it to a newer fleetlog, or an operator.
            log.error("controller: %s; not acting until the next election", problem)
            self._active = False
        except Exception:
            # our bug: a controller that does nothing stops the whole fleet, so read everything again and go on
            log.exception("controller epoch %d failed", reign.term.epoch)
            self._active = False
            await asyncio.sleep(FAILED_SECONDS)
            if self._reign is reign:
                self._election.deposed()

    # ------------------------------------------------------------ admin commands, at the controller

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[Outcome]:
        """See :class:`ControllerHandle`."""
        reign = await self._in_office(timeout_ms)
        if reign is None:
            return [Outcome(topic.name, ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT) for topic in topics]
        names = [topic.name for topic in topics]
        outcomes = await self._job(reign.create_topics(topics, validate_only), names, timeout_ms)
        if not validate_only:
            await self._shown([o for o in outcomes if o.ok])
        return outcomes

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[Outcome]:
        """See :class:`ControllerHandle`."""
        reign = await self._in_office(timeout_ms)
        if reign is None:
            return [Outcome(topic.name, ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT) for topic in topics]
        names = [topic.name for topic in topics]
        outcomes = await self._job(reign.create_partitions(topics, validate_only), names, timeout_ms)
        if not validate_only:
            await self._shown([o for o in outcomes if o.ok])
        return outcomes

    async def delete_topics(self, topics: Sequence[str | uuid.UUID], *, timeout_ms: int = 30_000) -> list[Outcome]:
        """See :class:`ControllerHandle`."""
        names = [topic if isinstance(topic, str) else self._view.topic_names.get(topic, "") for topic in topics]
        ids = [topic if isinstance(topic, uuid.UUID) else None for topic in topics]
        reign = await self._in_office(timeout_ms)
        if reign is None:
            return [
                Outcome(name, ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT, None, topic_id)
                for name, topic_id in zip(names, ids, strict=True)
            ]
        outcomes = await self._job(reign.delete_topics(topics), names, timeout_ms)
        gone = [o.topic for o in outcomes if o.ok and o.topic is not None]
        await self._view.wait_until(lambda: all(t.id not in self._view.topic_names for t in gone), VIEW_WAIT_MS)
        return outcomes

    async def _in_office(self, timeout_ms: int) -> Reign | None:
        """Our reign, or None where another broker rules.

        Between an election and the moment the winner has read everything, and while nobody is elected, a request
        waits: stock admin clients give up at the first NOT_CONTROLLER of the very broker that Metadata named.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(timeout_ms, OFFICE_WAIT_MS) / 1000
        while not self.is_active:
            other = self._view.controller_id not in (NO_CONTROLLER, self._broker_id)
            if (other and self._reign is None) or self._stopped or loop.time() >= deadline:
                return None
            await asyncio.sleep(OFFICE_POLL_SECONDS)
        return self._reign

    async def _job(
        self, work: Coroutine[Any, Any, list[Outcome]], names: Sequence[str], timeout_ms: int
    ) -> list[Outcome]:
        """Run to the end even if nobody waits any more: a request cut off half-way would leave work half done."""
        task = asyncio.create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        done, _ = await asyncio.wait({task}, timeout=max(timeout_ms, 1) / 1000)
        if not done:
            task.add_done_callback(_note_end)
            return [Outcome(name, ErrorCode.REQUEST_TIMED_OUT, "The request timed out.") for name in names]
        try:
            return task.result()
        except (TermOver, asyncio.CancelledError):
            return [Outcome(name, ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT) for name in names]

    async def _shown(self, outcomes: Sequence[Outcome]) -> None:
        """Wait until our own view shows the topics with all their partitions and first states."""

        def shown() -> bool:
            for outcome in outcomes:
                seen = self._view.topics.get(outcome.name)
                if outcome.topic is None:
                    continue
                if seen is None or len(seen.partitions) < len(outcome.topic.partitions):
                    return False
                if any(state.partition_epoch == NO_STATE_EPOCH for state in seen.partitions):
                    return False
            return True

        if outcomes:
            await self._view.wait_until(shown, VIEW_WAIT_MS)

    # ------------------------------------------------------------ from any broker

    async def auto_create(self, names: Sequence[str], timeout_ms: int = AUTO_CREATE_MS) -> dict[str, ErrorCode]:
        """Create the topics that don't exist, wherever the controller is, and wait until our view has them.

        Internal topics get their own settings. NONE means: there, in our view. Many requests for the same name make
        one creation.
        """
        found: dict[str, ErrorCode] = {}
        tasks: dict[str, asyncio.Task[ErrorCode]] = {}
        for name in dict.fromkeys(names):
            if name in self._view.topics:
                found[name] = ErrorCode.NONE
            elif check_name(name) is not None:
                found[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            else:
                tasks[name] = self._creation(name)
        if tasks:
            await asyncio.wait(tasks.values(), timeout=timeout_ms / 1000)
        for name, task in tasks.items():
            done = task.done() and not task.cancelled()
            found[name] = task.result() if done else ErrorCode.REQUEST_TIMED_OUT
        return found

    def _creation(self, name: str) -> asyncio.Task[ErrorCode]:
        task = self._creating.get(name)
        if task is None:
            task = asyncio.create_task(self._create_somewhere(internal_topic(name, self._view)), name=f"create {name}")
            self._creating[name] = task
            self._jobs.add(task)
            task.add_done_callback(self._jobs.discard)
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        return task

    async def _create_somewhere(self, topic: NewTopic) -> ErrorCode:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AUTO_CREATE_MS / 1000
        error = ErrorCode.REQUEST_TIMED_OUT
        while loop.time() < deadline and topic.name not in self._view.topics:
            error = await self._ask_controller(topic, round((deadline - loop.time()) * 1000))
            if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                await self._view.wait_until(lambda: topic.name in self._view.topics, VIEW_WAIT_MS)
                break
            if error not in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE):
                return error
            await asyncio.sleep(RETRY_SECONDS)
        return ErrorCode.NONE if topic.name in self._view.topics else error

    async def _ask_controller(self, topic: NewTopic, timeout_ms: int) -> ErrorCode:
        if self.is_active:
            (outcome,) = await self.create_topics([topic], timeout_ms=timeout_ms)
            return outcome.error
        controller_id = self._view.controller_id
        if controller_id < 0 or controller_id == self._broker_id:
            return ErrorCode.NOT_CONTROLLER
        try:
            response = await self._peers.call(
                controller_id, CREATE_TOPICS_KEY, CREATE_TOPICS_VERSION, _create_request(topic, timeout_ms), timeout_ms
            )
        except PeerUnavailable as problem:
            log.info("creating %s at the controller: %s", topic.name, problem)
            return ErrorCode.BROKER_NOT_AVAILABLE
        return ErrorCode(response.topics[0].error_code) if response.topics else ErrorCode.UNKNOWN_SERVER_ERROR


def _note_end(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.info("an admin request that had timed out ended with: %s", task.exception())


def internal_topic(name: str, view: ClusterView) -> NewTopic:
    """How a topic is created that nobody described: defaults, or the settings of the internal topics."""
    config = view.effective
    settings: Mapping[str, str | None]
    if name == GROUP_METADATA_TOPIC:
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        return NewTopic(
            name, config.offsets_topic_num_partitions, config.offsets_topic_replication_factor, configs=settings
        )
    if name == TRANSACTION_STATE_TOPIC:
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "unclean.leader.election.enable": "false",
        }
        return NewTopic(
            name, config.transaction_state_log_num_partitions, config.transaction_state_log_replication_factor,
            configs=settings,
        )  # fmt: skip
    return NewTopic(name)


def _create_request(topic: NewTopic, timeout_ms: int) -> Any:
    request = messages.request_class(CREATE_TOPICS_KEY)
    version = CREATE_TOPICS_VERSION
    configs = [
        request.CreatableTopic.CreatableTopicConfig(version=version, name=name, value=value)
        for name, value in topic.configs.items()
    ]
    creatable = request.CreatableTopic(
        version=version, name=topic.name, num_partitions=topic.partitions,
        replication_factor=topic.replication_factor, assignments=[], configs=configs,
    )  # fmt: skip
    return request(version=version, topics=[creatable], timeout_ms=timeout_ms, validate_only=False)
