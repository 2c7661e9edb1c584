"""The owner of the tree and of a broker id: adoption, registration, crashes, duplicate ids."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleetlog.coordination.registration import (
    Advertisement,
    DuplicateBroker,
    ListenerAddress,
    Registered,
    broker_path,
    encode_registration,
    incarnation_path,
    last_registration,
    register,
    remove_record,
    unregister,
)
from fleetlog.coordination.store import (
    Check,
    Create,
    MultiFailed,
    SessionExpired,
    SessionState,
    Stat,
    UnknownOutcome,
)
from fleetlog.coordination.tree import CLUSTER_ID, MARK, ForeignTree, adopt
from fleetlog.coordination.zookeeper import ZookeeperStore, boot_ms
from tests.support.clocks import RealClock
from tests.support.stores import Proxy, Stores, on_loop, record_session, states
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper
ROOT = Path(__file__).parents[2]
ONE = Advertisement(1, [ListenerAddress("PLAINTEXT", "h1", 9092), ListenerAddress("IN", "::1", 9093)], rack="r")


async def enlist(
    store: ZookeeperStore,
    what: Advertisement = ONE,
    waiting: list[str] | None = None,
    process: str = "",
    times: int = 1,
) -> Registered:
    """Register by a clock that goes so many ``times`` faster than ZooKeeper's."""
    on_waiting = waiting.append if waiting is not None else lambda message: None
    return await register(
        store,
        what,
        wall_ms=RealClock().wall_ms,
        mono_ms=lambda: times * boot_ms(),
        on_waiting=on_waiting,
        process=process,
    )


# --- the tree ---


