"""Replica fetchers: one per leader broker, each with one long poll in flight.

A thin driver around :class:`~brokers.replication.fetch_plan.FetchPlan`. Clock and network are ports, so that a
simulation can drive it. A fetcher retries an unreachable leader after ``replica.fetch.backoff.ms``, and sends nothing
while it has nothing to fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from fleetlog._native.errors import MalformedMessage
from fleetlog.brokers.metrics.exposition import BROKER_PAGE
from fleetlog.brokers.model import Clock, TopicPartition
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.replication.accepted import ask_accepted
from fleetlog.brokers.replication.fetch_plan import (
    SESSION_ERRORS,
    Counts,
    FetchPlan,
    Key,
    Limits,
    Request,
)
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import FetchAnswer, decode_fetch_response, encode_fetch_request
from fleetlog.wire.messages import ListOffsetsRequest

if TYPE_CHECKING:
    from fleetlog.brokers.config import BrokerConfig
    from fleetlog.brokers.metrics.registry import Metrics
    from fleetlog.brokers.replication.partition import Partition
    from fleetlog.brokers.replication.throttles import ReplicationThrottle

logger = logging.getLogger(__name__)

FETCH, FETCH_VERSION = 1, 18
LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 9
LATEST, EARLIEST = -1, -2
ANSWER_MS = 10_000
"""How much longer than its wait a fetch may take; then its connection is closed and opened again."""
YIELD_BYTES = 1024 * 1024
"""Appended bytes after which the loop gets a turn."""


class ReplicaFetchers:
    """All fetchers of a broker. ``follow`` and ``unfollow`` are the replica manager's listeners.

    ``broker_epoch`` is that of the present registration, -1 without one: then nothing is fetched, because a leader
    identifies followers by their registration. ``peers`` must have no other use: a response waits for the long poll
    before it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        peers: PeersPort,
        clock: Clock,
        *,
        broker_epoch: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        throttle: ReplicationThrottle | None = None,
        tells_positions: Callable[[int], bool] = lambda broker_id: True,
    ) -> None:
        """``tells_positions``: whether that broker knows AcceptedPositions (``BrokerInfo.tells_positions``)."""
        self.counts = Counts()
        self._config = config
        self._peers = peers
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._loop = loop
        self._throttle = throttle
        self._tells_positions = tells_positions
        self._fetchers: dict[int, _Fetcher] = {}
        self._followed: dict[TopicPartition, tuple[_Fetcher, Key]] = {}
        self._closed = False

    def follow(self, partition: Partition) -> None:
        """Fetch the partition from the leader that its state names, and from no other broker."""
        self.unfollow(partition.tp)
        leader = partition.state.leader
        if self._closed or leader in (-1, self._config.broker_id) or partition.log.offline:
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            limits = Limits(self._config.replica_fetch_max_bytes, self._config.replica_fetch_backoff_ms)
            plan = FetchPlan(self._config.broker_id, leader, limits, self.counts, self._throttle)
            fetcher = self._fetchers[leader] = _Fetcher(
                plan, self._config, self._peers, self._clock, self._broker_epoch, self._tells_positions
            )
            fetcher.task = self._loop.create_task(fetcher.run(), name=f"fetcher of broker {leader}")
        self._followed[partition.tp] = fetcher, (partition.topic_id, partition.tp.partition)
        fetcher.plan.follow(partition)
        fetcher.wake.set()

    def unfollow(self, tp: TopicPartition) -> None:
        """Stop fetching the partition: this broker leads it, or it was deleted, or it has no leader."""
        followed = self._followed.pop(tp, None)
        if followed is not None:
            fetcher, key = followed
            fetcher.plan.unfollow(key)

    def leaders(self) -> dict[int, int]:
        """The number of followed partitions by leader."""
        return {leader: len(fetcher.plan) for leader, fetcher in self._fetchers.items()}

    def _lag_family(self) -> Iterator[Metric | None]:
        largest = 0
        for fetcher in list(self._fetchers.values()):
            for lag in fetcher.plan.largest_lags():
                largest = max(largest, lag)
                yield None
        yield GaugeMetricFamily(
            "fleetlog_replica_max_lag", "The largest lag of a follower on this broker, in records.", largest
        )

    def watch(self, metrics: Metrics) -> None:
        """Export the counters as metrics of the broker."""
        counts = self.counts
        metrics.watch_family(
            "fleetlog_replica_fetcher",
            "Counters of this broker's replica fetchers since its start.",
            "what",
            lambda: {
                "bytes": counts.fetched_bytes,
                "records": counts.records,
                "errors": counts.errors,
                "damaged_answers": counts.corrupt,
                "truncations": counts.truncations,
            },
        )
        metrics.register(BROKER_PAGE, self._lag_family)
        metrics.watch(
            "fleetlog_followers", "Replicas on this broker that follow a leader.", lambda: len(self._followed)
        )

    async def close(self) -> None:
        """Stop all fetchers and close their connections."""
        self._closed = True
        tasks = [fetcher.task for fetcher in self._fetchers.values() if fetcher.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fetchers.clear()
        self._followed.clear()
        await self._peers.close()


class _Fetcher:
    """The fetch loop for one leader."""

    def __init__(
        self,
        plan: FetchPlan,
        config: BrokerConfig,
        peers: PeersPort,
        clock: Clock,
        broker_epoch: Callable[[], int],
        tells_positions: Callable[[int], bool],
    ) -> None:
        self.plan = plan
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._config = config
        self._peers = peers
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._tells_positions = tells_positions
        self._troubled = False

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            try:
                well = await self._turn()
            except Exception:  # a fetcher that stops for good would be worse than any bug
                logger.exception("fetching from broker %d failed with an unexpected error", self.plan.leader_id)
                self.plan.failed()
                well = False
            if not well:
                await asyncio.sleep(max(1, self._config.replica_fetch_backoff_ms) / 1000)

    async def _turn(self) -> bool:
        """One fetch, or one wait for work. False: pause before the next."""
        self.wake.clear()
        epoch = self._broker_epoch()
        if epoch < 0:
            return False
        await self._learn_positions()
        request = self.plan.next_request(epoch, self._clock.mono_ms())
        if request is None:
            await self._rest()
            return True
        try:
            answer = await self._fetch(request, epoch)
        except (PeerUnavailable, MalformedMessage) as problem:
            self._complain("fetching from broker %d failed: %s", self.plan.leader_id, problem)
            self.plan.counts.errors += 1
            self.plan.failed()
            return False
        error = self.plan.answered(answer)
        if error is not ErrorCode.NONE:
            once = error in SESSION_ERRORS and not self._troubled  # the leader ended the session: a new one, at once
            self._complain("fetching from broker %d failed with %s", self.plan.leader_id, error.name)
            return once
        if self._troubled:
            self._troubled = False
            logger.info("fetching from broker %d works again", self.plan.leader_id)
        await self._apply(answer)
        await self._find_ranges()
        return True

    async def _fetch(self, request: Request, broker_epoch: int) -> FetchAnswer:
        config = self._config
        wait_ms = 0 if request.more else config.replica_fetch_wait_max_ms
        body = encode_fetch_request(
            FETCH_VERSION,
            replica_id=config.broker_id,
            replica_epoch=broker_epoch,
            max_wait_ms=wait_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            parts=request.parts,
            forgotten=request.forgotten,
        )
        timeout_ms = wait_ms + ANSWER_MS
        return decode_fetch_response(
            FETCH_VERSION, await self._peers.exchange(self.plan.leader_id, FETCH, FETCH_VERSION, body, timeout_ms)
        )

    async def _apply(self, answer: FetchAnswer) -> None:
        done = 0
        for part in answer.parts:
            self.plan.apply(part, self._clock.mono_ms(), self._clock.wall_ms())
            done += len(part.records)
            if done >= YIELD_BYTES:
                done = 0
                await asyncio.sleep(0)

    async def _find_ranges(self) -> None:
        """Ask the leader for the first and last offset of partitions with a position outside its log (rare)."""
        questions = self.plan.questions()
        if not questions:
            return
        try:
            # the end first: a start that is read later is not outdated by a log that moved in between
            ends = await self._list_offsets(questions, LATEST)
            starts = await self._list_offsets(questions, EARLIEST)
        except PeerUnavailable as problem:
            self._complain("listing offsets at broker %d failed: %s", self.plan.leader_id, problem)
            starts = ends = {}
        now_ms = self._clock.mono_ms()
        nothing = ErrorCode.LEADER_NOT_AVAILABLE, -1
        for tp, _ in questions:
            start_error, start = starts.get(tp, nothing)
            end_error, end = ends.get(tp, nothing)
            error = start_error if start_error is not ErrorCode.NONE else end_error
            if error is ErrorCode.NONE:
                self.plan.range_found(tp, start, end, now_ms)
            else:
                self.plan.range_failed(tp, error, now_ms)

    async def _list_offsets(
        self, questions: list[tuple[TopicPartition, int]], timestamp: int
    ) -> dict[TopicPartition, tuple[ErrorCode, int]]:
        """ListOffsets as a replica: the latest offset is the leader's log end. Raises PeerUnavailable."""
        topics: dict[str, list[Any]] = {}
        for tp, epoch in questions:
            topics.setdefault(tp.topic, []).append(
                ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                    partition_index=tp.partition, current_leader_epoch=epoch, timestamp=timestamp
                )
            )
        message = ListOffsetsRequest(
            version=LIST_OFFSETS_VERSION,
            replica_id=self._config.broker_id,
            isolation_level=0,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()],
        )
        answer = await self._peers.call(
            self.plan.leader_id, LIST_OFFSETS, LIST_OFFSETS_VERSION, message, timeout_ms=ANSWER_MS
        )
        return {
            TopicPartition(topic.name, part.partition_index): (ErrorCode(part.error_code), part.offset)
            for topic in answer.topics
            for part in topic.partitions
        }

    async def _learn_positions(self) -> None:
        """Ask the leader for what it has accepted, for replicas that lack it (rare)."""
        for lacking in self.plan.lacking():
            told: memoryview | ErrorCode | None = None
            if self._tells_positions(self.plan.leader_id):
                try:
                    told = await ask_accepted(self._peers, self.plan.leader_id, lacking, self._clock.wall_ms())
                except PeerUnavailable as problem:
                    self._complain("asking broker %d for positions failed: %s", self.plan.leader_id, problem)
                    told = ErrorCode.LEADER_NOT_AVAILABLE
            self.plan.positions_told(lacking, told, self._clock.mono_ms())

    async def _rest(self) -> None:
        """Wait until there is something to fetch."""
        due_ms = self.plan.next_due_ms()
        try:
            async with asyncio.timeout(None if due_ms is None else max(0, due_ms - self._clock.mono_ms()) / 1000):
                await self.wake.wait()
        except TimeoutError:
            pass

    def _complain(self, text: str, *args: object) -> None:
        """Warn about the first problem only, until a fetch succeeds."""
        logger.log(logging.DEBUG if self._troubled else logging.WARNING, text, *args)
        self._troubled = True
