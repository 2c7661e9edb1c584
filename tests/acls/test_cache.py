"""ACLs in a real ZooKeeper: written by several brokers, followed by all of them, whatever is lost in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fleetlog.brokers.acls import cache as acl_cache
from fleetlog.brokers.acls.cache import AclCache, Edit, EditedEntries, edit_acls
from fleetlog.brokers.acls.decisions import AclRules
from fleetlog.brokers.acls.image import (
    AccessControlEntry,
    AclImage,
    AclOperation,
    Entries,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from fleetlog.brokers.acls.znodes import (
    EXTENDED_CHANGES,
    LITERAL_CHANGES,
    acl_path,
    change_node,
    encode_entries,
)
from fleetlog.brokers.metadata.config_writes import Contended
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.coordination.store import Create, SessionExpired, Store, TooLarge
from tests.support.nodes import Meddled, lose_the_answer
from tests.support.stores import Proxy, Stores, on_loop
from tests.support.waiting import eventually_async

ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
PREFIX = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "or", PatternType.PREFIXED)
EFFECT_S = 15.0
"""Less than until everything is read again without a watch."""


def entry(user: str = "alice", permission: Permission = Permission.ALLOW) -> AccessControlEntry:
    return AccessControlEntry(f"User:{user}", "*", AclOperation.READ, permission)


def adding(*entries: AccessControlEntry) -> Edit:
    return lambda present: present | frozenset(entries)


def taking(*entries: AccessControlEntry) -> Edit:
    return lambda present: present - frozenset(entries)


@asynccontextmanager
async def caches(*stores: Store) -> AsyncIterator[list[AclCache]]:
    """A broker's ACLs for each store; what they left running is ended."""
    made = [AclCache(store, AclRules(AclImage(), {"User:admin"})) for store in stores]
    try:
        for one in made:
            await one.start()
        yield made
    finally:
        for one in made:
            await one.stop()


async def follows(cache: AclCache, pattern: ResourcePattern, *entries: AccessControlEntry) -> None:
    await eventually_async(
        lambda: cache.image.entries.get(pattern, frozenset()) == frozenset(entries), "the change arrives", EFFECT_S
    )


@on_loop
async def test_what_one_broker_writes_all_follow(connect: str) -> None:
    async with Stores() as stores:
        first, second = await stores.open(connect), await stores.open(connect)
        async with caches(first, second) as (writer, follower):
            done = await edit_acls(first, writer, {ORDERS: adding(entry()), PREFIX: adding(entry("bob"))})
            assert done[ORDERS] == EditedEntries(frozenset(), frozenset({entry()}))
            assert writer.image.entries[ORDERS] == {entry()}, "the writer decides by it when it is acknowledged"
            await follows(follower, ORDERS, entry())
            await follows(follower, PREFIX, entry("bob"))
            before = follower.image.version
            await edit_acls(first, writer, {ORDERS: taking(entry())})
            await follows(follower, ORDERS)
            assert follower.image.version == before + 1
            assert await first.exists(acl_path(ORDERS)) is None, "a pattern without entries has no znode"
            assert await first.children(LITERAL_CHANGES) == ["acl_changes_0000000000", "acl_changes_0000000001"]
            assert await first.children(EXTENDED_CHANGES) == ["acl_changes_0000000000"]
        async with caches(second) as (later,):
            assert dict(later.image.entries) == {PREFIX: {entry("bob")}}


@on_loop
async def test_patterns_whose_names_no_znode_can_have(connect: str) -> None:
    """Groups and transactional ids may have any name, and ``.`` begins names of topics; Kafka's tree stays readable."""
    names = ["team/app", "job/Source: a -> Sink/0", ".", "..", "a\0b", "\U0001f600"]
    patterns = [
        ResourcePattern(kind, name, shape)
        for kind, shape in ((ResourceType.GROUP, PatternType.LITERAL), (ResourceType.TOPIC, PatternType.PREFIXED))
        for name in names
    ]
    async with Stores() as stores:
        first, second = await stores.open(connect), await stores.open(connect)
        async with caches(first, second) as (writer, follower):
            done = await edit_acls(first, writer, {pattern: adding(entry()) for pattern in patterns})
            assert all(isinstance(outcome, EditedEntries) for outcome in done.values()), done
            for pattern in patterns:
                await follows(follower, pattern, entry())
            await edit_acls(first, writer, {patterns[0]: taking(entry())})
            await follows(follower, patterns[0])
            assert await first.children("/kafka-acl/Group") == []
        async with caches(second) as (later,):
            assert set(later.image.entries) == set(patterns[1:])


