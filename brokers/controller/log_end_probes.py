"""Log end probes: requests of the controller to brokers before an election or a move. They return the log's end,
whether the coordinator is closed, and whether a live leader that is to be replaced has waived its lease.

The probes run beside the controller's other work, one round at a time. The metadata image determines the brokers to
ask, so a successor needs no stored state. The requests run without the lock. The decision follows under the lock, on
the image at that time, and uses only answers of the incarnations registered then.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Mapping

from fleetlog.brokers.controller import plans
from fleetlog.brokers.controller.context import ControllerContext, Settle, StaleState
from fleetlog.brokers.controller.elections import RECOVERING, elect_by_ends, is_led, must_be_heard, to_ask
from fleetlog.brokers.controller.writes import MultiWrite, StateWrites
from fleetlog.brokers.metadata.image import NO_STATE_EPOCH
from fleetlog.brokers.model import INTERNAL_TOPICS, NO_LOG, BrokerId, LogEnd, PartitionState, TopicPartition
from fleetlog.brokers.peers.calls import PeersPort, PeerUnavailable
from fleetlog.brokers.replication import ends
from fleetlog.brokers.replication.ends import ReplicaEnd
from fleetlog.brokers.replication.replicas import ReplicaManager
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.02
LAST_PAUSE_SECONDS = 1.0

Questions = dict[BrokerId, dict[TopicPartition, int]]
"""The brokers to ask, with the partitions and the leader epoch in which these have no leader."""
Ends = Mapping[TopicPartition, ReplicaEnd]
Chosen = dict[TopicPartition, tuple[PartitionState, PartitionState]]
"""Partitions with their states before and after an election."""
Version = tuple[uuid.UUID, int]
"""A topic's id and a partition's epoch: one version of a partition's state."""


