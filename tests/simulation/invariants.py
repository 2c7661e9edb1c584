"""What must be true, checked while it happens: of the brokers' logs and roles, and of what clients saw.

The oracle knows what no broker knows. From hooks in the production classes it keeps, for each partition, the list of
all batches that were ever committed (below a leader's high watermark); every replica's committed part is compared with
it, whenever the replica's high watermark moves and when it begins to lead. Clients tell it what they sent, what was
acknowledged and what they read. A violation is recorded with its time and ends the run.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog._native.batch import BatchHeader, scan
from fleetlog.brokers.coordinators.shard_host import ShardHost, ShardState
from fleetlog.brokers.log import Log
from fleetlog.brokers.log.append import Appender
from fleetlog.brokers.log.log import Truncation
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.model import INTERNAL_TOPICS, SCHEMAS_TOPIC, LiveBroker, PartitionState
from fleetlog.brokers.replication import isr
from fleetlog.brokers.replication.partition import Partition
from fleetlog.coordination.registration import broker_path, incarnation_path
from fleetlog.coordination.store import NoNode
from fleetlog.wire.types import TopicPartition
from tests.simulation.lives import INVARIANTS as RENEWED
from tests.simulation.lives import Lives
from tests.simulation.logins import INVARIANTS as LOGINS
from tests.simulation.rebalancing import INVARIANTS as REBALANCED
from tests.simulation.rights import INVARIANTS as RIGHTS
from tests.simulation.serving import INVARIANTS as SERVING
from tests.simulation.serving import Serving
from tests.simulation.sharing import INVARIANTS as SHARED
from tests.simulation.sinks import Sinks
from tests.simulation.tables import TABLE

if TYPE_CHECKING:
    from tests.simulation.clients import Batch
    from tests.simulation.world import World

COMPACTED_TOPICS = (*INTERNAL_TOPICS, SCHEMAS_TOPIC, TABLE)
Key = tuple[Any, int]
"""A partition of a topic: (topic id, partition)."""
Transaction = tuple[str, int]
MIN_IN_SYNC = 2
INVARIANTS = (
    "high watermark", "committed batches", "leaders", "candidates", "moves", "acknowledged", "transactions", "read",
    "latest offsets", "group offsets", "fences", "batches", "read of batches", "nothing left open",
    "answers to tools", *SERVING, "fetches of sessions", "reads of followers", "in flight together", "runs of requests",
    "connections together", "records deleted", "earliest offsets", "moves to further brokers", "changes pruned",
    "changes missed", "metadata compared", "loops held", *RIGHTS, "batches given up", "repeats",
    "spread", *LOGINS, *RENEWED, *REBALANCED, *SHARED,
)  # fmt: skip
"""What is counted as checked, and what must have happened for it."""
OPEN, COMMITTING, ABORTING, COMMITTED, ABORTED = "open", "committing", "aborting", "committed", "aborted"


class Entry(NamedTuple):
    """A committed batch."""

    last_offset: int
    epoch: int
    crc: int


@dataclass
class Truth:
    """All that was ever committed in a partition."""

    tp: TopicPartition
    end: int = 0
    batches: dict[int, Entry] = field(default_factory=dict)
    stamps: dict[int, int] = field(default_factory=dict)
    """The largest timestamp of each batch."""
    ends: dict[int, int] = field(default_factory=dict)
    """Where what was committed ended, by the epoch of the leader that committed it: seldom the batch's own epoch."""
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    marked: dict[int, int] = field(default_factory=dict)
    """Where the last marker of a producer stands."""
    markers: dict[int, list[int]] = field(default_factory=dict)
    """Where all its markers stand."""
    promised: set[tuple[int, int]] = field(default_factory=set)
    """The brokers that must hold all of it, and in which of their runs."""
    led_by: tuple[int, int, int] = (-1, -1, -1)

    @property
    def exact(self) -> bool:
        """Batches may vanish from compacted topics."""
        return self.tp.topic not in COMPACTED_TOPICS


@dataclass
class Shadow:
    """The batches of one replica's log as it was written, and how many of them are compared already."""

    log: Log
    headers: list[BatchHeader]
    partition: Partition | None = None
    verified: int = 0


