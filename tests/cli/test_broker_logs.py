"""``fleetlog logs tail``: what brokers keep of their logs, and who sees it."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.log_lines import handle_describe_log_lines
from fleetlog.brokers.audit.events import LOGGER
from fleetlog.brokers.log_tail import CHARS_MAX, LINES_MAX, LogTail
from fleetlog.brokers.setting_kinds import HIDDEN
from fleetlog.wire.errors import ErrorCode
from tests.cli.shell import Shell
from tests.support.fleet import Fleet


def logged(tail: LogTail, name: str = "test.tail") -> logging.Logger:
    logger = logging.Logger(name)
    logger.addHandler(tail)
    return logger


def test_the_newest_lines_are_kept_but_for_passwords() -> None:
    tail = LogTail(5, (LOGGER,))
    logger = logged(tail)
    assert tail.behind(-1, 10) == []
    logger.info("first %s", "line")
    logger.warning("sasl.jaas.config=%s", 'username="a" password="hush"')
    logged(tail, LOGGER).info("User:alice is denied")
    try:
        raise ValueError("x" * 2 * CHARS_MAX)
    except ValueError:
        logger.exception("a fault")
    rows = tail.behind(-1, 10)
    assert [(one.number, one.level, one.logger) for one in rows] == [
        (1, "INFO", "test.tail"), (2, "WARN", "test.tail"), (3, "ERROR", "test.tail"),
    ]  # fmt: skip
    assert rows[0].message == "first line"
    assert rows[1].message == HIDDEN
    assert rows[2].message.startswith("a fault\nTraceback")
    assert CHARS_MAX - 200 < len(rows[2].message) <= CHARS_MAX + 200
    assert [one.number for one in tail.behind(-1, 2)] == [2, 3]
    assert [one.number for one in tail.behind(0, 2)] == [1, 2]
    assert [one.number for one in tail.behind(2, 5)] == [3]
    assert tail.behind(3, 5) == tail.behind(99, 5) == tail.behind(2**63 - 1, 5) == []


def test_it_is_bounded_and_for_any_thread() -> None:
    tail = LogTail(0)
    logger = logged(tail)
    threads = [threading.Thread(target=lambda: [logger.info("%d", n) for n in range(LINES_MAX)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.number for one in tail.behind(0, 2)] == [2 * LINES_MAX + 1, 2 * LINES_MAX + 2]
    assert [one.number for one in tail.behind(-1, 10**6)] == list(range(2 * LINES_MAX + 1, 3 * LINES_MAX + 1))


def test_who_may_not_describe_the_cluster_sees_none() -> None:
    tail = LogTail(5)
    logged(tail).warning("hello")
    request = m.DescribeLogLinesRequest(version=0, after_number=-1, limit=2**31 - 1)
    context: Any = SimpleNamespace(services=SimpleNamespace(log_tail=tail), refusal=lambda *_: ErrorCode.NONE)
    answer: Any = handle_describe_log_lines(request, context)
    answer = getattr(answer, "response", answer)
    assert (answer.since_ms, [one.message for one in answer.lines]) == (5, ["hello"])
    context.refusal = lambda *_: ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    refused: Any = handle_describe_log_lines(request, context)
    assert (refused.response.error_code, refused.response.lines) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])


@pytest.mark.zookeeper
def test_lines_of_a_fleet(fleet: Fleet) -> None:
    shell, name = Shell(fleet), f"logs-{uuid.uuid4().hex[:8]}"
    assert "name topics, groups, principals" in shell.run("logs", "tail").stderr
    process = shell.start("logs", "tail", "-f", "--json", "--logger", "fleetlog.")
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["broker"] in {broker.id for broker in fleet.brokers}
        shell.run("topics", "create", name)
        told = next(line for line in process.stdout if f"leading {name}-0 in epoch 0" in line)
    finally:
        process.kill()
        process.communicate()
    assert json.loads(told)["level"] == "INFO"
    rows = [json.loads(line) for line in shell.lines("logs", "tail", "--json", "--broker", "1", "-n", "200")]
    assert {row["broker"] for row in rows} == {1}
    assert shell.lines("logs", "tail", "--level", "fatal") == []
    assert "no live broker 77" in shell.fails("logs", "tail", "--broker", "77", "--json")