@on_loop
async def test_writers_of_one_pattern_lose_nothing(connect: str) -> None:
    async with Stores() as stores:
        ports = [await stores.open(connect) for _ in range(3)]
        async with caches(*ports) as brokers:

            async def write(number: int) -> None:
                for index in range(10):
                    one = entry(f"{number}-{index}")
                    done = await edit_acls(ports[number], brokers[number], {ORDERS: adding(one)})
                    assert isinstance(done[ORDERS], EditedEntries), done

            await asyncio.gather(*(write(number) for number in range(3)))
            everything = [entry(f"{number}-{index}") for number in range(3) for index in range(10)]
            for broker in brokers:
                await follows(broker, ORDERS, *everything)


@on_loop
async def test_a_write_whose_answer_is_lost_is_decided_by_reading(connect: str) -> None:
    async with Stores() as stores:
        port = Meddled(await stores.open(connect))
        async with caches(port) as (broker,):
            await edit_acls(port, broker, {ORDERS: adding(entry(), entry("bob"))})

            def once(number: int, operations: object) -> None:
                port.after_multi = lambda number, operations: None
                lose_the_answer(number, [])

            port.after_multi = once
            done = await edit_acls(port, broker, {ORDERS: taking(entry())})
            assert done[ORDERS] == EditedEntries(frozenset({entry(), entry("bob")}), frozenset({entry("bob")}))


@on_loop
async def test_a_pattern_that_keeps_changing_is_given_up(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_cache, "ATTEMPTS", 3)
    monkeypatch.setattr(acl_cache, "RETRY_SECONDS", 0.0)
    async with Stores() as stores:
        real = await stores.open(connect)
        port = Meddled(real)
        async with caches(port) as (broker,):
            await edit_acls(port, broker, {ORDERS: adding(entry())})

            async def change() -> None:
                data, _ = await real.get(acl_path(ORDERS))
                await real.set(acl_path(ORDERS), data)

            port.before_multi = lambda number, operations: change()
            done = await edit_acls(port, broker, {ORDERS: adding(entry("bob"))})
            assert isinstance(done[ORDERS], Contended)


@on_loop
async def test_one_bad_pattern_does_not_stop_the_others(connect: str) -> None:
    async with Stores() as stores:
        port = await stores.open(connect)
        async with caches(port) as (broker,):
            broken, large = ORDERS._replace(name="broken"), ORDERS._replace(name="large")
            await port.create(acl_path(broken), b"{")
            many = [entry(f"user-{number:05}-{'x' * 60}") for number in range(6000)]
            done = await edit_acls(
                port, broker, {broken: adding(entry()), ORDERS: adding(entry()), large: adding(*many)}
            )
            assert isinstance(done[broken], BadZnode)
            assert isinstance(done[large], TooLarge)
            assert isinstance(done[ORDERS], EditedEntries)
            assert set(broker.image.entries) == {ORDERS}


@on_loop
async def test_a_gap_in_the_changes_is_noticed(connect: str) -> None:
    async with Stores() as stores:
        first, second = await stores.open(connect), await stores.open(connect)
        async with caches(first, second) as (writer, follower):
            await edit_acls(first, writer, {ORDERS: adding(entry())})
            await follows(follower, ORDERS, entry())
            await follower.stop()
            await edit_acls(first, writer, {PREFIX: adding(entry())})
            await edit_acls(first, writer, {ORDERS: taking(entry())})
            await edit_acls(first, writer, {ORDERS._replace(name="later"): adding(entry())})
            await first.delete(f"{LITERAL_CHANGES}/acl_changes_0000000001")
            await follower.refresh()
            assert follower.image.entries == writer.image.entries


@on_loop
async def test_a_change_that_cannot_be_read_means_that_all_are_read(connect: str) -> None:
    async with Stores() as stores:
        first, second = await stores.open(connect), await stores.open(connect)
        async with caches(second) as (follower,):
            path, _ = change_node(ORDERS)
            await first.multi(
                [Create(acl_path(ORDERS), encode_entries(frozenset({entry()}))), Create(path, b"?", sequence=True)]
            )
            await follows(follower, ORDERS, entry())