class Oracle:
    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[str] = []
        self.truths: dict[Key, Truth] = {}
        self.by_name: dict[TopicPartition, Truth] = {}
        """Those of the topics that exist."""
        self._replaced: set[Any] = set()
        """The ids of deleted topics whose names belong to others now."""
        self.checked: Counter[str] = Counter()
        self.letters_of: dict[TopicPartition, TopicPartition] = {}
        """Partitions of dead letters, and whose these are."""
        self._shadows: dict[int, Shadow] = {}
        self._leaders: dict[tuple[Key, int], str] = {}
        self._states: dict[str, tuple[int, Any]] = {}
        self._topics: dict[str, znodes.TopicZnode] = {}
        self._registrations: dict[int, tuple[int, LiveBroker]] = {}
        # what clients know
        self.sent: dict[str, tuple[TopicPartition, Transaction | None]] = {}
        self.acked: dict[str, TopicPartition] = {}
        self.deletions: set[str] = set()
        """Topics whose deletion an operator asked for."""
        self.gone: set[str] = set()
        """Values that were sent to a topic of which the deletion was asked for."""
        self.refused: set[str] = set()
        """Values that their sender had no right to write."""
        self.transactions: dict[Transaction, str] = {}
        self.lives: dict[str, Lives] = {}
        """Of the topics that are deleted and created again."""
        self.loaded: Counter[str] = Counter()
        """In which leader epoch a coordinator served last, by the topic with its state (of one partition)."""
        self._acked_end: Counter[TopicPartition] = Counter()
        self._latest: Counter[tuple[TopicPartition, bool]] = Counter()
        self._offsets: dict[tuple[str, TopicPartition], int] = {}
        self._attempted: dict[tuple[str, TopicPartition], int] = {}
        self._producer_ids: dict[int, str] = {}
        self._offset_of: dict[str, int] = {}
        self.once: set[str] = set()
        """Topics that drop duplicates."""
        self.places: dict[str, int] = {}
        """Where values stand that their topic takes once; also when they are deleted."""
        self.sinks = Sinks(self)
        self.serving = Serving(self, world)
        self.deleted: dict[TopicPartition, int] = {}
        """Up to where DeleteRecords was answered."""
        self.on_moved: Callable[[TopicPartition, int], None] | None = None
        """Hears of a partition that another broker leads now, and of its previous leader."""
        self.erasing: dict[TopicPartition, int] = {}
        """Up to where it was asked for, except in topics without readers."""

    def violate(self, text: str) -> None:
        """Something that must never happen has happened."""
        self.violations.append(text)
        self._world.note(f"VIOLATION {text}")

    # ---- logs

    def shadow_of(self, log: Log) -> Shadow:
        shadow = self._shadows.get(id(log))
        if shadow is None:
            shadow = self._shadows[id(log)] = Shadow(log, headers_of(log))
        return shadow

    def truth_of(self, log: Log) -> Truth | None:
        partition = self.shadow_of(log).partition
        if partition is None:
            return None
        tp, key = partition.tp, (partition.topic_id, partition.tp.partition)
        truth = self.truths.get(key)
        if truth is None:
            truth = self.truths[key] = Truth(tp)
            if partition.topic_id not in self._replaced:
                self.by_name[tp] = truth
        return truth

    def _standing(self) -> Iterator[tuple[Any, Truth]]:
        """What ZooKeeper's states are about: the ids of their topics, and all that was committed."""
        return ((topic_id, truth) for (topic_id, _), truth in self.truths.items() if topic_id not in self._replaced)

    def written(self, log: Log, placed: Sequence[Any]) -> None:
        """A log took batches."""
        self.shadow_of(log).headers.extend(header for _, header in placed)

    def cut(self, log: Log, before: int, watermark: int) -> None:
        """A log was cut back to its present end; ``before`` and ``watermark`` are what it had.

        An empty log may begin anew at any offset, also at that of a batch whose first records are deleted.
        """
        shadow, end = self.shadow_of(log), log.log_end_offset
        while shadow.headers and shadow.headers[-1].base_offset >= end:
            shadow.headers.pop()
        if end < before:
            self._world.note(f"{self._present()} cuts {log.topic_partition} from {before} to {end}")
        if end < watermark:
            self.violate(f"{self._present()} cuts {log.topic_partition} to {end}, below its high watermark {watermark}")
        shadow.verified = min(shadow.verified, len(shadow.headers))

    def watermark_moved(self, log: Log, before: int) -> None:
        """A replica's high watermark was set."""
        self.checked["high watermark"] += 1
        if log.high_watermark < before:
            self.violate(
                f"{self._present()}: high watermark of {log.topic_partition} from {before} to {log.high_watermark}"
            )
        truth = self.truth_of(log)
        if truth is not None:
            shadow = self.shadow_of(log)
            leader = shadow.partition if shadow.partition and shadow.partition.is_leader else None
            if self._compare(shadow, truth, log.high_watermark, leads=leader is not None) and leader:
                truth.ends[leader.leader_epoch] = truth.end
                self.check_candidates(leader.topic_id, truth)

    def _compare(self, shadow: Shadow, truth: Truth, upto: int, *, leads: bool) -> bool:
        """Compare the batches below ``upto`` with what is committed; a leader's new ones are committed now."""
        headers, grown = shadow.headers, False
        while shadow.verified < len(headers) and headers[shadow.verified].base_offset < upto:
            header = headers[shadow.verified]
            shadow.verified += 1
            if not leads and header.last_offset < shadow.log.log_start_offset:
                continue  # deleted: nothing is said about it any more
            known = truth.batches.get(header.base_offset)
            mine = Entry(header.last_offset, header.partition_leader_epoch, header.crc)
            if known is not None and (known == mine or (not truth.exact and known.epoch == mine.epoch)):
                continue
            if known is None and header.base_offset >= truth.end and leads:
                grown = True
                self._extend(truth, header, mine)
            elif truth.exact or known is not None:
                self.violate(
                    f"{self._present()}: {truth.tp} has committed {mine} at {header.base_offset}, where"
                    f" {known} was committed (end {truth.end})"
                )
        return grown

    def _extend(self, truth: Truth, header: BatchHeader, entry: Entry) -> None:
        if truth.exact and header.base_offset != truth.end:
            self.violate(f"{truth.tp}: a gap before committed offset {header.base_offset}: it ended at {truth.end}")
        truth.batches[header.base_offset] = entry
        truth.stamps[header.base_offset] = header.max_timestamp
        truth.end = header.last_offset + 1
        self.checked["committed batches"] += 1
        if header.producer_id < 0 or not truth.exact:
            return
        epoch, sequence = truth.producers.get(header.producer_id, (-1, 0))
        what = f"{truth.tp} offset {header.base_offset}: producer {header.producer_id} epoch {header.producer_epoch}"
        if header.producer_epoch < epoch:
            self.violate(f"{what} after epoch {epoch}")
        if header.is_control:
            truth.marked[header.producer_id] = header.base_offset
            truth.markers.setdefault(header.producer_id, []).append(header.base_offset)
            fresh = header.producer_epoch > epoch
            truth.producers[header.producer_id] = header.producer_epoch, 0 if fresh else sequence
            return
        expected = sequence if header.producer_epoch == epoch else 0
        if header.base_sequence != expected:
            self.violate(f"{what} sequence {header.base_sequence} where {expected} was due")
        truth.producers[header.producer_id] = header.producer_epoch, header.base_sequence + header.last_offset_delta + 1

    def led(self, partition: Partition, epoch: int) -> None:
        """A broker begins to lead: no other in this epoch, and it has all that leaders of earlier ones committed.

        A loop that stood still may begin an epoch that is over. What later leaders committed is not its concern,
        nor a batch of an earlier leader that was not committed until a later one held it.
        """
        self.checked["leaders"] += 1
        log, me = partition.log, self._present()
        shadow = self.shadow_of(log)
        key = (partition.topic_id, partition.tp.partition)
        other = self._leaders.setdefault((key, epoch), me)
        if other != me:
            self.violate(f"{me} leads {partition.tp} in epoch {epoch}, as {other} did")
        self._world.note(f"{me} leads {partition.tp} in epoch {epoch} from {log.log_end_offset}")
        truth = self.truth_of(log)
        if truth is not None:
            earlier = max((end for committed_in, end in truth.ends.items() if committed_in < epoch), default=0)
            lacks = _lacks(shadow, truth, earlier)
            if lacks:
                self.violate(f"{me}, new leader of {truth.tp} in epoch {epoch}, {lacks}")

    def _has_all(self, shadow: Shadow, truth: Truth, subject: str) -> None:
        lacks = _lacks(shadow, truth)
        if lacks:
            self.violate(f"{subject} {lacks}")

    def check_candidates(self, topic_id: Any, truth: Truth) -> None:
        """A broker that may be elected without doubt has all that is committed."""
        state = self._state(truth.tp)
        if state is None:
            return
        self.checked["candidates"] += 1
        live = self._live_brokers()
        for broker_id, incarnation in (*isr.members(state), *isr.eligible(state)):
            if not isr.counts(live, broker_id, incarnation):
                continue
            services = self._world.fleet.brokers[broker_id].services
            found = services.replicas.get(truth.tp) if services is not None else None
            if found is not None and found.topic_id == topic_id and not found.log.offline:
                subject = f"b{broker_id}, in sync or eligible for {truth.tp} (partition epoch {state.partition_epoch}),"
                self._has_all(self.shadow_of(found.log), truth, subject)

    def spares(self, broker_id: int) -> bool:
        """Whether a copy of everything committed that counts is elsewhere: without it nothing is promised.

        A copy counts while the process runs in which it was in sync or became eligible (KIP-966). That is our own
        reckoning, so that a fleet that forgets one is found out. Where an operator changes the minimum under way, the
        fleet's own state must agree. Where all have died at once it must agree, too: until there is a leader again the
        copies are whole, but no broker knows it.
        """
        all_died, live = self._world.faults.fired["all brokers"] > 0, self._live_brokers()
        for topic_id, truth in self._standing():
            state = self._state(truth.tp)
            if state is None:
                continue
            known = {*state.isr, *state.elr}
            if all_died:
                members = (*isr.members(state), *isr.eligible(state))
                known = {member for member, incarnation in members if isr.counts(live, member, incarnation)}
            for other, start in sorted(truth.promised):
                broker = self._world.fleet.brokers[other]
                services = broker.services
                if other == broker_id or services is None or broker.starts != start or broker.medium.failed_directory:
                    continue
                if broker.stopping or (
                    broker.owner is not None and self._world.faults.outlasts_its_session(broker.owner)
                ):
                    continue  # it leaves the in-sync set to those that seem to live
                if (self._world.operated or all_died) and other not in known:
                    continue
                found = services.replicas.get(truth.tp)
                if found is not None and found.topic_id == topic_id and not _lacks(self.shadow_of(found.log), truth):
                    break
            else:
                return False
        return True

    def alone(self) -> list[int]:
        """Brokers that are a whole in-sync set by themselves: the worst moment for them to fail."""
        states = [self._state(truth.tp) for _, truth in self._standing()]
        return sorted({state.isr[0] for state in states if state is not None and len(state.isr) == 1})

    def states_written(self) -> None:
        """A partition's state was written: which brokers must hold everything, and whether possible leaders do."""
        for topic_id, truth in self._standing():
            state = self._state(truth.tp)
            if state is not None:
                self._follows(truth, state)
                enough = len(state.isr) >= MIN_IN_SYNC
                members = {(member, self._world.fleet.brokers[member].starts) for member in state.isr}
                truth.promised = members if enough else truth.promised | members
                self.check_candidates(topic_id, truth)

    def _follows(self, truth: Truth, state: PartitionState) -> None:
        """Leader epochs only rise, and one epoch has one leader; so do the epochs of the controllers that write."""
        if self._world.verbose and truth.tp in self.by_name:
            members, eligible = isr.members(state), isr.eligible(state)
            self._world.note(
                f"state of {truth.tp}: leader {state.leader}@{state.leader_incarnation} epoch {state.leader_epoch}"
                f" version {state.partition_epoch} in sync {members} eligible {eligible}"
            )
        (epoch, leader, term), truth.led_by = truth.led_by, (state.leader_epoch, state.leader, state.controller_epoch)
        if epoch > state.leader_epoch or (epoch == state.leader_epoch and leader != state.leader):
            self.violate(f"{truth.tp}: leader epoch {epoch} of {leader} is followed by {truth.led_by}")
        if term > state.controller_epoch:
            self.violate(f"{truth.tp}: controller epoch {state.controller_epoch} writes after {term}")
        if self.on_moved is not None and truth.exact and state.leader >= 0 and leader not in (-1, state.leader):
            self.on_moved(truth.tp, leader)

    def assignments_repaired(self) -> None:
        """``cluster repair`` wrote assignments from what the brokers have: one that ends a move is no end of a move.

        It keeps the replicas whose logs are there, in sync or not; those that are not catch up, as after an election.
        """
        for name, topic in self._topics.items():
            with suppress(NoNode):
                path = znodes.topic_path(name)
                repaired = znodes.decode_topic(path, self._world.zookeeper.tree.find(path).data)
                if repaired.id == topic.id:
                    self._topics[name] = repaired

    def topic_written(self, path: str) -> None:
        """A topic was created, or an assignment written: a move that is over has all replicas in sync (KIP-455)."""
        name = path.rpartition("/")[2]
        try:
            topic = znodes.decode_topic(path, self._world.zookeeper.tree.find(path).data)
        except NoNode:
            return
        before = self._topics.get(name)
        self._topics[name] = topic
        if before is not None and before.id != topic.id:
            self._replaced.add(before.id)
            self.by_name = {tp: truth for tp, truth in self.by_name.items() if tp.topic != name}
        if before is None or before.id != topic.id:
            return
        for index, replicas in enumerate(topic.assignment[: len(before.assignment)]):
            gone = {*before.assignment[index]} - {*replicas}
            state = self._state(TopicPartition(name, index))
            if gone and gone == {*before.removing.get(index, ())} and state is not None:
                self.checked["moves"] += 1
                self.checked["moves to further brokers"] += not {*replicas}.isdisjoint(before.adding.get(index, ()))
                if not {*replicas} <= {*state.isr}:
                    self.violate(f"{name}-{index}: moved to {replicas}, but only {state.isr} are in sync")

    def _state(self, tp: TopicPartition) -> Any:
        """The partition's state as ZooKeeper's leader has it."""
        path = znodes.state_path(tp)
        try:
            node = self._world.zookeeper.tree.find(path)
        except NoNode:
            return None
        known = self._states.get(path)
        if known is None or known[0] != node.mzxid:
            known = self._states[path] = node.mzxid, znodes.decode_state(path, node.data, (), node.version)
        return known[1]

    def _live_brokers(self) -> dict[int, LiveBroker]:
        """The registered brokers, as ZooKeeper's leader has them."""
        tree = self._world.zookeeper.tree
        live = {}
        for broker_id in self._world.fleet.brokers:
            path = broker_path(broker_id)
            try:
                node = tree.find(path)
            except NoNode:
                continue
            known = self._registrations.get(broker_id)
            if known is None or known[0] != node.mzxid:
                count = tree.find(incarnation_path(broker_id)).version
                broker = znodes.decode_broker(path, node.data, node.czxid, count).live_broker
                known = self._registrations[broker_id] = node.mzxid, broker
            live[broker_id] = known[1]
        return live

    def _present(self) -> str:
        return self._world.loop.current().name

    # ---- producers

    def producer_id_given(self, producer_id: int, to: str) -> None:
        other = self._producer_ids.setdefault(producer_id, to)
        if other != to:
            self.violate(f"producer id {producer_id} was given to {other} and to {to}")

    def sending(self, tp: TopicPartition, values: Sequence[str], transaction: Transaction | None = None) -> None:
        for value in values:
            self.sent[value] = tp, transaction
        if transaction is not None:
            self.transactions.setdefault(transaction, OPEN)

    def acknowledged(self, tp: TopicPartition, values: Sequence[str], base_offset: int) -> None:
        """acks=all was answered: it is committed."""
        self.checked["acknowledged"] += len(values)
        for value in values:
            self.acked[value] = tp
        if base_offset < 0:
            return
        known = self.by_name[tp].batches.get(base_offset)
        end = base_offset + len(values)
        self._offset_of.update(zip(values, range(base_offset, end), strict=True))
        if known is None or known.last_offset + 1 != end:
            self.violate(
                f"{values[0]} was acknowledged at offset {base_offset} of {tp}, but {known} is committed there"
            )
        self._acked_end[tp] = max(self._acked_end[tp], end)

    def ending(self, transaction: Transaction, commit: bool) -> None:
        self.transactions[transaction] = COMMITTING if commit else ABORTING

    def ended(self, transaction: Transaction, commit: bool) -> None:
        self.checked["transactions"] += 1
        self.transactions[transaction] = COMMITTED if commit else ABORTED

    def initialised(self, name: str) -> None:
        """A new instance of the producer: what was open before is aborted."""
        for transaction, state in self.transactions.items():
            if transaction[0] == name and state in (OPEN, ABORTING):
                self.transactions[transaction] = ABORTED

    # ---- consumers

    def read(
        self,
        client: str,
        tp: TopicPartition,
        batches: Sequence[Batch],
        committed: bool,
        aborted: Sequence[tuple[int, int]],
        position: int,
    ) -> list[str]:
        """A consumer got these batches; returns the values it shows from its position on."""
        truth = self.by_name[tp]
        for batch in batches:
            self.checked["read"] += 1
            if truth.batches.get(batch.base_offset) != (batch.last_offset, batch.epoch, batch.crc):
                self.violate(
                    f"{client} read {tp} offset {batch.base_offset} of epoch {batch.epoch}, where"
                    f" {truth.batches.get(batch.base_offset)} is committed"
                )
        shown = list(visible(batches, aborted if committed else [], position))
        found: dict[Transaction, None] = {}
        for value in shown:
            transaction = self.sent.get(value, (tp, None))[1]
            if transaction is not None:
                found[transaction] = None
            sent_to = self.sent.get(value, (None, None))[0]
            if sent_to is None or sent_to not in (tp, self.letters_of.get(tp)):
                self.violate(f"{client} read {value} in {tp}, where it was never sent")
            elif tp.topic in self.once:
                self._stands_once(value, position_of(value, batches))
            elif (
                committed
                and transaction is not None
                and self.transactions[transaction] not in (COMMITTING, COMMITTED)
                and not self.sinks.came_before_its_marker(transaction, tp, position_of(value, batches))
            ):
                self.violate(f"{client} read {value} of the {self.transactions[transaction]} transaction {transaction}")
        if committed:
            self.sinks.read(client, tp, found)
        return shown

    def _stands_once(self, value: str, offset: int) -> None:
        """A topic that drops duplicates has each value at one offset, for ever."""
        place = self.places.setdefault(value, offset)
        if place != offset:
            self.violate(f"{value} stands at offset {offset}, and stood at {place}")

    def life(self, tp: TopicPartition) -> object | None:
        """Which of its topic's lives it is in; None between a deletion that was asked for and the next creation."""
        lives = self.lives.get(tp.topic)
        return self if lives is None else lives.now

    def forget_ends(self, topic: str) -> None:
        """Its logs begin anew."""
        self._acked_end = Counter({tp: end for tp, end in self._acked_end.items() if tp.topic != topic})
        self._latest = Counter({key: end for key, end in self._latest.items() if key[0].topic != topic})

    def begin_latest(self, tp: TopicPartition, committed: bool) -> int:
        """What an answer to a request sent now must reach."""
        return self._latest[tp, committed] if committed else max(self._latest[tp, False], self._acked_end[tp])

    def told_latest(self, client: str, tp: TopicPartition, committed: bool, offset: int, floor: int) -> None:
        self.checked["latest offsets"] += 1
        if offset < floor:
            kind = "stable" if committed else "latest"
            self.violate(f"{client} was told the {kind} offset {offset} of {tp} after {floor}")
        self._latest[tp, committed] = max(self._latest[tp, committed], offset)

    def begin_earliest(self, tp: TopicPartition) -> int:
        """What an answer to a request sent now must reach. A power loss may take a log's start back."""
        return self.deleted.get(tp, 0)

    def told_earliest(self, client: str, tp: TopicPartition, offset: int, floor: int) -> None:
        self.checked["earliest offsets"] += 1
        if offset > self.erasing.get(tp, 0) or (offset < floor and self._world.faults.keeps_starts):
            self.violate(f"{client} was told that {tp} starts at {offset}, after {floor}")

    # ---- groups

    def committing(self, group: str, tp: TopicPartition, offset: int) -> None:
        self._attempted[group, tp] = max(self._attempted.get((group, tp), -1), offset)

    def committed_offset(self, group: str, tp: TopicPartition, offset: int) -> None:
        self._offsets[group, tp] = max(self._offsets.get((group, tp), -1), offset)

    def begin_committed(self, group: str, tp: TopicPartition) -> int:
        return self._offsets.get((group, tp), -1)

    def told_committed(self, client: str, group: str, tp: TopicPartition, offset: int, floor: int) -> None:
        self.checked["group offsets"] += 1
        if offset < floor:
            self.violate(f"{client} was told offset {offset} of {group} for {tp} after {floor}")
        if offset > self._attempted.get((group, tp), -1):
            self.violate(f"{client} was told offset {offset} of {group} for {tp}, which was never committed")
        transaction = (group.removeprefix("copies-"), offset)
        if self.transactions.get(transaction) in (OPEN, ABORTING, ABORTED):
            state = self.transactions[transaction]
            self.violate(f"{client} was told offset {offset} of {group}, from a transaction that is {state}")
        self.committed_offset(group, tp, offset)

    # ---- the end

    def check_all(self, shown: dict[TopicPartition, list[str]]) -> None:
        """After the end: what read_committed shows from start to end, compared with what was sent."""
        counts: Counter[str] = Counter()
        for values in shown.values():
            counts.update(values)
        for value, count in counts.items():
            if count > 1:
                self.violate(f"{value} stands {count} times in the log")
            if value in self.gone:
                self.violate(f"{value} was sent to a topic that is deleted, and is in the new one")
            if value in self.refused:
                self.violate(f"{value} was refused for lack of a right, and is in the log")
        self.sinks.check_all([self.sent[value][1] for value in counts if value in self.sent])
        fates: dict[Transaction, set[bool]] = {}
        for value, (tp, transaction) in self.sent.items():
            there = value in counts
            if transaction is None:
                if not there and value in self.acked and not self._erased(value, tp):
                    self.violate(f"{value} was acknowledged in {tp} and is gone")
            elif value in self.acked and (there or not self._erased(value, tp)):
                fates.setdefault(transaction, set()).add(there)
            elif there and self.transactions[transaction] == ABORTED:
                fates.setdefault(transaction, set()).add(True)
        for transaction, fate in fates.items():
            state = self.transactions[transaction]
            if len(fate) > 1:
                self.violate(f"transaction {transaction} ({state}) is there in part")
            elif (state == COMMITTED and fate == {False}) or (state == ABORTED and fate == {True}):
                self.violate(
                    f"transaction {transaction} was {state}, but its records are {'' if True in fate else 'not '}there"
                )

    def _erased(self, value: str, tp: TopicPartition) -> bool:
        """Whether it may have been deleted."""
        if value in self.places:
            return self.places[value] < self.erasing.get(tp, 0)
        return value in self.gone or self._offset_of.get(value, -1) < self.erasing.get(tp, 0)

    def stale_metadata(self) -> list[str]:
        """Brokers that see a partition otherwise than ZooKeeper."""
        wrong = []
        for broker in self._world.fleet.brokers.values():
            for _, truth in self._standing() if broker.services is not None else ():
                state = self._state(truth.tp)
                mine = broker.services.metadata.partition(truth.tp)
                self.checked["metadata compared"] += 1
                if state is not None and (mine is None or mine.partition_epoch != state.partition_epoch):
                    wrong.append(f"{broker.name} believes {mine} of {truth.tp}, where {state} is written")
        return wrong

    def check_shadows(self) -> None:
        """The shadows are what the logs hold, so the comparisons above were about something."""
        for broker in self._world.fleet.brokers.values():
            for partition in broker.services.replicas.all() if broker.services is not None else ():
                if partition.tp.topic not in COMPACTED_TOPICS:
                    start = partition.log.log_start_offset
                    mine = [h for h in self.shadow_of(partition.log).headers if h.last_offset >= start]
                    assert [h[:5] for h in mine] == [h[:5] for h in headers_of(partition.log)], (
                        f"shadow of {partition.tp}"
                    )


