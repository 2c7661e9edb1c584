"""What the controller has to ask brokers before it can elect: how far logs reach, and whether a coordinator has ceased.

Runs beside a reign, one round at a time: who must be asked follows from the picture, so nothing is remembered that a
successor would need. Brokers are asked without holding anything up; the decision is made afterwards, under the lock,
on the picture as it is then, and only by answers of the very incarnations that live then.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from brokers.cluster import ends, plans
from brokers.cluster.elections import RECOVERING, LogEnd, elect_by_ends, must_be_heard, to_ask
from brokers.cluster.ends import ReplicaEnd
from brokers.cluster.peers import PeersPort, PeerUnavailable
from brokers.cluster.picture import NO_STATE_EPOCH
from brokers.cluster.term import StaleState, Term
from brokers.cluster.writes import StateWrites, Write
from brokers.model import INTERNAL_TOPICS, BrokerId, PartitionState, TopicPartition

if TYPE_CHECKING:
    from brokers.cluster.reign import Reign

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.02
LAST_PAUSE_SECONDS = 1.0

Questions = dict[BrokerId, dict[TopicPartition, int]]
"""Whom to ask about which partitions, in which epoch nobody leads them."""
Ends = Mapping[TopicPartition, ReplicaEnd]
Chosen = dict[TopicPartition, tuple[PartitionState, PartitionState]]
"""Partitions with their states before and after an election."""


class Inquiries:
    """See the module. ``own`` answers for this broker itself, without a connection."""

    def __init__(self, reign: Reign, peers: PeersPort, broker_id: int, own: ends.Replicas | None) -> None:
        self._reign = reign
        self._term: Term = reign.term
        self._peers = peers
        self._broker_id = broker_id
        self._own = own
        self._wake = asyncio.Event()
        self._heard: dict[TopicPartition, int] = {}
        self._allowed: dict[TopicPartition, int] = {}
        self._silent: set[BrokerId] = set()
        self.unclean_elections = 0

    def wake(self) -> None:
        """Look whether there is something to ask."""
        self._wake.set()

    def allow_unclean(self, tp: TopicPartition, state: PartitionState) -> None:
        """An operator allows an unclean election of the partition as it is now: until somebody leads it."""
        self._allowed[tp] = state.leader_epoch
        self._wake.set()

    def hear(self, tp: TopicPartition, state: PartitionState) -> None:
        """The former leader has said, by another way, that it coordinates no more."""
        self._heard[tp] = state.leader_epoch

    def must_wait(self, tp: TopicPartition, state: PartitionState) -> bool:
        """Whether the partition may not be led before its former leader was heard."""
        if tp.topic not in INTERNAL_TOPICS:
            return False
        broker_id = must_be_heard(tp, state, self._term.lives)
        return broker_id is not None and self._heard.get(tp, -1) < state.leader_epoch

    def may_be_unclean(self, tp: TopicPartition, state: PartitionState) -> bool:
        """Whether the topic, or an operator, allows an unclean election."""
        if self._allowed.get(tp, -1) >= state.leader_epoch:
            return True
        return self._term.view.topic_config(tp.topic).unclean_leader_election_enable

    async def run(self) -> None:
        """Ask whatever is to be asked, again and again, until cancelled; raises TermOver.

        A new question is asked at once; one that was not answered well enough waits a little longer each time.
        """
        loop = asyncio.get_running_loop()
        asked: Questions = {}
        pause, due = FIRST_PAUSE_SECONDS, 0.0
        while True:
            try:
                async with asyncio.timeout_at(due if asked else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            questions = self._questions()
            if not questions or (questions == asked and loop.time() < due):
                asked = questions
                continue
            answers = await self._ask(questions)
            async with self._term.lock:
                decided = await self._decide(answers)
            again = questions == asked and not decided
            pause = min(2 * pause, LAST_PAUSE_SECONDS) if again else FIRST_PAUSE_SECONDS
            asked, due = questions, loop.time() + pause

    # ------------------------------------------------------------ asking

    def _questions(self) -> Questions:
        lives = self._term.lives
        found: Questions = {}
        for tp, state in plans.partitions(self._term.picture):
            if state.leader >= 0 or state.partition_epoch == NO_STATE_EPOCH:
                continue
            asked = set(to_ask(state, lives, unclean=self.may_be_unclean(tp, state)))
            if self.must_wait(tp, state) and state.last_known_leader in lives:
                asked.add(BrokerId(state.last_known_leader))
            for broker_id in sorted(asked):
                found.setdefault(broker_id, {})[tp] = state.leader_epoch
        return found

    async def _ask(self, questions: Questions) -> dict[BrokerId, tuple[int, Ends]]:
        """The incarnation and the answers of each broker that was asked."""
        asked = list(questions)
        found = await asyncio.gather(*(self._ask_one(broker_id, questions[broker_id]) for broker_id in asked))
        return dict(zip(asked, found, strict=True))

    async def _ask_one(self, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> tuple[int, Ends]:
        view = self._term.view
        names: dict[uuid.UUID, str] = {}
        asked: dict[uuid.UUID, list[int]] = {}
        for tp in partitions:
            topic = self._term.picture.topics.get(tp.topic)
            if topic is not None:
                names[topic.id] = tp.topic
                asked.setdefault(topic.id, []).append(tp.partition)
        if broker_id == self._broker_id and self._own is not None:
            life = self._term.lives.get(broker_id)
            incarnation = life.incarnation if life is not None else -1
            found = ends.own_ends(asked, view, self._own)
        else:
            try:
                incarnation, found = await ends.ask(self._peers, broker_id, asked)
            except PeerUnavailable as problem:
                if broker_id not in self._silent:
                    log.info("asking for the ends of %d replicas: %s; trying again", len(partitions), problem)
                    self._silent.add(broker_id)
                return -1, {}
        self._silent.discard(broker_id)
        return incarnation, {
            TopicPartition(names[topic_id], index): end
            for topic_id, answers in found.items()
            if topic_id in names
            for index, end in answers.items()
        }

    # ------------------------------------------------------------ deciding

    async def _decide(self, answers: Mapping[BrokerId, tuple[int, Ends]]) -> bool:
        """Elect by the answers; True if any of them led to something. Raises TermOver."""
        lives = self._term.lives
        present = {b: found for b, (i, found) in answers.items() if b in lives and lives[b].incarnation == i}
        heard = self._note_heard(present)
        writes, chosen = self._elections(present)
        try:
            await self._term.perform(writes)
        except StaleState as problem:
            log.info("controller: electing by the logs' ends: %s; reading again", problem)
            await self._term.look_again(whole=problem.whole)
        self._report(chosen)
        if heard:
            await self._reign.settle(heard)
        return bool(heard or chosen)

    def _note_heard(self, answers: Mapping[BrokerId, Ends]) -> list[TopicPartition]:
        news = []
        for broker_id, found in answers.items():
            for tp, answer in found.items():
                state = self._term.picture.partition(tp)
                if state is None or state.last_known_leader != broker_id or not self.must_wait(tp, state):
                    continue
                if _has_ceased(answer, state):
                    self.hear(tp, state)
                    news.append(tp)
        return news

    def _elections(self, answers: Mapping[BrokerId, Ends]) -> tuple[list[Write], Chosen]:
        term, lives = self._term, self._term.lives
        known: dict[TopicPartition, dict[BrokerId, LogEnd]] = {}
        for broker_id, found in answers.items():
            for tp, answer in found.items():
                state = term.picture.partition(tp)
                # who hasn't heard of the last epoch may still append what an earlier leader sends
                if answer.end is not None and state is not None and _has_ceased(answer, state):
                    known.setdefault(tp, {})[broker_id] = answer.end
        writes = StateWrites(term.picture, lives)
        chosen: Chosen = {}
        for tp in sorted(known):
            state = term.picture.partition(tp)
            if state is None or self.must_wait(tp, state):
                continue
            new = elect_by_ends(state, known[tp], lives, term.epoch, unclean=self.may_be_unclean(tp, state))
            if new is not None:
                writes.add(tp, new)
                chosen[tp] = (state, new)
        return writes.done(), chosen

    def _report(self, chosen: Chosen) -> None:
        """Say what was done; the picture tells whether it was."""
        for tp, (old, new) in chosen.items():
            now = self._term.picture.partition(tp)
            if now is None or (now.leader, now.leader_epoch) != (new.leader, new.leader_epoch):
                continue
            self._allowed.pop(tp, None)
            if new.leader_recovery_state == RECOVERING:
                self.unclean_elections += 1
                log.error(
                    "UNCLEAN ELECTION of %s: broker %d leads in epoch %d after broker %d; in sync were %s, which do not"
                    " all live or answer: acknowledged records may be lost",
                    tp, new.leader, new.leader_epoch, old.last_known_leader, list(old.isr),
                )  # fmt: skip
            else:
                log.warning(
                    "%s: all that were in sync (%s) restarted uncleanly; broker %d, whose log reaches furthest, leads"
                    " in epoch %d", tp, list(old.isr), new.leader, new.leader_epoch,
                )  # fmt: skip


def _has_ceased(answer: ReplicaEnd, state: PartitionState) -> bool:
    """Whether the broker acts by this state: it neither leads nor follows in an earlier epoch."""
    return answer.leader_epoch >= state.leader_epoch and not answer.is_leader
