"""The controller: one elected broker that chooses partition leaders and performs admin requests.

Every broker runs a :class:`Controller`. The elected one reads the whole state, finishes its predecessor's incomplete
writes, elects leaders among the registered brokers, and then reacts to brokers that come and go. On the other brokers
it forwards automatic creation of topics (internal ones included) to the active controller: any broker may need a topic
on first use. Concurrent requests for one name share one creation.

Pure functions decide (``elections``, ``plans``, ``requests``); :class:`ControllerContext` writes their decisions. Each
subject's commands have a file. All work runs under the context's lock.

Source: KafkaController of Kafka 3.9 for the reactions; ADR 0003 for the writes.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fleetlog.brokers.audit.settings import audit_topic_configs
from fleetlog.brokers.controller import plans
from fleetlog.brokers.controller.context import RETRY_SECONDS, ControllerContext, NotController, StaleState
from fleetlog.brokers.controller.deletions import UnconfirmedDeletions
from fleetlog.brokers.controller.elections import ElectionReason, is_led
from fleetlog.brokers.controller.leader_commands import LeaderCommands
from fleetlog.brokers.controller.log_end_probes import LogEndProbes
from fleetlog.brokers.controller.move_commands import MoveCommands
from fleetlog.brokers.controller.requests import (
    AUTO_CREATE_MS,
    DEPOSED,
    TIMED_OUT,
    ControllerWork,
    Gone,
    NewPartitions,
    NewTopic,
    RequestFailed,
    Result,
    TopicOutcome,
    check_name,
    still_there,
)
from fleetlog.brokers.controller.topic_commands import TopicCommands
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.cache import NO_CONTROLLER, MetadataCache, MetadataChange
from fleetlog.brokers.metadata.image import NO_STATE_EPOCH
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.brokers.model import (
    AUDIT_TOPIC,
    GROUP_METADATA_TOPIC,
    PROTECTED_TOPICS,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    Clock,
    PartitionState,
    TopicPartition,
)
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.replication import ends
from fleetlog.brokers.replication.isr import LiveBrokers, counts, members
from fleetlog.brokers.replication.replicas import ReplicaManager
from fleetlog.coordination.changes import Pruner
from fleetlog.coordination.election import ControllerElection, ControllerMoved, Leadership
from fleetlog.coordination.store import UNANSWERED, SessionEvent, SessionExpired, SessionState, Store, StoreError
from fleetlog.coordination.tree import ensure
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig

logger = logging.getLogger(__name__)

KEEP_CHANGES = 5_000
KEEP_CHANGES_MS = 15 * 60_000
"""A broker that missed more changes than this reads all metadata again."""


class ActiveController:
    def __init__(
        self,
        context: ControllerContext,
        peers: PeersPort,
        *,
        broker_id: int,
        clock: Clock,
        new_id: Callable[[], uuid.UUID],
        replicas: ReplicaManager | None,
    ) -> None:
        self.context = context
        self.probes = LogEndProbes(context, self.settle, peers, broker_id, replicas)
        self.deletions = UnconfirmedDeletions(context, peers, broker_id)
        self.topics = TopicCommands(context, self.settle, new_id, clock.wall_ms, self.deletions)
        self.leaders = LeaderCommands(context, self.settle, self.probes)
        self.moves = MoveCommands(context, self.settle, self.probes, self.leaders)
        context.leaving = lambda: self.leaders.leaving
        self._touched: set[TopicPartition] = set()
        self._pruner = Pruner(context.store, keep_count=KEEP_CHANGES, keep_ms=KEEP_CHANGES_MS, mono_ms=clock.mono_ms)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.context.over

    async def begin(self) -> None:
        """Read all metadata and finish the previous controller's incomplete writes; raises NotController."""
        async with self.context.lock:
            await self.context.insist("creating the parent znodes", self._make_parents)
            await self.deletions.begin()
            await self.context.look_again(whole=False)
            await self.settle()

    async def _make_parents(self) -> None:
        for path in znodes.PERSISTENT_PATHS:
            await ensure(self.context.store, path)

    # ------------------------------------------------------------ reacting

    def absorb(self, change: MetadataChange) -> bool:
        """Apply a change of the metadata cache; True if it may need a reaction (:meth:`react`)."""
        self.context.absorb(change.partitions_changed)
        if change.brokers_changed or change.reloaded or change.configs_changed:
            return True
        live_brokers = self.context.live_brokers
        for tp in change.partitions_changed:
            state = self.context.image.partition(tp)
            if state is not None and _unsettled(state, live_brokers):
                self._touched.add(tp)
        return bool(self._touched)

    async def react(self, *, everything: bool = True) -> None:
        """React to changes: in all partitions, or in those whose leaders wrote their state; raises NotController."""
        async with self.context.lock:
            touched, self._touched = self._touched, set()
            await self.settle(None if everything else sorted(touched))

    async def settle(self, only: Sequence[TopicPartition] | None = None) -> None:
        """Complete topics and deletions, elect leaders, advance moves, until all is written; raises NotController."""
        context = self.context
        attempt = 0
        while True:
            try:
                if only is None:
                    await self.topics.finish_deletions()
                    await context.perform(plans.missing_states(context.image, context.live_brokers, context.epoch))
                await context.perform(
                    plans.elections(
                        context.image,
                        context.live_brokers,
                        context.epoch,
                        min_isr=context.min_isr,
                        only=only,
                        leaving=self.leaders.leaving,
                        must_wait=self.probes.must_wait,
                    )
                )
                await self.moves.advance(only)
                break
            except StaleState as problem:
                attempt += 1
                logger.info("controller: stale state: %s; reading again", problem)
                # a broker may have registered again already; the metadata cache learns of it shortly
                await asyncio.sleep(min(RETRY_SECONDS * attempt, 2.0))
                await context.look_again(whole=problem.whole)
                only = None
        self.probes.wake()

    # ------------------------------------------------------------ the change log

    async def prune(self) -> None:
        """Delete old change-log entries; raises NotController."""
        async with self.context.lock:
            self.context.check_session()
            try:
                await self._pruner.prune(self.context.leadership)
            except ControllerMoved as problem:
                self.context.end(str(problem))
            except SessionExpired:
                self.context.end("the session expired")
            except StoreError as problem:
                logger.info("controller: pruning the change log failed: %s", problem)


