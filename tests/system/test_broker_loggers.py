"""Log lines as JSON, and levels that change while the broker runs, by a stock admin client and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient
from kafka.protocol.admin import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest

from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]

BROKER, LOGGER, SET, DELETE, APPEND = 4, 8, 0, 1, 2
INVALID_CONFIG, INVALID_REQUEST = 40, 42
ROOM, MODULE = "fleetlog.brokers.peers", "fleetlog.brokers.peers.calls"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    one = Fleet(tmp_path_factory.mktemp("loggers"), 1, log_format="json")
    try:
        yield one.start()
    finally:
        one.close()


@pytest.fixture(scope="module")
def admin(broker: Fleet) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def sent(admin: KafkaAdminClient, request: Any) -> Any:
    return admin._manager.run(admin._manager.send, request, 1)


def levels(admin: KafkaAdminClient, name: str = "1") -> dict[str, str]:
    (row,) = sent(admin, DescribeConfigsRequest(resources=[(LOGGER, name, None)])).results
    assert row.error_code == 0, row.error_message
    assert {one.config_source for one in row.configs} == {6}
    assert not any(one.read_only or one.is_sensitive for one in row.configs)
    return {one.name: one.value for one in row.configs}


def altered(
    admin: KafkaAdminClient, *changes: tuple[str, int, str | None], name: str = "1", dry: bool = False
) -> tuple[int, str | None]:
    request = IncrementalAlterConfigsRequest(resources=[(LOGGER, name, list(changes))], validate_only=dry)
    (row,) = sent(admin, request).responses
    return row.error_code, row.error_message


def test_every_line_is_an_object(broker: Fleet) -> None:
    one = broker.brokers[0]
    eventually(lambda: "is ready" in one.output(), "the broker says that it is ready")
    lines = [json.loads(line) for line in one.log_file.read_text().splitlines()]
    (ready,) = [line for line in lines if line["message"] == "broker 1 is ready"]
    assert (ready["level"], ready["logger"], ready["broker"]) == ("INFO", "fleetlog.brokers.app", 1)
    assert ready["time"].endswith("+00:00")


def test_a_room_has_a_level_and_its_modules_follow(admin: KafkaAdminClient) -> None:
    before = levels(admin)
    assert (before["root"], before[ROOM], before[MODULE], before["kazoo"]) == ("INFO", "INFO", "INFO", "ERROR")
    assert altered(admin, (ROOM, SET, "DEBUG"), (MODULE, SET, "FATAL"), dry=True) == (0, None)
    assert levels(admin) == before
    assert altered(admin, (ROOM, SET, "DEBUG")) == (0, None)
    assert (levels(admin)[ROOM], levels(admin)[MODULE]) == ("DEBUG", "DEBUG")
    assert altered(admin, (MODULE, SET, "TRACE")) == (0, None)
    assert (levels(admin)[ROOM], levels(admin)[MODULE]) == ("DEBUG", "TRACE")
    assert altered(admin, (ROOM, DELETE, None), (MODULE, DELETE, None)) == (0, None)
    assert levels(admin) == before


def test_the_root_counts_for_all_that_have_none(admin: KafkaAdminClient, broker: Fleet) -> None:
    assert altered(admin, ("root", SET, "ERROR")) == (0, None)
    assert (levels(admin)["root"], levels(admin)[MODULE]) == ("ERROR", "ERROR")
    size = broker.brokers[0].log_file.stat().st_size
    assert altered(admin, (MODULE, SET, "WARN")) == (0, None)
    assert broker.brokers[0].log_file.stat().st_size == size, "what is said at WARN is not written any more"
    assert altered(admin, ("root", SET, "INFO"), (MODULE, DELETE, None)) == (0, None)
    assert levels(admin)[MODULE] == "INFO"
    assert altered(admin, ("root", DELETE, None)) == (
        INVALID_REQUEST, "Removing the log level of the root logger is not allowed",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ([("no.such", SET, "INFO")], INVALID_CONFIG, "Logger no.such does not exist!"),
        ([("no.such", DELETE, None)], INVALID_CONFIG, "Logger no.such does not exist!"),
        ([(ROOM, SET, "LOUD")], INVALID_CONFIG, "Cannot set the log level of fleetlog.brokers.peers to LOUD"),
        ([(ROOM, SET, "debug")], INVALID_CONFIG, "Valid log levels are FATAL, ERROR, WARN, INFO, DEBUG, TRACE"),
        ([(ROOM, SET, None)], INVALID_CONFIG, "Cannot set the log level of fleetlog.brokers.peers"),
        ([(ROOM, APPEND, "INFO")], INVALID_REQUEST, "APPEND operation is not allowed for the BROKER_LOGGER resource"),
        ([(ROOM, SET, "DEBUG"), ("no.such", SET, "INFO")], INVALID_CONFIG, "does not exist"),
        (
            [(ROOM, SET, "DEBUG"), (ROOM, DELETE, None)],
            INVALID_REQUEST,
            "duplicate config keys: fleetlog.brokers.peers",
        ),
    ],
)
def test_what_cannot_be_changes_nothing(admin: KafkaAdminClient, changes: list[Any], code: int, said: str) -> None:
    before = levels(admin)
    error, message = altered(admin, *changes)
    assert error == code
    assert said in (message or "")
    assert levels(admin) == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "must not be empty"),
        ("2", "expected 1, but received 2"),
        ("-1", "expected 1, but received -1"),
        ("one", "must be an integer, but it is: one"),
        ("--5", "must be an integer"),
        ("-", "must be an integer"),
        ("1\n", "must be an integer"),
        ("1" * 5_000, "must be an integer"),
    ],
)
def test_levels_are_of_the_broker_that_is_asked(admin: KafkaAdminClient, name: str, said: str) -> None:
    (row,) = sent(admin, DescribeConfigsRequest(resources=[(LOGGER, name, None)])).results
    assert row.error_code == INVALID_REQUEST
    assert said in row.error_message
    error, message = altered(admin, (ROOM, SET, "DEBUG"), name=name)
    assert error == INVALID_REQUEST
    assert said in (message or "")


def test_the_old_request_has_no_loggers(admin: KafkaAdminClient) -> None:
    request = AlterConfigsRequest(resources=[(LOGGER, "1", [(ROOM, "DEBUG")])], validate_only=False)
    (row,) = sent(admin, request).responses
    assert row.error_code == INVALID_REQUEST
    assert "does not support the resource type BROKER_LOGGER" in row.error_message


@pytest.mark.parametrize("name", ["1" * 5_000, "01", "-1", "2147483648", "1\n"])
def test_a_broker_has_a_number(admin: KafkaAdminClient, name: str) -> None:
    request = IncrementalAlterConfigsRequest(resources=[(BROKER, name, [])], validate_only=True)
    (row,) = sent(admin, request).responses
    assert row.error_code == INVALID_REQUEST
    assert "must be a broker id or empty" in row.error_message


def test_the_command_line(broker: Fleet) -> None:
    shell = Shell(broker)
    shown = {row["logger"]: row["level"] for row in shell.json("brokers", "loggers", "1")}
    assert shown["root"] == shown["fleetlog.brokers.server"] == "INFO"
    assert "kazoo" not in shown
    changed = shell.json("brokers", "loggers", "1", "--set", f"{ROOM}=debug")
    assert changed == [{"logger": ROOM, "level": "DEBUG"}]
    said = shell.run("brokers", "loggers", "1", "--set", f"{ROOM}=LOUD", code=1).stderr
    assert "not a supported log level" in said
    assert shell.json("brokers", "loggers", "1", "--unset", ROOM) == [{"logger": ROOM, "level": "INFO"}]
    assert "does not answer" in shell.run("brokers", "loggers", "9", code=1).stderr


def test_a_start_that_fails_says_so_in_one_object(broker: Fleet) -> None:
    one = broker.brokers[0]
    started = Shell(broker).start("broker", str(one.config_file), "--override", "admin.listener=127.0.0.1:0")
    _, said = started.communicate(timeout=60)
    assert started.returncode == 1
    last = json.loads(said.strip().splitlines()[-1])
    assert last["level"] == "FATAL"
    assert "cannot start" in last["message"]