def _lacks(shadow: Shadow, truth: Truth, end: int | None = None) -> str:
    """What the log lacks of all that is committed, or committed below ``end``; empty if nothing."""
    end = truth.end if end is None else end
    if shadow.log.log_end_offset < end:
        return f"ends at {shadow.log.log_end_offset}, committed is up to {end}"
    for header in reversed(shadow.headers[shadow.verified :] if truth.exact else ()):
        if header.last_offset < shadow.log.log_start_offset:
            break  # deleted: the log's readers never see it
        known = truth.batches.get(header.base_offset)
        same = known in (None, (header.last_offset, header.partition_leader_epoch, header.crc))
        if header.base_offset < end and not same:
            return f"has another batch at {header.base_offset} than the committed {known}"
    return ""


def headers_of(log: Log) -> list[BatchHeader]:
    """The headers of all batches in a log."""
    offset, found = log.log_start_offset, []
    while offset < log.log_end_offset:
        result = log.reader.read(offset, 1 << 20, end_offset=log.log_end_offset)
        data = b"".join(part.read() for part in result.slices)
        result.release()
        if not data:
            break
        found += [header for _, header in scan(data)]
        offset = result.next_offset
    return found


def visible(batches: Sequence[Batch], aborted: Sequence[tuple[int, int]], position: int) -> Iterator[str]:
    """The values that a consumer at that position shows; ``aborted`` are (first offset, producer id) in order."""
    waiting, hidden = list(aborted), set()
    for batch in batches:
        while waiting and waiting[0][0] <= batch.last_offset:
            hidden.add(waiting.pop(0)[1])
        if batch.control:
            hidden.discard(batch.producer_id)
        elif not (batch.transactional and batch.producer_id in hidden):
            for record in batch.records:
                if record.offset >= position:
                    yield (record.value or b"").decode()