def _unsettled(state: PartitionState, live_brokers: LiveBrokers) -> bool:
    """Whether a state that a leader wrote needs a reaction of the controller."""
    if state.partition_epoch == NO_STATE_EPOCH:
        return False
    if not is_led(state, live_brokers) or state.adding or state.removing:
        return True
    return not all(counts(live_brokers, b, i) for b, i in members(state))


CREATE_TOPICS_VERSION = 7
CREATION_RETRY_SECONDS = 0.1
COMPLAINT_S = 60.0
_FACTORS = {
    GROUP_METADATA_TOPIC: ("consumer groups", "offsets.topic.replication.factor"),
    TRANSACTION_STATE_TOPIC: ("transactions", "transaction.state.log.replication.factor"),
    SHARE_STATE_TOPIC: ("share groups", "share.coordinator.state.topic.replication.factor"),
    AUDIT_TOPIC: ("audit events", "audit.topic.replication.factor"),
}


class AutoCreation:
    """See the module. ``controller`` is this broker's own, which may be the active one."""

    def __init__(self, controller: Controller, metadata: MetadataCache, peers: PeersPort, broker_id: int) -> None:
        self._controller = controller
        self._metadata = metadata
        self._peers = peers
        self._broker_id = broker_id
        self._creating: dict[str, asyncio.Task[ErrorCode]] = {}
        self.refused: dict[str, str] = {}
        """Internal topics whose creation was rejected, with the reason. Until then groups or transactions wait."""
        self._complained_at: dict[str, float] = {}

    async def stop(self) -> None:
        """Cancel the creations in flight."""
        tasks = list(self._creating.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def create(
        self, names: Sequence[str], timeout_ms: int = AUTO_CREATE_MS, configs: Mapping[str, str] | None = None
    ) -> dict[str, ErrorCode]:
        """Create the missing topics, at this or a remote controller, and wait until the metadata cache has them.

        Internal topics get their own settings, others ``configs``. NONE means that the metadata cache has the topic.
        While ``auto.create.topics.max.pending`` creations are in flight, further ones answer REQUEST_TIMED_OUT.
        """
        errors: dict[str, ErrorCode] = {}
        tasks: dict[str, asyncio.Task[ErrorCode]] = {}
        most = self._metadata.static.auto_create_topics_max_pending
        for name in dict.fromkeys(names):
            if name in self._metadata.topics:
                errors[name] = ErrorCode.NONE
            elif check_name(name) is not None:
                errors[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif len(self._creating) >= most and name not in self._creating and name not in PROTECTED_TOPICS:
                errors[name] = ErrorCode.REQUEST_TIMED_OUT
            else:
                tasks[name] = self._creation(name, configs)
        if tasks:
            await asyncio.wait(tasks.values(), timeout=timeout_ms / 1000)
        for name, task in tasks.items():
            done = task.done() and not task.cancelled()
            errors[name] = task.result() if done else ErrorCode.REQUEST_TIMED_OUT
        return errors

    def _creation(self, name: str, configs: Mapping[str, str] | None) -> asyncio.Task[ErrorCode]:
        task = self._creating.get(name)
        if task is None:
            topic = internal_topic(name, self._metadata) if configs is None else NewTopic(name, configs=configs)
            task = asyncio.create_task(self._create_somewhere(topic), name=f"create {name}")
            self._creating[name] = task
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        return task

    async def _create_somewhere(self, topic: NewTopic) -> ErrorCode:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AUTO_CREATE_MS / 1000
        error = ErrorCode.REQUEST_TIMED_OUT
        while loop.time() < deadline and topic.name not in self._metadata.topics:
            error = await self._ask_controller(topic, round((deadline - loop.time()) * 1000))
            if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                self.refused.pop(topic.name, None)
                await self._metadata.wait_until(lambda: topic.name in self._metadata.topics, METADATA_WAIT_MS)
                break
            if error not in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE):
                return error
            await asyncio.sleep(CREATION_RETRY_SECONDS)
        return ErrorCode.NONE if topic.name in self._metadata.topics else error

    async def _ask_controller(self, topic: NewTopic, timeout_ms: int) -> ErrorCode:
        if self._controller.is_active:
            (outcome,) = await self._controller.create_topics([topic], timeout_ms=timeout_ms)
            self._complain(topic, outcome.error, outcome.message)
            return outcome.error
        controller_id = self._metadata.controller_id
        if controller_id < 0 or controller_id == self._broker_id:
            return ErrorCode.NOT_CONTROLLER
        try:
            request = _create_request(topic, timeout_ms)
            version = CREATE_TOPICS_VERSION
            response = await self._peers.call(controller_id, request.API_KEY, version, request, timeout_ms)
        except PeerUnavailable as problem:
            logger.info("creating topic %s at controller %d failed: %s", topic.name, controller_id, problem)
            return ErrorCode.BROKER_NOT_AVAILABLE
        if not response.topics:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        error = ErrorCode(response.topics[0].error_code)
        self._complain(topic, error, response.topics[0].error_message)
        return error

    def _complain(self, topic: NewTopic, error: ErrorCode, message: str | None) -> None:
        """Log, at most once per COMPLAINT_S, why an internal topic is missing: clients only see retriable errors."""
        if topic.name not in _FACTORS or error is not ErrorCode.INVALID_REPLICATION_FACTOR:
            return
        what, setting = _FACTORS[topic.name]
        self.refused[topic.name] = (
            f"{topic.name} cannot be created, so {what} wait: {setting}={topic.replication_factor}, and there are fewer"
            f" brokers ({message}) Start more brokers, or set {setting} to the number of brokers on each of them"
        )
        now = asyncio.get_running_loop().time()
        if now >= self._complained_at.get(topic.name, now):
            self._complained_at[topic.name] = now + COMPLAINT_S
            logger.error("%s", self.refused[topic.name])


def internal_topic(name: str, metadata: MetadataCache) -> NewTopic:
    """The definition of an automatically created topic: the defaults, or the internal topic's own settings."""
    config = metadata.effective
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
    if name == SHARE_STATE_TOPIC:
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
            "min.insync.replicas": str(config.share_coordinator_state_topic_min_isr),
            "unclean.leader.election.enable": "false",
        }
        return NewTopic(
            name, config.share_coordinator_state_topic_num_partitions,
            config.share_coordinator_state_topic_replication_factor, configs=settings,
        )  # fmt: skip
    if name == AUDIT_TOPIC and config.audit_enable:
        return NewTopic(
            name, config.audit_topic_num_partitions, config.audit_topic_replication_factor,
            configs=audit_topic_configs(config),
        )  # fmt: skip
    return NewTopic(name)