@on_loop
async def test_seeds_come_with_the_mark_and_never_later(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await adopt(store, lambda: "c", seeds={"/feature": b"one"})
        await adopt(store, lambda: "c", seeds={"/feature": b"two", "/other": b"x"})
        assert (await store.get("/feature"))[0] == b"one"
        assert await store.exists("/other") is None


@on_loop
async def test_brokers_that_start_together_agree_on_one_cluster_id(connect: str) -> None:
    async with Stores() as stores:
        opened = await asyncio.gather(*(stores.open(connect) for _ in range(4)))
        ids = await asyncio.gather(*(adopt(store, lambda i=i: f"id{i}", ["/x/y"]) for i, store in enumerate(opened)))
        assert len(set(ids)) == 1
        assert await adopt(opened[0], lambda: "another") == ids[0]
        data, _ = await opened[0].get(CLUSTER_ID)
        assert json.loads(data) == {"version": "1", "id": ids[0]}
        for path in ("/x/y", "/brokers/ids", "/brokers/incarnations", "/fleetlog/changes"):
            assert await opened[0].exists(path) is not None


@pytest.mark.parametrize("path", ["/cluster/id", "/brokers/ids", "/brokers/topics", "/controller_epoch"])
@on_loop
async def test_a_tree_of_a_kafka_cluster_is_refused_untouched(connect: str, path: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await store.create(path, b'{"version":"1","id":"kafkas"}', parents=True)
        before = await store.children("/")
        with pytest.raises(ForeignTree, match="Apache Kafka"):
            await adopt(store, lambda: "ours")
        assert await store.children("/") == before


@pytest.mark.parametrize(
    ("mark", "identity"),
    [
        (b"garbage", b'{"version":"1","id":"a"}'),
        (b'{"format":2,"cluster_id":"a"}', b'{"version":"1","id":"a"}'),
        (b'{"format":1,"cluster_id":"a"}', b'{"version":"1","id":"b"}'),
        (b'{"format":1,"cluster_id":"a"}', None),
    ],
)
@on_loop
async def test_a_damaged_or_newer_tree_is_refused(connect: str, mark: bytes, identity: bytes | None) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await store.create(MARK, mark)
        if identity is not None:
            await store.create(CLUSTER_ID, identity, parents=True)
        with pytest.raises(ForeignTree):
            await adopt(store, lambda: "c")


# --- registration ---


def test_the_json_is_kafkas_version_5() -> None:
    secret = Advertisement(7, [ListenerAddress("S", "h", 1, "SSL")], features={"group.version": (0, 1)})
    assert json.loads(encode_registration(secret, 42, 3, 6000)) == {
        "version": 5,
        "host": None,
        "port": -1,
        "jmx_port": -1,
        "timestamp": "42",
        "endpoints": ["S://h:1"],
        "listener_security_protocol_map": {"S": "SSL"},
        "features": {"group.version": {"min_version": 0, "max_version": 1}},
        "incarnation": 3,
        "session_timeout_ms": 6000,
    }


@on_loop
async def test_the_epoch_is_the_czxid_and_incarnations_are_counted(connect: str) -> None:
    async with Stores() as stores:
        watching = await stores.open(connect)
        await adopt(watching, lambda: "c")
        epochs = []
        for live_broker in (1, 2, 3):
            store = await stores.open(connect)
            registered = await enlist(store)
            data, stat = await watching.get(broker_path(1))
            assert registered.broker_epoch == stat.czxid
            assert stat.ephemeral_owner == registered.session_id
            document = json.loads(data)
            assert document["endpoints"] == ["PLAINTEXT://h1:9092", "IN://[::1]:9093"]
            assert (document["host"], document["port"], document["rack"]) == ("h1", 9092, "r")
            assert registered.incarnation == document["incarnation"] == live_broker
            await watching.multi([Check(incarnation_path(1), live_broker), Create(f"/checked{live_broker}")])
            epochs.append(registered.broker_epoch)
            await store.close()
            await watching.sync("/")
        assert epochs == sorted(set(epochs))
        with pytest.raises(MultiFailed):
            await watching.multi([Check(incarnation_path(1), 2), Create("/too-late")])


@on_loop
async def test_registering_twice_in_one_session_is_one_registration(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await adopt(store, lambda: "c")
        first = await enlist(store)
        assert await enlist(store) == first
        await unregister(store, first)
        assert await store.exists(broker_path(1)) is None
        await unregister(store, first)
        again = await enlist(store)
        assert (again.incarnation, again.session_id) == (first.incarnation + 1, first.session_id)


@on_loop
async def test_a_live_twin_is_refused_with_its_address(connect: str) -> None:
    async with Stores() as stores:
        first, second = await stores.open(connect, timeout_ms=20_000), await stores.open(connect, timeout_ms=20_000)
        await adopt(first, lambda: "c")
        holder = await enlist(first)
        waiting: list[str] = []
        with pytest.raises(DuplicateBroker) as caught:
            await enlist(second, waiting=waiting, times=12)
        assert "broker id 1" in str(caught.value)
        assert "PLAINTEXT://h1:9092" in str(caught.value)
        assert len(waiting) == 1
        stat = await first.exists(broker_path(1))
        assert stat is not None
        assert stat.czxid == holder.broker_epoch
        other = Advertisement(2, ONE.listeners)
        assert (await enlist(second, other)).incarnation == 1


@on_loop
async def test_an_earlier_session_of_the_process_is_waited_for_however_long_it_stands(connect: str) -> None:
    """A starved ZooKeeper ends a session later than it says: the broker must not take itself for another one."""
    async with Stores() as stores:
        first, second = await stores.open(connect, timeout_ms=20_000), await stores.open(connect, timeout_ms=20_000)
        await adopt(first, lambda: "c")
        await enlist(first, process="p")
        again = asyncio.ensure_future(enlist(second, process="p", times=12))
        await asyncio.sleep(4.5)  # a twin is refused after 31 s, which take 2.6
        assert not again.done()
        await first.close()
        assert (await again).incarnation == 2


_CRASHING = """
import asyncio, os, sys, time
from fleetlog.coordination.registration import *
from fleetlog.coordination.tree import adopt
from fleetlog.coordination.zookeeper import ZookeeperStore
from fleetlog.coordination.zookeeper import boot_ms

async def main():
    store = ZookeeperStore(sys.argv[1], session_timeout_ms=int(sys.argv[2]))
    await store.start()
    await adopt(store, lambda: "c")
    one = Advertisement(1, [ListenerAddress("PLAINTEXT", "h1", 9092)])
    await register(store, one, wall_ms=lambda: 0, mono_ms=boot_ms)
    session_id, password = store.credentials()
    print(session_id, password.hex(), flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def _crash(connect: str, timeout_ms: int) -> tuple[int, bytes]:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _CRASHING, connect, str(timeout_ms)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == -9, done.stderr
    session_id, password = done.stdout.split()
    return int(session_id), bytes.fromhex(password)


@on_loop
async def test_after_a_crash_ones_own_old_session_is_waited_for_visibly(connect: str) -> None:
    session_id, _ = await _crash(connect, 10_000)
    async with Stores() as stores:
        store = await stores.open(connect)
        waiting: list[str] = []
        registered = await enlist(store, waiting=waiting)
        assert registered.incarnation == 2
        assert len(waiting) == 1
        assert f"{session_id:#x}" in waiting[0]


@on_loop
async def test_with_the_credentials_registration_need_not_wait(connect: str) -> None:
    session_id, password = await _crash(connect, 60_000)
    async with Stores() as stores:
        store = await stores.open(connect)
        assert await store.end_session(session_id, password)
        waiting: list[str] = []
        assert (await enlist(store, waiting=waiting)).incarnation == 2
        assert waiting == []
        assert await store.end_session(session_id, password), "that it is over already is fine"
        info = store.session()
        assert info is not None


@on_loop
async def test_wrong_credentials_end_nothing(connect: str) -> None:
    async with Stores() as stores:
        store, other = await stores.open(connect), await stores.open(connect)
        await adopt(store, lambda: "c")
        registered = await enlist(store)
        await other.end_session(registered.session_id, b"\x01" * 16)
        await other.sync("/")
        stat = await other.exists(broker_path(1))
        assert stat is not None
        assert stat.czxid == registered.broker_epoch


@pytest.mark.parametrize("applied", [True, False])
@on_loop
async def test_a_lost_answer_does_not_register_twice(connect: str, applied: bool) -> None:
    host, _, chroot = connect.partition("/")
    async with Proxy(int(host.rpartition(":")[2])) as proxy, Stores() as stores:
        store = await stores.open(f"{proxy.address}/{chroot}", timeout_ms=10_000)
        watching = await stores.open(connect)
        await adopt(store, lambda: "c")
        await store.create(incarnation_path(1))
        original = store.multi

        async def cut_while_answering(operations):  # type: ignore[no-untyped-def]
            store.multi = original  # type: ignore[method-assign]
            proxy.answers = not applied
            proxy.requests = applied
            write = asyncio.create_task(original(operations))
            if applied:
                await eventually_async(lambda: _there(watching, broker_path(1)), "the broker's node is there")
            else:
                await eventually_async(lambda: proxy.swallowed > 0, "an answer is swallowed")
            proxy.heal()
            proxy.cut()
            return await write

        store.multi = cut_while_answering  # type: ignore[method-assign]
        registered = await enlist(store)
        data, stat = await watching.get(broker_path(1))
        assert registered.incarnation == json.loads(data)["incarnation"] == 1
        assert registered.broker_epoch == stat.czxid
        assert registered.session_id == stat.ephemeral_owner
        count = await watching.exists(incarnation_path(1))
        assert count is not None
        assert count.version == 1


async def _there(store: ZookeeperStore, path: str) -> bool:
    return await store.exists(path) is not None


@on_loop
async def test_a_new_session_registers_as_a_new_incarnation(connect: str) -> None:
    async with Stores() as stores:
        store, other = await stores.open(connect), await stores.open(connect)
        await adopt(store, lambda: "c")
        first = await enlist(store)
        events = record_session(store)
        credentials = store.credentials()
        assert credentials is not None
        await other.end_session(*credentials)
        await eventually_async(lambda: SessionState.CONNECTED in states(events), "the session is connected again")
        second = await enlist(store)
        assert second.incarnation == first.incarnation + 1
        assert second.broker_epoch > first.broker_epoch
        assert second.session_id != first.session_id


@on_loop
async def test_without_a_session_there_is_no_registration(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await store.close()
        with pytest.raises(SessionExpired):
            await enlist(store)


# --- UnregisterBroker: brokers that are gone for good ---


@on_loop
async def test_a_record_is_removed_when_its_broker_is_gone_and_its_incarnations_stay_counted(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await adopt(store, lambda: "cluster")
        assert not await remove_record(store, 1), "it never was there"
        first = await enlist(store, replace(ONE, details={"directories": {"id": "/data"}}), process="p")
        with pytest.raises(DuplicateBroker):
            await remove_record(store, 1)
        await unregister(store, first)
        assert (await last_registration(store, 1)).directories == {"id": "/data"}
        assert await remove_record(store, 1)
        assert not await remove_record(store, 1)
        last = await last_registration(store, 1)
        assert (last.process, last.directories) == ("", {})
        assert (await enlist(store)).incarnation > first.incarnation


@on_loop
async def test_a_broker_that_registers_meanwhile_keeps_its_record(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Stores() as stores:
        store, other = await stores.open(connect), await stores.open(connect)
        await adopt(store, lambda: "cluster")
        await unregister(other, await enlist(other))
        write = store.set

        async def overtaken(path: str, data: bytes, version: int = -1) -> Stat:
            monkeypatch.setattr(store, "set", write)
            await enlist(other, process="p")
            return await write(path, data, version)

        monkeypatch.setattr(store, "set", overtaken)
        with pytest.raises(DuplicateBroker):
            await remove_record(store, 1)
        assert (await last_registration(store, 1)).process == "p"


@on_loop
async def test_a_removal_whose_answer_is_lost_counts(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        await adopt(store, lambda: "cluster")
        await unregister(store, await enlist(store))
        write = store.set

        async def lost(path: str, data: bytes, version: int = -1) -> Stat:
            await write(path, data, version)
            raise UnknownOutcome("the test lost the answer")

        monkeypatch.setattr(store, "set", lost)
        assert await remove_record(store, 1)
