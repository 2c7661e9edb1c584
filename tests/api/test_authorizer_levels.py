"""The authorizer's log follows its level while the broker runs, and keeps its limit of lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleetlog.brokers.acls.access import TOPIC, WRITE, Access
from fleetlog.brokers.acls.decisions import AclRules
from fleetlog.brokers.acls.image import AclImage
from fleetlog.brokers.api.authorizer import LINES_PER_SECOND, AuthorizerLog
from fleetlog.brokers.log_levels import change, loggers

LOGGER = "kafka.authorizer.logger"


@pytest.fixture(autouse=True)
def _level_is_left_as_it_was() -> Iterator[None]:
    yield
    change([(LOGGER, None)])


def client(principal: str) -> Any:
    login = SimpleNamespace(principal=principal, peer_host="127.0.0.1")
    return cast(Any, SimpleNamespace(connection=login, api_key=0))


def access() -> Access:
    rules = AclRules(AclImage(), frozenset({"User:root"}), allow_if_no_acl=False, audited=False)
    return Access(rules, AuthorizerLog(lambda: 1_000))


def test_what_is_allowed_is_written_from_the_moment_that_the_level_says_so(caplog: pytest.LogCaptureFixture) -> None:
    door, root = access(), client("User:root")
    change([(LOGGER, "INFO")])
    door.levels_changed()
    assert door.allows(root, WRITE, TOPIC, "t")
    assert not caplog.records
    change([(LOGGER, "DEBUG")])
    door.levels_changed()
    assert loggers()[LOGGER] == "DEBUG"
    assert door.allows(root, WRITE, TOPIC, "t")
    (line,) = caplog.records
    assert (line.levelno, "Allowed" in line.getMessage()) == (logging.DEBUG, True)
    change([(LOGGER, "INFO")])
    door.levels_changed()
    assert door.allows(root, WRITE, TOPIC, "t")
    assert len(caplog.records) == 1


def test_the_limit_of_lines_in_a_second_stays(caplog: pytest.LogCaptureFixture) -> None:
    door, stranger = access(), client("User:stranger")
    change([(LOGGER, "DEBUG")])
    door.levels_changed()
    for _ in range(LINES_PER_SECOND + 50):
        assert not door.allows(stranger, WRITE, TOPIC, "t")
    assert len(caplog.records) == LINES_PER_SECOND
