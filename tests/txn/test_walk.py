"""Random walks of several producers under one transactional id, some of them zombies, with restarts in between.

What must hold after every step:
- the state moved along the table only;
- only the producer initialised last can add partitions or end a transaction;
- a client that is told that its transaction was committed (aborted) finds exactly that decision, once;
- a producer of version 2 that nothing has fenced is never told that it is, nor that its id is another's; nor is one of
  any version that recovers, whichever of its answers are lost and however often the coordinator moves in between;
- a replayed log gives the same state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleetlog.txn.commands import CoordinatorRecord, WriteMarkers
from fleetlog.txn.coordinator import TransactionSettings
from fleetlog.txn.records import encode_transaction, encode_transaction_key
from fleetlog.txn.states import PREPARED, TransactionState, may_follow
from fleetlog.txn.transaction import LAST_CLIENT_EPOCH, Transaction
from fleetlog.wire.errors import ErrorCode as E
from tests.support.draw import examples
from tests.txn.machine import ID, A, B, C, Machine

OWNER = -1
ACTORS = st.sampled_from([OWNER, OWNER, OWNER, 0, 1])
FATAL = (E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING)
PARTITIONS = st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=2)


@dataclass
class Actor:
    """A client process that acts on its last answer."""

    version: int
    identity: tuple[int, int] | None = None
    transaction: int | None = None
    last_end: tuple[tuple[int, int], bool, int | None] | None = None
    healthy: bool = False
    """It had the present identity, and nothing else has touched the record since."""
    recovering: bool = False
    """Its InitProducerId has no answer."""
    unanswered_end: bool | None = None
    """The fate that it asked for in an EndTxn without an answer."""

    def heard(self, error: E, commit: bool | None = None) -> None:
        up_to_date = not self.recovering and self.unanswered_end in (None, commit)
        fatal = self.version == 2 and error in FATAL
        assert not (self.healthy and up_to_date and fatal), f"a healthy producer hears {error.name}"


class Walk(RuleBasedStateMachine):
    @initialize(near_the_end=st.booleans(), few=st.booleans(), versions=st.tuples(*[st.sampled_from([0, 2])] * 2))
    def begin(self, near_the_end: bool, few: bool, versions: tuple[int, int]) -> None:
        self.m = Machine(TransactionSettings(last_epoch=3) if few else None)
        self.actors = [Actor(version) for version in versions]
        self.owner: Actor | None = None
        self.number = 0
        self.decisions: dict[int, bool] = {}
        self.unwritten: WriteMarkers | None = None
        self.before: Transaction | None = None
        if near_the_end:
            self.m.init()
            record = CoordinatorRecord(
                encode_transaction_key(ID),
                encode_transaction(
                    Transaction(1000, LAST_CLIENT_EPOCH - 3, 60_000, TransactionState.EMPTY, last_update_ms=1)
                ),
            )
            self.m.log.append(record)
            self.m.shard.apply(record, None, self.m.now)
            self.before = self.m.t

    def actor(self, which: int) -> Actor:
        return self.owner if which == OWNER and self.owner is not None else self.actors[which]

    def look(self) -> None:
        """Compare the state with the one before the step."""
        now = self.m.shard.describe(ID)
        before, self.before = self.before, now
        if now is None or now == before:
            return
        assert may_follow(None if before is None else before.state, now.state)
        if now.state is TransactionState.ONGOING and (before is None or before.state is not TransactionState.ONGOING):
            self.number += 1
        if now.state in PREPARED:
            assert before is not None
            if before.state is not TransactionState.ONGOING:
                self.number += 1  # an empty one
            assert self.number not in self.decisions, "one fate"
            self.decisions[self.number] = now.commits
            (self.unwritten,) = [e for e in self.m.effects if isinstance(e, WriteMarkers)]
            assert set(self.unwritten.partitions) == set(before.partitions)
        if before is not None and now.producer_id == before.producer_id:
            assert now.producer_epoch >= before.producer_epoch
        if before is not None and now.producer_id != before.producer_id:
            assert now.producer_id > before.producer_id

    @rule(which=st.integers(0, 1), answer_lost=st.booleans())
    def init(self, which: int, answer_lost: bool) -> None:
        actor = self.actor(which)
        answer = self.m.init()
        if self.before != self.m.shard.describe(ID):
            self.disturbed()
        self.took(actor, answer, answer_lost)

    @rule(which=ACTORS, answer_lost=st.booleans(), coordinator_moves=st.booleans())
    def recover(self, which: int, answer_lost: bool, coordinator_moves: bool) -> None:
        actor = self.actor(which)
        if actor.identity is None:
            return
        answer = self.m.init(expected=actor.identity)
        assert not (actor.healthy and answer.error in FATAL), f"a recovering producer hears {answer.error.name}"
        if answer.error is E.NONE:
            assert self.owner is actor, "only the latest producer may recover"
        if self.before != self.m.shard.describe(ID):
            healthy = actor.healthy
            self.disturbed()
            actor.healthy = healthy
        actor.recovering = True
        self.took(actor, answer, answer_lost)
        if coordinator_moves:
            self.restart()

    def took(self, actor: Actor, answer: Any, lost: bool) -> None:
        if answer.error is E.NONE:
            self.owner = actor
            assert answer.producer_epoch <= LAST_CLIENT_EPOCH
            if not lost:
                actor.healthy = True
                actor.recovering, actor.unanswered_end = False, None
                actor.identity = (answer.producer_id, answer.producer_epoch)
                actor.transaction = actor.last_end = None
        self.look()

    def disturbed(self) -> None:
        for actor in self.actors:
            actor.healthy = False

    @rule(which=ACTORS, partitions=PARTITIONS)
    def add(self, which: int, partitions: list[Any]) -> None:
        actor = self.actor(which)
        if actor.identity is None:
            return
        error = self.m.add(*actor.identity, *partitions, version=actor.version)
        self.look()
        actor.heard(error)
        if error is E.NONE:
            assert self.owner is actor, "a zombie wrote"
            assert set(partitions) <= self.m.t.partitions
            actor.transaction = self.number

    @rule(which=ACTORS, commit=st.booleans(), answer_lost=st.booleans())
    def end(self, which: int, commit: bool, answer_lost: bool) -> None:
        actor = self.actor(which)
        if actor.identity is None:
            return
        self.ended(actor, actor.identity, commit, actor.transaction, answer_lost)

    @rule(which=ACTORS, other_fate=st.booleans())
    def end_again(self, which: int, other_fate: bool) -> None:
        """A retry, a request that was held up on its way, or a client that changed its mind."""
        actor = self.actor(which)
        if actor.last_end is None:
            return
        identity, commit, transaction = actor.last_end
        late = identity != actor.identity
        self.ended(actor, identity, commit is not other_fate, transaction, late)

    def ended(self, actor: Actor, identity: tuple[int, int], commit: bool, number: int | None, lost: bool) -> None:
        written = len(self.m.log)
        before = self.number
        answer = self.m.end(*identity, commit, actor.version)
        self.look()
        changed = len(self.m.log) > written
        if identity == actor.identity:
            actor.heard(answer.error, commit)
        if changed and lost:
            actor.unanswered_end = commit
        if changed:
            assert self.owner is actor, "a zombie ended a transaction"
            if actor.version == 2 and number is not None:
                assert number == before == self.number, "it ended another transaction than its own"
        # Protocol 0 cannot tell a late EndTxn from one of the next transaction: the epoch is the same (KIP-890).
        its_own = actor.version == 2 or number == before
        if answer.error is E.NONE and number is not None and its_own:
            assert self.decisions.get(number) is commit, "told the wrong fate"
        actor.last_end = (identity, commit, number)
        if answer.error is E.NONE and not lost:
            actor.transaction = None
            if actor.version == 2:
                actor.unanswered_end = None
                actor.identity = (answer.producer_id, answer.producer_epoch)

    @precondition(lambda self: self.unwritten is not None)
    @rule()
    def markers_are_written(self) -> None:
        marker = self.unwritten
        assert marker is not None
        self.unwritten = None
        self.m.perform(self.m.shard.on_markers_written(ID, marker.producer_id, marker.producer_epoch, self.m.now))
        assert self.m.t.state not in PREPARED
        self.look()

    @rule()
    def time_is_up(self) -> None:
        self.m.timer("timeout/app")
        if self.before != self.m.shard.describe(ID):
            self.disturbed()
        self.look()

    @rule()
    def restart(self) -> None:
        state = dict(self.m.shard.transactions)
        self.m.restart()
        assert self.m.shard.transactions == state
        again = [e for e in self.m.effects if isinstance(e, WriteMarkers)]
        assert again == ([self.unwritten] if self.unwritten is not None else [])

    @invariant()
    def an_open_transaction_can_always_be_fenced(self) -> None:
        if hasattr(self, "m") and ID in self.m.shard.transactions and self.m.t.state is TransactionState.ONGOING:
            assert self.m.t.producer_epoch <= LAST_CLIENT_EPOCH


Walk.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=50, deadline=None)
TestWalk = Walk.TestCase
