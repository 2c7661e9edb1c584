"""How fast connections are created: an address over its rate is held and closed, a listener over its own waits."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fleetlog.brokers.config import load_config
from fleetlog.brokers.server.listener import CreationLimits
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.wire import messages as m
from fleetlog.wire.errors import ErrorCode
from tests.support.fleet import Broker, Fleet
from tests.support.harness import Client
from tests.support.quotas import alter, remove_all

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

HERE, ADDRESS, OTHER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
RATE, COUNT = 10, 30


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = Fleet(tmp_path_factory.mktemp("rates"), brokers=2, **{"quota.window.num": 2})
    try:
        yield found.start()
    finally:
        found.close()


@pytest.fixture(autouse=True)
def no_quotas_are_left(fleet: Fleet) -> Iterator[None]:
    yield
    remove_all(fleet.brokers[0])


def served(broker: Broker, address: str, count: int = 10) -> int:
    """How many of so many connections that are created at once are answered."""
    clients = [Client(broker.port, address) for _ in range(count)]
    return sum(map(is_served, clients))


def is_served(client: Client) -> bool:
    try:
        request = m.request_class(18)(version=3, client_software_name="t", client_software_version="1")
        return bool(client.ask(request, 3).error_code == ErrorCode.NONE)
    except ConnectionError:
        return False
    finally:
        client.close()


def test_an_address_over_its_rate_is_closed_and_others_are_served(fleet: Fleet) -> None:
    limit = ((("ip", ADDRESS),), {"connection_creation_rate": 1.0})
    assert alter(fleet.brokers[0], limit) == [ErrorCode.NONE]
    assert 1 <= served(fleet.brokers[0], ADDRESS) < 10
    assert served(fleet.brokers[0], OTHER) == 10
    assert alter(fleet.brokers[0], ((("ip", ADDRESS),), {"connection_creation_rate": None})) == [ErrorCode.NONE]
    assert served(fleet.brokers[0], ADDRESS) == 10


def test_the_default_is_for_each_address(fleet: Fleet) -> None:
    rate = "connection_creation_rate"
    limits = ((("ip", HERE),), {rate: 10_000.0}), ((("ip", None),), {rate: 1.0})
    assert alter(fleet.brokers[0], *limits) == [ErrorCode.NONE] * 2
    assert served(fleet.brokers[0], "127.0.0.4", 1) == 1
    assert 1 <= served(fleet.brokers[0], "127.0.0.5") < 10
    assert alter(fleet.brokers[0], ((("ip", None),), {rate: None})) == [ErrorCode.NONE]


def test_a_broker_over_its_rate_lets_clients_wait(tmp_path_factory: pytest.TempPathFactory) -> None:
    alone = Fleet(tmp_path_factory.mktemp("alone"), brokers=1, **{
        "quota.window.num": 2, "listener.name.plaintext.max.connection.creation.rate": RATE,
    })  # fmt: skip
    try:
        alone.start()
        begun_s = time.monotonic()
        assert served(alone.brokers[0], OTHER, COUNT) == COUNT
        assert time.monotonic() - begun_s >= (COUNT - 2 * RATE) / RATE - 0.5, "none is lost, all but the first wait"
    finally:
        alone.close()


@pytest.mark.parametrize("text", ["fast", "-1", "1.5", "9999999999"])
def test_a_rate_that_is_no_number_ends_the_start(text: str) -> None:
    name = "listener.name.plaintext.max.connection.creation.rate"
    given = {"broker.id": "1", "zookeeper.connect": "none:1", "listeners": "PLAINTEXT://127.0.0.1:0", name: text}
    config = load_config(overrides=given)
    with pytest.raises(ConfigError, match=f"{name}=.*connections per second"):
        CreationLimits(config, ["PLAINTEXT"], None)  # type: ignore[arg-type]
