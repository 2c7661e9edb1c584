"""``consume`` and ``produce`` when a broker falls silent, and when they are interrupted."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.cli.shell import Shell
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.zookeeper


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One broker, which is paused and resumed within its session."""
    fleet = Fleet(tmp_path_factory.mktemp("alone"), brokers=1, zookeeper_session_timeout_ms=25_000)
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def shell(alone: Fleet) -> Shell:
    shell = Shell(alone)
    shell.run("topics", "create", "t", "-p", "2")
    shell.run("produce", "t", "-p", "1", stdin="one\n")
    return shell


def ended(reading: subprocess.Popen[str]) -> str:
    """The one line that it ends with, exit code 1."""
    _, errors = reading.communicate(timeout=120)
    assert reading.returncode == 1, errors
    (line,) = errors.splitlines()
    assert line.startswith("fleetlog: ")
    return line


@pytest.mark.parametrize(
    "options", [[], ["--from", "1", "-n", "1"], ["--group", "g"]], ids=["alone", "bounded", "group"]
)
def test_a_broker_that_falls_silent_ends_it(alone: Fleet, shell: Shell, options: list[str]) -> None:
    (broker,) = alone.brokers
    reading = shell.start("consume", "t", "--timeout", "8", *options)
    try:
        assert reading.stdout is not None
        if "--from" not in options:
            assert reading.stdout.readline() == "one\n"
        broker.signal(signal.SIGSTOP)
        assert "no answer from" in ended(reading)
    finally:
        broker.signal(signal.SIGCONT)
        reading.kill()
        reading.communicate()


def test_a_quiet_topic_is_no_silence(alone: Fleet, shell: Shell) -> None:
    (broker,) = alone.brokers
    reading = shell.start("consume", "t", "--from", "end", "--timeout", "6")
    try:
        before = broker.answered("ListOffsets")
        eventually(
            lambda: broker.answered("ListOffsets") >= before + 4 or reading.poll() is not None,
            "the leaders are asked more than once",
        )
        assert reading.poll() is None, reading.communicate()
        shell.run("produce", "t", "-p", "1", stdin="two\n")
        assert reading.stdout is not None
        assert reading.stdout.readline() == "two\n"
    finally:
        reading.kill()
        reading.communicate()


def typing(alone: Fleet, shell: Shell, *options: str) -> subprocess.Popen[str]:
    """``produce``, whose first line is confirmed and whose input stays open."""
    (broker,) = alone.brokers
    before = broker.answered("Produce")
    process = shell.start("produce", "t", *options, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("first\n")
    process.stdin.flush()
    eventually(lambda: broker.answered("Produce") > before or process.poll() is not None, "the first line is written")
    assert process.poll() is None
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_produce_that_is_interrupted_says_how_much_was_written(alone: Fleet, shell: Shell, number: int) -> None:
    process = typing(alone, shell)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "topic t: interrupted; " in errors
    assert "Traceback" not in errors
    # The answer may still have been on its way.
    assert "1 record was written before\n" in errors or "0 records were written before, up to 1 more may be" in errors


def test_a_broker_that_falls_silent_ends_produce(alone: Fleet, shell: Shell) -> None:
    (broker,) = alone.brokers
    process = typing(alone, shell, "--timeout", "8")
    try:
        broker.signal(signal.SIGSTOP)
        assert process.stdin is not None
        process.stdin.write("second\n")
        process.stdin.flush()
        process.wait(120)
        assert process.returncode == 1
        assert process.stderr is not None
        (line,) = process.stderr.read().splitlines()
        assert "topic t: the brokers did not confirm in time; 1 record was written before, up to 1 more may be" in line
    finally:
        broker.signal(signal.SIGCONT)
        process.kill()
        process.communicate()
