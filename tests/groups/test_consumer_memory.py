"""What a member of the consumer protocol costs its coordinator: memory beside its connection, and steps to join."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import uuid
from types import FrameType, SimpleNamespace
from typing import Any

from fleetlog.brokers.coordinators.shard_host import ShardTimers
from fleetlog.brokers.groups.consumer import records as r
from fleetlog.brokers.groups.consumer.group import Beat, Picture
from fleetlog.brokers.groups.consumer.records import Current, MemberValue, Partition
from fleetlog.brokers.groups.members import timer_name
from fleetlog.brokers.groups.records import ConsumerKey, ConsumerKind
from fleetlog.brokers.groups.requests import ConsumerSettings
from fleetlog.brokers.timers import Timers
from fleetlog.txn.commands import CoordinatorRecord
from tests.groups.consumer_world import topic
from tests.support.group_driver import Driver

MEMBERS, SHARE = 1_000, 10
"""Members, and partitions of each of them."""
MEMBER_BYTES_MAX = 3_000
TOPICS = {name: topic(name, MEMBERS) for name in (f"topic-{number}" for number in range(SHARE))}
IDS = sorted(info.id.bytes for info in TOPICS.values())
SETTINGS = ConsumerSettings()


def own(number: int) -> tuple[Partition, ...]:
    """A member's partitions, whose ids are objects of their own, as those that are decoded from each request."""
    return tuple((bytes(bytearray(topic_id)), number) for topic_id in IDS)


def beat(driver: Driver, member: str, epoch: int, **said: Any) -> None:
    asked = Beat("group", member, epoch, client_id="client", client_host="/127.0.0.1", **said)
    picture = Picture(TOPICS, 1)
    driver.submit("group", lambda shard, now, t: shard.consumer_heartbeat(asked, picture, SETTINGS, now, t))


def log() -> list[tuple[CoordinatorRecord, None]]:
    """A group at rest."""
    first = Driver()
    beat(first, "m", 0, rebalance_timeout_ms=60_000, topics=tuple(TOPICS), owned=frozenset())
    of_topics = first.shard.consumers["group"].hash

    def record(kind: ConsumerKind, value: bytes, name: str = "") -> tuple[CoordinatorRecord, None]:
        return r.record(ConsumerKey(kind, "group", name), value), None

    names = [str(uuid.UUID(int=7919 * number)) for number in range(MEMBERS)]
    value = r.member_value(MemberValue(None, None, "client", "/127.0.0.1", tuple(TOPICS), None, 60_000, None))
    targets = [r.member_target_value(own(number)) for number in range(MEMBERS)]
    having = [r.current_value(Current(7, 6, r.STABLE, dict.fromkeys(own(number), 7))) for number in range(MEMBERS)]
    return [
        *(record(ConsumerKind.MEMBER, value, name) for name in names),
        record(ConsumerKind.GROUP, r.epoch_value(7, of_topics)),
        *(record(ConsumerKind.MEMBER_TARGET, target, name) for name, target in zip(names, targets, strict=True)),
        record(ConsumerKind.TARGET, r.epoch_value(7, 0)),
        *(record(ConsumerKind.CURRENT, current, name) for name, current in zip(names, having, strict=True)),
    ]


class Host:
    """The timers of a shard's host, whose times are put off by each heartbeat."""

    def __init__(self) -> None:
        self.now_ms = 0
        loop = SimpleNamespace(call_later=lambda *_: SimpleNamespace(cancel=lambda: None))
        clock = SimpleNamespace(mono_ms=lambda: self.now_ms)
        self.wheel = Timers(loop, clock)  # type: ignore[arg-type]
        self.timers = ShardTimers(self.wheel, clock, lambda name: None)  # type: ignore[arg-type]


def test_a_member_takes_no_more_than_its_budget() -> None:
    entries, driver, host = log(), Driver(), Host()
    gc.collect()
    tracemalloc.start()
    try:
        for entry in entries:
            driver.replay(entry)
        group = driver.shard.consumers["group"]
        for number, member in enumerate(list(group.members)):
            beat(driver, member, 7, owned=frozenset(own(number)))
            driver.timers.clear()
            host.timers.schedule(timer_name("member", "group", member), SETTINGS.session_timeout_ms)
            host.now_ms += 5
        driver.log.clear()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert (group.epoch, group.state) == (7, "Stable")
    assert all(member.reported == member.target for member in group.members.values()), "what they say was taken in"
    assert len(host.timers) == len(group.members) == MEMBERS
    assert len(group.owners) == MEMBERS * SHARE
    assert taken / MEMBERS < MEMBER_BYTES_MAX, f"{taken / MEMBERS:,.0f} bytes a member"


def steps_of_a_join(driver: Driver, name: str) -> int:
    """The interpreter's instructions while a member joins."""
    steps = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        beat(driver, name, 0, rebalance_timeout_ms=60_000, topics=tuple(TOPICS), owned=frozenset())
    finally:
        sys.settrace(before)
    assert name in driver.shard.consumers["group"].members
    return steps


def test_a_join_costs_no_more_in_a_large_group() -> None:
    driver, costs = Driver(), []
    for number in range(MEMBERS):
        if number in (10, MEMBERS - 1):
            costs.append(steps_of_a_join(driver, f"m-{number:04}"))
        else:
            beat(driver, f"m-{number:04}", 0, rebalance_timeout_ms=60_000, topics=tuple(TOPICS), owned=frozenset())
    assert costs[1] < 1.1 * costs[0], costs
