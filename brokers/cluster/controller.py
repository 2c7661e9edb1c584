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
from typing import Any, NamedTuple, Protocol, TypeVar

from brokers.cluster.auto_creation import AUTO_CREATE_MS, AutoCreation
from brokers.cluster.ends import Replicas
from brokers.cluster.peers import PeersPort
from brokers.cluster.picture import NO_STATE_EPOCH
from brokers.cluster.reign import Reign
from brokers.cluster.requests import NewPartitions, NewTopic, Outcome
from brokers.cluster.term import Term, TermOver
from brokers.cluster.view import NO_CONTROLLER, ClusterView, ViewChange
from brokers.cluster.znodes import BadZnode
from brokers.model import Clock, TopicPartition
from coordination.election import ControllerElection, Leadership
from coordination.store import Store
from wire.errors import ErrorCode

log = logging.getLogger(__name__)

VIEW_WAIT_MS = 2_000
"""How long an answer waits for our own view to show what was done."""
PRUNE_EVERY_SECONDS = 30.0
FAILED_SECONDS = 1.0
OFFICE_WAIT_MS = 8_000
OFFICE_POLL_SECONDS = 0.02

NOT_CONTROLLER_TEXT = "This is not the correct controller for this cluster."


R = TypeVar("R")
Result = tuple[ErrorCode, str | None]


class Failed(NamedTuple):
    """Why a whole request came to nothing, or to nothing that we know of."""

    error: ErrorCode
    message: str


TIMED_OUT = Failed(ErrorCode.REQUEST_TIMED_OUT, "The request timed out.")
DEPOSED = Failed(ErrorCode.NOT_CONTROLLER, NOT_CONTROLLER_TEXT)


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

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, *, unclean: bool, timeout_ms: int = 60_000
    ) -> dict[TopicPartition, Result]:
        """Give leadership to preferred replicas, or (``unclean``) to whoever knows the most where nobody may lead.

        None stands for all partitions. ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
        ELIGIBLE_LEADERS_NOT_AVAILABLE; NOT_CONTROLLER for all elsewhere. Source: KIP-183, KIP-460.
        """
        ...

    async def alter_reassignments(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int = 60_000
    ) -> dict[TopicPartition, Result]:
        """Begin to move each partition's replicas to the wanted ones, or cancel the move under way (None).

        The answer comes when the moves stand in ZooKeeper; the states' ``adding`` and ``removing`` tell how far they
        are. NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICATION_ASSIGNMENT, UNKNOWN_TOPIC_OR_PARTITION; NOT_CONTROLLER for
        all elsewhere. Source: KIP-455.
        """
        ...

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int, *, timeout_ms: int
    ) -> tuple[ErrorCode, list[TopicPartition]]:
        """Move what the broker leads to others; the partitions that nobody else can lead remain, and are told.

        The broker has closed its coordinators before it asks. STALE_BROKER_EPOCH: it isn't that registration any more.
        """
        ...

    async def auto_create(self, names: Sequence[str], timeout_ms: int = AUTO_CREATE_MS) -> dict[str, ErrorCode]:
        """Create topics with default settings, from any broker, and wait until our view has them."""
        ...