def _create_request(topic: NewTopic, timeout_ms: int) -> Any:
    request = messages.CreateTopicsRequest
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


METADATA_WAIT_MS = 2_000
"""How long a response waits for this broker's metadata cache to show the change."""
PRUNE_EVERY_SECONDS = 30.0
FAILED_SECONDS = 1.0
ACTIVE_WAIT_MS = 8_000
ACTIVE_POLL_SECONDS = 0.02

R = TypeVar("R")


class Controller:
    """See the module.

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
        replicas: ReplicaManager | None = None,
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
        self.active: ActiveController | None = None
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
        return self._caught_up and self.active is not None and not self.active.over and self._metadata.foreign is None

    @property
    def epoch(self) -> int:
        """The epoch of this broker's controllership, or -1."""
        return self.active.context.epoch if self.active is not None else -1

    @property
    def unclean_elections(self) -> int:
        """The unclean elections that this broker made as controller, since its start."""
        present = self.active.probes.unclean_elections if self.active is not None else 0
        return self._previous_unclean_elections + present

    def work(self) -> ControllerWork:
        """What this broker does as the active controller."""
        active = self.active
        if active is None or not self.is_active:
            return ControllerWork(unclean_elections=self.unclean_elections)
        requests = sum(task is not self._active_task for task in self._jobs)
        asked, silent = active.probes.waits_for()
        silent = tuple(sorted({*silent, *active.moves.silent}))
        return ControllerWork(active.context.epoch, self._elected_ms, requests, asked, silent, self.unclean_elections)

    def _elected(self, leadership: Leadership) -> None:
        logger.info("elected controller with epoch %d", leadership.epoch)
        self._elected_ms = self._clock.wall_ms()
        self.active = ActiveController(
            ControllerContext(self._store, self._metadata, leadership, self.elections), self._peers,
            broker_id=self._broker_id, clock=self._clock, new_id=self._new_id, replicas=self._replicas,
        )  # fmt: skip
        self._halted = False
        self._poked.clear()
        self._active_task = asyncio.create_task(
            self._run_active(self.active), name=f"controller epoch {leadership.epoch}"
        )
        self._keep(self._active_task)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._jobs[task] = None
        task.add_done_callback(lambda done: self._jobs.pop(done, None))

    def _resigned(self) -> None:
        if self.active is not None:
            logger.info("no longer controller (epoch %d)", self.active.context.epoch)
            self.active.context.over = True
            self._previous_unclean_elections += self.active.probes.unclean_elections
        self._caught_up = False
        self.active = None
        if self._active_task is not None and self._active_task is not asyncio.current_task():
            self._active_task.cancel()
        self._active_task = None

    def _metadata_changed(self, change: MetadataChange) -> None:
        if self.active is None:
            return
        if self._halted and self._metadata.foreign is None:
            self._election.deposed()
            return
        if change.brokers_changed or change.reloaded or change.configs_changed:
            self._everything = True
        if self.active.absorb(change) or self._everything:
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
            logger.info("controller epoch %d: active", epoch)
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
        logger.info("controller epoch %d ends: %s", active.context.epoch, reason)
        if self.active is active:
            self._election.deposed()

    def _halt(self, problem: BadZnode) -> None:
        """Writes to a tree in an unknown format could destroy it: leave it to a newer fleetlog, or an operator."""
        logger.error("controller: %s; no further writes until the next election", problem)
        self._caught_up, self._halted = False, self._metadata.foreign is not None

    async def _failed(self, active: ActiveController) -> None:
        """A bug: an idle controller stops the whole cluster, so resign, and begin again with a full read."""
        logger.exception("controller epoch %d failed with an unexpected error", active.context.epoch)
        self._caught_up = False
        await asyncio.sleep(FAILED_SECONDS)
        if self.active is active:
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
        """Create at the active controller; NOT_CONTROLLER for all on other brokers.

        Once the client is ``gone()`` no further topic is started; the same for the two below.
        """
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
        """Extend at the active controller; NOT_CONTROLLER for all on other brokers."""
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
        """Delete at the active controller; NOT_CONTROLLER for all on other brokers."""
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
        """Elect preferred replicas, or (``unclean``) the replica with the longest log in offline partitions.

        None stands for all partitions. ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
        ELIGIBLE_LEADERS_NOT_AVAILABLE; NOT_CONTROLLER for all on other brokers. Source: KIP-183, KIP-460.
        """
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
        """Start the reassignment of each partition to the wanted replicas, or cancel the one in progress (None).

        The response comes when the reassignments are written to ZooKeeper; ``adding`` and ``removing`` in the states
        show their progress. NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICATION_ASSIGNMENT, UNKNOWN_TOPIC_OR_PARTITION;
        NOT_CONTROLLER for all on other brokers. Source: KIP-455.
        """
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
        """Move the broker's leaderships to other replicas; returns the partitions that no other replica can lead.

        The broker has closed its coordinators before this request. STALE_BROKER_EPOCH: its registration is another.
        """
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
            elsewhere = (other and self.active is None) or self._metadata.foreign is not None
            if elsewhere or self._stopped or loop.time() >= deadline:
                return None
            await asyncio.sleep(ACTIVE_POLL_SECONDS)
        return self.active

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

    async def auto_create(
        self, names: Sequence[str], timeout_ms: int = AUTO_CREATE_MS, configs: Mapping[str, str] | None = None
    ) -> dict[str, ErrorCode]:
        """Create topics with these or default settings, from any broker; wait until the metadata cache has them."""
        return await self._auto.create(names, timeout_ms, configs)

    def creation_refused(self, name: str) -> str | None:
        """The reason why the last automatic creation of an internal topic was rejected, with a remedy, or None."""
        return self._auto.refused.get(name)


