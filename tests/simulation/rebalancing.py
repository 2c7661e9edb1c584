"""A group of the consumer protocol (KIP-848) whose members pause, vanish, lie, and do not hear every answer.

No partition may be with two members that are not fenced, as they know it themselves; one that is fenced, has left, or
lies about its epoch commits nothing; what was acknowledged stays; and when nothing fails any more, each partition is
soon with one member. Who is fenced stands in the group as its newest coordinator has it, in memory: a coordinator
answers when a record is applied, and a later one has applied all of that before it serves.

After a request whose outcome is unknown, which may arrive late, a member goes on only where that can do no harm: a late
heartbeat that does not name a partition looks as if its member had given that up, as long as the epoch is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import fleetlog.wire.messages as m
from fleetlog.brokers.coordinators.shard_host import ShardState
from fleetlog.brokers.groups.consumer.group import JOINS, LEAVES, LEAVES_FOR_NOW, ConsumerGroup
from fleetlog.brokers.model import GROUP_METADATA_TOPIC
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.simulation.admin import Admin
from tests.simulation.clients import GROUP as GROUPS
from tests.simulation.clients import OK, RETRIABLE, Client

if TYPE_CHECKING:
    from tests.simulation.world import World

INVARIANTS = ("one holder each", "commits of those who may not", "commits of members", "groups at rest")
GROUP, DEALT = "rebalanced", "dealt"
SETTINGS: dict[str, Any] = {
    "group_consumer_min_session_timeout_ms": 500, "group_consumer_session_timeout_ms": 1_200,
    "group_consumer_min_heartbeat_interval_ms": 100, "group_consumer_heartbeat_interval_ms": 250,
    "group_consumer_assignment_interval_ms": 200,
}  # fmt: skip
REBALANCE_MS = 1_500
AWAY_S = (1.3, 3.0)
"""Longer than a session."""
REST_S = 30.0
"""Until the group is at rest when nothing fails any more."""
FIRST, MOST = 3, 6
"""Partitions of the topic: at first, and in the end at most."""
FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
LATER = RETRIABLE | {ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNRELEASED_INSTANCE_ID}
"""The broker may not have seen yet that groups of this protocol are served."""
NO_EPOCH = -3


class Holders:
    """The members as they know themselves, and the group as its newest coordinator knows it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.members: list[Holder] = []
        self.partitions = FIRST
        self._at_rest = False
        self._rests_by = 0.0

    def group(self) -> ConsumerGroup | None:
        """None while the newest coordinator is gone."""
        for broker in self._world.fleet.brokers.values():
            host = broker.services.groups.host(0) if broker.services is not None else None
            newest = self._world.oracle.loaded[GROUP_METADATA_TOPIC]
            if host is not None and host.state is ShardState.ACTIVE and host.leader_epoch == newest:
                return host.shard.consumers.get(GROUP) or ConsumerGroup(GROUP)
        return None

    def look(self) -> None:
        """Compare what the members have."""
        group, oracle = self.group(), self._world.oracle
        if group is None:
            return
        holders: dict[int, Holder] = {}
        for member in self.members:
            known = group.members.get(member.id)
            if known is None or not member.joined:
                continue
            if member.epoch > known.at.epoch >= JOINS:
                oracle.violate(f"{member.id} is at epoch {member.epoch}, and its coordinator knows {known.at.epoch}")
            if member.epoch not in (known.at.epoch, known.at.previous_epoch):
                continue  # its next heartbeat is refused
            for index in member.owned:
                oracle.checked["one holder each"] += 1
                other = holders.setdefault(index, member)
                if other is not member:
                    oracle.violate(f"partition {index} is with {other.id} ({other.epoch}) and {member.id} ({known.at})")

    @property
    def at_rest(self) -> bool:
        """Whether the run closes and each partition is with one member; it stays so."""
        now, oracle = self._world.loop.time(), self._world.oracle
        if not self._world.closing or self._at_rest:
            return self._at_rest
        self._rests_by = self._rests_by or now + REST_S
        held = sorted(index for member in self.members if member.joined for index in member.owned)
        self._at_rest = held == list(range(self.partitions))
        oracle.checked["groups at rest"] += self._at_rest
        if not self._at_rest and now > self._rests_by:
            oracle.violate(f"{REST_S:.0f} s after all faults, the members have {held} of {self.partitions} partitions")
        return self._at_rest


