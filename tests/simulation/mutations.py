# ruff: noqa: E501
"""Deliberate bugs: each takes one safeguard out of the production code, and the simulation must notice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from fleetlog.brokers.acls.cache import AclCache
from fleetlog.brokers.acls.decisions import AclRules
from fleetlog.brokers.api import fetch, offsets, produce
from fleetlog.brokers.api.fetch_reads import READ_COMMITTED, PartitionReader
from fleetlog.brokers.api.fetch_sessions import FetchSession
from fleetlog.brokers.controller import elections, plans
from fleetlog.brokers.controller.move_commands import RemainingReplicas
from fleetlog.brokers.controller.writes import StateWrites
from fleetlog.brokers.coordinators.pending import LEADERSHIP_LOST
from fleetlog.brokers.coordinators.schema_letters import Said, SchemaLetters
from fleetlog.brokers.coordinators.shard_host import ShardHost
from fleetlog.brokers.coordinators.transactions.coordinator import TransactionCoordinator
from fleetlog.brokers.groups.consumer import group as consumer_group
from fleetlog.brokers.groups.consumer.group import ConsumerGroup
from fleetlog.brokers.groups.records import CommittedOffset
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.brokers.log import Origin, dedup
from fleetlog.brokers.log.compaction import passes
from fleetlog.brokers.log.directories.owner import DirectoryOwner
from fleetlog.brokers.log.door import Door, KnownSchemas
from fleetlog.brokers.log.log import Truncation
from fleetlog.brokers.log.positions import PAGE_POSITIONS, PositionPage, PositionSets, Sifted
from fleetlog.brokers.log.producers import state as producers
from fleetlog.brokers.log.producers.state import Duplicate, ProducerState, Refusal
from fleetlog.brokers.log.read import LogReader
from fleetlog.brokers.log.store import LogStore
from fleetlog.brokers.logins.sasl import LoginAdmission, SaslLogin
from fleetlog.brokers.logins.scram import ScramServer
from fleetlog.brokers.metadata import marks, repair, znodes
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.model import LiveBroker
from fleetlog.brokers.replication import inventory_keeper, isr
from fleetlog.brokers.replication.follower_progress import Follower
from fleetlog.brokers.replication.isr_writer import IsrWriter
from fleetlog.brokers.replication.partition import Confirmations, InSyncSet, Partition
from fleetlog.brokers.replication.replicas import ReplicaManager
from fleetlog.brokers.server import connection
from fleetlog.brokers.shares.keys import KeyOrder
from fleetlog.brokers.shares.state import RecordState, StateBatch
from fleetlog.brokers.shares.window import Noted, Window
from fleetlog.coordination.election import CONTROLLER_EPOCH, Leadership
from fleetlog.coordination.store import Check
from fleetlog.coordination.zookeeper import ZookeeperStore
from fleetlog.txn import sinks, transaction
from fleetlog.txn.coordinator import Producer, TransactionShard
from fleetlog.txn.markers import Senders
from fleetlog.txn.states import TransactionState
from fleetlog.wire.errors import ErrorCode
from tests.simulation.lone import LostMember
from tests.simulation.replacing import Mutation, instead, mutated
from tests.simulation.world import DIRECTORIES, HURRY, ROLLBACK, Report, World

__all__ = ["MUTATIONS", "Mutation", "caught", "mutated"]


# ---- the in-sync set and the high watermark


def _unheard_followers_do_not_count(original: Any, self: Any) -> None:
    heard = {b: f for b, f in self.followers.known.items() if f.end_offset >= 0}
    unheard = [b for b in self.in_sync.maximal_isr if b != self._broker_id and b not in heard]
    if not unheard:
        original(self)
        return
    followers, self.followers.known = self.followers.known, heard
    for broker_id in unheard:
        heard[broker_id] = Follower(broker_id, 0)
        heard[broker_id].end_offset = self.log.log_end_offset
    try:
        original(self)
    finally:
        if self.followers.known is heard:
            self.followers.known = followers


def _advances_below_the_minimum(original: Any, self: Any) -> None:
    if not self.is_leader or not (self.state.elr or self._below_minimum()):
        original(self)
        return
    state, self.state = self.state, replace(self.state, elr=(), elr_incarnations=(), replicas=self.state.isr)
    pretended = self.state
    try:
        original(self)
    finally:
        if self.state is pretended:
            self.state = state


def _takes_its_log_for_committed(original: Any, self: Any, state: Any) -> None:
    led = self.is_leader and self.leader_epoch == state.leader_epoch
    original(self, state)
    if not led:
        self.log.appender.set_high_watermark(self.log.log_end_offset)
        self._tell_changed()


def _joins_before_it_has_caught_up(original: Any, self: Any, follower: Any) -> None:
    if follower.end_offset >= 0:
        follower = copy.copy(follower)
        follower.end_offset = max(self._replica.log.high_watermark, self._replica.epoch_start_offset)
    original(self, follower)


def _counts_before_it_is_written(original: Any, self: Any, state: Any) -> None:
    original(self, state)
    self._replica.state, self.proposed = self.proposed, None
    self._replica.advance()


async def _takes_an_unknown_outcome_for_a_failure(self: Any, batch: Any) -> list[Any]:
    self._refused(batch)
    return []


# ---- ZooKeeper's older copies


def _keeps_leader_epochs(original: Any, plan: Any, replicas: Any, logs: Any, known_epoch: Any) -> Any:
    return replace(original(plan, replicas, logs, known_epoch), leader_epoch=max(known_epoch, 0))


# ---- epochs, incarnations, elections


def _counts_fetches_of_any_epoch(original: Any, self: Any, partition: Any, part: Any) -> Any:
    if part.current_leader_epoch >= 0:
        part = part._replace(current_leader_epoch=partition.leader_epoch)
    return original(self, partition, part)


def _finds_no_divergence(original: Any, partition: Any, part: Any) -> None:
    original(partition, part)


def _takes_any_broker_epoch(original: Any, request: Any, context: Any) -> Any:
    error = original(request, context)
    return ErrorCode.NONE if error is ErrorCode.STALE_BROKER_EPOCH else error


def _truncates_to_its_high_watermark(original: Any, self: Any, state: Any) -> None:
    self.log.truncation.truncate_to(self.log.high_watermark)
    original(self, state)


def _joins_with_any_broker_epoch(original: Any, self: Any, follower: Any) -> None:
    broker = self._broker(follower.broker_id)
    if broker is not None and follower.session is not None:
        follower = copy.copy(follower)
        follower.session = copy.copy(follower.session)
        follower.session.broker_epoch = broker.epoch
    original(self, follower)


def _leaves_the_mark_of_a_clean_stop(self: Any, directory: Any) -> None:
    self._disk.sync_directory(directory.path)


def _elects_any_live_replica(original: Any, state: Any, live_brokers: Any, leaving: Any = ()) -> Any:
    found = original(state, live_brokers, leaving)
    return next((b for b in state.replicas if b in live_brokers), None) if found is None else found


def _writes_any_version_of_states(
    original: Any, self: Any, tp: Any, new: Any, *, assigned: Any = None, relies_on: Any = ()
) -> None:
    original(self, tp, new, assigned=assigned, relies_on=relies_on)
    path = znodes.state_path(tp)
    written = [op._replace(version=-1) if getattr(op, "path", None) == path else op for op in self._operations]
    self._operations[:] = written


# ---- answers


def _takes_all_for_committed(self: Any, offset: int, on_committed: Any, *, gives_up: bool = False) -> None:
    on_committed(ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _confirms_without_lease(self: Any, callback: Any) -> None:
    callback(ErrorCode.NONE if self._replica.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _accepts_duplicates(original: Any, self: Any, entry: Any, header: Any, origin: Any, guard: Any) -> Any:
    found = original(self, entry, header, origin, guard)
    return None if isinstance(found, Duplicate) else found


# ---- topics that drop duplicates

REPEATS = ("repeats", "kill", "cut", "power")
CHECKS = ("checks", "kill", "cut", "power")


def _forgets_all_but_the_newest_page(self: Any, source: Any) -> None:
    while len(source.numbers) > 1:
        self.cost -= source.drop_lowest()


def _keeps_the_highest_position(self: Any, positions: Any, now_ms: Any) -> Any:
    highest = {
        name: max(
            ((number, place) for number, page in source.pages.items() for place in _places(page)), default=(-1, 0)
        )
        for name, source in self.sources.items()
    }
    gone = [
        index
        for index, (source, position, _) in enumerate(positions)
        if divmod(position, PAGE_POSITIONS) <= highest.get(source, (-1, 0))
    ]
    return Sifted(gone, [one for index, one in enumerate(positions) if index not in gone])


def _ignores_ordinals(self: Any, positions: Any) -> bool:
    return any(self.bits >> place & 1 for place in (*_places(positions), *(place for place, _ in positions.more)))


def _places(page: Any) -> list[int]:
    return [place for place in range(PAGE_POSITIONS) if page.bits >> place & 1]


# ---- what consumers are served


class _Shown:
    """An object with some attributes shown as others."""

    def __init__(self, real: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _read_below(original: Any, reader: Any, partition: Any, part: Any, left: int, first: bool, limit: int) -> Any:
    """What a consumer reads below that offset; the answer names the true high watermark and last stable offset."""
    log = partition.log
    shown = _Shown(partition, log=_Shown(log, high_watermark=limit, last_stable_offset=limit))
    found = original(reader, shown, part, left, first)
    return found._replace(high_watermark=log.high_watermark, last_stable_offset=log.last_stable_offset)


def _reads_up_to_the_end(original: Any, self: Any, partition: Any, part: Any, left: int, first: bool) -> Any:
    if self.replica is not None or self.request.isolation_level == READ_COMMITTED:
        return original(self, partition, part, left, first)
    return _read_below(original, self, partition, part, left, first, partition.log.log_end_offset)


def _reads_open_transactions(original: Any, self: Any, partition: Any, part: Any, left: int, first: bool) -> Any:
    if self.replica is not None:
        return original(self, partition, part, left, first)
    return _read_below(original, self, partition, part, left, first, partition.log.high_watermark)


def _follower_reads_up_to_the_end(original: Any, self: Any, partition: Any, part: Any, left: int, first: bool) -> Any:
    if self.replica is not None or partition.is_leader:
        return original(self, partition, part, left, first)
    return _read_below(original, self, partition, part, left, first, partition.log.log_end_offset)


def _looks_behind_what_was_asked(original: Any, self: Any) -> None:
    if self.delayed is not None and not self.delayed.done and not self.long:
        for part in self.session.dirty:
            part.asked = part.asked._replace(fetch_offset=part.asked.fetch_offset + 1)
    original(self)


def _watches_for_replicas_only(original: Any, self: Any, part: Any) -> None:
    if self.replica is None:
        self.dirty.pop(part, None)
    else:
        original(self, part)


def _finds_what_is_not_committed(original: Any, view: Any, timestamp: int, unpacking: Any) -> Any:
    found = yield from original(view, timestamp, unpacking)
    if timestamp < 0 or found.offset >= 0:
        return found
    behind = yield from offsets._search(view.partition.log.reader, timestamp, unpacking)
    return found if behind is None else offsets.Found(ErrorCode.NONE, behind[1], behind[0], behind[2])


def _trusts_the_time_index(segment: Any, timestamp: int) -> Any:
    return segment.time_index.last()[0] >= timestamp


# ---- requests that come together


def _each_gets_the_offsets_of_the_first(original: Any, works: Any) -> None:
    append, appended, noted = Partition.append_batches, produce.ProduceExecution.appended, {}

    def noting(partition: Any, batches: Any, acks: int, terms: Any) -> Any:
        found = append(partition, batches, acks, terms)
        noted[partition] = found[0]
        return found

    def swapping(work: Any, group: int, outcomes: Any, plain: bool) -> None:
        appended(work, group, noted[work.partitions[group]][: len(outcomes)], plain)

    with (
        patch.object(Partition, "append_batches", noting),
        patch.object(produce.ProduceExecution, "appended", swapping),
    ):
        original(works)


SPREADS = ("spreads", "clock")


def _decides_when_the_last_is_known(original: Any, self: Any, missing: Any) -> Any:
    delayed, committed = original(self, missing)

    def decided_later(group: int, error: Any) -> None:
        outcomes = self.outcomes[group]
        committed(group, error)
        self.outcomes[group] = outcomes

    return delayed, decided_later


def _remembers_one_batch(original: Any, known: Any, batches: Any, now_ms: int) -> Any:
    entry = original(known, batches, now_ms)
    return entry._replace(batches=entry.batches[-1:])


# ---- deletions, moves, ZooKeeper


def _keeps_the_start_in_memory(original: Any, self: Any) -> None:
    calls = self._log.calls
    save_starts, calls.save_starts = calls.save_starts, None
    try:
        original(self)
    finally:
        calls.save_starts = save_starts


def _applies_any_change(self: Any, sequence: int, entry: Any, delta: Any) -> None:
    self.image.apply(entry, delta)
    self._sequence = sequence


# ---- coordinators and transactions


def _acknowledges_as_it_resigns(original: Any, self: Any, flight: Any, error: Any) -> None:
    original(self, flight, ErrorCode.NONE if error in LEADERSHIP_LOST else error)


def _forgets_who_has_what(original: Any, self: Any, turn: Any, settings: Any) -> None:
    original(self, turn, settings)
    self.owners.clear()


def _takes_commits_of(*errors: ErrorCode) -> Any:
    """As if a commit with one of these errors had none."""

    def takes(original: Any, self: Any, request: Any, transactional: Any) -> Any:
        answer = original(self, request, transactional)
        return ErrorCode.NONE if answer in errors else answer

    return takes


def _takes_commits_for_what_was_given_up(original: Any, self: Any, request: Any, transactional: Any) -> Any:
    answer = original(self, request, transactional)
    return ErrorCode.NONE if isinstance(answer, dict) else answer


def _answers_at_once(self: Any, flight: Any) -> None:
    self._committed(flight, ErrorCode.NONE)


def _answers_for_ended_transactions(original: Any, self: Any, entry: Any, header: Any, origin: Any, guard: Any) -> Any:
    if origin is Origin.CLIENT and header.producer_epoch == entry.epoch:
        for batch in entry.batches:
            if (batch.first_sequence, batch.last_sequence) == (header.base_sequence, header.last_sequence):
                return Duplicate(batch)
    return original(self, entry, header, origin, guard)


def _fences_while_an_end_is_written(original: Any, self: Any, t: Any, producer: Any, commit: bool) -> Any:
    error = original(self, t, producer, commit)
    early = error is ErrorCode.CONCURRENT_TRANSACTIONS and not self._is_retried_end(t, producer)
    return ErrorCode.PRODUCER_FENCED if early else error


def _does_not_know_the_next_id(original: Any, self: Any, transactional_id: str, producer: Any) -> Any:
    error = original(self, transactional_id, producer)
    t = self.transactions.get(transactional_id)
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and t.batch is None and t.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return error


def _forgets_epochs_before(original: Any, self: Any, now: Any) -> Any:
    self.transactions = {name: replace(t, epoch_before=-1) for name, t in self.transactions.items()}
    return original(self, now)


# ---- sinks


_judged = Door._judged


def _takes_what_nobody_judged(self, question, payload, judging):
    judged = _judged(self, question, payload, judging)
    return {} if judging is not None and judging.verdict is not None and judging.verdict.why else judged


async def _buries_without_letters(original: Any, self: Any, partition: Any, bad: Any, asked: Any, guard: Any) -> Said:
    said = await original(self, partition, bad, asked, guard)
    return Said() if said.error is ErrorCode.NOT_ENOUGH_REPLICAS else said


async def _answers_before_it_is_there(self: Any, tp: Any, within: Any, batch: bytes) -> Said:
    partition, error = self._replicas.leader(tp)
    if partition is None:
        return Said(error)
    return Said(partition.append(bytearray(batch), acks=1, origin=Origin.COORDINATOR).error)


def _takes_any_driver(original: Any, shard: Any, sink_id: str, producer: Any) -> Any:
    t = shard.transactions.get(sink_id)
    present = producer if t is None else Producer(t.producer_id, t.producer_epoch)
    return original(shard, sink_id, present)


@contextmanager
def without_fence(shard: Any, sink_id: str) -> Iterator[None]:
    """While the block runs, the sink has none."""
    t = shard.transactions.get(sink_id)
    if t is None or t.batch is None:
        yield
        return
    shard.transactions[sink_id] = replace(t, batch=replace(t.batch, fence=None))
    try:
        yield
    finally:
        shard.transactions[sink_id] = t


def _commits_without_fence(original: Any, shard: Any, sink_id: str, producer: Any, request: Any, now: Any) -> Any:
    with without_fence(shard, sink_id):
        return original(shard, sink_id, producer, request, now)


def _any_member_may_write(original: Any, t: Any, producer: Any) -> Any:
    return ErrorCode.NONE if t.state is TransactionState.ONGOING else original(t, producer)


def _takes_older_epochs(original: Any, self: Any, entry: Any, header: Any, origin: Any, guard: Any) -> Any:
    found = original(self, entry, header, origin, guard)
    old = isinstance(found, Refusal) and found.error is ErrorCode.INVALID_PRODUCER_EPOCH
    return None if old and header.producer_epoch < entry.epoch else found


async def _decides_later(self: Any) -> None:
    """What was written reaches this broker like any other."""


LOGINS = ("logins", "slow")


def _keeps_its_verdicts(original: Any, self: Any, image: Any) -> None:
    kept = dict(self.verdicts)
    original(self, image)
    self.verdicts.update(kept)


def _takes_the_credential_of_the_first_message(original: Any, self: Any, final: Any) -> Any:
    present, self._credentials = self._credentials, lambda user: self._credential
    try:
        return original(self, final)
    finally:
        self._credentials = present


def _closes_none(original: Any, connections: Any, withdrawn: Any) -> None:
    original((), withdrawn)


def _sessions_have_no_end(original: Any, self: Any, api_key: int, mono_ms: int) -> Any:
    found = original(self, api_key, mono_ms)
    return LoginAdmission.SERVE if found is LoginAdmission.EXPIRED else found


# Safeguards that no history among hundreds of seeds needs any more, and the unit tests that fail without them:
# a follower joins only from the leader's log start on (test_in_sync_set: test_no_follower_joins_that_starts_below_the_leaders_log);
# a planned move waits for the leader's waiver (test_moves: test_another_leads_only_when_a_live_leader_has_waived_its_lease);
# after the whole in-sync set has ended, all of it is heard (test_elections: test_replicas_that_all_lost_their_tails_are_compared);
# a leader without its lease calls no batch of a transaction a duplicate (test_produce: test_no_leader_without_its_lease_calls_a_batch_of_a_transaction_a_duplicate;
# seed 9308314 needs it, one of some ten thousand).
# ---- topics that are created again


REBALANCES = ("rebalances", "kill", "pause", "slow", "client cut", "lose an answer")
SHARES = ("shares", "kill", "pause", "stop", "isolate", "cut from zookeeper", "lose an answer")
RENEWS = ("renews", "kill", "pause", "slow", "zookeeper lag", "depose the controller")


def _answers_before_it_is_persisted(original: Any, self: Any, member: Any, pieces: Any, now_ms: int) -> Noted:
    original(self, member, pieces, now_ms)
    return Noted.NOTHING


def _finishes_gaps(
    original: Any, self: Any, state: Any, limits: Any, *, fresh: bool, predecessors_until_ms: int
) -> None:
    end, batches = state.start, []
    for batch in state.batches:
        batches += [StateBatch(end, batch.first - 1, RecordState.ARCHIVED, 0)] if batch.first > end else []
        batches.append(batch)
        end = batch.last + 1
    original(
        self, state._replace(batches=tuple(batches)), limits, fresh=fresh, predecessors_until_ms=predecessors_until_ms
    )


def _takes_any_log_of_the_name(original: Any, self: Any, tp: Any, topic_id: Any, state: Any) -> Any:
    log = self._logs.get(tp)
    if log is not None:
        log.topic_id = topic_id
    return original(self, tp, topic_id, state)


MUTATIONS = (
    # ---- the in-sync set and the high watermark
    Mutation("the high watermark ignores the pending in-sync set", (instead(InSyncSet.maximal_isr, lambda self: self.state.isr),), 43, ("lose an answer", "cut from zookeeper", "isolate")),
    Mutation("the high watermark ignores followers that have not fetched in this epoch", (instead(Partition.advance, _unheard_followers_do_not_count),), 0),
    Mutation("the high watermark moves below min.insync.replicas", (instead(Partition.advance, _advances_below_the_minimum),), 17, ("cut", "isolate", "kill")),
    Mutation("a new leader takes its whole log for committed", (instead(Partition.become_leader, _takes_its_log_for_committed),), 3, ("kill", "isolate", "cut", "slow")),
    Mutation("a follower joins before it has caught up", (instead(InSyncSet.expand, _joins_before_it_has_caught_up),), 1, ("cut", "slow", "kill", "isolate")),
    Mutation("a shrunk in-sync set counts before it is written", (instead(InSyncSet._propose, _counts_before_it_is_written),), 3, ("cut", "isolate", "lose an answer")),
    Mutation("a member that leaves a small in-sync set is not eligible", (instead(isr._with, lambda original, state, isr, elr, min_isr: original(state, isr, [], min_isr)),), 0, course=LostMember),
    # ---- epochs, incarnations, elections
    Mutation("a leader counts fetches of other epochs", (
        instead(PartitionReader.refusal, _counts_fetches_of_any_epoch),
        instead(PartitionReader.diverging, _finds_no_divergence),
    ), 18, ("slow", "pause", "kill", "cut")),
    Mutation("logs are not compared by epoch", (instead(PartitionReader.diverging, _finds_no_divergence),), 21, ("kill", "cut", "isolate")),
    Mutation("a new follower truncates to its high watermark", (instead(Partition.become_follower, _truncates_to_its_high_watermark),), 5, ("kill", "stop", "slow")),
    Mutation("a broker counts as intact after an unclean restart", (instead(LiveBroker.continues, lambda self, incarnation: incarnation <= self.incarnation),), 1, ("power", "isolate")),
    # One of the two is enough: a mark that stays names an incarnation that is over.
    Mutation("the mark of a clean stop stays, and its incarnation is not compared", (
        instead(LogStore._remove_clean_stop, _leaves_the_mark_of_a_clean_stop),
        instead(inventory_keeper._is_stale, lambda stop, last: False),
    ), 8, ("stop", "power")),
    Mutation("the clean stop of a previous incarnation counts", (instead(inventory_keeper._is_stale, lambda stop, last: False),), 35,
        ("disk put back", "isolate", "cut")),
    Mutation("a clean stop counts without the log directories that are gone", (instead(DirectoryOwner.look_for_missing, lambda self, directories, registered: None),), 16, (DIRECTORIES, "stop")),
    Mutation("a broker leads in any incarnation", (instead(ReplicaManager._leads, lambda self, state: state.leader == self._broker_id),), 1, ("power", "kill", "zookeeper lag")),
    Mutation("any live replica may be elected", (instead(elections.successor, _elects_any_live_replica),), 18, ("kill", "isolate")),
    Mutation("a move is done before the new replicas are in sync", (instead(plans._caught_up, lambda target, in_sync: bool(in_sync.intersection(target))),), 2, ("operator", "slow", "cut", "kill")),
    Mutation("leaders write their state without comparing its version", (
        instead(IsrWriter._operations, lambda original, self, batch: original(self, [p._replace(base_epoch=-1) for p in batch])),
    ), 14, ("cut from zookeeper", "kill", "lose an answer", "zookeeper lag")),
    # One of the two is enough in all histories so far: a state's version also tells that another controller has written.
    Mutation("a controller writes without its epoch and without comparing versions", (
        instead(Leadership.fence, lambda self: Check(CONTROLLER_EPOCH, -1)),
        instead(StateWrites.add, _writes_any_version_of_states),
    ), 17, ("zookeeper lag", "depose the controller", "cut from zookeeper", "kill")),
    Mutation("a session does not expire while the loop stands still", (instead(ZookeeperStore.stands_still, lambda self: False),), 0, ("hold the loop", "slow")),
    # ---- answers
    Mutation("acks=all is answered before the record is committed", (instead(Partition.wait_for, _takes_all_for_committed),), 0),
    Mutation("consumers read up to the log's end", (instead(PartitionReader.read, _reads_up_to_the_end),), 2),
    Mutation("read_committed reads up to the high watermark", (instead(PartitionReader.read, _reads_open_transactions),), 0),
    Mutation("the lease is not checked", (instead(Confirmations.when_confirmed, _confirms_without_lease),), 277, ("pause", "cut from zookeeper"), 500),
    Mutation("duplicates are appended", (instead(ProducerState._check_data, _accepts_duplicates),), 0, ("reset", "client cut", "slow")),
    # ---- what consumers are served
    Mutation("a fetch that waited is answered from behind the record it asked for", (instead(fetch.Fetch._look, _looks_behind_what_was_asked),), 1),
    Mutation("a consumer's session is not marked after it was served", (instead(FetchSession.settled, _watches_for_replicas_only),), 0),
    Mutation("a follower serves beyond its high watermark", (instead(PartitionReader.read, _follower_reads_up_to_the_end),), 2),
    Mutation("a lookup by time returns what is not committed", (instead(offsets._lookup, _finds_what_is_not_committed),), 142, ("slow", "cut", "isolate", "pause")),
    Mutation("a lookup by time takes the first segment's time index for exact", (instead(LogReader._may_hold, _trusts_the_time_index),), 11),
    # ---- requests that come together
    Mutation("what of a request is committed is looked at when its last partition is", (instead(produce.ProduceExecution.waiting, _decides_when_the_last_is_known),), 26, SPREADS),
    Mutation("a run over two partitions is acknowledged when the first has committed it", (
        instead(produce.ProduceExecution._wait, lambda original, self, waits: original(self, waits[:1])),
    ), 2),
    Mutation("connections that are batched get each other's offsets", (instead(produce._append_together, _each_gets_the_offsets_of_the_first),), 19),
    Mutation("a producer's last batch alone is remembered", (instead(producers._continued, _remembers_one_batch),), 28, ("reset", "client cut", "slow", "kill")),
    # ---- deletions, moves, ZooKeeper
    Mutation("DeleteRecords is answered before the followers know", (instead(offsets._behind, lambda moved, tiers: []),), 2, ("slow", "cut", "operator")),
    Mutation("a gap in the change log is not noticed", (
        instead(MetadataCache._has_gap, lambda self, sequences, news: False),
        instead(MetadataCache._apply, _applies_any_change),
    ), 3, ("cut from zookeeper", "pause", "operator")),
    Mutation("a marker is written whenever it comes", (instead(Senders.admits, lambda self, sender: True),), 242, ("overtake", HURRY), 500),
    # ---- topics that are created again
    Mutation("an offset counts for whatever topic has the name", (instead(CommittedOffset.outlives, lambda self, topic: False),), 10, RENEWS),
    Mutation("logs go by their names", (instead(ReplicaManager._open, _takes_any_log_of_the_name),), 13, RENEWS),
    # ---- coordinators and transactions
    # Kafka's own (KAFKA-20634): test_resigning has the same oracle.
    Mutation("a coordinator that has resigned acknowledges what was on its way", (instead(ShardHost._committed, _acknowledges_as_it_resigns),), 13,
        ("isolate", "cut from zookeeper", "hold the loop")),
    Mutation("a coordinator answers before its record is committed", (instead(ShardHost._await_commit, _answers_at_once),), 35, ("kill", "die in a write", "slow")),
    Mutation("a transaction completes before its markers are committed", (
        instead(TransactionCoordinator._await_commit, lambda partition, offset, done: done(ErrorCode.NONE)),
    ), 6, ("kill", "isolate", "cut")),
    Mutation("transactional batches are not verified", (
        instead(ProducerState.needs_verification, lambda self, producer_id, producer_epoch: False),
        instead(producers._is_verified, lambda verification, guard: True),
    ), 1),
    Mutation("a batch of an ended transaction answers for one of the next", (instead(ProducerState._check_data, _answers_for_ended_transactions),),
        0, ("hurry", "slow")),
    Mutation("an end that comes while the one before is written is fenced", (instead(TransactionShard._end_with_bump, _fences_while_an_end_is_written),),
        0, ("hurry", "slow")),
    Mutation("a new producer id is unknown while the end that gave it is written", (instead(TransactionShard._refuse_producer, _does_not_know_the_next_id),), 10, ("hurry", "slow")),
    Mutation("a new coordinator does not know which answers may be lost", (instead(TransactionShard.loaded, _forgets_epochs_before),), 2, ("kill", "die in a write", "client cut")),
    Mutation("offsets of open transactions count", (
        instead(GroupShard._apply_offset, lambda original, self, key, value, producer: original(self, key, value, None)),
    ), 8),
    # ---- groups of the consumer protocol
    Mutation("what a member was told to give up is free before it says so", (instead(consumer_group._gave_up, lambda member, beat: True),), 6, REBALANCES),
    Mutation("what a member loses is free before it hears of it", (instead(consumer_group._keeps, lambda beat, partitions: False),), 0, REBALANCES),
    Mutation("a new coordinator does not know who has a partition", (instead(ConsumerGroup.loaded, _forgets_who_has_what),), 8, REBALANCES),
    Mutation("an epoch is told before its record is committed", (instead(ShardHost._await_commit, _answers_at_once),), 21, ("rebalances", "kill", "die in a write", "slow")),
    Mutation("one that is no member any more commits", (instead(ConsumerGroup.commit_errors, _takes_commits_of(ErrorCode.UNKNOWN_MEMBER_ID)),), 0, REBALANCES),
    Mutation("a member commits by an epoch that it does not have", (instead(ConsumerGroup.commit_errors, _takes_commits_of(ErrorCode.STALE_MEMBER_EPOCH)),), 0, REBALANCES),
    Mutation("a member commits for what it has given up", (instead(ConsumerGroup.commit_errors, _takes_commits_for_what_was_given_up),), 3, REBALANCES),
    # Kafka's own (KAFKA-20634): an epoch, or an offset, that the next coordinator does not know.
    Mutation("a member is told what was on its coordinator's way when it resigned", (instead(ShardHost._committed, _acknowledges_as_it_resigns),), 56,
        ("rebalances", "isolate", "cut from zookeeper", "hold the loop")),
    Mutation("the session of a member that vanished has no end", (instead(consumer_group.session_ms, lambda value, settings: 1 << 30),), 0, REBALANCES),
    # ---- share groups
    Mutation("what a worker says of a record is answered before it is persisted", (instead(Window.acknowledge, _answers_before_it_is_persisted),), 2, SHARES),
    Mutation("a new leader takes what no write names for finished", (instead(Window.__init__, _finishes_gaps),), 2, SHARES),
    Mutation("a lock has no end", (instead(Window.expire, lambda self, now_ms: False),), 0, SHARES),
    Mutation("a record overtakes another of its key", (instead(KeyOrder.learn, lambda original, self, offset, key: original(self, offset, None)),), 2, SHARES),
    Mutation("a record is given out before its time", (instead(Window._delay, lambda self, giving, read, times: None),), 2, SHARES),
    # ---- compaction
    Mutation("a deletion goes with the first pass", (instead(passes.delete_horizon, lambda header: 0),), 21),
    # ---- rights
    Mutation("a change of ACLs is acknowledged before its broker decides by it", (instead(AclCache.refresh, _decides_later),), 0, ("rights", "slow")),
    Mutation("what was decided counts after a change of ACLs", (instead(AclRules.replace, _keeps_its_verdicts),), 0, ("rights", "slow")),
    # ---- logins
    Mutation("a login counts though its password has gone since its first message", (instead(ScramServer._verdict, _takes_the_credential_of_the_first_message),), 0, LOGINS),
    Mutation("connections stay when their password goes", (instead(connection.close_logins, _closes_none),), 0, LOGINS),
    Mutation("sessions do not end", (instead(SaslLogin._admit_after_login, _sessions_have_no_end),), 7, LOGINS),
    # ---- topics that drop duplicates
    Mutation("the floor moves too far", (instead(PositionSets._expire, _forgets_all_but_the_newest_page),), 0, REPEATS),
    Mutation("a new leader knows no positions", (instead(dedup.positions_of, lambda records, at, header: []),), 0, REPEATS),
    Mutation("a log that starts over takes its empty set for whole", (
        instead(ProducerState.clear, lambda original, self, start=0: original(self, 0)),
    ), 1, (*REPEATS, "trims", "isolate")),
    Mutation("ordinals are ignored", (
        instead(PositionPage.has, lambda self, place, ordinal: bool(self.bits >> place & 1)),
        instead(PositionPage.has_any, _ignores_ordinals),
    ), 0, REPEATS),
    Mutation("what was accepted is not looked at in a batch that is all new by itself", (instead(PositionPage.has_any, lambda self, positions: False),), 0, REPEATS),
    Mutation("the highest position counts, not the set", (
        instead(PositionSets.takes, lambda self, batches, now_ms: 0),
        instead(PositionSets.sift, _keeps_the_highest_position),
    ), 0, REPEATS),
    # ---- topics that check schemas
    Mutation("what has no schema is taken", (
        instead(Door.passing, lambda self, batches: len(batches)), instead(Door.check, lambda self, payloads, headers, explain, judging=None: None),
    ), 0, CHECKS),
    Mutation("a process that ended has no objection", (instead(Door._judged, _takes_what_nobody_judged),), 0, CHECKS),
    Mutation("a batch does not wait for its verdict", (instead(Door._judged, lambda self, question, payload, judging: {}),), 0, CHECKS),
    Mutation("what is not known yet is refused for good", (instead(KnownSchemas.lacks, lambda self, want, number: True),), 0, CHECKS),
    Mutation("what gets no dead letter is left out all the same", (instead(SchemaLetters.bury, _buries_without_letters),), 0, CHECKS),
    Mutation("a batch is appended while its dead letters are written", (instead(SchemaLetters.take, _answers_before_it_is_there),), 150, CHECKS),
    # ---- ZooKeeper's older copies
    Mutation("brokers follow a ZooKeeper that is older than what they have seen", (
        instead(marks.lower, lambda seen, found: None),
        instead(inventory_keeper.later_epochs, lambda topics, logs: None),
    ), 0, (ROLLBACK,), 8),
    Mutation("a repair keeps the leader epochs of the older copy", (instead(repair._state, _keeps_leader_epochs),), 0, (ROLLBACK,), 8),
    Mutation("a repair does not look for producer ids that the older copy does not know", (
        instead(repair._producer_id, lambda plan, inventories, allocated_id: allocated_id),
    ), 0, (ROLLBACK,), 8),
    # ---- sinks
    Mutation("a fenced driver commits", (instead(sinks._refusal, _takes_any_driver),), 2, ("drivers", "client cut")),
    Mutation("the fence is not compared", (instead(sinks.commit_batch, _commits_without_fence),), 0, ("drivers", "client cut")),
    Mutation("members of earlier batches may write", (
        instead(transaction.member_refusal, _any_member_may_write),
        instead(ProducerState._check_data, _takes_older_epochs),
    ), 2, ("drivers", "client cut")),
)  # fmt: skip


RARE: tuple[Mutation, ...] = (
    Mutation("a fetch of a broker's previous incarnation counts", (
        instead(fetch._replica_error, _takes_any_broker_epoch),
        instead(InSyncSet.expand, _joins_with_any_broker_epoch),
    ), 289, ("power", "cut")),
    Mutation("a clean stop counts for a directory that has lost a partition since", (instead(LogStore._compare_with_the_stop, lambda self, directory, ends, report: None),), 217,
        ("disk put back", "isolate", "cut", "stop")),
    Mutation("an unknown outcome of an in-sync change is taken for a failure", (instead(IsrWriter._decide, _takes_an_unknown_outcome_for_a_failure),), 35, ("lose an answer", "zookeeper lag", "isolate")),
    Mutation("replicas are removed though those that stay do not answer", (instead(RemainingReplicas.unconfirmed, lambda self, tp, staying: []),), 52,
        ("spreads", "power", "die in a write", "cut from zookeeper"), 600),
    Mutation("a log's start waits for the next checkpoint", (instead(Truncation.save_start, _keeps_the_start_in_memory),), 84,
        ("zookeeper lag", "cut from zookeeper", "depose the controller", "stop")),
)  # fmt: skip
"""Those that no seed is known for since histories have changed: to be looked for with ``--mutation``."""


def world_of(mutation: Mutation, seed: int) -> World:
    """A seed's world under the faults, or the course of events, that bring the bug to light."""
    world = World(seed, kinds=mutation.kinds)
    if mutation.course is not None:
        mutation.course(world)
    return world


def caught(mutation: Mutation, seed: int) -> Report | None:
    """Run a seed with the bug; the report if an invariant was violated (an exception alone doesn't count)."""
    with mutated(mutation):
        report = world_of(mutation, seed).run()
    return report if report.violations and not report.violations[0].startswith("not healed") else None
