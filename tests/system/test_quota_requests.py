"""Client quotas on two brokers: altered and described by requests and by the command, written as Kafka's tools do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from fleetlog.brokers.cli.main import cli
from fleetlog.wire.errors import ErrorCode
from tests.support.fleet import Fleet
from tests.support.quotas import Quotas, alter, asked, described, remove_all
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.interop]

EXACT, DEFAULT, SPECIFIED = range(3)
EFFECT_S = 1.0
ALICE, ANY_USER, APP = ("user", "alice"), ("user", None), ("client-id", "app/1")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = Fleet(tmp_path_factory.mktemp("quotas"), brokers=2)
    try:
        yield found.start()
    finally:
        found.close()


@pytest.fixture
def zookeeper(fleet: Fleet) -> Iterator[KazooClient]:
    client = KazooClient(fleet.zookeeper_connect)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture(autouse=True)
def no_quotas_are_left(fleet: Fleet) -> Iterator[None]:
    yield
    remove_all(fleet.brokers[0])


def fleetlog(fleet: Fleet, *words: str) -> Any:
    done = CliRunner().invoke(cli, ["quotas", *words, "--json", "--bootstrap", fleet.bootstrap])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", [0, 1])
def test_what_one_broker_writes_both_tell(fleet: Fleet, version: int) -> None:
    first, second = fleet.brokers
    wanted: Quotas = {
        (ALICE,): {"producer_byte_rate": 1048576.0, "request_percentage": 12.5},
        (ALICE, APP): {"consumer_byte_rate": 4096.0},
        (ANY_USER,): {"controller_mutation_rate": 0.5},
        (("ip", "10.0.0.9"),): {"connection_creation_rate": 7.0},
    }
    assert alter(first, *wanted.items(), version=version) == [ErrorCode.NONE] * 4
    assert described(first) == wanted
    assert described(second) == wanted
    assert alter(second, ((ALICE,), {"request_percentage": None, "producer_byte_rate": 5.0})) == [ErrorCode.NONE]
    assert described(first, ("user", EXACT, "alice"), strict=True) == {(ALICE,): {"producer_byte_rate": 5.0}}


def test_all_kinds_of_filters(fleet: Fleet) -> None:
    broker = fleet.brokers[0]
    rate = {"producer_byte_rate": 9.0}
    of = {"u": (ALICE,), "d": (ANY_USER,), "p": (ALICE, APP), "c": (APP,)}
    assert alter(broker, *((entity, rate) for entity in of.values())) == [ErrorCode.NONE] * 4

    def found(*components: Any, strict: bool = False) -> str:
        answer = described(broker, *components, strict=strict)
        return "".join(sorted(name for name, entity in of.items() if entity in answer))

    assert found() == "cdpu"
    assert found(("user", EXACT, "alice")) == "pu"
    assert found(("user", EXACT, "alice"), strict=True) == "u"
    assert found(("user", DEFAULT, None)) == "d"
    assert found(("user", SPECIFIED, None)) == "dpu"
    assert found(("user", SPECIFIED, None), ("client-id", SPECIFIED, None)) == "p"
    assert found(("client-id", EXACT, "app/1"), strict=True) == "c"
    assert found(("user", EXACT, "bob")) == ""
    for wrong, code in (
        ([("ip", EXACT, "10.0.0.1"), ("user", EXACT, "alice")], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, "alice"), ("user", DEFAULT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 7, None)], ErrorCode.INVALID_REQUEST),
        ([("tenant", DEFAULT, None)], ErrorCode.UNSUPPORTED_VERSION),
    ):
        answer = asked(broker, *wrong)
        assert (answer.error_code, answer.entries) == (code, None), wrong


def test_what_is_refused_changes_nothing(fleet: Fleet) -> None:
    rate = {"producer_byte_rate": 1.0}
    codes = alter(
        fleet.brokers[0],
        ((("user", ""),), rate),
        ((("user", ".."),), rate),
        ((("ip", "not-an-address"),), {"connection_creation_rate": 1.0}),
        ((("ip", "10.0.0.1"), ALICE), rate),
        ((ALICE,), {"connection_creation_rate": 1.0}),
        ((ALICE,), {"producer_byte_rate": 1.5}),
        ((ALICE,), {"producer_byte_rate": 0.0}),
        ((("tenant", "x"),), rate),
        ((ALICE, ALICE), rate),
    )
    assert codes == [*[ErrorCode.INVALID_REQUEST] * 7, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST]
    assert alter(fleet.brokers[0], ((ALICE,), rate), validate_only=True) == [ErrorCode.NONE]
    assert alter(fleet.brokers[0], ((ALICE,), {"x": 1.0}), validate_only=True) == [ErrorCode.INVALID_REQUEST]
    assert described(fleet.brokers[0]) == {}


def test_what_kafkas_own_tool_writes_is_followed(fleet: Fleet, zookeeper: KazooClient) -> None:
    """Its znodes: the path by steps, without data, and an entry of the list of changes behind the value."""
    zookeeper.create("/config/users/%3Codd%3E/clients", makepath=True)
    zookeeper.create(
        "/config/users/%3Codd%3E/clients/<default>", b'{"version":1,"config":{"consumer_byte_rate":"77","x":"y"}}'
    )
    notice = b'{"version":2,"entity_path":"users/%3Codd%3E/clients/<default>"}'
    zookeeper.create("/config/changes/config_change_", notice, sequence=True)
    entity = (("user", "<odd>"), ("client-id", None))
    for broker in fleet.brokers:
        found: Quotas = eventually(lambda broker=broker: described(broker), "the quota", EFFECT_S)
        assert found == {entity: {"consumer_byte_rate": 77.0}}
    assert alter(fleet.brokers[0], (entity, {"consumer_byte_rate": None})) == [ErrorCode.NONE]
    kept, _ = zookeeper.get("/config/users/%3Codd%3E/clients/<default>")
    assert json.loads(kept)["config"] == {"x": "y"}, "other settings of the entity stay"


def test_a_broker_that_starts_knows_the_quotas_of_pairs(fleet: Fleet) -> None:
    first, second = fleet.brokers
    assert alter(first, ((ALICE, APP), {"producer_byte_rate": 3.0})) == [ErrorCode.NONE]
    second.stop()
    second.start()
    second.wait_ready()
    assert described(second) == {(ALICE, APP): {"producer_byte_rate": 3.0}}


def test_the_command(fleet: Fleet) -> None:
    alice = {"user": "alice", "client_id": "<default>", "address": ""}
    words = ["--user", "alice", "--client-id-default"]
    now = fleetlog(fleet, "set", *words, "producer_byte_rate=1024", "request_percentage=2.5")
    assert now == [
        {**alice, "quota": "producer_byte_rate", "value": 1024},
        {**alice, "quota": "request_percentage", "value": 2.5},
    ]
    assert fleetlog(fleet, "list") == now
    assert fleetlog(fleet, "list", "--user", "alice") == []
    assert fleetlog(fleet, "remove", *words, "request_percentage", "--yes") == now[:1]
    assert fleetlog(fleet, "remove", *words, "--yes") == []
    wrong = CliRunner().invoke(cli, ["quotas", "set", "--user", "alice", "rate=1", "--bootstrap", "x:1"])
    assert wrong.exit_code == 2
    assert "producer_byte_rate" in wrong.output
