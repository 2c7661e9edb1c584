"""Histories of groups with members of both protocols; and each rule left out, which some history must show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleetlog.brokers.groups.consumer import group as machine
from fleetlog.brokers.groups.consumer import migration
from fleetlog.brokers.groups.consumer import records as r
from fleetlog.brokers.groups.consumer.group import Beat, ConsumerGroup, Member, Picture
from fleetlog.brokers.groups.consumer.records import Current, MemberValue, Partition
from fleetlog.brokers.groups.members import Group, Turn
from fleetlog.brokers.groups.requests import ConsumerSettings
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.txn.commands import Now, Result
from fleetlog.wire.errors import ErrorCode
from tests.groups.consumer_world import Violation, run

SEEDS = 24
PLANTED_SEEDS = 150
"""Within so many histories a planted fault is found; most are found in the first."""


@pytest.mark.parametrize("part", range(4))
def test_histories(part: int) -> None:
    worlds = [run(seed) for seed in range(part * SEEDS // 4, (part + 1) * SEEDS // 4)]
    assert sum(world.rested for world in worlds) > 100, "what is said of members at rest is looked at"
    assert any(world.late for world in worlds), "so are those that come late"
    assert sum(world.beside for world in worlds) > 10, "as are heartbeats beside each other"


@pytest.mark.parametrize(
    "seed",
    [
        9090,  # the answer that took partitions away went to a connection that the member had given up
        91847,  # a loaded coordinator had what members said of themselves from their first record, not from the last
    ],
)
def test_found(seed: int) -> None:
    run(seed)


def taken_at_its_word(member: Member, beat: Beat) -> bool:
    """As Kafka: what a member does not name it does not have, even if it may not have heard yet that it is gone."""
    owned = beat.owned
    return beat.epoch == 0 or (owned is not None and not owned & member.at.pending.keys())


def free_while_given_up(group: ConsumerGroup, member: Member, current: Current | None) -> None:
    have(group, member, None if current is None else current._replace(pending={}))
    member.current = current


def nothing_ends(group: ConsumerGroup, kind: str, member_id: str, turn: Turn, settings: ConsumerSettings) -> None:
    if kind == "assign":
        on_timer(group, kind, member_id, turn, settings)


def no_time_to_give_up(group: ConsumerGroup, kind: str, member_id: str, turn: Turn, settings: ConsumerSettings) -> None:
    if kind != "revoke":
        on_timer(group, kind, member_id, turn, settings)


def at_once(*asked: object) -> Current:
    """A member gets its target without giving up the rest first."""
    group, member, target, epoch = asked[:4]
    assert isinstance(member, Member)
    assert isinstance(target, tuple)
    assert isinstance(epoch, int)
    assert isinstance(group, ConsumerGroup)
    return Current(epoch, member.at.epoch, r.STABLE, dict.fromkeys(target, epoch), {})


def at_its_epoch(group: ConsumerGroup, member_id: str, epoch: int, *_: object) -> bool:
    """As if a member at its epoch had all that it shall have."""
    return member_id in group.members and group.members[member_id].at.epoch == epoch > 0


def whatever_the_topics(group: ConsumerGroup, *asked: Any) -> bool:
    return rests(group, *asked[:-1], Picture(asked[-1].topics, group.hashed_version or 0))


def always_alone(group: ConsumerGroup, beat: Beat, *_: object) -> bool:
    """As if no heartbeat changed anything but what its member has."""
    return beat.member_id in group.members


def joins_at_any_time(group: ConsumerGroup, beat: Beat, *asked: Any) -> bool:
    """As if a member that joins were in the next target whenever that is computed."""
    new = beat.epoch == 0 and beat.member_id not in group.members and beat.instance_id is None
    return moves_alone(group, beat, *asked) or new


Upgraded = tuple[dict[str, MemberValue], dict[str, list[Partition]]]


def nothing_is_taken_over(group: Group, picture: Picture) -> Upgraded:
    values, _ = upgraded(group, picture)
    return values, {name: [] for name in values}


def no_rebalance(shard: GroupShard, name: str, now: Now) -> Result:
    return Result() if name.startswith("rebalance:") else shard_timer(shard, name, now)


have, on_timer, rests = ConsumerGroup.keep_current, machine.on_timer, machine.rests
moves_alone = machine.moves_alone
upgraded, shard_timer = migration.upgraded_members, GroupShard.on_timer
PLANTED: dict[str, tuple[object, str, Callable[..., object]]] = {
    "a member moves at once": (machine, "_next", at_once),
    "whoever is asked has given up": (machine, "_gave_up", lambda member, beat: True),
    "a member is taken at its word": (machine, "_gave_up", taken_at_its_word),
    "what is given up is free": (ConsumerGroup, "keep_current", free_while_given_up),
    "any epoch is heard": (machine, "_check_epoch", lambda at, beat: None),
    "anybody may commit": (ConsumerGroup, "commit_errors", lambda group, request, transactional: ErrorCode.NONE),
    "only the newest epoch may commit": (
        ConsumerGroup, "commit_errors",
        lambda group, request, transactional: ErrorCode.NONE
        if request.member_id in group.members and group.members[request.member_id].at.epoch == request.generation
        else ErrorCode.STALE_MEMBER_EPOCH,
    ),
    "a classic member has given up all when it joins": (
        machine, "_keeps", lambda beat, partitions: beat.classic is None and beat.epoch != 0,
    ),
    "no classic member is asked to join again": (migration, "_ask_to_join", lambda *asked: ErrorCode.NONE),
    "classic members have nothing when a group is upgraded": (migration, "upgraded_members", nothing_is_taken_over),
    "nobody rebalances when a group is a classic one again": (GroupShard, "on_timer", no_rebalance),
    "a group stays as it is when only classic members are left": (machine, "_downgrade", lambda *asked: False),
    "no session ends": (machine, "on_timer", nothing_ends),
    "giving up takes as long as it likes": (machine, "on_timer", no_time_to_give_up),
    "a member at its epoch is at rest": (machine, "rests", at_its_epoch),
    "all heartbeats may be handled beside each other": (machine, "moves_alone", always_alone),
    "a member may join beside others at any time": (machine, "moves_alone", joins_at_any_time),
    "what comes late is heard": (machine, "_late", lambda member, beat: False),
    "members are at rest whatever happens to topics": (machine, "rests", whatever_the_topics),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, fault = PLANTED[name]
    monkeypatch.setattr(place, attribute, fault)
    for seed in range(PLANTED_SEEDS):
        try:
            run(seed)
        except Violation:
            return
    pytest.fail(f"{PLANTED_SEEDS} histories do not show that {name}")
