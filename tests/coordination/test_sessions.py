"""What happens to sessions, requests, watches and the lease when connections, servers and processes fail."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import ThrottledOpError

from fleetlog.coordination import zookeeper
from fleetlog.coordination.ensemble import ZooKeeperNode, start_local
from fleetlog.coordination.store import (
    NodeExists,
    SessionEvent,
    SessionExpired,
    SessionState,
    StoreError,
    UnknownOutcome,
    WatchEvent,
    WatchKind,
)
from fleetlog.coordination.zookeeper import ZookeeperStore, boot_ms
from tests.support.ensemble import Ensemble
from tests.support.stores import Proxy, Stores, expire, on_loop, record_session, states
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper
ROOT = Path(__file__).parents[2]
CONNECTED, SUSPENDED, EXPIRED = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.EXPIRED


def session_id(store: ZookeeperStore) -> int:
    info = store.session()
    return info.session_id if info is not None else 0


@on_loop
async def test_the_granted_timeout_is_known(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect, timeout_ms=4321)
        info = store.session()
        assert info is not None
        assert info.timeout_ms == 4321
        greedy = await stores.open(connect, timeout_ms=10_000_000)
        info = greedy.session()
        assert info is not None
        assert info.timeout_ms == 60_000
        assert 20_000 < greedy.lease.remaining_ms() < 60_000


@on_loop
async def test_a_restarted_server_keeps_session_ephemerals_and_watches(own_zookeeper: ZooKeeperNode) -> None:
    async with Stores() as stores:
        store = await stores.open(own_zookeeper.connect_string, timeout_ms=20_000)
        events = record_session(store)
        before = session_id(store)
        await store.create("/e", ephemeral=True)
        fired: list[WatchEvent] = []
        await store.get("/e", fired.append)
        await store.children("/", fired.append)
        await asyncio.to_thread(own_zookeeper.kill)
        await eventually_async(
            lambda: states(events), "the connection is suspended", good=lambda seen: seen == [SUSPENDED]
        )
        assert store.session() is not None
        assert store.lease.valid()
        reading = asyncio.create_task(store.get("/e"))
        # On a thread: the process itself must outlive that thread, so it is started here.
        own_zookeeper.start()
        await eventually_async(
            lambda: states(events), "it is connected again", good=lambda seen: seen == [SUSPENDED, CONNECTED]
        )
        assert (await reading)[1].ephemeral_owner == before == session_id(store)
        await eventually_async(lambda: len(fired) == 2, "both watches fire")
        assert set(fired) == {WatchEvent(WatchKind.CHANGED, "/e"), WatchEvent(WatchKind.CHILDREN, "/")}


@on_loop
async def test_an_expired_session_is_followed_by_a_new_one(connect: str) -> None:
    async with Stores() as stores:
        store, other = await stores.open(connect), await stores.open(connect)
        events = record_session(store)
        fired: list[WatchEvent] = []
        told: list[tuple[bool, bool]] = []
        store.on_session(lambda event: told.append((store.lease.valid(), store.session() is not None)))
        await store.create("/e", ephemeral=True)
        await store.exists("/e", fired.append)
        before = session_id(store)
        await expire(store, other)
        await other.sync("/e")
        assert await other.exists("/e") is None
        await eventually_async(lambda: states(events), "it is connected again", good=lambda seen: seen[-1] is CONNECTED)
        assert states(events)[-2:] == [EXPIRED, CONNECTED]
        assert events[-2].session_id == 0
        assert session_id(store) == events[-1].session_id not in (0, before)
        assert told[-2:] == [(False, False), (True, True)]
        # the old session's watch is gone with it; the new session works
        await store.create("/e", ephemeral=True)
        await store.sync("/e")
        assert await store.exists("/e") is not None
        assert all(event.kind is WatchKind.DELETED for event in fired)


@on_loop
async def test_a_request_of_the_old_session_never_runs_in_the_new_one(connect: str) -> None:
    host, _, chroot = connect.partition("/")
    async with Proxy(int(host.rpartition(":")[2])) as proxy, Stores() as stores:
        store = await stores.open(f"{proxy.address}/{chroot}", timeout_ms=20_000)
        other = await stores.open(connect)
        events = record_session(store)
        credentials = store.credentials()
        assert credentials is not None
        proxy.accepting = False
        proxy.cut()
        await eventually_async(
            lambda: states(events), "the connection is suspended", good=lambda seen: seen == [SUSPENDED]
        )
        waiting = [asyncio.create_task(store.create(f"/late{i}")) for i in range(5)]
        await asyncio.sleep(0.05)
        assert await other.end_session(*credentials)
        proxy.heal()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, SessionExpired) for result in results), results
        await eventually_async(lambda: states(events), "it is connected again", good=lambda seen: seen[-1] is CONNECTED)
        await store.sync("/")
        assert await store.children("/") == []


class Issued:
    """A coroutine whose first step is taken at once, not when the loop gets to it."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.coroutine = coroutine
        self.waits_for = coroutine.send(None)

    async def result(self) -> Any:
        while True:
            await asyncio.wait([self.waits_for])
            try:
                self.waits_for = self.coroutine.send(None)
            except StopIteration as end:
                return end.value