def position_of(value: str, batches: Sequence[Batch]) -> int:
    """The offset of the record with that value."""
    return next(r.offset for b in batches if not b.control for r in b.records if r.value == value.encode())


# ---- hooks


Hook = tuple[type, str, Callable[..., Any]]


def _log_hooks(oracle: Oracle) -> list[Hook]:
    """What logs take, drop and hold for committed."""

    def write(self: Appender, original: Any, pieces: Any, *rest: Any) -> Any:
        log: Any = self._log
        oracle.shadow_of(log)
        before = log.log_end_offset
        result = original(self, pieces, *rest)
        if log.log_end_offset > before:
            oracle.written(log, scan(b"".join(pieces)))
        return result

    def cut(self: Truncation, original: Any, offset: int, **options: Any) -> Any:
        log: Any = self._log
        oracle.shadow_of(log)
        before, watermark = log.log_end_offset, log.high_watermark
        if log.log_start_offset == before or offset > before:
            watermark = -1  # the leader has deleted all that is here; without room to begin at its start it is emptied
        try:
            return original(self, offset, **options)
        finally:  # it may find no room when half of it is done
            oracle.cut(log, before, watermark)

    def restart(self: Truncation, original: Any, offset: int, **options: Any) -> Any:
        log: Any = self._log
        shadow = oracle.shadow_of(log)
        result = cut(self, original, offset, **options)
        shadow.headers.clear()  # below the offset, too
        shadow.verified = 0
        return result

    def set_watermark(self: Appender, original: Any, offset: int) -> None:
        log: Any = self._log
        before = log.high_watermark
        original(self, offset)
        if log.high_watermark != before:
            oracle.watermark_moved(log, before)

    return [
        (Appender, "_write", write),
        (Truncation, "truncate_to", cut),
        (Truncation, "restart_at", restart),
        (Appender, "set_high_watermark", set_watermark),
    ]