def _refuses_some(results: Mapping[TopicPartition, Result]) -> bool:
    return any(error is not ErrorCode.NONE for error, _ in results.values())


def _note_end(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.info("controller: an admin request failed after its timeout: %s", task.exception())


CONTROLLED_SHUTDOWN, VERSION = 7, 3
CALL_MS = 10_000
FIRST_PAUSE_S = 0.05
LAST_ATTEMPT_S = 15.0
"""No attempt begins later: with ZooKeeper away each takes CALL_MS in vain, and 30 seconds are what a stop is often
given before SIGKILL makes it an unclean one."""


async def hand_over(
    config: BrokerConfig,
    broker_epoch: int,
    *,
    metadata: MetadataCache,
    replicas: ReplicaManager,
    controller: Controller,
    peers: PeersPort,
) -> None:
    """Controlled shutdown: ask the controller to move every leadership that another replica can take.

    Returns when that is done, or out of tries: the partitions that are left fail over as after a crash. The broker
    waives its leases first. Source: Kafka's controlled shutdown (KIP-380 for the broker epoch).
    """
    if not config.controlled_shutdown_enable or not _another_could_lead(config.broker_id, metadata, replicas):
        return
    # Until this broker knows of a move it must not answer from memory, nor acknowledge a record that only it has.
    await ends.drained(replicas.waive_leases())
    last_attempt = asyncio.get_running_loop().time() + LAST_ATTEMPT_S
    for attempt in range(config.controlled_shutdown_max_retries + 1):
        if attempt:
            if asyncio.get_running_loop().time() > last_attempt:
                break
            await asyncio.sleep(min(FIRST_PAUSE_S * 4**attempt, config.controlled_shutdown_retry_backoff_ms / 1000))
        error, remaining = await _ask(config.broker_id, broker_epoch, metadata, controller, peers)
        if error is ErrorCode.NONE and not remaining:
            await metadata.wait_until(
                lambda: not _another_could_lead(config.broker_id, metadata, replicas), METADATA_WAIT_MS
            )
            return
        logger.info("controlled shutdown: %s, %d partitions still led here", error.name, remaining)
    logger.warning(
        "controlled shutdown gave up after its last attempt: the remaining partitions fail over after the stop"
    )


def _another_could_lead(broker_id: int, metadata: MetadataCache, replicas: ReplicaManager) -> bool:
    """Whether this broker leads a partition that another live in-sync replica could lead."""
    return any(
        partition.is_leader and any(b != broker_id and b in metadata.brokers for b in partition.state.isr)
        for partition in replicas.all()
    )


async def _ask(
    broker_id: int, broker_epoch: int, metadata: MetadataCache, controller: Controller, peers: PeersPort
) -> tuple[ErrorCode, int]:
    if controller.is_active:
        error, remaining = await controller.controlled_shutdown(broker_id, broker_epoch, timeout_ms=CALL_MS)
        return error, len(remaining)
    if metadata.controller_id < 0 or metadata.controller_id == broker_id:
        return ErrorCode.NOT_CONTROLLER, 0
    request = messages.request_class(CONTROLLED_SHUTDOWN)(
        version=VERSION, broker_id=broker_id, broker_epoch=broker_epoch
    )
    try:
        response = await peers.call(metadata.controller_id, CONTROLLED_SHUTDOWN, VERSION, request, CALL_MS)
    except PeerUnavailable as problem:
        logger.info("controlled shutdown: %s", problem)
        return ErrorCode.BROKER_NOT_AVAILABLE, 0
    return ErrorCode(response.error_code), len(response.remaining_partitions)
