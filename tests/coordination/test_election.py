"""Controller election: one at a time, fenced, and lost answers decided by reading."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from fleetlog.coordination.election import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    ControllerElection,
    ControllerMoved,
    Leadership,
    campaign,
    fenced_multi,
    resign,
)
from fleetlog.coordination.store import Create, MultiFailed, NodeExists, SetData, Store
from fleetlog.coordination.zookeeper import ZookeeperStore
from tests.support.clocks import ManualClock
from tests.support.ensemble import Ensemble
from tests.support.stores import Proxy, Stores, expire, on_loop
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper
wall_ms = ManualClock(42).wall_ms


class Candidate:
    """A broker in controller elections that records its callbacks."""

    def __init__(self, store: Store, broker_id: int) -> None:
        self.told: list[str] = []
        self.seen: list[int] = []
        self.election = ControllerElection(
            store,
            broker_id,
            wall_ms=wall_ms,
            on_elected=lambda leadership: self.told.append(f"elected {leadership.epoch}"),
            on_resigned=lambda: self.told.append("resigned"),
            on_controller=self.seen.append,
        )
        self.election.start()

    @property
    def leadership(self) -> Leadership | None:
        return self.election.leadership


@on_loop
async def test_an_election_writes_kafkas_znodes(connect: str) -> None:
    async with Stores() as stores:
        store, other = await stores.open(connect), await stores.open(connect)
        outcome = await campaign(store, 7, wall_ms)
        assert outcome.controller_id == 7
        assert outcome.leadership is not None
        data, stat = await other.get(CONTROLLER)
        assert json.loads(data) == {"version": 2, "brokerid": 7, "timestamp": "42", "kraftControllerEpoch": -1}
        assert stat.ephemeral_owner == outcome.leadership.session_id
        epoch, stat = await other.get(CONTROLLER_EPOCH)
        assert int(epoch) == outcome.leadership.epoch == 1
        assert stat.version == outcome.leadership.epoch_version
        lost = await campaign(other, 8, wall_ms)
        assert (lost.controller_id, lost.leadership) == (7, None)
        assert await campaign(store, 7, wall_ms) == outcome
        await resign(store, outcome.leadership)
        won = await campaign(other, 8, wall_ms)
        assert won.leadership is not None
        assert won.leadership.epoch == 2
        await resign(store, outcome.leadership)  # too late, and without effect
        assert await other.exists(CONTROLLER) is not None


def only_winner(candidates: list[Candidate]) -> Candidate | None:
    winners = [candidate for candidate in candidates if candidate.leadership is not None]
    return winners[0] if len(winners) == 1 else None


async def one_term(candidates: list[Candidate], end: Callable[[int], Awaitable[None]], term: int) -> None:
    await eventually_async(lambda: only_winner(candidates) is not None, "one of them wins")
    winner = only_winner(candidates)
    assert winner is not None
    assert winner.told[-1] == f"elected {term}"
    await eventually_async(
        lambda: all(c.seen[-1:] == [candidates.index(winner)] for c in candidates), "all have seen the winner"
    )
    await end(candidates.index(winner))
    await eventually_async(lambda: winner.told[-1] != f"elected {term}", "the winner hears that it lost")


@on_loop
async def test_many_candidates_have_one_controller_and_epochs_rise(connect: str) -> None:
    async with Stores() as stores:
        opened = [await stores.open(connect) for _ in range(4)]
        watching = await stores.open(connect)
        candidates = [Candidate(store, i) for i, store in enumerate(opened)]

        async def by_expiry(winner: int) -> None:
            await expire(opened[winner], watching)

        async def by_operator(_winner: int) -> None:
            await watching.delete(CONTROLLER)

        for term in range(1, 5):
            await one_term(candidates, by_expiry if term % 2 else by_operator, term)
        for candidate in candidates:
            await candidate.election.stop()
            assert all(a != b for a, b in zip(candidate.told, candidate.told[1:], strict=False))
        assert await watching.exists(CONTROLLER) is None


@on_loop
async def test_expiry_is_published_before_the_next_session_opens(connect: str) -> None:
    async with Stores() as stores:
        store, other = await stores.open(connect), await stores.open(connect)
        order: list[str] = []
        election = ControllerElection(
            store,
            1,
            wall_ms=wall_ms,
            on_elected=lambda leadership: order.append("elected"),
            on_resigned=lambda: order.append("resigned"),
        )
        election.start()
        store.on_session(lambda event: order.append(event.state.value))
        await eventually_async(lambda: order == ["elected"], "it is elected")
        await expire(store, other)
        await eventually_async(lambda: order.count("elected") == 2, "it is elected again")
        assert order[-4:] == ["resigned", "expired", "connected", "elected"]
        await election.stop()


@on_loop
async def test_a_deposed_controller_writes_nothing(connect: str) -> None:
    async with Stores() as stores:
        store, other = await stores.open(connect), await stores.open(connect)
        won = await campaign(store, 1, wall_ms)
        assert won.leadership is not None
        results = await fenced_multi(store, won.leadership, [Create("/a"), SetData("/a", b"1", 0)])
        assert [result.path for result in results] == ["/a", "/a"]
        with pytest.raises(MultiFailed) as caught:
            await fenced_multi(store, won.leadership, [SetData("/a", b"2"), Create("/a")])
        assert caught.value.index == 1
        assert isinstance(caught.value.cause, NodeExists)
        await other.delete(CONTROLLER)
        assert (await campaign(other, 2, wall_ms)).leadership is not None
        with pytest.raises(ControllerMoved):
            await fenced_multi(store, won.leadership, [Create("/b")])
        assert await other.exists("/b") is None
        assert (await other.get("/a"))[0] == b"1"


@pytest.mark.parametrize("applied", [True, False])
@on_loop
async def test_a_lost_answer_is_decided_by_reading(connect: str, applied: bool) -> None:
    host, _, chroot = connect.partition("/")
    async with Proxy(int(host.rpartition(":")[2])) as proxy, Stores() as stores:
        store = await stores.open(f"{proxy.address}/{chroot}", timeout_ms=10_000)
        watching = await stores.open(connect)
        await store.create(CONTROLLER_EPOCH, b"4")
        original = store.multi

        async def cut_while_answering(operations):  # type: ignore[no-untyped-def]
            store.multi = original  # type: ignore[method-assign]
            proxy.answers, proxy.requests = not applied, applied
            write = asyncio.create_task(original(operations))
            if applied:
                await eventually_async(lambda: _there(watching, CONTROLLER), "the node is there")
            else:
                await eventually_async(lambda: proxy.swallowed > 0, "an answer is swallowed")
            proxy.heal()
            proxy.cut()
            return await write

        store.multi = cut_while_answering  # type: ignore[method-assign]
        candidate = Candidate(store, 1)
        await eventually_async(lambda: candidate.leadership is not None, "the candidate leads")
        assert candidate.told == ["elected 5"], "never twice, and never by an answer that was guessed"
        assert candidate.leadership is not None
        assert (await watching.get(CONTROLLER_EPOCH))[0] == b"5"
        await fenced_multi(store, candidate.leadership, [Create("/works")])
        await candidate.election.stop()


async def _there(store: ZookeeperStore, path: str) -> bool:
    return await store.exists(path) is not None


@pytest.mark.slow
@on_loop
async def test_elections_continue_while_servers_die(make_ensemble: Callable[[int], Ensemble]) -> None:
    ensemble = make_ensemble(3)
    async with Stores() as stores:
        opened = [await stores.open(ensemble.connect_string, timeout_ms=12_000) for _ in range(2)]
        candidates = [Candidate(store, i) for i, store in enumerate(opened)]
        told: list[str] = []
        await eventually_async(lambda: any(c.leadership for c in candidates), "one of them leads")
        for _ in range(2):
            victim = ensemble.leader()
            await asyncio.to_thread(victim.kill)
            winner = next(i for i, c in enumerate(candidates) if c.leadership is not None)
            # Stopped while its server is dead: the lost answer must not leave the office taken.
            await candidates[winner].election.stop()
            await eventually_async(
                lambda winner=winner: candidates[1 - winner].leadership is not None, "the other leads"
            )  # type: ignore[misc]
            told += candidates[winner].told
            candidates[winner] = Candidate(opened[winner], winner)
            victim.start()
            await asyncio.to_thread(victim.wait_serving)
        assert sum(c.leadership is not None for c in candidates) == 1
        told += [word for c in candidates for word in c.told]
        epochs = [int(word.split()[1]) for word in told if word.startswith("elected")]
        assert len(epochs) == len(set(epochs))
        for candidate in candidates:
            await candidate.election.stop()
