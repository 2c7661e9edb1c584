"""Brokers of Apache Kafka in fleetlog's tree: no fleetlog broker starts beside them, and no controller acts."""

from __future__ import annotations

import json

import pytest

from fleetlog.brokers.controller.requests import NewTopic
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.cache import foreign_controller, foreign_registration
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.coordination.registration import Advertisement, ListenerAddress, broker_path, encode_registration
from fleetlog.wire.errors import ErrorCode
from tests.support.nodes import Nodes
from tests.support.stores import on_loop
from tests.support.waiting import eventually_async

KAFKA_BROKER = json.dumps(
    {
        "version": 5,
        "host": "kafka",
        "port": 9092,
        "jmx_port": -1,
        "timestamp": "1",
        "endpoints": ["PLAINTEXT://kafka:9092"],
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "features": {},
    }
).encode()


def controller(epoch: int) -> bytes:
    return json.dumps({"version": 2, "brokerid": 3000, "timestamp": "1", "kraftControllerEpoch": epoch}).encode()


def test_what_shows_them() -> None:
    ours = encode_registration(Advertisement(7, [ListenerAddress("PLAINTEXT", "h", 1)]), 1, 12, 6000)
    assert foreign_registration("/brokers/ids/7", ours) is None
    told = foreign_registration("/brokers/ids/7", KAFKA_BROKER)
    assert told is not None
    assert told.startswith("/brokers/ids/7 was not written by fleetlog")
    assert "path of its own" in told
    assert foreign_registration("/brokers/ids/7", b"{]") is None, "that is another error"
    assert foreign_controller(controller(-1)) is None
    assert foreign_controller(b"{]") is None
    assert "KRaft" in (foreign_controller(controller(0)) or "")


@pytest.mark.zookeeper
@on_loop
async def test_no_broker_starts_beside_them(connect: str) -> None:
    async with Nodes(connect) as nodes:
        first = await nodes.start(1)
        await nodes.controller()
        await first.real.create(broker_path(5), KAFKA_BROKER, ephemeral=True)
        with pytest.raises(BadZnode, match="/brokers/ids/5"):
            await nodes.start(2)
        second = nodes.alive.pop(2)
        await second.real.close()


@pytest.mark.parametrize("sign", ["broker", "kraft controller"])
@pytest.mark.zookeeper
@on_loop
async def test_no_controller_acts_beside_them(connect: str, sign: str) -> None:
    async with Nodes(connect) as nodes:
        first = await nodes.start(1)
        second = await nodes.start(2)
        boss = await nodes.controller()
        other = second if boss is first else first
        (made,) = await boss.controller.create_topics([NewTopic("t", 4, 1)])
        assert made.ok
        await nodes.agree(lambda node: "t" in node.metadata.topics)
        if sign == "broker":
            path = broker_path(5)
            await boss.real.create(path, KAFKA_BROKER, ephemeral=True)
        else:
            path = znodes.CONTROLLER
            data, _stat = await boss.real.get(path)
            await boss.real.set(path, controller(4))
        await nodes.agree(lambda node: node.metadata.foreign is not None)
        assert not boss.controller.is_active
        assert 5 not in boss.metadata.brokers
        (refused,) = await boss.controller.create_topics([NewTopic("u")])
        assert refused.error is ErrorCode.NOT_CONTROLLER
        before = boss.store.multis
        await nodes.die(other)
        await nodes.agree(lambda node: other.id not in node.metadata.brokers)
        assert boss.leaders("t").count(other.id) == 2, "a controller that isn't alone elects no leader"
        assert boss.store.multis == before
        if sign == "broker":
            await boss.real.delete(path)
        else:
            await boss.real.set(path, data)
        await nodes.agree(lambda node: node.metadata.foreign is None)
        await nodes.agree(lambda node: other.id not in node.leaders("t"))
        await eventually_async(lambda: boss.controller.is_active, "it is the controller")
        (made,) = await boss.controller.create_topics([NewTopic("u")])
        assert made.ok