class Controller:
    """See the module; implements :class:`ControllerHandle`.

    ``replicas`` are this broker's own, about which it need not ask itself over the network.
    """

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        peers: PeersPort,
        *,
        broker_id: int,
        clock: Clock,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        replicas: Replicas | None = None,
    ) -> None:
        self._store = store
        self._view = view
        self._peers = peers
        self._broker_id = broker_id
        self._clock = clock
        self._new_id = new_id
        self._replicas = replicas
        self._former_unclean_elections = 0
        self._everything = True
        self._halted = False
        self._reign: Reign | None = None
        self._active = False
        self._stopped = False
        self._poked = asyncio.Event()
        self._reign_task: asyncio.Task[None] | None = None
        self._jobs: dict[asyncio.Task[Any], None] = {}  # in order: a simulation must not depend on addresses
        self._auto = AutoCreation(self, view, peers, broker_id)
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
        await self._auto.stop()
        await self._election.stop()

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, and has read and settled everything."""
        return self._active and self._reign is not None and not self._reign.over and self._view.foreign is None

    @property
    def epoch(self) -> int:
        """The epoch of our reign, or -1."""
        return self._reign.term.epoch if self._reign is not None else -1

    @property
    def unclean_elections(self) -> int:
        """How many leaders this broker elected uncleanly, as controller, since its start."""
        present = self._reign.inquiries.unclean_elections if self._reign is not None else 0
        return self._former_unclean_elections + present

    def _elected(self, leadership: Leadership) -> None:
        log.info("elected controller with epoch %d", leadership.epoch)
        self._reign = Reign(
            Term(self._store, self._view, leadership), self._peers, broker_id=self._broker_id, clock=self._clock,
            new_id=self._new_id, replicas=self._replicas,
        )  # fmt: skip
        self._halted = False
        self._poked.clear()
        self._reign_task = asyncio.create_task(self._rule(self._reign), name=f"controller epoch {leadership.epoch}")
        self._keep(self._reign_task)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._jobs[task] = None
        task.add_done_callback(lambda done: self._jobs.pop(done, None))

    def _resigned(self) -> None:
        if self._reign is not None:
            log.info("no longer controller (epoch %d)", self._reign.term.epoch)
            self._reign.term.over = True
            self._former_unclean_elections += self._reign.inquiries.unclean_elections
        self._active = False
        self._reign = None
        if self._reign_task is not None and self._reign_task is not asyncio.current_task():
            self._reign_task.cancel()
        self._reign_task = None

    def _view_changed(self, change: ViewChange) -> None:
        if self._reign is None:
            return
        if self._halted and self._view.foreign is None:
            self._election.deposed()
            return
        if change.brokers_changed or change.reloaded or change.configs_changed:
            self._everything = True
        if self._reign.absorb(change) or self._everything:
            self._poked.set()

    async def _rule(self, reign: Reign) -> None:
        """One reign, from reading everything to its end."""
        inquiries = asyncio.create_task(self._inquire(reign), name=f"inquiries of epoch {reign.term.epoch}")
        try:
            await reign.begin()
            self._active = True
            log.info("controller epoch %d: in office", reign.term.epoch)
            await self._govern(reign)
        except TermOver as ended:
            self._ended(reign, ended)
        except BadZnode as problem:
            self._halt(problem)
        except Exception:
            await self._failed(reign)
        finally:
            inquiries.cancel()

    async def _govern(self, reign: Reign) -> None:
        """React to the world, and do from time to time what is to be done from time to time; raises TermOver."""
        loop = asyncio.get_running_loop()
        config = self._view.effective
        prune_at = loop.time() + PRUNE_EVERY_SECONDS
        balance_at = loop.time() + config.leader_imbalance_check_interval_seconds
        while True:
            try:
                async with asyncio.timeout_at(min(prune_at, balance_at)):
                    await self._poked.wait()
            except TimeoutError:
                pass
            if self._poked.is_set():
                self._poked.clear()
                everything, self._everything = self._everything, False
                await reign.react(everything=everything)
            if loop.time() >= prune_at:
                await reign.prune()
                prune_at = loop.time() + PRUNE_EVERY_SECONDS
            if loop.time() >= balance_at:
                config = self._view.effective
                if config.auto_leader_rebalance_enable:
                    await reign.leaders.rebalance(config.leader_imbalance_per_broker_percentage)
                balance_at = loop.time() + config.leader_imbalance_check_interval_seconds

    async def _inquire(self, reign: Reign) -> None:
        try:
            await reign.inquiries.run()
        except TermOver as ended:
            self._ended(reign, ended)
        except BadZnode as problem:
            self._halt(problem)
        except Exception:
            await self._failed(reign)

    def _ended(self, reign: Reign, reason: TermOver) -> None:
        log.info("controller epoch %d ends: %s", reign.term.epoch, reason)
        if self._reign is reign:
            self._election.deposed()

    def _halt(self, problem: BadZnode) -> None:
        """Ruling over a tree we don't understand could destroy it: leave it to a newer fleetlog, or an operator."""
        log.error("controller: %s; not acting until the next election", problem)
        self._active, self._halted = False, self._view.foreign is not None

    async def _failed(self, reign: Reign) -> None:
        """Our bug: a controller that does nothing stops the whole fleet, so read everything again and go on."""
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
        outcomes = await self._topics_job(reign.topics.create(topics, validate_only), names, timeout_ms)
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
        outcomes = await self._topics_job(reign.topics.extend(topics, validate_only), names, timeout_ms)
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
        outcomes = await self._topics_job(reign.topics.delete(topics), names, timeout_ms)
        gone = [o.topic for o in outcomes if o.ok and o.topic is not None]
        await self._view.wait_until(lambda: all(t.id not in self._view.topic_names for t in gone), VIEW_WAIT_MS)
        return outcomes

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, *, unclean: bool, timeout_ms: int = 60_000
    ) -> dict[TopicPartition, Result]:
        """See :class:`ControllerHandle`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        reign = await self._in_office(timeout_ms)
        if reign is None:
            return dict.fromkeys(partitions or (), (DEPOSED.error, DEPOSED.message))
        leaders = reign.leaders
        work = leaders.elect_unclean(partitions) if unclean else leaders.elect_preferred(partitions)
        results = await self._job(work, timeout_ms)
        if isinstance(results, Failed):
            return dict.fromkeys(partitions or (), (results.error, results.message))
        begun = [tp for tp, (error, _) in results.items() if error is ErrorCode.NONE]
        left_ms = max(0, round((deadline - loop.time()) * 1000))
        await self._view.wait_until(lambda: all(self._led_as_decided(reign, tp) for tp in begun), left_ms)
        late = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if unclean else ErrorCode.REQUEST_TIMED_OUT
        for tp in begun:
            if not self._led_as_decided(reign, tp):
                results[tp] = (late, "The election is begun, but not at its end: brokers that were asked are silent.")
        return results

    def _led_as_decided(self, reign: Reign, tp: TopicPartition) -> bool:
        """Whether an election of the partition is over, and our view shows it."""
        decided, seen = reign.term.picture.partition(tp), self._view.partition(tp)
        if decided is None or seen is None:
            return True
        return decided.leader >= 0 and seen.leader_epoch >= decided.leader_epoch

    async def alter_reassignments(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int = 60_000
    ) -> dict[TopicPartition, Result]:
        """See :class:`ControllerHandle`."""
        reign = await self._in_office(timeout_ms)
        if reign is None:
            return dict.fromkeys(wanted, (DEPOSED.error, DEPOSED.message))
        results = await self._job(reign.moves.alter(wanted), timeout_ms)
        if isinstance(results, Failed):
            return dict.fromkeys(wanted, (results.error, results.message))
        await self._view.wait_until(lambda: all(self._seen_as_written(reign, tp) for tp in wanted), VIEW_WAIT_MS)
        return results

    def _seen_as_written(self, reign: Reign, tp: TopicPartition) -> bool:
        """Whether our view shows the assignment that we wrote, or a later state."""
        written, seen = reign.term.picture.partition(tp), self._view.partition(tp)
        if written is None or seen is None:
            return True
        return (seen.replicas, seen.adding, seen.removing) == (written.replicas, written.adding, written.removing)

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int, *, timeout_ms: int
    ) -> tuple[ErrorCode, list[TopicPartition]]:
        """See :class:`ControllerHandle`."""
        reign = await self._in_office(timeout_ms)
        if reign is None:
            return ErrorCode.NOT_CONTROLLER, []
        done = await self._job(reign.leaders.leave(broker_id, broker_epoch), timeout_ms)
        return (done.error, []) if isinstance(done, Failed) else done

    async def _in_office(self, timeout_ms: int) -> Reign | None:
        """Our reign, or None where another broker rules.

        Between an election and the moment the winner has read everything, and while nobody is elected, a request
        waits: stock admin clients give up at the first NOT_CONTROLLER of the very broker that Metadata named.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(timeout_ms, OFFICE_WAIT_MS) / 1000
        while not self.is_active:
            other = self._view.controller_id not in (NO_CONTROLLER, self._broker_id)
            elsewhere = (other and self._reign is None) or self._view.foreign is not None
            if elsewhere or self._stopped or loop.time() >= deadline:
                return None
            await asyncio.sleep(OFFICE_POLL_SECONDS)
        return self._reign

    async def _job(self, work: Coroutine[Any, Any, R], timeout_ms: int) -> R | Failed:
        """Run to the end even if nobody waits any more: a request cut off half-way would leave work half done."""
        task = asyncio.create_task(work)
        self._keep(task)
        done, _ = await asyncio.wait({task}, timeout=max(timeout_ms, 1) / 1000)
        if not done:
            task.add_done_callback(_note_end)
            return TIMED_OUT
        try:
            return task.result()
        except (TermOver, asyncio.CancelledError):
            return DEPOSED
        except BadZnode as problem:
            return Failed(ErrorCode.NOT_CONTROLLER, str(problem))

    async def _topics_job(
        self, work: Coroutine[Any, Any, list[Outcome]], names: Sequence[str], timeout_ms: int
    ) -> list[Outcome]:
        done = await self._job(work, timeout_ms)
        if isinstance(done, Failed):
            return [Outcome(name, done.error, done.message) for name in names]
        return done

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
        """See :class:`ControllerHandle`."""
        return await self._auto.create(names, timeout_ms)


def _note_end(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.info("an admin request that had timed out ended with: %s", task.exception())
