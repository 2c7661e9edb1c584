"""Kafka's tools for the cluster itself, on a fleet of their own: finalized features, and a broker that is gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_jars.conftest import Tools
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop, pytest.mark.zookeeper]

FEATURES, CLUSTER = "org.apache.kafka.tools.FeatureCommand", "org.apache.kafka.tools.ClusterTool"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("cluster"), 2)
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def tools(classpath: str, fleet: Fleet) -> Tools:
    return Tools(classpath, fleet)


def test_kafkas_tool_describes_and_moves_finalized_features(tools: Tools, fleet: Fleet) -> None:
    def finalized(level: int) -> bool:
        described = tools(FEATURES, "describe").splitlines()
        (words,) = (line.split() for line in described if "transaction.version" in line)
        assert words[:6] == [
            "Feature:", "transaction.version", "SupportedMinVersion:", "0", "SupportedMaxVersion:", "2",
        ]  # fmt: skip
        return words[6:8] == ["FinalizedVersionLevel:", str(level)]

    assert finalized(2), "a new fleet has the newest level"
    level = ("--feature", "transaction.version=1")
    assert "Could not" in tools(FEATURES, "upgrade", *level, code=1), "an upgrade goes up"
    assert "can be downgraded to 1" in tools(FEATURES, "downgrade", *level, "--dry-run")
    assert finalized(2)
    assert "was downgraded to 1" in tools(FEATURES, "downgrade", *level)
    eventually(lambda: finalized(1), "both brokers know it")
    assert "was upgraded to 2" in tools(FEATURES, "upgrade", "--feature", "transaction.version=2")
    eventually(lambda: finalized(2), "both brokers know it")
    assert "only supports versions 0-2" in tools(FEATURES, "upgrade", "--feature", "transaction.version=3", code=1)
    tools(FEATURES, "upgrade", "--release-version", "4.0", code=1)


def test_kafkas_tool_unregisters_a_broker_that_is_stopped(tools: Tools, fleet: Fleet) -> None:
    def unregister(code: int = 0) -> str:
        asked = ("unregister", "--bootstrap-server", fleet.bootstrap, "--id", "2")
        return tools(CLUSTER, *asked, bootstrap=False, code=code)

    assert "Broker 2 is alive: stop it first." in unregister(1)
    assert fleet.brokers[1].stop() == 0
    assert "Broker 2 is no longer registered." in unregister()
    assert "Broker ID 2 is not currently registered" in unregister(1)
