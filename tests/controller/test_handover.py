"""A controlled shutdown whose controller cannot help ends by itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.controller.controller import hand_over
from fleetlog.brokers.model import TopicPartition
from fleetlog.brokers.peers.calls import PeerUnavailable


class SilentPeers:
    """The controller answers no request."""

    def __init__(self) -> None:
        self.asked = 0

    async def call(self, broker_id: int, api_key: int, version: int, message: Any, timeout_ms: int) -> Any:
        self.asked += 1
        await asyncio.sleep(timeout_ms / 1000)
        raise PeerUnavailable(broker_id, "is silent")


@pytest.mark.parametrize(("last_attempt_s", "attempts"), [(0.0, 1), (60.0, 4)])
def test_no_attempt_begins_when_the_time_of_a_stop_is_over(
    monkeypatch: pytest.MonkeyPatch, last_attempt_s: float, attempts: int
) -> None:
    monkeypatch.setattr("fleetlog.brokers.controller.controller.CALL_MS", 40)
    monkeypatch.setattr("fleetlog.brokers.controller.controller.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("fleetlog.brokers.controller.controller.LAST_ATTEMPT_S", last_attempt_s)
    led = SimpleNamespace(tp=TopicPartition("t", 0), is_leader=True, state=SimpleNamespace(isr=(1, 2)))
    replicas: Any = SimpleNamespace(all=lambda: [led], waive_leases=list)
    metadata: Any = SimpleNamespace(brokers={1: None, 2: None}, controller_id=2)
    controller: Any = SimpleNamespace(is_active=False)
    peers: Any = SilentPeers()
    config = BrokerConfig(broker_id=1, zookeeper_connect="127.0.0.1:1")
    asyncio.run(hand_over(config, 7, metadata=metadata, replicas=replicas, controller=controller, peers=peers))
    assert peers.asked == attempts
