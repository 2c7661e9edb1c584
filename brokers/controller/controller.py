"""The controller: one elected broker that chooses partition leaders and performs admin requests.

Every broker runs a :class:`Controller`. The elected one reads the whole state, finishes its predecessor's incomplete
writes, elects leaders among the registered brokers, and then reacts to brokers that come and go. On the other brokers
it forwards automatic creation of topics (internal ones included) to the active controller.

Source: KafkaController of Kafka 3.9 for the reactions; ADR 0003 for the writes.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from fleetlog.brokers.controller.active import ActiveController
from fleetlog.brokers.controller.auto_creation import AutoCreation
from fleetlog.brokers.controller.context import ControllerContext, NotController
from fleetlog.brokers.controller.elections import ElectionReason
from fleetlog.brokers.controller.handle import (
    AUTO_CREATE_MS,
    DEPOSED,
    TIMED_OUT,
    ControllerWork,
    Gone,
    RequestFailed,
    Result,
    still_there,
)
from fleetlog.brokers.controller.requests import NewPartitions, NewTopic, TopicOutcome
from fleetlog.brokers.controller.topic_commands import TopicCommands
from fleetlog.brokers.metadata.cache import NO_CONTROLLER, MetadataCache, MetadataChange
from fleetlog.brokers.metadata.image import NO_STATE_EPOCH
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.brokers.model import Clock, TopicPartition
from fleetlog.brokers.peers.calls import PeersPort
from fleetlog.brokers.replication.ends import Replicas
from fleetlog.coordination.election import ControllerElection, Leadership
from fleetlog.coordination.store import UNANSWERED, SessionEvent, SessionState, Store
from fleetlog.wire.errors import ErrorCode

log = logging.getLogger(__name__)

METADATA_WAIT_MS = 2_000
"""How long a response waits for this broker's metadata cache to show the change."""
PRUNE_EVERY_SECONDS = 30.0
FAILED_SECONDS = 1.0
ACTIVE_WAIT_MS = 8_000
ACTIVE_POLL_SECONDS = 0.02

R = TypeVar("R")