@on_loop
async def test_entries_that_cannot_be_read_deny_until_they_are_repaired(connect: str) -> None:
    async with Stores() as stores:
        port = await stores.open(connect)
        everywhere = ResourcePattern(ResourceType.TOPIC, "*")
        async with caches(port) as (broker,):
            await edit_acls(port, broker, {everywhere: adding(entry()), ORDERS: adding(entry())})

            def reads(user: str, topic: str) -> bool:
                return broker.rules.allows(user, "h", AclOperation.READ, ResourceType.TOPIC, topic)

            assert reads("User:alice", "orders")
            await port.set(acl_path(ORDERS), b'{"version":2}')
            path, data = change_node(ORDERS)
            await port.create(path, data, sequence=True)
            await eventually_async(lambda: not reads("User:alice", "orders"), "it is denied", EFFECT_S)
            assert reads("User:alice", "others")
            assert reads("User:admin", "orders")
            await port.delete(acl_path(ORDERS))
            await port.create(path, data, sequence=True)
            await eventually_async(lambda: reads("User:alice", "orders"), "it is allowed", EFFECT_S)


@on_loop
async def test_after_a_reconnect_all_are_read(connect: str) -> None:
    """Even those that no change node tells of: written by hand, or told of while this broker was away."""
    address, _, path = connect.partition("/")
    async with Stores() as stores, Proxy(int(address.rpartition(":")[2])) as proxy:
        first, second = await stores.open(connect), await stores.open(f"127.0.0.1:{proxy.port}/{path}")
        async with caches(first, second) as (writer, follower):
            await edit_acls(first, writer, {ORDERS: adding(entry())})
            await follows(follower, ORDERS, entry())
            proxy.accepting = False
            proxy.cut()
            await edit_acls(first, writer, {ORDERS: taking(entry())})
            await first.create(acl_path(ORDERS._replace(name="by-hand")), encode_entries(frozenset({entry()})))
            await asyncio.sleep(0.5)
            assert follower.image.entries[ORDERS] == {entry()}, "what was read last decides"
            proxy.accepting = True
            await eventually_async(lambda: ORDERS not in follower.image.entries, "it follows again", 30)
            assert follower.image.entries[ORDERS._replace(name="by-hand")] == {entry()}


@on_loop
async def test_a_change_is_told_when_this_broker_decides_by_it_not_before(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Stores() as stores:
        port = await stores.open(connect)
        async with caches(port) as (broker,):
            refresh, failed = broker.refresh, []

            async def failing_twice() -> None:
                if len(failed) < 2:
                    failed.append(broker.image.entries.get(ORDERS))
                    raise SessionExpired("the session is over")
                await refresh()

            monkeypatch.setattr(broker, "refresh", failing_twice)
            monkeypatch.setattr(broker.watcher, "read_soon", lambda: None)
            monkeypatch.setattr(broker.watcher, "watch", lambda _event: None)
            await edit_acls(port, broker, {ORDERS: adding(entry())})
            assert broker.image.entries[ORDERS] == {entry()}
            assert len(failed) == 2


@on_loop
async def test_old_changes_are_removed(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_cache, "CHANGES_MOST", 6)
    monkeypatch.setattr(acl_cache, "CHANGES_KEPT", 3)
    async with Stores() as stores:
        first, second = await stores.open(connect), await stores.open(connect)
        async with caches(first, second) as (writer, follower):
            for number in range(20):
                await edit_acls(first, writer, {ORDERS: adding(entry(str(number)))})
            assert 3 <= len(await first.children(LITERAL_CHANGES)) <= 6
            await follows(follower, ORDERS, *(entry(str(number)) for number in range(20)))


@on_loop
async def test_random_changes_by_two_brokers_end_as_in_a_model(connect: str) -> None:
    chance = random.Random(27309)
    patterns = [
        ORDERS,
        PREFIX,
        ORDERS._replace(name="or", pattern_type=PatternType.PREFIXED),
        ORDERS._replace(name="*"),
    ]
    entries = [entry(user, permission) for user in "abc" for permission in (Permission.ALLOW, Permission.DENY)]
    model: dict[ResourcePattern, Entries] = dict.fromkeys(patterns, frozenset())
    async with Stores() as stores:
        ports = [await stores.open(connect) for _ in range(2)]
        async with caches(*ports) as brokers:
            for _ in range(60):
                number = chance.randrange(2)
                edits: dict[ResourcePattern, Edit] = {}
                for pattern in chance.sample(patterns, chance.randint(1, 3)):
                    some = chance.sample(entries, chance.randint(1, 3))
                    edit = chance.choice((adding, taking))(*some)
                    edits[pattern], model[pattern] = edit, edit(model[pattern])
                await edit_acls(ports[number], brokers[number], edits)
            expected = {pattern: found for pattern, found in model.items() if found}
            for broker in brokers:
                await eventually_async(lambda broker=broker: broker.image.entries == expected, "the model", EFFECT_S)
                assert broker.image.entries == AclImage(expected).entries
        async with caches(ports[0]) as (later,):
            assert later.image.entries == expected
