"""Keys and passwords are in no core dump, neither of a broker nor of the console."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.served import Served
from tests.support.fleet import Fleet
from tests.support.secured import secured_fleet

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

WHERE_DUMPS_ARE_ON = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs the rest of the command with the highest limit that it may have."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = secured_fleet(tmp_path_factory.mktemp("cores"), 1)
    found.brokers[0].within = [sys.executable, "-c", WHERE_DUMPS_ARE_ON]
    try:
        yield found.start()
    finally:
        found.close()


def assert_off(pid: int) -> None:
    found = re.search(r"Max core file size\s+(\S+)\s+(\S+)", Path(f"/proc/{pid}/limits").read_text())
    assert found is not None
    assert {found[1], found[2]} in ({"0"}, {"1"})
    assert int(Path(f"/proc/{pid}/coredump_filter").read_text(), 16) == 0


def test_a_console_dumps_no_core(fleet: Fleet) -> None:
    console = Served(fleet.bootstrap)
    try:
        assert_off(console.process.pid)
    finally:
        console.close()


def test_a_broker_that_a_signal_ends_dumps_no_core(fleet: Fleet) -> None:
    process = fleet.brokers[0].process
    assert process is not None
    assert_off(process.pid)
    process.send_signal(signal.SIGSEGV)
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    assert (ended.si_code, ended.si_status) == (os.CLD_KILLED, signal.SIGSEGV), "CLD_DUMPED: it left a core"
