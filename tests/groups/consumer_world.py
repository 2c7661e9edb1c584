"""A group of the consumer protocol with clients that are slow, pause, die, lie, and do not hear every answer.

A client *has* what it owns, and what it was told that it may take at any moment. A coordinator that moves loses all
that is not in the log.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field, replace

from fleetlog.brokers.groups.consumer.group import Beat, BeatAnswer, ConsumerGroup, Picture
from fleetlog.brokers.groups.consumer.records import Partition
from fleetlog.brokers.groups.records import CommittedOffset
from fleetlog.brokers.groups.requests import ConsumerSettings, GroupSettings, OffsetCommitRequest
from fleetlog.brokers.model import PartitionState, TopicInfo
from fleetlog.txn.commands import CommandFailed
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
            self.owned if changed else None, "client", "/127.0.0.1",
        )  # fmt: skip

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
    history: list[str] = field(default_factory=list)
    revoking: dict[str, tuple[Driver, frozenset[Partition], int]] = field(default_factory=dict)
    """Since when members have to give up what, by the coordinator that knows."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.topics = {name: topic(name, count) for name, count in (("a", 6), ("b", 4), ("c", 1))}
        for number in range(6):
            names = self.random.choice([("a",), ("a", "b"), ("a", "b", "c")])
            instance_id = f"i{number}" if number in (1, 2) else None
            self.clients.append(Client(f"m{number}-0", names, instance_id, self.random.choice([None, "range"])))
        self.clients[5].liar = True

    @property
    def group(self) -> ConsumerGroup:
        return self.driver.shard.consumers.get(GROUP) or ConsumerGroup(GROUP)

    def picture(self) -> Picture:
        return Picture(self.topics, self.version)

    # -- what clients do

    def send(self, beat: Beat) -> BeatAnswer:
        picture = self.picture()
        pending = self.driver.submit(
            GROUP, lambda shard, now, ticket: shard.consumer_heartbeat(beat, picture, SETTINGS, now, ticket)
        )
        answer = pending.response
        if isinstance(answer, CommandFailed):
            return BeatAnswer(answer.error)
        assert isinstance(answer, BeatAnswer)
        return answer

    def heartbeat(self, client: Client, lost: bool = False) -> None:
        beat = client.beat()
        if client.liar:
            beat = self._lie(client, beat)
        member = self.group.members.get(client.id)
        at = member.at if member is not None else None
        answer = self.send(beat)
        self.history.append(f"{client.id} {beat.epoch} owns {beat.owned} -> {answer} {'lost' if lost else ''}")
        if answer.error is ErrorCode.NONE and beat.epoch > 0 and (at is None or beat.epoch > at.epoch):
            raise Violation(f"{client.id} is heard at epoch {beat.epoch}, the coordinator knows {at}")
        if lost:
            client.unsure = True
        else:
            client.heard(answer, beat.owned)

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

    # -- what happens

    def step(self) -> None:
        client = self.random.choice(self.clients)
        action = self.random.random()
        if action < 0.5:
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
                each.unsure = True
        else:
            self.driver.fail_appends = ErrorCode.NOT_ENOUGH_REPLICAS
        self.check()

    def passes(self, ms: int) -> None:
        self.driver.advance(ms)
        self.history.append(f"{ms} ms")
        for client in self.clients:
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
        for client in self.clients:
            if client.liar or client.id not in self.group.members:
                continue
            for partition in client.has:
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
            self.passes(5_000)
            for client in self.clients:
                if not client.dead:
                    client.stuck = client.stuck and number < 20
                    self.heartbeat(client)
                    client.work()
                    self.commits(client)
                    client.work()
            self.check()
        living = [client for client in self.clients if not client.dead]
        if self.group.state != "Stable" or len(self.group.members) != len(living):
            raise Violation(f"not stable: {self.group.state}, {len(self.group.members)} members")
        wanted = {
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
                world.clients[world.random.randrange(5)].dead = True
            world.step()
        world.settle()
    except Violation as problem:
        problem.add_note("\n".join(world.history[-40:]))
        raise
    return world
