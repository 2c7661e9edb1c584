"""Ports for servers that are about to start: what is given once is given to no other, here or in another process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleetlog._native import temporary
from fleetlog.coordination import ports
from fleetlog.coordination.ports import free_ports, free_row, is_free

OTHER = """
import sys
from fleetlog.coordination.ports import _claims
print(*(port for port in map(int, sys.argv[1:]) if _claims.take(port)))
"""


def taken_by_another_process(wanted: list[int]) -> set[int]:
    """Which of the ports another process can claim."""
    ran = subprocess.run(
        [sys.executable, "-c", OTHER, *map(str, wanted)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(ports.__file__).parents[2])},
    )  # fmt: skip
    return set(map(int, ran.stdout.split()))


def test_ports_are_free_and_different() -> None:
    given = free_ports(20)
    assert len(set(given)) == 20
    assert all(is_free(port) for port in given)


def test_no_outgoing_connection_is_given_one() -> None:
    """A server that is restarted finds its port free."""
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(free_ports(100)) < first_outgoing


def test_a_row_has_no_gap_and_no_port_that_was_given() -> None:
    given = free_ports(500)
    row = free_row(8)
    assert row == list(range(row[0], row[0] + 8))
    assert not set(given) & set(row)


def test_what_was_given_is_given_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port is free until its server listens, and a test may start a server long after it chose the port."""
    narrow = 12
    first = free_row(narrow)[0]
    monkeypatch.setattr(ports, "_claims", ports._Claims())
    monkeypatch.setattr(ports, "FIRST_PORT", first)
    monkeypatch.setattr(ports, "_first_outgoing", lambda: first + narrow)
    given = free_ports(narrow - 1)
    assert len(set(given)) == narrow - 1
    assert not taken_by_another_process(given)
    with pytest.raises(OSError, match="no 2 ports in a row are free"):
        free_row(2)


def test_claims_end_with_their_process_and_the_oldest_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_row(4)[0]
    row = list(range(first, first + 4))
    monkeypatch.setattr(ports, "CLAIMED_MAX", 2)
    claims = ports._Claims()
    assert [claims.take(port) for port in row] == [True] * 4
    assert taken_by_another_process(row) == set(row[:2])
    assert taken_by_another_process(row) == set(row[:2]), "the other process is gone"


def test_without_locks_claims_hold_in_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A file of its own: closing the shared one gives up locks.
    monkeypatch.setattr(temporary.tempfile, "gettempdir", lambda: str(tmp_path))

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(ports.fcntl, "lockf", no_locks)
    claims = ports._Claims()
    assert [claims.take(10_000), claims.take(10_000), claims.take(10_001)] == [True, False, True]


def test_without_a_shared_file_claims_hold_in_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(temporary.tempfile, "gettempdir", lambda: str(tmp_path / "none"))
    claims = ports._Claims()
    assert [claims.take(10_000), claims.take(10_000)] == [True, False]
