"""Groups with members of both protocols: how they become what they are, what classic members hear, what the log has."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest

from fleetlog.brokers.groups.consumer import records as r
from fleetlog.brokers.groups.consumer.embedded import Assignment, assignment_bytes, decode_assignment
from fleetlog.brokers.groups.consumer.group import Beat, ConsumerGroup, Picture
from fleetlog.brokers.groups.requests import (
    ConsumerSettings,
    FetchRequest,
    GroupSettings,
    Leaver,
    OffsetCommitRequest,
    Protocol,
)
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition
from tests.groups.consumer_calls import SETTINGS, TOPICS, T, U, ask, commit, committing, joining, keys, send, t
from tests.groups.consumer_world import logged
from tests.support.group_driver import Client, Driver

NAMES = {T: "t", U: "u"}
SOON = ConsumerSettings(assignment_interval_ms=0)


def said(topics: Iterable[str] = ("t",), owned: Iterable[int] = (), version: int = 1) -> bytes:
    """A subscription, with partitions of ``t`` that are owned."""
    names = b"".join(struct.pack(f">h{len(name)}s", len(name), name.encode()) for name in topics)
    text = struct.pack(">hi", version, len(tuple(topics))) + names + struct.pack(">i", -1)
    indexes = tuple(owned)
    rows = struct.pack(f">h1si{len(indexes)}i", 1, b"t", len(indexes), *indexes) if indexes else b""
    return text + struct.pack(">i", bool(indexes)) + rows if version else text


def range_protocol(**more: object) -> tuple[Protocol, ...]:
    return (Protocol("range", said(**more)),)  # type: ignore[arg-type]


def world(settings: GroupSettings | None = None) -> Driver:
    driver = Driver(settings or GroupSettings(initial_rebalance_delay_ms=0, consumer=SOON))
    driver.picture = Picture(TOPICS, 0)
    return driver


def classic(driver: Driver, name: str, **more: object) -> Client:
    return Client(driver, name, protocols=range_protocol(), **more)  # type: ignore[arg-type]


def stable(driver: Driver, plan: dict[Client, tuple[int, ...]]) -> None:
    """The members are in a classic generation with these partitions."""
    for client in plan:
        client.join()
    for client in [*plan][:-1]:  # the last one made the others join again
        client.send_join()
    leader = driver.shard.groups["g"].leader
    assignments = {client.member_id: assignment_bytes(t(*owned), NAMES, 1) for client, owned in plan.items()}
    for client in sorted(plan, key=lambda one: one.member_id == leader):
        client.sync(assignments)
    assert driver.shard.groups["g"].state.value == "Stable"


def has(client: Client) -> Assignment:
    return decode_assignment(client.sync().response.assignment)


def only(*indexes: int) -> Assignment:
    return Assignment(tuple(("t", index) for index in indexes), user_data=False)


def again(client: Client, *owned: int) -> ErrorCode:
    """Join again, as a cooperative member with these partitions."""
    client.protocols = range_protocol(owned=owned)
    return client.send_join().response.error


def group_of(driver: Driver) -> ConsumerGroup:
    return driver.shard.consumers["g"]


def restarted(driver: Driver) -> Driver:
    before, picture = logged(driver), driver.picture
    driver = driver.restart()
    assert logged(driver) == before
    driver.picture = picture
    return driver


def test_a_classic_group_becomes_one_of_both_protocols_and_back() -> None:
    driver = world()
    a, b = classic(driver, "a"), classic(driver, "b")
    stable(driver, {a: (0, 1), b: (2, 3)})
    generation = a.generation
    assert a.commit(5) is ErrorCode.NONE
    log = len(driver.log)
    new = send(driver, joining("n"))
    assert (new.error, new.epoch, new.assignment) == (ErrorCode.NONE, generation + 1, ()), "all is with the others"
    names = [a.member_id, b.member_id]
    assert keys(driver.log[log:]) == [
        (2, "", True),
        *((5, name, False) for name in names), (3, "", False), *((7, name, False) for name in names), (6, "", False),
        *((8, name, False) for name in names),
        (5, "n", False), (3, "", False),
        *((7, name, False) for name in sorted([*names, "n"]) if group_of(driver).members[name].target != ()
          and (name == "n" or len(group_of(driver).members[name].target or ()) < 2)),
        (6, "", False), (8, "n", False),
    ]  # fmt: skip
    group = group_of(driver)
    assert group.members[a.member_id].at == r.Current(
        generation, generation, r.STABLE, dict.fromkeys(t(0, 1), generation), {}
    )
    assert group.members[a.member_id].value == r.MemberValue(
        None, None, "a", "/127.0.0.1", ("t",), None, 60_000, None, r.Classic(10_000, range_protocol())
    )
    assert not driver.shard.groups["g"].members
    driver = _both_protocols(driver, a, b)
    _back(driver, a, b)


def _both_protocols(driver: Driver, a: Client, b: Client) -> Driver:
    group, generation = group_of(driver), a.generation
    wanted = group.members["n"].target
    assert wanted is not None
    assert len(wanted) == 1
    giver = a if wanted[0] in t(0, 1) else b
    for client in (a, b):
        assert client.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert client.sync().response.error is ErrorCode.REBALANCE_IN_PROGRESS
        owned = (0, 1) if client is a else (2, 3)
        assert again(client, *owned) is ErrorCode.NONE
        if client is giver:  # it has to give up one, and is asked to join again when it has
            assert (group.members[client.member_id].at.state, client.generation) == (r.UNREVOKED, generation)
            left = tuple(index for index in owned if (T, index) not in wanted)
            assert has(client) == only(*left)
            assert send(driver, Beat("g", "n", generation + 1)).assignment is None, "not yet"
            assert client.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
            assert again(client, *left) is ErrorCode.NONE
        assert (client.generation, client.joining.response.leader) == (generation + 1, "")  # type: ignore[union-attr]
        assert client.heartbeat() is ErrorCode.NONE
    assert send(driver, Beat("g", "n", generation + 1)).assignment == wanted
    assert group.state == "Stable"
    kinds = {one.group_id: one.group_type for one in driver.shard.listing()}
    assert kinds == {"g": "consumer"}
    driver = restarted(driver)
    a.driver = b.driver = driver
    for client in (a, b):
        assert client.heartbeat() is ErrorCode.NONE
    return driver


def _back(driver: Driver, a: Client, b: Client) -> None:
    log, before = len(driver.log), group_of(driver)
    epoch = before.epoch
    left = {client.member_id: before.members[client.member_id].at.assigned for client in (a, b)}
    names = [*before.members]
    assert send(driver, Beat("g", "n", -1)).error is ErrorCode.NONE
    assert keys(driver.log[log:]) == [
        *((8, name, True) for name in names), *((7, name, True) for name in names), (6, "", True),
        *((5, name, True) for name in names), (3, "", True), (2, "", False),
    ]  # fmt: skip
    assert not driver.shard.consumers
    group = driver.shard.groups["g"]
    assert (group.generation, group.protocol, group.state.value) == (epoch, "range", "Stable")
    assert {name: group.members[name].assignment for name in left} == {
        name: assignment_bytes(assigned, NAMES, 1) for name, assigned in left.items()
    }
    killed = driver.restart()
    assert killed.shard.groups["g"].state.value == "PreparingRebalance", "also where the timer is lost"
    driver.advance(0)
    assert group.state.value == "PreparingRebalance"
    for client in (a, b):
        assert client.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.shard.groups["g"].offsets
    pending = [client.send_join() for client in (a, b)]
    assert [one.response.generation for one in pending] == [epoch + 1] * 2
    for client in sorted((a, b), key=lambda one: one.member_id == group.leader):
        client.sync({a.member_id: assignment_bytes(t(0, 1), NAMES, 1), b.member_id: b""})
    assert restarted(driver).shard.groups["g"].state.value == "Stable", "rebalanced once"
    assert send(driver, joining("n")).error is ErrorCode.NONE, "and forth again"
    assert group_of(driver).members[a.member_id].at.assigned == dict.fromkeys(t(0, 1), a.generation)


def test_an_eager_member_gives_up_all_with_its_join_and_needs_no_second() -> None:
    driver = world()
    a = classic(driver, "a")
    stable(driver, {a: (0, 1, 2, 3)})
    send(driver, joining("n"))
    assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert again(a) is ErrorCode.NONE
    assert a.generation == group_of(driver).assignment_epoch
    kept = has(a).partitions
    given = send(driver, Beat("g", "n", a.generation)).assignment
    assert given is not None
    assert {index for _, index in kept} ^ {index for _, index in given} == {0, 1, 2, 3}
    assert a.heartbeat() is ErrorCode.NONE


def test_what_a_rebalance_forgot_a_member_has_still() -> None:
    """A member of a rebalance that did not end has the partitions of the last generation; nobody gets them sooner."""
    driver = world()
    a, b = classic(driver, "a"), classic(driver, "b")
    stable(driver, {a: (0, 1), b: (2, 3)})
    for client in (a, b):
        client.send_join()
    classic(driver, "c").join()  # the generation that began is given up
    assert not driver.shard.groups["g"].members[a.member_id].assignment
    new = send(driver, joining("n"))
    assert new.error is ErrorCode.NONE
    assert group_of(driver).members[a.member_id].at.assigned.keys() == {*t(0, 1)}
    assert group_of(driver).members[b.member_id].at.assigned.keys() == {*t(2, 3)}
    assert not {*(new.assignment or ())} & {*t(0, 1)}


def test_a_member_that_did_not_hear_its_last_assignment_keeps_what_it_had() -> None:
    driver = world()
    a, b = classic(driver, "a"), classic(driver, "b")
    a.protocols = range_protocol(owned=(0, 1, 2))
    stable(driver, {a: (0,), b: (2,)})
    send(driver, joining("n"))
    assert group_of(driver).members[a.member_id].at.assigned.keys() == {*t(0, 1)}, "what it said it owned"
    assert group_of(driver).members[b.member_id].at.assigned.keys() == {*t(2)}, "but what another one was given"


def test_requests_that_wait_are_told_to_come_again() -> None:
    driver = world()
    a, b = classic(driver, "a"), classic(driver, "b")
    stable(driver, {a: (0, 1), b: (2, 3)})
    waiting = b.send_join()
    if waiting.done:  # it was not the leader, whose join alone begins a rebalance
        waiting = a.send_join()
    assert not waiting.done
    driver.fail_appends = ErrorCode.NOT_ENOUGH_REPLICAS
    assert send(driver, joining("n")).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not waiting.done, "nothing was written: it is a classic group as before"
    assert len(driver.shard.groups["g"].members) == 2
    assert send(driver, joining("n")).error is ErrorCode.NONE
    assert waiting.response.error is ErrorCode.REBALANCE_IN_PROGRESS
    driver.advance(60_000)
    assert a.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID, "no timer of the classic group ran, but that of the session"


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [("bidirectional", True, True), ("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
def test_policies(policy: str, up: bool, down: bool) -> None:
    settings = SETTINGS._replace(migration=policy)
    driver = world(GroupSettings(initial_rebalance_delay_ms=0, consumer=settings))
    a = classic(driver, "a")
    stable(driver, {a: (0,)})
    answer = send(driver, joining("n"), settings=settings)
    assert answer.error is (ErrorCode.NONE if up else ErrorCode.GROUP_ID_NOT_FOUND)
    text = "Cannot upgrade classic group g to consumer group because online upgrade is disabled."
    assert answer.message == (None if up else text)
    if not up:
        a.leave()
        assert send(driver, joining("n"), settings=settings).error is ErrorCode.NONE, "empty groups always change"
        assert a.join().response.error is ErrorCode.NONE, "classic members join also then"
    send(driver, Beat("g", "n", -1), settings=settings)
    assert bool(driver.shard.consumers) is not down
    assert driver.shard.consumers or len(driver.shard.groups["g"].members) == 1


def test_what_cannot_be_upgraded_stays_as_it_is() -> None:
    driver = world()
    a = classic(driver, "a")
    a.protocol_type = "connect"
    stable(driver, {a: (0,)})
    before = len(driver.log)
    assert "does not use the consumer embedded protocol" in (send(driver, joining("n")).message or "")
    small = send(driver, joining("n"), settings=SETTINGS._replace(max_size=0)).error
    assert small is ErrorCode.GROUP_ID_NOT_FOUND
    a.leave()
    b = classic(driver, "b")
    b.join()
    b.sync({b.member_id: assignment_bytes(t(0), NAMES, 1)[:-4] + b"\0\0\0\1x"})
    assert "an unsupported custom assignor is in use" in (send(driver, joining("n")).message or "")
    b.protocols = (Protocol("range", b"\0"),)
    b.send_join()
    b.sync({b.member_id: b""})
    assert "the embedded consumer protocol is malformed" in (send(driver, joining("n")).message or "")
    assert not driver.shard.consumers
    assert not any(kind != 2 for kind, _, _ in keys(driver.log[before:]))
    assert driver.shard.groups["g"].state.value == "Stable"


def test_what_librdkafka_adds_to_an_assignment_is_passed_over() -> None:
    """Its cooperative assignor repeats what the member said of itself."""
    driver = world()
    a = classic(driver, "a")
    (plain,) = a.protocols
    a.protocols = (Protocol("cooperative-sticky", plain.metadata),)
    a.join()
    a.sync({a.member_id: assignment_bytes(t(0), NAMES, 1)[:-4] + b"\0\0\0\1x"})
    assert send(driver, joining("n")).error is ErrorCode.NONE
    assert set(driver.shard.consumers["g"].members[a.member_id].at.assigned) == set(t(0))


def test_joins_that_are_refused() -> None:
    driver = world(GroupSettings(consumer=SETTINGS._replace(max_size=3)))
    send(driver, joining("n"))
    a = classic(driver, "a")
    a.protocol_type = "connect"
    assert a.join().response.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    a.protocol_type = "consumer"
    a.protocols = (Protocol("range", b"\0\1"),)
    assert a.join().response.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no subscription"
    a.protocols = range_protocol()
    assert a.send_join().response.error is ErrorCode.MEMBER_ID_REQUIRED
    assert group_of(driver).members.keys() == {"n"}
    assert a.send_join().response.error is ErrorCode.NONE
    b = Client(driver, "b", protocols=(Protocol("roundrobin", said()),))
    assert b.join().response.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol in common with the other"
    b.protocols = (Protocol("roundrobin", said()), *range_protocol())
    assert b.join().response.error is ErrorCode.NONE
    assert b.joining is not None
    assert b.joining.response.protocol == "roundrobin"
    c = classic(driver, "c")
    assert c.join().response.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert again(a) is ErrorCode.NONE, "a member of a full group may join again"


def test_what_a_classic_member_may_do_is_by_its_generation() -> None:
    driver = world()
    send(driver, joining("n"))
    a = classic(driver, "a")
    assert a.join().response.error is ErrorCode.NONE
    assert a.heartbeat(generation=a.generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert a.sync(generation=a.generation + 1).response.error is ErrorCode.ILLEGAL_GENERATION
    for epoch, error in ((a.generation, ErrorCode.NONE), (a.generation - 1, ErrorCode.ILLEGAL_GENERATION)):
        request = committing(a.member_id, epoch, 0, knows_missing_groups=False)
        assert commit(driver, request) is error, "by any version of OffsetCommit"
        assert group_of(driver).fetch_error(a.member_id, epoch) is error
    a.protocols = (Protocol("sticky", said()),)
    assert a.sync().response.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    n = Client(driver, "n")
    n.member_id, n.generation = "n", group_of(driver).members["n"].at.epoch
    assert n.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID, "it does not use the classic protocol"
    assert n.sync().response.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.shard.fetch(FetchRequest("g", (TopicPartition("t", 0),)))[0].committed is not None
    nobody = OffsetCommitRequest("g", 1, "nobody", None, committing("x", 0, 0).offsets)
    assert commit(driver, nobody) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("missing", ["session", "rejoin", "resync"])
def test_a_classic_member_that_does_not_come_is_removed(missing: str) -> None:
    driver = world()
    a = classic(driver, "a", session_ms=10_000, rebalance_ms=30_000)
    send(driver, joining("n"))
    assert a.join().response.error is ErrorCode.NONE
    if missing != "resync":
        a.sync()
    if missing == "rejoin":
        send(driver, joining("o"))
        assert a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(3):
        driver.advance(9_900)
        send(driver, Beat("g", "n", group_of(driver).members["n"].at.epoch))
        if missing != "session":
            a.heartbeat()
    assert (a.member_id in group_of(driver).members) is (missing != "session")
    driver.advance(400)
    assert a.member_id not in group_of(driver).members
    assert not group_of(driver).owners.keys() & {(T, 9)}
    assert a.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_members_change_their_protocol_in_place() -> None:
    driver = world()
    a = classic(driver, "a", instance_id="i")
    stable(driver, {a: (0, 1, 2, 3)})
    new = send(driver, joining("n", instance_id="i"))
    assert (new.error, new.assignment) == (ErrorCode.NONE, t(0, 1, 2, 3)), "a classic member never leaves for now"
    assert a.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert again(a) is ErrorCode.FENCED_INSTANCE_ID
    b = classic(driver, "b", instance_id="i")
    assert b.send_join().response.error is ErrorCode.NONE, "nor does it wait"
    assert send(driver, Beat("g", "n", new.epoch)).error is ErrorCode.UNKNOWN_MEMBER_ID
    driver.advance(0)
    assert not driver.shard.consumers, "it was the last of the consumer protocol"
    driver.advance(0)
    assert b.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert b.send_join().response.error is ErrorCode.NONE


def test_leaves_of_both_kinds() -> None:
    driver = world(GroupSettings(consumer=SETTINGS._replace(migration="upgrade")))
    send(driver, joining("n"))
    a, s = classic(driver, "a"), classic(driver, "s", instance_id="i")
    a.join()
    s.send_join()
    leavers = (Leaver("nobody", None), Leaver("other", "i"), Leaver("", "none"), Leaver("", "i"), Leaver("n", None))
    answer = ask(driver, lambda shard, now, ticket: shard.leave("g", leavers, now, ticket, driver.picture))
    assert [error for _, error in answer.members] == [
        ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE,
        ErrorCode.NONE,
    ]  # fmt: skip
    assert group_of(driver).members.keys() == {a.member_id}
    assert a.leave() is ErrorCode.NONE
    assert group_of(driver).state == "Empty"
    assert not group_of(driver).owners
    restarted(driver)


def test_the_memory_of_classic_members_counts() -> None:
    driver = world(GroupSettings(members_max_bytes=3_000))
    send(driver, joining("n"))
    size = driver.shard.member_bytes()
    a = Client(driver, "a", protocols=(Protocol("range", said() + b"x" * 1_000),))
    assert a.join().response.error is ErrorCode.NONE
    assert driver.shard.member_bytes() - size > 1_000
    b = Client(driver, "b", protocols=(Protocol("range", said() + b"x" * 1_000),))
    assert b.join().response.error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_who_was_removed_gives_up_what_it_had_before_it_joins_again() -> None:
    """Kafka takes it in with an id that it does not know; until its SyncGroup two would have the same partitions."""
    driver = world()
    a = classic(driver, "a")
    stable(driver, {a: (0, 1, 2, 3)})
    send(driver, joining("n"))
    driver.advance(10_000)
    assert a.member_id not in group_of(driver).members
    assert again(a, 0, 1, 2, 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert again(a) is ErrorCode.NONE, (
        "with nothing, any id is a new member's: the coordinator keeps none of those given"
    )