class LogEndProbes:
    """See the module. ``own`` answers for this broker itself, without a connection."""

    def __init__(
        self,
        context: ControllerContext,
        settle: Settle,
        peers: PeersPort,
        broker_id: int,
        own: ReplicaManager | None,
    ) -> None:
        self._context = context
        self._settle = settle
        self._peers = peers
        self._broker_id = broker_id
        self._own = own
        self._wake = asyncio.Event()
        self._heard: dict[TopicPartition, tuple[uuid.UUID, int]] = {}
        """For which leader epoch of which topic the previous leader's coordinator is closed."""
        self._waived: dict[TopicPartition, Version] = {}
        self._wanted: dict[TopicPartition, None] = {}
        self._allowed: dict[TopicPartition, tuple[uuid.UUID, int]] = {}
        """Until which leader epoch of which topic an operator allows an unclean election."""
        self._silent: set[BrokerId] = set()
        self._waits_for: tuple[BrokerId, ...] = ()
        self.unclean_elections = 0

    def waits_for(self) -> tuple[int, tuple[BrokerId, ...]]:
        """How many leaders are asked to let another one follow, and which brokers do not answer."""
        return len(self._wanted), self._waits_for

    def wake(self) -> None:
        """Check for new probes."""
        self._wake.set()

    def allow_unclean(self, tp: TopicPartition, state: PartitionState) -> None:
        """Allow, for an operator, an unclean election of the partition until it has a leader."""
        self._allowed[tp] = self._context.image.topics[tp.topic].id, state.leader_epoch
        self._wake.set()

    def hear(self, tp: TopicPartition, state: PartitionState) -> None:
        """Note that the previous leader's coordinator is closed, from a request of that broker."""
        self._heard[tp] = self._context.image.topics[tp.topic].id, state.leader_epoch

    def must_wait(self, tp: TopicPartition, state: PartitionState) -> bool:
        """Whether an election has to wait for the confirmation of the previous leader."""
        if tp.topic not in INTERNAL_TOPICS:
            return False
        if must_be_heard(tp, state, self._context.live_brokers) is None:
            return False
        topic_id, epoch = self._heard.get(tp, (None, -1))
        return epoch < state.leader_epoch or topic_id != self._context.image.topics[tp.topic].id

    # ------------------------------------------------------------ planned moves

    def may_move(self, tp: TopicPartition, state: PartitionState) -> bool:
        """Whether the next version of the state may name another leader while the present one is alive.

        The leader must have waived its lease for this version. Coordinators move in two steps instead; brokers of the
        previous fleetlog version cannot waive.
        """
        leader = self._context.metadata.brokers.get(state.leader)
        if tp.topic in INTERNAL_TOPICS or leader is None or not leader.waives_leases:
            return True
        return self._waived.get(tp) == self._version(tp, state)

    def want_move(self, tp: TopicPartition) -> None:
        """Ask the partition's leader repeatedly to waive its lease; then the move continues."""
        self._wanted[tp] = None

    async def ask_to_waive(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Ask the leaders of these partitions once; returns the partitions that may move now. Call without the lock."""
        asked: dict[BrokerId, dict[TopicPartition, PartitionState]] = {}
        for tp, state in plans.partitions(self._context.image, partitions):
            if state.leader >= 0 and not self.may_move(tp, state):
                asked.setdefault(BrokerId(state.leader), {})[tp] = state
        replies = await asyncio.gather(*(self.ask_one(b, known, waive_lease=True) for b, known in asked.items()))
        live_brokers = self._context.live_brokers
        news: list[TopicPartition] = []
        for (broker_id, known), (incarnation, answers) in zip(asked.items(), replies, strict=True):
            if broker_id not in live_brokers or live_brokers[broker_id].incarnation != incarnation:
                continue
            for tp, state in known.items():
                answer = answers.get(tp)
                if answer is not None and _waives(answer, state.leader_epoch) and self.is_present(tp, answer):
                    self._waived[tp] = self._version(tp, state)
                    news.append(tp)
        return news

    def is_present(self, tp: TopicPartition, answer: ReplicaEnd) -> bool:
        """Whether the answer is of the topic that has this name now: another one may have had it when it was asked."""
        topic = self._context.image.topics.get(tp.topic)
        return topic is not None and topic.id == answer.topic_id

    def _version(self, tp: TopicPartition, state: PartitionState) -> Version:
        return self._context.image.topics[tp.topic].id, state.partition_epoch

    def _still_wanted(self) -> list[TopicPartition]:
        """The partitions whose moves still wait for their leader; the others are dropped."""
        live_brokers = self._context.live_brokers
        for tp in list(self._wanted):
            state = self._context.image.partition(tp)
            if state is None or not is_led(state, live_brokers) or state.leader in state.target:
                del self._wanted[tp]
        return sorted(self._wanted)

    def may_be_unclean(self, tp: TopicPartition, state: PartitionState) -> bool:
        """Whether the topic, or an operator, allows an unclean election."""
        if self._is_asked_for(tp, state):
            return True
        return self._context.metadata.topic_config(tp.topic).unclean_leader_election_enable

    def _is_asked_for(self, tp: TopicPartition, state: PartitionState) -> bool:
        """Whether an operator allows an unclean election."""
        topic_id, epoch = self._allowed.get(tp, (None, -1))
        return epoch >= state.leader_epoch and topic_id == self._context.image.topics[tp.topic].id

    async def run(self) -> None:
        """Send probes until cancelled; raises NotController.

        A new probe is sent at once; one that led to no decision is repeated with backoff.
        """
        loop = asyncio.get_running_loop()
        asked: tuple[Questions, list[TopicPartition]] | None = None
        pause, due = FIRST_PAUSE_SECONDS, 0.0
        while True:
            try:
                async with asyncio.timeout_at(due if asked is not None else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            questions, wanted = self._questions(), self._still_wanted()
            if not questions and not wanted:
                asked, self._waits_for = None, ()
                continue
            if (questions, wanted) == asked and loop.time() < due:
                continue
            answers, waived = await asyncio.gather(self._ask(questions), self.ask_to_waive(wanted))
            self._waits_for = self._without_answers(answers, set(wanted).difference(waived))
            async with self._context.lock:
                decided = await self._decide(answers)
                if waived:
                    for tp in waived:
                        self._wanted.pop(tp, None)
                    await self._settle(waived)
            again = (questions, wanted) == asked and not decided and not waived
            pause = min(2 * pause, LAST_PAUSE_SECONDS) if again else FIRST_PAUSE_SECONDS
            asked, due = (questions, wanted), loop.time() + pause

    def _without_answers(
        self, answers: Mapping[BrokerId, tuple[int, Ends]], unmoved: Collection[TopicPartition]
    ) -> tuple[BrokerId, ...]:
        """The brokers that gave none, and the leaders of partitions that may not move yet."""
        leaders = (state.leader for _, state in plans.partitions(self._context.image, unmoved))
        silent = (broker_id for broker_id, (incarnation, _) in answers.items() if incarnation < 0)
        return tuple(sorted({*silent, *(BrokerId(b) for b in leaders if b >= 0)}))

    # ------------------------------------------------------------ probing

    def _questions(self) -> Questions:
        live_brokers = self._context.live_brokers
        questions: Questions = {}
        for tp, state in plans.partitions(self._context.image):
            if state.leader >= 0 or state.partition_epoch == NO_STATE_EPOCH:
                continue
            asked = set(to_ask(state, live_brokers, unclean=self.may_be_unclean(tp, state)))
            if self.must_wait(tp, state) and state.last_known_leader in live_brokers:
                asked.add(BrokerId(state.last_known_leader))
            for broker_id in sorted(asked):
                questions.setdefault(broker_id, {})[tp] = state.leader_epoch
        return questions

    async def _ask(self, questions: Questions) -> dict[BrokerId, tuple[int, Ends]]:
        """The incarnation and the answers of each broker."""
        asked = list(questions)
        replies = await asyncio.gather(*(self.ask_one(broker_id, questions[broker_id]) for broker_id in asked))
        return dict(zip(asked, replies, strict=True))

    async def ask_one(
        self, broker_id: BrokerId, partitions: Collection[TopicPartition], *, waive_lease: bool = False
    ) -> tuple[int, Ends]:
        """A broker's present incarnation and its answers; -1 and none if it does not answer. Call without the lock."""
        metadata = self._context.metadata
        names: dict[uuid.UUID, str] = {}
        asked: dict[uuid.UUID, list[int]] = {}
        for tp in partitions:
            topic = self._context.image.topics.get(tp.topic)
            if topic is not None:
                names[topic.id] = tp.topic
                asked.setdefault(topic.id, []).append(tp.partition)
        if broker_id == self._broker_id and self._own is not None:
            live_broker = self._context.live_brokers.get(broker_id)
            incarnation = live_broker.incarnation if live_broker is not None else -1
            by_topic = (
                await ends.waive(asked, metadata, self._own)
                if waive_lease
                else ends.own_ends(asked, metadata, self._own)
            )
        else:
            try:
                incarnation, by_topic = await ends.ask(self._peers, broker_id, asked, waive_lease=waive_lease)
            except PeerUnavailable as problem:
                if broker_id not in self._silent:
                    logger.info(
                        "log end probe of %d replicas on broker %d: %s; retrying", len(partitions), broker_id, problem
                    )
                    self._silent.add(broker_id)
                return -1, {}
        self._silent.discard(broker_id)
        return incarnation, {
            TopicPartition(names[topic_id], index): end._replace(topic_id=topic_id)
            for topic_id, answers in by_topic.items()
            if topic_id in names
            for index, end in answers.items()
        }

    # ------------------------------------------------------------ deciding

    async def _decide(self, answers: Mapping[BrokerId, tuple[int, Ends]]) -> bool:
        """Elect by the answers; True if one of them led to a change. Raises NotController."""
        live_brokers = self._context.live_brokers
        present = {
            b: ends for b, (i, ends) in answers.items() if b in live_brokers and live_brokers[b].incarnation == i
        }
        heard = self._note_heard(present)
        writes, chosen = self._elections(present)
        try:
            await self._context.perform(writes)
        except StaleState as problem:
            logger.info("controller: electing by log ends: stale state: %s; reading again", problem)
            await self._context.look_again(whole=problem.whole)
        self._report(chosen)
        if heard:
            await self._settle(heard)
        return bool(heard or chosen)

    def _note_heard(self, answers: Mapping[BrokerId, Ends]) -> list[TopicPartition]:
        news = []
        for broker_id, reported in answers.items():
            for tp, answer in reported.items():
                state = self._context.image.partition(tp)
                if state is None or state.last_known_leader != broker_id or not self.is_present(tp, answer):
                    continue
                if not self.must_wait(tp, state):
                    continue
                if _has_ceased(answer, state):
                    self.hear(tp, state)
                    news.append(tp)
        return news

    def _elections(self, answers: Mapping[BrokerId, Ends]) -> tuple[list[MultiWrite], Chosen]:
        context, live_brokers = self._context, self._context.live_brokers
        known: dict[TopicPartition, dict[BrokerId, LogEnd | None]] = {}
        for broker_id, reported in answers.items():
            for tp, answer in reported.items():
                state = context.image.partition(tp)
                # a broker in an earlier leader epoch may still append what that epoch's leader sends
                if state is not None and self.is_present(tp, answer) and _has_ceased(answer, state):
                    gone = answer.error is ErrorCode.LOG_DIR_NOT_FOUND
                    known.setdefault(tp, {})[broker_id] = NO_LOG if gone else answer.end
        writes = StateWrites(context.image, live_brokers)
        chosen: Chosen = {}
        for tp in sorted(known):
            state = context.image.partition(tp)
            if state is None or self.must_wait(tp, state):
                continue
            unclean, anew = self.may_be_unclean(tp, state), self._is_asked_for(tp, state)
            new = elect_by_ends(state, known[tp], live_brokers, context.epoch, unclean=unclean, anew=anew)
            if new is not None:
                writes.add(tp, new)
                chosen[tp] = (state, new)
        return writes.done(), chosen

    def _report(self, chosen: Chosen) -> None:
        """Log the elections that the image shows as done."""
        for tp, (old, new) in chosen.items():
            now = self._context.image.partition(tp)
            if now is None or (now.leader, now.leader_epoch) != (new.leader, new.leader_epoch):
                continue
            self._allowed.pop(tp, None)
            if new.leader_recovery_state == RECOVERING:
                self.unclean_elections += 1
                logger.error(
                    "UNCLEAN ELECTION of %s: broker %d leads in epoch %d after broker %d; not all of the in-sync"
                    " replicas %s are alive and answer: acknowledged records may be lost",
                    tp, new.leader, new.leader_epoch, old.last_known_leader, list(old.isr),
                )  # fmt: skip
            else:
                logger.warning(
                    "%s: all in-sync replicas (%s) restarted uncleanly; broker %d, which has the longest log, leads in"
                    " epoch %d", tp, list(old.isr), new.leader, new.leader_epoch,
                )  # fmt: skip


def _has_ceased(answer: ReplicaEnd, state: PartitionState) -> bool:
    """Whether the broker has applied this state: it neither leads nor follows in an earlier epoch."""
    return answer.leader_epoch >= state.leader_epoch and not answer.is_leader


def _waives(answer: ReplicaEnd, leader_epoch: int) -> bool:
    """Whether the broker that leads in this epoch has waived its lease, or has none that it could use.

    One with a log that does not lead yet, because it does not know that it is registered, would lead without a waiver.
    """
    if answer.leader_epoch == leader_epoch:
        return answer.is_leader or answer.error is not ErrorCode.NONE
    return answer.leader_epoch > leader_epoch