def _broker_hooks(oracle: Oracle) -> list[Hook]:
    """The leaders, the coordinators, and what brokers miss of the change log."""

    def made(self: Partition, original: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        oracle.shadow_of(self.log).partition = self

    def lead(self: Partition, original: Any, state: Any) -> None:
        if not self.is_leader or self.leader_epoch != state.leader_epoch:
            oracle.led(self, state.leader_epoch)  # before it commits anything as a leader
        original(self, state)

    async def read_changes(self: MetadataCache, original: Any, sequences: list[int], whole: bool) -> Any:
        sequence = self.sequence
        delta, reloaded = await original(self, sequences, whole)
        oracle.checked["changes missed"] += bool(not whole and sequences and sequences[0] > sequence + 1)
        return delta, reloaded

    def load(self: ShardHost[Any], original: Any, error: Any) -> None:
        original(self, error)
        if self.state is ShardState.ACTIVE:
            topic = self.partition.tp.topic
            oracle.loaded[topic] = max(oracle.loaded[topic], self.leader_epoch)

    return [
        (ShardHost, "_load_committed", load),
        (Partition, "__init__", made),
        (Partition, "become_leader", lead),
        (MetadataCache, "_read_changes", read_changes),
    ]


@contextmanager
def hooked(oracle: Oracle) -> Iterator[None]:
    """The production classes tell the oracle what they do, as long as the block runs."""
    with wrapped((*_log_hooks(oracle), *_broker_hooks(oracle))):
        yield


@contextmanager
def wrapped(hooks: Sequence[Hook]) -> Iterator[None]:
    """Each of these methods is called through its hook, which gets the original, as long as the block runs."""
    undo: list[Callable[[], None]] = []

    def wrap(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def inner(self: Any, *args: Any, **options: Any) -> Any:
            return wrapper(self, original, *args, **options)

        setattr(owner, name, inner)
        undo.append(lambda: setattr(owner, name, original))

    for hook in hooks:
        wrap(*hook)
    try:
        yield
    finally:
        for step in reversed(undo):
            step()