@on_loop
async def test_a_write_before_the_loop_hears_of_the_expiry_is_not_of_the_next_session(connect: str) -> None:
    async def end(credentials: tuple[int, bytes]) -> None:
        async with Stores() as stores:
            visitor = await stores.open(connect)
            for _ in range(3):  # the client's thread may take the session back before it is closed
                await visitor.end_session(*credentials)

    async with Stores() as stores:
        store, other = await stores.open(connect), await stores.open(connect)
        credentials = store.credentials()
        assert credentials is not None
        thread = threading.Thread(target=asyncio.run, args=(end(credentials),))
        thread.start()
        thread.join()  # the loop stands still, the client's own thread does not
        time.sleep(1.0)
        late = Issued(store.create("/late"))
        with pytest.raises((SessionExpired, UnknownOutcome)):
            await late.result()
        await eventually_async(lambda: store.credentials() not in (None, credentials), "there is another session")
        await other.sync("/late")
        assert await other.exists("/late") is None


@on_loop
async def test_the_next_session_is_not_shown_the_past(connect: str, own_zookeeper: ZooKeeperNode) -> None:
    """A server that lags behind the last seen zxid is rejected, also by a new session."""
    host, _, chroot = connect.partition("/")
    async with Proxy(int(host.rpartition(":")[2])) as proxy, Stores() as stores:
        store, other = await stores.open(f"{proxy.address}/{chroot}"), await stores.open(connect)
        for i in range(20):
            await store.create(f"/{i}")
        events = record_session(store)
        behind = proxy.target_port

        def lead_astray(event: SessionEvent) -> None:
            if event.state is EXPIRED:
                proxy.target_port = own_zookeeper.port

        store.on_session(lead_astray)
        await expire(store, other)
        await eventually_async(lambda: states(events), "the session has expired", good=lambda seen: EXPIRED in seen)
        await asyncio.sleep(1.5)
        assert CONNECTED not in states(events), "the other server knows less than we have seen"
        proxy.target_port = behind
        await eventually_async(
            lambda: states(events), "a new session follows", good=lambda seen: seen[-2:] == [EXPIRED, CONNECTED]
        )
        assert len(await store.children("/")) == 20


@pytest.mark.parametrize("applied", [True, False])
@on_loop
async def test_a_lost_answer_is_an_unknown_outcome(connect: str, applied: bool) -> None:
    host, _, chroot = connect.partition("/")
    async with Proxy(int(host.rpartition(":")[2])) as proxy, Stores() as stores:
        store = await stores.open(f"{proxy.address}/{chroot}", timeout_ms=10_000)
        other = await stores.open(connect)
        if applied:
            proxy.answers = False
        else:
            proxy.requests = False
        write = asyncio.create_task(store.create("/w", b"mine"))
        if applied:
            await eventually_async(lambda: other.exists("/w"), "the node is there")  # type: ignore[arg-type, return-value]
        else:
            await eventually_async(lambda: proxy.swallowed > 0, "an answer is swallowed")
        proxy.heal()
        proxy.cut()
        with pytest.raises(UnknownOutcome) as caught:
            await write
        assert caught.value.path == "/w"
        await store.sync("/w")
        assert (await store.exists("/w") is not None) is applied
        await store.set("/", b"and on")