class Controller:
    """See the module; implements :class:`ControllerHandle`.

    ``replicas`` are this broker's own; they answer log end probes without the network.
    """

    def __init__(
        self,
        store: Store,
        metadata: MetadataCache,
        peers: PeersPort,
        *,
        broker_id: int,
        clock: Clock,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        replicas: Replicas | None = None,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._peers = peers
        self._broker_id = broker_id
        self._clock = clock
        self._new_id = new_id
        self._replicas = replicas
        self.elections: Counter[str] = Counter({reason.value: 0 for reason in ElectionReason})
        """The elections that this broker made as controller, since its start, by reason."""
        self._previous_unclean_elections = 0
        self._everything = True
        self._halted = False
        self._active: ActiveController | None = None
        self._caught_up = False
        self._elected_ms = -1
        self._stopped = False
        self._cut_off = False
        store.on_session(self._session_changed)
        self._poked = asyncio.Event()
        self._active_task: asyncio.Task[None] | None = None
        self._jobs: dict[asyncio.Task[Any], None] = {}  # in order: a simulation must not depend on addresses
        self._auto = AutoCreation(self, metadata, peers, broker_id)
        self._election = ControllerElection(
            store, broker_id, wall_ms=clock.wall_ms, on_elected=self._elected, on_resigned=self._resigned,
            tree_is_current=metadata.guard.is_current,
        )  # fmt: skip

    # ------------------------------------------------------------ lifecycle

    def start(self) -> None:
        """Take part in controller elections from now on; the metadata cache must be ready."""
        assert self._metadata.ready, "the controller decides on the metadata cache"
        self._metadata.subscribe(self._metadata_changed)
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
        """Whether this broker is the active controller, and has read and settled everything."""
        return self._caught_up and self._active is not None and not self._active.over and self._metadata.foreign is None

    @property
    def epoch(self) -> int:
        """The epoch of this broker's controllership, or -1."""
        return self._active.context.epoch if self._active is not None else -1

    @property
    def unclean_elections(self) -> int:
        """The unclean elections that this broker made as controller, since its start."""
        present = self._active.probes.unclean_elections if self._active is not None else 0
        return self._previous_unclean_elections + present

    def work(self) -> ControllerWork:
        """See :class:`ControllerHandle`."""
        active = self._active
        if active is None or not self.is_active:
            return ControllerWork(unclean_elections=self.unclean_elections)
        requests = sum(task is not self._active_task for task in self._jobs)
        asked, silent = active.probes.waits_for()
        silent = tuple(sorted({*silent, *active.moves.silent}))
        return ControllerWork(active.context.epoch, self._elected_ms, requests, asked, silent, self.unclean_elections)

    def _elected(self, leadership: Leadership) -> None:
        log.info("elected controller with epoch %d", leadership.epoch)
        self._elected_ms = self._clock.wall_ms()
        self._active = ActiveController(
            ControllerContext(self._store, self._metadata, leadership, self.elections), self._peers,
            broker_id=self._broker_id, clock=self._clock, new_id=self._new_id, replicas=self._replicas,
        )  # fmt: skip
        self._halted = False
        self._poked.clear()
        self._active_task = asyncio.create_task(
            self._run_active(self._active), name=f"controller epoch {leadership.epoch}"
        )
        self._keep(self._active_task)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._jobs[task] = None
        task.add_done_callback(lambda done: self._jobs.pop(done, None))

    def _resigned(self) -> None:
        if self._active is not None:
            log.info("no longer controller (epoch %d)", self._active.context.epoch)
            self._active.context.over = True
            self._previous_unclean_elections += self._active.probes.unclean_elections
        self._caught_up = False
        self._active = None
        if self._active_task is not None and self._active_task is not asyncio.current_task():
            self._active_task.cancel()
        self._active_task = None

    def _metadata_changed(self, change: MetadataChange) -> None:
        if self._active is None:
            return
        if self._halted and self._metadata.foreign is None:
            self._election.deposed()
            return
        if change.brokers_changed or change.reloaded or change.configs_changed:
            self._everything = True
        if self._active.absorb(change) or self._everything:
            self._poked.set()

    async def _run_active(self, active: ActiveController) -> None:
        """One controllership, from the first read to its end."""
        epoch = active.context.epoch
        works = {
            "log end probes": active.probes.run(),
            "waiting moves": active.moves.run(),
            "unconfirmed deletions": active.deletions.run(),
        }
        beside = [
            asyncio.create_task(self._run_beside(active, work), name=f"{what}, epoch {epoch}")
            for what, work in works.items()
        ]
        try:
            await active.begin()
            self._caught_up = True
            log.info("controller epoch %d: active", epoch)
            await self._react(active)
        except NotController as ended:
            self._ended(active, ended)
        except BadZnode as problem:
            self._halt(problem)
        except Exception:
            await self._failed(active)
        finally:
            for task in beside:
                task.cancel()

    async def _react(self, active: ActiveController) -> None:
        """React to metadata changes, prune the change log, rebalance leaders periodically; raises NotController."""
        loop = asyncio.get_running_loop()
        config = self._metadata.effective
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
                await active.react(everything=everything)
            if loop.time() >= prune_at:
                await active.prune()
                prune_at = loop.time() + PRUNE_EVERY_SECONDS
            if loop.time() >= balance_at:
                config = self._metadata.effective
                if config.auto_leader_rebalance_enable:
                    await active.leaders.rebalance(config.leader_imbalance_per_broker_percentage)
                balance_at = loop.time() + config.leader_imbalance_check_interval_seconds

    async def _run_beside(self, active: ActiveController, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except NotController as ended:
            self._ended(active, ended)
        except BadZnode as problem:
            self._halt(problem)
        except Exception:
            await self._failed(active)

    def _ended(self, active: ActiveController, reason: NotController) -> None:
        log.info("controller epoch %d ends: %s", active.context.epoch, reason)
        if self._active is active:
            self._election.deposed()

    def _halt(self, problem: BadZnode) -> None:
        """Writes to a tree in an unknown format could destroy it: leave it to a newer fleetlog, or an operator."""
        log.error("controller: %s; no further writes until the next election", problem)
        self._caught_up, self._halted = False, self._metadata.foreign is not None

    async def _failed(self, active: ActiveController) -> None:
        """A bug: an idle controller stops the whole cluster, so resign, and begin again with a full read."""
        log.exception("controller epoch %d failed with an unexpected error", active.context.epoch)
        self._caught_up = False
        await asyncio.sleep(FAILED_SECONDS)
        if self._active is active:
            self._election.deposed()

    # ------------------------------------------------------------ admin commands, at the active controller

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
        gone: Gone = still_there,
    ) -> list[TopicOutcome]:
        """See :class:`ControllerHandle`."""
        names = [topic.name for topic in topics]
        return await self._grow(names, lambda at: at.create(topics, validate_only, gone), validate_only, timeout_ms)

    async def create_partitions(
        self,
        topics: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
        gone: Gone = still_there,
    ) -> list[TopicOutcome]:
        """See :class:`ControllerHandle`."""
        names = [topic.name for topic in topics]
        return await self._grow(names, lambda at: at.extend(topics, validate_only, gone), validate_only, timeout_ms)

    async def _grow(
        self,
        names: Sequence[str],
        job: Callable[[TopicCommands], Coroutine[Any, Any, list[TopicOutcome]]],
        validate_only: bool,
        timeout_ms: int,
    ) -> list[TopicOutcome]:
        """Make topics or partitions at the active controller, and wait until the metadata cache shows them."""
        active = await self._active_or_none(timeout_ms)
        if active is None:
            return [TopicOutcome(name, *self._deposed()) for name in names]
        outcomes = await self._topics_job(active, job(active.topics), names, timeout_ms)
        if not validate_only:
            await self._shown([o for o in outcomes if o.ok])
        return outcomes

    async def delete_topics(
        self, topics: Sequence[str | uuid.UUID], *, timeout_ms: int = 30_000, gone: Gone = still_there
    ) -> list[TopicOutcome]:
        """See :class:`ControllerHandle`."""
        names = [topic if isinstance(topic, str) else self._metadata.topic_names.get(topic, "") for topic in topics]
        ids = [topic if isinstance(topic, uuid.UUID) else None for topic in topics]
        active = await self._active_or_none(timeout_ms)
        if active is None:
            return [
                TopicOutcome(name, *self._deposed(), None, topic_id) for name, topic_id in zip(names, ids, strict=True)
            ]
        outcomes = await self._topics_job(active, active.topics.delete(topics, gone), names, timeout_ms)
        deleted = [o.topic for o in outcomes if o.ok and o.topic is not None]
        await self._metadata.wait_until(
            lambda: all(t.id not in self._metadata.topic_names for t in deleted), METADATA_WAIT_MS
        )
        return outcomes

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, *, unclean: bool, timeout_ms: int = 60_000
    ) -> dict[TopicPartition, Result]:
        """See :class:`ControllerHandle`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        active = await self._active_or_none(timeout_ms)
        if active is None:
            return dict.fromkeys(partitions or (), self._deposed())
        leaders = active.leaders
        work = leaders.elect_unclean(partitions) if unclean else leaders.elect_preferred(partitions)
        results = await self._job(active, work, timeout_ms, _refuses_some)
        if isinstance(results, RequestFailed):
            return dict.fromkeys(partitions or (), (results.error, results.message))
        begun = [tp for tp, (error, _) in results.items() if error is ErrorCode.NONE]
        left_ms = max(0, round((deadline - loop.time()) * 1000))
        await self._metadata.wait_until(lambda: all(self._led_as_decided(active, tp) for tp in begun), left_ms)
        late = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if unclean else ErrorCode.REQUEST_TIMED_OUT
        for tp in begun:
            if not self._led_as_decided(active, tp):
                results[tp] = (late, "The election has not finished in time: some replicas have not answered yet.")
        return results

    def _led_as_decided(self, active: ActiveController, tp: TopicPartition) -> bool:
        """Whether an election of the partition is over, and the metadata cache shows it."""
        decided, seen = active.context.image.partition(tp), self._metadata.partition(tp)
        if decided is None or seen is None:
            return True
        return decided.leader >= 0 and seen.leader_epoch >= decided.leader_epoch

    async def alter_reassignments(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int = 60_000
    ) -> dict[TopicPartition, Result]:
        """See :class:`ControllerHandle`."""
        active = await self._active_or_none(timeout_ms)
        if active is None:
            return dict.fromkeys(wanted, self._deposed())
        results = await self._job(active, active.moves.alter(wanted), timeout_ms, _refuses_some)
        if isinstance(results, RequestFailed):
            return dict.fromkeys(wanted, (results.error, results.message))
        await self._metadata.wait_until(
            lambda: all(self._seen_as_written(active, tp) for tp in wanted), METADATA_WAIT_MS
        )
        return results

    def _seen_as_written(self, active: ActiveController, tp: TopicPartition) -> bool:
        """Whether the metadata cache shows the written assignment."""
        written, seen = active.context.image.partition(tp), self._metadata.partition(tp)
        if written is None or seen is None:
            return True
        return (seen.replicas, seen.adding, seen.removing) == (written.replicas, written.adding, written.removing)

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int, *, timeout_ms: int
    ) -> tuple[ErrorCode, list[TopicPartition]]:
        """See :class:`ControllerHandle`."""
        active = await self._active_or_none(timeout_ms)
        if active is None:
            return ErrorCode.NOT_CONTROLLER, []
        leave = active.leaders.leave(broker_id, broker_epoch)
        done = await self._job(active, leave, timeout_ms, lambda done: done[0] is not ErrorCode.NONE)
        return (done.error, []) if isinstance(done, RequestFailed) else done

    def _session_changed(self, event: SessionEvent) -> None:
        self._cut_off = event.state is not SessionState.CONNECTED

    def _deposed(self) -> RequestFailed:
        """NOT_CONTROLLER, which clients ask again after; its message names a ZooKeeper that does not answer."""
        return DEPOSED._replace(message=UNANSWERED) if self._cut_off else DEPOSED

    async def _active_or_none(self, timeout_ms: int) -> ActiveController | None:
        """The active controller of this broker, or None if another broker is the controller.

        Without an elected controller, and until the elected one has read everything, a request waits: stock admin
        clients give up at the first NOT_CONTROLLER of the broker that Metadata named.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(timeout_ms, ACTIVE_WAIT_MS) / 1000
        while not self.is_active:
            other = self._metadata.controller_id not in (NO_CONTROLLER, self._broker_id)
            elsewhere = (other and self._active is None) or self._metadata.foreign is not None
            if elsewhere or self._stopped or loop.time() >= deadline:
                return None
            await asyncio.sleep(ACTIVE_POLL_SECONDS)
        return self._active

    async def _job(
        self, active: ActiveController, work: Coroutine[Any, Any, R], timeout_ms: int, refuses: Callable[[R], bool]
    ) -> R | RequestFailed:
        """Run to the end, also after the timeout: cancelled work would leave half of its writes.

        What it ``refuses`` it refuses from memory, which counts only while no other broker can be the controller.
        """
        task = asyncio.create_task(work)
        self._keep(task)
        done, _ = await asyncio.wait({task}, timeout=max(timeout_ms, 1) / 1000)
        if not done:
            task.add_done_callback(_note_end)
            return TIMED_OUT._replace(message=UNANSWERED) if self._cut_off else TIMED_OUT
        try:
            result = task.result()
            if refuses(result):
                await self._insist_on_lease(active, timeout_ms)
            return result
        except (NotController, asyncio.CancelledError):
            return self._deposed()
        except BadZnode as problem:
            return RequestFailed(ErrorCode.NOT_CONTROLLER, str(problem))

    async def _insist_on_lease(self, active: ActiveController, timeout_ms: int) -> None:
        """Return when no other broker has been elected until now; raises NotController.

        A loop that stood still beyond its session, say, goes on before it hears that the session has expired.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(timeout_ms, ACTIVE_WAIT_MS) / 1000
        while True:
            active.context.check_session()
            if self._store.lease.valid():
                return
            if loop.time() >= deadline:
                raise NotController("the session's lease has run out")
            await asyncio.sleep(ACTIVE_POLL_SECONDS)

    async def _topics_job(
        self,
        active: ActiveController,
        work: Coroutine[Any, Any, list[TopicOutcome]],
        names: Sequence[str],
        timeout_ms: int,
    ) -> list[TopicOutcome]:
        done = await self._job(active, work, timeout_ms, lambda outcomes: not all(o.ok for o in outcomes))
        if isinstance(done, RequestFailed):
            return [TopicOutcome(name, done.error, done.message) for name in names]
        return done

    async def _shown(self, outcomes: Sequence[TopicOutcome]) -> None:
        """Wait until the metadata cache shows the topics with all their partitions and first states."""

        def shown() -> bool:
            for outcome in outcomes:
                seen = self._metadata.topics.get(outcome.name)
                if outcome.topic is None:
                    continue
                if seen is None or len(seen.partitions) < len(outcome.topic.partitions):
                    return False
                if any(state.partition_epoch == NO_STATE_EPOCH for state in seen.partitions):
                    return False
            return True

        if outcomes:
            await self._metadata.wait_until(shown, METADATA_WAIT_MS)

    # ------------------------------------------------------------ from any broker

    async def auto_create(self, names: Sequence[str], timeout_ms: int = AUTO_CREATE_MS) -> dict[str, ErrorCode]:
        """See :class:`ControllerHandle`."""
        return await self._auto.create(names, timeout_ms)

    def creation_refused(self, name: str) -> str | None:
        """See :class:`ControllerHandle`."""
        return self._auto.refused.get(name)


def _refuses_some(results: Mapping[TopicPartition, Result]) -> bool:
    return any(error is not ErrorCode.NONE for error, _ in results.values())


def _note_end(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.info("controller: an admin request failed after its timeout: %s", task.exception())
