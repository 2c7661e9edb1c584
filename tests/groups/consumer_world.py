"""A group with clients of both protocols that are slow, pause, die, lie, and do not hear every answer.

A client *has* what it owns, and what it was told that it may take at any moment. A coordinator that moves loses all
that is not in the log. Clients of the classic protocol are all eager or all cooperative, and those of the consumer
protocol so few then that the group changes its own.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fleetlog.brokers.coordinators.pending import PendingAnswer
from fleetlog.brokers.groups.consumer.embedded import assignment_bytes, decode_assignment, decode_subscription
from fleetlog.brokers.groups.consumer.group import Beat, BeatAnswer, ConsumerGroup, Picture
from fleetlog.brokers.groups.consumer.records import Partition
from fleetlog.brokers.groups.members import Group, timer_name
from fleetlog.brokers.groups.records import CommittedOffset, ConsumerKey, ConsumerKind, decode_group_key
from fleetlog.brokers.groups.requests import (
    ConsumerSettings,
    GroupSettings,
    HeartbeatRequest,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    Leaver,
    OffsetCommitRequest,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.brokers.model import PartitionState, TopicInfo
from fleetlog.txn.commands import Command, CommandFailed, Now, Result, Schedule, Ticket
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.support.group_driver import Driver

GROUP = "g"
SETTINGS = ConsumerSettings()
REBALANCE_MS = 60_000
FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)


class Violation(AssertionError):
    """The coordinator broke a rule."""


@dataclass
class Client:
    """A member as its process knows it."""

    id: str
    topics: tuple[str, ...]
    instance_id: str | None = None
    assignor: str | None = None
    regex: str | None = None
    epoch: int = 0
    joined: bool = False
    told: frozenset[Partition] = frozenset()
    owned: frozenset[Partition] = frozenset()
    reported: frozenset[Partition] | None = None
    unsure: bool = True
    """Whether the last answer may be lost, so that it says everything again."""
    paused_ms: int = 0
    stuck: bool = False
    """Whether it gives up nothing, though it sends heartbeats."""
    liar: bool = False
    dead: bool = False
    link: int = 1
    """Its connection to the coordinator, the newest of all."""
    delayed: Beat | None = None
    """A heartbeat that was sent by a connection which the client has given up, and that has not arrived yet."""

    @property
    def has(self) -> frozenset[Partition]:
        return self.owned | self.told if self.joined else frozenset()

    def drop(self) -> None:
        self.epoch, self.joined, self.unsure, self.stuck = 0, False, True, False
        self.told = self.owned = frozenset()
        self.reported = None

    def work(self) -> None:
        """One step: give up what it was told to, or else take what it was told it may."""
        if not self.stuck:
            self.owned = self.told if self.owned <= self.told else self.owned & self.told

    def beat(self) -> Beat:
        full = self.unsure or self.epoch == 0
        changed = full or self.owned != self.reported
        return Beat(
            GROUP, self.id, self.epoch, self.instance_id, None, REBALANCE_MS if full else -1,
            self.topics if full else None, self.regex if full else None, self.assignor if full else None,
            self.owned if changed else None, "client", "/127.0.0.1", link=self.link,
        )  # fmt: skip

    def give_up_connection(self) -> None:
        self.unsure = True
        self.link += 1

    def heard(self, answer: BeatAnswer, owned: frozenset[Partition] | None) -> None:
        if answer.error in FENCED:
            self.drop()
        elif answer.error is ErrorCode.NONE:
            self.joined, self.unsure, self.epoch = True, False, answer.epoch
            if owned is not None:
                self.reported = owned
            if answer.assignment is not None:
                self.told = frozenset(answer.assignment)
        else:
            self.unsure = True


@dataclass
class ClassicClient:
    """A consumer of the classic protocol as its process knows it. One that is eager has nothing while it joins."""

    name: str
    topics: tuple[str, ...]
    eager: bool
    id: str = ""
    generation: int = -1
    phase: str = "join"
    """What it does next: join, sync, or beat."""
    owned: frozenset[Partition] = frozenset()
    assigns: tuple[JoinedMember, ...] = ()
    """Whom it has to assign partitions to, as the leader of a classic group."""
    assigned_of: dict[str, TopicInfo] = field(default_factory=dict)
    """The topics as they were when it did: it joins again when they are others."""
    waits: PendingAnswer | None = None
    paused_ms: int = 0
    dead: bool = False

    @property
    def has(self) -> frozenset[Partition]:
        return self.owned

    def failed(self, error: ErrorCode) -> None:
        """What an error makes of it; it loses what it has if it is no member of its generation any more."""
        self.phase, self.waits = "join", None
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.owned, self.generation = frozenset(), -1
            self.id = "" if error is ErrorCode.UNKNOWN_MEMBER_ID else self.id

    def subscription(self, names: dict[bytes, str]) -> bytes:
        topics = b"".join(struct.pack(f">h{len(name)}s", len(name), name.encode()) for name in self.topics)
        owned = assignment_bytes(self.owned, names, 0)[2:-4]
        return struct.pack(">hi", 1, len(self.topics)) + topics + struct.pack(">i", -1) + owned

    def assigned(self, partitions: frozenset[Partition]) -> None:
        """A cooperative member joins again when it has given something up."""
        gave_up = self.owned - partitions
        self.owned, self.phase = partitions, "join" if gave_up else "beat"


def logged(driver: Driver) -> dict[str, object]:
    """The groups as the log has them."""
    return {
        group.id: (
            group.epoch, group.assignment_epoch, group.hash, group.owners, group.statics, group.regexes,
            {m.id: (m.value, m.current, m.target) for m in group.members.values()},
        )
        for group in driver.shard.consumers.values()
    }  # fmt: skip


def topic(name: str, partitions: int) -> TopicInfo:
    states = tuple(PartitionState((1,), 1, 0, (1,), 0, 0) for _ in range(partitions))
    return TopicInfo(name, uuid.uuid5(uuid.NAMESPACE_URL, f"{name}{partitions}"), states)


@dataclass
class World:
    """The coordinator and its clients; ``step`` does something at random and checks the rules."""

    seed: int
    driver: Driver = field(default_factory=lambda: Driver(GroupSettings()))
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    version: int = 0
    clients: list[Client] = field(default_factory=list)
    classics: list[ClassicClient] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    number: int = 0
    rested: int = 0
    """Heartbeats of members at rest."""
    late: int = 0
    """Heartbeats that came late."""
    beside: int = 0
    """How often several came together."""
    revoking: dict[str, tuple[Driver, frozenset[Partition], int]] = field(default_factory=dict)
    """Since when members have to give up what, by the coordinator that knows."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.topics = {name: topic(name, count) for name, count in (("a", 6), ("b", 4), ("c", 1))}
        eager, classics = self.random.random() < 0.5, self.random.choice([0, 2, 3])
        for number in range(self.random.choice([1, 2, 4]) if classics else 6):
            names = self.random.choice([("a",), ("a", "b"), ("a", "b", "c")])
            instance_id = f"i{number}" if number in (1, 2) else None
            self.clients.append(Client(f"m{number}-0", names, instance_id, self.random.choice([None, "range"])))
        self.clients[-1].liar = len(self.clients) > 2
        for number in range(classics):
            names = self.random.choice([("a",), ("a", "b"), ("a", "b", "c")])
            self.classics.append(ClassicClient(f"c{number}", names, eager))

    @property
    def group(self) -> ConsumerGroup:
        return self.driver.shard.consumers.get(GROUP) or ConsumerGroup(GROUP)

    @property
    def classic(self) -> Group | None:
        """The group as a classic one."""
        return None if GROUP in self.driver.shard.consumers else self.driver.shard.groups.get(GROUP)

    def is_member(self, member_id: str) -> bool:
        return member_id in self.group.members or (self.classic is not None and member_id in self.classic.members)

    def names(self) -> dict[bytes, str]:
        return {info.id.bytes: name for name, info in self.topics.items()}

    def picture(self) -> Picture:
        return Picture(self.topics, self.version)

    # -- what clients do

    def send(self, beat: Beat) -> BeatAnswer:
        return self.send_together([beat])[0]

    def send_together(self, beats: list[Beat]) -> list[BeatAnswer]:
        answers = self.driver.submit_beside([self.command(beat) for beat in beats])
        for answer in answers:
            assert isinstance(answer, BeatAnswer | CommandFailed)
        return [BeatAnswer(answer.error) if isinstance(answer, CommandFailed) else answer for answer in answers]

    def command(self, beat: Beat) -> tuple[str, Command, Callable[[GroupShard], bool]]:
        picture = self.picture()
        own = ConsumerKey(ConsumerKind.CURRENT, GROUP, beat.member_id)
        joins = own._replace(kind=ConsumerKind.MEMBER), ConsumerKey(ConsumerKind.GROUP, GROUP, ""), own

        def commutes(shard: GroupShard) -> bool:
            return shard.consumer_moves_alone(beat, picture, SETTINGS)

        def command(shard: GroupShard, now: Now, ticket: Ticket) -> Result:
            rests, alone = self.rests(beat), commutes(shard)
            result = shard.consumer_heartbeat(beat, picture, SETTINGS, now, ticket)
            if rests:
                self.rested += 1
                timer = Schedule(timer_name("member", GROUP, beat.member_id), SETTINGS.session_timeout_ms)
                answer = BeatAnswer(
                    ErrorCode.NONE, None, beat.member_id, beat.epoch, SETTINGS.heartbeat_interval_ms, None
                )
                if (result.response, result.records, result.effects) != (answer, (), (timer,)):
                    raise Violation(f"{beat.member_id} seemed to be at rest at epoch {beat.epoch}: {result}")
            if alone and tuple(decode_group_key(record.key) for record in result.records) not in ((), (own,), joins):
                raise Violation(f"{beat.member_id} was to change what it has alone: {result}")
            return result

        return beat.member_id, command, commutes

    def rests(self, beat: Beat) -> bool:
        """Whether the coordinator would take that for the heartbeat of a member at rest, and look no closer."""
        if beat != Beat(*beat[:4], client_id=beat.client_id, client_host=beat.client_host, link=beat.link):
            return False  # it says something
        client = beat.client_id, beat.client_host
        return self.driver.shard.consumer_rests(GROUP, *beat[1:4], client, self.picture())

    def heartbeat(self, client: Client, lost: bool = False) -> None:
        self.heartbeats([client], lost)

    def heartbeats(self, clients: list[Client], lost: bool = False) -> None:
        """Of several clients in one turn of the coordinator."""
        beats = [self._lie(client, client.beat()) if client.liar else client.beat() for client in clients]
        had = [self.group.members.get(client.id) for client in clients]
        known = [member.at if member is not None else None for member in had]
        answers = self.send_together(beats)
        for client, beat, at, answer in zip(clients, beats, known, answers, strict=True):
            self.history.append(f"{client.id} {beat.epoch} owns {beat.owned} -> {answer} {'lost' if lost else ''}")
            if answer.error is ErrorCode.NONE and beat.epoch > 0 and (at is None or beat.epoch > at.epoch):
                raise Violation(f"{client.id} is heard at epoch {beat.epoch}, the coordinator knows {at}")
            if lost:
                client.give_up_connection()
            else:
                client.heard(answer, beat.owned)
        self.beside += len(clients) > 1

    def delays(self, client: Client) -> None:
        """A heartbeat is on its way for long; or one arrives that was, behind those of a newer connection."""
        beat, client.delayed = client.delayed, None
        if beat is not None:
            self.history.append(f"{client.id}: {beat.epoch} owns {beat.owned} arrives late -> {self.send(beat)}")
            self.late += 1
        elif client.joined and client.epoch > 0 and not client.liar:
            client.delayed = client.beat()
            client.give_up_connection()
            self.history.append(f"{client.id} {client.epoch} is delayed")

    def _lie(self, client: Client, beat: Beat) -> Beat:
        every = [(info.id.bytes, index) for info in self.topics.values() for index in range(len(info.partitions))]
        owned = frozenset(self.random.sample(every, self.random.randint(0, len(every)))) if beat.epoch else beat.owned
        epoch = max(beat.epoch + self.random.choice([0, 0, 0, 1, -1]), 0)
        return Beat(*beat[:2], epoch, *beat[3:9], owned, *beat[10:])

    def leave(self, client: Client) -> None:
        """A static member goes for a moment, and comes back with another id; others go for good."""
        static = client.instance_id is not None and self.random.random() < 0.7
        answer = self.send(Beat(GROUP, client.id, -2 if static else -1, client.instance_id))
        self.history.append(f"{client.id} leaves{' for now' if static else ''} -> {answer.error.name}")
        old, left = client.id, client.joined and not static and answer.error is ErrorCode.NONE
        client.drop()
        client.id = f"{old.split('-')[0]}-{int(old.split('-')[1]) + 1}"
        info = next(iter(self.topics.values()), None)
        if left and info is not None and self.commit(old, 1, info, 0) is ErrorCode.NONE:
            raise Violation(f"{old} commits though it has left")

    def commit(self, member_id: str, epoch: int, info: TopicInfo, index: int) -> ErrorCode:
        tp = TopicPartition(info.name, index)
        request = OffsetCommitRequest(
            GROUP,
            epoch,
            member_id,
            None,
            ((tp, CommittedOffset(1, topic_id=info.id.bytes)),),
            knows_missing_groups=True,
        )
        pending = self.driver.submit(GROUP, lambda shard, now, ticket: shard.commit(request, now, ticket))
        answer = pending.response
        return answer.error if isinstance(answer, CommandFailed) else ErrorCode(answer[tp])

    def commits(self, client: Client) -> None:
        """What an honest member owns it may commit, whatever moves meanwhile; a fenced one may commit nothing."""
        self.driver.fail_appends = None
        by_id = {info.id.bytes: info for info in self.topics.values()}
        member = self.group.members.get(client.id)
        for topic_id, index in sorted(client.owned):
            if topic_id not in by_id:
                continue
            error = self.commit(client.id, client.epoch, by_id[topic_id], index)
            if member is None and error is ErrorCode.NONE:
                raise Violation(f"{client.id} commits though it is fenced")
            if member is not None and not client.liar and client.joined and error is not ErrorCode.NONE:
                raise Violation(f"{client.id} owns {index} at epoch {client.epoch}, and may not commit: {error.name}")
        if member is not None and client.epoch > 0 and self.topics:
            error = self.commit(client.id, member.at.epoch + 1, next(iter(self.topics.values())), 0)
            if error is ErrorCode.NONE:
                raise Violation(f"{client.id} commits with an epoch that it does not have")

    # -- what classic clients do

    def classic_step(self, client: ClassicClient, lost: bool = False) -> None:
        """The next request of its protocol, or the answer to the last one."""
        if client.waits is not None and not client.waits.done:
            if lost:
                client.waits, client.phase = None, "join"
            return
        if client.phase == "beat" and client.assigns and client.assigned_of != self.topics:
            client.phase = "join"
        if client.waits is None:
            client.waits = {"join": self.joins, "sync": self.syncs, "beat": self.beats}[client.phase](client)
            if not client.waits.done:
                return
        answer, client.waits = client.waits.response, None
        self.history.append(f"{client.name} {client.id} {client.phase} -> {answer} {'lost' if lost else ''}")
        if lost:
            client.phase = client.phase if client.phase == "beat" else "join"
            return
        error = answer if isinstance(answer, ErrorCode) else answer.error
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            client.id = answer.member_id
        elif error is not ErrorCode.NONE:
            client.failed(error)
        elif isinstance(answer, JoinAnswer):
            client.id, client.generation, client.phase = answer.member_id, answer.generation, "sync"
            client.assigns = answer.members
        elif isinstance(answer, SyncAnswer):
            ids = {name: info.id.bytes for name, info in self.topics.items()}
            told = decode_assignment(answer.assignment).partitions
            client.assigned(frozenset((ids[name], index) for name, index in told if name in ids))

    def joins(self, client: ClassicClient) -> PendingAnswer:
        self.driver.picture = self.picture()
        client.owned = frozenset() if client.eager else client.owned
        self.number += 1
        request = JoinRequest(
            GROUP, client.id, None, client.name, "/127.0.0.1", "consumer",
            (Protocol("range" if client.eager else "cooperative", client.subscription(self.names())),), 20_000,
            REBALANCE_MS, f"{self.number}",
        )  # fmt: skip
        return self.driver.submit(GROUP, lambda s, now, ticket: s.join(request, now, ticket, self.driver.picture))

    def syncs(self, client: ClassicClient) -> PendingAnswer:
        self.driver.picture = self.picture()
        plan = tuple(self.plan(client.assigns).items())
        client.assigned_of = dict(self.topics)
        request = SyncRequest(GROUP, client.generation, client.id, None, None, None, plan)
        return self.driver.submit(GROUP, lambda s, now, ticket: s.sync(request, now, ticket, self.driver.picture))

    def beats(self, client: ClassicClient) -> PendingAnswer:
        self.driver.picture = self.picture()
        request = HeartbeatRequest(GROUP, client.generation, client.id, None)
        return self.driver.submit(GROUP, lambda s, now, ticket: s.heartbeat(request, now, ticket, self.driver.picture))

    def plan(self, members: tuple[JoinedMember, ...]) -> dict[str, bytes]:
        """As a cooperative assignor: what somebody else owns waits for the next rebalance."""
        said = {member.member_id: decode_subscription(member.metadata) for member in members}
        owners = {partition: name for name, one in said.items() for partition in one.owned}
        given: dict[str, list[Partition]] = {name: [] for name in said}
        for topic_name, info in sorted(self.topics.items()):
            readers = [name for name, one in said.items() if topic_name in one.topics]
            for index in range(len(info.partitions) if readers else 0):
                to = min(readers, key=lambda name: (len(given[name]), name))
                if owners.get((topic_name, index), to) == to:
                    given[to].append((info.id.bytes, index))
        return {name: assignment_bytes(partitions, self.names(), 1) for name, partitions in given.items()}

    def classic_leaves(self, client: ClassicClient) -> None:
        leavers = (Leaver(client.id, None),)
        self.driver.picture = self.picture()
        self.driver.submit(GROUP, lambda s, now, ticket: s.leave(GROUP, leavers, now, ticket, self.driver.picture))
        self.history.append(f"{client.name} {client.id} leaves")
        client.failed(ErrorCode.UNKNOWN_MEMBER_ID)

    def classic_commits(self, client: ClassicClient) -> None:
        """In a group of the consumer protocol a member may commit until it joins again, and nobody else."""
        self.driver.fail_appends = None
        if not self.topics or self.classic is not None or not client.id:
            return
        member = self.group.members.get(client.id)
        error = self.commit(client.id, client.generation, next(iter(self.topics.values())), 0)
        good = member is not None and member.at.epoch == client.generation
        if (error is ErrorCode.NONE) is not (good or (not self.group.members and client.generation < 0)):
            raise Violation(f"{client.name} commits with generation {client.generation}, it is {member}: {error.name}")

    # -- what happens

    def step(self) -> None:
        if self.classics and self.random.random() < 0.5:
            self._step_of_a_classic_client()
            self.check()
            return
        client = self.random.choice(self.clients)
        action = self.random.random()
        if action < 0.1:
            self._step_of_the_network(client)
        elif action < 0.5:
            if not client.paused_ms and not client.dead:
                self.heartbeat(client, lost=self.random.random() < 0.2)
        elif action < 0.7:
            client.work()
        elif action < 0.76:
            self.commits(client)
        elif action < 0.86:
            self.passes(self.random.choice([100, 1_000, 5_000, 20_000]))
        elif action < 0.89:
            if not client.dead and not client.paused_ms:
                self.leave(client)
        elif action < 0.92:
            client.paused_ms = self.random.choice([20_000, 70_000])
        elif action < 0.94:
            client.stuck = True
        elif action < 0.96:
            self.change_topics()
        elif action < 0.98:
            before = logged(self.driver)
            self.driver = self.driver.restart()
            self.history.append("moved")
            if logged(self.driver) != before:
                raise Violation(f"loaded {logged(self.driver)}, was {before}")
            for each in self.clients:
                each.unsure, each.delayed = True, None
            for one in self.classics:
                if one.waits is not None:
                    one.waits, one.phase = None, "join"
        else:
            self.driver.fail_appends = ErrorCode.NOT_ENOUGH_REPLICAS
        self.check()

    def _step_of_the_network(self, client: Client) -> None:
        if self.random.random() < 0.5:
            awake = [one for one in self.clients if not one.paused_ms and not one.dead]
            self.heartbeats(awake, lost=self.random.random() < 0.2)
        elif client.delayed is not None or (not client.paused_ms and not client.dead):
            self.delays(client)

    def _step_of_a_classic_client(self) -> None:
        client, action = self.random.choice(self.classics), self.random.random()
        if action < 0.85:
            if not client.paused_ms and not client.dead:
                self.classic_step(client, lost=self.random.random() < 0.2)
        elif action < 0.93:
            self.classic_commits(client)
        elif action < 0.96:
            client.paused_ms = self.random.choice([10_000, 30_000, 70_000])
        elif not client.dead and not client.paused_ms:
            self.classic_leaves(client)

    def passes(self, ms: int) -> None:
        self.driver.advance(ms)
        self.history.append(f"{ms} ms")
        for client in (*self.clients, *self.classics):
            client.paused_ms = max(0, client.paused_ms - ms)

    def change_topics(self) -> None:
        name = self.random.choice(["a", "b", "c"])
        self.topics = dict(self.topics)
        if name in self.topics and self.random.random() < 0.3:
            del self.topics[name]
        else:
            known = self.topics.get(name)
            grown = topic(name, (len(known.partitions) if known else 0) + self.random.choice([1, 2]))
            topic_id = known.id if known is not None else uuid.UUID(int=self.random.getrandbits(128))
            self.topics[name] = replace(grown, id=topic_id)
        self.version += 1
        self.history.append(f"topics {[(n, len(t.partitions)) for n, t in self.topics.items()]}")

    def check(self) -> None:
        owner: dict[Partition, str] = {}
        there = {info.id.bytes for info in self.topics.values()}
        for client in (*self.clients, *self.classics):
            if (isinstance(client, Client) and client.liar) or not self.is_member(client.id):
                continue
            for partition in client.has:
                if partition[0] not in there:
                    continue  # one of the classic protocol knows topics by their names, and does not tell of it
                other = owner.setdefault(partition, client.id)
                if other != client.id:
                    raise Violation(f"{partition} is with {other} and {client.id}")

        for member in self.group.members.values():
            pending = frozenset(member.at.pending)
            known = self.revoking.get(member.id)
            if known is None or known[0] is not self.driver or known[1] != pending:
                self.revoking[member.id] = self.driver, pending, self.driver.now.mono_ms
            elif pending and self.driver.now.mono_ms - known[2] > REBALANCE_MS + 20_000:
                raise Violation(f"{member.id} has not given up {pending} for {self.driver.now.mono_ms - known[2]} ms")

    def settle(self) -> None:
        """Nothing fails any more: soon everybody has a target, and all of it."""
        self.driver.fail_appends = None
        for client in self.clients:
            client.paused_ms = 0
            if client.liar:
                client.liar = False
                client.drop()
        for number in range(40):
            for _ in range(4):
                for classic in self.classics:
                    classic.paused_ms = 0
                    if not classic.dead:
                        self.classic_step(classic)
                        self.classic_commits(classic)
                self.passes(1_250)
            for client in self.clients:
                if not client.dead:
                    client.stuck = client.stuck and number < 20
                    self.heartbeat(client)
                    client.work()
                    self.commits(client)
                    client.work()
            self.check()
        living = [client for client in (*self.clients, *self.classics) if not client.dead]
        state, members = self.group.state, len(self.group.members)
        if self.classic is not None:
            state, members = self.classic.state.value, len(self.classic.members)
        if living and (state != "Stable" or members != len(living)):
            raise Violation(f"not stable: {state}, {members} members")
        if (self.classic is not None) is not (bool(living) and all(isinstance(one, ClassicClient) for one in living)):
            raise Violation(f"a group of the wrong protocol, with {[type(one).__name__ for one in living]}")
        wanted: set[Partition] = {
            (self.topics[name].id.bytes, index)
            for client in living
            for name in client.topics
            if name in self.topics
            for index in range(len(self.topics[name].partitions))
        }
        owned = [partition for client in living for partition in client.owned]
        if len(owned) != len(set(owned)) or set(owned) != wanted:
            raise Violation(f"{len(owned)} partitions are owned, of {len(wanted)}")


def run(seed: int, steps: int = 250) -> World:
    """One history; raises Violation with what led to it."""
    world = World(seed)
    try:
        for number in range(steps):
            if number == steps // 2:
                everybody: list[Client | ClassicClient] = [*world.clients, *world.classics]
                world.random.choice(
                    [one for one in everybody if not (isinstance(one, Client) and one.liar)]
                ).dead = True
            world.step()
        world.settle()
    except Violation as problem:
        problem.add_note("\n".join(world.history[-40:]))
        raise
    return world