@on_loop
async def test_a_read_survives_a_cut_connection(connect: str) -> None:
    host, _, chroot = connect.partition("/")
    async with Proxy(int(host.rpartition(":")[2])) as proxy, Stores() as stores:
        store = await stores.open(f"{proxy.address}/{chroot}", timeout_ms=10_000)
        await store.create("/r", b"data")
        proxy.answers = False
        read = asyncio.create_task(store.get("/r"))
        await eventually_async(lambda: proxy.swallowed > 0, "an answer is swallowed")
        proxy.heal()
        proxy.cut()
        assert (await read)[0] == b"data"


@on_loop
async def test_a_swallowed_handshake_does_not_use_up_the_session(connect: str) -> None:
    """As a server does that is just starting: it accepts the connection and never answers."""
    host, _, chroot = connect.partition("/")
    async with Proxy(int(host.rpartition(":")[2])) as proxy, Stores() as stores:
        store = await stores.open(f"{proxy.address}/{chroot}", timeout_ms=20_000)
        events = record_session(store)
        before = session_id(store)
        proxy.requests = False
        proxy.cut()
        await eventually_async(lambda: proxy.swallowed > 0, "an answer is swallowed")
        proxy.requests = True
        await eventually_async(lambda: states(events), "it is connected again", good=lambda seen: CONNECTED in seen)
        assert EXPIRED not in states(events)
        assert session_id(store) == before


@on_loop
async def test_the_lease_ends_before_zookeeper_expires_the_session(connect: str) -> None:
    """A silent network: no event at all reaches the store, yet its lease is over when the ephemeral goes."""
    host, _, chroot = connect.partition("/")
    async with Proxy(int(host.rpartition(":")[2])) as proxy, Stores() as stores:
        store = await stores.open(f"{proxy.address}/{chroot}", timeout_ms=1500)
        other = await stores.open(connect)
        await store.create("/e", ephemeral=True)
        await asyncio.sleep(1.0)  # some heartbeats, so that the lease rests on them
        await eventually_async(store.lease.valid, "the lease holds")
        proxy.requests = proxy.answers = False
        while await other.exists("/e") is not None:
            await asyncio.sleep(0.005)
        assert not store.lease.valid()


@on_loop
async def test_the_lease_stays_valid_in_an_idle_session(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect, timeout_ms=6000)
        events = record_session(store)
        for _ in range(400):
            await asyncio.sleep(0.02)
            # A machine that stalls ends it rightly; it must come back without a new session.
            if not store.lease.valid():
                await eventually_async(store.lease.valid, "the lease holds")
        assert EXPIRED not in states(events)


@on_loop
async def test_close_ends_the_session_at_once(connect: str) -> None:
    async with Stores() as stores:
        store, other = await stores.open(connect, timeout_ms=30_000), await stores.open(connect)
        await store.create("/e", ephemeral=True)
        await store.close()
        assert not store.lease.valid()
        assert store.session() is None
        await other.sync("/e")
        assert await other.exists("/e") is None
        with pytest.raises(SessionExpired):
            await store.get("/e")


_CHILD = """
import asyncio, sys
from fleetlog.coordination.zookeeper import ZookeeperStore
from fleetlog.coordination.zookeeper import boot_ms

async def main():
    store = ZookeeperStore(sys.argv[1], session_timeout_ms=1500)
    await store.start()
    await store.create("/child", ephemeral=True)
    first = store.session().session_id
    print("ready", boot_ms(), flush=True)
    while True:
        session = store.session()
        if session is not None and session.session_id == first and store.lease.valid():
            print("valid", boot_ms(), flush=True)
        if session is not None and session.session_id != first:
            print("expired", boot_ms(), flush=True)
            return
        await asyncio.sleep(0.002)

asyncio.run(main())
"""