class Holder(Client):
    """A member. ``owned`` are the partitions that it has, with the offset committed last where it knows that."""

    def __init__(self, world: World, name: str, holders: Holders) -> None:
        super().__init__(world, name)
        self.holders = holders
        self.instance = name if name.endswith("3") else None
        self.number = 0
        self.id = ""
        self.version = self.rng.choice((9, 10))
        """Of OffsetCommit and OffsetFetch: with the topic's name, or its id."""
        self.drop(another=True)

    def drop(self, *, another: bool) -> None:
        """It has nothing any more, and joins next, under another id if an old request may still arrive."""
        self.epoch, self.joined, self.sure, self.doubted = JOINS, False, False, NO_EPOCH
        self.owned: dict[int, int | None] = {}
        self.told: set[int] = set()
        self.reported: set[int] | None = None
        self.given_up: dict[int, int] = {}
        """By the epoch at which it had them last."""
        if another:
            self.number += 1
            self.id = f"{self.name}-{self.number}"

    async def main(self) -> None:
        """Until the run closes and the group is at rest."""
        while DEALT not in self.ids:
            await self.refresh()
        while not self.holders.at_rest:
            if await self.beat():
                await self.work()
            await self.pause(0.05, 0.3)
        await self.leave(LEAVES)

    # ---- its requests

    async def beat(self) -> bool:
        """One heartbeat; whether it is a member and knows its answer."""
        full, owned = not self.sure, set(self.owned)
        request = self.heartbeat(self.epoch, full, owned if full or owned != self.reported else None)
        answer = await self.coordinate(GROUPS, GROUP, request, 1, self.rng.choice((0.02, 1.5, 1.5, 1.5)))
        error = None if answer is None else ErrorCode(answer.error_code)
        if error == OK:
            self.heard(answer, owned)
        elif error in FENCED:
            self.drop(another=self.doubted != NO_EPOCH)
        elif error is None or error in LATER:
            self.forget_coordinator(GROUPS, GROUP)
            self.sure = False
            if self.joined:
                self.doubted = self.epoch
            elif error != ErrorCode.UNRELEASED_INSTANCE_ID:
                self.drop(another=True)
        else:
            self.world.oracle.violate(f"{self.id} gets {error.name} for a heartbeat at epoch {self.epoch}")
        return error == OK

    def heartbeat(self, epoch: int, full: bool, owned: Iterable[int] | None) -> Any:
        kind = m.ConsumerGroupHeartbeatRequest
        rows = None
        if owned is not None:
            row = kind.TopicPartitions(version=1, topic_id=self.ids.get(DEALT), partitions=sorted(owned))
            rows = [row] if row.partitions else []
        return kind(
            version=1, group_id=GROUP, member_id=self.id, member_epoch=epoch, instance_id=self.instance, rack_id=None,
            rebalance_timeout_ms=REBALANCE_MS if full else -1, subscribed_topic_names=[DEALT] if full else None,
            subscribed_topic_regex=None, server_assignor=None, topic_partitions=rows,
        )  # fmt: skip

    def heard(self, answer: Any, owned: set[int]) -> None:
        self.joined, self.sure, self.reported, self.epoch = True, True, owned, answer.member_epoch
        if answer.assignment is not None:
            self.told = {index for row in answer.assignment.topic_partitions for index in row.partitions}
        self.holders.look()

    async def leave(self, epoch: int) -> None:
        """For good, or as a static member for a moment. It has nothing from before the request on."""
        request, old, joined = self.heartbeat(epoch, False, None), (self.id, self.epoch), self.joined
        tp = TopicPartition(DEALT, self.rng.randrange(self.holders.partitions))
        self.drop(another=True)
        answer = await self.coordinate(GROUPS, GROUP, request, 1) if joined else None
        if answer is not None and answer.error_code == OK and epoch == LEAVES and self.rng.random() < 0.5:
            await self.commit_as(*old, tp, 0, "it has left")

    async def commit(self, index: int) -> None:
        """An offset above the last one, of a partition that it has."""
        before, group = self.owned[index], self.holders.group()
        if before is None:
            return
        may_not = "it is fenced" if group is not None and self.id not in group.members else ""
        offset = before + self.rng.randint(1, 3)
        error = await self.commit_as(self.id, self.epoch, TopicPartition(DEALT, index), offset, may_not)
        if error == OK:
            self.owned[index] = offset
            self.world.oracle.checked["commits of members"] += 1
        elif error in FENCED:
            self.drop(another=self.doubted != NO_EPOCH)
        elif error != ErrorCode.STALE_MEMBER_EPOCH:  # a late copy must not come after this member's next commit
            await self.go()

    async def commit_as(self, member_id: str, epoch: int, tp: TopicPartition, offset: int, may_not: str) -> int:
        """Commit once; ``may_not`` says why that must be refused. No error but a refusal tells the outcome."""
        oracle, version = self.world.oracle, self.version
        oracle.committing(GROUP, tp, offset)
        topic = m.OffsetCommitRequest.OffsetCommitRequestTopic
        part = topic.OffsetCommitRequestPartition(
            version=version, partition_index=tp.partition, committed_offset=offset, committed_leader_epoch=-1,
            committed_metadata=self.name,
        )  # fmt: skip
        name = {"name": tp.topic} if version < 10 else {"topic_id": self.ids[tp.topic]}
        request = m.OffsetCommitRequest(
            version=version, group_id=GROUP, generation_id_or_member_epoch=epoch, member_id=member_id,
            group_instance_id=self.instance, topics=[topic(version=version, partitions=[part], **name)],
        )  # fmt: skip
        answer = await self.coordinate(GROUPS, GROUP, request, version)
        error = ErrorCode.UNKNOWN_SERVER_ERROR
        if answer is not None:
            error = ErrorCode(answer.topics[0].partitions[0].error_code)
        oracle.checked["commits of those who may not"] += bool(may_not) and answer is not None
        if error == OK:
            if may_not:
                oracle.violate(f"{member_id} commits {offset} of {tp} at epoch {epoch}, though {may_not}")
            oracle.committed_offset(GROUP, tp, offset)
        elif error not in (*FENCED, ErrorCode.STALE_MEMBER_EPOCH):
            self.forget_coordinator(GROUPS, GROUP)
        return error

    async def look_up(self, index: int) -> None:
        """Where to go on with a partition that it was given; unknown if that is not told."""
        oracle, version, tp = self.world.oracle, self.version, TopicPartition(DEALT, index)
        kind = m.OffsetFetchRequest.OffsetFetchRequestGroup
        name = {"name": tp.topic} if version < 10 else {"topic_id": self.ids[tp.topic]}
        topic = kind.OffsetFetchRequestTopics(version=version, partition_indexes=[index], **name)
        asked = kind(version=version, group_id=GROUP, member_id=self.id, member_epoch=self.epoch, topics=[topic])
        floor = oracle.begin_committed(GROUP, tp)
        answer = await self.coordinate(
            GROUPS, GROUP, m.OffsetFetchRequest(version=version, groups=[asked], require_stable=True), version
        )
        if answer is None or answer.groups[0].error_code != OK:
            self.forget_coordinator(GROUPS, GROUP)
            return
        part = answer.groups[0].topics[0].partitions[0]
        if part.error_code == OK and index in self.owned:
            oracle.told_committed(self.id, GROUP, tp, int(part.committed_offset), floor)
            self.owned[index] = max(0, int(part.committed_offset))

    # ---- what it does between two heartbeats

    async def work(self) -> None:
        """Give up what it was told to, or take what it may; then something that members do."""
        revoked = [index for index in self.owned if index not in self.told]
        if revoked:
            await self.give_up(revoked)
        elif self.told - self.owned.keys():
            if self.epoch == self.doubted:
                await self.go()
                return
            self.owned = {index: self.owned.get(index) for index in sorted(self.told)}
            self.holders.look()
        for index in [index for index, offset in self.owned.items() if offset is None]:
            await self.look_up(index)
        if not self.world.closing:
            await self.live()

    async def give_up(self, revoked: list[int]) -> None:
        """At once, or after a while; with a commit, or without."""
        roll = self.rng.random()
        if roll < 0.3:
            await self.pause(0.0, 0.6)
        elif roll < 0.4 and not self.world.closing:
            self.world.note(f"{self.id} does not give up {revoked}")
            return
        if roll > 0.6:
            await self.commit(revoked[0])
        for index in revoked:
            if self.owned.pop(index, None) is not None:
                self.given_up[index] = self.epoch

    async def live(self) -> None:
        roll = self.rng.random()
        if self.owned and roll < 0.45:
            await self.commit(self.rng.choice(list(self.owned)))
        elif roll < 0.50:
            await self.lie()
        elif roll < 0.56:
            await self.go()
        elif roll < 0.60:
            await asyncio.sleep(self.rng.uniform(*AWAY_S))
            self.world.note(f"{self.id} comes back after a pause")
            if self.owned and self.rng.random() < 0.7:
                await self.commit(self.rng.choice(list(self.owned)))

    async def lie(self) -> None:
        """Commit at an epoch that it does not have, or for what it has given up at an earlier one."""
        tp, epoch, reason = TopicPartition(DEALT, 0), self.epoch + 1_000, "it is not at that epoch"
        late = [(index, since) for index, since in self.given_up.items() if since < self.epoch]
        if late and self.rng.random() < 0.7:
            index, epoch = self.rng.choice(late)
            tp, reason = TopicPartition(DEALT, index), f"it has given that up and is at epoch {self.epoch}"
        await self.commit_as(self.id, epoch, tp, 0, reason)

    async def go(self) -> None:
        """Leave, or vanish; in both cases another member comes."""
        if self.rng.random() < 0.3 and not self.world.closing:
            self.world.note(f"{self.id} vanishes")
            self.drop(another=True)
        else:
            away = self.instance is not None and self.rng.random() < 0.7
            await self.leave(LEAVES_FOR_NOW if away else LEAVES)


class Dealer(Admin):
    """Extends the topic."""

    async def extend_all(self, holders: Holders) -> None:
        """Until the run closes, or it has enough partitions; each time until that is seen."""
        while not self.world.closing and holders.partitions < MOST:
            await self.pause(0.5, 3.0)
            holders.partitions += 1
            self.world.note(f"operator gives {DEALT} {holders.partitions} partitions")
            while TopicPartition(DEALT, holders.partitions - 1) not in self.topics:
                await self.extend(DEALT, holders.partitions)
                await self.refresh()


def clients(world: World) -> list[tuple[Client, Any]]:
    """Members, one of them a static one, and who extends their topic, each with its work."""
    holders, dealer = Holders(world), Dealer(world, "dealer")
    holders.members = [Holder(world, f"w{number}", holders) for number in range(1, 5)]
    return [(dealer, dealer.extend_all(holders)), *((member, member.main()) for member in holders.members)]
