"""ZooKeeper outages and expired sessions: afterwards there is one controller, equal metadata, and no loss."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetlog.brokers.controller.requests import NewTopic
from fleetlog.brokers.metadata import znodes
from fleetlog.coordination.ensemble import ZooKeeperNode, start_local
from fleetlog.wire.errors import ErrorCode
from tests.support.nodes import Node, Nodes
from tests.support.stores import expire, on_loop
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperNode]:
    node = start_local(tmp_path / "zookeeper", tick_ms=250)
    yield node
    node.close()


async def make(nodes: Nodes, name: str) -> None:
    """Create a topic as a client with retries: at the present controller, until it exists."""

    async def made() -> bool:
        boss = await nodes.controller()
        (outcome,) = await boss.controller.create_topics([NewTopic(name, 3)], timeout_ms=20_000)
        return outcome.error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

    await eventually_async(made, f"{name} is created")
    await nodes.agree(lambda node: name in node.metadata.topics)


async def keep_registered(node: Node) -> None:
    """What the application does: register again in every new session."""
    while True:
        session = node.real.session()
        if session is not None and node.metadata.ready:
            known = node.metadata.brokers.get(node.id)
            if known is None:
                try:
                    await node.register()
                except Exception:  # the session ended meanwhile: the next one counts
                    pass
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("away_s", [0.2, 5.0], ids=["within the session", "longer than the session"])
@on_loop
async def test_zookeeper_restarts(own_zookeeper: ZooKeeperNode, away_s: float) -> None:
    async with Nodes(f"{own_zookeeper.address}/fleet", session_ms=2_000) as nodes:
        for broker_id in (1, 2, 3):
            await nodes.start(broker_id)
        keepers = [asyncio.create_task(keep_registered(node)) for node in nodes.alive.values()]
        await make(nodes, "before")
        image = {node.id: dict(node.metadata.topics) for node in nodes.alive.values()}
        own_zookeeper.kill()
        await asyncio.sleep(away_s)
        for node in nodes.alive.values():
            assert node.metadata.ready
            assert node.metadata.topics == image[node.id], "nothing is forgotten while ZooKeeper is away"
        await asyncio.to_thread(own_zookeeper.restart)
        await make(nodes, "after")
        await nodes.agree(lambda node: all(leader > 0 for leader in node.leaders("before")))
        await nodes.agree(lambda node: all(leader > 0 for leader in node.leaders("after")))
        assert len({node.metadata.sequence for node in nodes.alive.values()}) == 1
        for keeper in keepers:
            keeper.cancel()


@on_loop
async def test_a_controllers_session_ends(connect: str) -> None:
    """Another one takes over; the old one comes back as an ordinary broker, and its epoch writes nothing more."""
    async with Nodes(connect) as nodes:
        for broker_id in (1, 2):
            await nodes.start(broker_id)
        await make(nodes, "before")
        boss = await nodes.controller()
        other = next(node for node in nodes.alive.values() if node is not boss)
        epoch = boss.controller.epoch
        active = boss.controller.active
        assert active is not None
        await expire(boss.real, other.real)
        await eventually_async(
            lambda: other.controller.is_active or (boss.controller.is_active and boss.controller.epoch > epoch),
            "one node is controller in a later epoch",
        )
        await eventually_async(lambda: active.over, "the writes are over")
        keepers = [asyncio.create_task(keep_registered(node)) for node in nodes.alive.values()]
        await make(nodes, "after")
        data, _stat = await other.real.get(znodes.CONTROLLER_EPOCH)
        assert int(data) > epoch
        await nodes.agree(lambda node: all(leader > 0 for leader in node.leaders("before")))
        for keeper in keepers:
            keeper.cancel()


@on_loop
async def test_commands_during_a_controllers_death_are_answered(connect: str) -> None:
    """Each request gets an answer, and what was said to be made is there."""
    async with Nodes(connect) as nodes:
        for broker_id in (1, 2, 3):
            await nodes.start(broker_id)
        boss = await nodes.controller()
        asked = [
            asyncio.create_task(boss.controller.create_topics([NewTopic(f"t{i}", 20)], timeout_ms=10_000))
            for i in range(20)
        ]
        await eventually_async(lambda: any(task.done() for task in asked), "one of the calls is answered")
        helper = next(node for node in nodes.alive.values() if node is not boss)
        await expire(boss.real, helper.real)
        outcomes = [outcome for task in asked for outcome in await task]
        assert {outcome.error for outcome in outcomes} <= {ErrorCode.NONE, ErrorCode.NOT_CONTROLLER}
        assert sum(outcome.ok for outcome in outcomes) >= 1
        made = {outcome.name: outcome.topic_id for outcome in outcomes if outcome.ok}
        await helper.metadata.wait_until(lambda: made.keys() <= helper.metadata.topics.keys(), 15_000)
        assert {name: helper.metadata.topics[name].id for name in made} == made