@pytest.fixture
def child(connect: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", _CHILD, connect], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


@on_loop
async def test_a_paused_process_wakes_up_without_a_lease(connect: str, child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    assert (await asyncio.to_thread(child.stdout.readline)).startswith("ready")
    async with Stores() as stores:
        other = await stores.open(connect)
        before = [await asyncio.to_thread(child.stdout.readline) for _ in range(30)]
        os.kill(child.pid, signal.SIGSTOP)
        await eventually_async(lambda: _gone(other, "/child"), "the child is gone")
        gone_ms = boot_ms()
        os.kill(child.pid, signal.SIGCONT)
        out, _ = await asyncio.to_thread(child.communicate, timeout=60)
    words = [line.split() for line in (*before, *out.splitlines())]
    valid = [int(at_ms) for word, at_ms in words if word == "valid"]
    assert len(valid) > 20, "it held the lease before the pause"
    assert max(valid) < gone_ms
    assert words[-1][0] == "expired"


async def _gone(store: ZookeeperStore, path: str) -> bool:
    return await store.exists(path) is None


@pytest.mark.slow
@on_loop
async def test_an_ensemble_loses_its_leader_and_then_its_quorum(make_ensemble: Callable[[int], Ensemble]) -> None:
    ensemble = make_ensemble(3)
    async with Stores() as stores:
        store = await stores.open(ensemble.connect_string, timeout_ms=12_000)
        events = record_session(store)
        await store.create("/e", b"0", ephemeral=True)
        before = session_id(store)
        leader = ensemble.leader()
        await asyncio.to_thread(leader.kill)
        await eventually_async(lambda: _written(store), "the write is there")
        assert session_id(store) == before
        leader.start()
        await asyncio.to_thread(leader.wait_serving)
        victims = ensemble.nodes[:2]
        for node in victims:
            await asyncio.to_thread(node.kill)
        await eventually_async(
            lambda: states(events), "the connection is suspended", good=lambda seen: SUSPENDED in seen[-1:]
        )
        reading = asyncio.create_task(store.get("/e"))
        for node in victims:
            node.start()
        assert (await asyncio.wait_for(reading, 60))[1].ephemeral_owner == before
        assert EXPIRED not in states(events)
        await eventually_async(store.lease.valid, "the lease holds again")


@pytest.mark.slow
@on_loop
async def test_a_hanging_server_is_left_while_there_is_time(make_ensemble: Callable[[int], Ensemble]) -> None:
    ensemble = make_ensemble(3)
    leader = ensemble.leader()
    followers = [node for node in ensemble.nodes if node is not leader]
    async with Stores() as stores:
        # Of many stores some are at the follower that is going to hang: each chooses by a throw of its own.
        opened = [await stores.open(",".join(node.address for node in followers), timeout_ms=20_000) for _ in range(14)]
        before = [session_id(store) for store in opened]
        events = [record_session(store) for store in opened]
        leases: list[bool] = []
        for store in opened:
            store.on_session(lambda _event, store=store: leases.append(store.lease.valid()))  # type: ignore[misc]
        await asyncio.sleep(10)  # until the leases rest on heartbeats, not on the handshake
        followers[0].pause()
        try:
            await eventually_async(
                lambda: any(SUSPENDED in states(one) for one in events), "the server that hangs is left"
            )
            await eventually_async(
                lambda: all(states(one)[-1:] in ([], [CONNECTED]) for one in events), "all are connected again"
            )
            assert [session_id(store) for store in opened] == before
            assert not any(EXPIRED in states(one) for one in events)
            assert all(leases), "a lease that is over when the hanging server is left was of no use"
        finally:
            followers[0].resume()


async def _written(store: ZookeeperStore) -> bool:
    try:
        await store.set("/e", b"1")
    except UnknownOutcome:
        return False
    return True


@pytest.mark.slow
@on_loop
async def test_the_lease_behind_a_follower_that_is_cut_off(make_ensemble: Callable[[int], Ensemble]) -> None:
    """The connected follower answers reads for a while, but its leader gets no heartbeats of the session."""
    ensemble = make_ensemble(3)
    leader = ensemble.leader()
    follower = next(node for node in ensemble.nodes if node is not leader)
    async with Proxy(follower.port) as proxy, Stores() as stores:
        store = await stores.open(proxy.address, timeout_ms=1500)
        other = await stores.open(leader.address, timeout_ms=10_000)
        await store.create("/e", ephemeral=True)
        await asyncio.sleep(1.0)
        await eventually_async(store.lease.valid, "the lease holds")
        follower.pause()
        proxy.accepting = False
        try:
            while await other.exists("/e") is not None:
                await asyncio.sleep(0.005)
            assert not store.lease.valid()
        finally:
            follower.resume()


@pytest.mark.parametrize("broken", [False, True], ids=["connected", "connection broken"])
@on_loop
async def test_a_session_does_not_outlive_a_loop_that_stands_still(connect: str, broken: bool) -> None:
    """kazoo's thread neither pings for it nor takes it up again; when the loop goes on, a new session begins."""
    host, _, chroot = connect.partition("/")
    async with Proxy(int(host.rpartition(":")[2])) as proxy, Stores() as stores:
        store = await stores.open(f"{proxy.address}/{chroot}", timeout_ms=20_000)
        other = await stores.open(connect)
        events = record_session(store)
        standing_ms = 0
        store.heartbeats_prove(lambda: standing_ms)
        await store.create("/e", ephemeral=True)
        before = session_id(store)
        standing_ms = 10_000
        assert store._heartbeat is not None
        store._heartbeat.cancel()  # as on a loop that stands; this one must go on for the proxy and the test
        if broken:
            proxy.cut()

        async def gone() -> bool:
            await other.sync("/e")
            return await other.exists("/e") is None

        await eventually_async(gone, "the node of the dead session is gone")
        assert CONNECTED not in states(events)
        assert not store.lease.valid()
        standing_ms = 0
        await eventually_async(
            lambda: states(events), "it is connected again", good=lambda seen: seen[-1:] == [CONNECTED]
        )
        assert states(events)[-2:] == [EXPIRED, CONNECTED]
        assert session_id(store) != before
        await eventually_async(lambda: store.lease.valid(), "the lease holds")


@on_loop
async def test_a_request_that_an_overloaded_server_has_not_admitted_is_sent_again(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: nothing of it was done."""
    monkeypatch.setattr(zookeeper, "THROTTLED_SECONDS", 0)
    async with Stores() as stores:
        store = await stores.open(connect)
        session, refusals = store._session, [ThrottledOpError(), ThrottledOpError()]
        assert session is not None
        issue = session.issue

        def throttled(request: Callable[[Any], Any]) -> Any:
            if not refusals:
                return issue(request)
            refused = store.loop.create_future()
            refused.set_exception(refusals.pop())
            return refused

        monkeypatch.setattr(session, "issue", throttled)
        await store.create("/throttled", b"once")
        assert refusals == []
        refusals.append(ThrottledOpError())
        assert (await store.get("/throttled"))[0] == b"once"


@on_loop
async def test_a_session_finds_servers_that_were_restored_from_an_older_copy(tmp_path: Path) -> None:
    """They drop clients that have seen more than they have: one that insists would never hear of them again."""
    node = start_local(tmp_path / "zookeeper")
    try:
        store = ZookeeperStore(node.address, session_timeout_ms=2000)
        await store.start(10_000)
        await store.create("/before")
        node.kill()
        shutil.copytree(tmp_path / "zookeeper" / "data", tmp_path / "copy")
        node.restart()
        for number in range(50):
            await _insist(lambda number=number: store.create(f"/after-{number}"))  # type: ignore[misc]
        node.kill()
        shutil.rmtree(tmp_path / "zookeeper" / "data")
        shutil.copytree(tmp_path / "copy", tmp_path / "zookeeper" / "data")
        node.restart()
        assert await _insist(lambda: store.exists("/before")) is not None
        assert await store.exists("/after-0") is None
        await store.close()
    finally:
        node.close()


async def _insist(request: Callable[[], Awaitable[Any]]) -> Any:
    """The answer, as soon as there is one."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await request()
            except NodeExists:
                return None
            except StoreError:
                await asyncio.sleep(0.1)
